// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/lock/spin_options.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides the distributed lock of the Redis documentation: SET name value NX PX lease acquires it, and deleting the
// key if it still has that value releases it. The key is the name itself, after the client's key_prefix. So this lock
// and every other client that locks this way, in any language, exclude each other. Each hold has its own value:
// "<client id>:<number>".
//
// Not reentrant. lock() and its variants, try_lock() included, throw Error(errc::would_deadlock) for the owner that
// holds the lock, by default the calling thread; std::mutex would be undefined there. They throw at once and send
// nothing. A lost hold does not count: its owner may acquire the lock again like any other.
//
// Releases publish no message. So a waiting process asks the server to report when the key changes, as a SpinLock does: see
// SpinOptions. Where the server cannot do that, the process retries after growing pauses, with one command per pause, however
// many of its threads wait. Threads of one process hand the lock over among themselves. Acquiring a free lock is one command,
// and releasing it is another. A failed attempt takes two, because the plain command does not report why it was refused.
// Servers that can delete by value themselves (Redis 8.4, Valkey 9) are asked to do so. The first release of a client finds
// out whether the server can; it costs two commands if the server has only DELIFEQ, three if it has neither that nor DELEX.
//
// The watchdog, leases, lost() and errors are those of RLock. Other kinds of lock with that name are refused with
// errc::wrong_type.
class Mutex : public detail::NamedLock {
public:
    // Makes an object for the lock of this name. Throws Error(errc::invalid_argument) for a bad name or a bad option of its
    // own, as RLock does, and for delays that are not positive or whose first is longer than the longest. Sends nothing.
    Mutex(Client& client, std::string_view name, SpinOptions options = {}, const ObjectOptions& own = {});

private:
    REDLATCH_INLINE void prepare(detail::LockRequest& request) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(detail::OwnerNumber owner, Instant limit) override;

    // Returns the value of the current holder.
    std::optional<std::string> value(Instant limit);

    const detail::Polling polling_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/mutex.ipp"
#endif
