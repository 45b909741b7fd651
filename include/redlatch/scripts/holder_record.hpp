// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/all_or_none.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the record beside a fenced lock: what a holder has written for others to read, such as its name or the
// result of its work. A record is a hash with the fields owner, token and value. Only the present holder may write it, so
// a late copy of a store changes nothing: either it finds the record as it wrote it, or its owner holds nothing any more.
//
// A store publishes '2' on the channel of the lock. Redisson and the waiters for the lock ignore that message.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

inline constexpr ScriptText record_look{R"lua(
-- KEYS: lock, token counter, record.
-- Answer: the lock's holder, nil = free; PTTL of the lock; the last token, a text, nil = none; of the record its owner,
-- nil = no record, its token, its value, and its PTTL.
local lock, counter, record = KEYS[1], KEYS[2], KEYS[3]
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if redis.call('hlen', lock) > 1 then return redis.error_reply('WRONGTYPE the key holds no lock') end
return {redis.call('hkeys', lock)[1] or false, redis.call('pttl', lock), redis.call('get', counter),
        redis.call('hget', record, 'owner'), redis.call('hget', record, 'token'), redis.call('hget', record, 'value'),
        redis.call('pttl', record)}
)lua"};

namespace parts {

inline constexpr ScriptText record_store{R"lua(
-- KEYS: lock, record.  ARGV: owner, token, value, for how many ms the record stays ('0' = without end), channel, publish
-- command.
-- Answer: 1 = it is the record; 0 = the owner does not hold the lock.
local lock, record = KEYS[1], KEYS[2]
local owner, token, value, stays, channel, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- An earlier copy has done it.
if redis.call('hget', record, 'owner') == owner then return 1 end
if redis.call('hexists', lock, owner) == 0 then return 0 end
-- First a write that Redis allows when its memory is full. It also ends the TTL of the record before.
local changes = {{'del', record}, {'hset', record, 'owner', owner, 'token', token, 'value', value,
                                   undo = {'del', record}}}
if stays ~= '0' then table.insert(changes, {'pexpire', record, stays}) end
local refusal = all_or_none(changes)
if refusal then return refusal end
-- The record stays whether or not this user may publish: who waits looks again when the lease is over.
redis.pcall(publish, channel, '2')
return 1
)lua"};

}  // namespace parts

inline constexpr ScriptText record_store = joined<parts::all_or_none, parts::record_store>;

inline constexpr ScriptText record_remove{R"lua(
-- KEYS: record.  ARGV: the owner that wrote it.
-- Answer: 1 = removed; 0 = there is no record, or another owner has written it.
if redis.call('hget', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('del', KEYS[1])
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::record_look>{scripts::record_look,
    "2ea1dba8834429274d71f6232a96bf803732232c"};
template <>
inline constexpr Script digested<scripts::record_remove>{scripts::record_remove,
    "8b7e5a8b918f8b73baf37d225dc1bb5567428480"};
template <>
inline constexpr Script digested<scripts::record_store>{scripts::record_store,
    "21d21a5ae8392b9053becb79a5d514830ea38c7c"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
