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
        {.title = "a crowd with grants",
         .kind_title = "RLock",
         .add = {"rlock"},
         .look = "",
         .grants = true,
         .most_unfair = 3},
        {.title = "a crowd with grants",
         .kind_title = "FairLock",
         .add = {"fair"},
         .look = "",
         .grants = true,
         .most_unfair = 3},
        {.title = "a crowd with grants",
         .kind_title = "FencedLock",
         .add = {"fenced"},
         .look = "",
         .grants = true,
         .most_unfair = 3},
        {.title = "a crowd with grants",
         .kind_title = "ReadWriteLock",
         .add = {"write"},
         .look = "read",
         .grants = true,
         .most_unfair = 3},
        {.title = "a crowd with grants and one permit",
         .kind_title = "Semaphore",
         .add = {"semaphore"},
         .look = "",
         .permits = 1,
         .grants = true,
         .most_unfair = 3},
        {.title = "a crowd with grants and one permit",
         .kind_title = "PermitExpirable",
         .add = {"permits"},
         .look = "",
         .permits = 1,
         .grants = true,
         .most_unfair = 3},
        {.title = "a crowd with grants and kills",
         .kind_title = "RLock",
         .add = {"rlock"},
         .look = "",
         .grants = true,
         .kills = Kills::one_of_each,
         .most_unfair = 3},
        // No Java process is killed here: its dead waiter blocks the queue of a FairLock for five minutes, and its permits
        // never come back.
        {.title = "a crowd with grants and kills of C++",
         .kind_title = "FairLock",
         .add = {"fair"},
         .look = "",
         .grants = true,
         .kills = Kills::cpp},
        {.title = "a crowd with grants and kills of C++",
         .kind_title = "PermitExpirable",
         .add = {"permits"},
         .look = "",
         .permits = 1,
         .grants = true,
         .kills = Kills::cpp},
    };
}

}  // namespace redlatch::test
