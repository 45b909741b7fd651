// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/thread.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/quorum/lock_member.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_api.hpp"
#include "redlatch/quorum/quorum_state.hpp"
#include "redlatch/session/operation.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline std::string names_of(const QuorumMembers& members) {
    std::vector<std::string> names;
    for (const auto& member : members)
        if (std::find(names.begin(), names.end(), member->name()) == names.end()) names.push_back(member->name());
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return all;
}

// The members' answers to a query. A member that failed or took longer than node_timeout has an error instead.
template <class Answer>
struct MemberAnswers {
    std::vector<std::optional<Answer>> answers;
    std::vector<std::exception_ptr> errors;

    void throw_first_error() const {
        for (const std::exception_ptr& error : errors)
            if (error) std::rethrow_exception(error);
    }
};

// Queries all members at the same time.
template <class Answer, class Ask>
MemberAnswers<Answer> ask_members(const QuorumMembers& members, const QuorumRules& rules, Ask ask) {
    MemberAnswers<Answer> all{std::vector<std::optional<Answer>>(members.size()),
                              std::vector<std::exception_ptr>(members.size())};
    const Instant limit = deadline_after(Clock::now(), rules.node_timeout);
    const auto one = [&](std::size_t i) {
        try {
            all.answers[i] = ask(*members[i], limit);
        } catch (...) {
            all.errors[i] = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    others.reserve(members.size());
    for (std::size_t i = 1; i < members.size(); ++i) {
        try {
            others.push_back(thread_with_signals_blocked([&one, i] { one(i); }));
        } catch (const std::exception&) {
            one(i);  // no more threads, or no memory for one
        }
    }
    one(0);
    for (std::thread& other : others) other.join();
    return all;
}

// Returns the largest value that enough of the members' answers reach to be true of the whole lock. If too few answer,
// throws the first failure.
template <class Answer, class Ask>
Answer ask_quorum(const QuorumMembers& members, const QuorumRules& rules, Ask ask) {
    MemberAnswers<Answer> all = ask_members<Answer>(members, rules, std::move(ask));
    std::vector<Answer> given;
    for (std::optional<Answer>& answer : all.answers)
        if (answer) given.push_back(std::move(*answer));
    if (given.size() < rules.needed) all.throw_first_error();
    std::sort(given.begin(), given.end(), std::greater<>());
    return given[rules.needed - 1];
}

REDLATCH_INLINE QuorumApi::QuorumApi(QuorumMembers members, const QuorumRules& rules)
    : members_(std::move(members)), rules_(rules), name_(names_of(members_)), state_(new_state(false)) {}

REDLATCH_INLINE QuorumApi::~QuorumApi() {
    const KeepErrno kept;
    const State mine = *state_.load();
    if (!mine->is_of_this_process()) return;
    mine->close();
    delete state_.load();
}

REDLATCH_INLINE QuorumMembers QuorumApi::members_of(const std::vector<NamedLock*>& locks) {
    QuorumMembers members;
    for (NamedLock* lock : locks) members.push_back(std::make_shared<LockMember>(*lock));
    return members;
}

// --- on behalf of an owner ---------------------------------------------------------------------------------------

REDLATCH_INLINE HoldKeeper& QuorumApi::keeper() { return *state(); }

// The members, which outlive this object, keep their sessions alive. After close() a hold uses neither.
REDLATCH_INLINE HeldLevel QuorumApi::keeper_of_holds() { return {members_.front()->operation_host(), state()}; }

// Ends the holds of all members. Returns true if one of them was held.
REDLATCH_INLINE bool QuorumApi::force_release(Instant) {
    std::atomic<bool> was_held{false};
    ask_quorum<bool>(members_, rules_, [&](QuorumMember& member, Instant limit) {
        const bool was = member.force_release(limit);
        if (was) was_held = true;
        return was;
    });
    state()->look();
    return was_held;
}

// Returns true if enough members are held for the whole lock to be held.
REDLATCH_INLINE bool QuorumApi::ask_locked(Instant) {
    return ask_quorum<bool>(members_, rules_,
                            [](QuorumMember& member, Instant limit) { return member.ask_locked(limit); });
}

REDLATCH_INLINE int QuorumApi::ask_hold_count(OwnerNumber owner, Instant) {
    return ask_quorum<int>(
        members_, rules_, [owner](QuorumMember& member, Instant limit) { return member.ask_hold_count(owner, limit); });
}

REDLATCH_INLINE std::optional<Milliseconds> QuorumApi::ask_remaining_lease(Instant) {
    return ask_quorum<std::optional<Milliseconds>>(
        members_, rules_, [](QuorumMember& member, Instant limit) { return member.ask_remaining_lease(limit); });
}

REDLATCH_INLINE bool QuorumApi::is_held_by(std::uint64_t owner) {
    return owner > 0 && ask_hold_count({owner, OwnerNumber::Sort::object}, never) > 0;
}

REDLATCH_INLINE std::vector<MemberInspection> QuorumApi::inspect() {
    auto all = ask_members<Inspection>(
        members_, rules_, [](QuorumMember& member, Instant limit) { return member.ask_inspection(limit); });
    if (std::none_of(all.answers.begin(), all.answers.end(), [](const auto& one) { return one.has_value(); }))
        all.throw_first_error();
    std::vector<MemberInspection> found(members_.size());
    for (std::size_t i = 0; i < members_.size(); ++i) {
        found[i].name = members_[i]->name();
        if (all.answers[i]) found[i].state = *std::move(all.answers[i]);
        if (all.errors[i]) found[i].error = code_of(all.errors[i]);
    }
    return found;
}

// --- the state of this process -----------------------------------------------------------------------------------

REDLATCH_INLINE QuorumApi::State* QuorumApi::new_state(bool is_fork_child) const {
    return new State(std::make_shared<QuorumState>(members_, rules_, name_, is_fork_child));
}

// Returns this process's state. A forked child makes a new one and leaves the parent's alone: its mutex may be held by a
// thread that does not exist in the child.
REDLATCH_INLINE QuorumApi::State& QuorumApi::state() {
    State* state = state_.load(std::memory_order_acquire);
    while (!(*state)->is_of_this_process()) {
        State* mine = new_state(true);
        if (state_.compare_exchange_strong(state, mine)) return *mine;
        delete mine;
    }
    return *state;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
