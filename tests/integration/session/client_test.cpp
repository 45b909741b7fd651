// SPDX-License-Identifier: MIT
// Client: id, options, counters, events, and its threads and descriptors in the process.
// ctest: timeout=180 long
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/without_grants.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Event;
using redlatch::Lease;
using redlatch::RLock;

namespace {

std::set<int> descriptors() {
    std::set<int> open;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"})
        open.insert(std::stoi(entry.path().filename().string()));
    // Without the iterator's own descriptor.
    std::erase_if(open, [](int fd) { return ::fcntl(fd, F_GETFD) == -1; });
    return open;
}

template <class T>
std::set<T> added(const std::set<T>& before, const std::set<T>& after) {
    std::set<T> result;
    for (const T& element : after)
        if (!before.contains(element)) result.insert(element);
    return result;
}

/// Returns the signals that a thread blocks, one bit each.
std::uint64_t blocked_signals(const std::string& thread) {
    std::ifstream status{"/proc/self/task/" + thread + "/status"};
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
    return 0;
}

std::atomic<pid_t> interrupted_thread = 0;
void note_thread(int) { interrupted_thread = this_thread_id(); }

}  // namespace

TEST_CASE("a client's id is a random UUID of its own, and constant") {
    RedisServer server;
    Client first{server.url()};
    Client second{server.url()};
    // Version 8 tells a client of which a release grants the lock.
    Client third{server.url(), without_grants()};
    const std::regex uuid{"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"};
    const std::regex other{"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"};
    CHECK(std::regex_match(first.id(), uuid));
    CHECK(std::regex_match(second.id(), uuid));
    CHECK(std::regex_match(third.id(), other));
    CHECK(first.id() != second.id());
    const std::string id = first.id();
    RLock orders{first, "orders"};
    orders.lock();
    orders.unlock();
    CHECK(first.id() == id);
}

TEST_CASE("two clients of one process exclude each other") {
    RedisServer server;
    Client first{server.url()};
    Client second{server.url()};
    RLock a{first, "orders"};
    RLock b{second, "orders"};
    a.lock();
    CHECK_FALSE(b.try_lock());
    CHECK_FALSE(b.is_held());
    CHECK(b.is_locked());
    a.unlock();
    CHECK(b.try_lock());
    b.unlock();
}

TEST_CASE("key_prefix separates applications on one server") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions shop;
    shop.key_prefix = "shop:";
    ClientOptions bank;
    bank.key_prefix = "bank:";
    Client first{server.url(), shop};
    Client second{server.url(), bank};
    RLock a{first, "orders"};
    RLock b{second, "orders"};
    a.lock();
    CHECK(b.try_lock());
    CHECK(a.name() == "orders");
    auto keys = redis.keys();
    CHECK(std::set<std::string>(keys.begin(), keys.end()) == std::set<std::string>{"shop:orders", "bank:orders"});
    a.unlock();
    b.unlock();
}

TEST_CASE("the URL chooses the database") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    redis.text("SELECT", 3);
    Client zero{server.url()};
    Client three{server.url() + "?db=3"};
    Client also_three{server.tcp_url() + "/3"};
    RLock in_zero{zero, "orders"};
    RLock in_three{three, "orders"};
    RLock in_three_too{also_three, "orders"};
    in_zero.lock();
    CHECK_FALSE(redis.exists("orders"));
    in_three.lock();
    CHECK(redis.hgetall("orders") == Fields{{owner_of(three, in_three), "1"}});
    CHECK_FALSE(in_three_too.try_lock());
    // Channels are common to all databases, so a release in another database is just a false alarm.
    auto waiter = start([&] { return in_three_too.lock(), in_three_too.unlock(), true; });
    REQUIRE(is_listened_to(redis, "orders"));
    in_zero.unlock();
    CHECK_FALSE(ready(waiter, 50ms));
    in_three.unlock();
    CHECK(ready(waiter));
    Client no_such{server.url() + "?db=999"};
    RLock lock{no_such, "orders"};
    CHECK(code_of([&] { lock.lock(); }) == errc::rejected);
}

TEST_CASE("a lock is the same by unix socket and by TCP") {
    RedisServer server{{.tcp = true}};
    Client by_path{server.url()};
    Client by_port{server.tcp_url()};
    RLock a{by_path, "orders"};
    RLock b{by_port, "orders"};
    a.lock();
    auto waiter = start([&] { return b.lock(), b.unlock(), true; });
    REQUIRE(has_waiters(by_port, 1));
    a.unlock();
    CHECK(ready(waiter));
}

