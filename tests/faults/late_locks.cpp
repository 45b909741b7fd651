// SPDX-License-Identifier: MIT
// ctest: long
// A command that arrives long after its sender has given it up: the kernel, a proxy or a load balancer may still hold
// the bytes of a closed connection. Such a copy must not end a later hold, nor take a lock for longer than a moment.
#include <deque>
#include <future>
#include <memory>
#include <type_traits>

#include "faults/late_kit.hpp"
#include "support/engine.hpp"
#include "support/grants.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// How long a command is wanted, and how long its sender waits for the reply.
constexpr std::chrono::milliseconds wanted = paced(2000ms);

// How long a late acquire may block others: until its instant has passed, it is released once more, and a busy machine
// has had time for that. A lease is far longer.
constexpr std::chrono::milliseconds a_moment = wanted + paced(6000ms);

constexpr std::chrono::seconds lease = 30s;
// Longer than a command is wanted, and shorter than a lease.
constexpr std::chrono::seconds beyond_wanted = 10s;
// Longer than a lease, and than any mark that a command leaves behind.
constexpr std::chrono::seconds beyond_leases = 126s;

ClientOptions options() {
    ClientOptions options = unhurried(lease);
    options.command_timeout = wanted;
    return options;
}

// The commands of one kind of lock, by a text in each that a rule of the proxy matches.
struct Commands {
    std::string acquire;
    std::string release;
    std::string give_up;  // of force_unlock()
};

std::string digest_of(const Script& script) { return std::string{script.digest()}; }

Commands commands_of(const Script& acquire, const Script& release, const Script& give_up) {
    return {digest_of(acquire), digest_of(release), digest_of(give_up)};
}

// Also those of the members of a quorum.
Commands commands_of(const LockApi&) { return {acquire_digest, release_digest, give_up_digest}; }
Commands commands_of(const FencedLock&) {
    return commands_of(digested<scripts::fenced_queue_acquire>, digested<scripts::fenced_queue_release>,
                       digested<scripts::fenced_queue_give_up>);
}
Commands commands_of(const FairLock&) {
    return commands_of(digested<scripts::fair_acquire>, digested<scripts::fair_release>, digested<scripts::fair_leave>);
}
Commands commands_of(const ReadWriteLock::ReadLock&) {
    return commands_of(digested<scripts::read_acquire>, digested<scripts::read_release>,
                       digested<scripts::read_give_up>);
}
Commands commands_of(const ReadWriteLock&) {
    return commands_of(digested<scripts::write_acquire>, digested<scripts::write_release>,
                       digested<scripts::write_give_up>);
}
// The first sending of an acquire is a plain command.
Commands commands_of(const Mutex&) {
    return {"PXAT", digest_of(digested<scripts::mutex_release>), digest_of(digested<scripts::mutex_give_up>)};
}

// Returns whether one of a few tries succeeds. A busy machine may spoil some.
template <class Try>
bool succeeds_once(Try attempt) {
    for (int tries = 0; tries < 5; ++tries)
        if (attempt()) return true;
    return false;
}

// Lets a short try fail, because the proxy holds its command back. Repeats that if a busy machine left no time to send
// anything.
template <class At>
bool fails_with_its_acquire_held_back(const At& at) {
    at.path.proxy.hold_next_requests(1, at.commands.acquire);
    return succeeds_once([&] {
        CHECK_FALSE(at.mine.try_lock_for(50ms));
        return at.path.proxy.counts().held == 1;
    });
}

// A server with all scripts, and a proxy that delays commands to it.
struct LatePath : ClockedPath {
    LatePath() {
        for (const Script* script :
             {&digested<scripts::fenced_queue_acquire>, &digested<scripts::fenced_queue_hand_over>,
              &digested<scripts::fenced_queue_release>, &digested<scripts::fenced_queue_give_up>,
              &digested<scripts::fair_acquire>,         &digested<scripts::fair_release>,
              &digested<scripts::fair_leave>,           &digested<scripts::fair_refresh>,
              &digested<scripts::read_acquire>,         &digested<scripts::read_release>,
              &digested<scripts::read_give_up>,         &digested<scripts::read_renew>,
              &digested<scripts::write_acquire>,        &digested<scripts::write_release>,
              &digested<scripts::write_give_up>,        &digested<scripts::mutex_acquire>,
              &digested<scripts::mutex_release>,        &digested<scripts::mutex_give_up>,
              &digested<scripts::mutex_renew>,          &digested<scripts::mutex_hand_over>,
              &digested<scripts::permit_renew>})
            redis.text("SCRIPT", "LOAD", script->text());
    }

