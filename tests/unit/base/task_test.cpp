// SPDX-License-Identifier: MIT
// Task: the same code for a caller that blocks and for one that is a coroutine; where it goes on, and how it ends.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

// Suspends the coroutine that awaits it, until the test resumes it; or not at all.
struct Signal {
    bool await_ready() const noexcept { return has_come; }
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> coroutine) noexcept {
        suspended = coroutine;
        return true;
    }
    void await_resume() const noexcept {}

    bool has_come = false;
    std::coroutine_handle<> suspended{};
};

Task<std::string> text_after(Signal& event, std::string text) {
    co_await event;
    co_return text + "!";
}

Task<int> length_after(Signal& event, std::string text) {
    const std::string whole = co_await text_after(event, std::move(text));
    co_return static_cast<int>(whole.size());
}

Task<void> fail_after(Signal& event) {
    co_await event;
    throw std::runtime_error("failed");
}

template <class T>
Detached keep_result(Task<T> task, std::optional<T>& result) {
    result = co_await task;
}

Detached keep_error(Task<void> task, std::string& error) {
    try {
        co_await task;
    } catch (const std::exception& e) {
        error = e.what();
    }
}

Task<int> number_of_levels(int below) {
    if (below == 0) co_return 1;
    co_return 1 + co_await number_of_levels(below - 1);
}

}  // namespace

TEST_CASE("task: a caller that blocks has the result when run() returns") {
    Signal come{.has_come = true};
    CHECK(length_after(come, "orders").run() == 7);
    CHECK_THROWS_AS(fail_after(come).run(), std::runtime_error);
}

TEST_CASE("task: run() needs the stack of one task, however many await each other") {
    CHECK(number_of_levels(100'000).run() == 100'001);
}

TEST_CASE("task: begins when it is awaited, and goes on where its event comes") {
    Signal event;
    std::optional<int> length;
    { Task<int> never_begun = length_after(event, "orders"); }
    CHECK_FALSE(event.suspended);
    keep_result(length_after(event, "orders"), length);
    REQUIRE(event.suspended);
    CHECK_FALSE(length);
    std::thread([&] { event.suspended.resume(); }).join();
    CHECK(length == 7);
}

TEST_CASE("task: an exception reaches the caller, before and after a suspension") {
    Signal event, come{.has_come = true};
    std::string error;
    keep_error(fail_after(come), error);
    CHECK(error == "failed");
    error.clear();
    keep_error(fail_after(event), error);
    CHECK(error.empty());
    event.suspended.resume();
    CHECK(error == "failed");
}

// Notes the end of a task, and takes its result.
struct Ended final : TaskEnd {
    explicit Ended(Task<std::string> begun) : task(std::move(begun)) {}

    void task_ended() noexcept override {
        ++times;
        on = std::this_thread::get_id();
        try {
            text = task->take();
        } catch (const std::exception& e) {
            text = e.what();
        }
        task.reset();
    }

    std::optional<Task<std::string>> task;
    int times = 0;
    std::string text{};
    std::thread::id on{};
};

TEST_CASE("task: one that was started tells its end once, on the thread on which it ends, which may destroy it") {
    Signal event, come{.has_come = true};
    Ended later(text_after(event, "orders"));
    later.task->start(later);
    CHECK(later.times == 0);
    std::thread bringer([&] { event.suspended.resume(); });
    const auto there = bringer.get_id();
    bringer.join();
    CHECK(later.times == 1);
    CHECK(later.text == "orders!");
    CHECK(later.on == there);

    Ended at_once(text_after(come, "parcels"));
    at_once.task->start(at_once);
    CHECK(at_once.times == 1);
    CHECK(at_once.text == "parcels!");

    const auto fails = [](Signal& signal) -> Task<std::string> {
        co_await fail_after(signal);
        co_return "";
    };
    Ended failed(fails(come));
    failed.task->start(failed);
    CHECK(failed.times == 1);
    CHECK(failed.text == "failed");
}

TEST_CASE("task: a result that cannot be copied is moved to the caller") {
    const auto make = []() -> Task<std::unique_ptr<int>> { co_return std::make_unique<int>(5); };
    CHECK(*make().run() == 5);
}

// A lock() that waits for days takes many steps. The stack must not grow with them.
TEST_CASE("task: a million tasks one after another need the stack of one") {
    Signal come{.has_come = true};
    const auto address_of_frame = [](Signal& event) -> Task<std::uintptr_t> {
        co_await event;
        int local = 0;
        co_return reinterpret_cast<std::uintptr_t>(&local) ^
            reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    };
    const auto many = [&]() -> Task<std::uintptr_t> {
        std::uintptr_t lowest = UINTPTR_MAX, highest = 0;
        for (int i = 0; i < 1'000'000; ++i) {
            co_await address_of_frame(come);
            const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
            lowest = std::min(lowest, here);
            highest = std::max(highest, here);
        }
        co_return highest - lowest;
    };
    CHECK(many().run() < 4096);
}

// A mutex that was locked on one thread must not be unlocked on another.
TEST_CASE("task: continues its caller on the thread on which it ends, however soon that is") {
    const int rounds = 20'000 / slow_build_factor;
    std::atomic<void*> offered{nullptr};
    std::atomic<bool> over{false};
    std::thread bringer([&] {
        while (!over)
            if (void* const suspended = offered.exchange(nullptr))
                std::coroutine_handle<>::from_address(suspended).resume();
    });
    struct Offer {
        std::atomic<void*>& offered;
        bool await_ready() const noexcept { return false; }
        [[gnu::noinline]] void await_suspend(std::coroutine_handle<> coroutine) noexcept {
            offered = coroutine.address();
        }
        void await_resume() const noexcept {}
    };
    std::atomic<int> met{0}, elsewhere{0};
    const auto leaf = [&]() -> Task<std::thread::id> {
        co_await Offer{offered};
        co_return std::this_thread::get_id();
    };
    const auto middle = [&]() -> Task<std::thread::id> {
        const auto ended_on = co_await leaf();
        if (ended_on != std::this_thread::get_id()) ++elsewhere;
        co_return ended_on;
    };
    const auto root = [&]() -> Detached {
        const auto ended_on = co_await middle();
        if (ended_on != bringer.get_id() || ended_on != std::this_thread::get_id()) ++elsewhere;
        ++met;
    };
    for (int i = 0; i < rounds; ++i) {
        root();
        REQUIRE(eventually([&] { return met == i + 1; }, 20s, 0ms));
    }
    CHECK(elsewhere == 0);
    over = true;
    bringer.join();
}