TEST_CASE("stats() counts commands, acquisitions, waits, hand-overs, renewals and losses") {
    RedisServer server;
    CommandMonitor monitor{server};
    Client client{server.url(), with_watchdog(steady_lease)};
    RLock orders{client, "orders"};
    CHECK(client.stats().commands == 0);
    orders.lock();
    CHECK(client.stats().acquisitions == 1);
    CHECK(client.stats().waits == 0);
    orders.unlock();
    handed_over(client, orders, [&] { return orders.lock(), orders.unlock(), true; });
    CHECK(client.stats().handoffs == 1);
    const auto waits = client.stats().waits;
    CHECK(waits >= 1);
    CHECK(client.stats().acquisitions == 1 + 2 * waits);
    CHECK_FALSE([&] {
        RawRedis{server}.integer("HSET", "taken", "somebody:1", 1);
        RawRedis{server}.integer("PEXPIRE", "taken", 60'000);
        RLock taken{client, "taken"};
        return taken.try_lock();
    }());
    CHECK(client.stats().acquisitions == 1 + 2 * waits);
    CHECK(client.stats().waits == waits);
    orders.lock();
    CHECK(eventually([&] { return client.stats().renewals >= 1; }, 20s));
    RawRedis{server}.integer("DEL", "orders");
    CHECK(eventually([&] { return client.stats().lost_holds == 1; }, 20s));
    orders.unlock();
    const auto stats = client.stats();
    CHECK(stats.acquisitions == 2 + 2 * waits);
    CHECK(stats.resends == 0);
    CHECK(stats.reconnects == 0);
    // The background gives back what was lost, perhaps only now.
    long long commands = 0;
    std::set<std::string> subscribed;
    const auto for_each_channel = [](const std::string& line, const auto& function) {
        std::istringstream words{line.substr(line.find("] ") + 2)};
        std::string word;
        for (words >> word; words >> word;) function(word);
    };
    CHECK(eventually([&] {
        for (const std::string& line : monitor.take_lines()) {
            const auto name = CommandMonitor::name_of(line);
            // Channels that become wanted at the same moment share one command. A check of the connection names one again.
            if (name == "subscribe")
                for_each_channel(line,
                                 [&](const std::string& channel) { commands += subscribed.insert(channel).second; });
            else if (name == "unsubscribe")
                for_each_channel(line, [&](const std::string& channel) { subscribed.erase(channel); });
            else if (name == "evalsha" || name == "eval" || name == "time")
                ++commands;
        }
        return client.stats().commands == static_cast<std::uint64_t>(commands);
    }));
}

TEST_CASE("a client has no threads before its first try, and two afterwards") {
    RedisServer server;
    Client other{server.url()};
    RLock held{other, "busy"};
    held.lock();  // From here on everything that starts with the first use of threads and clients is running.
    elsewhere([] {});
    const auto before = threads();
    std::optional<Client> client;
    client.emplace(server.url());
    std::optional<RLock> orders;
    orders.emplace(*client, "orders");
    CHECK_FALSE(orders->is_locked());
    CHECK_FALSE(orders->is_held());
    // Not compared for equality: a thread that was joined may be listed for a moment longer.
    CHECK(added(before, threads()).empty());
    // One renews and receives, one reports losses. Both start before there is a hold.
    RLock busy{*client, "busy"};
    CHECK_FALSE(busy.try_lock());
    CHECK(added(before, threads()).size() == 2);
    orders->lock();
    CHECK_FALSE(busy.try_lock_for(10ms));
    orders->unlock();
    orders->lock(Lease{10s});
    CHECK(eventually([&] { return added(before, threads()).size() == 2; }, 20s));
    orders->unlock();
    held.unlock();
}

TEST_CASE("the threads end with the client and its primitives") {
    RedisServer server;
    elsewhere([] {});
    const auto before = threads();
    const auto open = descriptors();
    {
        EventLog log;
        ClientOptions options;
        options.on_event = log.handler();
        Client client{server.url(), options};
        RLock orders{client, "orders"};
        orders.lock();
        CHECK(orders.force_unlock());
        CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }, 20s));
        CHECK_FALSE(added(before, threads()).empty());
    }
    CHECK(eventually([&] { return added(before, threads()).empty(); }));
    CHECK(descriptors() == open);
}

