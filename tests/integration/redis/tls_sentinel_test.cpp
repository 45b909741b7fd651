// SPDX-License-Identifier: MIT
// rediss-sentinel://: TLS to the sentinels and to the server that they name, also after a failover.
#include <doctest/doctest.h>

#include <redlatch/tls.hpp>

#include <chrono>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/process.hpp"
#include "support/sentinels.hpp"
#include "support/tls_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Event;
using redlatch::RLock;

namespace {

/// A master, a replica and a sentinel, all of which use TLS. They accept plain connections only on their unix sockets.
class TlsSentinel {
public:
    TlsSentinel() {
        if (!eventually([&] { return RawRedis{master}.info("replication", "connected_slaves") == "1"; }, 30s))
            throw std::runtime_error("the replica does not come:\n" + replica.log());
        for (int tries = 0; !process_ && tries < 20; ++tries) launch();
        if (!process_ || !eventually([&] { return sentinel_field(socket(), "num-slaves") == "1"; }, 30s))
            throw std::runtime_error("the sentinel does not work");
    }

    std::string url() const { return "rediss-sentinel://127.0.0.1:" + std::to_string(port_) + "/orders"; }

    /// Returns true if the sentinel names the replica as master and the replica reports that role.
    bool has_failed_over() {
        RawRedis redis{socket()};
        return redis.list("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "orders").at(1) == std::to_string(replica.port()) &&
               RawRedis{replica}.command({"ROLE"}).elements.at(0).string == "master";
    }

    Authority authority;
    const Certificate own = authority.issue("server");
    RedisServer master{by_tls(own, authority, false, {"--tls-replication", "yes", "--repl-diskless-sync-delay", "0"})};
    RedisServer replica{
        by_tls(own, authority, false,
               {"--tls-replication", "yes", "--replicaof", "127.0.0.1 " + std::to_string(master.port())})};

private:
    std::string socket() const { return dir_.file("sentinel.sock"); }

    void launch() {
        port_ = pick_free_port();
        const std::string file = dir_.file("sentinel.conf");
        std::ofstream{file} << "bind 127.0.0.1\nport 0\ntls-port " << port_ << "\nunixsocket " << socket() << "\ndir "
                            << dir_.path() << "\ntls-cert-file " << own.file << "\ntls-key-file " << own.key_file
                            << "\ntls-ca-cert-file " << authority.file()
                            << "\ntls-auth-clients no\ntls-replication yes\nsentinel monitor orders 127.0.0.1 "
                            << master.port() << " 1\nsentinel down-after-milliseconds orders 1000"
                            << "\nsentinel failover-timeout orders 3000\n";
        process_ = start_sentinel(file, dir_.file("sentinel.log"), socket());
    }

    int port_ = 0;
    TempDir dir_;
    std::optional<ChildProcess> process_;  // after the directory, so that it ends first
};

}  // namespace

TEST_CASE("the master is found by TLS, also after a failover, and untrusted sentinels are rejected") {
    TlsSentinel place;
    EventLog log;
    ClientOptions options;
    options.tls = redlatch::tls({.ca_file = place.authority.file()});
    options.on_event = log.handler();
    options.unreachable_timeout = 90s;
    Client client{place.url(), options};
    RLock orders{client, "orders"};
    { std::lock_guard guard{orders}; }

    Authority other{"another authority"};
    ClientOptions distrust;
    distrust.tls = redlatch::tls({.ca_file = other.file()});
    distrust.unreachable_timeout = 120s;
    Client stranger{place.url(), distrust};
    RLock refused{stranger, "orders"};
    const Stopwatch watch;
    std::error_code code;
    refused.lock(code);
    CHECK(code == errc::rejected);
    CHECK(watch.within(60s));

    place.master.kill();
    { std::lock_guard guard{orders}; }
    // The client may learn of the failover before the sentinel has finished it.
    CHECK(eventually([&] { return place.has_failed_over(); }, 30s));
    CHECK(eventually([&] { return log.count(Event::Kind::moved) >= 1; }, 20s));
    CHECK(RawRedis{place.replica}.script_calls() > 0);
}
