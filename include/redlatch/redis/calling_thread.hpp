// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/net/thread_parker.hpp"
#include "redlatch/redis/answered.hpp"

#include <cstddef>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A thread that waits for the replies of its exchange, on the stack of that thread. No other thread touches it after
// finish().
class CallingThread : public Exchange {
public:
    CallingThread(Reply* where, std::size_t expected, ParkingPlace& place)
        : Exchange(where, expected), parker_(place) {}

    bool is_finished() const noexcept { return parker_.word() == ThreadParker::finished; }

    // Called when all replies are there: ends the waits for good. The caller wakes those of the result, by one wake() of
    // the place.
    ParkingPlace::Sleepers finish() noexcept { return parker_.mark(ThreadParker::finished); }

    // Ends the wait: this thread is needed.
    void look_around() noexcept { parker_.notify(ThreadParker::notified); }

    // Waits for finish(), look_around() or the deadline. Returns true if it was finish(). The thread sleeps at once: to
    // yield would take the CPU from the server and from threads that can go on.
    bool wait(Instant deadline) noexcept { return parker_.park(deadline) == ThreadParker::finished; }

    void wait_until_finished() noexcept {
        while (!wait(never)) {
        }
    }

private:
    ThreadParker parker_;
};

// The calling threads of one CommandConnection, whose mutex guards it but for finish(). Every exchange of the connection
// is part of a CallingThread.
//
// One of them may be called to read next. Until it comes, the others leave that to it. Otherwise the one that has just
// read, which is awake, would send its next command and read again, and would always serve itself first.
class CallingThreads {
public:
    // For how long the others leave the reading to the one that was called: it may be held up.
    static constexpr Milliseconds patience{1};

    ParkingPlace& place() noexcept { return place_; }

    // Ends the waits of those that have all their replies, by one wake-up for all.
    void finish(Answered& answered) noexcept {
        ParkingPlace::Sleepers sleepers = 0;
        answered.wake_exchanges([&](Exchange& one) { sleepers |= static_cast<CallingThread&>(one).finish(); });
        place_.wake(sleepers);
    }

    // Calls the thread of this exchange to read next. Returns false for null.
    bool call(Exchange* exchange) noexcept {
        if (exchange == nullptr) return false;
        called_ = static_cast<CallingThread*>(exchange);
        called_->look_around();
        return true;
    }

    bool has_called() const noexcept { return called_ != nullptr; }

    // This thread goes on. If it is the one that was called, it has come.
    void came(const CallingThread& thread) noexcept {
        if (called_ == &thread) called_ = nullptr;
    }

    // Another one reads, or nothing is left to read.
    void call_none() noexcept { called_ = nullptr; }

private:
    ParkingPlace place_;
    CallingThread* called_ = nullptr;  // perhaps gone already
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
