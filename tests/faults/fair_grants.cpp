// SPDX-License-Identifier: MIT
// ctest: without=address
// The release of a FairLock grants it to the first waiter: waiters that die, freeze or lose their connection.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "faults/grant_kit.hpp"
#include "support/temp_dir.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

const std::string queue = "redisson_lock_queue:{orders}";
const std::string channels = "redisson_lock__channel:{orders}:";

const Role waiter_role{"fair grants: waiter", wait_for_grant<FairLock>};

// Returns true once the last of so many waiters can be granted the lock: it listens, and has said so.
bool is_ready(RawRedis& redis, long long waiters) {
    return eventually(
        [&] {
            if (redis.integer("LLEN", queue) != waiters) return false;
            const std::string last = redis.list("LRANGE", queue, -1, -1).at(0);
            const auto ends = redis.call("ZSCORE", "redlatch_lock_slots:{orders}", last);
            return !ends.is_nil() && ends.string.ends_with(".5") && redis.lock_listeners(channels + last) == 1;
        },
        30s);
}

// Lets a thread of this process wait, until it can be granted the lock. It notes when it entered, and unlocks.
std::future<std::chrono::steady_clock::time_point> start_visit(RawRedis& redis, FairLock& lock) {
    const long long before = redis.integer("LLEN", queue);
    auto visit = start([&lock] {
        lock.lock();
        const auto now = std::chrono::steady_clock::now();
        lock.unlock();
        return now;
    });
    REQUIRE(is_ready(redis, before + 1));
    return visit;
}

// A server, a holder in this process, and a place to meet with child processes.
struct Fleet {
    Fleet() : shared(SharedMemory<Shared>::create(dir.file("shared"))), history{dir.file("history")} {}

    // Starts a process that waits. Returns when it can be granted the lock.
    ChildProcess start_waiter() {
        const long long before = redis.integer("LLEN", queue);
        ChildProcess process =
            spawn_self("fair grants: waiter", {server.url(), dir.file("shared"), dir.file("history")});
        REQUIRE(is_ready(redis, before + 1));
        return process;
    }

    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    SharedMemory<Shared> shared;
    const HistoryFile history;
    Client a{server.url(), unhurried()}, b{server.url(), unhurried()};
    FairLock mine{a, "orders"}, theirs{b, "orders"};
};

// Returns how soon after `release` the next one entered whose predecessor in the queue is dead. A busy machine gets ten
// rounds to be fast enough.
template <class Release>
std::chrono::steady_clock::duration past_a_dead_head(std::chrono::milliseconds enough, Release release) {
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < 10 && best > enough; ++round) {
        Fleet fleet;
        fleet.mine.lock();
        ChildProcess dead = fleet.start_waiter();
        auto visit = start_visit(fleet.redis, fleet.theirs);
        const std::string head = fleet.redis.list("LRANGE", queue, 0, 0).at(0);
        dead.kill();
        REQUIRE(eventually([&] { return fleet.redis.lock_listeners(channels + head) == 0; }, 30s));
        const auto released = std::chrono::steady_clock::now();
        release(fleet.mine);
        best = std::min(best, visit.get() - released);
        CHECK(fleet.shared->entered == 0);
    }
    return best;
}

}  // namespace

TEST_CASE("a killed waiter at the head of a FairLock's queue costs the next one nothing") {
    CHECK(past_a_dead_head(5ms, [](FairLock& held) { held.unlock(); }) <= 5ms);
}

TEST_CASE("a killed waiter at the head of a FairLock's queue costs the next one nothing when the lock is forced open") {
    const auto force = [](FairLock& held) {
        CHECK(held.force_unlock());
        std::error_code ec;
        held.unlock(ec);
        CHECK(ec == errc::hold_lost);
    };
    CHECK(past_a_dead_head(500ms, force) <= 500ms);
}

TEST_CASE("a frozen waiter of a FairLock costs the others its offer, once, and does not enter when it goes on") {
    constexpr auto most_cost = 2500ms + (slow_build_factor > 1 ? late : 0ms);
    bool in_time = false;
    // A busy machine gets several rounds.
    for (int round = 0; round < 10 && !in_time; ++round) {
        Fleet fleet;
        fleet.mine.lock();
        ChildProcess frozen = fleet.start_waiter();
        auto visit = start_visit(fleet.redis, fleet.theirs);
        frozen.stop();
        const auto released = std::chrono::steady_clock::now();
        fleet.mine.unlock();
        const auto cost = visit.get() - released;
        CHECK(cost >= 1900ms);
        fleet.mine.lock();
        auto next = start_visit(fleet.redis, fleet.theirs);
        const auto again = std::chrono::steady_clock::now();
        fleet.mine.unlock();
        in_time = cost <= most_cost && next.get() - again <= 5ms;
        // The message of its grant is still to be read.
        fleet.mine.lock();
        Interval held{1, monotonic_ns(), 0};
        frozen.cont();
        REQUIRE(eventually([&] { return fleet.redis.integer("LLEN", queue) == 1; }, 30s));
        CHECK(fleet.shared->entered == 0);
        held.until = monotonic_ns();
        fleet.history.append(held);
        fleet.mine.unlock();
        CHECK(eventually([&] { return fleet.shared->entered == 1; }, 30s));
        fleet.shared->may_leave = true;
        REQUIRE(frozen.wait(30s));
        CHECK(fleet.history.read().size() == 2);
        CHECK_FALSE(find_overlap(fleet.history.read()));
    }
    CHECK(in_time);
}

TEST_CASE("a waiter of a FairLock whose grant is lost with its connection finds it when it is back") {
    FaultyPath path;
    Client a{path.server.url(), unhurried()}, b{path.url(), unhurried()};
    FairLock mine{a, "orders"}, theirs{b, "orders"};
    mine.lock();
    auto visit = start_visit(path.redis, theirs);
    path.proxy.blackhole(true);
    mine.unlock();
    // It was granted, as its connection is still there for the server.
    CHECK(path.redis.list("HKEYS", "orders").at(0).starts_with(b.id()));
    path.proxy.kill_all();
    path.proxy.blackhole(false);
    REQUIRE(visit.wait_for(30s) == std::future_status::ready);
    CHECK(eventually([&] { return path.redis.keys().empty(); }, 30s));
}

TEST_CASE("a waiter of a FairLock that does not listen is passed over, and gets the lock when it is back") {
    FaultyPath path;
    Client a{path.server.url(), unhurried()}, b{path.url(), unhurried()};
    FairLock mine{a, "orders"}, theirs{b, "orders"};
    mine.lock();
    auto visit = start_visit(path.redis, theirs);
    const std::string head = path.redis.list("LRANGE", queue, 0, 0).at(0);
    path.proxy.refuse(true);
    path.redis.kill_clients("pubsub");
    REQUIRE(eventually([&] { return path.redis.lock_listeners(channels + head) == 0; }, 30s));
    mine.unlock();
    CHECK(path.redis.integer("EXISTS", "orders") == 0);
    path.proxy.refuse(false);
    REQUIRE(visit.wait_for(30s) == std::future_status::ready);
    CHECK(eventually([&] { return path.redis.keys().empty(); }, 30s));
}
