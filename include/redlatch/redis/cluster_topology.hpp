// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/redis/cluster_node.hpp"
#include "redlatch/redis/cluster_replies.hpp"
#include "redlatch/redis/slot_map.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What all parts of a Cluster share: its nodes, and the list of slots, which it queries.
//
// We log in at the hosts of the URL and at those that such a node lists in CLUSTER SLOTS, and nowhere else. The list is
// queried at the start, and again when a node redirects us, cannot be reached or does not answer. There is one query at
// a time, with growing pauses. The thread that needs the reply sends it, or the one inside run().
//
// All parts share one mutex. It guards the members here, the fields of the nodes, and the members of ClusterRouter and
// ClusterChannels. A function with a parameter of type Lock is called with the mutex held; the others take it. While it is
// held, no connection is used and no listener is notified. The exception: channels are passed to the PubSubConnections.
// changed_ wakes threads in wait(): learn() notifies it when a query has a reply, goes_up() when a node is up again.
class ClusterTopology {
public:
    using Lock = std::unique_lock<std::mutex>;
    using Node = ClusterNode;
    using NodePtr = std::shared_ptr<ClusterNode>;
    using Map = SlotMap<ClusterNode>;

    // `request_poll` is called, on any thread, when run() must look again.
    ClusterTopology(const Url& url, Milliseconds timeout, PubSub pubsub, std::function<void()> request_poll)
        : url_(url),
          timeout_(timeout),
          doubt_lasts_(std::min<Milliseconds>(timeout, std::chrono::seconds(10)) + std::chrono::seconds(2)),
          patience_(std::max<Milliseconds>(timeout / 8, Milliseconds(20))),
          request_poll_(std::move(request_poll)) {
        if (pubsub != PubSub::automatic) sharded_ = pubsub == PubSub::sharded;
        for (const HostPort& endpoint : url.cluster) map_.add_seed(endpoint);
    }

    Lock lock() const { return Lock(mutex_); }

    Map& map(const Lock&) noexcept { return map_; }

    // Time for one node, where others could answer too.
    Milliseconds patience() const noexcept { return patience_; }

    void request_poll() const { request_poll_(); }

    // Returns whether channels are sharded, once that is known.
    std::optional<bool> sharded(const Lock&) const noexcept { return sharded_; }

    // Grows when a channel may have to be subscribed elsewhere: a slot has another owner, or a node is up again.
    std::uint64_t placement(const Lock&) const noexcept { return map_.changes() + recoveries_; }

    void wait(Lock& lock, Instant until) { wait_on(changed_, lock, until); }

    // --- queries ----------------------------------------------------------------------------------------------

    // Called by a thread that cannot go on without a new list. Queries it if that is due, otherwise waits for news.
    void query_or_wait(Lock& lock, Instant deadline) {
        const NodePtr node = begin_query(lock, Clock::now());
        if (!node) return wait(lock, std::min(deadline, next_query(lock)));
        const std::uint64_t number = node->queried;
        const auto words = query_words();
        lock.unlock();
        learn(number, node, node->shared.call_all(words, std::min(deadline, Clock::now() + patience_)));
        lock.lock();
    }

    // Queries if that is due, and leaves the reply to run(). True `needed`: a command or a channel waits for the first
    // list.
    void query_in_background(Lock lock, bool needed) {
        const Instant now = Clock::now();
        const NodePtr node = wants_query(lock, now, needed) ? begin_query(lock, now) : nullptr;
        if (!node) return;
        const std::uint64_t number = node->queried;
        const auto words = query_words();
        lock.unlock();
        struct Answers {
            std::vector<Reply> replies;
            std::size_t missing;
        };
        const auto answers = std::make_shared<Answers>(Answers{std::vector<Reply>(words.size()), words.size()});
        std::vector<Completion> receivers;
        // Both use one connection: their replies arrive one after the other.
        for (std::size_t i = 0; i < words.size(); ++i)
            receivers.push_back([this, node, answers, number, i](Reply reply) {
                answers->replies[i] = std::move(reply);
                if (--answers->missing == 0) learn(number, node, std::move(answers->replies));
            });
        node->shared.post_all(words, receivers);
    }

    bool wants_query(const Lock&, Instant now, bool needed) const {
        return query_wanted_ || now < doubt_until_ || ((map_.is_empty() || !sharded_) && needed);
    }

    Instant next_query(const Lock&) const { return querying_ ? std::max(next_query_, querying_until_) : next_query_; }

    void want_query(const Lock&) {
        query_wanted_ = true;
        request_poll_();
    }

    // Why there is no node for a command: the error that every node returns, if there is one.
    const std::optional<Reply>& refusal(const Lock&) const noexcept { return refusal_; }
    Reply why_no_node(const Lock&) const {
        if (refusal_) return *refusal_;
        return Reply::of(Reply::Kind::not_sent, map_.is_empty()
                                                    ? "cannot find the nodes of " + url_.display() + ": " + why_
                                                    : "no node of " + url_.display() + " serves the slot of this key");
    }

    // --- the health of nodes ----------------------------------------------------------------------------------

    // A server may have failed and another taken over: queries the list of slots until doubt_until_.
    void doubt() {
        const Lock held = lock();
        const Instant now = Clock::now();
        const bool is_new = now >= doubt_until_;
        doubt_until_ = now + doubt_lasts_;
        if (is_new) request_poll_();
    }

