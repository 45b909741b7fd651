// SPDX-License-Identifier: MIT
// ctest: timeout=300 long
// A client of a real Redis Cluster: slots, redirections, both kinds of channels. tests/faults/cluster.cpp covers
// failovers.
#include <array>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "faults/fault_kit.hpp"
#include "support/cluster_servers.hpp"
#include "support/grants.hpp"
#include "support/internals.hpp"
#include "support/scripted_server.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

constexpr auto soon = 20s;

// One cluster for all test cases, which leave it intact. It has no failover, however busy the machine is.
ClusterServers& cluster() {
    static ClusterServers servers{{.node_timeout = 30s}};
    return servers;
}

RedisServer& another_than(const RedisServer& node) {
    return &node == &cluster().node(0) ? cluster().node(1) : cluster().node(0);
}

constexpr std::array both_kinds{PubSub::sharded, PubSub::classic};

ClientOptions with(PubSub pubsub) {
    ClientOptions options;
    options.pubsub = pubsub;
    return options;
}

// Returns the sum over all nodes.
long long listeners_of(const std::string& channel, PubSub pubsub = PubSub::sharded) {
    long long sum = 0;
    for (std::size_t i = 0; i < cluster().size(); ++i)
        sum += RawRedis{cluster().node(i)}.lock_listeners(channel, pubsub == PubSub::sharded);
    return sum;
}

bool is_listened_to(const std::string& channel, PubSub pubsub = PubSub::sharded) {
    return eventually([&] { return listeners_of(channel, pubsub) == 1; }, soon);
}

// Each thread acquires and releases one lock repeatedly, with a client of its own. The counter inside is not atomic:
// two holders at a time would lose an increment, and see each other.
template <class L>
class Workers {
public:
    Workers(const std::string& url, const std::string& name, int threads, const ClientOptions& options) {
        for (int i = 0; i < threads; ++i) {
            clients_.push_back(std::make_unique<Client>(url, options));
            threads_.emplace_back([this, name, &client = *clients_.back()] { work(client, name); });
        }
    }
    ~Workers() { stop(); }

    void stop() {
        stopping_ = true;
        for (std::thread& thread : threads_)
            if (thread.joinable()) thread.join();
    }

    bool go_on(long long more) {
        const long long goal = done_ + more;
        return eventually([&] { return done_ >= goal; }, 60s);
    }

    // Valid after stop().
    bool exclusive() const { return !overlap_ && counted_ == done_ && errors_ == 0; }
    long long done() const { return done_; }

private:
    void work(Client& client, const std::string& name) {
        L lock{client, name};
        while (!stopping_) {
            try {
                lock.lock();
                if (inside_.exchange(true)) overlap_ = true;
                const long long before = counted_;
                std::this_thread::yield();
                counted_ = before + 1;
                inside_ = false;
                ++done_;
                lock.unlock();
            } catch (const std::exception& error) {
                ++errors_;
                MESSAGE(error.what());
            }
        }
    }

    std::vector<std::unique_ptr<Client>> clients_;
    std::vector<std::thread> threads_;
    std::atomic<bool> stopping_{false}, overlap_{false}, inside_{false};
    std::atomic<long long> done_{0};
    std::atomic<int> errors_{0};
    long long counted_ = 0;
};

// A cluster of one node whose replies the test determines.
struct ScriptedNode {
    using Handler = std::function<ScriptedReply(ScriptedNode&, const CommandWords&)>;

    explicit ScriptedNode(Handler handler) : handler_(std::move(handler)) {}

    std::string host() const { return "127.0.0.1:" + std::to_string(port()); }
    int port() const { return proxy.port(); }
    std::string url() const { return "redis-cluster://" + host(); }

    static std::string bulk(const std::string& text) {
        return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
    }
    static std::string all_slots_at(const std::string& host, int port) {
        return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n" + bulk(host) + ":" + std::to_string(port) + "\r\n";
    }
    std::string slots() const { return all_slots_at("127.0.0.1", port()); }

