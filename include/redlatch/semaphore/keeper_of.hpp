// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/semaphore/permits.hpp"
#include "redlatch/semaphore/permits.ipp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/session_handle.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <memory>
#include <stop_token>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The state of a semaphore or latch in this process, kept in use for an operation or an object.
template <class State>
class KeptState {
public:
    KeptState(std::shared_ptr<SessionHandle> session, State& state, const Settings& settings)
        : session_(std::move(session)), use_(state.session().share_state(state)), state_(state), settings_(settings) {}

    // The options of the object that it was made from.
    const Settings& settings() const noexcept { return settings_; }

    State& operator*() const noexcept { return state_; }
    State* operator->() const noexcept { return &state_; }

    // Returns true if `want` was served. Throws errc::cancelled to a coroutine that was told to stop.
    Task<bool> obtain(typename State::Want& want, WaitRequest request, std::stop_token stop, WaitBy by) const {
        request.stop = std::move(stop);
        request.by = by;
        request.settings = settings_;
        const bool served = co_await state_.obtain(want, request);
        if (!served && by && request.stop.stop_requested())
            throw Error(errc::cancelled, state_.key(), "it was cancelled before it succeeded");
        co_return served;
    }

private:
    // The state refers to the session, so it is destroyed first.
    std::shared_ptr<SessionHandle> session_;
    std::shared_ptr<NamedState> use_;
    State& state_;
    Settings settings_;
};

// The common part of the keepers of permits. `State` is the semaphore's state in this process.
template <class State>
class KeeperOf : public PermitsKeeper {
public:
    explicit KeeperOf(KeptState<State> state) : state_(std::move(state)) {}

    bool is_of_this_process() const noexcept override { return state_->session().is_of_this_process(); }
    bool is_same(const PermitsKeeper& other) const noexcept override {
        const auto* same_kind = dynamic_cast<const KeeperOf*>(&other);
        return same_kind && &*same_kind->state_ == &*state_;
    }

protected:
    const KeptState<State> state_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
