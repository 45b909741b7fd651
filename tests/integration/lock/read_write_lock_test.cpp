// SPDX-License-Identifier: MIT
// ReadWriteLock on real servers: exclusion, wake-ups, and its keys in Redis.
// ctest: in_memory
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"

#include "support/any_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::errc;
using redlatch::Lease;
using redlatch::ReadWriteLock;
using redlatch::RLock;

namespace {

const std::string channel = "redisson_rwlock:{orders}";
const std::string mark = "{orders}:redlatch_writer_waits";
const std::string java_owner = "b983c153-7421-469a-addb-44fb92259a1b:42";

std::string timeout_key(const std::string& owner, int level = 1) {
    return "{orders}:" + owner + ":rwlock_timeout:" + std::to_string(level);
}

/// Returns true for a TTL that was set to this value just now.
bool is_fresh(long long pttl, std::chrono::milliseconds lease) {
    return pttl <= lease.count() && pttl > lease.count() - patient(5s).count();
}

/// Ample for a wake-up on a busy machine, and less than any wait or lease that would end otherwise.
constexpr auto woken = 10s;

Words sorted(Words words) {
    std::sort(words.begin(), words.end());
    return words;
}

/// Waits until clients of any process are subscribed to the end of holds, or to their grants.
bool is_listened_to(RawRedis& redis, long long listeners = 1) {
    return eventually([&] { return redis.lock_listeners(channel) >= listeners; }, 20s);
}

/// Holds the read side as long as the process runs.
const Role reader{"read for ever", [](std::span<const std::string> args) {
                      Client client{args[0], with_watchdog(short_lease)};
                      ReadWriteLock orders{client, "orders"};
                      orders.lock_shared();
                      std::this_thread::sleep_for(60s);
                      return 0;
                  }};

struct Fixture {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    ReadWriteLock orders{client, "orders"};
    Client elsewhere_client{server.url()};
    ReadWriteLock orders_elsewhere{elsewhere_client, "orders"};

    // The owners of this thread's holds on the server.
    std::string reader() { return owner_of(client, orders.read_lock()); }
    std::string writer() { return owner_of(client, orders.write_lock()) + ":write"; }
};

}  // namespace

// --- keys in Redis -------------------------------------------------------------------------------------------------

TEST_CASE("a reader creates the same keys as Redisson's reader, with a timeout key for each level") {
    Fixture f;
    Messages messages{f.server, channel};
    f.orders.lock_shared();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "read"}, {f.reader(), "1"}});
    CHECK(is_fresh(f.redis.pttl("orders"), 30s));
    CHECK(f.redis.text("GET", timeout_key(f.reader())) == "1");
    CHECK(is_fresh(f.redis.pttl(timeout_key(f.reader())), 30s));

    f.orders.lock_shared(Lease{600s});
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "read"}, {f.reader(), "2"}});
    CHECK(is_fresh(f.redis.pttl("orders"), 600s));
    CHECK(is_fresh(f.redis.pttl(timeout_key(f.reader(), 2)), 600s));
    CHECK(is_fresh(f.redis.pttl(timeout_key(f.reader(), 1)), 30s));
    CHECK(f.orders.read_lock().hold_count() == 2);
    CHECK(sorted(f.redis.keys()) == sorted({"orders", timeout_key(f.reader(), 1), timeout_key(f.reader(), 2)}));

    // A hold lasts as long as the longest lease of all its levels, so the level below inherits it.
    f.orders.unlock_shared();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "read"}, {f.reader(), "1"}});
    CHECK(is_fresh(f.redis.pttl("orders"), 600s));
    CHECK(is_fresh(f.redis.pttl(timeout_key(f.reader())), 600s));
    CHECK(f.orders.read_lock().valid_until() <= redlatch::Clock::now() + 600s);
    CHECK(messages.take().empty());

    f.orders.unlock_shared();
    CHECK(f.redis.keys().empty());
    CHECK(messages.take() == Words{"0"});
}

