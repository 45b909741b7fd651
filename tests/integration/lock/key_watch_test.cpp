// SPDX-License-Identifier: MIT
// ctest: long
// Waiting Mutexes and SpinLocks do not poll where the server can tell when the key changes (CLIENT TRACKING). Their pauses
// are an hour here, so nothing but that news wakes a waiter in time.
#include <algorithm>
#include <functional>
#include <sstream>
#include <type_traits>

#include "faults/fault_kit.hpp"
#include "support/cluster_servers.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

constexpr SpinOptions hourly{.initial_delay = 1h, .max_delay = 1h};
constexpr SpinOptions often{.initial_delay = 1ms, .max_delay = 20ms};
constexpr auto soon = 8s;  // shorter than the pause after which a waiter tries although no news came

// Waits until a waiter relies on the server.
bool is_watching(RawRedis& redis) {
    return eventually([&] { return tracked_keys(redis) == 1; }, 20s);
}

// Returns the ids of the connections that read the watched keys, or of those that get the news.
std::vector<std::string> connections(RawRedis& redis, bool readers) {
    std::vector<std::string> ids;
    std::istringstream lines{redis.text("CLIENT", "LIST")};
    for (std::string line; std::getline(lines, line);) {
        const auto flags = line.find(" flags=") + 7;
        if (line.substr(flags, line.find(' ', flags) - flags).find(readers ? 't' : 'P') == std::string::npos) continue;
        ids.push_back(line.substr(3, line.find(' ') - 3));
    }
    return ids;
}

// Returns how many commands clients have sent since the last reset, without those that tests ask with.
long long commands(RawRedis& redis) {
    long long sum = 0;
    for (const auto& [name, calls] : redis.command_calls()) sum += calls;
    return sum;
}

// A lock that another client holds, and a waiter of this kind.
template <class Lock>
struct Party {
    explicit Party(const std::string& url, const std::string& waiting_url, const std::string& name = "orders",
                   const ClientOptions& options = unhurried(), SpinOptions spin = hourly)
        : peer(url, options), client(waiting_url, options), theirs(peer, name, spin), mine(client, name, spin) {
        theirs.lock();
    }

    std::future<bool> wait() {
        const auto waiting = client.stats().waiting;
        auto waiter = start([this] {
            mine.lock();
            mine.unlock();
            return true;
        });
        REQUIRE(eventually([&] { return client.stats().waiting > waiting; }));
        return waiter;
    }

    Client peer, client;
    Lock theirs, mine;
};

// Runs a check with each kind of lock.
template <class Check>
void with_each_kind(Check check) {
    SUBCASE("Mutex") { check(std::type_identity<Mutex>()); }
    SUBCASE("SpinLock") { check(std::type_identity<SpinLock>()); }
}

}  // namespace

TEST_CASE("a release wakes a waiter, a thread and a coroutine, at once") {
    with_each_kind([]<class Lock>(std::type_identity<Lock>) {
        RedisServer server;
        RawRedis redis{server};
        Party<Lock> party{server.url(), server.url()};
        for (int round = 0; round < 3; ++round) {
            auto waiter = party.wait();
            REQUIRE(is_watching(redis));
            party.theirs.unlock();
            REQUIRE(ready(waiter, soon));
            party.theirs.lock();
        }
        auto later = party.mine.async_lock().future();
        REQUIRE(is_watching(redis));
        party.theirs.unlock();
        REQUIRE(ready(later, soon));
        CHECK_FALSE(later.get().unlock());
    });
}

