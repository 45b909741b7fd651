// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/credentials.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/transport/transport.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class TlsConnector;
}  // namespace detail

// Reports what no return value can, because it happens between two calls.
struct Event {
    // Tells what happened.
    enum class Kind {
        hold_lost,             // a hold ended before its unlock; a stop is requested on its lost() token
        unlock_not_delivered,  // a release could not be delivered before its lease expired
        disconnected,          // the server cannot be reached
        reconnected,           // the server can be reached again
        moved,                 // failover: another server is the master now; every hold is verified there
        not_set_up,            // a caller waits for permits of a semaphore that nobody has set up; it goes on waiting
    };

    Kind kind;           // what happened
    std::string name;    // the primitive's; empty for an event of the connection
    std::string detail;  // readable text for a log
};

// Returns the name of the kind as it is written in C++, such as "hold_lost": for logs and the labels of metrics. Returns
// "unknown" for a value that is no kind. The text lives as long as the program.
constexpr std::string_view to_string(Event::Kind kind) noexcept {
    switch (kind) {
        case Event::Kind::hold_lost: return "hold_lost";
        case Event::Kind::unlock_not_delivered: return "unlock_not_delivered";
        case Event::Kind::disconnected: return "disconnected";
        case Event::Kind::reconnected: return "reconnected";
        case Event::Kind::moved: return "moved";
        case Event::Kind::not_set_up: return "not_set_up";
    }
    return "unknown";
}

// Counts durations by their length. Range i ends before 2^i microseconds and begins where the one before it ends; the
// first begins at 0, the last has no end.
struct Histogram {
    static constexpr std::size_t size = 36;  // the number of ranges; the last begins at 2^34 us, almost five hours

    std::array<std::uint64_t, size> counts{};  // how many durations each range has

    // Returns the end of a range, which it does not include; microseconds::max() for the last one.
    static constexpr std::chrono::microseconds end_of(std::size_t range) noexcept {
        return range + 1 < size ? std::chrono::microseconds(std::int64_t{1} << range)
                                : std::chrono::microseconds::max();
    }

    // Returns the number of all durations.
    constexpr std::uint64_t total() const noexcept {
        std::uint64_t sum = 0;
        for (const std::uint64_t count : counts) sum += count;
        return sum;
    }

    // Returns a time that this share of the durations, from 0 to 1, did not reach: the end of a range, so up to twice as
    // long as exact. quantile(0.5) is about the median. Returns 0 if there are no durations.
    constexpr std::chrono::microseconds quantile(double share) const noexcept {
        const double wanted = share * static_cast<double>(total());
        std::uint64_t sum = 0;
        for (std::size_t range = 0; range < size; ++range) {
            sum += counts[range];
            if (sum > 0 && static_cast<double>(sum) >= wanted) return end_of(range);
        }
        return {};
    }
};

// Counts what the client has done since it was created.
struct Stats {
    std::uint64_t commands = 0;      // sent to the server by callers and in the background, including resends; a
                                     // subscription counts once for each channel, however often it is checked
    std::uint64_t acquisitions = 0;  // holds acquired in any way
    std::uint64_t waits = 0;         // waits that began, for any primitive, whatever their outcome
    std::uint64_t handoffs = 0;      // holds and permits handed off to a waiter of this process
    std::uint64_t renewals = 0;      // lease renewals by the watchdog, one per hold and renewal
    std::uint64_t lost_holds = 0;    // holds that ended before their release, as the event hold_lost reports them
    std::uint64_t resends = 0;       // commands resent after a lost connection or a refusal
    std::uint64_t reconnects = 0;    // connections made anew in place of one that was lost

    // The state now.
    std::uint64_t held = 0;     // locks that threads and objects of this process hold; those of a MultiLock or RedLock
                                // count one by one, permits do not count
    std::uint64_t waiting = 0;  // callers that wait for a lock, for permits or for the end of a count

    // From the start of each wait to its end, whether the caller got what it waited for or gave up.
    Histogram wait_times = {};
    // From each acquisition to the release or the loss of the last level.
    Histogram hold_times = {};
};

