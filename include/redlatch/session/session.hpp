// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/process.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/native_commands.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/session/background.hpp"
#include "redlatch/session/connection_listener.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/counters.hpp"
#include "redlatch/session/events.hpp"
#include "redlatch/session/executor.hpp"
#include "redlatch/session/key_holds.hpp"
#include "redlatch/session/losses.hpp"
#include "redlatch/session/lost_levels.hpp"
#include "redlatch/session/notifier.hpp"
#include "redlatch/session/registry.hpp"
#include "redlatch/session/release_round.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/session/server_time.hpp"
#include "redlatch/session/subscriptions.hpp"
#include "redlatch/session/timers.hpp"
#include "redlatch/session/tracked_keys.hpp"
#include "redlatch/session/watchdog.hpp"
#include "redlatch/transport/transport.hpp"
#include "redlatch/transport/transport_port.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Owns what all primitives of one client share within one process: the transport, the identity, the counters, the
// background thread with its timers and subscriptions, and the local state of every name in use. Each part has a file
// of its own, which documents the members that are passed on to it here.
//
// Urgent work at the end of a hold is left to the thread of Losses, which never waits for a server.
class Session {
public:
    Session(std::unique_ptr<TransportPort> transport, const ClientOptions& options, const Session* parent = nullptr)
        : transport_(std::move(transport)),
          options_(options),
          parent_(parent),
          timers_([this] { executor_.wake(); }),
          continuations_([this] { executor_.wake(); }),
          subscriptions_([this](const std::string& channel, bool wanted) { executor_.subscribe(channel, wanted); },
                         [this] { executor_.wake(); }),
          tracked_keys_(transport_->can_track()) {}

    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // No thread of ours is left when the states report their holds as lost, and all of that is reported before anything
    // is destroyed: first the transport, whose completions refer to the states and to everything else.
    ~Session() {
        executor_.end();
        background_.end();
        registry_.abandon();
        losses_.end();
        transport_.reset();
    }

    const ClientOptions& options() const noexcept { return options_; }
    const std::string& uuid() const noexcept { return uuid_; }

    // Returns false in a child that was forked after this session was created.
    bool is_of_this_process() const noexcept { return process_ == this_process(); }

    // Returns true if this process was forked from one that used the client. Holds of the parent are then not ours.
    bool is_fork_child() const noexcept { return parent_ != nullptr; }

    // Returns the number of a request that leaves a mark on the server against its own copies. A number is never reused
    // in a session, because a mark outlives the local state that made it.
    std::uint64_t next_request() { return ++last_request_; }

    ProtocolContext protocol_context() noexcept { return {uuid_, options_, native_commands_}; }

    // Also valid while the transport is being destroyed.
    TransportPort& transport() noexcept { return executor_.transport(); }
    Timers& timers() noexcept { return timers_; }
    Continuations& continuations() noexcept { return continuations_; }
    Losses& losses() noexcept { return losses_; }
    Subscriptions& subscriptions() noexcept { return subscriptions_; }
    TrackedKeys& tracked_keys() noexcept { return tracked_keys_; }
    LostLevels& lost_levels() noexcept { return lost_levels_; }

    // --- commands: Executor -----------------------------------------------------------------------------------

    Reply call(const Command& command, Instant deadline) { return executor_.call(command, deadline); }
    Reply call(const Call& call, Instant deadline) { return executor_.call(call, deadline); }

    // Decides whether a call is sent again: see Retry.
    Retry retry(Retry::Limits limits) { return executor_.retry(std::move(limits)); }
    Retry retry(Instant deadline) { return retry(Retry::Limits{deadline}); }

    template <class Done>
    void post(const Command& command, Done done, Receiver receiver = Receiver::background) {
        start_background();
        executor_.post(command, std::move(done), receiver);
    }
    template <class Done>
    void post(const Call& call, Done done, Receiver receiver = Receiver::background) {
        start_background();
        executor_.post(call, std::move(done), receiver);
    }

    // Posts a command that reads a key, and makes the server tell when the key changes: see Tracks, TrackedKeys.
    void track(const Command& read, Completion done) {
        start_background();
        executor_.track(read, [this, done = std::move(done)](Reply reply) {
            tracked_keys_.learn(reply);
            done(std::move(reply));
        });
    }

    void attend() { executor_.attend(); }
    void stop_attending() { executor_.stop_attending(); }

    // --- expiry of commands by the server's clock: ServerTime, RemoteClock ----------------------------------------

    std::optional<ServerMilliseconds> server_time(std::string_view key, Instant deadline, Reply& failure) {
        return server_time_.now(key, deadline, failure);
    }

    std::optional<ServerMilliseconds> known_server_time(std::string_view key) { return server_time_.known(key); }
    std::optional<ServerMilliseconds> learn_server_time(std::string_view key, const SendTime& asked, Reply& reply) {
        return server_time_.learn(key, asked, reply);
    }

