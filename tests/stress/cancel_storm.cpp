// SPDX-License-Identifier: MIT
// Many operations on a few names of every primitive, most of them cancelled in one way or another, while the connections
// are cut and replies are late or lost: for REDLATCH_STRESS_SECONDS (6).
//
// The leases are far longer than the faults, so no hold may be lost. One of the three servers of the RedLock is behind the
// faults, the others are its majority. Whoever holds a lock changes plain variables, which
// nothing but the lock guards: ThreadSanitizer sees two holders at once, and so does the sum at the end.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <redlatch/redlatch.hpp>
#include <sstream>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "stress/duration.hpp"
#include "support/coroutine.hpp"
#include "support/end_state.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int permits = 3;
constexpr auto lease = 60s;
constexpr auto lease_of_red_lock = patient(3s);  // a server that has not run for as long has no vote
constexpr std::size_t drivers = 3;
constexpr std::size_t at_once = 24;  // operations of one driver

// What the operations came to.
struct Tally {
    std::atomic<std::uint64_t> begun{0};
    std::atomic<std::uint64_t> held{0};
    std::atomic<std::uint64_t> in_vain{0};  // completed without a hold and without an error
    std::atomic<std::uint64_t> cancelled{0};
    std::atomic<std::uint64_t> failed{0};  // with another error
    std::atomic<std::uint64_t> destroyed{0};
    std::atomic<std::uint64_t> dropped{0};  // futures
    std::atomic<std::uint64_t> twice{0};    // completions beyond the first
    std::atomic<std::uint64_t> both{0};     // completions with a hold and an error
    std::atomic<std::uint64_t> late{0};     // coroutines that went on although they had been destroyed
    std::atomic<std::uint64_t> broken{0};   // sections that met another holder
    std::atomic<std::uint64_t> lost{0};     // holds that had ended before they were released

    std::mutex mutex;  // guards the others
    std::map<std::string, std::uint64_t> codes;
    std::string losses;  // which holds, and how long they would have lasted

    void fail(const std::error_code& ec) {
        ++failed;
        const std::lock_guard lock(mutex);
        ++codes[ec.message()];
    }

    // `until`: the end of the hold, as it was known before.
    void lose(const std::string& how, const std::string& name, SteadyClock::time_point until) {
        ++lost;
        const std::chrono::duration<double> left = until - SteadyClock::now();
        const std::lock_guard lock(mutex);
        losses += " " + name + " " + how + " with " + std::to_string(left.count()) + " s left;";
    }
};

// What a lock guards: plain variables.
class Guarded {
public:
    // The section of a sole holder.
    void change(std::uint64_t me, Tally& tally, std::chrono::microseconds time) {
        if (owner_ != 0) ++tally.broken;
        owner_ = me;
        const std::uint64_t before = sections_;
        std::this_thread::sleep_for(time);
        if (owner_ != me || sections_ != before) ++tally.broken;
        sections_ = before + 1;
        owner_ = 0;
        ++counted_;
    }

    // The section of a reader.
    void look(Tally& tally, std::chrono::microseconds time) const {
        const std::uint64_t before = sections_;
        std::this_thread::sleep_for(time);
        if (owner_ != 0 || sections_ != before) ++tally.broken;
    }

    // Returns true if no section was lost. Call it when all are over.
    bool is_whole() const { return sections_ == counted_ && owner_ == 0; }

private:
    std::uint64_t sections_ = 0;
    std::uint64_t owner_ = 0;
    std::atomic<std::uint64_t> counted_{0};
};

// The section of one who has permits.
class Room {
public:
    void visit(std::ptrdiff_t n, Tally& tally, std::chrono::microseconds time) {
        if (inside_.fetch_add(n) + n > permits) ++tally.broken;
        std::this_thread::sleep_for(time);
        inside_ -= n;
    }

private:
    std::atomic<std::ptrdiff_t> inside_{0};
};

