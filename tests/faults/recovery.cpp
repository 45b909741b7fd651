// SPDX-License-Identifier: MIT
// ctest: timeout=600 long
// A server is back: the time until all clients work again, however long their back-off has grown.
#include "faults/recovery_kit.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

// Returns the measurements of some rounds, sorted.
template <class Round>
std::vector<std::chrono::milliseconds> in_rounds(int count, Round round) {
    std::vector<std::chrono::milliseconds> all;
    for (int i = 0; i < count; ++i) all.push_back(round());
    std::sort(all.begin(), all.end());
    return all;
}

}  // namespace

TEST_CASE("fault: server frozen for long: the slowest client works again within a second") {
    RedisServer server{{.tcp = true, .args = {"--requirepass", "geheim"}}};
    Fleet fleet{"redis://:geheim@127.0.0.1:" + std::to_string(server.port()), as_it_is};
    REQUIRE(fleet.works());
    CHECK(best_of(2, soon_after, [&] {
              server.stop();
              std::this_thread::sleep_for(8s);
              const std::int64_t back = monotonic_ns();
              server.cont();
              return fleet.slowest(back);
          }) <= soon_after);
}

TEST_CASE("fault: server away for long: the slowest client works again within a second") {
    RedisServer server{{.tcp = true, .appendonly = true}};
    Fleet fleet{server.tcp_url(), as_it_is};
    REQUIRE(fleet.works());
    CHECK(best_of(2, soon_after, [&] {
              server.kill();
              std::this_thread::sleep_for(6s);
              server.restart();
              return fleet.slowest(monotonic_ns());
          }) <= soon_after);
}

TEST_CASE("fault: server away for long: the first connection that is answered wakes the others") {
    RedisServer server{{.tcp = true}};
    Client client{server.tcp_url(), unhurried()};
    // How long after the first reply the waiter holds its lock.
    const auto all = in_rounds(7, [&] {
        RawRedis{server}.integer("HSET", "orders", "somebody:1", 1);
        RawRedis{server}.integer("PEXPIRE", "orders", 600'000);
        auto waiting = start([&] {
            RLock orders{client, "orders"};
            orders.lock();
            const std::int64_t held = monotonic_ns();
            orders.unlock();
            return held;
        });
        REQUIRE(eventually(
            [&] {
                RawRedis redis{server};
                return listeners(redis, "orders") == 1;
            },
            20s));
        server.kill();
        // By then its back-off has grown.
        std::this_thread::sleep_for(1500ms);
        server.restart();
        RLock other{client, "other"};
        other.lock();
        const std::int64_t back = monotonic_ns();
        other.unlock();
        REQUIRE(ready_within(waiting, 20s));
        return std::chrono::milliseconds(std::max<std::int64_t>(0, waiting.get() - back) / 1'000'000);
    });
    CHECK(all[3] <= patient(100ms));
}
