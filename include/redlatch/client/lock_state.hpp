// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/holds.hpp"
#include "redlatch/client/lock_answers.hpp"
#include "redlatch/client/lock_request.hpp"
#include "redlatch/client/options.hpp"
#include "redlatch/client/pending_releases.hpp"
#include "redlatch/client/retry.hpp"
#include "redlatch/client/runtime.hpp"
#include "redlatch/client/wait_line.hpp"
#include "redlatch/client/watched.hpp"
#include "redlatch/core/error.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {

// One lock, as this process knows it: who of its threads holds it, who waits, what is still to be given back.
// `Wire` knows the commands, and of its lock:
//   renewal         the script that renews holds of its kind
//   shared          whether its holds exclude one another; if not, a thread of this process may ask while others hold
//   hands_over      whether a hold can go from one thread of this process to the next
//   outlives_lease  whether the server may keep a hold beyond its lease, so that one that ran out is to be given back
//   withdraw()      tells, where a waiting one is announced, that nobody here waits any more
// All objects of one name and kind share one state.
//
// mutex_ guards all members but the constant ones. It is never held during a command, nor while user code runs.
// Each waiter sleeps in its own condition variable, the representative where it can in the transport, to receive
// the message itself; it is woken by the thread that hands its hold over to it, by
// whoever brings news for the representative (the background thread with a message, a releasing thread, a leaving
// representative), and by its stop token. settled_ wakes threads that wait for a pending release in their own name.
template <class T, template <class> class Wire>
class LockState final : public Watched {
public:
    static constexpr std::string_view kind = Wire<T>::kind;

    LockState(Runtime<T>& runtime, const std::string& key) : runtime_(runtime), wire_(runtime, key) {}

    ~LockState() override {
        runtime_.timers().forget(*this);
        runtime_.subscriptions().forget(wire_.channel(), *this);
    }

    const std::string& key() const noexcept { return wire_.key(); }
    Runtime<T>& runtime() const noexcept { return runtime_; }
    Wire<T>& wire() noexcept { return wire_; }

    bool is_idle() {
        const std::lock_guard lock(mutex_);
        return !holds_.any_live() && line_.empty() && pending_.empty() && handing_over_ == 0;
    }

    // --- taking -----------------------------------------------------------------------------------------------

    // True when held; false at the deadline or when stopped. Throws Error.
    bool acquire(const LockRequest& request) {
        if (request.stop.stop_requested()) return false;
        std::unique_lock lock(mutex_);
        if (line_.empty()) failing_since_.reset();
        if (!settle(lock, request)) return false;
        if (const std::optional<bool> reentered = reenter(lock, request)) return *reentered;
        if (!settle(lock, request)) return false;
        if (request.one_try || (line_.empty() && !busy())) {
            if (ask(lock, request)) return true;
            if (request.one_try) return false;
        }
        lock.unlock();
        runtime_.count_wait();
        return wait(request);
    }

    // --- giving back ------------------------------------------------------------------------------------------

    // One level less. Nothing on success; hold_lost when it had ended already, unreachable when the release could
    // not be delivered yet (it goes on in the background). Throws Error(errc::not_owner).
    std::error_code release(OwnerNumber owner) {
        std::unique_lock lock(mutex_);
        Hold* hold = holds_.find(owner);
        if (!hold) {
            // In a forked child it is most likely a guard of the parent's that is being unwound.
            if (runtime_.is_fork_child()) return errc::hold_lost;
            throw Error(errc::not_owner, key(), "unlock() by a thread that does not hold the lock");
        }
        if (hold->live() && Clock::now() >= hold->valid_until) {
            give_back_later(*hold, next_request());
            lose(*hold, "its lease ran out");
        }
        if (!hold->live()) {
            if (--hold->dead == 0) holds_.erase(owner);
            deliver_pending(lock);
            return errc::hold_lost;
        }
        if (hold->count > 1) return release_level(lock, *hold);
        if constexpr (Wire<T>::hands_over)
            if (Waiter* heir = line_.heir(); heir && handoffs_ < runtime_.options().local_handoff_limit)
                return hand_over(lock, *hold, *heir);
        return release_last(lock, *hold);
    }

