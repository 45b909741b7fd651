// SPDX-License-Identifier: MIT
// Owner: a logical owner that the program numbers, in place of the calling thread; of every kind of lock.
// ctest: in_memory
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/plain_counter.hpp"

#include "integration/lock/lock_kinds.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr Owner alice{7};
constexpr Owner bob{8};

// The read side, as a lock of its own. Readers do not exclude each other.
Kind read_side() {
    return {"ReadLock", [](Client& client) {
                auto whole = std::make_shared<ReadWriteLock>(client, "orders");
                return std::shared_ptr<LockApi>(whole, &whole->read_lock());
            }};
}

const std::array reentrant_kinds{kind<RLock>("RLock"),
                                 kind<FairLock>("FairLock"),
                                 kind<FencedLock>("FencedLock"),
                                 kind<SpinLock>("SpinLock"),
                                 kind<ReadWriteLock>("ReadWriteLock"),
                                 several<MultiLock, RLock, FairLock, SpinLock>("MultiLock")};

// Runs the function in as many threads at once, and waits for all.
void in_threads(int threads, const std::function<void(int)>& function) {
    std::vector<std::future<void>> all;
    for (int i = 0; i < threads; ++i) all.push_back(start([&function, i] { function(i); }));
    for (std::future<void>& one : all) one.get();
}

std::error_code unlock(LockApi& lock, Owner owner) {
    std::error_code ec;
    lock.unlock(owner, ec);
    return ec;
}

}  // namespace

