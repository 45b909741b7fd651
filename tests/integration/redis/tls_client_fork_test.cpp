// SPDX-License-Identifier: MIT
// fork() with TLS: the parent's sessions are unaffected by the child, and the child has its own.
#include <doctest/doctest.h>

#include <redlatch/tls.hpp>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "integration/rlock_helpers.hpp"
#include "support/process.hpp"
#include "support/tls_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;

TEST_CASE("a forked child that uses or destroys the client does not disturb the parent's sessions") {
    Authority authority;
    RedisServer server{by_tls(authority.issue("server"), authority)};
    RawRedis redis{server};
    redlatch::ClientOptions options;
    options.tls = redlatch::tls({.ca_file = authority.file()});
    options.watchdog_timeout = patient(4s);
    std::optional<HiredisClient> client;
    client.emplace(tls_url(server.port()), options);
    std::optional<HiredisRLock> orders;
    orders.emplace(*client, "orders");
    orders->lock();
    // There is a subscription, too.
    REQUIRE_FALSE(elsewhere([&] { return orders->try_lock_for(50ms); }));
    // A thread that is inside malloc() while the process forks would leave an ASan build's child waiting for ever.
    commands_when_quiet(*client);
    auto user = ChildProcess::run([&] {
        HiredisRLock parcels{*client, "parcels"};
        for (int i = 0; i < 10; ++i) std::lock_guard guard{parcels};
        return orders->is_locked() && !orders->try_lock() ? 0 : 1;
    });
    auto destroyer = ChildProcess::run([&] {
        orders.reset();
        client.reset();
        return 0;
    });
    while (user.running() || destroyer.running()) CHECK(orders->hold_count() == 1);
    CHECK(user.wait(60s) == ExitStatus{0, 0});
    CHECK(destroyer.wait(60s) == ExitStatus{0, 0});
    const std::uint64_t before = client->stats().renewals;
    CHECK(eventually([&] { return client->stats().renewals > before; }, 20s));
    CHECK_FALSE(orders->lost().stop_requested());
    REQUIRE_FALSE(elsewhere([&] { return orders->try_lock_for(50ms); }));
    orders->unlock();
    CHECK(client->stats().reconnects == 0);
    CHECK(redis.keys().empty());
}
