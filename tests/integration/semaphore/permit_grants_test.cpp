// SPDX-License-Identifier: MIT
// Permits with leases are granted: who makes some available takes them for the first in the queue.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/engine.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::Lease;
using redlatch::PermitExpirableSemaphore;
using redlatch::PermitId;
using redlatch::RLock;
using redlatch::detail::digested;
namespace scripts = redlatch::detail::scripts;

namespace {

const std::string channel = "redisson_sc:{seats}";
const std::string queue_key = "redlatch_semaphore_queue:{seats}";
const std::string places_key = "redlatch_semaphore_places:{seats}";
const std::string leases_key = "{seats}:timeout";
const std::string marks_key = "redlatch_permit_requests:{seats}";

using Ids = std::vector<PermitId>;

struct Party {
    explicit Party(const std::string& to, ClientOptions options = {})
        : url(to), client(url, std::move(options)), seats(client, "seats") {}
    ~Party() { stop.request_stop(); }

    /// Waits for permits in a new thread. Returns when it is in the queue, and has asked once more since it listens.
    template <class... Tail>
    void queue_up(RawRedis& redis, int permits, Tail... tail) {
        const std::string id = client.id();
        const bool listens = redis.subscribers(channel + ":" + id) == 1;  // since it waited last
        CommandMonitor monitor{url};
        visit = start([this, permits, tail...] { return seats.acquire(permits, tail..., stop.get_token()); });
        REQUIRE(eventually([&] { return redis.integer("HEXISTS", places_key, id) == 1; }, 20s));
        REQUIRE(eventually([&] { return redis.subscribers(channel + ":" + id) == 1; }, 20s));
        REQUIRE(monitor.take_until("evalsha", id, listens ? 1 : 2, 20s));
        commands_when_quiet(client);  // it may ask once for each of its two channels
    }

    /// Returns the permits; none if it got none in time.
    Ids enters() { return visit.wait_for(4s) == std::future_status::ready ? visit.get() : Ids(); }

    std::string url;
    Client client;
    PermitExpirableSemaphore seats;
    std::stop_source stop;
    std::future<Ids> visit;
};

struct Fixture {
    Fixture() {
        a.seats.try_set_permits(1);
        a.seats.release(a.seats.acquire());  // from here on the scripts are cached
        redis.text("SCRIPT", "LOAD", digested<scripts::permit_leave>.text());
        taken = a.seats.acquire();
    }

    void release() { a.seats.release(*std::exchange(taken, std::nullopt)); }

    /// Returns the latest time that counts for the turn of those who do not queue.
    std::string soon() { return std::to_string(redis.now() + 1900); }

    long long count_taken() { return redis.integer("ZCARD", leases_key); }

    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    Party a{server.url()}, b{server.url()}, c{server.url()};
    std::optional<PermitId> taken;
};

/// A client in the queue that hears what it is told, and does nothing.
class Frozen {
public:
    /// `place`: see scripts/semaphore_queue.hpp.
    Frozen(Fixture& fixture, std::string name, std::string place, bool listens = true)
        : id(std::move(name)), place_(std::move(place)), redis_(fixture.redis) {
        if (listens) hears_.emplace(fixture.server, channel + ":" + id);
        take_place();
    }
    explicit Frozen(Fixture& fixture, bool listens = true)
        : Frozen(fixture, "11111111-0000-8000-8000-000000000000", "7 1 99999999999999 0 30000 0123456789abcdrl",
                 listens) {}

    /// Queues up once more, without what it was granted.
    void queue_up() {
        redis_.call("LREM", queue_key, 0, id);
        redis_.call("ZREM", leases_key, permit);
        take_place();
    }

    std::string hear() { return hears_->next(); }

    /// Asks for its permit at place 7. `again`: "1" for a question that is sent again.
    RawReply ask(const std::string& request, const std::string& again) {
        return redis_.command({"EVAL",     digested<scripts::permit_acquire>.text(),
                               "6",        "seats",
                               marks_key,  leases_key,
                               channel,    queue_key,
                               places_key, "1",
                               request,    "99999999999999",
                               "1000",     again,
                               id,         "7",
                               "PUBLISH",  "1",
                               "1",        "30000",
                               permit});
    }

