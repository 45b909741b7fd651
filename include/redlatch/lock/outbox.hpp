// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The numbers of holds to be released, however many levels they have: of a hold, and of the one that it was to be
// handed off to.
struct Unwanted {
    std::uint64_t hold = 0;
    std::uint64_t successor = 0;  // 0 for none
};

// Releases that the foreground could not deliver. They are of holds that were released while no server answered, or of
// numbers whose state is unknown because a reply is missing. Each is resent until a server answers whose clock is past
// the instant until which a late copy could acquire something for that number, or until the lease in question is over.
// A late copy of the release itself is harmless: its number is never used again.
class Outbox {
public:
    // Called once with the first answer of the server: no error if it has done the release.
    using Answered = std::function<void(const std::error_code&)>;

    struct Item {
        Unwanted unwanted;
        std::int64_t unsettled;  // server time until which the release has to be repeated; 0: no repeat
        Instant give_up;         // when the lease is certainly over
        Instant next;            // when to send
        Answered answered{};     // if someone waits for the outcome
        Instant stays_until{};   // until then the lock stays taken for others: see Lease::at_least()
        bool on_the_way = false;
        bool once_more = false;  // True if it has to be sent again, whatever the server answers
        Backoff backoff{Milliseconds(50), longest_pause};
    };

    // Reserves memory for the next add().
    void make_room() { items_.reserve(items_.size() + 1); }

    // `from`: when to send it for the first time.
    void add(const Unwanted& unwanted, std::int64_t unsettled, Instant give_up, Instant from, Answered answered = {},
             Instant stays_until = Instant::min()) {
        items_.push_back({unwanted, unsettled, give_up, from, std::move(answered), stays_until});
    }

    // Returns whom to tell the answer to this release, and forgets that.
    Answered take_answered(std::uint64_t hold) {
        for (Item& item : items_)
            if (item.unwanted.hold == hold && item.answered) return std::exchange(item.answered, nullptr);
        return nullptr;
    }

    bool has(std::uint64_t hold) const {
        return std::any_of(items_.begin(), items_.end(), [hold](const Item& i) { return i.unwanted.hold == hold; });
    }

    bool empty() const { return items_.empty(); }

    // What is to be sent of an item.
    struct Due {
        Unwanted unwanted;
        Instant stays_until;
    };

    // Returns what to send now and marks the items as in flight.
    std::vector<Due> take_due(Instant now) {
        std::vector<Due> due;
        due.reserve(items_.size());  // before any change, so that a failure changes nothing
        for (Item& item : items_) {
            if (item.on_the_way || item.next > now || now >= item.give_up) continue;
            item.on_the_way = true;
            due.push_back({item.unwanted, item.stays_until});
        }
        return due;
    }

    // Removes the items whose lease is over. Returns their number.
    std::size_t take_expired(Instant now) {
        return std::erase_if(items_, [&](const Item& i) { return now >= i.give_up; });
    }

    // Records a reply from a server whose clock showed `server_now`.
    void answered(std::uint64_t hold, std::int64_t server_now, Instant now) {
        for (Item& item : items_) {
            if (item.unwanted.hold != hold) continue;
            if (std::exchange(item.once_more, false)) {
                item.next = now;
                item.on_the_way = false;
                return;
            }
            if (item.unsettled < server_now) continue;
            // The first millisecond of that clock that is past it.
            item.next = now + Milliseconds(item.unsettled - server_now + 2);
            // The answered release removed what there was. A late copy may acquire a whole lease from then on.
            item.give_up += Milliseconds(item.unsettled - server_now + 2);
            item.on_the_way = false;
            return;
        }
        forget(hold);
    }

    // Sends this release again as soon as no answer to it is outstanding. Returns false if there is none.
    bool send_again(std::uint64_t hold, Instant now) {
        for (Item& item : items_) {
            if (item.unwanted.hold != hold) continue;
            item.next = std::min(item.next, now);
            item.once_more = item.on_the_way;
            return true;
        }
        return false;
    }

    void forget(std::uint64_t hold) {
        std::erase_if(items_, [&](const Item& i) { return i.unwanted.hold == hold; });
    }

    void failed(std::uint64_t hold, Instant now) {
        for (Item& item : items_)
            if (item.unwanted.hold == hold) {
                item.on_the_way = false;
                item.next = now + item.backoff.next();
            }
    }

    Instant next_deadline() const {
        Instant at = never;
        for (const Item& i : items_) at = std::min({at, i.give_up, i.on_the_way ? never : i.next});
        return at;
    }

private:
    std::vector<Item> items_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
