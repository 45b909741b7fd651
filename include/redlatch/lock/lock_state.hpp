// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/lock/background_tries.hpp"
#include "redlatch/lock/hold_keeper.hpp"
#include "redlatch/lock/local_queue.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/lock/release_watch.hpp"
#include "redlatch/lock/turn_queue.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/release_round.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One lock in this process: all objects of its name share it. It is made of parts: the holds and the commands
// (LockParts), and a queue in which threads wait. It passes calls and events on to them.
//
// The mutex of LockCore guards all parts.
class LockState final : public LockTask, public HoldKeeper {
public:
    // Makes the state of one kind of lock.
    template <class Protocol, class Queue = LocalQueue>
    static std::shared_ptr<NamedState> make(Session& session, const std::string& key) {
        return std::make_shared<LockState>(
            session, std::make_unique<Protocol>(session.protocol_context(), key),
            [](LockParts& parts) -> std::unique_ptr<TurnQueue> { return std::make_unique<Queue>(parts); });
    }

    LockState(Session& session, std::unique_ptr<LockProtocol> protocol,
              std::unique_ptr<TurnQueue> (*make_queue)(LockParts&))
        : parts_(*this, session, std::move(protocol)), queue_(make_queue(parts_)) {
        if (core_.kind.shared) core_.key_holds->add_readers(*this, session.timers());
    }

    ~LockState() override {
        if (core_.kind.shared) core_.key_holds->remove_readers(*this);
        session().timers().forget(*this);
        session().losses().timers().forget(*this);
    }

    std::string_view kind() const noexcept override { return core_.kind.name; }
    const std::string& key() const noexcept override { return core_.key(); }
    Session& session() const noexcept override { return core_.session; }
    LockProtocol& protocol() noexcept { return core_.protocol; }

    bool is_idle() override {
        const std::lock_guard lock(core_.mutex);
        return !core_.holds.any_live() && core_.outbox.empty() && core_.in_flight == 0 && !queue_->is_waited_for();
    }

    // --- acquiring and releasing ------------------------------------------------------------------------------

    Task<bool> acquire(const LockRequest& request) override { return queue_->acquire(request); }

    // Releases one level. Returns no error on success, hold_lost if the hold had already ended, unreachable if the
    // release could not be delivered yet (the background resends it). Throws Error(errc::not_owner).
    std::error_code release(const WhichHold& which) override try {
        std::unique_lock lock(core_.mutex);
        HoldRecord* hold = parts_.releases.hold_to_release(lock, which);
        if (!hold) return parts_.releases.gone_before(which.owner);
        if (hold->count > 1) return parts_.releases.release_level(lock, *hold);
        return hold->stays(Clock::now()) ? parts_.releases.leave_early(lock, *hold) : queue_->release_hold(lock, *hold);
    } catch (const std::bad_alloc&) {
        // A hold whose release could not be sent ends with its lease. Nobody has been told, so those who wait ask.
        const std::lock_guard lock(core_.mutex);
        core_.task.may_be_free();
        return make_error_code(std::errc::not_enough_memory);
    }

    void release_all(const std::shared_ptr<ReleaseRound>& round) override { parts_.releases.release_all(round); }

    bool force_release(const Settings& settings, Instant limit = never) {
        return parts_.releases.force_release(settings, limit);
    }

    // Returns the part in which callers wait for the end of others' holds. It refers to this object.
    std::shared_ptr<ReleaseWatch> release_watch() {
        const std::lock_guard lock(core_.mutex);
        if (!release_watch_) release_watch_ = std::make_shared<ReleaseWatch>(session(), protocol());
        return release_watch_;
    }

