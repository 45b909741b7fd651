// SPDX-License-Identifier: MIT
// ctest: timeout=180 long in_memory
// MultiLock: several locks as one, all of them or none.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/shared_memory.hpp"

#include "support/any_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Event;
using redlatch::FairLock;
using redlatch::FencedLock;
using redlatch::Lease;
using redlatch::MultiLock;
using redlatch::ReadWriteLock;
using redlatch::RLock;
using redlatch::SpinLock;
using redlatch::detail::this_thread_number;

namespace {

using SteadyClock = std::chrono::steady_clock;

/// Three locks of one client, and the MultiLock over them.
struct Three {
    explicit Three(HiredisClient& client) : a{client, "a"}, b{client, "b"}, c{client, "c"}, all{a, b, c} {}

    HiredisRLock a, b, c;
    MultiLock all;
};

/// Without the queues of those who wait.
Words keys_of(RawRedis& redis) {
    Words keys = redis.keys();
    std::erase_if(keys, [](const std::string& key) { return key.starts_with("redlatch_lock_"); });
    std::sort(keys.begin(), keys.end());
    return keys;
}

/// Waits until only the counters of fencing tokens are left, which remain by design. Unwanted holds are released in the
/// background.
bool becomes_clean(RawRedis& redis) {
    return eventually(
        [&] {
            const Words keys = redis.keys();
            return std::all_of(keys.begin(), keys.end(),
                               [](const std::string& key) { return key.starts_with("redisson_lock_token:"); });
        },
        20s);
}

/// Waits until no channel is left. They are unsubscribed some seconds after the last waiter.
bool becomes_silent(RawRedis& redis) {
    return eventually([&] { return redis.pubsub_channels().empty(); }, 5s + patient(15s), 20ms);
}

template <class Lock>
bool is_free(Lock& lock) {
    return elsewhere([&] {
        if (!lock.try_lock()) return false;
        lock.unlock();
        return true;
    });
}

}  // namespace

TEST_CASE("all members are held by the thread, and released together") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    {
        const std::lock_guard guard{mine.all};
        for (HiredisRLock* lock : {&mine.a, &mine.b, &mine.c})
            CHECK(redis.hgetall(lock->name()) == Fields{{owner_of(client, *lock), "1"}});
        CHECK(mine.all.is_locked());
        CHECK(mine.all.is_held());
        CHECK(mine.all.hold_count() == 1);
        CHECK(mine.b.is_held());
        CHECK_FALSE(theirs.all.try_lock());
        CHECK_FALSE(theirs.all.is_held());
        CHECK_FALSE(theirs.b.try_lock());
        CHECK_FALSE(elsewhere([&] { return mine.all.try_lock(); }));
        CHECK_FALSE(elsewhere([&] { return mine.all.is_held(); }));
    }
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK_FALSE(mine.all.is_locked());
    CHECK(mine.all.hold_count() == 0);
    CHECK_FALSE(mine.all.remaining_lease());
    CHECK(theirs.all.try_lock());
    theirs.all.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("members may be on different servers") {
    std::array<RedisServer, 3> servers;
    std::deque<HiredisClient> clients;
    std::deque<HiredisRLock> locks;
    for (RedisServer& server : servers) {
        clients.emplace_back(server.url());
        locks.emplace_back(clients.back(), "orders");
    }
    MultiLock all{locks[0], locks[1], locks[2]};
    CHECK(all.name() == "orders");
    all.lock();
    for (std::size_t i = 0; i < servers.size(); ++i)
        CHECK(RawRedis{servers[i]}.hgetall("orders") == Fields{{owner_of(clients[i], locks[i]), "1"}});
    CHECK_FALSE(elsewhere([&] { return all.try_lock(); }));
    all.unlock();
    for (RedisServer& server : servers)
        CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));

    Client stranger{servers[1].url()};
    RLock middle{stranger, "orders"};
    middle.lock();
    CHECK_FALSE(all.try_lock());
    CHECK_FALSE(all.try_lock_for(50ms));
    for (const std::size_t i : {std::size_t{0}, std::size_t{2}}) {
        RawRedis redis{servers[i]};
        CHECK(becomes_clean(redis));
    }
    middle.unlock();
    CHECK(all.try_lock());
    all.unlock();
}

