// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/holds.hpp"
#include "redlatch/client/lock_answers.hpp"
#include "redlatch/client/lock_request.hpp"
#include "redlatch/client/options.hpp"
#include "redlatch/client/pending_releases.hpp"
#include "redlatch/client/retry.hpp"
#include "redlatch/client/runtime.hpp"
#include "redlatch/client/watched.hpp"
#include "redlatch/core/error.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {

// One lock, as this process knows it, without the waiting: who of its threads holds it, until when, and what is still
// to be given back. LockState and FairLockState add how threads wait for it. `Wire` knows the commands, and of its lock:
//   renewal         the script that renews holds of its kind
//   shared          whether many may hold it at a time; then a thread of this process may ask while others hold
//   hands_over      whether a hold can go from one thread of this process to the next
//   outlives_lease  whether the server may keep a hold beyond its lease, so that one that ran out is to be given back
//   withdraw()      tells, where a waiting one is announced, that nobody here waits any more
//
// mutex_ guards all members but the constant ones. It is never held during a command, nor while user code runs.
// settled_ wakes threads that wait for a pending release in their own name.
template <class T, template <class> class Wire>
class HoldKeeper : public Watched {
public:
    static constexpr std::string_view kind = Wire<T>::kind;

    HoldKeeper(Runtime<T>& runtime, const std::string& key) : runtime_(runtime), wire_(runtime, key) {}

    ~HoldKeeper() override { runtime_.timers().forget(*this); }

    const std::string& key() const noexcept { return wire_.key(); }
    Runtime<T>& runtime() const noexcept { return runtime_; }
    Wire<T>& wire() noexcept { return wire_; }

    bool is_idle() {
        const std::lock_guard lock(mutex_);
        return !holds_.any_live() && pending_.empty() && !is_waited_for();
    }

    // --- giving back ------------------------------------------------------------------------------------------

