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
inline namespace REDLATCH_ABI {
namespace detail {

// Remembers levels of lost holds whose unlock() is still to come: that unlock() reports errc::hold_lost, not
// errc::not_owner. They are kept for the process rather than with the lock, because the locked object may be gone by
// then. An object that is about to get such a hold learns its number and token here. Many unlock() calls never come, because a hold with its own lease need not be released. So only the latest are
// kept.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class LostLevels {
public:
    static constexpr std::size_t most = 10'000;

    void add(std::string_view kind, std::string_view key, OwnerNumber owner, std::uint32_t levels, HoldFacts of = {}) {
        std::string name = name_of(kind, key, owner);
        const std::lock_guard lock(mutex_);
        if (levels_.size() >= most) {
            levels_.erase(order_.front());
            order_.pop_front();
        }
        if (!levels_.contains(name)) order_.push_back(name);
        Lost& lost = levels_[std::move(name)];
        lost.levels += levels;
        lost.last = of;
    }

    // Takes one level. Returns true if there was one.
    bool take(std::string_view kind, std::string_view key, OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        if (levels_.empty()) return false;
        const auto found = levels_.find(name_of(kind, key, owner));
        if (found == levels_.end() || found->second.levels == 0) return false;
        --found->second.levels;
        return true;
    }

    // Returns what the server knew of the owner's hold that was lost last; nothing if there was none.
    HoldFacts last(std::string_view kind, std::string_view key, OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const auto found = levels_.find(name_of(kind, key, owner));
        return found == levels_.end() ? HoldFacts{} : found->second.last;
    }

private:
    struct Lost {
        std::uint32_t levels = 0;
        HoldFacts last{};
    };

    static std::string name_of(std::string_view kind, std::string_view key, OwnerNumber owner) {
        std::string name = std::to_string(owner.number);
        name += static_cast<char>('a' + static_cast<char>(owner.sort));
        return name.append(" ").append(kind).append(key);
    }

    std::mutex mutex_;
    std::unordered_map<std::string, Lost> levels_;
    std::deque<std::string> order_;  // of first insertion
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
