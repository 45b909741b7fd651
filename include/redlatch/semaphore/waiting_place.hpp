// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/message_words.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/semaphore_queue.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/semaphore/place_grants.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/wait/subscription.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The place of this process in the queue of a semaphore on the server, and what it is told there: see
// scripts/semaphore_queue.hpp. All waiters of the process share it; the representative asks under its number.
//
// The mutex of SynchronizerCore guards all members.
template <class Protocol>
class WaitingPlace {
public:
    WaitingPlace(CoreOf<Protocol>& core, RequestDeliveries& deliveries)
        : core_(core),
          deliveries_(deliveries),
          subscription_(core.session, core.task, core.protocol.queue().place_channel()) {}

    // Begins a question. Returns the number to ask with; 0 if it is to be asked without a place. Only one at a time asks under
    // the number, because the place is for what that one wants.
    std::uint64_t begin() {
        if (is_asking_) {
            // Who asks under the number has been told, and asks again once it has its answer.
            if (ask_at_ <= Clock::now()) {
                ask_at_ = never;
                was_told_ = true;
            }
            return 0;
        }
        ask_at_ = never;
        is_queued_ = false;
        if (!is_used()) return 0;
        if (number_ == 0) number_ = core_.session.next_request();
        is_asking_ = true;
        grants_.begin();
        asked_at_ = Clock::now();
        ++questions_;
        return number_;
    }

    // A question under this number has ended.
    void end(std::uint64_t number) noexcept {
        if (number == 0) return;
        is_asking_ = false;
        if (std::exchange(was_told_, false)) ask_at_ = Clock::now();
    }

    // Returns until when the others wait for the question that is under way; a time in the past if there is none. If its
    // answer does not come, one of them asks without a place.
    Instant asking_until() const noexcept { return is_asking_ ? asked_at_ + patience : Instant{}; }

    // Changes if somebody has asked under the number, or has left the place: it may stand for what another caller wants.
    std::uint64_t questions() const noexcept { return questions_; }

    // Returns true if a question under this number was the last one that counts: whoever makes permits available knows what
    // its caller wants, or tells everybody.
    bool covers(std::uint64_t number) const { return number != 0 ? number == number_ || number_ == 0 : !is_used(); }

    // Makes the question for these callers.
    template <class Wants>
    Call question(const Wants& wants, const RequestId& request_id, std::uint64_t number) const {
        if constexpr (HasGrants<Protocol>)
            // Without a number it is called beside a question that has one, and the mutex is free.
            return core_.protocol.ask(wants, request_id, number, number != 0 && grants_.is_offering());
        else
            return core_.protocol.ask(wants, request_id, number);
    }

    // Applies the answer to a question under that number for these callers. Without a place at the end of it the process
    // hears everything.
    template <class Wants>
    void answered(std::uint64_t number, const Answer& answer, const Wants& wants) {
        if (number == 0 || number != number_) return;
        is_queued_ = answer.is_queued;
        if (!is_queued_) number_ = 0;
        grants_.offer(is_queued_, wants);
    }

    // A question under that number got no answer. A late copy may take a place even after the process has left, until the
    // background has delivered the take-back of the question, whose mark stops later copies. So the process leaves once more
    // after that delivery. If the outage lasts longer, the place ends by itself.
    void unanswered(std::uint64_t number) noexcept {
        if (number == 0) return;
        late_ = number;
        late_until_ = Clock::now() + core_.session.options().command_timeout + RemoteClock::vouches_up_to;
    }

    // --- grants ---------------------------------------------------------------------------------------------------

    // Returns a grant that a caller wants, or nothing if there is none. While no question is under way that a grant may be
    // for, also returns grants that no caller wants: they have to be given back.
    template <class IsWanted>
    auto take_grant(IsWanted is_wanted) noexcept {
        auto grant = grants_.take([&](const auto& one) { return !is_asking_ || is_wanted(one); });
        // It may be of an earlier question.
        if (grant && grants_.is_for_offer(*grant)) {
            grants_.withdraw();
            // A question that is under way has its place, or gets one.
            if (!is_asking_) {
                number_ = 0;
                is_queued_ = false;
            }
        }
        return grant;
    }

    // A grant was of no use: somebody asks.
    void grant_was_useless() noexcept {
        ask_at_ = Clock::now();
        grants_.was_useless();
    }

    // Leaves the queue: nobody of this process waits any more. Frees the mutex meanwhile. Without memory for that, the
    // place ends by itself.
    void leave(std::unique_lock<std::mutex>& lock) noexcept {
        if (is_asking_) return;  // who asks leaves
        subscription_.stop();
        is_queued_ = false;
        ++questions_;
        // Taken before the mutex is freed: another caller may begin a stay meanwhile.
        const Instant late_until = std::exchange(late_until_, Instant{});
        const std::uint64_t late = std::exchange(late_, 0);
        leave(lock, std::exchange(number_, 0), grants_.withdraw());
        if (late_until > Clock::now()) leave(lock, late, {}, late_until);
    }

    // --- messages -------------------------------------------------------------------------------------------------

