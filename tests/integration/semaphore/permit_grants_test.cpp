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

struct Bench {
    Bench() {
        a.seats.try_set_permits(1);
        a.seats.release(a.seats.acquire());  // from here on the scripts are cached
        redis.text("SCRIPT", "LOAD", digested<scripts::permit_leave>.text());
        taken = a.seats.acquire();
    }

    void release() { a.seats.release(*std::exchange(taken, std::nullopt)); }

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
    Frozen(Bench& bench, std::string name, std::string place, bool listens = true)
        : id(std::move(name)), place_(std::move(place)), hears_(bench.server), redis_(bench.redis) {
        if (listens) hears_.call("SUBSCRIBE", channel + ":" + id);
        take_place();
    }
    explicit Frozen(Bench& bench, bool listens = true)
        : Frozen(bench, "11111111-0000-8000-8000-000000000000", "7 1 99999999999999 0 30000 0123456789abcdrl",
                 listens) {}

    /// Queues up once more, without what it was granted.
    void queue_up() {
        redis_.call("LREM", queue_key, 0, id);
        redis_.call("ZREM", leases_key, permit);
        take_place();
    }

    std::string hear() {
        const auto message = hears_.receive_within(1s);
        return message ? message->elements.at(2).string : std::string();
    }

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
    RawRedis hears_;
    RawRedis& redis_;
};

}  // namespace

TEST_CASE("a release takes the permit for the first in the queue, which sends no command to have it, and renews it") {
    // A thread that is held up may ask late, or find that the first renewal is due.
    CHECK(succeeds_once([] {
        Bench bench;
        bench.b.queue_up(bench.redis, 1);
        const auto commands = bench.b.client.stats().commands;
        const Stopwatch watch;
        bench.release();
        const Ids ids = bench.b.enters();
        REQUIRE(ids.size() == 1);
        const bool is_silent = bench.b.client.stats().commands == commands;
        if (watch.within(200ms)) CHECK(is_silent);
        CHECK(bench.redis.integer("GET", "seats") == 0);
        CHECK(bench.redis.integer("EXISTS", queue_key) == 0);
        CHECK(eventually([&] { return bench.redis.integer("EXISTS", places_key) == 0; }, 20s));
        // The grant lasts for 2 s; the watchdog's lease follows.
        CHECK(eventually([&] { return bench.a.seats.remaining_lease(ids[0]).value_or(0ms) > 20s; }, 20s));
        CHECK_FALSE(bench.a.seats.try_acquire());
        bench.b.seats.release(ids);
        CHECK(bench.a.seats.available_permits() == 1);
        return is_silent;
    }));
}

TEST_CASE("what was granted in a row is forgotten soon after the last one in the queue has left it") {
    Bench bench;
    bench.b.queue_up(bench.redis, 1);
    bench.c.queue_up(bench.redis, 1);
    bench.release();
    REQUIRE(bench.b.enters().size() == 1);
    REQUIRE(bench.redis.integer("HEXISTS", places_key, "turn") == 1);
    bench.c.stop.request_stop();
    CHECK(bench.c.enters().empty());
    CHECK(eventually([&] { return bench.redis.integer("EXISTS", places_key) == 0; }, 4s));
}

TEST_CASE("a grant whose message comes twice stays with its caller") {
    Bench bench;
    bench.b.queue_up(bench.redis, 1);
    RawRedis hears{bench.server};
    const std::string own = channel + ":" + bench.b.client.id();
    hears.call("SUBSCRIBE", own);
    bench.release();
    REQUIRE(bench.b.enters().size() == 1);
    const auto message = hears.receive_within(4s);
    REQUIRE(message);
    const std::string text = message->elements.at(2).string;
    REQUIRE(text.starts_with("grant "));
    CHECK(bench.redis.integer("PUBLISH", own, text) == 2);
    CHECK_FALSE(eventually([&] { return bench.a.seats.available_permits() != 0; }, 500ms));
    CHECK(bench.count_taken() == 1);
}

TEST_CASE("a grant that makes no sense makes the waiter ask, because its place is over") {
    Bench bench;
    bench.b.queue_up(bench.redis, 1);
    const auto commands = bench.b.client.stats().commands;
    CHECK(bench.redis.integer("PUBLISH", channel + ":" + bench.b.client.id(), "grant 1 2 3") == 1);
    CHECK(eventually([&] { return bench.b.client.stats().commands > commands; }, 3s));
}

