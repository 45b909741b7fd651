// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/redis/command_connection.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Connections for commands that delay all that follow on the same connection (WAIT). Each is used by one caller at a
// time, or by one group of posted commands, until these are answered. So no other caller waits for them, or takes the
// connection for dead. There are as many connections as were ever needed at once. They are created and opened on first
// use.
//
// mutex_ guards who uses which line. While it is held, connections are made and inspected, but not used. The list of
// lines only grows, and is read without the mutex: a child visits it after a fork, when a thread of its parent may have
// held the mutex. The connections are thread-safe.
class OwnConnections {
public:
    explicit OwnConnections(std::function<std::unique_ptr<CommandConnection>()> make) : make_(std::move(make)) {}
    OwnConnections(const OwnConnections&) = delete;
    OwnConnections& operator=(const OwnConnections&) = delete;

    ~OwnConnections() {
        for (Line* line = first_.load(std::memory_order_acquire); line;) delete std::exchange(line, line->next);
    }

    // Calls `use(link)` with a connection that carries nothing else until all of this is answered.
    template <class Use>
    auto with_one(Use use) {
        const InUse line(*this);
        return use(*line.of.link);
    }

    // Visits all connections. Takes no lock.
    template <class Visit>
    void each(Visit visit) const {
        for (const Line* line = first_.load(std::memory_order_acquire); line; line = line->next) visit(*line->link);
    }

private:
    struct Line {
        const std::unique_ptr<CommandConnection> link;
        Line* const next;
        bool in_use;
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
        Line* const first = first_.load(std::memory_order_relaxed);
        for (Line* line = first; line; line = line->next)
            if (!line->in_use && line->link->is_idle()) {
                line->in_use = true;
                return *line;
            }
        Line* const line = new Line{make_(), first, true};
        first_.store(line, std::memory_order_release);
        return *line;
    }

    const std::function<std::unique_ptr<CommandConnection>()> make_;
    std::mutex mutex_;
    std::atomic<Line*> first_{nullptr};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
