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

struct Bench {
    explicit Bench(const ClientOptions& options = {})
        : client(redis.transport(), without_grants(options)), lock(client, "orders") {}

    // The owner of a hold, as it is written on the wire.
    std::string owner(std::uint64_t number) const { return client.id() + ":" + std::to_string(number); }

    ScriptedRedis redis;
    Client client;
    RLock lock;
};

// This thread holds the lock, and the test confirms subscriptions: so no thread of this process has a reason to ask the
// server.
struct HeldBench : Bench {
    explicit HeldBench(const ClientOptions& options = {}) : Bench(options) {
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
    explicit Taker(Bench& bench, std::optional<Lease> lease = {}, std::optional<Milliseconds> timeout = {})
        : thread_([this, &bench, lease, timeout] {
              tid = this_thread_id();
              const Milliseconds wait = timeout.value_or(Milliseconds::max());
              try {
                  held = lease ? bench.lock.try_lock_for(wait, *lease, stop.get_token())
                               : bench.lock.try_lock_for(wait, stop.get_token());
              } catch (const Error& e) {
                  failure = e.code();
              }
              valid_until = bench.lock.valid_until();
              returned_at = Clock::now();
              returned = true;
              while (held && !let_go) std::this_thread::sleep_for(1ms);
              if (held) bench.lock.unlock(unlocked);
          }) {}

    bool is_back() {
        return eventually([&] { return returned.load(); });
    }

    // Returns true once it is in the queue and sleeps there. `waits`: the number of waits so far, including this one.
    bool is_in_line(Bench& bench, std::uint64_t waits = 1) {
        return eventually([&] { return bench.client.stats().waits >= waits && is_asleep(); });
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
bool is_waiting(Bench& bench) { return bench.redis.wait_for("acquire", 2); }

/// The release of a number that was given up lasts, or is over before its sender goes on.
void choose_release_of_given_up(ScriptedRedis& redis) {
    SUBCASE("which lasts") { redis.always("give up", ScriptedRedis::hold_back); }
    SUBCASE("at once") { redis.answer_before_post_returns("give up"); }
}

/// Waits until a command has released this number whatever holds it, and was sent when the server's clock was past this
/// time.
bool is_given_up(Bench& bench, std::uint64_t number, std::int64_t past = 0) {
    return eventually([&] {
        for (const SentCommand& sent : bench.redis.sent("give up"))
            if (sent.words.back() == bench.owner(number) && sent.server_time > past) return true;
        return false;
    });
}

}  // namespace

TEST_CASE("a blocked thread subscribes, asks again after the confirmation, and then sends nothing") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.redis.always("acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(bench.redis.wait_until_wanted(channel));
    CHECK(bench.redis.count("acquire") == 1);
    REQUIRE(bench.redis.confirm(channel));
    REQUIRE(bench.redis.wait_for("acquire", 2));
    // A message of another lock has no effect.
    REQUIRE(bench.redis.publish("redisson_lock__channel:{other}"));
    CHECK(bench.redis.count("acquire") == 2);
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(bench.redis.count("acquire") == 3);
    CHECK(bench.client.stats().waits == 1);
}

TEST_CASE("a release between the first try and the confirmation causes no sleep") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(bench.redis.count("acquire") == 2);
}

TEST_CASE("a message before the confirmation wakes the waiter") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.redis.next("acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(bench.redis.wait_until_wanted(channel));
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
}

TEST_CASE("a message that arrives while the acquire command is in flight makes the thread ask again") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    bench.redis.next("acquire", [&](const SentCommand&) {
        // The server releases the lock just after it reported it as held.
        CHECK(bench.redis.publish(channel));
        return std::optional(number(30'000));
    });
    Taker taker(bench);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(bench.redis.count("acquire") == 3);
}

TEST_CASE("the message of this process's own release does not wake threads that asked later") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    bench.redis.next("acquire", number(30'000));
    bench.redis.always("release", number(2));  // subscribers: another process and this one
    {
        Taker first(bench);
        REQUIRE(is_waiting(bench));
        REQUIRE(bench.redis.publish(channel));
        REQUIRE(first.is_back());
        first.finish();
    }
    REQUIRE(bench.redis.wait_for("release", 1));
    bench.redis.always("acquire", number(30'000));
    Taker second(bench);
    REQUIRE(second.is_in_line(bench, 2));
    const std::size_t asked = bench.redis.count("acquire");
    REQUIRE(bench.redis.publish(channel));
    CHECK(bench.redis.count("acquire") == asked);
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(second.is_back());
    CHECK(second.held);
    CHECK(bench.redis.count("acquire") == asked + 1);
}

// The thread had asked while another thread of this process held the lock, and got the reply only after the release. It
// was not in the queue yet, so the message of that release was skipped. The thread slept beside a free lock until the
// end of the lease that the reply had reported.
TEST_CASE("a thread whose acquire was overtaken by a release of this process asks again") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    bench.redis.next("acquire", number(30'000));
    bench.redis.always("release", number(2));  // subscribers: another process and this one
    {
        Taker first(bench);
        REQUIRE(is_waiting(bench));
        REQUIRE(bench.redis.publish(channel));
        REQUIRE(first.is_back());
        first.finish();
    }
    const std::size_t asked = bench.redis.count("acquire");
    bench.redis.next("acquire", ScriptedRedis::hold_back);
    Taker second(bench);
    REQUIRE(bench.redis.wait_for("acquire", asked + 1));
    bench.lock.lock();
    bench.lock.unlock();
    REQUIRE(bench.redis.publish(channel));
    bench.redis.answer(bench.redis.sent("acquire").at(asked), number(30'000));
    REQUIRE(second.is_back());
    CHECK(second.held);
}

TEST_CASE("a message with any payload wakes the waiter") {
    for (const std::string& payload : {std::string("0"), std::string("1"), std::string(),
                                       std::string("garbage\0\r\n", 10), std::string(1 << 20, 'x')}) {
        Bench bench;
        bench.redis.next("acquire", number(30'000));
        bench.redis.next("acquire", number(30'000));
        Taker taker(bench);
        REQUIRE(is_waiting(bench));
        REQUIRE(bench.redis.publish(channel, payload));
        REQUIRE(taker.is_back());
        CHECK(taker.held);
    }
}

TEST_CASE("without a message a waiter asks again when the holder's lease must be over") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));  // blocked again when the subscription is confirmed
    bench.redis.next("acquire", number(30));
    Taker taker(bench);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    CHECK(sent[2].at >= sent[1].at + 31ms);
}

TEST_CASE("a holder without a TTL does not make the waiter ask in a tight loop") {
    Bench bench;
    bench.redis.always("acquire", number(-1));
    Taker taker(bench, {}, 100ms);
    REQUIRE(taker.is_back());
    CHECK_FALSE(taker.held);
    CHECK(bench.redis.count("acquire") <= 2);
}

TEST_CASE("of many waiting threads one asks for all") {
    Bench bench;
    bench.redis.always("acquire", number(30'000));
    Taker first(bench, Lease(7s));
    REQUIRE(is_waiting(bench));
    std::list<Taker> others;
    for (int i = 0; i < 4; ++i) others.emplace_back(bench);
    CHECK(eventually([&] { return bench.client.stats().waits == 5; }));
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(bench.redis.wait_for("acquire", 3));
    CHECK(bench.redis.count("acquire") == 3);
    const auto sent = bench.redis.sent("acquire");
    for (const SentCommand& question : sent) CHECK(question.argument(2) == "7000");
}

TEST_CASE("a released lock is handed to the thread that waited first, by one command") {
    const std::int64_t begun = ScriptedRedis::server_now();
    HeldBench bench;
    Taker heir(bench, Lease(7s));
    REQUIRE(heir.is_in_line(bench));
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK_FALSE(ec);
    REQUIRE(heir.is_back());
    CHECK(heir.held);
    CHECK(bench.redis.history() == Sorts{"acquire", "hand over"});
    const SentCommand sent = bench.redis.sent("hand over").at(0);
    CHECK(sent.key(0) == "orders");
    CHECK(sent.key(1) == channel);
    CHECK(sent.argument_count() == 5);
    CHECK(sent.argument(0) == bench.owner(1));
    CHECK(sent.argument(1) == bench.owner(2));
    CHECK(sent.argument(2) == "7000");
    CHECK(sent.argument(3) == "PUBLISH");
    CHECK(reaches(sent.instant(4), 3000ms, begun));
    CHECK(heir.valid_until > Clock::now());
    CHECK(heir.valid_until < sent.at + 7s);
    CHECK(bench.client.stats().handoffs == 1);
    CHECK(bench.client.stats().acquisitions == 2);
    heir.finish();
    CHECK_FALSE(heir.unlocked);
    CHECK(bench.redis.sent("release").at(0).argument(0) == bench.owner(2));
}

TEST_CASE("after local_handoff_limit hand-overs in a row the lock is released to other processes") {
    HeldBench bench({.local_handoff_limit = 2});
    std::list<Taker> takers;
    for (std::uint64_t i = 1; i <= 3; ++i) {
        takers.emplace_back(bench);
        REQUIRE(takers.back().is_in_line(bench, i));
    }
    bench.lock.unlock();
    for (Taker& taker : takers) {
        REQUIRE(taker.is_back());
        CHECK(taker.held);
        taker.finish();
    }
    CHECK(bench.redis.history() == Sorts{"acquire", "hand over", "hand over", "release", "acquire", "release"});
}

TEST_CASE("a local_handoff_limit of 0 disables hand-overs") {
    HeldBench bench({.local_handoff_limit = 0});
    Taker taker(bench);
    REQUIRE(taker.is_in_line(bench));
    bench.lock.unlock();
    REQUIRE(taker.is_back());
    CHECK(bench.redis.history() == Sorts{"acquire", "release", "acquire"});
}

TEST_CASE("hand-over of a lost hold: the releasing thread gets hold_lost, and the heir asks for itself") {
    HeldBench bench;
    Taker heir(bench);
    REQUIRE(heir.is_in_line(bench));
    bench.redis.next("hand over", nil());
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
    REQUIRE(heir.is_back());
    CHECK(heir.held);
    CHECK(bench.redis.history() == Sorts{"acquire", "hand over", "acquire"});
    CHECK(bench.client.stats().lost_holds == 1);
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
    HeldBench bench;
    Taker first(bench);
    REQUIRE(first.is_in_line(bench));
    Taker second(bench);
    REQUIRE(second.is_in_line(bench, 2));
    bench.redis.next("hand over", ScriptedRedis::hold_back);
    auto trier = start([&] {
        if (!bench.redis.wait_for("hand over") || !bench.lock.try_lock()) return false;
        bench.lock.unlock();
        const bool second_is_back = second.is_back();
        bench.redis.answer(bench.redis.sent("hand over").at(0), nil());
        return second_is_back;
    });
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
    REQUIRE(trier.get());
    second.finish();
    REQUIRE(first.is_back());
    CHECK(first.held);
    CHECK(second.held);
}

TEST_CASE("a hand-over whose reply is lost is resent, and the heir's lease counts from the first sending") {
    // The resend finds the heir as the holder and prolongs nothing: on the server the lease began with the first
    // sending. Counted from the resend, the heir would trust a hold that others may already have.
    HeldBench bench;
    Taker heir(bench, Lease(5s));
    REQUIRE(heir.is_in_line(bench));
    bench.redis.next("hand over", [](const SentCommand&) {
        std::this_thread::sleep_for(50ms);
        return std::optional(lost());
    });
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK_FALSE(ec);
    REQUIRE(heir.is_back());
    REQUIRE(heir.held);
    const auto sent = bench.redis.sent("hand over");
    REQUIRE(sent.size() == 2);
    for (std::size_t i = 0; i < 4; ++i) CHECK(sent[1].argument(i) == sent[0].argument(i));
    CHECK(sent[1].instant(4) >= sent[0].instant(4));
    CHECK(heir.valid_until < sent[0].at + 5s);
}

// Late copies of both may still arrive, that of the acquire first: then the number of the heir holds the lock.
TEST_CASE("if an acquire and its hand-over were resent, the heir's number is released again later, too") {
    Bench bench({.command_timeout = 500ms});
    bench.redis.confirm_by_hand();
    bench.redis.next("acquire", lost());
    bench.lock.lock();
    Taker heir(bench);
    REQUIRE(heir.is_in_line(bench));
    std::this_thread::sleep_for(300ms);  // so much longer is the hand-over wanted than the acquire
    bench.redis.next("hand over", lost());
    bench.lock.unlock();
    REQUIRE(heir.is_back());
    REQUIRE(heir.held);
    heir.let_go = true;
    CHECK(is_given_up(bench, 1, bench.redis.sent("acquire").front().instant(3)));
    CHECK(is_given_up(bench, 2, bench.redis.sent("hand over").back().instant(4)));
}

TEST_CASE("if an acquire was resent and its hand-over gives the heir nothing, its number is released later, too") {
    for (const bool is_lost : {false, true}) {
        CAPTURE(is_lost);
        Bench bench({.command_timeout = 500ms});
        bench.redis.confirm_by_hand();
        bench.redis.next("acquire", lost());
        bench.lock.lock();
        const std::int64_t wanted_until = bench.redis.sent("acquire").front().instant(3);
        Taker heir(bench);
        REQUIRE(heir.is_in_line(bench));
        bench.redis.next("hand over", [&](const SentCommand&) {
            if (is_lost) return std::optional(nil());
            heir.stop.request_stop();
            CHECK(heir.is_back());
            return std::optional(number(1));
        });
        std::error_code ec;
        bench.lock.unlock(ec);
        CHECK(ec == (is_lost ? errc::hold_lost : std::error_code()));
        CHECK(is_given_up(bench, 1, wanted_until));
    }
}

TEST_CASE("a hand-over that arrived too late is resent, by the server time that the reply reported") {
    HeldBench bench;
    Taker heir(bench);
    REQUIRE(heir.is_in_line(bench));
    const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
    bench.redis.next("hand over", ScriptedRedis::late(ahead));
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK_FALSE(ec);
    REQUIRE(heir.is_back());
    CHECK(heir.held);
    const auto sent = bench.redis.sent("hand over");
    REQUIRE(sent.size() == 2);
    for (std::size_t i = 0; i < 4; ++i) CHECK(sent[1].argument(i) == sent[0].argument(i));
    CHECK(sent[1].instant(4) > ahead + 3000);
    CHECK(bench.client.stats().handoffs == 1);
    CHECK(bench.redis.count("give up") == 0);
}

TEST_CASE("a hand-over without a reply is undone for both owners by one command, and delays no thread") {
    HeldBench bench({.command_timeout = 20ms});
    Taker heir(bench);
    REQUIRE(heir.is_in_line(bench));
    bench.redis.always("hand over", lost());
    bench.redis.always("give up", ScriptedRedis::hold_back);
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::unreachable);
    REQUIRE(bench.redis.wait_for("give up"));
    const SentCommand given_up = bench.redis.sent("give up").at(0);
    CHECK(given_up.posted);
    CHECK(given_up.argument_count() == 4);
    CHECK(given_up.argument(2) == bench.owner(1));
    CHECK(given_up.argument(3) == bench.owner(2));
    for (const SentCommand& sent : bench.redis.sent("hand over")) CHECK(sent.argument(1) == bench.owner(2));

    // Each asks under a new number.
    REQUIRE(heir.is_back());
    CHECK(heir.held);
    bench.redis.next("acquire", number(1000));
    CHECK_FALSE(bench.lock.try_lock());
    const auto asked = bench.redis.sent("acquire");
    REQUIRE(asked.size() == 3);
    CHECK(asked[1].argument(0) == bench.owner(3));
    CHECK(asked[2].argument(0) == bench.owner(4));
    bench.redis.answer(given_up, number(ScriptedRedis::server_now() + 3'600'000));
    REQUIRE(bench.redis.publish("until the background has seen the answer"));
    heir.finish();
    CHECK_FALSE(heir.unlocked);
    CHECK(bench.redis.count("give up") == 1);
    CHECK(bench.client.stats().lost_holds == 0);
}

// It counted as still in flight, so no thread of this process asked for the lock again.
TEST_CASE("a hand-over without memory is undone for both owners, and the heir asks for itself") {
    struct NoMemory : std::exception {};
    HeldBench bench;
    Taker heir(bench, {}, 20s);
    REQUIRE(heir.is_in_line(bench));
    // Not std::bad_alloc, which makes the command count as not sent. A pause could throw this.
    bench.redis.next("hand over", [](const SentCommand&) -> std::optional<Reply> { throw NoMemory(); });
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::unreachable);
    REQUIRE(heir.is_back());
    CHECK(heir.held);
    heir.finish();
    CHECK_FALSE(heir.unlocked);
    REQUIRE(bench.redis.wait_for("give up"));
    CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner(1));
}

TEST_CASE("a thread that gives up during a hand-over to it does not keep the hold") {
    for (const bool by_stop : {false, true}) {
        HeldBench bench;
        Taker heir(bench, {}, by_stop ? std::optional<Milliseconds>() : 1500ms);
        REQUIRE(heir.is_in_line(bench));
        bench.redis.next("hand over", [&](const SentCommand&) {
            if (by_stop) heir.stop.request_stop();
            CHECK(heir.is_back());
            return std::optional(number(1));
        });
        std::error_code ec;
        bench.lock.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(heir.held);
        REQUIRE(bench.redis.wait_for("give up"));
        CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner(2));
    }
}

TEST_CASE("a hand-over that takes longer than the heir's lease gives no hold") {
    for (int i = 0; i < 5; ++i) {
        HeldBench bench;
        Taker heir(bench, Lease(20ms));
        REQUIRE(heir.is_in_line(bench));
        bench.redis.next("hand over", [](const SentCommand&) {
            std::this_thread::sleep_for(30ms);
            return std::optional(number(1));
        });
        // Its own command is answered as blocked. So if the thread returns, it trusts the hand-over.
        bench.redis.always("acquire", number(60'000));
        bench.lock.unlock();
        CHECK(eventually([&] { return heir.returned || bench.redis.count("acquire") >= 2; }));
        CHECK_FALSE(heir.returned);
    }
}

TEST_CASE("a malformed reply to a hand-over is reported by code, and gives the heir nothing") {
    for (const Reply& reply : {text("OK"), number(0), number(7), array({}), malformed()}) {
        CAPTURE(static_cast<int>(reply.kind));
        CAPTURE(reply.integer);
        HeldBench bench;
        Taker heir(bench);
        REQUIRE(heir.is_in_line(bench));
        bench.redis.next("hand over", reply);
        std::error_code ec;
        bench.lock.unlock(ec);
        CHECK(ec == errc::protocol_error);
        REQUIRE(bench.redis.wait_for("give up"));
        CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner(1));
        CHECK(bench.redis.sent("give up").at(0).argument(3) == bench.owner(2));
        REQUIRE(heir.is_back());
        CHECK(bench.redis.count("acquire") == 2);
        CHECK(bench.client.stats().handoffs == 0);
    }
}

TEST_CASE("a hand-over refused for good gives the heir nothing, and the heir gets the error from its own command") {
    HeldBench bench;
    Taker heir(bench);
    REQUIRE(heir.is_in_line(bench));
    bench.redis.next("hand over", error("WRONGTYPE x"));
    bench.redis.next("release", error("WRONGTYPE x"));
    bench.redis.next("acquire", error("WRONGTYPE x"));
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::wrong_type);
    REQUIRE(heir.is_back());
    CHECK(heir.failure == errc::wrong_type);
}

// Such a hold was reported as lost, and blocked all others for the rest of its lease.
TEST_CASE("if only the hand-over is refused for good, the hold is released by the usual script") {
    HeldBench bench;
    Taker heir(bench);
    REQUIRE(heir.is_in_line(bench));
    bench.redis.next("hand over", error("NOPERM x"));
    const auto releases = bench.redis.count("release");
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(bench.redis.count("release") > releases);
    REQUIRE(heir.is_back());
    CHECK(heir.held);
    CHECK(bench.client.stats().handoffs == 0);
    CHECK(bench.client.stats().lost_holds == 0);
}

TEST_CASE("a message that comes before the reply to the release is not lost") {
    // The server publishes the release before it writes the reply. The waiter that the message wakes finds the release
    // still in flight and sleeps again, indefinitely. So the releasing thread must wake it, although there are other
    // subscribers.
    HeldBench bench({.local_handoff_limit = 0});
    Taker waiter(bench);
    REQUIRE(waiter.is_in_line(bench));
    REQUIRE(bench.confirm());
    REQUIRE(waiter.is_in_line(bench));
    bench.redis.next("release", [&](const SentCommand&) {
        CHECK(bench.redis.publish(channel));
        CHECK(waiter.is_in_line(bench));
        return std::optional(number(2));
    });
    bench.lock.unlock();
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("with other subscribers a local waiter asks when the message comes, not before") {
    HeldBench bench({.local_handoff_limit = 0});
    Taker waiter(bench);
    REQUIRE(waiter.is_in_line(bench));
    REQUIRE(bench.confirm());
    REQUIRE(waiter.is_in_line(bench));
    bench.redis.next("release", number(2));
    bench.lock.unlock();
    REQUIRE(waiter.is_in_line(bench));
    CHECK(bench.redis.count("acquire") == 2);
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("without a confirmed subscription a local release wakes the waiter at once") {
    Bench bench({.local_handoff_limit = 0});
    bench.redis.confirm_by_hand();
    bench.lock.lock();
    Taker waiter(bench);
    REQUIRE(waiter.is_in_line(bench));
    bench.redis.next("release", number(2));
    bench.lock.unlock();
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("after a lost subscription the waiter asks again") {
    Bench bench;
    bench.redis.always("acquire", number(30'000));
    Taker waiter(bench);
    REQUIRE(is_waiting(bench));
    bench.redis.confirm_by_hand();
    REQUIRE(bench.redis.disconnect());
    CHECK(bench.redis.count("acquire") == 2);
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.confirm(channel));
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
}

TEST_CASE("a refused subscription is an error for all waiters") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.redis.always("acquire", number(30'000));
    Taker a(bench);
    REQUIRE(a.is_in_line(bench));
    Taker b(bench);
    REQUIRE(b.is_in_line(bench, 2));
    REQUIRE(bench.redis.wait_until_wanted(channel));
    REQUIRE(bench.redis.refuse(channel, error("NOPERM this user has no permissions to access one of the channels")));
    REQUIRE(a.is_back());
    REQUIRE(b.is_back());
    CHECK(a.failure == errc::rejected);
    CHECK(b.failure == errc::rejected);
    CHECK_FALSE(bench.redis.is_wanted(channel));
    // The next wait subscribes again.
    Taker c(bench);
    REQUIRE(bench.redis.wait_until_wanted(channel));
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.confirm(channel));
    REQUIRE(c.is_back());
    CHECK(c.held);
}

TEST_CASE("a stopped thread leaves the queue, and the next one asks in its place") {
    Bench bench;
    bench.redis.always("acquire", number(30'000));
    Taker first(bench);
    REQUIRE(is_waiting(bench));
    Taker second(bench, Lease(7s));
    REQUIRE(second.is_in_line(bench, 2));
    CHECK(bench.redis.sent("acquire").back().argument(2) == "30000");
    first.stop.request_stop();
    REQUIRE(first.is_back());
    CHECK_FALSE(first.held);
    CHECK_FALSE(first.failure);
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(second.is_back());
    CHECK(second.held);
    CHECK(bench.redis.sent("acquire").back().argument(2) == "7000");
    CHECK(bench.redis.count("release") == 0);
    CHECK(bench.redis.count("give up") == 0);
}

TEST_CASE("a message that reaches the representative at its deadline wakes the next waiter") {
    Bench bench;
    bench.redis.always("acquire", number(30'000));
    Taker first(bench, {}, 1500ms);
    REQUIRE(is_waiting(bench));
    Taker second(bench);
    REQUIRE(second.is_in_line(bench, 2));
    // The message comes during its last command, whose reply "blocked" comes after its deadline.
    bench.redis.next("acquire", [&](const SentCommand& sent) {
        CHECK(bench.redis.publish(channel));
        std::this_thread::sleep_until(sent.deadline + 1ms);
        return std::optional(number(30'000));
    });
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(first.is_back());
    REQUIRE(second.is_back());
    CHECK(second.held);
}

TEST_CASE("an error of the representative is its own, and the next waiter asks for itself") {
    Bench bench;
    bench.redis.always("acquire", number(30'000));
    Taker first(bench);
    REQUIRE(is_waiting(bench));
    Taker second(bench);
    REQUIRE(second.is_in_line(bench, 2));
    bench.redis.next("acquire", error("ERR something odd"));
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(first.is_back());
    CHECK(first.failure == errc::rejected);
    REQUIRE(second.is_back());
    CHECK(second.held);
}

TEST_CASE("when a thread of this process loses its hold, local waiters ask at once") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.lock.lock(Lease(1s));
    Taker waiter(bench);
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
    CHECK(bench.redis.history() == Sorts{"acquire", "acquire"});
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("a waiter behind an unreachable server inherits the time that others have already waited") {
    Bench bench({.command_timeout = 20ms, .unreachable_timeout = 3s});
    bench.redis.next("acquire", number(30'000));
    bench.redis.next("acquire", number(30'000));
    bench.redis.always("acquire", unreachable());
    Taker first(bench);
    REQUIRE(is_waiting(bench));
    Taker second(bench);
    REQUIRE(second.is_in_line(bench, 2));
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(eventually([&] { return first.returned.load(); }, 20s));
    CHECK(first.failure == errc::unreachable);
    REQUIRE(eventually([&] { return second.returned.load(); }, 20s));
    CHECK(second.failure == errc::unreachable);
    // Not the whole time again, only the 100 ms of one full try.
    CHECK(second.returned_at - first.returned_at < 2500ms);
}
