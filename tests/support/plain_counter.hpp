// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace redlatch::test {

/// A number that only mutual exclusion keeps right: add_one reads, pauses, and writes. Two overlapping sections lose an
/// addition. So, apart from chance, value() is the number of sections at the end if and only if none overlapped. Put it
/// into SharedMemory, and never make it atomic: that would hide the overlaps.
///
/// The word is volatile, so the compiler really reads and writes it. Between processes the hand-over through the server
/// orders the accesses. Among threads of one client, ThreadSanitizer sees that order through the mutexes inside the
/// library; so add_one also proves that a lock synchronises. Among threads with *different* clients the order goes
/// through the server only. The sanitizer cannot see that and would report a false race. Only for them there is
/// add_one_unseen.
class PlainCounter {
public:
    void add_one(std::chrono::microseconds pause = std::chrono::microseconds{0}) {
        const std::uint64_t before = value_;
        pause_for(pause);
        value_ = before + 1;
    }

    /// The same, hidden from ThreadSanitizer.
    __attribute__((noinline, no_sanitize("thread"))) void add_one_unseen(
        std::chrono::microseconds pause = std::chrono::microseconds{0}) {
        const std::uint64_t before = value_;
        pause_for(pause);
        value_ = before + 1;
    }

    /// Read it when all sections are over and their threads joined, or while holding the lock.
    std::uint64_t value() const { return value_; }

    /// For sections that read, do something else, and then write.
    void set(std::uint64_t value) { value_ = value; }

private:
    /// At least gives other threads a chance to run in between.
    static void pause_for(std::chrono::microseconds pause) {
        if (pause.count() > 0)
            std::this_thread::sleep_for(pause);
        else
            std::this_thread::yield();
    }

    volatile std::uint64_t value_ = 0;
};

}  // namespace redlatch::test
