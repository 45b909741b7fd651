// SPDX-License-Identifier: MIT
// ctest: without=address
// A release grants the lock to the next waiter of the server's queue: waiters that die, freeze or lose their connection,
// messages that are lost, and a server that loses the queue.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "faults/grant_kit.hpp"
#include "support/grants.hpp"
#include "support/temp_dir.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

const std::string queue_key = "redlatch_lock_queue:{orders}";

// What the offer of 2 seconds may cost the others. A busy machine gets several rounds.
constexpr auto most_cost = 2500ms + (slow_build_factor > 1 ? late : 0ms);
constexpr int most_rounds = 3;

const Role waiter_role{"grants: waiter", wait_for_grant<RLock>};
const Role fenced_waiter_role{"grants: fenced waiter", wait_for_grant<FencedLock>};

// A server, a holder in this process, and a place to meet with child processes.
template <class L>
struct FleetOf {
    FleetOf() : shared(SharedMemory<Shared>::create(dir.file("shared"))), history{dir.file("history")} {}

    // Starts a process that waits. Returns when it has its place, and listens.
    ChildProcess start_waiter() {
        const long long before = redis.integer("LLEN", queue_key);
        const char* const role = std::is_same_v<L, RLock> ? "grants: waiter" : "grants: fenced waiter";
        ChildProcess process = spawn_self(role, {server.url(), dir.file("shared"), dir.file("history")});
        REQUIRE(eventually(
            [&] { return redis.integer("LLEN", queue_key) == before + 1 && listeners(redis, "orders") == before + 1; },
            30s));
        return process;
    }

    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    SharedMemory<Shared> shared;
    const HistoryFile history;
    Client a{server.url(), unhurried()}, b{server.url(), unhurried()};
    L mine{a, "orders"}, theirs{b, "orders"};
};
using Fleet = FleetOf<RLock>;

// Lets a thread of this client wait at a place. It notes when it entered, and unlocks.
template <class L>
std::future<std::chrono::steady_clock::time_point> start_visit(RawRedis& redis, const Client& client, L& lock) {
    auto visit = start([&lock] {
        lock.lock();
        const auto now = std::chrono::steady_clock::now();
        lock.unlock();
        return now;
    });
    REQUIRE(can_be_granted<L>(redis, client, "orders"));
    return visit;
}

}  // namespace

TEST_CASE_TEMPLATE("a killed waiter at the head of the queue costs the next one nothing", L, RLock, FencedLock) {
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < 10 && best > 5ms; ++round) {
        FleetOf<L> fleet;
        L &mine = fleet.mine, &theirs = fleet.theirs;
        mine.lock();
        ChildProcess dead = fleet.start_waiter();
        auto visit = start_visit(fleet.redis, fleet.b, theirs);
        dead.kill();
        REQUIRE(eventually([&] { return listeners(fleet.redis, "orders") == 1; }, 30s));
        const auto released = std::chrono::steady_clock::now();
        mine.unlock();
        best = std::min(best, visit.get() - released);
        CHECK(fleet.shared->entered == 0);
    }
    CHECK(best <= 5ms);
}

TEST_CASE(
    "the renewal of a grant takes effect, its reply and the release are lost: the release is sent until that lease "
    "ends") {
    bool in_time = false;
    for (int round = 0; round < 10 && !in_time; ++round) {
        FaultyPath path;
        EventLog log;
        ClientOptions options = unhurried();
        options.command_timeout = paced(400ms);
        options.on_event = log.handler();
        Client client{path.url(), options}, other{path.server.url(), unhurried()};
        RLock orders{client, "orders"}, same_orders{other, "orders"};
        same_orders.lock();
        auto granted = start([&] { return orders.hold(); });
        REQUIRE(can_be_granted<RLock>(path.redis, client, "orders"));
        path.proxy.hold_next_replies(1, renew_digest);
        same_orders.unlock();
        Hold hold = granted.get();
        const Instant end_of_grant = hold.valid_until();
        REQUIRE(eventually([&] { return path.redis.pttl("orders") > 3000; }));
        path.proxy.blackhole(true);
        in_time = Clock::now() < end_of_grant - 200ms;  // a busy machine may be late
        const std::error_code error = hold.unlock();
        if (!in_time) continue;
        CHECK(error == errc::unreachable);
        REQUIRE(eventually([&] { return Clock::now() > end_of_grant + 300ms; }));
        path.proxy.blackhole(false);
        CHECK(eventually([&] { return !path.redis.exists("orders"); }, 15s));
        CHECK(log.count(Event::Kind::unlock_not_delivered) == 0);
    }
    CHECK(in_time);
}

