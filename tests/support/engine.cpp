// SPDX-License-Identifier: MIT
#include "support/engine.hpp"

std::uint64_t redlatch::test::hold_of_this_thread(redlatch::detail::LockState& state) {
    return state.part(redlatch::detail::this_thread_number()).hold;
}
