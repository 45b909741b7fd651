// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/simulation.hpp"
#include "support/coroutine.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace sim {

// The expected behaviour of a kind of lock.
struct Habits {
    Nanos poll = 0;       // how long a waiter may sleep while the lock is free, without faults
    Nanos late_hold = 0;  // how long after the last use a late command may hold the lock for nobody
    bool reentrant = true;
    bool shared = false;
    Nanos rest = 0;               // some uses ask for a minimum of up to this; 0: the kind has none
    bool long_watchdogs = false;  // in some runs
};

// One use of a lock by one thread: acquires it in some way, works, releases it, and checks all guarantees.
template <class Lock>
class LockUser {
public:
    LockUser(Simulation& simulation, InvariantChecker& checker, Lock& lock, Habits habits)
        : simulation_(simulation), checkers_{&checker}, lock_(lock), habits_(habits) {}

    // Adds another checker that the lock also covers.
    LockUser& with(InvariantChecker& checker) {
        checkers_.push_back(&checker);
        return *this;
    }

    void use() {
        simulation_.pause();
        bool held = false;
        upheavals_ = checkers_[0]->upheavals();
        for (InvariantChecker* checker : checkers_) checker->waits();
        try {
            held = take();
        } catch (const redlatch::Error& error) {
            scheduler().trace(std::string("error: ") + error.what());
            if (!simulation_.excuses_errors()) scheduler().fail(std::string("a call failed: ") + error.what());
        }
        for (InvariantChecker* checker : checkers_) checker->waits_no_more();
        if (!held) return;
        for (InvariantChecker* checker : checkers_) checker->holds();
        work();
        give_back();
        for (InvariantChecker* checker : checkers_) checker->holds_no_more();
    }

private:
    static Nanos now() { return scheduler().now(); }
    Random& random() { return simulation_.random(); }
    void pause(Nanos most) { scheduler().sleep(random().between(0, most)); }
    redlatch::Milliseconds some_ms(Nanos least, Nanos most) {
        return redlatch::Milliseconds(random().between(least, most));
    }

    redlatch::Lease some_lease() { return redlatch::Lease(simulation_.some_lease(30 * ms)); }

    bool take() {
        if (habits_.rest > 0 && random().below(4) == 0) return take_for_at_least();
        if (random().below(3) == 0) return take_async();
        switch (random().below(6)) {
            case 0: lock_.lock(); return true;
            case 1: lock_.lock(some_lease()); return true;
            case 2: return random().below(2) ? lock_.try_lock() : lock_.try_lock(some_lease());
            case 3: return take_in_time(some_ms(1, 400));
            case 4: return take_in_time(some_ms(1, 4000));
            default: return take_unless_stopped();
        }
    }

    // The lock must stay taken for the minimum, even if this thread releases it earlier.
    bool take_for_at_least() {
        const redlatch::Milliseconds least = some_ms(1, habits_.rest / ms);
        const Nanos begun = now();
        const bool renewed = random().below(2) == 0;
        const auto bounds =
            renewed ? redlatch::Lease::at_least(least)
                    : redlatch::Lease::at_least(least, redlatch::Lease(least + simulation_.some_lease(30 * ms)));
        const bool held = random().below(2) == 0 ? (lock_.lock(bounds), true) : lock_.try_lock(bounds);
        if (held) rests_until_ = begun + least.count() * ms;
        return held;
    }

    bool take_in_time(redlatch::Milliseconds time) {
        const Nanos until = now() + time.count() * ms + simulation_.slack();
        const bool held = random().below(2) ? lock_.try_lock_for(time) : lock_.try_lock_for(time, some_lease());
        if (now() > until) scheduler().fail("a timed call outlasted its deadline by " + late(until));
        return held;
    }

    bool take_unless_stopped() {
        std::stop_source source;
        const Nanos at = now() + random().between(0, 500 * ms);
        scheduler().at(at, [source, id = scheduler().self().process] {
            // Run on a thread of the same process, because the library's stop callbacks lock its mutexes.
            if (!scheduler().has_crashed(id)) scheduler().spawn(id, [source]() mutable { source.request_stop(); });
        });
        const bool held = lock_.lock(source.get_token());
        const Nanos until = at + simulation_.slack() + (simulation_.excuses_errors() ? 4 * second : 0);
        if (now() > until) scheduler().fail("a stopped call came back late by " + late(until));
        return held;
    }

