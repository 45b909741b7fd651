// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace redlatch {

// The version is written here and nowhere else: CMake reads these three lines.
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

// The version as text, "major.minor.patch".
inline std::string version() {
    return std::to_string(version_major) + '.' + std::to_string(version_minor) + '.' + std::to_string(version_patch);
}

}  // namespace redlatch
