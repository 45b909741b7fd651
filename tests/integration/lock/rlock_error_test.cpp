// SPDX-License-Identifier: MIT
// Refusals: their codes and texts, and that they do no harm.
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Error;
using redlatch::Lease;
using redlatch::RLock;

namespace {

/// Far below the 30 s after which a server counts as unreachable, so there was no retry.
constexpr auto at_once = 20s;

bool holds_text(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// `redis://login@127.0.0.1:port`
std::string url_with_login(const RedisServer& server, const std::string& login) {
    return "redis://" + login + "@127.0.0.1:" + std::to_string(server.port());
}

/// Creates a user with the rights of the command list on all keys and channels.
void make_user(RawRedis& redis, const std::string& name, const std::vector<std::string>& commands) {
    Words words{"ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "&*"};
    words.insert(words.end(), commands.begin(), commands.end());
    REQUIRE_FALSE(redis.command(words).is_error());
}

/// All rights that an RLock needs.
const std::vector<std::string> minimal_rights{"+evalsha", "+eval",    "+exists",    "+hget",       "+hexists", "+hlen",
                                              "+pttl",    "+hincrby", "+hdel",      "+pexpire",    "+del",     "+time",
                                              "+hkeys",   "+publish", "+subscribe", "+unsubscribe"};

std::vector<std::string> without(const std::string& right) {
    std::vector<std::string> rights = minimal_rights;
    std::erase(rights, right);
    return rights;
}

}  // namespace

TEST_CASE("unlock() by a thread that never acquired the lock throws not_owner and changes nothing") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    CHECK(code_of([&] { orders.unlock(); }) == errc::not_owner);
    orders.lock();
    const std::string text = elsewhere([&] { return text_of_error([&] { orders.unlock(); }); });
    CHECK(holds_text(text, "orders"));
    CHECK(code_of([&] { theirs.unlock(); }) == errc::not_owner);
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
    orders.unlock();
    CHECK(code_of([&] { orders.unlock(); }) == errc::not_owner);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("bad names are refused before anything is sent") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    const std::string connections = redis.info("stats", "total_connections_received");
    const std::vector<std::string> names{"", std::string(1025, 'x'), "a{b", "a}b", "a{}b", "}a{", "{a}{b}", "{{a}}",
                                         "{"};
    for (const std::string& name : names) {
        CAPTURE(name);
        CHECK(code_of([&] { RLock lock(client, name); }) == errc::invalid_argument);
    }
    RLock longest(client, std::string(1024, 'x'));
    ClientOptions options;
    options.key_prefix = "{shop}:";
    Client prefixed{server.url(), options};
    CHECK(code_of([&] { RLock lock(prefixed, "{a}"); }) == errc::invalid_argument);
    CHECK(code_of([&] { RLock lock(prefixed, ""); }) == errc::invalid_argument);
    CHECK(code_of([&] { RLock lock(prefixed, std::string(1020, 'x')); }) == errc::invalid_argument);
    RLock fine{prefixed, "a"};
    options.key_prefix = "{";
    CHECK(code_of([&] { Client bad(server.url(), options); }) == errc::invalid_argument);
    CHECK(redis.info("stats", "total_connections_received") == connections);
    longest.lock();
    CHECK(redis.keys() == Words{std::string(1024, 'x')});
    longest.unlock();
}

TEST_CASE("leases below one millisecond, or not a number, are refused before anything is sent") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    const std::string connections = redis.info("stats", "total_connections_received");
    using std::chrono::duration;
    const std::vector<std::function<void()>> calls{
        [&] { orders.lock(Lease{0ms}); },
        [&] { orders.lock(Lease{-1ms}); },
        [&] { orders.lock(Lease{999us}); },
        [&] { static_cast<void>(orders.try_lock(Lease{0s})); },
        [&] { static_cast<void>(orders.try_lock_for(1s, Lease{std::chrono::hours::min()})); },
        [&] { orders.lock(Lease{std::chrono::hours::max()}); },
        [&] { orders.lock(Lease{std::chrono::milliseconds::max()}); },
        [&] { orders.lock(Lease{duration<double>{std::numeric_limits<double>::quiet_NaN()}}); },
        [&] { orders.lock(Lease{duration<double>{std::numeric_limits<double>::infinity()}}); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
        CAPTURE(i);
        CHECK(code_of(calls[i]) == errc::invalid_argument);
    }
    for (const auto timeout : {-1ms, 0ms}) {
        const ClientOptions options = with_watchdog(timeout);
        CHECK(code_of([&] { Client bad(server.url(), options); }) == errc::invalid_argument);
    }
    CHECK(redis.info("stats", "total_connections_received") == connections);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("bad URLs are refused without a connection, and the message does not contain the login") {
    for (const char* url :
         {"", "localhost", "http://localhost", "redis://", "redis://user:hunter2@", "redis://user:hunter2@host:port",
          "redis://:hunter2@host:99999", "redis://:hunter2@host/db", "unix://", "unix://relative", "unix:///s?db=x",
          "rediss://user:hunter2@host", "redis-sentinel://:hunter2@host", "redis-cluster://:hunter2@host:0",
          "redis://us%zzer:hunter2@host", "hunter2", "hunter2://host", "redis//:hunter2@host"}) {
        CAPTURE(url);
        const std::string text = text_of_error([&] { Client client(url); });
        CHECK(text != "no error");
        if (std::string{url}.find('@') != std::string::npos) CHECK_FALSE(holds_text(text, "hunter2"));
    }
}

TEST_CASE("a key of another type is an error that names it, and stays unchanged") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    redis.text("SET", "text", "value");
    redis.integer("RPUSH", "list", "value");
    redis.integer("SADD", "set", "value");
    redis.integer("ZADD", "scores", 1, "value");
    redis.integer("HSET", "readers", "mode", "read");
    for (const std::string key : {"text", "list", "set", "scores", "readers"}) {
        CAPTURE(key);
        const std::string before = redis.text("DUMP", key);
        RLock lock{client, key};
        const std::vector<std::pair<const char*, std::function<void()>>> calls{
            {"lock", [&] { lock.lock(); }},
            {"lock(Lease)", [&] { lock.lock(Lease{1s}); }},
            {"try_lock", [&] { static_cast<void>(lock.try_lock()); }},
            {"try_lock_for", [&] { static_cast<void>(lock.try_lock_for(1s)); }},
        };
        for (const auto& named : calls) {
            const auto& call = named.second;
            CAPTURE(named.first);
            CHECK(code_of(call) == errc::wrong_type);
            const std::string text = text_of_error(call);
            CHECK(holds_text(text, key));
            CHECK(holds_text(text, "WRONGTYPE"));
        }
        std::error_code ec;
        lock.lock(ec);
        CHECK(ec == errc::wrong_type);
        CHECK_FALSE(lock.try_lock(ec));
        CHECK(ec == errc::wrong_type);
        CHECK(code_of([&] { lock.unlock(); }) == errc::not_owner);
        CHECK(redis.text("DUMP", key) == before);
        CHECK(redis.pttl(key) == -1);
    }
    CHECK(client.stats().acquisitions == 0);
}

TEST_CASE("queries about a key of another type report wrong_type, too") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    redis.text("SET", "text", "value");
    RLock lock{client, "text"};
    CHECK(code_of([&] { lock.is_locked(); }) == errc::wrong_type);
    CHECK(code_of([&] { lock.is_held(); }) == errc::wrong_type);
    CHECK(code_of([&] { lock.hold_count(); }) == errc::wrong_type);
    CHECK(code_of([&] { lock.remaining_lease(); }) == errc::wrong_type);
    std::error_code ec;
    CHECK_FALSE(lock.is_locked(ec));
    CHECK(ec == errc::wrong_type);
    CHECK(lock.hold_count(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(lock.remaining_lease(ec).has_value());
    CHECK(ec == errc::wrong_type);
    CHECK(redis.text("GET", "text") == "value");
}

TEST_CASE("force_unlock() does not delete a key of another type") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    redis.text("SET", "text", "value");
    RLock lock{client, "text"};
    CHECK(code_of([&] { lock.force_unlock(); }) == errc::wrong_type);
    CHECK(redis.text("GET", "text") == "value");
}

TEST_CASE("a held key that changes its type is a lost hold, and stays unchanged") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    ClientOptions options = with_watchdog(short_lease);
    options.on_event = log.handler();
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    redis.text("SET", "orders", "value");
    CHECK_NOTHROW(orders.unlock());
    CHECK(eventually([&] { return log.count(redlatch::Event::Kind::hold_lost) == 1; }));
    redis.integer("DEL", "orders");
    orders.lock();
    const std::stop_token lost = orders.lost();
    redis.text("SET", "orders", "value");
    // The watchdog cannot renew it, so it is lost at the end of the lease at the latest.
    CHECK(eventually([&] { return lost.stop_requested(); }, short_lease + 10s));
    CHECK_NOTHROW(orders.unlock());
    CHECK(redis.text("GET", "orders") == "value");
    CHECK(redis.pttl("orders") == -1);
}

