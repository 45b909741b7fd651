// SPDX-License-Identifier: MIT
// Taking an RLock from a server that answers slowly, wrongly, or not at all.
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

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;

// Short times for what is waited for; the watchdog's is long, so that it stays out of the way.
ClientOptions impatient() { return {.command_timeout = 20ms, .unreachable_timeout = 60ms}; }

struct Bench {
    explicit Bench(const ClientOptions& options = {}) : client(redis.transport(), options), lock(client, "orders") {}

    // How the owner of a hold is called on the wire.
    std::string owner(std::uint64_t number = 1) const { return client.id() + ":" + std::to_string(number); }

    bool is_free() { return lock.valid_until() == Instant::min() && lock.lost().stop_requested(); }

    ScriptedRedis redis;
    Client<ScriptedTransport> client;
    RLock<ScriptedTransport> lock;
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

TEST_CASE("taking a free lock is one command: key, owner, a count of one, the lease, and until when it is wanted") {
    Bench bench;
    const std::int64_t begun = ScriptedRedis::server_now();
    bench.lock.lock();
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].words.size() == 8);
    CHECK(sent[0].words[0] == "EVALSHA");
    CHECK(sent[0].words[2] == "1");
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].argument(0) == bench.owner());
    CHECK(sent[0].argument(1) == "1");
    CHECK(sent[0].argument(2) == "30000");
    CHECK(reaches(sent[0].instant(3), 3000ms, begun));
    CHECK_FALSE(sent[0].posted);

    const Instant valid = bench.lock.valid_until();
    CHECK(valid > Clock::now() + 20s);
    CHECK(valid < sent[0].at + 30s);
    CHECK_FALSE(bench.lock.lost().stop_requested());
    bench.lock.unlock();
    CHECK(bench.redis.history() == Sorts{"acquire", "release"});
}

TEST_CASE("a lease reaches the server in whole milliseconds") {
    Bench bench;
    CHECK(bench.lock.try_lock(Lease(5'000'999us)));
    CHECK(bench.redis.sent("acquire").at(0).argument(2) == "5000");
    CHECK(bench.lock.valid_until() < Clock::now() + 5s);
    bench.lock.unlock();
}

TEST_CASE("each first hold has a number of its own, whichever thread takes it") {
    Bench bench;
    bench.lock.lock();
    std::thread([&] {
        bench.redis.next("acquire", number(1000));
        CHECK_FALSE(bench.lock.try_lock());
        CHECK(bench.lock.valid_until() == Instant::min());
    }).join();
    bench.lock.unlock();
    bench.lock.lock();
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    for (std::uint64_t i = 0; i < 3; ++i) CHECK(sent[i].argument(0) == bench.owner(i + 1));
    bench.lock.unlock();
    CHECK(bench.redis.sent("release").at(0).argument(0) == bench.owner(1));
    CHECK(bench.redis.sent("release").at(1).argument(0) == bench.owner(3));
}

TEST_CASE("re-entry tells the server the absolute count, so that sending it twice counts once") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("acquire", lost());
    bench.lock.lock();
    bench.lock.lock();
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 4);
    CHECK(sent[1].argument(1) == "2");
    CHECK(sent[2].argument(1) == "2");
    CHECK(sent[3].argument(1) == "3");
    for (const SentCommand& command : sent) CHECK(command.argument(0) == bench.owner());
    for (int i = 0; i < 3; ++i) bench.lock.unlock();
    const auto released = bench.redis.sent("release");
    REQUIRE(released.size() == 3);
    CHECK(released[0].argument(1) == "2");
    CHECK(released[1].argument(1) == "1");
    CHECK(released[2].argument(1) == "0");
}

TEST_CASE("a script that the server does not know is sent as text, with the same words") {
    Bench bench;
    bench.redis.next("acquire", error("NOSCRIPT No matching script. Please use EVAL."));
    bench.lock.lock();
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 2);
    CHECK_FALSE(sent[0].by_text());
    CHECK(sent[1].by_text());
    CHECK(sent[1].words[1] == scripts::rlock_acquire);
    CHECK(std::vector(sent[0].words.begin() + 2, sent[0].words.end()) ==
          std::vector(sent[1].words.begin() + 2, sent[1].words.end()));
    bench.lock.unlock();
    CHECK(bench.client.stats().resends == 0);
}

