// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

/// What a shared object knows of the process.
struct View {
    std::uint64_t thread;  // the calling one's number
    std::uint64_t generation;
    const void* category;
};

using LookFunction = View();
using ThrowFunction = void();
using LookUpFunction = int(const char* host, int milliseconds);
