// SPDX-License-Identifier: MIT
#include "findings.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "history.hpp"

namespace redlatch::soak {

namespace {

using test::Interval;
using test::Section;
using test::Turn;
using test::Windows;

// How much later than its deadline a call may return. With more than a hundred threads on a few processors that takes
// long.
constexpr milliseconds returning{300};

class JournalChecks {
public:
    JournalChecks(const History& history, const Sights& seen, Findings& findings)
        : history_(history), seen_(seen), findings_(findings) {
        findings_.cycles = history.all_turns.size() + history.semaphore_turns.size() + history.rounds.size();
        for (const Entry& entry : history.failures)
            findings_.complain("unexpected error " + std::to_string(entry.token) + " " +
                               history_.where(entry, entry.returned));
    }

    void locks() {
        for (const KindInfo& kind : kinds) {
            if (!kind.is_lock || kind.kind == Kind::reader) continue;
            const std::uint64_t lock = lock_number(kind.kind);
            const std::vector<Entry>& turns = turns_of(lock);
            const Windows& excused = history_.ended.at(lock);
            std::vector<Interval> intervals;
            std::vector<Section> sections;
            for (const Entry& turn : turns) {
                if (turn.until > turn.held) intervals.push_back(History::interval(turn));
                if (turn.wrote != 0)
                    sections.push_back({.lock = lock,
                                        .owner = turn.owner,
                                        .from = turn.held,
                                        .until = turn.wrote,
                                        .read = turn.read,
                                        .unsure = turn.killed != 0 || turn.wrote > turn.valid});
            }
            for (const auto& [a, b] : test::find_overlaps(intervals, excused))
                findings_.complain(findings_.overlaps, std::string{kind.name} + ": overlap of " + history_.text(a) +
                                                           " and " + history_.text(b));
            for (const auto& [a, b] : test::find_lost_updates(sections, excused))
                findings_.complain(findings_.lost_updates, std::string{kind.name} + ": lost update: " +
                                                               history_.text(a) + ", then " + history_.text(b));
            for (const Entry& turn : turns)
                if (history_.is_lost_early(turn))
                    findings_.complain(findings_.overlaps, kind_of(turn) + ": a hold ended before its lease, " +
                                                               history_.where(turn, turn.returned));
            losses(turns);
            if (kind.kind == Kind::fenced || kind.kind == Kind::leader) fenced(kind, intervals);
            if (kind.kind == Kind::fair) fair(turns);
        }
    }

    void permits() {
        const std::uint64_t lock = lock_number(Kind::permits);
        std::vector<Interval> intervals;
        std::vector<std::uint64_t> ids;
        for (const Entry& turn : turns_of(lock)) {
            if (turn.until > turn.held) intervals.push_back(History::interval(turn));
            ids.push_back(turn.token);
            if (history_.is_lost_early(turn))
                findings_.complain(findings_.overlaps,
                                   "permits: ended before its lease, " + history_.where(turn, turn.returned));
        }
        for (const Interval& one : test::find_crowds(intervals, permits_limit, history_.ended.at(lock)))
            findings_.complain(findings_.overlaps, "permits: more than there are: " + history_.text(one));
        for ([[maybe_unused]] const std::uint64_t id : test::find_repeated(ids))
            findings_.complain(findings_.overlaps, "permits: one was given out twice");
    }

    void semaphores() {
        std::vector<Interval> intervals;
        for (const Entry& turn : history_.semaphore_turns)
            if (turn.until > turn.held && !history_.ended.at(Fault::all_locks).meet(turn.called, turn.until))
                for (std::uint64_t i = 0; i < turn.token; ++i) intervals.push_back(History::interval(turn));
        for (const Interval& one : test::find_crowds(intervals, semaphore_limit, history_.ended.at(Fault::all_locks)))
            findings_.complain(findings_.overlaps, "semaphore: more permits than there are: " + history_.text(one));
    }

    void latches() {
        for (const auto& [number, round] : history_.rounds) {
            for (const auto& wait : test::find_early_returns(round))
                findings_.complain(findings_.overlaps,
                                   "latch: a wait returned at " + history_.at(wait.returned) + ", too early");
            const auto last = test::last_return(round);
            if (last && !history_.is_troubled(lock_number(Kind::latch), last->from, last->until))
                woke(Kind::latch, last->from, last->until, "latch " + std::to_string(number));
        }
        for (const Entry& entry : history_.latch_counts)
            if (entry.read == 1 && !history_.ended.at(Fault::all_locks).meet(entry.held, entry.returned))
                findings_.complain(findings_.lost_updates, "latch: " + std::to_string(entry.token) + " left after " +
                                                               std::to_string(entry.on_wire >> 8) + " to " +
                                                               std::to_string(entry.on_wire & 0xff) +
                                                               " count-downs, set at " + history_.at(entry.held) +
                                                               ", " + history_.where(entry, entry.returned));
    }