TEST_CASE("every kind of lock can be a member, and excludes others and is excluded as usual") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock plain{client, "plain"};
    FairLock fair{client, "fair"};
    FencedLock fenced{client, "fenced"};
    SpinLock spin{client, "spin"};
    ReadWriteLock written{client, "written"};
    ReadWriteLock read{client, "read"};
    MultiLock all{plain, fair, fenced, spin, written, read.read_lock()};
    CHECK(all.name() == "fair, fenced, plain, read, spin, written");
    const std::int64_t before = [&] {
        const std::lock_guard guard{fenced};
        return fenced.token();
    }();
    all.lock();
    CHECK(plain.is_held());
    CHECK(fair.is_held());
    CHECK(fenced.is_held());
    CHECK(fenced.token() > before);
    CHECK(spin.is_held());
    CHECK(written.is_held());
    CHECK(read.read_lock().is_held());
    CHECK_FALSE(read.is_held());
    CHECK(all.is_held());
    CHECK(all.valid_until() > SteadyClock::now());

    RLock plain2{other, "plain"};
    FairLock fair2{other, "fair"};
    FencedLock fenced2{other, "fenced"};
    SpinLock spin2{other, "spin"};
    ReadWriteLock written2{other, "written"};
    ReadWriteLock read2{other, "read"};
    CHECK_FALSE(plain2.try_lock());
    CHECK_FALSE(fair2.try_lock());
    CHECK_FALSE(fenced2.try_lock());
    CHECK_FALSE(spin2.try_lock());
    CHECK_FALSE(written2.try_lock());
    CHECK_FALSE(written2.try_lock_shared());
    CHECK_FALSE(read2.try_lock());
    CHECK(read2.try_lock_shared());
    read2.unlock_shared();
    all.unlock();
    CHECK(becomes_clean(redis));

    const auto shut_out_by = [&](auto& lock) {
        lock.lock();
        CHECK_FALSE(all.try_lock());
        CHECK_FALSE(all.try_lock_for(20ms));
        CHECK(all.hold_count() == 0);
        auto waiting = start([&] {
            all.lock();
            const bool held = all.is_held();
            all.unlock();
            return held;
        });
        CHECK_FALSE(ready(waiting, 50ms));
        lock.unlock();
        CHECK(ready(waiting));
        CHECK(waiting.get());
        CHECK(becomes_clean(redis));
    };
    shut_out_by(plain2);
    shut_out_by(fair2);
    shut_out_by(fenced2);
    shut_out_by(spin2);
    shut_out_by(written2);
    shut_out_by(written2.read_lock());
    shut_out_by(read2);
}

TEST_CASE("a MultiLock takes references, and ranges of locks or of pointers to them") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock a{client, "a"};
    RLock b{client, "b"};
    const auto works = [&](MultiLock& lock) {
        CHECK(lock.name() == "a, b");
        const std::lock_guard guard{lock};
        CHECK(redis.keys().size() == 2);
        CHECK(lock.is_held());
    };
    std::vector<HiredisRLock*> pointers{&b, &a};
    MultiLock of_pointers(pointers);
    works(of_pointers);
    MultiLock of_a_temporary(std::vector<HiredisRLock*>{&a, &b});
    works(of_a_temporary);
    HiredisRLock* array[] = {&a, &b};
    MultiLock of_an_array(array);
    works(of_an_array);
    std::deque<HiredisRLock> locks;
    locks.emplace_back(client, "b");
    locks.emplace_back(client, "a");
    MultiLock of_locks(locks);
    works(of_locks);
    std::vector<std::unique_ptr<HiredisRLock>> owners;
    for (const char* name : {"a", "b"}) owners.push_back(std::make_unique<HiredisRLock>(client, name));
    MultiLock of_owners(owners);
    works(of_owners);
    const std::vector<std::shared_ptr<HiredisRLock>> sharers{std::make_shared<HiredisRLock>(client, "a"),
                                                             std::make_shared<HiredisRLock>(client, "b")};
    MultiLock of_sharers(sharers);
    works(of_sharers);
    MultiLock of_one{a};
    const std::lock_guard guard{of_one};
    CHECK(a.is_held());
}

TEST_CASE("a lock that is a member twice is refused, under any kind and object, and so is an empty MultiLock") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock a{client, "a"};
    RLock again{client, "a"};
    SpinLock spin{client, "a"};
    RLock b{client, "b"};
    RLock elsewhere_a{other, "a"};
    CHECK(code_of([&] { MultiLock lock(a, a); }) == errc::invalid_argument);
    CHECK(code_of([&] { MultiLock lock(a, b, again); }) == errc::invalid_argument);
    CHECK(code_of([&] { MultiLock lock(spin, b, again); }) == errc::invalid_argument);
    CHECK(code_of([&] { MultiLock lock(std::vector<HiredisRLock*>{}); }) == errc::invalid_argument);
    CHECK(text_of_error([&] { MultiLock lock(a, a); }).find("twice") != std::string::npos);
    CHECK_FALSE(code_of([&] { MultiLock lock(a, b); }));
    CHECK(client.stats().commands == 0);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("every overload works on a MultiLock: try, timed, until, with a stop token, a lease, or an error code") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    std::error_code ec = errc::rejected;
    std::stop_source stop;

    CHECK(mine.all.try_lock());
    mine.all.unlock();
    CHECK(mine.all.try_lock(ec));
    CHECK_FALSE(ec);
    mine.all.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(mine.all.try_lock_for(20s));
    mine.all.unlock();
    CHECK(mine.all.try_lock_until(std::chrono::system_clock::now() + 20s, stop.get_token(), ec));
    mine.all.unlock();
    CHECK(mine.all.lock(stop.get_token()));
    mine.all.unlock();
    mine.all.lock(ec);
    CHECK_FALSE(ec);
    mine.all.unlock();
    CHECK(mine.all.try_lock(Lease{5s}));
    for (const char* name : {"a", "b", "c"}) {
        CHECK(redis.pttl(name) <= 5000);
        CHECK(redis.pttl(name) > 1000);
    }
    CHECK(mine.all.remaining_lease() <= 5s);
    mine.all.unlock();
    mine.all.unlock(ec);
    CHECK(ec == errc::not_owner);
    CHECK(code_of([&] { mine.all.unlock(); }) == errc::not_owner);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));

    theirs.b.lock();
    CHECK_FALSE(mine.all.try_lock());
    CHECK_FALSE(mine.all.try_lock(Lease{5s}, ec));
    CHECK_FALSE(ec);
    CHECK_FALSE(mine.all.try_lock_for(0s));
    CHECK_FALSE(mine.all.try_lock_until(SteadyClock::now() - 1h));
    const auto begin = SteadyClock::now();
    CHECK_FALSE(mine.all.try_lock_for(120ms, Lease{5s}, stop.get_token(), ec));
    CHECK(SteadyClock::now() - begin >= 120ms);
    CHECK_FALSE(ec);
    CHECK(code_of([&] { mine.all.lock(Lease{0ms}); }) == errc::invalid_argument);
    auto waiting = start_waiting(client, [&] { return mine.all.lock(Lease{5s}, stop.get_token()); });
    CHECK_FALSE(ready(waiting, 50ms));
    stop.request_stop();
    CHECK(ready(waiting));
    CHECK_FALSE(waiting.get());
    CHECK_FALSE(mine.all.lock(stop.get_token()));
    // Members acquired after the refusal are released in the background.
    CHECK(eventually([&] { return keys_of(redis) == Words{"b"}; }, 20s));
    theirs.b.unlock();
    CHECK(becomes_clean(redis));
}
#endif

