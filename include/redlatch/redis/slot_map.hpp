// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/slots.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/redis/cluster_replies.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

// Which node of a cluster serves which slot. No I/O.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What a SlotMap knows of a node.
struct SlotMapNode {
    explicit SlotMapNode(const HostPort& where) : endpoint(where) {}

    const HostPort endpoint;
    bool is_seed = false;       // named in the URL
    bool is_listed = false;     // in the last list of slots
    bool serves = false;        // serves slots, by that list
    bool is_silent = false;     // could not be reached last time
    std::uint64_t queried = 0;  // number of the last query to it
};

// Learns which node serves which slot from the replies to CLUSTER SLOTS and from redirections. Node derives from
// SlotMapNode; its owner adds the connections.
//
// Not thread-safe, with one exception. In a forked child nodes() needs no lock, because a change replaces the whole list
// in one store. So the child finds a complete list, even if a thread of its parent was changing it at the fork.
template <class Node>
class SlotMap {
public:
    using Nodes = std::vector<std::shared_ptr<Node>>;

    explicit SlotMap(std::function<std::shared_ptr<Node>(const HostPort&)> make) : make_(std::move(make)) {}
    SlotMap(const SlotMap&) = delete;
    SlotMap& operator=(const SlotMap&) = delete;
    ~SlotMap() { delete nodes_.load(); }

    // --- nodes ------------------------------------------------------------------------------------------------

    const Nodes& nodes() const noexcept { return *nodes_.load(std::memory_order_acquire); }

    void add_seed(const HostPort& endpoint) { node_at(endpoint).is_seed = true; }

    // Returns the node if the URL or the last list of slots names it, otherwise null.
    Node* known_node(const HostPort& endpoint) const {
        Node* const node = find(endpoint);
        return node && (node->is_seed || node->is_listed) ? node : nullptr;
    }

    // Returns the node that most probably answers: preferably not silent, then serving slots, then the one queried longest
    // ago.
    std::shared_ptr<Node> node_to_query() const {
        return first_by([](const Node& node) { return std::tuple(node.is_silent, !node.serves, node.queried); });
    }

    // Drops the nodes that have left the cluster, if `may_drop` agrees.
    template <class MayDrop>
    void drop_nodes(MayDrop may_drop) {
        auto kept = std::make_unique<Nodes>();
        kept->reserve(nodes().size());
        for (const auto& node : nodes())
            if (node->is_seed || node->is_listed || !may_drop(node)) kept->push_back(node);
        if (kept->size() < nodes().size()) replace(std::move(kept));
    }

    // --- slots ------------------------------------------------------------------------------------------------

    // Returns true until the first list of slots.
    bool is_empty() const noexcept { return owners_.empty(); }

    // Returns the node that serves the slot, or null.
    Node* owner_of(std::uint16_t slot) const { return is_empty() ? nullptr : owners_[slot]; }

    // Returns a node that serves any slots, preferably one that is not silent, or null.
    Node* any_owner() const {
        Node* some = nullptr;
        for (const auto& node : nodes())
            if (node->serves && (!some || some->is_silent)) some = node.get();
        return some;
    }

    // Takes a list of slots. Returns the nodes that serve none any more.
    Nodes learn(std::span<const SlotRange> ranges) {
        std::vector<Node*> owners(slot_count, nullptr);
        std::set<const Node*> masters, listed;
        for (const SlotRange& range : ranges) {
            Node& master = node_at(range.master);
            std::fill(owners.begin() + range.first, owners.begin() + range.last + 1, &master);
            masters.insert(&master);
            listed.insert(&master);
            for (const HostPort& replica : range.replicas) listed.insert(&node_at(replica));
        }
        Nodes left;
        left.reserve(nodes().size());

        // Nothing fails from here on.
        bool promoted = false;
        for (const auto& node : nodes()) {
            const bool serves = masters.contains(node.get());
            if (node->serves && !serves) left.push_back(node);
            promoted = promoted || (serves && !node->serves);
            node->serves = serves;
            node->is_listed = listed.contains(node.get());
        }
        // Slots that move from master to master lose no data: count only promotions.
        if (promoted && !is_empty()) ++promotions_;
        if (owners != owners_) {
            owners_ = std::move(owners);
            ++changes_;
            ++node_changes_;
        }
        return left;
    }

    // A permanent redirection gives the slot to the node. Before the first list there is nothing to give.
    void give_slot(std::uint16_t slot, Node& to) {
        if (is_empty() || owners_[slot] == &to) return;
        owners_[slot] = &to;
        ++changes_;
    }

    // --- what has changed -------------------------------------------------------------------------------------

    // Grows when a slot has another owner.
    std::uint64_t changes() const noexcept { return changes_; }
    // Grows when a node that served no slots serves some. It may lack recent writes.
    std::uint64_t promotions() const noexcept { return promotions_; }
    // Grows when there are more nodes, or a list of slots has changed owners.
    std::uint64_t node_changes() const noexcept { return node_changes_; }

private:
    Node* find(const HostPort& endpoint) const {
        for (const auto& node : nodes())
            if (node->endpoint == endpoint) return node.get();
        return nullptr;
    }

    Node& node_at(const HostPort& endpoint) {
        if (Node* const node = find(endpoint)) return *node;
        auto more = std::make_unique<Nodes>(nodes());
        more->push_back(make_(endpoint));
        Node& added = *more->back();
        replace(std::move(more));
        ++node_changes_;
        return added;
    }

    // The earlier list ends, and perhaps nodes with it, after the new one is in place.
    void replace(std::unique_ptr<Nodes> nodes) noexcept {
        const std::unique_ptr<const Nodes> earlier(nodes_.exchange(nodes.release(), std::memory_order_acq_rel));
    }

    template <class Rank>
    std::shared_ptr<Node> first_by(Rank rank) const {
        return *std::min_element(nodes().begin(), nodes().end(),
                                 [&](const auto& a, const auto& b) { return rank(*a) < rank(*b); });
    }

    const std::function<std::shared_ptr<Node>(const HostPort&)> make_;
    std::atomic<const Nodes*> nodes_{new Nodes};
    std::vector<Node*> owners_;  // by slot; empty before the first list
    std::uint64_t changes_ = 0;
    std::uint64_t promotions_ = 0;
    std::uint64_t node_changes_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
