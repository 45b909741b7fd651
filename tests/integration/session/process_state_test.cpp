// SPDX-License-Identifier: MIT
// ctest: timeout=300 long
// The state of the program that uses the library: errno, signals, locale, umask, environment, memory. client_test
// covers blocked signals and close-on-exec descriptors, client_fork_test covers fork().
#include <doctest/doctest.h>

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <clocale>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <locale>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "integration/rlock_helpers.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

/// A value of errno that no system call of the library sets.
constexpr int untouched = ENOTNAM;

/// Returns errno after the function. Before it, errno is set to `untouched`.
template <class Function>
int errno_after(Function&& function) {
    errno = untouched;
    function();
    return errno;
}

struct SignalState {
    std::vector<bool> masked;
    std::vector<void (*)(int)> handlers;
    bool operator==(const SignalState&) const = default;
};

SignalState signal_state() {
    SignalState state;
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int signal = 1; signal < 32; ++signal) {
        struct sigaction action {};
        ::sigaction(signal, nullptr, &action);
        state.masked.push_back(::sigismember(&mask, signal) == 1);
        state.handlers.push_back(action.sa_handler);
    }
    return state;
}

std::vector<std::string> environment() {
    std::vector<std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
    return all;
}

mode_t current_umask() {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    return mask;
}

/// Acquires and releases one of each primitive, with a wait, a loss and an error.
void use_everything(Client& client, RawRedis& redis) {
    RLock lock{client, "a"};
    FairLock fair{client, "b"};
    FencedLock fenced{client, "c"};
    SpinLock spin{client, "d"};
    Mutex mutex{client, "e"};
    ReadWriteLock shared{client, "f"};
    MultiLock all{lock, fair};
    const std::scoped_lock guard{all, fenced, spin, mutex, shared};
    CHECK_FALSE(elsewhere([&] { return lock.try_lock_for(10ms); }));
    std::error_code ec;
    elsewhere([&] { return lock.unlock(ec), true; });
    CHECK(ec == errc::not_owner);
    Semaphore seats{client, "g"};
    seats.release(2);
    seats.acquire();
    PermitExpirableSemaphore permits{client, "h"};
    permits.set_permits(1);
    permits.release(permits.acquire());
    CountDownLatch latch{client, "i"};
    latch.try_set_count(1);
    latch.arrive_and_wait();
    redis.integer("DEL", "c");  // the end of its guard finds a loss
}

/// Returns the number of allocated bytes, according to the allocator.
std::size_t allocated() {
    const struct mallinfo2 now = ::mallinfo2();
    return now.uordblks + now.hblkhd;
}

class Grouping final : public std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

}  // namespace

