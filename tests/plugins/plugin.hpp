// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

/// The state of the process as a shared object sees it.
struct View {
    std::uint64_t thread;  // the number of the calling thread
    std::uint64_t generation;
    const void* category;
};

using LookFunction = View();
using ThrowFunction = void();
using LookUpFunction = int(const char* host, int milliseconds);
