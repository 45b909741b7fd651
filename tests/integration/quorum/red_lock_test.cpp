// SPDX-License-Identifier: MIT
// RedLock: a majority of five healthy servers. red_lock_fault_test.cpp covers faulty ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/red_lock_kit.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"

using namespace redlatch::test;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::Command;
using redlatch::errc;
using redlatch::HiredisTransport;
using redlatch::Lease;
using redlatch::Owner;
using redlatch::RedLock;
using redlatch::RedLockOptions;
using redlatch::RLock;

namespace {

/// Shared by the tests here, each of which uses its own name.
Fleet& fleet() {
    static Fleet five{5, short_lease};
    return five;
}

ClientOptions options() { return with_watchdog(short_lease); }

}  // namespace

TEST_CASE("a RedLock is held on all servers, and released on all") {
    Party mine{fleet().urls(), "all", options()};
    Party theirs{fleet().urls(), "all", options()};
    CHECK(mine->name() == "all");
    {
        const std::lock_guard guard{*mine};
        CHECK(eventually([&] { return fleet().holders("all") == 5; }));
        // Parts that came after the majority are known to their clients only later.
        for (auto& lock : mine.locks) CHECK(eventually([&] { return lock.valid_until() > SteadyClock::now(); }));
        for (std::size_t i = 0; i < 5; ++i)
            CHECK(fleet().looks[i].hgetall("all") == Fields{{owner_of(mine.clients[i], mine.locks[i]), "1"}});
        CHECK(mine->is_locked());
        CHECK(mine->is_held());
        CHECK(mine->hold_count() == 1);
        CHECK(mine->remaining_lease() <= short_lease);
        CHECK_FALSE(mine->lost().stop_requested());
        CHECK_FALSE(theirs->try_lock());
        CHECK_FALSE(theirs->is_held());
        CHECK_FALSE(theirs->try_lock_for(50ms));
        CHECK_FALSE(elsewhere([&] { return mine->try_lock(); }));
    }
    CHECK(fleet().becomes_free("all"));
    CHECK_FALSE(mine->is_locked());
    CHECK_FALSE(mine->remaining_lease());
    CHECK(theirs->try_lock());
    theirs->unlock();
    CHECK(code_of([&] { theirs->unlock(); }) == errc::not_owner);
}

TEST_CASE("a majority is enough for a hold, a minority is not") {
    Party mine{fleet().urls(), "majority", options()};
    Party theirs{fleet().urls(), "majority", options()};
    theirs.locks[0].lock();
    theirs.locks[3].lock();
    CHECK_FALSE(mine->is_locked());
    CHECK(mine->try_lock());
    CHECK(mine->is_held());
    CHECK(mine->hold_count() == 1);
    CHECK(mine->try_lock());
    CHECK(mine->hold_count() == 2);
    mine->unlock();
    CHECK(mine->is_held());
    mine->unlock();
    CHECK(fleet().holders("majority") == 2);
    CHECK(theirs.locks[0].is_held());
    theirs.locks[4].lock();
    CHECK(mine->is_locked());
    CHECK_FALSE(mine->try_lock());
    CHECK_FALSE(mine->try_lock_for(30ms));
    CHECK_FALSE(mine->is_held());
    CHECK(eventually([&] { return fleet().holders("majority") == 3; }));
    for (const std::size_t i : {0U, 3U, 4U}) theirs.locks[i].unlock();
    CHECK(fleet().becomes_free("majority"));
}

TEST_CASE("the majority is two of three, and three of four") {
    for (const std::size_t size : {3U, 4U}) {
        Urls urls = fleet().urls();
        urls.resize(size);
        Party mine{urls, "few", options()};
        Party theirs{urls, "few", options()};
        theirs.locks[0].lock();
        CHECK(mine->try_lock());
        mine->unlock();
        theirs.locks[1].lock();
        CHECK_FALSE(mine->try_lock());
        theirs.locks[0].unlock();
        theirs.locks[1].unlock();
    }
}

