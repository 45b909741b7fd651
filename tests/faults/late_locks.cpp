// SPDX-License-Identifier: MIT
// A command that arrives long after its sender has given it up: the kernel, a proxy or a load balancer may still hold
// the bytes of a closed connection. Such a copy must not end a later hold, nor take a lock for longer than a moment.
#include <type_traits>

#include "faults/fault_kit.hpp"
#include "support/command_monitor.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// How long a command is wanted, and how long its sender waits for the reply.
constexpr std::chrono::milliseconds wanted = paced(2000ms);

// How long a late acquire may block others: until its instant has passed, it is released once more, and a busy machine
// has had time for that. A lease is far longer.
constexpr std::chrono::milliseconds a_moment = wanted + paced(6000ms);

ClientOptions options() {
    ClientOptions options = unhurried();
    options.command_timeout = wanted;
    return options;
}

// The scripts of one kind of lock, which a rule of the proxy matches.
struct Digests {
    std::string acquire;
    std::string release;
};

Digests digests(const Script& acquire, const Script& release) {
    return {std::string{acquire.digest()}, std::string{release.digest()}};
}

const Digests read_digests = digests(digested<scripts::read_acquire>, digested<scripts::read_release>);

Digests digests_of(const RLock&) { return {acquire_digest, release_digest}; }
Digests digests_of(const FencedLock&) {
    return digests(digested<scripts::fenced_acquire>, digested<scripts::rlock_release>);
}
Digests digests_of(const FairLock&) {
    return digests(digested<scripts::fair_acquire>, digested<scripts::fair_release>);
}
Digests digests_of(const ReadWriteLock&) {
    return digests(digested<scripts::write_acquire>, digested<scripts::write_release>);
}

// Returns whether one of a few tries succeeds. A busy machine may spoil some.
template <class Try>
bool succeeds_once(Try attempt) {
    for (int tries = 0; tries < 5; ++tries)
        if (attempt()) return true;
    return false;
}

// A server with all scripts, a proxy in front of it, and the means to delay commands.
struct LatePath : FaultyPath {
    LatePath() {
        for (const Script* script :
             {&digested<scripts::fenced_acquire>, &digested<scripts::fair_acquire>, &digested<scripts::fair_release>,
              &digested<scripts::fair_leave>, &digested<scripts::read_acquire>, &digested<scripts::read_release>,
              &digested<scripts::write_acquire>, &digested<scripts::write_release>, &digested<scripts::write_give_up>,
              &digested<scripts::mutex_acquire>, &digested<scripts::mutex_release>})
            redis.text("SCRIPT", "LOAD", script->text);
    }

    // Forwards the copy that was held back, and waits until the server has received it.
    void let_through(const std::string& containing) {
        CommandMonitor monitor{server};
        proxy.release();
        REQUIRE(eventually([&] {
            for (const std::string& line : monitor.take_lines())
                if (line.find(containing) != std::string::npos) return true;
            return false;
        }));
    }

    // Holds back the next such request. Soon closes the sender's connection, so that it sends the command again.
    template <class Call>
    void delay_a_copy(const std::string& containing, Call call) {
        proxy.hold_next_requests(1, containing);
        auto network = start([&] {
            const bool struck = eventually([&] { return proxy.counts().held == 1; });
            proxy.half_close(Side::client);
            return struck;
        });
        call();
        REQUIRE(network.get());
    }

    // Deletes the marks that releases left, as if they had expired.
    void expire_marks() {
        for (const std::string& key : redis.list("KEYS", "*"))
            if (key.find("latch:") != std::string::npos || key.find("redlatch_request") != std::string::npos)
                redis.integer("DEL", key);
    }
};

// A lock of a client behind the proxy, and one of another client that bypasses it.
template <class Lock, class Test>
void with_lock(const char* kind, Test test) {
    CAPTURE(kind);
    LatePath path;
    Client client{path.url(), options()};
    Client other{path.server.url(), options()};
    Lock mine{client, "orders"};
    Lock theirs{other, "orders"};
    test(path, mine, theirs);
}

