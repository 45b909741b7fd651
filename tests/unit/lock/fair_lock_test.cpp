// SPDX-License-Identifier: MIT
// FairLock against a scripted server: the commands of each waiter, refreshes, and leaving the queue.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <list>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
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

struct Fixture {
    explicit Fixture(const ClientOptions& options = {})
        : client(redis.transport(), without_grants(options)), lock(client, "orders") {}

    // The owner of a hold or of a slot in the queue, as it is written on the wire.
    std::string owner(std::uint64_t number = 1) const { return client.id() + ":" + std::to_string(number); }
    static std::string channel(const std::string& owner) { return "redisson_lock__channel:{orders}:" + owner; }

    std::size_t asked_as(const std::string& owner) const {
        std::size_t count = 0;
        for (const SentCommand& command : redis.sent("fair acquire")) count += command.argument(2) == owner;
        return count;
    }

    ScriptedRedis redis;
    Client client;
    FairLock lock;
};

// The shortest slot lasts 100 ms.
ClientOptions quick() { return {.watchdog_timeout = 600ms}; }

// A thread that waits for the lock, holds it until let_go is set, and releases it. Identified by its lease.
class Taker {
public:
    explicit Taker(Fixture& fixture, Milliseconds timeout = Milliseconds::max())
        : lease_(std::chrono::hours(1) + Milliseconds(++takers)), bench_(fixture), thread_([this, &fixture, timeout] {
              try {
                  held = fixture.lock.try_lock_for(timeout, Lease(lease_), stop.get_token());
              } catch (const Error& e) {
                  failure = e.code();
              }
              returned = true;
              while (held && !let_go) std::this_thread::sleep_for(1ms);
              if (held) fixture.lock.unlock();
          }) {}

    ~Taker() {
        stop.request_stop();
        finish();
    }

    bool is_back() {
        return eventually([&] { return returned.load(); });
    }

    // Returns true once the thread was blocked, has subscribed, was blocked again, and so sleeps now.
    bool is_waiting(std::size_t asks = 2) {
        return eventually([&] { return asked() >= asks; }) && bench_.redis.wait_until_wanted(channel());
    }

    std::size_t asked() const { return questions().size(); }
    // Its latest number, if it has abandoned an earlier one.
    std::string owner() const { return questions().back().argument(2); }
    std::string channel() const { return Fixture::channel(owner()); }

    void finish() {
        let_go = true;
        if (thread_.joinable()) thread_.join();
    }

    std::stop_source stop;
    std::atomic<bool> returned = false;
    std::atomic<bool> let_go = false;
    // Written before `returned`.
    bool held = false;
    std::error_code failure;

private:
    static inline std::atomic<int> takers = 0;

    std::vector<SentCommand> questions() const {
        std::vector<SentCommand> mine = bench_.redis.sent("fair acquire");
        std::erase_if(mine, [this](const SentCommand& c) { return c.argument(4) != std::to_string(lease_.count()); });
        return mine;
    }

    const Milliseconds lease_;
    Fixture& bench_;
    std::thread thread_;
};

}  // namespace

TEST_CASE("acquiring a fair lock: Redisson's keys and channels, the owner, and a slot of five seconds") {
    Fixture fixture;
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.lock.lock();
    REQUIRE(fixture.redis.count("fair acquire") == 1);
    const SentCommand sent = fixture.redis.sent("fair acquire").at(0);
    REQUIRE(sent.key_count() == 4);
    CHECK(sent.key(0) == "orders");
    CHECK(sent.key(1) == "redisson_lock_queue:{orders}");
    CHECK(sent.key(2) == "redisson_lock_timeout:{orders}");
    CHECK(sent.key(3) == "redlatch_lock_slots:{orders}");
    CHECK(sent.argument(0) == "PUBLISH");
    CHECK(sent.argument(1) == "redisson_lock__channel:{orders}:");
    CHECK(sent.argument(2) == fixture.owner());
    CHECK(sent.argument(3) == "1");
    CHECK(sent.argument(4) == "30000");
    CHECK(sent.argument(5) == "5000");
    CHECK(reaches(sent.instant(6), 3000ms, begun));
    fixture.lock.lock();
    CHECK(fixture.redis.sent("fair acquire").at(1).argument(2) == fixture.owner());
    CHECK(fixture.redis.sent("fair acquire").at(1).argument(3) == "2");
    fixture.lock.unlock();
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("fair release").at(0).key_count() == 4);
    CHECK(fixture.redis.sent("fair release").at(0).argument(2) == fixture.owner());
    CHECK(fixture.redis.sent("fair release").at(0).argument(3) == "1");
    CHECK(fixture.redis.sent("fair release").at(1).argument(3) == "0");
    CHECK(fixture.redis.history().size() == 4);
}