TEST_CASE("a server that does not know even the text of a script is not asked in a tight loop") {
    Bench bench(impatient());
    bench.redis.always("acquire", error("NOSCRIPT No matching script. Please use EVAL."));
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::rejected);
    CHECK(bench.redis.count("acquire") < 50);
    CHECK(bench.is_free());
}

TEST_CASE("an answer of a wrong shape is an error that names the lock, and what it may have granted is given back") {
    const Reply senseless[] = {
        text("OK"), text(""),       number(-3),         number(std::numeric_limits<std::int64_t>::min()),
        array({}),  array({nil()}), array({number(1)}), array({error("OOM inside")}),
        malformed()};
    for (const Reply& reply : senseless) {
        Bench bench;
        bench.redis.next("acquire", reply);
        CAPTURE(static_cast<int>(reply.kind));
        CHECK(code_of([&] { bench.lock.lock(); }) == errc::protocol_error);
        CHECK(bench.is_free());
        REQUIRE(bench.redis.wait_for("give up"));
        CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner());
        CHECK(bench.redis.count("acquire") == 1);
    }
}

TEST_CASE("an error of the server leaves nothing behind that would have to be given back") {
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
        Bench bench;
        bench.redis.next("acquire", error(row.text));
        CAPTURE(row.text);
        CHECK(code_of([&] { bench.lock.lock(); }) == row.code);
        CHECK(bench.is_free());
        bench.lock.lock();  // works again, and at once
        bench.lock.unlock();
        CHECK(bench.redis.history() == Sorts{"acquire", "acquire", "release"});
    }
}

TEST_CASE("a server that refuses for now is asked again until it agrees") {
    Bench bench;
    for (int i = 0; i < 3; ++i)
        bench.redis.next("acquire", error("OOM command not allowed when used memory > 'maxmemory'."));
    bench.redis.next("acquire", error("LOADING Redis is loading the dataset in memory"));
    bench.lock.lock();
    CHECK(bench.redis.count("acquire") == 5);
    CHECK(bench.client.stats().resends == 4);
    bench.lock.unlock();
}

TEST_CASE("a server that refuses all the time is an error when the time is up") {
    Bench bench(impatient());
    bench.redis.always("acquire", error("OOM command not allowed when used memory > 'maxmemory'."));
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::overloaded);
    CHECK(code_of([&] { return bench.lock.try_lock_for(10ms); }) == errc::overloaded);
    bench.redis.always("acquire", error("READONLY You can't write against a read only replica."));
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    CHECK(bench.redis.count("release") == 0);
    CHECK(bench.redis.count("give up") == 0);
}

TEST_CASE("one try takes a refusal for an answer, though it is only for now") {
    struct {
        const char* text;
        errc code;
    } const rows[] = {{"OOM command not allowed when used memory > 'maxmemory'.", errc::overloaded},
                      {"BUSY Redis is busy running a script.", errc::overloaded},
                      {"LOADING Redis is loading the dataset in memory", errc::unreachable}};
    for (const auto& row : rows) {
        CAPTURE(row.text);
        Bench bench;
        bench.redis.always("acquire", error(row.text));
        CHECK(code_of([&] { return bench.lock.try_lock(); }) == row.code);
        CHECK(bench.is_free());
        CHECK(bench.redis.history() == Sorts{"acquire"});
    }
}

TEST_CASE("when the reply to an acquire is lost, the next sending gets the same hold") {
    Bench bench;
    bench.redis.next("acquire", lost());
    bench.redis.next("acquire", lost());
    bench.lock.lock();
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(sent[0].argument(i) == sent[2].argument(i));
    CHECK(sent[0].instant(3) <= sent[2].instant(3));
    // The lease may count from the last sending, for that renewed it, but not from its answer.
    CHECK(bench.lock.valid_until() <= sent[2].at + 30s);
    bench.lock.unlock();
    CHECK(bench.redis.sent("release").at(0).argument(1) == "0");
    CHECK(bench.is_free());
}

