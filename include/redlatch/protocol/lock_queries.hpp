// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/scripts/rlock.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

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
