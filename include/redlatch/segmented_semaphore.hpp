// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/options.hpp"
#include "redlatch/permit_expirable_semaphore.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/protocol/permit_lease.hpp"
#include "redlatch/semaphore/permits.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

// A permit of a SegmentedSemaphore: its id, and the segment that it is from. Any process can release it with both.
struct SegmentPermit {
    std::size_t segment;  // from 0 on
    PermitId id;          // of the permit in its segment

    // Compares both.
    friend bool operator==(const SegmentPermit&, const SegmentPermit&) = default;
};

// Provides a semaphore whose permits are spread over several keys, its segments, which a cluster spreads over its nodes: for
// a stock that more processes draw on than one node can serve. Each segment is a PermitExpirableSemaphore, so each permit
// has an id and a lease, and the permits of a process that dies come back.
//
// An acquire asks the near segment first: one round trip as long as that has permits. Then it asks the others, one after
// another, and the one that has a permit is the near one from then on. Those that are left after a quarter of a second are
// asked at once; one that does not reply is given half of the time that is left, or that quarter. If none has a permit, the
// call waits in all of them at the same time, without polling; what a second segment grants is given back at once. Each
// client begins at a segment of its own, which depends on its id, so that clients spread. One call acquires one permit,
// because several could not be taken from several nodes in one step.
//
// A segment whose server fails does not stop an acquire that finds a permit elsewhere. If no other segment has one, or one
// fails while the call waits, the call fails with that error: nobody knows then whether there is a permit.
//
// The key of segment 3 of "stock" is "stock:3". All processes must use the same number of segments. With a {tag} in the
// name all segments are on one node. Neither copyable nor movable. Any number of threads may use one object. Each member
// throws Error; with a trailing std::error_code& it stores the code and throws only std::bad_alloc. What is said of
// resending, of late commands and of unreachable_timeout at PermitExpirableSemaphore is true of each segment.
class SegmentedSemaphore {
public:
    // Makes an object with that many segments, from 1 to max_segments(). Throws Error(errc::invalid_argument) for another
    // number, if the name is bad or too long for its segments (see PermitExpirableSemaphore), and for options that cannot
    // work: see ObjectOptions. Sends nothing.
    SegmentedSemaphore(Client& client, std::string_view name, std::size_t segments, const ObjectOptions& options = {});

