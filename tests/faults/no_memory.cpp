// SPDX-License-Identifier: MIT
// ctest: timeout=600
// One allocation fails, each one in turn. The caller gets std::bad_alloc, an Error, or what it asked for. No guard
// throws, no hold stays without an owner that knows of it, and the same objects continue to work.
#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "faults/failing_memory.hpp"
#include "faults/fault_kit.hpp"
#include "support/coroutine.hpp"
#include "support/internals.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

ClientOptions with_time_to_reply() {
    ClientOptions options = quick();
    options.command_timeout = paced(1000ms);
    return options;
}

struct Place {
    explicit Place(RedisServerOptions options = {})
        : server(std::move(options)), redis(server), other(server.url(), quick()) {}

    // Returns true if no hold or permit is left. Marks and tokens, which stay for a while, do not count.
    bool is_clean() {
        return redis.integer("EVAL", R"lua(
            local left = 0
            for _, key in ipairs(redis.call('keys', '*')) do
                local mark = string.find(key, 'requests') or string.find(key, 'latch_round') or
                             string.find(key, 'lock_token')
                if not mark then left = left + 1 end
            end
            return left)lua",
                             0) == 0;
    }

    RedisServer server;
    RawRedis redis;
    Client other;
};

// Calls round(n), which lets the n-th allocation fail and returns whether there was one, until there is none. Returns how
// many failed. What other threads allocate differs from round to round: for them, several rounds have to agree.
template <class Round>
long fail_each_allocation(FailingMemory::Of of, Round round) {
    const int enough = of == FailingMemory::Of::others ? 5 : 1;
    long n = 0;
    for (int spared = 0; spared < enough;) {
        CAPTURE(n);
        REQUIRE(n < 2000);
        if (round(n)) {
            ++n;
            spared = 0;
        } else {
            ++spared;
        }
    }
    return n;
}

// Runs `use(object)` with a new client and object for each allocation that fails, until none fails any more.
template <class Object, class Prepare, class Use>
long fail_each(
    Place& place, const std::string& url, FailingMemory::Of of, Prepare prepare, Use use,
    std::function<void()> wipe = [] {}) {
    return fail_each_allocation(of, [&](long n) {
        std::optional<Client> client;
        std::optional<Object> object;
        bool struck = false;
        prepare();
        {
            FailingMemory memory{of, n};
            try {
                client.emplace(url, with_time_to_reply());
                object.emplace(*client, "orders");
                use(*object);
            } catch (const std::bad_alloc&) {
            } catch (const Error& error) {
                // The server never receives a truncated command.
                CHECK(error.code() != errc::rejected);
            }
            struck = memory.struck();
        }
        if (object) {
            prepare();
            const Stopwatch watch;
            REQUIRE_NOTHROW(use(*object));
            CHECK(watch.within(late + 3s));
        }
        object.reset();
        client.reset();
        wipe();  // deletes keys that are not holds
        // Released at once, as a rule; at the latest when its lease ends.
        CHECK(eventually([&] { return place.is_clean(); }, 5s));
        return struck;
    });
}

template <class Object, class Use>
long fail_each(Place& place, Use use) {
    return fail_each<Object>(
        place, place.server.url(), FailingMemory::Of::caller, [] {}, use);
}

template <class Lock>
void use_lock(Lock& lock) {
    std::unique_lock outer{lock};
    { const std::lock_guard inner{lock}; }
    if (lock.try_lock()) lock.unlock();
    if (lock.try_lock_for(2s, Lease{2s})) lock.unlock();
}

void use_mutex(Mutex& mutex) {
    { const std::lock_guard guard{mutex}; }
    if (mutex.try_lock()) mutex.unlock();
    if (mutex.try_lock_for(2s, Lease{2s})) mutex.unlock();
}

template <class Lock>
void ask_lock(Lock& lock) {
    {
        const std::lock_guard guard{lock};
        static_cast<void>(lock.is_locked());
        static_cast<void>(lock.hold_count());
        static_cast<void>(lock.remaining_lease());
        static_cast<void>(lock.lost().stop_requested());
        lock.force_unlock();
    }
    std::error_code ec;
    lock.unlock(ec);
}

}  // namespace

