// SPDX-License-Identifier: MIT
// ctest: long
// Commands of semaphores and latches that arrive late, soon or after every mark on the server has expired. Each takes
// effect once or not at all. If the outcome cannot be known, that is reported.
#include <algorithm>
#include <optional>

#include "faults/late_kit.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

std::string digest(const Script& script) { return std::string{script.digest()}; }

const std::string acquire = digest(digested<scripts::semaphore_acquire>);
const std::string add = digest(digested<scripts::semaphore_add>);
const std::string acquire_by_id = digest(digested<scripts::permit_acquire>);

// Longer than any mark stays, and than a command is wanted.
constexpr auto beyond_marks = 126s;
// Long enough that the command is not wanted any more, but its mark is still there.
constexpr auto beyond_wanted = 60s;

// A client that gives up soon, and a path to the server on which messages get lost or delayed.
struct LatePath : ClockedPath {
    LatePath() {
        for (const Script* script : {&digested<scripts::semaphore_acquire>, &digested<scripts::semaphore_add>,
                                     &digested<scripts::semaphore_give_back>, &digested<scripts::semaphore_set>,
                                     &digested<scripts::semaphore_drain>, &digested<scripts::permit_acquire>,
                                     &digested<scripts::permit_release>, &digested<scripts::permit_take_back>,
                                     &digested<scripts::permit_set_lease>, &digested<scripts::permit_set_total>,
                                     &digested<scripts::permit_add>, &digested<scripts::count_down_latch_set>,
                                     &digested<scripts::count_down_latch_lower>, &digested<scripts::counter_remove>,
                                     &digested<scripts::counter_expire>, &digested<scripts::request_void>})
            redis.text("SCRIPT", "LOAD", script->text());
    }

    static ClientOptions options() {
        ClientOptions options = unhurried();
        options.command_timeout = paced(300ms);
        options.unreachable_timeout = paced(1500ms);
        return options;
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

    // Returns whether exactly so many changes are reported to be of unknown outcome, when all has been reported.
    bool reports(std::size_t unknown) {
        const auto count = [&] { return log.count(Event::Kind::unlock_not_delivered); };
        if (!eventually([&] { return count() == unknown; }, 20s)) return false;
        // Events are reported in order. So all earlier ones have been, when that of this lock is.
        RLock last{client, "last"};
        last.lock();
        last.force_unlock();
        return eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }, 20s) &&
               !eventually([&] { return count() != unknown; }, 300ms);
    }

    EventLog log;
    Client client{url(), log.in(options())};
};

// The primitives of one client.
struct Primitives {
    explicit Primitives(Client& client) : seats(client, "seats"), slots(client, "slots"), gate(client, "gate") {}

    Semaphore seats;
    PermitExpirableSemaphore slots;
    CountDownLatch gate;
    std::optional<PermitId> id = {};
};

constexpr auto an_hour = std::chrono::milliseconds(1h);

// A change, which is one command, and what the caller does before and after it.
struct LateChange {
    const char* name;
    const Script& script;
    void (*before)(Primitives&);
    void (*make)(Primitives&);
    void (*next)(Primitives&);
    const char* outcome;                 // after one change: see left_of()
    const char* outcome_if_unknown;      // the same if the caller got no reply, and nobody can find out any more
    const Script& settled_by;            // how the client finds out what became of it if it got no reply
    std::size_t reports_if_unknown = 0;  // the caller's error is no report
};

// Returns what there is on the server: the permits, the available and the taken ones, the count.
std::string left_of(RawRedis& redis) {
    std::string text;
    for (const char* key : {"seats", "slots", "gate"})
        if (redis.exists(key)) text += std::string(text.empty() ? "" : " ") + key + "=" + redis.text("GET", key);
    if (redis.exists("slots")) text += "+" + std::to_string(redis.integer("ZCARD", "{slots}:timeout"));
    return text;
}

