// SPDX-License-Identifier: MIT
// The test kit with a real Redis: servers start and stop, faults happen where they should, and counts are right.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "support/command_monitor.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/shared_memory.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

bool listening(const std::string& url) {
    try {
        connect_to(Endpoint::parse(url), std::chrono::steady_clock::now() + 5s);
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

/// Returns true if the server has closed the connection, false if nothing arrives.
bool closed(RawRedis& client, std::chrono::milliseconds deadline = 5s) {
    try {
        return client.receive_within(deadline).has_value() && false;
    } catch (const std::runtime_error&) {
        return true;
    }
}

struct Told {
    std::atomic<int> pid = 0;
    std::atomic<bool> restart = false;
    std::atomic<std::size_t> url_size = 0;
    char url[200] = {};
};

const Role server_role{"run a server", [](std::span<const std::string> args) {
                           auto told = SharedMemory<Told>::open(args[0]);
                           RedisServer server;
                           std::thread{[&] { server.restart(); }}.join();
                           told->pid = server.pid();
                           told->url_size = server.url().copy(told->url, sizeof told->url - 1);
                           while (true) ::pause();
                           return 0;
                       }};

}  // namespace

TEST_CASE("a server listens on its unix socket only, and leaves nothing behind") {
    std::string dir;
    pid_t pid = 0;
    {
        RedisServer server;
        dir = server.directory();
        pid = server.pid();
        CHECK(RawRedis{server}.text("PING") == "PONG");
        CHECK(RawRedis{server.url()}.list("CONFIG", "GET", "port") == std::vector<std::string>{"port", "0"});
        CHECK(RawRedis{server}.list("CONFIG", "GET", "save") == std::vector<std::string>{"save", ""});
        CHECK_THROWS_AS(server.port(), std::logic_error);
        CHECK(server.log().find("eady to accept connections") != std::string::npos);
    }
    CHECK_FALSE(std::filesystem::exists(dir));
    CHECK(::kill(pid, 0) == -1);
}

TEST_CASE("a frozen server ends like any other") {
    std::string dir;
    {
        RedisServer server;
        dir = server.directory();
        server.stop();
    }
    CHECK_FALSE(std::filesystem::exists(dir));
}

TEST_CASE("several servers with TCP run side by side") {
    RedisServer first{{.tcp = true}};
    RedisServer second{{.tcp = true}};
    CHECK(first.port() != second.port());
    CHECK(RawRedis{first.tcp_url()}.text("SET", "who", "first") == "OK");
    CHECK(RawRedis{second.tcp_url()}.call("GET", "who").is_nil());
    CHECK(RawRedis{first.socket_path()}.text("GET", "who") == "first");
}

TEST_CASE("arguments reach the server, and a wrong one is reported with the server's message") {
    RedisServer server{{.args = {"--maxmemory", "7mb", "--requirepass", "secret"}}};
    RawRedis redis{server};
    CHECK(redis.call("PING").string.starts_with("NOAUTH"));
    CHECK(redis.text("AUTH", "secret") == "OK");
    CHECK(redis.list("CONFIG", "GET", "maxmemory").at(1) == std::to_string(7 << 20));
    CHECK_THROWS_WITH(RedisServer({.args = {"--no-such-setting", "1"}}), doctest::Contains("no-such-setting"));
    CHECK_THROWS_AS(RedisServer({.program = "/no/such/server"}), std::system_error);
}

TEST_CASE("a stopped server does not reply until it continues") {
    RedisServer server;
    RawRedis redis{server};
    server.stop();
    redis.send({"PING"});
    CHECK_FALSE(redis.receive_within(50ms));
    server.cont();
    CHECK(redis.receive().string == "PONG");
}

TEST_CASE("kill() closes connections, restart() loses the data and keeps the addresses") {
    RedisServer server{{.tcp = true}};
    const std::string url = server.url();
    const std::string tcp_url = server.tcp_url();
    RawRedis redis{tcp_url};
    redis.text("SET", "key", "value");
    server.kill();
    CHECK_FALSE(server.running());
    CHECK(closed(redis));
    CHECK_FALSE(listening(url));
    CHECK_FALSE(listening(tcp_url));
    CHECK_THROWS_AS(redis.call("PING"), std::exception);  // and no SIGPIPE
    server.restart();
    CHECK(server.url() == url);
    CHECK(server.tcp_url() == tcp_url);
    redis.reconnect();
    CHECK(redis.call("GET", "key").is_nil());
}

TEST_CASE("with appendonly the data survives kill()") {
    RedisServer server{{.appendonly = true}};
    RawRedis{server}.text("SET", "key", "value");
    server.kill();
    server.restart();
    CHECK(RawRedis{server}.text("GET", "key") == "value");
    server.stop();
    server.shutdown();
    CHECK_FALSE(server.running());
    CHECK(server.log().find("User requested shutdown") != std::string::npos);
    server.restart();
    CHECK(RawRedis{server}.text("GET", "key") == "value");
}

TEST_CASE("a server restarted by a thread outlives the thread, but not a killed test") {
    const TempDir dir;
    auto told = SharedMemory<Told>::create(dir.file("told"));
    ChildProcess test = spawn_self("run a server", {dir.file("told")});
    REQUIRE(eventually([&] { return told->url_size != 0; }, 20s));
    const std::string url{told->url, told->url_size};
    std::this_thread::sleep_for(50ms);
    CHECK(RawRedis{url}.text("PING") == "PONG");
    test.kill();
    CHECK(eventually([&] { return !listening(url); }));
    { const TempDir sweeping; }
    CHECK_FALSE(std::filesystem::exists(Endpoint::parse(url).path));
}

TEST_CASE("the plain client returns replies of all types") {
    RedisServer server;
    RawRedis redis{server};
    CHECK(redis.call("GET", "none").is_nil());
    CHECK(redis.call("HGET", "none").is_error());
    CHECK(redis.integer("HSET", "hash", "a", 1, "b", -2) == 2);
    CHECK(redis.hgetall("hash") == std::map<std::string, std::string>{{"a", "1"}, {"b", "-2"}});
    CHECK(redis.integer("HGET", "hash", "b") == -2);
    CHECK(redis.exists("hash"));
    CHECK(redis.pttl("hash") == -1);
    CHECK(redis.pttl("none") == -2);
    CHECK(redis.keys() == std::vector<std::string>{"hash"});
    CHECK(redis.keys("x*").empty());
    CHECK(redis.list("EVAL", "return {1, 'two'}", 0) == std::vector<std::string>{"1", "two"});
    CHECK_THROWS_WITH(redis.integer("GET", "hash"), doctest::Contains("WRONGTYPE"));
    CHECK_THROWS_AS(redis.text("GET", "none"), std::runtime_error);
    const std::string binary{"a\0b\r\n", 5};
    CHECK(redis.text("ECHO", binary) == binary);
}

TEST_CASE("subscriptions and connections can be counted and killed") {
    RedisServer server;
    RawRedis redis{server};
    RawRedis subscriber{server};
    CHECK(subscriber.call("SUBSCRIBE", "news").elements.at(2).integer == 1);
    CHECK(redis.pubsub_channels() == std::vector<std::string>{"news"});
    CHECK(redis.connected_clients() == 1);
    redis.integer("PUBLISH", "news", "hello");
    CHECK(subscriber.receive().elements.at(2).string == "hello");
    CHECK(redis.kill_clients("normal") == 0);
    CHECK(redis.kill_clients("pubsub") == 1);
    CHECK(closed(subscriber));
    CHECK(eventually([&] { return redis.connected_clients() == 0 && redis.pubsub_channels().empty(); }));
}

TEST_CASE("commands of clients are counted, but not those of scripts and of the counting client") {
    RedisServer server;
    RawRedis counter{server};
    RawRedis client{server};
    CommandMonitor monitor{server};
    const auto before = counter.client_commands();
    const auto scripts = counter.script_calls();
    const auto pings = counter.command_calls().at("ping");  // from the start of the server
    client.call("EVAL", "redis.call('SET', 'a', 1) redis.call('PUBLISH', 'c', 1) return redis.call('GET', 'a')", 0);
    client.call("EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", 0);
    client.call("HEXISTS", "h", "f");
    client.call("PTTL", "a");
    client.call("SUBSCRIBE", "c");
    client.call("UNSUBSCRIBE", "c");
    counter.call("GET", "a");
    counter.call("EVAL", "return 1", 0);
    counter.call("PING");
    CHECK(counter.script_calls() - scripts == 2);
    CHECK(counter.subscribe_calls() == 1);
    CHECK(counter.client_commands() - before == 4);
    CHECK(counter.client_commands({"hexists", "pttl"}) - before == 6);
    const auto calls = counter.command_calls();
    CHECK(calls.at("get") == 1);  // the one in the script
    CHECK(calls.at("publish") == 1);
    CHECK(calls.at("ping") == pings);  // not those of the counting client

    auto seen = monitor.take();
    CHECK(seen == std::map<std::string, long long>{{"eval", 2},
                                                   {"evalsha", 1},
                                                   {"hexists", 1},
                                                   {"pttl", 1},
                                                   {"get", 1},
                                                   {"subscribe", 1},
                                                   {"unsubscribe", 1},
                                                   {"ping", 1},
                                                   {"info", seen["info"]}});
    CHECK(monitor.take_total() == 0);
    client.call("PING");
    CHECK(monitor.take_total() == 1);
}

TEST_CASE("a proxy forwards, on its unix socket and over TCP") {
    RedisServer server{{.tcp = true}};
    for (const std::string& upstream : {server.url(), server.tcp_url()}) {
        Proxy proxy{upstream, true};
        for (const std::string& url : {proxy.url(), proxy.tcp_url()}) {
            CAPTURE(url);
            RawRedis client{url};
            const std::string big(3'000'000, 'x');
            CHECK(client.text("SET", "big", big) == "OK");
            CHECK(client.text("GET", "big") == big);
        }
        CHECK(proxy.counts().accepted == 2);
        CHECK(eventually([&] { return proxy.counts().open == 0; }));  // the clients are gone
        CHECK(proxy.counts().bytes_to_client > 6'000'000);
        CHECK(proxy.counts().matched == 0);
    }
}

TEST_CASE("dropped reply: the server has executed the command, the client gets a closed connection") {
    RedisServer server{{.tcp = true}};
    RawRedis direct{server};
    for (const std::string& upstream : {server.url(), server.tcp_url()}) {
        Proxy proxy{upstream, true};
        for (const std::string& url : {proxy.url(), proxy.tcp_url()}) {
            direct.call("DEL", "count");
            RawRedis client{url};
            const auto dropped = proxy.counts().dropped;
            proxy.drop_next_replies(1, "INCR");
            CHECK(client.text("PING") == "PONG");
            client.send({"INCR", "count"});
            CHECK(closed(client));
            CHECK(direct.integer("GET", "count") == 1);
            CHECK(proxy.counts().dropped == dropped + 1);
            client.reconnect();
            CHECK(client.integer("INCR", "count") == 2);
        }
    }
}

TEST_CASE("dropped reply: the connection is not closed before the server has executed all received commands") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    for (int round = 1; round <= 50; ++round) {
        RawRedis client{proxy.url()};
        proxy.drop_next_replies(1, "count");
        try {
            for (int i = 0; i < 20; ++i) client.send({"INCR", "count"});
        } catch (const std::system_error&) {  // closed already
        }
        CHECK(closed(client));
        const long long count = direct.integer("GET", "count");
        CHECK(proxy.counts().dropped == static_cast<std::uint64_t>(round));
        CHECK(count >= round);
        CHECK(direct.integer("GET", "count") == count);
    }
}

