// SPDX-License-Identifier: MIT
#pragma once

namespace redlatch::fault {

/// As long as it lives, the n-th allocation from its making on (0 is the next one) fails, once.
/// One at a time; the allocations are those of this whole program.
class FailingMemory {
public:
    enum class Of {
        caller,  // operator new, of the thread that made this
        others,  // operator new, of every other thread
        hiredis  // malloc, calloc and realloc where hiredis calls them; never fails in sanitizer builds
    };
    FailingMemory(Of whose, long n);
    FailingMemory(const FailingMemory&) = delete;
    FailingMemory& operator=(const FailingMemory&) = delete;
    ~FailingMemory();

    /// Whether one has failed.
    bool struck() const;
};

}  // namespace redlatch::fault
