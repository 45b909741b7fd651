// SPDX-License-Identifier: MIT
// Acquiring an RLock from a server that replies late, malformed, or not at all.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/wait.hpp"
#include "support/without_grants.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;

// Short times for the client's waits. The watchdog's timeout stays long, so that no renewal interferes.
ClientOptions impatient() { return {.command_timeout = 20ms, .unreachable_timeout = 60ms}; }

struct Fixture {
    explicit Fixture(const ClientOptions& options = {})
        : client(redis.transport(), without_grants(options)), lock(client, "orders") {}

    // The owner of a hold, as it is written on the wire.
    std::string owner(std::uint64_t number = 1) const { return client.id() + ":" + std::to_string(number); }

    bool is_free() { return lock.valid_until() == Instant::min() && lock.lost().stop_requested(); }

    ScriptedRedis redis;
    Client client;
    RLock lock;
};

std::error_code code_of(auto&& call) {
    try {
        call();
        return {};
    } catch (const Error& e) {
        CHECK(e.name() == "orders");
        CHECK(std::string_view(e.what()).find("orders") != std::string_view::npos);
        return e.code();
    }
}

}  // namespace

TEST_CASE(
    "acquiring a free lock is one command: key, owner, count of one, lease, and the time until which it is wanted") {
    Fixture fixture;
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].words.size() == 8);
    CHECK(sent[0].words[0] == "EVALSHA");
    CHECK(sent[0].words[2] == "1");
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].argument(0) == fixture.owner());
    CHECK(sent[0].argument(1) == "1");
    CHECK(sent[0].argument(2) == "30000");
    CHECK(reaches(sent[0].instant(3), 3000ms, begun));
    CHECK_FALSE(sent[0].posted);

    const Instant valid = fixture.lock.valid_until();
    CHECK(valid > Clock::now() + 20s);
    CHECK(valid < sent[0].at + 30s);
    CHECK_FALSE(fixture.lock.lost().stop_requested());
    fixture.lock.unlock();
    CHECK(fixture.redis.history() == Sorts{"acquire", "release"});
}

TEST_CASE("a lease is sent in whole milliseconds") {
    Fixture fixture;
    CHECK(fixture.lock.try_lock(Lease(5'000'999us)));
    CHECK(fixture.redis.sent("acquire").at(0).argument(2) == "5000");
    CHECK(fixture.lock.valid_until() < Clock::now() + 5s);
    fixture.lock.unlock();
}

TEST_CASE("each first hold has its own number, in whichever thread") {
    Fixture fixture;
    fixture.lock.lock();
    std::thread([&] {
        fixture.redis.next("acquire", number(1000));
        CHECK_FALSE(fixture.lock.try_lock());
        CHECK(fixture.lock.valid_until() == Instant::min());
    }).join();
    fixture.lock.unlock();
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    for (std::uint64_t i = 0; i < 3; ++i) CHECK(sent[i].argument(0) == fixture.owner(i + 1));
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("release").at(0).argument(0) == fixture.owner(1));
    CHECK(fixture.redis.sent("release").at(1).argument(0) == fixture.owner(3));
}

TEST_CASE("a reentry sends the absolute count, so a resend counts once") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.next("acquire", lost());
    fixture.lock.lock();
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 4);
    CHECK(sent[1].argument(1) == "2");
    CHECK(sent[2].argument(1) == "2");
    CHECK(sent[3].argument(1) == "3");
    for (const SentCommand& command : sent) CHECK(command.argument(0) == fixture.owner());
    for (int i = 0; i < 3; ++i) fixture.lock.unlock();
    const auto released = fixture.redis.sent("release");
    REQUIRE(released.size() == 3);
    CHECK(released[0].argument(1) == "2");
    CHECK(released[1].argument(1) == "1");
    CHECK(released[2].argument(1) == "0");
}

TEST_CASE("a script that the server has not cached is sent as text with the same arguments") {
    Fixture fixture;
    fixture.redis.next("acquire", error("NOSCRIPT No matching script. Please use EVAL."));
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 2);
    CHECK_FALSE(sent[0].by_text());
    CHECK(sent[1].by_text());
    CHECK(sent[1].words[1] == scripts::rlock_acquire.join());
    CHECK(std::vector(sent[0].words.begin() + 2, sent[0].words.end()) ==
          std::vector(sent[1].words.begin() + 2, sent[1].words.end()));
    fixture.lock.unlock();
    CHECK(fixture.client.stats().resends == 0);
}

