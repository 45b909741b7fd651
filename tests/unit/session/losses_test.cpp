// SPDX-License-Identifier: MIT
// Losses: the thread that reports losses in time, whatever else happens, and without a step that could fail.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

struct Mortal final : BackgroundTask {
    explicit Mortal(Losses& l) : losses(l) {}
    ~Mortal() override { losses.timers().forget(*this); }

    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void expire(Instant now) override {
        if (failures > 0) {
            --failures;
            throw std::bad_alloc();
        }
        if (lost) losses.report(std::move(*lost));
        lost.reset();
        thread = std::this_thread::get_id();
        expired = now;
    }

    Losses& losses;
    std::optional<LossSource> lost;
    int failures = 0;
    std::atomic<std::thread::id> thread{};
    std::atomic<Instant> expired{Instant()};
};

// The state of a name with a hold that was not released.
struct Held final : NamedState {
    static constexpr StateMaker maker{"held", [](Session& session, const std::string& key) {
                                          return std::shared_ptr<NamedState>(std::make_shared<Held>(session, key));
                                      }};

    Held(Session& r, std::string k) : owner(r), name(std::move(k)) {}

    std::string_view kind() const noexcept override { return "held"; }
    const std::string& key() const noexcept override { return name; }
    Session& session() const noexcept override { return owner; }
    bool is_idle() override { return !lost; }

    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void abandon() noexcept override {
        owner.losses().report(std::move(*lost));
        lost.reset();
    }

    Session& owner;
    std::string name;
    std::optional<LossSource> lost;
};

}  // namespace

TEST_CASE("destroying a client with a hold reports its loss, whether the thread for that was started or not") {
    for (const bool with_thread : {true, false}) {
        CAPTURE(with_thread);
        ScriptedRedis redis;
        auto core = std::make_unique<SessionHandle>(
            std::make_unique<TransportPortOf<ScriptedTransport>>(redis.transport()), ClientOptions{});
        Held& held = static_cast<Held&>(core->session().use_state(Held::maker, "orders"));
        if (with_thread) core->session().start_losses();
        held.lost.emplace();
        const std::stop_token lost = held.lost->get_token();
        core->session().leave_state(held);
        CHECK_FALSE(lost.stop_requested());
        core.reset();
        CHECK(lost.stop_requested());
    }
}

TEST_CASE("a loss is reported when it is due, not before") {
    Losses losses;
    losses.start();
    const auto hold = std::make_shared<Mortal>(losses);
    hold->lost.emplace();
    const std::stop_token token = hold->lost->get_token();
    const Instant at = Clock::now() + 30ms;
    losses.timers().schedule(*hold, at);
    CHECK(eventually([&] { return token.stop_requested() && hold->expired.load() != Instant(); }));
    CHECK(hold->expired.load() >= at);
    CHECK(hold->thread.load() != std::this_thread::get_id());
}

TEST_CASE("an earlier deadline wakes the thread that sleeps until a later one") {
    Losses losses;
    losses.start();
    const auto late = std::make_shared<Mortal>(losses);
    const auto early = std::make_shared<Mortal>(losses);
    losses.timers().schedule(*late, Clock::now() + 1h);
    std::this_thread::sleep_for(5ms);  // Most likely it sleeps by now; the test is valid in either case.
    losses.timers().schedule(*early, Clock::now() + 1ms);
    CHECK(eventually([&] { return early->expired.load() != Instant(); }));
    CHECK(late->expired.load() == Instant());
}

TEST_CASE("a task that fails for lack of memory is retried soon, and delays no other") {
    Losses losses;
    const auto first = std::make_shared<Mortal>(losses);
    const auto second = std::make_shared<Mortal>(losses);
    first->failures = 3;
    const Instant at = Clock::now() + 1ms;
    losses.timers().schedule(*first, at);
    losses.timers().schedule(*second, at);
    losses.start();
    CHECK(eventually([&] { return first->expired.load() != Instant() && second->expired.load() != Instant(); }));
    CHECK(first->expired.load() >= second->expired.load());
}

// Holds that were renewed together are lost together: the first of ten thousand was reported after the last was
// checked.
TEST_CASE("of several losses at one instant each is reported before the next is checked") {
    Losses losses;
    const auto first = std::make_shared<Mortal>(losses);
    const auto second = std::make_shared<Mortal>(losses);
    first->lost.emplace();
    std::promise<bool> told;
    const std::stop_callback on_first{first->lost->get_token(),
                                      [&] { told.set_value(second->expired.load() == Instant()); }};
    const Instant at = Clock::now();
    losses.timers().schedule(*first, at - 1ms);
    losses.timers().schedule(*second, at);
    losses.start();
    CHECK(told.get_future().get());
    CHECK(eventually([&] { return second->expired.load() != Instant(); }));
}