    SegmentedSemaphore(const SegmentedSemaphore&) = delete;
    SegmentedSemaphore& operator=(const SegmentedSemaphore&) = delete;

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return name_; }

    // Returns the number of segments.
    std::size_t segments() const noexcept;

    // Returns the largest number of segments.
    static constexpr std::size_t max_segments() noexcept { return 1024; }

    // Returns the largest number of permits of all segments together.
    static constexpr std::ptrdiff_t max() noexcept { return PermitExpirableSemaphore::max(); }

    // Returns a segment, for what concerns only one: inspect() or add_permits(), say. Throws Error(errc::invalid_argument)
    // if there is no such segment.
    PermitExpirableSemaphore& segment(std::size_t index);

    // Returns the segment that the next acquire asks first: the one that had a permit last. Sends nothing.
    std::size_t near() const noexcept { return near_.load(std::memory_order_relaxed); }

    // Names the segment that the next acquire asks first. Throws Error(errc::invalid_argument) if there is no such segment.
    void near(std::size_t segment);

    // --- number of permits: each takes one round trip for each segment --------------------------------------------

    // Spreads that many permits evenly over the segments, the first ones having one more if it does not divide. Sets only
    // segments that do not exist, so every process may call it, with the same number. Returns true if it has set one. If it
    // fails, some segments may be set: call it again.
    bool try_set_permits(std::ptrdiff_t permits) { return set_new_permits(permits, std::nullopt); }
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec);

    // Does the same for segments that expire after `ttl`, a chrono duration, rounded down to milliseconds. Throws
    // Error(errc::invalid_argument) if it is below 1 ms or above 100 years.
    template <class Rep, class Period>
    bool try_set_permits(std::ptrdiff_t permits, std::chrono::duration<Rep, Period> ttl) {
        return set_new_permits(permits, Lease(ttl).length());
    }
    template <class Rep, class Period>
    bool try_set_permits(std::ptrdiff_t permits, std::chrono::duration<Rep, Period> ttl, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits, ttl); }, false, ec);
    }

    // Returns how many permits are available in all segments together. The segments are asked one after another, so while
    // permits change hands the sum is that of no one instant. The same is true of the next two.
    std::ptrdiff_t available_permits();
    std::ptrdiff_t available_permits(std::error_code& ec);

    // Returns how many permits are acquired, whoever has them.
    std::ptrdiff_t acquired_permits();
    std::ptrdiff_t acquired_permits(std::error_code& ec);

    // Returns how many permits there are, available and acquired.
    std::ptrdiff_t permits();
    std::ptrdiff_t permits(std::error_code& ec);

    // Deletes all segments with all permits, whoever has acquired them. Returns true if there was one. If it fails, some may
    // be left: call it again.
    bool remove();
    bool remove(std::error_code& ec);

    // Lets all segments expire after this duration, as PermitExpirableSemaphore::expire() does. Returns true if there was
    // one.
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after) {
        return expire_after(Lease(after).length());
    }
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after, std::error_code& ec) {
        return detail::answer([&] { return expire(after); }, false, ec);
    }

    // --- acquiring ------------------------------------------------------------------------------------------------

    // Acquires a permit and waits for it if necessary.
    //   acquire()                   returns the SegmentPermit of a permit that the watchdog renews
    //   acquire(Lease{d})           the permit becomes available again after d and is never renewed
    //   acquire(Lease::forever())   only a release makes the permit available again, even if this process dies
    //   acquire(…, token), acquire(…, ec)   returns a std::optional<SegmentPermit>: gives up if a stop is requested, or
    //                               stores the error instead of throwing it
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) {
        std::optional<SegmentPermit> permit = taken(detail::wait_until(never, tail...), tail...);
        if constexpr (detail::has_stop_token<Tail&...> || detail::has_error_code<Tail&...>)
            return permit;
        else
            return *std::move(permit);
    }

    // Acquires a permit if a segment has one, even if others wait. Accepts a lease and std::error_code&.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::optional<SegmentPermit> try_acquire(Tail&&... tail) {
        return taken({.one_try = true}, tail...);
    }

    // Waits at most until `timeout` has passed, by a monotonic clock. Returns nothing if there was no permit by then.
    // Timeouts are rounded up to the next millisecond; zero or less asks each segment once; the largest value waits
    // indefinitely. Accepts a lease, std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<SegmentPermit> try_acquire_for(std::chrono::duration<Rep, Period> timeout,
                                                               Tail&&... tail) {
        return taken(detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }

    // Does the same as try_acquire_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<SegmentPermit> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                                 Tail&&... tail) {
        return taken(detail::wait_until(deadline_at(when), tail...), tail...);
    }

    // Acquires a permit for an object that gives it back, and returns that: see Permits, whose lost() reports its loss. Waits
    // and fails as acquire() does; an object that got none is empty.
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] Permits hold(Tail&&... tail) { return held(detail::wait_until(never, tail...), tail...); }

    // Acquires a permit for an object if a segment has one, as try_acquire() does. Otherwise the object is empty.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>) Permits try_hold(Tail&&... tail) {
        return held({.one_try = true}, tail...);
    }

    // Acquires a permit for an object within a time, as try_acquire_for() does. Otherwise the object is empty.
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] Permits try_hold_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return held(detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }

    // --- one permit: as in PermitExpirableSemaphore; throws invalid_argument for a segment that there is not -----------

    // Releases the permit. Throws Error(errc::unknown_permit) if it is not held: it was released already, or its lease has
    // expired. If no server replies, the call fails, but the client goes on in the background.
    void release(const SegmentPermit& permit) { segment(permit.segment).release(permit.id); }
    void release(const SegmentPermit& permit, std::error_code& ec);

    // Does the same, but returns false instead of throwing errc::unknown_permit.
    [[nodiscard]] bool try_release(const SegmentPermit& permit) {
        return segment(permit.segment).try_release(permit.id);
    }
    [[nodiscard]] bool try_release(const SegmentPermit& permit, std::error_code& ec);

    // Gives the permit this lease: Lease::forever() for a unit that is sold. Throws Error(errc::unknown_permit) if the
    // permit is not held, and not_replicated if fewer replicas than required have confirmed the new lease.
    void update_lease(const SegmentPermit& permit, const Lease& lease) {
        segment(permit.segment).update_lease(permit.id, lease);
    }
    void update_lease(const SegmentPermit& permit, Lease::Forever lease) {
        segment(permit.segment).update_lease(permit.id, lease);
    }
    void update_lease(const SegmentPermit& permit, const Lease& lease, std::error_code& ec);
    void update_lease(const SegmentPermit& permit, Lease::Forever lease, std::error_code& ec);

    // Returns the remaining lease of the permit by the server's clock, nothing if the permit is not held, and
    // milliseconds::max() if its lease never expires.
    std::optional<std::chrono::milliseconds> remaining_lease(const SegmentPermit& permit) {
        return segment(permit.segment).remaining_lease(permit.id);
    }
    std::optional<std::chrono::milliseconds> remaining_lease(const SegmentPermit& permit, std::error_code& ec);

private:
    // A permit, and the segment that it is from.
    struct Taken {
        std::size_t segment = 0;
        Permits permits{};
    };

    template <class... Tail>
    std::optional<SegmentPermit> taken(const detail::WaitRequest& request, Tail&... tail) {
        return detail::answer([&] { return ids_of(take(PermitExpirableSemaphore::lease_of(tail...), request)); },
                              std::optional<SegmentPermit>(), tail...);
    }

    template <class... Tail>
    Permits held(const detail::WaitRequest& request, Tail&... tail) {
        return detail::answer([&] { return take(PermitExpirableSemaphore::lease_of(tail...), request).permits; },
                              Permits(), tail...);
    }

    Taken take(const detail::PermitLease& lease, const detail::WaitRequest& request);
    // Asks `count` segments at once, from this one on, and waits for one of them.
    Taken take_one_of(std::size_t first, std::size_t count, const detail::PermitLease& lease,
                      const detail::WaitRequest& request);
    static std::optional<SegmentPermit> ids_of(Taken taken);
    bool set_new_permits(std::ptrdiff_t permits, std::optional<Milliseconds> ttl);
    bool expire_after(Milliseconds after);

    const std::string name_;
    std::vector<std::unique_ptr<PermitExpirableSemaphore>> segments_;  // constant from the constructor on
    std::atomic<std::size_t> near_{0};
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/segmented_semaphore.ipp"
#endif
