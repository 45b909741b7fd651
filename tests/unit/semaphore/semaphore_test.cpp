// SPDX-License-Identifier: MIT
// Semaphore: its commands, with a server that replies late, malformed, or not at all.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <future>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;

const std::string channel = "redisson_sc:{seats}";

ClientOptions impatient() { return {.command_timeout = 20ms, .unreachable_timeout = 60ms}; }

struct Fixture {
    explicit Fixture(const ClientOptions& options = {}) : client(redis.transport(), options), seats(client, "seats") {}

    // Starts a thread that waits in the queue. Returns its error, if any.
    std::future<std::error_code> waiting(std::ptrdiff_t n, std::stop_token stop = {}) {
        const std::uint64_t before = client.stats().waits;
        auto thread = start([this, n, stop] {
            std::error_code ec;
            return seats.acquire(n, stop, ec) || ec ? ec : std::make_error_code(std::errc::operation_canceled);
        });
        REQUIRE(eventually([&] { return client.stats().waits > before; }));
        return thread;
    }

    std::string marks() const { return "redlatch_semaphore_requests:{seats}:" + client.id(); }

    ScriptedRedis redis;
    Client client;
    Semaphore seats;
};

std::error_code code_of(auto&& call) {
    try {
        call();
        return {};
    } catch (const Error& e) {
        CHECK(e.name() == "seats");
        return e.code();
    }
}

}  // namespace

TEST_CASE("an acquire is one command with a request slot, a request number of its own, and the number of permits") {
    Fixture fixture;
    fixture.seats.acquire(3);
    fixture.seats.acquire();
    const auto sent = fixture.redis.sent("acquire permits");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].key_count() == 5);
    CHECK(sent[0].key(0) == "seats");
    CHECK(sent[0].key(1) == fixture.marks());
    CHECK(sent[0].argument(0) == "0");
    CHECK(sent[1].argument(0) == "0");
    CHECK(std::stoll(sent[1].argument(1)) > std::stoll(sent[0].argument(1)));
    // Until when it is wanted, by the server's clock, and for how long its mark stays afterwards: two minutes at most.
    CHECK(std::stoll(sent[1].argument(2)) >= std::stoll(sent[0].argument(2)));
    CHECK(sent[0].argument(3) == "80000");
    CHECK(sent[0].argument(4) == "0");
    CHECK(sent[0].argument(5) == fixture.client.id());
    CHECK(sent[0].argument(8) == "3");
    CHECK(sent[0].words.size() == 17);
}

TEST_CASE("a resend has the same request number, and is marked as a resend") {
    Fixture fixture;
    fixture.redis.next("acquire permits", lost());
    fixture.seats.acquire();
    const auto sent = fixture.redis.sent("acquire permits");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].argument(1) == sent[1].argument(1));
    CHECK(sent[0].argument(2) == sent[1].argument(2));
    CHECK(sent[1].argument(4) == "1");
    fixture.redis.next("add permits", lost());
    fixture.seats.release(4);
    const auto released = fixture.redis.sent("add permits");
    REQUIRE(released.size() == 2);
    CHECK(released[0].key(2) == channel);
    CHECK(released[0].argument(1) == released[1].argument(1));
    CHECK(released[0].argument(2) == released[1].argument(2));
    CHECK(released[0].argument(5) == "4");
    CHECK(released[0].argument(4) == "0");
    CHECK(released[1].argument(4) == "1");
}

TEST_CASE("a key prefix is part of the keys and of the channel") {
    ScriptedRedis redis;
    Client client(redis.transport(), {.key_prefix = "shop:"});
    Semaphore seats(client, "seats");
    seats.release();
    CHECK(seats.name() == "seats");
    CHECK(redis.sent("add permits").at(0).key(0) == "shop:seats");
    CHECK(redis.sent("add permits").at(0).key(2) == "redisson_sc:{shop:seats}");
}

