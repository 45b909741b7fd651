// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace redlatch {
inline namespace v0_1 {

// The version is written here: CMake reads these three lines, and a check compares the first two with the inline namespace
// that everything stands in, so that two versions of the library in one program have different symbols. Who declares
// something of ours ahead includes its header instead.
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

// The version as text, "major.minor.patch".
inline std::string version() {
    return std::to_string(version_major) + '.' + std::to_string(version_minor) + '.' + std::to_string(version_patch);
}

}  // namespace v0_1
}  // namespace redlatch