    // Without the counter of tokens, which stays.
    bool is_clean() { return redis.keys("orders*").empty() && redis.keys("{orders*").empty(); }
};

// A lock of a client behind the proxy, and the same lock of another client that bypasses it. `rival` is a lock of the
// other client which `mine` excludes.
template <class Lock>
struct Scene {
    LatePath& path;
    std::deque<Client>& clients;
    Lock& mine;
    Lock& theirs;
    LockApi& rival;

    Commands commands = commands_of(mine);

    Client& my_client() const { return clients.front(); }

    // What the key of the lock holds on the server that receives commands late.
    auto holders() const {
        if constexpr (std::is_same_v<Lock, Mutex>)
            return path.redis.call("GET", "orders").string;
        else
            return path.redis.list("HKEYS", "orders");
    }

    // A Mutex sends its plain command only if the last reading of the server's clock is new, and no connection was opened
    // since the acquire before.
    void ask_time_first() const {
        std::conditional_t<std::is_same_v<Lock, Mutex>, Mutex, RLock> any{my_client(), "time"};
        LockAccess::state(any).session().server_clock().doubt();
        if constexpr (std::is_same_v<Lock, Mutex>) {
            any.lock();
            any.unlock();
        }
    }

    // Moves the server's clock on, as if that time had passed: all clients know the new time.
    void let_pass(std::chrono::seconds time) const {
        if (time == 0s) return;
        path.jump(time);
        for (Client& client : clients) {
            RLock any{client, "time"};
            any.lock();
            any.unlock();
        }
    }
};

template <class Lock, class Test>
void with_lock(const char* kind, const Test& test) {
    CAPTURE(std::string(kind));
    LatePath path;
    std::deque<Client> clients;
    clients.emplace_back(path.url(), options());
    clients.emplace_back(path.server.url(), options());
    Lock mine{clients[0], "orders"};
    Lock theirs{clients[1], "orders"};
    test(Scene<Lock>{path, clients, mine, theirs, theirs});
}

template <class Test>
void with_readers(const Test& test) {
    with_lock<ReadWriteLock>("readers of a ReadWriteLock", [&](const auto& both) {
        test(Scene<ReadWriteLock::ReadLock>{both.path, both.clients, both.mine.read_lock(), both.theirs.read_lock(),
                                            both.theirs});
    });
}

template <class Test>
void with_multi_lock(const Test& test) {
    CAPTURE(std::string("MultiLock"));
    LatePath path;
    std::deque<Client> clients;
    clients.emplace_back(path.url(), options());
    clients.emplace_back(path.server.url(), options());
    std::deque<RLock> members;
    for (Client& client : clients)
        for (const char* name : {"orders", "orders:2"}) members.emplace_back(client, name);
    MultiLock mine{members[0], members[1]};
    MultiLock theirs{members[2], members[3]};
    test(Scene<MultiLock>{path, clients, mine, theirs, theirs});
}

// Three servers, of which the first one receives commands late.
template <class Test>
void with_red_lock(const Test& test) {
    CAPTURE(std::string("RedLock"));
    LatePath path;
    std::deque<RedisServer> others;
    for (int i = 0; i < 2; ++i) others.emplace_back(path.server_options());
    path.jump(2 * lease);  // servers that are too young do not vote
    std::deque<Client> clients;
    std::deque<RLock> members;
    for (const std::string& first : {path.url(), path.server.url()})
        for (const std::string& url : {first, others[0].url(), others[1].url()})
            members.emplace_back(clients.emplace_back(url, options()), "orders");
    const RedLockOptions red{.node_timeout = wanted};
    RedLock mine{red, members[0], members[1], members[2]};
    RedLock theirs{red, members[3], members[4], members[5]};
    test(Scene<RedLock>{path, clients, mine, theirs, theirs});
}

