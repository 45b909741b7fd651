// SPDX-License-Identifier: MIT
// LeaderElection: one candidate leads, the others wait, and observers see who it is.
// ctest: in_memory
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/coroutine.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

ClientOptions named(const char* name) {
    ClientOptions options;
    options.name = name;
    return options;
}

struct Fixture {
    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url(), named("left")};
    Client other{server.url(), named("right")};
    LeaderElection left{client, "scheduler"};
    LeaderElection right{other, "scheduler"};
};

// Collects what an observer was told.
class Sights {
public:
    void add(const std::optional<Leader>& leader) {
        const std::lock_guard guard{mutex_};
        seen_.push_back(leader ? leader->name : "nobody");
    }
    std::vector<std::string> all() const {
        const std::lock_guard guard{mutex_};
        return seen_;
    }
    bool last_is(const std::string& name) const {
        return eventually([&] { return !all().empty() && all().back() == name; }, 20s);
    }

private:
    mutable std::mutex mutex_;
    std::vector<std::string> seen_;
};

}  // namespace

TEST_CASE("one candidate leads, the next one after it has resigned, with a greater token") {
    Fixture fixture;
    Term first = fixture.left.campaign();
    REQUIRE(first);
    CHECK(first.is_leader());
    CHECK(first.owner() != 0);
    CHECK_FALSE(first.lost().stop_requested());
    CHECK_FALSE(fixture.right.try_campaign());
    CHECK_FALSE(fixture.right.campaign_for(20ms));
    CHECK_FALSE(fixture.right.campaign_until(std::chrono::system_clock::now() + 20ms));
    auto waiting = start_waiting(fixture.other, [&] { return fixture.right.campaign(); });
    const std::int64_t token = first.token();
    CHECK_FALSE(first.resign());
    CHECK_FALSE(first);
    CHECK_FALSE(first.is_leader());
    REQUIRE(ready(waiting));
    Term second = waiting.get();
    REQUIRE(second);
    CHECK(second.token() > token);
    CHECK(first.resign() == errc::not_owner);
    CHECK_THROWS_AS(static_cast<void>(first.token()), Error);
}

TEST_CASE("an election takes one round trip, and one for the announcement") {
    Fixture fixture;
    CHECK_FALSE(fixture.left.campaign().resign());  // the first sends the texts of the scripts, too
    const auto before = fixture.client.stats().commands;
    Term term = fixture.left.campaign();
    CHECK(fixture.client.stats().commands == before + 2);
    CHECK_FALSE(term.resign());
    CHECK(fixture.client.stats().commands == before + 3);
}

TEST_CASE("who leads is known by the name of its client, or by its own") {
    Fixture fixture;
    CHECK_FALSE(fixture.right.leader());
    CHECK(fixture.left.candidate() == "left");
    Term term = fixture.left.campaign();
    const std::optional<Leader> leader = fixture.right.leader();
    REQUIRE(leader);
    CHECK(leader->name == "left");
    CHECK(leader->owner == fixture.client.id() + ":" + std::to_string(term.owner()));
    CHECK(leader->token == term.token());
    CHECK(leader->lease > 0ms);
    CHECK(leader->lease <= 30s);
    CHECK_FALSE(term.resign());
    CHECK_FALSE(fixture.left.leader());

    LeaderElection own{fixture.client, "scheduler", "host-7: the {best}"};
    term = own.campaign();
    std::error_code ec = errc::unreachable;
    CHECK(fixture.right.leader(ec)->name == "host-7: the {best}");
    CHECK_FALSE(ec);
    CHECK_FALSE(term.resign());
    CHECK_FALSE(fixture.redis.exists("scheduler"));
    CHECK(fixture.redis.pttl("redlatch_leader:{scheduler}") == -1);
}