TEST_CASE("an acquire that remains without an answer is given up, under its very number") {
    Bench bench(impatient());
    bench.redis.always("acquire", lost());
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    CHECK(bench.is_free());
    REQUIRE(bench.redis.wait_for("give up"));
    const SentCommand given_up = bench.redis.sent("give up").at(0);
    CHECK(given_up.posted);
    CHECK(given_up.key_count() == 2);
    CHECK(given_up.key(0) == "orders");
    CHECK(given_up.key(1) == "redisson_lock__channel:{orders}");
    CHECK(given_up.argument_count() == 3);
    CHECK(given_up.argument(0) == "PUBLISH");
    CHECK(given_up.argument(2) == bench.owner());
    for (const SentCommand& sent : bench.redis.sent("acquire")) CHECK(sent.argument(0) == bench.owner());
    CHECK(bench.redis.count("release") == 0);
}

// A copy of that acquire, or of what gives it up, may arrive at any time. It names a number that is never used again.
TEST_CASE("what remains without an answer holds up nobody: the next hold has another number") {
    Bench bench(impatient());
    bench.redis.always("acquire", lost());
    bench.redis.always("give up", ScriptedRedis::hold_back);
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    REQUIRE(bench.redis.wait_for("give up"));
    bench.redis.always("acquire", nil());
    const std::size_t asked = bench.redis.count("acquire");

    CHECK(bench.lock.try_lock());
    CHECK(bench.redis.count("acquire") == asked + 1);
    CHECK(bench.redis.sent("acquire").back().argument(0) == bench.owner(2));

    bench.redis.answer(bench.redis.sent("give up").at(0), number(ScriptedRedis::server_now() + 3'600'000));
    REQUIRE(bench.redis.publish("until the background has seen the answer"));
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK(bench.client.stats().lost_holds == 0);
    bench.lock.unlock();
    CHECK(bench.redis.sent("release").at(0).argument(0) == bench.owner(2));
    CHECK(bench.redis.count("give up") == 1);
}

TEST_CASE("a number is given up again and again until that is answered") {
    Bench bench(impatient());
    bench.redis.always("acquire", lost());
    bench.redis.next("give up", lost());
    bench.redis.next("give up", error("LOADING Redis is loading the dataset in memory"));
    bench.redis.next("give up", error("NOSCRIPT No matching script. Please use EVAL."));
    bench.redis.next("give up", number(ScriptedRedis::server_now() + 3'600'000));
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    REQUIRE(bench.redis.wait_for("give up", 4));
    const auto given_up = bench.redis.sent("give up");
    for (const SentCommand& one : given_up) CHECK(one.argument(2) == bench.owner());
    CHECK(given_up[3].by_text());
    CHECK_FALSE(eventually([&] { return bench.redis.count("give up") > 4; }, 100ms));
}

// An answered one only says that the number has nothing yet: the acquire may come later. It does not take effect after the
// instant until which it was wanted.
TEST_CASE("a number is given up once more when the server's clock is beyond what was wanted, and that is all") {
    constexpr std::int64_t server_time = 5'000'000;
    Bench bench(impatient());
    bench.redis.always("TIME", ScriptedRedis::time(server_time));
    bench.redis.always("acquire", lost());
    const auto wanted_until = [&] {
        std::int64_t latest = 0;
        for (const SentCommand& sent : bench.redis.sent("acquire")) latest = std::max(latest, sent.instant(3));
        return latest;
    };
    for (const std::int64_t from_then : {-500, 0, 1})
        bench.redis.next("give up", [&, from_then](const SentCommand&) {
            return std::optional(number(wanted_until() + from_then));
        });
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    CHECK(wanted_until() > server_time + 20);
    CHECK(wanted_until() < server_time + 10'000);
    REQUIRE(bench.redis.wait_for("give up", 3));
    const auto given_up = bench.redis.sent("give up");
    for (const SentCommand& one : given_up) CHECK(one.argument(2) == bench.owner());
    CHECK(given_up[1].at - given_up[0].at > 500ms);
    CHECK_FALSE(eventually([&] { return bench.redis.count("give up") > 3; }, 100ms));
}

TEST_CASE("a copy that was left without an answer is given up after the hold, when it can take effect no more") {
    Bench bench({.command_timeout = 100ms});
    std::atomic<std::int64_t> answered = 0;
    bench.redis.always("give up", [&](const SentCommand&) {
        answered = ScriptedRedis::server_now();
        return std::optional(number(answered));
    });
    bench.redis.next("acquire", lost());
    bench.lock.lock();
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 2);
    CHECK(bench.redis.count("give up") == 0);
    bench.lock.unlock();
    // It holds up nothing.
    CHECK(bench.lock.try_lock());
    CHECK(bench.redis.sent("acquire").back().argument(0) == bench.owner(2));
    CHECK(eventually([&] { return answered > sent[0].instant(3); }));
    for (const SentCommand& one : bench.redis.sent("give up")) CHECK(one.argument(2) == bench.owner(1));
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.lock.unlock();

    // All answered: nothing can come any more.
    const std::size_t given_up = bench.redis.count("give up");
    CHECK_FALSE(eventually([&] { return bench.redis.count("give up") > given_up; }, 300ms));
}

