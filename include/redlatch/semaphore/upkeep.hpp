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
bool exists(Synchronizer& synchronizer) {
    const Reply reply = query(synchronizer.session(), synchronizer.key(), synchronizer.protocol().exists());
    number_of(reply, synchronizer.key());
    return !reply.is_nil();
}

template <class Synchronizer>
bool remove(Synchronizer& synchronizer) {
    return synchronizer.is_one(
        synchronizer.change([&](const RequestId& request_id) { return synchronizer.protocol().remove(request_id); }));
}

template <class Synchronizer>
bool expire(Synchronizer& synchronizer, Milliseconds after) {
    return synchronizer.is_one(synchronizer.change(
        [&](const RequestId& request_id) { return synchronizer.protocol().expire(request_id, after); }));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
