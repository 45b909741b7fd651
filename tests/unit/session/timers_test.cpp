// SPDX-License-Identifier: MIT
// Timers: when tasks are due, and when the background thread has to be woken.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

struct Nothing final : BackgroundTask {
    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
};

Instant at(Milliseconds t) { return Instant(1h + t); }

struct Fixture {
    int wakes = 0;
    Timers timers{[this] { ++wakes; }};
    std::shared_ptr<BackgroundTask> a = std::make_shared<Nothing>();
    std::shared_ptr<BackgroundTask> b = std::make_shared<Nothing>();
};

using Due = std::vector<std::shared_ptr<BackgroundTask>>;

}  // namespace

TEST_CASE("without entries there is no wake-up time") {
    Fixture fixture;
    CHECK(fixture.timers.sleep_until() == never);
    CHECK(fixture.timers.take_due(at(0ms)).empty());
}

TEST_CASE("a due task is returned once, the earliest first") {
    Fixture fixture;
    fixture.timers.schedule(*fixture.a, at(20ms));
    fixture.timers.schedule(*fixture.b, at(10ms));
    CHECK(fixture.timers.sleep_until() == at(10ms));
    CHECK(fixture.timers.take_due(at(9ms)).empty());
    CHECK(fixture.timers.take_due(at(20ms)) == Due{fixture.b, fixture.a});
    CHECK(fixture.timers.take_due(at(20ms)).empty());
    CHECK(fixture.timers.sleep_until() == never);
}

TEST_CASE("an entry can only be moved to an earlier time") {
    Fixture fixture;
    fixture.timers.schedule(*fixture.a, at(20ms));
    fixture.timers.schedule(*fixture.a, at(30ms));
    CHECK(fixture.timers.sleep_until() == at(20ms));
    fixture.timers.schedule(*fixture.a, at(10ms));
    CHECK(fixture.timers.sleep_until() == at(10ms));
    CHECK(fixture.timers.take_due(at(1s)) == Due{fixture.a});
    CHECK(fixture.timers.take_due(at(1s)).empty());
    // Once it was due it can be scheduled again.
    fixture.timers.schedule(*fixture.a, at(30ms));
    CHECK(fixture.timers.sleep_until() == at(30ms));
}

TEST_CASE("a task has its own time in each of two timers") {
    Fixture fixture;
    Timers losses{[] {}, Timers::Of::loss};
    fixture.timers.schedule(*fixture.a, at(20ms));
    losses.schedule(*fixture.a, at(10ms));
    CHECK(fixture.timers.sleep_until() == at(20ms));
    CHECK(losses.sleep_until() == at(10ms));
    CHECK(losses.take_due(at(1s)) == Due{fixture.a});
    CHECK(fixture.timers.sleep_until() == at(20ms));
    losses.schedule(*fixture.a, at(10ms));
    losses.forget(*fixture.a);
    CHECK(fixture.timers.take_due(at(1s)) == Due{fixture.a});
    CHECK(losses.take_due(at(1s)).empty());
}

TEST_CASE("due tasks can be taken one by one, without those that are being destroyed") {
    Fixture fixture;
    Nothing going;
    fixture.timers.schedule(going, at(5ms));
    fixture.timers.schedule(*fixture.a, at(20ms));
    fixture.timers.schedule(*fixture.b, at(10ms));
    CHECK(fixture.timers.take_first_due(at(10ms)) == fixture.b);
    CHECK(fixture.timers.take_first_due(at(10ms)) == nullptr);
    CHECK(fixture.timers.take_first_due(at(20ms)) == fixture.a);
    CHECK(fixture.timers.take_first_due(at(1s)) == nullptr);
    fixture.timers.forget(going);
}

TEST_CASE("the background thread is woken only if it would sleep too long") {
    Fixture fixture;
    fixture.timers.schedule(*fixture.a, at(20ms));
    CHECK(fixture.wakes == 0);  // it is not asleep
    fixture.timers.sleep_until();
    fixture.timers.schedule(*fixture.b, at(30ms));
    CHECK(fixture.wakes == 0);
    fixture.timers.schedule(*fixture.b, at(10ms));
    CHECK(fixture.wakes == 1);
    fixture.timers.take_due(at(10ms));
    fixture.timers.schedule(*fixture.b, at(5ms));
    CHECK(fixture.wakes == 1);
}

TEST_CASE("a forgotten task is never due") {
    Fixture fixture;
    fixture.timers.schedule(*fixture.a, at(10ms));
    fixture.timers.schedule(*fixture.b, at(10ms));
    fixture.timers.forget(*fixture.a);
    fixture.timers.forget(*fixture.a);
    CHECK(fixture.timers.take_due(at(10ms)) == Due{fixture.b});
}

TEST_CASE("a task that is being destroyed is not returned") {
    Fixture fixture;
    // The state between the end of the last reference and forget() in the destructor: no owner any more.
    Nothing going;
    fixture.timers.schedule(going, at(10ms));
    CHECK(fixture.timers.take_due(at(10ms)).empty());
    fixture.timers.forget(going);
}
