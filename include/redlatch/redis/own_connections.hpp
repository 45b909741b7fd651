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

// Connections for what keeps the server from answering that comes after it on the same one (WAIT): each is used by one
// caller at a time, or for what was posted together, until that is answered. So nobody else waits for it, nor takes the
// connection for dead. There are as many as were ever needed at once; they are made and opened when first needed.
//
// mutex_ guards lines_, which only grows, and what belongs to it in a line. No link is used while it is held, but looked
// at. The links look after themselves.
class OwnConnections {
public:
    explicit OwnConnections(std::function<std::unique_ptr<CommandConnection>()> make) : make_(std::move(make)) {}

    // Calls `use(link)` with a link that carries nothing else, and will not before all this is answered.
    template <class Use>
    auto with_one(Use use) {
        const InUse line(*this);
        return use(*line.of.link);
    }

    // With all there are.
    template <class Visit>
    void each(Visit visit) const {
        for (std::size_t i = 0; CommandConnection* const link = at(i); ++i) visit(*link);
    }

private:
    struct Line {
        std::unique_ptr<CommandConnection> link;
        bool in_use = false;
    };

    // A line between take() and give back.
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