TEST_CASE("the more holds there are, the earlier a loss is reported, because reporting to all takes longer") {
    Losses losses;
    const auto before = losses.notice();
    std::vector<std::shared_ptr<Mortal>> held;
    const auto hold_until = [&](std::size_t many) {
        while (held.size() < many) {
            held.push_back(std::make_shared<Mortal>(losses));
            losses.timers().schedule(*held.back(), Clock::now() + 1h);
        }
    };
    hold_until(10'000);
    CHECK(losses.notice() >= before + 50ms);
    CHECK(losses.notice(5000) >= losses.notice() + 40ms);
    hold_until(50'000);
    CHECK(losses.notice() == Lateness::longest_notice);
    held.clear();
    CHECK(losses.notice() == before);
}

TEST_CASE("a callback runs without any lock of the library, and may report further losses") {
    Losses losses;
    losses.start();
    LossSource first;
    LossSource second;
    std::promise<std::thread::id> told;
    const std::stop_callback on_second{second.get_token(), [&] { told.set_value(std::this_thread::get_id()); }};
    const std::stop_callback on_first{first.get_token(), [&] { losses.report(std::move(second)); }};
    losses.report(std::move(first));
    CHECK(told.get_future().get() != std::this_thread::get_id());
}

TEST_CASE("the destructor reports the remaining losses, whether the thread was started or not") {
    for (const bool with_thread : {true, false}) {
        CAPTURE(with_thread);
        std::vector<std::stop_token> tokens;
        {
            Losses losses;
            if (with_thread) losses.start();
            for (int i = 0; i < 100; ++i) {
                LossSource lost;
                tokens.push_back(lost.get_token());
                losses.report(std::move(lost));
            }
        }
        for (const std::stop_token& token : tokens) CHECK(token.stop_requested());
    }
}

TEST_CASE("the destructor waits for the running callback") {
    std::promise<void> running;
    std::promise<void> go_on;
    auto losses = std::make_unique<Losses>();
    losses->start();
    LossSource lost;
    bool finished = false;
    const std::stop_callback slow{lost.get_token(), [&] {
                                      running.set_value();
                                      go_on.get_future().get();
                                      finished = true;
                                  }};
    losses->report(std::move(lost));
    running.get_future().get();
    auto gone = std::async(std::launch::async, [&] { losses.reset(); });
    CHECK(gone.wait_for(20ms) == std::future_status::timeout);
    go_on.set_value();
    gone.get();
    CHECK(finished);
}

TEST_CASE("a callback may destroy the object that calls it, and the other losses are still reported") {
    auto losses = std::make_unique<Losses>();
    losses->start();
    LossSource first;
    LossSource second;
    std::promise<void> told;
    auto done = told.get_future();
    const std::stop_callback on_second{second.get_token(), [&] { told.set_value(); }};
    const std::stop_callback on_first{first.get_token(), [&] {
                                          losses->report(std::move(second));
                                          losses.reset();
                                      }};
    losses->report(std::move(first));
    done.get();
}

TEST_CASE("the notice is twice the recent lateness, within limits") {
    Lateness lateness;
    const Instant begin = Instant(1h);
    CHECK(lateness.notice() == 5ms);
    lateness.add(begin, begin + 1ms);
    CHECK(lateness.notice() == 5ms);
    lateness.add(begin, begin + 20ms);
    CHECK(lateness.notice() == 40ms);
    lateness.add(begin + 1s, begin + 1s + 10ms);
    CHECK(lateness.notice() == 40ms);
    lateness.add(begin, begin + 10h - 9h - 59min - 58s);
    CHECK(lateness.notice() == 200ms);
}

TEST_CASE("old lateness is forgotten") {
    Lateness lateness;
    const Instant begin = Instant(1h);
    lateness.add(begin, begin + 20ms);
    lateness.add(begin + 61s, begin + 61s + 3ms);
    CHECK(lateness.notice() == 40ms);
    lateness.add(begin + 125s, begin + 125s + 10ms);
    CHECK(lateness.notice() == 20ms);
    lateness.add(begin + 1h, begin + 1h + 1ms);
    CHECK(lateness.notice() == 5ms);
}

TEST_CASE("a late thread measures its lateness and increases the notice") {
    Losses losses;
    losses.start();
    const auto hold = std::make_shared<Mortal>(losses);
    hold->lost.emplace();
    const std::stop_callback slow{hold->lost->get_token(), [] { std::this_thread::sleep_for(30ms); }};
    CHECK(losses.notice() < 60ms);
    losses.timers().schedule(*hold, Clock::now());
    CHECK(eventually([&] { return losses.notice() >= 60ms; }));
}
