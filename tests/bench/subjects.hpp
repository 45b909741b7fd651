// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "bare.hpp"
#include "fleet.hpp"

// The code of a fleet's process for each subject: it makes the objects that its threads share. Then each thread makes
// its lock and calls body(seat, lock).
namespace redlatch::bench {

using namespace redlatch::detail;

using KeyOf = std::string (*)(std::size_t thread);

inline std::string own_key(std::size_t thread) { return "own:" + std::to_string(thread); }
inline std::string one_key(std::size_t) { return "one"; }
inline const std::string token_key = "token";

/// An RLock whose client does without ClientOptions::grants.
struct UngrantedRLock : RLock {
    using RLock::RLock;
};

template <class Lock>
ClientOptions options_for() {
    ClientOptions options;
    options.grants = !std::is_same_v<Lock, UngrantedRLock>;
    return options;
}

/// One client for all threads of the process, and a lock of some kind for each, made with the options.
template <class Lock = RLock, class Body, class... Options>
auto redlatch_process(const std::string& url, KeyOf key, Body body, Options... options) {
    return [=](Crew& crew) {
        Client redis{url, options_for<Lock>()};
        crew.run([&](Seat& seat) {
            Lock lock{redis, key(seat.index()), options...};
            body(seat, lock);
        });
    };
}

/// Uses a connection for each thread, as do all below.
template <class Lock = BareLock, class Body>
auto bare_process(const std::string& url, KeyOf key, Body body) {
    return [=](Crew& crew) {
        crew.run([&](Seat& seat) {
            Lock lock{url, key(seat.index()), seat.index()};
            body(seat, lock);
        });
    };
}

template <class Body>
auto token_process(const std::string& url, Body body) {
    return [=](Crew& crew) {
        crew.run([&](Seat& seat) {
            Token lock{url, token_key};
            body(seat, lock);
        });
    };
}

/// Sends the scripts of all keys in one pipeline, from one thread.
inline std::function<void(Crew&)> pipelined_process(const std::string& url, std::size_t keys) {
    return [=](Crew& crew) {
        crew.run([&](Seat& seat) {
            std::vector<std::string> names;
            for (std::size_t i = 0; i < keys; ++i) names.push_back(own_key(i));
            Pipeline pipeline{url, names};
            std::uint64_t pairs = 0;
            pipeline.lock_and_unlock_all();
            seat.start();
            for (; seat.running(); pairs += keys) pipeline.lock_and_unlock_all();
            seat.worker().acquisitions = pairs;
            seat.finish();
        });
    };
}

/// Opens connections, loads scripts, touches memory: the extra costs of the first acquisitions.
template <class Lock>
void warm_up(Lock& lock) {
    for (int i = 0; i < 20; ++i) {
        lock.lock();
        lock.unlock();
    }
}

/// Locks and unlocks as fast as possible, and does nothing else.
inline constexpr auto lock_and_unlock = [](Seat& seat, auto& lock) {
    std::uint64_t pairs = 0;
    warm_up(lock);
    seat.start();
    for (; seat.running(); ++pairs) {
        lock.lock();
        lock.unlock();
    }
    seat.worker().acquisitions = pairs;
    seat.finish();
};

/// Sleeps. A time that is shorter than a sleep can be is spent busy.
inline void stay(std::chrono::nanoseconds time) {
    if (time >= std::chrono::milliseconds{1}) return std::this_thread::sleep_for(time);
    for (const auto end = now_ns() + time.count(); now_ns() < end;) {
    }
}

/// Enters the critical section and checks that no other thread is in it.
template <class Lock>
void enter_and_leave(Seat& seat, Lock& lock, std::chrono::nanoseconds hold) {
    const auto asked = now_ns();
    lock.lock();
    seat.critical().enter(seat.index(), seat.worker(), asked, now_ns());
    if (hold.count() > 0) stay(hold);
    seat.critical().leave(seat.index());
    lock.unlock();
}

/// Acquires the lock again and again, in competition with others.
inline auto contend(std::chrono::nanoseconds hold, std::chrono::nanoseconds rest) {
    return [=](Seat& seat, auto& lock) {
        warm_up(lock);
        seat.start();
        while (seat.running()) {
            enter_and_leave(seat, lock, hold);
            if (rest.count() > 0) stay(rest);
        }
        seat.finish();
    };
}

}  // namespace redlatch::bench
