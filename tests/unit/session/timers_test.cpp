// SPDX-License-Identifier: MIT
// When the background thread looks at what, and when it has to be woken for that.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

using namespace redlatch;
using namespace std::chrono_literals;

namespace {

struct Nothing final : BackgroundTask {
    void tick(Instant, Instant, std::vector<Renewal>&) override {}
    void renewed(const Renewal&, Renewed, Instant) override {}
    void subscribed() override {}
    void subscription_refused(const Reply&) override {}
    void message(std::string_view) override {}
    void disconnected() override {}
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

TEST_CASE("without entries the background thread may sleep for ever") {
    Bench bench;
    CHECK(bench.timers.sleep_until() == never);
    CHECK(bench.timers.take_due(at(0ms)).empty());
}

TEST_CASE("what is due is given out once, earliest first") {
    Bench bench;
    bench.timers.schedule(*bench.a, at(20ms));
    bench.timers.schedule(*bench.b, at(10ms));
    CHECK(bench.timers.sleep_until() == at(10ms));
    CHECK(bench.timers.take_due(at(9ms)).empty());
    CHECK(bench.timers.take_due(at(20ms)) == Due{bench.b, bench.a});
    CHECK(bench.timers.take_due(at(20ms)).empty());
    CHECK(bench.timers.sleep_until() == never);
}

TEST_CASE("an entry only moves forward") {
    Bench bench;
    bench.timers.schedule(*bench.a, at(20ms));
    bench.timers.schedule(*bench.a, at(30ms));
    CHECK(bench.timers.sleep_until() == at(20ms));
    bench.timers.schedule(*bench.a, at(10ms));
    CHECK(bench.timers.sleep_until() == at(10ms));
    CHECK(bench.timers.take_due(at(1s)) == Due{bench.a});
    CHECK(bench.timers.take_due(at(1s)).empty());
    // And after it came up it may be set anew.
    bench.timers.schedule(*bench.a, at(30ms));
    CHECK(bench.timers.sleep_until() == at(30ms));
}

TEST_CASE("a watched one has a time of its own in each of two timers") {
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

TEST_CASE("what is due can be taken out one by one, the living only") {
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

TEST_CASE("the background thread is woken only when it would oversleep") {
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

TEST_CASE("what is forgotten does not come up") {
    Bench bench;
    bench.timers.schedule(*bench.a, at(10ms));
    bench.timers.schedule(*bench.b, at(10ms));
    bench.timers.forget(*bench.a);
    bench.timers.forget(*bench.a);
    CHECK(bench.timers.take_due(at(10ms)) == Due{bench.b});
}

TEST_CASE("what is being destroyed is not given out") {
    Bench bench;
    // As it looks between the end of the last reference and forget() in the destructor: no owner any more.
    Nothing going;
    bench.timers.schedule(going, at(10ms));
    CHECK(bench.timers.take_due(at(10ms)).empty());
    bench.timers.forget(going);
}
