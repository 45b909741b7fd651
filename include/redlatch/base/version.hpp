// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {

// The version is defined here only: CMake reads these three lines. A check compares the first two with the inline
// namespace that contains everything. Include redlatch/fwd.hpp instead of forward-declaring names of the library.

inline constexpr int version_major = 0;  // from 1 on, only a new one may change the interface
inline constexpr int version_minor = 2;  // while the major version is 0, a new one may change the interface
inline constexpr int version_patch = 0;  // a new one does not change the interface

// Returns the version as text, "major.minor.patch".
inline std::string version() {
    return std::to_string(version_major) + '.' + std::to_string(version_minor) + '.' + std::to_string(version_patch);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
