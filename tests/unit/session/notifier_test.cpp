// SPDX-License-Identifier: MIT
// Notifier: the thread that runs the user's handlers.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

TEST_CASE("jobs run in order, on a separate thread") {
    Notifier notifier;
    std::vector<int> order;
    std::promise<std::thread::id> where;
    for (int i = 0; i < 10; ++i) notifier.notify([&order, i] { order.push_back(i); });
    notifier.notify([&] { where.set_value(std::this_thread::get_id()); });
    CHECK(where.get_future().get() != std::this_thread::get_id());
    CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("a job that throws does not stop the next one") {
    Notifier notifier;
    std::promise<void> ran;
    notifier.notify([] { throw std::runtime_error("on purpose"); });
    notifier.notify([] { throw 42; });
    notifier.notify([&] { ran.set_value(); });
    ran.get_future().get();
}

TEST_CASE("a job may enqueue another") {
    Notifier notifier;
    std::promise<void> ran;
    notifier.notify([&] { notifier.notify([&] { ran.set_value(); }); });
    ran.get_future().get();
}

TEST_CASE("the destructor waits for the running job") {
    std::promise<void> running;
    std::promise<void> go_on;
    bool finished = false;
    auto notifier = std::make_unique<Notifier>();
    notifier->notify([&] {
        running.set_value();
        go_on.get_future().get();
        finished = true;
    });
    running.get_future().get();
    std::promise<void> gone;
    std::thread end([&] {
        notifier.reset();
        gone.set_value();
    });
    auto is_gone = gone.get_future();
    CHECK(is_gone.wait_for(20ms) == std::future_status::timeout);
    go_on.set_value();
    is_gone.get();
    end.join();
    CHECK(finished);
}

TEST_CASE("a job may destroy the notifier that runs it") {
    std::promise<void> done;
    auto notifier = std::make_unique<Notifier>();
    Notifier& running = *notifier;
    running.notify([&, mine = std::make_shared<std::unique_ptr<Notifier>>(std::move(notifier))] {
        mine->reset();
        done.set_value();
    });
    done.get_future().get();
}

// Notes what becomes of it.
struct NotedJob final : Notifier::Job {
    void run() override { ++runs; }
    void end() noexcept override {
        ++ends;
        if (ends == 1 && again) again->notify(*this);
    }

    std::atomic<int> runs{0};
    std::atomic<int> ends{0};
    Notifier* again = nullptr;
};

TEST_CASE("a job that was made beforehand ends after it has run, and may be queued again from then on") {
    NotedJob job;  // outlives the thread that ends it
    Notifier notifier;
    job.again = &notifier;
    notifier.notify(job);
    CHECK(eventually([&] { return job.ends == 2; }));
    CHECK(job.runs == 2);
}

TEST_CASE("a job that is dropped ends without having run") {
    NotedJob first, second;
    std::promise<void> running, go_on;
    auto notifier = std::make_unique<Notifier>();
    notifier->notify([&] {
        running.set_value();
        go_on.get_future().get();
    });
    running.get_future().get();
    notifier->notify(first);
    notifier->notify(second);
    std::thread end([&] { notifier.reset(); });
    CHECK(eventually([&] { return first.ends + second.ends == 2; }));
    go_on.set_value();
    end.join();
    CHECK(first.ends == 1);
    CHECK(second.ends == 1);
    CHECK(first.runs + second.runs == 0);
}

// A notifier whose thread is busy until go_on().
struct BusyNotifier {
    BusyNotifier() {
        notifier->notify([this] {
            running.set_value();
            released.get_future().get();
        });
        running.get_future().get();
    }
    void go_on() { released.set_value(); }

    std::promise<void> running, released;
    std::unique_ptr<Notifier> notifier = std::make_unique<Notifier>();
};

TEST_CASE("jobs that came together end once each, although the notifier is destroyed while the first of them runs") {
    NotedJob first, second;
    BusyNotifier busy;
    std::promise<void> begun, go_on;
    busy.notifier->notify([&] {
        begun.set_value();
        go_on.get_future().get();
    });
    busy.notifier->notify(first);
    busy.notifier->notify(second);
    busy.go_on();
    begun.get_future().get();
    std::thread end([&] { busy.notifier.reset(); });
    // Whether the end has come before the jobs or not: each ends once.
    go_on.set_value();
    end.join();
    CHECK(first.ends == 1);
    CHECK(second.ends == 1);
    CHECK(second.runs <= first.runs);
}

TEST_CASE("a job that destroys the notifier that runs it drops those after it") {
    NotedJob after;
    BusyNotifier busy;
    std::promise<int> ends;
    busy.notifier->notify([&] {
        busy.notifier.reset();
        ends.set_value(after.ends);
    });
    busy.notifier->notify(after);
    busy.go_on();
    CHECK(ends.get_future().get() == 1);
    CHECK(after.runs == 0);
}
