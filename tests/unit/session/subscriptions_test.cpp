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

struct Bench {
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
    Bench bench;
    CHECK_FALSE(bench.subscriptions.acquire("x", *bench.a));
    CHECK_FALSE(bench.subscriptions.acquire("x", *bench.b));
    CHECK_FALSE(bench.subscriptions.acquire("y", *bench.b));
    CHECK(bench.asked == Words{"+x", "+y"});
    CHECK(bench.a->heard.empty());
    bench.subscriptions.subscribed("x");
    CHECK(bench.a->heard == Words{"subscribed"});
    CHECK(bench.b->heard == Words{"subscribed"});
}

TEST_CASE(
    "a listener that joins an unconfirmed subscription wakes the background, because perhaps no thread receives") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    const int before = bench.wakes;
    bench.subscriptions.acquire("x", *bench.b);
    CHECK(bench.wakes == before + 1);
    bench.subscriptions.subscribed("x");
    bench.subscriptions.acquire("x", *bench.b);
    CHECK(bench.wakes == before + 1);
}

TEST_CASE("a confirmed channel needs no further confirmation") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.subscribed("x");
    CHECK(bench.subscriptions.acquire("x", *bench.b));
    CHECK(bench.asked == Words{"+x"});
}

TEST_CASE("messages reach the listeners of their channel only") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.acquire("y", *bench.b);
    bench.subscriptions.message("x", "0");
    bench.subscriptions.message("y", "");
    bench.subscriptions.message("z", "0");
    CHECK(bench.a->heard == Words{"message 0"});
    CHECK(bench.b->heard == Words{"message "});
}

TEST_CASE("a channel stays subscribed for a while after its last waiter left") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.subscribed("x");
    CHECK(bench.subscriptions.due() == never);
    bench.subscriptions.release("x", *bench.a);
    CHECK(bench.wakes == 1);
    const Instant due = bench.subscriptions.due();
    CHECK(due <= Clock::now() + Subscriptions::keep_warm);
    CHECK(due > Clock::now());

    bench.subscriptions.sweep(Clock::now());
    CHECK(bench.asked == Words{"+x"});
    // The listener still gets messages, because one between two waits counts, too.
    bench.subscriptions.message("x", "0");
    CHECK(bench.a->heard == Words{"subscribed", "message 0"});
    CHECK(bench.subscriptions.acquire("x", *bench.a));
    CHECK(bench.asked == Words{"+x"});
}

TEST_CASE("a channel without active listeners is unsubscribed") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.subscribed("x");
    bench.subscriptions.release("x", *bench.a);
    bench.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(bench.asked == Words{"+x", "-x"});
    CHECK(bench.subscriptions.due() == never);
    // The next interest subscribes again.
    CHECK_FALSE(bench.subscriptions.acquire("x", *bench.a));
    CHECK(bench.asked == Words{"+x", "-x", "+x"});
}

TEST_CASE("a channel is kept while one of its listeners is active") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.acquire("x", *bench.b);
    bench.subscriptions.acquire("x", *bench.b);
    bench.subscriptions.release("x", *bench.a);
    bench.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(bench.asked == Words{"+x"});
    bench.subscriptions.release("x", *bench.b);
    bench.subscriptions.release("x", *bench.b);
    bench.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(bench.asked == Words{"+x", "-x"});
}

TEST_CASE("a listener whose channel is unsubscribed is notified as disconnected") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.subscribed("x");
    bench.subscriptions.release("x", *bench.a);
    bench.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(bench.a->heard == Words{"subscribed", "disconnected"});
}

TEST_CASE("a sweep keeps channels that became idle a moment ago, and is due again for them") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.release("x", *bench.a);
    const Instant first = bench.subscriptions.due();
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.release("x", *bench.a);
    bench.subscriptions.sweep(first);
    if (bench.asked.size() == 1) CHECK(bench.subscriptions.due() >= first);
    bench.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(bench.asked == Words{"+x", "-x"});
}

TEST_CASE("after a disconnection no channel is confirmed, and all listeners are notified") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.acquire("y", *bench.b);
    bench.subscriptions.subscribed("x");
    bench.subscriptions.disconnected();
    CHECK(bench.a->heard == Words{"subscribed", "disconnected"});
    CHECK(bench.b->heard == Words{"disconnected"});
    CHECK_FALSE(bench.subscriptions.acquire("x", *bench.a));
    // The transport subscribes again by itself.
    CHECK(bench.asked == Words{"+x", "+y"});
    bench.subscriptions.subscribed("x");
    CHECK(bench.a->heard.back() == "subscribed");
}

