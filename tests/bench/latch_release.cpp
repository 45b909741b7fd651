// SPDX-License-Identifier: MIT

// A hundred threads of four processes wait for one event and have been asleep for a while: how soon do they continue?
#include <algorithm>
#include <cmath>

#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {

using namespace redlatch::detail;

namespace {

constexpr std::size_t processes = 4;
constexpr std::size_t threads_each = 25;
constexpr std::size_t waiters = processes * threads_each;
constexpr double usual_times = 10;  // in each round
const std::string name = "event";

struct Signals {
    Pipe begin;    // there is an event to wait for
    Pipe waiting;  // a waiter is about to wait
    Pipe back;     // the waiter has continued
};

// The same with a message, which no waiter may miss: it subscribes before it reports that it waits.
class Message {
public:
    explicit Message(const std::string& url) : connection_(url), publish_({"PUBLISH", name, "0"}) {}

    void listen() {
        Words subscribe{{"SUBSCRIBE", name}};
        connection_.call(subscribe);
    }
    void wait() { connection_.receive(); }
    void count_down() { connection_.call(publish_); }

private:
    Connection connection_;
    Words publish_;
};

auto waiter(const Signals& signals, int times) {
    return [&signals, times](Seat& seat, auto& event) {
        seat.start();
        Worker& worker = seat.worker();
        for (int i = 0; i < times; ++i) {
            signals.begin.get();
            const auto asked = now_ns();
            signals.waiting.put('w');
            event.wait();
            const auto gone_on = now_ns();
            const std::int64_t released_at = seat.shared().released_at;
            if (released_at < asked) ++worker.violations;
            worker.releases_ns[worker.release_count++] = gone_on - released_at;
            signals.back.put('b');
        }
        seat.finish();
    };
}

void get_from_all(const Pipe& pipe) {
    for (std::size_t i = 0; i < waiters; ++i) pipe.get();
}

// Waiting sends nothing, so a waiter that has sent nothing for a while is asleep.
void wait_until_quiet(test::RawRedis& redis) {
    for (auto before = redis.client_commands();;) {
        std::this_thread::sleep_for(std::chrono::milliseconds{50});
        const auto after = redis.client_commands();
        if (after == before) return;
        before = after;
    }
}

// Releases all waiters, `times` times.
auto releaser(const Signals& signals, int times, const std::string& url) {
    return [&signals, times, url](Seat& seat, auto& event) {
        constexpr bool is_latch = requires { event.try_set_count(1); };
        test::RawRedis redis{url};
        // The latch's script calls PUBLISH, too. Then it is no command of a client.
        const auto commands = [&] { return is_latch ? redis.client_commands() : redis.client_commands({"publish"}); };
        seat.start();
        for (int i = 0; i < times; ++i) {
            seat.shared().released_at = 0;
            if constexpr (is_latch) event.try_set_count(1);
            for (std::size_t w = 0; w < waiters; ++w) signals.begin.put('b');
            get_from_all(signals.waiting);
            wait_until_quiet(redis);
            const auto before = commands();
            seat.shared().released_at = now_ns();
            event.count_down();
            get_from_all(signals.back);
            seat.worker().release_commands += static_cast<std::uint64_t>(commands() - before);
        }
        seat.finish();
    };
}

template <class Body>
auto redlatch_latches(const std::string& url, Body body) {
    return [=](Crew& crew) {
        Client redis{url};
        CountDownLatch latch{redis, name};
        crew.run([&](Seat& seat) { body(seat, latch); });
    };
}

// Uses a connection for each thread.
template <class Body>
auto messages(const std::string& url, bool listens, Body body) {
    return [=](Crew& crew) {
        crew.run([&](Seat& seat) {
            Message message{url};
            if (listens) message.listen();
            body(seat, message);
        });
    };
}

Slice one_slice(Bench& bench, const std::function<void(Crew&)>& releasing, const std::function<void(Crew&)>& waiting) {
    bench.prepare();
    Fleet fleet;
    fleet.add(1, releasing);
    for (std::size_t i = 0; i < processes; ++i) fleet.add(threads_each, waiting);
    return measure(bench, fleet, {});
}

}  // namespace

bool latch_release(Bench& bench, const std::string& link) {
    const std::string url = bench.url(link);
    const int times = std::max(2, static_cast<int>(std::lround(usual_times * bench.share_of_usual())));
    const Signals signals;
    const auto releasing = releaser(signals, times, url);
    const auto waiting = waiter(signals, times);
    std::vector<Subject> subjects{
        {"redlatch",
         [&] { return one_slice(bench, redlatch_latches(url, releasing), redlatch_latches(url, waiting)); }},
        {"bare_publish",
         [&] { return one_slice(bench, messages(url, false, releasing), messages(url, true, waiting)); }}};
    alternate(subjects);

    const Setting setting{
        .scenario = "latch_release", .link = link, .placement = "free", .processes = processes, .waiters = waiters};
    bool waited = true;
    for (const Subject& subject : subjects) {
        print(setting, subject.name, "release_p50", each_round(subject, &Slice::release_p50_us), "us");
        print(setting, subject.name, "release_p99", each_round(subject, &Slice::release_p99_us), "us");
        print(setting, subject.name, "last_one", each_round(subject, &Slice::last_p50_us), "us");
        print(setting, subject.name, "commands_per_release", each_round(subject, &Slice::commands_each_release),
              "commands");
        print(setting, subject.name, "went_on_too_early", violations(subject), "count");
        waited &= violations(subject) == 0;
    }
    print(setting, "redlatch", "ratio_to_bare_publish", ratio(subjects[0], subjects[1], &Slice::last_p50_us), "ratio");
    return waited;
}

}  // namespace redlatch::bench