// Calls test(scene) for each kind of lock, each in a thread of its own: most of the time they wait.
template <class Test>
void with_every_lock(const Test& test) {
    std::vector<std::future<void>> all;
    all.push_back(start([&] { with_lock<RLock>("RLock", test); }));
    all.push_back(start([&] { with_lock<SpinLock>("SpinLock", test); }));
    all.push_back(start([&] { with_lock<FencedLock>("FencedLock", test); }));
    all.push_back(start([&] { with_lock<FairLock>("FairLock", test); }));
    all.push_back(start([&] { with_lock<Mutex>("Mutex", test); }));
    all.push_back(start([&] { with_lock<ReadWriteLock>("writers of a ReadWriteLock", test); }));
    all.push_back(start([&] { with_readers(test); }));
    all.push_back(start([&] { with_multi_lock(test); }));
    all.push_back(start([&] { with_red_lock(test); }));
    for (std::future<void>& one : all) one.get();
}

// How late an acquire may come that must not take the lock. The plain command of a Mutex has no script that could
// compare times. It names the instant at which the lease ends instead.
template <class Lock>
std::vector<std::chrono::seconds> too_late(const Lock&) {
    if (std::is_same_v<Lock, Mutex>) return {beyond_leases};
    return {beyond_wanted, beyond_leases};
}

}  // namespace

// Regression: the same thread held the lock again when the first copy of its release arrived. That was after the time
// of every mark, so it deleted the new hold, and others entered.
TEST_CASE("fault: late copies: a release that arrives after the same thread has locked again ends nothing") {
    with_every_lock([](const auto& at) {
        for (const auto after : {0s, beyond_wanted, beyond_leases}) {
            CAPTURE(after.count());
            at.mine.lock();
            const auto first_hold = at.holders();
            std::error_code ec;
            at.path.delay_a_copy(at.commands.release, [&] { at.mine.unlock(ec); });
            // A MultiLock leaves a release without a reply to the background.
            if constexpr (!std::is_same_v<std::decay_t<decltype(at.mine)>, MultiLock>) CHECK_FALSE(ec);
            at.let_pass(after);
            REQUIRE(at.mine.try_lock_for(20s));
            const auto second_hold = at.holders();
            at.path.let_through({at.commands.release});
            REQUIRE(at.mine.hold_count() == 1);
            // A RedLock may do without this server, which may have kept the first hold until now, or be free.
            if (second_hold != first_hold && !second_hold.empty()) REQUIRE(at.holders() == second_hold);
            CHECK_FALSE(at.rival.try_lock());
            CHECK_FALSE(at.mine.lost().stop_requested());
            at.mine.unlock(ec);
            CHECK_FALSE(ec);
            CHECK(at.path.is_clean());
        }
    });
}

TEST_CASE("fault: late copies: a read release that arrives after the same thread reads again below a writer") {
    with_lock<ReadWriteLock>("readers", [](const auto& at) {
        const std::string release = commands_of(at.mine.read_lock()).release;
        at.mine.lock();
        at.mine.lock_shared();
        std::error_code ec;
        at.path.delay_a_copy(release, [&] { at.mine.unlock_shared(ec); });
        CHECK_FALSE(ec);
        REQUIRE(at.mine.read_lock().hold_count() == 0);
        REQUIRE(at.mine.try_lock_shared_for(20s));
        at.mine.unlock();
        at.path.let_through({release});
        CHECK(at.mine.read_lock().hold_count() == 1);
        CHECK_FALSE(at.theirs.try_lock());
        at.mine.unlock_shared();
        CHECK(at.path.redis.keys().empty());
    });
}