TEST_CASE("server that rejects even the text of a script with NOSCRIPT: no tight loop") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire", error("NOSCRIPT No matching script. Please use EVAL."));
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::rejected);
    CHECK(fixture.redis.count("acquire") < 50);
    CHECK(fixture.is_free());
}

TEST_CASE("a malformed reply is a protocol_error that names the lock, and the possible hold is released") {
    const Reply senseless[] = {
        text("OK"), text(""),       number(-3),         number(std::numeric_limits<std::int64_t>::min()),
        array({}),  array({nil()}), array({number(1)}), array({error("OOM inside")}),
        malformed()};
    for (const Reply& reply : senseless) {
        Fixture fixture;
        fixture.redis.next("acquire", reply);
        CAPTURE(static_cast<int>(reply.kind));
        CHECK(code_of([&] { fixture.lock.lock(); }) == errc::protocol_error);
        CHECK(fixture.is_free());
        REQUIRE(fixture.redis.wait_for("give up"));
        CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner());
        CHECK(fixture.redis.count("acquire") == 1);
    }
}

TEST_CASE("after an error reply there is nothing to release") {
    struct {
        const char* text;
        errc code;
    } const rows[] = {{"WRONGTYPE Operation against a key holding the wrong kind of value", errc::wrong_type},
                      {"WRONGTYPE the key has no lease, so it is no lock", errc::wrong_type},
                      {"NOAUTH Authentication required.", errc::rejected},
                      {"NOPERM this user has no permissions to run the 'evalsha' command", errc::rejected},
                      {"ERR value is not an integer or out of range", errc::rejected},
                      {"CROSSSLOT Keys in request don't hash to the same slot", errc::rejected}};
    for (const auto& row : rows) {
        Fixture fixture;
        fixture.redis.next("acquire", error(row.text));
        CAPTURE(row.text);
        CHECK(code_of([&] { fixture.lock.lock(); }) == row.code);
        CHECK(fixture.is_free());
        fixture.lock.lock();  // works again, without a delay
        fixture.lock.unlock();
        CHECK(fixture.redis.history() == Sorts{"acquire", "acquire", "release"});
    }
}

TEST_CASE("a temporary refusal is retried until the server accepts") {
    Fixture fixture;
    for (int i = 0; i < 3; ++i)
        fixture.redis.next("acquire", error("OOM command not allowed when used memory > 'maxmemory'."));
    fixture.redis.next("acquire", error("LOADING Redis is loading the dataset in memory"));
    fixture.lock.lock();
    CHECK(fixture.redis.count("acquire") == 5);
    CHECK(fixture.client.stats().resends == 4);
    fixture.lock.unlock();
}

TEST_CASE("a refusal that lasts is an error when the time is up") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire", error("OOM command not allowed when used memory > 'maxmemory'."));
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::overloaded);
    CHECK(code_of([&] { return fixture.lock.try_lock_for(10ms); }) == errc::overloaded);
    fixture.redis.always("acquire", error("READONLY You can't write against a read only replica."));
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(fixture.redis.count("release") == 0);
    CHECK(fixture.redis.count("give up") == 0);
}

TEST_CASE("try_lock() does not retry a temporary refusal") {
    struct {
        const char* text;
        errc code;
    } const rows[] = {{"OOM command not allowed when used memory > 'maxmemory'.", errc::overloaded},
                      {"BUSY Redis is busy running a script.", errc::overloaded},
                      {"LOADING Redis is loading the dataset in memory", errc::unreachable}};
    for (const auto& row : rows) {
        CAPTURE(row.text);
        Fixture fixture;
        fixture.redis.always("acquire", error(row.text));
        CHECK(code_of([&] { return fixture.lock.try_lock(); }) == row.code);
        CHECK(fixture.is_free());
        CHECK(fixture.redis.history() == Sorts{"acquire"});
    }
}

