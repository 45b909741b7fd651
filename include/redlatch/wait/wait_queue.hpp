// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Queues the callers of this process that wait for one name, in order of arrival, with what they know. Only the first,
// the representative, queries the server. Plain data: the state of the name guards it.
//
// No wake-up is lost: each notification increments the generation, and a query remembers the generation from before it.
// A notification is a message, a confirmed subscription, or a change that this process made itself.
template <class Of>
class WaitQueue {
public:
    using Member = Of;

    bool empty() const { return members_.empty(); }
    std::size_t size() const { return members_.size(); }
    Member* front() const { return members_.empty() ? nullptr : members_.front(); }
    bool is_front(const Member& member) const { return front() == &member; }

    void join(Member& member) {
        member.number = ++last_number_;
        members_.push_back(&member);
    }
    void join_first(Member& member) { members_.insert(members_.begin(), &member); }
    void leave(const Member& member) { std::erase(members_, &member); }

    // Returns the first members, at most `most`.
    std::vector<Member*> first(std::size_t most) const {
        return {members_.begin(), members_.begin() + static_cast<std::ptrdiff_t>(std::min(most, members_.size()))};
    }

    // Returns the first member that fulfils the condition, or null.
    template <class Condition>
    Member* first_that(Condition condition) const {
        const auto found =
            std::find_if(members_.begin(), members_.end(), [&](const Member* m) { return condition(*m); });
        return found == members_.end() ? nullptr : *found;
    }

    // Calls the function with each member.
    template <class Function>
    void for_each(Function function) const {
        for (Member* member : members_) function(*member);
    }

    // Returns the member with this number, or null if it waits no longer.
    Member* find(std::uint64_t number) const {
        return first_that([&](const Member& m) { return m.number == number; });
    }

    std::uint64_t last_number() const { return last_number_; }

    void notify() { ++generation_; }
    std::uint64_t generation() const { return generation_; }

    // Records that a query made at `generation` was in vain, and when the next one is due without a notification.
    void asked(std::uint64_t generation, Instant ask_again) {
        asked_ = generation;
        ask_again_ = ask_again;
    }

    // Returns true if there was a notification since the last query.
    bool is_notified() const { return generation_ != asked_; }
    Instant ask_again() const { return ask_again_; }
    void set_ask_again(Instant at) { ask_again_ = at; }

private:
    std::vector<Member*> members_;
    std::uint64_t last_number_ = 0;
    std::uint64_t generation_ = 1;
    std::uint64_t asked_ = 0;
    Instant ask_again_{};
};

// What the representative does next: query the server, or sleep.
struct QueueStep {
    bool ask;
    Instant sleep_until;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
