// SPDX-License-Identifier: MIT
// Wall clocks that jump: the client's own, and the server's.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "faults/fault_kit.hpp"
#include "support/grants.hpp"
#include "support/server_clock.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

std::atomic<long> hours_ahead{0};

}  // namespace

// Replaces the system's function for everything in this program.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
    const long result = ::syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += hours_ahead * 3600;
    return static_cast<int>(result);
}

namespace {

// Moves the client's wall clock during its lifetime.
struct WallClockJump {
    explicit WallClockJump(long hours) {
        const auto before = std::chrono::system_clock::now();
        hours_ahead = hours;
        const auto jump = std::chrono::system_clock::now() - before;
        REQUIRE(std::chrono::abs(jump - std::chrono::hours(hours)) < 10s);
    }
    ~WallClockJump() { hours_ahead = 0; }
};

// A server whose wall clock can be moved.
class SkewedServer {
public:
    RedisServer& server() { return server_; }

    // Returns when the server's clock shows the jump.
    void jump(RawRedis& redis, std::chrono::seconds by) { REQUIRE(clock_.jump(redis, by)); }

private:
    ServerClock clock_;
    RedisServer server_{{.environment = clock_.environment(REDLATCH_CLOCK_SHIM)}};
};

// The only permit of a semaphore, as a lock.
template <class Seats>
class OnePermit {
public:
    OnePermit(Client& client, const std::string& name) : seats_(client, name) { seats_.try_set_permits(1); }

    void lock() {
        if constexpr (is_expirable)
            id_ = seats_.acquire();
        else
            seats_.acquire();
    }
    void unlock(std::error_code& ec) {
        if constexpr (is_expirable)
            static_cast<void>(seats_.try_release(*id_, ec));
        else
            seats_.release(1, ec);
    }

private:
    static constexpr bool is_expirable = std::is_same_v<Seats, PermitExpirableSemaphore>;
    Seats seats_;
    std::optional<PermitId> id_;
};

}  // namespace

TEST_CASE("fault: the client's wall clock jumps by an hour: holds, waits and permits are unaffected") {
    RedisServer server;
    RawRedis redis{server};
    const ClientOptions options = unhurried(paced(6s));
    for (const long hours : {1L, -1L}) {
        CAPTURE(hours);
        Client client{server.url(), options}, other{server.url(), options};
        RLock orders{client, "orders"}, theirs{other, "orders"};
        FairLock fair{client, "fair"}, their_fair{other, "fair"};
        PermitExpirableSemaphore slots{client, "slots"};
        slots.try_set_permits(1);
        orders.lock();
        fair.lock();
        const PermitId id = slots.acquire();
        auto waiter = start([&] { return theirs.try_lock_for(20s) && (theirs.unlock(), true); });
        auto in_queue = start([&] { return their_fair.try_lock_for(20s) && (their_fair.unlock(), true); });
        REQUIRE(eventually([&] { return listeners(redis, "orders") == 1; }));
        const WallClockJump jump{hours};
        const auto renewals = client.stats().renewals;
        REQUIRE(eventually([&] { return client.stats().renewals > renewals + 2; }, 3 * options.watchdog_timeout));
        CHECK_FALSE(ready(waiter, 0ms));
        CHECK_FALSE(ready(in_queue, 0ms));
        CHECK(orders.is_held());
        CHECK(fair.is_held());
        CHECK(slots.remaining_lease(id) <= options.watchdog_timeout);
        CHECK(client.stats().lost_holds == 0);
        // A wait until a time point of the shifted clock lasts as long as that clock implies.
        RLock blocked{other, "fair"};
        CHECK(eventually([&] {  // a busy machine may be late
            const Stopwatch watch;
            CHECK_FALSE(their_fair.try_lock_until(std::chrono::system_clock::now() + 100ms));
            CHECK(watch.elapsed() >= 100ms);
            return watch.within(100ms + late);
        }));
        orders.unlock();
        fair.unlock();
        slots.release(id);
        CHECK(waiter.get());
        CHECK(in_queue.get());
        redis.text("FLUSHALL");
    }
}

TEST_CASE(
    "fault: the server's clock jumps forward beyond the lease: the hold is reported lost, and tokens still grow") {
    SkewedServer skewed;
    RawRedis redis{skewed.server()};
    Client client{skewed.server().url(), quick()}, other{skewed.server().url(), unhurried()};
    FencedLock orders{client, "orders"}, theirs{other, "orders"};
    const auto token = orders.lock_and_get_token();
    const std::stop_token lost = orders.lost();
    skewed.jump(redis, 60s);
    CHECK(eventually([&] { return lost.stop_requested(); }, watchdog_timeout + late));
    REQUIRE(theirs.try_lock_for(5s));
    CHECK(theirs.token() > token);
    orders.unlock();
    CHECK(theirs.is_held());
    theirs.unlock();
}

