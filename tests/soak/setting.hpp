// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "support/history.hpp"
#include "support/plain_counter.hpp"

// Shared by the workers, the faults and the checks of the soak.
namespace redlatch::soak {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

inline constexpr std::size_t worker_count = 8;
inline constexpr std::size_t steady_servers = 2;  // servers without faults: with the other one they carry the RedLock
inline constexpr std::size_t most_threads = 32;   // of a worker
inline constexpr std::size_t most_epochs = 1 << 16;

// So short that leases end, connections are given up and holds are lost many times a minute.
inline constexpr milliseconds watchdog_timeout{2100};
inline constexpr milliseconds offer{2000};  // how long a granted permit lasts until it is renewed
inline constexpr milliseconds command_timeout{400};
inline constexpr milliseconds unreachable_timeout{4000};
inline constexpr milliseconds longest_lease{1500};

// The longest time that a waiter may sleep after a release if no fault delays it.
inline constexpr milliseconds longest_wake{1000};

constexpr std::int64_t ns(std::chrono::nanoseconds time) { return time.count(); }

// Such a run lasts several times as long as any trace of a command.
constexpr bool is_long_run(std::int64_t seconds) { return seconds >= 600; }

// The primitives under test. Add a new kind of lock here, in `kinds`, in locks.cpp, and to the posts in worker.cpp.
enum class Kind : std::uint32_t {
    rlock,
    fair,
    fenced,
    spin,
    writer,
    reader,
    semaphore,
    permits,
    latch,
    multi,
    red,
    mutex,
    leader
};

struct KindInfo {
    Kind kind;
    std::string_view name;
    bool is_lock;         // its holds have a lease
    std::string_view of;  // its key; writer and reader share theirs
};

inline constexpr std::array kinds{
    KindInfo{Kind::rlock, "rlock", true, "soak:rlock"},
    KindInfo{Kind::fair, "fair", true, "soak:fair"},
    KindInfo{Kind::fenced, "fenced", true, "soak:fenced"},
    KindInfo{Kind::spin, "spin", true, "soak:spin"},
    KindInfo{Kind::writer, "writer", true, "soak:readwrite"},
    KindInfo{Kind::reader, "reader", true, "soak:readwrite"},
    KindInfo{Kind::semaphore, "semaphore", false, "soak:semaphore:"},  // and its epoch
    KindInfo{Kind::permits, "permits", false, "soak:permits"},
    KindInfo{Kind::latch, "latch", false, "soak:latch:"},  // and its round
    KindInfo{Kind::multi, "multi", true, "soak:multi:"},   // and its members
    KindInfo{Kind::red, "red", true, "soak:red"},
    KindInfo{Kind::mutex, "mutex", true, "soak:mutex"},
    KindInfo{Kind::leader, "leader", true, "soak:leader"},
};

constexpr const KindInfo& info(Kind kind) { return kinds[static_cast<std::size_t>(kind)]; }

// Returns the number of a lock in the history. Both sides of a read-write lock have the same.
constexpr std::uint64_t lock_number(Kind kind) {
    return static_cast<std::uint64_t>(kind == Kind::reader ? Kind::writer : kind);
}

inline constexpr std::size_t semaphore_limit = 4;
inline constexpr std::size_t permits_limit = 3;
inline constexpr std::size_t latch_size = 3;

// A plain semaphore loses the permits of a process that dies, and all permits with the server's data. So each of those
// events begins a new epoch, with a new semaphore.
inline std::string semaphore_name(std::uint64_t epoch) {
    return std::string{info(Kind::semaphore).of} + std::to_string(epoch);
}

// The current operation of a thread, for the history if its process is killed.
struct Underway {
    std::atomic<std::uint32_t> state{0};  // 0: nothing, 1: asking, 2: holding
    std::uint32_t kind = 0;
    std::uint64_t lock = 0;
    std::int64_t called = 0;
    std::int64_t held = 0;
    std::int64_t until = 0;
    std::uint64_t token = 0;
    std::uint64_t read = 0;
};

// Counts events of one round of a latch. A thread that stood still since an earlier round changes nothing: the number
// of the round, without the worker's part, and the count are one word.
class RoundCount {
public:
    void begin(std::uint64_t round) { state_ = round << 8; }

    // Returns the count from before; nothing if it counts another round by now.
    std::optional<std::size_t> add(std::uint64_t round) {
        std::uint64_t state = state_;
        while ((state | 0xff) == (round << 8 | 0xff))
            if (state_.compare_exchange_weak(state, state + 1)) return state & 0xff;
        return std::nullopt;
    }

    std::size_t count() const { return state_ & 0xff; }

private:
    std::atomic<std::uint64_t> state_{0};
};

// A count that a worker has set, for the others to count down.
struct Board {
    std::atomic<std::uint64_t> round{0};  // 0: none
    RoundCount claimed, invoked, acknowledged;
};

struct Shared {
    std::atomic<bool> stop{false};
    std::atomic<std::uint32_t> ready{0};
    std::atomic<std::uint64_t> semaphore_epoch{1};
    std::array<std::atomic<std::uint32_t>, most_epochs> in_background{};  // one bit per worker: permits on their way
    std::array<std::atomic<bool>, most_epochs> lost_permits{};            // of an epoch
    std::array<test::PlainCounter, kinds.size()> counters{};
    std::array<Board, worker_count> boards{};
    std::array<std::array<Underway, most_threads>, worker_count> underway{};
    std::array<std::atomic<std::uint64_t>, kinds.size()> cycles{};
};

}  // namespace redlatch::soak
