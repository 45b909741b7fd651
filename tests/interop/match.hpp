// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "remote.hpp"
#include "support/raw_redis.hpp"
#include "support/wait.hpp"

namespace redlatch::test {

using std::chrono::milliseconds;

/// The keys, channels and messages of a lock, in the form of a KeyspaceSnapshot.
struct Protocol {
    std::string held = {};
    std::string held_twice = {};
    std::string waited_for = {};  // the keys while another waits; empty: as held
    std::string channels = {};    // the channels with listeners then
    std::string released = {};    // the messages of the last release
};

/// The title in terms of Redisson, and the special properties. A holder uses the kind `hold`, a waiter `want`.
struct Pairing {
    std::string title;
    std::string hold;
    std::string want;
    bool polls = false;  // its waiters do not subscribe, but ask again and again
    Protocol wire = {};
};

/// One thread of one agent, and the primitive that it uses.
class Actor {
public:
    Actor(Remote& remote, std::string thread, std::string kind, std::string name)
        : remote_(&remote), thread_(std::move(thread)), kind_(std::move(kind)), name_(std::move(name)) {}

    Pending start(const std::string& operation, const std::string& arguments = "") const {
        return remote_->send(thread_, operation + " " + kind_ + " " + name_ + settings_ + " " + arguments);
    }
    std::string ask(const std::string& operation, const std::string& arguments = "") const {
        return start(operation, arguments).get().text;
    }
    long long number(const std::string& operation, const std::string& arguments = "") const {
        const std::string text = ask(operation, arguments);
        if (text.empty() || text.find_first_not_of("-0123456789") != std::string::npos)
            throw Difference(remote_->language() + " " + operation + ": " + text + " is no number");
        return std::stoll(text);
    }
    /// Runs the operation. Throws a Difference if the answer is another.
    Answer must(const std::string& operation, const std::string& wanted, const std::string& arguments = "") const {
        return start(operation, arguments).get(wanted);
    }
    bool is_java() const { return remote_->is_java(); }

    /// Returns the same thread with another primitive on this name, or on another.
    Actor as(std::string kind) const { return as(std::move(kind), name_); }
    Actor as(std::string kind, std::string name) const {
        Actor other = *this;
        other.kind_ = std::move(kind);
        other.name_ = std::move(name);
        return other;
    }

    /// From now on a client of redlatch behind it has no grants, so it does all on the wire as Redisson does. Redisson ignores
    /// this.
    void do_without_grants() { settings_ = " grants=0"; }

private:
    Remote* remote_;
    std::string thread_;
    std::string kind_;
    std::string name_;
    std::string settings_;
};

/// The place of a cell: one server, or the node of a cluster that has the keys of its name, and all nodes.
struct Place {
    std::string url;                 // of the server that has the keys
    std::vector<std::string> nodes;  // the nodes on which listeners may be
    bool sharded = false;            // listeners and messages use sharded channels
};

/// Returns the channels that have listeners, on any node. `own` are sharded channels with one listener of ours, which
/// does not count.
inline std::vector<std::string> listened_to(const Place& place, const std::string& pattern,
                                            const std::vector<std::string>& own = {}) {
    std::set<std::string> all;
    for (const std::string& node : place.nodes) {
        RawRedis redis{node};
        for (std::string& channel : redis.pubsub_channels(pattern)) all.insert(std::move(channel));
        if (!place.sharded) continue;
        for (std::string& channel : redis.list("PUBSUB", "SHARDCHANNELS", pattern)) {
            const bool ours = node == place.url && std::find(own.begin(), own.end(), channel) != own.end();
            if (ours && redis.call("PUBSUB", "SHARDNUMSUB", channel).elements.at(1).integer < 2) continue;
            all.insert(std::move(channel));
        }
    }
    return {all.begin(), all.end()};
}

/// One cell of the table: one language holds, one waits. No other cell uses the name or the threads, so operations that
/// a failed cell leaves behind disturb no other.
struct Match {
    Match(Remote& holding, Remote& waiting, const Pairing& what, Place where, std::string unique)
        : pairing(what),
          name(std::move(unique)),
          holder(holding, name + ".holder", what.hold, name),
          waiter(waiting, name + ".waiter", what.want, name),
          other(waiting, name + ".other", what.want, name),
          place(std::move(where)),
          redis(place.url) {}

    /// Returns all channels about this name to which an agent listens.
    std::vector<std::string> channels() const { return listened_to(place, "*" + name + "*", own_channels); }

    void do_without_grants() {
        for (Actor* actor : {&holder, &waiter, &other}) actor->do_without_grants();
    }

    void publish(const std::string& channel, const std::string& message) {
        redis.integer(place.sharded ? "SPUBLISH" : "PUBLISH", channel, message);
    }

    const Pairing& pairing;
    std::string name;
    Actor holder;
    Actor waiter;
    Actor other;  // a second thread of the waiter's agent
    Place place;
    RawRedis redis;
    std::vector<std::string> own_channels;  // the sharded channels to which a KeyspaceSnapshot listens
    std::optional<Pending> pending;         // the operation that continues between the two halves of a case
};

/// Waits until the waiter sleeps and listens for messages about this name, so that only a release can wake it.
inline void until_listening(Match& match) {
    // A waiter that listens asks once more before it sleeps, and that moment is not visible from outside. A release
    // before that is noticed without a message. And a reader of Redisson that listens, but does not sleep yet, misses
    // the message.
    milliseconds until_asleep{50};
    if (match.pairing.want.starts_with("read") && match.waiter.is_java()) until_asleep = milliseconds{150};
    if (!match.pairing.polls && !eventually([&] { return !match.channels().empty(); }))
        throw Difference("the waiter does not listen");
    std::this_thread::sleep_for(until_asleep);
}

inline milliseconds between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
    return std::chrono::duration_cast<milliseconds>(to - from);
}

/// Throws a Difference if the wait ends within this time.
inline void still_waiting(const Pending& waiting, milliseconds time) {
    if (eventually([&] { return waiting.done(); }, time)) throw Difference("the waiter is in too early");
}

/// Returns the time within which a waiter must wake. A polling waiter sleeps up to 128 ms.
inline milliseconds wake_limit(const Match& match) { return milliseconds{match.pairing.polls ? 300 : 100}; }

/// Repeats the round up to six times, until the wake-up is quick enough: a missing message is missing every time, but a
/// busy machine is slow only now and then. The round returns the time from the release to the waiter's entry.
inline void wakes_within(milliseconds limit, const std::function<milliseconds()>& round) {
    milliseconds best = milliseconds::max();
    for (int attempt = 0; attempt < 6 && best > limit; ++attempt) best = std::min(best, round());
    if (best > limit) throw Difference("woken after " + std::to_string(best.count()) + " ms");
}

/// Does the same with the limit for this pairing.
inline void wakes_in_time(const Match& match, const std::function<milliseconds()>& round) {
    wakes_within(wake_limit(match), round);
}

inline void same(const std::string& what, const std::string& got, const std::string& wanted) {
    if (got != wanted) throw Difference(what + ": " + got + " instead of " + wanted);
}

inline void in_range(const std::string& what, long long got, long long least, long long most) {
    if (got >= least && got <= most) return;
    throw Difference(what + ": " + std::to_string(got) + " is not from " + std::to_string(least) + " to " +
                     std::to_string(most));
}

}  // namespace redlatch::test
