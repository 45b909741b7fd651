// SPDX-License-Identifier: MIT
// What a MultiLock does when a member loses its part of the hold.
#include <doctest/doctest.h>

#include <chrono>
#include <stop_token>
#include <system_error>

#include "integration/rlock_helpers.hpp"
#include "support/proxy.hpp"

#include "support/redis_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Hold;
using redlatch::Lease;
using redlatch::MultiLock;
using redlatch::RLock;

TEST_CASE("lost() is requested when a member of another client is lost, although no renewal shows it") {
    RedisServer one, two;
    Client first{one.url()}, second{two.url()};
    RLock a{first, "a"}, b{second, "b"};
    MultiLock both{a, b};
    both.lock(Lease{1h});
    const std::stop_token lost = both.lost();
    REQUIRE_FALSE(lost.stop_requested());
    SUBCASE("by force_unlock()") { b.force_unlock(); }
    SUBCASE("by release_all() of its client") { second.release_all(); }
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    std::error_code ec;
    both.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("again() adds no level to a new hold if the hold ends while its members cannot be reached") {
    RedisServer server;
    Proxy proxy{server.url()};
    Client client{proxy.url()};
    RLock a{client, "a"}, b{client, "b"};
    MultiLock both{a, b};
    const Hold hold = both.hold(Lease{2s});
    proxy.refuse(true);
    proxy.kill_all();
    auto back = start([&] {
        const bool lost = eventually([&] { return hold.lost().stop_requested(); }, 20s);
        proxy.refuse(false);
        return lost;
    });
    CHECK(code_of([&] { static_cast<void>(hold.again()); }) == errc::hold_lost);
    CHECK(back.get());
    RawRedis redis{server};
    CHECK(eventually([&] { return !redis.exists("a") && !redis.exists("b"); }, 20s));
}

TEST_CASE("unlock() of a MultiLock that has lost a member keeps the hold of another one that has acquired it since") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock a{client, "a"}, b{client, "b"}, c{client, "c"};
    MultiLock earlier{a, b}, later{a, c};
    earlier.lock();
    a.force_unlock();
    later.lock();
    std::error_code ec;
    earlier.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(redis.exists("a"));
    CHECK(later.is_held());
    later.unlock(ec);
    CHECK_FALSE(ec);
    CHECK_FALSE(redis.exists("a"));
}