    // Ends anyone's hold: whether there was one.
    bool force_release() {
        // Only what is held before the command is sent can be ended by it.
        std::vector<std::uint64_t> ended;
        {
            const std::lock_guard lock(mutex_);
            for (const Hold& hold : holds_)
                if (hold.live()) ended.push_back(hold.id);
        }
        const Reply reply = runtime_.persist(deadline_after(Clock::now(), runtime_.options().unreachable_timeout), {},
                                             [&](Instant deadline, bool) { return wire_.force_release(deadline); });
        if (judge(reply) != Verdict::answered) throw error_of(reply, key());
        if (!reply.is_integer()) throw unexpected(reply, key());
        const std::lock_guard lock(mutex_);
        for (Hold& hold : holds_)
            if (hold.live() && std::find(ended.begin(), ended.end(), hold.id) != ended.end())
                lose(hold, "ended by force");
        return reply.integer == 1;
    }

    // --- inquiry, without a command ---------------------------------------------------------------------------

    Instant valid_until(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = holds_.find(owner);
        return hold && hold->live() ? hold->valid_until : Instant::min();
    }

    // The fencing token of the owner's hold, of locks that have one; nothing when it holds nothing.
    std::optional<std::int64_t> token(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = holds_.find(owner);
        return hold && hold->live() ? std::optional(hold->token) : std::nullopt;
    }

    std::stop_token lost(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        Hold* hold = holds_.find(owner);
        if (!hold || !hold->live()) {
            std::stop_source already;
            already.request_stop();
            return already.get_token();
        }
        if (!hold->lost) hold->lost.emplace();
        return hold->lost->get_token();
    }

    // --- the background ---------------------------------------------------------------------------------------

    void tick(Instant now, Instant horizon, std::vector<Renewal>& due) override {
        std::unique_lock lock(mutex_);
        for (Hold& hold : holds_) {
            if (!hold.live()) continue;
            if (now >= hold.lost_at()) {
                if (Wire<T>::outlives_lease) give_back_later(hold, next_request());
                lose(hold, hold.watched() ? "it could not be renewed in time" : "its lease ran out");
            } else if (hold.watched() && !hold.renewing && hold.renew_at <= horizon) {
                hold.renewing = true;
                due.push_back(
                    {shared_from_this(), key(), hold.owner, hold.id, &Wire<T>::renewal, wire_.text(hold.owner)});
            }
        }
        for (std::size_t n = pending_.take_expired(now); n > 0; --n)
            runtime_.raise(Event::Kind::unlock_not_delivered, key(),
                           "its lease is over, so others are not blocked any more");
        settled_.notify_all();
        schedule();
        deliver_pending(lock);
        lock.unlock();
        runtime_.forget_if_unused(*this);
    }

    void renewed(const Renewal& renewal, Renewed outcome, Instant sent) override {
        std::unique_lock lock(mutex_);
        Hold* hold = holds_.find(renewal.owner);
        if (hold && hold->live() && hold->id == renewal.hold) {
            const Milliseconds timeout = runtime_.options().watchdog_timeout;
            switch (outcome) {
                case Renewed::yes: hold->renewed(sent, timeout); break;
                case Renewed::refused: lose(*hold, "the server says that it is not held any more"); break;
                case Renewed::unknown: hold->renewal_failed(Clock::now(), timeout); break;
            }
            schedule();
        } else if (std::erase(lost_in_renewal_, renewal.hold) > 0 && outcome == Renewed::yes &&
                   !(hold && hold->live()) &&
                   std::find(asking_.begin(), asking_.end(), renewal.owner) == asking_.end()) {
            // Lost for us, but prolonged on the server after all: it must not block others for another lease. (An
            // acquire that is on its way in the same name takes it over instead.)
            const Instant now = Clock::now();
            pending_.add(renewal.owner, next_request(), now + runtime_.options().watchdog_timeout, now);
            schedule();
            deliver_pending(lock);
        }
    }

    void subscribed() override {
        const std::lock_guard lock(mutex_);
        subscribed_ = true;
        expect_anything();
        tell_representative();
    }

    void subscription_refused(const Reply& why) override {
        const std::lock_guard lock(mutex_);
        subscribed_ = false;
        wants_messages_ = false;
        while (Waiter* waiter = line_.front()) {
            waiter->error = std::make_exception_ptr(error_of(why, key()));
            rouse(*waiter);
            line_.leave(*waiter);
        }
    }

