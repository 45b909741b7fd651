// SPDX-License-Identifier: MIT
// Two threads of Java and two of C++ at once, for some seconds, and a plain counter that only exclusion keeps right.
#include <vector>

#include "table.hpp"

namespace redlatch::test {

std::vector<CrowdRow> crowd_rows() {
    return {
        {"2 threads each, 3 s", "RLock", {"rlock"}, ""},
        {"2 threads each, 3 s", "FairLock", {"fair"}, ""},
        {"2 threads each, 3 s", "FencedLock", {"fenced"}, ""},
        {"2 threads each, 3 s", "SpinLock", {"spin"}, ""},
        {"with RLock on one name, 3 s", "SpinLock", {"rlock", "spin"}, ""},
        {"with RLock on one name, 3 s", "FencedLock", {"rlock", "fenced"}, ""},
        {"2 writers, 2 readers each, 3 s", "ReadWriteLock", {"write"}, "read"},
        {"1 permit, 2 threads each, 3 s", "Semaphore", {"semaphore"}, "", 1},
        {"1 permit, 2 threads each, 3 s", "PermitExpirable", {"permits"}, "", 1},
    };
}

}  // namespace redlatch::test
