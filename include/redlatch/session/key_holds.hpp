// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/timers.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Records which owners in this process hold a key, whatever the kind of lock. Two kinds of locks on one key would
// mistake each other's holds for their own. So the second kind is refused while the process holds the first. Both sides
// of a read-write lock are one family. The read side finds out here whether its owner is the writer.
//
// Thread-safe: mutex_ guards all members. It is taken while the mutex of a lock's state is held. No thread waits here.
class KeyHolds {
public:
    // One hold, by its number. `writes` is true for the write side.
    struct Entry {
        std::string_view family;
        OwnerNumber owner;
        std::uint64_t hold;
        bool writes;
    };

    void taken(const Entry& entry) {
        const std::lock_guard lock(mutex_);
        entries_.push_back(entry);
        // The entry is there first, so on_timer() finds it, although this thread does not hold the readers' mutex.
        if (readers_ && entry.writes && entry.owner.is_of_program()) timers_->schedule(*readers_, Clock::now());
    }

    void ended(std::uint64_t hold) noexcept {
        const std::lock_guard lock(mutex_);
        std::erase_if(entries_, [hold](const Entry& e) { return e.hold == hold; });
    }

    // Registers the state of a read side. Its on_timer() is called when an Owner becomes the writer, because callers of
    // that Owner may wait there.
    void add_readers(BackgroundTask& readers, Timers& timers) noexcept {
        const std::lock_guard lock(mutex_);
        readers_ = &readers;
        timers_ = &timers;
    }

    void remove_readers(const BackgroundTask& readers) noexcept {
        const std::lock_guard lock(mutex_);
        if (readers_ == &readers) readers_ = nullptr;
    }

    // Returns another family that holds the key, or an empty string if there is none.
    std::string_view other_than(std::string_view family) const noexcept {
        const std::lock_guard lock(mutex_);
        for (const Entry& e : entries_)
            if (e.family != family) return e.family;
        return {};
    }

    // Returns the number of the owner's hold as the writer, or 0 if it has none.
    std::uint64_t writer_of(OwnerNumber owner) const noexcept {
        const std::lock_guard lock(mutex_);
        for (const Entry& e : entries_)
            if (e.writes && e.owner == owner) return e.hold;
        return 0;
    }

private:
    mutable std::mutex mutex_;
    std::vector<Entry> entries_;
    BackgroundTask* readers_ = nullptr;
    Timers* timers_ = nullptr;  // set if readers_ is
};

// Finds the record of each key. A record lives as long as someone refers to it.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class KeyHoldsTable {
public:
    std::shared_ptr<KeyHolds> of(const std::string& key) {
        const std::lock_guard lock(mutex_);
        if (records_.size() >= limit_) {
            std::erase_if(records_, [](const auto& entry) { return entry.second.expired(); });
            limit_ = std::max<std::size_t>(64, records_.size() * 2);
        }
        std::weak_ptr<KeyHolds>& entry = records_[key];
        auto holds = entry.lock();
        if (!holds) entry = holds = std::make_shared<KeyHolds>();
        return holds;
    }

private:
    std::mutex mutex_;
    std::unordered_map<std::string, std::weak_ptr<KeyHolds>> records_;
    std::size_t limit_ = 64;  // at this size, expired records are erased
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
