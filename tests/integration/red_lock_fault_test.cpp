// SPDX-License-Identifier: MIT
// ctest: long without=address,thread
// RedLock: a minority of servers that are dead, frozen, slow, or cut off costs nothing but a moment; a majority, the
// lock.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <vector>

#include "integration/red_lock_kit.hpp"

using namespace redlatch::test;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Event;
using redlatch::RedLock;
using redlatch::RedLockOptions;

namespace {

/// Shared by the tests that leave it as they found it.
Fleet& fleet() {
    static Fleet five{5, short_lease};
    return five;
}

constexpr auto node_timeout = patient(250ms);

/// What a busy machine may add.
constexpr auto late = patient(600ms);

struct Trouble {
    const char* name;
    std::function<void(std::size_t)> begin;
    std::function<void(std::size_t)> end;
};

std::vector<Trouble> troubles() {
    const auto server = [](std::size_t i) -> RedisServer& { return fleet().servers[i]; };
    const auto proxy = [](std::size_t i) -> Proxy& { return fleet().proxies[i]; };
    return {
        {"frozen", [=](std::size_t i) { server(i).stop(); }, [=](std::size_t i) { server(i).cont(); }},
        {"slow", [=](std::size_t i) { proxy(i).delay(node_timeout, node_timeout); },
         [=](std::size_t i) { proxy(i).delay(0ms, 0ms); }},
        {"blackholed", [=](std::size_t i) { proxy(i).blackhole(true); },
         [=](std::size_t i) { proxy(i).blackhole(false); }},
        {"refused",
         [=](std::size_t i) {
             proxy(i).refuse(true);
             proxy(i).kill_all();
         },
         [=](std::size_t i) { proxy(i).refuse(false); }},
    };
}

RedLockOptions red_options() { return {.node_timeout = node_timeout, .longest_lease = short_lease}; }

}  // namespace

TEST_CASE("two bad servers of five: no error, at most one node_timeout, and nothing is left behind") {
    for (const Trouble& trouble : troubles()) {
        CAPTURE(trouble.name);
        const std::string name = std::string{"minority "} + trouble.name;
        Party known{fleet().proxied(), name, quick_options(), red_options()};
        known->lock();
        known->unlock();
        Party fresh{fleet().proxied(), name, quick_options(), red_options()};  // meets them bad from the first
        trouble.begin(1);
        trouble.begin(4);
        for (Party<>* mine : {&known, &fresh}) {
            RedLock& lock = **mine;
            for (int i = 0; i < 3; ++i) {
                const auto taking = time_of([&] { CHECK_NOTHROW(lock.lock()); });
                CHECK(lock.is_held());
                CHECK(fleet().looks[0].exists(name));
                CHECK_FALSE(elsewhere([&] { return lock.try_lock(); }));
                std::error_code ec;
                const auto giving = time_of([&] { lock.unlock(ec); });
                CHECK_FALSE(ec);
                CHECK(taking < node_timeout + late);
                CHECK(giving < node_timeout + late);
                for (const std::size_t sound : {0U, 2U, 3U}) CHECK_FALSE(fleet().looks[sound].exists(name));
            }
            const auto trying = time_of([&] { CHECK(lock.try_lock()); });
            CHECK(trying < node_timeout + late);
            lock.unlock();
        }
        trouble.end(1);
        trouble.end(4);
        CHECK(fleet().becomes_free(name));
    }
}

TEST_CASE("servers that are not there at all, from the beginning") {
    Urls urls = fleet().urls();
    urls[0] = "unix:///nowhere/to/be/found";
    urls[2] = "redis://127.0.0.1:1";
    Party mine{urls, "absent", quick_options(), red_options()};
    for (int i = 0; i < 3; ++i) {
        const auto took = time_of([&] {
            CHECK(mine->try_lock());
            mine->unlock();
        });
        CHECK(took < 2 * (node_timeout + late));
    }
    mine->lock();
    const auto until = mine->valid_until();
    CHECK(eventually([&] { return mine->valid_until() > until + short_lease; }, 20s));
    CHECK_FALSE(mine->lost().stop_requested());
    mine->unlock();
    CHECK(fleet().becomes_free("absent"));
}