// One operation, and the way in which it is disturbed.
struct Attempt {
    std::uint64_t number = 0;
    std::stop_source stop{};
    SteadyClock::time_point cancel_at = SteadyClock::time_point::max();
    bool destroys = false;  // the coroutine is destroyed then; otherwise a stop is requested
    std::atomic<int> completions{0};
    std::atomic<bool> is_destroyed{false};
    std::optional<Fiber> fiber{};
    std::function<bool()> is_over{};  // of a future
};

// How a hold ends.
enum class Release { by_destructor, by_unlock, by_operation };

struct Storm {
    Storm(const std::string& url, const std::array<RedisServer, 2>& undisturbed) : client(url, options(lease)) {
        for (const char* name : {"rlock a", "rlock b"}) add(std::make_shared<RLock>(client, name));
        add(std::make_shared<FairLock>(client, "fair"));
        add(std::make_shared<FencedLock>(client, "fenced"));
        add(std::make_shared<SpinLock>(client, "spin"));
        add(std::make_shared<Mutex>(client, "mutex"));
        add(table);
        add(std::make_shared<MultiLock>(part_a, part_b));
        for (const std::string& server : {url, undisturbed[0].url(), undisturbed[1].url()}) {
            voters.emplace_back(server, options(lease_of_red_lock));
            votes.emplace_back(voters.back(), "voted");
        }
        add(std::make_shared<RedLock>(votes, RedLockOptions{.node_timeout = patient(500ms)}), lease_of_red_lock);
        static_cast<void>(semaphore.try_set_permits(permits));
        static_cast<void>(leased.try_set_permits(permits));
    }

    static ClientOptions options(std::chrono::milliseconds watchdog) {
        ClientOptions options;
        options.watchdog_timeout = watchdog;
        options.command_timeout = patient(1s);
        options.unreachable_timeout = patient(30s);
        return options;
    }

    struct Subject {
        std::shared_ptr<redlatch::detail::LockApi> lock;
        Lease lease;
        std::unique_ptr<Guarded> guarded = std::make_unique<Guarded>();
    };
    void add(std::shared_ptr<redlatch::detail::LockApi> lock, std::chrono::milliseconds longest = lease) {
        subjects.push_back({std::move(lock), Lease{longest}});
    }

    bool is_whole() const {
        return std::all_of(subjects.begin(), subjects.end(), [](const Subject& s) { return s.guarded->is_whole(); });
    }

    Client client;
    RLock part_a{client, "part a"}, part_b{client, "part b"};
    std::deque<Client> voters;
    std::deque<RLock> votes;
    std::shared_ptr<ReadWriteLock> table = std::make_shared<ReadWriteLock>(client, "table");
    std::vector<Subject> subjects;
    Semaphore semaphore{client, "permits"};
    PermitExpirableSemaphore leased{client, "leased permits"};
    CountDownLatch latch{client, "latch"};
    Room room, leased_room;
    Tally tally;
    std::atomic<std::uint64_t> numbers{0};
    std::atomic<bool> ends{false};
};

void end_hold(Hold hold, Release how, Tally& tally) {
    if (how == Release::by_destructor) return;
    if (how == Release::by_unlock) {
        const std::string name = hold.name();
        const auto until = hold.valid_until();
        if (hold.unlock() == errc::hold_lost) tally.lose("at its unlock()", name, until);
        return;
    }
    const std::string name = hold.name();
    const auto until = hold.valid_until();
    std::move(hold).async_unlock().start([&tally, name, until](std::error_code ec) {
        if (ec == errc::hold_lost) tally.lose("at its async_unlock()", name, until);
    });
}

void end_hold(Permits, Release, Tally&) {}
void end_hold(bool, Release, Tally&) {}

// Runs operations in every way, and cancels them. The thread that runs it resumes its coroutines, so it may destroy them.
class StormDriver {
public:
    StormDriver(Storm& storm, std::uint32_t seed) : storm_(storm), random_(seed) {}

    void run() {
        while (!storm_.ends) {
            while (attempts_.size() < at_once) begin();
            step();
            std::this_thread::sleep_for(500us);
        }
    }

