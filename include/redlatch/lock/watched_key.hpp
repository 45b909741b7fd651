// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/session/tracked_keys.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/transport.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Lets the server tell when the key of a lock changes, for waiters that receive no message of its release. While it is
// armed, they need not poll, except at net_poll, in case the news is lost.
//
// Each failed try is followed by a read that the server tracks. If it finds no key, the lock may have been released
// between the two, and the waiter tries at once. If the key changes after the read, the server tells. So no release is
// missed. One read serves all waiters of this process. A renewal by the holder is news, too.
//
// The mutex of the lock guards all members.
class WatchedKey {
public:
    // The pause before a waiter tries although no news has come, up to twice as long.
    static constexpr Milliseconds net_poll = std::chrono::seconds(10);

    explicit WatchedKey(LockCore& core) : core_(core) {}
    WatchedKey(const WatchedKey&) = delete;
    WatchedKey& operator=(const WatchedKey&) = delete;
    ~WatchedKey() { end(); }

    // begin(): a waiter that polls begins to wait. end(): no such waiter is left.
    void begin() {
        if (begun_ || !core_.session.tracked_keys().are_possible()) return;
        core_.session.tracked_keys().add(core_.key(), core_.task);
        begun_ = true;
    }
    void end() {
        disarm();
        due_ = false;
        if (std::exchange(begun_, false)) core_.session.tracked_keys().remove(core_.key(), core_.task);
    }

    bool is_armed() const noexcept { return state_ == State::armed; }

    // Returns when to try although no news has come.
    Instant try_again() const noexcept { return try_again_; }

    // A try found the lock taken. A try at try_again() or later is followed by a new read: the server may have forgotten that
    // it is to tell.
    void try_failed() noexcept {
        due_ = true;
        if (is_armed() && Clock::now() >= try_again_) disarm();
    }

    // Returns true if arm() is to be called.
    bool is_due() const noexcept {
        return due_ && begun_ && state_ != State::arming && core_.session.tracked_keys().are_possible();
    }

    // Sends the read. Releases the mutex meanwhile, and does not wait. `armed(is_free)` is called with the mutex, on any
    // thread, if the server tells of changes from now on, or if the lock is free already.
    template <class Armed>
    void arm(std::unique_lock<std::mutex>& lock, Armed armed) {
        due_ = false;
        state_ = State::arming;
        const std::uint64_t round = ++round_;
        const std::array<std::string_view, 2> read{"PTTL", core_.key()};
        lock.unlock();
        try {
            core_.session.track(Command{read}, [this, keep = core_.keep(), round, armed](const Reply& reply) {
                const std::lock_guard again(core_.mutex);
                if (answered(round, reply)) armed(is_free(reply));
            });
        } catch (...) {  // no memory, or no thread can be started: polls
            lock.lock();
            disarm();
            return;
        }
        lock.lock();
    }

    // The key may have changed.
    void disarm() noexcept {
        ++round_;
        state_ = State::polling;
    }

private:
    enum class State { polling, arming, armed };

    static bool is_free(const Reply& reply) { return reply.is_integer() && reply.integer == -2; }

    // Returns false if the reply is of no use: it is no number, or a change that was reported before it came may be newer.
    bool answered(std::uint64_t round, const Reply& reply) {
        if (round != round_) return false;
        state_ = State::polling;
        if (!reply.is_integer()) return false;
        if (is_free(reply)) return true;
        state_ = State::armed;
        try_again_ = Clock::now() + poll_.next();
        return true;
    }

    LockCore& core_;
    State state_ = State::polling;
    bool begun_ = false;                        // registered
    bool due_ = false;                          // a try has failed since the last read
    std::uint64_t round_ = 0;                   // of the last read
    Instant try_again_{};                       // while it is armed
    Backoff poll_{net_poll * 2, net_poll * 2};  // each pause is between half and all of it
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
