// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <poll.h>

#include <redlatch/redlatch.hpp>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

bool is_readable(const WakePipe& pipe) {
    pollfd ready{pipe.fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 1;
}

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

TEST_CASE("an interrupt reaches the threads at both connections") {
    redlatch::detail::Interrupts interrupts;
    auto& messages = interrupts.pipe(redlatch::detail::Interrupts::At::messages);
    auto& invalidations = interrupts.pipe(redlatch::detail::Interrupts::At::invalidations);
    interrupts.wake();
    CHECK(interrupts.count() == 1);
    messages.drain();
    CHECK_FALSE(is_readable(messages));
    CHECK(is_readable(invalidations));
}