    std::atomic<int> scripts{0};
    std::atomic<int> questions{0};
    std::atomic<int> others{0};

private:
    ScriptedReply answer(const CommandWords& words) {
        if (words[0] == "CLUSTER")
            ++questions;
        else if (words[0] == "EVALSHA")
            ++scripts;
        else
            ++others;
        if (words[0] == "PUBSUB") return "*0\r\n";
        if (words[0] == "TIME") return time_told;
        return handler_(*this, words);
    }

    const Handler handler_;
    ScriptedServer server{[this](const CommandWords& words) { return answer(words); }};
    Proxy proxy{server.url(), true};
};

ClientOptions brief() {
    ClientOptions options = quick();
    options.unreachable_timeout = 1s;
    return options;
}

// Calls lock() without success until `least` queries of that kind have come, because a busy machine may leave one call
// no time. Returns the number of calls.
int calls_in_vain(RLock& lock, const std::atomic<int>& questions, int least) {
    int calls = 0;
    do {
        CHECK(code_of([&] { lock.lock(); }) == errc::unreachable);
    } while (++calls < 10 && questions < least);
    CHECK(questions >= least);
    return calls;
}

/// Waits for the lock in a new thread, which then releases it. The result is whether the hold was for two seconds, as a grant
/// is at first: one that was asked for is for thirty.
template <class L>
std::future<bool> start_visit(L& lock) {
    return start([&lock] {
        lock.lock();
        const bool is_offer = valid_until_of(lock) <= Clock::now() + 2s;
        lock.unlock();
        return is_offer;
    });
}

/// Returns true if a release of one client grants the lock to the other one, which queues. Gives a busy machine five tries,
/// because it may leave time to prolong the grant.
template <class L>
bool is_granted(L& mine, L& other, const Client& of_other, const std::string& name, PubSub pubsub) {
    for (int tries = 0; tries < 5; ++tries) {
        std::future<bool> visit;
        std::unique_lock held{mine};
        visit = start_visit(other);
        RawRedis redis{cluster().master_of(name)};
        REQUIRE(can_be_granted<L>(redis, of_other, name, pubsub == PubSub::sharded));
        commands_when_quiet(of_other);
        held.unlock();
        REQUIRE(ready(visit, soon));
        if (visit.get()) return true;
    }
    return false;
}

}  // namespace

TEST_CASE("key_slot() computes the same slot as the servers") {
    RawRedis redis{cluster().node(0)};
    std::mt19937 random{7};
    const std::string_view alphabet("ab{}:\0\xff ", 8);
    for (int round = 0; round < 2000; ++round) {
        std::string key;
        for (std::size_t size = random() % 12; size > 0; --size) key += alphabet[random() % alphabet.size()];
        CAPTURE(key);
        REQUIRE(redis.integer("CLUSTER", "KEYSLOT", key) == key_slot(key));
    }
}

