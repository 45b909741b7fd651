// SPDX-License-Identifier: MIT
// Each checker must accept some histories and reject others.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/checkers.hpp"
#include "support/end_state.hpp"
#include "support/fenced_resource.hpp"
#include "support/process.hpp"
#include "support/record_file.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"
#include "support/waiting_checkers.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

Interval held(std::uint64_t owner, std::int64_t from, std::int64_t until, std::uint64_t token = 0) {
    return {.owner = owner, .from = from, .until = until, .token = token, .called = from - 1};
}

Interval reader(std::uint64_t owner, std::int64_t called, std::int64_t from, std::int64_t until) {
    return {.owner = owner, .from = from, .until = until, .shared = 1, .called = called};
}

Windows during(std::int64_t from, std::int64_t until) {
    Windows windows;
    windows.add({from, until});
    return windows;
}

Section section(std::int64_t from, std::int64_t until, std::uint64_t read, bool unsure = false) {
    return {.owner = read, .from = from, .until = until, .read = read, .unsure = unsure};
}

FencedWrite written(std::uint64_t owner, std::uint64_t token, std::int64_t sent, bool accepted = true) {
    return {.resource = 1, .owner = owner, .token = token, .sent = sent, .answered = sent + 5, .accepted = accepted};
}

Turn turn(std::uint64_t owner, std::int64_t called, std::int64_t got, std::int64_t released) {
    return {.owner = owner, .called = called, .held = got, .released = released};
}

// A record that shows whether it was written completely.
struct Beat {
    std::int64_t first = 0;
    std::int64_t copies[7] = {};
};

const Role beating_role{"append records for ever", [](std::span<const std::string> args) {
                            const RecordFile<Beat> file{args[0]};
                            for (std::int64_t i = 0;; ++i) file.append({i, {i, i, i, i, i, i, i}});
                            return 0;
                        }};

const Role resource_role{"serve a fenced resource",
                         [](std::span<const std::string> args) -> int { FencedResourceServer{args[0]}.serve(); }};

}  // namespace

TEST_CASE("the records of a killed process are complete or absent") {
    const TempDir dir;
    for (int round = 0; round < 20; ++round) {
        const std::string path = dir.file("records" + std::to_string(round));
        const RecordFile<Beat> file{path};
        ChildProcess writer = spawn_self("append records for ever", {path});
        REQUIRE(eventually([&] { return file.read().size() > 100; }, 20s));
        writer.kill();
        CHECK(std::filesystem::file_size(path) % sizeof(Beat) == 0);
        std::int64_t expected = 0;
        for (const Beat& beat : file.read()) {
            REQUIRE(beat.first == expected++);
            REQUIRE(beat.copies[6] == beat.first);
        }
    }
}

TEST_CASE("Windows::meet() finds the windows that a time span touches") {
    Windows windows;
    windows.add({100, 200});
    windows.add({10, 500});
    windows.add({600, 700});
    CHECK(windows.meet(300, 400));
    CHECK(windows.meet(650, 650));
    CHECK(windows.meet(700, 800));
    CHECK_FALSE(windows.meet(501, 599));
    CHECK_FALSE(windows.meet(0, 9));
    CHECK_FALSE(Windows{}.meet(0, 1000));
    CHECK(windows.all().size() == 3);
}

TEST_CASE("overlaps are found, except in excused times") {
    CHECK(find_overlaps({held(1, 0, 10), held(2, 10, 20), reader(3, 20, 20, 30), reader(4, 20, 25, 35)}).empty());
    const std::vector<Interval> twice{held(1, 0, 100), held(2, 50, 60), held(3, 90, 120), held(4, 130, 140)};
    CHECK(find_overlaps(twice).size() == 2);
    CHECK(find_overlaps(twice, during(40, 55)).size() == 1);
    CHECK(find_overlaps(twice, during(40, 95)).empty());
    CHECK(find_overlaps({reader(1, 0, 0, 10), held(2, 5, 15)}).size() == 1);
    CHECK(find_overlaps({held(2, 5, 15), reader(1, 9, 9, 10)}).size() == 1);
    std::vector<Interval> others{held(1, 0, 10), held(2, 5, 15)};
    others[1].lock = 7;
    CHECK(find_overlaps(others).empty());
}

