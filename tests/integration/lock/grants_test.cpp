// SPDX-License-Identifier: MIT
// A release that grants the lock to the next process in the server's queue.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <regex>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/grants.hpp"
#include "support/plain_counter.hpp"
#include "support/proxy.hpp"
#include "support/without_grants.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::FairLock;
using redlatch::FencedLock;
using redlatch::Lease;
using redlatch::MultiLock;
using redlatch::ReadWriteLock;
using redlatch::RLock;
using redlatch::SpinLock;

namespace {

const std::string lock_key = "orders";
const std::string queue_key = "redlatch_lock_queue:{orders}";
const std::string places_key = "redlatch_lock_places:{orders}";

/// Waits until a client that waits has asked once more since it listens. `monitor`: from before it began to wait.
bool has_asked_again(CommandMonitor& monitor) { return monitor.take_until({{"subscribe", 1}, {"evalsha", 2}}, 20s); }

/// A client with a lock.
struct Party {
    explicit Party(const RedisServer& server, ClientOptions options = {})
        : url(server.url()), client(url, std::move(options)), lock(client, lock_key) {}

    /// Waits for the lock in a new thread, and holds it until told to leave. Returns when the place is in the queue,
    /// and the client has asked once more since it listens.
    void queue_up(RawRedis& redis) {
        CommandMonitor monitor{url};
        const long long before = redis.integer("LLEN", queue_key);
        visit = start([this] {
            lock.lock();
            entered = true;
            eventually([this] { return may_leave.load(); }, 60s);
            lock.unlock();
        });
        REQUIRE(eventually([&] { return redis.integer("LLEN", queue_key) == before + 1; }, 20s));
        REQUIRE(eventually([&] { return redis.lock_listeners(channel_of(lock_key) + ":" + client.id()) == 1; }, 20s));
        REQUIRE(has_asked_again(monitor));
    }

    std::string url;
    Client client;
    RLock lock;
    std::atomic<bool> entered = false;
    std::atomic<bool> may_leave = false;
    std::future<void> visit;
};

/// Waits until the client has a place in the queue, and listens.
bool has_place(RawRedis& redis, const Client& client) { return can_be_granted<RLock>(redis, client, lock_key); }

/// Returns the script with which a waiter of this lock asks.
template <class L>
const redlatch::detail::Script& acquire_of() {
    if constexpr (std::is_same_v<L, FairLock>)
        return digested<scripts::fair_acquire>;
    else if constexpr (std::is_same_v<L, FencedLock>)
        return digested<scripts::fenced_queue_acquire>;
    else
        return digested<scripts::queue_acquire>;
}

/// Returns how many clients listen to the messages for all who wait for the lock.
long long listeners(RawRedis& redis) { return redis.subscribers(channel_of(lock_key)); }

bool is_left_empty(RawRedis& redis) {
    return eventually([&] { return redis.keys().empty(); }, 20s);
}

}  // namespace

TEST_CASE("a release grants the lock to the client that queues, which sends nothing to enter") {
    RedisServer server;
    RawRedis redis{server};
    // On a busy machine the first renewal may come before the count is read.
    CHECK(succeeds_once([&] {
        Party a{server}, b{server};
        a.lock.lock();
        b.queue_up(redis);
        const auto commands = b.client.stats().commands;
        a.lock.unlock();
        REQUIRE(eventually([&] { return b.entered.load(); }, 20s));
        const bool sent_nothing = b.client.stats().commands == commands;
        CHECK(redis.list("HKEYS", lock_key).at(0).starts_with(b.client.id()));
        b.may_leave = true;
        b.visit.get();
        CHECK(is_left_empty(redis));
        return sent_nothing;
    }));
}

TEST_CASE("after a lost connection, which may lead to another server now, the next grant is confirmed") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    REQUIRE(redis.kill_clients("pubsub") == 1);
    REQUIRE(has_place(redis, b.client));
    const auto commands = commands_when_quiet(b.client);
    a.lock.unlock();
    REQUIRE(eventually([&] { return b.entered.load(); }, 20s));
    CHECK(b.client.stats().commands > commands);
    b.may_leave = true;
    b.visit.get();
}

TEST_CASE("clients are granted the lock in the order in which they queued up") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server}, c{server}, d{server};
    a.lock.lock();
    for (Party* party : {&b, &c, &d}) party->queue_up(redis);
    a.lock.unlock();
    for (Party* party : {&b, &c, &d}) {
        REQUIRE(eventually([&] { return party->entered.load(); }, 20s));
        CHECK(b.entered + c.entered + d.entered == 1 + (party != &b) + (party == &d));
        party->may_leave = true;
        party->visit.get();
    }
    CHECK(is_left_empty(redis));
}