TEST_CASE("levels of one owner nest, whatever threads they come from, and any thread may release them") {
    for (const Kind& kind : reentrant_kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        lock->lock(alice);
        CHECK(elsewhere([&] { return lock->try_lock(alice); }));
        CHECK(elsewhere([&] { return lock->try_lock_for(20s, alice, Lease(20s)); }));
        CHECK(elsewhere([&] { return lock->hold_count(alice); }) == 3);
        CHECK(lock->is_held(alice));
        CHECK(lock->is_held_by(alice));
        CHECK(elsewhere([&] { return lock->valid_until(alice); }) > Clock::now() + 10s);
        CHECK_FALSE(lock->lost(alice).stop_requested());
        CHECK(elsewhere([&] { return unlock(*lock, alice); }) == std::error_code());
        CHECK(unlock(*lock, alice) == std::error_code());
        CHECK(lock->hold_count(alice) == 1);
        CHECK(elsewhere([&] { return unlock(*lock, alice); }) == std::error_code());
        CHECK_FALSE(lock->is_held_by(alice));
        CHECK(lock->valid_until(alice) == Instant::min());
        CHECK(lock->lost(alice).stop_requested());
        CHECK(unlock(*lock, alice) == errc::not_owner);
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("two owners exclude each other in one thread, and so do an owner, a thread and an object") {
    for (const Kind& kind : reentrant_kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        lock->lock(alice);
        CHECK_FALSE(lock->try_lock(bob));
        CHECK_FALSE(lock->try_lock_for(20ms, bob));
        CHECK_FALSE(lock->try_lock());
        CHECK_FALSE(lock->try_hold());
        CHECK_FALSE(lock->is_held(bob));
        CHECK_FALSE(lock->is_held());
        CHECK(lock->hold_count() == 0);
        CHECK(unlock(*lock, bob) == errc::not_owner);
        CHECK(code_of([&] { lock->unlock(bob); }) == errc::not_owner);
        CHECK(code_of([&] { lock->unlock(); }) == errc::not_owner);
        lock->unlock(alice);
        lock->lock();
        CHECK_FALSE(lock->try_lock(alice));
        CHECK(unlock(*lock, alice) == errc::not_owner);
        lock->unlock();
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("every 64-bit number is an owner of its own, beside threads and objects with the same number") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    const std::uint64_t thread = this_thread_number();
    for (const std::uint64_t number : {std::uint64_t{0}, thread, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) + 1,
                                       std::numeric_limits<std::uint64_t>::max()}) {
        CAPTURE(number);
        lock.lock(Owner{number});
        CHECK_FALSE(lock.try_lock(Owner{number ^ 1}));
        CHECK_FALSE(lock.try_lock(Owner{number ^ (std::uint64_t{1} << 63)}));
        CHECK_FALSE(lock.try_lock());
        lock.unlock(Owner{number});
        const Hold hold = lock.hold();
        CHECK_FALSE(lock.try_lock(Owner{number}));
        CHECK_FALSE(lock.try_lock(Owner{hold.owner()}));
    }
}

TEST_CASE("the owner's number is not sent: each first hold has a fresh number of the client") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    lock.lock(alice);
    const auto first = lock.inspect().holders.at(0);
    CHECK(first.client == fixture.client.id());
    CHECK(lock.is_held_by(first.owner));
    lock.unlock(alice);
    lock.lock(alice);
    CHECK(lock.inspect().holders.at(0).number > first.number);
    lock.unlock(alice);
    // Another client's owner of that number is another owner.
    Client other{fixture.server.url()};
    RLock theirs{other, "orders"};
    lock.lock(alice);
    CHECK_FALSE(theirs.try_lock(alice));
    CHECK_FALSE(theirs.is_held_by(alice));
    lock.unlock(alice);
}

TEST_CASE("threads of one owner that lock at the same time are all inside at the same time") {
    constexpr int threads = 8;
    for (const Kind& kind : reentrant_kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        std::barrier all_inside{threads};
        std::atomic<int> wrong{0};
        for (int round = 0; round < 5; ++round) {
            in_threads(threads, [&](int) {
                lock->lock(alice);
                all_inside.arrive_and_wait();
                if (lock->hold_count(alice) != threads) ++wrong;
                all_inside.arrive_and_wait();
                if (unlock(*lock, alice)) ++wrong;
            });
            CHECK(wrong == 0);
            CHECK(fixture.is_clean());
        }
        CHECK(unlock(*lock, alice) == errc::not_owner);
        CHECK(fixture.client.stats().lost_holds == 0);
    }
}

TEST_CASE("threads of one owner that wait for another owner all enter when one of them acquires the lock") {
    constexpr int threads = 8;
    for (const Kind& kind : reentrant_kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        lock->lock(bob);
        std::barrier all_inside{threads};
        std::vector<std::future<std::error_code>> waiting;
        for (int i = 0; i < threads; ++i)
            waiting.push_back(start([&, i] {
                if (i % 2 == 0)
                    lock->lock(alice);
                else if (!lock->try_lock_for(60s, alice))
                    return make_error_code(errc::unreachable);
                all_inside.arrive_and_wait();
                return unlock(*lock, alice);
            }));
        CHECK(has_waiters(fixture.client, threads));
        lock->unlock(bob);
        for (auto& thread : waiting) CHECK(thread.get() == std::error_code());
        CHECK(eventually([&] { return fixture.is_clean(); }));
        CHECK(fixture.client.stats().lost_holds == 0);
    }
}

// Within an owner only the program excludes its threads from each other: here by a std::mutex.
TEST_CASE("two owners of four threads each: no overlap, no lost level, no wrong result of an unlock") {
    constexpr int threads = 8, turns = 25;
    for (const Kind& kind : reentrant_kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        PlainCounter counter;
        std::array<std::mutex, 2> within;
        std::atomic<int> wrong{0};
        in_threads(threads, [&](int thread) {
            const Owner owner = thread % 2 == 0 ? alice : bob;
            for (int turn = 0; turn < turns; ++turn) {
                lock->lock(owner);
                {
                    const std::lock_guard guard{within[thread % 2 == 0 ? 0 : 1]};
                    counter.add_one();
                }
                if (turn % 5 == 0) {
                    if (!lock->try_lock_for(60s, owner)) ++wrong;
                    if (unlock(*lock, owner)) ++wrong;
                }
                if (lock->valid_until(owner) <= Clock::now()) ++wrong;
                if (unlock(*lock, owner)) ++wrong;
            }
        });
        CHECK(counter.value() == threads * turns);
        CHECK(wrong == 0);
        CHECK(unlock(*lock, alice) == errc::not_owner);
        CHECK(unlock(*lock, bob) == errc::not_owner);
        CHECK(fixture.client.stats().lost_holds == 0);
        CHECK(eventually([&] { return fixture.is_clean(); }));
    }
}

TEST_CASE("a hold outlives the thread that acquired it for an owner") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    std::thread([&] { lock.lock(alice); }).join();
    CHECK(lock.is_held(alice));
    lock.unlock(alice);
    CHECK(fixture.is_clean());
}

