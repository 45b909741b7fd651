// SPDX-License-Identifier: MIT
// ctest: timeout=600 long without=address
// Failovers by real sentinels: lost holds are reported, waiters continue, and the old master gets no more commands.
#include <atomic>
#include <type_traits>

#include "faults/fault_kit.hpp"
#include "support/scripted_server.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// An upper bound: a failover takes two to four seconds, but a sentinel that was held up waits for thirty.
constexpr auto failover = 120s;

// Leases longer than a failover, so that no hold ends by expiry.
ClientOptions steady() {
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    options.watchdog_timeout = 180s;
    options.unreachable_timeout = 180s;
    return options;
}

// Returns the number of connections to a server, without those of this test, of replication and of sentinels.
std::size_t clients_of(RedisServer& server) {
    std::istringstream lines{RawRedis{server}.text("CLIENT", "LIST")};
    std::size_t found = 0;
    for (std::string line; std::getline(lines, line);)
        if (line.find("name=sentinel-") == std::string::npos && line.find("cmd=client") == std::string::npos &&
            line.find("flags=S") == std::string::npos && line.find("flags=M") == std::string::npos)
            ++found;
    return found;
}

long long scripts_on(RedisServer& server) { return RawRedis{server}.script_calls(); }

// Opens a new connection each time: a server that is promoted closes all that it has.
bool holds_key(RedisServer& server, const char* key) { return RawRedis{server}.exists(key); }

long long listeners_on(RedisServer& server, const char* name) {
    RawRedis redis{server};
    return listeners(redis, name);
}

long long tracked_keys_on(RedisServer& server) {
    RawRedis redis{server};
    return tracked_keys(redis);
}

// A sentinel whose replies the test chooses, and which never publishes anything.
struct ScriptedSentinel {
    ScriptedSentinel(int first_port, int epoch) : port(first_port), epoch_(epoch) {}

    std::string host() const { return "127.0.0.1:" + std::to_string(proxy.port()); }

    std::atomic<int> port;
    std::atomic<int> asked{0};

private:
    static std::string bulk(const std::string& text) {
        return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
    }

    ScriptedReply answer(const CommandWords& words) {
        if (words[0] == "SUBSCRIBE")
            return "*3\r\n" + bulk("subscribe") + bulk(words[1]) + ":1\r\n*3\r\n" + bulk("subscribe") + bulk(words[2]) +
                   ":2\r\n";
        ++asked;
        if (words[1] == "MASTER") return "*2\r\n" + bulk("config-epoch") + bulk(std::to_string(epoch_));
        return "*2\r\n" + bulk("127.0.0.1") + bulk(std::to_string(port));
    }

    const int epoch_;
    ScriptedServer server{[this](const CommandWords& words) { return answer(words); }};
    Proxy proxy{server.url(), true};
};

}  // namespace

TEST_CASE("fault: sentinel reports a wrong master: the role that a server reports itself takes precedence") {
    Replicated setup;
    // The wrong sentinel claims to know of a later failover.
    ScriptedSentinel honest{setup.master().port(), 1}, liar{setup.replica().port(), 99};
    Client client{"redis-sentinel://" + honest.host() + "," + liar.host() + "/orders", steady()};
    RLock orders{client, "orders"};
    orders.lock();
    CHECK(liar.asked > 0);
    CHECK(holds_key(setup.master(), "orders"));
    orders.unlock();
    CHECK(client.stats().acquisitions == 1);
    // Also a port that does not listen, and one that does not speak the Redis protocol.
    for (const int port : {1, honest.asked > 0 ? liar.port.load() : 0}) {
        liar.port = port;
        Client another{"redis-sentinel://" + liar.host() + "," + honest.host() + "/orders", steady()};
        RLock again{another, "orders"};
        CHECK(again.try_lock_for(10s));
        again.unlock();
    }
}

