// SPDX-License-Identifier: MIT
// ctest: timeout=300 without=address
// Cuts the connection at every byte of work that no single call sends and waits for: hand-overs, renewals,
// subscriptions and their messages. Also cuts calls that get no second chance, whose outcome is settled only
// afterwards.
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "faults/cut_kit.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

std::string digest(const Script& script) { return std::string{script.digest()}; }

// Runs `work(fixture, number)` in several threads. Each has a fixture of its own on one server.
template <class Work>
void with_benches(int threads, CutReport& report, Work work) {
    RedisServer server;
    std::vector<std::thread> workers;
    for (int number = 0; number < threads; ++number)
        workers.emplace_back([&, number] {
            try {
                CutBench fixture{server, "cut" + std::to_string(number) + "x"};
                work(fixture, number);
            } catch (const std::exception& error) {
                report.add(error.what());
            }
        });
    for (std::thread& worker : workers) worker.join();
}

// --- calls that end during an outage --------------------------------------------------------------------------------

struct GivenUp {
    std::string what;
    std::string key;
    std::string request;
    std::function<void()> prepare;
    std::function<bool()> run;     // returns whether it is done; false: the call reported failure or an unknown outcome
    std::function<void()> undo;    // undoes what is done
    bool in_the_end_done = false;  // an abandoned call is completed in the background, not undone
};

// Each call has a key of its own. If the reply to one is lost, its later release would end the hold of another.
struct GivenUpWork {
    GivenUpWork(CutBench& fixture, const ClientOptions& options)
        : client(fixture.proxy.url(), options),
          lock(client, fixture.name + "lock"),
          fair(client, fixture.name + "fair"),
          both(client, fixture.name + "both"),
          seats(client, fixture.name + "seats"),
          slots(client, fixture.name + "slots"),
          gate(client, fixture.name + "gate") {
        const auto add_lock = [this](const std::string& kind, auto& one, const Script& acquire, const Script& release) {
            const auto take = [&one] { return one.try_lock_for(25ms); };
            const auto give = [&one] { one.unlock(); };
            const auto told = [&one] {
                std::error_code ec;
                return one.unlock(ec), !ec;
            };
            all.push_back({kind + " try_lock_for", one.name(), digest(acquire), [] {}, take, give});
            all.push_back({kind + " unlock", one.name(), digest(release), [&one] { one.lock(); }, told, [] {}, true});
        };
        add_lock("RLock", lock, digested<scripts::queue_acquire>, digested<scripts::queue_release>);
        add_lock("FairLock", fair, digested<scripts::fair_acquire>, digested<scripts::fair_release>);
        add_lock("ReadLock", both.read_lock(), digested<scripts::read_acquire>, digested<scripts::read_release>);
        add_lock("WriteLock", both.write_lock(), digested<scripts::write_acquire>, digested<scripts::write_release>);
        const auto ten = [this] { seats.try_set_permits(10); };
        all.push_back({"Semaphore try_acquire_for", seats.name(), digest(digested<scripts::semaphore_acquire>), ten,
                       [this] { return seats.try_acquire_for(25ms, 2); }, [this] { seats.release(2); }});
        all.push_back({"Semaphore release", seats.name(), digest(digested<scripts::semaphore_add>), ten,
                       [this] { return seats.release(2), true; }, [] {}, true});
        all.push_back({"PermitExpirableSemaphore try_acquire_for", slots.name(),
                       digest(digested<scripts::permit_acquire>), [this] { slots.try_set_permits(10); },
                       [this] { return !(ids = slots.try_acquire_for(25ms, 2)).empty(); },
                       [this] { slots.release(ids); }});
        all.push_back({"PermitExpirableSemaphore release", slots.name(), digest(digested<scripts::permit_release>),
                       [this] { slots.try_set_permits(10), ids = slots.acquire(2); },
                       [this] { return slots.release(ids), true; }, [] {}, true});
        all.push_back({"CountDownLatch count_down", gate.name(), digest(digested<scripts::count_down_latch_lower>),
                       [this] { gate.try_set_count(5); }, [this] { return gate.count_down(2), true; }, [] {}, true});
    }

    Client client;
    RLock lock;
    FairLock fair;
    ReadWriteLock both;
    Semaphore seats;
    PermitExpirableSemaphore slots;
    CountDownLatch gate;
    std::vector<PermitId> ids;
    std::vector<GivenUp> all;
};

