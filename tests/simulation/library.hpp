// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/scheduler.hpp"

// The unmodified library, except for the number of the calling thread. All fibers run in one thread of the system, so a
// thread_local number would be the same for all of them.
#define this_thread_number this_system_thread_number
#include <redlatch/base/ids.hpp>
#undef this_thread_number

namespace redlatch::detail {

inline std::uint64_t this_thread_number() noexcept { return sim::scheduler().self().id + 1; }

}  // namespace redlatch::detail

#include <redlatch/redlatch.hpp>
