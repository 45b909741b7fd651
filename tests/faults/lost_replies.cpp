// SPDX-License-Identifier: MIT
// ctest: long
// A reply or a request that is lost: the operation takes effect once, and the caller gets the true outcome.
#include "faults/fault_kit.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

std::string name_of(Then then) { return then == Then::close ? "connection cut" : "connection silent"; }

constexpr Then both[] = {Then::close, Then::silence};

// A cut connection is noticed at once; a silent one only by a time-out. The leases are too long to end.
ClientOptions after(Then then) {
    ClientOptions options = unhurried();
    if (then == Then::silence) options.command_timeout = paced(1000ms);
    return options;
}

// Hands the lock over to a waiting thread until the fault has struck. The next holder may just be asking the server
// itself; then it gets the lock without a hand-over.
template <class Struck>
void hand_over_until(FaultyPath& path, Client& client, Struck struck) {
    RLock orders{client, "orders"};
    for (std::uint64_t round = 1; round <= 50 && !struck(); ++round) {
        REQUIRE(orders.try_lock_for(10s));
        auto successor = start([&] {
            RawRedis redis{path.server};
            if (!orders.try_lock_for(20s)) return false;
            const bool held = orders.is_held() && hold_counts(redis, "orders") == std::vector<std::string>{"1"};
            orders.unlock();
            return held;
        });
        REQUIRE(eventually([&] { return client.stats().waits >= round && listeners(path.redis, "orders") == 1; }));
        orders.unlock();
        CHECK(successor.get());
    }
    REQUIRE(struck());
}

}  // namespace

TEST_CASE("fault: reply of an acquire lost: the lock is held once, and one unlock frees it") {
    for (const bool tcp : {false, true}) {
        FaultyPath path{tcp};
        for (const Then then : both) {
            CAPTURE(tcp);
            CAPTURE(name_of(then));
            Client client{path.url(), after(then)};
            RLock orders{client, "orders"};
            const auto before = path.proxy.counts().dropped;
            path.proxy.drop_next_replies(1, acquire_digest, then);
            orders.lock();
            CHECK(path.proxy.counts().dropped == before + 1);
            CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
            CHECK(orders.hold_count() == 1);
            CHECK(client.stats().resends > 0);
            CHECK(client.stats().acquisitions == 1);
            orders.unlock();
            CHECK_FALSE(path.redis.exists("orders"));
        }
    }
}

TEST_CASE("fault: reply of an acquire lost four times in a row: the lock is held once") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    path.proxy.drop_next_replies(4, acquire_digest);
    orders.lock();
    CHECK(path.proxy.counts().dropped == 4);
    CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
    orders.unlock();
    CHECK_FALSE(path.redis.exists("orders"));
}

TEST_CASE("fault: request of an acquire lost: it is resent") {
    for (const Then then : both) {
        CAPTURE(name_of(then));
        FaultyPath path;
        Client client{path.url(), after(then)};
        RLock orders{client, "orders"};
        path.proxy.drop_next_requests(2, acquire_digest, then);
        orders.lock();
        CHECK(path.proxy.counts().dropped == 2);
        CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
        orders.unlock();
        CHECK_FALSE(path.redis.exists("orders"));
    }
}

TEST_CASE("fault: reply of a reentry lost: it is counted once") {
    for (const Then then : both) {
        CAPTURE(name_of(then));
        FaultyPath path;
        Client client{path.url(), after(then)};
        RLock orders{client, "orders"};
        orders.lock();
        path.proxy.drop_next_replies(1, acquire_digest, then);
        orders.lock();
        CHECK(path.proxy.counts().dropped == 1);
        CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"2"});
        orders.unlock();
        CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
        orders.unlock();
        CHECK_FALSE(path.redis.exists("orders"));
    }
}

