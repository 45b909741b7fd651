// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/world.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace sim {

// The expected behaviour of a kind of lock.
struct Habits {
    Nanos poll = 0;       // how long a waiter may sleep while the lock is free, without faults
    Nanos late_hold = 0;  // how long after the last use a late command may hold the lock for nobody
    bool reentrant = true;
    bool shared = false;
};

// One use of a lock by one thread: acquires it in some way, works, releases it, and checks all guarantees.
template <class Lock>
class LockUser {
public:
    LockUser(World& world, Ward& ward, Lock& lock, Habits habits)
        : world_(world), wards_{&ward}, lock_(lock), habits_(habits) {}

    // Adds another ward that the lock also covers.
    LockUser& with(Ward& ward) {
        wards_.push_back(&ward);
        return *this;
    }

    void use() {
        world_.pause();
        bool held = false;
        upheavals_ = wards_[0]->upheavals();
        for (Ward* ward : wards_) ward->waits();
        try {
            held = take();
        } catch (const redlatch::Error& error) {
            scheduler().trace(std::string("error: ") + error.what());
            if (!world_.excuses_errors()) scheduler().fail(std::string("a call failed: ") + error.what());
        }
        for (Ward* ward : wards_) ward->waits_no_more();
        if (!held) return;
        for (Ward* ward : wards_) ward->holds();
        work();
        give_back();
        for (Ward* ward : wards_) ward->holds_no_more();
    }

private:
    static Nanos now() { return scheduler().now(); }
    Random& random() { return world_.random(); }
    void pause(Nanos most) { scheduler().sleep(random().between(0, most)); }
    redlatch::Milliseconds some_ms(Nanos least, Nanos most) {
        return redlatch::Milliseconds(random().between(least, most));
    }

    redlatch::Lease some_lease() { return redlatch::Lease(world_.some_lease(30 * ms)); }

    bool take() {
        switch (random().below(6)) {
            case 0: lock_.lock(); return true;
            case 1: lock_.lock(some_lease()); return true;
            case 2: return random().below(2) ? lock_.try_lock() : lock_.try_lock(some_lease());
            case 3: return take_in_time(some_ms(1, 400));
            case 4: return take_in_time(some_ms(1, 4000));
            default: return take_unless_stopped();
        }
    }

    bool take_in_time(redlatch::Milliseconds time) {
        const Nanos until = now() + time.count() * ms + world_.slack();
        const bool held = random().below(2) ? lock_.try_lock_for(time) : lock_.try_lock_for(time, some_lease());
        if (now() > until) scheduler().fail("a timed call outlasted its deadline by " + late(until));
        return held;
    }

    bool take_unless_stopped() {
        std::stop_source source;
        const Nanos at = now() + random().between(0, 500 * ms);
        scheduler().at(at, [this, source, id = scheduler().self().process] {
            // Run on a thread of the same process, because the library's stop callbacks lock its mutexes.
            if (!scheduler().has_crashed(id)) scheduler().spawn(id, [source]() mutable { source.request_stop(); });
        });
        const bool held = lock_.lock(source.get_token());
        const Nanos until = at + world_.slack() + (world_.excuses_errors() ? 4 * second : 0);
        if (now() > until) scheduler().fail("a stopped call came back late by " + late(until));
        return held;
    }

    static std::string late(Nanos until) { return std::to_string((now() - until) / ms) + " ms"; }

    // Checks the lock as careful code does before each write.
    bool look() {
        const auto valid_until = lock_.valid_until();
        const Nanos until = valid_until.time_since_epoch().count();
        const bool lost = lost_.stop_requested();
        if (now() < until) {
            certain_until_ = until;
            if (lost || wards_[0]->upheavals() != upheavals_) return false;
            for (Ward* ward : wards_) ward->certain(habits_.shared, until);
            return true;
        }
        // The hold may have been lost just now, and the thread that reports it has not run yet.
        certain_until_ = std::max(certain_until_, until);
        if (!lost && now() > certain_until_ + world_.local_slack()) {
            scheduler().sleep(world_.local_slack());
            if (!lost_.stop_requested()) scheduler().fail("lost() is late by " + late(certain_until_));
        }
        return false;
    }

    void work() {
        lost_ = lock_.lost();
        certain_until_ = now();
        const bool sure = look();
        if constexpr (requires { lock_.token(); })
            if (sure) {
                std::error_code gone;  // the hold may end after look()
                const std::int64_t token = lock_.token(gone);
                if (!gone && look()) wards_[0]->token(token);
            }
        Ward& ward = *wards_[0];
        const std::int64_t read = ward.guarded;
        for (std::uint64_t steps = random().below(4); steps > 0; --steps) {
            if (random().below(5) == 0)
                pause(world_.long_work());
            else
                pause(40 * ms);
            look();
            if (habits_.reentrant && random().below(4) == 0) reenter();
        }
        if (sure && look() && !habits_.shared) {
            ward.guarded = read + 1;
            ++ward.entries;
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
        for (Ward* ward : wards_) ward->uncertain();
        std::error_code ec;
        lock_.unlock(ec);
        if (ec) scheduler().trace("unlock: " + ec.message());
        if (ec && was_certain && left > world_.slack() && !world_.excuses_errors())
            scheduler().fail("unlock() of a certain hold says: " + ec.message());
    }

    World& world_;
    std::vector<Ward*> wards_;
    Lock& lock_;
    const Habits habits_;
    std::stop_token lost_;
    Nanos certain_until_ = 0;
    std::uint64_t upheavals_ = 0;  // the ward's count when this thread asked for the lock
};

}  // namespace sim
