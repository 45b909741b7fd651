// SPDX-License-Identifier: MIT
// ClientOptions::credentials: logins that change while the client runs.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/cluster_servers.hpp"
#include "support/sentinels.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace redlatch;

namespace {

/// Gives out a password that the test changes. Counts the calls, and notes their threads. Thread-safe.
class Vault {
public:
    explicit Vault(std::string password) : password_(std::move(password)) {}

    void set(std::string password) {
        const std::lock_guard guard{mutex_};
        password_ = std::move(password);
    }

    Credentials get(const std::string& user) {
        const std::lock_guard guard{mutex_};
        ++calls_;
        threads_.insert(std::this_thread::get_id());
        return {user, password_};
    }

    std::function<Credentials()> of(std::string user = {}) {
        return [this, user = std::move(user)] { return get(user); };
    }

    int calls() const {
        const std::lock_guard guard{mutex_};
        return calls_;
    }

    bool was_called_by(std::thread::id thread) const {
        const std::lock_guard guard{mutex_};
        return threads_.contains(thread);
    }

private:
    mutable std::mutex mutex_;
    std::string password_;
    int calls_ = 0;
    std::set<std::thread::id> threads_;
};

ClientOptions by(std::function<Credentials()> function) {
    ClientOptions options;
    options.watchdog_timeout = steady_lease;
    options.credentials = std::move(function);
    return options;
}

/// Returns how many connections of this user a server has.
std::size_t connections_of(RedisServer& server, const std::string& user) {
    std::istringstream lines{RawRedis{server}.text("CLIENT", "LIST")};
    std::size_t found = 0;
    for (std::string line; std::getline(lines, line);)
        if (line.find(" user=" + user + " ") != std::string::npos) ++found;
    return found;
}

void cut(RawRedis& redis) {
    redis.kill_clients("normal");
    redis.kill_clients("pubsub");
}

}  // namespace

TEST_CASE("after a change of the password, new connections log in with the new one") {
    RedisServer server{{.tcp = true, .args = {"--requirepass", "before"}}};
    RawRedis redis{server};
    redis.text("AUTH", "before");
    Vault vault{"before"};
    // The login in the URL does not count.
    Client client{"redis://:wrong@127.0.0.1:" + std::to_string(server.port()), by(vault.of())};
    RLock orders{client, "orders"};
    RLock same{client, "orders"};
    orders.lock();
    auto waiter = start_waiting(client, [&] { return same.try_lock_for(60s) ? (same.unlock(), true) : false; });
    for (const std::string password : {"after", "later"}) {
        CAPTURE(password);
        redis.text("CONFIG", "SET", "requirepass", password);
        vault.set(password);
        const int calls = vault.calls();
        cut(redis);
        CHECK(orders.is_held());
        const auto renewals = client.stats().renewals;
        CHECK(eventually([&] { return client.stats().renewals > renewals + 1; }, 20s));
        CHECK(vault.calls() > calls);
        CHECK(is_listened_to(redis, "orders"));
    }
    orders.unlock();
    CHECK(waiter.get());
    CHECK(client.stats().lost_holds == 0);
    CHECK_FALSE(vault.was_called_by(std::this_thread::get_id()));
}

