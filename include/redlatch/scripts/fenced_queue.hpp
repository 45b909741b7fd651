// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/exact_count.hpp"
#include "redlatch/scripts/fenced_lock.hpp"
#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/queue_acquire.hpp"
#include "redlatch/scripts/queue_release.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// The scripts of a fenced lock whose waiters queue up on the server: those of lock_queue.hpp with one key more, the token
// counter. A release that grants the lock draws the token of the new hold, and its message carries the token.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes the others.
inline constexpr ScriptText fenced = joined<exact_count, fenced_token>;

// Precedes queue_acquire_free. Each writes the hold and returns the answer.
inline constexpr ScriptText fenced_queue_acquire{R"lua(
local function enter(lock, counter, owner, lease)
    local token = next_token(counter)
    if not token then return no_token() end
    redis.call('hincrby', lock, owner, '1')
    local refusal = give_lease(lock, lease)
    if refusal then return refusal end
    local drawn = redis.pcall('set', counter, string.format('%.0f', token))
    if drawn.err then
        redis.call('del', lock)
        return drawn
    end
    return {1, token}
end
local function gone() return {-2, 0} end
local function blocked(left, foreign) return {0, left, foreign} end
)lua"};

inline constexpr ScriptText fenced_queue_answers{R"lua(
-- The token is that of the hold, because none was drawn since.
local function reenter(owner, current, count, lease)
    local token = last_token(counter)
    if not token then return no_token() end
    return enter_again(lock, owner, current, count, lease) or {1, token}
end
local function is_refusal(answer) return answer.err ~= nil end
)lua"};

}  // namespace parts

inline constexpr ScriptText fenced_queue_acquire =
    joined<parts::wanted_until, parts::first_level, parts::queue_keys, parts::fenced, parts::fenced_queue_acquire,
           parts::queue_acquire_free, parts::no_lease, parts::queue_entry, parts::queue_up, parts::queue_wait,
           parts::more_levels, parts::lock_queue, parts::queue_places, parts::fenced_queue_answers,
           parts::queue_acquire>;
inline constexpr ScriptText fenced_queue_release =
    joined<parts::wanted_until, parts::queue_names, parts::queue_release_free, parts::queue_leave_level, parts::fenced,
           parts::queue_granting>;
inline constexpr ScriptText fenced_queue_give_up =
    joined<parts::wanted_until, parts::queue_keys, parts::fenced, parts::queue_giving_up>;
inline constexpr ScriptText fenced_queue_hand_over =
    joined<parts::wanted_until, parts::replacing, parts::queue_keys, parts::fenced, parts::queue_hand_over,
           parts::lock_queue, parts::queue_shorter_lease>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::fenced_queue_acquire>{scripts::fenced_queue_acquire,
    "55d06e2bfdd37744c59d0b70a532e956a59b8d39"};
template <>
inline constexpr Script digested<scripts::fenced_queue_give_up>{scripts::fenced_queue_give_up,
    "ff84cc05cdf18174b37e165e25c6a0aa42ab367c"};
template <>
inline constexpr Script digested<scripts::fenced_queue_hand_over>{scripts::fenced_queue_hand_over,
    "6ea430f5a567a3f6421f84ff7846d19e614eb2f1"};
template <>
inline constexpr Script digested<scripts::fenced_queue_release>{scripts::fenced_queue_release,
    "c117f50d429d44b825e13c5caf54e2459efd1616"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