    /// Leaves the place of that number. `granted`: the ids that it may have been granted there.
    template <class... Granted>
    void leave(const std::string& number, const Granted&... granted) {
        CHECK(redis_.integer("EVAL", digested<scripts::permit_leave>.text(), 6, "seats", marks_key, leases_key, channel,
                             queue_key, places_key, 1, 1, 1, 1000, 0, id, number, "PUBLISH", granted...) == 1);
    }

    const std::string id;
    const std::string permit = "0123456789abcdrl";

private:
    void take_place() {
        redis_.integer("HSET", places_key, id, place_);
        redis_.integer("RPUSH", queue_key, id);
    }

    const std::string place_;
    std::optional<Messages> hears_;
    RawRedis& redis_;
};

}  // namespace

TEST_CASE("a release takes the permit for the first in the queue, which sends no command to have it, and renews it") {
    // A thread that is held up may ask late, or find that the first renewal is due.
    CHECK(succeeds_once([] {
        Fixture fixture;
        fixture.b.queue_up(fixture.redis, 1);
        const auto commands = fixture.b.client.stats().commands;
        const Stopwatch watch;
        fixture.release();
        const Ids ids = fixture.b.enters();
        REQUIRE(ids.size() == 1);
        const bool is_silent = fixture.b.client.stats().commands == commands;
        if (watch.within(200ms)) CHECK(is_silent);
        CHECK(fixture.redis.integer("GET", "seats") == 0);
        CHECK(fixture.redis.integer("EXISTS", queue_key) == 0);
        CHECK(eventually([&] { return fixture.redis.integer("EXISTS", places_key) == 0; }, 20s));
        // The grant lasts for 2 s; the watchdog's lease follows.
        CHECK(eventually([&] { return fixture.a.seats.remaining_lease(ids[0]).value_or(0ms) > 20s; }, 20s));
        CHECK_FALSE(fixture.a.seats.try_acquire());
        fixture.b.seats.release(ids);
        CHECK(fixture.a.seats.available_permits() == 1);
        return is_silent;
    }));
}

TEST_CASE("what was granted in a row is forgotten soon after the last one in the queue has left it") {
    Fixture fixture;
    fixture.b.queue_up(fixture.redis, 1);
    fixture.c.queue_up(fixture.redis, 1);
    fixture.release();
    REQUIRE(fixture.b.enters().size() == 1);
    REQUIRE(fixture.redis.integer("HEXISTS", places_key, "turn") == 1);
    fixture.c.stop.request_stop();
    CHECK(fixture.c.enters().empty());
    CHECK(eventually([&] { return fixture.redis.integer("EXISTS", places_key) == 0; }, 4s));
}

TEST_CASE("a grant whose message comes twice stays with its caller") {
    Fixture fixture;
    fixture.b.queue_up(fixture.redis, 1);
    RawRedis hears{fixture.server};
    const std::string own = channel + ":" + fixture.b.client.id();
    hears.call("SUBSCRIBE", own);
    fixture.release();
    REQUIRE(fixture.b.enters().size() == 1);
    const auto message = hears.receive_within(4s);
    REQUIRE(message);
    const std::string text = message->elements.at(2).string;
    REQUIRE(text.starts_with("grant "));
    CHECK(fixture.redis.integer("PUBLISH", own, text) == 2);
    CHECK_FALSE(eventually([&] { return fixture.a.seats.available_permits() != 0; }, 500ms));
    CHECK(fixture.count_taken() == 1);
}

TEST_CASE("a grant that makes no sense makes the waiter ask, because its place is over") {
    Fixture fixture;
    fixture.b.queue_up(fixture.redis, 1);
    const auto commands = fixture.b.client.stats().commands;
    CHECK(fixture.redis.integer("PUBLISH", channel + ":" + fixture.b.client.id(), "grant 1 2 3") == 1);
    CHECK(eventually([&] { return fixture.b.client.stats().commands > commands; }, 3s));
}

