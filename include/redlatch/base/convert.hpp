// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <cerrno>
#include <type_traits>

// Hides differences between systems that would cause a compiler warning on some of them.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Converts a number to a type that is the same type on some systems.
template <class To, class From>
constexpr To converted(From number) noexcept {
    if constexpr (std::is_same_v<To, From>)
        return number;
    else
        return static_cast<To>(number);
}

// Returns true if a call would have had to wait.
inline bool would_block(int error) noexcept {
#if EAGAIN == EWOULDBLOCK
    return error == EAGAIN;
#else
    return error == EAGAIN || error == EWOULDBLOCK;
#endif
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
