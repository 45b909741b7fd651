// SPDX-License-Identifier: MIT
//
// A barrier: three workers, in any processes, compute in steps. None begins a step before all have ended the one before.

#include <redlatch/redlatch.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    constexpr std::size_t count = 3;
    redlatch::Barrier{redis, "example:barrier", count}.remove();  // a barrier of an earlier run

    std::array<long, count> now{1, 0, 0}, next{};
    std::vector<std::jthread> workers;
    for (std::size_t me = 0; me < count; ++me)
        workers.emplace_back([&, me] {
            redlatch::Barrier step{redis, "example:barrier", count};
            for (int i = 0; i < 10; ++i) {
                next[me] = now[me] + now[(me + 1) % count];  // reads what others have written in the step before
                step.arrive_and_wait();
                now[me] = next[me];
                step.arrive_and_wait();
            }
        });
    workers.clear();  // joins them

    const long sum = now[0] + now[1] + now[2];
    std::cout << "after 10 steps: " << sum << '\n';  // each step doubles it
    redlatch::Barrier barrier{redis, "example:barrier", count};
    const bool all = barrier.inspect().phase == 21;
    barrier.remove();
    return sum == 1024 && all ? 0 : 1;
}