TEST_CASE("a held key that changes its type does not end the renewal of other holds") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock bad{client, "bad"};
    RLock good{client, "good"};
    bad.lock();
    good.lock();
    REQUIRE(eventually([&] { return client.stats().renewals >= 2; }, 20s));
    redis.text("SET", "bad", "value");
    CHECK_FALSE(eventually([&] { return !redis.exists("good"); }, short_lease * 2, 5ms));
    CHECK_FALSE(good.lost().stop_requested());
    good.unlock();
    bad.unlock();
    CHECK(redis.text("GET", "bad") == "value");
}

TEST_CASE("a wrong or missing password is rejected at once, and the message does not contain it") {
    RedisServer server{{.tcp = true, .args = {"--requirepass", "open sesame"}}};
    EventLog log;
    ClientOptions options;
    options.on_event = log.handler();
    for (const std::string login : {":hunter2", "default:hunter2", "nobody:hunter2", ":open%20sesam", ""}) {
        CAPTURE(login);
        Client client{login.empty() ? server.tcp_url() : url_with_login(server, login), options};
        RLock orders{client, "orders"};
        const Stopwatch watch;
        std::string text;
        CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
        text += text_of_error([&] { orders.lock(); });
        text += text_of_error([&] { static_cast<void>(orders.try_lock_for(20s)); });
        text += text_of_error([&] { orders.is_locked(); });
        CHECK(watch.elapsed() < at_once);
        CHECK_FALSE(holds_text(text, "hunter2"));
        CHECK_FALSE(holds_text(text, "sesam"));
        CHECK(holds_text(text, "password"));
    }
    for (const std::string login : {":open%20sesame", "default:open%20sesame"}) {
        Client client{url_with_login(server, login), options};
        RLock orders{client, "orders"};
        orders.lock();
        orders.unlock();
    }
    for (const auto& event : log.all()) CHECK_FALSE(holds_text(event.name + event.detail, "hunter2"));
}