TEST_CASE("what cannot be given up before its lease is over is dropped, and told") {
    std::atomic<int> told = 0;
    Bench bench({.command_timeout = 5ms, .unreachable_timeout = 10ms, .on_event = [&](const Event& event) {
                     if (event.kind == Event::Kind::unlock_not_delivered) ++told;
                 }});
    bench.redis.always("acquire", lost());
    bench.redis.always("give up", lost());
    CHECK(code_of([&] { bench.lock.lock(Lease(100ms)); }) == errc::unreachable);
    bench.redis.always("acquire", nil());
    CHECK(bench.lock.try_lock());
    CHECK(eventually([&] { return told == 1; }));
    const std::size_t given_up = bench.redis.count("give up");
    CHECK(given_up >= 1);
    CHECK_FALSE(eventually([&] { return bench.redis.count("give up") > given_up; }, 100ms));
    CHECK(told == 1);
    bench.lock.unlock();
}

// --- commands that come too late ------------------------------------------------------------------------------

TEST_CASE("the server's time is asked once, and once more after a command without an answer") {
    Bench bench;
    bench.redis.always("TIME", [](const SentCommand&) { return std::optional(ScriptedRedis::time()); });
    for (int i = 0; i < 2; ++i) {
        bench.lock.lock();
        bench.lock.unlock();
    }
    CHECK(bench.redis.history() == Sorts{"TIME", "acquire", "release", "acquire", "release"});
    bench.redis.next("acquire", lost());
    bench.lock.lock();
    bench.lock.unlock();
    CHECK(bench.redis.count("TIME") == 2);
}

TEST_CASE("an acquire that came too late took no effect: the server's clock is learnt, and it is sent again") {
    Bench bench;
    const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
    bench.redis.next("acquire", ScriptedRedis::late(ahead));
    bench.lock.lock();
    CHECK(bench.redis.history() == Sorts{"acquire", "acquire"});
    auto sent = bench.redis.sent("acquire");
    CHECK(sent[0].instant(3) < ahead);
    CHECK(sent[1].instant(3) > ahead + 3000);
    CHECK(sent[1].argument(0) == sent[0].argument(0));
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.lock.unlock();

    CHECK(bench.lock.try_lock());
    sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    CHECK(sent[2].instant(3) > ahead + 3000);
    bench.lock.unlock();
    CHECK(bench.redis.history() == Sorts{"acquire", "acquire", "release", "acquire", "release"});
}

TEST_CASE("a server whose clock jumps all the time is an error after three sendings, and nothing is to be given up") {
    Bench bench;
    std::int64_t ahead = ScriptedRedis::server_now();
    bench.redis.always("acquire",
                       [&](const SentCommand&) { return std::optional(ScriptedRedis::late(ahead += 3'600'000)); });
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    CHECK(bench.redis.history() == Sorts(3, "acquire"));
    CHECK(code_of([&] { return bench.lock.try_lock(); }) == errc::unreachable);
    CHECK(bench.redis.history() == Sorts(6, "acquire"));
    CHECK(bench.is_free());
}

TEST_CASE("without the server's time nothing is asked for, so nothing is to be given up") {
    Bench bench(impatient());
    bench.redis.always("TIME", lost());
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    CHECK(bench.redis.count("acquire") == 0);
    CHECK(bench.redis.count("give up") == 0);
    CHECK(bench.is_free());
}