const std::vector<LateChange> changes{
    {.name = "Semaphore: try_set_permits",
     .script = digested<scripts::semaphore_set>,
     .before = [](Primitives&) {},
     .make = [](Primitives& on) { CHECK(on.seats.try_set_permits(3)); },
     .next = [](Primitives& on) { static_cast<void>(on.seats.drain_permits()); },
     .outcome = "seats=3",
     .outcome_if_unknown = "seats=3",
     .settled_by = digested<scripts::request_void>},
    {.name = "Semaphore: drain_permits",
     .script = digested<scripts::semaphore_drain>,
     .before = [](Primitives& on) { on.seats.try_set_permits(3); },
     .make = [](Primitives& on) { CHECK(on.seats.drain_permits() == 3); },
     .next = [](Primitives& on) { on.seats.release(2); },
     .outcome = "seats=0",
     .outcome_if_unknown = "seats=0",
     .settled_by = digested<scripts::request_void>},
    {.name = "Semaphore: remove",
     .script = digested<scripts::counter_remove>,
     .before = [](Primitives& on) { on.seats.try_set_permits(3); },
     .make = [](Primitives& on) { CHECK(on.seats.remove()); },
     .next = [](Primitives& on) { on.seats.try_set_permits(2); },
     .outcome = "",
     .outcome_if_unknown = "",
     .settled_by = digested<scripts::request_void>},
    {.name = "Semaphore: expire",
     .script = digested<scripts::counter_expire>,
     .before = [](Primitives& on) { on.seats.try_set_permits(3); },
     .make = [](Primitives& on) { CHECK(on.seats.expire(std::chrono::milliseconds(1h))); },
     .next = [](Primitives& on) { on.seats.release(); },
     .outcome = "seats=3",
     .outcome_if_unknown = "seats=3",
     .settled_by = digested<scripts::request_void>},
    {.name = "Semaphore: acquire",
     .script = digested<scripts::semaphore_acquire>,
     .before = [](Primitives& on) { on.seats.try_set_permits(3); },
     .make = [](Primitives& on) { on.seats.acquire(); },
     .next = [](Primitives& on) { on.seats.release(); },
     .outcome = "seats=3",
     .outcome_if_unknown = "seats=2",
     .settled_by = digested<scripts::semaphore_give_back>,
     .reports_if_unknown = 1},
    {.name = "Semaphore: release",
     .script = digested<scripts::semaphore_add>,
     .before = [](Primitives& on) { on.seats.try_set_permits(2); },
     .make = [](Primitives& on) { on.seats.release(); },
     .next = [](Primitives&) {},
     .outcome = "seats=3",
     .outcome_if_unknown = "seats=3",
     .settled_by = digested<scripts::semaphore_add>,
     .reports_if_unknown = 1},
    {.name = "Semaphore: release_if_exists",
     .script = digested<scripts::semaphore_add>,
     .before = [](Primitives& on) { on.seats.try_set_permits(2); },
     .make = [](Primitives& on) { CHECK(on.seats.release_if_exists()); },
     .next = [](Primitives&) {},
     .outcome = "seats=3",
     .outcome_if_unknown = "seats=3",
     .settled_by = digested<scripts::semaphore_add>,
     .reports_if_unknown = 1},
    {.name = "Semaphore: add_permits",
     .script = digested<scripts::semaphore_add>,
     .before = [](Primitives& on) { on.seats.try_set_permits(3); },
     .make = [](Primitives& on) { on.seats.add_permits(-2); },
     .next = [](Primitives&) {},
     .outcome = "seats=1",
     .outcome_if_unknown = "seats=1",
     .settled_by = digested<scripts::request_void>},
    {.name = "PermitExpirableSemaphore: try_set_permits",
     .script = digested<scripts::semaphore_set>,
     .before = [](Primitives&) {},
     .make = [](Primitives& on) { CHECK(on.slots.try_set_permits(3)); },
     .next = [](Primitives& on) { on.slots.set_permits(1); },
     .outcome = "slots=3+0",
     .outcome_if_unknown = "slots=3+0",
     .settled_by = digested<scripts::request_void>},
    {.name = "PermitExpirableSemaphore: set_permits",
     .script = digested<scripts::permit_set_total>,
     .before = [](Primitives& on) { on.slots.try_set_permits(3); },
     .make = [](Primitives& on) { on.slots.set_permits(7); },
     .next = [](Primitives& on) { on.slots.set_permits(4); },
     .outcome = "slots=7+0",
     .outcome_if_unknown = "slots=7+0",
     .settled_by = digested<scripts::request_void>},
    {.name = "PermitExpirableSemaphore: add_permits",
     .script = digested<scripts::permit_add>,
     .before = [](Primitives& on) { on.slots.try_set_permits(3); },
     .make = [](Primitives& on) { on.slots.add_permits(2); },
     .next = [](Primitives&) {},
     .outcome = "slots=5+0",
     .outcome_if_unknown = "slots=5+0",
     .settled_by = digested<scripts::request_void>},
    // An id tells for ever whether its permit is taken. So the outcome of an acquire or a release never is unknown to
    // the server, but that of a release is to the client: another process may have released the permit.
    {.name = "PermitExpirableSemaphore: acquire",
     .script = digested<scripts::permit_acquire>,
     .before = [](Primitives& on) { on.slots.try_set_permits(3); },
     .make = [](Primitives& on) { on.id = on.slots.acquire(Lease{an_hour}); },
     .next = [](Primitives& on) { on.slots.release(*on.id); },
     .outcome = "slots=3+0",
     .outcome_if_unknown = "slots=3+0",
     .settled_by = digested<scripts::permit_take_back>},
    {.name = "PermitExpirableSemaphore: acquire without a lease",
     .script = digested<scripts::permit_acquire>,
     .before = [](Primitives& on) { on.slots.try_set_permits(3); },
     .make = [](Primitives& on) { on.id = on.slots.acquire(Lease::forever()); },
     .next = [](Primitives& on) { on.slots.release(*on.id); },
     .outcome = "slots=3+0",
     .outcome_if_unknown = "slots=3+0",
     .settled_by = digested<scripts::permit_take_back>},
    {.name = "PermitExpirableSemaphore: release",
     .script = digested<scripts::permit_release>,
     .before =
         [](Primitives& on) {
             on.slots.try_set_permits(3);
             on.id = on.slots.acquire(Lease{an_hour});
         },
     .make = [](Primitives& on) { on.slots.release(*on.id); },
     .next = [](Primitives& on) { REQUIRE(on.slots.try_acquire(Lease{an_hour})); },
     .outcome = "slots=3+0",
     .outcome_if_unknown = "slots=3+0",
     .settled_by = digested<scripts::permit_release>,
     .reports_if_unknown = 1},
    {.name = "PermitExpirableSemaphore: update_lease",
     .script = digested<scripts::permit_set_lease>,
     .before =
         [](Primitives& on) {
             on.slots.try_set_permits(3);
             on.id = on.slots.acquire(Lease{an_hour});
         },
     .make = [](Primitives& on) { on.slots.update_lease(*on.id, Lease{2 * an_hour}); },
     .next = [](Primitives& on) { on.slots.update_lease(*on.id, Lease{an_hour}); },
     .outcome = "slots=2+1",
     .outcome_if_unknown = "slots=2+1",
     .settled_by = digested<scripts::request_void>},
    {.name = "CountDownLatch: try_set_count",
     .script = digested<scripts::count_down_latch_set>,
     .before = [](Primitives&) {},
     .make = [](Primitives& on) { CHECK(on.gate.try_set_count(3)); },
     .next = [](Primitives& on) { on.gate.reset(); },
     .outcome = "gate=3",
     .outcome_if_unknown = "gate=3",
     .settled_by = digested<scripts::request_void>},
    {.name = "CountDownLatch: count_down",
     .script = digested<scripts::count_down_latch_lower>,
     .before = [](Primitives& on) { on.gate.try_set_count(3); },
     .make = [](Primitives& on) { on.gate.count_down(); },
     .next = [](Primitives&) {},
     .outcome = "gate=2",
     .outcome_if_unknown = "gate=2",
     .settled_by = digested<scripts::count_down_latch_lower>,
     .reports_if_unknown = 1},
    {.name = "CountDownLatch: reset",
     .script = digested<scripts::count_down_latch_lower>,
     .before = [](Primitives& on) { on.gate.try_set_count(3); },
     .make = [](Primitives& on) { CHECK(on.gate.reset()); },
     .next = [](Primitives& on) { on.gate.try_set_count(3); },
     .outcome = "",
     .outcome_if_unknown = "",
     .settled_by = digested<scripts::request_void>},
};