    void wake_ups() {
        std::vector<Turn> turns;
        for (const auto* entries : {&history_.all_turns, &history_.gave_up})
            for (const Entry& entry : *entries)
                if (kinds[entry.kind].is_lock) turns.push_back(History::turn(entry, entry.owner));
        std::uint64_t measured = 0;
        for (const test::WakeUp& wake : test::find_wake_ups(turns)) {
            if (history_.is_troubled(wake.after.lock, wake.from, wake.until)) continue;
            // No wake-up is prompt in a process that stands still.
            if (pauses(wake.after.owner).meet(wake.from, wake.until)) continue;
            if (pauses(wake.before.owner).meet(wake.from, wake.until)) continue;
            ++measured;
            woke(static_cast<Kind>(wake.after.lock), wake.from, wake.until, waiter(wake));
        }
        std::ostringstream said;
        said << "wake-ups measured: " << measured;
        for (const auto& [kind, most] : longest_wakes_)
            said << ", " << info(kind).name << " " << most / 1'000'000 << " ms";
        findings_.remarks.push_back(said.str());
        if (measured == 0) findings_.complain("no wake-up could be measured");
        if (findings_.max_wake_ms > longest_wake.count())
            findings_.complain("a waiter slept for " + std::to_string(findings_.max_wake_ms) + " ms after a release");
    }

    void deadlines() {
        std::vector<std::string> late;
        std::uint64_t calls = 0;
        for (const Entry& entry : history_.gave_up) {
            if (entry.deadline == 0 || entry.killed != 0) continue;
            ++calls;
            const std::vector<test::TimedCall> call{{entry.called, entry.deadline, entry.returned}};
            if (!test::find_late_calls(call, ns(returning), pauses(entry.owner)).empty())
                late.push_back(kind_of(entry) + " returned " + history_.ms(entry.returned - entry.deadline) +
                               " after its deadline, " + history_.where(entry, entry.returned));
        }
        findings_.remarks.push_back("calls that came to their deadline: " + std::to_string(calls));
        for (const std::string& one : late) findings_.complain("late: " + one);
    }

private:
    // A loss must be reported by valid_until. If the server has lost a hold that is renewed, it must be reported at the
    // next renewal, unless another fault delays that.
    void losses(const std::vector<Entry>& turns) {
        for (const Entry& turn : turns) {
            if (turn.killed != 0 || turn.valid == 0) continue;
            const Windows& pauses_then = pauses(turn.owner);
            const std::int64_t told = turn.told != 0 ? turn.told : turn.released;
            if (told > turn.valid + ns(telling) && !pauses_then.meet(turn.valid - ns(telling), told))
                findings_.complain(findings_.late_losses, kind_of(turn) + ": loss told " +
                                                              history_.ms(told - turn.valid) + " after valid_until, " +
                                                              history_.where(turn, told));
            if (turn.watched == 0 || turn.kind == static_cast<std::uint32_t>(Kind::reader) ||
                turn.kind == static_cast<std::uint32_t>(Kind::red))
                continue;
            const milliseconds in_time = watchdog_timeout / 3 + command_timeout + telling;
            const Fault* fault = history_.forgotten_by(turn, in_time);
            if (fault == nullptr || told <= fault->until + ns(in_time) || pauses_then.meet(fault->until, told))
                continue;
            findings_.complain(findings_.late_losses, kind_of(turn) + ": " + std::string{info(fault->kind).name} +
                                                          " told only after " + History::ms(told - fault->until) +
                                                          ", " + history_.where(turn, told));
        }
    }

    void fenced(const KindInfo& kind, std::vector<Interval> intervals) {
        const std::string name = std::string{kind.name} + ": ";
        // A hold that was lost at once may have no token.
        std::erase_if(intervals, [](const Interval& one) { return one.token == 0; });
        for (const auto& [a, b] : test::find_stale_tokens(intervals))
            findings_.complain(findings_.stale_writes,
                               name + "token does not rise: " + history_.text(a) + ", then " + history_.text(b));
        std::vector<test::FencedWrite> writes;
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> valid;  // by owner and token: until when
        for (const Interval& one : intervals) valid[{one.owner, one.token}] = one.until;
        std::uint64_t refused = 0;
        for (const Entry& entry : history_.writes) {
            if (entry.lock != lock_number(kind.kind)) continue;
            writes.push_back({.resource = entry.lock,
                              .owner = entry.owner,
                              .token = entry.token,
                              .sent = entry.called,
                              .answered = entry.returned,
                              .accepted = entry.read == 1});
            if (entry.read == 1) continue;
            ++refused;
            const auto hold = valid.find({entry.owner, entry.token});
            if (hold != valid.end() && entry.returned < hold->second &&
                !history_.ended.at(entry.lock).meet(entry.called, entry.returned))
                findings_.complain(findings_.overlaps,
                                   name + "a valid holder's write was refused, " + history_.where(entry, entry.called));
        }
        for (const auto& [a, b] : test::find_stale_writes(writes))
            findings_.complain(findings_.stale_writes, name + "stale write of token " + std::to_string(b.token) +
                                                           " accepted after " + std::to_string(a.token) + " at " +
                                                           history_.at(b.sent));
        if (!test::find_shared_tokens(intervals).empty())
            findings_.complain(findings_.stale_writes, name + "two holds have one token");
        findings_.remarks.push_back(std::string{kind.name} + " writes: " + std::to_string(writes.size()) +
                                    ", refused " + std::to_string(refused));
    }