TEST_CASE("try_lock() requests no slot in the queue and sends nothing afterwards") {
    Fixture fixture;
    fixture.redis.always("fair acquire", number(30'000));
    CHECK_FALSE(fixture.lock.try_lock());
    CHECK_FALSE(fixture.lock.try_lock_for(0ms));
    CHECK(fixture.redis.sent("fair acquire").at(0).argument(5) == "0");
    CHECK(fixture.redis.sent("fair acquire").at(1).argument(5) == "0");
    CHECK(fixture.redis.history().size() == 2);
    for (const std::uint64_t number : {1U, 2U})
        CHECK_FALSE(fixture.redis.is_wanted(Fixture::channel(fixture.owner(number))));
}

TEST_CASE("a waiter subscribes to its own channel, asks once more, and then only after a message") {
    Fixture fixture;
    fixture.redis.confirm_by_hand();
    fixture.redis.always("fair acquire", number(30'000));
    Taker taker(fixture);
    REQUIRE(taker.is_waiting(1));
    CHECK(fixture.redis.count("fair acquire") == 1);
    REQUIRE(fixture.redis.confirm(taker.channel()));
    REQUIRE(fixture.redis.wait_for("fair acquire", 2));
    REQUIRE(fixture.redis.publish("redisson_lock__channel:{orders}"));
    CHECK(fixture.redis.count("fair acquire") == 2);
    fixture.redis.always("fair acquire", nil());
    REQUIRE(fixture.redis.publish(taker.channel()));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(fixture.redis.count("fair acquire") == 3);
    taker.finish();
    CHECK(fixture.redis.count("fair leave") == 0);
}

TEST_CASE("a message wakes only the waiter it is for, and a release goes to the server despite local waiters") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.always("fair acquire", number(30'000));
    Taker first(fixture);
    REQUIRE(first.is_waiting());
    Taker second(fixture);
    REQUIRE(second.is_waiting());
    fixture.lock.unlock();
    CHECK(fixture.redis.count("fair release") == 1);
    CHECK(fixture.redis.count("hand over") == 0);
    fixture.redis.always("fair acquire", nil());
    REQUIRE(fixture.redis.publish(second.channel()));
    REQUIRE(second.is_back());
    CHECK(second.held);
    CHECK(first.asked() == 2);
    CHECK_FALSE(first.returned);
    REQUIRE(fixture.redis.publish(first.channel()));
    REQUIRE(first.is_back());
}

TEST_CASE("a thread that waits again while still subscribed asks once, and misses no message meanwhile") {
    Fixture fixture;
    std::atomic<int> publish_during = 0;
    fixture.redis.always("fair acquire", [&](const SentCommand&) {
        return std::optional(--publish_during >= 0 ? number(30'000) : nil());
    });
    const std::string who = fixture.owner(1);  // in both rounds
    std::atomic<int> round = 0;
    publish_during = 2;
    std::jthread thread([&] {
        for (int i = 0; i < 2; ++i) {
            fixture.lock.lock();
            fixture.lock.unlock();
            publish_during = 1;
            ++round;
        }
    });
    REQUIRE(fixture.redis.wait_for("fair acquire", 2));
    REQUIRE(fixture.redis.publish(Fixture::channel(who)));
    REQUIRE(eventually([&] { return round >= 1; }));
    REQUIRE(eventually([&] { return fixture.asked_as(who) == 4; }));
    REQUIRE(fixture.redis.publish(Fixture::channel(who)));
    thread.join();
    CHECK(fixture.asked_as(who) == 5);
}

TEST_CASE("a message that arrives while the acquire command is in flight is not lost") {
    Fixture fixture;
    fixture.redis.next("fair acquire", number(30'000));
    fixture.redis.next("fair acquire", ScriptedRedis::hold_back);
    Taker taker(fixture);
    REQUIRE(taker.is_waiting());
    REQUIRE(fixture.redis.publish(taker.channel()));
    fixture.redis.answer(fixture.redis.sent("fair acquire").at(1), number(30'000));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
}

TEST_CASE(
    "without a message a waiter asks again at the time in the reply, and after a pause if the reply names no time") {
    Fixture fixture;
    fixture.redis.next("fair acquire", number(30'000));
    fixture.redis.next("fair acquire", number(60));
    fixture.redis.next("fair acquire", number(60));
    const Instant begun = Clock::now();
    Taker taker(fixture);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(Clock::now() - begun >= 120ms);
    CHECK(fixture.redis.count("fair acquire") == 4);
    taker.finish();

    fixture.redis.always("fair acquire", number(-1));
    Taker other(fixture, 1s);
    REQUIRE(other.is_back());
    CHECK_FALSE(other.held);
    CHECK(other.asked() == 1);  // It is still subscribed, so it uses the first number again.
    CHECK(other.owner() == fixture.owner(1));
}

TEST_CASE("all waiters of a lock are refreshed in one command, and a waiter that lost its slot joins the queue again") {
    Fixture fixture(quick());
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.redis.always("fair acquire", number(30'000));
    Taker first(fixture);
    REQUIRE(first.is_waiting());
    Taker second(fixture);
    REQUIRE(second.is_waiting());
    const std::size_t before = fixture.redis.count("fair refresh");
    fixture.redis.next("fair refresh", array({number(1), number(1)}));
    fixture.redis.next("fair refresh", array({number(1), number(0)}));
    REQUIRE(fixture.redis.wait_for("fair refresh", before + 6));
    const auto sent = fixture.redis.sent("fair refresh");
    const SentCommand& refresh = sent.at(before + 1);
    CHECK(refresh.posted);
    CHECK(refresh.argument(2) == "100");
    CHECK(reaches(refresh.instant(3), 3000ms, begun));
    CHECK(refresh.argument(4) == first.owner());
    CHECK(refresh.argument(5) == second.owner());
    // One every 33 ms. The first of them may have been sent late.
    CHECK(sent.at(before + 5).at - sent.at(before).at >= 50ms);
    CHECK(eventually([&] { return second.asked() == 3; }));
    CHECK(first.asked() == 2);
}

TEST_CASE("a refresh that arrived too late is resent soon, by the server time that the reply reported") {
    CHECK(eventually(
        [] {                  // a busy machine may be late once
            Fixture fixture;  // due every 1666 ms
            fixture.redis.always("fair acquire", number(30'000));
            const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
            fixture.redis.next("fair refresh", ScriptedRedis::late(ahead));
            Taker taker(fixture);
            if (!fixture.redis.wait_for("fair refresh", 2)) return false;
            const auto sent = fixture.redis.sent("fair refresh");
            CHECK(sent.at(0).instant(3) < ahead);
            CHECK(sent.at(1).instant(3) > ahead + 3000);
            CHECK_FALSE(taker.returned);
            return sent.at(1).at - sent.at(0).at < 1400ms;
        },
        20s));
}

TEST_CASE("a refresh names at most a hundred waiters, and refreshes end with the last waiter") {
    Fixture fixture(quick());
    fixture.redis.always("fair acquire", number(30'000));
    std::list<Taker> takers;
    for (int i = 0; i < 101; ++i) takers.emplace_back(fixture);
    REQUIRE(eventually([&] { return fixture.client.stats().waits == 101; }));
    const auto words = [&](std::size_t waiters) {
        for (const SentCommand& command : fixture.redis.sent("fair refresh"))
            if (command.words.size() == 3 + 4 + 4 + waiters) return true;
        return false;
    };
    CHECK(eventually([&] { return words(100) && words(1); }));
    CHECK_FALSE(words(101));
    for (Taker& taker : takers) taker.stop.request_stop();
    for (Taker& taker : takers) taker.finish();
    REQUIRE(fixture.redis.publish("another channel"));  // a refresh that was under way has been sent by then
    const std::size_t refreshes = fixture.redis.count("fair refresh");
    CHECK_FALSE(eventually([&] { return fixture.redis.count("fair refresh") > refreshes; }, 100ms));
}

TEST_CASE("a refresh without a reply is resent soon") {
    CHECK(eventually(
        [] {                  // a busy machine may be late once
            Fixture fixture;  // due every 1666 ms
            fixture.redis.always("fair acquire", number(30'000));
            fixture.redis.next("fair refresh", lost());
            Taker taker(fixture);
            if (!fixture.redis.wait_for("fair refresh", 2)) return false;
            const auto sent = fixture.redis.sent("fair refresh");
            return sent.at(1).at - sent.at(0).at < 1400ms;
        },
        20s));
}

TEST_CASE("a waiter that gives up leaves the queue and unsubscribes") {
    Fixture fixture;
    fixture.redis.always("fair acquire", number(30'000));
    for (const bool by_deadline : {true, false}) {
        CAPTURE(by_deadline);
        Taker taker(fixture, by_deadline ? 1500ms : Milliseconds::max());
        REQUIRE(taker.is_waiting());
        if (!by_deadline) taker.stop.request_stop();
        REQUIRE(taker.is_back());
        CHECK_FALSE(taker.held);
        REQUIRE(fixture.redis.wait_for("fair leave", by_deadline ? 1 : 2));
        const SentCommand left = fixture.redis.sent("fair leave").back();
        CHECK(left.posted);
        CHECK(left.argument_count() == 3);
        CHECK(left.argument(2) == taker.owner());
        CHECK_FALSE(fixture.redis.is_wanted(taker.channel()));
    }
}

TEST_CASE("a waiter that fails leaves the queue, too") {
    SUBCASE("the server refuses its command") {
        Fixture fixture;
        fixture.redis.next("fair acquire", number(30'000));
        fixture.redis.next("fair acquire", error("WRONGTYPE of all things"));
        Taker taker(fixture);
        REQUIRE(taker.is_back());
        CHECK(taker.failure == errc::wrong_type);
        CHECK(fixture.redis.wait_for("fair leave"));
        CHECK_FALSE(fixture.redis.is_wanted(taker.channel()));
    }
    SUBCASE("the server refuses its subscription") {
        Fixture fixture;
        fixture.redis.confirm_by_hand();
        fixture.redis.always("fair acquire", number(30'000));
        Taker taker(fixture);
        REQUIRE(taker.is_waiting(1));
        REQUIRE(fixture.redis.refuse(taker.channel(), error("NOPERM no channels for you")));
        REQUIRE(taker.is_back());
        CHECK(taker.failure == errc::rejected);
        CHECK(fixture.redis.wait_for("fair leave"));
    }
    SUBCASE("the server is unreachable") {
        Fixture fixture({.command_timeout = 200ms, .unreachable_timeout = 1s});
        fixture.redis.next("fair acquire", number(30'000));
        fixture.redis.always("fair acquire", lost());
        Taker taker(fixture);
        REQUIRE(taker.is_back());
        CHECK(taker.failure == errc::unreachable);
        CHECK(fixture.redis.wait_for("fair leave"));
    }
}

TEST_CASE("server that was never reached, or that refuses temporarily: no leave command is sent") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    for (const Reply& reply : {unreachable(), error("LOADING Redis is loading the dataset in memory")}) {
        fixture.redis.always("fair acquire", reply);
        std::error_code ec;
        fixture.lock.lock(ec);
        CHECK(ec == errc::unreachable);
    }
    CHECK(fixture.redis.count("fair leave") == 0);
}

TEST_CASE("leaving is resent until it is answered, and delays no thread: the next try uses another number") {
    Fixture fixture;
    fixture.redis.always("fair acquire", number(30'000));
    fixture.redis.next("fair leave", lost());
    fixture.redis.next("fair leave", ScriptedRedis::hold_back);
    CHECK_FALSE(fixture.lock.try_lock_for(20ms));
    REQUIRE(fixture.redis.wait_for("fair leave", 2));
    const auto left = fixture.redis.sent("fair leave");
    CHECK(left.at(0).argument(2) == fixture.owner(1));
    CHECK(left.at(1).words == left.at(0).words);
    fixture.redis.always("fair acquire", nil());
    CHECK(fixture.lock.try_lock_for(20s));
    CHECK(fixture.redis.sent("fair acquire").back().argument(2) == fixture.owner(2));
    fixture.redis.answer(left.at(1), number(ScriptedRedis::server_now()));
    REQUIRE(fixture.redis.publish("until the background has seen the answer"));
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.unlock();
    CHECK(fixture.redis.count("fair leave") == 2);
}

TEST_CASE("a message names a time in milliseconds: the waiter asks then, unless another message arrives earlier") {
    Fixture fixture;
    fixture.redis.always("fair acquire", number(30'000));
    Taker taker(fixture);
    REQUIRE(taker.is_waiting());
    fixture.redis.always("fair acquire", nil());
    const Instant told = Clock::now();
    REQUIRE(fixture.redis.publish(taker.channel(), "500"));
    SUBCASE("no other message") {
        REQUIRE(taker.is_back());
        CHECK(fixture.redis.sent("fair acquire").at(2).at - told > 500ms);
        CHECK(fixture.redis.sent("fair acquire").at(2).at - told < 10s);  // of 30
    }
    SUBCASE("the lock becomes free earlier") {
        REQUIRE(fixture.redis.publish(taker.channel(), "0"));
        REQUIRE(taker.is_back());
        CHECK(Clock::now() - told < 10s);
    }
    CHECK(taker.held);
    CHECK(taker.asked() == 3);
}

TEST_CASE("a number is used for another hold, but not while a command in its name may be in flight") {
    enum class Unanswered { nothing, acquire, release };
    for (const auto unanswered : {Unanswered::nothing, Unanswered::acquire, Unanswered::release}) {
        CAPTURE(static_cast<int>(unanswered));
        Fixture fixture({.command_timeout = 500ms});
        fixture.redis.next("fair acquire", number(30'000));
        fixture.redis.next("fair acquire", number(30'000));
        std::jthread waiter([&] {
            fixture.lock.lock(Lease(1h));
            fixture.lock.unlock();
        });
        REQUIRE(fixture.redis.wait_for("fair acquire", 2));
        if (unanswered == Unanswered::acquire) fixture.redis.next("fair acquire", lost());
        if (unanswered == Unanswered::release) fixture.redis.next("fair release", lost());
        REQUIRE(fixture.redis.publish(Fixture::channel(fixture.owner(1))));
        waiter.join();
        CHECK(fixture.redis.sent("fair release").back().argument(2) == fixture.owner(1));

        fixture.lock.lock();
        const std::string next = fixture.redis.sent("fair acquire").back().argument(2);
        CHECK(next == fixture.owner(unanswered == Unanswered::nothing ? 1 : 2));
        fixture.lock.unlock();
        // The number of an acquire command without a reply is released, too.
        if (unanswered == Unanswered::acquire) {
            REQUIRE(fixture.redis.wait_for("fair leave"));
            CHECK(fixture.redis.sent("fair leave").at(0).argument(2) == fixture.owner(1));
        } else {
            CHECK(fixture.redis.count("fair leave") == 0);
        }
    }
}

TEST_CASE("after a lost connection a waiter asks again as soon as its subscription is confirmed") {
    Fixture fixture;
    fixture.redis.always("fair acquire", number(30'000));
    Taker taker(fixture);
    REQUIRE(taker.is_waiting());
    REQUIRE(fixture.redis.disconnect());
    fixture.redis.always("fair acquire", nil());
    REQUIRE(fixture.redis.confirm(taker.channel()));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
}

TEST_CASE("while all replies come too late, a call still ends at its deadline, or when it is told to stop") {
    Fixture fixture;
    fixture.redis.always("fair acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(20ms);
        return std::optional(nil());
    });
    auto in_time = start([&] { return fixture.lock.try_lock_for(100ms, Lease{10ms}); });
    REQUIRE(in_time.wait_for(10s) == std::future_status::ready);
    CHECK_FALSE(in_time.get());
    std::stop_source stop;
    auto stopped = start([&] { return fixture.lock.lock(Lease{10ms}, stop.get_token()); });
    REQUIRE(fixture.redis.wait_for("fair acquire", fixture.redis.count("fair acquire") + 3));
    stop.request_stop();
    REQUIRE(stopped.wait_for(10s) == std::future_status::ready);
    CHECK_FALSE(stopped.get());
}

TEST_CASE("a hold whose reply came too late is released, and requested again") {
    Fixture fixture;
    fixture.redis.next("fair acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(20ms);
        return std::optional(nil());
    });
    SUBCASE("while the first number is being released") { fixture.redis.next("fair leave", ScriptedRedis::hold_back); }
    SUBCASE("after the first number was released") { fixture.redis.answer_before_post_returns("fair leave"); }
    CHECK(fixture.lock.try_lock_for(20s, Lease{10ms}));
    CHECK(fixture.redis.count("fair leave") >= 1);
    CHECK(fixture.redis.sent("fair leave").at(0).argument(2) == fixture.owner(1));
    REQUIRE(fixture.redis.count("fair acquire") >= 2);
    CHECK(fixture.redis.sent("fair acquire").at(1).argument(2) == fixture.owner(2));
    std::error_code ec;
    fixture.lock.unlock(ec);
}