ClientOptions calm() {
    ClientOptions options = quick();
    options.watchdog_timeout = 20s;
    return options;
}

// Gives up so early that a busy machine alone can be the reason.
ClientOptions hasty() {
    ClientOptions options = calm();
    options.unreachable_timeout = options.command_timeout = paced(40ms);
    return options;
}

// Returns how many bytes each call sends. The calls have long time-outs: an abandoned one continues in the background,
// where it would disturb the next.
std::vector<std::size_t> request_sizes(CutBench& fixture, CutReport& report) {
    std::vector<std::size_t> sizes;
    GivenUpWork work{fixture, calm()};
    for (const GivenUp& call : work.all) {
        std::size_t size = 0;
        const auto run = [&] {
            fixture.wipe();
            call.prepare();
            const auto begin = fixture.proxy.counts().bytes_to_server;
            const bool done = call.run();
            size = static_cast<std::size_t>(fixture.proxy.counts().bytes_to_server - begin);
            return done;
        };
        // Run twice: the server learns the script in the first run.
        for (int round = 0; round < 2; ++round) {
            if (!eventually(run, 10s)) report.add(call.what + " never succeeds");
            call.undo();
            fixture.wipe();
        }
        sizes.push_back(size);
    }
    return sizes;
}

template <class Call>
auto patiently(Call call) {
    // These clients have short time-outs, and have to settle their abandoned calls first.
    for (const Stopwatch watch;;) try {
            return call();
        } catch (const Error&) {
            if (!watch.within(10s)) throw;
        }
}

// Makes one call and cuts its connection. The server is unreachable until the call has returned.
void give_up(CutBench& fixture, const GivenUp& call, const ProxyRule& rule, CutReport& report, bool& struck) {
    patiently(call.prepare);
    const std::string before = fixture.picture_of(call.key);
    const auto dropped = fixture.proxy.counts().dropped;
    fixture.proxy.add(rule);
    fixture.proxy.refuse(true);
    bool done = false;
    const Stopwatch watch;
    try {
        done = call.run();
    } catch (const Error&) {
    }
    const auto took = watch.elapsed_ms();
    struck = fixture.proxy.counts().dropped == dropped + 1;
    fixture.proxy.clear_rules();
    fixture.proxy.refuse(false);
    const std::string where = call.what + ", byte " + std::to_string(rule.bytes) + ": ";
    if (took > late + 2s) report.add(where + "took " + std::to_string(took.count()) + " ms");
    if (done) try {
            call.undo();
        } catch (const Error&) {  // continues in the background
        }
    const auto settled = [&] {
        const std::string now = fixture.picture_of(call.key);
        return call.in_the_end_done ? now != before : now == before;
    };
    if (!eventually(settled, 10s)) report.add(where + "left " + fixture.picture_of(call.key) + " instead of " + before);
    if (struck) report.count(1);
    fixture.wipe();
}

}  // namespace

TEST_CASE("fault: connection cut at every byte, and the server unreachable until the call has given up") {
    CutReport report;
    constexpr int threads = 16;
    with_benches(threads, report, [&](CutBench& fixture, int number) {
        const std::vector<std::size_t> sizes = request_sizes(fixture, report);
        GivenUpWork work{fixture, hasty()};
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            const GivenUp& call = work.all[i];
            bool struck = false;
            const auto mine = [&](std::size_t byte) { return byte % threads == static_cast<std::size_t>(number); };
            for (std::size_t byte = 0; byte <= sizes[i]; ++byte)
                if (mine(byte))
                    give_up(fixture, call, {ProxyRule::Fault::drop_request, call.request, 1, 0, Then::close, byte},
                            report, struck);
            for (std::size_t byte = 0; byte < 12; ++byte)
                if (mine(byte))
                    give_up(fixture, call, {ProxyRule::Fault::drop_reply, call.request, 1, 0, Then::close, byte},
                            report, struck);
        }
    });
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts > 13 * 130);
    MESSAGE(report.cuts, " cuts");
}

