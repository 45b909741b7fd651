// SPDX-License-Identifier: MIT
// The watchdog: renewals, and reports of lost holds.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <list>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

// Renewals are due every half second. A machine that stalls for less than a second does no harm.
constexpr Milliseconds timeout = 1500ms;

struct Fixture {
    explicit Fixture(Milliseconds watchdog_timeout = timeout)
        : client(redis.transport(), {.watchdog_timeout = watchdog_timeout,
                                     .on_event =
                                         [this](const Event& event) {
                                             const std::lock_guard guard(mutex);
                                             events.push_back(event);
                                         }}),
          lock(client, "orders") {}

    std::string owner(std::uint64_t number = 1) const { return client.id() + ":" + std::to_string(number); }

    std::error_code unlock() {
        std::error_code ec = errc::unsupported;
        lock.unlock(ec);
        return ec;
    }

    bool wait_for_loss() {
        return eventually([&] {
            const std::lock_guard guard(mutex);
            return std::any_of(events.begin(), events.end(),
                               [](const Event& e) { return e.kind == Event::Kind::hold_lost; });
        });
    }

    std::mutex mutex;
    std::vector<Event> events;
    ScriptedRedis redis;
    Client client;
    RLock lock;
};

}  // namespace

TEST_CASE("a hold without a lease is renewed after a third of the watchdog's timeout") {
    Fixture fixture;
    const std::int64_t begun = ScriptedRedis::server_now();
    const Instant locking = Clock::now();
    fixture.lock.lock();
    const Instant first = fixture.lock.valid_until();
    REQUIRE(fixture.redis.wait_for("renew"));
    const SentCommand sent = fixture.redis.sent("renew").at(0);
    CHECK(sent.posted);
    CHECK(sent.key_count() == 1);
    CHECK(sent.key(0) == "orders");
    CHECK(sent.argument(0) == "1500");
    CHECK(reaches(sent.instant(1), 3000ms, begun));
    CHECK(sent.instant(1) >= begun + 3000 + 490);
    CHECK(sent.argument(2) == fixture.owner());
    CHECK(sent.at >= locking + timeout / 3);  // counts from the sending, which may take a while
    CHECK(eventually([&] { return fixture.lock.valid_until() > first; }));
    CHECK(eventually([&] { return fixture.client.stats().renewals >= 1; }));
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("renewals of several locks are sent in one command") {
    Fixture fixture;
    std::list<RLock> locks;
    for (int i = 0; i < 5; ++i) locks.emplace_back(fixture.client, "lock " + std::to_string(i)).lock();
    // In the first command, unless this thread was slow to acquire them.
    const auto together = [&]() -> std::optional<SentCommand> {
        for (const SentCommand& sent : fixture.redis.sent("renew"))
            if (sent.key_count() == 5) return sent;
        return std::nullopt;
    };
    REQUIRE(eventually([&] { return together().has_value(); }));
    CHECK(together()->words.size() == 3 + 5 + 2 + 5);
    for (auto& lock : locks) lock.unlock();
}

TEST_CASE("more than a hundred renewals are sent in several commands") {
    Fixture fixture;
    std::list<RLock> locks;
    for (int i = 0; i < 130; ++i) locks.emplace_back(fixture.client, "lock " + std::to_string(i)).lock();
    REQUIRE(eventually([&] { return fixture.client.stats().renewals >= 130; }));
    for (const SentCommand& sent : fixture.redis.sent("renew")) CHECK(sent.key_count() <= 100);
    CHECK(fixture.client.stats().lost_holds == 0);
    for (auto& lock : locks) lock.unlock();
}

TEST_CASE("after the last unlock there are no more renewals") {
    Fixture fixture(6s);  // not renewed within the first two lines
    fixture.lock.lock();
    fixture.lock.unlock();
    RLock other(fixture.client, "other");
    other.lock();
    REQUIRE(fixture.redis.wait_for("renew"));
    for (const SentCommand& sent : fixture.redis.sent("renew")) {
        CHECK(sent.key_count() == 1);
        CHECK(sent.key(0) == "other");
    }
    other.unlock();
}

TEST_CASE("a hold with a lease is never renewed, and its end is reported") {
    Fixture fixture(60ms);
    fixture.lock.lock(Lease(100ms));
    const Instant valid = fixture.lock.valid_until();
    std::promise<Instant> told;
    const std::stop_callback callback(fixture.lock.lost(), [&] { told.set_value(Clock::now()); });
    CHECK(told.get_future().get() + 50ms >= valid);
    CHECK(fixture.redis.count("renew") == 0);
    CHECK(fixture.wait_for_loss());
    CHECK(fixture.unlock() == errc::hold_lost);
}

TEST_CASE("a lease inside a watched hold does not stop its renewal") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.lock.lock(Lease(10ms));
    CHECK_FALSE(fixture.unlock());
    REQUIRE(fixture.redis.wait_for("renew", 2));
    CHECK(fixture.client.stats().lost_holds == 0);
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("a watched level inside a lease is renewed until it is released") {
    Fixture fixture;
    fixture.lock.lock(Lease(10s));
    fixture.lock.lock();
    REQUIRE(fixture.redis.wait_for("renew"));
    CHECK_FALSE(fixture.unlock());
    const std::size_t renewals = fixture.redis.count("renew");
    RLock other(fixture.client, "other");
    other.lock();
    REQUIRE(fixture.redis.wait_for("renew", renewals + 1));
    CHECK(fixture.redis.sent("renew").back().key(0) == "other");
    CHECK(fixture.redis.sent("renew").back().key_count() == 1);
    other.unlock();
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("a renewal that the server refuses is a lost hold, reported at once") {
    Fixture fixture;
    fixture.redis.next("renew", array({number(0)}));
    fixture.lock.lock();
    const std::stop_token lost_token = fixture.lock.lost();
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(fixture.lock.valid_until() == Instant::min());
    REQUIRE(fixture.wait_for_loss());
    CHECK(fixture.client.stats().lost_holds == 1);
    CHECK(fixture.unlock() == errc::hold_lost);
    CHECK(fixture.redis.count("release") == 0);
    CHECK(fixture.redis.count("renew") == 1);
    {
        const std::lock_guard guard(fixture.mutex);
        CHECK(fixture.events.size() == 1);
        CHECK(fixture.events[0].name == "orders");
    }
    // The next hold is a new one.
    fixture.lock.lock();
    CHECK_FALSE(fixture.lock.lost().stop_requested());
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("one refused renewal does not affect the others in the same command") {
    Fixture fixture;
    RLock other(fixture.client, "other");
    fixture.lock.lock();
    other.lock();
    fixture.redis.next("renew", [](const SentCommand& sent) {
        std::vector<Reply> answers;
        for (std::size_t i = 0; i < sent.key_count(); ++i) answers.push_back(number(sent.key(i) == "orders" ? 0 : 1));
        return std::optional(array(std::move(answers)));
    });
    REQUIRE(fixture.wait_for_loss());
    CHECK(fixture.lock.valid_until() == Instant::min());
    CHECK(other.valid_until() > Clock::now());
    CHECK_FALSE(other.lost().stop_requested());
    other.unlock();
    CHECK(fixture.unlock() == errc::hold_lost);
}

TEST_CASE("a renewal with no reply or a malformed one is resent early, and nothing is lost") {
    Fixture fixture(6s);
    const Reply replies[] = {lost(),
                             error("LOADING Redis is loading the dataset in memory"),
                             error("ERR something odd"),
                             text("OK"),
                             number(1),
                             nil(),
                             array({}),
                             array({number(1), number(1)}),
                             array({text("1")}),
                             array({nil()}),
                             malformed()};
    for (const Reply& reply : replies) fixture.redis.next("renew", reply);
    fixture.lock.lock();
    REQUIRE(fixture.redis.wait_for("renew", std::size(replies) + 1));
    CHECK(eventually([&] { return fixture.client.stats().renewals == 1; }));
    CHECK(fixture.client.stats().lost_holds == 0);
    CHECK(fixture.lock.valid_until() > Clock::now());
    const auto sent = fixture.redis.sent("renew");
    for (std::size_t i = 1; i < std::size(replies); ++i) CHECK(sent[i].at - sent[i - 1].at >= 9ms);
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("a renewal that arrived too late is resent early, by the server time that the reply reported") {
    Fixture fixture;
    const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
    fixture.redis.next("renew", ScriptedRedis::late(ahead));
    fixture.lock.lock();
    REQUIRE(fixture.redis.wait_for("renew", 2));
    const auto sent = fixture.redis.sent("renew");
    CHECK(sent[0].instant(1) < ahead);
    CHECK(sent[1].instant(1) > ahead + 3000);
    CHECK(eventually([&] { return fixture.client.stats().renewals >= 1; }));
    CHECK(fixture.client.stats().lost_holds == 0);
    CHECK(fixture.lock.valid_until() > Clock::now());
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("a renewal script that the server has not cached is sent as text") {
    Fixture fixture;
    fixture.redis.next("renew", error("NOSCRIPT No matching script. Please use EVAL."));
    fixture.lock.lock();
    REQUIRE(fixture.redis.wait_for("renew", 2));
    CHECK(fixture.redis.sent("renew")[1].by_text());
    CHECK(eventually([&] { return fixture.client.stats().renewals >= 1; }));
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("a hold whose renewals get no reply is lost when its lease may be over, not later") {
    Fixture fixture;
    fixture.redis.always("renew", ScriptedRedis::hold_back);
    fixture.lock.lock();
    const std::stop_token lost_token = fixture.lock.lost();
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(Clock::now() < fixture.redis.sent("acquire").back().at + timeout + 3s);
    CHECK(fixture.lock.valid_until() == Instant::min());
    CHECK(fixture.unlock() == errc::hold_lost);
}

TEST_CASE("the validity counts from when the answered renewal was sent") {
    Fixture fixture;
    fixture.lock.lock();
    const Instant first = fixture.lock.valid_until();
    fixture.redis.always("renew", ScriptedRedis::hold_back);  // the second renewal, so that it does not count
    fixture.redis.next("renew", [](const SentCommand&) {
        std::this_thread::sleep_for(50ms);
        return std::optional(array({number(1)}));
    });
    REQUIRE(eventually([&] { return fixture.lock.valid_until() > first; }));
    CHECK(fixture.lock.valid_until() < fixture.redis.sent("renew").at(0).at + timeout);
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("a hold that is lost here but was renewed on the server is released") {
    Fixture fixture;
    fixture.redis.always("renew", ScriptedRedis::hold_back);
    fixture.lock.lock();
    REQUIRE(fixture.wait_for_loss());
    fixture.redis.answer(fixture.redis.sent("renew").at(0), array({number(1)}));
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner());
    CHECK(fixture.unlock() == errc::hold_lost);
}

TEST_CASE("a hold is released at the end of its lease here if a renewal got no reply: it may have taken effect") {
    Fixture fixture;
    fixture.redis.always("renew", lost());
    fixture.lock.lock();
    const Instant valid = fixture.lock.valid_until();
    REQUIRE(fixture.redis.wait_for("give up"));
    const SentCommand released = fixture.redis.sent("give up").at(0);
    CHECK(released.argument(2) == fixture.owner());
    CHECK(released.at >= valid);
    CHECK(fixture.unlock() == errc::hold_lost);
}

TEST_CASE("a hold that is lost here is released if the renewal under way gets no reply") {
    Fixture fixture;
    fixture.redis.always("renew", ScriptedRedis::hold_back);
    fixture.lock.lock();
    REQUIRE(fixture.wait_for_loss());
    CHECK(fixture.redis.count("give up") == 0);
    fixture.redis.answer(fixture.redis.sent("renew").at(0), lost());
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner());
    CHECK(fixture.unlock() == errc::hold_lost);
}

TEST_CASE("a hold that is lost here, unlocked, and then renewed on the server is released") {
    // lost() notifies the thread, and its unlock() sends nothing. The server had executed the renewal, which would
    // block all others for a whole lease.
    Fixture fixture;
    fixture.redis.always("renew", ScriptedRedis::hold_back);
    fixture.lock.lock();
    REQUIRE(fixture.wait_for_loss());
    CHECK(fixture.unlock() == errc::hold_lost);
    fixture.redis.answer(fixture.redis.sent("renew").at(0), array({number(1)}));
    CHECK(fixture.redis.wait_for("give up"));
}

TEST_CASE("the reply to a renewal of an earlier hold changes nothing") {
    Fixture fixture;
    fixture.redis.next("renew", ScriptedRedis::hold_back);
    fixture.lock.lock();
    REQUIRE(fixture.redis.wait_for("renew"));
    // Until the server has held the reply back. Otherwise the message below could arrive before it.
    REQUIRE(fixture.redis.publish("until the background has sent the renewal"));
    CHECK_FALSE(fixture.unlock());
    fixture.lock.lock(Lease(10s));
    const Instant valid = fixture.lock.valid_until();
    fixture.redis.answer(fixture.redis.sent("renew").at(0), array({number(0)}));
    REQUIRE(fixture.redis.publish("until the background has seen the answer"));
    CHECK(fixture.lock.valid_until() == valid);
    CHECK(fixture.client.stats().lost_holds == 0);
    CHECK_FALSE(fixture.unlock());
}

TEST_CASE("a lost() callback that blocks delays no renewal") {
    Fixture fixture;
    RLock other(fixture.client, "other");
    std::promise<void> go_on;
    std::atomic<bool> called = false;
    fixture.lock.lock(Lease(10ms));
    const auto here = std::this_thread::get_id();
    const std::stop_callback callback(fixture.lock.lost(), [&] {
        called = true;
        // On this thread, if the hold was lost before the callback was registered.
        if (std::this_thread::get_id() != here) go_on.get_future().get();
    });
    other.lock();
    REQUIRE(eventually([&] { return called.load(); }));
    const std::size_t before = fixture.redis.count("renew");
    CHECK(fixture.redis.wait_for("renew", before + 2));
    CHECK(other.valid_until() > Clock::now());
    go_on.set_value();
    other.unlock();
    CHECK(fixture.unlock() == errc::hold_lost);
}

TEST_CASE("an event handler that blocks delays no lost()") {
    ScriptedRedis redis;
    std::promise<void> end;
    std::atomic<bool> inside = false;
    Client client(redis.transport(), {.on_event = [&, may_end = end.get_future().share()](const Event&) {
                      inside = true;
                      may_end.wait();
                  }});
    RLock first(client, "first");
    RLock second(client, "second");
    first.lock(Lease(10ms));
    CHECK(eventually([&] { return inside.load(); }));
    second.lock(Lease(10ms));
    const std::stop_token lost = second.lost();
    CHECK(eventually([&] { return lost.stop_requested(); }));
    end.set_value();
    first.unlock();
    second.unlock();
}

TEST_CASE("a lost() callback may use the lock") {
    Fixture fixture;
    std::promise<void> done;
    fixture.lock.lock(Lease(10ms));
    const std::stop_callback callback(fixture.lock.lost(), [&] {
        fixture.lock.lock();
        fixture.lock.unlock();
        done.set_value();
    });
    done.get_future().get();
    CHECK(fixture.unlock() == errc::hold_lost);
}
