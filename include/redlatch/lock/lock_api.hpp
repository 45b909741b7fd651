// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold.hpp"
#include "redlatch/lock/run_under.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <chrono>
#include <concepts>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <system_error>
#include <type_traits>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The public members of every lock, on top of members that act for a given owner.
//
// Any number of threads may call all members at once. Each throws Error; with a trailing std::error_code& it stores the
// code instead and throws nothing but std::bad_alloc. A call waits for another holder as long as it takes. For a server
// that cannot be reached it waits at most unreachable_timeout (of ObjectOptions or ClientOptions), then fails with
// errc::unreachable. A call that fails, times out or is stopped leaves no hold behind.
//
// A hold belongs to the calling thread. Every member that acquires, releases or queries a hold also takes an Owner: then the
// hold belongs to that logical owner, and any thread may act for it, several at once. Its levels nest. It excludes other
// Owners, threads and Holds, also in the same thread. The levels of one Owner are alike: unlock() ends the latest, whichever
// thread acquired it. So if a hold was lost and acquired anew, an unlock() meant for the old hold ends a level of the new one.
// A Hold, with an Owner or without, and its again() never act on the new hold by mistake; those of a MultiLock or RedLock for
// an Owner may. A try_lock() may return false while another thread of its Owner acquires the lock at the same time. The hold
// outlives all threads; a forked child does not have it.
class LockApi {
public:
    LockApi(const LockApi&) = delete;
    LockApi& operator=(const LockApi&) = delete;
    virtual ~LockApi() = default;

