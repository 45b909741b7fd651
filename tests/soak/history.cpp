// SPDX-License-Identifier: MIT
#include "history.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "redlatch/error.hpp"

namespace redlatch::soak {

namespace {

// The longest time before the end of a lease at which a loss may be reported. Reporting takes as long as the machine
// needs, and longer under load.
constexpr milliseconds noticed = detail::Lateness::longest_notice;

bool forgets_holds(const Fault& fault) {
    return fault.kind == FaultKind::restart_without_data || fault.kind == FaultKind::flush_all ||
           (fault.kind == FaultKind::key_deleted && fault.bit) || fault.kind == FaultKind::clock_forward;
}

void end_otherwise(test::LatchRound& round, std::int64_t when) {
    if (round.ended_otherwise == 0 || when < round.ended_otherwise) round.ended_otherwise = when;
}

}  // namespace

History::History(const std::vector<Entry>& journal, const std::vector<Fault>& faults,
                 const std::vector<test::LateArrival>& arrivals, std::int64_t when_it_began)
    : began(when_it_began), faults_(faults) {
    for (const KindInfo& kind : kinds) {
        ended[lock_number(kind.kind)];
        test::Windows& late = late_requests_[lock_number(kind.kind)];
        for (const test::LateArrival& arrival : arrivals)
            if (arrival.bytes.find(kind.of) != std::string::npos) late.add({arrival.at, arrival.at + ns(echo)});
    }
    ended[Fault::all_locks];
    for (const Fault& fault : faults) {
        if (info(fault.kind).cost != Cost::nothing) troubled.add({fault.from, fault.until + ns(echo)});
        if (info(fault.kind).cost == Cost::holds) ends_holds(fault);
        if (loses_data(fault.kind)) data_lost_.push_back(fault.from);
        if (forgets_holds(fault)) forgetful_.push_back(fault);
    }
    sort_out(journal);
}

void History::sort_out(const std::vector<Entry>& journal) {
    std::set<std::pair<std::uint64_t, std::int64_t>> whole;
    for (const Entry& entry : journal)
        if (entry.killed == 0) whole.insert({entry.owner, entry.called});
    for (const Entry& entry : journal) {
        // The worker was killed after it wrote the entry, but before it cleared its state.
        if (entry.killed != 0 && whole.contains({entry.owner, entry.called})) continue;
        switch (entry.what) {
            case Entry::What::turn:
                if (entry.kind == static_cast<std::uint32_t>(Kind::semaphore)) {
                    semaphore_turns.push_back(entry);
                } else {
                    turns[entry.lock].push_back(entry);
                    all_turns.push_back(entry);
                }
                break;
            case Entry::What::gave_up: gave_up.push_back(entry); break;
            case Entry::What::fenced_write: writes.push_back(entry); break;
            case Entry::What::latch_count: latch_counts.push_back(entry); break;
            case Entry::What::latch_set:
            case Entry::What::latch_down:
            case Entry::What::latch_wait:
            case Entry::What::latch_reset: latch_step(entry); break;
            case Entry::What::failure: failures.push_back(entry); break;
            case Entry::What::pause:
                pauses[worker_of(entry.owner)].add({entry.called, entry.returned});
                stood_still.add({entry.called, entry.returned});
        }
    }
}

void History::latch_step(const Entry& entry) {
    test::LatchRound& round = rounds[entry.lock];
    round.latch = entry.lock;
    round.count = latch_size;
    switch (entry.what) {
        case Entry::What::latch_down:
            if (entry.returned == 0) {
                round.count_downs.push_back({entry.called, 0});
                break;
            }
            for (auto& down : round.count_downs)
                if (down.invoked == entry.called) down.acknowledged = entry.returned;
            break;
        case Entry::What::latch_wait: round.waits.push_back({entry.called, entry.returned, entry.read == 1}); break;
        case Entry::What::latch_reset: end_otherwise(round, entry.called); break;
        default: {
            const auto lost = std::lower_bound(data_lost_.begin(), data_lost_.end(), entry.called - ns(1s));
            if (lost != data_lost_.end()) end_otherwise(round, *lost);
        }
    }
}

// A holder may believe in a hold that such a fault has ended until its lease is over, at most.
void History::ends_holds(const Fault& fault) {
    const test::Window window{fault.from, fault.until + ns(std::max(watchdog_timeout, longest_lease)) + ns(telling)};
    for (const KindInfo& kind : kinds) {
        if (fault.lock != Fault::all_locks && fault.lock != lock_number(kind.kind)) continue;
        // After a restart without its data a server grants nothing that counts for a while, so no other client gets a
        // RedLock. But a hold ends early if a bare majority with that server had granted it. If a server loses its
        // memory and continues to run, or its clock jumps forward, two clients may hold it.
        const bool restarted =
            fault.kind == FaultKind::restart_without_data || fault.kind == FaultKind::restart_with_cut_tail;
        if (kind.kind == Kind::red && restarted)
            bare_majority_ended_.add(window);
        else
            ended[lock_number(kind.kind)].add(window);
    }
    if (loses_data(fault.kind)) ended[Fault::all_locks].add(window);
}

bool History::is_lost_early(const Entry& turn) const {
    const auto error = static_cast<errc>(turn.error);
    if ((error != errc::hold_lost && error != errc::unknown_permit) || turn.returned >= turn.valid - ns(noticed))
        return false;
    const bool bare_majority = turn.lock == lock_number(Kind::red) && turn.token <= steady_servers;
    if (bare_majority && bare_majority_ended_.meet(turn.held, turn.returned)) return false;
    return !ended.at(turn.lock).meet(turn.held, turn.returned);
}

const Fault* History::forgotten_by(const Entry& turn, milliseconds in_time) const {
    auto fault = std::upper_bound(forgetful_.begin(), forgetful_.end(), turn.held,
                                  [](std::int64_t held, const Fault& one) { return held < one.from; });
    for (; fault != forgetful_.end() && fault->until < turn.until; ++fault) {
        if (fault->lock != Fault::all_locks && fault->lock != turn.lock) continue;
        const bool in_the_way = std::any_of(faults_.begin(), faults_.end(), [&](const Fault& other) {
            return (other.kind != fault->kind || other.from != fault->from) && info(other.kind).cost != Cost::nothing &&
                   other.from <= fault->until + ns(in_time) && other.until + ns(echo) >= fault->from;
        });
        if (!in_the_way) return &*fault;
    }
    return nullptr;
}

test::Interval History::interval(const Entry& turn) {
    return {.owner = turn.owner,
            .from = turn.held,
            .until = turn.until,
            .lock = turn.lock,
            .token = turn.token,
            .shared = turn.kind == static_cast<std::uint32_t>(Kind::reader) ? 1U : 0U,
            .called = turn.called,
            .told = turn.told};
}

test::Turn History::turn(const Entry& entry, std::uint64_t owner) {
    test::Turn turn{.lock = entry.lock, .owner = owner, .called = entry.called};
    if (entry.what == Entry::What::gave_up) {
        turn.gave_up = entry.returned;
        return turn;
    }
    turn.held = entry.held;
    turn.released = entry.released;
    if (turn.released == 0) turn.lapsed = std::max(entry.returned, entry.wrote) + ns(echo);
    return turn;
}

// --- as text ------------------------------------------------------------------------------------------------------

std::string History::where(const Entry& entry, std::int64_t when) const {
    std::string text = "worker " + std::to_string(worker_of(entry.owner)) + ", " + kind_of(entry) + ", at " + at(when);
    const auto add = [&](const char* what, std::int64_t time) {
        if (time != 0) text += std::string{", "} + what + " " + std::to_string((time - began) / 1000) + " µs";
    };
    add("called", entry.called);
    add("held", entry.held);
    add("until", entry.until);
    add("released", entry.released);
    add("returned", entry.returned);
    add("told", entry.told);
    add("valid", entry.valid);
    return text + ", thread " + std::to_string(entry.owner & 0xffff) + ", error " + std::to_string(entry.error);
}

std::string History::span(std::int64_t from, std::int64_t until) const {
    return "[" + std::to_string((from - began) / 1000) + " µs, " + std::to_string((until - began) / 1000) + " µs]";
}

std::string History::text(const test::Interval& one) const {
    return "worker " + std::to_string(worker_of(one.owner)) + " thread " + std::to_string(one.owner & 0xffff) + " " +
           span(one.from, one.until) + " token " + std::to_string(one.token) + (one.shared == 1 ? " (reader)" : "");
}

std::string History::text(const test::Section& one) const {
    return "worker " + std::to_string(worker_of(one.owner)) + " read " + std::to_string(one.read) + " in " +
           span(one.from, one.until);
}

}  // namespace redlatch::soak
