// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace redlatch::test {

#if defined(REDLATCH_SANITIZED)
inline constexpr int slow_build_factor = 5;
#else
inline constexpr int slow_build_factor = 1;
#endif

/// Returns a bound that suits a sanitizer build, too. Only for upper bounds on how long something may take.
constexpr std::chrono::milliseconds patient(std::chrono::milliseconds bound) { return bound * slow_build_factor; }

/// Returns true as soon as the predicate is true, false if it is still false at the deadline. Calls the predicate at
/// least once, and once more after the deadline, so that a thread that was not scheduled does not fail the test.
template <class Predicate>
bool eventually(Predicate&& predicate, std::chrono::milliseconds deadline = std::chrono::seconds{20},
                std::chrono::milliseconds step = std::chrono::milliseconds{1}) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    while (true) {
        const bool last = std::chrono::steady_clock::now() >= end;
        if (predicate()) return true;
        if (last) return false;
        std::this_thread::sleep_for(step);
    }
}

/// Waits until the client has sent nothing for a while. Returns how many commands it has sent by then. Not for what a busy
/// machine may delay for that long: then wait for the command itself.
template <class AnyClient>
std::uint64_t commands_when_quiet(const AnyClient& client) {
    std::optional<std::uint64_t> before;
    int unchanged = 0;
    if (!eventually(
            [&] {
                const std::uint64_t commands = client.stats().commands;
                unchanged = std::exchange(before, commands) == commands ? unchanged + 1 : 0;
                return unchanged == 4;
            },
            std::chrono::seconds{20}, patient(std::chrono::milliseconds{80})))
        throw std::runtime_error("the client goes on sending");
    return *before;
}

/// Measures time from its construction.
class Stopwatch {
public:
    std::chrono::steady_clock::duration elapsed() const { return std::chrono::steady_clock::now() - start_; }

    std::chrono::milliseconds elapsed_ms() const {
        return std::chrono::duration_cast<std::chrono::milliseconds>(elapsed());
    }

    bool within(std::chrono::milliseconds bound) const { return elapsed() <= bound; }

    void restart() { start_ = std::chrono::steady_clock::now(); }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Runs the function and returns whether it ended in time. Cannot interrupt a function that hangs.
template <class Function>
bool within(std::chrono::milliseconds bound, Function&& function) {
    const Stopwatch watch;
    std::forward<Function>(function)();
    return watch.within(bound);
}

}  // namespace redlatch::test