TEST_CASE("fault: demoted master answers READONLY: the client follows the failover") {
    Replicated setup;
    ScriptedSentinel sentinel{setup.master().port(), 1};
    EventLog log;
    Client client{"redis-sentinel://" + sentinel.host() + "/orders", log.in(steady())};
    RLock orders{client, "orders"}, wanted{client, "wanted"};
    RawRedis old_one{setup.master()}, new_one{setup.replica()};
    old_one.integer("HSET", "wanted", "somebody:1", 1);
    old_one.integer("PEXPIRE", "wanted", 600'000);
    Client quiet{"redis-sentinel://" + sentinel.host() + "/orders", steady()};  // without a thread of its own
    RLock fourth{quiet, "fourth"};
    CHECK_FALSE(fourth.is_locked());
    orders.lock();
    REQUIRE(setup.confirmed_by(1));
    auto waiting = start([&] {
        wanted.lock();
        wanted.unlock();
    });
    REQUIRE(eventually([&] { return listeners_on(setup.master(), "wanted") >= 1; }, 10s));
    new_one.text("REPLICAOF", "NO", "ONE");
    // Its connections stay open, unlike after a failover by sentinels.
    old_one.text("REPLICAOF", "127.0.0.1", std::to_string(setup.replica().port()));
    sentinel.port = setup.replica().port();
    RLock third{client, "third"};
    third.lock();
    CHECK(RawRedis{setup.master()}.info("errorstats", "errorstat_READONLY").size() > 0);
    CHECK(holds_key(setup.replica(), "third"));
    third.unlock();
    CHECK(fourth.try_lock_for(10s));
    fourth.unlock();
    CHECK(eventually([&] { return log.count(Event::Kind::moved) == 1; }, 10s));
    // The subscription moves from the old master to the new one.
    CHECK(eventually([&] { return listeners_on(setup.replica(), "wanted") >= 1; }, 10s));
    CHECK(new_one.integer("DEL", "wanted") == 1);
    CHECK(new_one.integer("PUBLISH", "redisson_lock__channel:{wanted}", "0") == 1);
    CHECK(ready(waiting, 20s));
    CHECK(orders.is_held());
    orders.unlock();
    CHECK(log.count(Event::Kind::hold_lost) == 0);
}

TEST_CASE(
    "fault: master dies with the replica up to date: the hold survives on the new one, and the waiter gets the lock") {
    Sentinels3 setup;
    EventLog log;
    Client client{setup.url(), log.in(steady())}, other{setup.url(), steady()};
    RLock orders{client, "orders"}, wanted{other, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    auto waiting = start([&] {
        wanted.lock();
        wanted.unlock();
        return Clock::now();
    });
    REQUIRE(eventually([&] { return holds_key(setup.replica(), "orders"); }));
    REQUIRE(eventually([&] { return listeners_on(setup.master(), "orders") >= 1; }));
    CHECK(listeners_on(setup.replica(), "orders") == 0);
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    CHECK(eventually([&] { return listeners_on(setup.replica(), "orders") >= 1; }, 10s));
    CHECK(eventually([&] { return log.count(Event::Kind::moved) == 1; }, 10s));
    CHECK_FALSE(lost.stop_requested());
    CHECK(orders.is_held());
    CHECK(waiting.wait_for(0s) == std::future_status::timeout);
    orders.unlock();
    REQUIRE(ready(waiting, 10s));
    CHECK(eventually([&] { return !holds_key(setup.replica(), "orders"); }, 20s));
    CHECK(log.count(Event::Kind::hold_lost) == 0);
}

TEST_CASE("fault: master dies before the lock reaches the replica: the hold is reported lost at the new master") {
    Sentinels3 setup;
    EventLog log;
    Client client{setup.url(), log.in(steady())};
    RLock before{client, "before"};
    before.lock();
    REQUIRE(eventually([&] { return holds_key(setup.replica(), "before"); }));
    setup.cut_replication();
    RLock watched{client, "watched"}, leased{client, "leased"};
    PermitExpirableSemaphore slots{client, "slots"};
    watched.lock();
    leased.lock(Lease{300s});
    slots.try_set_permits(1);
    const PermitId permit = slots.acquire();
    const std::stop_token lost_watched = watched.lost(), lost_leased = leased.lost();
    setup.master().kill();
    CHECK_FALSE(holds_key(setup.replica(), "watched"));
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    CHECK(eventually([&] { return lost_watched.stop_requested() && lost_leased.stop_requested(); }, 10s));
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 3; }, 10s));
    CAPTURE(log.text());
    CHECK(before.is_held());
    CHECK_FALSE(slots.try_release(permit));
    std::error_code ec;
    watched.unlock(ec);
    CHECK(ec == errc::hold_lost);
    leased.unlock(ec);
    CHECK(ec == errc::hold_lost);
    before.unlock(ec);
    CHECK_FALSE(ec);
    CHECK_FALSE(holds_key(setup.replica(), "before"));
    CHECK(watched.try_lock_for(5s));
    watched.unlock();
}

TEST_CASE("fault: master dies right after a grant that its replica has confirmed: the hold survives on the new one") {
    Sentinels3 setup;
    EventLog log;
    ClientOptions options = log.in(steady());
    options.require_replicas = all_replicas;
    options.command_timeout = 4s;
    Client client{setup.url(), options};
    RLock confirmed{client, "confirmed"}, refused{client, "refused"};
    setup.cut_replication();
    CHECK(code_of([&] { refused.lock(); }) == errc::not_replicated);
    RawRedis{setup.master()}.command({"ACL", "SETUSER", "repl", "on", ">secret", "+psync", "+replconf", "+ping"});
    REQUIRE(setup.confirmed_by(1));
    confirmed.lock();
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    CHECK(eventually([&] { return log.count(Event::Kind::moved) == 1; }, 10s));
    CHECK(holds_key(setup.replica(), "confirmed"));
    CHECK_FALSE(holds_key(setup.replica(), "refused"));
    CHECK(confirmed.is_held());
    confirmed.unlock();
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    // The new master has no replica that could confirm anything.
    CHECK(code_of([&] { refused.lock(); }) == errc::not_replicated);
}

