// SPDX-License-Identifier: MIT
// ctest: long
// Slow, silent, half-dead and absent networks: every call ends on time, and leaves nothing behind.
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "faults/fault_kit.hpp"
#include "faults/kinds_kit.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

// The delay beyond its deadline that the contract allows a call, plus the delay of a busy machine.
constexpr std::chrono::milliseconds margin = 50ms + late;

// Opens the connection, so that the test does not measure connecting. On a busy machine that may take longer than the
// time-outs of the test.
void warm_up(RLock& lock) {
    std::error_code ec;
    REQUIRE(eventually([&] { return !lock.is_locked(ec) && !ec; }));
}

}  // namespace

TEST_CASE("fault: acquire answered after its lease: it is no hold, and is released") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    warm_up(orders);
    const Lease lease{50ms};
    path.proxy.delay(0ms, 120ms);
    CHECK_FALSE(orders.try_lock(lease));
    CHECK(orders.valid_until() == std::chrono::steady_clock::time_point::min());
    CHECK(orders.lost().stop_requested());
    CHECK(code_of([&] { orders.unlock(); }) == errc::not_owner);
    CHECK(client.stats().acquisitions == 0);
    path.proxy.delay(0ms, 0ms);
    CHECK(eventually([&] { return !path.redis.exists("orders"); }));
    // A waiting call asks again. (By the time it can check, such a short lease may be over.)
    path.proxy.hold_next_replies(1, acquire_digest);
    auto waiting = start([&] { return orders.try_lock_for(20s, lease); });
    REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));
    REQUIRE(eventually([&] { return !path.redis.exists("orders"); }));
    path.proxy.release();
    CHECK(waiting.get());
    CHECK(client.stats().acquisitions == 1);
}

TEST_CASE("a hold is valid from before its command was sent, not from its reply") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    warm_up(orders);
    // The test cannot know the instant of sending, but that is closer to the call than to the reply. On a busy machine
    // this must hold in one try, not in each.
    const auto delay = 600ms;
    path.proxy.delay(0ms, delay);
    bool is_closer = false;
    for (int tries = 0; tries < 5 && !is_closer; ++tries) {
        const auto before = std::chrono::steady_clock::now();
        REQUIRE(orders.try_lock(Lease{10s}));
        CHECK(std::chrono::steady_clock::now() - before >= delay);
        is_closer = orders.valid_until() - before < 10s + delay / 2;
        orders.unlock();
    }
    CHECK(is_closer);
}

TEST_CASE("fault: acquire given up while its reply is on the way: nothing is left behind") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    for (const auto& delay : {std::pair{0ms, 4000ms}, std::pair{4000ms, 0ms}}) {
        warm_up(orders);
        path.proxy.delay(delay.first, delay.second);
        const Stopwatch watch;
        CHECK_FALSE(orders.try_lock_for(60ms));
        CHECK(watch.within(60ms + margin));
        path.proxy.delay(0ms, 0ms);
        CHECK(orders.lost().stop_requested());
        // Use another thread, so that nothing waits for the pending release of this one.
        CHECK(start([&] {
                  const bool held = orders.try_lock_for(20s);
                  if (held) orders.unlock();
                  return held;
              }).get());
        CHECK(eventually([&] { return !path.redis.exists("orders"); }));
    }
    CHECK(client.stats().acquisitions == 2);
}

// Regression: the release of what the late reply granted is posted, and the server does not know its script. If the
// client was destroyed at once, nothing sent the script's text.
TEST_CASE("a client that is destroyed right after a failed acquire leaves nothing behind") {
    // It takes three commands until the hold exists. Repeats if a busy machine had no time for them.
    bool existed = false;
    for (int tries = 0; tries < 5 && !existed; ++tries) {
        FaultyPath path;
        {
            // The lease is longer than the test waits: its end must not pass for a release.
            Client client{path.url(), unhurried(60s)};
            RLock orders{client, "orders"};
            warm_up(orders);
            path.redis.command({"SCRIPT", "FLUSH"});
            path.proxy.hold_next_replies(1, "hincrby");
            CHECK_FALSE(orders.try_lock_for(500ms));
            existed = path.redis.exists("orders");
            path.proxy.release();
        }
        CHECK(eventually([&] { return !path.redis.exists("orders"); }));
    }
    CHECK(existed);
}

