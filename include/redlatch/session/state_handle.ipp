// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/error.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/session_handle.hpp"
#include "redlatch/session/state_handle.hpp"

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE StateHandle::StateHandle(std::shared_ptr<SessionHandle> core, const StateMaker& maker,
                                         std::string_view name, const ObjectOptions& own)
    : core_(std::move(core)), maker_(maker), name_(name) {
    Session& session = core_->session();
    key_ = session.options().key_prefix + name_;
    check_name(name_);
    check_name(key_);
    settings_ = settings_of(session.options(), own);
    check_settings(settings_, name_);
    if (settings_.command_timeout > session.options().command_timeout)
        throw Error(errc::invalid_argument, name_, "command_timeout of an object must not exceed that of its client");
    check_replication(settings_, session.transport().posts_several(), name_);
    state_ = &use(session);
}

REDLATCH_INLINE StateHandle::~StateHandle() {
    const KeepErrno kept;
    NamedState& state = *state_.load();
    if (state.session().is_of_this_process()) state.session().leave_state(state);
}

REDLATCH_INLINE NamedState& StateHandle::state() {
    Session& session = core_->session();
    NamedState* state = state_.load(std::memory_order_acquire);
    while (&state->session() != &session) {
        NamedState* mine = &use(session);
        if (state_.compare_exchange_strong(state, mine)) return *mine;
        session.leave_state(*mine);
    }
    return *state;
}

REDLATCH_INLINE NamedState& StateHandle::use(Session& session) const { return session.use_state(maker_, key_); }

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
