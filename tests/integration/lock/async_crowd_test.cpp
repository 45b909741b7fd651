// SPDX-License-Identifier: MIT
// ctest: timeout=600 long
// A crowd of coroutines that wait for one lock in one process: what they cost, and in which order they are served.
#include <doctest/doctest.h>

#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <system_error>

#include "support/command_monitor.hpp"

#include "integration/lock/async_kit.hpp"
#include "redlatch/wait/wait_slot.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

#if defined(REDLATCH_SANITIZED)
constexpr int crowd_size = 4'000;
#else
constexpr int crowd_size = 100'000;
#endif

// The bytes of the heap that one waiter may take, its own coroutine included.
constexpr double largest_waiter = 1024;

// Returns how many bytes of the heap are in use; nothing if the C library does not tell.
std::optional<std::size_t> heap_in_use() {
#if defined(__GLIBC__) && !defined(REDLATCH_SANITIZED)
#if __GLIBC_PREREQ(2, 33)
    return mallinfo2().uordblks;
#endif
#endif
    return std::nullopt;
}

[[gnu::noinline]] std::uintptr_t depth_of_stack() {
    return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
}

// What the holders of the lock note, one after another. Plain, because the lock is what guards it.
struct Crowd {
    int served = 0;
    int out_of_order = 0;
    std::uintptr_t lowest = UINTPTR_MAX;
    std::uintptr_t highest = 0;
    std::atomic<int> gone{0};

    void serve(int number) {
        if (number != served) ++out_of_order;
        ++served;
        const std::uintptr_t here = depth_of_stack();
        lowest = std::min(lowest, here);
        highest = std::max(highest, here);
    }
};

redlatch::detail::Detached come(RLock& lock, Crowd& crowd, int number) {
    {
        const Hold hold = co_await lock.async_lock();
        crowd.serve(number);
    }
    ++crowd.gone;
}

}  // namespace

TEST_CASE("async: a coroutine waits without what only a thread needs") {
    redlatch::detail::Continuations continuations{[] {}};
    std::array<std::optional<redlatch::detail::WaitSlot>, 100> slots;
    const auto heap = heap_in_use();
    for (auto& slot : slots) slot.emplace(&continuations);
    CHECK(heap_in_use() == heap);
}

TEST_CASE("async: 100,000 coroutines wait for one lock: without a command, in little memory, served in order") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    Crowd crowd;
    Hold first = orders.hold(Lease{1h});
    {
        CommandMonitor monitor{fixture.server};
        come(orders, crowd, 0);
        REQUIRE(eventually([&] { return fixture.client.stats().waiting == 1; }));
        // The first waiter subscribes for all, and asks since it listens.
        REQUIRE(monitor.take_until({{"subscribe", 1}, {"evalsha", 1}}, 20s));
    }
    const std::uint64_t commands = commands_when_quiet(fixture.client);
    const auto heap_before = heap_in_use();
    const Stopwatch watch;
    for (int i = 1; i < crowd_size; ++i) come(orders, crowd, i);
    const auto heap = heap_in_use();
    CHECK(fixture.client.stats().waiting == static_cast<std::uint64_t>(crowd_size));
    CHECK_FALSE(eventually([&] { return fixture.client.stats().commands != commands; }, 500ms));
    CHECK(crowd.served == 0);
    if (heap) {
        const double each = static_cast<double>(*heap - *heap_before) / (crowd_size - 1);
        MESSAGE(each << " bytes a waiter");
        CHECK(each > 200);  // otherwise this measures nothing
        CHECK(each <= largest_waiter);
    }

    first = Hold();
    REQUIRE(eventually([&] { return crowd.gone == crowd_size; }, patient(300s), 10ms));
    MESSAGE("began and served in " << watch.elapsed_ms().count() << " ms");
    CHECK(crowd.served == crowd_size);
    CHECK(crowd.out_of_order == 0);
    CHECK(crowd.highest - crowd.lowest < 8192);
    CHECK(fixture.client.stats().waiting == 0);
    CHECK(eventually([&] { return fixture.is_clean(); }));
}

// Whoever leaves must not look through all who wait.
TEST_CASE("async: a crowd that is cancelled leaves at once") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    const Hold first = orders.hold(Lease{1h});
    std::stop_source stop;
    std::atomic<int> cancelled{0}, wrong{0};
    for (int i = 0; i < crowd_size; ++i)
        orders.async_lock(stop.get_token()).start([&](std::error_code ec, const Hold& hold) {
            if (ec != errc::cancelled || hold) ++wrong;
            ++cancelled;
        });
    CHECK(fixture.client.stats().waits >= static_cast<std::uint64_t>(crowd_size) - 1);
    const Stopwatch watch;
    stop.request_stop();
    REQUIRE(eventually([&] { return cancelled == crowd_size; }, patient(60s)));
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 0; }, patient(60s)));
    MESSAGE("left in " << watch.elapsed_ms().count() << " ms");
    CHECK(wrong == 0);
    CHECK(first.valid_until() > Clock::now());
}
