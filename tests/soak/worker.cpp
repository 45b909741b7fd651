// SPDX-License-Identifier: MIT
// A worker: a process with many threads, each of which uses one kind of lock.
#include "worker.hpp"

#include <atomic>
#include <memory>
#include <redlatch/redlatch.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/process.hpp"
#include "support/shared_memory.hpp"

namespace redlatch::soak {

using namespace redlatch::detail;

namespace {

// One thread each. A post that is listed twice has two threads in every worker, which hand holds over to each other.
constexpr std::array posts{
    soak_rlock,   soak_rlock, soak_fair,  soak_fair,       soak_fenced,     soak_fenced,
    soak_mutex,   soak_mutex, soak_spin,  soak_read_write, soak_read_write, soak_semaphore,
    soak_permits, soak_latch, soak_multi, soak_multi,      soak_red,        soak_leader,
};

// Records when this process stood still, frozen or without a processor: it cannot be notified then.
// `before`: when this process has not called anything yet. `working`: the threads whose calls are judged; the last of them
// ends after the soak is told to stop.
void watch_for_pauses(Crew& crew, std::int64_t before, const std::atomic<int>& working) {
    while (working > 0) {
        std::this_thread::sleep_for(5ms);
        const std::int64_t now = test::monotonic_ns();
        if (now - before > ns(20ms)) {
            Entry entry = crew.entry(Entry::What::pause, Kind::rlock, 0);
            entry.called = before;
            entry.returned = now;
            crew.note(entry);
        }
        before = now;
    }
}

// args: url, directory, seed, worker, incarnation, URLs of the steady servers
int run_worker(std::span<const std::string> args) {
    const Paths paths{args[1]};
    auto shared = test::SharedMemory<Shared>::open(paths.shared());
    const Journal journal{paths.journal()};
    const std::uint64_t seed = std::stoull(args[2]);
    const std::size_t worker = std::stoul(args[3]);
    const std::size_t incarnation = std::stoul(args[4]);
    ClientOptions options;
    options.watchdog_timeout = watchdog_timeout;
    options.command_timeout = command_timeout;
    options.unreachable_timeout = unreachable_timeout;
    options.ping_interval = command_timeout;
    options.grants = worker % 4 != 3;  // clients with and without them share locks
    Client client{args[0], options};
    std::vector<std::unique_ptr<Client>> steady;
    for (const std::string& url : args.subspan(5)) steady.push_back(std::make_unique<Client>(url, options));

    const std::int64_t begun = test::monotonic_ns();
    std::vector<std::unique_ptr<Crew>> crews;
    std::vector<std::thread> threads;
    std::atomic<int> working{0};
    const auto start = [&](auto post) {
        crews.push_back(std::make_unique<Crew>(
            Seat{client, steady, *shared, journal, paths, seed, worker, incarnation, crews.size()}));
        threads.emplace_back(post, std::ref(*crews.back()));
    };
    const auto start_work = [&](auto post) {
        ++working;
        start([post, &working](Crew& crew) {
            post(crew);
            --working;
        });
    };
    for (const auto post : posts) start_work(post);
    start_work(count_down_latches);
    start([&](Crew& crew) { watch_for_pauses(crew, begun, working); });
    ++shared->ready;
    for (std::thread& thread : threads) thread.join();
    return 0;
}

const test::Role worker_role{"soak: worker", run_worker};

const test::Role resource_role{"soak: fenced resource", [](std::span<const std::string> args) -> int {
                                   test::FencedResourceServer{Paths{args[0]}.resource()}.serve();
                               }};

}  // namespace

}  // namespace redlatch::soak