template <class Test>
void with_every_lock(Test test) {
    with_lock<RLock>("RLock", test);
    with_lock<FencedLock>("FencedLock", test);
    with_lock<FairLock>("FairLock", test);
    with_lock<ReadWriteLock>("writers of a ReadWriteLock", test);
}

}  // namespace

// Regression: the same thread held the lock again when the first copy of its release arrived. That was after the time
// of every mark, so it deleted the new hold, and others entered.
TEST_CASE("fault: late copies: a release that arrives after the same thread has locked again ends nothing") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        const Digests names = digests_of(mine);
        mine.lock();
        std::error_code ec;
        path.delay_a_copy(names.release, [&] { mine.unlock(ec); });
        CHECK_FALSE(ec);
        REQUIRE(mine.try_lock_for(20s));
        path.expire_marks();
        path.let_through(names.release);
        CHECK(mine.hold_count() == 1);
        CHECK_FALSE(theirs.try_lock());
        CHECK_FALSE(mine.lost().stop_requested());
        mine.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(path.redis.exists("orders"));
    });
}

TEST_CASE(
    "fault: late copies: a read release that arrives after the same thread reads again ends nothing, also below a "
    "writer") {
    with_lock<ReadWriteLock>("readers", [](LatePath& path, auto& orders, auto& theirs) {
        for (const bool as_writer : {false, true}) {
            CAPTURE(as_writer);
            if (as_writer) orders.lock();
            orders.lock_shared();
            std::error_code ec;
            path.delay_a_copy(read_digests.release, [&] { orders.unlock_shared(ec); });
            CHECK_FALSE(ec);
            REQUIRE(orders.read_lock().hold_count() == 0);
            REQUIRE(orders.try_lock_shared_for(20s));
            if (as_writer) orders.unlock();
            path.expire_marks();
            path.let_through(read_digests.release);
            CHECK(orders.read_lock().hold_count() == 1);
            CHECK_FALSE(theirs.try_lock());
            orders.unlock_shared();
            CHECK(path.redis.keys().empty());
        }
    });
}

// Regression: nothing released what the copy acquired, so the lock had no owner for a whole lease.
TEST_CASE("fault: late copies: a renewal that arrives after the same thread has locked again prolongs nothing") {
    ClientOptions short_leases = options();
    short_leases.watchdog_timeout = paced(4500ms);
    const Lease lease{short_leases.watchdog_timeout / 2};
    const auto with = [&](const char* kind, const Script& script, auto lock_of) {
        return start([&, kind, lock_of, renewal = std::string{script.digest()}] {
            CAPTURE(kind);
            LatePath path;
            path.redis.text("SCRIPT", "LOAD", script.text);
            Client client{path.url(), short_leases};
            const std::shared_ptr<LockApi> orders = lock_of(client);
            // The first thread may share the connection of the renewals. Then the second one does not.
            for (int round = 0; round < 2; ++round) {
                start([&] {
                    path.proxy.hold_next_requests(1, renewal);
                    orders->lock();
                    CHECK(eventually([&] { return path.proxy.counts().held == 1; }));
                    orders->unlock();
                    orders->lock(lease);
                    path.let_through(renewal);
                    CHECK(orders->remaining_lease().value_or(0ms) <= lease.length());
                    orders->unlock();
                }).get();
            }
        });
    };
    std::vector<std::future<void>> all;
    all.push_back(with("RLock", digested<scripts::rlock_renew>,
                       [](Client& client) { return std::make_shared<RLock>(client, "orders"); }));
    all.push_back(with("FairLock", digested<scripts::rlock_renew>,
                       [](Client& client) { return std::make_shared<FairLock>(client, "orders"); }));
    all.push_back(with("Mutex", digested<scripts::mutex_renew>,
                       [](Client& client) { return std::make_shared<Mutex>(client, "orders"); }));
    all.push_back(with("writer", digested<scripts::rlock_renew>,
                       [](Client& client) { return std::make_shared<ReadWriteLock>(client, "orders"); }));
    all.push_back(with("reader", digested<scripts::read_renew>, [](Client& client) {
        const auto both = std::make_shared<ReadWriteLock>(client, "orders");
        return std::shared_ptr<LockApi>(both, &both->read_lock());
    }));
    for (auto& one : all) one.get();
}