TEST_CASE("an acquisition and its release are two commands, however many clients contend") {
    for (const int clients : {2, 4}) {
        CAPTURE(clients);
        RedisServer server;
        RawRedis redis{server};
        std::vector<std::unique_ptr<Party>> parties;
        for (int i = 0; i < clients; ++i) parties.push_back(std::make_unique<Party>(server));
        PlainCounter counter;
        constexpr int turns = 200;
        std::vector<std::future<void>> all;
        for (auto& party : parties)
            all.push_back(start([&counter, &lock = party->lock] {
                for (int i = 0; i < turns; ++i) {
                    const std::lock_guard guard{lock};
                    counter.add_one_unseen();
                }
            }));
        for (auto& one : all) one.get();
        CHECK(counter.value() == clients * turns);
        std::uint64_t commands = 0;
        for (auto& party : parties) commands += party->client.stats().commands;
        CHECK(static_cast<double>(commands) / (clients * turns) <= 2.2);
    }
}

TEST_CASE("a grant lasts for an offer at first, and its renewal gives it the full lease") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    ScriptWrites writes{server};
    a.lock.unlock();
    REQUIRE(eventually([&] { return b.entered.load(); }, 20s));
    // Not the lease that is left: the first renewal may have come.
    const std::vector<Words> written = writes.take();
    CHECK(std::ranges::count(written, Words{"pexpire", lock_key, "2000"}) == 1);
    CHECK(eventually([&] { return redis.integer("PTTL", lock_key) > 20'000; }, 20s));
    CHECK(b.client.stats().lost_holds == 0);
    b.may_leave = true;
    b.visit.get();
}

/// Lets a client wait with this lease, and be granted the lock. Returns what is left of the lease on the server when it
/// enters, and for how long its hold is certain.
std::pair<std::chrono::milliseconds, std::chrono::steady_clock::duration> entered_with(Lease lease) {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    CommandMonitor monitor{server};
    auto visit = start([&] {
        b.lock.lock(lease);
        const std::chrono::milliseconds left{redis.integer("PTTL", lock_key)};
        // On a busy machine the hold may be over already.
        const auto now = std::chrono::steady_clock::now();
        const auto certain = std::max(b.lock.valid_until(), now) - now;
        std::error_code ec;
        b.lock.unlock(ec);
        return std::pair(left, certain);
    });
    REQUIRE(has_place(redis, b.client));
    REQUIRE(has_asked_again(monitor));
    a.lock.unlock();
    const auto result = visit.get();
    CHECK(is_left_empty(redis));
    return result;
}

TEST_CASE("a fixed lease that is longer than an offer is confirmed before its owner enters") {
    const auto [left, certain] = entered_with(Lease{10s});
    CHECK(left > 5s);
    CHECK(certain > 5s);
}

TEST_CASE("a fixed lease that is shorter than an offer is the grant's") {
    const auto [left, certain] = entered_with(Lease{1500ms});
    CHECK(left <= 1500ms);
    CHECK(certain <= 1500ms);
}

TEST_CASE("a waiter that gives up leaves no place, and its successor gets the lock") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server}, c{server};
    a.lock.lock();
    std::stop_source stop;
    auto gives_up = start([&] { return b.lock.lock(stop.get_token()); });
    REQUIRE(eventually([&] { return redis.integer("LLEN", queue_key) == 1; }, 20s));
    c.queue_up(redis);
    stop.request_stop();
    CHECK_FALSE(gives_up.get());
    CHECK(eventually([&] { return redis.integer("LLEN", queue_key) == 1; }, 20s));
    a.lock.unlock();
    CHECK(eventually([&] { return c.entered.load(); }, 20s));
    c.may_leave = true;
    c.visit.get();
    CHECK(is_left_empty(redis));
}

TEST_CASE("the place of a process goes over to its next waiter, without a command") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    std::stop_source stop;
    CommandMonitor monitor{server};
    auto gives_up = start_waiting(b.client, [&] { return b.lock.lock(stop.get_token()); });
    REQUIRE(eventually([&] { return redis.integer("LLEN", queue_key) == 1; }, 20s));
    REQUIRE(has_asked_again(monitor));
    auto second = start_waiting(b.client, [&] {
        b.lock.lock();
        b.lock.unlock();
        return true;
    });
    const auto commands = commands_when_quiet(b.client);
    const std::string place = redis.text("HGET", places_key, b.client.id());
    stop.request_stop();
    CHECK_FALSE(gives_up.get());
    CHECK(commands_when_quiet(b.client) == commands);
    CHECK(redis.text("HGET", places_key, b.client.id()) == place);
    a.lock.unlock();
    CHECK(second.get());
    CHECK(is_left_empty(redis));
}

