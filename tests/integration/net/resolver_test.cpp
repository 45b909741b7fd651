// SPDX-License-Identifier: MIT
// The look-up of a host name ends at the caller's deadline, whatever the resolver does.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <netdb.h>

#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "integration/rlock_helpers.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::RLock;

// Replaces the system's function: names under .slow.invalid take two seconds and are not found.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
    const bool numeric = hints && (hints->ai_flags & AI_NUMERICHOST) != 0;
    if (host && !numeric && std::strstr(host, ".slow.invalid")) {
        std::this_thread::sleep_for(2s);
        return EAI_NONAME;
    }
    using Function = int(const char*, const char*, const addrinfo*, addrinfo**);
    static auto* const next = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    return next(host, service, hints, found);
}

TEST_CASE("fault: slow name look-up: a timed call still ends at its deadline") {
    ClientOptions options;
    options.command_timeout = 10s;
    CHECK(succeeds_once([&] {
        Client client{"redis://redis.slow.invalid", options};
        RLock orders{client, "orders"};
        std::error_code ec;
        return within(1s, [&] { CHECK_FALSE(orders.try_lock_for(50ms, ec)); });
    }));
}

TEST_CASE("fault: unknown host name: errc::unreachable with the host name in its message") {
    ClientOptions options;
    options.unreachable_timeout = 2500ms;
    Client client{"redis://redis.slow.invalid", options};
    RLock orders{client, "orders"};
    const std::string text = text_of_error([&] { orders.lock(); });
    CHECK(text.find("redis.slow.invalid") != std::string::npos);
    CHECK(text.find("cannot resolve") != std::string::npos);
}

TEST_CASE("a server is found by its host name") {
    RedisServer server{{.tcp = true}};
    Client client{"redis://localhost:" + std::to_string(server.port())};
    RLock orders{client, "orders"};
    orders.lock();
    CHECK(orders.is_held());
    orders.unlock();
}
