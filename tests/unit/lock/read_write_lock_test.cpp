// SPDX-License-Identifier: MIT
// ReadWriteLock: the commands of its two sides and their order, against a scripted server.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/lockable.hpp"
#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;
using Lock = ReadWriteLock;

const std::string channel = "redisson_rwlock:{orders}";

struct Fixture {
    explicit Fixture(const ClientOptions& options = {}, ReadWriteOptions preference = {})
        : client(redis.transport(), options), lock(client, "orders", preference) {}

    // The owner of a hold, as it is written on the wire.
    std::string owner(std::uint64_t number = 1) const { return client.id() + ":" + std::to_string(number); }

    ScriptedRedis redis;
    Client client;
    Lock lock;
};

template <class Function>
auto elsewhere(Function function) {
    return start(std::move(function));
}

std::error_code code_of(auto&& call) {
    try {
        call();
        return {};
    } catch (const Error& e) {
        CHECK(e.name() == "orders");
        return e.code();
    }
}

template <class L>
concept WholeLock = requires(L& lock, std::chrono::milliseconds d, std::error_code& ec, std::stop_token stop) {
    { lock.lock() } -> std::same_as<void>;
    { lock.lock(Lease(d), ec) } -> std::same_as<void>;
    { lock.lock(Lease(d), stop, ec) } -> std::same_as<bool>;
    { lock.try_lock(Lease(d), ec) } -> std::same_as<bool>;
    { lock.try_lock_for(d, Lease(d), stop, ec) } -> std::same_as<bool>;
    { lock.try_lock_until(Clock::now(), Lease(d), stop, ec) } -> std::same_as<bool>;
    { lock.unlock(ec) } -> std::same_as<void>;
    { lock.is_locked(ec) } -> std::same_as<bool>;
    { lock.is_held(ec) } -> std::same_as<bool>;
    { lock.hold_count(ec) } -> std::same_as<int>;
    { lock.remaining_lease(ec) } -> std::same_as<std::optional<std::chrono::milliseconds>>;
    { lock.valid_until() } -> std::same_as<std::chrono::steady_clock::time_point>;
    { lock.lost() } -> std::same_as<std::stop_token>;
    { lock.force_unlock(ec) } -> std::same_as<bool>;
    { lock.name() } -> std::same_as<const std::string&>;
};

static_assert(SharedTimedLockable<Lock>);
static_assert(WholeLock<Lock> && WholeLock<Lock::ReadLock> && WholeLock<Lock::WriteLock>);
static_assert(!std::is_copy_constructible_v<Lock> && !std::is_move_constructible_v<Lock>);

}  // namespace

TEST_CASE("acquiring a free read side is one command, and releasing it is another") {
    Fixture fixture;
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.lock.lock_shared();
    const auto sent = fixture.redis.sent("read acquire");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].key_count() == 5);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "{orders}:redlatch_writer_waits");
    CHECK(sent[0].argument(0) == fixture.owner());
    CHECK(sent[0].argument(1) == "1");
    CHECK(sent[0].argument(2) == "30000");
    CHECK(sent[0].argument(3) == fixture.owner(0) + ":write");  // names no hold
    CHECK(sent[0].argument(4) == "{orders}");
    CHECK(reaches(sent[0].instant(5), 3000ms, begun));
    CHECK(fixture.lock.read_lock().valid_until() > Clock::now() + 20s);
    CHECK(fixture.lock.valid_until() == Instant::min());
    fixture.lock.unlock_shared();
    CHECK(fixture.redis.history() == Sorts{"read acquire", "read release"});
    const auto released = fixture.redis.sent("read release").at(0);
    CHECK(released.key_count() == 5);
    CHECK(released.key(1) == channel);
    CHECK(released.argument(0) == fixture.owner());
    CHECK(released.argument(1) == "0");
    CHECK(fixture.lock.read_lock().valid_until() == Instant::min());
}

TEST_CASE("acquiring a free write side is one command, and releasing it is another") {
    Fixture fixture;
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.lock.lock(Lease(5s));
    const auto sent = fixture.redis.sent("write acquire");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].argument(0) == fixture.owner() + ":write");
    CHECK(sent[0].argument(1) == "1");
    CHECK(sent[0].argument(2) == "5000");
    CHECK(sent[0].argument(5) == "0");
    CHECK(reaches(sent[0].instant(6), 3000ms, begun));
    CHECK(fixture.lock.valid_until() > Clock::now() + 4s);
    CHECK(fixture.lock.read_lock().valid_until() == Instant::min());
    fixture.lock.unlock();
    CHECK(fixture.redis.history() == Sorts{"write acquire", "write release"});
}