TEST_CASE("a lost or doubled addition is found") {
    CHECK(find_lost_updates({section(0, 1, 0), section(2, 3, 1), section(4, 5, 2)}).empty());
    CHECK(find_lost_updates({section(0, 1, 0), section(2, 3, 1), section(4, 5, 1)}).size() == 1);
    CHECK(find_lost_updates({section(0, 1, 0), section(2, 3, 2)}).size() == 1);
    CHECK(find_lost_updates({section(0, 1, 0), section(2, 3, 1), section(4, 5, 1)}, during(3, 4)).empty());
}

TEST_CASE("a write after the validity, or by a process that died, may disturb the sum only at that time") {
    // Frozen in its section for longer than its lease: it writes 1 at 30, over the 2 and 3 of the others.
    const std::vector<Section> frozen{section(0, 30, 0, true), section(10, 11, 0), section(20, 21, 1),
                                      section(40, 41, 1)};
    CHECK(find_lost_updates(frozen).empty());
    std::vector<Section> later = frozen;
    later.push_back(section(50, 51, 5));
    CHECK(find_lost_updates(later).size() == 1);
    // Killed after the write, or before it.
    CHECK(find_lost_updates({section(0, 5, 0, true), section(10, 11, 1)}).empty());
    CHECK(find_lost_updates({section(0, 5, 0, true), section(10, 11, 0)}).empty());
    CHECK(find_lost_updates({section(0, 5, 0, true), section(10, 11, 0), section(12, 13, 0)}).size() == 1);
}

TEST_CASE("a token not greater than one granted before the call is stale") {
    CHECK(find_stale_tokens({held(1, 10, 20, 5), held(2, 30, 40, 6), held(3, 50, 60, 9)}).empty());
    CHECK(find_stale_tokens({held(1, 10, 20, 5), held(2, 30, 40, 5)}).size() == 1);
    CHECK(find_stale_tokens({held(1, 10, 20, 5), held(2, 30, 40, 9), held(3, 50, 60, 7)}).size() == 1);
    // Requested at the same time: either may be the earlier.
    std::vector<Interval> together{held(1, 10, 20, 6), held(2, 30, 40, 5)};
    together[1].called = 9;
    CHECK(find_stale_tokens(together).empty());
    together[1].lock = 2;
    together[1].called = 25;
    CHECK(find_stale_tokens(together).empty());
}

TEST_CASE("a token that two owners have is found") {
    CHECK(find_shared_tokens({held(1, 0, 1, 5), held(1, 2, 3, 5), held(2, 4, 5, 6)}).empty());
    CHECK(find_shared_tokens({held(1, 0, 1, 5), held(2, 4, 5, 5)}).size() == 1);
}

TEST_CASE("a stale write that was accepted is found") {
    CHECK(
        find_stale_writes({written(1, 5, 0), written(1, 5, 10), written(2, 6, 20), written(1, 5, 30, false)}).empty());
    CHECK(find_stale_writes({written(1, 5, 0), written(2, 6, 20), written(1, 5, 30)}).size() == 1);
    CHECK(find_stale_writes({written(1, 5, 0), written(2, 5, 30)}).size() == 1);
    // No reply before the other was sent: either may have come first.
    CHECK(find_stale_writes({written(2, 6, 0), written(1, 5, 3)}).empty());
}

TEST_CASE("a fenced resource in another process refuses stale writes") {
    const TempDir dir;
    ChildProcess resource = spawn_self("serve a fenced resource", {dir.file("sock")});
    // The socket exists a moment before the server listens on it.
    const auto is_served = [&] {
        try {
            FencedResourceClient{dir.file("sock")};
            return true;
        } catch (const std::exception&) {
            return false;
        }
    };
    REQUIRE(eventually(is_served, 20s));
    FencedResourceClient first{dir.file("sock")};
    FencedResourceClient second{dir.file("sock")};
    std::vector<FencedWrite> writes{first.write(1, 11, 5),  second.write(1, 12, 6), first.write(1, 11, 5),
                                    second.write(1, 12, 6), first.write(1, 11, 6),  first.write(2, 11, 1)};
    std::vector<bool> accepted;
    for (const FencedWrite& write : writes) accepted.push_back(write.accepted);
    CHECK(accepted == std::vector<bool>{true, true, false, true, false, true});
    CHECK(find_stale_writes(writes).empty());
    writes[2].accepted = true;
    CHECK(find_stale_writes(writes).size() == 1);
}

