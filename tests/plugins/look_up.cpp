// SPDX-License-Identifier: MIT
#include <redlatch/adapters/name_lookup.hpp>

#include "plugin.hpp"

extern "C" {

[[gnu::visibility("default")]] int look_up(const char* host, int milliseconds) {
    int error = 0;
    const auto deadline = redlatch::Clock::now() + redlatch::Milliseconds(milliseconds);
    redlatch::NameLookup::run(host, 6379, deadline, error);
    return error;
}
}
