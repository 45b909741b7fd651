// SPDX-License-Identifier: MIT
// ctest: long without=address
// OnceFlag and SingleFlight: who does the work is killed in each state, replies are lost, servers restart.
#include <atomic>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "faults/fault_kit.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds margin = 50ms + late;
constexpr std::chrono::milliseconds short_lease = paced(3000ms);

const std::string store_digest{digested<scripts::record_store>.digest()};

struct Shared {
    std::atomic<int> renewals{-1};  // since the work has begun
    std::atomic<int> finish{0};
};

// Does the work of both, and ends it when the test says so.
int work(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    Client client{args[0], unhurried(std::chrono::milliseconds(std::stoi(args[3])))};
    const auto working = [&] {
        while (shared->finish == 0) {
            shared->renewals = static_cast<int>(client.stats().renewals);
            std::this_thread::sleep_for(1ms);
        }
        return std::string("child");
    };
    if (args[2] == "once")
        call_once(client, "work", working);
    else
        static_cast<void>(SingleFlight{client, "work", 60s}.get(working));
    std::this_thread::sleep_for(30s);
    return 0;
}

const Role working_role{"fault: worker", work};

void load_record_scripts(RawRedis& redis) {
    for (const Script* script : {&digested<scripts::fenced_queue_acquire>, &digested<scripts::record_store>,
                                 &digested<scripts::record_look>, &digested<scripts::fenced_queue_release>})
        redis.text("SCRIPT", "LOAD", script->text());
}

std::string lease_text(std::chrono::milliseconds lease) { return std::to_string(lease.count()); }

// Waits for the work of the child, or does it. Returns who did it, and when it is done.
std::pair<std::string, std::chrono::steady_clock::time_point> outcome(Client& client, const std::string& kind) {
    std::string by = "child";
    const auto mine = [&] {
        by = "successor";
        return by;
    };
    if (kind == "once")
        call_once(client, "work", mine);
    else
        by = SingleFlight{client, "work", 60s}.get(mine).value;
    return {by, std::chrono::steady_clock::now()};
}

}  // namespace

TEST_CASE("fault: worker killed in the midst of it: one who waits takes over after its renewed lease, and not before") {
    for (const std::string kind : {"once", "flight"}) {
        CAPTURE(kind);
        RedisServer server;
        RawRedis redis{server};
        const TempDir dir;
        auto shared = SharedMemory<Shared>::create(dir.file("shared"));
        ChildProcess worker =
            spawn_self("fault: worker", {server.url(), dir.file("shared"), kind, lease_text(short_lease)});
        REQUIRE(eventually([&] { return shared->renewals > 0; }, 30s));
        Client client{server.url(), unhurried()};
        auto waiting = start([&] { return outcome(client, kind); });
        REQUIRE(eventually([&] { return client.stats().waiting == 1; }, 10s));
        worker.kill();
        const auto killed = std::chrono::steady_clock::now();
        const auto left = std::chrono::milliseconds(redis.pttl("work"));
        REQUIRE(ready(waiting, 60s));
        const auto [by, when] = waiting.get();
        CHECK(by == "successor");
        CHECK(when - killed >= left - 5ms);
        CHECK(when - killed <= short_lease + margin);
        CHECK_FALSE(redis.exists("work"));
    }
}

TEST_CASE("fault: worker killed before its result reaches the server: the work is done by another one") {
    for (const std::string kind : {"once", "flight"}) {
        CAPTURE(kind);
        FaultyPath path{true};
        load_record_scripts(path.redis);
        const TempDir dir;
        auto shared = SharedMemory<Shared>::create(dir.file("shared"));
        ChildProcess worker =
            spawn_self("fault: worker", {path.url(), dir.file("shared"), kind, lease_text(short_lease)});
        REQUIRE(eventually([&] { return shared->renewals >= 0; }, 30s));
        path.proxy.hold_next_requests(1, store_digest);
        shared->finish = 1;
        REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }, 30s));
        worker.kill();
        Client client{path.server.url(), unhurried()};
        CHECK(outcome(client, kind).first == "successor");
        // The result of the dead worker arrives late, and is void.
        const auto scripts = path.redis.script_calls();
        path.proxy.release();
        REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }));
        const std::string key = kind == "once" ? "redlatch_once:{work}" : "redlatch_flight:{work}";
        CHECK(path.redis.hgetall(key).at("owner").starts_with(client.id()));
    }
}

TEST_CASE("fault: worker killed between its result and its release: the others have the result at once") {
    for (const std::string kind : {"once", "flight"}) {
        CAPTURE(kind);
        FaultyPath path{true};
        load_record_scripts(path.redis);
        const TempDir dir;
        auto shared = SharedMemory<Shared>::create(dir.file("shared"));
        ChildProcess worker = spawn_self("fault: worker", {path.url(), dir.file("shared"), kind, lease_text(30s)});
        REQUIRE(eventually([&] { return shared->renewals >= 0; }, 30s));
        Client client{path.server.url(), unhurried()};
        auto waiting = start([&] { return outcome(client, kind); });
        REQUIRE(eventually([&] { return client.stats().waiting == 1; }, 10s));
        path.proxy.hold_next_requests(1, fenced_release_digest);
        shared->finish = 1;
        REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }, 30s));
        CHECK(path.redis.exists("work"));
        REQUIRE(ready(waiting, 20s));
        CHECK(waiting.get().first == "child");
        CHECK(path.redis.exists("work"));  // so neither the release nor the end of the lease has told it
        worker.kill();
        CHECK(outcome(client, kind).first == "child");
    }
}