TEST_CASE("the message about an unreachable server does not contain the password") {
    TempDir dir;
    EventLog log;
    ClientOptions options;
    options.command_timeout = 100ms;
    options.unreachable_timeout = 100ms;
    options.on_event = log.handler();
    Client client{"unix://user:hunter2@" + dir.file("nobody"), options};
    RLock orders{client, "orders"};
    std::string text;
    CHECK(code_of([&] { orders.lock(); }) == errc::unreachable);
    text += text_of_error([&] { orders.lock(); });
    text += text_of_error([&] { static_cast<void>(orders.try_lock()); });
    text += text_of_error([&] { orders.hold_count(); });
    CHECK(holds_text(text, "orders"));
    CHECK(holds_text(text, dir.file("nobody")));
    CHECK_FALSE(holds_text(text, "hunter2"));
    for (const auto& event : log.all()) CHECK_FALSE(holds_text(event.name + event.detail, "hunter2"));
}

TEST_CASE("an unreachable server: a call throws after unreachable_timeout, or at its deadline if it has one") {
    TempDir dir;
    ClientOptions options;
    options.unreachable_timeout = 200ms;
    Client client{"unix://" + dir.file("nobody"), options};
    RLock orders{client, "orders"};
    const auto took = [&](auto&& call) {
        const Stopwatch watch;
        CHECK(code_of(call) == errc::unreachable);
        return watch.elapsed();
    };
    // The best of some tries.
    const auto is_back_in = [&](std::chrono::milliseconds bound, auto&& call) {
        for (int tries = 0; tries < 5; ++tries)
            if (took(call) <= bound) return true;
        return false;
    };
    CHECK(took([&] { orders.lock(); }) >= 200ms);
    CHECK(is_back_in(patient(1s), [&] { orders.lock(); }));
    CHECK(is_back_in(patient(1s), [&] { static_cast<void>(orders.try_lock()); }));
    CHECK(is_back_in(patient(1s), [&] { static_cast<void>(orders.try_lock_for(100ms)); }));
    CHECK(is_back_in(patient(1s), [&] { orders.is_held(); }));
    std::error_code ec;
    orders.lock(ec);
    CHECK(ec == errc::unreachable);
}