    // Resumes coroutines, and cancels what is due. Returns how many operations are not over.
    std::size_t step() {
        executor_.run();
        const auto now = SteadyClock::now();
        for (auto at = attempts_.begin(); at != attempts_.end();) {
            Attempt& attempt = **at;
            bool is_over = attempt.completions > 0 && (!attempt.fiber || attempt.fiber->done());
            if (!is_over && now >= attempt.cancel_at) {
                attempt.cancel_at = SteadyClock::time_point::max();
                if (attempt.destroys) {
                    attempt.is_destroyed = true;
                    attempt.fiber->destroy();
                    ++storm_.tally.destroyed;
                    is_over = true;
                } else {
                    attempt.stop.request_stop();
                }
            }
            if (attempt.is_over) is_over = attempt.is_over();
            at = is_over ? attempts_.erase(at) : std::next(at);
        }
        return attempts_.size();
    }

private:
    std::uint32_t any(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }

    void begin() {
        switch (any(12)) {
            case 0:
                return with(storm_.semaphore.async_acquire(1 + any(2), stop()),
                            [this](Permits& got, auto time) { storm_.room.visit(got.count(), storm_.tally, time); });
            case 1:
                return with(storm_.semaphore.async_try_acquire_for(soon(), 1, stop()),
                            [this](Permits& got, auto time) { storm_.room.visit(got.count(), storm_.tally, time); });
            case 2:
                return with(
                    storm_.leased.async_acquire(1 + any(2), Lease{lease}, stop()),
                    [this](Permits& got, auto time) { storm_.leased_room.visit(got.count(), storm_.tally, time); });
            case 3: return with(storm_.latch.async_wait(stop()), [](bool, auto) {});
            case 4:
                return with(storm_.table->async_lock_shared(stop()),
                            [this](Hold&, auto time) { storm_.subjects[table_at].guarded->look(storm_.tally, time); });
            case 5:
                return with(storm_.table->async_try_lock_shared_for(soon(), stop()),
                            [this](Hold&, auto time) { storm_.subjects[table_at].guarded->look(storm_.tally, time); });
            default: break;
        }
        const Storm::Subject& subject = storm_.subjects[any(static_cast<std::uint32_t>(storm_.subjects.size()))];
        const auto section = [this, &guarded = *subject.guarded, number = next_->number](const Hold& hold, auto time) {
            const auto until = hold.valid_until();
            if (until <= SteadyClock::now()) {
                storm_.tally.lose("before its section", hold.name(), std::max(until, SteadyClock::time_point{}));
                return;
            }
            guarded.change(number, storm_.tally, time);
        };
        switch (any(4)) {
            case 0: return with(subject.lock->async_try_lock_for(soon(), stop()), section);
            case 1: return with(subject.lock->async_try_lock(subject.lease), section);
            default: return with(subject.lock->async_lock(stop()), section);
        }
    }

    std::chrono::milliseconds soon() { return std::chrono::milliseconds{any(21)}; }

    std::shared_ptr<Attempt> fresh() {
        auto attempt = std::make_shared<Attempt>();
        attempt->number = ++storm_.numbers;
        return attempt;
    }
    std::stop_token stop() const { return next_->stop.get_token(); }

