// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/exact_count.hpp"
#include "redlatch/scripts/fenced_lock.hpp"
#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

#include <string_view>

// The scripts of a fenced lock whose waiters queue up on the server: those of lock_queue.hpp with one key more, the token
// counter. A release that grants the lock draws the token of the new hold, and its message carries the token.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes lock_queue.
inline constexpr std::string_view fenced = joined<exact_count, fenced_token>;

// Follows lock_queue.
inline constexpr std::string_view fenced_queue_acquire{R"lua(
-- Each writes the hold and returns the answer.
local function enter(lock, counter, owner, lease)
    local token = next_token(counter)
    if not token then return no_token() end
    redis.call('hincrby', lock, owner, '1')
    local refusal = give_lease(lock, lease)
    if refusal then return refusal end
    local drawn = redis.pcall('set', counter, text(token))
    if drawn.err then
        redis.call('del', lock)
        return drawn
    end
    return {1, token}
end
-- The token is that of the hold, because none was drawn since.
local function reenter(owner, current, count, lease)
    local token = last_token(counter)
    if not token then return no_token() end
    return enter_again(lock, owner, current, count, lease) or {1, token}
end
local function is_refusal(answer) return answer.err ~= nil end
local function gone() return {-2, 0} end
local function blocked(left, foreign) return {0, left, foreign} end
)lua"};

}  // namespace parts

inline constexpr std::string_view fenced_queue_acquire =
    joined<parts::wanted_until, parts::no_lease, parts::all_or_none, parts::levels, parts::fenced, parts::lock_queue,
           parts::fenced_queue_acquire, parts::queue_acquire>;
inline constexpr std::string_view fenced_queue_release =
    joined<parts::wanted_until, parts::leaving_levels, parts::fenced, parts::lock_queue, parts::queue_release,
           parts::release_levels>;
inline constexpr std::string_view fenced_queue_give_up =
    joined<parts::wanted_until, parts::leaving_levels, parts::fenced, parts::lock_queue, parts::queue_release,
           parts::queue_give_up, parts::give_up>;
inline constexpr std::string_view fenced_queue_hand_over =
    joined<parts::wanted_until, parts::next_owner, parts::fenced, parts::lock_queue, parts::queue_hand_over>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::fenced_queue_acquire>{scripts::fenced_queue_acquire,
    "bdc30ca50d3faba5796fc4653dd90855bfec1ab9"};
template <>
inline constexpr Script digested<scripts::fenced_queue_give_up>{scripts::fenced_queue_give_up,
    "1c88fd327751d40826f93375635bdcebb6b2815d"};
template <>
inline constexpr Script digested<scripts::fenced_queue_hand_over>{scripts::fenced_queue_hand_over,
    "2f2c572a3e2f14c6e2498765adf4c9f19f06692d"};
template <>
inline constexpr Script digested<scripts::fenced_queue_release>{scripts::fenced_queue_release,
    "22145b7da89867e857b38c125dbaf7b8adbeee60"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
