// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/lock/acquires.hpp"
#include "redlatch/lock/deliveries.hpp"
#include "redlatch/lock/leases.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/lock/releases.hpp"

#include <string>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// The parts of one lock that send commands and keep its holds. A queue adds the waiting.
template <class T, class Protocol>
struct LockParts {
    LockParts(LockTask& state, Session<T>& session, const std::string& key) : core(state, session, key) {}

    LockCore<T, Protocol> core;
    Deliveries<T, Protocol> deliveries{core};
    Leases<T, Protocol> leases{core, deliveries};
    Releases<T, Protocol> releases{core, deliveries, leases};
    Acquires<T, Protocol> acquires{core, deliveries, leases};
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
