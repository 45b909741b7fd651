// SPDX-License-Identifier: MIT
// PermitId as text. PermitExpirableSemaphore: its commands, and replies that are late or malformed.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stop_token>
#include <string>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "support/code_of.hpp"
#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

const std::string channel = "redisson_sc:{seats}";

struct Fixture {
    explicit Fixture(ClientOptions options = {})
        : client(redis.transport(), heard(std::move(options))), seats(client, "seats") {}

    ClientOptions heard(ClientOptions options) {
        options.on_event = [this](const Event& event) {
            const std::lock_guard guard(mutex);
            events.push_back(event);
        };
        return options;
    }

    bool has_lost() {
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
    PermitExpirableSemaphore seats;
};

}  // namespace

TEST_CASE("a permit id is 32 hex digits as text") {
    const std::string text = "00ff10a5b6c7d8e9f0123456789abcde";
    const PermitId id = PermitId::parse(text);
    CHECK(id.text() == text);
    std::ostringstream out;
    out << id;
    CHECK(out.str() == text);
    CHECK(PermitId::parse("00FF10A5B6C7D8E9F0123456789ABCDE") == id);
    CHECK(id.bytes().size() == 16);
    CHECK(id.bytes()[1] == '\xff');
    for (const char* wrong : {"", "00", "00ff10a5b6c7d8e9f0123456789abcd", "00ff10a5b6c7d8e9f0123456789abcdef",
                              "00ff10a5b6c7d8e9f0123456789abcd ", "-0ff10a5b6c7d8e9f0123456789abcde"})
        CHECK(code_of([&] { PermitId::parse(wrong); }) == errc::invalid_argument);
}

TEST_CASE("permit ids are random, comparable and hashable") {
    std::unordered_set<PermitId> ids;
    for (int i = 0; i < 1000; ++i) ids.insert(PermitId::random());
    CHECK(ids.size() == 1000);
    CHECK(PermitId::parse(std::string(32, '1')) < PermitId::parse(std::string(32, '2')));
}

TEST_CASE("an acquire command contains the number of permits, the lease, and the ids") {
    Fixture fixture;
    const auto two = fixture.seats.acquire(2, Lease(5s));
    static_cast<void>(fixture.seats.acquire(Lease::forever()));
    static_cast<void>(fixture.seats.acquire());
    const auto sent = fixture.redis.sent("acquire by id");
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].key(0) == "seats");
    CHECK(sent[0].key(1) == "redlatch_permit_requests:{seats}:" + fixture.client.id());
    CHECK(sent[0].key(2) == "{seats}:timeout");
    CHECK(sent[0].key(3) == channel);
    CHECK(sent[0].argument(4) == "0");
    CHECK(sent[0].argument(9) == "2");
    CHECK(sent[0].argument(10) == "5000");
    CHECK(sent[0].argument(11) == two.at(0).bytes());
    CHECK(sent[0].argument(12) == two.at(1).bytes());
    CHECK(sent[1].argument(10) == "-1");
    CHECK(sent[2].argument(10) == "30000");
}

TEST_CASE("a retry uses new ids, so undoing the earlier try cannot take its permits") {
    Fixture fixture;
    fixture.redis.next("acquire by id", array({number(0), number(-1)}));
    fixture.redis.next("acquire by id", array({number(0), number(-1)}));
    auto waiting = start([&] { return fixture.seats.try_acquire_for(10s); });
    REQUIRE(fixture.redis.wait_for("acquire by id", 2));
    REQUIRE(fixture.redis.publish(channel, "1"));
    const auto id = waiting.get();
    REQUIRE(id);
    std::set<std::string> ids;
    for (const SentCommand& command : fixture.redis.sent("acquire by id")) ids.insert(command.argument(11));
    CHECK(ids.size() == 3);
    CHECK(fixture.redis.sent("acquire by id").back().argument(11) == id->bytes());
}

