// SPDX-License-Identifier: MIT
// Giving an RLock back, and asking about it, with a server that answers late, wrongly, or not at all.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/start.hpp"
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

// A second copy of a release may arrive at any time, also when the same thread holds the lock again, by whatever object.
TEST_CASE("a late release finds no later hold: each has a number of its own, whatever object it was taken by") {
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
    CHECK(sent[0].argument(0) == client.id() + ":1");
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].argument(0) == client.id() + ":2");
    CHECK(sent[3].words == sent[2].words);
}

TEST_CASE("giving back is one command with the lock, its channel, and the number of the hold") {
    Bench bench;
    for (int i = 0; i < 2; ++i) {
        bench.lock.lock();
        CHECK_FALSE(unlock(bench));
    }
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].words.size() == 9);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].argument(0) == bench.owner(1));
    CHECK(sent[1].argument(0) == bench.owner(2));
    CHECK(sent[0].argument(1) == "0");
    CHECK(sent[0].argument(3) == "PUBLISH");
    CHECK(bench.redis.count("renew") == 0);
    CHECK(bench.redis.count("give up") == 0);
}

TEST_CASE("a release whose reply is lost is sent again, with the same words") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", lost());
    bench.redis.next("release", lost());
    CHECK_FALSE(unlock(bench));
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 3);
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].words == sent[0].words);
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
    REQUIRE(bench.redis.wait_for("give up"));
    const SentCommand posted = bench.redis.sent("give up").at(0);
    CHECK(posted.posted);
    CHECK(posted.argument(2) == bench.owner(1));

    // No copy of it can end this thread's next hold, which has another number: so nothing waits for the answer.
    CHECK(bench.lock.try_lock());
    CHECK(bench.redis.sent("acquire").back().argument(0) == bench.owner(2));
    bench.redis.answer(posted, number(ScriptedRedis::server_now()));
    REQUIRE(bench.redis.publish("until the background has seen the answer"));
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.redis.always("release", number(0));
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.count("give up") == 1);
}

TEST_CASE("a release that could not be delivered before its lease was over is told, and dropped") {
    Bench bench({.command_timeout = 5ms});
    bench.lock.lock(Lease(1500ms));
    bench.redis.always("release", lost());
    bench.redis.always("give up", lost());
    CHECK(unlock(bench) == errc::unreachable);
    CHECK(bench.lock.try_lock());
    REQUIRE(bench.wait_for_event(Event::Kind::unlock_not_delivered));
    const std::size_t given_up = bench.redis.count("give up");
    CHECK(given_up >= 1);
    for (const SentCommand& one : bench.redis.sent("give up")) CHECK(one.argument(2) == bench.owner(1));
    CHECK_FALSE(eventually([&] { return bench.redis.count("give up") > given_up; }, 100ms));
    bench.redis.always("release", number(0));
    CHECK_FALSE(unlock(bench));
    CHECK(bench.client.stats().lost_holds == 0);
}

// It was taken for a release that is still on its way: nobody of this process asked for the lock ever again.
TEST_CASE("an unlock that finds no memory is told by code, and the lock is taken again") {
    struct NoMemory : std::exception {};
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", error("BUSY Redis is busy running a script."));
    // Not std::bad_alloc, of which a command makes one that was not sent: this is what a pause could throw.
    bench.redis.next("release", [](const SentCommand&) -> std::optional<Reply> { throw NoMemory(); });
    CHECK(unlock(bench) == errc::unreachable);
    REQUIRE(bench.redis.wait_for("give up"));
    CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner(1));
    // Before anybody gives it back, which would end the former release, too.
    CHECK(start([&] {
              const bool held = bench.lock.try_lock_for(5s);
              if (held) bench.lock.unlock();
              return held;
          }).get());
    CHECK(bench.lock.try_lock());
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
        CHECK(sent[2].words == sent[0].words);
        CHECK(bench.redis.count("give up") == 0);
    }
}