TEST_CASE("an acquire whose reply is lost is resent for the same hold") {
    Fixture fixture;
    fixture.redis.next("acquire", lost());
    fixture.redis.next("acquire", lost());
    const std::int64_t before = ScriptedRedis::server_now();
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(sent[0].argument(i) == sent[2].argument(i));
    // Each has command_timeout by the server's clock. A later reading of that clock may be the more exact one.
    for (const SentCommand& one : sent) CHECK(one.instant(3) >= before + 3000);
    // The lease may count from the last sending, which renewed it, but not from the reply.
    CHECK(fixture.lock.valid_until() <= sent[2].at + 30s);
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("release").at(0).argument(1) == "0");
    CHECK(fixture.is_free());
}

TEST_CASE("an acquire without a reply is released in the background, under the number that was sent") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire", lost());
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(fixture.is_free());
    REQUIRE(fixture.redis.wait_for("give up"));
    const SentCommand given_up = fixture.redis.sent("give up").at(0);
    CHECK(given_up.posted);
    CHECK(given_up.key_count() == 2);
    CHECK(given_up.key(0) == "orders");
    CHECK(given_up.key(1) == "redisson_lock__channel:{orders}");
    CHECK(given_up.argument_count() == 3);
    CHECK(given_up.argument(0) == "PUBLISH");
    CHECK(given_up.argument(2) == fixture.owner());
    for (const SentCommand& sent : fixture.redis.sent("acquire")) CHECK(sent.argument(0) == fixture.owner());
    CHECK(fixture.redis.count("release") == 0);
}

// A copy of that acquire, or of its release, may arrive at any time. It names a number that is never used again.
TEST_CASE("an acquire without a reply delays no thread: the next hold has another number") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire", lost());
    fixture.redis.always("give up", ScriptedRedis::hold_back);
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("give up"));
    fixture.redis.always("acquire", nil());
    const std::size_t asked = fixture.redis.count("acquire");

    CHECK(fixture.lock.try_lock());
    CHECK(fixture.redis.count("acquire") == asked + 1);
    CHECK(fixture.redis.sent("acquire").back().argument(0) == fixture.owner(2));

    fixture.redis.answer(fixture.redis.sent("give up").at(0), number(ScriptedRedis::server_now() + 3'600'000));
    REQUIRE(fixture.redis.publish("until the background has seen the answer"));
    CHECK(fixture.lock.valid_until() > Clock::now());
    CHECK(fixture.client.stats().lost_holds == 0);
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("release").at(0).argument(0) == fixture.owner(2));
    CHECK(fixture.redis.count("give up") == 1);
}

TEST_CASE("the release of a number is resent until it is answered") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire", lost());
    fixture.redis.next("give up", lost());
    fixture.redis.next("give up", error("LOADING Redis is loading the dataset in memory"));
    fixture.redis.next("give up", error("NOSCRIPT No matching script. Please use EVAL."));
    fixture.redis.next("give up", number(ScriptedRedis::server_now() + 3'600'000));
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("give up", 4));
    const auto given_up = fixture.redis.sent("give up");
    for (const SentCommand& one : given_up) CHECK(one.argument(2) == fixture.owner());
    CHECK(given_up[3].by_text());
    CHECK_FALSE(eventually([&] { return fixture.redis.count("give up") > 4; }, 100ms));
}

