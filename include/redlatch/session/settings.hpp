// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The options that one object goes by: its ObjectOptions, and those of its client where it has none. A request of a
// call carries a copy, and so does a hold, because both may outlive the object.
struct Settings {
    Milliseconds watchdog_timeout{};
    Milliseconds command_timeout{};
    Milliseconds unreachable_timeout{};
    unsigned local_handoff_limit = 0;
    unsigned require_replicas = 0;

    Replication replication() const noexcept {
        return {require_replicas, std::max(Milliseconds(1), command_timeout / 4)};
    }
};

inline Settings settings_of(const ClientOptions& client, const ObjectOptions& own = {}) {
    return {own.watchdog_timeout.value_or(client.watchdog_timeout),
            own.command_timeout.value_or(client.command_timeout),
            own.unreachable_timeout.value_or(client.unreachable_timeout),
            own.local_handoff_limit.value_or(client.local_handoff_limit),
            own.require_replicas.value_or(client.require_replicas)};
}

// Throws Error(errc::invalid_argument) for values that cannot work. `name`: of the object, empty for a client.
inline void check_settings(const Settings& settings, std::string_view name) {
    static_cast<void>(Lease(settings.watchdog_timeout));
    if (settings.watchdog_timeout < Milliseconds(30))
        throw Error(errc::invalid_argument, name, "watchdog_timeout must be at least 30 ms");
    if (settings.command_timeout < Milliseconds(1) || settings.command_timeout > std::chrono::hours(1))
        throw Error(errc::invalid_argument, name, "command_timeout must be from 1 ms to 1 h");
    if (settings.unreachable_timeout < Milliseconds(0))
        throw Error(errc::invalid_argument, name, "unreachable_timeout must not be negative");
}

// Throws Error(errc::unsupported) if replicas are required of a transport that cannot ask them.
inline void check_replication(const Settings& settings, bool posts_several, std::string_view name) {
    if (settings.require_replicas > 0 && !posts_several)
        throw Error(errc::unsupported, name, "require_replicas needs a transport with post_all()");
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