/// Has each primitive wait at one client for another, with names in slots of all nodes.
void check_every_primitive(PubSub pubsub) {
    CAPTURE(pubsub == PubSub::sharded);
    Client one{cluster().url(), with(pubsub)}, two{cluster().url(), with(pubsub)};
    std::set<RedisServer*> used;
    for (const std::string name : {"x", "{tag}y", "y{tag}z", "orders", "k3", "k4"}) {
        CAPTURE(name);
        used.insert(&cluster().master_of(name));
        const auto check = [&](auto&& mine, auto&& other) {
            mine.lock();
            auto waiting = start([&] {
                other.lock();
                other.unlock();
            });
            auto watching = start([&] { return other.wait_release_for(1min); });
            CHECK(waiting.wait_for(5ms) == std::future_status::timeout);
            mine.unlock();
            CHECK(ready(waiting, soon));
            CHECK(ready(watching, soon));
        };
        check(RLock{one, name}, RLock{two, name});
        check(FairLock{one, name + "fair"}, FairLock{two, name + "fair"});
        check(FencedLock{one, name + "fenced"}, FencedLock{two, name + "fenced"});
        check(SpinLock{one, name + "spin"}, SpinLock{two, name + "spin"});
        check(Mutex{one, name + "mutex"}, Mutex{two, name + "mutex"});
        ReadWriteLock both{one, name + "both"}, same{two, name + "both"};
        check(both.write_lock(), same.read_lock());
        check(both.read_lock(), same.write_lock());
        Semaphore permits{one, name + "permits"}, few{two, name + "permits"};
        CHECK(permits.try_set_permits(1));
        permits.acquire();
        auto waiting = start([&] { few.acquire(); });
        CHECK(waiting.wait_for(5ms) == std::future_status::timeout);
        permits.release();
        CHECK(ready(waiting, soon));
        PermitExpirableSemaphore places{one, name + "places"}, rooms{two, name + "places"};
        CHECK(places.try_set_permits(1));
        const PermitId id = places.acquire();
        auto lodger = start([&] { rooms.release(rooms.acquire()); });
        CHECK(lodger.wait_for(5ms) == std::future_status::timeout);
        places.release(id);
        CHECK(ready(lodger, soon));
        permits.remove();
        places.remove();
        if (name.find('{') != std::string::npos) continue;
        CountDownLatch latch{one, name + "latch"}, gate{two, name + "latch"};
        CHECK(latch.try_set_count(1));
        auto guest = start([&] { gate.wait(); });
        CHECK(guest.wait_for(5ms) == std::future_status::timeout);
        latch.count_down();
        CHECK(ready(guest, soon));
    }
    CHECK(used.size() == 3);
    CHECK(one.stats().lost_holds == 0);
}

TEST_CASE("every primitive works in any slot, with tags of any form, and wakes waiters of other clients") {
    for (const PubSub pubsub : both_kinds) check_every_primitive(pubsub);
}

TEST_CASE("a latch whose channel would be in another slot than its key is refused before anything is sent") {
    Client client{cluster().url()};
    CHECK(code_of([&] { CountDownLatch{client, "{tag}latch"}; }) == errc::invalid_argument);
    CHECK(client.stats().commands == 0);
}

TEST_CASE("a MultiLock has members in several slots, all of them or none") {
    Client client{cluster().url()}, other{cluster().url()};
    RLock a{client, cluster().key_on(cluster().node(0), "a")}, b{client, cluster().key_on(cluster().node(1), "b")},
        c{client, cluster().key_on(cluster().node(2), "c")};
    MultiLock all{a, b, c};
    RLock only{other, std::string(b.name())};
    all.lock();
    CHECK_FALSE(only.try_lock());
    all.unlock();
    CHECK(only.try_lock());
    CHECK_FALSE(all.try_lock());
    // Members that a slow node grants after the refusal are released in the background.
    CHECK(eventually([&] { return !a.is_locked() && !c.is_locked(); }, soon));
    only.unlock();
}

TEST_CASE("holds in all slots are renewed, each at its own node") {
    ClientOptions options;
    options.watchdog_timeout = paced(3000ms);
    Client client{cluster().url(), options};
    std::vector<std::unique_ptr<RLock>> locks;
    for (int i = 0; i < 30; ++i) {
        locks.push_back(std::make_unique<RLock>(client, "renewed:" + std::to_string(i)));
        locks.back()->lock();
    }
    CHECK(eventually([&] { return client.stats().renewals >= 90; }, soon));
    for (const auto& lock : locks) CHECK(lock->is_held());
    CHECK(client.stats().lost_holds == 0);
    for (const auto& lock : locks) lock->unlock();
}

TEST_CASE("replicas of the granting node confirm a hold") {
    ClientOptions options;
    options.command_timeout = 20s;
    for (const unsigned replicas : {1U, all_replicas}) {
        options.require_replicas = replicas;
        Client client{cluster().url(), options};
        for (std::size_t i = 0; i < 3; ++i) {
            RLock lock{client, cluster().key_on(cluster().node(i), "confirmed")};
            lock.lock();
            RawRedis replica{cluster().node(i + 3)};
            replica.text("READONLY");
            CHECK(replica.exists(lock.name()));
            lock.unlock();
        }
    }
    options.require_replicas = 2;
    options.command_timeout = 1s;
    Client client{cluster().url(), options};
    RLock lock{client, "unconfirmed"};
    CHECK(code_of([&] { lock.lock(); }) == errc::not_replicated);
}

