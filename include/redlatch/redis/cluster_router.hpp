// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/slots.hpp"
#include "redlatch/redis/cluster_replies.hpp"
#include "redlatch/redis/cluster_topology.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sends each command of a Cluster to the node that serves its key, and follows redirections.
//
// A node that reports that it is down gets one command at a time, with pauses, until it carries one out. Other calls
// wait for that; other posted commands fail. Posted commands for which no node is known are delayed until the list of
// slots names one.
//
// The mutex of the topology guards the members.
class ClusterRouter {
    using Lock = ClusterTopology::Lock;
    using Node = ClusterTopology::Node;
    using NodePtr = ClusterTopology::NodePtr;

public:
    static constexpr unsigned most_redirects = 5;

    ClusterRouter(ClusterTopology& topology, Milliseconds timeout) : topology_(topology), timeout_(timeout) {}

    // Sends all commands to the node that serves the key of the first one.
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        if (commands.empty()) return {};
        RoutedCall call(commands.front());
        for (;;) {
            Reply why;
            const NodePtr node = await_node(call, deadline, why);
            if (!node) return std::vector<Reply>(commands.size(), why);
            std::vector<Reply> replies = call_at(*node, call, commands, deadline);
            switch (outcome_of(call, *node, replies.front())) {
                case Outcome::done: return replies;
                case Outcome::redirect: break;
                case Outcome::retry:
                    if (Clock::now() >= deadline) return replies;
                    await_change(call, deadline);
            }
        }
    }

    void post_all(std::span<const Command> commands, std::span<Completion> done) {
        auto batch = std::make_shared<Batch>(RoutedCall(commands.front()));
        for (const Command& command : commands) {
            batch->words.emplace_back(command.words.begin(), command.words.end());
            batch->keys.push_back(command.key);
        }
        batch->done.assign(std::make_move_iterator(done.begin()), std::make_move_iterator(done.end()));
        batch->due = Clock::now() + timeout_;
        send(batch);
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    bool has_delayed(const Lock&) const noexcept { return !delayed_.empty(); }

    // Returns when to call send_delayed().
    Instant due(const Lock& lock) const {
        if (may_send_delayed(lock)) return {};
        Instant due = never;
        for (const auto& batch : delayed_) due = std::min(due, batch->due);
        return due;
    }

    // Sends the delayed batches, and fails those that are overdue.
    void send_delayed() {
        std::vector<BatchPtr> batches;
        {
            const Lock lock = topology_.lock();
            if (Clock::now() < due(lock)) return;
            send_again_ = false;
            sent_after_ = topology_.map(lock).changes();
            batches.swap(delayed_);
        }
        for (const auto& batch : batches) {
            if (Clock::now() < batch->due)
                send(batch);
            else
                fail(*batch, why_no_node());
        }
    }

private:
    static constexpr std::array<std::string_view, 1> asking_word{"ASKING"};
    static constexpr Command asking_command{asking_word, 0};

    // Where one command goes.
    struct RoutedCall {
        explicit RoutedCall(const Command& command) {
            const std::string_view key = command.key == 0 ? command.near : command.words[command.key];
            if (command.key != 0 || !key.empty()) slot = key_slot(key);
        }

        std::optional<std::uint16_t> slot{};  // nothing: any node will do
        unsigned redirects = 0;
        std::uint64_t changes = 0;  // of the slot map, when the node was looked up
        NodePtr asking{};           // send there once, after ASKING
    };

    // Commands that were posted together.
    struct Batch {
        explicit Batch(RoutedCall routed) : call(std::move(routed)) {}

        RoutedCall call;
        std::vector<std::vector<std::string>> words;
        std::vector<std::size_t> keys;
        std::vector<Completion> done;
        std::vector<Reply> replies;
        std::atomic<std::size_t> missing{0};
        Instant due;
    };
    using BatchPtr = std::shared_ptr<Batch>;

    // What a reply means for its command.
    enum class Outcome {
        done,      // the reply is final
        redirect,  // send it to another node
        retry,     // it could not be sent
    };

    // --- calls ------------------------------------------------------------------------------------------------

    // Waits until the node is known and accepts commands, and returns it. Returns null at the deadline, with the reason
    // in `why`.
    NodePtr await_node(RoutedCall& call, Instant deadline, Reply& why) {
        Lock lock = topology_.lock();
        for (bool has_waited = false;; has_waited = true) {
            const Instant now = Clock::now();
            Node* const node = node_for(call, lock);
            if (node && node->may_probe(now)) {
                call.changes = topology_.map(lock).changes();
                return node->shared_from_this();
            }
            if (now >= deadline || (!node && has_waited && topology_.refusal(lock))) {
                why = node ? node->down_words : topology_.why_no_node(lock);
                return nullptr;
            }
            if (node)
                topology_.wait(lock, std::min(deadline, node->next_probe));
            else
                topology_.query_or_wait(lock, deadline);
        }
    }

    // Called after a command could not be sent. Returns at once if the slot map has changed since the node was looked
    // up.
    void await_change(const RoutedCall& call, Instant deadline) {
        Lock lock = topology_.lock();
        if (call.changes == topology_.map(lock).changes()) topology_.query_or_wait(lock, deadline);
    }

    static std::vector<Reply> call_at(Node& node, const RoutedCall& call, std::span<const Command> commands,
                                      Instant deadline) {
        const bool together = commands.size() > 1;
        if (!call.asking) return node.call_all(commands, together, deadline);
        std::vector<Command> asking{asking_command};
        asking.insert(asking.end(), commands.begin(), commands.end());
        std::vector<Reply> replies = node.call_all(asking, together, deadline);
        drop_asking(replies);
        return replies;
    }

    Node* node_for(const RoutedCall& call, const Lock& lock) const {
        if (call.asking) return call.asking.get();
        const auto& map = topology_.map(lock);
        return call.slot ? map.owner_of(*call.slot) : map.any_owner();
    }

    // Removes the reply to ASKING. If that is an error, the command gets it as its reply.
    static void drop_asking(std::vector<Reply>& replies) {
        if (replies[0].is_error()) replies[1] = std::move(replies[0]);
        replies.erase(replies.begin());
    }

    // --- replies ----------------------------------------------------------------------------------------------

    // Reads the reply to the command. A redirection gets another text.
    Outcome outcome_of(RoutedCall& call, Node& node, Reply& reply) {
        call.asking.reset();
        if (reply.is_unsent() || reply.kind == Reply::Kind::unanswered) topology_.doubt();
        if (reply.is_unsent()) return Outcome::retry;
        if (!reply.answered()) return Outcome::done;
        if (reply.is_error() && is_from_node_that_is_down(reply.text))
            topology_.goes_down(node, reply);
        else
            topology_.goes_up(node);
        if (!reply.is_error() || !is_redirection(reply.text)) return Outcome::done;
        const std::string said = std::move(reply.text);
        // For the caller, if this reply is final: the command was not carried out and may be retried.
        reply.text = "TRYAGAIN the nodes redirected the command; the last reply was " + said;
        if (++call.redirects > most_redirects) return Outcome::done;
        return follow(call, node, said) ? Outcome::redirect : Outcome::retry;
    }

    // Returns false if the redirection leads to an unknown node.
    bool follow(RoutedCall& call, const Node& from, std::string_view text) {
        const auto redirect = read_redirect(text, from.endpoint);
        const Lock lock = topology_.lock();
        auto& map = topology_.map(lock);
        Node* const to = redirect ? map.known_node(redirect->to) : nullptr;
        if (!to || !redirect->just_once) topology_.want_query(lock);
        if (!to) return false;
        if (redirect->just_once)
            call.asking = to->shared_from_this();
        else
            map.give_slot(redirect->slot, *to);
        return true;
    }

    // --- posted commands --------------------------------------------------------------------------------------

    void send(const BatchPtr& batch) {
        NodePtr node;
        Reply down_words;
        {
            const Lock lock = topology_.lock();
            Node* const found = node_for(batch->call, lock);
            if (!found)
                delayed_.push_back(batch);
            else if (found->may_probe(Clock::now()))
                node = found->shared_from_this();
            else
                down_words = found->down_words;
        }
        if (node) return send_to(batch, node);
        if (down_words.is_error()) return fail(*batch, down_words);
        topology_.request_poll();
    }

    void send_to(const BatchPtr& batch, const NodePtr& node) {
        std::vector<std::vector<std::string_view>> words;
        std::vector<Command> commands;
        if (batch->call.asking) commands.push_back(asking_command);
        for (const auto& one : batch->words) words.emplace_back(one.begin(), one.end());
        for (std::size_t i = 0; i < words.size(); ++i) commands.push_back({words[i], batch->keys[i]});
        std::vector<Completion> receivers;
        for (std::size_t i = 0; i < commands.size(); ++i)
            receivers.push_back([this, batch, node, i](Reply reply) {
                batch->replies[i] = std::move(reply);
                // The replies may arrive on different threads.
                if (batch->missing.fetch_sub(1) == 1) arrived(batch, *node);
            });
        batch->replies.assign(commands.size(), {});
        batch->missing = commands.size();
        node->post_all(commands, batch->words.size() > 1, receivers);
    }

    void arrived(const BatchPtr& batch, Node& node) {
        if (batch->replies.size() > batch->words.size()) drop_asking(batch->replies);
        const Outcome outcome = outcome_of(batch->call, node, batch->replies.front());
        if (outcome == Outcome::done || Clock::now() >= batch->due) return finish(*batch);
        try {
            if (outcome == Outcome::redirect) return send(batch);
            const Lock lock = topology_.lock();
            delayed_.push_back(batch);
            send_again_ = true;
        } catch (...) {  // no memory
            return fail(*batch, Reply::of(Reply::Kind::not_sent, "out of memory"));
        }
        topology_.request_poll();
    }

    bool may_send_delayed(const Lock& lock) const {
        return !delayed_.empty() && (send_again_ || sent_after_ != topology_.map(lock).changes());
    }

    Reply why_no_node() const {
        const Lock lock = topology_.lock();
        return topology_.why_no_node(lock);
    }

    static void fail(Batch& batch, const Reply& reply) {
        batch.replies.assign(batch.words.size(), reply);
        finish(batch);
    }

    static void finish(Batch& batch) {
        for (std::size_t i = 0; i < batch.done.size(); ++i) batch.done[i](std::move(batch.replies[i]));
    }

    ClusterTopology& topology_;
    const Milliseconds timeout_;
    std::vector<BatchPtr> delayed_;
    bool send_again_ = false;       // some of them could not be sent
    std::uint64_t sent_after_ = 0;  // the changes of the slot map when they were last sent
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