    // Acquires the lock and waits for it. Reentrant: each lock() needs one unlock(). One round trip if the lock is
    // free. A waiting thread sends nothing until the lock is released or its holder's lease ends. (A Mutex, a
    // NonReentrantLock and a NonReentrantFairLock are not reentrant. A Mutex and a SpinLock poll the server while
    // they wait, if it cannot tell them when the key changes.)
    //   lock(Owner{n})   for this logical owner, not for the calling thread
    //   lock(Lease{d})   the hold expires after d and is never renewed; without it the watchdog renews the hold
    //   lock(Lease::at_least(d))  the lock is given back no earlier than d after the acquire: see Lease::at_least()
    //   lock(Lease::at_most(d))   the hold ends d after the acquire at the latest: see Lease::at_most()
    //   lock(token)      gives up when a stop is requested; only this form returns a bool: true if the lock is held
    //   lock(…, ec)      stores the error instead of throwing it
    template <class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] auto lock(Tail&&... tail) {
        const bool held = obtain(request_of(never, tail...), tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return held;
    }

    // Acquires the lock if it is free: one try, one round trip. Takes an optional Owner, Lease and std::error_code&.
    template <class... Tail>
    requires TryOption<Tail...>
    [[nodiscard]] bool try_lock(Tail&&... tail) {
        LockRequest request = request_of(never, tail...);
        request.one_try = true;
        return obtain(request, tail...);
    }

    // Acquires the lock and waits for it until `timeout` has passed, by a monotonic clock. Waits are rounded up to the
    // next millisecond. Zero or less means one try; the largest value means no timeout. The first command to the server
    // gets at least 250 ms, so that a short timeout can still acquire a free lock. Returns false if the deadline
    // passes. Takes an optional Owner, Lease, std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), tail...);
    }

    // Does the same as try_lock_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(deadline_at(when), tail...);
    }

    // Acquires the lock for an object instead of the calling thread, and returns that object: see Hold. Waits and fails
    // as lock() does, and takes the same trailing arguments. A hold that was stopped, or failed with a std::error_code&,
    // is empty. With an Owner the object has one level of that owner; without, it has an owner of its own.
    template <class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] Hold hold(Tail&&... tail) { return held_until(never, false, tail...); }

    // Acquires the lock for an object if it is free, as try_lock() does. Otherwise the object is empty.
    template <class... Tail>
    requires TryOption<Tail...>
    [[nodiscard]] Hold try_hold(Tail&&... tail) { return held_until(never, true, tail...); }

    // Acquires the lock for an object within a time, as try_lock_for() does. Otherwise the object is empty.
    template <class Rep, class Period, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] Hold try_hold_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        const Instant deadline = deadline_after(Clock::now(), timeout);
        return held_until(deadline, deadline <= Clock::now(), tail...);
    }

    // Does the same as try_hold_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] Hold try_hold_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        const Instant deadline = deadline_at(when);
        return held_until(deadline, deadline <= Clock::now(), tail...);
    }

    // Acquires the lock for an object without a thread that waits: see Operation. Waits and fails as hold() does. Takes an
    // optional Owner, Lease and std::stop_token, which cancels the operation. Nothing is sent before the operation begins.
    //   redlatch::Hold hold = co_await orders.async_lock();
    template <class... Tail>
    requires AsyncOption<Tail...> Operation<Hold> async_lock(Tail&&... tail) { return later(never, false, tail...); }

    // Does the same as async_lock(), with one try. A hold that was not acquired is empty.
    template <class... Tail>
    requires AsyncOption<Tail...> && TryOption<Tail...> Operation<Hold> async_try_lock(Tail&&... tail) {
        return later(never, true, tail...);
    }

    // Does the same as async_lock(), for this time at most. It begins to run with this call. A hold that was not acquired in
    // time is empty.
    template <class Rep, class Period, class... Tail>
    requires AsyncOption<Tail...> Operation<Hold> async_try_lock_for(std::chrono::duration<Rep, Period> timeout,
                                                                     Tail&&... tail) {
        const Instant deadline = deadline_after(Clock::now(), timeout);
        return later(deadline, deadline <= Clock::now(), tail...);
    }

    // Does the same as async_try_lock_for(), until an instant of any clock, which is read once: by this call.
    template <class AnyClock, class Duration, class... Tail>
    requires AsyncOption<Tail...> Operation<Hold> async_try_lock_until(std::chrono::time_point<AnyClock, Duration> when,
                                                                       Tail&&... tail) {
        const Instant deadline = deadline_at(when);
        return later(deadline, deadline <= Clock::now(), tail...);
    }

    // Runs f(std::stop_token) while an object holds the lock, and then releases it, whatever f did: see Operation. The
    // result is that of f, or of co_await f(…) if f returns an awaitable. f runs where on() says; the token is requested
    // when the lock is lost or the operation is cancelled. A cancelled operation completes at once; the lock is released
    // when f has returned. Fails with the exception of f, and with errc::hold_lost if the lock was lost before f
    // returned. Takes an optional Owner, Lease and std::stop_token. Without an Owner, f runs in an owner of its own, so f
    // must not wait for the same lock.
    //   co_await orders.async_run([&](std::stop_token lost) { return ship(order, lost); });
    template <class F, class... Tail>
    requires AsyncOption<Tail...> && std::invocable<F&, std::stop_token>
    auto async_run(F f, const Tail&... tail) -> Operation<RunResult<F>> {
        using R = RunResult<F>;
        HoldRequest wanted = hold_request(never, false, tail...);
        return OperationAccess::make_simple<R>(
            wanted.host,
            [host = wanted.host, work = std::move(wanted.work), shared = std::make_shared<F>(std::move(f))](
                const RunContext& context) { return run_under<R>(hold_for(host, work, context), shared, context); },
            std::move(wanted.stop));
    }

    // Releases one level of this thread, or of an Owner: one round trip. Throws Error(errc::not_owner) if that never
    // acquired the lock. Throws nothing else, so that a guard's destructor is safe: lost() and on_event report that the
    // hold was lost, or that the server could not be reached (the release is then resent in the background until the
    // lease is over). Preserves errno.
    void unlock() { release(this_thread_number()); }
    void unlock(Owner owner) { release(owner); }

    // Does the same without throwing. `ec` holds every outcome: not_owner, hold_lost, unreachable, …
    void unlock(std::error_code& ec) { release(this_thread_number(), ec); }
    void unlock(Owner owner, std::error_code& ec) { release(owner, ec); }

    // Returns true if any thread of any process holds the lock. One round trip, as for the next three queries, which
    // ask the server, too.
    bool is_locked() { return ask_locked(never); }
    bool is_locked(std::error_code& ec) {
        return detail::answer([&] { return is_locked(); }, false, ec);
    }

    // Returns true if this thread, or an Owner, holds the lock, according to the server.
    bool is_held() { return hold_count() > 0; }
    bool is_held(std::error_code& ec) { return hold_count(ec) > 0; }
    bool is_held(Owner owner) { return hold_count(owner) > 0; }
    bool is_held(Owner owner, std::error_code& ec) { return hold_count(owner, ec) > 0; }

    // The same as is_held(Owner).
    bool is_held_by(Owner owner) { return is_held(owner); }
    bool is_held_by(Owner owner, std::error_code& ec) { return is_held(owner, ec); }

    // Returns how many levels this thread, or an Owner, holds, according to the server; 0 if it holds none.
    int hold_count() { return ask_hold_count(this_thread_number(), never); }
    int hold_count(Owner owner) { return ask_hold_count(owner, never); }
    int hold_count(std::error_code& ec) {
        return detail::answer([&] { return hold_count(); }, 0, ec);
    }
    int hold_count(Owner owner, std::error_code& ec) {
        return detail::answer([&] { return hold_count(owner); }, 0, ec);
    }

    // Returns how long the current holder's lease still lasts; nothing if the lock is free, milliseconds::max() for a
    // key without a TTL.
    std::optional<std::chrono::milliseconds> remaining_lease() { return ask_remaining_lease(never); }
    std::optional<std::chrono::milliseconds> remaining_lease(std::error_code& ec) {
        return detail::answer([&] { return remaining_lease(); }, std::optional<std::chrono::milliseconds>(), ec);
    }

    // Returns until when this thread, or an Owner, certainly holds the lock, a conservative estimate; time_point::min()
    // if it holds nothing. Sends no command. After this instant others may hold the lock: check it before each write
    // that must not come late. Counts the time for which the machine was suspended (Linux). A hold that another process
    // handed on lasts for 2 s at most until its first renewal, at a third of that.
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until() {
        return keeper().valid_until({this_thread_number()});
    }
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until(Owner owner) {
        return keeper().valid_until({owner});
    }

    // Returns a token that is requested when this thread's or an Owner's current hold is lost or can no longer be
    // guaranteed: at valid_until() at the latest, plus the time the machine needs to run a thread; after a suspension of
    // the machine (Linux), within a second of its resumption. It is also requested when the client is destroyed during
    // the hold, and from the start if it holds nothing. The callbacks should be short: a thread of the client runs them
    // one after another. When a client is destroyed, the destroying thread runs them. Sends no command.
    [[nodiscard]] std::stop_token lost() { return keeper().lost({this_thread_number()}); }
    [[nodiscard]] std::stop_token lost(Owner owner) { return keeper().lost({owner}); }

    // Ends the hold of any owner and wakes the waiters. Returns true if there was a hold. Two round trips: the first
    // reads who holds the lock, the second ends that hold. So a late copy of the command ends no other hold.
    bool force_unlock() { return force_release(never); }
    bool force_unlock(std::error_code& ec) {
        return detail::answer([&] { return force_unlock(); }, false, ec);
    }

