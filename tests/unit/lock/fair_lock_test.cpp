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

struct Bench {
    explicit Bench(const ClientOptions& options = {})
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
    explicit Taker(Bench& bench, Milliseconds timeout = Milliseconds::max())
        : lease_(std::chrono::hours(1) + Milliseconds(++takers)), bench_(bench), thread_([this, &bench, timeout] {
              try {
                  held = bench.lock.try_lock_for(timeout, Lease(lease_), stop.get_token());
              } catch (const Error& e) {
                  failure = e.code();
              }
              returned = true;
              while (held && !let_go) std::this_thread::sleep_for(1ms);
              if (held) bench.lock.unlock();
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
    std::string channel() const { return Bench::channel(owner()); }

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
    Bench& bench_;
    std::thread thread_;
};

}  // namespace

TEST_CASE("acquiring a fair lock: Redisson's keys and channels, the owner, and a slot of five seconds") {
    Bench bench;
    const std::int64_t begun = ScriptedRedis::server_now();
    bench.lock.lock();
    REQUIRE(bench.redis.count("fair acquire") == 1);
    const SentCommand sent = bench.redis.sent("fair acquire").at(0);
    REQUIRE(sent.key_count() == 4);
    CHECK(sent.key(0) == "orders");
    CHECK(sent.key(1) == "redisson_lock_queue:{orders}");
    CHECK(sent.key(2) == "redisson_lock_timeout:{orders}");
    CHECK(sent.key(3) == "redlatch_lock_slots:{orders}");
    CHECK(sent.argument(0) == "PUBLISH");
    CHECK(sent.argument(1) == "redisson_lock__channel:{orders}:");
    CHECK(sent.argument(2) == bench.owner());
    CHECK(sent.argument(3) == "1");
    CHECK(sent.argument(4) == "30000");
    CHECK(sent.argument(5) == "5000");
    CHECK(reaches(sent.instant(6), 3000ms, begun));
    bench.lock.lock();
    CHECK(bench.redis.sent("fair acquire").at(1).argument(2) == bench.owner());
    CHECK(bench.redis.sent("fair acquire").at(1).argument(3) == "2");
    bench.lock.unlock();
    bench.lock.unlock();
    CHECK(bench.redis.sent("fair release").at(0).key_count() == 4);
    CHECK(bench.redis.sent("fair release").at(0).argument(2) == bench.owner());
    CHECK(bench.redis.sent("fair release").at(0).argument(3) == "1");
    CHECK(bench.redis.sent("fair release").at(1).argument(3) == "0");
    CHECK(bench.redis.history().size() == 4);
}

TEST_CASE("try_lock() requests no slot in the queue and sends nothing afterwards") {
    Bench bench;
    bench.redis.always("fair acquire", number(30'000));
    CHECK_FALSE(bench.lock.try_lock());
    CHECK_FALSE(bench.lock.try_lock_for(0ms));
    CHECK(bench.redis.sent("fair acquire").at(0).argument(5) == "0");
    CHECK(bench.redis.sent("fair acquire").at(1).argument(5) == "0");
    CHECK(bench.redis.history().size() == 2);
    for (const std::uint64_t number : {1U, 2U}) CHECK_FALSE(bench.redis.is_wanted(Bench::channel(bench.owner(number))));
}

TEST_CASE("a waiter subscribes to its own channel, asks once more, and then only after a message") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.redis.always("fair acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(taker.is_waiting(1));
    CHECK(bench.redis.count("fair acquire") == 1);
    REQUIRE(bench.redis.confirm(taker.channel()));
    REQUIRE(bench.redis.wait_for("fair acquire", 2));
    REQUIRE(bench.redis.publish("redisson_lock__channel:{orders}"));
    CHECK(bench.redis.count("fair acquire") == 2);
    bench.redis.always("fair acquire", nil());
    REQUIRE(bench.redis.publish(taker.channel()));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(bench.redis.count("fair acquire") == 3);
    taker.finish();
    CHECK(bench.redis.count("fair leave") == 0);
}

TEST_CASE("a message wakes only the waiter it is for, and a release goes to the server despite local waiters") {
    Bench bench;
    bench.lock.lock();
    bench.redis.always("fair acquire", number(30'000));
    Taker first(bench);
    REQUIRE(first.is_waiting());
    Taker second(bench);
    REQUIRE(second.is_waiting());
    bench.lock.unlock();
    CHECK(bench.redis.count("fair release") == 1);
    CHECK(bench.redis.count("hand over") == 0);
    bench.redis.always("fair acquire", nil());
    REQUIRE(bench.redis.publish(second.channel()));
    REQUIRE(second.is_back());
    CHECK(second.held);
    CHECK(first.asked() == 2);
    CHECK_FALSE(first.returned);
    REQUIRE(bench.redis.publish(first.channel()));
    REQUIRE(first.is_back());
}

TEST_CASE("a thread that waits again while still subscribed asks once, and misses no message meanwhile") {
    Bench bench;
    std::atomic<int> publish_during = 0;
    bench.redis.always("fair acquire", [&](const SentCommand&) {
        return std::optional(--publish_during >= 0 ? number(30'000) : nil());
    });
    const std::string who = bench.owner(1);  // in both rounds
    std::atomic<int> round = 0;
    publish_during = 2;
    std::jthread thread([&] {
        for (int i = 0; i < 2; ++i) {
            bench.lock.lock();
            bench.lock.unlock();
            publish_during = 1;
            ++round;
        }
    });
    REQUIRE(bench.redis.wait_for("fair acquire", 2));
    REQUIRE(bench.redis.publish(Bench::channel(who)));
    REQUIRE(eventually([&] { return round >= 1; }));
    REQUIRE(eventually([&] { return bench.asked_as(who) == 4; }));
    REQUIRE(bench.redis.publish(Bench::channel(who)));
    thread.join();
    CHECK(bench.asked_as(who) == 5);
}

TEST_CASE("a message that arrives while the acquire command is in flight is not lost") {
    Bench bench;
    bench.redis.next("fair acquire", number(30'000));
    bench.redis.next("fair acquire", ScriptedRedis::hold_back);
    Taker taker(bench);
    REQUIRE(taker.is_waiting());
    REQUIRE(bench.redis.publish(taker.channel()));
    bench.redis.answer(bench.redis.sent("fair acquire").at(1), number(30'000));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
}

TEST_CASE(
    "without a message a waiter asks again at the time in the reply, and after a pause if the reply names no time") {
    Bench bench;
    bench.redis.next("fair acquire", number(30'000));
    bench.redis.next("fair acquire", number(60));
    bench.redis.next("fair acquire", number(60));
    const Instant begun = Clock::now();
    Taker taker(bench);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(Clock::now() - begun >= 120ms);
    CHECK(bench.redis.count("fair acquire") == 4);
    taker.finish();

    bench.redis.always("fair acquire", number(-1));
    Taker other(bench, 1s);
    REQUIRE(other.is_back());
    CHECK_FALSE(other.held);
    CHECK(other.asked() == 1);  // It is still subscribed, so it uses the first number again.
    CHECK(other.owner() == bench.owner(1));
}

TEST_CASE("all waiters of a lock are refreshed in one command, and a waiter that lost its slot joins the queue again") {
    Bench bench(quick());
    const std::int64_t begun = ScriptedRedis::server_now();
    bench.redis.always("fair acquire", number(30'000));
    Taker first(bench);
    REQUIRE(first.is_waiting());
    Taker second(bench);
    REQUIRE(second.is_waiting());
    const std::size_t before = bench.redis.count("fair refresh");
    bench.redis.next("fair refresh", array({number(1), number(1)}));
    bench.redis.next("fair refresh", array({number(1), number(0)}));
    REQUIRE(bench.redis.wait_for("fair refresh", before + 6));
    const auto sent = bench.redis.sent("fair refresh");
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
        [] {              // a busy machine may be late once
            Bench bench;  // due every 1666 ms
            bench.redis.always("fair acquire", number(30'000));
            const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
            bench.redis.next("fair refresh", ScriptedRedis::late(ahead));
            Taker taker(bench);
            if (!bench.redis.wait_for("fair refresh", 2)) return false;
            const auto sent = bench.redis.sent("fair refresh");
            CHECK(sent.at(0).instant(3) < ahead);
            CHECK(sent.at(1).instant(3) > ahead + 3000);
            CHECK_FALSE(taker.returned);
            return sent.at(1).at - sent.at(0).at < 1400ms;
        },
        20s));
}

TEST_CASE("a refresh names at most a hundred waiters, and refreshes end with the last waiter") {
    Bench bench(quick());
    bench.redis.always("fair acquire", number(30'000));
    std::list<Taker> takers;
    for (int i = 0; i < 101; ++i) takers.emplace_back(bench);
    REQUIRE(eventually([&] { return bench.client.stats().waits == 101; }));
    const auto words = [&](std::size_t waiters) {
        for (const SentCommand& command : bench.redis.sent("fair refresh"))
            if (command.words.size() == 3 + 4 + 4 + waiters) return true;
        return false;
    };
    CHECK(eventually([&] { return words(100) && words(1); }));
    CHECK_FALSE(words(101));
    for (Taker& taker : takers) taker.stop.request_stop();
    for (Taker& taker : takers) taker.finish();
    REQUIRE(bench.redis.publish("another channel"));  // a refresh that was under way has been sent by then
    const std::size_t refreshes = bench.redis.count("fair refresh");
    CHECK_FALSE(eventually([&] { return bench.redis.count("fair refresh") > refreshes; }, 100ms));
}

TEST_CASE("a refresh without a reply is resent soon") {
    CHECK(eventually(
        [] {              // a busy machine may be late once
            Bench bench;  // due every 1666 ms
            bench.redis.always("fair acquire", number(30'000));
            bench.redis.next("fair refresh", lost());
            Taker taker(bench);
            if (!bench.redis.wait_for("fair refresh", 2)) return false;
            const auto sent = bench.redis.sent("fair refresh");
            return sent.at(1).at - sent.at(0).at < 1400ms;
        },
        20s));
}

TEST_CASE("a waiter that gives up leaves the queue and unsubscribes") {
    Bench bench;
    bench.redis.always("fair acquire", number(30'000));
    for (const bool by_deadline : {true, false}) {
        CAPTURE(by_deadline);
        Taker taker(bench, by_deadline ? 1500ms : Milliseconds::max());
        REQUIRE(taker.is_waiting());
        if (!by_deadline) taker.stop.request_stop();
        REQUIRE(taker.is_back());
        CHECK_FALSE(taker.held);
        REQUIRE(bench.redis.wait_for("fair leave", by_deadline ? 1 : 2));
        const SentCommand left = bench.redis.sent("fair leave").back();
        CHECK(left.posted);
        CHECK(left.argument_count() == 3);
        CHECK(left.argument(2) == taker.owner());
        CHECK_FALSE(bench.redis.is_wanted(taker.channel()));
    }
}

TEST_CASE("a waiter that fails leaves the queue, too") {
    SUBCASE("the server refuses its command") {
        Bench bench;
        bench.redis.next("fair acquire", number(30'000));
        bench.redis.next("fair acquire", error("WRONGTYPE of all things"));
        Taker taker(bench);
        REQUIRE(taker.is_back());
        CHECK(taker.failure == errc::wrong_type);
        CHECK(bench.redis.wait_for("fair leave"));
        CHECK_FALSE(bench.redis.is_wanted(taker.channel()));
    }
    SUBCASE("the server refuses its subscription") {
        Bench bench;
        bench.redis.confirm_by_hand();
        bench.redis.always("fair acquire", number(30'000));
        Taker taker(bench);
        REQUIRE(taker.is_waiting(1));
        REQUIRE(bench.redis.refuse(taker.channel(), error("NOPERM no channels for you")));
        REQUIRE(taker.is_back());
        CHECK(taker.failure == errc::rejected);
        CHECK(bench.redis.wait_for("fair leave"));
    }
    SUBCASE("the server is unreachable") {
        Bench bench({.command_timeout = 200ms, .unreachable_timeout = 1s});
        bench.redis.next("fair acquire", number(30'000));
        bench.redis.always("fair acquire", lost());
        Taker taker(bench);
        REQUIRE(taker.is_back());
        CHECK(taker.failure == errc::unreachable);
        CHECK(bench.redis.wait_for("fair leave"));
    }
}

TEST_CASE("server that was never reached, or that refuses temporarily: no leave command is sent") {
    Bench bench({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    for (const Reply& reply : {unreachable(), error("LOADING Redis is loading the dataset in memory")}) {
        bench.redis.always("fair acquire", reply);
        std::error_code ec;
        bench.lock.lock(ec);
        CHECK(ec == errc::unreachable);
    }
    CHECK(bench.redis.count("fair leave") == 0);
}

TEST_CASE("leaving is resent until it is answered, and delays no thread: the next try uses another number") {
    Bench bench;
    bench.redis.always("fair acquire", number(30'000));
    bench.redis.next("fair leave", lost());
    bench.redis.next("fair leave", ScriptedRedis::hold_back);
    CHECK_FALSE(bench.lock.try_lock_for(20ms));
    REQUIRE(bench.redis.wait_for("fair leave", 2));
    const auto left = bench.redis.sent("fair leave");
    CHECK(left.at(0).argument(2) == bench.owner(1));
    CHECK(left.at(1).words == left.at(0).words);
    bench.redis.always("fair acquire", nil());
    CHECK(bench.lock.try_lock_for(20s));
    CHECK(bench.redis.sent("fair acquire").back().argument(2) == bench.owner(2));
    bench.redis.answer(left.at(1), number(ScriptedRedis::server_now()));
    REQUIRE(bench.redis.publish("until the background has seen the answer"));
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.lock.unlock();
    CHECK(bench.redis.count("fair leave") == 2);
}

TEST_CASE("a message names a time in milliseconds: the waiter asks then, unless another message arrives earlier") {
    Bench bench;
    bench.redis.always("fair acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(taker.is_waiting());
    bench.redis.always("fair acquire", nil());
    const Instant told = Clock::now();
    REQUIRE(bench.redis.publish(taker.channel(), "500"));
    SUBCASE("no other message") {
        REQUIRE(taker.is_back());
        CHECK(bench.redis.sent("fair acquire").at(2).at - told > 500ms);
        CHECK(bench.redis.sent("fair acquire").at(2).at - told < 10s);  // of 30
    }
    SUBCASE("the lock becomes free earlier") {
        REQUIRE(bench.redis.publish(taker.channel(), "0"));
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
        Bench bench({.command_timeout = 500ms});
        bench.redis.next("fair acquire", number(30'000));
        bench.redis.next("fair acquire", number(30'000));
        std::jthread waiter([&] {
            bench.lock.lock(Lease(1h));
            bench.lock.unlock();
        });
        REQUIRE(bench.redis.wait_for("fair acquire", 2));
        if (unanswered == Unanswered::acquire) bench.redis.next("fair acquire", lost());
        if (unanswered == Unanswered::release) bench.redis.next("fair release", lost());
        REQUIRE(bench.redis.publish(Bench::channel(bench.owner(1))));
        waiter.join();
        CHECK(bench.redis.sent("fair release").back().argument(2) == bench.owner(1));

        bench.lock.lock();
        const std::string next = bench.redis.sent("fair acquire").back().argument(2);
        CHECK(next == bench.owner(unanswered == Unanswered::nothing ? 1 : 2));
        bench.lock.unlock();
        // The number of an acquire command without a reply is released, too.
        if (unanswered == Unanswered::acquire) {
            REQUIRE(bench.redis.wait_for("fair leave"));
            CHECK(bench.redis.sent("fair leave").at(0).argument(2) == bench.owner(1));
        } else {
            CHECK(bench.redis.count("fair leave") == 0);
        }
    }
}

TEST_CASE("after a lost connection a waiter asks again as soon as its subscription is confirmed") {
    Bench bench;
    bench.redis.always("fair acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(taker.is_waiting());
    REQUIRE(bench.redis.disconnect());
    bench.redis.always("fair acquire", nil());
    REQUIRE(bench.redis.confirm(taker.channel()));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
}

TEST_CASE("while all replies come too late, a call still ends at its deadline, or when it is told to stop") {
    Bench bench;
    bench.redis.always("fair acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(20ms);
        return std::optional(nil());
    });
    auto in_time = start([&] { return bench.lock.try_lock_for(100ms, Lease{10ms}); });
    REQUIRE(in_time.wait_for(10s) == std::future_status::ready);
    CHECK_FALSE(in_time.get());
    std::stop_source stop;
    auto stopped = start([&] { return bench.lock.lock(Lease{10ms}, stop.get_token()); });
    REQUIRE(bench.redis.wait_for("fair acquire", bench.redis.count("fair acquire") + 3));
    stop.request_stop();
    REQUIRE(stopped.wait_for(10s) == std::future_status::ready);
    CHECK_FALSE(stopped.get());
}

TEST_CASE("a hold whose reply came too late is released, and requested again") {
    Bench bench;
    bench.redis.next("fair acquire", [](const SentCommand&) {
        std::this_thread::sleep_for(20ms);
        return std::optional(nil());
    });
    SUBCASE("while the first number is being released") { bench.redis.next("fair leave", ScriptedRedis::hold_back); }
    SUBCASE("after the first number was released") { bench.redis.answer_before_post_returns("fair leave"); }
    CHECK(bench.lock.try_lock_for(20s, Lease{10ms}));
    CHECK(bench.redis.count("fair leave") >= 1);
    CHECK(bench.redis.sent("fair leave").at(0).argument(2) == bench.owner(1));
    REQUIRE(bench.redis.count("fair acquire") >= 2);
    CHECK(bench.redis.sent("fair acquire").at(1).argument(2) == bench.owner(2));
    std::error_code ec;
    bench.lock.unlock(ec);
}
