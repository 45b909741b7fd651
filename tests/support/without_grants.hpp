// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <utility>

namespace redlatch::test {

/// Returns the options of a client whose waiters do not queue up on the server, as Redisson's do not: all of them are
/// notified of a release, and ask.
inline ClientOptions without_grants(ClientOptions options = {}) {
    options.grants = false;
    return options;
}

}  // namespace redlatch::test