TEST_CASE("the library's threads block the program's signals") {
    RedisServer server;
    elsewhere([] {});
    const auto before = threads();
    EventLog log;
    ClientOptions options;
    options.on_event = log.handler();
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    orders.force_unlock();
    orders.unlock();
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }, 20s));
    const auto ours = added(before, threads());
    CHECK(ours.size() == 3);  // one renews and receives, one reports losses, one runs event handlers
    for (const std::string& thread : ours) {
        const std::uint64_t blocked = blocked_signals(thread);
        for (const int signal :
             {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGCHLD, SIGPROF}) {
            CAPTURE(signal);
            CHECK((blocked >> (signal - 1) & 1) == 1);
        }
    }
    // The thread that started them has its own mask again.
    sigset_t mine;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mine);
    CHECK(::sigismember(&mine, SIGINT) == 0);
    CHECK(::sigismember(&mine, SIGUSR1) == 0);
}

TEST_CASE("a signal that interrupts a waiting thread does not end the wait") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock held{other, "orders"};
    held.lock();
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = note_thread;  // without SA_RESTART, so system calls return EINTR
    ::sigaction(SIGUSR2, &action, &before);
    std::atomic<pthread_t> thread{};
    std::atomic<pid_t> thread_id = 0;
    auto waiter = start([&] {
        thread = ::pthread_self();
        thread_id = this_thread_id();
        orders.lock();
        for (int i = 0; i < 200; ++i) {
            orders.lock();
            orders.unlock();
        }
        orders.unlock();
    });
    REQUIRE(has_waiters(client, 1));
    for (int i = 0; i < 20; ++i) {
        interrupted_thread = 0;
        // ThreadSanitizer defers the handler of a signal that comes just before the thread sleeps, until the next signal.
        CHECK(eventually([&] {
            if (interrupted_thread == thread_id) return true;
            ::pthread_kill(thread, SIGUSR2);
            return false;
        }));
    }
    CHECK_FALSE(ready(waiter, 20ms));
    held.unlock();
    while (!ready(waiter, 1ms)) {
        if (waiter.valid() && client.stats().commands < 100) ::pthread_kill(thread, SIGUSR2);
    }
    ::sigaction(SIGUSR2, &before, nullptr);
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("every descriptor of the library is close-on-exec") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    const auto before = descriptors();
    Client by_path{server.url()};
    Client by_port{server.tcp_url()};
    RLock a{by_path, "orders"};
    RLock b{by_port, "orders"};
    a.lock();
    // The wait may be over before it has subscribed.
    REQUIRE(eventually([&] { return !b.try_lock_for(20ms) && !redis.pubsub_channels().empty(); }, 20s));
    CHECK_FALSE(elsewhere([&] { return b.try_lock_for(20ms); }));
    const auto ours = added(before, descriptors());
    CHECK(ours.size() >= 4);
    for (const int fd : ours) {
        CAPTURE(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string());
        CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    }
    a.unlock();
}

TEST_CASE_TEMPLATE("a client and its lock are destroyed during a hold, in either order: lost() is requested", Lock,
                   RLock, redlatch::FairLock, redlatch::FencedLock, redlatch::SpinLock, redlatch::Mutex,
                   redlatch::ReadWriteLock) {
    RedisServer server;
    RawRedis redis{server};
    for (const bool client_first : {false, true}) {
        for (const bool has_lease : {false, true}) {
            CAPTURE(client_first);
            CAPTURE(has_lease);
            redis.text("FLUSHALL");
            auto client = std::make_optional<Client>(server.url());
            auto lock = std::make_optional<Lock>(*client, "orders");
            has_lease ? lock->lock(Lease{60s}) : lock->lock();
            const std::stop_token lost = lock->lost();
            std::atomic<int> told = 0;
            const std::stop_callback callback{lost, [&] { ++told; }};
            if (client_first) client.reset();
            lock.reset();
            client.reset();
            // The destroying thread requests it, or waits for the thread that does.
            CHECK(lost.stop_requested());
            CHECK(told == 1);
        }
    }
}

