// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <cstddef>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The rules by which members make up a lock over several.
struct QuorumRules {
    std::size_t needed;            // how many members
    Milliseconds node_timeout;     // how long a member may take to answer
    bool independent = false;      // True if each has its own server: clocks drift apart, a young server has no vote
    Milliseconds longest_lease{};  // a server that runs for less is young: holds from before its start may be valid
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
