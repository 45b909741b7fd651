// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Fencing tokens are below 2^53, where the scripts' numbers are exact.
inline bool is_token(std::int64_t value) noexcept { return value > 0 && value < std::int64_t{1} << 53; }

// The reply of an acquire script.
struct AcquireAnswer {
    enum class Kind { held, blocked, gone } kind;
    Milliseconds holder_lease{};  // blocked: the remaining lease of the holder; negative if its key has no TTL
    std::int64_t token = 0;       // held: the fencing token, for locks that have one
    bool queued = false;          // blocked: this client has a place in the server's queue
    bool foreign = false;         // blocked: a client holds it whose releases grant nothing
};

inline AcquireAnswer decode_acquire(const Reply& reply, std::string_view name) {
    if (reply.is_nil()) return {AcquireAnswer::Kind::held, {}, 0};
    if (!reply.is_integer() || reply.integer < -2) throw unexpected(reply, name);
    if (reply.integer == -2) return {AcquireAnswer::Kind::gone, {}, 0};
    return {AcquireAnswer::Kind::blocked, Milliseconds(reply.integer), 0};
}

// The reply of an acquire script that may give a place in the queue: {the holder's lease, whether that is foreign}.
inline AcquireAnswer decode_queueing_acquire(const Reply& reply, std::string_view name) {
    if (reply.kind != Reply::Kind::array) return decode_acquire(reply, name);
    if (reply.elements.size() != 2 || !reply.elements[0].is_integer() || reply.elements[0].integer < 0 ||
        !reply.elements[1].is_integer())
        throw unexpected(reply, name);
    AcquireAnswer answer{AcquireAnswer::Kind::blocked, Milliseconds(reply.elements[0].integer), 0};
    answer.queued = true;
    answer.foreign = reply.elements[1].integer != 0;
    return answer;
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

// The reply of a release script that granted the lock to the next waiter.
inline constexpr std::int64_t granted_to_next = -3;

// Never throws, because unlock() uses it.
inline ReleaseAnswer decode_release(const Reply& reply) noexcept {
    if (reply.is_nil()) return {ReleaseAnswer::Kind::not_held, 0};
    if (reply.is_integer() && reply.integer == granted_to_next) return {ReleaseAnswer::Kind::released, 0};
    if (!reply.is_integer() || reply.integer < -1) return {ReleaseAnswer::Kind::senseless, 0};
    if (reply.integer == -1) return {ReleaseAnswer::Kind::still_held, 0};
    return {ReleaseAnswer::Kind::released, reply.integer};
}

// Reads the reply of a script that ends a hold and leaves the lock taken: the server's clock, negative if the owner did
// not hold it. Never throws.
inline ReleaseAnswer read_stay(const Reply& reply) noexcept {
    if (!reply.is_integer() || reply.integer == 0) return {ReleaseAnswer::Kind::senseless, 0};
    return {reply.integer > 0 ? ReleaseAnswer::Kind::released : ReleaseAnswer::Kind::not_held, 0};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
