// SPDX-License-Identifier: MIT
// The calls of the locks, word by word, and what their replies mean. No server and no transport.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "support/call_words.hpp"
#include "support/without_grants.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;
using redlatch::test::without_grants;
using redlatch::test::words_of;

namespace {

const std::string uuid = "01234567-89ab-4cde-8f01-23456789abcd";
const std::string owner7 = uuid + ":7";
const std::string owner8 = uuid + ":8";

struct Fixture {
    explicit Fixture(const ClientOptions& of = without_grants()) : options(of) {}

    ClientOptions options;
    NativeCommands native;
    ProtocolContext context{uuid, options, native};
};

Claim claim_of(std::uint64_t hold) {
    Claim claim;
    claim.owner = 1;
    claim.hold = hold;
    claim.count = 2;
    claim.lease = 30s;
    claim.until = 5000;
    claim.lease_end = 31'998;
    return claim;
}

const std::array<std::string_view, 2> both{owner7, owner8};

Reply error(std::string text) { return Reply::of(Reply::Kind::error, std::move(text)); }

}  // namespace

TEST_CASE("RLock: calls") {
    Fixture fixture;
    const RLockProtocol lock(fixture.context, "orders");
    CHECK(lock.channel() == "redisson_lock__channel:{orders}");
    const Call acquire = lock.acquire(claim_of(7));
    CHECK(acquire.script() == &digested<scripts::rlock_acquire>);
    CHECK(acquire.effect == Effect::grants);
    CHECK(words_of(acquire) == "orders " + owner7 + " 2 30000 5000");
    CHECK(words_of(lock.release(7, 1, 30s)) == "orders " + lock.channel() + ' ' + owner7 + " 1 30000 PUBLISH");
    CHECK(words_of(lock.give_up(both)) == "orders " + lock.channel() + " PUBLISH  " + owner7 + ' ' + owner8);
    const Call hand_over = lock.hand_over(7, claim_of(8));
    CHECK(hand_over.effect == Effect::grants);
    CHECK(words_of(hand_over) == "orders " + lock.channel() + ' ' + owner7 + ' ' + owner8 + " 30000 PUBLISH 5000");
    CHECK(words_of(lock.holders()) == "HKEYS orders");
    CHECK(words_of(lock.is_locked()) == "HLEN orders");
    CHECK(words_of(lock.hold_count(7)) == "HGET orders " + owner7);
    CHECK(words_of(lock.remaining_lease()) == "orders");
}

TEST_CASE("RLock and FencedLock with grants: the calls name the keys of the queue, and the counter of the tokens") {
    Fixture fixture{ClientOptions{}};
    const RLockProtocol plain(fixture.context, "orders");
    const FencedProtocol fenced(fixture.context, "orders");
    const std::string keys =
        "orders redisson_lock__channel:{orders} redlatch_lock_queue:{orders} redlatch_lock_places:{orders} ";
    const std::string counter = "redisson_lock_token:{orders} ";
    Claim queueing = claim_of(7), polling = claim_of(7);
    queueing.queues = true;
    polling.polls = true;
    const std::pair<const LockProtocol*, std::string> locks[]{{&plain, keys}, {&fenced, keys + counter}};
    for (const auto& [lock, all_keys] : locks) {
        CHECK(lock->queues());
        CHECK(lock->grants_channel() == lock->channel() + ":" + uuid);
        const Call acquire = lock->acquire(claim_of(7));
        CHECK(acquire.effect == Effect::grants);
        CHECK(words_of(acquire) == all_keys + owner7 + " 2 30000 5000 PUBLISH 0");
        CHECK(words_of(lock->acquire(queueing)) == all_keys + owner7 + " 2 30000 5000 PUBLISH 1");
        CHECK(words_of(lock->acquire(polling)) == all_keys + owner7 + " 2 30000 5000 PUBLISH 2");
        CHECK(words_of(lock->release(7, 1, 30s)) == all_keys + owner7 + " 1 30000 PUBLISH");
        CHECK(words_of(lock->stay(7, 8, 100ms)) == all_keys + owner7 + ' ' + owner8 + " 100 PUBLISH");
        CHECK(words_of(lock->give_up(both)) == all_keys + "PUBLISH  " + owner7 + ' ' + owner8);
        const Call hand_over = lock->hand_over(7, claim_of(8));
        CHECK(hand_over.effect == Effect::grants);
        CHECK(words_of(hand_over) == all_keys + owner7 + ' ' + owner8 + " 30000 PUBLISH 5000");
    }
    CHECK(plain.acquire(queueing).script() == &digested<scripts::queue_acquire>);
    CHECK(fenced.acquire(queueing).script() == &digested<scripts::fenced_queue_acquire>);

    // Without the rights to the queue they do without it.
    const std::size_t key_count = fenced.acquire(queueing).key_count();
    CHECK_FALSE(fenced.is_queue_refused(key_count, error("OOM command not allowed")));
    CHECK_FALSE(
        fenced.is_queue_refused(key_count, error("NOPERM User x has no permissions to run the 'evalsha' command")));
    CHECK(fenced.queues());
    CHECK_FALSE(fenced.may_not_queue());
    CHECK(fenced.is_queue_refused(key_count, error("NOPERM no permissions")));
    CHECK(fenced.may_not_queue());
    CHECK(fenced.acquire(queueing).script() == &digested<scripts::fenced_acquire>);
    CHECK_FALSE(fenced.is_queue_refused(fenced.acquire(queueing).key_count(), error("NOPERM no permissions")));
    CHECK_FALSE(plain.queues());
    CHECK(plain.acquire(queueing).script() == &digested<scripts::rlock_acquire>);
}

