// SPDX-License-Identifier: MIT
// Commands that wait for a connection: a thread that has connected, or failed to, notifies the driver of those that
// remain.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/internals.hpp"
#include "support/scripted_server.hpp"
#include "support/socket.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Clock;
using redlatch::Command;
using redlatch::Instant;
using redlatch::Reply;
using redlatch::Url;
using redlatch::detail::CommandConnection;
using redlatch::detail::Connection;
using redlatch::detail::Duty;
using redlatch::detail::PubSubConnection;

namespace {

const std::vector<std::string_view> ping_words{"PING"};
const Command ping{ping_words, 0};

// A connection, and a driver that only counts its notifications. The test determines when it runs.
struct Fixture {
    explicit Fixture(const std::string& where, std::chrono::milliseconds timeout = 10s)
        : url(Url::parse(where)),
          link(
              url, [this](Connection& one, Instant deadline) { return one.open(url, deadline); }, timeout,
              [this] { ++calls; }) {}

    // Acts as a notified driver: it checks, finds nothing to do yet, and sleeps again.
    void turn_away() {
        link.duty();
        link.drive(Clock::now());
        link.duty();
    }

    // Posts a command, and connects for it as the driver does. The driver stays awake.
    void connect() {
        std::atomic<bool> answered{false};
        link.post(ping, [&](Reply) { answered = true; });
        CHECK(eventually([&] {
            link.drive(Clock::now() + 10s);
            return answered.load();
        }));
        // The side thread that has connected may still have to notify the driver.
        CHECK(eventually([&] { return !link.is_opening_aside(); }));
    }

    const Url url;
    std::atomic<int> calls{0};
    CommandConnection link;
};

// A server that reads only when the test allows it, and has small buffers.
struct SilentServer {
    SilentServer() {
        const int little = 128 * 1024;
        ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    }

    std::string url() const { return endpoint.url(); }