TEST_CASE("three bad servers of five: unreachable, in time, and nothing is left on the others") {
    for (const Trouble& trouble : troubles()) {
        CAPTURE(trouble.name);
        if (trouble.name == std::string{"slow"}) continue;  // they are only slow
        const std::string name = std::string{"majority "} + trouble.name;
        const ClientOptions options = quick_options();
        Party mine{fleet().proxied(), name, options, red_options()};
        mine->lock();
        mine->unlock();
        for (const std::size_t i : {0U, 1U, 4U}) trouble.begin(i);
        const auto trying =
            time_of([&] { CHECK(error_of_call([&] { static_cast<void>(mine->try_lock()); }) == errc::unreachable); });
        CHECK(trying < options.command_timeout + late);
        const auto waiting = time_of([&] { CHECK(error_of_call([&] { mine->lock(); }) == errc::unreachable); });
        CHECK(waiting >= options.unreachable_timeout - 10ms);
        CHECK(waiting < options.unreachable_timeout + late);
        const std::string text = text_of_error([&] { static_cast<void>(mine->try_lock()); });
        CHECK(text.find(name + ": ") == 0);
        const auto timed = time_of([&] {
            std::error_code ec;
            CHECK_FALSE(mine->try_lock_for(50ms, ec));
        });
        CHECK(timed < 50ms + late);
        CHECK(error_of_call([&] { static_cast<void>(mine->is_locked()); }) == errc::unreachable);
        for (const std::size_t sound : {2U, 3U})
            CHECK(eventually([&] { return !fleet().looks[sound].exists(name); }, 20s));
        for (const std::size_t i : {0U, 1U, 4U}) trouble.end(i);
        CHECK(fleet().becomes_free(name));
        CHECK(mine->try_lock_for(20s));
        mine->unlock();
        CHECK(fleet().becomes_free(name));
    }
}

TEST_CASE("lost replies leave no key, and count no level twice") {
    Party mine{fleet().proxied(), "lost replies", quick_options(), red_options()};
    mine->lock();
    mine->unlock();
    std::uint64_t dropped = 0;
    for (const std::size_t faulty : {1U, 3U, 5U}) {
        for (const std::string& digest : {acquire_digest, release_digest}) {
            for (std::size_t i = 0; i < faulty; ++i) fleet().proxies[i].drop_next_replies(1, digest);
            mine->lock();
            for (std::size_t i = 0; i < 5; ++i)
                for (const auto& [owner, count] : fleet().looks[i].hgetall("lost replies")) {
                    CHECK(owner == owner_of(mine.clients[i]));
                    CHECK(count == "1");
                }
            mine->unlock();
            CHECK(fleet().becomes_free("lost replies"));
            for (Proxy& proxy : fleet().proxies) proxy.clear_rules();
        }
    }
    for (Proxy& proxy : fleet().proxies) dropped += proxy.counts().dropped;
    CHECK(dropped >= 14);
    mine->lock();
    mine->lock();
    mine->unlock();
    mine->unlock();
    CHECK(fleet().becomes_free("lost replies"));
}

// A server that granted its part when the round was over already must not keep it.
TEST_CASE("what comes too late for a round is given back, or becomes a part of the hold") {
    Party mine{fleet().proxied(), "late", quick_options(), red_options()};
    Party theirs{fleet().urls(), "late", quick_options(), red_options()};
    mine->lock();
    mine->unlock();
    fleet().proxies[0].hold_next_replies(1, acquire_digest);
    mine->lock();
    CHECK(eventually([&] { return fleet().proxies[0].counts().held == 1; }));
    CHECK(mine.locks[0].valid_until() == SteadyClock::time_point::min());
    fleet().proxies[0].release();
    CHECK(eventually([&] { return mine.locks[0].valid_until() > SteadyClock::now(); }));
    CHECK(mine->hold_count() == 1);
    mine->unlock();
    CHECK(fleet().becomes_free("late"));

    for (const std::size_t i : {1U, 2U, 3U}) theirs.locks[i].lock();
    fleet().proxies[0].hold_next_replies(1, acquire_digest);
    CHECK_FALSE(mine->try_lock());
    CHECK(fleet().looks[0].exists("late"));
    fleet().proxies[0].release();
    CHECK(eventually([&] { return !fleet().looks[0].exists("late"); }, 20s));
    for (const std::size_t i : {1U, 2U, 3U}) theirs.locks[i].unlock();
    CHECK(fleet().becomes_free("late"));
}

// Two servers fail at once; of the others one says that somebody has it. That is no error.
TEST_CASE("a lock that is held is refused, not unreachable, also when a minority is away") {
    Party theirs{fleet().urls(), "held", quick_options(), red_options()};
    Urls urls = fleet().urls();
    urls[0] = urls[1] = "unix:///nowhere/to/be/found";
    Party mine{urls, "held", quick_options(), red_options()};
    theirs->lock();
    for (int i = 0; i < 3; ++i) {
        std::error_code ec;
        CHECK_FALSE(mine->try_lock(ec));
        CHECK_FALSE(ec);
    }
    std::error_code ec;
    CHECK_FALSE(mine->try_lock_for(quick_options().command_timeout * 3, ec));
    CHECK_FALSE(ec);
    auto waiting = start([&] {
        const std::lock_guard guard{*mine};
        return mine->is_held();
    });
    CHECK_FALSE(ready(waiting, 100ms));
    theirs->unlock();
    CHECK(ready(waiting));
    CHECK(waiting.get());
    CHECK(fleet().becomes_free("held"));
}

