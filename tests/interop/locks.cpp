// SPDX-License-Identifier: MIT
// The behaviour of every lock, for all combinations of holder and waiter.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "keyspace_snapshot.hpp"
#include "table.hpp"

namespace redlatch::test {

namespace {

using Clock = std::chrono::steady_clock;

void wakes_by(Match& m, const std::string& unlock) {
    wakes_in_time(m, [&] {
        m.holder.must("lock", "ok");
        m.other.must("try", "false");
        Pending waiting = m.waiter.start("lock");
        until_listening(m);
        if (waiting.done()) throw Difference("the waiter is in while the holder holds");
        const auto released = Clock::now();
        m.holder.must(unlock, "ok");
        const Answer entered = waiting.get("ok", std::chrono::seconds{40});
        m.waiter.must(unlock, "ok");
        return between(released, entered.arrived);
    });
}

void release_wakes(Match& m) { wakes_by(m, "unlock"); }
void async_release_wakes(Match& m) { wakes_by(m, "unlock_async"); }

void timed_wait_ends(Match& m) {
    m.holder.must("lock", "ok");
    const auto asked = Clock::now();
    const Answer refused = m.waiter.must("try", "false", "wait=200");
    in_range("ms waited", between(asked, refused.arrived).count(), 199, 2500);
    m.holder.must("unlock", "ok");
    m.other.must("try", "true");  // the call that gave up has left nothing
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
    const long long by_waiter = m.waiter.as(m.pairing.hold).number("ttl");
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
    // The server counts whole milliseconds.
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

/// Redisson reports success for the release of a FairLock that is not held.
void only_the_owner_unlocks(Match& m) {
    const bool always_well = m.pairing.want == "fair" && m.other.is_java();
    m.other.must("unlock", always_well ? "ok" : "!not_owner");
    m.holder.must("lock", "ok");
    m.other.must("unlock", "!not_owner");
    m.holder.must("unlock", "ok");
    m.holder.must("unlock", m.pairing.hold == "fair" && m.holder.is_java() ? "ok" : "!not_owner");
}

void same_wire(Match& m) {
    m.do_without_grants();
    const Protocol& wire = m.pairing.wire;
    KeyspaceSnapshot snapshot{m};
    m.holder.must("lock", "ok");
    same("keys of a hold", snapshot.keys(), wire.held);
    m.holder.must("lock", "ok");
    same("keys of two", snapshot.keys(), wire.held_twice);
    same("messages by then", snapshot.messages(), "");
    m.holder.must("unlock", "ok");
    Pending waiting = m.waiter.start("lock");
    until_listening(m);
    same("channels", snapshot.channels(), wire.channels);
    const std::string& waited_for = wire.waited_for.empty() ? wire.held : wire.waited_for;
    if (!eventually([&] { return snapshot.keys() == waited_for; }))
        same("keys while one waits", snapshot.keys(), waited_for);
    m.holder.must("unlock", "ok");
    waiting.get("ok");
    // redlatch hands over inside its process without a message.
    const std::string messages = snapshot.messages();
    const bool handed_over = !m.holder.is_java() && !m.waiter.is_java() && messages.empty();
    const bool silent = m.holder.is_java() && m.pairing.hold == "spin";
    if (!handed_over) same("messages of the release", messages, silent ? "" : wire.released);
    m.waiter.must("unlock", "ok");
}

// --- around an event that affects all cells at once ------------------------------------------------------------------

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

void hold_and_wait_briefly(Match& m) {
    m.holder.must("lock", "ok", "wd=2000");
    m.pending = m.waiter.start("try", "wait=3000");
    until_listening(m);
}

/// The place of a dead waiter in a FairLock's queue is free when its wait time is over. That counts from the possible
/// end of the hold that it saw.
void is_not_missed(Match& m) {
    m.holder.must("unlock", "ok", "wd=2000");
    const auto asked = Clock::now();
    const Answer entered = m.holder.start("lock", "wd=2000").get("ok");
    in_range("ms until the next entered", between(asked, entered.arrived).count(), 0,
             m.pairing.want.starts_with("fair") ? 6000 : 300);
    m.holder.must("unlock", "ok", "wd=2000");
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
    const std::string lock_channel = "redisson_lock__channel:{N}";
    const std::string rw_channel = "redisson_rwlock:{N}";
    const std::string fair_queue = "; redisson_lock_queue:{N} list W; redisson_lock_timeout:{N} zset W";
    const std::string token = "; redisson_lock_token:{N} string T";
    const std::string read_key = "{N}:H:rwlock_timeout:1 string 1 ttl";
    const std::string two_read_keys = read_key + "; {N}:H:rwlock_timeout:2 string 1 ttl";
    const Protocol write{.held = "N hash H:write=1 mode=write ttl",
                         .held_twice = "N hash H:write=2 mode=write ttl",
                         .channels = rw_channel,
                         .released = rw_channel + " 1"};
    const std::vector<Pairing> pairings{
        {"RLock",
         "rlock",
         "rlock",
         false,
         {.held = "N hash H=1 ttl",
          .held_twice = "N hash H=2 ttl",
          .channels = lock_channel,
          .released = lock_channel + " 0"}},
        {"FairLock",
         "fair",
         "fair",
         false,
         {.held = "N hash H=1 ttl",
          .held_twice = "N hash H=2 ttl",
          .waited_for = "N hash H=1 ttl" + fair_queue,
          .channels = lock_channel + ":W",
          .released = lock_channel + ":W 0"}},
        {"FencedLock",
         "fenced",
         "fenced",
         false,
         {.held = "N hash H=1 ttl" + token,
          .held_twice = "N hash H=2 ttl" + token,
          .channels = lock_channel,
          .released = lock_channel + " 0"}},
        {"SpinLock",
         "spin",
         "spin",
         true,
         {.held = "N hash H=1 ttl", .held_twice = "N hash H=2 ttl", .released = lock_channel + " 0"}},
        {"RW: write/write", "write", "write", false, write},
        {"RW: write/read", "write", "read", false, write},
        {"RW: read/write",
         "read",
         "write",
         false,
         {.held = "N hash H=1 mode=read ttl; " + read_key,
          .held_twice = "N hash H=2 mode=read ttl; " + two_read_keys,
          .channels = rw_channel,
          .released = rw_channel + " 0"}},
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
        add("nobody but the owner unlocks", only_the_owner_unlocks);
        if (pairing.hold == "fair") rows.back().note = "unlock() of a FairLock that nobody holds succeeds";
        add("keys, channels and messages", same_wire);
        if (pairing.hold == "spin") rows.back().note = "a SpinLock says nothing when it is released; C++ does";
        add("a killed holder is forgotten", hold_and_wait, Row::Event::killed, enters_after_the_lease);
        add("a killed waiter is not missed", hold_and_wait_briefly, Row::Event::waiter_killed, is_not_missed);
        // A polling waiter of Redisson may have asked at that very moment, and then throws.
        if (!pairing.polls)
            add("hold and waiting outlast a restart", hold_and_wait_long, Row::Event::restarted, release_wakes_still);
    }
    // The same locks by operations without a thread that waits or owns: lockAsync(threadId) and unlockAsync(threadId)
    // of Redisson; here async_lock(), and unlock() or async_unlock() of the Hold.
    for (const Pairing& one : pairings) {
        if (one.polls) continue;
        const Pairing pairing{one.title, one.hold + "_async", one.want + "_async", false, one.wire};
        const auto add = [&](const char* title, void (*run)(Match&), Row::Event event = Row::Event::none,
                             void (*after)(Match&) = nullptr) {
            rows.push_back({pairing, title, run, event, after});
        };
        add("async: a release wakes within 100 ms", release_wakes);
        add("async: async release wakes within 100 ms", async_release_wakes);
        add("async: a timed wait ends, leaves nothing", timed_wait_ends);
        add("async: the waiter enters at the lease's end", lease_ends);
        add("async: the watchdog keeps the waiter out", watchdog_keeps);
        add("async: force_unlock by the other side", force_unlock_wakes);
        add("async: keys, channels and messages", same_wire);
        add("async: a killed holder is forgotten", hold_and_wait, Row::Event::killed, enters_after_the_lease);
        add("async: a killed waiter is not missed", hold_and_wait_briefly, Row::Event::waiter_killed, is_not_missed);
        add("async: hold and waiting outlast a restart", hold_and_wait_long, Row::Event::restarted,
            release_wakes_still);
    }
    rows.push_back({{"RLock", "rlock_async", "rlock"}, "async hold, a thread waits", release_wakes});
    rows.push_back({{"RLock", "rlock", "rlock_async"}, "a thread holds, async wait", release_wakes});
    return rows;
}

}  // namespace redlatch::test
