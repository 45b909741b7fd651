// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/transport/reply.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Defines what redlatch needs from a Redis client. Any client with the six parts of Transport supports every primitive;
// examples/custom_transport.cpp is one.
//
// Rules for all parts:
//   - Any thread may call anything at any time, except run(), which one thread at a time calls.
//   - Nothing throws except std::bad_alloc.
//   - The commands of one thread reach the server in the order of its calls while a connection lives.
//   - A connection whose replies can no longer be matched to commands is closed and never reused.
namespace redlatch {
inline namespace REDLATCH_ABI {

// The words of one command, each sent as it is, whatever bytes it contains. They must live only during the call.
struct Command {
    std::span<const std::string_view> words;  // the name of the command and its arguments
    std::size_t key = 1;                      // the index of the word that is the routing key; 0 for none
    std::string_view near{};                  // if there is none: a key whose server to use, if that matters
};

// Receives the reply to a posted command, exactly once, on any thread. It must be short. Of the transport it may call
// only post(), subscribe(), unsubscribe() and wake().
using Completion = std::function<void(Reply)>;

// Selects the channels of a cluster: classic channels, which reach every node, or sharded ones, which belong to one
// shard. The two kinds do not mix: all clients must use the same. A single server, with or without Sentinel, always uses
// classic channels.
enum class PubSub {
    automatic,  // sharded channels if the servers support them (Redis 7), as Redisson does
    classic,    // SUBSCRIBE and PUBLISH
    sharded,    // SSUBSCRIBE and SPUBLISH
};

// Receives the events of subscriptions, within run() or watch(): one call at a time, on any thread.
class Listener {
public:
    virtual void subscribed(const std::string& channel) = 0;  // confirmed: the first time and after every reconnect
    virtual void refused(const std::string& channel, const Reply& why) = 0;          // there is no subscription
    virtual void message(const std::string& channel, std::string_view payload) = 0;  // arrived on the channel
    virtual void disconnected() = 0;  // messages may be lost until the next subscribed()
    // No connection could be made. For transports that tell why at once, before a call fails.
    virtual void unreachable(const std::string& /* why */) {}
    // disconnected() for one channel. For transports that listen on several servers.
    virtual void interrupted(const std::string&) {}
    // A key that was read by track() has changed, was deleted or has expired, and is no longer tracked. Empty: that may be
    // so for every key, or track() may succeed from now on. For transports that can track. May be called while another
    // thread is in another function of this listener.
    virtual void invalidated(const std::string& /* key */) {}
    // Failover: commands go to another server from here on, which may lack recent writes of the earlier one. For
    // transports that discover their server.
    virtual void on_failover() {}

protected:
    ~Listener() = default;
};

// call(command, deadline): sends and waits for the reply. Connects if necessary, and retries that until the deadline.
// When the deadline passes it returns Kind::no_time, not_sent or unanswered.
template <class T>
concept CallsAndWaits = requires(T& t, const Command& command, Instant deadline) {
    { t.call(command, deadline) } -> std::same_as<Reply>;
};

// call_all(commands, deadline): does the same for several commands in one write. Returns one reply each, in order.
template <class T>
concept CallsSeveral = requires(T& t, std::span<const Command> commands, Instant deadline) {
    { t.call_all(commands, deadline) } -> std::same_as<std::vector<Reply>>;
};

// post(command, done): sends without waiting, not even for a connection. Calls `done` exactly once in any case, after
// the transport's own time-out at the latest, provided that some thread is in run().
template <class T>
concept Posts = requires(T& t, const Command& command, Completion done) {
    t.post(command, std::move(done));
};

// subscribe(channel), unsubscribe(channel): return at once; the listener of run() receives the outcome.
// run(listener, deadline): handles subscriptions and posted commands until the deadline passes, the listener was
// notified, or wake() was called, even before run().
template <class T>
concept Subscribes = requires(T& t, const std::string& channel, Listener& listener, Instant deadline) {
    t.subscribe(channel);
    t.unsubscribe(channel);
    t.run(listener, deadline);
    t.wake();
};

// route(key): returns where the key lives; keys of equal route may share a command. publish_command(): returns the command by
// which scripts reach the subscribers of this transport, PUBLISH or SPUBLISH. Its case tells scripts whom they can count.
// "Publish": this transport subscribes at the node that serves the key, but others may listen at other nodes, uncounted. So
// every grant is also published to all, and the others get a turn after some grants. "publish": this transport, too, may
// subscribe at another node, so it is granted nothing.
template <class T>
concept Routes = requires(T& t, std::string_view key) {
    { t.route(key) } -> std::convertible_to<std::uint32_t>;
    { t.publish_command() } -> std::convertible_to<std::string_view>;
};

// clone_after_fork(): called in the child after a fork, on the parent's transport, whose mutexes and threads may be in
// any state. Returns a transport to the same servers that shares no connection with it.
template <class T>
concept SurvivesFork = requires(T& t) {
    { t.clone_after_fork() } -> std::same_as<T>;
};

// Optional. watch(listener, deadline, seen): the calling thread, which waits for a message, receives in place of run()
// and notifies the listener itself. watch() returns true when the deadline passes or interrupts() differs from `seen`, and may
// return true earlier. The listener interrupts it when it is notified of what the thread waits for. interrupts() counts the
// calls of interrupt_watch(), which may come from within the listener. A call before watch() counts, too. watch() returns
// false at once if it cannot receive, because another thread does so already or there is no connection. After that, run()
// receives again as soon as that other thread leaves. If that thread leaves while others wait, wake() makes run() receive
// again.
template <class T>
concept LetsWatch = requires(T& t, Listener& listener, Instant deadline, std::uint64_t seen) {
    { t.watch(listener, deadline, seen) } -> std::same_as<bool>;
    { t.interrupts() } -> std::convertible_to<std::uint64_t>;
    t.interrupt_watch();
};

// Optional. post_attended(command, done): like post(), but the calling thread will receive the reply itself with
// attend(), which takes the replies that have arrived and does not wait. A caller that gives that up calls wake().
template <class T>
concept LetsAttend = Posts<T> && requires(T& t, const Command& command, Completion done) {
    t.post_attended(command, std::move(done));
    t.attend();
};

// Optional. post_all(commands, done): like post() for each of the commands, with one completion each in `done`, but in
// one write: either all on one connection with nothing between them, or none. require_replicas and require_fsync of a
// client or an object need it.
template <class T>
concept PostsSeveral = requires(T& t, std::span<const Command> commands, std::span<Completion> done) {
    t.post_all(commands, done);
};

// Optional. track(read, done): like post() for a command that reads one key, but the server also tells when this key
// changes next: the listener of run() gets invalidated(key) then, perhaps before `done` is called. Unless `done` gets the
// reply to the command itself, the key is not tracked:
//   - not_sent: not now. The listener gets invalidated() with an empty key when it is worth another try
//   - an error: the server or the user's rights do not allow it
// watch_invalidations(listener, deadline, seen): like watch(), for a thread that waits for invalidated(). Waiting Mutexes
// and SpinLocks use it in place of their poll. `done` may be called before track() returns.
template <class T>
concept Tracks = LetsWatch<T> &&
    requires(T& t, const Command& read, Completion done, Listener& listener, Instant deadline, std::uint64_t seen) {
    t.track(read, std::move(done));
    { t.watch_invalidations(listener, deadline, seen) } -> std::same_as<bool>;
};

// Optional. same_server_since(): returns an instant. All commands that were sent after it have gone to one server, as far as
// the transport can know: no connection was opened since, which may lead elsewhere. Returns nothing if several servers share
// the keys. Does not wait. With it a free Mutex is acquired by a plain SET, which names the end of the lease by the server's
// clock; without, by a script.
template <class T>
concept TellsServer = requires(const T& t) {
    { t.same_server_since() } -> std::convertible_to<std::optional<Instant>>;
};

// What a client needs: all six parts. The optional ones below its name make it faster, or make options possible.
template <class T>
concept Transport = std::move_constructible<T> && CallsAndWaits<T> && CallsSeveral<T> && Posts<T> && Subscribes<T> &&
    Routes<T> && SurvivesFork<T>;

namespace detail {

// One assertion per part, so that every compiler names the missing one.
template <class T>
constexpr bool explain_transport() {
    static_assert(std::move_constructible<T>, "a transport must be move constructible");
    static_assert(CallsAndWaits<T>, "a transport needs: Reply call(const Command&, Instant deadline)");
    static_assert(CallsSeveral<T>,
                  "a transport needs: std::vector<Reply> call_all(std::span<const Command>, Instant deadline)");
    static_assert(Posts<T>, "a transport needs: void post(const Command&, Completion)");
    static_assert(Subscribes<T>,
                  "a transport needs: subscribe(channel), unsubscribe(channel), run(Listener&, Instant), wake()");
    static_assert(Routes<T>, "a transport needs: route(key) and publish_command()");
    static_assert(SurvivesFork<T>, "a transport needs: T clone_after_fork()");
    return true;
}

}  // namespace detail

}  // namespace REDLATCH_ABI
}  // namespace redlatch
