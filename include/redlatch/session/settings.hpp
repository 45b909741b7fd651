// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// How long a hold that is acquired has to last, besides its lease: see Lease::Bounds. `least` does not exceed `most`.
struct HoldBounds {
    static constexpr HoldBounds of(Milliseconds least, Milliseconds most) noexcept {
        return {shortened(least), shortened(most)};
    }

    ShortTime least{0};
    ShortTime most = ShortTime::max();

    bool is_any() const noexcept { return least > Milliseconds(0) || is_limited(); }
    bool is_limited() const noexcept { return most != ShortTime::max(); }

    // Returns the lease of the acquire. At least the minimum: so a process that dies at once leaves it that long.
    Milliseconds lease_of(const std::optional<Milliseconds>& lease, Milliseconds watchdog_timeout) const noexcept {
        const Milliseconds wanted = lease.value_or(watchdog_timeout);
        return std::max(is_limited() ? std::min(wanted, Milliseconds(most)) : wanted, Milliseconds(least));
    }
};

// The options that one object goes by: its ObjectOptions, and those of its client where it has none. A request of a
// call carries a copy, and so does a hold, because both may outlive the object.
struct Settings {
    Milliseconds watchdog_timeout{};
    Milliseconds command_timeout{};
    Milliseconds unreachable_timeout{};
    unsigned require_replicas = 0;
    unsigned local_handoff_limit : 31 = 0;
    unsigned require_fsync : 1 = 0;
    HoldBounds bounds{};  // of one acquire

    // A disk has longer than replicas: with `appendfsync everysec` the server writes to it once a second.
    Replication replication() const noexcept {
        return {require_replicas, std::max(Milliseconds(1), command_timeout / (require_fsync ? 2 : 4)),
                require_fsync != 0};
    }
};

inline Settings settings_of(const ClientOptions& client, const ObjectOptions& own = {}) {
    return {own.watchdog_timeout.value_or(client.watchdog_timeout),
            own.command_timeout.value_or(client.command_timeout),
            own.unreachable_timeout.value_or(client.unreachable_timeout),
            own.require_replicas.value_or(client.require_replicas),
            std::min(own.local_handoff_limit.value_or(client.local_handoff_limit), 0x7fff'ffffU) & 0x7fff'ffffU,
            own.require_fsync.value_or(client.require_fsync) ? 1U : 0U,
            {}};
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

// Throws Error(errc::unsupported) if confirmation is required of a transport that cannot ask for it.
inline void check_replication(const Settings& settings, bool posts_several, std::string_view name) {
    if (settings.require_replicas > 0 && !posts_several)
        throw Error(errc::unsupported, name, "require_replicas needs a transport with post_all()");
    if (settings.require_fsync && !posts_several)
        throw Error(errc::unsupported, name, "require_fsync needs a transport with post_all()");
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