TEST_CASE(
    "a client destroyed while a thread waits: the destructor returns at once, and the waiter still gets the lock") {
    RedisServer server;
    Client other{server.url()};
    RLock held{other, "orders"};
    CHECK(succeeds_once(
        [&] {
            held.lock();
            std::optional<Client> client;
            client.emplace(server.url());
            RLock orders{*client, "orders"};
            auto waiter = start([&] {
                orders.lock();
                const bool is_mine = orders.is_held();
                orders.unlock();
                return is_mine;
            });
            REQUIRE(has_waiters(*client, 1));
            const bool at_once = within(patient(1s), [&] { client.reset(); });
            CHECK_FALSE(ready(waiter, 50ms));
            held.unlock();
            REQUIRE(ready(waiter));
            CHECK(waiter.get());
            return at_once;
        },
        3));
}

TEST_CASE("primitives may outlive their client, and their holds are renewed") {
    RedisServer server;
    RawRedis redis{server};
    std::optional<Client> client;
    client.emplace(server.url(), with_watchdog(steady_lease));
    RLock before{*client, "before"};
    RLock after{*client, "after"};
    before.lock();
    client.reset();
    after.lock();
    for (const char* key : {"before", "after"}) {
        CAPTURE(key);
        long long last = redis.pttl(key);
        CHECK(last > 0);
        CHECK(eventually([&] {
            const long long now = redis.pttl(key);
            return std::exchange(last, now) < now;
        }));
    }
    before.unlock();
    after.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("after the end of the client and its primitives a hold expires with its lease") {
    RedisServer server;
    RawRedis redis{server};
    const Stopwatch held;
    {
        Client client{server.url(), with_watchdog(short_lease)};
        RLock orders{client, "orders"};
        orders.lock();
    }
    const bool is_held = redis.exists("orders");
    CHECK((is_held || held.elapsed() >= short_lease));
    CHECK(eventually([&] { return !redis.exists("orders"); }, short_lease + 10s));
}

TEST_CASE("a client is destroyed in bounded time while its server is frozen") {
    RedisServer server;
    ClientOptions options = with_watchdog(short_lease);
    options.command_timeout = 2s;
    options.unreachable_timeout = 2s;
    Stopwatch watch;
    {
        Client client{server.url(), options};
        RLock orders{client, "orders"};
        RLock parcels{client, "parcels"};
        parcels.lock();
        RawRedis{server}.integer("HSET", "orders", "somebody:1", 1);
        RawRedis{server}.integer("PEXPIRE", "orders", 60'000);
        CHECK_FALSE(orders.try_lock_for(50ms));  // a subscription, too
        server.stop();
        parcels.unlock();  // without success, so it continues in the background
        watch.restart();
    }
    CHECK(watch.elapsed() <= options.command_timeout + patient(3s));
    server.cont();
}

TEST_CASE("a client is destroyed in bounded time when its server is gone") {
    std::optional<RedisServer> server;
    server.emplace();
    ClientOptions options;
    options.command_timeout = 2s;
    options.unreachable_timeout = 2s;
    Stopwatch watch;
    {
        Client client{server->url(), options};
        RLock orders{client, "orders"};
        orders.lock();
        server.reset();
        std::error_code ec;
        orders.unlock(ec);
        CHECK(ec == errc::unreachable);
        watch.restart();
    }
    CHECK(watch.elapsed() <= options.command_timeout + patient(3s));
}

TEST_CASE("an unused client needs no server") {
    const Stopwatch watch;
    {
        Client client{"unix:///nowhere/at/all"};
        RLock orders{client, "orders"};
        CHECK(orders.name() == "orders");
        CHECK(orders.lost().stop_requested());
        CHECK(code_of([&] { orders.unlock(); }) == errc::not_owner);
    }
    CHECK(watch.elapsed() < patient(5s));
}

TEST_CASE("invalid client options are refused") {
    const auto refused = [](auto&& change) {
        ClientOptions options;
        change(options);
        return code_of([&] { Client client("unix:///nowhere", options); }) == errc::invalid_argument;
    };
    CHECK(refused([](ClientOptions& o) { o.watchdog_timeout = 0ms; }));
    CHECK(refused([](ClientOptions& o) { o.watchdog_timeout = -1s; }));
    CHECK(refused([](ClientOptions& o) { o.watchdog_timeout = std::chrono::milliseconds::max(); }));
    CHECK(refused([](ClientOptions& o) { o.command_timeout = 0ms; }));
    CHECK(refused([](ClientOptions& o) { o.command_timeout = -1ms; }));
    CHECK(refused([](ClientOptions& o) { o.unreachable_timeout = -1ms; }));
    CHECK(refused([](ClientOptions& o) { o.key_prefix = "{}"; }));
    CHECK(refused([](ClientOptions& o) { o.renewal_batch = 0; }));
    CHECK(refused([](ClientOptions& o) { o.renewal_batch = 1001; }));
    CHECK(refused([](ClientOptions& o) { o.renewal_batch = ~0U; }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.renewal_batch = 1; }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.renewal_batch = 1000; }));
    CHECK(refused([](ClientOptions& o) { o.ping_interval = -1ms; }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.ping_interval = 0ms; }));
    CHECK(refused([](ClientOptions& o) { o.fair_waiter_timeout = 99ms; }));
    CHECK(refused([](ClientOptions& o) { o.fair_waiter_timeout = 0ms; }));
    CHECK(refused([](ClientOptions& o) { o.fair_waiter_timeout = -1s; }));
    CHECK(refused([](ClientOptions& o) { o.fair_waiter_timeout = 5min + 1ms; }));
    CHECK(refused([](ClientOptions& o) { o.fair_waiter_timeout = std::chrono::milliseconds::max(); }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.fair_waiter_timeout = 100ms; }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.fair_waiter_timeout = 5min; }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.unreachable_timeout = 0ms; }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.unreachable_timeout = std::chrono::milliseconds::max(); }));
    CHECK_FALSE(refused([](ClientOptions& o) { o.local_handoff_limit = 0; }));
    CHECK_FALSE(refused([](ClientOptions&) {}));
}

