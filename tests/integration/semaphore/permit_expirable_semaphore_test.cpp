// SPDX-License-Identifier: MIT
// PermitExpirableSemaphore on a real server: ids, leases, the watchdog, keys and messages, and lost replies.
// ctest: in_memory
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/wait.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using HiredisPermits = PermitExpirableSemaphore;

const std::string channel = "redisson_sc:{seats}";
const std::string leases = "{seats}:timeout";

struct Fixture {
    explicit Fixture(std::ptrdiff_t permits = 0, const ClientOptions& options = {})
        : client(server.url(), options), seats(client, "seats") {
        if (permits > 0) seats.try_set_permits(permits);
    }

    std::string left() { return redis.text("GET", "seats"); }
    long long taken() { return redis.integer("ZCARD", leases); }

    RedisServer server;
    RawRedis redis{server};
    Client client;
    HiredisPermits seats;
};

#ifndef REDLATCH_TEST_IN_MEMORY
struct FaultyBench : Fixture {
    explicit FaultyBench(std::ptrdiff_t permits)
        : Fixture(permits), far_client(proxy.url(), {.command_timeout = 150ms}), far_seats(far_client, "seats") {
        for (const Script* script : {&digested<scripts::permit_acquire>, &digested<scripts::permit_take_back>,
                                     &digested<scripts::permit_release>, &digested<scripts::permit_set_lease>,
                                     &digested<scripts::permit_set_total>, &digested<scripts::semaphore_set>,
                                     &digested<scripts::semaphore_add>})
            redis.text("SCRIPT", "LOAD", script->text());
    }

    Proxy proxy{server.url()};
    Client far_client;
    HiredisPermits far_seats;
};
#endif

// Acquires a permit and dies. Arguments: URL, watchdog timeout in ms.
const Role dying{"permit holder that dies", [](std::span<const std::string> args) {
                     ClientOptions options;
                     options.watchdog_timeout = std::chrono::milliseconds(std::stoi(args[1]));
                     Client client{args[0], options};
                     HiredisPermits seats{client, "seats"};
                     static_cast<void>(seats.acquire());
                     ::raise(SIGKILL);
                     return 0;
                 }};

}  // namespace

// The result type of each overload.
static_assert(std::same_as<decltype(std::declval<HiredisPermits&>().acquire()), PermitId>);
static_assert(std::same_as<decltype(std::declval<HiredisPermits&>().acquire(Lease(1s))), PermitId>);
static_assert(std::same_as<decltype(std::declval<HiredisPermits&>().acquire(Lease::forever())), PermitId>);
static_assert(std::same_as<decltype(std::declval<HiredisPermits&>().acquire(2)), std::vector<PermitId>>);
static_assert(
    std::same_as<decltype(std::declval<HiredisPermits&>().acquire(std::stop_token())), std::optional<PermitId>>);
static_assert(!std::is_invocable_v<decltype([](auto& lock) -> decltype(lock.try_lock(Lease::forever())) {
                                       return lock.try_lock(Lease::forever());
                                   }),
                                   HiredisRLock&>);

TEST_CASE("permits are acquired and released by id") {
    Fixture fixture(3);
    const PermitId a = fixture.seats.acquire();
    const PermitId b = fixture.seats.acquire(Lease(10s));
    const auto c = fixture.seats.try_acquire(Lease::forever());
    REQUIRE(c);
    CHECK_FALSE(fixture.seats.try_acquire());
    CHECK_FALSE(fixture.seats.try_acquire_for(20ms));
    CHECK_FALSE(fixture.seats.try_acquire_until(std::chrono::system_clock::now()));
    CHECK(fixture.seats.available_permits() == 0);
    CHECK(fixture.seats.acquired_permits() == 3);
    CHECK(fixture.seats.permits() == 3);
    CHECK(fixture.seats.remaining_lease(a).value() > 20s);
    CHECK(fixture.seats.remaining_lease(b).value() <= 10s);
    CHECK(fixture.seats.remaining_lease(*c) == std::chrono::milliseconds::max());
    fixture.seats.release(a);
    CHECK_FALSE(fixture.seats.remaining_lease(a));
    CHECK(code_of([&] { fixture.seats.release(a); }) == errc::unknown_permit);
    CHECK_FALSE(fixture.seats.try_release(a));
    std::error_code ec;
    fixture.seats.release(a, ec);
    CHECK(ec == errc::unknown_permit);
    CHECK(fixture.seats.try_release(PermitId::parse(b.text())));
    fixture.seats.release(*c);
    // Who gave up may be granted one until its farewell arrives.
    CHECK(eventually([&] { return fixture.left() == "3" && fixture.taken() == 0; }));
}