// --- two kinds of locks on one key ----------------------------------------------------------------------------

TEST_CASE("while this process holds a key as one kind of lock it is refused as another, and nothing is sent") {
    Bench bench;
    FairLock fair(bench.client, "orders");
    FencedLock fenced(bench.client, "orders");
    Mutex mutex(bench.client, "orders");
    ReadWriteLock both(bench.client, "orders");
    SpinLock spin(bench.client, "orders");
    bench.lock.lock();
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
    CHECK(bench.redis.history() == Sorts{"acquire"});
    // Another object of the same kind is the same lock.
    CHECK(spin.try_lock());
    spin.unlock();
    bench.lock.unlock();

    fair.lock();
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::wrong_type);
    fair.unlock();
    both.lock_shared();
    CHECK(code_of([&] { return mutex.try_lock(); }) == errc::wrong_type);
    both.unlock_shared();
    mutex.lock();
    mutex.unlock();
}

TEST_CASE("a hold that was lost keeps no other kind of lock out") {
    Bench bench;
    Mutex mutex(bench.client, "orders");
    bench.lock.lock(Lease(20ms));
    const std::stop_token lost_token = bench.lock.lost();
    REQUIRE(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(mutex.try_lock());
    mutex.unlock();
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("a grant that comes later than its lease is none, and is given back") {
    Bench bench;
    bench.redis.next("acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(30ms);
        return std::optional(nil());
    });
    CHECK_FALSE(bench.lock.try_lock(Lease(20ms)));
    CHECK(bench.is_free());
    REQUIRE(bench.redis.wait_for("give up"));
    CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner());
}

TEST_CASE("a thread that waits asks again after a grant that came too late") {
    Bench bench;
    bench.redis.next("acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(30ms);
        return std::optional(nil());
    });
    bench.lock.lock(Lease(20ms));
    Sorts begin = bench.redis.history();
    begin.resize(3);
    CHECK(begin == Sorts{"acquire", "give up", "acquire"});
    const auto sent = bench.redis.sent("acquire");
    CHECK(bench.redis.sent("give up").at(0).argument(2) == sent[0].argument(0));
    CHECK(sent[1].argument(0) != sent[0].argument(0));
    bench.lock.unlock();
}

TEST_CASE("validity counts from before the command was sent") {
    Bench bench;
    bench.redis.next("acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(50ms);
        return std::optional(nil());
    });
    bench.lock.lock(Lease(10s));
    CHECK(bench.lock.valid_until() < bench.redis.sent("acquire").at(0).at + 10s);
    bench.lock.unlock();
}

TEST_CASE("a server that cannot be reached is an error after unreachable_timeout, and nothing has to be given back") {
    Bench bench(impatient());
    bench.redis.always("acquire", unreachable());
    const Stopwatch watch;
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    CHECK(watch.elapsed() >= 60ms);
    CHECK(watch.elapsed() < 10s);  // of 30 s
    CHECK(bench.is_free());
    bench.redis.always("acquire", nil());
    bench.lock.lock();
    bench.lock.unlock();
    CHECK(bench.redis.count("release") == 1);
    CHECK(bench.redis.count("give up") == 0);
}

