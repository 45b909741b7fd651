// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/wait/wait_slot.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One request to all members at once: their replies so far, and the outcome that follows. Plain data except for the
// slot in which the caller sleeps. The owner of the round guards it.
class QuorumRound {
public:
    explicit QuorumRound(std::size_t members, WaitBy by = by_thread) : changed(by), parts_(members) {}

    // A member that is not awaited still takes part if it replies in time.
    void do_not_await(std::size_t member) { parts_[member].awaited = false; }

    // Records a vote that counts from `votes_from` on, usually at once.
    void held(std::size_t member, Instant votes_from) {
        parts_[member].kind = Kind::held;
        parts_[member].had = true;
        parts_[member].votes_from = votes_from;
    }

    // Records a member that is held, but whose server's right to vote is not known yet.
    void held_without_vote(std::size_t member) { parts_[member].had = true; }

    void refused(std::size_t member) { parts_[member].kind = Kind::refused; }

    // Marks a member that refused as asked again. Returns true if it had refused.
    bool ask_again(std::size_t member) {
        const bool was = parts_[member].kind == Kind::refused;
        if (was) parts_[member].kind = Kind::asked;
        return was;
    }

    // Returns true if this caller has the first member, in an order that all callers share. Of the callers that ask at
    // the same time one has it: that one goes on, the others release what they have.
    bool goes_first(const std::vector<std::size_t>& order) const {
        const auto first = std::find_if(order.begin(), order.end(), [this](std::size_t member) {
            return parts_[member].had || parts_[member].kind == Kind::refused;
        });
        return first != order.end() && parts_[*first].had;
    }

    // `why`: nothing if the member only takes too long. `by_server`: its server has answered with that error.
    void failed(std::size_t member, std::optional<Error> why, bool by_server = false) {
        parts_[member].kind = Kind::failed;
        parts_[member].by_server = by_server;
        if (!why_ || (by_server && !why_by_server_)) why_ = std::move(why);
        why_by_server_ |= by_server;
    }

    std::size_t votes(Instant now) const {
        return count([&](const Part& p) { return p.kind == Kind::held && p.votes_from <= now; });
    }

    // Returns true if no awaited reply can change the outcome.
    bool decided(std::size_t needed, Instant now) const {
        const std::size_t sure = votes(now);
        return sure >= needed || sure + unanswered() < needed;
    }

    // Returns true if all members that are awaited have replied.
    bool complete() const { return unanswered() == 0; }

    bool is_outstanding(std::size_t member) const { return parts_[member].kind == Kind::asked; }
    bool any_outstanding() const {
        return count([](const Part& p) { return p.kind == Kind::asked; }) > 0;
    }

    // Counts the outstanding replies as failures.
    void time_is_up() {
        for (Part& part : parts_)
            if (part.kind == Kind::asked) part.kind = Kind::failed;
    }

    // Returns true if too many members failed for the others to make a quorum. An outstanding reply is no failure if it
    // is awaited: refusals may have decided the round before it.
    bool unreachable(std::size_t needed) const { return failures() > parts_.size() - needed; }
    std::size_t failures() const {
        return count([](const Part& p) { return p.kind == Kind::failed || (p.kind == Kind::asked && !p.awaited); });
    }

    // Returns the first error; if a server has answered with one, the first of these.
    const std::optional<Error>& why() const { return why_; }

    // Returns true if too many servers have answered with an error for the others to make a quorum.
    bool refused_by_servers(std::size_t needed) const {
        return count([](const Part& p) { return p.by_server; }) > parts_.size() - needed;
    }

    std::optional<std::size_t> first_refused() const {
        const auto found =
            std::find_if(parts_.begin(), parts_.end(), [](const Part& p) { return p.kind == Kind::refused; });
        if (found == parts_.end()) return std::nullopt;
        return static_cast<std::size_t>(found - parts_.begin());
    }

    // Returns when enough servers will be old enough to vote; `never` if too few members are held.
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

    Instant whole_time = never;  // until when a member may answer
    WaitSlot changed;
    bool stopped = false;    // True if the caller has stopped the request
    bool over = false;       // True if the outcome is known: later replies go to `hold`, or their holds are released
    std::uint64_t hold = 0;  // the resulting hold; 0 for none

private:
    enum class Kind { asked, held, refused, failed };

    struct Part {
        Kind kind = Kind::asked;
        bool awaited = true;
        bool had = false;
        bool by_server = false;
        Instant votes_from = never;
    };

    template <class Which>
    std::size_t count(Which which) const {
        return static_cast<std::size_t>(std::count_if(parts_.begin(), parts_.end(), which));
    }

    std::size_t unanswered() const {
        return count([](const Part& p) { return p.kind == Kind::asked && p.awaited; });
    }

    std::vector<Part> parts_;
    std::optional<Error> why_;
    bool why_by_server_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
