// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "faults.hpp"
#include "journal.hpp"
#include "support/checkers.hpp"
#include "support/waiting_checkers.hpp"
#include "support/windows.hpp"

namespace redlatch::soak {

// How long a fault has effects after its end: a silent connection is given up, the client tries again after a back-off,
// and a hold that could not be released lasts until its lease ends.
inline constexpr milliseconds echo = watchdog_timeout + 1000ms;

// Notifying a thread takes a moment.
inline constexpr milliseconds telling{50};

// The journal and the list of faults, sorted for the checks.
class History {
public:
    // Times in messages count from `began`.
    History(const std::vector<Entry>& journal, const std::vector<Fault>& faults,
            const std::vector<test::LateArrival>& arrivals, std::int64_t began);

    // Returns whether a fault may delay a wake-up in this time.
    bool is_troubled(std::uint64_t lock, std::int64_t from, std::int64_t until) const {
        return troubled.meet(from, until) || late_requests_.at(lock).meet(from, until);
    }

    // Returns true if the server did not know the hold any more, although no fault explains that.
    bool is_lost_early(const Entry& turn) const;

    // Returns the fault by which the server lost the turn's hold, if no other fault delayed the report of the loss.
    const Fault* forgotten_by(const Entry& turn, milliseconds in_time) const;

    static test::Interval interval(const Entry& turn);
    static test::Turn turn(const Entry& entry, std::uint64_t owner);

    std::string at(std::int64_t when) const { return ms(when - began); }
    static std::string ms(std::int64_t time) { return std::to_string(time / 1'000'000) + " ms"; }
    std::string where(const Entry& entry, std::int64_t when) const;
    std::string text(const test::Interval& one) const;
    std::string text(const test::Section& one) const;

    const std::int64_t began;
    std::map<std::uint64_t, std::vector<Entry>> turns;  // by lock
    std::vector<Entry> all_turns;
    std::vector<Entry> semaphore_turns;
    std::vector<Entry> gave_up;
    std::vector<Entry> writes;
    std::vector<Entry> latch_counts;
    std::vector<Entry> failures;
    std::map<std::uint64_t, test::LatchRound> rounds;
    std::map<std::size_t, test::Windows> pauses;   // by worker
    test::Windows stood_still;                     // any worker
    std::map<std::uint64_t, test::Windows> ended;  // by lock: times in which holds may have ended early
    test::Windows troubled;                        // times in which no wake-up of any lock can be prompt

private:
    void sort_out(const std::vector<Entry>& journal);
    void latch_step(const Entry& entry);
    void ends_holds(const Fault& fault);
    std::string span(std::int64_t from, std::int64_t until) const;

    const std::vector<Fault>& faults_;
    std::vector<std::int64_t> data_lost_;  // times
    std::vector<Fault> forgetful_;         // by begin
    // By lock: a request that arrives after its sender has given it up may take the lock for a whole lease.
    std::map<std::uint64_t, test::Windows> late_requests_;
    test::Windows bare_majority_ended_;  // times in which a RedLock that not all of its members hold may have ended
};

inline std::string kind_of(const Entry& entry) { return std::string{kinds.at(entry.kind).name}; }

}  // namespace redlatch::soak