TEST_CASE("a release that is denied is told at once, and delivered when the server lets us again") {
    Bench bench;
    bench.lock.lock();
    const auto denied = error("WRONGPASS invalid username-password pair or user is disabled.");
    bench.redis.always("release", denied);
    bench.redis.always("give up", denied);
    CHECK(unlock(bench) == errc::rejected);
    REQUIRE(bench.redis.wait_for("give up", 3));
    bench.redis.always("give up", number(1'700'000'000'000));
    const auto sent = bench.redis.count("give up");
    REQUIRE(bench.redis.wait_for("give up", sent + 1));
    CHECK(bench.client.stats().lost_holds == 0);
    // Nor does the next hold of this thread wait for it.
    bench.redis.always("release", number(0));
    CHECK(bench.lock.try_lock());
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("an answer of a wrong shape to a release is told by code only, and the hold is given up") {
    for (const Reply& reply : {text("OK"), number(-2), array({}), array({number(0)}), malformed()}) {
        Bench bench;
        bench.lock.lock();
        bench.redis.next("release", reply);
        CHECK(unlock(bench) == errc::protocol_error);
        CHECK(bench.lock.valid_until() == Instant::min());
        REQUIRE(bench.redis.wait_for("give up"));
        CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner());

        CHECK(bench.lock.try_lock());
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

// What this thread holds is lost, the object that it locked is gone, and with it all that was known of the lock.
TEST_CASE("unlock() through another object finds out that the hold was lost, too") {
    Bench bench;
    {
        RLock first(bench.client, "invoices");
        first.lock(Lease(20ms));
        first.lock(Lease(20ms));
        const std::stop_token lost_token = first.lost();
        REQUIRE(eventually([&] { return lost_token.stop_requested(); }));
    }
    RLock second(bench.client, "invoices");
    std::error_code ec;
    second.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK_NOTHROW(second.unlock());
    second.unlock(ec);
    CHECK(ec == errc::not_owner);
    CHECK(bench.redis.count("release") == 0);
}

TEST_CASE("the levels of lost holds are known by thread, kind of lock and key, and the latest of them only") {
    LostLevels levels;
    levels.add("rlock ", "orders", 1, 2);
    levels.add("mutex ", "orders", 1, 1);
    levels.add("rlock ", "orders", 1, 1);
    CHECK_FALSE(levels.take("rlock ", "orders", 2));
    CHECK_FALSE(levels.take("rlock ", "invoices", 1));
    for (int i = 0; i < 3; ++i) CHECK(levels.take("rlock ", "orders", 1));
    CHECK_FALSE(levels.take("rlock ", "orders", 1));
    CHECK(levels.take("mutex ", "orders", 1));
    CHECK_FALSE(levels.take("mutex ", "orders", 1));
    for (OwnerNumber owner = 0; owner <= LostLevels::most; ++owner) levels.add("rlock ", "many", owner, 1);
    CHECK_FALSE(levels.take("rlock ", "many", 0));
    CHECK(levels.take("rlock ", "many", 1));
    CHECK(levels.take("rlock ", "many", LostLevels::most));
}

TEST_CASE("ending by force names whom it has seen, tells whether there was a hold, and ends those of this process") {
    Bench bench;
    bench.lock.lock();
    const std::stop_token lost_token = bench.lock.lost();
    bench.redis.next("HKEYS", array({text("somebody:7")}));
    CHECK(bench.lock.force_unlock());
    CHECK(bench.redis.sent("HKEYS").at(0).words == std::vector<std::string>{"HKEYS", "orders"});
    const auto sent = bench.redis.sent("give up");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].argument(0) == "PUBLISH");
    CHECK(sent[0].argument(2) == "somebody:7");
    CHECK(sent[0].argument_count() == 3);
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(unlock(bench) == errc::hold_lost);

    // Nobody is named where nobody is seen.
    CHECK_FALSE(bench.lock.force_unlock());
    CHECK(bench.redis.count("give up") == 1);
}

// A second copy of a request that names nobody would end the next hold.
TEST_CASE("copies of a request to end by force name the same holder") {
    Bench bench;
    bench.redis.next("HKEYS", lost());
    bench.redis.next("HKEYS", array({text("somebody:7")}));
    bench.redis.always("HKEYS", array({text("the next one:8")}));
    bench.redis.next("give up", lost());
    bench.redis.next("give up", error("LOADING Redis is loading the dataset in memory"));
    CHECK(bench.lock.force_unlock());
    const auto sent = bench.redis.sent("give up");
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].argument(2) == "somebody:7");
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].words == sent[0].words);
}

// A first sending had no answer, a second one got the hold, and it was lost before the first could not come any more: what
// that took was nobody's for a whole lease.
TEST_CASE("a hold that is lost is given up all the same when a copy of its acquire may still come") {
    Bench bench(impatient());
    bench.redis.next("acquire", lost());
    bench.lock.lock();
    bench.redis.next("HKEYS", array({text("somebody:7")}));
    CHECK(bench.lock.force_unlock());
    REQUIRE(bench.redis.wait_for("give up", 2));
    const SentCommand late = bench.redis.sent("give up").at(1);
    CHECK(late.argument(2) == bench.owner());
    CHECK(late.posted);
    CHECK(unlock(bench) == errc::hold_lost);
}

TEST_CASE("ending by force does not touch a hold that is taken while the answer is on its way") {
    Bench bench;
    bench.redis.next("HKEYS", [&](const SentCommand&) {
        bench.lock.lock();
        return std::optional(array({text("somebody:7")}));
    });
    CHECK(bench.lock.force_unlock());
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK(bench.client.stats().lost_holds == 0);
}

TEST_CASE("ending by force reports what goes wrong, and leaves holds alone then") {
    Bench bench(impatient());
    bench.lock.lock();
    std::error_code ec;
    bench.redis.next("HKEYS", error("NOPERM x"));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::rejected);
    for (const Reply& senseless : {number(1), array({number(1)})}) {
        bench.redis.next("HKEYS", senseless);
        CHECK_FALSE(bench.lock.force_unlock(ec));
        CHECK(ec == errc::protocol_error);
    }
    bench.redis.next("HKEYS", array({text("mode"), text("somebody:7")}));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::wrong_type);
    bench.redis.always("HKEYS", array({text("somebody:7")}));
    bench.redis.next("give up", text("OK"));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::protocol_error);
    bench.redis.always("give up", lost());
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
    bench.lock.lock();
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