TEST_CASE("a slot that has moved: commands and subscriptions follow at once") {
    for (const PubSub pubsub : both_kinds) {
        CAPTURE(pubsub == PubSub::sharded);
        const bool sharded = pubsub == PubSub::sharded;
        Client client{cluster().url(), with(pubsub)}, other{cluster().url(), with(pubsub)};
        const std::string name = "moving";
        RLock lock{client, name}, wanted{other, name};
        lock.lock();
        auto waiting = start([&] {
            wanted.lock();
            wanted.unlock();
        });
        REQUIRE(is_listened_to(channel_of(name), pubsub));
        RedisServer& from = cluster().master_of(name);
        RedisServer& to = another_than(from);
        cluster().migrate(cluster().slot_of(name), to);
        // A node ends a sharded subscription by itself. Of a classic one the client learns with its next command; until
        // then messages reach it at any node.
        const auto listeners_at = [&](RedisServer& node) {
            return RawRedis{node}.lock_listeners(channel_of(name), sharded);
        };
        if (!sharded) CHECK_FALSE(RLock(other, name).try_lock());
        CHECK(eventually([&] { return listeners_at(to) == 1; }, soon));
        CHECK(waiting.wait_for(0s) == std::future_status::timeout);
        CHECK(lock.is_held());
        lock.unlock();
        CHECK(ready(waiting, soon));
        CHECK(eventually([&] { return listeners_at(from) == 0; }, soon));
        // A client that has the old slot map learns the new one from a redirection.
        cluster().migrate(cluster().slot_of(name), from);
        lock.lock();
        lock.unlock();
        CHECK_FALSE(RawRedis{from}.exists(name));
        CHECK(client.stats().lost_holds == 0);
    }
}

TEST_CASE("classic channels: a waiter of a slot that has moved unnoticed gets the lock, and is granted the next one") {
    const ClientOptions classic = with(PubSub::classic);
    Client one{cluster().url(), classic}, two{cluster().url(), classic};
    const std::string name = "unnoticed";
    RLock mine{one, name}, other{two, name};
    mine.lock();
    auto waiting = start_visit(other);
    REQUIRE(is_listened_to(channel_of(name), PubSub::classic));
    RedisServer& from = cluster().master_of(name);
    RedisServer& to = another_than(from);
    cluster().migrate(cluster().slot_of(name), to);
    // The new node counts no listener, so it grants nothing. Its message reaches the waiter at the old one.
    mine.unlock();
    CHECK(ready(waiting, soon));
    CHECK(is_granted(mine, other, two, name, PubSub::classic));
    cluster().migrate(cluster().slot_of(name), from);
}

TEST_CASE_TEMPLATE("a slot moves back and forth under load: one holder at a time, and every client continues", L, RLock,
                   FencedLock, FairLock) {
    const std::string name = "busy";
    for (const PubSub pubsub : both_kinds) {
        CAPTURE(pubsub == PubSub::sharded);
        Workers<L> workers{cluster().url(), name, 4, with(pubsub)};
        REQUIRE(workers.go_on(50));
        RedisServer& home = cluster().master_of(name);
        for (int round = 0; round < 4; ++round) {
            RedisServer& to = &cluster().master_of(name) == &home ? another_than(home) : home;
            // While the slot is at two nodes, a script with several keys may have to wait.
            cluster().migrate(cluster().slot_of(name), to, [] { std::this_thread::sleep_for(20ms); });
            CHECK(workers.go_on(50));
        }
        workers.stop();
        CHECK(workers.exclusive());
    }
}

