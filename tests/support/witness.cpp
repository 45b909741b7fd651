// SPDX-License-Identifier: MIT
// The command that the tests of the tool run under a lock: witness FILE obey|stubborn [seconds]. It notes in FILE until
// when it lived, and which signals came. The obedient one ends with code 3 after SIGTERM, SIGINT, SIGHUP or SIGQUIT.
#include "witness.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "shared_memory.hpp"

namespace {

redlatch::test::Witness* seen = nullptr;
volatile sig_atomic_t told = 0;

void note(int number) {
    if (number == SIGTERM && seen->term == 0) seen->term = redlatch::test::boot_time();
    ++seen->signals[number];
    told = 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 99;
    auto shared = redlatch::test::SharedMemory<redlatch::test::Witness>::open(argv[1]);
    seen = &*shared;
    const bool obeys = std::string(argv[2]) == "obey";
    const std::int64_t lifetime = argc > 3 ? std::int64_t{1'000'000} * std::atoll(argv[3]) : 0;  // in ms
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(number, &note);
    if (const char* token = std::getenv("REDLATCH_TOKEN")) seen->token = std::atoll(token);
    seen->parent = ::getppid();
    seen->process = ::getpid();
    seen->begun = redlatch::test::boot_time();
    for (;;) {
        const std::int64_t now = redlatch::test::boot_time();
        seen->last_alive = now;
        if (obeys && told != 0) return 3;
        if (lifetime != 0 && now - seen->begun > lifetime) return 0;
        const timespec nap{0, 1'000'000};
        ::nanosleep(&nap, nullptr);
    }
}
