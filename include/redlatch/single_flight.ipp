// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/around/record_state.hpp"
#include "redlatch/around/recorded_work.hpp"
#include "redlatch/base/config.hpp"
#include "redlatch/protocol/holder_record.hpp"
#include "redlatch/single_flight.hpp"

#include <optional>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

inline std::optional<FlightValue> flight_value(std::optional<HolderRecord> record, bool computed) {
    if (!record) return std::nullopt;
    return FlightValue{std::move(record->value), record->token, record->stays, computed};
}

}  // namespace detail

REDLATCH_INLINE SingleFlight::SingleFlight(Client& client, std::string_view name, std::chrono::milliseconds ttl,
                                           const ObjectOptions& options)
    : lock_(client, name, options),
      record_(detail::ClientAccess::session(client), detail::record_maker<detail::flight_record>, name, options),
      ttl_(detail::checked_stay(ttl, name)) {}

REDLATCH_INLINE std::optional<FlightValue> SingleFlight::run(const Work& work, const detail::WaitRequest& request) {
    detail::Recorded made = detail::work_or_wait(lock_, record_, ttl_, work, request);
    return detail::flight_value(std::move(made.record), made.is_own);
}

REDLATCH_INLINE std::optional<FlightValue> SingleFlight::peek() {
    return detail::flight_value(detail::look_at_record(record_).record, false);
}

REDLATCH_INLINE bool SingleFlight::invalidate() { return detail::remove_record(record_); }

REDLATCH_INLINE std::optional<FlightValue> SingleFlight::peek(std::error_code& ec) {
    return detail::answer([&] { return peek(); }, std::optional<FlightValue>(), ec);
}

REDLATCH_INLINE bool SingleFlight::invalidate(std::error_code& ec) {
    return detail::answer([&] { return invalidate(); }, false, ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