TEST_CASE("a writer creates the same keys as Redisson's writer, and its reentry does not add up leases") {
    Fixture f;
    Messages messages{f.server, channel};
    f.orders.lock();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "write"}, {f.writer(), "1"}});
    f.orders.lock();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "write"}, {f.writer(), "2"}});
    CHECK(is_fresh(f.redis.pttl("orders"), 30s));
    f.orders.lock_shared();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "write"}, {f.writer(), "2"}, {f.reader(), "1"}});
    CHECK(sorted(f.redis.keys()) == sorted({"orders", timeout_key(f.reader())}));
    f.orders.unlock();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "write"}, {f.writer(), "1"}, {f.reader(), "1"}});
    CHECK(messages.take().empty());
    f.orders.unlock();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "read"}, {f.reader(), "1"}});
    CHECK(messages.take() == Words{"1"});
    f.orders.unlock_shared();
    CHECK(f.redis.keys().empty());
    CHECK(messages.take() == Words{"0"});
    f.orders.lock();
    f.orders.unlock();
    CHECK(f.redis.keys().empty());
    CHECK(messages.take() == Words{"1"});
}

TEST_CASE("a writer that also reads may release the read side first") {
    Fixture f;
    f.orders.lock();
    f.orders.lock_shared();
    f.orders.unlock_shared();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "write"}, {f.writer(), "1"}});
    CHECK(f.redis.keys() == Words{"orders"});
    f.orders.unlock();
    CHECK(f.redis.keys().empty());
}

TEST_CASE("a name with its own hash tag gets no further braces in any key") {
    Fixture f;
    Messages messages{f.server, "redisson_rwlock:{shop}orders"};
    ReadWriteLock tagged{f.client, "{shop}orders"};
    tagged.lock_shared();
    const std::string owner = owner_of(f.client, tagged.read_lock());
    CHECK(sorted(f.redis.keys()) == sorted({"{shop}orders", "{shop}orders:" + owner + ":rwlock_timeout:1"}));
    tagged.unlock_shared();
    CHECK(f.redis.keys().empty());
    CHECK(messages.take() == Words{"0"});
}

TEST_CASE("the TTL of the lock is that of the longest reader, and falls when that one leaves") {
    Fixture f;
    f.orders.lock_shared(Lease{600s});
    elsewhere([&] { f.orders_elsewhere.lock_shared(Lease{40s}); });
    CHECK(is_fresh(f.redis.pttl("orders"), 600s));
    CHECK(f.redis.hgetall("orders").size() == 3);
    f.orders.unlock_shared();
    CHECK(is_fresh(f.redis.pttl("orders"), 40s));
    CHECK(f.redis.hgetall("orders").size() == 2);
    CHECK(f.orders.read_lock().force_unlock());
    CHECK(f.redis.keys().empty());
}

TEST_CASE("the lease of a reader in Java excludes writers, and its other keys do not") {
    Fixture f;
    f.redis.integer("HSET", "orders", "mode", "read", java_owner, 2);
    f.redis.integer("PEXPIRE", "orders", 600'000);
    f.redis.text("SET", timeout_key(java_owner, 1), 1, "PX", 600'000);
    f.redis.text("SET", timeout_key(java_owner, 2), 1, "PX", 600'000);
    CHECK_FALSE(f.orders.try_lock());
    CHECK(f.orders.try_lock_shared());
    f.orders.unlock_shared();
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "read"}, {java_owner, "2"}});
    CHECK(is_fresh(f.redis.pttl("orders"), 600s));
    f.redis.integer("DEL", timeout_key(java_owner, 1));
    CHECK_FALSE(f.orders.try_lock());
    f.redis.integer("DEL", timeout_key(java_owner, 2));
    CHECK_FALSE(f.orders.read_lock().is_locked());
    CHECK(f.orders.try_lock());
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "write"}, {f.writer(), "1"}});
    f.orders.unlock();
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a lock and an unlock are two commands, on either side") {
    Fixture f;
    // From here on the scripts are cached.
    f.orders.lock();
    f.orders.unlock();
    f.orders.lock_shared();
    f.orders.unlock_shared();
    CommandMonitor monitor{f.server};
    f.orders.lock();
    f.orders.unlock();
    CHECK(monitor.take_total() == 2);
    f.orders.lock_shared();
    f.orders.unlock_shared();
    CHECK(monitor.take_total() == 2);
}
#endif

// --- exclusion -----------------------------------------------------------------------------------------------------

TEST_CASE("readers of many threads and clients hold the lock at the same time") {
    Fixture f;
    constexpr int readers = 12;
    std::atomic<int> inside = 0;
    std::vector<std::future<bool>> threads;
    for (int i = 0; i < readers; ++i)
        threads.push_back(start([&, i] {
            auto& lock = i % 2 == 0 ? f.orders : f.orders_elsewhere;
            const std::shared_lock reading{lock};
            ++inside;
            return eventually([&] { return inside == readers; }, 20s);
        }));
    for (auto& thread : threads) CHECK(thread.get());
    CHECK(f.redis.keys().empty());
}