TEST_CASE("a user with the minimal rights can do everything") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    make_user(redis, "locker", minimal_rights);
    Client client{url_with_login(server, "locker:secret"), with_watchdog(short_lease)};
    Client other{url_with_login(server, "locker:secret")};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    orders.lock();
    orders.lock();
    CHECK(orders.hold_count() == 2);
    CHECK(orders.is_locked());
    CHECK(orders.remaining_lease().has_value());
    CHECK(eventually([&] { return client.stats().renewals >= 1; }, 20s));
    auto there = start([&] { return theirs.lock(), theirs.unlock(), true; });
    auto here = start([&] { return orders.lock(), orders.unlock(), true; });
    REQUIRE(has_waiters(other, 1));
    REQUIRE(has_waiters(client, 1));
    REQUIRE(is_listened_to(redis, "orders", 2));
    orders.unlock();
    orders.unlock();
    CHECK(ready(there));
    CHECK(ready(here));
    orders.lock();
    CHECK(theirs.force_unlock());
    orders.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a user without a necessary right is rejected, and nothing is left half done") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    for (const std::string right : {"+hincrby", "+pexpire", "+evalsha", "+exists", "+time"}) {
        CAPTURE(right);
        make_user(redis, "locker", without(right));
        Client client{url_with_login(server, "locker:secret")};
        RLock orders{client, "orders"};
        const Stopwatch watch;
        CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
        const std::string text = text_of_error([&] { orders.lock(); });
        CHECK(holds_text(text, "orders"));
        CHECK_FALSE(holds_text(text, "secret"));
        CHECK(watch.elapsed() < at_once);
        CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
        redis.text("FLUSHALL");
    }
}

TEST_CASE("a user without the right to subscribe is rejected by the first wait") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    make_user(redis, "locker", without("+subscribe"));
    Client client{url_with_login(server, "locker:secret")};
    RLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
    redis.integer("HSET", "orders", "somebody:1", 1);
    redis.integer("PEXPIRE", "orders", 600'000);
    const Stopwatch watch;
    CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
    CHECK(code_of([&] { static_cast<void>(orders.try_lock_for(20s)); }) == errc::rejected);
    CHECK(watch.elapsed() < at_once);
    redis.integer("DEL", "orders");
    CHECK(orders.try_lock());
    orders.unlock();
}

TEST_CASE("a user without the right to the channel is rejected by the first wait") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    make_user(redis, "locker", minimal_rights);
    REQUIRE_FALSE(redis.call("ACL", "SETUSER", "locker", "resetchannels", "&redisson_lock__channel:{mine}").is_error());
    Client client{url_with_login(server, "locker:secret")};
    redis.integer("HSET", "orders", "somebody:1", 1);
    redis.integer("PEXPIRE", "orders", 600'000);
    RLock orders{client, "orders"};
    CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
    RLock mine{client, "mine"};
    mine.lock();
    mine.unlock();
    CHECK(redis.keys() == Words{"orders"});
}