TEST_CASE("a user whose password is changed by ACL SETUSER, with many threads") {
    RedisServer server{{.tcp = true, .args = {"--user", "app", "on", ">one", "~*", "&*", "+@all"}}};
    RawRedis redis{server};
    Vault vault{"one"};
    Client client{server.tcp_url(), by(vault.of("app"))};
    std::atomic<bool> done{false};
    std::atomic<int> turns{0};
    std::vector<std::future<std::error_code>> threads;
    for (int i = 0; i < 6; ++i)
        threads.push_back(start([&, i] {
            RLock lock{client, "orders" + std::to_string(i % 3)};
            std::error_code ec;
            for (; !done && !ec; ++turns)
                if (lock.lock(ec); !ec) lock.unlock(ec);
            return ec;
        }));
    const auto go_on_with_new_connections = [&] {
        redis.integer("CLIENT", "KILL", "USER", "app");
        const int before = turns;
        return eventually([&] { return turns > before + 20; }, 20s);
    };
    for (const std::string password : {"two", "three", "four"}) {
        // Both are valid for a while, as services do it: a login with the old one may be under way.
        redis.text("ACL", "SETUSER", "app", ">" + password);
        vault.set(password);
        CHECK(go_on_with_new_connections());
        redis.text("ACL", "SETUSER", "app", "resetpass", ">" + password);
        CHECK(go_on_with_new_connections());
    }
    done = true;
    for (auto& one : threads) CHECK_FALSE(one.get());
    CHECK(redis.keys().empty());
}

TEST_CASE("a login that the server refuses fails the call at once, and the next call brings another one") {
    RedisServer server{{.args = {"--requirepass", "new"}}};
    Vault vault{"stale"};
    Client client{server.url(), by(vault.of())};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
    const std::string text = text_of_error([&] { static_cast<void>(orders.try_lock()); });
    CHECK(watch.within(patient(10s)));
    CHECK(text.find("WRONGPASS") != std::string::npos);
    CHECK(text.find("stale") == std::string::npos);
    vault.set("new");
    orders.lock();
    orders.unlock();
}

TEST_CASE("a function that throws: unreachable after the limit, with its words, until it throws no more") {
    RedisServer server{{.args = {"--requirepass", "secret"}}};
    std::atomic<bool> broken{true};
    std::atomic<int> calls{0};
    ClientOptions options = by([&] {
        ++calls;
        if (broken) throw std::runtime_error("the vault is sealed");
        return Credentials{"", "secret"};
    });
    EventLog log;
    options.on_event = log.handler();
    options.command_timeout = 300ms;
    options.unreachable_timeout = 1s;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    Stopwatch watch;
    const std::string text = text_of_error([&] { orders.lock(); });
    CHECK(watch.elapsed() >= 1s);
    CHECK(watch.within(patient(10s)));
    CHECK(text.find("the vault is sealed") != std::string::npos);
    CHECK(calls > 2);
    watch.restart();
    CHECK(code_of([&] { static_cast<void>(orders.try_lock_for(100ms)); }) == errc::unreachable);
    CHECK(watch.within(patient(2s)));
    CHECK(eventually([&] { return log.count(Event::Kind::disconnected) == 1; }));
    auto waiting = start([&] { return orders.try_lock_for(60s); });
    broken = false;
    CHECK(waiting.get());
    CHECK(eventually([&] { return log.count(Event::Kind::reconnected) == 1; }));
}

TEST_CASE("a function may take longer than the time-outs: calls keep their deadlines, and the next one succeeds") {
    RedisServer server{{.args = {"--requirepass", "secret"}}};
    ClientOptions options = by([] {
        std::this_thread::sleep_for(patient(2s));
        return Credentials{"", "secret"};
    });
    options.command_timeout = patient(500ms);
    options.watchdog_timeout = 60s;  // no connection, no renewal
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    CHECK_FALSE(orders.try_lock_for(50ms));
    CHECK(watch.within(patient(1900ms)));
    orders.lock();
    CHECK(watch.elapsed() >= patient(2s));
    // The same without a thread that waits.
    Client other{server.url(), options};
    RLock parcels{other, "parcels"};
    Hold hold = parcels.async_lock().get();
    CHECK(hold);
    CHECK_FALSE(hold.unlock());
    orders.unlock();
}

