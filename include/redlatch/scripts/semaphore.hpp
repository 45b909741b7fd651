// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the semaphore. Key: a string, the permits that are available; absent means none. Message: the new
// number of permits, when there are any and there are more than before. A TTL on the key is kept.
namespace redlatch::scripts {

namespace detail {

inline constexpr std::string_view semaphore_acquire{R"lua(
-- KEYS: semaphore, marks.  ARGV: lane, request, TTL of the marks in ms, '1' for a command that is sent again, then the
-- permits that each caller wants, in the order in which they are to be served.
-- Answer: how many permits were taken: for the first callers, as far as they go round.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, ttl, again = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before = outcome_of(marks, lane, request)
if before then return before end
local available = count_in(redis.call('get', semaphore) or '0')
if not available then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
local taken = 0
for i = 5, #ARGV do
    local wanted = tonumber(ARGV[i])
    if taken + wanted > available then break end
    taken = taken + wanted
end
if taken > 0 then
    remember(marks, lane, request, taken, ttl)
    redis.call('decrby', semaphore, string.format('%.0f', taken))
elseif again == '1' then
    -- An earlier copy may still be on its way.
    remember(marks, lane, request, 0, ttl)
end
return taken
)lua"};

inline constexpr std::string_view semaphore_give_back{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request of an acquire whose outcome its sender does not know, TTL of the
-- marks in ms, publish command.
-- Answer: how many permits it had taken; they are given back. Copies of it that are still on their way take none.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, ttl, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local taken, own = outcome_of(marks, lane, request)
if taken and not own then return 0 end
redis.call('pexpire', marks, ttl)
remember(marks, lane, request, 0, ttl)
if not own then return 0 end
if taken == 0 or redis.call('exists', semaphore) == 0 then return taken end
local total = redis.call('incrby', semaphore, string.format('%.0f', taken))
if total > 0 then redis.call(publish, channel, string.format('%.0f', total)) end
return taken
)lua"};

inline constexpr std::string_view semaphore_add{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request, TTL of the marks in ms, permits (may be negative), publish
-- command, '1' = only if the semaphore exists, '1' for a command that is sent again.
-- Answer: 1 = added; 0 = there is no such semaphore.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, ttl, permits, publish, only_existing, again =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return before end
if only_existing == '1' and redis.call('exists', semaphore) == 0 then
    if again == '1' then remember(marks, lane, request, 0, ttl) end
    return 0
end
if not count_in(redis.call('get', semaphore) or '0') then
    return redis.error_reply('WRONGTYPE the key holds no number of permits')
end
-- First, because then Redis lets the rest through when its memory is full.
redis.call('pexpire', marks, ttl)
local total = redis.call('incrby', semaphore, permits)
remember(marks, lane, request, 1, ttl)
if total > 0 and tonumber(permits) > 0 then redis.call(publish, channel, string.format('%.0f', total)) end
return 1
)lua"};

inline constexpr std::string_view semaphore_set{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request, TTL of the marks in ms, permits, publish command,
-- '1' for a command that is sent again.
-- Answer: 1 = set; 0 = the semaphore exists already.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, ttl, permits, publish, again = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local before = outcome_of(marks, lane, request)
if before then return before end
if redis.call('get', semaphore) then
    if again == '1' then remember(marks, lane, request, 0, ttl) end
    return 0
end
remember(marks, lane, request, 1, ttl)
redis.call('set', semaphore, permits)
if permits ~= '0' then redis.call(publish, channel, permits) end
return 1
)lua"};

inline constexpr std::string_view semaphore_drain{R"lua(
-- KEYS: semaphore, marks.  ARGV: lane, request, TTL of the marks in ms, '1' for a command that is sent again.
-- Answer: how many permits were available; now there is none. Negative when some were owed.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, ttl, again = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before = outcome_of(marks, lane, request)
if before then return before end
local available = redis.call('get', semaphore) or '0'
if not count_in(available) then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
if available ~= '0' then
    remember(marks, lane, request, available, ttl)
    redis.call('decrby', semaphore, available)
elseif again == '1' then
    remember(marks, lane, request, 0, ttl)
end
return tonumber(available)
)lua"};

}  // namespace detail

inline constexpr std::string_view semaphore_acquire{with_request_marks<detail::semaphore_acquire>};
inline constexpr std::string_view semaphore_give_back{with_request_marks<detail::semaphore_give_back>};
inline constexpr std::string_view semaphore_add{with_request_marks<detail::semaphore_add>};
inline constexpr std::string_view semaphore_set{with_request_marks<detail::semaphore_set>};
inline constexpr std::string_view semaphore_drain{with_request_marks<detail::semaphore_drain>};

}  // namespace redlatch::scripts
