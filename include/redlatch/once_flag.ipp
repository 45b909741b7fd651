// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/around/record_state.hpp"
#include "redlatch/around/recorded_work.hpp"
#include "redlatch/base/config.hpp"
#include "redlatch/once_flag.hpp"
#include "redlatch/protocol/holder_record.hpp"

#include <stop_token>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

REDLATCH_INLINE OnceFlag::OnceFlag(Client& client, std::string_view name, const OnceOptions& options,
                                   const ObjectOptions& own)
    : lock_(client, name, own),
      record_(detail::ClientAccess::session(client), detail::record_maker<detail::once_record>, name, own),
      keep_(options.keep ? detail::checked_stay(*options.keep, name) : Milliseconds(0)) {}

REDLATCH_INLINE bool OnceFlag::run(const Work& work, const detail::WaitRequest& request) {
    const auto done = [&work](const std::stop_token& ending) {
        work(ending);
        return std::string();
    };
    return detail::work_or_wait(lock_, record_, keep_, done, request).record.has_value();
}

REDLATCH_INLINE bool OnceFlag::is_done() { return detail::look_at_record(record_).record.has_value(); }

REDLATCH_INLINE bool OnceFlag::reset() { return detail::remove_record(record_); }

REDLATCH_INLINE bool OnceFlag::is_done(std::error_code& ec) {
    return detail::answer([&] { return is_done(); }, false, ec);
}

REDLATCH_INLINE bool OnceFlag::reset(std::error_code& ec) {
    return detail::answer([&] { return reset(); }, false, ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
