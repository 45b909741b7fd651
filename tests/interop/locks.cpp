// SPDX-License-Identifier: MIT
// What every lock does, whoever holds it and whoever waits.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "table.hpp"

namespace redlatch::test {
namespace {

using Clock = std::chrono::steady_clock;

void release_wakes(Match& m) {
    wakes_in_time(m, [&] {
        m.holder.must("lock", "ok");
        m.other.must("try", "false");
        Pending waiting = m.waiter.start("lock");
        until_listening(m);
        if (waiting.done()) throw Difference("the waiter is in while the holder holds");
        const auto released = Clock::now();
        m.holder.must("unlock", "ok");
        const Answer entered = waiting.get("ok");
        m.waiter.must("unlock", "ok");
        return between(released, entered.arrived);
    });
}

void timed_wait_ends(Match& m) {
    m.holder.must("lock", "ok");
    const auto asked = Clock::now();
    const Answer refused = m.waiter.must("try", "false", "wait=200");
    in_range("ms waited", between(asked, refused.arrived).count(), 199, 1200);
    m.holder.must("unlock", "ok");
    m.other.must("try", "true");  // nothing is left of the one who gave up
    m.other.must("unlock", "ok");
}

void reentry_is_counted(Match& m) {
    for (int i = 0; i < 3; ++i) m.holder.must("lock", "ok");
    m.holder.must("count", "3");
    m.holder.must("held", "true");
    m.waiter.must("count", "0");
    m.waiter.must("held", "false");
    m.waiter.as(m.pairing.hold).must("locked", "true");
    for (int i = 0; i < 3; ++i) {
        m.waiter.must("try", "false");
        m.holder.must("unlock", "ok");
    }
    m.waiter.must("try", "true");
    m.waiter.must("unlock", "ok");
}

void leases_agree(Match& m) {
    m.holder.must("lock", "ok", "lease=5000");
    const long long most = m.redis.pttl(m.name);
    in_range("lease at first", most, 3000, 5000);
    const long long by_waiter = m.waiter.number("ttl");
    const long long by_holder = m.holder.number("ttl");
    const long long least = m.redis.pttl(m.name);
    in_range("lease by the waiter's word", by_waiter, least, most);
    in_range("lease by the holder's word", by_holder, least, by_waiter);
    m.holder.must("unlock", "ok");
}

void lease_ends(Match& m) {
    const auto before = Clock::now();
    m.holder.must("lock", "ok", "lease=500");
    const auto held = Clock::now();
    const Answer entered = m.waiter.start("lock").get("ok");
    // The server counts its milliseconds from a full one on.
    in_range("ms until the waiter entered", between(before, entered.arrived).count(), 499, 1'000'000);
    in_range("ms from the hold to the waiter's", between(held, entered.arrived).count(), 0, 1500);
    m.holder.must("unlock", "!not_owner");
    m.waiter.must("unlock", "ok");
}

void watchdog_keeps(Match& m) {
    m.holder.must("lock", "ok", "wd=1500");
    Pending waiting = m.waiter.start("try", "wait=3200");
    long long least = 1500;
    while (!waiting.done()) {
        least = std::min(least, m.redis.pttl(m.name));
        std::this_thread::sleep_for(milliseconds{20});
    }
    waiting.get("false");
    in_range("the least TTL seen in ms", least, 1, 1500);
    in_range("the TTL at the end in ms", m.redis.pttl(m.name), 1, 1500);
    m.holder.must("unlock", "ok", "wd=1500");
    m.other.must("try", "true");
    m.other.must("unlock", "ok");
}

void force_unlock_wakes(Match& m) {
    const Actor forcer = m.other.as(m.pairing.hold);
    wakes_in_time(m, [&] {
        m.holder.must("lock", "ok");
        Pending waiting = m.waiter.start("lock");
        until_listening(m);
        const auto released = Clock::now();
        forcer.must("force", "true");
        const Answer entered = waiting.get("ok");
        m.holder.must("unlock", "!not_owner");
        m.waiter.must("unlock", "ok");
        forcer.must("force", "false");
        return between(released, entered.arrived);
    });
}

// --- around an event that happens to all at once ------------------------------------------------------------------------

void hold_and_wait(Match& m) {
    m.holder.must("lock", "ok", "wd=2000");
    m.pending = m.waiter.start("lock");
    until_listening(m);
}

void enters_after_the_lease(Match& m) {
    const auto looked = Clock::now();
    const Answer entered = m.pending->get("ok");
    in_range("ms until the waiter entered", between(looked, entered.arrived).count(), -100'000, 4000);
    m.waiter.must("unlock", "ok");
}

void hold_and_wait_long(Match& m) {
    m.holder.must("lock", "ok");
    m.pending = m.waiter.start("lock");
    until_listening(m);
}

void release_wakes_still(Match& m) {
    if (m.pending->done()) throw Difference("the waiter is in while the holder holds");
    m.holder.must("held", "true");
    until_listening(m);
    const auto released = Clock::now();
    m.holder.must("unlock", "ok");
    const Answer entered = m.pending->get("ok");
    in_range("ms until the waiter entered", between(released, entered.arrived).count(), 0, 3000);
    m.waiter.must("unlock", "ok");
}

}  // namespace

std::vector<Row> lock_rows() {
    const std::vector<Pairing> pairings{
        {"RLock", "rlock", "rlock"},        {"FairLock", "fair", "fair"},    {"FencedLock", "fenced", "fenced"},
        {"SpinLock", "spin", "spin", true}, {"WriteLock", "write", "write"},
    };
    std::vector<Row> rows;
    for (const Pairing& pairing : pairings) {
        const auto add = [&](const char* title, void (*run)(Match&), Row::Event event = Row::Event::none,
                             void (*after)(Match&) = nullptr) {
            rows.push_back({pairing, title, run, event, after});
        };
        add(pairing.polls ? "a release is noticed" : "a release wakes the waiter within 100 ms", release_wakes);
        add("a timed wait ends, and leaves nothing", timed_wait_ends);
        add("reentry is counted", reentry_is_counted);
        add("both see the same lease", leases_agree);
        add("the waiter enters when the lease ends", lease_ends);
        add("the watchdog keeps the waiter out", watchdog_keeps);
        add("force_unlock by the other side", force_unlock_wakes);
        add("a killed holder is forgotten", hold_and_wait, Row::Event::killed, enters_after_the_lease);
        // A poller of Redisson's may have asked at that very moment, and then throws.
        if (!pairing.polls)
            add("hold and waiting outlast a restart", hold_and_wait_long, Row::Event::restarted, release_wakes_still);
    }
    return rows;
}

}  // namespace redlatch::test