    // For locks over several servers: see BackgroundTries::begin() and Releases::release_in_background().
    void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease, const Settings& settings,
                           Reentry reentry, std::function<bool(const TryAnswer&)> tell, Receiver receiver) {
        tries_.begin(owner, lease, settings, reentry, std::move(tell), receiver);
    }
    void release_in_background(const WhichHold& which, const std::function<void(std::error_code)>& done,
                               Receiver receiver) {
        parts_.releases.release_in_background(which, done, receiver);
    }

    // --- for objects that hold the lock: HoldKeeper -----------------------------------------------------------

    bool is_of_this_process() const noexcept override { return session().is_of_this_process(); }

    std::string name_as_given() const override { return key().substr(session().options().key_prefix.size()); }

    HoldFacts facts(OwnerNumber owner) override {
        const std::lock_guard lock(core_.mutex);
        if (const HoldRecord* hold = parts_.leases.live_hold(owner)) return hold->facts();
        return session().lost_levels().last(core_.kind.name, key(), owner);
    }

    Settings settings(OwnerNumber owner) override {
        const std::lock_guard lock(core_.mutex);
        const HoldRecord* hold = parts_.leases.live_hold(owner);
        return hold ? hold->settings : settings_of(session().options());
    }

    Task<std::error_code> release_by(WhichHold which, WaitBy by) override {
        if (by == by_thread) co_return release(which);
        const Instant until = Clock::now() + settings(which.owner).command_timeout;
        std::shared_ptr<Delivery<std::error_code>> outcome;
        try {
            outcome = std::make_shared<Delivery<std::error_code>>(errc::unreachable);
        } catch (const std::bad_alloc&) {
            release_later(which);
            co_return make_error_code(std::errc::not_enough_memory);
        }
        try {
            const auto told = [outcome, by](std::error_code ec) { outcome->deliver(ec, *by); };
            parts_.releases.release_in_background(which, told, Receiver::background);
            co_return co_await Delivered(by, outcome, until);
        } catch (const std::bad_alloc&) {  // it is released all the same, but nobody waits for the outcome
            co_return make_error_code(std::errc::not_enough_memory);
        }
    }

    void release_later(const WhichHold& which) noexcept override { parts_.releases.release_later(which); }

    void waive_minimum(const WhichHold& which) noexcept override {
        const std::lock_guard lock(core_.mutex);
        HoldRecord* hold = core_.holds.find(which.owner);
        if (hold && which.is(hold->id) && hold->count == 1) hold->stays_until = Instant::min();
    }

    // --- queries without a command: see Leases ----------------------------------------------------------------

    Instant valid_until(const WhichHold& which) override {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.valid_until(which);
    }
    std::optional<std::int64_t> token(OwnerNumber owner) {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.token(owner);
    }
    HeldPart part(OwnerNumber owner) {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.part(owner);
    }
    std::stop_token lost(const WhichHold& which) override {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.lost(which);
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant horizon, std::vector<Renewal>& due) override {
        std::unique_lock lock(core_.mutex);
        queue_->on_timer(lock, now);
        parts_.leases.add_due(now, horizon, due);
        parts_.deliveries.drop_expired(now);
        core_.schedule();
        parts_.deliveries.deliver(lock);
        const bool reads_clock = std::exchange(core_.reads_clock, false);
        lock.unlock();
        if (reads_clock) session().read_server_clock(core_.key());
        session().forget_if_unused(*this);
    }

    void expire(Instant now) override {
        const std::lock_guard lock(core_.mutex);
        parts_.leases.expire(now);
    }

    void abandon() noexcept override {
        const std::lock_guard lock(core_.mutex);
        parts_.leases.abandon();
    }

    void on_failover() override {
        const std::lock_guard lock(core_.mutex);
        parts_.leases.doubt_all();
    }

    void renewed(const Renewal& renewal, Renewed outcome, Instant sent) override {
        std::unique_lock lock(core_.mutex);
        parts_.leases.renewed(lock, renewal, outcome, sent);
    }

    void may_be_free() override { queue_->may_be_free(); }

    void acquired_for(OwnerNumber owner) override { queue_->acquired_for(owner); }

    void subscribed(const std::string& channel) override {
        const std::lock_guard lock(core_.mutex);
        queue_->subscribed(channel);
    }

    void subscription_refused(const std::string& channel, const Reply& why) override {
        const std::lock_guard lock(core_.mutex);
        queue_->subscription_refused(channel, why);
    }

    void message(const std::string& channel, std::string_view payload) override {
        const std::lock_guard lock(core_.mutex);
        queue_->message(channel, payload);
    }

    void disconnected(const std::string& channel) override {
        const std::lock_guard lock(core_.mutex);
        queue_->disconnected(channel);
    }

    void key_changed() override {
        const std::lock_guard lock(core_.mutex);
        queue_->key_changed();
    }

private:
    LockParts parts_;
    LockCore& core_ = parts_.core;
    BackgroundTries tries_{parts_};
    const std::unique_ptr<TurnQueue> queue_;
    std::shared_ptr<ReleaseWatch> release_watch_;  // none before it is needed
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
