// SPDX-License-Identifier: MIT
//
// A lock on a majority of independent servers: red_lock redis://a:6379 redis://b:6379 redis://c:6379
// Without arguments it uses one server, that of REDLATCH_URL. This shows the calls, but has no benefit.

#include <redlatch/redlatch.hpp>

#include <cstdlib>
#include <deque>
#include <iostream>
#include <mutex>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    std::vector<std::string> urls(argv + 1, argv + argc);
    const char* env = std::getenv("REDLATCH_URL");
    if (urls.empty()) urls.emplace_back(env ? env : "redis://127.0.0.1:6379");

    // A server does not vote until it has run for as long as the longest lease, because its restart may have lost a
    // hold. So this time-out is short, for servers that have just started.
    redlatch::ClientOptions options;
    options.watchdog_timeout = std::chrono::seconds(2);
    std::deque<redlatch::Client> servers;
    std::deque<redlatch::RLock> locks;
    for (const std::string& url : urls) {
        servers.emplace_back(url, options);
        locks.emplace_back(servers.back(), "example:red_lock");
    }
    redlatch::RedLock orders(locks, {.node_timeout = std::chrono::milliseconds(200)});
    try {
        const std::lock_guard guard{orders};
        const auto left = orders.valid_until() - std::chrono::steady_clock::now();
        std::cout << "held by a majority of " << urls.size() << " server(s), for certain during the next "
                  << left / std::chrono::milliseconds(1) << " ms, and renewed for as long as it is needed\n";
        return orders.lost().stop_requested() ? 1 : 0;
    } catch (const redlatch::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
