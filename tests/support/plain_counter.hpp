// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace redlatch::test {

/// A number that only mutual exclusion keeps right: add_one reads, pauses, and writes. Two sections that overlap lose
/// an addition, so at the end `value()` is the number of sections if and only if (but for luck) none overlapped. Put it
/// into SharedMemory, and never make it atomic: that would hide what it is to show.
///
/// The word is volatile, so that the compiler really reads and writes it. Between processes the hand-over through the
/// server orders the accesses. ThreadSanitizer sees that order among threads of one client, through the mutexes inside
/// the library, and add_one then proves in passing that a lock synchronises. Among threads with *different* clients the
/// order goes through the server only, which the sanitizer cannot see: it would report a race where there is none.
/// add_one_unseen is for them alone.
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

    /// Read it when all sections are over and their threads joined, or in the lock.
    std::uint64_t value() const { return value_; }

    /// For sections that read, do something else, and write, in steps of their own.
    void set(std::uint64_t value) { value_ = value; }

private:
    /// At least gives others a chance to run in between.
    static void pause_for(std::chrono::microseconds pause) {
        if (pause.count() > 0)
            std::this_thread::sleep_for(pause);
        else
            std::this_thread::yield();
    }

    volatile std::uint64_t value_ = 0;
};

}  // namespace redlatch::test
