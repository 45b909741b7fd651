// SPDX-License-Identifier: MIT
// ctest: without=address
// fork(): a child never uses its parent's connections or identity.
#include <doctest/doctest.h>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "integration/rlock_helpers.hpp"
#include "support/coroutine.hpp"
#include "support/process.hpp"
#include "support/shared_memory.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::Clock;
using redlatch::errc;
using redlatch::Hold;
using redlatch::Instant;
using redlatch::Lease;
using redlatch::RLock;

namespace {

/// The findings of a child, because doctest does not count failed checks in a child.
struct Findings {
    char id[64] = {};
    std::atomic<bool> stage_two = false;
    std::atomic<int> passed = 0;
    std::atomic<int> failed_line = 0;

    void check(bool condition, int line) {
        if (condition)
            ++passed;
        else if (failed_line == 0)
            failed_line = line;
    }
};

#define CHECK_IN_CHILD(condition) found->check(static_cast<bool>(condition), __LINE__)

}  // namespace

TEST_CASE("a forked child has its own id, and does not disturb the parent's hold or connections") {
    RedisServer server;
    RawRedis redis{server};
    SharedMemory<Findings> found;
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock();
    orders.lock();
    const std::string id = client.id();
    auto child = ChildProcess::run([&] {
        client.id().copy(found->id, sizeof found->id - 1);
        CHECK_IN_CHILD(!orders.is_held());
        CHECK_IN_CHILD(orders.is_locked());
        CHECK_IN_CHILD(!orders.try_lock());
        CHECK_IN_CHILD(orders.lost().stop_requested());
        RLock parcels{client, "parcels"};
        for (int i = 0; i < 20; ++i) {
            const std::lock_guard guard{parcels};
            CHECK_IN_CHILD(parcels.hold_count() == 1);
        }
        CHECK_IN_CHILD(!orders.try_lock_for(50ms));
        found->stage_two = true;
        orders.lock();  // waits for the parent
        CHECK_IN_CHILD(orders.is_held());
        orders.unlock();
        return 0;
    });
    // Both use their connections at the same time. A misdirected reply would have the wrong type or be missing.
    while (!found->stage_two && child.running()) {
        CHECK(orders.hold_count() == 2);
        CHECK(orders.is_locked());
    }
    CHECK(client.id() == id);
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "2"}});
    orders.unlock();
    orders.unlock();
    CHECK(child.wait(60s) == ExitStatus{0, 0});
    CHECK(found->failed_line == 0);
    CHECK(found->passed == 26);
    CHECK(std::string{found->id} != id);
    CHECK(std::string{found->id}.size() == 36);
    orders.lock();
    orders.unlock();
    CHECK(client.stats().reconnects == 0);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a child in its own PID namespace, with the same PID as its parent, holds nothing of the parent's") {
    RedisServer server;
    SharedMemory<Findings> found;
    static constexpr int not_allowed = 77;
    // A process that unshares gets no new PID: its first child is number 1 of the namespace. So it takes two
    // namespaces.
    const auto in_namespace = [](auto function) {
        if (::unshare(CLONE_NEWPID) != 0) return not_allowed;
        const pid_t pid = ::fork();
        if (pid == 0) ::_exit(function());
        int status = 0;
        if (pid < 0 || ::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 1;
        return WEXITSTATUS(status);
    };
    auto outer = ChildProcess::run([&] {
        return in_namespace([&] {
            CHECK_IN_CHILD(::getpid() == 1);
            Client client{server.url()};
            RLock orders{client, "orders"};
            RLock parcels{client, "parcels"};
            redlatch::MultiLock both{orders, parcels};
            orders.lock();
            both.lock();
            const std::string id = client.id();
            const int status = in_namespace([&] {
                CHECK_IN_CHILD(::getpid() == 1);
                CHECK_IN_CHILD(client.id() != id);
                CHECK_IN_CHILD(orders.lost().stop_requested());
                CHECK_IN_CHILD(both.lost().stop_requested());
                CHECK_IN_CHILD(!orders.is_held());
                CHECK_IN_CHILD(!orders.try_lock());
                CHECK_IN_CHILD(!both.try_lock());
                return 0;
            });
            CHECK_IN_CHILD(client.id() == id);
            CHECK_IN_CHILD(both.is_held());
            both.unlock();
            orders.unlock();
            return status;
        });
    });
    const auto status = outer.wait(60s);
    REQUIRE(status);
    if (status->code == not_allowed) {
        MESSAGE("left out: this user may not make PID namespaces");
        return;
    }
    CHECK(*status == ExitStatus{0, 0});
    CHECK(found->failed_line == 0);
    CHECK(found->passed == 10);
}

