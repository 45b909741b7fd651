// SPDX-License-Identifier: MIT
#include "shop.hpp"

#include <redlatch/rlock.hpp>

bool sell(redlatch::Client& redis) {
    redlatch::RLock lock{redis, "consumer"};
    return lock.try_lock();
}