TEST_CASE("a timed wait ends at its deadline, whatever the server does") {
    const Reply silences[] = {unreachable(), lost(), error("BUSY Redis is busy running a script."), number(-1),
                              number(60'000)};
    for (const Reply& reply : silences) {
        // The best of some tries: on a busy machine this thread may be late.
        bool in_time = false;
        for (int tries = 0; tries < 4 && !in_time; ++tries) {
            Bench bench;
            bench.redis.always("acquire", reply);
            const Stopwatch watch;
            std::error_code ec;
            CHECK_FALSE(bench.lock.try_lock_for(30ms, ec));
            CHECK(watch.elapsed() >= 30ms);
            in_time = watch.within(patient(1000ms));
            CHECK(bench.is_free());
        }
        CHECK(in_time);
    }
}

TEST_CASE("a server slower than the time that it was given is no error of a timed wait") {
    Bench bench;
    bench.redis.always("acquire", ScriptedRedis::hold_back);
    std::error_code ec = errc::rejected;
    CHECK_FALSE(bench.lock.try_lock_for(20ms, ec));
    CHECK_FALSE(ec);
    REQUIRE(bench.redis.wait_for("give up"));
    CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner());
}

TEST_CASE("nor is one that does not even tell its time") {
    Bench bench;
    bench.redis.always("TIME", ScriptedRedis::hold_back);
    std::error_code ec = errc::rejected;
    CHECK_FALSE(bench.lock.try_lock_for(20ms, ec));
    CHECK_FALSE(ec);
    CHECK(bench.redis.history() == Sorts{"TIME"});
}

TEST_CASE("the first question is allowed a moment beyond the deadline, and what it brings is taken") {
    Bench bench;
    bench.redis.next("acquire", [begun = Clock::now()](const SentCommand& sent) {
        CHECK(sent.deadline >= begun + 250ms);
        std::this_thread::sleep_for(30ms);
        return std::optional(nil());
    });
    CHECK(bench.lock.try_lock_for(10ms));
    CHECK(bench.redis.history() == Sorts{"acquire"});
    bench.lock.unlock();
}

TEST_CASE("a slow server is no error of a re-entry, of which nothing remains then") {
    Bench bench;
    bench.lock.lock();
    bench.redis.always("acquire", ScriptedRedis::hold_back);
    std::error_code ec = errc::rejected;
    CHECK_FALSE(bench.lock.try_lock_for(20ms, ec));
    CHECK_FALSE(ec);
    CHECK(bench.lock.valid_until() > Clock::now());
    // The server may count two by now; the release says none.
    bench.lock.unlock();
    CHECK(bench.redis.sent("release").at(0).argument(1) == "0");
}

TEST_CASE("a stop request ends a command that is on its way at its next time-out, and takes it back") {
    Bench bench({.command_timeout = 30ms});
    std::stop_source source;
    bench.redis.always("acquire", [&](const SentCommand&) {
        source.request_stop();
        return std::optional<Reply>();
    });
    CHECK_FALSE(bench.lock.lock(source.get_token()));
    REQUIRE(bench.redis.wait_for("give up"));
    CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner());
    CHECK(bench.redis.count("acquire") == 1);
}

TEST_CASE("a stop request during re-entry gives false, and the hold stays as it was") {
    Bench bench({.command_timeout = 30ms});
    bench.lock.lock();
    std::stop_source source;
    bench.redis.always("acquire", [&](const SentCommand&) {
        source.request_stop();
        return std::optional<Reply>();
    });
    std::error_code ec;
    CHECK_FALSE(bench.lock.lock(source.get_token(), ec));
    CHECK_FALSE(ec);
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.lock.unlock();
    CHECK(bench.redis.sent("release").at(0).argument(1) == "0");
}

TEST_CASE("a stop request that is there already sends nothing") {
    Bench bench;
    std::stop_source source;
    source.request_stop();
    CHECK_FALSE(bench.lock.lock(source.get_token()));
    CHECK_FALSE(bench.lock.lock(Lease(1s), source.get_token()));
    CHECK_FALSE(bench.lock.try_lock_for(1h, source.get_token()));
    CHECK_FALSE(bench.lock.try_lock_until(Instant::max(), Lease(1s), source.get_token()));
    CHECK(bench.redis.history().empty());
}