TEST_CASE("dropped reply with silence: the connection stays open without replies") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    RawRedis client{proxy.url()};
    proxy.drop_next_replies(1, "INCR", Then::silence);
    client.send({"INCR", "count"});
    CHECK(eventually([&] { return proxy.counts().dropped == 1; }));
    CHECK(direct.integer("GET", "count") == 1);
    client.send({"PING"});
    CHECK_FALSE(closed(client, 50ms));
    client.reconnect();
    CHECK(client.text("PING") == "PONG");
    CHECK(eventually([&] { return proxy.counts().open == 1; }));
}

TEST_CASE("a dropped request never reaches the server") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    proxy.drop_next_requests(2, "INCR");
    for (int i = 0; i < 2; ++i) {
        RawRedis client{proxy.url()};
        client.send({"INCR", "count"});
        CHECK(closed(client));
    }
    RawRedis client{proxy.url()};
    CHECK_FALSE(direct.exists("count"));
    CHECK(client.integer("INCR", "count") == 1);
    CHECK(proxy.counts().dropped == 2);

    proxy.drop_next_requests(1, "INCR", Then::silence);
    client.send({"INCR", "count"});
    CHECK_FALSE(closed(client, 50ms));
    CHECK(direct.integer("GET", "count") == 1);
    proxy.kill_all();
    CHECK(closed(client));
}

