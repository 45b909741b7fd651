// SPDX-License-Identifier: MIT
// ctest: long
// Commands of semaphores and latches that arrive late, soon or after every mark on the server has expired. Each takes
// effect once or not at all. If the outcome cannot be known, that is reported.
#include "faults/fault_kit.hpp"
#include "support/server_clock.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

std::string digest(const Script& script) { return std::string{script.digest()}; }

const std::string acquire = digest(digested<scripts::semaphore_acquire>);
const std::string add = digest(digested<scripts::semaphore_add>);
const std::string acquire_by_id = digest(digested<scripts::permit_acquire>);
const std::string release_by_id = digest(digested<scripts::permit_release>);
const std::string add_to_total = digest(digested<scripts::permit_add>);
const std::string set_total = digest(digested<scripts::permit_set_total>);
const std::string set_count = digest(digested<scripts::count_down_latch_set>);
const std::string lower_count = digest(digested<scripts::count_down_latch_lower>);

// Longer than any mark stays, and than a command is wanted.
constexpr auto beyond_marks = 126s;
// Long enough that the command is not wanted any more, but its mark is still there.
constexpr auto beyond_wanted = 60s;

// A server whose clock can be moved, so that no test waits, and a path to it on which messages get lost or delayed.
struct LatePath {
    LatePath() {
        for (const Script* script : {&digested<scripts::semaphore_acquire>, &digested<scripts::semaphore_add>,
                                     &digested<scripts::semaphore_give_back>, &digested<scripts::semaphore_set>,
                                     &digested<scripts::permit_acquire>, &digested<scripts::permit_release>,
                                     &digested<scripts::permit_take_back>, &digested<scripts::permit_set_total>,
                                     &digested<scripts::permit_add>, &digested<scripts::count_down_latch_set>,
                                     &digested<scripts::count_down_latch_lower>, &digested<scripts::request_void>})
            redis.text("SCRIPT", "LOAD", script->text);
    }

    static ClientOptions options() {
        ClientOptions options = unhurried();
        options.command_timeout = paced(300ms);
        options.unreachable_timeout = paced(1500ms);
        return options;
    }

    // Returns when the server's clock shows the jump.
    void jump(std::chrono::seconds by) {
        const auto now = [&] { return std::stoll(redis.list("TIME").at(0)); };
        const auto before = now();
        clock.set(clock.offset() + by);
        REQUIRE(eventually([&] { return now() - before >= by.count() - 1; }, 5s));
    }

    // Forwards the requests that the proxy holds back, and waits until the server has run them.
    void let_late_ones_arrive() {
        const auto scripts = redis.script_calls();
        proxy.release();
        REQUIRE(eventually([&] { return redis.script_calls() > scripts; }));
        // The client learns the server's clock before the next command whose reply is lost.
        Semaphore{client, "other"}.try_set_permits(1);
    }

    // Makes the server unreachable, or reachable again. The test moves the server's clock in between.
    void outage(bool on) {
        proxy.refuse(on);
        if (on) proxy.kill_all();
    }

    std::string left(const char* key) { return redis.text("GET", key); }

    // Returns whether the number in the key becomes this one and stays so.
    bool comes_to(const char* key, const char* number) {
        return eventually([&] { return left(key) == number; }, 20s) &&
               !eventually([&] { return left(key) != number; }, 300ms);
    }

    test::ServerClock clock;
    RedisServer server{{.environment = clock.environment(REDLATCH_CLOCK_SHIM)}};
    RawRedis redis{server};
    Proxy proxy{server.url()};
    EventLog log;
    Client client{proxy.url(), log.in(options())};
};

}  // namespace

TEST_CASE("fault: late copy of an acquire of permits: it takes none") {
    for (const auto after : {1s, beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        Semaphore seats{path.client, "seats"};
        seats.try_set_permits(3);
        path.proxy.hold_next_requests(1, acquire);
        seats.acquire();  // succeeds by its second copy
        CHECK(path.proxy.counts().held == 1);
        seats.release();
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(path.left("seats") == "3");
        // An acquire that its caller gave up.
        path.proxy.hold_next_requests(1, acquire);
        std::stop_source stop;
        auto waiting = start([&] { return seats.acquire(2, stop.get_token()); });
        REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));
        stop.request_stop();
        if (waiting.get()) seats.release(2);
        CHECK(path.comes_to("seats", "3"));
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(path.left("seats") == "3");
    }
}