TEST_CASE("fault: connection cut at every byte of a hand-over") {
    CutReport report;
    constexpr int threads = 4;
    with_benches(threads, report, [&](CutBench& fixture, int number) {
        RLock lock{fixture.far, fixture.name};
        std::uint64_t round = 0;
        const auto hand_over = [&](ProxyRule rule) {
            lock.lock();
            auto successor = start([&] {
                if (!lock.try_lock_for(20s)) return std::string{"not held"};
                RawRedis redis{fixture.server_url};
                const auto counts = hold_counts(redis, fixture.name);
                const bool good = lock.is_held() && counts == std::vector<std::string>{"1"};
                lock.unlock();
                return std::string{good ? "" : "held wrongly"};
            });
            ++round;
            eventually(
                [&] { return fixture.far.stats().waits >= round && listeners(fixture.redis, fixture.name) == 1; });
            const auto dropped = fixture.proxy.counts().dropped;
            fixture.proxy.add(rule);
            std::error_code ec;
            lock.unlock(ec);
            const std::string wrong = successor.get();
            if (ec || !wrong.empty()) report.add("byte " + std::to_string(rule.bytes) + ": " + ec.message() + wrong);
            const bool struck = fixture.proxy.counts().dropped == dropped + 1;
            fixture.proxy.clear_rules();
            // A place that is being left may have been granted the lock.
            if (!eventually([&] { return !fixture.redis.exists(fixture.name); }, 20s)) report.add("left behind");
            if (struck) report.count(1);
            return struck;
        };
        // If the next holder is just asking the server itself, the lock is not handed over. Then repeat.
        const auto cut = [&](ProxyRule::Fault fault, std::size_t byte) {
            for (int tries = 0; tries < 20; ++tries)
                if (hand_over({fault, hand_over_digest, 1, 0, Then::close, byte})) return;
            report.add("no hand-over to cut at byte " + std::to_string(byte));
        };
        for (auto byte = static_cast<std::size_t>(number); byte < 254; byte += threads)
            cut(ProxyRule::Fault::drop_request, byte);
        for (auto byte = static_cast<std::size_t>(number); byte < 4; byte += threads)
            cut(ProxyRule::Fault::drop_reply, byte);
    });
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts == 258);
}

TEST_CASE("fault: connection cut at every byte of a renewal") {
    CutReport report;
    constexpr int threads = 8;
    with_benches(threads, report, [&](CutBench& fixture, int number) {
        ClientOptions options = quick();
        options.watchdog_timeout = paced(450ms);
        Client client{fixture.proxy.url(), options};
        RLock lock{client, fixture.name};
        const auto cut = [&](ProxyRule rule) {
            if (!lock.is_held()) lock.lock();
            const auto dropped = fixture.proxy.counts().dropped;
            const auto renewals = client.stats().renewals;
            fixture.proxy.add(rule);
            const auto struck = [&] { return fixture.proxy.counts().dropped > dropped; };
            if (!eventually([&] { return struck() || lock.lost().stop_requested(); }, 5s))
                return report.add("not struck"), true;
            // The hold is renewed all the same. If the machine was too slow for that, it is reported lost.
            const auto well = [&] { return client.stats().renewals > renewals && lock.is_held(); };
            const auto told = [&] { return lock.lost().stop_requested() && client.stats().lost_holds > 0; };
            if (!eventually([&] { return well() || told(); }, 5s)) report.add("neither renewed nor told");
            // Read once: the key may go at any moment.
            const auto counts = hold_counts(fixture.redis, fixture.name);
            if (!counts.empty() && counts != std::vector<std::string>{"1"}) report.add("counted wrongly");
            const bool was_struck = struck();
            if (was_struck) report.count(1);
            fixture.proxy.clear_rules();
            if (lock.lost().stop_requested()) lock.unlock();
            return was_struck;
        };
        // Repeat if the machine stood still and the hold ended before it could be renewed.
        const auto cut_at = [&](ProxyRule::Fault fault, std::size_t byte) {
            for (int tries = 0; tries < 20; ++tries)
                if (cut({fault, renew_digest, 1, 0, Then::close, byte})) return;
        };
        lock.lock();
        for (auto byte = static_cast<std::size_t>(number); byte < 160; byte += threads)
            cut_at(ProxyRule::Fault::drop_request, byte);
        for (auto byte = static_cast<std::size_t>(number); byte < 8; byte += threads)
            cut_at(ProxyRule::Fault::drop_reply, byte);
        lock.unlock();
    });
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts >= 160);
}

