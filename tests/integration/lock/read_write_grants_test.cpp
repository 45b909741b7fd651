// SPDX-License-Identifier: MIT
// A release of a read-write lock that grants it to the next in the server's queue: to a writer, or to readers together.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"
#include "support/proxy.hpp"
#include "support/without_grants.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::Lease;
using redlatch::ReadWriteLock;
using redlatch::ReadWriteOptions;

namespace {

const std::string lock_key = "orders";
const std::string channel = "redisson_rwlock:{orders}";
const std::string queue_key = "redlatch_rwlock_queue:{orders}";
const std::string places_key = "redlatch_rwlock_places:{orders}";
const std::string mark = "{orders}:redlatch_writer_waits";
const std::string java_owner = "b983c153-7421-469a-addb-44fb92259a1b:42";

enum class As { reader, writer };

bool is_left_empty(RawRedis& redis) {
    return eventually([&] { return redis.keys().empty(); }, 20s);
}

/// A client with a lock.
struct Party {
    explicit Party(const RedisServer& server, ReadWriteOptions of = {}, ClientOptions options = {})
        : Party(server.url(), of, std::move(options)) {}
    explicit Party(const std::string& url, ReadWriteOptions of = {}, ClientOptions options = {})
        : client(url, std::move(options)), lock(client, lock_key, of) {}

    std::string place(As side) { return side == As::writer ? client.id() + ":write" : client.id(); }

    /// Waits for one side in a new thread, and holds it until told to leave. Returns when its place is in the queue, and it
    /// has asked once more since it listens. The server must know the scripts.
    void queue_up(const RedisServer& server, As side) {
        CommandMonitor monitor{server};
        visit = start([this, side] {
            if (side == As::writer ? !lock.lock(stop.get_token()) : !lock.lock_shared(stop.get_token())) return;
            entered = true;
            eventually([this] { return may_leave.load(); }, 60s);
            side == As::writer ? lock.unlock() : lock.unlock_shared();
        });
        REQUIRE(monitor.take_until({{"subscribe", 1}, {"evalsha", 2}}, 20s));
        RawRedis redis{server};
        REQUIRE(redis.integer("HEXISTS", places_key, place(side)) == 1);
    }

    void leave() {
        may_leave = true;
        visit.get();
    }

    bool enters() {
        return eventually([this] { return entered.load(); }, 20s);
    }

    Client client;
    ReadWriteLock lock;
    std::stop_source stop;
    std::atomic<bool> entered = false;
    std::atomic<bool> may_leave = false;
    std::future<void> visit;
};

struct Fixture {
    Fixture() {
        // From here on the scripts are cached.
        std::lock_guard{a.lock};
        std::shared_lock{a.lock};
    }

    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server}, c{server}, d{server};
};

