// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "journal.hpp"
#include "setting.hpp"
#include "support/process.hpp"

namespace redlatch::soak {

// The worker processes. Starts, freezes and kills them, and starts new ones in their place.
class Crowd {
public:
    Crowd(Shared& shared, const Paths& paths, std::uint64_t seed)
        : shared_(shared), paths_(paths), journal_(paths.journal()), seed_(seed) {}

    void start(std::vector<std::string> urls, std::vector<std::string> steady_urls) {
        urls_ = std::move(urls);
        steady_urls_ = std::move(steady_urls);
        for (std::size_t worker = 0; worker < urls_.size(); ++worker) {
            incarnations_.push_back(0);
            processes_.push_back(spawn(worker));
        }
    }

    // Kills a worker, records what it was doing in its place, and starts a new one.
    void replace(std::size_t worker) {
        processes_[worker].kill();
        write_down(worker, test::monotonic_ns());
        ++incarnations_[worker];
        processes_[worker] = spawn(worker);
    }

    void freeze(std::size_t worker) { processes_[worker].stop(); }
    void thaw(std::size_t worker) { processes_[worker].cont(); }

    // Returns descriptions of the workers that ended although they were not killed, or with an error.
    std::vector<std::string> find_dead() {
        std::vector<std::string> dead;
        for (std::size_t worker = 0; worker < processes_.size(); ++worker)
            if (!processes_[worker].running()) dead.push_back(how_it_ended(worker, test::ExitStatus{-1, 0}));
        std::erase(dead, "");
        return dead;
    }

    // Waits until all of them have ended by themselves. Returns descriptions of the failures.
    std::vector<std::string> join(milliseconds patience) {
        std::vector<std::string> wrong;
        const test::Stopwatch watch;
        for (std::size_t worker = 0; worker < processes_.size(); ++worker) {
            const auto left = std::max(milliseconds{0}, patience - watch.elapsed_ms());
            if (!processes_[worker].wait(left))
                wrong.push_back("worker " + std::to_string(worker) + " does not come to its end");
            else if (const std::string how = how_it_ended(worker, test::ExitStatus{0, 0}); !how.empty())
                wrong.push_back(how);
        }
        return wrong;
    }

    std::size_t incarnation(std::size_t worker) const { return incarnations_[worker]; }
    pid_t pid(std::size_t worker) const { return processes_[worker].pid(); }

    // Returns the worker that runs in this process.
    std::optional<std::size_t> worker_in(pid_t process) const {
        for (std::size_t worker = 0; worker < processes_.size(); ++worker)
            if (pid(worker) == process) return worker;
        return std::nullopt;
    }

private:
    test::ChildProcess spawn(std::size_t worker) {
        std::vector<std::string> args{urls_[worker], paths_.directory, std::to_string(seed_), std::to_string(worker),
                                      std::to_string(incarnations_[worker])};
        args.insert(args.end(), steady_urls_.begin(), steady_urls_.end());
        return test::spawn_self("soak: worker", args);
    }

    std::string how_it_ended(std::size_t worker, const test::ExitStatus& expected) {
        const test::ExitStatus status = processes_[worker].wait(milliseconds{0}).value_or(test::ExitStatus{});
        if (status == expected) return {};
        return "worker " + std::to_string(worker) + " ended with code " + std::to_string(status.code) + ", signal " +
               std::to_string(status.signal);
    }

    void write_down(std::size_t worker, std::int64_t died) {
        for (std::size_t thread = 0; thread < most_threads; ++thread) {
            Underway& underway = shared_.underway[worker][thread];
            const std::uint32_t state = underway.state.exchange(0);
            if (state == 0) continue;
            Entry entry;
            entry.what = state == 2 ? Entry::What::turn : Entry::What::gave_up;
            entry.kind = underway.kind;
            entry.lock = underway.lock;
            entry.owner = owner_number(worker, incarnations_[worker], thread);
            entry.called = underway.called;
            entry.token = underway.token;
            entry.killed = 1;
            if (state == 2) {
                entry.held = underway.held;
                entry.valid = underway.until;
                entry.until = std::min(died, underway.until);
                entry.read = underway.read;
                entry.wrote = died;
            }
            if (underway.kind == static_cast<std::uint32_t>(Kind::semaphore))
                shared_.lost_permits[underway.lock] = true;
            journal_.append(entry);
        }
        // The permits of a dead worker are never released, so continue with a new semaphore.
        const std::uint64_t now = shared_.semaphore_epoch;
        for (std::uint64_t epoch = 1; epoch <= now; ++epoch)
            if ((shared_.in_background[epoch] & (1U << worker)) != 0) shared_.lost_permits[epoch] = true;
        if (shared_.lost_permits[now]) shared_.semaphore_epoch = now + 1;
    }

    Shared& shared_;
    const Paths paths_;
    Journal journal_;
    const std::uint64_t seed_;
    std::vector<std::string> urls_;
    std::vector<std::string> steady_urls_;
    std::vector<std::size_t> incarnations_;
    std::vector<test::ChildProcess> processes_;
};

}  // namespace redlatch::soak
