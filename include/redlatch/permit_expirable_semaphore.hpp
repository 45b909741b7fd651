// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/process.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/protocol/permit_lease.hpp"
#include "redlatch/semaphore/permits.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

class Permit;
class SegmentedSemaphore;

// Provides a distributed semaphore in which each permit has an id and a lease, so the permits of a process that dies
// become available again. The counterpart of Redisson's RPermitExpirableSemaphore. The client's watchdog renews a
// permit taken without a lease until it is released. If renewal fails, the event hold_lost reports it.
//
// Within a process, waiting threads are served in order of arrival. Neither copyable nor movable. Any number of threads
// may use one object. Two objects with the same name are the same semaphore. Each member throws Error; with a trailing
// std::error_code& it stores the code and throws only std::bad_alloc. If the server cannot be reached, a call retries
// for unreachable_timeout (of ObjectOptions or ClientOptions), then fails with errc::unreachable. A command may be
// resent after a lost reply and still takes effect once. An acquire that fails, is stopped or times out keeps no
// permit. Each member is one round trip, except for waiting.
class PermitExpirableSemaphore {
public:
    // Makes an object for the semaphore of this name. Throws Error(errc::invalid_argument) if the name is empty, is longer
    // than 1,024 bytes, or has braces other than one non-empty {tag}, and for options that cannot work: see
    // ObjectOptions. Sends nothing.
    PermitExpirableSemaphore(Client& client, std::string_view name, const ObjectOptions& options = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns the largest number of permits, which is the largest that Redisson can count.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Returns how many permits one call may acquire.
    static constexpr std::ptrdiff_t max_at_once() noexcept { return 10'000; }

    // --- number of permits --------------------------------------------------------------------------------------

    // Sets the number of permits if the semaphore does not exist. Returns true if it was set.
    bool try_set_permits(std::ptrdiff_t permits);
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec);

    // Does the same for a semaphore that expires after `ttl`, a chrono duration, rounded down to milliseconds: as if
    // remove() were called then. Throws Error(errc::invalid_argument) if it is below 1 ms or above 100 years.
    template <class Rep, class Period>
    bool try_set_permits(std::ptrdiff_t permits, std::chrono::duration<Rep, Period> ttl) {
        return set_new_permits(permits, Lease(ttl).length());
    }
    template <class Rep, class Period>
    bool try_set_permits(std::ptrdiff_t permits, std::chrono::duration<Rep, Period> ttl, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits, ttl); }, false, ec);
    }

    // Sets the number of permits in any case. The number includes acquired permits, so the number of available ones may
    // become negative.
    void set_permits(std::ptrdiff_t permits);
    void set_permits(std::ptrdiff_t permits, std::error_code& ec);

    // Changes the number of permits by n, which must be from -max() to max().
    void add_permits(std::ptrdiff_t n);
    void add_permits(std::ptrdiff_t n, std::error_code& ec);

    // Returns the number of available permits; 0 if the semaphore does not exist. A permit whose lease has expired is
    // available.
    std::ptrdiff_t available_permits();
    std::ptrdiff_t available_permits(std::error_code& ec);

    // Returns the number of acquired permits, whoever has them; 0 if the semaphore does not exist.
    std::ptrdiff_t acquired_permits();
    std::ptrdiff_t acquired_permits(std::error_code& ec);

    // Returns the number of all permits, available and acquired; 0 if the semaphore does not exist.
    std::ptrdiff_t permits();
    std::ptrdiff_t permits(std::error_code& ec);

    // --- acquiring ----------------------------------------------------------------------------------------------

    // Acquires a permit and waits for it if necessary. A waiting thread sends nothing until a permit is released or the
    // next lease expires, except one query every 5 to 10 seconds, in case a message was lost. A process with many
    // waiting threads sends no more than that.
    // If nobody has set up the semaphore, the wait raises the event not_set_up and goes on.
    //   acquire()                   returns the PermitId of a permit that the watchdog renews
    //   acquire(Lease{d})           the permit becomes available again after d and is never renewed
    //   acquire(Lease::forever())   only a release makes the permit available again, even if this process dies
    //   acquire(…, token), acquire(…, ec)   returns a std::optional<PermitId>: gives up if a stop is requested, or
    //                               stores the error instead of throwing it
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) {
        std::optional<PermitId> id = one(take(1, detail::wait_until(never, tail...), tail...));
        if constexpr (detail::has_stop_token<Tail&...> || detail::has_error_code<Tail&...>)
            return id;
        else
            return *std::move(id);
    }

    // Acquires n permits at once, from 1 to max_at_once(). Returns an empty vector if it was stopped or failed.
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(never, tail...), tail...);
    }

    // Acquires one permit or n permits if they are available: one attempt, even if others wait. Accepts a lease and
    // std::error_code&.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::optional<PermitId> try_acquire(Tail&&... tail) {
        return one(take(1, {.one_try = true}, tail...));
    }
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::vector<PermitId> try_acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, {.one_try = true}, tail...);
    }

    // Waits at most until `timeout` has passed, by a monotonic clock. Returns nothing, or an empty vector, if the permits
    // were not acquired by then. Timeouts are rounded up to the next millisecond; zero or less is one attempt; the largest
    // value waits indefinitely. Accepts a lease, std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...));
    }
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n,
                                                        Tail&&... tail) {
        return take(n, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }

    // Does the same as try_acquire_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                            Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_at(when), tail...), tail...));
    }
    template <class AnyClock, class Duration, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                          std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(deadline_at(when), tail...), tail...);
    }

    // --- permits of an object -----------------------------------------------------------------------------------

    // Acquires n permits for an object that gives them back, and returns it: see Permits, whose lost() reports the loss
    // of one. Waits and fails as acquire() does; an object that got none is empty. Accepts a lease, std::stop_token and
    // std::error_code&.
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] Permits hold(std::ptrdiff_t n, Tail&&... tail) {
        return held(n, detail::wait_until(never, tail...), tail...);
    }

    // Acquires n permits for an object if they are available, as try_acquire() does. Otherwise the object is empty.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>) Permits
        try_hold(std::ptrdiff_t n, Tail&&... tail) {
        return held(n, {.one_try = true}, tail...);
    }

    // Acquires n permits for an object within a time, as try_acquire_for() does. Otherwise the object is empty.
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] Permits try_hold_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n, Tail&&... tail) {
        return held(n, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }

    // Acquires n permits for an object without a thread that waits: see Operation. Waits and fails as hold() does. Accepts
    // a lease and a std::stop_token, which cancels the operation.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> &&
             !detail::has_error_code<Tail...>) Operation<Permits> async_acquire(std::ptrdiff_t n, Tail&&... tail) {
        return later(n, lease_of(tail...), detail::wait_until(never, tail...));
    }

    // Does the same as async_acquire(), with one try. Accepts a lease.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_error_code<Tail...> &&
             !detail::has_stop_token<Tail...>) Operation<Permits> async_try_acquire(std::ptrdiff_t n, Tail&&... tail) {
        return later(n, lease_of(tail...), {.one_try = true});
    }

    // Does the same as async_acquire(), for this time at most. It begins to run with this call.
    template <class Rep, class Period, class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_error_code<Tail...>)
        Operation<Permits> async_try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n,
                                                 Tail&&... tail) {
        return later(n, lease_of(tail...), detail::wait_until(deadline_after(Clock::now(), timeout), tail...));
    }

    // --- releasing ----------------------------------------------------------------------------------------------

    // Releases all of the permits or none. Throws Error(errc::unknown_permit) if one is not held: it was released
    // already, or its lease has expired. The watchdog then goes on renewing those that it renewed before. If no server
    // replies, the call fails with errc::unreachable, but the client retries it in the background and the watchdog no
    // longer renews these permits.
    void release(const PermitId& id) { release(std::span(&id, 1)); }
    void release(std::span<const PermitId> ids);
    void release(const PermitId& id, std::error_code& ec);
    void release(std::span<const PermitId> ids, std::error_code& ec);

    // Does the same, but returns false instead of throwing errc::unknown_permit.
    [[nodiscard]] bool try_release(const PermitId& id) { return try_release(std::span(&id, 1)); }
    [[nodiscard]] bool try_release(std::span<const PermitId> ids);
    [[nodiscard]] bool try_release(const PermitId& id, std::error_code& ec);
    [[nodiscard]] bool try_release(std::span<const PermitId> ids, std::error_code& ec);

    // --- leases -----------------------------------------------------------------------------------------------

    // Gives the permit this lease. The watchdog no longer renews it. An object that holds the permit takes that into
    // account. Throws Error(errc::unknown_permit) if the permit is not held, and not_replicated if fewer replicas than
    // required have confirmed the new lease: then a failover may restore the old one, so update it again.
    void update_lease(const PermitId& id, const Lease& lease) { set_lease(id, detail::PermitLease::of(lease)); }
    void update_lease(const PermitId& id, Lease::Forever lease) { set_lease(id, detail::PermitLease::of(lease)); }
    void update_lease(const PermitId& id, const Lease& lease, std::error_code& ec);
    void update_lease(const PermitId& id, Lease::Forever lease, std::error_code& ec);

    // Returns the remaining lease of the permit by the server's clock, nothing if the permit is not held, and
    // milliseconds::max() if its lease never expires.
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id);
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id, std::error_code& ec);

    // Returns true if the number of permits was set.
    bool exists();
    bool exists(std::error_code& ec);

    // Deletes the semaphore and all permits, whoever has acquired them: for their owners they are lost. Returns true if
    // there was one. Waiting callers go on waiting until someone sets a number of permits again.
    bool remove();
    bool remove(std::error_code& ec);

    // Lets the semaphore expire with all permits after this duration, rounded down to milliseconds, as if remove() were
    // called then. Replaces an earlier expiry. Returns false if there is no semaphore. Throws
    // Error(errc::invalid_argument) if the duration is below 1 ms or above 100 years.
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after) {
        return expire_after(Lease(after).length());
    }
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after, std::error_code& ec) {
        return detail::answer([&] { return expire(after); }, false, ec);
    }

    // Returns the state on the server, with the acquired permits of anyone: see SemaphoreInspection. One round trip.
    // Changes nothing. An expired permit counts as available. Throws wrong_type if the key belongs to something else.
    SemaphoreInspection inspect();
    SemaphoreInspection inspect(std::error_code& ec);

