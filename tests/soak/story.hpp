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

// How long a fault is felt after it is over: a connection that is silent is given up, the server tried again after a
// back-off, and a hold that could not be given back lasts until its lease is over.
inline constexpr milliseconds echo = watchdog_timeout + 1000ms;

// Telling a thread takes a moment.
inline constexpr milliseconds telling{50};

// What the journal and the list of faults tell, sorted out for those who judge it.
class Story {
public:
    // `began` is the time that messages count from.
    Story(const std::vector<Entry>& journal, const std::vector<Fault>& faults, std::int64_t began);

    // The server did not know it any more, and no fault explains that.
    bool is_lost_early(const Entry& turn) const;

    // When a hold of that turn was forgotten by the server, and nothing else stood in the way of telling so.
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
    std::map<std::uint64_t, test::Windows> ended;  // by lock: when holds may have ended before their time
    test::Windows troubled;                        // when nobody can be prompt

private:
    void sort_out(const std::vector<Entry>& journal);
    void latch_step(const Entry& entry);
    void ends_holds(const Fault& fault);
    std::string span(std::int64_t from, std::int64_t until) const;

    const std::vector<Fault>& faults_;
    std::vector<std::int64_t> data_lost_;  // when
    std::vector<Fault> forgetful_;         // by begin
};

inline std::string kind_of(const Entry& entry) { return std::string{kinds.at(entry.kind).name}; }

}  // namespace redlatch::soak
