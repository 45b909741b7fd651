// SPDX-License-Identifier: MIT
// ctest: timeout=600 long without=address
// SegmentedSemaphore: a stock is sold exactly once, whatever happens to its sellers, to replies, and to the masters of a
// cluster or of Sentinel.
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "faults/cluster_kit.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds short_lease = paced(3000ms);
constexpr std::size_t segments = 6;

// Holds a watched permit of each of two segments, and waits for one more until it is killed.
const Role buyer_role{"fault: buyer", [](std::span<const std::string> args) {
                          Client client{args[0], unhurried(short_lease)};
                          SegmentedSemaphore stock{client, "stock", segments};
                          static_cast<void>(stock.acquire());
                          static_cast<void>(stock.acquire());
                          RawRedis{args[0]}.text("SET", "holds", "1");
                          static_cast<void>(stock.acquire());
                          return 0;
                      }};

// Sells the stock with several clients, and runs `during` when a third is sold. Returns the permits that were sold.
class Sale {
public:
    Sale(const std::string& url, const ClientOptions& options, int units, std::chrono::milliseconds time_to_pay)
        : units_(units), time_to_pay_(time_to_pay) {
        for (int i = 0; i < 4; ++i) {
            Client& client = clients_.emplace_back(url, options);
            SegmentedSemaphore& stock = stocks_.emplace_back(client, "stock", segments);
            for (int k = 0; k < 2; ++k) sellers_.push_back(start([this, &stock] { sell_all(stock); }));
        }
    }

    bool has_sold(int units, std::chrono::milliseconds bound) {
        return eventually([&] { return sold_ >= units; }, bound);
    }

    void end() {
        for (auto& seller : sellers_) seller.get();
    }

    // After end().
    const std::set<std::string>& ids() const { return ids_; }
    int sold() const { return sold_; }
    SegmentedSemaphore& stock() { return stocks_.front(); }

private:
    void sell_all(SegmentedSemaphore& stock) {
        const Stopwatch watch;
        while (sold_ < units_ && watch.elapsed() < failover * 2) {
            std::error_code ec;
            const auto unit = stock.try_acquire_for(200ms, Lease{time_to_pay_}, ec);
            if (!unit) continue;
            std::this_thread::sleep_for(5ms);  // the payment
            // Until the outcome is certain.
            do stock.update_lease(*unit, Lease::forever(), ec);
            while (ec && ec != errc::unknown_permit && watch.elapsed() < failover * 2);
            if (ec) continue;
            const std::lock_guard guard{mutex_};
            ids_.insert(std::to_string(unit->segment) + ' ' + unit->id.text());
            ++sold_;
        }
    }

    const int units_;
    const std::chrono::milliseconds time_to_pay_;
    std::deque<Client> clients_;
    std::deque<SegmentedSemaphore> stocks_;
    std::mutex mutex_;  // guards ids_
    std::set<std::string> ids_;
    std::atomic<int> sold_{0};
    std::vector<std::future<void>> sellers_;
};

// The stock is sold, each unit once, and the server knows every unit that was sold.
void check_sold_out(Sale& sale, int units) {
    CHECK(sale.sold() == units);
    CHECK(sale.ids().size() == static_cast<std::size_t>(units));
    CHECK(sale.stock().acquired_permits() == units);
    CHECK(sale.stock().available_permits() == 0);
    for (std::size_t i = 0; i < segments; ++i)
        for (const HeldPermit& held : sale.stock().segment(i).inspect().permits)
            CHECK(sale.ids().contains(std::to_string(i) + ' ' + held.id));
}

}  // namespace

TEST_CASE("fault: a process is killed that holds permits of two segments and waits: they come back, and are complete") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried(short_lease)};
    SegmentedSemaphore stock{client, "stock", segments};
    stock.try_set_permits(2);
    ChildProcess buyer = spawn_self("fault: buyer", {server.url()});
    REQUIRE(eventually([&] { return redis.exists("holds"); }, 30s));
    CHECK(stock.available_permits() == 0);
    // It waits in every segment.
    for (std::size_t i = 0; i < segments; ++i)
        REQUIRE(
            eventually([&] { return redis.subscribers("redisson_sc:{stock:" + std::to_string(i) + "}") == 1; }, 20s));
    auto waiting = start([&] { return stock.try_acquire_for(60s).has_value(); });
    REQUIRE(eventually([&] { return client.stats().waiting == segments; }, 20s));
    buyer.kill();
    const Stopwatch watch;
    CHECK(waiting.get());
    CHECK(watch.within(short_lease + late));
    CHECK(stock.try_acquire_for(60s));
    CHECK_FALSE(stock.try_acquire());
    CHECK(stock.permits() == 2);
}

