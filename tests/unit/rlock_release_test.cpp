// SPDX-License-Identifier: MIT
// Giving an RLock back, and asking about it, with a server that answers late, wrongly, or not at all.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;

struct Bench {
    explicit Bench(ClientOptions options = {})
        : client(redis.transport(), heard(std::move(options))), lock(client, "orders") {}

    ClientOptions heard(ClientOptions options) {
        options.on_event = [this](const Event& event) {
            const std::lock_guard guard(mutex);
            events.push_back(event);
        };
        return options;
    }

    std::string owner(std::uint64_t number = 1) const { return client.id() + ":" + std::to_string(number); }

    bool wait_for_event(Event::Kind kind) {
        return eventually([&] {
            const std::lock_guard guard(mutex);
            return std::any_of(events.begin(), events.end(), [&](const Event& e) { return e.kind == kind; });
        });
    }

    std::mutex mutex;
    std::vector<Event> events;
    ScriptedRedis redis;
    Client<ScriptedTransport> client;
    RLock<ScriptedTransport> lock;
};

std::error_code unlock(Bench& bench) {
    std::error_code ec = errc::unsupported;
    bench.lock.unlock(ec);
    return ec;
}

ClientOptions impatient() { return {.command_timeout = 20ms, .unreachable_timeout = 60ms}; }

}  // namespace

// A latch outlives the lock object whose release left it. An object made anew under the same name counted its requests
// from one again, found the latch, and was told that its lock was given back while the server kept it.
TEST_CASE("a latch that a resent release left is not taken for that of a lock object made later") {
    ScriptedRedis redis;
    Client<ScriptedTransport> client(redis.transport());
    for (int i = 0; i < 2; ++i) {
        RLock<ScriptedTransport> lock(client, "orders");
        lock.lock();
        redis.next("release", lost());
        lock.unlock();
    }
    const auto sent = redis.sent("release");
    REQUIRE(sent.size() == 4);
    CHECK(sent[1].key(2) == sent[0].key(2));
    CHECK(sent[1].argument(3) == "20000");
    CHECK(sent[2].key(2) != sent[0].key(2));
}

TEST_CASE("giving back is one command with the lock, its channel, and a latch of its own") {
    Bench bench;
    for (int i = 0; i < 2; ++i) {
        bench.lock.lock();
        CHECK_FALSE(unlock(bench));
    }
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].words.size() == 11);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].key(2).starts_with("redisson_unlock_latch:{orders}:"));
    CHECK(sent[0].key(2) != sent[1].key(2));
    CHECK(sent[0].argument(0) == bench.owner());
    CHECK(sent[0].argument(1) == "0");
    CHECK(sent[0].argument(3) == "0");
    CHECK(sent[0].argument(4) == "PUBLISH");
    CHECK(bench.redis.count("renew") == 0);
}

TEST_CASE("a release whose reply is lost is sent again with the same latch, which then is set") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", lost());
    bench.redis.next("release", lost());
    CHECK_FALSE(unlock(bench));
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].argument(3) == "0");
    CHECK(sent[1].argument(3) == "20000");
    CHECK(sent[2].words == sent[1].words);
    CHECK(sent[0].key(2) == sent[1].key(2));
}

TEST_CASE("a second sending that finds no hold means that the first was done") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", lost());
    bench.redis.next("release", nil());
    CHECK_FALSE(unlock(bench));
    CHECK(bench.client.stats().lost_holds == 0);
}

TEST_CASE("a hold that the server does not know any more is told to be lost, but a guard ends in peace") {
    Bench bench;
    bench.redis.always("release", nil());
    bench.lock.lock();
    CHECK(unlock(bench) == errc::hold_lost);
    { const std::lock_guard guard(bench.lock); }
    CHECK(bench.client.stats().lost_holds == 2);
    REQUIRE(bench.wait_for_event(Event::Kind::hold_lost));
    const std::lock_guard guard(bench.mutex);
    CHECK(bench.events[0].name == "orders");
}