TEST_CASE("fault: late copies: a renewal that arrives after the same thread has locked again prolongs nothing") {
    ClientOptions short_leases = options();
    short_leases.watchdog_timeout = paced(4500ms);
    const Lease limited{short_leases.watchdog_timeout / 2};
    const auto with = [&](const char* kind, const Script& script, auto lock_of) {
        return start([&, kind, lock_of, renewal = std::string{script.digest()}] {
            CAPTURE(kind);
            LatePath path;
            path.redis.text("SCRIPT", "LOAD", script.text());
            Client client{path.url(), short_leases};
            const std::shared_ptr<LockApi> orders = lock_of(client);
            // The first thread may share the connection of the renewals. Then the second one does not.
            for (int round = 0; round < 2; ++round) {
                start([&] {
                    path.proxy.hold_next_requests(1, renewal);
                    orders->lock();
                    CHECK(eventually([&] { return path.proxy.counts().held == 1; }));
                    orders->unlock();
                    orders->lock(limited);
                    path.let_through({renewal});
                    CHECK(orders->remaining_lease().value_or(0ms) <= limited.length());
                    orders->unlock();
                }).get();
            }
        });
    };
    std::vector<std::future<void>> all;
    all.push_back(with("RLock", digested<scripts::rlock_renew>,
                       [](Client& client) { return std::make_shared<RLock>(client, "orders"); }));
    all.push_back(with("FairLock", digested<scripts::rlock_renew>,
                       [](Client& client) { return std::make_shared<FairLock>(client, "orders"); }));
    all.push_back(with("Mutex", digested<scripts::mutex_renew>,
                       [](Client& client) { return std::make_shared<Mutex>(client, "orders"); }));
    all.push_back(with("writer", digested<scripts::rlock_renew>,
                       [](Client& client) { return std::make_shared<ReadWriteLock>(client, "orders"); }));
    all.push_back(with("reader", digested<scripts::read_renew>, [](Client& client) {
        const auto both = std::make_shared<ReadWriteLock>(client, "orders");
        return std::shared_ptr<LockApi>(both, &both->read_lock());
    }));
    for (auto& one : all) one.get();
}

// Regression: nothing released what the copy acquired, so the lock had no owner for a whole lease.
TEST_CASE("fault: late copies: an acquire that arrives after the unlock holds the lock for no longer than a moment") {
    with_every_lock([](const auto& at) {
        // Before its instant the copy takes the lock. Repeat if a busy machine let that instant pass.
        CHECK(succeeds_once([&] {
            at.ask_time_first();
            at.path.delay_a_copy(at.commands.acquire, [&] { at.mine.lock(); });
            at.mine.unlock();
            at.path.let_through({at.commands.acquire});
            const bool taken = at.path.redis.exists("orders");
            REQUIRE(at.rival.try_lock_for(a_moment));
            at.rival.unlock();
            CHECK(eventually([&] { return at.path.is_clean(); }, a_moment));
            return taken;
        }));
        // After its instant it takes nothing.
        for (const auto after : too_late(at.mine)) {
            CAPTURE(after.count());
            at.ask_time_first();
            at.path.delay_a_copy(at.commands.acquire, [&] { at.mine.lock(); });
            at.mine.unlock();
            at.let_pass(after);
            at.path.let_through({at.commands.acquire});
            REQUIRE(at.path.is_clean());
            REQUIRE(at.rival.try_lock());
            at.rival.unlock();
            CHECK(at.path.is_clean());
        }
    });
}

TEST_CASE("fault: late copies: an acquire that arrives after a failed try holds the lock for no longer than a moment") {
    with_every_lock([](const auto& at) {
        // The second copy is refused while another client holds the lock. The first one arrives when the lock is free.
        CHECK(succeeds_once([&] {
            at.rival.lock();
            at.ask_time_first();
            at.path.delay_a_copy(at.commands.acquire, [&] { CHECK_FALSE(at.mine.try_lock_for(500ms)); });
            at.rival.unlock();
            at.path.let_through({at.commands.acquire});
            const bool taken = at.path.redis.exists("orders");
            REQUIRE(at.rival.try_lock_for(a_moment));
            at.rival.unlock();
            CHECK(eventually([&] { return at.path.is_clean(); }, a_moment));
            return taken;
        }));
        // The only copy arrives when it is wanted no more, or arrives soon and is followed by the command that gives it
        // up.
        auto times = too_late(at.mine);
        times.insert(times.begin(), 0s);
        for (const auto after : times) {
            CAPTURE(after.count());
            at.rival.lock();
            at.ask_time_first();
            REQUIRE(fails_with_its_acquire_held_back(at));
            at.rival.unlock();
            at.let_pass(after);
            at.path.let_through({at.commands.acquire});
            if (after != 0s) REQUIRE(at.path.is_clean());
            REQUIRE(at.rival.try_lock_for(a_moment));
            at.rival.unlock();
            CHECK(eventually([&] { return at.path.is_clean(); }, a_moment));
        }
    });
}

