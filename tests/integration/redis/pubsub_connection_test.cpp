// SPDX-License-Identifier: MIT
// Waiting threads take turns at receiving messages: no thread loses its wake-up to another, and when the receiver
// leaves another thread takes over.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "support/internals.hpp"
#include "support/scripted_server.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Clock;
using redlatch::Instant;
using redlatch::Reply;
using redlatch::Url;
using redlatch::detail::Connection;
using redlatch::detail::Duty;
using redlatch::detail::Interrupts;
using redlatch::detail::PubSubConnection;

namespace {

struct Ear final : redlatch::Listener {
    void subscribed(const std::string&) override { ++confirmed; }
    void refused(const std::string&, const Reply&) override {}
    void message(const std::string&, std::string_view) override {
        ++messages;
        if (is_mine) interrupts.wake();
    }
    void disconnected() override {}
    std::atomic<int> confirmed{0};
    std::atomic<int> messages{0};
    std::atomic<bool> is_mine{true};  // the thread that receives waits for the messages
    Interrupts interrupts;
};

const std::string message = "*3\r\n$7\r\nmessage\r\n$7\r\nchannel\r\n$1\r\n0\r\n";

// A connection that is subscribed to a channel, and a serving thread that only counts its notifications.
struct Listening {
    Listening() {
        link.subscribe("channel");
        REQUIRE(eventually([&] {
            link.serve(ear, Clock::now() + 10s);
            return ear.confirmed > 0;
        }));
        calls = 0;
    }

    PubSubConnection::Watch watch(std::uint64_t seen, Instant deadline = Clock::now() + 20s) {
        return link.watch(ear, deadline, interrupts, seen);
    }

    // When this returns, another thread is watching. Whether it is inside poll() is unknown, and does not matter.
    std::thread watch_aside() {
        std::thread watcher([this, seen = interrupts.count()] {
            auto outcome = PubSubConnection::Watch::taken;
            while (outcome == PubSubConnection::Watch::taken) outcome = watch(seen);
            CHECK(outcome == PubSubConnection::Watch::done);
        });
        REQUIRE(eventually([&] { return watch(interrupts.count(), Clock::now()) == PubSubConnection::Watch::taken; }));
        return watcher;
    }

    ScriptedServer server{
        [](const CommandWords&) { return ScriptedReply{"*3\r\n$9\r\nsubscribe\r\n$7\r\nchannel\r\n:1\r\n"}; }};
    const Url url = Url::parse(server.url());
    Ear ear;
    Interrupts& interrupts = ear.interrupts;
    std::atomic<int> calls{0};
    PubSubConnection link{[this](Connection& one, Instant deadline) { return one.open(url, deadline); }, 10s,
                          [this] { ++calls; }};
};

}  // namespace

TEST_CASE("an interrupt that another watching thread consumed still ends the watch it was meant for") {
    Listening fixture;
    std::thread other = fixture.watch_aside();
    // This thread is about to watch, and is notified before it does.
    const std::uint64_t seen = fixture.interrupts.count();
    fixture.interrupts.wake();
    other.join();
    const Stopwatch watch;
    CHECK(fixture.watch(seen) == PubSubConnection::Watch::done);
    CHECK(watch.within(10s));
}

TEST_CASE("an interrupt from before the last check does not end a watch") {
    Listening fixture;
    fixture.interrupts.wake();
    CHECK(fixture.watch(0) == PubSubConnection::Watch::done);
    fixture.watch(fixture.interrupts.count(), Clock::now() + 20ms);  // consumes any bytes left in the pipe
    const Stopwatch watch;
    CHECK(fixture.watch(fixture.interrupts.count(), Clock::now() + 50ms) == PubSubConnection::Watch::done);
    CHECK_FALSE(watch.within(45ms));
}

TEST_CASE("a leaving receiver notifies the serving thread if it has turned another thread away") {
    Listening fixture;
    std::thread other = fixture.watch_aside();  // this thread was turned away
    // The serving thread checks, and has nothing to do now or later.
    const Duty duty = fixture.link.duty();
    CHECK(duty.fd == -1);
    CHECK(duty.due == redlatch::never);
    const int calls_before = fixture.calls;
    fixture.server.push(message);
    other.join();
    CHECK(fixture.ear.messages == 1);
    CHECK(fixture.calls > calls_before);
    CHECK(fixture.link.duty().fd >= 0);
}

TEST_CASE("a receiver goes on until a message is for itself") {
    Listening fixture;
    fixture.ear.is_mine = false;
    std::thread other = fixture.watch_aside();
    for (int i = 1; i <= 3; ++i) {
        fixture.server.push(message);
        CHECK(eventually([&] { return fixture.ear.messages == i; }));
    }
    CHECK(fixture.watch(fixture.interrupts.count(), Clock::now()) == PubSubConnection::Watch::taken);
    fixture.ear.is_mine = true;
    fixture.server.push(message);
    other.join();
    CHECK(fixture.ear.messages == 4);
}

TEST_CASE("a receiver takes the connection over from a serving thread that polls it already") {
    Listening fixture;
    CHECK(fixture.link.duty().fd >= 0);
    std::thread other([&fixture, seen = fixture.interrupts.count()] { fixture.watch(seen); });
    CHECK(eventually([&] { return fixture.calls == 1; }));
    CHECK(fixture.link.duty().fd == -1);
    fixture.interrupts.wake();
    other.join();
}

TEST_CASE("a receiver that comes while the serving thread does not poll wakes nobody") {
    Listening fixture;
    CHECK(fixture.link.duty().fd >= 0);
    fixture.link.serve(fixture.ear, Clock::now() + 10s);
    CHECK(fixture.watch(fixture.interrupts.count(), Clock::now() + 50ms) == PubSubConnection::Watch::done);
    CHECK(fixture.calls == 0);
}

TEST_CASE("a leaving receiver notifies no thread if none waits") {
    Listening fixture;
    fixture.interrupts.wake();
    CHECK(fixture.watch(0) == PubSubConnection::Watch::done);
    CHECK(fixture.calls == 0);
}

TEST_CASE("a command for several channels that is refused as a whole is repeated for each of them") {
    struct : redlatch::Listener {
        void subscribed(const std::string& channel) override { confirmed.insert(channel); }
        void refused(const std::string& channel, const Reply&) override { denied.insert(channel); }
        void message(const std::string&, std::string_view) override {}
        void disconnected() override {}
        std::multiset<std::string> confirmed, denied;
    } ear;
    ScriptedServer server{[](const CommandWords& words) -> ScriptedReply {
        if (words.size() != 2 || words[1] == "secret") return "-NOPERM no permissions to access a channel\r\n";
        return "*3\r\n$9\r\nsubscribe\r\n$" + std::to_string(words[1].size()) + "\r\n" + words[1] + "\r\n:1\r\n";
    }};
    const Url url = Url::parse(server.url());
    PubSubConnection link{[&](Connection& one, Instant deadline) { return one.open(url, deadline); }, 10s, [] {}};
    for (const std::string channel : {"orders", "secret", "users"}) link.subscribe(channel);
    CHECK(eventually([&] {
        link.serve(ear, Clock::now() + 10s);
        return ear.confirmed.size() == 2 && ear.denied.size() == 1;
    }));
    CHECK(ear.confirmed == std::multiset<std::string>{"orders", "users"});
    CHECK(ear.denied == std::multiset<std::string>{"secret"});
    // Nothing is asked for once more.
    CHECK_FALSE(eventually(
        [&] {
            link.serve(ear, Clock::now() + 10s);
            return ear.confirmed.size() + ear.denied.size() != 3;
        },
        200ms));
}
