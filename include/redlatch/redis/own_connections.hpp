// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/redis/command_connection.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Connections for commands that delay all that follow on the same connection (WAIT). Each is used by one caller at a
// time, or by one group of posted commands, until these are answered. So no other caller waits for them, or takes the
// connection for dead. There are as many connections as were ever needed at once. They are created and opened on first
// use.
//
// mutex_ guards lines_, which only grows, and the fields of each line. While it is held, connections are inspected, but
// not used. The connections are thread-safe.
class OwnConnections {
public:
    explicit OwnConnections(std::function<std::unique_ptr<CommandConnection>()> make) : make_(std::move(make)) {}

    // Calls `use(link)` with a connection that carries nothing else until all of this is answered.
    template <class Use>
    auto with_one(Use use) {
        const InUse line(*this);
        return use(*line.of.link);
    }

    // Visits all connections.
    template <class Visit>
    void each(Visit visit) const {
        for (std::size_t i = 0; CommandConnection* const link = at(i); ++i) visit(*link);
    }

private:
    struct Line {
        std::unique_ptr<CommandConnection> link;
        bool in_use = false;
    };

    // A line between take() and its return.
    struct InUse {
        explicit InUse(OwnConnections& lines) : all(lines), of(lines.take()) {}
        InUse(const InUse&) = delete;
        InUse& operator=(const InUse&) = delete;
        ~InUse() {
            const std::lock_guard lock(all.mutex_);
            of.in_use = false;
        }
        OwnConnections& all;
        Line& of;
    };

    Line& take() {
        const std::lock_guard lock(mutex_);
        const auto is_free = [](const auto& line) { return !line->in_use && line->link->is_idle(); };
        auto found = std::find_if(lines_.begin(), lines_.end(), is_free);
        if (found == lines_.end()) {
            auto line = std::make_unique<Line>();
            line->link = make_();
            found = lines_.insert(lines_.end(), std::move(line));
        }
        (*found)->in_use = true;
        return **found;
    }

    CommandConnection* at(std::size_t i) const {
        const std::lock_guard lock(mutex_);
        return i < lines_.size() ? lines_[i]->link.get() : nullptr;
    }

    const std::function<std::unique_ptr<CommandConnection>()> make_;
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Line>> lines_;
};

}  // namespace v0_1
}  // namespace redlatch