// A reply to the release shows only that the number has no hold yet: the acquire may arrive later. It takes no effect
// after the time until which it was wanted.
TEST_CASE("a number is released once more when the server's clock is past the time it was wanted until, and no more") {
    constexpr std::int64_t server_time = 5'000'000;
    Fixture fixture(impatient());
    fixture.redis.always("TIME", ScriptedRedis::time(server_time));
    fixture.redis.always("acquire", lost());
    const auto wanted_until = [&] {
        std::int64_t latest = 0;
        for (const SentCommand& sent : fixture.redis.sent("acquire")) latest = std::max(latest, sent.instant(3));
        return latest;
    };
    for (const std::int64_t from_then : {-500, 0, 1})
        fixture.redis.next("give up", [&, from_then](const SentCommand&) {
            return std::optional(number(wanted_until() + from_then));
        });
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(wanted_until() > server_time + 20);
    CHECK(wanted_until() < server_time + 10'000);
    REQUIRE(fixture.redis.wait_for("give up", 3));
    const auto given_up = fixture.redis.sent("give up");
    for (const SentCommand& one : given_up) CHECK(one.argument(2) == fixture.owner());
    CHECK(given_up[1].at - given_up[0].at > 500ms);
    CHECK_FALSE(eventually([&] { return fixture.redis.count("give up") > 3; }, 100ms));
}

TEST_CASE("an unanswered copy of an acquire is released after the hold, once it can no longer take effect") {
    Fixture fixture({.command_timeout = 100ms});
    std::atomic<std::int64_t> answered = 0;
    fixture.redis.always("give up", [&](const SentCommand&) {
        answered = ScriptedRedis::server_now();
        return std::optional(number(answered));
    });
    fixture.redis.next("acquire", lost());
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 2);
    CHECK(fixture.redis.count("give up") == 0);
    fixture.lock.unlock();
    // It delays no thread.
    CHECK(fixture.lock.try_lock());
    CHECK(fixture.redis.sent("acquire").back().argument(0) == fixture.owner(2));
    CHECK(eventually([&] { return answered > sent[0].instant(3); }));
    for (const SentCommand& one : fixture.redis.sent("give up")) CHECK(one.argument(2) == fixture.owner(1));
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.unlock();

    // All are answered, so nothing is left to release.
    const std::size_t given_up = fixture.redis.count("give up");
    CHECK_FALSE(eventually([&] { return fixture.redis.count("give up") > given_up; }, 300ms));
}

TEST_CASE("a release not delivered before its lease is over is dropped and reported") {
    std::atomic<int> told = 0;
    Fixture fixture({.command_timeout = 5ms, .unreachable_timeout = 10ms, .on_event = [&](const Event& event) {
                         if (event.kind == Event::Kind::unlock_not_delivered) ++told;
                     }});
    fixture.redis.always("acquire", lost());
    fixture.redis.always("give up", lost());
    CHECK(code_of([&] { fixture.lock.lock(Lease(100ms)); }) == errc::unreachable);
    fixture.redis.always("acquire", nil());
    CHECK(fixture.lock.try_lock());
    CHECK(eventually([&] { return told == 1; }));
    const std::size_t given_up = fixture.redis.count("give up");
    CHECK(given_up >= 1);
    CHECK_FALSE(eventually([&] { return fixture.redis.count("give up") > given_up; }, 100ms));
    CHECK(told == 1);
    fixture.lock.unlock();
}

// --- commands that arrive too late ----------------------------------------------------------------------------

TEST_CASE("the server's time is queried once, and again after a command without a reply") {
    Fixture fixture;
    fixture.redis.always("TIME", [](const SentCommand&) { return std::optional(ScriptedRedis::time()); });
    for (int i = 0; i < 2; ++i) {
        fixture.lock.lock();
        fixture.lock.unlock();
    }
    CHECK(fixture.redis.history() == Sorts{"TIME", "acquire", "release", "acquire", "release"});
    fixture.redis.next("acquire", lost());
    fixture.lock.lock();
    fixture.lock.unlock();
    CHECK(fixture.redis.count("TIME") == 2);
}

TEST_CASE(
    "an acquire that arrived too late takes no effect and is resent, by the server time that the reply reported") {
    Fixture fixture;
    const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
    fixture.redis.next("acquire", ScriptedRedis::late(ahead));
    fixture.lock.lock();
    CHECK(fixture.redis.history() == Sorts{"acquire", "acquire"});
    auto sent = fixture.redis.sent("acquire");
    CHECK(sent[0].instant(3) < ahead);
    CHECK(sent[1].instant(3) > ahead + 3000);
    CHECK(sent[1].argument(0) == sent[0].argument(0));
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.unlock();

    CHECK(fixture.lock.try_lock());
    sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    CHECK(sent[2].instant(3) > ahead + 3000);
    fixture.lock.unlock();
    CHECK(fixture.redis.history() == Sorts{"acquire", "acquire", "release", "acquire", "release"});
}

