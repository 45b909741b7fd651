// SPDX-License-Identifier: MIT
// The in-memory server: all primitives between two clients, its clock, and its faults.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>
#include <redlatch/testing.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace std::chrono_literals;
using redlatch::test::eventually;
using redlatch::test::start;
using redlatch::testing::InMemoryServer;

namespace {

// Two clients of one server: two processes, as far as Redis can tell.
struct Fixture {
    explicit Fixture(const ClientOptions& options = {})
        : one(server.transport(), options), two(server.transport(), options) {}

    InMemoryServer server;
    Client one;
    Client two;
};

// Notes what a transport tells.
struct Told final : Listener {
    void subscribed(const std::string& channel) override { all.push_back("subscribed " + channel); }
    void refused(const std::string& channel, const Reply&) override { all.push_back("refused " + channel); }
    void message(const std::string& channel, std::string_view payload) override {
        all.push_back(channel + " says " + std::string(payload));
    }
    void disconnected() override { all.push_back("disconnected"); }
    void interrupted(const std::string& channel) override { all.push_back("interrupted " + channel); }
    void on_failover() override { all.push_back("failover"); }

    std::vector<std::string> all;
};

using Texts = std::vector<std::string>;

// Waits until the client has waited for a lock that often, and is subscribed.
bool waits(const Client& client, std::uint64_t times = 1) {
    return eventually([&] { return client.stats().waits >= times; });
}

// Whatever the kind of lock: it excludes the other client, a waiter gets it once it is free, and nothing is left.
template <class Lock>
void check_lock(Fixture& f, Lock& mine, Lock& theirs) {
    mine.lock();
    CHECK(mine.is_held());
    CHECK_FALSE(theirs.try_lock());
    CHECK_FALSE(theirs.try_lock_for(20ms));
    const auto before = f.two.stats().waits;
    auto waiting = start([&] {
        theirs.lock();
        const bool held = theirs.is_held();
        theirs.unlock();
        return held;
    });
    CHECK(waits(f.two, before + 1));
    mine.unlock();
    CHECK(waiting.get());
    CHECK_FALSE(mine.is_locked());
}

// Likewise: a lease that is over frees the lock, and a client that waits notices at once.
template <class Lock>
void check_expiry(Fixture& f, Lock& mine, Lock& theirs) {
    mine.lock(Lease{1h});
    const auto before = f.two.stats().waits;
    auto waiting = start([&] {
        const bool held = theirs.try_lock_for(20s) && theirs.is_held();
        if (held) theirs.unlock();
        return held;
    });
    CHECK(waits(f.two, before + 1));
    f.server.advance(59min);
    CHECK(mine.is_held());
    f.server.advance(2min);
    CHECK(waiting.get());
    std::error_code error;
    mine.unlock(error);
    CHECK(error == errc::hold_lost);
}

template <class Lock>
void check(const char* name) {
    CAPTURE(name);
    Fixture f;
    {
        Lock mine(f.one, "orders"), theirs(f.two, "orders");
        check_lock(f, mine, theirs);
        check_expiry(f, mine, theirs);
    }
    // A waiter's place in the queue is left in the background. Only the counter of fencing tokens stays.
    CHECK(eventually([&] {
        const auto keys = f.server.keys();
        return std::ranges::all_of(keys, [](auto& key) { return key == "redisson_lock_token:{orders}"; });
    }));
}

}  // namespace

TEST_CASE("each kind of lock excludes, wakes its waiters, and expires") {
    check<RLock>("RLock");
    check<FairLock>("FairLock");
    check<FencedLock>("FencedLock");
    check<SpinLock>("SpinLock");
    check<Mutex>("Mutex");
    check<NonReentrantLock>("NonReentrantLock");
    check<NonReentrantFairLock>("NonReentrantFairLock");
    check<ReadWriteLock>("ReadWriteLock");
}

TEST_CASE("a lock is reentrant, and both threads of a client take turns") {
    Fixture f;
    RLock orders(f.one, "orders");
    orders.lock();
    orders.lock();
    CHECK(orders.hold_count() == 2);
    auto other = start([&] {
        const std::lock_guard guard(orders);
        return orders.hold_count() == 1;
    });
    CHECK(waits(f.one));
    orders.unlock();
    orders.unlock();
    CHECK(other.get());
    // The other thread's place in the queue is left in the background.
    CHECK(eventually([&] { return f.server.keys().empty(); }));
}

