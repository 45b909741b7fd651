// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <poll.h>

#include <redlatch/redlatch.hpp>
#include <thread>

using namespace redlatch;

namespace {

bool is_readable(const WakePipe& pipe) {
    pollfd ready{pipe.fd(), POLLIN, 0};
    return ::poll(&ready, 1, 0) == 1;
}

}  // namespace

TEST_CASE("a wake-up is there until it is drained, and many are one") {
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

// A drain between the note that somebody wakes and the byte that does so left the byte behind without the note: from then
// on it was drained no more, and every poll() returned at once.
TEST_CASE("a drain that meets a wake-up half way leaves nothing that cannot be drained") {
    WakePipe pipe;
    for (int round = 0; round < 20; ++round) {
        std::jthread waking{[&] {
            for (int i = 0; i < 20'000; ++i) pipe.wake();
        }};
        for (int i = 0; i < 20'000; ++i) pipe.drain();
        waking.join();
        pipe.drain();
        REQUIRE_FALSE(is_readable(pipe));
    }
}