TEST_CASE("a question that comes again after its grant is told when that ends") {
    Bench bench;
    Frozen client{bench};
    const auto ask = [&](const char* request, long long lease) {
        const long long now = std::stoll(bench.redis.list("TIME").at(0)) * 1000;
        bench.redis.integer("ZADD", leases_key, now + lease, client.permit);
        return client.ask(request, "1");
    };
    const auto granted = ask("1", 20000);
    CHECK(granted.elements.at(0).integer == 0);
    CHECK(granted.elements.at(1).integer > 10000);
    CHECK(granted.elements.at(1).integer <= 20000);
    // It is over, and nobody has swept it: that is a question like any other.
    CHECK(ask("2", -5000).elements.at(0).integer == 1);
    CHECK(bench.count_taken() == 2);
}

TEST_CASE("several permits are granted together, and those behind are told of the rest") {
    Bench bench;
    bench.a.seats.add_permits(3);
    const Ids three = bench.a.seats.acquire(3);
    bench.b.queue_up(bench.redis, 2);
    bench.c.queue_up(bench.redis, 2);
    bench.a.seats.release(three);
    const Ids first = bench.b.enters();
    CHECK(first.size() == 2);
    bench.release();
    const Ids second = bench.c.enters();
    CHECK(second.size() == 2);
    CHECK(bench.count_taken() == 4);
    bench.b.seats.release(first);
    bench.b.seats.release(second);
    CHECK(bench.a.seats.available_permits() == 4);
}

TEST_CASE("a lease of its own has to be asked for") {
    Bench bench;
    bench.b.queue_up(bench.redis, 1, Lease(60s));
    bench.release();
    const Ids ids = bench.b.enters();
    REQUIRE(ids.size() == 1);
    CHECK(bench.a.seats.remaining_lease(ids[0]).value_or(0ms) > 50s);
}

// A grant counts from the server's clock. Without a reading of that, permits must not go round between the waiters.
TEST_CASE("a process that does not know the server's clock gives its grant back, asks, and is served") {
    Bench bench;
    bench.b.queue_up(bench.redis, 1);
    bench.c.queue_up(bench.redis, 1);
    for (Party* party : {&bench.b, &bench.c}) {
        RLock any{party->client, "any"};
        redlatch::detail::LockAccess::state(any).session().server_clock().doubt();
    }
    const auto commands = bench.b.client.stats().commands + bench.c.client.stats().commands;
    const Stopwatch watch;
    bench.release();
    const auto has_entered = [](const Party& party) { return party.visit.wait_for(0s) == std::future_status::ready; };
    REQUIRE(eventually([&] { return has_entered(bench.b) || has_entered(bench.c); }, 20s));
    Party& first = has_entered(bench.b) ? bench.b : bench.c;
    Party& second = &first == &bench.b ? bench.c : bench.b;
    first.seats.release(first.enters());
    second.seats.release(second.enters());
    CHECK(watch.within(2s));
    CHECK(bench.b.client.stats().commands + bench.c.client.stats().commands < commands + 25);
    CHECK(bench.a.seats.available_permits() == 1);
}

TEST_CASE("a frozen waiter costs the others no more than its grant, a dead one nothing") {
    SUBCASE("frozen") {
        CHECK(succeeds_once([] {  // a busy machine may be late
            Bench bench;
            Frozen frozen{bench};
            bench.b.queue_up(bench.redis, 1);
            const Stopwatch watch;
            bench.release();
            CHECK(frozen.hear().starts_with("grant 7 "));
            CHECK(bench.redis.integer("ZCARD", leases_key) == 1);
            CHECK(bench.b.enters().size() == 1);
            CHECK(bench.count_taken() == 1);
            bool in_time = watch.within(2500ms);
            // Once: nobody waits for it again.
            bench.c.queue_up(bench.redis, 1);
            const Stopwatch next;
            bench.a.seats.add_permits(1);
            CHECK(bench.c.enters().size() == 1);
            in_time = in_time && next.within(100ms);
            return in_time;
        }));
    }
    SUBCASE("dead") {
        CHECK(succeeds_once([] {  // a busy machine may be late
            Bench bench;
            Frozen dead{bench, false};
            bench.b.queue_up(bench.redis, 1);
            const auto commands = bench.b.client.stats().commands;
            const Stopwatch watch;
            bench.release();
            CHECK(bench.b.enters().size() == 1);
            const bool in_time = watch.within(5ms);
            if (in_time) CHECK(bench.b.client.stats().commands == commands);
            return in_time;
        }));
    }
}

