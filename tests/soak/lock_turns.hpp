// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>

#include <redlatch/redlatch.hpp>

#include "worker.hpp"

namespace redlatch::soak {

using namespace redlatch::detail;

// The turns of one thread at one lock, of any kind with the members of every lock.
template <class Lock>
class LockTurns {
public:
    LockTurns(Crew& crew, Lock& lock, Kind kind, bool reentrant = true)
        : crew_(crew), lock_(lock), kind_(kind), reentrant_(reentrant) {}

    // Returns how many members hold a lock over several, without a command. If set, it is called for each hold.
    std::function<std::uint64_t()> count_members{};

    // Acquires in one of several ways, holds, and releases.
    void take_one() {
        crew_.think(kind_ == Kind::reader ? 60 : 30);
        Entry entry = crew_.entry(Entry::What::turn, kind_, lock_number(kind_));
        entry.called = test::monotonic_ns();
        crew_.asking(entry);
        std::error_code ec;
        const bool held = ask(entry, ec);
        if (!held) {
            crew_.check(ec, entry);
            entry.what = Entry::What::gave_up;
            entry.returned = test::monotonic_ns();
            if (ec) entry.deadline = 0;
            return crew_.done(entry);
        }
        entry.held = test::monotonic_ns();
        // Also its number in the queue. It is unknown for a call that gave up.
        if constexpr (requires { LockAccess::state(lock_).part(this_thread_number()).hold; })
            entry.on_wire =
                hash_of(OwnerText(crew_.client.id(), LockAccess::state(lock_).part(this_thread_number()).hold).view());
        hold(entry);
        give_back(entry);
        crew_.done(entry);
        // A write that was on its way when the hold ended. Once the next holder has written, the resource must refuse it.
        if (crew_.chance(5)) {
            crew_.think(30);
            write_fenced(entry);
        }
    }

private:
    bool ask(Entry& entry, std::error_code& ec) {
        const Lease lease{crew_.draw_ms(300, longest_lease.count())};
        const milliseconds patience = crew_.draw_ms(1, crew_.chance(30) ? 100 : 3000);
        const auto way = crew_.draw(1, 100);
        entry.watched = way <= 70 || way > 90 ? 1 : 0;
        if (way <= 30) return lock_.lock(ec), !ec;
        if (way > 30 && way <= 90) entry.deadline = entry.called + ns(patience);
        if (way <= 70) return lock_.try_lock_for(patience, ec);
        if (way <= 90) return lock_.try_lock_for(patience, lease, ec);
        if (way <= 95) return lock_.try_lock(ec);
        std::stop_source source;
        std::jthread stopper{[&source, patience](const std::stop_token& done) {
            for (milliseconds passed{0}; passed < patience && !done.stop_requested(); passed += 5ms)
                std::this_thread::sleep_for(5ms);
            source.request_stop();
        }};
        return lock_.lock(source.get_token(), ec);
    }

    milliseconds how_long() {
        const auto way = crew_.draw(1, 100);
        if (way <= 70) return crew_.draw_ms(0, 2);
        if (way <= 96) return crew_.draw_ms(2, 15);
        return crew_.draw_ms(200, watchdog_timeout.count() * 2 / 3);
    }

    // Checks repeatedly whether it still holds. Only what it could know counts.
    void hold(Entry& entry) {
        std::atomic<std::int64_t> told{0};
        const std::stop_callback on_lost{lock_.lost(), [&told] { told = test::monotonic_ns(); }};
        look(entry);
        if (count_members) entry.token = count_members();
        entry.read = counter().value();
        crew_.holding(entry);
        write_fenced(entry);
        const std::int64_t end = entry.held + ns(how_long());
        nest();
        while (test::monotonic_ns() < end && told == 0 && look(entry))
            std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(
                5ms, std::chrono::nanoseconds{std::max<std::int64_t>(0, end - test::monotonic_ns())}));
        look(entry);
        if (kind_ != Kind::reader && told == 0 && test::monotonic_ns() < entry.valid) {
            counter().set(entry.read + 1);
            entry.wrote = test::monotonic_ns();
        }
        write_fenced(entry);  // also if it was lost: the resource must refuse
        entry.until = std::min(test::monotonic_ns(), entry.valid);
        if (told != 0) entry.until = std::min<std::int64_t>(entry.until, told);
        // If valid_until has passed by now, the loss must be reported.
        if (test::monotonic_ns() >= entry.valid)
            for (int i = 0; told == 0 && i < 200; ++i) std::this_thread::sleep_for(1ms);
        entry.told = told;
    }

    // Updates valid_until. Returns false if the hold is not certain any more.
    bool look(Entry& entry) {
        const auto valid = lock_.valid_until();
        if (valid == std::chrono::steady_clock::time_point::min()) return false;
        entry.valid = test::monotonic_ns(valid);
        return true;
    }

    void nest() {
        if (!reentrant_ || !crew_.chance(10)) return;
        std::error_code ec;
        if (lock_.try_lock_for(50ms, ec)) lock_.unlock(ec);
    }

    void write_fenced(Entry& entry) {
        if constexpr (requires(std::error_code & ec) { lock_.token(ec); }) {
            std::error_code ec;
            if (entry.token == 0) entry.token = static_cast<std::uint64_t>(lock_.token(ec));
            if (ec || entry.token == 0) return;
            if (!resource_) resource_ = std::make_unique<test::FencedResourceClient>(crew_.paths.resource());
            const test::FencedWrite write = resource_->write(lock_number(kind_), crew_.owner, entry.token);
            Entry record = crew_.entry(Entry::What::fenced_write, kind_, write.resource);
            record.token = write.token;
            record.called = write.sent;
            record.returned = write.answered;
            record.read = write.accepted ? 1 : 0;
            record.held = entry.held;
            crew_.note(record);
        }
    }

    void give_back(Entry& entry) {
        std::error_code ec;
        const std::int64_t released = test::monotonic_ns();
        crew_.giving_back(released);
        lock_.unlock(ec);
        entry.returned = test::monotonic_ns();
        entry.error = static_cast<std::uint16_t>(ec.value());
        if (!ec) entry.released = released;
        // No loss was reported until then. If the lease ended during the release, no report is required.
        if (ec == errc::hold_lost && entry.told == 0 && released >= entry.valid) entry.told = entry.returned;
        crew_.check(ec, entry);
    }

    test::PlainCounter& counter() { return crew_.shared.counters[lock_number(kind_)]; }

    Crew& crew_;
    Lock& lock_;
    const Kind kind_;
    const bool reentrant_;
    std::unique_ptr<test::FencedResourceClient> resource_;
};

}  // namespace redlatch::soak
