// SPDX-License-Identifier: MIT
// Waiting for an RLock: which thread asks the server and when, messages, and hand-over within the process.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"
#include "support/without_grants.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;

const std::string channel = "redisson_lock__channel:{orders}";

struct Fixture {
    explicit Fixture(const ClientOptions& options = {})
        : client(redis.transport(), without_grants(options)), lock(client, "orders") {}

    // The owner of a hold, as it is written on the wire.
    std::string owner(std::uint64_t number) const { return client.id() + ":" + std::to_string(number); }

    ScriptedRedis redis;
    Client client;
    RLock lock;
};

// This thread holds the lock, and the test confirms subscriptions: so no thread of this process has a reason to ask the
// server.
struct HeldBench : Fixture {
    explicit HeldBench(const ClientOptions& options = {}) : Fixture(options) {
        redis.confirm_by_hand();
        lock.lock();
    }

    // Confirms the subscription. Then the waiter knows that the lock is held.
    bool confirm() {
        redis.next("acquire", number(30'000));
        const std::size_t asked = redis.count("acquire");
        return redis.wait_until_wanted(channel) && redis.confirm(channel) && redis.wait_for("acquire", asked + 1);
    }
};

// A thread that acquires the lock, holds it until let_go is set, and releases it.
class Taker {
public:
    explicit Taker(Fixture& fixture, std::optional<Lease> lease = {}, std::optional<Milliseconds> timeout = {})
        : thread_([this, &fixture, lease, timeout] {
              tid = this_thread_id();
              const Milliseconds wait = timeout.value_or(Milliseconds::max());
              try {
                  held = lease ? fixture.lock.try_lock_for(wait, *lease, stop.get_token())
                               : fixture.lock.try_lock_for(wait, stop.get_token());
              } catch (const Error& e) {
                  failure = e.code();
              }
              valid_until = fixture.lock.valid_until();
              returned_at = Clock::now();
              returned = true;
              while (held && !let_go) std::this_thread::sleep_for(1ms);
              if (held) fixture.lock.unlock(unlocked);
          }) {}

    bool is_back() {
        return eventually([&] { return returned.load(); });
    }

    // Returns true once it is in the queue and sleeps there. `waits`: the number of waits so far, including this one.
    bool is_in_line(Fixture& fixture, std::uint64_t waits = 1) {
        return eventually([&] { return fixture.client.stats().waits >= waits && is_asleep(); });
    }

    bool is_asleep() const { return redlatch::test::is_asleep(tid); }

    void finish() {
        let_go = true;
        if (thread_.joinable()) thread_.join();
    }

    ~Taker() {
        stop.request_stop();
        finish();
    }

    std::stop_source stop;
    std::atomic<pid_t> tid = 0;
    std::atomic<bool> returned = false;
    std::atomic<bool> let_go = false;
    // Written before `returned`.
    bool held = false;
    std::error_code failure;
    Instant valid_until{};
    Instant returned_at{};
    std::error_code unlocked;

private:
    std::thread thread_;
};

// Returns true once the first taker was blocked, has subscribed, and was blocked again.
bool is_waiting(Fixture& fixture) { return fixture.redis.wait_for("acquire", 2); }

/// The release of a number that was given up lasts, or is over before its sender goes on.
void choose_release_of_given_up(ScriptedRedis& redis) {
    SUBCASE("which lasts") { redis.always("give up", ScriptedRedis::hold_back); }
    SUBCASE("at once") { redis.answer_before_post_returns("give up"); }
}

/// Waits until a command has released this number whatever holds it, and was sent when the server's clock was past this
/// time.
bool is_given_up(Fixture& fixture, std::uint64_t number, std::int64_t past = 0) {
    return eventually([&] {
        for (const SentCommand& sent : fixture.redis.sent("give up"))
            if (sent.words.back() == fixture.owner(number) && sent.server_time > past) return true;
        return false;
    });
}

}  // namespace

TEST_CASE("a blocked thread subscribes, asks again after the confirmation, and then sends nothing") {
    Fixture fixture;
    fixture.redis.confirm_by_hand();
    fixture.redis.always("acquire", number(30'000));
    Taker taker(fixture);
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    CHECK(fixture.redis.count("acquire") == 1);
    REQUIRE(fixture.redis.confirm(channel));
    REQUIRE(fixture.redis.wait_for("acquire", 2));
    // A message of another lock has no effect.
    REQUIRE(fixture.redis.publish("redisson_lock__channel:{other}"));
    CHECK(fixture.redis.count("acquire") == 2);
    fixture.redis.always("acquire", nil());
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(fixture.redis.count("acquire") == 3);
    CHECK(fixture.client.stats().waits == 1);
}

TEST_CASE("a release between the first try and the confirmation causes no sleep") {
    Fixture fixture;
    fixture.redis.next("acquire", number(30'000));
    Taker taker(fixture);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(fixture.redis.count("acquire") == 2);
}

TEST_CASE("a message before the confirmation wakes the waiter") {
    Fixture fixture;
    fixture.redis.confirm_by_hand();
    fixture.redis.next("acquire", number(30'000));
    Taker taker(fixture);
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
}

TEST_CASE("a message that arrives while the acquire command is in flight makes the thread ask again") {
    Fixture fixture;
    fixture.redis.next("acquire", number(30'000));
    fixture.redis.next("acquire", [&](const SentCommand&) {
        // The server releases the lock just after it reported it as held.
        CHECK(fixture.redis.publish(channel));
        return std::optional(number(30'000));
    });
    Taker taker(fixture);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(fixture.redis.count("acquire") == 3);
}

/// A thread waits, gets the lock after a message and releases it: the message of that release is this process's own.
void wait_enter_and_leave(Fixture& fixture) {
    fixture.redis.next("acquire", number(30'000));
    fixture.redis.next("acquire", number(30'000));
    fixture.redis.always("release", number(2));  // subscribers: another process and this one
    Taker first(fixture);
    REQUIRE(is_waiting(fixture));
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(first.is_back());
    first.finish();
}

TEST_CASE("the message of this process's own release does not wake threads that asked later") {
    Fixture fixture;
    wait_enter_and_leave(fixture);
    REQUIRE(fixture.redis.wait_for("release", 1));
    fixture.redis.always("acquire", number(30'000));
    Taker second(fixture);
    REQUIRE(second.is_in_line(fixture, 2));
    const std::size_t asked = fixture.redis.count("acquire");
    REQUIRE(fixture.redis.publish(channel));
    CHECK(fixture.redis.count("acquire") == asked);
    fixture.redis.always("acquire", nil());
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(second.is_back());
    CHECK(second.held);
    CHECK(fixture.redis.count("acquire") == asked + 1);
}

// The thread had asked while another thread of this process held the lock, and got the reply only after the release. It
// was not in the queue yet, so the message of that release was skipped. The thread slept beside a free lock until the
// end of the lease that the reply had reported.
TEST_CASE("a thread whose acquire was overtaken by a release of this process asks again") {
    Fixture fixture;
    wait_enter_and_leave(fixture);
    const std::size_t asked = fixture.redis.count("acquire");
    fixture.redis.next("acquire", ScriptedRedis::hold_back);
    Taker second(fixture);
    REQUIRE(fixture.redis.wait_for("acquire", asked + 1));
    fixture.lock.lock();
    fixture.lock.unlock();
    REQUIRE(fixture.redis.publish(channel));
    fixture.redis.answer(fixture.redis.sent("acquire").at(asked), number(30'000));
    REQUIRE(second.is_back());
    CHECK(second.held);
}

TEST_CASE("a message with any payload wakes the waiter") {
    for (const std::string& payload : {std::string("0"), std::string("1"), std::string(),
                                       std::string("garbage\0\r\n", 10), std::string(1 << 20, 'x')}) {
        Fixture fixture;
        fixture.redis.next("acquire", number(30'000));
        fixture.redis.next("acquire", number(30'000));
        Taker taker(fixture);
        REQUIRE(is_waiting(fixture));
        REQUIRE(fixture.redis.publish(channel, payload));
        REQUIRE(taker.is_back());
        CHECK(taker.held);
    }
}

TEST_CASE("without a message a waiter asks again when the holder's lease must be over") {
    Fixture fixture;
    fixture.redis.next("acquire", number(30'000));  // blocked again when the subscription is confirmed
    fixture.redis.next("acquire", number(30));
    Taker taker(fixture);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    const auto sent = fixture.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    CHECK(sent[2].at >= sent[1].at + 31ms);
}

TEST_CASE("a holder without a TTL does not make the waiter ask in a tight loop") {
    Fixture fixture;
    fixture.redis.always("acquire", number(-1));
    Taker taker(fixture, {}, 100ms);
    REQUIRE(taker.is_back());
    CHECK_FALSE(taker.held);
    CHECK(fixture.redis.count("acquire") <= 2);
}

TEST_CASE("of many waiting threads one asks for all") {
    Fixture fixture;
    fixture.redis.always("acquire", number(30'000));
    Taker first(fixture, Lease(7s));
    REQUIRE(is_waiting(fixture));
    std::list<Taker> others;
    for (int i = 0; i < 4; ++i) others.emplace_back(fixture);
    CHECK(eventually([&] { return fixture.client.stats().waits == 5; }));
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(fixture.redis.wait_for("acquire", 3));
    CHECK(fixture.redis.count("acquire") == 3);
    const auto sent = fixture.redis.sent("acquire");
    for (const SentCommand& question : sent) CHECK(question.argument(2) == "7000");
}

TEST_CASE("a released lock is handed to the thread that waited first, by one command") {
    const std::int64_t begun = ScriptedRedis::server_now();
    HeldBench fixture;
    Taker successor(fixture, Lease(7s));
    REQUIRE(successor.is_in_line(fixture));
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK_FALSE(ec);
    REQUIRE(successor.is_back());
    CHECK(successor.held);
    CHECK(fixture.redis.history() == Sorts{"acquire", "hand over"});
    const SentCommand sent = fixture.redis.sent("hand over").at(0);
    CHECK(sent.key(0) == "orders");
    CHECK(sent.key(1) == channel);
    CHECK(sent.argument_count() == 5);
    CHECK(sent.argument(0) == fixture.owner(1));
    CHECK(sent.argument(1) == fixture.owner(2));
    CHECK(sent.argument(2) == "7000");
    CHECK(sent.argument(3) == "PUBLISH");
    CHECK(reaches(sent.instant(4), 3000ms, begun));
    CHECK(successor.valid_until > Clock::now());
    CHECK(successor.valid_until < sent.at + 7s);
    CHECK(fixture.client.stats().handoffs == 1);
    CHECK(fixture.client.stats().acquisitions == 2);
    successor.finish();
    CHECK_FALSE(successor.unlocked);
    CHECK(fixture.redis.sent("release").at(0).argument(0) == fixture.owner(2));
}

TEST_CASE("after local_handoff_limit hand-overs in a row the lock is released to other processes") {
    HeldBench fixture({.local_handoff_limit = 2});
    std::list<Taker> takers;
    for (std::uint64_t i = 1; i <= 3; ++i) {
        takers.emplace_back(fixture);
        REQUIRE(takers.back().is_in_line(fixture, i));
    }
    fixture.lock.unlock();
    for (Taker& taker : takers) {
        REQUIRE(taker.is_back());
        CHECK(taker.held);
        taker.finish();
    }
    CHECK(fixture.redis.history() == Sorts{"acquire", "hand over", "hand over", "release", "acquire", "release"});
}

TEST_CASE("a local_handoff_limit of 0 disables hand-overs") {
    HeldBench fixture({.local_handoff_limit = 0});
    Taker taker(fixture);
    REQUIRE(taker.is_in_line(fixture));
    fixture.lock.unlock();
    REQUIRE(taker.is_back());
    CHECK(fixture.redis.history() == Sorts{"acquire", "release", "acquire"});
}

TEST_CASE("hand-over of a lost hold: the releasing thread gets hold_lost, and the successor asks for itself") {
    HeldBench fixture;
    Taker successor(fixture);
    REQUIRE(successor.is_in_line(fixture));
    fixture.redis.next("hand over", nil());
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
    REQUIRE(successor.is_back());
    CHECK(successor.held);
    CHECK(fixture.redis.history() == Sorts{"acquire", "hand over", "acquire"});
    CHECK(fixture.client.stats().lost_holds == 1);
}

TEST_CASE("after a reply without sense the next waiter asks under another number, because the first one is released") {
    ScriptedRedis redis;
    choose_release_of_given_up(redis);
    Client client(redis.transport());
    RLock lock(client, "orders");
    redis.next("acquire", ScriptedRedis::hold_back);
    auto first = start([&] {
        std::error_code ec;
        lock.lock(ec);
        return ec;
    });
    REQUIRE(redis.wait_for("acquire"));
    auto second = start([&] {
        lock.lock();
        lock.unlock();
    });
    REQUIRE(eventually([&] { return client.stats().waits == 1; }));
    redis.answer(redis.sent("acquire").at(0), text("nonsense"));
    CHECK(first.get() == errc::protocol_error);
    second.get();
    REQUIRE(redis.wait_for("give up"));
    const std::string unwanted = redis.sent("give up").at(0).words.back();
    CHECK(redis.sent("acquire").at(0).argument(0) == unwanted);
    CHECK(redis.sent("acquire").at(1).argument(0) != unwanted);
}

TEST_CASE("after a reply that came too late the waiter asks under another number, because the first one is released") {
    ScriptedRedis redis;
    choose_release_of_given_up(redis);
    Client client(redis.transport());
    RLock lock(client, "orders");
    redis.next("acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(60ms);
        return std::optional(nil());
    });
    lock.lock(Lease(50ms));
    const auto sent = redis.sent("acquire");
    REQUIRE(sent.size() >= 2);
    CHECK(sent[1].argument(0) != sent[0].argument(0));
    std::error_code ec;
    lock.unlock(ec);
}

TEST_CASE("another hold that ends during a hand-over is released to the server, and both waiters get their turn") {
    // The server has lost the first hold, so a thread that only tries acquires the lock meanwhile.
    HeldBench fixture;
    Taker first(fixture);
    REQUIRE(first.is_in_line(fixture));
    Taker second(fixture);
    REQUIRE(second.is_in_line(fixture, 2));
    fixture.redis.next("hand over", ScriptedRedis::hold_back);
    auto trier = start([&] {
        if (!fixture.redis.wait_for("hand over") || !fixture.lock.try_lock()) return false;
        fixture.lock.unlock();
        const bool second_is_back = second.is_back();
        fixture.redis.answer(fixture.redis.sent("hand over").at(0), nil());
        return second_is_back;
    });
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
    REQUIRE(trier.get());
    second.finish();
    REQUIRE(first.is_back());
    CHECK(first.held);
    CHECK(second.held);
}

TEST_CASE("a hand-over whose reply is lost is resent, and the successor's lease counts from the first sending") {
    // The resend finds the successor as the holder and prolongs nothing: on the server the lease began with the first
    // sending. Counted from the resend, the successor would trust a hold that others may already have.
    HeldBench fixture;
    Taker successor(fixture, Lease(5s));
    REQUIRE(successor.is_in_line(fixture));
    fixture.redis.next("hand over", [](const SentCommand&) {
        std::this_thread::sleep_for(50ms);
        return std::optional(lost());
    });
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK_FALSE(ec);
    REQUIRE(successor.is_back());
    REQUIRE(successor.held);
    const auto sent = fixture.redis.sent("hand over");
    REQUIRE(sent.size() == 2);
    for (std::size_t i = 0; i < 4; ++i) CHECK(sent[1].argument(i) == sent[0].argument(i));
    CHECK(sent[1].instant(4) >= sent[0].instant(4));
    CHECK(successor.valid_until < sent[0].at + 5s);
}

// Late copies of both may still arrive, that of the acquire first: then the number of the successor holds the lock.
TEST_CASE("if an acquire and its hand-over were resent, the successor's number is released again later, too") {
    Fixture fixture({.command_timeout = 500ms});
    fixture.redis.confirm_by_hand();
    fixture.redis.next("acquire", lost());
    fixture.lock.lock();
    Taker successor(fixture);
    REQUIRE(successor.is_in_line(fixture));
    std::this_thread::sleep_for(300ms);  // so much longer is the hand-over wanted than the acquire
    fixture.redis.next("hand over", lost());
    fixture.lock.unlock();
    REQUIRE(successor.is_back());
    REQUIRE(successor.held);
    successor.let_go = true;
    CHECK(is_given_up(fixture, 1, fixture.redis.sent("acquire").front().instant(3)));
    CHECK(is_given_up(fixture, 2, fixture.redis.sent("hand over").back().instant(4)));
}

TEST_CASE("if an acquire was resent and its hand-over gives the successor nothing, its number is released later, too") {
    for (const bool is_lost : {false, true}) {
        CAPTURE(is_lost);
        Fixture fixture({.command_timeout = 500ms});
        fixture.redis.confirm_by_hand();
        fixture.redis.next("acquire", lost());
        fixture.lock.lock();
        const std::int64_t wanted_until = fixture.redis.sent("acquire").front().instant(3);
        Taker successor(fixture);
        REQUIRE(successor.is_in_line(fixture));
        fixture.redis.next("hand over", [&](const SentCommand&) {
            if (is_lost) return std::optional(nil());
            successor.stop.request_stop();
            CHECK(successor.is_back());
            return std::optional(number(1));
        });
        std::error_code ec;
        fixture.lock.unlock(ec);
        CHECK(ec == (is_lost ? errc::hold_lost : std::error_code()));
        CHECK(is_given_up(fixture, 1, wanted_until));
    }
}

TEST_CASE("a hand-over that arrived too late is resent, by the server time that the reply reported") {
    HeldBench fixture;
    Taker successor(fixture);
    REQUIRE(successor.is_in_line(fixture));
    const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
    fixture.redis.next("hand over", ScriptedRedis::late(ahead));
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK_FALSE(ec);
    REQUIRE(successor.is_back());
    CHECK(successor.held);
    const auto sent = fixture.redis.sent("hand over");
    REQUIRE(sent.size() == 2);
    for (std::size_t i = 0; i < 4; ++i) CHECK(sent[1].argument(i) == sent[0].argument(i));
    CHECK(sent[1].instant(4) > ahead + 3000);
    CHECK(fixture.client.stats().handoffs == 1);
    CHECK(fixture.redis.count("give up") == 0);
}

TEST_CASE("a hand-over without a reply is undone for both owners by one command, and delays no thread") {
    HeldBench fixture({.command_timeout = 20ms});
    Taker successor(fixture);
    REQUIRE(successor.is_in_line(fixture));
    fixture.redis.always("hand over", lost());
    fixture.redis.always("give up", ScriptedRedis::hold_back);
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("give up"));
    const SentCommand given_up = fixture.redis.sent("give up").at(0);
    CHECK(given_up.posted);
    CHECK(given_up.argument_count() == 4);
    CHECK(given_up.argument(2) == fixture.owner(1));
    CHECK(given_up.argument(3) == fixture.owner(2));
    for (const SentCommand& sent : fixture.redis.sent("hand over")) CHECK(sent.argument(1) == fixture.owner(2));

    // Each asks under a new number.
    REQUIRE(successor.is_back());
    CHECK(successor.held);
    fixture.redis.next("acquire", number(1000));
    CHECK_FALSE(fixture.lock.try_lock());
    const auto asked = fixture.redis.sent("acquire");
    REQUIRE(asked.size() == 3);
    CHECK(asked[1].argument(0) == fixture.owner(3));
    CHECK(asked[2].argument(0) == fixture.owner(4));
    fixture.redis.answer(given_up, number(ScriptedRedis::server_now() + 3'600'000));
    REQUIRE(fixture.redis.publish("until the background has seen the answer"));
    successor.finish();
    CHECK_FALSE(successor.unlocked);
    CHECK(fixture.redis.count("give up") == 1);
    CHECK(fixture.client.stats().lost_holds == 0);
}

// It counted as still in flight, so no thread of this process asked for the lock again.
TEST_CASE("a hand-over without memory is undone for both owners, and the successor asks for itself") {
    struct NoMemory : std::exception {};
    HeldBench fixture;
    Taker successor(fixture, {}, 20s);
    REQUIRE(successor.is_in_line(fixture));
    // Not std::bad_alloc, which makes the command count as not sent. A pause could throw this.
    fixture.redis.next("hand over", [](const SentCommand&) -> std::optional<Reply> { throw NoMemory(); });
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::unreachable);
    REQUIRE(successor.is_back());
    CHECK(successor.held);
    successor.finish();
    CHECK_FALSE(successor.unlocked);
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner(1));
}

TEST_CASE("a thread that gives up during a hand-over to it does not keep the hold") {
    for (const bool by_stop : {false, true}) {
        HeldBench fixture;
        Taker successor(fixture, {}, by_stop ? std::optional<Milliseconds>() : 1500ms);
        REQUIRE(successor.is_in_line(fixture));
        fixture.redis.next("hand over", [&](const SentCommand&) {
            if (by_stop) successor.stop.request_stop();
            CHECK(successor.is_back());
            return std::optional(number(1));
        });
        std::error_code ec;
        fixture.lock.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(successor.held);
        REQUIRE(fixture.redis.wait_for("give up"));
        CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner(2));
    }
}

TEST_CASE("a hand-over that takes longer than the successor's lease gives no hold") {
    for (int i = 0; i < 5; ++i) {
        HeldBench fixture;
        Taker successor(fixture, Lease(20ms));
        REQUIRE(successor.is_in_line(fixture));
        fixture.redis.next("hand over", [](const SentCommand&) {
            std::this_thread::sleep_for(30ms);
            return std::optional(number(1));
        });
        // Its own command is answered as blocked. So if the thread returns, it trusts the hand-over.
        fixture.redis.always("acquire", number(60'000));
        fixture.lock.unlock();
        CHECK(eventually([&] { return successor.returned || fixture.redis.count("acquire") >= 2; }));
        CHECK_FALSE(successor.returned);
    }
}

TEST_CASE("a malformed reply to a hand-over is reported by code, and gives the successor nothing") {
    for (const Reply& reply : {text("OK"), number(0), number(7), array({}), malformed()}) {
        CAPTURE(static_cast<int>(reply.kind));
        CAPTURE(reply.integer);
        HeldBench fixture;
        Taker successor(fixture);
        REQUIRE(successor.is_in_line(fixture));
        fixture.redis.next("hand over", reply);
        std::error_code ec;
        fixture.lock.unlock(ec);
        CHECK(ec == errc::protocol_error);
        REQUIRE(fixture.redis.wait_for("give up"));
        CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner(1));
        CHECK(fixture.redis.sent("give up").at(0).argument(3) == fixture.owner(2));
        REQUIRE(successor.is_back());
        CHECK(fixture.redis.count("acquire") == 2);
        CHECK(fixture.client.stats().handoffs == 0);
    }
}

TEST_CASE(
    "a hand-over refused for good gives the successor nothing, and the successor gets the error from its own command") {
    HeldBench fixture;
    Taker successor(fixture);
    REQUIRE(successor.is_in_line(fixture));
    fixture.redis.next("hand over", error("WRONGTYPE x"));
    fixture.redis.next("release", error("WRONGTYPE x"));
    fixture.redis.next("acquire", error("WRONGTYPE x"));
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::wrong_type);
    REQUIRE(successor.is_back());
    CHECK(successor.failure == errc::wrong_type);
}

// Such a hold was reported as lost, and blocked all others for the rest of its lease.
TEST_CASE("if only the hand-over is refused for good, the hold is released by the usual script") {
    HeldBench fixture;
    Taker successor(fixture);
    REQUIRE(successor.is_in_line(fixture));
    fixture.redis.next("hand over", error("NOPERM x"));
    const auto releases = fixture.redis.count("release");
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(fixture.redis.count("release") > releases);
    REQUIRE(successor.is_back());
    CHECK(successor.held);
    CHECK(fixture.client.stats().handoffs == 0);
    CHECK(fixture.client.stats().lost_holds == 0);
}

TEST_CASE("a message that comes before the reply to the release is not lost") {
    // The server publishes the release before it writes the reply. The waiter that the message wakes finds the release
    // still in flight and sleeps again, indefinitely. So the releasing thread must wake it, although there are other
    // subscribers.
    HeldBench fixture({.local_handoff_limit = 0});
    Taker waiter(fixture);
    REQUIRE(waiter.is_in_line(fixture));
    REQUIRE(fixture.confirm());
    REQUIRE(waiter.is_in_line(fixture));
    fixture.redis.next("release", [&](const SentCommand&) {
        CHECK(fixture.redis.publish(channel));
        CHECK(waiter.is_in_line(fixture));
        return std::optional(number(2));
    });
    fixture.lock.unlock();
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("with other subscribers a local waiter asks when the message comes, not before") {
    HeldBench fixture({.local_handoff_limit = 0});
    Taker waiter(fixture);
    REQUIRE(waiter.is_in_line(fixture));
    REQUIRE(fixture.confirm());
    REQUIRE(waiter.is_in_line(fixture));
    fixture.redis.next("release", number(2));
    fixture.lock.unlock();
    REQUIRE(waiter.is_in_line(fixture));
    CHECK(fixture.redis.count("acquire") == 2);
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("without a confirmed subscription a local release wakes the waiter at once") {
    Fixture fixture({.local_handoff_limit = 0});
    fixture.redis.confirm_by_hand();
    fixture.lock.lock();
    Taker waiter(fixture);
    REQUIRE(waiter.is_in_line(fixture));
    fixture.redis.next("release", number(2));
    fixture.lock.unlock();
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("after a lost subscription the waiter asks again") {
    Fixture fixture;
    fixture.redis.always("acquire", number(30'000));
    Taker waiter(fixture);
    REQUIRE(is_waiting(fixture));
    fixture.redis.confirm_by_hand();
    REQUIRE(fixture.redis.disconnect());
    CHECK(fixture.redis.count("acquire") == 2);
    fixture.redis.always("acquire", nil());
    REQUIRE(fixture.redis.confirm(channel));
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("a refused subscription is an error for all waiters") {
    Fixture fixture;
    fixture.redis.confirm_by_hand();
    fixture.redis.always("acquire", number(30'000));
    Taker a(fixture);
    REQUIRE(a.is_in_line(fixture));
    Taker b(fixture);
    REQUIRE(b.is_in_line(fixture, 2));
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    REQUIRE(fixture.redis.refuse(channel, error("NOPERM this user has no permissions to access one of the channels")));
    REQUIRE(a.is_back());
    REQUIRE(b.is_back());
    CHECK(a.failure == errc::rejected);
    CHECK(b.failure == errc::rejected);
    CHECK_FALSE(fixture.redis.is_wanted(channel));
    // The next wait subscribes again.
    Taker c(fixture);
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    fixture.redis.always("acquire", nil());
    REQUIRE(fixture.redis.confirm(channel));
    REQUIRE(c.is_back());
    CHECK(c.held);
}

TEST_CASE("a stopped thread leaves the queue, and the next one asks in its place") {
    Fixture fixture;
    fixture.redis.always("acquire", number(30'000));
    Taker first(fixture);
    REQUIRE(is_waiting(fixture));
    Taker second(fixture, Lease(7s));
    REQUIRE(second.is_in_line(fixture, 2));
    CHECK(fixture.redis.sent("acquire").back().argument(2) == "30000");
    first.stop.request_stop();
    REQUIRE(first.is_back());
    CHECK_FALSE(first.held);
    CHECK_FALSE(first.failure);
    fixture.redis.always("acquire", nil());
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(second.is_back());
    CHECK(second.held);
    CHECK(fixture.redis.sent("acquire").back().argument(2) == "7000");
    CHECK(fixture.redis.count("release") == 0);
    CHECK(fixture.redis.count("give up") == 0);
}

TEST_CASE("a message that reaches the representative at its deadline wakes the next waiter") {
    Fixture fixture;
    fixture.redis.always("acquire", number(30'000));
    Taker first(fixture, {}, 1500ms);
    REQUIRE(is_waiting(fixture));
    Taker second(fixture);
    REQUIRE(second.is_in_line(fixture, 2));
    // The message comes during its last command, whose reply "blocked" comes after its deadline.
    fixture.redis.next("acquire", [&](const SentCommand& sent) {
        CHECK(fixture.redis.publish(channel));
        std::this_thread::sleep_until(sent.deadline + 1ms);
        return std::optional(number(30'000));
    });
    fixture.redis.always("acquire", nil());
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(first.is_back());
    REQUIRE(second.is_back());
    CHECK(second.held);
}

TEST_CASE("an error of the representative is its own, and the next waiter asks for itself") {
    Fixture fixture;
    fixture.redis.always("acquire", number(30'000));
    Taker first(fixture);
    REQUIRE(is_waiting(fixture));
    Taker second(fixture);
    REQUIRE(second.is_in_line(fixture, 2));
    fixture.redis.next("acquire", error("ERR something odd"));
    fixture.redis.always("acquire", nil());
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(first.is_back());
    CHECK(first.failure == errc::rejected);
    REQUIRE(second.is_back());
    CHECK(second.held);
}

TEST_CASE("when a thread of this process loses its hold, local waiters ask at once") {
    Fixture fixture;
    fixture.redis.confirm_by_hand();
    fixture.lock.lock(Lease(1s));
    Taker waiter(fixture);
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
    CHECK(fixture.redis.history() == Sorts{"acquire", "acquire"});
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("a waiter behind an unreachable server inherits the time that others have already waited") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 3s});
    fixture.redis.next("acquire", number(30'000));
    fixture.redis.next("acquire", number(30'000));
    fixture.redis.always("acquire", unreachable());
    Taker first(fixture);
    REQUIRE(is_waiting(fixture));
    Taker second(fixture);
    REQUIRE(second.is_in_line(fixture, 2));
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(eventually([&] { return first.returned.load(); }, 20s));
    CHECK(first.failure == errc::unreachable);
    REQUIRE(eventually([&] { return second.returned.load(); }, 20s));
    CHECK(second.failure == errc::unreachable);
    // Not the whole time again, only the 100 ms of one full try.
    CHECK(second.returned_at - first.returned_at < 2500ms);
}
