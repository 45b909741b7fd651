// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/session/call_words.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/counters.hpp"
#include "redlatch/session/events.hpp"
#include "redlatch/session/posts_in_flight.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/session/replica_acks.hpp"
#include "redlatch/session/retry.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"
#include "redlatch/transport/transport_port.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the reply to a command for which memory was short. For a thread, after a moment in which there may be more; a
// task that is a coroutine rests by itself.
inline Reply short_of_memory(WaitBy by = by_thread) {
    if (by == by_thread) std::this_thread::sleep_for(Milliseconds(1));
    return Reply::of(Reply::Kind::not_sent, no_memory);
}

// Selects the thread that receives the reply to a posted command: the background thread or the posting one. The posting
// thread then calls attend(), and stop_attending() unless everything is answered.
enum class Receiver { background, poster };

// Sends and counts the commands of a session; Retry counts the resends. call() waits for the reply, post() does not. Any
// thread may call anything.
//
// The transport is destroyed before the executor, because the completions of posted commands refer to the executor. After
// end(), wake() and subscribe() do nothing, because destructors call them even later.
class Executor {
public:
    Executor(TransportPort& transport, const ClientOptions& options, Counters& counters, Events& events)
        : transport_(transport), options_(options), counters_(counters), events_(events), replicas_(options) {}
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    TransportPort& transport() noexcept { return transport_; }
    RemoteClock& clock() noexcept { return clock_; }
    ReplicaAcks& replicas() noexcept { return replicas_; }

    // Waits up to command_timeout, but at most longest_farewell, for the replies to posted commands, most likely the
    // release of an unwanted hold. Then ends the background thread's loop.
    void end() {
        posts_.wait_for_all(std::min(options_.command_timeout, longest_farewell));
        ended_ = true;
        transport_.wake();
    }

    bool has_ended() const noexcept { return ended_.load(std::memory_order_acquire); }

    // --- waiting for the reply --------------------------------------------------------------------------------

    Reply call(const Command& command, Instant deadline) {
        counters_.commands.add();
        return transport_.call(command, deadline);
    }

