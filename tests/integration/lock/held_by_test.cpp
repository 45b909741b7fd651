// SPDX-License-Identifier: MIT
// is_held_by() and FencedLock::latest_token(): questions about holds of anyone, which acquire nothing.
#include <doctest/doctest.h>

#include <string>
#include <system_error>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace redlatch;

namespace {

const std::string java_client = "b983c153-7421-469a-addb-44fb92259a1b";

/// A hold of an object, by its number and by the text that inspect() returns, as seen by its client and by another.
template <class Lock>
void knows_its_holder(Lock& mine, Lock& theirs) {
    Hold hold = mine.hold();
    const std::string owner = theirs.inspect().holders.at(0).owner;
    CHECK(mine.is_held_by(hold.owner()));
    CHECK(mine.is_held_by(owner));
    CHECK(theirs.is_held_by(owner));
    CHECK_FALSE(theirs.is_held_by(hold.owner()));
    CHECK_FALSE(mine.is_held_by(hold.owner() + 1));
    CHECK_FALSE(theirs.is_held_by(owner + "0"));
    CHECK_FALSE(theirs.is_held_by("nobody"));
    const std::uint64_t number = hold.owner();
    CHECK_FALSE(hold.unlock());
    CHECK_FALSE(mine.is_held_by(number));
    CHECK_FALSE(theirs.is_held_by(owner));
}

template <class Lock>
void knows_its_holder(Client& client, Client& other) {
    Lock mine{client, "lock"};
    Lock theirs{other, "lock"};
    knows_its_holder(mine, theirs);
}

}  // namespace

TEST_CASE("a lock tells whether an owner holds it, by the number of this client or by the text of anyone") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    knows_its_holder<RLock>(client, other);
    knows_its_holder<FairLock>(client, other);
    knows_its_holder<FencedLock>(client, other);
    knows_its_holder<SpinLock>(client, other);
    knows_its_holder<Mutex>(client, other);
    knows_its_holder<NonReentrantLock>(client, other);
    knows_its_holder<NonReentrantFairLock>(client, other);
    ReadWriteLock mine{client, "lock"};
    ReadWriteLock theirs{other, "lock"};
    knows_its_holder(mine, theirs);
    knows_its_holder(mine.write_lock(), theirs.write_lock());
    knows_its_holder(mine.read_lock(), theirs.read_lock());
}

TEST_CASE("one command tells it, also of a thread of Redisson, of each side, and of a Mutex of anyone") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    redis.integer("HSET", "orders", java_client + ":42", 1);
    CHECK(orders.is_held_by(java_client + ":42"));
    CommandMonitor monitor{server};
    CHECK_FALSE(orders.is_held_by(java_client + ":43"));
    CHECK(monitor.take_total() == 1);

    ReadWriteLock shared{client, "shared"};
    redis.integer("HSET", "shared", "mode", "write", java_client + ":42:write", 1);
    CHECK(shared.is_held_by(java_client + ":42"));
    CHECK_FALSE(shared.read_lock().is_held_by(java_client + ":42"));
    // A reader whose lease is over.
    redis.integer("HSET", "shared", java_client + ":7", 1);
    CHECK_FALSE(shared.read_lock().is_held_by(java_client + ":7"));
    redis.text("SET", "{shared}:" + java_client + ":7:rwlock_timeout:1", "1", "PX", 60'000);
    CHECK(shared.read_lock().is_held_by(java_client + ":7"));

    Mutex mutex{client, "mutex"};
    redis.text("SET", "mutex", "a program in another language");
    CHECK(mutex.is_held_by("a program in another language"));
    CHECK_FALSE(mutex.is_held_by("a program"));
}

TEST_CASE("a text that no owner has is refused before anything is sent; a key of another type by the server") {
    RedisServer server;
    RawRedis redis{server};
    Client nowhere{"redis://127.0.0.1:1"};
    RLock orders{nowhere, "orders"};
    CHECK(code_of([&] { orders.is_held_by(""); }) == errc::invalid_argument);
    CHECK(code_of([&] { orders.is_held_by("mode"); }) == errc::invalid_argument);
    Client client{server.url()};
    redis.integer("RPUSH", "list", "x");
    std::error_code ec;
    CHECK_FALSE(RLock(client, "list").is_held_by(7, ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(Mutex(client, "list").is_held_by("x", ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(ReadWriteLock(client, "list").read_lock().is_held_by("x:1", ec));
    CHECK(ec == errc::wrong_type);
}

TEST_CASE("a lock over several knows its own holds by their numbers") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock a{client, "a"}, b{client, "b"};
    MultiLock both{a, b};
    CHECK_FALSE(both.is_held_by(1));
    CHECK_FALSE(both.is_held_by(0));
    Hold hold = both.hold();
    CHECK(both.is_held_by(hold.owner()));
    CHECK_FALSE(both.is_held_by(hold.owner() + 1));
    redis.integer("DEL", "a");
    CHECK_FALSE(both.is_held_by(hold.owner()));
}

TEST_CASE("latest_token() is the last token of anyone, held or free, in one plain command") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    FencedLock mine{client, "orders"};
    FencedLock theirs{other, "orders"};
    CHECK_FALSE(theirs.latest_token());
    const std::int64_t first = mine.lock_and_get_token();
    CommandMonitor monitor{server};
    CHECK(theirs.latest_token() == first);
    CHECK(monitor.take() == std::map<std::string, long long>{{"get", 1}});
    mine.unlock();
    CHECK(theirs.latest_token() == first);
    const std::int64_t second = mine.lock_and_get_token();
    CHECK(theirs.latest_token() == second);
    CHECK(second > first);
    mine.unlock();
    redis.text("SET", "redisson_lock_token:{orders}", "many");
    std::error_code ec;
    CHECK_FALSE(theirs.latest_token(ec));
    CHECK(ec == errc::wrong_type);
}
