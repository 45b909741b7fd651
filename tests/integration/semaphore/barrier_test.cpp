// SPDX-License-Identifier: MIT
// Barrier on a real server: phases, parties that come and go, keys and errors.
// ctest: in_memory
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <barrier>
#include <chrono>
#include <future>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/code_of.hpp"
#include "support/process.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

struct Fixture {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
};

// Three parties meet in every phase, in three ways. Returns true if none of them is ever in a phase that another one has
// not reached.
template <class AnyBarrier>
bool meet(AnyBarrier& barrier) {
    std::atomic<int> reached[3] = {0, 0, 0};
    std::atomic<bool> wrong{false};
    const auto party = [&](int me, auto pass) {
        for (int phase = 1; phase <= 20; ++phase) {
            reached[me] = phase;
            pass();
            for (const std::atomic<int>& other : reached)
                if (other < phase || other > phase + 1) wrong = true;
        }
    };
    std::jthread one([&] { party(0, [&] { barrier.arrive_and_wait(); }); });
    std::jthread two([&] { party(1, [&] { barrier.wait(barrier.arrive()); }); });
    party(2, [&] {
        auto arrival = barrier.arrive();
        std::this_thread::yield();
        barrier.wait(std::move(arrival));
    });
    one.join();
    two.join();
    return !wrong;
}

#ifndef REDLATCH_TEST_IN_MEMORY
struct Shared {
    std::atomic<int> reached[4];
    std::atomic<int> wrong{0};
};

const Role party_role{"barrier: party", [](std::span<const std::string> args) {
                          auto shared = SharedMemory<Shared>::open(args[1]);
                          Client client{args[0]};
                          Barrier barrier{client, "start", 4};
                          for (int phase = 1; phase <= 25; ++phase) {
                              shared->reached[std::stoi(args[2])] = phase;
                              barrier.arrive_and_wait();
                              for (const std::atomic<int>& other : shared->reached)
                                  if (other < phase || other > phase + 1) ++shared->wrong;
                          }
                          return 0;
                      }};
#endif

}  // namespace

TEST_CASE("code written for std::barrier works with a Barrier") {
    std::barrier<> local(3);
    CHECK(meet(local));
    Fixture fixture;
    Barrier barrier{fixture.client, "start", 3};
    CHECK(meet(barrier));
    CHECK(barrier.inspect().phase == 21);
    CHECK(barrier.inspect().arrived == 0);
}

TEST_CASE("parties of several clients meet, and the state shows who has arrived") {
    Fixture fixture;
    Client other{fixture.server.url()};
    Barrier mine{fixture.client, "start", 2}, theirs{other, "start", 2};
    CHECK_FALSE(mine.inspect().exists);
    CHECK(mine.parties() == 2);
    CHECK(mine.name() == "start");
    for (std::uint64_t phase = 1; phase <= 3; ++phase) {
        Barrier::Arrival first = mine.arrive();
        CHECK(first.phase() == phase);
        CHECK(theirs.inspect().exists);
        CHECK(theirs.inspect().phase == phase);
        CHECK(theirs.inspect().parties == 2);
        CHECK(theirs.inspect().arrived == 1);
        CHECK_FALSE(mine.wait_for(first, 0s));
        theirs.arrive_and_wait();
        CHECK(mine.wait_for(first, 20s));
    }
    CHECK(fixture.redis.exists("start"));
    CHECK_FALSE(fixture.redis.exists("{start}:arrivals"));
}

TEST_CASE("a party that drops out counts in this phase, and is not expected in the next") {
    Fixture fixture;
    Barrier barrier{fixture.client, "start", 3};
    barrier.arrive_and_drop();
    CHECK(barrier.inspect().parties == 3);
    CHECK(barrier.inspect().arrived == 1);
    Barrier::Arrival one = barrier.arrive(), two = barrier.arrive();
    barrier.wait(one);
    barrier.wait(two);
    CHECK(barrier.inspect().parties == 2);
    Barrier::Arrival last = barrier.arrive();
    barrier.arrive_and_drop();
    barrier.wait(last);
    CHECK(barrier.inspect().parties == 1);
    barrier.arrive_and_wait();
    // The last one takes the barrier with it. The next arrival makes a new one.
    barrier.arrive_and_drop();
    CHECK_FALSE(barrier.inspect().exists);
    CHECK_FALSE(fixture.redis.exists("start"));
    static_cast<void>(barrier.arrive());
    CHECK(barrier.inspect().parties == 3);
    CHECK(barrier.inspect().phase == 1);
}

TEST_CASE("an arrival that is taken back does not count") {
    Fixture fixture;
    Barrier barrier{fixture.client, "start", 2};
    CHECK(barrier.withdraw(barrier.arrive()));
    CHECK(barrier.inspect().arrived == 0);
    CHECK_FALSE(barrier.arrive_and_wait_for(10ms));
    CHECK(barrier.inspect().arrived == 0);
    std::stop_source stop;
    auto waiting = start_waiting(fixture.client, [&] { return barrier.arrive_and_wait(stop.get_token()); });
    CHECK(barrier.inspect().arrived == 1);
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(barrier.inspect().arrived == 0);
    // A stop of wait() leaves it.
    Barrier::Arrival arrival = barrier.arrive();
    CHECK_FALSE(barrier.wait(arrival, stop.get_token()));
    CHECK(barrier.inspect().arrived == 1);
    barrier.arrive_and_wait();
    CHECK_FALSE(barrier.withdraw(std::move(arrival)));
}

