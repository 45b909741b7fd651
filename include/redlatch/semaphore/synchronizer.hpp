// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/request_slots.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/semaphore/idempotent_sender.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/caller_queue.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Manages one semaphore or latch in this process: the waiting threads, the requests in flight, and what is still to be
// delivered. It records no owners. `Protocol` makes the calls and reads the replies:
//   kind, key(), channel(), marks()
//   takes                          True if a request takes something from other callers (permits), so that there is an
//                                  order of service and something to give back; False for a latch, which is only
//                                  queried
//   most_at_once                   how many callers one request may serve
//   Want                           what a caller wants, and `served`: True if the last request succeeded; its renew(),
//                                  if there is one, is called before each further request
//   ask(wants, request_id), decode(reply, wants) -> how long to wait before a retry may help
//   take_back(request_id, wants)       gives back whatever an acquire of unknown outcome took, or will take
//   give_back(request_id, wants)       gives back what was taken for callers that have left
//
// mutex_ guards all members except the constant ones. It is never held during a command, nor while user code runs. Each
// caller sleeps on its own condition variable; the representative sleeps in the transport where possible, to receive
// the message itself. A caller is woken by
//   the thread whose request served it,
//   any change of state, if it is the representative: a message (background thread), a releasing thread, a
//     representative that leaves,
//   its stop token.
template <class T, class Protocol>
class Synchronizer : public BackgroundTask {
public:
    static constexpr std::string_view kind = Protocol::kind;
    using Want = typename Protocol::Want;

    Synchronizer(Session<T>& session, const std::string& key)
        : session_(session), protocol_(session.protocol_context(), key), sender_(session, protocol_.marks()) {
        // Redisson's latches cannot have such names in a cluster, either.
        if (session.transport().route(protocol_.channel()) != session.transport().route(protocol_.key()))
            throw Error(errc::invalid_argument, protocol_.key(),
                        "in a cluster the name of a latch must have no {tag}: its channel would lie in another slot");
    }

    ~Synchronizer() override {
        session_.timers().forget(*this);
        session_.subscriptions().remove(protocol_.channel(), *this);
    }

    const std::string& key() const noexcept { return protocol_.key(); }
    Session<T>& session() const noexcept { return session_; }
    Protocol& protocol() noexcept { return protocol_; }

    virtual bool is_idle() {
        const std::lock_guard lock(mutex_);
        return line_.empty() && pending_.empty();
    }

    // --- asking and waiting -----------------------------------------------------------------------------------

    // Returns true if `want` was served. Returns false if the deadline passes or a stop is requested; then nothing was
    // taken. Throws Error.
    bool obtain(Want& want, const WaitRequest& request) {
        if (request.stop.stop_requested()) return false;
        std::unique_lock lock(mutex_);
        if (line_.empty()) failing_since_.reset();
        std::optional<Refusal> refusal;
        if (request.one_try || line_.empty() || !Protocol::takes) {
            const std::uint64_t generation = line_.generation();
            const std::optional<Answer> answer = ask(lock, {&want, 1}, request, true);
            if (want.served) return true;
            if (!answer || request.one_try) return false;
            refusal = {generation, *answer};
        }
        lock.unlock();
        session_.count_wait();
        return wait(want, request, refusal);
    }

    // --- changing ---------------------------------------------------------------------------------------------

    // Tells what happens to a change that no server has carried out in time.
    enum class Undelivered {
        call_off,  // it is called off, so that a late copy cannot undo what the caller does next
        retry,     // the background goes on to deliver it; then `make` outlives the call, and must own what it uses
    };