TEST_CASE("fault: frozen master comes back after the failover: it gets no commands, and no hold on it counts") {
    Sentinels3 setup;
    EventLog log;
    Client client{setup.url(), log.in(steady())};
    RLock orders{client, "orders"};
    orders.lock();
    REQUIRE(eventually([&] { return holds_key(setup.replica(), "orders"); }));
    RLock wanted{client, "orders"};
    auto waiting = start([&] {
        wanted.lock();
        wanted.unlock();
    });
    REQUIRE(eventually([&] { return listeners_on(setup.master(), "orders") >= 1; }));
    CHECK(clients_of(setup.master()) >= 2);
    // Frozen, its connections stay open, and its socket accepts what is sent.
    setup.master().stop();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    REQUIRE(eventually([&] { return listeners_on(setup.replica(), "orders") >= 1; }, 10s));
    CHECK(eventually([&] { return log.count(Event::Kind::moved) == 1; }, 10s));
    setup.master().cont();
    CHECK(eventually([&] { return clients_of(setup.master()) == 0; }, 10s));
    const auto scripts = scripts_on(setup.master());
    orders.unlock();
    REQUIRE(ready(waiting, 10s));
    CHECK(scripts_on(setup.master()) == scripts);
    CHECK(eventually([&] { return !holds_key(setup.replica(), "orders"); }, 20s));
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    // Apart from this test's own connections, whose end it may not have noticed yet.
    CHECK(eventually([&] { return clients_of(setup.master()) == 0; }, 10s));
}

TEST_CASE("fault: no sentinel is left: the known master stays in use, also after its connections end") {
    Sentinels3 setup{0};
    Client client{setup.url(), steady()};
    RLock orders{client, "orders"};
    orders.lock();
    for (SentinelProcess& one : setup.sentinels()) one.kill();
    orders.unlock();
    orders.lock();
    RawRedis redis{setup.master()};
    CHECK(redis.kill_clients("normal") > 0);
    orders.unlock();
    CHECK(eventually([&] { return !redis.exists("orders"); }, 20s));
    CHECK(client.stats().reconnects > 0);
    // A client that has known no master finds none, and reports that.
    ClientOptions options = quick();
    options.unreachable_timeout = 500ms;
    Client late_comer{setup.url(), options};
    RLock none{late_comer, "orders"};
    CHECK(code_of([&] { none.lock(); }) == errc::unreachable);
}

TEST_CASE("fault: a failover by Sentinel: the new master watches the key for which a Mutex or a SpinLock waits") {
    const auto check = []<class Lock>(std::type_identity<Lock>, bool is_planned) {
        constexpr SpinOptions hourly{.initial_delay = 1h, .max_delay = 1h};
        constexpr auto soon_enough = 8s;  // shorter than the pause after which a waiter tries although no news came
        Sentinels3 setup;
        Client peer{setup.url(), steady()}, client{setup.url(), steady()};
        Lock theirs{peer, "orders", hourly}, mine{client, "orders", hourly};
        theirs.lock();
        auto waiter = start([&] { return mine.lock(), mine.unlock(), true; });
        REQUIRE(eventually([&] { return tracked_keys_on(setup.master()) == 1; }, 20s));
        REQUIRE(setup.confirmed_by(1));
        if (is_planned)
            RawRedis{setup.sentinels().front().url()}.text("SENTINEL", "FAILOVER", "orders");
        else
            setup.master().kill();
        REQUIRE(setup.is_master_by(setup.replica(), failover));
        REQUIRE(eventually([&] { return tracked_keys_on(setup.replica()) == 1; }, 60s));
        CHECK_FALSE(ready(waiter, 50ms));
        theirs.unlock();
        CHECK(ready(waiter, soon_enough));
        CHECK(waiter.get());
    };
    SUBCASE("Mutex, the master dies") { check(std::type_identity<Mutex>(), false); }
    SUBCASE("Mutex, the old master goes on as a replica") { check(std::type_identity<Mutex>(), true); }
    SUBCASE("SpinLock, the master dies") { check(std::type_identity<SpinLock>(), false); }
    SUBCASE("SpinLock, the old master goes on as a replica") { check(std::type_identity<SpinLock>(), true); }
}
