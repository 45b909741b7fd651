// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/core/backoff.hpp"
#include "redlatch/core/deadline.hpp"
#include "redlatch/core/ids.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace redlatch {

// Releases that could not be delivered in the foreground: of holds given back while no server answered, and of
// acquires whose outcome is unknown. Each is sent until it is answered; one that was never sent, at most until the
// lease it is about is over. Until then nothing else may be done in that owner's name, or a late copy would end the
// wrong hold.
class PendingRequests {
public:
    struct Item {
        OwnerNumber owner;
        std::uint64_t request;
        Instant give_up;  // when the lease is over at last
        Instant next;     // when to send
        bool again;       // a copy of it may be on its way already
        bool on_the_way = false;
        bool over = false;  // the lease is, but a copy may still arrive
        Backoff backoff{Milliseconds(50), Milliseconds(1000)};
    };

    // `from`: when to send it first. `again`: it was sent in the foreground already.
    void add(OwnerNumber owner, std::uint64_t request, Instant give_up, Instant from, bool again = false) {
        items_.push_back({owner, request, give_up, from, again});
    }

    bool has(OwnerNumber owner) const {
        return std::any_of(items_.begin(), items_.end(), [&](const Item& i) { return i.owner == owner; });
    }

    bool has_request(std::uint64_t request) const {
        return std::any_of(items_.begin(), items_.end(), [&](const Item& i) { return i.request == request; });
    }

    bool empty() const { return items_.empty(); }

    // What is to be sent now; taken to be on the way from here on.
    std::vector<Item> take_due(Instant now) {
        std::vector<Item> due;
        due.reserve(items_.size());  // so that a failure leaves all as it is
        for (Item& item : items_) {
            if (item.on_the_way || item.next > now || (now >= item.give_up && !item.over)) continue;
            item.on_the_way = true;
            due.push_back(item);
            item.again = true;
        }
        return due;
    }

    // How many leases have ended since the last look. What was never sent is forgotten; what was stays until it is
    // answered, for a copy that is still on its way would end the owner's next hold.
    std::size_t end_leases(Instant now) {
        const std::size_t before = items_.size();
        std::erase_if(items_, [&](const Item& i) { return now >= i.give_up && !i.again && !i.on_the_way; });
        std::size_t ended = before - items_.size();
        for (Item& item : items_)
            if (now >= item.give_up && !std::exchange(item.over, true)) ++ended;
        return ended;
    }

    // Takes out those whose time is over: how many there were.
    std::size_t take_expired(Instant now) {
        return std::erase_if(items_, [&](const Item& i) { return now >= i.give_up; });
    }

    void delivered(std::uint64_t request) {
        std::erase_if(items_, [&](const Item& i) { return i.request == request; });
    }

    void failed(std::uint64_t request, Instant now) {
        for (Item& item : items_)
            if (item.request == request) {
                item.on_the_way = false;
                item.next = now + item.backoff.next();
            }
    }

    Instant look_at() const {
        Instant at = never;
        for (const Item& i : items_) {
            if (!i.over) at = std::min(at, i.give_up);
            if (!i.on_the_way) at = std::min(at, i.next);
        }
        return at;
    }

private:
    std::vector<Item> items_;
};

}  // namespace redlatch
