// SPDX-License-Identifier: MIT
// ctest: without=address
// A release grants a read-write lock to the next waiters of the server's queue: waiters that die, freeze or lose their
// connection, and a server that loses the queue. See grants.cpp for what does not depend on the sides.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "faults/grant_kit.hpp"
#include "support/read_side.hpp"
#include "support/temp_dir.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

const std::string queue_key = "redlatch_rwlock_queue:{orders}";
const std::string channel = "redisson_rwlock:{orders}";

const Role writer_role{"read-write grants: write", wait_for_grant<ReadWriteLock>};
const Role reader_role{"read-write grants: read", wait_for_grant<ReadSide>};

// Waits until so many places are in the queue, and so many waiters, or more by a given number, listen to their grants.
bool are_queued(RawRedis& redis, long long count, long long more_listen = 0) {
    return eventually(
        [&] {
            return redis.integer("LLEN", queue_key) == count &&
                   redis.lock_listeners(channel + ":") == count + more_listen;
        },
        30s);
}

// Lets a thread wait for one side. It notes when it entered, and unlocks. Returns when it has its place, and listens.
std::future<std::chrono::steady_clock::time_point> start_visit(RawRedis& redis, ReadWriteLock& lock, bool writes,
                                                               long long more_listen = 0) {
    const long long before = redis.integer("LLEN", queue_key);
    auto visit = start([&lock, writes] {
        writes ? lock.lock() : lock.lock_shared();
        const auto now = std::chrono::steady_clock::now();
        writes ? lock.unlock() : lock.unlock_shared();
        return now;
    });
    REQUIRE(are_queued(redis, before + 1, more_listen));
    return visit;
}

// A server, a holder in this process, and a place to meet with child processes.
struct Fleet {
    Fleet() : shared(SharedMemory<Shared>::create(dir.file("shared"))), history{dir.file("history")} {}

    ChildProcess start_waiter(const std::string& side) {
        const long long before = redis.integer("LLEN", queue_key);
        ChildProcess process =
            spawn_self("read-write grants: " + side, {server.url(), dir.file("shared"), dir.file("history")});
        REQUIRE(are_queued(redis, before + 1));
        return process;
    }

    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    SharedMemory<Shared> shared;
    const HistoryFile history;
    Client a{server.url(), unhurried()}, b{server.url(), unhurried()}, c{server.url(), unhurried()};
    ReadWriteLock mine{a, "orders"}, theirs{b, "orders"}, others{c, "orders"};
};

}  // namespace

TEST_CASE("a killed reader at the head of the queue costs the writer behind it nothing") {
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < 10 && best > 5ms; ++round) {
        Fleet fleet;
        fleet.mine.lock();
        ChildProcess dead = fleet.start_waiter("read");
        auto writes = start_visit(fleet.redis, fleet.theirs, true);
        dead.kill();
        REQUIRE(eventually([&] { return fleet.redis.lock_listeners(channel + ":") == 1; }, 30s));
        const auto released = std::chrono::steady_clock::now();
        fleet.mine.unlock();
        best = std::min(best, writes.get() - released);
        CHECK(fleet.shared->entered == 0);
    }
    CHECK(best <= 5ms);
}

TEST_CASE("a frozen writer delays a reader by its offer, once") {
    // The best of some rounds: a busy machine delays, too.
    bool in_time = false;
    for (int round = 0; round < 10 && !in_time; ++round) {
        Fleet fleet;
        fleet.mine.lock();
        ChildProcess frozen = fleet.start_waiter("write");
        frozen.stop();
        auto reads = start_visit(fleet.redis, fleet.theirs, false);
        const auto released = std::chrono::steady_clock::now();
        fleet.mine.unlock();
        const auto cost = reads.get() - released;
        CHECK(cost >= 1900ms);
        fleet.mine.lock();
        auto next = start_visit(fleet.redis, fleet.theirs, false, 1);  // the frozen one still listens
        const auto again = std::chrono::steady_clock::now();
        fleet.mine.unlock();
        in_time = cost <= 2500ms && next.get() - again <= 5ms;
        CHECK(fleet.shared->entered == 0);
        frozen.cont();
        CHECK(eventually([&] { return fleet.shared->entered == 1; }, 30s));
        fleet.shared->may_leave = true;
        REQUIRE(frozen.wait(30s));
    }
    CHECK(in_time);
}

