// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>

/// The state of the process as a shared object sees it.
struct View {
    std::uint64_t thread;  // the number of the calling thread
    std::uint64_t generation;
    const void* category;
};

/// What threads did under one lock.
struct Contest {
    std::atomic<int> inside{0};
    std::atomic<int> overlaps{0};
    int rounds = 0;  // a plain number, which only the holder changes
};

using LookFunction = View();
using ThrowFunction = void();
using LookUpFunction = int(const char* host, int milliseconds);
using MakeClientFunction = void*(const char* url);
using DeleteClientFunction = void(void* client);
using ContendFunction = void(void* client, int rounds, Contest& contest);