// A value of require_replicas: requires every replica that the master has had since the client found it,
// and at least one.
inline constexpr unsigned all_replicas = ~0U;

// Options of a client. The constructor of Client throws Error for a value that cannot work, before anything is
// sent.
struct ClientOptions {
    // The lease of a hold acquired without one. The watchdog renews it every third of this time, so a crashed holder
    // blocks others no longer than this.
    Milliseconds watchdog_timeout = std::chrono::seconds(30);
    // The time a server may take to reply to a command before its connection counts as dead.
    Milliseconds command_timeout = std::chrono::seconds(3);
    // How often a process that waits asks whether its connection for messages still works, by one more SUBSCRIBE. Without a
    // reply within command_timeout it connects anew. So it misses no message for longer than both, even if something on
    // the way drops or delays them all without closing the connection. Zero: never asks, and relies on TCP,
    // which notices a silent network within 30 s. Ignored by transports of your own.
    Milliseconds ping_interval = std::chrono::seconds(15);
    // The time for which a call tries to reach a server before it throws errc::unreachable. A call with an earlier deadline
    // tries until that.
    Milliseconds unreachable_timeout = std::chrono::seconds(30);
    // How many holds, or permits of one semaphore, the watchdog renews by one command at most: 1 to 1,000. The command is
    // a script, and the server does nothing else until it ends, which takes about 2 ms for 1,000 holds. So a larger value
    // saves commands of a process with many holds, and a smaller one lets other clients in between. In a cluster only
    // holds of one slot share a command.
    unsigned renewal_batch = 100;
    // A prefix for every name: the namespace of an application on a shared server.
    std::string key_prefix = {};
    // The name that the server shows in CLIENT LIST for each connection of this client, set by CLIENT SETNAME. Printable
    // ASCII without spaces, at most 1,024 bytes; empty for none. It costs no round trip. A user without the right to
    // CLIENT SETNAME works without a name. Connections to sentinels have none. Ignored by transports of your own.
    std::string name = {};
    // Returns the login of each new connection, in place of the one in the URL: for passwords that change and tokens that
    // expire. Existing connections keep theirs. Sentinels get none. Ignored by transports of your own.
    //
    // Called after the server has accepted the connection, on a thread of the client that only connects, with no lock
    // held. Several threads may call it at once, and a child after fork() calls it, too. It must not use this client.
    // It may block. Its time does not count as the server's. Until it returns, calls that need the connection wait,
    // within their deadlines; so do renewals and messages of this connection. The end of the client waits for it.
    // If it throws, the attempt to connect has failed. The client repeats it after a pause. The error of a call that
    // gives up quotes what(), so that must not contain the password. A login that the server refuses fails the call at
    // once. The next attempt calls the function again.
    std::function<Credentials()> credentials = {};
    // How many times in a row a released lock, or permits of a Semaphore, are handed off to a waiter of this process
    // before other processes get a turn.
    unsigned local_handoff_limit = 16;
    // Whether the waiters of a lock queue up on the server, and a release grants the lock to the next of them. Then that
    // waiter sends nothing, and the others sleep on. Clients with and without this option share locks, and so does Redisson.
    // Turn it off for a connection whose proxy may replace the server unseen, because a grant counts from the server's clock.
    // The reentrant, the non-reentrant, the fenced, the fair and the read-write locks use it, unless require_replicas or
    // require_fsync is set. A FairLock has its queue anyway. The others need two more keys per lock:
    // redlatch_lock_queue:{name} and redlatch_lock_places:{name}; a ReadWriteLock redlatch_rwlock_queue:{name} and
    // redlatch_rwlock_places:{name}. The waiters of both semaphores queue up in redlatch_semaphore_queue:{name} and
    // redlatch_semaphore_places:{name}: whoever makes permits available wakes the waiters for which there are enough. Permits
    // with leases are granted, too.
    bool grants = true;
    // How long a waiter of a FairLock keeps its place in the queue after it was last heard of. A waiter that dies at the
    // head blocks the others that long. The client renews the places of its waiters every third of this time. A longer
    // time keeps them through a longer loss of the connection. From 100 ms to 5 min; if empty, a sixth of
    // watchdog_timeout, but at least 100 ms and at most 5 s.
    //
    // All clients of a lock should use the same value: it is that of a client's own waiters, but a dead one blocks
    // everyone. Clients with different values do work together. Redisson's waiters keep their own time.
    std::optional<Milliseconds> fair_waiter_timeout = {};
    // The number of replicas that must confirm every hold and every permit within a quarter of command_timeout, so that
    // a failover to one of them does not lose it. If fewer confirm it, it is released and the operation fails with
    // errc::not_replicated. A renewal that they do not confirm does not count. Costs one more command each, in the same
    // round trip.
    unsigned require_replicas = 0;
    // Whether every hold and every permit must be on the server's disk, so that a restart does not lose it. Together with
    // require_replicas it must be on the disks of that many replicas, too. The server confirms that by WAITAOF (Redis 7.2,
    // Valkey) within half of command_timeout. If it does not, the hold or permit is released, and the operation fails with
    // errc::not_on_disk, or with errc::rejected if the server does not have the command, keeps no append-only file, or
    // denies this user the command. A renewal that is not confirmed does not count. Costs one more command each, in the
    // same round trip, and the time of the disk: up to a second with `appendfsync everysec`.
    bool require_fsync = false;
    // The connector for rediss:// URLs: redlatch::tls(...) of redlatch/tls.hpp. The URL alone decides whether TLS is
    // used.
    std::shared_ptr<const detail::TlsConnector> tls = {};
    // The kind of channel that wakes waiters, for a redis-cluster:// URL. All clients of a lock must use the same kind.
    PubSub pubsub = PubSub::automatic;
    // Called on a thread of the client, one event at a time, with no lock held. Exceptions from it are swallowed. It
    // may use the library. While it blocks, later events wait, but renewals, wake-ups and lost() requests do not.
    std::function<void(const Event&)> on_event = {};
};