TEST_CASE("a slot at two nodes: new keys are requested from the new node, also after NOSCRIPT") {
    // NOSCRIPT consumes ASKING, so ASKING has to be sent again before the script's text.
    const std::string name = "between";
    RedisServer& from = cluster().master_of(name);
    RedisServer& to = another_than(from);
    Client client{cluster().url()};
    RLock fresh{client, "{between}fresh"}, held{client, name};
    Mutex plain{client, "{between}plain"};
    held.lock();
    cluster().begin_migration(cluster().slot_of(name), to);
    RawRedis target{to};
    target.text("SCRIPT", "FLUSH");
    REQUIRE(plain.try_lock());
    plain.unlock();
    const auto asked = target.command_calls()["asking"];
    CHECK(asked > 0);
    // A command with several keys, some of which have not moved yet, is refused until all have. It is retried after
    // pauses.
    auto taking = start([&] {
        fresh.lock();
        fresh.unlock();
    });
    CHECK(eventually([&] { return target.command_calls()["asking"] > asked; }, soon));
    while (cluster().move_keys(cluster().slot_of(name), from, to, 100) > 0) {
    }
    cluster().end_migration(cluster().slot_of(name), from, to);
    REQUIRE(ready(taking, soon));
    held.unlock();
    CHECK_FALSE(target.exists(name));
    cluster().migrate(cluster().slot_of(name), from);
}