TEST_CASE("a killed writer at the head of the queue costs the readers behind it nothing") {
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < 10 && best > 5ms; ++round) {
        Fleet fleet;
        fleet.mine.lock();
        ChildProcess dead = fleet.start_waiter("write");
        auto one = start_visit(fleet.redis, fleet.theirs, false), two = start_visit(fleet.redis, fleet.others, false);
        dead.kill();
        REQUIRE(eventually([&] { return fleet.redis.lock_listeners(channel + ":") == 2; }, 30s));
        const auto released = std::chrono::steady_clock::now();
        fleet.mine.unlock();
        best = std::min(best, std::max(one.get(), two.get()) - released);
        CHECK(fleet.shared->entered == 0);
    }
    CHECK(best <= 5ms);
}

TEST_CASE("a frozen reader delays a writer by its offer, and no other reader; it does not enter when it goes on") {
    // The best of some rounds: a busy machine delays, too.
    bool in_time = false;
    for (int round = 0; round < 3 && !in_time; ++round) {
        Fleet fleet;
        fleet.mine.lock();
        ChildProcess frozen = fleet.start_waiter("read");
        frozen.stop();
        auto reads = start_visit(fleet.redis, fleet.theirs, false);
        auto writes = start_visit(fleet.redis, fleet.others, true);
        const auto released = std::chrono::steady_clock::now();
        fleet.mine.unlock();
        const auto of_reader = reads.get() - released, of_writer = writes.get() - released;
        CHECK(of_writer >= 1900ms);
        in_time = of_reader <= 500ms && of_writer <= 2500ms;
        // The message of its grant is still to be read.
        fleet.mine.lock();
        Interval held{1, monotonic_ns(), 0};
        frozen.cont();
        REQUIRE(eventually([&] { return fleet.redis.integer("LLEN", queue_key) == 1; }, 30s));
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

TEST_CASE("a reader or writer whose grant is lost with its connection finds it when it is back") {
    for (const bool writes : {false, true}) {
        CAPTURE(writes);
        FaultyPath path;
        Client a{path.server.url(), unhurried()}, b{path.url(), unhurried()};
        ReadWriteLock mine{a, "orders"}, theirs{b, "orders"};
        mine.lock();
        auto visit = start_visit(path.redis, theirs, writes);
        path.proxy.blackhole(true);
        mine.unlock();
        // It was granted, as its connection is still there for the server.
        bool is_granted = false;
        for (const std::string& field : path.redis.list("HKEYS", "orders"))
            is_granted = is_granted || field.starts_with(b.id());
        CHECK(is_granted);
        path.proxy.kill_all();
        path.proxy.blackhole(false);
        REQUIRE(visit.wait_for(30s) == std::future_status::ready);
        CHECK(eventually([&] { return path.redis.keys().empty(); }, 30s));
    }
}

TEST_CASE("a server that loses the queue gives the read-write lock to the waiters all the same") {
    Fleet fleet;
    fleet.mine.lock();
    auto reads = start_visit(fleet.redis, fleet.theirs, false), writes = start_visit(fleet.redis, fleet.others, true);
    fleet.redis.text("FLUSHALL");
    fleet.redis.kill_clients("pubsub");
    CHECK(reads.wait_for(30s) == std::future_status::ready);
    CHECK(writes.wait_for(30s) == std::future_status::ready);
}

TEST_CASE("a written key that is deleted by hand is found free after a renewal of its holder at the latest") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options = unhurried();
    options.watchdog_timeout = paced(12s);
    Client a{server.url(), options}, b{server.url(), unhurried()}, c{server.url(), unhurried()};
    ReadWriteLock mine{a, "orders"}, theirs{b, "orders"}, others{c, "orders"};
    mine.lock();
    auto one = start_visit(redis, theirs, false), two = start_visit(redis, others, false);
    const auto deleted = std::chrono::steady_clock::now();
    redis.integer("DEL", "orders");
    CHECK(std::max(one.get(), two.get()) - deleted <= options.watchdog_timeout * 2 / 3);
    std::error_code ec;
    mine.unlock(ec);
    CHECK(ec == errc::hold_lost);
}
