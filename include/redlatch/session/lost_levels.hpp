// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Remembers levels of lost holds whose unlock() is still to come: that unlock() reports errc::hold_lost, not
// errc::not_owner. They are kept for the process rather than with the lock, because the locked object may be gone by
// then. An object that is about to get such a hold learns its number and token here.
//
// Many unlock() calls never come, because a hold with its own lease need not be released. So only the latest are kept.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class LostLevels {
public:
    static constexpr std::size_t most = 10'000;

    void add(std::string_view kind, std::string_view key, OwnerNumber owner, std::uint32_t levels, HoldFacts of = {}) {
        std::string name = name_of(kind, key, owner);
        const std::lock_guard lock(mutex_);
        if (const auto found = levels_.find(name); found != levels_.end()) {
            Lost& lost = found->second;
            lost.levels += levels;
            lost.last = of;
            order_.splice(order_.end(), order_, lost.place);
            return;
        }
        if (levels_.size() >= most) remove(levels_.find(order_.front()));
        order_.push_back(name);
        try {
            levels_.emplace(std::move(name), Lost{levels, of, std::prev(order_.end())});
        } catch (...) {
            order_.pop_back();
            throw;
        }
    }

    // Takes one level. Returns true if there was one.
    bool take(std::string_view kind, std::string_view key, OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        if (levels_.empty()) return false;
        const auto found = levels_.find(name_of(kind, key, owner));
        if (found == levels_.end()) return false;
        if (--found->second.levels == 0) remove(found);
        return true;
    }

    // Returns what the server knew of the owner's hold that was lost last; nothing if no level of it is left here.
    HoldFacts last(std::string_view kind, std::string_view key, OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const auto found = levels_.find(name_of(kind, key, owner));
        return found == levels_.end() ? HoldFacts{} : found->second.last;
    }

private:
    using Order = std::list<std::string>;

    struct Lost {
        std::uint32_t levels;
        HoldFacts last;
        Order::iterator place;
    };
    using Levels = std::unordered_map<std::string, Lost>;

    void remove(Levels::iterator lost) noexcept {
        order_.erase(lost->second.place);
        levels_.erase(lost);
    }

    static std::string name_of(std::string_view kind, std::string_view key, OwnerNumber owner) {
        std::string name = std::to_string(owner.number);
        name += static_cast<char>('a' + static_cast<char>(owner.sort));
        return name.append(" ").append(kind).append(key);
    }

    std::mutex mutex_;
    Levels levels_;
    Order order_;  // the one that lost a hold last comes last
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
