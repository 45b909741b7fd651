// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/lock/lock_access.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/session/session.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A named lock as a member of a lock over several.
class LockMember final : public QuorumMember {
public:
    explicit LockMember(NamedLock& lock) : lock_(lock) {}

    const std::string& name() const override { return lock_.name(); }
    const std::string& key() const override { return state().key(); }
    const void* lock() const override { return &state(); }
    const void* client() const override { return &session(); }

    Task<bool> acquire(const LockRequest& request) override {
        LockRequest mine = request;
        LockAccess::prepare(lock_, mine);
        co_return co_await LockAccess::keeper(lock_).acquire(mine);
    }
    void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                           std::function<bool(const TryAnswer&)> tell, Receiver receiver) override {
        state().try_in_background(owner, lease, settings(), LockAccess::reentry(lock_), std::move(tell), receiver);
    }
    void release_in_background(const WhichHold& which, const std::function<void(std::error_code)>& done,
                               Receiver receiver) override {
        state().release_in_background(which, done, receiver);
    }
    void attend() override { session().attend(); }
    void stop_attending() override { session().stop_attending(); }
    HeldPart part(OwnerNumber owner) override { return state().part(owner); }
    bool force_release(Instant limit) override { return LockAccess::force_release(lock_, limit); }
    bool ask_locked(Instant limit) override { return LockAccess::ask_locked(lock_, limit); }
    int ask_hold_count(OwnerNumber owner, Instant limit) override {
        return LockAccess::ask_hold_count(lock_, owner, limit);
    }
    std::optional<Milliseconds> ask_remaining_lease(Instant limit) override {
        return LockAccess::ask_remaining_lease(lock_, limit);
    }
    Inspection ask_inspection(Instant limit) override { return LockAccess::ask_inspection(lock_, limit); }

    std::optional<std::uint64_t> connections() override { return session().transport().connections(); }

    void ask_info(Completion done) override {
        static constexpr std::array<std::string_view, 2> words{"INFO", "server"};
        session().post({words, 0}, std::move(done));
    }

    std::shared_ptr<OperationHost> operation_host() override { return LockAccess::keeper_of_holds(lock_).host; }
    const Settings& settings() override { return LockAccess::settings(lock_); }
    Timers& timers() override { return session().timers(); }
    void start_background() override { session().start_background(); }
    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept override {
        session().raise(kind, name, detail);
    }
    Losses& losses() override { return session().losses(); }
    void start_losses() override { session().start_losses(); }

private:
    LockState& state() const { return LockAccess::state(lock_); }
    Session& session() const { return state().session(); }

    NamedLock& lock_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