TEST_CASE("fault: late copies: an acquire that arrives after the unlock holds the lock for no longer than a moment") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        const Digests names = digests_of(mine);
        // Before its instant the copy takes the lock. Repeat if a busy machine let that instant pass.
        CHECK(succeeds_once([&] {
            path.delay_a_copy(names.acquire, [&] { mine.lock(); });
            mine.unlock();
            path.let_through(names.acquire);
            const bool taken = path.redis.exists("orders");
            REQUIRE(theirs.try_lock_for(a_moment));
            theirs.unlock();
            CHECK(path.redis.keys("orders").empty());
            return taken;
        }));
        // After its instant it takes nothing.
        path.delay_a_copy(names.acquire, [&] { mine.lock(); });
        mine.unlock();
        std::this_thread::sleep_for(wanted + 200ms);
        path.let_through(names.acquire);
        CHECK_FALSE(path.redis.exists("orders"));
        CHECK(theirs.try_lock());
        theirs.unlock();
        CHECK(path.redis.keys("orders").empty());
    });
}

TEST_CASE("fault: late copies: an acquire that arrives after a failed try holds the lock for no longer than a moment") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        const Digests names = digests_of(mine);
        // The second copy is refused while another client holds the lock. The first one arrives when the lock is free.
        CHECK(succeeds_once([&] {
            theirs.lock();
            path.delay_a_copy(names.acquire, [&] { CHECK_FALSE(mine.try_lock_for(500ms)); });
            theirs.unlock();
            path.let_through(names.acquire);
            const bool taken = path.redis.exists("orders");
            REQUIRE(theirs.try_lock_for(a_moment));
            theirs.unlock();
            CHECK(path.redis.keys("orders").empty());
            return taken;
        }));
        // The only copy arrives when it is wanted no more, or arrives soon and is followed by the command that gives it
        // up.
        for (const bool soon : {true, false}) {
            CAPTURE(soon);
            theirs.lock();
            path.proxy.hold_next_requests(1, names.acquire);
            CHECK_FALSE(mine.try_lock_for(50ms));
            REQUIRE(path.proxy.counts().held == 1);
            theirs.unlock();
            if (!soon) std::this_thread::sleep_for(wanted + 200ms);
            path.let_through(names.acquire);
            if (!soon) CHECK_FALSE(path.redis.exists("orders"));
            REQUIRE(theirs.try_lock_for(a_moment));
            theirs.unlock();
            CHECK(path.redis.keys("orders").empty());
        }
    });
}

TEST_CASE("fault: late copies: a waiter's acquire that arrives late leaves no place in the queue") {
    with_lock<FairLock>("FairLock", [](LatePath& path, auto& mine, auto& theirs) {
        const std::string queue = "redisson_lock_queue:{orders}";
        const std::string acquire = digests_of(mine).acquire;
        theirs.lock();
        // In time: it enters the queue, and its place is given up again. Too late: it has no effect.
        for (const bool in_time : {true, false}) {
            CAPTURE(in_time);
            path.proxy.hold_next_requests(1, acquire);
            CHECK_FALSE(mine.try_lock_for(50ms));
            REQUIRE(path.proxy.counts().held == 1);
            if (!in_time) std::this_thread::sleep_for(wanted + 200ms);
            path.let_through(acquire);
            if (!in_time) CHECK_FALSE(path.redis.exists(queue));
            CHECK(eventually([&] { return path.redis.keys() == std::vector<std::string>{"orders"}; }, a_moment));
        }
        theirs.unlock();
    });
}