TEST_CASE("a MultiLock is as reentrant as its members") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Three mine{client};
    mine.all.lock();
    CHECK(mine.all.try_lock());
    for (HiredisRLock* lock : {&mine.a, &mine.b, &mine.c})
        CHECK(redis.hgetall(lock->name()) == Fields{{owner_of(client, *lock), "2"}});
    CHECK(mine.all.hold_count() == 2);
    mine.b.lock();
    CHECK(mine.b.hold_count() == 3);
    CHECK(mine.all.hold_count() == 2);
    mine.all.unlock();
    CHECK(redis.hgetall("b") == Fields{{owner_of(client, mine.b), "2"}});
    CHECK(mine.all.hold_count() == 1);
    CHECK_FALSE(mine.all.lost().stop_requested());
    mine.all.unlock();
    CHECK(keys_of(redis) == Words{"b"});
    // An earlier level of a member is kept, even if the MultiLock cannot be acquired.
    Client other{server.url()};
    RLock c{other, "c"};
    c.lock();
    CHECK_FALSE(mine.all.try_lock());
    // Members acquired after the refusal are released in the background.
    CHECK(eventually([&] { return redis.hgetall("b") == Fields{{owner_of(client, mine.b), "1"}}; }, 20s));
    mine.b.unlock();
    c.unlock();
    CHECK(becomes_clean(redis));
}

TEST_CASE("std::scoped_lock acquires a MultiLock together with other locks") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Three mine{client};
    RLock d{client, "d"};
    std::mutex local;
    {
        const std::scoped_lock guard{mine.all, d, local};
        CHECK(redis.keys().size() == 4);
    }
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a failed, timed-out or cancelled wait leaves no key and no subscription") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    theirs.c.lock();
    const auto only_theirs = [&] { return keys_of(redis) == Words{"c"}; };
    CHECK_FALSE(mine.all.try_lock());
    CHECK(eventually(only_theirs, 20s));
    CHECK_FALSE(mine.all.try_lock_for(30ms));
    CHECK(eventually(only_theirs, 20s));
    for (int i = 0; i < 20; ++i) {
        std::stop_source stop;
        auto waiting = start([&] { return mine.all.lock(stop.get_token()); });
        std::this_thread::sleep_for(std::chrono::microseconds{i * 300});
        stop.request_stop();
        CHECK(ready(waiting));
        CHECK_FALSE(waiting.get());
    }
    CHECK(eventually(only_theirs, 20s));
    theirs.c.unlock();
    CHECK(becomes_clean(redis));
    CHECK(becomes_silent(redis));
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

#ifndef REDLATCH_TEST_IN_MEMORY
// Each client had the nearest member, was refused the others, and released it again.
TEST_CASE("of several clients that try at the same time one wins, whatever member each reaches first") {
    constexpr std::size_t parties = 4;
    std::array<RedisServer, parties> servers;
    std::deque<Proxy> far;
    for (RedisServer& server : servers) far.emplace_back(server.url()).delay(5ms, 5ms);
    const auto count_wins = [&](int rounds, auto attempt) {
        std::deque<std::atomic<int>> winners(static_cast<std::size_t>(rounds));
        std::barrier together{parties};
        std::vector<std::jthread> threads;
        for (std::size_t me = 0; me < parties; ++me)
            threads.emplace_back([&, me] {
                std::deque<Client> clients;
                std::deque<RLock> locks;
                for (std::size_t i = 0; i < parties; ++i) {
                    clients.emplace_back(i == me ? servers[i].url() : far[i].url());
                    locks.emplace_back(clients.back(), std::string{"abcd"[i]});
                    const std::lock_guard connected{locks.back()};
                }
                std::deque<RLock*> named;
                for (std::size_t i = 0; i < parties; ++i) named.push_back(&locks[(me + i) % parties]);
                MultiLock all{named};
                for (std::atomic<int>& winner : winners) {
                    together.arrive_and_wait();
                    const bool won = attempt(all);
                    if (won) ++winner;
                    together.arrive_and_wait();
                    if (won) all.unlock();
                }
            });
        threads.clear();
        int won = 0;
        for (const std::atomic<int>& number : winners) {
            CHECK(number <= 1);
            won += number;
        }
        for (RedisServer& server : servers) {
            RawRedis redis{server};
            CHECK(becomes_clean(redis));
        }
        return won;
    };
    int most = 0;
    for (int i = 0; i < 5 && most < 18; ++i)
        most = std::max(most, count_wins(20, [](MultiLock& all) { return all.try_lock(); }));
    MESSAGE("somebody won " << most << " of 20 rounds");
    CHECK(most >= 18);
    // With time for a retry, one of them certainly wins.
    CHECK(count_wins(5, [](MultiLock& all) { return all.try_lock_for(patient(4s)); }) == 5);
}

