// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "journal.hpp"
#include "support/raw_redis.hpp"

namespace redlatch::soak {

// Who held a lock according to the server, from some moment on.
struct HolderSight {
    std::uint64_t lock = 0;
    std::int64_t at = 0;
    std::string key;
    std::vector<std::string> owners;  // none: it was free
};

// Reads the keys of the locks again and again, in a thread of its own, past all proxies. Records the changes, to explain a
// wake-up that came late: a lock may be offered to somebody who does not take it.
class HolderWatch {
public:
    explicit HolderWatch(const test::RedisServer& server) : url_(server.url()), thread_([this] { watch(); }) {}
    ~HolderWatch() {
        if (thread_.joinable()) end();
    }

    // Returns all records.
    std::vector<HolderSight> end() {
        stop_ = true;
        thread_.join();
        return std::move(sights_);
    }

private:
    void watch() {
        std::vector<std::pair<Kind, std::string>> keys;
        for (const Kind kind : {Kind::rlock, Kind::fair, Kind::fenced, Kind::spin, Kind::writer, Kind::leader})
            keys.emplace_back(kind, info(kind).of);
        for (const char* member : {"1", "2"})
            keys.emplace_back(Kind::multi, std::string{info(Kind::multi).of} + member);
        std::map<std::string, std::vector<std::string>> last;
        std::optional<test::RawRedis> redis;
        while (!stop_) {
            std::this_thread::sleep_for(10ms);
            try {
                if (!redis) redis.emplace(url_, 1s);
                for (const auto& [kind, key] : keys) {
                    std::vector<std::string> owners = redis->list("HKEYS", key);
                    if (last[key] == owners) continue;
                    last[key] = owners;
                    sights_.push_back({lock_number(kind), test::monotonic_ns(), key, std::move(owners)});
                }
            } catch (const std::exception&) {  // a fault at the server: nothing can be read now
                redis.reset();
            }
        }
    }

    const std::string url_;
    std::atomic<bool> stop_{false};
    std::vector<HolderSight> sights_;
    std::thread thread_;
};

}  // namespace redlatch::soak
