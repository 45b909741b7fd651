// SPDX-License-Identifier: MIT
// ctest: without=address,thread
// A lease continues while the machine is suspended, but the steady clock stops. After it resumes, no expired hold
// counts as valid.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "support/process.hpp"
#include "support/redis_server.hpp"
#include "support/server_clock.hpp"
#include "support/server_faults.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

// Runs in a process whose clocks report that the machine was suspended while it held the locks.
const Role holder{"suspended: holder", [](std::span<const std::string> args) {
                      const auto clocks = SharedMemory<ServerClock::Offsets>::open(args[1]);
                      Client client{args[0]};
                      RLock limited{client, "limited"};
                      Mutex watched{client, "watched"};
                      limited.lock(Lease{30min});
                      watched.lock();
                      PermitExpirableSemaphore seats{client, "seats"};
                      seats.try_set_permits(2);
                      const Permits limited_seat = seats.hold(1, Lease{30min});
                      const Permits watched_seat = seats.hold(1);
                      const auto until = limited.valid_until();
                      const auto seat_until = limited_seat.valid_until();
                      const auto lost = limited.lost();
                      const auto seat_lost = limited_seat.lost();
                      clocks->suspended += std::chrono::microseconds(10min).count();
                      // That much less of the lease is left.
                      if (limited.valid_until() > until - 10min + 1s || limited.valid_until() < Clock::now()) return 1;
                      if (watched.valid_until() > Clock::now()) return 2;
                      if (limited_seat.valid_until() > seat_until - 10min + 1s) return 7;
                      if (limited_seat.valid_until() < Clock::now()) return 8;
                      if (watched_seat.valid_until() > Clock::now()) return 9;
                      if (lost.stop_requested() || seat_lost.stop_requested()) return 3;
                      clocks->suspended += std::chrono::microseconds(20min).count();
                      if (limited.valid_until() > Clock::now()) return 4;
                      if (!eventually([&] { return lost.stop_requested() && watched.lost().stop_requested(); }, 5s))
                          return 5;
                      if (limited_seat.valid_until() > Clock::now()) return 10;
                      if (!eventually([&] { return seat_lost.stop_requested(); }, 5s)) return 11;
                      if (!eventually([&] { return watched_seat.lost().stop_requested(); }, 5s)) return 12;
                      std::error_code ec;
                      limited.unlock(ec);
                      return ec == errc::hold_lost ? 0 : 6;
                  }};

// Does the same, but only waits for the tokens: nobody looks at the holds after the suspension.
const Role sleeper{"suspended: sleeping holder", [](std::span<const std::string> args) {
                       const auto clocks = SharedMemory<ServerClock::Offsets>::open(args[1]);
                       Client client{args[0]};
                       RLock limited{client, "limited"}, watched{client, "watched"}, member{client, "member"};
                       RLock longer{client, "longer"};
                       ReadWriteLock read_write{client, "read-write"};
                       MultiLock several{member}, shorter{longer};
                       limited.lock(Lease{30min});
                       longer.lock(Lease{3h});
                       watched.lock();
                       read_write.lock_shared(Lease{30min});
                       several.lock(Lease{30min});
                       shorter.lock(Lease{30min});  // its member is held for longer
                       const std::array lost{limited.lost(), watched.lost(), read_write.read_lock().lost(),
                                             several.lost(), shorter.lost()};
                       PermitExpirableSemaphore seats{client, "seats"};
                       seats.try_set_permits(3);
                       const Permits limited_seat = seats.hold(1, Lease{30min}), watched_seat = seats.hold(1);
                       const Permits longer_seat = seats.hold(1, Lease{3h});
                       const std::array seats_lost{limited_seat.lost(), watched_seat.lost()};
                       const auto longer_lost = longer.lost();
                       const auto longer_seat_lost = longer_seat.lost();
                       const auto told = [](const std::stop_token& token) { return token.stop_requested(); };
                       if (std::any_of(lost.begin(), lost.end(), told)) return 1;
                       if (std::any_of(seats_lost.begin(), seats_lost.end(), told)) return 4;
                       clocks->suspended += std::chrono::microseconds(1h).count();
                       // Well before the next renewal of the watchdog, which is due after ten seconds.
                       if (!eventually([&] { return std::all_of(lost.begin(), lost.end(), told); }, 8s)) return 2;
                       if (!eventually([&] { return std::all_of(seats_lost.begin(), seats_lost.end(), told); }, 4s))
                           return 5;
                       return longer_lost.stop_requested() || longer_seat_lost.stop_requested() ? 3 : 0;
                   }};

