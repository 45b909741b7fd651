// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

namespace redlatch::fault {

/// Makes the n-th allocation after its construction (0 is the next one) fail, once. Only one may live at a time. It
/// affects the whole program.
class FailingMemory {
public:
    enum class Of {
        caller,  // operator new, of the thread that constructed this
        others,  // operator new, of every other thread
        hiredis  // malloc, calloc and realloc where hiredis calls them; never fails in sanitizer builds
    };
    /// `meanwhile`, if any, runs in the thread whose allocation fails, just before it fails.
    explicit FailingMemory(Of whose, long n, std::function<void()> meanwhile = {});
    FailingMemory(const FailingMemory&) = delete;
    FailingMemory& operator=(const FailingMemory&) = delete;
    ~FailingMemory();

    /// Returns whether an allocation has failed.
    bool struck() const;
};

}  // namespace redlatch::fault
