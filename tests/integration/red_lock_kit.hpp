// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/proxy.hpp"

// Shared by the tests of RedLock: a number of servers, and a party that locks all of them.
namespace redlatch::test {

using namespace redlatch::detail;

using namespace std::chrono_literals;

using SteadyClock = std::chrono::steady_clock;
using Urls = std::vector<std::string>;

/// Servers that may vote for leases of up to `lease`, each behind a proxy that passes everything on by default.
class Fleet {
public:
    Fleet(std::size_t size, std::chrono::milliseconds lease, RedisServerOptions options = {}) : lease_(lease) {
        for (std::size_t i = 0; i < size; ++i) servers.emplace_back(options);
        for (RedisServer& server : servers) {
            looks.emplace_back(server);
            proxies.emplace_back(server.url());
        }
        for (std::size_t i = 0; i < size; ++i) wait_until_old(i);
    }

    /// Waits until server `i` is old enough to vote, too.
    void wait_until_old(std::size_t i) {
        const auto enough = std::chrono::ceil<std::chrono::seconds>(lease_ + lease_ / 100 + 2ms) + 1s;
        RawRedis look{servers[i]};
        const auto age = [&] { return std::chrono::seconds{std::stoll(look.info("server", "uptime_in_seconds"))}; };
        eventually([&] { return age() >= enough; }, 60s, 20ms);
    }

    Urls urls() const {
        Urls all;
        for (const RedisServer& server : servers) all.push_back(server.url());
        return all;
    }

    Urls proxied() const {
        Urls all;
        for (const Proxy& proxy : proxies) all.push_back(proxy.url());
        return all;
    }

    /// Returns on how many servers the lock is held.
    std::size_t holders(const std::string& name) {
        return static_cast<std::size_t>(
            std::count_if(looks.begin(), looks.end(), [&](RawRedis& look) { return look.exists(name); }));
    }

    bool becomes_free(const std::string& name) {
        return eventually([&] { return holders(name) == 0; }, 20s);
    }

    std::deque<RedisServer> servers;
    std::deque<RawRedis> looks;  // not through the proxies
    std::deque<Proxy> proxies;

private:
    std::chrono::milliseconds lease_;
};

/// A party that locks all servers: a client and a lock for each, and the RedLock over them. Healthy servers have much
/// time to reply, because the machine may be busy.
template <class Lock = HiredisRLock>
struct Party {
    Party(const Urls& urls, const std::string& name, const ClientOptions& options,
          RedLockOptions red = {.node_timeout = 5s}) {
        for (const std::string& url : urls) {
            clients.emplace_back(url, options);
            locks.emplace_back(clients.back(), name);
        }
        lock = std::make_unique<RedLock>(locks, red);
    }

    RedLock& operator*() { return *lock; }
    RedLock* operator->() { return lock.get(); }

    std::deque<HiredisClient> clients;
    std::deque<Lock> locks;
    std::unique_ptr<RedLock> lock;
};

/// start_waiting() for a party that may have to wait at any of the servers.
template <class Lock, class Function>
auto start_waiting(const Party<Lock>& party, Function&& function) {
    const auto waits = [&party] {
        std::uint64_t sum = 0;
        for (const HiredisClient& client : party.clients) sum += client.stats().waits;
        return sum;
    };
    const std::uint64_t before = waits();
    auto future = start(std::forward<Function>(function));
    if (!eventually([&] { return waits() > before; }, 20s)) throw std::runtime_error("the thread does not wait");
    return future;
}

/// For tests with faulty servers.
inline ClientOptions quick_options(std::chrono::milliseconds watchdog = short_lease) {
    ClientOptions options = with_watchdog(watchdog);
    options.command_timeout = patient(1500ms);
    options.unreachable_timeout = patient(2500ms);
    return options;
}

inline const std::string acquire_digest{digested<scripts::queue_acquire>.digest()};
inline const std::string release_digest{digested<scripts::queue_release>.digest()};

/// Returns how long the call took.
template <class Function>
std::chrono::milliseconds time_of(Function&& function) {
    const Stopwatch watch;
    std::forward<Function>(function)();
    return watch.elapsed_ms();
}

/// Returns true if a call takes less than `bound`. A longer call is repeated a few times, because the machine may have
/// been busy.
template <class Function>
bool takes_less_than(std::chrono::milliseconds bound, Function&& function) {
    for (int tries = 0; tries < 4; ++tries)
        if (time_of(function) < bound) return true;
    return false;
}

}  // namespace redlatch::test