TEST_CASE("fault: the n-th allocation of the caller fails, in every operation of the locks") {
    Place place;
    CHECK(fail_each<RLock>(place, [](auto& lock) { use_lock(lock); }) > 5);
    CHECK(fail_each<RLock>(place, [](auto& lock) { ask_lock(lock); }) > 5);
    CHECK(fail_each<SpinLock>(place, [](auto& lock) { use_lock(lock); }) > 5);
    CHECK(fail_each<FencedLock>(place, [](auto& lock) { use_lock(lock); }) > 5);
    CHECK(fail_each<FairLock>(place, [](auto& lock) { use_lock(lock); }) > 5);
    CHECK(fail_each<FairLock>(place, [](auto& lock) { ask_lock(lock); }) > 5);
    CHECK(fail_each<ReadWriteLock>(place, [](auto& lock) { use_lock(lock); }) > 5);
    CHECK(fail_each<ReadWriteLock>(place, [](auto& lock) { use_lock(lock.read_lock()); }) > 5);
    CHECK(fail_each<ReadWriteLock>(place, [](auto& lock) { ask_lock(lock.read_lock()); }) > 5);
    CHECK(fail_each<Mutex>(place, use_mutex) > 5);
    CHECK(fail_each<Mutex>(place, [](auto& lock) { ask_lock(lock); }) > 5);
}

template <class Lock>
void use_operations(Lock& lock) {
    { const Hold hold = lock.hold(); }
    { const Hold hold = lock.try_hold_for(2s, Lease{2s}); }
    { const Hold hold = result_of(lock.async_lock().future()); }
    static_cast<void>(result_of(lock.hold().async_unlock().future()));
    result_of(lock.async_run([](const std::stop_token&) {}).future());
    static_cast<void>(result_of(lock.async_run([](const std::stop_token&) { return std::string(100, 'x'); }).future()));
}

TEST_CASE_TEMPLATE("fault: the n-th allocation fails, in holds and operations", Lock, RLock, FairLock, ReadWriteLock,
                   Mutex) {
    Place place;
    CHECK(fail_each<Lock>(place, [](auto& lock) { use_operations(lock); }) > 20);
    CHECK(fail_each<Lock>(
              place, place.server.url(), FailingMemory::Of::others, [] {}, [](auto& lock) { use_operations(lock); }) >
          20);
}

TEST_CASE_TEMPLATE("fault: the n-th allocation of the caller fails, in a lock over several locks: nothing stays held",
                   Several, MultiLock, RedLock) {
    constexpr bool red = std::is_same_v<Several, RedLock>;
    std::deque<Place> places(red ? 3 : 1);  // each member of a RedLock has a server of its own
    const auto is_clean = [&] {
        return std::all_of(places.begin(), places.end(), [](Place& place) { return place.is_clean(); });
    };
    // A server votes for a RedLock when it is older than the longest lease.
    for (Place& place : places)
        REQUIRE(eventually([&] { return !red || std::stoll(place.redis.info("server", "uptime_in_seconds")) >= 4; }));
    const auto each = [&](auto use, FailingMemory::Of of = FailingMemory::Of::caller) {
        return fail_each_allocation(of, [&](long n) {
            std::deque<Client> clients;
            for (Place& place : places) clients.emplace_back(place.server.url(), with_time_to_reply());
            RLock a{clients.front(), "a"}, b{clients[clients.size() / 2], "b"}, c{clients.back(), "c"};
            const std::vector<RLock*> members{&a, &b, &c};
            const auto made = [&] {
                if constexpr (red)
                    return std::make_unique<RedLock>(members, RedLockOptions{.longest_lease = 3s});
                else
                    return std::make_unique<MultiLock>(members);
            }();
            Several& all = *made;
            bool struck = false;
            {
                FailingMemory memory{of, n};
                try {
                    use(all);
                } catch (const std::bad_alloc&) {
                } catch (const Error&) {
                }
                struck = memory.struck();
            }
            // Check while client and locks live: their watchdog would keep a leftover hold alive.
            CHECK(eventually(is_clean, 5s));
            REQUIRE_NOTHROW(use(all));
            CHECK(eventually(is_clean, 5s));
            return struck;
        });
    };
    CHECK(each([](auto& lock) { use_lock(lock); }) > 20);
    if (!red) CHECK(each([](auto& lock) { ask_lock(lock); }) > 20);
    CHECK(each([](auto& lock) { use_operations(lock); }) > 20);
    CHECK(each([](auto& lock) { use_operations(lock); }, FailingMemory::Of::others) > 20);
    // Another client holds one member for a while.
    RLock blocker{places[places.size() / 2].other, "b"};
    CHECK(each([&](auto& lock) {
              blocker.lock(Lease{30ms});
              std::unique_lock guard{lock, std::defer_lock};
              static_cast<void>(guard.try_lock_for(5s));
          }) > 20);
}

