// SPDX-License-Identifier: MIT
//
// A lost lease: an operator, a failover or a long pause can take a lock away from its holder. lost() notifies the
// holder, which stops writing.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <stop_token>
#include <thread>

using namespace std::chrono_literals;

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::ClientOptions options;
    options.watchdog_timeout = 6s;  // renewed every 2 s, so a loss is noticed within 2 s
    redlatch::Client redis{url, options};
    redlatch::RLock journal{redis, "example:lost_lease"};
    redlatch::Client operators_client{url};
    redlatch::RLock operators_view{operators_client, "example:lost_lease"};

    const auto start = std::chrono::steady_clock::now();
    const auto running = [&] { return std::chrono::steady_clock::now() - start; };
    bool told = false;
    int pages = 0;
    {
        std::lock_guard guard{journal};
        const std::stop_token lost = journal.lost();
        // A thread of the library calls this: keep it short, only cancel work in progress.
        std::stop_callback on_loss{lost, [] { std::cout << "the lock is lost: no more pages\n"; }};

        while (!lost.stop_requested() && running() < 20s) {
            std::this_thread::sleep_for(10ms);  // prepares a page
            // valid_until() is the same promise as an instant: check it before a write that must not come late.
            if (std::chrono::steady_clock::now() >= journal.valid_until()) continue;
            if (++pages == 10) operators_view.force_unlock();  // the page is written; now an operator interferes
        }
        told = lost.stop_requested();
    }  // a guard does not throw because of a lost hold: that would end the program

    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(running());
    std::cout << "stopped after " << pages << " pages and " << took.count() << " ms\n";
    return told && pages >= 10 && took < 20s ? 0 : 1;
}
