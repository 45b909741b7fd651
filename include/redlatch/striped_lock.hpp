// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/stable_hash.hpp"
#include "redlatch/client.hpp"
#include "redlatch/multi_lock.hpp"
#include "redlatch/options.hpp"
#include "redlatch/rlock.hpp"

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides locks for any number of names on a fixed number of keys, its stripes: one for each account, say, of millions.
// Each name has a stripe, an RLock, and names that share a stripe exclude each other, too. The server has at most one key
// for each stripe, and this process the local state of as many locks, whatever the number of names.
//
//   redlatch::StripedLock accounts{redis, "accounts", 256};
//   std::lock_guard guard{accounts.lock_for("alice")};
//
// The stripe of a name depends on the bytes of the name and on the number of stripes alone, so it is the same in every
// process, on every platform and with every version. All processes must therefore use the same number of stripes.
//
// The key of stripe 7 of "accounts" is "accounts:7". In a cluster the stripes spread over the nodes, unless the name has a
// {tag}. Neither copyable nor movable. Any number of threads may use one object.
class StripedLock {
public:
    // Makes an object with that many stripes, from 1 to max_stripes(). Throws Error(errc::invalid_argument) for another
    // number, if the name is bad or too long for its stripes (see RLock), and for options that cannot work: see
    // ObjectOptions. Sends nothing.
    StripedLock(Client& client, std::string_view name, std::size_t stripes, const ObjectOptions& options = {});

    StripedLock(const StripedLock&) = delete;
    StripedLock& operator=(const StripedLock&) = delete;

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return name_; }

    // Returns the number of stripes.
    std::size_t stripes() const noexcept;

    // Returns the largest number of stripes.
    static constexpr std::size_t max_stripes() noexcept { return 4096; }

    // Returns the stripe of a name among so many, from 0 on. It is the FNV-1a hash of the bytes of the name, of 64 bits,
    // whose halves are combined by exclusive or, modulo the number of stripes. Sends nothing.
    static constexpr std::size_t stripe_of(std::string_view name, std::size_t stripes) noexcept {
        return detail::stable_hash(name) % stripes;
    }

    // Returns the stripe of a name in this object.
    std::size_t stripe_of(std::string_view name) const noexcept { return stripe_of(name, stripes()); }

    // Returns the lock of a name. Any text is a name, the empty one included. The lock lives as long as this object. Sends
    // nothing.
    //
    // A thread that holds the locks of two names one after the other, each acquired by itself, may wait for a thread that
    // acquired them in the other order: use locks_for() for several. Names of the same stripe are one reentrant lock.
    RLock& lock_for(std::string_view name);

    // Returns the lock of a stripe, for tools that look at all of them. Throws Error(errc::invalid_argument) if there is
    // no such stripe.
    RLock& stripe(std::size_t index);

    // Returns one lock over all stripes of these names: see MultiLock. It has each stripe once. A call that waits for it
    // holds none of the stripes, so threads may name them in any order, with other names beside them, and do not wait for
    // each other for ever. This object must outlive it. Throws Error(errc::invalid_argument) if there is no name. Sends
    // nothing.
    //
    //   redlatch::MultiLock both = accounts.locks_for({"alice", "bob"});
    //   std::lock_guard guard{both};
    [[nodiscard]] MultiLock locks_for(std::initializer_list<std::string_view> names);

    // Does the same for a range of names: of anything that converts to std::string_view.
    template <detail::LockRange Names>
    [[nodiscard]] MultiLock locks_for(const Names& names) {
        return MultiLock(members_for(names));
    }

private:
    // Returns the locks of the stripes that the names have, each once, in the order of the stripes.
    template <class Names>
    std::vector<RLock*> members_for(const Names& names) {
        std::vector<bool> wanted(stripes());
        for (const auto& name : names) wanted[stripe_of(std::string_view(name))] = true;
        return members_of(wanted);
    }
    std::vector<RLock*> members_of(const std::vector<bool>& wanted);

    const std::string name_;
    std::vector<std::unique_ptr<RLock>> locks_;  // constant from the constructor on
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/striped_lock.ipp"
#endif
