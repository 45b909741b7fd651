// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

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

inline constexpr ScriptText mutex_acquire{R"lua(
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

inline constexpr ScriptText mutex_give_up{R"lua(
-- KEYS: lock.  ARGV: values to give up.
-- Answer: the server's clock. A copy of a request with one of them may still take effect until it is no longer wanted.
local now = time_in_ms()
local current = redis.call('get', KEYS[1])
for i = 1, #ARGV do
    if current == ARGV[i] then redis.call('del', KEYS[1]) end
end
return now
)lua"};

inline constexpr ScriptText mutex_hand_over{R"lua(
-- KEYS: lock.  ARGV: value, the next holder's value, its lease in ms, wanted until.
-- Answer: 1 = the next holder has it; nil = neither of them does.
local lock = KEYS[1]
local value, successor, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local current = redis.call('get', lock)
if current == successor then return 1 end
if current ~= value then return nil end
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
-- If SET is refused, the owner still holds the lock and releases it by another command.
redis.call('pexpire', lock, lease)
redis.call('set', lock, successor, 'px', lease)
return 1
)lua"};

inline constexpr ScriptText mutex_stay{R"lua(
-- KEYS: lock.  ARGV: value, the value that takes its place, its lease in ms.
-- Answer: the server's clock, negative if it is not held with this value. Never creates a key, never prolongs a TTL.
local lock = KEYS[1]
local value, successor, rest = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = time_in_ms()
if redis.call('get', lock) ~= value then return -now end
local left = redis.call('pttl', lock)
local lease = left < 0 and rest or math.max(1, math.min(left, rest))
redis.call('pexpire', lock, lease)
redis.call('set', lock, successor, 'px', lease)
return now
)lua"};

inline constexpr ScriptText mutex_renew{R"lua(
-- KEYS: up to 1,000 locks.  ARGV: lease in ms, wanted until, then the value of each lock.
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

inline constexpr ScriptText mutex_acquire = joined<parts::wanted_until, parts::mutex_acquire>;

inline constexpr ScriptText mutex_release{R"lua(
-- KEYS: lock.  ARGV: value.  Answer: 1 = released; 0 = not held with this value (any more).
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('del', KEYS[1])
)lua"};

inline constexpr ScriptText mutex_give_up = joined<parts::wanted_until, parts::mutex_give_up>;
inline constexpr ScriptText mutex_hand_over = joined<parts::wanted_until, parts::mutex_hand_over>;
inline constexpr ScriptText mutex_stay = joined<parts::wanted_until, parts::mutex_stay>;
inline constexpr ScriptText mutex_renew = joined<parts::wanted_until, parts::mutex_renew>;

inline constexpr ScriptText mutex_remaining_lease{R"lua(
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
    "2ecf5285bbd9cc6dabcd2271422e8c6b843a772b"};
template <>
inline constexpr Script digested<scripts::mutex_release>{scripts::mutex_release,
    "dea84919d474e92dd1bf15fe22a17c21d253a8f8"};
template <>
inline constexpr Script digested<scripts::mutex_remaining_lease>{scripts::mutex_remaining_lease,
    "a019174679984390b74c15b859e3a4ff369db618"};
template <>
inline constexpr Script digested<scripts::mutex_renew>{scripts::mutex_renew,
    "bc5caad59f82aa990266c22b587cf364e6913613"};
template <>
inline constexpr Script digested<scripts::mutex_stay>{scripts::mutex_stay,
    "2ea310b2a6c0fdd588989b7fba85469789c02ae5"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