TEST_CASE("a message can be cut after each of its bytes") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    const std::string reply = "$10\r\n0123456789\r\n";
    direct.text("SET", "key", "0123456789");
    for (std::size_t bytes = 0; bytes <= reply.size(); ++bytes) {
        const auto deadline = std::chrono::steady_clock::now() + 5s;
        const Fd client = begin_connect(Endpoint::parse(proxy.url()));
        proxy.cut_after_reply_bytes(bytes, "GET");
        send_all(client, "GET key\r\n", deadline);
        std::string got;
        while (wait_for(client, POLLIN, deadline) && read_some(client, got) == ReadState::data) {
        }
        CHECK(got == reply.substr(0, bytes));
    }
    CHECK(proxy.counts().dropped == reply.size() + 1);

    const std::string request = "*2\r\n$4\r\nINCR\r\n$5\r\ncount\r\n";
    for (std::size_t bytes = 0; bytes <= request.size(); ++bytes) {
        RawRedis client{proxy.url()};
        proxy.cut_after_request_bytes(bytes, "INCR");
        client.send({"INCR", "count"});
        CHECK(closed(client));
        CHECK(direct.exists("count") == (bytes == request.size()));
    }
}

TEST_CASE("held messages wait for release()") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    RawRedis client{proxy.url()};
    proxy.hold_next_requests(1, "INCR");
    client.send({"INCR", "count"});
    REQUIRE(eventually([&] { return proxy.counts().held == 1; }));
    CHECK_FALSE(direct.exists("count"));
    proxy.release();
    CHECK(client.receive().integer == 1);

    proxy.hold_next_replies(1, "INCR");
    client.send({"INCR", "count"});
    REQUIRE(eventually([&] { return proxy.counts().held == 1; }));
    CHECK(direct.integer("GET", "count") == 2);
    CHECK_FALSE(client.receive_within(20ms));
    proxy.release();
    CHECK(client.receive().integer == 2);
    CHECK(proxy.counts().held == 0);
    CHECK(proxy.counts().matched == 2);
}

