// SPDX-License-Identifier: MIT
// Each worker sets counts. Threads of all workers count them down and wait for them.
#include <array>
#include <redlatch/redlatch.hpp>
#include <string>
#include <system_error>

#include "support/wait.hpp"
#include "support/waiting_checkers.hpp"
#include "worker.hpp"

namespace redlatch::soak {

namespace {

// Never used twice, not even by a worker that was killed and started again.
std::uint64_t latch_number(std::size_t worker, std::size_t incarnation, std::uint64_t round) {
    return (static_cast<std::uint64_t>(worker + 1) << 56) | (static_cast<std::uint64_t>(incarnation) << 32) | round;
}

std::string latch_name(std::uint64_t number) { return std::string{info(Kind::latch).of} + std::to_string(number); }

void wait(Crew& crew, CountDownLatch& latch, std::uint64_t number, milliseconds patience) {
    Entry entry = crew.entry(Entry::What::latch_wait, Kind::latch, number);
    entry.called = test::monotonic_ns();
    entry.deadline = entry.called + ns(patience);
    std::error_code ec;
    entry.read = latch.wait_for(patience, ec) ? 1 : 0;
    entry.returned = test::monotonic_ns();
    if (ec) entry.deadline = 0;
    crew.check(ec, entry);
    crew.note(entry);
}

// Checks the count while count-downs of this round may be on their way: it must agree with those invoked and
// acknowledged.
void check_count(Crew& crew, CountDownLatch& latch, const Entry& set, const Board& board) {
    Entry entry = crew.entry(Entry::What::latch_count, Kind::latch, set.lock);
    entry.called = test::monotonic_ns();
    const std::size_t acknowledged = board.acknowledged.count();
    std::error_code ec;
    const auto left = static_cast<std::size_t>(latch.count(ec));
    if (ec) return;
    const std::size_t invoked = board.invoked.count();
    entry.read = test::is_counted_once(latch_size, left, acknowledged, invoked) ? 0 : 1;
    entry.held = set.called;
    entry.token = left;
    entry.on_wire = acknowledged << 8 | invoked;
    entry.returned = test::monotonic_ns();
    crew.note(entry);
}

}  // namespace

void soak_latch(Crew& crew) {
    Board& board = crew.shared.boards[crew.worker];
    for (std::uint64_t round = 1; !crew.stopping(); ++round) {
        crew.think(100);
        const std::uint64_t number = latch_number(crew.worker, crew.incarnation, round);
        CountDownLatch latch{crew.client, latch_name(number)};
        board.round = 0;
        for (RoundCount* count : {&board.claimed, &board.invoked, &board.acknowledged}) count->begin(number);
        Entry set = crew.entry(Entry::What::latch_set, Kind::latch, number);
        set.called = test::monotonic_ns();
        std::error_code ec;
        const bool is_set = latch.try_set_count(static_cast<std::ptrdiff_t>(latch_size), ec);
        set.returned = test::monotonic_ns();
        crew.check(ec, set);
        if (is_set && !ec) {
            crew.note(set);
            board.round = number;
            wait(crew, latch, number, crew.draw_ms(200, 2000));
            check_count(crew, latch, set, board);
        }
        board.round = 0;
        Entry reset = crew.entry(Entry::What::latch_reset, Kind::latch, number);
        reset.called = test::monotonic_ns();
        crew.note(reset);
        // A server that refuses replies at once, and may do so for a while.
        test::eventually([&] { return latch.reset(ec), crew.check(ec, reset), !ec; }, 20s, 20ms);
        ++crew.shared.cycles[static_cast<std::size_t>(Kind::latch)];
    }
    board.round = 0;
}

void count_down_latches(Crew& crew) {
    std::array<std::uint64_t, worker_count> seen{};
    while (!crew.stopping()) {
        crew.think(20);
        const auto of = static_cast<std::size_t>(crew.draw(0, worker_count - 1));
        Board& board = crew.shared.boards[of];
        const std::uint64_t number = board.round;
        if (number == 0 || seen[of] == number) continue;
        seen[of] = number;
        if (board.claimed.add(number).value_or(latch_size) >= latch_size) continue;
        CountDownLatch latch{crew.client, latch_name(number)};
        Entry entry = crew.entry(Entry::What::latch_down, Kind::latch, number);
        entry.called = test::monotonic_ns();
        crew.note(entry);
        board.invoked.add(number);
        std::error_code ec;
        latch.count_down(ec);
        entry.returned = test::monotonic_ns();
        crew.check(ec, entry);
        if (ec) continue;
        crew.note(entry);
        board.acknowledged.add(number);
        if (crew.chance(30)) wait(crew, latch, number, crew.draw_ms(100, 1000));
    }
}

}  // namespace redlatch::soak
