// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <chrono>
#include <cstdint>
#include <map>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class Alarms;

// The alarm of one sleeper, which is derived from this class: a place in a list. A sleeper that has no alarm may use
// `next` for a list of its own.
struct Alarm {
    Alarm* next = nullptr;

    bool is_set() const noexcept { return span_ != nullptr; }

private:
    friend class Alarms;

    // Those that ring within one short span of time, in the order in which they were set.
    struct Span {
        std::int64_t number;
        Alarm* first = nullptr;
        Alarm* last = nullptr;
        Instant earliest = never;  // not later than the earliest of them
    };

    Span* span_ = nullptr;  // null if it is not set
    Alarm* before_ = nullptr;
    Instant at_{};
};

// Alarms by their time. A crowd of operations has deadlines that lie close together, and most of them never come. So the
// alarms of a quarter of a millisecond share an entry, in which one is set and stopped without a search or memory.
class Alarms {
public:
    // Throws std::bad_alloc, and changes nothing then.
    void set(Alarm& alarm, Instant at);

    // For one that is set.
    void stop(Alarm& alarm) noexcept;

    // Returns an instant before which none rings, and soon after which one does; `never` if none is set.
    Instant next() const noexcept;

    // Stops those that ring by `now`, and calls `ring` with each.
    template <class Ring>
    void ring_due(Instant now, Ring ring) {
        while (next() <= now) {
            Alarm::Span& span = spans_.begin()->second;
            span.earliest = never;
            for (Alarm* alarm = span.first; alarm;) {
                Alarm& one = *alarm;
                alarm = one.next;
                if (one.at_ > now) {
                    span.earliest = std::min(span.earliest, one.at_);
                    continue;
                }
                stop(one);  // with the last one the span is gone
                ring(one);
            }
        }
    }

private:
    static_assert(std::chrono::nanoseconds::period::den == Clock::period::den);
    static constexpr int span_bits = 18;  // of the nanoseconds

    std::map<std::int64_t, Alarm::Span> spans_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/session/alarms.ipp"
#endif
