// SPDX-License-Identifier: MIT
// ctest: long without=address
// Leaders that are killed or frozen in each state, lost replies, and servers that restart: never two leaders, and the
// election goes on.
#include <atomic>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "faults/fault_kit.hpp"
#include "support/history.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds margin = 50ms + late;
constexpr std::chrono::milliseconds short_lease = paced(3000ms);

const std::string store_digest{digested<scripts::record_store>.digest()};

struct Shared {
    std::atomic<int> leading{0};
    std::atomic<int> renewals{0};
    std::atomic<int> resigning{0};
    std::atomic<int> resumed{0};
};

// Leads until it is killed, or resigns when the test says so.
int lead_until_killed(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    Client client{args[0], unhurried(short_lease)};
    LeaderElection election{client, "scheduler", "child"};
    Term term = election.campaign();
    while (shared->resigning == 0) {
        shared->leading = 1;
        shared->renewals = static_cast<int>(client.stats().renewals);
        std::this_thread::sleep_for(1ms);
    }
    static_cast<void>(term.resign(30s));
    std::this_thread::sleep_for(30s);
    return 0;
}

const Role leader_role{"fault: leader", lead_until_killed};

// Leads, is frozen for longer than its lease, and must not take itself for the leader when it goes on.
int be_frozen(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    const HistoryFile history{args[2]};
    Client client{args[0], unhurried(short_lease)};
    LeaderElection election{client, "scheduler", "frozen"};
    Term term = election.campaign();
    Interval belief{1, monotonic_ns(), 0};
    auto last_look = std::chrono::steady_clock::now();
    for (;;) {
        const auto now = std::chrono::steady_clock::now();
        const bool leads = term.is_leader();
        if (now - last_look > short_lease) {
            if (leads) return 1;
            break;
        }
        if (!leads) return 2;  // lost without having been frozen: the machine is too busy for this test
        belief.until = monotonic_ns(term.valid_until());
        shared->leading = 1;
        last_look = now;
        std::this_thread::sleep_for(1ms);
    }
    history.append(belief);
    shared->resumed = 1;
    if (!eventually([&] { return term.lost().stop_requested(); }, margin)) return 3;
    if (term.resign() != errc::hold_lost) return 4;
    // It campaigns again in its turn.
    Term next = election.campaign_for(20s);
    if (!next) return 5;
    history.append({1, monotonic_ns(), monotonic_ns() + 1});
    return next.resign() ? 6 : 0;
}

const Role frozen_role{"fault: frozen leader", be_frozen};

// Loads the scripts, so that each operation is one EVALSHA.
void load_election_scripts(RawRedis& redis) {
    for (const Script* script : {&digested<scripts::fenced_queue_acquire>, &digested<scripts::record_store>,
                                 &digested<scripts::record_look>, &digested<scripts::fenced_queue_release>})
        redis.text("SCRIPT", "LOAD", script->text());
}

}  // namespace

TEST_CASE("fault: leader killed: another one leads after the lease, and not before, and observers see it") {
    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    Client client{server.url(), unhurried()};
    LeaderElection election{client, "scheduler", "successor"};
    ChildProcess leader = spawn_self("fault: leader", {server.url(), dir.file("shared")});
    REQUIRE(eventually([&] { return shared->renewals > 0; }, 30s));
    std::optional<Leader> seen = election.leader();
    REQUIRE(seen);
    CHECK(seen->name == "child");
    const std::int64_t token = seen->token;
    auto observing = start([&] {
        election.observe([&](const std::optional<Leader>& now) {
            if (now && now->name == "successor") throw Error(errc::cancelled, "", "it has seen the successor");
        });
        return true;
    });
    auto waiting = start([&] {
        Term term = election.campaign_for(60s);
        return std::pair{std::move(term), std::chrono::steady_clock::now()};
    });
    REQUIRE(eventually([&] { return client.stats().waiting == 2; }, 10s));
    leader.kill();
    const auto killed = std::chrono::steady_clock::now();
    const auto left = std::chrono::milliseconds(redis.pttl("scheduler"));
    auto [term, elected] = waiting.get();
    REQUIRE(term);
    CHECK(elected - killed <= short_lease + margin);
    CHECK(elected - killed >= left - 5ms);
    CHECK(term.token() > token);
    CHECK(code_of([&] { observing.get(); }) == errc::cancelled);
    CHECK_FALSE(term.resign());
}