TEST_CASE(
    "fault: the n-th allocation fails when a member is granted that nobody wants any more: it does not stay held") {
    Place place;
    // The lease is longer than the test waits, so only a release frees the lock.
    ClientOptions options = unhurried();
    options.watchdog_timeout = 10min;
    const long failures = fail_each_allocation(FailingMemory::Of::others, [&](long n) {
        Client client{place.server.url(), options};
        RLock orders{client, "orders"};
        MultiLock all{orders};
        all.lock();  // starts the threads
        all.unlock();
        place.server.stop();
        const auto sent = client.stats().commands;
        // A thread without a processor may come to its deadline before it sends anything.
        REQUIRE(eventually([&] { return !all.try_lock_for(1ms) && client.stats().commands > sent; }));
        bool struck = false;
        {
            FailingMemory memory{FailingMemory::Of::others, n};
            place.server.cont();
            // The reply to the acquire, then to its release.
            const bool released = eventually([&] { return client.stats().acquisitions == 2 && place.is_clean(); });
            CAPTURE(client.stats().acquisitions);
            CAPTURE(client.stats().commands - sent);
            CHECK(released);
            struck = memory.struck();
        }
        CHECK(eventually([&] { return place.is_clean(); }));
        REQUIRE(all.try_lock_for(20s));
        all.unlock();
        return struck;
    });
    CHECK(failures >= 3);
}

TEST_CASE("fault: the n-th allocation of the caller fails, in a wait for a release by others") {
    Place place;
    const auto wait = [&]<class Lock>(std::type_identity<Lock>) {
        Lock blocker{place.other, "orders"};
        return fail_each<Lock>(
            place, place.server.url(), FailingMemory::Of::caller, [&] { blocker.lock(Lease{30ms}); },
            [](Lock& lock) { static_cast<void>(lock.wait_release_for(5s)); });
    };
    CHECK(wait(std::type_identity<RLock>{}) > 5);
    CHECK(wait(std::type_identity<SpinLock>{}) > 5);
    CHECK(wait(std::type_identity<FairLock>{}) > 5);
}

TEST_CASE("fault: the n-th allocation of the caller fails, in a wait for each kind of lock") {
    Place place;
    const auto wait = [&]<class Lock>(std::type_identity<Lock>) {
        Lock blocker{place.other, "orders"};
        return fail_each<Lock>(
            place, place.server.url(), FailingMemory::Of::caller, [&] { blocker.lock(Lease{30ms}); },
            [](Lock& lock) {
                std::unique_lock guard{lock, std::defer_lock};
                static_cast<void>(guard.try_lock_for(5s));
            });
    };
    CHECK(wait(std::type_identity<RLock>{}) > 5);
    CHECK(wait(std::type_identity<SpinLock>{}) > 5);
    CHECK(wait(std::type_identity<FairLock>{}) > 5);
    CHECK(wait(std::type_identity<ReadWriteLock>{}) > 5);
    // This thread must not hold a Mutex twice.
    CHECK(fail_each<Mutex>(
              place, place.server.url(), FailingMemory::Of::caller,
              [&] {
                  place.redis.command({"SET", "orders", "a stranger", "PX", "30"});
              },
              [](Mutex& mutex) {
                  std::unique_lock guard{mutex, std::defer_lock};
                  static_cast<void>(guard.try_lock_for(5s));
              }) > 5);
}

