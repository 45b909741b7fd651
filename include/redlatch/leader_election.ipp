// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/around/record_state.hpp"
#include "redlatch/base/backoff.hpp"
#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/base/pause.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/leader_election.hpp"
#include "redlatch/lock/hold_keeper.hpp"
#include "redlatch/lock/lock_access.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/protocol/holder_record.hpp"
#include "redlatch/semaphore/keeper_of.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/session_handle.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

// --- terms -----------------------------------------------------------------------------------------------------------

namespace detail {

struct TermAccess {
    static Term make(HeldLevel level) noexcept { return Term(HoldAccess::make(std::move(level))); }
};

}  // namespace detail

REDLATCH_INLINE Operation<std::error_code> Term::async_resign() && { return std::move(hold_).async_unlock(); }

REDLATCH_INLINE std::error_code Term::resign_until(Instant deadline) {
    if (!hold_) return errc::not_owner;
    const Instant until = std::min(deadline, hold_.valid_until());
    // After the lease, and in a forked child, there is nothing to wait for.
    if (until <= Clock::now() && hold_.valid_until() <= until) return hold_.unlock();
    Operation<std::error_code> releasing = std::move(hold_).async_unlock();
    detail::OperationAccess::running(releasing)->complete_at_once();
    std::future<std::error_code> released = std::move(releasing).future();
    return released.wait_until(until) == std::future_status::ready ? released.get()
                                                                   : make_error_code(errc::unreachable);
}

// --- leading ---------------------------------------------------------------------------------------------------------

namespace detail {

// Acquires the lock for a candidate and announces its name: the work of an operation, see SimpleWork.
class Campaigning {
public:
    Campaigning(std::shared_ptr<HoldKeeper> lock, LockRequest request, KeptState<RecordState> record,
                std::string candidate)
        : lock_(std::move(lock)),
          record_(std::move(record)),
          request_(std::move(request)),
          candidate_(std::move(candidate)) {}

    Task<bool> operator()(const RunContext& context) {
        request_.stop = context.stop;
        request_.by = context.by;
        return campaign(*this);
    }

    void ended(bool held) {
        if (!held && request_.by && request_.stop.stop_requested())
            throw Error(errc::cancelled, lock_->name_as_given(), "it was cancelled before it was elected");
        held_ = held;
    }

    Term result(const std::shared_ptr<OperationHost>& host) {
        if (!std::exchange(held_, false)) return Term();
        return TermAccess::make({host, std::move(lock_), request_.owner, facts_, request_.reentry});
    }

private:
    static Task<bool> campaign(Campaigning& me) {
        if (!co_await me.lock_->acquire(me.request_)) co_return false;
        try {
            me.facts_ = me.lock_->facts(me.request_.owner);
            const RecordEntry entry{me.facts_.number, me.facts_.token, me.candidate_};
            const Instant deadline =
                std::min(Clock::now() + me.request_.settings.command_timeout, me.lock_->valid_until(me.request_.owner));
            static_cast<void>(co_await store_record(*me.record_, entry, deadline, me.request_.settings,
                                                    me.request_.stop, me.request_.by));
        } catch (const std::exception&) {  // it leads without a name
        }
        co_return true;
    }

    std::shared_ptr<HoldKeeper> lock_;
    KeptState<RecordState> record_;
    LockRequest request_;
    const std::string candidate_;
    HoldFacts facts_{};
    bool held_ = false;
};

// Makes the work of one candidate.
inline Campaigning candidacy(FencedLock& lock, StateHandle& record, const std::string& candidate,
                             const WaitRequest& wanted) {
    LockRequest request;
    request.owner = new_hold_owner();
    request.deadline = wanted.deadline;
    request.one_try = wanted.one_try;
    LockAccess::prepare(lock, request);
    return {LockAccess::keeper_of_holds(lock).keeper, std::move(request),
            KeptState(record.session_handle(), record_of(record), record.settings()), candidate};
}

inline const std::string& checked_candidate(const std::string& candidate, std::string_view name) {
    if (candidate.size() > longest_name)
        throw Error(errc::invalid_argument, name, "the name of a candidate must not exceed 1024 bytes");
    return candidate;
}

// Returns true for an error that time may mend.
inline bool may_pass(const std::error_code& ec) {
    return ec == errc::unreachable || ec == errc::overloaded || ec == errc::not_replicated;
}

}  // namespace detail

REDLATCH_INLINE LeaderElection::LeaderElection(Client& client, std::string_view name, const ObjectOptions& options)
    : LeaderElection(client, name, detail::ClientAccess::session(client)->session().options().name, options) {}