TEST_CASE("fault: replies to acquires are lost: each call has one permit, and none is missing") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    SegmentedSemaphore stock{client, "stock", segments};
    stock.try_set_permits(12);
    const std::string digest{digested<scripts::permit_acquire>.digest()};
    static_cast<void>(stock.acquire());  // from now on the server knows the script
    for (int i = 0; i < 5; ++i) {
        path.proxy.drop_next_replies(1, digest);
        CHECK(stock.try_acquire());
    }
    CHECK(path.proxy.counts().dropped == 5);
    CHECK(stock.acquired_permits() == 6);
    CHECK(stock.available_permits() == 6);
}

TEST_CASE("fault: a server restarts without its data while a call waits: it gets a permit when there are some again") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    SegmentedSemaphore stock{client, "stock", segments};
    stock.try_set_permits(1);
    static_cast<void>(stock.acquire(Lease{600s}));
    auto waiting = start([&] { return stock.try_acquire_for(60s).has_value(); });
    REQUIRE(eventually([&] { return client.stats().waiting == segments; }, 20s));
    server.kill();
    server.restart();
    REQUIRE(eventually([&] { return stock.try_set_permits(1); }, 20s));
    CHECK(waiting.get());
    CHECK(stock.permits() == 1);
}

TEST_CASE("fault: the new lease of a permit counts only when the required replica has confirmed it") {
    Replicated setup;
    ClientOptions options = unhurried();
    options.require_replicas = 1;
    options.command_timeout = 2s;
    Client client{setup.master().url(), options};
    SegmentedSemaphore stock{client, "stock", segments};
    stock.try_set_permits(2);
    const SegmentPermit unit = stock.acquire(Lease{600s});
    stock.update_lease(unit, Lease::forever());
    RawRedis replica{setup.replica()};
    CHECK(replica.list("ZRANGE", "{" + stock.segment(unit.segment).name() + "}:timeout", 0, -1, "WITHSCORES").at(1) ==
          "922337203685477");
    setup.cut_replication();
    CHECK(code_of([&] { stock.update_lease(unit, Lease{600s}); }) == errc::not_replicated);
}

TEST_CASE("fault: a master of the cluster dies during a sale: exactly the stock is sold") {
    ClusterServers cluster;
    ClientOptions options = steady();
    options.require_replicas = 1;
    constexpr int units = 120;
    Client client{cluster.url(), options};
    SegmentedSemaphore stock{client, "stock", segments};
    std::set<RedisServer*> homes;
    for (std::size_t i = 0; i < segments; ++i) homes.insert(&cluster.master_of(stock.segment(i).name()));
    REQUIRE(homes.size() == 3);
    REQUIRE(stock.try_set_permits(units));
    for (std::size_t i = 0; i < segments; ++i) {
        const std::string key = stock.segment(i).name();
        RawRedis replica{cluster.partner_of(cluster.master_of(key))};
        replica.text("READONLY");
        REQUIRE(eventually([&] { return replica.exists(key); }, soon));
    }
    RedisServer& victim = cluster.node(0);
    const std::string key = cluster.key_on(victim, "x");
    Sale sale{cluster.url(), options, units, paced(4000ms)};
    REQUIRE(sale.has_sold(units / 6, failover));
    victim.kill();
    REQUIRE(cluster.is_served(key, failover));
    // Nothing is sold from its segments before a replica can confirm it again.
    victim.restart();
    REQUIRE(cluster.is_well(failover));
    sale.end();
    check_sold_out(sale, units);
}

TEST_CASE("fault: a failover by Sentinel during a sale: exactly the stock is sold") {
    Sentinels3 setup{2};
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    options.unreachable_timeout = 180s;
    options.require_replicas = all_replicas;
    constexpr int units = 120;
    Client client{setup.url(), options};
    SegmentedSemaphore stock{client, "stock", segments};
    REQUIRE(stock.try_set_permits(units));
    REQUIRE(setup.confirmed_by(2));
    Sale sale{setup.url(), options, units, paced(4000ms)};
    REQUIRE(sale.has_sold(units / 6, failover));
    setup.master().kill();
    sale.end();
    check_sold_out(sale, units);
}
