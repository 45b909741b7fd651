// SPDX-License-Identifier: MIT
// NonReentrantLock and NonReentrantFairLock: an RLock and a FairLock whose holder cannot acquire them again.
// ctest: in_memory
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/plain_counter.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr Owner alice{7};
constexpr Owner bob{8};

// The reentrant lock with which a kind shares everything on the server.
template <class Lock>
using ReentrantKind = std::conditional_t<std::is_same_v<Lock, NonReentrantLock>, RLock, FairLock>;

template <class Lock>
struct Fixture {
    // Returns how many commands the call sends.
    template <class Call>
    std::uint64_t commands(Call&& call) {
        const std::uint64_t before = client.stats().commands;
        std::forward<Call>(call)();
        return client.stats().commands - before;
    }

    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Lock orders{client, "orders"};
    Lock theirs{other, "orders"};
    ReentrantKind<Lock> plain{client, "orders"};
};

template <class Lock>
std::error_code unlock(Lock& lock) {
    std::error_code ec;
    lock.unlock(ec);
    return ec;
}

}  // namespace

TEST_CASE_TEMPLATE("a holder cannot acquire the lock again, keeps it, and sends nothing", L, NonReentrantLock,
                   NonReentrantFairLock) {
    Fixture<L> fixture;
    L same{fixture.client, "orders"};
    std::stop_source stop;
    std::error_code ec;
    fixture.orders.lock();
    CHECK(fixture.commands([&] {
        CHECK(code_of([&] { fixture.orders.lock(); }) == errc::would_deadlock);
        CHECK(code_of([&] { same.lock(); }) == errc::would_deadlock);
        CHECK(code_of([&] { return same.lock(Lease(1s), stop.get_token()); }) == errc::would_deadlock);
        CHECK(code_of([&] { return same.try_lock_for(1h); }) == errc::would_deadlock);
        CHECK(code_of([&] { return same.try_lock_until(Clock::now() + 1h); }) == errc::would_deadlock);
        CHECK(text_of_error([&] { fixture.orders.lock(); }).starts_with("orders: "));
        fixture.orders.lock(ec);
        CHECK(ec == std::errc::resource_deadlock_would_occur);
        CHECK_FALSE(fixture.orders.try_lock());
        CHECK_FALSE(same.try_lock(Lease(1s)));
        CHECK_FALSE(same.try_lock(ec));
        CHECK_FALSE(ec);
        CHECK_FALSE(same.try_lock_for(0s));
        CHECK_FALSE(same.try_lock_until(Clock::now()));
    }) == 0);
    CHECK(fixture.orders.hold_count() == 1);
    CHECK_FALSE(elsewhere([&] { return fixture.orders.try_lock(); }));
    CHECK_FALSE(elsewhere([&] { return fixture.theirs.try_lock_for(20ms); }));
    CHECK_FALSE(unlock(same));
    CHECK(unlock(same) == errc::not_owner);
    // A waiter that gave up leaves the queue of a fair lock in the background.
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }));
}

