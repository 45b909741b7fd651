// SPDX-License-Identifier: MIT
// ThreadParker: who sleeps at a place, and who is woken.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <vector>

#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

// More than a place has bits, so some share one.
constexpr std::size_t crowd = 40;

// A thread that parks.
struct Guest {
    explicit Guest(ParkingPlace& place) : parker(place) {}

    void park(Instant deadline = never) {
        word = start([this, deadline] {
            thread = this_thread_id();
            return parker.park(deadline);
        });
    }
    bool sleeps() const { return thread != 0 && is_asleep(thread); }

    ThreadParker parker;
    std::atomic<pid_t> thread{0};
    std::future<std::uint32_t> word;
};

struct Fixture {
    Fixture() {
        for (std::size_t i = 0; i < crowd; ++i) guests.emplace_back(place);
        for (Guest& guest : guests) guest.park();
        for (Guest& guest : guests) REQUIRE(eventually([&] { return guest.sleeps(); }));
    }

    ParkingPlace place;
    std::deque<Guest> guests;
};

}  // namespace

TEST_CASE("one wake-up ends the sleep of a whole crowd") {
    Fixture fixture;
    ParkingPlace::Sleepers sleepers = 0;
    for (Guest& guest : fixture.guests) sleepers |= guest.parker.mark(ThreadParker::finished);
    fixture.place.wake(sleepers);
    for (Guest& guest : fixture.guests) CHECK(guest.word.get() == ThreadParker::finished);
}

TEST_CASE("who is not notified sleeps on, even if it is woken with the others") {
    Fixture fixture;
    fixture.guests[0].parker.notify(ThreadParker::finished);
    CHECK(fixture.guests[0].word.get() == ThreadParker::finished);
    for (std::size_t i = 1; i < crowd; ++i) {
        CHECK(fixture.guests[i].word.wait_for(0s) == std::future_status::timeout);
        CHECK(fixture.guests[i].parker.word() != ThreadParker::finished);
    }
    for (std::size_t i = 1; i < crowd; ++i) {
        fixture.guests[i].parker.notify(ThreadParker::notified);
        CHECK(fixture.guests[i].word.get() == ThreadParker::notified);
    }
}

TEST_CASE("a word that comes before the sleep ends it at once; the last word stays, the other one does not") {
    ParkingPlace place;
    ThreadParker parker(place);
    parker.notify(ThreadParker::notified);
    CHECK(parker.park(never) == ThreadParker::notified);
    CHECK(parker.park(Clock::now()) == ThreadParker::nothing);
    parker.notify(ThreadParker::finished);
    parker.notify(ThreadParker::notified);
    CHECK(parker.park(never) == ThreadParker::finished);
    CHECK(parker.park(never) == ThreadParker::finished);
}

TEST_CASE("a sleep ends at its deadline, not before, whatever others are woken meanwhile") {
    ParkingPlace place;
    Guest sleeper(place);
    ThreadParker other(place);
    const Instant deadline = Clock::now() + 100ms;
    sleeper.park(deadline);
    while (Clock::now() < deadline - 20ms) {
        place.wake(~ParkingPlace::Sleepers{0});
        other.notify(ThreadParker::notified);
    }
    CHECK(sleeper.word.get() == ThreadParker::nothing);
    CHECK(Clock::now() >= deadline);
}

TEST_CASE("threads that notify each other in turn miss no word") {
    ParkingPlace place;
    ThreadParker ping(place), pong(place);
    constexpr int turns = 2000;
    auto other = start([&] {
        for (int i = 0; i < turns; ++i) {
            while (pong.park(never) != ThreadParker::notified) {
            }
            ping.notify(ThreadParker::notified);
        }
        return true;
    });
    for (int i = 0; i < turns; ++i) {
        pong.notify(ThreadParker::notified);
        REQUIRE(ping.park(Clock::now() + patient(10s)) == ThreadParker::notified);
    }
    CHECK(other.get());
}
