// SPDX-License-Identifier: MIT
//
// Several programs need the same expensive report. The one that acquires the lock makes it. The others do not need the
// lock, but the report: they wait until the holder has let go, or is dead, and look whether it is there.

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::RLock making{redis, "example:making_the_report"};
    std::atomic<bool> is_there{false};  // stands for a file, or a key on the server
    std::atomic<int> made{0}, read{0};
    const auto program = [&] {
        while (!is_there) {
            if (making.try_lock()) {
                if (!is_there) {
                    std::this_thread::sleep_for(200ms);  // the work
                    ++made;
                    is_there = true;
                }
                making.unlock();
            } else {
                making.wait_release();
            }
        }
        ++read;
    };
    std::vector<std::jthread> programs;
    for (int i = 0; i < 8; ++i) programs.emplace_back(program);
    programs.clear();
    std::cout << made << " report was made, " << read << " programs read it\n";
    return made == 1 && read == 8 ? 0 : 1;
}