    // Whatever the payload, the state may have changed; unless it is about our own release, after which everybody who
    // waits here has asked. (Messages keep the server's order: if this one is of somebody else's release, that was
    // before ours, and ours is still to come.)
    void message(std::string_view) override {
        const std::lock_guard lock(mutex_);
        ++messages_;
        if (own_messages_ > 0)
            --own_messages_;
        else
            tell_representative();
    }

    void disconnected() override {
        const std::lock_guard lock(mutex_);
        subscribed_ = false;
        expect_anything();
    }

private:
    std::uint64_t next_request() { return ++last_request_; }

    Milliseconds lease_of(const std::optional<Milliseconds>& lease) const {
        return lease ? *lease : runtime_.options().watchdog_timeout;
    }

    // Whether somebody of this process holds the lock or is just giving it away: then nobody needs to ask the server.
    bool busy() const { return releasing_ || handing_over_ != 0 || held_here_until() > Clock::now(); }

    // Until when a thread of this process excludes the others; the past when none does.
    Instant held_here_until() const { return Wire<T>::shared ? Instant{} : holds_.held_until(); }

    void rouse(Waiter& waiter) {
        waiter.wake.notify_one();
        if (waiter.watching && waiter.thread != std::this_thread::get_id()) runtime_.interrupt_watch();
    }

    // A message of our own release that has not come by now may never come.
    void expect_anything() {
        ++messages_;
        own_messages_ = 0;
    }

    void tell_representative() {
        line_.news();
        if (Waiter* front = line_.front()) rouse(*front);
    }

    // Waits until nothing is pending in the owner's name: false at the deadline or when stopped.
    bool settle(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        // A call with a deadline has its own limit.
        const Instant give_up =
            request.deadline == never ? deadline_after(Clock::now(), runtime_.options().unreachable_timeout) : never;
        while (pending_.has(request.owner) || handing_over_ == request.owner) {
            const Instant now = Clock::now();
            if (request.stop.stop_requested() || request.one_try || now >= request.deadline) return false;
            if (now >= give_up)
                throw Error(errc::unreachable, key(),
                            "an earlier command of this thread, whose outcome is unknown, cannot be taken back yet");
            // In slices, because a stop request does not reach this condition variable.
            settled_.wait_until(lock, std::min(request.deadline, now + Milliseconds(20)));
        }
        return true;
    }

    // --- asking the server ------------------------------------------------------------------------------------

    Instant give_up_at(const LockRequest& request) const {
        const Instant now = Clock::now();
        const ClientOptions& options = runtime_.options();
        if (request.one_try)
            return now + std::max(Milliseconds(100), std::min(options.command_timeout, options.unreachable_timeout));
        // Threads in line share the time that a server was unreachable, but each gets an honest try.
        const Instant give_up = deadline_after(failing_since_.value_or(now), runtime_.options().unreachable_timeout);
        return std::min(request.deadline, std::max(give_up, now + Milliseconds(100)));
    }

    struct Asked {
        Reply reply;
        Instant begun;
        Instant sent;          // of the last sending, which the reply answers
        bool unknown = false;  // a sending remained without an answer
    };