    // Called when a node carries out commands.
    void goes_up(Node& node) {
        if (!node.is_down.load(std::memory_order_relaxed)) return;
        const Lock held = lock();
        node.is_down = false;
        ++recoveries_;
        changed_.notify_all();
        request_poll_();
    }

    // Called when a node reports that it is down. It gets one command at a time until it carries one out.
    void goes_down(Node& node, const Reply& words) {
        const Lock held = lock();
        const Instant now = Clock::now();
        node.goes_down(words, now);
        doubt_until_ = now + doubt_lasts_;
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    // Drops the nodes that have left the cluster. Returns false if one of them is still connecting: try again later.
    bool drop_nodes(const Lock&) {
        bool is_opening = false;
        map_.drop_nodes([&](const NodePtr& node) {
            if (node.use_count() > 1) return false;
            if (node->is_opening_aside()) return !(is_opening = true);
            const auto counts = node->connection_counts();
            dropped_connections_[0] += counts[0];
            dropped_connections_[1] += counts[1];
            return true;
        });
        return !is_opening;
    }

    // ----------------------------------------------------------------------------------------------------------

    // Called at the end.
    void finish() noexcept {
        for (const auto& node : map_.nodes()) node->finish();
    }

    void close_inherited() noexcept {
        for (const auto& node : map_.nodes()) node->close_inherited();
    }

    std::uint64_t connections() const { return sum(0); }
    std::uint64_t reconnects() const { return sum(1); }

private:
    static constexpr Milliseconds quiet{1000};

    void tried(Node& node, bool reached) {
        {
            const Lock held = lock();
            node.is_silent = !reached;
        }
        if (!reached) doubt();
    }

    // Starts a query if one is due, and returns the node to query.
    NodePtr begin_query(const Lock& lock, Instant now) {
        if (now < next_query(lock)) return nullptr;
        if (querying_) querying_->is_silent = true;
        const NodePtr node = map_.node_to_query();
        if (now > next_query_ + quiet) pace_.reset();
        next_query_ = now + pace_.next();
        querying_until_ = now + patience_;
        refusal_.reset();
        querying_ = node;
        node->queried = ++queries_;
        return node;
    }

    // Includes PUBSUB SHARDNUMSUB until its reply is known.
    std::span<const Command> query_words() const {
        static constexpr std::array<std::string_view, 2> slots{"CLUSTER", "SLOTS"}, kinds{"PUBSUB", "SHARDNUMSUB"};
        static constexpr std::array<Command, 2> both{Command{slots, 0}, Command{kinds, 0}};
        return std::span(both).first(sharded_ ? 1 : 2);
    }

    // Takes the replies to a query. Nodes that serve no slots any more get no more commands.
    void learn(std::uint64_t number, const NodePtr& node, std::vector<Reply> replies) {
        Map::Nodes left;
        {
            const Lock held = lock();
            if (querying_ == node && node->queried == number) querying_.reset();
            if (number > learned_) left = learn_from(number, *node, replies);
            changed_.notify_all();
        }
        for (const auto& one : left) one->each_connection([](CommandConnection& each) { each.turn_away(); });
        request_poll_();
    }

    Map::Nodes learn_from(std::uint64_t number, Node& node, std::span<const Reply> replies) {
        const Reply& slots = replies.front();
        const auto ranges = read_slots(slots, node.endpoint);
        if (!ranges) {
            node.is_silent = true;
            why_ = slots.text.empty() ? node.endpoint.display() + " reports no slots" : slots.text;
            // Keep only an error that every node would return.
            if (slots.is_error() && map_.is_empty() && !is_from_node_that_is_down(slots.text)) refusal_ = slots;
            return {};
        }
        Map::Nodes left = map_.learn(*ranges);
        learned_ = number;
        query_wanted_ = false;
        node.is_silent = false;
        if (replies.size() > 1 && !sharded_ && replies[1].answered()) sharded_ = has_sharded_channels(replies[1]);
        return left;
    }

    std::uint64_t sum(std::size_t which) const {
        const Lock held = lock();
        std::uint64_t sum = dropped_connections_[which];
        for (const auto& node : map_.nodes()) sum += node->connection_counts()[which];
        return sum;
    }

    const Url url_;
    const Milliseconds timeout_;
    // How long the list of slots is in doubt after a node could not be reached or did not answer. Longer than the time
    // after which the next command to it is given up, so the doubt lasts as long as the node is silent.
    const Milliseconds doubt_lasts_;
    const Milliseconds patience_;
    const std::function<void()> request_poll_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    Map map_{[this](const HostPort& endpoint) {
        return std::make_shared<Node>(endpoint, url_, timeout_, request_poll_,
                                      [this](Node& node, bool reached) { tried(node, reached); });
    }};
    std::optional<bool> sharded_;  // True if channels are sharded; unknown at first
    std::uint64_t recoveries_ = 0;
    std::array<std::uint64_t, 2> dropped_connections_{};

    std::uint64_t queries_ = 0;
    std::uint64_t learned_ = 0;  // number of the last query with a usable reply
    NodePtr querying_;
    Instant querying_until_{};
    Instant next_query_{};
    Instant doubt_until_{};
    bool query_wanted_ = false;
    Backoff pace_{Milliseconds(50), Milliseconds(400)};
    std::string why_ = "none of the nodes in the URL replies";  // why the last query failed
    std::optional<Reply> refusal_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