    // A waiter that was seen behind another in the queue must not get the lock first, except in times of trouble, in
    // which a place may be lost.
    void fair(const std::vector<Entry>& entries) {
        std::vector<Turn> turns;
        for (const Entry& entry : entries) turns.push_back(History::turn(entry, entry.on_wire));
        std::vector<test::QueueSight> sights;
        for (const test::QueueSight& sight : seen_.queue)
            if (!history_.troubled.meet(sight.asked, sight.at)) sights.push_back(sight);
        for (const test::Overtaking& one : test::find_overtaking(sights, turns))
            if (!history_.troubled.meet(one.sight.at, one.second.held) &&
                !history_.stood_still.meet(one.sight.asked - ns(500ms), one.second.held))
                findings_.complain("fair: overtaken at " + history_.at(one.sight.at) + ": called " +
                                   history_.at(one.first.called) + ", held " + history_.at(one.first.held) +
                                   ", gave up " + history_.at(one.first.gave_up) + ", by one that called " +
                                   history_.at(one.second.called) + ", held " + history_.at(one.second.held) +
                                   ", released " + history_.at(one.second.released));
        findings_.remarks.push_back("pairs seen in the queue of the fair lock: " + std::to_string(sights.size()));
    }

    std::string waiter(const test::WakeUp& wake) const {
        const auto who = [](std::uint64_t owner) {
            return "worker " + std::to_string(worker_of(owner)) + " thread " + std::to_string(owner & 0xffff);
        };
        return who(wake.after.owner) + " (called at " + history_.at(wake.after.called) +
               (wake.after.held != 0 ? ", held at " + history_.at(wake.after.held)
                                     : ", gave up at " + history_.at(wake.after.gave_up)) +
               "; released by " + who(wake.before.owner) + ")";
    }

    void woke(Kind kind, std::int64_t from, std::int64_t until, const std::string& who) {
        longest_wakes_[kind] = std::max(longest_wakes_[kind], until - from);
        const std::int64_t took = (until - from + 999'999) / 1'000'000;
        findings_.max_wake_ms = std::max(findings_.max_wake_ms, took);
        if (took > longest_wake.count())
            findings_.complain(std::string{info(kind).name} + ": nobody came in for " + std::to_string(took) +
                               " ms after a release at " + history_.at(from) + ", while " + who + " waited" +
                               holders(lock_number(kind), from, until));
    }

    // Describes who held the lock at that time according to the server.
    std::string holders(std::uint64_t lock, std::int64_t from, std::int64_t until) const {
        std::string text;
        for (const HolderSight& sight : seen_.holders) {
            if (sight.lock != lock || sight.at < from - ns(50ms) || sight.at > until + ns(50ms)) continue;
            text += "; at " + history_.at(sight.at) + " " + sight.key + " held by";
            for (const std::string& owner : sight.owners) text += " " + owner;
        }
        return text;
    }

    const std::vector<Entry>& turns_of(std::uint64_t lock) const {
        static const std::vector<Entry> none;
        const auto found = history_.turns.find(lock);
        return found == history_.turns.end() ? none : found->second;
    }

    const Windows& pauses(std::uint64_t owner) const {
        static const Windows none;
        const auto found = history_.pauses.find(worker_of(owner));
        return found == history_.pauses.end() ? none : found->second;
    }

    const History& history_;
    const Sights& seen_;
    Findings& findings_;
    std::map<Kind, std::int64_t> longest_wakes_;
};

}  // namespace

void check_journal(const std::vector<Entry>& journal, const std::vector<Fault>& faults,
                   const std::vector<test::LateArrival>& arrivals, const Sights& seen, std::int64_t began,
                   Findings& findings) {
    const History history{journal, faults, arrivals, began};
    JournalChecks check_journal{history, seen, findings};
    check_journal.locks();
    check_journal.permits();
    check_journal.semaphores();
    check_journal.latches();
    check_journal.wake_ups();
    check_journal.deadlines();
}

}  // namespace redlatch::soak
