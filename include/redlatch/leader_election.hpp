// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/fenced_lock.hpp"
#include "redlatch/lock/hold.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
struct TermAccess;
}  // namespace detail

// Who leads, as the server knows it at one moment.
struct Leader {
    std::string owner;  // "<client id>:<number>": a new one for each term
    std::string
        name;  // the leader's own, as given to its LeaderElection; empty if it has none, or has just been elected
    std::int64_t token = 0;             // the fencing token of the term
    std::chrono::milliseconds lease{};  // how long the term lasts unless it is renewed

    // Compares the term and the name of its leader.
    friend bool operator==(const Leader& a, const Leader& b) noexcept { return a.owner == b.owner && a.name == b.name; }
};

// One term as the leader. It belongs to whoever has the object, as a Hold does: it can be moved into another thread. The
// destructor resigns without waiting for the server. After a fork the child leads nothing.
class [[nodiscard]] Term {
public:
    // Is no term.
    Term() noexcept = default;

    // Returns true unless it is no term: it was resigned, moved from, or never began. Says nothing about the lease.
    explicit operator bool() const noexcept { return static_cast<bool>(hold_); }

    // Returns true while it is certain that nobody else leads: until valid_until(), and only while the term is not lost.
    // A process that was suspended or cut off is not the leader any more. Sends no command.
    [[nodiscard]] bool is_leader() const { return Clock::now() < valid_until() && !lost().stop_requested(); }

    // Returns until when it certainly leads, if no renewal follows: see RLock::valid_until(). Returns time_point::min() if
    // it is no term. Sends no command.
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until() const { return hold_.valid_until(); }

    // Returns a token that is requested when the term is lost: see RLock::lost(). Sends no command.
    [[nodiscard]] std::stop_token lost() const { return hold_.lost(); }

    // Returns the fencing token of the term, which is greater than those of all terms before it. Throws
    // Error(errc::unsupported) if it is no term. Sends no command.
    [[nodiscard]] std::int64_t token() const { return hold_.token(); }

    // Returns the number of the hold, as Hold::owner() does; 0 if it is no term.
    std::uint64_t owner() const noexcept { return hold_.owner(); }

    // The time for which resign() waits for the server, unless the caller names another.
    static constexpr std::chrono::milliseconds resign_limit{2000};

    // Ends the term, and waits for the reply until `limit` has passed or the lease is over, whichever comes first. That
    // time begins with this call, so an old deadline or a stop request does not cut it short. Afterwards it is no term,
    // whatever the outcome: no error, hold_lost if the term had ended before, unreachable if the server has not replied
    // in time (then the client goes on delivering it until the lease is over), not_owner if it was no term.
    template <class Rep, class Period>
    std::error_code resign(std::chrono::duration<Rep, Period> limit) {
        return resign_until(deadline_after(Clock::now(), limit));
    }
    std::error_code resign() { return resign(resign_limit); }

    // Does the same without a thread that waits: see Hold::async_unlock().
    Operation<std::error_code> async_resign() &&;

private:
    friend struct detail::TermAccess;

    explicit Term(Hold hold) noexcept : hold_(std::move(hold)) {}

    std::error_code resign_until(Instant deadline);

    Hold hold_;
};

// Elects one of several candidates as the leader: the one that holds the FencedLock of this name. The watchdog renews its
// term. If its process dies, the term ends with its lease. A Redisson RFencedLock of the name takes part.
//
//   redlatch::LeaderElection election{redis, "scheduler", "host-7"};
//   election.lead([&](std::stop_token ending) { … }, stop);   // runs while it leads; campaigns again after a loss
//
// Two candidates never lead at the same time if each leader minds is_leader() or lost(), which report the end of its term
// before the server lets another one in. Its writes elsewhere can still come late: pass the term's token along. See FencedLock.
//
// Besides the keys of the lock there is redlatch_leader:{name}, which tells observers the name of the last leader. It
// has no TTL, as the token counter of the lock.
//
// Neither copyable nor movable. Any number of threads may use one object; each call of campaign() or lead() is a candidate
// of its own. Each member throws Error; with a trailing std::error_code& it stores the code and throws nothing but
// std::bad_alloc and what the given function throws.
class LeaderElection {
public:
    // Makes an object for the election of this name. `candidate` is how observers will know the leader that campaigns
    // through it: at most 1,024 bytes; the first form takes ClientOptions::name. Throws Error(errc::invalid_argument) for
    // a bad name or option, as FencedLock does. Sends nothing.
    LeaderElection(Client& client, std::string_view name, const ObjectOptions& options = {});
    LeaderElection(Client& client, std::string_view name, std::string_view candidate,
                   const ObjectOptions& options = {});

    // Returns the name of the election as given, without the client's key_prefix.
    const std::string& name() const noexcept { return lock_.name(); }

    // Returns how observers know the leader that campaigns through this object.
    const std::string& candidate() const noexcept { return candidate_; }

    // --- leading --------------------------------------------------------------------------------------------------