TEST_CASE("a writer excludes other writers and readers") {
    Fixture f;
    constexpr int rounds = 60;
    PlainCounter counter;
    std::atomic<bool> torn = false;
    std::vector<std::future<void>> threads;
    for (int i = 0; i < 3; ++i) {
        auto& lock = i % 2 == 0 ? f.orders : f.orders_elsewhere;
        threads.push_back(start([&] {
            for (int round = 0; round < rounds; ++round) {
                const std::unique_lock writing{lock};
                counter.add_one_unseen();
            }
        }));
        threads.push_back(start([&] {
            for (int round = 0; round < rounds; ++round) {
                const std::shared_lock reading{lock};
                const auto before = counter.value();
                std::this_thread::yield();
                if (counter.value() != before) torn = true;
            }
        }));
    }
    for (auto& thread : threads) thread.get();
    CHECK(counter.value() == 3 * rounds);
    CHECK_FALSE(torn);
    CHECK(f.redis.keys().empty());
}

TEST_CASE("the last reader wakes a waiting writer, and a writer wakes all waiting readers") {
    Fixture f;
    f.orders.lock_shared();
    elsewhere([&] {
        f.orders.lock_shared();
        auto writer = start_waiting(f.elsewhere_client, [&] { return f.orders_elsewhere.try_lock_for(20s); });
        REQUIRE(is_listened_to(f.redis));
        f.orders.unlock_shared();
        CHECK_FALSE(ready(writer, 30ms));
        // The hold of the other thread, which is the last one.
        f.redis.integer("PUBLISH", "unrelated", "0");
        f.orders.read_lock().force_unlock();
        CHECK(ready(writer, woken));
        CHECK(writer.get());
    });
    f.orders_elsewhere.force_unlock();
    std::error_code ec;
    f.orders.unlock_shared(ec);
    CHECK(ec == errc::hold_lost);

    f.orders.lock();
    std::atomic<int> inside = 0;
    std::vector<std::future<bool>> readers;
    for (int i = 0; i < 6; ++i)
        readers.push_back(start_waiting(f.elsewhere_client, [&] {
            const std::shared_lock reading{f.orders_elsewhere};
            ++inside;
            return eventually([&] { return inside == 6; }, 20s);
        }));
    REQUIRE(is_listened_to(f.redis));
    const Stopwatch watch;
    f.orders.unlock();
    for (auto& one : readers) CHECK(one.get());
    CHECK(watch.within(woken));
    CHECK(f.redis.keys().empty());
}

TEST_CASE("a waiting reader and a waiting writer of one process are both notified") {
    Fixture f;
    // Two waiters on one channel, only one of which can receive its messages itself. The best of some rounds.
    std::chrono::milliseconds best = 1h;
    const Stopwatch since;
    // More than five rounds only if a busy machine has delayed all of them.
    for (int round = 0; round < 5 || (best >= patient(100ms) && since.within(30s)); ++round) {
        f.orders.lock();
        std::atomic<int> done = 0;
        auto writer = start_waiting(f.elsewhere_client, [&] {
            f.orders_elsewhere.lock();
            f.orders_elsewhere.unlock();
            ++done;
        });
        auto reading = start_waiting(f.elsewhere_client, [&] {
            f.orders_elsewhere.lock_shared();
            f.orders_elsewhere.unlock_shared();
            ++done;
        });
        REQUIRE(is_listened_to(f.redis));
        const Stopwatch watch;
        f.orders.unlock();
        CHECK(eventually([&] { return done == 2; }, 20s));
        best = std::min(best, watch.elapsed_ms());
        writer.get();
        reading.get();
    }
    CHECK(best < patient(100ms));
}

TEST_CASE("fault: writer becomes a reader: it wakes other readers, and stays a reader") {
    Fixture f;
    f.orders.lock();
    f.orders.lock_shared();
    auto waiting = start_waiting(f.elsewhere_client, [&] { return f.orders_elsewhere.try_lock_shared_for(20s); });
    REQUIRE(is_listened_to(f.redis));
    CHECK_FALSE(ready(waiting, 30ms));
    f.orders.unlock();
    CHECK(ready(waiting, woken));
    CHECK(waiting.get());
    CHECK(f.orders.read_lock().is_held());
    CHECK_FALSE(f.orders.is_locked());
    CHECK_FALSE(elsewhere([&] { return f.orders_elsewhere.try_lock(); }));
    f.orders.unlock_shared();
    f.orders_elsewhere.read_lock().force_unlock();
}

