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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The subscriptions of a Cluster. A channel is subscribed at the node that serves its slot, on the connection of that
// node. Messages to a classic channel reach every node, but only there can the script that publishes count who listens, and
// a lock is granted to nobody else.
//
// The mutex of the topology guards the members.
class ClusterChannels {
    using Lock = ClusterTopology::Lock;
    using Node = ClusterTopology::Node;

public:
    explicit ClusterChannels(ClusterTopology& topology) : topology_(topology) {}

    // The node that serves the channel, and whether channels are sharded, may be unknown here: run() subscribes later.
    void subscribe(const std::string& channel) {
        {
            const Lock lock = topology_.lock();
            Channel& entry = channels_[channel];
            entry.slot = key_slot(channel);
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
            channels_.erase(entry);
        }
        topology_.request_poll();
    }

    // Returns the command that scripts publish with. While that is unknown, queries the nodes for a short time, then
    // returns the one in lower case: see Routes.
    std::string_view publish_command() {
        Lock lock = topology_.lock();
        const Instant deadline = Clock::now() + topology_.patience();
        while (!topology_.sharded(lock) && Clock::now() < deadline) topology_.query_or_wait(lock, deadline);
        const std::optional<bool> sharded = topology_.sharded(lock);
        return !sharded ? "publish" : *sharded ? "SPUBLISH" : "Publish";
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
        for (auto& [name, channel] : channels_) place(lock, name, channel, now, interrupted);
        return interrupted;
    }

    void serve(ClusterNode& node, Listener& listener, Instant limit) {
        NodeListener of_node(*this, node, listener);
        node.subscriber.serve(of_node, limit);
    }

    // Called for a node that serves no slots any more.
    void leave(ClusterNode& node, Listener& listener) {
        NodeListener of_node(*this, node, listener);
        node.subscriber.leave_before(std::numeric_limits<std::uint64_t>::max(), of_node);
    }

private:
    struct Channel {
        std::uint16_t slot = 0;
        Node* at = nullptr;  // the node that it is subscribed at
    };

    // Sits between a node's subscriptions and the listener: subscribes elsewhere if the node refuses a channel that it
    // does not serve.
    struct NodeListener final : Listener {
        NodeListener(ClusterChannels& c, Node& n, Listener& l) : channels(c), node(n), listener(l) {}

        void subscribed(const std::string& channel) override {
            // A node that is down takes classic channels, too.
            if (node.subscriber.is_sharded()) channels.topology_.goes_up(node);
            if (channels.is_at(node, channel)) listener.subscribed(channel);
        }
        void refused(const std::string& channel, const Reply& why) override {
            if (!channels.find_elsewhere(node, channel, why)) listener.refused(channel, why);
        }
        void message(const std::string& channel, std::string_view payload) override {
            // A node that the channel has left may send one until it has read that. The other node may have sent it, too.
            if (channels.is_at(node, channel)) listener.message(channel, payload);
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

    void place(const Lock& lock, const std::string& name, Channel& channel, Instant now,
               std::vector<std::string>& interrupted) {
        const bool sharded = *topology_.sharded(lock);
        Node* const owner = topology_.map(lock).owner_of(channel.slot);
        if (channel.at == owner) return;
        if (channel.at) {
            // The server has dropped a sharded channel by itself.
            if (sharded)
                channel.at->subscriber.forget(name);
            else
                channel.at->subscriber.unsubscribe(name);
            channel.at = nullptr;
            interrupted.push_back(name);
        }
        if (!owner) return;
        if (!sharded || owner->may_probe(now)) {
            if (!sharded) owner->subscriber.use_classic();
            owner->subscriber.subscribe(name);
            channel.at = owner;
        } else {
            place_again_ = std::min(place_again_, owner->next_probe);
        }
    }

    bool is_at(const Node& node, const std::string& channel) const {
        const Lock lock = topology_.lock();
        const auto entry = channels_.find(channel);
        return entry != channels_.end() && entry->second.at == &node;
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
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