    // Waits until it is elected, as FencedLock::hold() waits for the lock, and announces its name. One round trip if
    // nobody leads, and one for the announcement. If the announcement fails, it leads all the same, and observers
    // notice it without a name up to 30 s later.
    //   campaign(token)   gives up when a stop is requested; then the term is empty
    //   campaign(…, ec)   stores the error instead of throwing it; then the term is empty, too
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] Term campaign(Tail&&... tail) { return elected(never, tail...); }

    // Is elected if nobody leads: one try. Otherwise the term is empty.
    [[nodiscard]] Term try_campaign() { return elected(Instant::min()); }
    [[nodiscard]] Term try_campaign(std::error_code& ec) { return elected(Instant::min(), ec); }

    // Waits for at most this time, as FencedLock::try_hold_for() does. Otherwise the term is empty.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] Term campaign_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return elected(deadline_after(Clock::now(), timeout), tail...);
    }

    // Does the same as campaign_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] Term campaign_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return elected(deadline_at(when), tail...);
    }

    // Campaigns without a thread that waits: see Operation. A cancelled operation does not lead. Accepts a
    // std::stop_token, which cancels the operation.
    //   redlatch::Term term = co_await election.async_campaign();
    template <class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<Term> async_campaign(
        Tail&&... tail) {
        return elected_later(detail::wait_until(never, tail...));
    }

    // Does the same as async_campaign(), for this time at most. It begins to run with this call. An operation that is not
    // in time gives an empty term.
    template <class Rep, class Period, class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<Term> async_campaign_for(
        std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return elected_later(detail::wait_until(deadline_after(Clock::now(), timeout), tail...));
    }

    // Runs f on this thread while it leads, and campaigns again whenever it has lost a term:
    //   - It campaigns, and calls f(ending) or f(ending, term) once it is elected: a std::stop_token, which is requested when
    //     the term is lost or `stop` is requested, and a const Term&. What f returns is ignored.
    //   - When f has returned or thrown, it resigns: see Term::resign(), whose time begins only then.
    //   - If the term was lost before f returned, it campaigns again. So f may be called many times.
    //   - While the server cannot be reached, or refuses for now, it goes on trying.
    // Returns true once f has returned while it led, and false if `stop` is requested while it does not lead. Throws what f
    // throws, and Error as campaign() does, but for unreachable, overloaded and not_replicated.
    template <class F, class... Tail>
    requires detail::StopOption<Tail...> &&
        (std::invocable<F&, std::stop_token> ||
         std::invocable<F&, std::stop_token, const Term&>)bool lead(F&& f, Tail&&... tail) {
        const Work work = [&f](const std::stop_token& ending, const Term& term) {
            if constexpr (std::invocable<F&, std::stop_token, const Term&>)
                static_cast<void>(std::invoke(f, ending, term));
            else
                static_cast<void>(std::invoke(f, ending));
        };
        return detail::answer([&] { return lead_until(work, detail::wait_until(never, tail...).stop); }, false,
                              tail...);
    }

    // --- observing ------------------------------------------------------------------------------------------------

    // Returns who leads now; nothing if nobody does. One round trip. Throws Error, or stores its code.
    [[nodiscard]] std::optional<Leader> leader();
    [[nodiscard]] std::optional<Leader> leader(std::error_code& ec);

    // Waits until the leader, or its name, is another than `seen`, and stores it there. Returns true if it has changed,
    // false if a stop is requested or there was an error. Two changes that follow each other closely may be seen as one.
    //
    // One round trip, and one more after each message about the election, and when the lease that was seen is over or
    // after 15 to 30 s, in case a message was lost. All callers of this process that wait share these. A leader whose
    // process dies is seen to lead until its lease is over.
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_change(std::optional<Leader>& seen, Tail&&... tail) {
        return detail::answer([&] { return await_change(seen, detail::wait_until(never, tail...)); }, false, tail...);
    }

    // Waits for at most this time, by a monotonic clock. Returns true if the leader has changed.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_change_for(std::chrono::duration<Rep, Period> timeout, std::optional<Leader>& seen,
                                       Tail&&... tail) {
        const Instant deadline = deadline_after(Clock::now(), timeout);
        return detail::answer([&] { return await_change(seen, detail::wait_until(deadline, tail...)); }, false,
                              tail...);
    }

    // Waits for a change without a thread that waits: see Operation. The result is the new leader. Accepts a
    // std::stop_token, which cancels the operation.
    template <class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<std::optional<Leader>>
    async_wait_change(const std::optional<Leader>& seen, Tail&&... tail) {
        return change_later(seen, detail::wait_until(never, tail...));
    }

    // Calls f(const std::optional<Leader>&) with the leader of now, and again after each change, on this thread, until a
    // stop is requested. Costs what wait_change() does. Throws what f throws, and Error.
    template <std::invocable<const std::optional<Leader>&> F, class... Tail>
    requires detail::StopOption<Tail...>
    void observe(F&& f, Tail&&... tail) {
        const Sight sight = [&f](const std::optional<Leader>& now) { static_cast<void>(std::invoke(f, now)); };
        detail::answer([&] { return observe_until(sight, detail::wait_until(never, tail...).stop), true; }, false,
                       tail...);
    }

    // Ends the term of whoever leads, for operators. Returns true if somebody led. Two round trips: see
    // RLock::force_unlock(). The leader learns it with its next renewal, within a third of its watchdog_timeout, and may
    // take itself for the leader until then, beside the next one.
    bool force_resign() { return lock_.force_unlock(); }
    bool force_resign(std::error_code& ec) { return lock_.force_unlock(ec); }

private:
    using Work = std::function<void(const std::stop_token&, const Term&)>;
    using Sight = std::function<void(const std::optional<Leader>&)>;

    template <class... Tail>
    Term elected(Instant deadline, Tail&... tail) {
        return detail::answer([&] { return elect(detail::wait_until(deadline, tail...)); }, Term(), tail...);
    }

    Term elect(detail::WaitRequest request);
    Operation<Term> elected_later(detail::WaitRequest request);
    bool lead_until(const Work& work, const std::stop_token& stop);
    bool await_change(std::optional<Leader>& seen, const detail::WaitRequest& request);
    Operation<std::optional<Leader>> change_later(const std::optional<Leader>& seen, detail::WaitRequest request);
    void observe_until(const Sight& sight, const std::stop_token& stop);

    FencedLock lock_;
    detail::StateHandle record_;
    const std::string candidate_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/leader_election.ipp"
#endif