TEST_CASE_TEMPLATE(
    "fault: the n-th allocation in a hand-over fails: the successor gets its turn, and nothing stays held", Lock, RLock,
    FencedLock, Mutex) {
    Place place;
    for (const auto of : {FailingMemory::Of::caller, FailingMemory::Of::others}) {
        CAPTURE(static_cast<int>(of));
        std::uint64_t handoffs = 0;
        const long failures = fail_each_allocation(of, [&](long n) {
            Client client{place.server.url(), with_time_to_reply()};
            Lock lock{client, "orders"};
            lock.lock();
            auto successor = start([&] {
                try {
                    std::unique_lock guard{lock, 10s};
                    return guard.owns_lock();
                } catch (const std::bad_alloc&) {
                    return of == FailingMemory::Of::others;
                }
            });
            REQUIRE(eventually([&] { return client.stats().waits == 1; }));
            ready(successor, 5ms);  // its first question, as a rule
            bool struck = false;
            {
                FailingMemory memory{of, n};
                CHECK_NOTHROW(lock.unlock());
                CHECK(ready(successor, late + 3s));
                struck = memory.struck();
            }
            CHECK(successor.get());
            handoffs += client.stats().handoffs;
            CHECK(eventually([&] { return place.is_clean(); }, 5s));
            REQUIRE(lock.try_lock_for(5s));
            lock.unlock();
            return struck || handoffs == 0;  // continues until there was a hand-over
        });
        CHECK(failures > 0);
    }
}

TEST_CASE("fault: the n-th allocation of the caller fails, in every operation of semaphores and latches") {
    Place place;
    const auto wipe = [&] { place.redis.call("FLUSHALL"); };
    const auto each = [&]<class Object>(std::type_identity<Object>, auto use) {
        return fail_each<Object>(place, place.server.url(), FailingMemory::Of::caller, wipe, use, wipe);
    };
    CHECK(each(std::type_identity<Semaphore>{}, [](auto& seats) {
              seats.try_set_permits(3);
              seats.acquire(2);
              seats.release(2);
              static_cast<void>(seats.try_acquire());
              static_cast<void>(seats.try_acquire_for(1ms, 5));
              seats.add_permits(1);
              static_cast<void>(seats.available_permits());
              static_cast<void>(seats.drain_permits());
          }) > 5);
    CHECK(each(std::type_identity<PermitExpirableSemaphore>{}, [](auto& slots) {
              slots.try_set_permits(30);
              const auto id = slots.acquire();
              const auto many = slots.acquire(9, Lease{10s});
              slots.update_lease(id, Lease{10s});
              static_cast<void>(slots.remaining_lease(id));
              slots.release(id);
              slots.release(many);
              static_cast<void>(slots.try_acquire_for(1ms, 40));
              slots.set_permits(1);
              static_cast<void>(slots.permits());
          }) > 5);
    CHECK(each(std::type_identity<CountDownLatch>{}, [](auto& gate) {
              gate.try_set_count(3);
              gate.count_down();
              static_cast<void>(gate.wait_for(1ms));
              static_cast<void>(gate.count());
              gate.count_down(2);
              gate.wait();
              gate.reset();
          }) > 5);
}

TEST_CASE("fault: the n-th allocation in an acquire of permits fails, and no permit is missing") {
    Place place;
    const auto take = [](auto& permits) { return static_cast<bool>(permits.try_acquire_for(1s)); };
    const auto each = [&]<class Permits>(std::type_identity<Permits>) {
        Permits all{place.other, "seats"};
        for (long n = 0;; ++n) {
            CAPTURE(n);
            place.redis.call("FLUSHALL");
            all.try_set_permits(5);
            Client client{place.server.url(), with_time_to_reply()};
            Permits seats{client, "seats"};
            bool struck = false, taken = false;
            {
                FailingMemory memory{FailingMemory::Of::caller, n};
                try {
                    taken = take(seats);
                } catch (const std::bad_alloc&) {
                } catch (const Error&) {
                }
                struck = memory.struck();
            }
            CHECK(eventually([&] { return all.available_permits() == (taken ? 4 : 5); }));
            if (!struck) return n;
        }
    };
    CHECK(each(std::type_identity<Semaphore>{}) > 3);
    CHECK(each(std::type_identity<PermitExpirableSemaphore>{}) > 3);
}