TEST_CASE("server whose clock keeps jumping: an error after three sendings, and nothing to release") {
    Fixture fixture;
    std::int64_t ahead = ScriptedRedis::server_now();
    fixture.redis.always("acquire",
                         [&](const SentCommand&) { return std::optional(ScriptedRedis::late(ahead += 3'600'000)); });
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(fixture.redis.history() == Sorts(3, "acquire"));
    CHECK(code_of([&] { return fixture.lock.try_lock(); }) == errc::unreachable);
    CHECK(fixture.redis.history() == Sorts(6, "acquire"));
    CHECK(fixture.is_free());
}

TEST_CASE("without the server's time nothing is sent, so there is nothing to release") {
    Fixture fixture(impatient());
    fixture.redis.always("TIME", lost());
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(fixture.redis.count("acquire") == 0);
    CHECK(fixture.redis.count("give up") == 0);
    CHECK(fixture.is_free());
}

// --- two kinds of locks on one key ----------------------------------------------------------------------------

TEST_CASE("a key that this process holds as one kind of lock is refused as another, and nothing is sent") {
    Fixture fixture;
    FairLock fair(fixture.client, "orders");
    FencedLock fenced(fixture.client, "orders");
    Mutex mutex(fixture.client, "orders");
    ReadWriteLock both(fixture.client, "orders");
    SpinLock spin(fixture.client, "orders");
    fixture.lock.lock();
    const auto all_refused = [&] {
        CHECK(code_of([&] { return fair.try_lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { fair.lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { fenced.lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { mutex.lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { both.lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { both.lock_shared(); }) == errc::wrong_type);
    };
    all_refused();
    std::thread(all_refused).join();
    CHECK(fixture.redis.history() == Sorts{"acquire"});
    // Another object of the same kind is the same lock.
    CHECK(spin.try_lock());
    spin.unlock();
    fixture.lock.unlock();

    fair.lock();
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::wrong_type);
    fair.unlock();
    both.lock_shared();
    CHECK(code_of([&] { return mutex.try_lock(); }) == errc::wrong_type);
    both.unlock_shared();
    mutex.lock();
    mutex.unlock();
}

TEST_CASE("a lost hold does not block another kind of lock on its key") {
    Fixture fixture;
    Mutex mutex(fixture.client, "orders");
    fixture.lock.lock(Lease(20ms));
    const std::stop_token lost_token = fixture.lock.lost();
    REQUIRE(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(mutex.try_lock());
    mutex.unlock();
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("a grant later than its lease counts as blocked, and is released") {
    Fixture fixture;
    fixture.redis.next("acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(30ms);
        return std::optional(nil());
    });
    CHECK_FALSE(fixture.lock.try_lock(Lease(20ms)));
    CHECK(fixture.is_free());
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner());
}

TEST_CASE("a waiting thread asks again after a grant that came too late") {
    Fixture fixture;
    fixture.redis.next("acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(30ms);
        return std::optional(nil());
    });
    fixture.lock.lock(Lease(20ms));
    Sorts begin = fixture.redis.history();
    begin.resize(3);
    CHECK(begin == Sorts{"acquire", "give up", "acquire"});
    const auto sent = fixture.redis.sent("acquire");
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == sent[0].argument(0));
    CHECK(sent[1].argument(0) != sent[0].argument(0));
    fixture.lock.unlock();
}

TEST_CASE("the validity counts from before the command was sent") {
    Fixture fixture;
    fixture.redis.next("acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(50ms);
        return std::optional(nil());
    });
    fixture.lock.lock(Lease(10s));
    CHECK(fixture.lock.valid_until() < fixture.redis.sent("acquire").at(0).at + 10s);
    fixture.lock.unlock();
}

TEST_CASE("an unreachable server is an error after unreachable_timeout, and there is nothing to release") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire", unreachable());
    const Stopwatch watch;
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(watch.elapsed() >= 60ms);
    CHECK(watch.elapsed() < 10s);  // of 30 s
    CHECK(fixture.is_free());
    fixture.redis.always("acquire", nil());
    fixture.lock.lock();
    fixture.lock.unlock();
    CHECK(fixture.redis.count("release") == 1);
    CHECK(fixture.redis.count("give up") == 0);
}