// A caller's deadline limits the waiting, not the way to the server and back.
TEST_CASE("a wait shorter than a round trip is no worse than one try: a free lock of any kind is acquired") {
    constexpr auto round_trip = 40ms;
    FaultyPath path;
    ClientOptions options = unhurried(paced(1500ms));
    Client beside{path.server.url(), options};
    // Before that a RedLock gets no vote.
    const auto age = std::chrono::ceil<std::chrono::seconds>(options.watchdog_timeout) + 2s;
    REQUIRE(eventually(
        [&] { return std::chrono::seconds{std::stoll(path.redis.info("server", "uptime_in_seconds"))} >= age; }, 30s));
    path.proxy.delay(0ms, round_trip);
    for (const bool waits : {false, true}) {
        CAPTURE(waits);
        std::set<std::string> missed{"RedLock"};
        for (const AnyKind& kind : kinds_of(beside, "orders")) missed.insert(kind.kind);
        // A busy machine gets several rounds.
        for (int round = 0; round < 4 && !missed.empty(); ++round) {
            const std::string name = (waits ? "waited for " : "tried ") + std::to_string(round);
            for (const AnyKind& kind : kinds_of(beside, name)) kind.prepare();
            Client client{path.url(), options};
            std::vector<AnyKind> kinds = kinds_of(client, name);
            kinds.push_back(red_lock_of(path.url(), options, name));
            for (const AnyKind& kind : kinds) {
                if (!missed.contains(kind.kind)) continue;
                if (!(waits ? kind.try_for(round_trip / 2) : kind.try_once())) continue;
                missed.erase(kind.kind);
                static_cast<void>(code_of([&] { kind.give_back(); }));
            }
        }
        for (const std::string& kind : missed) FAIL_CHECK(kind);
    }
}

TEST_CASE("fault: acquire stopped while its reply is on the way: nothing is left behind") {
    FaultyPath path;
    ClientOptions options = unhurried();
    // Long enough that the call does not give up and try again before the stop.
    options.command_timeout = paced(3s);
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    warm_up(orders);
    path.proxy.hold_next_replies(1, acquire_digest);
    std::stop_source stop;
    auto waiting = start([&] { return orders.lock(stop.get_token()); });
    REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));
    CHECK(path.redis.exists("orders"));
    const Stopwatch watch;
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(watch.within(options.command_timeout + margin));
    CHECK(eventually([&] { return !path.redis.exists("orders"); }));
    path.proxy.release();
}

TEST_CASE("fault: reply later than its deadline: the next command never gets it") {
    FaultyPath path;
    Client other{path.server.url(), quick()};
    RLock held{other, "orders"};
    held.lock(Lease{60s});
    ClientOptions options = quick();
    // Long beyond the deadlines, even if they are noticed late. Otherwise the server would count as unreachable.
    options.command_timeout = paced(2s);
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    RLock free{client, "free"};

    // Given up by the caller while the connection is still good.
    for (int round = 0; round < 10; ++round) {
        path.proxy.delay(0ms, 30ms);
        CHECK_FALSE(orders.try_lock_for(10ms));
        // The late reply is a number, this one a nil, and the next an empty list: none is taken for another.
        CHECK(orders.hold_count() == 0);
        CHECK_FALSE(free.is_locked());
        path.proxy.delay(0ms, 0ms);
        CHECK(orders.is_locked());
    }
    // Given up by the client: the connection is closed.
    const auto accepted = path.proxy.counts().accepted;
    path.proxy.hold_next_replies(1, acquire_digest);
    CHECK(code_of([&] { return orders.try_lock(); }) == errc::unreachable);
    CHECK(path.proxy.counts().held == 1);
    path.proxy.release();
    CHECK(orders.hold_count() == 0);
    CHECK_FALSE(free.is_locked());
    CHECK(orders.is_locked());
    CHECK(path.proxy.counts().accepted > accepted);
    held.unlock();
}