TEST_CASE("a lock that another holds is not taken, and one try is one command") {
    for (const std::int64_t ttl : {-1, 0, 1, 30'000}) {
        Bench bench;
        bench.redis.next("acquire", number(ttl));
        CHECK_FALSE(bench.lock.try_lock());
        CHECK(bench.is_free());
        CHECK(bench.redis.history() == Sorts{"acquire"});
    }
}

TEST_CASE("a wait of nothing, or until a moment that is past, is one try") {
    Bench bench;
    bench.redis.always("acquire", number(30'000));
    CHECK_FALSE(bench.lock.try_lock_for(0ms));
    CHECK_FALSE(bench.lock.try_lock_for(-1h));
    CHECK_FALSE(bench.lock.try_lock_until(std::chrono::system_clock::now() - 1h));
    CHECK_FALSE(bench.lock.try_lock_until(std::chrono::system_clock::time_point::min()));
    CHECK_FALSE(bench.lock.try_lock_until(Instant::min()));
    CHECK(bench.redis.history() == Sorts(5, "acquire"));
    CHECK_FALSE(bench.redis.is_wanted("redisson_lock__channel:{orders}"));
    bench.redis.always("acquire", nil());
    CHECK(bench.lock.try_lock_for(-1h));
    bench.lock.unlock();
}

TEST_CASE("the longest waits do not overflow") {
    Bench bench;
    CHECK(bench.lock.try_lock_for(Milliseconds::max()));
    CHECK(bench.lock.try_lock_for(std::chrono::hours::max()));
    CHECK(bench.lock.try_lock_for(std::chrono::duration<double>(1e300)));
    CHECK(bench.lock.try_lock_until(Instant::max()));
    CHECK(bench.lock.try_lock_until(std::chrono::system_clock::time_point::max()));
    for (int i = 0; i < 5; ++i) bench.lock.unlock();
    CHECK(bench.is_free());
}

TEST_CASE("a hold that should be re-entered but is gone is lost, and the lock is taken like by anybody") {
    for (const std::int64_t answer : {std::int64_t{-2}, std::int64_t{5000}}) {
        Bench bench;
        bench.lock.lock();
        const std::stop_token lost_token = bench.lock.lost();
        bench.redis.next("acquire", number(answer));
        bench.lock.lock();
        const auto sent = bench.redis.sent("acquire");
        REQUIRE(sent.size() == 3);
        CHECK(sent[1].argument(1) == "2");
        CHECK(sent[2].argument(1) == "1");
        CHECK(sent[1].argument(0) == bench.owner(1));
        CHECK(sent[2].argument(0) == bench.owner(2));
        CHECK(eventually([&] { return lost_token.stop_requested(); }));
        CHECK_FALSE(bench.lock.lost().stop_requested());
        CHECK(bench.client.stats().lost_holds == 1);
        std::error_code ec;
        bench.lock.unlock(ec);
        CHECK_FALSE(ec);
        bench.lock.unlock(ec);
        CHECK(ec == errc::hold_lost);
        bench.lock.unlock(ec);
        CHECK(ec == errc::not_owner);
        CHECK(bench.redis.count("release") == 1);
    }
}

TEST_CASE("an answer of a wrong shape to a re-entry leaves the hold as it was") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("acquire", text("OK"));
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::protocol_error);
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.lock.unlock();
    CHECK(bench.redis.sent("release").at(0).argument(1) == "0");
    CHECK(bench.is_free());
}

TEST_CASE("with an error code nothing is thrown, and success clears it") {
    Bench bench;
    std::error_code ec;
    bench.redis.next("acquire", error("WRONGTYPE x"));
    bench.lock.lock(ec);
    CHECK(ec == errc::wrong_type);
    bench.redis.next("acquire", error("WRONGTYPE x"));
    CHECK_FALSE(bench.lock.try_lock(ec));
    CHECK(ec == errc::wrong_type);
    bench.redis.next("acquire", error("WRONGTYPE x"));
    CHECK_FALSE(bench.lock.try_lock_for(1s, Lease(5s), ec));
    CHECK(ec == errc::wrong_type);
    CHECK(bench.lock.lock(Lease(5s), std::stop_token(), ec));
    CHECK_FALSE(ec);
    bench.lock.unlock(ec);
    CHECK_FALSE(ec);
}

TEST_CASE("names go to the server as they are, whatever bytes they hold") {
    ScriptedRedis redis;
    Client client(redis.transport());
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
    Bench bench;
    CHECK_THROWS_AS(RLock(bench.client, ""), Error);
    CHECK_THROWS_AS(RLock(bench.client, "a{b"), Error);
    CHECK_THROWS_AS(RLock(bench.client, std::string(1025, 'n')), Error);
    CHECK_THROWS_AS(bench.lock.lock(Lease(0ms)), Error);
    CHECK_THROWS_AS(static_cast<void>(bench.lock.try_lock(Lease(-1s))), Error);
    CHECK_THROWS_AS(static_cast<void>(bench.lock.try_lock_for(1s, Lease(999us))), Error);
    CHECK(bench.redis.history().empty());
}