protected:
    LockApi() = default;

private:
    friend struct LockAccess;

    // --- on behalf of an owner ----------------------------------------------------------------------------------

    // The state of the lock in this process. The second form keeps it alive, for objects that hold the lock.
    virtual HoldKeeper& keeper() = 0;
    virtual HeldLevel keeper_of_holds() = 0;

    // Adds to a request what this object determines. Throws Error if the request must not be made.
    virtual void prepare(LockRequest&) {}

    virtual bool force_release(Instant limit) = 0;

    // Queries. They try to reach the server until `limit`, but for unreachable_timeout at most.
    virtual bool ask_locked(Instant limit) = 0;
    virtual int ask_hold_count(OwnerNumber owner, Instant limit) = 0;
    virtual std::optional<Milliseconds> ask_remaining_lease(Instant limit) = 0;

    // --- the caller's request -----------------------------------------------------------------------------------

    // Sets the owner to the calling thread, unless an Owner is among the arguments. No layer below reads the thread
    // number.
    template <class... Tail>
    static LockRequest request_of(Instant deadline, const Tail&... tail) {
        return lock_request(owner_among(&this_thread_number, tail...), deadline, tail...);
    }

    void release(OwnerNumber owner) {
        const KeepErrno kept;
        [[maybe_unused]] const std::error_code quiet = keeper().release(owner);
    }

    void release(OwnerNumber owner, std::error_code& ec) {
        const KeepErrno kept;
        try {
            ec = keeper().release(owner);
        } catch (const std::system_error& error) {
            ec = error.code();
        }
    }

    // Acquires the lock, and stores the error if the caller wants that.
    template <class... Tail>
    bool obtain(LockRequest request, Tail&... tail) {
        if constexpr (detail::has_error_code<Tail&...>) {
            return detail::answer([&] { return obtain(std::move(request)); }, false, tail...);
        } else {
            prepare(request);
            return keeper().acquire(request).run();
        }
    }

    template <class... Tail>
    bool timed(Instant deadline, Tail&... tail) {
        LockRequest request = request_of(deadline, tail...);
        request.one_try = deadline <= Clock::now();
        return obtain(request, tail...);
    }

    // --- holds ----------------------------------------------------------------------------------------------------

    template <class... Tail>
    Hold held_until(Instant deadline, bool one_try, Tail&... tail) {
        return detail::answer(
            [&] {
                HoldRequest wanted = hold_request(deadline, one_try, tail...);
                return do_here(wanted.work, wanted.host, std::move(wanted.stop));
            },
            Hold(), tail...);
    }

    template <class... Tail>
    Operation<Hold> later(Instant deadline, bool one_try, const Tail&... tail) {
        HoldRequest wanted = hold_request(deadline, one_try, tail...);
        return OperationAccess::make<Hold>(std::move(wanted.host), std::move(wanted.work), std::move(wanted.stop));
    }

    // Acquires the lock for an object: the work of an operation, see SimpleWork.
    class Acquiring {
    public:
        Acquiring(std::shared_ptr<HoldKeeper> keeper, LockRequest request)
            : keeper_(std::move(keeper)), request_(std::move(request)) {}

        Task<bool> operator()(const RunContext& context) {
            request_.stop = context.stop;
            request_.by = context.by;
            return keeper_->acquire(request_);
        }

        void ended(bool held) {
            if (!held && request_.by && request_.stop.stop_requested())
                throw Error(errc::cancelled, keeper_->name_as_given(), "it was cancelled before it succeeded");
            if (held) facts_ = keeper_->facts(request_.owner);
            held_ = held;
        }

        // Nobody wants what was acquired.
        void unwanted() noexcept {
            if (held_) keeper_->waive_minimum({request_.owner, facts_});
        }

        Hold result(const std::shared_ptr<OperationHost>& host) {
            if (!std::exchange(held_, false)) return Hold();
            return Hold(HeldLevel{host, std::move(keeper_), request_.owner, facts_, request_.reentry});
        }

    private:
        std::shared_ptr<HoldKeeper> keeper_;
        LockRequest request_;
        HoldFacts facts_{};
        bool held_ = false;
    };

    // A hold that an operation is to acquire.
    struct HoldRequest {
        std::shared_ptr<OperationHost> host;
        Acquiring work;
        std::stop_token stop;
    };

    template <class... Tail>
    HoldRequest hold_request(Instant deadline, bool one_try, const Tail&... tail) {
        LockRequest request = lock_request(owner_among(&new_hold_owner, tail...), deadline, tail...);
        request.one_try = one_try;
        prepare(request);
        std::stop_token stop = std::exchange(request.stop, {});
        HeldLevel level = keeper_of_holds();
        return {std::move(level.host), Acquiring(std::move(level.keeper), std::move(request)), std::move(stop)};
    }

    // A template, because g++ emits every other coroutine into each file that includes this one, used or not.
    template <std::same_as<Acquiring> Work>
    static Task<Hold> hold_for(std::shared_ptr<OperationHost> host, Work work, RunContext context) {
        work.ended(co_await work(context));
        co_return work.result(host);
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
