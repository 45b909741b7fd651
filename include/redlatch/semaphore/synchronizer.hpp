// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/request_queue.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/release_round.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/patience.hpp"
#include "redlatch/wait/wait_request.hpp"
#include "redlatch/wait/waiting_room.hpp"

#include <algorithm>
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
    void on_failover() {}
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
// `Leases` is the part that keeps the leases of what was taken.
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

    Synchronizer(Session& session, const std::string& key)
        : core_(*this, session, key), room_(core_.mutex, session, *this, core_.protocol.channel()) {
        // Redisson's latches cannot have such names in a cluster, either.
        if (session.transport().route(room_.channel()) != session.transport().route(core_.key()))
            throw Error(errc::invalid_argument, core_.key(),
                        "in a cluster, the name of a CountDownLatch must not have a {tag}; its channel would be in "
                        "another slot");
    }

    ~Synchronizer() override {
        core_.session.timers().forget(*this);
        core_.session.losses().timers().forget(*this);
    }

    std::string_view kind() const noexcept override { return Protocol::kind; }
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
        request.settings.unreachable_timeout = patience_of(request.settings);
        if (request.stop.stop_requested()) co_return false;
        const Instant begun = Clock::now();
        std::unique_lock lock(core_.mutex);
        if (room_.queue.empty()) patience_.answered();
        Member me(want, request.by);
        me.require_replicas = request.settings.require_replicas;
        me.require_fsync = request.settings.require_fsync;
        if (request.one_try || room_.queue.empty() || !Protocol::takes) {
            const std::uint64_t generation = room_.queue.generation();
            const std::optional<Answer> answer = co_await ask(lock, std::span<Want>(&want, 1), request, true);
            if (want.served) co_return true;
            if (!answer || request.one_try) co_return false;
            me.want = want;
            me.refusal = {generation, *answer};
            if (begun < request.deadline) tell_if_not_set_up(me, *answer);
        }
        lock.unlock();
        const bool is_served = co_await room_.wait(*this, me, request);
        want = me.want;
        co_return is_served;
    }

    // --- changing ---------------------------------------------------------------------------------------------

    // Tells what happens to a change that no server has carried out in time.
    enum class Undelivered {
        call_off,  // it is called off, so that a late copy cannot undo what the caller does next
        retry,     // the background goes on to deliver it; then `make` outlives the call, and must own what it uses
    };

    // What is known of a change when change() throws.
    enum class Failure {
        not_made,
        unknown,
        left,  // the background goes on to deliver it
    };

    // Sends the change that `make(request_id)` builds, and resends it until it is answered, for at most
    // unreachable_timeout. Throws Error or std::bad_alloc; `failure` then says what is known. `call_off` makes the call
    // that calls the change off, if that takes more than to void its request; then it must own what it uses.
    Reply change(const Settings& settings, const MakeCall& make, Undelivered then = Undelivered::call_off,
                 Failure* failure = nullptr, MakeCall call_off = {}) {
        Failure known{};
        if (!failure) failure = &known;
        *failure = Failure::not_made;
        std::unique_lock lock(core_.mutex);
        RequestId request_id = core_.take_lane();
        lock.unlock();
        Retry retry = core_.session.retry(
            {.deadline = Clock::now() + patience_of(settings), .command_timeout = settings.command_timeout});
        Reply reply;
        do reply = change_once(request_id, make, retry.deadline());
        while (retry.again(reply));
        lock.lock();
        if (request_id.may_be_done) *failure = Failure::unknown;
        if (!core_.is_settled(reply)) {
            if (then == Undelivered::retry) {
                deliveries_.add(lock, PendingRequest::Kind::change, request_id, make);
                *failure = Failure::left;
            } else if (request_id.may_be_done) {
                if (!call_off)
                    call_off = [this](const RequestId& given_up) {
                        return core_.protocol.marks().void_request(given_up);
                    };
                deliveries_.add(lock, PendingRequest::Kind::call_off, request_id, std::move(call_off));
            } else {
                core_.lanes.give_back(request_id);
            }
            throw core_.sender.failure(request_id, reply);
        }
        core_.lanes.give_back(request_id);
        if (classify(reply) != ReplyClass::answered) throw core_.sender.failure(request_id, reply);
        has_changed();
        return reply;
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

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    void joined(Member& me) {
        const Instant now = Clock::now();
        if (me.refusal && room_.queue.is_front(me))
            room_.queue.refused(me, me.refusal->generation, me.refusal->answer.hint, now, me.refusal->answer.there);
        // A message since this caller's query was answered for the others only, who may wait for something else.
        if constexpr (!Protocol::takes)
            if (!room_.queue.is_front(me) && me.refusal && me.refusal->generation != room_.queue.generation())
                room_.notify();
        // The representative may let this caller pass.
        if (!room_.queue.is_front(me) && !room_.queue.is_within_reach(room_.queue.front()->want, now))
            room_.wake_front();
        room_.listen();
    }

    NextStep next(Member& me, Instant now) {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.error) std::rethrow_exception(me.error);
        if (!room_.queue.is_front(me)) return {NextStep::Kind::sleep};
        const QueueStep step = room_.queue.step(now);
        if (step.ask) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, step.sleep_until, room_.is_subscribed()};
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
        const std::optional<Answer> answer = co_await ask(lock, std::span<Want>(wants), request, false);
        if (!answer) co_return;
        tell_if_not_set_up(me, *answer);
        hand_out(lock, me, wants, numbers, {generation, *answer}, std::move(unclaimed));
    }

    void left(std::unique_lock<std::mutex>&, Member&) {
        if (room_.queue.empty()) patience_.answered();
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant, std::vector<Renewal>&) override {
        std::unique_lock lock(core_.mutex);
        leases_.on_timer(lock, now);
        deliveries_.drop_expired(now);
        schedule();
        deliveries_.deliver(lock);
        lock.unlock();
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

    void subscribed(const std::string&) override {
        const std::lock_guard lock(core_.mutex);
        room_.subscribed();
    }

    void subscription_refused(const std::string&, const Reply& why) override {
        const std::lock_guard lock(core_.mutex);
        room_.refused(error_of(why, key()));
    }

    // Any message may mean that the state has changed.
    void message(const std::string&, std::string_view) override {
        const std::lock_guard lock(core_.mutex);
        room_.notify();
    }

    void disconnected(const std::string&) override {
        const std::lock_guard lock(core_.mutex);
        room_.disconnected();
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
        bool refused = false;
        for (std::size_t i = 0; i < wants.size(); ++i) {
            Member* member = room_.queue.find(numbers[i]);
            if (!member) {
                if (wants[i].served) unclaimed.push_back(std::move(wants[i]));
                continue;
            }
            member->want = std::move(wants[i]);
            if (member->want.served) {
                member->phase = Waiter::Phase::served;
                room_.queue.leave(*member);
                if (member != &me) room_.wake(*member);
            } else if (!std::exchange(refused, true)) {
                room_.queue.refused(*member, refusal.generation, refusal.answer.hint, now, refusal.answer.there);
            }
        }
        if (Member* front = room_.queue.front(); front && front != &me) room_.wake(*front);
        if constexpr (Protocol::takes)
            if (!unclaimed.empty()) {
                for (const Want& want : unclaimed) leases_.discard(want);
                try {
                    deliveries_.give_back(lock, std::move(unclaimed));
                } catch (const std::bad_alloc&) {  // no command is made without memory; the callers have theirs
                }
            }
    }

    // --- asking the server ------------------------------------------------------------------------------------

    // Returns for how long a command is resent. Its mark has to last longer, by the options of the client.
    Milliseconds patience_of(const Settings& settings) const {
        return std::min(settings.unreachable_timeout, RequestMarks::longest_ttl(core_.session.options()) / 2);
    }

    // Returns the server's reply; nothing if there was none and the caller's deadline or stop token ended the call.
    // Otherwise throws. `first`: True before any waiting.
    Task<std::optional<Answer>> ask(std::unique_lock<std::mutex>& lock, std::span<Want> wants,
                                    const WaitRequest& request, bool first) {
        leases_.prepare();
        RequestId request_id = core_.take_lane();
        const Instant give_up = patience_.give_up_at(request, first);
        const Instant begun = Clock::now();
        const SendTime begun_at;
        lock.unlock();
        Retry retry =
            core_.session.retry({give_up, request.stop, request.one_try, request.by, request.settings.command_timeout});
        Reply reply;
        std::optional<Instant> rest;
        do {
            const Instant deadline = retry.deadline();
            try {
                if constexpr (Protocol::takes) {
                    const MakeCall make = [&](const RequestId& one) {
                        Call call = core_.protocol.ask(wants, one);
                        call.replication = request.settings.replication();
                        return call;
                    };
                    reply = co_await core_.sender.send(request_id, request.by, deadline, make);
                } else {
                    const Call call = core_.protocol.ask(wants, request_id);
                    reply = co_await ReplyTo(core_.session, request.by, call, deadline);
                    if (!reply.answered() && !reply.is_unsent()) request_id.may_be_done = true;
                }
            } catch (const std::bad_alloc&) {
                reply = detail::short_of_memory(request.by);
            }
            rest = retry.rest_after(reply);
            if (rest) co_await Pause(request.by, *rest, request.stop);
        } while (rest && retry.goes_on());
        lock.lock();
        if (classify(reply) != ReplyClass::answered) {
            patience_.failed(request, begun, reply);
            settle(lock, request_id, wants, request_id.may_be_done);
            if (request.stop.stop_requested()) co_return std::nullopt;
            if (patience_.was_too_short(request, begun, reply, request_id.may_be_done)) co_return std::nullopt;
            throw core_.sender.failure(request_id, reply);
        }
        patience_.answered();
        try {
            const Answer answer = core_.protocol.decode(reply, wants);
            if (!reply.replicated && std::any_of(wants.begin(), wants.end(), [](const Want& w) { return w.served; }))
                throw not_confirmed(reply, key());
            if constexpr (Protocol::takes) {
                leases_.accept(lock, wants, begun_at);
                for (const Want& want : wants)
                    if (want.served) core_.session.count_acquisition();
            }
            // Last: what fails before is undone in the same lane.
            core_.lanes.give_back(request_id);
            co_return answer;
        } catch (...) {  // a senseless reply, too few replicas, or no memory to record what was taken
            for (const Want& want : wants) leases_.discard(want);
            settle(lock, request_id, wants, true);
            throw;
        }
    }

    Reply change_once(RequestId& request_id, const MakeCall& make, Instant deadline) try {
        deliveries_.deliver_first();
        return core_.sender.send(request_id, by_thread, deadline, make).run();
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    // Handles a request without a proper reply.
    void settle(std::unique_lock<std::mutex>& lock, const RequestId& request_id, std::span<Want> wants, bool unknown) {
        if constexpr (Protocol::takes)
            if (unknown && !(request_id.is_unknowable && Protocol::takes_back_by_mark))
                return deliveries_.add(lock, PendingRequest::Kind::undoing, request_id,
                                       [this, kept = std::vector<Want>(wants.begin(), wants.end())](
                                           const RequestId& asked) { return core_.protocol.take_back(asked, kept); });
        core_.lanes.give_back(request_id);
    }

    SynchronizerCore<Protocol> core_;
    RequestDeliveries<Protocol> deliveries_{core_};
    Leases leases_{core_, deliveries_};
    WaitingRoom<Queue> room_;
    Patience patience_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
