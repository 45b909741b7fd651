// SPDX-License-Identifier: MIT
// ctest: long
// A server that answers, and refuses: busy, full, out of memory, without replicas, or with other access rights.
#include <atomic>
#include <string>
#include <thread>

#include "faults/fault_kit.hpp"
#include "faults/kinds_kit.hpp"
#include "support/scripted_server.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds margin = 50ms + late;

// Runs an endless script until end(). Meanwhile the server answers BUSY.
class BusyScript {
public:
    explicit BusyScript(const RedisServer& server) : killer_(server), runner_(server) {
        killer_.text("CONFIG", "SET", "busy-reply-threshold", 1);
        runner_.send({"EVAL", "while true do end", "0"});
        REQUIRE(eventually([&] { return killer_.call("PING").string.starts_with("BUSY"); }, 10s));
    }
    ~BusyScript() { end(); }

    void end() {
        if (ended_) return;
        ended_ = true;
        killer_.call("SCRIPT", "KILL");
        runner_.receive();
    }

private:
    RawRedis killer_;
    RawRedis runner_;
    bool ended_ = false;
};

// A refused call is repeated with longer and longer pauses. This time-out is so long that even a slow server answers
// the last try.
ClientOptions enduring() {
    ClientOptions options = quick();
    options.command_timeout = paced(2s);
    return options;
}

bool refused_with(RawRedis& redis, const std::string& code) {
    return redis.info("errorstats", "errorstat_" + code).starts_with("count=");
}

// Fills the memory and forbids it to grow.
void fill_memory(RawRedis& redis) {
    redis.text("CONFIG", "SET", "maxmemory-policy", "noeviction");
    redis.text("SET", "ballast", std::string(1 << 20, 'x'));
    redis.text("CONFIG", "SET", "maxmemory", 1 << 20);
    REQUIRE(redis.call("SET", "more", "x").string.starts_with("OOM"));
}

}  // namespace