TEST_CASE_TEMPLATE("a frozen waiter costs the others its offer, once, and does not enter when it goes on", L, RLock,
                   FencedLock) {
    bool in_time = false;
    for (int round = 0; round < 10 && !in_time; ++round) {
        FleetOf<L> fleet;
        L &mine = fleet.mine, &theirs = fleet.theirs;
        mine.lock();
        ChildProcess frozen = fleet.start_waiter();
        frozen.stop();
        auto visit = start_visit(fleet.redis, fleet.b, theirs);
        const auto released = std::chrono::steady_clock::now();
        mine.unlock();
        const auto cost = visit.get() - released;
        CHECK(cost >= 1900ms);
        mine.lock();
        auto next = start_visit(fleet.redis, fleet.b, theirs);
        const auto again = std::chrono::steady_clock::now();
        mine.unlock();
        in_time = cost <= most_cost && next.get() - again <= 5ms;
        // The message of its grant is still to be read.
        mine.lock();
        Interval held{1, monotonic_ns(), 0};
        frozen.cont();
        REQUIRE(eventually([&] { return fleet.redis.integer("LLEN", queue_key) == 1; }, 30s));
        CHECK(fleet.shared->entered == 0);
        held.until = monotonic_ns();
        fleet.history.append(held);
        mine.unlock();
        CHECK(eventually([&] { return fleet.shared->entered == 1; }, 30s));
        fleet.shared->may_leave = true;
        REQUIRE(frozen.wait(30s));
        CHECK(fleet.history.read().size() == 2);
        CHECK_FALSE(find_overlap(fleet.history.read()));
    }
    CHECK(in_time);
}

TEST_CASE("a waiter that dies between its grant and the message blocks the others for its offer") {
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < most_rounds && best > most_cost; ++round) {
        Fleet fleet;
        RLock &mine = fleet.mine, &theirs = fleet.theirs;
        mine.lock();
        ChildProcess dead = fleet.start_waiter();
        dead.stop();
        auto visit = start_visit(fleet.redis, fleet.b, theirs);
        const auto released = std::chrono::steady_clock::now();
        mine.unlock();
        dead.kill();
        best = std::min(best, visit.get() - released);
        CHECK(fleet.shared->entered == 0);
    }
    CHECK(best <= most_cost);
}

TEST_CASE("a waiter whose grant is lost with its connection finds it when it is back") {
    FaultyPath path;
    Client a{path.server.url(), unhurried()}, b{path.url(), unhurried()};
    RLock mine{a, "orders"}, theirs{b, "orders"};
    const auto holder = [](RawRedis& redis) { return redis.list("HKEYS", "orders").at(0); };
    mine.lock();
    auto visit = start([&] {
        theirs.lock();
        RawRedis redis{path.server};
        const std::string entered = holder(redis);
        theirs.unlock();
        return entered;
    });
    REQUIRE(can_be_granted<RLock>(path.redis, b, "orders"));
    path.proxy.blackhole(true);
    mine.unlock();
    // It was granted, as its connection is still there for the server.
    const std::string granted = holder(path.redis);
    CHECK(granted.starts_with(b.id()));
    path.proxy.kill_all();
    path.proxy.blackhole(false);
    REQUIRE(visit.wait_for(30s) == std::future_status::ready);
    CHECK(visit.get() == granted);
    CHECK(eventually([&] { return path.redis.keys().empty(); }, 30s));
}

