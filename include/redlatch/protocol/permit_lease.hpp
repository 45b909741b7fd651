// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// For how long a permit is acquired: with a lease of its own, without a TTL, or under the watchdog.
struct PermitLease {
    enum class Kind { watched, limited, forever } kind = Kind::watched;
    Milliseconds length{};  // unless forever; of the watchdog, if it renews the permit

    static PermitLease of(const Lease& lease) { return {Kind::limited, lease.length()}; }
    static PermitLease of(Lease::Forever) { return {Kind::forever, {}}; }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
