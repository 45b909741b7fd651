// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <mutex>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// How the threads of this process wait for one lock, and who is next: LocalQueue or ServerQueue. `lock` holds the mutex
// of the lock. All members but acquire() are called with it.
class TurnQueue {
public:
    virtual ~TurnQueue() = default;

    virtual bool is_waited_for() const = 0;

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error. The request must outlive
    // the task.
    virtual Task<bool> acquire(const LockRequest& request) = 0;

    // Releases the last level of a hold.
    virtual std::error_code release_hold(std::unique_lock<std::mutex>& lock, HoldRecord& hold) = 0;

    virtual void on_timer(std::unique_lock<std::mutex>& lock, Instant now) = 0;

    // The lock may be free for a thread of this process, for a reason that the server does not publish.
    virtual void may_be_free() = 0;

    // An Owner has a new hold: wakes its callers that wait, so that they join it.
    virtual void acquired_for(OwnerNumber owner) = 0;

    // The events of a channel.
    virtual void subscribed(const std::string& channel) = 0;
    virtual void subscription_refused(const std::string& channel, const Reply& why) = 0;
    virtual void message(const std::string& channel, std::string_view payload) = 0;
    virtual void disconnected(const std::string& channel) = 0;

    // The server's key may have changed.
    virtual void key_changed() {}
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
