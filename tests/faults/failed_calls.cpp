// SPDX-License-Identifier: MIT
// ctest: timeout=300
// A system call of the transport fails: every kind of call, each one in turn, with every error that it may return. The
// call under test ends in time, the state of the server matches its result, and no descriptor leaks.
#include "faults/failing_calls.hpp"
#include "faults/fault_kit.hpp"
#include "support/internals.hpp"

#include <dirent.h>
#include <netdb.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <optional>

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

struct Failure {
    std::string function;
    std::vector<int> errors;
};

const std::vector<Failure> failures{
    {"socket", {EMFILE, ENFILE, ENOBUFS, ENOMEM}},
    {"connect", {EINTR, ECONNREFUSED, EADDRNOTAVAIL, ETIMEDOUT}},
    {"send", {EINTR, EAGAIN, ECONNRESET, EPIPE, ENOBUFS, ENOMEM}},
    {"recv", {EINTR, EAGAIN, ECONNRESET, ENOMEM}},
    {"poll", {EINTR, ENOMEM}},
    {"fcntl", {EINTR, EINVAL}},
    {"setsockopt", {ENOMEM, EINVAL}},
    {"getsockopt", {ENOBUFS}},
    {"write", {EINTR, EAGAIN}},
    {"pipe2", {EMFILE, ENFILE}},
    {"getaddrinfo", {EAI_AGAIN, EAI_MEMORY}},
    {"pthread_create", {EAGAIN}},
    {"shutdown", {ENOTCONN}},
};

std::size_t open_descriptors() {
    std::size_t count = 0;
    if (DIR* const dir = ::opendir("/proc/self/fd")) {
        while (::readdir(dir)) ++count;
        ::closedir(dir);
    }
    return count;
}

ClientOptions short_lived() {
    ClientOptions options = quick();
    options.watchdog_timeout = paced(600ms);
    return options;
}

// An operation that runs while calls fail. It may throw Error or std::system_error. It releases what it acquired, or
// reports it.
struct Deed {
    const char* what;
    std::function<void(const std::string& url)> go;
    std::function<void(RawRedis&)> before = [](RawRedis&) {};
};

const std::vector<Deed> deeds{
    {"lock, reentry, question, unlock",
     [](const std::string& url) {
         Client client{url, short_lived()};
         RLock lock{client, "orders"};
         const std::lock_guard outer{lock};
         const std::lock_guard inner{lock};
         static_cast<void>(lock.remaining_lease());
     }},
    {"wait for a lease to end",
     [](const std::string& url) {
         Client client{url, short_lived()};
         RLock lock{client, "orders"};
         std::unique_lock guard{lock, std::defer_lock};
         static_cast<void>(guard.try_lock_for(2s));
     },
     [](RawRedis& redis) {
         redis.call("HSET", "orders", "somebody", 1);
         redis.call("PEXPIRE", "orders", 40);
     }},
    {"permits",
     [](const std::string& url) {
         Client client{url, short_lived()};
         PermitExpirableSemaphore slots{client, "orders"};
         slots.try_set_permits(2);
         const PermitId id = slots.acquire();
         slots.release(id);
     }},
};

// Lets each call of the function fail in turn, until the operation makes no more of them. Returns how many failed.
int fail_each(RawRedis& redis, const std::string& url, const Deed& deed, const Failure& failure, int error) {
    for (int skip = 0;; ++skip) {
        CAPTURE(skip);
        redis.call("DEL", "orders");
        deed.before(redis);
        const std::size_t before = open_descriptors();
        int struck = 0;
        const Stopwatch watch;
        {
            FailingCalls calls{failure.function, error, skip};
            try {
                deed.go(url);
            } catch (const std::system_error&) {
            }
            struck = calls.struck();
        }
        CHECK_MESSAGE(watch.within(patient(5s)), watch.elapsed_ms().count());
        // The thread of a name look-up may end a moment later.
        CHECK(eventually([&] { return open_descriptors() == before; }));
        redis.call("DEL", "redlatch_permit_requests");
        const auto held = [&] {
            return redis.integer("EXISTS", "orders") == 1 && redis.text("TYPE", "orders") == "hash";
        };
        // The lock is released; where that was impossible, it ends with its lease.
        CHECK(eventually([&] { return !held(); }, 3s));
        if (struck == 0 || skip > 60) return skip;
    }
}

void fail_all(const std::string& url, RedisServer& server, const std::vector<std::string>& needed) {
    RawRedis redis{server};
    for (const Failure& failure : failures) {
        CAPTURE(failure.function);
        for (const int error : failure.errors) {
            CAPTURE(error);
            int failed = 0;
            for (const Deed& deed : deeds) {
                CAPTURE(deed.what);
                failed += fail_each(redis, url, deed, failure, error);
            }
            const bool is_needed = std::find(needed.begin(), needed.end(), failure.function) != needed.end();
            CHECK((failed > 0 || !is_needed));
        }
    }
}

}  // namespace

