// SPDX-License-Identifier: MIT
// ctest: without=thread
// The warnings of Client::check_server() about real servers: well configured, badly configured, or with few rights.
#include "faults/fault_kit.hpp"
#include "support/internals.hpp"
#include "support/replicated.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

bool warns_of(const std::vector<std::string>& warnings, std::string_view words) {
    return std::any_of(warnings.begin(), warnings.end(),
                       [&](const std::string& one) { return one.find(words) != std::string::npos; });
}

std::string all_of(const std::vector<std::string>& warnings) {
    std::string all;
    for (const std::string& one : warnings) all += one + "\n";
    return all;
}

}  // namespace

TEST_CASE("a durable server without eviction gives no warning, and no key is left on it") {
    RedisServer server{{.appendonly = true}};
    Client client{server.url()};
    CHECK(all_of(client.check_server()) == "");
    CHECK(RawRedis{server}.keys().empty());
}

TEST_CASE("warnings: eviction, missing persistence and small output buffers") {
    RedisServer server{{.args = {"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru",
                                 "--client-output-buffer-limit", "pubsub 64kb 16kb 1"}}};
    Client client{server.url()};
    const auto warnings = client.check_server();
    CAPTURE(all_of(warnings));
    CHECK(warnings.size() == 3);
    CHECK(warns_of(warnings, "volatile-lru"));
    CHECK(warns_of(warnings, "persistence is off"));
    CHECK(warns_of(warnings, "client-output-buffer-limit"));
    RawRedis{server}.text("CONFIG", "SET", "save", "3600 1");
    CHECK(warns_of(client.check_server(), "appendonly is off"));
}

TEST_CASE("warnings: a master that keeps accepting writes without its replicas, and fewer replicas than required") {
    Replicated setup;
    ClientOptions options;
    options.require_replicas = 2;
    Client client{setup.master().url(), options};
    auto warnings = client.check_server();
    CAPTURE(all_of(warnings));
    CHECK(warns_of(warnings, "min-replicas-to-write"));
    CHECK(warns_of(warnings, "fewer replicas (1) than require_replicas"));
    RawRedis{setup.master()}.text("CONFIG", "SET", "min-replicas-to-write", "1");
    warnings = client.check_server();
    CHECK_FALSE(warns_of(warnings, "min-replicas-to-write"));
}

TEST_CASE("warning: the server is a replica, which refuses every lock, and the error says so, too") {
    Replicated setup;
    Client client{setup.replica().url()};
    CHECK(warns_of(client.check_server(), "this server is a replica, so it refuses every lock; use the URL of the "));
    RLock orders{client, "orders", {.unreachable_timeout = 500ms}};
    const auto text = [&] {
        try {
            orders.lock();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("a replica gave a lock");
    };
    // A last try without time for its reply reports only that there was none.
    CHECK(eventually([&] { return text().starts_with("orders: this server is a replica (it replied 'READONLY "); }));
}

TEST_CASE("warning: a master older than Redis 7 with replicas does not stop when it is disconnected") {
    ServerFacts facts;
    facts.info.kind = Reply::Kind::text;
    for (const char* version : {"6.0.16", "6.2.14", "7.0.15", "8.0.6", "10.0.0"}) {
        CAPTURE(std::string{version});
        facts.info.text = std::string{"redis_version:"} + version + "\r\nconnected_slaves:1\r\naof_enabled:1\r\n";
        CHECK(warns_of(warnings_about(facts, {}), "older than Redis 7") == (version[0] == '6'));
        facts.info.text = std::string{"redis_version:"} + version + "\r\nconnected_slaves:0\r\naof_enabled:1\r\n";
        CHECK_FALSE(warns_of(warnings_about(facts, {}), "older than Redis 7"));
    }
}

TEST_CASE("warnings: missing rights, and checks that the server refuses") {
    RedisServer server;
    RawRedis redis{server};
    redis.text("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info", "-config", "-wait", "-hincrby",
               "-zadd");
    redis.text("ACL", "SETUSER", "bare", "on", ">secret", "~*", "&*", "-@all", "+set");
    const std::string path = server.socket_path();
    ClientOptions options;
    options.require_replicas = 1;
    Client app{"unix://app:secret@" + path, options};
    const auto warnings = app.check_server();
    CAPTURE(all_of(warnings));
    CHECK(warnings.size() == 4);
    CHECK(warns_of(warnings, "may not call INFO"));
    CHECK(warns_of(warnings, "may not call CONFIG GET"));
    CHECK(warns_of(warnings, "hincrby, zadd"));
    CHECK(warns_of(warnings, "WAIT"));
    Client bare{"unix://bare:secret@" + path};
    CHECK(warns_of(bare.check_server(), "refuses scripts"));
}

TEST_CASE("an unreachable server is an error, not a warning") {
    RedisServer server;
    ClientOptions options = quick();
    options.unreachable_timeout = 300ms;
    Client client{server.url(), options};
    server.kill();
    CHECK(code_of([&] { static_cast<void>(client.check_server()); }) == errc::unreachable);
}
