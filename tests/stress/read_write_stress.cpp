// SPDX-License-Identifier: MIT
// Four processes of five threads on one ReadWriteLock: eighteen readers and two writers, for REDLATCH_STRESS_SECONDS
// (10) in each test. Reads overlap all the time, so without precedence no writer would ever enter.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <redlatch/redlatch.hpp>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "stress/duration.hpp"
#include "support/history.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t processes = 4;
constexpr std::size_t threads = 5;
constexpr std::size_t everybody = processes * threads;

// The first thread of the first two processes. One of them has a client of its own, the other a shared one.
bool is_writer(std::size_t number) { return number == 0 || number == threads; }

struct Book {
    std::atomic<std::size_t> ready{0};
    std::atomic<std::int64_t> end{0};  // 0: not yet begun
    PlainCounter pages;
    std::array<std::atomic<std::uint64_t>, everybody> turns{};
    std::atomic<std::uint64_t> torn{0};    // reads during which a writer wrote
    std::atomic<std::uint64_t> failed{0};  // calls that returned an error
    std::atomic<std::uint64_t> reconnects{0};
    std::atomic<std::uint64_t> lost{0};
};

// The critical section of a reader.
void read(Book& book, std::chrono::microseconds time) {
    const auto before = book.pages.value();
    std::this_thread::sleep_for(time);
    if (book.pages.value() != before) ++book.torn;
}

template <class Side>
bool succeeded(Book& book, const char* what, const Side& side, const std::error_code& ec) {
    if (!ec) return true;
    std::cerr << what << " " << side.name() << ": " << ec.message() << std::endl;
    ++book.failed;
    return false;
}

template <class Side, class Section>
void work(Side& side, std::size_t me, Book& book, const HistoryFile& history, Section section) {
    ++book.ready;
    eventually([&] { return book.end != 0; }, 60s);
    while (monotonic_ns() < book.end) {
        std::error_code ec;
        side.lock(ec);
        if (!succeeded(book, "lock", side, ec)) continue;
        Interval interval{.owner = me, .from = monotonic_ns(), .shared = is_writer(me) ? 0U : 1U};
        section();
        ++book.turns[me];
        interval.until = std::min(monotonic_ns(), monotonic_ns(side.valid_until()));
        side.unlock(ec);
        succeeded(book, "unlock", side, ec);
        history.append(interval);
    }
}

// Every other process shares one client among its threads. In the others each thread has its own.
int run_worker(std::span<const std::string> args) {
    auto book = SharedMemory<Book>::open(args[1]);
    const HistoryFile history{args[2]};
    const std::size_t number = std::stoul(args[3]);
    std::vector<std::unique_ptr<Client>> clients;
    for (std::size_t i = 0; i < (number % 2 == 0 ? 1 : threads); ++i)
        clients.push_back(std::make_unique<Client>(args[0], ClientOptions{.watchdog_timeout = 10s}));
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < threads; ++i) {
        workers.emplace_back([&, i] {
            const std::size_t me = number * threads + i;
            ReadWriteLock lock{*clients[i % clients.size()], "stressed", {.writer_preference = true}};
            if (is_writer(me))
                return work(lock.write_lock(), me, *book, history, [&] { book->pages.add_one_unseen(); });
            std::minstd_rand random{static_cast<unsigned>(me)};
            work(lock.read_lock(), me, *book, history,
                 [&] { read(*book, std::chrono::microseconds{random() % 2000}); });
        });
    }
    workers.clear();
    for (const auto& client : clients) {
        const Stats stats = client->stats();
        book->reconnects += stats.reconnects;
        book->lost += stats.lost_holds;
    }
    return 0;
}

const Role worker_role{"stress: readers and writers", run_worker};

// Runs the workers. Until they end, repeats the disturbance.
template <class Disturb>
void stress(RedisServer& server, Book& book, const TempDir& dir, long long other_connections, Disturb disturb) {
    const HistoryFile history{dir.file("history")};
    std::vector<ChildProcess> workers;
    for (std::size_t i = 0; i < processes; ++i) {
        workers.push_back(spawn_self("stress: readers and writers",
                                     {server.url(), dir.file("book"), dir.file("history"), std::to_string(i)}));
    }
    REQUIRE(eventually([&] { return book.ready == everybody; }, patient(30s)));
    const auto end = std::chrono::steady_clock::now() + stress_duration(10s);
    book.end = monotonic_ns(end);
    while (std::chrono::steady_clock::now() < end) disturb();
    for (ChildProcess& worker : workers) {
        const auto status = worker.wait(patient(30s));
        REQUIRE(status);
        CHECK(status->code == 0);
    }

    std::uint64_t reads = 0;
    std::uint64_t writes = 0;
    std::uint64_t fewest_writes = ~std::uint64_t{0};
    for (std::size_t i = 0; i < everybody; ++i) {
        CHECK(book.turns[i] > 0);
        (is_writer(i) ? writes : reads) += book.turns[i];
        if (is_writer(i)) fewest_writes = std::min<std::uint64_t>(fewest_writes, book.turns[i]);
    }
    const std::vector<Interval> intervals = history.read();
    MESSAGE(writes << " writes, " << reads << " reads, up to " << peak(intervals) << " at once, "
                   << book.reconnects.load() << " reconnects");
    CHECK(book.pages.value() == writes);
    CHECK(book.torn == 0);
    CHECK(intervals.size() == reads + writes);
    CHECK_FALSE(find_overlap(intervals));
    CHECK(peak(intervals) > everybody / 4);
    CHECK(reads > everybody * 10);
    CHECK(fewest_writes > 10);
    CHECK(book.failed == 0);
    CHECK(book.lost == 0);

    RawRedis redis{server};
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(eventually([&] { return redis.pubsub_channels().empty(); }));
    CHECK(eventually([&] { return redis.connected_clients() == other_connections; }));
}

}  // namespace

TEST_CASE("a writer is alone among eighteen readers of four processes, which do not starve it") {
    RedisServer server;
    const TempDir dir;
    auto book = SharedMemory<Book>::create(dir.file("book"));
    stress(server, *book, dir, 0, [] { std::this_thread::sleep_for(10ms); });
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(book->reconnects == 0);
}

TEST_CASE(
    "a writer stays alone and gets its turn while connections are killed and scripts flushed several times a second") {
    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    auto book = SharedMemory<Book>::create(dir.file("book"));
    long long killed = 0;
    int turn = 0;
    stress(server, *book, dir, 1, [&] {
        std::this_thread::sleep_for(60ms);
        switch (turn++ % 3) {
            case 0: killed += redis.kill_clients("normal"); break;
            case 1: killed += redis.kill_clients("pubsub"); break;
            default: redis.text("SCRIPT", "FLUSH");
        }
    });
    CHECK(killed > 0);
    CHECK(book->reconnects > 0);
}