TEST_CASE("a name with its own hash tag keeps it in all keys") {
    Fixture fixture;
    Lock tagged(fixture.client, "{shop}orders");
    tagged.lock_shared();
    tagged.unlock_shared();
    CHECK(fixture.redis.sent("read acquire").at(0).key(1) == "{shop}orders:redlatch_writer_waits");
    CHECK(fixture.redis.sent("read acquire").at(0).argument(4) == "{shop}orders");
    CHECK(fixture.redis.sent("read release").at(0).key(1) == "redisson_rwlock:{shop}orders");
}

TEST_CASE("while one thread reads, another thread of this process sends its own command") {
    Fixture fixture;
    fixture.lock.lock_shared();
    elsewhere([&] {
        CHECK(fixture.lock.try_lock_shared_for(10s));
        CHECK(fixture.redis.sent("read acquire").back().argument(0) == fixture.owner(2));
        fixture.lock.unlock_shared();
    }).get();
    CHECK(fixture.lock.read_lock().valid_until() > Clock::now());
    fixture.lock.unlock_shared();
    CHECK(fixture.redis.history() == Sorts{"read acquire", "read acquire", "read release", "read release"});
    CHECK(fixture.client.stats().waits == 0);
}

TEST_CASE("after a writer's release each waiting reader that enters lets the next one ask, with one command each") {
    Fixture fixture;
    std::atomic<bool> written = false;
    fixture.redis.always("read acquire",
                         [&](const SentCommand&) { return std::optional(written ? nil() : number(30'000)); });
    std::atomic<int> inside = 0;
    std::promise<void> leave;
    const std::shared_future<void> left = leave.get_future().share();
    std::vector<std::future<void>> readers;
    for (int i = 0; i < 5; ++i)
        readers.push_back(elsewhere([&] {
            fixture.lock.lock_shared();
            ++inside;
            left.wait();
            fixture.lock.unlock_shared();
        }));
    REQUIRE(eventually([&] { return fixture.client.stats().waits == 5; }));
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    const std::size_t asked = fixture.redis.count("read acquire");
    written = true;
    REQUIRE(fixture.redis.publish(channel, "1"));
    CHECK(eventually([&] { return inside == 5; }));
    // Some readers may have been asking, still blocked, when the count was read.
    CHECK(fixture.redis.count("read acquire") <= asked + 10);
    leave.set_value();
}

TEST_CASE("a reader that waits on a channel where a writer already listens misses no earlier message") {
    // Both sides share one channel. The message came between the reader's command and its wait, and reached the writer
    // only. No confirmation followed, so the reader slept until the end of a lease that was long over.
    Fixture fixture;
    fixture.redis.always("write acquire", number(30'000));
    auto writer = elsewhere([&] {
        const bool held = fixture.lock.try_lock_for(10s);
        if (held) fixture.lock.unlock();
        return held;
    });
    REQUIRE(fixture.redis.wait_for("write acquire", 2));
    fixture.redis.next("read acquire", [&](const SentCommand&) {
        CHECK(fixture.redis.publish(channel, "1"));
        return std::optional(number(30'000));
    });
    CHECK(elsewhere([&] {
              const bool held = fixture.lock.try_lock_shared_for(5s);
              if (held) fixture.lock.unlock_shared();
              return held;
          }).get());
    fixture.redis.always("write acquire", nil());
    REQUIRE(fixture.redis.publish(channel, "0"));
    CHECK(writer.get());
}

TEST_CASE("a writer does not ask while another thread of this process writes, and no hold is handed over") {
    Fixture fixture;
    fixture.lock.lock();
    auto other = elsewhere([&] {
        CHECK(fixture.lock.try_lock_for(10s));
        fixture.lock.unlock();
    });
    REQUIRE(eventually([&] { return fixture.client.stats().waits == 1; }));
    REQUIRE(fixture.redis.publish(channel, "ignored"));
    fixture.lock.unlock();
    other.get();
    CHECK(fixture.redis.count("write release") == 2);
    CHECK(fixture.redis.count("hand over") == 0);
    CHECK(fixture.client.stats().handoffs == 0);
}

TEST_CASE("a reader that requests the write side gets would_deadlock at once, and nothing is sent") {
    Fixture fixture;
    fixture.lock.lock_shared();
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return fixture.lock.try_lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return fixture.lock.write_lock().try_lock_for(1s); }) == errc::would_deadlock);
    std::error_code ec;
    CHECK_FALSE(fixture.lock.try_lock(Lease(1s), ec));
    CHECK(ec == errc::would_deadlock);
    CHECK(ec == std::errc::resource_deadlock_would_occur);
    CHECK(fixture.redis.count("write acquire") == 0);
    // Another thread is no reader, so its command is sent.
    elsewhere([&] {
        CHECK(fixture.lock.try_lock());
        fixture.lock.unlock();
    }).get();
    fixture.lock.unlock_shared();
    fixture.lock.lock();
    fixture.lock.unlock();
}

TEST_CASE("a writer may read, and may write again while it reads, but a mere reader may not write") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.lock.lock_shared();
    // Its read hold has its own number, and the command also names its write hold.
    CHECK(fixture.redis.sent("read acquire").at(0).argument(0) == fixture.owner(2));
    CHECK(fixture.redis.sent("read acquire").at(0).argument(3) == fixture.owner(1) + ":write");
    fixture.lock.lock();
    CHECK(fixture.redis.sent("write acquire").back().argument(0) == fixture.owner(1) + ":write");
    CHECK(fixture.redis.sent("write acquire").back().argument(1) == "2");
    fixture.lock.unlock();
    fixture.lock.unlock();
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::would_deadlock);
    fixture.lock.unlock_shared();
    CHECK(fixture.redis.history() ==
          Sorts{"write acquire", "read acquire", "write acquire", "write release", "write release", "read release"});
}

TEST_CASE("a reader whose lease is over no longer counts as a reader") {
    Fixture fixture;
    fixture.lock.lock_shared(Lease(20ms));
    REQUIRE(eventually([&] { return fixture.lock.read_lock().valid_until() < Clock::now(); }));
    CHECK(fixture.lock.try_lock());
    fixture.lock.unlock();
    std::error_code ec;
    fixture.lock.unlock_shared(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("unlock_shared() by a thread that never read, and unlock() by a reader, are errors") {
    Fixture fixture;
    CHECK(code_of([&] { fixture.lock.unlock_shared(); }) == errc::not_owner);
    fixture.lock.lock_shared();
    CHECK(code_of([&] { fixture.lock.unlock(); }) == errc::not_owner);
    elsewhere([&] { CHECK(code_of([&] { fixture.lock.unlock_shared(); }) == errc::not_owner); }).get();
    fixture.lock.unlock_shared();
}

TEST_CASE("read counts are absolute, so a resent command counts once") {
    Fixture fixture;
    fixture.lock.lock_shared();
    fixture.redis.next("read acquire", lost());
    fixture.lock.lock_shared();
    fixture.redis.next("read release", lost());
    fixture.lock.unlock_shared();
    fixture.redis.next("read release", lost());
    fixture.lock.unlock_shared();
    const auto acquired = fixture.redis.sent("read acquire");
    REQUIRE(acquired.size() == 3);
    CHECK(acquired[1].argument(1) == "2");
    CHECK(acquired[2].argument(1) == "2");
    const auto released = fixture.redis.sent("read release");
    REQUIRE(released.size() == 4);
    CHECK(released[0].argument(1) == "1");
    CHECK(released[1].argument(1) == "1");
    CHECK(released[2].argument(1) == "0");
    CHECK(released[3].argument(1) == "0");
    CHECK(released[1].words == released[0].words);
    CHECK(released[3].words == released[2].words);
    for (const SentCommand& command : released) CHECK(command.argument(0) == fixture.owner());
}

TEST_CASE("the holds of both sides share one numbering, so no command of one side names a hold of the other") {
    Fixture fixture;
    fixture.lock.lock_shared();
    fixture.lock.unlock_shared();
    fixture.lock.lock();
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("read release").at(0).argument(0) == fixture.owner(1));
    CHECK(fixture.redis.sent("write release").at(0).argument(0) == fixture.owner(2) + ":write");
}

TEST_CASE("an acquire of unknown outcome is released on its own side") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    fixture.redis.always("read acquire", lost());
    CHECK(code_of([&] { fixture.lock.lock_shared(); }) == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("read give up"));
    CHECK(fixture.redis.sent("read give up").at(0).key(1) == channel);
    CHECK(fixture.redis.sent("read give up").at(0).argument(1) == "{orders}");
    CHECK(fixture.redis.sent("read give up").at(0).argument(2) == fixture.owner(1));
    fixture.redis.always("write acquire", lost());
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("write give up"));
    CHECK(fixture.redis.sent("write give up").at(0).argument(1) == "{orders}");
    CHECK(fixture.redis.sent("write give up").at(0).argument(2) == fixture.owner(2) + ":write");
}

TEST_CASE("each side is renewed by its own script under its own owners, at most a hundred holds per command") {
    Fixture fixture({.watchdog_timeout = 3000ms});
    const std::int64_t begun = ScriptedRedis::server_now();
    constexpr int locks = 120;
    std::vector<std::unique_ptr<Lock>> many;
    for (int i = 0; i < locks; ++i) {
        many.push_back(std::make_unique<Lock>(fixture.client, "lock" + std::to_string(i)));
        many.back()->lock();
        many.back()->lock_shared();
    }
    // Holds that this thread acquired late join the others later.
    const auto most_together = [&](const std::string& what) {
        std::size_t most = 0;
        for (const auto& sent : fixture.redis.sent(what)) most = std::max(most, sent.key_count());
        return most;
    };
    CHECK(eventually([&] { return most_together("read renew") == 100 && most_together("renew") == 100; }, 20s));
    for (const auto& sent : fixture.redis.sent("read renew")) {
        CHECK(sent.key_count() <= 100);
        CHECK(sent.argument(0) == "3000");
        CHECK(reaches(sent.instant(1), 3000ms, begun));
        CHECK(sent.argument_count() == 2 + sent.key_count());
        for (std::size_t i = 0; i < sent.key_count(); ++i)
            CHECK(sent.argument(2 + i) == fixture.owner(2 * std::stoull(sent.key(i).substr(4)) + 2));
    }
    for (const auto& sent : fixture.redis.sent("renew")) {
        CHECK(sent.key_count() <= 100);
        CHECK(sent.argument_count() == 2 + sent.key_count());
        for (std::size_t i = 0; i < sent.key_count(); ++i)
            CHECK(sent.argument(2 + i) == fixture.owner(2 * std::stoull(sent.key(i).substr(4)) + 1) + ":write");
    }
    for (auto& lock : many) {
        lock->unlock();
        lock->unlock_shared();
    }
    CHECK(fixture.client.stats().lost_holds == 0);
}

TEST_CASE("releasing one side does not end the renewal of the other") {
    Fixture fixture({.watchdog_timeout = 1500ms});
    fixture.lock.lock();
    fixture.lock.lock_shared();
    fixture.lock.unlock_shared();
    CHECK(fixture.redis.wait_for("renew", 2));
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.unlock();
}

TEST_CASE("a refused renewal of a reader loses the read hold and keeps the write hold") {
    Fixture fixture({.watchdog_timeout = 1500ms});
    fixture.lock.lock();
    fixture.lock.lock_shared();
    fixture.redis.always("read renew", array({number(0)}));
    const std::stop_token lost_read = fixture.lock.read_lock().lost();
    const std::stop_token lost_write = fixture.lock.lost();
    CHECK(eventually([&] { return lost_read.stop_requested(); }));
    CHECK_FALSE(lost_write.stop_requested());
    std::error_code ec;
    fixture.lock.unlock_shared(ec);
    CHECK(ec == errc::hold_lost);
    fixture.lock.unlock();
}

TEST_CASE("a write hold with an expired lease is released, unlike a read hold, because a read hold may keep its key") {
    Fixture fixture;
    fixture.lock.lock(Lease(1s));
    const auto certain_until = fixture.lock.valid_until();
    REQUIRE(fixture.redis.wait_for("write give up"));
    // lost() is reported a little earlier, but no other thread may enter by then.
    CHECK(std::chrono::steady_clock::now() >= certain_until);
    CHECK(fixture.redis.sent("write give up").at(0).argument(2) == fixture.owner() + ":write");
    std::error_code ec;
    fixture.lock.unlock(ec);
    CHECK(ec == errc::hold_lost);
    fixture.lock.lock_shared(Lease(1s));
    CHECK(eventually([&] { return fixture.client.stats().lost_holds == 2; }));
    CHECK(fixture.redis.count("read release") == 0);
    CHECK(fixture.redis.count("read give up") == 0);
}

// It asks beside the place of the process, which had been told to ask by then.
TEST_CASE("a writer that waits as a reader behind one that was told to look asks once at that time") {
    Fixture fixture;
    fixture.redis.always("read acquire", array({number(30'000), number(0)}));
    fixture.lock.lock();
    std::stop_source stop, others_stop;
    auto other = elsewhere([&] { return fixture.lock.try_lock_shared_for(60s, others_stop.get_token()); });
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 1; }));
    const auto asks_once = [&] {
        if (!eventually([&] { return fixture.client.stats().waiting == 2; })) return false;
        const auto asked = fixture.redis.count("read acquire");
        if (!fixture.redis.publish(channel + ":" + fixture.client.id(), "look 300")) return false;
        others_stop.request_stop();
        if (other.get() || !eventually([&] { return fixture.redis.count("read acquire") > asked; })) return false;
        return !eventually([&] { return fixture.redis.count("read acquire") >= asked + 20; }, 1s);
    };
    auto once = elsewhere([&] {
        const bool is_once = asks_once();
        stop.request_stop();
        return is_once;
    });
    CHECK_FALSE(fixture.lock.try_lock_shared_for(60s, stop.get_token()));
    CHECK(once.get());
    fixture.lock.unlock();
}

TEST_CASE("a waiting writer with preference announces itself, and withdraws that when it gives up") {
    Fixture fixture({}, {.writer_preference = true});
    fixture.redis.always("write acquire", number(30'000));
    CHECK_FALSE(fixture.lock.try_lock());
    CHECK_FALSE(fixture.lock.try_lock_for(30ms));
    auto sent = fixture.redis.sent("write acquire");
    REQUIRE(sent.size() >= 2);
    // A single try does not wait.
    CHECK(sent[0].argument(5) == "0");
    for (std::size_t i = 1; i < sent.size(); ++i) {
        CHECK(sent[i].argument(5) == "5000");
        CHECK(sent[i].argument(4) == fixture.client.id());
    }
    REQUIRE(fixture.redis.wait_for("withdraw"));
    CHECK(fixture.redis.sent("withdraw").at(0).key(0) == "{orders}:redlatch_writer_waits");
    CHECK(fixture.redis.sent("withdraw").at(0).argument(0) == fixture.client.id());
    CHECK(fixture.redis.count("withdraw") == 1);
}

TEST_CASE("a writer with preference that gets the lock withdraws nothing, since the server did") {
    Fixture fixture({}, {.writer_preference = true});
    fixture.redis.next("write acquire", number(30'000));
    fixture.redis.next("write acquire", number(30));
    CHECK(fixture.lock.try_lock_for(10s));
    CHECK(fixture.redis.sent("write acquire").back().argument(5) == "5000");
    fixture.lock.unlock();
    CHECK(fixture.redis.count("withdraw") == 0);
}

TEST_CASE("a writer with preference that fails withdraws its announcement, too") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 60ms}, {.writer_preference = true});
    fixture.redis.always("write acquire", lost());
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(fixture.redis.wait_for("withdraw"));
}

TEST_CASE("without the option a waiting writer announces nothing, whatever other objects of the name do") {
    Fixture fixture;
    const Lock other(fixture.client, "orders", {.writer_preference = true});
    fixture.redis.always("write acquire", number(30'000));
    CHECK_FALSE(fixture.lock.try_lock_for(30ms));
    for (const auto& sent : fixture.redis.sent("write acquire")) CHECK(sent.argument(5) == "0");
    CHECK(fixture.redis.count("withdraw") == 0);
}

TEST_CASE("force_unlock() ends holds of its own side only") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.lock.lock_shared();
    fixture.redis.next("read holders", array({text("one:1"), text("other:2")}));
    CHECK(fixture.lock.read_lock().force_unlock());
    const SentCommand forced = fixture.redis.sent("read give up").at(0);
    CHECK(forced.argument(2) == "one:1");
    CHECK(forced.argument(3) == "other:2");
    CHECK(fixture.redis.count("write holders") == 0);
    CHECK(fixture.redis.count("write give up") == 0);
    CHECK(fixture.lock.read_lock().valid_until() == Instant::min());
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.unlock();
    std::error_code ec;
    fixture.lock.unlock_shared(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("guards of the standard library work with either side") {
    Fixture fixture;
    {
        const std::shared_lock reading(fixture.lock);
        std::shared_lock again(fixture.lock, 1s);
        CHECK(again.owns_lock());
    }
    {
        std::unique_lock writing(fixture.lock, std::defer_lock);
        CHECK(writing.try_lock_for(1s));
    }
    {
        Lock other(fixture.client, "other");
        const std::scoped_lock both(fixture.lock.read_lock(), other);
        CHECK(fixture.lock.read_lock().valid_until() > Clock::now());
        CHECK(other.valid_until() > Clock::now());
    }
    { const std::lock_guard reading(fixture.lock.read_lock()); }
    CHECK(fixture.lock.read_lock().valid_until() == Instant::min());
    CHECK(fixture.lock.valid_until() == Instant::min());
}

TEST_CASE("an invalid name is refused before anything is sent") {
    Fixture fixture;
    for (const char* name : {"", "a{b", "a}b", "a{}b"}) CHECK_THROWS_AS(Lock(fixture.client, name), Error);
    CHECK(fixture.redis.history().empty());
    CHECK(fixture.lock.name() == "orders");
    CHECK(fixture.lock.read_lock().name() == "orders");
    CHECK(fixture.lock.write_lock().name() == "orders");
}
