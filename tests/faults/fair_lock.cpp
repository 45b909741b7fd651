// SPDX-License-Identifier: MIT
// A fair lock on a faulty connection: each request takes effect once, and a waiter has one place in the queue or none.
#include <doctest/doctest.h>
#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <system_error>
#include <vector>

#include "faults/fault_kit.hpp"
#include "integration/rlock_helpers.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;
using namespace redlatch::test;
using fault::paced;
using fault::quick;
using fault::unhurried;

namespace {

const std::string queue = "redisson_lock_queue:{orders}";
const std::string timeouts = "redisson_lock_timeout:{orders}";
const std::string slots = "redlatch_lock_slots:{orders}";
const std::string channels = "redisson_lock__channel:{orders}:";

const std::string acquire{digested<scripts::fair_acquire>.digest()};
const std::string release_digest{digested<scripts::fair_release>.digest()};
const std::string leave{digested<scripts::fair_leave>.digest()};
const std::string refresh{digested<scripts::fair_refresh>.digest()};

struct Line {
    Line() {
        for (const Script* script :
             {&digested<scripts::fair_acquire>, &digested<scripts::fair_release>, &digested<scripts::fair_leave>,
              &digested<scripts::fair_refresh>, &digested<scripts::rlock_renew>})
            redis.text("SCRIPT", "LOAD", script->text());
    }

    Words waiting() { return redis.list("LRANGE", queue, 0, -1); }
    bool are_waiting(std::size_t count) {
        return eventually([&] { return waiting().size() == count; }, 20s);
    }

    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
};

constexpr Then both[] = {Then::close, Then::silence};

// Queue places are refreshed at the usual pace, but a command has the time that a busy machine may need.
ClientOptions steady() {
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    return options;
}

}  // namespace

TEST_CASE("entering the queue with a lost reply or request: the waiter enters once") {
    for (const bool request : {false, true}) {
        for (const Then then : both) {
            CAPTURE(request);
            CAPTURE(static_cast<int>(then));
            Line line;
            Client holder{line.server.url(), unhurried()};
            FairLock held{holder, "orders"};
            held.lock();
            Client client{line.proxy.url(), steady()};
            FairLock orders{client, "orders"};
            if (request)
                line.proxy.drop_next_requests(1, acquire, then);
            else
                line.proxy.drop_next_replies(2, acquire, then);
            auto waiter = start([&] {
                orders.lock();
                const bool once = orders.hold_count() == 1;
                orders.unlock();
                return once;
            });
            REQUIRE(eventually([&] { return client.stats().waits == 1; }, 20s));
            CHECK(line.proxy.counts().matched == (request ? 1 : 2));
            CHECK(line.waiting().size() == 1);
            CHECK(line.redis.integer("ZCARD", timeouts) == 1);
            held.unlock();
            CHECK(waiter.get());
            CHECK(line.redis.keys().empty());
        }
    }
}

TEST_CASE("fair lock acquired with a lost reply: it is acquired once") {
    for (const Then then : both) {
        CAPTURE(static_cast<int>(then));
        Line line;
        ClientOptions options = steady();
        options.watchdog_timeout = 20s;
        Client client{line.proxy.url(), options};
        FairLock orders{client, "orders"};
        line.proxy.drop_next_replies(1, acquire, then);
        orders.lock();
        CHECK(line.redis.list("HVALS", "orders") == Words{"1"});
        line.proxy.drop_next_replies(1, acquire, then);
        orders.lock();
        CHECK(line.redis.list("HVALS", "orders") == Words{"2"});
        orders.unlock();
        line.proxy.drop_next_replies(1, release_digest, then);
        std::error_code ec;
        orders.unlock(ec);
        if (ec == errc::unreachable) ec.clear();  // no time for a second try in the foreground
        CHECK_FALSE(ec);
        CHECK(line.proxy.counts().matched == 3);
        CHECK(line.redis.keys("orders").empty());
        CHECK(orders.try_lock_for(10s));
        CHECK(line.redis.list("HVALS", "orders") == Words{"1"});
        orders.unlock();
    }
}