TEST_CASE("classic channels: a message that any node publishes reaches the waiter") {
    Client client{cluster().url(), with(PubSub::classic)};
    for (std::size_t i = 0; i < 3; ++i) {
        const std::string name = "classic" + std::to_string(i);
        CAPTURE(name);
        // The holder is none of ours, so the waiter listens to the channel that Redisson uses, too.
        RawRedis redis{cluster().master_of(name)};
        redis.integer("HSET", name, "somebody:1", 1);
        redis.integer("PEXPIRE", name, 600'000);
        RLock lock{client, name};
        auto waiting = start([&] {
            lock.lock();
            lock.unlock();
        });
        REQUIRE(eventually([&] { return redis.list("PUBSUB", "NUMSUB", channel_of(name)).at(1) == "1"; }, soon));
        CHECK(listeners_of(channel_of(name), PubSub::sharded) == 0);
        redis.integer("DEL", name);
        RawRedis{cluster().node(i)}.integer("PUBLISH", channel_of(name), "0");
        CHECK(ready(waiting, soon));
    }
}

TEST_CASE_TEMPLATE("classic channels: who listens at another node hears of a grant, and gets turns", L, RLock,
                   ReadWriteLock) {
    const ClientOptions classic = with(PubSub::classic);
    Client one{cluster().url(), classic}, two{cluster().url(), classic};
    const std::string name = std::is_same_v<L, RLock> ? "overheard" : "overheard too";
    const std::string channel = std::is_same_v<L, RLock> ? channel_of(name) : "redisson_rwlock:{" + name + "}";
    const std::string places =
        std::string(std::is_same_v<L, RLock> ? "redlatch_lock_places" : "redlatch_rwlock_places") + ":{" + name + "}";
    RedisServer& home = cluster().master_of(name);
    RawRedis redis{home}, listener{another_than(home)};
    L mine{one, name}, other{two, name};
    mine.lock();
    listener.call("SUBSCRIBE", channel);
    std::atomic<bool> has_heard = false;  // its release would tell everybody, too
    auto waiting = start([&] {
        other.lock();
        eventually([&] { return has_heard.load(); }, 2 * soon);
        other.unlock();
    });
    REQUIRE(can_be_granted<L>(redis, two, name));
    commands_when_quiet(two);
    // The next release is plain.
    redis.integer("HSET", places, "streak", 8);
    mine.unlock();
    const auto heard = listener.receive_within(soon);
    has_heard = true;
    REQUIRE(heard);
    CHECK(heard->elements.at(2).string == (std::is_same_v<L, RLock> ? "0" : "1"));
    REQUIRE(ready(waiting, soon));
}

TEST_CASE_TEMPLATE("a release grants a lock to the client that queues", L, RLock, FencedLock, FairLock, ReadWriteLock) {
    // The names are at all nodes.
    for (std::size_t round = 0; round < 8; ++round) {
        const std::string name = "granted" + std::to_string(round % 4 + 1);
        const PubSub pubsub = both_kinds[round / 4];
        CAPTURE(name);
        CAPTURE(pubsub == PubSub::sharded);
        Client one{cluster().url(), with(pubsub)}, two{cluster().url(), with(pubsub)};
        L mine{one, name}, other{two, name};
        CHECK(is_granted(mine, other, two, name, pubsub));
    }
}

TEST_CASE("sharded channels: messages are exchanged with other clients of the shard") {
    Client client{cluster().url()};
    const std::string name = "shared";
    RawRedis redis{cluster().master_of(name)};
    redis.integer("HSET", name, "somebody:1", 1);
    redis.integer("PEXPIRE", name, 600'000);
    RLock lock{client, name};
    auto waiting = start([&] {
        lock.lock();
        lock.unlock();
    });
    // The holder is none of ours, so the waiter listens to the channel that Redisson uses, too.
    REQUIRE(eventually([&] { return redis.list("PUBSUB", "SHARDNUMSUB", channel_of(name)).at(1) == "1"; }, soon));
    redis.integer("DEL", name);
    CHECK(redis.integer("SPUBLISH", channel_of(name), "0") == 1);
    REQUIRE(ready(waiting, soon));
    RawRedis listener{cluster().master_of(name)};
    listener.call("SSUBSCRIBE", channel_of(name));
    lock.lock();
    lock.unlock();
    const auto heard = listener.receive_within(soon);
    REQUIRE(heard);
    CHECK(heard->elements.at(0).string == "smessage");
    CHECK(heard->elements.at(2).string == "0");
}

TEST_CASE("a forked child has its own connections") {
    Client client{cluster().url()};
    RLock lock{client, "forked"};
    lock.lock();
    auto child = ChildProcess::run([&] {
        RLock other{client, "child"};
        const bool refused = !lock.try_lock();
        other.lock();
        other.unlock();
        return refused ? 0 : 1;
    });
    const auto status = child.wait(soon);
    REQUIRE(status);
    CHECK(status->code == 0);
    CHECK(lock.is_held());
    lock.unlock();
}

TEST_CASE("the access rights of the guide are enough for every part, and a wrong password is reported at once") {
    for (std::size_t i = 0; i < cluster().size(); ++i)
        RawRedis{cluster().node(i)}.command({"ACL",           "SETUSER",  "app",       "on",
                                             ">hunter2",      "~*",       "&*",        "-@all",
                                             "+auth",         "+evalsha", "+eval",     "+hincrby",
                                             "+hexists",      "+hget",    "+hset",     "+hdel",
                                             "+pexpire",      "+pttl",    "+del",      "+set",
                                             "+get",          "+exists",  "+spublish", "+ssubscribe",
                                             "+sunsubscribe", "+time",    "+hkeys",    "+cluster|slots",
                                             "+asking"});
    const auto login = [](const std::string& who) { return "redis-cluster://" + who + "@" + cluster().hosts(); };
    Client client{login("app:hunter2")}, other{login("app:hunter2")};
    RLock lock{client, "limited"}, wanted{other, "limited"};
    lock.lock();
    auto waiting = start([&] {
        wanted.lock();
        wanted.unlock();
    });
    REQUIRE(is_listened_to(channel_of("limited")));
    lock.unlock();
    CHECK(ready(waiting, soon));
    Client stranger{login("app:swordfish")};
    RLock none{stranger, "limited"};
    CHECK(code_of([&] { none.lock(); }) == errc::rejected);
    Client single{"redis://127.0.0.1:" + std::to_string(cluster().port(0))};
    RLock misled{single, cluster().key_on(cluster().node(1), "misled")};
    CHECK(code_of([&] { misled.lock(); }) == errc::rejected);
}

TEST_CASE("a server that is not in cluster mode is rejected") {
    RedisServer server{{.tcp = true}};
    Client client{"redis-cluster://127.0.0.1:" + std::to_string(server.port()), quick()};
    RLock lock{client, "x"};
    CHECK(code_of([&] { lock.lock(); }) == errc::rejected);
}

TEST_CASE("nodes that redirect a command in circles: six tries, then pauses") {
    ScriptedNode node{[](ScriptedNode& self, const CommandWords& words) -> ScriptedReply {
        if (words[0] == "CLUSTER") return self.slots();
        return "-MOVED 1 127.0.0.1:" + std::to_string(self.port()) + "\r\n";
    }};
    Client client{node.url(), brief()};
    RLock lock{client, "x"};
    const int calls = calls_in_vain(lock, node.scripts, 6);
    CHECK(node.scripts <= 120 * calls);
    CHECK(node.questions >= 1);
    CHECK(node.questions <= 12 * calls);
}

TEST_CASE("a redirection to a host that is in no list of slots is not followed") {
    ScriptedNode bait{[](ScriptedNode&, const CommandWords&) -> ScriptedReply { return "+OK\r\n"; }};
    const std::string there = " 1 " + bait.host() + "\r\n";
    for (const std::string kind : {"-MOVED", "-ASK"}) {
        ScriptedNode node{[&](ScriptedNode& self, const CommandWords& words) -> ScriptedReply {
            if (words[0] == "CLUSTER") return self.slots();
            if (words[0] == "AUTH") return "+OK\r\n";
            return kind + there;
        }};
        Client client{"redis-cluster://app:hunter2@" + node.host(), brief()};
        RLock lock{client, "x"};
        const int calls = calls_in_vain(lock, node.scripts, 1);
        CHECK(node.scripts < 60 * calls);
    }
    CHECK(bait.scripts + bait.questions + bait.others == 0);
}

TEST_CASE("malformed lists of slots are requested again with pauses, and end as an unreachable server") {
    for (const std::string answer : {"*0\r\n", "+OK\r\n", "*1\r\n*3\r\n:0\r\n:99999\r\n*0\r\n"}) {
        CAPTURE(answer);
        ScriptedNode node{[&](ScriptedNode&, const CommandWords&) -> ScriptedReply { return answer; }};
        Client client{node.url(), brief()};
        RLock lock{client, "x"};
        const int calls = calls_in_vain(lock, node.questions, 2);
        CHECK(node.questions <= 12 * calls);
        CHECK(node.scripts == 0);
    }
}

// For example after a failover of one master: the other masters still have all their replicas.
TEST_CASE("the number of replicas that must confirm is that of the key's own master") {
    const auto half = [](int first, int last, const ScriptedNode& node) {
        return "*3\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(last) + "\r\n*2\r\n" +
               ScriptedNode::bulk("127.0.0.1") + ":" + std::to_string(node.port()) + "\r\n";
    };
    std::function<std::string()> slots;
    const auto with_replicas = [&](std::size_t count) {
        return [&slots, count](ScriptedNode&, const CommandWords& words) -> ScriptedReply {
            if (words[0] == "CLUSTER") return slots();
            if (words[0] == "WAIT") return ":" + std::to_string(count) + "\r\n";
            if (words[0] != "ROLE") return "$-1\r\n";
            std::string role = "*3\r\n" + ScriptedNode::bulk("master") + ":1\r\n*" + std::to_string(count) + "\r\n";
            for (std::size_t i = 0; i < count; ++i)
                role += "*3\r\n" + ScriptedNode::bulk("h") + ScriptedNode::bulk("1") + ScriptedNode::bulk("1");
            return role;
        };
    };
    ScriptedNode two{with_replicas(2)}, one{with_replicas(1)};
    slots = [&] { return "*2\r\n" + half(0, 8191, two) + half(8192, 16383, one); };
    ClientOptions options;
    options.require_replicas = all_replicas;
    Client client{"redis-cluster://" + two.host() + "," + one.host(), options};
    std::set<bool> tried;
    for (const std::string name : {"a", "b", "c", "d", "e", "f"}) {
        CAPTURE(name);
        tried.insert(key_slot(name) < 8192);
        RLock lock{client, name};
        CHECK(lock.try_lock());
    }
    CHECK(tried.size() == 2);
}
