// SPDX-License-Identifier: MIT
#include "plugin.hpp"

#include <redlatch/base/ids.hpp>
#include <redlatch/base/process.hpp>
#include <redlatch/error.hpp>

extern "C" {

[[gnu::visibility("default")]] View look() {
    return {redlatch::detail::this_thread_number(), redlatch::detail::this_process().generation,
            &redlatch::error_category()};
}

[[gnu::visibility("default")]] void fail() { throw redlatch::Error(redlatch::errc::hold_lost, "orders", "on purpose"); }
}
