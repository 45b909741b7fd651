// SPDX-License-Identifier: MIT
// ctest: timeout=600 long without=address
// Barrier: parties that die in each state, lost and late commands, restarts, and failovers in a cluster and by Sentinel.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "faults/cluster_kit.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds short_lease = paced(3000ms);

const std::string arrive_digest{digested<scripts::barrier_arrive>.digest()};
const std::string look_digest{digested<scripts::barrier_look>.digest()};
const std::string withdraw_digest{digested<scripts::barrier_withdraw>.digest()};

// Arrives, and waits if told so, until it is killed. A frozen one tells by its exit code how the wait ended.
const Role party_role{"fault: party", [](std::span<const std::string> args) {
                          Client client{args[0], unhurried(short_lease)};
                          Barrier barrier{client, "start", 2};
                          Barrier::Arrival arrival = barrier.arrive();
                          if (args[1] == "waits") {
                              std::error_code ec;
                              barrier.wait(arrival, ec);
                              return ec == errc::hold_lost ? 3 : ec ? 4 : 0;
                          }
                          for (;;) std::this_thread::sleep_for(1s);
                          return 0;
                      }};

struct Path : FaultyPath {
    Path() {
        for (const Script* script : {&digested<scripts::barrier_arrive>, &digested<scripts::barrier_call_off>,
                                     &digested<scripts::barrier_look>, &digested<scripts::barrier_withdraw>})
            redis.text("SCRIPT", "LOAD", script->text());
    }
};

// Two parties meet `times` times, while `during` runs when they have met half of them. Returns true if neither is ever
// ahead of the other.
template <class During>
bool meet(const std::string& url, const ClientOptions& options, int times, During during) {
    std::atomic<int> reached[2] = {0, 0};
    std::atomic<bool> wrong{false};
    const auto party = [&](int me) {
        Client client{url, options};
        Barrier barrier{client, "start", 2};
        for (int phase = 1; phase <= times; ++phase) {
            reached[me] = phase;
            barrier.arrive_and_wait();
            if (reached[1 - me] < phase || reached[1 - me] > phase + 1) wrong = true;
        }
    };
    auto one = start([&] { party(0); });
    auto two = start([&] { party(1); });
    const bool halfway = eventually([&] { return reached[0] >= times / 2; }, 60s);
    during();
    one.get();
    two.get();
    return halfway && !wrong && reached[0] == times && reached[1] == times;
}

}  // namespace

TEST_CASE("fault: a party is killed that has arrived: it does not count after its lease, and another takes its place") {
    for (const char* state : {"arrived", "waits"}) {
        CAPTURE(std::string(state));
        RedisServer server;
        RawRedis redis{server};
        Client client{server.url(), unhurried()};
        Barrier barrier{client, "start", 2};
        ChildProcess party = spawn_self("fault: party", {server.url(), state});
        REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, 30s));
        if (std::string(state) == "waits")
            REQUIRE(eventually([&] { return redis.subscribers("redlatch_barrier:{start}") == 1; }, 30s));
        party.kill();
        const Stopwatch watch;
        REQUIRE(eventually([&] { return barrier.inspect().arrived == 0; }, 60s));
        CHECK(watch.within(short_lease + late));
        // One party alone does not pass.
        CHECK_FALSE(barrier.arrive_and_wait_for(100ms));
        auto waiting = start([&] { barrier.arrive_and_wait(); });
        REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, 20s));
        barrier.arrive_and_wait();
        CHECK(ready(waiting, 20s));
        CHECK(barrier.inspect().phase == 2);
    }
}

TEST_CASE("fault: a party is killed before its phase ends, while the others wait: they go on with a new one") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    Barrier barrier{client, "start", 3};
    auto one = start([&] { barrier.arrive_and_wait(); });
    REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, 20s));
    {
        // It ends without having released anything.
        Client dying{server.url(), unhurried(short_lease)};
        static_cast<void>(Barrier(dying, "start", 3).arrive());
        CHECK(barrier.inspect().arrived == 2);
    }
    REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, 60s));
    auto two = start([&] { barrier.arrive_and_wait(); });
    REQUIRE(eventually([&] { return barrier.inspect().arrived == 2; }, 20s));
    CHECK(one.wait_for(50ms) == std::future_status::timeout);
    barrier.arrive_and_wait();
    CHECK(ready(one, 20s));
    CHECK(ready(two, 20s));
}

TEST_CASE("fault: a party is frozen beyond its lease: its wait ends with hold_lost") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    Barrier barrier{client, "start", 2};
    ChildProcess party = spawn_self("fault: party", {server.url(), "waits"});
    REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, 30s));
    party.stop();
    REQUIRE(eventually([&] { return barrier.inspect().arrived == 0; }, 60s));
    party.cont();
    const auto status = party.wait(60s);
    REQUIRE(status);
    CHECK(status->code == 3);
}

