// SPDX-License-Identifier: MIT
// Waiting for an RLock: who asks the server and when, messages, and handing over within the process.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
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
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;

const std::string channel = "redisson_lock__channel:{orders}";

struct Bench {
    explicit Bench(const ClientOptions& options = {}) : client(redis.transport(), options), lock(client, "orders") {}

    // How the owner of a hold is called on the wire.
    std::string owner(std::uint64_t number) const { return client.id() + ":" + std::to_string(number); }

    ScriptedRedis redis;
    Client<ScriptedTransport> client;
    RLock<ScriptedTransport> lock;
};

// Here this thread holds the lock, and subscriptions are confirmed when the test says so: then nobody of this process
// has a reason to ask the server.
struct HeldBench : Bench {
    explicit HeldBench(const ClientOptions& options = {}) : Bench(options) {
        redis.confirm_by_hand();
        lock.lock();
    }

    // Confirmed, and the one who waits knows that the lock is held.
    bool confirm() {
        redis.next("acquire", number(30'000));
        const std::size_t asked = redis.count("acquire");
        return redis.wait_until_wanted(channel) && redis.confirm(channel) && redis.wait_for("acquire", asked + 1);
    }
};

// A thread that takes the lock, keeps it until it is told to let go, and gives it back.
class Taker {
public:
    explicit Taker(Bench& bench, std::optional<Lease> lease = {}, std::optional<Milliseconds> timeout = {})
        : thread_([this, &bench, lease, timeout] {
              tid = static_cast<pid_t>(::syscall(SYS_gettid));
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

    // Whether it has arrived in the line, and sleeps there. `waits`: how many have come to wait, with this one.
    bool is_in_line(Bench& bench, std::uint64_t waits = 1) {
        return eventually([&] { return bench.client.stats().waits >= waits && is_asleep(); });
    }

    bool is_asleep() const {
        std::ifstream stat("/proc/self/task/" + std::to_string(tid.load()) + "/stat");
        std::string text;
        std::getline(stat, text);
        return text.find(") S ") != std::string::npos;
    }

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

// Whether the first taker was blocked, subscribed, and blocked once more.
bool is_waiting(Bench& bench) { return bench.redis.wait_for("acquire", 2); }

}  // namespace

TEST_CASE("a blocked thread subscribes, waits for the confirmation, asks once more, and then sends nothing") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.redis.always("acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(bench.redis.wait_until_wanted(channel));
    CHECK(bench.redis.count("acquire") == 1);
    REQUIRE(bench.redis.confirm(channel));
    REQUIRE(bench.redis.wait_for("acquire", 2));
    // A message of another lock is none of its business.
    REQUIRE(bench.redis.publish("redisson_lock__channel:{other}"));
    CHECK(bench.redis.count("acquire") == 2);
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(bench.redis.count("acquire") == 3);
    CHECK(bench.client.stats().waits == 1);
}

TEST_CASE("a release between the first try and the confirmation costs no sleep") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(bench.redis.count("acquire") == 2);
}

TEST_CASE("a message before the confirmation is a message") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.redis.next("acquire", number(30'000));
    Taker taker(bench);
    REQUIRE(bench.redis.wait_until_wanted(channel));
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(taker.is_back());
    CHECK(taker.held);
}

TEST_CASE("a message that comes while the thread is asking makes it ask again") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    bench.redis.next("acquire", [&](const SentCommand&) {
        // The server released the lock just after it said that it is held.
        CHECK(bench.redis.publish(channel));
        return std::optional(number(30'000));
    });
    Taker taker(bench);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    CHECK(bench.redis.count("acquire") == 3);
}

TEST_CASE("the message of a thread's own release is no news to those who ask after it") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    bench.redis.next("acquire", number(30'000));
    bench.redis.always("release", number(2));  // listeners: another process, and we
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

// A thread had asked while another one of this process held the lock, and learned that only after the lock had been
// given back. It was not in the line yet, so the message of that release was taken for no news to anybody here, and the
// thread slept beside a free lock until the lease that it had been told of would have ended.
TEST_CASE("a thread whose question was overtaken by a release of this process asks again") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));
    bench.redis.next("acquire", number(30'000));
    bench.redis.always("release", number(2));  // listeners: another process, and we
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

TEST_CASE("any payload means that something may have changed") {
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

TEST_CASE("without any message a thread asks when the holder's lease must be over") {
    Bench bench;
    bench.redis.next("acquire", number(30'000));  // and again when the subscription is confirmed
    bench.redis.next("acquire", number(30));
    Taker taker(bench);
    REQUIRE(taker.is_back());
    CHECK(taker.held);
    const auto sent = bench.redis.sent("acquire");
    REQUIRE(sent.size() == 3);
    CHECK(sent[2].at >= sent[1].at + 31ms);
}

TEST_CASE("a holder without a TTL does not make the waiter ask in a loop") {
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

TEST_CASE("a released lock goes to the thread that waited first, by one command") {
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

TEST_CASE("after some hand-overs in a row the others get a turn") {
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

TEST_CASE("with a limit of nothing there are no hand-overs") {
    HeldBench bench({.local_handoff_limit = 0});
    Taker taker(bench);
    REQUIRE(taker.is_in_line(bench));
    bench.lock.unlock();
    REQUIRE(taker.is_back());
    CHECK(bench.redis.history() == Sorts{"acquire", "release", "acquire"});
}

TEST_CASE("handing over what was lost already is told to the giver, and the heir asks for itself") {
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

TEST_CASE("a hand-over whose reply is lost is sent again, and the heir's lease counts from the first sending") {
    // The second sending finds the heir in possession and prolongs nothing: on the server the lease began with the
    // first one. Counting from the second would let the heir believe in a hold that others have already got.
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

TEST_CASE("a hand-over that came too late is sent again, by the clock that is learnt") {
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

TEST_CASE("a hand-over that remains without an answer is undone in both names at once, and holds up nobody") {
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

    // Each asks under a number that is new.
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

TEST_CASE("a thread that gives up while a hold is being handed to it does not keep it") {
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

TEST_CASE("a hold that is handed over later than its lease lasts is no hold") {
    for (int i = 0; i < 5; ++i) {
        HeldBench bench;
        Taker heir(bench, Lease(20ms));
        REQUIRE(heir.is_in_line(bench));
        bench.redis.next("hand over", [](const SentCommand&) {
            std::this_thread::sleep_for(30ms);
            return std::optional(number(1));
        });
        // What it asks for itself is answered as blocked: so what it holds is only what it believes to hold.
        bench.redis.always("acquire", number(60'000));
        bench.lock.unlock();
        CHECK(eventually([&] { return heir.returned || bench.redis.count("acquire") >= 2; }));
        CHECK_FALSE(heir.returned);
    }
}

TEST_CASE("an answer of a wrong shape to a hand-over is told by code, and gives the heir nothing") {
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

TEST_CASE("a hand-over that is refused for good gives the heir nothing, and it hears why from the server itself") {
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

// It was reported lost, and blocked everybody for the rest of its lease.
TEST_CASE("a hold whose hand-over alone is refused for good goes back by a release") {
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
    // The release is published before its reply is written. The waiter that it wakes finds the release still on its
    // way and sleeps again, without an end; the thread that releases must wake it, although others listen, too.
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

TEST_CASE("with other listeners a released lock is asked for when the message comes, not before") {
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

TEST_CASE("without a confirmed subscription nobody waits for a message about a release of this process") {
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

TEST_CASE("after a lost subscription every waiter's lock is asked for again") {
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

TEST_CASE("a refused subscription is an error for all who wait") {
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
    // The next wait subscribes anew.
    Taker c(bench);
    REQUIRE(bench.redis.wait_until_wanted(channel));
    bench.redis.always("acquire", nil());
    REQUIRE(bench.redis.confirm(channel));
    REQUIRE(c.is_back());
    CHECK(c.held);
}

TEST_CASE("a thread that is stopped leaves the line, and the next one takes over") {
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

TEST_CASE("a message that meets the first of the line at its deadline wakes the next") {
    Bench bench;
    bench.redis.always("acquire", number(30'000));
    Taker first(bench, {}, 1500ms);
    REQUIRE(is_waiting(bench));
    Taker second(bench);
    REQUIRE(second.is_in_line(bench, 2));
    // The message comes while the first one is asking for the last time; it is told "blocked" after its deadline.
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

TEST_CASE("an error that the first of the line meets is its own, and the next one asks for itself") {
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

TEST_CASE("when a thread of this process loses its hold, those who wait here ask at once") {
    Bench bench;
    bench.redis.confirm_by_hand();
    bench.lock.lock(Lease(50ms));
    Taker waiter(bench);
    REQUIRE(waiter.is_back());
    CHECK(waiter.held);
    CHECK(bench.redis.history() == Sorts{"acquire", "acquire"});
    std::error_code ec;
    bench.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("a thread that waits behind an unreachable server shares the time that others have waited in vain") {
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
    // Not the whole time again: only the 100 ms that each gets for an honest try.
    CHECK(second.returned_at - first.returned_at < 2500ms);
}
