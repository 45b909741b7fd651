// SPDX-License-Identifier: MIT
// StripedLock on a real server: names and stripes, several at once, other processes.
// ctest: in_memory
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t stripes = 8;

// Returns a name of the same stripe as `name`, or of another one.
std::string name_beside(const std::string& name, bool same) {
    for (int i = 0;; ++i)
        if (const std::string other = "n" + std::to_string(i);
            other != name && (StripedLock::stripe_of(other, stripes) == StripedLock::stripe_of(name, stripes)) == same)
            return other;
}

#ifndef REDLATCH_TEST_IN_MEMORY
struct Shared {
    std::array<PlainCounter, 4> balances;
};

// Moves money between two accounts, in an order of its own. The sum stays zero if nobody else is inside.
const Role teller{"striped lock: teller", [](std::span<const std::string> args) {
                      auto shared = SharedMemory<Shared>::open(args[1]);
                      Client client{args[0]};
                      StripedLock accounts{client, "accounts", stripes};
                      const int me = std::stoi(args[2]);
                      for (int i = 0; i < 100; ++i) {
                          const auto from = static_cast<std::size_t>((me + i) % 4),
                                     to = static_cast<std::size_t>((me + 3 * i + 1) % 4);
                          MultiLock both = accounts.locks_for({std::to_string(from), std::to_string(to)});
                          const std::lock_guard guard{both};
                          shared->balances[from].add_one_unseen();
                          shared->balances[to].add_one_unseen();
                      }
                      return 0;
                  }};
#endif

}  // namespace

TEST_CASE("names of one stripe exclude each other, those of others do not") {
    RedisServer server;
    Client one{server.url()}, two{server.url()};
    StripedLock mine{one, "accounts", stripes}, theirs{two, "accounts", stripes};
    const std::string same = name_beside("alice", true), other = name_beside("alice", false);
    const std::lock_guard guard{mine.lock_for("alice")};
    CHECK_FALSE(theirs.lock_for("alice").try_lock());
    CHECK_FALSE(theirs.lock_for(same).try_lock());
    CHECK(theirs.lock_for(other).try_lock());
    theirs.lock_for(other).unlock();
    // For the thread that holds it, the lock of the stripe is reentrant.
    CHECK(mine.lock_for(same).try_lock());
    mine.lock_for(same).unlock();
}

TEST_CASE("any number of names has no more keys than there are stripes, and none when all are free") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    StripedLock accounts{client, "accounts", stripes};
    std::vector<Hold> holds;
    for (int i = 0; i < 200; ++i)
        if (Hold hold = accounts.lock_for("user:" + std::to_string(i)).try_hold()) holds.push_back(std::move(hold));
    CHECK(holds.size() == stripes);
    CHECK(redis.keys().size() == stripes);
    holds.clear();
    CHECK(eventually([&] { return redis.keys().empty(); }, 20s));
}

TEST_CASE("a lock for several names holds all of their stripes or none") {
    RedisServer server;
    Client one{server.url()}, two{server.url()};
    StripedLock mine{one, "accounts", stripes}, theirs{two, "accounts", stripes};
    const std::string other = name_beside("alice", false);
    MultiLock both = mine.locks_for({"alice", std::string_view(other)});
    {
        const std::lock_guard guard{both};
        CHECK_FALSE(theirs.lock_for("alice").try_lock());
        CHECK_FALSE(theirs.lock_for(other).try_lock());
    }
    const std::lock_guard guard{theirs.lock_for(other)};
    CHECK_FALSE(both.try_lock());
    CHECK(theirs.lock_for("alice").try_lock());
    theirs.lock_for("alice").unlock();
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("processes that lock the same names in different orders all come to their end, and exclude each other") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    std::vector<ChildProcess> tellers;
    for (int i = 0; i < 4; ++i)
        tellers.push_back(spawn_self("striped lock: teller", {server.url(), dir.file("shared"), std::to_string(i)}));
    for (ChildProcess& one : tellers) {
        const auto status = one.wait(60s);
        REQUIRE(status);
        CHECK(status->code == 0);
    }
    std::uint64_t sum = 0;
    for (const PlainCounter& balance : shared->balances) sum += balance.value();
    CHECK(sum == 4 * 100 * 2);
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, 20s));
}
#endif