// Calls test(change) for all changes, in several threads: most of the time they wait.
template <class Test>
void with_every_change(const Test& test) {
    constexpr std::size_t at_once = 8;
    std::vector<std::future<void>> all;
    for (std::size_t first = 0; first < at_once; ++first)
        all.push_back(start([&test, first] {
            for (std::size_t i = first; i < changes.size(); i += at_once) {
                CAPTURE(std::string(changes[i].name));
                test(changes[i]);
            }
        }));
    for (std::future<void>& one : all) one.get();
}

}  // namespace

TEST_CASE("fault: late copy of a change: it changes nothing") {
    with_every_change([](const LateChange& change) {
        for (const auto after : {1s, beyond_wanted, beyond_marks}) {
            CAPTURE(after.count());
            LatePath path;
            Client client{path.url(), unhurried()};
            Primitives on{client};
            change.before(on);
            path.delay_a_copy(digest(change.script), [&] { change.make(on); });
            change.next(on);
            path.jump(after);
            const Contents before{path.redis};
            path.let_through({digest(change.script)});
            const Contents later{path.redis};
            CHECK(before.only_age_to(later));
            CHECK(before.last_until(later));
        }
    });
}

// A semaphore that was deleted, or expired, must not come back.
TEST_CASE("fault: late copy of a command that creates a semaphore or a latch: it creates none") {
    for (const auto after : {1s, beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        for (const LateChange& change : changes) {
            if (&change.script != &digested<scripts::semaphore_set> &&
                &change.script != &digested<scripts::count_down_latch_set>)
                continue;
            CAPTURE(std::string(change.name));
            LatePath path;
            Client client{path.url(), unhurried()};
            Primitives on{client};
            path.delay_a_copy(digest(change.script), [&] { change.make(on); });
            path.redis.integer("DEL", "seats", "slots", "gate");
            path.jump(after);
            path.let_through({digest(change.script)});
            CHECK(left_of(path.redis) == "");
        }
    }
}

TEST_CASE("fault: a question without an answer comes after its caller has left the queue: its place is given up") {
    const std::string queue = "redlatch_semaphore_queue:{seats}", places = "redlatch_semaphore_places:{seats}";
    LatePath path;
    Semaphore seats{path.client, "seats"};
    seats.try_set_permits(1);
    seats.acquire();
    std::stop_source stop;
    path.proxy.drop_next_replies(100, acquire, Then::silence);
    auto waiting = start([&] { CHECK_FALSE(seats.acquire(stop.get_token())); });
    REQUIRE(eventually([&] { return path.redis.exists(queue); }, 20s));
    const auto place = path.redis.hgetall(places);
    REQUIRE(place.size() == 1);
    stop.request_stop();
    waiting.get();
    REQUIRE(eventually([&] { return !path.redis.exists(queue); }, 20s));
    path.redis.integer("RPUSH", queue, place.begin()->first);
    path.redis.integer("HSET", places, place.begin()->first, place.begin()->second);
    CHECK(eventually([&] { return !path.redis.exists(queue); }, 20s));
}

TEST_CASE("fault: late copies of an acquire that was given up, and of its take-back: they change nothing") {
    const auto come_late = [](bool with_leases) {
        CAPTURE(with_leases);
        for (const auto after : {1s, beyond_wanted, beyond_marks}) {
            CAPTURE(after.count());
            LatePath path;
            Semaphore seats{path.client, "seats"};
            PermitExpirableSemaphore slots{path.client, "slots"};
            seats.try_set_permits(3);
            slots.try_set_permits(3);
            const std::string take = with_leases ? acquire_by_id : acquire;
            const std::string take_back =
                digest(with_leases ? digested<scripts::permit_take_back> : digested<scripts::semaphore_give_back>);
            const char* const key = with_leases ? "slots" : "seats";
            // Takes two permits, if nothing prevents it, and gives up as soon as the path has done that.
            const auto give_up_once = [&](const auto& struck) {
                std::stop_source stop;
                auto waiting = start([&] {
                    if (!with_leases) return seats.acquire(2, stop.get_token()) ? seats.release(2) : void();
                    const auto ids = slots.acquire(2, Lease{an_hour}, stop.get_token());
                    if (!ids.empty()) slots.release(ids);
                });
                REQUIRE(eventually(struck));
                stop.request_stop();
                waiting.get();
            };

            // The acquire comes after its take-back.
            path.proxy.hold_next_requests(1, take);
            give_up_once([&] { return path.proxy.counts().held == 1; });
            CHECK(path.comes_to(key, "3"));
            path.jump(after);
            path.let_late_ones_arrive();
            CHECK(left_of(path.redis) == "seats=3 slots=3+0");

            // The take-back comes twice. No copy of the acquire gets a reply, or it could succeed before it is stopped.
            path.proxy.drop_next_replies(100, take, Then::silence);
            path.proxy.hold_next_requests(1, take_back);
            give_up_once([&] { return path.proxy.counts().dropped >= 1; });
            REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));
            path.proxy.half_close(Side::client);
            CHECK(path.comes_to(key, "3"));
            path.jump(after);
            path.let_late_ones_arrive();
            CHECK(left_of(path.redis) == "seats=3 slots=3+0");
        }
    };
    auto others = start([&] { come_late(true); });
    come_late(false);
    others.get();
}