// Regression: the release of the copy was given up with the lease of the grant, and the copy held the lock for its own.
TEST_CASE("fault: late copies: an acquire that arrives after the unlock of a grant is released, however late that is") {
    const auto test = []<class L>(const Scene<L>& at) {
        CHECK(succeeds_once([&] {
            at.theirs.lock();
            std::future<void> visit;
            at.path.delay_a_copy(at.commands.acquire, [&] {
                visit = start([&] {
                    at.mine.lock();
                    at.mine.unlock();
                });
                REQUIRE(can_be_granted<L>(at.path.redis, at.my_client(), "orders"));
            });
            // The grant is to count, so the client has to know the server's time on its new connection.
            RLock any{at.my_client(), "time"};
            any.lock();
            any.unlock();
            at.theirs.unlock();
            visit.get();
            const Stopwatch since_the_grant;
            // The client can send nothing until the lease of the grant is over, and the copy is not wanted any more.
            at.path.proxy.refuse(true);
            at.path.proxy.half_close(Side::client);
            at.path.let_through({at.commands.acquire});
            const bool taken = at.path.redis.exists("orders");
            REQUIRE(eventually([&] { return !since_the_grant.within(2 * wanted + 1s); }, 20s));
            at.path.proxy.refuse(false);
            REQUIRE(at.theirs.try_lock_for(a_moment));
            at.theirs.unlock();
            CHECK(eventually([&] { return at.path.is_clean(); }, a_moment));
            return taken;
        }));
    };
    std::vector<std::future<void>> all;
    all.push_back(start([&] { with_lock<RLock>("RLock", test); }));
    all.push_back(start([&] { with_lock<FencedLock>("FencedLock", test); }));
    all.push_back(start([&] { with_lock<FairLock>("FairLock", test); }));
    all.push_back(start([&] { with_lock<ReadWriteLock>("writers of a ReadWriteLock", test); }));
    for (std::future<void>& one : all) one.get();
}

TEST_CASE("fault: late copies: a waiter's acquire that arrives late leaves no place in the queue") {
    with_lock<FairLock>("FairLock", [](const auto& at) {
        const std::string queue = "redisson_lock_queue:{orders}";
        at.theirs.lock();
        // In time: it enters the queue, and its place is given up again. Too late: it has no effect.
        for (const auto after : {0s, beyond_wanted}) {
            CAPTURE(after.count());
            at.ask_time_first();
            REQUIRE(fails_with_its_acquire_held_back(at));
            at.let_pass(after);
            at.path.let_through({at.commands.acquire});
            if (after != 0s) CHECK_FALSE(at.path.redis.exists(queue));
            CHECK(eventually([&] { return at.path.redis.keys() == std::vector<std::string>{"orders"}; }, a_moment));
        }
        at.theirs.unlock();
    });
}

// The release of its number was given up in a long outage, and then the copy has taken a place. The server offers the lock
// to it for 2 s.
TEST_CASE("fault: late copies: a place that was left is left again as soon as the server mentions it") {
    with_lock<RLock>("RLock", [](const auto& at) {
        const std::string places = "redlatch_lock_places:{orders}", queue = "redlatch_lock_queue:{orders}";
        const std::string id = at.my_client().id(), channel = "redisson_lock__channel:{orders}:" + id;
        const auto leave_a_place = [&] {
            std::future<bool> wait;
            std::string place;
            at.path.delay_a_copy(at.commands.acquire, [&] {
                wait = start([&] { return at.mine.try_lock_for(2 * wanted); });
                REQUIRE(can_be_granted<RLock>(at.path.redis, at.my_client(), "orders"));
                place = at.path.redis.text("HGET", places, id);
            });
            CHECK_FALSE(wait.get());
            at.path.let_through({at.commands.acquire});
            REQUIRE(eventually([&] { return !at.path.redis.exists(queue); }, a_moment));
            return place;
        };
        enum class Then { granted, granted_instead_of_another, looked_at };
        for (const Then then : {Then::granted, Then::granted_instead_of_another, Then::looked_at}) {
            CAPTURE(static_cast<int>(then));
            CHECK(succeeds_once([&] {
                at.theirs.lock();
                const std::string place = leave_a_place();
                std::future<void> visit;
                if (then == Then::granted_instead_of_another) {
                    visit = start([&] {
                        at.mine.lock();
                        at.mine.unlock();
                    });
                    REQUIRE(can_be_granted<RLock>(at.path.redis, at.my_client(), "orders"));
                } else {
                    at.path.redis.integer("RPUSH", queue, id);
                }
                at.path.redis.integer("HSET", places, id, place);
                const bool listens = at.path.redis.lock_listeners(channel) == 1;  // for 5 s at least
                const Stopwatch watch;
                if (then == Then::looked_at) {
                    at.path.redis.integer("PUBLISH", channel, "look 0");
                    CHECK(eventually([&] { return !at.path.redis.exists(queue); }, a_moment));
                }
                at.theirs.unlock();
                CHECK(eventually([&] { return !at.path.redis.exists("orders"); }, a_moment));
                if (visit.valid()) visit.get();
                const bool in_time = watch.within(1500ms);
                CHECK(eventually([&] { return at.path.is_clean(); }, 2 * a_moment));
                return listens && in_time;
            }));
        }
    });
}