TEST_CASE("unlock() of a guard ends in peace when the majority has died, and the error code tells") {
    Fleet own{5, short_lease};
    Party mine{own.urls(), "orders", quick_options(), red_options()};
    {
        const std::lock_guard guard{*mine};
        for (const std::size_t i : {0U, 1U}) own.servers[i].kill();
    }
    for (const std::size_t i : {2U, 3U, 4U}) CHECK(eventually([&] { return !own.looks[i].exists("orders"); }));
    std::error_code ec;
    mine->lock();
    mine->unlock(ec);
    CHECK_FALSE(ec);
    // One more: of the three that have it only one cannot be told, and others could have the lock.
    mine->lock();
    own.servers[3].kill();
    mine->unlock(ec);
    CHECK_FALSE(ec);
    for (const std::size_t i : {2U, 4U}) CHECK(eventually([&] { return !own.looks[i].exists("orders"); }));
}

TEST_CASE("an unlock that cannot tell the majority says so") {
    Party mine{fleet().proxied(), "untold", quick_options(), red_options()};
    mine->lock();
    CHECK(eventually([&] { return fleet().holders("untold") == 5; }));
    CHECK(eventually([&] {
        return std::all_of(mine.locks.begin(), mine.locks.end(),
                           [](auto& lock) { return lock.valid_until() > SteadyClock::now(); });
    }));
    for (const std::size_t i : {0U, 2U, 3U}) fleet().servers[i].stop();
    std::error_code ec;
    const auto took = time_of([&] { mine->unlock(ec); });
    CHECK(ec == errc::unreachable);
    CHECK(took < node_timeout + late);
    for (const std::size_t i : {1U, 4U}) CHECK_FALSE(fleet().looks[i].exists("untold"));
    for (const std::size_t i : {0U, 2U, 3U}) fleet().servers[i].cont();
    CHECK(fleet().becomes_free("untold"));
}

TEST_CASE("when the majority is gone the loss is told in time: killed servers") {
    Fleet own{5, short_lease};
    EventLog events;
    ClientOptions options = quick_options();
    options.on_event = events.handler();
    Party mine{own.urls(), "orders", options, red_options()};
    mine->lock();
    CHECK(eventually([&] { return own.holders("orders") == 5; }));
    const std::stop_token lost = mine->lost();
    own.servers[0].kill();
    own.servers[4].kill();
    const auto until = mine->valid_until();
    CHECK(eventually([&] { return mine->valid_until() > until + short_lease; }, 20s));
    CHECK_FALSE(lost.stop_requested());
    own.servers[2].kill();
    const auto end = mine->valid_until();
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(SteadyClock::now() < end + late);
    CHECK(mine->valid_until() == SteadyClock::time_point::min());
    CHECK(eventually([&] { return events.count(Event::Kind::hold_lost) > 0; }));
    std::error_code ec;
    mine->unlock(ec);
    CHECK(ec == errc::hold_lost);
    for (const std::size_t i : {1U, 3U}) CHECK(eventually([&] { return !own.looks[i].exists("orders"); }, 20s));
}

TEST_CASE("when the majority is gone the loss is told in time: taken by others") {
    Party mine{fleet().urls(), "deleted", quick_options(), red_options()};
    Party theirs{fleet().urls(), "deleted", quick_options(), red_options()};
    mine->lock();
    CHECK(eventually([&] { return fleet().holders("deleted") == 5; }));
    const std::stop_token lost = mine->lost();
    const Stopwatch watch;
    for (const std::size_t i : {0U, 2U, 3U}) {
        theirs.locks[i].force_unlock();
        CHECK(theirs.locks[i].try_lock());
    }
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    // With the renewals, and not only at the next ones.
    CHECK(watch.within(short_lease + late));
    std::error_code ec;
    mine->unlock(ec);
    CHECK(ec == errc::hold_lost);
    for (const std::size_t i : {0U, 2U, 3U}) theirs.locks[i].unlock();
    CHECK(fleet().becomes_free("deleted"));
}

TEST_CASE("deleted keys of a minority are taken again with the renewals, and the hold goes on") {
    Party mine{fleet().urls(), "again", quick_options(), red_options()};
    mine->lock();
    const std::stop_token lost = mine->lost();
    for (const std::size_t first : {0U, 2U, 3U}) {
        CHECK(eventually([&] { return fleet().holders("again") == 5; }, 20s));
        fleet().looks[first].integer("DEL", "again");
        fleet().looks[first + 1].integer("DEL", "again");
        CHECK(eventually([&] { return fleet().holders("again") == 5; }, 20s));
        // Each is a part of the hold again before the next ones go: otherwise these would be the majority.
        CHECK(eventually(
            [&] {
                return std::all_of(mine.locks.begin(), mine.locks.end(),
                                   [](auto& lock) { return lock.valid_until() > SteadyClock::now(); });
            },
            20s));
    }
    CHECK_FALSE(lost.stop_requested());
    CHECK(mine->hold_count() == 1);
    std::error_code ec;
    mine->unlock(ec);
    CHECK_FALSE(ec);
    CHECK(fleet().becomes_free("again"));
}