TEST_CASE("fault: reply or request of a result lost: the work is done once, and its caller is told so") {
    for (const bool reply : {true, false}) {
        for (const Then then : {Then::close, Then::silence}) {
            CAPTURE(reply);
            FaultyPath path;
            load_record_scripts(path.redis);
            ClientOptions options = unhurried();
            if (then == Then::silence) options.command_timeout = paced(1000ms);
            Client client{path.url(), options};
            int done = 0;
            if (reply)
                path.proxy.drop_next_replies(1, store_digest, then);
            else
                path.proxy.drop_next_requests(1, store_digest, then);
            call_once(client, "work", [&] { ++done; });
            call_once(client, "work", [&] { ++done; });
            CHECK(path.proxy.counts().dropped == 1);
            CHECK(done == 1);
            CHECK(client.stats().resends > 0);
            CHECK(eventually([&] { return !path.redis.exists("work"); }, 20s));
        }
    }
}

TEST_CASE("fault: reply of the acquire lost: the work is done once") {
    FaultyPath path;
    load_record_scripts(path.redis);
    Client client{path.url(), unhurried()};
    const std::string acquire{digested<scripts::fenced_queue_acquire>.digest()};
    path.proxy.drop_next_replies(1, acquire);
    int computed = 0;
    SingleFlight flight{client, "work", 60s};
    const FlightValue value = flight.get([&] { return std::to_string(++computed); });
    CHECK(path.proxy.counts().dropped == 1);
    CHECK(value.value == "1");
    CHECK(flight.get([&] { return std::to_string(++computed); }).value == "1");
    CHECK_FALSE(path.redis.exists("work"));
}

TEST_CASE("fault: server away for longer than unreachable_timeout after the work: it is done, and not done again") {
    FaultyPath path{true};
    Client client{path.url(), {.watchdog_timeout = 60s, .command_timeout = 500ms, .unreachable_timeout = 1s}};
    Client other{path.server.url()};
    OnceFlag flag{client, "work"}, theirs{other, "work"};
    const Stopwatch watch;
    auto repaired = start([&] {
        REQUIRE(eventually([&] { return watch.elapsed() > 3s; }, 20s));
        path.proxy.refuse(false);
    });
    flag.call([&] {
        path.proxy.refuse(true);
        path.proxy.kill_all();
    });
    CHECK(watch.elapsed() > 3s);
    repaired.get();
    CHECK(theirs.is_done());
    theirs.call([] { FAIL("it was done"); });
}

TEST_CASE("fault: server restarted without its data during the work: the caller is told, and the work stays open") {
    RedisServer server;
    Client client{server.url(), unhurried(short_lease)};
    OnceFlag flag{client, "work"};
    std::error_code ec;
    flag.call(
        [&](const std::stop_token& ending) {
            server.restart();
            CHECK(eventually([&] { return ending.stop_requested(); }, 30s));
        },
        ec);
    CHECK(ec == errc::hold_lost);
    CHECK_FALSE(flag.is_done());
    flag.call([] {});
    CHECK(flag.is_done());
}

TEST_CASE("fault: server restarted with its data during the work: it is done, and who waits is told") {
    RedisServer server{{.appendonly = true}};
    Client client{server.url(), unhurried()}, other{server.url(), unhurried()};
    std::atomic<int> computed{0};
    SingleFlight mine{client, "work", 60s}, theirs{other, "work", 60s};
    std::future<FlightValue> waiting;
    const FlightValue value = mine.get([&] {
        waiting = start([&] {
            return theirs.get([&] {
                ++computed;
                return "theirs";
            });
        });
        CHECK(eventually([&] { return other.stats().waiting == 1; }, 10s));
        server.kill();
        server.restart();
        return "mine";
    });
    CHECK(value.value == "mine");
    REQUIRE(ready(waiting, 30s));
    CHECK(waiting.get().value == "mine");
    CHECK(computed == 0);
}

// Between the look that finds nothing and the acquire another client has done the work.
TEST_CASE("fault: acquire held up while another one does the work: it is not done again") {
    FaultyPath path;
    load_record_scripts(path.redis);
    Client client{path.url(), unhurried()}, other{path.server.url(), unhurried()};
    SingleFlight mine{client, "work", 60s}, theirs{other, "work", 60s};
    const std::string acquire{digested<scripts::fenced_queue_acquire>.digest()};
    path.proxy.hold_next_requests(1, acquire);
    auto late_one = start([&] { return mine.get([] { return "mine"; }); });
    REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }, 20s));
    CHECK(theirs.get([] { return "theirs"; }).computed);
    path.proxy.release();
    REQUIRE(ready(late_one, 30s));
    const FlightValue value = late_one.get();
    CHECK(value.value == "theirs");
    CHECK_FALSE(value.computed);
    CHECK(eventually([&] { return !path.redis.exists("work"); }, 20s));
}

TEST_CASE("fault: server out of memory during the work: its result is kept all the same") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    SingleFlight flight{client, "work", 60s};
    const FlightValue value = flight.get([&] {
        redis.text("CONFIG", "SET", "maxmemory", 1);
        return "value";
    });
    CHECK(value.computed);
    CHECK(flight.peek()->value == "value");
    redis.text("CONFIG", "SET", "maxmemory", 0);
    CHECK(redis.pttl("redlatch_flight:{work}") > 0);
    CHECK_FALSE(redis.exists("work"));
}
