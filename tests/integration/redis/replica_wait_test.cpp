// SPDX-License-Identifier: MIT
// ctest: timeout=300 long
// A replica that does not confirm: threads that wait for it delay no others.
#include <algorithm>
#include <atomic>
#include <memory>

#include "faults/fault_kit.hpp"
#include "support/cluster_servers.hpp"
#include "support/replicated.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// ReplicaAcks wait a quarter of it.
constexpr std::chrono::milliseconds timeout = paced(2000ms);

ClientOptions requiring_one() {
    ClientOptions options;
    options.command_timeout = timeout;
    options.require_replicas = 1;
    return options;
}

// Many threads acquire locks that the replica does not confirm, while this thread releases its earlier holds one by
// one. Returns the median time of a release.
std::chrono::milliseconds time_of_an_unlock(Client& client, RedisServer& replica,
                                            const std::function<std::string(const std::string&)>& name) {
    constexpr std::size_t holds = 9;
    std::vector<std::unique_ptr<RLock>> held;
    for (std::size_t i = 0; i < holds; ++i) {
        // Only their release counts. On a busy machine even a healthy replica may confirm too late.
        const ObjectOptions unconfirmed{.require_replicas = 0};
        held.push_back(std::make_unique<RLock>(client, name("held" + std::to_string(i)), unconfirmed));
        held.back()->lock();
    }
    std::vector<std::string> names;
    for (int i = 0; i < 24; ++i) names.push_back(name("wanted" + std::to_string(i)));
    replica.stop();
    std::atomic<bool> stopping{false};
    std::vector<std::future<std::error_code>> takers;
    for (const std::string& wanted : names)
        takers.push_back(start([&] {
            RLock lock{client, wanted};
            std::error_code ec;
            do ec = code_of([&] { lock.lock(); });
            while (!stopping && ec == errc::not_replicated);
            return ec;
        }));
    // By now each of them waits.
    REQUIRE(eventually([&] { return client.stats().commands > 24 * 4; }, 20s));
    std::vector<std::chrono::milliseconds> times;
    for (const auto& lock : held) {
        std::this_thread::sleep_for(timeout / 8);
        const Stopwatch watch;
        lock->unlock();
        times.push_back(watch.elapsed_ms());
    }
    stopping = true;
    for (auto& taker : takers) CHECK(taker.get() == errc::not_replicated);
    replica.cont();
    std::sort(times.begin(), times.end());
    return times[holds / 2];
}

}  // namespace

TEST_CASE("a wait for an unresponsive replica delays no other command, and closes no connection") {
    Replicated setup;
    EventLog log;
    Client client{setup.master().url(), log.in(requiring_one())};
    CHECK(time_of_an_unlock(client, setup.replica(), [](const std::string& name) { return name; }) <= patient(100ms));
    CHECK(client.stats().reconnects == 0);
    CHECK(log.count(Event::Kind::disconnected) == 0);
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    REQUIRE(setup.confirmed_by(1));
    RLock orders{client, "orders"};
    CHECK(eventually([&] { return !code_of([&] { orders.lock(); }); }));
    orders.unlock();
}

TEST_CASE("a wait for an unresponsive replica of a node delays no other command to that node") {
    ClusterServers cluster{{.node_timeout = 60s}};
    EventLog log;
    Client client{cluster.url(), log.in(requiring_one())};
    CHECK(time_of_an_unlock(client, cluster.node(3), [&](const std::string& name) {
              return cluster.key_on(cluster.node(0), name);
          }) <= patient(100ms));
    CHECK(client.stats().reconnects == 0);
    CHECK(log.count(Event::Kind::disconnected) == 0);
    CHECK(log.count(Event::Kind::hold_lost) == 0);
}