TEST_CASE("fault: server unreachable without any error: each call ends on time") {
    for (const bool tcp : {false, true}) {
        CAPTURE(tcp);
        FaultyPath path{tcp};
        ClientOptions options = quick();
        std::error_code ec;
        const auto unreachable = options.unreachable_timeout = paced(900ms);
        Client hasty{path.url(), options};
        RLock wanted{hasty, "orders"};
        static_cast<void>(wanted.is_locked(ec));  // opens a connection, as a rule
        // Too long to end a call.
        options.unreachable_timeout = 60s;
        Client client{path.url(), options};
        RLock orders{client, "orders"};
        RLock held{client, "held"};
        warm_up(orders);
        held.lock();
        path.proxy.blackhole(true);
        const auto bytes = path.proxy.counts().bytes_to_client;
        Stopwatch watch;

        CHECK_FALSE(orders.try_lock_for(150ms, ec));
        CHECK(watch.within(150ms + margin));

        watch.restart();
        held.unlock();
        CHECK(watch.within(command_timeout + margin));

        start([&] {
            Stopwatch time;
            CHECK(code_of([&] { return orders.try_lock(); }) == errc::unreachable);
            CHECK(time.within(command_timeout + margin));
            time.restart();
            CHECK_FALSE(orders.try_lock_for(command_timeout + 100ms, ec));
            CHECK(time.within(command_timeout + 100ms + margin));
        }).get();

        start([&] {
            Stopwatch time;
            CHECK(code_of([&] { wanted.lock(); }) == errc::unreachable);
            CHECK(time.within(unreachable + margin));
            CHECK(time.elapsed() >= unreachable - command_timeout);
            time.restart();
            CHECK(code_of([&] { wanted.hold_count(); }) == errc::unreachable);
            CHECK(time.within(unreachable + margin));
        }).get();

        CHECK(path.proxy.counts().bytes_to_client == bytes);
        path.proxy.blackhole(false);
        CHECK(start([&] {
                  const bool got = orders.try_lock_for(10s);
                  if (got) orders.unlock();
                  return got;
              }).get());
        CHECK(
            eventually([&] { return path.redis.keys().empty() || path.redis.keys("redisson*") == path.redis.keys(); }));
    }
}

// The first command in flight is overdue, but its caller has gone. A later caller on that connection must neither spin
// nor wait longer than the server's time-out.
TEST_CASE("waiting for a silent server uses no processor time") {
    FaultyPath path;
    ClientOptions options = quick();
    options.unreachable_timeout = options.command_timeout;
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    warm_up(orders);
    path.proxy.blackhole(true);
    const auto before = cpu_time_of_this_thread();
    const Stopwatch watch;
    std::error_code ec;
    CHECK_FALSE(orders.try_lock_for(command_timeout - 50ms, ec));
    CHECK_FALSE(orders.is_held(ec));
    CHECK(ec == errc::unreachable);
    const auto used = std::chrono::duration_cast<std::chrono::milliseconds>(cpu_time_of_this_thread() - before);
    CHECK(watch.elapsed() >= command_timeout);
    CHECK(used < watch.elapsed_ms() / 5);
    path.proxy.blackhole(false);
}

TEST_CASE("fault: connection half closed: the client replaces it") {
    for (const Side side : {Side::client, Side::server}) {
        FaultyPath path;
        Client client{path.url(), unhurried()};
        RLock orders{client, "orders"};
        warm_up(orders);
        path.proxy.half_close(side);
        const Stopwatch watch;
        orders.lock();
        CHECK(hold_counts(path.redis, "orders") == std::vector<std::string>{"1"});
        path.proxy.half_close(side);
        orders.unlock();
        // Noticed at once, not by a time-out.
        CHECK(watch.within(2s + margin));
        CHECK_FALSE(path.redis.exists("orders"));
        CHECK(client.stats().reconnects >= 2);
    }
}

