// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/slots.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/net/wake_pipe.hpp"
#include "redlatch/redis/cluster.hpp"
#include "redlatch/redis/command_connection.hpp"
#include "redlatch/redis/own_connections.hpp"
#include "redlatch/redis/pubsub_connection.hpp"
#include "redlatch/redis/sentinels.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {
inline namespace v0_1 {

// The Transport over one Redis server, on hiredis (0.14.1 or newer). With sentinels it talks to the present master, and
// leaves its connections as soon as a sentinel announces another master. With a redis-cluster:// URL it forwards to a
// Cluster.
//
// Up to `lines` connections carry the commands of all threads, each thread always on the same one. They are opened on
// first use, so a program with one thread has one. If a further one cannot be opened (for example, because the password
// was changed), the existing ones carry everything. Commands that are sent together use a connection of their own until
// they are answered, because they may wait for replicas and would delay all that follows. One more connection carries
// the subscriptions.
//
// After a time-out or a malformed reply a connection is closed and never reused. It is opened again with exponential
// back-off and jitter, and logs in again. There is no thread here: see run().
class HiredisTransport {
public:
    static constexpr std::size_t lines = 4;

    // Connects to nothing yet. `command_timeout`: how long a server may take to answer before its connection counts as
    // dead. `tls`: the TLS implementation; throws Error(errc::unsupported) if the URL demands TLS and there is none.
    // `pubsub`: for clusters only.
    explicit HiredisTransport(Url url, Milliseconds command_timeout = std::chrono::seconds(3),
                              std::shared_ptr<const TlsConnector> tls = nullptr, PubSub pubsub = PubSub::automatic)
        : state_(std::make_unique<State>(with_tls(std::move(url), std::move(tls)), command_timeout, pubsub)) {}

    Reply call(const Command& command, Instant deadline) {
        if (state_->cluster) return state_->cluster->call(command, deadline);
        const std::uint64_t place = this->place();
        Reply reply = on_a_line(line(), deadline, [&](CommandConnection& line, bool& refused) {
            return line.call(command, deadline, &refused);
        });
        check_for_failover(reply, place);
        return reply;
    }

    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        if (state_->cluster) return state_->cluster->call_all(commands, deadline);
        const std::uint64_t place = this->place();
        std::vector<Reply> replies = state_->own_lines.with_one([&](CommandConnection& own) {
            return on_a_line(own, deadline, [&](CommandConnection& line, bool& refused) {
                return line.call_all(commands, deadline, &refused);
            });
        });
        for (const Reply& reply : replies) check_for_failover(reply, place);
        return replies;
    }

    void post(const Command& command, Completion done) {
        if (state_->cluster) return state_->cluster->post(command, std::move(done));
        line().post(command, with_failover_check(std::move(done)));
    }

    void post_all(std::span<const Command> commands, std::span<Completion> done) {
        if (state_->cluster) return state_->cluster->post_all(commands, done);
        for (Completion& one : done) one = with_failover_check(std::move(one));
        state_->own_lines.with_one([&](CommandConnection& own) { own.post_all(commands, done); });
    }

    // In a cluster the poster leaves the reply to run().
    void post_attended(const Command& command, Completion done) {
        if (state_->cluster) return state_->cluster->post(command, std::move(done));
        line().post(command, with_failover_check(std::move(done)), true);
    }
    void attend() {
        if (!state_->cluster) line().attend();
    }

    void subscribe(const std::string& channel) {
        if (state_->cluster) return state_->cluster->subscribe(channel);
        state_->subscriber.subscribe(channel);
        wake();
    }

    void unsubscribe(const std::string& channel) {
        if (state_->cluster) return state_->cluster->unsubscribe(channel);
        state_->subscriber.unsubscribe(channel);
        wake();
    }

    // Does one round of poll() over the subscriber connection and the command connections that no other thread reads.
    void run(Listener& listener, Instant deadline) {
        State& s = *state_;
        if (s.cluster) return s.cluster->run(listener, deadline, s.pipe);
        follow(listener);
        std::vector<pollfd>& ready = s.ready;
        ready.clear();
        ready.push_back({s.pipe.fd(), POLLIN, 0});
        const PubSubConnection::Duty duty = s.subscriber.duty();
        Instant due = std::min(deadline, duty.due);
        if (duty.fd >= 0) ready.push_back({duty.fd, duty.events, 0});
        s.each_link([&](CommandConnection& link) {
            const CommandConnection::Watch watch = link.watch();
            due = std::min(due, watch.due);
            if (watch.fd >= 0) ready.push_back({watch.fd, watch.events, 0});
        });
        if (s.sentinels) due = std::min(due, s.sentinels->watch(ready));
        ::poll(ready.data(), static_cast<nfds_t>(ready.size()), poll_timeout(due));
        s.pipe.drain();
        if (s.sentinels) s.sentinels->serve();
        follow(listener);
        const Instant limit = Clock::now() + s.timeout;
        s.subscriber.serve(listener, limit);
        s.each_link([&](CommandConnection& link) {
            link.drive(limit);
            if (link.is_connected()) return;
            if (CommandConnection* const other = s.connected()) link.hand_over_to(*other);
        });
    }

    void wake() { state_->pipe.wake(); }

    bool watch(Listener& listener, Instant deadline, std::uint64_t seen) {
        State& s = *state_;
        if (s.cluster) return false;
        const PubSubConnection::Watch outcome = s.subscriber.watch(listener, deadline, s.interrupts, seen);
        if (outcome == PubSubConnection::Watch::lost) wake();
        return outcome == PubSubConnection::Watch::done;
    }

    std::uint64_t interrupts() const noexcept { return state_->interrupts.count(); }
    void interrupt_watch() { state_->interrupts.wake(); }

    // Keys with equal routes may go into one command: all keys on a single server, the keys of one slot in a cluster.
    std::uint32_t route(std::string_view key) const noexcept { return state_->cluster ? key_slot(key) : 0; }
    std::string_view publish_command() const {
        return state_->cluster ? state_->cluster->publish_command() : "PUBLISH";
    }

    HiredisTransport clone_after_fork() {
        state_->each_link([](CommandConnection& link) { link.close_inherited(); });
        state_->subscriber.close_inherited();
        if (state_->sentinels) state_->sentinels->close_inherited();
        if (state_->cluster) state_->cluster->close_inherited();
        return HiredisTransport(state_->url, state_->timeout, state_->url.tls_connector, state_->pubsub);
    }

    // Returns how many command connections were made, and below how many of them replaced an earlier one.
    std::uint64_t connections() const {
        if (state_->cluster) return state_->cluster->connections();
        std::uint64_t sum = 0;
        state_->each_link([&](const CommandConnection& link) { sum += link.connections(); });
        return sum;
    }

    std::uint64_t reconnects() const {
        if (state_->cluster) return state_->cluster->reconnects();
        std::uint64_t sum = 0;
        state_->each_link(
            [&](const CommandConnection& link) { sum += std::max<std::uint64_t>(link.connections(), 1) - 1; });
        return sum;
    }

private:
    // Behind a pointer, so that a transport can be moved before its first use.
    struct State {
        State(Url where, Milliseconds command_timeout, PubSub kind)
            : url(std::move(where)),
              timeout(command_timeout),
              pubsub(kind),
              sentinels(url.sentinels.empty() ? nullptr : new Sentinels(url, [this] { pipe.wake(); })),
              cluster(url.cluster.empty() ? nullptr : new Cluster(url, timeout, pubsub, [this] { pipe.wake(); })),
              subscriber(
                  opener(), timeout, [this] { pipe.wake(); }, false, [this] { answers(); }) {}

        const Url url;
        const Milliseconds timeout;
        const PubSub pubsub;
        WakePipe pipe;
        Interrupts interrupts;
        const std::unique_ptr<Sentinels> sentinels;  // null without sentinels
        const std::unique_ptr<Cluster> cluster;      // null without a cluster; otherwise it does all the work
        std::uint64_t followed = 1;                  // run()'s own: the place that the listener was last notified of
        std::vector<pollfd> ready;                   // run()'s own
        PubSubConnection subscriber;
        std::array<CommandConnection, lines> links = make_links(std::make_index_sequence<lines>());

        OwnConnections own_lines{
            [this] { return std::unique_ptr<CommandConnection>(new CommandConnection(new_link())); }};

        template <class Visit>
        void each_link(Visit visit) {
            for (CommandConnection& link : links) visit(link);
            own_lines.each(visit);
        }

        // Returns a connected one, or null.
        CommandConnection* connected() noexcept {
            for (CommandConnection& link : links)
                if (link.is_connected()) return &link;
            return nullptr;
        }

    private:
        // Called when one connection has received a reply: ends the reconnect pauses of the others.
        void answers() noexcept {
            bool has_ended_pause = subscriber.try_again();
            each_link([&](CommandConnection& link) { has_ended_pause |= link.try_again(); });
            if (has_ended_pause) pipe.wake();
        }

        // Returns how a connection finds its server.
        Opener opener() {
            if (sentinels)
                return [this](Connection& link, Instant deadline) { return sentinels->open_master(link, deadline); };
            return [this](Connection& link, Instant deadline) { return link.open(url, deadline); };
        }

        template <std::size_t... I>
        std::array<CommandConnection, lines> make_links(std::index_sequence<I...>) {
            return {((void)I, new_link())...};
        }

        CommandConnection new_link() {
            return CommandConnection(
                url, opener(), timeout, [this] { pipe.wake(); }, CommandConnection::Connecting::until_deadline,
                [this] { return connected() != nullptr; }, [this] { answers(); });
        }
    };

    static Url with_tls(Url url, std::shared_ptr<const TlsConnector> tls) {
        if (tls) url.tls_connector = std::move(tls);
        if (url.tls && !url.tls_connector)
            throw Error(errc::unsupported, {},
                        "TLS is not part of this program yet: include redlatch/tls.hpp, set ClientOptions::tls to "
                        "redlatch::tls(), and link OpenSSL (Debian, Ubuntu: libssl-dev; Fedora: openssl-devel; CMake: "
                        "redlatch::tls)");
        return url;
    }

    std::uint64_t place() const { return state_->sentinels ? state_->sentinels->place() : 0; }

    // Leaves its connections at once, because perhaps no thread is inside run().
    void check_for_failover(const Reply& reply, std::uint64_t place) {
        if (!state_->sentinels || !is_from_replica(reply)) return;
        state_->sentinels->doubt(place);
        state_->each_link([place = this->place()](CommandConnection& link) { link.leave_before(place); });
    }

    Completion with_failover_check(Completion done) const {
        Sentinels* const sentinels = state_->sentinels.get();
        if (!sentinels) return done;
        return [sentinels, place = place(), done = std::move(done)](Reply reply) {
            if (is_from_replica(reply)) sentinels->doubt(place);
            done(std::move(reply));
        };
    }

    // Leaves the server that is no longer the master, and notifies the listener.
    void follow(Listener& listener) {
        State& s = *state_;
        const std::uint64_t place = this->place();
        if (place <= s.followed) return;
        s.followed = place;
        s.each_link([&](CommandConnection& link) { link.leave_before(place); });
        s.subscriber.leave_before(place, listener);
        listener.on_failover();
    }

    // Calls on this line, or on a connected one if this line cannot connect.
    template <class Call>
    std::invoke_result_t<Call, CommandConnection&, bool&> on_a_line(CommandConnection& line, Instant deadline,
                                                                    Call call) {
        bool refused = false;
        auto answer = call(line, refused);
        if (!refused || Clock::now() >= deadline) return answer;
        CommandConnection* const other = state_->connected();
        return other ? call(*other, refused) : answer;
    }

    CommandConnection& line() { return state_->links[this_thread_number() % lines]; }

    std::unique_ptr<State> state_;
};

static_assert(Transport<HiredisTransport> && PostsSeveral<HiredisTransport>);

}  // namespace v0_1
}  // namespace redlatch
