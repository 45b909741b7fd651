// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/convert.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/scripts/inspection.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The calls that read the state of a primitive, for inspect(), and how their replies are read. All readers throw
// Error(errc::protocol_error) for a reply that the script never sends.

inline Call inspect_hash(const std::string& key) { return {digested<scripts::hash_inspect>, {key}, {}}; }
inline Call inspect_value(const std::string& key) { return {digested<scripts::value_inspect>, {key}, {}}; }

// --- parts of replies ------------------------------------------------------------------------------------------------

// Returns the elements of an array of at least `least`, in groups of `group`.
inline const std::vector<Reply>& elements_of(const Reply& reply, std::size_t least, std::size_t group,
                                             std::string_view key) {
    if (reply.kind != Reply::Kind::array || reply.elements.size() < least || reply.elements.size() % group != 0)
        throw unexpected(reply, key);
    return reply.elements;
}

// Reads a PTTL of something that exists: -1 is no end.
inline Milliseconds time_left(const Reply& reply, std::string_view key) {
    if (!reply.is_integer() || reply.integer < -2) throw unexpected(reply, key);
    return reply.integer == -1 ? Milliseconds::max() : Milliseconds(reply.integer < 0 ? 0 : reply.integer);
}

// Reads the PTTL of a key: nothing if it has none, or does not exist.
inline std::optional<Milliseconds> time_to_live(const Reply& reply, std::string_view key) {
    if (!reply.is_integer() || reply.integer < -2) throw unexpected(reply, key);
    return reply.integer < 0 ? std::nullopt : std::optional(Milliseconds(reply.integer));
}

inline int level_of(const Reply& reply, std::string_view key) {
    if (!reply.is_integer()) return read_count(reply, key);
    if (reply.integer < 0) throw unexpected(reply, key);
    return static_cast<int>(reply.integer);
}

// Sets the owner and, if it has their form, the client id and the number.
template <class Named>
void name_owner(Named& named, const Reply& reply, std::string_view key) {
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    named.owner = reply.text;
    const std::optional<OwnerParts> parts = parts_of_owner(named.owner);
    if (!parts) return;
    named.client = parts->client;
    named.number = parts->number;
}

// --- locks -----------------------------------------------------------------------------------------------------------

// Reads the part that hash_inspect and fair_inspect have in common.
inline Inspection holders_of_hash(const Reply& reply, std::string_view key) {
    Inspection found;
    const std::vector<Reply>& parts = elements_of(reply, 2, 1, key);
    const std::vector<Reply>& holders = elements_of(parts[1], 0, 2, key);
    for (std::size_t i = 0; i < holders.size(); i += 2) {
        Holder& holder = found.holders.emplace_back();
        name_owner(holder, holders[i], key);
        holder.level = level_of(holders[i + 1], key);
        holder.lease = time_left(parts[0], key);
    }
    return found;
}

inline Inspection inspection_of_hash(const Reply& reply, std::string_view key) {
    Inspection found = holders_of_hash(reply, key);
    if (reply.elements.size() > 2 && !reply.elements[2].is_nil()) found.token = number_of(reply.elements[2], key);
    return found;
}

inline Inspection inspection_of_queue(const Reply& reply, std::string_view key) {
    Inspection found = holders_of_hash(reply, key);
    const std::vector<Reply>& waiting = elements_of(elements_of(reply, 3, 1, key)[2], 0, 2, key);
    for (std::size_t i = 0; i < waiting.size(); i += 2) {
        Queued& waiter = found.waiting.emplace_back();
        name_owner(waiter, waiting[i], key);
        waiter.expires_in = time_left(waiting[i + 1], key);
    }
    return found;
}

// The key of a Mutex holds any text, so it always has one level.
inline Inspection inspection_of_value(const Reply& reply, std::string_view key) {
    Inspection found;
    const std::vector<Reply>& parts = elements_of(reply, 2, 1, key);
    if (parts[0].is_nil()) return found;
    Holder& holder = found.holders.emplace_back();
    name_owner(holder, parts[0], key);
    holder.lease = time_left(parts[1], key);
    return found;
}

// A writer's field is its owner with a suffix.
inline Inspection inspection_of_read_write(const Reply& reply, std::string_view key) {
    constexpr std::string_view suffix = ":write";
    Inspection found;
    const std::vector<Reply>& holds = elements_of(reply, 0, 3, key);
    for (std::size_t i = 0; i < holds.size(); i += 3) {
        Reply owner = holds[i];
        const bool writes = owner.text.ends_with(suffix);
        if (writes) owner.text.resize(owner.text.size() - suffix.size());
        Holder& holder = found.holders.emplace_back();
        name_owner(holder, owner, key);
        holder.level = level_of(holds[i + 1], key);
        holder.lease = time_left(holds[i + 2], key);
        holder.shared = !writes;
    }
    return found;
}

// --- semaphores and latches ------------------------------------------------------------------------------------------

inline SemaphoreInspection inspection_of_semaphore(const Reply& reply, std::string_view key) {
    const std::vector<Reply>& parts = elements_of(reply, 2, 1, key);
    SemaphoreInspection found;
    found.exists = !parts[0].is_nil();
    found.available = converted<std::ptrdiff_t>(number_of(parts[0], key));
    found.expires_in = time_to_live(parts[1], key);
    return found;
}

inline SemaphoreInspection inspection_of_permits(const Reply& reply, std::string_view key) {
    const std::vector<Reply>& parts = elements_of(reply, 4, 1, key);
    if (!parts[1].is_integer()) throw unexpected(reply, key);
    SemaphoreInspection found;
    found.exists = !parts[0].is_nil();
    found.available = converted<std::ptrdiff_t>(number_of(parts[0], key));
    found.acquired = static_cast<std::ptrdiff_t>(parts[1].integer);
    found.expires_in = time_to_live(parts[2], key);
    const std::vector<Reply>& held = elements_of(parts[3], 0, 2, key);
    for (std::size_t i = 0; i < held.size(); i += 2) {
        if (held[i].kind != Reply::Kind::text) throw unexpected(reply, key);
        found.permits.push_back({hex_of(held[i].text), time_left(held[i + 1], key)});
    }
    return found;
}

inline LatchInspection inspection_of_latch(const Reply& reply, std::string_view key) {
    const SemaphoreInspection counter = inspection_of_semaphore(reply, key);
    return {counter.available > 0, std::max<std::ptrdiff_t>(0, counter.available), counter.expires_in};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