TEST_CASE("who waits sends nothing until the phase ends") {
    Fixture fixture;
    Barrier barrier{fixture.client, "start", 6};
    std::vector<std::future<void>> waiting;
    for (int i = 0; i < 5; ++i) waiting.push_back(start_waiting(fixture.client, [&] { barrier.arrive_and_wait(); }));
    CHECK(stops_sending(fixture.client));
    Client other{fixture.server.url()};
    Barrier{other, "start", 6}.arrive_and_wait();
    for (auto& one : waiting) CHECK(ready(one));
}

TEST_CASE("arrivals are renewed, and end with their lease when nobody renews them") {
    Fixture fixture;
    Barrier theirs{fixture.client, "start", 2};
    {
        Client client{fixture.server.url(), with_watchdog(short_lease)};
        Barrier mine{client, "start", 2};
        static_cast<void>(mine.arrive());
        REQUIRE(eventually([&] { return client.stats().renewals >= 4; }, 30s));
        CHECK(theirs.inspect().arrived == 1);
    }
    // The client has ended. After the lease the phase waits for somebody else.
    CHECK(eventually([&] { return theirs.inspect().arrived == 0; }, 30s));
    Barrier::Arrival one = theirs.arrive();
    CHECK(theirs.inspect().phase == 1);
    CHECK(theirs.inspect().arrived == 1);
    theirs.arrive_and_wait();
    CHECK(theirs.wait_for(one, 20s));
}

TEST_CASE("a barrier that is removed ends with hold_lost for those that wait, and begins anew") {
    Fixture fixture;
    Barrier barrier{fixture.client, "start", 2};
    CHECK_FALSE(barrier.remove());
    auto waiting = start_waiting(fixture.client, [&] { return code_of([&] { barrier.arrive_and_wait(); }); });
    Barrier::Arrival kept = barrier.arrive();  // ends the first phase
    CHECK_FALSE(waiting.get());
    waiting = start_waiting(fixture.client, [&] { return code_of([&] { barrier.arrive_and_wait(); }); });
    CHECK(barrier.remove());
    CHECK(waiting.get() == errc::hold_lost);
    CHECK(fixture.redis.keys().size() == 1);  // the marks of requests
    // Another barrier of that name, in the same phase.
    Barrier::Arrival old = barrier.arrive();
    CHECK(barrier.remove());
    static_cast<void>(barrier.arrive());
    CHECK(code_of([&] { static_cast<void>(barrier.wait_for(old, 20s)); }) == errc::hold_lost);
}

TEST_CASE("who waits learns with the next renewal that the server has lost the barrier") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(3s)};
    Barrier barrier{client, "start", 2};
    auto waiting = start_waiting(client, [&] { return code_of([&] { barrier.arrive_and_wait(); }); });
    // By then its subscription is confirmed, so it does not ask once more for that reason.
    REQUIRE(eventually([&] { return client.stats().renewals >= 1; }, 20s));
    redis.text("FLUSHALL");
    const auto begun = Clock::now();
    REQUIRE(waiting.wait_for(20s) == std::future_status::ready);
    CHECK(Clock::now() - begun < 3s);  // without a message it asks after 5 s at the earliest
    CHECK(waiting.get() == errc::hold_lost);
}

TEST_CASE("errors are thrown, or stored with an error code") {
    Fixture fixture;
    Barrier two{fixture.client, "start", 2}, three{fixture.client, "start", 3};
    static_cast<void>(two.arrive());
    std::error_code ec;
    CHECK(code_of([&] { static_cast<void>(three.arrive()); }) == errc::invalid_argument);
    CHECK_FALSE(three.arrive(ec));
    CHECK(ec == errc::invalid_argument);
    three.arrive_and_wait(ec);
    CHECK(ec == errc::invalid_argument);
    CHECK_FALSE(three.arrive_and_wait_for(1s, ec));
    CHECK(ec == errc::invalid_argument);
    CHECK(two.remove(ec));
    CHECK_FALSE(ec);
    // Keys of something else.
    for (const std::string key : {"text", "lock"}) {
        fixture.redis.text("SET", "text", "x");
        fixture.redis.integer("HSET", "lock", "somebody:1", 1);
        Barrier wrong{fixture.client, key, 2};
        CHECK(code_of([&] { static_cast<void>(wrong.arrive()); }) == errc::wrong_type);
        CHECK(code_of([&] { wrong.inspect(); }) == errc::wrong_type);
        wrong.arrive_and_drop(ec);
        CHECK(ec == errc::wrong_type);
        CHECK_FALSE(wrong.remove(ec));
        CHECK(ec == errc::wrong_type);
        CHECK(fixture.redis.exists(key));
    }
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("four processes meet in every phase") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    std::vector<ChildProcess> parties;
    for (int i = 0; i < 4; ++i)
        parties.push_back(spawn_self("barrier: party", {server.url(), dir.file("shared"), std::to_string(i)}));
    for (ChildProcess& one : parties) {
        const auto status = one.wait(60s);
        REQUIRE(status);
        CHECK(status->code == 0);
    }
    CHECK(shared->wrong == 0);
    for (const std::atomic<int>& one : shared->reached) CHECK(one == 25);
}
#endif
