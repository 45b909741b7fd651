// SPDX-License-Identifier: MIT
#include <redlatch/net/resolver.hpp>

#include "plugin.hpp"

extern "C" {

[[gnu::visibility("default")]] int look_up(const char* host, int milliseconds) {
    int error = 0;
    const auto deadline = redlatch::Clock::now() + redlatch::Milliseconds(milliseconds);
    redlatch::detail::Resolver::run(host, 6379, deadline, error);
    return error;
}
}
