// SPDX-License-Identifier: MIT
// ctest: without=address
// fork(): a child never uses its parent's connections or identity.
#include <doctest/doctest.h>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "integration/rlock_helpers.hpp"
#include "support/process.hpp"
#include "support/shared_memory.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
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
    CHECK(redis.keys().empty());
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
    CHECK(redis.keys().empty());
}

TEST_CASE("a child that destroys inherited objects, used or not, ends nothing of the parent's") {
    RedisServer server;
    RawRedis redis{server};
    for (const bool used : {false, true}) {
        CAPTURE(used);
        SharedMemory<Findings> found;
        auto client = std::make_optional<Client>(server.url(), with_watchdog(short_lease));
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
        CHECK_FALSE(eventually([&] { return !redis.exists("orders"); }, short_lease * 3 / 2, 5ms));
        CHECK(orders->hold_count() == 1);
        CHECK(client->stats().reconnects == 0);
        orders->unlock();
    }
    CHECK(redis.keys().empty());
}

TEST_CASE("a child does not renew the holds of its parent") {
    RedisServer server;
    RawRedis redis{server};
    SharedMemory<Findings> found;
    // A child of this process holds the lock, and its own child survives it.
    auto holder = ChildProcess::run([&] {
        Client client{server.url(), with_watchdog(short_lease)};
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
    CHECK(eventually([&] { return !redis.exists("orders"); }, short_lease + 10s));
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
    CHECK(redis.keys().empty());
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
    CHECK(redis.keys().empty());
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