TEST_CASE("the end of a lease, force_unlock() and a deleted key wake a waiter") {
    with_each_kind([]<class Lock>(std::type_identity<Lock>) {
        RedisServer server;
        RawRedis redis{server};
        Party<Lock> party{server.url(), server.url()};
        auto waiter = party.wait();
        REQUIRE(is_watching(redis));
        CHECK(redis.integer("DEL", "orders") == 1);
        REQUIRE(ready(waiter, soon));
        std::error_code lost;
        party.theirs.unlock(lost);

        party.theirs.lock();
        waiter = party.wait();
        REQUIRE(is_watching(redis));
        CHECK(party.theirs.force_unlock());
        REQUIRE(ready(waiter, soon));
        party.theirs.unlock(lost);

        // The lease may be over before the waiter has to wait.
        party.theirs.lock(Lease{paced(500ms)});
        waiter = start([&] { return party.mine.lock(), party.mine.unlock(), true; });
        REQUIRE(ready(waiter, soon));
        party.theirs.unlock(lost);

        party.theirs.lock();
        waiter = party.wait();
        REQUIRE(is_watching(redis));
        redis.text("FLUSHALL");
        REQUIRE(ready(waiter, soon));
    });
}

TEST_CASE("20 waiters of a process send nothing while they wait, and share one watched read") {
    with_each_kind([]<class Lock>(std::type_identity<Lock>) {
        RedisServer server;
        RawRedis redis{server};
        Party<Lock> party{server.url(), server.url(), "orders", unhurried(10min), often};
        std::vector<std::future<bool>> waiters;
        for (int i = 0; i < 20; ++i) waiters.push_back(party.wait());
        REQUIRE(is_watching(redis));
        CHECK(connections(redis, true).size() == 1);
        // What was under way when the key was watched has ended once nothing has come for a while.
        REQUIRE(eventually(
            [&] {
                redis.text("CONFIG", "RESETSTAT");
                return !ready(waiters.front(), 300ms) && commands(redis) == 0;
            },
            20s));
        redis.text("CONFIG", "RESETSTAT");
        CHECK_FALSE(ready(waiters.front(), 4s));
        CHECK(commands(redis) == 0);
        party.theirs.unlock();
        for (auto& waiter : waiters) REQUIRE(ready(waiter, 20s));
    });
}

TEST_CASE("a renewal of the holder costs the waiters one try and one watched read, and they go on waiting") {
    RedisServer server;
    RawRedis redis{server};
    Party<Mutex> party{server.url(), server.url(), "orders", unhurried(paced(6s))};
    auto waiter = party.wait();
    REQUIRE(is_watching(redis));
    const auto renewals = party.peer.stats().renewals;
    REQUIRE(eventually([&] { return party.peer.stats().renewals >= renewals + 3; }, 60s));
    REQUIRE(is_watching(redis));
    party.theirs.unlock();
    REQUIRE(ready(waiter, soon));
}

TEST_CASE(
    "the connection that gets the news, or the one that reads, is cut: the waiter tries, and the key is watched anew") {
    for (const bool readers : {false, true}) {
        CAPTURE(readers);
        RedisServer server;
        RawRedis redis{server};
        Party<Mutex> party{server.url(), server.url()};
        auto waiter = party.wait();
        REQUIRE(is_watching(redis));
        const auto cut = connections(redis, readers);
        REQUIRE(cut.size() == 1);
        const auto tracked = [&] { return redis.command_calls()["client|tracking"]; };
        const auto before = tracked();
        CHECK(redis.integer("CLIENT", "KILL", "ID", cut[0]) == 1);
        REQUIRE(eventually([&] { return tracked() > before && connections(redis, readers) != cut; }, soon));
        REQUIRE(eventually([&] { return connections(redis, readers).size() == 1 && tracked_keys(redis) == 1; }, 20s));
        party.theirs.unlock();
        REQUIRE(ready(waiter, soon));
    }
}

TEST_CASE("a release while the connection that gets the news is away wakes the waiter when it is back") {
    RedisServer server;
    RawRedis redis{server};
    Party<SpinLock> party{server.url(), server.url()};
    auto waiter = party.wait();
    REQUIRE(is_watching(redis));
    const std::string hearing = connections(redis, false).at(0);
    // The server does nothing else meanwhile.
    redis.call("MULTI");
    redis.call("CLIENT", "KILL", "ID", hearing);
    redis.call("DEL", "orders");
    CHECK(redis.call("EXEC").elements.size() == 2);
    REQUIRE(ready(waiter, soon));
    std::error_code lost;
    party.theirs.unlock(lost);
}

