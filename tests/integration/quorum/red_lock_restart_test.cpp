// SPDX-License-Identifier: MIT
// ctest: long timeout=300 without=address,thread
// RedLock and restarted servers. Such a server may have lost a hold that is still valid, so it has no vote until no
// such hold can be left.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "integration/red_lock_kit.hpp"
#include "support/history.hpp"

using namespace redlatch::test;
using redlatch::ClientOptions;
using redlatch::Lease;
using redlatch::RedLock;
using redlatch::RedLockOptions;

namespace {

constexpr auto lease = patient(3000ms);

constexpr auto node_timeout = patient(2000ms);

RedLockOptions red_options() { return {.node_timeout = node_timeout, .longest_lease = lease}; }

ClientOptions options() { return quick_options(lease); }

/// Three servers, two of which are a majority.
Fleet& fleet() {
    static Fleet three{3, lease};
    return three;
}

}  // namespace

TEST_CASE("right after the start of all servers no client gets the lock, until they are old enough") {
    // Much longer than three servers take to start.
    constexpr auto longest = patient(5s);
    std::array<RedisServer, 3> servers;
    Urls urls;
    for (const RedisServer& server : servers) urls.push_back(server.url());
    Party mine{urls, "orders", quick_options(longest)};
    CHECK_FALSE(mine->try_lock());
    CHECK_FALSE(mine->is_held());
    const Stopwatch watch;
    mine->lock();
    CHECK(mine->is_held());
    CHECK(watch.within(longest + patient(8s)));
    mine->unlock();
}

// The textbook violation: a holder on two of three servers, one of which restarts without its data.
TEST_CASE("a server that restarts without its data permits no second holder") {
    Fleet own{3, lease};
    Urls without_third = own.urls();
    without_third[2] = "unix:///nowhere/to/be/found";
    Party holder{without_third, "orders", options(), red_options()};
    Urls without_first = own.urls();
    without_first[0] = "unix:///nowhere/to/be/found";
    Party careful{without_first, "orders", options(), red_options()};
    // Assumes that no lease is longer than 30 ms, so it trusts a server that has just started.
    Party careless{without_first, "orders", quick_options(30ms), {.node_timeout = node_timeout, .longest_lease = 30ms}};

    const auto come_in = [](RedLock& lock, std::uint64_t who, std::vector<Interval>& history) {
        lock.lock();
        Interval interval{who, monotonic_ns(), 0};
        interval.until = monotonic_ns(std::min(lock.valid_until(), SteadyClock::now()));
        history.push_back(interval);
        lock.unlock();
    };
    // On a busy machine the first hold may be over before the server is back. Allow a few rounds.
    bool noticed = false;
    for (int round = 0; round < 5 && !noticed; ++round) {
        std::vector<Interval> careful_history;
        std::vector<Interval> careless_history;
        holder->lock(Lease{lease});
        const Interval held{1, monotonic_ns(), monotonic_ns(holder->valid_until())};
        careful_history.push_back(held);
        careless_history.push_back(held);
        own.servers[1].restart();
        REQUIRE_FALSE(own.looks[2].exists("orders"));

        for (int i = 0; i < 10 && !find_overlap(careless_history); ++i) come_in(*careless, 2, careless_history);
        come_in(*careful, 3, careful_history);
        noticed = find_overlap(careless_history).has_value();
        CHECK_FALSE(find_overlap(careful_history));
        holder->unlock();
        own.wait_until_old(1);
    }
    // The history shows the overlap that the rule prevents.
    CHECK(noticed);
}

TEST_CASE("a server that restarts with its data permits no second holder, and the hold continues") {
    Fleet own{3, lease, {.appendonly = true}};
    Party holder{own.urls(), "orders", options(), red_options()};
    Party other{own.urls(), "orders", options(), red_options()};
    holder->lock();
    const std::stop_token lost = holder->lost();
    CHECK(eventually([&] { return own.holders("orders") == 3; }));
    own.servers[1].restart();
    CHECK_FALSE(other->try_lock());
    const auto until = holder->valid_until();
    CHECK(eventually([&] { return holder->valid_until() > until + lease; }, 20s));
    CHECK_FALSE(lost.stop_requested());
    own.servers[2].restart();
    CHECK_FALSE(other->try_lock());
    CHECK_FALSE(lost.stop_requested());
    holder->unlock();
    // Two of the three have restarted. The other client enters when one of them is old enough.
    CHECK(other->try_lock_for(20s));
    other->unlock();
}

TEST_CASE("a lost part is requested again at renewals, and votes when its server is old enough") {
    Fleet own{5, lease};
    Party mine{own.urls(), "orders", options(), red_options()};
    mine->lock();
    const std::stop_token lost = mine->lost();
    CHECK(eventually([&] { return own.holders("orders") == 5; }));
    own.servers[3].kill();
    own.servers[3].restart();
    CHECK(eventually([&] { return RawRedis{own.servers[3]}.exists("orders"); }, 20s));
    CHECK(eventually([&] { return mine.locks[3].valid_until() > SteadyClock::now(); }, 20s));
    // The client asks for the server's age after the grant, so the vote counts from a moment later.
    std::this_thread::sleep_for(lease + lease / 100 + 1500ms);
    // From here on it is one of the three that are needed.
    own.servers[0].kill();
    own.servers[4].kill();
    const auto until = mine->valid_until();
    CHECK(eventually([&] { return mine->valid_until() > until + lease; }, 20s));
    CHECK_FALSE(lost.stop_requested());
    CHECK(mine->is_held());
    mine->unlock();
    CHECK(eventually([&] { return !RawRedis{own.servers[3]}.exists("orders"); }));
}

