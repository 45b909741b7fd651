// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/alarms.hpp"

#include <coroutine>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Where one coroutine sleeps. Continuations guards its members.
class Sleeper : private Alarm {
public:
    Sleeper() = default;
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

private:
    friend class Continuations;

    std::coroutine_handle<> asleep_{};  // null if it does not sleep
    bool is_due_ = false;               // among those that are to be resumed, whose list goes on at `next`
    bool woken_ = false;                // woken before it could fall asleep
};

// The coroutines of one client that sleep, each until it is woken or an instant comes. The background thread resumes
// them, never the thread that wakes them: that one may hold locks, and the coroutine goes on for a while.
//
// mutex_ guards all members and all sleepers. No thread waits here. wake_() wakes the background thread if it sleeps
// although there is a coroutine to resume, or beyond the next instant. A state's mutex may be held during wake().
class Continuations {
public:
    explicit Continuations(std::function<void()> wake) : wake_(std::move(wake)) {}
    Continuations(const Continuations&) = delete;
    Continuations& operator=(const Continuations&) = delete;

    // Puts the coroutine to sleep. Returns false if it was woken before. Otherwise it may be resumed, and gone, before
    // this returns. Throws std::bad_alloc.
    bool sleep(Sleeper& sleeper, std::coroutine_handle<> coroutine, Instant until);

    // Wakes the coroutine; one that does not sleep yet will not fall asleep.
    void wake(Sleeper& sleeper);

    // --- the background thread's ------------------------------------------------------------------------------

    // Returns until when the thread may sleep. It calls this when it is about to sleep.
    Instant sleep_until();

    // Resumes the coroutines that were woken, and those whose instant has come: at most so many that the thread soon
    // receives and renews again. Those that are woken meanwhile wait for the next call.
    void resume_due(Instant now);

private:
    static constexpr std::size_t most_at_once = 256;

    void resume_later(Sleeper& sleeper);

    const std::function<void()> wake_;
    std::mutex mutex_;
    Alarms alarms_;
    Sleeper* first_ = nullptr;  // those to resume, in the order of their waking
    Sleeper* last_ = nullptr;
    Instant sleeping_until_{};  // of the background thread; the least instant while it is awake
};

// How the caller of a task waits: null if it blocks its thread, otherwise those that resume it.
using WaitBy = Continuations*;
inline constexpr WaitBy by_thread = nullptr;

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/session/continuations.ipp"
#endif