TEST_CASE("every overload works on a RedLock") {
    Party mine{fleet().urls(), "forms", options()};
    Party theirs{fleet().urls(), "forms", options()};
    std::error_code ec = errc::rejected;
    std::stop_source stop;
    CHECK(mine->try_lock(ec));
    CHECK_FALSE(ec);
    mine->unlock(ec);
    CHECK_FALSE(ec);
    CHECK(mine->try_lock_for(5s, Lease{short_lease}));
    mine->unlock();
    CHECK(mine->try_lock_until(std::chrono::system_clock::now() + 5s, stop.get_token(), ec));
    CHECK(mine->force_unlock(ec));
    mine->unlock(ec);
    CHECK(ec == errc::hold_lost);
    theirs->lock();
    const auto begin = SteadyClock::now();
    CHECK_FALSE(mine->try_lock_for(700ms, ec));
    CHECK(SteadyClock::now() - begin >= 700ms);
    CHECK_FALSE(ec);
    auto waiting = start_waiting(mine, [&] { return mine->lock(stop.get_token()); });
    stop.request_stop();
    CHECK(ready(waiting));
    CHECK_FALSE(waiting.get());
    theirs->unlock();
    CHECK(fleet().becomes_free("forms"));
}

TEST_CASE("a hold is valid for its lease, less the time to acquire it and the drift of clocks") {
    Party mine{fleet().proxied(), "validity", options()};
    mine->lock();
    mine->unlock();
    const auto drift = short_lease / 100 + 2ms;
    for (Proxy& proxy : fleet().proxies) proxy.delay(60ms, 60ms);
    for (const bool with_lease : {false, true}) {
        // It counts from when the command was sent, which on a busy machine is some time after `begin`. The best of
        // some rounds.
        bool is_less = false;
        for (int round = 0; round < 10 && !is_less; ++round) {
            const auto begin = SteadyClock::now();
            if (with_lease)
                mine->lock(Lease{short_lease});
            else
                mine->lock();
            const auto took = SteadyClock::now() - begin;
            const auto until = mine->valid_until();
            CHECK(took >= 120ms);
            is_less = until <= begin + short_lease - drift + 1ms;
            CHECK(until >= begin + short_lease - drift - short_lease / 500 - 1ms);
            mine->unlock();
        }
        CHECK(is_less);
    }
    // The replies take longer than the lease: the lock is not held, and nothing is left.
    const auto shortest = 50ms;
    CHECK_FALSE(mine->try_lock(Lease{shortest}));
    CHECK_FALSE(mine->try_lock_for(300ms, Lease{shortest}));
    CHECK(mine->valid_until() == SteadyClock::time_point::min());
    for (Proxy& proxy : fleet().proxies) proxy.delay(0ms, 0ms);
    CHECK(fleet().becomes_free("validity"));
}

TEST_CASE("a lease ends the hold, and the watchdog keeps one without a lease") {
    Party mine{fleet().urls(), "lease", options()};
    mine->lock(Lease{short_lease});
    std::stop_token lost = mine->lost();
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    std::error_code ec;
    mine->unlock(ec);
    CHECK(ec == errc::hold_lost);
    mine->lock();
    lost = mine->lost();
    const auto until = mine->valid_until();
    CHECK(eventually([&] { return mine->valid_until() > until + 2 * short_lease; }, 20s));
    CHECK_FALSE(lost.stop_requested());
    mine->unlock(ec);
    CHECK_FALSE(ec);
    CHECK(fleet().becomes_free("lease"));
}

// Otherwise, members with longer leases hide that a server may get its vote back before they end.
TEST_CASE("a RedLock with a lease ends with it, although its members are held for longer") {
    Party mine{fleet().urls(), "own lease", options()};
    for (auto& lock : mine.locks) lock.lock(Lease{1h});
    mine->lock(Lease{short_lease});
    CHECK(mine->valid_until() < SteadyClock::now() + short_lease);
    const std::stop_token lost = mine->lost();
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    mine->unlock();
    for (auto& lock : mine.locks) lock.unlock();
    CHECK(fleet().becomes_free("own lease"));
}