TEST_CASE("guards of the parent that end in the child do not throw, and end no hold") {
    RedisServer server;
    RawRedis redis{server};
    SharedMemory<Findings> found;
    Client client{server.url()};
    RLock orders{client, "orders"};
    {
        std::unique_lock guard{orders};
        const std::string owner = owner_of(client, orders);
        auto child = ChildProcess::run([&] {
            {
                // As if the stack were unwound here.
                const std::unique_lock moved = std::move(guard);
            }
            std::error_code ec;
            orders.unlock(ec);
            CHECK_IN_CHILD(ec == errc::hold_lost);
            CHECK_IN_CHILD(orders.is_locked());
            return 0;
        });
        CHECK(child.wait(60s) == ExitStatus{0, 0});
        CHECK(found->failed_line == 0);
        CHECK(found->passed == 2);
        CHECK(redis.hgetall("orders") == Fields{{owner, "1"}});
        CHECK(orders.is_held());
        CHECK_FALSE(orders.lost().stop_requested());
    }
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a child that destroys inherited objects, used or not, ends nothing of the parent's") {
    RedisServer server;
    RawRedis redis{server};
    for (const bool used : {false, true}) {
        CAPTURE(used);
        SharedMemory<Findings> found;
        auto client = std::make_optional<Client>(server.url(), with_watchdog(steady_lease));
        auto orders = std::make_optional<RLock>(*client, "orders");
        orders->lock();
        RawRedis other{server};
        const long long connected = other.connected_clients();
        auto child = ChildProcess::run([&] {
            if (used) CHECK_IN_CHILD(orders->is_locked());
            orders.reset();
            client.reset();
            return 0;
        });
        CHECK(child.wait(60s) == ExitStatus{0, 0});
        CHECK(found->failed_line == 0);
        CHECK(eventually([&] { return other.connected_clients() == connected; }));
        const auto renewals = client->stats().renewals;
        CHECK(eventually([&] { return client->stats().renewals > renewals + 1; }));
        CHECK(redis.exists("orders"));
        CHECK(orders->hold_count() == 1);
        CHECK(client->stats().reconnects == 0);
        orders->unlock();
    }
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a child does not renew the holds of its parent") {
    RedisServer server;
    RawRedis redis{server};
    SharedMemory<Findings> found;
    // A child of this process holds the lock, and its own child survives it.
    auto holder = ChildProcess::run([&] {
        Client client{server.url(), with_watchdog(steady_lease)};
        RLock orders{client, "orders"};
        orders.lock();
        if (::fork() == 0) {
            RLock own{client, "own"};
            own.lock();
            found->stage_two = true;
            eventually([&] { return found->passed == 1; }, 60s);
            own.unlock();
            ::_exit(0);
        }
        eventually([&] { return found->stage_two.load(); }, 60s);
        std::this_thread::sleep_for(60s);  // killed here
        return 0;
    });
    REQUIRE(eventually([&] { return found->stage_two.load(); }, 60s));
    holder.kill();
    CHECK(eventually([&] { return !redis.exists("orders"); }, steady_lease + 10s));
    CHECK(redis.exists("own"));
    found->passed = 1;
    CHECK(eventually([&] { return !redis.exists("own"); }, 20s));
}