TEST_CASE("fault: reply of a release lost: the release succeeds, and is published once") {
    EventLog log;
    FaultyPath path;
    RawRedis listener{path.server};
    listener.call("SUBSCRIBE", channel_of("orders"));
    for (const Then then : both) {
        CAPTURE(name_of(then));
        Client client{path.url(), log.in(after(then))};
        RLock orders{client, "orders"};
        const auto before = path.proxy.counts().dropped;
        orders.lock();
        path.proxy.drop_next_replies(1, release_digest, then);
        std::error_code ec;
        orders.unlock(ec);
        // If there is no time for a second try in the foreground, it is made in the background.
        if (then == Then::silence && ec == errc::unreachable) ec.clear();
        CHECK_FALSE(ec);
        CHECK(path.proxy.counts().dropped == before + 1);
        CHECK_FALSE(path.redis.exists("orders"));
        CHECK(listener.receive().elements.at(2).string == "0");
        // The same thread may lock again at once.
        CHECK(orders.try_lock_for(5s));
        orders.unlock();
        CHECK(listener.receive().elements.at(2).string == "0");
        CHECK_FALSE(path.redis.exists("orders"));
    }
    CHECK_FALSE(listener.receive_within(50ms));
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    CHECK(log.count(Event::Kind::unlock_not_delivered) == 0);
}

TEST_CASE("fault: reply of a release lost: a client that took the lock meanwhile keeps it") {
    FaultyPath path;
    const ClientOptions options = after(Then::silence);
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    Client other{path.server.url(), unhurried()};
    RLock same_orders{other, "orders"};

    orders.lock();
    path.proxy.drop_next_replies(1, release_digest, Then::silence);
    auto released = start([&] { return code_of([&] { same_orders.lock(); }); });
    std::error_code ec;
    orders.unlock(ec);
    CHECK(path.proxy.counts().dropped == 1);
    CHECK(ready(released, 10s));
    CHECK_FALSE(released.get());
    CHECK_FALSE(orders.try_lock_for(2 * options.command_timeout));
    CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
    // Its place in the queue is left in the background.
    CHECK(eventually([&] { return path.redis.keys() == std::vector<std::string>{"orders"}; }, 20s));
    CHECK(same_orders.is_locked());
    CHECK(same_orders.force_unlock());
}

// The client gives up on a release and resends it on another connection. The first copy is held up in the network. It
// arrives when the same thread holds the lock again, under another number.
TEST_CASE("fault: late copy of a release: a later hold of the same thread stays") {
    FaultyPath path;
    Client client{path.url(), after(Then::silence)};
    RLock orders{client, "orders"};
    orders.lock();
    path.proxy.hold_next_requests(1, release_digest);
    std::error_code ec;
    orders.unlock(ec);
    CHECK(path.proxy.counts().held == 1);

    REQUIRE(orders.try_lock_for(10s));
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }));
    CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
    CHECK(orders.is_held());
    CHECK_FALSE(orders.lost().stop_requested());
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK_FALSE(path.redis.exists("orders"));
}

// Regression, found by the soak: an acquire of unknown outcome is given up, and that command is held up in the network
// beyond the end of the lease. The late copy ended the next hold of the thread, which had the same name.
TEST_CASE("fault: late copy of a release whose lease is over: the next hold of that thread stays") {
    FaultyPath path;
    ClientOptions options = unhurried();
    // Long beyond the deadline, even if that is noticed late. Otherwise the server would count as unreachable.
    options.command_timeout = paced(2s);
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    path.proxy.drop_next_replies(1, acquire_digest, Then::silence);
    path.proxy.hold_next_requests(1, give_up_digest);
    CHECK_FALSE(orders.try_lock_for(50ms, Lease{100ms}));
    REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));

    REQUIRE(orders.try_lock_for(10s));
    const auto deletions = path.redis.command_calls()["del"];
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }));
    CHECK(path.redis.command_calls()["del"] == deletions);
    CHECK(orders.is_held());
    std::error_code ec;
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK_FALSE(path.redis.exists("orders"));
}

TEST_CASE("fault: late copy of an acquire: nothing is taken from a later holder") {
    FaultyPath path;
    Client client{path.url(), after(Then::silence)};
    RLock orders{client, "orders"};
    path.proxy.hold_next_requests(1, acquire_digest);
    orders.lock();
    CHECK(path.proxy.counts().held == 1);
    orders.unlock();

    Client other{path.server.url(), unhurried()};
    RLock same_orders{other, "orders"};
    same_orders.lock();
    const auto holder = path.redis.hgetall("orders");
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }));
    CHECK(path.redis.hgetall("orders") == holder);
    same_orders.unlock();
    CHECK_FALSE(path.redis.exists("orders"));
}