TEST_CASE("fault: server busy with a foreign script: try_lock() is refused and lock() waits") {
    RedisServer server;
    const ClientOptions options = enduring();
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    CHECK_FALSE(orders.is_locked());
    BusyScript script{server};
    Stopwatch watch;
    CHECK(refusal_of([&] { return orders.try_lock(); }, watch) == errc::overloaded);
    CHECK(watch.within(options.command_timeout + margin));
    auto locking = start([&] {
        RLock same_orders{client, "orders"};
        const std::error_code ec = code_of([&] { same_orders.lock(); });
        if (!ec) same_orders.unlock();
        return ec;
    });
    const auto resends = client.stats().resends;
    CHECK(eventually([&] { return client.stats().resends > resends; }));
    script.end();
    CHECK(ready(locking, 5s));
    CHECK_FALSE(locking.get());
    RawRedis redis{server};
    CHECK(refused_with(redis, "BUSY"));
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("one try is one try: a server that refuses for the moment ends try_lock() of any kind at once") {
    const struct {
        std::string text;
        errc code;
        bool everything;  // or only what reads or writes data
    } rows[] = {{"BUSY Redis is busy running a script.", errc::overloaded, true},
                {"OOM command not allowed when used memory > 'maxmemory'.", errc::overloaded, false},
                {"READONLY You can't write against a read only replica.", errc::unreachable, false},
                {"LOADING Redis is loading the dataset in memory", errc::unreachable, false}};
    // Much shorter than what a call that goes on trying takes.
    ClientOptions options = unhurried();
    options.command_timeout = patient(3s);
    for (const auto& row : rows) {
        CAPTURE(row.text);
        ScriptedServer server{[&row](const CommandWords& command) -> ScriptedReply {
            if (!row.everything && command[0] == "TIME") return time_told;
            if (!row.everything && command[0] == "INFO") return "$27\r\nuptime_in_seconds:1000000\r\n\r\n";
            return "-" + row.text + "\r\n";
        }};
        Client client{server.url(), options};
        std::vector<AnyKind> kinds = kinds_of(client, "orders");
        kinds.push_back(red_lock_of(server.url(), options, "orders"));
        for (const AnyKind& kind : kinds) {
            CAPTURE(kind.kind);
            bool at_once = false;
            for (int tries = 0; tries < 2 && !at_once; ++tries) {
                const Stopwatch watch;
                CHECK(code_of([&] { return kind.try_once(); }) == row.code);
                at_once = watch.within(patient(1000ms));
            }
            CHECK(at_once);
        }
    }
}

TEST_CASE("a busy server: a hold survives, and a release is delivered afterwards") {
    RedisServer server;
    EventLog log;
    ClientOptions options = log.in(enduring());
    options.watchdog_timeout = patient(10s);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    RLock given_back{client, "given back"};
    RawRedis redis{server};
    orders.lock();
    std::error_code ec;
    for (int tries = 0; tries < most_tries && ec != errc::overloaded; ++tries) {
        given_back.lock();
        {
            const BusyScript script{server};
            given_back.unlock(ec);
            CHECK(is_not_delivered(ec));
        }
        CHECK(eventually([&] { return !redis.exists("given back"); }));
    }
    CHECK(ec == errc::overloaded);
    CHECK(orders.is_held());
    CHECK_FALSE(orders.lost().stop_requested());
    orders.unlock();
    CHECK(refused_with(redis, "BUSY"));
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    CHECK(log.count(Event::Kind::unlock_not_delivered) == 0);
}

// The subscriber connection comes back while the server answers BUSY to every command, SUBSCRIBE included. That passes,
// and must not fail the waiter.
TEST_CASE("subscription refused for the moment: the waiter does not fail") {
    FaultyPath path;
    Client other{path.server.url(), unhurried()};
    RLock held{other, "orders"};
    held.lock(Lease{60s});
    ClientOptions options = quick();
    options.unreachable_timeout = 30s;
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    auto waiting = start([&] {
        const std::error_code ec = code_of([&] { orders.lock(); });
        if (!ec) orders.unlock();
        return ec;
    });
    REQUIRE(eventually([&] { return listeners(path.redis, "orders") == 1; }));
    {
        BusyScript script{path.server};
        const auto accepted = path.proxy.counts().accepted;
        const auto told = path.proxy.counts().bytes_to_client;
        path.proxy.kill_all();
        REQUIRE(eventually([&] { return path.proxy.counts().accepted > accepted; }));
        REQUIRE(eventually([&] { return path.proxy.counts().bytes_to_client >= told + 80; }));  // "-BUSY Redis is …"
        CHECK_FALSE(ready(waiting, 50ms));
    }
    const std::string subscriptions = path.redis.info("commandstats", "cmdstat_subscribe");
    CHECK(subscriptions.find("rejected_calls=") != std::string::npos);
    CHECK(subscriptions.find("rejected_calls=0") == std::string::npos);
    held.unlock();
    CHECK(ready(waiting, 5s));
    CHECK(waiting.get() == std::error_code{});
}

TEST_CASE("fault: server full (maxclients): try_lock() fails in time, lock() waits for a free connection") {
    RedisServer server;
    RawRedis redis{server};
    // The connection that checked whether the server is up may not be gone yet.
    REQUIRE(eventually([&] { return redis.connected_clients() == 0; }));
    redis.text("CONFIG", "SET", "maxclients", 1);
    Client client{server.url(), quick()};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    const std::error_code ec = code_of([&] { return orders.try_lock(); });
    // The code depends on whether the refusal or the end of the connection is noticed first.
    CHECK((ec == errc::overloaded || ec == errc::unreachable));
    CHECK(watch.within(command_timeout + margin));
    auto locking = start([&] {
        const std::error_code failed = code_of([&] { orders.lock(); });
        if (!failed) orders.unlock();
        return failed;
    });
    const auto resends = client.stats().resends;
    CHECK(eventually([&] { return client.stats().resends > resends; }));
    CHECK(std::stoll(redis.info("stats", "rejected_connections")) > 0);
    redis.text("CONFIG", "SET", "maxclients", 1000);
    CHECK(ready(locking, unreachable_timeout));
    CHECK(locking.get() == std::error_code{});
    // The client waits between attempts.
    CHECK(std::stoll(redis.info("stats", "rejected_connections")) < 500);
}

TEST_CASE("no free connection for the subscriptions: the waiter does not fail") {
    RedisServer server;
    RawRedis redis{server};
    Client other{server.url(), quick()};
    RLock held{other, "orders"};
    const Lease lease{paced(4s)};
    held.lock(lease);
    Client client{server.url(), quick()};
    std::atomic<bool> connected{false};
    std::atomic<bool> full{false};
    auto waiting = start([&] {
        RLock orders{client, "orders"};
        orders.is_locked();  // this thread's connection exists now
        connected = true;
        eventually([&] { return full.load(); });
        const std::error_code ec = code_of([&] { orders.lock(); });
        if (!ec) orders.unlock();
        return ec;
    });
    REQUIRE(eventually([&] { return connected.load(); }));
    redis.text("CONFIG", "SET", "maxclients", redis.connected_clients() + 1);
    full = true;
    REQUIRE(eventually([&] { return std::stoll(redis.info("stats", "rejected_connections")) > 0; }));
    // Without messages it waits until the lease ends.
    CHECK(ready(waiting, lease.length() + margin));
    CHECK(waiting.get() == std::error_code{});
    std::error_code ec;
    held.unlock(ec);
}

TEST_CASE("fault: server out of memory: acquires are refused; renewals, releases and hand-overs succeed") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    ClientOptions options = log.in(enduring());
    options.watchdog_timeout = paced(9s);
    Client client{server.url(), options};
    RLock full{client, "full"};
    RLock partly{client, "partly"};
    RLock passed{client, "passed"};
    full.lock();
    partly.lock();
    partly.lock();
    partly.lock();
    passed.lock();
    auto successor = start([&] {
        std::error_code ec;
        if (!passed.try_lock_for(60s, ec)) return false;
        passed.unlock(ec);
        return !ec;
    });
    REQUIRE(eventually([&] { return listeners(redis, "passed") == 1; }));
    fill_memory(redis);

    RLock fresh{client, "fresh"};
    CHECK(refusal_of([&] { return fresh.try_lock(); }) == errc::overloaded);
    CHECK_FALSE(redis.exists("fresh"));
    CHECK(refusal_of([&] { return partly.try_lock(); }) == errc::overloaded);

    const auto renewals = client.stats().renewals;
    CHECK(eventually([&] { return client.stats().renewals >= renewals + 3; }, 20s));
    std::error_code ec;
    full.unlock(ec);
    CHECK_FALSE(ec);
    CHECK_FALSE(redis.exists("full"));
    partly.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(hold_counts(redis, "partly") == std::vector<std::string>{"2"});
    partly.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(hold_counts(redis, "partly") == std::vector<std::string>{"1"});
    passed.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(eventually([&] { return client.stats().handoffs == 1; }));
    CHECK(successor.get());
    CHECK(redis.call("SET", "more", "x").string.starts_with("OOM"));
    CHECK(log.count(Event::Kind::hold_lost) == 0);

    redis.text("CONFIG", "SET", "maxmemory", 0);
    CHECK(fresh.try_lock());
    fresh.unlock();
    partly.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(eventually([&] { return redis.keys() == std::vector<std::string>{"ballast"}; }, 20s));
}

