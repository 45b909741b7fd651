// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/semaphore/changes.hpp"
#include "redlatch/semaphore/grant_receipt.hpp"
#include "redlatch/semaphore/no_leases.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/semaphore/questions.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/request_queue.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/semaphore/waiting_place.hpp"
#include "redlatch/session/release_round.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/wait/patience.hpp"
#include "redlatch/wait/wait_request.hpp"
#include "redlatch/wait/waiting_room.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Protocols whose callers may hand over what they release: see Synchronizer.
template <class Protocol>
concept HandsOver = requires {
    requires Protocol::hands_over;
};

// One semaphore or latch in this process: all objects of its name share it. It has the waiting threads, and sends their
// requests. It records no owners. `Protocol` makes the calls and reads the replies:
//   kind, key(), channel(), marks()
//   takes                          True if a request takes something from other callers (permits), so that there is an
//                                  order of service and something to give back; False for a latch, which is only
//                                  queried
//   most_at_once                   how many callers one request may serve
//   takes_back_by_mark             True if take_back() depends on the mark of the request, which does not stay forever
//   Want                           what a caller wants, and `served`: True if the last request succeeded; its renew(),
//                                  if there is one, is called before each further request
//   ask(wants, request_id), decode(reply, wants) -> how long to wait before a retry may help
//   take_back(request_id, wants)       gives back whatever an acquire of unknown outcome took, or will take
//   give_back(request_id, wants)       gives back what was taken for callers that have left
//   queue()                        if its waiters queue up on the server: see waiting_place.hpp
//   Grant, may_be_granted(want), leave(request_id, place, granted)     if what they want may be granted to them there
//   hands_over                     True if what one caller releases is as good as any for another one
// `Leases` is the part that keeps the leases of what was taken. NoLeases shows which members it needs.
//
// The mutex of SynchronizerCore guards all parts.
template <class Protocol, class Leases = NoLeases>
class Synchronizer final : public SynchronizerTask {
public:
    // Makes the state of a name.
    static constexpr StateMaker maker{Protocol::kind,
                                      [](Session& session, const std::string& key) -> std::shared_ptr<NamedState> {
                                          return std::make_shared<Synchronizer>(session, key);
                                      }};
    using Want = typename Protocol::Want;
    using Queue = RequestQueue<Want>;
    using Member = typename Queue::Member;

    // `more` is for the constructor of the protocol.
    template <class... More>
    Synchronizer(Session& session, const std::string& key, const More&... more)
        : core_(*this, session, key, more...), room_(core_.mutex, session, *this, core_.protocol.channel()) {
        // Only a latch can have such a channel. Redisson's cannot have such names in a cluster, either.
        if (session.transport().route(room_.channel()) != session.transport().route(core_.key()))
            throw Error(errc::invalid_argument, core_.key(),
                        "in a cluster, the name of a CountDownLatch must not have a {tag}; its channel would be in "
                        "another slot");
    }

    ~Synchronizer() override {
        core_.session.timers().forget(*this);
        core_.session.losses().timers().forget(*this);
    }

    std::string_view kind() const noexcept override { return core_.protocol.kind; }
    const std::string& key() const noexcept override { return core_.key(); }
    Session& session() const noexcept override { return core_.session; }
    Protocol& protocol() noexcept { return core_.protocol; }
    Leases& leases() noexcept { return leases_; }

    bool is_idle() override {
        const std::lock_guard lock(core_.mutex);
        return room_.queue.empty() && deliveries_.empty() && leases_.empty();
    }

    void release_all(const std::shared_ptr<ReleaseRound>& round) override { leases_.release_all(round); }

    // --- asking and waiting -----------------------------------------------------------------------------------