TEST_CASE_TEMPLATE("waiters that join behind one without a place do not end the subscription of that one", L, RLock,
                   FencedLock) {
    RedisServer server;
    RawRedis redis{server};
    Client holder{server.url()}, client{server.url()};
    L held{holder, lock_key}, lock{client, lock_key};
    held.lock();
    auto first = start_waiting(client, [&] {
        lock.lock(Lease::at_least(1ms));
        lock.unlock();
    });
    REQUIRE(eventually([&] { return listeners(redis) == 1; }, 20s));
    std::deque<std::future<void>> others;
    for (int number = 0; number < 3; ++number) {
        others.push_back(start_waiting(client, [&] { const std::lock_guard guard{lock}; }));
        commands_when_quiet(client);
    }
    CHECK(redis.lock_listeners(channel_of(lock_key) + ":" + client.id()) == 0);
    // A subscription that nobody wants lasts for five seconds.
    CHECK_FALSE(eventually([&] { return listeners(redis) == 0; }, 7s, 100ms));
    held.unlock();
    CHECK(first.wait_for(10s) == std::future_status::ready);
    first.get();
    for (std::future<void>& other : others) other.get();
}

TEST_CASE_TEMPLATE("when a waiter without a place leaves, the next one gets a place", L, RLock, FencedLock) {
    RedisServer server;
    RawRedis redis{server};
    Client holder{server.url()}, client{server.url()};
    L held{holder, lock_key}, lock{client, lock_key};
    held.lock();
    std::stop_source stop;
    auto first = start_waiting(client, [&] { return lock.lock(Lease::at_least(1ms), stop.get_token()); });
    REQUIRE(eventually([&] { return listeners(redis) == 1; }, 20s));
    auto second = start_waiting(client, [&] { const std::lock_guard guard{lock}; });
    commands_when_quiet(client);
    stop.request_stop();
    CHECK_FALSE(first.get());
    CHECK(can_be_granted<L>(redis, client, lock_key));
    held.unlock();
    CHECK(second.wait_for(10s) == std::future_status::ready);
    second.get();
}

TEST_CASE_TEMPLATE("when a waiter with a place leaves, the next one listens to what it needs", L, RLock, FencedLock) {
    RedisServer server;
    RawRedis redis{server};
    Client holder{server.url()}, client{server.url()};
    L held{holder, lock_key}, lock{client, lock_key};
    held.lock();
    std::stop_source stop;
    auto first = start_waiting(client, [&] { return lock.lock(stop.get_token()); });
    REQUIRE(can_be_granted<L>(redis, client, lock_key));
    auto second = start_waiting(client, [&] {
        lock.lock(Lease::at_least(1ms));
        lock.unlock();
    });
    commands_when_quiet(client);
    stop.request_stop();
    CHECK_FALSE(first.get());
    CHECK(eventually([&] { return listeners(redis) == 1; }, 20s));
    held.unlock();
    CHECK(second.wait_for(10s) == std::future_status::ready);
    second.get();
}

TEST_CASE("waiters that join while another one is asking for a place listen to the channel of the place alone") {
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    Party a{server};
    Client client{proxy.url()};
    RLock lock{client, lock_key};
    a.lock.lock();
    CHECK_FALSE(lock.try_lock());  // it learns nothing of a place
    proxy.hold_next_requests(1, std::string(digested<scripts::queue_acquire>.digest()));
    CommandMonitor monitor{server};
    const auto visit = [&] { const std::lock_guard guard{lock}; };
    auto first = start(visit);
    REQUIRE(eventually([&] { return proxy.counts().held == 1; }, 20s));
    auto second = start_waiting(client, visit);
    proxy.release();
    REQUIRE(has_place(redis, client));
    CHECK(monitor.take()["subscribe"] == 1);
    a.lock.unlock();
    first.get();
    second.get();
}

TEST_CASE_TEMPLATE("a grant that comes before the reply to its waiter's question is not lost", L, RLock, FencedLock,
                   FairLock) {
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    Client a{server.url()}, b{proxy.url()};
    L holder{a, lock_key}, lock{b, lock_key};
    const auto visit = [&] { const std::lock_guard guard{lock}; };
    // It may be that the message comes after the reply all the same, but not each time.
    for (int round = 0; round < 5; ++round) {
        // It listens from an earlier wait.
        holder.lock();
        auto first = start(visit);
        REQUIRE(can_be_granted<L>(redis, b, lock_key));
        holder.unlock();
        first.get();
        holder.lock();
        const auto held = proxy.counts().held;
        proxy.hold_next_replies(1, std::string(acquire_of<L>().digest()));
        auto second = start(visit);
        REQUIRE(eventually([&] { return proxy.counts().held == held + 1; }, 20s));
        holder.unlock();
        CHECK(redis.list("HKEYS", lock_key).at(0).starts_with(b.id()));
        proxy.release();
        REQUIRE(second.wait_for(20s) == std::future_status::ready);
    }
    if (std::is_same_v<L, FencedLock>) redis.integer("DEL", "redisson_lock_token:{orders}");
    CHECK(is_left_empty(redis));
}

TEST_CASE("waiting for a grant sends nothing") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    const auto commands = commands_when_quiet(b.client);
    std::this_thread::sleep_for(1500ms);
    CHECK(b.client.stats().commands == commands);
    a.lock.unlock();
    b.may_leave = true;
    b.visit.get();
}