TEST_CASE("server out of memory: a resent release succeeds, too") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    orders.lock();
    fill_memory(path.redis);
    path.proxy.drop_next_replies(1, release_digest);
    std::error_code ec;
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(path.proxy.counts().dropped == 1);
    CHECK_FALSE(path.redis.exists("orders"));
}

TEST_CASE("not enough replicas: lock() waits, and continues when they are there") {
    RedisServer server;
    RawRedis redis{server};
    redis.text("CONFIG", "SET", "min-replicas-to-write", 1);
    Client client{server.url(), enduring()};
    RLock orders{client, "orders"};
    CHECK(refusal_of([&] { return orders.try_lock(); }) == errc::overloaded);
    auto locking = start([&] {
        const std::error_code ec = code_of([&] { orders.lock(); });
        if (!ec) orders.unlock();
        return ec;
    });
    const auto resends = client.stats().resends;
    CHECK(eventually([&] { return client.stats().resends > resends; }));
    redis.text("CONFIG", "SET", "min-replicas-to-write", 0);
    CHECK(ready(locking, 5s));
    CHECK(locking.get() == std::error_code{});
    CHECK(refused_with(redis, "NOREPLICAS"));
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("fault: not enough replicas (NOREPLICAS): a release continues in the background until it is delivered") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    ClientOptions options = log.in(enduring());
    options.watchdog_timeout = patient(20s);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    std::error_code ec;
    for (int tries = 0; tries < most_tries && ec != errc::overloaded; ++tries) {
        orders.lock();
        redis.text("CONFIG", "SET", "min-replicas-to-write", 1);
        const Stopwatch watch;
        orders.unlock(ec);
        CHECK(is_not_delivered(ec));
        CHECK(watch.within(options.command_timeout + margin));
        CHECK(redis.exists("orders"));
        CHECK(refused_with(redis, "NOREPLICAS"));
        redis.text("CONFIG", "SET", "min-replicas-to-write", 0);
        CHECK(eventually([&] { return !redis.exists("orders"); }, patient(8s)));
    }
    CHECK(ec == errc::overloaded);
    CHECK(log.count(Event::Kind::unlock_not_delivered) == 0);
    CHECK(orders.try_lock_for(5s));
    orders.unlock();
}