TEST_CASE("messages held for a time arrive afterwards, even if their sender is gone") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    proxy.hold_next_requests(1, "INCR", 200ms);
    const Stopwatch watch;
    {
        RawRedis client{proxy.url()};
        client.send({"INCR", "count"});
        REQUIRE(eventually([&] { return proxy.counts().matched == 1; }));
    }
    REQUIRE(eventually([&] { return direct.exists("count"); }));
    CHECK(watch.elapsed() >= 200ms);
    CHECK(direct.integer("GET", "count") == 1);
    CHECK(eventually([&] { return proxy.counts().open == 0; }));
}

TEST_CASE("messages can be slowed down, in each direction and byte by byte") {
    RedisServer server;
    Proxy proxy{server.url()};
    RawRedis client{proxy.url()};
    for (const auto& [up, down] : {std::pair{30ms, 0ms}, std::pair{0ms, 30ms}}) {
        proxy.delay(up, down);
        const Stopwatch watch;
        CHECK(client.text("PING") == "PONG");
        CHECK(watch.elapsed() >= 30ms);
    }
    proxy.delay(0ms, 0ms);
    proxy.trickle(1, 5ms);
    const Stopwatch watch;
    CHECK(client.text("PING") == "PONG");
    CHECK(watch.elapsed() >= 30ms);  // seven bytes, six pauses
}

