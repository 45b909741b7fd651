// SPDX-License-Identifier: MIT
// What waiting costs: twenty threads of a process that wait send nothing, as counted by the server.
// ctest: without=address,thread long
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/read_side.hpp"
#include "support/redis_server.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::CountDownLatch;
using redlatch::FairLock;
using redlatch::FencedLock;
using redlatch::Mutex;
using redlatch::PermitExpirableSemaphore;
using redlatch::ReadWriteLock;
using redlatch::RLock;
using redlatch::Semaphore;
using redlatch::SpinLock;

namespace {

constexpr std::size_t threads = 20;

/// Returns how many commands the server receives while they wait. `hold` keeps the threads waiting, and returns what lets
/// them go on. Each of them calls `wait`.
long long sent_while_waiting(const std::function<std::function<void()>(Client&)>& hold,
                             const std::function<void(Client&)>& wait, std::chrono::seconds time) {
    RedisServer server;
    ClientOptions options;
    options.watchdog_timeout = 10min;  // the holder renews nothing meanwhile
    Client holder{server.url(), options}, client{server.url(), options};
    const std::function<void()> let_go = hold(holder);
    std::vector<std::future<void>> waiters;
    for (std::size_t i = 0; i < threads; ++i) waiters.push_back(start([&] { wait(client); }));
    const bool all_wait = eventually([&] { return client.stats().waiting == threads; });
    std::this_thread::sleep_for(2s);  // the server has the script of the refresh from then on
    CommandMonitor monitor{server};
    const bool is_silent = falls_silent(monitor);
    std::this_thread::sleep_for(time);
    const long long sent = monitor.take_total();
    CHECK(client.stats().waiting == threads);
    let_go();
    for (auto& waiter : waiters) waiter.get();
    CHECK(all_wait);
    CHECK(is_silent);
    return sent;
}

template <class Wanted, class Held = Wanted>
long long sent_while_waiting_for(std::chrono::seconds time) {
    return sent_while_waiting(
        [](Client& client) {
            auto lock = std::make_shared<Held>(client, "orders");
            lock->lock();
            return [lock] { lock->unlock(); };
        },
        [](Client& client) {
            Wanted lock{client, "orders"};
            lock.lock();
            lock.unlock();
        },
        time);
}

template <class Seats>
long long sent_while_waiting_for_permits(std::chrono::seconds time) {
    return sent_while_waiting(
        [](Client& client) {
            auto seats = std::make_shared<Seats>(client, "seats");
            seats->try_set_permits(1);
            static_cast<void>(seats->acquire());
            return [seats] { seats->add_permits(threads); };
        },
        [](Client& client) { static_cast<void>(Seats(client, "seats").acquire()); }, time);
}

long long sent_while_waiting_for_a_latch(std::chrono::seconds time) {
    return sent_while_waiting(
        [](Client& client) {
            auto latch = std::make_shared<CountDownLatch>(client, "gate");
            latch->try_set_count(1);
            return [latch] { latch->count_down(); };
        },
        [](Client& client) { CountDownLatch(client, "gate").wait(); }, time);
}

}  // namespace

TEST_CASE("20 threads of a process send nothing while they wait for 10 s, but for a refresh and a slow poll") {
    struct Row {
        std::string what;
        long long (*sent)(std::chrono::seconds);
        long long most;
        std::chrono::seconds time = 10s;
        long long least = 0;
    };
    // A FairLock refreshes its places every 1.67 s. Semaphores and latches ask every 5 to 10 s, because no
    // lease ends the wait if a message is lost. Mutex and SpinLock try and read the key every 10 to 20 s, with four commands, and
    // check their connection every 30 s.
    const std::vector<Row> rows{
        {"RLock", sent_while_waiting_for<RLock>, 0},
        {"FencedLock", sent_while_waiting_for<FencedLock>, 0},
        {"FairLock", sent_while_waiting_for<FairLock>, 7},
        {"ReadWriteLock, writers", sent_while_waiting_for<ReadWriteLock>, 0},
        {"ReadWriteLock, readers", sent_while_waiting_for<ReadSide, ReadWriteLock>, 0},
        {"Mutex", sent_while_waiting_for<Mutex>, 9, 25s, 1},
        {"SpinLock", sent_while_waiting_for<SpinLock>, 9, 25s, 1},
        {"Semaphore", sent_while_waiting_for_permits<Semaphore>, 2},
        {"PermitExpirableSemaphore", sent_while_waiting_for_permits<PermitExpirableSemaphore>, 2},
        {"CountDownLatch", sent_while_waiting_for_a_latch, 2}};
    std::vector<std::future<long long>> running;
    for (const Row& row : rows) running.push_back(start([&row] { return row.sent(row.time); }));
    for (std::size_t i = 0; i < rows.size(); ++i) {
        CAPTURE(rows[i].what);
        const long long sent = running[i].get();
        MESSAGE(rows[i].what << ": " << sent);
        CHECK(sent <= rows[i].most);
        CHECK(sent >= rows[i].least);
    }
}
