// SPDX-License-Identifier: MIT
// Subscriptions: which tasks are notified of which channel, and for how long a channel is kept.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

using Words = std::vector<std::string>;

// Records its notifications.
struct Ear final : BackgroundTask {
    Words heard;

    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void subscribed(const std::string&) override { heard.push_back("subscribed"); }
    void subscription_refused(const std::string&, const Reply& why) override { heard.push_back("refused " + why.text); }
    void message(const std::string&, std::string_view payload) override {
        heard.push_back("message " + std::string(payload));
    }
    void disconnected(const std::string&) override { heard.push_back("disconnected"); }
};

struct Fixture {
    Words asked;
    int wakes = 0;
    Subscriptions subscriptions{
        [this](const std::string& channel, bool wanted) { asked.push_back((wanted ? "+" : "-") + channel); },
        [this] { ++wakes; }};
    std::shared_ptr<Ear> a = std::make_shared<Ear>();
    std::shared_ptr<Ear> b = std::make_shared<Ear>();
};

constexpr Milliseconds long_enough = Subscriptions::keep_warm + 1s;

}  // namespace

TEST_CASE("several listeners cause one subscription, and all are notified of its confirmation") {
    Fixture fixture;
    CHECK_FALSE(fixture.subscriptions.acquire("x", *fixture.a));
    CHECK_FALSE(fixture.subscriptions.acquire("x", *fixture.b));
    CHECK_FALSE(fixture.subscriptions.acquire("y", *fixture.b));
    CHECK(fixture.asked == Words{"+x", "+y"});
    CHECK(fixture.a->heard.empty());
    fixture.subscriptions.subscribed("x");
    CHECK(fixture.a->heard == Words{"subscribed"});
    CHECK(fixture.b->heard == Words{"subscribed"});
}

TEST_CASE(
    "a listener that joins an unconfirmed subscription wakes the background, because perhaps no thread receives") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    const int before = fixture.wakes;
    fixture.subscriptions.acquire("x", *fixture.b);
    CHECK(fixture.wakes == before + 1);
    fixture.subscriptions.subscribed("x");
    fixture.subscriptions.acquire("x", *fixture.b);
    CHECK(fixture.wakes == before + 1);
}

TEST_CASE("a confirmed channel needs no further confirmation") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.subscribed("x");
    CHECK(fixture.subscriptions.acquire("x", *fixture.b));
    CHECK(fixture.asked == Words{"+x"});
}

TEST_CASE("messages reach the listeners of their channel only") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.acquire("y", *fixture.b);
    fixture.subscriptions.message("x", "0");
    fixture.subscriptions.message("y", "");
    fixture.subscriptions.message("z", "0");
    CHECK(fixture.a->heard == Words{"message 0"});
    CHECK(fixture.b->heard == Words{"message "});
}

TEST_CASE("a channel stays subscribed for a while after its last waiter left") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.subscribed("x");
    CHECK(fixture.subscriptions.due() == never);
    fixture.subscriptions.release("x", *fixture.a);
    CHECK(fixture.wakes == 1);
    const Instant due = fixture.subscriptions.due();
    CHECK(due <= Clock::now() + Subscriptions::keep_warm);
    CHECK(due > Clock::now());

    fixture.subscriptions.sweep(Clock::now());
    CHECK(fixture.asked == Words{"+x"});
    // The listener still gets messages, because one between two waits counts, too.
    fixture.subscriptions.message("x", "0");
    CHECK(fixture.a->heard == Words{"subscribed", "message 0"});
    CHECK(fixture.subscriptions.acquire("x", *fixture.a));
    CHECK(fixture.asked == Words{"+x"});
}

TEST_CASE("a channel without active listeners is unsubscribed") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.subscribed("x");
    fixture.subscriptions.release("x", *fixture.a);
    fixture.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(fixture.asked == Words{"+x", "-x"});
    CHECK(fixture.subscriptions.due() == never);
    // The next interest subscribes again.
    CHECK_FALSE(fixture.subscriptions.acquire("x", *fixture.a));
    CHECK(fixture.asked == Words{"+x", "-x", "+x"});
}

TEST_CASE("a channel is kept while one of its listeners is active") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.acquire("x", *fixture.b);
    fixture.subscriptions.acquire("x", *fixture.b);
    fixture.subscriptions.release("x", *fixture.a);
    fixture.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(fixture.asked == Words{"+x"});
    fixture.subscriptions.release("x", *fixture.b);
    fixture.subscriptions.release("x", *fixture.b);
    fixture.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(fixture.asked == Words{"+x", "-x"});
}

TEST_CASE("a listener whose channel is unsubscribed is notified as disconnected") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.subscribed("x");
    fixture.subscriptions.release("x", *fixture.a);
    fixture.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(fixture.a->heard == Words{"subscribed", "disconnected"});
}

