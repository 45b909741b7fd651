// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_access.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/losses.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/timers.hpp"
#include "redlatch/transport/transport.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// A lock that can be a member of a lock over several: it lives on one server.
template <class Lock>
concept MemberLock = requires(Lock& lock, OwnerNumber owner) {
    { LockAccess::state(lock).part(owner) } -> std::same_as<HeldPart>;
    LockAccess::state(lock).try_in_background(
        owner, std::nullopt, [](const TryAnswer&) { return true; }, Receiver::poster);
};

// A lock with a writer's side that can be a member.
template <class Lock>
concept WriteSided = requires(Lock& lock) {
    {lock.write_lock()};
};

// Returns how long a server has been running according to its INFO; nothing if INFO does not contain it.
inline std::optional<std::chrono::seconds> read_uptime(std::string_view info) {
    constexpr std::string_view field = "uptime_in_seconds:";
    const std::size_t at = info.find(field);
    if (at == std::string_view::npos) return std::nullopt;
    std::int64_t seconds = 0;
    const char* const first = info.data() + at + field.size();
    const auto [end, error] = std::from_chars(first, info.data() + info.size(), seconds);
    if (error != std::errc{} || end == first) return std::nullopt;
    // The server's clock may have been set back since its start. Then it counts as just started.
    return std::chrono::seconds(std::max<std::int64_t>(seconds, 0));
}

// Hides the type of one member of a lock over several, and the type of its client.
class QuorumMember {
public:
    virtual ~QuorumMember() = default;

    virtual const std::string& name() const = 0;
    virtual const std::string& key() const = 0;
    virtual const void* lock() const = 0;    // equal for two objects of one lock
    virtual const void* client() const = 0;  // equal for two locks of one client

    virtual bool acquire(const LockRequest& request) = 0;
    virtual void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                                   std::function<bool(const TryAnswer&)> tell, Receiver receiver) = 0;
    // If it throws, the hold is still released, in the background or by the end of its lease.
    virtual void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done,
                                       Receiver receiver) = 0;
    virtual void attend() = 0;
    virtual void stop_attending() = 0;
    virtual HeldPart part(OwnerNumber owner) = 0;
    virtual bool force_release(Instant limit) = 0;
    virtual bool ask_locked(Instant limit) = 0;
    virtual int ask_hold_count(OwnerNumber owner, Instant limit) = 0;
    virtual std::optional<Milliseconds> ask_remaining_lease(Instant limit) = 0;

    // Returns how many connections its client has made so far; nothing if its transport does not count them.
    virtual std::optional<std::uint64_t> connections() = 0;
    // Calls `done` with the reply to INFO.
    virtual void ask_info(Completion done) = 0;

    // Access to its client.
    virtual const ClientOptions& options() = 0;
    virtual Timers& timers() = 0;
    virtual void start_background() = 0;
    virtual void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept = 0;
    virtual Losses& losses() = 0;
    virtual void start_losses() = 0;
};

template <MemberLock Lock>
class QuorumMemberOf final : public QuorumMember {
public:
    explicit QuorumMemberOf(Lock& lock) : lock_(lock) {}

    const std::string& name() const override { return lock_.name(); }
    const std::string& key() const override { return state().key(); }
    const void* lock() const override { return &state(); }
    const void* client() const override { return &state().session(); }

    bool acquire(const LockRequest& request) override { return LockAccess::acquire(lock_, request); }
    void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                           std::function<bool(const TryAnswer&)> tell, Receiver receiver) override {
        state().try_in_background(owner, lease, std::move(tell), receiver);
    }
    void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done,
                               Receiver receiver) override {
        state().release_in_background(owner, done, receiver);
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

    std::optional<std::uint64_t> connections() override {
        if constexpr (requires { session().transport().connections(); }) return session().transport().connections();
        return std::nullopt;
    }

    void ask_info(Completion done) override {
        static constexpr std::array<std::string_view, 2> words{"INFO", "server"};
        session().post({words, 0}, std::move(done));
    }

    const ClientOptions& options() override { return session().options(); }
    Timers& timers() override { return session().timers(); }
    void start_background() override { session().start_background(); }
    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept override {
        session().raise(kind, name, detail);
    }
    Losses& losses() override { return session().losses(); }
    void start_losses() override { session().start_losses(); }

private:
    auto& state() const { return LockAccess::state(lock_); }
    auto& session() { return state().session(); }

    Lock& lock_;
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