TEST_CASE("an object has one level of an owner, and gives back that one") {
    for (const Kind& kind : reentrant_kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        Hold outer = lock->hold(alice);
        REQUIRE(outer);
        CHECK(lock->hold_count(alice) == 1);
        CHECK_FALSE(lock->try_hold());
        CHECK_FALSE(lock->try_hold(bob));
        Hold inner = lock->async_try_lock_for(20s, alice).get();
        REQUIRE(inner);
        CHECK(lock->hold_count(alice) == 2);
        lock->lock(alice);
        Hold again = inner.again();
        CHECK(lock->hold_count(alice) == 4);
        CHECK(again.unlock() == std::error_code());
        CHECK(outer.unlock() == std::error_code());
        CHECK(inner.unlock() == std::error_code());
        CHECK(lock->hold_count(alice) == 1);
        CHECK(unlock(*lock, alice) == std::error_code());
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("operations of one owner complete together when one of them acquires the lock") {
    for (const Kind& kind : reentrant_kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        lock->lock(bob);
        std::vector<std::future<Hold>> later;
        for (int i = 0; i < 4; ++i) later.push_back(lock->async_lock(alice).future());
        CHECK(has_waiters(fixture.client, 4));
        lock->unlock(bob);
        std::vector<Hold> holds;
        for (auto& one : later) holds.push_back(one.get());
        CHECK(lock->hold_count(alice) == 4);
        holds.clear();
        CHECK(eventually([&] { return fixture.is_clean(); }));
    }
}

TEST_CASE("a waiting call of an owner gives up at its deadline and by its token, and leaves the other levels alone") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    lock.lock(bob);
    CHECK_FALSE(lock.try_lock_for(30ms, alice));
    std::stop_source stop;
    auto waiting = start_waiting(fixture.client, [&] { return lock.lock(alice, stop.get_token()); });
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(lock.hold_count(bob) == 1);
    lock.unlock(bob);
    CHECK(fixture.is_clean());
}

TEST_CASE("an owner learns of a lost hold once a level, by its unlock() and by lost()") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    lock.lock(alice);
    lock.lock(alice);
    const std::stop_token lost = lock.lost(alice);
    fixture.redis.integer("DEL", "orders");
    CHECK(unlock(lock, alice) == errc::hold_lost);
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(elsewhere([&] { return unlock(lock, alice); }) == errc::hold_lost);
    CHECK(unlock(lock, alice) == errc::not_owner);

    lock.lock(alice, Lease(50ms));
    const std::stop_token ended = lock.lost(alice);
    CHECK(eventually([&] { return ended.stop_requested(); }, 20s));
    CHECK(unlock(lock, alice) == errc::hold_lost);
}

TEST_CASE("a Mutex is not reentrant for an owner, whichever thread asks") {
    Fixture fixture;
    Mutex mutex{fixture.client, "mutex"};
    mutex.lock(alice);
    CHECK(code_of([&] { mutex.lock(alice); }) == errc::would_deadlock);
    CHECK(elsewhere([&] { return code_of([&] { static_cast<void>(mutex.try_lock(alice)); }); }) ==
          errc::would_deadlock);
    CHECK(text_of_error([&] { mutex.lock(alice); }).find("thread") == std::string::npos);
    CHECK_FALSE(mutex.try_lock(bob));
    CHECK(mutex.is_held_by(alice));
    CHECK(mutex.hold_count(alice) == 1);
    // Of two threads of an owner that wait, one acquires it and the other would wait for its own owner.
    std::atomic<int> held{0}, refused{0};
    auto one = [&] {
        if (code_of([&] { mutex.lock(bob); }) == errc::would_deadlock)
            ++refused;
        else
            ++held;
    };
    auto first = start_waiting(fixture.client, one);
    auto second = start_waiting(fixture.client, one);
    mutex.unlock(alice);
    first.get();
    second.get();
    CHECK(held == 1);
    CHECK(refused == 1);
    mutex.unlock(bob);
}

TEST_CASE("both sides of a ReadWriteLock know an owner: the writer may read, the reader must not write") {
    Fixture fixture;
    ReadWriteLock lock{fixture.client, "orders"};
    lock.lock(alice);
    CHECK(elsewhere([&] { return lock.try_lock_shared(alice); }));
    CHECK_FALSE(lock.try_lock_shared(bob));
    CHECK_FALSE(lock.try_lock_shared());
    lock.unlock(alice);
    CHECK(lock.read_lock().is_held_by(alice));
    CHECK_FALSE(lock.is_held_by(alice));
    CHECK(lock.try_lock_shared(bob));
    CHECK(elsewhere([&] { return code_of([&] { lock.lock(alice); }); }) == errc::would_deadlock);
    CHECK(code_of([&] { static_cast<void>(lock.try_hold(alice)); }) == errc::would_deadlock);
    CHECK_FALSE(lock.try_lock());
    std::error_code ec;
    lock.unlock_shared(alice, ec);
    CHECK_FALSE(ec);
    lock.unlock_shared(bob);
    lock.unlock_shared(bob, ec);
    CHECK(ec == errc::not_owner);
    CHECK(fixture.is_clean());
}

