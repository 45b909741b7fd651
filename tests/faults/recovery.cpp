// SPDX-License-Identifier: MIT
// ctest: timeout=600 long
// A server is back: the time until all clients work again, however long their back-off has grown.
#include <atomic>
#include <cstdint>
#include <iostream>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>

#include "faults/recovery_kit.hpp"
#include "support/server_faults.hpp"
#include "support/shared_memory.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

// Returns the measurements of some rounds, sorted.
template <class Round>
std::vector<std::chrono::milliseconds> in_rounds(int count, Round round) {
    std::vector<std::chrono::milliseconds> all;
    for (int i = 0; i < count; ++i) all.push_back(round());
    std::sort(all.begin(), all.end());
    return all;
}

struct Desk {
    std::atomic<bool> works = false;
    std::atomic<bool> over = false;
    std::atomic<std::int64_t> since = 0;
    std::atomic<std::int64_t> slowest = 0;  // in ms
};

// The same clients in a process of their own. Measures for the other process how soon they work again.
const Role fleet_elsewhere{
    "fault: a fleet", [](std::span<const std::string> args) {
        auto desk = SharedMemory<Desk>::open(args[1]);
        Fleet fleet{args[0], [](const std::string& name) { return (name.starts_with("held") ? "far " : "") + name; }};
        if (!fleet.works()) return 1;
        desk->works = true;
        while (!desk->over) {
            std::this_thread::sleep_for(1ms);
            if (desk->since == 0) continue;
            std::string all;
            const auto slowest = fleet.slowest(desk->since.exchange(0), all);
            if (!slowest || *slowest > soon_after) std::cerr << all << std::endl;
            desk->slowest = slowest.value_or(60s).count() + 1;
        }
        return 0;
    }};

// Begins the fault, ends it after a while, and measures how soon all clients work again after that.
template <class Begin, class End>
void works_soon_after(FaultyPath& path, const std::string& url, std::chrono::milliseconds time, Begin begin, End end) {
    Fleet fleet{url, as_it_is};
    REQUIRE(fleet.works());
    CHECK(best_of(5, soon_after, [&] {
              begin();
              std::this_thread::sleep_for(time);
              end();
              const auto slowest = fleet.slowest(monotonic_ns());
              CHECK(path.redis.exists("held0"));
              return slowest;
          }) <= soon_after);
}

}  // namespace

TEST_CASE("fault: server frozen for long: the slowest client works again within a second") {
    RedisServer server{{.tcp = true, .args = {"--requirepass", "geheim"}}};
    Fleet fleet{"redis://:geheim@127.0.0.1:" + std::to_string(server.port()), as_it_is};
    REQUIRE(fleet.works());
    CHECK(best_of(5, soon_after, [&] {
              server.stop();
              std::this_thread::sleep_for(8s);
              const std::int64_t back = monotonic_ns();
              server.cont();
              return fleet.slowest(back);
          }) <= soon_after);
}

TEST_CASE("fault: server away for long: the slowest client works again within a second") {
    RedisServer server{{.tcp = true, .appendonly = true}};
    Fleet fleet{server.tcp_url(), as_it_is};
    REQUIRE(fleet.works());
    CHECK(best_of(5, soon_after, [&] {
              server.kill();
              std::this_thread::sleep_for(6s);
              server.restart();
              return fleet.slowest(monotonic_ns());
          }) <= soon_after);
}

TEST_CASE("fault: connections refused for long: the slowest client works again within a second") {
    FaultyPath path{true};
    works_soon_after(
        path, path.url(), 4s,
        [&] {
            path.proxy.refuse(true);
            path.proxy.kill_all();
        },
        [&] { path.proxy.refuse(false); });
}

TEST_CASE("fault: network silent for long: the slowest client works again within a second") {
    FaultyPath path{true};
    works_soon_after(
        path, path.url(), 5s, [&] { path.proxy.blackhole(true); }, [&] { path.proxy.blackhole(false); });
}

TEST_CASE("fault: commands paused: the slowest client works again within a second") {
    for (const bool only_writes : {true, false}) {
        CAPTURE(only_writes);
        FaultyPath path{true};
        const auto pause = 4s;
        works_soon_after(
            path, path.url(), pause, [&] { pause_commands(path.redis, pause, only_writes); },
            [&] { path.redis.integer("DEL", "the pause is over"); });
    }
}

TEST_CASE("fault: server busy with a foreign script: the slowest client works again within a second") {
    FaultyPath path{true, {.args = {"--busy-reply-threshold", "50"}}};
    std::optional<EndlessScript> script;
    works_soon_after(
        path, path.url(), 4s, [&] { script.emplace(path.server); }, [&] { script->end(); });
}