TEST_CASE_TEMPLATE("what a hold leaves on the server is what the reentrant lock leaves", L, NonReentrantLock,
                   NonReentrantFairLock) {
    Fixture<L> fixture;
    fixture.orders.lock(Lease(20s));
    CHECK(fixture.redis.keys() == Words{"orders"});
    CHECK(fixture.redis.hgetall("orders") == Fields{{owner_of(fixture.client, fixture.orders), "1"}});
    CHECK(fixture.redis.pttl("orders") <= 20'000);
    const Inspection found = fixture.theirs.inspect();
    REQUIRE(found.holders.size() == 1);
    CHECK(found.holders[0].owner == owner_of(fixture.client, fixture.plain));
    fixture.orders.unlock();
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE_TEMPLATE("in one process it is one lock with the reentrant one: who holds it by that one holds it", L,
                   NonReentrantLock, NonReentrantFairLock) {
    Fixture<L> fixture;
    fixture.plain.lock();
    CHECK(fixture.commands([&] {
        CHECK(code_of([&] { fixture.orders.lock(); }) == errc::would_deadlock);
        CHECK_FALSE(fixture.orders.try_lock());
    }) == 0);
    CHECK(fixture.orders.is_held());
    CHECK_FALSE(unlock(fixture.orders));
    CHECK_FALSE(fixture.plain.is_locked());

    // The reentrant lock adds levels to any hold of its owner.
    fixture.orders.lock();
    fixture.plain.lock();
    CHECK(fixture.plain.try_lock());
    CHECK(fixture.orders.hold_count() == 3);
    CHECK(code_of([&] { fixture.orders.lock(); }) == errc::would_deadlock);
    CHECK_FALSE(unlock(fixture.orders));
    CHECK_FALSE(unlock(fixture.plain));
    CHECK(fixture.orders.is_held());
    CHECK_FALSE(unlock(fixture.plain));
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE_TEMPLATE("it excludes the reentrant lock of another process, and each wakes the other", L, NonReentrantLock,
                   NonReentrantFairLock) {
    Fixture<L> fixture;
    ReentrantKind<L> reentrant{fixture.other, "orders"};
    fixture.orders.lock();
    CHECK_FALSE(reentrant.try_lock());
    auto waiting = start_waiting(fixture.other, [&] {
        reentrant.lock();
        reentrant.lock();
        return unlock(reentrant);
    });
    fixture.orders.unlock();
    REQUIRE(ready(waiting));
    CHECK_FALSE(waiting.get());
    CHECK_FALSE(fixture.orders.try_lock());
    CHECK(fixture.redis.hgetall("orders").size() == 1);
    CHECK(fixture.theirs.force_unlock());

    reentrant.lock();
    auto back = start_waiting(fixture.client, [&] {
        fixture.orders.lock();
        return unlock(fixture.orders);
    });
    reentrant.unlock();
    REQUIRE(ready(back));
    CHECK_FALSE(back.get());
}

TEST_CASE_TEMPLATE("threads of both kinds and of two clients count under the lock without a lost update", L,
                   NonReentrantLock, NonReentrantFairLock) {
    Fixture<L> fixture;
    PlainCounter counter;
    std::latch all_there{4};
    std::vector<std::future<bool>> threads;
    for (int thread = 0; thread < 4; ++thread)
        threads.push_back(start([&, thread] {
            all_there.arrive_and_wait();
            Client& client = thread < 2 ? fixture.client : fixture.other;
            L lock{client, "orders"};
            ReentrantKind<L> reentrant{client, "orders"};
            for (int i = 0; i < 30; ++i) {
                if (thread % 2 == 0) {
                    const std::lock_guard guard{lock};
                    counter.add_one_unseen();
                } else {
                    const std::scoped_lock guard{reentrant};
                    const std::scoped_lock inner{reentrant};
                    counter.add_one_unseen();
                }
            }
            return true;
        }));
    for (auto& thread : threads) CHECK(ready(thread, 60s));
    CHECK(counter.value() == 120);
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(fixture.client.stats().lost_holds == 0);
}

TEST_CASE_TEMPLATE(
    "an Owner cannot acquire it again, whichever thread asks; of two that wait one would wait for itself", L,
    NonReentrantLock, NonReentrantFairLock) {
    Fixture<L> fixture;
    fixture.plain.lock(alice);
    CHECK(code_of([&] { fixture.orders.lock(alice); }) == errc::would_deadlock);
    CHECK(elsewhere([&] { return code_of([&] { fixture.orders.lock(alice); }); }) == errc::would_deadlock);
    CHECK_FALSE(elsewhere([&] { return fixture.orders.try_lock(alice); }));
    CHECK_FALSE(fixture.orders.try_lock(bob));
    CHECK(fixture.orders.is_held_by(alice));
    CHECK(fixture.orders.hold_count(alice) == 1);
    CHECK_FALSE(fixture.orders.try_hold(alice));
    CHECK(code_of([&] { static_cast<void>(fixture.orders.hold(alice)); }) == errc::would_deadlock);
    CHECK_FALSE(fixture.orders.async_try_lock(alice).get());
    CHECK(code_of([&] { static_cast<void>(fixture.orders.async_lock(alice).get()); }) == errc::would_deadlock);

    std::atomic<int> held{0}, refused{0};
    const auto one = [&] {
        if (code_of([&] { fixture.orders.lock(bob); }) == errc::would_deadlock)
            ++refused;
        else
            ++held;
    };
    auto first = start_waiting(fixture.client, one);
    auto second = start_waiting(fixture.client, one);
    fixture.orders.unlock(alice);
    first.get();
    second.get();
    CHECK(held == 1);
    CHECK(refused == 1);
    fixture.orders.unlock(bob);
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }));
}

TEST_CASE_TEMPLATE("an object's hold has one level, and again() is refused as lock() would have been", L,
                   NonReentrantLock, NonReentrantFairLock) {
    Fixture<L> fixture;
    Hold hold = fixture.orders.hold();
    CHECK(fixture.commands([&] { CHECK(code_of([&] { static_cast<void>(hold.again()); }) == errc::would_deadlock); }) ==
          0);
    std::error_code ec;
    CHECK_FALSE(hold.again(ec));
    CHECK(ec == errc::would_deadlock);
    // Another owner, as for every lock: this thread and another object.
    CHECK_FALSE(fixture.orders.try_lock());
    CHECK_FALSE(fixture.orders.try_hold());
    CHECK_FALSE(hold.unlock());
    // Through the reentrant lock, the same hold nests.
    Hold outer = fixture.plain.hold(alice);
    Hold inner = outer.again();
    CHECK_FALSE(fixture.orders.try_hold(alice));
    CHECK_FALSE(outer.unlock());
    CHECK_FALSE(inner.unlock());
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE_TEMPLATE("after a loss its owner can acquire it anew, and each lost hold still needs its unlock()", L,
                   NonReentrantLock, NonReentrantFairLock) {
    Fixture<L> fixture;
    fixture.orders.lock(Lease(50ms));
    const std::stop_token lost = fixture.orders.lost();
    REQUIRE(eventually([&] { return lost.stop_requested(); }, 20s));
    fixture.orders.lock();
    CHECK(fixture.orders.hold_count() == 1);
    CHECK_FALSE(unlock(fixture.orders));
    CHECK(unlock(fixture.orders) == errc::hold_lost);
    CHECK(unlock(fixture.orders) == errc::not_owner);
}

TEST_CASE_TEMPLATE("a MultiLock with such a member is not reentrant, and its other members are given back", L,
                   NonReentrantLock, NonReentrantFairLock) {
    Fixture<L> fixture;
    RLock stock{fixture.client, "stock"};
    MultiLock both{fixture.orders, stock};
    both.lock();
    CHECK(code_of([&] { both.lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return both.try_lock(); }) == errc::would_deadlock);
    CHECK(fixture.orders.is_held());
    CHECK(eventually([&] { return stock.hold_count() == 1; }, 20s));
    both.unlock();
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }, std::chrono::seconds{20}));
    // The member decides by its own kind, not by that of the object that made the state of its name.
    MultiLock reentrant{fixture.plain, stock};
    reentrant.lock();
    CHECK(reentrant.try_lock());
    reentrant.unlock();
    reentrant.unlock();
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }));
}
