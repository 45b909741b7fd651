// SPDX-License-Identifier: MIT
// wait_loop() with a host whose decisions the test chooses, and Patience.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <utility>
#include <vector>

#include "support/engine.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

using Kind = NextStep::Kind;

// A session whose watch() notes that a thread lends itself to it.
struct NotedReceiver {
    static std::uint64_t interrupts() { return 0; }
    bool watch(Instant, std::uint64_t) {
        ++watched;
        return may_watch;
    }
    static void interrupt_watch() {}

    int watched = 0;
    bool may_watch = true;
};

// Takes the prepared steps one after the other; the last one for ever.
struct Host {
    NextStep next(Waiter& me, Instant) {
        if (me.error) std::rethrow_exception(me.error);
        if (me.is_served()) return {Kind::served};
        const NextStep step = steps.at(taken);
        if (taken + 1 < steps.size()) ++taken;
        return step;
    }

    Task<void> ask(std::unique_lock<std::mutex>& lock, Waiter& me, const WaitRequest& request) {
        REQUIRE(lock.owns_lock());
        if (asks_for != Milliseconds(0)) co_await Pause(request.by, Clock::now() + asks_for, request.stop);
        REQUIRE(me.phase == Waiter::Phase::asking);
        ++asked;
        if (asked == served_at) me.phase = Waiter::Phase::served;
        if (asked == failed_at) me.fail(std::make_exception_ptr(std::runtime_error("refused")));
    }

    std::vector<NextStep> steps;
    std::size_t taken = 0;
    int asked = 0;
    int served_at = 0;
    int failed_at = 0;
    Milliseconds asks_for{};  // how long a query takes
};

struct Waiting {
    bool run(Host& host, const WaitRequest& request = {}) {
        const int before = left;
        const bool served = wait_loop<Waiter&>(Place{*this, host}, request).run();
        REQUIRE(left == joined);
        if (!request.stop.stop_requested()) REQUIRE(left == before + 1);
        return served;
    }

    // Gives the loop what is here, and the decisions of the host.
    struct Place {
        std::mutex& mutex() const { return at.mutex; }
        NotedReceiver& session() const { return at.receiver; }
        Waiter& waiter(const WaitRequest&) const { return at.me; }
        static int counted() { return 0; }
        void join(Waiter&) const { ++at.joined; }
        void leave(std::unique_lock<std::mutex>& lock, Waiter&) const {
            REQUIRE(lock.owns_lock());
            ++at.left;
        }
        NextStep next(Waiter& waiter, Instant now) const { return host.next(waiter, now); }
        Task<void> ask(std::unique_lock<std::mutex>& lock, Waiter& waiter, const WaitRequest& request) const {
            return host.ask(lock, waiter, request);
        }

        Waiting& at;
        Host& host;
    };

    std::mutex mutex;
    NotedReceiver receiver;
    Waiter me;
    int joined = 0;
    int left = 0;
};

}  // namespace

TEST_CASE("wait loop: a waiter asks until it is served") {
    Waiting waiting;
    Host host{.steps = {{Kind::ask}}, .served_at = 3};
    CHECK(waiting.run(host));
    CHECK(host.asked == 3);
}

TEST_CASE("wait loop: a query without success returns the waiter to the queue") {
    Waiting waiting;
    Host host{.steps = {{Kind::ask}, {Kind::leave}}};
    CHECK_FALSE(waiting.run(host));
    CHECK(host.asked == 1);
    CHECK(waiting.me.phase == Waiter::Phase::waiting);
}

TEST_CASE("wait loop: a waiter that fails while it asks throws the reason") {
    Waiting waiting;
    Host host{.steps = {{Kind::ask}}, .failed_at = 1};
    CHECK_THROWS_AS(waiting.run(host), std::runtime_error);
    CHECK(waiting.left == 1);
}

TEST_CASE("wait loop: a waiter that is served at its deadline counts as served") {
    Waiting waiting;
    waiting.me.phase = Waiter::Phase::served;
    Host host{.steps = {{Kind::sleep}}};
    CHECK(waiting.run(host, {.deadline = Clock::now() - 1s}));
}

TEST_CASE("wait loop: after the deadline or a stop request nothing is asked") {
    Waiting waiting;
    Host host{.steps = {{Kind::ask}}};
    CHECK_FALSE(waiting.run(host, {.deadline = Clock::now()}));
    std::stop_source source;
    source.request_stop();
    CHECK_FALSE(waiting.run(host, {.stop = source.get_token()}));
    CHECK(host.asked == 0);
}