TEST_CASE("release with a lost reply: it serves the next waiter, and no other") {
    Line line;
    Client client{line.proxy.url(), unhurried()};
    FairLock orders{client, "orders"};
    orders.lock();
    Client other{line.server.url(), unhurried()};
    FairLock same_orders{other, "orders"};
    std::atomic<bool> let_go = false;
    auto next = start([&] {
        same_orders.lock();
        eventually([&] { return let_go.load(); }, 20s);
        const bool still_held = same_orders.is_held();
        same_orders.unlock();
        return still_held;
    });
    REQUIRE(line.are_waiting(1));
    line.proxy.drop_next_replies(1, release_digest);
    std::error_code ec;
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(eventually([&] { return other.stats().acquisitions == 1; }));
    let_go = true;
    CHECK(next.get());
    CHECK(line.redis.keys("orders").empty());
}

TEST_CASE("leaving the queue with a lost request or reply: the waiter leaves") {
    for (const bool request : {false, true}) {
        for (const Then then : both) {
            CAPTURE(request);
            CAPTURE(static_cast<int>(then));
            Line line;
            Client holder{line.server.url(), unhurried()};
            FairLock held{holder, "orders"};
            held.lock();
            Client client{line.proxy.url(), steady()};
            FairLock orders{client, "orders"};
            std::stop_source stop;
            auto waiter = start([&] { return orders.lock(stop.get_token()); });
            REQUIRE(line.are_waiting(1));
            if (request)
                line.proxy.drop_next_requests(1, leave, then);
            else
                line.proxy.drop_next_replies(1, leave, then);
            stop.request_stop();
            CHECK_FALSE(waiter.get());
            CHECK(eventually([&] { return line.proxy.counts().matched == 1; }, 20s));
            CHECK(eventually([&] { return line.redis.keys() == Words{"orders"}; }, 20s));
            CHECK(eventually([&] { return line.redis.pubsub_channels(channels + "*").empty(); }, 20s));
        }
    }
}

TEST_CASE("queue entry of unknown outcome at the waiter's deadline: neither place nor hold is left") {
    for (const bool is_held : {true, false}) {
        CAPTURE(is_held);
        Line line;
        // Long beyond the deadline, even if that is noticed late. Otherwise the server would count as unreachable.
        ClientOptions options = quick();
        options.command_timeout = paced(2s);
        Client holder{line.server.url(), unhurried()};
        FairLock held{holder, "orders"};
        if (is_held) held.lock();
        Client client{line.proxy.url(), options};
        FairLock orders{client, "orders"};
        line.proxy.drop_next_replies(100, acquire, Then::silence);
        CHECK_FALSE(elsewhere([&] { return orders.try_lock_for(100ms); }));
        line.proxy.clear_rules();
        CHECK(eventually(
            [&] {
                return line.waiting().empty() && !line.redis.exists(timeouts) && line.redis.exists("orders") == is_held;
            },
            20s));
    }
}

TEST_CASE("fault: lost refreshes in a wait longer than a slot: they are resent in time to keep the place") {
    Line line;
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    options.watchdog_timeout = paced(9s);
    Client holder{line.server.url(), options};
    FairLock held{holder, "orders"};
    held.lock();
    Client client{line.proxy.url(), options};
    FairLock orders{client, "orders"};
    auto first = start([&] {
        orders.lock();
        orders.unlock();
    });
    REQUIRE(line.are_waiting(1));
    const std::string owner = line.waiting().at(0);
    line.proxy.drop_next_requests(2, refresh);
    REQUIRE(eventually([&] { return line.proxy.counts().matched == 2; }, 20s));
    auto second = start([&] {
        orders.lock();
        orders.unlock();
    });
    REQUIRE(line.are_waiting(2));
    const auto slot = options.watchdog_timeout / 6;
    const Stopwatch watch;
    REQUIRE(eventually([&] { return watch.elapsed() > slot; }, 20s));
    CHECK(line.waiting().size() == 2);
    CHECK(line.waiting().at(0) == owner);
    held.unlock();
    first.get();
    second.get();
}

TEST_CASE("a lost message delays the waiter by less than a slot") {
    Line line;
    const ClientOptions options = unhurried(paced(24s));
    Client holder{line.server.url(), unhurried()};
    FairLock held{holder, "orders"};
    held.lock();
    Client client{line.proxy.url(), options};
    FairLock orders{client, "orders"};
    auto waiter = start([&] {
        orders.lock();
        orders.unlock();
    });
    REQUIRE(eventually([&] { return line.redis.pubsub_channels(channels + "*").size() == 1; }, 20s));
    line.redis.kill_clients("pubsub");
    const Stopwatch watch;
    held.unlock();
    waiter.get();
    CHECK(watch.within(options.watchdog_timeout / 6 + fault::late));
}
