// SPDX-License-Identifier: MIT
// The queue of the processes that wait for permits: who makes permits available tells those alone for whom there are
// enough.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/code_of.hpp"
#include "support/command_monitor.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/wait.hpp"
#include "support/without_grants.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::PermitExpirableSemaphore;
using redlatch::PermitId;
using redlatch::Semaphore;
using redlatch::detail::digested;
namespace scripts = redlatch::detail::scripts;

namespace {

const std::string channel = "redisson_sc:{seats}";
const std::string queue_key = "redlatch_semaphore_queue:{seats}";
const std::string places_key = "redlatch_semaphore_places:{seats}";

/// A PermitExpirableSemaphore as a Semaphore, whose permits have no ids: it keeps those that it has. They have leases that
/// have to be asked for: for what is granted see permit_grants_test.cpp.
class LeasedSemaphore {
public:
    LeasedSemaphore(Client& client, std::string_view name) : seats_(client, name) {}

    void acquire(int permits = 1) { keep(seats_.acquire(permits, lease)); }
    bool acquire(int permits, std::stop_token stop) { return keep(seats_.acquire(permits, lease, stop)); }
    bool try_acquire(int permits = 1) { return keep(seats_.try_acquire(permits, lease)); }
    bool try_acquire_for(std::chrono::milliseconds time, int permits = 1) {
        return keep(seats_.try_acquire_for(time, permits, lease));
    }
    bool try_acquire_for(std::chrono::milliseconds time, std::error_code& ec) {
        return seats_.try_acquire_for(time, lease, ec).has_value();
    }

    /// Releases permits that it has; adds some, if it has fewer.
    void release(int permits = 1) {
        std::vector<PermitId> ids;
        {
            const std::lock_guard lock(mutex_);
            if (ids_.size() >= static_cast<std::size_t>(permits)) {
                ids.assign(ids_.end() - permits, ids_.end());
                ids_.erase(ids_.end() - permits, ids_.end());
            }
        }
        ids.empty() ? seats_.add_permits(permits) : seats_.release(ids);
    }

    bool try_set_permits(int permits) { return seats_.try_set_permits(permits); }
    void add_permits(int permits) { seats_.add_permits(permits); }
    std::ptrdiff_t available_permits() { return seats_.available_permits(); }
    void remove() { seats_.remove(); }

private:
    bool keep(const std::vector<PermitId>& ids) {
        const std::lock_guard lock(mutex_);
        ids_.insert(ids_.end(), ids.begin(), ids.end());
        return !ids.empty();
    }

    const redlatch::Lease lease{60s};

    PermitExpirableSemaphore seats_;
    std::mutex mutex_;  // guards ids_
    std::vector<PermitId> ids_;
};

template <class Seats>
const redlatch::detail::Script& acquire_of = digested<scripts::semaphore_acquire>;
template <>
const redlatch::detail::Script& acquire_of<LeasedSemaphore> = digested<scripts::permit_acquire>;

/// A client with the semaphore.
template <class Seats>
struct Party {
    explicit Party(const RedisServer& server, ClientOptions options = {}) : Party(server.url(), std::move(options)) {}
    explicit Party(const std::string& to, ClientOptions options = {})
        : url(to), client(url, std::move(options)), seats(client, "seats") {}
    ~Party() { stop.request_stop(); }

    /// Waits for permits in a new thread, and keeps them. Returns when it is in the queue, listens, and has asked once more. It
    /// may ask again: once for each of its two channels.
    void queue_up(RawRedis& redis, int permits = 1) {
        const std::string id = client.id();
        const bool listens = redis.subscribers(channel + ":" + id) == 1;  // since it waited last
        CommandMonitor monitor{url};
        visit = start([this, permits] {
            has_entered = seats.acquire(permits, stop.get_token());
            return has_entered.load();
        });
        REQUIRE(eventually([&] { return redis.integer("HEXISTS", places_key, id) == 1; }, 20s));
        REQUIRE(eventually([&] { return redis.subscribers(channel + ":" + id) == 1; }, 20s));
        REQUIRE(monitor.take_until("evalsha", id, listens ? 1 : 2, 20s));
    }

