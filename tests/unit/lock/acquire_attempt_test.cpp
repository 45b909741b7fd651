// SPDX-License-Identifier: MIT
// AcquireAttempt: which call follows which reply, without a server. BackgroundTries drives one by completions.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/call_words.hpp"
#include "support/engine.hpp"
#include "support/scripted_transport.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t noon = 1'700'000'000'000;

struct Task final : LockTask {
    explicit Task(Session& s) : of(s) {}
    std::string_view kind() const noexcept override { return "task"; }
    const std::string& key() const noexcept override { return name; }
    Session& session() const noexcept override { return of; }
    bool is_idle() override { return false; }
    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void may_be_free() override {}
    void acquired_for(OwnerNumber) override {}

    Session& of;
    const std::string name = "orders";
};

template <class Protocol>
struct Fixture {
    using Attempt = AcquireAttempt;
    using Next = Attempt::Next;

    explicit Fixture(bool first = true) : attempt(core, claim(first), settings_of(session.options())) {
        session.server_clock().learn(0, SendTime(Clock::now()), Clock::now(), noon);
    }

    Claim claim(bool first) const {
        Claim one{1, 7, 1, 30s};
        one.first = first;
        return one;
    }

    ScriptedRedis redis;
    Session session{std::make_unique<TransportPortOf<ScriptedTransport>>(redis.transport()),
                    ClientOptions{.command_timeout = 3s}};
    std::shared_ptr<Task> task = std::make_shared<Task>(session);
    LockCore core{*task, session, std::make_unique<Protocol>(session.protocol_context(), "orders")};
    Attempt attempt;
};

}  // namespace

// Several threads begin at once, with a user who has no right to the queue. Each of them has sent its call when the first
// learns of it.
TEST_CASE("an attempt does without the queue that is refused, also if another caller has learned of it before") {
    const Reply no_right = Reply::of(Reply::Kind::error, "NOPERM no permissions");
    for (const bool is_known : {false, true}) {
        Fixture<RLockProtocol> fixture;
        fixture.attempt.asks_time();
        fixture.attempt.begin(noon);
        CHECK(fixture.attempt.call().script() == &digested<scripts::queue_acquire>);
        if (is_known) fixture.session.protocol_context().native.refused(NativeCommands::Queue::locks);
        CHECK(fixture.attempt.replied(no_right) == Fixture<RLockProtocol>::Next::call);
        CHECK(fixture.attempt.call().script() == &digested<scripts::rlock_acquire>);
        CHECK(fixture.attempt.replied(no_right) == Fixture<RLockProtocol>::Next::done);
    }
}

TEST_CASE("an attempt asks until command_timeout after the server's time, and is done with the answer") {
    Fixture<RLockProtocol> fixture;
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    CHECK(fixture.attempt.claim.until == noon + 3000);
    CHECK(words_of(fixture.attempt.call()).find(std::to_string(noon + 3000)) != std::string::npos);
    const Instant sent = Clock::now();
    CHECK(fixture.attempt.replied(nil()) == Fixture<RLockProtocol>::Next::done);
    CHECK(fixture.attempt.asked.reply.is_nil());
    CHECK(fixture.attempt.asked.sent <= sent);
    CHECK(fixture.attempt.asked.unsettled == 0);
    CHECK(fixture.redis.count("acquire") == 0);
}

