// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/script.hpp"

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

// Tries the commands that the other scripts use, on a key of its own, which it deletes.
inline constexpr ScriptText server_check{R"lua(
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
    "7248979d62e07eb7998437661748d6a1be5d5449"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