TEST_CASE("fault: leader killed before its announcement reaches the server: the next one leads after its lease") {
    FaultyPath path{true};
    load_election_scripts(path.redis);
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    path.proxy.hold_next_requests(1, store_digest);
    ChildProcess leader = spawn_self("fault: leader", {path.url(), dir.file("shared")});
    REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }, 30s));
    Client client{path.server.url(), unhurried()};
    LeaderElection election{client, "scheduler", "successor"};
    const std::optional<Leader> unnamed = election.leader();
    REQUIRE(unnamed);
    CHECK(unnamed->name.empty());
    CHECK(unnamed->token > 0);
    leader.kill();
    Term term = election.campaign_for(60s);
    REQUIRE(term);
    CHECK(term.token() > unnamed->token);
    // The announcement of the dead leader arrives late, and is void.
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }));
    CHECK(election.leader()->name == "successor");
    CHECK(term.is_leader());
    CHECK_FALSE(term.resign());
}

TEST_CASE("fault: leader killed while it resigns: the next one leads after its lease at the latest") {
    FaultyPath path{true};
    load_election_scripts(path.redis);
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    ChildProcess leader = spawn_self("fault: leader", {path.url(), dir.file("shared")});
    REQUIRE(eventually([&] { return shared->leading == 1; }, 30s));
    path.proxy.hold_next_requests(1, fenced_release_digest);
    shared->resigning = 1;
    REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }, 30s));
    leader.kill();
    const Stopwatch watch;
    Client client{path.server.url(), unhurried()};
    LeaderElection election{client, "scheduler"};
    Term term = election.campaign_for(60s);
    REQUIRE(term);
    CHECK(watch.within(short_lease + margin));
    // The release arrives late. It names a term that is over.
    const auto scripts = path.redis.script_calls();
    path.proxy.release();
    REQUIRE(eventually([&] { return path.redis.script_calls() > scripts; }));
    CHECK(election.leader()->token == term.token());
    CHECK_FALSE(term.resign());
}

TEST_CASE("fault: leader frozen beyond its lease: it is not the leader when it goes on, and campaigns again") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    const HistoryFile history{dir.file("history")};
    ChildProcess frozen = spawn_self("fault: frozen leader", {server.url(), dir.file("shared"), dir.file("history")});
    REQUIRE(eventually([&] { return shared->leading == 1 || !frozen.running(); }, 30s));
    if (!frozen.running()) FAIL("the leader gave up with " << frozen.wait()->code);
    Client client{server.url(), unhurried()};
    LeaderElection election{client, "scheduler"};
    frozen.stop();
    const Stopwatch watch;
    Term term = election.campaign_for(30s);
    REQUIRE(term);
    Interval mine{2, monotonic_ns(), 0};
    REQUIRE(eventually([&] { return watch.elapsed() > short_lease + 100ms; }, 30s));
    frozen.cont();
    REQUIRE(eventually([&] { return shared->resumed == 1 || !frozen.running(); }, 30s));
    CHECK(term.is_leader());
    mine.until = monotonic_ns();
    history.append(mine);
    CHECK_FALSE(term.resign());
    const auto status = frozen.wait(30s);
    REQUIRE(status);
    CHECK(status->code == 0);
    CHECK(history.read().size() == 3);
    CHECK_FALSE(find_overlap(history.read()));
}

TEST_CASE("fault: reply or request of an announcement lost: the leader has its name all the same") {
    for (const bool reply : {true, false}) {
        CAPTURE(reply);
        FaultyPath path;
        load_election_scripts(path.redis);
        Client client{path.url(), unhurried()};
        LeaderElection election{client, "scheduler", "left"};
        if (reply)
            path.proxy.drop_next_replies(1, store_digest);
        else
            path.proxy.drop_next_requests(1, store_digest);
        Term term = election.campaign();
        CHECK(path.proxy.counts().dropped == 1);
        CHECK(term.is_leader());
        CHECK(election.leader()->name == "left");
        CHECK(path.redis.hgetall("redlatch_leader:{scheduler}").at("value") == "left");
        CHECK_FALSE(term.resign());
        CHECK_FALSE(path.redis.exists("scheduler"));
    }
}