    // Sends the change that `make(request_id)` builds, and resends it until it is answered, for at most
    // unreachable_timeout. Throws Error.
    template <class Make>
    Reply change(const Make& make, Undelivered then = Undelivered::call_off) {
        std::unique_lock lock(mutex_);
        RequestId request_id = slots_.take(session_.next_request());
        lock.unlock();
        const Reply reply = session_.call_with_retry(Clock::now() + patience(), {}, [&](Instant deadline, bool) {
            deliver_first();
            return sender_.send(request_id, deadline, make);
        });
        lock.lock();
        if (!is_settled(reply)) {
            if (then == Undelivered::retry)
                retry_in_background(lock, PendingRequest::Kind::change, request_id, make);
            else if (request_id.may_be_done)
                retry_in_background(
                    lock, PendingRequest::Kind::call_off, request_id,
                    [this](const RequestId& given_up) { return protocol_.marks().void_request(given_up); });
            else
                slots_.give_back(request_id);
            throw sender_.failure(request_id, reply);
        }
        slots_.give_back(request_id);
        if (classify(reply) != ReplyClass::answered) throw sender_.failure(request_id, reply);
        // With a subscription this process gets the message, too.
        if (!subscribed_) notify_representative();
        return reply;
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant, std::vector<Renewal>&) override {
        std::unique_lock lock(mutex_);
        for (const PendingRequest& request : pending_.take_expired(now)) {
            slots_.give_back(request.request_id);
            tell_undelivered(request, request.request_id.may_be_done ? IdempotentSender<T>::unknowable
                                                                     : "no server has answered for too long");
        }
        schedule();
        deliver(lock);
        lock.unlock();
        session_.forget_if_unused(*this);
    }

    void renewed(const Renewal&, Renewed, Instant) override {}

    void subscribed() override {
        const std::lock_guard lock(mutex_);
        subscribed_ = true;
        notify_representative();
    }

    void subscription_refused(const Reply& why) override {
        const std::lock_guard lock(mutex_);
        subscribed_ = false;
        wants_messages_ = false;
        while (Member* member = line_.front()) {
            member->error = std::make_exception_ptr(error_of(why, key()));
            wake(*member);
            line_.leave(*member);
        }
    }

    // Any message may mean that the state has changed.
    void message(std::string_view) override {
        const std::lock_guard lock(mutex_);
        notify_representative();
    }

    void disconnected() override {
        const std::lock_guard lock(mutex_);
        subscribed_ = false;
    }

protected:
    // Override to record what was taken. `wants` were requested from `begun` on, and some of them were served. An
    // override may clear `served`. Called with mutex_ held.
    virtual void accept(std::unique_lock<std::mutex>&, std::span<Want> /* wants */, Instant /* begun */) {}
    // Override to drop the record of `want`, which no caller claims any more. Called with mutex_ held.
    virtual void discard(const Want&) {}

    // A template, so that an explicit instantiation omits it where nothing is taken (clang 14 ignores a requires clause
    // here).
    template <class = void>
    void give_back(std::unique_lock<std::mutex>& lock, std::vector<Want> wants) {
        retry_in_background(lock, PendingRequest::Kind::change, slots_.take(session_.next_request()),
                            [this, wants = std::move(wants)](const RequestId& request_id) {
                                return protocol_.give_back(request_id, wants);
                            });
    }

    virtual void schedule() {
        if (const Instant at = pending_.next_deadline(); at != never) session_.timers().schedule(*this, at);
    }

    // Delivers a request in the background until it is answered or its mark has expired.
    void retry_in_background(std::unique_lock<std::mutex>& lock, PendingRequest::Kind purpose,
                             const RequestId& request_id, PendingRequest::Make make) {
        const Instant now = Clock::now();
        pending_.add({purpose, request_id, std::move(make), now + RequestMarks::longest_ttl(session_.options()), now});
        schedule();
        // This thread sends it, so that it follows the first sending on the same connection.
        deliver(lock);
    }

    Session<T>& session_;
    Protocol protocol_;
    const IdempotentSender<T> sender_;
    std::mutex mutex_;
    RequestSlots slots_;

private:
    using Member = Caller<Want>;

    struct Refusal {
        std::uint64_t generation;
        Answer answer;
    };

    // Returns true if a resend is useless: the request is done or can never succeed.
    static bool is_settled(const Reply& reply) { return classify(reply) == ReplyClass::answered || is_final(reply); }