    const std::string& channel() const noexcept { return subscription_.channel(); }
    void confirmed() noexcept { subscription_.confirmed(); }
    void disconnected() noexcept { subscription_.disconnected(); }

    // Begins to listen. Returns true if a message may have been missed.
    bool listen() { return number_ != 0 && !is_refused_ && subscription_.listen(); }

    // The user may not listen to this channel. From now on the waiters of this process hear everything.
    void refused(std::unique_lock<std::mutex>& lock) {
        subscription_.refused();
        is_refused_ = true;
        leave(lock, std::exchange(number_, 0), grants_.withdraw());
    }

    // Returns true if a message to all is not for the waiters of this process, who are told when to ask.
    bool ignores(std::string_view payload) const {
        return is_queued_ && number_ != 0 && subscription_.is_confirmed() && SemaphoreQueue::is_for_others(payload);
    }

    // "look <ms> <number>": ask after that time. "grant ...": see take_grant(). Others mean nothing.
    void message(std::unique_lock<std::mutex>& lock, std::string_view payload) {
        const std::string_view word = next_word(payload);
        // The place is over with a grant, whatever becomes of that.
        if (word == "grant" && !grants_.receive(payload)) {
            is_queued_ = false;
            ask_at_ = Clock::now();
        }
        if (word != "look") return;
        const auto in = next_number<std::int64_t>(payload);
        const auto place = next_number<std::uint64_t>(payload);
        if (!in || !is_plausible(*in) || !place) return;
        if (*place == 0) is_queued_ = false;
        ask_at_ = std::min(ask_at_, deadline_after(Clock::now(), Milliseconds(*in)));
        // The place of a question that arrived late.
        if (number_ == 0) leave(lock, *place, {});
    }

    // Returns when the representative has to ask, according to a message since the last question.
    Instant ask_at() const noexcept { return ask_at_; }

private:
    static constexpr Milliseconds patience{500};
    using Offer = typename GrantsOf<Protocol>::Offer;

    bool is_used() const { return core_.protocol.queue().is_used() && !is_refused_; }

    void leave(std::unique_lock<std::mutex>& lock, std::uint64_t number, Offer offer, Instant not_before = {}) noexcept
        try {
        if (number == 0 || !core_.protocol.queue().is_used()) return;
        RequestId request_id = core_.take_lane();
        request_id.wanted_until = 1;  // the script does not look at it, so nobody has to ask for the server's time
        deliveries_.add(
            lock, PendingRequest::Kind::call_off, request_id,
            [&protocol = core_.protocol, number, offer = std::move(offer)](const RequestId& one) {
                if constexpr (HasGrants<Protocol>)
                    return protocol.leave(one, number, offer);
                else
                    return protocol.queue().leave(protocol.marks(), one, number);
            },
            {}, not_before);
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
    }

    CoreOf<Protocol>& core_;
    RequestDeliveries& deliveries_;
    Subscription subscription_;
    GrantsOf<Protocol> grants_;
    std::uint64_t number_ = 0;  // of the place that it has, or may have; 0 for none
    Instant ask_at_ = never;
    Instant asked_at_{};
    std::uint64_t late_ = 0;  // the number of the last question without an answer
    Instant late_until_{};    // when its take-back should have been delivered
    std::uint64_t questions_ = 0;
    bool is_asking_ = false;   // under the number
    bool was_told_ = false;    // while it asked
    bool is_queued_ = false;   // the last answer: this process is told when to ask
    bool is_refused_ = false;  // no right to the channel
};

// What has no queue on the server.
template <class Protocol>
class NoWaitingPlace {
public:
    template <class Core, class Deliveries>
    NoWaitingPlace(Core& core, Deliveries&) : protocol_(core.protocol) {}

    std::uint64_t begin() { return 0; }
    void end(std::uint64_t) noexcept {}
    Instant asking_until() const noexcept { return {}; }
    std::uint64_t questions() const noexcept { return 0; }
    bool covers(std::uint64_t) const { return true; }
    template <class Wants>
    Call question(const Wants& wants, const RequestId& request_id, std::uint64_t) const {
        return protocol_.ask(wants, request_id);
    }
    template <class Wants>
    void answered(std::uint64_t, const Answer&, const Wants&) {}
    void unanswered(std::uint64_t) noexcept {}
    void leave(std::unique_lock<std::mutex>&) noexcept {}
    bool listen() { return false; }
    void confirmed() noexcept {}
    void disconnected() noexcept {}
    void refused(std::unique_lock<std::mutex>&) {}
    bool ignores(std::string_view) const { return false; }
    void message(std::unique_lock<std::mutex>&, std::string_view) {}
    Instant ask_at() const noexcept { return never; }

private:
    const Protocol& protocol_;
};

template <class Protocol>
concept HasWaitingPlace = requires(const Protocol& p) {
    p.queue();
};

template <class Protocol>
using PlaceOf = std::conditional_t<HasWaitingPlace<Protocol>, WaitingPlace<Protocol>, NoWaitingPlace<Protocol>>;

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