TEST_CASE("a waiter asks again when the next lease is over") {
    Fixture fixture;
    fixture.redis.next("acquire by id", array({number(0), number(10'000)}));
    fixture.redis.next("acquire by id", array({number(0), number(40)}));
    const Stopwatch watch;
    CHECK(fixture.seats.try_acquire_for(10s));
    CHECK(watch.elapsed() >= 40ms);
    CHECK(watch.within(4s));  // Without that it would be at least five seconds.
    CHECK(fixture.redis.count("acquire by id") == 3);
}

TEST_CASE("a permit whose lease is over before the reply arrives is released, and requested again") {
    Fixture fixture;
    fixture.redis.next("acquire by id", [](const SentCommand&) {
        std::this_thread::sleep_for(30ms);
        return std::optional(array({number(1), number(-1)}));
    });
    const auto id = fixture.seats.try_acquire_for(10s, Lease(10ms));
    REQUIRE(id);
    CHECK(fixture.redis.wait_for("take permits back"));
    const auto asked = fixture.redis.sent("acquire by id");
    REQUIRE(asked.size() >= 2);
    CHECK(fixture.redis.sent("take permits back").at(0).argument(6) == asked[0].argument(11));
    CHECK(id->bytes() == asked.back().argument(11));
}

TEST_CASE("a renewal without a reply is resent soon, and the permit is kept") {
    Fixture fixture({.watchdog_timeout = 6s});
    fixture.redis.next("renew permits", lost());
    const PermitId id = fixture.seats.acquire();
    REQUIRE(fixture.redis.wait_for("renew permits", 3));
    const auto renewals = fixture.redis.sent("renew permits");
    CHECK(renewals[0].argument(2) == id.bytes());
    CHECK(renewals[1].at - renewals[0].at < 1500ms);  // not only after the next third of the timeout
    CHECK(fixture.client.stats().lost_holds == 0);
    fixture.seats.release(id);
}

TEST_CASE("permits whose renewal cannot be sent are renewed after a pause, however early they are renewed") {
    Fixture fixture({.watchdog_timeout = 6s, .renewal_batch = 2});
    fixture.redis.refuse_to_post("renew permits");
    const std::vector<PermitId> ids = fixture.seats.acquire(5);
    REQUIRE(fixture.redis.wait_for("renew permits", 9));
    // Three batches each time. The pause is a sixtieth of the lease.
    const auto renewals = fixture.redis.sent("renew permits");
    CHECK(renewals[8].at - renewals[0].at >= 199ms);
    fixture.seats.release(ids);
}

TEST_CASE("a permit that cannot be renewed is lost before its lease can be over") {
    // The best of some rounds, because this thread may be notified late on a busy machine.
    bool in_time = false;
    for (int round = 0; round < 5 && !in_time; ++round) {
        Fixture fixture({.watchdog_timeout = 300ms});
        fixture.redis.always("renew permits", lost());
        const Stopwatch watch;
        static_cast<void>(fixture.seats.acquire());
        REQUIRE(fixture.has_lost());
        in_time = watch.within(patient(400ms));
    }
    CHECK(in_time);
}

TEST_CASE("a refused release leaves its permits under the watchdog") {
    Fixture fixture({.watchdog_timeout = 1500ms});
    const PermitId id = fixture.seats.acquire();
    fixture.redis.next("release by id", number(0));
    CHECK_FALSE(fixture.seats.try_release(std::vector{id, PermitId::random()}));
    CHECK(fixture.redis.wait_for("renew permits", 2));
    CHECK(fixture.seats.try_release(id));
    const auto renewals = fixture.redis.count("renew permits");
    std::this_thread::sleep_for(1100ms);
    CHECK(fixture.redis.count("renew permits") <= renewals + 1);
}

TEST_CASE("malformed replies to permit ids are errors, and the possible permits are returned") {
    for (const Reply& reply : {nil(), number(1), array({}), array({number(7), number(-1)}),
                               array({number(-1), number(-1)}), array({number(1), nil()}), malformed()}) {
        Fixture fixture;
        fixture.redis.next("acquire by id", reply);
        CHECK(code_of([&] { return fixture.seats.acquire(); }) == errc::protocol_error);
        CHECK(fixture.redis.wait_for("take permits back"));
    }
    Fixture fixture;
    for (const char* sort : {"release by id", "set lease", "set total", "count permits", "remaining lease of permit"})
        fixture.redis.always(sort, text("what?"));
    const PermitId id = PermitId::random();
    CHECK(code_of([&] { fixture.seats.release(id); }) == errc::protocol_error);
    CHECK(code_of([&] { fixture.seats.update_lease(id, Lease(1s)); }) == errc::protocol_error);
    CHECK(code_of([&] { fixture.seats.set_permits(1); }) == errc::protocol_error);
    CHECK(code_of([&] { fixture.seats.permits(); }) == errc::protocol_error);
    CHECK(code_of([&] { fixture.seats.remaining_lease(id); }) == errc::protocol_error);
}

TEST_CASE("update_lease() waits until no renewal in flight can prolong the lease") {
    Fixture fixture({.watchdog_timeout = 1500ms, .command_timeout = 20s});
    fixture.redis.next("renew permits", ScriptedRedis::hold_back);
    const PermitId id = fixture.seats.acquire();
    REQUIRE(fixture.redis.wait_for("renew permits"));
    const SentCommand renewal = fixture.redis.sent("renew permits").at(0);
    CHECK(std::stoll(renewal.argument(1)) < 9'000'000'000'000'000);  // by the server's clock
    auto updated = start([&] { fixture.seats.update_lease(id, Lease(100ms)); });
    CHECK(updated.wait_for(50ms) == std::future_status::timeout);
    CHECK(fixture.redis.count("set lease") == 0);
    fixture.redis.answer(renewal, array({number(1)}));
    updated.get();
    CHECK(fixture.redis.count("set lease") == 1);
    CHECK(fixture.redis.count("renew permits") == 1);
}

TEST_CASE("a Permit that goes out of scope is released without waiting for a reply") {
    Fixture fixture({.command_timeout = 20s, .unreachable_timeout = 20s});
    const Stopwatch watch;
    fixture.redis.always("release by id", ScriptedRedis::hold_back);
    { const Permit permit(fixture.seats); }
    CHECK(watch.within(10s));
    REQUIRE(fixture.redis.wait_for("release by id"));
    const SentCommand released = fixture.redis.sent("release by id").at(0);
    CHECK(released.posted);
    CHECK(released.argument(6) == fixture.redis.sent("acquire by id").at(0).argument(11));
    fixture.redis.answer(released, number(1));
}

TEST_CASE("permits of an object whose renewals get no reply are lost when their lease may be over, not later") {
    Fixture fixture({.watchdog_timeout = 1500ms});
    fixture.redis.always("renew permits", ScriptedRedis::hold_back);
    Permits held = fixture.seats.hold(2);
    const std::stop_token lost = held.lost();
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK(Clock::now() < fixture.redis.sent("acquire by id").back().at + 1500ms + 3s);
    CHECK(held.valid_until() == Instant::min());
    // A late reply does not bring them back.
    fixture.redis.answer(fixture.redis.sent("renew permits").at(0), array({number(1), number(1)}));
    const Permits other = fixture.seats.hold(1);
    REQUIRE(fixture.redis.wait_for("renew permits", 2));
    CHECK(held.valid_until() == Instant::min());
    CHECK(fixture.client.stats().lost_holds >= 2);
}

TEST_CASE("the loss of many permits is reported earlier than that of a few, because that takes longer") {
    const auto notice = [](int permits) {
        Fixture fixture;
        const Permits held = fixture.seats.hold(permits, Lease(10s));
        return held.valid_until() - ClientAccess::session(fixture.client)->session().losses().timers().sleep_until();
    };
    CHECK(notice(1) < 20ms);
    CHECK(notice(3000) >= 30ms);
}

TEST_CASE("the validity of permits counts from when the answered renewal was sent") {
    Fixture fixture({.watchdog_timeout = 1500ms});
    const Permits held = fixture.seats.hold(1);
    const Instant first = held.valid_until();
    fixture.redis.always("renew permits", ScriptedRedis::hold_back);  // the second renewal, so that it does not count
    fixture.redis.next("renew permits", [](const SentCommand&) {
        std::this_thread::sleep_for(50ms);
        return std::optional(array({number(1)}));
    });
    REQUIRE(eventually([&] { return held.valid_until() > first; }));
    CHECK(held.valid_until() < fixture.redis.sent("renew permits").at(0).at + 1500ms);
}

TEST_CASE("permits of an object that goes out of scope are given back without waiting, one by one if need be") {
    Fixture fixture({.command_timeout = 20s, .unreachable_timeout = 20s});
    const Stopwatch watch;
    fixture.redis.always("take permits back", ScriptedRedis::hold_back);
    { const Permits held = fixture.seats.hold(2); }
    CHECK(watch.within(10s));
    REQUIRE(fixture.redis.wait_for("take permits back"));
    const SentCommand back = fixture.redis.sent("take permits back").at(0);
    CHECK(back.posted);
    const SentCommand asked = fixture.redis.sent("acquire by id").at(0);
    CHECK(back.argument(6) == asked.argument(11));
    CHECK(back.argument(7) == asked.argument(12));
    CHECK(fixture.redis.count("release by id") == 0);
    fixture.redis.answer(back, number(2));
}

TEST_CASE("permits of an object that a release by id of unknown outcome names are lost to it") {
    Fixture fixture({.command_timeout = 50ms, .unreachable_timeout = 100ms});
    const Permits held = fixture.seats.hold(2);
    const std::stop_token lost = held.lost();
    fixture.redis.always("release by id", redlatch::test::lost());
    CHECK(code_of([&] { fixture.seats.release(held.ids()[0]); }) == errc::unreachable);
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK(held.valid_until() == Instant::min());
}

TEST_CASE("permits that a refused release by id names are still renewed, and not lost") {
    Fixture fixture({.watchdog_timeout = 1500ms});
    const PermitId id = fixture.seats.acquire();
    const Permits held = fixture.seats.hold(1);
    for (const Reply& reply : {error("WRONGTYPE the key is something else"), text("what?")}) {
        fixture.redis.always("release by id", reply);
        const std::size_t renewals = fixture.redis.count("renew permits");
        CHECK(code_of([&] { fixture.seats.release(std::vector{id, held.ids()[0]}); }));
        REQUIRE(fixture.redis.wait_for("renew permits", renewals + 2));
        CHECK(fixture.redis.sent("renew permits").back().argument_count() == 4);  // both
    }
    CHECK_FALSE(held.lost().stop_requested());
}

TEST_CASE("after an update_lease() in vain the permit is renewed, and as valid as before if nothing has changed") {
    Fixture fixture({.watchdog_timeout = 3s});
    const Permits held = fixture.seats.hold(1);
    const PermitId id = held.ids()[0];
    const Instant valid = held.valid_until();
    fixture.redis.next("set lease", error("WRONGTYPE the key is something else"));
    CHECK(code_of([&] { fixture.seats.update_lease(id, Lease(2s)); }));
    CHECK(held.valid_until() >= valid);
    fixture.redis.next("set lease", text("what?"));
    CHECK(code_of([&] { fixture.seats.update_lease(id, Lease(1s)); }) == errc::protocol_error);
    const std::size_t renewals = fixture.redis.count("renew permits");
    CHECK(fixture.redis.wait_for("renew permits", renewals + 2));
    CHECK_FALSE(held.lost().stop_requested());
    // A late copy of the one without an answer may still shorten the lease.
    CHECK(held.valid_until() <= Clock::now() + 1s);
}

TEST_CASE("of two update_lease() of one permit the second is sent after the reply to the first") {
    Fixture fixture({.command_timeout = 20s, .unreachable_timeout = 20s});
    const Permits held = fixture.seats.hold(1);
    fixture.redis.next("set lease", ScriptedRedis::hold_back);
    const auto update = [&](std::chrono::seconds to) {
        return start([&, to] { fixture.seats.update_lease(held.ids().at(0), Lease(to)); });
    };
    auto longer = update(60s);
    REQUIRE(fixture.redis.wait_for("set lease"));
    auto shorter = update(5s);
    CHECK(shorter.wait_for(50ms) == std::future_status::timeout);
    CHECK(fixture.redis.count("set lease") == 1);
    fixture.redis.answer(fixture.redis.sent("set lease").at(0), number(1));
    longer.get();
    shorter.get();
    CHECK(held.valid_until() <= Clock::now() + 5s);
}

TEST_CASE("while update_lease() is in flight, permits of an object are certain as long as both leases are") {
    Fixture fixture({.command_timeout = 20s, .unreachable_timeout = 20s});
    const Permits held = fixture.seats.hold(1);
    fixture.redis.next("set lease", ScriptedRedis::hold_back);
    auto updated = start([&] {
        std::error_code ec;
        fixture.seats.update_lease(held.ids().at(0), Lease(5s), ec);
        return ec;
    });
    REQUIRE(fixture.redis.wait_for("set lease"));
    CHECK(held.valid_until() <= Clock::now() + 5s);
    // A failed one may have taken effect, but the watchdog goes on.
    fixture.redis.answer(fixture.redis.sent("set lease").at(0), text("what?"));
    CHECK(updated.get() == errc::protocol_error);
    CHECK(held.valid_until() <= Clock::now() + 5s);
    CHECK_FALSE(held.lost().stop_requested());
}

namespace {

/// The answer to a question that gets nothing, and has a place in the queue.
Reply queued() { return array({number(0), number(-1), number(1), number(1)}); }

/// A semaphore whose waiters queue up.
struct QueueBench : Fixture {
    explicit QueueBench(ClientOptions options = {}) : Fixture(std::move(options)) {
        redis.always("acquire by id", queued());
    }

    std::size_t questions() const { return redis.sent("acquire by id").size(); }
    bool asked(std::size_t times) { return redis.wait_for("acquire by id", times); }

    const std::string own = channel + ":" + client.id();
};

}  // namespace

TEST_CASE("while another caller's first question hangs, a waiter that was told does not ask without end") {
    QueueBench fixture;
    fixture.redis.next("acquire by id", ScriptedRedis::hold_back);
    std::stop_source stop;
    auto first = start([&] { return fixture.seats.acquire(1, stop.get_token()); });
    REQUIRE(fixture.asked(1));
    const SentCommand hangs = fixture.redis.sent("acquire by id").front();
    auto second = start([&] { return fixture.seats.try_acquire_for(1500ms); });
    REQUIRE(fixture.redis.wait_until_wanted(fixture.own));
    REQUIRE(fixture.redis.publish(fixture.own, "look 0 " + hangs.argument(6)));
    CHECK_FALSE(second.get());
    CHECK(fixture.questions() <= 5);
    fixture.redis.answer(hangs, queued());
    stop.request_stop();
    CHECK(first.get().empty());
}

TEST_CASE("a caller that was told during its first question asks again, although another one has asked meanwhile") {
    QueueBench fixture;
    // The subscriptions of an earlier waiter stay for a while, so nobody has to ask again because of new ones.
    std::stop_source stop_earlier;
    auto earlier = start([&] { return fixture.seats.acquire(1, stop_earlier.get_token()); });
    REQUIRE(fixture.redis.wait_until_wanted(fixture.own));
    commands_when_quiet(fixture.client);
    stop_earlier.request_stop();
    CHECK(earlier.get().empty());
    const std::size_t before = fixture.questions();
    fixture.redis.next("acquire by id", ScriptedRedis::hold_back);
    std::stop_source stop;
    auto first = start([&] { return fixture.seats.acquire(1, stop.get_token()); });
    REQUIRE(fixture.asked(before + 1));
    const SentCommand hangs = fixture.redis.sent("acquire by id").back();
    REQUIRE(fixture.redis.publish(fixture.own, "look 0 " + hangs.argument(6)));
    CHECK_FALSE(fixture.seats.try_acquire_for(1ms));  // its question has 250 ms all the same
    const std::size_t asked = fixture.questions();
    CHECK(asked == before + 2);
    fixture.redis.answer(hangs, queued());
    const Stopwatch watch;
    CHECK(fixture.asked(asked + 1));
    CHECK(watch.within(4s));  // the slow poll comes after 5 s
    stop.request_stop();
    CHECK(first.get().empty());
}

TEST_CASE("who waits behind a caller that left during its question asks for itself") {
    QueueBench fixture({.command_timeout = 20s});  // longer than a reply is held back
    std::stop_source stop;
    auto first = start([&] { return fixture.seats.acquire(1, stop.get_token()); });
    REQUIRE(fixture.redis.wait_until_wanted(fixture.own));
    REQUIRE(fixture.asked(2));  // again, because it listens
    const std::string place = fixture.redis.sent("acquire by id").back().argument(6);
    std::stop_source stop_second;
    auto second = start([&] { return fixture.seats.acquire(5, stop_second.get_token()); });
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 2; }));
    auto third = start([&] { return fixture.seats.acquire(1, stop.get_token()); });
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 3; }));
    commands_when_quiet(fixture.client);  // whoever joins may make the first one ask
    const std::size_t before = fixture.questions();
    fixture.redis.next("acquire by id", ScriptedRedis::hold_back);
    REQUIRE(fixture.redis.publish(fixture.own, "look 0 " + place));
    REQUIRE(fixture.asked(before + 1));
    const SentCommand both = fixture.redis.sent("acquire by id").back();
    CHECK(both.argument(12) == "5");
    stop_second.request_stop();
    CHECK(second.get().empty());
    fixture.redis.answer(both, array({number(1), number(-1), number(1), number(1)}));
    const Stopwatch watch;
    CHECK(first.get().size() == 1);
    CHECK(fixture.asked(before + 2));
    CHECK(watch.within(4s));  // the slow poll comes after 5 s
    stop.request_stop();
    CHECK(third.get().empty());
}

