// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/scheduler.hpp"

#include <algorithm>
#include <cstdint>
#include <list>
#include <string>

namespace sim {

// Counts from outside how many permits of a semaphore are held, and until when that is certain.
class Ledger {
public:
    Ledger(std::int64_t permits, Nanos wake_up_bound) : permits_(permits), bound_(wake_up_bound) {}

    struct Loan {
        std::int64_t permits;
        Nanos until;
    };
    using Loans = std::list<Loan>;

    void waits() {
        if (++waiting_ == 1) waited_since_ = scheduler().now();
    }
    void waits_no_more() { --waiting_; }
    void disturbed() { waited_since_ = std::max(waited_since_, scheduler().now()); }

    Loans::iterator take(std::int64_t n, Nanos until) {
        Scheduler& s = scheduler();
        const Nanos since = std::max(free_since_, waited_since_);
        // A process that crashed may have been granted permits that it did not know of yet.
        if (waiting_ > 0 && loans_.empty() && s.now() - since > bound_ && !s.has_any_crashed())
            s.fail("lost wake-up: all permits were free for " + std::to_string((s.now() - since) / ms) +
                   " ms while a thread waited");
        const auto loan = loans_.insert(loans_.end(), {n, until});
        if (certain() > permits_)
            s.fail("more permits are given than there are: " + std::to_string(certain()) + " of " +
                   std::to_string(permits_));
        return loan;
    }

    void give_back(Loans::iterator loan) {
        loans_.erase(loan);
        if (loans_.empty()) free_since_ = scheduler().now();
    }

    std::int64_t certain() const {
        std::int64_t sum = 0;
        for (const Loan& loan : loans_)
            if (loan.until > scheduler().now()) sum += loan.permits;
        return sum;
    }

private:
    const std::int64_t permits_;
    const Nanos bound_;
    Loans loans_;
    std::int64_t waiting_ = 0;
    Nanos waited_since_ = 0;
    Nanos free_since_ = 0;
};

}  // namespace sim
