// SPDX-License-Identifier: MIT
// The special behaviour of a ReadWriteLock.
#include <chrono>
#include <string>
#include <vector>

#include "table.hpp"

namespace redlatch::test {

namespace {

using Clock = std::chrono::steady_clock;

void readers_share(Match& m) {
    const Actor writer = m.other.as("write");
    m.holder.must("lock", "ok");
    m.waiter.must("lock", "ok");
    writer.must("try", "false");
    m.holder.must("unlock", "ok");
    writer.must("try", "false");
    m.waiter.must("unlock", "ok");
    writer.must("try", "true");
    writer.must("unlock", "ok");
}

void readers_keep_their_leases(Match& m) {
    const Actor writer = m.other.as("write");
    m.holder.must("lock", "ok", "lease=20000");
    const auto before = Clock::now();
    m.waiter.must("lock", "ok", "lease=1000");
    in_range("TTL with two readers", m.redis.pttl(m.name), 15'000, 20'000);
    m.holder.must("unlock", "ok");
    in_range("TTL without the longer", m.redis.pttl(m.name), 1, 1000);
    const Answer entered = writer.must("lock", "ok");
    in_range("ms until the writer entered", between(before, entered.arrived).count(), 999, 3000);
    m.waiter.must("unlock", "!not_owner");
    writer.must("unlock", "ok");
}

void one_release_wakes_all_readers(Match& m) {
    wakes_in_time(m, [&] {
        m.holder.must("lock", "ok");
        Pending first = m.waiter.start("lock");
        Pending second = m.other.start("lock");
        until_listening(m);
        still_waiting(first, milliseconds{100});
        const auto released = Clock::now();
        m.holder.must("unlock", "ok");
        const auto entered = std::max(first.get("ok").arrived, second.get("ok").arrived);
        m.waiter.must("unlock", "ok");
        m.other.must("unlock", "ok");
        return between(released, entered);
    });
}

/// Redisson does not notify waiting readers. They notice when the lease that they saw is over.
void downgrade_lets_readers_in(Match& m) {
    const Actor writing = m.holder.as("write");
    const Actor reading = m.holder.as("read");
    const auto round = [&] {
        writing.must("lock", "ok", "lease=2000");
        reading.must("lock", "ok", "lease=2000");
        Pending waiting = m.waiter.start("lock");
        until_listening(m);
        still_waiting(waiting, milliseconds{50});
        const auto released = Clock::now();
        writing.must("unlock", "ok");
        m.other.must("try", "true");
        m.other.must("unlock", "ok");
        m.other.as("write").must("try", "false");
        const Answer entered = waiting.get("ok");
        m.waiter.must("unlock", "ok");
        const std::string rest = reading.ask("unlock");
        if (!m.holder.is_java()) same("the downgraded hold's end", rest, "ok");
        m.other.as("write").must("try", "true");
        m.other.as("write").must("unlock", "ok");
        return between(released, entered.arrived);
    };
    if (m.holder.is_java())
        in_range("ms until the reader entered", round().count(), m.waiter.is_java() ? 500 : 0, 4000);
    else
        wakes_within(milliseconds{300}, round);
}

/// In Redisson an upgrade waits until its own read hold is over.
void upgrade_is_refused(Match& m) {
    m.holder.must("lock", "ok");
    const Actor writing = m.holder.as("write");
    if (m.holder.is_java()) {
        writing.must("try", "false", "wait=50");
    } else {
        const std::string answer = writing.ask("try", "wait=50");
        if (!answer.starts_with("!")) throw Difference("an upgrade gives " + answer + " instead of an error");
    }
    m.waiter.must("try", "true");
    m.waiter.must("unlock", "ok");
    m.holder.must("unlock", "ok");
}

}  // namespace

std::vector<Row> read_write_rows() {
    const Pairing readers{"RW: read/read", "read", "read"};
    const Pairing writer_then_readers{"RW: write/read", "write", "read"};
    return {
        {readers, "readers share, a writer waits for all", readers_share},
        {readers, "each reader has its own lease", readers_keep_their_leases},
        {readers, "no upgrade", upgrade_is_refused},
        {writer_then_readers, "one release wakes all readers", one_release_wakes_all_readers},
        {.pairing = writer_then_readers,
         .title = "downgrade lets readers in",
         .run = downgrade_lets_readers_in,
         .note = "a downgrade wakes no reader that waits already; C++ does"},
    };
}

}  // namespace redlatch::test
