// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/lock/acquires.hpp"
#include "redlatch/lock/deliveries.hpp"
#include "redlatch/lock/leases.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/lock/releases.hpp"

#include <memory>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The parts of one lock that send commands and keep its holds. A queue adds the waiting.
struct LockParts {
    LockParts(LockTask& state, Session& session, std::unique_ptr<LockProtocol> protocol)
        : core(state, session, std::move(protocol)) {}

    LockCore core;
    Deliveries deliveries{core};
    Leases leases{core, deliveries};
    Releases releases{core, deliveries, leases};
    Acquires acquires{core, deliveries, leases};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
