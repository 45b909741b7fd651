// SPDX-License-Identifier: MIT
// Locks that consist of locks: their members are the RLocks <name>.1 to <name>.3.
#include <chrono>
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
        if (waiting.done()) throw Difference("the waiter is in too early");
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
    const Answer refused = m.waiter.must("try", "false", "wait=300");
    in_range("ms waited", between(asked, refused.arrived).count(), 250, 2500);
    m.holder.must("unlock", "ok");
    m.other.must("try", "true");
    m.other.must("unlock", "ok");
}

void members_are_held(Match& m) {
    m.holder.must("lock", "ok");
    for (const char* member : {".1", ".2", ".3"}) m.waiter.as("rlock", m.name + member).must("try", "false");
    m.holder.must("unlock", "ok");
    for (const char* member : {".1", ".2", ".3"}) {
        const Actor one = m.waiter.as("rlock", m.name + member);
        one.must("try", "true");
        one.must("unlock", "ok");
    }
}

void all_or_nothing(Match& m) {
    const Actor blocker = m.waiter.as("rlock", m.name + ".2");
    blocker.must("lock", "ok");
    m.holder.must("try", "false");
    for (const char* member : {".1", ".3"}) {
        const Actor free = m.waiter.as("rlock", m.name + member);
        free.must("try", "true");
        free.must("unlock", "ok");
    }
    blocker.must("unlock", "ok");
    m.holder.must("try", "true");
    m.holder.must("unlock", "ok");
}

void hold_and_wait(Match& m) {
    m.holder.must("lock", "ok", "wd=2000");
    m.pending = m.waiter.start("lock");
    until_listening(m);
}

void enters_after_the_lease(Match& m) {
    const auto looked = Clock::now();
    const Answer entered = m.pending->get("ok");
    in_range("ms until the waiter entered", between(looked, entered.arrived).count(), -100'000, 6000);
    m.waiter.must("unlock", "ok");
}

}  // namespace

std::vector<Row> multi_rows() {
    std::vector<Row> rows;
    for (const Pairing& pairing : {Pairing{"MultiLock", "multi", "multi"}, Pairing{"RedLock", "red", "red"}}) {
        rows.push_back({pairing, "a release wakes the waiter within 100 ms", release_wakes});
        rows.push_back({pairing, "a timed wait ends, and leaves nothing", timed_wait_ends});
        rows.push_back(
            {pairing, "a killed holder is forgotten", hold_and_wait, Row::Event::killed, enters_after_the_lease});
    }
    const Pairing members{"Multi/RLock", "multi", "rlock"};
    rows.push_back({members, "each member is held, too", members_are_held});
    rows.push_back({members, "all members or none", all_or_nothing});
    return rows;
}

}  // namespace redlatch::test
