// SPDX-License-Identifier: MIT
// All of redlatch in one file, written by cmake/amalgamate.cmake from include/redlatch. Do not edit it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <compare>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <pthread.h>
#include <set>
#include <signal.h>
#include <span>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/random.h>
#include <system_error>
#include <thread>
#include <time.h>
#include <tuple>
#include <type_traits>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>

// redlatch/base/config.hpp

// Where the definitions are compiled:
//   by default         in every file that includes the library: a header includes its definitions (*.ipp)
//   REDLATCH_COMPILED  once, in the one file that includes redlatch/src.hpp. All files of a program define the macro,
//                      as those do that link to the CMake target redlatch::compiled
//
// The inline namespace that contains everything names the version and the form, so that two of them in one program have
// different symbols: what one passes to the other does not link.
#ifdef REDLATCH_COMPILED
#define REDLATCH_INLINE
#define REDLATCH_ABI v0_1_compiled
#else
#define REDLATCH_INLINE inline
#define REDLATCH_ABI v0_1
#endif

// redlatch/base/version.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// The version is defined here only: CMake reads these three lines. A check compares the first two with the inline
// namespace that contains everything. Include redlatch/fwd.hpp instead of forward-declaring names of the library.
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

// Returns the version as text, "major.minor.patch".
inline std::string version() {
    return std::to_string(version_major) + '.' + std::to_string(version_minor) + '.' + std::to_string(version_patch);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/quoted.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes foreign text safe for a message: keeps at most `most` bytes and writes control and non-ASCII bytes as \xNN.
inline std::string escaped(std::string_view text, std::size_t most = 64) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const char c : text.substr(0, most)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f && c != '\\') {
            out += c;
        } else {
            out += "\\x";
            out += digits[byte >> 4];
            out += digits[byte & 15];
        }
    }
    return text.size() > most ? out + "…" : out;
}

// Does the same and adds quotation marks.
inline std::string in_quotes(std::string_view text, std::size_t most = 64) { return "'" + escaped(text, most) + "'"; }

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/error.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Tells why an operation failed. The values are grouped by what a caller can do about them.
enum class errc {
    invalid_argument = 1,  // rejected before anything was sent; fix the call
    not_owner,             // this thread never acquired what it tries to release
    would_deadlock,        // this thread would wait for itself indefinitely
    unknown_permit,        // there is no such permit, or its lease has expired
    hold_lost,             // the hold ended before its unlock: expired, key deleted, or force-released
    unreachable,           // no server able to do it replied in time (none replied at all, or the server is loading or
                           // is only a replica); the outcome may be unknown
    overloaded,            // the server refuses for now: out of memory, busy, too few replicas, too many clients
    rejected,              // refused for good: credentials, access rights, a script error, a certificate of either side
    wrong_type,            // the key belongs to another kind of object
    protocol_error,        // the reply has an unexpected shape; a malformed one also closes the connection
    unsupported,           // recognised, but not possible with this build
    not_replicated,        // fewer replicas than required confirmed it; what was acquired is released
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

template <>
struct std::is_error_code_enum<redlatch::errc> : std::true_type {};

namespace redlatch {
inline namespace REDLATCH_ABI {

// Exported, so that all shared objects of a process use one category: codes of different categories never compare
// equal.
[[gnu::visibility("default")]] inline const std::error_category& error_category() noexcept {
    class Category final : public std::error_category {
        const char* name() const noexcept override { return "redlatch"; }

        std::string message(int value) const override {
            switch (static_cast<errc>(value)) {
                case errc::invalid_argument: return "invalid argument";
                case errc::not_owner: return "this thread does not hold the lock";
                case errc::would_deadlock: return "this thread would wait for itself";
                case errc::unknown_permit: return "no such permit, or its lease has expired";
                case errc::hold_lost: return "the hold ended before its release";
                case errc::unreachable: return "the server did not confirm the command in time";
                case errc::overloaded: return "the server cannot execute the command now";
                case errc::rejected: return "the server or this client rejected it for good";
                case errc::wrong_type: return "the key belongs to another kind of object";
                case errc::protocol_error: return "the server sent an unexpected reply";
                case errc::unsupported: return "not supported by this build";
                case errc::not_replicated: return "too few replicas confirmed the command";
            }
            return "unknown error";
        }

        // Lets portable code compare with std::errc.
        std::error_condition default_error_condition(int value) const noexcept override {
            switch (static_cast<errc>(value)) {
                case errc::invalid_argument: return std::errc::invalid_argument;
                case errc::not_owner: return std::errc::operation_not_permitted;
                case errc::would_deadlock: return std::errc::resource_deadlock_would_occur;
                case errc::unsupported: return std::errc::not_supported;
                case errc::protocol_error: return std::errc::protocol_error;
                default: return {value, *this};
            }
        }
    };
    static const Category category;
    return category;
}

inline std::error_code make_error_code(errc code) noexcept { return {static_cast<int>(code), error_category()}; }

// Reports a failed operation. what() reads "<name>: <what happened>; <what to try>: <category text>". It never contains
// a password. Foreign text in it is escaped and shortened.
class [[gnu::visibility("default")]] Error : public std::system_error {
public:
    Error(errc code, std::string_view name, const std::string& what_happened)
        : std::system_error(make_error_code(code),
                            name.empty() ? what_happened : detail::escaped(name) + ": " + what_happened),
          name_(name) {}

    // Returns the name of the primitive, or an empty string if the error belongs to the client.
    const std::string& name() const noexcept { return name_; }

private:
    std::string name_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/time.hpp

// Converts durations of any kind to those of the library. Waits are rounded up and saturate. Leases are rounded down
// and rejected if they make no sense.
namespace redlatch {
inline namespace REDLATCH_ABI {

using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

// Milliseconds since 1970 by the clock of a server.
using ServerMilliseconds = std::int64_t;

// The deadline of an indefinite wait.
inline constexpr Instant never = Instant::max();

namespace detail {

// long double holds every 64-bit count exactly where it matters (x86). Elsewhere it errs by less than one part in 2^52.
// It cannot overflow.
template <class Rep, class Period>
long double exact_milliseconds(std::chrono::duration<Rep, Period> d) {
    return std::chrono::duration<long double, std::milli>(d).count();
}

}  // namespace detail

// Returns a wait in whole milliseconds: rounded up, zero if negative or not a number, Milliseconds::max() if too long.
template <class Rep, class Period>
Milliseconds round_wait(std::chrono::duration<Rep, Period> wait) {
    const long double ms = std::ceil(detail::exact_milliseconds(wait));
    if (!(ms > 0)) return Milliseconds::zero();
    if (ms >= static_cast<long double>(Milliseconds::max().count())) return Milliseconds::max();
    return Milliseconds(static_cast<Milliseconds::rep>(ms));
}

// Returns the instant `wait` after `now`, or `never` if that is beyond the range of the clock.
template <class Rep, class Period>
Instant deadline_after(Instant now, std::chrono::duration<Rep, Period> wait) {
    const Milliseconds rounded = round_wait(wait);
    const auto room = std::chrono::duration_cast<Milliseconds>(never - now);
    return rounded >= room ? never : now + rounded;
}

// Returns the steady-clock instant of a time point of any clock. The clock is read once: its later jumps do not count.
template <class AnyClock, class Duration>
Instant deadline_at(std::chrono::time_point<AnyClock, Duration> when) {
    using Wide = std::chrono::duration<long double, std::milli>;
    const Wide left = Wide(when.time_since_epoch()) - Wide(AnyClock::now().time_since_epoch());
    return deadline_after(Clock::now(), left);
}

// The time for which a hold lasts unless it is released earlier. Rounded down to whole milliseconds. Throws
// Error(errc::invalid_argument) if it is below one millisecond, not a number, or above 100 years.
class Lease {
public:
    template <class Rep, class Period>
    explicit Lease(std::chrono::duration<Rep, Period> length) {
        const long double ms = std::floor(detail::exact_milliseconds(length));
        if (!(ms >= 1)) throw Error(errc::invalid_argument, {}, "the lease must be at least 1 ms");
        if (ms > static_cast<long double>(longest.count()))
            throw Error(errc::invalid_argument, {}, "the lease must be at most 100 years");
        length_ = Milliseconds(static_cast<Milliseconds::rep>(ms));
    }

    // For permits that end only when they are released. It is a separate type that no lock accepts, because a lock that
    // outlives its process would block all others.
    struct Forever {};
    static constexpr Forever forever() noexcept { return {}; }

    Milliseconds length() const noexcept { return length_; }

    friend auto operator<=>(const Lease&, const Lease&) = default;

private:
    // Far below the range of Redis, Lua's doubles and the nanoseconds of a steady clock.
    static constexpr Milliseconds longest = std::chrono::hours(24) * 36'525;

    Milliseconds length_;
};

// Returns the instant until which a hold is certain. It counts from before the command was sent and subtracts an
// allowance for a server clock that runs faster than ours (two parts in a thousand, twenty times what NTP slews).
inline Instant valid_until(Instant sent, Milliseconds lease) {
    return sent + lease - std::chrono::duration_cast<Clock::duration>(lease) / 500;
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/transport/reply.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// The text of a reply for which there is no memory. Short enough to need no allocation.
inline constexpr const char* no_memory = "out of memory";

}  // namespace detail

// The result of a command: the server's reply, or the reason why there is none. Short texts and numbers need no
// allocation.
struct Reply {
    enum class Kind {
        nil,
        integer,
        text,   // a bulk string or a status
        error,  // `text` is the server's error, which begins with a code such as WRONGTYPE
        array,
        not_sent,    // there was no connection: the command had no effect. `text` gives the reason
        no_time,     // the same, but only because the caller's time ran out: the server may be available
        unanswered,  // sent, but no reply arrived: the outcome is unknown. `text` gives the reason
        malformed,   // the reply violates the protocol; the connection was closed: the outcome is unknown
    };

    Kind kind = Kind::nil;
    std::int64_t integer = 0;
    std::string text;
    std::vector<Reply> elements;
    bool replicated = true;  // false if it was carried out, but fewer replicas than required confirmed it

    static Reply of(std::int64_t number) { return {Kind::integer, number, {}, {}, true}; }
    static Reply of(std::string text) { return {Kind::text, 0, std::move(text), {}, true}; }
    static Reply of(Kind kind, std::string text) { return {kind, 0, std::move(text), {}, true}; }

    bool is_nil() const noexcept { return kind == Kind::nil; }
    bool is_integer() const noexcept { return kind == Kind::integer; }
    bool is_error() const noexcept { return kind == Kind::error; }

    // The prefix of an error that comes from the transport, not from the server: they could not establish trust.
    static constexpr std::string_view untrusted = "UNTRUSTED ";

    // answered() returns true if the server replied. is_unsent() returns true if the command certainly never reached
    // it.
    bool answered() const noexcept { return kind < Kind::not_sent; }
    bool is_unsent() const noexcept { return kind == Kind::not_sent || kind == Kind::no_time; }
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/transport/transport.hpp

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
    std::span<const std::string_view> words;
    std::size_t key = 1;      // the index of the word that is the routing key; 0 for none
    std::string_view near{};  // if there is none: a key whose server to use, if that matters
};

// Receives the reply to a posted command, exactly once, on any thread. It must be short. Of the transport it may call
// only post(), subscribe(), unsubscribe() and wake().
using Completion = std::function<void(Reply)>;

// Selects the channels of a cluster: classic channels, which reach every node, or sharded ones, which belong to one
// shard. The two kinds do not mix: all clients must use the same. `automatic` uses sharded channels if the servers
// support them (Redis 7), as Redisson does. A single server, with or without Sentinel, always uses classic channels.
enum class PubSub { automatic, classic, sharded };

// Receives the events of subscriptions, within run() or watch(): one call at a time, on any thread.
class Listener {
public:
    virtual void subscribed(const std::string& channel) = 0;  // confirmed: the first time and after every reconnect
    virtual void refused(const std::string& channel, const Reply& why) = 0;
    virtual void message(const std::string& channel, std::string_view payload) = 0;
    virtual void disconnected() = 0;  // messages may be lost until the next subscribed()
    // disconnected() for one channel. For transports that listen on several servers.
    virtual void interrupted(const std::string&) {}
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

// route(key): returns where the key lives; keys of equal route may share a command. publish_command(): returns the
// command by which scripts reach the subscribers of this transport, PUBLISH or SPUBLISH.
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
// and notifies the listener itself. It returns true when the listener was notified, the deadline passes, or
// interrupts() is not `seen`. interrupts() counts the calls of interrupt_watch(); one before watch() counts, too. It
// returns false at once if it cannot receive, because another thread does so already or there is no connection. After
// that, run() receives again as soon as that other thread leaves. If that thread leaves while others wait, wake() makes
// run() receive again.
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
// one write: either all on one connection with nothing between them, or none. ClientOptions::require_replicas needs it.
template <class T>
concept PostsSeveral = requires(T& t, std::span<const Command> commands, std::span<Completion> done) {
    t.post_all(commands, done);
};

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

// redlatch/options.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class TlsConnector;
}  // namespace detail

// Reports what no return value can, because it happens between two calls.
struct Event {
    enum class Kind {
        hold_lost,             // a hold ended before its unlock; a stop is requested on its lost() token
        unlock_not_delivered,  // a release could not be delivered before its lease expired
        disconnected,          // the server cannot be reached
        reconnected,           // the server can be reached again
        moved,                 // failover: another server is the master now; every hold is verified there
    };

    Kind kind;
    std::string name;    // the primitive's; empty for an event of the connection
    std::string detail;  // readable text for a log
};

// Counts what the client has done since it was created.
struct Stats {
    std::uint64_t commands = 0;      // sent to the server by callers and in the background, including resends
    std::uint64_t acquisitions = 0;  // holds acquired in any way
    std::uint64_t waits = 0;         // acquisitions that had to wait for another holder
    std::uint64_t handoffs = 0;      // holds handed off to a waiter of this process
    std::uint64_t renewals = 0;      // lease renewals by the watchdog, one per hold and renewal
    std::uint64_t lost_holds = 0;
    std::uint64_t resends = 0;  // commands resent after a lost connection or a refusal
    std::uint64_t reconnects = 0;
};

// A value of ClientOptions::require_replicas: requires every replica that the master has had since the client found it,
// and at least one.
inline constexpr unsigned all_replicas = ~0U;

struct ClientOptions {
    // The lease of a hold acquired without one. The watchdog renews it every third of this time, so a crashed holder
    // blocks others no longer than this.
    Milliseconds watchdog_timeout = std::chrono::seconds(30);
    // The time a server may take to reply to a command before its connection counts as dead.
    Milliseconds command_timeout = std::chrono::seconds(3);
    // The time for which a call without a deadline tries to reach a server before it throws errc::unreachable.
    Milliseconds unreachable_timeout = std::chrono::seconds(30);
    // A prefix for every name: the namespace of an application on a shared server.
    std::string key_prefix = {};
    // How many times in a row a released lock is handed off to a waiter of this process before other processes get a
    // turn.
    unsigned local_handoff_limit = 16;
    // The number of replicas that must confirm every hold and every permit within a quarter of command_timeout, so that
    // a failover to one of them does not lose it. If fewer confirm it, it is released and the operation fails with
    // errc::not_replicated. A renewal that they do not confirm does not count. Costs one more command each, in the same
    // round trip.
    unsigned require_replicas = 0;
    // The connector for rediss:// URLs: redlatch::tls(...) of redlatch/tls.hpp. The URL alone decides whether TLS is
    // used.
    std::shared_ptr<const detail::TlsConnector> tls = {};
    // The kind of channel that wakes waiters, for a redis-cluster:// URL. All clients of a lock must use the same kind.
    PubSub pubsub = PubSub::automatic;
    // Called on a thread of the client, one event at a time, with no lock held. Exceptions from it are swallowed. It
    // may use the library. While it blocks, later events wait, but renewals, wake-ups and lost() requests do not.
    std::function<void(const Event&)> on_event = {};
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/transport/transport_port.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A transport as the session sees it: the type of the client's transport ends here, so that nothing above is a
// template. transport.hpp documents the members. Each optional part that a transport lacks has the meaning given here.
class TransportPort {
public:
    virtual ~TransportPort() = default;

    virtual Reply call(const Command& command, Instant deadline) = 0;
    virtual std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) = 0;
    virtual void post(const Command& command, Completion done) = 0;
    virtual void subscribe(const std::string& channel) = 0;
    virtual void unsubscribe(const std::string& channel) = 0;
    virtual void run(Listener& listener, Instant deadline) = 0;
    virtual void wake() = 0;
    virtual std::uint32_t route(std::string_view key) = 0;
    virtual std::string_view publish_command() = 0;
    virtual std::unique_ptr<TransportPort> clone_after_fork() = 0;

    // LetsWatch. Without it the background thread receives all messages.
    virtual bool watch(Listener& listener, Instant deadline, std::uint64_t seen) = 0;
    virtual std::uint64_t interrupts() = 0;
    virtual void interrupt_watch() = 0;

    // LetsAttend. Without it the background thread receives the replies to posted commands.
    virtual void post_attended(const Command& command, Completion done) = 0;
    virtual void attend() = 0;
    virtual void stop_attending() = 0;

    // PostsSeveral. Without it require_replicas is refused.
    virtual bool posts_several() const = 0;
    virtual void post_all(std::span<const Command> commands, std::span<Completion> done) = 0;

    // Return how often the transport has connected again, and connected at all, if it counts that.
    virtual std::uint64_t reconnects() const = 0;
    virtual std::optional<std::uint64_t> connections() const = 0;
};

template <Transport T>
class TransportPortOf final : public TransportPort {
public:
    explicit TransportPortOf(T transport) : transport_(std::move(transport)) {}

    Reply call(const Command& command, Instant deadline) override { return transport_.call(command, deadline); }
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) override {
        return transport_.call_all(commands, deadline);
    }
    void post(const Command& command, Completion done) override { transport_.post(command, std::move(done)); }
    void subscribe(const std::string& channel) override { transport_.subscribe(channel); }
    void unsubscribe(const std::string& channel) override { transport_.unsubscribe(channel); }
    void run(Listener& listener, Instant deadline) override { transport_.run(listener, deadline); }
    void wake() override { transport_.wake(); }
    std::uint32_t route(std::string_view key) override { return transport_.route(key); }
    std::string_view publish_command() override { return transport_.publish_command(); }
    std::unique_ptr<TransportPort> clone_after_fork() override {
        return std::make_unique<TransportPortOf>(transport_.clone_after_fork());
    }

    bool watch(Listener& listener, Instant deadline, std::uint64_t seen) override {
        if constexpr (LetsWatch<T>) return transport_.watch(listener, deadline, seen);
        return false;
    }
    std::uint64_t interrupts() override {
        if constexpr (LetsWatch<T>) return transport_.interrupts();
        return 0;
    }
    void interrupt_watch() override {
        if constexpr (LetsWatch<T>) transport_.interrupt_watch();
    }

    void post_attended(const Command& command, Completion done) override {
        if constexpr (LetsAttend<T>)
            transport_.post_attended(command, std::move(done));
        else
            transport_.post(command, std::move(done));
    }
    void attend() override {
        if constexpr (LetsAttend<T>) transport_.attend();
    }
    void stop_attending() override {
        if constexpr (LetsAttend<T>) transport_.wake();
    }

    bool posts_several() const override { return PostsSeveral<T>; }
    void post_all(std::span<const Command> commands, std::span<Completion> done) override {
        if constexpr (PostsSeveral<T>) transport_.post_all(commands, done);
    }

    std::uint64_t reconnects() const override {
        if constexpr (requires { transport_.reconnects(); }) return transport_.reconnects();
        return 0;
    }
    std::optional<std::uint64_t> connections() const override {
        if constexpr (requires { transport_.connections(); }) return transport_.connections();
        return std::nullopt;
    }

private:
    T transport_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/client.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class SessionHandle;
struct ClientAccess;
}  // namespace detail

// Connects to Redis and owns everything that the primitives made from it share: one identity, one watchdog and the
// background threads. The threads start with the first hold or wait. They end when the client and the last of its
// primitives are gone. Any number of threads may use a client at once. A primitive keeps alive what it needs, so it may
// outlive its client.
//
// The constructor does not connect; the first use does. If the server cannot be reached, the call that needs it fails.
class Client {
public:
    // Connects by HiredisTransport. Accepts redis://[user[:password]@]host[:port][/db], unix:///path[?db=n] and the
    // other forms that Url parses. Throws Error for a URL or an option that cannot work, and errc::unsupported for
    // rediss:// without options.tls.
    explicit Client(std::string_view url, ClientOptions options = {});

    // Connects by a transport of your own.
    template <class T>
    requires(!std::convertible_to<const T&, std::string_view> &&
             !std::same_as<T, Client>) explicit Client(T transport, ClientOptions options = {})
        : Client(Port{}, port_of(std::move(transport)), std::move(options)) {}

    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    ~Client();

    // Returns the random UUID of this client in this process. The owner of a hold is "<id>:<number>", with a new number
    // for each hold.
    std::string id() const;

    Stats stats() const;

    // Returns one sentence for each property of the server that endangers the locks on it: eviction, persistence,
    // replicas, access rights, buffers. Returns an empty list if all is well. A property that this user has no right to
    // query is a warning, too. Takes about eight round trips. Creates a temporary key and deletes it. Meant for the
    // start of a service. Throws Error(errc::unreachable).
    std::vector<std::string> check_server() const;

private:
    friend struct detail::ClientAccess;

    struct Port {};

    template <class T>
    static std::unique_ptr<detail::TransportPort> port_of(T transport) {
        if constexpr (detail::explain_transport<T>())
            return std::make_unique<detail::TransportPortOf<T>>(std::move(transport));
    }

    Client(Port, std::unique_ptr<detail::TransportPort> transport, ClientOptions options);

    const std::shared_ptr<detail::SessionHandle> session_;
};

namespace detail {

// Used by the primitives.
struct ClientAccess {
    static const std::shared_ptr<SessionHandle>& session(const Client& client) { return client.session_; }
};

}  // namespace detail

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/names.hpp

// Defines the key rules shared with Redisson: how a primitive's name determines the names of its extra keys and
// channels.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline constexpr std::size_t longest_name = 1024;

// Returns true if the name has no braces, or exactly one non-empty "{tag}". Only then do all keys derived from the name
// fall into one cluster slot.
constexpr bool has_safe_braces(std::string_view name) {
    const auto open = name.find('{');
    const auto close = name.find('}');
    if (open == std::string_view::npos && close == std::string_view::npos) return true;
    return open != std::string_view::npos && close != std::string_view::npos && close > open + 1 &&
           name.find('{', open + 1) == std::string_view::npos && name.find('}', close + 1) == std::string_view::npos;
}

// Throws Error(errc::invalid_argument) if the name is empty, too long, or has other braces.
inline void check_name(std::string_view name) {
    if (name.empty()) throw Error(errc::invalid_argument, {}, "the name must not be empty");
    if (name.size() > longest_name) throw Error(errc::invalid_argument, name, "the name must not exceed 1024 bytes");
    if (!has_safe_braces(name))
        throw Error(
            errc::invalid_argument, name,
            "braces in the name must form one non-empty {tag}; otherwise its keys would be in different cluster slots");
}

// Returns "prefix:{name}", or "prefix:name" if the name has its own tag.
inline std::string prefixed_key(std::string_view prefix, std::string_view name) {
    std::string key(prefix);
    const bool tagged = name.find('{') != std::string_view::npos;
    key += tagged ? ":" : ":{";
    key += name;
    if (!tagged) key += '}';
    return key;
}

// Returns "{name}:suffix", or "name:suffix" if the name has its own tag.
inline std::string suffixed_key(std::string_view name, std::string_view suffix) {
    const bool tagged = name.find('{') != std::string_view::npos;
    std::string key = tagged ? std::string(name) : "{" + std::string(name) + "}";
    key += ':';
    key += suffix;
    return key;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/url.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class TlsConnector;
}  // namespace detail

// The host and port of a server.
struct HostPort {
    std::string host;
    std::uint16_t port = 0;

    bool operator==(const HostPort&) const = default;

    std::string display() const {
        return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
    }
};

// Describes where a server is and how to log in:
//   redis://[user[:password]@]host[:port][/db]    host may be an IPv6 literal in brackets
//   redis://:password@host                        the default user
//   unix:///path/to/socket[?db=n]
//   redis-sentinel://[user[:password]@]host[:port][,host[:port]...]/master[/db]
//                                                 the sentinels and the master's name; the login is the master's
//   redis-cluster://[user[:password]@]host[:port][,host[:port]...]
//                                                 some nodes of a cluster; they report the others
//   rediss://…, rediss-sentinel://…, rediss-cluster://…
//                                                 the same over TLS; with Sentinel also to the sentinels
// User, password and path may be percent-encoded. No message of the parser quotes the part before an '@'.
struct Url {
    std::string host;  // empty for a unix socket
    std::uint16_t port = 6379;
    std::string path;      // of the unix socket; empty for TCP
    std::string user;      // empty: the default user
    std::string password;  // empty: no AUTH is sent
    std::uint32_t database = 0;
    std::vector<HostPort> sentinels{};  // if set, host and path are empty
    std::string master{};               // Sentinel's name for the master
    std::vector<HostPort> cluster{};    // if set, host and path are empty
    bool tls = false;                   // if true, nothing is ever sent there unencrypted
    // Encrypts the connection. It is not part of the text; a transport sets it.
    std::shared_ptr<const detail::TlsConnector> tls_connector{};

    // Parses a URL. Throws Error(errc::invalid_argument) if it is malformed.
    static Url parse(std::string_view text);

    // Returns a description of the server for messages and events, never with the login.
    std::string display() const {
        if (!path.empty()) return "unix://" + path;
        if (!sentinels.empty()) return "the master " + detail::in_quotes(master, 60);
        if (!cluster.empty()) return "the cluster of " + cluster.front().display();
        return HostPort{host, port}.display();
    }

    // Returns the same login for another server.
    Url at(const HostPort& place) const {
        Url url = *this;
        url.host = place.host;
        url.port = place.port;
        url.sentinels.clear();
        url.master.clear();
        url.cluster.clear();
        return url;
    }
};

namespace detail {

[[noreturn]] inline void bad_url(const std::string& what) {
    throw Error(errc::invalid_argument, {},
                what +
                    "; a URL has the form redis://[user[:password]@]host[:port][/db], unix:///path?db=n, "
                    "redis-sentinel://[user[:password]@]host[:port],.../master[/db] or "
                    "redis-cluster://[user[:password]@]host[:port],...; for TLS, it begins with rediss");
}

inline std::string percent_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        unsigned byte = 0;
        const std::string_view hex = text.substr(i + 1, 2);
        const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), byte, 16);
        if (error != std::errc{} || hex.size() != 2 || end != hex.data() + 2)
            bad_url("a % must be followed by two hex digits");
        out += static_cast<char>(byte);
        i += 2;
    }
    return out;
}

inline std::uint32_t url_number(std::string_view text, std::uint32_t least, std::uint32_t most, const char* what) {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
        bad_url(std::string(what) + " must be a number from " + std::to_string(least) + " to " + std::to_string(most));
    return number;
}

// Redis itself decides which databases exist; the limit only keeps the number in range.
inline std::uint32_t url_database(std::string_view text) { return url_number(text, 0, 1'000'000, "the database"); }

// Removes the part before the '@', if there is one, and stores its user and password in `url`.
inline void take_login(Url& url, std::string_view& rest) {
    const auto at = rest.rfind('@');
    if (at == std::string_view::npos) return;
    const std::string_view login = rest.substr(0, at);
    const auto colon = login.find(':');
    url.user = percent_decoded(login.substr(0, colon));
    if (colon != std::string_view::npos) url.password = percent_decoded(login.substr(colon + 1));
    if (!url.user.empty() && url.password.empty()) bad_url("a URL with a user needs a password");
    rest = rest.substr(at + 1);
}

inline HostPort host_port(std::string_view rest, std::uint16_t usual_port) {
    HostPort place{{}, usual_port};
    std::string_view port;
    bool has_port = false;
    if (rest.starts_with('[')) {
        const auto close = rest.find(']');
        if (close == std::string_view::npos) bad_url("an IPv6 address needs its closing bracket");
        place.host = rest.substr(1, close - 1);
        rest = rest.substr(close + 1);
        if (!rest.empty() && !rest.starts_with(':')) bad_url("only a port may follow the bracket");
        has_port = !rest.empty();
        if (has_port) port = rest.substr(1);
    } else {
        const auto colon = rest.find(':');
        place.host = rest.substr(0, colon);
        has_port = colon != std::string_view::npos;
        if (has_port) port = rest.substr(colon + 1);
    }
    if (place.host.empty()) bad_url("the host is missing");
    for (const char c : place.host)
        if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f)
            bad_url("the host contains a blank or a control character");
    if (has_port) place.port = static_cast<std::uint16_t>(url_number(port, 1, 65535, "the port"));
    return place;
}

// Parses a list separated by commas.
inline std::vector<HostPort> host_ports(std::string_view hosts, std::uint16_t usual_port) {
    std::vector<HostPort> places;
    for (bool more = true; more;) {
        const auto comma = hosts.find(',');
        places.push_back(host_port(hosts.substr(0, comma), usual_port));
        more = comma != std::string_view::npos;
        if (more) hosts = hosts.substr(comma + 1);
    }
    return places;
}

inline Url parse_unix_url(std::string_view rest) {
    Url url;
    if (const auto query = rest.find('?'); query != std::string_view::npos) {
        const std::string_view db = rest.substr(query + 1);
        if (!db.starts_with("db=")) bad_url("the only option of a unix URL is ?db=n");
        url.database = url_database(db.substr(3));
        rest = rest.substr(0, query);
    }
    if (!rest.starts_with('/')) take_login(url, rest);
    url.path = percent_decoded(rest);
    if (!url.path.starts_with('/')) bad_url("the path of a unix socket must be absolute");
    if (url.path.find('\0') != std::string::npos) bad_url("the path of a unix socket must not contain a zero byte");
    // sun_path has room for 107 characters and the zero at the end (104 in all on BSD and macOS).
    if (url.path.size() > 107) bad_url("the path of a unix socket must not exceed 107 bytes");
    return url;
}

inline Url parse_tcp_url(std::string_view rest) {
    Url url;
    take_login(url, rest);
    if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
        if (slash + 1 < rest.size()) url.database = url_database(rest.substr(slash + 1));
        rest = rest.substr(0, slash);
    }
    const HostPort place = host_port(rest, 6379);
    url.host = place.host;
    url.port = place.port;
    return url;
}

inline Url parse_sentinel_url(std::string_view rest) {
    Url url;
    take_login(url, rest);
    const auto slash = rest.find('/');
    if (slash == std::string_view::npos) bad_url("the name of the master is missing");
    std::string_view hosts = rest.substr(0, slash);
    rest = rest.substr(slash + 1);
    const auto second = rest.find('/');
    url.master = percent_decoded(rest.substr(0, second));
    if (url.master.empty()) bad_url("the name of the master is missing");
    if (second != std::string_view::npos && second + 1 < rest.size())
        url.database = url_database(rest.substr(second + 1));
    url.sentinels = host_ports(hosts, 26379);
    return url;
}

inline Url parse_cluster_url(std::string_view rest) {
    Url url;
    take_login(url, rest);
    if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
        if (slash + 1 < rest.size()) bad_url("a cluster has only database 0; leave out the number");
        rest = rest.substr(0, slash);
    }
    url.cluster = host_ports(rest, 6379);
    return url;
}

inline Url by_tls(Url url) {
    url.tls = true;
    return url;
}

}  // namespace detail

inline Url Url::parse(std::string_view text) {
    const auto mark = text.find("://");
    if (mark == std::string_view::npos) detail::bad_url("the scheme is missing");
    const std::string_view scheme = text.substr(0, mark);
    const std::string_view rest = text.substr(mark + 3);
    if (scheme == "redis") return detail::parse_tcp_url(rest);
    if (scheme == "unix") return detail::parse_unix_url(rest);
    if (scheme == "redis-sentinel") return detail::parse_sentinel_url(rest);
    if (scheme == "redis-cluster") return detail::parse_cluster_url(rest);
    if (scheme == "rediss") return detail::by_tls(detail::parse_tcp_url(rest));
    if (scheme == "rediss-sentinel") return detail::by_tls(detail::parse_sentinel_url(rest));
    if (scheme == "rediss-cluster") return detail::by_tls(detail::parse_cluster_url(rest));
    // Not quoted: in a mangled URL a password may stand where the scheme should be.
    detail::bad_url("the scheme is unknown");
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/sha1.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the SHA-1 in 40 hex digits, at compile time: the name under which Redis caches a script (FIPS 180-4, 6.1).
//
// Every program that includes the library evaluates this for every script, and compilers are slow at it. Plain arrays
// and loops without calls are several times faster than std::array and lambdas.
constexpr std::array<char, 40> sha1_hex(std::string_view text) {
    std::uint32_t hash[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    const char* const data = text.data();
    const std::size_t size = text.size();
    const std::size_t blocks = (size + 8) / 64 + 1;

    for (std::size_t block = 0; block < blocks; ++block) {
        std::uint32_t w[80] = {};
        for (std::size_t i = 0, at = block * 64; i < 16; ++i, at += 4) {
            if (at + 4 <= size) {
                w[i] = static_cast<std::uint32_t>(static_cast<unsigned char>(data[at])) << 24 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 1])) << 16 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 2])) << 8 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 3]));
            } else {
                // The end of the text, followed by a one bit and zeros.
                for (std::size_t j = 0; j < 4; ++j)
                    w[i] = w[i] << 8 |
                           (at + j < size    ? static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + j]))
                            : at + j == size ? 0x80u
                                             : 0u);
            }
        }
        if (block + 1 == blocks) {
            w[14] = static_cast<std::uint32_t>(static_cast<std::uint64_t>(size) >> 29);
            w[15] = static_cast<std::uint32_t>(size << 3);
        }
        for (std::size_t i = 16; i < 80; ++i) {
            const std::uint32_t x = w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16];
            w[i] = x << 1 | x >> 31;
        }

        std::uint32_t a = hash[0], b = hash[1], c = hash[2], d = hash[3], e = hash[4];
        for (std::size_t i = 0; i < 80; ++i) {
            std::uint32_t next = (a << 5 | a >> 27) + e + w[i];
            if (i < 20)
                next += (d ^ (b & (c ^ d))) + 0x5a827999;
            else if (i < 40)
                next += (b ^ c ^ d) + 0x6ed9eba1;
            else if (i < 60)
                next += ((b & c) | (d & (b | c))) + 0x8f1bbcdc;
            else
                next += (b ^ c ^ d) + 0xca62c1d6;
            e = d;
            d = c;
            c = b << 30 | b >> 2;
            b = a;
            a = next;
        }
        hash[0] += a;
        hash[1] += b;
        hash[2] += c;
        hash[3] += d;
        hash[4] += e;
    }

    constexpr char digits[] = "0123456789abcdef";
    std::array<char, 40> hex{};
    for (std::size_t i = 0; i < 40; ++i) hex[i] = digits[(hash[i / 8] >> (28 - 4 * (i % 8))) & 15];
    return hex;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/script.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A Lua script and its SHA-1 digest, by which EVALSHA calls it.
struct Script {
    std::string_view text;
    std::array<char, 40> sha1;

    consteval explicit Script(std::string_view source) : text(source), sha1(sha1_hex(source)) {}

    // With a digest that was computed before.
    consteval Script(std::string_view source, const char (&digest)[41]) : text(source), sha1{} {
        for (std::size_t i = 0; i < sha1.size(); ++i) sha1[i] = digest[i];
    }

    constexpr std::string_view digest() const { return {sha1.data(), sha1.size()}; }
};

// The script of a text. The compiler computes the digest, slowly. The library's own scripts have theirs beside the text.
template <const std::string_view& text>
inline constexpr Script digested{text};

namespace scripts {

namespace parts {

template <const std::string_view&... parts>
inline constexpr auto joined_array = [] {
    // Plain loops: compilers evaluate them several times as fast as string_view::copy().
    std::array<char, (0 + ... + parts.size())> all{};
    char* to = all.data();
    const auto copy = [&to](const char* from, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) *to++ = from[i];
    };
    (copy(parts.data(), parts.size()), ...);
    return all;
}();

}  // namespace parts

// The text of a script that shares its first parts with others.
template <const std::string_view&... parts>
inline constexpr std::string_view joined{parts::joined_array<parts...>.data(), parts::joined_array<parts...>.size()};

}  // namespace scripts

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/server_check.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

// Tries the commands that the other scripts use, on a key of its own, which it deletes.
inline constexpr std::string_view server_check{R"lua(
-- KEYS: a key that is not in use.  ARGV: the channel and the command of a message.
-- Answer: the names of the commands that this user has no right to.
local key = KEYS[1]
local refused = {}
local function try(name, ...)
    local answer = redis.pcall(name, ...)
    if type(answer) ~= 'table' or not answer.err then return end
    local words = answer.err
    if string.find(words, 'NOPERM', 1, true) or string.find(words, 'The user executing', 1, true) or
        string.find(words, 'No permissions', 1, true) or string.find(words, 'ACL failure', 1, true) then
        refused[#refused + 1] = name
    end
end
try('del', key)
try('exists', key)
try('hset', key, 'f', '1')
try('hincrby', key, 'f', '1')
try('hget', key, 'f')
try('hgetall', key)
try('hkeys', key)
try('hlen', key)
try('hexists', key, 'f')
try('pexpire', key, '1000')
try('pttl', key)
try('hdel', key, 'f')
try('del', key)
try('set', key, '1', 'px', '1000')
try('get', key)
try('incrby', key, '1')
try('decrby', key, '1')
try('del', key)
try('rpush', key, 'e')
try('pexpire', key, '1000')
try('lindex', key, '0')
try('llen', key)
try('lrange', key, '0', '-1')
try('lrem', key, '0', 'x')
try('lpop', key)
try('del', key)
try('zadd', key, '1', 'm')
try('pexpire', key, '1000')
try('zscore', key, 'm')
try('zcard', key)
try('zcount', key, '0', '1')
try('zrange', key, '0', '0')
try('zrangebyscore', key, '0', '1')
try('zremrangebyscore', key, '5', '6')
try('zrem', key, 'm')
try('del', key)
try('time')
try(ARGV[2], ARGV[1], '')
return refused
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::server_check>{scripts::server_check,
    "2bc53ec966fd69f4f7748c5bc828ea6edd5d7237"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/ids.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns random bytes from the system's CSPRNG. Throws std::system_error if there is none.
template <std::size_t N>
std::array<unsigned char, N> random_bytes() {
    static_assert(N <= 256, "getentropy gives at most 256 bytes");
    std::array<unsigned char, N> bytes;
    if (::getentropy(bytes.data(), N) != 0) throw std::system_error(errno, std::generic_category(), "getentropy");
    return bytes;
}

// Returns a random (version 4) UUID in its canonical 36 characters.
inline std::string make_uuid() {
    static constexpr char digits[] = "0123456789abcdef";
    auto bytes = random_bytes<16>();
    bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
    bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
    std::string text;
    text.reserve(36);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits[bytes[i] >> 4];
        text += digits[bytes[i] & 15];
    }
    return text;
}

// Identifies the owner of something within a process: a thread, or an object of class Hold.
using OwnerNumber = std::uint64_t;

inline constexpr OwnerNumber first_hold_owner = OwnerNumber(1) << 63;

// Returns true if the owner is no thread.
constexpr bool is_hold_owner(OwnerNumber owner) noexcept { return owner >= first_hold_owner; }

// Returns a new owner that is no thread. Never reused in this process. Exported as this_thread_number() is.
[[gnu::visibility("default")]] inline OwnerNumber new_hold_owner() noexcept {
    static std::atomic<OwnerNumber> next{first_hold_owner};
    return next.fetch_add(1, std::memory_order_relaxed);
}

// Returns the number of the calling thread. Numbers start at 1 and are never reused in this process, unlike the
// system's thread ids. Exported, because all shared objects of the process must share the numbers; otherwise two
// threads would be one owner.
//
// An object that clang built and that dlopen() loads with RTLD_LOCAL has its own numbers nevertheless. Such objects
// must not share a client or its locks. System thread ids are no alternative, because the system reuses them.
[[gnu::visibility("default")]] inline OwnerNumber this_thread_number() noexcept {
    static std::atomic<OwnerNumber> last{0};
    thread_local const OwnerNumber number = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return number;
}

// Holds the owner as sent to the server, "<uuid>:<number>", without an allocation. A short suffix may follow, or the
// number of one of its holds: "<uuid>:<number>:<hold>".
class OwnerText {
public:
    OwnerText(std::string_view uuid, OwnerNumber number, std::uint64_t hold) noexcept : OwnerText(uuid, number, ":") {
        char* const end = std::to_chars(text_.data() + size_, text_.data() + text_.size(), hold).ptr;
        size_ = static_cast<std::size_t>(end - text_.data());
    }
    OwnerText(std::string_view uuid, OwnerNumber number, std::string_view suffix = {}) noexcept {
        char* end = uuid.copy(text_.data(), 36) + text_.data();
        *end++ = ':';
        end = std::to_chars(end, text_.data() + text_.size(), number).ptr;
        end += suffix.copy(end, longest_suffix);
        size_ = static_cast<std::size_t>(end - text_.data());
    }

    std::string_view view() const noexcept { return {text_.data(), size_}; }
    operator std::string_view() const noexcept { return view(); }

private:
    static constexpr std::size_t longest_suffix = 1 + 20;
    std::array<char, 36 + 1 + 20 + longest_suffix> text_;
    std::size_t size_;
};

// Holds a number as decimal text, without an allocation.
class NumberText {
public:
    explicit NumberText(std::int64_t number) noexcept
        : size_(static_cast<std::size_t>(std::to_chars(text_.data(), text_.data() + text_.size(), number).ptr -
                                         text_.data())) {}

    std::string_view view() const noexcept { return {text_.data(), size_}; }
    operator std::string_view() const noexcept { return view(); }

private:
    std::array<char, 20> text_;
    std::size_t size_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/call.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Stands for the command by which the script reaches the subscribers: PUBLISH or SPUBLISH. Only the transport knows
// which, so the session fills it in.
struct PublishCommand {};

// One word of a call. Refers to a text, which must live until the call is sent, or holds a short one of its own.
class Word {
public:
    Word() = default;
    template <std::convertible_to<std::string_view> Text>
    requires(!std::same_as<Text, OwnerText>) Word(const Text& text) : text_(text) {}
    Word(const OwnerText& owner) : Word(copy(owner.view())) {}
    template <std::integral Number>
    Word(Number number) : Word(copy(NumberText(static_cast<std::int64_t>(number)).view())) {}
    Word(Milliseconds duration) : Word(duration.count()) {}
    Word(PublishCommand) : kind_(Kind::publish_command) {}

    // Copies a text of at most `longest_copy` bytes.
    static Word copy(std::string_view text) {
        Word word;
        word.kind_ = Kind::own;
        word.size_ = static_cast<std::uint8_t>(text.copy(word.own_.data(), longest_copy));
        return word;
    }

    bool is_publish_command() const noexcept { return kind_ == Kind::publish_command; }

    std::string_view view(std::string_view publish_command) const {
        switch (kind_) {
            case Kind::own: return {own_.data(), size_};
            case Kind::publish_command: return publish_command;
            default: return text_;
        }
    }

    static constexpr std::size_t longest_copy = 78;

private:
    enum class Kind : std::uint8_t { text, own, publish_command };

    std::string_view text_;
    std::array<char, longest_copy> own_;  // the text, if it is this word's own
    std::uint8_t size_ = 0;
    Kind kind_ = Kind::text;
};

// Tells whether a command grants something (a hold, a permit, a longer lease), which enough replicas must confirm.
enum class Effect { any, grants };

// One command of a primitive, as a value: a script with its keys and arguments, or a plain command. The protocols make
// calls, and a session sends them. Few words need no allocation.
class Call {
public:
    Call(const Script& script, std::initializer_list<Word> keys, std::initializer_list<Word> arguments,
         Effect of = Effect::any)
        : Call(script, keys, {}, arguments, of) {}

    // A script with two groups of keys.
    Call(const Script& script, std::initializer_list<Word> keys, std::initializer_list<Word> more_keys,
         std::initializer_list<Word> arguments, Effect of)
        : effect(of), script_(&script), key_count_(keys.size() + more_keys.size()) {
        append(keys);
        append(more_keys);
        append(arguments);
    }

    // Returns the call of a plain command. The routing key is its second word.
    static Call command(std::initializer_list<Word> words, Effect effect = Effect::any) {
        Call call(effect);
        call.append(words);
        return call;
    }

    // Appends a key, before any argument.
    void append_key(const Word& word) {
        append(word);
        ++key_count_;
    }

    // Appends further arguments.
    void append(const Word& word) {
        if (size_ == few_.size() && many_.empty()) many_.assign(few_.begin(), few_.end());
        if (size_ < few_.size())
            few_[size_] = word;
        else
            many_.push_back(word);
        ++size_;
        publishes_ |= word.is_publish_command();
    }
    template <class Words>
    requires(!std::convertible_to<const Words&, Word>) void append(const Words& words) {
        for (const auto& word : words) append(Word(word));
    }

    // Returns the script, or null for a plain command.
    const Script* script() const noexcept { return script_; }
    std::size_t key_count() const noexcept { return key_count_; }

    // Returns true if one of the words is the command by which the script publishes.
    bool publishes() const noexcept { return publishes_; }

    // Returns the number of keys and arguments, or of the words of a plain command.
    std::size_t size() const noexcept { return size_; }
    const Word& operator[](std::size_t i) const { return many_.empty() ? few_[i] : many_[i]; }

    Effect effect;

private:
    explicit Call(Effect of) : effect(of) {}

    const Script* script_ = nullptr;
    std::size_t key_count_ = 0;
    std::size_t size_ = 0;
    bool publishes_ = false;
    std::array<Word, 12> few_;
    std::vector<Word> many_;  // all words, if they are more
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/process.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// All shared objects in a process must agree on these values, including those that hide their symbols. So the functions
// are exported.
using ForkCell = std::atomic<std::uint64_t>;

// For kernels that cannot wipe memory at a fork: a handler resets the cell, if the fork goes through the C library.
[[gnu::visibility("default")]] inline ForkCell* wiped_by_handler() noexcept {
    static constinit ForkCell cell{0};
    ::pthread_atfork(nullptr, nullptr, [] { cell = 0; });
    return &cell;
}

// Returns a cell that becomes zero in the child of a fork.
inline ForkCell* new_fork_cell() noexcept {
#ifdef MADV_WIPEONFORK
    constexpr std::size_t size = sizeof(ForkCell);
    void* const page = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) {
        if (::madvise(page, size, MADV_WIPEONFORK) == 0) return new (page) ForkCell{0};
        ::munmap(page, size);
    }
#endif
    return wiped_by_handler();
}

// Returns the cell, which the first caller creates. It takes no lock, because a fork could leave that locked in the
// child.
[[gnu::visibility("default")]] inline ForkCell& fork_cell() noexcept {
    static constinit std::atomic<ForkCell*> cell{nullptr};
    ForkCell* there = cell.load(std::memory_order_acquire);
    if (there) return *there;
    ForkCell* const mine = new_fork_cell();
    return cell.compare_exchange_strong(there, mine) ? *mine : *there;
}

// Returns a number that differs in each process descended from this one.
[[gnu::visibility("default")]] inline std::uint64_t fork_generation() noexcept {
    static constinit std::atomic<std::uint64_t> last{0};  // the child continues from its parent's value
    ForkCell& cell = fork_cell();
    std::uint64_t generation = cell.load(std::memory_order_relaxed);
    if (generation != 0) return generation;
    const std::uint64_t mine = last.fetch_add(1) + 1;
    return cell.compare_exchange_strong(generation, mine) ? mine : generation;
}

// Distinguishes a process from its ancestors. The pid alone does not suffice: in its own PID namespace a child may have
// the pid of its parent.
struct ProcessMark {
    std::uint64_t generation;
    pid_t pid;

    friend bool operator==(const ProcessMark&, const ProcessMark&) = default;
};

inline ProcessMark this_process() noexcept { return {detail::fork_generation(), ::getpid()}; }

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/native_commands.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Tracks which plain commands of newer servers this server has. They are tried in order: one that the server refuses is
// not sent to it again. Thread-safe.
class NativeCommands {
public:
    // How to set a key that does not exist, with a lease.
    enum class Set {
        until,    // SET … PXAT: Redis 6.2. A late copy holds no longer than the first would have
        lasting,  // SET … PX
    };

    // How to delete a key that has a certain value.
    enum class Delete {
        delex,    // DELEX key IFEQ value: Redis 8.4, Valkey 9.2
        delifeq,  // DELIFEQ key value: Valkey 9.0
        script,   // no such command
    };

    Set set() const noexcept { return set_.load(std::memory_order_relaxed); }
    Delete compare_and_delete() const noexcept { return delete_.load(std::memory_order_relaxed); }

    void refused(Set form) noexcept {
        if (form == Set::until) set_.store(Set::lasting, std::memory_order_relaxed);
    }
    void refused(Delete form) noexcept {
        const Delete next = form == Delete::delex ? Delete::delifeq : Delete::script;
        delete_.compare_exchange_strong(form, next, std::memory_order_relaxed);
    }

private:
    std::atomic<Set> set_{Set::until};
    std::atomic<Delete> delete_{Delete::delex};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/protocol_context.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What the protocols of all primitives need to know of their client. The client outlives them.
struct ProtocolContext {
    const std::string& uuid;
    const ClientOptions& options;
    NativeCommands& native;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/thread.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Starts a thread that blocks all signals, so that the program's own threads receive them.
template <class Function>
std::thread thread_with_signals_blocked(Function&& function) {
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    struct Restore {
        const sigset_t& mask;
        ~Restore() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } const restore{before};
    return std::thread(std::forward<Function>(function));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/background_task.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class BackgroundTask;

// One hold that the watchdog is to renew.
struct Renewal {
    std::shared_ptr<BackgroundTask> of;
    std::string key;
    OwnerNumber owner;
    std::uint64_t hold;    // which of the owner's holds, so that a late reply never applies to a later hold
    const Script* script;  // KEYS: locks; ARGV: lease, then a field each; reply: for each 1 = renewed, 0 = not held
    OwnerText field;       // the name of the hold on the server
    std::optional<Milliseconds> lease = std::nullopt;  // none: the watchdog's. Never shortens the lease
};

// The times at which Timers serves each task.
using TimerEntries = std::set<std::pair<Instant, BackgroundTask*>>;

// The entry of a BackgroundTask in one Timers.
class TimerSlot {
public:
    explicit TimerSlot(BackgroundTask& owner) {
        TimerEntries one{{never, &owner}};
        entry_ = one.extract(one.begin());
    }

private:
    friend class Timers;
    std::atomic<Instant> scheduled_{never};  // when Timers serves it; written under the mutex of Timers
    TimerEntries::node_type entry_;          // while it has no time: made here, so that scheduling allocates nothing
};

// The interface through which the threads of a client serve a primitive's local state: it has times at which it needs
// attention, and channels that it listens to. No lock is held during a call. The calling thread is:
//   - the background thread for on_timer() and on_failover()
//   - for subscribed(), subscription_refused(), message() and disconnected() the background thread, or a waiting thread
//     that receives messages itself (Session::watch())
//   - any thread for renewed()
//   - the thread of Losses for expire()
//   - the thread that destroys the session for abandon()
class BackgroundTask : public std::enable_shared_from_this<BackgroundTask> {
public:
    virtual ~BackgroundTask() = default;

    // Called when the scheduled time has come, or will come before `horizon`. Appends the holds to be renewed until
    // then to `due`, and schedules its own next time.
    virtual void on_timer(Instant now, Instant horizon, std::vector<Renewal>& due) = 0;

    // Called on the thread that reports losses, when the time scheduled in Losses::timers() has come. Reports as lost
    // the holds that are no longer certain. No lock is held. It must not wait for anything that waits for a server, and
    // schedules itself only for later instants. If it throws for lack of memory, it is called again in a moment.
    virtual void expire(Instant /* now */) {}

    // Called when the client ends, after the background thread has ended: the last moment to report its holds as lost.
    virtual void abandon() noexcept {}

    // The outcome of a renewal that was sent at `sent`.
    enum class Renewed { yes, refused, unknown };
    virtual void renewed(const Renewal& /* renewal */, Renewed /* outcome */, Instant /* sent */) {}

    // The events of a channel that it listens to.
    virtual void subscribed(const std::string& /* channel */) {}
    virtual void subscription_refused(const std::string& /* channel */, const Reply& /* why */) {}
    virtual void message(const std::string& /* channel */, std::string_view /* payload */) {}
    virtual void disconnected(const std::string& /* channel */) {}

    // Called after a failover: its holds must be verified on the new server.
    virtual void on_failover() {}

private:
    friend class Timers;
    TimerSlot care_{*this};
    TimerSlot loss_{*this};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/call_words.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The words of a call as the server receives them. Few words need no allocation. The call must outlive them.
class CallWords {
public:
    CallWords(const Call& call, std::string_view publish_command)
        : script_(call.script()), key_count_(static_cast<std::int64_t>(call.key_count())) {
        const std::size_t before = script_ ? 3 : 0;
        const std::size_t size = before + call.size();
        if (size > few_.size()) many_.resize(size);
        words_ = size > few_.size() ? std::span(many_) : std::span(few_).first(size);
        if (script_) {
            words_[0] = "EVALSHA";
            words_[1] = script_->digest();
            words_[2] = key_count_;
        }
        for (std::size_t i = 0; i < call.size(); ++i) words_[before + i] = call[i].view(publish_command);
    }
    CallWords(const CallWords&) = delete;
    CallWords& operator=(const CallWords&) = delete;

    // Returns the command that calls the script by its digest, or the plain command.
    Command command() const { return {words_, script_ ? std::size_t{3} : std::size_t{1}}; }

    // Returns the command that sends the text of the script. It replaces the one of command().
    Command by_text() const {
        words_[0] = "EVAL";
        words_[1] = script_->text;
        return {words_, 3};
    }

    std::vector<std::string> copy() const { return {words_.begin(), words_.end()}; }

private:
    const Script* const script_;
    const NumberText key_count_;
    std::array<std::string_view, 16> few_;
    std::vector<std::string_view> many_;
    std::span<std::string_view> words_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/counters.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A number that any thread may raise and read. It orders nothing else.
class Counter {
public:
    void add(std::uint64_t by = 1) noexcept { value_.fetch_add(by, std::memory_order_relaxed); }
    std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

// What a session counts. Stats describes each of the members.
struct Counters {
    Counter commands, acquisitions, waits, handoffs, renewals, lost_holds, resends;

    Stats stats(std::uint64_t reconnects) const noexcept {
        return {commands.value(), acquisitions.value(), waits.value(),   handoffs.value(),
                renewals.value(), lost_holds.value(),   resends.value(), reconnects};
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/notifier.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Runs the user's event handlers on a thread of its own, in order, with no lock of ours held. So a handler that blocks,
// throws or uses the library does not affect renewals or wake-ups and delays no lost() token. The thread starts with
// the first notification or with start(). If no thread can be started, queued events wait until the next notification.
class Notifier {
public:
    Notifier() = default;
    Notifier(const Notifier&) = delete;
    Notifier& operator=(const Notifier&) = delete;

    // Waits for the running handler, unless that handler is what destroys us. Queued events are dropped.
    ~Notifier() {
        {
            const std::lock_guard lock(queue_->mutex);
            queue_->stopped = true;
            queue_->jobs.clear();
        }
        queue_->changed.notify_one();
        if (!thread_.joinable()) return;
        if (thread_.get_id() == std::this_thread::get_id())
            thread_.detach();
        else
            thread_.join();
    }

    // Starts the thread. Throws std::system_error if it cannot.
    void start() {
        const std::lock_guard lock(queue_->mutex);
        start_locked();
    }

    // Queues a job. Throws only std::bad_alloc.
    void notify(std::function<void()> job) {
        const std::lock_guard lock(queue_->mutex);
        if (queue_->stopped) return;
        queue_->jobs.push_back(std::move(job));
        queue_->changed.notify_one();
        try {
            start_locked();
        } catch (const std::system_error&) {  // the next notification retries
        }
    }

private:
    // State shared with the thread, which may outlive the notifier. `mutex` guards the other members and thread_;
    // `changed` wakes the one thread.
    struct Queue {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<std::function<void()>> jobs;
        bool stopped = false;
    };

    void start_locked() {
        if (!thread_.joinable() && !queue_->stopped)
            thread_ = thread_with_signals_blocked([queue = queue_] { work(*queue); });
    }

    static void work(Queue& queue) {
        std::unique_lock lock(queue.mutex);
        for (;;) {
            queue.changed.wait(lock, [&] { return queue.stopped || !queue.jobs.empty(); });
            if (queue.stopped) return;
            std::function<void()> job = std::move(queue.jobs.front());
            queue.jobs.pop_front();
            lock.unlock();
            try {
                job();
            } catch (...) {
                // Swallow: there is no caller to report to.
            }
            job = nullptr;
            lock.lock();
        }
    }

    std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/events.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Passes events on to the user's handler, and tracks whether the server can be reached: that is an event only when it
// changes. Any thread may call anything, with any lock held; the handler runs on the thread of the Notifier.
class Events {
public:
    explicit Events(const ClientOptions& options) : options_(options) {}
    Events(const Events&) = delete;
    Events& operator=(const Events&) = delete;

    // Starts the thread for the handler, if there is one. Throws std::system_error if it cannot.
    void start() {
        if (options_.on_event) notifier_.start();
    }

    // Notifies the user's handler. Drops the event if memory is short.
    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept {
        if (!options_.on_event) return;
        try {
            notifier_.notify([handler = options_.on_event,
                              event = Event{kind, std::string(name), std::string(detail)}] { handler(event); });
        } catch (...) {
        }
    }

    void on_disconnect() noexcept {
        if (!away_.exchange(true)) raise(Event::Kind::disconnected, {}, "the connection to the server is lost");
    }

    void on_reconnect() noexcept {
        if (away_.load(std::memory_order_relaxed) && away_.exchange(false))
            raise(Event::Kind::reconnected, {}, "the server replies again");
    }

private:
    const ClientOptions& options_;
    std::atomic<bool> away_{false};
    Notifier notifier_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/posts_in_flight.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Counts the posted commands whose reply is still to come.
//
// mutex_ guards count_. done_ wakes the thread in wait_for_all(), the one that ends the session, when none is left.
class PostsInFlight {
public:
    void begin() {
        const std::lock_guard lock(mutex_);
        ++count_;
    }

    void finish() {
        const std::lock_guard lock(mutex_);
        if (--count_ == 0) done_.notify_all();
    }

    // Returns false if some are left after `patience`.
    bool wait_for_all(Milliseconds patience) {
        std::unique_lock lock(mutex_);
        return done_.wait_for(lock, patience, [this] { return count_ == 0; });
    }

private:
    std::mutex mutex_;
    std::condition_variable done_;
    std::size_t count_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/remote_clock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Reads the reply to TIME. Returns nothing if it is malformed.
inline std::optional<ServerMilliseconds> read_time(const Reply& reply) {
    if (reply.kind != Reply::Kind::array || reply.elements.size() != 2) return std::nullopt;
    ServerMilliseconds parts[2];
    for (int i = 0; i < 2; ++i) {
        const std::string_view text = reply.elements[static_cast<std::size_t>(i)].text;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parts[i]);
        if (error != std::errc{} || end != text.data() + text.size() || parts[i] < 0) return std::nullopt;
    }
    return parts[0] * 1000 + parts[1] / 1000;
}

// Reads the server's time in ms after a word.
inline std::optional<ServerMilliseconds> read_time_after(std::string_view word, std::string_view text) {
    if (!text.starts_with(word)) return std::nullopt;
    ServerMilliseconds now = 0;
    const char* const first = text.data() + word.size();
    const auto [end, error] = std::from_chars(first, text.data() + text.size(), now);
    if (error != std::errc{} || end == first || now < 0) return std::nullopt;
    return now;
}

// Reads the reply of a script that arrived after the time until which it was wanted: "LATE <the server's time in ms>".
inline std::optional<ServerMilliseconds> read_late(const Reply& reply) {
    return reply.is_error() ? read_time_after("LATE ", reply.text) : std::nullopt;
}

// Reads the reply of a script that succeeded and reports its time: "OK <the server's time in ms>".
inline std::optional<ServerMilliseconds> read_in_time(const Reply& reply) {
    return reply.kind == Reply::Kind::text ? read_time_after("OK ", reply.text) : std::nullopt;
}

// Estimates the clock of a server. The estimate is never behind the server's own clock unless that clock has jumped
// since the reading. So a command that is wanted for one more second is not void before that second is over.
//
// One reading serves all routes. The nodes of a cluster may have different clocks, so a node that turns out to differ
// gets a reading of its own. A reading is valid only for a while, because clocks drift. Only the time at which a
// command becomes void depends on its accuracy: each script checks the server's own clock.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class RemoteClock {
public:
    static constexpr Milliseconds good_for = std::chrono::minutes(5);

    // Returns the server's time, or nothing if the server has to be queried first.
    std::optional<ServerMilliseconds> at(std::uint32_t route, Instant instant) const {
        const std::lock_guard lock(mutex_);
        if (in_doubt_ || instant - read_at_ > good_for) return std::nullopt;
        return offset_of(route) + since_epoch(instant);
    }

    // Returns the server's time from a reading of any age, or nothing if there is none.
    std::optional<ServerMilliseconds> roughly_at(std::uint32_t route, Instant instant) const {
        const std::lock_guard lock(mutex_);
        if (read_at_ == Instant{}) return std::nullopt;
        return offset_of(route) + since_epoch(instant);
    }

    // Records the server's time from a command that was sent at `asked` and answered at `answered`.
    void learn(std::uint32_t route, Instant asked, Instant answered, ServerMilliseconds time) {
        // Add one, because the server truncates to milliseconds.
        const ServerMilliseconds offset = time + 1 - since_epoch(asked);
        const std::lock_guard lock(mutex_);
        if (in_doubt_ || route == route_) {
            offset_ = offset;
            read_at_ = asked;
            uncertainty_ = std::chrono::ceil<Milliseconds>(answered - asked);
            route_ = route;
            in_doubt_ = false;
        } else {
            others_[route] = offset;
        }
    }

    // Returns by how much the server's clock may be behind the estimate: the reply took time, and the reading has aged
    // since. Clocks drift by less than one part in a thousand.
    Milliseconds error_at(Instant instant) const {
        const std::lock_guard lock(mutex_);
        return uncertainty_ + std::chrono::duration_cast<Milliseconds>(instant - read_at_) / 1000 + Milliseconds(2);
    }

    // Returns the age of the reading.
    Clock::duration age_at(Instant instant) const {
        const std::lock_guard lock(mutex_);
        return instant - read_at_;
    }

    // Puts the reading in doubt: another server may answer from here on, or this one with another clock.
    void doubt() {
        const std::lock_guard lock(mutex_);
        in_doubt_ = true;
        others_.clear();
    }

private:
    static ServerMilliseconds since_epoch(Instant instant) {
        return std::chrono::floor<Milliseconds>(instant.time_since_epoch()).count();
    }

    ServerMilliseconds offset_of(std::uint32_t route) const {
        if (others_.empty() || route == route_) return offset_;
        const auto other = others_.find(route);
        return other == others_.end() ? offset_ : other->second;
    }

    mutable std::mutex mutex_;
    ServerMilliseconds offset_ = 0;  // added to the milliseconds of the steady clock
    Instant read_at_{};              // in the past while there is no reading
    Milliseconds uncertainty_{0};    // how long the reply took
    bool in_doubt_ = true;
    std::uint32_t route_ = 0;  // the route of the current reading
    std::unordered_map<std::uint32_t, ServerMilliseconds> others_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/replica_acks.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes replicas confirm what is granted: ClientOptions::require_replicas. WAIT follows a granting command in the same
// write, because WAIT concerns the writes of its own connection. Thread-safe.
class ReplicaAcks {
public:
    explicit ReplicaAcks(const ClientOptions& options)
        : required_(options.require_replicas), patience_(std::max(Milliseconds(1), options.command_timeout / 4)) {}

    bool are_required() const noexcept { return required_ > 0; }

    // Returns true if all replicas are required and their number at the master of this route is unknown.
    bool are_unknown(std::uint32_t route) const { return required_ == all_replicas && known(route) == 0; }
    void forget() {
        const std::lock_guard lock(mutex_);
        known_.clear();
    }
    void learn(std::uint32_t route, const Reply& role) noexcept {
        if (role.kind != Reply::Kind::array || role.elements.size() != 3) return;
        try {
            const std::lock_guard lock(mutex_);
            std::size_t& known = known_[route];
            known = std::max(known, role.elements[2].elements.size());
        } catch (const std::bad_alloc&) {  // the next reply reports it again
        }
    }

    // A command and the queries sent with it. Must live until they are sent.
    class Batch {
    public:
        Batch(const ReplicaAcks& replicas, const Command& command, std::uint32_t to)
            : route(to),
              wanted(replicas.required_ == all_replicas ? std::max<std::size_t>(1, replicas.known(to))
                                                        : replicas.required_),
              number_(static_cast<std::int64_t>(wanted)),
              time_(replicas.patience_.count()),
              wait_{"WAIT", number_, time_},
              commands_{command, Command{wait_, 0}, Command{role_, 0}},
              size_(replicas.required_ == all_replicas ? 3 : 2) {}
        Batch(const Batch&) = delete;
        Batch& operator=(const Batch&) = delete;

        std::span<const Command> commands() const noexcept { return {commands_.data(), size_}; }

        const std::uint32_t route;
        const std::size_t wanted;

    private:
        const NumberText number_, time_;
        const std::array<std::string_view, 3> wait_;
        const std::array<std::string_view, 1> role_{"ROLE"};
        const std::array<Command, 3> commands_;
        const std::size_t size_;
    };

    // Returns the reply to the command from the replies to a batch.
    Reply merged(std::span<Reply> replies, std::uint32_t route, std::size_t wanted) noexcept {
        Reply reply = std::move(replies[0]);
        const Reply& confirmed = replies[1];
        reply.replicated = confirmed.is_integer() && confirmed.integer >= static_cast<std::int64_t>(wanted);
        if (replies.size() > 2) learn(route, replies[2]);
        return reply;
    }

    // Returns one completion per command of a posted batch. `done` is called when all replies are there.
    std::vector<Completion> merging(const Batch& batch, Completion done) {
        struct Answers {
            std::vector<Reply> replies;
            std::atomic<std::size_t> missing;
            std::uint32_t route;
            std::size_t wanted;
            Completion done;
        };
        const std::size_t size = batch.commands().size();
        auto answers = std::make_shared<Answers>();
        answers->replies.resize(size);
        answers->missing = size;
        answers->route = batch.route;
        answers->wanted = batch.wanted;
        answers->done = std::move(done);
        std::vector<Completion> receivers;
        for (std::size_t i = 0; i < size; ++i)
            receivers.push_back([this, answers, i](Reply reply) {
                answers->replies[i] = std::move(reply);
                // The replies may arrive on different threads.
                if (answers->missing.fetch_sub(1) == 1)
                    answers->done(merged(answers->replies, answers->route, answers->wanted));
            });
        return receivers;
    }

private:
    std::size_t known(std::uint32_t route) const {
        const std::lock_guard lock(mutex_);
        const auto entry = known_.find(route);
        return entry == known_.end() ? 0 : entry->second;
    }

    const unsigned required_;
    const Milliseconds patience_;
    mutable std::mutex mutex_;                    // guards known_
    std::map<std::uint32_t, std::size_t> known_;  // the most that the current master of each route has had
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/backoff.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The longest pause between retries of anything that needs a server. All clients must work again within a second after
// the server is back.
inline constexpr Milliseconds longest_pause{500};

// Provides exponential back-off with jitter: each delay is drawn between half and all of a bound that doubles from
// `first` to `most`. The jitter keeps clients that failed together from returning together; it needs no good
// randomness.
class Backoff {
public:
    constexpr Backoff(Milliseconds first, Milliseconds most) : first_(first), most_(most) {}

    // `random` is any number; it selects the delay.
    Clock::duration next(std::uint64_t random) {
        bound_ = bound_ == Milliseconds::zero() ? first_ : std::min(most_, bound_ * 2);
        const auto full = std::chrono::duration_cast<Clock::duration>(bound_);
        const auto half = full / 2;
        return half + Clock::duration(static_cast<Clock::rep>(random % static_cast<std::uint64_t>(half.count() + 1)));
    }

    Clock::duration next() {
        // The low bits of the clock differ between clients, which is enough. A multiplication spreads them (Knuth's, by
        // the golden ratio).
        const auto ticks = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
        return next((ticks * 0x9e37'79b9'7f4a'7c15ULL) >> 16);
    }

    void reset() { bound_ = Milliseconds::zero(); }

private:
    Milliseconds first_;
    Milliseconds most_;
    Milliseconds bound_{0};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/pause.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sleeps until the instant, or until a stop is requested.
inline void pause(Instant until, const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never_notified;
    std::unique_lock lock(mutex);
    never_notified.wait_until(lock, stop, until, [] { return false; });
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/transport/server_errors.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The words of servers. A new error word that means "try again later" goes into
//   is_unavailable()   if the server cannot serve now (users get errc::unreachable), or
//   is_overloaded()    if it refuses for want of memory or time (errc::overloaded),
// and into error_code_word() if an old server can wrap it in a script's error. A node of a cluster that says it counts
// as down if is_from_node_that_is_down() has it.

// Tells what a reply means for its command.
enum class ReplyClass {
    answered,     // done: the reply of the script itself
    no_script,    // the server does not have the script cached: send its text
    no_answer,    // resend: it may or may not have taken effect
    refused_now,  // resend after a pause: it took no effect, and the refusal is temporary
    late,         // it arrived after the time until which it was wanted, and took no effect
    refused,      // permanent: resending is useless
};

// Returns the code word of an error: the first word, or the innermost one if an old server wraps the error of a script
// ("ERR Error running script (…): @user_script:3: -OOM command not allowed …").
inline std::string_view error_code_word(std::string_view text) {
    static constexpr std::array<std::string_view, 6> wrapped{"OOM",        "WRONGTYPE", "MISCONF",
                                                             "NOREPLICAS", "READONLY",  "NOPERM"};
    if (text.starts_with("ERR Error running script"))
        for (const std::string_view code : wrapped)
            if (text.find(std::string(": ") + std::string(code) + " ") != std::string_view::npos ||
                text.find("-" + std::string(code) + " ") != std::string_view::npos)
                return code;
    return text.substr(0, text.find(' '));
}

template <std::size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

inline bool is_unavailable(std::string_view code) {
    static constexpr std::array<std::string_view, 7> codes{"LOADING",  "MASTERDOWN", "READONLY",    "CLUSTERDOWN",
                                                           "TRYAGAIN", "UNBLOCKED",  "NOMASTERLINK"};
    return is_one_of(code, codes);
}

inline bool is_overloaded(std::string_view code, std::string_view text) {
    static constexpr std::array<std::string_view, 4> codes{"BUSY", "OOM", "MISCONF", "NOREPLICAS"};
    return is_one_of(code, codes) || text.starts_with("ERR max number of clients");
}

// Returns true if our credentials or rights do not suffice. The same command may succeed later, because passwords and
// rights may be restored.
inline bool is_denied(std::string_view code, std::string_view text) {
    static constexpr std::array<std::string_view, 4> codes{"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"};
    static constexpr std::array<std::string_view, 6> beginnings{
        // Inside a script: Redis 7.0 sends the first text, later versions since 7.2 the second.
        "ERR The user executing the script", "ERR ACL failure in script",
        // The password was removed from the server.
        "ERR AUTH <password> called without", "ERR Client sent AUTH, but no password", "ERR invalid password",
        // The certificate of either side failed.
        Reply::untrusted};
    return is_one_of(code, codes) || std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view beginning) {
               return text.starts_with(beginning);
           });
}

inline ReplyClass classify(const Reply& reply) {
    switch (reply.kind) {
        case Reply::Kind::not_sent:
        case Reply::Kind::no_time:
        case Reply::Kind::unanswered: return ReplyClass::no_answer;
        case Reply::Kind::malformed: return ReplyClass::refused;
        case Reply::Kind::error: break;
        default: return ReplyClass::answered;
    }
    const std::string_view code = detail::error_code_word(reply.text);
    if (code == "NOSCRIPT") return ReplyClass::no_script;
    if (code == "LATE") return ReplyClass::late;
    if (detail::is_unavailable(code) || detail::is_overloaded(code, reply.text)) return ReplyClass::refused_now;
    return ReplyClass::refused;
}

// Returns true if the command can never succeed: the key has another type, or the script fails. An access-rights
// failure is not final. A caller gets it at once, but a background delivery goes on retrying, because passwords, rights
// and certificates may be corrected.
inline bool is_final(const Reply& reply) {
    return reply.is_error() && classify(reply) == ReplyClass::refused &&
           !detail::is_denied(detail::error_code_word(reply.text), reply.text);
}

// Returns the error that a failed operation on `name` throws; it quotes the server. classify(reply) must not be
// `answered`.
inline Error error_of(const Reply& reply, std::string_view name) {
    switch (reply.kind) {
        case Reply::Kind::not_sent:
        case Reply::Kind::no_time:
            return {errc::unreachable, name, reply.text + "; check that the server is running and the URL is right"};
        case Reply::Kind::unanswered:
            return {errc::unreachable, name, reply.text + "; the command may have taken effect"};
        case Reply::Kind::malformed: return {errc::protocol_error, name, reply.text};
        default: break;
    }
    const std::string_view code = detail::error_code_word(reply.text);
    if (reply.text.starts_with(Reply::untrusted))
        return {errc::rejected, name, escaped(reply.text.substr(Reply::untrusted.size()), 320)};
    const std::string said = "the server replied " + in_quotes(reply.text, 160);
    if (code == "LATE")
        return {errc::unreachable, name,
                said + ": the command arrived after its deadline; check the server's clock for jumps"};
    if (detail::is_unavailable(code)) return {errc::unreachable, name, said};
    if (detail::is_overloaded(code, reply.text)) return {errc::overloaded, name, said};
    if (code == "TOOMANY") return {errc::invalid_argument, name, said};
    if (code == "WRONGTYPE")
        return {errc::wrong_type, name, said + "; something else uses this key; choose another name"};
    if (code == "NOAUTH" || code == "WRONGPASS")
        return {errc::rejected, name, said + "; check the user and the password in the URL"};
    if (code == "NOPERM" || reply.text.starts_with("ERR The user executing the script") ||
        reply.text.starts_with("ERR ACL failure in script"))
        return {errc::rejected, name, said + "; grant this user the access rights (ACL) that the README lists"};
    if (code == "MOVED" || code == "ASK")
        return {errc::rejected, name, said + "; the server is a cluster node; use a redis-cluster:// URL"};
    return {errc::rejected, name, said};
}

// Returns true if a demoted master refused the command: only a replica replies so.
inline bool is_from_replica(const Reply& reply) {
    return reply.is_error() &&
           (reply.text.starts_with("MASTERDOWN") || reply.text.find("READONLY") != std::string::npos);
}

// Returns true if a node of a cluster reports that it cannot serve its slots for now.
inline bool is_from_node_that_is_down(std::string_view text) {
    return text.starts_with("CLUSTERDOWN") || text.starts_with("LOADING") || text.starts_with("MASTERDOWN");
}

// Returns true if a node of a cluster redirects the command to another node.
inline bool is_redirection(std::string_view text) { return text.starts_with("MOVED ") || text.starts_with("ASK "); }

// Returns true if the server does not know an option of the command.
inline bool is_syntax_error(const Reply& reply) { return reply.is_error() && reply.text.starts_with("ERR syntax"); }

// Returns whether the servers have sharded channels (Redis 7), by the reply to PUBSUB SHARDNUMSUB. Redisson tests it by
// the same command. If we have no right to it, the error shows it: it names the subcommand only where that exists.
inline bool has_sharded_channels(const Reply& reply) {
    return !reply.is_error() ||
           (reply.text.starts_with("NOPERM") && reply.text.find("pubsub|shardnumsub") != std::string::npos);
}

// Returns the error for a grant that fewer replicas have than ClientOptions::require_replicas demands.
inline Error not_replicated(std::string_view name) {
    return {errc::not_replicated, name,
            "the client acquired it, but releases it again; check the replicas, and this user's right to WAIT"};
}

// Returns the error for a reply of a shape that the script never sends.
inline Error unexpected(const Reply& reply, std::string_view name) {
    static constexpr std::array<std::string_view, 9> kinds{"nil",     "an integer", "a text",  "an error", "an array",
                                                           "missing", "missing",    "missing", "malformed"};
    return {errc::protocol_error, name,
            "the reply is " + std::string(kinds[static_cast<std::size_t>(reply.kind)]) +
                ", which does not fit the command"};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/retry.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Decides whether a command is sent again, until it is answered or refused for good, until a deadline, or until a stop
// is requested. It sends nothing itself:
//   do
//       reply = …call(…, retry.deadline());
//   while (retry.again(reply));
class Retry {
public:
    struct Limits {
        Instant deadline;
        std::stop_token stop{};
        bool one_try = false;  // true if a temporary refusal ends the call, too
    };

    Retry(const Limits& limits, Milliseconds command_timeout, RemoteClock& clock, Events& events, Counters& counters)
        : limits_(limits), command_timeout_(command_timeout), clock_(clock), events_(events), counters_(counters) {}

    // Returns until when the next try may take. Each has command_timeout.
    Instant deadline() const { return std::min(limits_.deadline, Clock::now() + command_timeout_); }

    // Returns true if an earlier try may have taken effect.
    bool is_resend() const noexcept { return is_resend_; }

    // Takes the reply to a try. Returns true if the command has to be sent again; then it has paused, if the server or
    // a shortage of memory demands it.
    bool again(const Reply& reply) {
        const ReplyClass verdict = classify(reply);
        if (verdict == ReplyClass::answered) {
            events_.on_reconnect();
            return false;
        }
        // no_script here: the server rejected even the text. late: the sender has already resent it with the time that
        // the reply reported.
        if (verdict == ReplyClass::refused || verdict == ReplyClass::no_script || verdict == ReplyClass::late ||
            limits_.stop.stop_requested())
            return false;
        if (limits_.one_try && verdict == ReplyClass::refused_now) return false;
        if (reply.kind == Reply::Kind::unanswered) is_resend_ = true;
        // The transport itself waits for its connection; only a temporary refusal by the server needs a pause.
        if (verdict == ReplyClass::refused_now) rest(std::min(limits_.deadline, Clock::now() + backoff_.next()));
        if (Clock::now() >= limits_.deadline) return false;
        if (verdict == ReplyClass::no_answer) {
            // The next reply may come from another server, or from this one with another clock.
            clock_.doubt();
            events_.on_disconnect();
        }
        counters_.resends.add();
        return true;
    }

private:
    // Sleeps until `until`; only briefly if memory is short.
    void rest(Instant until) const {
        try {
            pause(until, limits_.stop);
        } catch (const std::bad_alloc&) {
            std::this_thread::sleep_for(Milliseconds(1));
        }
    }

    const Limits limits_;
    const Milliseconds command_timeout_;
    RemoteClock& clock_;
    Events& events_;
    Counters& counters_;
    Backoff backoff_{Milliseconds(2), longest_pause};
    bool is_resend_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/executor.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the reply to a command for which memory was short, after a moment in which there may be more.
inline Reply short_of_memory() {
    std::this_thread::sleep_for(Milliseconds(1));
    return Reply::of(Reply::Kind::not_sent, no_memory);
}

// Selects the thread that receives the reply to a posted command: the background thread or the posting one. The posting
// thread then calls attend(), and stop_attending() unless everything is answered.
enum class Receiver { background, poster };

// Sends the commands of a session. call() waits for the reply, post() does not. Counts commands and resends. Any thread
// may call anything.
//
// The transport is destroyed before the executor, because the completions of posted commands refer to the executor.
// After end() it neither wakes the transport nor subscribes, because that is asked of it even later.
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
        const bool is_grant = call.effect == Effect::grants && replicas_.are_required();
        CallWords words(call, publish_command_for(call));
        counters_.commands.add();
        Reply reply = is_grant ? call_granting(words.command(), deadline) : transport_.call(words.command(), deadline);
        if (!call.script() || classify(reply) != ReplyClass::no_script) return reply;
        counters_.commands.add();
        return is_grant ? call_granting(words.by_text(), deadline) : transport_.call(words.by_text(), deadline);
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    // Decides whether a call is sent again: see Retry.
    Retry retry(const Retry::Limits& limits) {
        return Retry(limits, options_.command_timeout, clock_, events_, counters_);
    }

    // --- without waiting: needs a thread in run() of the transport ----------------------------------------------

    // Sends a command without waiting. `done` is called on any thread.
    void post(const Command& command, Completion done, Receiver receiver, Effect effect = Effect::any) {
        Completion finish = [this, done = std::move(done)](Reply reply) { finish_post(done, std::move(reply)); };
        counters_.commands.add();
        posts_.begin();
        try {
            if (effect == Effect::grants && replicas_.are_required())
                post_granting(command, std::move(finish));
            else
                pass_on(receiver, command, std::move(finish));
        } catch (...) {
            posts_.finish();
            throw;
        }
    }

    void post(const Call& call, Completion done, Receiver receiver = Receiver::background) {
        const CallWords words(call, publish_command_for(call));
        if (!call.script()) return post(words.command(), std::move(done), receiver, call.effect);
        // The texts live on the caller's stack, so sending the script itself later needs its own copy of them.
        post(
            words.command(),
            [this, &script = *call.script(), effect = call.effect, kept = words.copy(),
             done = std::move(done)](Reply reply) mutable {
                if (classify(reply) != ReplyClass::no_script) return done(std::move(reply));
                try {
                    std::vector<std::string_view> again(kept.begin(), kept.end());
                    again[0] = "EVAL";
                    again[1] = script.text;
                    post(Command{again, 3}, done, Receiver::background, effect);
                } catch (...) {
                    done(Reply::of(Reply::Kind::not_sent, detail::no_memory));
                }
            },
            receiver, call.effect);
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

    // Sends a command whose grant counts only if enough replicas have it. The reply tells whether they do.
    Reply call_granting(const Command& command, Instant deadline) {
        const std::uint32_t route = route_of(command);
        if (replicas_.are_unknown(route)) {
            const std::array<std::string_view, 1> role{"ROLE"};
            replicas_.learn(route, call({role, 0, command.words[command.key]}, deadline));
        }
        const ReplicaAcks::Batch batch(replicas_, command, route);
        counters_.commands.add(batch.commands().size() - 1);
        std::vector<Reply> replies = transport_.call_all(batch.commands(), deadline);
        return replicas_.merged(replies, route, batch.wanted);
    }

    void post_granting(const Command& command, Completion done) {
        const ReplicaAcks::Batch batch(replicas_, command, route_of(command));
        std::vector<Completion> receivers = replicas_.merging(batch, std::move(done));
        counters_.commands.add(batch.commands().size() - 1);
        transport_.post_all(batch.commands(), receivers);
    }

    void pass_on(Receiver receiver, const Command& command, Completion done) {
        if (receiver == Receiver::poster) return transport_.post_attended(command, std::move(done));
        transport_.post(command, std::move(done));
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

// redlatch/session/subscriptions.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Tracks the channels that this client subscribes to and the tasks that listen to each. Tasks share a subscription. It
// is kept for a while after the last of them lost interest; otherwise a contended lock would subscribe again and again.
//
// mutex_ guards all members. It may be taken while the mutex of a BackgroundTask is held, never the other way round: a
// BackgroundTask is notified only after mutex_ was released.
class Subscriptions final : public Listener {
public:
    static constexpr Milliseconds keep_warm = std::chrono::seconds(5);
    static constexpr Milliseconds try_again{200};

    // `subscribe(channel, wanted)` passes a change on to the transport. `wake` makes the background thread check again.
    Subscriptions(std::function<void(const std::string&, bool)> subscribe, std::function<void()> wake)
        : subscribe_(std::move(subscribe)), wake_(std::move(wake)) {}

    // Registers `who` for the messages of a channel. Returns true if the subscription is already confirmed. Otherwise
    // subscribed() is called when it is.
    bool acquire(const std::string& channel, BackgroundTask& who) {
        const std::lock_guard lock(mutex_);
        auto [entry, is_new] = channels_.try_emplace(channel);
        Channel& c = entry->second;
        auto mine =
            std::find_if(c.listeners.begin(), c.listeners.end(), [&](const Interest& w) { return w.who == &who; });
        try {
            if (mine == c.listeners.end()) mine = c.listeners.insert(c.listeners.end(), Interest{&who, false});
            if (is_new) subscribe_(channel, true);
        } catch (...) {
            if (is_new) channels_.erase(entry);
            throw;
        }
        if (!mine->active) {
            mine->active = true;
            ++c.active;
            ++active_;
        }
        // Not confirmed yet, and perhaps no thread is receiving: wake the background thread.
        if (!is_new && !c.confirmed) wake_();
        return c.confirmed;
    }

    // Ends the active interest of `who`. It may still be notified for a while.
    void release(const std::string& channel, const BackgroundTask& who) {
        bool look_anew = false;
        {
            const std::lock_guard lock(mutex_);
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            for (Interest& w : entry->second.listeners)
                if (w.who == &who && w.active) {
                    w.active = false;
                    --active_;
                    if (--entry->second.active == 0) entry->second.idle_since = Clock::now();
                }
            look_anew = next_sweep_ == never;
            if (look_anew) next_sweep_ = Clock::now() + keep_warm;
        }
        if (look_anew) wake_();
    }

    // Returns true if more than one state has waiters. They may be on different channels or, like both sides of a
    // read-write lock, on one.
    bool has_several_active() {
        const std::lock_guard lock(mutex_);
        return active_ > 1;
    }

    // Removes `who`, which is not notified any more after this. Called by its destructor.
    void remove(const std::string& channel, const BackgroundTask& who) {
        const std::lock_guard lock(mutex_);
        const auto entry = channels_.find(channel);
        if (entry == channels_.end()) return;
        Channel& c = entry->second;
        std::erase_if(c.listeners, [&](const Interest& w) {
            if (w.who != &who) return false;
            if (w.active) {
                --c.active;
                --active_;
            }
            return true;
        });
        if (c.listeners.empty()) drop(entry);
    }

    // --- the background thread --------------------------------------------------------------------------------

    // Returns when sweep() has work.
    Instant due() {
        const std::lock_guard lock(mutex_);
        return next_sweep_;
    }

    // Unsubscribes from channels without active listeners for a while.
    void sweep(Instant now) {
        std::vector<Told> dropped;
        sweep(now, dropped);
        for (const auto& [channel, who] : dropped) who->disconnected(channel);
    }

    void subscribed(const std::string& channel) override {
        for (const auto& who : listeners(channel, [](Channel& c) { c.confirmed = true; })) who->subscribed(channel);
    }

    void refused(const std::string& channel, const Reply& why) override {
        std::vector<std::shared_ptr<BackgroundTask>> told;
        {
            const std::lock_guard lock(mutex_);
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            if (classify(why) == ReplyClass::refused_now) {
                // Busy, loading, too many clients: retry in a moment. Until then waiters rely on their other means.
                entry->second.ask_again = true;
                next_sweep_ = std::min(next_sweep_, Clock::now() + try_again);
                return;
            }
            told = alive(entry->second);
            drop(entry);
        }
        for (const auto& who : told) who->subscription_refused(channel, why);
    }

    void message(const std::string& channel, std::string_view payload) override {
        for (const auto& who : listeners(channel, [](Channel&) {})) who->message(channel, payload);
    }

    void disconnected() override {
        std::vector<Told> told;
        {
            const std::lock_guard lock(mutex_);
            for (auto& [channel, c] : channels_) {
                c.confirmed = false;
                for (auto& who : alive(c)) told.push_back({channel, std::move(who)});
            }
        }
        for (const auto& [channel, who] : told) who->disconnected(channel);
    }

    void interrupted(const std::string& channel) override {
        for (const auto& who : listeners(channel, [](Channel& c) { c.confirmed = false; })) who->disconnected(channel);
    }

private:
    struct Interest {
        BackgroundTask* who;
        bool active;  // true if it has waiters now
    };

    struct Channel {
        std::vector<Interest> listeners;
        std::size_t active = 0;  // the number of active listeners
        bool confirmed = false;
        bool ask_again = false;  // temporarily refused; retry
        Instant idle_since{};
    };

    using Channels = std::unordered_map<std::string, Channel>;

    // An event of a channel, and the task that it is for.
    struct Told {
        std::string channel;
        std::shared_ptr<BackgroundTask> who;
    };

    void sweep(Instant now, std::vector<Told>& dropped) {
        const std::lock_guard lock(mutex_);
        if (now < next_sweep_) return;
        next_sweep_ = never;
        for (auto entry = channels_.begin(); entry != channels_.end();) {
            const auto current = entry++;
            if (std::exchange(current->second.ask_again, false)) subscribe_(current->first, true);
            if (current->second.active > 0) continue;
            if (now < current->second.idle_since + keep_warm) {
                next_sweep_ = std::min(next_sweep_, current->second.idle_since + keep_warm);
                continue;
            }
            for (auto& who : alive(current->second)) dropped.push_back({current->first, std::move(who)});
            drop(current);
        }
    }

    void drop(Channels::iterator entry) noexcept {
        active_ -= entry->second.active;
        const auto dropped = channels_.extract(entry);
        try {
            subscribe_(dropped.key(), false);
        } catch (...) {  // no memory: later messages have no listener and are dropped
        }
    }

    static std::vector<std::shared_ptr<BackgroundTask>> alive(const Channel& c) {
        std::vector<std::shared_ptr<BackgroundTask>> found;
        for (const Interest& w : c.listeners)
            if (auto who = w.who->weak_from_this().lock()) found.push_back(std::move(who));
        return found;
    }

    template <class Change>
    std::vector<std::shared_ptr<BackgroundTask>> listeners(const std::string& channel, Change change) {
        const std::lock_guard lock(mutex_);
        const auto entry = channels_.find(channel);
        if (entry == channels_.end()) return {};
        change(entry->second);
        return alive(entry->second);
    }

    const std::function<void(const std::string&, bool)> subscribe_;
    const std::function<void()> wake_;
    std::mutex mutex_;
    Channels channels_;
    std::size_t active_ = 0;  // active listeners of all channels
    Instant next_sweep_ = never;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/timers.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Holds the deadlines of all tasks that one thread serves, earliest first. A client has two: one for the background
// thread, and one for the thread that reports losses.
//
// schedule() only ever moves an entry to an earlier time. A lock that is acquired and released a thousand times a
// second leaves its entry where it is. When the entry comes up, on_timer() finds nothing due and schedules the next
// time. So acquiring a lock costs no shared work here, and each entry comes up needlessly at most once per renewal
// period.
//
// mutex_ guards all members and all writes to size_ and TimerSlot::scheduled_. No thread waits here. schedule() wakes
// the thread if it sleeps beyond the new deadline.
class Timers {
public:
    // Selects one of the two times of a BackgroundTask.
    enum class Of { care, loss };

    explicit Timers(std::function<void()> wake, Of of = Of::care)
        : wake_(std::move(wake)), slot_(of == Of::care ? &BackgroundTask::care_ : &BackgroundTask::loss_) {}

    // Call it with the task's own mutex held, which on_timer() and expire() take, too. Then an entry that is being
    // taken out is still to be processed, and the first test needs no lock on mutex_.
    void schedule(BackgroundTask& watched, Instant at) noexcept {
        TimerSlot& slot = watched.*slot_;
        if (slot.scheduled_.load() <= at) return;
        {
            const std::lock_guard lock(mutex_);
            const Instant scheduled = slot.scheduled_;
            if (scheduled <= at) return;
            if (scheduled != never) slot.entry_ = entries_.extract({scheduled, &watched});
            slot.scheduled_ = at;
            slot.entry_.value().first = at;
            entries_.insert(std::move(slot.entry_));
            size_ = entries_.size();
            if (at >= sleeping_until_) return;
        }
        wake_();
    }

    // Removes the task. Called by its destructor; after it, take_due() and take_first_due() no longer return the task.
    void forget(BackgroundTask& watched) {
        TimerSlot& slot = watched.*slot_;
        const std::lock_guard lock(mutex_);
        if (const Instant scheduled = slot.scheduled_; scheduled != never) entries_.erase({scheduled, &watched});
        slot.scheduled_ = never;
        size_ = entries_.size();
    }

    // Removes and returns the tasks that are due at `until`.
    std::vector<std::shared_ptr<BackgroundTask>> take_due(Instant until) {
        const std::lock_guard lock(mutex_);
        std::vector<std::shared_ptr<BackgroundTask>> due;
        due.reserve(entries_.size());  // so that a failure changes nothing
        sleeping_until_ = {};
        // Null for a task whose destructor waits for our mutex.
        while (is_due(until))
            if (auto alive = take_first()) due.push_back(std::move(alive));
        return due;
    }

    // Removes and returns the first task that is due at `until`, or null if there is none. Allocates no memory.
    std::shared_ptr<BackgroundTask> take_first_due(Instant until) noexcept {
        const std::lock_guard lock(mutex_);
        sleeping_until_ = {};
        while (is_due(until))
            if (auto alive = take_first()) return alive;
        return nullptr;
    }

    // Makes all tasks due at `at`. Allocates no memory.
    void hasten_all(Instant at) noexcept {
        const std::lock_guard lock(mutex_);
        TimerEntries all;
        while (!entries_.empty()) {
            auto entry = entries_.extract(entries_.begin());
            const Instant sooner = std::min(entry.value().first, at);
            (entry.value().second->*slot_).scheduled_ = entry.value().first = sooner;
            all.insert(std::move(entry));
        }
        entries_.swap(all);
    }

    // Returns the number of scheduled tasks. Takes no mutex, so it may be called with any lock held.
    std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

    // Returns the latest time until which the thread may sleep. The thread calls it when it is about to sleep.
    Instant sleep_until() {
        const std::lock_guard lock(mutex_);
        sleeping_until_ = entries_.empty() ? never : entries_.begin()->first;
        return sleeping_until_;
    }

private:
    bool is_due(Instant until) const { return !entries_.empty() && entries_.begin()->first <= until; }

    std::shared_ptr<BackgroundTask> take_first() {
        BackgroundTask& watched = *entries_.begin()->second;
        TimerSlot& slot = watched.*slot_;
        slot.entry_ = entries_.extract(entries_.begin());
        slot.scheduled_ = never;
        size_ = entries_.size();
        return watched.weak_from_this().lock();
    }

    const std::function<void()> wake_;
    TimerSlot BackgroundTask::*const slot_;
    std::mutex mutex_;
    TimerEntries entries_;
    std::atomic<std::size_t> size_{0};  // of entries_
    Instant sleeping_until_{};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/suspended.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

#ifdef CLOCK_BOOTTIME

inline Clock::duration read_clock(clockid_t clock) noexcept {
    timespec now{};
    ::clock_gettime(clock, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Returns how long this machine has been suspended since boot. The steady clock stops during suspension, but leases do
// not. So an increase brings the end of a hold closer than its instant says. The result is never too large, and too
// small by less than the time between two readings of a clock. Makes no system call where the C library can avoid it.
inline Clock::duration suspended() noexcept {
    Clock::duration least = Clock::duration::max();
    Clock::duration found{};
    // A thread that was delayed or suspended between the readings reads again.
    for (int tries = 0; tries < 5 && least > std::chrono::microseconds(20); ++tries) {
        const Clock::duration before = detail::read_clock(CLOCK_MONOTONIC);
        const Clock::duration since_boot = detail::read_clock(CLOCK_BOOTTIME);
        const Clock::duration after = detail::read_clock(CLOCK_MONOTONIC);
        if (after - before >= least) continue;
        least = after - before;
        found = std::max(since_boot - after, Clock::duration::zero());
    }
    return found;
}

// How often a thread that sleeps until an instant has to look whether the machine was suspended: nothing wakes it then.
inline constexpr Clock::duration suspension_check = std::chrono::seconds(1);

#else

inline Clock::duration suspended() noexcept { return {}; }

inline constexpr Clock::duration suspension_check = Clock::duration::max();

#endif

// Returns the increase since suspended() returned `before`. An increase below 1 ms counts as zero, because the readings
// cannot resolve it.
inline Clock::duration suspended_since(Clock::duration before) noexcept {
    const Clock::duration grown = suspended() - before;
    return grown < Milliseconds(1) ? Clock::duration::zero() : grown;
}

// Records when a command was sent, for a lease that continues while this machine is suspended.
class SendTime {
public:
    // Returns the send time on the steady clock as it is now: earlier by the time suspended since then.
    Instant as_of_now() const noexcept { return at_ - suspended_since(suspended_); }

private:
    Instant at_ = Clock::now();
    Clock::duration suspended_ = suspended();
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/server_time.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Finds out until when a command is wanted, by the clock of the server that receives it. Queries the server only if the
// reading of its clock is too old.
class ServerTime {
public:
    ServerTime(Executor& executor, const ClientOptions& options) : executor_(executor), options_(options) {}
    ServerTime(const ServerTime&) = delete;
    ServerTime& operator=(const ServerTime&) = delete;

    // Returns the current time of the server that has this key. Sends one query (one round trip) if the time is not
    // known. Returns nothing, and the reason in `failure`, if there is no reply.
    std::optional<ServerMilliseconds> now(std::string_view key, Instant deadline, Reply& failure) {
        const std::uint32_t route = route_of(key);
        const Instant asked = Clock::now();
        if (const auto known = clock().at(route, asked)) return known;
        static constexpr std::array<std::string_view, 1> words{"TIME"};
        failure = executor_.call({words, 0, key}, deadline);
        return learn(route, asked, failure);
    }

    // Does the same without waiting. `then(time, failure, receiver)` is called at once, or on any thread after the
    // reply. By then the poster may have stopped attending, so the background thread receives what follows.
    template <class Then>
    void with_now(std::string_view key, Receiver receiver, Then then) {
        const std::uint32_t route = route_of(key);
        const Instant asked = Clock::now();
        if (const auto known = clock().at(route, asked)) return then(known, Reply{}, receiver);
        static constexpr std::array<std::string_view, 1> words{"TIME"};
        executor_.post(
            Command{words, 0, key},
            [this, route, asked, then = std::move(then)](Reply reply) mutable {
                const auto time = learn(route, asked, reply);
                then(time, std::move(reply), Receiver::background);
            },
            receiver);
    }

    // Returns the time until which a renewal is wanted. A renewal must not wait, so an old reading of the clock will
    // do. Without any reading, the renewal is never void.
    ServerMilliseconds wanted_until(std::string_view key) const {
        const auto now = clock().roughly_at(route_of(key), Clock::now());
        return now ? *now + options_.command_timeout.count() : std::numeric_limits<std::int64_t>::max();
    }

    // Learns the server's time from the reply to a script sent at `sent`, if it reports that. Returns true if the script
    // arrived too late.
    bool learn_if_late(std::string_view key, Instant sent, const Reply& reply) {
        const auto late = read_late(reply);
        if (const auto now = late ? late : read_in_time(reply)) clock().learn(route_of(key), sent, Clock::now(), *now);
        return late.has_value();
    }

    // Returns when a lease that begins now expires by the server's clock, for a command that is wanted `until`. Never
    // later than the server's own result; earlier by the error of the clock at most.
    ServerMilliseconds lease_end(ServerMilliseconds until, Milliseconds lease) const {
        return until - options_.command_timeout.count() + lease.count() - clock().error_at(Clock::now()).count();
    }

private:
    // Reads the reply to TIME. If there is none, nothing was changed, so the command that was to follow counts as not
    // sent.
    std::optional<ServerMilliseconds> learn(std::uint32_t route, Instant asked, Reply& reply) {
        const auto time = read_time(reply);
        if (!time) {
            if (classify(reply) == ReplyClass::answered)
                reply = Reply::of(Reply::Kind::malformed, "the reply to TIME is not a time");
            // The command that should have followed was not sent, for want of time. Patience tells by the
            // elapsed time whether the server was too slow or the caller's deadline too near.
            if (reply.kind == Reply::Kind::unanswered) reply.kind = Reply::Kind::no_time;
            return std::nullopt;
        }
        clock().learn(route, asked, Clock::now(), *time);
        // Valid even if another thread has put the clock in doubt since.
        return clock().roughly_at(route, Clock::now());
    }

    RemoteClock& clock() const noexcept { return executor_.clock(); }
    std::uint32_t route_of(std::string_view key) const { return executor_.transport().route(key); }

    Executor& executor_;
    const ClientOptions& options_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/watchdog.hpp

// The watchdog keeps the leases of holds that were taken without a lease of their own. BackgroundTask::on_timer() says
// which renewals are due, the watchdog sends them, and BackgroundTask::renewed() receives the outcome.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline constexpr std::size_t renewals_a_call = 100;

// Sorts renewals into batches that one call can carry out, those with the same route, script and lease, and calls
// `send(batch)` for each. `route(key)` returns the route. Renewals of one batch keep their order.
template <class Route, class Send>
void for_each_batch(std::span<Renewal> due, Milliseconds watchdog_timeout, Route route, Send send) {
    const auto way = [&](const Renewal& r) {
        return std::tuple(route(r.key), r.script, r.lease.value_or(watchdog_timeout));
    };
    std::stable_sort(due.begin(), due.end(), [&](const Renewal& a, const Renewal& b) { return way(a) < way(b); });
    while (!due.empty()) {
        std::size_t size = 1;
        while (size < std::min(due.size(), renewals_a_call) && way(due[size]) == way(due[0])) ++size;
        send(std::span<const Renewal>(due.first(size)));
        due = due.subspan(size);
    }
}

// Returns the call that renews a batch. The batch must outlive it.
inline Call renewal_call(std::span<const Renewal> batch, Milliseconds watchdog_timeout, ServerMilliseconds until) {
    Call call(*batch.front().script, {}, {}, Effect::grants);
    for (const Renewal& renewal : batch) call.append_key(renewal.key);
    call.append(batch.front().lease.value_or(watchdog_timeout));
    call.append(until);
    for (const Renewal& renewal : batch) call.append(renewal.field);
    return call;
}

// Reads the outcome of one renewal of a batch from the reply. A renewal that too few replicas confirmed is unknown.
inline BackgroundTask::Renewed outcome_of(const Reply& reply, std::size_t index, std::size_t batch_size) {
    const bool whole = reply.kind == Reply::Kind::array && reply.elements.size() == batch_size;
    if (!whole || !reply.elements[index].is_integer()) return BackgroundTask::Renewed::unknown;
    if (reply.elements[index].integer != 1) return BackgroundTask::Renewed::refused;
    return reply.replicated ? BackgroundTask::Renewed::yes : BackgroundTask::Renewed::unknown;
}

// Sends renewals, up to a hundred in one call. Used by the background thread only, which never waits for a reply.
class Watchdog {
public:
    Watchdog(Executor& executor, ServerTime& server_time, Events& events, Counters& counters,
             Milliseconds watchdog_timeout)
        : executor_(executor),
          server_time_(server_time),
          events_(events),
          counters_(counters),
          watchdog_timeout_(watchdog_timeout) {}
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    // Returns how much earlier than necessary to renew a hold if another one is due. So holds that were acquired at
    // different times are renewed together from then on.
    Milliseconds early() const noexcept { return watchdog_timeout_ / 6; }

    void renew(std::vector<Renewal> due) {
        for_each_batch(
            due, watchdog_timeout_, [this](std::string_view key) { return executor_.transport().route(key); },
            [this](std::span<const Renewal> batch) { send_or_try_again(batch); });
    }

private:
    void send_or_try_again(std::span<const Renewal> batch) {
        try {
            send({batch.begin(), batch.end()});
        } catch (...) {
            for (const Renewal& renewal : batch)
                renewal.of->renewed(renewal, BackgroundTask::Renewed::unknown, Clock::now());
        }
    }

    void send(std::vector<Renewal> batch) {
        const Call call = renewal_call(batch, watchdog_timeout_, server_time_.wanted_until(batch.front().key));
        const SendTime sent_at;
        const Instant sent = Clock::now();
        executor_.post(call, [this, sent, sent_at, batch = std::move(batch)](const Reply& reply) {
            classify(reply) == ReplyClass::no_answer ? events_.on_disconnect() : events_.on_reconnect();
            server_time_.learn_if_late(batch.front().key, sent, reply);
            for (std::size_t i = 0; i < batch.size(); ++i) {
                const auto outcome = outcome_of(reply, i, batch.size());
                if (outcome == BackgroundTask::Renewed::yes && !batch[i].lease) counters_.renewals.add();
                batch[i].of->renewed(batch[i], outcome, sent_at.as_of_now());
            }
        });
    }

    Executor& executor_;
    ServerTime& server_time_;
    Events& events_;
    Counters& counters_;
    const Milliseconds watchdog_timeout_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/background.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The background thread of a session. It starts with the first try, wait or posted command. It runs the transport,
// serves the timers and sends renewals. It never waits for a reply or a connection, and never calls user code. Timers,
// subscriptions and the executor wake it through the transport.
//
// mutex_ guards the start of the thread. No thread waits here but the one in end().
class Background {
public:
    Background(Executor& executor, Watchdog& watchdog, Timers& timers, Subscriptions& subscriptions, Listener& listener)
        : executor_(executor),
          transport_(executor.transport()),
          watchdog_(watchdog),
          timers_(timers),
          subscriptions_(subscriptions),
          listener_(listener) {}
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    void start() {
        if (started_.load(std::memory_order_acquire)) return;
        const std::lock_guard lock(mutex_);
        if (thread_.joinable()) return;
        thread_ = thread_with_signals_blocked([this] { serve(); });
        started_.store(true, std::memory_order_release);
    }

    // Waits for the thread, which Executor::end() has ended. A silent server can delay it by one command_timeout.
    void end() {
        if (thread_.joinable()) thread_.join();
    }

    // Makes the calling thread receive messages itself until one has arrived, interrupts() differs from `seen`, or
    // `until` has come. Returns false if it has to leave that to the background thread.
    bool watch(Instant until, std::uint64_t seen) {
        if (!transport_.watch(listener_, until, seen)) return false;
        if (subscriptions_.has_several_active()) transport_.wake();
        return true;
    }

    // Read it before unlocking the mutex under which interrupt_watch() is called.
    std::uint64_t interrupts() { return transport_.interrupts(); }

    void interrupt_watch() { transport_.interrupt_watch(); }

private:
    void serve() {
        while (!executor_.has_ended()) {
            try {
                transport_.run(listener_, std::min({timers_.sleep_until(), subscriptions_.due(), unfinished_until_}));
                look_after(Clock::now());
            } catch (...) {
                // Out of memory: the tasks left in unfinished_ are served in a moment.
                unfinished_until_ = Clock::now() + Milliseconds(5);
            }
        }
    }

    void look_after(Instant now) {
        std::vector<Renewal> due;
        try {
            serve_due(now, now, due);
            if (!due.empty()) serve_due(now, now + watchdog_.early(), due);
        } catch (...) {
            watchdog_.renew(std::move(due));
            throw;
        }
        if (!due.empty()) watchdog_.renew(std::move(due));
        unfinished_until_ = never;
        subscriptions_.sweep(now);
    }

    // Tasks that could not be served for lack of memory stay in unfinished_.
    void serve_due(Instant now, Instant horizon, std::vector<Renewal>& due) {
        if (unfinished_.empty()) unfinished_ = timers_.take_due(horizon);
        for (; !unfinished_.empty(); unfinished_.pop_back()) unfinished_.back()->on_timer(now, horizon, due);
    }

    Executor& executor_;
    TransportPort& transport_;
    Watchdog& watchdog_;
    Timers& timers_;
    Subscriptions& subscriptions_;
    Listener& listener_;
    std::mutex mutex_;
    std::atomic<bool> started_{false};
    // Used by the thread only: the tasks that are still to be served, and the latest time for that.
    std::vector<std::shared_ptr<BackgroundTask>> unfinished_;
    Instant unfinished_until_ = never;
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/named_state.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class Session;

// The local state of one name: all objects of that kind and name in this process share it. Registry keeps it.
class NamedState : public BackgroundTask {
public:
    virtual std::string_view kind() const noexcept = 0;
    virtual const std::string& key() const noexcept = 0;
    virtual Session& session() const noexcept = 0;

    // Returns true if nothing would be lost with it: no hold, no waiter, no command that is still to be delivered.
    virtual bool is_idle() = 0;
};

// Makes the local state of a name, for objects of one kind.
struct StateMaker {
    std::string_view kind;
    std::shared_ptr<NamedState> (*make)(Session& session, const std::string& key);
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/registry.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The local state of every name in use: one state per kind of primitive and key, shared by all objects of that name.
//
// mutex_ guards states_. A state's own mutex may be taken while it is held, never the other way round. No thread waits
// here.
class Registry {
public:
    Registry() = default;
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // Returns the state of `key` and counts one more user. Makes the state if there is none.
    NamedState& use(const StateMaker& maker, Session& session, const std::string& key) {
        const std::lock_guard lock(mutex_);
        auto entry = states_.find({maker.kind, key});
        if (entry == states_.end()) {
            auto state = maker.make(session, key);
            const Name name{state->kind(), state->key()};
            entry = states_.emplace(name, Entry{std::move(state)}).first;
        }
        ++entry->second.users;
        return *entry->second.state;
    }

    // Counts one user less. A state without users and holds is removed.
    void leave(NamedState& state) { forget(state, 1); }

    void forget_if_unused(NamedState& state) { forget(state, 0); }

    void on_failover() {
        for (const auto& state : all()) state->on_failover();
    }

    // Called when no other thread uses the session any more.
    void abandon() noexcept {
        for (const auto& [_, entry] : states_) entry.state->abandon();
    }

private:
    // Kind and key. The text belongs to the state itself, so a lookup allocates nothing.
    using Name = std::pair<std::string_view, std::string_view>;
    struct NameHash {
        std::size_t operator()(const Name& name) const noexcept {
            return std::hash<std::string_view>()(name.first) * 31 + std::hash<std::string_view>()(name.second);
        }
    };

    struct Entry {
        std::shared_ptr<NamedState> state;
        std::size_t users = 0;
    };

    void forget(NamedState& state, std::size_t users_less) {
        // Destroyed after mutex_ is free: a state's destructor takes other mutexes.
        std::shared_ptr<NamedState> last;
        const std::lock_guard lock(mutex_);
        const auto entry = states_.find({state.kind(), state.key()});
        if (entry == states_.end() || entry->second.state.get() != &state) return;
        entry->second.users -= users_less;
        if (entry->second.users > 0 || !state.is_idle()) return;
        last = std::move(entry->second.state);
        states_.erase(entry);
    }

    std::vector<std::shared_ptr<NamedState>> all() {
        std::vector<std::shared_ptr<NamedState>> states;
        const std::lock_guard lock(mutex_);
        for (const auto& [_, entry] : states_) states.push_back(entry.state);
        return states;
    }

    std::mutex mutex_;
    std::unordered_map<Name, Entry, NameHash> states_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/connection_listener.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What a session hears from its transport: passes everything on to the subscriptions, and tracks whether the server can
// be reached and whether it is another one.
class ConnectionListener final : public Listener {
public:
    ConnectionListener(Subscriptions& subscriptions, Events& events, Registry& registry, RemoteClock& clock,
                       ReplicaAcks& replicas)
        : subscriptions_(subscriptions), events_(events), registry_(registry), clock_(clock), replicas_(replicas) {}
    ConnectionListener(const ConnectionListener&) = delete;
    ConnectionListener& operator=(const ConnectionListener&) = delete;

    void subscribed(const std::string& channel) override {
        events_.on_reconnect();
        subscriptions_.subscribed(channel);
    }

    void refused(const std::string& channel, const Reply& why) override { subscriptions_.refused(channel, why); }

    void message(const std::string& channel, std::string_view payload) override {
        subscriptions_.message(channel, payload);
    }

    void disconnected() override {
        events_.on_disconnect();
        subscriptions_.disconnected();
    }

    void interrupted(const std::string& channel) override { subscriptions_.interrupted(channel); }

    // Holds may be lost on the new server. Waiters wake when their subscription is made again.
    void on_failover() override {
        replicas_.forget();
        clock_.doubt();
        registry_.on_failover();
        events_.raise(Event::Kind::moved, {}, "another server is the master now");
    }

private:
    Subscriptions& subscriptions_;
    Events& events_;
    Registry& registry_;
    RemoteClock& clock_;
    ReplicaAcks& replicas_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/key_holds.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Records which owners in this process hold a key, whatever the kind of lock. Two kinds of locks on one key would
// mistake each other's holds for their own. So the second kind is refused while the process holds the first. Both sides
// of a read-write lock are one family. The read side finds out here whether its owner is the writer.
//
// Thread-safe: mutex_ guards all members. It is taken while the mutex of a lock's state is held. No thread waits here.
class KeyHolds {
public:
    // One hold, by its number. `writes` is true for the write side.
    struct Entry {
        std::string_view family;
        OwnerNumber owner;
        std::uint64_t hold;
        bool writes;
    };

    void taken(const Entry& entry) {
        const std::lock_guard lock(mutex_);
        entries_.push_back(entry);
    }

    void ended(std::uint64_t hold) noexcept {
        const std::lock_guard lock(mutex_);
        std::erase_if(entries_, [hold](const Entry& e) { return e.hold == hold; });
    }

    // Returns another family that holds the key, or an empty string if there is none.
    std::string_view other_than(std::string_view family) const noexcept {
        const std::lock_guard lock(mutex_);
        for (const Entry& e : entries_)
            if (e.family != family) return e.family;
        return {};
    }

    // Returns the number of the owner's hold as the writer, or 0 if it has none.
    std::uint64_t writer_of(OwnerNumber owner) const noexcept {
        const std::lock_guard lock(mutex_);
        for (const Entry& e : entries_)
            if (e.writes && e.owner == owner) return e.hold;
        return 0;
    }

private:
    mutable std::mutex mutex_;
    std::vector<Entry> entries_;
};

// Finds the record of each key. A record lives as long as someone refers to it.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class KeyHoldsTable {
public:
    std::shared_ptr<KeyHolds> of(const std::string& key) {
        const std::lock_guard lock(mutex_);
        if (records_.size() >= limit_) {
            std::erase_if(records_, [](const auto& entry) { return entry.second.expired(); });
            limit_ = std::max<std::size_t>(64, records_.size() * 2);
        }
        std::weak_ptr<KeyHolds>& entry = records_[key];
        auto holds = entry.lock();
        if (!holds) entry = holds = std::make_shared<KeyHolds>();
        return holds;
    }

private:
    std::mutex mutex_;
    std::unordered_map<std::string, std::weak_ptr<KeyHolds>> records_;
    std::size_t limit_ = 64;  // at this size, expired records are erased
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/wait_on.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Waits like wait_until(). `never` means without a timeout, because it would overflow a timespec. May wake spuriously.
inline void wait_on(std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Instant until) {
    if (until == never)
        wake.wait(lock);
    else
        wake.wait_until(lock, until);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/lateness.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Measures how late one thread recently was to do its due work: the longest delay of the last one or two spans. A span
// is longer than the time between two wake-ups of an idle client. One thread measures; any thread may query.
class Lateness {
public:
    static constexpr Milliseconds span = std::chrono::minutes(1);
    static constexpr Milliseconds shortest_notice{5};
    static constexpr Milliseconds longest_notice{200};

    // Records that work due at `due` was done at `now`.
    void add(Instant due, Instant now) noexcept {
        if (now >= begun_ + span) {
            before_ = now >= begun_ + 2 * span ? Clock::duration::zero() : longest_.load();
            longest_ = Clock::duration::zero();
            begun_ = now;
        }
        longest_ = std::max(longest_.load(), now - due);
    }

    // Returns how much earlier to schedule work that must not be late: twice the lateness.
    Clock::duration notice() const noexcept {
        const Clock::duration late = std::max(longest_.load(), before_.load());
        return std::clamp<Clock::duration>(std::min<Clock::duration>(late, longest_notice) * 2, shortest_notice,
                                           longest_notice);
    }

private:
    std::atomic<Clock::duration> longest_{Clock::duration::zero()};  // in this span
    std::atomic<Clock::duration> before_{Clock::duration::zero()};   // in the previous span
    Instant begun_{};  // start of this span; used by the measuring thread only
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/losses.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The stop source of a lost() token. It holds all that reporting needs, so reporting cannot fail.
class LossSource {
public:
    std::stop_token get_token() const noexcept { return one_.front().get_token(); }

private:
    friend class Losses;
    std::list<std::stop_source> one_{1};
};

// Reports losses in time, whatever the transport, the server and the event handlers do. A thread of its own checks
// holds that are no longer certain (BackgroundTask::expire()). It requests the stop tokens of lost holds in order, with
// no lock of ours held. Their callbacks are the user's, and one that blocks delays those after it.
//
// start() comes before there is anything to lose, and may fail. After it, reporting needs neither a new thread nor
// memory.
class Losses {
public:
    Losses() = default;
    Losses(const Losses&) = delete;
    Losses& operator=(const Losses&) = delete;
    ~Losses() { end(); }

    // The deadlines at which BackgroundTask::expire() is called.
    Timers& timers() noexcept { return desk_->timers; }

    // Starts the thread. Throws std::system_error if it cannot.
    void start() {
        const std::lock_guard lock(desk_->mutex);
        if (thread_.joinable() || desk_->ended) return;
        // Read here: the machine may be suspended before the thread runs, but after the first hold.
        thread_ =
            thread_with_signals_blocked([desk = desk_, suspended = detail::suspended()] { work(*desk, suspended); });
    }

    // Requests a stop on the token soon; without a thread, in end(). Any lock may be held.
    void tell(LossSource lost) noexcept {
        const std::lock_guard lock(desk_->mutex);
        desk_->told.splice(desk_->told.end(), lost.one_);
        desk_->changed.notify_one();
    }

    // Returns how long before the end of a lease to report its loss, because reporting takes time. It is the sum of two
    // parts, limited to Lateness::longest_notice:
    //   - twice the recent lateness of the thread
    //   - the time to report to every owner, because holds that are renewed together are lost together
    Clock::duration notice() const noexcept {
        const Clock::duration all = one_telling * static_cast<std::int64_t>(desk_->timers.size());
        return std::min<Clock::duration>(desk_->lateness.notice() + all, Lateness::longest_notice);
    }

    // Reports what is still queued and ends the thread. If the thread itself calls it, the thread ends by itself
    // afterwards.
    void end() {
        {
            const std::lock_guard lock(desk_->mutex);
            desk_->ended = true;
            desk_->changed.notify_one();
        }
        if (thread_.get_id() == std::this_thread::get_id()) {
            thread_.detach();
        } else {
            if (thread_.joinable()) thread_.join();
            tell_all(*desk_);
        }
    }

private:
    // State shared with the thread, which may outlive us. `mutex` guards the members after it and the start of the
    // thread; `changed` wakes the thread.
    struct Desk {
        Lateness lateness;
        Timers timers{[this] { wake(); }, Timers::Of::loss};
        std::mutex mutex;
        std::condition_variable changed;
        std::list<std::stop_source> told;
        bool woken = false;  // an earlier deadline was scheduled
        bool ended = false;

        void wake() {
            const std::lock_guard lock(mutex);
            woken = true;
            changed.notify_one();
        }
    };

    static constexpr Milliseconds again{5};
    static constexpr std::chrono::microseconds one_telling{10};  // a generous estimate

    // `suspended`: for how long the machine had been suspended when there was nothing to lose yet.
    static void work(Desk& desk, Clock::duration suspended) {
        while (sleep(desk, desk.timers.sleep_until(), suspended)) {
            const Instant due = desk.timers.sleep_until();  // may be an earlier one that woke the thread
            const Instant now = Clock::now();
            if (const auto grown = suspended_since(suspended); grown > Clock::duration::zero()) {
                // The leases went on meanwhile: each lock looks how much is left.
                suspended += grown;
                desk.timers.hasten_all(now);
            }
            // One after another, so that no owner waits for the callbacks of later ones.
            while (expire_first_due(desk, now)) tell_all(desk);
            tell_all(desk);
            if (due <= now) desk.lateness.add(due, Clock::now());
        }
        tell_all(desk);
    }

    // Returns true if a task was due. On return it refers to nothing of the client: user code runs next and may destroy
    // the client.
    static bool expire_first_due(Desk& desk, Instant now) noexcept {
        const auto watched = desk.timers.take_first_due(now);
        if (!watched) return false;
        try {
            watched->expire(now);
        } catch (...) {
            desk.timers.schedule(*watched, now + again);
        }
        return true;
    }

    // Sleeps until there is work: something to report, an earlier deadline, or the end of a suspension of the machine.
    // `suspended`: for how long it was suspended when the deadlines were computed. Returns false at the end.
    static bool sleep(Desk& desk, Instant until, Clock::duration suspended) {
        std::unique_lock lock(desk.mutex);
        while (!desk.ended && !desk.woken && desk.told.empty()) {
            const Instant now = Clock::now();
            if (now >= until || suspended_since(suspended) > Clock::duration::zero()) break;
            wait_on(desk.changed, lock,
                    until == never ? never : std::min(until, deadline_after(now, suspension_check)));
        }
        desk.woken = false;
        return !desk.ended;
    }

    static void tell_all(Desk& desk) {
        for (;;) {
            std::list<std::stop_source> one;
            {
                const std::lock_guard lock(desk.mutex);
                if (desk.told.empty()) return;
                one.splice(one.begin(), desk.told, desk.told.begin());
            }
            one.front().request_stop();
        }
    }

    std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/lost_levels.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Remembers levels of lost holds whose unlock() is still to come: that unlock() reports errc::hold_lost, not
// errc::not_owner. They are kept for the process rather than with the lock, because the locked object may be gone by
// then. Many unlock() calls never come, because a hold with its own lease need not be released. So only the latest are
// kept.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class LostLevels {
public:
    static constexpr std::size_t most = 10'000;

    void add(std::string_view kind, std::string_view key, OwnerNumber owner, std::uint32_t levels) {
        std::string name = name_of(kind, key, owner);
        const std::lock_guard lock(mutex_);
        if (levels_.size() >= most) {
            levels_.erase(order_.front());
            order_.pop_front();
        }
        if (!levels_.contains(name)) order_.push_back(name);
        levels_[std::move(name)] += levels;
    }

    // Takes one level. Returns true if there was one.
    bool take(std::string_view kind, std::string_view key, OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        if (levels_.empty()) return false;
        const auto found = levels_.find(name_of(kind, key, owner));
        if (found == levels_.end() || found->second == 0) return false;
        --found->second;
        return true;
    }

private:
    static std::string name_of(std::string_view kind, std::string_view key, OwnerNumber owner) {
        std::string name = std::to_string(owner);
        return name.append(" ").append(kind).append(key);
    }

    std::mutex mutex_;
    std::unordered_map<std::string, std::uint32_t> levels_;
    std::deque<std::string> order_;  // of first insertion
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/session.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Owns what all primitives of one client share within one process: the transport, the identity, the counters, the
// background thread with its timers and subscriptions, and the local state of every name in use. Each part has a file
// of its own, which documents the members that are passed on to it here.
//
// Urgent work at the end of a hold is left to the thread of Losses, which never waits for a server.
class Session {
public:
    Session(std::unique_ptr<TransportPort> transport, const ClientOptions& options, const Session* parent = nullptr)
        : transport_(std::move(transport)),
          options_(options),
          parent_(parent),
          timers_([this] { executor_.wake(); }),
          subscriptions_([this](const std::string& channel, bool wanted) { executor_.subscribe(channel, wanted); },
                         [this] { executor_.wake(); }) {}

    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // No thread of ours is left when the states report their holds as lost, and all of that is reported before anything
    // is destroyed: first the transport, whose completions refer to the states and to everything else.
    ~Session() {
        executor_.end();
        background_.end();
        registry_.abandon();
        losses_.end();
        transport_.reset();
    }

    const ClientOptions& options() const noexcept { return options_; }
    const std::string& uuid() const noexcept { return uuid_; }

    // Returns false in a child that was forked after this session was created.
    bool is_of_this_process() const noexcept { return process_ == this_process(); }

    // Returns true if this process was forked from one that used the client. Holds of the parent are then not ours.
    bool is_fork_child() const noexcept { return parent_ != nullptr; }

    // Returns the number of a request that leaves a mark on the server against its own copies. A number is never reused
    // in a session, because a mark outlives the local state that made it.
    std::uint64_t next_request() { return ++last_request_; }

    ProtocolContext protocol_context() noexcept { return {uuid_, options_, native_commands_}; }

    // Also valid while the transport is being destroyed.
    TransportPort& transport() noexcept { return executor_.transport(); }
    Timers& timers() noexcept { return timers_; }
    Losses& losses() noexcept { return losses_; }
    Subscriptions& subscriptions() noexcept { return subscriptions_; }
    LostLevels& lost_levels() noexcept { return lost_levels_; }

    // --- commands: Executor -----------------------------------------------------------------------------------

    Reply call(const Command& command, Instant deadline) { return executor_.call(command, deadline); }
    Reply call(const Call& call, Instant deadline) { return executor_.call(call, deadline); }

    // Decides whether a call is sent again: `do reply = call(…, retry.deadline()); while (retry.again(reply));`
    Retry retry(Instant deadline, std::stop_token stop = {}, bool one_try = false) {
        return executor_.retry({deadline, std::move(stop), one_try});
    }

    void post(const Command& command, Completion done, Receiver receiver = Receiver::background) {
        start_background();
        executor_.post(command, std::move(done), receiver);
    }
    void post(const Call& call, Completion done, Receiver receiver = Receiver::background) {
        start_background();
        executor_.post(call, std::move(done), receiver);
    }

    void attend() { executor_.attend(); }
    void stop_attending() { executor_.stop_attending(); }

    // --- expiry of commands by the server's clock: ServerTime, RemoteClock ----------------------------------------

    std::optional<ServerMilliseconds> server_time(std::string_view key, Instant deadline, Reply& failure) {
        return server_time_.now(key, deadline, failure);
    }

    template <class Then>
    void with_server_time(std::string_view key, Receiver receiver, Then then) {
        start_background();
        server_time_.with_now(key, receiver, std::move(then));
    }

    ServerMilliseconds wanted_until(std::string_view key) const { return server_time_.wanted_until(key); }
    bool learn_if_late(std::string_view key, Instant sent, const Reply& reply) {
        return server_time_.learn_if_late(key, sent, reply);
    }
    ServerMilliseconds lease_end(ServerMilliseconds until, Milliseconds lease) const {
        return server_time_.lease_end(until, lease);
    }
    Milliseconds clock_error() { return executor_.clock().error_at(Clock::now()); }
    Clock::duration clock_age() { return executor_.clock().age_at(Clock::now()); }
    RemoteClock& server_clock() noexcept { return executor_.clock(); }

    // --- threads: Background, Events, Losses ------------------------------------------------------------------

    void start_background() { background_.start(); }
    bool watch(Instant until, std::uint64_t seen) { return background_.watch(until, seen); }
    std::uint64_t interrupts() { return background_.interrupts(); }
    void interrupt_watch() { background_.interrupt_watch(); }

    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept {
        events_.raise(kind, name, detail);
    }

    // Starts everything that reporting a loss needs, so that reporting cannot fail later. Call it before anything is
    // held. Throws std::system_error if no thread can be started.
    void start_losses() {
        if (losses_started_.load(std::memory_order_acquire)) return;
        losses_.start();
        events_.start();
        losses_started_.store(true, std::memory_order_release);
    }

    // --- counters ---------------------------------------------------------------------------------------------

    void count_acquisition() { counters_.acquisitions.add(); }
    void count_wait() { counters_.waits.add(); }
    void count_handoff() { counters_.handoffs.add(); }
    void count_renewal() { counters_.renewals.add(); }
    void count_lost_hold() { counters_.lost_holds.add(); }

    Stats stats() const { return counters_.stats(transport_->reconnects()); }

    // --- the local state of names: Registry, KeyHoldsTable ------------------------------------------------------

    NamedState& use_state(const StateMaker& maker, const std::string& key) { return registry_.use(maker, *this, key); }
    void leave_state(NamedState& state) { registry_.leave(state); }
    void forget_if_unused(NamedState& state) { registry_.forget_if_unused(state); }

    // Returns the record of the threads of this process that hold the key, whatever the kind of lock.
    std::shared_ptr<KeyHolds> key_holds(const std::string& key) { return key_holds_.of(key); }

private:
    std::unique_ptr<TransportPort> transport_;
    const ClientOptions options_;
    const Session* const parent_;  // left as it was at the fork; never accessed
    const std::string uuid_ = make_uuid();
    const ProcessMark process_ = this_process();
    std::atomic<std::uint64_t> last_request_{0};
    std::atomic<bool> losses_started_{false};

    // Destroyed in the reverse order, after the transport: first the last references to states, in the background and in
    // the registry. Their destructors leave the timers and the subscriptions, which still call the executor. Then the
    // rest.
    NativeCommands native_commands_;
    LostLevels lost_levels_;
    KeyHoldsTable key_holds_;
    Counters counters_;
    Events events_{options_};
    Losses losses_;
    Executor executor_{*transport_, options_, counters_, events_};
    ServerTime server_time_{executor_, options_};
    Watchdog watchdog_{executor_, server_time_, events_, counters_, options_.watchdog_timeout};
    Timers timers_;
    Subscriptions subscriptions_;
    Registry registry_;
    ConnectionListener listener_{subscriptions_, events_, registry_, executor_.clock(), executor_.replicas()};
    Background background_{executor_, watchdog_, timers_, subscriptions_, listener_};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/queries.hpp

// Queries the state of a primitive on the server. One round trip each. If the server is unreachable, a query retries
// for unreachable_timeout, or until `limit` if that is earlier. All throw Error.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sends a call that may be repeated at will and returns the reply.
inline Reply query(Session& session, std::string_view key, const Call& call, Instant limit = never) {
    const Instant give_up = std::min(limit, deadline_after(Clock::now(), session.options().unreachable_timeout));
    Retry retry = session.retry(give_up);
    Reply reply;
    do reply = session.call(call, retry.deadline());
    while (retry.again(reply));
    if (classify(reply) != ReplyClass::answered) throw error_of(reply, key);
    return reply;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/server_check.hpp

// Finds the properties of a server that endanger the locks on it, as text. warnings_about() does no I/O.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What the server reports about itself. A reply is an error where the user may not query it.
struct ServerFacts {
    Reply info;                 // INFO
    Reply min_replicas;         // CONFIG GET min-replicas-to-write
    Reply save;                 // CONFIG GET save
    Reply output_buffers;       // CONFIG GET client-output-buffer-limit
    Reply refused_commands;     // the reply of scripts::server_check
    std::optional<Reply> wait;  // WAIT, if replicas are required
};

// Returns a field of INFO, or nothing if there is none.
inline std::optional<std::string> info_field(const Reply& info, std::string_view field) {
    if (info.kind != Reply::Kind::text) return std::nullopt;
    std::istringstream lines(info.text);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(field) || line.size() <= field.size() || line[field.size()] != ':') continue;
        line.erase(0, field.size() + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
    }
    return std::nullopt;
}

// Returns the value in a reply to CONFIG GET.
inline std::optional<std::string> config_value(const Reply& reply) {
    if (reply.kind != Reply::Kind::array || reply.elements.size() != 2) return std::nullopt;
    return reply.elements[1].text;
}

// Returns the hard and the soft limit of subscribers' output buffers; 0 means no limit.
inline std::array<std::uint64_t, 2> pubsub_limits(const std::string& limits) {
    std::istringstream words(limits);
    for (std::string word; words >> word;) {
        if (word != "pubsub") continue;
        std::array<std::uint64_t, 2> found{};
        words >> found[0] >> found[1];
        return found;
    }
    return {};
}

inline std::vector<std::string> warnings_about(const ServerFacts& facts, const ClientOptions& options) {
    using detail::info_field;
    std::vector<std::string> warnings;
    const auto warn_if = [&](bool bad, const std::string& text) {
        if (bad) warnings.push_back(text);
    };
    if (facts.info.kind == Reply::Kind::text) {
        const std::string policy = info_field(facts.info, "maxmemory_policy").value_or("noeviction");
        warn_if(policy != "noeviction",
                "maxmemory-policy is " + escaped(policy) +
                    ", so the server may evict held locks when memory is short; set it to noeviction");
        unsigned replicas = 0;
        const std::string count = info_field(facts.info, "connected_slaves").value_or("0");
        std::from_chars(count.data(), count.data() + count.size(), replicas);
        warn_if(replicas > 0 && detail::config_value(facts.min_replicas) == "0",
                "min-replicas-to-write is 0, so an isolated master keeps granting locks while a replica is promoted; "
                "set it to 1 or more, and min-replicas-max-lag below the leases");
        unsigned version = 0;  // major version; Valkey reports the Redis version that it is compatible with
        const std::string versions = info_field(facts.info, "redis_version").value_or("7");
        std::from_chars(versions.data(), versions.data() + versions.size(), version);
        warn_if(
            replicas > 0 && version < 7,
            "the server is older than Redis 7, so scripts ignore min-replicas-to-write and an isolated master keeps "
            "granting locks; use Redis 7 or newer");
        if (options.require_replicas > 0) {
            const unsigned wanted = options.require_replicas == all_replicas ? 1 : options.require_replicas;
            warn_if(replicas < wanted, "the master has fewer replicas (" + std::to_string(replicas) +
                                           ") than require_replicas demands, so every acquire will fail; start "
                                           "replicas or lower require_replicas");
        }
        const bool has_log = info_field(facts.info, "aof_enabled") == "1";
        const auto save = detail::config_value(facts.save);
        warn_if(!has_log && save == "",
                "persistence is off, so a restart loses all locks, which breaks RedLock; set appendonly yes");
        warn_if(!has_log && save != "",
                "appendonly is off, so a restart loses the locks since the last snapshot; set appendonly yes");
    } else {
        warnings.push_back("this user may not call INFO, so memory policy, persistence and replicas are unknown");
    }
    warn_if(facts.min_replicas.is_error() || facts.save.is_error() || facts.output_buffers.is_error(),
            "this user may not call CONFIG GET, so min-replicas-to-write, save and client-output-buffer-limit are "
            "unknown");
    if (const auto limits = detail::config_value(facts.output_buffers)) {
        const auto [hard, soft] = detail::pubsub_limits(*limits);
        warn_if((hard > 0 && hard < 1'000'000) || (soft > 0 && soft < 250'000),
                "client-output-buffer-limit for pubsub is small, so a brief delay can disconnect waiting clients; "
                "raise it");
    }
    if (facts.refused_commands.kind == Reply::Kind::array) {
        std::string names;
        for (const Reply& name : facts.refused_commands.elements) {
            if (names.find(name.text) != std::string::npos) continue;
            names += (names.empty() ? "" : ", ") + escaped(name.text);
        }
        warn_if(!names.empty(),
                "this user may not call " + names +
                    " on the keys and channels of locks, so scripts will fail; grant the rights that the README lists");
    } else {
        warnings.push_back("the server refuses scripts, so only a Mutex works: " +
                           in_quotes(facts.refused_commands.text, 160));
    }
    warn_if(facts.wait && facts.wait->is_error(),
            "this user may not call WAIT, which require_replicas needs, so every acquire will fail");
    return warnings;
}

// Queries the server and returns the warnings. A refused query is a warning of its own. Throws
// Error(errc::unreachable).
inline std::vector<std::string> check_server(Session& session) {
    const Instant give_up = deadline_after(Clock::now(), session.options().unreachable_timeout);
    const auto answer = [&](auto send) {
        Retry retry = session.retry(give_up);
        Reply reply;
        do reply = send(retry.deadline());
        while (retry.again(reply));
        if (!reply.answered()) throw error_of(reply, {});
        return reply;
    };
    const auto ask = [&](std::initializer_list<std::string_view> words) {
        return answer([&](Instant deadline) { return session.call({{words.begin(), words.size()}, 0}, deadline); });
    };
    ServerFacts facts;
    facts.info = ask({"INFO"});
    facts.min_replicas = ask({"CONFIG", "GET", "min-replicas-to-write"});
    facts.save = ask({"CONFIG", "GET", "save"});
    facts.output_buffers = ask({"CONFIG", "GET", "client-output-buffer-limit"});
    const std::string key = session.options().key_prefix + "redlatch_check:" + session.uuid();
    const std::string channel = prefixed_key("redisson_lock__channel", key);
    facts.refused_commands = answer([&](Instant deadline) {
        return session.call(Call(digested<scripts::server_check>, {key}, {channel, PublishCommand()}), deadline);
    });
    if (session.options().require_replicas > 0) facts.wait = ask({"WAIT", "0", "1"});
    return warnings_about(facts, session.options());
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/keep_errno.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Restores errno at the end of its scope. For code that runs where callers expect no system call, such as the end of a
// guard or of an object.
class KeepErrno {
public:
    KeepErrno() noexcept = default;
    KeepErrno(const KeepErrno&) = delete;
    KeepErrno& operator=(const KeepErrno&) = delete;
    ~KeepErrno() { errno = before_; }

private:
    const int before_ = errno;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/session_handle.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Gives a client and its primitives the session of the process in which they are used.
//
// After a fork the child gets its own session at its first use, with a new identity, new connections and no holds. The
// parent's session is left alone, because threads that do not exist in the child may hold its mutexes. mutex_ makes one
// thread of the child create the session.
class SessionHandle {
public:
    SessionHandle(std::unique_ptr<TransportPort> transport, const ClientOptions& options)
        : session_(new Session(std::move(transport), options)) {}
    SessionHandle(const SessionHandle&) = delete;
    SessionHandle& operator=(const SessionHandle&) = delete;

    ~SessionHandle() {
        const KeepErrno kept;
        Session* session = session_.load();
        // In a child that never used it there is no session to end. Only descriptors are closed.
        if (session->is_of_this_process())
            delete session;
        else
            session->transport().clone_after_fork();
    }

    Session& session() {
        Session* session = session_.load(std::memory_order_acquire);
        return session->is_of_this_process() ? *session : after_fork();
    }

private:
    Session& after_fork() {
        const std::lock_guard lock(mutex_);
        Session* parent = session_.load();
        if (parent->is_of_this_process()) return *parent;
        auto* mine = new Session(parent->transport().clone_after_fork(), parent->options(), parent);
        session_.store(mine, std::memory_order_release);
        return *mine;
    }

    std::mutex mutex_;
    std::atomic<Session*> session_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/slots.hpp

// Computes the Redis Cluster slot of a key or a sharded channel.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline constexpr std::uint16_t slot_count = 16384;

// CRC16 by the XMODEM rules: polynomial 0x1021, initial value 0, most significant bit first.
constexpr std::array<std::uint16_t, 256> make_crc16_table() {
    std::array<std::uint16_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte << 8;
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
        table[byte] = static_cast<std::uint16_t>(crc);
    }
    return table;
}

inline constexpr std::array<std::uint16_t, 256> crc16_table = make_crc16_table();

constexpr std::uint16_t crc16(std::string_view bytes) {
    std::uint32_t crc = 0;
    for (const char c : bytes)
        crc = ((crc << 8) ^ crc16_table[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xff]) & 0xffff;
    return static_cast<std::uint16_t>(crc);
}

// Returns the slot of a key. In a key with a {tag} only the tag counts: the text between the first brace and the next
// closing one, if it is not empty.
constexpr std::uint16_t key_slot(std::string_view key) {
    if (const auto open = key.find('{'); open != std::string_view::npos) {
        const auto close = key.find('}', open + 1);
        if (close != std::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
    }
    return static_cast<std::uint16_t>(detail::crc16(key) % slot_count);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/adaptive_spin.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Polls for a reply for a moment before the thread goes to sleep. Waking a thread on an idle CPU takes longer than the
// reply of a near server, and costs about as much CPU as yielding until then. It learns whether polling pays: a server
// that is too far away, or too busy, soon gets no more than one attempt in `most_skipped` replies.
//
// Any number of threads may use it. They may overwrite each other's measurements, which does no harm.
template <class Time = Clock>  // the clock to use
class AdaptiveSpin {
public:
    static constexpr auto for_the_server = std::chrono::microseconds(100);
    // For several servers, which may share the CPUs.
    static constexpr auto for_several = std::chrono::microseconds(300);
    // For a reply that another thread reads. It arrives after those before it.
    static constexpr auto for_the_reader = std::chrono::microseconds(200);

    // Called by the reader. Returns true as soon as `came()` is true, false when it is time to sleep.
    template <class Came>
    bool reply_came(Instant deadline, Came came, std::chrono::microseconds patience = for_the_server) {
        if (const unsigned skip = skip_.load(std::memory_order_relaxed); skip > 0) {
            skip_.store(skip - 1, std::memory_order_relaxed);
            return false;
        }
        const Instant limit = Time::now() + patience;
        const bool in_time = yield_until(std::min(deadline, limit), came);
        const Instant now = Time::now();
        unsigned penalty = penalty_.load(std::memory_order_relaxed);
        if (in_time && now <= limit + fair_turn) {
            penalty = 0;
        } else if (now > limit) {
            // The server is too far away, or other threads want this CPU and a yield takes so long that sleeping would
            // be faster.
            skip_.store(penalty, std::memory_order_relaxed);
            penalty = std::clamp(penalty * 2, 1U, most_skipped);
        }
        penalty_.store(penalty, std::memory_order_relaxed);
        pays_.store(penalty <= 2, std::memory_order_relaxed);
        return in_time;
    }

    // Called by a thread that waits for the reader.
    template <class Came>
    bool until(Instant deadline, Came came) const {
        return pays_.load(std::memory_order_relaxed) &&
               yield_until(std::min(deadline, Time::now() + for_the_reader), came);
    }

private:
    // The longest time that the other ready threads may take before a yielding thread runs again.
    static constexpr auto fair_turn = std::chrono::microseconds(500);
    static constexpr unsigned most_skipped = 64;

    template <class Came>
    static bool yield_until(Instant limit, Came& came) {
        do {
            std::this_thread::yield();
            if (came()) return true;
        } while (Time::now() < limit);
        return false;
    }

    std::atomic<unsigned> skip_{0};
    std::atomic<unsigned> penalty_{0};
    std::atomic<bool> pays_{true};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/base/redact.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns true if a text contains the secret or a part of it: any four bytes in a row.
inline bool repeats(std::string_view text, std::string_view secret) {
    const std::size_t part = std::min<std::size_t>(secret.size(), 4);
    for (std::size_t at = 0; part > 0 && at + part <= secret.size(); ++at)
        if (text.find(secret.substr(at, part)) != std::string_view::npos) return true;
    return false;
}

// Returns the part of a server's error that is safe to show. A server may echo, and cut off anywhere, the words of a
// command that it rejects, AUTH among them. In that case only the code word is kept, or ERR if that repeats the secret,
// too.
inline std::string quotable(std::string_view error, std::string_view secret) {
    if (secret.empty()) return std::string(error);
    error = error.substr(0, 512);  // no more than this is ever shown, so the rest need not be searched
    if (!repeats(error, secret)) return std::string(error);
    const std::string_view code = error.substr(0, error.find(' '));
    return (repeats(code, secret) ? "ERR" : std::string(code)) + " (text hidden: it contains part of the login)";
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/client.ipp

#if __has_include(<hiredis/read.h>)

// redlatch/redis/hiredis_transport.hpp

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class Deployment;
class TlsConnector;
}  // namespace detail

// The Transport over Redis, on hiredis (0.14.1 or newer). The URL selects the deployment, which does the work: one
// server, the present master that sentinels name, or a cluster.
class HiredisTransport {
public:
    // Connects to nothing yet. `command_timeout`: how long a server may take to answer before its connection counts as
    // dead. `tls`: the TLS implementation; throws Error(errc::unsupported) if the URL demands TLS and there is none.
    // `pubsub`: for clusters only.
    explicit HiredisTransport(Url url, Milliseconds command_timeout = std::chrono::seconds(3),
                              std::shared_ptr<const detail::TlsConnector> tls = nullptr,
                              PubSub pubsub = PubSub::automatic);
    HiredisTransport(HiredisTransport&&) noexcept;
    HiredisTransport& operator=(HiredisTransport&&) noexcept;
    ~HiredisTransport();

    Reply call(const Command& command, Instant deadline);
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline);
    void post(const Command& command, Completion done);
    void post_all(std::span<const Command> commands, std::span<Completion> done);
    void post_attended(const Command& command, Completion done);
    void attend();

    void subscribe(const std::string& channel);
    void unsubscribe(const std::string& channel);
    void run(Listener& listener, Instant deadline);
    void wake();
    bool watch(Listener& listener, Instant deadline, std::uint64_t seen);
    std::uint64_t interrupts() const noexcept;
    void interrupt_watch();

    std::uint32_t route(std::string_view key) const noexcept;
    std::string_view publish_command() const;

    HiredisTransport clone_after_fork();

    // Returns how many command connections were made, and below how many of them replaced an earlier one.
    std::uint64_t connections() const;
    std::uint64_t reconnects() const;

private:
    Url url_;
    Milliseconds timeout_;
    PubSub pubsub_;
    std::unique_ptr<detail::Deployment> deployment_;  // stays where it is when the transport is moved
};

static_assert(Transport<HiredisTransport> && PostsSeveral<HiredisTransport>);

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/cluster_replies.hpp

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Reads the replies of cluster nodes about which node serves which slot. No I/O.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The slots from `first` to `last`, and the nodes that serve them.
struct SlotRange {
    std::uint16_t first = 0;
    std::uint16_t last = 0;
    HostPort master;
    std::vector<HostPort> replicas{};
};

// Where a node redirects a command: permanently (MOVED) or just once (ASK).
struct Redirect {
    bool just_once = false;
    std::uint16_t slot = 0;
    HostPort to;
};

inline std::optional<std::uint16_t> number_up_to(std::string_view text, std::uint16_t least, std::uint16_t most) {
    std::uint16_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
        return std::nullopt;
    return number;
}

inline bool is_host(std::string_view text) {
    return text.size() <= 255 && std::none_of(text.begin(), text.end(), [](char c) {
               return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f;
           });
}

// Reads a node in CLUSTER SLOTS. No host means the node that was asked. With the host "?" or the port 0 the node is
// unknown: the result has no host.
inline std::optional<HostPort> read_node(const Reply& node, const HostPort& asked) {
    if (node.kind != Reply::Kind::array || node.elements.size() < 2) return std::nullopt;
    const Reply& host = node.elements[0];
    const Reply& port = node.elements[1];
    if (!host.is_nil() && host.kind != Reply::Kind::text) return std::nullopt;
    if (!is_host(host.text) || !port.is_integer() || port.integer < 0 || port.integer > 65535) return std::nullopt;
    HostPort endpoint{host.text.empty() ? asked.host : host.text, static_cast<std::uint16_t>(port.integer)};
    if (host.text == "?" || endpoint.port == 0) endpoint.host.clear();
    return endpoint;
}

// Reads the reply of the node `asked` to CLUSTER SLOTS. Returns nothing if it is malformed or contains no slot with a
// known master.
inline std::optional<std::vector<SlotRange>> read_slots(const Reply& reply, const HostPort& asked) {
    if (reply.kind != Reply::Kind::array || reply.elements.empty()) return std::nullopt;
    std::vector<SlotRange> ranges;
    for (const Reply& range : reply.elements) {
        if (range.kind != Reply::Kind::array || range.elements.size() < 3) return std::nullopt;
        const Reply& first = range.elements[0];
        const Reply& last = range.elements[1];
        if (!first.is_integer() || !last.is_integer() || first.integer < 0 || last.integer < first.integer ||
            last.integer >= slot_count)
            return std::nullopt;
        SlotRange read{static_cast<std::uint16_t>(first.integer), static_cast<std::uint16_t>(last.integer), {}};
        for (std::size_t i = 2; i < range.elements.size(); ++i) {
            auto node = detail::read_node(range.elements[i], asked);
            if (!node) return std::nullopt;
            if (i == 2)
                read.master = std::move(*node);
            else if (!node->host.empty())
                read.replicas.push_back(std::move(*node));
        }
        if (!read.master.host.empty()) ranges.push_back(std::move(read));
    }
    if (ranges.empty()) return std::nullopt;
    return ranges;
}

// Reads "MOVED <slot> <host>:<port>" or "ASK <slot> <host>:<port>", an error of the node `asked`. The host may be
// missing or be an IPv6 address without brackets: the port follows the last colon.
inline std::optional<Redirect> read_redirect(std::string_view text, const HostPort& asked) {
    Redirect redirect;
    redirect.just_once = text.starts_with("ASK ");
    if (!redirect.just_once && !text.starts_with("MOVED ")) return std::nullopt;
    text.remove_prefix(redirect.just_once ? 4 : 6);
    const auto blank = text.find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    const auto slot = detail::number_up_to(text.substr(0, blank), 0, slot_count - 1);
    const std::string_view endpoint = text.substr(blank + 1);
    const auto colon = endpoint.rfind(':');
    if (!slot || colon == std::string_view::npos || !detail::is_host(endpoint.substr(0, colon))) return std::nullopt;
    const auto port = detail::number_up_to(endpoint.substr(colon + 1), 1, 65535);
    if (!port) return std::nullopt;
    redirect.slot = *slot;
    redirect.to = {colon == 0 ? asked.host : std::string(endpoint.substr(0, colon)), *port};
    return redirect;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/net/thread_parker.hpp

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <cerrno>
#include <ctime>

#include <asm/posix_types.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Parks one thread until another one notifies it by a word. On Linux this is a futex: it needs no mutex, on which a
// woken thread would block again. Elsewhere it is a condition variable.
//
// On Linux the owner may destroy the parker as soon as it has read final_word: tell() does not access it after storing
// that. (A futex wake-up on an address that is gone wakes no thread, or one that must expect spurious wake-ups.)
// Elsewhere it may do so only after park() has returned final_word.
class ThreadParker {
public:
    static constexpr std::uint32_t silence = 0;
    static constexpr std::uint32_t look = 1;        // something has changed: look around
    static constexpr std::uint32_t final_word = 2;  // the last word, never overwritten

    std::uint32_t word() const noexcept { return word_.load(std::memory_order_acquire); }

#if defined(__linux__)
    void tell(std::uint32_t word) noexcept {
        std::uint32_t old = word_.load(std::memory_order_relaxed);
        do {
            if (old == final_word) return;
        } while (!word_.compare_exchange_weak(old, word, std::memory_order_acq_rel, std::memory_order_relaxed));
        if (old == asleep) ::syscall(futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }

    // Parks until there is a word or the deadline passes. Resets `look`, keeps final_word.
    std::uint32_t park(Instant deadline) noexcept {
        Time until{};
        if (deadline != never) {
            // steady_clock is CLOCK_MONOTONIC, which FUTEX_WAIT_BITSET takes as an absolute time.
            const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
            until = {static_cast<decltype(until.tv_sec)>(ns / 1'000'000'000),
                     static_cast<decltype(until.tv_nsec)>(ns % 1'000'000'000)};
        }
        std::uint32_t word = silence;
        word_.compare_exchange_strong(word, asleep, std::memory_order_acq_rel);
        while ((word = word_.load(std::memory_order_acquire)) == asleep) {
            const long slept = ::syscall(futex, &word_, FUTEX_WAIT_BITSET_PRIVATE, asleep,
                                         deadline == never ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
            // The deadline has passed, unless a word came at this very moment.
            if (slept != 0 && errno == ETIMEDOUT &&
                word_.compare_exchange_strong(word, silence, std::memory_order_acq_rel))
                return silence;
        }
        if (word == look) word_.compare_exchange_strong(word, silence, std::memory_order_acq_rel);
        return word;
    }
#else
    void tell(std::uint32_t word) {
        const std::lock_guard guard(mutex_);
        if (word != final_word && word_ != silence) return;
        word_ = word;
        wake_.notify_one();
    }

    std::uint32_t park(Instant deadline) {
        std::unique_lock guard(mutex_);
        const auto told = [this] { return word_ != silence; };
        if (deadline == never)
            wake_.wait(guard, told);
        else
            wake_.wait_until(guard, deadline, told);
        const std::uint32_t word = word_;
        if (word == look) word_ = silence;
        return word;
    }

private:
    std::mutex mutex_;
    std::condition_variable wake_;
#endif

private:
    static constexpr std::uint32_t asleep = 3;  // like silence, and the owner must be woken

#if defined(__linux__)
    // The kernel's time type. It differs from the C library's if that has 64-bit time on a 32-bit system. 32 bits are
    // enough for a clock that counts from the start of the system. Newer 32-bit systems have no SYS_futex.
#if defined(SYS_futex)
    static constexpr long futex = SYS_futex;
    struct Time {
        __kernel_long_t tv_sec;
        __kernel_long_t tv_nsec;
    };
    static_assert(sizeof(Time) == sizeof(timespec) || sizeof(long) < sizeof(time_t));
#else
    static constexpr long futex = SYS_futex_time64;
    using Time = timespec;
#endif
#endif

    std::atomic<std::uint32_t> word_{silence};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/answered.hpp

#include <cstddef>
#include <memory>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The replies for which one thread waits.
struct Exchange {
    Exchange(Reply* where, std::size_t expected) : next_reply(where), missing(expected) {}

    void add(Reply&& reply) noexcept {
        *next_reply++ = std::move(reply);
        --missing;
    }

    Reply* next_reply;
    std::size_t missing;
    Exchange* next = nullptr;  // in Answered
};

// A command whose reply goes to a completion.
struct PostedCommand {
    explicit PostedCommand(Completion receiver) : done(std::move(receiver)) {}

    Completion done;
    Reply reply;
    std::unique_ptr<PostedCommand> next;  // in Answered
};

// Complete exchanges, and posted commands with their replies, in the order of the replies. Collecting them needs no
// memory: each one has room for its own reply and its place in the list.
class Answered {
public:
    // Adds a reply to an exchange or to a posted command; to neither if its caller has left.
    void add(Exchange* exchange, std::unique_ptr<PostedCommand>& posted, Reply&& reply) noexcept {
        ++replies_;
        if (exchange != nullptr) {
            exchange->add(std::move(reply));
            if (exchange->missing == 0) list(*exchange);
        } else if (posted) {
            posted->reply = std::move(reply);
            list(std::move(posted));
        }
    }

    std::size_t replies() const noexcept { return replies_; }
    std::size_t exchanges() const noexcept { return exchanges_; }
    bool has_posted() const noexcept { return first_posted_ != nullptr; }

    // After wake(exchange) the exchange may be gone.
    template <class Wake>
    void wake_exchanges(Wake wake) noexcept {
        for (Exchange* next = std::exchange(first_, nullptr); next != nullptr;) {
            Exchange& exchange = *next;
            next = exchange.next;
            wake(exchange);
        }
    }

    // Calls the completions. They may call into the owner of the queue, so no mutex may be locked.
    void complete_posted() noexcept {
        while (has_posted()) {
            const std::unique_ptr<PostedCommand> one = std::exchange(first_posted_, nullptr);
            first_posted_ = std::move(one->next);
            // Completions handle their own errors. If one throws for lack of memory, there is no caller to report
            // to.
            try {
                one->done(std::move(one->reply));
            } catch (...) {
            }
        }
    }

private:
    void list(Exchange& exchange) noexcept {
        (first_ != nullptr ? last_->next : first_) = &exchange;
        last_ = &exchange;
        ++exchanges_;
    }

    void list(std::unique_ptr<PostedCommand> posted) noexcept {
        PostedCommand* const added = posted.get();
        (has_posted() ? last_posted_->next : first_posted_) = std::move(posted);
        last_posted_ = added;
    }

    std::size_t replies_ = 0;
    std::size_t exchanges_ = 0;
    Exchange* first_ = nullptr;
    Exchange* last_ = nullptr;
    std::unique_ptr<PostedCommand> first_posted_;
    PostedCommand* last_posted_ = nullptr;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/calling_thread.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A thread that waits for the replies of its exchange, on the stack of that thread. No other thread touches it after
// finish().
class CallingThread : public Exchange {
public:
    using Exchange::Exchange;

    bool is_finished() const noexcept { return parker_.word() == ThreadParker::final_word; }

    // Called when all replies are there: ends the waits for good.
    void finish() noexcept { parker_.tell(ThreadParker::final_word); }

    // Ends the wait: this thread is needed.
    void look_around() noexcept { parker_.tell(ThreadParker::look); }

    // Waits for finish(), look_around() or the deadline. Returns true if it was finish().
    bool wait(const AdaptiveSpin<>& spin, Instant deadline) noexcept {
        spin.until(deadline, [&] { return parker_.word() != ThreadParker::silence; });
        return parker_.park(deadline) == ThreadParker::final_word;
    }

    void wait_until_finished() noexcept {
        while (parker_.park(never) != ThreadParker::final_word) {
        }
    }

private:
    ThreadParker parker_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/encode.hpp

#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Appends a command in the format of Redis: an array of length-prefixed strings. hiredis offers the same, but only into
// a new allocation each time.
inline void append_command(std::string& out, const Command& command) {
    const auto number = [&out](char mark, std::size_t value) {
        out += mark;
        out += NumberText(static_cast<std::int64_t>(value)).view();
        out += "\r\n";
    };
    number('*', command.words.size());
    for (const std::string_view word : command.words) {
        number('$', word.size());
        out += word;
        out += "\r\n";
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/failure_reply.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
// Copies a reply. If there is no memory, the copy has the text no_memory.
inline void copy_reply(Reply& to, const Reply& from, Reply::Kind kind) noexcept {
    try {
        to = from;
    } catch (...) {
        to = Reply::of(kind, no_memory);
    }
    to.kind = kind;
}

inline Reply copy_of(const Reply& reply) noexcept {
    Reply copy;
    copy_reply(copy, reply, reply.kind);
    return copy;
}

// Makes a reply that names the server between the texts `before` and `after`.
inline Reply failure_reply(Reply::Kind kind, const char* before, const Url& url, const char* after,
                           const char* why = "") noexcept {
    try {
        return Reply::of(kind, before + url.display() + after + why);
    } catch (...) {
        return Reply::of(kind, no_memory);
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/pipeline.hpp

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The commands of one connection: bytes to write, and replies to come. A pure queue, without socket, mutex or clock.
// Its owner serialises all calls.
//
// A command is in one of four states:
//   - waiting: its bytes are in the buffer of the next write. It had no effect.
//   - staged: its bytes are being written. The server may have all of them already, and may reply.
//   - written: all its bytes are written. Only its reply is missing.
//   - done: it has its reply and has left the queue.
// The server replies in order, so the queue is always in the order written, staged, waiting.
class Pipeline {
public:
    Pipeline() = default;
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    std::size_t in_flight() const noexcept { return slots_.size() - head_; }
    std::size_t waiting() const noexcept { return waiting_; }
    std::size_t staged() const noexcept { return staged_; }
    std::size_t written() const noexcept { return in_flight() - staged_ - waiting_; }

    // Returns when the first reply is due; `never` if none is to come.
    Instant due() const noexcept { return in_flight() > 0 ? slots_[head_].due : never; }

    // Gives all commands the same time. For those that had to wait for a connection.
    void set_due(Instant due) noexcept {
        for (Slot& slot : slots_) slot.due = due;
    }

    // --- adding -----------------------------------------------------------------------------------------------

    // Each of these adds all commands, or none if memory runs out.

    void call(std::span<const Command> commands, Exchange& exchange, Instant due) {
        append(commands);
        for (std::size_t i = 0; i < commands.size(); ++i) slots_.push_back({&exchange, nullptr, due});
    }

    void post(std::span<const Command> commands, std::span<std::unique_ptr<PostedCommand>> posted, Instant due) {
        append(commands);
        for (std::unique_ptr<PostedCommand>& one : posted) slots_.push_back({nullptr, std::move(one), due});
    }

    // Moves all commands of another queue to this one. That one has written nothing of them.
    void take_over(Pipeline& other) {
        make_room(other.in_flight());
        to_write_ += other.to_write_;
        std::move(other.begin(), other.slots_.end(), std::back_inserter(slots_));
        waiting_ += other.waiting_;
        other.clear();
    }

    // --- writing: one thread at a time ------------------------------------------------------------------------

    bool has_bytes() const noexcept { return is_full_ || !to_write_.empty(); }

    // Returns true if the last write found no room for all its bytes.
    bool is_full() const noexcept { return is_full_; }

    // Returns the bytes to write: the rest of the last write, or else those of all waiting commands. They stay valid
    // until wrote() or drop_staged().
    std::string_view stage() noexcept {
        if (!is_full_) {
            std::swap(to_write_, staged_bytes_);
            rest_ = staged_bytes_;
            staged_ += std::exchange(waiting_, 0);
        }
        return rest_;
    }

    // Ends the write of the bytes that stage() returned. True `is_full`: there was no room for the rest, and perhaps
    // for bytes that the connection has buffered.
    void wrote(std::string_view rest, bool is_full) noexcept {
        rest_ = rest;
        is_full_ = is_full;
        if (is_full) return;
        staged_ = 0;
        staged_bytes_.clear();
    }

    // Drops bytes whose commands have failed. Not while they are being written.
    void drop_staged() noexcept { wrote({}, false); }

    // --- replies ----------------------------------------------------------------------------------------------

    // Hands out replies, until one comes for which no command was sent: the result counts those before it.
    Answered take(std::span<Reply> replies) noexcept {
        Answered answered;
        for (Reply& reply : replies) {
            if (in_flight() == waiting_) break;
            answered.add(slots_[head_].exchange, slots_[head_].posted, std::move(reply));
            pop();
        }
        return answered;
    }

    // Ends all commands. Those that wait get `not_sent`. The others may have been carried out and get `unanswered`, the
    // first of them with the kind `first`. Leaves alone the bytes that may be being written.
    Answered fail(Reply::Kind first, const Reply& unanswered, const Reply& not_sent) noexcept {
        Answered answered;
        for (bool is_first = true; in_flight() > 0; is_first = false) {
            const bool is_sent = in_flight() > waiting_;
            const Reply& why = is_sent ? unanswered : not_sent;
            Reply reply;
            detail::copy_reply(reply, why, is_sent && is_first ? first : why.kind);
            answered.add(slots_[head_].exchange, slots_[head_].posted, std::move(reply));
            ++head_;
        }
        clear();
        return answered;
    }

    // --- callers ----------------------------------------------------------------------------------------------

    // Returns false as soon as all replies of the exchange have been handed out.
    bool awaits(const Exchange& exchange) const noexcept {
        return std::any_of(slots_.rbegin(), rend(), [&](const Slot& slot) { return slot.exchange == &exchange; });
    }

    // Returns the exchange of the command added last, except this one; null if there is none.
    Exchange* last_exchange(const Exchange* except) const noexcept {
        const auto found = std::find_if(slots_.rbegin(), rend(), [&](const Slot& slot) {
            return slot.exchange != nullptr && slot.exchange != except;
        });
        return found != rend() ? found->exchange : nullptr;
    }

    // A caller leaves: its exchange gets `reply` for all that are missing. The slots stay, so that later replies still
    // find their owners.
    void abandon(Exchange& exchange, const Reply& reply) noexcept {
        for (auto slot = begin(); slot != slots_.end(); ++slot)
            if (slot->exchange == &exchange) slot->exchange = nullptr;
        while (exchange.missing > 0) exchange.add(detail::copy_of(reply));
    }

    // Drops everything without completing it. What the commands keep alive may call the queue when it ends.
    void forget() noexcept {
        const std::vector<Slot> posted = std::exchange(slots_, {});
        clear();
    }

private:
    // A reply to come. If both exchange and posted are null, its caller has left.
    struct Slot {
        Exchange* exchange;
        std::unique_ptr<PostedCommand> posted;
        Instant due;
    };

    std::vector<Slot>::iterator begin() noexcept { return slots_.begin() + static_cast<std::ptrdiff_t>(head_); }
    std::vector<Slot>::const_reverse_iterator rend() const noexcept {
        return slots_.rend() - static_cast<std::ptrdiff_t>(head_);
    }

    // Appends the bytes of whole commands, or nothing: a partial one would corrupt all that follow. After this, pushing
    // their slots allocates nothing.
    void append(std::span<const Command> commands) {
        make_room(commands.size());
        const std::size_t before = to_write_.size();
        try {
            for (const Command& command : commands) append_command(to_write_, command);
        } catch (...) {
            to_write_.resize(before);
            throw;
        }
        waiting_ += commands.size();
    }

    void make_room(std::size_t more) {
        const std::size_t wanted = slots_.size() + more;
        if (wanted > slots_.capacity()) slots_.reserve(std::max(wanted, slots_.capacity() * 2));
    }

    // A vector with a moving head instead of a deque: once large enough, it allocates nothing.
    void pop() noexcept {
        if (written() == 0) --staged_;
        if (++head_ == slots_.size()) {
            slots_.clear();
            head_ = 0;
        } else if (head_ >= 64 && head_ * 2 >= slots_.size()) {
            slots_.erase(slots_.begin(), begin());
            head_ = 0;
        }
    }

    void clear() noexcept {
        slots_.clear();
        head_ = 0;
        to_write_.clear();
        waiting_ = 0;
        staged_ = 0;
    }

    std::vector<Slot> slots_;
    std::size_t head_ = 0;     // the slots before it are done
    std::size_t waiting_ = 0;  // how many of the last slots are in this state
    std::size_t staged_ = 0;   // how many before those
    std::string to_write_;     // the bytes of the waiting commands
    std::string staged_bytes_;
    std::string_view rest_;  // the unwritten end of staged_bytes_
    bool is_full_ = false;   // there was no room for the rest
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/net/side_work.hpp

#include <atomic>
#include <thread>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Runs work that waits for the network (a look-up, a connection, a log-in) for a thread that must not wait: on a thread
// of its own, which exists as long as the work lasts. There is one piece of work at a time, and one thread at a time
// may begin it.
class SideWork {
public:
    SideWork() = default;
    SideWork(const SideWork&) = delete;
    SideWork& operator=(const SideWork&) = delete;
    ~SideWork() { finish(); }

    // Returns false if no thread can be created. The work must not throw, and must report its end before it returns.
    template <class Work>
    bool begin(Work work) noexcept {
        finish();
        busy_ = true;
        try {
            thread_ = thread_with_signals_blocked([this, work = std::move(work)]() noexcept {
                work();
                busy_ = false;
            });
        } catch (...) {
            busy_ = false;
        }
        return thread_.joinable();
    }

    // Returns true while the work may use the objects it refers to.
    bool is_busy() const noexcept { return busy_; }

    // Waits until the work has ended.
    void finish() noexcept {
        if (thread_.joinable()) thread_.join();
    }

private:
    std::atomic<bool> busy_{false};
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/net/resolver.hpp

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Looks up the addresses of a host before a deadline. The system's look-up has no deadline, so it runs on a thread of
// its own, which is detached if it takes too long. Numeric addresses need no look-up and no thread.
class Resolver {
public:
    Resolver(const Resolver&) = delete;
    Resolver& operator=(const Resolver&) = delete;
    ~Resolver() {
        if (!thread_.joinable()) return;
        if (is_done()) {
            thread_.join();
        } else {
            keep_code_loaded();
            thread_.detach();
        }
    }

    // Waits for the result. `error` is 0 or one of getaddrinfo()'s codes; EAI_AGAIN if the deadline came first. The
    // addresses live as long as the returned object.
    static std::shared_ptr<const Resolver> run(const std::string& host, int port, Instant deadline, int& error) {
        std::shared_ptr<const Resolver> lookup = start(host, port);
        Question& question = *lookup->question_;
        std::unique_lock lock(question.mutex);
        const auto is_done = [&] { return question.is_done; };
        if (deadline == never)
            question.done.wait(lock, is_done);
        else
            question.done.wait_until(lock, deadline, is_done);
        error = question.is_done ? question.error : EAI_AGAIN;
        return lookup;
    }

    // Starts a look-up without waiting: is_done() returns whether there is a result.
    static std::shared_ptr<Resolver> start(const std::string& host, int port) {
        const std::shared_ptr<Resolver> lookup(new Resolver);
        const std::string service = std::to_string(port);
        if (lookup->question_->ask(host, service, AI_NUMERICHOST) == EAI_NONAME)
            lookup->thread_ = thread_with_signals_blocked(
                [question = lookup->question_, host, service] { question->ask(host, service, 0); });
        return lookup;
    }

    bool is_done() const {
        const std::lock_guard lock(question_->mutex);
        return question_->is_done;
    }

    // Returns null before there is a result, and if there is no such host.
    const addrinfo* addresses() const noexcept { return question_->found; }

private:
    // The state that the thread works on; it may outlive the caller. mutex guards the rest. done wakes the waiting
    // thread when there is a result.
    struct Question {
        Question() = default;
        Question(const Question&) = delete;
        Question& operator=(const Question&) = delete;
        ~Question() {
            if (found) ::freeaddrinfo(found);
        }

        int ask(const std::string& host, const std::string& service, int flags) {
            addrinfo hints{};
            hints.ai_family = AF_UNSPEC;
            hints.ai_socktype = SOCK_STREAM;
            hints.ai_flags = flags;
            addrinfo* addresses = nullptr;
            const int outcome = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &addresses);
            if (outcome == EAI_NONAME && flags != 0) return outcome;
            const std::lock_guard lock(mutex);
            found = outcome == 0 ? addresses : nullptr;
            error = outcome;
            is_done = true;
            done.notify_all();
            return outcome;
        }

        std::mutex mutex;
        std::condition_variable done;
        bool is_done = false;
        int error = 0;
        addrinfo* found = nullptr;
    };

    Resolver() = default;

    // The program may unload the shared object that contains this code, while the thread still returns to it from the
    // look-up. Nothing can unload it after the last instruction of the thread, so it stays loaded.
    static void keep_code_loaded() noexcept {
        const KeepErrno kept;
        Dl_info object{};
        if (::dladdr(reinterpret_cast<const void*>(&keep_code_loaded), &object) != 0 && object.dli_fname)
            static_cast<void>(::dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE));
    }

    const std::shared_ptr<Question> question_ = std::make_shared<Question>();
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/net/tls_session.hpp

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The encryption of one connection. It does no input or output: a Socket carries the bytes. So it never waits, and a
// program without TLS needs no TLS library.
//
// One thread may encrypt while another decrypts. The bytes to send are valid until the next call by the sending thread,
// and must be sent completely and in order.
class TlsSession {
public:
    enum class Handshake { unfinished, done, failed };

    // A decrypt() with full_room bytes of room leaves nothing behind that poll() would not report. It has room for the
    // rest of one record, and for the bytes that one call may be given (most_fed).
    static constexpr std::size_t most_fed = 16 * 1024;
    static constexpr std::size_t full_room = 16 * 1024 + most_fed;

    virtual ~TlsSession() = default;

    // Does one step: takes the received bytes, which may be none, and returns the bytes to send, even if it failed.
    virtual Handshake handshake(std::string_view received, std::string_view& to_send) noexcept = 0;

    // Returns an empty string if encryption has failed.
    virtual std::string_view encrypt(std::string_view plain) noexcept = 0;

    // Returns the same as Socket::receive(): the number of decrypted bytes, 0 if there are none yet, -1 if the
    // connection is unusable. With nothing received, returns the rest that had no room before.
    virtual ssize_t decrypt(std::string_view received, char* plain, std::size_t room) noexcept = 0;

    // Returns the bytes that end the connection in order.
    virtual std::string_view goodbye() noexcept = 0;

    // Returns the reply for a command on this connection after TLS has failed, for a known reason or not: an error if
    // the server cannot be trusted, which is reported at once; not_sent if a retry may succeed.
    virtual Reply refusal() const = 0;
};

// Makes the sessions of a transport. Thread-safe.
class TlsConnector {
public:
    virtual ~TlsConnector() = default;

    // Returns null if that is impossible for now, with the reason in `why`. Throws only std::bad_alloc.
    virtual std::unique_ptr<TlsSession> session(const HostPort& server, std::string& why) const = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/net/socket.hpp

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the time-out for poll() until `deadline`, in ms: rounded up, so that poll() never returns early and spins.
inline int poll_timeout(Instant deadline, Instant now = Clock::now()) {
    if (deadline == never) return -1;
    if (deadline <= now) return 0;
    const auto ms = std::chrono::ceil<Milliseconds>(deadline - now).count();
    return static_cast<int>(std::min<Milliseconds::rep>(ms, 3'600'000));
}

// A connected stream socket. We do not use those of hiredis: they leak into exec'd children, give each address of a
// host the full time-out, and are written to without MSG_NOSIGNAL.
//
// With a TlsSession all bytes pass through it, in both directions. One thread may receive while another sends.
class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)),
          failed_(other.failed_),
          tls_(std::move(other.tls_)),
          sealed_(std::exchange(other.sealed_, {})) {}
    Socket& operator=(Socket&& other) noexcept {
        if (this != &other) {
            close();
            fd_ = std::exchange(other.fd_, -1);
            failed_ = other.failed_;
            tls_ = std::move(other.tls_);
            sealed_ = std::exchange(other.sealed_, {});
        }
        return *this;
    }
    ~Socket() { close(); }

    // Connects before the deadline, or returns a closed socket with the reason in `why`. The deadline covers the
    // look-up of the host and all of its addresses together. `abandoned`: true when another thread no longer wants this
    // server.
    static Socket connect(const Url& url, Instant deadline, std::string& why, const std::atomic<bool>& abandoned) {
        return url.path.empty() ? connect_tcp(url, deadline, why, abandoned)
                                : connect_unix(url, deadline, why, abandoned);
    }

    // Begins to connect without waiting. The socket becomes writable when there is a result; connect_error() returns
    // it. Returns a closed socket if connecting fails at once.
    static Socket begin_connect(const addrinfo& to) noexcept {
        Socket socket = make(to.ai_family);
        if (!socket.is_open()) return socket;
        const int flags = ::fcntl(socket.fd_, F_GETFL);
        const bool set = flags >= 0 && ::fcntl(socket.fd_, F_SETFL, flags | O_NONBLOCK) == 0;
        if (!set || (::connect(socket.fd_, to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS)) socket.close();
        if (socket.is_open()) socket.set_tcp_options();
        return socket;
    }

    // Returns 0 if connected, otherwise the error number.
    int connect_error() const noexcept {
        int error = 0;
        socklen_t length = sizeof error;
        return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
    }

    int fd() const noexcept { return fd_; }
    bool is_open() const noexcept { return fd_ >= 0; }

    // Closes in order; after fail(), by a reset.
    void close() noexcept {
        if (fd_ < 0) return;
        if (std::exchange(failed_, false))
            reset();
        else if (tls_)
            say_goodbye();
        tls_.reset();
        sealed_ = {};
        ::close(std::exchange(fd_, -1));
    }

    // For the child after a fork. The parent still uses the session, so nothing is sent in it. Its memory is not freed,
    // because its locks may be in any state.
    void close_inherited() noexcept {
        static_cast<void>(tls_.release());
        failed_ = false;
        close();
    }

    // Marks the connection as unusable and wakes a thread that sleeps in a read. The descriptor stays valid until
    // close(), which drops the unsent bytes in the kernel: these would be delivered for another half a minute. fail()
    // does not shut down our sending side, because that end would follow the unsent bytes. The exception is a thread
    // that is `writing`, which nothing else wakes.
    void fail(bool writing = false) noexcept {
        if (fd_ < 0) return;
        failed_ = true;
        ::shutdown(fd_, writing ? SHUT_RDWR : SHUT_RD);
    }

    // From now on all bytes are encrypted. The handshake comes first: call handshake() until it no longer returns
    // unfinished.
    void secure_by(std::unique_ptr<TlsSession> session) noexcept { tls_ = std::move(session); }

    // Does one step with the bytes that have arrived. Our bytes are few: a new connection has room for them.
    TlsSession::Handshake handshake() const noexcept {
        std::array<char, 4096> bytes;
        const ssize_t got = receive_as_is(bytes.data(), bytes.size(), false);
        if (got < 0) return TlsSession::Handshake::failed;
        std::string_view to_send;
        const auto outcome = tls_->handshake({bytes.data(), static_cast<std::size_t>(got)}, to_send);
        return send_as_is(to_send) == Sent::all ? outcome : TlsSession::Handshake::failed;
    }

    // Returns why TLS has failed, if it has.
    Reply tls_refusal() const { return tls_->refusal(); }

    enum class Sent { all, some, failed };

    // Sends as many bytes as there is room for, without waiting, and removes them from `bytes`. After `some`, the
    // connection waits for room (POLLOUT), and the next call must begin with the remaining bytes. Never raises SIGPIPE.
    Sent send_some(std::string_view& bytes) noexcept {
        if (!tls_) return send_as_is(bytes);
        // In pieces, so that a long pipeline is not copied in memory as a whole.
        constexpr std::size_t piece = 64 * 1024;
        for (;;) {
            if (const Sent sent = send_as_is(sealed_); sent != Sent::all) return sent;
            if (bytes.empty()) return Sent::all;
            sealed_ = tls_->encrypt(bytes.substr(0, piece));
            if (sealed_.empty()) return Sent::failed;
            bytes.remove_prefix(std::min(piece, bytes.size()));
        }
    }

    // Sends all bytes before the deadline, or returns false.
    bool send_all(std::string_view bytes, Instant deadline) noexcept {
        for (;;) {
            const Sent sent = send_some(bytes);
            if (sent != Sent::some) return sent == Sent::all;
            if (!wait(POLLOUT, deadline)) return false;
        }
    }

    // Returns the number of received bytes, 0 if there are none (yet), -1 if the connection has ended. Waits only if
    // `blocking`, and then at most the time-out given to set_receive_timeout(). With TLS there may be more bytes for
    // the next call, which poll() does not report. There are none if `room` was TlsSession::full_room, or larger than
    // the number returned.
    ssize_t receive(char* bytes, std::size_t room, bool blocking) const noexcept {
        return tls_ ? receive_decrypted(bytes, room, blocking) : receive_as_is(bytes, room, blocking);
    }

    // Returns true if there is something to read, or the connection has ended. Only for a connection that should be
    // idle: with TLS this consumes the byte.
    bool has_news() const noexcept {
        char byte;
        if (tls_) return receive_decrypted(&byte, 1, false) != 0;
        return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
    }

    // Returns true if the socket is ready (or has failed, which the next read or write returns), false at the deadline.
    bool wait(short events, Instant deadline) const noexcept {
        pollfd ready{fd_, events, 0};
        for (;;) {
            const int n = ::poll(&ready, 1, poll_timeout(deadline));
            if (n > 0) return true;
            if (n < 0 && errno != EINTR) return false;
            if (Clock::now() >= deadline) return false;
        }
    }

    // The same, but returns false soon after another thread has set `abandoned`. It polls for that, because nothing can
    // wake it.
    bool wait(short events, Instant deadline, const std::atomic<bool>& abandoned) const noexcept {
        for (;;) {
            if (abandoned.load(std::memory_order_relaxed)) return false;
            const Instant now = Clock::now();
            const bool is_last = deadline <= now + look_again;
            if (wait(events, is_last ? deadline : now + look_again)) return true;
            if (is_last) return false;
        }
    }

    void set_receive_timeout(Milliseconds timeout) const noexcept {
        const timeval tv{static_cast<time_t>(timeout.count() / 1000),
                         static_cast<suseconds_t>(timeout.count() % 1000 * 1000)};
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    }

private:
    static constexpr Milliseconds look_again{20};

    Sent send_as_is(std::string_view& bytes) const noexcept {
        while (!bytes.empty()) {
            const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent > 0)
                bytes.remove_prefix(static_cast<std::size_t>(sent));
            else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
                return Sent::some;
            else if (!(sent < 0 && errno == EINTR))
                return Sent::failed;
        }
        return Sent::all;
    }

    ssize_t receive_as_is(char* bytes, std::size_t room, bool blocking) const noexcept {
        for (;;) {
            const ssize_t got = ::recv(fd_, bytes, room, blocking ? 0 : MSG_DONTWAIT);
            if (got > 0) return got;
            if (got == 0) return -1;
            if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
            if (errno != EINTR) return -1;
            if (blocking) return 0;  // a retry would start the time-out again: the caller checks its deadline
        }
    }

    ssize_t receive_decrypted(char* bytes, std::size_t room, bool blocking) const noexcept {
        if (const ssize_t rest = tls_->decrypt({}, bytes, room)) return rest;
        std::array<char, TlsSession::most_fed> sealed;
        const ssize_t got = receive_as_is(sealed.data(), sealed.size(), blocking);
        // An end without close_notify is a normal end: replies show by themselves whether they are complete.
        if (got <= 0) return got;
        return tls_->decrypt({sealed.data(), static_cast<std::size_t>(got)}, bytes, room);
    }

    // Sends close_notify if there is room, without waiting. Not after a partly sent record.
    void say_goodbye() const noexcept {
        if (!sealed_.empty()) return;
        std::string_view words = tls_->goodbye();
        send_as_is(words);
    }

    // On Linux, connecting to AF_UNSPEC resets the connection, even if a forked child also has the descriptor.
    // Elsewhere the last close() resets it. A unix socket has no unsent bytes.
    void reset() const noexcept {
        const linger none{1, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        sockaddr nothing{};
        nothing.sa_family = AF_UNSPEC;
        if (::connect(fd_, &nothing, sizeof nothing) != 0) ::shutdown(fd_, SHUT_RDWR);
    }

    static Socket make(int family) noexcept {
#ifdef SOCK_CLOEXEC
        return Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
#else
        const int fd = ::socket(family, SOCK_STREAM, 0);
        if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
        return Socket(fd);
#endif
    }

    static std::string reason(const Url& url, int error) {
        return "cannot connect to " + url.display() + ": " + std::generic_category().message(error);
    }

    static Socket connect_unix(const Url& url, Instant deadline, std::string& why, const std::atomic<bool>& abandoned) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        if (url.path.size() >= sizeof address.sun_path) {
            why = "the path of the unix socket is too long for this system";
            return {};
        }
        std::memcpy(address.sun_path, url.path.data(), url.path.size());
        Socket socket = make(AF_UNIX);
        if (const int error = socket.finish_connect(reinterpret_cast<const sockaddr*>(&address), sizeof address,
                                                    deadline, abandoned)) {
            why = reason(url, error);
            return {};
        }
        return socket;
    }

    static Socket connect_tcp(const Url& url, Instant deadline, std::string& why, const std::atomic<bool>& abandoned) {
        int no_address = 0;
        const auto lookup = Resolver::run(url.host, url.port, deadline, no_address);
        if (no_address != 0) {
            why = "cannot resolve the host " + in_quotes(url.host) + ": " + ::gai_strerror(no_address);
            return {};
        }
        for (const addrinfo* a = lookup->addresses(); a != nullptr; a = a->ai_next) {
            // Leave a share of the time for the addresses that follow.
            const Instant now = Clock::now();
            const Instant mine = a->ai_next && deadline != never ? now + (deadline - now) / 2 : deadline;
            Socket socket = make(a->ai_family);
            const int error = socket.finish_connect(a->ai_addr, a->ai_addrlen, mine, abandoned);
            if (error == 0) {
                socket.set_tcp_options();
                return socket;
            }
            why = reason(url, error);
        }
        return {};
    }

    // Returns 0 or the error number.
    int finish_connect(const sockaddr* address, socklen_t size, Instant deadline,
                       const std::atomic<bool>& abandoned) noexcept {
        if (fd_ < 0) return errno;
        const int flags = ::fcntl(fd_, F_GETFL);
        if (flags < 0 || ::fcntl(fd_, F_SETFL, flags | O_NONBLOCK) < 0) return errno;
        // connect() to a unix socket with a full backlog fails with EAGAIN and must be retried.
        while (::connect(fd_, address, size) != 0) {
            if (errno == EISCONN) break;
            if (errno == EINTR) continue;
            if (errno == EAGAIN && address->sa_family == AF_UNIX) {
                if (abandoned || Clock::now() >= deadline) return ETIMEDOUT;
                ::poll(nullptr, 0, 1);
                continue;
            }
            if (errno != EINPROGRESS && errno != EALREADY) return errno;
            if (!wait(POLLOUT, deadline, abandoned)) return ETIMEDOUT;
            int error = 0;
            socklen_t length = sizeof error;
            if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
            if (error != 0) return error;
            break;
        }
        return ::fcntl(fd_, F_SETFL, flags) < 0 ? errno : 0;
    }

    void set_option(int level, int option, int value) const noexcept {
        ::setsockopt(fd_, level, option, &value, sizeof value);
    }

    // Sends small commands at once. Notices within 30 s that the peer has vanished, even if nothing is sent.
    void set_tcp_options() const noexcept {
        set_option(IPPROTO_TCP, TCP_NODELAY, 1);
        set_option(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
        set_option(IPPROTO_TCP, TCP_KEEPIDLE, 15);
        set_option(IPPROTO_TCP, TCP_KEEPINTVL, 5);
        set_option(IPPROTO_TCP, TCP_KEEPCNT, 3);
#endif
#ifdef TCP_USER_TIMEOUT
        set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
#endif
    }

    int fd_ = -1;
    bool failed_ = false;
    std::unique_ptr<TlsSession> tls_;  // null: no TLS
    std::string_view sealed_;          // encrypted bytes that are not sent yet
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/reply_reader.hpp

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <hiredis/read.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Parses received bytes into replies. hiredis parses; we build Reply objects in place. Replies that are larger, deeper
// or stranger than any reply to our commands are refused before anything is allocated for them.
class ReplyReader {
public:
    static constexpr std::size_t most_bytes = 1 << 20;  // of one reply
    static constexpr std::size_t most_elements = 8192;  // of one reply, over all its arrays
    static constexpr int most_depth = 8;                // of nested arrays

    enum class Outcome { incomplete, reply, malformed };

    ReplyReader() { reset(); }

    // Forgets everything, for a new connection.
    void reset() {
        reader_.reset(redisReaderCreateWithFunctions(&functions()));
        if (!reader_) throw std::bad_alloc();
        reader_->privdata = this;
        begin_reply(0);
    }

    // From now on, errors of the server that repeat a part of the secret are cut down to their code word.
    void withhold(std::string_view secret) { secret_ = secret; }

    // Takes received bytes. Returns false if the reader cannot continue.
    bool feed(const char* bytes, std::size_t size) {
        bytes_of_reply_ += size;
        return redisReaderFeed(reader_.get(), bytes, size) == REDIS_OK;
    }

    // Returns the next complete reply, if there is one. Throws std::bad_alloc if there is no memory for it; everything
    // after it is malformed then.
    Outcome next(Reply& out) {
        void* parsed = nullptr;
        if (redisReaderGetReply(reader_.get(), &parsed) != REDIS_OK) {
            if (std::exchange(no_memory_, false)) throw std::bad_alloc();
            return Outcome::malformed;
        }
        if (parsed == nullptr) return bytes_of_reply_ > most_bytes ? Outcome::malformed : Outcome::incomplete;
        const std::size_t left = reader_->len - reader_->pos;
        const bool too_long = bytes_of_reply_ - left > most_bytes;
        out = std::move(root_);
        begin_reply(left);
        return too_long ? Outcome::malformed : Outcome::reply;
    }

private:
    struct Free {
        void operator()(redisReader* reader) const { redisReaderFree(reader); }
    };

    void begin_reply(std::size_t bytes_already_here) {
        root_ = Reply{};
        bytes_of_reply_ = bytes_already_here;
        elements_left_ = most_elements;
    }

    // Returns the object that a task fills: the root, or its element of the array around it.
    static Reply& slot(const redisReadTask* task) {
        if (task->parent == nullptr) return static_cast<ReplyReader*>(task->privdata)->root_;
        return static_cast<Reply*>(task->parent->obj)->elements[static_cast<std::size_t>(task->idx)];
    }

    static void* refuse_for_memory(const redisReadTask* task) noexcept {
        static_cast<ReplyReader*>(task->privdata)->no_memory_ = true;
        return nullptr;
    }

    // The callbacks run inside C code, which no exception may cross: a failed allocation refuses the reply.
    static void* make_text(const redisReadTask* task, const char* bytes, std::size_t size) noexcept try {
        Reply& reply = slot(task);
        switch (task->type) {
            case REDIS_REPLY_STRING:
                // hiredis 0.14 skips the two bytes after a string unchecked; they are in its buffer.
                if (bytes[size] != '\r' || bytes[size + 1] != '\n') return nullptr;
                [[fallthrough]];
            case REDIS_REPLY_STATUS: reply.kind = Reply::Kind::text; break;
            case REDIS_REPLY_ERROR:
                reply.kind = Reply::Kind::error;
                reply.text = quotable({bytes, size}, static_cast<ReplyReader*>(task->privdata)->secret_);
                return &reply;
            default: return nullptr;  // a RESP3 type; we never ask for RESP3
        }
        reply.text.assign(bytes, size);
        return &reply;
    } catch (...) {
        return refuse_for_memory(task);
    }

    static void* make_array(const redisReadTask* task, std::size_t size) noexcept try {
        if (task->type != REDIS_REPLY_ARRAY) return nullptr;
        auto* self = static_cast<ReplyReader*>(task->privdata);
        int depth = 1;
        for (const redisReadTask* up = task->parent; up != nullptr; up = up->parent) ++depth;
        if (depth > most_depth || size > self->elements_left_) return nullptr;
        self->elements_left_ -= size;
        Reply& reply = slot(task);
        reply.kind = Reply::Kind::array;
        reply.elements.resize(size);
        return &reply;
    } catch (...) {
        return refuse_for_memory(task);
    }

    static void* make_integer(const redisReadTask* task, long long number) noexcept {
        Reply& reply = slot(task);
        reply.kind = Reply::Kind::integer;
        reply.integer = number;
        return &reply;
    }

    // Generic lambdas, because the argument types differ between versions of hiredis.
    static redisReplyObjectFunctions& functions() {
        static redisReplyObjectFunctions table = [] {
            redisReplyObjectFunctions f{};
            f.createString = [](const redisReadTask* task, char* bytes, std::size_t size) -> void* {
                return make_text(task, bytes, size);
            };
            f.createArray = [](const redisReadTask* task, auto size) -> void* {
                return size < 0 ? nullptr : make_array(task, static_cast<std::size_t>(size));
            };
            f.createInteger = [](const redisReadTask* task, long long number) -> void* {
                return make_integer(task, number);
            };
            f.createNil = [](const redisReadTask* task) -> void* {
                if (task->type == REDIS_REPLY_NIL) return nullptr;  // nil of RESP3; RESP2 sends it as string or array
                slot(task).kind = Reply::Kind::nil;
                return &slot(task);
            };
            f.freeObject = [](void*) {};
            refuse_resp3(f);
            return f;
        }();
        return table;
    }

    template <class Functions>
    static void refuse_resp3(Functions& f) {
        // With a null function hiredis would create an object of its own instead of refusing.
        if constexpr (requires { f.createDouble; })
            f.createDouble = [](const redisReadTask*, double, char*, std::size_t) -> void* { return nullptr; };
        if constexpr (requires { f.createBool; })
            f.createBool = [](const redisReadTask*, int) -> void* { return nullptr; };
    }

    std::unique_ptr<redisReader, Free> reader_;
    std::string secret_;
    Reply root_;
    std::size_t bytes_of_reply_ = 0;
    std::size_t elements_left_ = 0;
    bool no_memory_ = false;  // True if a callback refused for lack of memory
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/connection.hpp

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The role that a server must have.
enum class ServerRole { any, master };

// Returns whether this reply to ROLE is a master's.
inline bool says_master(const Reply& role) {
    return role.kind == Reply::Kind::array && !role.elements.empty() && role.elements[0].text == "master";
}

// One logged-in connection: a socket and the reader of its replies. Not thread-safe.
struct Connection {
    Socket socket;
    ReplyReader reader;
    std::uint64_t place = 0;  // the epoch in which it was opened, if the server may change: see MasterTracker
    // May be set by any thread while another one is in open(), which then ends soon: another server is wanted by now.
    std::atomic<bool> abandoned{false};

    // Connects (over TLS if the URL demands it), logs in and selects the database, all before the deadline. Returns
    // nothing on success. Otherwise returns the reply for a command on this connection: not_sent, the error of the
    // server, or our reason for refusing the server. A server with the wrong role counts as unreachable.
    std::optional<Reply> open(const Url& url, Instant deadline, ServerRole role = ServerRole::any) {
        std::string why;
        reader.reset();
        reader.withhold(url.password);
        socket = Socket::connect(url, deadline, why, abandoned);
        if (!socket.is_open()) return Reply::of(Reply::Kind::not_sent, std::move(why));
        auto refusal = url.tls ? secure(url, deadline) : std::nullopt;
        if (!refusal) refusal = log_in(url, deadline, role);
        if (refusal) socket.close();
        return refusal;
    }

private:
    std::optional<Reply> secure(const Url& url, Instant deadline) {
        std::string why = "TLS needs ClientOptions::tls";
        auto session = url.tls_connector ? url.tls_connector->session({url.host, url.port}, why) : nullptr;
        if (!session) return Reply::of(Reply::Kind::not_sent, "cannot connect to " + url.display() + ": " + why);
        socket.secure_by(std::move(session));
        for (;;) {
            switch (socket.handshake()) {
                case TlsSession::Handshake::done: return std::nullopt;
                case TlsSession::Handshake::failed: return socket.tls_refusal();
                case TlsSession::Handshake::unfinished: break;
            }
            if (!socket.wait(POLLIN, deadline, abandoned)) return socket.tls_refusal();
        }
    }

    std::optional<Reply> log_in(const Url& url, Instant deadline, ServerRole role) {
        std::string out;
        std::size_t expected = 0;
        const auto add = [&](std::vector<std::string_view> words) {
            append_command(out, Command{words, 0});
            ++expected;
        };
        if (!url.password.empty()) {
            if (url.user.empty())
                add({"AUTH", url.password});
            else
                add({"AUTH", url.user, url.password});
        }
        const NumberText database(url.database);
        if (url.database != 0) add({"SELECT", database});
        if (role == ServerRole::master) add({"ROLE"});
        // In TLS 1.3 a server reports only after the handshake that it wants a certificate of ours, or another one. Any
        // reply to PING will do, so this needs no access right.
        const bool only_asks = url.tls && expected == 0;
        if (only_asks) add({"PING"});
        if (expected == 0) return std::nullopt;

        const bool sent = socket.send_all(out, deadline);
        std::fill(out.begin(), out.end(), '\0');  // keep the password no longer than needed
        if (!sent) return silence(url);
        while (expected > 0) {
            Reply reply;
            switch (reader.next(reply)) {
                case ReplyReader::Outcome::malformed:
                    return Reply::of(Reply::Kind::malformed, url.display() + " does not speak the Redis protocol");
                case ReplyReader::Outcome::reply:
                    if (reply.is_error() && !only_asks) return reply;
                    if (--expected == 0 && role == ServerRole::master && !says_master(reply))
                        return Reply::of(Reply::Kind::not_sent, url.display() + " is not the master");
                    break;
                case ReplyReader::Outcome::incomplete: {
                    std::array<char, TlsSession::full_room> bytes;
                    if (!socket.wait(POLLIN, deadline, abandoned)) return silence(url);
                    const ssize_t got = socket.receive(bytes.data(), bytes.size(), false);
                    if (got < 0 || !reader.feed(bytes.data(), static_cast<std::size_t>(got))) return silence(url);
                }
            }
        }
        return std::nullopt;
    }

    Reply silence(const Url& url) const {
        if (url.tls) {
            // The server may have sent the reason before it closed, even if our bytes could not be sent any more.
            char byte;
            socket.receive(&byte, 1, false);
            if (Reply refusal = socket.tls_refusal(); refusal.is_error()) return refusal;
        }
        return Reply::of(Reply::Kind::not_sent, url.display() + " accepts the connection but does not reply");
    }
};

// Opens a connection to the server that is wanted at this moment, before the deadline. Returns the same as
// Connection::open().
using Opener = std::function<std::optional<Reply>(Connection& link, Instant deadline)>;

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/reconnect_policy.hpp

#include <cstdint>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Decides when the next attempt to connect may begin, and keeps the reason why there is no connection. Connects nothing.
// Not thread-safe.
class ReconnectPolicy {
public:
    bool may_begin(Instant now) const noexcept { return now >= next_attempt_; }
    Instant next_attempt() const noexcept { return next_attempt_; }

    // Counts failed attempts and refusals, so that a waiting thread notices those since it began.
    std::uint64_t failures() const noexcept { return failures_; }

    Reply why_not() const noexcept { return detail::copy_of(why_not_); }

    // Returns why there is no connection at the deadline of a caller: no_time unless an attempt failed for another
    // reason than a short deadline.
    Reply why_not_in_time() const noexcept {
        Reply reply = why_not();
        if (!attempt_failed_) reply.kind = Reply::Kind::no_time;
        return reply;
    }

    void connected() noexcept {
        backoff_.reset();
        is_proven_ = false;
        attempt_failed_ = false;
        next_attempt_ = {};
    }

    // True `for_want_of_time`: the attempt shows nothing about the server.
    void attempt_failed(const Reply& why, Instant now, bool for_want_of_time) noexcept {
        attempt_failed_ = !for_want_of_time;
        detail::copy_reply(why_not_, why, why.kind);
        ++failures_;
        next_attempt_ = now + backoff_.next();
    }

    void attempt_not_begun(Instant now) noexcept { next_attempt_ = now + backoff_.next(); }

    // Called with each reply. Returns true for the first one of a connection.
    bool replied() noexcept {
        if (std::exchange(is_proven_, true)) return false;
        closed_backoff_.reset();
        return true;
    }

    // If a server accepts connections only to close them, retries with pauses. They are short, because this may be
    // chance.
    void connection_ended(Reply why, Instant now) noexcept {
        why_not_ = std::move(why);
        if (is_proven_) return;
        attempt_failed_ = true;
        next_attempt_ = now + closed_backoff_.next();
    }

    // The server gets no more commands. Threads that wait for a connection give up.
    void refuse(Reply why) noexcept {
        why_not_ = std::move(why);
        ++failures_;
    }

    // Ends the pause. Returns true if there was one.
    bool end_pause(Instant now) noexcept { return std::exchange(next_attempt_, Instant{}) > now; }

    // Another server is wanted: the pauses begin with the shortest one again.
    void start_over() noexcept {
        next_attempt_ = {};
        backoff_.reset();
    }

private:
    Reply why_not_ = Reply::of(Reply::Kind::not_sent, "the deadline left no time to connect");
    Backoff backoff_{Milliseconds(10), longest_pause};           // after failed attempts
    Backoff closed_backoff_{Milliseconds(1), Milliseconds(50)};  // after connections without any reply
    Instant next_attempt_{};
    std::uint64_t failures_ = 0;
    bool is_proven_ = false;       // this connection has received a reply
    bool attempt_failed_ = false;  // the last attempt failed, and not for lack of time
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/reconnector.hpp

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Opens a connection whenever there is none: on the thread of a caller, or on a side thread. The mutex of the owner
// guards it: each function is called while that is locked, except is_open(), connections(), is_opening_aside() and finish(). Functions that get the lock release it while they wait.
//
// changed_ wakes threads in open(): a connection came up, an attempt failed, a failed connection is closed, or the pause
// before the next attempt has been ended.
class Reconnector {
public:
    // Whether a call tries to connect until its deadline, or returns after one failed attempt, because its command may
    // belong to another node by now.
    enum class Connecting { until_deadline, one_attempt };

    Reconnector(const Url& url, Opener open, Milliseconds timeout, Connecting connecting,
                std::function<bool()> has_substitute)
        : url_(url),
          opener_(std::move(open)),
          timeout_(timeout),
          connecting_(connecting),
          has_substitute_(std::move(has_substitute)) {}

    bool is_open() const noexcept { return state_.load(std::memory_order_acquire) == State::open; }
    bool is_opening() const noexcept { return state_ == State::opening; }

    // Returns true if an attempt may begin, or if it must wait for the end of a pause.
    bool may_begin(Instant now) const noexcept { return state_ == State::closed && policy_.may_begin(now); }
    bool has_pause(Instant now) const noexcept { return state_ == State::closed && !policy_.may_begin(now); }

    // Returns when an attempt may begin. Returns `never` while a thread opens the connection, or still uses a failed one.
    Instant next_attempt() const noexcept { return state_ == State::closed ? policy_.next_attempt() : never; }

    Reply why_not() const noexcept { return policy_.why_not(); }

    // Makes a reply that names the server between the texts `before` and `after`.
    Reply reply(Reply::Kind kind, const char* before, const char* after, const char* why = "") const noexcept {
        return detail::failure_reply(kind, before, url_, after, why);
    }

    // Waits until the connection is open or the deadline passes: then the result says why it is not. One thread
    // connects, with back-off, and calls `attempted(lock)` after each attempt; the others wait.
    template <class Attempted>
    std::optional<Reply> open(std::unique_lock<std::mutex>& lock, Instant deadline, Attempted attempted) {
        const std::uint64_t failures = policy_.failures();
        while (!is_open()) {
            const Instant now = Clock::now();
            const bool substituted = has_substitute_ && has_substitute_();
            const bool has_failed = policy_.failures() != failures;
            if (connecting_ == Connecting::one_attempt && has_failed) return why_not();
            if (now >= deadline) return policy_.why_not_in_time();
            if (substituted && has_failed) return why_not();
            const Milliseconds patience = substituted ? timeout_ / 8 : timeout_;
            if (state_ != State::closed) {
                wait_on(changed_, lock, std::min(deadline, now + patience));
                if (substituted && now + patience < deadline && Clock::now() >= now + patience) return why_not();
            } else if (has_pause(now)) {
                if (substituted) return why_not();
                wait_on(changed_, lock, std::min(next_attempt(), deadline));
            } else {
                const auto refusal = attempt(lock, std::min(deadline, now + patience));
                attempted(lock);
                // The server itself refuses: a retry with the same credentials is useless.
                if (refusal && refusal->kind != Reply::Kind::not_sent) return refusal;
            }
        }
        return std::nullopt;
    }

    // Connects on a side thread, for a thread that must not wait. Calls `attempted(lock)` there.
    template <class Attempted>
    void open_aside(std::unique_lock<std::mutex>& lock, Instant deadline, Attempted attempted) noexcept {
        state_ = State::opening;
        lock.unlock();
        const bool begun = opening_aside_.begin([this, deadline, attempted, mutex = lock.mutex()] {
            std::unique_lock mine(*mutex);
            attempt(mine, deadline);
            attempted(mine);
        });
        lock.lock();
        if (begun) return;
        state_ = State::closed;
        policy_.attempt_not_begun(Clock::now());
        changed_.notify_all();
    }

    // Returns true while a side thread may call the opener.
    bool is_opening_aside() const noexcept { return opening_aside_.is_busy(); }

    // Waits for the side thread.
    void finish() noexcept { opening_aside_.finish(); }

    // Marks the open connection as failed. `why_not` is for commands that need it from now on. `writing`: a thread may
    // be inside a write.
    void fail(const Reply& why_not, bool writing) noexcept {
        link_.socket.fail(writing);
        state_ = State::failed;
        policy_.connection_ended(detail::copy_of(why_not), Clock::now());
    }

    // Called when no thread is inside a read or write. Returns true if it has closed a failed connection.
    bool close_if_failed() noexcept {
        if (state_ != State::failed) return false;
        link_.socket.close();
        state_ = State::closed;
        changed_.notify_all();
        return true;
    }

    // Another server is wanted: ends an attempt that is under way.
    void abandon() noexcept { link_.abandoned = true; }

    // From now on, only a connection to this place or a later one will do. Returns true if the open one is not.
    bool want_place(std::uint64_t place) noexcept {
        place_ = place;
        abandon();
        return is_open() && link_.place < place;
    }

    // The next attempt needs no pause, and later pauses begin with the shortest one again.
    void start_over() noexcept {
        policy_.start_over();
        changed_.notify_all();
    }

    // Ends the pause before the next attempt. Returns true if there was one.
    bool end_pause() noexcept {
        if (is_open() || !policy_.end_pause(Clock::now())) return false;
        changed_.notify_all();
        return true;
    }

    // Threads that wait for the connection give up.
    void refuse(Reply why) noexcept {
        policy_.refuse(std::move(why));
        changed_.notify_all();
    }

    // Returns true for the first reply of a connection.
    bool replied() noexcept { return policy_.replied(); }

    // The open connection. Its reading and its writing half belong to the threads that use them.
    Connection& connection() noexcept { return link_; }

    // Returns how many connections were made.
    std::uint64_t connections() const noexcept { return connections_.load(std::memory_order_acquire); }

private:
    // `opening`: the connection belongs to the thread that opens it. `failed`: it has ended, but a thread may still be
    // inside a read or write.
    enum class State { closed, opening, open, failed };

    std::optional<Reply> attempt(std::unique_lock<std::mutex>& lock, Instant deadline) {
        state_ = State::opening;
        link_.abandoned = false;
        const Instant begun = Clock::now();
        lock.unlock();
        std::optional<Reply> refusal = open_link(deadline);
        lock.lock();
        if (!refusal && link_.place < place_) {
            link_.socket.close();
            refusal = reply(Reply::Kind::not_sent, "", " has moved to another server");
        }
        if (refusal) {
            const Instant now = Clock::now();
            const bool was_short = now >= deadline && deadline < begun + timeout_;
            policy_.attempt_failed(*refusal, now, link_.abandoned || was_short);
        } else {
            connections_.fetch_add(1, std::memory_order_release);
            policy_.connected();
        }
        state_ = refusal ? State::closed : State::open;
        changed_.notify_all();
        return refusal;
    }

    std::optional<Reply> open_link(Instant deadline) noexcept {
        try {
            auto refusal = opener_(link_, deadline);
            if (!refusal) link_.socket.set_receive_timeout(timeout_);
            return refusal;
        } catch (...) {  // no memory, or no thread for the look-up
            link_.socket.close();
            return Reply::of(Reply::Kind::not_sent, detail::no_memory);
        }
    }

    const Url url_;
    const Opener opener_;
    const Milliseconds timeout_;
    const Connecting connecting_;
    const std::function<bool()> has_substitute_;

    std::condition_variable changed_;
    Connection link_;
    std::atomic<State> state_{State::closed};
    ReconnectPolicy policy_;
    std::uint64_t place_ = 0;  // a connection to an earlier place is at the wrong server
    std::atomic<std::uint64_t> connections_{0};
    SideWork opening_aside_;  // last: it ends before the members it uses
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/reply_receiver.hpp

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Waits for the next replies of a connection, and parses all that have arrived. Used by one thread at a time.
class ReplyReceiver {
public:
    // Why no more replies can be read: a reply of this kind for the first command that is not answered, and the text.
    struct Ending {
        Reply::Kind first;
        const char* why;
    };

    // Waits until the deadline if no reply has arrived. If the connection is full, waits for room too: a thread that
    // waits for room beside the reader may leave when it gets its reply from here. True `blocking`: waits in one system
    // call; only a thread that has no other thread to serve may do so.
    std::optional<Ending> receive(Connection& link, AdaptiveSpin<>& spin, bool is_full, bool blocking,
                                  Instant deadline) noexcept {
        replies_.clear();
        std::array<char, TlsSession::full_room> bytes;
        const auto receive = [&](bool sleeping) { return link.socket.receive(bytes.data(), bytes.size(), sleeping); };
        ssize_t got = receive(false);
        if (got == 0 && Clock::now() < deadline &&
            !spin.reply_came(deadline, [&] { return (got = receive(false)) != 0; }) &&
            (blocking || link.socket.wait(is_full ? POLLIN | POLLOUT : POLLIN, deadline)))
            got = receive(blocking);
        if (got < 0) return Ending{Reply::Kind::unanswered, "the server closed it"};
        if (got == 0) return std::nullopt;
        return parse(link.reader, bytes.data(), static_cast<std::size_t>(got));
    }

    // Returns the replies that the last call received, even if it could not read on.
    std::span<Reply> replies() noexcept { return replies_; }

private:
    std::optional<Ending> parse(ReplyReader& reader, const char* bytes, std::size_t size) noexcept try {
        constexpr Ending malformed{Reply::Kind::malformed, "the reply is too large or violates the Redis protocol"};
        if (!reader.feed(bytes, size)) return malformed;
        for (;;) {
            Reply reply;
            const auto outcome = reader.next(reply);
            if (outcome == ReplyReader::Outcome::malformed) return malformed;
            if (outcome == ReplyReader::Outcome::incomplete) return std::nullopt;
            replies_.push_back(std::move(reply));
        }
    } catch (...) {
        replies_.clear();
        return Ending{Reply::Kind::unanswered, detail::no_memory};
    }

    std::vector<Reply> replies_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/command_connection.hpp

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Carries the commands of many threads over one connection, without a thread of its own.
//
// A calling thread appends its command to a shared buffer. If no thread is writing, it writes for all, as far as the
// connection has room. If no thread is reading, it reads for all, hands each reply to its owner, and passes the reader
// role on when its own reply has come. Bytes that found no room are written by the reader, or by a caller that waits
// for room while another thread reads, until its own deadline. `need_driver` is called when only posted commands are
// left, or when no thread will write the unwritten bytes. Some thread must then call drive().
//
// Pipeline is the queue of commands, and Reconnector opens the connection. This class has the mutex, decides which thread
// writes and which one reads, and lets the others wait.
//
// mutex_ guards everything below it, except the connection. The writing half of the connection belongs to the thread
// that set writing_, the reading half to the one that set reader_, and all of it to a thread that opens it.
// A thread in await() parks in its CallingThread. It is woken by the reader when its replies have come, by a leaving reader
// that passes the role on, and by the thread that finds that the connection has failed.
class CommandConnection {
public:
    using Connecting = Reconnector::Connecting;

    // `url` is for error texts only. `has_substitute` returns whether another connection to the same server is up.
    // `answers` is called, on any thread, when a connection has received its first reply.
    CommandConnection(const Url& url, Opener open, Milliseconds timeout, std::function<void()> need_driver,
                      Connecting connecting = Connecting::until_deadline,
                      std::function<bool()> has_substitute = nullptr, std::function<void()> answers = nullptr)
        : timeout_(timeout),
          need_driver_(std::move(need_driver)),
          answers_(std::move(answers)),
          reconnector_(url, std::move(open), timeout, connecting, std::move(has_substitute)) {}

    bool is_connected() const noexcept { return reconnector_.is_open(); }

    // Returns true if no reply is outstanding and no attempt to connect is under way.
    bool is_idle() {
        const std::lock_guard lock(mutex_);
        return pipeline_.in_flight() == 0 && !reconnector_.is_opening();
    }

    // Returns how many connections were made.
    std::uint64_t connections() const noexcept { return reconnector_.connections(); }

    // Sets `refused` if there was no connection and nothing was sent: the replies hold the reason. With a substitute,
    // one failed attempt is enough, which takes at most an eighth of the time-out.
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline, bool* refused = nullptr) {
        std::vector<Reply> replies(commands.size());
        call_into(commands, replies.data(), deadline, refused);
        return replies;
    }

    Reply call(const Command& command, Instant deadline, bool* refused = nullptr) {
        Reply reply;
        call_into({&command, 1}, &reply, deadline, refused);
        return reply;
    }

    // True `attended`: the poster will call attend().
    void post(const Command& command, Completion done, bool attended = false) {
        auto posted = std::make_unique<PostedCommand>(std::move(done));
        post_into({&command, 1}, {&posted, 1}, attended);
    }

    // Posts several commands on one connection.
    void post_all(std::span<const Command> commands, std::span<Completion> done) {
        std::vector<std::unique_ptr<PostedCommand>> posted;
        for (Completion& one : done) posted.push_back(std::make_unique<PostedCommand>(std::move(one)));
        post_into(commands, posted, false);
    }

    // Receives the bytes that have arrived, without waiting.
    void attend() {
        std::unique_lock lock(mutex_);
        if (pipeline_.in_flight() == 0 || is_reading() || !is_connected()) return;
        read(lock, {});
        // The poster calls attend() again. Other posters do not, nor does a driver that found this thread reading: they
        // need the driver. Without a connection the driver has been called.
        if (is_connected() && pipeline_.in_flight() > 0 && !call_reader() && std::exchange(reader_left_work_, false))
            call_driver(lock);
    }

    // --- for the driver ---------------------------------------------------------------------------------------

    // What the driver must watch: the descriptor (or -1), its events, and the time at which to call drive() anyway.
    struct Watch {
        int fd = -1;
        short events = 0;
        Instant due = never;
    };

    Watch watch() {
        const std::lock_guard lock(mutex_);
        if (pipeline_.in_flight() == 0) return {};
        if (is_reading()) reader_left_work_ = true;
        const Instant due = pipeline_.due();
        if (!is_connected()) return {-1, 0, std::min(due, reconnector_.next_attempt())};
        const int events = (is_reading() ? 0 : POLLIN) | (needs_writer() ? POLLOUT : 0);
        return {events != 0 ? socket().fd() : -1, static_cast<short>(events), is_reading() ? never : due};
    }

    // Starts to connect, on a side thread, if posted commands need a connection (until the deadline at most). Writes and
    // reads what is possible, and fails overdue commands. Does not wait.
    void drive(Instant deadline) {
        std::unique_lock lock(mutex_);
        if (is_connected() && needs_writer()) flush(lock);
        if (pipeline_.in_flight() == 0 || is_reading()) return;
        if (is_connected()) {
            read(lock, Clock::now());
            if (is_connected()) call_reader();
        } else if (const Instant now = Clock::now(); reconnector_.may_begin(now)) {
            reconnector_.open_aside(lock, std::min(deadline, now + timeout_),
                                    [this](auto& locked) { attempted(locked); });
        }
        if (Clock::now() < pipeline_.due()) return;
        if (is_connected())
            fail(lock, Reply::Kind::unanswered, "the server did not reply in time");
        else
            fail_waiting(lock);
    }

    // If the posted commands have no connection for now, moves them to another one that is connected. Does nothing if
    // that is this one: another thread may have connected it since the caller looked.
    void hand_over_to(CommandConnection& other) {
        if (&other == this) return;
        std::unique_lock mine(mutex_, std::defer_lock), others(other.mutex_, std::defer_lock);
        std::lock(mine, others);
        const bool waits = pipeline_.in_flight() > 0 && reconnector_.has_pause(Clock::now());
        if (!waits || !other.is_connected()) return;
        other.pipeline_.take_over(pipeline_);
        mine.unlock();
        other.send_posted(others, false);
    }

    // Called when the server has moved. Ends a connection to an earlier place than this one and allows a new attempt
    // without a pause.
    void leave_before(std::uint64_t place) {
        std::unique_lock lock(mutex_);
        if (reconnector_.want_place(place)) fail(lock, Reply::Kind::unanswered, "another server is the master now");
        reconnector_.start_over();
    }

    // Called when another connection has shown that the server is up: ends the pause before the next attempt. Returns
    // true if there was a pause; the driver may have to know.
    bool try_again() noexcept {
        const std::lock_guard lock(mutex_);
        return reconnector_.end_pause();
    }

    // Called when this server gets no more commands. Ends the connection; threads that wait for one route their
    // commands elsewhere.
    void turn_away() {
        std::unique_lock lock(mutex_);
        reconnector_.abandon();
        // Completions run without the mutex: another thread may connect meanwhile.
        while (is_connected()) fail(lock, Reply::Kind::unanswered, "another server has taken its place");
        reconnector_.refuse(reconnector_.reply(Reply::Kind::not_sent, "", " no longer serves this key"));
        fail_waiting(lock);
    }

    // Called at the end, when no thread uses the object any more: drops the outstanding commands and what they keep
    // alive.
    void forget_posted() noexcept {
        reconnector_.finish();
        pipeline_.forget();
    }

    // Returns true while a side thread may call the opener.
    bool is_opening_aside() const noexcept { return reconnector_.is_opening_aside(); }

    // In the child after a fork: closes the descriptor and touches nothing else.
    void close_inherited() noexcept { socket().close_inherited(); }

private:
    // `delivering`: the reader is waking several threads, and will write for them.
    enum class Reader { none, reading, delivering };

    // Every exchange in the pipeline is part of a CallingThread.
    static void wake(Exchange& exchange) noexcept { static_cast<CallingThread&>(exchange).finish(); }

    Socket& socket() noexcept { return reconnector_.connection().socket; }
    bool is_reading() const noexcept { return reader_ != Reader::none; }

    void call_into(std::span<const Command> commands, Reply* replies, Instant deadline, bool* refused) {
        if (commands.empty()) return;
        CallingThread caller(replies, commands.size());
        std::unique_lock lock(mutex_);
        if (auto refusal = open(lock, deadline)) {
            if (refused) *refused = true;
            std::fill_n(replies, commands.size(), *refusal);
            return;
        }
        pipeline_.call(commands, caller, Clock::now() + timeout_);
        flush(lock);
        await(lock, caller, deadline);
    }

    void post_into(std::span<const Command> commands, std::span<std::unique_ptr<PostedCommand>> posted, bool attended) {
        std::unique_lock lock(mutex_);
        leave_if_stale(lock);
        pipeline_.post(commands, posted, Clock::now() + timeout_);
        send_posted(lock, attended);
    }

    void send_posted(std::unique_lock<std::mutex>& lock, bool attended) {
        if (is_connected()) flush(lock);
        // The reading thread, if there is one, handles the reply. Otherwise, or without a connection, the driver does.
        if (is_reading() && !attended) reader_left_work_ = true;
        if ((!is_reading() && !attended) || !is_connected() || needs_writer()) call_driver(lock);
    }

    // --- connecting -------------------------------------------------------------------------------------------

    // Returns why there is no connection when the deadline has passed; nothing if there is one.
    std::optional<Reply> open(std::unique_lock<std::mutex>& lock, Instant deadline) {
        leave_if_stale(lock);
        return reconnector_.open(lock, deadline, [this](auto& locked) { attempted(locked); });
    }

    // Called after each attempt to connect, on the thread that made it.
    void attempted(std::unique_lock<std::mutex>& lock) {
        if (is_connected()) {
            // Commands that waited for the connection get the full time-out from now on.
            pipeline_.set_due(Clock::now() + timeout_);
            flush(lock);
        }
        // The driver does nothing while another thread connects: from now on it watches, or schedules the next attempt.
        if (pipeline_.in_flight() > 0) call_driver(lock);
    }

    // An idle connection has nothing to read. If it has, it was closed, or the next bytes would be taken for the reply
    // to our command.
    void leave_if_stale(std::unique_lock<std::mutex>& lock) {
        const bool is_idle = is_connected() && pipeline_.in_flight() == 0 && !is_reading() && !writing_;
        if (!is_idle || !socket().has_news()) return;
        fail(lock, Reply::Kind::unanswered, "the server closed it while it was idle, or sent unexpected data");
        reconnector_.end_pause();
    }

    // --- failing ----------------------------------------------------------------------------------------------

    // Ends the connection, if there is one: answers everything outstanding, and closes the connection as soon as no
    // thread is inside a read or write.
    void fail(std::unique_lock<std::mutex>& lock, Reply::Kind first, const char* why) noexcept {
        if (!is_connected()) return;
        const Reply not_sent = reconnector_.reply(Reply::Kind::not_sent, "the connection to ", " is closed: ", why);
        reconnector_.fail(not_sent, writing_);
        close_if_unused();
        const Reply unanswered = reconnector_.reply(Reply::Kind::unanswered, "the connection to ", " ended: ", why);
        hand_out(lock, pipeline_.fail(first, unanswered, not_sent));
    }

    // Answers the commands that wait for a connection.
    void fail_waiting(std::unique_lock<std::mutex>& lock) noexcept {
        const Reply why = reconnector_.why_not();
        hand_out(lock, pipeline_.fail(Reply::Kind::unanswered, why, why));
    }

    void hand_out(std::unique_lock<std::mutex>& lock, Answered answered) noexcept {
        answered.wake_exchanges(wake);
        if (!answered.has_posted()) return;
        lock.unlock();
        answered.complete_posted();
        lock.lock();
    }

    // Returns true if it has closed a failed connection.
    bool close_if_unused() noexcept {
        if (is_reading() || writing_ || !reconnector_.close_if_failed()) return false;
        pipeline_.drop_staged();
        return true;
    }

    // Called by a thread that has left the role of reader or writer. Commands posted meanwhile are left to the driver,
    // which could not connect before the connection was closed.
    void close_if_failed(std::unique_lock<std::mutex>& lock) {
        if (close_if_unused() && pipeline_.in_flight() > 0) call_driver(lock);
    }

    // --- writing ----------------------------------------------------------------------------------------------

    // Writes as far as the connection has room, without waiting.
    void flush(std::unique_lock<std::mutex>& lock) {
        // The writer looks again before it leaves. A reader that is handing out replies will write for the threads that
        // it wakes. So many commands share one write, and one read of the server, which makes many threads fast.
        if (writing_ || reader_ == Reader::delivering) return;
        writing_ = true;
        Socket::Sent sent = Socket::Sent::all;
        while (sent == Socket::Sent::all && is_connected() && pipeline_.has_bytes()) {
            std::string_view bytes = pipeline_.stage();
            lock.unlock();
            sent = socket().send_some(bytes);
            lock.lock();
            pipeline_.wrote(bytes, sent == Socket::Sent::some);
        }
        if (sent == Socket::Sent::failed) fail(lock, Reply::Kind::unanswered, "a write to it failed");
        writing_ = false;
        close_if_failed(lock);
    }

    // Returns true if bytes found no room and no thread waits for room.
    bool needs_writer() const { return pipeline_.is_full() && !writing_; }

    void wait_for_room(std::unique_lock<std::mutex>& lock, Instant deadline) {
        writing_ = true;
        lock.unlock();
        socket().wait(POLLOUT, deadline);
        lock.lock();
        writing_ = false;
        flush(lock);
    }

    // --- waiting for replies ----------------------------------------------------------------------------------

    void await(std::unique_lock<std::mutex>& lock, CallingThread& caller, Instant deadline) {
        while (!caller.is_finished()) {
            if (!pipeline_.awaits(caller)) {
                // The reader has dequeued this exchange and is handing over its replies.
                lock.unlock();
                return caller.wait_until_finished();
            }
            const Instant now = Clock::now();
            if (now + Milliseconds(1) >= pipeline_.due()) {
                fail(lock, Reply::Kind::unanswered, "the server did not reply in time");
            } else if (now >= deadline) {
                leave(lock, caller);
            } else if (is_reading() && needs_writer()) {
                wait_for_room(lock, std::min(deadline, pipeline_.due()));
            } else if (is_reading()) {
                lock.unlock();
                if (caller.wait(brief_wait_, deadline)) return;
                lock.lock();
            } else {
                read_for_all(lock, caller, deadline);
            }
        }
    }

    // Only the deadline of this thread has passed: the connection is sound. The reply is dropped when it arrives.
    void leave(std::unique_lock<std::mutex>& lock, CallingThread& caller) {
        pipeline_.abandon(caller, reconnector_.reply(Reply::Kind::unanswered, "", " did not reply in time"));
        caller.finish();
        if ((needs_writer() || (!is_reading() && pipeline_.in_flight() > 0)) && !call_reader()) call_driver(lock);
    }

    void read_for_all(std::unique_lock<std::mutex>& lock, CallingThread& caller, Instant deadline) {
        // If this thread is alone and its deadline is the connection's own, it needs no poll(): the socket has that
        // time-out.
        const bool alone = pipeline_.in_flight() == caller.missing && !pipeline_.is_full() &&
                           deadline + Milliseconds(1) >= pipeline_.due();
        read(lock, std::min(deadline, pipeline_.due()), &caller, alone);
        // If this thread needs no more replies, another one must read.
        if (caller.is_finished() && is_connected() && pipeline_.in_flight() > 0 && !call_reader()) call_driver(lock);
    }

    // Wakes a thread that waits for a reply, to read or write. The one that sent last is the best choice: until its own
    // reply comes it reads the replies of all others, and until its own command is out it writes theirs.
    bool call_reader() {
        Exchange* const last = pipeline_.last_exchange(reading_caller_);
        if (last != nullptr) static_cast<CallingThread*>(last)->look_around();
        return last != nullptr;
    }

    void call_driver(std::unique_lock<std::mutex>& lock) {
        lock.unlock();
        need_driver_();
        lock.lock();
    }

    // --- reading ----------------------------------------------------------------------------------------------

    // Takes the role of the reader: reads the bytes that have arrived, waiting for them until the deadline, and hands out
    // the replies. True `blocking`: see ReplyReceiver.
    void read(std::unique_lock<std::mutex>& lock, Instant deadline, const CallingThread* caller = nullptr,
              bool blocking = false) noexcept {
        reading_caller_ = caller;
        reader_ = Reader::reading;
        const bool is_full = pipeline_.is_full();
        lock.unlock();
        const auto ending = receiver_.receive(reconnector_.connection(), brief_wait_, is_full, blocking, deadline);
        lock.lock();
        if (needs_writer()) flush(lock);
        if (is_connected() && deliver(lock) < receiver_.replies().size())
            fail(lock, Reply::Kind::unanswered, "the server sent a reply that no command requested");
        else if (ending)
            fail(lock, ending->first, ending->why);
        reading_caller_ = nullptr;
        reader_ = Reader::none;
        close_if_failed(lock);
    }

    // Hands out the received replies. Returns how many commands they answered.
    std::size_t deliver(std::unique_lock<std::mutex>& lock) noexcept {
        Answered answered = pipeline_.take(receiver_.replies());
        const bool is_first = answered.replies() > 0 && reconnector_.replied();
        const bool wakes_several = answered.exchanges() > 1;
        // Wake without the mutex: a woken thread would block on it at once.
        if (wakes_several) reader_ = Reader::delivering;
        lock.unlock();
        answered.wake_exchanges(wake);
        // The woken threads may have their next command ready in a moment.
        if (wakes_several) std::this_thread::yield();
        answered.complete_posted();
        if (is_first && answers_) answers_();
        lock.lock();
        reader_ = Reader::reading;
        if (wakes_several && pipeline_.has_bytes()) flush(lock);
        return answered.replies();
    }

    const Milliseconds timeout_;
    const std::function<void()> need_driver_;
    const std::function<void()> answers_;

    std::mutex mutex_;
    AdaptiveSpin<> brief_wait_;
    ReplyReceiver receiver_;  // used by the reader only
    Pipeline pipeline_;
    Reader reader_ = Reader::none;
    const CallingThread* reading_caller_ = nullptr;  // of the reading thread, if that is in await()
    bool reader_left_work_ = false;                  // the driver or a poster relies on the present reader
    bool writing_ = false;                           // a thread writes, or waits for room
    Reconnector reconnector_;                        // last: its side thread ends before the members it uses
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/own_connections.hpp

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Connections for commands that delay all that follow on the same connection (WAIT). Each is used by one caller at a
// time, or by one group of posted commands, until these are answered. So no other caller waits for them, or takes the
// connection for dead. There are as many connections as were ever needed at once. They are created and opened on first
// use.
//
// mutex_ guards who uses which line. While it is held, connections are made and inspected, but not used. The list of
// lines only grows, and is read without the mutex: a child visits it after a fork, when a thread of its parent may have
// held the mutex. The connections are thread-safe.
class OwnConnections {
public:
    explicit OwnConnections(std::function<std::unique_ptr<CommandConnection>()> make) : make_(std::move(make)) {}
    OwnConnections(const OwnConnections&) = delete;
    OwnConnections& operator=(const OwnConnections&) = delete;

    ~OwnConnections() {
        for (Line* line = first_.load(std::memory_order_acquire); line;) delete std::exchange(line, line->next);
    }

    // Calls `use(link)` with a connection that carries nothing else until all of this is answered.
    template <class Use>
    auto with_one(Use use) {
        const InUse line(*this);
        return use(*line.of.link);
    }

    // Visits all connections. Takes no lock.
    template <class Visit>
    void each(Visit visit) const {
        for (const Line* line = first_.load(std::memory_order_acquire); line; line = line->next) visit(*line->link);
    }

private:
    struct Line {
        const std::unique_ptr<CommandConnection> link;
        Line* const next;
        bool in_use;
    };

    // A line between take() and its return.
    struct InUse {
        explicit InUse(OwnConnections& lines) : all(lines), of(lines.take()) {}
        InUse(const InUse&) = delete;
        InUse& operator=(const InUse&) = delete;
        ~InUse() {
            const std::lock_guard lock(all.mutex_);
            of.in_use = false;
        }
        OwnConnections& all;
        Line& of;
    };

    Line& take() {
        const std::lock_guard lock(mutex_);
        Line* const first = first_.load(std::memory_order_relaxed);
        for (Line* line = first; line; line = line->next)
            if (!line->in_use && line->link->is_idle()) {
                line->in_use = true;
                return *line;
            }
        Line* const line = new Line{make_(), first, true};
        first_.store(line, std::memory_order_release);
        return *line;
    }

    const std::function<std::unique_ptr<CommandConnection>()> make_;
    std::mutex mutex_;
    std::atomic<Line*> first_{nullptr};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/net/wake_pipe.hpp

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Ends a poll() from another thread. All calls between two drains cost one write.
class WakePipe {
public:
    WakePipe() {
        if (!make()) throw std::system_error(errno, std::generic_category(), "pipe");
    }
    WakePipe(const WakePipe&) = delete;
    WakePipe& operator=(const WakePipe&) = delete;
    ~WakePipe() {
        for (const int fd : fds_) ::close(fd);
    }

    int fd() const noexcept { return fds_[0]; }

    void wake() noexcept {
        if (woken_.exchange(true)) return;
        // The pipe has room for one byte: a failure is temporary.
        const char byte = 0;
        for (int tries = 0; tries < 10; ++tries)
            if (::write(fds_[1], &byte, 1) == 1) return;
        woken_.exchange(false);
    }

    // A wake() before woken_ is reset needs no byte of its own: the draining thread does the work of that caller after
    // drain(). A later wake() writes a new byte. A byte that is not written yet belongs to the next drain().
    void drain() noexcept {
        if (!woken_.load()) return;
        std::array<char, 16> bytes;
        bool came = false;
        while (::read(fds_[0], bytes.data(), bytes.size()) > 0) came = true;
        if (came) woken_.exchange(false);
    }

private:
    bool make() noexcept {
#if defined(__linux__)
        return ::pipe2(fds_.data(), O_CLOEXEC | O_NONBLOCK) == 0;
#else
        if (::pipe(fds_.data()) != 0) return false;
        for (const int fd : fds_) {
            if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != -1 && ::fcntl(fd, F_SETFL, O_NONBLOCK) != -1) continue;
            const int error = errno;
            for (const int open : fds_) ::close(open);
            errno = error;
            return false;
        }
        return true;
#endif
    }

    std::array<int, 2> fds_{};
    std::atomic<bool> woken_{false};
};

// Wakes threads that take turns in a poll(), where the thread inside may drain a wake-up that was meant for the next
// one. So wake-ups are counted as well: a thread that arrives with an older count than the present one has been woken
// already.
class Interrupts {
public:
    std::uint64_t count() const noexcept { return count_.load(); }
    int fd() const noexcept { return pipe_.fd(); }

    void wake() noexcept {
        count_.fetch_add(1);
        pipe_.wake();
    }

    void drain() noexcept { pipe_.drain(); }

private:
    WakePipe pipe_;
    std::atomic<std::uint64_t> count_{0};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/pubsub_connection.hpp

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Carries all subscriptions over one connection. It is opened when the first channel is wanted. When it is lost, it is
// reopened with back-off and subscribed to everything again.
//
// mutex_ guards wanted_, changes_, next_attempt_, opening_ and opening_from_: any thread may subscribe, and wakes the
// serving thread afterwards. serving_ guards the connection and is held while the listener is notified; mutex_ may be
// taken under it. While opening_ is set, the connection belongs to the thread that makes it, which wakes the serving
// thread.
// The serving thread sends. It also receives, unless a thread that waits for a message watches the connection itself,
// which saves passing the message from thread to thread.
class PubSubConnection {
public:
    // True `sharded`: connects to one node of a cluster, whose channels may move to another node at any time. A channel
    // that is reported to the listener as interrupted() is forgotten here. It must be subscribed again, perhaps
    // elsewhere.
    // `wake` makes the serving thread look at duty() again. `answers` is called when a connection has received its
    // first reply. Both are called on any thread.
    PubSubConnection(Opener open, Milliseconds timeout, std::function<void()> wake, bool sharded = false,
                     std::function<void()> answers = nullptr)
        : opener_(std::move(open)),
          timeout_(timeout),
          wake_(std::move(wake)),
          sharded_(sharded),
          answers_(std::move(answers)) {}

    // --- any thread -------------------------------------------------------------------------------------------

    void subscribe(const std::string& channel) { change(channel, true); }
    void unsubscribe(const std::string& channel) { change(channel, false); }

    // Unsubscribes without a command to the server, which has dropped the channel by itself.
    void forget(const std::string& channel) noexcept {
        const std::lock_guard lock(mutex_);
        wanted_.erase(channel);
    }

    // Called when another connection has shown that the server is up: ends the pause before the next attempt. Returns
    // true if there was a pause; the serving thread must know then.
    bool try_again() noexcept {
        const std::lock_guard lock(mutex_);
        if (opening_ || next_attempt_ <= Clock::now()) return false;
        next_attempt_ = {};
        return true;
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    // What the serving thread must watch: the descriptor (or -1), its events, and the time at which to call serve()
    // anyway.
    struct Duty {
        int fd = -1;
        short events = 0;
        Instant due = never;
    };

    Duty duty() {
        const std::lock_guard serving(serving_);
        // A leaving watcher wakes the serving thread if another thread was turned away.
        const int events = (watched_ ? 0 : POLLIN) | (full_ ? POLLOUT : 0);
        if (is_open()) return {events != 0 ? link_.socket.fd() : -1, static_cast<short>(events), never};
        if (watched_) return {};
        const std::lock_guard lock(mutex_);
        return {-1, 0, wanted_.empty() || opening_ ? never : next_attempt_};
    }

    // Starts to connect if it is time to (until the deadline at most), sends the changes of subscriptions, and notifies
    // the listener of all that has arrived. Does not wait.
    void serve(Listener& listener, Instant deadline) {
        const std::lock_guard serving(serving_);
        or_begin_anew(listener, [&] {
            if (!is_open()) return reopen(deadline);
            send_changes();
            if (!watched_) receive(listener);
        });
    }

    // Called when the server has moved. Ends a connection of an earlier epoch than this one and allows a new attempt
    // without a pause.
    void leave_before(std::uint64_t epoch, Listener& listener) {
        const std::lock_guard serving(serving_);
        if (is_open() && link_.place < epoch) {
            // The watching thread notices the end.
            if (watched_)
                link_.socket.fail();
            else
                or_begin_anew(listener, [&] { lose(listener); });
        }
        const std::lock_guard lock(mutex_);
        if (opening_) opening_from_ = epoch;
        link_.abandoned = true;
        next_attempt_ = {};
        backoff_.reset();
    }

    // --- a waiting thread -------------------------------------------------------------------------------------

    enum class Watch {
        done,   // the listener was notified, or an interrupt came, or the deadline
        taken,  // another thread watches
        lost,   // no connection to watch, or it needs the serving thread
    };

    // Receives in place of the serving thread, until something arrives, the deadline passes, or the number of
    // interrupts is no longer `seen`. A thread that finds another one watching is turned away; when that one leaves,
    // the serving thread receives. That is never missed: either the thread finds the role free at its second try, or
    // the leaving watcher finds watcher_refused_ set and wakes the serving thread.
    Watch watch(Listener& listener, Instant deadline, Interrupts& interrupts, std::uint64_t seen) {
        if (watched_.exchange(true)) {
            watcher_refused_ = true;
            if (watched_.exchange(true)) return Watch::taken;
        }
        const Watch outcome = watch_once(listener, deadline, interrupts, seen);
        watched_ = false;
        if (watcher_refused_.exchange(false)) wake_();
        return outcome;
    }

    // ----------------------------------------------------------------------------------------------------------

    void close_inherited() noexcept { link_.socket.close_inherited(); }

    // Called at the end. Afterwards the opener is not called any more.
    void finish() noexcept { opening_aside_.finish(); }
    // Returns true while a side thread may call the opener.
    bool is_opening_aside() const noexcept { return opening_aside_.is_busy(); }

private:
    bool is_open() {
        const std::lock_guard lock(mutex_);
        return !opening_ && link_.socket.is_open();
    }

    // The serving thread closes nothing while watched_ is set, so the descriptor stays valid during poll().
    Watch watch_once(Listener& listener, Instant deadline, Interrupts& interrupts, std::uint64_t seen) {
        std::unique_lock serving(serving_, std::try_to_lock);
        if (!serving || !is_open()) return Watch::lost;
        std::array<pollfd, 2> ready{{{link_.socket.fd(), POLLIN, 0}, {interrupts.fd(), POLLIN, 0}}};
        serving.unlock();
        // No other thread drains the pipe from here on.
        if (interrupts.count() != seen) return Watch::done;
        ::poll(ready.data(), ready.size(), poll_timeout(deadline));
        interrupts.drain();
        if (ready[0].revents == 0) return Watch::done;
        if (!serving.try_lock()) return Watch::lost;
        or_begin_anew(listener, [&] { receive(listener); });
        return link_.socket.is_open() ? Watch::done : Watch::lost;
    }

    // If memory runs out, the serving thread finds nothing changed.
    void change(const std::string& channel, bool wanted) {
        const std::lock_guard lock(mutex_);
        changes_.emplace_back(channel, wanted);
        try {
            if (wanted)
                wanted_.insert(channel);
            else
                wanted_.erase(channel);
        } catch (...) {
            changes_.pop_back();
            throw;
        }
    }

    // If memory runs out, received or unsent data may be lost: ends the connection. After the next one is subscribed,
    // every waiter checks for itself.
    template <class Work>
    void or_begin_anew(Listener& listener, Work work) noexcept {
        try {
            work();
        } catch (...) {
            try {
                lose(listener);
            } catch (...) {  // the next subscription notifies the rest
            }
        }
    }

    void reopen(Instant deadline) {
        const Instant now = Clock::now();
        {
            const std::lock_guard lock(mutex_);
            if (opening_ || wanted_.empty() || now < next_attempt_) return;
            opening_ = true;
            link_.abandoned = false;
        }
        out_.clear();
        full_ = false;
        proven_ = false;
        if (!opening_aside_.begin([this, until = std::min(deadline, now + timeout_)] { open(until); })) opened(false);
    }

    // Runs on a side thread.
    void open(Instant deadline) noexcept {
        bool done = false;
        try {
            done = !opener_(link_, deadline);
        } catch (...) {  // no memory
        }
        opened(done);
        wake_();
    }

    void opened(bool done) noexcept {
        const std::lock_guard lock(mutex_);
        opening_ = false;
        const std::uint64_t from = std::exchange(opening_from_, 0);
        const bool has_moved = from != 0 && (!done || link_.place < from);
        if (done && !has_moved && want_all()) return backoff_.reset();
        link_.socket.close();
        if (!has_moved) next_attempt_ = Clock::now() + backoff_.next();
    }

    // Subscribes to all wanted channels, which includes all earlier changes. Returns false if there is no memory.
    bool want_all() noexcept {
        try {
            changes_.clear();
            for (const std::string& channel : wanted_) changes_.emplace_back(channel, true);
            return true;
        } catch (...) {
            return false;
        }
    }

    // Sends as far as there is room; the next rounds send the rest.
    void send_changes() {
        std::vector<std::pair<std::string, bool>> changes;
        {
            const std::lock_guard lock(mutex_);
            changes.swap(changes_);
        }
        // One command for consecutive channels with the same change.
        for (std::size_t i = 0; i < changes.size();) {
            const bool wanted = changes[i].second;
            std::vector<std::string_view> words{wanted ? (sharded_ ? "SSUBSCRIBE" : "SUBSCRIBE")
                                                       : (sharded_ ? "SUNSUBSCRIBE" : "UNSUBSCRIBE")};
            // Sharded channels of several slots must not share a command.
            const std::size_t most = sharded_ ? 2 : 513;
            for (; i < changes.size() && changes[i].second == wanted && words.size() < most; ++i) {
                words.push_back(changes[i].first);
                if (wanted || sharded_) asked_.push_back(changes[i].first);
            }
            append_command(out_, Command{words, 0});
        }
        if (out_.empty() && !full_) return;
        std::string_view unsent = out_;
        // receive() sees a failed write as the end of the connection.
        full_ = link_.socket.send_some(unsent) == Socket::Sent::some;
        out_.erase(0, out_.size() - unsent.size());
    }

    void receive(Listener& listener) {
        std::array<char, 16 * 1024> bytes;
        for (;;) {
            const ssize_t got = link_.socket.receive(bytes.data(), bytes.size(), false);
            if (got == 0) return;
            if (got < 0 || !link_.reader.feed(bytes.data(), static_cast<std::size_t>(got))) return lose(listener);
            Reply reply;
            ReplyReader::Outcome outcome;
            while ((outcome = link_.reader.next(reply)) == ReplyReader::Outcome::reply) {
                if (!deliver(listener, reply)) return lose(listener);
                if (!std::exchange(proven_, true) && answers_) answers_();
            }
            if (outcome == ReplyReader::Outcome::malformed) return lose(listener);
            if (static_cast<std::size_t>(got) < bytes.size()) return;
        }
    }

    // Returns false if the reply is none that a subscriber gets.
    bool deliver(Listener& listener, const Reply& reply) {
        if (reply.is_error()) {
            // Errors come in the order of the requests, but do not name the channel.
            if (asked_.empty()) return false;
            const std::string channel = std::move(asked_.front());
            asked_.erase(asked_.begin());
            // SUNSUBSCRIBE is refused too if the slot has moved: do not report that.
            if (!sharded_ || is_wanted(channel)) listener.refused(channel, reply);
            return true;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 3) return false;
        const std::string& what = reply.elements[0].text;
        const std::string& channel = reply.elements[1].text;
        if (what == (sharded_ ? "smessage" : "message")) {
            listener.message(channel, reply.elements[2].text);
        } else if (what == (sharded_ ? "ssubscribe" : "subscribe")) {
            if (!asked_.empty() && asked_.front() == channel) asked_.erase(asked_.begin());
            listener.subscribed(channel);
        } else if (sharded_ && what == "sunsubscribe") {
            if (!asked_.empty() && asked_.front() == channel) {
                asked_.erase(asked_.begin());
            } else if (is_wanted(channel)) {  // its slot has moved
                forget(channel);
                listener.interrupted(channel);
            }
        } else {
            return !sharded_ && what == "unsubscribe";
        }
        return true;
    }

    bool is_wanted(const std::string& channel) {
        const std::lock_guard lock(mutex_);
        return wanted_.contains(channel);
    }

    void lose(Listener& listener) {
        link_.socket.fail();
        link_.socket.close();
        asked_.clear();
        {
            const std::lock_guard lock(mutex_);
            next_attempt_ = Clock::now() + backoff_.next();
        }
        if (!sharded_) return listener.disconnected();
        for (;;) {
            std::string channel;
            {
                const std::lock_guard lock(mutex_);
                if (wanted_.empty()) return;
                channel = *wanted_.begin();
            }
            listener.interrupted(channel);
            forget(channel);
        }
    }

    const Opener opener_;
    const Milliseconds timeout_;
    const std::function<void()> wake_;
    const bool sharded_;
    const std::function<void()> answers_;
    std::mutex serving_;
    std::atomic<bool> watched_{false};
    std::atomic<bool> watcher_refused_{false};  // True if a thread that wanted to watch found another one
    Connection link_;
    std::vector<std::string> asked_;  // not confirmed yet, in the order of the requests
    std::string out_;                 // unwritten commands
    bool full_ = false;               // the connection had no room for all of out_
    bool proven_ = false;             // this connection has received a reply
    Backoff backoff_{Milliseconds(10), longest_pause};

    std::mutex mutex_;
    std::set<std::string> wanted_;
    std::vector<std::pair<std::string, bool>> changes_;
    Instant next_attempt_{};
    bool opening_ = false;
    std::uint64_t opening_from_ = 0;  // an attempt in progress of an earlier epoch reaches the wrong server
    SideWork opening_aside_;          // last: it ends before the members it uses
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/slot_map.hpp

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

    // Returns the node that most probably answers: preferably not silent, then serving slots.
    std::shared_ptr<Node> likeliest_node() const {
        return first_by([](const Node& node) { return std::tuple(node.is_silent, !node.serves); });
    }

    // Likewise, and among equals the one queried longest ago.
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

// redlatch/redis/cluster_node.hpp

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One node of a cluster: a connection for commands and one for sharded subscriptions, opened on first use. Commands that
// are sent together use a connection of their own until they are answered, because they may wait for replicas.
//
// The connections are thread-safe. The other fields, SlotMapNode's too, are guarded by the mutex of the ClusterTopology.
class ClusterNode : public SlotMapNode, public std::enable_shared_from_this<ClusterNode> {
public:
    // `cluster` is the URL of the cluster. `request_poll` and `tried` are called on any thread: when run() must look
    // again, and when the node was reached or could not be reached.
    ClusterNode(const HostPort& where, const Url& cluster, Milliseconds timeout, std::function<void()> request_poll,
                std::function<void(ClusterNode&, bool reached)> tried)
        : SlotMapNode(where),
          url_(cluster.at(where)),
          timeout_(timeout),
          request_poll_(std::move(request_poll)),
          tried_(std::move(tried)) {}

    // Opens any connection to the node.
    std::optional<Reply> open(Connection& connection, Instant deadline) {
        auto refusal = connection.open(url_, deadline);
        tried_(*this, !refusal || refusal->kind != Reply::Kind::not_sent);
        return refusal;
    }

    // True `together`: on a connection of their own, if one can be opened.
    std::vector<Reply> call_all(std::span<const Command> commands, bool together, Instant deadline) {
        if (!together) return shared.call_all(commands, deadline);
        bool refused = false;
        auto replies = own.with_one([&](CommandConnection& one) { return one.call_all(commands, deadline, &refused); });
        return refused && shared.is_connected() ? shared.call_all(commands, deadline) : replies;
    }

    void post_all(std::span<const Command> commands, bool together, std::span<Completion> done) {
        if (!together) return shared.post_all(commands, done);
        own.with_one([&](CommandConnection& one) { one.post_all(commands, done); });
    }

    // Returns whether a command may be sent to the node now. While the node is down, one command per probe_pause may.
    bool may_probe(Instant now) {
        if (!is_down) return true;
        if (now < next_probe) return false;
        next_probe = now + probe_pause;
        return true;
    }

    void goes_down(const Reply& why, Instant now) {
        if (!is_down) next_probe = now + probe_pause;
        down_words = why;
        is_down = true;
    }

    // Visits the connections for commands. Takes no lock.
    template <class Visit>
    void each_connection(Visit visit) {
        visit(shared);
        own.each(visit);
    }

    bool is_opening_aside() {
        bool is_opening = subscriber.is_opening_aside();
        each_connection([&](const CommandConnection& one) { is_opening = is_opening || one.is_opening_aside(); });
        return is_opening;
    }

    // Called at the end: drops the posted commands, which keep their node alive.
    void finish() noexcept {
        subscriber.finish();
        each_connection([](CommandConnection& one) { one.forget_posted(); });
    }

    void close_inherited() noexcept {
        each_connection([](CommandConnection& one) { one.close_inherited(); });
        subscriber.close_inherited();
    }

    // Returns the number of connections made, and how many of them replaced an earlier one.
    std::array<std::uint64_t, 2> connection_counts() {
        std::array<std::uint64_t, 2> counts{};
        each_connection([&](const CommandConnection& one) {
            counts[0] += one.connections();
            counts[1] += std::max<std::uint64_t>(one.connections(), 1) - 1;
        });
        return counts;
    }

private:
    static constexpr Milliseconds probe_pause{250};  // between commands to a node that reports that it is down

    Opener opener() {
        return [this](Connection& connection, Instant deadline) { return open(connection, deadline); };
    }

    CommandConnection make_connection() {
        return CommandConnection(url_, opener(), timeout_, request_poll_, CommandConnection::Connecting::one_attempt,
                                 nullptr, [this] { answers(); });
    }

    // Called when one of its connections has received a reply: ends the reconnect pauses of the others.
    void answers() noexcept {
        bool has_ended_pause = subscriber.try_again();
        each_connection([&](CommandConnection& one) { has_ended_pause |= one.try_again(); });
        if (has_ended_pause) request_poll_();
    }

    const Url url_;
    const Milliseconds timeout_;
    const std::function<void()> request_poll_;
    const std::function<void(ClusterNode&, bool)> tried_;

public:
    CommandConnection shared = make_connection();
    OwnConnections own{[this] { return std::unique_ptr<CommandConnection>(new CommandConnection(make_connection())); }};
    PubSubConnection subscriber{opener(), timeout_, request_poll_, true, [this] { answers(); }};  // to sharded channels
    std::atomic<bool> is_down{false};  // the node reports that it is down; read without the mutex, too
    Reply down_words;                  // its error reply
    Instant next_probe{};              // gets no command before this, while it is down
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/cluster_topology.hpp

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
// There is one mutex for all parts. It guards the members here, the fields of the nodes, and what ClusterRouter and
// ClusterChannels name. A function with a parameter of type Lock is called with the mutex held; the others take it.
// While it is held, no connection is used and no listener is notified. The exception: channels are passed to the
// PubSubConnections.
// changed_ wakes threads in wait(): learn() when there is a reply to a query, and goes_up() when a node is up again.
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

    // Opens a connection for classic channels: any node will do.
    std::optional<Reply> open_any(Connection& connection, Instant deadline) {
        return any_node()->open(connection, deadline);
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

    NodePtr any_node() const {
        const Lock held = lock();
        return map_.likeliest_node();
    }

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

// redlatch/redis/cluster_channels.hpp

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The subscriptions of a Cluster. A sharded channel is subscribed at the node that serves its slot, on the connection of
// that node. All classic channels are on one connection to any node.
//
// The mutex of the topology guards the members, except the connection, which is thread-safe.
class ClusterChannels {
    using Lock = ClusterTopology::Lock;
    using Node = ClusterTopology::Node;

public:
    ClusterChannels(ClusterTopology& topology, Milliseconds timeout)
        : topology_(topology),
          classic_(
              [this](Connection& connection, Instant deadline) { return topology_.open_any(connection, deadline); },
              timeout, [this] { topology_.request_poll(); }) {}

    // The node that serves the channel, and whether channels are sharded, may be unknown here: run() subscribes later.
    void subscribe(const std::string& channel) {
        {
            const Lock lock = topology_.lock();
            Channel& entry = channels_[channel];
            entry.slot = key_slot(channel);
            entry.is_classic = topology_.sharded(lock) == false;
            if (entry.is_classic) classic_.subscribe(channel);
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
            if (entry->second.is_classic) classic_.unsubscribe(channel);
            channels_.erase(entry);
        }
        topology_.request_poll();
    }

    // Returns the command that scripts publish with. While that is unknown, queries the nodes for a short time, then
    // returns PUBLISH.
    std::string_view publish_command() {
        Lock lock = topology_.lock();
        const Instant deadline = Clock::now() + topology_.patience();
        while (!topology_.sharded(lock) && Clock::now() < deadline) topology_.query_or_wait(lock, deadline);
        return topology_.sharded(lock).value_or(false) ? "SPUBLISH" : "PUBLISH";
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
        for (auto& [name, channel] : channels_) {
            if (*topology_.sharded(lock))
                place_sharded(lock, name, channel, now, interrupted);
            else if (!std::exchange(channel.is_classic, true))
                classic_.subscribe(name);
        }
        return interrupted;
    }

    PubSubConnection& classic() noexcept { return classic_; }

    void serve(ClusterNode& node, Listener& listener, Instant limit) {
        ShardListener shard(*this, node, listener);
        node.subscriber.serve(shard, limit);
    }

    // Called for a node that serves no slots any more.
    void leave(ClusterNode& node, Listener& listener) {
        ShardListener shard(*this, node, listener);
        node.subscriber.leave_before(std::numeric_limits<std::uint64_t>::max(), shard);
    }

private:
    struct Channel {
        std::uint16_t slot = 0;
        Node* at = nullptr;  // the node that it is subscribed at, if sharded
        bool is_classic = false;
    };

    // Sits between a node's subscriptions and the listener: subscribes elsewhere if the node refuses a channel that it
    // does not serve.
    struct ShardListener final : Listener {
        ShardListener(ClusterChannels& c, Node& n, Listener& l) : channels(c), node(n), listener(l) {}

        void subscribed(const std::string& channel) override {
            channels.topology_.goes_up(node);
            listener.subscribed(channel);
        }
        void refused(const std::string& channel, const Reply& why) override {
            if (!channels.find_elsewhere(node, channel, why)) listener.refused(channel, why);
        }
        void message(const std::string& channel, std::string_view payload) override {
            listener.message(channel, payload);
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

    void place_sharded(const Lock& lock, const std::string& name, Channel& channel, Instant now,
                       std::vector<std::string>& interrupted) {
        Node* const owner = topology_.map(lock).owner_of(channel.slot);
        if (channel.at == owner) return;
        if (channel.at) {
            channel.at->subscriber.forget(name);
            channel.at = nullptr;
            interrupted.push_back(name);
        }
        if (!owner) return;
        if (owner->may_probe(now)) {
            owner->subscriber.subscribe(name);
            channel.at = owner;
        } else {
            place_again_ = std::min(place_again_, owner->next_probe);
        }
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
    PubSubConnection classic_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/cluster_router.hpp

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

// redlatch/redis/deployment.hpp

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The servers behind one URL, and the connections to them: Standalone, SentinelDeployment or Cluster. The functions mean
// what they mean in transport.hpp.
class Deployment {
public:
    Deployment() = default;
    Deployment(const Deployment&) = delete;
    Deployment& operator=(const Deployment&) = delete;
    virtual ~Deployment() = default;

    virtual Reply call(const Command& command, Instant deadline) = 0;
    virtual std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) = 0;
    virtual void post(const Command& command, Completion done) = 0;
    virtual void post_all(std::span<const Command> commands, std::span<Completion> done) = 0;
    virtual void post_attended(const Command& command, Completion done) = 0;
    virtual void attend() = 0;
    virtual void subscribe(const std::string& channel) = 0;
    virtual void unsubscribe(const std::string& channel) = 0;
    virtual void run(Listener& listener, Instant deadline) = 0;
    virtual bool watch(Listener& listener, Instant deadline, std::uint64_t seen) = 0;
    virtual std::uint32_t route(std::string_view key) const noexcept = 0;
    virtual std::string_view publish_command() = 0;

    // In the child after a fork: closes the descriptors and touches nothing else. Takes no lock, because a thread of the
    // parent may have held it.
    virtual void close_inherited() noexcept = 0;

    // Returns how many command connections were made, and below how many of them replaced an earlier one.
    virtual std::uint64_t connections() const = 0;
    virtual std::uint64_t reconnects() const = 0;

    void wake() noexcept { pipe_.wake(); }
    std::uint64_t interrupts() const noexcept { return interrupts_.count(); }
    void interrupt_watch() noexcept { interrupts_.wake(); }

protected:
    WakePipe pipe_;          // ends the poll() in run()
    Interrupts interrupts_;  // ends the poll() in watch()
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/cluster.hpp

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
        : topology_(url, timeout, pubsub, [this] { wake(); }),
          router_(topology_, timeout),
          channels_(topology_, timeout) {}

    // A posted command and its node keep each other alive: breaks the cycle.
    ~Cluster() override {
        channels_.classic().finish();
        topology_.finish();
    }

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
        watch(channels_.classic().duty());
        for (const auto& node : served_) {
            watch(node->subscriber.duty());
            node->each_connection([&](CommandConnection& one) { watch(one.watch()); });
        }
        ::poll(ready_.data(), static_cast<nfds_t>(ready_.size()), poll_timeout(due));
        pipe_.drain();
        query_in_background();
        router_.send_delayed();
        follow(listener);
        const Instant limit = Clock::now() + topology_.patience();
        channels_.classic().serve(listener, limit);
        for (const auto& node : served_) {
            channels_.serve(*node, listener, limit);
            node->each_connection([&](CommandConnection& one) {
                one.drive(limit);
                if (!one.is_connected()) one.hand_over_to(node->shared);
            });
        }
    }

    // A waiting thread leaves the messages to run(): they come from several nodes.
    bool watch(Listener&, Instant, std::uint64_t) override { return false; }

    // The keys of one slot may go into one command.
    std::uint32_t route(std::string_view key) const noexcept override { return key_slot(key); }
    std::string_view publish_command() override { return channels_.publish_command(); }

    void close_inherited() noexcept override {
        channels_.classic().close_inherited();
        topology_.close_inherited();
    }

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
        for (const auto& node : left) channels_.leave(*node, listener);
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

// redlatch/redis/async_query.hpp

#include <array>
#include <memory>
#include <string>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Queries a server without blocking: looks the host up, connects, sends commands and collects the replies, each as far
// as possible at the moment. So one thread can query many servers. Not thread-safe.
class AsyncQuery {
public:
    // `words`: encoded commands. `tls`: null for a connection without TLS.
    void begin(const HostPort& with, std::string words, std::unique_ptr<TlsSession> tls) {
        end();
        reader_.reset();
        words_ = std::move(words);
        tls_ = std::move(tls);
        refusal_ = {};
        secured_ = false;
        lookup_ = Resolver::start(with.host, with.port);
        proceed();
    }

    void end() noexcept {
        socket_.close();
        lookup_.reset();
        address_ = nullptr;
        connecting_ = false;
        shaking_hands_ = false;
    }

    void close_inherited() noexcept { socket_.close_inherited(); }

    bool is_over() const noexcept { return !lookup_; }

    // Returns the TLS error that ended the query, until the next one begins. Nil if it ended for another reason.
    const Reply& refusal() const noexcept { return refusal_; }

    // What to wait for. While the descriptor is -1, proceed() must be called again after look_again.
    pollfd watch() const noexcept { return {socket_.fd(), static_cast<short>(connecting_ ? POLLOUT : POLLIN), 0}; }
    Instant due(Instant now) const noexcept { return lookup_ && !socket_.is_open() ? now + look_again : never; }

    void proceed() {
        if (!lookup_) return;
        if (!socket_.is_open()) {
            if (!lookup_->is_done()) return;
            connect_to(lookup_->addresses());
        }
        while (connecting_) {
            if (!socket_.wait(POLLOUT, {})) return;
            if (socket_.connect_error() == 0)
                greet();
            else
                connect_to(address_->ai_next);
        }
        if (shaking_hands_) shake_hands();
        if (!shaking_hands_) receive();
    }

    // Takes the next reply that has arrived; returns false if there is none. A protocol error ends the query.
    bool next(Reply& reply) {
        if (is_over() || connecting_ || shaking_hands_ || !socket_.is_open()) return false;
        switch (reader_.next(reply)) {
            case ReplyReader::Outcome::reply: return true;
            case ReplyReader::Outcome::malformed: end(); return false;
            default: break;
        }
        if (closed_) end();
        return false;
    }

private:
    static constexpr Milliseconds look_again{10};

    void connect_to(const addrinfo* address) {
        connecting_ = false;
        for (; address; address = address->ai_next) {
            socket_ = Socket::begin_connect(*address);
            if (!socket_.is_open()) continue;
            address_ = address;
            connecting_ = true;
            return;
        }
        end();
    }

    void greet() {
        connecting_ = false;
        if (!tls_) return say();
        socket_.secure_by(std::move(tls_));
        secured_ = shaking_hands_ = true;
    }

    // Our part of the handshake is little more than a certificate, for which a new socket has room.
    void shake_hands() {
        const auto outcome = socket_.handshake();
        if (outcome == TlsSession::Handshake::unfinished) return;
        shaking_hands_ = false;
        if (outcome == TlsSession::Handshake::done) return say();
        refusal_ = socket_.tls_refusal();
        end();
    }

    // A new socket always has room for so few bytes.
    void say() { closed_ = !socket_.send_all(words_, {}); }

    void receive() {
        std::array<char, 4096> bytes;
        while (socket_.is_open() && !closed_) {
            const ssize_t got = socket_.receive(bytes.data(), bytes.size(), false);
            if (got == 0) return;
            closed_ = got < 0 || !reader_.feed(bytes.data(), static_cast<std::size_t>(got));
            // In TLS 1.3 a server reports only here that it rejects our certificate.
            if (got < 0 && secured_)
                if (Reply why = socket_.tls_refusal(); why.is_error()) refusal_ = std::move(why);
        }
    }

    std::shared_ptr<Resolver> lookup_;
    const addrinfo* address_ = nullptr;  // that we connect to
    std::string words_;
    Socket socket_;
    ReplyReader reader_;
    std::unique_ptr<TlsSession> tls_;  // until connected
    Reply refusal_;
    bool connecting_ = false;
    bool secured_ = false;
    bool shaking_hands_ = false;
    bool closed_ = false;  // by the other side; earlier replies can still be read
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/master_tracker.hpp

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Finds out which server is the master from the replies and messages of sentinels. No I/O.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The answer of one sentinel: the master, and the epoch of the failover that made it master. The first failover has an
// epoch above 0.
struct MasterVote {
    HostPort master;
    std::uint64_t config_epoch = 0;
};

template <class Number>
std::optional<Number> sentinel_number(std::string_view text) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

inline std::optional<HostPort> sentinel_address(std::string_view host, std::string_view port) {
    const auto number = sentinel_number<std::uint16_t>(port);
    if (host.empty() || host.size() > 255 || !number || *number == 0) return std::nullopt;
    return HostPort{std::string(host), *number};
}

// Reads the replies to SENTINEL GET-MASTER-ADDR-BY-NAME and SENTINEL MASTER. The second one only adds the epoch: a
// sentinel that refuses it still has a vote.
inline std::optional<MasterVote> read_vote(const Reply& address, const Reply& details) {
    if (address.kind != Reply::Kind::array || address.elements.size() != 2) return std::nullopt;
    auto master = detail::sentinel_address(address.elements[0].text, address.elements[1].text);
    if (!master) return std::nullopt;
    MasterVote vote{std::move(*master)};
    for (std::size_t i = 0; i + 1 < details.elements.size(); i += 2)
        if (details.elements[i].text == "config-epoch")
            vote.config_epoch = detail::sentinel_number<std::uint64_t>(details.elements[i + 1].text).value_or(0);
    return vote;
}

// Returns the servers to ask for their role, the likeliest first: by the latest epoch, then by the most votes. The
// known master is a candidate without a vote.
inline std::vector<MasterVote> ranked(std::span<const MasterVote> votes, const std::optional<HostPort>& known) {
    struct Candidate {
        MasterVote vote;
        std::size_t voters = 0;
    };
    std::vector<Candidate> candidates;
    const auto add = [&](const MasterVote& vote, std::size_t voters) {
        auto same = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const Candidate& c) { return c.vote.master == vote.master; });
        if (same == candidates.end()) same = candidates.insert(candidates.end(), Candidate{vote});
        same->vote.config_epoch = std::max(same->vote.config_epoch, vote.config_epoch);
        same->voters += voters;
    };
    if (known) add({*known}, 0);
    for (const MasterVote& vote : votes) add(vote, 1);
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        if (a.vote.config_epoch != b.vote.config_epoch) return a.vote.config_epoch > b.vote.config_epoch;
        return a.voters > b.voters;
    });
    std::vector<MasterVote> order;
    for (const Candidate& candidate : candidates) order.push_back(candidate.vote);
    return order;
}

// Returns the new master if a message of a sentinel announces one for the master of this name:
//   +switch-master    <name> <old host> <old port> <new host> <new port>
//   +promoted-slave   slave <new name> <new host> <new port> @ <name> <old host> <old port>
inline std::optional<HostPort> read_announcement(std::string_view channel, std::string_view payload,
                                                 std::string_view name) {
    std::vector<std::string_view> words;
    while (!payload.empty() && words.size() < 9) {
        const auto blank = payload.find(' ');
        words.push_back(payload.substr(0, blank));
        payload = blank == std::string_view::npos ? std::string_view() : payload.substr(blank + 1);
    }
    if (channel == "+switch-master" && words.size() == 5 && words[0] == name)
        return detail::sentinel_address(words[3], words[4]);
    if (channel == "+promoted-slave" && words.size() == 8 && words[5] == name)
        return detail::sentinel_address(words[2], words[3]);
    return std::nullopt;
}

// Tracks where the master is believed to be, for all connections of a client. An epoch of ours begins whenever the master
// may have moved. Connections opened in an earlier epoch must be closed.
//
// Thread-safe: mutex_ guards all members. No function waits.
class MasterTracker {
public:
    std::uint64_t epoch() const {
        const std::lock_guard lock(mutex_);
        return epoch_;
    }

    std::optional<HostPort> known() const {
        const std::lock_guard lock(mutex_);
        return master_;
    }

    // Returns the server to try without asking a sentinel: one just announced, or one that proved to be the master at
    // most `fresh` ago.
    std::optional<HostPort> guess(Instant now) const {
        const std::lock_guard lock(mutex_);
        if (announced_) return announced_;
        return proven_at_ && now < *proven_at_ + fresh ? master_ : std::nullopt;
    }

    // Called when a sentinel has announced a new master. Returns false if that is known already.
    bool announce(const HostPort& master) {
        const std::lock_guard lock(mutex_);
        if ((announced_ ? announced_ : master_) == master) return false;
        announced_ = master;
        leave();
        return true;
    }

    // Takes the reply of a sentinel to a query. Returns true if it reports a later failover than the known one, and
    // another master.
    bool hear(const MasterVote& vote) {
        {
            const std::lock_guard lock(mutex_);
            if (!master_ || vote.config_epoch <= config_epoch_) return false;
            config_epoch_ = vote.config_epoch;
        }
        return announce(vote.master);
    }

    // Called when the server of this epoch refused a command that only a master carries out. Returns false if the epoch
    // is an earlier one.
    bool doubt(std::uint64_t epoch) {
        const std::lock_guard lock(mutex_);
        if (epoch != epoch_) return false;
        leave();
        return true;
    }

    // Called when the guess has failed: it is not returned again.
    void reject(const HostPort& master) {
        const std::lock_guard lock(mutex_);
        if (announced_ == master) announced_.reset();
        proven_at_.reset();
    }

    // Called when the server has confirmed that it is the master, on a connection begun in the epoch `seen`.
    // Returns the epoch of the connection, or nothing if the master may have moved meanwhile.
    std::optional<std::uint64_t> prove(const MasterVote& vote, std::uint64_t seen, Instant now) {
        const std::lock_guard lock(mutex_);
        if (seen != epoch_) return std::nullopt;
        const bool moved = master_ && *master_ != vote.master;
        if (moved && epoch_ == proven_epoch_) ++epoch_;
        proven_epoch_ = epoch_;
        master_ = vote.master;
        announced_.reset();
        config_epoch_ = std::max(config_epoch_, vote.config_epoch);
        proven_at_ = now;
        return epoch_;
    }

private:
    static constexpr Milliseconds fresh{500};

    void leave() {
        ++epoch_;
        proven_at_.reset();
    }

    mutable std::mutex mutex_;
    std::uint64_t epoch_ = 1;
    std::uint64_t proven_epoch_ = 0;  // the one in which master_ was last proven
    std::optional<HostPort> master_;
    std::optional<HostPort> announced_;  // not proven yet
    std::optional<Instant> proven_at_;
    std::uint64_t config_epoch_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/sentinels.hpp

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline void append_words(std::string& out, std::initializer_list<std::string_view> words) {
    append_command(out, Command{{words.begin(), words.size()}, 0});
}

// The replies to these two commands are a vote.
inline std::string questions_for_vote(std::string_view master) {
    std::string out;
    append_words(out, {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", master});
    append_words(out, {"SENTINEL", "MASTER", master});
    return out;
}

// Begins to query one sentinel, over TLS if the URL demands it. If there is no TLS session, sets `why` and begins
// nothing.
inline void begin_talk(AsyncQuery& talk, const Url& url, const HostPort& sentinel, std::string words,
                       std::string& why) {
    std::unique_ptr<TlsSession> tls;
    if (url.tls && url.tls_connector) tls = url.tls_connector->session(sentinel, why);
    if (!url.tls || tls) talk.begin(sentinel, std::move(words), std::move(tls));
}

// Returns the votes of the sentinels of a URL, which are queried all at once. Sentinels that answer after the deadline,
// or more than `patience` after the first vote, have no vote. `why` receives the last answer that was no vote; until
// any sentinel has answered, it receives TLS errors.
inline std::vector<MasterVote> ask_sentinels(const Url& url, Instant deadline, Reply& why) {
    constexpr Milliseconds patience{200};
    struct Query {
        AsyncQuery talk;
        std::vector<Reply> replies;
    };
    std::vector<Query> asked(url.sentinels.size());
    for (std::size_t i = 0; i < asked.size(); ++i)
        begin_talk(asked[i].talk, url, url.sentinels[i], detail::questions_for_vote(url.master), why.text);
    std::vector<MasterVote> votes;
    bool anybody = false;
    for (;;) {
        std::vector<pollfd> ready;
        Instant until = deadline;
        for (Query& one : asked) {
            one.talk.proceed();
            Reply reply;
            while (one.replies.size() < 2 && one.talk.next(reply)) one.replies.push_back(std::move(reply));
            if (one.replies.size() == 2) {
                one.talk.end();
                if (auto vote = read_vote(one.replies[0], one.replies[1])) {
                    if (votes.empty()) deadline = std::min(deadline, Clock::now() + patience);
                    votes.push_back(std::move(*vote));
                } else {
                    why = Reply::of(Reply::Kind::not_sent,
                                    one.replies[0].is_error()
                                        ? "a sentinel replied " + in_quotes(one.replies[0].text, 160)
                                        : "the sentinels do not know this master");
                }
                anybody = true;
                one.replies.clear();
            }
            if (one.talk.is_over()) {
                if (!anybody && !one.talk.refusal().is_nil()) why = one.talk.refusal();
                continue;
            }
            ready.push_back(one.talk.watch());
            until = std::min(until, one.talk.due(Clock::now()));
        }
        if (ready.empty() || Clock::now() >= deadline) return votes;
        ::poll(ready.data(), static_cast<nfds_t>(ready.size()), poll_timeout(std::min(until, deadline)));
    }
}

// Opens connections to the master that the sentinels of a URL name, and learns when the master moves.
//
// open_master(), doubt() and epoch() may be called by any thread; the rest by the serving thread only.
class Sentinels {
public:
    // `on_move` is called, on any thread, when the epoch has grown.
    Sentinels(const Url& url, std::function<void()> on_move)
        : url_(url), on_move_(std::move(on_move)), watchers_(url.sentinels.size()) {}

    // Opens a connection to the master. Tries the server that was just announced or proven, then those that the
    // sentinels name, then the known one. Accepts only a server that reports itself as the master.
    std::optional<Reply> open_master(Connection& link, Instant deadline) {
        const std::uint64_t seen = view_.epoch();
        const Instant now = Clock::now();
        if (const auto guess = view_.guess(now)) {
            if (!open(link, {*guess}, seen, part_of(now, deadline, 2))) return std::nullopt;
            view_.reject(*guess);
        }
        auto why = Reply::of(Reply::Kind::not_sent, "none of its sentinels replies");
        const auto votes = ask_sentinels(url_, part_of(Clock::now(), deadline, 3), why);
        const auto candidates = ranked(votes, view_.known());
        auto refusal = why;
        if (why.is_unsent()) refusal.text = "cannot find " + url_.display() + ": " + why.text;
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            const bool is_last = i + 1 == candidates.size();
            auto no = open(link, candidates[i], seen, is_last ? deadline : part_of(Clock::now(), deadline, 2));
            if (!no) return std::nullopt;
            if (i == 0) refusal = std::move(*no);
        }
        return refusal;
    }

    std::uint64_t epoch() const { return view_.epoch(); }

    // Called when the server of that epoch answered as only a replica does.
    void doubt(std::uint64_t epoch) {
        if (view_.doubt(epoch)) on_move_();
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    // Adds what the serving thread must watch. Returns when to call serve() anyway.
    Instant watch(std::vector<pollfd>& ready) const {
        const Instant now = Clock::now();
        Instant due = never;
        for (const Watcher& watcher : watchers_) {
            if (watcher.talk.is_over()) {
                due = std::min(due, watcher.next_attempt);
                continue;
            }
            ready.push_back(watcher.talk.watch());
            due = std::min(due, watcher.talk.due(now));
        }
        return due;
    }

    // Listens to every sentinel for a new master. Does not wait.
    void serve() {
        for (std::size_t i = 0; i < watchers_.size(); ++i) {
            Watcher& watcher = watchers_[i];
            if (watcher.talk.is_over()) {
                if (Clock::now() < watcher.next_attempt) continue;
                // Queries first, then the subscription: a subscribed connection answers no queries.
                std::string words = detail::questions_for_vote(url_.master);
                detail::append_words(words, {"SUBSCRIBE", "+switch-master", "+promoted-slave"});
                watcher.answers.clear();
                std::string unsaid;
                begin_talk(watcher.talk, url_, url_.sentinels[i], std::move(words), unsaid);
            }
            watcher.talk.proceed();
            Reply reply;
            while (watcher.talk.next(reply)) hear(watcher, std::move(reply));
            if (watcher.talk.is_over()) watcher.next_attempt = Clock::now() + watcher.backoff.next();
        }
    }

    void close_inherited() noexcept {
        for (Watcher& watcher : watchers_) watcher.talk.close_inherited();
    }

private:
    struct Watcher {
        AsyncQuery talk;
        std::vector<Reply> answers;  // to the queries
        Backoff backoff{Milliseconds(20), longest_pause};
        Instant next_attempt{};
    };

    static Instant part_of(Instant now, Instant deadline, int parts) {
        return deadline <= now || deadline == never ? deadline : now + (deadline - now) / parts;
    }

    std::optional<Reply> open(Connection& link, const MasterVote& candidate, std::uint64_t seen, Instant deadline) {
        if (auto refusal = link.open(url_.at(candidate.master), deadline, ServerRole::master)) return refusal;
        const auto epoch = view_.prove(candidate, seen, Clock::now());
        if (!epoch) {
            link.socket.close();
            return Reply::of(Reply::Kind::not_sent, url_.display() + " has just moved to another server");
        }
        link.place = *epoch;
        if (*epoch != seen) on_move_();
        return std::nullopt;
    }

    void hear(Watcher& watcher, Reply reply) {
        if (watcher.answers.size() < 2) {
            watcher.answers.push_back(std::move(reply));
            if (watcher.answers.size() < 2) return;
            if (const auto vote = read_vote(watcher.answers[0], watcher.answers[1]))
                if (view_.hear(*vote)) on_move_();
            return;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 3) return watcher.talk.end();
        if (reply.elements[0].text == "subscribe") watcher.backoff.reset();
        if (reply.elements[0].text != "message") return;
        if (const auto master = read_announcement(reply.elements[1].text, reply.elements[2].text, url_.master))
            if (view_.announce(*master)) on_move_();
    }

    const Url url_;
    const std::function<void()> on_move_;
    MasterTracker view_;
    std::vector<Watcher> watchers_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/standalone.hpp

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One Redis server, and all connections to it.
//
// Up to `shared` connections carry the commands of all threads, each thread always on the same one. They are opened on
// first use, so a program with one thread has one. If a further one cannot be opened (for example, because the password
// was changed), the existing ones carry everything. Commands that are sent together use a connection of their own until
// they are answered, because they may wait for replicas and would delay all that follows. One more connection carries
// the subscriptions.
//
// After a time-out or a malformed reply a connection is closed and never reused. It is opened again with exponential
// back-off and jitter, and logs in again. There is no thread here: see run().
//
// There is no lock here, either: the connections are thread-safe, and the set of them only grows.
class Standalone : public Deployment {
public:
    static constexpr std::size_t shared = 4;

    Standalone(const Url& url, Milliseconds timeout)
        : Standalone(url, timeout,
                     [this](Connection& connection, Instant deadline) { return connection.open(url_, deadline); }) {}

    Reply call(const Command& command, Instant deadline) override {
        bool refused = false;
        Reply reply = connection().call(command, deadline, &refused);
        if (CommandConnection* const other = refused ? substitute(deadline) : nullptr)
            return other->call(command, deadline, &refused);
        return reply;
    }

    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) override {
        return own_.with_one([&](CommandConnection& own) {
            bool refused = false;
            std::vector<Reply> replies = own.call_all(commands, deadline, &refused);
            if (CommandConnection* const other = refused ? substitute(deadline) : nullptr)
                return other->call_all(commands, deadline, &refused);
            return replies;
        });
    }

    void post(const Command& command, Completion done) override { connection().post(command, std::move(done)); }

    void post_all(std::span<const Command> commands, std::span<Completion> done) override {
        own_.with_one([&](CommandConnection& own) { own.post_all(commands, done); });
    }

    void post_attended(const Command& command, Completion done) override {
        connection().post(command, std::move(done), true);
    }
    void attend() override { connection().attend(); }

    void subscribe(const std::string& channel) override {
        subscriber_.subscribe(channel);
        wake();
    }

    void unsubscribe(const std::string& channel) override {
        subscriber_.unsubscribe(channel);
        wake();
    }

    // Does one round of poll() over the subscriber connection and the command connections that no other thread reads.
    void run(Listener& listener, Instant deadline) override {
        ready_.clear();
        ready_.push_back({pipe_.fd(), POLLIN, 0});
        const PubSubConnection::Duty duty = subscriber_.duty();
        Instant due = std::min(deadline, duty.due);
        if (duty.fd >= 0) ready_.push_back({duty.fd, duty.events, 0});
        each_connection([&](CommandConnection& one) {
            const CommandConnection::Watch watch = one.watch();
            due = std::min(due, watch.due);
            if (watch.fd >= 0) ready_.push_back({watch.fd, watch.events, 0});
        });
        due = std::min(due, watch_more(ready_));
        ::poll(ready_.data(), static_cast<nfds_t>(ready_.size()), poll_timeout(due));
        pipe_.drain();
        serve_more(listener);
        const Instant limit = Clock::now() + timeout_;
        subscriber_.serve(listener, limit);
        each_connection([&](CommandConnection& one) {
            one.drive(limit);
            if (one.is_connected()) return;
            if (CommandConnection* const other = connected()) one.hand_over_to(*other);
        });
    }

    bool watch(Listener& listener, Instant deadline, std::uint64_t seen) override {
        const PubSubConnection::Watch outcome = subscriber_.watch(listener, deadline, interrupts_, seen);
        if (outcome == PubSubConnection::Watch::lost) wake();
        return outcome == PubSubConnection::Watch::done;
    }

    // All keys are on the one server.
    std::uint32_t route(std::string_view) const noexcept override { return 0; }
    std::string_view publish_command() override { return "PUBLISH"; }

    void close_inherited() noexcept override {
        each_connection([](CommandConnection& one) { one.close_inherited(); });
        subscriber_.close_inherited();
    }

    std::uint64_t connections() const override {
        std::uint64_t sum = 0;
        each_connection([&](const CommandConnection& one) { sum += one.connections(); });
        return sum;
    }

    std::uint64_t reconnects() const override {
        std::uint64_t sum = 0;
        each_connection(
            [&](const CommandConnection& one) { sum += std::max<std::uint64_t>(one.connections(), 1) - 1; });
        return sum;
    }

protected:
    // `open` finds the server.
    Standalone(const Url& url, Milliseconds timeout, Opener open)
        : url_(url),
          timeout_(timeout),
          open_(std::move(open)),
          subscriber_(
              open_, timeout, [this] { wake(); }, false, [this] { answers(); }) {}

    template <class Visit>
    void each_connection(Visit visit) {
        for (CommandConnection& one : shared_) visit(one);
        own_.each(visit);
    }
    template <class Visit>
    void each_connection(Visit visit) const {
        for (const CommandConnection& one : shared_) visit(one);
        own_.each(visit);
    }

    // Leaves a server that is not the one of this epoch.
    void leave_before(std::uint64_t epoch) {
        each_connection([&](CommandConnection& one) { one.leave_before(epoch); });
    }
    void leave_before(std::uint64_t epoch, Listener& listener) {
        leave_before(epoch);
        subscriber_.leave_before(epoch, listener);
    }

    // Called at the end. Afterwards neither the opener nor a completion is called any more.
    void finish() noexcept {
        subscriber_.finish();
        each_connection([](CommandConnection& one) { one.forget_posted(); });
    }

private:
    // What else run() watches, and until when, and what else it serves afterwards.
    virtual Instant watch_more(std::vector<pollfd>&) { return never; }
    virtual void serve_more(Listener&) {}

    // The one of the calling thread.
    CommandConnection& connection() { return shared_[this_thread_number() % shared]; }

    // Returns a connected one, or null.
    CommandConnection* connected() noexcept {
        for (CommandConnection& one : shared_)
            if (one.is_connected()) return &one;
        return nullptr;
    }

    // Returns a connected connection for a call whose own one cannot connect; null if there is none, or no time.
    CommandConnection* substitute(Instant deadline) { return Clock::now() < deadline ? connected() : nullptr; }

    // Called when one connection has received a reply: ends the reconnect pauses of the others.
    void answers() noexcept {
        bool has_ended_pause = subscriber_.try_again();
        each_connection([&](CommandConnection& one) { has_ended_pause |= one.try_again(); });
        if (has_ended_pause) wake();
    }

    CommandConnection make_connection() {
        return CommandConnection(
            url_, open_, timeout_, [this] { wake(); }, CommandConnection::Connecting::until_deadline,
            [this] { return connected() != nullptr; }, [this] { answers(); });
    }

    template <std::size_t... I>
    std::array<CommandConnection, shared> make_connections(std::index_sequence<I...>) {
        return {((void)I, make_connection())...};
    }

    const Url url_;
    const Milliseconds timeout_;
    const Opener open_;
    std::vector<pollfd> ready_;  // run()'s own
    PubSubConnection subscriber_;
    std::array<CommandConnection, shared> shared_ = make_connections(std::make_index_sequence<shared>());
    OwnConnections own_{
        [this] { return std::unique_ptr<CommandConnection>(new CommandConnection(make_connection())); }};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/sentinel_deployment.hpp

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A Standalone whose one server is the present master, as the sentinels of the URL name it. It leaves its connections as
// soon as a sentinel announces another master, or the server answers as only a replica does.
class SentinelDeployment final : public Standalone {
public:
    SentinelDeployment(const Url& url, Milliseconds timeout)
        : Standalone(url, timeout,
                     [this](Connection& connection, Instant deadline) {
                         return sentinels_.open_master(connection, deadline);
                     }),
          sentinels_(url, [this] { wake(); }) {}

    // The connections ask the sentinels, which end before them.
    ~SentinelDeployment() override { finish(); }

    Reply call(const Command& command, Instant deadline) override {
        const std::uint64_t epoch = sentinels_.epoch();
        Reply reply = Standalone::call(command, deadline);
        check_for_failover(reply, epoch);
        return reply;
    }

    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) override {
        const std::uint64_t epoch = sentinels_.epoch();
        std::vector<Reply> replies = Standalone::call_all(commands, deadline);
        for (const Reply& reply : replies) check_for_failover(reply, epoch);
        return replies;
    }

    void post(const Command& command, Completion done) override {
        Standalone::post(command, with_failover_check(std::move(done)));
    }

    void post_all(std::span<const Command> commands, std::span<Completion> done) override {
        for (Completion& one : done) one = with_failover_check(std::move(one));
        Standalone::post_all(commands, done);
    }

    void post_attended(const Command& command, Completion done) override {
        Standalone::post_attended(command, with_failover_check(std::move(done)));
    }

    void run(Listener& listener, Instant deadline) override {
        follow(listener);
        Standalone::run(listener, deadline);
    }

    void close_inherited() noexcept override {
        Standalone::close_inherited();
        sentinels_.close_inherited();
    }

private:
    Instant watch_more(std::vector<pollfd>& ready) override { return sentinels_.watch(ready); }

    void serve_more(Listener& listener) override {
        sentinels_.serve();
        follow(listener);
    }

    // Leaves its connections at once, because perhaps no thread is inside run().
    void check_for_failover(const Reply& reply, std::uint64_t epoch) {
        if (!is_from_replica(reply)) return;
        sentinels_.doubt(epoch);
        leave_before(sentinels_.epoch());
    }

    Completion with_failover_check(Completion done) {
        return [this, epoch = sentinels_.epoch(), done = std::move(done)](Reply reply) {
            if (is_from_replica(reply)) sentinels_.doubt(epoch);
            done(std::move(reply));
        };
    }

    // Leaves the server that is no longer the master, and notifies the listener.
    void follow(Listener& listener) {
        const std::uint64_t epoch = sentinels_.epoch();
        if (epoch <= followed_) return;
        followed_ = epoch;
        leave_before(epoch, listener);
        listener.on_failover();
    }

    Sentinels sentinels_;
    std::uint64_t followed_ = 1;  // run()'s own: the epoch that the listener was last notified of
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redis/hiredis_transport.ipp

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

inline Url with_tls(Url url, std::shared_ptr<const TlsConnector> tls) {
    if (tls) url.tls_connector = std::move(tls);
    if (url.tls && !url.tls_connector)
        throw Error(errc::unsupported, {},
                    "this program has no TLS support; include redlatch/tls.hpp, set ClientOptions::tls to "
                    "redlatch::tls(), and link OpenSSL (Debian, Ubuntu: libssl-dev; Fedora: openssl-devel; CMake: "
                    "redlatch::tls)");
    return url;
}

inline std::unique_ptr<Deployment> make_deployment(const Url& url, Milliseconds timeout, PubSub pubsub) {
    if (!url.cluster.empty()) return std::make_unique<Cluster>(url, timeout, pubsub);
    if (!url.sentinels.empty()) return std::make_unique<SentinelDeployment>(url, timeout);
    return std::make_unique<Standalone>(url, timeout);
}

}  // namespace detail

REDLATCH_INLINE HiredisTransport::HiredisTransport(Url url, Milliseconds command_timeout,
                                                   std::shared_ptr<const detail::TlsConnector> tls, PubSub pubsub)
    : url_(detail::with_tls(std::move(url), std::move(tls))),
      timeout_(command_timeout),
      pubsub_(pubsub),
      deployment_(detail::make_deployment(url_, timeout_, pubsub_)) {}

REDLATCH_INLINE HiredisTransport::HiredisTransport(HiredisTransport&&) noexcept = default;

REDLATCH_INLINE HiredisTransport& HiredisTransport::operator=(HiredisTransport&&) noexcept = default;

REDLATCH_INLINE HiredisTransport::~HiredisTransport() = default;

REDLATCH_INLINE Reply HiredisTransport::call(const Command& command, Instant deadline) {
    return deployment_->call(command, deadline);
}

REDLATCH_INLINE std::vector<Reply> HiredisTransport::call_all(std::span<const Command> commands, Instant deadline) {
    return deployment_->call_all(commands, deadline);
}

REDLATCH_INLINE void HiredisTransport::post(const Command& command, Completion done) {
    deployment_->post(command, std::move(done));
}

REDLATCH_INLINE void HiredisTransport::post_all(std::span<const Command> commands, std::span<Completion> done) {
    deployment_->post_all(commands, done);
}

REDLATCH_INLINE void HiredisTransport::post_attended(const Command& command, Completion done) {
    deployment_->post_attended(command, std::move(done));
}

REDLATCH_INLINE void HiredisTransport::attend() { deployment_->attend(); }

REDLATCH_INLINE void HiredisTransport::subscribe(const std::string& channel) { deployment_->subscribe(channel); }

REDLATCH_INLINE void HiredisTransport::unsubscribe(const std::string& channel) { deployment_->unsubscribe(channel); }

REDLATCH_INLINE void HiredisTransport::run(Listener& listener, Instant deadline) {
    deployment_->run(listener, deadline);
}

REDLATCH_INLINE void HiredisTransport::wake() { deployment_->wake(); }

REDLATCH_INLINE bool HiredisTransport::watch(Listener& listener, Instant deadline, std::uint64_t seen) {
    return deployment_->watch(listener, deadline, seen);
}

REDLATCH_INLINE std::uint64_t HiredisTransport::interrupts() const noexcept { return deployment_->interrupts(); }

REDLATCH_INLINE void HiredisTransport::interrupt_watch() { deployment_->interrupt_watch(); }

REDLATCH_INLINE std::uint32_t HiredisTransport::route(std::string_view key) const noexcept {
    return deployment_->route(key);
}

REDLATCH_INLINE std::string_view HiredisTransport::publish_command() const { return deployment_->publish_command(); }

REDLATCH_INLINE std::uint64_t HiredisTransport::connections() const { return deployment_->connections(); }

REDLATCH_INLINE std::uint64_t HiredisTransport::reconnects() const { return deployment_->reconnects(); }

REDLATCH_INLINE HiredisTransport HiredisTransport::clone_after_fork() {
    deployment_->close_inherited();
    return HiredisTransport(url_, timeout_, url_.tls_connector, pubsub_);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#endif

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

inline void check_options(const ClientOptions& options) {
    static_cast<void>(Lease(options.watchdog_timeout));
    if (options.watchdog_timeout < Milliseconds(30))
        throw Error(errc::invalid_argument, {}, "watchdog_timeout must be at least 30 ms");
    if (options.command_timeout < Milliseconds(1) || options.command_timeout > std::chrono::hours(1))
        throw Error(errc::invalid_argument, {}, "command_timeout must be from 1 ms to 1 h");
    if (options.unreachable_timeout < Milliseconds(0))
        throw Error(errc::invalid_argument, {}, "unreachable_timeout must not be negative");
    if (!options.key_prefix.empty()) check_name(options.key_prefix + "x");
}

inline std::shared_ptr<SessionHandle> new_session(std::unique_ptr<TransportPort> transport,
                                                  const ClientOptions& options) {
    check_options(options);
    if (options.require_replicas > 0 && !transport->posts_several())
        throw Error(errc::unsupported, {}, "require_replicas needs a transport with post_all()");
    return std::make_shared<SessionHandle>(std::move(transport), options);
}

#if __has_include(<hiredis/read.h>)
inline std::unique_ptr<TransportPort> connect(std::string_view text, const ClientOptions& options) {
    Url url = Url::parse(text);
    check_options(options);
    return std::make_unique<TransportPortOf<HiredisTransport>>(
        HiredisTransport(std::move(url), options.command_timeout, options.tls, options.pubsub));
}
#endif

}  // namespace detail

#if __has_include(<hiredis/read.h>)
REDLATCH_INLINE Client::Client(std::string_view url, ClientOptions options)
    : session_(detail::new_session(detail::connect(url, options), options)) {}
#endif

REDLATCH_INLINE Client::Client(Port, std::unique_ptr<detail::TransportPort> transport, ClientOptions options)
    : session_(detail::new_session(std::move(transport), options)) {}

REDLATCH_INLINE Client::~Client() = default;

REDLATCH_INLINE std::string Client::id() const { return session_->session().uuid(); }

REDLATCH_INLINE Stats Client::stats() const { return session_->session().stats(); }

REDLATCH_INLINE std::vector<std::string> Client::check_server() const {
    return detail::check_server(session_->session());
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/call_options.hpp

// Defines the trailing options of a call: at most one Lease, one std::stop_token and one std::error_code&, in that
// order.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

template <class Argument>
inline constexpr bool is_forever = std::same_as<std::remove_cvref_t<Argument>, Lease::Forever>;

template <class Argument>
inline constexpr int tail_rank = std::same_as<std::remove_cvref_t<Argument>, Lease> || is_forever<Argument> ? 1
                                 : std::same_as<std::remove_cvref_t<Argument>, std::stop_token>             ? 2
                                 : std::same_as<Argument, std::error_code&>                                 ? 3
                                                                                                            : 0;

template <class... Tail>
constexpr bool is_tail(int most = 3) {
    int last = 0;
    bool ordered = true;
    ((ordered = ordered && tail_rank<Tail> > last, last = tail_rank<Tail>), ...);
    return ordered && last <= most;
}

template <class... Tail>
inline constexpr bool has_lease = (... || (tail_rank<Tail> == 1));

template <class... Tail>
inline constexpr bool has_stop_token = (... || (tail_rank<Tail> == 2));

template <class... Tail>
inline constexpr bool has_error_code = (... || (tail_rank<Tail> == 3));

inline std::error_code* error_code_of() { return nullptr; }
template <class First, class... Rest>
std::error_code* error_code_of(First& first, Rest&... rest) {
    if constexpr (std::same_as<First, std::error_code>)
        return &first;
    else
        return error_code_of(rest...);
}

// Calls `call`. With an error code among the arguments, it stores the code of an Error there and returns `otherwise`.
template <class Function, class Result, class... Tail>
Result answer(Function call, Result otherwise, Tail&... tail) {
    if constexpr (has_error_code<Tail&...>) {
        std::error_code& ec = *error_code_of(tail...);
        try {
            ec.clear();
            return call();
        } catch (const std::system_error& error) {
            ec = error.code();
            return otherwise;
        }
    } else {
        return call();
    }
}

// Trailing options of a waiting call: Lease, std::stop_token, std::error_code&.
template <class... Tail>
concept LockOption = detail::is_tail<Tail...>() && !(... || detail::is_forever<Tail>);

// Trailing options of a call that does not wait: Lease, std::error_code&.
template <class... Tail>
concept TryOption = LockOption<Tail...> && !detail::has_stop_token<Tail...>;

// Trailing options of a waiting call without a lease: std::stop_token, std::error_code&.
template <class... Tail>
concept StopOption = detail::is_tail<Tail...>() && !detail::has_lease<Tail...>;

// Trailing options of a call that acquires permits: Lease or Lease::Forever, std::stop_token, std::error_code&.
template <class... Tail>
concept PermitOption = detail::is_tail<Tail...>();

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/state_handle.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class NamedState;
class Session;
class SessionHandle;
struct StateMaker;

// Connects a user's object to the local state of its name in the current process. After a fork that is a different
// state. Keeps the client's session alive.
class StateHandle {
public:
    // Throws Error(errc::invalid_argument) if the name is bad. `maker` must outlive the handle.
    StateHandle(std::shared_ptr<SessionHandle> core, const StateMaker& maker, std::string_view name);
    StateHandle(const StateHandle&) = delete;
    StateHandle& operator=(const StateHandle&) = delete;
    ~StateHandle();

    const std::string& name() const noexcept { return name_; }

    NamedState& state();

    const std::shared_ptr<SessionHandle>& session_handle() const noexcept { return core_; }

private:
    NamedState& use(Session& session) const;

    const std::shared_ptr<SessionHandle> core_;
    const StateMaker& maker_;
    const std::string name_;
    std::string key_;
    std::atomic<NamedState*> state_{nullptr};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/session/state_handle.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE StateHandle::StateHandle(std::shared_ptr<SessionHandle> core, const StateMaker& maker,
                                         std::string_view name)
    : core_(std::move(core)), maker_(maker), name_(name) {
    Session& session = core_->session();
    key_ = session.options().key_prefix + name_;
    check_name(name_);
    check_name(key_);
    state_ = &use(session);
}

REDLATCH_INLINE StateHandle::~StateHandle() {
    const KeepErrno kept;
    NamedState& state = *state_.load();
    if (state.session().is_of_this_process()) state.session().leave_state(state);
}

REDLATCH_INLINE NamedState& StateHandle::state() {
    Session& session = core_->session();
    NamedState* state = state_.load(std::memory_order_acquire);
    while (&state->session() != &session) {
        NamedState* mine = &use(session);
        if (state_.compare_exchange_strong(state, mine)) return *mine;
        session.leave_state(*mine);
    }
    return *state;
}

REDLATCH_INLINE NamedState& StateHandle::use(Session& session) const { return session.use_state(maker_, key_); }

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/wait_request.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Limits how long a caller waits.
struct WaitRequest {
    Instant deadline = never;
    bool one_try = false;  // do not wait, whatever the deadline
    std::stop_token stop{};
};

// Returns a request with the deadline and the stop token among the arguments, if there is one.
template <class... Tail>
WaitRequest wait_until(Instant deadline, const Tail&... tail) {
    WaitRequest request{.deadline = deadline, .one_try = deadline != never && deadline <= Clock::now()};
    [[maybe_unused]] const auto take = [&](const auto& argument) {
        if constexpr (std::same_as<std::remove_cvref_t<decltype(argument)>, std::stop_token>) request.stop = argument;
    };
    (take(tail), ...);
    return request;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/count_down_latch.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Lets any number of threads in many processes wait until a shared count reaches zero: a std::latch across processes,
// and the counterpart of Redisson's RCountDownLatch. It differs from std::latch in three ways:
//   - try_set_count() sets the count, and may set it again after it has ended.
//   - Counting down by more than is left ends the count at zero.
//   - While there is no count, waiting returns at once.
//
// Neither copyable nor movable. Any number of threads may use one object. Two objects with the same name are the same
// latch. Each member throws Error; with a trailing std::error_code& it stores the code and throws only std::bad_alloc.
// If the server cannot be reached, a call retries for ClientOptions::unreachable_timeout, then fails with
// errc::unreachable. A command may be resent after a lost reply and still takes effect once.
class CountDownLatch {
public:
    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. On a cluster the name must have no {tag} either, because the latch's channel would lie in
    // another slot. Sends nothing.
    CountDownLatch(Client& client, std::string_view name);

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns the largest count, which is the largest that Redisson can read.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Sets the count if there is none. Returns true if it was set. One round trip, like every member that does not
    // wait. Throws Error(errc::invalid_argument) if `count` is not from 1 to max().
    bool try_set_count(std::ptrdiff_t count);
    bool try_set_count(std::ptrdiff_t count, std::error_code& ec) {
        return detail::answer([&] { return try_set_count(count); }, false, ec);
    }

    // Returns the number left to count down, or 0 if there is no count.
    std::ptrdiff_t count() const;
    std::ptrdiff_t count(std::error_code& ec) const {
        return detail::answer([&] { return count(); }, std::ptrdiff_t(0), ec);
    }

    // Counts down by n. At zero all waiters return. Does nothing if there is no count or n is 0. Throws
    // Error(errc::invalid_argument) if n is negative.
    //
    // If no server carries it out in time, the call fails with errc::unreachable or errc::overloaded, but the
    // count-down is not lost: the client retries it in the background for a minute and a half or more, while the
    // process lives. So do not count down again after such an error. If the retries fail too, the event
    // unlock_not_delivered reports it.
    void count_down(std::ptrdiff_t n = 1);
    void count_down(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return count_down(n), true; }, false, ec);
    }
    void count_down(std::error_code& ec) { count_down(1, ec); }

    // Returns true if there is nothing left to count down.
    [[nodiscard]] bool try_wait() const { return wait_for_end({.one_try = true}); }
    [[nodiscard]] bool try_wait(std::error_code& ec) const {
        return detail::answer([&] { return try_wait(); }, false, ec);
    }

    // Waits until the count that was set at the time of the call has ended: it reached zero, was reset, or its key
    // expired. A count set after that does not matter. A waiting thread sends one query every 5 to 10 seconds, in case
    // a message was lost. A process with many waiting threads sends no more than that.
    //   wait(token)   returns early if a stop is requested; only this form returns a bool: true if the count has ended
    //   wait(…, ec)   stores the error instead of throwing it
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto wait(Tail&&... tail) const {
        const bool ended =
            detail::answer([&] { return wait_for_end(detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }

    // Waits at most until `timeout` has passed or the instant has come, by a monotonic clock. Returns true if the count
    // has ended. Timeouts are rounded up to the next millisecond; zero or less checks once; the largest value waits
    // indefinitely. Accepts std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) const {
        return timed(deadline_after(Clock::now(), timeout), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) const {
        return timed(deadline_at(when), tail...);
    }

    // Calls count_down(n), then wait(…) for the end of the same count. Takes one round trip if this call ended the
    // count.
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto arrive_and_wait(std::ptrdiff_t n, Tail&&... tail) {
        const bool ended =
            detail::answer([&] { return arrive(n, detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto arrive_and_wait(Tail&&... tail) { return arrive_and_wait(1, tail...); }

    // Ends the count at once, as if it had reached zero; all waiters return. Returns true if there was a count.
    bool reset();
    bool reset(std::error_code& ec) {
        return detail::answer([&] { return reset(); }, false, ec);
    }

private:
    bool wait_for_end(const detail::WaitRequest& request) const;
    bool arrive(std::ptrdiff_t n, const detail::WaitRequest& request);

    template <class... Tail>
    bool timed(Instant deadline, Tail&... tail) const {
        return detail::answer([&] { return wait_for_end(detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    // Waiting is const, as it is for std::latch.
    mutable detail::StateHandle handle_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/numbers.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the number in a text, or 0 for nil. Throws Error for anything else, and for a number of 2^53 or more, which
// scripts could not count with: the key then belongs to something else.
inline std::int64_t number_of(const Reply& reply, std::string_view key) {
    if (reply.is_nil()) return 0;
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    std::int64_t number = 0;
    const char* const last = reply.text.data() + reply.text.size();
    const auto [end, error] = std::from_chars(reply.text.data(), last, number);
    constexpr std::int64_t limit = std::int64_t{1} << 53;
    if (error != std::errc{} || end != last || number >= limit || number <= -limit)
        throw Error(errc::wrong_type, key,
                    "the key holds " + in_quotes(reply.text, 40) +
                        " instead of a number; something else uses this key; choose another name");
    return number;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/request_slots.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Identifies a command that must take effect once, see scripts/request_marks.hpp, and records what is known of its
// outcome.
struct RequestId {
    std::uint32_t slot = 0;
    std::uint64_t request = 0;
    ServerMilliseconds wanted_until = 0;  // the same in all copies; 0 as long as there is none
    bool may_be_done = false;             // True if a copy may have taken effect
    bool is_unknowable = false;           // True if its outcome can no longer be determined
};

// Assigns the lanes of one name in this process. A lane carries one request at a time. It is free again when the
// outcome of the request is known or no longer needed. Plain data.
class RequestSlots {
public:
    // `request`: greater than all before.
    RequestId take(std::uint64_t request) {
        const auto free = std::find(busy_.begin(), busy_.end(), false);
        const auto lane = static_cast<std::uint32_t>(free - busy_.begin());
        if (free == busy_.end())
            busy_.push_back(true);
        else
            *free = true;
        return {lane, request};
    }

    void give_back(const RequestId& request_id) { busy_[request_id.slot] = false; }

private:
    std::vector<bool> busy_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/all_or_none.hpp

// Access rights may allow some commands of a script and refuse others in its middle. Redis does not roll back: what was
// written before a refusal stays. So commands that may be refused come first, or are undone.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

// Precedes the scripts that use it.
inline constexpr std::string_view all_or_none{R"lua(
-- Makes all changes or, if one is refused (access rights may allow some and not others), none. Each change may carry
-- the command that undoes it. Returns nil, or the error.
local function all_or_none(changes)
    for i = 1, #changes do
        local reply = redis.pcall(unpack(changes[i]))
        if type(reply) == 'table' and reply.err then
            for k = i - 1, 1, -1 do
                if changes[k].undo then redis.pcall(unpack(changes[k].undo)) end
            end
            return reply
        end
    end
end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/exact_count.hpp

// A key that should hold a number may hold something else. Lua accepts texts as numbers that Redis does not: '0x10',
// 'nan', ' 7'. Above 2^53 it does not represent every whole number. So scripts check the text before they change
// anything.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

// Precedes the scripts that use it.
inline constexpr std::string_view exact_count{R"lua(
-- Returns the whole number in the text; nil if there is none, or none that Lua represents exactly.
local function count_in(text)
    if text ~= '0' and not string.find(text, '^-?[1-9]%d*$') then return nil end
    local number = tonumber(text)
    if math.abs(number) < 9007199254740992 then return number end
    return nil
end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/wanted_until.hpp

// A command may reach the server long after its sender has given up: a closed connection may still be delivered for
// half a minute, and a proxy may delay one for longer. So a command that would do harm then carries a time until which
// it is wanted, in milliseconds since 1970 by the server's clock. After that time it changes nothing and returns the
// error LATE with the time of the server.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

// Precedes the scripts that use it.
inline constexpr std::string_view wanted_until{R"lua(
-- Milliseconds since 1970.
local function time_in_ms()
    local time = redis.call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- Returns the reply to a command that came too late: it took no effect.
local function late(now) return redis.error_reply(string.format('LATE %.0f', now)) end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/request_marks.hpp

// Makes a script that changes a number take effect once, however often its command is sent, in whatever order the
// copies arrive, and however late. Each command carries a lane and a request number. A client sends one request at a
// time in a lane, with growing numbers. A hash beside the key, one per client, keeps for each lane the last request
// that was carried out and its outcome. So a copy finds its own mark and repeats the answer, and a delayed copy finds
// the mark of a later request and does nothing. There are never more marks than there were commands in flight at once.
//
// All copies of a request carry the same time until which it is wanted, by the server's clock, and change nothing after
// it. The mark stays for a margin longer. So the mark exists as long as a copy could take effect. If a client looks
// within the margin and finds no mark, no copy has taken effect, and none will.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes the scripts that use it.
inline constexpr std::string_view request_marks{R"lua(
local function whole(number) return string.format('%.0f', number) end
-- Returns the outcome of this request if it was carried out, or of a later one of its lane; nil if it was not carried
-- out. And whether the outcome is that of this very request.
local function outcome_of(marks, lane, request)
    local mark = redis.call('hget', marks, lane)
    if not mark then return nil, false end
    local last, outcome = string.match(mark, '^(%d+):(-?%d+)$')
    if tonumber(last) < tonumber(request) then return nil, false end
    return tonumber(outcome), last == request
end
-- The TTL of the marks before this script changes them; -2 if there are none.
local marks_ttl
local function ttl_of(marks)
    marks_ttl = marks_ttl or redis.call('pttl', marks)
    return marks_ttl
end
-- mark() and keep() return changes for all_or_none(). The outcome is an integer, as text if it may be large. `before`:
-- the outcome that this one replaces. Undoing a mark leaves no hash without a TTL.
local function mark(marks, lane, request, outcome, before)
    local undo = {'del', marks}
    if before then
        undo = {'hset', marks, lane, request .. ':' .. whole(before)}
    elseif ttl_of(marks) ~= -2 then
        undo = {'hset', marks, lane, whole(request - 1) .. ':0'}
    end
    return {'hset', marks, lane, request .. ':' .. outcome, undo = undo}
end
-- Keeps the marks until `ends`, or longer if that was set before. Redis allows this when its memory is full, and then
-- all later writes of the script.
local function keep(marks, now, ends)
    return {'pexpire', marks, whole(math.max(ttl_of(marks), ends - now, 1))}
end
-- The largest value of Java's int: Redisson reads no larger one.
local most = 2147483647
local function too_many() return redis.error_reply('TOOMANY there would be more than 2147483647') end
)lua"};

inline constexpr std::string_view request_void{R"lua(
-- KEYS: marks.  ARGV: lane, request whose outcome its sender does not know, wanted until, margin in ms.
-- Answer: 1 = it has not been carried out, and copies in flight will not be; 0 = it has been.
local marks = KEYS[1]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if outcome_of(marks, lane, request) then return 0 end
local now = time_in_ms()
if now > wanted_until then return late(now) end
return all_or_none({keep(marks, now, wanted_until + margin), mark(marks, lane, request, 0),
                    keep(marks, now, wanted_until + margin)}) or 1
)lua"};

}  // namespace parts

// A script that uses request_marks, and numbers that keys hold.
template <const std::string_view& Body>
inline constexpr std::string_view with_request_marks =
    joined<parts::all_or_none, parts::request_marks, parts::wanted_until, parts::exact_count, Body>;

inline constexpr std::string_view request_void{with_request_marks<parts::request_void>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::request_void>{scripts::request_void,
    "a52887525a279fa5c3b986dc8cd314e0202a4eac"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/request_marks.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of scripts that use scripts/request_marks.hpp, so that each request takes effect at most once. Their
// first keys are the key of the primitive and the key of the marks. Their first arguments are the lane, the request
// number, until when the request is wanted, the margin, and '1' if a copy of the request may be in flight.
//
// A request is wanted for a while from its first sending on. All copies of it are wanted until the same instant of the
// server's clock. Its mark stays for the margin longer. A copy that arrives in between and finds no mark proves that no
// copy has taken effect, nor will: the change may be sent again as a new request. A copy that arrives after the margin
// proves nothing. Then the outcome remains unknown, and a new request might repeat the change.
class RequestMarks {
public:
    RequestMarks(const ProtocolContext& context, std::string key, std::string_view marks_prefix)
        : key_(std::move(key)),
          marks_(prefixed_key(marks_prefix, key_) + ":" + context.uuid),
          window_(longest_ttl(context.options) / 4),
          margin_(longest_ttl(context.options) * 2 / 3) {}

    const std::string& key() const noexcept { return key_; }

    // Returns the longest time for which marks stay: window and margin, and some time for the uncertainty about the
    // server's clock.
    static Milliseconds longest_ttl(const ClientOptions& options) {
        constexpr Milliseconds least = std::chrono::minutes(2), most = std::chrono::hours(1);
        return options.unreachable_timeout > most / 4 ? most : std::max(least, options.unreachable_timeout * 4);
    }

    // Returns until when a request that is first sent at `now` is wanted.
    ServerMilliseconds wanted_from(ServerMilliseconds now) const { return now + window_.count(); }

    // Returns when the mark of a request expires at the earliest.
    ServerMilliseconds mark_end(const RequestId& request_id) const {
        constexpr Milliseconds inexact{1000};
        return request_id.wanted_until + margin_.count() - inexact.count();
    }

    // Makes the call of a script that marks this request.
    Call call(const Script& script, const RequestId& request_id, std::initializer_list<Word> more_keys,
              std::initializer_list<Word> more_arguments, Effect effect = Effect::any) const {
        Call call(
            script, {key_, marks_}, more_keys,
            {request_id.slot, request_id.request, request_id.wanted_until, margin_, request_id.may_be_done ? "1" : "0"},
            effect);
        call.append(more_arguments);
        return call;
    }

    // Voids a request whose sender has given up. After the reply the request has taken effect or never will.
    Call void_request(const RequestId& request_id) const {
        return {digested<scripts::request_void>,
                {marks_},
                {request_id.slot, request_id.request, request_id.wanted_until, margin_}};
    }

private:
    const std::string key_;
    const std::string marks_;
    const Milliseconds window_;
    const Milliseconds margin_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/shared_permits.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The server's reply to an acquire of permits, or to a query for the end of a count.
struct Answer {
    Milliseconds hint;       // how long to wait before a retry may help
    std::int64_t there = 0;  // how many permits there are, as far as the reply shows
};

// Sets `served` for those of `wants` that the `taken` permits serve, in the order of the script. Returns false if the
// number does not add up.
template <class Want>
bool share(std::int64_t taken, std::span<Want> wants) {
    std::int64_t left = taken;
    bool closed = false;
    for (Want& want : wants) {
        want.served = !closed && want.amount() <= left;
        if (want.served)
            left -= want.amount();
        else if (!want.lets_pass)
            closed = true;
    }
    return left == 0;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/count_down_latch.hpp

// The scripts of the count-down latch. Key: a string, the remaining count; absent means zero. Message: "0" if the count
// reached zero or the latch was deleted, "1" if a count was set. The channel is no KEY: for a name with a {tag} it is
// in another slot than the latch.
//
// A second key, the round, is ours alone. It changes whenever a count ends. It exists long enough for waiters that look
// only after the next count was set: they see that theirs has ended.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view count_down_latch_set{R"lua(
-- KEYS: latch, marks.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, count (at least 1), channel,
-- publish command.
-- Answer: 1 = set; 0 = there is a count already.
local latch, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local count, channel, publish = ARGV[6], ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
if redis.call('get', latch) then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
return all_or_none({mark(marks, lane, request, 1), keep(marks, now, ends), {publish, channel, '1'},
                    {'set', latch, count}}) or 1
)lua"};

inline constexpr std::string_view count_down_latch_lower{R"lua(
-- KEYS: latch, marks, round.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, by how much
-- ('all' = delete), channel, publish command.
-- Answer: the count before, 0 = there was none; and the round, a text, if the count goes on, nil for none. If the
-- request was carried out before, the count alone. At zero, never below, the key is deleted and waiters are notified.
local latch, marks, round = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local by, channel, publish = ARGV[6], ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return {before} end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local text = redis.call('get', latch)
local count = count_in(text or '0')
if not count then return redis.error_reply('WRONGTYPE the key holds no count') end
if not text then
    local refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)})
    return refusal or {0, false}
end
local old = redis.call('get', round)
-- First a write that Redis allows when its memory is full.
local changes = {keep(marks, now, ends), mark(marks, lane, request, text), keep(marks, now, ends)}
if by ~= 'all' and tonumber(by) < count then
    table.insert(changes, {'decrby', latch, by})
    return all_or_none(changes) or {count, old}
end
local left = math.max(redis.call('pttl', round), 1)
table.insert(changes, {publish, channel, '0'})
table.insert(changes, {'set', round, marks .. ' ' .. request, 'px', whole(ends - now),
                       undo = {'set', round, old or '', 'px', whole(left)}})
table.insert(changes, {'del', latch})
return all_or_none(changes) or {count, false}
)lua"};

}  // namespace parts

inline constexpr std::string_view count_down_latch_set{with_request_marks<parts::count_down_latch_set>};

inline constexpr std::string_view count_down_latch_lower{with_request_marks<parts::count_down_latch_lower>};

inline constexpr std::string_view count_down_latch_look{R"lua(
-- KEYS: latch, round.  Answer: the count as text, nil for none; and the round, a text, nil for none.
return {redis.call('get', KEYS[1]), redis.call('get', KEYS[2])}
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::count_down_latch_look>{scripts::count_down_latch_look,
    "137908b775803334b04e89c958399043944915b9"};
template <>
inline constexpr Script digested<scripts::count_down_latch_lower>{scripts::count_down_latch_lower,
    "292b056d342b6d04d7f91acb50bac820f6f7e330"};
template <>
inline constexpr Script digested<scripts::count_down_latch_set>{scripts::count_down_latch_set,
    "e05513790da8fa223037ba88e27b877bcff2ce13"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/count_down_latch.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the count-down latch and reads the replies.
class LatchProtocol {
public:
    static constexpr std::string_view kind = "latch ";
    static constexpr bool takes = false;
    static constexpr std::size_t most_at_once = std::numeric_limits<std::size_t>::max();

    // A caller waits until the count that it first found reaches zero. `round` names the last end of a count at that
    // time; nothing before the first reply.
    struct Want {
        std::optional<std::string> round{};
        bool served = false;
    };

    LatchProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_latch_requests"),
          // The channel has Redisson's name.
          channel_("redisson_countdownlatch__channel__{" + marks_.key() + "}"),
          round_(prefixed_key("redlatch_latch_round", marks_.key())) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Call ask(std::span<const Want>, const RequestId&) const {
        return {digested<scripts::count_down_latch_look>, {key(), round_}, {}};
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 2 ||
            !(reply.elements[1].is_nil() || reply.elements[1].kind == Reply::Kind::text))
            throw unexpected(reply, key());
        const bool open = number_of(reply.elements[0], key()) <= 0;
        const std::string& round = reply.elements[1].text;
        for (Want& want : wants) {
            // While the latch is closed, only another round proves that the count has ended. An empty one does not:
            // its key expired long after its end, or never existed.
            want.served = open || (want.round && !round.empty() && *want.round != round);
            if (!want.round) want.round = round;
        }
        return {Milliseconds::max()};
    }

    // The reply to counting down: the count before, and what its caller would wait for.
    struct Lowered {
        std::int64_t before;
        Want want{};
    };
    Lowered decode_lower(const Reply& reply) const {
        if (reply.kind != Reply::Kind::array || reply.elements.empty() || !reply.elements[0].is_integer())
            throw unexpected(reply, key());
        Lowered lowered{reply.elements[0].integer};
        if (reply.elements.size() > 1) lowered.want.round = reply.elements[1].text;
        return lowered;
    }

    Call set(const RequestId& request_id, std::int64_t count) const {
        return marks_.call(digested<scripts::count_down_latch_set>, request_id, {},
                           {count, channel_, PublishCommand()});
    }

    // A value of `by` that deletes the latch.
    static constexpr std::int64_t all = -1;
    Call lower(const RequestId& request_id, std::int64_t by) const {
        return marks_.call(digested<scripts::count_down_latch_lower>, request_id, {round_},
                           {by == all ? Word("all") : Word(by), channel_, PublishCommand()});
    }

    Call count() const { return Call::command({"GET", key()}); }

private:
    const RequestMarks marks_;
    const std::string channel_;
    const std::string round_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore/pending_requests.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A request of a semaphore or latch for the background to deliver, because no server answered in time.
struct PendingRequest {
    enum class Kind {
        change,    // must take effect: sent again as a new request if it came too late
        undoing,   // takes back what another request may have done; if it comes too late, that request has done nothing
        call_off,  // the same, but an outcome that stays unknown is not reported
    };
    using Make = std::function<Call(const RequestId&)>;

    Kind kind;
    RequestId request_id;
    Make make;  // builds the call of the request
    Instant give_up;
    Instant next;
    std::uint64_t number = 0;
    Instant sent{};
    bool on_the_way = false;
    Backoff backoff{Milliseconds(50), longest_pause};
};

// The requests that are still to be delivered for one name. Each is resent after pauses until it is answered or its
// time is over. Plain data.
class PendingRequests {
public:
    void add(PendingRequest request) {
        request.number = ++last_number_;
        pending_.push_back(std::move(request));
    }

    bool empty() const { return pending_.empty(); }

    // Returns the request of this number; null if it is delivered or expired.
    PendingRequest* find(std::uint64_t number) {
        const auto found =
            std::find_if(pending_.begin(), pending_.end(), [&](const PendingRequest& e) { return e.number == number; });
        return found == pending_.end() ? nullptr : &*found;
    }

    // Returns the requests to send now and marks them as in flight.
    std::vector<PendingRequest> take_due(Instant now) {
        std::vector<PendingRequest> due;
        due.reserve(pending_.size());
        for (const PendingRequest& request : pending_)
            if (is_due(request, now)) due.push_back(request);
        for (PendingRequest& request : pending_)
            if (is_due(request, now)) request.on_the_way = true;
        return due;
    }

    // Removes and returns the requests whose time is over.
    std::vector<PendingRequest> take_expired(Instant now) {
        std::vector<PendingRequest> expired;
        for (const PendingRequest& request : pending_)
            if (now >= request.give_up) expired.push_back(request);
        std::erase_if(pending_, [&](const PendingRequest& e) { return now >= e.give_up; });
        return expired;
    }

    void remove(std::uint64_t number) {
        std::erase_if(pending_, [&](const PendingRequest& e) { return e.number == number; });
    }

    // Records that a request got no reply. It is resent after a pause.
    void failed(std::uint64_t number, Instant now) {
        PendingRequest* const request = find(number);
        if (!request) return;
        request->on_the_way = false;
        request->next = now + request->backoff.next();
    }

    // Ends the pauses, so that all requests are due now.
    void hurry(Instant now) {
        for (PendingRequest& request : pending_) request.next = std::min(request.next, now);
    }

    Instant next_deadline() const {
        Instant at = never;
        for (const PendingRequest& request : pending_)
            at = std::min({at, request.give_up, request.on_the_way ? never : request.next});
        return at;
    }

private:
    static bool is_due(const PendingRequest& request, Instant now) {
        return !request.on_the_way && request.next <= now;
    }

    std::vector<PendingRequest> pending_;
    std::uint64_t last_number_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore/idempotent_sender.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sends requests that take effect at most once, and records in their ids what the replies reveal.
class IdempotentSender {
public:
    IdempotentSender(Session& session, const RequestMarks& marks) : session_(session), marks_(marks) {}

    // Sends the request that `make(request_id)` builds. If it certainly did not take effect because it came too late,
    // sends it again as a new request, up to three tries in all. If the outcome is unknown, sets
    // request_id.is_unknowable and returns a final reply.
    template <class Make>
    Reply send(RequestId& request_id, Instant deadline, const Make& make) const {
        for (int tries = 1;; ++tries) {
            if (request_id.wanted_until == 0) {
                Reply failure;
                const auto now = session_.server_time(marks_.key(), deadline, failure);
                if (!now) return failure;
                request_id.wanted_until = marks_.wanted_from(*now);
            }
            const Instant sent = Clock::now();
            Reply reply = session_.call(make(std::as_const(request_id)), deadline);
            if (!note(request_id, sent, reply) || tries == 3 || Clock::now() >= deadline) return reply;
        }
    }

    // Applies the reply to a sending at `sent` to the request id. Returns true if the request certainly did not take
    // effect because it came too late; then the request id is a new one for a retry.
    bool note(RequestId& request_id, Instant sent, Reply& reply) const {
        if (reply.is_unsent()) {
            if (!request_id.may_be_done) request_id.wanted_until = 0;
            return false;
        }
        if (!reply.answered()) {
            request_id.may_be_done = true;
            return false;
        }
        if (!session_.learn_if_late(marks_.key(), sent, reply)) return false;
        if (request_id.may_be_done && read_late(reply).value_or(0) > marks_.mark_end(request_id)) {
            request_id.is_unknowable = true;
            reply.text = "UNKNOWN";  // a final error
            return false;
        }
        request_id = {request_id.slot, session_.next_request()};
        return true;
    }

    // Returns the error of a request that failed.
    Error failure(const RequestId& request_id, const Reply& reply) const {
        if (request_id.is_unknowable) return {errc::unreachable, marks_.key(), unknowable};
        return error_of(reply, marks_.key());
    }

    static constexpr const char* unknowable =
        "the server was unreachable for too long to find out whether the command took effect";

private:
    Session& session_;
    const RequestMarks& marks_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore/synchronizer_core.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The state of a semaphore or latch, as its parts see it.
class SynchronizerTask : public NamedState {
public:
    // Called with its mutex after a change that this process made on the server: its waiters may be served now.
    virtual void has_changed() = 0;

    // Called with its mutex: sets the time at which the background serves it.
    virtual void schedule() = 0;
};

// What the parts of one semaphore or latch in this process share.
//
// mutex guards all members except the constant ones, and the parts. It is never held during a command, nor while user
// code runs.
template <class Protocol>
struct SynchronizerCore {
    SynchronizerCore(SynchronizerTask& state, Session& of, const std::string& key)
        : task(state), session(of), protocol(of.protocol_context(), key), sender(of, protocol.marks()) {}

    const std::string& key() const noexcept { return protocol.key(); }

    // Keeps the state alive, for completions.
    std::shared_ptr<BackgroundTask> keep() { return task.shared_from_this(); }

    RequestId take_slot() { return slots.take(session.next_request()); }

    // Returns true if a resend is useless: the request is done or can never succeed.
    static bool is_settled(const Reply& reply) { return classify(reply) == ReplyClass::answered || is_final(reply); }

    SynchronizerTask& task;
    Session& session;
    Protocol protocol;
    const IdempotentSender sender;

    std::mutex mutex;
    RequestSlots slots;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore/request_deliveries.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Delivers the requests of a semaphore or latch that no server has answered in time. It posts each again until it is
// answered or its mark has expired.
template <class Protocol>
class RequestDeliveries {
public:
    explicit RequestDeliveries(SynchronizerCore<Protocol>& core) : core_(core) {}

    bool empty() const { return pending_.empty(); }
    Instant next_deadline() const { return pending_.next_deadline(); }

    // Adds a request. `make(request_id)` builds its call; it outlives the caller.
    void add(std::unique_lock<std::mutex>& lock, PendingRequest::Kind purpose, const RequestId& request_id,
             PendingRequest::Make make) {
        const Instant now = Clock::now();
        pending_.add(
            {purpose, request_id, std::move(make), now + RequestMarks::longest_ttl(core_.session.options()), now});
        core_.task.schedule();
        // This thread sends it, so that it follows the first sending on the same connection.
        deliver(lock);
    }

    // Gives back what was taken for callers that do not claim it.
    void give_back(std::unique_lock<std::mutex>& lock, std::vector<typename Protocol::Want> wants) {
        add(lock, PendingRequest::Kind::change, core_.take_slot(),
            [this, wants = std::move(wants)](const RequestId& request_id) {
                return core_.protocol.give_back(request_id, wants);
            });
    }

    // Sends pending requests ahead of a change on the same connection. A late copy of one could otherwise undo the
    // change.
    void deliver_first() {
        std::unique_lock lock(core_.mutex);
        if (pending_.empty()) return;
        pending_.hurry(Clock::now());
        deliver(lock);
    }

    // Drops and reports the requests whose time is over.
    void drop_expired(Instant now) {
        for (const PendingRequest& request : pending_.take_expired(now)) {
            core_.slots.give_back(request.request_id);
            report(request, request.request_id.may_be_done ? IdempotentSender::unknowable
                                                           : "no server has replied for too long");
        }
    }

    // Posts what is due.
    void deliver(std::unique_lock<std::mutex>& lock) {
        for (const PendingRequest& request : pending_.take_due(Clock::now())) {
            lock.unlock();
            try {
                post(request);
            } catch (...) {  // no memory, no thread: retried after a pause
                failed(request.number);
            }
            lock.lock();
        }
    }

private:
    // Called without the mutex. A request that was never sent needs the server's time first, to fix until when it is
    // wanted.
    void post(const PendingRequest& request) {
        if (request.request_id.wanted_until != 0) return post_stamped(request);
        core_.session.with_server_time(
            core_.key(), Receiver::background,
            [this, keep = core_.keep(), request = PendingRequest(request)](const std::optional<ServerMilliseconds>& now,
                                                                           const Reply&, Receiver) mutable {
                if (!now) return failed(request.number);
                try {
                    request.request_id.wanted_until = core_.protocol.marks().wanted_from(*now);
                    post_stamped(request);
                } catch (...) {
                    failed(request.number);
                }
            });
    }

    void post_stamped(const PendingRequest& request) {
        Completion done = [this, keep = core_.keep(), number = request.number](Reply reply) {
            delivered(number, std::move(reply));
        };
        {
            const std::lock_guard lock(core_.mutex);
            PendingRequest* const kept = pending_.find(request.number);
            if (!kept) return;
            kept->request_id.wanted_until = request.request_id.wanted_until;
            kept->sent = Clock::now();
        }
        core_.session.post(request.make(request.request_id), std::move(done));
    }

    void failed(std::uint64_t number) {
        const std::lock_guard lock(core_.mutex);
        pending_.failed(number, Clock::now());
        core_.task.schedule();
    }

    void delivered(std::uint64_t number, Reply reply) {
        const std::lock_guard lock(core_.mutex);
        PendingRequest* const request = pending_.find(number);
        if (!request) return;
        const bool is_void = core_.sender.note(request->request_id, request->sent, reply);
        if (is_void && request->kind == PendingRequest::Kind::change) {
            request->give_up = Clock::now() + RequestMarks::longest_ttl(core_.session.options());
            pending_.failed(number, Clock::now());
        } else if (is_void || core_.is_settled(reply)) {
            if (request->request_id.is_unknowable)
                report(*request, IdempotentSender::unknowable);
            else if (!is_void && classify(reply) != ReplyClass::answered)
                report(*request, error_of(reply, core_.key()).what());
            core_.slots.give_back(request->request_id);
            pending_.remove(number);
            core_.task.has_changed();
            // The session may drop the state now.
            core_.session.timers().schedule(core_.task, Clock::now());
        } else {
            pending_.failed(number, Clock::now());
        }
        core_.task.schedule();
    }

    void report(const PendingRequest& request, std::string_view why) {
        if (request.kind != PendingRequest::Kind::call_off)
            core_.session.raise(Event::Kind::unlock_not_delivered, core_.key(), why);
    }

    SynchronizerCore<Protocol>& core_;
    PendingRequests pending_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/wait_queue.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Queues the callers of this process that wait for one name, in order of arrival, with what they know. Only the first,
// the representative, queries the server. Plain data: the state of the name guards it.
//
// No wake-up is lost: each notification increments the generation, and a query remembers the generation from before it.
// A notification is a message, a confirmed subscription, or a change that this process made itself.
template <class Of>
class WaitQueue {
public:
    using Member = Of;

    bool empty() const { return members_.empty(); }
    std::size_t size() const { return members_.size(); }
    Member* front() const { return members_.empty() ? nullptr : members_.front(); }
    bool is_front(const Member& member) const { return front() == &member; }

    void join(Member& member) {
        member.number = ++last_number_;
        members_.push_back(&member);
    }
    void join_first(Member& member) { members_.insert(members_.begin(), &member); }
    void leave(const Member& member) { std::erase(members_, &member); }

    // Returns the first members, at most `most`.
    std::vector<Member*> first(std::size_t most) const {
        return {members_.begin(), members_.begin() + static_cast<std::ptrdiff_t>(std::min(most, members_.size()))};
    }

    // Returns the first member that fulfils the condition, or null.
    template <class Condition>
    Member* first_that(Condition condition) const {
        const auto found =
            std::find_if(members_.begin(), members_.end(), [&](const Member* m) { return condition(*m); });
        return found == members_.end() ? nullptr : *found;
    }

    // Returns the member with this number, or null if it waits no longer.
    Member* find(std::uint64_t number) const {
        return first_that([&](const Member& m) { return m.number == number; });
    }

    std::uint64_t last_number() const { return last_number_; }

    void notify() { ++generation_; }
    std::uint64_t generation() const { return generation_; }

    // Records that a query made at `generation` was in vain, and when the next one is due without a notification.
    void asked(std::uint64_t generation, Instant ask_again) {
        asked_ = generation;
        ask_again_ = ask_again;
    }

    // Returns true if there was a notification since the last query.
    bool is_notified() const { return generation_ != asked_; }
    Instant ask_again() const { return ask_again_; }
    void set_ask_again(Instant at) { ask_again_ = at; }

private:
    std::vector<Member*> members_;
    std::uint64_t last_number_ = 0;
    std::uint64_t generation_ = 1;
    std::uint64_t asked_ = 0;
    Instant ask_again_{};
};

// What the representative does next: query the server, or sleep.
struct QueueStep {
    bool ask;
    Instant sleep_until;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/wait_slot.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Stands in for the session where a waiting thread receives no messages.
struct NoReceiver {
    static std::uint64_t interrupts() { return 0; }
    static bool watch(Instant, std::uint64_t) { return false; }
    static void interrupt_watch() {}
};

// Lets one waiting thread sleep: in its own condition variable, or in the transport, where it receives messages itself.
// Guarded by the mutex of the local state that the thread waits in; every caller here holds it.
class WaitSlot {
public:
    // Puts the owner to sleep until the instant or until woken.
    void sleep(std::unique_lock<std::mutex>& lock, Instant until) { wait_on(wake_, lock, until); }

    // Does the same in the transport, where messages arrive. Returns false if another thread has to receive them.
    template <class Session>
    bool watch(std::unique_lock<std::mutex>& lock, Session& session, Instant until) {
        watching_ = true;
        // A wake-up from here on is not missed, even if another thread takes the interrupt.
        const std::uint64_t seen = session.interrupts();
        lock.unlock();
        const bool watched = session.watch(until, seen);
        lock.lock();
        watching_ = false;
        return watched;
    }

    // Wakes the owner, in either place.
    template <class Session>
    void wake(Session& session) {
        wake_.notify_one();
        if (watching_ && thread_ != std::this_thread::get_id()) session.interrupt_watch();
    }

private:
    std::condition_variable wake_;
    bool watching_ = false;
    const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/waiter.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A caller that waits for a lock, for permits or for a count. The mutex of the state that it waits in guards it.
struct Waiter {
    enum class Phase {
        waiting,  // in the queue
        asking,   // queries the server
        served,   // has what it wants
        failed,   // cannot be served; `error` tells why
    };

    Phase phase = Phase::waiting;
    bool listens = true;         // false if it retries after pauses of its own and needs no messages
    std::uint64_t number = 0;    // in the order of arrival; set by the queue
    std::exception_ptr error{};  // set in phase failed
    WaitSlot slot{};

    bool is_served() const noexcept { return phase == Phase::served; }

    void fail(std::exception_ptr why) {
        phase = Phase::failed;
        error = std::move(why);
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore/request_queue.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The answer to a query that was refused, and the generation from before it.
struct RefusedQuery {
    std::uint64_t generation;
    Answer answer;
};

// One thread that waits for permits, or for the end of a count.
template <class Want>
struct RequestWaiter : Waiter {
    explicit RequestWaiter(Want what) : want(std::move(what)) {}

    Want want;
    std::optional<RefusedQuery> refusal{};  // of its query before it joined the queue
    std::uint64_t refused_at = 0;           // the generation at its last refused query
};

// The queue of the threads of this process that wait for one name. The representative queries the server for all of
// them at once. A waiter behind one that cannot be served waits, too, so that many small requests cannot starve a large
// one.
//
// A request for more than can ever be served must not block the others indefinitely. How much the server has is not
// known, but how much was recently seen there is. A front waiter that wants more than that takes turns with those
// behind it:
//   - It holds them back, then lets them pass for as long. Each turn is longer than the one before, up to longest_turn.
//   - It holds them back again when more is available than it has seen before. So the queue keeps permits for it that
//     come back piece by piece.
template <class Want>
class RequestQueue : public WaitQueue<RequestWaiter<Want>> {
public:
    using Member = RequestWaiter<Want>;
    using WaitQueue<Member>::front, WaitQueue<Member>::size, WaitQueue<Member>::ask_again;
    using WaitQueue<Member>::last_number;

    // The representative queries again after this time, up to twice as long, even without a notification. A message may
    // be lost, and not every end of a wait sends one (a key that expires).
    static constexpr Milliseconds slow_poll{5000};

    static constexpr Milliseconds first_turn{1000};
    static constexpr Milliseconds longest_turn{10'000};
    static constexpr Milliseconds lately = std::chrono::minutes(10);

    // Records that a query made at `generation` was refused for this waiter. `hint` is the time after which a retry may
    // succeed, as far as the server knows. `there` is the amount available, as far as the reply tells.
    void refused(Member& member, std::uint64_t generation, Milliseconds hint, Instant now, std::int64_t there = 0) {
        member.refused_at = generation;
        if (there >= seen_ || now - seen_at_ > lately) {
            seen_ = there;
            seen_at_ = now;
        }
        if (turns_of_ != member.number || there > most_) {
            turns_of_ = member.number;
            turns_began_ = now;
            most_ = there;
        }
        this->asked(generation, now + std::min<Clock::duration>(std::min(hint, slow_poll * 2), poll_.next()));
    }

    // Returns the next step of the representative.
    QueueStep step(Instant now) const {
        // A new representative was perhaps not part of the last query.
        if (front()->refused_at != this->generation() || now >= ask_again()) return {true, now};
        if (size() == 1 || is_within_reach(front()->want, now)) return {false, ask_again()};
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return {false, std::min(ask_again(), turn.ends)};
        // Without notifications, each waiter behind is queried for once per turn.
        const bool was_asked = passed_until_ == turn.ends && passed_number_ == last_number();
        return {!was_asked, was_asked ? ask_again() : now};
    }

    // Returns true if, in the query being made now, this waiter lets those behind pass when there is not enough for it.
    // A waiter that has become the front learns that only with its next query.
    bool lets_pass(const Want& want, Instant now) {
        if (turns_of_ != front()->number || is_within_reach(front()->want, now)) return false;
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return false;
        passed_until_ = turn.ends;
        passed_number_ = last_number();
        return !is_within_reach(want, now);
    }

    // Returns true if this much was recently seen there.
    bool is_within_reach(const Want& want, Instant now) const {
        if constexpr (requires { want.amount(); })
            return want.amount() <= seen_ && now - seen_at_ <= lately;
        else
            return true;
    }

private:
    std::int64_t seen_ = 0;  // the largest amount seen recently, and when
    Instant seen_at_{};

    struct Turn {
        bool lets_pass;
        Instant ends;
    };
    Turn turn_at(Instant now) const {
        Instant ends = turns_began_;
        for (Milliseconds length = first_turn;; length = std::min(length * 2, longest_turn))
            for (const bool lets_pass : {false, true})
                if (ends += length; now < ends) return {lets_pass, ends};
    }
    std::uint64_t turns_of_ = 0;  // the front waiter at its last refusal
    Instant turns_began_{};
    std::int64_t most_ = 0;   // the largest amount seen since it is the front
    Instant passed_until_{};  // the end of the turn of the last query that let others pass, and the last waiter then
    std::uint64_t passed_number_ = 0;
    Backoff poll_{slow_poll * 2, slow_poll * 2};  // each pause is between half and all of it
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/patience.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Decides for how long the calls of one name go on while no server answers. The waiting callers of the name share that
// time. The mutex of the name's state guards it.
class Patience {
public:
    // `unreachable`: how long a call goes on trying to reach a server before it fails.
    Patience(Milliseconds command_timeout, Milliseconds unreachable)
        : command_timeout_(command_timeout), unreachable_(unreachable) {}

    Milliseconds unreachable() const noexcept { return unreachable_; }

    // Returns until when a query is retried. `first`: true for the first query of a call. It always gets the time of one
    // try, because the deadline is meant for the waiting: a short timeout must not do worse than none.
    template <class Request>
    Instant give_up_at(const Request& request, bool first) const {
        const Instant now = Clock::now();
        if (request.one_try) return now + one_try();
        // Waiting callers share the time for which a server was unreachable, but each gets a full try.
        const Instant give_up = deadline_after(failing_since_.value_or(now), unreachable_);
        const Instant deadline = std::min(request.deadline, std::max(give_up, now + shortest_try));
        return first ? std::max(deadline, now + std::min(one_try(), honest_try)) : deadline;
    }

    // Returns true if a query that began at `begun` and was not answered failed for want of time only: a server that got
    // less than command_timeout counts as slow, not as unreachable. `reached`: true if it may have reached the server.
    template <class Request>
    bool was_too_short(const Request& request, Instant begun, const Reply& reply, bool reached) const {
        const Instant now = Clock::now();
        if (now < request.deadline || !(reached || reply.kind == Reply::Kind::no_time)) return false;
        return (request.one_try ? now : request.deadline) - begun < command_timeout_;
    }

    void answered() { failing_since_.reset(); }

    // Records that a query that began at `begun` got this reply, which is no answer.
    void failed(Instant begun, const Reply& reply) {
        // A server that was given less than its time may only be slow.
        const bool is_away = reply.kind != Reply::Kind::no_time || Clock::now() - begun >= command_timeout_;
        if (!failing_since_ && is_away) failing_since_ = begun;
    }

    // The least time for the first query of a call, whatever the caller's deadline: connecting may be slow, and a free
    // lock must not be missed for that.
    static constexpr Milliseconds honest_try{250};

private:
    static constexpr Milliseconds shortest_try{100};

    Milliseconds one_try() const { return std::max(shortest_try, std::min(command_timeout_, unreachable_)); }

    const Milliseconds command_timeout_;
    const Milliseconds unreachable_;
    std::optional<Instant> failing_since_;  // since then no server has replied
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/wait_loop.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What a waiter does next.
struct NextStep {
    enum class Kind {
        served,  // it has what it wants
        leave,   // it stops waiting without that
        ask,     // it queries the server
        sleep,   // it sleeps until it is woken, but not beyond `until`
    };

    Kind kind;
    Instant until = never;
    bool receives = false;  // true if it should receive messages for this process while it sleeps
};

// Waits until `me` is served: the only loop in which a thread waits for its turn. Returns false if the request's
// deadline passes, a stop is requested, or the host says that `me` leaves. `lock` holds the mutex that guards the
// waiters; it is released while the thread sleeps or asks.
//
// `host.next(me, now)` is the state machine of the waiter: it decides, without blocking, and throws if waiting cannot
// succeed. `host.ask(lock, me, request)` queries the server and applies the reply to `me` and perhaps to others.
template <class Session, class Host, class Member, class Request>
bool wait_loop(std::unique_lock<std::mutex>& lock, Session& session, Host& host, Member& me, const Request& request) {
    bool may_receive = true;
    for (;;) {
        const Instant now = Clock::now();
        const NextStep next = host.next(me, now);
        if (next.kind == NextStep::Kind::served) return true;
        if (next.kind == NextStep::Kind::leave || request.stop.stop_requested() || now >= request.deadline)
            return false;
        if (next.kind == NextStep::Kind::ask) {
            me.phase = Waiter::Phase::asking;
            host.ask(lock, me, request);
            // It may have been served, or have failed, meanwhile.
            if (me.phase == Waiter::Phase::asking) me.phase = Waiter::Phase::waiting;
            continue;
        }
        const Instant until = std::min(next.until, request.deadline);
        if (next.receives && std::exchange(may_receive, false)) {
            may_receive = me.slot.watch(lock, session, until);
            continue;  // the state may have changed meanwhile
        }
        may_receive = true;
        me.slot.sleep(lock, until);
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/waiting_room.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Where the callers of this process wait for one name: their queue, and the channel whose messages wake them.
//
// The mutex of the state that the room belongs to guards all members. Each waiter sleeps in its own slot; the
// representative sleeps in the transport where possible (not in a cluster), to receive the message itself. A waiter is
// woken by
//   the caller that serves it,
//   any change of state, if it is the representative: a message (received by itself or by the background thread), a
//     releasing thread, a representative that leaves,
//   the instant at which its next query is due, such as the end of the lease that it saw, and its deadline,
//   its stop token.
template <class Queue>
class WaitingRoom {
public:
    using Member = typename Queue::Member;

    // `listener` receives the messages of `channel`, and forwards them.
    WaitingRoom(Session& session, BackgroundTask& listener, std::string channel)
        : session_(session), listener_(listener), channel_(std::move(channel)) {}

    WaitingRoom(const WaitingRoom&) = delete;
    WaitingRoom& operator=(const WaitingRoom&) = delete;
    ~WaitingRoom() { session_.subscriptions().remove(channel_, listener_); }

    Queue queue;

    const std::string& channel() const noexcept { return channel_; }

    // Returns true if the server confirmed the subscription, so messages arrive.
    bool is_subscribed() const noexcept { return subscribed_; }

    void wake(Member& member) { member.slot.wake(session_); }

    void wake_front() {
        if (Member* front = queue.front()) wake(*front);
    }

    // The state may have changed: the representative asks again.
    void notify() {
        queue.notify();
        wake_front();
    }

    // --- events of the channel --------------------------------------------------------------------------------

    void subscribed() {
        subscribed_ = true;
        notify();
    }

    void disconnected() { subscribed_ = false; }

    // Fails the waiters that need messages.
    void refused(const Error& why) {
        subscribed_ = false;
        listening_ = false;
        while (Member* member = queue.first_that([](const Member& m) { return m.listens; })) {
            member->fail(std::make_exception_ptr(why));
            wake(*member);
            queue.leave(*member);
        }
        notify();
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    // Lets `me` wait in the queue. Returns true if it is served, false if it leaves without that; throws if it cannot
    // be served. Called without `mutex`, the mutex of the state. The host is called with it:
    //   joined(me)         it has joined the queue
    //   next(), ask()      see wait_loop()
    //   left(lock, me)     it has left the queue
    template <class Host, class Request>
    bool wait(std::mutex& mutex, Host& host, Member& me, const Request& request) {
        // Constructed and destroyed without the mutex, which the callback locks.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(mutex);
            wake(me);
        });
        std::unique_lock lock(mutex);
        try {
            queue.join(me);
            host.joined(me);
            const bool served = wait_loop(lock, session_, host, me, request);
            leave(lock, host, me);
            return served;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            leave(lock, host, me);
            throw;
        }
    }

    // Subscribes to the channel for as long as there are waiters.
    void listen() {
        if (listening_) return;
        session_.start_background();
        const bool listened = subscribed_;
        subscribed_ = session_.subscriptions().acquire(channel_, listener_);
        listening_ = true;
        // Another state of this client is already subscribed to this channel. A message since the last query reached
        // only that state.
        if (subscribed_ && !listened) queue.notify();
    }

private:
    // Removes the waiter from the queue. If it was the representative, wakes the next one, which decides what to do.
    template <class Host>
    void leave(std::unique_lock<std::mutex>& lock, Host& host, Member& me) {
        const bool was_front = queue.is_front(me);
        queue.leave(me);
        if (queue.empty()) {
            if (std::exchange(listening_, false)) session_.subscriptions().release(channel_, listener_);
        } else if (was_front) {
            wake_front();
        }
        host.left(lock, me);
    }

    Session& session_;
    BackgroundTask& listener_;
    const std::string channel_;
    bool listening_ = false;  // True while it wants messages
    bool subscribed_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore/synchronizer.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The part of a semaphore whose permits have no leases: it has nothing to keep.
struct NoLeases {
    template <class Core, class Deliveries>
    NoLeases(Core&, Deliveries&) {}

    bool empty() const { return true; }
    Instant next_deadline() const { return never; }
    template <class Wants>
    void accept(std::unique_lock<std::mutex>&, const Wants&, Instant) {}
    template <class Want>
    void discard(const Want&) {}
    void on_timer(std::unique_lock<std::mutex>&, Instant) {}
    void on_failover() {}
};

// One semaphore or latch in this process: all objects of its name share it. It has the waiting threads, and sends their
// requests. It records no owners. `Protocol` makes the calls and reads the replies:
//   kind, key(), channel(), marks()
//   takes                          True if a request takes something from other callers (permits), so that there is an
//                                  order of service and something to give back; False for a latch, which is only
//                                  queried
//   most_at_once                   how many callers one request may serve
//   Want                           what a caller wants, and `served`: True if the last request succeeded; its renew(),
//                                  if there is one, is called before each further request
//   ask(wants, request_id), decode(reply, wants) -> how long to wait before a retry may help
//   take_back(request_id, wants)       gives back whatever an acquire of unknown outcome took, or will take
//   give_back(request_id, wants)       gives back what was taken for callers that have left
// `Leases` is the part that keeps the leases of what was taken.
//
// The mutex of SynchronizerCore guards all parts.
template <class Protocol, class Leases = NoLeases>
class Synchronizer final : public SynchronizerTask {
public:
    // Makes the state of a name.
    static constexpr StateMaker maker{Protocol::kind,
                                      [](Session& session, const std::string& key) -> std::shared_ptr<NamedState> {
                                          return std::make_shared<Synchronizer>(session, key);
                                      }};
    using Want = typename Protocol::Want;
    using Queue = RequestQueue<Want>;
    using Member = typename Queue::Member;

    Synchronizer(Session& session, const std::string& key)
        : core_(*this, session, key),
          room_(session, *this, core_.protocol.channel()),
          patience_(session.options().command_timeout, patience_of(session.options())) {
        // Redisson's latches cannot have such names in a cluster, either.
        if (session.transport().route(room_.channel()) != session.transport().route(core_.key()))
            throw Error(errc::invalid_argument, core_.key(),
                        "in a cluster, the name of a CountDownLatch must not have a {tag}; its channel would be in "
                        "another slot");
    }

    ~Synchronizer() override { core_.session.timers().forget(*this); }

    std::string_view kind() const noexcept override { return Protocol::kind; }
    const std::string& key() const noexcept override { return core_.key(); }
    Session& session() const noexcept override { return core_.session; }
    Protocol& protocol() noexcept { return core_.protocol; }
    Leases& leases() noexcept { return leases_; }

    bool is_idle() override {
        const std::lock_guard lock(core_.mutex);
        return room_.queue.empty() && deliveries_.empty() && leases_.empty();
    }

    // --- asking and waiting -----------------------------------------------------------------------------------

    // Returns true if `want` was served. Returns false if the deadline passes or a stop is requested; then nothing was
    // taken. Throws Error.
    bool obtain(Want& want, const WaitRequest& request) {
        if (request.stop.stop_requested()) return false;
        std::unique_lock lock(core_.mutex);
        if (room_.queue.empty()) patience_.answered();
        Member me{want};
        if (request.one_try || room_.queue.empty() || !Protocol::takes) {
            const std::uint64_t generation = room_.queue.generation();
            const std::optional<Answer> answer = ask(lock, {&want, 1}, request, true);
            if (want.served) return true;
            if (!answer || request.one_try) return false;
            me.want = want;
            me.refusal = {generation, *answer};
        }
        lock.unlock();
        core_.session.count_wait();
        const bool is_served = room_.wait(core_.mutex, *this, me, request);
        want = me.want;
        return is_served;
    }

    // --- changing ---------------------------------------------------------------------------------------------

    // Tells what happens to a change that no server has carried out in time.
    enum class Undelivered {
        call_off,  // it is called off, so that a late copy cannot undo what the caller does next
        retry,     // the background goes on to deliver it; then `make` outlives the call, and must own what it uses
    };

    // Sends the change that `make(request_id)` builds, and resends it until it is answered, for at most
    // unreachable_timeout. Throws Error.
    template <class Make>
    Reply change(const Make& make, Undelivered then = Undelivered::call_off) {
        std::unique_lock lock(core_.mutex);
        RequestId request_id = core_.take_slot();
        lock.unlock();
        Retry retry = core_.session.retry(Clock::now() + patience_.unreachable());
        Reply reply;
        do reply = change_once(request_id, make, retry.deadline());
        while (retry.again(reply));
        lock.lock();
        if (!core_.is_settled(reply)) {
            if (then == Undelivered::retry)
                deliveries_.add(lock, PendingRequest::Kind::change, request_id, make);
            else if (request_id.may_be_done)
                deliveries_.add(lock, PendingRequest::Kind::call_off, request_id, [this](const RequestId& given_up) {
                    return core_.protocol.marks().void_request(given_up);
                });
            else
                core_.slots.give_back(request_id);
            throw core_.sender.failure(request_id, reply);
        }
        core_.slots.give_back(request_id);
        if (classify(reply) != ReplyClass::answered) throw core_.sender.failure(request_id, reply);
        has_changed();
        return reply;
    }

    // Reads the reply to a change: 1 if it was made, 0 if not.
    bool is_one(const Reply& reply) const {
        if (!reply.is_integer()) throw unexpected(reply, key());
        return reply.integer == 1;
    }

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    void joined(Member& me) {
        const Instant now = Clock::now();
        if (me.refusal && room_.queue.is_front(me))
            room_.queue.refused(me, me.refusal->generation, me.refusal->answer.hint, now, me.refusal->answer.there);
        // The representative may let this caller pass.
        if (!room_.queue.is_front(me) && !room_.queue.is_within_reach(room_.queue.front()->want, now))
            room_.wake_front();
        room_.listen();
    }

    NextStep next(Member& me, Instant now) {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.error) std::rethrow_exception(me.error);
        if (!room_.queue.is_front(me)) return {NextStep::Kind::sleep};
        const QueueStep step = room_.queue.step(now);
        if (step.ask) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, step.sleep_until, room_.is_subscribed()};
    }

    // Sends one request for the first callers in the queue, `me` among them. Some may leave meanwhile.
    void ask(std::unique_lock<std::mutex>& lock, Member& me, const WaitRequest& request) {
        std::vector<Want> wants;
        std::vector<std::uint64_t> numbers;
        const Instant asked = Clock::now();
        for (const Member* member : room_.queue.first(Protocol::most_at_once)) {
            wants.push_back(member->want);
            if constexpr (requires(Want & want) { want.renew(); }) wants.back().renew();
            if constexpr (Protocol::takes) wants.back().lets_pass = room_.queue.lets_pass(member->want, asked);
            numbers.push_back(member->number);
        }
        const std::uint64_t generation = room_.queue.generation();
        const std::optional<Answer> answer = ask(lock, wants, request);
        if (answer) hand_out(lock, me, wants, numbers, {generation, *answer});
    }

    void left(std::unique_lock<std::mutex>&, Member&) {
        if (room_.queue.empty()) patience_.answered();
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant, std::vector<Renewal>&) override {
        std::unique_lock lock(core_.mutex);
        leases_.on_timer(lock, now);
        deliveries_.drop_expired(now);
        schedule();
        deliveries_.deliver(lock);
        lock.unlock();
        core_.session.forget_if_unused(*this);
    }

    void on_failover() override {
        const std::lock_guard lock(core_.mutex);
        leases_.on_failover();
    }

    void schedule() override {
        const Instant at = std::min(deliveries_.next_deadline(), leases_.next_deadline());
        if (at != never) core_.session.timers().schedule(*this, at);
    }

    // With a subscription this process gets the message of its own change, too.
    void has_changed() override {
        if (!room_.is_subscribed()) room_.notify();
    }

    void subscribed(const std::string&) override {
        const std::lock_guard lock(core_.mutex);
        room_.subscribed();
    }

    void subscription_refused(const std::string&, const Reply& why) override {
        const std::lock_guard lock(core_.mutex);
        room_.refused(error_of(why, key()));
    }

    // Any message may mean that the state has changed.
    void message(const std::string&, std::string_view) override {
        const std::lock_guard lock(core_.mutex);
        room_.notify();
    }

    void disconnected(const std::string&) override {
        const std::lock_guard lock(core_.mutex);
        room_.disconnected();
    }

private:
    // Gives each caller what the request got for it. Gives back what it got for callers that have left.
    void hand_out(std::unique_lock<std::mutex>& lock, const Member& me, const std::vector<Want>& wants,
                  const std::vector<std::uint64_t>& numbers, const RefusedQuery& refusal) {
        const Instant now = Clock::now();
        bool refused = false;
        std::vector<Want> unclaimed;
        unclaimed.reserve(wants.size());
        for (std::size_t i = 0; i < wants.size(); ++i) {
            Member* member = room_.queue.find(numbers[i]);
            if (!member) {
                if (wants[i].served) unclaimed.push_back(wants[i]);
                continue;
            }
            member->want = wants[i];
            if (wants[i].served) {
                member->phase = Waiter::Phase::served;
                room_.queue.leave(*member);
                if (member != &me) room_.wake(*member);
            } else if (!std::exchange(refused, true)) {
                room_.queue.refused(*member, refusal.generation, refusal.answer.hint, now, refusal.answer.there);
            }
        }
        if (Member* front = room_.queue.front(); front && front != &me) room_.wake(*front);
        if constexpr (Protocol::takes)
            if (!unclaimed.empty()) {
                for (const Want& want : unclaimed) leases_.discard(want);
                deliveries_.give_back(lock, std::move(unclaimed));
            }
    }

    // --- asking the server ------------------------------------------------------------------------------------

    // Returns for how long a command is resent.
    static Milliseconds patience_of(const ClientOptions& options) {
        return std::min(options.unreachable_timeout, RequestMarks::longest_ttl(options) / 2);
    }

    // Returns the server's reply; nothing if there was none and the caller's deadline or stop token ended the call.
    // Otherwise throws. `first`: True before any waiting.
    std::optional<Answer> ask(std::unique_lock<std::mutex>& lock, std::span<Want> wants, const WaitRequest& request,
                              bool first = false) {
        RequestId request_id = core_.take_slot();
        const Instant give_up = patience_.give_up_at(request, first);
        const Instant begun = Clock::now();
        lock.unlock();
        Retry retry = core_.session.retry(give_up, request.stop, request.one_try);
        Reply reply;
        do reply = send(wants, request_id, retry.deadline());
        while (retry.again(reply));
        lock.lock();
        if (classify(reply) != ReplyClass::answered) {
            patience_.failed(begun, reply);
            settle(lock, request_id, wants, request_id.may_be_done);
            if (request.stop.stop_requested()) return std::nullopt;
            if (patience_.was_too_short(request, begun, reply, request_id.may_be_done)) return std::nullopt;
            throw core_.sender.failure(request_id, reply);
        }
        patience_.answered();
        try {
            const Answer answer = core_.protocol.decode(reply, wants);
            if (!reply.replicated && std::any_of(wants.begin(), wants.end(), [](const Want& w) { return w.served; }))
                throw not_replicated(key());
            core_.slots.give_back(request_id);
            if constexpr (Protocol::takes) {
                leases_.accept(lock, wants, begun);
                for (const Want& want : wants)
                    if (want.served) core_.session.count_acquisition();
            }
            return answer;
        } catch (...) {  // a senseless reply, too few replicas, or no memory to record what was taken
            for (const Want& want : wants) leases_.discard(want);
            settle(lock, request_id, wants, true);
            throw;
        }
    }

    template <class Make>
    Reply change_once(RequestId& request_id, const Make& make, Instant deadline) try {
        deliveries_.deliver_first();
        return core_.sender.send(request_id, deadline, make);
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    Reply send(std::span<const Want> wants, RequestId& request_id, Instant deadline) try {
        const auto make = [&](const RequestId& one) { return core_.protocol.ask(wants, one); };
        if constexpr (Protocol::takes) {
            return core_.sender.send(request_id, deadline, make);
        } else {
            Reply reply = core_.session.call(make(request_id), deadline);
            if (!reply.answered() && !reply.is_unsent()) request_id.may_be_done = true;
            return reply;
        }
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    // Handles a request without a proper reply.
    void settle(std::unique_lock<std::mutex>& lock, const RequestId& request_id, std::span<Want> wants, bool unknown) {
        if constexpr (Protocol::takes)
            if (unknown && !(request_id.is_unknowable && Protocol::takes_back_by_mark))
                return deliveries_.add(lock, PendingRequest::Kind::undoing, request_id,
                                       [this, kept = std::vector<Want>(wants.begin(), wants.end())](
                                           const RequestId& asked) { return core_.protocol.take_back(asked, kept); });
        core_.slots.give_back(request_id);
    }

    SynchronizerCore<Protocol> core_;
    RequestDeliveries<Protocol> deliveries_{core_};
    Leases leases_{core_, deliveries_};
    WaitingRoom<Queue> room_;
    Patience patience_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/count_down_latch.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using LatchState = Synchronizer<LatchProtocol>;

inline LatchState& latch_of(StateHandle& handle) { return static_cast<LatchState&>(handle.state()); }

// Throws Error(errc::invalid_argument).
inline void check_count(std::ptrdiff_t n, std::ptrdiff_t least, std::string_view name, const char* rule) {
    if (n < least || n > CountDownLatch::max()) throw Error(errc::invalid_argument, name, rule);
}

inline constexpr const char* counts_down_by = "the decrement must be from 0 to 2147483647";

inline LatchProtocol::Lowered lower(LatchState& latch, std::ptrdiff_t n) {
    const Reply reply =
        latch.change([&latch, n](const RequestId& request_id) { return latch.protocol().lower(request_id, n); },
                     LatchState::Undelivered::retry);
    return latch.protocol().decode_lower(reply);
}

}  // namespace detail

REDLATCH_INLINE CountDownLatch::CountDownLatch(Client& client, std::string_view name)
    : handle_(detail::ClientAccess::session(client), detail::LatchState::maker, name) {}

REDLATCH_INLINE bool CountDownLatch::try_set_count(std::ptrdiff_t count) {
    detail::check_count(count, 1, name(), "the count must be from 1 to 2147483647");
    auto& latch = detail::latch_of(handle_);
    return latch.is_one(
        latch.change([&](const detail::RequestId& request_id) { return latch.protocol().set(request_id, count); }));
}

REDLATCH_INLINE std::ptrdiff_t CountDownLatch::count() const {
    auto& latch = detail::latch_of(handle_);
    const Reply reply = detail::query(latch.session(), latch.key(), latch.protocol().count());
    return static_cast<std::ptrdiff_t>(std::max<std::int64_t>(0, detail::number_of(reply, latch.key())));
}

REDLATCH_INLINE void CountDownLatch::count_down(std::ptrdiff_t n) {
    detail::check_count(n, 0, name(), detail::counts_down_by);
    if (n > 0) detail::lower(detail::latch_of(handle_), n);
}

REDLATCH_INLINE bool CountDownLatch::reset() {
    auto& latch = detail::latch_of(handle_);
    const Reply reply = latch.change([&](const detail::RequestId& request_id) {
        return latch.protocol().lower(request_id, detail::LatchProtocol::all);
    });
    return latch.protocol().decode_lower(reply).before != 0;
}

REDLATCH_INLINE bool CountDownLatch::wait_for_end(const detail::WaitRequest& request) const {
    detail::LatchProtocol::Want want;
    return detail::latch_of(handle_).obtain(want, request);
}

REDLATCH_INLINE bool CountDownLatch::arrive(std::ptrdiff_t n, const detail::WaitRequest& request) {
    detail::check_count(n, 0, name(), detail::counts_down_by);
    if (n == 0) return wait_for_end(request);
    auto& latch = detail::latch_of(handle_);
    auto [before, want] = detail::lower(latch, n);
    return before <= n || latch.obtain(want, request);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/wait/lock_request.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Retries a lock without messages after pauses that double, with jitter.
struct Polling {
    Milliseconds first;
    Milliseconds longest;
};

// A caller's request for a lock.
struct LockRequest {
    OwnerNumber owner = 0;
    Instant deadline = never;
    bool one_try = false;               // do not wait, whatever the deadline
    std::optional<Milliseconds> lease;  // none: under the watchdog
    std::optional<Polling> polling;     // none: woken by messages
    std::stop_token stop;
    bool precedence = false;  // true for a writer that keeps new readers out while it waits
    bool again = false;       // only one more level of a hold that the owner has; otherwise throws errc::hold_lost
};

// Returns a request with the lease and the stop token among the arguments, if there are any.
template <class... Tail>
LockRequest lock_request(OwnerNumber owner, Instant deadline, const Tail&... tail) {
    LockRequest request;
    request.owner = owner;
    request.deadline = deadline;
    [[maybe_unused]] const auto take = [&](const auto& argument) {
        using Argument = std::remove_cvref_t<decltype(argument)>;
        if constexpr (std::same_as<Argument, Lease>) request.lease = argument.length();
        if constexpr (std::same_as<Argument, std::stop_token>) request.stop = argument;
    };
    (take(tail), ...);
    return request;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/hold_keeper.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class SessionHandle;

// The state of a lock, as the objects that hold it see it. Any thread may call anything.
class HoldKeeper {
public:
    virtual ~HoldKeeper() = default;

    // Returns false in a child that was forked since. Then nothing may be called besides but name_as_given().
    virtual bool is_of_this_process() const noexcept = 0;

    // Returns the name of the lock as given, without the client's key_prefix.
    virtual std::string name_as_given() const = 0;

    // What the server knows of a hold.
    struct Facts {
        std::uint64_t number = 0;  // on the wire "<client id>:<number>"; for a lock over several, of this process alone
        std::int64_t token = 0;    // the fencing token; 0 if the lock has none
    };
    virtual Facts facts(OwnerNumber owner) = 0;

    virtual bool acquire(const LockRequest& request) = 0;

    // Releases one level: waits for the reply; throws Error(errc::not_owner).
    virtual std::error_code release(OwnerNumber owner) = 0;

    // Releases one level without waiting. Without memory for that, the hold ends with its lease.
    virtual void release_later(OwnerNumber owner) noexcept = 0;

    virtual Instant valid_until(OwnerNumber owner) = 0;
    virtual std::stop_token lost(OwnerNumber owner) = 0;
};

// One level of a hold, and what it needs to stay alive. The keeper refers to the session, so it is destroyed first.
struct HeldLevel {
    std::shared_ptr<SessionHandle> session{};
    std::shared_ptr<HoldKeeper> keeper{};
    OwnerNumber owner = 0;
    HoldKeeper::Facts facts{};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/hold.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class LockApi;
}

// Holds a lock, or one level of it, for whoever has the object, and not for a thread: it can be moved into another
// thread, a task or a container, and released there. The destructor releases it.
//
//   redlatch::Hold hold = orders.hold();   // waits, like lock()
//   std::thread([hold = std::move(hold)] { … }).detach();
//
// Each hold has an owner of its own. So two holds of one lock exclude each other, and a hold excludes the threads that
// call lock(), also in the thread that has it. It keeps alive what it needs, so it may outlive the lock and the client;
// a hold of a MultiLock or RedLock ends with that object. Movable, not copyable. Different threads may use different
// objects at once; one object needs the care of a std::unique_ptr.
//
// After a fork the child holds nothing: there its copies of a hold do nothing.
class [[nodiscard]] Hold {
public:
    // Holds nothing.
    Hold() noexcept = default;

    Hold(Hold&& other) noexcept : level_(std::exchange(other.level_, {})) {}
    Hold& operator=(Hold&& other) noexcept {
        Hold old(std::move(*this));
        level_ = std::exchange(other.level_, {});
        return *this;
    }

    // Releases the hold without waiting for the server, and never throws. Without memory for that, the hold ends with
    // its lease. Preserves errno.
    ~Hold();

    // Returns true unless it holds nothing: it was released, moved from, or never acquired. Says nothing about the
    // lease: see valid_until().
    explicit operator bool() const noexcept { return level_.keeper != nullptr; }

    // Returns the number of the hold: on the wire its owner is "<client id>:<number>". For a MultiLock or RedLock, whose
    // members have numbers of their own, it is known to this process only. 0 if it holds nothing.
    std::uint64_t owner() const noexcept { return level_.facts.number; }

    // Returns the name of the lock as given; an empty string if it holds nothing.
    std::string name() const;

    // Returns the fencing token. Throws Error(errc::unsupported) unless it holds a FencedLock.
    [[nodiscard]] std::int64_t token() const;

    // Like the members of the lock, for this hold. Send no command. Without a hold the instant is time_point::min(), and
    // the token is requested.
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until() const;
    [[nodiscard]] std::stop_token lost() const;

    // Releases the hold and waits for the reply: one round trip. Afterwards it holds nothing, whatever the outcome:
    // hold_lost if the hold had already ended, unreachable if the release could not be delivered yet (the background
    // resends it), not_owner if it held nothing. Preserves errno.
    std::error_code unlock() noexcept;

    // Acquires one more level for the same owner, which lasts until it is released, too: one round trip. Takes an
    // optional Lease and std::error_code&. Throws Error: hold_lost if the hold has ended, would_deadlock for a Mutex,
    // which is not reentrant, not_owner if it holds nothing.
    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] Hold again(Tail&&... tail) const {
        return detail::answer(
            [&] {
                detail::LockRequest request = detail::lock_request(level_.owner, never, tail...);
                request.again = true;
                return another_level(request);
            },
            Hold(), tail...);
    }

private:
    friend class detail::LockApi;

    // Holds the level, which its owner has acquired.
    explicit Hold(detail::HeldLevel level);

    Hold another_level(const detail::LockRequest& request) const;

    detail::HeldLevel level_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/hold_table.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The hold of one owner on one lock. Reentry stacks levels: each has its own lease or is under the watchdog. The
// watchdog renews the hold as long as one level under the watchdog remains. The hold lasts as long as its longest
// lease.
struct HoldRecord {
    OwnerNumber owner = 0;
    std::uint64_t id = 0;            // new for each hold; identifies its owner to the server
    std::int64_t unsettled = 0;      // server time until which a late copy may acquire the lock for this hold
    std::uint32_t count = 0;         // levels; 0 if the hold is lost
    std::uint32_t dead = 0;          // levels of lost holds whose unlock() is still to come
    std::uint32_t watched_from = 0;  // the lowest level under the watchdog; 0 for none
    std::int64_t token = 0;          // the fencing token, for locks that have one
    Instant valid_until{};
    Clock::duration notice = Milliseconds(2);
    Instant renew_at{};
    Instant check_at = never;        // for a hold without the watchdog: when to query whether the server still has it
    bool doubtful = false;           // True if a command sent for this hold got no reply
    bool renewing = false;           // True if a renewal, or the query of check_at, is in flight
    std::optional<LossSource> lost;  // created when lost() is first called

    Clock::duration suspended = detail::suspended();  // the machine's suspended time when valid_until was computed

    // Brings the end of the lease and the next renewal nearer by the time for which the machine was suspended since the
    // last call, and returns that time: the steady clock stands still meanwhile, but the lease does not.
    Clock::duration check_suspension() noexcept {
        const Clock::duration grown = suspended_since(suspended);
        suspended += grown;
        renew_at -= grown;
        if (valid_until != Instant::min()) valid_until -= grown;
        return grown;
    }

    bool live() const noexcept { return count > 0; }
    bool watched() const noexcept { return watched_from > 0; }

    // Adds one level, which the server confirmed for a command sent at `sent`.
    void enter(Instant sent, std::optional<Milliseconds> lease, Milliseconds watchdog_timeout) {
        check_suspension();
        ++count;
        if (!lease) {
            if (!watched()) {
                watched_from = count;
                renew_at = sent + watchdog_timeout / 3;
            }
            lease = watchdog_timeout;
        }
        valid_until = std::max(valid_until, redlatch::valid_until(sent, *lease));
    }

    // Removes one level.
    void leave() {
        if (watched_from == count) watched_from = 0;
        --count;
    }

    void renewed(Instant sent, Milliseconds watchdog_timeout) {
        check_suspension();
        renewing = false;
        valid_until = std::max(valid_until, redlatch::valid_until(sent, watchdog_timeout));
        renew_at = sent + watchdog_timeout / 3;
    }

    // Records that the server still has the hold. Its lease is unchanged.
    void checked() {
        renewing = false;
        check_at = never;
    }

    // Records a renewal without a reply. Retries soon, so that a lost message costs only a fraction of the margin.
    void renewal_failed(Instant now, Milliseconds watchdog_timeout) {
        renewing = false;
        doubtful = true;
        (watched() ? renew_at : check_at) = now + std::max(Milliseconds(10), watchdog_timeout / 60);
    }

    // Schedules a renewal or query at once, because the server may have lost the hold.
    void doubt(Instant now) { (watched() ? renew_at : check_at) = now; }
    Instant ask_at() const noexcept { return watched() ? renew_at : check_at; }

    // Ends the hold. Its levels become `dead` until their unlock(), which reports the loss.
    void lose() {
        dead += count;
        count = 0;
        watched_from = 0;
        renewing = false;
    }

    // Sets how long before expiry the loss is reported, so that callbacks start while the lease still holds. `needed`
    // is how long reporting takes on this machine. The notice is at most a sixteenth of the lease.
    void set_notice(Clock::duration needed, Milliseconds lease) noexcept {
        notice = std::min<Clock::duration>(needed, Clock::duration(lease) / 16);
    }
    Instant lost_at() const noexcept { return valid_until - notice; }

    // Returns when the background has to handle this hold.
    Instant next_deadline() const noexcept { return renewing ? never : ask_at(); }
};

// Returns the token that is requested when the hold is lost; one that is requested already if there is no hold.
inline std::stop_token lost_token(HoldRecord* hold) {
    if (!hold) {
        std::stop_source already;
        already.request_stop();
        return already.get_token();
    }
    if (!hold->lost) hold->lost.emplace();
    return hold->lost->get_token();
}

// One owner's hold, as seen from outside: its number, 0 for none, and until when it is certain.
struct HeldPart {
    std::uint64_t hold = 0;
    Instant until = Instant::min();
};

// The holds of one lock in this process. A flat vector: most locks have at most one holder, and the vector does not
// allocate again once it has grown.
class HoldTable {
public:
    HoldRecord* find(OwnerNumber owner) {
        const auto found =
            std::find_if(holds_.begin(), holds_.end(), [&](const HoldRecord& h) { return h.owner == owner; });
        return found == holds_.end() ? nullptr : &*found;
    }

    // Returns the owner's record with a new hold in it. Creates the record if there is none.
    HoldRecord& start(OwnerNumber owner, std::uint64_t id) {
        HoldRecord* hold = find(owner);
        if (!hold) {
            holds_.emplace_back();
            hold = &holds_.back();
            hold->owner = owner;
        }
        hold->id = id;
        hold->unsettled = 0;
        hold->valid_until = {};
        hold->suspended = suspended();
        hold->check_at = never;
        hold->doubtful = false;
        hold->renewing = false;
        hold->lost.reset();
        return *hold;
    }

    void erase(OwnerNumber owner) {
        std::erase_if(holds_, [&](const HoldRecord& h) { return h.owner == owner; });
    }

    // Removes lost holds, except those with levels that are still to be unlocked.
    void erase_lost() {
        std::erase_if(holds_, [](const HoldRecord& h) { return !h.live() && h.dead == 0; });
    }

    // Removes the live part of a released hold. Keeps the record if it has lost levels.
    void finish(HoldRecord& hold) {
        hold.count = 0;
        hold.watched_from = 0;
        hold.lost.reset();
        if (hold.dead == 0) erase(hold.owner);
    }

    // Returns until when a thread of this process certainly holds the lock; a time in the past if none does.
    Instant held_until() const {
        Instant until{};
        for (const HoldRecord& h : holds_)
            if (h.live()) until = std::max(until, h.valid_until);
        return until;
    }

    bool any_live() const {
        return std::any_of(holds_.begin(), holds_.end(), [](const HoldRecord& h) { return h.live(); });
    }

    auto begin() { return holds_.begin(); }
    auto end() { return holds_.end(); }

private:
    std::vector<HoldRecord> holds_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/hold.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// In a child that was forked meanwhile the parent's objects must not be destroyed: threads that do not exist here may
// have locked their mutexes.
inline void leave_to_parent(HeldLevel level) noexcept try {
    static_cast<void>(new HeldLevel(std::move(level)));
} catch (...) {
}

}  // namespace detail

REDLATCH_INLINE Hold::Hold(detail::HeldLevel level) : level_(std::move(level)) {
    level_.facts = level_.keeper->facts(level_.owner);
}

REDLATCH_INLINE Hold::~Hold() {
    if (!level_.keeper) return;
    const detail::KeepErrno kept;
    if (level_.keeper->is_of_this_process())
        level_.keeper->release_later(level_.owner);
    else
        detail::leave_to_parent(std::move(level_));
}

REDLATCH_INLINE std::string Hold::name() const {
    return level_.keeper ? level_.keeper->name_as_given() : std::string();
}

REDLATCH_INLINE std::int64_t Hold::token() const {
    if (level_.facts.token == 0) throw Error(errc::unsupported, name(), "only a FencedLock has fencing tokens");
    return level_.facts.token;
}

REDLATCH_INLINE Instant Hold::valid_until() const {
    if (!level_.keeper || !level_.keeper->is_of_this_process()) return Instant::min();
    return level_.keeper->valid_until(level_.owner);
}

REDLATCH_INLINE std::stop_token Hold::lost() const {
    if (!level_.keeper || !level_.keeper->is_of_this_process()) return detail::lost_token(nullptr);
    return level_.keeper->lost(level_.owner);
}

REDLATCH_INLINE std::error_code Hold::unlock() noexcept {
    if (!level_.keeper) return errc::not_owner;
    const detail::KeepErrno kept;
    detail::HeldLevel level = std::exchange(level_, {});
    if (!level.keeper->is_of_this_process()) {
        detail::leave_to_parent(std::move(level));
        return errc::hold_lost;
    }
    try {
        return level.keeper->release(level.owner);
    } catch (const std::exception&) {
        // It is an owner that no one else knows, so it did hold the lock, but the loss is long ago.
        return errc::hold_lost;
    }
}

REDLATCH_INLINE Hold Hold::another_level(const detail::LockRequest& request) const {
    if (!level_.keeper) throw Error(errc::not_owner, {}, "this object holds nothing");
    if (!level_.keeper->is_of_this_process() || !level_.keeper->acquire(request))
        throw Error(errc::hold_lost, level_.keeper->name_as_given(), "the hold has ended");
    return Hold(level_);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/lock_api.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The public members of every lock, on top of members that act for a given owner.
//
// Any number of threads may call all members at once. Each throws Error; with a trailing std::error_code& it stores the
// code instead and throws nothing but std::bad_alloc. A call waits for another holder as long as it takes. For a server
// that cannot be reached it waits at most ClientOptions::unreachable_timeout, then fails with errc::unreachable. A call
// that fails, times out or is stopped leaves no hold behind.
class LockApi {
public:
    LockApi(const LockApi&) = delete;
    LockApi& operator=(const LockApi&) = delete;
    virtual ~LockApi() = default;

    // Acquires the lock and waits for it. Reentrant: each lock() needs one unlock(). One round trip if the lock is
    // free. A waiting thread sends nothing until the lock is released or its holder's lease ends. (A Mutex is not
    // reentrant. A Mutex and a SpinLock poll the server while they wait.)
    //   lock(Lease{d})   the hold expires after d and is never renewed; without it the watchdog renews the hold
    //   lock(token)      gives up when a stop is requested; only this form returns a bool: true if the lock is held
    //   lock(…, ec)      stores the error instead of throwing it
    template <class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] auto lock(Tail&&... tail) {
        const bool held = obtain(request_of(never, tail...), tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return held;
    }

    // Acquires the lock if it is free: one try, one round trip. Takes an optional Lease and std::error_code&.
    template <class... Tail>
    requires TryOption<Tail...>
    [[nodiscard]] bool try_lock(Tail&&... tail) {
        LockRequest request = request_of(never, tail...);
        request.one_try = true;
        return obtain(request, tail...);
    }

    // Acquires the lock and waits for it until `timeout` has passed, by a monotonic clock. Waits are rounded up to the
    // next millisecond. Zero or less means one try; the largest value means no timeout. The first command to the server
    // gets at least 250 ms, so that a short timeout can still acquire a free lock. Returns false if the deadline
    // passes. Takes an optional Lease, std::stop_token and std::error_code&. try_lock_until() does the same with a time
    // point.
    template <class Rep, class Period, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(deadline_at(when), tail...);
    }

    // Acquire the lock for an object instead of the calling thread, and return that object: see Hold. They wait, try
    // and fail as lock(), try_lock(), try_lock_for() and try_lock_until() do, and take the same trailing arguments. A
    // hold that was not acquired in time, or failed with a std::error_code&, is empty.
    template <class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] Hold hold(Tail&&... tail) { return held_until(never, false, tail...); }

    template <class... Tail>
    requires TryOption<Tail...>
    [[nodiscard]] Hold try_hold(Tail&&... tail) { return held_until(never, true, tail...); }

    template <class Rep, class Period, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] Hold try_hold_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        const Instant deadline = deadline_after(Clock::now(), timeout);
        return held_until(deadline, deadline <= Clock::now(), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] Hold try_hold_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        const Instant deadline = deadline_at(when);
        return held_until(deadline, deadline <= Clock::now(), tail...);
    }

    // Releases one level: one round trip. Throws Error(errc::not_owner) if this thread never acquired the lock. Throws
    // nothing else, so that a guard's destructor is safe: lost() and on_event report that the hold was lost, or that
    // the server could not be reached (the release is then resent in the background until the lease is over). Preserves
    // errno.
    void unlock() {
        const KeepErrno kept;
        [[maybe_unused]] const std::error_code quiet = release(this_thread_number());
    }

    // Does the same without throwing. `ec` holds every outcome: not_owner, hold_lost, unreachable, …
    void unlock(std::error_code& ec) {
        const KeepErrno kept;
        try {
            ec = release(this_thread_number());
        } catch (const std::system_error& error) {
            ec = error.code();
        }
    }

    // Returns true if any thread of any process holds the lock. One round trip, as for the next three queries, which
    // ask the server, too.
    bool is_locked() { return ask_locked(never); }
    bool is_locked(std::error_code& ec) {
        return detail::answer([&] { return is_locked(); }, false, ec);
    }

    // Returns true if this thread holds the lock, according to the server.
    bool is_held() { return hold_count() > 0; }
    bool is_held(std::error_code& ec) { return hold_count(ec) > 0; }

    // Returns how many levels this thread holds, according to the server; 0 if it holds none.
    int hold_count() { return ask_hold_count(this_thread_number(), never); }
    int hold_count(std::error_code& ec) {
        return detail::answer([&] { return hold_count(); }, 0, ec);
    }

    // Returns how long the current holder's lease still lasts; nothing if the lock is free, milliseconds::max() for a
    // key without a TTL.
    std::optional<std::chrono::milliseconds> remaining_lease() { return ask_remaining_lease(never); }
    std::optional<std::chrono::milliseconds> remaining_lease(std::error_code& ec) {
        return detail::answer([&] { return remaining_lease(); }, std::optional<std::chrono::milliseconds>(), ec);
    }

    // Returns until when this thread certainly holds the lock, a conservative estimate; time_point::min() if it holds
    // nothing. Sends no command. After this instant others may hold the lock: check it before each write that must not
    // come late. Counts the time for which the machine was suspended (Linux).
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until() { return valid_until_of(this_thread_number()); }

    // Returns a token that is requested when this thread's current hold is lost or can no longer be guaranteed: at
    // valid_until() at the latest, plus the time the machine needs to run a thread; after a suspension of the machine
    // (Linux), within a second of its resumption. It is also requested when the client is destroyed during the hold,
    // and from the start if this thread holds nothing. The callbacks should be short: a thread of the client runs them
    // one after another. When a client is destroyed, the destroying thread runs them. Sends no command.
    [[nodiscard]] std::stop_token lost() { return lost_of(this_thread_number()); }

    // Ends the hold of any owner and wakes the waiters. Returns true if there was a hold. Two round trips: the first
    // reads who holds the lock, the second ends that hold. So a late copy of the command ends no other hold.
    bool force_unlock() { return force_release(never); }
    bool force_unlock(std::error_code& ec) {
        return detail::answer([&] { return force_unlock(); }, false, ec);
    }

protected:
    LockApi() = default;

private:
    friend struct LockAccess;

    // --- on behalf of an owner ----------------------------------------------------------------------------------

    virtual bool acquire(const LockRequest& request) = 0;
    virtual std::error_code release(OwnerNumber owner) = 0;
    virtual HeldLevel keeper_of_holds() = 0;
    virtual bool force_release(Instant limit) = 0;
    virtual Instant valid_until_of(OwnerNumber owner) = 0;
    virtual std::stop_token lost_of(OwnerNumber owner) = 0;

    // Queries. They try to reach the server until `limit`, but for unreachable_timeout at most.
    virtual bool ask_locked(Instant limit) = 0;
    virtual int ask_hold_count(OwnerNumber owner, Instant limit) = 0;
    virtual std::optional<Milliseconds> ask_remaining_lease(Instant limit) = 0;

    // --- the calling thread's request ---------------------------------------------------------------------------

    // Sets the owner to the calling thread. No layer below reads the thread number.
    template <class... Tail>
    static LockRequest request_of(Instant deadline, const Tail&... tail) {
        return lock_request(this_thread_number(), deadline, tail...);
    }

    // Acquires the lock, and stores the error if the caller wants that.
    template <class... Tail>
    bool obtain(const LockRequest& request, Tail&... tail) {
        if constexpr (detail::has_error_code<Tail&...>)
            return detail::answer([&] { return acquire(request); }, false, tail...);
        else
            return acquire(request);
    }

    template <class... Tail>
    bool timed(Instant deadline, Tail&... tail) {
        LockRequest request = request_of(deadline, tail...);
        request.one_try = deadline <= Clock::now();
        return obtain(request, tail...);
    }

    // --- holds ----------------------------------------------------------------------------------------------------

    template <class... Tail>
    Hold held_until(Instant deadline, bool one_try, Tail&... tail) {
        const auto acquired = [&] {
            HeldLevel level = keeper_of_holds();
            LockRequest request = lock_request(new_hold_owner(), deadline, tail...);
            request.one_try = one_try;
            level.owner = request.owner;
            return acquire(request) ? Hold(std::move(level)) : Hold();
        };
        return detail::answer(acquired, Hold(), tail...);
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/lock_access.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Reaches the members of a lock that act for a given owner. They are not public: users hold locks as threads or
// by a Hold. MultiLock, RedLock and locks made of two sides hold their members for the owner that they are called for.
struct LockAccess {
    template <class Lock>
    static auto state(Lock& lock) -> decltype(lock.state()) {
        return lock.state();
    }
    static bool acquire(LockApi& lock, const LockRequest& request) { return lock.acquire(request); }
    static std::error_code release(LockApi& lock, OwnerNumber owner) { return lock.release(owner); }
    static HeldLevel keeper_of_holds(LockApi& lock) { return lock.keeper_of_holds(); }
    static Instant valid_until(LockApi& lock, OwnerNumber owner) { return lock.valid_until_of(owner); }
    static std::stop_token lost(LockApi& lock, OwnerNumber owner) { return lock.lost_of(owner); }
    static bool force_release(LockApi& lock, Instant limit = never) { return lock.force_release(limit); }
    static bool ask_locked(LockApi& lock, Instant limit = never) { return lock.ask_locked(limit); }
    static int ask_hold_count(LockApi& lock, OwnerNumber owner, Instant limit = never) {
        return lock.ask_hold_count(owner, limit);
    }
    static std::optional<Milliseconds> ask_remaining_lease(LockApi& lock, Instant limit = never) {
        return lock.ask_remaining_lease(limit);
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/named_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class LockState;

// Implements LockApi for one named lock. Locks that query the server in another way override the ask_* members.
class NamedLock : public LockApi {
public:
    // The name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

protected:
    NamedLock(std::shared_ptr<SessionHandle> core, const StateMaker& maker, std::string_view name)
        : handle_(std::move(core), maker, name) {}

    // Returns this process's state of the lock.
    LockState& state();

    REDLATCH_INLINE bool acquire(const LockRequest& request) override;
    REDLATCH_INLINE std::error_code release(OwnerNumber owner) override;
    REDLATCH_INLINE HeldLevel keeper_of_holds() override;
    REDLATCH_INLINE bool force_release(Instant limit) override;
    REDLATCH_INLINE Instant valid_until_of(OwnerNumber owner) override;
    REDLATCH_INLINE std::stop_token lost_of(OwnerNumber owner) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(OwnerNumber owner, Instant limit) override;
    REDLATCH_INLINE std::optional<Milliseconds> ask_remaining_lease(Instant limit) override;

private:
    friend struct LockAccess;

    StateHandle handle_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/outbox.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The numbers of holds to be released, however many levels they have: of a hold, and of the one that it was to be
// handed off to.
struct Unwanted {
    std::uint64_t hold = 0;
    std::uint64_t successor = 0;  // 0 for none
};

// Releases that the foreground could not deliver. They are of holds that were released while no server answered, or of
// numbers whose state is unknown because a reply is missing. Each is resent until a server answers whose clock is past
// the instant until which a late copy could acquire something for that number, or until the lease in question is over.
// A late copy of the release itself is harmless: its number is never used again.
class Outbox {
public:
    struct Item {
        Unwanted unwanted;
        std::int64_t unsettled;  // server time until which the release has to be repeated; 0: no repeat
        Instant give_up;         // when the lease is certainly over
        Instant next;            // when to send
        bool on_the_way = false;
        Backoff backoff{Milliseconds(50), longest_pause};
    };

    // Reserves memory for the next add().
    void make_room() { items_.reserve(items_.size() + 1); }

    // `from`: when to send it for the first time.
    void add(const Unwanted& unwanted, std::int64_t unsettled, Instant give_up, Instant from) {
        items_.push_back({unwanted, unsettled, give_up, from});
    }

    bool has(std::uint64_t hold) const {
        return std::any_of(items_.begin(), items_.end(), [hold](const Item& i) { return i.unwanted.hold == hold; });
    }

    bool empty() const { return items_.empty(); }

    // Returns the items to send now and marks them as in flight.
    std::vector<Item> take_due(Instant now) {
        std::vector<Item> due;
        due.reserve(items_.size());  // before any change, so that a failure changes nothing
        for (Item& item : items_) {
            if (item.on_the_way || item.next > now || now >= item.give_up) continue;
            item.on_the_way = true;
            due.push_back(item);
        }
        return due;
    }

    // Removes the items whose lease is over. Returns their number.
    std::size_t take_expired(Instant now) {
        return std::erase_if(items_, [&](const Item& i) { return now >= i.give_up; });
    }

    // Records a reply from a server whose clock showed `server_now`.
    void answered(std::uint64_t hold, std::int64_t server_now, Instant now) {
        for (Item& item : items_) {
            if (item.unwanted.hold != hold || item.unsettled < server_now) continue;
            // The first millisecond of that clock that is past it.
            item.next = now + Milliseconds(item.unsettled - server_now + 2);
            // The answered release removed what there was. A late copy may acquire a whole lease from then on.
            item.give_up += Milliseconds(item.unsettled - server_now + 2);
            item.on_the_way = false;
            return;
        }
        forget(hold);
    }

    void forget(std::uint64_t hold) {
        std::erase_if(items_, [&](const Item& i) { return i.unwanted.hold == hold; });
    }

    void failed(std::uint64_t hold, Instant now) {
        for (Item& item : items_)
            if (item.unwanted.hold == hold) {
                item.on_the_way = false;
                item.next = now + item.backoff.next();
            }
    }

    Instant next_deadline() const {
        Instant at = never;
        for (const Item& i : items_) at = std::min({at, i.give_up, i.on_the_way ? never : i.next});
        return at;
    }

private:
    std::vector<Item> items_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/claim.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The contents of one acquire command.
struct Claim {
    OwnerNumber owner = 0;
    std::uint64_t hold = 0;   // the number of the hold on the server: new for each first level
    std::uint32_t count = 1;  // the level
    Milliseconds lease{};
    std::int64_t until = 0;      // the time until which it is wanted, by the server's clock
    std::int64_t lease_end = 0;  // the end of a lease that begins when it is sent, by the same clock; never late
    std::uint64_t writer = 0;    // for a reader: the number of its owner's hold as the writer
    bool queues = false;         // for a fair lock: true to join the queue if it is blocked
    bool announced = false;      // true if new readers must stay out while it waits
    bool first = true;           // true if it was not sent before and the lock is not known to be held
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/lock_answers.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The reply of an acquire script.
struct AcquireAnswer {
    enum class Kind { held, blocked, gone } kind;
    Milliseconds holder_lease{};  // blocked: the remaining lease of the holder; negative if its key has no TTL
    std::int64_t token = 0;       // held: the fencing token, for locks that have one
};

inline AcquireAnswer decode_acquire(const Reply& reply, std::string_view name) {
    if (reply.is_nil()) return {AcquireAnswer::Kind::held, {}, 0};
    if (!reply.is_integer() || reply.integer < -2) throw unexpected(reply, name);
    if (reply.integer == -2) return {AcquireAnswer::Kind::gone, {}, 0};
    return {AcquireAnswer::Kind::blocked, Milliseconds(reply.integer), 0};
}

// What happened to one try in the background.
struct TryAnswer {
    enum class Kind {
        held,
        refused,
        failed,
        late,  // not the outcome: the command came too late, and will be sent again if the lock is still wanted
    } kind;
    std::uint64_t hold = 0;                   // held: its number
    std::optional<Error> why = std::nullopt;  // failed: the error; nothing if an earlier command has no reply yet
    bool by_server = false;                   // failed: the server has answered with that error
};

// The reply of a script that hands a hold over to another thread of this process.
struct HandOverAnswer {
    enum class Kind { handed, not_held, senseless } kind;
    std::int64_t token = 0;  // handed: the successor's fencing token, for locks that have one
};

inline HandOverAnswer decode_hand_over(const Reply& reply) noexcept {
    if (reply.is_nil()) return {HandOverAnswer::Kind::not_held, 0};
    const bool handed = reply.is_integer() && reply.integer == 1;
    return {handed ? HandOverAnswer::Kind::handed : HandOverAnswer::Kind::senseless, 0};
}

// The reply of a release script.
struct ReleaseAnswer {
    enum class Kind { released, still_held, not_held, senseless } kind;
    std::int64_t listeners = 0;  // released: how many subscribers were notified
};

// Never throws, because unlock() uses it.
inline ReleaseAnswer decode_release(const Reply& reply) noexcept {
    if (reply.is_nil()) return {ReleaseAnswer::Kind::not_held, 0};
    if (!reply.is_integer() || reply.integer < -1) return {ReleaseAnswer::Kind::senseless, 0};
    if (reply.integer == -1) return {ReleaseAnswer::Kind::still_held, 0};
    return {ReleaseAnswer::Kind::released, reply.integer};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/giving_back.hpp

// The common parts of the scripts that release locks. Before the first two stands a function release(owner, remaining
// count, lease in ms for a remaining hold, publish command, tag).
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

inline constexpr std::string_view release_levels{R"lua(
-- ARGV: owner, remaining count, lease in ms for a remaining hold, publish command, tag (if there is one).
return release(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
)lua"};

// For owners of which no client knows what they hold, because a reply did not come.
inline constexpr std::string_view give_up{R"lua(
-- ARGV: publish command, tag (if there is one), owners that give up.
-- Answer: the server's clock. A copy of a request of theirs may still take effect until it is no longer wanted.
local now, refusal = time_in_ms(), nil
for i = 3, #ARGV do
    local answer = release(ARGV[i], '0', '0', ARGV[1], ARGV[2])
    if type(answer) == 'table' then refusal = answer end
end
return refusal or now
)lua"};

// For a key that never becomes free.
inline constexpr std::string_view no_lease{R"lua(
local function no_lease() return redis.error_reply('WRONGTYPE the key has no lease, so it is no lock') end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/hold_levels.hpp

// Writes for the locks whose holds are fields of a hash, owner -> count, and whose lease is the TTL of the hash. If a
// command is refused, the hash is unchanged: it is never left without a lease, nor with a holder that no client knows
// of.
//
// A last release is the exception. It stands even if the user has no right to publish to the waiters, but returns that
// error. The waiters ask again when the lease would have ended.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

inline constexpr std::string_view first_level{R"lua(
-- Sets the lease of a hold that was just written. Returns nil, or the error: better no lock than one without a TTL.
local function give_lease(lock, lease)
    local limited = redis.pcall('pexpire', lock, lease)
    if type(limited) ~= 'table' then return nil end
    redis.call('del', lock)
    return limited
end
)lua"};

inline constexpr std::string_view more_levels{R"lua(
-- Sets the count of an existing hold; its lease becomes no shorter. Returns nil, or the error.
local function enter_again(lock, owner, current, count, lease)
    local left = redis.call('pttl', lock)
    if current ~= count then redis.call('hincrby', lock, owner, count - current) end
    if left >= tonumber(lease) then return nil end
    local limited = redis.pcall('pexpire', lock, lease)
    if type(limited) ~= 'table' then return nil end
    if current ~= count then redis.call('hincrby', lock, owner, current - count) end
    return limited
end
)lua"};

inline constexpr std::string_view fewer_levels{R"lua(
-- The same with fewer levels. Returns -1 = still held, or the error.
local function leave_level(lock, owner, current, count, lease)
    local left = redis.call('pttl', lock)
    -- In the last millisecond of a lease the TTL is 0. PEXPIRE with 0 deletes the key, and HINCRBY creates it without one.
    local changes = {{'pexpire', lock, math.max(1, left, lease), undo = left > 0 and {'pexpire', lock, left}}}
    if current ~= count then table.insert(changes, {'hincrby', lock, owner, count - current}) end
    return all_or_none(changes) or -1
end
)lua"};

inline constexpr std::string_view next_owner{R"lua(
-- Restores the hold of the owner, whatever was written since.
local function put_back(lock, owner, count, left)
    redis.pcall('del', lock)
    redis.pcall('hset', lock, owner, count)
    if left ~= -1 then redis.pcall('pexpire', lock, math.max(left, 1)) end
end
-- Puts the next owner in the owner's place. Returns nil, or the error.
local function replace(lock, owner, count, heir, lease, left)
    redis.call('pexpire', lock, lease)
    local reply = redis.pcall('hincrby', lock, heir, '1')
    if type(reply) ~= 'table' then reply = redis.pcall('hdel', lock, owner) end
    if type(reply) ~= 'table' then return nil end
    put_back(lock, owner, count, left)
    return reply
end
)lua"};

inline constexpr std::string_view levels{joined<first_level, more_levels>};
inline constexpr std::string_view leaving_levels{joined<all_or_none, fewer_levels>};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/rlock.hpp

// The scripts of the reentrant lock. Key: a hash with one field, owner -> hold count, and a TTL. They write the same as
// Redisson's RLock (its keys, field, channel and message). But they take the hold count from the holder as an absolute
// number, so a command that is sent twice takes effect once. An owner has a new number for each first hold: a late
// command names a hold that is gone, and does nothing.
//
// Order of writes: under maxmemory Redis refuses HINCRBY and SET, unless the script has written before. Releasing and
// renewing must always succeed, so they begin with PEXPIRE or DEL. Arguments of redis.call are strings even for
// numbers: Redis formats a Lua number with %.17g, which costs more than the command itself.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view rlock_acquire{R"lua(
-- KEYS: lock.  ARGV: owner, wanted count (1 = a first hold), lease in ms, wanted until.
-- Answer: nil = held; n >= 0 = blocked, the holder's PTTL; -2 = the hold to re-enter is gone.
local lock = KEYS[1]
local owner, count, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
if redis.call('exists', lock) == 0 then
    if count ~= '1' then return -2 end
    redis.call('hincrby', lock, owner, count)
    return give_lease(lock, lease)
end
local current = redis.call('hget', lock, owner)
if not current and count ~= '1' then return -2 end
-- In a read-write lock this owner may be a reader, which is not a hold of this lock.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if not current then
    local left = redis.call('pttl', lock)
    if left == -1 then return no_lease() end
    return left
end
return enter_again(lock, owner, current, count, lease)
)lua"};

// Releases levels of a hold. Answer: nil = not held by the owner (any more); 0 = released, no listeners; n = released,
// n listeners notified; -1 = still held.
inline constexpr std::string_view rlock_release{R"lua(
-- KEYS: lock, channel.
local lock, channel = KEYS[1], KEYS[2]
local function release(owner, count, lease, publish)
    local current = redis.call('hget', lock, owner)
    if not current then return nil end
    if count ~= '0' then return leave_level(lock, owner, current, count, lease) end
    redis.call('del', lock)
    return redis.call(publish, channel, '0')
end
)lua"};

inline constexpr std::string_view rlock_hand_over{R"lua(
-- KEYS: lock, channel.  ARGV: owner, next owner, the next owner's lease in ms, publish command, wanted until.
-- Answer: 1 = the next owner holds it; nil = neither of them does.
local lock, channel = KEYS[1], KEYS[2]
local owner, heir, lease, publish, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- An earlier copy has done it.
if redis.call('hexists', lock, heir) == 1 then return 1 end
local count = redis.call('hget', lock, owner)
if not count then return nil end
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local left = redis.call('pttl', lock)
local refusal = replace(lock, owner, count, heir, lease, left)
if refusal then return refusal end
-- Other waiters rely on the earlier, longer lease: wake them.
if left > tonumber(lease) then redis.pcall(publish, channel, '0') end
return 1
)lua"};

inline constexpr std::string_view rlock_renew{R"lua(
-- KEYS: up to 100 locks.  ARGV: lease in ms, wanted until, then the owner of each lock.
-- Answer: for each lock 1 = renewed, 0 = the owner does not hold it. Never creates a key, never shortens a TTL.
local lease, wanted_until = tonumber(ARGV[1]), ARGV[2]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local renewed = {}
for i, lock in ipairs(KEYS) do
    renewed[i] = redis.pcall('hexists', lock, ARGV[i + 2])
    if type(renewed[i]) == 'table' then
        -- A key of another type is lost, but the other locks must not expire for that.
        if not string.find(renewed[i].err, 'WRONGTYPE', 1, true) then return renewed[i] end
        renewed[i] = 0
    end
    if renewed[i] == 1 and redis.call('pttl', lock) < lease then redis.call('pexpire', lock, lease) end
end
return renewed
)lua"};

}  // namespace parts

inline constexpr std::string_view rlock_acquire =
    joined<parts::wanted_until, parts::no_lease, parts::levels, parts::rlock_acquire>;
inline constexpr std::string_view rlock_release =
    joined<parts::leaving_levels, parts::rlock_release, parts::release_levels>;
inline constexpr std::string_view rlock_give_up =
    joined<parts::wanted_until, parts::leaving_levels, parts::rlock_release, parts::give_up>;
inline constexpr std::string_view rlock_hand_over =
    joined<parts::wanted_until, parts::next_owner, parts::rlock_hand_over>;
inline constexpr std::string_view rlock_renew = joined<parts::wanted_until, parts::rlock_renew>;

inline constexpr std::string_view rlock_remaining_lease{R"lua(
-- KEYS: lock.  Answer: PTTL; -2 = not held.
if redis.call('hlen', KEYS[1]) == 0 then return -2 end
return redis.call('pttl', KEYS[1])
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::rlock_acquire>{scripts::rlock_acquire,
    "9177ae7e76a78db8bb54f124515935c85c1eef43"};
template <>
inline constexpr Script digested<scripts::rlock_give_up>{scripts::rlock_give_up,
    "14957194dc3e50fe6a59b9953a2b87a2797801be"};
template <>
inline constexpr Script digested<scripts::rlock_hand_over>{scripts::rlock_hand_over,
    "44938e4772a2932a4d55d9c6c5e15d753ce5d28f"};
template <>
inline constexpr Script digested<scripts::rlock_release>{scripts::rlock_release,
    "342e55ea9632ec0c89efd0d856bd8c9e8de6e0d9"};
template <>
inline constexpr Script digested<scripts::rlock_remaining_lease>{scripts::rlock_remaining_lease,
    "f70ef3a0ebbc9da0d42f8b442e892b4062745468"};
template <>
inline constexpr Script digested<scripts::rlock_renew>{scripts::rlock_renew,
    "760bebdf5eda7eb6d982a97fd524202ea9169ba9"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/lock_queries.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The queries of a lock that is a hash of owner -> hold count on the server.

// Returns the list of owners that hold the lock.
inline Call hash_holders(const std::string& key) { return Call::command({"HKEYS", key}); }

// Returns the number of owners. Uses HLEN rather than EXISTS: a key of another type is an error, not a lock.
inline Call hash_size(const std::string& key) { return Call::command({"HLEN", key}); }

// Returns the hold count of one owner, or nil.
inline Call hash_count(const std::string& key, const OwnerText& owner) { return Call::command({"HGET", key, owner}); }

// Returns the PTTL of the lock, or -2 if it is free.
inline Call key_lease(const std::string& key) { return {digested<scripts::rlock_remaining_lease>, {key}, {}}; }

// --- replies ---------------------------------------------------------------------------------------------------------

// Reads the number of owners.
inline bool read_is_locked(const Reply& reply, std::string_view key) {
    if (!reply.is_integer() || reply.integer < 0) throw unexpected(reply, key);
    return reply.integer > 0;
}

// Reads nil for none, or the text of a number.
inline int read_count(const Reply& reply, std::string_view key) {
    if (reply.is_nil()) return 0;
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    int count = 0;
    const char* const last = reply.text.data() + reply.text.size();
    const auto [end, error] = std::from_chars(reply.text.data(), last, count);
    if (error != std::errc{} || end != last || count < 0) throw unexpected(reply, key);
    return count;
}

// Reads nil or a text.
inline std::optional<std::string> read_text(Reply reply, std::string_view key) {
    if (reply.is_nil()) return std::nullopt;
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    return std::move(reply.text);
}

// Reads a PTTL, or -2 if the lock is free.
inline std::optional<Milliseconds> read_lease(const Reply& reply, std::string_view key) {
    if (!reply.is_integer() || reply.integer < -2) throw unexpected(reply, key);
    if (reply.integer == -2) return std::nullopt;
    return reply.integer < 0 ? Milliseconds::max() : Milliseconds(reply.integer);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/lock_protocol.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What tells one kind of lock from another, apart from its calls.
struct LockKind {
    std::string_view name;    // tells the local states of one key apart
    std::string_view family;  // two families on one key would mistake each other's holds for their own
    const Script& renewal;    // renews holds of this kind
    bool shared = false;      // many may hold it at a time; then a thread may ask while others of its process hold it
    bool reentrant = true;    // its holder may acquire it once more
    bool hands_over = false;  // one thread of this process can hand its hold over to another
    bool outlives_lease = false;   // the server may keep a hold beyond its lease, so an expired one has to be released
    bool fixes_lease_end = false;  // the acquire call names the end of the lease by the server's clock
};

// Makes the calls of one kind of lock and reads the replies. It does no I/O. The defaults are those of a lock that is a
// hash of owner -> hold count on the server. Every call may be resent and may arrive late.
class LockProtocol {
public:
    LockProtocol(const LockKind& of, const ProtocolContext& context, std::string key, std::string channel = {})
        : kind(of), uuid_(context.uuid), key_(std::move(key)), channel_(std::move(channel)) {}
    LockProtocol(const LockProtocol&) = delete;
    LockProtocol& operator=(const LockProtocol&) = delete;
    virtual ~LockProtocol() = default;

    const LockKind& kind;

    const std::string& key() const noexcept { return key_; }

    // The channel that a release notifies; empty if there is none for all waiters.
    const std::string& channel() const noexcept { return channel_; }

    // Returns the hold's owner as the server knows it.
    virtual OwnerText text(std::uint64_t hold) const noexcept { return {uuid_, hold}; }

    // --- acquiring: one acquire, also of one more level -------------------------------------------------------

    virtual Call acquire(const Claim& claim) const = 0;
    virtual AcquireAnswer read_acquire(const Reply& reply) const { return decode_acquire(reply, key_); }

    // Returns the call that has to follow `sent` after this reply, if there is one: a plain command was refused.
    virtual std::optional<Call> after_acquire(const Claim&, const Call& /*sent*/, const Reply&) const {
        return std::nullopt;
    }

    // Cancels the announcement of a waiting thread of this process. Returns nothing if there is none.
    virtual std::optional<Call> cancel_announcement() const { return std::nullopt; }

    // --- releasing --------------------------------------------------------------------------------------------

    virtual Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const = 0;
    virtual ReleaseAnswer read_release(const Reply& reply) const noexcept { return decode_release(reply); }

    // Releases the last level, in the first sending. Returns the call that has to follow it, if there is one.
    virtual Call first_release(std::uint64_t hold) const { return release(hold, 0, Milliseconds(0)); }
    virtual std::optional<Call> after_release(std::uint64_t, const Call& /*sent*/, const Reply&) const {
        return std::nullopt;
    }

    // Releases everything that these owners hold. The reply is the server's clock.
    virtual Call give_up(std::span<const std::string_view> owners) const = 0;

    // Called only if kind.hands_over.
    virtual Call hand_over(std::uint64_t hold, const Claim& successor) const {
        return release(hold, 0, successor.lease);
    }
    virtual HandOverAnswer read_hand_over(const Reply& reply) const noexcept { return decode_hand_over(reply); }

    // --- queries ----------------------------------------------------------------------------------------------

    // Returns the list of owners that hold the lock, whichever they are.
    virtual Call holders() const { return hash_holders(key_); }
    virtual Call hold_count(std::uint64_t hold) const { return hash_count(key_, text(hold)); }
    virtual Call is_locked() const { return hash_size(key_); }
    virtual Call remaining_lease() const { return key_lease(key_); }

protected:
    const std::string& uuid_;
    const std::string key_;
    const std::string channel_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/lock_core.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The state of a lock, as its parts see it.
class LockTask : public NamedState {
public:
    // Called with the mutex of the lock when the lock may be free for a thread of this process, for a reason that the
    // server does not publish.
    virtual void may_be_free() = 0;
};

// What the parts of one lock in this process share.
//
// Each first hold has a number of its own, by which the server knows its owner. So a late command names a hold that is
// gone. Only this process knows which thread has which hold.
//
// mutex guards all members except the constant ones, and the parts. It is never held during a command, nor while user
// code runs.
struct LockCore {
    LockCore(LockTask& state, Session& of, std::unique_ptr<LockProtocol> by)
        : task(state),
          session(of),
          owned_protocol(std::move(by)),
          key_holds(of.key_holds(key())),
          patience(of.options().command_timeout, of.options().unreachable_timeout) {}

    const std::string& key() const noexcept { return protocol.key(); }
    std::uint64_t next_number() { return session.next_request(); }

    // Keeps the lock's state alive, for completions.
    std::shared_ptr<BackgroundTask> keep() { return task.shared_from_this(); }

    Milliseconds watchdog_timeout() const { return session.options().watchdog_timeout; }
    Milliseconds lease_of(const std::optional<Milliseconds>& lease) const {
        return lease ? *lease : watchdog_timeout();
    }

    Claim claim_of(OwnerNumber owner, std::uint64_t number, std::uint32_t count,
                   const std::optional<Milliseconds>& lease) const {
        Claim claim{owner, number, count, lease_of(lease)};
        if (kind.shared) claim.writer = key_holds->writer_of(owner);
        return claim;
    }

    void report_loss(std::string_view why) noexcept {
        session.count_lost_hold();
        session.raise(Event::Kind::hold_lost, key(), why);
    }

    // Sets the times at which the background serves the lock.
    void schedule() {
        Instant at = outbox.next_deadline();
        Instant lost_at = never;
        for (const HoldRecord& hold : holds) {
            if (!hold.live()) continue;
            at = std::min(at, hold.next_deadline());
            lost_at = std::min(lost_at, hold.lost_at());
        }
        if (at != never) session.timers().schedule(task, at);
        if (lost_at != never) session.losses().timers().schedule(task, lost_at);
    }

    // Lets the session drop the state when no one uses it any more. That is not urgent.
    void forget_later() { session.timers().schedule(task, Clock::now() + Milliseconds(1000)); }

    void end_in_flight() {
        --in_flight;
        forget_later();
    }

    LockTask& task;
    Session& session;
    const std::unique_ptr<LockProtocol> owned_protocol;
    LockProtocol& protocol = *owned_protocol;
    const LockKind& kind = protocol.kind;
    const std::shared_ptr<KeyHolds> key_holds;

    std::mutex mutex;
    HoldTable holds;
    Outbox outbox;
    Patience patience;
    bool releasing = false;     // true while a last release or a hand-over is in flight
    std::size_t in_flight = 0;  // tries and releases in flight in the background
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/acquire_attempt.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// An acquire command that was sent, and its reply.
struct Asked {
    Reply reply;
    Instant begun;
    Instant sent;                // time of the last sending, which the reply answers
    std::int64_t unsettled = 0;  // server time until which an unanswered sending may take effect; 0 for none
    std::uint64_t hold = 0;      // the number that was asked for
};

// The state machine of one attempt to acquire a lock: which call to send next, and what the replies show. It does no
// I/O, so that a thread that waits for each reply and a completion can both drive it:
//   1. asks_time() comes before the server's time is found out, and begin() takes it: the command is wanted until then;
//   2. call() is sent, and replied() takes the reply;
//   3. that says what comes next: another call, the time once more, or nothing.
class AcquireAttempt {
public:
    enum class Next {
        call,  // send call()
        time,  // the server's clock has jumped, so the command came too late: begin() again
        done,  // the reply is in `asked`
    };

    AcquireAttempt(LockCore& core, const Claim& wanted) : claim(wanted), core_(core) {
        asked.hold = claim.hold;
        asked.begun = asked.sent = Clock::now();
    }

    Claim claim;
    Asked asked;

    void asks_time() {
        if (core_.kind.fixes_lease_end) asked_time_ = SendTime();
    }

    // Starts a sending. `now`: the server's time, found out since asks_time().
    void begin(ServerMilliseconds now) {
        claim.until = now + core_.session.options().command_timeout.count();
        if (core_.kind.fixes_lease_end) {
            claim.lease_end = core_.session.lease_end(claim.until, claim.lease);
            // The plain command names the end of the lease by our reading of the server's clock. If that may be far off,
            // the script is sent instead, and its reply has a new reading.
            const bool is_inexact = core_.session.clock_error() > claim.lease / 2;
            if (is_inexact || core_.session.clock_age() > good_for_plain) claim.first = false;
        }
        call_.emplace(core_.protocol.acquire(claim));
        learned_at_ = Clock::now();
        // The lease of the plain command counts from the reading, and this thread may have been stopped since.
        sent_ = call_->script() ? SendTime() : *asked_time_;
    }

    const Call& call() const { return *call_; }

    Next replied(Reply reply) {
        asked.sent = sent_.as_of_now();
        // The plain command fixes the end of the lease by the server's clock, of which we have an estimate only.
        if (core_.kind.fixes_lease_end && !call_->script()) asked.sent -= core_.session.clock_error();
        if (!reply.answered() && !reply.is_unsent()) asked.unsettled = std::max(asked.unsettled, claim.until);
        asked.reply = std::move(reply);
        if (has_to_follow()) return Next::call;
        if (!core_.session.learn_if_late(core_.key(), learned_at_, asked.reply) || ++too_late_ == most_tries)
            return Next::done;
        return Next::time;
    }

private:
    static constexpr int most_tries = 3;
    // A jump of the server's clock since the reading would end the lease at once. So the reading must be new.
    static constexpr Milliseconds good_for_plain{1000};

    // Replaces call() by the one that has to follow this reply, if there is one.
    bool has_to_follow() {
        std::optional<Call> following = core_.protocol.after_acquire(claim, *call_, asked.reply);
        if (!following) return false;
        call_ = std::move(following);
        return true;
    }

    LockCore& core_;
    std::optional<Call> call_;
    std::optional<SendTime> asked_time_;  // set if the call may fix the end of the lease
    SendTime sent_;
    Instant learned_at_{};
    int too_late_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/deliveries.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A level that is being released.
struct Leaving {
    std::uint64_t hold;
    std::uint32_t remaining;
    Milliseconds lease;      // for the remaining levels: the watchdog's, or 0 if none of them is under the watchdog
    Instant until;           // when the lease is over
    std::int64_t unsettled;  // of the hold
};

// Delivers the releases that the foreground could not deliver, and those of numbers whose outcome is unknown: it posts
// what is due in the outbox of a lock.
class Deliveries {
public:
    explicit Deliveries(LockCore& core) : core_(core) {}

    // Returns when the server's clock is most likely past `unsettled`.
    Instant unsettled_until(std::int64_t unsettled) const {
        const Instant now = Clock::now();
        const auto server_now =
            core_.session.server_clock().roughly_at(core_.session.transport().route(core_.key()), now);
        return now + Milliseconds(server_now ? std::clamp<std::int64_t>(unsettled - *server_now + 2, 0, 3'600'000) : 0);
    }

    // Releases in the background a number of unknown outcome, or a hold that no caller wants. `unsettled`: the server
    // time until which an unanswered acquire may take effect; 0 for none.
    void undo_acquire(std::unique_lock<std::mutex>& lock, std::uint64_t number, std::int64_t unsettled,
                      Milliseconds lease, Instant from = Clock::now()) {
        core_.outbox.add({number}, unsettled, from + lease + core_.session.options().command_timeout, from);
        core_.schedule();
        // This thread sends it, so that it follows the acquire command on the same connection.
        deliver(lock);
        cancel_announcement(lock);
    }

    // Withdraws the announcement that keeps others away for the waiting threads of this process.
    void cancel_announcement(std::unique_lock<std::mutex>& lock) {
        const std::optional<Call> call = core_.protocol.cancel_announcement();
        if (!call) return;
        lock.unlock();
        core_.session.post(*call, [](const Reply&) {});
        lock.lock();
    }

    void give_back_later(const HoldRecord& hold, Instant from) {
        core_.outbox.add({hold.id}, hold.unsettled, Clock::now() + core_.watchdog_timeout(), from);
        core_.schedule();
    }

    void give_back_later(const Leaving& leaving, Instant from) {
        const Instant over = std::max(leaving.until, from + core_.session.options().command_timeout);
        core_.outbox.add({leaving.hold}, leaving.unsettled, leaving.unsettled != 0 ? over : leaving.until, from);
        core_.schedule();
    }

    // Reports the releases whose time is over. Others are not blocked any more.
    void drop_expired(Instant now) {
        for (std::size_t n = core_.outbox.take_expired(now); n > 0; --n)
            core_.session.raise(Event::Kind::unlock_not_delivered, core_.key(),
                                "the release was not delivered; the lease has expired, so others can acquire it");
    }

    // Posts what is due.
    void deliver(std::unique_lock<std::mutex>& lock) {
        const std::vector<Outbox::Item> due = core_.outbox.take_due(Clock::now());
        if (due.empty()) return;
        lock.unlock();
        for (const auto& item : due) {
            const std::uint64_t hold = item.unwanted.hold;
            try {
                const auto owner = core_.protocol.text(hold), successor = core_.protocol.text(item.unwanted.successor);
                const std::array<std::string_view, 2> owners{owner, successor};
                core_.session.post(
                    core_.protocol.give_up(std::span(owners).first(item.unwanted.successor == 0 ? 1 : 2)),
                    [this, keep = core_.keep(), hold](const Reply& reply) { delivered(hold, reply); });
            } catch (...) {  // no memory, no thread: retried after a pause
                delivered(hold, Reply::of(Reply::Kind::not_sent, std::string()));
            }
        }
        lock.lock();
    }

private:
    void delivered(std::uint64_t hold, const Reply& reply) {
        const std::lock_guard lock(core_.mutex);
        if (classify(reply) == ReplyClass::answered && reply.is_integer())
            core_.outbox.answered(hold, reply.integer, Clock::now());
        else if (is_final(reply))
            core_.outbox.forget(hold);
        else
            core_.outbox.failed(hold, Clock::now());
        // The session may drop the state now.
        if (core_.outbox.empty()) core_.session.timers().schedule(core_.task, Clock::now());
        core_.task.may_be_free();
        core_.schedule();
    }

    LockCore& core_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/leases.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The life of the holds that the threads of this process have on one lock: they are recorded, renewed by the watchdog,
// and lost. All members are called with the mutex of the lock.
class Leases {
public:
    Leases(LockCore& core, Deliveries& deliveries) : core_(core), deliveries_(deliveries) {}

    // --- records ----------------------------------------------------------------------------------------------

    HoldRecord* live_hold(OwnerNumber owner) {
        HoldRecord* hold = core_.holds.find(owner);
        if (!hold || !hold->live()) return nullptr;
        // Its end is nearer now, so its loss is due earlier.
        if (hold->check_suspension() > Clock::duration::zero()) core_.schedule();
        return hold;
    }

    HoldRecord& record(OwnerNumber owner, std::uint64_t id, Instant sent, std::optional<Milliseconds> lease,
                       std::int64_t token) {
        HoldRecord& hold = core_.holds.start(owner, id);
        hold.token = token;
        hold.enter(sent, lease, core_.watchdog_timeout());
        hold.set_notice(core_.session.losses().notice(), core_.lease_of(lease));
        core_.key_holds->taken({core_.kind.family, owner, id, !core_.kind.shared});
        // Releasing it must not need memory.
        core_.outbox.make_room();
        core_.session.count_acquisition();
        core_.schedule();
        return hold;
    }

    void forget(OwnerNumber owner) {
        if (HoldRecord* hold = core_.holds.find(owner)) finish(*hold);
    }

    // Removes the live part of the hold from this process.
    void finish(HoldRecord& hold) {
        core_.key_holds->ended(hold.id);
        core_.holds.finish(hold);
    }

    // Returns the error for a first hold if this process holds the key as another kind of lock.
    std::optional<Error> mixed_kinds() const {
        const std::string_view other = core_.key_holds->other_than(core_.kind.family);
        if (other.empty()) return std::nullopt;
        return Error(errc::wrong_type, core_.key(),
                     "this process uses this name for " + std::string(other) + ", so " +
                         std::string(core_.kind.family) + " cannot use it; choose another name");
    }

    // --- queries without a command ----------------------------------------------------------------------------

    Instant valid_until(OwnerNumber owner) {
        const HoldRecord* hold = live_hold(owner);
        return hold ? hold->valid_until : Instant::min();
    }

    // Returns the fencing token of the owner's hold, for locks that have one; nothing if the owner holds nothing.
    std::optional<std::int64_t> token(OwnerNumber owner) {
        const HoldRecord* hold = core_.holds.find(owner);
        return hold && hold->live() ? std::optional(hold->token) : std::nullopt;
    }

    // Returns the number of the owner's hold, and until when the hold is certain.
    HeldPart part(OwnerNumber owner) {
        const HoldRecord* hold = live_hold(owner);
        return hold ? HeldPart{hold->id, hold->valid_until} : HeldPart{};
    }

    std::stop_token lost(OwnerNumber owner) { return lost_token(live_hold(owner)); }

    // --- the watchdog -----------------------------------------------------------------------------------------

    // Appends the holds to be renewed until `horizon`, and those about which to ask whether the server still has them.
    void add_due(Instant horizon, std::vector<Renewal>& due) {
        for (HoldRecord& hold : core_.holds) {
            if (!hold.live()) continue;
            if (hold.renewing || hold.ask_at() > horizon) continue;
            due.push_back(
                {core_.keep(), core_.key(), hold.owner, hold.id, &core_.kind.renewal, core_.protocol.text(hold.id)});
            if (!hold.watched()) due.back().lease = Milliseconds(1);
            hold.renewing = true;
        }
    }

    // Applies the outcome of a renewal that was sent at `sent`.
    void renewed(std::unique_lock<std::mutex>& lock, const Renewal& renewal, BackgroundTask::Renewed outcome,
                 Instant sent) {
        using Renewed = BackgroundTask::Renewed;
        HoldRecord* hold = core_.holds.find(renewal.owner);
        if (hold && hold->live() && hold->id == renewal.hold) {
            const Milliseconds timeout = core_.watchdog_timeout();
            switch (outcome) {
                case Renewed::yes:
                    if (renewal.lease)
                        hold->checked();
                    else
                        hold->renewed(sent, timeout);
                    if (!renewal.lease) hold->set_notice(core_.session.losses().notice(), timeout);
                    break;
                case Renewed::refused: lose(*hold, "the server no longer has this hold"); break;
                case Renewed::unknown: hold->renewal_failed(Clock::now(), timeout); break;
            }
            core_.holds.erase_lost();
            core_.schedule();
        } else if (std::erase(lost_in_renewal_, renewal.hold) > 0 && outcome == Renewed::yes) {
            // The hold is lost here, but this renewal still prolonged it on the server. Release it, so that it does not
            // block others for another lease. Its owner was notified a little early and was promised that time, so wait
            // for it.
            const Instant now = Clock::now();
            core_.outbox.add({renewal.hold}, 0, now + core_.watchdog_timeout(), now + Lateness::longest_notice);
            core_.schedule();
            deliveries_.deliver(lock);
        }
    }

    // The server may be another one: its holds must be verified.
    void doubt_all() {
        for (HoldRecord& hold : core_.holds)
            if (hold.live()) hold.doubt(Clock::now());
        core_.schedule();
    }

    // --- losing -----------------------------------------------------------------------------------------------

    // Reports as lost the holds that are no longer certain.
    void expire(Instant now) {
        for (HoldRecord& hold : core_.holds) {
            if (!hold.live()) continue;
            hold.check_suspension();
            if (now < hold.lost_at()) continue;
            // Release it only at valid_until. Its owner is notified now, a little early, and was promised the rest.
            if (core_.kind.outlives_lease) deliveries_.give_back_later(hold, hold.valid_until);
            lose(hold, hold.watched() ? "its lease was not renewed in time" : "its lease expired");
        }
        core_.holds.erase_lost();
        core_.schedule();
        core_.forget_later();
    }

    // Requests the lost() tokens of all holds: the client ends.
    void abandon() noexcept {
        for (HoldRecord& hold : core_.holds)
            if (hold.live() && hold.lost) core_.session.losses().tell(std::move(*hold.lost));
    }

    // Ends a hold that is lost. Its levels await their unlock(), which reports the loss. The caller removes the hold
    // from the table, because it may be iterating over it.
    void lose(HoldRecord& hold, const char* why) {
        // Steps that may run out of memory come first: then the hold is not lost yet, and the background retries.
        if (hold.renewing) lost_in_renewal_.push_back(hold.id);
        // A copy of the unanswered acquire command may still arrive.
        if (hold.unsettled != 0)
            deliveries_.give_back_later(
                hold, std::max(deliveries_.unsettled_until(hold.unsettled), Clock::now() + Lateness::longest_notice));
        core_.session.lost_levels().add(core_.kind.name, core_.key(), hold.owner, hold.count);
        if (hold.lost) core_.session.losses().tell(std::move(*hold.lost));
        core_.key_holds->ended(hold.id);
        hold.count = 0;
        hold.lost.reset();
        core_.report_loss(why);
        core_.task.may_be_free();
    }

    // Ends the hold of one owner, and removes it.
    void lose_now(HoldRecord& hold, const char* why) {
        lose(hold, why);
        core_.holds.erase_lost();
    }

private:
    LockCore& core_;
    Deliveries& deliveries_;
    std::vector<std::uint64_t> lost_in_renewal_;  // holds that were lost while a renewal was in flight
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/acquires.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sends the acquire command of one lock, and applies the replies: it records what was acquired, and undoes what no
// caller wants. `lock` holds the mutex of the lock.
class Acquires {
public:
    Acquires(LockCore& core, Deliveries& deliveries, Leases& leases)
        : core_(core), deliveries_(deliveries), leases_(leases) {}

    // --- first holds ------------------------------------------------------------------------------------------

    // Sends the acquire command for a first hold under a new number. Returns nothing if the caller's stop token or
    // deadline ended the call; otherwise held (and recorded) or blocked. `first`: True before any waiting.
    //
    // With `waiting`, the caller keeps waiting under that number if it is blocked, and releases the number itself if
    // there is no reply. `*waiting` keeps the server time until which an unanswered sending may take effect.
    std::optional<AcquireAnswer> ask(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                                     std::uint64_t number, bool first, std::int64_t* waiting = nullptr) {
        if (auto refusal = leases_.mixed_kinds()) throw *std::move(refusal);
        Claim claim = core_.claim_of(request.owner, number, 1, request.lease);
        claim.announced = request.precedence && !request.one_try;
        claim.first = first;
        claim.queues = waiting != nullptr;
        Asked asked = send_acquire(lock, request, claim, first);
        if (waiting) asked.unsettled = *waiting = std::max(*waiting, asked.unsettled);
        if (classify(asked.reply) != ReplyClass::answered) {
            if (asked.unsettled != 0 && !waiting) undo(lock, asked, claim.lease);
            no_answer(request, asked);
            return std::nullopt;
        }
        return apply_acquire_reply(lock, request.owner, request.lease, asked, waiting != nullptr);
    }

    // Applies the reply to the acquire command for a first hold. `waits_on`: see ask().
    AcquireAnswer apply_acquire_reply(std::unique_lock<std::mutex>& lock, OwnerNumber owner,
                                      const std::optional<Milliseconds>& wanted, const Asked& asked,
                                      bool waits_on = false) {
        const Instant now = Clock::now();
        const Milliseconds lease = core_.lease_of(wanted);
        const AcquireAnswer answer = decode(lock, asked, lease);
        if (answer.kind != AcquireAnswer::Kind::held) {
            // A copy of an unanswered sending may still acquire it.
            if (asked.unsettled != 0 && !waits_on) undo(lock, asked, lease);
            return answer;
        }
        if (!asked.reply.replicated) {
            undo(lock, asked, lease);
            throw not_replicated(core_.key());
        }
        // The reply took longer than the lease lasts, or the thread has acquired a hold in another way meanwhile.
        if (now >= redlatch::valid_until(asked.sent, lease) || leases_.live_hold(owner)) {
            undo(lock, asked, lease);
            return AcquireAnswer{AcquireAnswer::Kind::blocked, Milliseconds(0), 0};
        }
        record_or_undo(lock, owner, wanted, asked, answer.token);
        return answer;
    }

    void undo(std::unique_lock<std::mutex>& lock, const Asked& asked, Milliseconds lease, Instant from = Clock::now()) {
        deliveries_.undo_acquire(lock, asked.hold, asked.unsettled, lease, from);
    }

    // --- reentry ----------------------------------------------------------------------------------------------

    // Acquires one more level for a thread that holds the lock. Returns true if it has one more, false if its stop
    // token or deadline ended the call. Returns nothing if the thread holds nothing, perhaps because its hold turned
    // out to be lost: then it has to acquire the lock like any other thread.
    std::optional<bool> reenter(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        HoldRecord* hold = leases_.live_hold(request.owner);
        if (hold && refuses_reentry(*hold)) throw not_reentrant();
        hold = leases_.live_hold(request.owner);
        if (!hold) return first_hold_instead(request);
        const std::uint64_t id = hold->id;
        const std::uint32_t count = hold->count + 1;
        if (count > 0x7fff'ffff)
            throw Error(errc::would_deadlock, core_.key(),
                        "this thread has locked it too many times; each lock() needs an unlock()");
        const Claim claim = core_.claim_of(request.owner, id, count, request.lease);
        const Asked asked = send_acquire(lock, request, claim, true);
        if (hold = leases_.live_hold(request.owner); hold && hold->id == id && asked.unsettled != 0)
            hold->doubtful = true;
        // An unknown outcome is harmless: the next command of this hold carries its absolute count.
        if (classify(asked.reply) != ReplyClass::answered) return no_answer(request, asked);
        if (apply_reentry_reply(lock, request.owner, id, request.lease, asked)) return true;
        return first_hold_instead(request);
    }

    // Applies the reply to a reentry. Returns false if the hold is lost.
    bool apply_reentry_reply(std::unique_lock<std::mutex>& lock, OwnerNumber owner, std::uint64_t id,
                             const std::optional<Milliseconds>& wanted, const Asked& asked) {
        const AcquireAnswer answer = core_.protocol.read_acquire(asked.reply);
        HoldRecord* hold = core_.holds.find(owner);
        if (!hold || hold->id != id || !hold->live()) {
            // The hold was lost while the command was in flight: release what it acquired. The owner was notified a
            // little early and was promised that time, so wait for it.
            if (answer.kind == AcquireAnswer::Kind::held)
                undo(lock, asked, core_.lease_of(wanted), Clock::now() + Lateness::longest_notice);
            return false;
        }
        if (answer.kind != AcquireAnswer::Kind::held) {
            leases_.lose_now(*hold, "the server no longer has this hold");
            return false;
        }
        // The server counts one level more than this process. The next command of this hold carries the absolute count.
        if (!asked.reply.replicated) throw not_replicated(core_.key());
        hold->enter(asked.sent, wanted, core_.watchdog_timeout());
        core_.schedule();
        return true;
    }

    // Returns true if the thread would deadlock with itself. A hold whose lease is over refuses nothing; it is lost.
    bool refuses_reentry(HoldRecord& hold) {
        if (core_.kind.reentrant || !hold.live()) return false;
        if (Clock::now() < hold.valid_until) return true;
        leases_.lose_now(hold, "its lease expired");
        return false;
    }

    Error not_reentrant() const {
        return {errc::would_deadlock, core_.key(),
                "this thread already holds the Mutex, which is not reentrant; use an RLock for nested sections"};
    }

private:
    // Returns nothing, unless the owner wants one more level of a hold that it no longer has.
    std::optional<bool> first_hold_instead(const LockRequest& request) const {
        if (request.again) throw Error(errc::hold_lost, core_.key(), "the hold has ended");
        return std::nullopt;
    }

    // Sends the acquire command and waits for the reply; sends it again until it is answered, or until the caller's
    // patience ends. `first`: True for the first command of a call.
    Asked send_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, const Claim& claim, bool first) {
        Session& session = core_.session;
        // Start these before there is a hold: supervising a hold must not fail.
        session.start_losses();
        session.start_background();
        const Instant give_up = core_.patience.give_up_at(request, first);
        lock.unlock();
        AcquireAttempt attempt(core_, claim);
        Retry retry = session.retry(give_up, request.stop, request.one_try);
        do {
            if (retry.is_resend()) attempt.claim.first = false;
            attempt.asked.reply = send_once(attempt, retry.deadline());
        } while (retry.again(attempt.asked.reply));
        lock.lock();
        const Asked& asked = attempt.asked;
        if (classify(asked.reply) == ReplyClass::answered)
            core_.patience.answered();
        else
            core_.patience.failed(asked.begun, asked.reply);
        return std::move(attempt.asked);
    }

    Reply send_once(AcquireAttempt& attempt, Instant deadline) try {
        using Next = AcquireAttempt::Next;
        for (;;) {
            Reply failure;
            attempt.asks_time();
            const auto now = core_.session.server_time(core_.key(), deadline, failure);
            if (!now) return failure;
            attempt.begin(*now);
            Next next = Next::call;
            while (next == Next::call) next = attempt.replied(core_.session.call(attempt.call(), deadline));
            if (next == Next::done || Clock::now() >= deadline) return std::move(attempt.asked.reply);
        }
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    // Returns false if the caller's stop token or deadline ended the call; otherwise throws.
    bool no_answer(const LockRequest& request, const Asked& asked) const {
        if (request.stop.stop_requested()) return false;
        if (core_.patience.was_too_short(request, asked.begun, asked.reply, asked.unsettled != 0)) return false;
        throw error_of(asked.reply, core_.key());
    }

    // If recording fails (no memory, no thread), releases the hold and rethrows.
    void record_or_undo(std::unique_lock<std::mutex>& lock, OwnerNumber owner, const std::optional<Milliseconds>& lease,
                        const Asked& asked, std::int64_t token) {
        try {
            leases_.record(owner, asked.hold, asked.sent, lease, token).unsettled = asked.unsettled;
        } catch (...) {
            leases_.forget(owner);
            undo(lock, asked, core_.lease_of(lease));
            throw;
        }
    }

    AcquireAnswer decode(std::unique_lock<std::mutex>& lock, const Asked& asked, Milliseconds lease) {
        try {
            return core_.protocol.read_acquire(asked.reply);
        } catch (...) {
            undo(lock, asked, lease);
            throw;
        }
    }

    LockCore& core_;
    Deliveries& deliveries_;
    Leases& leases_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/releases.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Marks that a last release or a hand-over is in flight, so that no thread of this process asks the server meanwhile.
// The destructor clears the mark, also after an exception.
class InFlightGuard {
public:
    InFlightGuard(LockCore& core, std::unique_lock<std::mutex>& lock) : core_(core), lock_(lock) {
        if (!core_.kind.shared) core_.releasing = true;
    }
    InFlightGuard(const InFlightGuard&) = delete;
    InFlightGuard& operator=(const InFlightGuard&) = delete;
    ~InFlightGuard() {
        if (!lock_.owns_lock()) lock_.lock();
        if (!core_.kind.shared) core_.releasing = false;
    }

private:
    LockCore& core_;
    std::unique_lock<std::mutex>& lock_;
};

// Releases the holds of one lock, level by level. `lock` holds the mutex of the lock.
class Releases {
public:
    Releases(LockCore& core, Deliveries& deliveries, Leases& leases)
        : core_(core), deliveries_(deliveries), leases_(leases) {}

    Instant foreground_deadline() const { return Clock::now() + core_.session.options().command_timeout; }

    // Returns the owner's hold if it is still held. If its lease is over, reports the loss and returns null.
    HoldRecord* hold_to_release(std::unique_lock<std::mutex>& lock, OwnerNumber owner) {
        HoldRecord* hold = leases_.live_hold(owner);
        if (!hold || Clock::now() < hold->valid_until) return hold;
        deliveries_.give_back_later(*hold, Clock::now());
        leases_.lose_now(*hold, "its lease expired");
        deliveries_.deliver(lock);
        return nullptr;
    }

    // Returns the error of unlock() for an owner that holds nothing. Throws Error(errc::not_owner) if it never held the
    // lock.
    std::error_code gone_before(OwnerNumber owner) {
        // In a forked child the caller is most likely a guard of the parent, whose stack is being unwound.
        if (core_.session.lost_levels().take(core_.kind.name, core_.key(), owner) || core_.session.is_fork_child())
            return errc::hold_lost;
        throw Error(errc::not_owner, core_.key(), "only the thread that holds the lock can unlock() it");
    }

    // Removes one level. A hold that loses its last level is no longer renewed.
    Leaving leave_level(HoldRecord& hold) {
        Leaving leaving{hold.id, hold.count - 1, Milliseconds(0), hold.valid_until, hold.unsettled};
        if (hold.count == 1) {
            leases_.finish(hold);
            return leaving;
        }
        hold.leave();
        if (hold.watched()) leaving.lease = core_.watchdog_timeout();
        return leaving;
    }

    std::error_code release_level(std::unique_lock<std::mutex>& lock, HoldRecord& held) {
        const OwnerNumber owner = held.owner;
        const Leaving leaving = leave_level(held);
        Instant sent{};
        bool unknown = false;
        lock.unlock();
        Retry retry = core_.session.retry(foreground_deadline());
        Reply reply;
        do {
            sent = Clock::now();
            unknown = retry.is_resend();
            reply = call_level(leaving, retry.deadline());
        } while (retry.again(reply));
        lock.lock();
        if (HoldRecord* hold = leases_.live_hold(owner); hold && hold->id == leaving.hold)
            hold->doubtful |= unknown || !reply.answered();
        return level_released(reply, owner, leaving, sent);
    }

    // Sends the last level back to the server. Calls `released(answer, resent)` with the mutex.
    template <class Released>
    std::error_code release_last(std::unique_lock<std::mutex>& lock, HoldRecord& held, Released released) {
        return send_last(lock, leave_level(held), released);
    }

    // Does the same for a hold that is no longer recorded here.
    template <class Released>
    std::error_code send_last(std::unique_lock<std::mutex>& lock, const Leaving& leaving, Released released) {
        bool resent = false;
        Reply reply;
        try {
            const InFlightGuard in_flight_guard(core_, lock);
            lock.unlock();
            Retry retry = core_.session.retry(foreground_deadline());
            do {
                resent = retry.is_resend();
                reply = call_release(leaving.hold, resent, retry.deadline());
            } while (retry.again(reply));
        } catch (...) {  // no memory: handled as if nothing had been sent
            reply = Reply::of(Reply::Kind::not_sent, std::string());
        }
        return last_released(lock, reply, leaving, resent,
                             [&](const ReleaseAnswer& answer) { released(answer, resent); });
    }

    // --- for locks over several servers -----------------------------------------------------------------------

    // Releases one level without waiting. Calls `done` with the outcome on any thread.
    void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done, Receiver receiver) {
        std::unique_lock lock(core_.mutex);
        HoldRecord* hold = hold_to_release(lock, owner);
        if (!hold) {
            lock.unlock();
            // Removes one lost level, if there is one.
            core_.session.lost_levels().take(core_.kind.name, core_.key(), owner);
            return done(errc::hold_lost);
        }
        const Leaving leaving = leave_level(*hold);
        ++core_.in_flight;
        try {
            lock.unlock();
            Completion answered = [this, keep = core_.keep(), owner, leaving, sent = Clock::now(),
                                   done](const Reply& reply) {
                std::unique_lock relock(core_.mutex);
                core_.end_in_flight();
                const std::error_code outcome =
                    leaving.remaining > 0 ? level_released(reply, owner, leaving, sent)
                                          : last_released(relock, reply, leaving, false,
                                                          [&](const ReleaseAnswer&) { core_.task.may_be_free(); });
                relock.unlock();
                done(outcome);
            };
            core_.session.post(core_.protocol.release(leaving.hold, leaving.remaining, leaving.lease),
                               std::move(answered), receiver);
        } catch (...) {
            // Nothing was sent yet. The background sends the last release.
            lock.lock();
            core_.end_in_flight();
            if (leaving.remaining == 0) deliveries_.give_back_later(leaving, Clock::now());
            core_.schedule();
            throw;
        }
    }

    // --- force_unlock() ---------------------------------------------------------------------------------------

    // Ends the hold of any owner. Returns true if there was one. Sends two commands: the second names the owners that
    // the first has read, so a late copy of it ends no other hold. Each command is resent until `limit`, but for at
    // most unreachable_timeout.
    bool force_release(Instant limit) {
        // The command can only end holds that existed before it was sent.
        std::vector<std::uint64_t> ended;
        {
            const std::lock_guard lock(core_.mutex);
            for (const HoldRecord& hold : core_.holds)
                if (hold.live()) ended.push_back(hold.id);
        }
        const Reply seen = query(core_.session, core_.key(), core_.protocol.holders(), limit);
        const std::vector<std::string_view> owners = owners_in(seen);
        if (!owners.empty()) {
            const Reply reply = query(core_.session, core_.key(), core_.protocol.give_up(owners), limit);
            if (!reply.is_integer()) throw unexpected(reply, core_.key());
        }
        const std::lock_guard lock(core_.mutex);
        for (HoldRecord& hold : core_.holds)
            if (hold.live() && std::find(ended.begin(), ended.end(), hold.id) != ended.end())
                leases_.lose(hold, "force_unlock() ended it");
        core_.holds.erase_lost();
        return !owners.empty();
    }

private:
    // Returns who holds the key, according to the server.
    std::vector<std::string_view> owners_in(const Reply& reply) const {
        if (reply.is_nil()) return {};
        if (reply.kind == Reply::Kind::text) return {reply.text};
        if (reply.kind != Reply::Kind::array) throw unexpected(reply, core_.key());
        std::vector<std::string_view> owners;
        for (const Reply& owner : reply.elements) {
            if (owner.kind != Reply::Kind::text) throw unexpected(reply, core_.key());
            if (owner.text == "mode")
                throw Error(errc::wrong_type, core_.key(), "a read-write lock uses this key; choose another name");
            owners.push_back(owner.text);
        }
        return owners;
    }

    std::error_code level_released(const Reply& reply, OwnerNumber owner, const Leaving& leaving, Instant sent) {
        // A missing reply is harmless: the next command of this hold carries its absolute count.
        if (classify(reply) != ReplyClass::answered) return error_of(reply, core_.key()).code();
        HoldRecord* hold = core_.holds.find(owner);
        if (!hold || hold->id != leaving.hold || !hold->live()) return errc::hold_lost;
        const ReleaseAnswer answer = core_.protocol.read_release(reply);
        if (answer.kind == ReleaseAnswer::Kind::senseless) return errc::protocol_error;
        if (answer.kind != ReleaseAnswer::Kind::still_held) {
            leases_.lose_now(*hold, "the server no longer has this hold");
            return errc::hold_lost;
        }
        if (leaving.lease > Milliseconds(0))
            hold->valid_until = std::max(hold->valid_until, redlatch::valid_until(sent, leaving.lease));
        core_.schedule();
        return {};
    }

    // Sends the last release. `again`: True if an earlier sending may have taken effect.
    Reply call_release(std::uint64_t hold, bool again, Instant deadline) try {
        const LockProtocol& protocol = core_.protocol;
        if (again) return core_.session.call(protocol.release(hold, 0, Milliseconds(0)), deadline);
        Call call = protocol.first_release(hold);
        Reply reply = core_.session.call(call, deadline);
        while (std::optional<Call> following = protocol.after_release(hold, call, reply)) {
            call = *std::move(following);
            reply = core_.session.call(call, deadline);
        }
        return reply;
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    // Sends the release of a level that is not the last.
    Reply call_level(const Leaving& leaving, Instant deadline) try {
        return core_.session.call(core_.protocol.release(leaving.hold, leaving.remaining, leaving.lease), deadline);
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    template <class Released>
    std::error_code last_released(std::unique_lock<std::mutex>& lock, const Reply& reply, const Leaving& leaving,
                                  bool resent, Released released) {
        const ReleaseAnswer answer = core_.protocol.read_release(reply);
        if (classify(reply) != ReplyClass::answered || answer.kind == ReleaseAnswer::Kind::senseless)
            return not_delivered(lock, reply, leaving);
        released(answer);
        // A copy of the unanswered acquire command may still arrive.
        if (leaving.unsettled != 0)
            deliveries_.give_back_later(leaving, deliveries_.unsettled_until(leaving.unsettled));
        // A release that was resent and finds nothing was delivered the first time.
        if (answer.kind == ReleaseAnswer::Kind::not_held && !resent) {
            // The server's clock may have jumped.
            core_.session.server_clock().doubt();
            core_.report_loss("the server no longer had this hold at its release");
            return errc::hold_lost;
        }
        return {};
    }

    // Handles a last release that was not confirmed. A final refusal (the key is of another type by now) is a loss; any
    // other release is resent in the background.
    std::error_code not_delivered(std::unique_lock<std::mutex>& lock, const Reply& reply, const Leaving& leaving) {
        if (is_final(reply))
            core_.report_loss(in_quotes(reply.text, 160));
        else
            deliveries_.give_back_later(leaving, Clock::now());
        core_.task.may_be_free();
        core_.schedule();
        deliveries_.deliver(lock);
        return classify(reply) == ReplyClass::answered ? make_error_code(errc::protocol_error)
                                                       : error_of(reply, core_.key()).code();
    }

    LockCore& core_;
    Deliveries& deliveries_;
    Leases& leases_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/lock_parts.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The parts of one lock that send commands and keep its holds. A queue adds the waiting.
struct LockParts {
    LockParts(LockTask& state, Session& session, std::unique_ptr<LockProtocol> protocol)
        : core(state, session, std::move(protocol)) {}

    LockCore core;
    Deliveries deliveries{core};
    Leases leases{core, deliveries};
    Releases releases{core, deliveries, leases};
    Acquires acquires{core, deliveries, leases};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/background_tries.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Tries to acquire a lock without a thread that waits for the reply, for locks over several servers: completions drive
// the attempt.
class BackgroundTries {
public:
    // Takes an answer on any thread. Returns true if the lock is still wanted. Otherwise a hold is released, and a
    // command that came too late is not sent again.
    using Tell = std::function<bool(const TryAnswer&)>;

    explicit BackgroundTries(LockParts& parts) : parts_(parts), core_(parts.core) {}

    // Tries once to acquire the lock, or one more level of it.
    void begin(OwnerNumber owner, std::optional<Milliseconds> lease, Tell tell, Receiver receiver) {
        std::unique_lock lock(core_.mutex);
        if (is_trying(owner)) {
            lock.unlock();
            tell({TryAnswer::Kind::failed});  // an earlier try of this thread has no reply yet
            return;
        }
        if (auto refusal = refusal_for(owner)) {
            lock.unlock();
            tell({TryAnswer::Kind::failed, 0, std::move(refusal)});
            return;
        }
        const HoldRecord* hold = parts_.leases.live_hold(owner);
        Claim claim = hold ? core_.claim_of(owner, hold->id, hold->count + 1, lease)
                           : core_.claim_of(owner, core_.next_number(), 1, lease);
        claim.first = false;  // the plain command of a Mutex would cost a second round trip if it is refused
        trying_.push_back(owner);
        ++core_.in_flight;
        const std::uint64_t reentered = hold ? hold->id : 0;
        lock.unlock();
        try {
            core_.session.start_losses();
            ask_time(std::make_shared<Try>(*this, claim, lease, reentered, std::move(tell)), receiver);
        } catch (...) {
            // Nothing was sent.
            lock.lock();
            end(owner);
            throw;
        }
    }

private:
    // A try in flight. It keeps the lock's state alive.
    struct Try {
        Try(BackgroundTries& tries, const Claim& claim, const std::optional<Milliseconds>& wanted, std::uint64_t hold,
            Tell&& to)
            : keep(tries.core_.keep()),
              attempt(tries.core_, claim),
              lease(wanted),
              reentered(hold),
              tell(std::move(to)) {}

        const std::shared_ptr<BackgroundTask> keep;
        AcquireAttempt attempt;
        const std::optional<Milliseconds> lease;
        const std::uint64_t reentered;  // the hold that gets one more level; 0 for a first hold
        const Tell tell;
    };
    using TryPtr = std::shared_ptr<Try>;

    bool is_trying(OwnerNumber owner) const {
        return std::find(trying_.begin(), trying_.end(), owner) != trying_.end();
    }

    std::optional<Error> refusal_for(OwnerNumber owner) {
        HoldRecord* const hold = parts_.leases.live_hold(owner);
        if (!hold) return parts_.leases.mixed_kinds();
        if (parts_.acquires.refuses_reentry(*hold)) return parts_.acquires.not_reentrant();
        return std::nullopt;
    }

    void end(OwnerNumber owner) {
        if (const auto mine = std::find(trying_.begin(), trying_.end(), owner); mine != trying_.end())
            trying_.erase(mine);
        core_.end_in_flight();
    }

    // --- driving the attempt ----------------------------------------------------------------------------------

    void ask_time(TryPtr one, Receiver receiver) {
        one->attempt.asks_time();
        core_.session.with_server_time(core_.key(), receiver,
                                       [this, one = std::move(one)](const std::optional<ServerMilliseconds>& now,
                                                                    Reply failure, Receiver answers_to) {
                                           if (now) {
                                               one->attempt.begin(*now);
                                               send(one, answers_to);
                                           } else {
                                               one->attempt.asked.reply = std::move(failure);
                                               finish(*one);
                                           }
                                       });
    }

    void send(const TryPtr& one, Receiver receiver) noexcept {
        try {
            core_.session.post(
                one->attempt.call(), [this, one](Reply reply) { go_on(one, one->attempt.replied(std::move(reply))); },
                receiver);
        } catch (...) {
            not_sent(*one);
        }
    }

    void go_on(const TryPtr& one, AcquireAttempt::Next next) noexcept {
        if (next == AcquireAttempt::Next::call) return send(one, Receiver::background);
        if (next == AcquireAttempt::Next::done) return finish(*one);
        try {
            if (!one->tell({TryAnswer::Kind::late})) return finish(*one);
            ask_time(one, Receiver::background);
        } catch (...) {
            not_sent(*one);
        }
    }

    void not_sent(Try& one) {
        one.attempt.asked.reply = Reply::of(Reply::Kind::not_sent, std::string());
        finish(one);
    }

    // --- the outcome ------------------------------------------------------------------------------------------

    void finish(const Try& one) {
        const OwnerNumber owner = one.attempt.claim.owner;
        std::unique_lock lock(core_.mutex);
        TryAnswer answer{TryAnswer::Kind::failed};
        bool wanted = false;
        try {
            answer = answer_of(lock, one);
            lock.unlock();
            wanted = one.tell(answer);
        } catch (...) {  // no memory: `tell` has not accepted the hold
        }
        if (!lock.owns_lock()) lock.lock();
        end(owner);
        lock.unlock();
        if (answer.kind == TryAnswer::Kind::held && !wanted)
            parts_.releases.release_in_background(
                owner, [](std::error_code) {}, Receiver::background);
    }

    TryAnswer answer_of(std::unique_lock<std::mutex>& lock, const Try& one) {
        using Kind = TryAnswer::Kind;
        Acquires& acquires = parts_.acquires;
        const Asked& asked = one.attempt.asked;
        const OwnerNumber owner = one.attempt.claim.owner;
        try {
            if (classify(asked.reply) != ReplyClass::answered) {
                if (asked.unsettled != 0 && one.reentered == 0) acquires.undo(lock, asked, core_.lease_of(one.lease));
                return {Kind::failed, 0, error_of(asked.reply, core_.key()), asked.reply.is_error()};
            }
            const bool held =
                one.reentered == 0
                    ? acquires.apply_acquire_reply(lock, owner, one.lease, asked).kind == AcquireAnswer::Kind::held
                    : acquires.apply_reentry_reply(lock, owner, one.reentered, one.lease, asked);
            if (!held) return {Kind::refused};
            return {Kind::held, core_.holds.find(owner)->id};
        } catch (const Error& error) {
            return {Kind::failed, 0, error};
        }
    }

    LockParts& parts_;
    LockCore& core_;
    std::vector<OwnerNumber> trying_;  // owners of the tries in flight
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/lock_queue.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One thread that waits for a lock.
struct LockWaiter : Waiter {
    OwnerNumber owner = 0;
    std::optional<Milliseconds> lease{};
    std::optional<Backoff> pause{};  // set if it retries after pauses and receives no messages
    Instant ask_again = never;       // the end of this pause, whatever other threads learn meanwhile
};

// The queue of the threads of this process that wait for one lock.
class LockQueue : public WaitQueue<LockWaiter> {
public:
    // The pause before the representative retries if the reply named no time: the holder has no TTL.
    static constexpr Milliseconds slow_poll{5000};
    // The longest pause before a retry, whatever the reply named: the server's clock may have been wrong.
    static constexpr Milliseconds longest_sleep{30'000};

    // Returns the waiter that receives a handed-off hold: the first that is not querying the server already.
    LockWaiter* successor() const {
        return first_that([](const LockWaiter& w) { return w.phase != Waiter::Phase::asking; });
    }

    // Records the reply to a query made at `generation`: blocked by a holder with `holder_lease` left.
    void blocked(std::uint64_t generation, Milliseconds holder_lease, Instant now) {
        if (holder_lease < Milliseconds::zero()) holder_lease = slow_poll;
        // Add one: the key is gone only in the millisecond after its last.
        asked(generation, now + std::min(holder_lease, longest_sleep) + Milliseconds(1));
    }

    // Records that a thread of this process holds the lock from now on. Older notifications no longer matter.
    void acquired_locally() { asked(generation(), never); }

    // Records that a thread of this process released the lock, and that the message to the others will arrive here,
    // too: all get the same chance. If the message does not arrive, the representative queries anyway after slow_poll.
    void expect_message(Instant now) { set_ask_again(now + slow_poll); }

    // Returns the next step of the representative. `held_until` is the time until which a thread of this process holds
    // the lock, in the past if none does. `retry_at` is the time at which the representative retries by itself.
    QueueStep step(Instant now, Instant held_until, Instant retry_at = never) const {
        if (is_notified()) return {true, now};
        // The unlock() or the loss of that hold will notify.
        if (held_until > now) return {false, held_until};
        if (now >= ask_again() || ask_again() == never || now >= retry_at) return {true, now};
        return {false, std::min(ask_again(), retry_at)};
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/turn_queue.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// How the threads of this process wait for one lock, and who is next: LocalQueue or ServerQueue. `lock` holds the mutex
// of the lock. All members but acquire() are called with it.
class TurnQueue {
public:
    virtual ~TurnQueue() = default;

    virtual bool is_waited_for() const = 0;

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    virtual bool acquire(const LockRequest& request) = 0;

    // Releases the last level of a hold.
    virtual std::error_code release_hold(std::unique_lock<std::mutex>& lock, HoldRecord& hold) = 0;

    virtual void on_timer(std::unique_lock<std::mutex>& lock, Instant now) = 0;

    // The lock may be free for a thread of this process, for a reason that the server does not publish.
    virtual void may_be_free() = 0;

    // The events of a channel.
    virtual void subscribed(const std::string& channel) = 0;
    virtual void subscription_refused(const std::string& channel, const Reply& why) = 0;
    virtual void message(const std::string& channel, std::string_view payload) = 0;
    virtual void disconnected(const std::string& channel) = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/local_queue.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Lets the waiting threads of this process share one representative. The representative asks the server and listens to
// the channel. The other waiters queue up behind it and send nothing. A released hold is handed to a local waiter if
// there is one.
//
// The mutex of the lock guards all members. Besides the events of the waiting room, the thread that hands its hold over
// wakes its successor.
class LocalQueue final : public TurnQueue {
    using Room = WaitingRoom<LockQueue>;

public:
    explicit LocalQueue(LockParts& parts)
        : parts_(parts), core_(parts.core), room_(core_.session, core_.task, core_.protocol.channel()) {}

    bool is_waited_for() const override { return !room_.queue.empty() || core_.releasing; }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(const LockRequest& request) override {
        std::unique_lock lock(core_.mutex);
        if (room_.queue.empty()) core_.patience.answered();
        if (const std::optional<bool> reentered = parts_.acquires.reenter(lock, request)) return *reentered;
        if (request.one_try || (room_.queue.empty() && !is_busy())) {
            if (ask(lock, request, true)) return true;
            if (request.one_try) return false;
        }
        LockWaiter me;
        me.owner = request.owner;
        me.lease = request.lease;
        me.listens = !request.polling;
        if (request.polling) me.pause.emplace(request.polling->first, request.polling->longest);
        lock.unlock();
        core_.session.count_wait();
        return room_.wait(core_.mutex, *this, me, request);
    }

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    void joined(LockWaiter& me) {
        if (me.listens) room_.listen();
        pause(me);
    }

    NextStep next(LockWaiter& me, Instant now) {
        if (me.is_served()) {
            if (parts_.leases.live_hold(me.owner)) return {NextStep::Kind::served};
            stand_again(me);  // handed over, and lost before this thread woke up
        }
        if (me.error) std::rethrow_exception(me.error);
        if (!room_.queue.is_front(me) || core_.releasing) return {NextStep::Kind::sleep};
        const QueueStep step = room_.queue.step(now, held_locally_until(), me.ask_again);
        if (step.ask) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, step.sleep_until, room_.is_subscribed()};
    }

    void ask(std::unique_lock<std::mutex>& lock, LockWaiter& me, const LockRequest& request) {
        if (ask(lock, request, false))
            me.phase = Waiter::Phase::served;
        else
            pause(me);
    }

    void left(std::unique_lock<std::mutex>& lock, LockWaiter& me) {
        if (successor_ == &me) successor_ = nullptr;
        if (!room_.queue.empty()) return;
        core_.patience.answered();
        parts_.deliveries.cancel_announcement(lock);
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // Releases the last level of a hold: to the server, or by a hand-over.
    std::error_code release_hold(std::unique_lock<std::mutex>& lock, HoldRecord& hold) override {
        if (core_.kind.hands_over)
            if (LockWaiter* successor = room_.queue.successor();
                successor && handoffs_ < core_.session.options().local_handoff_limit)
                return hand_over(lock, hold, *successor);
        handoffs_ = 0;
        const std::uint64_t messages = messages_;
        return parts_.releases.release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            // A message that came before this reply may already have been that of this release.
            if (answer.kind == ReleaseAnswer::Kind::released && answer.listeners > 0 && !resent &&
                room_.is_subscribed() && room_.queue.empty() && messages == messages_) {
                ++own_messages_;
                // A thread that asked before the release, and is not in the queue yet, does not get the message.
                room_.queue.notify();
            }
            // Who waits here for a shared lock does not wait for this hold.
            if (!core_.kind.shared) released_here(answer.listeners > 1);
        });
    }

    // --- events -----------------------------------------------------------------------------------------------

    void may_be_free() override { room_.notify(); }

    void on_timer(std::unique_lock<std::mutex>&, Instant) override {}

    void subscribed(const std::string&) override {
        expect_anything();
        room_.subscribed();
    }

    void subscription_refused(const std::string&, const Reply& why) override {
        room_.refused(error_of(why, core_.key()));
    }

    // Any message may mean that the lock is free. Skips the message of our own release: the local waiters have already
    // retried. Messages keep the server's order. If this one is of another process's release, that came before ours,
    // and the message of ours is still to come.
    void message(const std::string&, std::string_view) override {
        ++messages_;
        if (own_messages_ > 0)
            --own_messages_;
        else
            room_.notify();
    }

    void disconnected(const std::string&) override {
        room_.disconnected();
        expect_anything();
    }

private:
    // Returns true if a thread of this process holds the lock or is releasing it. Then no thread has to ask the server.
    bool is_busy() const { return core_.releasing || held_locally_until() > Clock::now(); }

    // Returns until when a thread of this process excludes the others; a time in the past if none does.
    Instant held_locally_until() const { return core_.kind.shared ? Instant{} : core_.holds.held_until(); }

    // Stops waiting for messages of our own releases: one that has not come by now may never come.
    void expect_anything() {
        ++messages_;
        own_messages_ = 0;
    }

    // If others listen, the message notifies them and this process alike, so all have the same chance. Without other
    // listeners, or without a subscription, wakes the next local waiter at once.
    void released_here(bool others_listen) {
        if (!room_.is_subscribed() || !others_listen) {
            room_.notify();
        } else if (!room_.queue.empty()) {
            // The message may have come before this reply: the waiter checks again.
            room_.queue.expect_message(Clock::now());
            room_.wake_front();
        }
    }

    // Sends the acquire command for a first hold. Returns true if held; otherwise the queue knows for how long it is
    // blocked. `first`: True before any waiting.
    bool ask(std::unique_lock<std::mutex>& lock, const LockRequest& request, bool first) {
        const std::uint64_t generation = room_.queue.generation();
        const std::optional<AcquireAnswer> answer = parts_.acquires.ask(lock, request, core_.next_number(), first);
        if (!answer) return false;
        if (answer->kind == AcquireAnswer::Kind::held)
            acquired_locally();
        else
            room_.queue.blocked(generation, answer->holder_lease, Clock::now());
        return answer->kind == AcquireAnswer::Kind::held;
    }

    void acquired_locally() {
        if (core_.kind.shared)
            room_.notify();  // other waiters may share the lock now
        else
            room_.queue.acquired_locally();
    }

    static void pause(LockWaiter& me) {
        if (me.pause) me.ask_again = Clock::now() + me.pause->next();
    }

    void stand_again(LockWaiter& me) {
        core_.session.lost_levels().take(core_.kind.name, core_.key(), me.owner);
        me.phase = Waiter::Phase::waiting;
        room_.queue.join_first(me);
    }

    // --- handing over -----------------------------------------------------------------------------------------

    // A hand-over that was sent, and its reply.
    struct HandOver {
        Leaving leaving;  // the hold that is released
        Claim claim;      // the hold of the successor
        Reply reply{};
        SendTime sent_at{};  // of the first sending that may have taken effect
        bool unknown = false;
    };

    std::error_code hand_over(std::unique_lock<std::mutex>& lock, HoldRecord& held, LockWaiter& next) {
        const std::optional<Milliseconds> successor_lease = next.lease;
        HandOver sent{parts_.releases.leave_level(held),
                      core_.claim_of(next.owner, core_.next_number(), 1, successor_lease)};
        room_.queue.leave(next);
        successor_ = &next;
        send_hand_over(lock, sent);
        LockWaiter* waiting = std::exchange(successor_, nullptr);  // null if it has left meanwhile
        const Instant sent_at = sent.sent_at.as_of_now();
        const HandOverAnswer answer = core_.protocol.read_hand_over(sent.reply);
        const bool answered =
            classify(sent.reply) == ReplyClass::answered && answer.kind != HandOverAnswer::Kind::senseless;
        const bool handed = answered && answer.kind == HandOverAnswer::Kind::handed;
        if (handed && sent.reply.replicated && waiting &&
            Clock::now() < redlatch::valid_until(sent_at, sent.claim.lease) &&
            recorded(sent.claim, sent_at, successor_lease, answer.token)) {
            // A copy of the unanswered acquire command may still arrive.
            if (sent.leaving.unsettled != 0)
                parts_.deliveries.give_back_later(sent.leaving,
                                                  parts_.deliveries.unsettled_until(sent.leaving.unsettled));
            ++handoffs_;
            core_.session.count_handoff();
            room_.queue.acquired_locally();
            waiting->phase = Waiter::Phase::served;
            room_.wake(*waiting);
            return {};
        }
        if (waiting) room_.queue.join_first(*waiting);
        return not_handed_over(lock, sent, answered, handed);
    }

    void send_hand_over(std::unique_lock<std::mutex>& lock, HandOver& hand_over) {
        try {
            const InFlightGuard in_flight_guard(core_, lock);
            lock.unlock();
            Retry retry = core_.session.retry(parts_.releases.foreground_deadline());
            do hand_over.reply = hand_over_once(hand_over, retry.deadline());
            while (retry.again(hand_over.reply));
        } catch (...) {  // no memory: handled as if nothing had been sent
            hand_over.reply = Reply::of(Reply::Kind::not_sent, std::string());
        }
    }

    Reply hand_over_once(HandOver& hand_over, Instant deadline) try {
        Session& session = core_.session;
        for (int tries = 1;; ++tries) {
            Reply failure;
            const auto now = session.server_time(core_.key(), deadline, failure);
            if (!now) return failure;
            hand_over.claim.until = *now + session.options().command_timeout.count();
            // The successor's lease counts from the first sending that may have taken effect: a resend does not prolong
            // it.
            if (!hand_over.unknown) hand_over.sent_at = SendTime();
            const Instant sent = Clock::now();
            Reply reply = session.call(core_.protocol.hand_over(hand_over.leaving.hold, hand_over.claim), deadline);
            if (!reply.answered() && !reply.is_unsent()) hand_over.unknown = true;
            if (!session.learn_if_late(core_.key(), sent, reply) || tries == 3 || Clock::now() >= deadline)
                return reply;
        }
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    std::error_code not_handed_over(std::unique_lock<std::mutex>& lock, const HandOver& sent, bool answered,
                                    bool handed) {
        const bool refused = classify(sent.reply) == ReplyClass::refused && sent.reply.is_error();
        // The server refused the script for good, perhaps for a reason of this script alone, such as a missing access
        // right. Releases the hold by the usual script instead.
        if (refused && !sent.unknown) return release_instead(lock, sent.leaving);
        // Without a proper reply either number may hold the lock: release both. If it was handed over without success,
        // release the successor's number: the successor left, its lease is over, too few replicas confirmed the
        // hand-over, or there was no memory to record it.
        const Instant now = Clock::now();
        const Instant over = now + sent.claim.lease;
        if (handed) core_.outbox.add({sent.claim.hold}, 0, over, now);
        if (!answered)
            core_.outbox.add({sent.leaving.hold, sent.claim.hold}, sent.leaving.unsettled,
                             std::max(over, sent.leaving.until), now);
        room_.notify();
        core_.schedule();
        parts_.deliveries.deliver(lock);
        if (handed) return {};
        if (!answered)
            return classify(sent.reply) == ReplyClass::answered ? make_error_code(errc::protocol_error)
                                                                : error_of(sent.reply, core_.key()).code();
        core_.report_loss("the server no longer had this hold at its release");
        return errc::hold_lost;
    }

    std::error_code release_instead(std::unique_lock<std::mutex>& lock, const Leaving& leaving) {
        const auto outcome = parts_.releases.send_last(
            lock, leaving, [&](const ReleaseAnswer& answer, bool) { released_here(answer.listeners > 1); });
        core_.schedule();
        parts_.deliveries.deliver(lock);
        return outcome;
    }

    // Records the successor's hold. Returns false if there is no memory for it.
    bool recorded(const Claim& successor, Instant sent, const std::optional<Milliseconds>& lease, std::int64_t token) {
        try {
            parts_.leases.record(successor.owner, successor.hold, sent, lease, token);
            return true;
        } catch (...) {
            parts_.leases.forget(successor.owner);
            return false;
        }
    }

    LockParts& parts_;
    LockCore& core_;
    Room room_;
    unsigned handoffs_ = 0;            // in a row, within this process
    LockWaiter* successor_ = nullptr;  // the waiter to which a hold is being handed, as long as it waits
    std::uint64_t messages_ = 0;       // number of messages received
    unsigned own_messages_ = 0;        // messages of our own releases that are still to come; they wake no waiter
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/lock_state.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One lock in this process: all objects of its name share it. It is made of parts: the holds and the commands
// (LockParts), and a queue in which threads wait. It passes calls and events on to them.
//
// The mutex of LockCore guards all parts.
class LockState final : public LockTask, public HoldKeeper {
public:
    // Makes the state of one kind of lock.
    template <class Protocol, class Queue = LocalQueue>
    static std::shared_ptr<NamedState> make(Session& session, const std::string& key) {
        return std::make_shared<LockState>(
            session, std::make_unique<Protocol>(session.protocol_context(), key),
            [](LockParts& parts) -> std::unique_ptr<TurnQueue> { return std::make_unique<Queue>(parts); });
    }

    LockState(Session& session, std::unique_ptr<LockProtocol> protocol,
              std::unique_ptr<TurnQueue> (*make_queue)(LockParts&))
        : parts_(*this, session, std::move(protocol)), queue_(make_queue(parts_)) {}

    ~LockState() override {
        session().timers().forget(*this);
        session().losses().timers().forget(*this);
    }

    std::string_view kind() const noexcept override { return core_.kind.name; }
    const std::string& key() const noexcept override { return core_.key(); }
    Session& session() const noexcept override { return core_.session; }
    LockProtocol& protocol() noexcept { return core_.protocol; }

    bool is_idle() override {
        const std::lock_guard lock(core_.mutex);
        return !core_.holds.any_live() && core_.outbox.empty() && core_.in_flight == 0 && !queue_->is_waited_for();
    }

    // --- acquiring and releasing ------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(const LockRequest& request) override {
        return !request.stop.stop_requested() && queue_->acquire(request);
    }

    // Releases one level. Returns no error on success, hold_lost if the hold had already ended, unreachable if the
    // release could not be delivered yet (the background resends it). Throws Error(errc::not_owner).
    std::error_code release(OwnerNumber owner) override try {
        std::unique_lock lock(core_.mutex);
        HoldRecord* hold = parts_.releases.hold_to_release(lock, owner);
        if (!hold) return parts_.releases.gone_before(owner);
        return hold->count > 1 ? parts_.releases.release_level(lock, *hold) : queue_->release_hold(lock, *hold);
    } catch (const std::bad_alloc&) {
        // A hold whose release could not be sent ends with its lease.
        return make_error_code(std::errc::not_enough_memory);
    }

    bool force_release(Instant limit = never) { return parts_.releases.force_release(limit); }

    // For locks over several servers: see BackgroundTries::begin() and Releases::release_in_background().
    void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                           std::function<bool(const TryAnswer&)> tell, Receiver receiver) {
        tries_.begin(owner, lease, std::move(tell), receiver);
    }
    void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done, Receiver receiver) {
        parts_.releases.release_in_background(owner, done, receiver);
    }

    // --- for objects that hold the lock: HoldKeeper -----------------------------------------------------------

    bool is_of_this_process() const noexcept override { return session().is_of_this_process(); }

    std::string name_as_given() const override { return key().substr(session().options().key_prefix.size()); }

    Facts facts(OwnerNumber owner) override {
        const std::lock_guard lock(core_.mutex);
        return {parts_.leases.part(owner).hold, parts_.leases.token(owner).value_or(0)};
    }

    void release_later(OwnerNumber owner) noexcept override try {
        parts_.releases.release_in_background(
            owner, [](std::error_code) {}, Receiver::background);
    } catch (...) {
    }

    // --- queries without a command: see Leases ----------------------------------------------------------------

    Instant valid_until(OwnerNumber owner) override {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.valid_until(owner);
    }
    std::optional<std::int64_t> token(OwnerNumber owner) {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.token(owner);
    }
    HeldPart part(OwnerNumber owner) {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.part(owner);
    }
    std::stop_token lost(OwnerNumber owner) override {
        const std::lock_guard lock(core_.mutex);
        return parts_.leases.lost(owner);
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant horizon, std::vector<Renewal>& due) override {
        std::unique_lock lock(core_.mutex);
        queue_->on_timer(lock, now);
        parts_.leases.add_due(horizon, due);
        parts_.deliveries.drop_expired(now);
        core_.schedule();
        parts_.deliveries.deliver(lock);
        lock.unlock();
        session().forget_if_unused(*this);
    }

    void expire(Instant now) override {
        const std::lock_guard lock(core_.mutex);
        parts_.leases.expire(now);
    }

    void abandon() noexcept override {
        const std::lock_guard lock(core_.mutex);
        parts_.leases.abandon();
    }

    void on_failover() override {
        const std::lock_guard lock(core_.mutex);
        parts_.leases.doubt_all();
    }

    void renewed(const Renewal& renewal, Renewed outcome, Instant sent) override {
        std::unique_lock lock(core_.mutex);
        parts_.leases.renewed(lock, renewal, outcome, sent);
    }

    void may_be_free() override { queue_->may_be_free(); }

    void subscribed(const std::string& channel) override {
        const std::lock_guard lock(core_.mutex);
        queue_->subscribed(channel);
    }

    void subscription_refused(const std::string& channel, const Reply& why) override {
        const std::lock_guard lock(core_.mutex);
        queue_->subscription_refused(channel, why);
    }

    void message(const std::string& channel, std::string_view payload) override {
        const std::lock_guard lock(core_.mutex);
        queue_->message(channel, payload);
    }

    void disconnected(const std::string& channel) override {
        const std::lock_guard lock(core_.mutex);
        queue_->disconnected(channel);
    }

private:
    LockParts parts_;
    LockCore& core_ = parts_.core;
    BackgroundTries tries_{parts_};
    const std::unique_ptr<TurnQueue> queue_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/named_lock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE LockState& NamedLock::state() { return static_cast<LockState&>(handle_.state()); }

REDLATCH_INLINE bool NamedLock::acquire(const LockRequest& request) { return state().acquire(request); }

REDLATCH_INLINE std::error_code NamedLock::release(OwnerNumber owner) { return state().release(owner); }

REDLATCH_INLINE HeldLevel NamedLock::keeper_of_holds() {
    LockState& s = state();
    return {handle_.session_handle(), std::shared_ptr<HoldKeeper>(s.shared_from_this(), &s)};
}

REDLATCH_INLINE bool NamedLock::force_release(Instant limit) { return state().force_release(limit); }

REDLATCH_INLINE Instant NamedLock::valid_until_of(OwnerNumber owner) { return state().valid_until(owner); }

REDLATCH_INLINE std::stop_token NamedLock::lost_of(OwnerNumber owner) { return state().lost(owner); }

REDLATCH_INLINE bool NamedLock::ask_locked(Instant limit) {
    LockState& s = state();
    return read_is_locked(query(s.session(), s.key(), s.protocol().is_locked(), limit), s.key());
}

REDLATCH_INLINE int NamedLock::ask_hold_count(OwnerNumber owner, Instant limit) {
    LockState& s = state();
    return read_count(query(s.session(), s.key(), s.protocol().hold_count(s.part(owner).hold), limit), s.key());
}

REDLATCH_INLINE std::optional<Milliseconds> NamedLock::ask_remaining_lease(Instant limit) {
    LockState& s = state();
    return read_lease(query(s.session(), s.key(), s.protocol().remaining_lease(), limit), s.key());
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/fair_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a reentrant distributed lock that serves its waiters strictly in order of arrival, across threads,
// processes, hosts and languages. It is the counterpart of Redisson's fair lock and shares the queue with one of the
// same name.
//
// The order is the one in which the first attempts of waiting calls reached the server. try_lock() does not queue up
// and never passes a waiter. A waiter that dies, freezes or cannot reach the server loses its place after a few seconds
// (a sixth of ClientOptions::watchdog_timeout, at most 5 s). If it comes back, it queues up at the end. Each waiting
// thread subscribes to a channel of its own. Each process with waiters sends one command every third of those few
// seconds. Use RLock where the order does not matter.
//
// Two objects with the same name are the same lock. An RLock with that name excludes it as well, but ignores the queue.
// In a process that holds one of the two, the other is refused with errc::wrong_type. Models Cpp17TimedLockable.
// Neither copyable nor movable. Any number of threads may use one object. Destroying the object while a thread waits in
// it is an error, as for std::mutex; destroying it while the lock is held is not.
class FairLock : public detail::NamedLock {
public:
    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    FairLock(Client& client, std::string_view name);
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/fair_lock.hpp

// The scripts of the fair lock. The lock itself is the hash of the reentrant lock. As there, everything that is sent
// twice takes effect once: a hold count is absolute, a waiter has one place. A late command names a hold or a place
// that is gone, or is past the time until which it is wanted.
//
// The queue is Redisson's: a list of the waiting owners, the next one first, and a sorted set with the time until which
// each of them counts as alive, in milliseconds of the server's clock. Beside it we keep a sorted set of our own, the
// slots. Each of our waiters refreshes its slot every few seconds, so a dead one blocks the others only briefly. For a
// waiter without a slot, one of Redisson's, the time in the shared set counts, which we never change.
//
// When a waiter of Redisson's takes the lock, it lowers the times of all others by its own patience. So our time in the
// shared set is that of the slot, plus one such patience for each waiter of Redisson's before us.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view fair_queue = R"lua(
local lock, queue, timeouts, slots = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, channel = ARGV[1], ARGV[2]
local foreign_patience = 300000
local now = time_in_ms()

local function text(number) return string.format('%.0f', number) end

-- Returns the first live waiter, for how many ms it certainly is alive, whether dead waiters before it were removed,
-- and the time until which it is alive. A waiter without a time counts as dead too. So its times are removed first:
-- whatever is refused afterwards, it stays dead.
local function first_alive()
    local purged = false
    while true do
        local head = redis.call('lindex', queue, '0')
        if not head then return nil, 0, purged, nil end
        local ends = redis.call('zscore', slots, head) or redis.call('zscore', timeouts, head) or '0'
        if tonumber(ends) > now then return head, math.ceil(ends - now), purged, ends end
        redis.call('zrem', timeouts, head)
        redis.call('zrem', slots, head)
        redis.call('lpop', queue)
        purged = true
    end
end

-- Returns how many waiters are foreign. `coming`: how many of ours have a slot but no place in the queue yet. Removes
-- the slots of our waiters that a foreign client has taken out of the queue.
local function foreign_waiters(coming)
    for _, gone in ipairs(redis.call('zrangebyscore', slots, '-inf', text(now), 'limit', '0', '100')) do
        if not redis.call('zscore', timeouts, gone) then redis.call('zrem', slots, gone) end
    end
    return math.max(redis.call('llen', queue) + coming - redis.call('zcard', slots), 0)
end

local function wake(waiter)
    if not waiter then return 0 end
    return redis.call(publish, channel .. waiter, '0')
end

-- Notifies the first waiter while the lock is held: in how many ms to ask again if no message comes before. The number
-- is larger than those that mean something to Redisson's waiters. A refusal does no harm: a waiter that is not notified
-- asks when the present holder's lease ends.
local function tell_next()
    local head = first_alive()
    local left = redis.pcall('pttl', lock)
    if head and type(left) == 'number' and left > 0 and redis.call('zscore', slots, head) then
        redis.pcall(publish, channel .. head, text(math.max(left, 2)))
    end
end

-- Adds to `changes`: an abandoned queue expires an hour after the last of its times, of which `ends` is one.
local function limit_keys(changes, ends)
    local last = redis.call('zrange', timeouts, '-1', '-1', 'withscores')[2] or now
    local ttl = text(math.max(last, ends) - now + 3600000)
    table.insert(changes, {'pexpire', queue, ttl})
    table.insert(changes, {'pexpire', timeouts, ttl})
    table.insert(changes, {'pexpire', slots, ttl})
end
)lua";

inline constexpr std::string_view fair_acquire = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owner, wanted count
-- (1 = a first hold), lease in ms, slot in ms ('0' = does not queue up), wanted until.
-- Answer: nil = held; n >= 0 = blocked, ask again after n ms without a message; -2 = the hold to re-enter is gone.
local owner, count, lease, slot, wanted_until = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if now > tonumber(wanted_until) then return late(now) end
local current = redis.call('hget', lock, owner)
if current then return enter_again(lock, owner, current, count, lease) end
local left = redis.call('pttl', lock)
if count ~= '1' then return -2 end
local free = left == -2
if not free and redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end

local head, rest, purged, alive_until = first_alive()
if free and (not head or head == owner) then
    local changes = {{'hincrby', lock, owner, '1', undo = {'del', lock}}, {'pexpire', lock, lease}}
    if head then
        table.insert(changes, {'zrem', timeouts, owner, undo = {'zadd', timeouts, alive_until, owner}})
        table.insert(changes, {'zrem', slots, owner, undo = {'zadd', slots, alive_until, owner}})
        table.insert(changes, {'lpop', queue})
    end
    local refusal = all_or_none(changes)
    if head and not refusal then tell_next() end
    return refusal
end
if not free and left == -1 then return no_lease() end
if purged then
    if free then wake(head) else tell_next() end
end

if slot ~= '0' then
    local ends = now + slot
    local queued = head and redis.call('zscore', timeouts, owner)
    local changes = {}
    if queued then
        limit_keys(changes, ends)
        table.insert(changes, {'zadd', slots, text(ends), owner})
        if tonumber(queued) < ends then table.insert(changes, {'zadd', timeouts, text(ends), owner}) end
    else
        local coming = redis.call('zscore', slots, owner) and 1 or 0
        local patient_until = ends + foreign_waiters(coming) * foreign_patience
        table.insert(changes, {'zadd', slots, text(ends), owner, undo = {'zrem', slots, owner}})
        table.insert(changes, {'zadd', timeouts, text(patient_until), owner, undo = {'zrem', timeouts, owner}})
        table.insert(changes, {'rpush', queue, owner, undo = {'lrem', queue, '-1', owner}})
        limit_keys(changes, patient_until)
    end
    local refusal = all_or_none(changes)
    if refusal then return refusal end
    if not head or head == owner then rest = 0 end
end
if free then return rest end
return left + rest
)lua";

inline constexpr std::string_view fair_release = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owner, remaining count,
-- lease in ms for a remaining hold.
-- Answer: nil = not held by the owner (any more); n >= 0 = released, n listeners of the next waiter notified;
-- -1 = still held.
local owner, count, lease = ARGV[3], ARGV[4], ARGV[5]
local current = redis.call('hget', lock, owner)
if not current then
    -- A hold that expired has woken no waiter.
    if redis.call('exists', lock) == 0 then wake(first_alive()) end
    return nil
end
if count ~= '0' then return leave_level(lock, owner, current, count, lease) end
local head = first_alive()
redis.call('del', lock)
return wake(head)
)lua";

inline constexpr std::string_view fair_leave = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owners that give up:
-- both their place and a hold of which no reply came.
-- Answer: the server's clock. A copy of a request of theirs may still take effect until it is no longer wanted.
local free = redis.call('exists', lock) == 0
for i = 3, #ARGV do
    local owner = ARGV[i]
    local patient_until, alive_until = redis.call('zscore', timeouts, owner), redis.call('zscore', slots, owner)
    local changes = {}
    if redis.call('hexists', lock, owner) == 1 then table.insert(changes, {'del', lock}) end
    table.insert(changes, {'zrem', timeouts, owner,
                           undo = patient_until and {'zadd', timeouts, patient_until, owner}})
    table.insert(changes, {'zrem', slots, owner, undo = alive_until and {'zadd', slots, alive_until, owner}})
    table.insert(changes, {'lrem', queue, '0', owner})
    local refusal = all_or_none(changes)
    if refusal then return refusal end
    free = free or changes[1][1] == 'del'
end
if free then wake(first_alive()) else tell_next() end
return now
)lua";

inline constexpr std::string_view fair_refresh = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, slot in ms, wanted
-- until, then up to 100 waiters.
-- Answer: for each of them 1 = still waiting, 0 = it has no place any more.
-- Also removes dead waiters from the head of the queue, and wakes the first waiter if the lock is free.
local slot, wanted_until = ARGV[3], ARGV[4]
if now > tonumber(wanted_until) then return late(now) end
local free, foreign_there = redis.call('exists', lock) == 0, foreign_waiters(0) > 0
-- If a later command is refused, all that was written before it is still correct. Under maxmemory Redis refuses ZADD to
-- a script that has not written before, so PEXPIRE comes first.
local limits = {}
limit_keys(limits, now + slot)
local refusal = all_or_none(limits)
if refusal then return refusal end

local foreign_before = {}
if foreign_there then
    local foreign = 0
    for _, waiter in ipairs(redis.call('lrange', queue, '0', '-1')) do
        if redis.call('zscore', slots, waiter) then
            foreign_before[waiter] = foreign
        else
            foreign = foreign + 1
        end
    end
end

local waits = {}
for i = 5, #ARGV do
    local waiter = ARGV[i]
    waits[i - 4] = 0
    if redis.call('zscore', timeouts, waiter) then
        local ends = now + slot
        redis.call('zadd', slots, text(ends), waiter)
        redis.call('zadd', timeouts, text(ends + (foreign_before[waiter] or 0) * foreign_patience), waiter)
        waits[i - 4] = 1
    else
        redis.call('zrem', slots, waiter)
    end
end
local head = first_alive()
if head and free then wake(head) end
return waits
)lua";

template <const std::string_view&... Bodies>
inline constexpr std::string_view with_fair_queue = joined<wanted_until, all_or_none, fair_queue, Bodies...>;

}  // namespace parts

inline constexpr std::string_view fair_acquire =
    parts::with_fair_queue<parts::no_lease, parts::more_levels, parts::fair_acquire>;
inline constexpr std::string_view fair_release = parts::with_fair_queue<parts::fewer_levels, parts::fair_release>;
inline constexpr std::string_view fair_leave = parts::with_fair_queue<parts::fair_leave>;
inline constexpr std::string_view fair_refresh = parts::with_fair_queue<parts::fair_refresh>;

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::fair_acquire>{scripts::fair_acquire,
    "4ec35a719aedbcef5a8347c1bc2618ea9d90f9b7"};
template <>
inline constexpr Script digested<scripts::fair_leave>{scripts::fair_leave,
    "c5b3164772414b3fd9c3aef69d8ea5f49d8ea049"};
template <>
inline constexpr Script digested<scripts::fair_refresh>{scripts::fair_refresh,
    "5780f4e9589733ce6ae7ff7f6eddec50cd4b2e90"};
template <>
inline constexpr Script digested<scripts::fair_release>{scripts::fair_release,
    "ab0a3fbaf8a4b73fbd2fd9661ec5b6d2740fede5"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/fair_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the fair lock.
class FairProtocol final : public LockProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "fair ", .family = "FairLock", .renewal = digested<scripts::rlock_renew>};

    FairProtocol(const ProtocolContext& context, const std::string& key)
        : LockProtocol(lock_kind, context, key),
          queue_(prefixed_key("redisson_lock_queue", key_)),
          timeouts_(prefixed_key("redisson_lock_timeout", key_)),
          slots_(prefixed_key("redlatch_lock_slots", key_)),
          channels_(prefixed_key("redisson_lock__channel", key_) + ":"),
          slot_(std::clamp(context.options.watchdog_timeout / 6, shortest_slot, longest_slot)) {}

    // Returns the channel that notifies this waiter of its turn.
    std::string channel_of(std::uint64_t hold) const { return channels_ + std::string(text(hold).view()); }

    // Returns how long a waiter counts as alive without a refresh: a sixth of the watchdog timeout, between 100 ms and
    // 5 s.
    Milliseconds slot() const noexcept { return slot_; }

    // Acquires the lock unless it is another waiter's turn. If the claim queues, joins the queue otherwise. A waiter
    // that is already in the queue keeps its position.
    Call acquire(const Claim& claim) const override {
        const Milliseconds slot = claim.queues ? slot_ : Milliseconds(0);
        return {digested<scripts::fair_acquire>,
                {key_, queue_, timeouts_, slots_},
                {PublishCommand(), channels_, text(claim.hold), claim.count, claim.lease, slot, claim.until},
                Effect::grants};
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return {digested<scripts::fair_release>,
                {key_, queue_, timeouts_, slots_},
                {PublishCommand(), channels_, text(hold), remaining, lease}};
    }

    // Releases everything that these owners have: a hold and a slot in the queue. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> owners) const override {
        Call call(digested<scripts::fair_leave>, {key_, queue_, timeouts_, slots_}, {PublishCommand(), channels_});
        call.append(owners);
        return call;
    }

    // Refreshes the slots of up to 100 waiters of this process. `until`: the server time until which it is wanted.
    Call refresh(std::span<const std::uint64_t> waiters, std::int64_t until) const {
        Call call(digested<scripts::fair_refresh>, {key_, queue_, timeouts_, slots_},
                  {PublishCommand(), channels_, slot_, until});
        for (const std::uint64_t waiter : waiters) call.append(text(waiter));
        return call;
    }

private:
    static constexpr Milliseconds shortest_slot{100};
    static constexpr Milliseconds longest_slot{5000};

    const std::string queue_;
    const std::string timeouts_;
    const std::string slots_;
    const std::string channels_;  // prefix of the channels of all waiters
    const Milliseconds slot_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/server_queue.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One thread that stands in the server's queue, and what it knows from its last command.
struct FairWaiter : Waiter {
    std::uint64_t id = 0;        // of the slot in the queue, and of the hold
    std::int64_t unsettled = 0;  // server time until which an unanswered sending may take effect; 0 for none
    bool too_late = false;       // True if the reply came too late: the id is being released, a retry needs another
    Instant ask_again{};         // unless an event comes earlier
};

// Lets the waiting threads of all processes stand in one queue on the server, each for itself. No thread asks on behalf
// of another, and there is no local hand-over: either would let a thread pass others that came before it.
//
// A waiting thread has a ticket here (its channel, and a waiting room for it alone) and a slot in the server's queue.
// The slot lasts a few seconds unless it is refreshed. The background refreshes the slots of all waiters of this process
// together; the reply shows which waiters have lost their slot. The server notifies the head of the queue when the lock
// is free:
//   at a release,
//   when a waiter before it leaves,
//   at every refresh, in case such a message was lost.
//
// The mutex of the lock guards all members.
class ServerQueue final : public TurnQueue {
public:
    explicit ServerQueue(LockParts& parts)
        : parts_(parts), core_(parts.core), protocol_(static_cast<const FairProtocol&>(core_.protocol)) {}

    bool is_waited_for() const override { return waiting_ > 0; }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(const LockRequest& request) override {
        std::unique_lock lock(core_.mutex);
        if (waiting_ == 0) core_.patience.answered();
        if (const std::optional<bool> reentered = parts_.acquires.reenter(lock, request)) return *reentered;
        if (request.one_try) {
            const auto answer = parts_.acquires.ask(lock, request, core_.next_number(), true);
            return answer && answer->kind == AcquireAnswer::Kind::held;
        }
        for (;;) {
            // Checked before anything is sent, so a refusal leaves nothing to release.
            if (auto refusal = parts_.leases.mixed_kinds()) throw *std::move(refusal);
            FairWaiter me;
            me.id = spare_id();
            // A waiter that is still subscribed from an earlier wait misses no message between the command and the
            // sleep.
            const auto warm = tickets_.find(me.id);
            const std::uint64_t generation = warm == tickets_.end() ? 0 : warm->second.room.queue.generation();
            if (!ask_at_first(lock, request, me)) return false;
            if (me.is_served()) return true;
            core_.session.count_wait();
            if (wait(lock, request, me, generation)) return true;
            if (!me.too_late) return false;
        }
    }

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    void joined(FairWaiter& me) { tickets_.at(me.id).room.listen(); }

    NextStep next(FairWaiter& me, Instant now) {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.error) std::rethrow_exception(me.error);
        if (me.too_late) return {NextStep::Kind::leave};
        const Ticket& ticket = tickets_.at(me.id);
        const Instant ask_again = std::min(ticket.room.queue.ask_again(), ticket.told_at);
        if (ticket.room.queue.is_notified() || now >= ask_again) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, ask_again, ticket.room.is_subscribed()};
    }

    void ask(std::unique_lock<std::mutex>& lock, FairWaiter& me, const LockRequest& request) {
        Ticket& ticket = tickets_.at(me.id);
        const std::uint64_t generation = ticket.room.queue.generation();
        ticket.told_at = never;
        if (ask_or_queue(lock, request, me, false)) ticket.room.queue.asked(generation, me.ask_again);
    }

    void left(std::unique_lock<std::mutex>&, FairWaiter&) {}

    // --- releasing --------------------------------------------------------------------------------------------

    std::error_code release_hold(std::unique_lock<std::mutex>& lock, HoldRecord& hold) override {
        const std::uint64_t id = hold.id;
        const bool settled = hold.unsettled == 0 && !hold.renewing && !hold.doubtful;
        return parts_.releases.release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            if (settled && !resent && answer.kind == ReleaseAnswer::Kind::released && tickets_.contains(id))
                spare_.push_back(id);
        });
    }

    // --- events -----------------------------------------------------------------------------------------------

    // The server notifies the head of its queue.
    void may_be_free() override {}

    void on_timer(std::unique_lock<std::mutex>& lock, Instant now) override {
        if (now >= refresh_at_) refresh(lock, now);
        // The session drops subscriptions that have been idle for keep_warm. Drop their tickets, too.
        std::erase_if(tickets_, [&](const auto& entry) {
            const Ticket& ticket = entry.second;
            return !ticket.is_waiting() && now - ticket.idle_since >= Subscriptions::keep_warm;
        });
        if (refresh_at_ != never) core_.session.timers().schedule(core_.task, refresh_at_);
        if (!tickets_.empty()) core_.session.timers().schedule(core_.task, now + Subscriptions::keep_warm);
    }

    void subscribed(const std::string& channel) override {
        if (Ticket* ticket = ticket_of(channel)) ticket->room.subscribed();
    }

    void subscription_refused(const std::string& channel, const Reply& why) override {
        if (Ticket* ticket = ticket_of(channel)) ticket->room.refused(error_of(why, core_.key()));
    }

    // The payload reports that the lock is free, or, to the new head of the queue, in how many ms the new holder's
    // lease is over.
    void message(const std::string& channel, std::string_view payload) override {
        Ticket* const ticket = ticket_of(channel);
        if (!ticket) return;
        std::int64_t lease = 0;
        const auto [end, error] = std::from_chars(payload.data(), payload.data() + payload.size(), lease);
        if (error != std::errc{} || end != payload.data() + payload.size() || lease < 2) return ticket->room.notify();
        // One ms more: the key exists until the end of its last millisecond.
        ticket->told_at = deadline_after(Clock::now(), Milliseconds(lease) + Milliseconds(1));
        ticket->room.wake_front();
    }

    void disconnected(const std::string& channel) override {
        if (Ticket* ticket = ticket_of(channel)) ticket->room.disconnected();
    }

private:
    // What this process keeps for one waiter, and for a while afterwards, because its thread is likely to come again.
    struct Ticket {
        Ticket(LockCore& core, const FairProtocol& protocol, std::uint64_t id)
            : room(core.session, core.task, protocol.channel_of(id)) {}

        bool is_waiting() const { return idle_since == never; }

        WaitingRoom<WaitQueue<FairWaiter>> room;
        Instant told_at = never;     // when it has to ask at the latest, according to a message
        Instant idle_since = never;  // when the last wait ended; `never` while a thread waits
    };

    // The longest wait between two commands, even if the reply names a later time.
    static constexpr Milliseconds longest_sleep{30'000};
    static constexpr std::size_t waiters_a_refresh = 100;

    // Returns the ticket whose channel this is; null if there is none any more. The name of a channel ends with the id.
    Ticket* ticket_of(std::string_view channel) {
        const std::string_view digits = channel.substr(channel.rfind(':') + 1);
        std::uint64_t id = 0;
        std::from_chars(digits.data(), digits.data() + digits.size(), id);
        const auto found = tickets_.find(id);
        return found == tickets_.end() ? nullptr : &found->second;
    }

    // Returns an id to wait under. Prefers that of an earlier hold, whose channel may still be subscribed, if no command
    // in its name can be in flight.
    std::uint64_t spare_id() {
        while (!spare_.empty()) {
            const std::uint64_t id = spare_.back();
            spare_.pop_back();
            if (tickets_.contains(id)) return id;
        }
        return core_.next_number();
    }

    // --- asking -----------------------------------------------------------------------------------------------

    // Sends the first command, before there is a ticket. Without success, releases what it may have acquired.
    bool ask_at_first(std::unique_lock<std::mutex>& lock, const LockRequest& request, FairWaiter& me) {
        bool answered = false;
        try {
            answered = ask_or_queue(lock, request, me, true);
        } catch (const Error& error) {
            if (!lock.owns_lock()) lock.lock();
            // A server that was not reached has nothing to release.
            if (error.code() != errc::unreachable || me.unsettled != 0) undo_acquire(lock, request, me);
            throw;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            undo_acquire(lock, request, me);
            throw;
        }
        if (!answered && me.unsettled != 0) undo_acquire(lock, request, me);
        return answered;
    }

    // Acquires the lock or joins the queue. Returns false if the caller's stop token or deadline ended the call.
    bool ask_or_queue(std::unique_lock<std::mutex>& lock, const LockRequest& request, FairWaiter& me, bool first) {
        const std::optional<AcquireAnswer> answer = parts_.acquires.ask(lock, request, me.id, first, &me.unsettled);
        if (!answer) return false;
        if (answer->kind == AcquireAnswer::Kind::held) me.phase = Waiter::Phase::served;
        me.too_late = !me.is_served() && core_.outbox.has(me.id);
        // The script refuses a key without a TTL. A reply without one all the same must not cause a tight loop.
        const Milliseconds left = answer->holder_lease < Milliseconds(0) ? longest_sleep : answer->holder_lease;
        // One ms more: the key exists until the end of its last millisecond.
        me.ask_again = Clock::now() + std::min(left, longest_sleep) + Milliseconds(1);
        return true;
    }

    void undo_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, const FairWaiter& me) {
        if (core_.outbox.has(me.id)) return;
        parts_.deliveries.undo_acquire(lock, me.id, me.unsettled, core_.lease_of(request.lease));
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    // `generation`: of the ticket from before the first command; 0 if there was no ticket.
    bool wait(std::unique_lock<std::mutex>& lock, const LockRequest& request, FairWaiter& me,
              std::uint64_t generation) {
        Ticket& ticket = ticket_or_leave(lock, request, me);
        ++waiting_;
        ticket.idle_since = ticket.told_at = never;
        ticket.room.queue.asked(generation == 0 ? ticket.room.queue.generation() : generation, me.ask_again);
        if (refresh_at_ == never) {
            refresh_at_ = Clock::now() + protocol_.slot() / 3;
            core_.session.timers().schedule(core_.task, refresh_at_);
        }
        lock.unlock();
        bool held = false;
        try {
            held = ticket.room.wait(core_.mutex, *this, me, request);
        } catch (...) {
            lock.lock();
            leave(lock, request, me, false);
            throw;
        }
        lock.lock();
        leave(lock, request, me, held);
        return held;
    }

    // Without memory for a ticket, gives up the slot in the queue and rethrows.
    Ticket& ticket_or_leave(std::unique_lock<std::mutex>& lock, const LockRequest& request, const FairWaiter& me) {
        try {
            return tickets_.try_emplace(me.id, core_, protocol_, me.id).first->second;
        } catch (...) {
            undo_acquire(lock, request, me);
            throw;
        }
    }

    // Ends a wait. A waiter that leaves without the lock gives up its slot, and the server notifies the next one.
    void leave(std::unique_lock<std::mutex>& lock, const LockRequest& request, const FairWaiter& me, bool held) {
        const Instant now = Clock::now();
        if (--waiting_ == 0) {
            core_.patience.answered();
            refresh_at_ = never;
        }
        if (held) {
            tickets_.at(me.id).idle_since = now;
            core_.session.timers().schedule(core_.task, now + Subscriptions::keep_warm);
            return;
        }
        tickets_.erase(me.id);
        undo_acquire(lock, request, me);
    }

    // --- refreshing the slots ---------------------------------------------------------------------------------

    void refresh(std::unique_lock<std::mutex>& lock, Instant now) {
        std::vector<std::uint64_t> waiters;
        for (const auto& [id, ticket] : tickets_)
            if (ticket.is_waiting()) waiters.push_back(id);
        refresh_at_ = waiters.empty() ? never : now + protocol_.slot() / 3;
        lock.unlock();
        for (std::size_t first = 0; first < waiters.size(); first += waiters_a_refresh) {
            const std::size_t size = std::min(waiters_a_refresh, waiters.size() - first);
            post_refresh({waiters.begin() + static_cast<std::ptrdiff_t>(first), size});
        }
        lock.lock();
    }

    void post_refresh(std::span<const std::uint64_t> waiters) {
        core_.session.post(
            protocol_.refresh(waiters, core_.session.wanted_until(core_.key())),
            [this, keep = core_.keep(), asked = std::vector<std::uint64_t>(waiters.begin(), waiters.end()),
             sent = Clock::now()](const Reply& reply) {
                core_.session.learn_if_late(core_.key(), sent, reply);
                refreshed(asked, reply);
            });
    }

    // Wakes waiters that lost their slot, because the refresh was late or the server lost its data. They join the queue
    // again.
    void refreshed(const std::vector<std::uint64_t>& waiters, const Reply& reply) {
        const std::lock_guard lock(core_.mutex);
        if (classify(reply) != ReplyClass::answered) {
            if (waiting_ == 0) return;
            refresh_at_ = std::min(refresh_at_, Clock::now() + protocol_.slot() / 20);
            core_.session.timers().schedule(core_.task, refresh_at_);
            return;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != waiters.size()) return;
        for (std::size_t i = 0; i < waiters.size(); ++i) {
            if (!reply.elements[i].is_integer() || reply.elements[i].integer != 0) continue;
            const auto ticket = tickets_.find(waiters[i]);
            if (ticket != tickets_.end() && ticket->second.is_waiting()) ticket->second.room.notify();
        }
    }

    LockParts& parts_;
    LockCore& core_;
    const FairProtocol& protocol_;
    std::map<std::uint64_t, Ticket> tickets_;  // by id: of the waiters, and of recent ones
    std::vector<std::uint64_t> spare_;         // ids of recent holders, ready to be used again
    std::size_t waiting_ = 0;
    Instant refresh_at_ = never;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/fair_lock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker fair_maker{FairProtocol::lock_kind.name, LockState::make<FairProtocol, ServerQueue>};
}  // namespace detail

REDLATCH_INLINE FairLock::FairLock(Client& client, std::string_view name)
    : NamedLock(detail::ClientAccess::session(client), detail::fair_maker, name) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/fenced_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a reentrant distributed lock with fencing tokens: the token of each hold is greater than those of all holds
// before it, even after a server has lost its data. Pass the token to the protected resource, and let the resource
// reject any token smaller than one it has seen. Then a late write by a holder that lost its lease without noticing
// does no harm.
//
// Otherwise it is like RLock. It is the same lock as a Redisson RFencedLock of that name. A nested lock() keeps the
// token of its hold. The key of the counter, redisson_lock_token:{name}, stays on the server without a TTL, because it
// makes the tokens grow.
class FencedLock : public detail::NamedLock {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does. Sends nothing.
    FencedLock(Client& client, std::string_view name);

    // Returns the token of this thread's hold. Sends no command. Throws Error(errc::not_owner) if this thread holds
    // nothing or holds it no longer.
    [[nodiscard]] std::int64_t token();
    [[nodiscard]] std::int64_t token(std::error_code& ec);

    // Calls lock() and returns the token. With a std::stop_token or a std::error_code& it returns an optional, which is
    // empty if the lock is not held.
    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] auto lock_and_get_token(Tail&&... tail) {
        if constexpr (detail::has_stop_token<Tail...>) {
            return token_if(lock(tail...));
        } else if constexpr (detail::has_error_code<Tail...>) {
            lock(tail...);
            return token_if(!*detail::error_code_of(tail...));
        } else {
            lock(tail...);
            return token();
        }
    }

    // Call try_lock(), try_lock_for() or try_lock_until() and return the token, or nothing if the lock is not held.
    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token(Tail&&... tail) {
        return token_if(try_lock(tail...));
    }

    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token_for(std::chrono::duration<Rep, Period> timeout,
                                                                         Tail&&... tail) {
        return token_if(try_lock_for(timeout, tail...));
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token_until(
        std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return token_if(try_lock_until(when, tail...));
    }

private:
    // Returns nothing also if the hold was lost at this very moment; its unlock() will report the loss.
    std::optional<std::int64_t> token_if(bool held) { return held ? token_or_none() : std::nullopt; }

    std::optional<std::int64_t> token_or_none();
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/rlock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the reentrant lock.
class RLockProtocol : public LockProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "rlock ", .family = "RLock", .renewal = digested<scripts::rlock_renew>, .hands_over = true};

    RLockProtocol(const ProtocolContext& context, const std::string& key, const LockKind& of = lock_kind)
        : LockProtocol(of, context, key, prefixed_key("redisson_lock__channel", key)) {}

    Call acquire(const Claim& claim) const override {
        return {digested<scripts::rlock_acquire>,
                {key_},
                {text(claim.hold), claim.count, claim.lease, claim.until},
                Effect::grants};
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return {digested<scripts::rlock_release>, {key_, channel_}, {text(hold), remaining, lease, PublishCommand()}};
    }

    Call give_up(std::span<const std::string_view> owners) const override {
        Call call(digested<scripts::rlock_give_up>, {key_, channel_}, {PublishCommand(), ""});
        call.append(owners);
        return call;
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        return {digested<scripts::rlock_hand_over>,
                {key_, channel_},
                {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                Effect::grants};
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/fenced_lock.hpp

// The scripts in which the fenced lock differs from the reentrant lock: each new hold gets a fencing token, greater
// than all before. The counter is a clock as well: if it is lost with the server's data, the server's time in
// microseconds has advanced meanwhile. The counter never gets a TTL, is never deleted, and stays below 2^53, where
// Lua's numbers are exact.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view fenced_token{R"lua(
-- Returns the last token, 0 for none yet; nil if the counter does not hold a token.
local function last_token(counter)
    local last = count_in(redis.call('get', counter) or '0')
    if last and last >= 0 then return last end
    return nil
end
-- Returns a greater one; nil if there is none, or the last one was the largest possible.
local function next_token(counter)
    local last = last_token(counter)
    if not last then return nil end
    local now = redis.call('time')
    local token = math.max(last + 1, now[1] * 1000000 + now[2])
    if token < 9007199254740992 then return token end
    return nil
end
local function no_token()
    return redis.error_reply('WRONGTYPE the key of the fencing tokens (redisson_lock_token) holds none that can grow')
end
)lua"};

inline constexpr std::string_view fenced_acquire{R"lua(
-- KEYS: lock, token counter.  ARGV: owner, wanted count (1 = a first hold), lease in ms, wanted until.
-- Answer: {1, token} = held; {0, n} = blocked, the holder's PTTL; {-2, 0} = the hold to re-enter is gone.
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
if redis.call('exists', lock) == 0 then
    if count ~= '1' then return {-2, 0} end
    local token = next_token(counter)
    if not token then return no_token() end
    redis.call('hincrby', lock, owner, count)
    local refusal = give_lease(lock, lease)
    if refusal then return refusal end
    local drawn = redis.pcall('set', counter, string.format('%.0f', token))
    if drawn.err then
        redis.call('del', lock)
        return drawn
    end
    return {1, token}
end
local current = redis.call('hget', lock, owner)
if not current and count ~= '1' then return {-2, 0} end
-- In a read-write lock this owner may be a reader, which is not a hold of this lock.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if not current then
    local left = redis.call('pttl', lock)
    if left == -1 then return no_lease() end
    return {0, left}
end
-- A resend or a reentry: the token is that of the hold, because none was drawn since.
local token = last_token(counter)
if not token then return no_token() end
return enter_again(lock, owner, current, count, lease) or {1, token}
)lua"};

inline constexpr std::string_view fenced_hand_over{R"lua(
-- KEYS: lock, token counter, channel.  ARGV: owner, next owner, the next owner's lease in ms, publish command, wanted
-- until.
-- Answer: {1, token} = the next owner holds it; nil = neither of them does.
local lock, counter, channel = KEYS[1], KEYS[2], KEYS[3]
local owner, heir, lease, publish, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('hexists', lock, heir) == 1 then
    -- An earlier copy has done it, and drew the last token.
    local token = last_token(counter)
    if not token then return no_token() end
    return {1, token}
end
local count = redis.call('hget', lock, owner)
if not count then return nil end
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local token = next_token(counter)
if not token then return no_token() end
local left = redis.call('pttl', lock)
local refusal = replace(lock, owner, count, heir, lease, left)
if refusal then return refusal end
local drawn = redis.pcall('set', counter, string.format('%.0f', token))
if drawn.err then
    put_back(lock, owner, count, left)
    return drawn
end
-- Other waiters rely on the earlier, longer lease: wake them.
if left > tonumber(lease) then redis.pcall(publish, channel, '0') end
return {1, token}
)lua"};

}  // namespace parts

inline constexpr std::string_view fenced_acquire{
    joined<parts::wanted_until, parts::no_lease, parts::levels, parts::exact_count, parts::fenced_token,
           parts::fenced_acquire>};
inline constexpr std::string_view fenced_hand_over{
    joined<parts::wanted_until, parts::next_owner, parts::exact_count, parts::fenced_token, parts::fenced_hand_over>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::fenced_acquire>{scripts::fenced_acquire,
    "60827f2e58a8459f1c23ce24ed21e029a6d5f912"};
template <>
inline constexpr Script digested<scripts::fenced_hand_over>{scripts::fenced_hand_over,
    "65232c565a3fde2a10f1289266c471de5deca3cd"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/fenced_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the fenced lock: those of the reentrant lock, but acquire and hand-over draw a fencing token.
class FencedProtocol : public RLockProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "fenced lock ", .family = "FencedLock", .renewal = digested<scripts::rlock_renew>, .hands_over = true};

    FencedProtocol(const ProtocolContext& context, const std::string& key)
        : RLockProtocol(context, key, lock_kind), counter_(prefixed_key("redisson_lock_token", key)) {}

    Call acquire(const Claim& claim) const override {
        return {digested<scripts::fenced_acquire>,
                {key(), counter_},
                {text(claim.hold), claim.count, claim.lease, claim.until},
                Effect::grants};
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        return {digested<scripts::fenced_hand_over>,
                {key(), counter_, channel()},
                {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                Effect::grants};
    }

    AcquireAnswer read_acquire(const Reply& reply) const override {
        if (!is_pair(reply)) throw unexpected(reply, key());
        const std::int64_t value = reply.elements[1].integer;
        switch (reply.elements[0].integer) {
            case 1:
                if (is_token(value)) return {AcquireAnswer::Kind::held, {}, value};
                break;
            case 0: return {AcquireAnswer::Kind::blocked, Milliseconds(value), 0};
            case -2: return {AcquireAnswer::Kind::gone, {}, 0};
            default: break;
        }
        throw unexpected(reply, key());
    }

    HandOverAnswer read_hand_over(const Reply& reply) const noexcept override {
        if (reply.is_nil()) return {HandOverAnswer::Kind::not_held, 0};
        if (!is_pair(reply) || reply.elements[0].integer != 1 || !is_token(reply.elements[1].integer))
            return {HandOverAnswer::Kind::senseless, 0};
        return {HandOverAnswer::Kind::handed, reply.elements[1].integer};
    }

private:
    // Below 2^53, where the scripts' numbers are exact.
    static bool is_token(std::int64_t value) noexcept { return value > 0 && value < std::int64_t{1} << 53; }

    static bool is_pair(const Reply& reply) noexcept {
        return reply.kind == Reply::Kind::array && reply.elements.size() == 2 && reply.elements[0].is_integer() &&
               reply.elements[1].is_integer();
    }

    const std::string counter_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/fenced_lock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker fenced_maker{FencedProtocol::lock_kind.name, LockState::make<FencedProtocol>};
}  // namespace detail

REDLATCH_INLINE FencedLock::FencedLock(Client& client, std::string_view name)
    : NamedLock(detail::ClientAccess::session(client), detail::fenced_maker, name) {}

REDLATCH_INLINE std::int64_t FencedLock::token() {
    const std::optional<std::int64_t> mine = token_or_none();
    if (!mine)
        throw Error(errc::not_owner, name(),
                    "only the thread that holds the lock has its token; call token() between lock() and unlock()");
    return *mine;
}

REDLATCH_INLINE std::int64_t FencedLock::token(std::error_code& ec) {
    const std::optional<std::int64_t> mine = token_or_none();
    ec = mine ? std::error_code() : make_error_code(errc::not_owner);
    return mine.value_or(0);
}

REDLATCH_INLINE std::optional<std::int64_t> FencedLock::token_or_none() {
    return state().token(detail::this_thread_number());
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/fwd.hpp

// Declares the names of the public types, for headers that mention them only by reference or pointer.
namespace redlatch {
inline namespace REDLATCH_ABI {

class Client;
class CountDownLatch;
class Error;
class FairLock;
class FencedLock;
class HiredisTransport;
class Hold;
class Lease;
class MultiLock;
class Mutex;
class Permit;
class PermitExpirableSemaphore;
class PermitId;
class RedLock;
class ReadWriteLock;
class RLock;
class Semaphore;
class SpinLock;
struct ClientOptions;
struct Event;
struct ReadWriteOptions;
struct RedLockOptions;
struct SpinOptions;
struct Stats;
struct TlsOptions;
enum class PubSub;
enum class errc;

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_rules.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The rules by which members make up a lock over several.
struct QuorumRules {
    std::size_t needed;            // how many members
    Milliseconds node_timeout;     // how long a member may take to answer
    bool independent = false;      // True if each has its own server: clocks drift apart, a young server has no vote
    Milliseconds longest_lease{};  // a server that runs for less is young: holds from before its start may be valid
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_api.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class QuorumMember;
class QuorumState;

using QuorumMembers = std::vector<std::shared_ptr<QuorumMember>>;

// Implements the common part of MultiLock and RedLock: the public members of a lock, on top of those of its members.
class QuorumApi : public LockApi {
public:
    REDLATCH_INLINE ~QuorumApi() override;

    // The names of its members in their order, each once.
    const std::string& name() const noexcept { return name_; }

protected:
    QuorumApi(QuorumMembers members, const QuorumRules& rules);

    // Makes the members from locks, in their order.
    static QuorumMembers members_of(const std::vector<NamedLock*>& locks);

private:
    using State = std::shared_ptr<QuorumState>;

    // --- on behalf of an owner --------------------------------------------------------------------------------

    REDLATCH_INLINE bool acquire(const LockRequest& request) override;
    REDLATCH_INLINE std::error_code release(OwnerNumber owner) override;
    REDLATCH_INLINE HeldLevel keeper_of_holds() override;
    REDLATCH_INLINE bool force_release(Instant limit) override;
    REDLATCH_INLINE Instant valid_until_of(OwnerNumber owner) override;
    REDLATCH_INLINE std::stop_token lost_of(OwnerNumber owner) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(OwnerNumber owner, Instant limit) override;
    REDLATCH_INLINE std::optional<Milliseconds> ask_remaining_lease(Instant limit) override;

    State* new_state(bool is_fork_child) const;
    State& state();

    const QuorumMembers members_;
    const QuorumRules rules_;
    const std::string name_;
    std::atomic<State*> state_;
};

// --- members, given by reference, or as a range of locks or of pointers to locks -----------------------------------

// A lock with a writer's side that can be a member.
template <class Lock>
concept WriteSided = requires(Lock& lock) {
    {lock.write_lock()};
};

template <class Lock>
NamedLock* member_lock(Lock& lock) {
    if constexpr (WriteSided<Lock>) {
        return member_lock(lock.write_lock());
    } else if constexpr (requires { *lock; }) {
        return member_lock(*lock);
    } else {
        static_assert(std::derived_from<Lock, NamedLock>,
                      "a member must be a lock of one server: RLock, FairLock, FencedLock, SpinLock, "
                      "Mutex or a side of a ReadWriteLock");
        return &lock;
    }
}

template <class Range>
std::vector<NamedLock*> member_locks_in(Range& range) {
    std::vector<NamedLock*> locks;
    for (auto& lock : range) locks.push_back(member_lock(lock));
    return locks;
}

// A range of locks, as opposed to a lock.
template <class Range>
concept LockRange = requires(Range& range) {
    std::begin(range);
    std::end(range);
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/member.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns how long a server has been running according to its INFO; nothing if INFO does not contain it.
inline std::optional<std::chrono::seconds> read_uptime(std::string_view info) {
    constexpr std::string_view field = "uptime_in_seconds:";
    const std::size_t at = info.find(field);
    if (at == std::string_view::npos) return std::nullopt;
    std::int64_t seconds = 0;
    const char* const first = info.data() + at + field.size();
    const auto [end, error] = std::from_chars(first, info.data() + info.size(), seconds);
    if (error != std::errc{} || end == first) return std::nullopt;
    // The server's clock may have been set back since its start. Then it counts as just started.
    return std::chrono::seconds(std::max<std::int64_t>(seconds, 0));
}

// One member of a lock over several, and its client.
class QuorumMember {
public:
    virtual ~QuorumMember() = default;

    virtual const std::string& name() const = 0;
    virtual const std::string& key() const = 0;
    virtual const void* lock() const = 0;    // equal for two objects of one lock
    virtual const void* client() const = 0;  // equal for two locks of one client

    virtual bool acquire(const LockRequest& request) = 0;
    virtual void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                                   std::function<bool(const TryAnswer&)> tell, Receiver receiver) = 0;
    // If it throws, the hold is still released, in the background or by the end of its lease.
    virtual void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done,
                                       Receiver receiver) = 0;
    virtual void attend() = 0;
    virtual void stop_attending() = 0;
    virtual HeldPart part(OwnerNumber owner) = 0;
    virtual bool force_release(Instant limit) = 0;
    virtual bool ask_locked(Instant limit) = 0;
    virtual int ask_hold_count(OwnerNumber owner, Instant limit) = 0;
    virtual std::optional<Milliseconds> ask_remaining_lease(Instant limit) = 0;

    // Returns how many connections its client has made so far; nothing if its transport does not count them.
    virtual std::optional<std::uint64_t> connections() = 0;
    // Calls `done` with the reply to INFO.
    virtual void ask_info(Completion done) = 0;

    // Access to its client.
    virtual const ClientOptions& options() = 0;
    virtual Timers& timers() = 0;
    virtual void start_background() = 0;
    virtual void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept = 0;
    virtual Losses& losses() = 0;
    virtual void start_losses() = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/lock_member.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A named lock as a member of a lock over several.
class LockMember final : public QuorumMember {
public:
    explicit LockMember(NamedLock& lock) : lock_(lock) {}

    const std::string& name() const override { return lock_.name(); }
    const std::string& key() const override { return state().key(); }
    const void* lock() const override { return &state(); }
    const void* client() const override { return &session(); }

    bool acquire(const LockRequest& request) override { return LockAccess::acquire(lock_, request); }
    void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                           std::function<bool(const TryAnswer&)> tell, Receiver receiver) override {
        state().try_in_background(owner, lease, std::move(tell), receiver);
    }
    void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done,
                               Receiver receiver) override {
        state().release_in_background(owner, done, receiver);
    }
    void attend() override { session().attend(); }
    void stop_attending() override { session().stop_attending(); }
    HeldPart part(OwnerNumber owner) override { return state().part(owner); }
    bool force_release(Instant limit) override { return LockAccess::force_release(lock_, limit); }
    bool ask_locked(Instant limit) override { return LockAccess::ask_locked(lock_, limit); }
    int ask_hold_count(OwnerNumber owner, Instant limit) override {
        return LockAccess::ask_hold_count(lock_, owner, limit);
    }
    std::optional<Milliseconds> ask_remaining_lease(Instant limit) override {
        return LockAccess::ask_remaining_lease(lock_, limit);
    }

    std::optional<std::uint64_t> connections() override { return session().transport().connections(); }

    void ask_info(Completion done) override {
        static constexpr std::array<std::string_view, 2> words{"INFO", "server"};
        session().post({words, 0}, std::move(done));
    }

    const ClientOptions& options() override { return session().options(); }
    Timers& timers() override { return session().timers(); }
    void start_background() override { session().start_background(); }
    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept override {
        session().raise(kind, name, detail);
    }
    Losses& losses() override { return session().losses(); }
    void start_losses() override { session().start_losses(); }

private:
    LockState& state() const { return LockAccess::state(lock_); }
    Session& session() const { return state().session(); }

    NamedLock& lock_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/round.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One request to all members at once: their replies so far, and the outcome that follows. Plain data except for the
// condition variable on which the requesting thread sleeps. The owner of the round guards it.
class QuorumRound {
public:
    explicit QuorumRound(std::size_t members) : parts_(members) {}

    // Records a vote that counts from `votes_from` on, usually at once.
    void held(std::size_t member, Instant votes_from) {
        parts_[member].kind = Kind::held;
        parts_[member].had = true;
        parts_[member].votes_from = votes_from;
    }

    // Records a member that is held, but whose server's right to vote is not known yet.
    void held_without_vote(std::size_t member) { parts_[member].had = true; }

    void refused(std::size_t member) { parts_[member].kind = Kind::refused; }

    // Marks a member that refused as asked again. Returns true if it had refused.
    bool ask_again(std::size_t member) {
        const bool was = parts_[member].kind == Kind::refused;
        if (was) parts_[member].kind = Kind::asked;
        return was;
    }

    // Returns true if this caller has the first member, in an order that all callers share. Of the callers that ask at
    // the same time one has it: that one goes on, the others release what they have.
    bool goes_first(const std::vector<std::size_t>& order) const {
        const auto first = std::find_if(order.begin(), order.end(), [this](std::size_t member) {
            return parts_[member].had || parts_[member].kind == Kind::refused;
        });
        return first != order.end() && parts_[*first].had;
    }

    // `why`: nothing if the member only takes too long. `by_server`: its server has answered with that error.
    void failed(std::size_t member, std::optional<Error> why, bool by_server = false) {
        parts_[member].kind = Kind::failed;
        parts_[member].by_server = by_server;
        if (!why_ || (by_server && !why_by_server_)) why_ = std::move(why);
        why_by_server_ |= by_server;
    }

    std::size_t votes(Instant now) const {
        return count([&](const Part& p) { return p.kind == Kind::held && p.votes_from <= now; });
    }

    // Returns true if no outstanding reply can change the outcome.
    bool decided(std::size_t needed, Instant now) const {
        const std::size_t sure = votes(now);
        return sure >= needed || sure + unanswered() < needed;
    }

    bool complete() const { return unanswered() == 0; }

    // Counts the outstanding replies as failures.
    void time_is_up() {
        for (Part& part : parts_)
            if (part.kind == Kind::asked) part.kind = Kind::failed;
    }

    // Returns true if too many members failed for the others to make a quorum. An outstanding reply is no failure:
    // refusals may have decided the round before it.
    bool unreachable(std::size_t needed) const { return failures() > parts_.size() - needed; }
    std::size_t failures() const {
        return count([](const Part& p) { return p.kind == Kind::failed; });
    }

    // Returns the first error; if a server has answered with one, the first of these.
    const std::optional<Error>& why() const { return why_; }

    // Returns true if too many servers have answered with an error for the others to make a quorum.
    bool refused_by_servers(std::size_t needed) const {
        return count([](const Part& p) { return p.by_server; }) > parts_.size() - needed;
    }

    std::optional<std::size_t> first_refused() const {
        const auto found =
            std::find_if(parts_.begin(), parts_.end(), [](const Part& p) { return p.kind == Kind::refused; });
        if (found == parts_.end()) return std::nullopt;
        return static_cast<std::size_t>(found - parts_.begin());
    }

    // Returns when enough servers will be old enough to vote; `never` if too few members are held.
    Instant votes_at(std::size_t needed) const {
        std::vector<Instant> from;
        for (const Part& part : parts_)
            if (part.kind == Kind::held) from.push_back(part.votes_from);
        if (from.size() < needed) return never;
        std::nth_element(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(needed - 1), from.end());
        return from[needed - 1];
    }

    bool had(std::size_t member) const { return parts_[member].had; }
    Instant votes_from(std::size_t member) const { return parts_[member].votes_from; }

    Instant whole_time = never;  // until when a member may answer
    std::condition_variable changed;
    bool stopped = false;    // True if the caller has stopped the request
    bool over = false;       // True if the outcome is known: later replies go to `hold`, or their holds are released
    std::uint64_t hold = 0;  // the resulting hold; 0 for none

private:
    enum class Kind { asked, held, refused, failed };

    struct Part {
        Kind kind = Kind::asked;
        bool had = false;
        bool by_server = false;
        Instant votes_from = never;
    };

    template <class Which>
    std::size_t count(Which which) const {
        return static_cast<std::size_t>(std::count_if(parts_.begin(), parts_.end(), which));
    }

    std::size_t unanswered() const {
        return count([](const Part& p) { return p.kind == Kind::asked; });
    }

    std::vector<Part> parts_;
    std::optional<Error> why_;
    bool why_by_server_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_core.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What the parts of one lock over several share.
//
// mutex guards all members except the constant ones, and the parts. It is held while the members' validity is read,
// which locks their mutexes; but nothing is sent and no user code runs meanwhile. idle notifies close() when no thread
// is inside a member any more.
struct QuorumCore {
    QuorumCore(BackgroundTask& state, std::vector<std::shared_ptr<QuorumMember>> of, const QuorumRules& by,
               const std::string& called)
        : task(state), members(std::move(of)), rules(by), name(called) {}

    // The member whose client serves the timers.
    QuorumMember& client() const { return *members.front(); }

    // Keeps the state alive, for completions.
    std::shared_ptr<BackgroundTask> keep() { return task.shared_from_this(); }

    // Returns the allowance for clock drift between independent servers: one percent, and 2 ms for the resolution of a
    // server's clock.
    Milliseconds drift_over(Milliseconds lease) const {
        return rules.independent ? lease / 100 + Milliseconds(2) : Milliseconds(0);
    }

    Milliseconds longest_watchdog() const {
        Milliseconds longest{0};
        for (const auto& member : members) longest = std::max(longest, member->options().watchdog_timeout);
        return longest;
    }

    // Waits until `done()` or `until`. This thread spins to receive replies of near servers; the background receives
    // the others.
    template <class Done>
    void await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Instant until, Done done) {
        if (done()) return;
        lock.unlock();
        const auto came = [&] {
            try {
                for (const auto& member : members) member->attend();
            } catch (const std::bad_alloc&) {  // the background receives then
            }
            const std::lock_guard look(mutex);
            return done();
        };
        if (!brief_wait.reply_came(until, came, brief_wait.for_several)) stop_attending();
        lock.lock();
        changed.wait_until(lock, until, done);
    }

    void stop_attending() {
        for (const auto& member : members) member->stop_attending();
    }

    BackgroundTask& task;
    const std::vector<std::shared_ptr<QuorumMember>> members;
    const QuorumRules rules;
    const std::string name;
    AdaptiveSpin<> brief_wait;

    std::mutex mutex;
    std::condition_variable idle;
    std::size_t inside = 0;  // number of InsideMembers
    bool closed = false;
};

// Unlocks the mutex in order to call members. close() waits until no InsideMembers is left.
class InsideMembers {
public:
    InsideMembers(QuorumCore& core, std::unique_lock<std::mutex>& lock) : core_(core), lock_(lock) {
        ++core_.inside;
        lock_.unlock();
    }
    InsideMembers(const InsideMembers&) = delete;
    InsideMembers& operator=(const InsideMembers&) = delete;
    ~InsideMembers() {
        lock_.lock();
        if (--core_.inside == 0) core_.idle.notify_all();
    }

private:
    QuorumCore& core_;
    std::unique_lock<std::mutex>& lock_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_votes.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Finds out from when the server of each member may vote: one that started lately may have forgotten a hold that is
// still valid. `lock` holds the mutex of the quorum.
class QuorumVotes {
public:
    explicit QuorumVotes(QuorumCore& core) : core_(core), servers_(core.members.size()) {}

    // Calls `then(from when the vote counts, or the error)` with mutex_ held, now or later.
    template <class Then>
    void ask_trust(std::unique_lock<std::mutex>& lock, std::size_t member, Then then) {
        if (!core_.rules.independent) return then(Instant::min(), std::nullopt);
        const std::optional<std::uint64_t> connections = core_.members[member]->connections();
        const Server& server = servers_[member];
        if (connections && server.connections == connections) return then(server.trusted_from, std::nullopt);
        const InsideMembers inside(core_, lock);
        core_.members[member]->ask_info([this, keep = core_.keep(), member, connections, then](const Reply& reply) {
            const std::lock_guard relock(core_.mutex);
            if (!core_.closed) learn_age(member, connections, reply, then);
        });
    }

private:
    // What is known of a member's server. If `connections` has grown since, the server may be another process.
    struct Server {
        std::optional<std::uint64_t> connections{};
        Instant trusted_from = never;
    };

    // Learns the server's age from the reply to INFO. The reply is newer than the member's part, so the server process
    // that granted the part started no later than INFO shows.
    template <class Then>
    void learn_age(std::size_t member, const std::optional<std::uint64_t>& connections, const Reply& reply,
                   const Then& then) {
        QuorumMember& m = *core_.members[member];
        if (classify(reply) != ReplyClass::answered) return then(never, error_of(reply, m.name()));
        const auto uptime = reply.kind == Reply::Kind::text ? read_uptime(reply.text) : std::nullopt;
        if (!uptime) return then(never, unexpected(reply, m.name()));
        // INFO counts whole seconds, and the last one may have just begun.
        const auto enough = std::chrono::ceil<std::chrono::seconds>(core_.rules.longest_lease * 2);
        const auto age = std::clamp(*uptime - std::chrono::seconds(1), std::chrono::seconds(0), enough);
        const Instant born = Clock::now() - age;
        servers_[member].trusted_from = born + core_.rules.longest_lease + core_.drift_over(core_.rules.longest_lease);
        servers_[member].connections = m.connections() == connections ? connections : std::nullopt;
        then(servers_[member].trusted_from, std::nullopt);
    }

    QuorumCore& core_;
    std::vector<Server> servers_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_holds.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The holds of one lock over several: which members take part in each, whose votes count, and until when it is valid.
//
// A member that did not answer at first, or lost its part of the hold, is asked again at each renewal of the watchdog.
// Its vote counts from its reply on at the earliest, and only if the hold never lacked votes until then.
//
// All members are called with the mutex of the quorum; `lock` holds it.
class QuorumHolds {
public:
    // One member's share of an owner's hold, and from when its vote counts.
    struct Share {
        std::uint32_t levels = 0;  // that the member has to release, including those of lost holds
        std::uint64_t hold = 0;    // the member's hold that votes; another one does not
        Instant votes_from = never;
        std::uint32_t leaving = 0, owed = 0;  // levels for release() to release: of this hold, and of lost ones
    };

    struct Shares {
        std::vector<Share> of;  // one for each member
        Instant looked_at{};    // when the validity was last computed
        Instant look_again{};   // when it will most likely have changed
        Instant leases_end{};   // the latest lease end of the levels without the watchdog
        Milliseconds drift{};   // allowance for clock drift over its lease
    };

    // Identifies a member's part of a hold.
    struct Part {
        OwnerNumber owner;
        std::uint64_t hold;
        std::size_t member;
    };

    QuorumHolds(QuorumCore& core, QuorumVotes& votes) : core_(core), votes_(votes) {
        ends_.reserve(core_.members.size());
    }

    // --- queries without a command ----------------------------------------------------------------------------

    HoldRecord* live_hold(OwnerNumber owner) {
        HoldRecord* hold = holds_.find(owner);
        if (hold) look_at(*hold, Clock::now());
        return hold && hold->live() ? hold : nullptr;
    }

    Instant valid_until(OwnerNumber owner) {
        const HoldRecord* hold = live_hold(owner);
        return hold ? hold->valid_until : Instant::min();
    }

    std::stop_token lost(OwnerNumber owner) { return lost_token(live_hold(owner)); }

    // Returns the owners that are objects, not threads.
    std::vector<OwnerNumber> of_objects() {
        std::vector<OwnerNumber> owners;
        for (const HoldRecord& hold : holds_)
            if (is_hold_owner(hold.owner)) owners.push_back(hold.owner);
        return owners;
    }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Records the hold, or one more level of it, once the round has enough votes. Returns false if the acquire took
    // longer than the votes last. `begun`: when the round began.
    bool accept(const LockRequest& request, QuorumRound& round, Instant begun) {
        const Instant now = Clock::now();
        const ClientOptions& options = core_.client().options();
        const Milliseconds drift = core_.drift_over(request.lease.value_or(core_.longest_watchdog()));
        const auto votes = [&](std::size_t i) { return round.had(i) && round.votes_from(i) <= now; };
        const Instant end = request.lease ? redlatch::valid_until(begun, *request.lease) - drift : never;
        const Instant until = std::min(end, validity(request.owner, drift, votes));
        if (until <= now || core_.closed) return false;

        HoldRecord* hold = live_hold(request.owner);
        const bool first = !hold;
        // Steps that need memory come first, so that a failure changes nothing.
        Shares& shares = shares_[request.owner];
        shares.of.resize(core_.members.size());
        if (first) hold = &holds_.start(request.owner, ++last_hold_);
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            if (!round.had(i)) continue;
            Share& share = shares.of[i];
            const std::uint64_t part = core_.members[i]->part(request.owner).hold;
            const bool goes_on = !first && part == share.hold;
            share.votes_from = goes_on ? std::min(share.votes_from, round.votes_from(i)) : round.votes_from(i);
            share.hold = part;
            ++share.levels;
        }
        shares.looked_at = now;
        shares.drift = first ? drift : std::max(shares.drift, drift);
        if (first) shares.leases_end = {};
        if (request.lease) shares.leases_end = std::max(shares.leases_end, end);
        hold->enter(begun, request.lease, options.watchdog_timeout);
        hold->valid_until = end_of(*hold, until);
        round.over = true;
        round.hold = hold->id;
        schedule();
        return true;
    }

    // Handles the answer of a member that was no part of the hold when it began. Returns true if the member is still
    // wanted.
    bool answered(std::unique_lock<std::mutex>& lock, const Part& part, const TryAnswer& answer) {
        HoldRecord* hold = core_.closed ? nullptr : live_hold(part.owner);
        if (!hold || hold->id != part.hold) return false;
        if (answer.kind != TryAnswer::Kind::held) return answer.kind == TryAnswer::Kind::late;
        Share& share = shares_.at(part.owner).of[part.member];
        const HeldPart given = core_.members[part.member]->part(part.owner);
        ++share.levels;
        if (has(share, given, Clock::now())) return true;  // one more level
        share.hold = given.hold;
        share.votes_from = never;
        ask_for_vote(lock, part);
        return true;
    }

    // Lets the part vote from `trusted_from` on, but not before now.
    void let_vote(const Part& part, Instant trusted_from) {
        HoldRecord* hold = live_hold(part.owner);
        if (!hold || hold->id != part.hold) return;
        Share& share = shares_.at(part.owner).of[part.member];
        share.votes_from = std::min(share.votes_from, std::max(trusted_from, Clock::now()));
        look_at(*hold, Clock::now());
        schedule();
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // What the members have to release for one level of an owner.
    struct LevelEnd {
        bool live;                                      // False if the hold was lost before
        std::map<OwnerNumber, Shares>::node_type kept;  // the shares, if it was the last level
        Shares* shares;
    };

    // Ends one level. Returns nothing if the owner has none.
    std::optional<LevelEnd> leave_level(OwnerNumber owner) {
        HoldRecord* hold = holds_.find(owner);
        if (!hold) return std::nullopt;
        look_at(*hold, Clock::now());
        const bool live = hold->live();
        const std::uint32_t remaining = hold->count + hold->dead - 1;
        Shares& shares = shares_.at(owner);
        for (Share& share : shares.of) {
            share.leaving = share.levels > remaining ? 1 : 0;
            // The member also expects releases of the levels that it lost.
            share.owed = share.levels > remaining + 1 ? share.levels - remaining - 1 : 0;
            share.levels = std::min(share.levels, remaining);
        }
        if (!live)
            --hold->dead;
        else if (hold->count > 1)
            hold->leave();
        else
            holds_.finish(*hold);
        LevelEnd end{live, {}, &shares};
        if (remaining == 0) {
            holds_.erase(owner);
            end.kept = shares_.extract(owner);
        }
        return end;
    }

    // --- the watchdog -----------------------------------------------------------------------------------------

    // Asks again the members that have no part in a hold, at each renewal.
    void on_timer(std::unique_lock<std::mutex>& lock, Instant now, Instant horizon) {
        std::vector<Part> missing, untrusted;
        for (HoldRecord& hold : holds_) {
            look_at(hold, now);
            if (!hold.live() || !hold.watched() || hold.renew_at > horizon) continue;
            const Milliseconds timeout = core_.client().options().watchdog_timeout;
            hold.renew_at = now + timeout / 3;
            // The watchdogs of the members renew now, too. Their replies will have come by then.
            Shares& shares = shares_.at(hold.owner);
            shares.look_again = now + std::max(Milliseconds(10), timeout / 60);
            for (std::size_t i = 0; i < shares.of.size(); ++i) {
                if (!has(shares.of[i], core_.members[i]->part(hold.owner), now))
                    missing.push_back({hold.owner, hold.id, i});
                else if (shares.of[i].votes_from == never)
                    untrusted.push_back({hold.owner, hold.id, i});
            }
        }
        schedule();
        for (const Part& part : untrusted) ask_for_vote(lock, part);
        const InsideMembers inside(core_, lock);
        for (const Part& p : missing) {
            const auto tell = [this, keep = core_.keep(), p](const TryAnswer& answer) {
                std::unique_lock relock(core_.mutex);
                return answered(relock, p, answer);
            };
            core_.members[p.member]->try_in_background(p.owner, std::nullopt, tell, Receiver::background);
        }
    }

    // Recomputes the validity of all holds, because members may have changed.
    void look(Instant now) {
        for (HoldRecord& hold : holds_) look_at(hold, now);
        schedule();
    }

    // Reports all holds as lost: their supervision ends.
    void tell_losses() noexcept {
        for (HoldRecord& hold : holds_) tell_loss(hold);
    }

private:
    void ask_for_vote(std::unique_lock<std::mutex>& lock, const Part& part) try {
        votes_.ask_trust(lock, part.member, [this, part](Instant trusted_from, const std::optional<Error>& why) {
            if (!why) let_vote(part, trusted_from);
        });
    } catch (const std::bad_alloc&) {  // retried at the next renewal
    }

    // --- validity ---------------------------------------------------------------------------------------------

    // Returns until when enough of the voting members are certainly held. Needs no memory.
    template <class Votes>
    Instant validity(OwnerNumber owner, Milliseconds drift, Votes votes) {
        ends_.clear();
        for (std::size_t i = 0; i < core_.members.size(); ++i)
            if (votes(i)) ends_.push_back(core_.members[i]->part(owner).until);
        if (ends_.size() < core_.rules.needed) return Instant::min();
        const auto last = ends_.begin() + static_cast<std::ptrdiff_t>(core_.rules.needed - 1);
        std::nth_element(ends_.begin(), last, ends_.end(), std::greater<>());
        return *last == Instant::min() ? *last : *last - drift;
    }

    static bool lasts(const HoldRecord& hold, Instant now) {
        return hold.valid_until != Instant::min() && hold.lost_at() > now;
    }

    // Recomputes until when a hold is valid. Votes that came since the last time count only if the hold was valid
    // without them all the time. A lost part votes no more, even if the member is acquired again.
    void look_at(HoldRecord& hold, Instant now) {
        if (!hold.live()) return;
        Shares& shares = shares_.at(hold.owner);
        shares.leases_end -= hold.check_suspension();
        for (std::size_t i = 0; i < shares.of.size(); ++i)
            if (!has(shares.of[i], core_.members[i]->part(hold.owner), now)) shares.of[i].votes_from = never;
        const auto votes_since = [&](Instant then) {
            return
                [&shares, then](std::size_t i) { return shares.of[i].levels > 0 && shares.of[i].votes_from <= then; };
        };
        hold.valid_until = end_of(hold, validity(hold.owner, shares.drift, votes_since(shares.looked_at)));
        if (!lasts(hold, now)) return lose(hold);
        hold.valid_until = end_of(hold, validity(hold.owner, shares.drift, votes_since(now)));
        shares.looked_at = now;
    }

    // Members may still have longer leases from before. These are not relied upon, because they may hide a restarted
    // server.
    Instant end_of(const HoldRecord& hold, Instant until) const {
        return hold.watched() ? until : std::min(until, shares_.at(hold.owner).leases_end);
    }

    static bool has(const Share& share, const HeldPart& part, Instant now) {
        return part.hold != 0 && part.hold == share.hold && part.until > now;
    }

    // Ends a hold that is lost. Keeps the parts that are left until unlock(), which is still to come.
    void lose(HoldRecord& hold) {
        hold.lose();
        tell_loss(hold);
        core_.client().raise(Event::Kind::hold_lost, core_.name, "too few of its members are still held");
    }

    void tell_loss(HoldRecord& hold) noexcept {
        if (hold.lost) core_.client().losses().tell(std::move(*hold.lost));
        hold.lost.reset();
    }

    void schedule() {
        if (core_.closed) return;
        Instant at = never;
        Instant lost_at = never;
        for (const HoldRecord& hold : holds_) {
            if (!hold.live()) continue;
            at = std::min(at, hold.next_deadline());
            lost_at = std::min(lost_at, hold.lost_at());
            const Shares& shares = shares_.at(hold.owner);
            if (shares.look_again > shares.looked_at) at = std::min(at, shares.look_again);
            for (const Share& share : shares.of)
                if (share.votes_from > shares.looked_at) at = std::min(at, share.votes_from);
        }
        if (at != never) core_.client().timers().schedule(core_.task, at);
        if (lost_at != never) core_.client().losses().timers().schedule(core_.task, lost_at);
    }

    QuorumCore& core_;
    QuorumVotes& votes_;
    HoldTable holds_;
    std::uint64_t last_hold_ = 0;
    std::map<OwnerNumber, Shares> shares_;
    std::vector<Instant> ends_;  // scratch memory of validity(), with room for all members
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_releases.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Releases the members of one lock over several, all at the same time. A thread that waits for the replies sleeps on the
// condition variable of its releases; each reply wakes it.
class QuorumReleases {
public:
    QuorumReleases(QuorumCore& core, QuorumHolds& holds) : core_(core), holds_(holds) {}

    // Releases one level. Returns no error on success, hold_lost if the hold had already ended, unreachable if too few
    // members could be released yet (the background resends the releases). Returns nothing if the owner holds nothing.
    // Without memory the members' holds end all the same, at the latest with their leases. Waits for the replies until
    // `limit` at most.
    std::optional<std::error_code> release(OwnerNumber owner, Instant limit = never) {
        std::unique_lock lock(core_.mutex);
        const auto end = holds_.leave_level(owner);
        if (!end) return std::nullopt;
        const auto& shares = end->shares->of;
        const Releases releases = give_back(
            lock, owner, [&](std::size_t i) { return shares[i].leaving; }, limit);
        give_back(
            lock, owner, [&](std::size_t i) { return shares[i].owed; }, Clock::now());
        if (!end->live) return errc::hold_lost;
        if (releases.lost > 0) holds_.live_hold(owner);  // the remaining levels may be lost, too
        // Others can acquire the lock as soon as too few members are left with this owner.
        if (releases.asked - releases.done <= core_.members.size() - core_.rules.needed) return std::error_code();
        return releases.lost > 0 ? errc::hold_lost : errc::unreachable;
    }

    struct Releases {
        std::size_t asked = 0;
        std::size_t answered = 0;
        std::size_t done = 0;
        std::size_t lost = 0;
    };

    // Releases `how_many(i)` levels of each member i. Returns the outcome once all have replied, or after node_timeout,
    // or at `limit`. Without memory it does not wait for the replies.
    template <class HowMany>
    Releases give_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner, HowMany how_many, Instant limit = never) {
        struct Shared {
            Releases count;
            std::condition_variable changed;
        };
        Releases none;
        for (std::size_t i = 0; i < core_.members.size(); ++i) none.asked += how_many(i);
        if (none.asked == 0) return none;
        lock.unlock();
        std::shared_ptr<Shared> shared;
        std::function<void(std::error_code)> told = [](std::error_code) {};
        try {
            shared = std::make_shared<Shared>();
            shared->count = none;
            told = [this, keep = core_.keep(), shared](std::error_code ec) {
                const std::lock_guard relock(core_.mutex);
                ++shared->count.answered;
                if (!ec) ++shared->count.done;
                if (ec == errc::hold_lost) ++shared->count.lost;
                shared->changed.notify_all();
            };
        } catch (const std::bad_alloc&) {
            shared.reset();
        }
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            lock.lock();
            std::size_t levels = how_many(i);
            lock.unlock();
            for (; levels > 0; --levels) give_back(i, owner, told);
        }
        const Instant until = std::min(limit, Clock::now() + core_.rules.node_timeout);
        lock.lock();
        if (!shared) return none;
        core_.await(lock, shared->changed, until, [&] { return shared->count.answered == shared->count.asked; });
        return shared->count;
    }

private:
    void give_back(std::size_t member, OwnerNumber owner, const std::function<void(std::error_code)>& told) {
        try {
            core_.members[member]->release_in_background(owner, told, Receiver::poster);
        } catch (const std::exception&) {  // no memory, no thread: the member retries by itself, or its lease ends
            told(make_error_code(std::errc::not_enough_memory));
        }
    }

    QuorumCore& core_;
    QuorumHolds& holds_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_acquire.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Acquires a lock over several. It asks all members at once. If too few could be acquired, it releases them at once. A
// waiter holds no member: it waits for one that another owner has, acquires it, and asks the others again. So no order
// of members makes two callers wait for each other.
//
// A thread that waits for the replies of a round sleeps on the round's condition variable; replies and its stop token
// wake it. Between two rounds it sleeps in its own slot; only its stop token wakes it.
class QuorumAcquire {
public:
    QuorumAcquire(QuorumCore& core, QuorumVotes& votes, QuorumHolds& holds, QuorumReleases& releases)
        : core_(core), votes_(votes), holds_(holds), releases_(releases) {
        for (std::size_t i = 0; i < core_.members.size(); ++i) order_.push_back(i);
        std::stable_sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
            return core_.members[a]->key() < core_.members[b]->key();
        });
    }

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(LockRequest request) {
        if (request.stop.stop_requested()) return false;
        if (request.one_try) request.deadline = never;
        check_lease(request);
        Caller me;
        {
            std::unique_lock lock(core_.mutex);
            if (request.again && (core_.closed || !holds_.live_hold(request.owner)))
                throw Error(errc::hold_lost, core_.name, "the hold has ended");
            ask(lock, me, request);
        }
        // Constructed and destroyed without the mutex, which the callback locks.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(core_.mutex);
            me.slot.wake(no_receiver_);
        });
        std::unique_lock lock(core_.mutex);
        return wait_loop(lock, no_receiver_, *this, me, request);
    }

    // --- the caller's state machine -----------------------------------------------------------------------------

    // Since when too few members have answered, and the first reason. A later reason may only be that an earlier try is
    // still in flight.
    struct Failure {
        Instant since;
        Error why;
    };

    // A thread that acquires the lock.
    struct Caller : Waiter {
        const Instant begun = Clock::now();
        Backoff pause{Milliseconds(2), Milliseconds(100)};
        std::optional<Failure> failing{};
        std::optional<std::size_t> blocked_on{};  // a member that another owner holds: it waits for that one first
        Instant ask_again{};                      // when the next round is due
        bool leaves = false;                      // True if it stops trying
        bool asked = false;                       // True after the first round
    };

    NextStep next(Caller& me, Instant now) const {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.leaves) return {NextStep::Kind::leave};
        if (now >= me.ask_again) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, me.ask_again};
    }

    // Waits for the member that stood in the way, if there is one, and asks all members.
    void ask(std::unique_lock<std::mutex>& lock, Caller& me, const LockRequest& request) {
        lock.unlock();
        std::optional<std::size_t> waited_for;
        if (me.blocked_on) {
            waited_for = wait_for(*std::exchange(me.blocked_on, std::nullopt), me, request);
            if (!waited_for) return lock.lock();
        }
        if (request.stop.stop_requested()) {
            lock.lock();
            const auto acquired = [&](std::size_t i) { return i == waited_for; };
            return void(releases_.give_back(lock, request.owner, acquired, Clock::now()));
        }
        const Instant asked = Clock::now();
        const Instant give_up = give_up_at(request, me.begun, me.failing ? me.failing->since : asked);
        LockRequest round = request;
        if (!std::exchange(me.asked, true)) round.deadline = std::max(request.deadline, asked + Patience::honest_try);
        const Outcome outcome = take(round, waited_for, give_up);
        lock.lock();
        if (outcome.held)
            me.phase = Waiter::Phase::served;
        else
            go_on_after(me, outcome, request, {asked, give_up, waited_for.has_value()});
    }

private:
    struct Outcome {
        bool held = false;
        bool too_late = false;                    // True if enough members were held, but not for long enough
        bool cut_short = false;                   // True if the caller ended it before it was decided
        std::optional<std::size_t> blocked_on{};  // a member that another owner holds
        Instant again_at{};                       // otherwise when to ask again
        std::optional<Error> why{};               // the error if too few answered
        bool by_servers = false;                  // True if too many servers have answered with an error
    };

    // The longest wait for one of several independent members, whose server may be the one that fails.
    static constexpr Milliseconds slice{3000};

    // How often a call with a limit asks again for members that other callers had at the same time.
    static constexpr int most_again = 3;

    // A round that was asked at `asked`, could go on until `give_up`, and began with a member that was waited for.
    struct RoundTimes {
        Instant asked;
        Instant give_up;
        bool in_vain;
    };

    // Decides how the caller goes on after a round without success. Throws if it cannot succeed.
    void go_on_after(Caller& me, const Outcome& outcome, const LockRequest& request, const RoundTimes& round) const {
        const Instant now = Clock::now();
        if (!outcome.why && !outcome.cut_short) me.failing.reset();
        if (outcome.why && !me.failing) me.failing = Failure{round.asked, *outcome.why};
        if (outcome.why && (is_for_good(*outcome.why) || (request.one_try && outcome.by_servers))) throw *outcome.why;
        // Servers that got less than node_timeout count as slow, not as unreachable.
        const bool given_time = me.failing && now - me.failing->since >= core_.rules.node_timeout;
        if (me.failing && (now >= round.give_up || (now >= request.deadline && given_time))) throw me.failing->why;
        me.leaves = (request.one_try && !me.failing) || now >= request.deadline;
        if (me.failing) {
            me.ask_again = std::min(round.give_up, now + me.pause.next());
            return;
        }
        me.blocked_on = outcome.blocked_on;
        // Pause, so that callers that released a member each do not collide again. An acquire that came too late may
        // also do so again.
        const Instant rested = round.in_vain || outcome.too_late ? now + me.pause.next() : now;
        me.ask_again = outcome.blocked_on ? rested : std::max(rested, std::min(outcome.again_at, now + slice));
    }

    void check_lease(const LockRequest& request) const {
        if (!core_.rules.independent || !request.lease) return;
        if (*request.lease > core_.rules.longest_lease)
            throw Error(
                errc::invalid_argument, core_.name,
                "the lease exceeds RedLockOptions::longest_lease; use a shorter lease, or raise longest_lease in "
                "all processes");
        if (*request.lease <= core_.drift_over(*request.lease))
            throw Error(errc::invalid_argument, core_.name,
                        "the lease does not exceed the clock drift allowance; use a longer lease");
    }

    static bool is_for_good(const Error& error) {
        return error.code() != errc::unreachable && error.code() != errc::overloaded &&
               error.code() != errc::not_replicated;
    }

    Instant give_up_at(const LockRequest& request, Instant begun, Instant failing_since) const {
        const ClientOptions& options = core_.client().options();
        if (request.one_try)
            return begun + std::max(Milliseconds(100), std::min(options.command_timeout, options.unreachable_timeout));
        return deadline_after(failing_since, options.unreachable_timeout);
    }

    // --- a round ----------------------------------------------------------------------------------------------

    // Asks all members for one more level. `waited_for` is held already.
    Outcome take(const LockRequest& request, std::optional<std::size_t> waited_for, Instant give_up) {
        std::shared_ptr<QuorumRound> round;
        try {
            core_.client().start_losses();
            core_.client().start_background();
            round = std::make_shared<QuorumRound>(core_.members.size());
            return take(request, waited_for, give_up, round);
        } catch (...) {  // no memory, no thread: releases what was acquired and what still comes
            std::unique_lock lock(core_.mutex);
            if (round) round->over = true;
            releases_.give_back(
                lock, request.owner, [&](std::size_t i) { return i == waited_for || (round && round->had(i)); },
                Clock::now());
            throw;
        }
    }

    Outcome take(const LockRequest& request, std::optional<std::size_t> waited_for, Instant give_up,
                 const std::shared_ptr<QuorumRound>& round) {
        {
            // Drops the votes of earlier levels that are lost by now. They must not count as held without a gap.
            const std::lock_guard lock(core_.mutex);
            holds_.live_hold(request.owner);
        }
        const Instant begun = Clock::now();
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            if (i == waited_for)
                answered(round, request.owner, i, {TryAnswer::Kind::held});
            else
                ask(request, round, i);
        }
        // Constructed and destroyed without the mutex, which the callback locks.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(core_.mutex);
            round->stopped = true;
            round->changed.notify_all();
        });
        std::unique_lock lock(core_.mutex);
        round->whole_time = std::min(give_up, begun + core_.rules.node_timeout);
        const Instant limit = std::min(round->whole_time, request.deadline);
        Instant asked = begun;
        for (int again = 0;; ++again) {
            await_answers(lock, *round, asked, limit);
            if (round->votes(Clock::now()) >= core_.rules.needed && holds_.accept(request, *round, begun))
                return {.held = true};
            if (again == most_again || (request.deadline == never && !request.one_try)) break;
            if (round->stopped || !round->goes_first(order_)) break;
            // Callers that asked at the same time and got the other members are releasing them now.
            const Instant now = Clock::now();
            const Clock::duration trip =
                std::clamp<Clock::duration>(now - asked, std::chrono::microseconds(500), Milliseconds(20));
            round->changed.wait_until(lock, std::min(limit, now + trip * (1 << again)), [&] { return round->stopped; });
            asked = Clock::now();
            if (round->stopped || asked >= limit || !ask_again(lock, request, round)) break;
        }
        const Outcome outcome = why_not(*round, limit);
        round->over = true;
        const auto had = [&](std::size_t i) { return round->had(i); };
        releases_.give_back(lock, request.owner, had, round->stopped ? Clock::now() : request.deadline);
        return outcome;
    }

    void await_answers(std::unique_lock<std::mutex>& lock, QuorumRound& round, Instant asked, Instant limit) {
        core_.await(lock, round.changed, limit,
                    [&] { return round.stopped || round.decided(core_.rules.needed, Clock::now()); });
        const Instant now = Clock::now();
        // The remaining members will most likely answer soon, too. Waiting for them leaves nothing to the background,
        // whatever the outcome.
        const Instant soon = std::min(limit, now + (now - asked) + Milliseconds(1));
        core_.await(lock, round.changed, soon, [&] { return round.stopped || round.complete(); });
        if (!round.complete()) core_.stop_attending();
    }

    void ask(const LockRequest& request, const std::shared_ptr<QuorumRound>& round, std::size_t member) {
        const auto tell = [this, keep = core_.keep(), round, owner = request.owner, member](const TryAnswer& answer) {
            return answered(round, owner, member, answer);
        };
        core_.members[member]->try_in_background(request.owner, request.lease, tell, Receiver::poster);
    }

    // Asks the members again that refused. Returns true if there were any.
    bool ask_again(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                   const std::shared_ptr<QuorumRound>& round) {
        bool any = false;
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            if (!round->ask_again(i)) continue;
            any = true;
            lock.unlock();
            ask(request, round, i);
            lock.lock();
        }
        return any;
    }

    // Handles a member's reply. Returns true if the member is still wanted.
    bool answered(const std::shared_ptr<QuorumRound>& round, OwnerNumber owner, std::size_t member,
                  const TryAnswer& answer) {
        std::unique_lock lock(core_.mutex);
        if (core_.closed) return false;
        if (round->over) return round->hold != 0 && holds_.answered(lock, {owner, round->hold, member}, answer);
        switch (answer.kind) {
            case TryAnswer::Kind::late: return true;
            case TryAnswer::Kind::refused: round->refused(member); break;
            case TryAnswer::Kind::failed: round->failed(member, answer.why, answer.by_server); break;
            case TryAnswer::Kind::held:
                round->held_without_vote(member);
                try {
                    votes_.ask_trust(
                        lock, member,
                        [this, round, owner, member](Instant trusted_from, const std::optional<Error>& why) {
                            if (why)
                                round->failed(member, *why);
                            else if (round->hold != 0)
                                holds_.let_vote({owner, round->hold, member}, trusted_from);
                            else
                                round->held(member, std::max(trusted_from, Clock::now()));
                            round->changed.notify_all();
                        });
                } catch (const std::bad_alloc&) {  // acquired, so the round releases it
                    round->failed(member, std::nullopt);
                }
                break;
        }
        round->changed.notify_all();
        return true;
    }

    // `limit`: until when the round waited for replies.
    Outcome why_not(QuorumRound& round, Instant limit) const {
        Outcome outcome;
        const bool decided = round.decided(core_.rules.needed, Clock::now());
        if (!decided && (round.stopped || limit < round.whole_time)) {
            outcome.cut_short = true;
            return outcome;
        }
        if (!decided) round.time_is_up();
        if (round.unreachable(core_.rules.needed)) {
            outcome.why = round.why();
            outcome.by_servers = round.refused_by_servers(core_.rules.needed);
            if (!outcome.why)
                outcome.why.emplace(errc::unreachable, core_.name,
                                    std::to_string(round.failures()) + " of the " +
                                        std::to_string(core_.members.size()) +
                                        " members did not reply in time; check that their servers are running");
        } else {
            outcome.blocked_on = round.first_refused();
            outcome.again_at = round.votes_at(core_.rules.needed);
            outcome.too_late = outcome.again_at <= Clock::now();
        }
        return outcome;
    }

    // Waits for a member that another owner holds. Returns it if it was acquired.
    std::optional<std::size_t> wait_for(std::size_t member, Caller& me, const LockRequest& request) {
        LockRequest one = request;
        if (core_.rules.independent) one.deadline = std::min(request.deadline, Clock::now() + slice);
        try {
            if (core_.members[member]->acquire(one)) return member;
        } catch (const Error& error) {
            // The next round shows whether only a minority fails.
            if (!core_.rules.independent || is_for_good(error)) throw;
            me.ask_again = Clock::now() + Milliseconds(50);
        }
        return std::nullopt;
    }

    QuorumCore& core_;
    QuorumVotes& votes_;
    QuorumHolds& holds_;
    QuorumReleases& releases_;
    std::vector<std::size_t> order_;  // the members sorted by key: the same order for all callers
    NoReceiver no_receiver_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_state.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One lock over several in this process: it is held while `needed` of its members are held. It is made of parts, and
// passes calls and events on to them. The mutex of QuorumCore guards all of them.
class QuorumState final : public BackgroundTask, public HoldKeeper {
public:
    QuorumState(std::vector<std::shared_ptr<QuorumMember>> members, const QuorumRules& rules, const std::string& name,
                bool is_fork_child)
        : core_(*this, std::move(members), rules, name), is_fork_child_(is_fork_child) {}

    // Returns false in a child that was forked since this object was made.
    bool is_of_this_process() const noexcept override { return process_ == this_process(); }

    // Reports all holds as lost, and releases those that belong to objects. Afterwards no other thread calls a member:
    // objects that have a hold may outlive this lock and its members.
    void close() {
        {
            const std::lock_guard lock(core_.mutex);
            holds_.tell_losses();
        }
        for (const OwnerNumber owner : holds_of_objects())
            while (release_level_later(owner)) continue;
        {
            std::unique_lock lock(core_.mutex);
            core_.closed = true;
            core_.idle.wait(lock, [this] { return core_.inside == 0; });
        }
        core_.client().timers().forget(*this);
        core_.client().losses().timers().forget(*this);
    }

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(const LockRequest& request) override { return acquire_.acquire(request); }

    // Releases one level: see QuorumReleases::release(). Throws Error(errc::not_owner) and nothing else.
    std::error_code release(OwnerNumber owner) override {
        std::unique_lock lock(core_.mutex);
        if (core_.closed) return errc::hold_lost;
        const InsideMembers inside(core_, lock);
        if (const auto outcome = releases_.release(owner)) return *outcome;
        if (is_fork_child_) return errc::hold_lost;
        throw Error(errc::not_owner, core_.name, "only the thread that holds the lock can unlock() it");
    }

    void release_later(OwnerNumber owner) noexcept override { release_level_later(owner); }

    std::string name_as_given() const override { return core_.name; }

    Facts facts(OwnerNumber owner) override { return {owner - first_hold_owner + 1}; }

    // --- queries without a command ----------------------------------------------------------------------------

    Instant valid_until(OwnerNumber owner) override {
        const std::lock_guard lock(core_.mutex);
        return core_.closed ? Instant::min() : holds_.valid_until(owner);
    }

    std::stop_token lost(OwnerNumber owner) override {
        const std::lock_guard lock(core_.mutex);
        return core_.closed ? lost_token(nullptr) : holds_.lost(owner);
    }

    // Recomputes the validity of all holds, because members may have changed.
    void look() {
        const std::lock_guard lock(core_.mutex);
        holds_.look(Clock::now());
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant horizon, std::vector<Renewal>&) override {
        std::unique_lock lock(core_.mutex);
        if (!core_.closed) holds_.on_timer(lock, now, horizon);
    }

    void expire(Instant now) override {
        const std::lock_guard lock(core_.mutex);
        if (!core_.closed) holds_.look(now);
    }

private:
    // Returns false if the owner holds nothing, or no level could be released.
    bool release_level_later(OwnerNumber owner) noexcept try {
        std::unique_lock lock(core_.mutex);
        if (core_.closed) return false;
        const InsideMembers inside(core_, lock);
        return releases_.release(owner, Clock::now()).has_value();
    } catch (...) {
        return false;
    }

    std::vector<OwnerNumber> holds_of_objects() noexcept try {
        const std::lock_guard lock(core_.mutex);
        return holds_.of_objects();
    } catch (...) {
        return {};
    }

    QuorumCore core_;
    QuorumVotes votes_{core_};
    QuorumHolds holds_{core_, votes_};
    QuorumReleases releases_{core_, holds_};
    QuorumAcquire acquire_{core_, votes_, holds_, releases_};
    const bool is_fork_child_;
    const ProcessMark process_ = this_process();
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/quorum/quorum_api.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline std::string names_of(const QuorumMembers& members) {
    std::vector<std::string> names;
    for (const auto& member : members)
        if (std::find(names.begin(), names.end(), member->name()) == names.end()) names.push_back(member->name());
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return all;
}

// Queries all members at the same time. Returns the largest value that enough of the answers reach to be true of the
// whole lock. Members that fail or take longer than node_timeout give no answer. If too few do, throws the first failure.
template <class Answer, class Ask>
Answer ask_quorum(const QuorumMembers& members, const QuorumRules& rules, Ask ask) {
    std::vector<std::optional<Answer>> answers(members.size());
    std::vector<std::exception_ptr> errors(members.size());
    const Instant limit = deadline_after(Clock::now(), rules.node_timeout);
    const auto one = [&](std::size_t i) {
        try {
            answers[i] = ask(*members[i], limit);
        } catch (...) {
            errors[i] = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    others.reserve(members.size());
    for (std::size_t i = 1; i < members.size(); ++i) {
        try {
            others.push_back(thread_with_signals_blocked([&one, i] { one(i); }));
        } catch (const std::exception&) {
            one(i);  // no more threads, or no memory for one
        }
    }
    one(0);
    for (std::thread& other : others) other.join();
    std::vector<Answer> given;
    for (std::optional<Answer>& answer : answers)
        if (answer) given.push_back(std::move(*answer));
    if (given.size() < rules.needed)
        for (const std::exception_ptr& error : errors)
            if (error) std::rethrow_exception(error);
    std::sort(given.begin(), given.end(), std::greater<>());
    return given[rules.needed - 1];
}

REDLATCH_INLINE QuorumApi::QuorumApi(QuorumMembers members, const QuorumRules& rules)
    : members_(std::move(members)), rules_(rules), name_(names_of(members_)), state_(new_state(false)) {}

REDLATCH_INLINE QuorumApi::~QuorumApi() {
    const KeepErrno kept;
    const State mine = *state_.load();
    if (!mine->is_of_this_process()) return;
    mine->close();
    delete state_.load();
}

REDLATCH_INLINE QuorumMembers QuorumApi::members_of(const std::vector<NamedLock*>& locks) {
    QuorumMembers members;
    for (NamedLock* lock : locks) members.push_back(std::make_shared<LockMember>(*lock));
    return members;
}

// --- on behalf of an owner ---------------------------------------------------------------------------------------

REDLATCH_INLINE bool QuorumApi::acquire(const LockRequest& request) { return state()->acquire(request); }

REDLATCH_INLINE std::error_code QuorumApi::release(OwnerNumber owner) { return state()->release(owner); }

// The members, which outlive this object, keep their sessions alive. After close() a hold uses neither.
REDLATCH_INLINE HeldLevel QuorumApi::keeper_of_holds() { return {nullptr, state()}; }

REDLATCH_INLINE Instant QuorumApi::valid_until_of(OwnerNumber owner) { return state()->valid_until(owner); }

REDLATCH_INLINE std::stop_token QuorumApi::lost_of(OwnerNumber owner) { return state()->lost(owner); }

// Ends the holds of all members. Returns true if one of them was held.
REDLATCH_INLINE bool QuorumApi::force_release(Instant) {
    std::atomic<bool> was_held{false};
    ask_quorum<bool>(members_, rules_, [&](QuorumMember& member, Instant limit) {
        const bool was = member.force_release(limit);
        if (was) was_held = true;
        return was;
    });
    state()->look();
    return was_held;
}

// Returns true if enough members are held for the whole lock to be held.
REDLATCH_INLINE bool QuorumApi::ask_locked(Instant) {
    return ask_quorum<bool>(members_, rules_,
                            [](QuorumMember& member, Instant limit) { return member.ask_locked(limit); });
}

REDLATCH_INLINE int QuorumApi::ask_hold_count(OwnerNumber owner, Instant) {
    return ask_quorum<int>(
        members_, rules_, [owner](QuorumMember& member, Instant limit) { return member.ask_hold_count(owner, limit); });
}

REDLATCH_INLINE std::optional<Milliseconds> QuorumApi::ask_remaining_lease(Instant) {
    return ask_quorum<std::optional<Milliseconds>>(
        members_, rules_, [](QuorumMember& member, Instant limit) { return member.ask_remaining_lease(limit); });
}

// --- the state of this process -----------------------------------------------------------------------------------

REDLATCH_INLINE QuorumApi::State* QuorumApi::new_state(bool is_fork_child) const {
    return new State(std::make_shared<QuorumState>(members_, rules_, name_, is_fork_child));
}

// Returns this process's state. A forked child makes a new one and leaves the parent's alone: its mutex may be held by a
// thread that does not exist in the child.
REDLATCH_INLINE QuorumApi::State& QuorumApi::state() {
    State* state = state_.load(std::memory_order_acquire);
    while (!(*state)->is_of_this_process()) {
        State* mine = new_state(true);
        if (state_.compare_exchange_strong(state, mine)) return *mine;
        delete mine;
    }
    return *state;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/multi_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Combines several locks into one: a hold has all of them or none. Members may differ in kind, name and server. They
// stay ordinary locks for code that takes them one by one. The counterpart of Redisson's MultiLock.
//
//   redlatch::MultiLock both{from, to};           // or a range: MultiLock(std::vector<RLock*>)
//   std::lock_guard guard{both};
//
// The client queries all members at the same time. Acquiring takes one round trip and one command per member; releasing
// takes as many. A waiting call holds none of the members, so threads may name them in any order. A hold is valid as
// long as all of its parts are. is_locked(), hold_count() and remaining_lease() report what is true of all members.
//
// Reentrant if its members are. Members must outlive this object. A hold belongs to the object that took it. Neither
// copyable nor movable. Any number of threads may use one object.
class MultiLock : public detail::QuorumApi {
public:
    // Throws Error(errc::invalid_argument) if a lock is named twice. Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit MultiLock(Locks&... locks)
        : MultiLock(Whole{}, {detail::member_lock(locks)...}) {}

    template <detail::LockRange Range>
    explicit MultiLock(Range&& range) : MultiLock(Whole{}, detail::member_locks_in(range)) {}

private:
    struct Whole {};

    MultiLock(Whole, const std::vector<detail::NamedLock*>& locks);
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/multi_lock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// Sorts by name, so that all waiters meet at the same member.
inline QuorumMembers sorted_by_name(QuorumMembers members) {
    if (members.empty()) throw Error(errc::invalid_argument, {}, "a MultiLock needs at least one member");
    for (std::size_t i = 0; i < members.size(); ++i)
        for (std::size_t j = i + 1; j < members.size(); ++j)
            if (members[i]->lock() == members[j]->lock())
                throw Error(errc::invalid_argument, members[i]->name(),
                            "a MultiLock must not contain the same lock twice");
    std::stable_sort(members.begin(), members.end(),
                     [](const auto& a, const auto& b) { return a->name() < b->name(); });
    return members;
}

inline QuorumRules all_of(const std::vector<NamedLock*>& locks) {
    Milliseconds longest{0};
    for (NamedLock* lock : locks) longest = std::max(longest, LockMember(*lock).options().command_timeout);
    return {.needed = locks.size(), .node_timeout = longest};
}

}  // namespace detail

REDLATCH_INLINE MultiLock::MultiLock(Whole, const std::vector<detail::NamedLock*>& locks)
    : QuorumApi(detail::sorted_by_name(members_of(locks)), detail::all_of(locks)) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/lock/spin_options.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// How a SpinLock or a Mutex waits: pauses start at initial_delay and double up to max_delay. Jitter shortens each by up
// to a half, so that waiters do not retry at the same time.
struct SpinOptions {
    std::chrono::milliseconds initial_delay{1};
    std::chrono::milliseconds max_delay{128};
};

namespace detail {

// Throws Error(errc::invalid_argument) if initial_delay is below 1 ms or above max_delay, or max_delay is above 1 h.
inline Polling polling_of(const SpinOptions& options, std::string_view name) {
    if (options.initial_delay < Milliseconds(1) || options.max_delay < options.initial_delay ||
        options.max_delay > std::chrono::hours(1))
        throw Error(errc::invalid_argument, name,
                    "SpinOptions: the delays must be from 1 ms to 1 h, and initial_delay must not exceed max_delay");
    return {options.initial_delay, options.max_delay};
}

}  // namespace detail

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/mutex.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides the distributed lock of the Redis documentation: SET name value NX PX lease acquires it, and deleting the
// key if it still has that value releases it. The key is the name itself, after the client's key_prefix. So this lock
// and every other client that locks this way, in any language, exclude each other. Each hold has its own value:
// "<client id>:<thread number>:<number>".
//
// Not reentrant. lock() and its variants, try_lock() included, throw Error(errc::would_deadlock) in the thread that
// holds the lock; std::mutex would be undefined there. They throw at once and send nothing. A lost hold does not count:
// its thread may acquire the lock again like any other.
//
// Releases publish no message. So a waiting process retries after growing pauses, as a SpinLock does: one command per
// pause, however many of its threads wait. Threads of one process hand the lock over among themselves. Acquiring a free
// lock is one command and releasing it is another. A failed attempt takes two, because the plain command does not
// report why it was refused. Servers that can delete by value themselves (Redis 8.4, Valkey 9) are asked to do so. The
// first release of a client finds out whether the server can; it costs two commands if the server cannot.
//
// The watchdog, leases, lost() and errors are those of RLock. Other kinds of lock with that name are refused with
// errc::wrong_type.
class Mutex : public detail::NamedLock {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does, and for delays that are not positive or whose
    // first is longer than the longest. Sends nothing.
    Mutex(Client& client, std::string_view name, SpinOptions options = {});

private:
    REDLATCH_INLINE bool acquire(const detail::LockRequest& request) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(detail::OwnerNumber owner, Instant limit) override;

    // Returns the value of the current holder.
    std::optional<std::string> value(Instant limit);

    const detail::Polling polling_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/mutex.hpp

// The scripts of the plain mutex. Key: a string, the value of the holder, with a TTL: the same as other programs write
// that lock by SET NX PX. The value is new for each hold. So a command that is sent twice, or comes late, finds another
// value and does nothing.
//
// Order of writes: under maxmemory Redis refuses SET, unless the script has written before. So scripts that must always
// succeed begin with PEXPIRE or DEL.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view mutex_acquire{R"lua(
-- Does the same as SET lock value NX PX lease, but accepts its own value if it is set already, and returns the PTTL.
-- KEYS: lock.  ARGV: value, lease in ms, wanted until.
-- Answer: "OK <the server's clock>" = held; n >= -1 = blocked, the holder's PTTL.
local lock = KEYS[1]
local value, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local current = redis.call('get', lock)
if not current then
    redis.call('set', lock, value, 'px', lease)
else
    local left = redis.call('pttl', lock)
    if current ~= value then return left end
    if left < tonumber(lease) then redis.call('pexpire', lock, lease) end
end
return redis.status_reply(string.format('OK %.0f', now))
)lua"};

inline constexpr std::string_view mutex_give_up{R"lua(
-- KEYS: lock.  ARGV: values to give up.
-- Answer: the server's clock. A copy of a request with one of them may still take effect until it is no longer wanted.
local now = time_in_ms()
local current = redis.call('get', KEYS[1])
for i = 1, #ARGV do
    if current == ARGV[i] then redis.call('del', KEYS[1]) end
end
return now
)lua"};

inline constexpr std::string_view mutex_hand_over{R"lua(
-- KEYS: lock.  ARGV: value, the next holder's value, its lease in ms, wanted until.
-- Answer: 1 = the next holder has it; nil = neither of them does.
local lock = KEYS[1]
local value, heir, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local current = redis.call('get', lock)
if current == heir then return 1 end
if current ~= value then return nil end
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
-- If SET is refused, the owner still holds the lock and releases it by another command.
redis.call('pexpire', lock, lease)
redis.call('set', lock, heir, 'px', lease)
return 1
)lua"};

inline constexpr std::string_view mutex_renew{R"lua(
-- KEYS: up to 100 locks.  ARGV: lease in ms, wanted until, then the value of each lock.
-- Answer: for each lock 1 = renewed, 0 = not held with this value. Never creates a key, never shortens a TTL.
local lease, wanted_until = tonumber(ARGV[1]), ARGV[2]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local renewed = {}
for i, lock in ipairs(KEYS) do
    local current = redis.pcall('get', lock)
    -- A key of another type is lost, but the other locks must not expire for that.
    if type(current) == 'table' and not string.find(current.err, 'WRONGTYPE', 1, true) then return current end
    renewed[i] = 0
    if current == ARGV[i + 2] then
        renewed[i] = 1
        if redis.call('pttl', lock) < lease then redis.call('pexpire', lock, ARGV[1]) end
    end
end
return renewed
)lua"};

}  // namespace parts

inline constexpr std::string_view mutex_acquire = joined<parts::wanted_until, parts::mutex_acquire>;

inline constexpr std::string_view mutex_release{R"lua(
-- KEYS: lock.  ARGV: value.  Answer: 1 = released; 0 = not held with this value (any more).
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('del', KEYS[1])
)lua"};

inline constexpr std::string_view mutex_give_up = joined<parts::wanted_until, parts::mutex_give_up>;
inline constexpr std::string_view mutex_hand_over = joined<parts::wanted_until, parts::mutex_hand_over>;
inline constexpr std::string_view mutex_renew = joined<parts::wanted_until, parts::mutex_renew>;

inline constexpr std::string_view mutex_remaining_lease{R"lua(
-- KEYS: lock.  Answer: PTTL; -2 = not held.
if not redis.call('get', KEYS[1]) then return -2 end
return redis.call('pttl', KEYS[1])
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::mutex_acquire>{scripts::mutex_acquire,
    "013350c56fb0d0ff471db5cd00fe2d4c52eecc87"};
template <>
inline constexpr Script digested<scripts::mutex_give_up>{scripts::mutex_give_up,
    "119da3d36fc09df99559caa8aba511266bb41bb6"};
template <>
inline constexpr Script digested<scripts::mutex_hand_over>{scripts::mutex_hand_over,
    "6d1d545859c27545fa83debd6f88e3ea1cda923f"};
template <>
inline constexpr Script digested<scripts::mutex_release>{scripts::mutex_release,
    "dea84919d474e92dd1bf15fe22a17c21d253a8f8"};
template <>
inline constexpr Script digested<scripts::mutex_remaining_lease>{scripts::mutex_remaining_lease,
    "a019174679984390b74c15b859e3a4ff369db618"};
template <>
inline constexpr Script digested<scripts::mutex_renew>{scripts::mutex_renew,
    "7f3799c9b8282ced478ccc08c3658917fb9b1cb2"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/mutex.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the plain mutex. The key holds the text of the owner of its one hold. A release publishes no
// message.
class MutexProtocol final : public LockProtocol {
public:
    static constexpr LockKind lock_kind{.name = "mutex ",
                                        .family = "Mutex",
                                        .renewal = digested<scripts::mutex_renew>,
                                        .reentrant = false,
                                        .hands_over = true,
                                        .fixes_lease_end = true};

    MutexProtocol(const ProtocolContext& context, const std::string& key)
        : LockProtocol(lock_kind, context, key), native_(context.native) {}

    // Makes the plain command for the first sending. Its refusal has no reason, so the script follows. From then on
    // only the script is sent: it recognizes the value of an earlier sending, it returns how long the holder's lease
    // lasts, it reports a key of another type, and it returns the server's clock.
    //
    // The plain command gives the end of the lease by the server's clock. So a late copy holds no longer than the first
    // would have. Servers before 6.2 accept only a duration.
    Call acquire(const Claim& claim) const override {
        return claim.first ? set(claim, native_.set()) : acquire_by_script(claim);
    }

    std::optional<Call> after_acquire(const Claim& claim, const Call& sent, const Reply& reply) const override {
        if (sent.script()) return std::nullopt;
        if (reply.is_nil()) return acquire_by_script(claim);
        if (!is_syntax_error(reply) || sent[4].view({}) != "PXAT") return std::nullopt;
        native_.refused(NativeCommands::Set::until);
        return set(claim, NativeCommands::Set::lasting);
    }

    AcquireAnswer read_acquire(const Reply& reply) const override {
        // The script's reply goes on with the server's clock.
        if (reply.kind == Reply::Kind::text && (reply.text == "OK" || reply.text.starts_with("OK ")))
            return {AcquireAnswer::Kind::held, {}, 0};
        if (!reply.is_integer() || reply.integer < -1) throw unexpected(reply, key_);
        return {AcquireAnswer::Kind::blocked, Milliseconds(reply.integer), 0};
    }

    // Releases by the script.
    Call release(std::uint64_t hold, std::uint32_t, Milliseconds) const override {
        return {digested<scripts::mutex_release>, {key_}, {text(hold)}};
    }

    // Releases by the server's own command if it has one. If an earlier sending got no reply, use the script.
    Call first_release(std::uint64_t hold) const override {
        switch (native_.compare_and_delete()) {
            case NativeCommands::Delete::delex: return Call::command({"DELEX", key_, "IFEQ", text(hold)});
            case NativeCommands::Delete::delifeq: return Call::command({"DELIFEQ", key_, text(hold)});
            default: return release(hold, 0, {});
        }
    }

    std::optional<Call> after_release(std::uint64_t hold, const Call& sent, const Reply& reply) const override {
        if (sent.script() || !reply.is_error() || classify(reply) != ReplyClass::refused) return std::nullopt;
        native_.refused(sent[0].view({}) == "DELEX" ? NativeCommands::Delete::delex : NativeCommands::Delete::delifeq);
        return first_release(hold);
    }

    // Releases the holds of these values. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> values) const override {
        Call call(digested<scripts::mutex_give_up>, {key_}, {});
        call.append(values);
        return call;
    }

    ReleaseAnswer read_release(const Reply& reply) const noexcept override {
        if (!reply.is_integer() || reply.integer < 0 || reply.integer > 1) return {ReleaseAnswer::Kind::senseless, 0};
        return {reply.integer == 1 ? ReleaseAnswer::Kind::released : ReleaseAnswer::Kind::not_held, 0};
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        return {digested<scripts::mutex_hand_over>,
                {key_},
                {text(hold), text(successor.hold), successor.lease, successor.until},
                Effect::grants};
    }

    // Returns the current holder's value, whichever it is. GET rather than EXISTS: a key of another type is an error,
    // not a lock.
    Call holders() const override { return Call::command({"GET", key_}); }
    Call remaining_lease() const override { return {digested<scripts::mutex_remaining_lease>, {key_}, {}}; }

private:
    Call set(const Claim& claim, NativeCommands::Set form) const {
        if (form == NativeCommands::Set::until)
            return Call::command({"SET", key_, text(claim.hold), "NX", "PXAT", claim.lease_end}, Effect::grants);
        return Call::command({"SET", key_, text(claim.hold), "NX", "PX", claim.lease}, Effect::grants);
    }

    Call acquire_by_script(const Claim& claim) const {
        return {digested<scripts::mutex_acquire>, {key_}, {text(claim.hold), claim.lease, claim.until}, Effect::grants};
    }

    NativeCommands& native_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/mutex.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker mutex_maker{MutexProtocol::lock_kind.name, LockState::make<MutexProtocol>};
}  // namespace detail

REDLATCH_INLINE Mutex::Mutex(Client& client, std::string_view name, SpinOptions options)
    : NamedLock(detail::ClientAccess::session(client), detail::mutex_maker, name),
      polling_(detail::polling_of(options, name)) {}

REDLATCH_INLINE bool Mutex::acquire(const detail::LockRequest& request) {
    detail::LockRequest polling = request;
    polling.polling = polling_;
    return NamedLock::acquire(polling);
}

REDLATCH_INLINE bool Mutex::ask_locked(Instant limit) { return value(limit).has_value(); }

// Returns at most 1. Sends no command if this process has no hold on record for this owner, because no other process can
// have acquired one in its name.
REDLATCH_INLINE int Mutex::ask_hold_count(detail::OwnerNumber owner, Instant limit) {
    const std::uint64_t hold = state().part(owner).hold;
    return hold != 0 && value(limit) == state().protocol().text(hold).view() ? 1 : 0;
}

REDLATCH_INLINE std::optional<std::string> Mutex::value(Instant limit) {
    detail::LockState& s = state();
    return detail::read_text(detail::query(s.session(), s.key(), s.protocol().holders(), limit), s.key());
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/permit_id.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Identifies one permit that is held: 16 random bytes. Any process in any language can release the permit with it. As
// text it has 32 hex digits, the same that Redisson shows.
class PermitId {
public:
    static PermitId random() { return PermitId(detail::random_bytes<16>()); }

    // Parses 32 hex digits. Throws Error(errc::invalid_argument) for anything else.
    static PermitId parse(std::string_view text) {
        std::array<unsigned char, 16> bytes{};
        bool proper = text.size() == 32;
        for (std::size_t i = 0; proper && i < 16; ++i) {
            const int high = value_of(text[2 * i]), low = value_of(text[2 * i + 1]);
            proper = high >= 0 && low >= 0;
            bytes[i] = static_cast<unsigned char>((high << 4 | low) & 0xff);
        }
        if (!proper) throw Error(errc::invalid_argument, {}, "a permit id must consist of 32 hex digits");
        return PermitId(bytes);
    }

    std::string text() const {
        static constexpr char digits[] = "0123456789abcdef";
        std::string hex;
        for (const unsigned char byte : bytes_) {
            hex += digits[byte >> 4];
            hex += digits[byte & 15];
        }
        return hex;
    }

    // Returns the bytes as stored in Redis.
    std::string_view bytes() const noexcept { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

    friend auto operator<=>(const PermitId&, const PermitId&) = default;

    template <class Traits>
    friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const PermitId& id) {
        return out << id.text().c_str();
    }

private:
    explicit PermitId(const std::array<unsigned char, 16>& bytes) : bytes_(bytes) {}

    static int value_of(char digit) {
        if (digit >= '0' && digit <= '9') return digit - '0';
        if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
        if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
        return -1;
    }

    std::array<unsigned char, 16> bytes_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

template <>
struct std::hash<redlatch::PermitId> {
    // The bytes are random already.
    std::size_t operator()(const redlatch::PermitId& id) const noexcept {
        std::size_t some;
        std::memcpy(&some, id.bytes().data(), sizeof some);
        return some;
    }
};

// redlatch/protocol/permit_lease.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// For how long a permit is acquired: with a lease of its own, without a TTL, or under the watchdog.
struct PermitLease {
    enum class Kind { watched, limited, forever } kind = Kind::watched;
    Milliseconds length{};  // if limited

    static PermitLease of(const Lease& lease) { return {Kind::limited, lease.length()}; }
    static PermitLease of(Lease::Forever) { return {Kind::forever, {}}; }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/permit_expirable_semaphore.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

class Permit;

// Provides a distributed semaphore in which each permit has an id and a lease, so the permits of a process that dies
// become available again. The counterpart of Redisson's RPermitExpirableSemaphore. The client's watchdog renews a
// permit taken without a lease until it is released. If renewal fails, the event hold_lost reports it.
//
// Within a process, waiting threads are served in order of arrival. Neither copyable nor movable. Any number of threads
// may use one object. Two objects with the same name are the same semaphore. Each member throws Error; with a trailing
// std::error_code& it stores the code and throws only std::bad_alloc. If the server cannot be reached, a call retries
// for ClientOptions::unreachable_timeout, then fails with errc::unreachable. A command may be resent after a lost reply
// and still takes effect once. An acquire that fails, is stopped or times out keeps no permit. Each member is one round
// trip, except for waiting.
class PermitExpirableSemaphore {
public:
    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    PermitExpirableSemaphore(Client& client, std::string_view name);

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // max() returns the largest number of permits; max_at_once() how many one call may acquire.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }
    static constexpr std::ptrdiff_t max_at_once() noexcept { return 10'000; }

    // --- number of permits --------------------------------------------------------------------------------------

    // Sets the number of permits if the semaphore does not exist. Returns true if it was set.
    bool try_set_permits(std::ptrdiff_t permits);
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits); }, false, ec);
    }

    // Sets the number of permits in any case. The number includes acquired permits, so the number of available ones may
    // become negative.
    void set_permits(std::ptrdiff_t permits);
    void set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        detail::answer([&] { return set_permits(permits), true; }, false, ec);
    }

    // Changes the number of permits by n, which must be from -max() to max().
    void add_permits(std::ptrdiff_t n);
    void add_permits(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return add_permits(n), true; }, false, ec);
    }

    // Return the number of available permits, of acquired permits, and the sum of both; 0 if the semaphore does not
    // exist. A permit whose lease has expired is available.
    std::ptrdiff_t available_permits();
    std::ptrdiff_t available_permits(std::error_code& ec) {
        return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
    }
    std::ptrdiff_t acquired_permits();
    std::ptrdiff_t acquired_permits(std::error_code& ec) {
        return detail::answer([&] { return acquired_permits(); }, std::ptrdiff_t(0), ec);
    }
    std::ptrdiff_t permits();
    std::ptrdiff_t permits(std::error_code& ec) {
        return detail::answer([&] { return permits(); }, std::ptrdiff_t(0), ec);
    }

    // --- acquiring ----------------------------------------------------------------------------------------------

    // Acquires a permit and waits for it if necessary. A waiting thread sends nothing until a permit is released or the
    // next lease expires, except one query every 5 to 10 seconds, in case a message was lost. A process with many
    // waiting threads sends no more than that.
    //   acquire()                   returns the PermitId of a permit that the watchdog renews
    //   acquire(Lease{d})           the permit becomes available again after d and is never renewed
    //   acquire(Lease::forever())   only a release makes the permit available again, even if this process dies
    //   acquire(…, token), acquire(…, ec)   returns a std::optional<PermitId>: gives up if a stop is requested, or
    //                               stores the error instead of throwing it
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) {
        std::optional<PermitId> id = one(take(1, detail::wait_until(never, tail...), tail...));
        if constexpr (detail::has_stop_token<Tail&...> || detail::has_error_code<Tail&...>)
            return id;
        else
            return *std::move(id);
    }

    // Acquires n permits at once, from 1 to max_at_once(). Returns an empty vector if it was stopped or failed.
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(never, tail...), tail...);
    }

    // Acquires one permit or n permits if they are available: one attempt, even if others wait. Accepts a lease and
    // std::error_code&.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::optional<PermitId> try_acquire(Tail&&... tail) {
        return one(take(1, {.one_try = true}, tail...));
    }
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::vector<PermitId> try_acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, {.one_try = true}, tail...);
    }

    // Waits at most until `timeout` has passed or the instant has come, by a monotonic clock. Timeouts are rounded up
    // to the next millisecond; zero or less is one attempt; the largest value waits indefinitely. Accepts a lease,
    // std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...));
    }
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n,
                                                        Tail&&... tail) {
        return take(n, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                            Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_at(when), tail...), tail...));
    }
    template <class AnyClock, class Duration, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                          std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(deadline_at(when), tail...), tail...);
    }

    // --- releasing ----------------------------------------------------------------------------------------------

    // Releases all of the permits or none. Throws Error(errc::unknown_permit) if one is not held: it was released
    // already, or its lease has expired. The watchdog then goes on renewing those that it renewed before. If no server
    // replies, the call fails with errc::unreachable, but the client retries it in the background and the watchdog no
    // longer renews these permits.
    void release(const PermitId& id) { release(std::span(&id, 1)); }
    void release(std::span<const PermitId> ids);
    void release(const PermitId& id, std::error_code& ec) {
        detail::answer([&] { return release(id), true; }, false, ec);
    }
    void release(std::span<const PermitId> ids, std::error_code& ec) {
        detail::answer([&] { return release(ids), true; }, false, ec);
    }

    // Does the same, but returns false instead of throwing errc::unknown_permit.
    [[nodiscard]] bool try_release(const PermitId& id) { return try_release(std::span(&id, 1)); }
    [[nodiscard]] bool try_release(std::span<const PermitId> ids);
    [[nodiscard]] bool try_release(const PermitId& id, std::error_code& ec) {
        return detail::answer([&] { return try_release(id); }, false, ec);
    }
    [[nodiscard]] bool try_release(std::span<const PermitId> ids, std::error_code& ec) {
        return detail::answer([&] { return try_release(ids); }, false, ec);
    }

    // --- leases -----------------------------------------------------------------------------------------------

    // Gives the permit this lease. The watchdog no longer renews it. Throws Error(errc::unknown_permit) if the permit
    // is not held.
    void update_lease(const PermitId& id, const Lease& lease) { set_lease(id, detail::PermitLease::of(lease)); }
    void update_lease(const PermitId& id, Lease::Forever lease) { set_lease(id, detail::PermitLease::of(lease)); }
    void update_lease(const PermitId& id, const Lease& lease, std::error_code& ec) {
        detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
    }
    void update_lease(const PermitId& id, Lease::Forever lease, std::error_code& ec) {
        detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
    }

    // Returns the remaining lease of the permit by the server's clock, nothing if the permit is not held, and
    // milliseconds::max() if its lease never expires.
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id);
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id, std::error_code& ec) {
        return detail::answer([&] { return remaining_lease(id); }, std::optional<std::chrono::milliseconds>(), ec);
    }

private:
    friend class Permit;

    static std::optional<PermitId> one(std::vector<PermitId> ids) {
        return ids.empty() ? std::nullopt : std::optional(ids.front());
    }

    template <class... Tail>
    std::vector<PermitId> take(std::ptrdiff_t n, const detail::WaitRequest& request, Tail&... tail) {
        detail::PermitLease lease{};
        [[maybe_unused]] const auto set_lease = [&](const auto& argument) {
            if constexpr (detail::tail_rank<decltype(argument)> == 1) lease = detail::PermitLease::of(argument);
        };
        (set_lease(tail), ...);
        return detail::answer([&] { return obtain(n, lease, request); }, std::vector<PermitId>(), tail...);
    }

    std::vector<PermitId> obtain(std::ptrdiff_t n, const detail::PermitLease& lease,
                                 const detail::WaitRequest& request);
    void set_lease(const PermitId& id, const detail::PermitLease& lease);
    void release_later(const PermitId& id) noexcept;

    detail::StateHandle handle_;
};

// Holds one permit and releases it at the end of its scope. The destructor does not throw, even if the permit has
// expired or the server cannot be reached; call release(ec) to learn the result. The semaphore must outlive it.
class [[nodiscard]] Permit {
public:
    // Acquires a permit and waits for it if necessary: under the watchdog, or with a lease.
    [[nodiscard]] explicit Permit(PermitExpirableSemaphore& semaphore)
        : semaphore_(&semaphore), id_(semaphore.acquire()) {}
    template <class AnyLease>
    requires(detail::tail_rank<AnyLease> == 1)
        [[nodiscard]] Permit(PermitExpirableSemaphore& semaphore, const AnyLease& lease)
        : semaphore_(&semaphore), id_(semaphore.acquire(lease)) {}

    // Takes ownership of a permit that is held already.
    [[nodiscard]] Permit(PermitExpirableSemaphore& semaphore, const PermitId& id) : semaphore_(&semaphore), id_(id) {}

    Permit(Permit&& other) noexcept : semaphore_(other.semaphore_), id_(std::exchange(other.id_, std::nullopt)) {}
    Permit& operator=(Permit&& other) noexcept {
        std::swap(semaphore_, other.semaphore_);
        std::swap(id_, other.id_);
        return *this;
    }
    // Posts the release and does not wait for the reply.
    ~Permit() {
        const detail::KeepErrno kept;
        if (id_) semaphore_->release_later(*id_);
    }

    // Returns the id, or nothing after release() and detach().
    const std::optional<PermitId>& id() const noexcept { return id_; }

    // Releases the permit now. The second call does nothing.
    void release(std::error_code& ec) {
        const detail::KeepErrno kept;
        ec.clear();
        if (const std::optional<PermitId> id = std::exchange(id_, std::nullopt)) semaphore_->release(*id, ec);
    }

    // Passes ownership of the permit to the caller.
    [[nodiscard]] PermitId detach() { return std::exchange(id_, std::nullopt).value(); }

private:
    PermitExpirableSemaphore* semaphore_;
    std::optional<PermitId> id_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/permit_expirable_semaphore.hpp

// The scripts of the semaphore whose permits have leases. Keys: a string, the number of available permits, as for the
// semaphore; and a sorted set of the permits that are taken: id -> the end of its lease, in ms since 1970 by the
// server's clock. A permit whose lease has ended counts as available; the next script that finds it puts it back.
// Message: the new number of permits, if there are any. It is published before the number changes, as for the
// semaphore.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view permit_clock{R"lua(
-- The end of a permit without a lease, as in Redisson.
local never = 922337203685477
local function ends_at(now, lease)
    return string.format('%.0f', lease == '-1' and never or now + lease)
end
)lua"};

inline constexpr std::string_view permit_sweep{R"lua(
local function no_count() return redis.error_reply('WRONGTYPE the key holds no number of permits') end
-- Returns how many permits have an ended lease, and the change that removes their ids. That change must come last,
-- because nothing undoes it. If there would be more permits than Redisson can read, the permits stay until there is
-- room.
local function leases_over(leases, now, available)
    local over = redis.call('zcount', leases, '0', whole(now))
    if available + over > most then over = 0 end
    return over, {'zremrangebyscore', leases, '0', whole(now)}
end
-- Adds to `changes`: that many permits become available (fewer, if negative). Before that come commands of the kinds
-- that follow later and might be refused; they remove nothing. Redis allows the first one when its memory is full, and
-- then all later writes.
local function put_back(changes, semaphore, leases, channel, publish, available, permits)
    table.insert(changes, {'zrem', leases, ''})
    table.insert(changes, {'zremrangebyscore', leases, '1', '0'})
    if available + permits > 0 then table.insert(changes, {publish, channel, whole(available + permits)}) end
    table.insert(changes, {'incrby', semaphore, whole(permits), undo = {'incrby', semaphore, whole(-permits)}})
end
-- Puts back the permits whose lease has ended, and does nothing else. Returns nil, or the error.
local function sweep(semaphore, leases, channel, publish, available, now)
    local over, removal = leases_over(leases, now, available)
    if over == 0 then return end
    local changes = {}
    put_back(changes, semaphore, leases, channel, publish, available, over)
    table.insert(changes, removal)
    return all_or_none(changes)
end
)lua"};

template <const std::string_view& Body>
inline constexpr std::string_view changes_permits =
    joined<all_or_none, request_marks, wanted_until, exact_count, permit_clock, permit_sweep, Body>;

inline constexpr std::string_view permit_acquire{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command; then for each caller, in the order of service: how many permits (negative if callers behind may be served
-- when there are too few for this one), their lease in ms (-1 = without a lease), their ids.
-- Answer: the number of permits taken: by the callers in their order, as far as there are enough; after how many ms the
-- next lease ends, -1 = unknown; and, if none were taken, how many permits there are in all.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local publish = ARGV[6]
local before = outcome_of(marks, lane, request)
if before then return {before, -1} end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local over, removal = leases_over(leases, now, present)
local available = present + over
local taken, served, i = 0, {}, 7
while i <= #ARGV do
    local wanted = math.abs(tonumber(ARGV[i]))
    if taken + wanted <= available then
        taken = taken + wanted
        table.insert(served, i)
    elseif tonumber(ARGV[i]) > 0 then
        break
    end
    i = i + 2 + wanted
end
if taken == 0 then
    local all = present + redis.call('zcard', leases)
    local first = redis.call('zrange', leases, whole(over), whole(over), 'withscores')[2]
    local refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or
                        sweep(semaphore, leases, channel, publish, present, now)
    if refusal then return refusal end
    if not first or tonumber(first) >= never then return {0, -1, all} end
    return {0, math.max(1, tonumber(first) - now), all}
end
-- First a write that Redis refuses when its memory is full.
local changes = {mark(marks, lane, request, whole(taken)), keep(marks, now, ends)}
if over > 0 then
    put_back(changes, semaphore, leases, channel, publish, present, over - taken)
else
    table.insert(changes, {'decrby', semaphore, whole(taken), undo = {'decrby', semaphore, whole(-taken)}})
end
for _, at in ipairs(served) do
    local wanted, lease_ends = math.abs(tonumber(ARGV[at])), ends_at(now, ARGV[at + 1])
    for k = at + 2, at + 1 + wanted do
        table.insert(changes, {'zadd', leases, lease_ends, ARGV[k], undo = {'zrem', leases, ARGV[k]}})
    end
end
local left = redis.call('pttl', semaphore)
if left >= 0 then table.insert(changes, {'pexpire', leases, whole(math.max(left, 1))}) end
if over > 0 then table.insert(changes, removal) end
local refusal = all_or_none(changes)
return refusal or {taken, -1}
)lua"};

inline constexpr std::string_view permit_take_back{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request of an acquire whose outcome its sender does not know,
-- wanted until of that acquire, margin in ms, '1' for a resend, publish command, the ids that it may have taken.
-- Answer: the number of these ids that were taken; they are given back, once. Copies of the acquire in flight take
-- none.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local before, own = outcome_of(marks, lane, request)
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local now = time_in_ms()
-- First a write that Redis allows when its memory is full.
local changes = {{'zrem', leases, ''}}
if own then
    table.insert(changes, mark(marks, lane, request, 0, before))
elseif not before and now <= wanted_until then
    table.insert(changes, mark(marks, lane, request, 0))
    table.insert(changes, keep(marks, now, wanted_until + margin))
end
local held = {}
for i = 7, #ARGV do
    if redis.call('zscore', leases, ARGV[i]) then table.insert(held, ARGV[i]) end
end
if #held > 0 then put_back(changes, semaphore, leases, channel, publish, present, #held) end
for _, id in ipairs(held) do table.insert(changes, {'zrem', leases, id}) end
return all_or_none(changes) or #held
)lua"};

inline constexpr std::string_view permit_release{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command, permit ids.
-- Answer: 1 = all were released; 0 = at least one is unknown or its lease has ended, and none was released.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local ids, seen = {}, {}
for i = 7, #ARGV do
    local ends = redis.call('zscore', leases, ARGV[i])
    if not ends or tonumber(ends) <= now then
        return sweep(semaphore, leases, channel, publish, present, now) or 0
    end
    if not seen[ARGV[i]] then table.insert(ids, ARGV[i]) end
    seen[ARGV[i]] = true
end
local over, removal = leases_over(leases, now, present + #ids)
local ends = wanted_until + margin
-- First a write that Redis allows when its memory is full.
local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}
put_back(changes, semaphore, leases, channel, publish, present, #ids + over)
for _, id in ipairs(ids) do table.insert(changes, {'zrem', leases, id}) end
if over > 0 then table.insert(changes, removal) end
return all_or_none(changes) or 1
)lua"};

inline constexpr std::string_view permit_set_lease{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command, permit id, lease in ms (-1 = without a lease).
-- Answer: 1 = done; 0 = the permit is unknown or its lease has ended.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local id, lease = ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local old = redis.call('zscore', leases, id)
if not old or tonumber(old) <= now then
    return sweep(semaphore, leases, channel, publish, present, now) or 0
end
local ends = wanted_until + margin
local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends),
                 {'zadd', leases, ends_at(now, lease), id, undo = {'zadd', leases, old, id}}}
local over, removal = leases_over(leases, now, present)
if over > 0 then
    put_back(changes, semaphore, leases, channel, publish, present, over)
    table.insert(changes, removal)
end
return all_or_none(changes) or 1
)lua"};

inline constexpr std::string_view permit_set_total{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command, number of permits, including those that are taken.
-- Answer: 1.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local permits = ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local present = redis.call('get', semaphore)
if not count_in(present or '0') then return no_count() end
local missing = permits - (present or 0) - (present and redis.call('zcard', leases) or 0)
local changes = {mark(marks, lane, request, 1), keep(marks, now, wanted_until + margin)}
if missing > 0 then table.insert(changes, {publish, channel, permits}) end
if not present then
    table.insert(changes, {'set', semaphore, permits})
elseif missing ~= 0 then
    table.insert(changes, {'incrby', semaphore, whole(missing)})
end
return all_or_none(changes) or 1
)lua"};

inline constexpr std::string_view permit_add{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command, the change of the number of permits.
-- Answer: 1.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local permits = tonumber(ARGV[7])
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local total = present + permits
-- All taken permits may be put back one day.
if permits > 0 and total + redis.call('zcard', leases) > most or permits < 0 and total < -most then
    return too_many()
end
local ends = wanted_until + margin
local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}
if total > 0 and permits > 0 then table.insert(changes, {publish, channel, whole(total)}) end
table.insert(changes, {'incrby', semaphore, whole(permits)})
return all_or_none(changes) or 1
)lua"};

inline constexpr std::string_view permit_count{R"lua(
-- KEYS: semaphore, leases, channel.  ARGV: publish command.
-- Answer: how many permits are available, how many are taken; nil for the first = there is no such semaphore.
local semaphore, leases, channel = KEYS[1], KEYS[2], KEYS[3]
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local now = time_in_ms()
local taken = redis.call('zcard', leases) - leases_over(leases, now, present)
local refusal = sweep(semaphore, leases, channel, ARGV[1], present, now)
return refusal or {redis.call('get', semaphore), taken}
)lua"};

inline constexpr std::string_view permit_remaining{R"lua(
-- KEYS: leases.  ARGV: permit id.
-- Answer: how many ms its lease has left, -1 = it has no lease, nil = it is unknown or its lease has ended.
local ends = tonumber(redis.call('zscore', KEYS[1], ARGV[1]) or '0')
if ends >= never then return -1 end
local left = ends - time_in_ms()
if left <= 0 then return nil end
return left
)lua"};

inline constexpr std::string_view permit_renew{R"lua(
-- KEYS: leases.  ARGV: lease in ms, wanted until, up to 100 permit ids.
-- Answer: for each permit 1 = renewed, 0 = it is not held any more. Never shortens a lease.
local leases, lease, wanted_until = KEYS[1], ARGV[1], tonumber(ARGV[2])
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = now + lease
local renewed = {}
-- First a write that Redis allows when its memory is full; it removes nothing.
redis.call('zrem', leases, '')
for i = 3, #ARGV do
    local old = tonumber(redis.call('zscore', leases, ARGV[i]) or '0')
    renewed[i - 2] = 0
    if old > now then
        renewed[i - 2] = 1
        if old < ends then redis.call('zadd', leases, string.format('%.0f', ends), ARGV[i]) end
    end
end
return renewed
)lua"};

}  // namespace parts

inline constexpr std::string_view permit_acquire = parts::changes_permits<parts::permit_acquire>;
inline constexpr std::string_view permit_take_back = parts::changes_permits<parts::permit_take_back>;
inline constexpr std::string_view permit_release = parts::changes_permits<parts::permit_release>;
inline constexpr std::string_view permit_set_lease = parts::changes_permits<parts::permit_set_lease>;
inline constexpr std::string_view permit_set_total = parts::changes_permits<parts::permit_set_total>;
inline constexpr std::string_view permit_add = parts::changes_permits<parts::permit_add>;
inline constexpr std::string_view permit_count = parts::changes_permits<parts::permit_count>;
inline constexpr std::string_view permit_remaining{
    joined<parts::wanted_until, parts::permit_clock, parts::permit_remaining>};
inline constexpr std::string_view permit_renew{joined<parts::wanted_until, parts::permit_clock, parts::permit_renew>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::permit_acquire>{scripts::permit_acquire,
    "6c718e9db2fae14ba67577d4c715a7c6474748f8"};
template <>
inline constexpr Script digested<scripts::permit_add>{scripts::permit_add,
    "5be84d10a4bc4de8a3192399700593383eb68cb8"};
template <>
inline constexpr Script digested<scripts::permit_count>{scripts::permit_count,
    "619aaa3b2c8f26b201f118ed98dd538dafa3855b"};
template <>
inline constexpr Script digested<scripts::permit_release>{scripts::permit_release,
    "bae32ae2f6a5062d096c94ab62a35ef8ea74d0ff"};
template <>
inline constexpr Script digested<scripts::permit_remaining>{scripts::permit_remaining,
    "9a992fa59c4fb68caa6bb2fbac63d3d8d38a4a40"};
template <>
inline constexpr Script digested<scripts::permit_renew>{scripts::permit_renew,
    "a5a6f174e9859dfaafccfa566ce61799e6c95afc"};
template <>
inline constexpr Script digested<scripts::permit_set_lease>{scripts::permit_set_lease,
    "d2677464bdcc0c4d67de7f3705b834222b508975"};
template <>
inline constexpr Script digested<scripts::permit_set_total>{scripts::permit_set_total,
    "435b2d1008e904c74be8dc39efacc798209f2811"};
template <>
inline constexpr Script digested<scripts::permit_take_back>{scripts::permit_take_back,
    "a5b9d32eb5aaa11f50a54f39e5b3622b710f65e0"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/semaphore.hpp

// The scripts of the semaphore. Key: a string, the number of available permits; absent means none. Message: the new
// number of permits, if there are any and more than before. A TTL on the key is kept.
//
// A script publishes before it changes the number. Clients cannot tell, because a script is atomic. So nothing has
// changed yet if the user has no right to publish.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view semaphore_acquire{R"lua(
-- KEYS: semaphore, marks.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, then the permits that
-- each caller wants, in the order of service; as a negative number, if callers behind may be served when there are too
-- few for this one.
-- Answer: the number of permits taken: by the callers in their order, as far as there are enough. If none were taken,
-- the number of available permits, negated.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local available = count_in(redis.call('get', semaphore) or '0')
if not available then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
local taken = 0
for i = 6, #ARGV do
    local wanted = math.abs(tonumber(ARGV[i]))
    if taken + wanted <= available then
        taken = taken + wanted
    elseif tonumber(ARGV[i]) > 0 then
        break
    end
end
local ends = wanted_until + margin
if taken > 0 then
    return all_or_none({mark(marks, lane, request, whole(taken)), keep(marks, now, ends),
                        {'decrby', semaphore, whole(taken)}}) or taken
end
-- An earlier copy may still arrive.
local refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)})
return refusal or -math.max(available, 0)
)lua"};

inline constexpr std::string_view semaphore_give_back{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request of an acquire whose outcome its sender does not know, wanted
-- until of that acquire, margin in ms, '1' for a resend, publish command.
-- Answer: the number of permits it had taken; they are given back, once. Copies of it in flight take none.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local taken, own = outcome_of(marks, lane, request)
local now = time_in_ms()
local ends = wanted_until + margin
if not own then
    if taken then return 0 end
    if now > wanted_until then return late(now) end
    return all_or_none({keep(marks, now, ends), mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
if taken <= 0 then return 0 end
local available = redis.call('get', semaphore)
local changes = {keep(marks, now, ends), mark(marks, lane, request, 0, taken)}
if available then
    if not count_in(available) then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
    local total = available + taken
    if total > 0 then table.insert(changes, {publish, channel, whole(total)}) end
    table.insert(changes, {'incrby', semaphore, whole(taken)})
end
return all_or_none(changes) or taken
)lua"};

inline constexpr std::string_view semaphore_add{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, permits (may be
-- negative), publish command, '1' = only if the semaphore exists.
-- Answer: 1 = added; 0 = there is no such semaphore.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local permits, publish, only_existing = tonumber(ARGV[6]), ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local available = redis.call('get', semaphore)
if only_existing == '1' and not available then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
if not count_in(available or '0') then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
local total = (available or 0) + permits
if permits > 0 and total > most or permits < 0 and total < -most then return too_many() end
-- First a write that Redis allows when its memory is full.
local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}
if total > 0 and permits > 0 then table.insert(changes, {publish, channel, whole(total)}) end
table.insert(changes, {'incrby', semaphore, whole(permits)})
return all_or_none(changes) or 1
)lua"};

inline constexpr std::string_view semaphore_set{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, permits, publish
-- command.
-- Answer: 1 = set; 0 = the semaphore exists already.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local permits, publish = ARGV[6], ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
if redis.call('get', semaphore) then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
local changes = {mark(marks, lane, request, 1), keep(marks, now, ends)}
if permits ~= '0' then table.insert(changes, {publish, channel, permits}) end
table.insert(changes, {'set', semaphore, permits})
return all_or_none(changes) or 1
)lua"};

inline constexpr std::string_view semaphore_drain{R"lua(
-- KEYS: semaphore, marks.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend.
-- Answer: the number of permits that were available; now there are none. Negative if some were owed.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local available = redis.call('get', semaphore) or '0'
if not count_in(available) then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
if available ~= '0' then
    return all_or_none({mark(marks, lane, request, available), keep(marks, now, ends),
                        {'decrby', semaphore, available}}) or tonumber(available)
end
return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
)lua"};

}  // namespace parts

inline constexpr std::string_view semaphore_acquire{with_request_marks<parts::semaphore_acquire>};
inline constexpr std::string_view semaphore_give_back{with_request_marks<parts::semaphore_give_back>};
inline constexpr std::string_view semaphore_add{with_request_marks<parts::semaphore_add>};
inline constexpr std::string_view semaphore_set{with_request_marks<parts::semaphore_set>};
inline constexpr std::string_view semaphore_drain{with_request_marks<parts::semaphore_drain>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::semaphore_acquire>{scripts::semaphore_acquire,
    "9b0eefb145a65969970b2067c52fdda4ebff6d28"};
template <>
inline constexpr Script digested<scripts::semaphore_add>{scripts::semaphore_add,
    "f3277647f01cb1cbad99a7e5081f8bc6e83e2864"};
template <>
inline constexpr Script digested<scripts::semaphore_drain>{scripts::semaphore_drain,
    "f83a29c02dd598a8525a6c41ffcf6128de84e08c"};
template <>
inline constexpr Script digested<scripts::semaphore_give_back>{scripts::semaphore_give_back,
    "f769b5c29df11bff048d0095ee5d351c77852bf8"};
template <>
inline constexpr Script digested<scripts::semaphore_set>{scripts::semaphore_set,
    "b00113278bca4adbbb3893b0506fb0b58140ce90"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/permit_expirable_semaphore.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the semaphore whose permits have leases, and reads the replies.
class PermitProtocol {
public:
    static constexpr std::string_view kind = "permits ";
    static constexpr bool takes = true;
    static constexpr std::size_t most_at_once = 100;
    static constexpr bool takes_back_by_mark = false;

    struct Want {
        std::vector<PermitId> ids{};  // at least one
        PermitLease lease{};
        bool served = false;
        bool lets_pass = false;  // True if callers behind it may be served when there is not enough for it

        std::int64_t amount() const { return static_cast<std::int64_t>(ids.size()); }

        // Draws new ids; called before each further acquire. A command that takes back an earlier acquire may still be
        // in flight and must not remove the permits of the next one.
        void renew() {
            for (PermitId& id : ids) id = PermitId::random();
        }
    };

    PermitProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_permit_requests"),
          channel_(prefixed_key("redisson_sc", marks_.key())),
          leases_(suffixed_key(marks_.key(), "timeout")),
          watchdog_timeout_(context.options.watchdog_timeout) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    // Returns the lease for the server in ms: the watchdog timeout for watched permits, -1 for permits without a TTL.
    std::int64_t milliseconds_of(const PermitLease& lease) const {
        switch (lease.kind) {
            case PermitLease::Kind::limited: return lease.length.count();
            case PermitLease::Kind::forever: return -1;
            default: return watchdog_timeout_.count();
        }
    }

    Call ask(std::span<const Want> wants, const RequestId& request_id) const {
        Call call = marks_.call(digested<scripts::permit_acquire>, request_id, {leases_, channel_}, {PublishCommand()},
                                Effect::grants);
        for (const Want& want : wants) {
            call.append(want.lets_pass ? -want.amount() : want.amount());
            call.append(milliseconds_of(want.lease));
            append(call, want.ids);
        }
        return call;
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        const std::vector<Reply>& told = reply.elements;
        if (reply.kind != Reply::Kind::array || told.size() < 2 || told.size() > 3 ||
            !std::all_of(told.begin(), told.end(), [](const Reply& one) { return one.is_integer(); }) ||
            told[0].integer < 0 || !share(told[0].integer, wants))
            throw unexpected(reply, key());
        // One ms more: the lease lasts until the end of its last millisecond.
        const std::int64_t over_in = told[1].integer;
        return {over_in < 0 || over_in == Milliseconds::max().count() ? Milliseconds::max() : Milliseconds(over_in + 1),
                told.size() > 2 ? told[2].integer : 0};
    }

    Call take_back(const RequestId& request_id, std::span<const Want> wants) const {
        Call call =
            marks_.call(digested<scripts::permit_take_back>, request_id, {leases_, channel_}, {PublishCommand()});
        for (const Want& want : wants) append(call, want.ids);
        return call;
    }

    // Uses the script for taking back, which also works if the lease of some permits is over.
    Call give_back(const RequestId& request_id, std::span<const Want> wants) const {
        return take_back(request_id, wants);
    }

    Call release(const RequestId& request_id, std::span<const PermitId> ids) const {
        Call call = marks_.call(digested<scripts::permit_release>, request_id, {leases_, channel_}, {PublishCommand()});
        append(call, ids);
        return call;
    }

    Call set_lease(const RequestId& request_id, const PermitId& id, const PermitLease& lease) const {
        return marks_.call(digested<scripts::permit_set_lease>, request_id, {leases_, channel_},
                           {PublishCommand(), Word::copy(id.bytes()), milliseconds_of(lease)});
    }

    Call set(const RequestId& request_id, std::int64_t permits) const {
        return marks_.call(digested<scripts::semaphore_set>, request_id, {channel_}, {permits, PublishCommand()});
    }

    Call set_total(const RequestId& request_id, std::int64_t permits) const {
        return marks_.call(digested<scripts::permit_set_total>, request_id, {leases_, channel_},
                           {PublishCommand(), permits});
    }

    Call add(const RequestId& request_id, std::int64_t permits) const {
        return marks_.call(digested<scripts::permit_add>, request_id, {leases_, channel_}, {PublishCommand(), permits});
    }

    Call count() const { return {digested<scripts::permit_count>, {key(), leases_, channel_}, {PublishCommand()}}; }

    struct Count {
        std::int64_t available;
        std::int64_t acquired;
        bool exists;
    };
    Count read_count(const Reply& reply) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 2 || !reply.elements[1].is_integer())
            throw unexpected(reply, key());
        return {number_of(reply.elements[0], key()), reply.elements[1].integer, !reply.elements[0].is_nil()};
    }

    Call remaining(const PermitId& id) const {
        return {digested<scripts::permit_remaining>, {leases_}, {Word::copy(id.bytes())}};
    }

    // Returns nothing if there is no such permit, and max() if its lease never ends.
    std::optional<Milliseconds> read_remaining(const Reply& reply) const {
        if (reply.is_nil()) return std::nullopt;
        if (!reply.is_integer()) throw unexpected(reply, key());
        return reply.integer < 0 ? Milliseconds::max() : Milliseconds(reply.integer);
    }

    // `until`: the server time until which it is wanted.
    Call renew(std::span<const PermitId> ids, std::int64_t until) const {
        Call call(digested<scripts::permit_renew>, {leases_}, {watchdog_timeout_, until}, Effect::grants);
        append(call, ids);
        return call;
    }

private:
    static void append(Call& call, std::span<const PermitId> ids) {
        for (const PermitId& id : ids) call.append(Word::copy(id.bytes()));
    }

    const RequestMarks marks_;
    const std::string channel_;
    const std::string leases_;
    const Milliseconds watchdog_timeout_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore/permit_leases.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The part of a semaphore whose permits have leases: the permits that its watchdog renews.
class PermitLeases {
    using Want = PermitProtocol::Want;

public:
    PermitLeases(SynchronizerCore<PermitProtocol>& core, RequestDeliveries<PermitProtocol>& deliveries)
        : core_(core), deliveries_(deliveries) {}

    // --- called by the public class, without the mutex ----------------------------------------------------------

    // A permit under the watchdog.
    struct Watch {
        PermitId id;
        Instant valid_until;
        Instant renew_at;
        bool renewing = false;
        Instant renewal_ends{};  // an unanswered renewal can no longer take effect from then on

        // The loss is reported a little before expiry, so that the handler runs while the lease still holds.
        Instant lost_at() const { return valid_until - Milliseconds(2); }
        Instant next_deadline() const { return renewing ? lost_at() : std::min(renew_at, lost_at()); }
    };

    // Stops renewing these permits, because they are released or get a lease of their own. Returns those that were
    // renewed.
    std::vector<Watch> unwatch(std::span<const PermitId> ids) {
        const std::lock_guard lock(core_.mutex);
        std::vector<Watch> were;
        std::erase_if(watched_, [&](const Watch& watch) {
            const bool found = std::find(ids.begin(), ids.end(), watch.id) != ids.end();
            if (found) were.push_back(watch);
            return found;
        });
        return were;
    }

    // Does the same once no renewal of these permits can take effect any more, so that a late one cannot prolong what
    // comes next. Waits for the replies, or until an unanswered renewal is void: usually command_timeout.
    std::vector<Watch> unwatch_settled(std::span<const PermitId> ids) {
        std::unique_lock lock(core_.mutex);
        const auto settled_at = [&] {
            Instant at{};
            for (const Watch& watch : watched_)
                if (std::find(ids.begin(), ids.end(), watch.id) != ids.end()) at = std::max(at, watch.renewal_ends);
            return at;
        };
        for (Instant at = settled_at(); at > Clock::now(); at = settled_at()) renewals_.wait_until(lock, at);
        lock.unlock();
        return unwatch(ids);
    }

    // Releases a permit without waiting. Without memory for that, the permit ends with its lease, as after a crash: it
    // is no longer renewed in any case.
    void release_later(const PermitId& id) noexcept try {
        std::unique_lock lock(core_.mutex);
        std::erase_if(watched_, [&](const Watch& watch) { return watch.id == id; });
        deliveries_.add(lock, PendingRequest::Kind::change, core_.take_slot(), [this, id](const RequestId& request_id) {
            return core_.protocol.release(request_id, std::span(&id, 1));
        });
    } catch (...) {
    }

    // Renews these permits again, because they were not released after all.
    void watch_again(const std::vector<Watch>& watches) {
        const std::lock_guard lock(core_.mutex);
        for (Watch watch : watches) {
            watch.renewing = false;
            watched_.push_back(watch);
        }
        core_.task.schedule();
    }

    // --- called by Synchronizer, with the mutex -----------------------------------------------------------------

    bool empty() const { return watched_.empty(); }

    void on_timer(std::unique_lock<std::mutex>& lock, Instant now) {
        lose_if([&](const Watch& w) { return now >= w.lost_at(); }, "its lease was not renewed in time");
        renew_due(lock, now);
    }

    void on_failover() {
        for (Watch& watch : watched_) watch.renew_at = Clock::now();
        core_.task.schedule();
    }

    // Treats permits whose lease was over before the reply came as not served, and gives them back.
    void accept(std::unique_lock<std::mutex>& lock, std::span<Want> wants, Instant begun) {
        const Instant now = Clock::now();
        std::vector<Want> too_late;
        for (Want& want : wants) {
            if (!want.served || want.lease.kind == PermitLease::Kind::forever) continue;
            const bool limited = want.lease.kind == PermitLease::Kind::limited;
            const Instant until = valid_until(begun, limited ? want.lease.length : timeout());
            if (now >= until) {
                too_late.push_back(want);
                want.served = false;
            } else if (!limited) {
                for (const PermitId& id : want.ids) watched_.push_back({id, until, begun + timeout() / 3});
            }
        }
        if (!watched_.empty()) {
            core_.task.schedule();
            core_.session.start_background();
        }
        if (!too_late.empty()) deliveries_.give_back(lock, std::move(too_late));
    }

    // Drops the record of `want`, which no caller claims any more.
    void discard(const Want& want) {
        for (const PermitId& id : want.ids) std::erase_if(watched_, [&](const Watch& w) { return w.id == id; });
    }

    Instant next_deadline() const {
        Instant at = never;
        for (const Watch& watch : watched_) at = std::min(at, watch.next_deadline());
        return at;
    }

private:
    static constexpr std::size_t renewals_a_call = 100;

    Milliseconds timeout() const { return core_.session.options().watchdog_timeout; }

    // Renews all permits that are due, and those that are due soon. So permits that were acquired at different times
    // are renewed together from then on.
    void renew_due(std::unique_lock<std::mutex>& lock, Instant now) {
        const auto due_until = [&](Instant until) {
            return std::any_of(watched_.begin(), watched_.end(),
                               [&](const Watch& w) { return !w.renewing && w.renew_at <= until; });
        };
        if (!due_until(now)) return;
        const Instant soon = now + timeout() / 6;
        while (due_until(soon)) {
            std::vector<PermitId> batch;
            for (Watch& watch : watched_) {
                if (watch.renewing || watch.renew_at > soon || batch.size() == renewals_a_call) continue;
                batch.push_back(watch.id);
                watch.renewing = true;
                watch.renewal_ends = Clock::now() + core_.session.options().command_timeout + Milliseconds(1);
            }
            lock.unlock();
            const Instant sent = Clock::now();
            try {
                core_.session.post(
                    core_.protocol.renew(batch, core_.session.wanted_until(core_.key())),
                    [this, keep = core_.keep(), batch, sent](const Reply& reply) { renewed_all(batch, reply, sent); });
            } catch (...) {  // no memory: retried after a pause
                renewed_all(batch, Reply::of(Reply::Kind::not_sent, std::string()), sent);
            }
            lock.lock();
        }
    }

    void renewed_all(const std::vector<PermitId>& batch, const Reply& reply, Instant sent) {
        const std::lock_guard lock(core_.mutex);
        core_.session.learn_if_late(core_.key(), sent, reply);
        const bool whole = reply.kind == Reply::Kind::array && reply.elements.size() == batch.size();
        for (std::size_t i = 0; i < batch.size(); ++i) {
            const auto watch =
                std::find_if(watched_.begin(), watched_.end(), [&](const Watch& w) { return w.id == batch[i]; });
            if (watch == watched_.end()) continue;
            watch->renewing = false;
            if (reply.answered() || reply.is_unsent()) watch->renewal_ends = {};
            if (!whole || !reply.elements[i].is_integer() || (reply.elements[i].integer == 1 && !reply.replicated)) {
                watch->renew_at = Clock::now() + std::max(Milliseconds(10), timeout() / 60);
            } else if (reply.elements[i].integer == 1) {
                core_.session.count_renewal();
                watch->valid_until = std::max(watch->valid_until, valid_until(sent, timeout()));
                watch->renew_at = sent + timeout() / 3;
            } else {
                lose_if([&](const Watch& w) { return w.id == batch[i]; }, "the server no longer has this permit");
            }
        }
        renewals_.notify_all();
        core_.task.schedule();
    }

    template <class Condition>
    void lose_if(Condition condition, const char* why) {
        std::erase_if(watched_, [&](const Watch& watch) {
            if (!condition(watch)) return false;
            core_.session.count_lost_hold();
            tell(watch.id, why);
            return true;
        });
    }

    void tell(const PermitId& id, const char* why) noexcept try {
        core_.session.raise(Event::Kind::hold_lost, core_.key(), "permit " + id.text() + ": " + why);
    } catch (...) {
    }

    SynchronizerCore<PermitProtocol>& core_;
    RequestDeliveries<PermitProtocol>& deliveries_;
    std::vector<Watch> watched_;
    std::condition_variable renewals_;  // with the mutex: each reply to a renewal wakes unwatch_settled()
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/permit_expirable_semaphore.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using PermitState = Synchronizer<PermitProtocol, PermitLeases>;

inline PermitState& permits_of(StateHandle& handle) { return static_cast<PermitState&>(handle.state()); }

inline PermitProtocol::Count count_permits(StateHandle& handle) {
    PermitState& semaphore = permits_of(handle);
    const PermitProtocol& protocol = semaphore.protocol();
    return protocol.read_count(query(semaphore.session(), semaphore.key(), protocol.count()));
}

// Throws Error(errc::invalid_argument).
inline void check_permits(std::ptrdiff_t n, std::ptrdiff_t least, std::ptrdiff_t most, std::string_view name,
                          const char* rule) {
    if (n < least || n > most) throw Error(errc::invalid_argument, name, rule);
}

}  // namespace detail

REDLATCH_INLINE PermitExpirableSemaphore::PermitExpirableSemaphore(Client& client, std::string_view name)
    : handle_(detail::ClientAccess::session(client), detail::PermitState::maker, name) {}

// --- number of permits -------------------------------------------------------------------------------------------

REDLATCH_INLINE bool PermitExpirableSemaphore::try_set_permits(std::ptrdiff_t permits) {
    detail::check_permits(permits, 0, max(), name(), "the number of permits must be from 0 to 2147483647");
    auto& semaphore = detail::permits_of(handle_);
    return semaphore.is_one(semaphore.change(
        [&](const detail::RequestId& request_id) { return semaphore.protocol().set(request_id, permits); }));
}

REDLATCH_INLINE void PermitExpirableSemaphore::set_permits(std::ptrdiff_t permits) {
    detail::check_permits(permits, 0, max(), name(), "the number of permits must be from 0 to 2147483647");
    auto& semaphore = detail::permits_of(handle_);
    semaphore.is_one(semaphore.change(
        [&](const detail::RequestId& request_id) { return semaphore.protocol().set_total(request_id, permits); }));
}

REDLATCH_INLINE void PermitExpirableSemaphore::add_permits(std::ptrdiff_t n) {
    detail::check_permits(n, -max(), max(), name(), "the number of permits must be from -2147483647 to 2147483647");
    if (n == 0) return;
    auto& semaphore = detail::permits_of(handle_);
    semaphore.is_one(
        semaphore.change([&](const detail::RequestId& request_id) { return semaphore.protocol().add(request_id, n); }));
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::available_permits() {
    return static_cast<std::ptrdiff_t>(detail::count_permits(handle_).available);
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::acquired_permits() {
    return static_cast<std::ptrdiff_t>(detail::count_permits(handle_).acquired);
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::permits() {
    const auto now = detail::count_permits(handle_);
    return now.exists ? static_cast<std::ptrdiff_t>(now.available + now.acquired) : 0;
}

// --- acquiring and releasing -------------------------------------------------------------------------------------

REDLATCH_INLINE std::vector<PermitId> PermitExpirableSemaphore::obtain(std::ptrdiff_t n,
                                                                       const detail::PermitLease& lease,
                                                                       const detail::WaitRequest& request) {
    detail::check_permits(n, 1, max_at_once(), name(), "one call can acquire from 1 to 10000 permits");
    detail::PermitProtocol::Want want;
    want.ids.reserve(static_cast<std::size_t>(n));
    for (std::ptrdiff_t i = 0; i < n; ++i) want.ids.push_back(PermitId::random());
    want.lease = lease;
    if (!detail::permits_of(handle_).obtain(want, request)) return {};
    return std::move(want.ids);
}

REDLATCH_INLINE void PermitExpirableSemaphore::release(std::span<const PermitId> ids) {
    if (!try_release(ids))
        throw Error(errc::unknown_permit, name(),
                    ids.size() == 1 ? "this permit is not held" : "one of these permits is not held");
}

REDLATCH_INLINE bool PermitExpirableSemaphore::try_release(std::span<const PermitId> ids) {
    if (ids.empty()) return true;
    auto& semaphore = detail::permits_of(handle_);
    // Made first: from unwatch() on nothing may fail for want of memory.
    const std::function<detail::Call(const detail::RequestId&)> make =
        [&semaphore, kept = std::vector<PermitId>(ids.begin(), ids.end())](const detail::RequestId& request_id) {
            return semaphore.protocol().release(request_id, kept);
        };
    const auto watches = semaphore.leases().unwatch(ids);
    const bool released = semaphore.is_one(semaphore.change(make, detail::PermitState::Undelivered::retry));
    if (!released) semaphore.leases().watch_again(watches);
    return released;
}

REDLATCH_INLINE void PermitExpirableSemaphore::release_later(const PermitId& id) noexcept try {
    detail::permits_of(handle_).leases().release_later(id);
} catch (...) {
}

// --- leases ------------------------------------------------------------------------------------------------------

REDLATCH_INLINE void PermitExpirableSemaphore::set_lease(const PermitId& id, const detail::PermitLease& lease) {
    auto& semaphore = detail::permits_of(handle_);
    const auto watches = semaphore.leases().unwatch_settled(std::span(&id, 1));
    Reply reply;
    try {
        reply = semaphore.change(
            [&](const detail::RequestId& request_id) { return semaphore.protocol().set_lease(request_id, id, lease); });
    } catch (...) {
        semaphore.leases().watch_again(watches);
        throw;
    }
    if (!semaphore.is_one(reply)) throw Error(errc::unknown_permit, name(), "this permit is not held");
}

REDLATCH_INLINE std::optional<std::chrono::milliseconds> PermitExpirableSemaphore::remaining_lease(const PermitId& id) {
    auto& semaphore = detail::permits_of(handle_);
    const Reply reply = detail::query(semaphore.session(), semaphore.key(), semaphore.protocol().remaining(id));
    return semaphore.protocol().read_remaining(reply);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/read_write_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

struct ReadWriteOptions {
    // If true, readers that hold nothing yet stay out while a writer of this object waits, so that a stream of readers
    // cannot starve it. After every writer the readers get a turn. So a reader must not wait for a thread that is yet
    // to become one. Readers in Java ignore this option. It costs a waiting process one command every 2.5 s, and delays
    // readers by up to 5 s if that process dies.
    bool writer_preference = false;
};

// Provides a distributed lock that many readers or one writer hold at a time. The counterpart of Redisson's
// ReadWriteLock and the same lock as one of that name there. An RLock of that name is a different kind of lock and is
// refused.
//
// Each hold has its own lease: a reader that died blocks writers only until its lease expires, whatever other readers
// do. A waiting writer may notice that up to 30 s later, if several readers leave one after another. Reentrant on both
// sides. A writer may take the read side as well, and stays a reader when it releases the write
// side. A reader that requests the write side would wait for itself, so it gets errc::would_deadlock, even from
// try_lock().
//
// Models Cpp17SharedTimedLockable: use it with std::unique_lock, std::shared_lock, std::scoped_lock. The members of
// LockApi are the writer's. Two objects with the same name are the same lock. Neither copyable nor movable. Any number
// of threads may use one object. Destroying the object ends no hold.
class ReadWriteLock : public detail::LockApi {
public:
    // One side, as a lock of its own: it has all members of a lock.
    class Side : public detail::NamedLock {
    protected:
        using NamedLock::NamedLock;

    private:
        // A side is locked while it has a lease.
        REDLATCH_INLINE bool ask_locked(Instant limit) override;
    };

    // The read side: many threads may hold it at a time.
    class ReadLock final : public Side {
        friend ReadWriteLock;
        ReadLock(Client& client, std::string_view name);
    };

    // The write side. Acquiring it throws Error(errc::would_deadlock), before anything is sent, in a thread that holds
    // only the read side.
    class WriteLock final : public Side {
        friend ReadWriteLock;
        WriteLock(Client& client, std::string_view name, ReadLock& readers, ReadWriteOptions options);

        REDLATCH_INLINE bool acquire(const detail::LockRequest& request) override;

        ReadLock& readers_;
        const ReadWriteOptions options_;
    };

    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    ReadWriteLock(Client& client, std::string_view name, ReadWriteOptions options = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return read_.name(); }

    // Return each side as a lock of its own, valid as long as this object.
    ReadLock& read_lock() noexcept { return read_; }
    WriteLock& write_lock() noexcept { return write_; }

    // The members of the read side. LockApi documents the same members for the write side: one round trip if no writer
    // holds the lock, the same trailing arguments, the same errors.
    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] auto lock_shared(Tail&&... tail) { return read_.lock(tail...); }

    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] bool try_lock_shared(Tail&&... tail) { return read_.try_lock(tail...); }

    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return read_.try_lock_for(timeout, tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return read_.try_lock_until(when, tail...);
    }

    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] Hold hold_shared(Tail&&... tail) { return read_.hold(tail...); }

    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] Hold try_hold_shared(Tail&&... tail) { return read_.try_hold(tail...); }

    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] Hold try_hold_shared_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return read_.try_hold_for(timeout, tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] Hold try_hold_shared_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return read_.try_hold_until(when, tail...);
    }

    void unlock_shared() { read_.unlock(); }
    void unlock_shared(std::error_code& ec) { read_.unlock(ec); }

private:
    // --- on behalf of an owner: the write side ----------------------------------------------------------------

    REDLATCH_INLINE bool acquire(const detail::LockRequest& request) override;
    REDLATCH_INLINE std::error_code release(detail::OwnerNumber owner) override;
    REDLATCH_INLINE detail::HeldLevel keeper_of_holds() override;
    REDLATCH_INLINE bool force_release(Instant limit) override;
    REDLATCH_INLINE Instant valid_until_of(detail::OwnerNumber owner) override;
    REDLATCH_INLINE std::stop_token lost_of(detail::OwnerNumber owner) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(detail::OwnerNumber owner, Instant limit) override;
    REDLATCH_INLINE std::optional<Milliseconds> ask_remaining_lease(Instant limit) override;

    ReadLock read_;
    WriteLock write_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/scripts/read_write_lock.hpp

// The scripts of the read-write lock. Keys, as in Redisson:
//   name                               a hash: mode -> read or write; <reader> -> its count; <writer>:write -> its count
//   {name}:<reader>:rwlock_timeout:<i> for i = 1 … count: '1', whose TTL is the lease of that level of the read hold
// The TTL of the hash is that of the longest hold. A read hold lasts as long as any of its timeout keys: a field alone
// may belong to a dead reader. Below, `tag` is the name in braces, with which the names of the timeout keys begin.
//
// Counts are absolute, as in the scripts of RLock. Releasing and renewing begin with PEXPIRE or DEL, which a server
// that is out of memory allows. The mark of a waiting writer is ours alone: while it exists, a reader of ours without a
// hold does not enter.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view read_lease{R"lua(
-- Returns how many ms the longest read hold has left, except that of `but`; -2 if there is none. Removes the fields of
-- expired ones.
local function read_lease(lock, tag, but)
    local longest = -2
    local fields = redis.call('hgetall', lock)
    for at = 1, #fields, 2 do
        local owner, count = fields[at], tonumber(fields[at + 1])
        if count and owner ~= but and string.sub(owner, -6) ~= ':write' then
            local left = -2
            for i = 1, count do
                left = math.max(left, redis.call('pttl', tag .. ':' .. owner .. ':rwlock_timeout:' .. i))
            end
            if left == -2 then redis.call('hdel', lock, owner) end
            longest = math.max(longest, left)
        end
    end
    return longest
end
)lua"};

inline constexpr std::string_view read_level{R"lua(
-- Returns the change that undoes writing the lease of a level. `left`: the TTL before.
local function lease_again(timeout, left)
    if left > 0 then return {'set', timeout, '1', 'px', left} end
    return {'del', timeout}
end
)lua"};

inline constexpr std::string_view read_acquire{R"lua(
-- KEYS: lock, mark of a waiting writer.
-- ARGV: owner, wanted count (1 = a first hold), lease in ms, the field that it has as a writer, tag, wanted until.
-- Answer: nil = held; n >= 0 = blocked for n ms; -2 = the hold to re-enter is gone.
local lock, mark = KEYS[1], KEYS[2]
local owner, count, lease, writer, tag, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local timeout = tag .. ':' .. owner .. ':rwlock_timeout:'
local mode = redis.call('hget', lock, 'mode')
local current = mode and tonumber(redis.call('hget', lock, owner) or 0) or 0
if current == 0 then
    if count ~= '1' then return -2 end
    if not mode and redis.call('exists', lock) == 1 then
        return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
    end
    if mode ~= 'write' then
        if redis.call('exists', mark) == 1 then return redis.call('pttl', mark) end
    elseif redis.call('hexists', lock, writer) == 0 then
        local left = redis.call('pttl', lock)
        if left == -1 then return no_lease() end
        return left
    end
end
-- This level exists if the command is a resend. Levels above it exist if a release has not arrived: this one inherits
-- their leases.
local level = -2
for i = current, tonumber(count), -1 do
    local left = redis.call('pttl', timeout .. i)
    lease = math.max(lease, left)
    if i == tonumber(count) then level = left end
end
local changes = {{'set', timeout .. count, '1', 'px', lease, undo = lease_again(timeout .. count, level)}}
if not mode then
    table.insert(changes, {'hset', lock, 'mode', 'read', owner, count, undo = {'del', lock}})
elseif current == 0 then
    table.insert(changes, {'hset', lock, owner, count, undo = {'hdel', lock, owner}})
elseif current ~= tonumber(count) then
    table.insert(changes, {'hset', lock, owner, count, undo = {'hset', lock, owner, current}})
end
local left = redis.call('pttl', lock)
if left < tonumber(lease) then
    table.insert(changes, {'pexpire', lock, lease, undo = left > 0 and {'pexpire', lock, left}})
end
for i = count + 1, current do table.insert(changes, {'del', timeout .. i}) end
return all_or_none(changes)
)lua"};

// Releases levels of a read hold. Answer: nil = not held by the owner (any more); 0 = released, no listeners notified;
// n = released, n listeners notified; -1 = still held.
inline constexpr std::string_view read_release{R"lua(
-- KEYS: lock, channel.
local lock, channel = KEYS[1], KEYS[2]
local function release(owner, count, lease, publish, tag)
    local timeout = tag .. ':' .. owner .. ':rwlock_timeout:'
    local mode = redis.call('hget', lock, 'mode')
    local current = mode and redis.call('hget', lock, owner)
    if not current then return nil end
    if count ~= '0' then
        -- The hold lasts as long as the longest of its leases: the level below inherits it.
        local level = redis.call('pttl', timeout .. count)
        lease = math.max(lease, level)
        for i = count + 1, tonumber(current) do
            lease = math.max(lease, redis.call('pttl', timeout .. i))
        end
        local left = redis.call('pttl', lock)
        local changes = {{'pexpire', lock, math.max(1, lease, left), undo = left > 0 and {'pexpire', lock, left}}}
        if lease > 0 then
            table.insert(changes, {'set', timeout .. count, '1', 'px', lease,
                                   undo = lease_again(timeout .. count, level)})
        end
        if current ~= count then
            table.insert(changes, {'hset', lock, owner, count, undo = {'hset', lock, owner, current}})
        end
        for i = count + 1, tonumber(current) do table.insert(changes, {'del', timeout .. i}) end
        return all_or_none(changes) or -1
    end
    local left = mode == 'read' and read_lease(lock, tag, owner)
    local before = redis.call('pttl', lock)
    local changes = {}
    if left == -2 then
        table.insert(changes, {'del', lock})
    else
        table.insert(changes, {'hdel', lock, owner, undo = {'hset', lock, owner, current}})
        if left and left >= 0 then
            table.insert(changes, {'pexpire', lock, math.max(1, left),
                                   undo = before > 0 and {'pexpire', lock, before}})
        end
    end
    -- As the last change, because nothing undoes it.
    for i = 1, tonumber(current) do table.insert(changes, {'del', timeout .. i}) end
    local refusal = all_or_none(changes)
    if refusal then return refusal end
    -- Waiting writers rely on the earlier lease, which may have been much longer: wake them.
    if left == -2 or left and left * 2 < before then return redis.call(publish, channel, '0') end
    return 0
end
)lua"};

inline constexpr std::string_view write_acquire{R"lua(
-- KEYS: lock, mark of a waiting writer.
-- ARGV: the field of the owner, wanted count (1 = a first hold), lease in ms, tag, the id of the client that leaves the
-- mark, TTL of the mark in ms ('0' = leave none), wanted until.
-- Answer: nil = held; n >= 0 = blocked for n ms; -2 = the hold to re-enter is gone.
local lock, mark = KEYS[1], KEYS[2]
local writer, count, lease, tag, who, mark_ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local now = time_in_ms()
if now > tonumber(ARGV[7]) then return late(now) end
local mode = redis.call('hget', lock, 'mode')
if mode == 'write' then
    local current = redis.call('hget', lock, writer)
    if current then return enter_again(lock, writer, current, count, lease) end
end
if count ~= '1' then return -2 end
if mode == 'write' then
    local left = redis.call('pttl', lock)
    if left == -1 then return no_lease() end
    return left
end
if mode then
    local left = read_lease(lock, tag)
    if left == -1 then return no_lease() end
    if left ~= -2 then
        if mark_ttl == '0' then return left end
        redis.pcall('set', mark, who, 'px', mark_ttl)
        -- The writer must ask again in time to renew the mark.
        return math.min(left, math.floor(mark_ttl / 2))
    end
    redis.call('del', lock)
elseif redis.call('exists', lock) == 1 then
    return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
end
-- The mark is deleted last: readers get their turn after every writer. Another waiting writer sets it again.
return all_or_none({{'hset', lock, 'mode', 'write', writer, '1', undo = {'hdel', lock, 'mode', writer}},
                    {'pexpire', lock, lease}, {'del', mark}})
)lua"};

// Like read_release.
inline constexpr std::string_view write_release{R"lua(
-- KEYS: lock, channel.
local lock, channel = KEYS[1], KEYS[2]
local function release(writer, count, lease, publish, tag)
    local current = redis.call('hget', lock, writer)
    if not current then return nil end
    if count ~= '0' then return leave_level(lock, writer, current, count, lease) end
    local left = read_lease(lock, tag)
    if left == -2 then
        redis.call('del', lock)
    else
        -- The writer still holds as a reader, and others may join it.
        local before, changes = redis.call('pttl', lock), {}
        if left >= 0 then
            table.insert(changes, {'pexpire', lock, math.max(1, left),
                                   undo = before > 0 and {'pexpire', lock, before}})
        end
        table.insert(changes, {'hset', lock, 'mode', 'read', undo = {'hset', lock, 'mode', 'write'}})
        table.insert(changes, {'hdel', lock, writer})
        local refusal = all_or_none(changes)
        if refusal then return refusal end
    end
    return redis.call(publish, channel, '1')
end
)lua"};

inline constexpr std::string_view read_holders{R"lua(
-- KEYS: lock.  ARGV: tag.  Answer: the readers that hold it.
local lock, tag = KEYS[1], ARGV[1]
local holders = {}
if read_lease(lock, tag) == -2 then return holders end
for _, field in ipairs(redis.call('hkeys', lock)) do
    if field ~= 'mode' and string.sub(field, -6) ~= ':write' then holders[#holders + 1] = field end
end
return holders
)lua"};

inline constexpr std::string_view read_renew{R"lua(
-- KEYS: up to 100 locks.  ARGV: lease in ms, wanted until, then the owner of a read hold of each lock.
-- Answer: for each lock 1 = renewed, 0 = the owner does not hold it. Never creates a key, never shortens a TTL: other
-- readers may have longer leases.
local lease, wanted_until = tonumber(ARGV[1]), ARGV[2]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local renewed = {}
for i, lock in ipairs(KEYS) do
    local owner = ARGV[i + 2]
    local count = redis.pcall('hget', lock, owner)
    renewed[i] = 0
    if type(count) == 'table' then
        -- A key of another type is lost, but the other locks must not expire for that.
        if not string.find(count.err, 'WRONGTYPE', 1, true) then return count end
        count = 0
    end
    local tag = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
    for level = 1, tonumber(count or 0) do
        local timeout = tag .. ':' .. owner .. ':rwlock_timeout:' .. level
        local left = redis.call('pttl', timeout)
        if left ~= -2 then renewed[i] = 1 end
        if left ~= -2 and left < lease then redis.call('pexpire', timeout, lease) end
    end
    if renewed[i] == 1 and redis.call('pttl', lock) < lease then redis.call('pexpire', lock, lease) end
end
return renewed
)lua"};

inline constexpr std::string_view read_remaining_lease{R"lua(
-- KEYS: lock.  ARGV: tag.  Answer: how many ms the longest read hold has left; -1 = no TTL; -2 = there is none.
return read_lease(KEYS[1], ARGV[1])
)lua"};

}  // namespace parts

inline constexpr std::string_view read_acquire =
    joined<parts::wanted_until, parts::no_lease, parts::all_or_none, parts::read_level, parts::read_acquire>;
inline constexpr std::string_view read_release =
    joined<parts::all_or_none, parts::read_level, parts::read_lease, parts::read_release, parts::release_levels>;
inline constexpr std::string_view read_give_up = joined<parts::wanted_until, parts::all_or_none, parts::read_level,
                                                        parts::read_lease, parts::read_release, parts::give_up>;
inline constexpr std::string_view read_holders = joined<parts::read_lease, parts::read_holders>;
inline constexpr std::string_view read_remaining_lease = joined<parts::read_lease, parts::read_remaining_lease>;
inline constexpr std::string_view read_renew = joined<parts::wanted_until, parts::read_renew>;
inline constexpr std::string_view write_acquire = joined<parts::wanted_until, parts::no_lease, parts::all_or_none,
                                                         parts::more_levels, parts::read_lease, parts::write_acquire>;
inline constexpr std::string_view write_release =
    joined<parts::leaving_levels, parts::read_lease, parts::write_release, parts::release_levels>;
inline constexpr std::string_view write_give_up =
    joined<parts::wanted_until, parts::leaving_levels, parts::read_lease, parts::write_release, parts::give_up>;

inline constexpr std::string_view read_hold_count{R"lua(
-- KEYS: lock.  ARGV: owner, tag.  Answer: the owner's read count; nil if it has none, or all its leases have ended.
local lock, owner, tag = KEYS[1], ARGV[1], ARGV[2]
local count = redis.call('hget', lock, owner)
for i = 1, tonumber(count or 0) do
    if redis.call('exists', tag .. ':' .. owner .. ':rwlock_timeout:' .. i) == 1 then return count end
end
return nil
)lua"};

inline constexpr std::string_view write_holders{R"lua(
-- KEYS: lock.  Answer: the writer that holds it, if there is one.
local holders = {}
if redis.call('hget', KEYS[1], 'mode') ~= 'write' then return holders end
for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    if string.sub(field, -6) == ':write' then holders[#holders + 1] = field end
end
return holders
)lua"};

inline constexpr std::string_view write_remaining_lease{R"lua(
-- KEYS: lock.  Answer: PTTL; -2 = no writer holds it.
if redis.call('hget', KEYS[1], 'mode') ~= 'write' then return -2 end
return redis.call('pttl', KEYS[1])
)lua"};

inline constexpr std::string_view write_withdraw{R"lua(
-- KEYS: mark of a waiting writer, channel.  ARGV: the id of the client that left it, publish command.
-- Answer: 1 = removed, readers need not wait any longer; 0 = the mark is not of this client.
local mark, channel = KEYS[1], KEYS[2]
local who, publish = ARGV[1], ARGV[2]
if redis.call('get', mark) ~= who then return 0 end
redis.call('del', mark)
redis.call(publish, channel, '1')
return 1
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::read_acquire>{scripts::read_acquire,
    "5c5ff1d256df35b4edde9fc39fc01a7e72288c96"};
template <>
inline constexpr Script digested<scripts::read_give_up>{scripts::read_give_up,
    "4a6c48610b7c0510950d8af138c1b980389cfde5"};
template <>
inline constexpr Script digested<scripts::read_hold_count>{scripts::read_hold_count,
    "288da14bc49c9b22ddd3113ef47a14961b569bf4"};
template <>
inline constexpr Script digested<scripts::read_holders>{scripts::read_holders,
    "9554e6449aadde320988fe6854f552b7a186f5e0"};
template <>
inline constexpr Script digested<scripts::read_release>{scripts::read_release,
    "b825a1a751c4c621c45d60732da066873c6154ba"};
template <>
inline constexpr Script digested<scripts::read_remaining_lease>{scripts::read_remaining_lease,
    "9faa31e0b0a7b21df40d81632ac955a6444730a2"};
template <>
inline constexpr Script digested<scripts::read_renew>{scripts::read_renew,
    "7631565aae2a63ee6e17e9639ed404f5ad8b0171"};
template <>
inline constexpr Script digested<scripts::write_acquire>{scripts::write_acquire,
    "9d5d3a9afe85ff95297987fd07e9cee79d434f29"};
template <>
inline constexpr Script digested<scripts::write_give_up>{scripts::write_give_up,
    "420cad24a17a0a345f787528eb4de1ed307479d7"};
template <>
inline constexpr Script digested<scripts::write_holders>{scripts::write_holders,
    "0563473cc44e1efd1a4596047bc24c8a7c8d79b2"};
template <>
inline constexpr Script digested<scripts::write_release>{scripts::write_release,
    "215c831207ddd88151ecea634e72548baa30cad8"};
template <>
inline constexpr Script digested<scripts::write_remaining_lease>{scripts::write_remaining_lease,
    "34696c10501aa09209a5710bb57ee9eff2d60549"};
template <>
inline constexpr Script digested<scripts::write_withdraw>{scripts::write_withdraw,
    "cb79f41e60397e9302bee84f3c867bf31ff7edf8"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/read_write_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The names that both sides of a read-write lock share, and their common calls. Both sides listen to one channel.
class ReadWriteProtocol : public LockProtocol {
protected:
    ReadWriteProtocol(const LockKind& of, const ProtocolContext& context, const std::string& key)
        : LockProtocol(of, context, key, prefixed_key("redisson_rwlock", key)),
          tag_(key_.find('{') == std::string::npos ? "{" + key_ + "}" : key_),
          mark_(suffixed_key(key_, "redlatch_writer_waits")) {}

    // `field` is the owner as a holder of this side.
    Call release_by(const Script& script, const OwnerText& field, std::uint32_t remaining, Milliseconds lease) const {
        return {script, {key_, channel_}, {field, remaining, lease, PublishCommand(), tag_}};
    }

    Call give_up_by(const Script& script, std::span<const std::string_view> owners) const {
        Call call(script, {key_, channel_}, {PublishCommand(), tag_});
        call.append(owners);
        return call;
    }

    OwnerText reader(std::uint64_t hold) const noexcept { return {uuid_, hold}; }
    OwnerText writer(std::uint64_t hold) const noexcept { return {uuid_, hold, ":write"}; }

    const std::string tag_;   // prefix of the names of the timeout keys
    const std::string mark_;  // redlatch's own key: exists while a writer with precedence waits
};

// Makes the calls of the readers' side.
class ReadProtocol final : public ReadWriteProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "readers ", .family = "ReadWriteLock", .renewal = digested<scripts::read_renew>, .shared = true};

    ReadProtocol(const ProtocolContext& context, const std::string& key) : ReadWriteProtocol(lock_kind, context, key) {}

    Call acquire(const Claim& claim) const override {
        return {digested<scripts::read_acquire>,
                {key_, mark_},
                {text(claim.hold), claim.count, claim.lease, writer(claim.writer), tag_, claim.until},
                Effect::grants};
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return release_by(digested<scripts::read_release>, text(hold), remaining, lease);
    }

    Call give_up(std::span<const std::string_view> owners) const override {
        return give_up_by(digested<scripts::read_give_up>, owners);
    }

    Call holders() const override { return {digested<scripts::read_holders>, {key_}, {tag_}}; }
    Call remaining_lease() const override { return {digested<scripts::read_remaining_lease>, {key_}, {tag_}}; }
    Call hold_count(std::uint64_t hold) const override {
        return {digested<scripts::read_hold_count>, {key_}, {text(hold), tag_}};
    }

    OwnerText text(std::uint64_t hold) const noexcept override { return reader(hold); }
};

// Makes the calls of the writer's side.
class WriteProtocol final : public ReadWriteProtocol {
public:
    // A read hold of the same owner keeps the key.
    static constexpr LockKind lock_kind{.name = "writers ",
                                        .family = "ReadWriteLock",
                                        .renewal = digested<scripts::rlock_renew>,
                                        .outlives_lease = true};

    WriteProtocol(const ProtocolContext& context, const std::string& key)
        : ReadWriteProtocol(lock_kind, context, key) {}

    Call acquire(const Claim& claim) const override {
        if (claim.announced) marked_ = true;
        return {
            digested<scripts::write_acquire>,
            {key_, mark_},
            {text(claim.hold), claim.count, claim.lease, tag_, uuid_, claim.announced ? mark_ttl : "0", claim.until},
            Effect::grants};
    }

    AcquireAnswer read_acquire(const Reply& reply) const override {
        const AcquireAnswer answer = decode_acquire(reply, key_);
        // The script that acquired the lock deleted the mark.
        if (answer.kind == AcquireAnswer::Kind::held) marked_ = false;
        return answer;
    }

    // Deletes the mark that a waiting thread of this process may have left.
    std::optional<Call> cancel_announcement() const override {
        if (!marked_.exchange(false)) return std::nullopt;
        return Call(digested<scripts::write_withdraw>, {mark_, channel_}, {uuid_, PublishCommand()});
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return release_by(digested<scripts::write_release>, text(hold), remaining, lease);
    }

    Call give_up(std::span<const std::string_view> owners) const override {
        return give_up_by(digested<scripts::write_give_up>, owners);
    }

    Call holders() const override { return {digested<scripts::write_holders>, {key_}, {}}; }
    Call remaining_lease() const override { return {digested<scripts::write_remaining_lease>, {key_}, {}}; }

    OwnerText text(std::uint64_t hold) const noexcept override { return writer(hold); }

private:
    // How long a writer that dies while it waits keeps readers out, in ms. The mark is renewed after half of this time.
    static constexpr std::string_view mark_ttl = "5000";

    mutable std::atomic<bool> marked_{false};  // true if a mark of this process may be on the server
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/read_write_lock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker read_maker{ReadProtocol::lock_kind.name, LockState::make<ReadProtocol>};
inline constexpr StateMaker write_maker{WriteProtocol::lock_kind.name, LockState::make<WriteProtocol>};
}  // namespace detail

// --- the sides ---------------------------------------------------------------------------------------------------

REDLATCH_INLINE bool ReadWriteLock::Side::ask_locked(Instant limit) { return ask_remaining_lease(limit).has_value(); }

REDLATCH_INLINE ReadWriteLock::ReadLock::ReadLock(Client& client, std::string_view name)
    : Side(detail::ClientAccess::session(client), detail::read_maker, name) {}

REDLATCH_INLINE ReadWriteLock::WriteLock::WriteLock(Client& client, std::string_view name, ReadLock& readers,
                                                    ReadWriteOptions options)
    : Side(detail::ClientAccess::session(client), detail::write_maker, name), readers_(readers), options_(options) {}

REDLATCH_INLINE bool ReadWriteLock::WriteLock::acquire(const detail::LockRequest& request) {
    const Instant now = Clock::now();
    if (detail::LockAccess::valid_until(readers_, request.owner) > now && valid_until_of(request.owner) <= now)
        throw Error(errc::would_deadlock, state().key(),
                    "this thread holds the read side; release that before locking the write side");
    if (!options_.writer_preference) return NamedLock::acquire(request);
    detail::LockRequest first = request;
    first.precedence = true;
    return NamedLock::acquire(first);
}

// --- both --------------------------------------------------------------------------------------------------------

REDLATCH_INLINE ReadWriteLock::ReadWriteLock(Client& client, std::string_view name, ReadWriteOptions options)
    : read_(client, name), write_(client, name, read_, options) {}

REDLATCH_INLINE bool ReadWriteLock::acquire(const detail::LockRequest& request) {
    return detail::LockAccess::acquire(write_, request);
}

REDLATCH_INLINE std::error_code ReadWriteLock::release(detail::OwnerNumber owner) {
    return detail::LockAccess::release(write_, owner);
}

REDLATCH_INLINE detail::HeldLevel ReadWriteLock::keeper_of_holds() {
    return detail::LockAccess::keeper_of_holds(write_);
}

REDLATCH_INLINE bool ReadWriteLock::force_release(Instant limit) {
    return detail::LockAccess::force_release(write_, limit);
}

REDLATCH_INLINE Instant ReadWriteLock::valid_until_of(detail::OwnerNumber owner) {
    return detail::LockAccess::valid_until(write_, owner);
}

REDLATCH_INLINE std::stop_token ReadWriteLock::lost_of(detail::OwnerNumber owner) {
    return detail::LockAccess::lost(write_, owner);
}

REDLATCH_INLINE bool ReadWriteLock::ask_locked(Instant limit) { return detail::LockAccess::ask_locked(write_, limit); }

REDLATCH_INLINE int ReadWriteLock::ask_hold_count(detail::OwnerNumber owner, Instant limit) {
    return detail::LockAccess::ask_hold_count(write_, owner, limit);
}

REDLATCH_INLINE std::optional<Milliseconds> ReadWriteLock::ask_remaining_lease(Instant limit) {
    return detail::LockAccess::ask_remaining_lease(write_, limit);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/red_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

struct RedLockOptions {
    // The time a server may take to reply before the others decide without it.
    Milliseconds node_timeout{500};
    // The longest lease that any process takes this lock with; zero means the watchdog_timeout of its first client. A
    // server that has been running for less does not vote, because a restart may have lost a lock that is still valid.
    // Use the same value in all processes that use this lock.
    Milliseconds longest_lease{0};
};

// Provides a lock on a majority of independent servers. It survives the loss of a minority: of their process, memory or
// connection. Members are locks with one name, each on a server of its own (none a replica of another), of type RLock
// or any other lock type.
//
//   redlatch::RLock a{redis1, "orders"}, b{redis2, "orders"}, c{redis3, "orders"};
//   redlatch::RedLock orders{a, b, c};
//
// It follows the Redlock algorithm of the Redis documentation. All members are queried at the same time. The hold is
// valid from the time of the query until the leases of a majority expire, less the possible drift of their clocks. An
// acquire and its release cost two commands per server, plus one after each new connection (INFO, for the server's
// age). A minority that is dead, frozen or unreachable causes no error and costs at most one node_timeout. Each renewal
// by the watchdog retries the members that are not held. A stop is requested on lost() when the majority is lost. No
// majority of leases protects against a process that pauses for longer than its lease; that requires fencing tokens.
//
// A server computes its age from its wall clock, which nothing else can verify. A server that restarts empty, and whose
// clock is set forward within longest_lease after that, votes too early. Data loss without a restart (FLUSHALL) is not
// detected either. Both count among the faults that only a minority of the servers may have.
//
// For longest_lease after all servers were started, no process can acquire the lock. Reentrant if its members are.
// Members must outlive this object. A hold belongs to the object that took it. Neither copyable nor movable. Any number
// of threads may use one object.
class RedLock : public detail::QuorumApi {
public:
    // Throws Error(errc::invalid_argument) if two members use one client, and so one server, and for options that
    // cannot work. Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit RedLock(Locks&... locks)
        : RedLock(RedLockOptions{}, locks...) {}

    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit RedLock(RedLockOptions options,
                                                                                           Locks&... locks)
        : RedLock(Whole{}, {detail::member_lock(locks)...}, options) {}

    template <detail::LockRange Range>
    explicit RedLock(Range&& range, RedLockOptions options = {})
        : RedLock(Whole{}, detail::member_locks_in(range), options) {}

private:
    struct Whole {};

    RedLock(Whole, const std::vector<detail::NamedLock*>& locks, RedLockOptions options);
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/red_lock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

inline QuorumRules majority_of(const QuorumMembers& members, RedLockOptions options) {
    if (members.empty()) throw Error(errc::invalid_argument, {}, "a RedLock needs at least one member");
    const std::string& name = members.front()->name();
    if (options.longest_lease == Milliseconds(0)) options.longest_lease = members.front()->options().watchdog_timeout;
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (members[i]->options().watchdog_timeout > options.longest_lease)
            throw Error(errc::invalid_argument, name,
                        "RedLockOptions::longest_lease must be at least the watchdog_timeout of every member's client");
        for (std::size_t j = i + 1; j < members.size(); ++j)
            if (members[i]->client() == members[j]->client())
                throw Error(errc::invalid_argument, name,
                            "two members use the same client; each member needs a client for a server of its own");
    }
    if (options.node_timeout < Milliseconds(1) || options.node_timeout > std::chrono::hours(1) ||
        options.longest_lease < Milliseconds(1))
        throw Error(errc::invalid_argument, name,
                    "RedLockOptions: node_timeout must be from 1 ms to 1 h, and longest_lease must be positive");
    return {.needed = members.size() / 2 + 1,
            .node_timeout = options.node_timeout,
            .independent = true,
            .longest_lease = Lease(options.longest_lease).length()};
}

}  // namespace detail

REDLATCH_INLINE RedLock::RedLock(Whole, const std::vector<detail::NamedLock*>& locks, RedLockOptions options)
    : QuorumApi(members_of(locks), detail::majority_of(members_of(locks), options)) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/rlock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a reentrant distributed lock: one thread of one process holds it at a time, for as long as its lease is
// valid. It is the counterpart of Redisson's RLock and the same lock as an RLock of that name there.
//
// Two objects with the same name are the same lock. It is not fair: the process that releases it may acquire it again
// first. FairLock keeps an order. Models Cpp17TimedLockable: use it with std::lock_guard, std::unique_lock,
// std::scoped_lock, std::condition_variable_any. Neither copyable nor movable. Any number of threads may use one
// object. Destroying the object while a thread waits in it is an error, as for std::mutex. Destroying it while the lock
// is held is not: the hold goes on, and another object with that name can release it.
class RLock : public detail::NamedLock {
public:
    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    RLock(Client& client, std::string_view name);
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/rlock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker rlock_maker{RLockProtocol::lock_kind.name, LockState::make<RLockProtocol>};
}  // namespace detail

REDLATCH_INLINE RLock::RLock(Client& client, std::string_view name)
    : NamedLock(detail::ClientAccess::session(client), detail::rlock_maker, name) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a distributed semaphore: a std::counting_semaphore across processes, and the counterpart of Redisson's
// RSemaphore. A permit has no owner: any thread may release it, and the permits of a process that dies are lost. Use
// PermitExpirableSemaphore if they must come back.
//
// There are no permits before try_set_permits() or release(). Within a process, waiting threads are served in order of
// arrival, so requests for few permits cannot starve one for many. There is no order among processes. A request for
// more permits than this process has seen available within ten minutes takes turns with those behind it: it holds them
// back for a second, lets them pass for a second, and so on with turns of up to ten seconds. try_acquire() does not
// queue.
//
// Neither copyable nor movable. Any number of threads may use one object. Two objects with the same name are the same
// semaphore. Each member throws Error; with a trailing std::error_code& it stores the code and throws only
// std::bad_alloc. If the server cannot be reached, a call retries for ClientOptions::unreachable_timeout, then fails
// with errc::unreachable. A command may be resent after a lost reply and still takes effect once. An acquire that
// fails, is stopped or times out keeps no permit, even if its outcome is unknown. Numbers of permits are from 0 to
// max(); any other number throws Error(errc::invalid_argument) before anything is sent. Each member is one round trip,
// except for waiting.
class Semaphore {
public:
    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    Semaphore(Client& client, std::string_view name);

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns the largest number of permits, which is the largest that Redisson can count.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Sets the number of permits if the semaphore does not exist. Returns true if it was set.
    bool try_set_permits(std::ptrdiff_t permits);
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits); }, false, ec);
    }

    // Acquires n permits at once (1 by default) and waits for them if necessary. A waiting thread sends one query every
    // 5 to 10 seconds, in case a message was lost. A process with many waiting threads sends no more than that.
    //   acquire(…, token)   gives up if a stop is requested; only this form returns a bool: true if acquired
    //   acquire(…, ec)      stores the error instead of throwing it
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto acquire(std::ptrdiff_t n, Tail&&... tail) {
        const bool acquired =
            detail::answer([&] { return take(n, detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return acquired;
    }
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) { return acquire(1, tail...); }

    // Acquires n permits if they are available: one attempt, even if others wait.
    [[nodiscard]] bool try_acquire(std::ptrdiff_t n = 1) { return take(n, {.one_try = true}); }
    [[nodiscard]] bool try_acquire(std::ptrdiff_t n, std::error_code& ec) {
        return detail::answer([&] { return try_acquire(n); }, false, ec);
    }
    [[nodiscard]] bool try_acquire(std::error_code& ec) { return try_acquire(1, ec); }

    // Waits at most until `timeout` has passed or the instant has come, by a monotonic clock. Returns true if the
    // permits were acquired. Timeouts are rounded up to the next millisecond; zero or less is one attempt; the largest
    // value waits indefinitely. Accepts std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), n, tail...);
    }
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), 1, tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_until(std::chrono::time_point<AnyClock, Duration> when, std::ptrdiff_t n,
                                         Tail&&... tail) {
        return timed(deadline_at(when), n, tail...);
    }
    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(deadline_at(when), 1, tail...);
    }

    // Releases n permits, or adds new ones. Creates the semaphore if it does not exist. Throws
    // Error(errc::invalid_argument) and changes nothing if there would be more than max() permits.
    //
    // If no server carries it out in time, the call fails with errc::unreachable or errc::overloaded, but the release
    // is not lost: the client retries it in the background for a minute and a half or more, while the process lives. So
    // do not release again after such an error. If the retries fail too, or it is no longer possible to tell whether
    // the release was carried out, the event unlock_not_delivered reports it.
    void release(std::ptrdiff_t n = 1) {
        check(n, 0);
        if (n > 0) give(n, false);
    }
    void release(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return release(n), true; }, false, ec);
    }
    void release(std::error_code& ec) { release(1, ec); }

    // Does the same, but only if the semaphore exists, for semaphores whose key may have expired. Returns true if it
    // exists.
    bool release_if_exists(std::ptrdiff_t n = 1) {
        check(n, 0);
        return give(n, true);
    }
    bool release_if_exists(std::ptrdiff_t n, std::error_code& ec) {
        return detail::answer([&] { return release_if_exists(n); }, false, ec);
    }
    bool release_if_exists(std::error_code& ec) { return release_if_exists(1, ec); }

    // Returns the number of available permits: 0 if the semaphore does not exist, negative if add_permits() took away
    // more than there were.
    std::ptrdiff_t available_permits();
    std::ptrdiff_t available_permits(std::error_code& ec) {
        return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
    }

    // Changes the number of permits by n, from -max() to max(), also while some are acquired.
    void add_permits(std::ptrdiff_t n);
    void add_permits(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return add_permits(n), true; }, false, ec);
    }

    // Takes all available permits and leaves none. Returns their number, which is negative if some were owed.
    [[nodiscard]] std::ptrdiff_t drain_permits();
    [[nodiscard]] std::ptrdiff_t drain_permits(std::error_code& ec) {
        return detail::answer([&] { return drain_permits(); }, std::ptrdiff_t(0), ec);
    }

private:
    void check(std::ptrdiff_t n, std::ptrdiff_t least) const;
    bool take(std::ptrdiff_t n, const detail::WaitRequest& request);
    bool give(std::ptrdiff_t n, bool only_existing);

    template <class... Tail>
    bool timed(Instant deadline, std::ptrdiff_t n, Tail&... tail) {
        return detail::answer([&] { return take(n, detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    detail::StateHandle handle_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/protocol/semaphore.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the semaphore and reads the replies.
class SemaphoreProtocol {
public:
    static constexpr std::string_view kind = "semaphore ";
    static constexpr bool takes = true;
    static constexpr std::size_t most_at_once = 100;
    static constexpr bool takes_back_by_mark = true;

    struct Want {
        std::int64_t permits = 1;  // at least one
        bool served = false;
        bool lets_pass = false;  // True if callers behind it may be served when there is not enough for it

        std::int64_t amount() const { return permits; }
    };

    SemaphoreProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_semaphore_requests"),
          channel_(prefixed_key("redisson_sc", marks_.key())) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Call ask(std::span<const Want> wants, const RequestId& request_id) const {
        Call call = marks_.call(digested<scripts::semaphore_acquire>, request_id, {}, {}, Effect::grants);
        for (const Want& want : wants) call.append(want.lets_pass ? -want.permits : want.permits);
        return call;
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        if (!reply.is_integer() || !share(std::max<std::int64_t>(reply.integer, 0), wants) ||
            reply.integer <= -wants.front().permits)
            throw unexpected(reply, key());
        return {Milliseconds::max(), -reply.integer};
    }

    Call take_back(const RequestId& request_id, std::span<const Want>) const {
        return marks_.call(digested<scripts::semaphore_give_back>, request_id, {channel_}, {PublishCommand()});
    }

    Call give_back(const RequestId& request_id, std::span<const Want> wants) const {
        std::int64_t permits = 0;
        for (const Want& want : wants) permits += want.permits;
        return add(request_id, permits, true);
    }

    Call add(const RequestId& request_id, std::int64_t permits, bool only_existing) const {
        return marks_.call(digested<scripts::semaphore_add>, request_id, {channel_},
                           {permits, PublishCommand(), only_existing ? "1" : "0"});
    }

    Call set(const RequestId& request_id, std::int64_t permits) const {
        return marks_.call(digested<scripts::semaphore_set>, request_id, {channel_}, {permits, PublishCommand()});
    }

    Call drain(const RequestId& request_id) const {
        return marks_.call(digested<scripts::semaphore_drain>, request_id, {}, {});
    }

    Call available() const { return Call::command({"GET", key()}); }

private:
    const RequestMarks marks_;
    const std::string channel_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/semaphore.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using SemaphoreState = Synchronizer<SemaphoreProtocol>;

inline SemaphoreState& semaphore_of(StateHandle& handle) { return static_cast<SemaphoreState&>(handle.state()); }

}  // namespace detail

REDLATCH_INLINE Semaphore::Semaphore(Client& client, std::string_view name)
    : handle_(detail::ClientAccess::session(client), detail::SemaphoreState::maker, name) {}

REDLATCH_INLINE bool Semaphore::try_set_permits(std::ptrdiff_t permits) {
    check(permits, 0);
    auto& semaphore = detail::semaphore_of(handle_);
    return semaphore.is_one(semaphore.change(
        [&](const detail::RequestId& request_id) { return semaphore.protocol().set(request_id, permits); }));
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::available_permits() {
    auto& semaphore = detail::semaphore_of(handle_);
    const Reply reply = detail::query(semaphore.session(), semaphore.key(), semaphore.protocol().available());
    return static_cast<std::ptrdiff_t>(detail::number_of(reply, semaphore.key()));
}

REDLATCH_INLINE void Semaphore::add_permits(std::ptrdiff_t n) {
    check(n, -max());
    if (n == 0) return;
    auto& semaphore = detail::semaphore_of(handle_);
    semaphore.is_one(semaphore.change(
        [&](const detail::RequestId& request_id) { return semaphore.protocol().add(request_id, n, false); }));
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::drain_permits() {
    auto& semaphore = detail::semaphore_of(handle_);
    const Reply reply =
        semaphore.change([&](const detail::RequestId& request_id) { return semaphore.protocol().drain(request_id); });
    if (!reply.is_integer()) throw detail::unexpected(reply, semaphore.key());
    return static_cast<std::ptrdiff_t>(reply.integer);
}

REDLATCH_INLINE void Semaphore::check(std::ptrdiff_t n, std::ptrdiff_t least) const {
    if (n < least || n > max())
        throw Error(errc::invalid_argument, name(), "the number of permits must be from 0 to 2147483647");
}

REDLATCH_INLINE bool Semaphore::take(std::ptrdiff_t n, const detail::WaitRequest& request) {
    check(n, 0);
    if (n == 0) return true;
    detail::SemaphoreProtocol::Want want{.permits = n};
    return detail::semaphore_of(handle_).obtain(want, request);
}

REDLATCH_INLINE bool Semaphore::give(std::ptrdiff_t n, bool only_existing) {
    auto& semaphore = detail::semaphore_of(handle_);
    return semaphore.is_one(semaphore.change(
        [&semaphore, n, only_existing](const detail::RequestId& request_id) {
            return semaphore.protocol().add(request_id, n, only_existing);
        },
        detail::SemaphoreState::Undelivered::retry));
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/spin_lock.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides the same lock as an RLock of that name, but waits by polling instead of subscribing. Use it for servers
// where subscribing is not allowed or not wanted, and for locks that are held only briefly. A waiting process sends one
// command per pause, however many of its threads wait. A release wakes waiting RLocks, too.
//
// In one process, SpinLock and RLock objects with the same name are the same lock, like two RLock objects.
class SpinLock : public detail::NamedLock {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does, and for delays that are not positive or whose
    // first is longer than the longest. Sends nothing.
    SpinLock(Client& client, std::string_view name, SpinOptions options = {});

private:
    REDLATCH_INLINE bool acquire(const detail::LockRequest& request) override;

    const detail::Polling polling_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/spin_lock.ipp

namespace redlatch {
inline namespace REDLATCH_ABI {

REDLATCH_INLINE SpinLock::SpinLock(Client& client, std::string_view name, SpinOptions options)
    : NamedLock(detail::ClientAccess::session(client), detail::rlock_maker, name),
      polling_(detail::polling_of(options, name)) {}

REDLATCH_INLINE bool SpinLock::acquire(const detail::LockRequest& request) {
    detail::LockRequest polling = request;
    polling.polling = polling_;
    return NamedLock::acquire(polling);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/redlatch.hpp

// Includes every primitive.

#if __has_include(<hiredis/read.h>)
#endif
