// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <system_error>

#include "faults/fault_kit.hpp"
#include "support/history.hpp"
#include "support/shared_memory.hpp"

// Child processes that wait for a lock.
namespace redlatch::fault {

// What they share with the test.
struct Shared {
    std::atomic<int> entered{0};
    std::atomic<bool> may_leave{false};
};

// The role of such a process. Its arguments are the server, the shared memory, and the file to which it writes for how long it
// held the lock.
template <class L>
int wait_for_grant(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    const HistoryFile history{args[2]};
    Client client{args[0], unhurried()};
    L orders{client, "orders"};
    orders.lock();
    ++shared->entered;
    Interval mine{2, monotonic_ns(), 0};
    eventually([&] { return shared->may_leave.load(); }, 60s);
    mine.until = std::min(monotonic_ns(), monotonic_ns(orders.valid_until()));
    history.append(mine);
    std::error_code ec;
    orders.unlock(ec);
    return 0;
}

}  // namespace redlatch::fault
