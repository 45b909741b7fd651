// SPDX-License-Identifier: MIT
// Several callers act for one Owner at the same time: what is sent in each order of events, and what each is told.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <stop_token>
#include <string>
#include <system_error>

#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"
#include "support/without_grants.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr Owner alice{7};

// --- what compiles -----------------------------------------------------------------------------------------------

template <class... Arguments>
concept LocksWith = requires(RLock& lock, Arguments... arguments) {
    lock.lock(arguments...);
};

static_assert(LocksWith<Owner> && LocksWith<Owner, Lease> && LocksWith<Owner, Lease, std::stop_token>);
static_assert(LocksWith<Owner, Lease, std::stop_token, std::error_code&> && LocksWith<Owner, std::error_code&>);
static_assert(!LocksWith<Lease, Owner> && !LocksWith<std::stop_token, Owner> && !LocksWith<Owner, Owner>);
static_assert(!LocksWith<std::error_code&, Owner> && !LocksWith<int>);

template <class... Arguments>
concept Again = requires(Hold& hold, Arguments... arguments) {
    hold.again(arguments...);
};
static_assert(Again<Lease> && !Again<Owner>);

// Permits and counts have no owner.
template <class Primitive>
concept TakesAnOwner = requires(Primitive& primitive) {
    primitive.acquire(alice);
}
|| requires(Primitive& primitive) { primitive.try_acquire_for(1s, alice); }
|| requires(Primitive& primitive) { primitive.wait(alice); };
static_assert(!TakesAnOwner<Semaphore> && !TakesAnOwner<PermitExpirableSemaphore> && !TakesAnOwner<CountDownLatch>);

// --- the fixture ---------------------------------------------------------------------------------------------------

struct Fixture {
    Fixture() { redis.confirm_by_hand(); }

    std::string owner(std::uint64_t number) const { return client.id() + ":" + std::to_string(number); }

    // Locks for the owner in a new thread, whose command gets no reply yet.
    std::future<bool> begin_to_lock(const std::string& what = "acquire") {
        const std::size_t before = redis.count(what);
        redis.next(what, ScriptedRedis::hold_back);
        auto locked = start([this] { return lock.try_lock_for(1h, alice); });
        CHECK(redis.wait_for(what, before + 1));
        return locked;
    }

    // The same for an unlock.
    std::future<std::error_code> begin_to_unlock() {
        const std::size_t before = redis.count("release");
        redis.next("release", ScriptedRedis::hold_back);
        auto unlocked = start([this] { return unlock(); });
        CHECK(redis.wait_for("release", before + 1));
        return unlocked;
    }

    std::error_code unlock() {
        std::error_code ec;
        lock.unlock(alice, ec);
        return ec;
    }

    // Answers the command of this name that was sent as number `which`, counted from 0.
    void answer(const std::string& what, std::size_t which, const Reply& reply) {
        redis.answer(redis.sent(what).at(which), reply);
    }

    // Checks the level and the hold's number of a command to acquire.
    bool acquires(std::size_t which, std::uint64_t number, const std::string& level) const {
        const SentCommand sent = redis.sent("acquire").at(which);
        return sent.argument(0) == owner(number) && sent.argument(1) == level;
    }

    ScriptedRedis redis{};
    Client client{redis.transport(), without_grants()};
    RLock lock{client, "orders"};
};

}  // namespace

TEST_CASE("threads, objects and the program's owners have numbers of their own, 64 bits each") {
    using Sort = OwnerNumber::Sort;
    for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
        CHECK(OwnerNumber(Owner(n)) == OwnerNumber(n, Sort::program));
        CHECK(OwnerNumber(Owner(n)) != OwnerNumber(n));
        CHECK(OwnerNumber(Owner(n)) != OwnerNumber(n, Sort::object));
        CHECK(Owner(n).number() == n);
    }
    CHECK(OwnerNumber(this_thread_number()).sort == Sort::thread);
    CHECK(new_hold_owner().sort == Sort::object);
    CHECK(new_hold_owner() != new_hold_owner());
}

