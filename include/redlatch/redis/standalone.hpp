// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/convert.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/redis/command_connection.hpp"
#include "redlatch/redis/deployment.hpp"
#include "redlatch/redis/key_tracker.hpp"
#include "redlatch/redis/own_connections.hpp"
#include "redlatch/redis/pubsub_connection.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One Redis server, and all connections to it.
//
// Up to `shared` connections carry the commands of all threads, each thread always on the same one. They are opened on
// first use, so a program with one thread has one. If a further one cannot be opened (for example, because the password
// was changed), the existing ones carry everything. Commands that are sent together use a connection of their own until
// they are answered, because they may wait for replicas and would delay all that follows. One more connection carries
// the subscriptions, and two track keys.
//
// After a time-out or a malformed reply a connection is closed and never reused. It is opened again with exponential
// back-off and jitter, and logs in again. There is no thread here: see run().
//
// The connections are thread-safe, and the set of them only grows. So there is no lock here, but for the reason of a
// failed attempt.
class Standalone : public Deployment {
public:
    static constexpr std::size_t shared = 4;

    Standalone(const Url& url, Milliseconds timeout)
        : Standalone(url, timeout,
                     [this](Connection& connection, Instant deadline) { return connection.open(url_, deadline); }) {}

    Reply call(const Command& command, Instant deadline) override {
        bool refused = false;
        Reply reply = connection().call(command, deadline, &refused);
        if (CommandConnection* const other = refused ? substitute(deadline) : nullptr)
            return other->call(command, deadline, &refused);
        return reply;
    }

    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) override {
        return own_.with_one([&](CommandConnection& own) {
            bool refused = false;
            std::vector<Reply> replies = own.call_all(commands, deadline, &refused);
            if (CommandConnection* const other = refused ? substitute(deadline) : nullptr)
                return other->call_all(commands, deadline, &refused);
            return replies;
        });
    }

    void post(const Command& command, Completion done) override { connection().post(command, std::move(done)); }

    void post_all(std::span<const Command> commands, std::span<Completion> done) override {
        own_.with_one([&](CommandConnection& own) { own.post_all(commands, done); });
    }

    void post_attended(const Command& command, Completion done) override {
        connection().post(command, std::move(done), true);
    }
    void attend() override { connection().attend(); }

    void subscribe(const std::string& channel) override {
        subscriber_.subscribe(channel);
        wake();
    }

    void unsubscribe(const std::string& channel) override {
        subscriber_.unsubscribe(channel);
        wake();
    }

    // Does one round of poll() over the subscriber connection and the command connections that no other thread reads.
    void run(Listener& listener, Instant deadline) override {
        ready_.clear();
        ready_.push_back({pipe_.fd(), POLLIN, 0});
        Instant due = deadline;
        const auto watch = [&](const Duty& duty) {
            due = std::min(due, duty.due);
            if (duty.fd >= 0) ready_.push_back({duty.fd, duty.events, 0});
        };
        watch(subscriber_.duty());
        tracker_.each_duty(watch);
        each_connection([&](CommandConnection& one) { watch(one.duty()); });
        due = std::min(due, watch_more(ready_));
        ::poll(ready_.data(), converted<nfds_t>(ready_.size()), poll_timeout(due));
        pipe_.drain();
        if (const auto why = unreached_.take(); why && !connected()) listener.unreachable(*why);
        serve_more(listener);
        const Instant limit = Clock::now() + timeout_;
        subscriber_.serve(listener, limit);
        tracker_.serve(listener, limit);
        each_connection([&](CommandConnection& one) {
            one.drive(limit);
            if (one.is_connected()) return;
            if (CommandConnection* const other = connected()) one.hand_over_to(*other);
        });
    }

    bool watch(Listener& listener, Instant deadline, std::uint64_t seen) override {
        return has_watched(subscriber_.watch(listener, deadline, interrupts_, seen));
    }

    void track(const Command& read, Completion done) override { tracker_.track(read, std::move(done)); }

    bool watch_invalidations(Listener& listener, Instant deadline, std::uint64_t seen) override {
        return has_watched(tracker_.watch(listener, deadline, interrupts_, seen));
    }

    // All keys are on the one server.
    std::uint32_t route(std::string_view) const noexcept override { return 0; }
    std::string_view publish_command() override { return "PUBLISH"; }

    std::optional<Instant> same_server_since() const noexcept override { return same_server_since_.load(); }

    void close_inherited() noexcept override {
        each_connection([](CommandConnection& one) { one.close_inherited(); });
        subscriber_.close_inherited();
        tracker_.close_inherited();
    }

    std::uint64_t connections() const override {
        std::uint64_t sum = 0;
        each_connection([&](const CommandConnection& one) { sum += one.connections(); });
        return sum;
    }

    std::uint64_t reconnects() const override {
        std::uint64_t sum = 0;
        each_connection(
            [&](const CommandConnection& one) { sum += std::max<std::uint64_t>(one.connections(), 1) - 1; });
        return sum;
    }