    bool enters() { return visit.wait_for(4s) == std::future_status::ready && visit.get(); }

    std::string url;
    Client client;
    Seats seats;
    std::stop_source stop;
    std::atomic<bool> has_entered = false;
    std::future<bool> visit;
};

template <class Seats>
struct Fixture {
    explicit Fixture(int permits = 0) {
        a.seats.try_set_permits(permits);
        a.seats.release(1);
        a.seats.acquire();  // from here on the scripts are cached
    }

    /// Gives this client a place in the queue, as its question does.
    void put(const std::string& id, int want, int number = 7) {
        redis.integer("HSET", places_key, id,
                      std::to_string(number) + ' ' + std::to_string(want) + " 99999999999999 0");
        redis.integer("RPUSH", queue_key, id);
    }

    long long queued() { return redis.integer("LLEN", queue_key); }

    // Nothing is left of the queue. The marks of requests are.
    bool is_left_empty() {
        return eventually([&] { return redis.integer("EXISTS", queue_key, places_key) == 0; }, 20s);
    }

    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    Party<Seats> a{server}, b{server}, c{server}, d{server};
};

/// A client in the queue that hears what it is told, and never asks.
class Deaf {
public:
    template <class Seats>
    Deaf(Fixture<Seats>& fixture, char digit, int want = 1)
        : id_(std::string(8, digit) + "-0000-8000-8000-000000000000"),
          hears_all_(fixture.server, channel),
          hears_(fixture.server, channel + ":" + id_) {
        fixture.put(id_, want);
    }

    const std::string& id() const { return id_; }

    /// Returns the next message to it alone, empty if there is none.
    std::string hear() { return hears_.next(); }

private:
    const std::string id_;
    Messages hears_all_, hears_;
};

}  // namespace

