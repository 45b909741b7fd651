// SPDX-License-Identifier: MIT
// Continuations: coroutines that sleep, who wakes them, and on which thread they go on.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <coroutine>
#include <deque>
#include <exception>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

struct Sleeping {
    Continuations& by;
    Sleeper& sleeper;
    Instant until;
    bool await_ready() const noexcept { return false; }
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> coroutine) {
        return by.sleep(sleeper, coroutine, until);
    }
    void await_resume() const noexcept {}
};

struct Bench {
    // Sleeps `times` times, and notes its number after each.
    Detached sleep(int number, Sleeper& sleeper, Instant until, int times = 1) {
        for (; times > 0; --times) {
            co_await Sleeping{continuations, sleeper, until};
            resumed.push_back(number);
        }
    }

    int wakes = 0;  // of the background thread
    Continuations continuations{[this] { ++wakes; }};
    std::vector<int> resumed;
};

const Instant noon = Instant{} + 12h;

}  // namespace

TEST_CASE("continuations: those that are woken go on in the order of their waking, and only on the background thread") {
    Bench bench;
    Sleeper a, b, c;
    bench.sleep(1, a, never);
    bench.sleep(2, b, never);
    bench.sleep(3, c, never);
    CHECK(bench.continuations.sleep_until() == never);
    bench.continuations.wake(b);
    bench.continuations.wake(a);
    bench.continuations.wake(b);  // once more, in vain
    CHECK(bench.resumed.empty());
    CHECK(bench.wakes == 1);
    bench.continuations.resume_due(noon);
    CHECK(bench.resumed == std::vector{2, 1});
    bench.continuations.wake(c);
    CHECK(bench.wakes == 1);  // the background thread does not sleep yet
    CHECK(bench.continuations.sleep_until() < noon);
    bench.continuations.resume_due(noon);
    CHECK(bench.resumed == std::vector{2, 1, 3});
}

TEST_CASE("continuations: an instant ends a sleep, a waking cancels the instant") {
    Bench bench;
    Sleeper early, late, woken;
    bench.sleep(2, late, noon + 2h);
    bench.sleep(1, early, noon + 1h);
    bench.sleep(3, woken, noon + 3h);
    CHECK(bench.continuations.sleep_until() == noon + 1h);
    bench.continuations.resume_due(noon + 30min);
    CHECK(bench.resumed.empty());
    bench.continuations.wake(woken);
    bench.continuations.resume_due(noon + 1h);
    CHECK(bench.resumed == std::vector{3, 1});
    CHECK(bench.continuations.sleep_until() == noon + 2h);
    bench.continuations.resume_due(noon + 5h);
    CHECK(bench.resumed == std::vector{3, 1, 2});
    CHECK(bench.continuations.sleep_until() == never);
}

TEST_CASE("continuations: a crowd goes on in parts, so that the background thread renews and receives in between") {
    Bench bench;
    std::deque<Sleeper> crowd(1000);
    for (Sleeper& one : crowd) bench.sleep(static_cast<int>(bench.resumed.size()), one, never);
    for (Sleeper& one : crowd) bench.continuations.wake(one);
    bench.continuations.resume_due(noon);
    CHECK(bench.resumed.size() < crowd.size());
    int calls = 1;
    while (bench.continuations.sleep_until() < noon) {
        bench.continuations.resume_due(noon);
        ++calls;
    }
    CHECK(bench.resumed.size() == crowd.size());
    CHECK(calls <= 10);
}

TEST_CASE("continuations: an instant before the one that the background thread sleeps until wakes it") {
    Bench bench;
    Sleeper a, b, c;
    bench.sleep(1, a, noon);
    CHECK(bench.wakes == 0);  // it does not sleep yet
    CHECK(bench.continuations.sleep_until() == noon);
    bench.sleep(2, b, noon + 1h);
    CHECK(bench.wakes == 0);
    bench.sleep(3, c, noon - 1h);
    CHECK(bench.wakes == 1);
    bench.continuations.resume_due(noon + 1h);
    CHECK(bench.resumed == std::vector{3, 1, 2});
}

TEST_CASE("continuations: one that is woken before it sleeps does not fall asleep") {
    Bench bench;
    Sleeper a;
    bench.continuations.wake(a);
    bench.sleep(1, a, never, 2);
    CHECK(bench.resumed == std::vector{1});
    bench.continuations.wake(a);
    bench.continuations.resume_due(noon);
    CHECK(bench.resumed == std::vector{1, 1});
}

TEST_CASE("continuations: those that are woken meanwhile wait for the next turn, so that timers get theirs") {
    Bench bench;
    std::deque<Sleeper> sleepers(3);
    const auto chain = [&](std::size_t i) -> Detached {
        co_await Sleeping{bench.continuations, sleepers[i], never};
        bench.resumed.push_back(static_cast<int>(i));
        if (i + 1 < sleepers.size()) bench.continuations.wake(sleepers[i + 1]);
    };
    for (std::size_t i = 0; i < sleepers.size(); ++i) chain(i);
    bench.continuations.wake(sleepers[0]);
    for (std::size_t turn = 1; turn <= sleepers.size(); ++turn) {
        bench.continuations.resume_due(noon);
        CHECK(bench.resumed.size() == turn);
    }
}