TEST_CASE("a waiter that leaves during the query for it returns its permits") {
    Fixture fixture;
    fixture.redis.always("acquire permits", number(0));
    std::stop_source stop;
    auto first = fixture.waiting(2);
    REQUIRE(fixture.redis.wait_for("acquire permits", 2));
    auto second = fixture.waiting(3, stop.get_token());
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 2; }));
    fixture.redis.always("acquire permits", ScriptedRedis::hold_back);
    const auto asked = fixture.redis.count("acquire permits");
    REQUIRE(fixture.redis.publish(channel, "5"));
    REQUIRE(fixture.redis.wait_for("acquire permits", asked + 1));
    const SentCommand question = fixture.redis.sent("acquire permits").back();
    CHECK(question.argument(8) == "2");
    CHECK(question.argument(9) == "3");
    stop.request_stop();
    CHECK(second.get() == std::errc::operation_canceled);
    fixture.redis.always("acquire permits", number(0));
    fixture.redis.answer(question, number(5));
    CHECK_FALSE(first.get());
    REQUIRE(fixture.redis.wait_for("add permits"));
    const SentCommand returned = fixture.redis.sent("add permits").at(0);
    CHECK(returned.posted);
    CHECK(returned.argument(5) == "3");
    CHECK(returned.argument(7) == "1");
}

TEST_CASE("an acquire without a reply is undone, and that command is resent until it is answered") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire permits", lost());
    fixture.redis.next("give permits back", lost());
    CHECK(code_of([&] { fixture.seats.acquire(2); }) == errc::unreachable);
    const auto sent = fixture.redis.sent("acquire permits");
    REQUIRE(fixture.redis.wait_for("give permits back", 2));
    const auto back = fixture.redis.sent("give permits back");
    CHECK(back[0].argument(0) == sent.back().argument(0));
    CHECK(back[0].argument(1) == sent.back().argument(1));
    // Its request slot is not used before.
    CHECK(eventually([&] {
        fixture.redis.next("acquire permits", number(1));
        fixture.seats.acquire();
        return fixture.redis.sent("acquire permits").back().argument(0) == "0";
    }));
}

TEST_CASE("an acquire that was never sent needs no undoing") {
    Fixture fixture(impatient());
    fixture.redis.always("acquire permits", unreachable());
    CHECK(code_of([&] { fixture.seats.acquire(); }) == errc::unreachable);
    CHECK(fixture.redis.count("give permits back") == 0);
}

TEST_CASE("malformed replies are errors, and the possible permits are returned") {
    for (const Reply& reply : {number(-2), number(5), nil(), text("OK"), array({}), malformed()}) {
        Fixture fixture;
        fixture.redis.next("acquire permits", reply);
        CHECK(code_of([&] { fixture.seats.acquire(2); }) == errc::protocol_error);
        CHECK(fixture.redis.wait_for("give permits back"));
    }
    Fixture fixture;
    for (const char* sort : {"add permits", "set permits", "drain permits"}) {
        fixture.redis.always(sort, text("what?"));
        fixture.redis.always("GET", text("what?"));
    }
    CHECK(code_of([&] { fixture.seats.release(); }) == errc::protocol_error);
    CHECK(code_of([&] { fixture.seats.try_set_permits(1); }) == errc::protocol_error);
    CHECK(code_of([&] { static_cast<void>(fixture.seats.drain_permits()); }) == errc::protocol_error);
    CHECK(code_of([&] { fixture.seats.available_permits(); }) == errc::wrong_type);
}

TEST_CASE("a refused subscription ends all waits with the server's error") {
    Fixture fixture;
    fixture.redis.confirm_by_hand();
    fixture.redis.always("acquire permits", number(0));
    auto first = fixture.waiting(1);
    auto second = fixture.waiting(1);
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    REQUIRE(fixture.redis.refuse(channel, error("NOPERM this user has no permissions to access the channel")));
    CHECK(first.get() == errc::rejected);
    CHECK(second.get() == errc::rejected);
}

TEST_CASE("a message between the first try and the confirmation causes no sleep") {
    Fixture fixture;
    fixture.redis.confirm_by_hand();
    fixture.redis.next("acquire permits", number(0));
    auto waiting = fixture.waiting(1);
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    CHECK(fixture.redis.count("acquire permits") == 1);
    const Stopwatch watch;
    REQUIRE(fixture.redis.confirm(channel));
    CHECK_FALSE(waiting.get());
    CHECK(watch.within(4s));  // Without that it would be at least five seconds.
    CHECK(fixture.redis.count("acquire permits") == 2);
}

