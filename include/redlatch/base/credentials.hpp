// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {

// The login of a connection; see ClientOptions::credentials.
struct Credentials {
    std::string user = {};      // empty: the default user
    std::string password = {};  // empty, and so is the user: no AUTH is sent
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
