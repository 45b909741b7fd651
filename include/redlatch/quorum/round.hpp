// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// When the members of a lock over several make it one.
struct QuorumRules {
    std::size_t needed;            // how many of them
    Milliseconds node_timeout;     // how long they may take to answer
    bool independent = false;      // each on a server of its own: clocks drift apart, and a young server gives no vote
    Milliseconds longest_lease{};  // how young: no hold from before its start can be valid after that
};

// One question to all members at once: what they have answered, and what follows from it. Plain data, but for the
// condition variable, in which the asking thread sleeps; whoever owns the round guards it.
class QuorumRound {
public:
    explicit QuorumRound(std::size_t members) : parts_(members) {}

    // A vote that counts from some time on; at once, mostly.
    void held(std::size_t member, Instant votes_from) {
        parts_[member].kind = Kind::held;
        parts_[member].had = true;
        parts_[member].votes_from = votes_from;
    }

    // Held, but whether the server may vote is still to be asked.
    void held_without_vote(std::size_t member) { parts_[member].had = true; }

    void refused(std::size_t member) { parts_[member].kind = Kind::refused; }

    // Whether it was refused and is asked once more.
    bool ask_again(std::size_t member) {
        const bool was = parts_[member].kind == Kind::refused;
        if (was) parts_[member].kind = Kind::asked;
        return was;
    }

    // Of those who ask at the same time, one has the first member, by an order that is the same for all of them. So it
    // goes on, and the others give back what they have.
    bool goes_first(const std::vector<std::size_t>& order) const {
        const auto first = std::find_if(order.begin(), order.end(), [this](std::size_t member) {
            return parts_[member].had || parts_[member].kind == Kind::refused;
        });
        return first != order.end() && parts_[*first].had;
    }

    // `why`: nothing when it only takes too long.
    void failed(std::size_t member, std::optional<Error> why) {
        parts_[member].kind = Kind::failed;
        if (!why_) why_ = std::move(why);
    }

    std::size_t votes(Instant now) const {
        return count([&](const Part& p) { return p.kind == Kind::held && p.votes_from <= now; });
    }

    // Whether no answer that is still to come can change the outcome.
    bool decided(std::size_t needed, Instant now) const {
        const std::size_t sure = votes(now);
        return sure >= needed || sure + unanswered() < needed;
    }

    bool complete() const { return unanswered() == 0; }

    // Nobody waits for answers any longer.
    void time_is_up() {
        for (Part& part : parts_)
            if (part.kind == Kind::asked) part.kind = Kind::failed;
    }

    // Whether so many members failed that the others do not matter, and why. Members whose answers are still to come
    // have not failed: somebody who has a member may have been quicker to say so.
    bool unreachable(std::size_t needed) const { return failures() > parts_.size() - needed; }
    std::size_t failures() const {
        return count([](const Part& p) { return p.kind == Kind::failed; });
    }
    const std::optional<Error>& why() const { return why_; }

    std::optional<std::size_t> first_refused() const {
        const auto found =
            std::find_if(parts_.begin(), parts_.end(), [](const Part& p) { return p.kind == Kind::refused; });
        if (found == parts_.end()) return std::nullopt;
        return static_cast<std::size_t>(found - parts_.begin());
    }

    // When enough servers will be old enough.
    Instant votes_at(std::size_t needed) const {
        std::vector<Instant> from;
        for (const Part& part : parts_)
            if (part.kind == Kind::held) from.push_back(part.votes_from);
        if (from.size() < needed) return never;
        std::nth_element(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(needed - 1), from.end());
        return from[needed - 1];
    }

    bool had(std::size_t member) const { return parts_[member].had; }
    Instant votes_from(std::size_t member) const { return parts_[member].votes_from; }

    Instant whole_time = never;  // until when a member may take to answer
    std::condition_variable changed;
    bool stopped = false;    // the caller wants it no more
    bool over = false;       // the outcome is known; later answers go to the hold below, or to nobody
    std::uint64_t hold = 0;  // what it became

private:
    enum class Kind { asked, held, refused, failed };

    struct Part {
        Kind kind = Kind::asked;
        bool had = false;
        Instant votes_from = never;
    };

    template <class Which>
    std::size_t count(Which which) const {
        return static_cast<std::size_t>(std::count_if(parts_.begin(), parts_.end(), which));
    }

    std::size_t unanswered() const {
        return count([](const Part& p) { return p.kind == Kind::asked; });
    }

    std::vector<Part> parts_;
    std::optional<Error> why_;
};

}  // namespace v0_1
}  // namespace redlatch