    // Acquires it by an operation, which this thread awaits in one of the ways there are. Meanwhile it may change its mind.
    bool take_async() {
        const Nanos most = 4000 * ms;
        Nanos until = forever;
        std::stop_source source;
        const bool cancels = random().below(2) == 0;
        auto operation = begin_async(source, cancels, most, until);
        Nanos cancelled_at = forever;
        if (cancels) {
            cancelled_at = now() + random().between(0, 500 * ms);
            until = std::min(until, cancelled_at + simulation_.slack());
        }
        redlatch::Hold hold = random().below(2) == 0
                                  ? by_callback(std::move(operation), source, cancelled_at)
                                  : by_coroutine(std::move(operation), source, cancelled_at, random().below(2) == 0);
        if (now() > until) scheduler().fail("an operation outlasted its deadline by " + late(until));
        if (!hold) return false;
        hold_.emplace(std::move(hold));
        return true;
    }

    redlatch::Operation<redlatch::Hold> begin_async(std::stop_source& source, bool cancels, Nanos most, Nanos& until) {
        const auto token = source.get_token();
        const redlatch::Milliseconds time = some_ms(1, most / ms);
        // The first command gets 250 ms, however short the time.
        const Nanos bound = std::max(time.count() * ms, 250 * ms) + simulation_.slack();
        switch (random().below(cancels ? 4 : 3)) {
            case 0: return lock_.async_try_lock().stop_on(token);
            case 1: until = now() + bound; return lock_.async_try_lock_for(time, some_lease()).stop_on(token);
            case 2: until = now() + bound; return lock_.async_try_lock_for(time).stop_on(token);
            default: return random().below(2) ? lock_.async_lock(token) : lock_.async_lock(some_lease(), token);
        }
    }

    // An executor whose jobs this thread runs.
    struct Desk {
        void execute(std::function<void()> job) {
            const std::lock_guard lock(mutex);
            jobs.push_back(std::move(job));
            changed.notify_one();
        }

        // Runs jobs until `done` is true or the instant has come. Returns whether it is done.
        bool run_until(const bool& done, Nanos until) {
            std::unique_lock lock(mutex);
            while (!done) {
                const auto at = redlatch::Instant{} + std::chrono::nanoseconds(until);
                if (jobs.empty() && now() >= until) return false;
                if (jobs.empty()) {
                    if (until == forever)
                        changed.wait(lock);
                    else
                        changed.wait_until(lock, at);
                    continue;
                }
                const auto job = std::move(jobs.front());
                jobs.pop_front();
                lock.unlock();
                job();
                lock.lock();
            }
            return true;
        }

        std::mutex mutex;  // guards jobs
        std::condition_variable changed;
        std::deque<std::function<void()>> jobs;
    };

    // The completion must come exactly once, with a hold or with an error.
    struct Answer {
        void take(std::error_code with, redlatch::Hold result) {
            if (done) scheduler().fail("an operation completed twice");
            if (with && result) scheduler().fail("an operation completed with a hold and with " + with.message());
            done = true;
            ec = with;
            hold = std::move(result);
        }

        bool done = false;
        std::error_code ec;
        redlatch::Hold hold;
    };

    redlatch::Hold by_callback(redlatch::Operation<redlatch::Hold> operation, std::stop_source source,
                               Nanos cancelled_at) {
        const auto desk = std::make_shared<Desk>();
        const auto answer = std::make_shared<Answer>();
        std::move(operation)
            .on([desk](std::function<void()> job) { desk->execute(std::move(job)); })
            .start([answer](std::error_code ec, redlatch::Hold hold) { answer->take(ec, std::move(hold)); });
        if (answer->done) scheduler().fail("an operation completed inside the call that began it");
        if (!desk->run_until(answer->done, cancelled_at)) {
            source.request_stop();
            if (answer->done) scheduler().fail("an operation completed inside the call that cancelled it");
            desk->run_until(answer->done, forever);
        }
        return judged(*answer, cancelled_at);
    }

    // Destroys the coroutine when it changes its mind, or cancels the operation by the token.
    redlatch::Hold by_coroutine(redlatch::Operation<redlatch::Hold> operation, std::stop_source source,
                                Nanos cancelled_at, bool destroys) {
        const auto desk = std::make_shared<Desk>();
        const auto answer = std::make_shared<Answer>();
        redlatch::test::Fiber waiting = await(
            std::move(operation).on([desk](std::function<void()> job) { desk->execute(std::move(job)); }), answer);
        if (answer->done) scheduler().fail("an operation completed inside the call that began it");
        if (!desk->run_until(answer->done, cancelled_at)) {
            if (destroys) {
                waiting.destroy();
                const bool never = false;
                desk->run_until(never, now());
                if (answer->done) scheduler().fail("a coroutine went on after its end");
                return {};
            }
            source.request_stop();
            desk->run_until(answer->done, forever);
        }
        return judged(*answer, cancelled_at);
    }

