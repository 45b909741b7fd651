// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "support/shared_memory.hpp"

namespace redlatch::bench {

/// Returns CLOCK_MONOTONIC, which all processes of the machine share.
inline std::int64_t now_ns() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// The counters of one thread. Only that thread writes them.
struct alignas(64) Worker {
    static constexpr std::size_t max_releases = 1024;

    void acquired(std::int64_t asked, std::int64_t entered) {
        ++acquisitions;
        if (entered - asked > longest_wait_ns) longest_wait_ns = entered - asked;
    }

    std::size_t process = 0;  // the index of its first thread
    std::uint64_t acquisitions = 0;
    std::uint64_t shared = 0;      // acquisitions that others may have at the same time
    std::uint64_t violations = 0;  // times that this thread met others that should not have been there
    std::int64_t longest_wait_ns = 0;
    volatile bool inside = false;  // has a permit
    std::uint64_t release_commands = 0;
    std::size_t release_count = 0;
    std::int64_t releases_ns[max_releases] = {};  // from the release of all waiters until this one continues
};

/// Acquisitions of the lock, by the thread that held it before. The very first one has no such thread.
struct Holders {
    std::uint64_t self = 0;    // the same thread
    std::uint64_t local = 0;   // another thread of the same process
    std::uint64_t remote = 0;  // a thread of another process
};

/// The data that the holder of the lock under test uses. Deliberately no atomics: if there were ever two holders at
/// once, the owner word would show it, and increments of the counter would get lost.
class alignas(64) Critical {
public:
    /// Call it right after lock(). `asked` is the time before it, `entered` the time after it.
    void enter(std::size_t index, Worker& worker, std::int64_t asked, std::int64_t entered) {
        const std::uint64_t me = index + 1;
        if (owner_ != nobody) overlaps_ = overlaps_ + 1;
        owner_ = me;
        counter_ = counter_ + 1;
        worker.acquired(asked, entered);
        if (last_owner_ != nobody) count_after_another(me, worker.process, asked, entered);
        last_owner_ = me;
        last_process_ = worker.process;
        entered_at_ = entered;
    }

    /// Call it right before unlock().
    void leave(std::size_t index) {
        if (owner_ != index + 1) overlaps_ = overlaps_ + 1;
        owner_ = nobody;
        released_at_ = now_ns();
        held_ns_ = held_ns_ + released_at_ - entered_at_;
    }

    /// Returns whether an exclusive holder is inside, which a reader must never see.
    bool occupied() const { return owner_ != nobody; }

    std::uint64_t violations(std::uint64_t acquisitions) const {
        return overlaps_ + (acquisitions > counter_ ? acquisitions - counter_ : counter_ - acquisitions);
    }

    Holders holders() const { return {.self = self_, .local = local_, .remote = remote_}; }
    std::int64_t held_ns() const { return held_ns_; }

    /// From just before unlock() to the return of the lock() of another thread that was waiting by then.
    std::size_t handoff_count() const { return handoff_count_; }
    std::int64_t handoff_ns(std::size_t i) const { return handoffs_ns_[i]; }

private:
    static constexpr std::uint64_t nobody = 0;
    static constexpr std::size_t max_handoffs = std::size_t{1} << 17;

    void count_after_another(std::uint64_t me, std::size_t my_process, std::int64_t asked, std::int64_t entered) {
        if (last_owner_ == me) {
            self_ = self_ + 1;
            return;
        }
        if (last_process_ == my_process)
            local_ = local_ + 1;
        else
            remote_ = remote_ + 1;
        if (asked >= released_at_ || handoff_count_ == max_handoffs) return;
        handoffs_ns_[handoff_count_] = entered - released_at_;
        handoff_count_ = handoff_count_ + 1;
    }

    volatile std::uint64_t counter_ = 0;
    volatile std::uint64_t owner_ = nobody;
    volatile std::uint64_t last_owner_ = nobody;
    volatile std::size_t last_process_ = 0;
    volatile std::uint64_t overlaps_ = 0;
    volatile std::uint64_t self_ = 0;
    volatile std::uint64_t local_ = 0;
    volatile std::uint64_t remote_ = 0;
    volatile std::int64_t entered_at_ = 0;
    volatile std::int64_t released_at_ = 0;
    volatile std::int64_t held_ns_ = 0;
    volatile std::size_t handoff_count_ = 0;
    volatile std::int64_t handoffs_ns_[max_handoffs] = {};
};

/// Shared by the processes of a fleet.
struct Shared {
    static constexpr std::size_t max_workers = 128;

    /// Returns how many threads have a permit. Each sets its flag after the acquire and clears it before the release.
    /// So there may be more than are counted, but never fewer.
    std::size_t inside() const {
        std::size_t count = 0;
        for (const Worker& worker : workers)
            if (worker.inside) ++count;
        return count;
    }

    std::atomic<bool> stop{false};
    volatile std::int64_t released_at = 0;  // when all waiters were released
    Critical critical;
    Worker workers[max_workers];
};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace redlatch::bench
