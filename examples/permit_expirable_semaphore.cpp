// SPDX-License-Identifier: MIT
//
// Permits with leases: all processes share two licences, and a licence becomes available again when its worker dies.

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
        // The watchdog renews the permit while this process lives. The end of the scope releases it.
        const redlatch::Permit licence{licences};
        std::cout << "working with licence " << *licence.id() << '\n';
    }

    // By hand: any process in any language may release the id. Otherwise the permit ends with its lease.
    const redlatch::PermitId id = licences.acquire(redlatch::Lease{60s});
    const redlatch::PermitId lent = licences.acquire(redlatch::Lease{100ms});
    licences.release(redlatch::PermitId::parse(id.text()));
    const bool came_back = licences.try_acquire_for(5s, 2).size() == 2;  // the other one expired
    const bool is_late = !licences.try_release(lent);
    std::cout << (came_back && is_late ? "the lost licence came back by itself\n" : "a licence is missing\n");
    return came_back && is_late ? 0 : 1;
}