TEST_CASE("not enough replicas: the end of a guard does not throw, and is finally reported as not delivered") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    ClientOptions options = log.in(quick());
    options.watchdog_timeout = paced(4s);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    Stopwatch watch;
    {
        const std::lock_guard guard{orders};
        redis.text("CONFIG", "SET", "min-replicas-to-write", 1);
        watch.restart();
    }
    CHECK(watch.within(command_timeout + margin));
    CHECK(eventually([&] { return log.count(Event::Kind::unlock_not_delivered) == 1; },
                     options.watchdog_timeout + margin));
    // An expired key is gone for all readers, although no replica was informed.
    CHECK(eventually([&] { return !redis.exists("orders"); }, options.watchdog_timeout + margin));
}

TEST_CASE("a partial release that was refused: the next one makes up for it") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options = enduring();
    options.watchdog_timeout = patient(20s);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    std::error_code refused;
    for (int tries = 0; tries < most_tries && refused != errc::overloaded; ++tries) {
        for (int i = 0; i < 3; ++i) orders.lock();
        redis.text("CONFIG", "SET", "min-replicas-to-write", 1);
        orders.unlock(refused);
        CHECK(is_not_delivered(refused));
        CHECK(hold_counts(redis, "orders") == std::vector<std::string>{"3"});
        redis.text("CONFIG", "SET", "min-replicas-to-write", 0);
        std::error_code ec;
        orders.unlock(ec);
        CHECK_FALSE(ec);
        CHECK(hold_counts(redis, "orders") == std::vector<std::string>{"1"});
        orders.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(redis.exists("orders"));
    }
    CHECK(refused == errc::overloaded);
}

TEST_CASE("fault: user deleted: the hold is lost in time, new calls are rejected at once, no password is disclosed") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    const auto set_user = [&](const std::string& password) {
        redis.text("ACL", "SETUSER", "seller", "reset", "on", ">" + password, "~*", "&*", "+@all");
    };
    set_user("geheim-1");
    EventLog log;
    Client client{"redis://seller:geheim-1@127.0.0.1:" + std::to_string(server.port()),
                  log.in(unhurried(watchdog_timeout))};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    const auto valid_until = orders.valid_until();
    CHECK(redis.integer("ACL", "DELUSER", "seller") == 1);

    start([&] {
        RLock fresh{client, "fresh"};
        const Stopwatch watch;
        try {
            fresh.lock();
            FAIL("held without access");
        } catch (const Error& error) {
            CHECK(error.code() == errc::rejected);
            CHECK(std::string{error.what()}.find("geheim") == std::string::npos);
        }
        CHECK(watch.within(margin));
    }).get();
    CHECK(eventually([&] { return lost.stop_requested(); }, watchdog_timeout + margin));
    // A renewal before that moves it by one period at most.
    CHECK(std::chrono::steady_clock::now() < valid_until + watchdog_timeout / 3 + late);
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);

    set_user("geheim-2");
    CHECK(start([&] { return code_of([&] { orders.lock(); }); }).get() == errc::rejected);
    set_user("geheim-1");
    // During the back-off, each attempt may end with the earlier refusal.
    CHECK(eventually([&] { return orders.try_lock_for(1s, ec); }, 20s));
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(log.text().find("geheim") == std::string::npos);
}

TEST_CASE("fault: password changed: only new connections are affected") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    redis.text("ACL", "SETUSER", "seller", "reset", "on", ">old", "~*", "&*", "+@all");
    Client client{"redis://seller:old@127.0.0.1:" + std::to_string(server.port()), unhurried()};
    RLock orders{client, "orders"};
    orders.lock();
    redis.text("ACL", "SETUSER", "seller", "resetpass", ">new");
    std::error_code ec;
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(redis.kill_clients("normal") > 0);
    const Stopwatch watch;
    CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
    CHECK(watch.within(margin));
    redis.text("ACL", "SETUSER", "seller", ">old");
    CHECK(eventually([&] { return orders.try_lock_for(1s, ec); }, 20s));
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("fault: password changed and changed back: a release is reported as rejected, and delivered all the same") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    redis.text("ACL", "SETUSER", "seller", "reset", "on", ">old", "~*", "&*", "+@all");
    Client client{"redis://seller:old@127.0.0.1:" + std::to_string(server.port()), unhurried()};
    RLock orders{client, "orders"};
    Semaphore seats{client, "seats"};
    orders.lock();
    REQUIRE(seats.try_set_permits(1));
    seats.acquire();
    redis.text("ACL", "SETUSER", "seller", "resetpass", ">new");
    CHECK(redis.kill_clients("normal") > 0);
    std::error_code ec;
    const Stopwatch watch;
    orders.unlock(ec);
    CHECK(ec == errc::rejected);
    CHECK(code_of([&] { seats.release(); }) == errc::rejected);
    CHECK(watch.within(margin));
    CHECK(redis.exists("orders"));
    redis.text("ACL", "SETUSER", "seller", ">old");
    CHECK(eventually([&] { return !redis.exists("orders"); }, 10s));
    CHECK(eventually([&] { return redis.text("GET", "seats") == "1"; }, 10s));
    CHECK(client.stats().lost_holds == 0);
}