TEST_CASE("fault: late copy of an acquire of a permit whose lease is over: it takes none") {
    for (const auto after : {beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        PermitExpirableSemaphore slots{path.client, "slots"};
        slots.try_set_permits(3);
        path.delay_a_copy(acquire_by_id, [&] { REQUIRE(slots.try_acquire(Lease{50s})); });
        path.jump(after);
        CHECK(slots.available_permits() == 3);
        path.let_late_ones_arrive();
        CHECK(left_of(path.redis) == "slots=3+0");
    }
}

TEST_CASE("fault: reply to a change lost in an outage: the change is made once, or its unknown outcome is reported") {
    with_every_change([](const LateChange& change) {
        for (const auto after : {beyond_wanted, beyond_marks}) {
            CAPTURE(after.count());
            LatePath path;
            Client direct{path.server.url(), unhurried()};
            Primitives theirs{direct};
            change.before(theirs);
            Primitives mine{path.client};
            mine.id = theirs.id;
            // No copy gets a reply before the outage, even if that is late.
            path.proxy.drop_next_replies(100, digest(change.script), Then::silence);
            auto made = start([&] { return code_of([&] { change.make(mine); }); });
            REQUIRE(eventually([&] { return path.proxy.counts().dropped >= 1; }));
            path.outage(true);
            CHECK(made.get() == errc::unreachable);
            path.proxy.clear_rules();
            path.jump(after);
            CommandMonitor monitor{path.server};
            path.outage(false);
            const std::string settling = digest(change.settled_by);
            REQUIRE(eventually(
                [&] {
                    const auto lines = monitor.take_lines();
                    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
                        return line.find(settling) != std::string::npos;
                    });
                },
                20s));
            // A query that comes too late cannot find out. That is reported, once.
            const bool known = after != beyond_marks;
            CHECK(path.reports(known ? 0 : change.reports_if_unknown));
            CHECK(left_of(path.redis) == (known ? change.outcome : change.outcome_if_unknown));
            // All goes on as usual.
            mine.seats.add_permits(1);
            mine.slots.add_permits(1);
            CHECK(mine.seats.try_acquire());
            CHECK(mine.slots.try_acquire(Lease{an_hour}));
        }
    });
}