TEST_CASE("a release without a reply is an error, and is resent in the background until it is answered") {
    Fixture fixture(impatient());
    fixture.redis.always("add permits", lost());
    CHECK(code_of([&] { fixture.seats.release(2); }) == errc::unreachable);
    REQUIRE(eventually([&] { return fixture.redis.sent("add permits").back().posted; }));
    fixture.redis.always("add permits", number(1));
    CHECK(eventually([&] {
        const auto count = fixture.redis.count("add permits");
        std::this_thread::sleep_for(150ms);
        return fixture.redis.count("add permits") == count;
    }));
    std::set<std::string> requests;
    for (const SentCommand& command : fixture.redis.sent("add permits"))
        requests.insert(command.argument(0) + " " + command.argument(1) + " " + command.argument(2) + " " +
                        command.argument(5));
    CHECK(requests.size() == 1);
}

TEST_CASE("a short timed wait still awaits the reply to its first command, and uses its grant") {
    Fixture fixture;
    fixture.redis.always("acquire permits", [](const SentCommand&) {
        std::this_thread::sleep_for(60ms);
        return std::optional(number(1));
    });
    const Instant begun = Clock::now();
    CHECK(fixture.seats.try_acquire_for(20ms));
    CHECK(fixture.redis.sent("acquire permits").at(0).deadline >= begun + 250ms);
    CHECK(fixture.redis.count("give permits back") == 0);
}

TEST_CASE("a temporary refusal ends try_acquire(), but not a timed wait") {
    Fixture fixture;
    fixture.redis.next("acquire permits", error("OOM command not allowed when used memory > 'maxmemory'."));
    CHECK(code_of([&] { return fixture.seats.try_acquire(); }) == errc::overloaded);
    CHECK(fixture.redis.count("acquire permits") == 1);
    fixture.redis.next("acquire permits", error("OOM command not allowed when used memory > 'maxmemory'."));
    CHECK(fixture.seats.try_acquire_for(10s));
}

// A Semaphore and a PermitExpirableSemaphore with one name share a channel.
TEST_CASE("message between query and subscription that reached another primitive only: the query is repeated") {
    Fixture fixture;
    PermitExpirableSemaphore slots(fixture.client, "seats");
    fixture.redis.always("acquire by id", array({number(0), number(-1)}));
    std::stop_source stop;
    auto other = start([&] { return slots.acquire(stop.get_token()).has_value(); });
    REQUIRE(fixture.redis.wait_for("acquire by id", 2));
    // The release comes just after the reply to the query.
    fixture.redis.next("acquire permits", number(0));
    const Stopwatch watch;
    CHECK(fixture.seats.try_acquire_for(10s));
    CHECK(watch.within(4s));  // Without that it would be at least five seconds.
    stop.request_stop();
    CHECK_FALSE(other.get());
}

TEST_CASE("a late request is sent as a new one only where it cannot have taken effect") {
    Fixture fixture({.command_timeout = 200ms, .unreachable_timeout = 1s});
    const auto late_by = [](std::int64_t ms) {
        return [ms](const SentCommand& command) {
            return std::optional(error("LATE " + std::to_string(std::stoll(command.argument(2)) + ms)));
        };
    };
    // The only copy: it took no effect, however late it was.
    fixture.redis.next("add permits", late_by(1'000'000));
    fixture.seats.release();
    auto sent = fixture.redis.sent("add permits");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].argument(1) != sent[1].argument(1));
    CHECK(std::stoll(sent[1].argument(2)) > std::stoll(sent[0].argument(2)) + 1'000'000);
    // A second copy, while the mark of the first would still exist.
    fixture.redis.next("add permits", lost());
    fixture.redis.next("add permits", late_by(70'000));
    fixture.seats.release();
    sent = fixture.redis.sent("add permits");
    REQUIRE(sent.size() == 5);
    CHECK(sent[3].argument(1) == sent[2].argument(1));
    CHECK(sent[4].argument(1) != sent[3].argument(1));
    // A second copy, after the mark would have expired.
    fixture.redis.next("add permits", lost());
    fixture.redis.next("add permits", late_by(90'000));
    CHECK(code_of([&] { fixture.seats.release(); }) == errc::unreachable);
    CHECK(fixture.redis.count("add permits") == 7);
}