// Suspends this process and its server, whose clock goes on meanwhile.
void suspend_all(ServerClock::Offsets& clocks) {
    clocks.suspended += std::chrono::microseconds(10min).count();
    clocks.wall += std::chrono::microseconds(10min).count();
}

const Role mutex_holder{"suspended: mutex holder", [](std::span<const std::string> args) {
                            const auto clocks = SharedMemory<ServerClock::Offsets>::open(args[1]);
                            Client client{args[0]}, other{args[0]};
                            Mutex before{client, "before"}, after{client, "after"}, same{other, "after"};
                            before.lock();  // reads the server's clock
                            suspend_all(*clocks);
                            after.lock();
                            if (after.valid_until() < Clock::now() + 1s) return 1;
                            return same.try_lock() ? 2 : 0;
                        }};

// Releases one of two levels, which prolongs the lease for the other one, and is suspended meanwhile. The end of another
// hold tells that the library has looked at all holds of this lock since. No renewal is due yet.
const Role releaser{"suspended: releaser", [](std::span<const std::string> args) {
                        const auto clocks = SharedMemory<ServerClock::Offsets>::open(args[1]);
                        RawRedis redis{args[0]};
                        ClientOptions options;
                        options.watchdog_timeout = 30min;
                        options.command_timeout = 60s;
                        Client client{args[0], options};
                        ReadWriteLock orders{client, "orders"};
                        std::stop_token other_lost;
                        std::thread([&] {
                            orders.lock_shared(Lease{3min});
                            other_lost = orders.read_lock().lost();
                        }).join();
                        orders.lock_shared();
                        orders.lock_shared();
                        pause_commands(redis, 60s, true);
                        auto suspension = start([&] {
                            const auto waits = [&] { return redis.info("clients", "blocked_clients") == "1"; };
                            const bool sent = eventually(waits, 10s);
                            clocks->suspended += std::chrono::microseconds(5min).count();
                            const bool looked = eventually([&] { return other_lost.stop_requested(); }, 10s);
                            redis.text("CLIENT", "UNPAUSE");
                            return sent && looked;
                        });
                        orders.unlock_shared();
                        if (!suspension.get()) return 1;
                        const auto until = orders.read_lock().valid_until();
                        return until > Clock::now() + 24min && until < Clock::now() + 25min ? 0 : 2;
                    }};

// Runs a role in a process that can be suspended. Its server goes on.
std::optional<ExitStatus> run(const std::string& role) {
    RedisServer server;
    ServerClock clock;
    ChildProcess child = spawn_self(role, {server.url(), clock.file()}, clock.environment(REDLATCH_CLOCK_SHIM));
    return child.wait(60s);
}

}  // namespace

TEST_CASE("after a suspension the library knows how much of its leases is left, and which are over") {
    CHECK(run("suspended: holder") == ExitStatus{0, 0});
}

TEST_CASE("lost() is requested soon after a suspension, although nobody looks at the holds") {
    CHECK(run("suspended: sleeping holder") == ExitStatus{0, 0});
}

TEST_CASE("a reading of the server's clock from before a suspension does not fix the end of a lease") {
    ServerClock clock;
    const auto environment = clock.environment(REDLATCH_CLOCK_SHIM);
    RedisServer server{{.environment = environment}};
    ChildProcess child = spawn_self("suspended: mutex holder", {server.url(), clock.file()}, environment);
    CHECK(child.wait(60s) == ExitStatus{0, 0});
}

TEST_CASE("a release that keeps other levels does not prolong the lease by the time of a suspension") {
    CHECK(run("suspended: releaser") == ExitStatus{0, 0});
}