    void wake(Member& member) { member.sleeper.wake(session_); }

    void notify_representative() {
        line_.notify();
        if (Member* front = line_.front()) wake(*front);
    }

    // --- asking the server ------------------------------------------------------------------------------------

    // Returns for how long a command is resent.
    Milliseconds patience() const {
        const ClientOptions& options = session_.options();
        return std::min(options.unreachable_timeout, RequestMarks::longest_ttl(options) / 2);
    }

    Milliseconds one_try_time() const {
        return std::max(Milliseconds(100), std::min(session_.options().command_timeout, patience()));
    }

    Instant give_up_at(const WaitRequest& request) const {
        const Instant now = Clock::now();
        if (request.one_try) return now + one_try_time();
        // Waiting callers share the time for which a server was unreachable, but each gets a full try.
        const Instant give_up = deadline_after(failing_since_.value_or(now), patience());
        return std::min(request.deadline, std::max(give_up, now + Milliseconds(100)));
    }

    // Returns the server's reply; nothing if there was none and the caller's deadline or stop token ended the call.
    // Otherwise throws. `first`: True before any waiting. The first request always gets the time of one try, because
    // the deadline is meant for the waiting: a short timeout must not do worse than none.
    std::optional<Answer> ask(std::unique_lock<std::mutex>& lock, std::span<Want> wants, const WaitRequest& request,
                              bool first = false) {
        RequestId request_id = slots_.take(session_.next_request());
        const Instant give_up = give_up_at(request);
        const Instant begun = Clock::now();
        const Instant allowed = first ? begun + std::min(one_try_time(), Session<T>::honest_try) : begun;
        lock.unlock();
        const auto try_once = [&](Instant limit, bool) {
            const Instant deadline = std::max(limit, allowed);
            const auto make = [&](const RequestId& one) { return protocol_.ask(wants, one); };
            if constexpr (Protocol::takes) {
                return sender_.send(request_id, deadline, make);
            } else {
                Reply one = session_.call(make(request_id), deadline);
                if (!one.answered() && !one.is_unsent()) request_id.may_be_done = true;
                return one;
            }
        };
        const Reply reply = session_.call_with_retry(give_up, request.stop, try_once, request.one_try);
        lock.lock();
        if (classify(reply) != ReplyClass::answered) {
            if (!failing_since_ && session_.is_away(reply, begun)) failing_since_ = begun;
            settle(lock, request_id, wants, request_id.may_be_done);
            if (request.stop.stop_requested()) return std::nullopt;
            // A server that got less than command_timeout counts as slow, not as unreachable.
            const Instant now = Clock::now();
            const bool perhaps_slow = request_id.may_be_done || reply.kind == Reply::Kind::no_time;
            const Instant until = request.one_try ? now : request.deadline;
            if (now >= request.deadline && perhaps_slow && until - begun < session_.options().command_timeout)
                return std::nullopt;
            throw sender_.failure(request_id, reply);
        }
        failing_since_.reset();
        try {
            const Answer answer = protocol_.decode(reply, wants);
            if (!reply.replicated && std::any_of(wants.begin(), wants.end(), [](const Want& w) { return w.served; }))
                throw not_replicated(key());
            slots_.give_back(request_id);
            if constexpr (Protocol::takes) {
                accept(lock, wants, begun);
                for (const Want& want : wants)
                    if (want.served) session_.count_acquisition();
            }
            return answer;
        } catch (...) {  // a senseless reply, too few replicas, or no memory to record what was taken
            for (const Want& want : wants) discard(want);
            settle(lock, request_id, wants, true);
            throw;
        }
    }

