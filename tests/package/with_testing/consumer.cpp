// SPDX-License-Identifier: MIT
// A user's unit test, to test linking.
#include <redlatch/base/version.hpp>
#include <redlatch/rlock.hpp>
#include <redlatch/testing.hpp>

#include <iostream>
#include <mutex>

int main() {
    redlatch::testing::InMemoryServer server;
    redlatch::Client client{server.transport()};
    redlatch::RLock orders{client, "orders"};
    const std::lock_guard guard{orders};
    if (orders.is_held()) std::cout << redlatch::version() << '\n';
}