    static redlatch::test::Fiber await(redlatch::Operation<redlatch::Hold> operation, std::shared_ptr<Answer> answer) {
        auto outcome = co_await std::move(operation).no_throw();
        answer->take(outcome.first, std::move(outcome.second));
    }

    redlatch::Hold judged(Answer& answer, Nanos cancelled_at) {
        if (answer.ec == redlatch::errc::cancelled && now() < cancelled_at)
            scheduler().fail("an operation was cancelled by nobody");
        if (answer.ec && answer.ec != redlatch::errc::cancelled) {
            scheduler().trace("error: " + answer.ec.message());
            if (!simulation_.excuses_errors()) scheduler().fail("an operation failed: " + answer.ec.message());
        }
        return std::move(answer.hold);
    }

    static std::string late(Nanos until) { return std::to_string((now() - until) / ms) + " ms"; }

    // Checks the lock as careful code does before each write.
    bool look() {
        const auto valid_until = hold_ ? hold_->valid_until() : lock_.valid_until();
        const Nanos until = valid_until.time_since_epoch().count();
        const bool lost = lost_.stop_requested();
        if (now() < until) {
            certain_until_ = until;
            if (lost || checkers_[0]->upheavals() != upheavals_) return false;
            for (InvariantChecker* checker : checkers_) checker->certain(habits_.shared, until);
            return true;
        }
        // The hold may have been lost just now, and the thread that reports it has not run yet.
        certain_until_ = std::max(certain_until_, until);
        if (!lost && now() > certain_until_ + simulation_.local_slack()) {
            scheduler().sleep(simulation_.local_slack());
            if (!lost_.stop_requested()) scheduler().fail("lost() is late by " + late(certain_until_));
        }
        return false;
    }

    void work() {
        lost_ = hold_ ? hold_->lost() : lock_.lost();
        certain_until_ = now();
        const bool sure = look();
        if constexpr (requires { lock_.token(); })
            if (sure) {
                std::error_code gone;  // the hold may end after look()
                const std::int64_t token = hold_ ? hold_->token() : lock_.token(gone);
                if (!gone && look()) checkers_[0]->token(token);
            }
        InvariantChecker& checker = *checkers_[0];
        const std::int64_t read = checker.guarded;
        for (std::uint64_t steps = random().below(4); steps > 0; --steps) {
            if (random().below(5) == 0)
                pause(simulation_.long_work());
            else
                pause(40 * ms);
            look();
            if (habits_.reentrant && !hold_ && random().below(4) == 0) reenter();
        }
        if (sure && look() && !habits_.shared) {
            checker.guarded = read + 1;
            ++checker.entries;
        }
    }

    void reenter() {
        std::error_code ec;
        const bool held = random().below(2) ? lock_.try_lock(ec) : lock_.try_lock(some_lease(), ec);
        look();
        if (held) {
            pause(20 * ms);
            look();
            lock_.unlock(ec);
            look();
        }
    }

    void give_back() {
        const bool was_certain = look();
        const Nanos left = certain_until_ - now();
        for (InvariantChecker* checker : checkers_) {
            checker->uncertain();
            if (was_certain) checker->rests(habits_.shared, rests_until_);
        }
        std::error_code ec;
        if (!hold_) {
            lock_.unlock(ec);
        } else if (random().below(2) == 0) {
            ec = hold_->unlock();
        } else {
            hold_.reset();  // does not wait for the server
        }
        if (ec) scheduler().trace("unlock: " + ec.message());
        if (ec && was_certain && left > simulation_.slack() && !simulation_.excuses_errors())
            scheduler().fail("unlock() of a certain hold says: " + ec.message());
    }

    Simulation& simulation_;
    std::vector<InvariantChecker*> checkers_;
    Lock& lock_;
    const Habits habits_;
    std::optional<redlatch::Hold> hold_;  // if it was acquired by an operation
    std::stop_token lost_;
    Nanos certain_until_ = 0;
    Nanos rests_until_ = 0;        // the end of its minimum, if it has one
    std::uint64_t upheavals_ = 0;  // the checker's count when this thread asked for the lock
};

}  // namespace sim
