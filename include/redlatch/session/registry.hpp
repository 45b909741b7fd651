// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/process.hpp"
#include "redlatch/session/named_state.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The local state of every name in use: one state per kind of primitive and key, shared by all objects of that name.
//
// mutex_ guards states_. A state's own mutex may be taken while it is held, never the other way round. No thread waits
// here.
class Registry {
public:
    Registry() = default;
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // Returns the state of `key` and counts one more user. Makes the state if there is none.
    NamedState& use(const StateMaker& maker, Session& session, const std::string& key) {
        const std::lock_guard lock(mutex_);
        auto entry = states_.find({maker.kind, key});
        if (entry == states_.end()) {
            auto state = maker.make(session, key);
            const Name name{state->kind(), state->key()};
            entry = states_.emplace(name, std::move(state)).first;
            entry->second->is_registered_ = true;
        }
        ++entry->second->users_;
        return *entry->second;
    }

    // Counts one user less. A state without users and holds is removed.
    void leave(NamedState& state) { forget(state, 1); }

    // Returns a pointer for operations and holds, which may outlive the objects of their name. All copies together count
    // as one user, until the last is gone: it must not be destroyed under the state's mutex. The caller is a user.
    std::shared_ptr<NamedState> share(NamedState& state) {
        const std::lock_guard lock(mutex_);
        std::shared_ptr<void> use = state.shared_.lock();
        if (!use) {
            use = std::make_shared<Use>(*this, state);
            state.shared_ = use;
            ++state.users_;
        }
        return {use, &state};
    }

    void forget_if_unused(NamedState& state) { forget(state, 0); }

    void on_failover() {
        for (const auto& state : all()) state->on_failover();
    }

    void release_all(const std::shared_ptr<ReleaseRound>& round) {
        for (const auto& state : all()) state->release_all(round);
    }

    // Called when no other thread uses the session any more.
    void abandon() noexcept {
        for (const auto& [_, state] : states_) state->abandon();
    }

private:
    // Kind and key. The text belongs to the state itself, so a lookup allocates nothing.
    using Name = std::pair<std::string_view, std::string_view>;
    struct NameHash {
        std::size_t operator()(const Name& name) const noexcept {
            return std::hash<std::string_view>()(name.first) * 31 + std::hash<std::string_view>()(name.second);
        }
    };

    // One user of a state. In a forked child it stays one, because nobody may use the mutexes of the parent there.
    class Use {
    public:
        Use(Registry& registry, NamedState& state)
            : registry_(registry), state_(std::static_pointer_cast<NamedState>(state.shared_from_this())) {}
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        ~Use() {
            if (process_ == this_process()) registry_.leave(*state_);
        }

    private:
        Registry& registry_;
        const std::shared_ptr<NamedState> state_;
        const ProcessMark process_ = this_process();
    };

    void forget(NamedState& state, std::size_t users_less) {
        // Destroyed after mutex_ is free: a state's destructor takes other mutexes.
        std::shared_ptr<NamedState> last;
        const std::lock_guard lock(mutex_);
        if (!state.is_registered_) return;
        state.users_ -= users_less;
        if (state.users_ > 0 || !state.is_idle()) return;
        const auto entry = states_.find({state.kind(), state.key()});
        last = std::move(entry->second);
        last->is_registered_ = false;
        states_.erase(entry);
    }

    std::vector<std::shared_ptr<NamedState>> all() {
        std::vector<std::shared_ptr<NamedState>> states;
        const std::lock_guard lock(mutex_);
        for (const auto& [_, state] : states_) states.push_back(state);
        return states;
    }

    std::mutex mutex_;
    std::unordered_map<Name, std::shared_ptr<NamedState>, NameHash> states_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