TEST_CASE(
    "fault: the n-th allocation in the destructor of a permit fails: the permit comes back, with its lease at the "
    "latest") {
    Place place;
    PermitExpirableSemaphore all{place.other, "slots"};
    all.try_set_permits(3);
    for (const auto of : {FailingMemory::Of::caller, FailingMemory::Of::others}) {
        CAPTURE(static_cast<int>(of));
        const long failures = fail_each_allocation(of, [&](long n) {
            Client client{place.server.url(), with_time_to_reply()};
            PermitExpirableSemaphore slots{client, "slots"};
            std::optional<Permit> watched{std::in_place, slots};
            std::optional<Permit> leased{std::in_place, slots, Lease{2s}};
            REQUIRE(all.available_permits() == 1);
            bool struck = false;
            {
                FailingMemory memory{of, n};
                watched.reset();
                leased.reset();
                CHECK(eventually([&] { return all.available_permits() == 3; }, 5s));
                struck = memory.struck();
            }
            const Permit again{slots};
            CHECK(again.id());
            return struck;
        });
        // The other threads may well do without any memory.
        CHECK((failures > 0 || of == FailingMemory::Of::others));
    }
}

// Regression: it was taken for a reply that is not Redis protocol, after which no call is retried.
TEST_CASE("fault: no memory to read a reply: bad_alloc is thrown, and no protocol error is reported") {
    const std::string bytes = "*2\r\n$40\r\n" + std::string(40, 'x') + "\r\n-ERR " + std::string(40, 'y') + "\r\n";
    long n = 0;
    for (bool struck = true; struck; ++n) {
        ReplyReader reader;
        REQUIRE(reader.feed(bytes.data(), bytes.size()));
        Reply reply;
        bool is_said = false;
        bool is_read = false;
        {
            FailingMemory memory{FailingMemory::Of::caller, n};
            try {
                is_read = reader.next(reply) == ReplyReader::Outcome::reply;
            } catch (const std::bad_alloc&) {
                is_said = true;
            }
            struck = memory.struck();
        }
        CAPTURE(n);
        CHECK(is_said == struck);
        CHECK(is_read != struck);
    }
    CHECK(n > 3);
}

TEST_CASE(
    "fault: the n-th allocation of a thread of the library fails: holds are kept or reported, waiters get their turn") {
    Place place;
    ClientOptions options = quick();
    options.watchdog_timeout = paced(150ms);
    const long failures = fail_each_allocation(FailingMemory::Of::others, [&](long n) {
        RLock blocker{place.other, "blocked"};
        blocker.lock();
        EventLog log;
        Client client{place.server.url(), log.in(options)};
        RLock kept{client, "kept"}, gone{client, "gone"}, blocked{client, "blocked"};
        PermitExpirableSemaphore slots{client, "slots"};
        slots.try_set_permits(1);
        bool struck = false;
        {
            FailingMemory memory{FailingMemory::Of::others, n};
            kept.lock();
            gone.lock();
            const PermitId id = slots.acquire();
            const std::stop_token lost = gone.lost();
            auto waiter = start([&] {
                try {
                    std::unique_lock guard{blocked, 10s};
                    return guard.owns_lock();
                } catch (const std::bad_alloc&) {
                    return true;  // the failure hit this thread
                }
            });
            eventually([&] { return listeners(place.redis, "blocked") == 1; }, 100ms);
            place.redis.call("DEL", "gone");
            CHECK(eventually([&] { return lost.stop_requested(); }));
            blocker.unlock();
            CHECK(waiter.get());
            CHECK(eventually([&] { return client.stats().renewals > 2 || kept.lost().stop_requested(); }));
            // The end of a lease may not have been reported yet.
            CHECK(eventually([&] { return kept.lost().stop_requested() || place.redis.exists("kept"); }));
            static_cast<void>(slots.try_release(id));
            struck = memory.struck();
        }
        kept.unlock();
        gone.unlock();
        REQUIRE(kept.try_lock_for(5s));
        kept.unlock();
        place.redis.call("DEL", "slots", "{slots}:timeout");
        return struck;
    });
    CHECK(failures > 5);
}