TEST_CASE("several permits are acquired and released together, all or none") {
    Fixture fixture(4);
    const std::vector<PermitId> three = fixture.seats.acquire(3, Lease(10s));
    CHECK(three.size() == 3);
    CHECK(fixture.left() == "1");
    CHECK(fixture.seats.try_acquire(2).empty());
    CHECK(fixture.seats.try_acquire_for(10ms, 2, Lease(10s)).empty());
    std::vector<PermitId> wrong = three;
    wrong.push_back(PermitId::random());
    CHECK_FALSE(fixture.seats.try_release(wrong));
    CHECK(code_of([&] { fixture.seats.release(wrong); }) == errc::unknown_permit);
    CHECK(fixture.taken() == 3);
    fixture.seats.release(three);
    CHECK(eventually([&] { return fixture.left() == "4"; }));
    CHECK(fixture.seats.try_release(std::vector<PermitId>{}));
}

TEST_CASE("fault: number of permits changed while some are acquired: it takes effect") {
    Fixture fixture;
    CHECK(fixture.seats.permits() == 0);
    fixture.seats.set_permits(5);
    CHECK_FALSE(fixture.seats.try_set_permits(9));
    const auto two = fixture.seats.acquire(2);
    fixture.seats.set_permits(10);
    CHECK(fixture.seats.available_permits() == 8);
    fixture.seats.set_permits(1);
    CHECK(fixture.seats.available_permits() == -1);
    CHECK(fixture.seats.permits() == 1);
    fixture.seats.add_permits(3);
    CHECK(fixture.seats.available_permits() == 2);
    fixture.seats.release(two);
    CHECK(fixture.seats.permits() == 4);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a number of permits above Redisson's limit is refused, permits that are taken included") {
    Fixture fixture;
    constexpr std::ptrdiff_t most = HiredisPermits::max();
    const auto refused = [&](std::ptrdiff_t n) {
        return code_of([&] { fixture.seats.add_permits(n); }) == errc::invalid_argument;
    };
    // More than a command can carry is refused before anything is sent.
    CommandMonitor monitor(fixture.server);
    for (const std::ptrdiff_t n :
         {most + 1, -most - 1, std::numeric_limits<std::ptrdiff_t>::max(), std::numeric_limits<std::ptrdiff_t>::min()})
        CHECK(refused(n));
    CHECK(monitor.take_total() == 0);
    CHECK_FALSE(fixture.redis.exists("seats"));

    fixture.seats.set_permits(2);
    const auto ids = fixture.seats.acquire(2);
    CHECK(refused(most));
    CHECK(refused(most - 1));
    CHECK(fixture.left() == "0");
    fixture.seats.add_permits(most - 2);
    CHECK(refused(1));
    CHECK(fixture.left() == std::to_string(most - 2));
    fixture.seats.release(ids);
    CHECK(fixture.seats.available_permits() == most);
    CHECK(refused(1));
    fixture.seats.add_permits(-most);
    fixture.seats.add_permits(-most);
    CHECK(refused(-1));
    CHECK(fixture.left() == std::to_string(-most));
}

TEST_CASE("an invalid number of permits or lease is refused before anything is sent") {
    Fixture fixture;
    CommandMonitor monitor(fixture.server);
    const auto refused = [&](auto call) { return code_of(call) == errc::invalid_argument; };
    for (const std::ptrdiff_t n : {std::ptrdiff_t(-1), std::ptrdiff_t(0), HiredisPermits::max_at_once() + 1}) {
        CHECK(refused([&] { return fixture.seats.acquire(n); }));
        CHECK(refused([&] { return fixture.seats.try_acquire(n); }));
        CHECK(refused([&] { return fixture.seats.try_acquire_for(1s, n); }));
    }
    CHECK(refused([&] { fixture.seats.try_set_permits(-1); }));
    CHECK(refused([&] { fixture.seats.set_permits(-1); }));
    CHECK(refused([&] { return fixture.seats.acquire(Lease(0s)); }));
    CHECK(refused([&] { PermitId::parse("0123"); }));
    CHECK(refused([&] { PermitId::parse("0123456789abcdef0123456789abcdeg"); }));
    CHECK(monitor.take_total() == 0);
}
#endif