    // Begins the operation in one of the ways.
    template <class R, class Section>
    void with(Operation<R> operation, Section section) {
        const std::shared_ptr<Attempt> attempt = std::exchange(next_, fresh());
        ++storm_.tally.begun;
        const auto time = std::chrono::microseconds{any(4) == 0 ? any(300) : 0};
        const auto how = static_cast<Release>(any(8) == 0 ? 1 : 2 * any(2));
        const std::uint32_t way = any(8);
        if (any(4) != 0) attempt->cancel_at = SteadyClock::now() + std::chrono::microseconds{any(20'000)};
        if (way < 3) {
            std::move(operation).start([this, attempt, section, time, how](std::error_code ec, auto... got) mutable {
                note(ec, section, time, how, std::move(got)...);
                if (attempt->completions.fetch_add(1) != 0) ++storm_.tally.twice;
            });
        } else if (way < 6) {
            attempt->destroys = any(2) == 0;
            attempt->fiber.emplace(coroutine(*attempt, std::move(operation), section, time, how));
        } else if (way == 6) {
            ++storm_.tally.dropped;
            static_cast<void>(std::move(operation).future());
            return;
        } else {
            const auto future = std::make_shared<std::future<R>>(std::move(operation).future());
            attempt->is_over = [this, future, section, time, how] {
                if (future->wait_for(0s) != std::future_status::ready) return false;
                try {
                    note({}, section, time, how, future->get());
                } catch (const std::system_error& error) {
                    note(error.code(), section, time, how, R());
                }
                return true;
            };
        }
        attempts_.push_back(attempt);
    }

    template <class R, class Section>
    Fiber coroutine(Attempt& attempt, Operation<R> operation, Section section, std::chrono::microseconds time,
                    Release how) {
        auto [ec, got] = co_await std::move(operation).on(executor_).no_throw();
        if (attempt.is_destroyed) ++storm_.tally.late;
        note(ec, section, time, how, std::move(got));
        if (attempt.completions.fetch_add(1) != 0) ++storm_.tally.twice;
    }

    // The outcome of an operation.
    template <class R, class Section>
    void note(std::error_code ec, Section& section, std::chrono::microseconds time, Release how, R got) {
        Tally& tally = storm_.tally;
        if (ec && got) ++tally.both;
        if (got) {
            ++tally.held;
            section(got, time);
            end_hold(std::move(got), how, tally);
        } else if (ec == errc::cancelled) {
            ++tally.cancelled;
        } else if (ec) {
            tally.fail(ec);
        } else {
            ++tally.in_vain;
        }
    }

    static constexpr std::size_t table_at = 6;  // among the subjects

    Storm& storm_;
    std::mt19937 random_;
    const ManualExecutor executor_;
    std::shared_ptr<Attempt> next_ = fresh();
    std::list<std::shared_ptr<Attempt>> attempts_;
};

// Ends a count again and again.
void count_down(Storm& storm) {
    while (!storm.ends) {
        std::error_code ec;
        try {
            static_cast<void>(storm.latch.try_set_count(1));
            std::this_thread::sleep_for(5ms);
            storm.latch.count_down();
        } catch (const Error&) {  // it is tried again
        }
    }
}

// Disturbs the way to the server, each time for less than half a second.
void disturb(Proxy& proxy, std::mt19937& random) {
    const auto any = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
    const std::chrono::milliseconds while_disturbed{20 + any(120)};
    switch (any(8)) {
        case 0: proxy.kill_all(); break;
        case 1: proxy.drop_next_replies(1 + static_cast<int>(any(3))); break;
        case 2: proxy.drop_next_requests(1 + static_cast<int>(any(3))); break;
        case 3: proxy.hold_next_replies(1 + static_cast<int>(any(3))); break;
        case 4: proxy.delay(std::chrono::milliseconds{any(15)}, std::chrono::milliseconds{any(15)}); break;
        case 5: proxy.blackhole(true); break;
        case 6:
            proxy.refuse(true);
            proxy.kill_all();
            break;
        default: proxy.cut_after_reply_bytes(any(8)); break;
    }
    std::this_thread::sleep_for(while_disturbed);
    proxy.clear_rules();
    proxy.release();
    proxy.delay(0ms, 0ms);
    proxy.blackhole(false);
    proxy.refuse(false);
}

}  // namespace

TEST_CASE("operations in a storm of cancellations and faults: one completion each, one holder, nothing left") {
    RedisServer server;
    RawRedis redis{server};
    std::array<RedisServer, 2> undisturbed;
    std::array<RawRedis, 2> looks{RawRedis{undisturbed[0]}, RawRedis{undisturbed[1]}};
    Proxy proxy{server.url()};
    REQUIRE(eventually(
        [&] { return std::stoll(looks[1].info("server", "uptime_in_seconds")) * 1s > lease_of_red_lock + 2s; }, 60s,
        20ms));
    const auto seed = static_cast<std::uint32_t>(SteadyClock::now().time_since_epoch().count());
    CAPTURE(seed);
    {
        auto owned = std::make_unique<Storm>(proxy.url(), undisturbed);
        Storm& storm = *owned;
        std::mt19937 random{seed};
        std::vector<std::unique_ptr<StormDriver>> all;
        for (std::size_t i = 0; i < drivers; ++i)
            all.push_back(std::make_unique<StormDriver>(storm, static_cast<std::uint32_t>(random())));
        std::vector<std::thread> threads;
        for (const auto& driver : all) threads.emplace_back([&driver = *driver] { driver.run(); });
        threads.emplace_back([&storm] { count_down(storm); });
        const auto end = SteadyClock::now() + stress_duration(6s);
        while (SteadyClock::now() < end) {
            disturb(proxy, random);
            // Time for some to succeed.
            std::this_thread::sleep_for(std::chrono::milliseconds{20 + random() % 200});
        }
        storm.ends = true;
        for (std::thread& thread : threads) thread.join();
        // Whoever waits for the count gets it.
        REQUIRE(eventually(
            [&] {
                try {
                    static_cast<void>(storm.latch.reset());
                    return true;
                } catch (const Error&) {
                    return false;
                }
            },
            patient(30s)));
        std::size_t stuck = 0;
        const bool all_over = eventually(
            [&] {
                stuck = 0;
                for (const auto& driver : all) stuck += driver->step();
                return stuck == 0;
            },
            patient(60s));
        Tally& tally = storm.tally;
        std::ostringstream errors;
        for (const auto& [message, count] : tally.codes) errors << ", " << count << " times: " << message;
        MESSAGE(tally.begun.load() << " begun: " << tally.held.load() << " held, " << tally.cancelled.load()
                                   << " cancelled, " << tally.destroyed.load() << " destroyed, " << tally.in_vain.load()
                                   << " in vain, " << tally.dropped.load() << " futures dropped, "
                                   << tally.failed.load() << " failed" << errors.str());
        const Stats stats = storm.client.stats();
        MESSAGE(stats.acquisitions << " acquisitions, " << stats.resends << " resends, " << stats.reconnects
                                   << " reconnects, " << stats.lost_holds << " lost; " << proxy.counts().dropped
                                   << " messages dropped");
        CHECK(stuck == 0);
        CHECK(tally.twice == 0);
        CHECK(tally.both == 0);
        CHECK(tally.late == 0);
        CHECK(tally.broken == 0);
        CHECK(tally.lost == 0);
        CHECK(tally.losses == "");
        CHECK(stats.lost_holds == 0);
        CHECK(storm.is_whole());
        if (!all_over) {  // what is still under way uses them
            for (auto& driver : all) static_cast<void>(driver.release());
            static_cast<void>(owned.release());
            return;
        }
        // Each was begun, and ended in one way.
        CHECK(tally.begun ==
              tally.held + tally.cancelled + tally.destroyed + tally.in_vain + tally.dropped + tally.failed);
        CHECK(tally.held > 0);
        CHECK(tally.cancelled > 0);
        CHECK(tally.destroyed > 0);
        CHECK(tally.in_vain > 0);
        CHECK(proxy.counts().dropped > 0);

        // All leases but the RedLock's last for a minute, so what is free before that was released.
        Client beside{server.url()};
        Semaphore semaphore{beside, "permits"};
        PermitExpirableSemaphore leased{beside, "leased permits"};
        CHECK(eventually([&] { return semaphore.available_permits() == permits; }, patient(20s)));
        CHECK(eventually([&] { return leased.available_permits() == permits; }, patient(20s)));
        CHECK(semaphore.remove());
        CHECK(leased.remove());
        std::vector<std::string> left;
        CHECK(eventually(
            [&] {
                left = leftover_keys(redis, documented_keys());
                for (RawRedis& look : looks)
                    for (std::string& key : leftover_keys(look, documented_keys())) left.push_back(std::move(key));
                return left.empty() && storm.client.stats().held == 0 && storm.client.stats().waiting == 0;
            },
            patient(20s)));
        for (const std::string& one : left) FAIL_CHECK(one);
    }
    CHECK(eventually([&] { return redis.connected_clients() == 0; }));
    for (RawRedis& look : looks) CHECK(eventually([&] { return look.connected_clients() == 0; }));
}
