// SPDX-License-Identifier: MIT

// A lock on a majority of five servers: the cost of acquire and release, compared with a lock on one of them, and with
// one of the five frozen.
#include <deque>

#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {

using namespace redlatch::detail;

namespace {

constexpr std::size_t count = 5;
// A server that has been running for less gives no vote, so the first lock has to wait.
constexpr std::chrono::seconds lease{2};

using Urls = std::vector<std::string>;

class Servers {
public:
    explicit Servers(const std::string& link) {
        for (std::size_t i = 0; i < count; ++i) {
            const auto& server = servers_.emplace_back(test::RedisServerOptions{.tcp = true});
            urls_.push_back(link == "tcp" ? server.tcp_url() : server.url());
            looks_.emplace_back(server);
        }
    }

    const Urls& urls() const { return urls_; }

    // Returns the commands that clients have sent to the first `some` servers.
    std::uint64_t commands(std::size_t some) {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < some; ++i) sum += static_cast<std::uint64_t>(looks_[i].client_commands());
        return sum;
    }

    void freeze_last() { servers_.back().stop(); }

    // Returns when the server has executed all commands that were sent meanwhile.
    void thaw_last() {
        servers_.back().cont();
        for (auto before = commands(count);;) {
            std::this_thread::sleep_for(std::chrono::milliseconds{50});
            const auto after = commands(count);
            if (after == before) return;
            before = after;
        }
    }

private:
    std::deque<test::RedisServer> servers_;
    std::deque<test::RawRedis> looks_;
    Urls urls_;
};

// One connection for each server, and the five commands on their way at the same time: the lower bound.
class BareRedLock {
public:
    BareRedLock(const Urls& urls, const std::string& name) : scripts_(name, 0) {
        for (const std::string& url : urls) load_scripts(connections_.emplace_back(url));
    }

    void lock() { to_all(scripts_.acquire); }
    void unlock() { to_all(scripts_.release); }

private:
    void to_all(Words& words) {
        for (Connection& connection : connections_) {
            connection.append(words);
            connection.flush();
        }
        for (Connection& connection : connections_) connection.receive();
    }

    std::deque<Connection> connections_;
    BareScripts scripts_;
};

constexpr auto time_pairs = [](Seat& seat, auto& lock) {
    warm_up(lock);
    seat.start();
    while (seat.running()) {
        const auto asked = now_ns();
        lock.lock();
        lock.unlock();
        seat.worker().acquired(asked, now_ns());
        ++seat.worker().shared;  // no other thread wants it
    }
    seat.finish();
};

auto redlock_process(const Urls& urls, const std::string& name) {
    return [=](Crew& crew) {
        std::deque<Client> clients;
        std::deque<RLock> locks;
        std::vector<RLock*> members;
        for (const std::string& url : urls) {
            clients.emplace_back(url, ClientOptions{.watchdog_timeout = lease});
            members.push_back(&locks.emplace_back(clients.back(), name));
        }
        RedLock lock{members};
        crew.run([&](Seat& seat) { time_pairs(seat, lock); });
    };
}

auto bare_redlock_process(const Urls& urls, const std::string& name) {
    return [=](Crew& crew) {
        crew.run([&](Seat& seat) {
            BareRedLock lock{urls, name};
            time_pairs(seat, lock);
        });
    };
}

// A new name each time: commands sent to a frozen server take effect late.
std::string new_name() {
    static int number = 0;
    return "red:" + std::to_string(++number);
}

Slice one_slice(Bench& bench, Servers& servers, std::size_t living, const std::function<void(Crew&)>& process) {
    Fleet fleet;
    if (living < count) servers.freeze_last();
    fleet.add(1, process);
    const Slice slice = measure([&] { return servers.commands(living); }, fleet, bench.round_time());
    if (living < count) servers.thaw_last();
    return slice;
}

}  // namespace

bool redlock(Bench& bench, const std::string& link) {
    Servers servers{link};
    const Urls& five = servers.urls();
    std::vector<Subject> subjects{
        {"redlatch", [&] { return one_slice(bench, servers, count, redlock_process(five, new_name())); }},
        {"one_frozen", [&] { return one_slice(bench, servers, count - 1, redlock_process(five, new_name())); }},
        {"rlock_one_server",
         [&] { return one_slice(bench, servers, count, redlatch_process(five[0], own_key, time_pairs)); }},
        {"bare_hiredis", [&] { return one_slice(bench, servers, count, bare_redlock_process(five, new_name())); }}};
    alternate(subjects);

    const Setting setting{.scenario = "redlock", .link = link, .placement = "free", .threads = 1};
    for (const Subject& subject : subjects) {
        print(setting, subject.name, "pairs_per_second", each_round(subject, &Slice::per_second), "1/s");
        print(setting, subject.name, "longest_pair", each_round(subject, &Slice::longest_wait_ms), "ms");
        print(setting, subject.name, "commands_per_acquisition", each_round(subject, &Slice::commands_each),
              "commands");
    }
    const Subject& one = subjects[2];
    const Subject& bare = subjects[3];
    for (const Subject* red : {&subjects[0], &subjects[1]}) {
        print(setting, red->name, "ratio_to_one_server", ratio(*red, one, &Slice::per_second), "ratio");
        print(setting, red->name, "ratio_to_bare_hiredis", ratio(*red, bare, &Slice::per_second), "ratio");
    }
    return true;
}

}  // namespace redlatch::bench