TEST_CASE("a restarted server watches the key again") {
    RedisServer server{{.appendonly = true}};
    Party<Mutex> party{server.url(), server.url()};
    auto waiter = party.wait();
    REQUIRE(is_watching(*std::make_unique<RawRedis>(server)));
    server.kill();
    server.restart();
    RawRedis redis{server};
    CHECK(redis.exists("orders"));
    REQUIRE(is_watching(redis));
    party.theirs.unlock();
    REQUIRE(ready(waiter, soon));
}

TEST_CASE("a user without one of the rights polls at the usual pace, and asks for it once") {
    for (const char* withheld : {"-client|tracking", "-client|caching", "-client|id", "resetchannels"}) {
        CAPTURE(std::string{withheld});
        RedisServer server;
        RawRedis redis{server};
        redis.text("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", withheld);
        Party<Mutex> party{server.url(), "unix://app:secret@" + server.socket_path(), "orders", unhurried(), often};
        auto waiter = party.wait();
        // It polls.
        const auto asked = party.client.stats().commands;
        REQUIRE(eventually([&] { return party.client.stats().commands > asked + 40; }, 20s));
        CHECK(tracked_keys(redis) == 0);
        const auto refused = [&] { return !redis.command({"ACL", "LOG"}).elements.empty(); };
        CHECK(eventually(refused));
        party.theirs.unlock();
        REQUIRE(ready(waiter, soon));
        // A later wait does not ask for it again. On a busy machine the first question may still be under way.
        CHECK(eventually([&] {
            redis.text("CONFIG", "RESETSTAT");
            redis.text("ACL", "LOG", "RESET");
            party.theirs.lock();
            waiter = party.wait();
            party.theirs.unlock();
            REQUIRE(ready(waiter, soon));
            const auto calls = redis.command_calls();
            return !calls.contains("client|tracking") && !calls.contains("client|id") && !refused();
        }));
    }
}

namespace {

// A transport on which the lock is released between the failed try and the read that would watch the key.
class ReleasesBeforeRead {
public:
    ReleasesBeforeRead(HiredisTransport inner, std::function<void()> release)
        : inner_(std::move(inner)), release_(std::move(release)) {}

    redlatch::Reply call(const Command& command, Instant deadline) { return inner_.call(command, deadline); }
    std::vector<redlatch::Reply> call_all(std::span<const Command> all, Instant deadline) {
        return inner_.call_all(all, deadline);
    }
    void post(const Command& command, Completion done) { inner_.post(command, std::move(done)); }
    void subscribe(const std::string& channel) { inner_.subscribe(channel); }
    void unsubscribe(const std::string& channel) { inner_.unsubscribe(channel); }
    void run(Listener& listener, Instant deadline) { inner_.run(listener, deadline); }
    void wake() { inner_.wake(); }
    std::uint32_t route(std::string_view key) const { return inner_.route(key); }
    std::string_view publish_command() const { return inner_.publish_command(); }
    ReleasesBeforeRead clone_after_fork() { return {inner_.clone_after_fork(), release_}; }
    bool watch(Listener& listener, Instant deadline, std::uint64_t seen) {
        return inner_.watch(listener, deadline, seen);
    }
    std::uint64_t interrupts() const { return inner_.interrupts(); }
    void interrupt_watch() { inner_.interrupt_watch(); }
    void track(const Command& read, Completion done) {
        release_();
        inner_.track(read, std::move(done));
    }
    bool watch_invalidations(Listener& listener, Instant deadline, std::uint64_t seen) {
        return inner_.watch_invalidations(listener, deadline, seen);
    }

private:
    HiredisTransport inner_;
    std::function<void()> release_;
};

static_assert(Tracks<ReleasesBeforeRead>);

}  // namespace

