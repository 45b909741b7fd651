// SPDX-License-Identifier: MIT
// The order of service of a FairLock: 32 waiters in four processes, which the test calls one by one.
#include <doctest/doctest.h>
#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/process.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::FairLock;

namespace {

constexpr std::size_t processes = 4;
constexpr std::size_t threads_each = 8;
constexpr std::size_t everybody = processes * threads_each;

// A slot lasts a sixth of it. A process may get no CPU for two thirds of a slot and still keeps its slots.
constexpr std::chrono::milliseconds quick_watchdog{slow_build_factor > 1 ? 24'000 : 15'000};
constexpr std::chrono::milliseconds quick_slot = quick_watchdog / 6;

const std::string queue = "redisson_lock_queue:{orders}";

std::string call_of(std::size_t number) { return "call:" + std::to_string(number); }

// Customers with numbers from args[1] on, one thread each. A customer that is called waits for the lock, and appends
// its number to the list "served" while it holds it. It ends when it is sent home.
const Role customers{"customers of a fair lock", [](std::span<const std::string> args) {
                         Client client{args[0], with_watchdog(std::chrono::milliseconds{std::stoi(args[2])})};
                         FairLock orders{client, "orders"};
                         const auto visit = [&](std::size_t number) {
                             RawRedis redis{args[0], 60s};
                             while (redis.list("BLPOP", call_of(number), 0).at(1) == "come") {
                                 const std::lock_guard guard{orders};
                                 redis.integer("RPUSH", "served", number);
                             }
                         };
                         std::vector<std::jthread> threads;
                         for (std::size_t i = 0; i < threads_each; ++i)
                             threads.emplace_back(visit, std::stoul(args[1]) + i);
                         return 0;
                     }};

// A lock that this process holds, and four processes of customers.
class Shop {
public:
    explicit Shop(std::chrono::milliseconds watchdog) {
        for (std::size_t p = 0; p < processes; ++p)
            crews.push_back(spawn_self("customers of a fair lock", {server.url(), std::to_string(p * threads_each),
                                                                    std::to_string(watchdog.count())}));
    }

    // Calls all customers in this order, each after the one before is in the queue.
    bool fill_queue(const std::vector<std::size_t>& order) {
        for (std::size_t i = 0; i < order.size(); ++i) {
            redis.integer("RPUSH", call_of(order[i]), "come");
            if (!eventually([&] { return redis.integer("LLEN", queue) > static_cast<long long>(i); }, 20s))
                return false;
        }
        return true;
    }

    // Returns the customers served, once there are `count` of them and the last one has released the lock.
    Words served(std::size_t count) {
        eventually(
            [&] { return redis.integer("LLEN", "served") >= static_cast<long long>(count) && !redis.exists("orders"); },
            30s);
        const Words all = redis.list("LRANGE", "served", 0, -1);
        redis.call("DEL", "served");
        return all;
    }

    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FairLock orders{client, "orders"};
    std::vector<ChildProcess> crews;
};

// Another order for each seed, mixed over the processes, and the same in every run of the test.
std::vector<std::size_t> mixed(unsigned seed) {
    std::vector<std::size_t> order(everybody);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937{seed});
    return order;
}

std::size_t crew_of(std::size_t customer) { return customer / threads_each; }

// One of each process, then the second ones, and so on.
std::vector<std::size_t> taking_turns() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < everybody; ++i) order.push_back(i % processes * threads_each + i / processes);
    return order;
}

Words words(const std::vector<std::size_t>& numbers) {
    Words result;
    for (const std::size_t number : numbers) result.push_back(std::to_string(number));
    return result;
}

}  // namespace

TEST_CASE("32 waiters of four processes are served in order of arrival, twenty times in a row") {
    Shop shop{30s};
    constexpr long long rounds = 20;
    long long commands = 0;
    for (unsigned round = 0; round < rounds; ++round) {
        CAPTURE(round);
        const auto order = mixed(round);
        shop.orders.lock();
        REQUIRE(shop.fill_queue(order));
        const auto before = shop.redis.client_commands();
        shop.orders.unlock();
        REQUIRE(shop.served(everybody) == words(order));
        commands += shop.redis.client_commands() - before;
    }
    CHECK(commands <= 3 * rounds * static_cast<long long>(everybody));
    for (std::size_t i = 0; i < everybody; ++i) shop.redis.call("RPUSH", call_of(i), "go home");
    for (ChildProcess& crew : shop.crews) CHECK(crew.wait(20s) == ExitStatus{0, 0});
    CHECK(shop.redis.keys().empty());
}

TEST_CASE("a killed process with eight waiters, the head among them, delays the others by one slot in all") {
    Shop shop{quick_watchdog};
    shop.orders.lock();
    REQUIRE(shop.fill_queue(taking_turns()));
    constexpr std::size_t victim = 0;
    std::vector<std::size_t> living = taking_turns();
    std::erase_if(living, [](std::size_t customer) { return crew_of(customer) == victim; });
    shop.crews[victim].kill();
    const Stopwatch watch;
    shop.orders.unlock();
    CHECK(shop.served(living.size()) == words(living));
    // The slots of the dead waiters end at the same time, and the next refresh of a living one detects that.
    CHECK(watch.within(quick_slot + quick_slot / 3 + patient(3000ms)));
    // The next visitor removes the places of the dead.
    CHECK(eventually([&] { return shop.orders.lock(), shop.orders.unlock(), shop.redis.keys().empty(); }, 20s));
}
