// SPDX-License-Identifier: MIT
// A command that arrives long after its sender has given it up: the kernel, a proxy or a load balancer may hold what a
// closed connection had in it. It ends no later hold, and takes nothing that anybody would have to wait for.
#include "faults/fault_kit.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

// A command is given up soon; a lease lasts for much longer than a late copy may hold anybody up.
ClientOptions hasty() {
    ClientOptions options = unhurried();
    options.command_timeout = command_timeout;
    return options;
}

// What a late acquire may cost others: until its instant has passed, it was released once more, and the machine has had
// time for that. A lease is far longer.
constexpr auto a_moment = 8s;

// One kind of lock: what of it a rule of the proxy strikes, and what it leaves in Redis.
template <class LockType>
struct Kind;

template <>
struct Kind<RLock<>> {
    static constexpr const Script& acquire = digested<scripts::rlock_acquire>;
    static constexpr const Script& release = digested<scripts::rlock_release>;
};
template <>
struct Kind<FencedLock<>> {
    static constexpr const Script& acquire = digested<scripts::fenced_acquire>;
    static constexpr const Script& release = digested<scripts::rlock_release>;
};
template <>
struct Kind<FairLock<>> {
    static constexpr const Script& acquire = digested<scripts::fair_acquire>;
    static constexpr const Script& release = digested<scripts::fair_release>;
};
template <>
struct Kind<ReadWriteLock<>::ReadLock> {
    static constexpr const Script& acquire = digested<scripts::read_acquire>;
    static constexpr const Script& release = digested<scripts::read_release>;
};
template <>
struct Kind<ReadWriteLock<>::WriteLock> {
    static constexpr const Script& acquire = digested<scripts::write_acquire>;
    static constexpr const Script& release = digested<scripts::write_release>;
};

// A server with all scripts, a proxy before it, and a client behind that.
struct LatePath : FaultyPath {
    LatePath() {
        for (const Script* script :
             {&digested<scripts::fenced_acquire>, &digested<scripts::fair_acquire>, &digested<scripts::fair_release>,
              &digested<scripts::read_acquire>, &digested<scripts::read_release>, &digested<scripts::write_acquire>,
              &digested<scripts::write_release>, &digested<scripts::mutex_acquire>, &digested<scripts::mutex_release>})
            redis.text("SCRIPT", "LOAD", script->text);
    }

    // How many scripts the server has run.
    long long scripts_run() {
        const std::string stats = redis.text("INFO", "commandstats");
        const auto at = stats.find("cmdstat_evalsha:calls=");
        return at == std::string::npos ? 0 : std::stoll(stats.substr(at + 22));
    }

    // Lets the copy through that was held back, and waits until the server has run it.
    void let_through(long long at_least = 1) {
        const long long before = scripts_run();
        proxy.release();
        REQUIRE(eventually([&] { return scripts_run() >= before + at_least; }));
    }

    // Whatever marks a release has left, their time is over.
    void expire_marks() {
        for (const std::string& key : redis.list("KEYS", "*"))
            if (key.find("latch:") != std::string::npos || key.find("redlatch_request") != std::string::npos)
                redis.integer("DEL", key);
    }
};

// The lock of a client of its own, behind nothing.
template <class Test>
void with_every_lock(Test test) {
    const auto of_a_name = [&](const char* kind, auto make) {
        CAPTURE(kind);
        LatePath path;
        Client client{path.url(), hasty()};
        Client other{path.server.url(), hasty()};
        const auto mine = make(client);
        const auto theirs = make(other);
        test(path, mine->lock(), theirs->lock());
    };
    // Side by side, because the sides of a read-write lock live in it.
    struct R {
        R(Client<>& c) : l(c, "orders") {}
        RLock<> l;
        auto& lock() const { return const_cast<R*>(this)->l; }
    };
    struct N {
        N(Client<>& c) : l(c, "orders") {}
        FencedLock<> l;
        auto& lock() const { return const_cast<N*>(this)->l; }
    };
    struct F {
        F(Client<>& c) : l(c, "orders") {}
        FairLock<> l;
        auto& lock() const { return const_cast<F*>(this)->l; }
    };
    struct W {
        W(Client<>& c) : l(c, "orders") {}
        ReadWriteLock<> l;
        auto& lock() const { return const_cast<W*>(this)->l.write_lock(); }
    };
    of_a_name("RLock", [](Client<>& c) { return std::make_unique<R>(c); });
    of_a_name("FencedLock", [](Client<>& c) { return std::make_unique<N>(c); });
    of_a_name("FairLock", [](Client<>& c) { return std::make_unique<F>(c); });
    of_a_name("WriteLock", [](Client<>& c) { return std::make_unique<W>(c); });
}