TEST_CASE("fault: the server's clock jumps back: no hold is lost, waiters get their turn, and tokens still grow") {
    for (const auto by : {-60s, -3600s}) {
        SkewedServer skewed;
        RawRedis redis{skewed.server()};
        const ClientOptions options = unhurried(paced(4500ms));
        Client client{skewed.server().url(), options}, other{skewed.server().url(), quick()};
        FencedLock orders{client, "orders"}, theirs{other, "orders"};
        FairLock fair{client, "fair"}, their_fair{other, "fair"};
        const auto token = orders.lock_and_get_token();
        fair.lock();
        auto waiter = start([&] {
            if (!theirs.try_lock_for(20s)) return std::int64_t{0};
            const std::int64_t mine = theirs.token();
            theirs.unlock();
            return mine;
        });
        auto in_queue = start([&] { return their_fair.try_lock_for(20s) && (their_fair.unlock(), true); });
        REQUIRE(eventually([&] { return listeners(redis, "orders") == 1; }));
        skewed.jump(redis, by);
        const auto renewals = client.stats().renewals;
        CHECK(eventually([&] { return client.stats().renewals > renewals + 2; }, 3 * options.watchdog_timeout));
        CHECK(orders.is_held());
        CHECK_FALSE(orders.lost().stop_requested());
        orders.unlock();
        fair.unlock();
        REQUIRE(ready(waiter, patient(5s)));
        CHECK(waiter.get() > token);
        REQUIRE(ready(in_queue, patient(5s)));
        CHECK(in_queue.get());
    }
}

// Regression: the plain command named the end of the lease by the clock as it was before the jump. So the hold ended at
// once, while its holder relied on it for the whole lease.
TEST_CASE("fault: the server's clock jumps forward: a Mutex that is locked after the jump keeps others out") {
    SkewedServer skewed;
    RawRedis redis{skewed.server()};
    Client client{skewed.server().url(), unhurried()}, other{skewed.server().url(), unhurried()};
    Mutex mine{client, "orders"}, theirs{other, "orders"};
    mine.lock();  // now the client knows the server's clock
    mine.unlock();
    skewed.jump(redis, 60s);
    // A reading of the clock is good for a second: a jump within that is like one during the hold.
    std::this_thread::sleep_for(1001ms);
    mine.lock(Lease{20s});
    CHECK(mine.is_held());
    CHECK_FALSE(theirs.try_lock());
    std::error_code ec;
    mine.unlock(ec);
    CHECK_FALSE(ec);
}

// Regression: the process read the instant of the grant by the clock as it was before the jump, and relied on its hold for
// longer than the server kept it.
TEST_CASE_TEMPLATE("fault: a grant comes late, perhaps after a jump of the server's clock: no hold lasts too long", L,
                   RLock, FencedLock, FairLock, ReadWriteLock, ReadSide) {
    using Held = std::conditional_t<std::is_same_v<L, ReadSide>, ReadWriteLock, L>;
    // Without a jump the hold counts from the grant, not from its receipt. By the clock before a jump the grant comes from
    // the future, or seems to be younger than it is.
    for (const auto by : {0s, 2s, 1s}) {
        const auto delay = by == 0s ? 100ms : by == 2s ? 500ms : 1800ms;
        CAPTURE(delay.count());
        SkewedServer skewed;
        RawRedis redis{skewed.server()};
        Proxy proxy{skewed.server().url()};
        Client client{skewed.server().url(), unhurried()}, other{proxy.url(), unhurried()};
        Held mine{client, "orders"};
        L theirs{other, "orders"};
        mine.lock();
        auto waiter = start([&] {
            RawRedis look{skewed.server()};
            theirs.lock();
            const auto relies_until = valid_until_of(theirs);
            const std::chrono::milliseconds left{look.pttl("orders")};
            const auto lasts_until = std::chrono::steady_clock::now() + left;
            theirs.unlock();
            return relies_until <= lasts_until;
        });
        REQUIRE(can_be_granted<L>(redis, other, "orders"));
        commands_when_quiet(other);
        proxy.blackhole(true);
        if (by != 0s) skewed.jump(redis, by);
        mine.unlock();
        const std::vector<std::string> fields = redis.list("HKEYS", "orders");
        CHECK(std::any_of(fields.begin(), fields.end(),
                          [&](const std::string& field) { return field.starts_with(other.id()); }));
        std::this_thread::sleep_for(delay);
        proxy.blackhole(false);
        CHECK(waiter.get());
    }
}

