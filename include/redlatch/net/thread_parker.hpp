// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/convert.hpp"
#include "redlatch/base/time.hpp"

#include <atomic>
#include <cstdint>

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

// Parks one thread until another one notifies it by a word. On Linux this is a futex: it needs no mutex, on which a
// woken thread would block again. Elsewhere it is a condition variable.
//
// On Linux the owner may destroy the parker as soon as it has read final_word: tell() does not access it after storing
// that. (A futex wake-up on an address that is gone wakes no thread, or one that must expect spurious wake-ups.)
// Elsewhere it may do so only after park() has returned final_word.
class ThreadParker {
public:
    static constexpr std::uint32_t silence = 0;
    static constexpr std::uint32_t look = 1;        // something has changed: look around
    static constexpr std::uint32_t final_word = 2;  // the last word, never overwritten

    std::uint32_t word() const noexcept { return word_.load(std::memory_order_acquire); }

#if defined(__linux__)
    void tell(std::uint32_t word) noexcept {
        std::uint32_t old = word_.load(std::memory_order_relaxed);
        do {
            if (old == final_word) return;
        } while (!word_.compare_exchange_weak(old, word, std::memory_order_acq_rel, std::memory_order_relaxed));
        if (old == asleep) ::syscall(futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }

    // Parks until there is a word or the deadline passes. Resets `look`, keeps final_word.
    std::uint32_t park(Instant deadline) noexcept {
        Time until{};
        if (deadline != never) {
            // steady_clock is CLOCK_MONOTONIC, which FUTEX_WAIT_BITSET takes as an absolute time.
            const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
            until = {converted<decltype(until.tv_sec)>(ns / 1'000'000'000),
                     converted<decltype(until.tv_nsec)>(ns % 1'000'000'000)};
        }
        std::uint32_t word = silence;
        word_.compare_exchange_strong(word, asleep, std::memory_order_acq_rel);
        while ((word = word_.load(std::memory_order_acquire)) == asleep) {
            const long slept = ::syscall(futex, &word_, FUTEX_WAIT_BITSET_PRIVATE, asleep,
                                         deadline == never ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
            // The deadline has passed, unless a word came at this very moment.
            if (slept != 0 && errno == ETIMEDOUT &&
                word_.compare_exchange_strong(word, silence, std::memory_order_acq_rel))
                return silence;
        }
        if (word == look) word_.compare_exchange_strong(word, silence, std::memory_order_acq_rel);
        return word;
    }
#else
    void tell(std::uint32_t word) {
        const std::lock_guard guard(mutex_);
        if (word != final_word && word_ != silence) return;
        word_ = word;
        wake_.notify_one();
    }

    std::uint32_t park(Instant deadline) {
        std::unique_lock guard(mutex_);
        const auto told = [this] { return word_ != silence; };
        if (deadline == never)
            wake_.wait(guard, told);
        else
            wake_.wait_until(guard, deadline, told);
        const std::uint32_t word = word_;
        if (word == look) word_ = silence;
        return word;
    }

private:
    std::mutex mutex_;
    std::condition_variable wake_;
#endif

private:
    static constexpr std::uint32_t asleep = 3;  // like silence, and the owner must be woken

#if defined(__linux__)
    // The kernel's time type. It differs from the C library's if that has 64-bit time on a 32-bit system. 32 bits are
    // enough for a clock that counts from the start of the system. Newer 32-bit systems have no SYS_futex.
#if defined(SYS_futex)
    static constexpr long futex = SYS_futex;
    struct Time {
        __kernel_long_t tv_sec;
        __kernel_long_t tv_nsec;
    };
    static_assert(sizeof(Time) == sizeof(timespec) || sizeof(long) < sizeof(time_t));
#else
    static constexpr long futex = SYS_futex_time64;
    using Time = timespec;
#endif
#endif

    std::atomic<std::uint32_t> word_{silence};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