    // Returns true if `want` was served. Returns false if the deadline passes or a stop is requested; then nothing was
    // taken. Throws Error. Both arguments must outlive the task.
    Task<bool> obtain(Want& want, WaitRequest& request) {
        request.settings.unreachable_timeout = changes_.patience_of(request.settings);
        if (request.stop.stop_requested()) co_return false;
        const Instant begun = Clock::now();
        std::unique_lock lock(core_.mutex);
        if (room_.queue.empty()) patience_.answered();
        Member me(want, request.by);
        me.require_replicas = request.settings.require_replicas;
        me.require_fsync = request.settings.require_fsync;
        if (request.one_try || room_.queue.empty() || !Protocol::takes) {
            const std::uint64_t generation = room_.queue.generation();
            std::uint64_t place = 0;
            const std::optional<Answer> answer = co_await first_question(lock, want, request, place);
            if (want.served) co_return true;
            if (!answer || request.one_try) co_return false;
            me.questions = place_.questions();  // before the mutex may be free
            if (grants_.take_for(lock, want)) {
                leave_if_last(lock);
                co_return true;
            }
            me.want = want;
            if (place_.covers(place)) me.refusal = {generation, *answer};
            is_set_up_ = answer->is_set_up;
            if (begun < request.deadline) tell_if_not_set_up(me, *answer);
        }
        lock.unlock();
        const bool is_served = co_await room_.wait(*this, me, request);
        want = me.want;
        if (is_served) co_return true;
        // Without a wait, nobody has left the queue.
        lock.lock();
        leave_if_last(lock);
        co_return false;
    }

    // --- changing ---------------------------------------------------------------------------------------------

    using Undelivered = detail::Undelivered;
    using Failure = detail::Failure;

    // See Changes::make().
    Reply change(const Settings& settings, const MakeCall& make, Undelivered then = Undelivered::call_off,
                 Failure* failure = nullptr, MakeCall call_off = {}) {
        return changes_.make(settings, make, then, failure, std::move(call_off));
    }

    // Leaves a change to the background. `make` must own what it uses.
    void change_later(MakeCall make) {
        std::unique_lock lock(core_.mutex);
        deliveries_.add(lock, PendingRequest::Kind::change, core_.take_lane(), std::move(make));
    }

    // Reads the reply to a change: 1 if it was made, 0 if not.
    bool is_one(const Reply& reply) const {
        if (!reply.is_integer()) throw unexpected(reply, key());
        return reply.integer == 1;
    }

    // Hands a released amount to the first waiter of this process, if that waiter wants exactly as much. To the server and to
    // other processes this looks as if the waiter had taken it at once, so it costs no command. After local_handoff_limit
    // hand-offs in a row other processes get a turn. Returns false if the release has to go to the server.
    bool hand_over(std::int64_t amount, const Settings& settings) requires HandsOver<Protocol> {
        const std::lock_guard lock(core_.mutex);
        Member* const successor = room_.queue.front();
        const bool is_confirmed = settings.require_replicas != 0 || settings.require_fsync;
        // A question that is under way may be answered with what the successor wants. A release creates what does not exist.
        if (!successor || !is_set_up_ || successor->phase != Waiter::Phase::waiting ||
            successor->want.amount() != amount || is_confirmed || successor->require_replicas != 0 ||
            successor->require_fsync || handoffs_ >= settings.local_handoff_limit) {
            handoffs_ = 0;
            return false;
        }
        ++handoffs_;
        core_.session.count_handoff();
        core_.session.count_acquisition();
        successor->want.served = true;
        successor->phase = Waiter::Phase::served;
        room_.queue.leave(*successor);
        room_.queue.saw(amount, Clock::now());
        // The next one waits at the place of this process, too. What the server has answered holds for one that wants the
        // same.
        if (Member* const next = room_.queue.front()) {
            if (next->want.amount() == amount) next->refused_at = std::max(next->refused_at, successor->refused_at);
            room_.wake(*next);
        }
        room_.wake(*successor);
        return true;
    }

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    void joined(Member& me) {
        const Instant now = Clock::now();
        // Another caller has left the place since this one's question: what was offered to this one is being given back.
        if (me.questions != 0 && me.questions != place_.questions()) grants_.draw_new_ids(me.want);
        if (me.refusal && room_.queue.is_front(me))
            room_.queue.refused(me, me.refusal->generation, me.refusal->answer.hint, now, me.refusal->answer.there);
        // A message since this caller's query was answered for the others only, who may wait for something else.
        if constexpr (!Protocol::takes)
            if (!room_.queue.is_front(me) && me.refusal && me.refusal->generation != room_.queue.generation())
                room_.notify();
        // The representative may let this caller pass.
        if (!room_.queue.is_front(me) && !room_.queue.is_within_reach(room_.queue.front()->want, now))
            room_.wake_front();
        // Another caller has asked under the number of the place since, and has left.
        if (me.refusal && room_.queue.is_front(me) && me.questions != place_.questions()) room_.notify();
        // In this order: see scripts/semaphore_queue.hpp.
        room_.listen();
        if (place_.listen()) room_.notify();
    }

