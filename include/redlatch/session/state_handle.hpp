// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/session/session_handle.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// Connects a user's object to the local state of its name in the current process. After a fork that is a different
// state. Keeps the client's session alive.
template <class T, class State>
class StateHandle {
public:
    StateHandle(std::shared_ptr<SessionHandle<T>> core, std::string_view name) : core_(std::move(core)), name_(name) {
        Session<T>& session = core_->session();
        key_ = session.options().key_prefix + name_;
        check_name(name_);
        check_name(key_);
        state_ = &session.template use_state<State>(key_);
    }
    StateHandle(const StateHandle&) = delete;
    StateHandle& operator=(const StateHandle&) = delete;

    ~StateHandle() {
        const KeepErrno kept;
        State& state = *state_.load();
        if (state.session().is_of_this_process()) state.session().leave_state(state);
    }

    const std::string& name() const noexcept { return name_; }

    State& state() {
        Session<T>& session = core_->session();
        State* state = state_.load(std::memory_order_acquire);
        while (&state->session() != &session) {
            State* mine = &session.template use_state<State>(key_);
            if (state_.compare_exchange_strong(state, mine)) return *mine;
            session.leave_state(*mine);
        }
        return *state;
    }

private:
    std::shared_ptr<SessionHandle<T>> core_;
    std::string name_;
    std::string key_;
    std::atomic<State*> state_{nullptr};
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