TEST_CASE("too many permits at a time, and permits granted twice, are found") {
    const std::vector<Interval> permits{held(1, 0, 100), held(2, 10, 20), held(3, 20, 30), held(4, 25, 40)};
    CHECK(find_crowds(permits, 3).empty());
    CHECK(find_crowds(permits, 2).size() == 1);
    CHECK(find_crowds(permits, 2, during(26, 27)).empty());
    CHECK(find_crowds(permits, 1).size() == 3);
    CHECK(find_repeated<std::string>({"a", "b", "c"}).empty());
    CHECK(find_repeated<std::string>({"a", "b", "a", "a"}) == std::set<std::string>{"a"});
}

TEST_CASE("readers that overtake a waiting writer are counted") {
    CHECK(most_readers_before_a_writer({reader(1, 0, 1, 9), held(2, 20, 30)}) == 0);
    std::vector<Interval> history{reader(1, 0, 1, 9), reader(2, 5, 6, 12), reader(3, 10, 11, 14), held(4, 20, 30)};
    history.back().called = 2;
    CHECK(most_readers_before_a_writer(history) == 2);
}

TEST_CASE("a call whose result contradicts its hold is found") {
    using Told = Outcome::Told;
    CHECK(is_honest({Told::held, true, true}));
    CHECK_FALSE(is_honest({Told::held, false, false}));
    CHECK(is_honest({Told::not_held, false, false}));
    CHECK_FALSE(is_honest({Told::not_held, true, false}));
    CHECK(is_honest({Told::unknown, true, false}));
    CHECK_FALSE(is_honest({Told::unknown, true, true}));
}

TEST_CASE("the time from a release to the next turn is measured only if there was a waiter") {
    const std::vector<Turn> prompt{turn(1, 0, 1, 10), turn(2, 5, 12, 20), turn(3, 6, 25, 26)};
    const auto wake_ups = find_wake_ups(prompt);
    REQUIRE(wake_ups.size() == 2);
    CHECK(wake_ups[0].until - wake_ups[0].from == 2);
    CHECK(wake_ups[1].until - wake_ups[1].from == 5);
    // There was no waiter, or the holder died, which is not a release.
    CHECK(find_wake_ups({turn(1, 0, 1, 10), turn(2, 11, 900, 901)}).empty());
    CHECK(find_wake_ups({turn(1, 0, 1, 0), turn(2, 5, 900, 901)}).empty());
}

TEST_CASE("a waiter that gives up while the lock is free counts as not woken") {
    Turn waiter{.owner = 2, .called = 5, .gave_up = 500};
    auto wake_ups = find_wake_ups({turn(1, 0, 1, 10), waiter});
    REQUIRE(wake_ups.size() == 1);
    CHECK(wake_ups[0].until - wake_ups[0].from == 490);
    // Another thread got it meanwhile.
    wake_ups = find_wake_ups({turn(1, 0, 1, 10), waiter, turn(3, 12, 13, 600)});
    REQUIRE(wake_ups.size() == 1);
    CHECK(wake_ups[0].until - wake_ups[0].from == 3);
}

TEST_CASE("a reader's release is no wake-up while other readers hold the lock") {
    Turn first = turn(1, 0, 1, 10);
    Turn second = turn(2, 0, 2, 20);
    auto wake_ups = find_wake_ups({second, first, turn(3, 5, 21, 30)});
    REQUIRE(wake_ups.size() == 1);
    CHECK(wake_ups[0].from == 20);
    second.released = 6;
    wake_ups = find_wake_ups({first, second, turn(3, 4, 21, 30)});
    REQUIRE(wake_ups.size() == 1);
    CHECK(wake_ups[0].from == 10);
    // A reader that died blocks the writer until its lease is over.
    second.released = 0;
    second.lapsed = 15;
    CHECK(find_wake_ups({first, second, turn(3, 4, 21, 30)}).empty());
}