// A guard may end between a failed system call and the check of its errno. A changed errno would show the program a
// wrong reason.
TEST_CASE("errno is preserved by every unlock and every destructor, whatever happened") {
    for (const std::string trouble : {"none", "lost", "contended", "dead", "frozen"}) {
        CAPTURE(trouble);
        RedisServer server{{.tcp = true}};
        RawRedis redis{server};
        ClientOptions options;
        options.command_timeout = patient(200ms);
        options.unreachable_timeout = 20s;
        auto client = std::make_optional<HiredisClient>(server.tcp_url(), options);
        Client other{server.url()};
        auto lock = std::make_optional<RLock>(*client, "a");
        auto fair = std::make_optional<FairLock>(*client, "b");
        auto fenced = std::make_optional<FencedLock>(*client, "c");
        auto spin = std::make_optional<SpinLock>(*client, "d");
        auto mutex = std::make_optional<Mutex>(*client, "e");
        auto shared = std::make_optional<ReadWriteLock>(*client, "f");
        RLock first{*client, "g"};
        RLock second{*client, "h"};
        auto all = std::make_optional<MultiLock>(first, second);
        lock->lock();
        lock->lock();
        fair->lock();
        fenced->lock();
        spin->lock();
        mutex->lock();
        shared->lock_shared();
        all->lock();
        std::optional<std::future<bool>> waiting;
        if (trouble == "contended") {
            waiting = start_waiting(other, [&] {
                RLock theirs{other, "a"};
                const std::lock_guard guard{theirs};
                return true;
            });
        }
        if (trouble == "lost") redis.text("FLUSHALL");
        if (trouble == "dead") server.kill();
        if (trouble == "frozen") server.stop();

        std::error_code ec;
        CHECK(errno_after([&] { lock->unlock(); }) == untouched);
        CHECK(errno_after([&] { lock->unlock(ec); }) == untouched);
        CHECK(errno_after([&] { fair->unlock(); }) == untouched);
        CHECK(errno_after([&] { fenced->unlock(); }) == untouched);
        CHECK(errno_after([&] { spin->unlock(); }) == untouched);
        CHECK(errno_after([&] { mutex->unlock(); }) == untouched);
        CHECK(errno_after([&] { shared->unlock_shared(); }) == untouched);
        CHECK(errno_after([&] { all->unlock(); }) == untouched);
        CHECK(errno_after([&] { lock->unlock(ec); }) == untouched);  // once too often
        if (waiting) CHECK(ready(*waiting));

        CHECK(errno_after([&] { all.reset(); }) == untouched);
        CHECK(errno_after([&] { lock.reset(); }) == untouched);
        CHECK(errno_after([&] { fair.reset(); }) == untouched);
        CHECK(errno_after([&] { fenced.reset(); }) == untouched);
        CHECK(errno_after([&] { spin.reset(); }) == untouched);
        CHECK(errno_after([&] { mutex.reset(); }) == untouched);
        CHECK(errno_after([&] { shared.reset(); }) == untouched);
        CHECK(errno_after([&] { client.reset(); }) == untouched);
        if (trouble == "frozen") server.cont();
    }
}

TEST_CASE("errno is preserved by the destruction of a client with all its connections and threads") {
    RedisServer server;
    RawRedis redis{server};
    auto client = std::make_unique<HiredisClient>(server.url());
    use_everything(*client, redis);
    CHECK(errno_after([&] { client.reset(); }) == untouched);
}

TEST_CASE("signal masks, signal handlers, umask, working directory and environment are preserved") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    const SignalState signals = signal_state();
    const std::vector<std::string> variables = environment();
    const mode_t mask = current_umask();
    const std::string locale = std::setlocale(LC_ALL, nullptr);
    const auto directory = std::filesystem::current_path();
    {
        EventLog log;
        ClientOptions options;
        options.on_event = log.handler();
        Client client{"redis://localhost:" + std::to_string(server.port()), options};  // the look-up runs in a thread
        use_everything(client, redis);
        CHECK(signal_state() == signals);
    }
    CHECK(signal_state() == signals);
    CHECK(environment() == variables);
    CHECK(current_umask() == mask);
    CHECK(std::string{std::setlocale(LC_ALL, nullptr)} == locale);
    CHECK(std::filesystem::current_path() == directory);
}

TEST_CASE("numbers on the wire and in messages do not depend on the program's locale") {
    RedisServer server;
    RawRedis redis{server};
    const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouping));
    struct Restore {
        const std::locale& to;
        ~Restore() { std::locale::global(to); }
    } const restore{before};
    Client client{server.url()};
    Semaphore seats{client, "seats"};
    seats.add_permits(1234567);
    CHECK(redis.text("GET", "seats") == "1234567");
    CHECK(seats.available_permits() == 1234567);
    RLock orders{client, "orders"};
    orders.lock(Lease{3600s});
    CHECK(redis.pttl("orders") > 3'000'000);
    orders.unlock();
    CHECK(text_of_error([&] { seats.release(-1); }).find("2147483647") != std::string::npos);
}

