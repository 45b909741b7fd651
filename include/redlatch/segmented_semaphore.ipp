// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/stable_hash.hpp"
#include "redlatch/error.hpp"
#include "redlatch/permit_expirable_semaphore.ipp"
#include "redlatch/segmented_semaphore.hpp"
#include "redlatch/semaphore/permits.ipp"
#include "redlatch/session/operation.hpp"
#include "redlatch/wait/patience.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// What an acquire that asks several segments at once shares with the operations that it has begun, one for each of them.
//
// mutex guards the members. Each completion, and a stop that is requested, wakes the acquire, which waits in `changed`.
struct SegmentRace {
    std::mutex mutex;
    std::condition_variable changed;
    bool has_one_try = false;
    std::size_t open = 0;  // operations that have not completed
    std::size_t winner = 0;
    Permits won{};
    std::error_code failure{};  // of the first operation that failed

    void complete(std::size_t segment, const std::error_code& ec, Permits& got) {
        const std::lock_guard lock(mutex);
        --open;
        if (got && !won) {
            winner = segment;
            won = std::move(got);
        } else if (ec && ec != errc::cancelled && !failure) {
            failure = ec;
        }
        changed.notify_all();
    }

    // Returns true if no further segment has to be asked. A failure does not end one try: another segment may have a permit.
    bool is_over() const { return won || (failure && !has_one_try); }

    bool is_decided() const { return is_over() || open == 0; }
};

// Returns true if another segment may help: the server of this one cannot grant anything now.
inline bool is_passing(const std::error_code& ec) {
    return ec == errc::unreachable || ec == errc::overloaded || ec == errc::not_replicated || ec == errc::not_on_disk;
}

}  // namespace detail

REDLATCH_INLINE SegmentedSemaphore::SegmentedSemaphore(Client& client, std::string_view name, std::size_t segments,
                                                       const ObjectOptions& options)
    : name_(name) {
    if (name.empty()) throw Error(errc::invalid_argument, {}, "the name must not be empty");
    if (segments < 1 || segments > max_segments())
        throw Error(errc::invalid_argument, name_, "the number of segments must be from 1 to 1024");
    for (std::size_t i = 0; i < segments; ++i)
        segments_.push_back(
            std::make_unique<PermitExpirableSemaphore>(client, name_ + ':' + std::to_string(i), options));
    near_ = detail::stable_hash(client.id()) % segments;
}

REDLATCH_INLINE std::size_t SegmentedSemaphore::segments() const noexcept { return segments_.size(); }

REDLATCH_INLINE PermitExpirableSemaphore& SegmentedSemaphore::segment(std::size_t index) {
    if (index >= segments()) throw Error(errc::invalid_argument, name_, "there is no such segment");
    return *segments_[index];
}

REDLATCH_INLINE void SegmentedSemaphore::near(std::size_t segment) {
    if (segment >= segments()) throw Error(errc::invalid_argument, name_, "there is no such segment");
    near_.store(segment, std::memory_order_relaxed);
}

REDLATCH_INLINE bool SegmentedSemaphore::set_new_permits(std::ptrdiff_t permits, std::optional<Milliseconds> ttl) {
    detail::check_permits(permits, 0, max(), name_, "the number of permits must be from 0 to 2147483647");
    const auto count = static_cast<std::ptrdiff_t>(segments());
    bool set = false;
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        const std::ptrdiff_t share = permits / count + (i < permits % count ? 1 : 0);
        PermitExpirableSemaphore& segment = *segments_[static_cast<std::size_t>(i)];
        if (ttl ? segment.try_set_permits(share, *ttl) : segment.try_set_permits(share)) set = true;
    }
    return set;
}

REDLATCH_INLINE std::ptrdiff_t SegmentedSemaphore::available_permits() {
    std::ptrdiff_t sum = 0;
    for (const auto& segment : segments_) sum += segment->available_permits();
    return sum;
}

REDLATCH_INLINE std::ptrdiff_t SegmentedSemaphore::acquired_permits() {
    std::ptrdiff_t sum = 0;
    for (const auto& segment : segments_) sum += segment->acquired_permits();
    return sum;
}

REDLATCH_INLINE std::ptrdiff_t SegmentedSemaphore::permits() {
    std::ptrdiff_t sum = 0;
    for (const auto& segment : segments_) sum += segment->permits();
    return sum;
}

REDLATCH_INLINE bool SegmentedSemaphore::remove() {
    bool removed = false;
    for (const auto& segment : segments_) removed = segment->remove() || removed;
    return removed;
}

REDLATCH_INLINE bool SegmentedSemaphore::expire_after(Milliseconds after) {
    bool some = false;
    for (const auto& segment : segments_) some = segment->expire_after(after) || some;
    return some;
}

