// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/losses.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// What one owner holds of one lock. Reentry stacks levels, each taken with a lease of its own or under the watchdog.
// The hold is renewed as long as a level under the watchdog remains, and lasts as long as the longest lease of all.
struct Hold {
    OwnerNumber owner = 0;
    std::uint64_t id = 0;            // new for each hold, and its owner's number on the wire
    std::int64_t unsettled = 0;      // until then, by the server's clock, a late copy may take the lock in its name
    std::uint32_t count = 0;         // levels; 0 when the hold is lost
    std::uint32_t dead = 0;          // levels of lost holds whose unlock() is still to come
    std::uint32_t watched_from = 0;  // the lowest level under the watchdog, 0 for none
    std::int64_t token = 0;          // the fencing token, of locks that have one
    Instant valid_until{};
    Clock::duration notice = Milliseconds(2);
    Instant renew_at{};
    Instant check_at = never;        // of a hold without the watchdog: when to ask whether the server has it
    bool doubtful = false;           // something that was sent in its name was left without an answer
    bool renewing = false;           // a renewal, or such a question, is on its way
    std::optional<LossSource> lost;  // made when somebody asks for the token

    Clock::duration suspended = redlatch::suspended();  // that of the machine, when valid_until was worked out

    // The steady clock stands still while the machine is suspended, but the lease does not. Whether it did.
    bool look_at_suspension() noexcept {
        const Clock::duration grown = suspended_since(suspended);
        suspended += grown;
        if (valid_until != Instant::min()) valid_until -= grown;
        return grown > Clock::duration::zero();
    }

    bool live() const noexcept { return count > 0; }
    bool watched() const noexcept { return watched_from > 0; }

    // One level more, confirmed by the server for a command sent at `sent`.
    void enter(Instant sent, std::optional<Milliseconds> lease, Milliseconds watchdog_timeout) {
        look_at_suspension();
        ++count;
        if (!lease) {
            if (!watched()) {
                watched_from = count;
                renew_at = sent + watchdog_timeout / 3;
            }
            lease = watchdog_timeout;
        }
        valid_until = std::max(valid_until, redlatch::valid_until(sent, *lease));
    }

    // One level less.
    void leave() {
        if (watched_from == count) watched_from = 0;
        --count;
    }

    void renewed(Instant sent, Milliseconds watchdog_timeout) {
        look_at_suspension();
        renewing = false;
        valid_until = std::max(valid_until, redlatch::valid_until(sent, watchdog_timeout));
        renew_at = sent + watchdog_timeout / 3;
    }

    // The server has it, for as long as before.
    void checked() {
        renewing = false;
        check_at = never;
    }

    // The answer to a renewal did not come: again soon, so that a lost message costs a fraction of the margin.
    void renewal_failed(Instant now, Milliseconds watchdog_timeout) {
        renewing = false;
        doubtful = true;
        (watched() ? renew_at : check_at) = now + std::max(Milliseconds(10), watchdog_timeout / 60);
    }

    // The server may not have it any more: it is asked at once.
    void doubt(Instant now) { (watched() ? renew_at : check_at) = now; }
    Instant ask_at() const noexcept { return watched() ? renew_at : check_at; }

    // The levels that were held wait for their unlock(), which will find out.
    void lose() {
        dead += count;
        count = 0;
        watched_from = 0;
        renewing = false;
    }

    // Losing is told a little before the lease can end, because telling takes a moment too: as long as it takes on this
    // machine, but never for much of a short lease.
    void set_notice(Clock::duration needed, Milliseconds lease) noexcept {
        notice = std::min<Clock::duration>(needed, Clock::duration(lease) / 16);
    }
    Instant lost_at() const noexcept { return valid_until - notice; }

    // When the background has to look at this hold.
    Instant look_at() const noexcept { return renewing ? never : ask_at(); }
};

// One owner's hold, as others see it: its number, 0 for none, and until when it is certain.
struct HeldPart {
    std::uint64_t hold = 0;
    Instant until = Instant::min();
};

// The holds of one lock in this process. A flat vector: most locks have one holder at most, and it does not allocate
// again once it has grown.
class HoldTable {
public:
    Hold* find(OwnerNumber owner) {
        const auto found = std::find_if(holds_.begin(), holds_.end(), [&](const Hold& h) { return h.owner == owner; });
        return found == holds_.end() ? nullptr : &*found;
    }

    // The owner's record, made when there is none, with a new hold in it.
    Hold& start(OwnerNumber owner, std::uint64_t id) {
        Hold* hold = find(owner);
        if (!hold) {
            holds_.emplace_back();
            hold = &holds_.back();
            hold->owner = owner;
        }
        hold->id = id;
        hold->unsettled = 0;
        hold->valid_until = {};
        hold->suspended = suspended();
        hold->check_at = never;
        hold->doubtful = false;
        hold->renewing = false;
        hold->lost.reset();
        return *hold;
    }

    void erase(OwnerNumber owner) {
        std::erase_if(holds_, [&](const Hold& h) { return h.owner == owner; });
    }

    // Forgets holds that were lost, but for those of which levels are still to be given back.
    void erase_lost() {
        std::erase_if(holds_, [](const Hold& h) { return !h.live() && h.dead == 0; });
    }

    // Forgets the live part of a hold that was given back; lost levels below it are remembered.
    void finish(Hold& hold) {
        hold.count = 0;
        hold.watched_from = 0;
        hold.lost.reset();
        if (hold.dead == 0) erase(hold.owner);
    }

    // Until when the lock is certainly held by somebody of this process; the past when it is not.
    Instant held_until() const {
        Instant until{};
        for (const Hold& h : holds_)
            if (h.live()) until = std::max(until, h.valid_until);
        return until;
    }

    bool any_live() const {
        return std::any_of(holds_.begin(), holds_.end(), [](const Hold& h) { return h.live(); });
    }

    auto begin() { return holds_.begin(); }
    auto end() { return holds_.end(); }

private:
    std::vector<Hold> holds_;
};

}  // namespace v0_1
}  // namespace redlatch
