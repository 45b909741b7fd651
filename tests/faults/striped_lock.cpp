// SPDX-License-Identifier: MIT
// ctest: timeout=300 without=address
// StripedLock: a holder of several stripes that is killed, lost replies, and a cluster or a Sentinel whose master dies.
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "faults/cluster_kit.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::size_t stripes = 16;
constexpr std::chrono::milliseconds short_lease = paced(3000ms);

const Role holder_role{"fault: holder of stripes", [](std::span<const std::string> args) {
                           Client client{args[0], unhurried(short_lease)};
                           StripedLock accounts{client, "accounts", stripes};
                           MultiLock several = accounts.locks_for({"alice", "bob", "carol", "dave"});
                           several.lock();
                           RawRedis{args[0]}.text("SET", "holds", "1");
                           for (;;) std::this_thread::sleep_for(1s);
                           return 0;
                       }};

}  // namespace

TEST_CASE("fault: the holder of several stripes is killed: all of them are free after its leases") {
    RedisServer server;
    RawRedis redis{server};
    ChildProcess holder = spawn_self("fault: holder of stripes", {server.url()});
    REQUIRE(eventually([&] { return redis.exists("holds"); }, 30s));
    Client client{server.url(), unhurried(short_lease)};
    StripedLock accounts{client, "accounts", stripes};
    MultiLock several = accounts.locks_for({"dave", "carol", "bob", "alice"});
    CHECK_FALSE(several.try_lock());
    holder.kill();
    const Stopwatch watch;
    REQUIRE(several.try_lock_for(60s));
    CHECK(watch.within(short_lease + late));
    for (const char* name : {"alice", "bob", "carol", "dave"}) CHECK(accounts.lock_for(name).is_locked());
    several.unlock();
    for (const char* name : {"alice", "bob", "carol", "dave"}) CHECK_FALSE(accounts.lock_for(name).is_locked());
}

TEST_CASE("fault: replies to acquires and releases of stripes are lost: nothing stays locked") {
    FaultyPath path;
    Client client{path.url(), unhurried()}, other{path.server.url(), unhurried()};
    StripedLock accounts{client, "accounts", stripes}, theirs{other, "accounts", stripes};
    for (const std::string& digest : {acquire_digest, release_digest}) {
        path.proxy.drop_next_replies(1, digest);
        {
            MultiLock both = accounts.locks_for({"alice", "bob"});
            const std::lock_guard guard{both};
            CHECK_FALSE(theirs.lock_for("alice").try_lock());
            CHECK_FALSE(theirs.lock_for("bob").try_lock());
        }
        MultiLock both = theirs.locks_for({"alice", "bob"});
        REQUIRE(both.try_lock_for(20s));
        both.unlock();
    }
}

TEST_CASE("fault: a server restarts without its data: stripes can be acquired again, the old hold is reported lost") {
    RedisServer server;
    EventLog log;
    Client client{server.url(), log.in(unhurried(short_lease))};
    StripedLock accounts{client, "accounts", stripes};
    accounts.lock_for("alice").lock();
    server.kill();
    server.restart();
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }, 30s));
    std::error_code ec;
    accounts.lock_for("alice").unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(accounts.lock_for("alice").try_lock_for(20s));
    accounts.lock_for("alice").unlock();
}

TEST_CASE("fault: a master of a cluster dies: its stripes survive on the replica, the others are unaffected") {
    ClusterServers cluster;
    EventLog log;
    ClientOptions options = steady();
    options.require_replicas = 1;
    Client client{cluster.url(), log.in(options)}, other{cluster.url(), options};
    StripedLock mine{client, "accounts", stripes}, theirs{other, "accounts", stripes};
    std::set<RedisServer*> homes;
    for (std::size_t i = 0; i < stripes; ++i) homes.insert(&cluster.master_of(mine.stripe(i).name()));
    CHECK(homes.size() == 3);
    std::vector<std::string> names;
    for (int i = 0; i < 12; ++i) names.push_back("n" + std::to_string(i));
    MultiLock all = mine.locks_for(names);
    all.lock();
    const std::string key = cluster.key_on(cluster.node(0), "x");
    cluster.node(0).kill();
    REQUIRE(cluster.is_served(key, failover));
    for (const std::string& name : names) CHECK_FALSE(theirs.lock_for(name).try_lock());
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    std::error_code ec;
    all.unlock(ec);
    CHECK_FALSE(ec);
    for (const std::string& name : names) CHECK_FALSE(theirs.lock_for(name).is_locked());
}

TEST_CASE("fault: a failover by Sentinel: the holds of stripes go on") {
    Sentinels3 setup;
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    options.watchdog_timeout = options.unreachable_timeout = 180s;
    options.require_replicas = 1;
    Client client{setup.url(), options};
    StripedLock accounts{client, "accounts", stripes};
    MultiLock both = accounts.locks_for({"alice", "bob"});
    both.lock();
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), 120s));
    CHECK(both.is_held());
    both.unlock();
    CHECK_FALSE(accounts.lock_for("alice").is_locked());
}