TEST_CASE("an attempt that came too late asks for the time again, three times in all") {
    Fixture<RLockProtocol> fixture;
    using Next = Fixture<RLockProtocol>::Next;
    for (int late = 1; late < 3; ++late) {
        fixture.attempt.asks_time();
        fixture.attempt.begin(noon);
        CHECK(fixture.attempt.replied(ScriptedRedis::late(noon + 10'000)) == Next::time);
    }
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    CHECK(fixture.attempt.replied(ScriptedRedis::late(noon + 10'000)) == Next::done);
    CHECK(fixture.attempt.asked.unsettled == 0);  // refused for certain
}

TEST_CASE("an unanswered attempt may take effect until the latest time that it was wanted") {
    Fixture<RLockProtocol> fixture;
    using Next = Fixture<RLockProtocol>::Next;
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    CHECK(fixture.attempt.replied(Reply::of(Reply::Kind::unanswered, "nothing")) == Next::done);
    CHECK(fixture.attempt.asked.unsettled == noon + 3000);
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon - 1000);  // the clock was set back
    CHECK(fixture.attempt.replied(Reply::of(Reply::Kind::unanswered, "nothing")) == Next::done);
    CHECK(fixture.attempt.asked.unsettled == noon + 3000);
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon + 5000);
    CHECK(fixture.attempt.replied(Reply::of(Reply::Kind::not_sent, "nothing")) == Next::done);
    CHECK(fixture.attempt.asked.unsettled == noon + 3000);
}

TEST_CASE("an attempt for a Mutex goes on with the script if the plain command is refused") {
    Fixture<MutexProtocol> fixture;
    using Next = Fixture<MutexProtocol>::Next;
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    CHECK_FALSE(fixture.attempt.call().script());
    CHECK(fixture.attempt.replied(nil()) == Next::call);
    CHECK(fixture.attempt.call().script());
    CHECK(fixture.attempt.replied(number(500)) == Next::done);
    CHECK(fixture.attempt.asked.reply.integer == 500);
}

TEST_CASE("a Mutex with a lease that the estimate of the server's clock is too rough for is acquired by the script") {
    Fixture<MutexProtocol> fixture;
    using Next = Fixture<MutexProtocol>::Next;
    const Instant now = Clock::now();
    fixture.session.server_clock().learn(0, SendTime(now - 500ms), now, noon);
    fixture.attempt.claim.lease = 900ms;
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    CHECK(fixture.attempt.call().script());
    // The script's lease begins when the server executes it.
    CHECK(fixture.attempt.replied(text("OK")) == Next::done);
    CHECK(fixture.attempt.asked.sent >= now);
    // Half a second is little beside a lease of a minute.
    Fixture<MutexProtocol> patient;
    const Instant later = Clock::now();
    patient.session.server_clock().learn(0, SendTime(later - 500ms), later, noon);
    patient.attempt.claim.lease = 1min;
    patient.attempt.asks_time();
    patient.attempt.begin(noon);
    CHECK_FALSE(patient.attempt.call().script());
    CHECK(patient.attempt.replied(text("OK")) == Next::done);
    CHECK(patient.attempt.asked.sent <= Clock::now() - 500ms);
}

TEST_CASE("a Mutex is acquired by the script if the reading of the server's clock is old, and the reply renews it") {
    Fixture<MutexProtocol> fixture;
    using Next = Fixture<MutexProtocol>::Next;
    const Instant old = Clock::now() - 1100ms;
    fixture.session.server_clock().learn(0, SendTime(old), old, noon);
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon + 1100);
    CHECK(fixture.attempt.call().script());
    CHECK(fixture.attempt.replied(text("OK " + std::to_string(noon + 61'100))) == Next::done);
    CHECK(fixture.core.protocol.read_acquire(fixture.attempt.asked.reply).kind == AcquireAnswer::Kind::held);
    CHECK(fixture.session.server_clock().at(0, Clock::now()) >= noon + 61'100);
    AcquireAttempt next(fixture.core, fixture.claim(true), settings_of(fixture.session.options()));
    next.asks_time();
    next.begin(noon + 61'100);
    CHECK_FALSE(next.call().script());
}

TEST_CASE("a Mutex is acquired by the script if a connection was lost since the reading of the server's clock") {
    Fixture<MutexProtocol> fixture;
    fixture.session.server_clock().disconnected();
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    CHECK(fixture.attempt.call().script());
}

TEST_CASE("a Mutex is acquired by the script where nothing tells whether the server is another one") {
    Fixture<MutexProtocol> fixture;
    fixture.redis.same_server_since(std::nullopt);
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    CHECK(fixture.attempt.call().script());
}

TEST_CASE("a Mutex is acquired by the script if the server may be another one since the reading of its clock") {
    Fixture<MutexProtocol> fixture;
    using Next = Fixture<MutexProtocol>::Next;
    fixture.attempt.asks_time();
    fixture.attempt.begin(noon);
    REQUIRE_FALSE(fixture.attempt.call().script());
    SUBCASE("before the command") {
        fixture.redis.same_server_since(Clock::now());
        fixture.attempt.asks_time();
        fixture.attempt.begin(noon);
        CHECK(fixture.attempt.call().script());
    }
    // Nobody knows when that lease ends: the caller sends the script, or gives it up.
    SUBCASE("by the command, which acquired it there") {
        fixture.redis.same_server_since(Clock::now());
        CHECK(fixture.attempt.replied(text("OK")) == Next::done);
        CHECK(fixture.attempt.asked.reply.kind == Reply::Kind::unanswered);
        CHECK(fixture.attempt.asked.unsettled == fixture.attempt.claim.until);
    }
    SUBCASE("by the command, which is blocked there") {
        fixture.redis.same_server_since(Clock::now());
        CHECK(fixture.attempt.replied(nil()) == Next::call);
        CHECK(fixture.attempt.call().script());
    }
}

TEST_CASE("the lease of a Mutex counts from the reading of the server's clock, however late the command was sent") {
    Fixture<MutexProtocol> fixture;
    fixture.attempt.asks_time();
    const Instant asked = Clock::now();
    while (Clock::now() < asked + 20ms) continue;  // the thread is stopped
    fixture.attempt.begin(noon);
    CHECK(fixture.attempt.replied(text("OK")) == Fixture<MutexProtocol>::Next::done);
    CHECK(fixture.attempt.asked.sent <= asked);
}

TEST_CASE("a try in the background that came too late is sent again if the lock is still wanted") {
    using Kind = TryAnswer::Kind;
    for (const bool wanted : {true, false}) {
        CAPTURE(wanted);
        ScriptedRedis redis;
        Client client(redis.transport());
        RLock lock(client, "orders");
        redis.next("acquire", ScriptedRedis::late(ScriptedRedis::server_now() + 3'600'000));
        std::vector<Kind> answers;
        std::mutex mutex;  // guards answers
        LockAccess::state(lock).try_in_background(
            1, std::nullopt, LockAccess::settings(lock), Reentry::allowed,
            [&](const TryAnswer& one) {
                const std::lock_guard guard(mutex);
                answers.push_back(one.kind);
                return wanted;
            },
            Receiver::background);
        REQUIRE(eventually([&] {
            const std::lock_guard guard(mutex);
            return answers.size() == 2;
        }));
        CHECK(answers == std::vector{Kind::late, wanted ? Kind::held : Kind::failed});
        CHECK(redis.sent("acquire").size() == (wanted ? 2 : 1));
        if (wanted) CHECK_FALSE(LockAccess::state(lock).release({1}));
    }
}