    template <class Then>
    void with_server_time(std::string_view key, Receiver receiver, Then then) {
        start_background();
        server_time_.with_now(key, receiver, std::move(then));
    }

    // Without memory there is no new reading.
    void read_server_clock(std::string_view key) noexcept try { server_time_.read(key); } catch (...) {
    }

    ServerMilliseconds wanted_until(std::string_view key) const { return server_time_.wanted_until(key); }
    bool learn_if_late(std::string_view key, const SendTime& sent, const Reply& reply) {
        return server_time_.learn_if_late(key, sent, reply);
    }
    std::optional<RemoteClock::Bounds> server_time_bounds() const { return server_time_.bounds(); }
    RemoteClock& server_clock() noexcept { return executor_.clock(); }

    // --- threads: Background, Events, Losses ------------------------------------------------------------------

    void start_background() { background_.start(); }
    bool watch(Instant until, std::uint64_t seen) { return background_.watch(until, seen); }
    std::uint64_t interrupts() { return background_.interrupts(); }
    void interrupt_watch() { background_.interrupt_watch(); }

    // Run the completions of operations: the first those that named no executor, the second hands the others to theirs.
    Notifier& completions() noexcept { return completions_; }
    Notifier& dispatcher() noexcept { return dispatcher_; }

    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept {
        events_.raise(kind, name, detail);
    }

    // Starts everything that reporting a loss needs, so that reporting cannot fail later. Call it before anything is
    // held. Throws std::system_error if no thread can be started.
    void start_losses() {
        if (losses_started_.load(std::memory_order_acquire)) return;
        losses_.start();
        events_.start();
        losses_started_.store(true, std::memory_order_release);
    }

    // --- counters ---------------------------------------------------------------------------------------------

    void count_acquisition() { counters_.acquisitions.add(); }
    [[nodiscard]] CountedWait count_wait() { return CountedWait(counters_); }
    void count_hold() { counters_.holds.add(); }
    void count_hold_time(Clock::duration held) { counters_.hold_times.add(held); }
    void count_handoff() { counters_.handoffs.add(); }
    void count_renewal() { counters_.renewals.add(); }
    void count_lost_hold() { counters_.lost_holds.add(); }

    Stats stats() const { return counters_.stats(transport_->reconnects()); }

    // --- the local state of names: Registry, KeyHoldsTable ------------------------------------------------------

    NamedState& use_state(const StateMaker& maker, const std::string& key) { return registry_.use(maker, *this, key); }
    void leave_state(NamedState& state) { registry_.leave(state); }
    std::shared_ptr<NamedState> share_state(NamedState& state) { return registry_.share(state); }
    void forget_if_unused(NamedState& state) { registry_.forget_if_unused(state); }

    // Gives back all holds of this process: see Client::release_all(). Waits for no reply.
    std::shared_ptr<ReleaseRound> release_all() {
        auto round = std::make_shared<ReleaseRound>();
        registry_.release_all(round);
        // A lock over several notices that it has lost members.
        losses_.look_again();
        return round;
    }

    // Gives up the operations under way, and those that are begun from now on: see Client::async_close().
    void give_up_operations() { operations_end_.request_stop(); }
    std::stop_token operations_end() const noexcept { return operations_end_.get_token(); }

    // Returns the record of the threads of this process that hold the key, whatever the kind of lock.
    std::shared_ptr<KeyHolds> key_holds(const std::string& key) { return key_holds_.of(key); }

private:
    std::unique_ptr<TransportPort> transport_;
    const ClientOptions options_;
    const Session* const parent_;  // left as it was at the fork; never accessed
    // Others read the digit of the version: 8 says that releases of this client grant the lock to the next waiter, 4 that
    // they do not.
    const std::string uuid_ = make_uuid(options_.grants ? 8 : 4);
    const ProcessMark process_ = this_process();
    std::atomic<std::uint64_t> last_request_{0};
    std::atomic<bool> losses_started_{false};
    std::stop_source operations_end_;

    // Destroyed in the reverse order, after the transport: first the last references to states, in the background and in
    // the registry. Their destructors leave the timers and the subscriptions, which still call the executor. Then the
    // rest.
    NativeCommands native_commands_;
    LostLevels lost_levels_;
    KeyHoldsTable key_holds_;
    Counters counters_;
    Events events_{options_};
    Notifier completions_;
    Notifier dispatcher_;
    Losses losses_;
    Executor executor_{*transport_, options_, counters_, events_};
    ServerTime server_time_{executor_, options_};
    Watchdog watchdog_{executor_, server_time_, events_, counters_, options_.renewal_batch};
    Timers timers_;
    Continuations continuations_;
    Subscriptions subscriptions_;
    TrackedKeys tracked_keys_;
    Registry registry_;
    ConnectionListener listener_{subscriptions_,       events_,      registry_, executor_.clock(),
                                 executor_.replicas(), tracked_keys_};
    Background background_{executor_, watchdog_, timers_, continuations_, subscriptions_, tracked_keys_, listener_};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