TEST_CASE("a part on a server that is too young does not count as a vote") {
    Fleet own{3, lease};
    Party mine{own.urls(), "orders", options(), red_options()};
    mine->lock();
    const std::stop_token lost = mine->lost();
    CHECK(eventually([&] { return own.holders("orders") == 3; }));
    REQUIRE(eventually([&] { return mine.locks[2].valid_until() > SteadyClock::now(); }));
    const std::stop_token part_lost = mine.locks[2].lost();  // it may be acquired again before this test looks
    own.servers[2].kill();
    own.servers[2].restart();
    CHECK(eventually([&] { return part_lost.stop_requested(); }, 20s));
    CHECK(eventually([&] { return mine.locks[2].valid_until() > SteadyClock::now(); }, 20s));
    CHECK_FALSE(lost.stop_requested());
    mine.locks[0].force_unlock();  // this process knows that at once
    CHECK(mine->valid_until() == SteadyClock::time_point::min());
    CHECK(eventually([&] { return lost.stop_requested(); }));
    mine->unlock();
}

// Enough other servers had replied, and this server's age arrived later. Its part never became a vote of the hold.
TEST_CASE("a part whose server's age arrives after the hold began votes from then on") {
    // The lease of the first member is shorter, and determines valid_until() while the third has no vote.
    std::deque<HiredisClient> clients;
    std::deque<HiredisRLock> locks;
    for (std::size_t i = 0; i < 3; ++i) {
        ClientOptions patient_options = quick_options(i == 0 ? lease * 2 / 3 : lease);
        patient_options.command_timeout = 30s;  // a reply that is held back is late, and its connection stays alive
        clients.emplace_back(fleet().proxies[i].url(), patient_options);
        locks.emplace_back(clients.back(), "late age");
    }
    RedLock mine{locks, red_options()};
    fleet().proxies[2].hold_next_replies(1, "INFO");
    mine.lock();
    REQUIRE(eventually([&] { return fleet().proxies[2].counts().held == 1; }));
    CHECK(fleet().holders("late age") == 3);
    CHECK(mine.valid_until() < locks[0].valid_until());
    fleet().proxies[2].release();
    CHECK(eventually([&] { return mine.valid_until() > locks[0].valid_until() + 200ms; }, 20s));
    locks[0].force_unlock();
    CHECK(mine.valid_until() > SteadyClock::now());
    CHECK_FALSE(mine.lost().stop_requested());
    mine.unlock();
    CHECK(fleet().becomes_free("late age"));
}

TEST_CASE("acquiring a lost RedLock again is a new hold, and the loss of the old one is reported") {
    Party mine{fleet().urls(), "anew", options(), red_options()};
    mine->lock();
    const std::stop_token lost = mine->lost();
    for (auto& lock : mine.locks) lock.force_unlock();
    mine->lock();
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK_FALSE(mine->lost().stop_requested());
    std::error_code ec;
    mine->unlock(ec);
    CHECK_FALSE(ec);
    mine->unlock(ec);
    CHECK(ec == redlatch::errc::hold_lost);
    CHECK(fleet().becomes_free("anew"));
}

// A part that is acquired again on a young server will have a vote later. Shortly before that another part is lost. So
// for a moment there is no majority, and another client may have had the lock.
TEST_CASE("a hold without a majority for a moment is lost") {
    Party mine{fleet().urls(), "gap", options(), red_options()};
    // It depends on some milliseconds, in which a busy machine may not run this thread. Then repeat.
    bool in_time = false;
    for (int round = 0; round < 6 && !in_time; ++round) {
        CAPTURE(round);
        mine->lock();
        const std::stop_token lost = mine->lost();
        REQUIRE(eventually([&] { return mine.locks[0].valid_until() > SteadyClock::now(); }, 20s));
        CHECK(eventually([&] { return fleet().holders("gap") == 3; }));
        const std::stop_token part_lost = mine.locks[0].lost();
        fleet().servers[0].restart();
        fleet().looks[0].reconnect();
        auto before = SteadyClock::now();  // the part was not there yet
        REQUIRE(eventually(
            [&] {
                const auto now = SteadyClock::now();
                const bool is_there = mine.locks[0].valid_until() > now;
                if (!is_there) before = now;
                return is_there && part_lost.stop_requested();
            },
            20s));
        const auto uptime = std::chrono::seconds{std::stoll(fleet().looks[0].info("server", "uptime_in_seconds"))};
        const auto seen = SteadyClock::now();
        const auto votes_from = seen + lease + lease / 100 + 2ms - std::max(uptime - 1s, 0s);
        CHECK_FALSE(lost.stop_requested());
        std::this_thread::sleep_until(votes_from - 60ms);
        mine.locks[1].force_unlock();  // this process knows that at once
        in_time = seen - before < 40ms && SteadyClock::now() < votes_from - 45ms;
        std::this_thread::sleep_until(votes_from + 60ms);
        if (in_time) {
            CHECK(mine.locks[0].valid_until() > SteadyClock::now());
            CHECK(mine.locks[2].valid_until() > SteadyClock::now());
            CHECK(mine->valid_until() == SteadyClock::time_point::min());
            CHECK(eventually([&] { return lost.stop_requested(); }));
        }
        std::error_code ec;
        mine->unlock(ec);
        if (in_time) CHECK(ec == redlatch::errc::hold_lost);
        CHECK(fleet().becomes_free("gap"));
        fleet().wait_until_old(0);
    }
    CHECK(in_time);
}