TEST_CASE("FencedLock: what the reply of an acquire means, with and without a place in the queue") {
    using Kind = AcquireAnswer::Kind;
    Fixture fixture{ClientOptions{}};
    const FencedProtocol lock(fixture.context, "orders");
    const auto array = [](std::initializer_list<std::int64_t> numbers) {
        Reply reply;
        reply.kind = Reply::Kind::array;
        for (const std::int64_t number : numbers) reply.elements.push_back(Reply::of(number));
        return reply;
    };
    const AcquireAnswer held = lock.read_acquire(array({1, 42}));
    CHECK(held.kind == Kind::held);
    CHECK(held.token == 42);
    CHECK(lock.read_acquire(array({-2, 0})).kind == Kind::gone);
    const AcquireAnswer blocked = lock.read_acquire(array({0, 700}));
    CHECK(blocked.kind == Kind::blocked);
    CHECK(blocked.holder_lease == 700ms);
    CHECK_FALSE(blocked.queued);
    const AcquireAnswer queued = lock.read_acquire(array({0, 700, 0}));
    CHECK(queued.kind == Kind::blocked);
    CHECK(queued.holder_lease == 700ms);
    CHECK(queued.queued);
    CHECK_FALSE(queued.foreign);
    CHECK(lock.read_acquire(array({0, 700, 1})).foreign);
    for (const Reply& senseless : {array({1, 0}), array({1, 42, 0}), array({-2, 0, 0}), array({0, -1, 0}),
                                   array({2, 1}), array({0}), array({}), Reply{}, Reply::of(0)})
        CHECK_THROWS_AS(lock.read_acquire(senseless), Error);
}

TEST_CASE("a name with a {tag} keeps its extra keys and channels in the slot of the tag") {
    Fixture fixture;
    CHECK(RLockProtocol(fixture.context, "{shop}:orders").channel() == "redisson_lock__channel:{shop}:orders");
    CHECK(words_of(FencedProtocol(fixture.context, "{shop}:orders").acquire(claim_of(7))) ==
          "{shop}:orders redisson_lock_token:{shop}:orders " + owner7 + " 2 30000 5000");
}

TEST_CASE("FencedLock: acquire and hand-over name the counter of the tokens") {
    Fixture fixture;
    const FencedProtocol lock(fixture.context, "orders");
    CHECK(words_of(lock.acquire(claim_of(7))) == "orders redisson_lock_token:{orders} " + owner7 + " 2 30000 5000");
    CHECK(words_of(lock.hand_over(7, claim_of(8))) == "orders redisson_lock_token:{orders} " + lock.channel() + ' ' +
                                                          owner7 + ' ' + owner8 + " 30000 PUBLISH 5000");
    CHECK(lock.release(7, 0, 0ms).script() == &digested<scripts::rlock_release>);
}

TEST_CASE("FairLock: only a call that may queue names a slot") {
    Fixture fixture;
    const FairProtocol lock(fixture.context, "orders");
    const std::string keys =
        "orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} redlatch_lock_slots:{orders} ";
    const std::string channels = "PUBLISH redisson_lock__channel:{orders}: ";
    CHECK(lock.slot() == 5s);
    CHECK(lock.channel_of(7) == "redisson_lock__channel:{orders}:" + owner7);
    CHECK(words_of(lock.acquire(claim_of(7))) == keys + channels + owner7 + " 2 30000 0 5000 0");
    Claim queueing = claim_of(7);
    queueing.queues = true;
    CHECK(words_of(lock.acquire(queueing)) == keys + channels + owner7 + " 2 30000 5000 5000 0");
    queueing.listens = true;
    CHECK(words_of(lock.acquire(queueing)) == keys + channels + owner7 + " 2 30000 5000 5000 0.5");
    CHECK(words_of(lock.release(7, 0, 0ms)) == keys + channels + owner7 + " 0 0");
    CHECK(words_of(lock.give_up(both)) == keys + channels + owner7 + ' ' + owner8);
    const std::array<std::uint64_t, 2> waiters{7, 8};
    CHECK(words_of(lock.refresh(waiters, 9000)) == keys + channels + "5000 9000 " + owner7 + ' ' + owner8);
}

