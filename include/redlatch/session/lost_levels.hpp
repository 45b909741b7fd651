// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace redlatch {
inline namespace v0_1 {

// Levels of holds that were lost, and whose unlock() is still to come: it finds out then, and is no error of its
// thread's. Kept for the process rather than with the lock, because the object that was locked may be gone by then. Many
// never come: a hold with a lease of its own need not be given back. So only the latest are remembered.
//
// Thread-safe: mutex_ guards all members. Nobody waits here.
class LostLevels {
public:
    static constexpr std::size_t most = 10'000;

    void add(std::string_view kind, std::string_view key, OwnerNumber owner, std::uint32_t levels) {
        std::string name = name_of(kind, key, owner);
        const std::lock_guard lock(mutex_);
        if (levels_.size() >= most) {
            levels_.erase(order_.front());
            order_.pop_front();
        }
        if (!levels_.contains(name)) order_.push_back(name);
        levels_[std::move(name)] += levels;
    }

    // Whether there was one; then it is over with.
    bool take(std::string_view kind, std::string_view key, OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        if (levels_.empty()) return false;
        const auto found = levels_.find(name_of(kind, key, owner));
        if (found == levels_.end() || found->second == 0) return false;
        --found->second;
        return true;
    }

private:
    static std::string name_of(std::string_view kind, std::string_view key, OwnerNumber owner) {
        std::string name = std::to_string(owner);
        return name.append(" ").append(kind).append(key);
    }

    std::mutex mutex_;
    std::unordered_map<std::string, std::uint32_t> levels_;
    std::deque<std::string> order_;  // of their first coming
};

}  // namespace v0_1
}  // namespace redlatch
