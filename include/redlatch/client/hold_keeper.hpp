// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/holds.hpp"
#include "redlatch/client/inquiry.hpp"
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
#include <functional>
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
// to be given back. LockState and FairLockState add how threads wait for it. `Wire` knows the commands, and of its
// lock:
//   renewal         the script that renews holds of its kind
//   shared          whether many may hold it at a time; then a thread of this process may ask while others hold
//   reentrant       whether its holder may take it once more. If so, the server knows a hold by its owner. If not, it knows
//                   it by its number too, and whatever gives it back carries that number
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
        return !holds_.any_live() && pending_.empty() && errands_.empty() && !is_waited_for();
    }

    // --- taking, without waiting ------------------------------------------------------------------------------

    // One try for a lock over several servers, sent once. `tell(answer)`, on any thread, says whether the hold is still
    // wanted that it may tell of; otherwise it is given back.
    void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                           std::function<bool(const TryAnswer&)> tell, Receiver receiver) {
        std::unique_lock lock(mutex_);
        if (!is_settled(owner) || contains(asking_, owner) || contains(leaving_, owner)) {
            lock.unlock();
            tell({TryAnswer::Kind::failed});  // an earlier command of this thread is not answered yet
            return;
        }
        Hold* hold = holds_.find(owner);
        if (hold && refuses_reentry(*hold)) {
            lock.unlock();
            tell({TryAnswer::Kind::failed, 0, not_reentrant()});
            return;
        }
        const bool again = hold && hold->live();
        const std::uint64_t id = again ? hold->id : 0;
        const Claim claim{owner, again ? id : next_request(), again ? hold->count + 1 : 1, lease_of(lease)};
        errands_.push_back({owner, true});
        lock.unlock();
        Asked asked;
        asked.hold = claim.hold;
        asked.begun = asked.sent = Clock::now();
        Completion done = [self = self(), owner, lease, id, asked, tell = std::move(tell)](Reply reply) mutable {
            asked.reply = std::move(reply);
            asked.unknown = !asked.reply.answered() && !asked.reply.is_unsent();
            self->tried(owner, lease, id, asked, tell);
        };
        try {
            wire_.acquire(claim, runtime_.posting(std::move(done), receiver, Effect::grants));
        } catch (...) {
            // Nothing was sent.
            lock.lock();
            end_errand(owner, true);
            throw;
        }
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
        if (!is_still_held(lock, *hold)) return errc::hold_lost;
        overtake(owner);
        const Among leaving(leaving_, owner, lock);
        return hold->count > 1 ? release_level(lock, *hold) : let_go(lock, *hold);
    } catch (const std::bad_alloc&) {
        // What could not be sent ends with its lease.
        return make_error_code(std::errc::not_enough_memory);
    }

    // The same without waiting, for locks over several servers: `done` is told the outcome, on any thread.
    void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done, Receiver receiver) {
        std::unique_lock lock(mutex_);
        Hold* hold = holds_.find(owner);
        if (!hold || !is_still_held(lock, *hold)) {
            lock.unlock();
            return done(errc::hold_lost);
        }
        overtake(owner);
        const Leaving leaving = leave(*hold);
        const std::uint64_t request = release_number(leaving.hold);
        errands_.push_back({owner, false});
        lock.unlock();
        Completion answered = [self = self(), owner, leaving, request, sent = Clock::now(), done](const Reply& reply) {
            std::unique_lock relock(self->mutex_);
            self->end_errand(owner, false);
            const std::error_code outcome =
                leaving.remaining > 0 ? self->level_released(reply, owner, leaving, sent)
                                      : self->last_released(relock, reply, owner, request, leaving.until, false,
                                                            [&](const ReleaseAnswer&) { self->news(); });
            relock.unlock();
            done(outcome);
        };
        try {
            wire_.release(owner, leaving.remaining, leaving.lease, request, false,
                          runtime_.posting(std::move(answered), receiver));
        } catch (...) {
            // Nothing was sent yet; the background goes on trying.
            lock.lock();
            end_errand(owner, false);
            if (leaving.remaining == 0) pending_.add(owner, request, leaving.until, Clock::now());
            schedule();
            throw;
        }
    }

    // Ends anyone's hold: whether there was one. Asks until `limit`, and not for longer than unreachable_timeout.
    bool force_release(Instant limit = never) {
        // Only what is held before the command is sent can be ended by it.
        std::vector<std::uint64_t> ended;
        {
            const std::lock_guard lock(mutex_);
            for (const Hold& hold : holds_)
                if (hold.live()) ended.push_back(hold.id);
        }
        const Reply reply = detail::inquire(
            runtime_, key(), [&](Instant deadline) { return wire_.force_release(runtime_.calling(deadline)); }, limit);
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

    // The number of the owner's hold, and until when it is certain.
    HeldPart part(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = holds_.find(owner);
        return hold && hold->live() ? HeldPart{hold->id, hold->valid_until} : HeldPart{};
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
                if (Wire<T>::outlives_lease) give_back_later(hold, hold.valid_until);
                lose(hold, hold.watched() ? "it could not be renewed in time" : "its lease ran out");
            } else if (!hold.renewing && hold.ask_at() <= horizon) {
                due.push_back({shared_from_this(), key(), hold.owner, hold.id, &Wire<T>::renewal,
                               wire_.text(hold.owner, hold.id)});
                if (!hold.watched()) due.back().lease = Milliseconds(1);
                hold.renewing = true;
            }
        }
        for (std::size_t n = pending_.end_leases(now); n > 0; --n)
            runtime_.raise(Event::Kind::unlock_not_delivered, key(),
                           "its lease is over, so others are not blocked any more");
        settled_.notify_all();
        schedule();
        deliver_pending(lock);
        lock.unlock();
        runtime_.forget_if_unused(*this);
    }

    void moved() override {
        const std::lock_guard lock(mutex_);
        for (Hold& hold : holds_)
            if (hold.live()) hold.doubt(Clock::now());
        schedule();
    }

    void renewed(const Renewal& renewal, Renewed outcome, Instant sent) override {
        std::unique_lock lock(mutex_);
        Hold* hold = holds_.find(renewal.owner);
        if (hold && hold->live() && hold->id == renewal.hold) {
            const Milliseconds timeout = runtime_.options().watchdog_timeout;
            switch (outcome) {
                case Renewed::yes: renewal.lease ? hold->checked() : hold->renewed(sent, timeout); break;
                case Renewed::refused: lose(*hold, "the server says that it is not held any more"); break;
                case Renewed::unknown: hold->renewal_failed(Clock::now(), timeout); break;
            }
            schedule();
        } else if (std::erase(lost_in_renewal_, renewal.hold) > 0 && outcome == Renewed::yes &&
                   !takes_over(renewal.owner)) {
            // Lost for us, but prolonged on the server after all: it must not block others for another lease. But its
            // owner was told a little early, and was promised that time.
            const Instant now = Clock::now();
            const Instant over = now + runtime_.options().watchdog_timeout;
            pending_.add(renewal.owner, release_number(renewal.hold), over, now + Hold::notice);
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
    virtual bool is_settled(OwnerNumber owner) const {
        return !pending_.has(owner) &&
               std::none_of(errands_.begin(), errands_.end(), [owner](const Errand& e) { return e.owner == owner; });
    }

    // ------------------------------------------------------------------------------------------------------------

    struct Asked {
        Reply reply;
        Instant begun;
        Instant sent;            // of the last sending, which the reply answers
        bool unknown = false;    // a sending remained without an answer
        std::uint64_t hold = 0;  // what was asked for
    };

    std::uint64_t next_request() { return runtime_.next_request(); }

    // Of a request that gives this hold back.
    std::uint64_t release_number(std::uint64_t hold) { return Wire<T>::reentrant ? next_request() : hold; }

    std::shared_ptr<HoldKeeper> self() { return std::static_pointer_cast<HoldKeeper>(shared_from_this()); }

    // --- what is on its way in the background, one thing at a time for an owner -------------------------------------

    // A try or a release of this owner's.
    struct Errand {
        OwnerNumber owner;
        bool taking;
        bool overtaken = false;  // a release was sent after it, on whatever way: what it gives is not known
    };

    auto find_errand(OwnerNumber owner, bool taking) {
        return std::find_if(errands_.begin(), errands_.end(),
                            [&](const Errand& e) { return e.owner == owner && e.taking == taking; });
    }

    void overtake(OwnerNumber owner) {
        if (const auto errand = find_errand(owner, true); errand != errands_.end()) errand->overtaken = true;
    }

    void end_errand(OwnerNumber owner, bool taking) {
        errands_.erase(find_errand(owner, taking));
        settled_.notify_all();
        // The state may be forgotten when nobody uses it any more; that is not urgent.
        runtime_.timers().schedule(*this, Clock::now() + Milliseconds(1000));
    }

    static bool contains(const std::vector<OwnerNumber>& owners, OwnerNumber owner) {
        return std::find(owners.begin(), owners.end(), owner) != owners.end();
    }

    // An owner's place among those whose commands a caller waits for. Without memory for it there is none: a hold must
    // be given back all the same.
    class Among {
    public:
        Among(std::vector<OwnerNumber>& owners, OwnerNumber owner, std::unique_lock<std::mutex>& lock)
            : owners_(owners), owner_(owner), lock_(lock) {
            try {
                owners_.push_back(owner);
            } catch (const std::bad_alloc&) {
            }
        }
        Among(const Among&) = delete;
        Among& operator=(const Among&) = delete;

        ~Among() {
            if (!lock_.owns_lock()) lock_.lock();
            if (const auto place = std::find(owners_.begin(), owners_.end(), owner_); place != owners_.end())
                owners_.erase(place);
        }

    private:
        std::vector<OwnerNumber>& owners_;
        const OwnerNumber owner_;
        std::unique_lock<std::mutex>& lock_;
    };

    // The answer to try_in_background(), about the hold `id`, or a first one when that is 0.
    void tried(OwnerNumber owner, const std::optional<Milliseconds>& lease, std::uint64_t id, const Asked& asked,
               const std::function<bool(const TryAnswer&)>& tell) {
        std::unique_lock lock(mutex_);
        TryAnswer answer{TryAnswer::Kind::failed};
        bool wanted = false;
        try {
            answer = answer_of_try(lock, owner, lease, id, asked);
            lock.unlock();
            wanted = tell(answer);
        } catch (...) {  // no memory: nobody has learned of it
        }
        if (!lock.owns_lock()) lock.lock();
        end_errand(owner, true);
        lock.unlock();
        if (answer.kind == TryAnswer::Kind::held && !wanted)
            release_in_background(
                owner, [](std::error_code) {}, Receiver::background);
    }

    TryAnswer answer_of_try(std::unique_lock<std::mutex>& lock, OwnerNumber owner,
                            const std::optional<Milliseconds>& lease, std::uint64_t id, const Asked& asked) {
        using Kind = TryAnswer::Kind;
        try {
            if (judge(asked.reply) != Verdict::answered) {
                if (asked.unknown && id == 0) take_back(lock, owner, asked.hold, Clock::now() + lease_of(lease));
                return {Kind::failed, 0, error_of(asked.reply, key())};
            }
            if (find_errand(owner, true)->overtaken) {
                take_back(lock, owner, asked.hold, Clock::now() + lease_of(lease));
                return {Kind::refused};
            }
            const bool held = id == 0 ? take_in(lock, owner, lease, asked).kind == AcquireAnswer::Kind::held
                                      : take_in_again(lock, owner, id, lease, asked);
            if (!held) return {Kind::refused};
            return {Kind::held, holds_.find(owner)->id};
        } catch (const Error& error) {
            return {Kind::failed, 0, error};
        }
    }

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

    // `send(claim, deadline)` sends the acquire command.
    template <class Send>
    Asked send_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, Claim claim, Send send) {
        const Instant give_up = give_up_at(request);
        Asked asked;
        asked.hold = claim.hold;
        asked.begun = Clock::now();
        const Among asking(asking_, request.owner, lock);
        lock.unlock();
        asked.reply = runtime_.persist(give_up, request.stop, [&](Instant deadline, bool again) {
            if (again) claim.first = false;
            asked.sent = Clock::now();
            Reply reply = send(std::as_const(claim), deadline);
            if (!reply.answered() && !reply.is_unsent()) asked.unknown = true;
            return reply;
        });
        lock.lock();
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

    // Asks for a first hold by `send(claim, deadline)`. Nothing when the caller wants no answer any more; otherwise
    // held (and recorded) or blocked. `first`: before any waiting.
    template <class Send>
    std::optional<AcquireAnswer> ask(std::unique_lock<std::mutex>& lock, const LockRequest& request, bool first,
                                     Send send) {
        const bool announced = request.precedence && !request.one_try;
        const Claim claim{request.owner, next_request(), 1, lease_of(request.lease), announced, first};
        const Asked asked = send_acquire(lock, request, claim, send);
        if (judge(asked.reply) != Verdict::answered) {
            if (asked.unknown) take_back(lock, request.owner, asked.hold, Clock::now() + lease_of(request.lease));
            no_answer(request, asked);
            return std::nullopt;
        }
        return take_in(lock, request.owner, request.lease, asked);
    }

    // What the answer to the question for a first hold gives.
    AcquireAnswer take_in(std::unique_lock<std::mutex>& lock, OwnerNumber owner,
                          const std::optional<Milliseconds>& wanted, const Asked& asked) {
        const Instant now = Clock::now();
        const Milliseconds lease = lease_of(wanted);
        const AcquireAnswer answer = decode(lock, asked, owner, now + lease);
        if (answer.kind != AcquireAnswer::Kind::held) return answer;
        if (!asked.reply.replicated) {
            take_back(lock, owner, asked.hold, now + lease);
            throw not_replicated(key());
        }
        if (now >= redlatch::valid_until(asked.sent, lease)) {
            // The answer took longer than the lease lasts.
            take_back(lock, owner, asked.hold, now + lease);
            return AcquireAnswer{AcquireAnswer::Kind::blocked, Milliseconds(0), 0};
        }
        record_or_take_back(lock, owner, wanted, asked, answer.token);
        return answer;
    }

    // A hold that cannot be recorded, for want of memory or of a thread, is none.
    void record_or_take_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner,
                             const std::optional<Milliseconds>& lease, const Asked& asked, std::int64_t token) {
        try {
            record(owner, asked.hold, asked.sent, lease, token);
        } catch (...) {
            forget(owner);
            take_back(lock, owner, asked.hold, Clock::now() + lease_of(lease));
            throw;
        }
    }

    void forget(OwnerNumber owner) {
        if (Hold* hold = holds_.find(owner)) holds_.finish(*hold);
    }

    AcquireAnswer decode(std::unique_lock<std::mutex>& lock, const Asked& asked, OwnerNumber owner, Instant until) {
        try {
            return wire_.read_acquire(asked.reply, key());
        } catch (...) {
            take_back(lock, owner, asked.hold, until);
            throw;
        }
    }

    void record(OwnerNumber owner, std::uint64_t id, Instant sent, std::optional<Milliseconds> lease,
                std::int64_t token) {
        Hold& hold = holds_.start(owner, id);
        hold.token = token;
        hold.enter(sent, lease, runtime_.options().watchdog_timeout);
        runtime_.count_acquisition();
        schedule();
        runtime_.start_background();
    }

    // Reentry: whether there is one level more now; nothing when this thread has to ask like anybody else, be it
    // because the hold it had turns out to be lost.
    std::optional<bool> reenter(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        Hold* hold = holds_.find(request.owner);
        if (hold && refuses_reentry(*hold)) throw not_reentrant();
        if (!hold || !hold->live()) return std::nullopt;
        const std::uint64_t id = hold->id;
        const std::uint32_t count = hold->count + 1;
        if (count > 0x7fff'ffff)
            throw Error(errc::would_deadlock, key(), "locked more often by one thread than can be counted");
        const Claim claim{request.owner, id, count, lease_of(request.lease)};
        const Asked asked = send_acquire(lock, request, claim, [&](const Claim& sent, Instant deadline) {
            return wire_.acquire(sent, runtime_.calling(deadline, Effect::grants));
        });
        // Unknown is no harm here: the next command of this hold carries its absolute count.
        if (judge(asked.reply) != Verdict::answered) return no_answer(request, asked);
        if (take_in_again(lock, request.owner, id, request.lease, asked)) return true;
        return std::nullopt;
    }

    // What the answer to a reentry gives: false when the hold is lost.
    bool take_in_again(std::unique_lock<std::mutex>& lock, OwnerNumber owner, std::uint64_t id,
                       const std::optional<Milliseconds>& wanted, const Asked& asked) {
        const AcquireAnswer answer = wire_.read_acquire(asked.reply, key());
        Hold* hold = holds_.find(owner);
        if (!hold || hold->id != id || !hold->live()) {
            // Lost while we asked: what the answer gave belongs to nobody.
            if (answer.kind == AcquireAnswer::Kind::held) take_back(lock, owner, id, Clock::now() + lease_of(wanted));
            return false;
        }
        if (answer.kind != AcquireAnswer::Kind::held) {
            lose(*hold, "the server says that it is not held any more");
            return false;
        }
        // The server has one level more than we; the next command of this hold says how many there are.
        if (!asked.reply.replicated) throw not_replicated(key());
        hold->enter(asked.sent, wanted, runtime_.options().watchdog_timeout);
        schedule();
        return true;
    }

    // Whether a thread that asks again would wait for itself. A hold that is over refuses nothing.
    bool refuses_reentry(Hold& hold) {
        if (Wire<T>::reentrant || !hold.live()) return false;
        if (Clock::now() < hold.valid_until) return true;
        lose(hold, "its lease ran out");
        return false;
    }

    Error not_reentrant() const {
        return {errc::would_deadlock, key(),
                "this thread holds it already, and it is not reentrant; an RLock is, where sections nest"};
    }

    // --- giving back, the ways --------------------------------------------------------------------------------

    Instant foreground_deadline() const { return Clock::now() + runtime_.options().command_timeout; }

    // A level that is about to go.
    struct Leaving {
        std::uint64_t hold;
        std::uint32_t remaining;
        Milliseconds lease;  // of what remains: only of the watchdog's
        Instant until;
    };

    // From here on nothing renews a hold whose last level this was.
    Leaving leave(Hold& hold) {
        const Instant until = hold.valid_until;
        const std::uint64_t id = hold.id;
        if (hold.count == 1) {
            holds_.finish(hold);
            return {id, 0, Milliseconds(0), until};
        }
        hold.leave();
        return {id, hold.count, hold.watched() ? runtime_.options().watchdog_timeout : Milliseconds(0), until};
    }

    // Whether there is a live hold to release a level of; otherwise a level of a lost one is over with.
    bool is_still_held(std::unique_lock<std::mutex>& lock, Hold& hold) {
        if (hold.live() && Clock::now() >= hold.valid_until) {
            give_back_later(hold);
            lose(hold, "its lease ran out");
        }
        if (hold.live()) return true;
        if (--hold.dead == 0) holds_.erase(hold.owner);
        deliver_pending(lock);
        return false;
    }

    std::error_code release_level(std::unique_lock<std::mutex>& lock, Hold& held) {
        const OwnerNumber owner = held.owner;
        const Leaving leaving = leave(held);
        const std::uint64_t request = next_request();
        Instant sent{};
        lock.unlock();
        const Reply reply = runtime_.persist(foreground_deadline(), {}, [&](Instant deadline, bool again) {
            sent = Clock::now();
            return wire_.release(owner, leaving.remaining, leaving.lease, request, again, runtime_.calling(deadline));
        });
        lock.lock();
        return level_released(reply, owner, leaving, sent);
    }

    std::error_code level_released(const Reply& reply, OwnerNumber owner, const Leaving& leaving, Instant sent) {
        // Not answered: nothing is lost, for the next command of this hold carries its absolute count.
        if (judge(reply) != Verdict::answered) return error_of(reply, key()).code();
        Hold* hold = holds_.find(owner);
        if (!hold || hold->id != leaving.hold || !hold->live()) return errc::hold_lost;
        const ReleaseAnswer answer = wire_.read_release(reply);
        if (answer.kind == ReleaseAnswer::Kind::senseless) return errc::protocol_error;
        if (answer.kind != ReleaseAnswer::Kind::still_held) {
            lose(*hold, "the server says that it is not held any more");
            return errc::hold_lost;
        }
        if (leaving.lease > Milliseconds(0))
            hold->valid_until = std::max(hold->valid_until, redlatch::valid_until(sent, leaving.lease));
        schedule();
        return {};
    }

    // The last level goes back to the server. `released(answer, resent)` is told of it, with mutex_ held.
    template <class Released>
    std::error_code release_last(std::unique_lock<std::mutex>& lock, Hold& held, Released released) {
        const OwnerNumber owner = held.owner;
        const Leaving leaving = leave(held);
        const std::uint64_t request = release_number(leaving.hold);
        return send_last(lock, owner, request, leaving.until, released);
    }

    // The same for a hold of which nothing is kept here any more.
    template <class Released>
    std::error_code send_last(std::unique_lock<std::mutex>& lock, OwnerNumber owner, std::uint64_t request,
                              Instant until, Released released) {
        releasing_ = !Wire<T>::shared;
        lock.unlock();
        bool resent = false;
        const Reply reply = runtime_.persist(foreground_deadline(), {}, [&](Instant deadline, bool again) {
            resent = again;
            return wire_.release(owner, 0, Milliseconds(0), request, again, runtime_.calling(deadline));
        });
        lock.lock();
        releasing_ = false;
        return last_released(lock, reply, owner, request, until, resent,
                             [&](const ReleaseAnswer& answer) { released(answer, resent); });
    }

    template <class Released>
    std::error_code last_released(std::unique_lock<std::mutex>& lock, const Reply& reply, OwnerNumber owner,
                                  std::uint64_t request, Instant until, bool resent, Released released) {
        const ReleaseAnswer answer = wire_.read_release(reply);
        if (judge(reply) != Verdict::answered || answer.kind == ReleaseAnswer::Kind::senseless)
            return not_delivered(lock, reply, owner, request, until);
        released(answer);
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
    void take_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner, std::uint64_t hold, Instant until) {
        pending_.add(owner, release_number(hold), until, Clock::now());
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

    void give_back_later(const Hold& hold, Instant from = Clock::now()) {
        const Instant over = Clock::now() + runtime_.options().watchdog_timeout;
        pending_.add(hold.owner, release_number(hold.id), over, from);
        schedule();
    }

    void deliver_pending(std::unique_lock<std::mutex>& lock) {
        const std::vector<PendingReleases::Item> due = pending_.take_due(Clock::now());
        if (due.empty()) return;
        lock.unlock();
        for (const auto& item : due) {
            try {
                wire_.give_up(item.owner, item.request, item.again,
                              runtime_.posting([self = self(), request = item.request](Reply reply) {
                                  self->delivered(request, reply);
                              }));
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
        // The state may be forgotten now.
        if (pending_.empty()) runtime_.timers().schedule(*this, Clock::now());
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

    // Whether a hold of the owner's that we believed lost is its own again: where the server knows holds by their owner
    // only, by one that was taken since, or is just being asked for.
    bool takes_over(OwnerNumber owner) {
        if (!Wire<T>::reentrant) return false;
        const Hold* hold = holds_.find(owner);
        return (hold && hold->live()) || contains(asking_, owner);
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
    std::vector<Errand> errands_;                 // what is on its way in the background
    std::vector<OwnerNumber> asking_;             // whose acquires are on their way
    std::vector<OwnerNumber> leaving_;            // whose releases are
    std::vector<std::uint64_t> lost_in_renewal_;  // holds that were lost while a renewal was on its way
};

}  // namespace redlatch