TEST_CASE("a question that comes again after its grant is told when that ends") {
    Fixture fixture;
    Frozen client{fixture};
    const auto ask = [&](const char* request, long long lease) {
        const long long now = std::stoll(fixture.redis.list("TIME").at(0)) * 1000;
        fixture.redis.integer("ZADD", leases_key, now + lease, client.permit);
        return client.ask(request, "1");
    };
    const auto granted = ask("1", 20000);
    CHECK(granted.elements.at(0).integer == 0);
    CHECK(granted.elements.at(1).integer > 10000);
    CHECK(granted.elements.at(1).integer <= 20000);
    // It is over, and nobody has swept it: that is a question like any other.
    CHECK(ask("2", -5000).elements.at(0).integer == 1);
    CHECK(fixture.count_taken() == 2);
}

TEST_CASE("several permits are granted together, and those behind are told of the rest") {
    Fixture fixture;
    fixture.a.seats.add_permits(3);
    const Ids three = fixture.a.seats.acquire(3);
    fixture.b.queue_up(fixture.redis, 2);
    fixture.c.queue_up(fixture.redis, 2);
    fixture.a.seats.release(three);
    const Ids first = fixture.b.enters();
    CHECK(first.size() == 2);
    fixture.release();
    const Ids second = fixture.c.enters();
    CHECK(second.size() == 2);
    CHECK(fixture.count_taken() == 4);
    fixture.b.seats.release(first);
    fixture.b.seats.release(second);
    CHECK(fixture.a.seats.available_permits() == 4);
}

TEST_CASE("a lease of its own has to be asked for") {
    Fixture fixture;
    fixture.b.queue_up(fixture.redis, 1, Lease(60s));
    fixture.release();
    const Ids ids = fixture.b.enters();
    REQUIRE(ids.size() == 1);
    CHECK(fixture.a.seats.remaining_lease(ids[0]).value_or(0ms) > 50s);
}

// A grant counts from the server's clock. Without a reading of that, permits must not go round between the waiters.
TEST_CASE("a process that does not know the server's clock gives its grant back, asks, and is served") {
    CHECK(succeeds_once([] {  // a busy machine may be late
        Fixture fixture;
        fixture.b.queue_up(fixture.redis, 1);
        fixture.c.queue_up(fixture.redis, 1);
        for (Party* party : {&fixture.b, &fixture.c}) {
            RLock any{party->client, "any"};
            redlatch::detail::LockAccess::state(any).session().server_clock().doubt();
        }
        const auto commands = fixture.b.client.stats().commands + fixture.c.client.stats().commands;
        const Stopwatch watch;
        fixture.release();
        const auto has_entered = [](const Party& party) {
            return party.visit.wait_for(0s) == std::future_status::ready;
        };
        REQUIRE(eventually([&] { return has_entered(fixture.b) || has_entered(fixture.c); }, 20s));
        Party& first = has_entered(fixture.b) ? fixture.b : fixture.c;
        Party& second = &first == &fixture.b ? fixture.c : fixture.b;
        first.seats.release(first.enters());
        second.seats.release(second.enters());
        const bool in_time = watch.within(2s);
        CHECK(fixture.b.client.stats().commands + fixture.c.client.stats().commands < commands + 25);
        CHECK(fixture.a.seats.available_permits() == 1);
        return in_time;
    }));
}