TEST_CASE("two commands per server, and one more after each connection") {
    Party mine{fleet().urls(), "budget", options()};
    std::deque<CommandMonitor> monitors;
    for (RedisServer& server : fleet().servers) monitors.emplace_back(server);
    const auto lock_and_unlock = [&] {
        mine->lock(
            Lease{short_lease});  // A lease, because the watchdog might renew while this thread is slow to release.
        // Wait for all parts, also for that of a server that replies late.
        CHECK(eventually([&] { return fleet().holders("budget") == 5; }));
        for (auto& lock : mine.locks) CHECK(eventually([&] { return lock.valid_until() > SteadyClock::now(); }));
        mine->unlock();
        CHECK(fleet().becomes_free("budget"));
    };
    const auto sum = [&](const std::string& name) {
        long long all = 0;
        for (CommandMonitor& monitor : monitors) all += monitor.take()[name];
        return all;
    };
    lock_and_unlock();
    const long long asked = sum("info");
    CHECK(asked >= 5);
    CHECK(asked <= 10);
    lock_and_unlock();
    lock_and_unlock();
    sum("info");
    for (int i = 0; i < 5; ++i) lock_and_unlock();
    std::map<std::string, long long> calls;
    for (CommandMonitor& monitor : monitors)
        for (const auto& [name, count] : monitor.take())
            if (name != "exists") calls[name] += count;
    CHECK(calls == std::map<std::string, long long>{{"evalsha", 50}});
}

TEST_CASE("invalid options and members are refused") {
    Party mine{fleet().urls(), "refused", options()};
    auto& locks = mine.locks;
    RLock beside{mine.clients[0], "refused"};
    RLock other_name{mine.clients[0], "another"};
    CHECK(code_of([&] { RedLock lock(locks[0], beside); }) == errc::invalid_argument);
    CHECK(code_of([&] { RedLock lock(locks[1], locks[0], other_name); }) == errc::invalid_argument);
    CHECK(text_of_error([&] { RedLock lock(locks[0], beside); }).find("server of its own") != std::string::npos);
    CHECK(code_of([&] { RedLock lock(std::vector<HiredisRLock*>{}); }) == errc::invalid_argument);
    for (const RedLockOptions bad :
         {RedLockOptions{0ms, 0ms}, RedLockOptions{-1ms, 0ms}, RedLockOptions{2h, 0ms}, RedLockOptions{500ms, -1ms},
          RedLockOptions{500ms, short_lease - 1ms}, RedLockOptions{500ms, std::chrono::milliseconds::max()}})
        CHECK(code_of([&] { RedLock lock(bad, locks[0], locks[1], locks[2]); }) == errc::invalid_argument);
    RedLockOptions good{.node_timeout = 200ms, .longest_lease = short_lease};
    RedLock with_options(good, locks[0], locks[1], locks[2]);
    RedLock of_range(locks, good);
    CHECK(of_range.try_lock());
    CHECK(eventually([&] { return with_options.is_held(); }));  // at first perhaps on only one of its three
    of_range.unlock();

    CHECK(code_of([&] { mine->lock(Lease{short_lease + 1ms}); }) == errc::invalid_argument);
    CHECK(text_of_error([&] { mine->lock(Lease{1h}); }).find("longest_lease") != std::string::npos);
    CHECK(code_of([&] { mine->lock(Lease{2ms}); }) == errc::invalid_argument);
    std::error_code ec;
    CHECK_FALSE(mine->try_lock(Lease{short_lease * 2}, ec));
    CHECK(ec == errc::invalid_argument);
    CHECK(fleet().becomes_free("refused"));
}

TEST_CASE("members may be of any kind") {
    const auto works = []<class Lock>(Party<Lock>& mine, const std::string& name) {
        Party<Lock> theirs{fleet().urls(), name, options()};
        const std::lock_guard guard{*mine};
        CHECK(mine->is_held());
        CHECK_FALSE(theirs->try_lock());
        std::size_t held = 0;
        for (auto& lock : mine.locks) held += lock.is_held() ? 1U : 0U;
        CHECK(held >= 3);
    };
    Party<redlatch::FencedLock> fenced{fleet().urls(), "fenced", options()};
    works(fenced, "fenced");
    Party<redlatch::SpinLock> spin{fleet().urls(), "spin", options()};
    works(spin, "spin");
    Party<redlatch::FairLock> fair{fleet().urls(), "fair", options()};
    works(fair, "fair");
    Party<redlatch::ReadWriteLock> written{fleet().urls(), "written", options()};
    works(written, "written");
    for (const char* name : {"fenced", "spin", "fair", "written"}) CHECK(fleet().becomes_free(name));
}

