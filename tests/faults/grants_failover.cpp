// SPDX-License-Identifier: MIT
// ctest: timeout=600 long without=address
// Waiters queue up for a lock on a server that is replaced: with its queue, and without.
#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "faults/cluster_kit.hpp"
#include "support/grants.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// A client with a lock. Its watchdog outlasts the failover.
template <class L>
struct Party {
    Party(const std::string& url, const std::string& name, PubSub pubsub)
        : client(url, steady_with(pubsub)), lock(client, name) {}

    static ClientOptions steady_with(PubSub pubsub) {
        ClientOptions options = steady();
        options.pubsub = pubsub;
        return options;
    }

    void wait() {
        visit = start([this] {
            lock.lock();
            lock.unlock();
        });
    }

    Client client;
    L lock;
    std::future<void> visit;
};

// Three parties that wait, each at its place in the queue.
template <class L>
struct Crowd {
    Crowd(const std::string& url, RedisServer& master, const std::string& name, PubSub pubsub = PubSub::automatic) {
        const std::string queue = queue_key_of<L>(name);
        for (int i = 1; i <= 3; ++i) {
            parties.push_back(std::make_unique<Party<L>>(url, name, pubsub));
            parties.back()->wait();
            REQUIRE(eventually([&] { return RawRedis{master}.integer("LLEN", queue) == i; }, soon));
        }
    }

    void all_enter() {
        for (const auto& party : parties) CHECK(ready(party->visit, failover));
    }

    std::vector<std::unique_ptr<Party<L>>> parties;
};

template <class L>
bool is_held(L& lock) {
    if constexpr (std::is_same_v<L, ReadWriteLock>)
        return lock.write_lock().is_held();
    else
        return lock.is_held();
}

// Returns true once nothing is left of the lock but what counts its tokens.
bool is_left_empty(RedisServer& server) {
    return eventually(
        [&] {
            const std::vector<std::string> keys = RawRedis{server}.keys();
            return std::all_of(keys.begin(), keys.end(),
                               [](const std::string& key) { return key.find("token") != std::string::npos; });
        },
        60s);
}

}  // namespace

TEST_CASE_TEMPLATE("a master of a cluster dies: those who queue get the lock from the replica, which has their queue",
                   L, RLock, FencedLock, FairLock, ReadWriteLock) {
    for (const PubSub pubsub : {PubSub::sharded, PubSub::classic}) {
        CAPTURE(pubsub == PubSub::sharded);
        ClusterServers cluster;
        RedisServer& victim = cluster.node(0);
        RedisServer& successor = cluster.partner_of(victim);
        const std::string name = cluster.key_on(victim, "orders");
        Party<L> holder{cluster.url(), name, pubsub};
        holder.lock.lock();
        Crowd<L> crowd{cluster.url(), victim, name, pubsub};
        const auto offset = [](RedisServer& server) {
            return RawRedis{server}.info("replication", "master_repl_offset");
        };
        REQUIRE(eventually([&] { return offset(successor) == offset(victim); }, soon));
        victim.kill();
        REQUIRE(cluster.is_served(name, failover));
        holder.lock.unlock();
        crowd.all_enter();
        CHECK(is_left_empty(successor));
    }
}

TEST_CASE_TEMPLATE("a master dies with the queue: those who wait queue up again, and get the lock", L, RLock,
                   FencedLock, FairLock, ReadWriteLock) {
    Sentinels3 setup;
    const std::string name = "orders";
    Party<L> holder{setup.url(), name, PubSub::automatic};
    holder.lock.lock();
    REQUIRE(setup.confirmed_by(1));
    setup.cut_replication();
    Crowd<L> crowd{setup.url(), setup.master(), name};
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    CHECK(is_held(holder.lock));
    holder.lock.unlock();
    crowd.all_enter();
    CHECK(is_left_empty(setup.replica()));
}