TEST_CASE("a sweep keeps channels that became idle a moment ago, and is due again for them") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.release("x", *fixture.a);
    const Instant first = fixture.subscriptions.due();
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.release("x", *fixture.a);
    fixture.subscriptions.sweep(first);
    if (fixture.asked.size() == 1) CHECK(fixture.subscriptions.due() >= first);
    fixture.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(fixture.asked == Words{"+x", "-x"});
}

TEST_CASE("after a disconnection no channel is confirmed, and all listeners are notified") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.acquire("y", *fixture.b);
    fixture.subscriptions.subscribed("x");
    fixture.subscriptions.disconnected();
    CHECK(fixture.a->heard == Words{"subscribed", "disconnected"});
    CHECK(fixture.b->heard == Words{"disconnected"});
    CHECK_FALSE(fixture.subscriptions.acquire("x", *fixture.a));
    // The transport subscribes again by itself.
    CHECK(fixture.asked == Words{"+x", "+y"});
    fixture.subscriptions.subscribed("x");
    CHECK(fixture.a->heard.back() == "subscribed");
}

TEST_CASE("a refused channel is dropped, so the next interest subscribes again") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.acquire("x", *fixture.b);
    fixture.subscriptions.refused("x", Reply::of(Reply::Kind::error, "NOPERM x"));
    CHECK(fixture.a->heard == Words{"refused NOPERM x"});
    CHECK(fixture.b->heard == Words{"refused NOPERM x"});
    fixture.subscriptions.release("x", *fixture.a);
    CHECK_FALSE(fixture.subscriptions.acquire("x", *fixture.a));
    CHECK(fixture.asked == Words{"+x", "-x", "+x"});
}

TEST_CASE("a forgotten listener gets no notification, and its channel is unsubscribed with the last one") {
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    fixture.subscriptions.acquire("x", *fixture.b);
    fixture.subscriptions.remove("x", *fixture.a);
    fixture.subscriptions.message("x", "0");
    CHECK(fixture.a->heard.empty());
    CHECK(fixture.b->heard == Words{"message 0"});
    CHECK(fixture.asked == Words{"+x"});
    fixture.subscriptions.remove("x", *fixture.b);
    CHECK(fixture.asked == Words{"+x", "-x"});
    fixture.subscriptions.remove("x", *fixture.b);
    CHECK(fixture.asked == Words{"+x", "-x"});
}

TEST_CASE("a listener whose last reference is gone gets no notification") {
    Fixture fixture;
    Ear going;
    fixture.subscriptions.acquire("x", going);
    fixture.subscriptions.subscribed("x");
    fixture.subscriptions.message("x", "0");
    fixture.subscriptions.disconnected();
    CHECK(going.heard.empty());
    fixture.subscriptions.remove("x", going);
}

TEST_CASE("calls for an unknown channel are ignored") {
    Fixture fixture;
    fixture.subscriptions.subscribed("x");
    fixture.subscriptions.refused("x", {});
    fixture.subscriptions.release("x", *fixture.a);
    fixture.subscriptions.remove("x", *fixture.a);
    fixture.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(fixture.asked.empty());
    CHECK(fixture.wakes == 0);
}

TEST_CASE("two listeners on one channel count as several, so the background has to receive for one of them") {
    // A thread that waits for one side of a read-write lock may receive messages itself, while the other side waits,
    // too.
    Fixture fixture;
    fixture.subscriptions.acquire("x", *fixture.a);
    CHECK(fixture.subscriptions.active() <= 1);
    fixture.subscriptions.acquire("x", *fixture.b);
    fixture.subscriptions.acquire("x", *fixture.b);
    CHECK(fixture.subscriptions.active() > 1);
    fixture.subscriptions.release("x", *fixture.b);
    CHECK(fixture.subscriptions.active() <= 1);
    fixture.subscriptions.acquire("y", *fixture.b);
    CHECK(fixture.subscriptions.active() > 1);
    fixture.subscriptions.remove("x", *fixture.a);
    CHECK(fixture.subscriptions.active() <= 1);
    fixture.subscriptions.refused("y", Reply::of(Reply::Kind::error, "NOPERM"));
    fixture.subscriptions.acquire("x", *fixture.a);
    CHECK(fixture.subscriptions.active() <= 1);
}

TEST_CASE("waiters with a channel each count as several, although one listener forwards all messages to them") {
    // As those of a fair lock: one that receives messages itself, and leaves, has to wake the background.
    Fixture fixture;
    const int first = 0, second = 0;
    fixture.subscriptions.acquire("x", *fixture.a, &first);
    CHECK(fixture.subscriptions.active() == 1);
    fixture.subscriptions.acquire("y", *fixture.a, &second);
    CHECK(fixture.subscriptions.active() == 2);
    fixture.subscriptions.release("x", *fixture.a);
    CHECK(fixture.subscriptions.active() == 1);
    fixture.subscriptions.acquire("x", *fixture.a, &first);
    CHECK(fixture.subscriptions.active() == 2);
    fixture.subscriptions.remove("y", *fixture.a);
    fixture.subscriptions.remove("x", *fixture.a);
    CHECK(fixture.subscriptions.active() == 0);
}
