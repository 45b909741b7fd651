// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "journal.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/error.hpp"
#include "redlatch/fwd.hpp"
#include "setting.hpp"
#include "support/fenced_resource.hpp"
#include "support/history.hpp"

namespace redlatch::soak {

// The surroundings of a worker's thread.
struct Seat {
    Client& client;
    const std::vector<std::unique_ptr<Client>>& steady;  // of the servers without faults
    Shared& shared;
    const Journal& journal;
    const Paths& paths;
    std::uint64_t seed;
    std::size_t worker;
    std::size_t incarnation;
    std::size_t thread;
};

// One thread of a worker: its resources, and its records.
class Crew {
public:
    explicit Crew(const Seat& seat)
        : client(seat.client),
          steady(seat.steady),
          shared(seat.shared),
          paths(seat.paths),
          worker(seat.worker),
          incarnation(seat.incarnation),
          owner(owner_number(seat.worker, seat.incarnation, seat.thread)),
          underway(seat.shared.underway[seat.worker][seat.thread]),
          journal_(seat.journal),
          random_(seat.seed * 1'000'003 + owner) {}

    bool stopping() const { return shared.stop.load(std::memory_order_relaxed); }

    std::int64_t draw(std::int64_t least, std::int64_t most) {
        return std::uniform_int_distribution<std::int64_t>{least, most}(random_);
    }
    bool chance(int percent) { return draw(1, 100) <= percent; }
    milliseconds draw_ms(std::int64_t least, std::int64_t most) { return milliseconds{draw(least, most)}; }
    void think(std::int64_t most_ms) {
        std::this_thread::sleep_for(std::chrono::microseconds{draw(0, most_ms * 1000)});
    }

    Entry entry(Entry::What what, Kind kind, std::uint64_t lock) const {
        return {.what = what, .kind = static_cast<std::uint32_t>(kind), .lock = lock, .owner = owner};
    }

    // The process may be killed from here on.
    void asking(const Entry& entry) {
        underway.kind = entry.kind;
        underway.lock = entry.lock;
        underway.called = entry.called;
        underway.held = 0;
        underway.token = entry.token;
        underway.state.store(1, std::memory_order_release);
    }
    void holding(const Entry& entry) {
        underway.state.store(0, std::memory_order_release);
        underway.held = entry.held;
        underway.until = entry.valid;
        underway.token = entry.token;
        underway.read = entry.read;
        underway.state.store(2, std::memory_order_release);
    }
    // The lock may have another holder from here on.
    void giving_back(std::int64_t now) { underway.until = std::min(underway.until, now); }
    void done(const Entry& entry) {
        journal_.append(entry);
        underway.state.store(0, std::memory_order_release);
        ++shared.cycles[entry.kind];
    }
    void note(const Entry& entry) { journal_.append(entry); }

    // Records errors that the library must never return here, whatever the faults.
    void check(const std::error_code& ec, const Entry& entry) {
        if (!ec || ec == errc::unreachable || ec == errc::overloaded || ec == errc::rejected || ec == errc::hold_lost ||
            ec == errc::unknown_permit)
            return;
        Entry failure = entry;
        failure.what = Entry::What::failure;
        failure.token = static_cast<std::uint64_t>(ec.value());
        failure.returned = test::monotonic_ns();
        journal_.append(failure);
    }

    Client& client;
    const std::vector<std::unique_ptr<Client>>& steady;
    Shared& shared;
    const Paths& paths;
    const std::size_t worker;
    const std::size_t incarnation;
    const std::uint64_t owner;
    Underway& underway;

private:
    const Journal& journal_;
    std::mt19937_64 random_;
};

// Each runs until the soak stops.
void soak_rlock(Crew& crew);
void soak_fair(Crew& crew);
void soak_fenced(Crew& crew);
void soak_spin(Crew& crew);
void soak_read_write(Crew& crew);
void soak_multi(Crew& crew);
void soak_red(Crew& crew);
void soak_mutex(Crew& crew);
void soak_leader(Crew& crew);
void soak_semaphore(Crew& crew);
void soak_permits(Crew& crew);
void soak_latch(Crew& crew);
void count_down_latches(Crew& crew);

}  // namespace redlatch::soak