// Names may come from outside: customers, orders, files. The state of a name is removed with its last object.
TEST_CASE("unused names take no memory") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    const auto use_names = [&](int from, int to) {
        for (int i = from; i < to; ++i) {
            const std::string name = "customer " + std::to_string(i);
            {
                RLock lock{client, name};
                const std::lock_guard guard{lock};
            }
            {
                FairLock lock{client, name};
                const std::lock_guard guard{lock};
            }
            {
                ReadWriteLock lock{client, name};
                const std::shared_lock guard{lock};
            }
            {
                Mutex lock{client, name};
                const std::lock_guard guard{lock};
            }
            {
                Semaphore seats{client, name};
                CHECK_FALSE(seats.try_acquire());
            }
            {
                CountDownLatch latch{client, name};
                CHECK(latch.try_wait());
            }
        }
    };
    use_names(0, 300);
    const std::size_t before = allocated();
    use_names(300, 1300);
    // A thousand names of every kind. A single state takes more than 200 bytes.
    CHECK(allocated() < before + 64 * 1024);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

// An unlock() of such a lease need not come.
TEST_CASE("leases that run out without an unlock() take no memory, whoever had them") {
    RedisServer server;
    Client client{server.url()};
    ReadWriteLock shared{client, "shared"};
    // With a sanitizer it is slow, and mallinfo2() says nothing.
    constexpr std::uint64_t round = slow_build_factor > 1 ? 1'000 : 5'100;
    std::uint64_t used = 1'000'000;  // owners and names, all of one length
    const auto let_run_out = [&] {
        // On a busy machine, some leases of 10 ms end before the reply arrives. These are no acquisitions.
        const std::uint64_t before = client.stats().acquisitions;
        while (client.stats().acquisitions < before + round) {
            for (int i = 0; i < 20; ++i) {
                ++used;
                LockRequest request;
                LockAccess::prepare(shared.read_lock(), request);
                request.owner = used;
                request.lease = 10ms;
                request.one_try = true;
                LockAccess::keeper(shared.read_lock()).acquire(request).run();
                RLock lock{client, "customer " + std::to_string(used)};
                static_cast<void>(lock.try_lock(Lease{10ms}));
            }
            // A lock has room for the most holds that it ever had at once.
            CHECK(eventually([&] { return client.stats().lost_holds == client.stats().acquisitions; }, 20s));
        }
    };
    // A table keeps room for the most names that were in use at once. How many these are depends on the machine's speed,
    // and they cannot be more than are used after the measurement.
    for (std::deque<RLock> names; names.size() < 3 * round;)
        names.emplace_back(client, "name " + std::to_string(names.size()));
    // The levels that an unlock() may still ask for are kept, but only the latest ten thousand. The states of unused names
    // are removed within a second, and what a table keeps of them when it is next looked through. So the memory goes up and
    // down, by more than the bound. What is never freed would only grow: seven bytes of each lease exceed the bound at once.
    const auto settled = [&] {
        for (int i = 0; i < 2; ++i) let_run_out();  // more than a table has room for by now
        std::size_t least = allocated();
        for (Stopwatch quiet; quiet.within(1500ms); std::this_thread::sleep_for(20ms))
            if (const std::size_t now = allocated(); now < least) {
                least = now;
                quiet.restart();
            }
        return least;
    };
    std::size_t most_at_first = 0, least_later = std::numeric_limits<std::size_t>::max();
    for (int i = 0; i < 4; ++i) most_at_first = std::max(most_at_first, settled());
    for (int i = 0; i < 4; ++i) least_later = std::min(least_later, settled());
    CHECK(least_later < most_at_first + 64 * 1024);
}

TEST_CASE("names that were waited for take neither memory nor a channel") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    const auto wait_for_names = [&](int from, int to) {
        for (int i = from; i < to; ++i) {
            const std::string name = "customer " + std::to_string(i);
            redis.integer("HSET", name, "somebody:1", 1);
            redis.integer("PEXPIRE", name, 60'000);
            RLock lock{client, name};
            CHECK_FALSE(lock.try_lock_for(1ms));
            redis.integer("DEL", name);
        }
    };
    wait_for_names(0, 100);
    const std::size_t before = allocated();
    wait_for_names(100, 400);
    CHECK(eventually([&] { return redis.pubsub_channels().empty(); }, 30s));
    CHECK(eventually([&] { return allocated() < before + 64 * 1024; }, 10s));
}
