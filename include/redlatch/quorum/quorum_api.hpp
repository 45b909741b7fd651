// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/thread.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_state.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// Implements the common part of MultiLock and RedLock: the public members of a lock, on top of those of its members.
template <class Lock>
class QuorumApi : public LockApi<Lock> {
public:
    QuorumApi(const QuorumApi&) = delete;
    QuorumApi& operator=(const QuorumApi&) = delete;

    // The names of its members in their order, each once.
    const std::string& name() const noexcept { return name_; }

protected:
    QuorumApi(std::vector<std::shared_ptr<QuorumMember>> members, const QuorumRules& rules)
        : members_(std::move(members)), rules_(rules), name_(names_of(members_)), state_(new_state(false)) {}

    ~QuorumApi() {
        const KeepErrno kept;
        const State mine = *state_.load();
        if (!mine->is_of_this_process()) return;
        mine->close();
        delete state_.load();
    }

private:
    friend class LockApi<Lock>;

    // --- on behalf of an owner --------------------------------------------------------------------------------

    bool acquire(const LockRequest& request) { return state().acquire(request); }
    std::error_code release(OwnerNumber owner) { return state().release(owner); }
    Instant valid_until_of(OwnerNumber owner) { return state().valid_until(owner); }
    std::stop_token lost_of(OwnerNumber owner) { return state().lost(owner); }

    // Ends the holds of all members. Returns true if one of them was held.
    bool force_release() {
        const std::vector<bool> were =
            ask_all<bool>([](QuorumMember& m, Instant limit) { return m.force_release(limit); });
        state().look();
        return std::find(were.begin(), were.end(), true) != were.end();
    }

    // Returns true if enough members are held for the whole lock to be held.
    bool ask_locked() {
        return quorum_of(ask_all<bool>([](QuorumMember& m, Instant limit) { return m.ask_locked(limit); }));
    }

    int ask_hold_count(OwnerNumber owner) {
        return quorum_of(
            ask_all<int>([owner](QuorumMember& m, Instant limit) { return m.ask_hold_count(owner, limit); }));
    }

    std::optional<Milliseconds> ask_remaining_lease() {
        return quorum_of(ask_all<std::optional<Milliseconds>>(
            [](QuorumMember& m, Instant limit) { return m.ask_remaining_lease(limit); }));
    }

    using State = std::shared_ptr<QuorumState>;

    State* new_state(bool is_fork_child) const {
        return new State(std::make_shared<QuorumState>(members_, rules_, name_, is_fork_child));
    }

    // Returns this process's state. A forked child makes a new one and leaves the parent's alone: its mutex may be held
    // by a thread that does not exist in the child.
    QuorumState& state() {
        State* state = state_.load(std::memory_order_acquire);
        while (!(*state)->is_of_this_process()) {
            State* mine = new_state(true);
            if (state_.compare_exchange_strong(state, mine)) return **mine;
            delete mine;
        }
        return **state;
    }

    static std::string names_of(const std::vector<std::shared_ptr<QuorumMember>>& members) {
        std::vector<std::string> names;
        for (const auto& member : members)
            if (std::find(names.begin(), names.end(), member->name()) == names.end()) names.push_back(member->name());
        std::string all;
        for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
        return all;
    }

    // Queries all members at the same time. Returns the answers without those that fail or take longer than
    // node_timeout. If too few are left, throws the first failure.
    template <class Answer, class Ask>
    std::vector<Answer> ask_all(Ask ask) {
        std::vector<std::optional<Answer>> answers(members_.size());
        std::vector<std::exception_ptr> errors(members_.size());
        const Instant limit = deadline_after(Clock::now(), rules_.node_timeout);
        const auto one = [&](std::size_t i) {
            try {
                answers[i] = ask(*members_[i], limit);
            } catch (...) {
                errors[i] = std::current_exception();
            }
        };
        std::vector<std::thread> others;
        others.reserve(members_.size());
        for (std::size_t i = 1; i < members_.size(); ++i) {
            try {
                others.push_back(thread_with_signals_blocked([&one, i] { one(i); }));
            } catch (const std::exception&) {
                one(i);  // no more threads, or no memory for one
            }
        }
        one(0);
        for (std::thread& other : others) other.join();
        std::vector<Answer> given;
        for (std::optional<Answer>& answer : answers)
            if (answer) given.push_back(std::move(*answer));
        if (given.size() < rules_.needed)
            for (const std::exception_ptr& error : errors)
                if (error) std::rethrow_exception(error);
        return given;
    }

    // Returns the largest value that enough of the answers reach to be true of the whole lock.
    template <class Answer>
    Answer quorum_of(std::vector<Answer> answers) const {
        std::sort(answers.begin(), answers.end(), std::greater<>());
        return answers[rules_.needed - 1];
    }

    const std::vector<std::shared_ptr<QuorumMember>> members_;
    const QuorumRules rules_;
    const std::string name_;
    std::atomic<State*> state_;
};

// Makes the members from locks: given by reference, or as a range of locks or of pointers to locks.
template <class Lock>
std::shared_ptr<QuorumMember> member_of(Lock& lock) {
    if constexpr (WriteSided<Lock>) {
        return member_of(lock.write_lock());
    } else if constexpr (requires { *lock; }) {
        return member_of(*lock);
    } else {
        static_assert(MemberLock<Lock>,
                      "a member must be a lock of one server: RLock, FairLock, FencedLock, SpinLock, "
                      "Mutex or a side of a ReadWriteLock");
        return std::make_shared<QuorumMemberOf<Lock>>(lock);
    }
}

template <class... Locks>
std::vector<std::shared_ptr<QuorumMember>> members_of(Locks&... locks) {
    return {member_of(locks)...};
}

template <class Range>
std::vector<std::shared_ptr<QuorumMember>> members_of_range(Range& range) {
    std::vector<std::shared_ptr<QuorumMember>> members;
    for (auto& lock : range) members.push_back(member_of(lock));
    return members;
}

// A range of locks, as opposed to a lock.
template <class Range>
concept LockRange = requires(Range& range) {
    std::begin(range);
    std::end(range);
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