namespace {

struct Waits {
    std::string what;
    std::function<void(CutBench&, const std::string&)> block;    // bypasses the proxy
    std::function<bool(CutBench&, const std::string&)> wait;     // goes through the proxy
    std::function<void(CutBench&, const std::string&)> unblock;  // bypasses the proxy
    std::size_t step = 1;  // between the bytes of replies and messages at which they are cut
};

// Waits for a lock that another client holds.
template <class L>
Waits waits_for(std::string what) {
    return {std::move(what),
            [](CutBench& b, const std::string& n) {
                L{b.near, n}.lock();
            },
            [](CutBench& b, const std::string& n) {
                L lock{b.far, n};
                const bool held = lock.try_lock_for(4s);
                if (held) lock.unlock();
                return held;
            },
            [](CutBench& b, const std::string& n) {
                L{b.near, n}.unlock();
            }};
}

}  // namespace

TEST_CASE("fault: connection cut at every byte of a subscription, of its confirmation and of the message") {
    const std::vector<Waits> all{
        waits_for<RLock>("RLock"),
        waits_for<FairLock>("FairLock"),
        waits_for<FencedLock>("FencedLock"),
        waits_for<ReadWriteLock>("ReadWriteLock, writer"),
        {"ReadWriteLock, reader",
         [](CutBench& b, const std::string& n) {
             ReadWriteLock{b.near, n}.lock();
         },
         [](CutBench& b, const std::string& n) {
             ReadWriteLock lock{b.far, n};
             const bool held = lock.try_lock_shared_for(4s);
             if (held) lock.unlock_shared();
             return held;
         },
         [](CutBench& b, const std::string& n) {
             ReadWriteLock{b.near, n}.unlock();
         }},
        {"PermitExpirableSemaphore",
         [](CutBench& b, const std::string& n) {
             PermitExpirableSemaphore{b.near, n}.try_set_permits(0);
         },
         [](CutBench& b, const std::string& n) {
             PermitExpirableSemaphore seats{b.far, n};
             const auto permit = seats.try_acquire_for(4s);
             if (permit) seats.release(*permit);
             return permit.has_value();
         },
         [](CutBench& b, const std::string& n) {
             PermitExpirableSemaphore{b.near, n}.add_permits(1);
         },
         16},  // a grant whose message is lost lasts for 2 s
        {"Semaphore",
         [](CutBench& b, const std::string& n) {
             Semaphore{b.near, n}.try_set_permits(0);
         },
         [](CutBench& b, const std::string& n) {
             return Semaphore{b.far, n}.try_acquire_for(4s);
         },
         [](CutBench& b, const std::string& n) {
             Semaphore{b.near, n}.release();
         }},
        {"CountDownLatch",
         [](CutBench& b, const std::string& n) {
             CountDownLatch{b.near, n}.try_set_count(1);
         },
         [](CutBench& b, const std::string& n) {
             return CountDownLatch{b.far, n}.wait_for(4s);
         },
         [](CutBench& b, const std::string& n) {
             CountDownLatch{b.near, n}.count_down();
         }},
    };
    CutReport report;
    with_benches(static_cast<int>(all.size()), report, [&](CutBench& fixture, int number) {
        const Waits& one = all[static_cast<std::size_t>(number)];
        const auto cut = [&](ProxyRule::Fault fault, std::size_t byte) {
            // A name of its own, so that the client subscribes to it again.
            const std::string name =
                fixture.name + std::to_string(byte) + (fault == ProxyRule::Fault::drop_reply ? "r" : "q");
            one.block(fixture, name);
            const auto dropped = fixture.proxy.counts().dropped;
            fixture.proxy.add({fault, "SUBSCRIBE", 1, 0, Then::close, byte});
            auto waiter = start([&] { return one.wait(fixture, name); });
            if (!eventually([&] { return fixture.redis.pubsub_channels("*" + name + "*").size() >= 1; }))
                report.add(one.what + " never subscribed at byte " + std::to_string(byte));
            // The cut may still be on its way to the server.
            one.unblock(fixture, name);
            if (!waiter.get()) report.add(one.what + " was not woken at byte " + std::to_string(byte));
            const bool struck = fixture.proxy.counts().dropped > dropped;
            fixture.proxy.clear_rules();
            if (struck) report.count(1);
            fixture.wipe();
            return struck;
        };
        for (std::size_t byte = 0; cut(ProxyRule::Fault::drop_request, byte) && byte < 100;) ++byte;
        std::size_t byte = 0;
        while (cut(ProxyRule::Fault::drop_reply, byte)) byte += one.step;
        if (byte < 60) report.add(one.what + ": replies were not cut");
    });
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts > 7 * 160);
    MESSAGE(report.cuts, " cuts");
}