    // Handles a request without a proper reply.
    void settle(std::unique_lock<std::mutex>& lock, const RequestId& request_id, std::span<Want> wants, bool unknown) {
        if constexpr (Protocol::takes)
            if (unknown && !(request_id.is_unknowable && Protocol::takes_back_by_mark))
                return retry_in_background(lock, PendingRequest::Kind::undoing, request_id,
                                           [this, kept = std::vector<Want>(wants.begin(), wants.end())](
                                               const RequestId& asked) { return protocol_.take_back(asked, kept); });
        slots_.give_back(request_id);
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    bool wait(Want& want, const WaitRequest& request, const std::optional<Refusal>& refusal) {
        Member me{want};
        // Constructed and destroyed without mutex_, which the callback locks.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(mutex_);
            wake(me);
        });
        std::unique_lock lock(mutex_);
        try {
            line_.join(me);
            const Instant now = Clock::now();
            if (refusal && line_.is_front(me))
                line_.refused(me, refusal->generation, refusal->answer.hint, now, refusal->answer.there);
            // The representative may let this caller pass.
            if (!line_.is_front(me) && !line_.is_within_reach(line_.front()->want, now)) wake(*line_.front());
            listen();
            const bool is_served = wait_in_line(lock, request, me);
            leave(me);
            want = me.want;
            return is_served;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            leave(me);
            throw;
        }
    }

    bool wait_in_line(std::unique_lock<std::mutex>& lock, const WaitRequest& request, Member& me) {
        bool may_watch = true;
        for (;;) {
            if (me.served) return true;
            if (me.error) std::rethrow_exception(me.error);
            const Instant now = Clock::now();
            if (request.stop.stop_requested() || now >= request.deadline) return false;
            Instant sleep_until = request.deadline;
            if (line_.is_front(me)) {
                const auto step = line_.step(now);
                if (step.ask) {
                    ask_for_line(lock, request, me);
                    continue;
                }
                sleep_until = std::min(sleep_until, step.sleep_until);
                if (subscribed_ && std::exchange(may_watch, false)) {
                    may_watch = me.sleeper.watch(lock, session_, sleep_until);
                    continue;  // the state may have changed meanwhile
                }
            }
            may_watch = true;
            me.sleeper.sleep(lock, sleep_until);
        }
    }

    // Sends one request for the first callers in the queue, `me` among them. Some may leave meanwhile.
    void ask_for_line(std::unique_lock<std::mutex>& lock, const WaitRequest& request, Member& me) {
        std::vector<Want> wants;
        std::vector<std::uint64_t> numbers;
        const Instant asked = Clock::now();
        for (const Member* member : line_.first(Protocol::most_at_once)) {
            wants.push_back(member->want);
            if constexpr (requires(Want & want) { want.renew(); }) wants.back().renew();
            if constexpr (Protocol::takes) wants.back().lets_pass = line_.lets_pass(member->want, asked);
            numbers.push_back(member->number);
        }
        const std::uint64_t generation = line_.generation();
        const std::optional<Answer> answer = ask(lock, wants, request);
        if (!answer) return;
        const Instant now = Clock::now();
        bool refused = false;
        std::vector<Want> unclaimed;
        unclaimed.reserve(wants.size());
        for (std::size_t i = 0; i < wants.size(); ++i) {
            Member* member = line_.find(numbers[i]);
            if (!member) {
                if (wants[i].served) unclaimed.push_back(wants[i]);
                continue;
            }
            member->want = wants[i];
            if (wants[i].served) {
                member->served = true;
                line_.leave(*member);
                if (member != &me) wake(*member);
            } else if (!std::exchange(refused, true)) {
                line_.refused(*member, generation, answer->hint, now, answer->there);
            }
        }
        if (Member* front = line_.front(); front && front != &me) wake(*front);
        if constexpr (Protocol::takes)
            if (!unclaimed.empty()) {
                for (const Want& want : unclaimed) discard(want);
                give_back(lock, std::move(unclaimed));
            }
    }

    void listen() {
        if (wants_messages_) return;
        session_.start_background();
        const bool listened = subscribed_;
        subscribed_ = session_.subscriptions().acquire(protocol_.channel(), *this);
        wants_messages_ = true;
        // Another state is already subscribed to this channel. A message since the request reached only that state.
        if (subscribed_ && !listened) line_.notify();
    }

    // Removes the caller from the queue. If it was the representative, wakes the next one, which decides what to do.
    void leave(Member& me) {
        const bool was_front = line_.is_front(me);
        line_.leave(me);
        if (line_.empty()) {
            if (!std::exchange(wants_messages_, false)) return;
            failing_since_.reset();
            session_.subscriptions().release(protocol_.channel(), *this);
        } else if (was_front) {
            wake(*line_.front());
        }
    }

    // --- what is still to be delivered ------------------------------------------------------------------------

    void deliver(std::unique_lock<std::mutex>& lock) {
        for (const PendingRequest& request : pending_.take_due(Clock::now())) {
            lock.unlock();
            try {
                post(request);
            } catch (...) {  // no memory, no thread: retried after a pause
                failed(request.number);
            }
            lock.lock();
        }
    }

    // Sends pending requests ahead of a change on the same connection. A late copy of one could otherwise undo the
    // change.
    void deliver_first() {
        std::unique_lock lock(mutex_);
        if (pending_.empty()) return;
        pending_.hurry(Clock::now());
        deliver(lock);
    }

    // Called without mutex_. A request that was never sent needs the server's time first, to fix until when it is
    // wanted.
    void post(const PendingRequest& request) {
        const auto self = std::static_pointer_cast<Synchronizer>(shared_from_this());
        if (request.request_id.wanted_until != 0) return post_stamped(self, request);
        session_.with_server_time(key(), Receiver::background,
                                  [self, request = PendingRequest(request)](
                                      const std::optional<ServerMilliseconds>& now, const Reply&, Receiver) mutable {
                                      if (!now) return self->failed(request.number);
                                      try {
                                          request.request_id.wanted_until = self->protocol_.marks().wanted_from(*now);
                                          post_stamped(self, request);
                                      } catch (...) {
                                          self->failed(request.number);
                                      }
                                  });
    }

    static void post_stamped(const std::shared_ptr<Synchronizer>& self, const PendingRequest& request) {
        Completion done = [self, number = request.number](Reply reply) { self->delivered(number, std::move(reply)); };
        {
            const std::lock_guard lock(self->mutex_);
            PendingRequest* const kept = self->pending_.find(request.number);
            if (!kept) return;
            kept->request_id.wanted_until = request.request_id.wanted_until;
            kept->sent = Clock::now();
        }
        self->session_.post(request.make(request.request_id), std::move(done));
    }

    void failed(std::uint64_t number) {
        const std::lock_guard lock(mutex_);
        pending_.failed(number, Clock::now());
        schedule();
    }

    void delivered(std::uint64_t number, Reply reply) {
        const std::lock_guard lock(mutex_);
        PendingRequest* const request = pending_.find(number);
        if (!request) return;
        const bool is_void = sender_.note(request->request_id, request->sent, reply);
        if (is_void && request->kind == PendingRequest::Kind::change) {
            request->give_up = Clock::now() + RequestMarks::longest_ttl(session_.options());
            pending_.failed(number, Clock::now());
        } else if (is_void || is_settled(reply)) {
            if (request->request_id.is_unknowable)
                tell_undelivered(*request, IdempotentSender<T>::unknowable);
            else if (!is_void && classify(reply) != ReplyClass::answered)
                tell_undelivered(*request, error_of(reply, key()).what());
            slots_.give_back(request->request_id);
            pending_.remove(number);
            if (!subscribed_) notify_representative();
            // The session may drop the state now.
            session_.timers().schedule(*this, Clock::now());
        } else {
            pending_.failed(number, Clock::now());
        }
        schedule();
    }

    void tell_undelivered(const PendingRequest& request, std::string_view why) {
        if (request.kind != PendingRequest::Kind::call_off)
            session_.raise(Event::Kind::unlock_not_delivered, key(), why);
    }

    CallerQueue<Want> line_;
    PendingRequests pending_;
    std::optional<Instant> failing_since_;  // since then no server has replied
    bool wants_messages_ = false;
    bool subscribed_ = false;  // True if the server confirmed the subscription, so messages arrive
};

}  // namespace v0_1
}  // namespace redlatch
