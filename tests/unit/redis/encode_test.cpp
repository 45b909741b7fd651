// SPDX-License-Identifier: MIT
// Commands on the wire, and error replies to a login.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "support/scripted_server.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

std::string encoded(const std::vector<std::string_view>& words) {
    std::string out;
    append_command(out, Command{words, 0});
    return out;
}

// Returns the error message of a lock() if the server replies to the login with this text.
std::string said_after_login(const std::string& login_reply, const std::string& login) {
    const test::ScriptedServer server([&](const test::CommandWords&) { return test::ScriptedReply(login_reply); });
    const std::string url = "unix://" + login + "@" + server.socket_path();
    Client client(url, {.command_timeout = 500ms, .unreachable_timeout = 100ms});
    RLock lock(client, "x");
    try {
        lock.lock();
    } catch (const Error& e) {
        return e.what();
    }
    return {};
}

}  // namespace

TEST_CASE("each word of a command is sent with its length, whatever bytes it contains") {
    CHECK(encoded({"PING"}) == "*1\r\n$4\r\nPING\r\n");
    CHECK(encoded({"SET", "k", ""}) == "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
    const std::string odd("a\0\r\n*1%s\xff", 10);
    CHECK(encoded({"GET", odd}) == "*2\r\n$3\r\nGET\r\n$10\r\n" + odd + "\r\n");
    CHECK(encoded({std::string(100'000, 'x')}).size() == 100'000 + std::string_view("*1\r\n$100000\r\n\r\n").size());
}

TEST_CASE("a command is appended to the buffer") {
    std::string out = "+";
    const std::vector<std::string_view> words{"A"};
    append_command(out, Command{words, 0});
    append_command(out, Command{words, 0});
    CHECK(out == "+*1\r\n$1\r\nA\r\n*1\r\n$1\r\nA\r\n");
}

TEST_CASE("a refused login is an error at once, and its message contains no password") {
    const std::string said =
        said_after_login("-WRONGPASS invalid username-password pair or user is disabled.\r\n", "app:hunter2");
    CHECK(said.find("WRONGPASS") != std::string::npos);
    CHECK(said.find("hunter2") == std::string::npos);
}

TEST_CASE("error reply that quotes the login command: the message still contains no password") {
    // The reply of Redis if the operator has renamed AUTH: it repeats the arguments of the unknown command.
    const std::string said =
        said_after_login("-ERR unknown command 'AUTH', with args beginning with: 'app' 'hunter2' \r\n", "app:hunter2");
    CHECK_FALSE(said.empty());
    CHECK(said.find("hunter2") == std::string::npos);
}
