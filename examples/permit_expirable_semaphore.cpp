// SPDX-License-Identifier: MIT
//
// Permits that come back: a fleet shares two licences, and a worker that dies keeps none of them.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::PermitExpirableSemaphore licences{redis, "example:permit_expirable_semaphore"};
    licences.set_permits(2);

    {
        // As long as this process lives the watchdog keeps the permit; at the end of the scope it goes back.
        const redlatch::Permit licence{licences};
        std::cout << "working with licence " << *licence.id() << '\n';
    }

    // By hand: the id may be given back by any process, in any language. Should nobody do it, the lease ends it.
    const redlatch::PermitId id = licences.acquire(redlatch::Lease{100ms});
    const redlatch::PermitId lent = licences.acquire(redlatch::Lease{100ms});
    licences.release(redlatch::PermitId::parse(id.text()));
    const bool came_back = licences.try_acquire_for(5s, 2).size() == 2;  // of the other one nobody heard again
    const bool is_late = !licences.try_release(lent);
    std::cout << (came_back && is_late ? "the lost licence came back by itself\n" : "a licence is missing\n");
    return came_back && is_late ? 0 : 1;
}
