// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class OperationHost;

// The state of a lock, as the objects that hold it see it. Any thread may call anything. A lock over several regards the
// owner of a WhichHold, not the number.
class HoldKeeper {
public:
    virtual ~HoldKeeper() = default;

    // Returns false in a child that was forked since. Then only name_as_given() may be called.
    virtual bool is_of_this_process() const noexcept = 0;

    // Returns the name of the lock as given, without the client's key_prefix.
    virtual std::string name_as_given() const = 0;

    // Returns what the server knows of the hold of this owner, or knew: it may be lost by now.
    virtual HoldFacts facts(OwnerNumber owner) = 0;

    // Returns what the hold of this owner goes by; unused for a lock over several. Objects that hold do not keep it
    // themselves, because there may be very many.
    virtual Settings settings(OwnerNumber owner) = 0;

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error. The request must outlive
    // the task.
    virtual Task<bool> acquire(const LockRequest& request) = 0;

    // Releases one level: waits for the reply; throws Error(errc::not_owner).
    virtual std::error_code release(const WhichHold& which) = 0;

    // Releases one level and waits for the reply without a thread, for command_timeout at most. Throws std::bad_alloc only
    // if the task was not made; once it runs, the level is released, with or without memory to wait for the outcome.
    virtual Task<std::error_code> release_by(WhichHold which, WaitBy by) = 0;

    // Releases one level without waiting. Without memory for that, the hold ends with its lease.
    virtual void release_later(const WhichHold& which) noexcept = 0;

    // The caller that acquired a first level has given up before, so Lease::at_least() does not apply to it.
    virtual void waive_minimum(const WhichHold&) noexcept {}

    virtual Instant valid_until(const WhichHold& which) = 0;
    virtual std::stop_token lost(const WhichHold& which) = 0;
};

// One level of a hold, and what it needs to stay alive: the client, to whose session the keeper refers. So the keeper is
// destroyed first.
struct HeldLevel {
    std::shared_ptr<OperationHost> host{};
    std::shared_ptr<HoldKeeper> keeper{};
    OwnerNumber owner = 0;
    HoldFacts facts{};
    Reentry reentry = Reentry::allowed;

    // Returns the hold that this is a level of. The Owner may have lost it, and have acquired another one.
    WhichHold hold() const noexcept { return {owner, facts}; }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
