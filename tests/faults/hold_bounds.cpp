// SPDX-License-Identifier: MIT
// ctest: long
// A minimum hold when a reply or a request is lost, when the server is away, and when a renewal comes late.
#include "faults/fault_kit.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr auto least = paced(5000ms);

const std::string stay_digest{digested<scripts::queue_stay>.digest()};

// A server, and a lock whose early release can be disturbed.
struct Path : FaultyPath {
    Path() { redis.text("SCRIPT", "LOAD", digested<scripts::queue_stay>.text()); }

    // Returns true if the lock stays taken for the rest of the minimum hold, and no longer.
    bool stays() {
        return eventually([&] {
            const long long left = redis.pttl("orders");
            return left > 0 && left <= (least + late).count();
        });
    }
    bool is_gone() {
        return eventually([&] { return !redis.exists("orders"); }, 30s);
    }
};

}  // namespace

TEST_CASE("fault: the reply or the request of an early release is lost: it takes effect once, and unlock() succeeds") {
    for (const bool reply : {true, false}) {
        for (const Then then : {Then::close, Then::silence}) {
            CAPTURE(reply);
            CAPTURE(then == Then::close);
            Path path;
            ClientOptions options = unhurried();
            if (then == Then::silence) options.command_timeout = paced(1000ms);
            Client client{path.url(), options};
            RLock orders{client, "orders"};
            const long long begun = path.redis.now();
            orders.lock(Lease::at_least(least));
            if (reply)
                path.proxy.drop_next_replies(1, stay_digest, then);
            else
                path.proxy.drop_next_requests(1, stay_digest, then);
            std::error_code ec;
            orders.unlock(ec);
            if (then == Then::close) CHECK_FALSE(ec);
            CHECK(path.proxy.counts().dropped == 1);
            CHECK(path.stays());
            CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
            CHECK(path.is_gone());
            CHECK(path.redis.now() - begun >= least.count());
            CHECK(client.stats().lost_holds == 0);
        }
    }
}

TEST_CASE("fault: the server is away at an early release: the background shortens the lease when it is back") {
    Path path;
    EventLog events;
    ClientOptions options = unhurried();
    options.command_timeout = command_timeout;
    Client client{path.url(), events.in(options)};
    RLock orders{client, "orders"};
    const long long begun = path.redis.now();
    orders.lock(Lease::at_least(least));
    path.proxy.refuse(true);
    path.proxy.kill_all();
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::unreachable);
    CHECK(path.redis.pttl("orders") > (least + late).count());
    path.proxy.refuse(false);
    CHECK(path.stays());
    CHECK(path.is_gone());
    CHECK(path.redis.now() - begun >= least.count());
    CHECK(events.count(Event::Kind::hold_lost) == 0);
    CHECK(events.count(Event::Kind::unlock_not_delivered) == 0);
}

TEST_CASE("fault: the server is away until the minimum is over: the background frees the lock when it is back") {
    Path path;
    ClientOptions options = unhurried();
    options.command_timeout = command_timeout;
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    const long long begun = path.redis.now();
    orders.lock(Lease::at_least(paced(1500ms)));
    path.proxy.refuse(true);
    path.proxy.kill_all();
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::unreachable);
    REQUIRE(eventually([&] { return path.redis.now() - begun > 2 * paced(1500ms).count(); }, 20s));
    CHECK(path.redis.exists("orders"));  // its lease was 30 s
    path.proxy.refuse(false);
    CHECK(path.is_gone());
    CHECK(path.redis.now() - begun < 30'000);
}

// The hold is gone by its number, though the key is still there. Otherwise a renewal on the way would give the key a
// whole lease again, and nobody would release it.
TEST_CASE("fault: a renewal, or a copy of the acquire, comes after an early release: the lock stays no longer") {
    Path path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    orders.lock(Lease::at_least(least));
    const std::string owner = path.redis.list("HKEYS", "orders").at(0);
    orders.unlock();
    CHECK(path.stays());
    const RawReply renewed = path.redis.call("EVALSHA", renew_digest, 1, "orders", 60'000, 9'000'000'000'000, owner);
    REQUIRE(renewed.elements.size() == 1);
    CHECK(renewed.elements[0].integer == 0);
    CHECK(path.redis.integer("EVALSHA", acquire_digest, 4, "orders", "c", "q", "p", owner, 1, 60'000, 9'000'000'000'000,
                             "PUBLISH", 0) > 0);
    CHECK(path.redis.call("EVALSHA", release_digest, 4, "orders", "c", "q", "p", owner, 0, 0, "PUBLISH").is_nil());
    // A late copy of the early release itself.
    CHECK(path.redis.integer("EVALSHA", stay_digest, 4, "orders", "c", "q", "p", owner, "other:1", 60'000, "PUBLISH") <
          0);
    CHECK(path.stays());
    CHECK(path.is_gone());
}

TEST_CASE("fault: an early release that the server gets late prolongs nothing") {
    Path path;
    path.redis.text("SET", "x", "y");
    path.redis.integer("HSET", "orders", "a:1", 1);
    path.redis.integer("PEXPIRE", "orders", 800);
    CHECK(path.redis.integer("EVALSHA", stay_digest, 2, "orders", "c", "a:1", "a:2", 60'000, "PUBLISH") > 0);
    CHECK(path.redis.pttl("orders") <= 800);
    CHECK(path.redis.list("HKEYS", "orders") == std::vector<std::string>{"a:2"});
}

TEST_CASE("fault: a limited hold ends in time though the server is away, and its process is told before") {
    Path path;
    EventLog events;
    ClientOptions options = unhurried(paced(1000ms));
    options.command_timeout = command_timeout;
    Client client{path.url(), events.in(options)};
    RLock orders{client, "orders"};
    const long long begun = path.redis.now();
    orders.lock(Lease::at_most(paced(2000ms)));
    const Instant end = Clock::now() + paced(2000ms);
    const std::stop_token lost = orders.lost();
    path.proxy.refuse(true);
    path.proxy.kill_all();
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(Clock::now() <= end + late);
    CHECK(path.is_gone());
    CHECK(path.redis.now() - begun <= (paced(2000ms) + late).count());
    CHECK(events.count(Event::Kind::hold_lost) == 1);
}
