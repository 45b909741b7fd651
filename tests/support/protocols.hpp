// SPDX-License-Identifier: MIT
#pragma once

// The library, and what it sends: keys, channels and scripts. In the compiled form the public headers do not lead to them.
#include <redlatch/redlatch.hpp>

#ifdef REDLATCH_COMPILED
#include <redlatch/base/names.hpp>
#include <redlatch/protocol/barrier.hpp>
#include <redlatch/protocol/condition_variable.hpp>
#include <redlatch/protocol/count_down_latch.hpp>
#include <redlatch/protocol/fair_lock.hpp>
#include <redlatch/protocol/fenced_lock.hpp>
#include <redlatch/protocol/holder_record.hpp>
#include <redlatch/protocol/mutex.hpp>
#include <redlatch/protocol/permit_expirable_semaphore.hpp>
#include <redlatch/protocol/read_write_lock.hpp>
#include <redlatch/protocol/rlock.hpp>
#include <redlatch/protocol/semaphore.hpp>
#endif

#include <cstdint>
#include <string>

namespace redlatch::test {

/// Returns the channel of a lock, as Redisson names it.
inline std::string channel_of(const std::string& key) {
    return redlatch::detail::prefixed_key("redisson_lock__channel", key);
}

/// Returns the number of this thread's hold; 0 if it has none.
std::uint64_t hold_of_this_thread(redlatch::detail::LockState& state);

}  // namespace redlatch::test