TEST_CASE("a waiter that leaves gives back what was granted to it meanwhile") {
    CHECK(succeeds_once([] {  // a busy machine may be late
        Bench bench;
        Proxy proxy{bench.server.url()};
        Party slow{proxy.url()};
        slow.queue_up(bench.redis, 1);
        proxy.delay(0ms, 5s);
        bench.release();
        REQUIRE(bench.redis.integer("EXISTS", queue_key) == 0);
        CHECK(bench.count_taken() == 1);
        bench.b.queue_up(bench.redis, 1);
        // As if all had just had the same chance: the client that leaves listens on.
        bench.redis.integer("HSET", places_key, "turn", "0 0 99999999999999");
        const auto commands = bench.b.client.stats().commands;
        const Stopwatch watch;
        slow.stop.request_stop();
        CHECK(slow.visit.get().empty());
        CHECK(bench.b.enters().size() == 1);
        const bool is_silent = bench.b.client.stats().commands == commands;
        if (watch.within(200ms)) CHECK(is_silent);
        return is_silent;
    }));
}

TEST_CASE("a question that is sent again after its place was granted takes no second permit") {
    Bench bench;
    Frozen client{bench};
    bench.redis.integer("DEL", queue_key, places_key);
    CHECK(client.ask("1", "0").elements.size() == 4);
    bench.release();
    CHECK(client.hear().starts_with("grant 7 "));
    bench.a.seats.add_permits(1);
    const RawReply second = client.ask("1", "1");
    REQUIRE(second.elements.size() == 4);
    CHECK(second.elements[0].integer == 0);
    // A new question for the same permits: its sender was told that the first one came too late.
    CHECK(client.ask("2", "0").elements.at(0).integer == 0);
    CHECK(bench.redis.text("GET", "seats") == "1");
    CHECK(bench.count_taken() == 1);
    // The grant is over, and a copy that was delayed arrives.
    bench.redis.integer("ZREM", leases_key, client.permit);
    CHECK(client.ask("2", "1").elements.at(0).integer == 0);
    CHECK(bench.redis.text("GET", "seats") == "1");
    CHECK(bench.count_taken() == 0);
}

TEST_CASE("who leaves gives back what was granted, also if its place stands again") {
    Bench bench;
    Frozen client{bench};
    bench.redis.integer("DECRBY", "seats", 1);
    bench.redis.integer("ZADD", leases_key, 99999999999999, client.permit);
    const std::string available = bench.redis.text("GET", "seats");
    client.leave("7", client.permit);
    CHECK(bench.redis.text("GET", "seats") == std::to_string(std::stoi(available) + 1));
    CHECK(bench.redis.call("ZSCORE", leases_key, client.permit).is_nil());
    CHECK(bench.redis.integer("EXISTS", queue_key, places_key) == 0);
}

// After the end of a grant a question that was sent again may have taken permits under the same ids.
TEST_CASE("what is granted to a caller that does not want it any more is given back, unless it is over") {
    for (const bool is_over : {false, true}) {
        CAPTURE(is_over);
        Bench bench;
        bench.b.queue_up(bench.redis, 3);
        const std::string permit = "0123456789abcdrl";
        bench.redis.integer("DECRBY", "seats", 1);
        bench.redis.integer("ZADD", leases_key, 99999999999999, permit);
        const long long now = bench.redis.now();
        const std::string at = std::to_string(is_over ? now - 2500 : now);
        CHECK(bench.redis.integer("PUBLISH", channel + ":" + bench.b.client.id(),
                                  "grant 5 " + at + " 2000 " + permit) == 1);
        const auto is_given_back = [&] { return bench.redis.call("ZSCORE", leases_key, permit).is_nil(); };
        CHECK(eventually(is_given_back, is_over ? 500ms : 20s) == !is_over);
        CHECK(bench.redis.text("GET", "seats") == (is_over ? "-1" : "0"));
    }
}

// Clients of Redisson's, for example, to which nothing is granted.
TEST_CASE("after 16 grants in a row one release tells the first in the queue, so that others may be faster") {
    Bench bench;
    Frozen client{bench};
    bench.redis.integer("HSET", places_key, "turn", "15 0 0");
    bench.release();
    CHECK(client.hear().starts_with("grant 7 "));
    CHECK(bench.redis.text("HGET", places_key, "turn") == "16 0 0");
    client.queue_up();
    bench.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("look 0 7"));
    CHECK(bench.redis.text("HGET", places_key, "turn").starts_with("0 0 "));
    client.queue_up();
    bench.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("grant 7 "));
}