// An operation that cannot begin throws, and nothing completes. Any other completes once.
TEST_CASE("fault: the n-th allocation of a thread that begins an operation fails") {
    Place place;
    RLock theirs{place.other, "orders"};
    for (const bool awaits : {false, true}) {
        CAPTURE(awaits);
        const long failures = fail_each_allocation(FailingMemory::Of::caller, [&](long n) {
            Hold first = theirs.hold(Lease{60s});
            std::atomic<int> completed{0};
            std::stop_source stop;
            Client client{place.server.url(), with_time_to_reply()};
            RLock orders{client, "orders"};
            const auto fiber = [&]() -> Fiber {
                try {
                    const Hold hold = co_await orders.async_lock(stop.get_token());
                } catch (const std::exception&) {  // it was cancelled, or could not begin
                }
                ++completed;
            };
            std::optional<Fiber> coroutine;
            bool begun = false;
            bool struck = false;
            {
                FailingMemory memory{FailingMemory::Of::caller, n};
                try {
                    if (awaits)
                        coroutine.emplace(fiber());
                    else
                        orders.async_lock(stop.get_token()).start([&](std::error_code, const Hold&) { ++completed; });
                    begun = true;
                } catch (const std::bad_alloc&) {
                }
                struck = memory.struck();
            }
            stop.request_stop();
            if (begun) CHECK(eventually([&] { return completed == 1; }));
            if (coroutine) CHECK(eventually([&] { return coroutine->done(); }));
            first = Hold();
            CHECK(eventually([&] { return place.is_clean(); }));
            CHECK(completed == (begun ? 1 : 0));
            return struck;
        });
        CHECK(failures > 5);
    }
}

TEST_CASE("fault: the n-th allocation of hiredis fails") {
    if (slow_build_factor > 1) return;
    Place place;
    CHECK(fail_each<RLock>(
              place, place.server.url(), FailingMemory::Of::hiredis, [] {}, [](auto& lock) { ask_lock(lock); }) > 3);
    RLock blocker{place.other, "orders"};
    CHECK(fail_each<RLock>(
              place, place.server.url(), FailingMemory::Of::hiredis, [&] { blocker.lock(Lease{30ms}); },
              [](auto& lock) {
                  std::unique_lock guard{lock, std::defer_lock};
                  static_cast<void>(guard.try_lock_for(5s));
              }) > 3);
}

namespace {

// A task that stops listening when it ends, as the state of a lock does.
struct Ear final : BackgroundTask {
    Ear(Subscriptions& s, std::atomic<bool>& e) : subscriptions(s), ends(e) { subscriptions.acquire("x", *this); }
    Ear(const Ear&) = delete;
    ~Ear() override {
        ends = true;
        subscriptions.remove("x", *this);
    }

    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}

    Subscriptions& subscriptions;
    std::atomic<bool>& ends;
};

}  // namespace

TEST_CASE(
    "fault: the listeners of a channel end while there is no memory to tell them of an event: nothing deadlocks") {
    using Event = std::function<void(Subscriptions&)>;
    const std::vector<Event> events{[](Subscriptions& s) { s.subscribed("x"); },
                                    [](Subscriptions& s) { s.message("x", "0"); },
                                    [](Subscriptions& s) { s.interrupted("x"); },
                                    [](Subscriptions& s) { s.disconnected(); },
                                    [](Subscriptions& s) { s.refused("x", Reply{}); },
                                    [](Subscriptions& s) { s.sweep(Clock::now() + Subscriptions::keep_warm + 1s); }};
    for (const Event& event : events)
        fail_each_allocation(FailingMemory::Of::caller, [&](long n) {
            Subscriptions subscriptions([](const std::string&, bool) {}, [] {});
            std::atomic<bool> ends{false};
            std::vector<std::shared_ptr<Ear>> ears;
            for (int i = 0; i < 3; ++i) ears.push_back(std::make_shared<Ear>(subscriptions, ends));
            for (const auto& ear : ears) subscriptions.release("x", *ear);
            std::atomic<bool> dropped{false};
            std::jthread dropper;
            // Another thread drops its references. It waits for the mutex if they are the last ones.
            const FailingMemory memory(FailingMemory::Of::caller, n, [&] {
                dropper = std::jthread([&] {
                    ears.clear();
                    dropped = true;
                });
                while (!dropped && !ends) std::this_thread::yield();
            });
            try {
                event(subscriptions);
            } catch (const std::bad_alloc&) {
            }
            return memory.struck();
        });
}
