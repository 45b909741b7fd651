// SPDX-License-Identifier: MIT
// ClientOptions::name: the name of each connection in CLIENT LIST.
#include <doctest/doctest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/scripted_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace redlatch;

namespace {

ClientOptions named(std::string name) {
    ClientOptions options;
    options.name = std::move(name);
    options.command_timeout = 2s;
    return options;
}

/// Returns the names of the connections to the server, except that of `redis` itself.
std::vector<std::string> names(RawRedis& redis) {
    const std::string self = "id=" + std::to_string(redis.integer("CLIENT", "ID")) + " ";
    std::istringstream lines{redis.text("CLIENT", "LIST")};
    std::vector<std::string> found;
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(self)) continue;
        const auto at = line.find(" name=") + 6;
        found.push_back(line.substr(at, line.find(' ', at) - at));
    }
    return found;
}

bool all_are(const std::vector<std::string>& names, const std::string& name) {
    return !names.empty() && std::all_of(names.begin(), names.end(), [&](const auto& one) { return one == name; });
}

}  // namespace

TEST_CASE("each connection shows the name in CLIENT LIST: for commands, for messages, and after a reconnect") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    for (const std::string& url : {server.url(), server.url() + "?db=3"}) {
        Client client{url, named("shop@host-1")};
        RLock orders{client, "orders"};
        RLock same{client, "orders"};
        orders.lock();
        auto waiter = start_waiting(client, [&] { return same.try_lock_for(20s) ? (same.unlock(), true) : false; });
        // A connection that the server has just accepted has no name yet.
        const auto all_named = [&] {
            const std::vector<std::string> found = names(redis);
            return found.size() >= 2 && all_are(found, "shop@host-1");
        };
        CHECK(eventually(all_named));
        redis.kill_clients("normal");
        redis.kill_clients("pubsub");
        CHECK(orders.is_held());
        CHECK(eventually(all_named));
        orders.unlock();
        CHECK(waiter.get());
    }
}

TEST_CASE("without a name none is set") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    CHECK_FALSE(orders.is_locked());
    CHECK(all_are(names(redis), ""));
    CHECK(redis.command_calls().count("client|setname") == 0);
}

TEST_CASE("no call waits for the reply to CLIENT SETNAME") {
    std::string owed;
    ScriptedServer server{[&owed](const CommandWords& command) -> ScriptedReply {
        if (command[0] == "CLIENT") {  // answered only together with the next command
            owed = "+OK\r\n";
            return {};
        }
        return std::exchange(owed, {}) + ":0\r\n";
    }};
    Client client{server.url(), named("shop")};
    RLock orders{client, "orders"};
    CHECK_FALSE(orders.is_locked());
    CHECK_FALSE(orders.is_locked());
    const auto received = server.received();
    REQUIRE(received.size() == 3);
    CHECK(received[0] == CommandWords{"CLIENT", "SETNAME", "shop"});
}

TEST_CASE("a server that refuses the name is used without one") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    redis.text("ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all", "-client");
    for (const int database : {0, 3}) {
        Client client{
            "redis://locker:secret@127.0.0.1:" + std::to_string(server.port()) + "/" + std::to_string(database),
            named("shop")};
        RLock orders{client, "orders"};
        orders.lock();
        CHECK(orders.hold_count() == 1);
        CHECK(all_are(names(redis), ""));
        orders.unlock();
    }
    redis.text("ACL", "SETUSER", "default", "-client|setname");
    Client client{server.url(), named("shop")};
    RLock orders{client, "orders"};
    orders.lock();
    CHECK(orders.hold_count() == 1);
    orders.unlock();
}

TEST_CASE("a server that has no room for a connection says so, also to a client with a name") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options = named("shop");
    options.unreachable_timeout = 500ms;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    redis.text("CONFIG", "SET", "maxclients", 1);
    // A try may end before its reply comes.
    CHECK(eventually([&] { return code_of([&] { static_cast<void>(orders.try_lock()); }) == errc::overloaded; }));
    redis.text("CONFIG", "SET", "maxclients", 1000);
    CHECK(eventually([&] { return !code_of([&] { CHECK_FALSE(orders.is_locked()); }); }));
}

TEST_CASE("a name that CLIENT SETNAME would refuse is refused before anything is sent") {
    for (const std::string name : {"two words", "line\n", "t\xc3\xbcr", "\x7f", "tab\t"}) {
        CAPTURE(name);
        CHECK(code_of([&] { Client("redis://127.0.0.1:1", named(name)); }) == errc::invalid_argument);
    }
    CHECK(code_of([&] { Client("redis://127.0.0.1:1", named(std::string(1025, 'x'))); }) == errc::invalid_argument);
    CHECK_FALSE(code_of([&] { Client("redis://127.0.0.1:1", named("!~" + std::string(1022, 'x'))); }));
}