TEST_CASE("after a downgrade the lock lasts no longer than its remaining readers") {
    Fixture f;
    f.orders.lock(Lease{600s});
    f.orders.lock_shared(Lease{40s});
    CHECK(is_fresh(f.redis.pttl("orders"), 600s));
    f.orders.unlock();
    CHECK(is_fresh(f.redis.pttl("orders"), 40s));
    f.orders.unlock_shared();
    CHECK(f.redis.keys().empty());
}

TEST_CASE("fault: reader requests the write side: refused at once") {
    Fixture f;
    const std::shared_lock reading{f.orders};
    CHECK(code_of([&] { f.orders.lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return f.orders.try_lock(); }) == errc::would_deadlock);
    CHECK(f.orders.read_lock().is_held());
}

TEST_CASE("force_unlock() ends one side, and the other one stays") {
    Fixture f;
    f.orders.lock();
    f.orders.lock_shared();
    CHECK(elsewhere([&] { return f.orders_elsewhere.force_unlock(); }));
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "read"}, {f.reader(), "1"}});
    CHECK_FALSE(elsewhere([&] { return f.orders_elsewhere.force_unlock(); }));
    CHECK(elsewhere([&] { return f.orders_elsewhere.read_lock().force_unlock(); }));
    CHECK(f.redis.keys().empty());
    CHECK_FALSE(elsewhere([&] { return f.orders_elsewhere.read_lock().force_unlock(); }));
    std::error_code ec;
    f.orders.unlock_shared(ec);
    CHECK(ec == errc::hold_lost);
    f.orders.unlock(ec);
    CHECK(ec == errc::hold_lost);

    f.orders.lock();
    f.orders.lock_shared();
    CHECK(f.orders_elsewhere.read_lock().force_unlock());
    CHECK(f.redis.hgetall("orders") == Fields{{"mode", "write"}, {f.writer(), "1"}});
    CHECK(f.redis.keys() == Words{"orders"});
    f.orders.unlock();
    f.orders.unlock_shared(ec);
    CHECK(f.redis.keys().empty());
}

TEST_CASE("the queries of each side are about that side") {
    Fixture f;
    CHECK_FALSE(f.orders.is_locked());
    CHECK_FALSE(f.orders.read_lock().is_locked());
    CHECK_FALSE(f.orders.remaining_lease());
    CHECK_FALSE(f.orders.read_lock().remaining_lease());
    f.orders.lock_shared(Lease{40s});
    CHECK_FALSE(f.orders.is_locked());
    CHECK_FALSE(f.orders.is_held());
    CHECK(f.orders.read_lock().is_locked());
    CHECK(f.orders.read_lock().is_held());
    CHECK(f.orders.read_lock().remaining_lease().value() > 20s);
    CHECK_FALSE(elsewhere([&] { return f.orders.read_lock().is_held(); }));
    f.orders.unlock_shared();
    f.orders.lock();
    CHECK(f.orders.is_locked());
    CHECK(f.orders.hold_count() == 1);
    CHECK(f.orders.write_lock().remaining_lease().value() > 20s);
    CHECK_FALSE(f.orders.read_lock().is_locked());
    CHECK(f.orders.read_lock().hold_count() == 0);
    f.orders.unlock();
}

