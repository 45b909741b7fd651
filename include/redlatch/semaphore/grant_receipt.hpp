// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/semaphore/place_grants.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/semaphore/waiting_place.hpp"
#include "redlatch/wait/waiter.hpp"

#include <mutex>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Hands what was granted at the place of this process to the callers that it is for, and gives back the rest. The mutex of
// SynchronizerCore guards all parts.
template <class Protocol, class Leases, class Room>
class GrantReceipt {
    using Want = typename Protocol::Want;
    using Member = typename Room::Member;

public:
    GrantReceipt(CoreOf<Protocol>& core, RequestDeliveries& deliveries, Leases& leases, PlaceOf<Protocol>& place,
                 Room& room)
        : core_(core), deliveries_(deliveries), leases_(leases), place_(place), room_(room) {}

    // Serves those to whom something was granted. Gives back what nobody wants: its caller has left, or has asked again.
    // `me`: the running waiter, which needs no wake-up.
    void serve(std::unique_lock<std::mutex>& lock, const Member* me = nullptr) {
        if constexpr (HasGrants<Protocol>) {
            const auto receiver = [&](const auto& grant) {
                return room_.queue.first_that([&](const Member& one) { return one.want.ids == grant.ids; });
            };
            while (const auto grant = place_.take_grant(receiver)) {
                Member* const member = receiver(*grant);
                if (!member || !leases_.accept(member->want, *grant)) {
                    if (member) draw_new_ids(member->want);
                    refuse(lock, *grant);
                    continue;
                }
                core_.session.count_acquisition();
                member->phase = Waiter::Phase::served;
                room_.queue.leave(*member);
                if (member != me) room_.wake(*member);
                room_.notify();  // the place is over, so the next one asks
            }
        }
    }

    // Returns true if a caller that has asked, and is not in the queue of this process yet, was granted what it wants.
    bool take_for(std::unique_lock<std::mutex>& lock, Want& want) {
        if constexpr (HasGrants<Protocol>) {
            const auto is_mine = [&](const auto& grant) { return grant.ids == want.ids; };
            while (const auto grant = place_.take_grant(is_mine)) {
                if (is_mine(*grant) && leases_.accept(want, *grant)) {
                    core_.session.count_acquisition();
                    return true;
                }
                if (is_mine(*grant)) draw_new_ids(want);
                refuse(lock, *grant);
            }
        }
        return false;
    }

    // What was offered or granted under the old ids is being given back.
    static void draw_new_ids(Want& want) noexcept try {
        if constexpr (HasGrants<Protocol>) want.renew();
    } catch (...) {  // no random bytes: its question draws them, or fails
    }

private:
    // Gives back a grant that no caller wants, and makes the representative ask. A grant ends by itself if it is nearly over,
    // because a resent question may take permits under the same ids after its end, or if memory is too short to give it back.
    template <class Grant>
    void refuse(std::unique_lock<std::mutex>& lock, const Grant& grant) noexcept try {
        if (leases_.holds(grant)) return;  // the message came twice
        place_.grant_was_useless();
        if (!leases_.lasts(grant)) return;
        std::vector<Want> unused(1);
        unused.front().ids = grant.ids;
        RequestId request_id = core_.take_lane();
        request_id.wanted_until = 1;  // no copy of an acquire is in flight, so nobody has to ask for the server's time
        deliveries_.add(lock, PendingRequest::Kind::change, request_id,
                        [&protocol = core_.protocol, unused = std::move(unused)](const RequestId& one) {
                            return protocol.give_back(one, unused);
                        });
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
    }

    CoreOf<Protocol>& core_;
    RequestDeliveries& deliveries_;
    Leases& leases_;
    PlaceOf<Protocol>& place_;
    Room& room_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
