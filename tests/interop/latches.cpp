// SPDX-License-Identifier: MIT
#include <chrono>
#include <string>
#include <vector>

#include "keyspace_snapshot.hpp"
#include "table.hpp"

namespace redlatch::test {

namespace {

using Clock = std::chrono::steady_clock;

const std::string channel = "redisson_countdownlatch__channel__{N}";

void zero_wakes_all(Match& m) {
    wakes_in_time(m, [&] {
        m.holder.must("set", "true", "n=2");
        m.waiter.must("set", "false", "n=3");
        m.waiter.must("count", "2");
        Pending first = m.waiter.start("lock");
        Pending second = m.other.start("lock");
        until_listening(m);
        m.holder.must("down", "ok");
        m.holder.must("count", "1");
        still_waiting(first, milliseconds{50});
        const auto zero = Clock::now();
        m.holder.must("down", "ok");
        const auto entered = std::max(first.get("ok").arrived, second.get("ok").arrived);
        m.waiter.must("count", "0");
        m.waiter.must("try", "true");
        return between(zero, entered);
    });
}

void both_count_down(Match& m) {
    m.holder.must("set", "true", "n=3");
    m.waiter.must("down", "ok");
    m.holder.must("down", "ok");
    m.waiter.must("count", "1");
    m.waiter.must("down", "ok");
    m.holder.must("count", "0");
    m.holder.must("down", "ok");  // one too many
    m.waiter.must("count", "0");
    m.holder.must("lock", "ok");
}

void timed_wait_ends(Match& m) {
    m.holder.must("set", "true", "n=1");
    const auto asked = Clock::now();
    const Answer refused = m.waiter.must("try", "false", "wait=200");
    in_range("ms waited", between(asked, refused.arrived).count(), 199, 2500);
    m.holder.must("down", "ok");
}

/// Redisson's delete() frees none of its waiters. redlatch's reset() frees all waiters, and its waiters react to both.
void reset_frees(Match& m) {
    m.holder.must("set", "true", "n=1");
    Pending waiting = m.waiter.start("lock");
    until_listening(m);
    if (waiting.done()) throw Difference("the waiter is in too early");
    m.holder.must("reset", "true");
    if (m.holder.is_java() && m.waiter.is_java()) {
        still_waiting(waiting, milliseconds{300});
        m.publish("redisson_countdownlatch__channel__{" + m.name + "}", "0");
    }
    waiting.get("ok", std::chrono::seconds{1});
    m.holder.must("reset", "false");
}

void same_wire(Match& m) {
    KeyspaceSnapshot snapshot{m};
    m.holder.must("set", "true", "n=2");
    same("message of set", snapshot.messages(), channel + " 1");
    same("keys", snapshot.keys(), "N string 2");
    Pending waiting = m.waiter.start("lock");
    until_listening(m);
    same("channels", snapshot.channels(), channel);
    m.holder.must("down", "ok");
    same("message of the first", snapshot.messages(), "");
    m.holder.must("down", "ok");
    same("message of the last", snapshot.messages(), channel + " 0");
    same("keys at zero", snapshot.keys(), "");
    waiting.get("ok");
}

void set_and_wait(Match& m) {
    m.holder.must("set", "true", "n=1");
    m.pending = m.waiter.start("lock");
    until_listening(m);
}

void zero_wakes_still(Match& m) {
    if (m.pending->done()) throw Difference("the waiter is free before zero");
    until_listening(m);
    const auto zero = Clock::now();
    m.holder.must("down", "ok");
    in_range("ms until the waiter was free", between(zero, m.pending->get("ok").arrived).count(), 0, 3000);
}

}  // namespace

std::vector<Row> latch_rows() {
    const Pairing latch{"CountDownLatch", "latch", "latch"};
    return {
        {latch, "zero wakes all within 100 ms", zero_wakes_all},
        {latch, "both count down", both_count_down},
        {latch, "a timed wait ends, and leaves nothing", timed_wait_ends},
        {latch, "reset frees the waiters", reset_frees, Row::Event::none, nullptr,
         "delete() of a latch frees none of its waiters"},
        {latch, "keys, channels and messages", same_wire},
        {latch, "waiting outlasts a restart", set_and_wait, Row::Event::restarted, zero_wakes_still},
    };
}

}  // namespace redlatch::test
