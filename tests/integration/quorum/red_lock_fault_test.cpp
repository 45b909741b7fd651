// SPDX-License-Identifier: MIT
// ctest: long timeout=300 without=address,thread
// RedLock with dead, frozen, slow or disconnected servers. A minority of them costs a moment only, a majority costs the
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
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Event;
using redlatch::RedLock;
using redlatch::RedLockOptions;
using redlatch::RLock;

namespace {

/// Long enough that a thread without CPU time for a second or two does not lose the lock.
constexpr auto lease = patient(3000ms);

/// Shared by the tests that leave it unchanged.
Fleet& fleet() {
    static Fleet five{5, lease};
    return five;
}

constexpr auto node_timeout = patient(1000ms);

/// The delay by a busy machine: in the best of some tries, and of a step that cannot be repeated.
constexpr auto late = patient(600ms);
constexpr auto very_late = patient(4000ms);

ClientOptions options() { return quick_options(lease); }

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

RedLockOptions red_options() { return {.node_timeout = node_timeout, .longest_lease = lease}; }

}  // namespace

TEST_CASE("two bad servers of five: no error, one node_timeout at most, and nothing is left") {
    for (const Trouble& trouble : troubles()) {
        CAPTURE(trouble.name);
        const std::string name = std::string{"minority "} + trouble.name;
        Party known{fleet().proxied(), name, options(), red_options()};
        known->lock();
        known->unlock();
        Party fresh{fleet().proxied(), name, options(),
                    red_options()};  // its servers are bad from the first connection on
        trouble.begin(1);
        trouble.begin(4);
        for (Party<>* mine : {&known, &fresh}) {
            RedLock& lock = **mine;
            std::chrono::milliseconds taking = 1h, giving = 1h;
            for (int i = 0; i < 3; ++i) {
                taking = std::min(taking, time_of([&] { CHECK_NOTHROW(lock.lock()); }));
                CHECK(lock.is_held());
                CHECK(fleet().looks[0].exists(name));
                CHECK_FALSE(elsewhere([&] { return lock.try_lock(); }));
                std::error_code ec;
                giving = std::min(giving, time_of([&] { lock.unlock(ec); }));
                CHECK_FALSE(ec);
                for (const std::size_t sound : {0U, 2U, 3U})
                    CHECK(eventually([&] { return !fleet().looks[sound].exists(name); }));
            }
            CHECK(taking < node_timeout + late);
            CHECK(giving < node_timeout + late);
            int levels = 0;
            CHECK(takes_less_than(node_timeout + late, [&] { levels += lock.try_lock(); }));
            CHECK(levels > 0);
            for (; levels > 0; --levels) lock.unlock();
        }
        trouble.end(1);
        trouble.end(4);
        CHECK(fleet().becomes_free(name));
    }
}

TEST_CASE("two servers of five that never existed: no error, and the watchdog keeps the hold") {
    Urls urls = fleet().urls();
    urls[0] = "unix:///nowhere/to/be/found";
    urls[2] = "redis://127.0.0.1:1";
    Party mine{urls, "absent", options(), red_options()};
    for (int i = 0; i < 3; ++i)
        CHECK(takes_less_than(2 * (node_timeout + late), [&] {
            CHECK(mine->try_lock());
            mine->unlock();
        }));
    mine->lock();
    const auto until = mine->valid_until();
    CHECK(eventually([&] { return mine->valid_until() > until + lease; }, 20s));
    CHECK_FALSE(mine->lost().stop_requested());
    mine->unlock();
    CHECK(fleet().becomes_free("absent"));
}

