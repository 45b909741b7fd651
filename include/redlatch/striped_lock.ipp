// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/error.hpp"
#include "redlatch/rlock.hpp"
#include "redlatch/striped_lock.hpp"

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

REDLATCH_INLINE StripedLock::StripedLock(Client& client, std::string_view name, std::size_t stripes,
                                         const ObjectOptions& options)
    : name_(name) {
    if (name.empty()) throw Error(errc::invalid_argument, {}, "the name must not be empty");
    if (stripes < 1 || stripes > max_stripes())
        throw Error(errc::invalid_argument, name_, "the number of stripes must be from 1 to 4096");
    for (std::size_t i = 0; i < stripes; ++i)
        locks_.push_back(std::make_unique<RLock>(client, name_ + ':' + std::to_string(i), options));
}

REDLATCH_INLINE std::size_t StripedLock::stripes() const noexcept { return locks_.size(); }

REDLATCH_INLINE RLock& StripedLock::lock_for(std::string_view name) { return *locks_[stripe_of(name)]; }

REDLATCH_INLINE MultiLock StripedLock::locks_for(std::initializer_list<std::string_view> names) {
    return MultiLock(members_for(names));
}

REDLATCH_INLINE RLock& StripedLock::stripe(std::size_t index) {
    if (index >= stripes()) throw Error(errc::invalid_argument, name_, "there is no such stripe");
    return *locks_[index];
}

REDLATCH_INLINE std::vector<RLock*> StripedLock::members_of(const std::vector<bool>& wanted) {
    std::vector<RLock*> members;
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i]) members.push_back(locks_[i].get());
    if (members.empty()) throw Error(errc::invalid_argument, name_, "a lock for several names needs at least one name");
    return members;
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