TEST_CASE("a frozen waiter costs the others no more than its grant, a dead one nothing") {
    SUBCASE("frozen") {
        CHECK(succeeds_once([] {  // a busy machine may be late
            Fixture fixture;
            Frozen frozen{fixture};
            fixture.b.queue_up(fixture.redis, 1);
            const Stopwatch watch;
            fixture.release();
            CHECK(frozen.hear().starts_with("grant 7 "));
            CHECK(fixture.redis.integer("ZCARD", leases_key) == 1);
            CHECK(fixture.b.enters().size() == 1);
            CHECK(fixture.count_taken() == 1);
            bool in_time = watch.within(2500ms);
            // Once: nobody waits for it again.
            fixture.c.queue_up(fixture.redis, 1);
            const Stopwatch next;
            fixture.a.seats.add_permits(1);
            CHECK(fixture.c.enters().size() == 1);
            in_time = in_time && next.within(100ms);
            return in_time;
        }));
    }
    SUBCASE("dead") {
        CHECK(succeeds_once([] {  // a busy machine may be late
            Fixture fixture;
            Frozen dead{fixture, false};
            fixture.b.queue_up(fixture.redis, 1);
            const auto commands = fixture.b.client.stats().commands;
            const Stopwatch watch;
            fixture.release();
            CHECK(fixture.b.enters().size() == 1);
            const bool in_time = watch.within(5ms);
            if (in_time) CHECK(fixture.b.client.stats().commands == commands);
            return in_time;
        }));
    }
}

TEST_CASE("a waiter that leaves gives back what was granted to it meanwhile") {
    CHECK(succeeds_once([] {  // a busy machine may be late
        Fixture fixture;
        Proxy proxy{fixture.server.url()};
        Party slow{proxy.url()};
        slow.queue_up(fixture.redis, 1);
        proxy.delay(0ms, 5s);
        fixture.release();
        REQUIRE(fixture.redis.integer("EXISTS", queue_key) == 0);
        CHECK(fixture.count_taken() == 1);
        fixture.b.queue_up(fixture.redis, 1);
        // As if all had just had the same chance: the client that leaves listens on.
        fixture.redis.integer("HSET", places_key, "turn", "0 0 " + fixture.soon());
        const auto commands = fixture.b.client.stats().commands;
        const Stopwatch watch;
        slow.stop.request_stop();
        CHECK(slow.visit.get().empty());
        CHECK(fixture.b.enters().size() == 1);
        const bool is_silent = fixture.b.client.stats().commands == commands;
        if (watch.within(200ms)) CHECK(is_silent);
        return is_silent;
    }));
}

TEST_CASE("a question that is sent again after its place was granted takes no second permit") {
    Fixture fixture;
    Frozen client{fixture};
    fixture.redis.integer("DEL", queue_key, places_key);
    CHECK(client.ask("1", "0").elements.size() == 4);
    fixture.release();
    CHECK(client.hear().starts_with("grant 7 "));
    fixture.a.seats.add_permits(1);
    const RawReply second = client.ask("1", "1");
    REQUIRE(second.elements.size() == 4);
    CHECK(second.elements[0].integer == 0);
    // A new question for the same permits: its sender was told that the first one came too late.
    CHECK(client.ask("2", "0").elements.at(0).integer == 0);
    CHECK(fixture.redis.text("GET", "seats") == "1");
    CHECK(fixture.count_taken() == 1);
    // The grant is over, and a copy that was delayed arrives.
    fixture.redis.integer("ZREM", leases_key, client.permit);
    CHECK(client.ask("2", "1").elements.at(0).integer == 0);
    CHECK(fixture.redis.text("GET", "seats") == "1");
    CHECK(fixture.count_taken() == 0);
}

TEST_CASE("who leaves gives back what was granted, also if its place stands again") {
    Fixture fixture;
    Frozen client{fixture};
    fixture.redis.integer("DECRBY", "seats", 1);
    fixture.redis.integer("ZADD", leases_key, 99999999999999, client.permit);
    const std::string available = fixture.redis.text("GET", "seats");
    client.leave("7", client.permit);
    CHECK(fixture.redis.text("GET", "seats") == std::to_string(std::stoi(available) + 1));
    CHECK(fixture.redis.call("ZSCORE", leases_key, client.permit).is_nil());
    CHECK(fixture.redis.integer("EXISTS", queue_key, places_key) == 0);
}

