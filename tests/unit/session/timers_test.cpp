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

struct Bench {
    int wakes = 0;
    Timers timers{[this] { ++wakes; }};
    std::shared_ptr<BackgroundTask> a = std::make_shared<Nothing>();
    std::shared_ptr<BackgroundTask> b = std::make_shared<Nothing>();
};

using Due = std::vector<std::shared_ptr<BackgroundTask>>;

}  // namespace

TEST_CASE("without entries there is no wake-up time") {
    Bench bench;
    CHECK(bench.timers.sleep_until() == never);
    CHECK(bench.timers.take_due(at(0ms)).empty());
}

TEST_CASE("a due task is returned once, the earliest first") {
    Bench bench;
    bench.timers.schedule(*bench.a, at(20ms));
    bench.timers.schedule(*bench.b, at(10ms));
    CHECK(bench.timers.sleep_until() == at(10ms));
    CHECK(bench.timers.take_due(at(9ms)).empty());
    CHECK(bench.timers.take_due(at(20ms)) == Due{bench.b, bench.a});
    CHECK(bench.timers.take_due(at(20ms)).empty());
    CHECK(bench.timers.sleep_until() == never);
}

TEST_CASE("an entry can only be moved to an earlier time") {
    Bench bench;
    bench.timers.schedule(*bench.a, at(20ms));
    bench.timers.schedule(*bench.a, at(30ms));
    CHECK(bench.timers.sleep_until() == at(20ms));
    bench.timers.schedule(*bench.a, at(10ms));
    CHECK(bench.timers.sleep_until() == at(10ms));
    CHECK(bench.timers.take_due(at(1s)) == Due{bench.a});
    CHECK(bench.timers.take_due(at(1s)).empty());
    // Once it was due it can be scheduled again.
    bench.timers.schedule(*bench.a, at(30ms));
    CHECK(bench.timers.sleep_until() == at(30ms));
}

TEST_CASE("a task has its own time in each of two timers") {
    Bench bench;
    Timers losses{[] {}, Timers::Of::loss};
    bench.timers.schedule(*bench.a, at(20ms));
    losses.schedule(*bench.a, at(10ms));
    CHECK(bench.timers.sleep_until() == at(20ms));
    CHECK(losses.sleep_until() == at(10ms));
    CHECK(losses.take_due(at(1s)) == Due{bench.a});
    CHECK(bench.timers.sleep_until() == at(20ms));
    losses.schedule(*bench.a, at(10ms));
    losses.forget(*bench.a);
    CHECK(bench.timers.take_due(at(1s)) == Due{bench.a});
    CHECK(losses.take_due(at(1s)).empty());
}

TEST_CASE("due tasks can be taken one by one, without those that are being destroyed") {
    Bench bench;
    Nothing going;
    bench.timers.schedule(going, at(5ms));
    bench.timers.schedule(*bench.a, at(20ms));
    bench.timers.schedule(*bench.b, at(10ms));
    CHECK(bench.timers.take_first_due(at(10ms)) == bench.b);
    CHECK(bench.timers.take_first_due(at(10ms)) == nullptr);
    CHECK(bench.timers.take_first_due(at(20ms)) == bench.a);
    CHECK(bench.timers.take_first_due(at(1s)) == nullptr);
    bench.timers.forget(going);
}

TEST_CASE("the background thread is woken only if it would sleep too long") {
    Bench bench;
    bench.timers.schedule(*bench.a, at(20ms));
    CHECK(bench.wakes == 0);  // it is not asleep
    bench.timers.sleep_until();
    bench.timers.schedule(*bench.b, at(30ms));
    CHECK(bench.wakes == 0);
    bench.timers.schedule(*bench.b, at(10ms));
    CHECK(bench.wakes == 1);
    bench.timers.take_due(at(10ms));
    bench.timers.schedule(*bench.b, at(5ms));
    CHECK(bench.wakes == 1);
}

TEST_CASE("a forgotten task is never due") {
    Bench bench;
    bench.timers.schedule(*bench.a, at(10ms));
    bench.timers.schedule(*bench.b, at(10ms));
    bench.timers.forget(*bench.a);
    bench.timers.forget(*bench.a);
    CHECK(bench.timers.take_due(at(10ms)) == Due{bench.b});
}

TEST_CASE("a task that is being destroyed is not returned") {
    Bench bench;
    // The state between the end of the last reference and forget() in the destructor: no owner any more.
    Nothing going;
    bench.timers.schedule(going, at(10ms));
    CHECK(bench.timers.take_due(at(10ms)).empty());
    bench.timers.forget(going);
}