TEST_CASE("a first connection that fails is an event at once, which says why; the call goes on trying") {
    const struct {
        std::string url;
        std::string_view why;
        std::chrono::milliseconds within;
    } rows[] = {
        {"redis://127.0.0.1:1", "cannot connect to 127.0.0.1:1: Connection refused", 4s},
        {"unix:///nowhere/redis.sock", "cannot connect to unix:///nowhere/redis.sock: No such file or directory", 4s},
        // A resolver may take its time.
        {"redis://no-such-host.invalid", "cannot resolve the host 'no-such-host.invalid': ", 60s},
    };
    for (const auto& row : rows) {
        CAPTURE(row.url);
        EventLog log;
        ClientOptions options;
        options.command_timeout = row.within + 2s;
        options.unreachable_timeout = 100s;
        options.on_event = log.handler();
        Client client{row.url, options};
        RLock orders{client, "orders"};
        std::stop_source stop;
        auto waiting = start([&] { return orders.lock(stop.get_token()); });
        CHECK(eventually([&] { return log.count(Event::Kind::disconnected) == 1; }, row.within));
        const std::vector<Event> events = log.all();
        REQUIRE(events.size() == 1);
        CHECK(std::string_view(events[0].detail).starts_with(row.why));
        CHECK_FALSE(ready(waiting, 0ms));
        stop.request_stop();
        CHECK(ready(waiting, patient(row.within + 5s)));
    }
}

TEST_CASE("the error says that the server did not reply in time, and what that means") {
    RedisServer server;
    ClientOptions options;
    options.command_timeout = 300ms;
    options.unreachable_timeout = 300ms;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    // There is a connection. A busy machine may need some tries for it.
    REQUIRE(eventually([&] { return !code_of([&] { orders.lock(), orders.unlock(); }); }));
    const auto text = [&] {
        try {
            static_cast<void>(orders.try_lock());
        } catch (const redlatch::Error& error) {
            CHECK(error.code() == errc::unreachable);
            return std::string(error.what());
        }
        return std::string("no error");
    };
    server.stop();
    CHECK(text().find(" did not reply in time; the command may have taken effect") != std::string::npos);
    server.cont();
}

TEST_CASE("a client serves many threads that use many locks at once") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    std::atomic<int> failures = 0;
    {
        std::vector<std::jthread> workers;
        for (int t = 0; t < 16; ++t)
            workers.emplace_back([&, t] {
                for (int i = 0; i < 20; ++i) {
                    RLock own(client, "lock " + std::to_string(t) + " " + std::to_string(i % 3));
                    own.lock();
                    own.lock();
                    if (own.hold_count() != 2) ++failures;
                    own.unlock();
                    own.unlock();
                }
            });
    }
    CHECK(failures == 0);
    CHECK(client.stats().acquisitions == 16 * 20);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}