TEST_CASE_TEMPLATE("fault: the server's clock jumps while clients queue: each of them gets its turn", L, RLock,
                   FencedLock, FairLock, ReadWriteLock, ReadSide, OnePermit<Semaphore>,
                   OnePermit<PermitExpirableSemaphore>) {
    using Held = std::conditional_t<std::is_same_v<L, ReadSide>, ReadWriteLock, L>;
    const std::string queue = queue_key_of<L>("orders");
    for (const auto by : {60s, -60s}) {
        CAPTURE(by.count());
        SkewedServer skewed;
        RawRedis redis{skewed.server()};
        const ClientOptions options = unhurried(paced(4500ms));
        Client client{skewed.server().url(), options};
        Held held{client, "orders"};
        held.lock();
        std::vector<std::unique_ptr<Client>> clients;
        std::vector<std::future<void>> waiters;
        for (int i = 1; i <= 3; ++i) {
            clients.push_back(std::make_unique<Client>(skewed.server().url(), options));
            waiters.push_back(start([&other = *clients.back()] {
                L lock{other, "orders"};
                std::error_code ec;
                lock.lock();
                lock.unlock(ec);
            }));
            REQUIRE(eventually([&] { return redis.integer("LLEN", queue) == i; }, 20s));
        }
        skewed.jump(redis, by);
        // A jump forward ends its lease.
        std::error_code ec;
        held.unlock(ec);
        for (auto& waiter : waiters) CHECK(ready(waiter, patient(15s)));
    }
}

TEST_CASE("fault: the clock of a minority jumps forward beyond the lease: the other two servers still exclude others") {
    SkewedServer skewed;
    RedisServer second;
    RedisServer third;
    RawRedis redis{skewed.server()};
    struct Party {
        Party(const std::string& a, const std::string& b, const std::string& c, const ClientOptions& options)
            : first(a, options), second(b, options), third(c, options) {}
        Client first, second, third;
        RLock one{first, "orders"}, two{second, "orders"}, three{third, "orders"};
        RedLock lock{one, two, three};
    };
    const std::string url = skewed.server().url();
    const ClientOptions options = unhurried(4s);
    Party holder{url, second.url(), third.url(), options};
    Party other{url, second.url(), third.url(), options};
    // All servers are old enough to vote, and the holder has all three: a bare majority would not survive the jump of
    // one.
    RawRedis redis_two{second};
    RawRedis redis_three{third};
    const auto all = [&](auto&& what) { return what(redis) && what(redis_two) && what(redis_three); };
    REQUIRE(eventually(
        [&] { return all([](RawRedis& one) { return std::stoll(one.info("server", "uptime_in_seconds")) > 5; }); },
        20s));
    REQUIRE(holder.lock.try_lock_for(20s));
    REQUIRE(eventually([&] { return all([](RawRedis& one) { return one.exists("orders"); }); }, 20s));
    skewed.jump(redis, 3600s);
    for (int round = 0; round < 5; ++round) CHECK_FALSE(other.lock.try_lock());
    CHECK_FALSE(other.lock.try_lock_for(patient(1s)));
    CHECK(holder.lock.valid_until() > std::chrono::steady_clock::now());
    CHECK_FALSE(holder.lock.lost().stop_requested());
    holder.lock.unlock();
    CHECK(other.lock.try_lock_for(20s));
    other.lock.unlock();
}

TEST_CASE("fault: the connection leads to another server, whose clock is ahead: a Mutex there lasts for its lease") {
    FaultyPath path;
    SkewedServer next;
    RawRedis redis{next.server()};
    next.jump(redis, 60s);
    Client client{path.url(), unhurried()}, other{next.server().url(), unhurried()};
    RLock before{client, "before"};
    Mutex after{client, "after"}, theirs{other, "after"};
    before.lock();  // reads the clock of the first server
    path.proxy.upstream(next.server().url());
    path.proxy.kill_all();
    // Either the acquire opens the connection to the other server, or the release before it.
    SUBCASE("the acquire connects") {}
    SUBCASE("the command before connects") {
        std::error_code ec;
        before.unlock(ec);
        CHECK(ec);
    }
    after.lock(Lease{30s});
    CHECK(after.valid_until() > std::chrono::steady_clock::now() + 20s);
    CHECK_FALSE(theirs.try_lock());
    after.unlock();
    CHECK(theirs.try_lock());
    theirs.unlock();
}