TEST_CASE("members may be mutexes, the SET NX PX locks of the Redis documentation, and are not reentrant then") {
    using Mutexes = Party<redlatch::Mutex>;
    Mutexes mine{fleet().urls(), "mutexes", options()};
    Mutexes theirs{fleet().urls(), "mutexes", options()};
    fleet().looks[1].text("SET", "mutexes", "of another library", "PX", 60'000);
    {
        const std::lock_guard guard{*mine};
        CHECK(mine->is_held());
        CHECK_FALSE(theirs->try_lock());
        CHECK(code_of([&] { mine->lock(); }) == errc::would_deadlock);
        CHECK(mine->hold_count() == 1);
        const auto until = mine->valid_until();
        CHECK(eventually([&] { return mine->valid_until() > until + short_lease; }, 20s));
        auto waiting = start([&] {
            const std::lock_guard other{*theirs};
            return theirs->is_held();
        });
        CHECK_FALSE(ready(waiting, 50ms));
        mine->unlock();
        CHECK(ready(waiting));
        CHECK(waiting.get());
        mine->lock();
    }
    CHECK(fleet().looks[1].text("GETDEL", "mutexes") == "of another library");
    CHECK(fleet().becomes_free("mutexes"));
}

TEST_CASE("a release wakes a waiter") {
    Party mine{fleet().urls(), "wake", options()};
    Party theirs{fleet().urls(), "wake", options()};
    std::vector<SteadyClock::duration> delays;
    for (int round = 0; round < 8; ++round) {
        mine->lock();
        std::atomic<SteadyClock::time_point> entered{SteadyClock::time_point{}};
        auto waiting = start_waiting(theirs, [&] {
            const std::lock_guard guard{*theirs};
            entered = SteadyClock::now();
            return true;
        });
        const auto released = SteadyClock::now();
        mine->unlock();
        REQUIRE(ready(waiting));
        delays.push_back(entered.load() - released);
    }
    std::sort(delays.begin(), delays.end());
    CHECK(delays[4] < patient(500ms));
    CHECK(fleet().becomes_free("wake"));
}

TEST_CASE("of twenty clients that start together one wins, and then another, within a time limit") {
    constexpr int parties = 20;
    constexpr int turns = 3;
    const Stopwatch watch;
    PlainCounter counter;
    std::atomic<std::int64_t> longest_gap{0};
    std::atomic<SteadyClock::time_point> last{SteadyClock::now()};
    std::atomic<int> failed{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < parties; ++i)
            threads.emplace_back([&] {
                Party mine{fleet().urls(), "crowd", options(), {.node_timeout = patient(2s)}};
                for (int turn = 0; turn < turns; ++turn) {
                    std::error_code ec;
                    while (!mine->try_lock_for(60s, ec)) ++failed;
                    const auto now = SteadyClock::now();
                    const auto gap = now - last.load();
                    longest_gap = std::max(longest_gap.load(), std::int64_t{gap / 1ms});
                    counter.add_one_unseen();
                    last = SteadyClock::now();
                    mine->unlock();
                }
            });
    }
    CHECK(failed == 0);
    CHECK(counter.value() == parties * turns);
    MESSAGE("all turns in " << watch.elapsed_ms().count() << " ms, longest gap " << longest_gap.load() << " ms");
    CHECK(std::chrono::milliseconds{longest_gap} < 30s);
    CHECK(fleet().becomes_free("crowd"));
}

// --- a server's age ----------------------------------------------------------------------------------------------

namespace {

/// A transport that does not count its connections, and has none of the optional functions.
class Plain {
public:
    explicit Plain(const std::string& url) : inner_(redlatch::Url::parse(url)) {}
    explicit Plain(HiredisTransport inner) : inner_(std::move(inner)) {}

