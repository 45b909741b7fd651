// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <poll.h>

#include <redlatch/redlatch.hpp>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

bool is_readable(int fd) {
    pollfd ready{fd, POLLIN, 0};
    return ::poll(&ready, 1, 0) == 1;
}
bool is_readable(const WakePipe& pipe) { return is_readable(pipe.fd()); }

}  // namespace

TEST_CASE("a wake-up stays readable until it is drained, and several count as one") {
    WakePipe pipe;
    CHECK_FALSE(is_readable(pipe));
    pipe.wake();
    pipe.wake();
    CHECK(is_readable(pipe));
    pipe.drain();
    CHECK_FALSE(is_readable(pipe));
    pipe.wake();
    CHECK(is_readable(pipe));
}

TEST_CASE("an interrupt reaches the threads in a poll() at both connections") {
    using enum Interrupts::At;
    Interrupts interrupts;
    interrupts.begin_poll(messages);
    interrupts.begin_poll(invalidations);
    interrupts.wake();
    CHECK(interrupts.count() == 1);
    CHECK(is_readable(interrupts.fd(messages)));
    interrupts.end_poll(messages);
    CHECK_FALSE(is_readable(interrupts.fd(messages)));
    CHECK(is_readable(interrupts.fd(invalidations)));
}

TEST_CASE("an interrupt of a thread that is in no poll() is only counted") {
    using enum Interrupts::At;
    Interrupts interrupts;
    interrupts.begin_poll(messages);
    interrupts.end_poll(messages);
    interrupts.wake();
    CHECK(interrupts.count() == 1);
    CHECK_FALSE(is_readable(interrupts.fd(messages)));
    CHECK_FALSE(is_readable(interrupts.fd(invalidations)));
}
