// SPDX-License-Identifier: MIT
// ctest: timeout=600 long
// A Redis Cluster that is down: how many commands its nodes receive, by their own count, and which nodes receive them.
#include <array>
#include <sstream>

#include "faults/cluster_kit.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// Returns the number of commands that clients sent to this node, whether it carried them out or not.
long long commands_at(RedisServer& node) {
    RawRedis redis{node};
    std::istringstream lines{redis.text("INFO", "commandstats")};
    long long sum = 0;
    for (std::string line; std::getline(lines, line);) {
        for (const char* name : {"evalsha:", "eval:", "cluster|slots:", "ssubscribe:", "sunsubscribe:", "subscribe:",
                                 "asking:", "pubsub|shardnumsub:", "auth:"}) {
            if (!line.starts_with(std::string("cmdstat_") + name)) continue;
            for (const std::string field : {":calls=", ",rejected_calls="})
                sum += std::stoll(line.substr(line.find(field) + field.size()));
        }
    }
    return sum;
}

}  // namespace

TEST_CASE(
    "fault: the cluster is down: few commands are sent, deadlines are kept, and work continues after the outage") {
    ClusterServers cluster{{.replicas = 0}};
    ClientOptions options = quick();
    options.watchdog_timeout = 180s;
    options.unreachable_timeout = 600s;
    Client client{cluster.url(), options};
    std::vector<std::string> names;
    std::vector<std::unique_ptr<RLock>> locks;
    for (int i = 0; i < 24; ++i) {
        RedisServer& home = cluster.node(static_cast<std::size_t>(i % 2));
        names.push_back(cluster.key_on(home, "down" + std::to_string(i) + "."));
        locks.push_back(std::make_unique<RLock>(client, names.back()));
    }
    // Half of the locks are held by others, so their channels have waiters.
    RawRedis first{cluster.node(0)}, second{cluster.node(1)};
    for (std::size_t i = 0; i < 12; ++i) {
        RawRedis& redis = i % 2 == 0 ? first : second;
        redis.integer("HSET", names[i], "somebody:1", 1);
        redis.integer("PEXPIRE", names[i], 600'000);
    }
    cluster.node(2).kill();
    REQUIRE(eventually(
        [&] {
            return first.text("CLUSTER", "INFO").find("cluster_state:fail") != std::string::npos &&
                   second.text("CLUSTER", "INFO").find("cluster_state:fail") != std::string::npos;
        },
        failover));
    RLock hurried{client, names[1]};
    const Stopwatch watch;
    CHECK(code_of([&] { static_cast<void>(hurried.try_lock_for(700ms)); }) != std::error_code{errc::rejected});
    CHECK(watch.elapsed() >= 600ms);
    CHECK(watch.within(700ms + late * 4));
    std::vector<std::future<void>> all;
    for (const auto& lock : locks)
        all.push_back(start([&lock = *lock] {
            lock.lock();
            lock.unlock();
        }));
    std::this_thread::sleep_for(500ms);
    // Count again if a busy machine was still at the first commands of all these threads.
    std::array<double, 2> rates{};
    for (int tries = 0; tries < 3; ++tries) {
        std::array<long long, 2> before{}, after{};
        const Stopwatch counting;
        for (std::size_t i = 0; i < 2; ++i) before[i] = commands_at(cluster.node(i));
        std::this_thread::sleep_for(4s);
        for (std::size_t i = 0; i < 2; ++i) after[i] = commands_at(cluster.node(i));
        const double seconds = std::chrono::duration<double>(counting.elapsed()).count();
        for (std::size_t i = 0; i < 2; ++i) rates[i] = static_cast<double>(after[i] - before[i]) / seconds;
        if (rates[0] <= 10 && rates[1] <= 10) break;
    }
    for (const double rate : rates) {
        MESSAGE("commands a second: " << rate);
        CHECK(rate <= 10);
        CHECK(rate > 0);
    }
    cluster.node(2).restart();
    // The holders of the other half release.
    REQUIRE(cluster.is_well(failover));
    for (std::size_t i = 0; i < 12; ++i) {
        RawRedis& redis = i % 2 == 0 ? first : second;
        redis.integer("DEL", names[i]);
        redis.integer("SPUBLISH", channel_of(names[i]), "0");
    }
    for (auto& one : all) CHECK(ready(one, soon));
}

TEST_CASE("fault: a frozen master is replaced: callers stop waiting for it, and it gets no commands when it is back") {
    ClusterServers cluster;
    Client client{cluster.url(), steady()}, other{cluster.url(), steady()};
    RedisServer& victim = cluster.node(0);
    RedisServer& successor = cluster.node(3);
    const std::string name = cluster.key_on(victim, "orders");
    RLock orders{client, name}, wanted{other, name};
    orders.lock();
    auto waiting = start([&] {
        wanted.lock();
        wanted.unlock();
    });
    REQUIRE(is_listened_to(victim, name));
    RawRedis replica{successor};
    replica.text("READONLY");
    REQUIRE(eventually([&] { return replica.exists(name); }, soon));
    victim.stop();
    REQUIRE(cluster.is_served(name, failover));
    orders.unlock();
    // The other client got no notification. It asks by itself at the end of the lease, or when it notices that its node
    // is no master any more. So the test makes it contact its node here.
    RLock fresh{other, cluster.key_on(successor, "x")};
    CHECK(fresh.try_lock_for(failover));
    fresh.unlock();
    REQUIRE(ready(waiting, soon));
    victim.cont();
    REQUIRE(cluster.is_well(failover));
    const long long spoken = commands_at(victim);
    for (int i = 0; i < 20; ++i) {
        orders.lock();
        orders.unlock();
    }
    CHECK(commands_at(victim) <= spoken + 2);
}
