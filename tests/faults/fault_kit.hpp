// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>
#include <time.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <redlatch/redlatch.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "support/code_of.hpp"
#include "support/event_log.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

// Shared by the fault tests: short time-outs, a record of events, a server behind a proxy.
namespace redlatch::fault {

using namespace redlatch::detail;

using namespace redlatch::test;

using namespace std::chrono_literals;

// For time-outs of the library, not for bounds of a test. Doubled where a sanitizer slows everything down.
constexpr std::chrono::milliseconds paced(std::chrono::milliseconds time) {
    return time * (slow_build_factor > 1 ? 2 : 1);
}

inline constexpr std::chrono::milliseconds command_timeout = paced(300ms);
inline constexpr std::chrono::milliseconds watchdog_timeout = paced(1500ms);
inline constexpr std::chrono::milliseconds unreachable_timeout = paced(5000ms);

// How much later than it should a call may return: on a busy machine a thread may get no processor for a while. If this
// makes a test's bound larger than the effect that the bound must exclude, the test increases that effect.
inline constexpr std::chrono::milliseconds late = paced(1000ms);

inline ClientOptions quick() {
    ClientOptions options;
    options.watchdog_timeout = watchdog_timeout;
    options.command_timeout = command_timeout;
    options.unreachable_timeout = unreachable_timeout;
    options.ping_interval = command_timeout;
    return options;
}

// For tests that wait for no time-out: a machine that stands still for a moment is then no fault.
inline ClientOptions unhurried() {
    ClientOptions options;
    options.watchdog_timeout = 30s;
    options.command_timeout = 10s;
    options.unreachable_timeout = 30s;
    return options;
}

// The same, with short leases.
inline ClientOptions unhurried(std::chrono::milliseconds lease) {
    ClientOptions options = unhurried();
    options.watchdog_timeout = lease;
    return options;
}

inline const std::string acquire_digest{digested<scripts::queue_acquire>.digest()};
inline const std::string release_digest{digested<scripts::queue_release>.digest()};
inline const std::string fenced_release_digest{digested<scripts::fenced_queue_release>.digest()};
inline const std::string renew_digest{digested<scripts::rlock_renew>.digest()};
inline const std::string hand_over_digest{digested<scripts::queue_hand_over>.digest()};
inline const std::string give_up_digest{digested<scripts::queue_give_up>.digest()};

// Loads the scripts, so that each operation is one EVALSHA, and a rule of the proxy strikes exactly the named command.
inline void load_scripts(RawRedis& redis) {
    for (const Script* script :
         {&digested<scripts::queue_acquire>, &digested<scripts::queue_release>, &digested<scripts::rlock_renew>,
          &digested<scripts::queue_hand_over>, &digested<scripts::queue_give_up>})
        redis.text("SCRIPT", "LOAD", script->text());
}

// A server, a connection to it past the proxy, and the proxy. A client under test uses url().
struct FaultyPath {
    explicit FaultyPath(bool over_tcp = false, RedisServerOptions options = {})
        : tcp(over_tcp), server(std::move(options)), redis(server), proxy(server.url(), over_tcp) {
        load_scripts(redis);
    }

    std::string url() const { return tcp ? proxy.tcp_url() : proxy.url(); }

    bool tcp;
    RedisServer server;
    RawRedis redis;
    Proxy proxy;
};

inline long long listeners(RawRedis& redis, const std::string& name) { return redis.lock_listeners(channel_of(name)); }

/// Returns how many keys the server watches for clients.
inline long long tracked_keys(RawRedis& redis) { return std::stoll(redis.info("stats", "tracking_total_keys")); }

// Returns the hold counts of all owners in the key, as Redis stores them.
inline std::vector<std::string> hold_counts(RawRedis& redis, const std::string& name) {
    return redis.list("HVALS", name);
}

// Calls the function with a lock of each kind.
template <class Function>
void with_each_lock(Client& client, Function function) {
    function(RLock{client, "rlock"});
    function(FairLock{client, "fair"});
    function(FencedLock{client, "fenced"});
    function(SpinLock{client, "spin"});
    function(Mutex{client, "mutex"});
    ReadWriteLock both{client, "both"};
    function(both.read_lock());
    function(both.write_lock());
}

// Does the same as code_of() for a call that the server refuses. The last of the call's tries may end before the reply arrives; then the
// call is repeated when that one is settled. `watch` measures the last call.
template <class Call>
std::error_code refusal_of(Call call, Stopwatch& watch) {
    std::error_code ec;
    for (int tries = 0; tries < 5; ++tries) {
        watch.restart();
        ec = code_of(call);
        if (ec && ec != errc::unreachable) break;
        std::this_thread::sleep_for(200ms);
    }
    return ec;
}

template <class Call>
std::error_code refusal_of(Call call) {
    Stopwatch watch;
    return refusal_of(call, watch);
}

// For a release that the server refuses. The last of its tries may end before the reply arrives. Then the test repeats
// it with another hold.
inline constexpr int most_tries = 5;

inline bool is_not_delivered(const std::error_code& ec) { return ec == errc::overloaded || ec == errc::unreachable; }

inline std::chrono::nanoseconds cpu_time_of_this_thread() {
    timespec used{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
}

}  // namespace redlatch::fault
