// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace redlatch {
inline namespace v0_1 {

// The version is defined here only: CMake reads these three lines. A check compares the first two with the inline
// namespace that contains everything, so that two versions of the library in one program have different symbols.
// Include a header of the library instead of forward-declaring its names.
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

// Returns the version as text, "major.minor.patch".
inline std::string version() {
    return std::to_string(version_major) + '.' + std::to_string(version_minor) + '.' + std::to_string(version_patch);
}

}  // namespace v0_1
}  // namespace redlatch
