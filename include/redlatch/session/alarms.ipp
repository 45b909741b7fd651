// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/alarms.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE void Alarms::set(Alarm& alarm, Instant at) {
    const std::int64_t number = at.time_since_epoch().count() >> span_bits;
    const auto entry = spans_.try_emplace(spans_.end(), number, Alarm::Span{number});
    Alarm::Span& span = entry->second;
    alarm.span_ = &span;
    alarm.at_ = at;
    alarm.next = nullptr;
    alarm.before_ = span.last;
    (span.last ? span.last->next : span.first) = &alarm;
    span.last = &alarm;
    span.earliest = std::min(span.earliest, at);
}

REDLATCH_INLINE void Alarms::stop(Alarm& alarm) noexcept {
    Alarm::Span& span = *std::exchange(alarm.span_, nullptr);
    (alarm.before_ ? alarm.before_->next : span.first) = alarm.next;
    (alarm.next ? alarm.next->before_ : span.last) = alarm.before_;
    if (!span.first) spans_.erase(span.number);
}

REDLATCH_INLINE Instant Alarms::next() const noexcept {
    return spans_.empty() ? never : spans_.begin()->second.earliest;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