TEST_CASE("readers share, and keep the writer out") {
    Fixture f;
    ReadWriteLock mine(f.one, "prices"), theirs(f.two, "prices");
    std::shared_lock one(mine), two(theirs);
    CHECK_FALSE(start([&] { return mine.try_lock(); }).get());
    auto writer = start([&] {
        const std::lock_guard guard(theirs);
        return theirs.is_held();
    });
    CHECK(waits(f.two));
    one.unlock();
    two.unlock();
    CHECK(writer.get());
}

TEST_CASE("the tokens of a fenced lock grow, also after all data is gone") {
    Fixture f;
    FencedLock mine(f.one, "journal"), theirs(f.two, "journal");
    const auto first = mine.lock_and_get_token();
    mine.unlock();
    const auto second = theirs.lock_and_get_token();
    theirs.unlock();
    CHECK(second > first);
    f.server.flush();
    f.server.advance(1ms);
    CHECK(mine.lock_and_get_token() > second);
    mine.unlock();
}

TEST_CASE("a hold belongs to an object") {
    Fixture f;
    RLock mine(f.one, "orders"), theirs(f.two, "orders");
    Hold hold = mine.hold();
    CHECK_FALSE(theirs.try_lock());
    auto waiting = start([&] { return static_cast<bool>(theirs.try_hold_for(20s)); });
    CHECK(waits(f.two));
    CHECK_FALSE(hold.unlock());
    CHECK(waiting.get());
}

TEST_CASE("a multi lock takes all or none") {
    Fixture f;
    RLock a(f.one, "a"), b(f.one, "b"), their_b(f.two, "b");
    MultiLock both{a, b};
    their_b.lock();
    CHECK_FALSE(both.try_lock());
    CHECK_FALSE(a.is_locked());
    their_b.unlock();
    const std::lock_guard guard(both);
    CHECK_FALSE(their_b.try_lock());
}

TEST_CASE("a red lock needs a majority of three servers") {
    std::array<InMemoryServer, 3> servers;
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<std::unique_ptr<RLock>> locks;
    for (int process = 0; process < 2; ++process)
        for (const InMemoryServer& server : servers) {
            clients.push_back(std::make_unique<Client>(
                server.transport(), ClientOptions{.command_timeout = 2s, .unreachable_timeout = 4s}));
            locks.push_back(std::make_unique<RLock>(*clients.back(), "orders"));
        }
    RedLock mine{*locks[0], *locks[1], *locks[2]};
    RedLock theirs{*locks[3], *locks[4], *locks[5]};
    mine.lock();
    CHECK_FALSE(theirs.try_lock());
    auto waiting = start([&] {
        const bool held = theirs.try_lock_for(20s);
        if (held) theirs.unlock();
        return held;
    });
    mine.unlock();
    CHECK(waiting.get());

    SUBCASE("a minority may be unreachable") {
        servers[0].refuse();
        CHECK(mine.try_lock_for(20s));
        mine.unlock();
    }
    SUBCASE("not a majority") {
        servers[0].refuse();
        servers[1].refuse();
        CHECK_FALSE(mine.try_lock_for(100ms));
    }
    SUBCASE("an expired majority is free") {
        mine.lock(Lease{20s});
        servers[0].advance(30s);
        CHECK_FALSE(theirs.try_lock());
        servers[1].advance(30s);
        CHECK(theirs.try_lock_for(20s));
        theirs.unlock();
        std::error_code error;
        mine.unlock(error);
    }
}

TEST_CASE("a semaphore's permits pass from one client to the other") {
    Fixture f;
    Semaphore mine(f.one, "seats"), theirs(f.two, "seats");
    CHECK(mine.try_set_permits(2));
    mine.acquire(2);
    CHECK_FALSE(theirs.try_acquire());
    auto waiting = start([&] { return theirs.try_acquire_for(20s); });
    CHECK(waits(f.two));
    mine.release();
    CHECK(waiting.get());
    CHECK(mine.available_permits() == 0);
}

TEST_CASE("permits with leases come back when the clock says so") {
    Fixture f;
    PermitExpirableSemaphore mine(f.one, "seats"), theirs(f.two, "seats");
    CHECK(mine.try_set_permits(1));
    const PermitId id = mine.acquire(Lease{1h});
    CHECK_FALSE(theirs.try_acquire());
    auto waiting = start([&] { return theirs.try_acquire_for(20s).has_value(); });
    CHECK(waits(f.two));
    f.server.advance(61min);
    CHECK(waiting.get());
    CHECK_FALSE(mine.try_release(id));
}