TEST_CASE("who never took the lock cannot give it back") {
    Bench bench;
    CHECK_THROWS_AS(bench.lock.unlock(), Error);
    CHECK(unlock(bench) == errc::not_owner);
    bench.lock.lock();
    std::thread([&] {
        CHECK(unlock(bench) == errc::not_owner);
        CHECK_THROWS_AS(bench.lock.unlock(), Error);
    }).join();
    CHECK(bench.redis.count("release") == 0);
    CHECK_FALSE(unlock(bench));
    CHECK(unlock(bench) == errc::not_owner);
    CHECK(bench.redis.count("release") == 1);
}

TEST_CASE("a release that is not answered goes on in the background, and the caller goes on, too") {
    Bench bench(impatient());
    bench.lock.lock();
    bench.redis.always("release", ScriptedRedis::hold_back);
    const Stopwatch watch;
    CHECK(unlock(bench) == errc::unreachable);
    CHECK(watch.elapsed() < 10s);
    CHECK(bench.lock.valid_until() == Instant::min());
    REQUIRE(bench.redis.wait_for("release", 2));
    const auto sent = bench.redis.sent("release");
    const SentCommand& posted = sent.back();
    CHECK(posted.posted);
    CHECK(posted.argument(0) == bench.owner());
    CHECK(posted.argument(1) == "0");
    CHECK(posted.argument(3) != "0");
    CHECK(posted.key(2) == sent[0].key(2));

    // A copy of it that comes late would end this thread's next hold: so there is none before it is answered.
    CHECK_FALSE(bench.lock.try_lock());
    bench.redis.answer(posted, number(0));
    CHECK(bench.lock.try_lock_for(5s));
    bench.redis.always("release", number(0));
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("a release that could not be delivered before its lease was over is told") {
    Bench bench({.command_timeout = 5ms});
    bench.lock.lock(Lease(1500ms));
    bench.redis.always("release", lost());
    CHECK(unlock(bench) == errc::unreachable);
    REQUIRE(bench.wait_for_event(Event::Kind::unlock_not_delivered));
    bench.redis.always("release", number(0));
    // A copy of it may be on its way, so it is to be answered first.
    CHECK(bench.lock.try_lock_for(10s));
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("a troubled server gets the release when its trouble is over") {
    for (const char* trouble :
         {"MISCONF Redis is configured to save RDB snapshots", "NOREPLICAS Not enough good replicas to write.",
          "BUSY Redis is busy running a script.", "LOADING Redis is loading the dataset in memory"}) {
        Bench bench;
        bench.lock.lock();
        bench.redis.next("release", error(trouble));
        bench.redis.next("release", error(trouble));
        CHECK_FALSE(unlock(bench));
        const auto sent = bench.redis.sent("release");
        REQUIRE(sent.size() == 3);
        // It was refused, so it had no effect: no mark is needed.
        CHECK(sent[2].argument(3) == "0");
    }
}

TEST_CASE("a release that is denied is told at once, and delivered when the server lets us again") {
    Bench bench;
    bench.lock.lock();
    bench.redis.always("release", error("WRONGPASS invalid username-password pair or user is disabled."));
    CHECK(unlock(bench) == errc::rejected);
    REQUIRE(bench.redis.wait_for("release", 3));
    // Nor does the next acquire of this thread wait for it.
    std::error_code ec;
    bench.lock.lock(ec);
    CHECK(ec == errc::rejected);
    bench.lock.try_lock(ec);
    CHECK(ec == errc::rejected);
    CHECK(bench.redis.count("acquire") == 1);
    bench.redis.always("release", number(1));
    CHECK(eventually([&] { return bench.lock.try_lock(ec); }));
    CHECK(bench.client.stats().lost_holds == 0);
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("an answer of a wrong shape to a release is told by code only, and the release is sent again") {
    for (const Reply& reply : {text("OK"), number(-2), array({}), array({number(0)}), malformed()}) {
        Bench bench;
        bench.lock.lock();
        bench.redis.next("release", reply);
        CHECK(unlock(bench) == errc::protocol_error);
        CHECK(bench.lock.valid_until() == Instant::min());
        REQUIRE(bench.redis.wait_for("release", 2));
        const auto sent = bench.redis.sent("release");
        CHECK(sent[1].argument(0) == bench.owner());
        CHECK(sent[1].argument(1) == "0");

        CHECK(bench.lock.try_lock_for(5s));
        bench.redis.next("release", reply);
        CHECK_NOTHROW(bench.lock.unlock());
    }
}

TEST_CASE("a release that is refused for good is a lost hold, and the server's words are made fit for a log") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", error("WRONGTYPE \x1b[31m\r\n" + std::string(100'000, 'x')));
    CHECK(unlock(bench) == errc::wrong_type);
    REQUIRE(bench.wait_for_event(Event::Kind::hold_lost));
    CHECK(bench.redis.count("release") == 1);
    const std::lock_guard guard(bench.mutex);
    CHECK(bench.events[0].detail.find("WRONGTYPE") != std::string::npos);
    CHECK(bench.events[0].detail.find('\x1b') == std::string::npos);
    CHECK(bench.events[0].detail.find('\n') == std::string::npos);
    CHECK(bench.events[0].detail.size() < 1000);
}

TEST_CASE("giving back one level of several says how many remain") {
    Bench bench;
    bench.lock.lock();
    bench.lock.lock();
    CHECK_FALSE(unlock(bench));
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].argument(1) == "1");
    CHECK(sent[0].argument(2) == "30000");
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("one level less renews a hold only as far as the watchdog does, and a lease not at all") {
    Bench bench;
    bench.lock.lock(Lease(10s));
    bench.lock.lock(Lease(20s));
    const Instant valid = bench.lock.valid_until();
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("release").at(0).argument(2) == "0");
    CHECK(bench.lock.valid_until() == valid);
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("a level whose release is not answered is put right by the next command of that hold") {
    Bench bench(impatient());
    bench.lock.lock();
    bench.lock.lock();
    bench.redis.always("release", lost());
    CHECK(unlock(bench) == errc::unreachable);
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.redis.always("release", number(0));
    bench.lock.lock();
    CHECK(bench.redis.sent("acquire").back().argument(1) == "2");
    bench.redis.next("release", number(-1));
    CHECK_FALSE(unlock(bench));
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("release").back().argument(1) == "0");
    CHECK(unlock(bench) == errc::not_owner);
}

TEST_CASE("a level of a hold that the server does not know any more is lost, with those below it") {
    for (const Reply& reply : {nil(), number(0), number(3)}) {
        Bench bench;
        bench.lock.lock();
        bench.lock.lock();
        const std::stop_token lost_token = bench.lock.lost();
        bench.redis.next("release", reply);
        CHECK(unlock(bench) == errc::hold_lost);
        CHECK(bench.lock.valid_until() == Instant::min());
        CHECK(eventually([&] { return lost_token.stop_requested(); }));
        CHECK(bench.wait_for_event(Event::Kind::hold_lost));
        CHECK(unlock(bench) == errc::hold_lost);
        CHECK(unlock(bench) == errc::not_owner);
        CHECK(bench.redis.count("release") == 1);
    }
}

TEST_CASE("an answer of a wrong shape for a level is told by code only, and the hold goes on") {
    Bench bench;
    bench.lock.lock();
    bench.lock.lock();
    bench.redis.next("release", text("OK"));
    CHECK(unlock(bench) == errc::protocol_error);
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.lock.lock();
    bench.redis.next("release", array({}));
    CHECK_NOTHROW(bench.lock.unlock());
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("release").back().argument(1) == "0");
}

