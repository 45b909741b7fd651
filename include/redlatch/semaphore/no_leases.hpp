// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/release_round.hpp"

#include <memory>
#include <mutex>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The part of a semaphore whose permits have no leases: it has nothing to keep.
struct NoLeases {
    template <class Core, class Deliveries>
    NoLeases(Core&, Deliveries&) {}

    bool empty() const { return true; }
    void release_all(const std::shared_ptr<ReleaseRound>&) {}
    Instant next_deadline() const { return never; }
    Instant next_loss() const { return never; }
    void prepare() {}
    template <class Wants>
    void accept(std::unique_lock<std::mutex>&, const Wants&, const SendTime&) {}
    template <class Want>
    void discard(const Want&) {}
    void on_timer(std::unique_lock<std::mutex>&, Instant) {}
    void expire(Instant) {}
    bool reads_clock() { return false; }
    void on_failover() {}
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