TEST_CASE("fault: reply of a renewal lost: it is repeated early, and the hold is never lost") {
    for (const Then then : both) {
        CAPTURE(name_of(then));
        EventLog log;
        FaultyPath path;
        ClientOptions options = log.in(quick());
        options.watchdog_timeout = paced(12s);
        options.command_timeout = paced(1000ms);
        Client client{path.url(), options};
        RLock orders{client, "orders"};
        path.proxy.drop_next_replies(1, renew_digest, then);
        orders.lock();
        const std::stop_token lost = orders.lost();
        REQUIRE(eventually([&] { return path.proxy.counts().dropped == 1; }, 20s));
        const Stopwatch since_the_drop;
        REQUIRE(eventually([&] { return client.stats().renewals >= 1; }, 20s));
        // A third of the lease is the ordinary period.
        CHECK(since_the_drop.elapsed() < options.watchdog_timeout / 3);
        CHECK(orders.valid_until() > std::chrono::steady_clock::now());
        CHECK_FALSE(lost.stop_requested());
        CHECK(orders.is_held());
        CHECK(log.count(Event::Kind::hold_lost) == 0);
        orders.unlock();
        CHECK_FALSE(path.redis.exists("orders"));
    }
}

TEST_CASE("fault: reply of a hand-over lost: one thread gets the lock, and nothing is left behind") {
    for (const Then then : both) {
        CAPTURE(name_of(then));
        FaultyPath path;
        Client client{path.url(), after(then)};
        RLock orders{client, "orders"};
        path.proxy.drop_next_replies(1, hand_over_digest, then);
        hand_over_until(path, client, [&] { return path.proxy.counts().matched == 1; });
        CHECK(path.proxy.counts().dropped == 1);
        CHECK(eventually([&] { return !path.redis.exists("orders"); }));
        // No pending release blocks either thread.
        CHECK(orders.try_lock_for(5s));
        orders.unlock();
        CHECK_FALSE(path.redis.exists("orders"));
    }
}

TEST_CASE("fault: late copy of a hand-over: no later hold is moved") {
    FaultyPath path;
    Client client{path.url(), after(Then::silence)};
    RLock orders{client, "orders"};
    path.proxy.hold_next_requests(1, hand_over_digest);
    hand_over_until(path, client, [&] { return path.proxy.counts().matched == 1; });
    REQUIRE(path.proxy.counts().held == 1);

    REQUIRE(orders.try_lock_for(10s));
    const auto holder = path.redis.hgetall("orders");
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }));
    CHECK(path.redis.hgetall("orders") == holder);
    CHECK(orders.is_held());
    orders.unlock();
    CHECK_FALSE(path.redis.exists("orders"));
}

TEST_CASE("a connection cut after any byte of a reply: the call succeeds by a resend") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    std::uint64_t dropped = 0;
    // The server replies "$-1\r\n" to the acquire and ":0\r\n" to the release.
    for (std::size_t byte = 0; byte < 5; ++byte) {
        CAPTURE(byte);
        path.proxy.cut_after_reply_bytes(byte, acquire_digest);
        orders.lock();
        CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
        if (byte < 4) path.proxy.cut_after_reply_bytes(byte, release_digest);
        std::error_code ec;
        orders.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(path.redis.exists("orders"));
        dropped += byte < 4 ? 2 : 1;
        CHECK(path.proxy.counts().dropped == dropped);
    }
}

TEST_CASE("a connection cut after any byte of a request: the call succeeds by a resend") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    std::uint64_t dropped = 0;
    for (std::size_t byte = 0; byte < 130; byte += 3) {
        CAPTURE(byte);
        path.proxy.cut_after_request_bytes(byte, acquire_digest);
        orders.lock();
        CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
        path.proxy.cut_after_request_bytes(byte, release_digest);
        std::error_code ec;
        orders.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(path.redis.exists("orders"));
        CHECK(path.proxy.counts().dropped == (dropped += 2));
    }
}
