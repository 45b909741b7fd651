// SPDX-License-Identifier: MIT
// A client process that freezes at the worst moment, gets no processor time, or ends while it holds a lock.
#include <atomic>
#include <cstdlib>
#include <thread>

#include <pthread.h>

#include "faults/fault_kit.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr auto frozen_lease = paced(1500ms);

// Asks for the lock and is frozen before it can read the reply. Returns 0 if it does not believe that it holds the
// lock.
int ask_and_freeze(std::span<const std::string> args) {
    Client client{args[0]};
    RLock orders{client, "orders"};
    std::error_code ec;
    const bool held = orders.try_lock(Lease{frozen_lease}, ec);
    const bool certain = orders.valid_until() > std::chrono::steady_clock::now();
    return held || certain ? 1 : 0;
}

const Role asking_role{"fault: asks and freezes", ask_and_freeze};

// Ends in one of the ways in which a process can end, while it holds the lock.
int end_while_holding(std::span<const std::string> args) {
    ClientOptions options = quick();
    options.on_event = [](const Event&) {};
    static Client client{args[0], options};
    static RLock orders{client, "orders"};
    const std::string& way = args[1];
    if (way == "thread") {
        std::thread{[] { orders.lock(); }}.join();
        return 0;
    }
    orders.lock();
    if (way == "exit") std::exit(0);
    if (way == "exit of a thread") {
        // A std::thread would not do: this thread never ends, so its memory would count as leaked.
        pthread_t ender{};
        ::pthread_create(
            &ender, nullptr, [](void*) -> void* { std::exit(0); }, nullptr);
        ::pthread_join(ender, nullptr);
    }
    if (way == "quick_exit") std::quick_exit(0);
    return 0;  // static destruction
}

const Role ending_role{"fault: ends while holding", end_while_holding};

}  // namespace

TEST_CASE("fault: process frozen between request and reply, beyond the lease: the late grant counts as no hold") {
    FaultyPath path;
    path.proxy.hold_next_replies(1, acquire_digest);
    ChildProcess child = spawn_self("fault: asks and freezes", {path.url()});
    // Wait for the reply, which stays in the proxy. The key may be gone before a busy machine looks for it.
    REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }, 30s));
    child.stop();
    path.proxy.release();
    REQUIRE(eventually([&] { return !path.redis.exists("orders"); }, 10s));
    Client other{path.server.url(), unhurried()};
    RLock theirs{other, "orders"};
    REQUIRE(theirs.try_lock());
    child.cont();
    const auto status = child.wait(30s);
    REQUIRE(status);
    CHECK(status->code == 0);
    CHECK(theirs.is_held());  // the release of the late grant did not touch this hold
    theirs.unlock();
}

TEST_CASE("fault: watchdog starved by sixteen busy threads: the hold is kept or reported lost, never lost silently") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options = quick();
    options.watchdog_timeout = paced(600ms);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    std::atomic<bool> over{false};
    std::vector<std::jthread> busy;
    for (int i = 0; i < 16; ++i)
        busy.emplace_back([&] {
            for (volatile unsigned work = 0; !over;) work = work + 1;
        });
    orders.lock();
    const std::stop_token lost = orders.lost();
    const Stopwatch watch;
    do {
        const bool certain = orders.valid_until() > std::chrono::steady_clock::now();
        const bool there = redis.exists("orders");
        // Compare again: valid_until() may have passed before the server replied.
        const bool still_certain = orders.valid_until() > std::chrono::steady_clock::now();
        CHECK((there || !certain || !still_certain));
    } while (!lost.stop_requested() && watch.within(3 * options.watchdog_timeout));
    // The thread that reports the loss is starved, too.
    CHECK(eventually([&] { return lost.stop_requested() || client.stats().renewals > 2; }, 20s));
    over = true;
    busy.clear();
    orders.unlock();
    CHECK(eventually([&] { return !redis.exists("orders"); }, 3s));
}

TEST_CASE("fault: process or thread ends while it holds: no crash, no delay, and others enter after the lease") {
    RedisServer server;
    RawRedis redis{server};
    for (const char* way : {"return", "thread", "exit", "exit of a thread", "quick_exit"}) {
        CAPTURE(way);
        ChildProcess child = spawn_self("fault: ends while holding", {server.url(), way});
        const auto status = child.wait(30s);
        REQUIRE(status);
        CHECK(status->code == 0);
        CHECK(status->signal == 0);
        CHECK(redis.integer("INCR", "ended") > 0);
        Client other{server.url(), quick()};
        RLock theirs{other, "orders"};
        CHECK(theirs.try_lock_for(watchdog_timeout + patient(3s)));
        theirs.unlock();
    }
}