// After the end of a grant a question that was sent again may have taken permits under the same ids.
TEST_CASE("what is granted to a caller that does not want it any more is given back, unless it is over") {
    for (const bool is_over : {false, true}) {
        CAPTURE(is_over);
        Fixture fixture;
        fixture.b.queue_up(fixture.redis, 3);
        const std::string permit = "0123456789abcdrl";
        fixture.redis.integer("DECRBY", "seats", 1);
        fixture.redis.integer("ZADD", leases_key, 99999999999999, permit);
        const long long now = fixture.redis.now();
        const std::string at = std::to_string(is_over ? now - 2500 : now);
        CHECK(fixture.redis.integer("PUBLISH", channel + ":" + fixture.b.client.id(),
                                    "grant 5 " + at + " 2000 " + permit) == 1);
        const auto is_given_back = [&] { return fixture.redis.call("ZSCORE", leases_key, permit).is_nil(); };
        CHECK(eventually(is_given_back, is_over ? 500ms : 20s) == !is_over);
        CHECK(fixture.redis.text("GET", "seats") == (is_over ? "-1" : "0"));
    }
}

// Clients of Redisson's, for example, to which nothing is granted.
TEST_CASE("after 16 grants in a row one release tells the first in the queue, so that others may be faster") {
    Fixture fixture;
    Frozen client{fixture};
    fixture.redis.integer("HSET", places_key, "turn", "15 0 0");
    fixture.release();
    CHECK(client.hear().starts_with("grant 7 "));
    CHECK(fixture.redis.text("HGET", places_key, "turn") == "16 0 0");
    client.queue_up();
    fixture.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("look 0 7"));
    CHECK(fixture.redis.text("HGET", places_key, "turn").starts_with("0 0 "));
    client.queue_up();
    fixture.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("grant 7 "));
}

TEST_CASE("while somebody listens who is not in the queue, all have the same chance at first, and every 2 s") {
    Fixture fixture;
    // One of them stands for the client in the queue.
    RawRedis waiting{fixture.server}, queued{fixture.server};
    waiting.call("SUBSCRIBE", channel);
    queued.call("SUBSCRIBE", channel);
    Frozen client{fixture};
    fixture.release();
    CHECK(client.hear().starts_with("look 0 7"));
    const std::string turn = fixture.redis.text("HGET", places_key, "turn");
    CHECK(turn.starts_with("0 0 "));
    client.queue_up();
    fixture.redis.integer("HSET", places_key, "turn", "0 0 " + fixture.soon());
    fixture.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("grant 7 "));
    REQUIRE(eventually([&] {
        const auto now = fixture.redis.list("TIME");
        return std::stoll(now.at(0)) > std::stoll(turn.substr(4, 10)) + 3;
    }));
    client.queue_up();
    fixture.redis.integer("HSET", places_key, "turn", "1 0 " + turn.substr(4));
    fixture.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("look 0 7"));
}

TEST_CASE(
    "a turn of before a step back of the clock counts for nothing: permits are granted, and others get their chance") {
    Fixture fixture;
    RawRedis waiting{fixture.server}, queued{fixture.server};
    Frozen client{fixture};
    const std::string hour_ahead = std::to_string(std::stoll(fixture.soon()) + 3'600'000);
    fixture.redis.integer("HSET", places_key, "turn", "0 " + hour_ahead + " 0");
    fixture.release();
    CHECK(client.hear().starts_with("grant 7 "));
    waiting.call("SUBSCRIBE", channel);
    queued.call("SUBSCRIBE", channel);
    client.queue_up();
    fixture.redis.integer("HSET", places_key, "turn", "1 0 " + hour_ahead);
    fixture.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("look 0 7"));
}