TEST_CASE("fault: reply of a resignation lost: the term has ended, and the leader is told so") {
    FaultyPath path;
    load_election_scripts(path.redis);
    Client client{path.url(), unhurried()}, other{path.server.url(), unhurried()};
    LeaderElection left{client, "scheduler", "left"}, right{other, "scheduler", "right"};
    Term term = left.campaign();
    path.proxy.drop_next_replies(1, fenced_release_digest);
    const std::error_code ec = term.resign(30s);
    CHECK((!ec || ec == errc::unreachable));
    CHECK(path.proxy.counts().dropped == 1);
    Term next = right.campaign_for(20s);
    REQUIRE(next);
    CHECK(right.leader()->name == "right");
    CHECK_FALSE(next.resign());
}

// The work ends because the stop is requested, and the server does not reply: the leader waits for it for a time of its
// own, and no longer.
TEST_CASE("fault: server silent at a resignation: it takes as long as it may, and not for ever") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    LeaderElection election{client, "scheduler"};
    std::optional<Term> term{election.campaign()};
    path.proxy.blackhole(true);
    const Stopwatch watch;
    CHECK(term->resign(200ms) == errc::unreachable);
    CHECK(watch.elapsed() >= 200ms);
    CHECK(watch.within(200ms + late));
    CHECK_FALSE(*term);
    path.proxy.blackhole(false);
    path.proxy.kill_all();
    CHECK(eventually([&] { return !path.redis.exists("scheduler"); }, 20s));
}

TEST_CASE("fault: server restarted without its data: the leader is told, and campaigns again with a greater token") {
    RedisServer server;
    Client client{server.url(), unhurried(short_lease)};
    LeaderElection election{client, "scheduler", "left"};
    std::atomic<int> terms{0};
    std::vector<std::int64_t> tokens;
    auto leading = start([&] {
        return election.lead([&](const std::stop_token& ending, const Term& term) {
            tokens.push_back(term.token());
            if (++terms == 2) return;
            eventually([&] { return ending.stop_requested(); }, 30s);
        });
    });
    REQUIRE(eventually([&] { return terms == 1; }, 20s));
    server.restart();
    REQUIRE(ready(leading, 60s));
    CHECK(leading.get());
    REQUIRE(tokens.size() == 2);
    CHECK(tokens[1] > tokens[0]);
}

TEST_CASE("fault: server restarted with its data: the leader leads on, and observers see no change") {
    RedisServer server{{.appendonly = true}};
    Client client{server.url(), unhurried(patient(9000ms))}, other{server.url(), unhurried()};
    LeaderElection left{client, "scheduler", "left"}, right{other, "scheduler"};
    Term term = left.campaign();
    std::optional<Leader> seen = right.leader();
    auto observing = start([&] { return right.wait_change_for(60s, seen); });
    REQUIRE(eventually([&] { return other.stats().waiting == 1; }, 10s));
    server.kill();
    server.restart();
    const auto renewals = client.stats().renewals;
    REQUIRE(eventually([&] { return client.stats().renewals > renewals; }, 30s));
    CHECK(term.is_leader());
    CHECK_FALSE(ready(observing, 0ms));
    CHECK_FALSE(term.resign(30s));
    REQUIRE(ready(observing, 30s));
    CHECK(observing.get());
    CHECK_FALSE(seen);
}

TEST_CASE("fault: no server for longer than unreachable_timeout: lead() goes on, and leads when it is back") {
    RedisServer server;
    ClientOptions options = unhurried();
    options.unreachable_timeout = 200ms;
    options.command_timeout = 200ms;
    Client client{server.url(), options};
    LeaderElection election{client, "scheduler"};
    server.kill();
    std::error_code ec;
    CHECK_FALSE(election.campaign(ec));
    CHECK(ec == errc::unreachable);
    std::stop_source stop;
    CHECK(ready(start([&] {
                    stop.request_stop();
                    return true;
                }),
                10s));
    CHECK_FALSE(election.lead([](const std::stop_token&) {}, stop.get_token()));
    std::atomic<int> terms{0};
    auto leading = start([&] { return election.lead([&](const std::stop_token&) { ++terms; }); });
    CHECK_FALSE(ready(leading, 600ms));
    server.restart();
    REQUIRE(ready(leading, 60s));
    CHECK(leading.get());
    CHECK(terms == 1);
}