    NextStep next(Member& me, Instant now) {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.error) std::rethrow_exception(me.error);
        if (!room_.queue.is_front(me)) return {NextStep::Kind::sleep};
        if (const Instant until = place_.asking_until(); now < until) return {NextStep::Kind::sleep, until};
        const QueueStep step = room_.queue.step(now);
        if (step.ask || now >= place_.ask_at()) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, std::min(step.sleep_until, place_.ask_at()), room_.is_receivable()};
    }

    // Sends one request for the first callers in the queue, `me` among them. Some may leave meanwhile.
    Task<void> ask(std::unique_lock<std::mutex>& lock, Member& me, const WaitRequest& request) {
        std::vector<Want> wants;
        std::vector<std::uint64_t> numbers;
        const Instant asked = Clock::now();
        for (const Member* member : room_.queue.first(Protocol::most_at_once)) {
            // One request is confirmed in one way. Who requires another number of replicas, or a disk, asks next.
            if (member->require_replicas != me.require_replicas || member->require_fsync != me.require_fsync) break;
            wants.push_back(member->want);
            if constexpr (requires(Want & want) { want.renew(); }) wants.back().renew();
            if constexpr (Protocol::takes) wants.back().lets_pass = room_.queue.lets_pass(member->want, asked);
            numbers.push_back(member->number);
        }
        std::vector<Want> unclaimed;
        unclaimed.reserve(wants.size());  // once the server has answered, nothing may fail for want of memory
        const std::uint64_t generation = room_.queue.generation();
        const std::uint64_t place = place_.begin();
        std::optional<Answer> answer;
        try {
            answer = co_await questions_.ask(lock, std::span<Want>(wants), request, false, place);
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            place_.end(place);
            grants_.serve(lock, &me);
            if (me.is_served()) co_return;  // it was granted what it wants meanwhile
            throw;
        }
        place_.end(place);
        if (!answer) {
            grants_.serve(lock, &me);
            co_return;
        }
        is_set_up_ = answer->is_set_up;
        tell_if_not_set_up(me, *answer);
        hand_out(lock, me, wants, numbers, {generation, *answer}, std::move(unclaimed));
        grants_.serve(lock, &me);
        try {
            if (place_.listen()) room_.notify();
        } catch (...) {  // no memory, no thread: the server drops the place when nobody hears what it is told
        }
    }

    void left(std::unique_lock<std::mutex>& lock, Member&) {
        if (room_.queue.empty()) patience_.answered();
        leave_if_last(lock);
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant, std::vector<Renewal>&) override {
        std::unique_lock lock(core_.mutex);
        leases_.on_timer(lock, now);
        deliveries_.drop_expired(now);
        schedule();
        deliveries_.deliver(lock);
        const bool reads_clock = leases_.reads_clock();
        lock.unlock();
        if (reads_clock) core_.session.read_server_clock(key());
        core_.session.forget_if_unused(*this);
    }

    void expire(Instant now) override {
        const std::lock_guard lock(core_.mutex);
        leases_.expire(now);
    }

    void on_failover() override {
        const std::lock_guard lock(core_.mutex);
        leases_.on_failover();
    }

    void schedule() override {
        const Instant at = std::min(deliveries_.next_deadline(), leases_.next_deadline());
        if (at != never) core_.session.timers().schedule(*this, at);
        if (const Instant lost_at = leases_.next_loss(); lost_at != never)
            core_.session.losses().timers().schedule(*this, lost_at);
    }

    // With a subscription this process gets the message of its own change, too.
    void has_changed() override {
        if (!room_.is_subscribed()) room_.notify();
    }

    void subscribed(const std::string& channel) override {
        const std::lock_guard lock(core_.mutex);
        if (channel == room_.channel()) return room_.subscribed();
        // The waiters ask when the other subscription is confirmed, too.
        place_.confirmed();
        if (room_.is_subscribed()) room_.notify();
    }

    void subscription_refused(const std::string& channel, const Reply& why) override {
        std::unique_lock lock(core_.mutex);
        if (channel == room_.channel()) return room_.refused(error_of(why, key()));
        place_.refused(lock);
        room_.notify();
    }

    // Any message may mean that the state has changed.
    void message(const std::string& channel, std::string_view payload) override {
        std::unique_lock lock(core_.mutex);
        if (channel != room_.channel()) {
            place_.message(lock, payload);
            grants_.serve(lock);
            room_.wake_front();
        } else if (!place_.ignores(payload)) {
            room_.notify();
        }
    }

    void disconnected(const std::string& channel) override {
        const std::lock_guard lock(core_.mutex);
        channel == room_.channel() ? room_.disconnected() : place_.disconnected();
    }