TEST_CASE("nothing is granted for a while after somebody was refused who saw a permit of another library") {
    CHECK(succeeds_once([&] {  // a busy machine may be late
        Fixture fixture;
        // As Redisson takes it.
        fixture.redis.integer("ZADD", leases_key, 99999999999999, "fedcba9876543210");
        const long long before = std::stoll(fixture.redis.list("TIME").at(0)) * 1000;
        fixture.b.queue_up(fixture.redis, 1);
        fixture.redis.integer("ZREM", leases_key, "fedcba9876543210");
        const std::string turn = fixture.redis.text("HGET", places_key, "turn");
        REQUIRE(turn.starts_with("0 "));
        CHECK(std::stoll(turn.substr(2)) >= before + 1000);
        fixture.redis.integer("HSET", places_key, "turn", "0 " + fixture.soon() + " 0");
        const auto commands = fixture.b.client.stats().commands;
        const Stopwatch off;
        fixture.release();
        CHECK(fixture.b.enters().size() == 1);
        const bool has_asked = fixture.b.client.stats().commands > commands;
        if (!off.within(1500ms)) return false;
        CHECK(has_asked);
        fixture.c.queue_up(fixture.redis, 1);
        // As if all had just had the same chance.
        fixture.redis.integer("HSET", places_key, "turn", "0 1 " + fixture.soon());
        const auto commands_of_c = fixture.c.client.stats().commands;
        const Stopwatch watch;
        fixture.a.seats.add_permits(1);
        CHECK(fixture.c.enters().size() == 1);
        const bool is_silent = fixture.c.client.stats().commands == commands_of_c;
        if (watch.within(200ms)) CHECK(is_silent);
        return is_silent;
    }));
}

TEST_CASE("who wants more permits than are available stands in for one that was granted some of them") {
    Fixture fixture;
    Frozen frozen{fixture};
    Frozen couple{fixture, "22222222-0000-8000-8000-000000000000", "8 2 99999999999999 0"};
    fixture.release();
    CHECK(frozen.hear().starts_with("grant 7 "));
    CHECK(couple.hear() == "look 400 8");
}

TEST_CASE(
    "one that stands in leaves while there are permits, too few for the next one: that asks at the end of the grant") {
    Fixture fixture;
    Frozen frozen{fixture};
    fixture.release();
    REQUIRE(frozen.hear().starts_with("grant 7 "));
    fixture.a.seats.add_permits(1);
    Frozen leaves{fixture, "22222222-0000-8000-8000-000000000000", "8 2 99999999999999 0"};
    Frozen next{fixture, "33333333-0000-8000-8000-000000000000", "9 2 99999999999999 0"};
    leaves.leave("8");
    const std::string told = next.hear();
    REQUIRE(told.starts_with("look "));
    CHECK(told.ends_with(" 9"));
    CHECK(std::stoi(told.substr(5)) > 0);
    CHECK(std::stoi(told.substr(5)) <= 2000);
}

TEST_CASE("the waiters that stand in for a frozen one leave: the next one asks at the end of its grant") {
    CHECK(succeeds_once([&] {  // a busy machine may be late
        Fixture fixture;
        Frozen frozen{fixture};
        Party d{fixture.server.url()};
        for (Party* party : {&fixture.b, &fixture.c, &d}) party->queue_up(fixture.redis, 1);
        fixture.release();
        CHECK(frozen.hear().starts_with("grant 7 "));
        const Stopwatch watch;
        for (Party* party : {&fixture.b, &fixture.c}) {
            party->stop.request_stop();
            CHECK(party->visit.get().empty());
        }
        CHECK(d.enters().size() == 1);
        return watch.within(2500ms);
    }));
}

TEST_CASE("who has no right to a command of a grant tells the first in the queue, which asks") {
    for (const char* command : {"zadd", "decrby", "pubsub", "lrem"}) {
        CAPTURE(command);
        Fixture fixture;
        fixture.redis.text("ACL", "SETUSER", "porter", "on", ">secret", "~*", "&*", "+@all",
                           std::string("-") + command);
        Party porter{fixture.server.url_of("porter")};
        fixture.b.queue_up(fixture.redis, 1);
        fixture.taken.reset();
        const Stopwatch watch;
        porter.seats.add_permits(1);
        CHECK(fixture.b.enters().size() == 1);
        CHECK(watch.within(2s));
        CHECK(fixture.redis.text("GET", "seats") == "0");
        CHECK(fixture.count_taken() == 2);
    }
}
