// SPDX-License-Identifier: MIT
#include <redlatch/redlatch.hpp>

#include "plugin.hpp"

extern "C" {

[[gnu::visibility("default")]] void* make_client(const char* url) { return new redlatch::Client(url); }

[[gnu::visibility("default")]] void delete_client(void* client) { delete static_cast<redlatch::Client*>(client); }

[[gnu::visibility("default")]] void contend(void* client, int rounds, Contest& contest) {
    redlatch::RLock lock(*static_cast<redlatch::Client*>(client), "orders");
    for (int i = 0; i < rounds; ++i) {
        lock.lock();
        if (++contest.inside != 1) ++contest.overlaps;
        ++contest.rounds;
        if (lock.hold_count() != 1) ++contest.overlaps;
        --contest.inside;
        lock.unlock();
    }
}
}