TEST_CASE("fault: the server's clock moved on between two copies of a release: the permits are not added twice") {
    for (const auto after : {beyond_wanted, beyond_marks}) {
        CAPTURE(after.count());
        LatePath path;
        Semaphore seats{path.client, "seats"};
        seats.try_set_permits(3);
        seats.acquire();
        path.proxy.drop_next_replies(1, add, Then::silence);
        path.proxy.hold_next_requests(100, add);  // the next copies arrive after the jump, even if that is late
        auto released = start([&] {
            std::error_code ec;
            seats.release(ec);
            return ec;
        });
        REQUIRE(eventually([&] { return path.proxy.counts().dropped == 1; }));
        path.jump(after);
        path.proxy.clear_rules();
        path.proxy.release();
        CHECK((released.get() == errc::unreachable) == (after == beyond_marks));
        CHECK(path.comes_to("seats", "3"));
        CHECK(path.reports(0));
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
        CHECK(path.reports(0));
    }
}

// A renewal that was sent before must not arrive after the new lease was set: it would prolong it.
TEST_CASE("fault: late renewal of a permit that gets its own lease: it does not prolong that") {
    const auto watchdog = paced(4500ms);
    const auto lease = watchdog / 2;
    // The renewals have a connection of their own. A thread may share it, the next one does not.
    for (int round = 0; round < 2; ++round) {
        FaultyPath path;
        path.redis.text("SCRIPT", "LOAD", digested<scripts::permit_renew>.text());
        Client client{path.url(), unhurried(watchdog)};
        PermitExpirableSemaphore slots{client, "slots"};
        slots.try_set_permits(1);
        path.proxy.hold_next_requests(1, digest(digested<scripts::permit_renew>));
        const PermitId id = slots.acquire();
        REQUIRE(eventually([&] { return path.proxy.counts().held == 1; }));
        auto updated = start([&] { slots.update_lease(id, Lease{lease}); });
        // It waits for the renewal, which the server still accepts.
        CHECK_FALSE(ready(updated, 300ms));
        const auto scripts = path.redis.script_calls();
        path.proxy.release();
        updated.get();
        REQUIRE(eventually([&] { return path.redis.script_calls() >= scripts + 2; }));
        const auto left = slots.remaining_lease(id);
        CHECK(left.value_or(0ms) <= lease);
    }
}
