// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/permit_id.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <stop_token>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// The semaphore that the permits of one object belong to, as that object sees it. Any thread may call anything.
class PermitsKeeper {
public:
    virtual ~PermitsKeeper() = default;

    // Returns false in a child that was forked since. Then nothing else may be called.
    virtual bool is_of_this_process() const noexcept = 0;

    // Returns true for the keeper of another object of the same semaphore.
    virtual bool is_same(const PermitsKeeper& other) const noexcept = 0;

    // Returns the keeper of another object, which gets these permits.
    virtual std::shared_ptr<PermitsKeeper> split(const std::vector<PermitId>& ids) = 0;

    // Takes over the permits of another object of the same semaphore.
    virtual void merge(PermitsKeeper& other) noexcept = 0;

    // The object hands its permits over to whoever has their ids.
    virtual void detach() noexcept {}

    // The defaults are those of permits without a lease.
    virtual Instant valid_until() { return never; }
    virtual std::stop_token lost() { return {}; }

    // Both give back permits: the first waits for the reply, the second does not, and without memory leaves permits with
    // leases to the end of these.
    virtual std::error_code give_back(std::ptrdiff_t n, const std::vector<PermitId>& ids) noexcept = 0;
    virtual void give_back_later(std::ptrdiff_t n, std::vector<PermitId> ids) noexcept = 0;
};

struct PermitsAccess;

}  // namespace detail

// Holds permits of a Semaphore or a PermitExpirableSemaphore for whoever has the object: it can be moved into another
// thread, a task or a container. The destructor gives them back. It keeps alive what it needs, so it may outlive the
// semaphore and the client. Movable, not copyable. Different threads may use different objects at once; one object needs
// the care of a std::unique_ptr.
//
// After a fork the child holds nothing: there its copies do nothing.
class [[nodiscard]] Permits {
public:
    // Holds nothing.
    Permits() noexcept = default;

    // Takes over the permits of the other one, which is empty then.
    Permits(Permits&& other) noexcept
        : keeper_(std::move(other.keeper_)), count_(std::exchange(other.count_, 0)), ids_(std::move(other.ids_)) {}

    // Gives its own permits back as the destructor does, and takes over those of the other one.
    Permits& operator=(Permits&& other) noexcept {
        Permits old(std::move(*this));
        keeper_ = std::move(other.keeper_);
        count_ = std::exchange(other.count_, 0);
        ids_ = std::move(other.ids_);
        return *this;
    }

    // Gives the permits back without waiting for the server, and never throws. Preserves errno.
    ~Permits();

    // Returns true if it holds at least one permit.
    explicit operator bool() const noexcept { return count_ > 0; }

    // Returns how many permits it holds.
    std::ptrdiff_t count() const noexcept { return count_; }

    // Returns the ids of permits of a PermitExpirableSemaphore; those of a Semaphore have none.
    const std::vector<PermitId>& ids() const noexcept { return ids_; }

    // Returns the instant until which all of the permits are certain: see RLock::valid_until(). Returns
    // time_point::max() if none of them has a lease: those of a Semaphore, and with Lease::forever(). Returns
    // time_point::min() if one is lost, or if the object holds nothing. Sends nothing.
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until() const;

    // Returns a token that is requested when one of the permits is lost: the server no longer has it, this program
    // released it by its id, or it is no longer certain, so shortly before valid_until() at the latest. Once the
    // permits are given back, it is not requested any more. Callbacks run on the thread of the client that reports
    // losses: see RLock::lost(). If the object holds nothing, the token is requested already. Sends nothing.
    //
    // The watchdog asks for its permits at each renewal. Those with a lease of their own, or none, are asked for after
    // a failover. Permits of a Semaphore have neither leases nor ids, so no one can notice that they are gone: their
    // token is never requested.
    [[nodiscard]] std::stop_token lost() const;

    // Moves n of the permits into an object of their own. Its lost() is about these only; a token from before is about
    // the permits that stay. To split off all of them is to move the object, with its token. Sends nothing. Throws
    // Error(errc::invalid_argument) if n is not from 0 to count().
    [[nodiscard]] Permits split(std::ptrdiff_t n);

    // Takes over the permits of the other object. From then on the tokens of both are requested when any of them is
    // lost. Sends nothing. Throws Error(errc::invalid_argument) if they belong to another semaphore.
    void merge(Permits&& other);

    // Gives the permits back and waits for the reply: one round trip. Afterwards it holds nothing, whatever the outcome:
    // unknown_permit if one was lost (the others are given back without waiting), unreachable if no server answered in
    // time (the background goes on for a while), not_owner if it held nothing. Preserves errno.
    std::error_code release() noexcept;

private:
    friend struct detail::PermitsAccess;

    void leak() noexcept;

    std::shared_ptr<detail::PermitsKeeper> keeper_{};
    std::ptrdiff_t count_ = 0;
    std::vector<PermitId> ids_{};
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/semaphore/permits.ipp"
#endif
