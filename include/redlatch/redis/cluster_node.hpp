// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/url.hpp"
#include "redlatch/redis/command_connection.hpp"
#include "redlatch/redis/key_tracker.hpp"
#include "redlatch/redis/own_connections.hpp"
#include "redlatch/redis/pubsub_connection.hpp"
#include "redlatch/redis/slot_map.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One node of a cluster: a connection for commands, one for subscriptions and two that track keys, opened on first use.
// Commands that are sent together use a connection of their own until they are answered, because they may wait for
// replicas.
//
// The connections are thread-safe. The other fields, SlotMapNode's too, are guarded by the mutex of the ClusterTopology.
class ClusterNode : public SlotMapNode, public std::enable_shared_from_this<ClusterNode> {
public:
    // `cluster` is the URL of the cluster. `request_poll` and `tried` are called on any thread: when run() must look
    // again, and when the node was reached or could not be reached.
    ClusterNode(const HostPort& where, const Url& cluster, Milliseconds timeout, std::function<void()> request_poll,
                std::function<void(ClusterNode&, bool reached)> tried)
        : SlotMapNode(where),
          url_(cluster.at(where)),
          timeout_(timeout),
          request_poll_(std::move(request_poll)),
          tried_(std::move(tried)) {}

    // Opens any connection to the node.
    std::optional<Reply> open(Connection& connection, Instant deadline) {
        auto refusal = connection.open(url_, deadline);
        tried_(*this, !refusal || refusal->kind != Reply::Kind::not_sent);
        return refusal;
    }

    // True `together`: on a connection of their own, if one can be opened.
    std::vector<Reply> call_all(std::span<const Command> commands, bool together, Instant deadline) {
        if (!together) return shared.call_all(commands, deadline);
        bool refused = false;
        auto replies = own.with_one([&](CommandConnection& one) { return one.call_all(commands, deadline, &refused); });
        return refused && shared.is_connected() ? shared.call_all(commands, deadline) : replies;
    }

    void post_all(std::span<const Command> commands, bool together, std::span<Completion> done) {
        if (!together) return shared.post_all(commands, done);
        own.with_one([&](CommandConnection& one) { one.post_all(commands, done); });
    }

    // Returns whether a command may be sent to the node now. While the node is down, one command per probe_pause may.
    bool may_probe(Instant now) {
        if (!is_down) return true;
        if (now < next_probe) return false;
        next_probe = now + probe_pause;
        return true;
    }

    void goes_down(const Reply& why, Instant now) {
        if (!is_down) next_probe = now + probe_pause;
        down_words = why;
        is_down = true;
    }

    // Visits the connections for commands. Takes no lock.
    template <class Visit>
    void each_connection(Visit visit) {
        visit(shared);
        own.each(visit);
    }

    bool is_opening_aside() {
        bool is_opening = subscriber.is_opening_aside() || tracker.is_opening_aside();
        each_connection([&](const CommandConnection& one) { is_opening = is_opening || one.is_opening_aside(); });
        return is_opening;
    }

    // Called at the end: drops the posted commands, which keep their node alive.
    void finish() noexcept {
        subscriber.finish();
        tracker.finish();
        each_connection([](CommandConnection& one) { one.forget_posted(); });
    }

    void close_inherited() noexcept {
        each_connection([](CommandConnection& one) { one.close_inherited(); });
        subscriber.close_inherited();
        tracker.close_inherited();
    }

    // Returns the number of connections made, and how many of them replaced an earlier one.
    std::array<std::uint64_t, 2> connection_counts() {
        std::array<std::uint64_t, 2> counts{};
        each_connection([&](const CommandConnection& one) {
            counts[0] += one.connections();
            counts[1] += std::max<std::uint64_t>(one.connections(), 1) - 1;
        });
        return counts;
    }

private:
    static constexpr Milliseconds probe_pause{250};  // between commands to a node that reports that it is down

    Connector connector() {
        return [this](Connection& connection, Instant deadline) { return open(connection, deadline); };
    }

    CommandConnection make_connection() {
        return CommandConnection(url_, connector(), timeout_, request_poll_, CommandConnection::Connecting::one_attempt,
                                 nullptr, [this] { answers(); });
    }

    // Called when one of its connections has received a reply: ends the reconnect pauses of the others.
    void answers() noexcept {
        bool has_ended_pause = subscriber.try_again();
        has_ended_pause |= tracker.try_again();
        each_connection([&](CommandConnection& one) { has_ended_pause |= one.try_again(); });
        if (has_ended_pause) request_poll_();
    }

    const Url url_;
    const Milliseconds timeout_;
    const std::function<void()> request_poll_;
    const std::function<void(ClusterNode&, bool)> tried_;

public:
    CommandConnection shared = make_connection();
    OwnConnections own{[this] { return std::unique_ptr<CommandConnection>(new CommandConnection(make_connection())); }};
    PubSubConnection subscriber{connector(),           timeout_,
                                request_poll_,         PubSubConnection::Channels::of_node,
                                [this] { answers(); }, url_.ping_interval};
    KeyTracker tracker{url_, connector(), timeout_, request_poll_, [this] { answers(); }};
    std::atomic<bool> is_down{false};  // the node reports that it is down; read without the mutex, too
    Reply down_words;                  // its error reply
    Instant next_probe{};              // gets no command before this, while it is down
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
