// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/protocol/protocol_context.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The scripts of a lock like RLock whose waiters queue up on the server.
struct QueueScripts {
    const Script& acquire;
    const Script& release;
    const Script& give_up;
    const Script& stay;
    const Script& hand_over;
    bool fenced = false;  // a grant carries the fencing token of the hold
};

// What tells one kind of lock from another, apart from its calls.
struct LockKind {
    std::string_view name;    // tells the local states of one key apart
    std::string_view family;  // two families on one key would mistake each other's holds for their own
    const Script& renewal;    // renews holds of this kind
    bool shared = false;      // many may hold it at a time; then a thread may ask while others of its process hold it
    bool reentrant = true;    // its holder may acquire it once more
    bool hands_over = false;  // one thread of this process can hand its hold over to another
    bool outlives_lease = false;  // the server may keep a hold beyond its lease, so an expired one has to be released
    const QueueScripts* queue =
        nullptr;                   // for locks like RLock: if waiters of all processes may queue up on the server
    bool fixes_lease_end = false;  // the acquire call names the end of the lease by the server's clock
};

// The message on the channel of a lock of which the holder has written a record (scripts/holder_record.hpp), or which a
// release has granted to a waiter in the queue (scripts/lock_queue.hpp): the lock is still held.
inline constexpr std::string_view record_message = "2";

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

    // Returns true if waiters queue up on the server, and a release grants the lock to the next one.
    virtual bool queues() const noexcept { return false; }

    // Returns true if the user has turned out to have no right to that queue. Then a release grants nothing.
    virtual bool may_not_queue() const noexcept { return false; }

    // Returns the channel that tells this client of its grants, if it queues.
    virtual std::string grants_channel() const { return channel_ + ":" + uuid_; }

    // Returns the hold's owner as the server knows it.
    virtual OwnerText text(std::uint64_t hold) const noexcept { return {uuid_, hold}; }

    // --- acquiring: one acquire, also of one more level -------------------------------------------------------

    virtual Call acquire(const Claim& claim) const = 0;
    virtual AcquireAnswer read_acquire(const Reply& reply) const { return decode_acquire(reply, key_); }

    // Returns the call that has to follow the plain command `sent` after this reply, if there is one.
    virtual std::optional<Call> after_acquire(const Claim&, const Call& /*sent*/, const Reply&) const {
        return std::nullopt;
    }

    // Returns true if the user may not use the queue, which a script with so many keys does. Then acquire() makes another
    // call.
    virtual bool is_queue_refused(std::size_t /*keys*/, const Reply&) const { return false; }

    // Called when a waiter of this process has entered by a grant.
    virtual void granted() const noexcept {}

    // Cancels the announcement of a waiting thread of this process. Returns nothing if there is none.
    virtual std::optional<Call> cancel_announcement() const { return std::nullopt; }

    // --- releasing --------------------------------------------------------------------------------------------

    virtual Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const = 0;
    virtual ReleaseAnswer read_release(const Reply& reply) const noexcept { return decode_release(reply); }

    // Releases the last level, in the first sending of a caller that waits; the second returns the call that has to
    // follow it, if there is one. A release that nobody waits for is release().
    virtual Call first_release(std::uint64_t hold) const { return release(hold, 0, Milliseconds(0)); }
    virtual std::optional<Call> after_release(std::uint64_t, const Call& /*sent*/, const Reply&) const {
        return std::nullopt;
    }

    // Ends a hold, whatever its levels, but leaves the lock taken for the rest of its minimum hold, by a number that nobody
    // has. So a late renewal finds nothing to prolong. The reply: see read_stay().
    virtual Call stay(std::uint64_t hold, std::uint64_t successor, Milliseconds rest) const = 0;

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

    // Whether one owner holds the lock, whatever client it is of. held_by() needs its field on the server, which must
    // live until the call is sent.
    virtual std::string field_of(std::string_view owner) const { return std::string(owner); }
    virtual Call held_by(const std::string& field) const { return Call::command({"HGET", key_, field}); }
    virtual bool read_held_by(const Reply& reply, const std::string& /*field*/) const {
        return read_count(reply, key_) > 0;
    }
    virtual Call remaining_lease() const { return key_lease(key_); }

    // Reads the whole state of the lock at one moment.
    virtual Call inspect() const { return inspect_hash(key_); }
    virtual Inspection read_inspection(const Reply& reply) const { return inspection_of_hash(reply, key_); }

protected:
    const std::string& uuid_;
    const std::string key_;
    const std::string channel_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
