// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/wait_slot.hpp"

#include <cstdint>
#include <exception>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A caller that waits for a lock, for permits or for a count. The mutex of the state that it waits in guards it.
struct Waiter {
    explicit Waiter(WaitBy by = by_thread) : slot(by) {}

    enum class Phase : unsigned char {
        waiting,  // in the queue
        asking,   // queries the server
        served,   // has what it wants
        failed,   // cannot be served; `error` tells why
    };

    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    Phase phase = Phase::waiting;
    bool listens = true;       // false if it retries after pauses of its own and needs no messages
    bool queued = false;       // set by the queue: true while it is a member
    ShortTime pause{0};        // the bound of its last pause, if it retries after pauses
    std::uint64_t number = 0;  // set by the queue, as the next two: in the order of arrival
    Waiter* before = nullptr;
    Waiter* behind = nullptr;
    std::exception_ptr error{};  // set in phase failed
    WaitSlot slot;

    bool is_served() const noexcept { return phase == Phase::served; }

    void fail(std::exception_ptr why) {
        phase = Phase::failed;
        error = std::move(why);
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