TEST_CASE(
    "a function that blocks delays no renewal while another connection is up, and the client's end waits for it") {
    RedisServer server{{.args = {"--requirepass", "secret"}}};
    std::atomic<bool> blocks{false};
    std::atomic<int> blocked{0};
    ClientOptions options = by([&] {
        if (blocks) {
            ++blocked;
            eventually([&] { return !blocks.load(); }, 120s);
        }
        return Credentials{"", "secret"};
    });
    std::optional<Client> client;
    client.emplace(server.url(), options);
    std::optional<RLock> orders;
    orders.emplace(*client, "orders");
    orders->lock();
    REQUIRE(eventually([&] { return client->stats().renewals > 0; }, 20s));
    blocks = true;
    for (int i = 0; i < 4; ++i)  // one for each shared connection
        elsewhere([&] {
            RLock other{*client, "other"};
            other.lock();
            other.unlock();
        });
    CHECK(blocked > 0);
    const auto renewals = client->stats().renewals;
    CHECK(eventually([&] { return client->stats().renewals > renewals + 2; }, 20s));
    CHECK(client->stats().lost_holds == 0);
    orders->unlock();
    orders.reset();
    std::atomic<bool> ended{false};
    auto ending = start([&] {
        client.reset();
        ended = true;
    });
    std::this_thread::sleep_for(100ms);
    CHECK_FALSE(ended);
    blocks = false;
    ending.get();
}

TEST_CASE("by Sentinel: the login is the master's") {
    Sentinels3 servers;
    Vault vault{"one"};
    for (RedisServer* server : {&servers.master(), &servers.replica()})
        RawRedis{*server}.text("ACL", "SETUSER", "app", "on", ">one", "~*", "&*", "+@all");
    Client client{servers.url(), by(vault.of("app"))};
    RLock orders{client, "orders"};
    RLock same{client, "orders"};
    orders.lock();
    auto waiter = start_waiting(client, [&] { return same.try_lock_for(60s) ? (same.unlock(), true) : false; });
    REQUIRE(eventually([&] { return connections_of(servers.master(), "app") >= 2; }, 20s));
    RawRedis redis{servers.master()};
    redis.text("ACL", "SETUSER", "app", "resetpass", ">two");
    vault.set("two");
    redis.integer("CLIENT", "KILL", "USER", "app");
    CHECK(orders.is_held());
    CHECK(eventually([&] { return connections_of(servers.master(), "app") >= 2; }, 20s));
    orders.unlock();
    CHECK(waiter.get());
    CHECK(client.stats().lost_holds == 0);
}

TEST_CASE("in a cluster the login is that of every node") {
    ClusterServers cluster{
        {.replicas = 0, .node_timeout = 60s, .args = {"--user", "app", "on", ">one", "~*", "&*", "+@all"}}};
    Vault vault{"one"};
    Client client{cluster.url(), by(vault.of("app"))};
    std::vector<std::unique_ptr<RLock>> locks;
    for (std::size_t i = 0; i < cluster.size(); ++i)
        locks.push_back(std::make_unique<RLock>(client, cluster.key_on(cluster.node(i), "orders")));
    for (const auto& lock : locks) lock->lock();
    auto waiter =
        start_waiting(client, [&] { return locks[0]->try_lock_for(60s) ? (locks[0]->unlock(), true) : false; });
    for (std::size_t i = 0; i < cluster.size(); ++i) {
        CHECK(connections_of(cluster.node(i), "app") >= 1);
        RawRedis{cluster.node(i)}.text("ACL", "SETUSER", "app", "resetpass", ">two");
    }
    vault.set("two");
    for (std::size_t i = 0; i < cluster.size(); ++i) RawRedis{cluster.node(i)}.integer("CLIENT", "KILL", "USER", "app");
    for (const auto& lock : locks) CHECK(lock->is_held());
    const auto renewals = client.stats().renewals;
    CHECK(eventually([&] { return client.stats().renewals > renewals + cluster.size(); }, 20s));
    for (const auto& lock : locks) lock->unlock();
    CHECK(waiter.get());
    CHECK(client.stats().lost_holds == 0);
}

TEST_CASE("without a login, an empty one from a function works as well") {
    RedisServer server;
    Client client{server.url(), by([] { return Credentials{}; })};
    RLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
    CHECK(RawRedis{server}.command_calls().count("auth") == 0);
}
