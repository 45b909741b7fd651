// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "journal.hpp"
#include "support/raw_redis.hpp"

namespace redlatch::soak {

// Who held a lock, and who waited in its queue, according to the server, from some moment on.
struct HolderSight {
    std::uint64_t lock = 0;
    std::int64_t at = 0;
    std::string key;
    std::vector<std::string> owners;  // those who wait as "waits:<client id>"; none: it was free
};

// Reads the keys of the locks again and again, past all proxies, with a thread for each server. Records the changes,
// to explain a wake-up that came late: a lock may be offered to somebody who does not take it.
class HolderWatch {
public:
    // `steady`: the servers without faults.
    template <class Servers>
    HolderWatch(const test::RedisServer& server, const Servers& steady) {
        std::vector<Key> keys;
        for (const Kind kind :
             {Kind::rlock, Kind::fair, Kind::fenced, Kind::spin, Kind::writer, Kind::leader, Kind::red})
            keys.push_back({kind, std::string{info(kind).of}});
        for (const char* member : {"1", "2"}) keys.push_back({Kind::multi, std::string{info(Kind::multi).of} + member});
        threads_.emplace_back([this, url = server.url(), keys] { watch(url, keys); });
        for (const test::RedisServer& one : steady)
            threads_.emplace_back([this, url = one.url()] {
                watch(url, {{Kind::red, std::string{info(Kind::red).of}}});
            });
    }
    ~HolderWatch() { end(); }

    // Returns all records.
    std::vector<HolderSight> end() {
        stop_ = true;
        for (std::thread& thread : threads_)
            if (thread.joinable()) thread.join();
        return std::move(sights_);
    }

private:
    struct Key {
        Kind kind;
        std::string name;
        std::vector<std::string> owners{};  // at the last look
    };

    void watch(const std::string& url, std::vector<Key> keys) {
        std::optional<test::RawRedis> redis;
        while (!stop_) {
            std::this_thread::sleep_for(10ms);
            try {
                if (!redis) redis.emplace(url, 1s);
                for (Key& key : keys) {
                    std::vector<std::string> owners = redis->list("HKEYS", key.name);
                    for (const std::string& waiter :
                         redis->list("LRANGE", "redlatch_lock_queue:{" + key.name + "}", 0, -1))
                        owners.push_back("waits:" + waiter);
                    if (key.owners == owners) continue;
                    key.owners = owners;
                    const std::lock_guard lock(mutex_);
                    sights_.push_back(
                        {lock_number(key.kind), test::monotonic_ns(), key.name + " on " + url, std::move(owners)});
                }
            } catch (const std::exception&) {  // a fault at the server: nothing can be read now
                redis.reset();
            }
        }
    }

    std::atomic<bool> stop_{false};
    std::mutex mutex_;  // guards the records, which the threads add
    std::vector<HolderSight> sights_;
    std::vector<std::thread> threads_;
};

}  // namespace redlatch::soak