TEST_CASE("an unlock after the lease is over is told, and clears away what may be left on the server") {
    Bench bench;
    bench.lock.lock(Lease(20ms));
    const std::stop_token lost_token = bench.lock.lost();
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(bench.lock.valid_until() == Instant::min());
    CHECK(unlock(bench) == errc::hold_lost);
    CHECK(bench.wait_for_event(Event::Kind::hold_lost));
    CHECK(unlock(bench) == errc::not_owner);
    CHECK(bench.client.stats().lost_holds == 1);
}

TEST_CASE("ending by force tells whether there was a hold, and ends those of this process") {
    Bench bench;
    bench.lock.lock();
    const std::stop_token lost_token = bench.lock.lost();
    CHECK(bench.lock.force_unlock());
    const auto sent = bench.redis.sent("force release");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].argument(0) == "PUBLISH");
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(unlock(bench) == errc::hold_lost);

    bench.redis.next("force release", number(0));
    CHECK_FALSE(bench.lock.force_unlock());
}

TEST_CASE("ending by force does not touch a hold that is taken while the answer is on its way") {
    Bench bench;
    bench.redis.next("force release", [&](const SentCommand&) {
        bench.lock.lock();
        return std::optional(number(1));
    });
    CHECK(bench.lock.force_unlock());
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK(bench.client.stats().lost_holds == 0);
}

