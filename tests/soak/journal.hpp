// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "setting.hpp"
#include "support/record_file.hpp"

namespace redlatch::soak {

// One entry of a worker's journal. Times are CLOCK_MONOTONIC, in nanoseconds; 0 means never.
struct Entry {
    enum class What : std::uint32_t {
        turn,          // a lock or a permit was held
        gave_up,       // ... or not acquired
        fenced_write,  // called, returned; read: whether it was accepted
        latch_set,     // lock: the latch; returned
        latch_down,    // called (invoked), returned (acknowledged)
        latch_wait,    // called, returned; read: whether the count had ended
        latch_reset,   // called
        latch_count,  // called, returned; held: when the count was set; token: what was left; read: 1 if that is wrong;
                      // on_wire: how many count-downs had returned before, and how many had been called afterwards
        pause,        // the process stood still from called to returned
        failure       // something that must not happen, with code `token`
    };

    What what = What::turn;
    std::uint32_t kind = 0;
    std::uint64_t lock = 0;
    std::uint64_t owner = 0;  // worker, incarnation and thread
    std::int64_t called = 0;
    std::int64_t held = 0;
    std::int64_t until = 0;     // the end of its belief that it holds
    std::int64_t released = 0;  // when unlock() was called, if that succeeded
    std::int64_t returned = 0;  // of a call that released the lock, or gave up
    std::int64_t told = 0;      // when the loss of the hold was reported
    std::int64_t valid = 0;     // the last valid_until
    std::uint64_t token = 0;    // or the number of permits, the hash of a permit's id, the members that hold a RedLock
    std::uint64_t read = 0;     // from the plain counter
    std::int64_t wrote = 0;     // when it had written the counter
    std::int64_t deadline = 0;
    std::uint32_t watched = 0;  // 1: renewed by the watchdog
    std::uint16_t killed = 0;   // 1: the end of the turn is not known
    std::uint16_t error = 0;    // why the release failed
    std::uint64_t on_wire = 0;  // hash of the owner's text
};

using Journal = test::RecordFile<Entry>;

inline std::uint64_t hash_of(std::string_view text) {
    std::uint64_t hash = 14695981039346656037ULL;
    for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    return hash;
}

constexpr std::uint64_t owner_number(std::size_t worker, std::size_t incarnation, std::size_t thread) {
    return (worker << 48) | (incarnation << 16) | thread;
}
constexpr std::size_t worker_of(std::uint64_t owner) { return owner >> 48; }

// The files of a soak, as passed on a worker's command line.
struct Paths {
    std::string directory;

    std::string shared() const { return directory + "/shared"; }
    std::string journal() const { return directory + "/journal"; }
    std::string resource() const { return directory + "/resource.sock"; }
};

}  // namespace redlatch::soak