TEST_CASE("a caller that waits gets a level when another caller of its owner acquires the lock") {
    Fixture fixture;
    auto first = fixture.begin_to_lock();
    fixture.redis.next("acquire", number(30'000));
    auto second = start([&] { return fixture.lock.try_lock_for(1h, alice); });
    REQUIRE(fixture.redis.wait_until_wanted("redisson_lock__channel:{orders}"));
    fixture.answer("acquire", 0, nil());
    CHECK(first.get());
    CHECK(second.get());
    REQUIRE(fixture.redis.count("acquire") == 3);
    CHECK(fixture.acquires(1, 2, "1"));
    CHECK(fixture.acquires(2, 1, "2"));
    CHECK_FALSE(fixture.unlock());
    CHECK_FALSE(fixture.unlock());
    CHECK(fixture.unlock() == errc::not_owner);
}

TEST_CASE("so does one whose command is refused after the other has acquired it, with one try, too") {
    for (const bool one_try : {false, true}) {
        CAPTURE(one_try);
        Fixture fixture;
        auto first = fixture.begin_to_lock();
        fixture.redis.next("acquire", ScriptedRedis::hold_back);
        auto second =
            start([&] { return one_try ? fixture.lock.try_lock(alice) : fixture.lock.try_lock_for(1h, alice); });
        REQUIRE(fixture.redis.wait_for("acquire", 2));
        fixture.answer("acquire", 0, nil());
        CHECK(first.get());
        fixture.answer("acquire", 1, number(30'000));
        CHECK(second.get());
        CHECK(fixture.acquires(2, 1, "2"));
        CHECK_FALSE(fixture.unlock());
        CHECK_FALSE(fixture.unlock());
    }
}

TEST_CASE("without reentry a try is false and a call that waits throws, after the other has acquired it as before") {
    for (const bool one_try : {false, true}) {
        CAPTURE(one_try);
        Fixture fixture;
        NonReentrantLock strict{fixture.client, "orders"};
        auto first = fixture.begin_to_lock();
        fixture.redis.next("acquire", ScriptedRedis::hold_back);
        auto second = start([&] {
            std::error_code ec;
            const bool held = one_try ? strict.try_lock(alice, ec) : strict.try_lock_for(1h, alice, ec);
            CHECK_FALSE(held);
            return ec;
        });
        REQUIRE(fixture.redis.wait_for("acquire", 2));
        fixture.answer("acquire", 0, nil());
        CHECK(first.get());
        fixture.answer("acquire", 1, number(30'000));
        CHECK(second.get() == (one_try ? std::error_code() : make_error_code(errc::would_deadlock)));
        CHECK(fixture.redis.count("acquire") == 2);
        CHECK_FALSE(fixture.unlock());
        CHECK(fixture.unlock() == errc::not_owner);
    }
}

// As when the server has lost its data between the two commands.
TEST_CASE("if both of two callers are granted a first hold, one is given back, and both have a level of the other") {
    Fixture fixture;
    auto first = fixture.begin_to_lock();
    auto second = fixture.begin_to_lock();
    fixture.answer("acquire", 1, nil());
    CHECK(second.get());
    fixture.answer("acquire", 0, nil());
    CHECK(first.get());
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).words.back() == fixture.owner(1));
    CHECK(fixture.acquires(2, 2, "2"));
    CHECK_FALSE(fixture.unlock());
    CHECK_FALSE(fixture.unlock());
    CHECK(fixture.unlock() == errc::not_owner);
}

TEST_CASE("two callers that add a level at the same time both have one") {
    Fixture fixture;
    fixture.lock.lock(alice);
    auto first = fixture.begin_to_lock();
    auto second = fixture.begin_to_lock();
    fixture.answer("acquire", 2, nil());
    fixture.answer("acquire", 1, nil());
    CHECK(first.get());
    CHECK(second.get());
    // The server was told of two levels twice.
    fixture.redis.next("HGET", text("2"));
    CHECK(fixture.lock.hold_count(alice) == 3);
    for (const char* const remaining : {"2", "1", "0"}) {
        CHECK_FALSE(fixture.unlock());
        CHECK(fixture.redis.sent("release").back().argument(1) == remaining);
    }
}

TEST_CASE("a caller that adds a level while another releases the last one acquires the lock anew") {
    for (const bool was_first : {false, true}) {
        CAPTURE(was_first);
        Fixture fixture;
        fixture.lock.lock(alice);
        auto adding = fixture.begin_to_lock();
        CHECK_FALSE(fixture.unlock());
        // The server saw it before the release, or after.
        fixture.answer("acquire", 1, was_first ? nil() : number(-2));
        CHECK(adding.get());
        CHECK(fixture.acquires(1, 1, "2"));
        CHECK(fixture.acquires(2, 2, "1"));
        CHECK_FALSE(fixture.unlock());
        // The release has ended what the command may have added.
        CHECK(fixture.redis.count("give up") == 0);
        CHECK(fixture.client.stats().lost_holds == 0);
    }
}

TEST_CASE("an unlock whose reply comes after that of the last unlock reports no loss") {
    for (const bool overtaken : {false, true}) {
        CAPTURE(overtaken);
        Fixture fixture;
        fixture.lock.lock(alice);
        fixture.lock.lock(alice);
        auto slow = fixture.begin_to_unlock();
        CHECK_FALSE(fixture.unlock());
        fixture.answer("release", 0, overtaken ? nil() : number(-1));
        CHECK_FALSE(slow.get());
        CHECK(fixture.client.stats().lost_holds == 0);
        CHECK(fixture.unlock() == errc::not_owner);
    }
}

TEST_CASE("an unlock whose hold is lost before its reply comes reports the loss") {
    Fixture fixture;
    fixture.lock.lock(alice);
    fixture.lock.lock(alice);
    auto slow = fixture.begin_to_unlock();
    fixture.redis.next("HKEYS", array({text(fixture.owner(1))}));
    CHECK(fixture.lock.force_unlock());
    // The next hold of the owner is not that hold.
    fixture.lock.lock(alice);
    fixture.answer("release", 0, number(-1));
    CHECK(slow.get() == errc::hold_lost);
    CHECK(fixture.lock.valid_until(alice) > Clock::now());
}

TEST_CASE("a level that is added to a hold which is lost meanwhile is given back, and acquired anew") {
    Fixture fixture;
    fixture.lock.lock(alice);
    auto adding = fixture.begin_to_lock();
    fixture.redis.next("HKEYS", array({text(fixture.owner(1))}));
    CHECK(fixture.lock.force_unlock());
    fixture.answer("acquire", 1, nil());
    CHECK(adding.get());
    CHECK(fixture.acquires(2, 2, "1"));
    REQUIRE(fixture.redis.wait_for("give up", 2));
    CHECK(fixture.redis.sent("give up").at(1).words.back() == fixture.owner(1));
}

TEST_CASE("a hold is handed over from one owner to another, or released if that one has acquired the lock meanwhile") {
    Fixture fixture;
    fixture.lock.lock();
    auto successor = start([&] { return fixture.lock.try_lock_for(1h, alice); });
    REQUIRE(eventually([&] { return fixture.client.stats().waits == 1; }));
    REQUIRE(fixture.redis.wait_until_wanted("redisson_lock__channel:{orders}"));
    fixture.redis.next("hand over", ScriptedRedis::hold_back);
    auto unlocked = start([&] {
        std::error_code ec;
        // Another thread cannot release the hold of this one.
        fixture.lock.unlock(ec);
        return ec;
    });
    CHECK(unlocked.get() == errc::not_owner);
    auto handing = start([&] {
        REQUIRE(fixture.redis.wait_for("hand over"));
        // The server lost its data, so another caller of the owner is granted a hold of its own.
        CHECK(fixture.lock.try_lock(alice));
        fixture.answer("hand over", 0, number(1));
    });
    fixture.lock.unlock();
    handing.get();
    CHECK(successor.get());
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).words.back() == fixture.redis.sent("hand over").at(0).argument(1));
    CHECK(fixture.redis.sent("acquire").back().argument(1) == "2");
    CHECK_FALSE(fixture.unlock());
    CHECK_FALSE(fixture.unlock());
    CHECK(fixture.unlock() == errc::not_owner);
}

// A waiter of a FairLock stands in the queue under the number of an earlier hold, whose channel is still subscribed. A
// late command of that hold would add a level to the next one.
TEST_CASE("the number of a fair hold is not used again while another caller's command names it") {
    Fixture fixture;
    FairLock fair{fixture.client, "fair"};
    const std::string channel = "redisson_lock__channel:{fair}:" + fixture.owner(1);
    fixture.redis.next("fair acquire", number(30'000));
    auto first = start([&] { return fair.try_lock_for(1h, alice); });
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    REQUIRE(fixture.redis.confirm(channel));
    CHECK(first.get());
    fixture.redis.next("fair acquire", ScriptedRedis::hold_back);
    auto adding = start([&] { return fair.try_lock_for(1h, alice); });
    REQUIRE(fixture.redis.wait_for("fair acquire", 3));
    fair.unlock(alice);
    CHECK(fair.try_lock_for(1h, Owner{8}));
    CHECK(fixture.redis.sent("fair acquire").at(3).argument(2) == fixture.owner(2));
    fixture.redis.answer(fixture.redis.sent("fair acquire").at(2), number(-2));
    // It stands in the queue now, until the other owner releases the lock.
    CHECK(adding.get());
}

TEST_CASE("a writer is asked for by its number when a caller of its owner waits as a reader") {
    Fixture fixture;
    ReadWriteLock lock{fixture.client, "pages"};
    fixture.redis.always("read acquire", [&](const SentCommand& sent) {
        return std::optional(sent.argument(3) == fixture.owner(0) + ":write" ? number(3'600'000) : nil());
    });
    std::atomic<pid_t> waiting = 0;
    auto reader = start([&] {
        waiting = this_thread_id();
        return lock.try_lock_shared_for(20s, alice);
    });
    REQUIRE(fixture.redis.wait_until_wanted("redisson_rwlock:{pages}"));
    REQUIRE(fixture.redis.confirm("redisson_rwlock:{pages}"));
    REQUIRE(fixture.redis.wait_for("read acquire", 2));
    REQUIRE(eventually([&] { return is_asleep(waiting); }));
    CHECK(lock.try_lock(alice));
    // Before the first renewal of the writer, which lets the reader look, too.
    REQUIRE(reader.wait_for(patient(5s)) == std::future_status::ready);
    CHECK(reader.get());
    CHECK(fixture.redis.sent("read acquire").back().argument(3) ==
          fixture.redis.sent("write acquire").at(0).argument(0));
}