TEST_CASE("fault: late copies: a mutex's plain command holds no longer than the first lease would have lasted") {
    with_lock<Mutex>("Mutex", [](const auto& at) {
        at.path.delay_a_copy(at.commands.acquire, [&] { at.mine.lock(); });
        at.mine.unlock();
        at.let_pass(beyond_wanted);
        at.path.let_through({at.commands.acquire});
        CHECK(at.path.redis.exists("orders"));
        CHECK(at.path.redis.pttl("orders") <= 1000 * (lease - beyond_wanted + 1s).count());
        at.let_pass(lease - beyond_wanted);
        CHECK_FALSE(at.path.redis.exists("orders"));
        CHECK(at.theirs.try_lock());
        at.theirs.unlock();
    });
}

// The second command of a forced release names the holder that the first one saw.
TEST_CASE("fault: late copies: a forced release that arrives late, or twice, ends no later hold") {
    with_every_lock([](const auto& at) {
        for (const auto after : {0s, beyond_wanted, beyond_leases}) {
            CAPTURE(after.count());
            at.theirs.lock();
            // One of two copies ends the hold. The other one arrives during the next hold.
            bool forced = false;
            at.path.delay_a_copy(at.commands.give_up, [&] { forced = at.mine.force_unlock(); });
            CHECK(forced);
            CHECK(at.path.is_clean());
            std::error_code ec;
            at.theirs.unlock(ec);
            CHECK(ec == errc::hold_lost);
            at.let_pass(after);
            REQUIRE(at.theirs.try_lock_for(20s));
            at.path.let_through({at.commands.give_up});
            REQUIRE(at.theirs.hold_count() == 1);
            REQUIRE(at.path.redis.exists("orders"));
            CHECK_FALSE(at.theirs.lost().stop_requested());
            at.theirs.unlock(ec);
            CHECK_FALSE(ec);
            CHECK(at.path.is_clean());
        }
    });
}

// The first copy of the hand-over arrives after the next holder has released the lock, while others hold it.
TEST_CASE("fault: late copies: a hand-over that arrives late changes nothing") {
    const auto arrives_late = [](const auto& at, const Script& script) {
        const std::string hand_over = digest_of(script);
        const bool polls = std::is_same_v<std::decay_t<decltype(at.mine)>, Mutex>;
        for (const auto after : {0s, beyond_leases}) {
            CAPTURE(after.count());
            const auto matched = at.path.proxy.counts().matched;
            at.path.delay_a_copy(hand_over, [&] {
                for (int round = 0; round < 50 && at.path.proxy.counts().matched == matched; ++round) {
                    at.mine.lock();
                    const auto waits = at.my_client().stats().waits;
                    auto successor = start([&] {
                        at.mine.lock();
                        at.mine.unlock();
                    });
                    REQUIRE(eventually([&] {
                        return at.my_client().stats().waits > waits &&
                               (polls || listeners(at.path.redis, "orders") == 1);
                    }));
                    at.mine.unlock();
                    successor.get();
                }
            });
            at.let_pass(after);
            REQUIRE(at.theirs.try_lock_for(20s));
            const Contents before{at.path.redis};
            at.path.let_through({hand_over});
            REQUIRE(before.only_age_to(Contents{at.path.redis}));
            CHECK(at.theirs.hold_count() == 1);
            CHECK_FALSE(at.mine.is_held());
            at.theirs.unlock();
            CHECK(at.path.is_clean());
        }
    };
    std::vector<std::future<void>> all;
    all.push_back(start([&] {
        with_lock<RLock>("RLock", [&](const auto& at) { arrives_late(at, digested<scripts::queue_hand_over>); });
    }));
    all.push_back(start([&] {
        with_lock<FencedLock>("FencedLock",
                              [&](const auto& at) { arrives_late(at, digested<scripts::fenced_queue_hand_over>); });
    }));
    all.push_back(start([&] {
        with_lock<Mutex>("Mutex", [&](const auto& at) { arrives_late(at, digested<scripts::mutex_hand_over>); });
    }));
    for (std::future<void>& one : all) one.get();
}

