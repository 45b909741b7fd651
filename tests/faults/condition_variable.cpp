// SPDX-License-Identifier: MIT
// ctest: timeout=600 long without=address
// ConditionVariable: waiters that die in each state, lost and late commands,
// restarts, and failovers in a cluster and by Sentinel.
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "faults/cluster_kit.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds short_lease = paced(3000ms);

// Waits for one notification.
const Role waiter_role{"fault: condition waiter", [](std::span<const std::string> args) {
                           Client client{args[0], unhurried(short_lease)};
                           RLock lock{client, "orders"};
                           ConditionVariable changed{client, "changed"};
                           const std::lock_guard guard{lock};
                           changed.wait(lock);
                           return 0;
                       }};

// Waits in a thread, and returns whether it was notified within a minute.
std::future<bool> wait_in_thread(RLock& lock, ConditionVariable& changed) {
    return start([&] {
        const std::lock_guard guard{lock};
        return changed.wait_for(lock, 60s);
    });
}

bool are_waiting(ConditionVariable& changed, std::ptrdiff_t n) {
    return eventually([&] { return changed.waiters() == n; }, soon);
}

// The same for waiters of one client that have released the lock, too: a waiter whose unlock() meets a dead server goes on.
bool are_waiting(Client& client, ConditionVariable& changed, int n) {
    return are_waiting(changed, n) &&
           eventually([&] { return client.stats().waiting == static_cast<std::size_t>(n); }, soon);
}

// Passes numbers from one client to two others, while `during` runs after a
// third of them. Returns true if all arrive.
template <class During>
bool pass_on(const std::string& url, const ClientOptions& options, int count, During during) {
    std::mutex mutex;  // guards the queue, so that the sanitizers see the order that the RLock makes
    std::vector<int> queue;
    std::atomic<int> sum{0}, taken{0};
    const auto take = [&] {
        Client client{url, options};
        RLock lock{client, "orders"};
        ConditionVariable changed{client, "changed"};
        while (taken < count) {
            std::unique_lock guard{lock};
            const auto is_there = [&] {
                const std::lock_guard also{mutex};
                return !queue.empty() || taken >= count;
            };
            changed.wait(guard, is_there);
            const std::lock_guard also{mutex};
            if (queue.empty()) continue;
            sum += queue.back();
            queue.pop_back();
            ++taken;
        }
        // The other one may still wait.
        changed.notify_all();
    };
    auto one = start(take), two = start(take);
    Client client{url, options};
    RLock lock{client, "orders"};
    ConditionVariable changed{client, "changed"};
    for (int i = 1; i <= count; ++i) {
        if (i == count / 3) during();
        const std::lock_guard guard{lock};
        {
            const std::lock_guard also{mutex};
            queue.push_back(i);
        }
        changed.notify_one();
    }
    one.get();
    two.get();
    return sum == count * (count + 1) / 2;
}

struct Path : FaultyPath {
    Path() {
        for (const Script* script : {&digested<scripts::condition_register>, &digested<scripts::condition_call_off>,
                                     &digested<scripts::condition_leave>, &digested<scripts::condition_notify>,
                                     &digested<scripts::condition_look>})
            redis.text("SCRIPT", "LOAD", script->text());
    }
};

std::string digest(const Script& script) { return std::string{script.digest()}; }

}  // namespace

TEST_CASE(
    "fault: a waiter is killed: it is skipped after its lease, and what "
    "it was notified of goes to the next one") {
    for (const bool notified : {false, true}) {
        CAPTURE(notified);
        RedisServer server;
        RawRedis redis{server};
        Client client{server.url(), unhurried()};
        RLock lock{client, "orders"};
        ConditionVariable changed{client, "changed"};
        ChildProcess waiter = spawn_self("fault: condition waiter", {server.url()});
        REQUIRE(are_waiting(changed, 1));
        auto next = wait_in_thread(lock, changed);
        REQUIRE(are_waiting(changed, 2));
        // A frozen process cannot take its notification.
        waiter.stop();
        if (notified) CHECK(changed.notify_one());
        CHECK(next.wait_for(50ms) == std::future_status::timeout);
        waiter.kill();
        const Stopwatch watch;
        if (notified) {
            CHECK(next.get());
            CHECK(watch.within(short_lease + late));
        } else {
            REQUIRE(are_waiting(changed, 1));
            CHECK(changed.notify_one());
            CHECK(next.get());
        }
        CHECK(changed.waiters() == 0);
        // Who was notified leaves in the background.
        CHECK(eventually([&] { return !redis.exists("changed"); }, soon));
    }
}

TEST_CASE(
    "fault: a waiter is frozen beyond its lease: it goes on as if it was "
    "notified, and takes no notification") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    RLock lock{client, "orders"};
    ConditionVariable changed{client, "changed"};
    ChildProcess waiter = spawn_self("fault: condition waiter", {server.url()});
    REQUIRE(are_waiting(changed, 1));
    auto next = wait_in_thread(lock, changed);
    REQUIRE(are_waiting(changed, 2));
    waiter.stop();
    REQUIRE(are_waiting(changed, 1));
    CHECK(changed.notify_one());
    CHECK(next.get());
    waiter.cont();
    const auto status = waiter.wait(60s);
    REQUIRE(status);
    CHECK(status->code == 0);
}