TEST_CASE("a refused channel is dropped, so the next interest subscribes again") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.acquire("x", *bench.b);
    bench.subscriptions.refused("x", Reply::of(Reply::Kind::error, "NOPERM x"));
    CHECK(bench.a->heard == Words{"refused NOPERM x"});
    CHECK(bench.b->heard == Words{"refused NOPERM x"});
    bench.subscriptions.release("x", *bench.a);
    CHECK_FALSE(bench.subscriptions.acquire("x", *bench.a));
    CHECK(bench.asked == Words{"+x", "-x", "+x"});
}

TEST_CASE("a forgotten listener gets no notification, and its channel is unsubscribed with the last one") {
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    bench.subscriptions.acquire("x", *bench.b);
    bench.subscriptions.remove("x", *bench.a);
    bench.subscriptions.message("x", "0");
    CHECK(bench.a->heard.empty());
    CHECK(bench.b->heard == Words{"message 0"});
    CHECK(bench.asked == Words{"+x"});
    bench.subscriptions.remove("x", *bench.b);
    CHECK(bench.asked == Words{"+x", "-x"});
    bench.subscriptions.remove("x", *bench.b);
    CHECK(bench.asked == Words{"+x", "-x"});
}

TEST_CASE("a listener whose last reference is gone gets no notification") {
    Bench bench;
    Ear going;
    bench.subscriptions.acquire("x", going);
    bench.subscriptions.subscribed("x");
    bench.subscriptions.message("x", "0");
    bench.subscriptions.disconnected();
    CHECK(going.heard.empty());
    bench.subscriptions.remove("x", going);
}

TEST_CASE("calls for an unknown channel are ignored") {
    Bench bench;
    bench.subscriptions.subscribed("x");
    bench.subscriptions.refused("x", {});
    bench.subscriptions.release("x", *bench.a);
    bench.subscriptions.remove("x", *bench.a);
    bench.subscriptions.sweep(Clock::now() + long_enough);
    CHECK(bench.asked.empty());
    CHECK(bench.wakes == 0);
}

TEST_CASE("two listeners on one channel count as several, so the background has to receive for one of them") {
    // A thread that waits for one side of a read-write lock may receive messages itself, while the other side waits,
    // too.
    Bench bench;
    bench.subscriptions.acquire("x", *bench.a);
    CHECK(bench.subscriptions.active() <= 1);
    bench.subscriptions.acquire("x", *bench.b);
    bench.subscriptions.acquire("x", *bench.b);
    CHECK(bench.subscriptions.active() > 1);
    bench.subscriptions.release("x", *bench.b);
    CHECK(bench.subscriptions.active() <= 1);
    bench.subscriptions.acquire("y", *bench.b);
    CHECK(bench.subscriptions.active() > 1);
    bench.subscriptions.remove("x", *bench.a);
    CHECK(bench.subscriptions.active() <= 1);
    bench.subscriptions.refused("y", Reply::of(Reply::Kind::error, "NOPERM"));
    bench.subscriptions.acquire("x", *bench.a);
    CHECK(bench.subscriptions.active() <= 1);
}

TEST_CASE("waiters with a channel each count as several, although one listener forwards all messages to them") {
    // As those of a fair lock: one that receives messages itself, and leaves, has to wake the background.
    Bench bench;
    const int first = 0, second = 0;
    bench.subscriptions.acquire("x", *bench.a, &first);
    CHECK(bench.subscriptions.active() == 1);
    bench.subscriptions.acquire("y", *bench.a, &second);
    CHECK(bench.subscriptions.active() == 2);
    bench.subscriptions.release("x", *bench.a);
    CHECK(bench.subscriptions.active() == 1);
    bench.subscriptions.acquire("x", *bench.a, &first);
    CHECK(bench.subscriptions.active() == 2);
    bench.subscriptions.remove("y", *bench.a);
    bench.subscriptions.remove("x", *bench.a);
    CHECK(bench.subscriptions.active() == 0);
}