/// Clients that compete for the lock so that its queue is never empty.
class Crowd {
public:
    explicit Crowd(const RedisServer& server) {
        for (int i = 0; i < 4; ++i) parties_.push_back(std::make_unique<Party>(server));
        for (auto& party : parties_)
            loops_.push_back(start([this, &lock = party->lock] {
                int turns = 0;
                for (; !done_; ++turns) {
                    const std::lock_guard guard{lock};
                    counter.add_one_unseen();
                    std::this_thread::sleep_for(1ms);
                }
                return turns;
            }));
    }
    ~Crowd() { done_ = true; }

    /// Ends it. Returns how many turns it had.
    int end() {
        done_ = true;
        int turns = 0;
        for (auto& loop : loops_) turns += loop.get();
        return turns;
    }

    PlainCounter counter;

private:
    std::atomic<bool> done_ = false;
    std::vector<std::unique_ptr<Party>> parties_;
    std::vector<std::future<int>> loops_;
};

TEST_CASE("a client without grants gets its turn beside those that queue") {
    RedisServer server;
    Party old{server, without_grants()};
    Crowd crowd{server};
    int turns = 0;
    for (; turns < 5; ++turns) {
        REQUIRE(old.lock.try_lock_for(20s));
        crowd.counter.add_one_unseen();
        old.lock.unlock();
    }
    turns += crowd.end();
    CHECK(crowd.counter.value() == turns);
}

TEST_CASE("a client that does not queue learns of a grant that ends before the lease that it saw") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server}, old{server, without_grants()};
    a.lock.lock(Lease{60s});
    CommandMonitor monitor{server};
    auto waiting = start([&] {
        const bool held = old.lock.try_lock_for(50s);
        if (held) old.lock.unlock();
        return held;
    });
    REQUIRE(eventually([&] { return redis.lock_listeners(channel_of(lock_key)) == 1; }, 20s));
    REQUIRE(has_asked_again(monitor));
    auto visit = start([&] { b.lock.lock(Lease{500ms}); });  // and does not unlock
    REQUIRE(has_place(redis, b.client));
    REQUIRE(has_asked_again(monitor));
    a.lock.unlock();
    visit.get();
    CHECK(ready(waiting, 20s));
    CHECK(waiting.get());
    CHECK(is_left_empty(redis));
}

