// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"

#include <concepts>
#include <stop_token>
#include <system_error>
#include <type_traits>

// Defines the trailing options of a call: at most one Owner, one Lease, one std::stop_token and one std::error_code&, in
// that order.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

template <class Argument>
inline constexpr bool is_forever = std::same_as<std::remove_cvref_t<Argument>, Lease::Forever>;

template <class Argument>
inline constexpr bool is_bounds = std::same_as<std::remove_cvref_t<Argument>, Lease::Bounds>;

template <class Argument>
inline constexpr int tail_rank =
    std::same_as<std::remove_cvref_t<Argument>, Owner>                                                  ? 1
    : std::same_as<std::remove_cvref_t<Argument>, Lease> || is_forever<Argument> || is_bounds<Argument> ? 2
    : std::same_as<std::remove_cvref_t<Argument>, std::stop_token>                                      ? 3
    : std::same_as<Argument, std::error_code&>                                                          ? 4
                                                                                                        : 0;

template <class... Tail>
constexpr bool is_tail() {
    [[maybe_unused]] int last = 0;
    bool ordered = true;
    ((ordered = ordered && tail_rank<Tail> > last, last = tail_rank<Tail>), ...);
    return ordered;
}

template <class... Tail>
inline constexpr bool has_owner = (... || (tail_rank<Tail> == 1));

template <class... Tail>
inline constexpr bool has_lease = (... || (tail_rank<Tail> == 2));

template <class... Tail>
inline constexpr bool has_stop_token = (... || (tail_rank<Tail> == 3));

template <class... Tail>
inline constexpr bool has_error_code = (... || (tail_rank<Tail> == 4));

inline std::error_code* error_code_of() { return nullptr; }
template <class First, class... Rest>
std::error_code* error_code_of(First& first, Rest&... rest) {
    if constexpr (std::same_as<First, std::error_code>)
        return &first;
    else
        return error_code_of(rest...);
}

// Calls `call`. With an error code among the arguments, it stores the code of an Error there and returns `otherwise`.
template <class Function, class Result, class... Tail>
Result answer(Function call, Result otherwise, Tail&... tail) {
    if constexpr (has_error_code<Tail&...>) {
        std::error_code& ec = *error_code_of(tail...);
        try {
            ec.clear();
            return call();
        } catch (const std::system_error& error) {
            ec = error.code();
            return otherwise;
        }
    } else {
        return call();
    }
}

// Trailing options of a call that waits for a lock: Owner, Lease or Lease::Bounds, std::stop_token, std::error_code&.
template <class... Tail>
concept LockOption = detail::is_tail<Tail...>() && !(... || detail::is_forever<Tail>);

// Trailing options of an operation: Owner, Lease, std::stop_token. Its completion has the error.
template <class... Tail>
concept AsyncOption = LockOption<Tail...> && !detail::has_error_code<Tail...>;

// Trailing options of a call that does not wait: Owner, Lease, std::error_code&.
template <class... Tail>
concept TryOption = LockOption<Tail...> && !detail::has_stop_token<Tail...>;

// Trailing options of a waiting call without an owner or a lease: std::stop_token, std::error_code&.
template <class... Tail>
concept StopOption = detail::is_tail<Tail...>() && !detail::has_owner<Tail...> && !detail::has_lease<Tail...>;

// Trailing options of a call that acquires permits: Lease or Lease::Forever, std::stop_token, std::error_code&.
template <class... Tail>
concept PermitOption = detail::is_tail<Tail...>() && !detail::has_owner<Tail...> && !(... || detail::is_bounds<Tail>);

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