template <class LockType>
std::string acquire_of(LockType&) {
    return std::string(Kind<LockType>::acquire.digest());
}
template <class LockType>
std::string release_of(LockType&) {
    return std::string(Kind<LockType>::release.digest());
}

}  // namespace

// The same thread had the lock anew when the first copy of its release arrived: beyond the time of every mark, it deleted
// the new hold, and others came in.
TEST_CASE("fault: late copies: a release that arrives after the same thread has locked anew ends nothing") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        mine.lock();
        path.proxy.hold_next_requests(1, release_of(mine));
        std::error_code ec;
        mine.unlock(ec);
        REQUIRE(path.proxy.counts().held == 1);
        REQUIRE(eventually([&] { return !path.redis.exists("orders"); }));
        REQUIRE(mine.try_lock_for(20s));
        path.expire_marks();
        path.let_through();
        CHECK(mine.hold_count() == 1);
        CHECK_FALSE(theirs.try_lock());
        CHECK_FALSE(mine.lost().stop_requested());
        mine.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(path.redis.exists("orders"));
    });
}

TEST_CASE(
    "fault: late copies: a read release that arrives after the same thread reads anew ends nothing, also below a "
    "writer") {
    LatePath path;
    Client client{path.url(), hasty()};
    Client other{path.server.url(), hasty()};
    ReadWriteLock orders{client, "orders"};
    ReadWriteLock theirs{other, "orders"};
    for (const bool as_writer : {false, true}) {
        CAPTURE(as_writer);
        if (as_writer) orders.lock();
        orders.lock_shared();
        path.proxy.hold_next_requests(1, release_of(orders.read_lock()));
        std::error_code ec;
        orders.unlock_shared(ec);
        REQUIRE(path.proxy.counts().held == 1);
        REQUIRE(eventually([&] { return orders.read_lock().hold_count() == 0; }));
        REQUIRE(orders.try_lock_shared_for(20s));
        if (as_writer) orders.unlock();
        path.expire_marks();
        path.let_through();
        CHECK(orders.read_lock().hold_count() == 1);
        CHECK_FALSE(theirs.try_lock());
        orders.unlock_shared();
        CHECK(eventually([&] { return !path.redis.exists("orders"); }));
    }
}

// Nobody would have given back what it takes: the lock was nobody's for a whole lease.
TEST_CASE("fault: late copies: an acquire that arrives after the unlock holds the lock for no longer than a moment") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        for (const bool at_once : {true, false}) {
            CAPTURE(at_once);
            path.proxy.hold_next_requests(1, acquire_of(mine));
            mine.lock();
            REQUIRE(path.proxy.counts().held == 1);
            mine.unlock();
            // Beyond the instant until which it was wanted, or perhaps before it.
            if (!at_once) std::this_thread::sleep_for(2 * command_timeout + 200ms);
            path.let_through();
            CHECK(theirs.try_lock_for(a_moment));
            theirs.unlock();
            CHECK(eventually([&] { return !path.redis.exists("orders"); }));
        }
    });
}

