// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/redis/pubsub_requests.hpp"

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The channels that a pub/sub connection is to be subscribed to, and the changes that were not requested yet.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class WantedChannels {
public:
    // If memory runs out, nothing is changed.
    void change(const std::string& channel, bool wanted) {
        const std::lock_guard lock(mutex_);
        changes_.push_back({channel, wanted});
        try {
            if (wanted)
                wanted_.insert(channel);
            else
                wanted_.erase(channel);
        } catch (...) {
            changes_.pop_back();
            throw;
        }
    }

    // Removes a channel without a request.
    void forget(const std::string& channel) noexcept {
        const std::lock_guard lock(mutex_);
        wanted_.erase(channel);
    }

    // Requests a channel once more. Returns false if it is not wanted.
    bool want_again(const std::string& channel) {
        const std::lock_guard lock(mutex_);
        if (!wanted_.contains(channel)) return false;
        changes_.push_back({channel, true});
        return true;
    }

    // Requests all wanted channels, which includes all earlier changes. Returns false if there is no memory.
    bool want_all() noexcept try {
        const std::lock_guard lock(mutex_);
        changes_.clear();
        for (const std::string& channel : wanted_) changes_.push_back({channel, true});
        return true;
    } catch (...) {
        return false;
    }

    std::vector<ChannelChange> take_changes() {
        const std::lock_guard lock(mutex_);
        return std::exchange(changes_, {});
    }

    bool contains(const std::string& channel) const {
        const std::lock_guard lock(mutex_);
        return wanted_.contains(channel);
    }

    bool empty() const noexcept {
        const std::lock_guard lock(mutex_);
        return wanted_.empty();
    }

    // Returns one of them; an empty text if there is none.
    std::string any() const {
        const std::lock_guard lock(mutex_);
        return wanted_.empty() ? std::string() : *wanted_.begin();
    }

private:
    mutable std::mutex mutex_;
    std::set<std::string> wanted_;
    std::vector<ChannelChange> changes_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
