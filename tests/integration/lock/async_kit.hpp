// SPDX-License-Identifier: MIT
// What the tests of operations on locks share.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "integration/rlock_helpers.hpp"

namespace redlatch::test {

// One server and one client.
struct Bench {
    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url()};

    // Returns true if nothing is left but the counter of a FencedLock, which stays.
    bool is_clean() {
        const auto keys = redis.keys();
        return std::all_of(keys.begin(), keys.end(),
                           [](const std::string& key) { return key.starts_with("redisson_lock_token"); });
    }
};

struct Kind {
    const char* name;
    std::function<std::shared_ptr<LockApi>(Client&)> make;
};

template <class Lock>
Kind kind(const char* name) {
    return {name, [](Client& client) { return std::make_shared<Lock>(client, "orders"); }};
}

struct ThreeLocks {
    explicit ThreeLocks(Client& client) : a{client, "a"}, b{client, "b"}, c{client, "c"} {}
    RLock a, b, c;
    MultiLock all{a, b, c};
};

inline const std::array kinds{kind<RLock>("RLock"),
                              kind<FairLock>("FairLock"),
                              kind<FencedLock>("FencedLock"),
                              kind<SpinLock>("SpinLock"),
                              kind<ReadWriteLock>("ReadWriteLock"),
                              kind<Mutex>("Mutex"),
                              kind<NonReentrantLock>("NonReentrantLock"),
                              kind<NonReentrantFairLock>("NonReentrantFairLock"),
                              Kind{"MultiLock", [](Client& client) {
                                       auto whole = std::make_shared<ThreeLocks>(client);
                                       return std::shared_ptr<LockApi>(whole, &whole->all);
                                   }}};

template <class Test>
void with_each_kind(const Test& test) {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Bench bench;
        const auto lock = kind.make(bench.client);
        test(bench, *lock);
    }
}

// What a completion was called with, and how often.
struct Completed {
    void operator()(std::error_code with, Hold result) {
        const std::lock_guard lock(mutex);
        ++times;
        ec = with;
        hold = std::move(result);
        thread = std::this_thread::get_id();
    }

    auto callback() {
        return [this](std::error_code with, Hold result) { (*this)(with, std::move(result)); };
    }

    bool came() {
        const std::lock_guard lock(mutex);
        return times > 0;
    }

    std::mutex mutex;  // guards the other members until it came
    int times = 0;
    std::error_code ec;
    Hold hold;
    std::thread::id thread;
};

}  // namespace redlatch::test