TEST_CASE(
    "a holder of the fenced lock leads without a name, and the name of the last leader is not taken for its own") {
    Fixture fixture;
    CHECK_FALSE(fixture.left.campaign().resign());
    fixture.redis.integer("HSET", "scheduler", "b983c153-7421-469a-addb-44fb92259a1b:42", 1);
    fixture.redis.integer("PEXPIRE", "scheduler", 60'000);
    const std::optional<Leader> leader = fixture.right.leader();
    REQUIRE(leader);
    CHECK(leader->name.empty());
    CHECK(leader->owner == "b983c153-7421-469a-addb-44fb92259a1b:42");
    CHECK(fixture.right.force_resign());
    CHECK_FALSE(fixture.right.leader());
    CHECK_FALSE(fixture.right.force_resign());
}

TEST_CASE("a campaign ends when a stop is requested, and leaves nothing") {
    Fixture fixture;
    Term term = fixture.left.campaign();
    std::stop_source stop;
    auto waiting = start_waiting(fixture.other, [&] { return fixture.right.campaign(stop.get_token()); });
    stop.request_stop();
    REQUIRE(ready(waiting));
    CHECK_FALSE(waiting.get());
    std::error_code ec = errc::unreachable;
    CHECK_FALSE(fixture.right.campaign(stop.get_token(), ec));
    CHECK_FALSE(ec);
    CHECK_FALSE(fixture.right.lead([](const std::stop_token&) {}, stop.get_token()));
    CHECK_FALSE(term.resign());
    // The other candidate may have been granted the lock in the instant in which it left.
    CHECK(eventually([&] { return !fixture.redis.exists("scheduler"); }, 20s));
}

TEST_CASE("a bad name, a bad candidate and a key of another kind are errors") {
    Fixture fixture;
    CHECK(code_of([&] { LeaderElection{fixture.client, ""}; }) == errc::invalid_argument);
    CHECK(code_of([&] { LeaderElection{fixture.client, "a{b"}; }) == errc::invalid_argument);
    CHECK(code_of([&] { LeaderElection{fixture.client, "x", std::string(1025, 'n')}; }) == errc::invalid_argument);
    fixture.redis.text("SET", "scheduler", "something");
    std::error_code ec;
    CHECK_FALSE(fixture.left.try_campaign(ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(fixture.left.leader(ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(fixture.left.lead([](const std::stop_token&) {}, ec));
    CHECK(ec == errc::wrong_type);
    std::optional<Leader> seen;
    CHECK_FALSE(fixture.left.wait_change_for(1s, seen, ec));
    CHECK(ec == errc::wrong_type);
    CHECK(code_of([&] { fixture.left.observe([](const std::optional<Leader>&) {}); }) == errc::wrong_type);
    CHECK(fixture.redis.text("GET", "scheduler") == "something");
}

// The candidate leads all the same: a name is for people.
TEST_CASE("a candidate that cannot announce its name leads without one") {
    Fixture fixture;
    fixture.redis.text("SET", "redlatch_leader:{scheduler}", "something");
    Term term = fixture.left.campaign();
    REQUIRE(term);
    CHECK(term.is_leader());
    CHECK_FALSE(term.resign());
    CHECK(fixture.redis.text("GET", "redlatch_leader:{scheduler}") == "something");
}

TEST_CASE("a term that is dropped is given back, and one that is moved is not") {
    Fixture fixture;
    {
        Term term = fixture.left.campaign();
        Term moved = std::move(term);
        CHECK(moved.is_leader());
        CHECK_FALSE(fixture.right.try_campaign());
    }
    Term next = fixture.right.campaign_for(20s);
    CHECK(next);
}

TEST_CASE("lead() runs the function while it leads, resigns afterwards, and returns true") {
    Fixture fixture;
    std::int64_t token = 0;
    CHECK(fixture.left.lead([&](const std::stop_token& ending, const Term& term) {
        token = term.token();
        CHECK(term.is_leader());
        CHECK_FALSE(ending.stop_requested());
        CHECK(fixture.right.leader()->name == "left");
        return 7;  // ignored
    }));
    CHECK(token > 0);
    CHECK_FALSE(fixture.redis.exists("scheduler"));
    CHECK_THROWS_AS(fixture.left.lead([](const std::stop_token&) { throw std::runtime_error("no work"); }),
                    std::runtime_error);
    CHECK_FALSE(fixture.redis.exists("scheduler"));
}

TEST_CASE("lead() ends by a stop, which the function sees, and then resigns within a time of its own") {
    Fixture fixture;
    std::stop_source stop;
    std::atomic<bool> leads{false};
    std::atomic<bool> orderly{false};
    auto leading = start([&] {
        return fixture.left.lead(
            [&](const std::stop_token& ending, const Term& term) {
                leads = true;
                REQUIRE(eventually([&] { return ending.stop_requested(); }, 20s));
                orderly = term.is_leader();
            },
            stop.get_token());
    });
    REQUIRE(eventually([&] { return leads.load(); }, 20s));
    auto waiting = start_waiting(fixture.other, [&] { return fixture.right.campaign(); });
    stop.request_stop();
    REQUIRE(ready(leading));
    CHECK(leading.get());
    CHECK(orderly);
    // The lease is 30 s, so only the resignation can have let the other one in.
    REQUIRE(ready(waiting, 10s));
    CHECK(waiting.get());
}

TEST_CASE("lead() tells the function that the term is lost, and campaigns again") {
    Fixture fixture;
    Client quick{fixture.server.url(), with_watchdog(short_lease)};
    LeaderElection election{quick, "scheduler", "quick"};
    std::vector<std::int64_t> tokens;
    std::atomic<int> terms{0};
    auto leading = start([&] {
        return election.lead([&](const std::stop_token& ending, const Term& term) {
            tokens.push_back(term.token());
            if (++terms == 2) return;
            REQUIRE(eventually([&] { return ending.stop_requested(); }, 20s));
            CHECK_FALSE(term.is_leader());
        });
    });
    REQUIRE(eventually([&] { return terms == 1; }, 20s));
    CHECK(fixture.right.force_resign());
    REQUIRE(ready(leading));
    CHECK(leading.get());
    REQUIRE(tokens.size() == 2);
    CHECK(tokens[1] > tokens[0]);
}

TEST_CASE("a campaign waits without a thread, and a cancelled one does not lead") {
    Fixture fixture;
    Term term = fixture.left.campaign();
    std::future<Term> later = fixture.right.async_campaign().future();
    std::stop_source stop;
    std::promise<std::error_code> cancelled;
    fixture.right.async_campaign(stop.get_token()).start([&](std::error_code ec, Term none) {
        CHECK_FALSE(none);
        cancelled.set_value(ec);
    });
    CHECK_FALSE(fixture.right.async_campaign_for(20ms).future().get());
    stop.request_stop();
    CHECK(cancelled.get_future().get() == errc::cancelled);
    CHECK_FALSE(std::move(term).async_resign().future().get());
    REQUIRE(ready(later));
    Term next = later.get();
    CHECK(next.is_leader());
    CHECK(fixture.left.leader()->name == "right");
    CHECK_FALSE(next.resign());
    CHECK_FALSE(fixture.left.async_campaign().get().resign());
    CHECK_FALSE(fixture.redis.exists("scheduler"));
}

TEST_CASE("a leader may resign where its campaign completes: in a callback and in a coroutine") {
    Fixture fixture;
    std::promise<std::error_code> resigned;
    fixture.left.async_campaign().start([&](std::error_code, Term term) { resigned.set_value(term.resign()); });
    CHECK_FALSE(resigned.get_future().get());
    std::promise<std::error_code> once_more;
    const auto coroutine = [&]() -> Fiber {
        Term term = co_await fixture.left.async_campaign();
        once_more.set_value(term.resign());
    };
    const Fiber fiber = coroutine();
    CHECK_FALSE(once_more.get_future().get());
    // Also on the thread that hands completions to executors.
    std::promise<std::error_code> inside;
    fixture.left.async_campaign()
        .on([](const std::function<void()>& f) { f(); })
        .start([&](std::error_code, Term term) { inside.set_value(term.resign()); });
    CHECK_FALSE(inside.get_future().get());
    CHECK_FALSE(fixture.redis.exists("scheduler"));
}

TEST_CASE("observers see each leader with its name, and that nobody leads, and send nothing meanwhile") {
    Fixture fixture;
    Client third{fixture.server.url()};
    LeaderElection election{third, "scheduler"};
    Sights sights;
    std::stop_source stop;
    auto observing = start([&] {
        election.observe([&](const std::optional<Leader>& leader) { sights.add(leader); }, stop.get_token());
        return true;
    });
    REQUIRE(sights.last_is("nobody"));
    Term term = fixture.left.campaign();
    REQUIRE(sights.last_is("left"));
    CHECK(stops_sending(third));
    CHECK_FALSE(term.resign());
    REQUIRE(sights.last_is("nobody"));
    term = fixture.right.campaign();
    REQUIRE(sights.last_is("right"));
    stop.request_stop();
    REQUIRE(ready(observing));
    for (const std::string& name : sights.all()) {
        CAPTURE(name);
        CHECK((name == "nobody" || name == "left" || name == "right" || name.empty()));
    }
    CHECK(third.stats().acquisitions == 0);
    CHECK(third.stats().waiting == 0);
    CHECK(code_of([&] {
              election.observe([](const std::optional<Leader>&) { throw Error(errc::rejected, "", "enough"); });
          }) == errc::rejected);
}

// An announcement goes to the channel of those who wait for a release without a place in the queue. The lock is still
// held then.
TEST_CASE("the announcement of a leader sends no other candidate to the server") {
    Fixture fixture;
    Term term = fixture.left.campaign();
    auto waiting = start_waiting(fixture.other, [&] { return fixture.right.campaign(); });
    REQUIRE(is_listened_to(fixture.redis, "scheduler"));
    ClientOptions without_grants = named("third");
    without_grants.grants = false;
    Client third{fixture.server.url(), without_grants};
    auto also_waiting = start_waiting(third, [&] {
        return static_cast<bool>(LeaderElection{third, "scheduler"}.campaign());
    });
    REQUIRE(is_listened_to(fixture.redis, "scheduler", 2));
    std::uint64_t before = 0;
    const auto announcement_sends_nothing = [&](Client& candidate) {
        before = commands_when_quiet(candidate);  // a waiter asks once more when it has subscribed, perhaps only now
        fixture.redis.integer("PUBLISH", channel_of("scheduler"), "2");
        return commands_when_quiet(candidate) == before;
    };
    CHECK(succeeds_once([&] { return announcement_sends_nothing(third); }, 5));
    CHECK(succeeds_once([&] { return announcement_sends_nothing(fixture.other); }, 5));
    REQUIRE(fixture.redis.integer("PUBLISH", channel_of("scheduler") + ":" + fixture.other.id(), "look 0") == 1);
    CHECK(eventually([&] { return fixture.other.stats().commands == before + 1; }, 20s));
    CHECK_FALSE(term.resign());
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
    REQUIRE(ready(also_waiting));
    CHECK(also_waiting.get());
}

TEST_CASE("a wait for a change ends at once if what was seen is out of date, and at its deadline or by a stop") {
    Fixture fixture;
    std::optional<Leader> seen;
    Stopwatch watch;
    CHECK_FALSE(fixture.right.wait_change_for(50ms, seen));
    CHECK(watch.elapsed() >= 50ms);
    Term term = fixture.left.campaign();
    CHECK(fixture.right.wait_change(seen));
    REQUIRE(seen);
    CHECK(seen->name == "left");
    CHECK_FALSE(fixture.right.wait_change_for(0ms, seen));
    std::stop_source stop;
    auto waiting = start_waiting(fixture.other, [&] { return fixture.right.wait_change(seen, stop.get_token()); });
    stop.request_stop();
    REQUIRE(ready(waiting));
    CHECK_FALSE(waiting.get());
    CHECK(seen->name == "left");
}

TEST_CASE("a change is awaited without a thread") {
    Fixture fixture;
    std::future<std::optional<Leader>> first = fixture.right.async_wait_change(std::nullopt).future();
    CHECK_FALSE(ready(first, 30ms));
    Term term = fixture.left.campaign();
    REQUIRE(ready(first));
    REQUIRE(first.get());
    std::future<std::optional<Leader>> second = fixture.right.async_wait_change(fixture.right.leader()).future();
    std::stop_source stop;
    std::promise<std::error_code> cancelled;
    fixture.right.async_wait_change(fixture.right.leader(), stop.get_token())
        .start([&](std::error_code ec, const std::optional<Leader>&) { cancelled.set_value(ec); });
    stop.request_stop();
    CHECK(cancelled.get_future().get() == errc::cancelled);
    CHECK_FALSE(ready(second, 30ms));
    CHECK_FALSE(term.resign());
    REQUIRE(ready(second));
    CHECK_FALSE(second.get());
}

TEST_CASE("twenty observers of a process send no more than one of them") {
    Fixture fixture;
    Client crowd{fixture.server.url()};
    LeaderElection election{crowd, "scheduler"};
    Term term = fixture.left.campaign();
    std::optional<Leader> leader = fixture.left.leader();
    std::vector<std::future<std::optional<Leader>>> waiting;
    for (int i = 0; i < 20; ++i) waiting.push_back(election.async_wait_change(leader).future());
    REQUIRE(eventually([&] { return crowd.stats().waiting == 20; }, 20s));
    REQUIRE(is_listened_to(fixture.redis, "scheduler"));
    REQUIRE(stops_sending(crowd));
    const auto before = crowd.stats().commands;
    CHECK_FALSE(term.resign());
    for (auto& one : waiting) {
        REQUIRE(ready(one));
        CHECK_FALSE(one.get());
    }
    CHECK(crowd.stats().commands <= before + 2);
}