    void accept() {
        REQUIRE(wait_for(listener, POLLIN, Clock::now() + 10s));
        peer = Fd{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    }

    // Reads to the end of the connection. Returns 0 for an orderly one, otherwise the error.
    int end_of_connection() {
        std::vector<char> bytes(64 * 1024);
        for (;;) {
            REQUIRE(wait_for(peer, POLLIN, Clock::now() + 10s));
            const ssize_t got = ::recv(peer.get(), bytes.data(), bytes.size(), 0);
            if (got > 0) received += static_cast<std::size_t>(got);
            if (got == 0) return 0;
            if (got < 0 && errno != EAGAIN && errno != EINTR) return errno;
        }
    }

    // Reads from now on, and replies to each command with its number, until it has answered so many.
    void answer(int commands) {
        const auto deadline = Clock::now() + 20s;
        std::string bytes;
        for (int answered = 0; answered < commands;) {
            REQUIRE(wait_for(peer, POLLIN, deadline));
            REQUIRE(read_some(peer, bytes) != ReadState::closed);
            while (redlatch::test::detail::take_command(bytes))
                send_all(peer, ":" + std::to_string(++answered) + "\r\n", deadline);
        }
    }

    Endpoint endpoint{{}, pick_free_port()};
    Fd listener = listen_on(endpoint);
    Fd peer;
    std::size_t received = 0;
};

struct Deaf final : redlatch::Listener {
    void subscribed(const std::string&) override {}
    void refused(const std::string&, const Reply&) override {}
    void message(const std::string&, std::string_view) override {}
    void disconnected() override { gone = true; }
    bool gone = false;
};

// More than the kernel buffers for a server that does not read.
const std::string large_value(8 * 1024 * 1024, 'v');
const std::vector<std::string_view> large_words{"SET", "key", large_value};
const Command large{large_words};

}  // namespace

TEST_CASE("unsent data of an abandoned connection is not delivered later") {
    SilentServer server;
    Fixture fixture{server.url(), 300ms};
    CHECK(fixture.link.call(large, Clock::now() + 10s).kind == Reply::Kind::unanswered);
    server.accept();
    CHECK(server.end_of_connection() == ECONNRESET);
    // Only the data that the server's own kernel had received.
    CHECK(server.received < 1024 * 1024);
}

TEST_CASE("a connection without replies is reset, and a thread that reads from it wakes at once") {
    // A single thread sleeps in recv(); of two threads, one sleeps in poll().
    for (const std::size_t threads : {1U, 2U}) {
        CAPTURE(threads);
        SilentServer server;
        Fixture fixture{server.url()};
        std::vector<std::thread> callers;
        for (std::size_t i = 0; i < threads; ++i)
            callers.emplace_back(
                [&] { CHECK(fixture.link.call(ping, Clock::now() + 10s).kind == Reply::Kind::unanswered); });
        server.accept();
        const std::size_t expected = threads * std::string_view{"*1\r\n$4\r\nPING\r\n"}.size();
        REQUIRE(eventually([&] {
            std::array<char, 256> bytes;
            return ::recv(server.peer.get(), bytes.data(), bytes.size(), MSG_PEEK) == static_cast<ssize_t>(expected);
        }));
        // Most likely the reader sleeps by now. The outcome does not depend on it.
        std::this_thread::sleep_for(20ms);
        const Stopwatch watch;
        fixture.link.leave_before(1);
        for (std::thread& caller : callers) caller.join();
        CHECK(watch.within(patient(5s)));
        CHECK(server.end_of_connection() == ECONNRESET);
    }
}

TEST_CASE(
    "a caller that writes to a server that does not read returns at its own deadline, and the stream stays intact") {
    bool in_time = false;
    // A busy machine gets several rounds.
    for (int rounds = 0; rounds < 6 && !in_time; ++rounds) {
        SilentServer server;
        Fixture fixture{server.url(), 20s};
        const Stopwatch watch;
        const Reply reply = fixture.link.call(large, Clock::now() + 50ms);
        if (reply.is_unsent()) continue;  // there was no time to connect
        CHECK(reply.kind == Reply::Kind::unanswered);
        in_time = watch.within(50ms + patient(100ms));
        server.accept();
        std::thread reader([&] { server.answer(2); });
        CHECK(fixture.link.call(ping, Clock::now() + 20s).integer == 2);
        reader.join();
    }
    CHECK(in_time);
}

TEST_CASE("when a caller that waits for buffer space leaves, another caller takes its place, without the driver") {
    bool is_sent = false;
    // On a busy machine the time may be up before the caller runs.
    for (int rounds = 0; rounds < 6 && !is_sent; ++rounds) {
        SilentServer server;
        Fixture fixture{server.url(), 20s};
        std::vector<std::thread> callers;
        std::vector<Reply> replies(3);
        const auto call = [&](const Command& command, Instant deadline) {
            callers.emplace_back(
                [&, deadline, &reply = replies[callers.size()]] { reply = fixture.link.call(command, deadline); });
        };
        // One reads, one waits for buffer space, and one waits for both.
        call(ping, Clock::now() + 20s);
        server.accept();
        CHECK(wait_for(server.peer, POLLIN, Clock::now() + 10s));
        call(large, Clock::now() + 300ms);
        std::this_thread::sleep_for(100ms);  // in another order the outcome is the same
        call(ping, Clock::now() + 20s);
        callers[1].join();
        is_sent = !replies[1].is_unsent();
        server.answer(is_sent ? 3 : 2);
        callers[0].join();
        callers[2].join();
        CHECK(replies[0].is_integer());
        CHECK_FALSE(replies[1].is_integer());
        CHECK(replies[2].is_integer());
        CHECK(fixture.calls == 0);
    }
    CHECK(is_sent);
}

TEST_CASE(
    "a crowd of callers on one connection: each gets its replies, and one of them reads for all, not the driver") {
    ScriptedServer server{[](const auto& command) { return ScriptedReply{":" + command.at(1) + "\r\n"}; }};
    Fixture fixture{server.url()};
    constexpr int callers = 40, calls = 25;
    std::atomic<int> answered{0};
    std::vector<std::thread> crowd;
    for (int i = 0; i < callers; ++i)
        crowd.emplace_back([&, i] {
            const std::string number = std::to_string(i);
            const std::vector<std::string_view> words{"ECHO", number};
            for (int call = 0; call < calls; ++call) {
                const Reply reply = fixture.link.call(Command{words, 0}, Clock::now() + 10s);
                answered += reply.is_integer() && reply.integer == i ? 1 : 0;
            }
        });
    for (std::thread& one : crowd) one.join();
    CHECK(answered == callers * calls);
    CHECK(fixture.calls == 0);
}

TEST_CASE("neither post() nor the driver waits for buffer space, and the driver is notified when there is some") {
    SilentServer server;
    Fixture fixture{server.url(), 20s};
    std::thread greeting([&] { CHECK(fixture.link.call(ping, Clock::now() + 20s).integer == 1); });
    server.accept();
    server.answer(1);
    greeting.join();
    const Stopwatch watch;
    std::atomic<int> answers{0};
    fixture.link.post(large, [&](Reply reply) { answers += reply.is_integer() ? 1 : 0; });
    fixture.link.post(ping, [&](Reply reply) { answers += reply.is_integer() ? 1 : 0; });
    fixture.link.drive(Clock::now() + 20s);
    CHECK(watch.within(patient(10s)));
    CHECK(fixture.calls > 0);
    CHECK(fixture.link.duty().events == (POLLIN | POLLOUT));
    std::thread reader([&] { server.answer(2); });
    CHECK(eventually(
        [&] {
            const Duty duty = fixture.link.duty();
            pollfd ready{duty.fd, duty.events, 0};
            ::poll(&ready, 1, 100);
            fixture.link.drive(Clock::now() + 20s);
            return answers == 2;
        },
        20s));
    reader.join();
}

TEST_CASE("the driver does not wait for a connection in progress") {
    // The login gets no reply.
    ScriptedServer server{[](const auto&) { return ScriptedReply{}; }};
    Fixture fixture{"unix://:secret@" + server.socket_path()};
    std::atomic<bool> answered{false};
    fixture.link.post(ping, [&](Reply) { answered = true; });
    const Stopwatch watch;
    fixture.link.drive(Clock::now() + 10s);
    CHECK(watch.within(patient(5s)));
    REQUIRE(eventually([&] { return server.received().size() == 1; }));
    CHECK_FALSE(answered);
    const int calls_before = fixture.calls;
    server.close_all();
    CHECK(eventually([&] { return fixture.calls > calls_before; }));
}

TEST_CASE("the serving thread does not wait for a subscription connection in progress") {
    Deaf listener;
    ScriptedServer server{[](const auto&) { return ScriptedReply{}; }};
    const Url url = Url::parse("unix://:secret@" + server.socket_path());
    std::atomic<int> calls{0};
    PubSubConnection link{[&](Connection& one, Instant deadline) { return one.open(url, deadline); }, 10s,
                          [&] { ++calls; }};
    link.subscribe("channel");
    const Stopwatch watch;
    link.serve(listener, Clock::now() + 10s);
    CHECK(watch.within(patient(5s)));
    REQUIRE(eventually([&] { return server.received().size() == 1; }));
    CHECK(link.duty().fd == -1);
    server.close_all();
    CHECK(eventually([&] { return calls > 0; }));
}

TEST_CASE("a connection that ends in order is closed, not reset") {
    SilentServer server;
    {
        Fixture fixture{server.url()};
        std::atomic<bool> answered{false};
        std::thread caller([&] { answered = fixture.link.call(ping, Clock::now() + 10s).text == "PONG"; });
        server.accept();
        REQUIRE(wait_for(server.peer, POLLIN, Clock::now() + 10s));
        std::string taken;
        read_some(server.peer, taken);
        send_all(server.peer, "+PONG\r\n", Clock::now() + 10s);
        caller.join();
        CHECK(answered);
    }
    CHECK(server.end_of_connection() == 0);
}

TEST_CASE("an abandoned subscription connection is reset") {
    Deaf listener;
    SilentServer server;
    const Url url = Url::parse(server.url());
    PubSubConnection link{[&](Connection& one, Instant deadline) { return one.open(url, deadline); }, 10s, [] {}};
    link.subscribe("channel");
    link.serve(listener, Clock::now() + 10s);
    server.accept();
    REQUIRE(eventually([&] { return link.duty().fd >= 0; }));
    link.leave_before(std::numeric_limits<std::uint64_t>::max(), listener);
    CHECK(listener.gone);
    CHECK(server.end_of_connection() == ECONNRESET);
}

TEST_CASE("what is posted while the driver is awake is written in one go when it is about to sleep") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{"+PONG\r\n"}; }};
    Fixture fixture{server.url()};
    fixture.connect();
    REQUIRE(server.received().size() == 1);
    const int calls_before = fixture.calls;
    std::atomic<int> answered{0};
    for (int i = 0; i < 3; ++i) fixture.link.post(ping, [&](Reply) { ++answered; });
    CHECK(fixture.calls == calls_before);
    CHECK(fixture.link.duty().fd >= 0);
    CHECK(eventually([&] { return server.received().size() == 4; }));
    CHECK(eventually([&] {
        fixture.link.drive(Clock::now() + 10s);
        return answered == 3;
    }));
}

