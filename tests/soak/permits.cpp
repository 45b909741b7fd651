// SPDX-License-Identifier: MIT
// The turns at both kinds of semaphores.
#include <algorithm>
#include <optional>
#include <redlatch/redlatch.hpp>
#include <system_error>
#include <thread>
#include <vector>

#include "worker.hpp"

namespace redlatch::soak {

using namespace redlatch::detail;

namespace {

void give_up(Crew& crew, Entry& entry, const std::error_code& ec) {
    crew.check(ec, entry);
    entry.what = Entry::What::gave_up;
    entry.returned = test::monotonic_ns();
    if (ec) entry.deadline = 0;
    crew.done(entry);
}

void hold(Crew& crew) {
    const bool is_long = crew.chance(3);
    std::this_thread::sleep_for(is_long ? crew.draw_ms(100, 900) : crew.draw_ms(0, 15));
}

// The background releases the permits, as long as this process lives.
void leave_to_background(Crew& crew, std::uint64_t epoch) { crew.shared.in_background[epoch] |= 1U << crew.worker; }

void take_permits(Crew& crew, Semaphore& semaphore, std::uint64_t epoch) {
    Entry entry = crew.entry(Entry::What::turn, Kind::semaphore, epoch);
    const milliseconds patience = crew.draw_ms(1, 1500);
    entry.token = static_cast<std::uint64_t>(crew.draw(1, 2));
    entry.called = test::monotonic_ns();
    entry.deadline = entry.called + ns(patience);
    crew.asking(entry);
    std::error_code ec;
    const auto wanted = static_cast<std::ptrdiff_t>(entry.token);
    if (!semaphore.try_acquire_for(patience, wanted, ec)) {
        leave_to_background(crew, epoch);  // also if its time was up before the reply arrived
        return give_up(crew, entry, ec);
    }
    entry.held = test::monotonic_ns();
    entry.valid = INT64_MAX;
    crew.holding(entry);
    hold(crew);
    entry.until = entry.released = test::monotonic_ns();
    crew.giving_back(entry.until);
    semaphore.release(wanted, ec);
    entry.returned = test::monotonic_ns();
    if (ec) {
        leave_to_background(crew, epoch);
        entry.released = 0;
    }
    crew.check(ec, entry);
    crew.done(entry);
}

// The permit is certain until `valid`. For a watched permit the number of renewals is unknown, but a release that
// succeeds proves that it never ended.
void take_permit(Crew& crew, PermitExpirableSemaphore& semaphore) {
    Entry entry = crew.entry(Entry::What::turn, Kind::permits, lock_number(Kind::permits));
    const milliseconds patience = crew.draw_ms(1, 1500);
    const milliseconds lease = crew.draw_ms(300, longest_lease.count());
    entry.watched = crew.chance(50) ? 1 : 0;
    entry.called = test::monotonic_ns();
    entry.deadline = entry.called + ns(patience);
    crew.asking(entry);
    std::error_code ec;
    const std::optional<PermitId> id = entry.watched != 0 ? semaphore.try_acquire_for(patience, ec)
                                                          : semaphore.try_acquire_for(patience, Lease{lease}, ec);
    if (!id) {
        give_up(crew, entry, ec);
        if (ec) return;
        // The server may have lost them. If not, neither call changes anything.
        const auto permits = static_cast<std::ptrdiff_t>(permits_limit);
        if (crew.chance(50))
            semaphore.try_set_permits(permits, ec);
        else
            semaphore.set_permits(permits, ec);
        return;
    }
    entry.held = test::monotonic_ns();
    // Counted from before the call: rather too early than too late, if the call waited. The permit may have been granted.
    entry.valid = entry.called + ns(entry.watched != 0 ? std::min(watchdog_timeout, offer) : lease) * 998 / 1000;
    entry.token = hash_of(id->text());
    crew.holding(entry);
    hold(crew);
    const std::int64_t released = test::monotonic_ns();
    crew.giving_back(released);
    semaphore.release(*id, ec);
    entry.returned = test::monotonic_ns();
    entry.error = static_cast<std::uint16_t>(ec.value());
    if (!ec) entry.released = released;
    entry.until = entry.watched != 0 && !ec ? released : std::min(released, entry.valid);
    crew.check(ec, entry);
    crew.done(entry);
}

}  // namespace

void soak_semaphore(Crew& crew) {
    while (!crew.stopping()) {
        const std::uint64_t epoch = crew.shared.semaphore_epoch;
        Semaphore semaphore{crew.client, semaphore_name(epoch)};
        std::error_code ec;
        semaphore.try_set_permits(static_cast<std::ptrdiff_t>(semaphore_limit), ec);
        while (!crew.stopping() && crew.shared.semaphore_epoch == epoch) {
            crew.think(30);
            take_permits(crew, semaphore, epoch);
        }
    }
}

void soak_permits(Crew& crew) {
    PermitExpirableSemaphore semaphore{crew.client, info(Kind::permits).of};
    std::error_code ec;
    semaphore.try_set_permits(static_cast<std::ptrdiff_t>(permits_limit), ec);
    while (!crew.stopping()) {
        crew.think(30);
        take_permit(crew, semaphore);
    }
}

}  // namespace redlatch::soak