TEST_CASE("fault: late copy of a release of permits: it adds none") {
    for (const auto after : {1s, beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        Semaphore seats{path.client, "seats"};
        seats.try_set_permits(3);
        seats.acquire();
        path.proxy.hold_next_requests(1, add);
        seats.release();
        CHECK(path.proxy.counts().held == 1);
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(path.left("seats") == "3");
    }
}

TEST_CASE("fault: reply to a release of permits lost in an outage: the permits are not added twice") {
    for (const auto after : {beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        Semaphore seats{path.client, "seats"};
        seats.try_set_permits(3);
        seats.acquire();
        path.proxy.drop_next_replies(1, add, Then::silence);
        auto released = start([&] {
            std::error_code ec;
            seats.release(ec);
            return ec;
        });
        REQUIRE(eventually([&] { return path.proxy.counts().dropped == 1; }));
        path.outage(true);
        CHECK(released.get() == errc::unreachable);
        path.jump(after);
        path.outage(false);
        CHECK(path.comes_to("seats", "3"));
        // A query that comes too late cannot find out. That is reported, once.
        CHECK(eventually([&] { return path.log.count(Event::Kind::unlock_not_delivered) == (after == beyond_marks); }));
        // The semaphore works as usual.
        seats.acquire(3);
        CHECK(path.left("seats") == "0");
    }
}

TEST_CASE("fault: the server's clock moved on between two copies of a release: the permits are not added twice") {
    for (const auto after : {beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        Semaphore seats{path.client, "seats"};
        seats.try_set_permits(3);
        seats.acquire();
        path.proxy.drop_next_replies(1, add, Then::silence);
        auto released = start([&] {
            std::error_code ec;
            seats.release(ec);
            return ec;
        });
        REQUIRE(eventually([&] { return path.proxy.counts().dropped == 1; }));
        path.jump(after);
        CHECK((released.get() == errc::unreachable) == (after == beyond_marks));
        CHECK(path.comes_to("seats", "3"));
        CHECK(path.log.count(Event::Kind::unlock_not_delivered) == 0);
    }
}

TEST_CASE("fault: a release of permits never arrives: it is delivered once when the server is reachable again") {
    for (const auto after : {1s, beyond_wanted}) {
        CAPTURE(after.count());
        LatePath path;
        Semaphore seats{path.client, "seats"};
        seats.try_set_permits(3);
        seats.acquire();
        path.proxy.hold_next_requests(100, add);
        auto released = start([&] {
            std::error_code ec;
            seats.release(ec);
            return ec;
        });
        REQUIRE(eventually([&] { return path.proxy.counts().held >= 1; }));
        path.proxy.refuse(true);
        CHECK(released.get() == errc::unreachable);
        path.jump(after);
        path.proxy.clear_rules();
        path.proxy.refuse(false);
        CHECK(path.comes_to("seats", "3"));
        path.let_late_ones_arrive();
        CHECK(path.left("seats") == "3");
        CHECK(path.log.count(Event::Kind::unlock_not_delivered) == 0);
    }
}

TEST_CASE("fault: acquire of unknown outcome in an outage: its permits come back, or their loss is reported") {
    for (const auto after : {beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        Semaphore seats{path.client, "seats"};
        seats.try_set_permits(3);
        path.proxy.drop_next_replies(1, acquire, Then::silence);
        auto acquired = start([&] {
            std::error_code ec;
            seats.acquire(1, ec);
            return ec;
        });
        REQUIRE(eventually([&] { return path.proxy.counts().dropped == 1; }));
        path.outage(true);
        CHECK(acquired.get() == errc::unreachable);
        path.jump(after);
        path.outage(false);
        const bool known = after != beyond_marks;
        CHECK(path.comes_to("seats", known ? "3" : "2"));
        CHECK(eventually([&] { return path.log.count(Event::Kind::unlock_not_delivered) == !known; }));
    }
}

TEST_CASE("fault: late copies of commands for permits with leases: they change nothing") {
    for (const auto after : {1s, beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        PermitExpirableSemaphore slots{path.client, "slots"};
        slots.try_set_permits(3);
        path.proxy.hold_next_requests(1, acquire_by_id);
        PermitId id = slots.acquire(Lease::forever());
        CHECK(path.proxy.counts().held == 1);
        slots.release(id);
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(slots.available_permits() == 3);
        CHECK(slots.acquired_permits() == 0);

        path.proxy.hold_next_requests(1, acquire_by_id);
        std::stop_source stop;
        auto waiting = start([&] { return slots.acquire(2, Lease::forever(), stop.get_token()); });
        REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));
        stop.request_stop();
        if (const auto ids = waiting.get(); !ids.empty()) slots.release(ids);
        CHECK(path.comes_to("slots", "3"));
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(slots.available_permits() == 3);
        CHECK(slots.acquired_permits() == 0);

        id = slots.acquire(Lease::forever());
        path.proxy.hold_next_requests(1, release_by_id);
        slots.release(id);
        id = slots.acquire(Lease::forever());
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(slots.available_permits() == 2);

        path.proxy.hold_next_requests(1, add_to_total);
        slots.add_permits(2);
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(slots.permits() == 5);

        path.proxy.hold_next_requests(1, set_total);
        slots.set_permits(7);
        slots.set_permits(4);
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(slots.permits() == 4);
    }
}

// A renewal that was sent before must not arrive after the new lease was set: it would prolong it.
TEST_CASE("fault: late renewal of a permit that gets its own lease: it does not prolong that") {
    const auto watchdog = paced(4500ms);
    const auto lease = watchdog / 2;
    // The renewals have a connection of their own. A thread may share it, the next one does not.
    for (int round = 0; round < 2; ++round) {
        FaultyPath path;
        path.redis.text("SCRIPT", "LOAD", digested<scripts::permit_renew>.text);
        Client client{path.url(), unhurried(watchdog)};
        PermitExpirableSemaphore slots{client, "slots"};
        slots.try_set_permits(1);
        path.proxy.hold_next_requests(1, digest(digested<scripts::permit_renew>));
        const PermitId id = slots.acquire();
        REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));
        auto updated = start([&] { slots.update_lease(id, Lease{lease}); });
        // It waits for the renewal, which the server still accepts.
        CHECK_FALSE(ready_within(updated, 300ms));
        const auto scripts = path.redis.script_calls();
        path.proxy.release();
        updated.get();
        REQUIRE(eventually([&] { return path.redis.script_calls() >= scripts + 2; }));
        const auto left = slots.remaining_lease(id);
        CHECK(left.value_or(0ms) <= lease);
    }
}

TEST_CASE("fault: late copies of commands of a latch: they change nothing") {
    for (const auto after : {1s, beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        CountDownLatch gate{path.client, "gate"};
        path.proxy.hold_next_requests(1, set_count);
        CHECK(gate.try_set_count(3));
        gate.reset();
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(gate.count() == 0);

        gate.try_set_count(3);
        path.proxy.hold_next_requests(1, lower_count);
        gate.count_down();
        path.jump(after);
        path.let_late_ones_arrive();
        CHECK(gate.count() == 2);
    }
}

TEST_CASE("fault: reply to a count-down lost in an outage: it does not count twice") {
    for (const auto after : {beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        CountDownLatch gate{path.client, "gate"};
        gate.try_set_count(3);
        path.proxy.drop_next_replies(1, lower_count, Then::silence);
        auto counted = start([&] {
            std::error_code ec;
            gate.count_down(ec);
            return ec;
        });
        REQUIRE(eventually([&] { return path.proxy.counts().dropped == 1; }));
        path.outage(true);
        CHECK(counted.get() == errc::unreachable);
        path.jump(after);
        path.outage(false);
        CHECK(path.comes_to("gate", "2"));
        CHECK(eventually([&] { return path.log.count(Event::Kind::unlock_not_delivered) == (after == beyond_marks); }));
    }
}