TEST_CASE("ending by force reports what goes wrong, and leaves holds alone then") {
    Bench bench(impatient());
    bench.lock.lock();
    std::error_code ec;
    bench.redis.next("force release", error("NOPERM x"));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::rejected);
    bench.redis.next("force release", text("OK"));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::protocol_error);
    bench.redis.always("force release", lost());
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::unreachable);
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("whether anybody holds the lock is the server's word") {
    Bench bench;
    bench.redis.next("HLEN", number(1));
    CHECK(bench.lock.is_locked());
    CHECK_FALSE(bench.lock.is_locked());
    CHECK(bench.redis.sent("HLEN").at(0).words == std::vector<std::string>{"HLEN", "orders"});
    bench.redis.next("HLEN", lost());
    bench.redis.next("HLEN", error("LOADING Redis is loading the dataset in memory"));
    bench.redis.next("HLEN", number(1));
    CHECK(bench.lock.is_locked());
}

TEST_CASE("how often this thread holds the lock is the server's word, too") {
    Bench bench;
    bench.redis.next("HGET", text("3"));
    CHECK(bench.lock.hold_count() == 3);
    CHECK(bench.lock.hold_count() == 0);
    CHECK_FALSE(bench.lock.is_held());
    bench.redis.next("HGET", text("1"));
    CHECK(bench.lock.is_held());
    CHECK(bench.redis.sent("HGET").at(0).words == std::vector<std::string>{"HGET", "orders", bench.owner()});
}

TEST_CASE("what the holder's lease has left is one question") {
    Bench bench;
    CHECK(bench.lock.remaining_lease() == std::nullopt);
    bench.redis.next("remaining lease", number(1234));
    CHECK(bench.lock.remaining_lease() == 1234ms);
    bench.redis.next("remaining lease", number(0));
    CHECK(bench.lock.remaining_lease() == 0ms);
    bench.redis.next("remaining lease", number(-1));
    CHECK(bench.lock.remaining_lease() == Milliseconds::max());
    bench.redis.next("remaining lease", number(-2));
    CHECK(bench.lock.remaining_lease() == std::nullopt);
    CHECK(bench.redis.history() == Sorts(5, "remaining lease"));
}

TEST_CASE("a question that is answered with nonsense is an error, not an answer") {
    const auto code_of = [](auto&& call) {
        try {
            static_cast<void>(call());
            return std::error_code();
        } catch (const Error& e) {
            CHECK(e.name() == "orders");
            return e.code();
        }
    };
    for (const Reply& reply : {nil(), text("1"), array({number(1)}), number(-1), malformed()}) {
        CAPTURE(static_cast<int>(reply.kind));
        Bench bench;
        bench.redis.next("HLEN", reply);
        CHECK(code_of([&] { return bench.lock.is_locked(); }) == errc::protocol_error);
    }
    for (const Reply& reply :
         {number(1), text("abc"), text(""), text("1x"), text("99999999999"), text("-1"), array({}), malformed()}) {
        CAPTURE(reply.text);
        Bench bench;
        bench.redis.next("HGET", reply);
        CHECK(code_of([&] { return bench.lock.hold_count(); }) == errc::protocol_error);
    }
    for (const Reply& reply : {nil(), text("5"), number(-3), array({}), malformed()}) {
        CAPTURE(static_cast<int>(reply.kind));
        Bench bench;
        bench.redis.next("remaining lease", reply);
        CHECK(code_of([&] { return bench.lock.remaining_lease(); }) == errc::protocol_error);
    }
    Bench bench;
    for (const char* sort : {"HLEN", "HGET"}) bench.redis.next(sort, error("WRONGTYPE x"));
    std::error_code ec;
    CHECK_FALSE(bench.lock.is_locked(ec));
    CHECK(ec == errc::wrong_type);
    CHECK(bench.lock.hold_count(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(bench.lock.is_held(ec));
    CHECK_FALSE(ec);
}
