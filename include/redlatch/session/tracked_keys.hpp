// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/background_task.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Which tasks of this client want to hear when a key changes, and whether the servers can tell: see Tracks. A refusal,
// and a server or a proxy that closes the connection again and again, is noticed once, and nothing is asked any more.
//
// mutex_ guards the members that are not atomic. It may be taken while the mutex of a BackgroundTask is held, never the
// other way round: a task hears of a change after mutex_ was released. Nor does a reference to a task end while mutex_ is
// held: it may be the last one, and the destructor of a task takes mutex_.
class TrackedKeys {
public:
    // Without any success, so many unanswered attempts in a row count as a refusal.
    static constexpr unsigned most_failures = 8;

    explicit TrackedKeys(bool can_track) : possible_(can_track) {}
    TrackedKeys(const TrackedKeys&) = delete;
    TrackedKeys& operator=(const TrackedKeys&) = delete;

    // Returns false if the servers or the transport cannot tell.
    bool are_possible() const noexcept { return possible_.load(std::memory_order_relaxed); }

    // Learns from the reply to an attempt to track a key.
    void learn(const Reply& reply) noexcept {
        if (refuses_tracking(reply)) {
            possible_ = false;
        } else if (reply.kind == Reply::Kind::unanswered || reply.kind == Reply::Kind::malformed) {
            if (++failures_ >= most_failures) possible_ = false;
        } else if (reply.answered()) {
            failures_ = 0;
        }
    }

    // Registers `who`, once, for the changes of the key.
    void add(const std::string& key, BackgroundTask& who) {
        const std::lock_guard lock(mutex_);
        listeners_.emplace(key, &who);
    }

    void remove(const std::string& key, const BackgroundTask& who) noexcept {
        const std::lock_guard lock(mutex_);
        const auto [first, last] = listeners_.equal_range(key);
        const auto mine = std::find_if(first, last, [&](const auto& entry) { return entry.second == &who; });
        if (mine != last) listeners_.erase(mine);
    }

    // Returns how many tasks are registered.
    std::size_t count() {
        const std::lock_guard lock(mutex_);
        return listeners_.size();
    }

    // Tells those that a change of the key concerns; of an empty key, all.
    void invalidated(const std::string& key) {
        std::vector<std::shared_ptr<BackgroundTask>> told;
        {
            const std::lock_guard lock(mutex_);
            told.reserve(key.empty() ? listeners_.size() : listeners_.count(key));
            const auto [first, last] =
                key.empty() ? std::pair(listeners_.begin(), listeners_.end()) : listeners_.equal_range(key);
            for (auto entry = first; entry != last; ++entry)
                if (auto who = entry->second->weak_from_this().lock()) told.push_back(std::move(who));
        }
        for (const auto& who : told) who->key_changed();
    }

private:
    std::atomic<bool> possible_;
    std::atomic<unsigned> failures_{0};
    std::mutex mutex_;
    std::unordered_multimap<std::string, BackgroundTask*> listeners_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