/// Holds the read side as a client of Redisson's does.
void read_as_java(RawRedis& redis) {
    redis.integer("HSET", lock_key, "mode", "read", java_owner, 1);
    redis.integer("PEXPIRE", lock_key, 60'000);
    redis.text("SET", "{orders}:" + java_owner + ":rwlock_timeout:1", 1, "PX", 60'000);
}

/// Releases it likewise, as the last reader.
void leave_as_java(RawRedis& redis) {
    redis.integer("DEL", "{orders}:" + java_owner + ":rwlock_timeout:1");
    redis.integer("DEL", lock_key);
    redis.integer("PUBLISH", channel, "0");
}

}  // namespace

TEST_CASE("a release grants the lock to the writer that queues, which sends nothing to enter") {
    for (const As held : {As::writer, As::reader}) {
        CAPTURE(held == As::writer);
        Fixture f;
        // On a busy machine the first renewal may come before the count is read.
        CHECK(succeeds_once([&] {
            Party a{f.server}, b{f.server};
            held == As::writer ? a.lock.lock() : a.lock.lock_shared();
            b.queue_up(f.server, As::writer);
            const auto commands = b.client.stats().commands;
            held == As::writer ? a.lock.unlock() : a.lock.unlock_shared();
            REQUIRE(b.enters());
            const bool sent_nothing = b.client.stats().commands == commands;
            CHECK(f.redis.text("HGET", lock_key, "mode") == "write");
            b.leave();
            CHECK(is_left_empty(f.redis));
            return sent_nothing;
        }));
    }
}

TEST_CASE("a release grants the lock to all readers before the next writer, then to the writer alone") {
    Fixture f;
    Party second{f.server}, e{f.server};
    f.a.lock.lock();
    f.b.queue_up(f.server, As::reader);
    f.c.queue_up(f.server, As::reader);
    f.d.queue_up(f.server, As::writer);
    // The first two of the queue ask at the end of the grants anyway.
    second.queue_up(f.server, As::writer);
    e.queue_up(f.server, As::reader);
    f.a.lock.unlock();
    REQUIRE(f.b.enters());
    REQUIRE(f.c.enters());
    CHECK(f.redis.hgetall(lock_key).size() == 3);
    CHECK(f.redis.list("LRANGE", queue_key, 0, -1) ==
          Words{f.d.place(As::writer), second.place(As::writer), e.place(As::reader)});
    f.b.leave();
    CHECK_FALSE(eventually([&] { return f.d.entered || second.entered || e.entered; }, 50ms));
    f.c.leave();
    REQUIRE(f.d.enters());
    CHECK_FALSE(second.entered);
    CHECK_FALSE(e.entered);
    f.d.leave();
    REQUIRE(second.enters());
    CHECK_FALSE(e.entered);
    second.leave();
    REQUIRE(e.enters());
    e.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a grant lasts for an offer at first, and its renewal gives each reader the full lease") {
    Fixture f;
    f.a.lock.lock();
    f.b.queue_up(f.server, As::reader);
    f.c.queue_up(f.server, As::reader);
    ScriptWrites writes{f.server};
    f.a.lock.unlock();
    REQUIRE(f.b.enters());
    REQUIRE(f.c.enters());
    const auto offered = writes.take();
    CHECK(std::ranges::count_if(offered, [](const Words& words) {
              return words.size() == 5 && words[0] == "set" && words[4] == "2000";
          }) == 2);
    CHECK(eventually(
        [&] {
            long long shortest = f.redis.pttl(lock_key);
            for (const std::string& key : f.redis.list("KEYS", "{orders}:*:rwlock_timeout:1"))
                shortest = std::min(shortest, f.redis.pttl(key));
            return shortest > 20'000;
        },
        20s));
    CHECK(f.b.client.stats().lost_holds + f.c.client.stats().lost_holds == 0);
    f.b.leave();
    f.c.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a reader that is granted a shorter lease does not shorten that of the lock") {
    Fixture f;
    f.a.lock.lock();
    f.b.queue_up(f.server, As::reader);
    CommandMonitor monitor{f.server};
    auto brief = start([&] {
        f.c.lock.lock_shared(Lease{1s});
        eventually([&] { return f.c.may_leave.load(); }, 60s);
        std::error_code ec;  // the lease may be over
        f.c.lock.unlock_shared(ec);
    });
    REQUIRE(monitor.take_until({{"subscribe", 1}, {"evalsha", 2}}, 20s));
    ScriptWrites writes{f.server};
    f.a.lock.unlock();
    REQUIRE(f.b.enters());
    const std::vector<Words> written = writes.take();
    CHECK(std::ranges::count(written, Words{"pexpire", lock_key, "2000"}) == 1);
    CHECK(std::ranges::count(written, Words{"pexpire", lock_key, "1000"}) == 0);
    f.c.may_leave = true;
    brief.get();
    f.b.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a writer that becomes a reader lets the readers at the head of the queue in") {
    Fixture f;
    f.a.lock.lock();
    f.a.lock.lock_shared();
    f.b.queue_up(f.server, As::reader);
    f.c.queue_up(f.server, As::writer);
    f.a.lock.unlock();
    REQUIRE(f.b.enters());
    CHECK_FALSE(f.c.entered);
    f.a.lock.unlock_shared();
    CHECK_FALSE(eventually([&] { return f.c.entered.load(); }, 50ms));
    f.b.leave();
    REQUIRE(f.c.enters());
    f.c.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a writer that reads, too, enters beside the queue: readers of its process keep their place") {
    Fixture f;
    std::atomic<bool> may_read = false, may_leave = false;
    const auto waits_as = [&](As side) {
        const std::string place = f.a.place(side);
        return eventually(
            [&] {
                return f.redis.integer("HEXISTS", places_key, place) == 1 &&
                       f.redis.subscribers(channel + ":" + place) == 1;
            },
            20s);
    };
    f.d.lock.lock();
    // Both sides of one client.
    auto writing = start([&] {
        f.a.lock.lock();
        eventually([&] { return may_read.load(); }, 60s);
        f.a.lock.lock_shared();
        f.a.entered = true;
        eventually([&] { return may_leave.load(); }, 60s);
        f.a.lock.unlock_shared();
        f.a.lock.unlock();
    });
    REQUIRE(waits_as(As::writer));
    auto reading = start([&] { std::shared_lock{f.a.lock}; });
    REQUIRE(waits_as(As::reader));
    f.c.queue_up(f.server, As::writer);
    f.d.lock.unlock();
    REQUIRE(eventually([&] { return f.redis.integer("LLEN", queue_key) == 2; }, 20s));
    may_read = true;
    CHECK(f.a.enters());
    CHECK(f.redis.text("LINDEX", queue_key, 0) == f.a.place(As::reader));
    may_leave = true;
    writing.get();
    reading.get();
    REQUIRE(f.c.enters());
    f.c.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a writer that gives up lets the readers behind it in, and leaves no place") {
    Fixture f;
    f.a.lock.lock();
    f.b.queue_up(f.server, As::writer);
    f.c.queue_up(f.server, As::reader);
    f.d.queue_up(f.server, As::reader);
    // The readers would wait for the end of this lease.
    f.a.lock.lock_shared();
    f.b.stop.request_stop();
    f.b.visit.get();
    CHECK(eventually([&] { return f.redis.integer("LLEN", queue_key) == 2; }, 20s));
    f.a.lock.unlock();
    REQUIRE(f.c.enters());
    REQUIRE(f.d.enters());
    f.a.lock.unlock_shared();
    f.c.leave();
    f.d.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a reader that waits behind a writer enters when that one gives up while others read") {
    Fixture f;
    // The first two of the queue ask at the end of a lease anyway.
    Party next{f.server}, last{f.server};
    f.a.lock.lock();
    f.b.queue_up(f.server, As::reader);
    f.c.queue_up(f.server, As::writer);
    next.queue_up(f.server, As::writer);
    f.d.queue_up(f.server, As::reader);
    last.queue_up(f.server, As::writer);
    f.a.lock.unlock();
    REQUIRE(f.b.enters());
    REQUIRE(eventually([&] { return f.redis.integer("PTTL", lock_key) > 20'000; }, 20s));
    CHECK_FALSE(f.d.entered);
    const Stopwatch watch;
    for (Party* writer : {&f.c, &next}) {
        writer->stop.request_stop();
        writer->visit.get();
    }
    REQUIRE(f.d.enters());
    CHECK(watch.within(5s));
    f.b.leave();
    f.d.leave();
    REQUIRE(last.enters());
    last.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a writer in the queue gets the lock after a reader of Redisson's that came later") {
    Fixture f;
    f.a.lock.lock_shared();
    f.b.queue_up(f.server, As::writer);
    read_as_java(f.redis);
    f.a.lock.unlock_shared();
    // It is told that somebody is left who will not grant it the lock, and listens to that one's release.
    REQUIRE(eventually([&] { return f.redis.subscribers(channel) == 1; }, 20s));
    CHECK_FALSE(f.b.entered);
    leave_as_java(f.redis);
    REQUIRE(f.b.enters());
    f.b.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("readers that wait for the mark of a writer enter when it is withdrawn") {
    Fixture f;
    Party preferring{f.server, {.writer_preference = true}};
    f.a.lock.lock_shared();
    preferring.queue_up(f.server, As::writer);
    REQUIRE(f.redis.exists(mark));
    f.b.queue_up(f.server, As::reader);
    f.c.queue_up(f.server, As::reader);
    // They listen to what is told to all, as the withdrawal is.
    CHECK(eventually([&] { return f.redis.subscribers(channel) >= 2; }, 20s));
    preferring.stop.request_stop();
    preferring.visit.get();
    REQUIRE(f.b.enters());
    REQUIRE(f.c.enters());
    f.b.leave();
    f.c.leave();
    f.a.lock.unlock_shared();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a writer with precedence that is granted the lock deletes its mark") {
    Fixture f;
    Party preferring{f.server, {.writer_preference = true}};
    f.a.lock.lock_shared();
    preferring.queue_up(f.server, As::writer);
    f.b.queue_up(f.server, As::reader);
    f.a.lock.unlock_shared();
    REQUIRE(preferring.enters());
    CHECK_FALSE(f.redis.exists(mark));
    preferring.leave();
    REQUIRE(f.b.enters());
    f.b.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("the release of a client that grants nothing wakes those who queue") {
    Fixture f;
    Party plain{f.server, {}, without_grants()};
    plain.lock.lock();
    f.b.queue_up(f.server, As::writer);
    f.c.queue_up(f.server, As::reader);
    plain.lock.unlock();
    f.b.may_leave = f.c.may_leave = true;
    f.b.visit.get();
    f.c.visit.get();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a client of Redisson's that listens gets its turn beside those that queue") {
    Fixture f;
    Messages java{f.server, channel};
    std::atomic<bool> over = false;
    std::atomic<int> turns = 0;
    std::vector<std::future<void>> crowd;
    for (Party* party : {&f.a, &f.b, &f.c})
        crowd.push_back(start([&, party] {
            while (!over) {
                const std::lock_guard guard{party->lock};
                ++turns;
            }
        }));
    REQUIRE(eventually([&] { return turns > 200; }, 30s));
    over = true;
    for (auto& one : crowd) one.get();
    const Words heard = java.take();
    // At least one of 17 releases is told to all.
    const auto told = std::ranges::count(heard, "1");
    CHECK(told >= turns / 20);
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("an acquisition of a contended writer and its release are two commands, and readers send little more") {
    Fixture f;
    PlainCounter counter;
    constexpr int rounds = 100;
    std::uint64_t before = 0, after = 0;
    for (Party* party : {&f.a, &f.b, &f.c, &f.d}) before += party->client.stats().commands;
    std::vector<std::future<void>> all;
    for (Party* party : {&f.a, &f.b, &f.c, &f.d})
        all.push_back(start([&, party] {
            for (int i = 0; i < rounds; ++i) {
                const std::lock_guard guard{party->lock};
                counter.add_one_unseen();
            }
        }));
    for (auto& one : all) one.get();
    for (Party* party : {&f.a, &f.b, &f.c, &f.d}) after += party->client.stats().commands;
    CHECK(counter.value() == 4 * rounds);
    CHECK(static_cast<double>(after - before) / (4 * rounds) <= 2.3);
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("many readers and writers of several clients: writers exclude all, and all get their turns") {
    Fixture f;
    PlainCounter counter;
    std::atomic<bool> torn = false;
    constexpr int rounds = 40;
    std::vector<std::future<void>> all;
    for (Party* party : {&f.a, &f.b, &f.c, &f.d})
        for (int thread = 0; thread < 4; ++thread)
            all.push_back(start([&, party, thread] {
                for (int i = 0; i < rounds; ++i) {
                    if (thread % 2 == 0) {
                        const std::lock_guard guard{party->lock};
                        counter.add_one_unseen();
                    } else {
                        const std::shared_lock guard{party->lock};
                        const auto seen = counter.value();
                        std::this_thread::yield();
                        if (counter.value() != seen) torn = true;
                    }
                }
            }));
    for (auto& one : all) one.get();
    CHECK(counter.value() == 8 * rounds);
    CHECK_FALSE(torn);
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("waiting for a grant of a read-write lock sends nothing") {
    Fixture f;
    f.a.lock.lock();
    f.b.queue_up(f.server, As::reader);
    f.c.queue_up(f.server, As::writer);
    CommandMonitor monitor{f.server};
    std::this_thread::sleep_for(1500ms);
    CHECK(monitor.take_total() == 0);
    f.a.lock.unlock();
    f.b.may_leave = f.c.may_leave = true;
    f.b.visit.get();
    f.c.visit.get();
}

/// Returns the URL of a user who has no right to the keys of the queue.
std::string url_without_the_queue(Fixture& f) {
    f.redis.text("ACL", "SETUSER", "plain", "on", ">secret", "~orders", "~{orders}:*", "~redisson_rwlock:*", "&*",
                 "+@all");
    return f.server.url_of("plain");
}

TEST_CASE("without the rights to the queue's keys readers and writers wait as ever") {
    Fixture f;
    const std::string url = url_without_the_queue(f);
    Party limited{url}, other{url};
    limited.lock.lock();
    limited.lock.unlock();
    f.a.lock.lock();
    auto reads = start_waiting(limited.client, [&] { return std::shared_lock{limited.lock}.owns_lock(); });
    auto writes = start_waiting(other.client, [&] { return std::unique_lock{other.lock}.owns_lock(); });
    f.a.lock.unlock();
    CHECK(ready(reads));
    CHECK(ready(writes));
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a client without the rights to the queue's keys wakes readers and writers who queue") {
    Fixture f;
    Party limited{url_without_the_queue(f)};
    limited.lock.lock();
    limited.lock.unlock();  // now it knows of its rights
    for (const bool reads : {false, true}) {
        CAPTURE(reads);
        reads ? limited.lock.lock_shared() : limited.lock.lock();
        auto writer = start_waiting(f.a.client, [&] { return std::unique_lock{f.a.lock}.owns_lock(); });
        std::future<bool> reader;
        if (!reads) reader = start_waiting(f.b.client, [&] { return std::shared_lock{f.b.lock}.owns_lock(); });
        reads ? limited.lock.unlock_shared() : limited.lock.unlock();
        CHECK(ready(writer));
        if (!reads) CHECK(ready(reader));
    }
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a writer from before the rights to the queue's keys were missing is followed by who queues") {
    Fixture f;
    const std::string url = url_without_the_queue(f);
    f.redis.text("ACL", "SETUSER", "plain", "~*");
    Party limited{url};
    ReadWriteLock other{limited.client, "other"};
    limited.lock.lock();
    auto writer = start_waiting(f.a.client, [&] { return std::unique_lock{f.a.lock}.owns_lock(); });
    f.redis.text("ACL", "SETUSER", "plain", "resetkeys", "~orders", "~{orders}:*", "~redisson_rwlock:*", "~other",
                 "~{other}:*");
    other.lock();
    other.unlock();  // now the client knows of its rights
    f.redis.text("ACL", "SETUSER", "plain", "~*");
    limited.lock.unlock();
    CHECK(ready(writer));
}

TEST_CASE("readers of one process ask at the same time") {
    RedisServer server;
    Proxy proxy{server.url()};
    ClientOptions options;
    options.command_timeout = 60s;
    Client client{proxy.url(), options};
    ReadWriteLock lock{client, lock_key};
    std::shared_lock{lock};
    proxy.hold_next_replies(1, std::string(digested<scripts::read_acquire>.digest()));
    auto first = start([&] { return std::shared_lock{lock}.owns_lock(); });
    REQUIRE(eventually([&] { return proxy.counts().held == 1; }, 20s));
    auto second = start([&] { return std::shared_lock{lock}.owns_lock(); });
    CHECK(ready(second));
    CHECK_FALSE(ready(first, 0ms));
    proxy.release();
    CHECK(first.get());
    CHECK(second.get());
}

TEST_CASE("a writer that becomes a reader lets all readers in, also those behind a writer") {
    Fixture f;
    f.a.lock.lock();
    f.a.lock.lock_shared();
    f.b.queue_up(f.server, As::writer);
    f.c.queue_up(f.server, As::reader);
    f.d.queue_up(f.server, As::reader);
    f.a.lock.unlock();
    REQUIRE(f.c.enters());
    REQUIRE(f.d.enters());
    CHECK_FALSE(f.b.entered);
    f.a.lock.unlock_shared();
    f.c.leave();
    f.d.leave();
    REQUIRE(f.b.enters());
    f.b.leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE(
    "a writer with precedence that does not queue, and has come and gone, does not keep the lock from the queue") {
    CHECK(succeeds_once([] {  // a busy machine may be late
        Fixture f;
        f.a.lock.lock_shared();
        Client old{f.server.url(), without_grants()};
        ReadWriteLock theirs{old, lock_key, {.writer_preference = true}};
        auto visit = start([&] {
            theirs.lock();
            theirs.unlock();
        });
        REQUIRE(eventually([&] { return f.redis.exists(mark); }, 20s));
        f.b.queue_up(f.server, As::writer);
        CommandMonitor monitor{f.server};
        falls_silent(monitor);  // until then it listens to the other writer's release
        const bool mark_lasts = f.redis.pttl(mark) > 3000;
        const Stopwatch watch;
        f.a.lock.unlock_shared();
        CHECK(f.b.enters());
        const bool in_time = watch.within(1500ms);
        f.b.leave();
        visit.get();
        return mark_lasts && in_time;
    }));
}

TEST_CASE("a writer with precedence marks the lock as soon as readers have it") {
    SUBCASE("because they were before it in the queue") {
        Fixture f;
        Party preferring{f.server, {.writer_preference = true}};
        f.a.lock.lock();
        f.b.queue_up(f.server, As::reader);
        // The first two of the queue ask at the end of the grant anyway.
        f.c.queue_up(f.server, As::writer);
        f.d.queue_up(f.server, As::writer);
        preferring.queue_up(f.server, As::writer);
        const Stopwatch watch;
        f.a.lock.unlock();
        REQUIRE(f.b.enters());
        CHECK(eventually([&] { return f.redis.exists(mark); }, 20s));
        CHECK(watch.within(5s));
        f.b.leave();
        for (Party* writer : {&preferring, &f.c, &f.d}) {
            REQUIRE(writer->enters());
            writer->leave();
        }
        CHECK(is_left_empty(f.redis));
    }
    SUBCASE("because a writer became a reader") {
        Fixture f;
        Party preferring{f.server, {.writer_preference = true}};
        f.a.lock.lock();
        f.a.lock.lock_shared();
        preferring.queue_up(f.server, As::writer);
        f.a.lock.unlock();
        CHECK(eventually([&] { return f.redis.exists(mark); }, 20s));
        CHECK_FALSE(f.b.lock.try_lock_shared());
        f.a.lock.unlock_shared();
        REQUIRE(preferring.enters());
        preferring.leave();
        CHECK(is_left_empty(f.redis));
    }
}

TEST_CASE("a writer with precedence that does not queue comes before the readers that do") {
    Fixture f;
    Party plain{f.server, {.writer_preference = true}, without_grants()};
    f.a.lock.lock_shared();
    auto writes = start_waiting(plain.client, [&] { return std::unique_lock{plain.lock}.owns_lock(); });
    REQUIRE(eventually([&] { return f.redis.exists(mark); }, 20s));
    f.b.queue_up(f.server, As::reader);
    ScriptWrites seen{f.server};
    f.a.lock.unlock_shared();
    CHECK(ready(writes));
    REQUIRE(f.b.enters());
    f.b.leave();
    Words modes;
    for (const Words& words : seen.take())
        if (words[0] == "hset" && words.at(1) == lock_key && words.at(2) == "mode") modes.push_back(words.at(3));
    CHECK(modes == Words{"write", "read"});
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("a writer that is gone does not part the readers before it from those behind it") {
    Fixture f;
    Party e{f.server};
    auto gone = std::make_unique<Party>(f.server);
    f.a.lock.lock();
    f.b.queue_up(f.server, As::reader);
    gone->queue_up(f.server, As::writer);
    f.c.queue_up(f.server, As::reader);
    f.d.queue_up(f.server, As::reader);
    e.queue_up(f.server, As::reader);
    // Its place stays for a minute.
    REQUIRE(f.redis.integer("HSET", places_key, gone->place(As::writer), "7 30000 9000000000000 9000000000000 w") == 0);
    gone->stop.request_stop();
    gone->visit.get();
    REQUIRE(eventually([&] { return f.redis.integer("HEXISTS", places_key, gone->place(As::writer)) == 1; }));
    const std::string id = gone->place(As::writer);
    gone.reset();
    REQUIRE(eventually([&] { return f.redis.lock_listeners(channel + ":" + id) == 0; }, 20s));
    f.a.lock.unlock();
    for (Party* party : {&f.b, &f.c, &f.d, &e}) REQUIRE(party->enters());
    for (Party* party : {&f.b, &f.c, &f.d, &e}) party->leave();
    CHECK(eventually([&] { return !f.redis.exists(lock_key); }));
}

TEST_CASE("a turn of others that began before the clock stepped back keeps nobody out") {
    Fixture f;
    const auto begin = [&] { f.redis.integer("HSET", places_key, "turn", f.redis.now() + 60'000); };
    begin();
    CHECK(f.a.lock.try_lock());
    f.a.lock.unlock();
    begin();
    CHECK(f.a.lock.try_lock_shared());
    f.a.lock.unlock_shared();
}

TEST_CASE("more readers than one script grants the lock to enter all the same") {
    Fixture f;
    f.a.lock.lock();
    std::vector<std::unique_ptr<Party>> readers;
    for (int i = 0; i < 35; ++i) {
        readers.push_back(std::make_unique<Party>(f.server));
        readers.back()->queue_up(f.server, As::reader);
    }
    f.a.lock.unlock();
    for (auto& reader : readers) CHECK(reader->enters());
    for (auto& reader : readers) reader->leave();
    CHECK(is_left_empty(f.redis));
}

TEST_CASE("without a right to one of the commands of the queue those who wait are told all the same") {
    for (const std::string right : {"lindex", "lrange", "pubsub"}) {
        CAPTURE(right);
        Fixture f;
        f.redis.text("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all");
        const std::string url = f.server.url_of("limited");
        Party limited{url};
        limited.lock.lock();
        f.b.queue_up(f.server, As::reader);
        f.c.queue_up(f.server, As::reader);
        f.d.queue_up(f.server, As::reader);
        f.redis.text("ACL", "SETUSER", "limited", "-" + right);
        limited.lock.unlock();
        for (Party* party : {&f.b, &f.c, &f.d}) REQUIRE(party->enters());
        for (Party* party : {&f.b, &f.c, &f.d}) party->leave();
        CHECK(is_left_empty(f.redis));
    }
}
