// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/transport/reply.hpp"

// The operations on the key of a semaphore or a latch, whose state is `synchronizer`. All throw Error.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

template <class Synchronizer>
bool exists(const Settings& settings, Synchronizer& synchronizer) {
    const Reply reply = query(synchronizer.session(), settings, synchronizer.key(), synchronizer.protocol().exists());
    number_of(reply, synchronizer.key());
    return !reply.is_nil();
}

template <class Synchronizer>
bool remove(const Settings& settings, Synchronizer& synchronizer) {
    return synchronizer.is_one(synchronizer.change(
        settings, [&](const RequestId& request_id) { return synchronizer.protocol().remove(request_id); }));
}

template <class Synchronizer>
bool expire(const Settings& settings, Synchronizer& synchronizer, Milliseconds after) {
    return synchronizer.is_one(synchronizer.change(
        settings, [&](const RequestId& request_id) { return synchronizer.protocol().expire(request_id, after); }));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