TEST_CASE("an awake driver does not hold up many posted commands") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{"+PONG\r\n"}; }};
    Fixture fixture{server.url()};
    fixture.connect();
    std::atomic<int> answered{0};
    for (int i = 0; i < 20; ++i) fixture.link.post(ping, [&](Reply) { ++answered; });
    CHECK(eventually([&] { return server.received().size() >= 17; }));
    fixture.link.duty();
    CHECK(eventually([&] {
        fixture.link.drive(Clock::now() + 10s);
        return answered == 20;
    }));
}

TEST_CASE("a driver that waits for replies is not woken for one more command, which is written at once") {
    std::atomic<bool> replies{true};
    ScriptedServer server{[&](const auto&) { return ScriptedReply{replies ? "+PONG\r\n" : ""}; }};
    Fixture fixture{server.url()};
    fixture.connect();
    replies = false;
    fixture.link.post(ping, [](Reply) {});
    REQUIRE(fixture.link.duty().fd >= 0);
    const int calls_before = fixture.calls;
    fixture.link.post(ping, [](Reply) {});
    CHECK(eventually([&] { return server.received().size() == 3; }));
    CHECK(fixture.calls == calls_before);
}

TEST_CASE("a driver that watches a connection is woken for a command on the next one") {
    std::atomic<bool> replies{true};
    ScriptedServer server{[&](const auto&) { return ScriptedReply{replies ? "+PONG\r\n" : ""}; }};
    Fixture fixture{server.url()};
    fixture.connect();
    replies = false;
    fixture.link.post(ping, [](Reply) {});
    REQUIRE(fixture.link.duty().fd >= 0);
    REQUIRE(eventually([&] { return server.received().size() == 2; }));
    server.close_all();
    replies = true;
    CHECK(fixture.link.call(ping, Clock::now() + 10s).kind == Reply::Kind::unanswered);
    CHECK(fixture.link.call(ping, Clock::now() + 10s).text == "PONG");
    const int calls_before = fixture.calls;
    fixture.link.post(ping, [](Reply) {});
    CHECK(fixture.calls > calls_before);
}