    // Sends a call and waits for the reply. A script is called by its digest, or by its text if the server does not
    // have it cached. One round trip; two for a script that is new to the server. A call for which memory was short
    // counts as not sent.
    Reply call(const Call& call, Instant deadline) try {
        const Replication replicas = replicas_.wanted_for(call);
        CallWords words(call, publish_command_for(call));
        for (bool by_text = false;; by_text = true) {
            const Command command = by_text ? words.by_text() : words.command();
            counters_.commands.add();
            Reply reply =
                replicas.asks() ? call_confirmed(command, replicas, deadline) : transport_.call(command, deadline);
            if (by_text || !call.script() || classify(reply) != ReplyClass::no_script) return reply;
        }
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    // Decides whether a call is sent again: see Retry.
    Retry retry(Retry::Limits limits) {
        if (limits.command_timeout == Milliseconds(0)) limits.command_timeout = options_.command_timeout;
        return Retry(std::move(limits), clock_, events_, counters_);
    }

    // --- without waiting: needs a thread in run() of the transport ----------------------------------------------

    // Sends a command without waiting. `done` is called on any thread.
    void post(const Command& command, Completion done, Receiver receiver, const Replication& replicas = {}) {
        send_post(
            command, [this, done = std::move(done)](Reply reply) { finish_post(done, std::move(reply)); }, receiver,
            replicas);
    }

    void post(const Call& call, Completion done, Receiver receiver = Receiver::background) {
        const CallWords words(call, publish_command_for(call));
        const Replication replicas = replicas_.wanted_for(call);
        if (!call.script()) return post(words.command(), std::move(done), receiver, replicas);
        // The texts live on the caller's stack, so sending the script itself later needs its own copy of them.
        send_post(
            words.command(),
            [this, &script = *call.script(), replicas, kept = words.copy(), done = std::move(done)](Reply reply) {
                if (classify(reply) != ReplyClass::no_script) return finish_post(done, std::move(reply));
                try {
                    const std::string text = script.text();
                    std::vector<std::string_view> again{"EVAL", text};
                    const std::vector<std::string_view> rest = kept.words();
                    again.insert(again.end(), rest.begin(), rest.end());
                    post(Command{again, 3}, done, Receiver::background, replicas);
                } catch (...) {
                    return finish_post(done, Reply::of(Reply::Kind::not_sent, detail::no_memory));
                }
                posts_.finish();
            },
            receiver, replicas);
    }

    // See Tracks.
    void track(const Command& read, Completion done) {
        transport_.track(read, [this, done = std::move(done)](Reply reply) {
            if (reply.answered()) counters_.commands.add(3);  // with those that switch it on
            done(std::move(reply));
        });
    }

    // Makes the posting thread receive the replies that have arrived.
    void attend() { transport_.attend(); }

    void stop_attending() { transport_.stop_attending(); }

    // --- the background thread's ------------------------------------------------------------------------------

    // Destructors of states call both, some of them while or after the transport is destroyed.
    void wake() {
        if (!ended_) transport_.wake();
    }

    void subscribe(const std::string& channel, bool wanted) {
        if (ended_) return;
        if (wanted) {
            counters_.commands.add();
            transport_.subscribe(channel);
        } else {
            transport_.unsubscribe(channel);
        }
    }

private:
    static constexpr Milliseconds longest_farewell{1000};

    // Sends a command. The reply tells whether replicas or disks have confirmed what it grants.
    Reply call_confirmed(const Command& command, const Replication& replicas, Instant deadline) {
        const std::uint32_t route = route_of(command);
        if (replicas_.are_unknown(replicas, route)) {
            const std::array<std::string_view, 1> role{"ROLE"};
            replicas_.learn(route, call({role, 0, command.words[command.key]}, deadline));
        }
        const ReplicaAcks::Batch batch(replicas_, replicas, command, route);
        counters_.commands.add(batch.commands().size() - 1);
        std::vector<Reply> replies = transport_.call_all(batch.commands(), deadline);
        return replicas_.merged(replies, route, batch.wanted, batch.on_disk);
    }

    void post_granting(const Command& command, const Replication& replicas, Completion done) {
        const ReplicaAcks::Batch batch(replicas_, replicas, command, route_of(command));
        std::vector<Completion> receivers = replicas_.merging(batch, std::move(done));
        counters_.commands.add(batch.commands().size() - 1);
        transport_.post_all(batch.commands(), receivers);
    }

    void pass_on(Receiver receiver, const Command& command, Completion done) {
        if (receiver == Receiver::poster) return transport_.post_attended(command, std::move(done));
        transport_.post(command, std::move(done));
    }

    // `finish` calls finish_post(), or posts_.finish() itself.
    void send_post(const Command& command, Completion finish, Receiver receiver, const Replication& replicas) {
        counters_.commands.add();
        posts_.begin();
        try {
            if (replicas.asks())
                post_granting(command, replicas, std::move(finish));
            else
                pass_on(receiver, command, std::move(finish));
        } catch (...) {
            posts_.finish();
            throw;
        }
    }

    void finish_post(const Completion& done, Reply reply) {
        try {
            done(std::move(reply));
        } catch (...) {  // no memory; the poster takes care of that itself
        }
        posts_.finish();
    }

    // A command that grants something always has a key.
    std::uint32_t route_of(const Command& command) { return transport_.route(command.words[command.key]); }

    // On a cluster this may have to ask a server first, so only calls that publish do.
    std::string_view publish_command_for(const Call& call) {
        return call.publishes() ? transport_.publish_command() : std::string_view();
    }

    TransportPort& transport_;
    const ClientOptions& options_;
    Counters& counters_;
    Events& events_;
    RemoteClock clock_;
    ReplicaAcks replicas_;
    std::atomic<bool> ended_{false};
    PostsInFlight posts_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
