// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "faults/fault_kit.hpp"
#include "support/command_monitor.hpp"
#include "support/server_clock.hpp"

// Shared by the tests of commands that arrive late: a server whose clock can be moved, so that no test waits until a
// time is over, behind a proxy that holds commands back.
namespace redlatch::fault {

struct MovableClock {
    RedisServerOptions server_options() const { return {.environment = clock.environment(REDLATCH_CLOCK_SHIM)}; }

    test::ServerClock clock;
};

struct ClockedPath : MovableClock, FaultyPath {
    ClockedPath() : FaultyPath(false, server_options()) {}

    // Returns when the server's clock shows the jump.
    void jump(std::chrono::seconds by) { REQUIRE(clock.jump(redis, by)); }

    // Forwards what was held back, and waits until the server has received commands with all of these words.
    void let_through(std::vector<std::string> containing) {
        CommandMonitor monitor{server};
        proxy.release();
        REQUIRE(eventually([&] {
            for (const std::string& line : monitor.take_lines())
                std::erase_if(containing,
                              [&](const std::string& word) { return line.find(word) != std::string::npos; });
            return containing.empty();
        }));
    }

    // Holds back the next such request. Soon closes the sender's connection, so that it sends the command again.
    template <class Call>
    void delay_a_copy(const std::string& containing, Call call) {
        proxy.hold_next_requests(1, containing);
        auto network = start([&] {
            const bool struck = eventually([&] { return proxy.counts().held == 1; }, 20s);
            proxy.half_close(Side::client);
            return struck;
        });
        call();
        REQUIRE(network.get());
    }

    // Waits until the proxy holds a request back. Then the client can send nothing more.
    void cut_off_once_held() {
        REQUIRE(eventually([&] { return proxy.counts().held == 1; }, 20s));
        proxy.refuse(true);
        proxy.half_close(Side::client);
    }
};

// What a server stores: the value and the TTL of each key.
class Contents {
public:
    explicit Contents(RawRedis& redis) {
        for (const std::string& key : redis.keys()) {
            const RawReply value = redis.call("DUMP", key);
            if (!value.is_nil()) keys_[key] = {value.string, redis.pttl(key)};
        }
    }

    bool empty() const { return keys_.empty(); }

    // Returns whether all of these keys exist later, too.
    bool last_until(const Contents& later) const {
        return std::all_of(keys_.begin(), keys_.end(),
                           [&](const auto& entry) { return later.keys_.contains(entry.first); });
    }

    // Returns whether nothing has changed since, except that TTLs go down and keys expire.
    bool only_age_to(const Contents& later) const {
        return std::all_of(later.keys_.begin(), later.keys_.end(), [&](const auto& entry) {
            const auto before = keys_.find(entry.first);
            return before != keys_.end() && before->second.first == entry.second.first &&
                   before->second.second >= entry.second.second;
        });
    }

private:
    std::map<std::string, std::pair<std::string, long long>> keys_;
};

}  // namespace redlatch::fault