TEST_CASE("fault: subscription half closed: the waiter still wakes soon after the release") {
    for (const Side side : {Side::client, Side::server}) {
        FaultyPath path;
        Client other{path.server.url(), quick()};
        RLock held{other, "orders"};
        held.lock(Lease{60s});
        Client client{path.url(), quick()};
        RLock orders{client, "orders"};
        auto waiting = start([&] {
            orders.lock();
            orders.unlock();
            return true;
        });
        REQUIRE(eventually([&] { return listeners(path.redis, "orders") == 1; }));
        const auto accepted = path.proxy.counts().accepted;
        path.proxy.half_close(side);
        held.unlock();
        CHECK(ready(waiting, 5s));
        CHECK(waiting.get());
        CHECK(path.proxy.counts().accepted > accepted);
    }
}

TEST_CASE("fault: segments of one byte: replies and messages are still read") {
    FaultyPath path;
    path.proxy.trickle(1, 1ms);
    Client other{path.server.url(), unhurried()};
    RLock held{other, "orders"};
    held.lock(Lease{60s});
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    auto waiting = start([&] {
        orders.lock();
        orders.lock();
        const int count = orders.hold_count();
        orders.unlock();
        orders.unlock();
        return count;
    });
    REQUIRE(eventually([&] { return listeners(path.redis, "orders") == 1; }));
    held.unlock();
    REQUIRE(ready(waiting, 10s));
    CHECK(waiting.get() == 2);
    CHECK_FALSE(path.redis.exists("orders"));
}

TEST_CASE("fault: throttled connection: the deadline covers the whole reply, however slowly it arrives") {
    FaultyPath path;
    ClientOptions options = quick();
    options.unreachable_timeout = paced(900ms);
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    warm_up(orders);
    path.proxy.trickle(1, command_timeout / 3);
    Stopwatch watch;
    CHECK(code_of([&] { return orders.try_lock(); }) == errc::unreachable);
    CHECK(watch.within(command_timeout + margin));
    watch.restart();
    CHECK(code_of([&] { orders.hold_count(); }) == errc::unreachable);
    CHECK(watch.within(options.unreachable_timeout + margin));
    path.proxy.trickle(0, 0ms);
    std::error_code ec;
    CHECK(eventually([&] { return orders.try_lock_for(10s, ec); }, 20s));
    orders.unlock();
    CHECK(eventually([&] { return !path.redis.exists("orders"); }));
}

