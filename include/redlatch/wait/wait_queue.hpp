// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Queues the callers of this process that wait for one name, in order of arrival, with what they know. Only the first,
// the representative, queries the server. Plain data: the state of the name guards it. Joining and leaving take the same
// time however many wait, and no memory.
//
// No wake-up is lost: each notification increments the generation, and a query remembers the generation from before it.
// A notification is a message, a confirmed subscription, or a change that this process made itself.
template <class Of>
class WaitQueue {
public:
    using Member = Of;

    bool empty() const { return size_ == 0; }
    std::size_t size() const { return size_; }
    Member* front() const { return front_; }
    bool is_front(const Member& member) const { return front_ == &member; }

    void join(Member& member) {
        member.number = ++last_number_;
        insert(member, back_, nullptr);
    }

    // A member moves to the front.
    void join_first(Member& member) {
        leave(member);
        insert(member, nullptr, front_);
    }

    // Does nothing if it is no member.
    void leave(Member& member) {
        if (!std::exchange(member.queued, false)) return;
        Member* const before = static_cast<Member*>(member.before);
        Member* const behind = static_cast<Member*>(member.behind);
        if (before)
            before->behind = behind;
        else
            front_ = behind;
        if (behind)
            behind->before = before;
        else
            back_ = before;
        --size_;
    }

    // Returns the first members, at most `most`.
    std::vector<Member*> first(std::size_t most) const {
        std::vector<Member*> members;
        members.reserve(std::min(most, size_));
        for (Member* member = front_; member && members.size() < most; member = behind(*member))
            members.push_back(member);
        return members;
    }

    // Returns the first member that fulfils the condition, or null.
    template <class Condition>
    Member* first_that(Condition condition) const {
        Member* member = front_;
        while (member && !condition(std::as_const(*member))) member = behind(*member);
        return member;
    }

    // Calls the function with each member.
    template <class Function>
    void for_each(Function function) const {
        for (Member* member = front_; member; member = behind(*member)) function(*member);
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
    static Member* behind(const Member& member) { return static_cast<Member*>(member.behind); }

    void insert(Member& member, Member* before, Member* behind) {
        member.queued = true;
        member.before = before;
        member.behind = behind;
        if (before)
            before->behind = &member;
        else
            front_ = &member;
        if (behind)
            behind->before = &member;
        else
            back_ = &member;
        ++size_;
    }

    Member* front_ = nullptr;
    Member* back_ = nullptr;
    std::size_t size_ = 0;
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