// Options of one object: a lock, a semaphore or a latch. An option without a value is that of the client, with the same
// meaning: see ClientOptions. They belong to the object, not to its name, so two objects with one name may differ:
//   - A call goes by the options of the object that it is made through, also if other objects of this name wait.
//   - A hold keeps those of the object that acquired its first level, for its lease, its renewals and its releases,
//     whichever object unlocks it, and for Hold::again(). Permits keep them for their lease and their renewals.
// Both sides of a ReadWriteLock have those of the lock. Members of a MultiLock or RedLock keep their own. A MultiLock
// or RedLock tries to reach its servers for as long as its first member does.
//
// The constructor of the object throws Error, before anything is sent: errc::invalid_argument for a value that
// ClientOptions must not have either, or for a command_timeout above that of the client; errc::unsupported for
// require_replicas or require_fsync if the transport lacks post_all().
struct ObjectOptions {
    // The lease of a hold, or of a permit with a lease, that is acquired without one. The watchdog renews it every
    // third of this time. A FairLock's waiters keep their places for as long as the client's options say.
    std::optional<Milliseconds> watchdog_timeout = {};
    // The time a server may take to reply to a command of this object before the command counts as unanswered. At most
    // that of the client, whose connections count as dead then. They stay open if an object's own time has passed.
    std::optional<Milliseconds> command_timeout = {};
    // The time for which a call without a deadline tries to reach a server before it throws errc::unreachable. A
    // semaphore or a latch tries for a minute or twice the client's time at most, whichever is longer.
    std::optional<Milliseconds> unreachable_timeout = {};
    // How many times in a row the lock, or permits of the Semaphore, are handed off to a waiter of this process. Zero:
    // what this object releases is never handed off.
    std::optional<unsigned> local_handoff_limit = {};
    // The number of replicas that must confirm every hold and every permit, and its renewals, within a quarter of this
    // object's command_timeout. Zero: none.
    std::optional<unsigned> require_replicas = {};
    // Whether every hold and every permit, and its renewals, must be on the server's disk within half of this object's
    // command_timeout.
    std::optional<bool> require_fsync = {};
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