// The renewal arrives while the hold still lasts, or after its end. Its sender has given it up, so it must not keep
// anything.
TEST_CASE("fault: late copies: a renewal that arrives late neither prolongs a hold nor revives it") {
    // Returns whether the hold lasted until the renewal arrived. `take(client)` returns an object whose hold is renewed.
    const auto arrives = [](const Script& renewal, const auto& take, std::chrono::seconds after) {
        LatePath path;
        ClientOptions quickly = options();
        quickly.watchdog_timeout = paced(6000ms);
        quickly.command_timeout = paced(1000ms);
        Client client{path.url(), quickly};
        path.proxy.hold_next_requests(1, digest_of(renewal));
        const auto held = take(client);
        path.cut_off_once_held();
        path.jump(after);
        const Contents before{path.redis};
        path.let_through({digest_of(renewal)});
        const Contents later{path.redis};
        CHECK(before.only_age_to(later));
        path.proxy.refuse(false);
        return !later.empty();
    };
    const auto in_every_case = [&](const char* kind, const Script& renewal, const auto& take) {
        return start([kind, &renewal, &take, &arrives] {
            CAPTURE(std::string(kind));
            // Longer than it is wanted, and less than the rest of the lease. Repeat if a busy machine let that end.
            CHECK(succeeds_once([&] { return arrives(renewal, take, paced(2000ms) / 1000ms * 1s); }));
            arrives(renewal, take, beyond_wanted);
        });
    };
    const auto take_lock = [](Client& client) {
        auto orders = std::make_unique<RLock>(client, "orders");
        orders->lock();
        return orders;
    };
    const auto take_read_lock = [](Client& client) {
        auto orders = std::make_unique<ReadWriteLock>(client, "orders");
        orders->lock_shared();
        return orders;
    };
    const auto take_mutex = [](Client& client) {
        auto orders = std::make_unique<Mutex>(client, "orders");
        orders->lock();
        return orders;
    };
    const auto take_permit = [](Client& client) {
        auto orders = std::make_unique<PermitExpirableSemaphore>(client, "orders");
        orders->try_set_permits(1);
        REQUIRE(orders->try_acquire());
        return orders;
    };
    std::vector<std::future<void>> all;
    all.push_back(in_every_case("RLock", digested<scripts::rlock_renew>, take_lock));
    all.push_back(in_every_case("readers of a ReadWriteLock", digested<scripts::read_renew>, take_read_lock));
    all.push_back(in_every_case("Mutex", digested<scripts::mutex_renew>, take_mutex));
    all.push_back(in_every_case("PermitExpirableSemaphore", digested<scripts::permit_renew>, take_permit));
    for (std::future<void>& one : all) one.get();
}

TEST_CASE("fault: late copies: a refresh that arrives late keeps no place in the queue") {
    for (const auto after : {wanted / 1000ms * 1s + 1s, beyond_wanted}) {
        with_lock<FairLock>("FairLock", [&](const auto& at) {
            CAPTURE(after.count());
            const std::string refresh = digest_of(digested<scripts::fair_refresh>);
            at.theirs.lock();
            std::stop_source stop;
            auto waiter = start([&] { return at.mine.lock(stop.get_token()); });
            at.path.proxy.hold_next_requests(1, refresh);
            at.path.cut_off_once_held();
            at.path.jump(after);
            const Contents before{at.path.redis};
            at.path.let_through({refresh});
            CHECK(before.only_age_to(Contents{at.path.redis}));
            at.path.proxy.refuse(false);
            stop.request_stop();
            CHECK_FALSE(waiter.get());
            at.theirs.unlock();
        });
    }
}