// A server that has the lock held replies first. Slower servers have not replied by then, but are not unreachable.
TEST_CASE("a refusal counts at once, even if another member's server is slow") {
    RedisServer server;
    RedisServer far;
    RawRedis redis{far};
    Proxy proxy{far.url()};
    Client client{server.url()};
    Client distant{proxy.url()};
    Client other{server.url()};
    RLock a{client, "a"};
    RLock z{distant, "z"};
    RLock theirs{other, "a"};
    MultiLock both{a, z};
    both.lock();
    both.unlock();
    theirs.lock();
    proxy.delay(100ms, 100ms);
    std::error_code ec;
    CHECK_FALSE(both.try_lock(ec));
    CHECK_FALSE(ec);
    CHECK_FALSE(both.try_lock_for(50ms, ec));
    CHECK_FALSE(ec);
    CHECK(becomes_clean(redis));
    auto waiting = start([&] {
        const std::lock_guard guard{both};
        return z.is_held() && a.is_held();
    });
    CHECK_FALSE(ready(waiting, 600ms));
    CHECK(becomes_clean(redis));
    theirs.unlock();
    CHECK(ready(waiting));
    CHECK(waiting.get());
    CHECK(becomes_clean(redis));
}
#endif

// A wait that ends at its deadline sends no further command, so it finds no server unreachable.
TEST_CASE("a timed wait for a held lock returns false without an error, however long it was") {
    RedisServer server;
    ClientOptions options;
    options.command_timeout = patient(100ms);
    Client client{server.url(), options};
    Client other{server.url()};
    Three mine{client};
    RLock b{other, "b"};
    b.lock();
    for (const auto wait : {50ms, 100ms, 101ms, 250ms}) {
        CAPTURE(wait.count());
        // A server that gets no CPU for the whole time of a reply is indeed unreachable.
        CHECK(succeeds_once([&] {
            std::error_code ec;
            CHECK_FALSE(mine.all.try_lock_for(wait * slow_build_factor, ec));
            return !ec;
        }));
    }
}

TEST_CASE("a hold with a lease ends with that lease, although its members are held for longer") {
    RedisServer server;
    Client client{server.url()};
    Three mine{client};
    mine.a.lock();
    mine.b.lock();
    mine.c.lock();
    mine.all.lock(Lease{short_lease});
    const std::stop_token lost = mine.all.lost();
    CHECK(mine.all.valid_until() <= SteadyClock::now() + short_lease);
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(mine.a.is_held());
    std::error_code ec;
    mine.all.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(mine.all.hold_count() == 1);
}

TEST_CASE("a waiter wakes when the last member that others hold is released") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    theirs.a.lock();
    theirs.c.lock();
    std::atomic<SteadyClock::time_point> entered{SteadyClock::time_point{}};
    auto waiting = start_waiting(client, [&] {
        const std::lock_guard guard{mine.all};
        entered = SteadyClock::now();
        return true;
    });
    REQUIRE(is_listened_to(redis, "a"));
    CHECK(eventually([&] { return keys_of(redis) == Words{"a", "c"}; }, 20s));
    theirs.a.unlock();
    REQUIRE(is_listened_to(redis, "c"));
    CHECK_FALSE(ready(waiting, 50ms));
    // It waits for c, and excludes no other client from the rest meanwhile.
    CHECK(eventually([&] { return is_free(theirs.a) && is_free(theirs.b); }, 20s));
    const auto released = SteadyClock::now();
    theirs.c.unlock();
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
    CHECK(entered.load() - released < patient(5s));  // the lease lasts half a minute
    CHECK(becomes_clean(redis));
}

TEST_CASE("a release wakes the next waiter for all members, each time") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    std::vector<SteadyClock::duration> delays;
    for (int round = 0; round < 10; ++round) {
        mine.all.lock();
        std::atomic<SteadyClock::time_point> entered{SteadyClock::time_point{}};
        auto waiting = start_waiting(other, [&] {
            const std::lock_guard guard{theirs.all};
            entered = SteadyClock::now();
            return true;
        });
        const auto released = SteadyClock::now();
        mine.all.unlock();
        REQUIRE(ready(waiting));
        delays.push_back(entered.load() - released);
    }
    std::sort(delays.begin(), delays.end());
    CHECK(delays[5] < patient(500ms));
    CHECK(becomes_clean(redis));
}

