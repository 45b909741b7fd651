// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "journal.hpp"
#include "support/raw_redis.hpp"
#include "support/waiting_checkers.hpp"

namespace redlatch::soak {

// Reads the queue of the fair lock again and again, in a thread of its own, past all proxies. Records which waiter
// stands behind which.
class QueueWatch {
public:
    explicit QueueWatch(const test::RedisServer& server) : url_(server.url()), thread_([this] { watch(); }) {}
    ~QueueWatch() {
        if (thread_.joinable()) end();
    }

    // Returns all records.
    std::vector<test::QueueSight> end() {
        stop_ = true;
        thread_.join();
        return std::move(sights_);
    }

private:
    void watch() {
        const std::string queue = "redisson_lock_queue:{" + std::string{info(Kind::fair).of} + "}";
        std::optional<test::RawRedis> redis;
        while (!stop_) {
            std::this_thread::sleep_for(20ms);
            try {
                if (!redis) redis.emplace(url_, 1s);
                const std::int64_t asked = test::monotonic_ns();
                const std::vector<std::string> waiters = redis->list("LRANGE", queue, 0, -1);
                const std::int64_t at = test::monotonic_ns();
                for (std::size_t i = 1; i < waiters.size(); ++i)
                    sights_.push_back({.lock = lock_number(Kind::fair),
                                       .asked = asked,
                                       .at = at,
                                       .first = hash_of(waiters[i - 1]),
                                       .second = hash_of(waiters[i])});
            } catch (const std::exception&) {  // a fault at the server: the queue cannot be read now
                redis.reset();
            }
        }
    }

    const std::string url_;
    std::atomic<bool> stop_{false};
    std::vector<test::QueueSight> sights_;
    std::thread thread_;
};

}  // namespace redlatch::soak
