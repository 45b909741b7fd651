// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// The scripts that read the whole state of a primitive at one moment. They change nothing, not even what has expired.
// Their answers are limited, because a client refuses replies of more than 8,192 elements.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText holders_in_hash{R"lua(
-- Returns the owner of the lock and its count, in turn; nil and the error if the hash is no lock of this kind.
local function holders_in(lock)
    if redis.call('hexists', lock, 'mode') == 1 then
        return nil, redis.error_reply('WRONGTYPE the key holds a read-write lock')
    end
    if redis.call('hlen', lock) > 1 then return nil, redis.error_reply('WRONGTYPE the key holds no lock') end
    return redis.call('hgetall', lock)
end
)lua"};

inline constexpr ScriptText hash_inspect{R"lua(
-- KEYS: lock, and for a fenced lock the token counter.
-- Answer: PTTL, -2 = free; owner and count; the last token, a text, nil = none.
local lock, counter = KEYS[1], KEYS[2]
local holders, refusal = holders_in(lock)
if refusal then return refusal end
return {redis.call('pttl', lock), holders, counter and redis.call('get', counter)}
)lua"};

inline constexpr ScriptText fair_inspect{R"lua(
-- KEYS: lock, queue, timeouts, slots.
-- Answer: PTTL, -2 = free; owner and count; each waiter that is alive, in the order of service, and for how many ms it
-- certainly is. At most the first 1,000 places.
local lock, queue, timeouts, slots = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holders, refusal = holders_in(lock)
if refusal then return refusal end
local now, waiting = time_in_ms(), {}
for _, waiter in ipairs(redis.call('lrange', queue, '0', '999')) do
    local ends = math.floor(redis.call('zscore', slots, waiter) or redis.call('zscore', timeouts, waiter) or '0')
    if ends > now then
        table.insert(waiting, waiter)
        table.insert(waiting, ends - now)
    end
end
return {redis.call('pttl', lock), holders, waiting}
)lua"};

}  // namespace parts

inline constexpr ScriptText hash_inspect = joined<parts::holders_in_hash, parts::hash_inspect>;
inline constexpr ScriptText fair_inspect = joined<parts::wanted_until, parts::holders_in_hash, parts::fair_inspect>;

inline constexpr ScriptText value_inspect{R"lua(
-- KEYS: a string.  Answer: the text, nil = none; PTTL.
return {redis.call('get', KEYS[1]), redis.call('pttl', KEYS[1])}
)lua"};

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::fair_inspect>{scripts::fair_inspect,
    "bcd9d6057015add79b04f9c5d4da4038d1e5f46d"};
template <>
inline constexpr Script digested<scripts::hash_inspect>{scripts::hash_inspect,
    "328529720746a3b5ff99a5f0e0774bfe4653bda6"};
template <>
inline constexpr Script digested<scripts::value_inspect>{scripts::value_inspect,
    "930a04f86794c0ace61253a2fe7814c07384986e"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