TEST_CASE("the watchdog keeps all members, and valid_until() is that of the shortest") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(steady_lease)};
    Client patient_client{server.url()};
    RLock a{client, "a"};
    RLock b{patient_client, "b"};
    MultiLock both{a, b};
    CHECK(both.valid_until() == SteadyClock::time_point::min());
    CHECK(both.lost().stop_requested());
    both.lock();
    auto first = both.valid_until();
    // Unless it is renewed between the two readings.
    CHECK(eventually([&] { return (first = both.valid_until()) == a.valid_until(); }));
    CHECK(first < b.valid_until());
    const std::stop_token lost = both.lost();
    CHECK(eventually([&] { return both.valid_until() > first + steady_lease; }, 60s));
    CHECK_FALSE(lost.stop_requested());
    CHECK(redis.exists("a"));
    both.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK_FALSE(lost.stop_requested());
}

TEST_CASE("a MultiLock with a lease expires by itself, is never renewed, and reports its loss") {
    RedisServer server;
    RawRedis redis{server};
    EventLog events;
    ClientOptions options = with_watchdog(short_lease);
    options.on_event = events.handler();
    Client client{server.url(), options};
    Three mine{client};
    mine.all.lock(Lease{short_lease});
    const std::stop_token lost = mine.all.lost();
    const auto until = mine.all.valid_until();
    CHECK(until <= SteadyClock::now() + short_lease);
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(mine.all.valid_until() == SteadyClock::time_point::min());
    CHECK(client.stats().renewals == 0);
    CHECK(eventually([&] { return redis.keys().empty(); }, 20s));
    std::error_code ec;
    mine.all.unlock(ec);
    CHECK(ec == errc::hold_lost);
    mine.all.unlock(ec);
    CHECK(ec == errc::not_owner);
    CHECK(eventually([&] { return events.count(Event::Kind::hold_lost) >= 4; }, 20s));  // and the event of each member
}

// Redisson multiplies the lease by its unit again in every failed round, and with it the TTL of its members' keys.
TEST_CASE("the lease does not grow with failed rounds") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    for (const char* holder : {"a", "c", "b", "a"}) {
        HiredisRLock lock{other, holder};
        lock.lock();
        CHECK_FALSE(mine.all.try_lock_for(60ms, Lease{3s}));
        auto waiting = start_waiting(client, [&] {
            mine.all.lock(Lease{3s});
            const bool short_enough = mine.all.remaining_lease() <= 3s && redis.pttl("a") <= 3000 &&
                                      redis.pttl("b") <= 3000 && redis.pttl("c") <= 3000 &&
                                      mine.all.valid_until() <= SteadyClock::now() + 3s;
            mine.all.unlock();
            return short_enough;
        });
        lock.unlock();
        REQUIRE(ready(waiting));
        CHECK(waiting.get());
    }
    CHECK(becomes_clean(redis));
}

TEST_CASE("the loss of one member loses the whole hold, and unlock() releases the other members") {
    RedisServer server;
    RawRedis redis{server};
    EventLog events;
    ClientOptions options = with_watchdog(steady_lease);
    options.on_event = events.handler();
    Client client{server.url(), options};
    Three mine{client};
    mine.all.lock();
    const std::stop_token lost = mine.all.lost();
    const Stopwatch watch;
    redis.integer("DEL", "b");
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(watch.within(steady_lease / 3 + patient(2500ms)));
    CHECK(mine.all.valid_until() == SteadyClock::time_point::min());
    CHECK(mine.all.lost().stop_requested());
    CHECK(eventually(
        [&] {
            const auto all = events.all();
            return std::any_of(all.begin(), all.end(), [](const Event& e) { return e.name == "a, b, c"; });
        },
        20s));
    CHECK(keys_of(redis) == Words{"a", "c"});
    std::error_code ec;
    mine.all.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(mine.all.try_lock());
    mine.all.unlock();
}

TEST_CASE("destroying a held MultiLock reports a loss, because nothing supervises the hold any more") {
    RedisServer server;
    Client client{server.url()};
    RLock a{client, "a"};
    RLock b{client, "b"};
    auto both = std::make_unique<MultiLock>(a, b);
    both->lock();
    const std::stop_token lost = both->lost();
    both.reset();
    CHECK(eventually([&] { return lost.stop_requested(); }));
}

// The first that is asked for may be the last that is released.
TEST_CASE("destroying a MultiLock reports the loss of a hold whose token is asked for meanwhile") {
    RedisServer server;
    Client client{server.url()};
    ReadWriteLock a{client, "a"}, b{client, "b"};
    for (int round = 0; round < 10; ++round) {
        auto both = std::make_unique<MultiLock>(a.read_lock(), b.read_lock());
        std::vector<redlatch::Hold> holds;
        for (int i = 0; i < 100; ++i) holds.push_back(both->hold());
        std::atomic<bool> begins{false};
        auto asking = start([&] {
            std::vector<std::stop_token> tokens;
            begins = true;
            // Takes about as long as the end of the lock.
            for (auto hold = holds.rbegin(); hold != holds.rend(); ++hold) {
                tokens.push_back(hold->lost());
                for (const Stopwatch pause; pause.elapsed() < 20us;) continue;
            }
            return tokens;
        });
        while (!begins) std::this_thread::yield();
        both.reset();
        for (const std::stop_token& lost : asking.get()) REQUIRE(eventually([&] { return lost.stop_requested(); }));
    }
}