TEST_CASE("fault: password changed: one live connection suffices, and failed new ones are done without") {
    RedisServer server{{.args = {"--requirepass", "before"}}};
    const std::string path = server.url().substr(std::string_view{"unix://"}.size());
    ClientOptions options;
    options.watchdog_timeout = paced(6s);
    Client client{"unix://:before@" + path, options};
    RLock orders{client, "orders"};
    orders.lock();
    RawRedis redis{server};
    redis.text("AUTH", "before");
    redis.text("CONFIG", "SET", "requirepass", "after");
    // The renewals use the background thread's connection, and the locks those of other threads.
    const auto before = client.stats().renewals;
    CHECK(eventually([&] { return client.stats().renewals >= before + 3; }, 20s));
    CHECK(orders.is_held());
    for (int i = 0; i < 8; ++i) {
        std::thread([&] {
            RLock other{client, "other"};
            CHECK_FALSE(code_of([&] { other.lock(); }));
            CHECK_FALSE(code_of([&] { other.unlock(); }));
        }).join();
    }
    CHECK_FALSE(code_of([&] { orders.unlock(); }));
    CHECK(client.stats().lost_holds == 0);
    CHECK(redis.keys("o*").empty());
}

TEST_CASE("fault: login of a second connection delayed: a short wait ends without a lock, and is no error") {
    RedisServer server{{.args = {"--requirepass", "secret"}}};
    Proxy proxy{server.url()};
    Client client{"unix://:secret@" + proxy.socket_path(), unhurried()};
    RLock orders{client, "orders"};
    orders.lock();
    proxy.hold_next_requests(1000, "AUTH");
    for (int i = 0; i < 8; ++i) {
        std::thread([&] {
            RLock other{client, "other"};
            CHECK_FALSE(code_of([&] {
                if (other.try_lock_for(50ms)) other.unlock();
            }));
        }).join();
    }
    proxy.clear_rules();
    proxy.release();
    orders.unlock();
}

TEST_CASE("fault: command not allowed inside a script: rejected at once") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    redis.text("ACL", "SETUSER", "seller", "reset", "on", ">pw", "~*", "&*", "+@all", "-hincrby");
    Client client{"redis://seller:pw@127.0.0.1:" + std::to_string(server.port()), unhurried()};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
    CHECK(watch.within(margin));
    // A user that may not subscribe: an error is reported, instead of a wait without messages.
    Client other{server.url(), unhurried()};
    RLock held{other, "orders"};
    held.lock();
    redis.text("ACL", "SETUSER", "seller", "resetchannels", "+hincrby");
    CHECK(start([&] { return code_of([&] { orders.lock(); }); }).get() == errc::rejected);
    held.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("fault: key of another type: the error names it, and the key stays as it is") {
    RedisServer server;
    RawRedis redis{server};
    redis.text("SET", "orders", "a string");
    Client client{server.url(), unhurried(watchdog_timeout)};
    RLock orders{client, "orders"};
    try {
        orders.lock();
        FAIL("held on a string");
    } catch (const Error& error) {
        CHECK(error.code() == errc::wrong_type);
        CHECK(error.name() == "orders");
        CHECK(std::string{error.what()}.find("WRONGTYPE") != std::string::npos);
    }
    CHECK(code_of([&] { return orders.try_lock(); }) == errc::wrong_type);
    CHECK(code_of([&] { orders.hold_count(); }) == errc::wrong_type);
    CHECK(redis.text("GET", "orders") == "a string");

    // A key whose type changes while it is held.
    redis.integer("DEL", "orders");
    orders.lock();
    const std::stop_token lost = orders.lost();
    redis.text("SET", "orders", "a string");
    CHECK(eventually([&] { return lost.stop_requested(); }, watchdog_timeout + margin));
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(redis.text("GET", "orders") == "a string");
}