TEST_CASE("a child forked while other threads use the client works at once") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    RLock parcels{client, "parcels"};
    std::atomic<bool> enough = false;
    std::atomic<int> busy = 0;
    std::vector<std::future<int>> workers;
    for (int t = 0; t < 3; ++t)
        workers.push_back(start([&] {
            int turns = 0;
            for (; !enough; ++turns) {
                const std::lock_guard guard{orders};
                if (turns == 0) ++busy;
            }
            return turns;
        }));
    // All of them must run before the first fork.
    CHECK(eventually([&] { return busy == 3; }, 20s));
    for (int round = 0; round < 10; ++round) {
        // The child's memory is a snapshot in which any mutex of the library may stay locked.
        auto child = ChildProcess::run([&] {
            const std::lock_guard guard{parcels};
            return parcels.hold_count() == 1 ? 0 : 1;
        });
        CHECK(child.wait(patient(10s)) == ExitStatus{0, 0});
    }
    enough = true;
    for (auto& worker : workers) CHECK(worker.get() > 0);
    CHECK(client.stats().reconnects == 0);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("after a fork the child's copy of a hold does nothing, and the parent's goes on") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    Hold hold = orders.hold();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const bool nothing = hold.valid_until() == Instant::min() && hold.lost().stop_requested();
        std::error_code ec;
        const bool no_level = !hold.again(ec) && ec == errc::hold_lost;
        Hold moved = std::move(hold);
        moved = Hold();
        ::_exit(nothing && no_level ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(redis.exists("orders"));
    CHECK(hold.unlock() == std::error_code());
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

namespace {

// What one process waits for by operations: a lock, permits of both semaphores, a latch, and a lock in a coroutine.
struct Waiting {
    explicit Waiting(Client& client)
        : orders{client, "orders"},
          parcels{client, "parcels"},
          seats{client, "seats"},
          desks{client, "desks"},
          gate{client, "gate"} {}

    // Begins all of them. Returns when they wait.
    bool begin(const Client& client) {
        const std::uint64_t waits = client.stats().waits;
        order = orders.async_lock().future();
        // The other operation on `orders` comes later, and is not to overtake this one.
        if (!eventually([&] { return client.stats().waits == waits + 1; }, 20s)) return false;
        seat = seats.async_acquire(1).future();
        desk = desks.async_acquire(1).future();
        opened = gate.async_wait().future();
        fiber.emplace(run());
        orders.async_lock(stop.get_token()).start([this](std::error_code ec, const Hold&) {
            stopped_with = ec;
            ++completed;
        });
        return eventually([&] { return client.stats().waits == waits + 6; }, 20s);
    }

    Fiber run() {
        const Hold hold = co_await parcels.async_lock();
        ++completed;
    }

    bool some_are_over() const {
        return ready(order, 0ms) || ready(seat, 0ms) || ready(desk, 0ms) || ready(opened, 0ms) || completed > 0;
    }

    RLock orders;
    RLock parcels;
    redlatch::Semaphore seats;
    redlatch::PermitExpirableSemaphore desks;
    redlatch::CountDownLatch gate;
    std::future<Hold> order;
    std::future<redlatch::Permits> seat, desk;
    std::future<bool> opened;
    std::optional<Fiber> fiber;
    std::stop_source stop;
    std::atomic<int> completed{0};
    std::error_code stopped_with{};
};

// What the parent and its child want, held by another client.
struct Held {
    explicit Held(Client& client) : seats{client, "seats"}, desks{client, "desks"}, gate{client, "gate"} {
        RLock orders{client, "orders"}, parcels{client, "parcels"};
        order = orders.hold();
        parcel = parcels.hold();
        seats.try_set_permits(2);
        desks.try_set_permits(2);
        gate.try_set_count(1);
        seat = seats.hold(2);
        desk = desks.hold(2);
    }

    void give_back() {
        order = Hold();
        parcel = Hold();
        seat = redlatch::Permits();
        desk = redlatch::Permits();
        gate.count_down();
    }

    redlatch::Semaphore seats;
    redlatch::PermitExpirableSemaphore desks;
    redlatch::CountDownLatch gate;
    Hold order, parcel;
    redlatch::Permits seat, desk;
};

}  // namespace

TEST_CASE(
    "operations under way at a fork complete in the parent only; the child may begin its own on the same objects") {
    RedisServer server;
    SharedMemory<Findings> found;
    Client other{server.url()};
    Held held{other};
    Client client{server.url()};
    Waiting waiting{client};
    REQUIRE(waiting.begin(client));
    auto child = ChildProcess::run([&] {
        // No copy of the parent's operations completes here, and ending one has no effect, here or there.
        waiting.stop.request_stop();
        waiting.fiber->destroy();
        CHECK_IN_CHILD(!waiting.orders.async_try_lock().future().get());
        CHECK_IN_CHILD(!waiting.seats.async_try_acquire(1).future().get());
        CHECK_IN_CHILD(!waiting.desks.async_try_acquire(1).future().get());
        auto order = waiting.orders.async_lock().future();
        auto seat = waiting.seats.async_acquire(1).future();
        auto desk = waiting.desks.async_acquire(1).future();
        auto opened = waiting.gate.async_wait().future();
        CHECK_IN_CHILD(eventually([&] { return client.stats().waits == 4; }, 20s));
        found->stage_two = true;
        CHECK_IN_CHILD(opened.get());
        CHECK_IN_CHILD(seat.get());
        CHECK_IN_CHILD(desk.get().valid_until() > Clock::now());
        CHECK_IN_CHILD(order.get().unlock() == std::error_code());  // when the parent has given it back
        CHECK_IN_CHILD(!waiting.some_are_over());
        return 0;
    });
    REQUIRE(eventually([&] { return found->stage_two || !child.running(); }, 60s));
    CHECK_FALSE(waiting.some_are_over());
    held.give_back();
    REQUIRE(ready(waiting.order));
    REQUIRE(ready(waiting.seat));
    REQUIRE(ready(waiting.desk));
    REQUIRE(ready(waiting.opened));
    CHECK(eventually([&] { return waiting.fiber->done(); }, 20s));
    CHECK(waiting.completed == 1);  // the coroutine
    CHECK(waiting.opened.get());
    Hold order = waiting.order.get();
    const redlatch::Permits seat = waiting.seat.get(), desk = waiting.desk.get();
    CHECK(desk.valid_until() > Clock::now());
    waiting.stop.request_stop();
    CHECK(eventually([&] { return waiting.completed == 2; }, 20s));
    CHECK(waiting.stopped_with == errc::cancelled);
    CHECK(order.unlock() == std::error_code());
    CHECK(child.wait(60s) == ExitStatus{0, 0});
    CHECK(found->failed_line == 0);
    CHECK(found->passed == 9);
    CHECK(seat.count() + desk.count() == 2);
    CHECK(eventually([&] { return held.seats.available_permits() == 1 && held.desks.available_permits() == 1; }));
    CHECK(client.stats().reconnects == 0);
}

TEST_CASE("an operation that was made before a fork begins in the parent only") {
    RedisServer server;
    SharedMemory<Findings> found;
    Client client{server.url()};
    RLock orders{client, "orders"};
    redlatch::PermitExpirableSemaphore desks{client, "desks"};
    desks.try_set_permits(1);
    { const std::lock_guard guard{orders}; }
    auto order = orders.async_lock();
    auto desk = desks.async_acquire(1);
    auto blocking = orders.async_lock(), awaited = orders.async_lock();
    auto child = ChildProcess::run([&] {
        CHECK_IN_CHILD(code_of([&] { std::move(order).future(); }) == errc::cancelled);
        CHECK_IN_CHILD(code_of([&] { std::move(desk).future(); }) == errc::cancelled);
        CHECK_IN_CHILD(code_of([&] { static_cast<void>(std::move(blocking).get()); }) == errc::cancelled);
        std::error_code ec;
        const auto run = [&]() -> Fiber {
            try {
                const Hold hold = co_await std::move(awaited);
            } catch (const redlatch::Error& error) {
                ec = error.code();
            }
        };
        CHECK_IN_CHILD(run().done());
        CHECK_IN_CHILD(ec == errc::cancelled);
        CHECK_IN_CHILD(orders.async_lock().future().get());
        CHECK_IN_CHILD(desks.async_acquire(1).future().get());
        return 0;
    });
    CHECK(child.wait(60s) == ExitStatus{0, 0});
    CHECK(found->failed_line == 0);
    CHECK(found->passed == 7);
    CHECK(std::move(order).future().get());
    CHECK(std::move(desk).future().get());
    CHECK(std::move(blocking).get());
    CHECK(client.stats().reconnects == 0);
}

TEST_CASE("after a fork the child's copies of what operations got do nothing, and the parent's go on") {
    RedisServer server;
    SharedMemory<Findings> found;
    Client client{server.url()};
    RLock orders{client, "orders"};
    redlatch::Semaphore seats{client, "seats"};
    redlatch::PermitExpirableSemaphore desks{client, "desks"};
    seats.try_set_permits(2);
    desks.try_set_permits(4);
    auto order = orders.async_lock().future();  // with the hold inside
    order.wait();
    redlatch::Permits seat = seats.async_acquire(1).future().get();
    redlatch::Permits desk = desks.async_acquire(2).future().get();
    redlatch::Permits moved = desks.async_acquire(1).future().get();
    auto child = ChildProcess::run([&] {
        CHECK_IN_CHILD(desk.valid_until() == Instant::min());
        CHECK_IN_CHILD(desk.lost().stop_requested());
        CHECK_IN_CHILD(seat.lost().stop_requested());
        CHECK_IN_CHILD(desk.release() == errc::hold_lost);
        CHECK_IN_CHILD(order.get().lost().stop_requested());  // destroys the copy of the hold
        seat = redlatch::Permits();
        moved = redlatch::Permits();
        CHECK_IN_CHILD(orders.is_locked());
        CHECK_IN_CHILD(seats.available_permits() == 1);
        CHECK_IN_CHILD(desks.available_permits() == 1);
        return 0;
    });
    CHECK(child.wait(60s) == ExitStatus{0, 0});
    CHECK(found->failed_line == 0);
    CHECK(found->passed == 8);
    CHECK_FALSE(desk.lost().stop_requested());
    CHECK(desk.valid_until() > Clock::now());
    CHECK(order.get().unlock() == std::error_code());
    CHECK(seat.release() == std::error_code());
    CHECK(desk.release() == std::error_code());
    CHECK(moved.release() == std::error_code());
    CHECK(seats.available_permits() == 2);
    CHECK(desks.available_permits() == 4);
}

TEST_CASE("in a forked child, permits are split, merged and given back without any mutex of the parent") {
    RedisServer server;
    Client client{server.url()};
    redlatch::PermitExpirableSemaphore desks{client, "desks"};
    desks.try_set_permits(5);
    redlatch::Permits held = desks.hold(3), more = desks.hold(1);
    std::optional<redlatch::Permit> guard{std::in_place, desks};
    std::atomic<bool> stopped{false};
    std::thread beside{[&] {
        while (!stopped) static_cast<void>(held.valid_until());
    }};
    for (int i = 0; i < 20; ++i) {
        auto child = ChildProcess::run([&] {
            redlatch::Permits part = held.split(1);
            held.merge(std::move(more));
            held.merge(std::move(part));
            const bool is_whole = held.count() == 4 && !part && !more;
            const bool is_silent = held.release() == errc::hold_lost && !held;
            guard.reset();
            // One child lives long enough for a release in its background.
            const bool is_kept = i > 0 || !eventually([&] { return desks.available_permits() != 0; }, 1s);
            return is_whole && is_silent && is_kept ? 0 : 1;
        });
        CHECK(child.wait(60s) == ExitStatus{0, 0});
    }
    stopped = true;
    beside.join();
    CHECK(desks.available_permits() == 0);
    CHECK(held.release() == std::error_code());
    CHECK(more.release() == std::error_code());
    guard.reset();
    CHECK(eventually([&] { return desks.available_permits() == 5; }));
}

TEST_CASE("a stop that a forked child requests touches none of the parent's waiters") {
    RedisServer server;
    Client client{server.url()}, other{server.url()};
    RLock orders{client, "orders"}, theirs{other, "orders"};
    theirs.lock();
    std::stop_source stop;
    std::thread waiting{[&] { CHECK_FALSE(orders.lock(stop.get_token())); }};
    REQUIRE(eventually([&] { return client.stats().waiting == 1; }));
    std::atomic<bool> stopped{false};
    std::thread beside{[&] {
        while (!stopped) static_cast<void>(orders.valid_until());
    }};
    for (int i = 0; i < 20; ++i) {
        auto child = ChildProcess::run([&] { return stop.request_stop() ? 0 : 1; });
        CHECK(child.wait(60s) == ExitStatus{0, 0});
    }
    CHECK(client.stats().waiting == 1);
    stopped = true;
    beside.join();
    stop.request_stop();
    waiting.join();
    theirs.unlock();
}

TEST_CASE("a forked child logs in by ClientOptions::credentials, too") {
    RedisServer server{{.args = {"--requirepass", "before"}}};
    std::string password = "before";
    redlatch::ClientOptions options;
    options.credentials = [&] { return redlatch::Credentials{"", password}; };
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    RawRedis redis{server};
    redis.text("AUTH", "before");
    redis.text("CONFIG", "SET", "requirepass", "after");
    auto child = ChildProcess::run([&] {
        password = "after";
        RLock parcels{client, "parcels"};
        parcels.lock();
        const bool right = parcels.is_held() && orders.is_locked() && !orders.is_held();
        parcels.unlock();
        return right ? 0 : 1;
    });
    CHECK(child.wait(60s) == ExitStatus{0, 0});
    CHECK(orders.is_held());
    orders.unlock();
}