TEST_CASE(
    "a connection that takes longer than the caller's deadline is slow, one that is never accepted is unreachable") {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener, 0) == 0);
    socklen_t size = sizeof address;
    REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    // Nothing accepts here. When the listener's queue is full, the system leaves further connections without a reply.
    std::vector<int> queue;
    for (int i = 0; i < 8; ++i) {
        queue.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        ::connect(queue.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    ClientOptions options = quick();
    options.unreachable_timeout = paced(300ms);
    options.command_timeout = 10s;  // longer than the 50 ms of a caller on a busy machine
    Client client{"redis://127.0.0.1:" + std::to_string(ntohs(address.sin_port)), options};
    RLock orders{client, "orders"};
    std::error_code ec;
    const Stopwatch watch;
    CHECK_FALSE(orders.try_lock_for(50ms, ec));
    CHECK_FALSE(ec);
    CHECK(watch.within(50ms + margin));
    CHECK(code_of([&] { orders.lock(); }) == errc::unreachable);
    for (const int fd : queue) ::close(fd);
    ::close(listener);
}

TEST_CASE("fault: connections refused for a while: a call is only delayed") {
    FaultyPath path{true};
    Client client{path.url(), quick()};
    RLock orders{client, "orders"};
    path.proxy.refuse(true);
    auto locking = start([&] {
        const std::error_code ec = code_of([&] { orders.lock(); });
        if (!ec) orders.unlock();
        return ec;
    });
    REQUIRE(eventually([&] { return path.proxy.counts().refused >= 3; }));
    path.proxy.refuse(false);
    CHECK(ready(locking, 5s));
    CHECK_FALSE(locking.get());
    // The client waits between attempts, so there are far fewer than a loop would make.
    CHECK(path.proxy.counts().refused < 200);
}

TEST_CASE("an endpoint that does not listen is reported as unreachable, without its password") {
    const TempDir dir;
    ClientOptions options = quick();
    options.unreachable_timeout = paced(300ms);
    // A port that is taken but does not listen, so that no other process can listen there.
    const Fd taken{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    REQUIRE(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    const std::string nobody = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    for (const std::string& url : {"unix://" + dir.file("nobody.sock"), "redis://me:geheim@" + nobody}) {
        CAPTURE(url);
        Client client{url, options};
        RLock orders{client, "orders"};
        const Stopwatch watch;
        try {
            orders.lock();
            FAIL("held on no server");
        } catch (const Error& error) {
            CHECK(error.code() == errc::unreachable);
            CHECK(error.name() == "orders");
            CHECK(std::string{error.what()}.find("geheim") == std::string::npos);
        }
        CHECK(watch.within(options.unreachable_timeout + margin));
        CHECK(watch.elapsed() >= options.unreachable_timeout);
    }
}

// Regression: a profiler's timer interrupts system calls all the time. A time-out that restarts after each would never
// end.
TEST_CASE("fault: storm of signals: they do not prolong the deadline of a call") {
    FaultyPath path;
    Client client{path.url(), quick()};
    RLock orders{client, "orders"};
    warm_up(orders);
    static std::atomic<int> interruptions{0};
    struct sigaction handler {};
    struct sigaction before {};
    handler.sa_handler = [](int) { ++interruptions; };
    REQUIRE(::sigaction(SIGUSR1, &handler, &before) == 0);

    path.proxy.blackhole(true);
    const pthread_t caller = ::pthread_self();
    std::atomic<bool> stopping{false};
    // Ends by itself. Otherwise a call that never ends would hang the test.
    std::thread storm{[&] {
        const Stopwatch watch;
        while (!stopping && watch.within(20 * command_timeout)) {
            ::pthread_kill(caller, SIGUSR1);
            std::this_thread::sleep_for(5ms);
        }
    }};
    // Signals should interrupt the call all the time. It is repeated if the storm had no time to run.
    int during = 0;
    for (int tries = 0; tries < 5 && during <= 5; ++tries) {
        const int earlier = interruptions;
        RLock another{client, "orders" + std::to_string(tries)};  // a name without a pending release
        const Stopwatch watch;
        CHECK(code_of([&] { return another.try_lock(); }) == errc::unreachable);
        CHECK(watch.within(command_timeout + margin));
        during = interruptions - earlier;
    }
    CHECK(during > 5);
    path.proxy.blackhole(false);
    CHECK(orders.try_lock_for(10s));
    orders.unlock();
    stopping = true;
    storm.join();
    ::sigaction(SIGUSR1, &before, nullptr);
}

// In a process of its own, because the limit applies to the whole process.
namespace {

int run_out_of_descriptors(std::span<const std::string> args) {
    ClientOptions options = quick();
    options.unreachable_timeout = paced(400ms);
    Client hasty{args[0], options};
    Client client{args[0], unhurried()};
    std::vector<Fd> hoard;
    const rlimit limit{64, 64};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    for (;;) {
        Fd fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
        if (!fd) break;
        hoard.push_back(std::move(fd));
    }
    if (errno != EMFILE) return 2;
    {
        RLock orders{hasty, "orders"};
        const Stopwatch watch;
        if (code_of([&] { orders.lock(); }) != errc::unreachable) return 3;
        if (!watch.within(options.unreachable_timeout + margin)) return 4;
    }
    auto locking = start([&] {
        RLock orders{client, "orders"};
        std::error_code ec;
        if (!orders.try_lock_for(20s, ec)) return false;
        orders.unlock(ec);
        return !ec;
    });
    if (!eventually([&] { return client.stats().commands > 0; })) return 5;
    if (ready(locking, 20ms)) return 6;
    hoard.clear();
    return locking.get() ? 0 : 7;
}

const Role out_of_descriptors{"fault: out of descriptors", run_out_of_descriptors};

}  // namespace

TEST_CASE("fault: no free descriptor: a call fails in time, and later calls work") {
    RedisServer server;
    ChildProcess child = spawn_self("fault: out of descriptors", {server.url()});
    const auto status = child.wait(60s);
    REQUIRE(status);
    CHECK(status->code == 0);
}