TEST_CASE("the question after a useless grant is not for one, the question after that is") {
    Fixture fixture;
    fixture.redis.always("acquire by id", array({number(0), number(-1), number(1), number(1)}));
    std::stop_source stop;
    auto waiting = start([&] { return fixture.seats.acquire(1, stop.get_token()); });
    const std::string own = channel + ":" + fixture.client.id();
    REQUIRE(fixture.redis.wait_until_wanted(own));
    REQUIRE(fixture.redis.wait_for("acquire by id", 2));  // once more, because it listens
    commands_when_quiet(fixture.client);                  // to two channels
    const std::size_t before = fixture.redis.sent("acquire by id").size();
    const SentCommand asked = fixture.redis.sent("acquire by id").back();
    CHECK(asked.argument(8) == "1");

    const std::string over = std::to_string(ScriptedRedis::server_now() - 5000);
    REQUIRE(fixture.redis.publish(own, "grant " + asked.argument(6) + " " + over + " 2000 " + asked.argument(11)));
    REQUIRE(fixture.redis.wait_for("acquire by id", before + 1));
    CHECK(fixture.redis.sent("acquire by id").at(before).argument(8) == "0");
    REQUIRE(fixture.redis.publish(own, "look 0 " + asked.argument(6)));
    REQUIRE(fixture.redis.wait_for("acquire by id", before + 2));
    CHECK(fixture.redis.sent("acquire by id").at(before + 1).argument(8) == "1");
    stop.request_stop();
    CHECK(waiting.get().empty());
}
