// SPDX-License-Identifier: MIT
// The log-in of one connection: with the login of the URL, or that of a function.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/scripted_server.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

/// Returns the URL of the server with a login of its own, and with a function for the login.
Url with_login(const ScriptedServer& server, std::function<Credentials()> function) {
    Url url = Url::parse("unix://old-user:old-password@" + server.socket_path());
    url.credentials = std::make_shared<const std::function<Credentials()>>(std::move(function));
    return url;
}

std::optional<Reply> open(const Url& url, Milliseconds time = 20s) {
    Connection connection;
    return connection.open(url, Clock::now() + time);
}

ScriptedReply ok(const CommandWords&) { return "+OK\r\n"; }

}  // namespace

TEST_CASE("a login by a function replaces that of the URL; an empty one sends no AUTH") {
    struct Row {
        Credentials login;
        std::vector<CommandWords> sent;
    };
    for (const Row& row : {Row{{"app", "token"}, {{"AUTH", "app", "token"}}}, Row{{"", "token"}, {{"AUTH", "token"}}},
                           Row{{"guest", ""}, {{"AUTH", "guest", ""}}}, Row{{}, {}}}) {
        CAPTURE(row.login.user);
        CAPTURE(row.login.password);
        ScriptedServer server{ok};
        CHECK_FALSE(open(with_login(server, [&] { return row.login; })));
        CHECK(server.received() == row.sent);
    }
}

TEST_CASE("a login by a function also belongs to the URL of another server") {
    ScriptedServer server{ok};
    const Url url = with_login(server, [] { return Credentials{"app", "token"}; }).at({"node-2", 6380});
    REQUIRE(url.credentials);
    CHECK((*url.credentials)().password == "token");
}

TEST_CASE("each connection calls the function anew") {
    int calls = 0;
    ScriptedServer server{ok};
    const Url url = with_login(server, [&] { return Credentials{"", "token-" + std::to_string(++calls)}; });
    CHECK_FALSE(open(url));
    CHECK_FALSE(open(url));
    CHECK(server.received() == std::vector<CommandWords>{{"AUTH", "token-1"}, {"AUTH", "token-2"}});
}

TEST_CASE("a function that throws is a failure to connect, which quotes the exception") {
    ScriptedServer server{ok};
    const auto refusal = open(with_login(server, []() -> Credentials { throw std::runtime_error("no\ntoken"); }));
    REQUIRE(refusal);
    CHECK(refusal->kind == Reply::Kind::not_sent);
    CHECK(refusal->text ==
          "cannot log in to unix://" + server.socket_path() + ": ClientOptions::credentials threw 'no\\x0atoken'");
    const auto odd = open(with_login(server, []() -> Credentials { throw 7; }));
    REQUIRE(odd);
    CHECK(odd->kind == Reply::Kind::not_sent);
    CHECK(odd->text.find("what is no std::exception") != std::string::npos);
    CHECK(server.received().empty());
}

TEST_CASE("the time of a slow function is not that of the server") {
    static constexpr Milliseconds time = patient(1s);
    const auto slow = [] {
        std::this_thread::sleep_for(time + 100ms);
        return Credentials{"app", "token"};
    };
    // The reply takes a moment, so a deadline that has passed is noticed.
    ScriptedServer in_time{[](const CommandWords&) {
        ScriptedReply reply{"+OK\r\n"};
        reply.piece = 1;
        reply.pause = 20ms;
        return reply;
    }};
    CHECK_FALSE(open(with_login(in_time, slow), time));
    ScriptedServer silent{[](const CommandWords&) { return ScriptedReply{}; }};
    const auto refusal = open(with_login(silent, slow), time);
    REQUIRE(refusal);
    CHECK(refusal->kind == Reply::Kind::not_sent);
}

TEST_CASE("no function is called for a server that accepts no connection") {
    int calls = 0;
    Url url = Url::parse("unix:///nowhere/at/all");
    url.credentials = std::make_shared<const std::function<Credentials()>>([&] {
        ++calls;
        return Credentials{};
    });
    CHECK(open(url));
    CHECK(calls == 0);
}

TEST_CASE("no error repeats a password that a function returned") {
    ScriptedServer server{[](const CommandWords&) { return "-ERR unknown command 'AUTH' 'app' 's3cret-token'\r\n"; }};
    const auto refusal = open(with_login(server, [] { return Credentials{"app", "s3cret-token"}; }));
    REQUIRE(refusal);
    CHECK(refusal->is_error());
    CHECK(refusal->text.find("cret") == std::string::npos);
}
