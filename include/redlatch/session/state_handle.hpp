// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/options.hpp"
#include "redlatch/session/settings.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class NamedState;
class Session;
class SessionHandle;
struct StateMaker;

// Connects a user's object to the local state of its name in the current process. After a fork that is a different
// state. Keeps the client's session alive.
class StateHandle {
public:
    // Throws Error(errc::invalid_argument) if the name or an option is bad, and errc::unsupported: see ObjectOptions.
    // `maker` must outlive the handle.
    StateHandle(std::shared_ptr<SessionHandle> core, const StateMaker& maker, std::string_view name,
                const ObjectOptions& own);
    StateHandle(const StateHandle&) = delete;
    StateHandle& operator=(const StateHandle&) = delete;
    ~StateHandle();

    const std::string& name() const noexcept { return name_; }

    // The options of this object.
    const Settings& settings() const noexcept { return settings_; }

    NamedState& state();

    const std::shared_ptr<SessionHandle>& session_handle() const noexcept { return core_; }

private:
    NamedState& use(Session& session) const;

    const std::shared_ptr<SessionHandle> core_;
    const StateMaker& maker_;
    const std::string name_;
    Settings settings_;  // constant from the constructor on
    std::string key_;
    std::atomic<NamedState*> state_{nullptr};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/session/state_handle.ipp"
#endif