TEST_CASE("a command posted while its connection ends is left to the driver, not lost") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{}; }};
    Fixture fixture{server.url()};
    int calls_before = 0;
    std::atomic<bool> answered{false};
    // The lost reply makes its poster post again, like the release of an acquire with an unknown outcome.
    const auto post_another = [&](Reply) {
        fixture.link.post(ping, [&](Reply) { answered = true; });
        fixture.turn_away();  // the connection still belongs to the reader
        calls_before = fixture.calls;
    };
    std::thread reader([&] { CHECK(fixture.link.call(ping, Clock::now() + 10s).kind == Reply::Kind::unanswered); });
    REQUIRE(eventually([&] { return server.received().size() == 1; }));
    fixture.link.post(ping, post_another);
    REQUIRE(eventually([&] { return server.received().size() == 2; }));
    server.close_all();
    reader.join();
    CHECK_FALSE(answered);
    CHECK(fixture.calls > calls_before);
}

TEST_CASE("a command posted while another thread fails to connect is left to the driver, not lost") {
    // The login gets no reply.
    ScriptedServer server{[](const auto&) { return ScriptedReply{}; }};
    Fixture fixture{"unix://:secret@" + server.socket_path()};
    std::atomic<bool> answered{false};
    // It has to keep connecting until the other command is posted.
    std::thread caller([&] { CHECK(fixture.link.call(ping, Clock::now() + 3s).kind != Reply::Kind::array); });
    REQUIRE(eventually([&] { return server.received().size() == 1; }));
    fixture.link.post(ping, [&](Reply) { answered = true; });
    fixture.turn_away();  // another thread is connecting
    const int calls_before = fixture.calls;
    caller.join();
    CHECK_FALSE(answered);
    CHECK(fixture.calls > calls_before);
}