private:
    // Raises an event if nobody has set up what the caller waits for: once in a wait. Someone may still do so.
    void tell_if_not_set_up(Member& me, const Answer& answer) noexcept {
        if (answer.is_set_up || std::exchange(me.is_told, true)) return;
        core_.session.raise(Event::Kind::not_set_up, key(),
                            "a caller waits for its permits, but nobody has set it up; call try_set_permits()");
    }

    // Gives each caller what the request got for it. Gives back what it got for callers that have left, for whom
    // `unclaimed` has room.
    void hand_out(std::unique_lock<std::mutex>& lock, const Member& me, std::vector<Want>& wants,
                  const std::vector<std::uint64_t>& numbers, const RefusedQuery& refusal, std::vector<Want> unclaimed) {
        const Instant now = Clock::now();
        bool refused = false, has_one_left = false;
        for (std::size_t i = 0; i < wants.size(); ++i) {
            Member* member = room_.queue.find(numbers[i]);
            if (!member) {
                if (wants[i].served)
                    unclaimed.push_back(std::move(wants[i]));
                else
                    has_one_left = true;
                continue;
            }
            member->want = std::move(wants[i]);
            if (member->want.served) {
                handoffs_ = 0;
                member->phase = Waiter::Phase::served;
                room_.queue.leave(*member);
                if (member != &me) room_.wake(*member);
            } else if (!std::exchange(refused, true)) {
                room_.queue.refused(*member, refusal.generation, refusal.answer.hint, now, refusal.answer.there);
            }
        }
        // The refusal was for one that has left, and so is the place on the server.
        if (Protocol::takes && has_one_left) room_.queue.notify();
        if (Member* front = room_.queue.front(); front && front != &me) room_.wake(*front);
        if constexpr (Protocol::takes)
            if (!unclaimed.empty()) {
                for (const Want& want : unclaimed) leases_.discard(want);
                try {
                    deliveries_.give_back(lock, core_.protocol, std::move(unclaimed));
                } catch (const std::bad_alloc&) {  // no command is made without memory; the callers have theirs
                }
            }
    }

    // Leaves the queue on the server once nobody of this process waits any more.
    void leave_if_last(std::unique_lock<std::mutex>& lock) noexcept {
        if (room_.queue.empty()) place_.leave(lock);
    }

    // --- asking the server ------------------------------------------------------------------------------------

    // The query of a caller that does not wait yet. One that may wait takes a place, unless others of this process wait;
    // `place` is its number then. Those that have begun to wait meanwhile ask when the query has ended.
    Task<std::optional<Answer>> first_question(std::unique_lock<std::mutex>& lock, Want& want,
                                               const WaitRequest& request, std::uint64_t& place) {
        if (!request.one_try && room_.queue.empty()) place = place_.begin();
        std::optional<Answer> answer;
        std::exception_ptr failure;
        try {
            answer = co_await questions_.ask(lock, std::span<Want>(&want, 1), request, true, place);
        } catch (...) {
            failure = std::current_exception();
        }
        if (!lock.owns_lock()) lock.lock();
        place_.end(place);
        if (!answer) grants_.serve(lock);
        if (place != 0 && !room_.queue.empty()) room_.notify();
        if (!answer || want.served) leave_if_last(lock);
        if (failure) std::rethrow_exception(failure);
        co_return answer;
    }

    CoreOf<Protocol> core_;
    RequestDeliveries deliveries_{core_};
    Changes changes_{core_, deliveries_};
    Leases leases_{core_, deliveries_};
    WaitingRoom<Queue> room_;
    PlaceOf<Protocol> place_{core_, deliveries_};
    Patience patience_;
    unsigned handoffs_ = 0;   // in a row
    bool is_set_up_ = false;  // according to the last refusal
    GrantReceipt<Protocol, Leases, WaitingRoom<Queue>> grants_{core_, deliveries_, leases_, place_, room_};
    Questions<Protocol, Leases> questions_{core_, deliveries_, leases_, place_, patience_};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
