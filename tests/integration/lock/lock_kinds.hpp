// SPDX-License-Identifier: MIT
// What the tests that concern every kind of lock share. Of a source that runs on the in-memory server, too, this is the
// last include: see support/any_server.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>

#include "integration/rlock_helpers.hpp"

#include "support/any_server.hpp"

namespace redlatch::test {

// One server and one client.
struct Fixture {
    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url()};

    // Returns true if nothing is left but the counter of a FencedLock, which stays.
    // An empty queue of a lock may last for a second.
    bool is_clean() {
        return eventually(
            [&] {
                const auto keys = redis.keys();
                return std::all_of(keys.begin(), keys.end(),
                                   [](const std::string& key) { return key.starts_with("redisson_lock_token"); });
            },
            std::chrono::seconds{20});
    }
};

// One lock of each kind, by its name.
struct Kind {
    const char* name;
    std::function<std::shared_ptr<LockApi>(Client&)> make;
    bool reentrant = true;
};

template <class Lock>
Kind kind(const char* name, bool reentrant = true) {
    return {name, [](Client& client) { return std::make_shared<Lock>(client, "orders"); }, reentrant};
}

// A lock over several keeps its members.
template <class Several, class A = RLock, class B = RLock, class C = RLock>
struct WithMembers {
    explicit WithMembers(Client& client) : a{client, "a"}, b{client, "b"}, c{client, "c"} {}
    A a;
    B b;
    C c;
    Several several{a, b, c};
};

template <class Several, class... Members>
Kind several(const char* name) {
    return {name, [](Client& client) {
                auto whole = std::make_shared<WithMembers<Several, Members...>>(client);
                return std::shared_ptr<LockApi>(whole, &whole->several);
            }};
}

inline const std::array kinds{kind<RLock>("RLock"),
                              kind<FairLock>("FairLock"),
                              kind<FencedLock>("FencedLock"),
                              kind<SpinLock>("SpinLock"),
                              kind<ReadWriteLock>("ReadWriteLock"),
                              kind<Mutex>("Mutex", false),
                              kind<NonReentrantLock>("NonReentrantLock", false),
                              kind<NonReentrantFairLock>("NonReentrantFairLock", false),
                              several<MultiLock>("MultiLock")};

}  // namespace redlatch::test