TEST_CASE_TEMPLATE("a release wakes the first in the queue, and two others ask later, once each", Kind, Semaphore,
                   LeasedSemaphore) {
    {
        Fixture<Kind> fixture;
        Deaf first{fixture, '1'}, second{fixture, '2'}, third{fixture, '3'}, fourth{fixture, '4'};
        fixture.a.seats.release();
        CHECK(first.hear() == "look 0 7");
        // In case the first is frozen.
        CHECK(second.hear() == "look 400 7");
        CHECK(third.hear() == "look 800 7");
        CHECK(fourth.hear().empty());
    }
    Fixture<Kind> fixture;
    const std::vector<Party<Kind>*> all{&fixture.b, &fixture.c, &fixture.d};
    for (Party<Kind>* party : all) party->queue_up(fixture.redis);
    const auto commands = [&] {
        std::uint64_t sum = 0;
        for (Party<Kind>* party : all) sum += commands_when_quiet(party->client);
        return sum;
    };
    const auto before = commands();
    fixture.a.seats.release();
    REQUIRE(eventually([&] { return fixture.queued() == 2; }, 20s));
    CHECK(commands() <= before + 3);
    for (int i = 0; i < 2; ++i) fixture.a.seats.release();
    for (Party<Kind>* party : all) CHECK(party->enters());
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("clients that wait for one permit send few commands, however many they are", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture{1};
    std::vector<std::unique_ptr<Party<Kind>>> parties;
    for (int i = 0; i < 12; ++i) parties.push_back(std::make_unique<Party<Kind>>(fixture.server));
    int inside = 0;
    std::atomic<int> visits = 0;
    std::atomic<bool> ended = false;
    CommandMonitor monitor{fixture.server};
    std::vector<std::future<void>> threads;
    for (const auto& party : parties)
        threads.push_back(start([&, party = party.get()] {
            while (!ended) {
                party->seats.acquire();
                CHECK(++inside == 1);
                ++visits;
                std::this_thread::sleep_for(1ms);
                --inside;
                party->seats.release();
            }
        }));
    CHECK(eventually([&] { return visits > 200; }, patient(10s)));
    ended = true;
    for (auto& thread : threads) thread.get();
    const auto calls = monitor.take();
    CHECK(calls.at("evalsha") < 4 * visits);
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("who needs more than there is does not keep the others waiting", Kind, Semaphore, LeasedSemaphore) {
    Fixture<Kind> fixture;
    fixture.b.queue_up(fixture.redis, 3);
    fixture.c.queue_up(fixture.redis);
    fixture.a.seats.release();
    CHECK(fixture.c.enters());
    CHECK_FALSE(fixture.b.has_entered);
    fixture.a.seats.release(3);
    CHECK(fixture.b.enters());
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("who fits is told, also behind others for whom there would be too few", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture;
    Deaf first{fixture, '1', 2}, too_many{fixture, '2', 2}, fits{fixture, '3'};
    fixture.a.seats.release(3);
    CHECK(first.hear() == "look 0 7");
    CHECK(too_many.hear() == "look 400 7");  // it stands in
    CHECK(fits.hear() == "look 0 7");
}

TEST_CASE_TEMPLATE("all who wait get their permits, whatever each of them wants", Kind, Semaphore, LeasedSemaphore) {
    Fixture<Kind> fixture;
    fixture.b.queue_up(fixture.redis, 2);
    fixture.c.queue_up(fixture.redis, 2);
    fixture.d.queue_up(fixture.redis);
    // Two of them are told at once. The third one stands in: on a busy machine it may be faster.
    fixture.a.seats.release(3);
    REQUIRE(eventually([&] { return fixture.queued() == 1; }, 20s));
    fixture.a.seats.release(2);
    CHECK(fixture.b.enters());
    CHECK(fixture.c.enters());
    CHECK(fixture.d.enters());
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("who was told and gets nothing passes on what is left", Kind, Semaphore, LeasedSemaphore) {
    CHECK(succeeds_once([] {  // a busy machine may be late
        Fixture<Kind> fixture;
        Proxy proxy{fixture.server.url()};
        Party<Kind> slow{proxy.url()};
        slow.queue_up(fixture.redis, 2);
        Deaf one{fixture, '1'}, another{fixture, '2'};
        fixture.b.queue_up(fixture.redis);
        proxy.hold_next_requests(1, std::string(acquire_of<Kind>.digest()));
        fixture.a.seats.release(2);
        REQUIRE(eventually([&] { return proxy.counts().held == 1; }, 20s));
        // The others stand in. Somebody is faster than all of them.
        CHECK(fixture.a.seats.try_acquire());
        fixture.redis.integer("LREM", queue_key, 0, one.id());
        fixture.redis.integer("LREM", queue_key, 0, another.id());
        fixture.redis.integer("HDEL", places_key, one.id(), another.id());
        const Stopwatch watch;
        proxy.release();
        CHECK(fixture.b.enters());
        const bool in_time = watch.within(300ms);
        slow.stop.request_stop();
        CHECK_FALSE(slow.visit.get());
        CHECK(fixture.is_left_empty());
        return in_time;
    }));
}

TEST_CASE_TEMPLATE("a process with many waiters does not keep the others waiting", Kind, Semaphore, LeasedSemaphore) {
    Fixture<Kind> fixture{1};
    std::atomic<bool> ended = false;
    std::vector<std::future<void>> threads;
    for (int i = 0; i < 3; ++i)
        threads.push_back(start([&] {
            while (!ended) {
                fixture.b.seats.acquire();
                std::this_thread::sleep_for(20ms);
                fixture.b.seats.release();
            }
        }));
    REQUIRE(eventually([&] { return fixture.b.client.stats().acquisitions > 5; }, 20s));
    for (int turn = 0; turn < 5; ++turn) {
        CHECK(fixture.c.seats.try_acquire_for(3s));
        fixture.c.seats.release();
    }
    ended = true;
    for (auto& thread : threads) thread.get();
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("nobody waits for the slow poll, whatever each caller wants", Kind, Semaphore, LeasedSemaphore) {
    Fixture<Kind> fixture{3};
    std::atomic<bool> ended = false;
    std::atomic<int> late = 0, visits = 0;
    std::vector<std::future<void>> threads;
    for (Party<Kind>* party : {&fixture.b, &fixture.c, &fixture.d})
        for (int i = 0; i < 3; ++i)
            threads.push_back(start([&, party, i] {
                for (int n = i; !ended; ++n) {
                    const int permits = 1 + n % 2;
                    if (!party->seats.try_acquire_for(4500ms, permits)) {
                        ++late;
                        continue;
                    }
                    ++visits;
                    if (n % 5 == 0) std::this_thread::sleep_for(5ms);
                    party->seats.release(permits);
                    if (n % 7 == 0) std::this_thread::sleep_for(10ms);
                }
            }));
    CHECK(eventually([&] { return visits > 1000; }, patient(10s)));
    ended = true;
    for (auto& thread : threads) thread.get();
    CHECK(late == 0);
    CHECK(fixture.a.seats.available_permits() == 3);
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("a long queue of those for whom there are too few does not keep the others waiting", Kind, Semaphore,
                   LeasedSemaphore) {
    for (const int length : {40, 250}) {
        CAPTURE(length);
        Fixture<Kind> fixture;
        for (int i = 0; i < length; ++i) fixture.put("big" + std::to_string(i), 10);
        fixture.b.queue_up(fixture.redis);
        fixture.a.seats.release();
        CHECK(fixture.b.enters());
    }
}

TEST_CASE_TEMPLATE("those for whom there are too few permits do not wake each other", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture;
    for (int i = 0; i < 200; ++i) fixture.put("big" + std::to_string(i), 10);
    fixture.a.seats.release();
    fixture.b.queue_up(fixture.redis, 2);
    fixture.c.queue_up(fixture.redis, 2);
    // Nobody has told them of the permit that is left.
    const auto before = fixture.b.client.stats().commands + fixture.c.client.stats().commands;
    CHECK_FALSE(eventually(
        [&] { return fixture.b.client.stats().commands + fixture.c.client.stats().commands > before + 4; }, 1s));
    fixture.a.seats.add_permits(3);
    CHECK(fixture.b.enters());
    CHECK(fixture.c.enters());
}

TEST_CASE_TEMPLATE("the server evicts a key of the queue: all queue up anew", Kind, Semaphore, LeasedSemaphore) {
    for (const std::string& key : {queue_key, places_key}) {
        CAPTURE(key);
        Fixture<Kind> fixture;
        fixture.b.queue_up(fixture.redis);
        fixture.c.queue_up(fixture.redis);
        fixture.redis.integer("DEL", key);
        fixture.d.queue_up(fixture.redis);
        REQUIRE(eventually([&] { return fixture.queued() == 3; }, 20s));
        CHECK(fixture.redis.integer("HLEN", places_key) == 3);
        for (int i = 0; i < 3; ++i) fixture.a.seats.add_permits(1);
        CHECK(fixture.b.enters());
        CHECK(fixture.c.enters());
        CHECK(fixture.d.enters());
        CHECK(fixture.is_left_empty());
    }
}

TEST_CASE_TEMPLATE("all for whom there are permits are told at once", Kind, Semaphore, LeasedSemaphore) {
    for (const bool sets : {false, true}) {
        CAPTURE(sets);
        Fixture<Kind> fixture;
        if (sets) fixture.a.seats.remove();
        Deaf first{fixture, '1', 2}, second{fixture, '2'}, third{fixture, '3'};
        if (sets)
            CHECK(fixture.a.seats.try_set_permits(3));
        else
            fixture.a.seats.release(3);
        CHECK(first.hear() == "look 0 7");
        CHECK(second.hear() == "look 0 7");
        CHECK(third.hear() == "look 400 7");  // it stands in
    }
}

TEST_CASE_TEMPLATE("a waiter that is gone is passed over at once", Kind, Semaphore, LeasedSemaphore) {
    CHECK(succeeds_once([] {  // a busy machine may be late
        Fixture<Kind> fixture;
        fixture.put("11111111-0000-8000-8000-000000000000", 1);
        fixture.b.queue_up(fixture.redis);
        CHECK(fixture.queued() == 2);
        const Stopwatch watch;
        fixture.a.seats.release();
        CHECK(fixture.b.enters());
        const bool in_time = watch.within(200ms);
        CHECK(fixture.is_left_empty());
        return in_time;
    }));
}

TEST_CASE_TEMPLATE("a waiter that is frozen costs the others less than a second, once", Kind, Semaphore,
                   LeasedSemaphore) {
    CHECK(succeeds_once([] {  // a busy machine may be late
        Fixture<Kind> fixture;
        Deaf frozen{fixture, '1'};
        fixture.b.queue_up(fixture.redis);
        const Stopwatch watch;
        fixture.a.seats.release();
        CHECK(fixture.b.enters());
        CHECK(watch.elapsed() > 300ms);
        bool in_time = watch.within(1000ms);
        CHECK(frozen.hear() == "look 0 7");
        fixture.c.queue_up(fixture.redis);
        std::this_thread::sleep_for(500ms);
        const Stopwatch next;
        fixture.b.seats.release();
        CHECK(fixture.c.enters());
        in_time = in_time && next.within(300ms);
        CHECK(frozen.hear() == "look 0 0");
        CHECK(fixture.is_left_empty());
        return in_time;
    }));
}

TEST_CASE_TEMPLATE("a waiter that leaves tells the next one what it may have been told", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture;
    fixture.b.queue_up(fixture.redis);
    fixture.c.queue_up(fixture.redis);
    fixture.redis.integer("INCR", "seats");  // nobody is told
    fixture.b.stop.request_stop();
    CHECK_FALSE(fixture.b.visit.get());
    CHECK(fixture.c.enters());
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("a process takes what it needs, and the next one is told of the rest", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture;
    fixture.b.queue_up(fixture.redis, 3);
    fixture.c.queue_up(fixture.redis, 2);
    // The first of the queue has been told of all of them, and takes a part.
    fixture.redis.integer("HSET", places_key, fixture.b.client.id(), "7 5 99999999999999 0");
    fixture.a.seats.release(5);
    CHECK(fixture.b.enters());
    CHECK(fixture.c.enters());
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("those who queue hear the release of a client that knows nothing of the queue", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture;
    Party<Kind> old{fixture.server, without_grants()};
    for (const bool is_java : {false, true}) {
        Party<Kind> e{fixture.server};
        e.queue_up(fixture.redis);
        if (is_java) {
            fixture.redis.integer("INCR", "seats");
            fixture.redis.integer("PUBLISH", channel, "1");
        } else {
            old.seats.release();
        }
        CHECK(e.enters());
    }
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("a release sends the message to all only if somebody may need it", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture;
    // Returns how many messages to all the release of a permit sends, for which a client queues up.
    const auto messages_of_release = [&] {
        Party<Kind> waiting{fixture.server};
        waiting.queue_up(fixture.redis);
        RawRedis monitor{fixture.server};
        monitor.call("MONITOR");
        fixture.a.seats.release();
        CHECK(waiting.enters());
        REQUIRE(fixture.is_left_empty());
        fixture.redis.text("ECHO", "the end");
        int count = 0;
        for (std::string line; line.find("the end") == std::string::npos; line = monitor.receive().string)
            count += line.find(R"("PUBLISH" "redisson_sc:{seats}" )") != std::string::npos;
        return count;
    };
    CHECK(messages_of_release() == 0);
    {
        RawRedis foreign{fixture.server};
        foreign.call("SUBSCRIBE", channel);
        CHECK(messages_of_release() == 1);
    }
    REQUIRE(eventually([&] { return fixture.redis.subscribers(channel) == 0; }, 20s));
    CHECK(messages_of_release() == 0);
    // Somebody may listen there.
    const RedisServer replica{{.args = {"--replicaof", "127.0.0.1 " + std::to_string(fixture.server.port())}}};
    REQUIRE(eventually(
        [&] { return fixture.redis.text("INFO", "replication").find("connected_slaves:1") != std::string::npos; },
        20s));
    CHECK(messages_of_release() == 1);
}

TEST_CASE_TEMPLATE("a client that knows nothing of the queue hears the releases of the others", Kind, Semaphore,
                   LeasedSemaphore) {
    Fixture<Kind> fixture;
    Party<Kind> old{fixture.server, without_grants()};
    Deaf first{fixture, '1'};
    auto visit = start([&] { return old.seats.acquire(), true; });
    REQUIRE(eventually([&] { return fixture.redis.subscribers(channel) == 2; }, 20s));
    commands_when_quiet(old.client);
    fixture.a.seats.release();
    CHECK(visit.wait_for(4s) == std::future_status::ready);
}

TEST_CASE_TEMPLATE("after a lost connection those who queue ask", Kind, Semaphore, LeasedSemaphore) {
    Fixture<Kind> fixture;
    fixture.b.queue_up(fixture.redis);
    fixture.redis.integer("INCR", "seats");
    REQUIRE(fixture.redis.kill_clients("pubsub") == 1);
    CHECK(fixture.b.enters());
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("a place for which nobody waits is left when its client is told", Kind, Semaphore, LeasedSemaphore) {
    Fixture<Kind> fixture;
    fixture.b.queue_up(fixture.redis);
    fixture.b.stop.request_stop();
    CHECK_FALSE(fixture.b.visit.get());
    REQUIRE(fixture.is_left_empty());
    // A question that arrives late. The client listens for a while.
    fixture.put(fixture.b.client.id(), 1, 99);
    fixture.c.queue_up(fixture.redis);
    fixture.a.seats.release();
    CHECK(fixture.c.enters());
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("a question that fails leaves no place", Kind, Semaphore, LeasedSemaphore) {
    Fixture<Kind> fixture;
    Proxy proxy{fixture.server.url()};
    Party<Kind> e{proxy.url(), ClientOptions{.command_timeout = 300ms, .unreachable_timeout = 600ms}};
    REQUIRE(
        eventually([&] { return !code_of([&] { CHECK_FALSE(e.seats.try_acquire()); }); }));  // 300 ms may be too few
    proxy.drop_next_replies(100, std::string(acquire_of<Kind>.digest()));
    std::error_code ec;
    CHECK_FALSE(e.seats.try_acquire_for(20s, ec));
    CHECK(ec);
    CHECK(fixture.is_left_empty());
}

TEST_CASE_TEMPLATE("without the rights to the queue's keys, or to its channel, clients wait as ever", Kind, Semaphore,
                   LeasedSemaphore) {
    using Rights = std::vector<std::string>;
    for (const Rights& rights : {Rights{"~seats", "~{seats}:timeout", "~redlatch_semaphore_requests:*",
                                        "~redlatch_permit_requests:*", "~redisson_sc:*", "&*"},
                                 Rights{"~*", "resetchannels", "&redisson_sc:{seats}"}}) {
        CAPTURE(rights.front());
        Fixture<Kind> fixture;
        fixture.redis.text("ACL", "SETUSER", "limited", "on", ">secret", "+@all");
        for (const std::string& right : rights) fixture.redis.text("ACL", "SETUSER", "limited", right);
        const std::string url = fixture.server.url_of("limited");
        Party<Kind> limited{url};
        auto visit = start([&] { return limited.seats.acquire(), true; });
        REQUIRE(eventually([&] { return fixture.redis.subscribers(channel) == 1; }, 20s));
        commands_when_quiet(limited.client);
        fixture.a.seats.release();
        CHECK(visit.wait_for(4s) == std::future_status::ready);
        fixture.b.queue_up(fixture.redis);
        limited.seats.release();
        CHECK(fixture.b.enters());
    }
}

TEST_CASE("a client whose user loses the right to the queue's keys gives its permits back all the same") {
    Fixture<LeasedSemaphore> fixture;
    fixture.redis.text("ACL", "SETUSER", "limited", "on", ">secret", "+@all", "~*", "&*");
    const std::string url = fixture.server.url_of("limited");
    Client client{url};
    PermitExpirableSemaphore seats{client, "seats"};
    fixture.a.seats.release();
    {
        const redlatch::Permit permit{seats};
        fixture.redis.text("ACL", "SETUSER", "limited", "resetkeys", "~seats", "~{seats}:timeout",
                           "~redlatch_permit_requests:*", "~redisson_sc:*");
    }
    CHECK(eventually([&] { return fixture.redis.text("GET", "seats") == "1"; }, 20s));
}
