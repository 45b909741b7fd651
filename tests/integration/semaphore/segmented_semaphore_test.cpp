// SPDX-License-Identifier: MIT
// SegmentedSemaphore on a real server: a stock that is spread, drawn from, waited for and sold.
// ctest: in_memory
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/code_of.hpp"
#include "support/process.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

struct Fixture {
    explicit Fixture(const ClientOptions& options = {}) : client(server.url(), options), stock(client, "stock", 5) {
        stock.near(0);
    }

    RedisServer server;
    RawRedis redis{server};
    Client client;
    SegmentedSemaphore stock;
};

}  // namespace

TEST_CASE("permits are spread evenly, set once, and counted in all") {
    Fixture fixture;
    CHECK(fixture.stock.permits() == 0);
    CHECK(fixture.stock.try_set_permits(12));
    CHECK_FALSE(fixture.stock.try_set_permits(12));
    for (const auto& [key, share] : {std::pair{"stock:0", "3"}, std::pair{"stock:1", "3"}, std::pair{"stock:4", "2"}})
        CHECK(fixture.redis.text("GET", key) == share);
    // What is missing is set: a fill that failed half-way is repeated.
    CHECK(fixture.stock.segment(3).remove());
    CHECK(fixture.stock.try_set_permits(12));
    CHECK(fixture.stock.available_permits() == 12);
    const SegmentPermit permit = fixture.stock.acquire();
    CHECK(fixture.stock.available_permits() == 11);
    CHECK(fixture.stock.acquired_permits() == 1);
    CHECK(fixture.stock.permits() == 12);
    fixture.stock.release(permit);
    CHECK(fixture.stock.remove());
    CHECK_FALSE(fixture.stock.remove());
    CHECK(fixture.stock.try_set_permits(5, 10min));
    CHECK(fixture.redis.pttl("stock:4") > 0);
    CHECK(fixture.stock.expire(1h));
    CHECK(fixture.redis.pttl("stock:0") > 600'000);
    CHECK(fixture.stock.name() == "stock");
    CHECK(fixture.stock.segments() == 5);
}

TEST_CASE("every permit is acquired once, whichever segment it is in") {
    Fixture fixture;
    fixture.stock.try_set_permits(12);
    std::set<std::string> ids;
    std::vector<std::size_t> from(5);
    for (int i = 0; i < 12; ++i) {
        const auto permit = fixture.stock.try_acquire();
        REQUIRE(permit);
        ids.insert(permit->id.text());
        ++from[permit->segment];
    }
    CHECK(ids.size() == 12);
    CHECK(from == std::vector<std::size_t>{3, 3, 2, 2, 2});
    CHECK_FALSE(fixture.stock.try_acquire());
    CHECK_FALSE(fixture.stock.try_acquire_for(30ms));
    CHECK(fixture.stock.available_permits() == 0);
}

TEST_CASE("a waiting call gets a permit that any segment gets back") {
    Fixture fixture;
    fixture.stock.try_set_permits(5);
    std::vector<SegmentPermit> permits;
    for (int i = 0; i < 5; ++i) permits.push_back(fixture.stock.acquire());
    Client other{fixture.server.url()};
    SegmentedSemaphore theirs{other, "stock", 5};
    for (const SegmentPermit& permit : permits) {
        auto waiting = start([&] { return theirs.acquire(); });
        REQUIRE(eventually([&] { return other.stats().waiting == 5; }, 20s));
        fixture.stock.release(permit);
        const SegmentPermit got = waiting.get();
        CHECK(got.segment == permit.segment);
        CHECK(theirs.near() == got.segment);
        CHECK(fixture.stock.acquired_permits() == 5);
        CHECK(eventually([&] { return other.stats().waiting == 0; }, 20s));
    }
}

TEST_CASE("a waiting call gets a permit whose lease ends") {
    Fixture fixture;
    fixture.stock.try_set_permits(1);
    const SegmentPermit reserved = fixture.stock.acquire(Lease{300ms});
    const SegmentPermit mine = fixture.stock.acquire(Lease{30s});
    CHECK(mine.segment == reserved.segment);
    CHECK(code_of([&] { fixture.stock.release(reserved); }) == errc::unknown_permit);
    CHECK_FALSE(fixture.stock.try_release(reserved));
    CHECK(fixture.stock.try_release(mine));
}

TEST_CASE("more callers than permits: nobody waits for ever, and no permit is lost") {
    Fixture fixture;
    fixture.stock.try_set_permits(7);
    std::vector<std::future<int>> callers;
    for (int i = 0; i < 12; ++i)
        callers.push_back(start([&] {
            int turns = 0;
            for (; turns < 20; ++turns) {
                const auto permit = fixture.stock.try_acquire_for(60s);
                if (!permit) break;
                std::this_thread::yield();
                fixture.stock.release(*permit);
            }
            return turns;
        }));
    for (auto& caller : callers) CHECK(caller.get() == 20);
    // What a second segment has granted is given back in the background.
    CHECK(eventually([&] { return fixture.stock.available_permits() == 7; }, 20s));
    CHECK(fixture.stock.acquired_permits() == 0);
}

TEST_CASE("a permit is renewed by the watchdog, has a lease of its own, or stays for ever") {
    Fixture fixture(with_watchdog(short_lease));
    fixture.stock.try_set_permits(5);
    const SegmentPermit watched = fixture.stock.acquire();
    const SegmentPermit leased = fixture.stock.acquire(Lease{60s});
    const SegmentPermit sold = fixture.stock.acquire(Lease{60s});
    fixture.stock.update_lease(sold, Lease::forever());
    CHECK(fixture.stock.remaining_lease(sold) == std::chrono::milliseconds::max());
    CHECK(*fixture.stock.remaining_lease(leased) <= 60s);
    CHECK(*fixture.stock.remaining_lease(watched) <= short_lease);
    const auto before = fixture.client.stats().renewals;
    CHECK(eventually([&] { return fixture.client.stats().renewals >= before + 3; }, 30s));
    CHECK(fixture.stock.remaining_lease(watched));
    fixture.stock.release(watched);
    CHECK_FALSE(fixture.stock.remaining_lease(watched));
    CHECK(fixture.stock.acquired_permits() == 2);
}

TEST_CASE("a permit of an object is given back by it, and one that is waited for, too") {
    Fixture fixture;
    fixture.stock.try_set_permits(1);
    {
        Permits one = fixture.stock.hold();
        CHECK(one.count() == 1);
        CHECK_FALSE(one.lost().stop_requested());
        CHECK_FALSE(fixture.stock.try_hold());
        auto waiting = start([&] { return fixture.stock.hold(Lease{30s}).count(); });
        REQUIRE(eventually([&] { return fixture.client.stats().waiting == 5; }, 20s));
        CHECK_FALSE(one.release());
        CHECK(waiting.get() == 1);
    }
    CHECK(eventually([&] { return fixture.stock.available_permits() == 1; }, 20s));
    CHECK(fixture.stock.try_hold_for(5s));
}

TEST_CASE("errors are thrown, or stored with an error code") {
    Fixture fixture;
    fixture.redis.text("SET", "stock:0", "no number");
    std::error_code ec;
    CHECK(code_of([&] { static_cast<void>(fixture.stock.acquire()); }) == errc::wrong_type);
    CHECK_FALSE(fixture.stock.acquire(ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(fixture.stock.try_acquire(Lease{1s}, ec));
    CHECK(ec == errc::wrong_type);
    CHECK(fixture.stock.available_permits(ec) == 0);
    CHECK(ec == errc::wrong_type);
    fixture.redis.integer("DEL", "stock:0");
    CHECK(fixture.stock.try_set_permits(5, ec));
    CHECK_FALSE(ec);
    fixture.stock.release({0, PermitId::random()}, ec);
    CHECK(ec == errc::unknown_permit);
    CHECK_FALSE(fixture.stock.try_release({0, PermitId::random()}, ec));
    CHECK_FALSE(ec);
    fixture.stock.update_lease({0, PermitId::random()}, Lease::forever(), ec);
    CHECK(ec == errc::unknown_permit);
    CHECK_FALSE(fixture.stock.remaining_lease({9, PermitId::random()}, ec));
    CHECK(ec == errc::invalid_argument);
}
