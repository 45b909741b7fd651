// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/core.hpp"
#include "redlatch/core/keep_errno.hpp"
#include "redlatch/core/names.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// Ties an object of the user's to the local state of its name in the process where it is used: after a fork that is
// another one. Keeps the client's runtime alive.
template <class T, class State>
class Binding {
public:
    Binding(std::shared_ptr<Core<T>> core, std::string_view name) : core_(std::move(core)), name_(name) {
        Runtime<T>& runtime = core_->runtime();
        key_ = runtime.options().key_prefix + name_;
        check_name(name_);
        check_name(key_);
        state_ = &runtime.template use_state<State>(key_);
    }
    Binding(const Binding&) = delete;
    Binding& operator=(const Binding&) = delete;

    ~Binding() {
        const KeepErrno kept;
        State& state = *state_.load();
        if (state.runtime().is_of_this_process()) state.runtime().leave_state(state);
    }

    const std::string& name() const noexcept { return name_; }

    State& state() {
        Runtime<T>& runtime = core_->runtime();
        State* state = state_.load(std::memory_order_acquire);
        while (&state->runtime() != &runtime) {
            State* mine = &runtime.template use_state<State>(key_);
            if (state_.compare_exchange_strong(state, mine)) return *mine;
            runtime.leave_state(*mine);
        }
        return *state;
    }

private:
    std::shared_ptr<Core<T>> core_;
    std::string name_;
    std::string key_;
    std::atomic<State*> state_{nullptr};
};

}  // namespace v0_1
}  // namespace redlatch