TEST_CASE("fault: a system call of the transport fails once, on a unix socket") {
    RedisServer server;
    fail_all(server.url(), server,
             {"socket", "connect", "send", "recv", "poll", "fcntl", "setsockopt", "write", "pipe2"});
}

TEST_CASE("fault: a system call of the transport fails once, over TCP, by the name of the host") {
    RedisServer server{{.tcp = true}};
    fail_all("redis://localhost:" + std::to_string(server.port()), server,
             {"socket", "connect", "send", "recv", "poll", "fcntl", "setsockopt", "pipe2", "getaddrinfo"});
}

// Regression: the thread that reports losses was started for the first loss. So unlock() threw, and a guard ended the
// program.
TEST_CASE(
    "fault: no thread can be started when unlock() finds a loss: the loss is reported, and a guard does not throw") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    Client client{server.url(), log.in(unhurried())};
    RLock first{client, "first"};
    RLock second{client, "second"};
    MultiLock both{first, second};
    const auto lose_in_guard = [&](auto& lock) {
        const std::size_t before = log.count(Event::Kind::hold_lost);
        const std::lock_guard outer{lock};
        const std::stop_token lost = lock.lost();
        std::optional<FailingCalls> calls;
        {
            const std::lock_guard inner{lock};
            redis.call("DEL", "first");
            calls.emplace("pthread_create", EAGAIN, 0, 1000);
        }
        CHECK(eventually([&] { return lost.stop_requested(); }));
        CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) > before; }));
    };
    SUBCASE("of a lock") { lose_in_guard(first); }
    SUBCASE("of a lock over several locks") { lose_in_guard(both); }
}

TEST_CASE("fault: no thread can be started: no lock is acquired whose loss could not be reported") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    RLock first{client, "first"};
    RLock second{client, "second"};
    MultiLock both{first, second};
    {
        const FailingCalls calls{"pthread_create", EAGAIN, 0, 1000};
        CHECK_THROWS_AS(first.lock(), std::system_error);
        CHECK_THROWS_AS(both.lock(), std::system_error);
    }
    CHECK(eventually([&] { return redis.integer("EXISTS", "first") + redis.integer("EXISTS", "second") == 0; }));
    CHECK(both.try_lock_for(10s));
    both.unlock();
}

// The client has no thread yet: a permit with a lease needs none.
TEST_CASE("fault: no thread can be started when a permit is destroyed: it is released when there are threads again") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(1);
    std::optional<Permit> permit{std::in_place, slots, Lease{60s}};
    {
        const FailingCalls calls{"pthread_create", EAGAIN, 0, 1000};
        permit.reset();
        CHECK(calls.struck() > 0);
    }
    RLock other{client, "other"};
    { const std::lock_guard starts_a_thread{other}; }
    CHECK(eventually([&] { return slots.available_permits() == 1; }));
}

TEST_CASE("fault: no descriptor is available for a while: the call continues when there is one") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    RLock lock{client, "orders"};
    FailingCalls calls{"socket", EMFILE, 0, 5};
    lock.lock();
    CHECK(calls.struck() == 5);
    CHECK(lock.is_held());
    lock.unlock();
}

TEST_CASE(
    "fault: write to a connection that was killed (SIGPIPE): no signal, and the call continues over a new connection") {
    static std::atomic<int> signals{0};
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = [](int) { ++signals; };
    REQUIRE(::sigaction(SIGPIPE, &action, &before) == 0);
    RedisServer server;
    RawRedis redis{server};
    // Long time-outs: a release that takes too long would continue in the background, and there meet the failure that
    // is meant for the next lock().
    Client client{server.url(), unhurried()};
    RLock lock{client, "orders"};
    lock.lock();
    lock.unlock();
    for (int round = 0; round < 10; ++round) {
        CHECK(redis.kill_clients("normal") > 0);
        // Let the check of an idle connection miss that it is closed.
        FailingCalls calls{"recv", EAGAIN};
        lock.lock();
        CHECK(calls.struck() == 1);
        lock.unlock();
    }
    CHECK(client.stats().resends >= 10);
    CHECK(signals == 0);
    ::sigaction(SIGPIPE, &before, nullptr);
}

// Regression: the byte stayed in the pipe, but the flag for it was cleared. It was never drained, and every poll()
// returned at once.
TEST_CASE("fault: wake() during a drain(): no byte stays that cannot be drained") {
    WakePipe pipe;
    int drained = 0;
    {
        const BeforeWrite meet{[&] { pipe.drain(), ++drained; }};
        pipe.wake();
    }
    REQUIRE(drained == 1);
    pipe.drain();
    pollfd ready{pipe.fd(), POLLIN, 0};
    CHECK(::poll(&ready, 1, 0) == 0);
    pipe.wake();
    CHECK(::poll(&ready, 1, 0) == 1);
}
