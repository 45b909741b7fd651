// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "measure.hpp"

namespace redlatch::bench {

// Each prints the lines of one scenario over one link. Returns false if the lock did not exclude.
bool uncontended(Bench& bench, const std::string& link);
bool threads(Bench& bench, const std::string& link);
bool coroutines(Bench& bench, const std::string& link);
bool contended_threads(Bench& bench, const std::string& link);
bool contended_processes(Bench& bench, const std::string& link);
bool busy(Bench& bench, const std::string& link);
bool wake_up(Bench& bench, const std::string& link);
bool idle_wait(Bench& bench, const std::string& link);
bool watchdog(Bench& bench, const std::string& link);
bool fair_threads(Bench& bench, const std::string& link);
bool fair_processes(Bench& bench, const std::string& link);
bool rw_mixed(Bench& bench, const std::string& link);
bool semaphore(Bench& bench, const std::string& link);
bool latch_release(Bench& bench, const std::string& link);
bool redlock(Bench& bench, const std::string& link);

}  // namespace redlatch::bench