    Asked send_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, std::uint32_t count) {
        const Milliseconds lease = lease_of(request.lease);
        const Instant give_up = give_up_at(request);
        Asked asked;
        asked.begun = Clock::now();
        asking_.push_back(request.owner);
        lock.unlock();
        asked.reply = runtime_.persist(give_up, request.stop, [&](Instant deadline, bool) {
            asked.sent = Clock::now();
            Reply reply = wire_.acquire(request.owner, count, lease, request.precedence && !request.one_try, deadline);
            if (!reply.answered() && !reply.is_unsent()) asked.unknown = true;
            return reply;
        });
        lock.lock();
        std::erase(asking_, request.owner);
        if (judge(asked.reply) == Verdict::answered)
            failing_since_.reset();
        else if (!failing_since_ && asked.reply.kind != Reply::Kind::no_time)
            failing_since_ = asked.begun;
        return asked;
    }

    // False when that is what the caller asked for by a stop request or a deadline; otherwise it throws.
    bool no_answer(const LockRequest& request, const Asked& asked) const {
        if (request.stop.stop_requested()) return false;
        // A server that was given less than its time is slow, not away.
        const Instant now = Clock::now();
        const bool perhaps_slow = asked.unknown || asked.reply.kind == Reply::Kind::no_time;
        if (now >= request.deadline && perhaps_slow && now - asked.begun < runtime_.options().command_timeout)
            return false;
        throw error_of(asked.reply, key());
    }

    // Asks for a first hold. True when held; otherwise the line knows for how long it is blocked.
    bool ask(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        const std::uint64_t generation = line_.generation();
        const Asked asked = send_acquire(lock, request, 1);
        const Instant now = Clock::now();
        const Milliseconds lease = lease_of(request.lease);
        if (judge(asked.reply) != Verdict::answered) {
            if (asked.unknown) take_back(lock, request.owner, now + lease);
            return no_answer(request, asked);
        }
        const AcquireAnswer answer = decode(lock, asked.reply, request.owner, now + lease);
        if (answer.kind != AcquireAnswer::Kind::held) {
            line_.blocked(generation, answer.holder_lease, now);
            return false;
        }
        if (now >= redlatch::valid_until(asked.sent, lease)) {
            // The answer took longer than the lease lasts.
            line_.blocked(generation, Milliseconds(0), now);
            take_back(lock, request.owner, now + lease);
            return false;
        }
        record(request.owner, asked.sent, request.lease, answer.token);
        return true;
    }

    AcquireAnswer decode(std::unique_lock<std::mutex>& lock, const Reply& reply, OwnerNumber owner, Instant until) {
        try {
            return Wire<T>::read_acquire(reply, key());
        } catch (const Error&) {
            take_back(lock, owner, until);
            throw;
        }
    }

    void record(OwnerNumber owner, Instant sent, std::optional<Milliseconds> lease, std::int64_t token) {
        Hold& hold = holds_.start(owner);
        hold.token = token;
        hold.enter(sent, lease, runtime_.options().watchdog_timeout);
        if constexpr (Wire<T>::shared)
            tell_representative();  // who may hold it with us
        else
            line_.held_here();
        runtime_.count_acquisition();
        schedule();
        runtime_.start_background();
    }

    // Reentry: whether there is one level more now; nothing when this thread has to ask like anybody else, be it because
    // the hold it had turns out to be lost.
    std::optional<bool> reenter(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        Hold* hold = holds_.find(request.owner);
        if (!hold || !hold->live()) return std::nullopt;
        const std::uint64_t id = hold->id;
        const std::uint32_t count = hold->count + 1;
        if (count > 0x7fff'ffff)
            throw Error(errc::would_deadlock, key(), "locked more often by one thread than can be counted");
        const Asked asked = send_acquire(lock, request, count);
        // Unknown is no harm here: the next command of this hold carries its absolute count.
        if (judge(asked.reply) != Verdict::answered) return no_answer(request, asked);
        const AcquireAnswer answer = Wire<T>::read_acquire(asked.reply, key());
        hold = holds_.find(request.owner);
        if (!hold || hold->id != id || !hold->live()) {
            // Lost while we asked: what the answer gave belongs to nobody.
            if (answer.kind == AcquireAnswer::Kind::held)
                take_back(lock, request.owner, Clock::now() + lease_of(request.lease));
            return std::nullopt;
        }
        if (answer.kind != AcquireAnswer::Kind::held) {
            lose(*hold, "the server says that it is not held any more");
            return std::nullopt;
        }
        hold->enter(asked.sent, request.lease, runtime_.options().watchdog_timeout);
        schedule();
        return true;
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    bool wait(const LockRequest& request) {
        Waiter me{.owner = request.owner, .lease = request.lease};
        // Built and destroyed without mutex_, which the callback takes.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(mutex_);
            rouse(me);
        });
        std::unique_lock lock(mutex_);
        if (request.polling) me.pause.emplace(request.polling->first, request.polling->longest);
        line_.join(me);
        if (!me.pause) listen();
        try {
            const bool held = wait_in_line(lock, request, me);
            leave(lock, me);
            return held;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            leave(lock, me);
            throw;
        }
    }

    bool wait_in_line(std::unique_lock<std::mutex>& lock, const LockRequest& request, Waiter& me) {
        bool may_watch = true;
        if (me.pause) line_.ask_again_at(Clock::now() + me.pause->next());
        for (;;) {
            if (me.granted) {
                if (const Hold* hold = holds_.find(me.owner); hold && hold->live()) return true;
                stand_again(me);  // handed over, and lost before we woke up
            }
            if (me.error) std::rethrow_exception(me.error);
            const Instant now = Clock::now();
            if (request.stop.stop_requested() || now >= request.deadline) return false;
            Instant sleep_until = request.deadline;
            if (line_.is_front(me) && !releasing_ && handing_over_ == 0) {
                const WaitLine::Step step = line_.step(now, held_here_until());
                if (step.ask) {
                    me.trying = true;
                    const bool held = settle(lock, request) && ask(lock, request);
                    me.trying = false;
                    if (held) return true;
                    if (me.pause) line_.ask_again_at(Clock::now() + me.pause->next());
                    continue;
                }
                sleep_until = std::min(sleep_until, step.sleep_until);
                if (subscribed_ && std::exchange(may_watch, false)) {
                    may_watch = watch(lock, me, sleep_until);
                    continue;  // whatever happened meanwhile
                }
            }
            may_watch = true;
            if (sleep_until == never)
                me.wake.wait(lock);
            else
                me.wake.wait_until(lock, sleep_until);
        }
    }

    // Sleeps where messages come in. False when this thread has to be told by another one.
    bool watch(std::unique_lock<std::mutex>& lock, Waiter& me, Instant until) {
        me.watching = true;
        lock.unlock();
        const bool watched = runtime_.watch(until);
        lock.lock();
        me.watching = false;
        return watched;
    }

    void stand_again(Waiter& me) {
        if (Hold* hold = holds_.find(me.owner); hold && --hold->dead == 0) holds_.erase(me.owner);
        me.granted = false;
        line_.join_first(me);
    }

    void listen() {
        if (wants_messages_) return;
        wants_messages_ = true;
        runtime_.start_background();
        subscribed_ = runtime_.subscriptions().want(wire_.channel(), *this);
    }

    // Out of the line, and what this one knew goes on to the next: it looks at the generation again.
    void leave(std::unique_lock<std::mutex>& lock, Waiter& me) {
        if (heir_ == &me) heir_ = nullptr;
        const bool was_front = line_.is_front(me);
        line_.leave(me);
        if (line_.empty()) {
            wants_messages_ = false;
            failing_since_.reset();
            runtime_.subscriptions().rest(wire_.channel(), *this);
            withdraw(lock);
        } else if (was_front) {
            rouse(*line_.front());
        }
    }

    // What was announced of a waiting thread, for others to make room, is over.
    void withdraw(std::unique_lock<std::mutex>& lock) {
        if constexpr (requires { wire_.withdraw(); }) {
            lock.unlock();
            wire_.withdraw();
            lock.lock();
        }
    }

    // --- giving back, the ways --------------------------------------------------------------------------------

    Instant foreground_deadline() const { return Clock::now() + runtime_.options().command_timeout; }

    std::error_code release_level(std::unique_lock<std::mutex>& lock, Hold& held) {
        const OwnerNumber owner = held.owner;
        const std::uint64_t id = held.id;
        held.leave();
        const std::uint32_t remaining = held.count;
        const bool watched = held.watched();
        const std::uint64_t request = next_request();
        const Milliseconds lease = watched ? runtime_.options().watchdog_timeout : Milliseconds(0);
        Instant sent{};
        lock.unlock();
        // Not answered: nothing is lost, for the next command of this hold carries its absolute count.
        const Reply reply = runtime_.persist(foreground_deadline(), {}, [&](Instant deadline, bool again) {
            sent = Clock::now();
            return wire_.release(owner, remaining, lease, request, again, deadline);
        });
        lock.lock();
        if (judge(reply) != Verdict::answered) return error_of(reply, key()).code();
        Hold* hold = holds_.find(owner);
        if (!hold || hold->id != id || !hold->live()) return errc::hold_lost;
        const ReleaseAnswer answer = decode_release(reply);
        if (answer.kind == ReleaseAnswer::Kind::senseless) return errc::protocol_error;
        if (answer.kind != ReleaseAnswer::Kind::still_held) {
            lose(*hold, "the server says that it is not held any more");
            return errc::hold_lost;
        }
        if (watched) hold->valid_until = std::max(hold->valid_until, redlatch::valid_until(sent, lease));
        schedule();
        return {};
    }

    std::error_code release_last(std::unique_lock<std::mutex>& lock, Hold& held) {
        const OwnerNumber owner = held.owner;
        const Instant until = held.valid_until;
        const std::uint64_t request = next_request();
        // From here on nothing renews it.
        holds_.finish(held);
        handoffs_ = 0;
        releasing_ = !Wire<T>::shared;
        const std::uint64_t messages = messages_;
        lock.unlock();
        bool resent = false;
        const Reply reply = runtime_.persist(foreground_deadline(), {}, [&](Instant deadline, bool again) {
            resent = again;
            return wire_.release(owner, 0, Milliseconds(0), request, again, deadline);
        });
        lock.lock();
        releasing_ = false;
        const ReleaseAnswer answer = decode_release(reply);
        if (judge(reply) != Verdict::answered || answer.kind == ReleaseAnswer::Kind::senseless)
            return not_delivered(lock, reply, owner, request, until);
        // A message that came before this reply may have been ours already.
        if (answer.kind == ReleaseAnswer::Kind::released && answer.listeners > 0 && !resent && subscribed_ &&
            line_.empty() && messages == messages_)
            ++own_messages_;
        // Who waits here for a shared lock does not wait for this hold.
        if constexpr (!Wire<T>::shared) released_here(answer.listeners > 1);
        // A release that was sent twice and finds nothing was delivered the first time.
        if (answer.kind == ReleaseAnswer::Kind::not_held && !resent) {
            report_loss("the server says that it was not held any more");
            return errc::hold_lost;
        }
        return {};
    }

    // Others who listen were told, and so are we, by the same message: everybody gets the same chance. Without them, or
    // without a subscription, the next one here need not wait for it.
    void released_here(bool others_listen) {
        if (!subscribed_ || !others_listen) {
            tell_representative();
        } else if (Waiter* front = line_.front()) {
            // The message may have come before the reply: it looks again.
            line_.expect_message(Clock::now());
            rouse(*front);
        }
    }

    // What is refused for good (the key is something else by now) is lost; everything else is sent again.
    std::error_code not_delivered(std::unique_lock<std::mutex>& lock, const Reply& reply, OwnerNumber owner,
                                  std::uint64_t request, Instant until) {
        if (judge(reply) == Verdict::refused && reply.is_error())
            report_loss(printable(reply.text, 160));
        else
            pending_.add(owner, request, until, Clock::now(), true);
        tell_representative();
        schedule();
        deliver_pending(lock);
        return judge(reply) == Verdict::answered ? make_error_code(errc::protocol_error)
                                                 : error_of(reply, key()).code();
    }

    // A template, so that an explicit instantiation leaves it out where the wire has none (clang 14 looks at no requires).
    template <class = void>
    std::error_code hand_over(std::unique_lock<std::mutex>& lock, Hold& held, Waiter& next) {
        const OwnerNumber owner = held.owner;
        const OwnerNumber heir = next.owner;
        const std::optional<Milliseconds> heir_lease = next.lease;
        const Instant until = held.valid_until;
        const std::uint64_t request = next_request();
        holds_.finish(held);
        line_.leave(next);
        heir_ = &next;
        handing_over_ = heir;
        Instant sent{};
        lock.unlock();
        const Reply reply = runtime_.persist(foreground_deadline(), {}, [&](Instant deadline, bool again) {
            // The heir's lease counts from the first sending that may have taken effect: a later one prolongs nothing.
            if (!again) sent = Clock::now();
            return wire_.hand_over(owner, heir, lease_of(heir_lease), request, again, deadline);
        });
        lock.lock();
        handing_over_ = 0;
        Waiter* waiting = std::exchange(heir_, nullptr);  // null when it has left meanwhile
        const Instant now = Clock::now();
        const HandOverAnswer answer = Wire<T>::read_hand_over(reply);
        const bool answered = judge(reply) == Verdict::answered && answer.kind != HandOverAnswer::Kind::senseless;
        const bool handed = answered && answer.kind == HandOverAnswer::Kind::handed;
        if (handed && waiting && now < redlatch::valid_until(sent, lease_of(heir_lease))) {
            ++handoffs_;
            runtime_.count_handoff();
            record(heir, sent, heir_lease, answer.token);
            waiting->granted = true;
            rouse(*waiting);
            return {};
        }
        if (waiting) line_.join_first(*waiting);
        // Handed to somebody who left, or too late for its lease: given back in the heir's name. Without a proper answer
        // it belongs to either of the two.
        if (handed || !answered) pending_.add(heir, next_request(), now + lease_of(heir_lease), now);
        settled_.notify_all();
        if (!answered) return not_delivered(lock, reply, owner, request, until);
        tell_representative();
        schedule();
        deliver_pending(lock);
        if (handed) return {};
        report_loss("the server says that it was not held any more");
        return errc::hold_lost;
    }

    // --- what is still to be given back -----------------------------------------------------------------------

    // An acquire of unknown outcome, or one that nobody wants: released in the background.
    void take_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner, Instant until) {
        pending_.add(owner, next_request(), until, Clock::now());
        schedule();
        // Sent by this thread, so that it follows the acquire on the same connection.
        deliver_pending(lock);
        withdraw(lock);
    }

    void give_back_later(const Hold& hold, std::uint64_t request) {
        pending_.add(hold.owner, request, Clock::now() + runtime_.options().watchdog_timeout, Clock::now());
        schedule();
    }

    void deliver_pending(std::unique_lock<std::mutex>& lock) {
        const std::vector<PendingReleases::Item> due = pending_.take_due(Clock::now());
        if (due.empty()) return;
        lock.unlock();
        for (const auto& item : due)
            wire_.post_release(item.owner, item.request, item.again,
                               [self = std::static_pointer_cast<LockState>(shared_from_this()),
                                request = item.request](Reply reply) { self->delivered(request, reply); });
        lock.lock();
    }

    void delivered(std::uint64_t request, const Reply& reply) {
        const std::lock_guard lock(mutex_);
        const Verdict verdict = judge(reply);
        if (verdict == Verdict::answered || (verdict == Verdict::refused && reply.is_error()))
            pending_.delivered(request);
        else
            pending_.failed(request, Clock::now());
        settled_.notify_all();
        tell_representative();
        schedule();
    }

    // --- losing -----------------------------------------------------------------------------------------------

    void lose(Hold& hold, const char* why) {
        if (hold.renewing) lost_in_renewal_.push_back(hold.id);
        hold.lose();
        if (hold.lost) runtime_.notify([source = std::move(*hold.lost)]() mutable { source.request_stop(); });
        hold.lost.reset();
        report_loss(why);
        tell_representative();
    }

    void report_loss(const std::string& why) {
        runtime_.count_lost_hold();
        runtime_.raise(Event::Kind::hold_lost, key(), why);
    }

    void schedule() {
        Instant at = pending_.look_at();
        for (const Hold& hold : holds_)
            if (hold.live()) at = std::min(at, hold.look_at());
        if (at != never) runtime_.timers().schedule(*this, at);
    }

    Runtime<T>& runtime_;
    Wire<T> wire_;

    std::mutex mutex_;
    std::condition_variable settled_;
    Holds holds_;
    WaitLine line_;
    PendingReleases pending_;
    std::vector<OwnerNumber> asking_;             // whose acquires are on their way
    std::vector<std::uint64_t> lost_in_renewal_;  // holds that were lost while a renewal was on its way
    std::optional<Instant> failing_since_;        // no server has answered since then
    std::uint64_t last_request_ = 0;
    unsigned handoffs_ = 0;         // in a row, within this process
    bool releasing_ = false;        // a last release is on its way
    OwnerNumber handing_over_ = 0;  // to whom a hold is on its way
    Waiter* heir_ = nullptr;        // the same one, as long as it waits
    bool wants_messages_ = false;
    bool subscribed_ = false;     // confirmed, so messages do come
    std::uint64_t messages_ = 0;  // so far
    unsigned own_messages_ = 0;   // of our own releases, still to come and no news to anybody here
};

}  // namespace redlatch
