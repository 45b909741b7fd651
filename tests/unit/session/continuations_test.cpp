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

struct Fixture {
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
    Fixture fixture;
    Sleeper a, b, c;
    fixture.sleep(1, a, never);
    fixture.sleep(2, b, never);
    fixture.sleep(3, c, never);
    CHECK(fixture.continuations.sleep_until() == never);
    fixture.continuations.wake(b);
    fixture.continuations.wake(a);
    fixture.continuations.wake(b);  // once more, in vain
    CHECK(fixture.resumed.empty());
    CHECK(fixture.wakes == 1);
    fixture.continuations.resume_due(noon);
    CHECK(fixture.resumed == std::vector{2, 1});
    fixture.continuations.wake(c);
    CHECK(fixture.wakes == 1);  // the background thread does not sleep yet
    CHECK(fixture.continuations.sleep_until() < noon);
    fixture.continuations.resume_due(noon);
    CHECK(fixture.resumed == std::vector{2, 1, 3});
}

TEST_CASE("continuations: an instant ends a sleep, a waking cancels the instant") {
    Fixture fixture;
    Sleeper early, late, woken;
    fixture.sleep(2, late, noon + 2h);
    fixture.sleep(1, early, noon + 1h);
    fixture.sleep(3, woken, noon + 3h);
    CHECK(fixture.continuations.sleep_until() == noon + 1h);
    fixture.continuations.resume_due(noon + 30min);
    CHECK(fixture.resumed.empty());
    fixture.continuations.wake(woken);
    fixture.continuations.resume_due(noon + 1h);
    CHECK(fixture.resumed == std::vector{3, 1});
    CHECK(fixture.continuations.sleep_until() == noon + 2h);
    fixture.continuations.resume_due(noon + 5h);
    CHECK(fixture.resumed == std::vector{3, 1, 2});
    CHECK(fixture.continuations.sleep_until() == never);
}

TEST_CASE("continuations: a crowd goes on in parts, so that the background thread renews and receives in between") {
    Fixture fixture;
    std::deque<Sleeper> crowd(1000);
    for (Sleeper& one : crowd) fixture.sleep(static_cast<int>(fixture.resumed.size()), one, never);
    for (Sleeper& one : crowd) fixture.continuations.wake(one);
    fixture.continuations.resume_due(noon);
    CHECK(fixture.resumed.size() < crowd.size());
    int calls = 1;
    while (fixture.continuations.sleep_until() < noon) {
        fixture.continuations.resume_due(noon);
        ++calls;
    }
    CHECK(fixture.resumed.size() == crowd.size());
    CHECK(calls <= 10);
}

TEST_CASE("continuations: an instant before the one that the background thread sleeps until wakes it") {
    Fixture fixture;
    Sleeper a, b, c;
    fixture.sleep(1, a, noon);
    CHECK(fixture.wakes == 0);  // it does not sleep yet
    CHECK(fixture.continuations.sleep_until() == noon);
    fixture.sleep(2, b, noon + 1h);
    CHECK(fixture.wakes == 0);
    fixture.sleep(3, c, noon - 1h);
    CHECK(fixture.wakes == 1);
    fixture.continuations.resume_due(noon + 1h);
    CHECK(fixture.resumed == std::vector{3, 1, 2});
}

TEST_CASE("continuations: one that is woken before it sleeps does not fall asleep") {
    Fixture fixture;
    Sleeper a;
    fixture.continuations.wake(a);
    fixture.sleep(1, a, never, 2);
    CHECK(fixture.resumed == std::vector{1});
    fixture.continuations.wake(a);
    fixture.continuations.resume_due(noon);
    CHECK(fixture.resumed == std::vector{1, 1});
}

TEST_CASE("continuations: those that are woken meanwhile wait for the next turn, so that timers get theirs") {
    Fixture fixture;
    std::deque<Sleeper> sleepers(3);
    const auto chain = [&](std::size_t i) -> Detached {
        co_await Sleeping{fixture.continuations, sleepers[i], never};
        fixture.resumed.push_back(static_cast<int>(i));
        if (i + 1 < sleepers.size()) fixture.continuations.wake(sleepers[i + 1]);
    };
    for (std::size_t i = 0; i < sleepers.size(); ++i) chain(i);
    fixture.continuations.wake(sleepers[0]);
    for (std::size_t turn = 1; turn <= sleepers.size(); ++turn) {
        fixture.continuations.resume_due(noon);
        CHECK(fixture.resumed.size() == turn);
    }
}
