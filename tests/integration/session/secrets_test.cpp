// SPDX-License-Identifier: MIT
// ctest: without=thread
// No text of the library contains the login: no error and no event, whatever the server replies.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/scripted_server.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

/// Returns true if the text contains four characters of the password in a row.
bool gives_away(std::string_view said, std::string_view password) {
    for (std::size_t at = 0; at + 4 <= password.size(); ++at)
        if (said.find(password.substr(at, 4)) != std::string_view::npos) return true;
    return false;
}

/// Returns all texts of a lock's operations on a server: errors and events.
std::string all_said(const std::string& url) {
    EventLog log;
    ClientOptions options;
    options.watchdog_timeout = patient(300ms);
    options.command_timeout = patient(1s);
    options.unreachable_timeout = patient(1s);
    options.on_event = log.handler();
    std::string said;
    {
        Client client{url, options};
        RLock orders{client, "orders"};
        Semaphore seats{client, "seats"};
        said += text_of_error([&] { orders.lock(); }) + "\n";
        said += text_of_error([&] { static_cast<void>(orders.try_lock()); }) + "\n";
        said += text_of_error([&] { static_cast<void>(orders.try_lock_for(10ms)); }) + "\n";
        said += text_of_error([&] { static_cast<void>(orders.is_locked()); }) + "\n";
        said += text_of_error([&] { orders.unlock(); }) + "\n";
        said += text_of_error([&] { static_cast<void>(seats.try_acquire_for(10ms)); }) + "\n";
        said += text_of_error([&] { seats.release(); }) + "\n";
    }
    for (const Event& event : log.all()) said += event.name + ": " + event.detail + "\n";
    return said;
}

const std::string password = "S3cret-Tr0ub4dor&3";

std::string with_login(const ScriptedServer& server) {
    std::string url = server.url();
    return url.replace(0, 7, "unix://seller:S3cret-Tr0ub4dor%263@");
}

}  // namespace

// Redis itself quotes up to 128 bytes of the arguments of an unknown command: a server before version 6 that gets a
// user and a password, or one with AUTH renamed.
TEST_CASE("a server's error that quotes the arguments of AUTH is reported without them, in whatever form") {
    for (const std::string& answer : {
             "-ERR unknown command `AUTH`, with args beginning with: `seller`, `" + password + "`, \r\n",
             "-ERR unknown command `AUTH`, with args beginning with: `seller`, `" + password.substr(0, 7) + "\r\n",
             "-WRONGPASS seller:" + password + " is wrong\r\n",
             "-" + password + "\r\n",
             "-ERR " + password.substr(3, 5) + "\r\n",
             "+" + password + "\r\n$5\r\n" + password.substr(0, 5) + "\r\n",
             "*1\r\n$" + std::to_string(password.size()) + "\r\n" + password + "\r\n",
             password + "\r\n",
         }) {
        CAPTURE(answer);
        ScriptedServer server{[&](const CommandWords&) { return ScriptedReply{answer}; }};
        const std::string said = all_said(with_login(server));
        CAPTURE(said);
        CHECK(said.find("orders") != std::string::npos);
        CHECK_FALSE(gives_away(said, password));
    }
}

// A proxy may log in to its server only at the first command, and report the failure then.
TEST_CASE("a later reply that quotes the login is reported without it, too") {
    for (const std::string word : {"TIME", "EVALSHA", "EVAL", "HLEN", "SUBSCRIBE", "GET"}) {
        CAPTURE(word);
        std::atomic<int> repeated{0};
        ScriptedServer server{[&](const CommandWords& command) -> ScriptedReply {
            if (command[0] == "AUTH") return "+OK\r\n";
            if (command[0] == word) {
                ++repeated;
                return "-ERR upstream refuses seller:" + password + "@10.0.0.1\r\n";
            }
            if (command[0] == "TIME") return time_told;
            if (command[0] == "EVALSHA") return word == "EVAL" ? "-NOSCRIPT no\r\n" : ":100\r\n";
            return ":100\r\n";
        }};
        EventLog log;
        ClientOptions options;
        options.command_timeout = patient(3s);
        options.unreachable_timeout = patient(3s);
        options.on_event = log.handler();
        std::string said;
        {
            Client client{with_login(server), options};
            RLock orders{client, "orders"};
            Semaphore seats{client, "seats"};
            said += text_of_error([&] { static_cast<void>(orders.try_lock_for(patient(3s))); });
            said += text_of_error([&] { static_cast<void>(orders.is_locked()); });
            said += text_of_error([&] { static_cast<void>(seats.available_permits()); });
        }
        for (const Event& event : log.all()) said += event.name + event.detail;
        CAPTURE(said);
        CHECK(repeated > 0);
        CHECK_FALSE(gives_away(said, password));
        CHECK(said.find("the server replied 'ERR") != std::string::npos);
    }
}

TEST_CASE("a server's error without the login is quoted unchanged") {
    ScriptedServer server{[&](const CommandWords& command) -> ScriptedReply {
        return command[0] == "AUTH" ? "-ERR AUTH called without any password configured\r\n" : "+OK\r\n";
    }};
    CHECK(all_said(with_login(server)).find("without any password configured") != std::string::npos);
}

TEST_CASE("a client's id and display() contain nothing of the login") {
    RedisServer server{{.tcp = true, .args = {"--requirepass", "hunter2"}}};
    Client client{"redis://:hunter2@127.0.0.1:" + std::to_string(server.port())};
    RLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
    CHECK_FALSE(gives_away(client.id(), "hunter2"));
    CHECK_FALSE(gives_away(Url::parse("redis://seller:hunter2@host:1").display(), "hunter2"));
    CHECK_FALSE(gives_away(Url::parse("redis://seller:hunter2@host:1").display(), "seller"));
}
