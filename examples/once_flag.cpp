// SPDX-License-Identifier: MIT
//
// A schema is migrated once, although every process of a fleet tries to at its start. Here they are threads with a client
// each. The first attempt fails, and another process does the work.

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

namespace {

std::atomic<int> attempts{0};
int schema = 0;  // not atomic: call_once() lets the threads change it and read it in turn

void migrate(const std::stop_token& lost) {
    if (++attempts == 1) throw std::runtime_error("the disk is full");
    if (lost.stop_requested()) throw std::runtime_error("others may do it now");
    ++schema;
}

// [readme]
// Returns once the schema is new, whoever has migrated it.
void start_up(redlatch::Client& redis) {
    for (;;) try {
            redlatch::call_once(redis, "example:migration-7", migrate);
            return;
        } catch (const std::runtime_error& error) {
            std::cerr << error.what() << ": somebody tries again\n";  // it is open again, for all
        }
}
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    std::atomic<int> started{0};
    {
        std::vector<std::jthread> processes;
        for (int i = 0; i < 4; ++i)
            processes.emplace_back([&] {
                redlatch::Client redis{url};
                start_up(redis);
                if (schema == 1) ++started;
            });
    }
    std::cout << started << " processes started after " << attempts << " attempts\n";
    redlatch::Client redis{url};
    redlatch::OnceFlag flag{redis, "example:migration-7"};
    const bool well = flag.is_done() && schema == 1 && started == 4 && attempts == 2;
    return well && flag.reset() ? 0 : 1;
}