TEST_CASE(
    "fault: late copies: an acquire that arrives after a try in vain holds the lock for no longer than a moment") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        for (const bool at_once : {true, false}) {
            CAPTURE(at_once);
            theirs.lock();
            path.proxy.hold_next_requests(1, acquire_of(mine));
            CHECK_FALSE(mine.try_lock_for(1s));
            REQUIRE(path.proxy.counts().held == 1);
            theirs.unlock();
            if (!at_once) std::this_thread::sleep_for(2 * command_timeout + 200ms);
            path.let_through();
            CHECK(theirs.try_lock_for(a_moment));
            theirs.unlock();
            CHECK(eventually([&] { return !path.redis.exists("orders"); }));
        }
    });
}

TEST_CASE("fault: late copies: a reader that arrives late keeps no writer out for longer than a moment") {
    LatePath path;
    Client client{path.url(), hasty()};
    Client other{path.server.url(), hasty()};
    ReadWriteLock orders{client, "orders"};
    ReadWriteLock theirs{other, "orders"};
    path.proxy.hold_next_requests(1, acquire_of(orders.read_lock()));
    orders.lock_shared();
    REQUIRE(path.proxy.counts().held == 1);
    orders.unlock_shared();
    path.let_through();
    CHECK(theirs.try_lock_for(a_moment));
    theirs.unlock();
    CHECK(eventually([&] { return !path.redis.exists("orders"); }));
}

// The plain command has no script that could look at the time; it says when the lease is over instead.
TEST_CASE("fault: late copies: a mutex's plain command holds no longer than the first lease would have lasted") {
    LatePath path;
    Client client{path.url(), hasty()};
    Client other{path.server.url(), hasty()};
    Mutex orders{client, "orders"};
    Mutex theirs{other, "orders"};
    const auto lease = paced(3000ms);
    const auto begun = Clock::now();
    path.proxy.hold_next_requests(1, "PXAT");
    orders.lock(Lease{lease});
    REQUIRE(path.proxy.counts().held == 1);
    orders.unlock();
    std::this_thread::sleep_until(begun + lease + 500ms);
    path.proxy.release();
    REQUIRE(eventually(
        [&] { return path.redis.text("INFO", "commandstats").find("cmdstat_set:calls=1") != std::string::npos; }));
    CHECK(theirs.try_lock());
    theirs.unlock();
}

TEST_CASE("fault: late copies: a forced release that arrives late, or twice, ends no later hold") {
    with_every_lock([](LatePath& path, auto& mine, auto& theirs) {
        theirs.lock();
        // The first copy is executed, its reply is lost, and the second one arrives when another hold is there.
        path.proxy.drop_next_replies(1, "redlatch_request", Then::silence);
        auto forced = start([&] { return mine.force_unlock(); });
        REQUIRE(eventually([&] { return !path.redis.exists("orders"); }));
        std::error_code ec;
        theirs.unlock(ec);
        REQUIRE(theirs.try_lock_for(20s));
        CHECK(forced.get());
        CHECK(theirs.hold_count() == 1);
        theirs.unlock();
    });
}

// The hand-over's first copy arrives when the heir has released the lock, and others hold it.
TEST_CASE("fault: late copies: a hand-over that arrives late changes nothing") {
    LatePath path;
    Client client{path.url(), hasty()};
    Client other{path.server.url(), hasty()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    path.proxy.hold_next_requests(1, hand_over_digest);
    for (int round = 0; round < 50 && path.proxy.counts().held == 0; ++round) {
        orders.lock();
        const auto waits = client.stats().waits;
        auto heir = start([&] {
            orders.lock();
            orders.unlock();
        });
        REQUIRE(eventually([&] { return client.stats().waits > waits && listeners(path.redis, "orders") == 1; }));
        orders.unlock();
        heir.get();
    }
    REQUIRE(path.proxy.counts().held == 1);
    REQUIRE(theirs.try_lock_for(20s));
    path.let_through();
    CHECK(theirs.hold_count() == 1);
    CHECK(path.redis.list("HVALS", "orders") == std::vector<std::string>{"1"});
    theirs.unlock();
    CHECK_FALSE(path.redis.exists("orders"));
}