TEST_CASE("a waiter that overtakes another in the queue is found") {
    const std::vector<QueueSight> sights{{.asked = 8, .at = 10, .first = 1, .second = 2}};
    CHECK(find_overtaking(sights, {turn(1, 0, 20, 30), turn(2, 1, 31, 40)}).empty());
    CHECK(find_overtaking(sights, {turn(1, 0, 50, 60), turn(2, 1, 20, 40)}).size() == 1);
    // The first one gave up, or died.
    Turn first{.owner = 1, .called = 0, .gave_up = 15};
    CHECK(find_overtaking(sights, {first, turn(2, 1, 20, 40)}).empty());
    first.gave_up = 0;
    CHECK(find_overtaking(sights, {first, turn(2, 1, 20, 40)}).empty());
    // It was in the queue for an earlier wait.
    const Turn given_up{.owner = 1, .called = 0, .gave_up = 6};
    CHECK(find_overtaking(sights, {given_up, turn(1, 7, 50, 60), turn(2, 1, 20, 40)}).empty());
}

TEST_CASE("a latch's wait that returns before the last count-down was invoked is found") {
    LatchRound round{.count = 2};
    round.count_downs = {{10, 12}, {20, 0}};
    round.waits = {{.called = 0, .returned = 21, .ended = true}, {.called = 0, .returned = 15, .ended = false}};
    CHECK(find_early_returns(round).empty());
    round.waits.push_back({.called = 0, .returned = 19, .ended = true});
    CHECK(find_early_returns(round).size() == 1);
    round.ended_otherwise = 18;
    CHECK(find_early_returns(round).empty());
    round.ended_otherwise = 0;
    round.count_downs.pop_back();
    CHECK(find_early_returns(round).size() == 2);
}

TEST_CASE("the time until a latch's last waiter returns is measured") {
    LatchRound round{.count = 2};
    round.count_downs = {{10, 12}, {20, 25}};
    round.waits = {{.called = 0, .returned = 26, .ended = true}, {.called = 0, .returned = 90, .ended = true}};
    CHECK(last_return(round) == Window{25, 90});
    round.waits[1].called = 30;
    CHECK(last_return(round) == Window{25, 26});
    round.count_downs[1].acknowledged = 0;
    CHECK_FALSE(last_return(round));
}

TEST_CASE("a count-down that is applied twice or never is found") {
    CHECK(is_counted_once(5, 3, 2, 2));
    CHECK_FALSE(is_counted_once(5, 2, 2, 2));
    CHECK_FALSE(is_counted_once(5, 4, 2, 2));
    CHECK(is_counted_once(5, 3, 1, 2));
    CHECK(is_counted_once(2, 0, 3, 3));
}

TEST_CASE("calls that outlast their deadline are found") {
    const std::vector<TimedCall> calls{{.called = 0, .deadline = 10, .returned = 14},
                                       {.called = 0, .deadline = 10, .returned = 16}};
    CHECK(find_late_calls(calls, 5).size() == 1);
    CHECK(find_late_calls(calls, 5, during(12, 15)).empty());
    CHECK(find_late_calls(calls, 6).empty());
}

TEST_CASE("descriptors and threads that a process leaks are found") {
    const Vitals before = Vitals::of(::getpid());
    CHECK(before.descriptors > 2);
    CHECK(before.threads >= 1);
    CHECK(before.resident_kb > 0);
    CHECK(growth(before, Vitals::of(::getpid()), 100'000).empty());
    {
        const Fd kept{::dup(0)};
        CHECK(growth(before, Vitals::of(::getpid()), 100'000).size() == 1);
    }
    CHECK(growth({.threads = 2, .resident_kb = 10}, {.threads = 3, .resident_kb = 20}, 9).size() == 2);
}

TEST_CASE("expected faults that did not happen are reported") {
    CHECK(find_vacuous({{"drops", 3}, {"kills", 2}}, {{"drops", 3}}).empty());
    CHECK(find_vacuous({{"drops", 3}, {"kills", 2}}, {{"drops", 4}, {"losses", 1}}).size() == 2);
}