TEST_CASE("a waiter that does not listen is passed over, and gets the lock when it is back") {
    FaultyPath path;
    Client a{path.server.url(), unhurried()}, b{path.url(), unhurried()};
    RLock mine{a, "orders"}, theirs{b, "orders"};
    mine.lock();
    auto visit = start_visit(path.redis, b, theirs);
    path.proxy.refuse(true);
    path.redis.kill_clients("pubsub");
    REQUIRE(eventually([&] { return listeners(path.redis, "orders") == 0; }, 30s));
    mine.unlock();
    // It is not granted the lock. It may get it by a question: when it lost the connection, it has sent one.
    const long long left = path.redis.pttl("orders");
    CHECK((left == -2 || left > 2'000));
    path.proxy.refuse(false);
    REQUIRE(visit.wait_for(30s) == std::future_status::ready);
    CHECK(eventually([&] { return path.redis.keys().empty(); }, 30s));
}

TEST_CASE("a place that a late command makes for nobody blocks the others for an offer at most") {
    FaultyPath path;
    ClientOptions impatient = unhurried();
    impatient.command_timeout = paced(500ms);
    Client a{path.server.url(), unhurried()}, b{path.url(), impatient}, c{path.server.url(), unhurried()};
    RLock mine{a, "orders"}, theirs{b, "orders"}, next{c, "orders"};
    theirs.lock();  // so that the script is known
    theirs.unlock();
    mine.lock();
    path.proxy.hold_next_requests(1, std::string(digested<scripts::queue_acquire>.digest()));
    std::error_code ec;
    CHECK_FALSE(theirs.try_lock_for(paced(200ms), ec));
    path.proxy.release();
    auto visit = start_visit(path.redis, c, next);
    const auto released = std::chrono::steady_clock::now();
    mine.unlock();
    CHECK(visit.get() - released <= 2500ms + late);
    CHECK(eventually([&] { return path.redis.keys().empty(); }, 30s));
}

TEST_CASE("a server that loses the queue gives the lock to the waiters all the same") {
    RedisServer server;
    RawRedis redis{server};
    Client a{server.url(), unhurried()}, b{server.url(), unhurried()}, c{server.url(), unhurried()};
    RLock mine{a, "orders"}, second{b, "orders"}, third{c, "orders"};
    mine.lock();
    auto one = start_visit(redis, b, second), two = start_visit(redis, c, third);
    redis.text("FLUSHALL");
    redis.kill_clients("pubsub");
    CHECK(one.wait_for(30s) == std::future_status::ready);
    CHECK(two.wait_for(30s) == std::future_status::ready);
}

TEST_CASE("a key that is deleted by hand is found free after a renewal of its holder at the latest") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options = unhurried();
    options.watchdog_timeout = paced(12s);
    Client a{server.url(), options}, b{server.url(), unhurried()};
    RLock mine{a, "orders"}, theirs{b, "orders"};
    mine.lock();
    auto visit = start_visit(redis, b, theirs);
    const auto deleted = std::chrono::steady_clock::now();
    redis.integer("DEL", "orders");
    CHECK(visit.get() - deleted <= options.watchdog_timeout * 2 / 3);
    std::error_code ec;
    mine.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE_TEMPLATE("a key that is deleted by hand is found free when its holder releases it", L, RLock, FencedLock,
                   ReadWriteLock) {
    // Of the last level, or of another one.
    for (const int levels : {1, 2}) {
        CAPTURE(levels);
        RedisServer server;
        RawRedis redis{server};
        Client a{server.url(), unhurried()}, b{server.url(), unhurried()};
        L mine{a, "orders"}, theirs{b, "orders"};
        for (int i = 0; i < levels; ++i) mine.lock();
        auto visit = start_visit(redis, b, theirs);
        commands_when_quiet(b);
        redis.integer("DEL", "orders");
        std::error_code ec;
        mine.unlock(ec);
        CHECK(ec == errc::hold_lost);
        CHECK(visit.wait_for(5s) == std::future_status::ready);
    }
}
