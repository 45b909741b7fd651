// SPDX-License-Identifier: MIT
// Java and C++ at once, for some seconds, and a plain counter that only mutual exclusion keeps right.
#include <vector>

#include "table.hpp"

namespace redlatch::test {

std::vector<CrowdRow> crowd_rows() {
    return {
        {"a crowd counts right", "RLock", {"rlock"}, ""},
        {"a crowd counts right", "FairLock", {"fair"}, ""},
        {"a crowd counts right", "FencedLock", {"fenced"}, ""},
        {"a crowd counts right", "SpinLock", {"spin"}, ""},
        {"a crowd with an RLock of that name", "FencedLock", {"rlock", "fenced"}, ""},
        {"a crowd of writers and readers", "ReadWriteLock", {"write"}, "read"},
        {"a crowd counts right with one permit", "Semaphore", {"semaphore"}, "", 1},
        {"a crowd counts right with one permit", "PermitExpirable", {"permits"}, "", 1},
    };
}

}  // namespace redlatch::test