TEST_CASE("three bad servers of five: unreachable in time, and nothing is left on the others") {
    for (const Trouble& trouble : troubles()) {
        CAPTURE(trouble.name);
        if (trouble.name == std::string{"slow"}) continue;  // they are only slow
        const std::string name = std::string{"majority "} + trouble.name;
        const ClientOptions quick = options();
        Party mine{fleet().proxied(), name, quick, red_options()};
        mine->lock();
        mine->unlock();
        for (const std::size_t i : {0U, 1U, 4U}) trouble.begin(i);
        CHECK(takes_less_than(quick.command_timeout + late, [&] {
            CHECK(code_of([&] { static_cast<void>(mine->try_lock()); }) == errc::unreachable);
        }));
        CHECK(takes_less_than(quick.unreachable_timeout + late, [&] {
            const auto waiting = time_of([&] { CHECK(code_of([&] { mine->lock(); }) == errc::unreachable); });
            CHECK(waiting >= quick.unreachable_timeout - 10ms);
        }));
        const std::string text = text_of_error([&] { static_cast<void>(mine->try_lock()); });
        CHECK(text.find(name + ": ") == 0);
        CHECK(takes_less_than(50ms + late, [&] {
            std::error_code ec;
            CHECK_FALSE(mine->try_lock_for(50ms, ec));
        }));
        CHECK(code_of([&] { static_cast<void>(mine->is_locked()); }) == errc::unreachable);
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
    Party mine{fleet().proxied(), "lost replies", options(), red_options()};
    mine->lock();
    mine->unlock();
    std::uint64_t dropped = 0;
    for (const std::size_t faulty : {1U, 3U, 5U}) {
        for (const std::string& digest : {acquire_digest, release_digest}) {
            for (std::size_t i = 0; i < faulty; ++i) fleet().proxies[i].drop_next_replies(1, digest);
            mine->lock();
            // The possible hold of a try with a lost reply is released in the background: one hold remains, or none.
            for (std::size_t i = 0; i < 5; ++i)
                CHECK(eventually([&] {
                    const Fields held = fleet().looks[i].hgetall("lost replies");
                    return held.empty() || held == Fields{{owner_of(mine.clients[i], mine.locks[i]), "1"}};
                }));
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

// A server that granted its part after the end of the round must not keep it.
TEST_CASE("a part that arrives too late for its round is released, or joins the hold") {
    ClientOptions patient_options = options();
    patient_options.command_timeout = 30s;  // a reply that is held back is late, and its connection stays alive
    Party mine{fleet().proxied(), "late", patient_options, red_options()};
    Party theirs{fleet().urls(), "late", options(), red_options()};
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
    CHECK(eventually([&] { return fleet().looks[0].exists("late"); }));
    fleet().proxies[0].release();
    CHECK(eventually([&] { return !fleet().looks[0].exists("late"); }, 20s));
    for (const std::size_t i : {1U, 2U, 3U}) theirs.locks[i].unlock();
    CHECK(fleet().becomes_free("late"));
}

// Two servers fail at once, and one of the others reports that the lock is held. That is no error.
TEST_CASE("a held lock means false, not unreachable, even if a minority is unreachable") {
    Party theirs{fleet().urls(), "held", options(), red_options()};
    Urls urls = fleet().urls();
    urls[0] = urls[1] = "unix:///nowhere/to/be/found";
    Party mine{urls, "held", options(), red_options()};
    theirs->lock();
    for (int i = 0; i < 3; ++i) {
        std::error_code ec;
        CHECK_FALSE(mine->try_lock(ec));
        CHECK_FALSE(ec);
    }
    std::error_code ec;
    CHECK_FALSE(mine->try_lock_for(options().command_timeout * 2, ec));
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

// Of three servers one is frozen, and another owner has the lock of the second: without the frozen one the third is not
// enough. Each time that a caller awaits the frozen server it keeps the third from all others for a node_timeout.
TEST_CASE("a frozen server delays one round, not one in each command_timeout") {
    Fleet own{3, lease};
    Party mine{own.proxied(), "contended", options(), red_options()};
    mine->lock();
    mine->unlock();
    Client other{own.servers[1].url()};
    RLock theirs{other, "contended"};
    theirs.lock();
    own.servers[0].stop();
    int tries = 0;
    int long_tries = 0;
    for (const Stopwatch watch; watch.elapsed_ms() < options().command_timeout * 4; ++tries) {
        std::error_code ec;
        long_tries += time_of([&] { CHECK_FALSE(mine->try_lock(ec)); }) >= node_timeout;
        CHECK_FALSE(ec);
    }
    CAPTURE(tries);
    CHECK(long_tries >= 1);
    CHECK(long_tries <= 2);  // a busy machine may delay one more
    // Once the server replies again, it is awaited again, though it replies last.
    own.proxies[0].delay(20ms, 20ms);
    own.servers[0].cont();
    CHECK(eventually([&] { return mine->try_lock(); }));
    mine->unlock();
    theirs.unlock();
    CHECK(own.becomes_free("contended"));
}

TEST_CASE("unlock() succeeds if enough servers of the hold are reached, even after a majority has died") {
    Fleet own{5, lease};
    Party mine{own.urls(), "orders", options(), red_options()};
    {
        const std::lock_guard guard{*mine};
        for (const std::size_t i : {0U, 1U}) own.servers[i].kill();
    }
    for (const std::size_t i : {2U, 3U, 4U}) CHECK(eventually([&] { return !own.looks[i].exists("orders"); }));
    std::error_code ec;
    mine->lock();
    mine->unlock(ec);
    CHECK_FALSE(ec);
    // One more server: of the three with the hold only one cannot be reached, so the hold has no majority any more.
    mine->lock();
    own.servers[3].kill();
    mine->unlock(ec);
    CHECK_FALSE(ec);
    for (const std::size_t i : {2U, 4U}) CHECK(eventually([&] { return !own.looks[i].exists("orders"); }));
}

TEST_CASE("unlock() reports unreachable if it cannot release a majority") {
    Party mine{fleet().proxied(), "untold", options(), red_options()};
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
    CHECK(took < node_timeout + very_late);
    for (const std::size_t i : {1U, 4U}) CHECK(eventually([&] { return !fleet().looks[i].exists("untold"); }));
    for (const std::size_t i : {0U, 2U, 3U}) fleet().servers[i].cont();
    CHECK(fleet().becomes_free("untold"));
}

TEST_CASE("after the loss of a majority to killed servers the hold is reported lost in time") {
    Fleet own{5, lease};
    EventLog events;
    ClientOptions logged = options();
    logged.on_event = events.handler();
    Party mine{own.urls(), "orders", logged, red_options()};
    mine->lock();
    CHECK(eventually([&] { return own.holders("orders") == 5; }));
    const std::stop_token lost = mine->lost();
    own.servers[0].kill();
    own.servers[4].kill();
    const auto until = mine->valid_until();
    CHECK(eventually([&] { return mine->valid_until() > until + lease; }, 20s));
    CHECK_FALSE(lost.stop_requested());
    own.servers[2].kill();
    const auto end = mine->valid_until();
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(SteadyClock::now() < end + very_late);
    CHECK(mine->valid_until() == SteadyClock::time_point::min());
    CHECK(eventually([&] { return events.count(Event::Kind::hold_lost) > 0; }));
    std::error_code ec;
    mine->unlock(ec);
    CHECK(ec == errc::hold_lost);
    for (const std::size_t i : {1U, 3U}) CHECK(eventually([&] { return !own.looks[i].exists("orders"); }, 20s));
}

TEST_CASE("after the loss of a majority to other owners the hold is reported lost in time") {
    Party mine{fleet().urls(), "deleted", options(), red_options()};
    mine->lock();
    CHECK(eventually([&] { return fleet().holders("deleted") == 5; }));
    const std::stop_token lost = mine->lost();
    const Stopwatch watch;
    // In one step, because a key that is merely deleted would be acquired again at the next renewals.
    for (const std::size_t i : {0U, 2U, 3U})
        fleet().looks[i].integer("EVAL",
                                 "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], 'somebody:1', 1) "
                                 "return redis.call('pexpire', KEYS[1], 60000)",
                                 1, "deleted");
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    // At the next renewals.
    CHECK(watch.within(lease / 3 + very_late));
    std::error_code ec;
    mine->unlock(ec);
    CHECK(ec == errc::hold_lost);
    for (const std::size_t i : {0U, 2U, 3U}) fleet().looks[i].integer("DEL", "deleted");
    CHECK(fleet().becomes_free("deleted"));
}

TEST_CASE("deleted keys of a minority are acquired again at the renewals, and the hold continues") {
    Party mine{fleet().urls(), "again", options(), red_options()};
    mine->lock();
    const std::stop_token lost = mine->lost();
    for (const std::size_t first : {0U, 2U, 3U}) {
        CHECK(eventually([&] { return fleet().holders("again") == 5; }, 20s));
        fleet().looks[first].integer("DEL", "again");
        fleet().looks[first + 1].integer("DEL", "again");
        CHECK(eventually([&] { return fleet().holders("again") == 5; }, 20s));
        // Each is a part of the hold again before the next ones are deleted. Otherwise those would be a majority.
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
