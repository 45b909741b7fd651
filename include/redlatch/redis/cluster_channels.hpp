// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/slots.hpp"
#include "redlatch/redis/cluster_replies.hpp"
#include "redlatch/redis/cluster_topology.hpp"
#include "redlatch/redis/pubsub_connection.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The subscriptions of a Cluster. A sharded channel is subscribed at the node that serves its slot, on the connection of
// that node. All classic channels are on one connection to any node.
//
// The mutex of the topology guards the members, except the connection, which is thread-safe.
class ClusterChannels {
    using Lock = ClusterTopology::Lock;
    using Node = ClusterTopology::Node;

public:
    ClusterChannels(ClusterTopology& topology, Milliseconds timeout, Milliseconds ping_interval)
        : topology_(topology),
          classic_(
              [this](Connection& connection, Instant deadline) { return topology_.open_any(connection, deadline); },
              timeout, [this] { topology_.request_poll(); }, PubSubConnection::Channels::classic, nullptr,
              ping_interval) {}

    // The node that serves the channel, and whether channels are sharded, may be unknown here: run() subscribes later.
    void subscribe(const std::string& channel) {
        {
            const Lock lock = topology_.lock();
            Channel& entry = channels_[channel];
            entry.slot = key_slot(channel);
            entry.is_classic = topology_.sharded(lock) == false;
            if (entry.is_classic) classic_.subscribe(channel);
            // A repeated subscribe(): the server has refused the channel for the moment.
            if (entry.at) entry.at->subscriber.subscribe(channel);
            unplaced_ = true;
        }
        topology_.request_poll();
    }

    void unsubscribe(const std::string& channel) {
        {
            const Lock lock = topology_.lock();
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            if (entry->second.at) entry->second.at->subscriber.unsubscribe(channel);
            if (entry->second.is_classic) classic_.unsubscribe(channel);
            channels_.erase(entry);
        }
        topology_.request_poll();
    }

    // Returns the command that scripts publish with, in lower case for channels of all nodes: see Routes. While that is unknown, queries the nodes for a short time, then
    // returns that, too.
    std::string_view publish_command() {
        Lock lock = topology_.lock();
        const Instant deadline = Clock::now() + topology_.patience();
        while (!topology_.sharded(lock) && Clock::now() < deadline) topology_.query_or_wait(lock, deadline);
        return topology_.sharded(lock).value_or(false) ? "SPUBLISH" : "publish";
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    bool has_any(const Lock&) const noexcept { return !channels_.empty(); }

    // Returns when to call place().
    Instant due(const Lock& lock) const { return needs_place(lock) && may_place(lock) ? Instant{} : place_again_; }

    // Subscribes every channel where its slot is served now. Returns the channels that were interrupted.
    std::vector<std::string> place(const Lock& lock) {
        std::vector<std::string> interrupted;
        const Instant now = Clock::now();
        if (!may_place(lock) || (!needs_place(lock) && now < place_again_)) return interrupted;
        unplaced_ = false;
        placed_after_ = topology_.placement(lock);
        place_again_ = never;
        topology_.request_poll();  // the next round sends the changes made here
        for (auto& [name, channel] : channels_) {
            if (*topology_.sharded(lock))
                place_sharded(lock, name, channel, now, interrupted);
            else if (!std::exchange(channel.is_classic, true))
                classic_.subscribe(name);
        }
        return interrupted;
    }

    PubSubConnection& classic() noexcept { return classic_; }

    void serve(ClusterNode& node, Listener& listener, Instant limit) {
        ShardListener shard(*this, node, listener);
        node.subscriber.serve(shard, limit);
    }

    // Called for a node that serves no slots any more.
    void leave(ClusterNode& node, Listener& listener) {
        ShardListener shard(*this, node, listener);
        node.subscriber.leave_before(std::numeric_limits<std::uint64_t>::max(), shard);
    }

private:
    struct Channel {
        std::uint16_t slot = 0;
        Node* at = nullptr;  // the node that it is subscribed at, if sharded
        bool is_classic = false;
    };

    // Sits between a node's subscriptions and the listener: subscribes elsewhere if the node refuses a channel that it
    // does not serve.
    struct ShardListener final : Listener {
        ShardListener(ClusterChannels& c, Node& n, Listener& l) : channels(c), node(n), listener(l) {}

        void subscribed(const std::string& channel) override {
            channels.topology_.goes_up(node);
            listener.subscribed(channel);
        }
        void refused(const std::string& channel, const Reply& why) override {
            if (!channels.find_elsewhere(node, channel, why)) listener.refused(channel, why);
        }
        void message(const std::string& channel, std::string_view payload) override {
            listener.message(channel, payload);
        }
        void disconnected() override { listener.disconnected(); }
        void interrupted(const std::string& channel) override {
            channels.displace(node, channel);
            listener.interrupted(channel);
        }

        ClusterChannels& channels;
        Node& node;
        Listener& listener;
    };

    bool needs_place(const Lock& lock) const { return unplaced_ || placed_after_ != topology_.placement(lock); }
    bool may_place(const Lock& lock) const { return topology_.sharded(lock) && !topology_.map(lock).is_empty(); }

    void place_sharded(const Lock& lock, const std::string& name, Channel& channel, Instant now,
                       std::vector<std::string>& interrupted) {
        Node* const owner = topology_.map(lock).owner_of(channel.slot);
        if (channel.at == owner) return;
        if (channel.at) {
            channel.at->subscriber.forget(name);
            channel.at = nullptr;
            interrupted.push_back(name);
        }
        if (!owner) return;
        if (owner->may_probe(now)) {
            owner->subscriber.subscribe(name);
            channel.at = owner;
        } else {
            place_again_ = std::min(place_again_, owner->next_probe);
        }
    }

    // Returns true if the channel will be subscribed at another node, or at this one later.
    bool find_elsewhere(Node& node, const std::string& channel, const Reply& why) {
        const auto redirect = read_redirect(why.text, node.endpoint);
        if (is_from_node_that_is_down(why.text))
            topology_.goes_down(node, why);
        else if (redirect)
            topology_.goes_up(node);
        else
            return false;
        displace(node, channel);
        node.subscriber.forget(channel);
        if (!redirect) return true;
        const Lock lock = topology_.lock();
        topology_.want_query(lock);
        auto& map = topology_.map(lock);
        if (Node* const to = map.known_node(redirect->to)) map.give_slot(redirect->slot, *to);
        return true;
    }

    // Called when the channel is not subscribed at the node any more.
    void displace(Node& node, const std::string& channel) {
        const Lock lock = topology_.lock();
        const auto entry = channels_.find(channel);
        if (entry == channels_.end() || entry->second.at != &node) return;
        entry->second.at = nullptr;
        unplaced_ = true;
    }

    ClusterTopology& topology_;
    std::map<std::string, Channel> channels_;
    bool unplaced_ = false;           // some channel may have to be subscribed
    std::uint64_t placed_after_ = 0;  // the placement() at which they were last placed
    Instant place_again_ = never;     // when a node that was down is probed
    PubSubConnection classic_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