// The member's loss is known, but the MultiLock has not noticed it yet. Acquiring it again must not continue the old
// hold.
TEST_CASE("acquiring a lost MultiLock again is a new hold, and the loss of the old one is reported") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    Three mine{client};
    mine.all.lock();
    const std::stop_token lost = mine.all.lost();
    const std::stop_token lost_b = mine.b.lost();
    redis.integer("DEL", "b");
    REQUIRE(eventually([&] { return lost_b.stop_requested(); }, 20s));
    mine.all.lock();
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK_FALSE(mine.all.lost().stop_requested());
    CHECK(mine.all.is_held());
    std::error_code ec;
    mine.all.unlock(ec);
    CHECK_FALSE(ec);
    mine.all.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

// Another client acquired a member by force and released it. The holder does not know that and locks once more, which
// acquires the member again.
TEST_CASE("a member that another client held meanwhile does not continue the old hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    RLock b{other, "b"};
    mine.all.lock();
    const std::stop_token lost = mine.all.lost();
    std::atomic<bool> taken{false};
    auto again = start([&] {
        b.force_unlock();
        b.lock();
        taken = true;
        const bool listened = is_listened_to(redis, "b");  // not before the holder waits for it
        b.unlock();
        return listened;
    });
    REQUIRE(eventually([&] { return taken.load(); }, 20s));
    mine.all.lock();
    CHECK(again.get());
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK_FALSE(mine.all.lost().stop_requested());
    std::error_code ec;
    mine.all.unlock(ec);
    CHECK_FALSE(ec);
    mine.all.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(becomes_clean(redis));
}

TEST_CASE("force_unlock() ends the holds of all members, by any owner, and returns whether there was one") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    std::error_code ec;
    CHECK_FALSE(mine.all.force_unlock());
    theirs.b.lock();
    CHECK_FALSE(mine.all.is_locked());
    CHECK(mine.all.force_unlock());
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    theirs.b.unlock();
    theirs.all.lock();
    CHECK(mine.all.is_locked(ec));
    CHECK(mine.all.force_unlock(ec));
    CHECK_FALSE(ec);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    theirs.all.unlock(ec);
    CHECK(ec == errc::hold_lost);
    mine.all.lock();
    const std::stop_token lost = mine.all.lost();
    CHECK(mine.all.force_unlock());
    CHECK(mine.all.valid_until() == SteadyClock::time_point::min());
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    mine.all.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("lock() and unlock() are two commands per member, without any others") {
    RedisServer server;
    Client client{server.url()};
    Three mine{client};
    for (int i = 0; i < 2; ++i) {
        const std::lock_guard guard{mine.all};
    }
    CommandMonitor monitor{server};
    for (int i = 0; i < 10; ++i) {
        const std::lock_guard guard{mine.all};
    }
    const auto calls = monitor.take();
    CHECK(calls == std::map<std::string, long long>{{"evalsha", 60}});
    CHECK(mine.all.valid_until() == SteadyClock::time_point::min());
    CHECK(monitor.take_total() == 0);
}

TEST_CASE("a waiter sends nothing until the release") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Three mine{client};
    Three theirs{other};
    theirs.all.lock();
    auto waiting = start_waiting(client, [&] {
        const std::lock_guard guard{mine.all};
        return true;
    });
    REQUIRE(is_listened_to(redis, "a"));
    CommandMonitor monitor{server};
    CHECK(falls_silent(monitor));  // once the query after the subscription is answered
    theirs.all.unlock();
    CHECK(ready(waiting));
}

TEST_CASE("a member with an unreachable server is an error in time, and the other members are released") {
    RedisServer server;
    RedisServer doomed;
    RawRedis redis{server};
    ClientOptions options;
    options.command_timeout = patient(300ms);
    options.unreachable_timeout = patient(900ms);
    Client client{server.url(), options};
    Client unlucky{doomed.url(), options};
    RLock a{client, "a"};
    RLock z{unlucky, "z"};
    MultiLock both{a, z};
    const auto works = [&] {
        std::error_code error;
        if (!both.try_lock(error)) return false;
        CHECK(RawRedis{doomed}.exists("z"));
        both.unlock(error);
        return !error;
    };
    REQUIRE(eventually(works, 20s));
    const auto fails = [&](auto&& take, std::chrono::milliseconds at_least, std::chrono::milliseconds at_most) {
        CHECK(succeeds_once(
            [&] {
                const Stopwatch watch;
                const std::error_code ec = code_of(take);
                const auto took = watch.elapsed_ms();
                CAPTURE(took.count());
                CHECK(ec == errc::unreachable);
                CHECK(took >= at_least - 10ms);
                CHECK(becomes_clean(redis));
                return took < at_most + patient(700ms);
            },
            4));
    };
    SUBCASE("killed") { doomed.kill(); }
    SUBCASE("frozen") { doomed.stop(); }
    fails([&] { both.lock(); }, options.unreachable_timeout, options.unreachable_timeout);
    fails([&] { static_cast<void>(both.try_lock()); }, options.command_timeout, options.command_timeout);
    fails([&] { static_cast<void>(both.try_lock_for(options.command_timeout * 2)); }, options.command_timeout * 2,
          options.command_timeout * 2);
    CHECK(succeeds_once([&] {
        std::error_code hurried;
        CHECK_FALSE(both.try_lock_for(10ms, hurried));
        return !hurried;  // there was no time to find out
    }));
    const std::string text = text_of_error([&] { static_cast<void>(both.try_lock()); });
    CAPTURE(text);
    CHECK(text.find("z: ") != std::string::npos);
    std::error_code ec;
    both.lock(ec);
    CHECK(ec == errc::unreachable);
    static_cast<void>(both.is_locked(ec));
    CHECK(ec == errc::unreachable);
    std::stop_source stop;
    auto stopped = start([&] {
        std::error_code late;  // it may fail before it is stopped
        return both.lock(stop.get_token(), late);
    });
    stop.request_stop();
    CHECK(ready(stopped));
    CHECK_FALSE(stopped.get());

    // Afterwards, once the commands in flight for this thread are settled, the lock can be acquired again.
    if (doomed.running())
        doomed.cont();
    else
        doomed.restart();
    CHECK(eventually(works, 20s));
    CHECK(becomes_clean(redis));
}