TEST_CASE("a latch opens for the waiters of all clients") {
    Fixture f;
    CountDownLatch mine(f.one, "ready"), theirs(f.two, "ready");
    CHECK(mine.try_set_count(2));
    auto waiting = start([&] { return theirs.wait_for(20s); });
    CHECK(waits(f.two));
    mine.count_down();
    CHECK(mine.count() == 1);
    theirs.count_down();
    CHECK(waiting.get());
    CHECK(mine.try_wait());
}

TEST_CASE("the clock runs with real time, stands still, and jumps") {
    InMemoryServer server;
    const auto near_the_present = [&](auto offset) {
        const auto off = server.now() - std::chrono::system_clock::now() - offset;
        return off > -10s && off < 10s;
    };
    CHECK(near_the_present(0s));
    server.advance(1h);
    CHECK(near_the_present(1h));
    const auto before = server.now();
    CHECK(eventually([&] { return server.now() > before; }));
    server.freeze_clock();
    const auto frozen = server.now();
    std::this_thread::sleep_for(5ms);
    CHECK(server.now() == frozen);
    server.advance(5ms);
    CHECK(server.now() == frozen + 5ms);
    server.freeze_clock(false);
    CHECK(eventually([&] { return server.now() > frozen + 5ms; }));
    server.advance(-1h);
    CHECK(near_the_present(0s));
}

TEST_CASE("a lease ends with its last millisecond") {
    InMemoryServer server;
    server.freeze_clock();
    Client client(server.transport());
    RLock orders(client, "orders");
    orders.lock(Lease{100ms});
    CHECK(server.command({"PTTL", "orders"}).integer == 100);
    server.advance(100ms);
    CHECK(server.command({"EXISTS", "orders"}).integer == 1);
    server.advance(1ms);
    CHECK(server.command({"EXISTS", "orders"}).integer == 0);
    std::error_code error;
    orders.unlock(error);
    CHECK(error == errc::hold_lost);
}

TEST_CASE("a level that is released in the last millisecond of the lease leaves no key without a lease") {
    InMemoryServer server;
    server.freeze_clock();
    Client client(server.transport());
    RLock plain(client, "plain");
    FairLock fair(client, "fair");
    FencedLock fenced(client, "fenced");
    ReadWriteLock files(client, "files");
    const auto check = [&](auto& lock, const char* key) {
        CAPTURE(key);
        lock.lock(Lease{1h});
        lock.lock(Lease{1h});
        server.advance(1h);
        CHECK(server.command({"PTTL", key}).integer == 0);
        lock.unlock();
        CHECK(server.command({"PTTL", key}).integer != -1);
        server.advance(2ms);
        CHECK(server.command({"EXISTS", key}).integer == 0);
        std::error_code error;
        lock.unlock(error);
        CHECK(error == errc::hold_lost);
    };
    check(plain, "plain");
    check(fair, "fair");
    check(fenced, "fenced");
    check(files.read_lock(), "files");
    check(files.write_lock(), "files");
}

TEST_CASE("permits that are acquired in the last millisecond of a semaphore end with it") {
    InMemoryServer server;
    server.freeze_clock();
    Client client(server.transport());
    PermitExpirableSemaphore slots(client, "slots");
    REQUIRE(slots.try_set_permits(3, 1h));
    server.advance(1h);
    REQUIRE(server.command({"PTTL", "slots"}).integer == 0);
    REQUIRE(slots.try_acquire(Lease{1h}));
    server.advance(2ms);
    for (const std::string& key : server.keys())
        if (key.find("requests") == std::string::npos) FAIL_CHECK(key);
}