private:
    friend class Permit;
    friend class SegmentedSemaphore;

    static std::optional<PermitId> one(std::vector<PermitId> ids) {
        return ids.empty() ? std::nullopt : std::optional(ids.front());
    }

    template <class... Tail>
    std::vector<PermitId> take(std::ptrdiff_t n, const detail::WaitRequest& request, Tail&... tail) {
        return detail::answer([&] { return obtain(n, lease_of(tail...), request); }, std::vector<PermitId>(), tail...);
    }

    template <class... Tail>
    Permits held(std::ptrdiff_t n, const detail::WaitRequest& request, Tail&... tail) {
        return detail::answer([&] { return later(n, lease_of(tail...), request).get(); }, Permits(), tail...);
    }

    // Returns the lease among the arguments; the watchdog's if there is none.
    template <class... Tail>
    static detail::PermitLease lease_of(const Tail&... tail) {
        detail::PermitLease lease{};
        [[maybe_unused]] const auto set_lease = [&](const auto& argument) {
            if constexpr (detail::has_lease<decltype(argument)>) lease = detail::PermitLease::of(argument);
        };
        (set_lease(tail), ...);
        return lease;
    }

    std::vector<PermitId> obtain(std::ptrdiff_t n, const detail::PermitLease& lease, detail::WaitRequest request);
    Operation<Permits> later(std::ptrdiff_t n, const detail::PermitLease& lease, detail::WaitRequest request);
    void set_lease(const PermitId& id, const detail::PermitLease& lease);
    bool set_new_permits(std::ptrdiff_t permits, Milliseconds ttl);
    bool expire_after(Milliseconds after);
    void release_later(const PermitId& id) noexcept;

    detail::StateHandle handle_;
};

