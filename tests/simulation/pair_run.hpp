// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/scheduler.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sim {

// What can happen to an operation that waits.
enum class Happening : std::uint8_t { grant, stop, destroyed, cut, closed };
inline constexpr std::array happening_names{"grant", "stop", "destroyed coroutine", "lost connection", "client closed"};

// One run: one client holds something, an operation of another one waits for it, and two things happen at given steps.
struct PairRun {
    enum class Way : std::uint8_t {
        callback,            // called by the client's own thread
        callback_elsewhere,  // called by an executor
        coroutine,           // resumed by an executor, on the thread that also destroys it
    };

    std::uint64_t seed = 0;
    std::size_t contest = 0;  // of contest_names
    Way way = Way::callback;
    std::array<Happening, 2> what{};
    std::array<std::uint64_t, 2> at{};  // the steps, counted from the beginning of the operation; 0: it does not happen
    bool same_client = false;           // the holder belongs to the client that waits
    bool closes_by_end = false;         // "client closed" destroys the objects and the client, instead of async_close()
};
inline constexpr std::array contest_names{"rlock", "fair_lock", "write_lock", "semaphore", "multi_lock"};

// What was seen of it.
struct PairSeen {
    std::array<bool, 2> hit{};    // each happened before the operation completed
    std::uint64_t released = 0;   // the step at which the holder released by itself; 0 if it did not
    std::uint64_t completed = 0;  // the step of the completion; 0 if there was none
    std::uint64_t quiet = 0;      // the number of steps until all was quiet
    bool has_hold = false;        // the completion had a hold
};

// Runs it. Returns the first failure, or an empty text.
std::string run_pair(const PairRun& run, bool trace, PairSeen& seen, Nanos& simulated);

}  // namespace sim