REDLATCH_INLINE SegmentedSemaphore::Taken SegmentedSemaphore::take(const detail::PermitLease& lease,
                                                                   const detail::WaitRequest& request) {
    // One after another, for a short time. The others all at once, so that several servers that do not reply do not add up.
    const std::size_t first = near();
    const Instant began = Clock::now();
    const Instant end = request.one_try ? never : request.deadline;
    std::exception_ptr failure;
    std::size_t asked = 0;
    for (Instant now = began; asked < segments() && !request.stop.stop_requested(); now = Clock::now(), ++asked) {
        if (asked > 0 && now >= std::min(end, began + detail::Patience::honest_try)) break;
        // Leaves time for the others.
        const Instant half = end == never ? never : now + (end - now) / 2;
        const std::size_t segment = (first + asked) % segments();
        try {
            const detail::WaitRequest asks{.deadline = std::max(half, now + detail::Patience::honest_try),
                                           .one_try = true};
            if (Permits got = segments_[segment]->later(1, lease, asks).get()) {
                near(segment);
                return {segment, std::move(got)};
            }
        } catch (const Error& error) {
            if (!detail::is_passing(error.code())) throw;
            if (!failure) failure = std::current_exception();
        }
    }
    if (asked < segments() && !request.stop.stop_requested()) {
        const Instant until = std::max(end, Clock::now() + detail::Patience::honest_try);
        const detail::WaitRequest asks{.deadline = until, .one_try = true, .stop = request.stop};
        Taken taken = take_one_of((first + asked) % segments(), segments() - asked, lease, asks);
        if (taken.permits) return taken;
    }
    if (request.stop.stop_requested()) return {};
    if (failure) std::rethrow_exception(failure);
    if (request.one_try || Clock::now() >= request.deadline) return {};
    return take_one_of(0, segments(), lease, request);
}

// Each operation has the deadline of the call. A second one that gets a permit gives it back when its result is destroyed.
REDLATCH_INLINE SegmentedSemaphore::Taken SegmentedSemaphore::take_one_of(std::size_t first, std::size_t count,
                                                                          const detail::PermitLease& lease,
                                                                          const detail::WaitRequest& request) {
    const auto race = std::make_shared<detail::SegmentRace>();
    race->has_one_try = request.one_try;
    std::stop_source over;
    std::exception_ptr not_begun;
    for (std::size_t i = 0; i < count && !not_begun; ++i) {
        const std::size_t segment = (first + i) % segments();
        std::unique_lock lock(race->mutex);
        if (race->is_over()) break;
        ++race->open;
        lock.unlock();
        try {
            const detail::WaitRequest asks{.deadline = request.deadline, .one_try = request.one_try};
            Operation<Permits> asking = segments_[segment]->later(1, lease, asks).stop_on(over.get_token());
            detail::OperationAccess::running(asking)->complete_at_once();
            std::move(asking).start(
                [race, segment](const std::error_code& ec, Permits got) { race->complete(segment, ec, got); });
        } catch (...) {
            not_begun = std::current_exception();
            lock.lock();
            --race->open;
        }
    }
    const std::stop_callback on_stop(request.stop, [&race] {
        const std::lock_guard lock(race->mutex);
        race->changed.notify_all();
    });
    std::unique_lock lock(race->mutex);
    race->changed.wait(lock, [&] { return not_begun || race->is_decided() || request.stop.stop_requested(); });
    lock.unlock();
    over.request_stop();
    lock.lock();
    // Those that are given up complete at once. One may have got a permit meanwhile.
    race->changed.wait(lock, [&] { return race->won || race->open == 0; });
    if (race->won) {
        near(race->winner);
        return {race->winner, std::move(race->won)};
    }
    if (not_begun) std::rethrow_exception(not_begun);
    if (!race->failure || request.stop.stop_requested()) return {};
    if (race->failure.category() != error_category()) throw std::system_error(race->failure);
    throw Error(static_cast<errc>(race->failure.value()), name_, "a segment failed while the call waited for a permit");
}

REDLATCH_INLINE std::optional<SegmentPermit> SegmentedSemaphore::ids_of(Taken taken) {
    if (!taken.permits) return std::nullopt;
    return SegmentPermit{taken.segment, detail::PermitsAccess::detach(std::move(taken.permits)).front()};
}

REDLATCH_INLINE bool SegmentedSemaphore::try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
    return detail::answer([&] { return try_set_permits(permits); }, false, ec);
}

REDLATCH_INLINE std::ptrdiff_t SegmentedSemaphore::available_permits(std::error_code& ec) {
    return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE std::ptrdiff_t SegmentedSemaphore::acquired_permits(std::error_code& ec) {
    return detail::answer([&] { return acquired_permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE std::ptrdiff_t SegmentedSemaphore::permits(std::error_code& ec) {
    return detail::answer([&] { return permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE bool SegmentedSemaphore::remove(std::error_code& ec) {
    return detail::answer([&] { return remove(); }, false, ec);
}

REDLATCH_INLINE void SegmentedSemaphore::release(const SegmentPermit& permit, std::error_code& ec) {
    detail::answer([&] { return release(permit), true; }, false, ec);
}

REDLATCH_INLINE bool SegmentedSemaphore::try_release(const SegmentPermit& permit, std::error_code& ec) {
    return detail::answer([&] { return try_release(permit); }, false, ec);
}

REDLATCH_INLINE void SegmentedSemaphore::update_lease(const SegmentPermit& permit, const Lease& lease,
                                                      std::error_code& ec) {
    detail::answer([&] { return update_lease(permit, lease), true; }, false, ec);
}

REDLATCH_INLINE void SegmentedSemaphore::update_lease(const SegmentPermit& permit, Lease::Forever lease,
                                                      std::error_code& ec) {
    detail::answer([&] { return update_lease(permit, lease), true; }, false, ec);
}

REDLATCH_INLINE std::optional<std::chrono::milliseconds> SegmentedSemaphore::remaining_lease(
    const SegmentPermit& permit, std::error_code& ec) {
    return detail::answer([&] { return remaining_lease(permit); }, std::optional<std::chrono::milliseconds>(), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