REDLATCH_INLINE LeaderElection::LeaderElection(Client& client, std::string_view name, std::string_view candidate,
                                               const ObjectOptions& options)
    : lock_(client, name, options),
      record_(detail::ClientAccess::session(client), detail::record_maker<detail::leader_record>, name, options),
      candidate_(detail::checked_candidate(std::string(candidate), name)) {}

REDLATCH_INLINE Term LeaderElection::elect(detail::WaitRequest request) {
    detail::Campaigning work = detail::candidacy(lock_, record_, candidate_, request);
    return detail::do_here(work, record_.session_handle(), std::move(request.stop));
}

REDLATCH_INLINE Operation<Term> LeaderElection::elected_later(detail::WaitRequest request) {
    return detail::OperationAccess::make<Term>(
        record_.session_handle(), detail::candidacy(lock_, record_, candidate_, request), std::move(request.stop));
}

REDLATCH_INLINE bool LeaderElection::lead_until(const Work& work, const std::stop_token& stop) {
    detail::Backoff rest{Milliseconds(10), Milliseconds(1000)};
    while (!stop.stop_requested()) {
        Term term;
        try {
            term = elect({.stop = stop});
        } catch (const Error& error) {
            if (!detail::may_pass(error.code())) throw;
            detail::pause(Clock::now() + rest.next(), stop);
            continue;
        }
        if (!term) continue;  // a stop is requested
        rest.reset();
        bool leads = false;
        {
            // The callbacks end before it resigns: the loss of a term that is over is nothing to tell.
            std::stop_source ending;
            const auto end = [&ending] { ending.request_stop(); };
            const std::stop_callback on_lost(term.lost(), end);
            const std::stop_callback on_stop(stop, end);
            try {
                work(ending.get_token(), term);
            } catch (...) {
                static_cast<void>(term.resign());
                throw;
            }
            leads = term.is_leader();
        }
        if (term.resign() != errc::hold_lost && leads) return true;
    }
    return false;
}

// --- observing -------------------------------------------------------------------------------------------------------

namespace detail {

inline std::optional<Leader> leader_in(const RecordView& view) {
    if (!view.holder) return std::nullopt;
    return Leader{view.holder->owner, view.is_of_holder() ? view.record->value : std::string(),
                  view.last_token.value_or(0), view.holder->lease};
}

inline Task<std::optional<Leader>> leader_after(KeptState<RecordState> state, std::optional<Leader> seen,
                                                WaitRequest request, std::stop_token stop, WaitBy by) {
    RecordState::Want want;
    want.differs = [seen = std::move(seen)](const RecordView& view) { return leader_in(view) != seen; };
    // A stop leaves a thread with no leader, as the result of an operation that was stopped.
    static_cast<void>(co_await state.obtain(want, std::move(request), std::move(stop), by));
    co_return leader_in(want.found);
}

}  // namespace detail

REDLATCH_INLINE std::optional<Leader> LeaderElection::leader() {
    return detail::leader_in(detail::look_at_record(record_));
}

REDLATCH_INLINE bool LeaderElection::await_change(std::optional<Leader>& seen, const detail::WaitRequest& request) {
    detail::RecordState::Want want;
    // A copy: whoever asks for all waiters may look at it when this caller has given up.
    want.differs = [seen](const detail::RecordView& view) { return detail::leader_in(view) != seen; };
    detail::WaitRequest wanted = request;
    wanted.settings = record_.settings();
    if (!detail::record_of(record_).obtain(want, wanted).run()) return false;
    seen = detail::leader_in(want.found);
    return true;
}

REDLATCH_INLINE Operation<std::optional<Leader>> LeaderElection::change_later(const std::optional<Leader>& seen,
                                                                              detail::WaitRequest request) {
    std::stop_token stop = std::exchange(request.stop, {});
    const detail::KeptState state(record_.session_handle(), detail::record_of(record_), record_.settings());
    return detail::OperationAccess::make_simple<std::optional<Leader>>(
        record_.session_handle(),
        [state, seen, request](const detail::RunContext& context) {
            return detail::leader_after(state, seen, request, context.stop, context.by);
        },
        std::move(stop));
}

REDLATCH_INLINE void LeaderElection::observe_until(const Sight& sight, const std::stop_token& stop) {
    if (stop.stop_requested()) return;
    std::optional<Leader> seen = leader();
    do sight(seen);
    while (await_change(seen, {.stop = stop}));
}

REDLATCH_INLINE std::optional<Leader> LeaderElection::leader(std::error_code& ec) {
    return detail::answer([&] { return leader(); }, std::optional<Leader>(), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