protected:
    // `open` finds the server.
    Standalone(const Url& url, Milliseconds timeout, Connector open)
        : url_(url),
          timeout_(timeout),
          open_(reporting(std::move(open))),
          subscriber_(
              open_, timeout, [this] { wake(); }, PubSubConnection::Channels::classic, [this] { answers(); },
              url.ping_interval),
          tracker_(
              url_, open_, timeout, [this] { wake(); }, [this] { answers(); }) {}

    template <class Visit>
    void each_connection(Visit visit) {
        for (CommandConnection& one : shared_) visit(one);
        own_.each(visit);
    }
    template <class Visit>
    void each_connection(Visit visit) const {
        for (const CommandConnection& one : shared_) visit(one);
        own_.each(visit);
    }

    // Leaves a server that is not the one of this epoch.
    void leave_before(std::uint64_t epoch) {
        each_connection([&](CommandConnection& one) { one.leave_before(epoch); });
        tracker_.leave_before(epoch);
    }
    void leave_before(std::uint64_t epoch, Listener& listener) {
        leave_before(epoch);
        subscriber_.leave_before(epoch, listener);
        tracker_.leave_before(epoch, listener);
    }

    // Called at the end. Afterwards neither the connector nor a completion is called any more.
    void finish() noexcept {
        subscriber_.finish();
        tracker_.finish();
        each_connection([](CommandConnection& one) { one.forget_posted(); });
    }

private:
    // What else run() watches, and until when, and what else it serves afterwards.
    virtual Instant watch_more(std::vector<pollfd>&) { return never; }
    virtual void serve_more(Listener&) {}

    bool has_watched(PubSubConnection::Watch outcome) {
        if (outcome == PubSubConnection::Watch::lost) wake();
        return outcome == PubSubConnection::Watch::done;
    }

    // The one of the calling thread.
    CommandConnection& connection() { return shared_[this_thread_number() % shared]; }

    // Returns a connected one, or null.
    CommandConnection* connected() noexcept {
        for (CommandConnection& one : shared_)
            if (one.is_connected()) return &one;
        return nullptr;
    }

    // Returns a connected connection for a call whose own one cannot connect; null if there is none, or no time.
    CommandConnection* substitute(Instant deadline) { return Clock::now() < deadline ? connected() : nullptr; }

    // Called when one connection has received a reply: ends the reconnect pauses of the others.
    void answers() noexcept {
        bool has_ended_pause = subscriber_.try_again();
        has_ended_pause |= tracker_.try_again();
        each_connection([&](CommandConnection& one) { has_ended_pause |= one.try_again(); });
        if (has_ended_pause) wake();
    }

    // Why the last attempt to connect failed, until run() tells the listener. mutex_ guards why_.
    class Unreached {
    public:
        void set(const std::string& why) {
            const std::lock_guard lock(mutex_);
            why_ = why;
        }

        std::optional<std::string> take() {
            const std::lock_guard lock(mutex_);
            return std::exchange(why_, std::nullopt);
        }

    private:
        std::mutex mutex_;
        std::optional<std::string> why_;
    };

    // Returns a connector that reports its failures to run(), but not those of an attempt that had too little time or was
    // told to stop: they say nothing of the server.
    Connector reporting(Connector open) {
        return [this, open = std::move(open)](Connection& link, Instant deadline) {
            const Instant begun = Clock::now();
            std::optional<Reply> refusal = open(link, deadline);
            const bool had_time = Clock::now() < deadline || deadline >= begun + timeout_;
            if (refusal && !refusal->answered() && had_time && !link.abandoned) {
                unreached_.set(refusal->text);
                wake();
            }
            return refusal;
        };
    }

    // Returns a connector that notes the time whenever it has connected again: from then on it may be another server. The
    // first connection counts for nothing, because no server was asked before.
    Connector noting(Connector open) {
        return [this, open = std::move(open)](Connection& link, Instant deadline) {
            std::optional<Reply> refusal = open(link, deadline);
            if (refusal || !was_opened_.exchange(true)) return refusal;
            const Instant now = Clock::now();
            for (Instant known = same_server_since_; known < now;)
                if (same_server_since_.compare_exchange_weak(known, now)) break;
            return refusal;
        };
    }

    CommandConnection make_connection() {
        return CommandConnection(
            url_, noting(open_), timeout_, [this] { wake(); }, CommandConnection::Connecting::until_deadline,
            [this] { return connected() != nullptr; }, [this] { answers(); });
    }

    template <std::size_t... I>
    std::array<CommandConnection, shared> make_connections(std::index_sequence<I...>) {
        return {((void)I, make_connection())...};
    }

    const Url url_;
    const Milliseconds timeout_;
    Unreached unreached_;
    const Connector open_;
    std::vector<pollfd> ready_;  // run()'s own
    PubSubConnection subscriber_;
    KeyTracker tracker_;
    std::atomic<bool> was_opened_{false};  // True if a command connection was
    std::atomic<Instant> same_server_since_{Instant{}};
    std::array<CommandConnection, shared> shared_ = make_connections(std::make_index_sequence<shared>());
    OwnConnections own_{
        [this] { return std::unique_ptr<CommandConnection>(new CommandConnection(make_connection())); }};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
