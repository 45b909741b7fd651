// SPDX-License-Identifier: MIT
//
// A cache entry that many want at the same time: one computes it, and the others wait for the value. Here twelve threads
// of three clients, as three processes, ask for a report that takes a while.

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <list>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

std::atomic<int> renderings{0};

std::string render(int customer) {
    ++renderings;
    std::this_thread::sleep_for(100ms);  // a slow query
    return "report of customer " + std::to_string(customer);
}

// [readme]
std::string report_of(redlatch::Client& redis, int customer) {
    redlatch::SingleFlight report{redis, "example:report:" + std::to_string(customer), 60s};
    return report.get([&] { return render(customer); }).value;
}
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    std::list<redlatch::Client> processes;
    for (int i = 0; i < 3; ++i) processes.emplace_back(url);
    std::atomic<int> served{0};
    {
        std::vector<std::jthread> callers;
        for (redlatch::Client& redis : processes)
            for (int i = 0; i < 4; ++i)
                callers.emplace_back([&] {
                    if (report_of(redis, 7) == "report of customer 7") ++served;
                });
    }
    std::cout << served << " callers have the report, which was rendered " << renderings << " times\n";

    redlatch::SingleFlight report{processes.front(), "example:report:7", 60s};
    const auto before = report.peek();
    report.invalidate();  // the customer has a new order
    const redlatch::FlightValue after = report.get([] { return render(7); });
    report.invalidate();
    return served == 12 && renderings == 2 && before && after.version > before->version ? 0 : 1;
}