TEST_CASE("a timed wait ends at its deadline, whatever the server does") {
    const Reply silences[] = {unreachable(), lost(), error("BUSY Redis is busy running a script."), number(-1),
                              number(60'000)};
    for (const Reply& reply : silences) {
        // The best of some tries, because this thread may be late on a busy machine.
        bool in_time = false;
        for (int tries = 0; tries < 4 && !in_time; ++tries) {
            Fixture fixture;
            fixture.redis.always("acquire", reply);
            const Stopwatch watch;
            std::error_code ec;
            CHECK_FALSE(fixture.lock.try_lock_for(30ms, ec));
            CHECK(watch.elapsed() >= 30ms);
            in_time = watch.within(patient(1000ms));
            CHECK(fixture.is_free());
        }
        CHECK(in_time);
    }
}

TEST_CASE("timed wait: a server slower than the time it was given means false, not an error") {
    Fixture fixture;
    fixture.redis.always("acquire", ScriptedRedis::hold_back);
    std::error_code ec = errc::rejected;
    CHECK_FALSE(fixture.lock.try_lock_for(20ms, ec));
    CHECK_FALSE(ec);
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner());
}

TEST_CASE("timed wait: no reply to TIME means false, not an error") {
    Fixture fixture;
    fixture.redis.always("TIME", ScriptedRedis::hold_back);
    std::error_code ec = errc::rejected;
    CHECK_FALSE(fixture.lock.try_lock_for(20ms, ec));
    CHECK_FALSE(ec);
    CHECK(fixture.redis.history() == Sorts{"TIME"});
}

TEST_CASE("the first command may take a little longer than the deadline, and its grant counts") {
    Fixture fixture;
    fixture.redis.next("acquire", [begun = Clock::now()](const SentCommand& sent) {
        CHECK(sent.deadline >= begun + 250ms);
        std::this_thread::sleep_for(30ms);
        return std::optional(nil());
    });
    CHECK(fixture.lock.try_lock_for(10ms));
    CHECK(fixture.redis.history() == Sorts{"acquire"});
    fixture.lock.unlock();
}

TEST_CASE("timed wait for a reentry: no reply means false, and the hold stays as it was") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.always("acquire", ScriptedRedis::hold_back);
    std::error_code ec = errc::rejected;
    CHECK_FALSE(fixture.lock.try_lock_for(20ms, ec));
    CHECK_FALSE(ec);
    CHECK(fixture.lock.valid_until() > Clock::now());
    // The server may count two levels by now. The release sends the count 0.
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("release").at(0).argument(1) == "0");
}

TEST_CASE("a hold whose reentry got no reply is released at the end of its lease here: the server may keep it longer") {
    Fixture fixture;
    fixture.lock.lock(Lease(2s));
    const Instant valid = fixture.lock.valid_until();
    fixture.redis.always("acquire", ScriptedRedis::hold_back);
    CHECK_FALSE(fixture.lock.try_lock_for(20ms, Lease(1h)));
    REQUIRE(fixture.redis.wait_for("give up"));
    const SentCommand released = fixture.redis.sent("give up").at(0);
    CHECK(released.argument(2) == fixture.owner());
    CHECK(released.at >= valid);
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE(
    "a hold that is lost while its reentry gets no reply is released all the same: the server may have renewed it") {
    bool reentered = false;
    for (int tries = 0; tries < 4 && !reentered; ++tries) {  // a busy machine may lose the hold before that
        Fixture fixture({.command_timeout = 50ms});
        fixture.lock.lock(Lease(300ms));
        fixture.redis.always("acquire", ScriptedRedis::hold_back);
        std::error_code ec;
        CHECK_FALSE(fixture.lock.try_lock_for(1s, Lease(1h), ec));
        reentered = fixture.redis.sent("acquire").at(1).argument(1) == "2";
        if (!reentered) continue;
        CHECK(eventually([&] {
            const auto sent = fixture.redis.sent("give up");
            return std::any_of(sent.begin(), sent.end(), [&](const SentCommand& command) {
                return std::find(command.words.begin(), command.words.end(), fixture.owner()) != command.words.end();
            });
        }));
    }
    CHECK(reentered);
}

TEST_CASE("a stop request ends a command in flight at its timeout, and its number is released") {
    Fixture fixture({.command_timeout = 30ms});
    std::stop_source source;
    fixture.redis.always("acquire", [&](const SentCommand&) {
        source.request_stop();
        return std::optional<Reply>();
    });
    CHECK_FALSE(fixture.lock.lock(source.get_token()));
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner());
    CHECK(fixture.redis.count("acquire") == 1);
}