TEST_CASE("fault: key of another kind of lock: an RLock and a read-write lock with one name refuse each other") {
    Fixture f;
    RLock plain{f.client, "orders"};
    plain.lock();
    CHECK(code_of([&] { f.orders.lock(); }) == errc::wrong_type);
    CHECK(code_of([&] { f.orders.lock_shared(); }) == errc::wrong_type);
    CHECK(text_of_error([&] { return f.orders.try_lock(); }).find("RLock") != std::string::npos);
    // Other clients get the error from the server.
    CHECK(text_of_error([&] { return f.orders_elsewhere.try_lock(); }).find("no read-write lock") != std::string::npos);
    CHECK(text_of_error([&] { f.orders_elsewhere.lock_shared(); }).find("no read-write lock") != std::string::npos);
    CHECK(elsewhere([&] { return code_of([&] { f.orders_elsewhere.lock_shared(); }); }) == errc::wrong_type);
    CHECK(f.redis.hgetall("orders") == Fields{{owner_of(f.client, plain), "1"}});
    plain.unlock();
    RLock plain_elsewhere{f.elsewhere_client, "orders"};
    for (const bool write : {false, true}) {
        write ? f.orders.lock() : f.orders.lock_shared();
        CHECK(code_of([&] { return plain.try_lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { plain.force_unlock(); }) == errc::wrong_type);
        CHECK(text_of_error([&] { plain.lock(); }).find("ReadWriteLock") != std::string::npos);
        CHECK(code_of([&] { return plain_elsewhere.try_lock(); }) == errc::wrong_type);
        CHECK(text_of_error([&] { plain_elsewhere.lock(); }).find("read-write lock") != std::string::npos);
        write ? f.orders.unlock() : f.orders.unlock_shared();
    }
    f.redis.text("SET", "orders", "a text");
    CHECK(code_of([&] { f.orders.lock(); }) == errc::wrong_type);
    CHECK(code_of([&] { f.orders.lock_shared(); }) == errc::wrong_type);
    CHECK(code_of([&] { f.orders.is_locked(); }) == errc::wrong_type);
    CHECK(code_of([&] { f.orders.read_lock().is_locked(); }) == errc::wrong_type);
    CHECK(f.redis.text("GET", "orders") == "a text");
}

// --- leases --------------------------------------------------------------------------------------------------------

TEST_CASE("the watchdog keeps read and write holds, and shortens no other reader's lease") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    ReadWriteLock orders{client, "orders"};
    ReadWriteLock stock{client, "stock"};
    stock.lock();
    orders.lock_shared();
    orders.lock_shared();
    elsewhere([&] { orders.lock_shared(Lease{600s}); });
    const std::uint64_t renewals = client.stats().renewals;
    REQUIRE(eventually([&] { return client.stats().renewals >= renewals + 8; }, 20s));
    CHECK(client.stats().lost_holds == 0);
    CHECK(redis.pttl("orders") > 500'000);
    CHECK(redis.pttl(timeout_key(owner_of(client, orders.read_lock()), 1)) > 0);
    CHECK(redis.pttl(timeout_key(owner_of(client, orders.read_lock()), 2)) > 0);
    CHECK(orders.read_lock().is_held());
    CHECK(stock.is_held());
    // Renewed early enough, so nothing was about to end.
    CHECK(orders.read_lock().valid_until() > redlatch::Clock::now());
    orders.unlock_shared();
    orders.unlock_shared();
    stock.unlock();
    orders.read_lock().force_unlock();
    CHECK(redis.keys().empty());
}

TEST_CASE("a renewal never restores a read hold that has ended") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    auto options = with_watchdog(short_lease);
    options.on_event = log.handler();
    Client client{server.url(), options};
    ReadWriteLock orders{client, "orders"};
    orders.lock_shared();
    const std::stop_token lost = orders.read_lock().lost();
    elsewhere([&] { orders.lock_shared(Lease{600s}); });
    const std::string timeout = timeout_key(owner_of(client, orders.read_lock()));
    REQUIRE(redis.integer("DEL", timeout) == 1);
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK_FALSE(redis.exists(timeout));
    CHECK_FALSE(orders.read_lock().is_held());
    std::error_code ec;
    orders.unlock_shared(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(eventually([&] { return log.count(redlatch::Event::Kind::hold_lost) == 1; }));
    orders.read_lock().force_unlock();
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a killed reader excludes writers until its lease is over, and no longer") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    ReadWriteLock orders{client, "orders"};
    auto child = spawn_self("read for ever", {server.url()});
    REQUIRE(eventually([&] { return redis.exists("orders"); }, 20s));
    auto writer = start_waiting(client, [&] { return orders.try_lock_for(60s); });
    REQUIRE(is_listened_to(redis));
    CHECK_FALSE(ready(writer, short_lease + short_lease / 3));
    child.kill();
    CHECK(ready(writer, short_lease + woken));
    CHECK(writer.get());
    CHECK(redis.hgetall("orders").size() == 2);
    orders.force_unlock();
}
#endif

TEST_CASE("fault: reader killed among others: it blocks no writer once the others have left") {
    Fixture f;
    elsewhere([&] { f.orders_elsewhere.lock_shared(Lease{50ms}); });
    f.orders.lock_shared();
    const std::string dead = [&] {
        for (const auto& [field, count] : f.redis.hgetall("orders"))
            if (field != "mode" && field != f.reader()) return field;
        return std::string{};
    }();
    REQUIRE(eventually([&] { return !f.redis.exists(timeout_key(dead)); }));
    CHECK(f.orders.read_lock().remaining_lease().value() > 20s);
    // Another client may have left it like this.
    f.redis.integer("PEXPIRE", "orders", 600'000);
    auto writer = start_waiting(f.elsewhere_client, [&] { return f.orders_elsewhere.try_lock_for(20s); });
    REQUIRE(is_listened_to(f.redis));
    f.orders.unlock_shared();
    CHECK(ready(writer, woken));
    CHECK(writer.get());
    f.orders.force_unlock();
    CHECK(f.redis.keys().empty());
}

TEST_CASE("a write hold with an expired lease lets readers in, while its owner still reads") {
    Fixture f;
    f.orders.lock(Lease{60ms});
    f.orders.lock_shared();
    CHECK(f.orders_elsewhere.try_lock_shared_for(20s));  // although the lease of the read hold is longer
    CHECK(f.orders.read_lock().is_held());
    std::error_code ec;
    f.orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    f.orders.unlock_shared();
    f.orders_elsewhere.unlock_shared();
    CHECK(f.redis.keys().empty());
}

// --- a waiting writer ----------------------------------------------------------------------------------------------

TEST_CASE("with writer preference a stream of readers does not starve a writer") {
    Fixture f;
    ReadWriteLock preferred{f.elsewhere_client, "orders", {.writer_preference = true}};
    std::atomic<bool> over = false;
    std::atomic<int> reads = 0;
    std::vector<std::future<void>> readers;
    // They always overlap: each leaves only after another one came.
    for (int i = 0; i < 4; ++i)
        readers.push_back(start([&] {
            while (!over) {
                const std::shared_lock reading{f.orders};
                const int mine = ++reads;
                eventually([&] { return reads > mine || over; }, 300ms);
            }
        }));
    REQUIRE(eventually([&] { return reads > 20; }, 20s));
    for (int round = 0; round < 3; ++round) {
        const bool held = preferred.try_lock_for(patient(10s));
        CHECK(held);
        if (!held) break;
        const int before = reads;
        preferred.unlock();
        // The readers get their turn, too.
        CHECK(eventually([&] { return reads > before; }, 20s));
    }
    over = true;
    for (auto& one : readers) one.get();
    // The counts of grants outlive the queue for a moment.
    CHECK(eventually([&] { return f.redis.keys().empty(); }));
}

TEST_CASE("a waiting writer excludes new readers, not present ones, and none once it has given up") {
    Fixture f;
    ReadWriteLock preferred{f.elsewhere_client, "orders", {.writer_preference = true}};
    f.orders.lock_shared();
    std::stop_source stop;
    auto writer = start_waiting(f.elsewhere_client, [&] { return preferred.lock(stop.get_token()); });
    REQUIRE(eventually([&] { return f.redis.exists(mark); }, 20s));
    CHECK(f.redis.pttl(mark) <= 5000);
    // A present reader may read again.
    CHECK(f.orders.try_lock_shared());
    f.orders.unlock_shared();
    CHECK_FALSE(elsewhere([&] { return f.orders.try_lock_shared(); }));
    // Much earlier than the mark would expire, which takes 2.5 seconds at least. The best of some rounds.
    std::chrono::milliseconds best = 1h;
    for (int round = 0; round < 5 && best >= 2s; ++round) {
        if (round > 0) {
            stop = std::stop_source{};
            writer = start_waiting(f.elsewhere_client, [&] { return preferred.lock(stop.get_token()); });
            REQUIRE(eventually([&] { return f.redis.exists(mark); }, 20s));
        }
        auto newcomer = start_waiting(f.client, [&] {
            const bool held = f.orders.try_lock_shared_for(20s);
            if (held) f.orders.unlock_shared();
            return held;
        });
        CHECK_FALSE(ready(newcomer, 30ms));
        const Stopwatch watch;
        stop.request_stop();
        CHECK_FALSE(writer.get());
        CHECK(newcomer.get());
        best = std::min(best, watch.elapsed_ms());
        CHECK_FALSE(f.redis.exists(mark));
    }
    CHECK(best < 2s);
    f.orders.unlock_shared();
    // The counts of grants outlive the queue for a moment.
    CHECK(eventually([&] { return f.redis.keys().empty(); }));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE(
    "a writer with preference is asked to retry in time to renew its mark, and only its own withdrawal removes it") {
    namespace scripts = redlatch::detail::scripts;
    using redlatch::detail::digested;
    Fixture f;
    f.orders.lock_shared(Lease{600s});
    const auto ask = [&](const char* who, const char* mark_ttl) {
        return f.redis.integer("EVAL", scripts::write_acquire.join(), 2, "orders", mark, std::string{who} + ":1:write",
                               1, 30'000, "{orders}", who, mark_ttl, always);
    };
    CHECK(ask("one", "5000") == 2500);
    CHECK(f.redis.text("GET", mark) == "one");
    CHECK(ask("two", "5000") == 2500);
    CHECK(f.redis.text("GET", mark) == "two");
    const auto withdraw = [&](const char* who) {
        return f.redis.integer("EVAL", scripts::write_withdraw.join(), 2, mark, channel, who, "PUBLISH");
    };
    CHECK(withdraw("one") == 0);
    CHECK(f.redis.exists(mark));
    CHECK(withdraw("two") == 1);
    CHECK_FALSE(f.redis.exists(mark));
    CHECK(is_fresh(ask("one", "0"), 600s));
    CHECK_FALSE(f.redis.exists(mark));
    f.orders.unlock_shared();
}

TEST_CASE("a waiting writer sends nothing until it is notified") {
    Fixture f;
    f.orders.lock_shared();
    CommandMonitor monitor{f.server};
    auto writer = start_waiting(f.elsewhere_client, [&] { return f.orders_elsewhere.try_lock_for(20s); });
    // It has asked, subscribed, and asked once more.
    REQUIRE(monitor.take_until({{"subscribe", 1}, {"evalsha", 2}}, 20s));
    CHECK_FALSE(ready(writer, 300ms));
    CHECK(monitor.take_total() == 0);
    f.orders.unlock_shared();
    CHECK(writer.get());
    f.orders.force_unlock();
}
#endif

// --- lost replies, and no memory -----------------------------------------------------------------------------------

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("fault: reply to a read-write lock lost: each command takes effect once") {
    namespace scripts = redlatch::detail::scripts;
    using redlatch::detail::digested;
    RedisServer server;
    RawRedis redis{server};
    for (const redlatch::detail::Script* script :
         {&digested<scripts::read_acquire>, &digested<scripts::read_release>, &digested<scripts::write_acquire>,
          &digested<scripts::write_release>})
        redis.text("SCRIPT", "LOAD", script->text());
    Proxy proxy{server.url()};
    Messages messages{server, channel};
    redlatch::ClientOptions options;
    options.command_timeout = 20s;  // long enough that a cut connection costs none of it
    Client client{proxy.url(), options};
    ReadWriteLock orders{client, "orders"};
    const auto lose_reply_of = [&](const redlatch::detail::Script& script) {
        proxy.drop_next_replies(1, std::string{script.digest()});
    };
    std::error_code ec;

    lose_reply_of(digested<scripts::read_acquire>);
    orders.lock_shared();
    const std::string owner = owner_of(client, orders.read_lock());
    CHECK(redis.hgetall("orders") == Fields{{"mode", "read"}, {owner, "1"}});
    lose_reply_of(digested<scripts::read_acquire>);
    orders.lock_shared();
    CHECK(redis.hgetall("orders") == Fields{{"mode", "read"}, {owner, "2"}});
    CHECK(sorted(redis.keys()) == sorted({"orders", timeout_key(owner, 1), timeout_key(owner, 2)}));
    lose_reply_of(digested<scripts::read_release>);
    orders.unlock_shared(ec);
    CHECK_FALSE(ec);
    CHECK(redis.hgetall("orders") == Fields{{"mode", "read"}, {owner, "1"}});
    CHECK(sorted(redis.keys()) == sorted({"orders", timeout_key(owner, 1)}));
    lose_reply_of(digested<scripts::read_release>);
    orders.unlock_shared(ec);
    CHECK_FALSE(ec);
    CHECK_FALSE(redis.exists("orders"));
    CHECK_FALSE(redis.exists(timeout_key(owner)));
    CHECK(messages.take() == Words{"0"});

    lose_reply_of(digested<scripts::write_acquire>);
    orders.lock();
    const std::string writer = owner_of(client, orders.write_lock()) + ":write";
    CHECK(redis.hgetall("orders") == Fields{{"mode", "write"}, {writer, "1"}});
    lose_reply_of(digested<scripts::write_acquire>);
    orders.lock();
    CHECK(redis.hgetall("orders") == Fields{{"mode", "write"}, {writer, "2"}});
    lose_reply_of(digested<scripts::write_release>);
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(redis.hgetall("orders") == Fields{{"mode", "write"}, {writer, "1"}});
    // The downgrade, too.
    orders.lock_shared();
    lose_reply_of(digested<scripts::write_release>);
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(redis.hgetall("orders") == Fields{{"mode", "read"}, {owner_of(client, orders.read_lock()), "1"}});
    orders.unlock_shared();
    CHECK(proxy.counts().dropped == 8);
    CHECK(client.stats().lost_holds == 0);
    // The last releases, when no late copy of an acquire can take effect any more, find nothing.
    CHECK(redis.keys().empty());
    CHECK(messages.take() == Words{"1", "0"});
}

TEST_CASE("a delayed copy of a read-write lock's release does not affect a later hold of the same thread") {
    namespace scripts = redlatch::detail::scripts;
    using redlatch::detail::digested;
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    redlatch::ClientOptions options;
    options.command_timeout = patient(100ms);
    for (const bool write : {false, true}) {
        CAPTURE(write);
        Client client{proxy.url(), options};
        ReadWriteLock orders{client, "orders"};
        const auto take = [&] { write ? orders.lock() : orders.lock_shared(); };
        const auto give = [&](std::error_code& ec) { write ? orders.unlock(ec) : orders.unlock_shared(ec); };
        std::error_code ec;
        take();
        give(ec);
        take();
        const redlatch::detail::Script& script =
            write ? digested<scripts::write_release> : digested<scripts::read_release>;
        proxy.hold_next_requests(1, std::string{script.digest()});
        give(ec);
        // The command that was held back is resent, and done.
        take();
        // A reader may enter while the release of its former hold still continues in the background.
        REQUIRE(eventually([&] { return redis.hgetall("orders").size() == 2; }));
        const Fields held = redis.hgetall("orders");
        proxy.release();
        // The copy has arrived when the next command on its connection is answered. No reply shows that, so wait a
        // while.
        CHECK_FALSE(eventually([&] { return redis.hgetall("orders") != held; }, 100ms));
        give(ec);
        CHECK(ec != errc::hold_lost);  // on a busy machine it may be too late
        CHECK(eventually([&] { return !redis.exists("orders"); }));
    }
}

TEST_CASE("without memory acquires are refused, but renewals and releases still work") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    auto options = with_watchdog(short_lease);
    options.on_event = log.handler();
    Client client{server.url(), options};
    ReadWriteLock orders{client, "orders"};
    ReadWriteLock stock{client, "stock"};
    orders.lock_shared();
    orders.lock_shared();
    stock.lock();
    stock.lock();
    stock.lock_shared();
    redis.text("CONFIG", "SET", "maxmemory-policy", "noeviction");
    redis.text("SET", "ballast", std::string(1 << 20, 'x'));
    redis.text("CONFIG", "SET", "maxmemory", 1 << 20);
    REQUIRE(redis.call("SET", "more", "x").string.starts_with("OOM"));

    ReadWriteLock fresh{client, "fresh", {}, {.unreachable_timeout = 500ms}};
    // The last try may have no time left for a reply.
    CHECK(eventually([&] { return code_of([&] { return fresh.try_lock(); }) == errc::overloaded; }));
    CHECK(eventually([&] { return code_of([&] { return fresh.try_lock_shared(); }) == errc::overloaded; }));
    const std::uint64_t renewals = client.stats().renewals;
    CHECK(eventually([&] { return client.stats().renewals >= renewals + 6; }, 20s));
    CHECK(log.count(redlatch::Event::Kind::hold_lost) == 0);
    std::error_code ec;
    for (int i = 0; i < 2; ++i) {
        orders.unlock_shared(ec);
        CHECK_FALSE(ec);
        stock.unlock(ec);
        CHECK_FALSE(ec);
    }
    CHECK(redis.hgetall("stock") == Fields{{"mode", "read"}, {owner_of(client, stock.read_lock()), "1"}});
    stock.unlock_shared(ec);
    CHECK_FALSE(ec);
    CHECK(redis.keys() == Words{"ballast"});
}
#endif