TEST_CASE("wait loop: sleeps until the instant of the step, but not beyond the deadline") {
    Waiting waiting;
    const Instant begun = Clock::now();
    Host host{.steps = {{Kind::sleep, begun + 20ms}, {Kind::leave}}};
    CHECK_FALSE(waiting.run(host));
    CHECK(Clock::now() >= begun + 20ms);
    Host patient{.steps = {{Kind::sleep, begun + 1h}}};
    CHECK_FALSE(waiting.run(patient, {.deadline = Clock::now() + 20ms}));
}

TEST_CASE("wait loop: a waiter that may receive lends itself to the session once before it sleeps") {
    Waiting waiting;
    Host host{.steps = {{Kind::sleep, never, true}, {Kind::leave}}};
    CHECK_FALSE(waiting.run(host));
    CHECK(waiting.receiver.watched == 1);
    // Another thread receives: the waiter sleeps in its own slot, and tries again after it was woken.
    waiting.receiver.may_watch = false;
    const Instant soon = Clock::now() + 5ms;
    Host refused{
        .steps = {{Kind::sleep, soon, true}, {Kind::sleep, soon, true}, {Kind::sleep, soon, true}, {Kind::leave}}};
    CHECK_FALSE(waiting.run(refused));
    CHECK(waiting.receiver.watched == 3);
}

namespace {

const Settings usual = settings_of(ClientOptions{.command_timeout = 3s, .unreachable_timeout = 30s});
const WaitRequest unlimited{.settings = usual};

}  // namespace

TEST_CASE("patience: the first query gets a quarter of a second, whatever the deadline; later ones do not") {
    const Patience patience;
    const Instant now = Clock::now();
    const WaitRequest request{.deadline = now + 1ms, .settings = usual};
    CHECK(patience.give_up_at(request, true) >= now + 250ms);
    CHECK(patience.give_up_at(request, false) == request.deadline);
    CHECK(patience.give_up_at(WaitRequest{.deadline = now, .one_try = true, .settings = usual}, true) >= now + 3s);
}

TEST_CASE("patience: waiters share the time for which no server answered, but each gets a tenth of a second") {
    Patience patience;
    const Reply none = Reply::of(Reply::Kind::unanswered, "nothing");
    patience.failed(unlimited, Clock::now() - 20s, none);
    patience.failed(unlimited, Clock::now() - 1s, none);  // the first failure counts
    CHECK(patience.give_up_at(unlimited, false) <= Clock::now() + 10s);
    CHECK(patience.give_up_at(unlimited, false) >= Clock::now() + 9s);
    patience.answered();
    patience.failed(unlimited, Clock::now() - 40s, none);
    const Instant now = Clock::now();
    CHECK(patience.give_up_at(unlimited, false) >= now + 100ms);
    CHECK(patience.give_up_at(unlimited, false) <= now + 1s);
}

TEST_CASE("patience: a server that got less than its time is slow, not away") {
    Patience patience;
    const Reply no_time = Reply::of(Reply::Kind::no_time, "too little");
    patience.failed(unlimited, Clock::now() - 1s, no_time);
    CHECK(patience.give_up_at(unlimited, false) >= Clock::now() + 29s);
    const WaitRequest brief{.deadline = Clock::now(), .settings = usual};
    CHECK(patience.was_too_short(brief, Clock::now() - 1s, no_time, false));
    CHECK_FALSE(patience.was_too_short(brief, Clock::now() - 4s, no_time, false));
    const Reply unanswered = Reply::of(Reply::Kind::unanswered, "nothing");
    CHECK(patience.was_too_short(brief, Clock::now() - 1s, unanswered, true));
    CHECK_FALSE(patience.was_too_short(brief, Clock::now() - 1s, unanswered, false));
    CHECK_FALSE(patience.was_too_short(unlimited, Clock::now() - 1s, no_time, false));
}

TEST_CASE("patience: callers of one name share the time of the failure, each by its own settings") {
    Patience patience;
    const WaitRequest hasty{.settings = {.command_timeout = 1s, .unreachable_timeout = 25s}};
    const Instant now = Clock::now();
    patience.failed(hasty, now - 20s, Reply::of(Reply::Kind::unanswered, "nothing"));
    CHECK(patience.give_up_at(hasty, false) <= now + 5s);
    CHECK(patience.give_up_at(unlimited, false) >= now + 9s);
    CHECK(patience.give_up_at(WaitRequest{.one_try = true, .settings = hasty.settings}, true) < now + 3s);
}