// Redisson stores 16 raw bytes as member, the end of the lease in ms as score, and a constant for "never".
TEST_CASE("the keys have the format that Redisson reads") {
    Fixture fixture(5);
    const PermitId id = fixture.seats.acquire(Lease(60s));
    CHECK(fixture.redis.list("ZRANGE", leases, 0, -1) == Words{std::string(id.bytes())});
    const auto score = fixture.redis.integer("ZSCORE", leases, id.bytes());
    CHECK(score <= fixture.redis.now() + 60'000);
    CHECK(score > fixture.redis.now() + 50'000);
    CHECK(id.text().size() == 32);
    fixture.seats.update_lease(id, Lease::forever());
    CHECK(fixture.redis.text("ZSCORE", leases, id.bytes()) == "922337203685477");
    // A permit that Redisson has stored can be released here.
    const std::string foreign = "0123456789abcdef";
    fixture.redis.call("DECRBY", "seats", 1);
    fixture.redis.call("ZADD", leases, fixture.redis.now() + 60'000, foreign);
    CHECK(fixture.seats.try_release(PermitId::parse("30313233343536373839616263646566")));
    CHECK(fixture.left() == "4");
}

TEST_CASE("a permit with an expired lease is available again, and cannot be released") {
    Fixture fixture(1);
    const Stopwatch watch;
    const PermitId id = fixture.seats.acquire(Lease(2s));
    CHECK_FALSE(fixture.seats.try_acquire());
    const PermitId next = fixture.seats.acquire(Lease(200ms));
    CHECK(watch.elapsed() >= 1990ms);
    CHECK(watch.within(2s + patient(2500ms)));  // before the waiter would retry by itself
    CHECK_FALSE(fixture.seats.try_release(id));
    CHECK(eventually([&] { return fixture.seats.available_permits() == 1; }, 20s));
    CHECK(code_of([&] { fixture.seats.update_lease(next, Lease(1s)); }) == errc::unknown_permit);
}

// Redisson's sweep fails for more than about 8,000 permits at once, and from then on every call fails.
TEST_CASE("fault: twenty thousand permits expired: all become available at once") {
    Fixture fixture(1);
    for (int i = 0; i < 20; ++i) {
        std::vector<std::string> words{"ZADD", leases};
        for (int k = 0; k < 1000; ++k) {
            words.push_back("1000");
            words.push_back(std::to_string(1'000'000 + i * 1000 + k));
        }
        fixture.redis.command(words);
    }
    CHECK(fixture.seats.available_permits() == 20'001);
    CHECK(fixture.seats.acquired_permits() == 0);
    CHECK(fixture.seats.try_acquire());
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("the watchdog keeps all permits, with one command per hundred") {
    Fixture fixture(200, with_watchdog(short_lease));
    CommandMonitor monitor(fixture.server);
    const auto many = fixture.seats.acquire(150);
    const PermitId limited = fixture.seats.acquire(Lease(short_lease / 2));
    REQUIRE(eventually([&] { return fixture.client.stats().renewals >= 450; }, 20s));
    CHECK(fixture.seats.acquired_permits() == 150);
    CHECK_FALSE(fixture.seats.remaining_lease(limited));
    // 150 permits need two commands per third of the timeout. The last ones may not be answered yet.
    std::uint64_t renewals_sent = 0;
    for (const std::string& line : monitor.take_lines())
        if (line.find(digested<scripts::permit_renew>.digest()) != std::string::npos) ++renewals_sent;
    auto renewals = fixture.client.stats().renewals;
    CHECK(renewals_sent >= 6);
    CHECK(renewals_sent <= renewals / 75 + 2);
    fixture.seats.release(many);
    CHECK(fixture.left() == "200");
    renewals = fixture.client.stats().renewals;
    std::this_thread::sleep_for(short_lease / 2);
    CHECK(fixture.client.stats().renewals == renewals);
}

TEST_CASE("renewal_batch: one command renews more permits") {
    ClientOptions options = with_watchdog(short_lease);
    options.renewal_batch = 150;
    Fixture fixture(200, options);
    CommandMonitor monitor(fixture.server);
    const auto many = fixture.seats.acquire(150);
    REQUIRE(eventually([&] { return fixture.client.stats().renewals >= 900; }, 20s));
    std::uint64_t renewals_sent = 0;
    for (const std::string& line : monitor.take_lines())
        if (line.find(digested<scripts::permit_renew>.digest()) != std::string::npos) ++renewals_sent;
    CHECK(renewals_sent >= 6);
    CHECK(renewals_sent <= fixture.client.stats().renewals / 150 + 2);
    fixture.seats.release(many);
}

TEST_CASE("fault: holder of a permit killed: its permit expires, and a waiter acquires it without a message") {
    Fixture fixture(1);
    auto child = spawn_self("permit holder that dies", {fixture.server.url(), "300"});
    REQUIRE(child.wait());
    const Stopwatch watch;
    const auto id = fixture.seats.try_acquire_for(20s);
    REQUIRE(id);
    CHECK(watch.within(patient(4s)));  // before the waiter would retry by itself
    fixture.seats.release(*id);
}
#endif

TEST_CASE("the loss of a permit under the watchdog is reported") {
    EventLog log;
    ClientOptions options = with_watchdog(short_lease);
    options.on_event = log.handler();
    Fixture fixture(2, options);
    const PermitId id = fixture.seats.acquire();
    const PermitId kept = fixture.seats.acquire();
    fixture.redis.call("ZREM", leases, id.bytes());
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }, 20s));
    CHECK(log.all().at(0).name == "seats");
    CHECK(log.all().at(0).detail.find(id.text()) != std::string::npos);
    CHECK(fixture.client.stats().lost_holds == 1);
    CHECK(fixture.seats.remaining_lease(kept));
}

TEST_CASE("a permit that gets its own lease is no longer renewed") {
    Fixture fixture(1, with_watchdog(short_lease));
    const PermitId id = fixture.seats.acquire();
    fixture.seats.update_lease(id, Lease(short_lease / 2));  // long enough that a renewal would come before its end
    CHECK(eventually([&] { return !fixture.seats.remaining_lease(id); }, 20s));
    CHECK(fixture.seats.available_permits() == 1);
}

TEST_CASE("releases and expired permits serve the waiting threads in order") {
    // A waiter for many permits holds the others back for a second, and lets them pass for the next one. A busy machine
    // may need some rounds.
    bool is_in_time = false;
    for (int round = 0; round < 10 && !is_in_time; ++round) {
        Fixture fixture(2);
        const auto both = fixture.seats.acquire(2);
        const Stopwatch watch;
        auto big = start_waiting(fixture.client, [&] { return fixture.seats.acquire(2, Lease(60s)); });
        auto small = start_waiting(fixture.client, [&] { return fixture.seats.try_acquire_for(20s); });
        fixture.seats.release(both[0]);
        const bool both_wait = !ready(big, 30ms) && !ready(small, 0ms);
        fixture.seats.release(both[1]);
        REQUIRE(eventually([&] { return ready(big, 0ms) || ready(small, 0ms); }));
        is_in_time = watch.elapsed() < 1s;
        if (!is_in_time) {
            fixture.seats.add_permits(2);
            REQUIRE(ready(big));
            REQUIRE(ready(small));
            continue;
        }
        CHECK(both_wait);
        REQUIRE(ready(big));
        const auto got = big.get();
        CHECK(got.size() == 2);
        CHECK_FALSE(ready(small, 20ms));
        fixture.seats.release(got);
        const auto id = small.get();
        REQUIRE(id);
        CHECK(fixture.seats.try_release(*id));
    }
    CHECK(is_in_time);
}

TEST_CASE("a caller that stays unserved beside another asks when the next lease ends") {
    Fixture fixture(2);
    Client other(fixture.server.url(), {.grants = false});  // a grant would serve one without a request of both
    HiredisPermits theirs(other, "seats");
    const PermitId kept = fixture.seats.acquire();
    REQUIRE(fixture.seats.try_acquire(Lease{1500ms}));
    auto one = start([&] { return theirs.try_acquire_for(4s).has_value(); });
    auto another = start([&] { return theirs.try_acquire_for(4s).has_value(); });
    REQUIRE(eventually([&] { return other.stats().waiting == 2; }, 20s));
    fixture.seats.release(kept);
    CHECK(one.get());
    CHECK(another.get());
}

TEST_CASE("a wait that is stopped is no error, and neither is a refusal") {
    Fixture fixture(2);
    std::stop_source stop;
    const auto all = fixture.seats.acquire(2);
    auto stopped = start_waiting(fixture.client, [&] { return fixture.seats.acquire(stop.get_token()); });
    stop.request_stop();
    CHECK_FALSE(stopped.get());
    std::error_code ec = errc::unsupported;
    CHECK_FALSE(fixture.seats.try_acquire(ec));
    CHECK_FALSE(ec);
}

TEST_CASE("messages contain the new number of permits") {
    Fixture fixture;
    Messages messages(fixture.server, channel);
    fixture.seats.try_set_permits(3);
    CHECK(messages.take() == Words{"3"});
    const auto ids = fixture.seats.acquire(2);
    CHECK(messages.take().empty());
    fixture.seats.release(ids);
    CHECK(messages.take() == Words{"3"});
    static_cast<void>(fixture.seats.acquire(
        Lease(2s)));  // If the reply came after its end, the permit would be released with a message.
    CHECK(eventually([&] { return fixture.seats.available_permits() == 3; }, 20s));
    CHECK(messages.take() == Words{"3"});
    fixture.seats.set_permits(2);
    CHECK(messages.take().empty());
    fixture.seats.set_permits(4);
    CHECK(messages.take() == Words{"4"});
}

TEST_CASE("a TTL on the semaphore holds for its leases, too, and all other keys expire") {
    Fixture fixture(3);
    fixture.redis.call("PEXPIRE", "seats", 100'000);
    const PermitId id = fixture.seats.acquire();
    CHECK(fixture.redis.pttl(leases) > 90'000);
    fixture.seats.add_permits(1);
    fixture.seats.release(id);
    for (const std::string& key : fixture.redis.list("KEYS", "*")) {
        CAPTURE(key);
        CHECK(fixture.redis.pttl(key) > 0);
        CHECK(fixture.redis.pttl(key) <= 120'000);
    }
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("fault: reply or request of a permit lost: each change takes effect once") {
    FaultyBench fixture(10);
    const auto strike = [&](const Script& script, bool reply, Then then) {
        const std::string digest{script.digest()};
        if (reply)
            fixture.proxy.drop_next_replies(1, digest, then);
        else
            fixture.proxy.drop_next_requests(1, digest, then);
    };
    for (const Then then : {Then::close, Then::silence})
        for (const bool reply : {true, false}) {
            CAPTURE(reply);
            strike(digested<scripts::permit_acquire>, reply, then);
            const auto ids = fixture.far_seats.acquire(3);
            CHECK(fixture.left() == "7");
            CHECK(fixture.taken() == 3);
            strike(digested<scripts::permit_release>, reply, then);
            fixture.far_seats.release(ids);
            CHECK(fixture.left() == "10");
            CHECK(fixture.taken() == 0);
        }
    const PermitId id = fixture.far_seats.acquire();
    strike(digested<scripts::permit_set_lease>, true, Then::close);
    fixture.far_seats.update_lease(id, Lease(20s));
    strike(digested<scripts::permit_set_total>, true, Then::close);
    fixture.far_seats.set_permits(20);
    strike(digested<scripts::permit_add>, true, Then::close);
    fixture.far_seats.add_permits(5);
    CHECK(fixture.left() == "24");
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("an acquire by id that is abandoned with an unknown outcome is undone") {
    FaultyBench fixture(4);
    const std::string digest{digested<scripts::permit_acquire>.digest()};
    const auto scripts_run = [&] { return fixture.redis.command_calls()["evalsha"]; };
    auto before = scripts_run();
    fixture.proxy.drop_next_replies(1, digest, Then::silence);
    // On a busy machine the time may be over before anything is sent, and the server may seem unreachable.
    std::error_code ec;
    REQUIRE(succeeds_once([&] {
        CHECK(fixture.far_seats.try_acquire_for(60ms, 3, ec).empty());
        return eventually([&] { return fixture.proxy.counts().matched == 1; }, 1s);
    }));
    // The acquire was executed, and its undo on another connection, too.
    REQUIRE(eventually([&] { return scripts_run() >= before + 2; }, 20s));
    CHECK(eventually([&] { return fixture.left() == "4" && fixture.taken() == 0; }, 20s));
    // It arrives after its undo.
    before = scripts_run();
    fixture.proxy.hold_next_requests(1, digest);
    REQUIRE(succeeds_once([&] {
        CHECK_FALSE(fixture.far_seats.try_acquire_for(60ms, Lease::forever(), ec));
        return eventually([&] { return fixture.proxy.counts().held == 1; }, 1s);
    }));
    REQUIRE(eventually([&] { return scripts_run() > before; }, 20s));
    const auto id = fixture.far_seats.try_acquire_for(20s);
    REQUIRE(id);
    fixture.proxy.release();
    REQUIRE(eventually([&] { return fixture.proxy.counts().held == 0; }, 20s));
    CHECK(fixture.far_seats.acquired_permits() == 1);
    CHECK(fixture.left() == "3");
}
#endif

TEST_CASE("a delayed acquire that arrives after the release of the permit takes no effect") {
    FaultyBench fixture(1);
    fixture.proxy.hold_next_requests(1, std::string(digested<scripts::permit_acquire>.digest()));
    const PermitId id = fixture.far_seats.acquire(Lease::forever());
    fixture.far_seats.release(id);
    fixture.proxy.release();
    REQUIRE(eventually([&] { return fixture.proxy.counts().held == 0; }, 20s));
    CHECK(fixture.far_seats.available_permits() == 1);
    CHECK(fixture.taken() == 0);
}

TEST_CASE("without memory an acquire by id is refused, but releases and renewals still work") {
    Fixture fixture(3, with_watchdog(short_lease));
    const PermitId id = fixture.seats.acquire();
    static_cast<void>(fixture.seats.acquire(Lease(200ms)));
    fixture.redis.call("CONFIG", "SET", "maxmemory", 1);
    Client hasty(fixture.server.url(), {.unreachable_timeout = 300ms});
    HiredisPermits more(hasty, "seats");
    // A last try without time for its reply reports only that there was none.
    CHECK(eventually([&] { return code_of([&] { return more.acquire(); }) == errc::overloaded; }, 20s));
    CHECK(eventually([&] { return fixture.seats.acquired_permits() == 1; }, 20s));
    CHECK(eventually([&] { return fixture.client.stats().renewals >= 3; }, 20s));
    CHECK(fixture.seats.remaining_lease(id));
    fixture.seats.release(id);
    CHECK(fixture.left() == "3");
}
#endif

TEST_CASE("keys of another type in a semaphore with leases are an error, and stay unchanged") {
    Fixture fixture;
    fixture.redis.call("RPUSH", "seats", "a");
    const auto wrong = [&](auto call) { return code_of(call) == errc::wrong_type; };
    CHECK(wrong([&] { fixture.seats.try_set_permits(1); }));
    CHECK(wrong([&] { fixture.seats.set_permits(1); }));
    CHECK(wrong([&] { return fixture.seats.acquire(); }));
    CHECK(wrong([&] { fixture.seats.available_permits(); }));
    fixture.redis.call("DEL", "seats");
    fixture.redis.call("SET", leases, "a");
    fixture.seats.try_set_permits(1);
    CHECK(wrong([&] { return fixture.seats.acquire(); }));
    CHECK(wrong([&] { fixture.seats.release(PermitId::random()); }));
    CHECK(fixture.left() == "1");
}

TEST_CASE("a Permit releases its permit") {
    Fixture fixture(2);
    {
        Permit one{fixture.seats};
        Permit two{fixture.seats, Lease(10s)};
        CHECK(one.id());
        CHECK(fixture.left() == "0");
        Permit moved = std::move(two);
        CHECK_FALSE(two.id());
        std::error_code ec;
        one.release(ec);
        CHECK_FALSE(ec);
        CHECK(fixture.left() == "1");
        // Lost meanwhile, but there is no exception.
        fixture.redis.call("DEL", leases);
    }
    CHECK(fixture.left() == "1");
    const PermitId id = Permit(fixture.seats).detach();
    CHECK(fixture.left() == "0");
    { const Permit again{fixture.seats, id}; }
    // The destructor does not wait for the reply.
    CHECK(eventually([&] { return fixture.left() == "1"; }, 20s));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a forked child renews no permit of its parent, and may release one") {
    Fixture fixture(2);
    const PermitId id = fixture.seats.acquire();
    auto child = ChildProcess::run([&] {
        const PermitId mine = fixture.seats.acquire();
        fixture.seats.release(mine);
        return fixture.seats.try_release(id) ? 0 : 1;
    });
    const auto status = child.wait();
    REQUIRE(status);
    CHECK(status->ok());
    CHECK(fixture.left() == "2");
}
#endif