// The client estimates the server's time from an earlier reading. A command that it sends after a jump would come too
// late by its own estimate.
TEST_CASE("the first command after a jump takes effect") {
    Fixture f;
    RLock mine(f.one, "orders");
    Semaphore seats(f.one, "seats");
    Mutex plain(f.one, "plain"), their_plain(f.two, "plain");
    mine.lock();
    mine.unlock();
    for (const auto by : {1h, 24h, -2h, 1h}) {
        f.server.advance(by);
        CHECK(mine.try_lock());
        mine.unlock();
        seats.try_set_permits(1);
        CHECK(seats.try_acquire());
        seats.release();
        CHECK(plain.try_lock());
        plain.unlock();
        f.server.advance(by);
        CHECK(plain.try_lock());  // its plain command would end at once, or far too late
        CHECK_FALSE(their_plain.try_lock());
        CHECK(f.server.command({"PTTL", "plain"}).integer <= 30'000);
        plain.unlock();
    }
}

TEST_CASE("a renewal that comes after a jump is refused, and the hold is lost") {
    Fixture f({.watchdog_timeout = 300ms});
    RLock mine(f.one, "orders"), theirs(f.two, "orders");
    mine.lock();
    const std::stop_token lost = mine.lost();
    f.server.advance(1s);
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK(theirs.try_lock());
    theirs.unlock();
    std::error_code error;
    mine.unlock(error);
    CHECK(error == errc::hold_lost);
}

TEST_CASE("the watchdog keeps a hold while nothing jumps") {
    Fixture f({.watchdog_timeout = 1500ms});
    RLock mine(f.one, "orders"), theirs(f.two, "orders");
    mine.lock();
    CHECK(eventually([&] { return f.one.stats().renewals >= 4; }));
    CHECK_FALSE(theirs.try_lock());
    CHECK_FALSE(mine.lost().stop_requested());
    mine.unlock();
}

TEST_CASE("after a failover all holds are verified, whatever their lease") {
    Fixture f;
    RLock watched(f.one, "watched"), leased(f.one, "leased"), kept(f.one, "kept");
    watched.lock();
    leased.lock(Lease{1h});
    kept.lock(Lease{3h});
    const std::stop_token lost[] = {watched.lost(), leased.lost(), kept.lost()};
    f.server.advance(2h);
    f.server.fail_over();
    CHECK(eventually([&] { return lost[0].stop_requested() && lost[1].stop_requested(); }));
    CHECK_FALSE(lost[2].stop_requested());
    std::error_code error;
    watched.unlock(error);
    leased.unlock(error);
    kept.unlock();
}

TEST_CASE("flush() deletes the holds") {
    Fixture f;
    RLock mine(f.one, "orders"), theirs(f.two, "orders");
    mine.lock();
    const std::stop_token lost = mine.lost();
    f.server.flush();
    CHECK(theirs.try_lock());
    f.server.fail_over();
    CHECK(eventually([&] { return lost.stop_requested(); }));
    theirs.unlock();
    std::error_code error;
    mine.unlock(error);
    CHECK(error == errc::hold_lost);
}

TEST_CASE("a server that refuses is unreachable, and its waiters go on afterwards") {
    Fixture f({.command_timeout = 100ms, .unreachable_timeout = 100ms});
    Client patient(f.server.transport());
    RLock mine(f.one, "orders"), theirs(patient, "orders"), third(f.two, "orders");
    mine.lock();
    auto waiting = start([&] {
        theirs.lock();
        theirs.unlock();
    });
    CHECK(waits(patient));
    f.server.refuse();
    std::error_code error;
    third.lock(error);
    CHECK(error == errc::unreachable);
    mine.unlock(error);  // delivered later
    f.server.refuse(false);
    waiting.get();
    CHECK(third.try_lock_for(20s));
    third.unlock();
}

TEST_CASE("a lost reply is asked for again, and the command takes effect once") {
    Fixture f;
    Semaphore seats(f.one, "seats");
    CHECK(seats.try_set_permits(5));
    f.server.drop_replies(1);
    seats.acquire(2);
    CHECK(seats.available_permits() == 3);
    CHECK(f.one.stats().resends > 0);
    RLock mine(f.one, "orders");
    for (std::size_t count = 1; count < 4; ++count) {
        f.server.drop_replies(count);
        mine.lock();
        CHECK(mine.hold_count() == 1);
        f.server.drop_replies(count);
        mine.unlock();
        f.server.drop_replies(0);
        CHECK(eventually([&] { return f.server.command({"EXISTS", "orders"}).integer == 0; }));
    }
}

TEST_CASE("commands of other programs") {
    Fixture f;
    RLock mine(f.one, "orders");
    CHECK(f.server.command({"SET", "orders", "not a lock"}).text == "OK");
    std::error_code error;
    mine.lock(error);
    CHECK(error == errc::wrong_type);
    CHECK(f.server.command({"HGET", "orders", "field"}).text.starts_with("WRONGTYPE "));
    CHECK(f.server.command({"get", "orders"}).text == "not a lock");
    CHECK(f.server.keys() == std::vector<std::string>{"orders"});
    for (const auto& words : {std::vector<std::string_view>{"FLY"},
                              {"GET"},
                              {"GET", "a", "b"},
                              {"SET", "a", "b", "EX"},
                              {"INCRBY", "orders", "1"},
                              {"EVAL", "return 1"},
                              {"EVAL", "return 1", "2", "a"},
                              {"EVALSHA", "0", "0"},
                              {"EVAL", "return x.y", "0"},
                              {"EVAL", "(", "0"},
                              {}}) {
        CAPTURE(words);
        CHECK(f.server.command(words).is_error());
    }
}

TEST_CASE("there is nothing to warn about") {
    Fixture f;
    CHECK(f.one.check_server().empty());
    CHECK_THROWS_AS((Client{f.server.transport(), {.require_replicas = 1}}), Error);
}

TEST_CASE("replies to posted commands and messages come in order, and only within run()") {
    InMemoryServer server;
    redlatch::testing::InMemoryTransport transport = server.transport();
    Told told;
    const auto post = [&](std::vector<std::string_view> words) {
        transport.post(Command{words}, [&told, name = std::string(words[0])](const Reply& reply) {
            told.all.push_back(name + " " + (reply.is_integer() ? std::to_string(reply.integer) : reply.text));
        });
    };
    transport.subscribe("news");
    post({"INCRBY", "key", "7"});
    post({"PUBLISH", "news", "hello"});
    post({"GET", "key"});
    CHECK(told.all.empty());
    CHECK(server.command({"GET", "key"}).text == "7");  // carried out at once
    transport.run(told, never);
    CHECK(told.all == Texts{"subscribed news", "INCRBY 7", "news says hello", "PUBLISH 1", "GET 7"});

    told.all.clear();
    server.advance(1s);
    server.fail_over();
    server.refuse();
    post({"GET", "key"});
    server.refuse(false);
    transport.run(told, never);
    CHECK(told.all == Texts{"interrupted news", "subscribed news", "failover", "interrupted news", "subscribed news",
                            "disconnected", "GET the in-memory server refuses connections", "subscribed news"});

    told.all.clear();
    transport.unsubscribe("news");
    post({"PUBLISH", "news", "hello"});
    transport.run(told, never);
    CHECK(told.all == Texts{"PUBLISH 0"});

    transport.wake();
    transport.run(told, never);  // it returns, because somebody woke it
    const auto until = Clock::now() + 5ms;
    transport.run(told, until);
    CHECK(Clock::now() >= until);
}

TEST_CASE("a posted command is completed even if nobody runs the transport any more") {
    InMemoryServer server;
    int completed = 0;
    const std::array<std::string_view, 1> words{"PING"};
    {
        redlatch::testing::InMemoryTransport transport = server.transport();
        transport.post({words, 0}, [&](const Reply&) {
            ++completed;
            transport.post({words, 0}, [&](const Reply&) { ++completed; });
        });
    }
    CHECK(completed == 2);
    server.fail_over();  // nobody is there any more
}

TEST_CASE("clients may outlive their server") {
    std::optional<InMemoryServer> server(std::in_place);
    Client client(server->transport());
    server.reset();
    RLock orders(client, "orders");
    const std::lock_guard guard(orders);
    CHECK(orders.is_held());
}

TEST_CASE("a subscription lasts as long as somebody waits, or a little longer") {
    Fixture f;
    RLock mine(f.one, "orders"), theirs(f.two, "orders");
    CHECK(f.server.channels().empty());
    mine.lock();
    CHECK_FALSE(theirs.try_lock_for(20ms));
    CHECK(f.server.channels() == std::vector<std::string>{"redisson_lock__channel:{orders}:" + f.two.id()});
    mine.unlock();
}

TEST_CASE("many threads of several clients on one server") {
    InMemoryServer server;
    volatile int sold = 0;
    {
        std::vector<std::jthread> threads;
        for (int client = 0; client < 3; ++client) {
            const auto shop = std::make_shared<Client>(server.transport());
            for (int thread = 0; thread < 3; ++thread)
                threads.emplace_back([&sold, shop] {
                    RLock orders(*shop, "orders");
                    for (int i = 0; i < 100; ++i) {
                        const std::lock_guard guard(orders);
                        sold = sold + 1;
                    }
                });
        }
        for (int i = 0; i < 20; ++i) {
            server.advance(1ms);
            std::this_thread::sleep_for(1ms);
        }
    }
    CHECK(sold == 900);
    CHECK(eventually([&] { return server.keys().empty(); }));
}