TEST_CASE("a stop request during a reentry returns false, and the hold stays as it was") {
    Fixture fixture({.command_timeout = 30ms});
    fixture.lock.lock();
    std::stop_source source;
    fixture.redis.always("acquire", [&](const SentCommand&) {
        source.request_stop();
        return std::optional<Reply>();
    });
    std::error_code ec;
    CHECK_FALSE(fixture.lock.lock(source.get_token(), ec));
    CHECK_FALSE(ec);
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("release").at(0).argument(1) == "0");
}

TEST_CASE("after an earlier stop request nothing is sent") {
    Fixture fixture;
    std::stop_source source;
    source.request_stop();
    CHECK_FALSE(fixture.lock.lock(source.get_token()));
    CHECK_FALSE(fixture.lock.lock(Lease(1s), source.get_token()));
    CHECK_FALSE(fixture.lock.try_lock_for(1h, source.get_token()));
    CHECK_FALSE(fixture.lock.try_lock_until(Instant::max(), Lease(1s), source.get_token()));
    CHECK(fixture.redis.history().empty());
}

TEST_CASE("a lock that another holds is not acquired, and try_lock() is one command") {
    for (const std::int64_t ttl : {-1, 0, 1, 30'000}) {
        Fixture fixture;
        fixture.redis.next("acquire", number(ttl));
        CHECK_FALSE(fixture.lock.try_lock());
        CHECK(fixture.is_free());
        CHECK(fixture.redis.history() == Sorts{"acquire"});
    }
}

TEST_CASE("a wait of zero, or until a time in the past, is one try") {
    Fixture fixture;
    fixture.redis.always("acquire", number(30'000));
    CHECK_FALSE(fixture.lock.try_lock_for(0ms));
    CHECK_FALSE(fixture.lock.try_lock_for(-1h));
    CHECK_FALSE(fixture.lock.try_lock_until(std::chrono::system_clock::now() - 1h));
    CHECK_FALSE(fixture.lock.try_lock_until(std::chrono::system_clock::time_point::min()));
    CHECK_FALSE(fixture.lock.try_lock_until(Instant::min()));
    CHECK(fixture.redis.history() == Sorts(5, "acquire"));
    CHECK_FALSE(fixture.redis.is_wanted("redisson_lock__channel:{orders}"));
    fixture.redis.always("acquire", nil());
    CHECK(fixture.lock.try_lock_for(-1h));
    fixture.lock.unlock();
}

TEST_CASE("the longest waits do not overflow") {
    Fixture fixture;
    CHECK(fixture.lock.try_lock_for(Milliseconds::max()));
    CHECK(fixture.lock.try_lock_for(std::chrono::hours::max()));
    CHECK(fixture.lock.try_lock_for(std::chrono::duration<double>(1e300)));
    CHECK(fixture.lock.try_lock_until(Instant::max()));
    CHECK(fixture.lock.try_lock_until(std::chrono::system_clock::time_point::max()));
    for (int i = 0; i < 5; ++i) fixture.lock.unlock();
    CHECK(fixture.is_free());
}

TEST_CASE("reentry into a hold that is gone: the hold is lost, and the lock is acquired like by any other thread") {
    for (const std::int64_t answer : {std::int64_t{-2}, std::int64_t{5000}}) {
        Fixture fixture;
        fixture.lock.lock();
        const std::stop_token lost_token = fixture.lock.lost();
        fixture.redis.next("acquire", number(answer));
        fixture.lock.lock();
        const auto sent = fixture.redis.sent("acquire");
        REQUIRE(sent.size() == 3);
        CHECK(sent[1].argument(1) == "2");
        CHECK(sent[2].argument(1) == "1");
        CHECK(sent[1].argument(0) == fixture.owner(1));
        CHECK(sent[2].argument(0) == fixture.owner(2));
        CHECK(eventually([&] { return lost_token.stop_requested(); }));
        CHECK_FALSE(fixture.lock.lost().stop_requested());
        CHECK(fixture.client.stats().lost_holds == 1);
        std::error_code ec;
        fixture.lock.unlock(ec);
        CHECK_FALSE(ec);
        fixture.lock.unlock(ec);
        CHECK(ec == errc::hold_lost);
        fixture.lock.unlock(ec);
        CHECK(ec == errc::not_owner);
        CHECK(fixture.redis.count("release") == 1);
    }
}

TEST_CASE("a malformed reply to a reentry leaves the hold as it was") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.next("acquire", text("OK"));
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::protocol_error);
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("release").at(0).argument(1) == "0");
    CHECK(fixture.is_free());
}