TEST_CASE("what trickled arrives at once when the messages are whole again") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    direct.text("SET", "big", std::string(20'000, 'x'));
    proxy.trickle(1, 5ms);  // 100 s in all
    auto reply = std::async(std::launch::async, [&] { return RawRedis{proxy.url(), 60s}.text("GET", "big"); });
    REQUIRE(eventually([&] { return proxy.counts().bytes_to_client > 0; }));
    proxy.trickle(0, 0ms);
    CHECK(reply.wait_for(20s) == std::future_status::ready);
    CHECK(reply.get().size() == 20'000);
}

TEST_CASE("a blackhole stops all messages, which arrive afterwards") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url()};
    RawRedis client{proxy.url()};
    CHECK(client.text("PING") == "PONG");
    proxy.blackhole(true);
    client.send({"INCR", "count"});
    RawRedis late{proxy.url()};
    late.send({"PING"});
    CHECK_FALSE(client.receive_within(50ms));
    CHECK_FALSE(late.receive_within(1ms));
    CHECK_FALSE(direct.exists("count"));
    proxy.blackhole(false);
    CHECK(client.receive().integer == 1);
    CHECK(late.receive().string == "PONG");
}

TEST_CASE("connections can be half closed, refused and killed") {
    RedisServer server;
    RawRedis direct{server};
    Proxy proxy{server.url(), true};
    {
        RawRedis client{proxy.url()};
        CHECK(client.text("PING") == "PONG");
        proxy.half_close(Side::client);
        CHECK(closed(client));
        client.send({"INCR", "count"});  // this direction is still open
        CHECK(eventually([&] { return direct.exists("count"); }));
    }
    CHECK(eventually([&] { return direct.connected_clients() == 0; }));
    {
        RawRedis client{proxy.url()};
        CHECK(client.text("PING") == "PONG");
        proxy.half_close(Side::server);
        CHECK(closed(client));  // because the server closes it then
    }
    for (const std::string& url : {proxy.url(), proxy.tcp_url()}) {
        RawRedis client{url};
        CHECK(client.text("PING") == "PONG");
        proxy.kill_all();
        CHECK(closed(client));
        proxy.refuse(true);
        client.reconnect();
        CHECK(closed(client));
        proxy.refuse(false);
        client.reconnect();
        CHECK(client.text("PING") == "PONG");
    }
    CHECK(proxy.counts().refused == 2);
    CHECK(proxy.counts().accepted == 8);
}

TEST_CASE("connections end with their server, and new ones reach another server") {
    RedisServer first;
    RedisServer second;
    RawRedis{second}.text("SET", "who", "second");
    Proxy proxy{first.url()};
    RawRedis client{proxy.url()};
    CHECK(client.call("GET", "who").is_nil());
    first.kill();
    CHECK(closed(client));
    client.reconnect();
    CHECK(closed(client));
    proxy.upstream(second.url());
    client.reconnect();
    CHECK(client.text("GET", "who") == "second");
}
