// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/slots.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/net/wake_pipe.hpp"
#include "redlatch/redis/cluster_replies.hpp"
#include "redlatch/redis/command_connection.hpp"
#include "redlatch/redis/own_connections.hpp"
#include "redlatch/redis/pubsub_connection.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {
inline namespace v0_1 {

// Connects to the nodes of a Redis Cluster for a redis-cluster:// URL. Sends each command to the node that serves its
// key, follows redirections, and keeps each sharded subscription at the node that serves its channel. HiredisTransport
// forwards to it; the functions mean what they mean there.
//
// Each node has one connection for commands and one for subscriptions, opened on first use. Commands that are sent
// together use a connection of their own until they are answered, because they may wait for replicas. We log in at the
// hosts of the URL and at those that such a node lists in CLUSTER SLOTS, and nowhere else. A redirection to another
// host makes us query that list again.
//
// The slot table is queried at the start, and again when a node redirects us, cannot be reached or does not answer.
// There is one query at a time, with growing pauses. The thread that needs the reply sends it, or the one inside run().
// A node that reports that it is down gets one command per probe_pause until it carries one out. All other commands
// wait for that.
//
// mutex_ guards the members, except those of the serving thread, and the fields of the nodes. The connections are
// thread-safe. While mutex_ is held, no connection is used and no listener is notified. The exception: channels are
// passed to the PubSubConnections. changed_ wakes threads that wait for a node: there is a reply to a query, or a node
// is up again.
class Cluster {
    struct Node;

public:
    static constexpr unsigned most_redirects = 5;

    // `wake` is called, on any thread, when run() must look again.
    Cluster(const Url& url, Milliseconds timeout, PubSub pubsub, std::function<void()> wake)
        : url_(url),
          timeout_(timeout),
          doubt_lasts_(std::min<Milliseconds>(timeout, std::chrono::seconds(10)) + std::chrono::seconds(2)),
          patience_(std::max<Milliseconds>(timeout / 8, Milliseconds(20))),
          wake_(std::move(wake)),
          classic_([this](Connection& link, Instant deadline) { return open_any(link, deadline); }, timeout, wake_) {
        if (pubsub != PubSub::automatic) sharded_ = pubsub == PubSub::sharded;
        for (const HostPort& place : url.cluster) node_at(place).is_seed = true;
    }

    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    // A posted command and its node keep each other alive: break the cycle.
    ~Cluster() {
        classic_.finish();
        for (const auto& node : nodes_) {
            node->subscriber.finish();
            node->each_line([](CommandConnection& line) { line.forget_posted(); });
        }
    }

    // --- commands ---------------------------------------------------------------------------------------------

    Reply call(const Command& command, Instant deadline) {
        return std::move(call_all({&command, 1}, deadline).front());
    }

    // Sends all commands to the node that serves the key of the first one.
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        if (commands.empty()) return {};
        RoutedCall course(commands.front());
        for (;;) {
            Reply why;
            const std::shared_ptr<Node> node = await_node(course, deadline, why);
            if (!node) return std::vector<Reply>(commands.size(), why);
            std::vector<Reply> replies;
            if (course.asking) {
                std::vector<Command> asking{asking_command};
                asking.insert(asking.end(), commands.begin(), commands.end());
                replies = node->call_all(asking, commands.size() > 1, deadline);
                forget_asking(replies);
            } else {
                replies = node->call_all(commands, commands.size() > 1, deadline);
            }
            switch (read(course, *node, replies.front())) {
                case Next::done: return replies;
                case Next::again: break;
                case Next::later:
                    if (Clock::now() >= deadline) return replies;
                    await_news(course, deadline);
            }
        }
    }

    void post(const Command& command, Completion done) { post_all({&command, 1}, {&done, 1}); }

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

    // --- subscriptions ----------------------------------------------------------------------------------------

    // The node that serves the channel, and whether channels are sharded, may be unknown here: run() subscribes later.
    void subscribe(const std::string& channel) {
        {
            const std::lock_guard lock(mutex_);
            Channel& entry = channels_[channel];
            entry.slot = key_slot(channel);
            entry.is_classic = sharded_ == false;
            if (entry.is_classic) classic_.subscribe(channel);
            // A repeated subscribe(): the server has refused the channel for the moment.
            if (entry.at) entry.at->subscriber.subscribe(channel);
            unplaced_ = true;
        }
        wake_();
    }

    void unsubscribe(const std::string& channel) {
        {
            const std::lock_guard lock(mutex_);
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            if (entry->second.at) entry->second.at->subscriber.unsubscribe(channel);
            if (entry->second.is_classic) classic_.unsubscribe(channel);
            channels_.erase(entry);
        }
        wake_();
    }

    // Returns the command that scripts publish with. While that is unknown, queries the nodes for at most patience_,
    // then returns PUBLISH.
    std::string_view publish_command() {
        std::unique_lock lock(mutex_);
        const Instant deadline = Clock::now() + patience_;
        while (!sharded_ && Clock::now() < deadline) {
            if (const auto node = begin_question(Clock::now()))
                ask(lock, node, deadline);
            else
                changed_.wait_until(lock, std::min(deadline, next_question()));
        }
        return sharded_.value_or(false) ? "SPUBLISH" : "PUBLISH";
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    // Does one round of poll() over the connections of all nodes. A node that does not let us connect gets an eighth of
    // the time-out, while the others go on.
    void run(Listener& listener, Instant deadline, WakePipe& pipe) {
        follow(listener);
        ready_.clear();
        ready_.push_back({pipe.fd(), POLLIN, 0});
        Instant due = std::min(deadline, duty());
        const auto watch = [&](const auto& duty) {
            due = std::min(due, duty.due);
            if (duty.fd >= 0) ready_.push_back({duty.fd, duty.events, 0});
        };
        watch(classic_.duty());
        for (const auto& node : here_) {
            watch(node->subscriber.duty());
            node->each_line([&](CommandConnection& line) { watch(line.watch()); });
        }
        ::poll(ready_.data(), static_cast<nfds_t>(ready_.size()), poll_timeout(due));
        pipe.drain();
        ask_in_background();
        send_parked();
        follow(listener);
        const Instant limit = Clock::now() + patience_;
        classic_.serve(listener, limit);
        for (const auto& node : here_) {
            Shard shard(*this, *node, listener);
            node->subscriber.serve(shard, limit);
            node->each_line([&](CommandConnection& line) {
                line.drive(limit);
                if (&line != &node->line && !line.is_connected()) line.hand_over_to(node->line);
            });
        }
    }

    // ----------------------------------------------------------------------------------------------------------

    void close_inherited() noexcept {
        classic_.close_inherited();
        for (const auto& node : nodes_) {
            node->each_line([](CommandConnection& line) { line.close_inherited(); });
            node->subscriber.close_inherited();
        }
    }

    std::uint64_t connections() const { return sum(0); }
    std::uint64_t reconnects() const { return sum(1); }

private:
    static constexpr Milliseconds probe_pause{250};  // between commands to a node that reports that it is down
    static constexpr std::array<std::string_view, 1> asking_word{"ASKING"};
    static constexpr Command asking_command{asking_word, 0};

    struct Node : std::enable_shared_from_this<Node> {
        Node(Cluster& cluster, const HostPort& where)
            : place(where),
              line(new_line(cluster)),
              own_lines([this, &cluster] {
                  return std::unique_ptr<CommandConnection>(new CommandConnection(new_line(cluster)));
              }),
              subscriber(
                  opener(cluster), cluster.timeout_, [&cluster] { cluster.wake_(); }, true,
                  [this, &cluster] { answers(cluster); }) {}

        Opener opener(Cluster& cluster) {
            return [this, &cluster](Connection& link, Instant deadline) {
                auto refusal = link.open(cluster.url_.at(place), deadline);
                cluster.tried(*this, !refusal || refusal->kind != Reply::Kind::not_sent);
                return refusal;
            };
        }

        CommandConnection new_line(Cluster& cluster) {
            return CommandConnection(
                cluster.url_.at(place), opener(cluster), cluster.timeout_, [&cluster] { cluster.wake_(); },
                CommandConnection::Connecting::one_attempt, nullptr, [this, &cluster] { answers(cluster); });
        }

        // Called when one of its connections has received a reply: ends the reconnect pauses of the others.
        void answers(Cluster& cluster) noexcept {
            bool has_ended_pause = subscriber.try_again();
            each_line([&](CommandConnection& one) { has_ended_pause |= one.try_again(); });
            if (has_ended_pause) cluster.wake_();
        }

        template <class Visit>
        void each_line(Visit visit) {
            visit(line);
            own_lines.each(visit);
        }

        // True `together`: on a connection of their own, if one can be opened.
        std::vector<Reply> call_all(std::span<const Command> commands, bool together, Instant deadline) {
            if (!together) return line.call_all(commands, deadline);
            bool refused = false;
            auto replies =
                own_lines.with_one([&](CommandConnection& own) { return own.call_all(commands, deadline, &refused); });
            return refused && line.is_connected() ? line.call_all(commands, deadline) : replies;
        }

        const HostPort place;
        CommandConnection line;
        OwnConnections own_lines;
        PubSubConnection subscriber;       // to sharded channels
        bool is_seed = false;              // named in the URL
        bool is_listed = false;            // in the last CLUSTER SLOTS reply
        bool serves = false;               // serves slots, by the last CLUSTER SLOTS reply
        bool is_silent = false;            // could not be reached last time
        std::uint64_t asked = 0;           // number of the last query to it
        std::atomic<bool> is_down{false};  // the node reports that it is down
        Reply down_words;                  // its error reply
        Instant next_probe{};              // gets no command before this, while it is down
    };

    // The routing state of one command.
    struct RoutedCall {
        explicit RoutedCall(const Command& command) {
            const std::string_view key = command.key == 0 ? command.near : command.words[command.key];
            if (command.key != 0 || !key.empty()) slot = key_slot(key);
        }

        int slot = -1;  // -1: any node will do
        unsigned redirects = 0;
        std::uint64_t changes = 0;       // value of changes_ when its node was looked up
        std::shared_ptr<Node> asking{};  // send there once, after ASKING
    };

    // Commands that were posted together.
    struct Batch {
        explicit Batch(RoutedCall way) : course(std::move(way)) {}

        RoutedCall course;
        std::vector<std::vector<std::string>> words;
        std::vector<std::size_t> keys;
        std::vector<Completion> done;
        std::vector<Reply> replies;
        std::atomic<std::size_t> missing{0};
        Instant due;
    };

    struct Channel {
        std::uint16_t slot = 0;
        Node* at = nullptr;  // the node that it is subscribed at, if sharded
        bool is_classic = false;
    };

    // Sits between a node's subscriptions and the listener: subscribes elsewhere if the node refuses a channel that it
    // does not serve.
    struct Shard final : Listener {
        Shard(Cluster& c, Node& n, Listener& l) : cluster(c), node(n), listener(l) {}

        void subscribed(const std::string& channel) override {
            cluster.is_up(node);
            listener.subscribed(channel);
        }
        void refused(const std::string& channel, const Reply& why) override {
            if (!cluster.find_elsewhere(node, channel, why)) listener.refused(channel, why);
        }
        void message(const std::string& channel, std::string_view payload) override {
            listener.message(channel, payload);
        }
        void disconnected() override { listener.disconnected(); }
        void interrupted(const std::string& channel) override {
            cluster.misplaced(node, channel);
            listener.interrupted(channel);
        }

        Cluster& cluster;
        Node& node;
        Listener& listener;
    };

    // --- where a command goes ---------------------------------------------------------------------------------

    Node& node_at(const HostPort& place) {
        for (const auto& node : nodes_)
            if (node->place == place) return *node;
        nodes_.push_back(std::make_shared<Node>(*this, place));
        changed_nodes_ = true;
        return *nodes_.back();
    }

    Node* known_node(const HostPort& place) const {
        for (const auto& node : nodes_)
            if (node->place == place && (node->is_seed || node->is_listed)) return node.get();
        return nullptr;
    }

    Node* node_for(const RoutedCall& course) const {
        if (course.asking) return course.asking.get();
        if (owners_.empty()) return nullptr;
        if (course.slot >= 0) return owners_[static_cast<std::size_t>(course.slot)];
        Node* some = nullptr;
        for (const auto& node : nodes_)
            if (node->serves && (!some || some->is_silent)) some = node.get();
        return some;
    }

    // Returns whether a command may be sent to the node now. While the node is down, one command per probe_pause may.
    static bool takes_turn(Node& node, Instant now) {
        if (!node.is_down) return true;
        if (now < node.next_probe) return false;
        node.next_probe = now + probe_pause;
        return true;
    }

    // Waits until the node is known and accepts commands, and returns it. Returns null at the deadline, with the reason
    // in `why`.
    std::shared_ptr<Node> await_node(RoutedCall& course, Instant deadline, Reply& why) {
        std::unique_lock lock(mutex_);
        for (bool has_waited = false;; has_waited = true) {
            const Instant now = Clock::now();
            Instant until = deadline;
            if (Node* node = node_for(course)) {
                if (takes_turn(*node, now)) {
                    course.changes = changes_;
                    return node->shared_from_this();
                }
                if (now >= deadline) {
                    why = node->down_words;
                    return nullptr;
                }
                until = std::min(until, node->next_probe);
            } else {
                if ((has_waited && refusal_) || now >= deadline) {
                    why = refusal_ ? *refusal_ : not_found();
                    return nullptr;
                }
                if (const auto asked = begin_question(now)) {
                    ask(lock, asked, deadline);
                    continue;
                }
                until = std::min(until, next_question());
            }
            wait_on(changed_, lock, until);
        }
    }

    // Called after a command could not be sent. Returns at once if the slot table has changed since the node was looked
    // up. Otherwise queries it, or waits for another thread's query.
    void await_news(const RoutedCall& course, Instant deadline) {
        std::unique_lock lock(mutex_);
        if (course.changes != changes_) return;
        if (const auto asked = begin_question(Clock::now()))
            ask(lock, asked, deadline);
        else
            wait_on(changed_, lock, std::min(deadline, next_question()));
    }

    Reply not_found() const {
        return Reply::of(Reply::Kind::not_sent, owners_.empty()
                                                    ? "cannot find the nodes of " + url_.display() + ": " + why_
                                                    : "no node of " + url_.display() + " serves the slot of this key");
    }

    // --- the meaning of a reply -------------------------------------------------------------------------------

    enum class Next {
        done,   // the reply is final
        again,  // send it to another node
        later,  // it could not be sent
    };

    // Classifies the reply to a command of this course. A redirection gets another text.
    Next read(RoutedCall& course, Node& node, Reply& reply) {
        course.asking.reset();
        if (reply.is_unsent()) {
            doubt();
            return Next::later;
        }
        if (reply.kind == Reply::Kind::unanswered) doubt();
        if (!reply.answered()) return Next::done;
        if (!reply.is_error()) {
            is_up(node);
            return Next::done;
        }
        if (is_redirection(reply.text)) {
            is_up(node);
            const std::string said = std::move(reply.text);
            // For the caller, if this reply is final: the command was not carried out and may be retried.
            reply.text = "TRYAGAIN sent from node to node; the last one said " + said;
            if (++course.redirects > most_redirects) return Next::done;
            return follow_redirect(course, node, said) ? Next::again : Next::later;
        }
        if (is_from_node_that_is_down(reply.text))
            is_down(node, reply);
        else
            is_up(node);
        return Next::done;
    }

    // Returns false if the redirection leads to an unknown node.
    bool follow_redirect(RoutedCall& course, const Node& from, std::string_view text) {
        const auto redirect = read_redirect(text, from.place);
        const std::lock_guard lock(mutex_);
        Node* const to = redirect ? known_node(redirect->to) : nullptr;
        if (!to || !redirect->just_once) want_question();
        if (!to) return false;
        if (redirect->just_once)
            course.asking = to->shared_from_this();
        else
            give_slot(redirect->slot, *to);
        return true;
    }

    void give_slot(std::uint16_t slot, Node& to) {
        if (owners_.empty() || owners_[slot] == &to) return;
        owners_[slot] = &to;
        ++changes_;
        unplaced_ = true;
    }

    void is_up(Node& node) {
        if (!node.is_down.load(std::memory_order_relaxed)) return;
        const std::lock_guard lock(mutex_);
        node.is_down = false;
        unplaced_ = true;
        changed_.notify_all();
        wake_();
    }

    void is_down(Node& node, const Reply& words) {
        const std::lock_guard lock(mutex_);
        if (!node.is_down) node.next_probe = Clock::now() + probe_pause;
        node.down_words = words;
        node.is_down = true;
        doubt_until_ = Clock::now() + doubt_lasts_;
    }

    // A server may have failed and another taken over: queries the slot table until doubt_until_.
    void doubt() {
        const std::lock_guard lock(mutex_);
        const Instant now = Clock::now();
        const bool is_new = now >= doubt_until_;
        doubt_until_ = now + doubt_lasts_;
        if (is_new) wake_();
    }

    void tried(Node& node, bool reached) {
        {
            const std::lock_guard lock(mutex_);
            node.is_silent = !reached;
        }
        if (!reached) doubt();
    }

    // --- posted commands --------------------------------------------------------------------------------------

    void send(const std::shared_ptr<Batch>& batch) {
        std::shared_ptr<Node> node;
        Reply refusal;
        {
            const std::lock_guard lock(mutex_);
            if (Node* const found = node_for(batch->course)) {
                if (takes_turn(*found, Clock::now()))
                    node = found->shared_from_this();
                else
                    refusal = found->down_words;
            } else {
                parked_.push_back(batch);
            }
        }
        if (node) return send_to(batch, node);
        if (refusal.is_error()) return finish(*batch, refusal);
        wake_();
    }

    void send_to(const std::shared_ptr<Batch>& batch, const std::shared_ptr<Node>& node) {
        std::vector<std::vector<std::string_view>> words;
        std::vector<Command> commands;
        if (batch->course.asking) commands.push_back(asking_command);
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
        if (batch->words.size() == 1) return node->line.post_all(commands, receivers);
        node->own_lines.with_one([&](CommandConnection& own) { own.post_all(commands, receivers); });
    }

    void arrived(const std::shared_ptr<Batch>& batch, Node& node) {
        if (batch->replies.size() > batch->words.size()) forget_asking(batch->replies);
        const Next next = read(batch->course, node, batch->replies.front());
        if (next == Next::done || Clock::now() >= batch->due) return finish(*batch);
        try {
            if (next == Next::again) return send(batch);
            const std::lock_guard lock(mutex_);
            parked_.push_back(batch);
            send_parked_ = true;
        } catch (...) {  // no memory
            return finish(*batch, Reply::of(Reply::Kind::not_sent, "out of memory"));
        }
        wake_();
    }

    // Removes the reply to ASKING. If that is an error, the command gets it as its reply.
    static void forget_asking(std::vector<Reply>& replies) {
        if (replies[0].is_error()) replies[1] = std::move(replies[0]);
        replies.erase(replies.begin());
    }

    static void finish(Batch& batch, const Reply& reply) {
        batch.replies.assign(batch.words.size(), reply);
        finish(batch);
    }

    static void finish(Batch& batch) {
        for (std::size_t i = 0; i < batch.done.size(); ++i) batch.done[i](std::move(batch.replies[i]));
    }

    // Sends the batches for which no node was known, and fails those that are overdue.
    void send_parked() {
        std::vector<std::shared_ptr<Batch>> waiting;
        {
            const std::lock_guard lock(mutex_);
            if (!send_parked_ && Clock::now() < parked_due()) return;
            send_parked_ = false;
            waiting.swap(parked_);
        }
        for (const auto& batch : waiting) {
            if (Clock::now() < batch->due) {
                send(batch);
                continue;
            }
            Reply why;
            {
                const std::lock_guard lock(mutex_);
                why = refusal_ ? *refusal_ : not_found();
            }
            finish(*batch, why);
        }
    }

    Instant parked_due() const {
        Instant due = never;
        for (const auto& batch : parked_) due = std::min(due, batch->due);
        return due;
    }

    // --- the slot table ---------------------------------------------------------------------------------------

    void want_question() {
        question_wanted_ = true;
        wake_();
    }

    bool has_question(Instant now) const {
        return question_wanted_ || now < doubt_until_ ||
               ((owners_.empty() || !sharded_) && !(parked_.empty() && channels_.empty()));
    }

    Instant next_question() const { return asked_ ? std::max(next_question_, asked_until_) : next_question_; }

    // Starts a query if one is due. Returns the node to query: preferably not silent, then serving slots, then queried
    // longest ago.
    std::shared_ptr<Node> begin_question(Instant now) {
        if (now < next_question()) return nullptr;
        if (asked_) asked_->is_silent = true;
        const auto rank = [](const Node& node) { return std::tuple(node.is_silent, !node.serves, node.asked); };
        const auto first = std::min_element(nodes_.begin(), nodes_.end(),
                                            [&](const auto& a, const auto& b) { return rank(*a) < rank(*b); });
        if (now > next_question_ + quiet) pace_.reset();
        next_question_ = now + pace_.next();
        asked_until_ = now + patience_;
        refusal_.reset();
        asked_ = *first;
        asked_->asked = ++questions_;
        return asked_;
    }

    // Includes PUBSUB SHARDNUMSUB until its reply is known.
    std::span<const Command> question() const {
        static constexpr std::array<std::string_view, 2> slots{"CLUSTER", "SLOTS"}, kinds{"PUBSUB", "SHARDNUMSUB"};
        static constexpr std::array<Command, 2> both{Command{slots, 0}, Command{kinds, 0}};
        return std::span(both).first(sharded_ ? 1 : 2);
    }

    void ask(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Node>& node, Instant deadline) {
        const std::uint64_t number = node->asked;
        const auto words = question();
        lock.unlock();
        learn(number, node, node->line.call_all(words, std::min(deadline, Clock::now() + patience_)));
        lock.lock();
    }

    void ask_in_background() {
        std::shared_ptr<Node> node;
        std::span<const Command> words;
        {
            const std::lock_guard lock(mutex_);
            const Instant now = Clock::now();
            if (has_question(now)) node = begin_question(now);
            if (!node) return;
            words = question();
        }
        struct Answers {
            std::vector<Reply> replies;
            std::size_t missing;
        };
        const auto answers = std::make_shared<Answers>(Answers{std::vector<Reply>(words.size()), words.size()});
        std::vector<Completion> receivers;
        // Both use one connection: their replies arrive one after the other.
        for (std::size_t i = 0; i < words.size(); ++i)
            receivers.push_back([this, node, answers, number = node->asked, i](Reply reply) {
                answers->replies[i] = std::move(reply);
                if (--answers->missing == 0) learn(number, node, std::move(answers->replies));
            });
        node->line.post_all(words, receivers);
    }

    void learn(std::uint64_t number, const std::shared_ptr<Node>& node, std::vector<Reply> replies) {
        std::vector<std::shared_ptr<Node>> left;
        {
            const std::lock_guard lock(mutex_);
            if (asked_ == node && node->asked == number) asked_.reset();
            if (number > learned_) learn_from(number, *node, replies, left);
            changed_.notify_all();
        }
        for (const auto& one : left) one->each_line([](CommandConnection& line) { line.turn_away(); });
        wake_();
    }

    void learn_from(std::uint64_t number, Node& node, std::span<const Reply> replies,
                    std::vector<std::shared_ptr<Node>>& left) {
        const Reply& slots = replies.front();
        const auto ranges = read_slots(slots, node.place);
        if (!ranges) {
            node.is_silent = true;
            why_ = slots.text.empty() ? node.place.display() + " knows no slots" : slots.text;
            // Keep only an error that every node would return.
            if (slots.is_error() && owners_.empty() && !is_from_node_that_is_down(slots.text)) refusal_ = slots;
            return;
        }
        std::vector<Node*> owners(slot_count, nullptr);
        std::set<const Node*> masters, listed;
        for (const SlotRange& range : *ranges) {
            Node& master = node_at(range.master);
            std::fill(owners.begin() + range.first, owners.begin() + range.last + 1, &master);
            masters.insert(&master);
            listed.insert(&master);
            for (const HostPort& replica : range.replicas) listed.insert(&node_at(replica));
        }
        left.reserve(nodes_.size());

        // Nothing fails from here on.
        bool promoted = false;
        for (const auto& one : nodes_) {
            const bool serves = masters.contains(one.get());
            if (one->serves && !serves) left.push_back(one);
            promoted = promoted || (serves && !one->serves);
            one->serves = serves;
            one->is_listed = listed.contains(one.get());
        }
        // Slots that move from master to master lose no data: count only promotions.
        if (promoted && !owners_.empty()) ++promotions_;
        learned_ = number;
        question_wanted_ = false;
        node.is_silent = false;
        if (replies.size() > 1 && !sharded_ && replies[1].answered()) sharded_ = has_sharded_channels(replies[1]);
        if (owners == owners_) return;
        owners_ = std::move(owners);
        ++changes_;
        unplaced_ = changed_nodes_ = send_parked_ = true;
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    Instant duty() {
        const std::lock_guard lock(mutex_);
        const Instant now = Clock::now();
        if ((unplaced_ && sharded_ && !owners_.empty()) || send_parked_) return now;
        Instant due = std::min(parked_due(), place_again_);
        if (has_question(now)) due = std::min(due, next_question());
        return due;
    }

    // Subscribes every channel where its slot is served now, leaves nodes that serve no slots any more, and notifies
    // the listener.
    void follow(Listener& listener) {
        std::vector<std::string> interrupted;
        std::vector<std::shared_ptr<Node>> left;
        bool has_moved = false;
        {
            const std::lock_guard lock(mutex_);
            has_moved = std::exchange(followed_, promotions_) != promotions_;
            if ((unplaced_ || Clock::now() >= place_again_) && sharded_ && !owners_.empty())
                place_channels(interrupted);
            if (std::exchange(changed_nodes_, false)) {
                here_.clear();
                drop_nodes();
                here_ = nodes_;
                for (const auto& node : nodes_)
                    if (!node->serves) left.push_back(node);
            }
        }
        for (const std::string& channel : interrupted) listener.interrupted(channel);
        for (const auto& node : left) {
            Shard shard(*this, *node, listener);
            node->subscriber.leave_before(std::numeric_limits<std::uint64_t>::max(), shard);
        }
        if (has_moved) listener.on_failover();
    }

    void place_channels(std::vector<std::string>& interrupted) {
        unplaced_ = false;
        place_again_ = never;
        wake_();  // the next round sends the changes made here
        const Instant now = Clock::now();
        for (auto& [name, channel] : channels_) {
            if (!*sharded_) {
                if (!std::exchange(channel.is_classic, true)) classic_.subscribe(name);
                continue;
            }
            Node* const owner = owners_[channel.slot];
            if (channel.at == owner) continue;
            if (channel.at) {
                channel.at->subscriber.forget(name);
                channel.at = nullptr;
                interrupted.push_back(name);
            }
            if (!owner) continue;
            if (takes_turn(*owner, now)) {
                owner->subscriber.subscribe(name);
                channel.at = owner;
            } else {
                place_again_ = std::min(place_again_, owner->next_probe);
            }
        }
    }

    // Drops the nodes that have left the cluster, unless something of theirs is still in use.
    void drop_nodes() {
        std::erase_if(nodes_, [this](const std::shared_ptr<Node>& node) {
            if (node->is_seed || node->is_listed || node.use_count() > 1) return false;
            bool is_opening = node->subscriber.is_opening_aside();
            node->each_line([&](const CommandConnection& line) { is_opening = is_opening || line.is_opening_aside(); });
            if (is_opening) {
                changed_nodes_ = true;  // check again in a later round
                return false;
            }
            const auto counts = counts_of(*node);
            dropped_connections_[0] += counts[0];
            dropped_connections_[1] += counts[1];
            return true;
        });
    }

    // Returns true if the channel will be subscribed at another node, or at this one later.
    bool find_elsewhere(Node& node, const std::string& channel, const Reply& why) {
        const auto redirect = read_redirect(why.text, node.place);
        if (is_from_node_that_is_down(why.text))
            is_down(node, why);
        else if (redirect)
            is_up(node);
        else
            return false;
        misplaced(node, channel);
        node.subscriber.forget(channel);
        const std::lock_guard lock(mutex_);
        if (!redirect) return true;
        want_question();
        if (Node* const to = known_node(redirect->to)) give_slot(redirect->slot, *to);
        return true;
    }

    void misplaced(Node& node, const std::string& channel) {
        const std::lock_guard lock(mutex_);
        const auto entry = channels_.find(channel);
        if (entry == channels_.end() || entry->second.at != &node) return;
        entry->second.at = nullptr;
        unplaced_ = true;
    }

    // Opens a connection for classic channels: any node will do.
    std::optional<Reply> open_any(Connection& link, Instant deadline) {
        std::shared_ptr<Node> node;
        {
            const std::lock_guard lock(mutex_);
            const auto rank = [](const Node& n) { return std::tuple(n.is_silent, !n.serves); };
            node = *std::min_element(nodes_.begin(), nodes_.end(),
                                     [&](const auto& a, const auto& b) { return rank(*a) < rank(*b); });
        }
        auto refusal = link.open(url_.at(node->place), deadline);
        tried(*node, !refusal || refusal->kind != Reply::Kind::not_sent);
        return refusal;
    }

    // ----------------------------------------------------------------------------------------------------------

    // Returns the number of connections made, and how many of them replaced an earlier one.
    static std::array<std::uint64_t, 2> counts_of(Node& node) {
        std::array<std::uint64_t, 2> counts{};
        node.each_line([&](const CommandConnection& line) {
            counts[0] += line.connections();
            counts[1] += std::max<std::uint64_t>(line.connections(), 1) - 1;
        });
        return counts;
    }

    std::uint64_t sum(std::size_t which) const {
        const std::lock_guard lock(mutex_);
        std::uint64_t sum = dropped_connections_[which];
        for (const auto& node : nodes_) sum += counts_of(*node)[which];
        return sum;
    }

    static constexpr Milliseconds quiet{1000};

    const Url url_;
    const Milliseconds timeout_;
    // How long the slot table is in doubt after a node could not be reached or did not answer. Longer than the time
    // after which the next command to it is given up, so the doubt lasts as long as the node is silent.
    const Milliseconds doubt_lasts_;
    const Milliseconds patience_;  // time for one node, where others could answer too
    const std::function<void()> wake_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::shared_ptr<Node>> nodes_;
    std::vector<Node*> owners_;    // by slot; empty before the first reply
    std::optional<bool> sharded_;  // True if channels are sharded; unknown at first
    std::uint64_t changes_ = 0;    // number of changes of owners_
    std::uint64_t promotions_ = 0;
    std::array<std::uint64_t, 2> dropped_connections_{};

    std::uint64_t questions_ = 0;
    std::uint64_t learned_ = 0;  // number of the last query with a usable reply
    std::shared_ptr<Node> asked_;
    Instant asked_until_{};
    Instant next_question_{};
    Instant doubt_until_{};
    bool question_wanted_ = false;
    Backoff pace_{Milliseconds(50), Milliseconds(400)};
    std::string why_ = "none of them answers";  // why the last query failed
    std::optional<Reply> refusal_;

    std::vector<std::shared_ptr<Batch>> parked_;
    bool send_parked_ = false;
    std::map<std::string, Channel> channels_;
    bool unplaced_ = false;        // True if some channel may have to move
    Instant place_again_ = never;  // likewise, when a node that was down is probed
    bool changed_nodes_ = false;

    PubSubConnection classic_;
    // Used by the serving thread only.
    std::vector<std::shared_ptr<Node>> here_;
    std::vector<pollfd> ready_;
    std::uint64_t followed_ = 0;
};

}  // namespace v0_1
}  // namespace redlatch
