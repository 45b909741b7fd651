// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <array>
#include <atomic>
#include <cstddef>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Tracks what this server and its user rights permit, and whether the user may use the queues. Plain commands of newer
// servers are tried in order: one that the server refuses is not sent to it again. Thread-safe.
class NativeCommands {
public:
    // How to set a key that does not exist, with a lease.
    enum class Set {
        until,    // SET … PXAT: Redis 6.2. A late copy holds no longer than the first would have
        lasting,  // SET … PX
    };

    // How to delete a key that has a certain value.
    enum class Delete {
        delex,    // DELEX key IFEQ value: Redis 8.4, Valkey 9.2
        delifeq,  // DELIFEQ key value: Valkey 9.0
        script,   // no such command
    };

    Set set() const noexcept { return set_.load(std::memory_order_relaxed); }
    Delete compare_and_delete() const noexcept { return delete_.load(std::memory_order_relaxed); }

    void refused(Set form) noexcept {
        if (form == Set::until) set_.store(Set::lasting, std::memory_order_relaxed);
    }
    void refused(Delete form) noexcept {
        const Delete next = form == Delete::delex ? Delete::delifeq : Delete::script;
        delete_.compare_exchange_strong(form, next, std::memory_order_relaxed);
    }

    // The queues on the server, by the names of their keys.
    enum class Queue { locks, read_write_locks, semaphores };

    // Whether this user may use these queues.
    bool may_use(Queue of) const noexcept { return !may_not_queue_[index(of)].load(std::memory_order_relaxed); }
    void refused(Queue of) noexcept { may_not_queue_[index(of)].store(true, std::memory_order_relaxed); }

private:
    static constexpr std::size_t index(Queue of) noexcept { return static_cast<std::size_t>(of); }

    std::array<std::atomic<bool>, 3> may_not_queue_{};
    std::atomic<Set> set_{Set::until};
    std::atomic<Delete> delete_{Delete::delex};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