TEST_CASE("a lock that is free again when the key is read is tried at once") {
    RedisServer server;
    std::atomic<bool> releases{false};
    redlatch::Client client{ReleasesBeforeRead(HiredisTransport(Url::parse(server.url())),
                                               [&] {
                                                   if (releases.exchange(false))
                                                       RawRedis{server}.integer("DEL", "orders");
                                               }),
                            unhurried()};
    RawRedis redis{server};
    redis.text("SET", "orders", "theirs", "PX", "600000");
    Mutex orders{client, "orders", hourly};
    auto waiter = start([&] { return orders.lock(), orders.unlock(), true; });
    // That the connections are made wakes the waiters, too. After that a renewal leads to a read, and the server tells
    // nothing of what was before it.
    REQUIRE(is_watching(redis));
    releases = true;
    redis.integer("PEXPIRE", "orders", 500'000);
    REQUIRE(ready(waiter, soon));
    CHECK_FALSE(releases);
}

TEST_CASE("an RLock and a SpinLock wait for one lock, each in its own way") {
    RedisServer server;
    RawRedis redis{server};
    Client peer{server.url(), unhurried()}, client{server.url(), unhurried()};
    RLock theirs{peer, "orders"}, subscribing{client, "orders"};
    SpinLock watching{client, "orders", hourly};
    for (int round = 0; round < 3; ++round) {
        theirs.lock();
        auto first = start([&] { return watching.lock(), watching.unlock(), true; });
        REQUIRE(eventually([&] { return client.stats().waiting == 1; }));
        auto second = start([&] { return subscribing.lock(), subscribing.unlock(), true; });
        REQUIRE(
            eventually([&] { return client.stats().waiting == 2 && redis.lock_listeners(channel_of("orders")) >= 1; }));
        theirs.unlock();
        REQUIRE(ready(first, soon));
        REQUIRE(ready(second, soon));
    }
}

TEST_CASE("several mutexes and an RLock wait in one process, and each wakes for its own release") {
    RedisServer server;
    RawRedis redis{server};
    Client peer{server.url(), unhurried()}, client{server.url(), unhurried()};
    Mutex their_a{peer, "a"}, their_b{peer, "b"}, a{client, "a", hourly}, b{client, "b", hourly};
    RLock their_c{peer, "c"}, c{client, "c"};
    for (int round = 0; round < 3; ++round) {
        their_a.lock();
        their_b.lock();
        their_c.lock();
        auto at_a = start([&] { return a.lock(), a.unlock(), true; });
        auto at_b = start([&] { return b.lock(), b.unlock(), true; });
        auto at_c = start([&] { return c.lock(), c.unlock(), true; });
        REQUIRE(
            eventually([&] { return tracked_keys(redis) == 2 && redis.lock_listeners(channel_of("c")) == 1; }, 20s));
        their_b.unlock();
        REQUIRE(ready(at_b, soon));
        CHECK_FALSE(ready(at_a, 0ms));
        their_c.unlock();
        REQUIRE(ready(at_c, soon));
        CHECK_FALSE(ready(at_a, 0ms));
        their_a.unlock();
        REQUIRE(ready(at_a, soon));
    }
}

TEST_CASE("in a cluster the node of the key tells, also after its slot has moved") {
    ClusterServers cluster{{.node_timeout = 30s}};
    Client peer{cluster.url(), unhurried()}, client{cluster.url(), unhurried()};
    for (std::size_t i = 0; i < 2; ++i) {
        const std::string name = cluster.key_on(cluster.node(i), "orders");
        RawRedis redis{cluster.node(i)};
        Mutex theirs{peer, name}, mine{client, name, hourly};
        for (int round = 0; round < 2; ++round) {
            theirs.lock();
            auto waiter = start([&] { return mine.lock(), mine.unlock(), true; });
            REQUIRE(is_watching(redis));
            theirs.unlock();
            REQUIRE(ready(waiter, soon));
        }
        if (i > 0) continue;
        theirs.lock();
        // While the slot is on its way neither node can be watched. The next try that fails watches the new one.
        Mutex moving{client, name, {1s, 1s}};
        auto waiter = start([&] { return moving.lock(), moving.unlock(), true; });
        REQUIRE(is_watching(redis));
        RedisServer& to = cluster.node(1);
        RawRedis there{to};
        cluster.migrate(cluster.slot_of(name), to);
        REQUIRE(is_watching(there));
        CHECK_FALSE(ready(waiter, 0ms));
        theirs.unlock();
        REQUIRE(ready(waiter, soon));
    }
}
