// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faults/fault_kit.hpp"
#include "support/history.hpp"

// Measures how soon all clients work again after a fault.
namespace redlatch::fault {

using namespace redlatch::detail;

// A thread that repeats one operation, and records when it completed it each time.
class Worker {
public:
    Worker(std::string what, std::function<bool()> once)
        : name(std::move(what)), thread_([this, once = std::move(once)] {
              while (!stopping_) {
                  if (!once()) {
                      std::this_thread::sleep_for(5ms);
                      continue;
                  }
                  const std::lock_guard hold{mutex_};
                  done_.push_back(monotonic_ns());
              }
          }) {}
    ~Worker() {
        stopping_ = true;
        thread_.join();
    }

    // Returns when it first completed its operation after that instant, or 0 if it has not yet.
    std::int64_t first_after(std::int64_t since) {
        const std::lock_guard hold{mutex_};
        const auto found = std::upper_bound(done_.begin(), done_.end(), since);
        return found == done_.end() ? 0 : *found;
    }

    const std::string name;

private:
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::vector<std::int64_t> done_;
    std::thread thread_;
};

using Name = std::function<std::string(const std::string&)>;

// Several clients that lock, wait, hold and renew.
class Fleet {
public:
    static constexpr int size = 3;

    Fleet(const std::string& url, const Name& name, std::chrono::milliseconds patience = 3s) {
        for (int i = 0; i < size; ++i) {
            ClientOptions options;
            options.command_timeout = patience;
            options.unreachable_timeout = 120s;
            const auto client = clients_.emplace_back(std::make_shared<Client>(url, options));
            const std::string number = std::to_string(i);
            held_.push_back(std::make_shared<RLock>(*client, name("held" + number)));
            held_.back()->lock();
            lock_loop("contended " + number, std::make_shared<RLock>(*client, name("contended")));
            lock_loop("fair " + number, std::make_shared<FairLock>(*client, name("fair")));
            lock_loop("own " + number, std::make_shared<RLock>(*client, name("own" + number)));
            const auto shared = std::make_shared<ReadWriteLock>(*client, name("shared"));
            lock_loop("writer " + number, {shared, &shared->write_lock()});
            lock_loop("reader " + number, {shared, &shared->read_lock()});
            const auto permits = std::make_shared<Semaphore>(*client, name("permits"));
            permits->try_set_permits(2);
            loop("permits " + number, [permits] {
                permits->acquire(2);
                std::this_thread::sleep_for(2ms);
                permits->release(2);
                std::this_thread::sleep_for(10ms);
                return true;
            });
            const auto leased = std::make_shared<PermitExpirableSemaphore>(*client, name("leased"));
            leased->try_set_permits(1);
            loop("leased " + number, [leased] {
                const PermitId id = leased->acquire();
                std::this_thread::sleep_for(2ms);
                leased->release(id);
                std::this_thread::sleep_for(10ms);
                return true;
            });
            // The name of a latch must have no {tag}.
            if (name("latch").find('{') != std::string::npos) continue;
            // Each waits for the count-downs of another client, which go on until it has ended.
            const auto mine = std::make_shared<CountDownLatch>(*client, name("latch" + number));
            loop("latch " + number, [mine] {
                mine->try_set_count(1);
                mine->wait();
                return true;
            });
            std::rotate(workers_.begin(), workers_.end() - 1, workers_.end());
            const auto next = std::make_shared<CountDownLatch>(*client, name("latch" + std::to_string((i + 1) % size)));
            loop("counting " + number, [next] {
                next->count_down();
                std::this_thread::sleep_for(10ms);
                return true;
            });
        }
    }

    // Returns whether every thread completes its operation once more.
    bool works() {
        const std::int64_t now = monotonic_ns();
        return eventually(
            [&] {
                return std::all_of(workers_.begin(), workers_.end(),
                                   [&](const auto& worker) { return worker->first_after(now) != 0; });
            },
            20s);
    }

    // Returns how long after `since` the slowest thread first completed its operation; nothing if that takes very long.
    std::optional<std::chrono::milliseconds> slowest(std::int64_t since, std::string& all) {
        std::int64_t last = since;
        for (const auto& worker : workers_) {
            std::int64_t when = 0;
            if (!eventually([&] { return (when = worker->first_after(since)) != 0; }, 60s)) {
                all += worker->name + ": not yet; ";
                return std::nullopt;
            }
            all += worker->name + ": " + std::to_string((when - since) / 1'000'000) + " ms; ";
            last = std::max(last, when);
        }
        return std::chrono::milliseconds{(last - since) / 1'000'000};
    }

    std::chrono::milliseconds slowest(std::int64_t since) {
        std::string all;
        const auto time = slowest(since, all);
        if (!time || *time > 500ms) MESSAGE(all);
        REQUIRE(time);
        return *time;
    }

private:
    // An operation that throws is repeated.
    void loop(std::string what, std::function<bool()> once) {
        const auto completes = [once = std::move(once)] {
            bool done = false;
            return !code_of([&] { done = once(); }) && done;
        };
        workers_.push_back(std::make_unique<Worker>(std::move(what), completes));
    }

    void lock_loop(std::string what, std::shared_ptr<LockApi> lock) {
        loop(std::move(what), [lock = std::move(lock)] {
            lock->lock();
            std::this_thread::sleep_for(2ms);
            std::error_code ec;
            lock->unlock(ec);
            std::this_thread::sleep_for(10ms);
            return !ec;
        });
    }

    std::vector<std::shared_ptr<Client>> clients_;
    std::vector<std::shared_ptr<RLock>> held_;
    std::vector<std::unique_ptr<Worker>> workers_;
};

inline std::string as_it_is(const std::string& name) { return name; }

// On a busy machine a process may get no processor for a while.
inline constexpr std::chrono::milliseconds soon_after = patient(1000ms);

// Returns the best measurement of at most `rounds`. Stops as soon as one is within the bound.
template <class Round>
std::chrono::milliseconds best_of(int rounds, std::chrono::milliseconds bound, Round round) {
    auto best = round();
    for (int i = 1; i < rounds && best > bound; ++i) best = std::min(best, round());
    return best;
}

}  // namespace redlatch::fault
