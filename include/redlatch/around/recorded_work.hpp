// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/around/record_state.hpp"
#include "redlatch/base/backoff.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/pause.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/protocol/holder_record.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

// Work that one caller of the fleet does, and whose result is a record. The others wait for the record, not for the lock.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The work. The token is requested when the lock is lost, or the caller is to stop.
using RecordedWork = std::function<std::string(const std::stop_token&)>;

struct Recorded {
    std::optional<HolderRecord> record{};  // nothing if the caller gave up
    bool is_own = false;                   // true if this call did the work
};

// Throws Error(errc::invalid_argument) for a time that a record cannot stay.
inline Milliseconds checked_stay(Milliseconds stays, std::string_view name) {
    constexpr auto longest = std::chrono::hours(24 * 365 * 100);
    if (stays < Milliseconds(1) || stays > longest)
        throw Error(errc::invalid_argument, name, "the result must stay for at least 1 ms, and at most 100 years");
    return stays;
}

// Others read the record in one reply, and refuse one that is far longer: see ReplyReader.
inline constexpr std::size_t longest_record = 1'000'000;

// Throws Error(errc::invalid_argument) for a result that others could not read.
inline std::string checked_record(std::string result, std::string_view name) {
    if (result.size() > longest_record)
        throw Error(errc::invalid_argument, name,
                    "the result has " + std::to_string(result.size()) + " bytes; the most are " +
                        std::to_string(longest_record));
    return result;
}

// Does the work while it holds the lock, writes the record, and releases the lock. If the work throws, there is no record.
inline Recorded work_and_record(Hold hold, StateHandle& handle, Milliseconds stays, const RecordedWork& work,
                                const std::stop_token& stop) {
    RecordState& state = record_of(handle);
    RecordEntry entry{hold.owner(), hold.token(), {}, stays};
    try {
        std::stop_source ending;
        const auto end = [&ending] { ending.request_stop(); };
        const std::stop_callback on_lost(hold.lost(), end);
        const std::stop_callback on_stop(stop, end);
        entry.value = checked_record(work(ending.get_token()), handle.name());
    } catch (...) {
        static_cast<void>(hold.unlock());
        throw;
    }
    // As long as this caller holds the lock, nobody else does the work.
    const Instant until =
        std::max(deadline_after(Clock::now(), handle.settings().unreachable_timeout), hold.valid_until());
    if (!store_record(state, entry, until, handle.settings(), std::stop_token(), by_thread).run())
        throw Error(errc::hold_lost, handle.name(),
                    "the lock was lost before the work was done, so others may do it again; see lost()");
    static_cast<void>(hold.unlock());  // the record is there, whatever becomes of the hold
    HolderRecord record{std::string(OwnerText(state.session().uuid(), entry.hold).view()), entry.token,
                        std::move(entry.value), stays == Milliseconds(0) ? Milliseconds::max() : stays};
    return {std::move(record), true};
}

// Returns the record. If there is none, one caller does the work; the others wait for its record, or for the end of its
// hold, whether it has failed or died; then one of them takes over. `stays`: for how long the record stays; zero without
// an end. Throws Error, and what the work throws.
inline Recorded work_or_wait(NamedLock& lock, StateHandle& handle, Milliseconds stays, const RecordedWork& work,
                             WaitRequest request) {
    request.settings = handle.settings();
    for (Backoff rest{Milliseconds(1), Milliseconds(100)};;) {
        RecordState::Want want;
        if (!record_of(handle).obtain(want, request).run()) return {};
        if (want.found.record) return {std::move(want.found.record)};
        Hold hold = lock.try_hold();
        if (hold) {
            // Somebody may have done the work between the look and the acquire.
            std::optional<HolderRecord> done = look_at_record(handle).record;
            if (done) return {std::move(done)};
            return work_and_record(std::move(hold), handle, stays, work, request.stop);
        }
        // Another caller was faster, or this process has not noticed yet that its hold is over.
        if (request.one_try || Clock::now() >= request.deadline) return {};
        pause(std::min<Instant>(Clock::now() + rest.next(), request.deadline), request.stop);
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
