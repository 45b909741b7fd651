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

// What redlatch needs from a Redis client. Any client that offers these six parts carries every primitive;
// examples/custom_transport.cpp is one.
//
// Rules for all parts: any thread may call anything at any time, except run(), which one thread at a time calls.
// Nothing throws but std::bad_alloc. The commands of one thread reach the server in the order of its calls for as
// long as a connection lives. A connection whose answers can no longer be told apart is closed and never reused.
namespace redlatch {
inline namespace v0_1 {

// The words of one command, each sent as it is, whatever bytes it holds. They need to live only during the call.
struct Command {
    std::span<const std::string_view> words;
    std::size_t key = 1;      // which word is the key that says where the command goes; 0 for none
    std::string_view near{};  // without one: a key whose server is meant, if it matters which
};

// Receives the answer to a posted command, once, on any thread. It must be short and must not call the transport
// other than by post(), subscribe(), unsubscribe() and wake().
using Completion = std::function<void(Reply)>;

// How subscribers of a cluster are reached: on channels that every node hears of, or on those of one shard. The two
// kinds do not mix: all clients must use the same. `automatic`: sharded where the servers know it (Redis 7), as
// Redisson does. Of a single server, with or without sentinels, the channels are always classic.
enum class PubSub { automatic, classic, sharded };

// Receives what happens to subscriptions, within run() or watch(): one call at a time, on any thread.
class Listener {
public:
    virtual void subscribed(const std::string& channel) = 0;  // confirmed, the first time and after every reconnect
    virtual void refused(const std::string& channel, const Reply& why) = 0;
    virtual void message(const std::string& channel, std::string_view payload) = 0;
    virtual void disconnected() = 0;  // messages may be lost from here on, until subscribed() comes again
    // The same for one channel. Of transports that listen at several servers.
    virtual void interrupted(const std::string&) {}
    // Commands go to another server from here on, which may not have all that the earlier one had. Of transports that
    // look for their server.
    virtual void moved() {}

protected:
    ~Listener() = default;
};

// call(command, deadline): sends and waits for the answer. Connects if need be, and goes on trying to until the
// deadline; answers Kind::no_time, not_sent or unanswered when it passes.
template <class T>
concept CallsAndWaits = requires(T& t, const Command& command, Instant deadline) {
    { t.call(command, deadline) } -> std::same_as<Reply>;
};

// call_all(commands, deadline): the same for several commands in one write; an answer for each, in their order.
template <class T>
concept CallsSeveral = requires(T& t, std::span<const Command> commands, Instant deadline) {
    { t.call_all(commands, deadline) } -> std::same_as<std::vector<Reply>>;
};

// post(command, done): sends without waiting, not even for a connection. `done` is called once in any case, after the
// transport's own time-out at the latest, provided that some thread is inside run().
template <class T>
concept Posts = requires(T& t, const Command& command, Completion done) {
    t.post(command, std::move(done));
};

// subscribe(channel), unsubscribe(channel): return at once; the outcome is told to the listener of run().
// run(listener, deadline): handles subscriptions and posted commands until the deadline passes, something was
// told, or wake() was called, even before.
template <class T>
concept Subscribes = requires(T& t, const std::string& channel, Listener& listener, Instant deadline) {
    t.subscribe(channel);
    t.unsubscribe(channel);
    t.run(listener, deadline);
    t.wake();
};

// route(key): where the key lives; keys of equal route may share a command. publish_command(): the command by
// which scripts reach the subscribers of this transport, PUBLISH or SPUBLISH.
template <class T>
concept Routes = requires(T& t, std::string_view key) {
    { t.route(key) } -> std::convertible_to<std::uint32_t>;
    { t.publish_command() } -> std::convertible_to<std::string_view>;
};

// reborn(): called in the child after a fork, on the parent's transport, whose locks and threads may be in any
// state: a transport to the same servers that shares no connection with it.
template <class T>
concept SurvivesFork = requires(T& t) {
    { t.reborn() } -> std::same_as<T>;
};

// Optional. watch(listener, deadline, seen): the calling thread, which waits for a message, receives in place of run(),
// and tells the listener itself, until something was told, the deadline passes, or interrupts() is not `seen` any more,
// which is how often interrupt_watch() was called, even before; false at once when it cannot, because another thread
// does so already or there is no connection. Who was told false is not forgotten: run() receives again as soon as that
// other thread leaves. When it leaves while others wait, wake() makes run() receive again.
template <class T>
concept LetsWatch = requires(T& t, Listener& listener, Instant deadline, std::uint64_t seen) {
    { t.watch(listener, deadline, seen) } -> std::same_as<bool>;
    { t.interrupts() } -> std::convertible_to<std::uint64_t>;
    t.interrupt_watch();
};

// Optional. post_attended(command, done): as post(), but the calling thread is going to receive the answer itself, by
// attend(), which takes what has come and does not wait; or to call wake(), when it gives that up.
template <class T>
concept LetsAttend = Posts<T> && requires(T& t, const Command& command, Completion done) {
    t.post_attended(command, std::move(done));
    t.attend();
};

// Optional. post_all(commands, done): as post() for each of the commands, `done` having a completion for each, but in
// one write: all on one connection and nothing between them, or none. ClientOptions::require_replicas needs it.
template <class T>
concept PostsSeveral = requires(T& t, std::span<const Command> commands, std::span<Completion> done) {
    t.post_all(commands, done);
};

template <class T>
concept Transport = std::move_constructible<T> && CallsAndWaits<T> && CallsSeveral<T> && Posts<T> && Subscribes<T> &&
    Routes<T> && SurvivesFork<T>;

namespace detail {

// One assertion a part, so that every compiler names the missing one.
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
    static_assert(SurvivesFork<T>, "a transport needs: T reborn()");
    return true;
}

}  // namespace detail

}  // namespace v0_1
}  // namespace redlatch
