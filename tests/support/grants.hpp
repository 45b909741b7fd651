// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <type_traits>
#include <vector>

#include "protocols.hpp"
#include "raw_redis.hpp"
#include "read_side.hpp"
#include "wait.hpp"

namespace redlatch::test {

/// Returns until when the exclusive hold of this thread is certain; of a ReadSide its shared one.
template <class L>
Instant valid_until_of(L& lock) {
    if constexpr (std::is_same_v<L, ReadWriteLock>)
        return lock.write_lock().valid_until();
    else
        return lock.valid_until();
}

/// Returns the key of the list in which clients wait for a lock or a semaphore of this type.
template <class L>
std::string queue_key_of(const std::string& name) {
    const std::string tag = ":{" + name + "}";
    if constexpr (std::is_same_v<L, FairLock>)
        return "redisson_lock_queue" + tag;
    else if constexpr (std::is_same_v<L, ReadWriteLock> || std::is_same_v<L, ReadSide>)
        return "redlatch_rwlock_queue" + tag;
    else if constexpr (std::is_same_v<L, RLock> || std::is_same_v<L, FencedLock>)
        return "redlatch_lock_queue" + tag;
    else
        return "redlatch_semaphore_queue" + tag;
}

/// Returns true once a release may grant the lock to the client: its waiter is in the queue, and listens. Of a FairLock,
/// nobody else may be in the queue. Of a ReadWriteLock, the waiter is a writer. `sharded`: on a cluster's node.
template <class L>
bool can_be_granted(RawCommands& redis, const Client& client, const std::string& name, bool sharded = false) {
    return eventually(
        [&] {
            if constexpr (std::is_same_v<L, FairLock>) {
                const std::vector<std::string> queue = redis.list("LRANGE", queue_key_of<L>(name), 0, -1);
                if (queue.size() != 1 || !queue.front().starts_with(client.id())) return false;
                return redis.call("ZSCORE", "redlatch_lock_slots:{" + name + "}", queue.front()).string.ends_with(".5");
            } else if constexpr (std::is_same_v<L, ReadWriteLock> || std::is_same_v<L, ReadSide>) {
                const std::string waiter = client.id() + (std::is_same_v<L, ReadSide> ? "" : ":write");
                return redis.integer("HEXISTS", "redlatch_rwlock_places:{" + name + "}", waiter) == 1 &&
                       redis.lock_listeners("redisson_rwlock:{" + name + "}:" + waiter, sharded) == 1;
            } else {
                return redis.integer("HEXISTS", "redlatch_lock_places:{" + name + "}", client.id()) == 1 &&
                       redis.lock_listeners("redisson_lock__channel:{" + name + "}:" + client.id(), sharded) == 1;
            }
        },
        std::chrono::seconds{30});
}

}  // namespace redlatch::test