TEST_CASE("while somebody listens who is not in the queue, all have the same chance at first, and every 2 s") {
    Bench bench;
    // One of them stands for the client in the queue.
    RawRedis waiting{bench.server}, queued{bench.server};
    waiting.call("SUBSCRIBE", channel);
    queued.call("SUBSCRIBE", channel);
    Frozen client{bench};
    bench.release();
    CHECK(client.hear().starts_with("look 0 7"));
    const std::string turn = bench.redis.text("HGET", places_key, "turn");
    CHECK(turn.starts_with("0 0 "));
    client.queue_up();
    // It lasts as long as the test likes.
    bench.redis.integer("HSET", places_key, "turn", "0 0 99999999999999");
    bench.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("grant 7 "));
    REQUIRE(eventually([&] {
        const auto now = bench.redis.list("TIME");
        return std::stoll(now.at(0)) > std::stoll(turn.substr(4, 10)) + 3;
    }));
    client.queue_up();
    bench.redis.integer("HSET", places_key, "turn", "1 0 " + turn.substr(4));
    bench.a.seats.add_permits(1);
    CHECK(client.hear().starts_with("look 0 7"));
}

TEST_CASE("nothing is granted for a while after somebody was refused who saw a permit of another library") {
    CHECK(succeeds_once([&] {  // a busy machine may be late
        Bench bench;
        // As Redisson takes it.
        bench.redis.integer("ZADD", leases_key, 99999999999999, "fedcba9876543210");
        const long long before = std::stoll(bench.redis.list("TIME").at(0)) * 1000;
        bench.b.queue_up(bench.redis, 1);
        bench.redis.integer("ZREM", leases_key, "fedcba9876543210");
        const std::string turn = bench.redis.text("HGET", places_key, "turn");
        REQUIRE(turn.starts_with("0 "));
        CHECK(std::stoll(turn.substr(2)) >= before + 1000);
        bench.redis.integer("HSET", places_key, "turn", "0 99999999999999 0");
        const auto commands = bench.b.client.stats().commands;
        bench.release();
        CHECK(bench.b.enters().size() == 1);
        CHECK(bench.b.client.stats().commands > commands);
        bench.c.queue_up(bench.redis, 1);
        // As if all had just had the same chance.
        bench.redis.integer("HSET", places_key, "turn", "0 1 99999999999999");
        const auto commands_of_c = bench.c.client.stats().commands;
        const Stopwatch watch;
        bench.a.seats.add_permits(1);
        CHECK(bench.c.enters().size() == 1);
        const bool is_silent = bench.c.client.stats().commands == commands_of_c;
        if (watch.within(200ms)) CHECK(is_silent);
        return is_silent;
    }));
}

TEST_CASE("who wants more permits than are available stands in for one that was granted some of them") {
    Bench bench;
    Frozen frozen{bench};
    Frozen couple{bench, "22222222-0000-8000-8000-000000000000", "8 2 99999999999999 0"};
    bench.release();
    CHECK(frozen.hear().starts_with("grant 7 "));
    CHECK(couple.hear() == "look 400 8");
}

TEST_CASE(
    "one that stands in leaves while there are permits, too few for the next one: that asks at the end of the grant") {
    Bench bench;
    Frozen frozen{bench};
    bench.release();
    REQUIRE(frozen.hear().starts_with("grant 7 "));
    bench.a.seats.add_permits(1);
    Frozen leaves{bench, "22222222-0000-8000-8000-000000000000", "8 2 99999999999999 0"};
    Frozen next{bench, "33333333-0000-8000-8000-000000000000", "9 2 99999999999999 0"};
    leaves.leave("8");
    const std::string told = next.hear();
    REQUIRE(told.starts_with("look "));
    CHECK(told.ends_with(" 9"));
    CHECK(std::stoi(told.substr(5)) > 0);
    CHECK(std::stoi(told.substr(5)) <= 2000);
}

TEST_CASE("the waiters that stand in for a frozen one leave: the next one asks at the end of its grant") {
    CHECK(succeeds_once([&] {  // a busy machine may be late
        Bench bench;
        Frozen frozen{bench};
        Party d{bench.server.url()};
        for (Party* party : {&bench.b, &bench.c, &d}) party->queue_up(bench.redis, 1);
        bench.release();
        CHECK(frozen.hear().starts_with("grant 7 "));
        const Stopwatch watch;
        for (Party* party : {&bench.b, &bench.c}) {
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
        Bench bench;
        bench.redis.text("ACL", "SETUSER", "porter", "on", ">secret", "~*", "&*", "+@all", std::string("-") + command);
        Party porter{bench.server.url_of("porter")};
        bench.b.queue_up(bench.redis, 1);
        bench.taken.reset();
        const Stopwatch watch;
        porter.seats.add_permits(1);
        CHECK(bench.b.enters().size() == 1);
        CHECK(watch.within(2s));
        CHECK(bench.redis.text("GET", "seats") == "0");
        CHECK(bench.count_taken() == 2);
    }
}
