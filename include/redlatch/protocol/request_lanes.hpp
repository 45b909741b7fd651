// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Identifies a command that must take effect once, see scripts/request_marks.hpp, and records what is known of its
// outcome.
struct RequestId {
    std::uint32_t lane = 0;
    std::uint64_t request = 0;
    ServerMilliseconds wanted_until = 0;  // the same in all copies; 0 as long as there is none
    bool may_be_done = false;             // True if a copy may have taken effect
    bool is_unknowable = false;           // True if its outcome can no longer be determined
};

// Assigns the lanes of one name in this process. A lane carries one request at a time. It is free again when the
// outcome of the request is known or no longer needed. Plain data.
class RequestLanes {
public:
    // `request`: greater than all before.
    RequestId take(std::uint64_t request) {
        const auto free = std::find(busy_.begin(), busy_.end(), false);
        const auto lane = static_cast<std::uint32_t>(free - busy_.begin());
        if (free == busy_.end())
            busy_.push_back(true);
        else
            *free = true;
        return {lane, request};
    }

    void give_back(const RequestId& request_id) { busy_[request_id.lane] = false; }

private:
    std::vector<bool> busy_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
