// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/adaptive_spin.hpp"
#include "redlatch/net/thread_parker.hpp"
#include "redlatch/redis/answered.hpp"

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A thread that waits for the replies of its exchange, on the stack of that thread. No other thread touches it after
// finish().
class CallingThread : public Exchange {
public:
    using Exchange::Exchange;

    bool is_finished() const noexcept { return parker_.word() == ThreadParker::final_word; }

    // Called when all replies are there: ends the waits for good.
    void finish() noexcept { parker_.tell(ThreadParker::final_word); }

    // Ends the wait: this thread is needed.
    void look_around() noexcept { parker_.tell(ThreadParker::look); }

    // Waits for finish(), look_around() or the deadline. Returns true if it was finish().
    bool wait(const AdaptiveSpin<>& spin, Instant deadline) noexcept {
        spin.until(deadline, [&] { return parker_.word() != ThreadParker::silence; });
        return parker_.park(deadline) == ThreadParker::final_word;
    }

    void wait_until_finished() noexcept {
        while (parker_.park(never) != ThreadParker::final_word) {
        }
    }

private:
    ThreadParker parker_;
};

// Every exchange of a CommandConnection is part of a CallingThread.
inline void finish_thread(Exchange& exchange) noexcept { static_cast<CallingThread&>(exchange).finish(); }

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
