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
            entry = states_.emplace(name, Entry{std::move(state)}).first;
        }
        ++entry->second.users;
        return *entry->second.state;
    }

    // Counts one user less. A state without users and holds is removed.
    void leave(NamedState& state) { forget(state, 1); }

    // Returns a pointer for operations and holds, which may outlive the objects of their name. All copies together count
    // as one user, until the last is gone: it must not be destroyed under the state's mutex. The caller is a user.
    std::shared_ptr<NamedState> share(NamedState& state) {
        const std::lock_guard lock(mutex_);
        Entry& entry = states_.find({state.kind(), state.key()})->second;
        std::shared_ptr<Use> use = entry.shared.lock();
        if (!use) {
            use = std::make_shared<Use>(*this, entry.state);
            entry.shared = use;
            ++entry.users;
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
        for (const auto& [_, entry] : states_) entry.state->abandon();
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
        Use(Registry& registry, std::shared_ptr<NamedState> state) : registry_(registry), state_(std::move(state)) {}
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

    struct Entry {
        std::shared_ptr<NamedState> state;
        std::size_t users = 0;
        std::weak_ptr<Use> shared{};
    };

    void forget(NamedState& state, std::size_t users_less) {
        // Destroyed after mutex_ is free: a state's destructor takes other mutexes.
        std::shared_ptr<NamedState> last;
        const std::lock_guard lock(mutex_);
        const auto entry = states_.find({state.kind(), state.key()});
        if (entry == states_.end() || entry->second.state.get() != &state) return;
        entry->second.users -= users_less;
        if (entry->second.users > 0 || !state.is_idle()) return;
        last = std::move(entry->second.state);
        states_.erase(entry);
    }

    std::vector<std::shared_ptr<NamedState>> all() {
        std::vector<std::shared_ptr<NamedState>> states;
        const std::lock_guard lock(mutex_);
        for (const auto& [_, entry] : states_) states.push_back(entry.state);
        return states;
    }

    std::mutex mutex_;
    std::unordered_map<Name, Entry, NameHash> states_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