TEST_CASE("a guard does not throw when a server dies during it, and unlock(ec) reports unreachable") {
    RedisServer server;
    RedisServer doomed;
    RawRedis redis{server};
    ClientOptions options;
    options.command_timeout = patient(200ms);
    Client client{server.url(), options};
    Client unlucky{doomed.url(), options};
    RLock a{client, "a"};
    RLock z{unlucky, "z"};
    MultiLock both{a, z};
    {
        const std::lock_guard guard{both};
        doomed.stop();
    }
    CHECK(becomes_clean(redis));
    doomed.cont();
    RawRedis there{doomed};
    CHECK(becomes_clean(there));
    REQUIRE(both.try_lock_for(20s));
    doomed.kill();
    std::error_code ec;
    both.unlock(ec);
    CHECK(ec == errc::unreachable);
    CHECK(becomes_clean(redis));
}

TEST_CASE("a lost reply to one member's acquire leaves nothing behind, and counts no level twice") {
    RedisServer server;
    RedisServer far;
    RawRedis redis{server};
    RawRedis there{far};
    Proxy proxy{far.url()};
    Client client{server.url()};
    Client distant{proxy.url()};
    RLock a{client, "a"};
    RLock z{distant, "z"};
    MultiLock both{a, z};
    both.lock();
    both.unlock();
    const std::string acquire{redlatch::detail::digested<redlatch::detail::scripts::queue_acquire>.digest()};
    const std::string release{redlatch::detail::digested<redlatch::detail::scripts::queue_release>.digest()};

    proxy.drop_next_replies(1, acquire);
    both.lock();  // retries, after the possible hold is released
    CHECK(proxy.counts().dropped == 1);
    CHECK(redis.hgetall("a") == Fields{{owner_of(client, a), "1"}});
    CHECK(there.hgetall("z") == Fields{{owner_of(distant, z), "1"}});
    proxy.drop_next_replies(1, acquire);
    both.lock();  // one more level
    CHECK(proxy.counts().dropped == 2);
    CHECK(redis.hgetall("a") == Fields{{owner_of(client, a), "2"}});
    CHECK(there.hgetall("z") == Fields{{owner_of(distant, z), "2"}});
    both.unlock();
    CHECK(there.hgetall("z") == Fields{{owner_of(distant, z), "1"}});
    proxy.drop_next_replies(1, release);
    both.unlock();
    CHECK(proxy.counts().dropped == 3);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(becomes_clean(there));

    proxy.drop_next_replies(1, acquire);
    std::error_code ec;
    if (both.try_lock(ec)) both.unlock();
    CHECK(proxy.counts().dropped == 4);
    CHECK(becomes_clean(redis));
    CHECK(becomes_clean(there));

    // The possible hold of a lost acquire is released in the background, even after many faults, and does not count as
    // a hold.
    for (int i = 0; i < 20; ++i) {
        proxy.drop_next_replies(1, i % 2 == 0 ? acquire : release);
        const std::lock_guard guard{both};
        CHECK(redis.hgetall("a") == Fields{{owner_of(client, a), "1"}});
        CHECK(there.hgetall("z") == Fields{{owner_of(distant, z), "1"}});
    }
    CHECK(proxy.counts().dropped >= 14);
    proxy.clear_rules();
    CHECK(becomes_clean(redis));
    CHECK(becomes_clean(there));
}
#endif