// Its slot in the queue was dropped, and a later command got its reply.
TEST_CASE("a connection that comes up while it is turned away is ended, too") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{}; }};
    Fixture fixture{server.url()};
    const auto has_received = [&](std::size_t commands) {
        return eventually([&] { return server.received().size() == commands; });
    };
    std::thread first([&] { fixture.link.call(ping, Clock::now() + 10s); });
    REQUIRE(has_received(1));
    std::thread second;
    Reply reply;
    fixture.link.post(ping, [&](Reply) {
        second = std::thread([&] { reply = fixture.link.call(ping, Clock::now() + 10s); });
        CHECK(has_received(3));
    });
    REQUIRE(has_received(2));
    fixture.link.turn_away();
    CHECK_FALSE(fixture.link.is_connected());
    first.join();
    second.join();
    CHECK(reply.kind == Reply::Kind::unanswered);
}

TEST_CASE("a posted command does not use a connection that was closed while idle and unwatched") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{"+one\r\n"}; }};
    Fixture fixture{server.url()};
    REQUIRE(fixture.link.call(ping, Clock::now() + 10s).text == "one");
    server.close_all();
    Reply reply;
    std::atomic<bool> answered{false};
    fixture.link.post(ping, [&](Reply answer) {
        reply = std::move(answer);
        answered = true;
    });
    CHECK(eventually([&] {
        fixture.link.drive(Clock::now() + 1s);
        return answered.load();
    }));
    CHECK(reply.text == "one");
}

// On a Unix socket the write fails at once, and what the server has said can still be read.
TEST_CASE("the reason that a server gives before it closes a connection is heard, although the write fails") {
    const TempDir directory;
    const Endpoint endpoint{directory.path() + "/full"};
    const Fd listener = listen_on(endpoint);
    const Url url = Url::parse(endpoint.url());
    CommandConnection link(
        url,
        [&](Connection& one, Instant deadline) {
            auto refusal = one.open(url, deadline);
            const Fd peer{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
            send_all(peer, "-ERR max number of clients reached\r\n", deadline);
            return refusal;
        },
        10s, [] {});
    CHECK(link.call(ping, Clock::now() + 10s).text == "ERR max number of clients reached");
}

// The driver looks for a connected connection, and another thread may connect this very one meanwhile. Locking both of
// them was a deadlock then.
TEST_CASE("a connection that hands its commands over to itself does nothing") {
    ScriptedServer server{[](const auto&) { return ScriptedReply{"+one\r\n"}; }};
    Fixture fixture{server.url()};
    REQUIRE(fixture.link.call(ping, Clock::now() + 10s).text == "one");
    std::atomic<bool> ended{false};
    std::thread driver([&] {
        fixture.link.hand_over_to(fixture.link);
        ended = true;
    });
    const bool in_time = eventually([&] { return ended.load(); });
    if (!in_time) driver.detach();
    REQUIRE(in_time);
    driver.join();
    CHECK(fixture.link.call(ping, Clock::now() + 10s).text == "one");
}
