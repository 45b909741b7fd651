// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Releases that could not be delivered in the foreground: of holds given back while no server answered, and of numbers
// of which nobody knows what they have, because an answer did not come. Each is sent until it is answered by a server
// whose clock is beyond the instant until which a late copy could take something in that number's name; at most until
// the lease is over that it is about. A copy of a release itself does no harm: its number is never used again.
class Outbox {
public:
    struct Item {
        Unwanted unwanted;
        std::int64_t unsettled;  // by the server's clock: until then it has to be released once more; 0: no longer
        Instant give_up;         // when the lease is over at last
        Instant next;            // when to send
        bool on_the_way = false;
        Backoff backoff{Milliseconds(50), longest_pause};
    };

    // So that the next add() needs no memory.
    void make_room() { items_.reserve(items_.size() + 1); }

    // `from`: when to send it first.
    void add(const Unwanted& unwanted, std::int64_t unsettled, Instant give_up, Instant from) {
        items_.push_back({unwanted, unsettled, give_up, from});
    }

    bool has(std::uint64_t hold) const {
        return std::any_of(items_.begin(), items_.end(), [hold](const Item& i) { return i.unwanted.hold == hold; });
    }

    bool empty() const { return items_.empty(); }

    // What is to be sent now; taken to be on the way from here on.
    std::vector<Item> take_due(Instant now) {
        std::vector<Item> due;
        due.reserve(items_.size());  // so that a failure leaves all as it is
        for (Item& item : items_) {
            if (item.on_the_way || item.next > now || now >= item.give_up) continue;
            item.on_the_way = true;
            due.push_back(item);
        }
        return due;
    }

    // Takes out those whose time is over: how many there were.
    std::size_t take_expired(Instant now) {
        return std::erase_if(items_, [&](const Item& i) { return now >= i.give_up; });
    }

    // Answered by a server whose clock showed this.
    void answered(std::uint64_t hold, std::int64_t server_now, Instant now) {
        for (Item& item : items_) {
            if (item.unwanted.hold != hold || item.unsettled < server_now) continue;
            // The first millisecond of that clock that is beyond it.
            item.next = now + Milliseconds(item.unsettled - server_now + 2);
            // What an answered release left is nobody's; what a late copy takes lasts for a lease from then on.
            item.give_up += Milliseconds(item.unsettled - server_now + 2);
            item.on_the_way = false;
            return;
        }
        forget(hold);
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

    Instant look_at() const {
        Instant at = never;
        for (const Item& i : items_) at = std::min({at, i.give_up, i.on_the_way ? never : i.next});
        return at;
    }

private:
    std::vector<Item> items_;
};

}  // namespace v0_1
}  // namespace redlatch