TEST_CASE(
    "fault: replies and requests are lost in every step: each "
    "notification wakes one waiter") {
    Path path;
    Client client{path.url(), unhurried()}, other{path.server.url(), unhurried()};
    RLock lock{client, "orders"}, theirs{other, "orders"};
    ConditionVariable mine{client, "changed"}, also{other, "changed"};
    for (const Script* script : {&digested<scripts::condition_register>, &digested<scripts::condition_look>,
                                 &digested<scripts::condition_notify>, &digested<scripts::condition_leave>})
        for (const bool reply : {false, true}) {
            CAPTURE(reply);
            CAPTURE(std::string(script->digest()));
            reply ? path.proxy.drop_next_replies(1, digest(*script))
                  : path.proxy.drop_next_requests(1, digest(*script));
            auto first = wait_in_thread(lock, mine);
            REQUIRE(are_waiting(also, 1));
            auto second = wait_in_thread(theirs, also);
            REQUIRE(are_waiting(also, 2));
            CHECK(mine.notify_one());
            CHECK(first.get());
            CHECK(second.wait_for(50ms) == std::future_status::timeout);
            CHECK(also.waiters() == 1);
            CHECK(mine.notify_one());
            CHECK(second.get());
            path.proxy.clear_rules();
            CHECK(eventually([&] { return !path.redis.exists("changed"); }, soon));
        }
}

TEST_CASE(
    "fault: a registration comes after its call has failed: it takes no "
    "notification") {
    Path path;
    ClientOptions options = unhurried();
    options.command_timeout = paced(300ms);
    options.unreachable_timeout = paced(1000ms);
    Client client{path.url(), options}, other{path.server.url(), unhurried()};
    RLock lock{client, "orders"};
    ConditionVariable mine{client, "changed"}, theirs{other, "changed"};
    // The short time-outs may strike on a busy machine.
    std::error_code ec;
    REQUIRE(eventually([&] { return lock.lock(ec), !ec; }, soon));
    REQUIRE(eventually([&] { return mine.waiters(ec) == 0 && !ec; }, soon));
    path.proxy.hold_next_requests(100, digest(digested<scripts::condition_register>), 60s);
    CHECK(code_of([&] { mine.wait(lock); }) == errc::unreachable);
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }, soon));
    CHECK(are_waiting(theirs, 0));
    CHECK_FALSE(eventually([&] { return theirs.waiters() != 0; }, 300ms));
    CHECK_FALSE(theirs.notify_one());
    lock.unlock(ec);
}

TEST_CASE(
    "fault: a server restarts without its data: those that wait go on, "
    "and look for themselves") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    RLock lock{client, "orders"};
    ConditionVariable changed{client, "changed"};
    std::vector<std::future<bool>> waiting;
    for (int i = 0; i < 3; ++i) waiting.push_back(wait_in_thread(lock, changed));
    REQUIRE(are_waiting(client, changed, 3));
    server.kill();
    server.restart();
    for (auto& one : waiting) CHECK(one.get());
}

TEST_CASE(
    "fault: connections break while numbers are passed on: none waits in "
    "vain") {
    FaultyPath path;
    std::atomic<bool> over{false};
    auto breaking = start([&] {
        while (!over) {
            path.proxy.kill_all();
            std::this_thread::sleep_for(20ms);
        }
    });
    CHECK(pass_on(path.url(), unhurried(), 60, [] {}));
    over = true;
    breaking.get();
}

TEST_CASE(
    "fault: the master of a cluster that has the condition variable "
    "dies: waiters are notified all the same") {
    ClusterServers cluster;
    ClientOptions options = steady();
    Client client{cluster.url(), options};
    RedisServer& victim = cluster.master_of("changed");
    RLock lock{client, "orders"};
    ConditionVariable changed{client, "changed"};
    CHECK(pass_on(cluster.url(), options, 30, [] {}));
    auto one = wait_in_thread(lock, changed), two = wait_in_thread(lock, changed);
    REQUIRE(are_waiting(client, changed, 2));
    RawRedis replica{cluster.partner_of(victim)};
    replica.text("READONLY");
    REQUIRE(eventually([&] { return replica.integer("ZCARD", "changed") == 2; }, soon));
    victim.kill();
    REQUIRE(cluster.is_served("changed", failover));
    CHECK(changed.notify_one());
    CHECK(changed.notify_one());
    CHECK(one.get());
    CHECK(two.get());
}

TEST_CASE("fault: a failover by Sentinel: waiters are notified all the same") {
    Sentinels3 setup;
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    options.watchdog_timeout = options.unreachable_timeout = 180s;
    Client client{setup.url(), options};
    RLock lock{client, "orders"};
    ConditionVariable changed{client, "changed"};
    auto waiting = wait_in_thread(lock, changed);
    REQUIRE(are_waiting(client, changed, 1));
    REQUIRE(setup.confirmed_by(1));
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    CHECK(changed.notify_one());
    CHECK(waiting.get());
}