TEST_CASE("fault: replies and requests are lost in every step: each arrival counts once") {
    Path path;
    Client client{path.url(), unhurried()}, other{path.server.url(), unhurried()};
    Barrier mine{client, "start", 2}, theirs{other, "start", 2};
    std::uint64_t phase = 1;
    for (const bool ends_phase : {false, true})
        for (const std::string& digest : {arrive_digest, look_digest}) {
            for (const bool reply : {false, true}) {
                CAPTURE(ends_phase);
                CAPTURE(reply);
                const auto before = path.proxy.counts().dropped;
                reply ? path.proxy.drop_next_replies(1, digest) : path.proxy.drop_next_requests(1, digest);
                std::future<void> waiting;
                if (ends_phase) {
                    waiting = start([&] { theirs.arrive_and_wait(); });
                    REQUIRE(eventually([&] { return theirs.inspect().arrived == 1; }, 20s));
                    mine.arrive_and_wait();
                } else {
                    waiting = start([&] { mine.arrive_and_wait(); });
                    REQUIRE(eventually([&] { return path.proxy.counts().dropped == before + 1; }, 20s));
                    REQUIRE(eventually([&] { return theirs.inspect().arrived == 1; }, 20s));
                    theirs.arrive_and_wait();
                }
                REQUIRE(ready(waiting, 20s));
                path.proxy.clear_rules();
                CHECK(theirs.inspect().phase == ++phase);
                CHECK(theirs.inspect().arrived == 0);
            }
        }
    for (const bool reply : {false, true}) {
        Barrier::Arrival arrival = mine.arrive();
        reply ? path.proxy.drop_next_replies(1, withdraw_digest) : path.proxy.drop_next_requests(1, withdraw_digest);
        CHECK(mine.withdraw(std::move(arrival)));
        CHECK(theirs.inspect().arrived == 0);
    }
}

TEST_CASE("fault: an arrival comes after its call has failed: it does not count") {
    Path path;
    ClientOptions options = unhurried();
    options.command_timeout = paced(300ms);
    options.unreachable_timeout = paced(1000ms);
    Client client{path.url(), options}, other{path.server.url(), unhurried()};
    Barrier mine{client, "start", 2}, theirs{other, "start", 2};
    // Learns the clock of the server. The short time-outs may strike on a busy machine.
    REQUIRE(eventually([&] { return !code_of([&] { static_cast<void>(mine.inspect()); }); }));
    path.proxy.hold_next_requests(100, arrive_digest, 60s);
    CHECK(code_of([&] { static_cast<void>(mine.arrive()); }) == errc::unreachable);
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }, 20s));
    CHECK(eventually([&] { return theirs.inspect().arrived == 0; }, 5s));
    CHECK_FALSE(eventually([&] { return theirs.inspect().arrived != 0; }, 300ms));
    CHECK_FALSE(theirs.arrive_and_wait_for(50ms));
}

TEST_CASE("fault: a server restarts without its data: those that wait get hold_lost, and can meet again") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    Barrier barrier{client, "start", 2};
    auto waiting = start([&] { return code_of([&] { barrier.arrive_and_wait(); }); });
    REQUIRE(eventually([&] { return client.stats().waiting == 1; }, 20s));
    server.kill();
    server.restart();
    REQUIRE(ready(waiting, 60s));
    CHECK(waiting.get() == errc::hold_lost);
    auto again = start([&] { barrier.arrive_and_wait(); });
    REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, 20s));
    barrier.arrive_and_wait();
    CHECK(ready(again, 20s));
}

TEST_CASE("fault: connections break while parties meet: nobody is ahead of the others") {
    FaultyPath path;
    std::atomic<bool> over{false};
    auto breaking = start([&] {
        while (!over) {
            path.proxy.kill_all();
            std::this_thread::sleep_for(20ms);
        }
    });
    CHECK(meet(path.url(), unhurried(), 60, [] {}));
    over = true;
    breaking.get();
}

TEST_CASE("fault: the master of a cluster that has the barrier dies: the phases go on") {
    ClusterServers cluster;
    ClientOptions options = steady();
    RedisServer& victim = cluster.master_of("start");
    CHECK(meet(cluster.url(), options, 20, [&] { CHECK(cluster.is_served("start", failover)); }));
    {
        Client client{cluster.url(), options};
        Barrier barrier{client, "start", 2};
        auto waiting = start([&] { barrier.arrive_and_wait(); });
        REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, soon));
        RawRedis replica{cluster.partner_of(victim)};
        replica.text("READONLY");
        REQUIRE(eventually([&] { return replica.exists("{start}:arrivals"); }, soon));
        victim.kill();
        REQUIRE(cluster.is_served("start", failover));
        CHECK(barrier.inspect().arrived == 1);
        barrier.arrive_and_wait();
        CHECK(ready(waiting, failover));
    }
}

TEST_CASE("fault: a failover by Sentinel: the phases go on") {
    Sentinels3 setup;
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    options.watchdog_timeout = options.unreachable_timeout = 180s;
    Client client{setup.url(), options};
    Barrier barrier{client, "start", 2};
    auto waiting = start([&] { barrier.arrive_and_wait(); });
    REQUIRE(eventually([&] { return barrier.inspect().arrived == 1; }, soon));
    REQUIRE(setup.confirmed_by(1));
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    barrier.arrive_and_wait();
    CHECK(ready(waiting, failover));
    CHECK(barrier.inspect().phase == 2);
}
