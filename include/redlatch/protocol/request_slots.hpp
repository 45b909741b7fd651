// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/remote_clock.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// By what a command that must take effect once is known to the server, see scripts/request_marks.hpp; and what is known
// of it here.
struct RequestId {
    std::uint32_t lane = 0;
    std::uint64_t request = 0;
    ServerMilliseconds wanted_until = 0;  // in all copies; 0 as long as there is none
    bool may_be_done = false;             // a copy may have been carried out
    bool is_unknowable = false;           // and nobody can find out any more
};

// The lanes of one name in this process. One request at a time goes along a lane, and the lane is free again when the
// outcome of the request is known, or nobody will ask for it any more. Plain data.
class RequestSlots {
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

    void give_back(const RequestId& ticket) { busy_[ticket.lane] = false; }

private:
    std::vector<bool> busy_;
};

}  // namespace v0_1
}  // namespace redlatch