TEST_CASE("FairLock: a slot lasts a sixth of the watchdog timeout, from 100 ms to 5 s") {
    for (const auto& [timeout, slot] :
         {std::pair{150ms, 100ms}, std::pair{6000ms, 1000ms}, std::pair{60'000ms, 5000ms}}) {
        ClientOptions options;
        options.watchdog_timeout = timeout;
        NativeCommands native;
        CHECK(FairProtocol({uuid, options, native}, "orders").slot() == slot);
    }
}

TEST_CASE("FairLock: a slot lasts as long as the option says, whatever the watchdog timeout is") {
    for (const Milliseconds wanted : {Milliseconds(100), Milliseconds(20'000), Milliseconds(300'000)}) {
        ClientOptions options;
        options.watchdog_timeout = 600ms;
        options.fair_waiter_timeout = wanted;
        NativeCommands native;
        const FairProtocol lock({uuid, options, native}, "orders");
        CHECK(lock.slot() == wanted);
        Claim queueing = claim_of(7);
        queueing.queues = true;
        const std::string slot = std::to_string(wanted.count());
        CHECK(words_of(lock.acquire(queueing)).ends_with(" 30000 " + slot + " 5000 0"));
        const std::array<std::uint64_t, 1> waiters{7};
        CHECK(words_of(lock.refresh(waiters, 9000)).ends_with(": " + slot + " 9000 " + owner7));
    }
}

TEST_CASE("ReadWriteLock: calls of both sides") {
    Fixture fixture;
    const ReadProtocol readers(fixture.context, "orders");
    WriteProtocol writers(fixture.context, "orders");
    CHECK(readers.channel() == "redisson_rwlock:{orders}");
    CHECK(readers.channel() == writers.channel());
    Claim claim = claim_of(7);
    claim.writer = 3;
    CHECK(words_of(readers.acquire(claim)) ==
          "orders {orders}:redlatch_writer_waits " + owner7 + " 2 30000 " + uuid + ":3:write {orders} 5000");
    CHECK(words_of(readers.release(7, 0, 0ms)) ==
          "orders " + readers.channel() + ' ' + owner7 + " 0 0 PUBLISH {orders}");
    CHECK(words_of(writers.acquire(claim)) ==
          "orders {orders}:redlatch_writer_waits " + owner7 + ":write 2 30000 {orders} " + uuid + " 0 5000");
    CHECK(words_of(writers.hold_count(7)) == "HGET orders " + owner7 + ":write");
    CHECK(readers.hold_count(7).script() == &digested<scripts::read_hold_count>);
}

TEST_CASE("ReadWriteLock with grants: each side has a place of its own, in the same queue") {
    Fixture fixture{ClientOptions{}};
    const ReadProtocol readers(fixture.context, "orders");
    const WriteProtocol writers(fixture.context, "orders");
    const std::string lock = "orders ", channel = "redisson_rwlock:{orders} ", mark = "{orders}:redlatch_writer_waits ";
    const std::string queue = "redlatch_rwlock_queue:{orders} redlatch_rwlock_places:{orders} ";
    CHECK(readers.queues());
    CHECK(readers.grants_channel() == readers.channel() + ":" + uuid);
    CHECK(writers.grants_channel() == readers.channel() + ":" + uuid + ":write");
    Claim queueing = claim_of(7), polling = claim_of(7);
    queueing.queues = true;
    polling.polls = true;
    CHECK(words_of(readers.acquire(queueing)) ==
          lock + mark + channel + queue + owner7 + " 2 30000 " + uuid + ":0:write {orders} 5000 PUBLISH 1");
    CHECK(words_of(writers.acquire(polling)) ==
          lock + mark + channel + queue + owner7 + ":write 2 30000 {orders} " + uuid + " 0 5000 PUBLISH 2");
    const std::string changing = lock + channel + mark + queue;
    CHECK(words_of(readers.release(7, 1, 30s)) == changing + owner7 + " 1 30000 PUBLISH {orders}");
    CHECK(words_of(writers.release(7, 0, 0ms)) == changing + owner7 + ":write 0 0 PUBLISH {orders}");
    CHECK(words_of(readers.stay(7, 8, 100ms)) == changing + owner7 + ' ' + owner8 + " 100 PUBLISH {orders}");
    CHECK(words_of(readers.give_up(both)) == changing + "PUBLISH {orders} " + owner7 + ' ' + owner8);
    // A user without a right to the keys of the queue does without it, from the first refusal on.
    const std::size_t key_count = readers.acquire(queueing).key_count();
    CHECK(readers.is_queue_refused(key_count, error("NOPERM No permissions to access a key")));
    CHECK(readers.acquire(queueing).key_count() == 2);
    CHECK_FALSE(writers.queues());
    CHECK(writers.may_not_queue());
}

TEST_CASE("ReadWriteLock: an announcement is cancelled once, and not after the acquire that removed it") {
    Fixture fixture;
    WriteProtocol writers(fixture.context, "orders");
    CHECK_FALSE(writers.cancel_announcement());
    Claim claim = claim_of(7);
    claim.announced = true;
    CHECK(words_of(writers.acquire(claim)).ends_with(" 5000 5000"));
    const auto call = writers.cancel_announcement();
    REQUIRE(call);
    CHECK(words_of(*call) == "{orders}:redlatch_writer_waits redisson_rwlock:{orders} " + uuid + " PUBLISH");
    CHECK_FALSE(writers.cancel_announcement());
    static_cast<void>(writers.acquire(claim));
    CHECK(writers.read_acquire(Reply::of(100)).kind == AcquireAnswer::Kind::blocked);
    CHECK(writers.read_acquire(Reply{}).kind == AcquireAnswer::Kind::held);
    CHECK_FALSE(writers.cancel_announcement());
}

TEST_CASE("Mutex: the first acquire is the plain command, and its refusal leads to the script") {
    Fixture fixture;
    const MutexProtocol mutex(fixture.context, "orders");
    Claim claim = claim_of(7);
    const Call plain = mutex.acquire(claim);
    CHECK(plain.script() == nullptr);
    CHECK(plain.effect == Effect::grants);
    CHECK(words_of(plain) == "SET orders " + owner7 + " NX PXAT 31998");
    CHECK_FALSE(mutex.after_acquire(claim, plain, Reply::of("OK")));
    CHECK_FALSE(mutex.after_acquire(claim, plain, Reply::of(Reply::Kind::unanswered, "closed")));
    CHECK_FALSE(mutex.after_acquire(claim, plain, error("OOM command not allowed")));
    const auto script = mutex.after_acquire(claim, plain, Reply{});
    REQUIRE(script);
    CHECK(script->script() == &digested<scripts::mutex_acquire>);
    CHECK(words_of(*script) == "orders " + owner7 + " 30000 5000");
    CHECK_FALSE(mutex.after_acquire(claim, *script, Reply{}));
    claim.first = false;
    CHECK(mutex.acquire(claim).script() == &digested<scripts::mutex_acquire>);
}

TEST_CASE("Mutex: a server before 6.2 gets a lease as a duration, once it has refused the end of the lease") {
    Fixture fixture;
    const MutexProtocol mutex(fixture.context, "orders");
    const Claim claim = claim_of(7);
    const Call plain = mutex.acquire(claim);
    const auto lasting = mutex.after_acquire(claim, plain, error("ERR syntax error"));
    REQUIRE(lasting);
    CHECK(words_of(*lasting) == "SET orders " + owner7 + " NX PX 30000");
    CHECK_FALSE(mutex.after_acquire(claim, *lasting, error("ERR syntax error")));
    CHECK(words_of(mutex.acquire(claim)) == "SET orders " + owner7 + " NX PX 30000");
}

TEST_CASE("Mutex: a release tries the server's own commands, and remembers which of them it lacks") {
    Fixture fixture;
    const MutexProtocol mutex(fixture.context, "orders");
    const Call delex = mutex.first_release(7);
    CHECK(words_of(delex) == "DELEX orders IFEQ " + owner7);
    CHECK_FALSE(mutex.after_release(7, delex, Reply::of(1)));
    CHECK_FALSE(mutex.after_release(7, delex, error("LOADING Redis is loading the dataset in memory")));
    const auto delifeq = mutex.after_release(7, delex, error("ERR unknown command 'DELEX'"));
    REQUIRE(delifeq);
    CHECK(words_of(*delifeq) == "DELIFEQ orders " + owner7);
    // Another thread got the same refusal a little later.
    CHECK(words_of(*mutex.after_release(8, delex, error("ERR unknown command 'DELEX'"))) == "DELIFEQ orders " + owner8);
    const auto script = mutex.after_release(7, *delifeq, error("ERR unknown command 'DELIFEQ'"));
    REQUIRE(script);
    CHECK(script->script() == &digested<scripts::mutex_release>);
    CHECK_FALSE(mutex.after_release(7, *script, error("ERR whatever")));
    CHECK(mutex.first_release(9).script() == &digested<scripts::mutex_release>);
    // What the server lacks is known to all mutexes of the client.
    CHECK(MutexProtocol(fixture.context, "others").first_release(9).script() != nullptr);
}