TEST_CASE("a message for a place that was left does not make the next waiter ask again and again") {
    RedisServer server;
    RawRedis redis{server};
    Party b{server};
    redis.integer("HSET", lock_key, "6a1b4b2a-3c0e-4b5f-9d3e-0a1b2c3d4e5f:1", "1");
    redis.integer("PEXPIRE", lock_key, 60'000);
    const std::string own_channel = channel_of(lock_key) + ":" + b.client.id();
    std::stop_source stop;
    auto first = start([&] { return b.lock.lock(stop.get_token()); });
    REQUIRE(has_place(redis, b.client));
    auto second = start([&] {  // has no place, because of its minimum
        const bool held = b.lock.try_lock_for(50s, Lease::at_least(1ms));
        if (held) b.lock.unlock();
        return held;
    });
    REQUIRE(eventually([&] { return b.client.stats().waiting == 2; }, 20s));
    commands_when_quiet(b.client);  // a question after the message would make it meaningless
    REQUIRE(redis.integer("PUBLISH", own_channel, "look 3000") == 1);
    std::this_thread::sleep_for(1s);  // the first one learns of it
    stop.request_stop();
    CHECK_FALSE(first.get());
    REQUIRE(eventually([&] { return redis.integer("HEXISTS", places_key, b.client.id()) == 0; }, 20s));
    redis.integer("PUBLISH", own_channel, "look 0");
    const auto commands = b.client.stats().commands;
    CHECK_FALSE(eventually([&] { return b.client.stats().commands > commands + 5; }, 4s));
    redis.integer("DEL", lock_key);
    redis.integer("PUBLISH", channel_of(lock_key), "0");
    CHECK(ready(second));
    CHECK(second.get());
    CHECK(is_left_empty(redis));
}

TEST_CASE("those who queue are woken by the release of a client that grants nothing") {
    RedisServer server;
    RawRedis redis{server};
    Party b{server};
    // As Redisson writes it.
    redis.integer("HSET", lock_key, "6a1b4b2a-3c0e-4b5f-9d3e-0a1b2c3d4e5f:1", "1");
    redis.integer("PEXPIRE", lock_key, 30'000);
    b.may_leave = true;
    b.queue_up(redis);
    REQUIRE(eventually([&] { return listeners(redis) == 1; }, 20s));
    commands_when_quiet(b.client);
    redis.integer("DEL", lock_key);
    redis.integer("PUBLISH", channel_of(lock_key), "0");
    CHECK(ready(b.visit));
    CHECK(is_left_empty(redis));
}

// The lock passes to a client that grants nothing, whose release the waiter does not hear.
TEST_CASE("a try of another thread of its process does not put off the question of one that queues") {
    RedisServer server;
    RawRedis redis{server};
    Party b{server};
    const auto is_held_by = [&](const std::string& client, long long lease) {
        redis.integer("DEL", lock_key);
        redis.integer("HSET", lock_key, client + ":1", "1");
        REQUIRE(redis.integer("PEXPIRE", lock_key, lease) == 1);
    };
    is_held_by("01234567-0000-8000-8000-000000000000", 2000);  // grants
    b.queue_up(redis);
    is_held_by("01234567-0000-4000-8000-000000000000", 60'000);
    CHECK_FALSE(b.lock.try_lock());
    REQUIRE(redis.integer("DEL", lock_key) == 1);
    CHECK(eventually([&] { return b.entered.load(); }, 4s));
    b.may_leave = true;
    b.visit.get();
}

TEST_CASE("a client of Redisson's that listens gets its turn") {
    RedisServer server;
    RawRedis redis{server};
    Messages messages{server, channel_of(lock_key)};
    Crowd crowd{server};
    const std::string acquire =
        "if redis.call('exists', KEYS[1]) == 1 then return 0 end "
        "redis.call('hset', KEYS[1], '6a1b4b2a-3c0e-4b5f-9d3e-0a1b2c3d4e5f:1', '1') "
        "return redis.call('pexpire', KEYS[1], '30000')";
    for (int turn = 0; turn < 5; ++turn) {
        REQUIRE(eventually(
            [&] {
                const Words all = messages.take();
                return std::find(all.begin(), all.end(), "0") != all.end() &&
                       redis.integer("EVAL", acquire, "1", lock_key) == 1;
            },
            20s, 0ms));
        redis.integer("DEL", lock_key);
        redis.integer("PUBLISH", channel_of(lock_key), "0");
    }
    const int turns = crowd.end();
    CHECK(crowd.counter.value() == turns);
}

TEST_CASE("a SpinLock and a MultiLock get their turns beside those that queue") {
    RedisServer server;
    Party c{server};
    Crowd crowd{server};
    SpinLock spin{c.client, lock_key};
    RLock another{c.client, "another"};
    MultiLock both{c.lock, another};
    int turns = 0;
    for (int i = 0; i < 3; ++i, ++turns) {
        REQUIRE(spin.try_lock_for(20s));
        crowd.counter.add_one_unseen();
        spin.unlock();
    }
    for (int i = 0; i < 3; ++i, ++turns) {
        REQUIRE(both.try_lock_for(20s));
        crowd.counter.add_one_unseen();
        both.unlock();
    }
    turns += crowd.end();
    CHECK(crowd.counter.value() == turns);
}

// --- what the scripts tell ----------------------------------------------------------------------------------------------

namespace {

/// A client that sends what it is told to, and hears what the scripts tell it.
class Scripted {
public:
    Scripted(const RedisServer& server, char digit)
        : id_(std::string(8, digit) + "-0000-8000-8000-000000000000"),
          commands_(server),
          hears_(server, channel_of(lock_key) + ":" + id_) {}

    std::string owner() const { return id_ + ":1"; }

    RawReply acquire() {
        return call(scripts::queue_acquire.join(), {owner(), "1", "30000", std::to_string(always), "PUBLISH", "1"});
    }
    RawReply release() { return call(scripts::queue_release.join(), {owner(), "0", "0", "PUBLISH"}); }
    RawReply give_up() { return call(scripts::queue_give_up.join(), {"PUBLISH", "", owner()}); }

    /// Returns the next message, empty if there is none.
    std::string hear() { return hears_.next(); }

private:
    RawReply call(std::string_view script, const Words& arguments) {
        Words words{"EVAL", std::string(script), "4", lock_key, channel_of(lock_key), queue_key, places_key};
        words.insert(words.end(), arguments.begin(), arguments.end());
        return commands_.command(words);
    }

    std::string id_;
    RawRedis commands_;
    Messages hears_;
};

/// Returns for how long a message "look <ms>" tells to wait; -1 for another message.
long long look_in(const std::string& message) {
    return message.starts_with("look ") ? std::stoll(message.substr(5)) : -1;
}

}  // namespace

TEST_CASE("who is granted the lock may be silent, and the next one, too: the one after that is told when to ask") {
    RedisServer server;
    Scripted holder{server, '1'}, first{server, '2'}, second{server, '3'}, third{server, '4'}, fourth{server, '5'};
    CHECK(holder.acquire().is_nil());
    for (Scripted* waiter : {&first, &second, &third, &fourth}) CHECK(waiter->acquire().elements.size() == 2);
    CHECK(holder.release().integer == -3);
    CHECK(first.hear().starts_with("grant 1 "));
    CHECK(look_in(second.hear()) == 2000);
    CHECK(look_in(third.hear()) == 2400);
    CHECK(fourth.hear().empty());
    // The next grant tells those that do not know yet when to ask.
    CHECK(first.release().integer == -3);
    CHECK(second.hear().starts_with("grant 1 "));
    CHECK(third.hear().empty());
    CHECK(look_in(fourth.hear()) >= 2000);
}

TEST_CASE("a waiter whose place is over, because the clock has jumped, is told to ask") {
    RedisServer server;
    RawRedis redis{server};
    const auto end_place = [&](const Scripted& waiter) {
        const std::string id = waiter.owner().substr(0, 36);
        const RawReply place = redis.call("HGET", places_key, id);
        redis.integer(
            "HSET", places_key, id,
            std::regex_replace(place.string, std::regex(" \\d{13} "), " 1 ", std::regex_constants::format_first_only));
    };
    Scripted holder{server, '1'}, first{server, '2'}, second{server, '3'}, third{server, '4'}, fourth{server, '5'};
    CHECK(holder.acquire().is_nil());
    for (Scripted* waiter : {&first, &second, &third, &fourth}) CHECK(waiter->acquire().elements.size() == 2);
    end_place(first);
    end_place(third);
    CHECK(holder.release().integer == -3);
    CHECK(first.hear() == "look 0");
    CHECK(second.hear().starts_with("grant 1 "));
    CHECK(third.hear() == "look 0");
    CHECK(look_in(fourth.hear()) == 2000);
}

TEST_CASE_TEMPLATE("who waits without a place gets the lock in the turn of those who do not queue", L, RLock,
                   FencedLock, ReadWriteLock) {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    L lock{client, lock_key};
    lock.lock();
    lock.unlock();
    const std::string places = std::is_same_v<L, ReadWriteLock> ? "redlatch_rwlock_places:{orders}" : places_key;
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < 5 && best > 300ms; ++round) {
        redis.integer("HSET", places, "turn", redis.now() + 480);
        const Stopwatch watch;
        lock.lock(Lease::at_least(1ms));
        best = std::min<std::chrono::steady_clock::duration>(best, watch.elapsed());
        lock.unlock();
        redis.call("DEL", places);
    }
    CHECK(best <= 300ms);
}

TEST_CASE("a server that evicts the list of the queue alone: who asks next queues up again") {
    RedisServer server;
    RawRedis redis{server};
    Scripted holder{server, '1'}, first{server, '2'}, second{server, '3'};
    CHECK(holder.acquire().is_nil());
    for (Scripted* waiter : {&first, &second}) CHECK(waiter->acquire().elements.size() == 2);
    redis.integer("DEL", queue_key);
    for (Scripted* waiter : {&second, &first}) CHECK(waiter->acquire().elements.size() == 2);
    CHECK(redis.list("LRANGE", queue_key, 0, -1) ==
          std::vector<std::string>{second.owner().substr(0, 36), first.owner().substr(0, 36)});
    CHECK(holder.release().integer == -3);
    CHECK(second.hear().starts_with("grant 1 "));
}

TEST_CASE("a release that may not count listeners wakes the head of the queue, and who does not queue") {
    RedisServer server;
    RawRedis redis{server};
    Messages common{server, channel_of(lock_key)};
    Scripted holder{server, '1'}, first{server, '2'};
    CHECK(holder.acquire().is_nil());
    CHECK(first.acquire().elements.size() == 2);
    redis.text("ACL", "SETUSER", "default", "-pubsub");
    CHECK(holder.release().integer == 1);
    CHECK(first.hear() == "look 0");
    CHECK(common.take() == std::vector<std::string>{"0"});
}

TEST_CASE_TEMPLATE("a turn of others that began before the clock stepped back keeps nobody out", L, RLock, FencedLock) {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    L lock{client, lock_key};
    redis.integer("HSET", places_key, "turn", redis.now() + 60'000);
    CHECK(lock.try_lock());
}

TEST_CASE("a waiter that leaves while a client holds the lock that grants nothing: the next one asks, and listens") {
    RedisServer server;
    RawRedis redis{server};
    Scripted holder{server, '1'}, first{server, '2'}, second{server, '3'};
    CHECK(holder.acquire().is_nil());
    for (Scripted* waiter : {&first, &second}) CHECK(waiter->acquire().elements.at(1).integer == 0);
    redis.call("DEL", lock_key);
    redis.integer("HSET", lock_key, "b983c153-7421-469a-addb-44fb92259a1b:42", 1);
    redis.integer("PEXPIRE", lock_key, 60'000);
    CHECK(first.acquire().elements.at(1).integer == 1);
    first.give_up();
    CHECK(look_in(second.hear()) == 0);
}

TEST_CASE(
    "a grant that ends before the released hold: those who do not queue are woken, unless one of the queue asks") {
    RedisServer server;
    Messages common{server, channel_of(lock_key)};
    for (const bool another_waits : {false, true}) {
        CAPTURE(another_waits);
        Scripted holder{server, '1'}, first{server, '2'}, second{server, '3'};
        CHECK(holder.acquire().is_nil());
        CHECK(first.acquire().elements.size() == 2);
        if (another_waits) CHECK(second.acquire().elements.size() == 2);
        common.take();
        CHECK(holder.release().integer == -3);
        CHECK(common.take() == Words{another_waits ? "2" : "0"});
        first.give_up();
        second.give_up();
    }
}

// They rely on a longer lease than the grant's, as long as one of the queue asks at its end.
TEST_CASE("those who do not queue are woken when nobody of the queue asks at the end of a grant any more") {
    RedisServer server;
    Messages common{server, channel_of(lock_key)};
    Scripted holder{server, '1'}, first{server, '2'}, second{server, '3'};
    CHECK(holder.acquire().is_nil());
    for (Scripted* waiter : {&first, &second}) CHECK(waiter->acquire().elements.size() == 2);
    CHECK(holder.release().integer == -3);
    CHECK(common.take() == Words{"2"});
    SUBCASE("because it leaves") {
        second.give_up();
        CHECK(common.take() == Words{"0"});
    }
    SUBCASE("because it is granted the lock, too, for no longer") {
        CHECK(first.release().integer == -3);
        CHECK(common.take() == Words{"0", "2"});
    }
}

TEST_CASE("a waiter that leaves before it is certain of its grant: the one behind it asks at once") {
    RedisServer server;
    RawRedis redis{server};
    Proxy path{server.url()};
    // A question that is held back is not sent again.
    Client client{path.url(), {.command_timeout = 30s, .unreachable_timeout = 60s}}, other{server.url()};
    RLock mine{client, lock_key}, theirs{other, lock_key};
    mine.lock();  // so that the script is known
    mine.unlock();
    theirs.lock();
    const Lease lease{10s};  // longer than an offer, so a grant has to be asked for
    CommandMonitor monitor{server};
    auto first = start_waiting(client, [&] { return mine.try_lock_for(6s, lease); });
    REQUIRE(has_place(redis, client));
    REQUIRE(has_asked_again(monitor));
    auto second = start_waiting(client, [&] { return mine.lock(lease), mine.unlock(), true; });
    path.hold_next_requests(1, std::string(acquire_of<RLock>().digest()));
    theirs.unlock();
    const Stopwatch since;
    CHECK_FALSE(first.get());
    REQUIRE(ready(second, 30s));
    CHECK(since.within(patient(12s)));
    path.release();
    CHECK(is_left_empty(redis));
}

TEST_CASE("many threads of several clients exclude each other, and all get their turns") {
    RedisServer server;
    RawRedis redis{server};
    std::vector<std::unique_ptr<Party>> parties;
    for (int i = 0; i < 4; ++i) parties.push_back(std::make_unique<Party>(server));
    PlainCounter counter;
    std::vector<std::future<void>> all;
    for (auto& party : parties)
        for (int thread = 0; thread < 3; ++thread)
            all.push_back(start([&counter, &lock = party->lock] {
                for (int i = 0; i < 50; ++i) {
                    const std::lock_guard guard{lock};
                    counter.add_one_unseen();
                }
            }));
    for (auto& one : all) one.get();
    CHECK(counter.value() == 4 * 3 * 50);
    CHECK(is_left_empty(redis));
}

TEST_CASE_TEMPLATE("a release that may not change the queue releases all the same, and wakes who waits", L, RLock,
                   FencedLock) {
    for (const char* right : {"-lrem", "-hdel"}) {
        CAPTURE(right);
        RedisServer server;
        RawRedis redis{server};
        Client a{server.url()}, b{server.url()};
        L mine{a, lock_key}, theirs{b, lock_key};
        mine.lock();
        std::future<void> visit;
        std::unique_lock held{mine, std::adopt_lock};
        CommandMonitor monitor{server};
        visit = start([&] {
            theirs.lock();
            theirs.unlock();
        });
        REQUIRE(has_place(redis, b));
        REQUIRE(has_asked_again(monitor));
        redis.text("ACL", "SETUSER", "default", right);
        std::error_code ec;
        held.release()->unlock(ec);
        CHECK_FALSE(ec);
        CHECK(visit.wait_for(15s) == std::future_status::ready);
    }
}

TEST_CASE_TEMPLATE("a hand-over that may not tell the head of the queue is done all the same", L, RLock, FencedLock) {
    CHECK(succeeds_once([] {
        RedisServer server;
        RawRedis redis{server};
        Client a{server.url()}, b{server.url()};
        L mine{a, lock_key}, theirs{b, lock_key};
        mine.lock();
        std::future<void> remote, local;
        std::unique_lock held{mine, std::adopt_lock};
        remote = start([&] { const std::lock_guard guard{theirs}; });
        REQUIRE(has_place(redis, b));
        // Its lease is shorter than that of the holder, so the head of the queue has to ask earlier.
        local = start([&] {
            mine.lock(Lease{5s});
            mine.unlock();
        });
        REQUIRE(has_place(redis, a));
        commands_when_quiet(a);
        redis.text("ACL", "SETUSER", "default", "-hset");
        std::error_code ec;
        held.release()->unlock(ec);
        // On a busy machine the local waiter may be asking still. Then nobody in this process can take over.
        if (a.stats().handoffs == 0) {
            redis.text("ACL", "SETUSER", "default", "+hset");
            return false;
        }
        CHECK_FALSE(ec);
        CHECK(local.wait_for(15s) == std::future_status::ready);
        CHECK(a.stats().handoffs == 1);
        redis.text("ACL", "SETUSER", "default", "+hset");
        CHECK(remote.wait_for(15s) == std::future_status::ready);
        return true;
    }));
}

TEST_CASE("a release that may not publish reports that, and not a lost hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock lock{client, lock_key};
    lock.lock();
    redis.text("ACL", "SETUSER", "default", "-publish");
    std::error_code ec;
    lock.unlock(ec);
    CHECK(ec == errc::rejected);
    redis.text("ACL", "SETUSER", "default", "+publish");
}

/// A server with a user that may have no right to the keys of the queue.
struct LimitedUser {
    explicit LimitedUser(bool may_queue) : url(add(may_queue)) {}

    std::string add(bool may_queue) {
        redis.text("ACL", "SETUSER", "limited", "on", ">secret", "+@all", "&*");
        let_queue(may_queue);
        return server.url_of("limited");
    }

    void let_queue(bool may) {
        redis.text("ACL", "SETUSER", "limited", "resetkeys", "~orders", "~other", may ? "~*" : "~redisson_*");
    }

    RedisServer server;
    RawRedis redis{server};
    const std::string url;
    Client client{url}, queueing{server.url()};
    RLock limited{client, lock_key}, other{client, "other"}, lock{queueing, lock_key};
};

void lock_and_unlock(RLock& lock) {
    lock.lock();
    lock.unlock();
}

/// Waits for the lock in a new thread, and releases it.
std::future<bool> start_visit(const Client& client, RLock& lock) {
    return start_waiting(client, [&lock] {
        lock_and_unlock(lock);
        return true;
    });
}

TEST_CASE("without the rights to the queue's keys clients wait as ever") {
    LimitedUser user{false};
    Client two{user.url};
    RLock theirs{two, lock_key};
    for (int round = 0; round < 3; ++round) {
        user.limited.lock();
        auto visit = start_visit(two, theirs);
        REQUIRE(is_listened_to(user.redis, lock_key));
        user.limited.unlock();
        CHECK(ready(visit));
    }
    CHECK(user.client.stats().lost_holds + two.stats().lost_holds == 0);
}

TEST_CASE("a client without the rights to the queue's keys wakes those who queue") {
    LimitedUser user{false};
    lock_and_unlock(user.limited);  // now it knows of its rights
    for (int round = 0; round < 3; ++round) {
        user.limited.lock();
        auto visit = start_visit(user.queueing, user.lock);
        REQUIRE(user.redis.exists(queue_key));
        user.limited.unlock();
        CHECK(ready(visit));
    }
}

TEST_CASE("a client without the rights to the queue's keys recognizes its holds") {
    LimitedUser user{false};
    lock_and_unlock(user.limited);  // now it knows of its rights
    const redlatch::Hold hold = user.limited.hold();
    CHECK(user.limited.is_held_by(hold.owner()));
    CHECK(user.limited.is_held_by(user.client.id() + ":" + std::to_string(hold.owner())));
    const redlatch::Inspection seen = user.limited.inspect();
    REQUIRE(seen.holders.size() == 1);
    CHECK(seen.holders[0].number == hold.owner());
    CHECK(user.limited.is_held_by(seen.holders[0].owner));
}

TEST_CASE("a hold from before the rights to the queue's keys were missing is granted to the next one") {
    LimitedUser user{true};
    user.limited.lock();
    auto visit = start_visit(user.queueing, user.lock);
    user.let_queue(false);
    lock_and_unlock(user.other);  // now the client knows of its rights
    user.let_queue(true);
    user.limited.unlock();
    CHECK(ready(visit));
}

// Its place is still on the server: it may not remove it. What is granted there is of no use.
TEST_CASE("a client that has lost the rights to the queue's keys asks once for a grant to its former place") {
    LimitedUser user{true};
    user.lock.lock();
    auto visit = start_visit(user.client, user.limited);
    const std::string place = user.redis.text("HGET", places_key, user.client.id());
    const std::string number = place.substr(0, place.find(' '));
    user.let_queue(false);
    lock_and_unlock(user.other);  // now the client knows of its rights
    const std::string channel = "redisson_lock__channel:{orders}:" + user.client.id();
    const long long before = user.redis.script_calls();
    user.redis.integer("PUBLISH", channel, "look 0");
    // It asks, and releases its number.
    REQUIRE(eventually([&] { return user.redis.script_calls() >= before + 2; }, 20s));
    user.redis.integer("PUBLISH", channel, "grant " + number + " 1 2000");
    std::this_thread::sleep_for(200ms);
    CHECK(user.redis.script_calls() < before + 10);
    user.lock.unlock();
    CHECK(ready(visit));
}