    redlatch::Reply call(const Command& command, redlatch::Instant deadline) { return inner_.call(command, deadline); }
    std::vector<redlatch::Reply> call_all(std::span<const Command> commands, redlatch::Instant deadline) {
        return inner_.call_all(commands, deadline);
    }
    void post(const Command& command, redlatch::Completion done) { inner_.post(command, std::move(done)); }
    void subscribe(const std::string& channel) { inner_.subscribe(channel); }
    void unsubscribe(const std::string& channel) { inner_.unsubscribe(channel); }
    void run(redlatch::Listener& listener, redlatch::Instant deadline) { inner_.run(listener, deadline); }
    void wake() { inner_.wake(); }
    std::uint32_t route(std::string_view key) const { return inner_.route(key); }
    std::string_view publish_command() const { return inner_.publish_command(); }
    Plain clone_after_fork() { return Plain(inner_.clone_after_fork()); }

private:
    HiredisTransport inner_;
};

}  // namespace

TEST_CASE("a transport that does not count its connections: the server's age is queried each time") {
    std::deque<redlatch::Client> clients;
    std::deque<redlatch::RLock> locks;
    for (const std::string& url : fleet().urls()) {
        clients.emplace_back(Plain(url), options());
        locks.emplace_back(clients.back(), "plain transport");
    }
    RedLock lock(locks, {.node_timeout = 5s});
    CommandMonitor monitor{fleet().servers[0]};
    long long asked = 0;
    for (int i = 0; i < 3; ++i) {
        const std::lock_guard guard{lock};
        CHECK(lock.is_held());
        // Three others are enough, and this one may be late.
        CHECK(eventually([&] { return (asked += monitor.take()["info"]) > i; }));
    }
    CHECK(fleet().becomes_free("plain transport"));
    CHECK(asked + monitor.take()["info"] == 3);
}

TEST_CASE("servers that refuse INFO: an error that names the reason, and no key is left") {
    Urls urls;
    for (std::size_t i = 0; i < 5; ++i) {
        fleet().looks[i].text("ACL", "SETUSER", "seller", "reset", "on", ">pw", "~*", "&*", "+@all", "-info");
        urls.push_back("unix://seller:pw@" + fleet().servers[i].socket_path());
    }
    Party mine{urls, "no info", options()};
    CHECK(code_of([&] { mine->lock(); }) == errc::rejected);
    const std::string text = text_of_error([&] { static_cast<void>(mine->try_lock()); });
    CAPTURE(text);
    CHECK(text.find("no info: ") == 0);
    CHECK(text.find("NOPERM") != std::string::npos);
    CHECK(text.find("info") != std::string::npos);
    CHECK(text.find("ACL") != std::string::npos);
    CHECK(fleet().becomes_free("no info"));
    // A minority of them does not matter.
    for (std::size_t i = 0; i < 3; ++i) fleet().looks[i].text("ACL", "SETUSER", "seller", "+info");
    // A part of the try before may still be under way, and count with its refusal.
    CHECK(eventually([&] {
        bool is_held = false;
        static_cast<void>(code_of([&] { is_held = mine->try_lock(); }));
        return is_held;
    }));
    mine->unlock();
    CHECK(fleet().becomes_free("no info"));
    for (RawRedis& look : fleet().looks) look.integer("ACL", "DELUSER", "seller");
}

TEST_CASE("threads of one owner share a RedLock; two owners exclude each other") {
    constexpr int threads = 6, turns = 8;
    Party mine{fleet().urls(), "owners", options()};
    PlainCounter counter;
    std::array<std::mutex, 2> within;
    std::atomic<int> wrong{0};
    std::vector<std::future<void>> all;
    for (std::size_t i = 0; i < threads; ++i)
        all.push_back(start([&, i] {
            const Owner owner{i % 2};
            for (int turn = 0; turn < turns; ++turn) {
                mine->lock(owner);
                {
                    const std::lock_guard guard{within[i % 2]};
                    counter.add_one();
                }
                std::error_code ec;
                mine->unlock(owner, ec);
                if (ec) ++wrong;
            }
        }));
    for (auto& thread : all) thread.get();
    CHECK(counter.value() == threads * turns);
    CHECK(wrong == 0);
    CHECK(fleet().becomes_free("owners"));
}
