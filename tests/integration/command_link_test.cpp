// SPDX-License-Identifier: MIT
// Commands that wait for a connection: whoever has one, or tries in vain to make one, tells the driver of those that
// stay.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/scripted_server.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Clock;
using redlatch::Command;
using redlatch::CommandLink;
using redlatch::Instant;
using redlatch::Link;
using redlatch::Reply;
using redlatch::Url;

namespace {

const std::vector<std::string_view> ping_words{"PING"};
const Command ping{ping_words, 0};

// A link, and a driver that only counts how often it is needed: the test says when it comes.
struct Bench {
    explicit Bench(const std::string& where)
        : url(Url::parse(where)),
          link(
              url, [this](Link& one, Instant deadline) { return one.open(url, deadline); }, 10s, [this] { ++calls; }) {}

    // As a driver does it that has been called: it looks, finds nothing to do yet, and goes to sleep again.
    void turn_away() {
        link.watch();
        link.drive(Clock::now());
    }

    const Url url;
    std::atomic<int> calls{0};
    CommandLink link;
};

}  // namespace

TEST_CASE("a command that is posted while its connection ends is left to the driver, not stranded") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{}; }};
    Bench bench{server.url()};
    int calls_before = 0;
    std::atomic<bool> answered{false};
    // The loss of one reply makes its poster post again, as the release of an acquire whose outcome is not known does.
    const auto post_another = [&](Reply) {
        bench.link.post(ping, [&](Reply) { answered = true; });
        bench.turn_away();  // the connection is still the reader's
        calls_before = bench.calls;
    };
    std::thread reader([&] { CHECK(bench.link.call(ping, Clock::now() + 10s).kind == Reply::Kind::unanswered); });
    REQUIRE(eventually([&] { return server.received().size() == 1; }));
    bench.link.post(ping, post_another);
    REQUIRE(eventually([&] { return server.received().size() == 2; }));
    server.close_all();
    reader.join();
    CHECK_FALSE(answered);
    CHECK(bench.calls > calls_before);
}

TEST_CASE("a command that is posted while another thread connects in vain is left to the driver, not stranded") {
    // Nobody answers the log-in.
    ScriptedServer server{[](const auto&) { return ScriptedReply{}; }};
    Bench bench{"unix://:secret@" + server.socket_path()};
    std::atomic<bool> answered{false};
    // It has to go on connecting until the other command was posted.
    std::thread caller([&] { CHECK(bench.link.call(ping, Clock::now() + 3s).kind != Reply::Kind::array); });
    REQUIRE(eventually([&] { return server.received().size() == 1; }));
    bench.link.post(ping, [&](Reply) { answered = true; });
    bench.turn_away();  // another thread is connecting
    const int calls_before = bench.calls;
    caller.join();
    CHECK_FALSE(answered);
    CHECK(bench.calls > calls_before);
}

TEST_CASE("what is posted goes past a connection that was closed while it was idle, which nobody watches") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{"+one\r\n"}; }};
    Bench bench{server.url()};
    REQUIRE(bench.link.call(ping, Clock::now() + 10s).text == "one");
    server.close_all();
    Reply reply;
    std::atomic<bool> answered{false};
    bench.link.post(ping, [&](Reply answer) {
        reply = std::move(answer);
        answered = true;
    });
    CHECK(eventually([&] {
        bench.link.drive(Clock::now() + 1s);
        return answered.load();
    }));
    CHECK(reply.text == "one");
}
