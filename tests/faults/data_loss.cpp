// SPDX-License-Identifier: MIT
// A server that loses data by a power failure, FLUSHALL or eviction. Also a server that cannot save, and one that
// accepts connections only to close them.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "faults/fault_kit.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

std::filesystem::path increments_of(const RedisServer& server) {
    for (const auto& entry : std::filesystem::directory_iterator{server.directory() + "/appendonlydir"})
        if (entry.path().string().ends_with(".incr.aof")) return entry.path();
    throw std::runtime_error("no appendonly file");
}

}  // namespace

TEST_CASE("fault: power failure cuts off the end of the appendonly file: the hold is reported lost") {
    RedisServer server{{.appendonly = true}};
    EventLog log;
    Client client{server.url(), log.in(unhurried(watchdog_timeout))};
    RLock before{client, "before"}, orders{client, "orders"};
    before.lock(Lease{60s});
    const auto kept = std::filesystem::file_size(increments_of(server));
    orders.lock(Lease{60s});
    RLock watched{client, "watched"};
    watched.lock();
    const std::stop_token lost = watched.lost();
    server.kill();
    // Cut in the middle of a command, as a power failure leaves the file.
    std::filesystem::resize_file(increments_of(server), kept + 5);
    server.restart();
    RawRedis redis{server};
    CHECK(redis.exists("before"));
    REQUIRE_FALSE(redis.exists("orders"));
    REQUIRE_FALSE(redis.exists("watched"));
    CHECK(eventually([&] { return lost.stop_requested(); }, watchdog_timeout + late));
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
    CHECK_FALSE(redis.exists("watched"));  // no renewal creates it again
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    before.unlock(ec);
    CHECK_FALSE(ec);
}

TEST_CASE("fault: FLUSHALL by an operator: every hold and permit is reported lost, and releasing it does no harm") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    Client client{server.url(), log.in(quick())};
    RLock plain{client, "plain"};
    FairLock fair{client, "fair"};
    ReadWriteLock reading{client, "reading"}, writing{client, "writing"};
    FencedLock fenced{client, "fenced"};
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(2);
    plain.lock();
    fair.lock();
    reading.lock_shared();
    writing.lock();
    const auto token = fenced.lock_and_get_token();
    const PermitId id = slots.acquire();
    redis.text("FLUSHALL");
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 6; }, watchdog_timeout + late));
    CAPTURE(log.text());
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    const auto is_lost = [](auto& lock) {
        std::error_code ec;
        lock.unlock(ec);
        return ec == errc::hold_lost;
    };
    CHECK(is_lost(plain));
    CHECK(is_lost(fair));
    CHECK(is_lost(reading.read_lock()));
    CHECK(is_lost(writing));
    CHECK(is_lost(fenced));
    CHECK_FALSE(slots.try_release(id));
    CHECK(fenced.lock_and_get_token() > token);
    fenced.unlock();
}

TEST_CASE("fault: lock key evicted under memory pressure: the hold is reported lost within a renewal period") {
    RedisServer server{{.args = {"--maxmemory", "4mb", "--maxmemory-policy", "allkeys-random"}}};
    RawRedis redis{server};
    EventLog log;
    const ClientOptions options = log.in(unhurried(paced(6s)));
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    const std::string ballast(20'000, 'x');
    for (int i = 0; i < 50'000 && redis.exists("orders"); ++i)
        redis.call("SET", "ballast" + std::to_string(i), ballast);
    REQUIRE_FALSE(redis.exists("orders"));
    CHECK(std::stoll(redis.info("stats", "evicted_keys")) > 0);
    CHECK(eventually([&] { return lost.stop_requested(); }, options.watchdog_timeout / 3 + late));
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
    orders.unlock();
}

TEST_CASE(
    "fault: server that cannot save (MISCONF): it refuses acquires, and a release arrives when it can save again") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options = quick();
    options.watchdog_timeout = patient(30s);
    options.unreachable_timeout = options.command_timeout = paced(2s);
    Client client{server.url(), options};
    RLock orders{client, "orders"}, others{client, "others"};
    const std::string file = server.directory() + "/dump.rdb";
    const auto save = [&](const char* wanted) {
        redis.call("BGSAVE");
        return eventually([&] { return redis.info("persistence", "rdb_last_bgsave_status") == wanted; }, 10s);
    };
    redis.text("CONFIG", "SET", "save", "3600 1");
    std::error_code ec;
    for (int tries = 0; tries < most_tries && ec != errc::overloaded; ++tries) {
        orders.lock();
        ::unlink(file.c_str());
        REQUIRE(::mkdir(file.c_str(), 0700) == 0);
        REQUIRE(save("err"));
        REQUIRE(redis.call("SET", "x", 1).string.starts_with("MISCONF"));
        CHECK(refusal_of([&] { others.lock(); }) == errc::overloaded);
        orders.unlock(ec);
        CHECK(is_not_delivered(ec));
        CHECK(redis.exists("orders"));
        REQUIRE(::rmdir(file.c_str()) == 0);
        REQUIRE(save("ok"));
        CHECK(eventually([&] { return !redis.exists("orders"); }, patient(5s)));
    }
    CHECK(ec == errc::overloaded);
    std::error_code none;
    CHECK(eventually([&] { return others.try_lock_for(5s, none); }, 20s));
    others.unlock();
}

// Regression: each such connection counted as a success, so the next one was opened at once, tens of thousands a
// second.
TEST_CASE("fault: the server accepts connections and closes them: the client reconnects with back-off") {
    FaultyPath path;
    ClientOptions options = quick();
    options.unreachable_timeout = options.command_timeout = paced(1000ms);
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    path.proxy.refuse(true);
    CHECK(code_of([&] { orders.lock(); }) == errc::unreachable);
    const auto refused = path.proxy.counts().refused;
    CHECK(refused > 1);
    CHECK(refused < 100);
    path.proxy.refuse(false);
    std::error_code ec;
    CHECK(eventually([&] { return orders.try_lock_for(5s, ec); }, 20s));
    orders.unlock();
}
