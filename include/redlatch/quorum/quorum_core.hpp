// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/adaptive_spin.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_rules.hpp"
#include "redlatch/quorum/round.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/wait/wait_slot.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What the parts of one lock over several share.
//
// mutex guards all members except the constant ones, and the parts. It is held while the members' validity is read,
// which locks their mutexes; but nothing is sent and no user code runs meanwhile. idle notifies close() when no thread
// is inside a member, or no coroutine acquires the lock any more.
struct QuorumCore {
    QuorumCore(BackgroundTask& state, std::vector<std::shared_ptr<QuorumMember>> of, const QuorumRules& by,
               const std::string& called)
        : task(state), members(std::move(of)), rules(by), name(called) {}

    // The member whose client serves the timers.
    QuorumMember& client() const { return *members.front(); }

    // Keeps the state alive, for completions.
    std::shared_ptr<BackgroundTask> keep() { return task.shared_from_this(); }

    // Returns the allowance for clock drift between independent servers: one percent, and 2 ms for the resolution of a
    // server's clock.
    Milliseconds drift_over(Milliseconds lease) const {
        return rules.independent ? lease / 100 + Milliseconds(2) : Milliseconds(0);
    }

    Milliseconds longest_watchdog() const {
        Milliseconds longest{0};
        for (const auto& member : members) longest = std::max(longest, member->settings().watchdog_timeout);
        return longest;
    }

    // Waits until `done()` or `until`. A thread spins first, to receive replies of near servers; the background receives
    // the others.
    template <class Done>
    Task<void> await(std::unique_lock<std::mutex>& lock, WaitSlot& changed, WaitBy by, Instant until, Done done) {
        if (by == by_thread && !done()) {
            lock.unlock();
            const auto came = [&] {
                try {
                    for (const auto& member : members) member->attend();
                } catch (const std::bad_alloc&) {  // the background receives then
                }
                const std::lock_guard look(mutex);
                return done();
            };
            if (!brief_wait.reply_came(until, came, brief_wait.for_several)) stop_attending();
            lock.lock();
        }
        while (!done() && Clock::now() < until) co_await changed.sleep(lock, until);
    }

    void stop_attending() {
        for (const auto& member : members) member->stop_attending();
    }

    BackgroundTask& task;
    const std::vector<std::shared_ptr<QuorumMember>> members;
    const QuorumRules rules;
    const std::string name;
    AdaptiveSpin<> brief_wait;

    std::mutex mutex;
    std::condition_variable idle;
    std::size_t inside = 0;     // number of InsideMembers
    std::size_t acquiring = 0;  // number of coroutines in acquire()
    std::stop_source closing;   // requested when the lock is being destroyed
    bool closed = false;
};

// Unlocks the mutex in order to call members. close() waits until no InsideMembers is left.
class InsideMembers {
public:
    InsideMembers(QuorumCore& core, std::unique_lock<std::mutex>& lock) : core_(core), lock_(lock) {
        ++core_.inside;
        lock_.unlock();
    }
    InsideMembers(const InsideMembers&) = delete;
    InsideMembers& operator=(const InsideMembers&) = delete;
    ~InsideMembers() {
        lock_.lock();
        if (--core_.inside == 0) core_.idle.notify_all();
    }

private:
    QuorumCore& core_;
    std::unique_lock<std::mutex>& lock_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