TEST_CASE("with an error_code argument no error is thrown, and success clears the code") {
    Fixture fixture;
    std::error_code ec;
    fixture.redis.next("acquire", error("WRONGTYPE x"));
    fixture.lock.lock(ec);
    CHECK(ec == errc::wrong_type);
    fixture.redis.next("acquire", error("WRONGTYPE x"));
    CHECK_FALSE(fixture.lock.try_lock(ec));
    CHECK(ec == errc::wrong_type);
    fixture.redis.next("acquire", error("WRONGTYPE x"));
    CHECK_FALSE(fixture.lock.try_lock_for(1s, Lease(5s), ec));
    CHECK(ec == errc::wrong_type);
    CHECK(fixture.lock.lock(Lease(5s), std::stop_token(), ec));
    CHECK_FALSE(ec);
    fixture.lock.unlock(ec);
    CHECK_FALSE(ec);
}

TEST_CASE("names are sent unchanged, whatever bytes they contain") {
    ScriptedRedis redis;
    Client client(redis.transport(), without_grants());
    for (const std::string& name : {std::string("a\0b", 3), std::string("\r\n$-1\r\n"), std::string("%s%n 'x'"),
                                    std::string("\xff\xfe"), std::string(1024, 'n')}) {
        RLock lock(client, name);
        lock.lock();
        CHECK(redis.sent("acquire").back().key(0) == name);
        lock.unlock();
        CHECK(redis.sent("release").back().key(0) == name);
        CHECK(redis.sent("release").back().key(1) == "redisson_lock__channel:{" + name + "}");
        CHECK(redis.sent("release").back().key_count() == 2);
    }
}

TEST_CASE("bad arguments are refused before anything is sent") {
    Fixture fixture;
    CHECK_THROWS_AS(RLock(fixture.client, ""), Error);
    CHECK_THROWS_AS(RLock(fixture.client, "a{b"), Error);
    CHECK_THROWS_AS(RLock(fixture.client, std::string(1025, 'n')), Error);
    CHECK_THROWS_AS(fixture.lock.lock(Lease(0ms)), Error);
    CHECK_THROWS_AS(static_cast<void>(fixture.lock.try_lock(Lease(-1s))), Error);
    CHECK_THROWS_AS(static_cast<void>(fixture.lock.try_lock_for(1s, Lease(999us))), Error);
    CHECK(fixture.redis.history().empty());
}

TEST_CASE("another level of a hold is wanted for the command_timeout of the object that acquired the hold") {
    Fixture fixture;
    RLock slow(fixture.client, "orders", {.command_timeout = 1s});
    const std::int64_t begun = ScriptedRedis::server_now();  // the reading of the server's clock is of the first hold
    const Hold first = slow.hold();
    const Hold second = first.again();
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 2);
    CHECK(sent[1].argument(1) == "2");
    CHECK(reaches(sent[1].instant(3), 1000ms, begun));
}

TEST_CASE("another level of a hold is asked for until the unreachable_timeout of the object that acquired the hold") {
    Fixture fixture;
    RLock patient(fixture.client, "orders", {.unreachable_timeout = 60s});
    const Hold first = patient.hold();
    // More tries than a client without patience makes.
    for (int i = 0; i < 5; ++i) fixture.redis.next("acquire", lost());
    const Hold second = first.again();
    CHECK(second);
    CHECK(fixture.redis.count("acquire") == 7);
}
