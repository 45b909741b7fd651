// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/convert.hpp"
#include "redlatch/base/time.hpp"

#include <atomic>
#include <cstdint>
#include <limits>

#if defined(__linux__)
#include <cerrno>
#include <ctime>

#include <asm/posix_types.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Where several threads park, so that one system call wakes any number of them. On Linux all of them sleep on one futex,
// each with one of 32 bits. Two threads may have the same bit: then they wake up together, and the one that was not meant
// sleeps again. Elsewhere each thread has a condition variable of its own.
class ParkingPlace {
public:
    // A set of threads to wake.
    using Sleepers = std::uint32_t;

    // Wakes these threads, which ThreadParker::mark() has returned.
    void wake(Sleepers sleepers) noexcept {
        if (sleepers == 0) return;
#if defined(__linux__)
        round_.fetch_add(1, std::memory_order_acq_rel);
        ::syscall(Futex::call, &round_, FUTEX_WAKE_BITSET_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr,
                  sleepers);
#endif
    }

private:
    friend class ThreadParker;

#if defined(__linux__)
    // The kernel's time type. It differs from the C library's if that has 64-bit time on a 32-bit system. 32 bits are
    // enough for a clock that counts from the start of the system. Newer 32-bit systems have no SYS_futex.
    struct Futex {
#if defined(SYS_futex)
        static constexpr long call = SYS_futex;
        struct Time {
            __kernel_long_t tv_sec;
            __kernel_long_t tv_nsec;
        };
        static_assert(sizeof(Time) == sizeof(timespec) || sizeof(long) < sizeof(time_t));
#else
        static constexpr long call = SYS_futex_time64;
        using Time = timespec;
#endif
    };

    std::atomic<std::uint32_t> round_{0};  // of wake-ups: a thread that is about to sleep notices one
#endif
    std::atomic<unsigned> guests_{0};
};

// Parks one thread at a place until another one notifies it by a word. On Linux this is a futex: it needs no mutex, on
// which a woken thread would block again. Elsewhere it is a condition variable.
//
// On Linux the owner may destroy the parker as soon as it reads `finished`: mark() does not access it after it has stored
// that. The place must live until all wake-ups are over. Elsewhere the owner may destroy the parker only after park() has
// returned `finished`.
class ThreadParker {
public:
    explicit ThreadParker(ParkingPlace& place) noexcept
        : place_(place), bit_(1U << (place.guests_.fetch_add(1, std::memory_order_relaxed) % 32)) {}

    static constexpr std::uint32_t nothing = 0;
    static constexpr std::uint32_t notified = 1;  // something has changed: the thread checks what
    static constexpr std::uint32_t finished = 2;  // the last word, never overwritten

    std::uint32_t word() const noexcept { return word_.load(std::memory_order_acquire); }

    // Notifies the thread.
    void notify(std::uint32_t word) noexcept {
        ParkingPlace& place = place_;
        place.wake(mark(word));
    }

#if defined(__linux__)
    // Notifies the thread, but leaves it to the caller to wake it: with all others of the result, by one wake() of the
    // place.
    ParkingPlace::Sleepers mark(std::uint32_t word) noexcept {
        const ParkingPlace::Sleepers me = bit_;
        std::uint32_t old = word_.load(std::memory_order_relaxed);
        do {
            if (old == finished) return 0;
        } while (!word_.compare_exchange_weak(old, word, std::memory_order_acq_rel, std::memory_order_relaxed));
        return old == asleep ? me : 0;
    }

    // Parks until there is a word or the deadline passes. Resets `notified`, keeps `finished`.
    std::uint32_t park(Instant deadline) noexcept {
        ParkingPlace::Futex::Time until{};
        if (deadline != never) {
            // steady_clock is CLOCK_MONOTONIC, which FUTEX_WAIT_BITSET takes as an absolute time.
            const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
            until = {converted<decltype(until.tv_sec)>(ns / 1'000'000'000),
                     converted<decltype(until.tv_nsec)>(ns % 1'000'000'000)};
        }
        std::uint32_t word = nothing;
        word_.compare_exchange_strong(word, asleep, std::memory_order_acq_rel);
        for (;;) {
            // Read first: who notifies this thread from here on changes it, and then this thread does not sleep.
            const std::uint32_t round = place_.round_.load(std::memory_order_acquire);
            word = word_.load(std::memory_order_acquire);
            if (word != asleep) break;
            const long slept = ::syscall(ParkingPlace::Futex::call, &place_.round_, FUTEX_WAIT_BITSET_PRIVATE, round,
                                         deadline == never ? nullptr : &until, nullptr, bit_);
            // The deadline has passed, unless a word came at this very moment.
            if (slept != 0 && errno == ETIMEDOUT &&
                word_.compare_exchange_strong(word, nothing, std::memory_order_acq_rel))
                return nothing;
        }
        if (word == notified) word_.compare_exchange_strong(word, nothing, std::memory_order_acq_rel);
        return word;
    }
#else
    ParkingPlace::Sleepers mark(std::uint32_t word) {
        const std::lock_guard guard(mutex_);
        if (word == finished || word_ == nothing) {
            word_ = word;
            wake_.notify_one();
        }
        return 0;
    }

    std::uint32_t park(Instant deadline) {
        std::unique_lock guard(mutex_);
        const auto has_word = [this] { return word_ != nothing; };
        if (deadline == never)
            wake_.wait(guard, has_word);
        else
            wake_.wait_until(guard, deadline, has_word);
        const std::uint32_t word = word_;
        if (word == notified) word_ = nothing;
        return word;
    }

private:
    std::mutex mutex_;
    std::condition_variable wake_;
#endif

private:
    static constexpr std::uint32_t asleep = 3;  // like `nothing`, and the owner must be woken

    ParkingPlace& place_;
    [[maybe_unused]] const ParkingPlace::Sleepers bit_;
    std::atomic<std::uint32_t> word_{nothing};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