TEST_CASE("a member's key of another type is an error that names that lock, and the other members are released") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Three mine{client};
    redis.text("SET", "b", "not a lock");
    CHECK(code_of([&] { mine.all.lock(); }) == errc::wrong_type);
    CHECK(code_of([&] { static_cast<void>(mine.all.try_lock()); }) == errc::wrong_type);
    CHECK(text_of_error([&] { mine.all.lock(); }).find("b: ") == 0);
    CHECK(eventually([&] { return keys_of(redis) == Words{"b"}; }, 20s));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a child forked by a holder holds nothing, and does not disturb the parent") {
    struct Findings {
        std::atomic<int> passed{0};
        std::atomic<int> failed_line{0};
        std::atomic<bool> waits{false};
    };
    RedisServer server;
    RawRedis redis{server};
    SharedMemory<Findings> found;
    Client client{server.url()};
    Three mine{client};
    mine.all.lock();
    const Fields held_a{{owner_of(client, mine.a), "1"}};
    const Fields held_b{{owner_of(client, mine.b), "1"}};
    const Fields held_c{{owner_of(client, mine.c), "1"}};
    auto child = ChildProcess::run([&] {
        const auto check = [&](bool good, int line) {
            if (good)
                ++found->passed;
            else if (found->failed_line == 0)
                found->failed_line = line;
        };
        check(mine.all.lost().stop_requested(), __LINE__);
        check(mine.all.valid_until() == SteadyClock::time_point::min(), __LINE__);
        check(!mine.all.is_held(), __LINE__);
        check(mine.all.is_locked(), __LINE__);
        check(!mine.all.try_lock(), __LINE__);
        check(!mine.all.try_lock_for(30ms), __LINE__);
        std::error_code ec;
        mine.all.unlock(ec);  // like a guard of the parent
        check(ec == errc::hold_lost, __LINE__);
        found->waits = true;
        mine.all.lock();
        check(mine.all.hold_count() == 1, __LINE__);
        mine.all.unlock();
        return 0;
    });
    CHECK(eventually([&] { return found->waits.load(); }, 60s));
    CHECK(redis.hgetall("a") == held_a);
    CHECK(redis.hgetall("b") == held_b);
    CHECK(redis.hgetall("c") == held_c);
    CHECK(mine.all.is_held());
    CHECK_FALSE(mine.all.lost().stop_requested());
    mine.all.unlock();
    CHECK(child.wait(60s) == ExitStatus{0, 0});
    CHECK(found->failed_line == 0);
    CHECK(found->passed == 8);
    mine.all.lock();
    mine.all.unlock();
    CHECK(becomes_clean(redis));
}
#endif

// --- many threads and processes, in any order
// ----------------------------------------------------------------------------------------

namespace {

constexpr int accounts = 5;

/// Transfers between two accounts, chosen and locked in any order. Each account is a plain number.
struct Bank {
    std::array<PlainCounter, accounts> visits;
    std::atomic<std::uint64_t> transfers{0};
    std::atomic<bool> over{false};
};

void transfer(HiredisClient& client, Bank& bank, unsigned seed, int times) {
    for (int i = 0; i < times; ++i) {
        seed = seed * 1'103'515'245U + 12'345U;
        const int from = static_cast<int>(seed >> 16) % accounts;
        const int to = (from + 1 + static_cast<int>(seed >> 24) % (accounts - 1)) % accounts;
        RLock first{client, "account " + std::to_string(from)};
        RLock second{client, "account " + std::to_string(to)};
        MultiLock both{first, second};
        const std::lock_guard guard{both};
        bank.visits[static_cast<std::size_t>(from)].add_one_unseen();
        bank.visits[static_cast<std::size_t>(to)].add_one_unseen();
        ++bank.transfers;
    }
}

constexpr int transfers_each = 60;

const Role banker{"multi lock: banker", [](std::span<const std::string> args) {
                      auto bank = SharedMemory<Bank>::open(args[1]);
                      HiredisClient client{args[0]};
                      std::vector<std::thread> threads;
                      for (unsigned i = 0; i < 3; ++i)
                          threads.emplace_back([&, i] {
                              transfer(client, *bank, static_cast<unsigned>(std::stoul(args[2])) * 3 + i,
                                       transfers_each);
                          });
                      for (std::thread& thread : threads) thread.join();
                      return 0;
                  }};

}  // namespace

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("many threads and processes that lock members in opposite orders exclude each other without a deadlock") {
    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    auto bank = SharedMemory<Bank>::create(dir.file("bank"));
    std::vector<ChildProcess> processes;
    for (int i = 0; i < 4; ++i)
        processes.push_back(spawn_self("multi lock: banker", {server.url(), dir.file("bank"), std::to_string(i + 1)}));
    for (ChildProcess& process : processes) {
        const auto status = process.wait(patient(90s));
        REQUIRE(status);
        CHECK(status->code == 0);
    }
    std::uint64_t visits = 0;
    for (const PlainCounter& account : bank->visits) {
        CHECK(account.value() > 0);
        visits += account.value();
    }
    CHECK(bank->transfers == 4 * 3 * transfers_each);
    CHECK(visits == 2 * bank->transfers);
    CHECK(becomes_clean(redis));
}

TEST_CASE("a killed holder of several locks blocks others only until its leases expire") {
    RedisServer server;
    RawRedis redis{server};
    auto holder = ChildProcess::run([&] {
        Client client{server.url(), with_watchdog(short_lease)};
        Three mine{client};
        mine.all.lock();
        std::this_thread::sleep_for(60s);
        return 0;
    });
    REQUIRE(eventually([&] { return redis.keys().size() == 3; }, 20s));
    Client client{server.url(), with_watchdog(short_lease)};
    Three mine{client};
    CHECK_FALSE(mine.all.try_lock());
    holder.kill();
    const Stopwatch watch;
    mine.all.lock();
    CHECK(watch.within(short_lease * 2 + patient(3s)));
    mine.all.unlock();
    CHECK(becomes_clean(redis));
}
#endif
