// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/convert.hpp"
#include "redlatch/base/slots.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/redis/cluster_channels.hpp"
#include "redlatch/redis/cluster_router.hpp"
#include "redlatch/redis/cluster_topology.hpp"
#include "redlatch/redis/deployment.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A Redis Cluster. ClusterTopology knows its nodes, ClusterRouter carries the commands, ClusterChannels the
// subscriptions. The mutex of the topology is the only one. run() serves them all.
class Cluster final : public Deployment {
public:
    Cluster(const Url& url, Milliseconds timeout, PubSub pubsub)
        : topology_(url, timeout, pubsub, [this] { wake(); }), router_(topology_, timeout), channels_(topology_) {}

    // A posted command and its node keep each other alive: breaks the cycle.
    ~Cluster() override { topology_.finish(); }

    Reply call(const Command& command, Instant deadline) override {
        return std::move(router_.call_all({&command, 1}, deadline).front());
    }
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) override {
        return router_.call_all(commands, deadline);
    }
    void post(const Command& command, Completion done) override { router_.post_all({&command, 1}, {&done, 1}); }
    void post_all(std::span<const Command> commands, std::span<Completion> done) override {
        router_.post_all(commands, done);
    }

    // The poster leaves the reply to run().
    void post_attended(const Command& command, Completion done) override { post(command, std::move(done)); }
    void attend() override {}

    void subscribe(const std::string& channel) override { channels_.subscribe(channel); }
    void unsubscribe(const std::string& channel) override { channels_.unsubscribe(channel); }

    // Does one round of poll() over the connections of all nodes. A node that does not let us connect gets an eighth of
    // the time-out, while the others go on.
    void run(Listener& listener, Instant deadline) override {
        follow(listener);
        ready_.clear();
        ready_.push_back({pipe_.fd(), POLLIN, 0});
        Instant due = std::min(deadline, next_round());
        const auto watch = [&](const auto& duty) {
            due = std::min(due, duty.due);
            if (duty.fd >= 0) ready_.push_back({duty.fd, duty.events, 0});
        };
        for (const auto& node : served_) {
            watch(node->subscriber.duty());
            node->tracker.each_duty(watch);
            node->each_connection([&](CommandConnection& one) { watch(one.duty()); });
        }
        ::poll(ready_.data(), converted<nfds_t>(ready_.size()), poll_timeout(due));
        pipe_.drain();
        query_in_background();
        router_.send_delayed();
        follow(listener);
        const Instant limit = Clock::now() + topology_.patience();
        for (const auto& node : served_) {
            channels_.serve(*node, listener, limit);
            node->tracker.serve(listener, limit);
            node->each_connection([&](CommandConnection& one) {
                one.drive(limit);
                if (!one.is_connected()) one.hand_over_to(node->shared);
            });
        }
    }

    // A waiting thread leaves the messages to run(): they come from several nodes.
    bool watch(Listener&, Instant, std::uint64_t) override { return false; }

    // Tracks the key at the node that serves it. If another one does so by now, its reply says so, and nothing is tracked.
    void track(const Command& read, Completion done) override {
        ClusterTopology::NodePtr node;
        {
            const Lock lock = topology_.lock();
            ClusterTopology::Node* const owner = topology_.map(lock).owner_of(key_slot(read.words[read.key]));
            if (owner && !owner->is_down) node = owner->shared_from_this();
        }
        if (!node) return done(Reply::of(Reply::Kind::not_sent, "no node that serves the key is known"));
        node->tracker.track(read, std::move(done));
    }
    bool watch_invalidations(Listener&, Instant, std::uint64_t) override { return false; }

    // The keys of one slot may go into one command.
    std::uint32_t route(std::string_view key) const noexcept override { return key_slot(key); }
    std::string_view publish_command() override { return channels_.publish_command(); }

    void close_inherited() noexcept override { topology_.close_inherited(); }

    std::uint64_t connections() const override { return topology_.connections(); }
    std::uint64_t reconnects() const override { return topology_.reconnects(); }

private:
    using Lock = ClusterTopology::Lock;

    // A command or a channel waits for the first list of slots.
    bool needs_list(const Lock& lock) const { return router_.has_delayed(lock) || channels_.has_any(lock); }

    void query_in_background() {
        Lock lock = topology_.lock();
        const bool needed = needs_list(lock);
        topology_.query_in_background(std::move(lock), needed);
    }

    Instant next_round() const {
        const Lock lock = topology_.lock();
        const Instant due = std::min(router_.due(lock), channels_.due(lock));
        return topology_.wants_query(lock, Clock::now(), needs_list(lock)) ? std::min(due, topology_.next_query(lock))
                                                                           : due;
    }

    // Takes the changes of the cluster: places the channels, leaves nodes that serve no slots any more, and notifies the
    // listener.
    void follow(Listener& listener) {
        std::vector<std::string> interrupted;
        ClusterTopology::Map::Nodes left;
        bool has_moved = false;
        {
            const Lock lock = topology_.lock();
            auto& map = topology_.map(lock);
            has_moved = std::exchange(followed_, map.promotions()) != map.promotions();
            interrupted = channels_.place(lock);
            if (node_changes_ != map.node_changes()) left = update_nodes(lock);
        }
        for (const std::string& channel : interrupted) listener.interrupted(channel);
        for (const auto& node : left) {
            channels_.leave(*node, listener);
            node->tracker.leave(listener);
        }
        if (has_moved) listener.on_failover();
    }

    // Returns the nodes that serve no slots.
    ClusterTopology::Map::Nodes update_nodes(const Lock& lock) {
        auto& map = topology_.map(lock);
        served_.clear();
        const bool all_dropped = topology_.drop_nodes(lock);
        served_ = map.nodes();
        ClusterTopology::Map::Nodes left;
        for (const auto& node : served_)
            if (!node->serves) left.push_back(node);
        node_changes_ = all_dropped ? map.node_changes() : 0;  // 0: look again in the next round
        return left;
    }

    ClusterTopology topology_;
    ClusterRouter router_;
    ClusterChannels channels_;
    // Used by the serving thread only.
    ClusterTopology::Map::Nodes served_;
    std::vector<pollfd> ready_;
    std::uint64_t followed_ = 0;      // the promotions that the listener was last notified of
    std::uint64_t node_changes_ = 0;  // those of the slot map when served_ was updated
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