TEST_CASE("fault: server out of memory for long: the slowest client works again within a second") {
    FaultyPath path{true};
    works_soon_after(
        path, path.url(), 4s, [&] { refuse_memory(path.redis, true); }, [&] { refuse_memory(path.redis, false); });
}

TEST_CASE("fault: password changed and changed back: the slowest client works again within a second") {
    FaultyPath path{true};
    path.redis.text("ACL", "SETUSER", "seller", "reset", "on", ">old", "~*", "&*", "+@all");
    works_soon_after(
        path, "redis://seller:old@127.0.0.1:" + std::to_string(path.proxy.port()), 4s,
        [&] {
            path.redis.text("ACL", "SETUSER", "seller", "resetpass", ">new");
            for (const char* type : {"normal", "pubsub"}) path.redis.kill_clients(type);
        },
        [&] { path.redis.text("ACL", "SETUSER", "seller", ">old"); });
}

TEST_CASE("fault: client process stopped and continued: it works again within a second") {
    RedisServer server;
    const TempDir dir;
    auto desk = SharedMemory<Desk>::create(dir.file("desk"));
    Fleet fleet{server.url(), as_it_is};
    ChildProcess child = spawn_self("fault: a fleet", {server.url(), dir.file("desk")});
    REQUIRE(eventually([&] { return desk->works.load(); }, 20s));
    CHECK(best_of(5, soon_after, [&] {
              child.stop();
              std::this_thread::sleep_for(5s);
              const std::int64_t back = monotonic_ns();
              desk->slowest = 0;
              desk->since = back;
              child.cont();
              const auto here = fleet.slowest(back);
              CHECK(eventually([&] { return desk->slowest != 0; }, 60s));
              return std::max(here, std::chrono::milliseconds{desk->slowest});
          }) <= soon_after);
    desk->over = true;
    CHECK(child.wait(30s) == ExitStatus{0, 0});
}

TEST_CASE("fault: server away for long: the first connection that is answered wakes the others") {
    RedisServer server{{.tcp = true}};
    Client client{server.tcp_url(), unhurried()};
    // How long after the first reply the waiter holds its lock.
    const auto all = in_rounds(7, [&] {
        RawRedis{server}.integer("HSET", "orders", "somebody:1", 1);
        RawRedis{server}.integer("PEXPIRE", "orders", 600'000);
        auto waiting = start([&] {
            RLock orders{client, "orders"};
            orders.lock();
            const std::int64_t held = monotonic_ns();
            orders.unlock();
            return held;
        });
        REQUIRE(eventually(
            [&] {
                RawRedis redis{server};
                return listeners(redis, "orders") >= 1;
            },
            20s));
        server.kill();
        // By then its back-off has grown.
        std::this_thread::sleep_for(1500ms);
        server.restart();
        RLock other{client, "other"};
        other.lock();
        const std::int64_t back = monotonic_ns();
        other.unlock();
        REQUIRE(ready(waiting, 20s));
        return std::chrono::milliseconds(std::max<std::int64_t>(0, waiting.get() - back) / 1'000'000);
    });
    CHECK(all[3] <= patient(100ms));
}

// A waiter that has asked again, in vain, relies on messages.
TEST_CASE("fault: server away for long: the first connection that is answered brings the subscriptions back") {
    RedisServer server{{.tcp = true}};
    Client client{server.tcp_url(), unhurried()};
    const auto is_subscribed = [&] {
        RawRedis redis{server};
        return redis.subscribers("redisson_sc:{seats}") == 1;
    };
    const auto all = in_rounds(7, [&] {
        std::stop_source stop;
        auto waiting = start([&] {
            Semaphore seats{client, "seats"};  // has no permits
            return seats.acquire(stop.get_token());
        });
        REQUIRE(eventually(is_subscribed, 20s));
        server.kill();
        // By then its back-off has grown.
        std::this_thread::sleep_for(1500ms);
        server.restart();
        RLock other{client, "other"};
        other.lock();
        const std::int64_t back = monotonic_ns();
        REQUIRE(eventually(is_subscribed, 20s));
        const std::int64_t took = monotonic_ns() - back;
        other.unlock();
        stop.request_stop();
        REQUIRE(ready(waiting, 20s));
        CHECK_FALSE(waiting.get());
        return std::chrono::milliseconds(took / 1'000'000);
    });
    CHECK(all[3] <= patient(100ms));
}