// Holds one permit and releases it at the end of its scope. The destructor does not throw, even if the permit has
// expired or the server cannot be reached; call release(ec) to learn the result. The semaphore must outlive it.
class [[nodiscard]] Permit {
public:
    // Acquires a permit and waits for it if necessary: under the watchdog, or with a lease.
    [[nodiscard]] explicit Permit(PermitExpirableSemaphore& semaphore)
        : semaphore_(&semaphore), id_(semaphore.acquire()) {}
    template <class AnyLease>
    requires detail::has_lease<AnyLease>
    [[nodiscard]] Permit(PermitExpirableSemaphore& semaphore, const AnyLease& lease)
        : semaphore_(&semaphore), id_(semaphore.acquire(lease)) {}

    // Takes ownership of a permit that is held already.
    [[nodiscard]] Permit(PermitExpirableSemaphore& semaphore, const PermitId& id) : semaphore_(&semaphore), id_(id) {}

    // Takes over the permit of the other one, which has none then.
    Permit(Permit&& other) noexcept
        : semaphore_(other.semaphore_), id_(std::exchange(other.id_, std::nullopt)), process_(other.process_) {}

    // Exchanges the permits: the other one releases the one that this object had.
    Permit& operator=(Permit&& other) noexcept {
        std::swap(semaphore_, other.semaphore_);
        std::swap(id_, other.id_);
        std::swap(process_, other.process_);
        return *this;
    }

    // Posts the release and does not wait for the reply. Does nothing in a forked child, where the permit is the parent's.
    ~Permit() {
        const detail::KeepErrno kept;
        if (id_ && process_ == detail::this_process()) semaphore_->release_later(*id_);
    }

    // Returns the id, or nothing after release() and detach().
    const std::optional<PermitId>& id() const noexcept { return id_; }

    // Releases the permit now. The second call does nothing.
    void release(std::error_code& ec) {
        const detail::KeepErrno kept;
        ec.clear();
        if (const std::optional<PermitId> id = std::exchange(id_, std::nullopt)) semaphore_->release(*id, ec);
    }

    // Passes ownership of the permit to the caller.
    [[nodiscard]] PermitId detach() { return std::exchange(id_, std::nullopt).value(); }

private:
    PermitExpirableSemaphore* semaphore_;
    std::optional<PermitId> id_;
    detail::ProcessMark process_ = detail::this_process();
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/permit_expirable_semaphore.ipp"
#endif