    // One level less. Nothing on success; hold_lost when it had ended already, unreachable when the release could
    // not be delivered yet (it goes on in the background). Throws Error(errc::not_owner).
    std::error_code release(OwnerNumber owner) try {
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
        return let_go(lock, *hold);
    } catch (const std::bad_alloc&) {
        // What could not be sent ends with its lease.
        return make_error_code(std::errc::not_enough_memory);
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
                // Not before its owner, who is told now, has had all of the time that was promised.
                if (Wire<T>::outlives_lease) give_back_later(hold, next_request(), hold.valid_until);
                lose(hold, hold.watched() ? "it could not be renewed in time" : "its lease ran out");
            } else if (hold.watched() && !hold.renewing && hold.renew_at <= horizon) {
                due.push_back(
                    {shared_from_this(), key(), hold.owner, hold.id, &Wire<T>::renewal, wire_.text(hold.owner)});
                hold.renewing = true;
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

protected:
    // --- what the waiting part adds; called with mutex_ held -----------------------------------------------------

    // Whether threads wait for it, or for something that is done in their name.
    virtual bool is_waited_for() const = 0;

    // The lock may be free for somebody of this process, for a reason that the server tells nobody.
    virtual void news() {}

    // The last level of a hold goes: to the server, or straight to somebody else.
    virtual std::error_code let_go(std::unique_lock<std::mutex>& lock, Hold& hold) {
        return release_last(lock, hold, [](const ReleaseAnswer&, bool) {});
    }

    // Whether nothing is on its way in this owner's name.
    virtual bool is_settled(OwnerNumber owner) const { return !pending_.has(owner); }

    // ------------------------------------------------------------------------------------------------------------

    std::uint64_t next_request() { return runtime_.next_request(); }

    Milliseconds lease_of(const std::optional<Milliseconds>& lease) const {
        return lease ? *lease : runtime_.options().watchdog_timeout;
    }

    // Waits until nothing is pending in the owner's name: false at the deadline or when stopped.
    bool settle(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        // A call with a deadline has its own limit.
        const Instant give_up =
            request.deadline == never ? deadline_after(Clock::now(), runtime_.options().unreachable_timeout) : never;
        while (!is_settled(request.owner)) {
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

    // `send(deadline)` sends the acquire script.
    template <class Send>
    Asked send_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, Send send) {
        const Instant give_up = give_up_at(request);
        Asked asked;
        asked.begun = Clock::now();
        asking_.push_back(request.owner);
        lock.unlock();
        asked.reply = runtime_.persist(give_up, request.stop, [&](Instant deadline, bool) {
            asked.sent = Clock::now();
            Reply reply = send(deadline);
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

    // Asks for a first hold. Nothing when the caller wants no answer any more; otherwise held (and recorded) or blocked.
    template <class Send>
    std::optional<AcquireAnswer> ask(std::unique_lock<std::mutex>& lock, const LockRequest& request, Send send) {
        const Asked asked = send_acquire(lock, request, send);
        const Instant now = Clock::now();
        const Milliseconds lease = lease_of(request.lease);
        if (judge(asked.reply) != Verdict::answered) {
            if (asked.unknown) take_back(lock, request.owner, now + lease);
            no_answer(request, asked);
            return std::nullopt;
        }
        const AcquireAnswer answer = decode(lock, asked.reply, request.owner, now + lease);
        if (answer.kind != AcquireAnswer::Kind::held) return answer;
        if (now >= redlatch::valid_until(asked.sent, lease)) {
            // The answer took longer than the lease lasts.
            take_back(lock, request.owner, now + lease);
            return AcquireAnswer{AcquireAnswer::Kind::blocked, Milliseconds(0), 0};
        }
        record_or_take_back(lock, request, asked.sent, answer.token);
        return answer;
    }

    // A hold that cannot be recorded, for want of memory or of a thread, is none.
    void record_or_take_back(std::unique_lock<std::mutex>& lock, const LockRequest& request, Instant sent,
                             std::int64_t token) {
        try {
            record(request.owner, sent, request.lease, token);
        } catch (...) {
            forget(request.owner);
            take_back(lock, request.owner, Clock::now() + lease_of(request.lease));
            throw;
        }
    }

    void forget(OwnerNumber owner) {
        if (Hold* hold = holds_.find(owner)) holds_.finish(*hold);
    }

    AcquireAnswer decode(std::unique_lock<std::mutex>& lock, const Reply& reply, OwnerNumber owner, Instant until) {
        try {
            return Wire<T>::read_acquire(reply, key());
        } catch (...) {
            take_back(lock, owner, until);
            throw;
        }
    }

    void record(OwnerNumber owner, Instant sent, std::optional<Milliseconds> lease, std::int64_t token) {
        Hold& hold = holds_.start(owner);
        hold.token = token;
        hold.enter(sent, lease, runtime_.options().watchdog_timeout);
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
        const Milliseconds lease = lease_of(request.lease);
        const Asked asked = send_acquire(lock, request, [&](Instant deadline) {
            return wire_.acquire(request.owner, count, lease, false, deadline);
        });
        // Unknown is no harm here: the next command of this hold carries its absolute count.
        if (judge(asked.reply) != Verdict::answered) return no_answer(request, asked);
        const AcquireAnswer answer = Wire<T>::read_acquire(asked.reply, key());
        hold = holds_.find(request.owner);
        if (!hold || hold->id != id || !hold->live()) {
            // Lost while we asked: what the answer gave belongs to nobody.
            if (answer.kind == AcquireAnswer::Kind::held) take_back(lock, request.owner, Clock::now() + lease);
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

    // The last level goes back to the server. `released(answer, resent)` is told of it, with mutex_ held.
    template <class Released>
    std::error_code release_last(std::unique_lock<std::mutex>& lock, Hold& held, Released released) {
        const OwnerNumber owner = held.owner;
        const Instant until = held.valid_until;
        const std::uint64_t request = next_request();
        // From here on nothing renews it.
        holds_.finish(held);
        releasing_ = !Wire<T>::shared;
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
        released(answer, resent);
        // A release that was sent twice and finds nothing was delivered the first time.
        if (answer.kind == ReleaseAnswer::Kind::not_held && !resent) {
            report_loss("the server says that it was not held any more");
            return errc::hold_lost;
        }
        return {};
    }

    // What is refused for good (the key is something else by now) is lost; everything else is sent again.
    std::error_code not_delivered(std::unique_lock<std::mutex>& lock, const Reply& reply, OwnerNumber owner,
                                  std::uint64_t request, Instant until) {
        if (judge(reply) == Verdict::refused && reply.is_error())
            report_loss(printable(reply.text, 160));
        else
            pending_.add(owner, request, until, Clock::now(), true);
        news();
        schedule();
        deliver_pending(lock);
        return judge(reply) == Verdict::answered ? make_error_code(errc::protocol_error)
                                                 : error_of(reply, key()).code();
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

    // What was announced of a waiting thread, for others to make room, is over.
    void withdraw(std::unique_lock<std::mutex>& lock) {
        if constexpr (requires { wire_.withdraw(); }) {
            lock.unlock();
            wire_.withdraw();
            lock.lock();
        }
    }

    void give_back_later(const Hold& hold, std::uint64_t request, Instant from = Clock::now()) {
        pending_.add(hold.owner, request, Clock::now() + runtime_.options().watchdog_timeout, from);
        schedule();
    }

    void deliver_pending(std::unique_lock<std::mutex>& lock) {
        const std::vector<PendingReleases::Item> due = pending_.take_due(Clock::now());
        if (due.empty()) return;
        lock.unlock();
        for (const auto& item : due) {
            try {
                wire_.post_release(item.owner, item.request, item.again,
                                   [self = std::static_pointer_cast<HoldKeeper>(shared_from_this()),
                                    request = item.request](Reply reply) { self->delivered(request, reply); });
            } catch (...) {  // no memory, no thread: again in a moment
                delivered(item.request, Reply::of(Reply::Kind::not_sent, std::string()));
            }
        }
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
        news();
        schedule();
    }

    // --- losing -----------------------------------------------------------------------------------------------

    void lose(Hold& hold, const char* why) {
        // First what may fail for want of memory: then the hold is not lost yet, and the background comes again.
        if (hold.renewing) lost_in_renewal_.push_back(hold.id);
        if (hold.lost) runtime_.notify([source = *hold.lost]() mutable { source.request_stop(); });
        hold.lose();
        hold.lost.reset();
        report_loss(why);
        news();
    }

    void report_loss(std::string_view why) noexcept {
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
    PendingReleases pending_;
    std::optional<Instant> failing_since_;  // no server has answered since then
    bool releasing_ = false;                // a last release is on its way

private:
    std::vector<OwnerNumber> asking_;             // whose acquires are on their way
    std::vector<std::uint64_t> lost_in_renewal_;  // holds that were lost while a renewal was on its way
};

}  // namespace redlatch