TEST_CASE("fault: late copies: a reader that arrives late blocks a writer for no longer than a moment") {
    with_lock<ReadWriteLock>("readers", [](LatePath& path, auto& orders, auto& theirs) {
        CHECK(succeeds_once([&] {
            path.delay_a_copy(read_digests.acquire, [&] { orders.lock_shared(); });
            orders.unlock_shared();
            path.let_through(read_digests.acquire);
            const bool taken = path.redis.exists("orders");
            REQUIRE(theirs.try_lock_for(a_moment));
            theirs.unlock();
            CHECK(path.redis.keys().empty());
            return taken;
        }));
        path.delay_a_copy(read_digests.acquire, [&] { orders.lock_shared(); });
        orders.unlock_shared();
        std::this_thread::sleep_for(wanted + 200ms);
        path.let_through(read_digests.acquire);
        CHECK(path.redis.keys().empty());
    });
}

// The plain command has no script that could compare times. It names the instant at which the lease ends instead.
TEST_CASE("fault: late copies: a mutex's plain command holds no longer than the first lease would have lasted") {
    with_lock<Mutex>("Mutex", [](LatePath& path, auto& orders, auto& theirs) {
        const auto lease = paced(3000ms);
        const auto begun = Clock::now();
        path.delay_a_copy("PXAT", [&] { orders.lock(Lease{lease}); });
        orders.unlock();
        std::this_thread::sleep_until(begun + lease + 500ms);
        path.let_through("PXAT");
        CHECK_FALSE(path.redis.exists("orders"));
        CHECK(theirs.try_lock());
        theirs.unlock();
    });
}

// The second command of a forced release names the holder that the first one saw.
TEST_CASE("fault: late copies: a forced release that arrives late, or twice, ends no later hold") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        theirs.lock();
        const std::string give_up{std::is_same_v<decltype(mine), FairLock&> ? digested<scripts::fair_leave>.digest()
                                  : std::is_same_v<decltype(mine), ReadWriteLock&>
                                      ? digested<scripts::write_give_up>.digest()
                                      : digested<scripts::rlock_give_up>.digest()};
        // One of two copies ends the hold. The other one arrives during the next hold.
        bool forced = false;
        path.delay_a_copy(give_up, [&] { forced = mine.force_unlock(); });
        CHECK(forced);
        CHECK_FALSE(path.redis.exists("orders"));
        std::error_code ec;
        theirs.unlock(ec);
        CHECK(ec == errc::hold_lost);
        REQUIRE(theirs.try_lock_for(20s));
        path.let_through(give_up);
        CHECK(theirs.hold_count() == 1);
        CHECK_FALSE(theirs.lost().stop_requested());
        theirs.unlock();
        CHECK(path.redis.keys("orders").empty());
    });
}

// The first copy of the hand-over arrives after the next holder has released the lock, while others hold it.
TEST_CASE("fault: late copies: a hand-over that arrives late changes nothing") {
    with_lock<RLock>("RLock", [](LatePath& path, auto& orders, auto& theirs) {
        Client client{path.url(), options()};
        path.proxy.hold_next_requests(1, hand_over_digest);
        for (int round = 0; round < 50 && path.proxy.counts().held == 0; ++round) {
            RLock lock{client, "orders"};
            lock.lock();
            const auto waits = client.stats().waits;
            auto heir = start([&] {
                lock.lock();
                lock.unlock();
            });
            REQUIRE(eventually([&] { return client.stats().waits > waits && listeners(path.redis, "orders") == 1; }));
            lock.unlock();
            heir.get();
        }
        REQUIRE(path.proxy.counts().held == 1);
        REQUIRE(theirs.try_lock_for(20s));
        path.let_through(hand_over_digest);
        CHECK(theirs.hold_count() == 1);
        CHECK(path.redis.list("HVALS", "orders") == std::vector<std::string>{"1"});
        CHECK_FALSE(orders.is_held());
        theirs.unlock();
        CHECK_FALSE(path.redis.exists("orders"));
    });
}
