// SPDX-License-Identifier: MIT
// A user's program with Asio, to test what is installed.
#include <redlatch/asio.hpp>
#include <redlatch/base/version.hpp>
#include <redlatch/rlock.hpp>

#include <asio/use_future.hpp>

#include <iostream>

int main(int argc, char**) {
    if (argc > 1) {
        redlatch::Client redis{"redis://127.0.0.1:6379"};
        redlatch::RLock orders{redis, "orders"};
        if (!redlatch::async(orders.async_lock(), asio::use_future).get()) return 1;
    }
    std::cout << redlatch::version() << '\n';
}