TEST_CASE("threads of one owner that read at the same time, beside another owner that reads") {
    constexpr int threads = 8, turns = 20;
    Fixture fixture;
    const Kind kind = read_side();
    const auto lock = kind.make(fixture.client);
    std::atomic<int> wrong{0};
    in_threads(threads, [&](int thread) {
        const Owner owner = thread % 4 == 0 ? bob : alice;
        for (int turn = 0; turn < turns; ++turn) {
            lock->lock(owner);
            if (lock->valid_until(owner) <= Clock::now()) ++wrong;
            if (unlock(*lock, owner)) ++wrong;
        }
    });
    CHECK(wrong == 0);
    CHECK(unlock(*lock, alice) == errc::not_owner);
    CHECK(eventually([&] { return fixture.is_clean(); }));
}

// A thread that held the write side queued up behind readers of its process, which waited for it.
TEST_CASE("the writer becomes a reader although others of its process wait for the read side") {
    Fixture fixture;
    ReadWriteLock lock{fixture.client, "orders"};
    lock.lock();
    auto reader = start_waiting(fixture.client, [&] { return lock.try_lock_shared_for(20s, bob); });
    CHECK(lock.try_lock_shared_for(20s));
    CHECK(lock.try_lock_shared());
    lock.unlock();
    CHECK(reader.get());
    lock.unlock_shared();
    lock.unlock_shared();
    lock.unlock_shared(bob);
    lock.lock(alice);
    reader = start_waiting(fixture.client, [&] { return lock.try_lock_shared_for(20s, bob); });
    CHECK(lock.try_lock_shared_for(20s, alice));
    lock.unlock_shared(alice);
    lock.unlock(alice);
    CHECK(reader.get());
    lock.unlock_shared(bob);
}

TEST_CASE("a reader that waits is let in when another thread of its owner becomes the writer") {
    Fixture fixture;
    ReadWriteLock lock{fixture.client, "orders"};
    for (int round = 0; round < 5; ++round) {
        lock.lock(bob);
        const auto waits = fixture.client.stats().waits;
        auto reader = start([&] { return lock.try_lock_shared_for(20s, alice); });
        CHECK(has_waiters(fixture.client, waits + 1));
        auto writer = start([&] { return lock.try_lock_for(20s, alice); });
        CHECK(has_waiters(fixture.client, waits + 2));
        lock.unlock(bob);
        // If the reader was first, the writer waits for it.
        const bool read = reader.get();
        CHECK(read);
        lock.unlock_shared(alice);
        CHECK(writer.get());
        lock.unlock(alice);
    }
    CHECK(fixture.is_clean());
}

TEST_CASE("the token of a FencedLock belongs to the owner") {
    Fixture fixture;
    FencedLock lock{fixture.client, "orders"};
    const std::int64_t token = lock.lock_and_get_token(alice);
    CHECK(elsewhere([&] { return lock.token(alice) == token; }));
    CHECK(lock.try_lock_and_get_token(alice) == token);
    CHECK(lock.try_lock_and_get_token_for(20s, alice, Lease(20s)) == token);
    CHECK_FALSE(lock.try_lock_and_get_token(bob));
    CHECK(code_of([&] { static_cast<void>(lock.token(bob)); }) == errc::not_owner);
    std::error_code ec;
    CHECK(lock.token(ec) == 0);
    CHECK(ec == errc::not_owner);
    CHECK(lock.token(alice, ec) == token);
    for (int level = 0; level < 3; ++level) lock.unlock(alice);
    CHECK(fixture.is_clean());
}

TEST_CASE("a lock over several that is destroyed gives back what belongs to no thread") {
    Fixture fixture;
    RLock a{fixture.client, "a"}, b{fixture.client, "b"};
    Hold hold;
    {
        MultiLock both{a, b};
        both.lock(alice);
        hold = both.hold(alice);
        CHECK(hold.owner() == 0);
        CHECK(both.is_held_by(alice));
        CHECK_FALSE(both.is_held_by(hold.owner()));
    }
    CHECK(eventually([&] { return fixture.is_clean(); }));
    CHECK(hold.unlock() == errc::hold_lost);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a forked child does not have the holds of its parent's owners") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    lock.lock(alice);
    const pid_t child = ::fork();
    if (child == 0) {
        std::error_code ec;
        lock.unlock(alice, ec);
        ::_exit(ec == errc::hold_lost && lock.valid_until(alice) == Instant::min() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(lock.hold_count(alice) == 1);
    lock.unlock(alice);
}
#endif
