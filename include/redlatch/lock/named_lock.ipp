// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/lock/release_watch.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/session_handle.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE LockState& NamedLock::state() { return static_cast<LockState&>(handle_.state()); }

REDLATCH_INLINE HoldKeeper& NamedLock::keeper() { return state(); }

REDLATCH_INLINE HeldLevel NamedLock::keeper_of_holds() {
    LockState& s = state();
    return {handle_.session_handle(), std::shared_ptr<HoldKeeper>(s.session().share_state(s), &s)};
}

REDLATCH_INLINE void NamedLock::prepare(LockRequest& request) {
    take_settings(request, settings());
    request.reentry = reentry_;
}

REDLATCH_INLINE bool NamedLock::force_release(Instant limit) { return state().force_release(settings(), limit); }

REDLATCH_INLINE bool NamedLock::ask_locked(Instant limit) {
    LockState& s = state();
    return read_is_locked(query(s.session(), settings(), s.key(), s.protocol().is_locked(), limit), s.key());
}

REDLATCH_INLINE int NamedLock::ask_hold_count(OwnerNumber owner, Instant limit) {
    LockState& s = state();
    const HeldPart mine = s.part(owner);
    const int count =
        read_count(query(s.session(), settings(), s.key(), s.protocol().hold_count(mine.hold), limit), s.key());
    // Callers of one Owner may change its level at the same time. The server may get that in another order.
    const HeldPart now = s.part(owner);
    return count > 0 && owner.is_of_program() && now.hold == mine.hold ? static_cast<int>(now.levels) : count;
}

REDLATCH_INLINE std::optional<Milliseconds> NamedLock::ask_remaining_lease(Instant limit) {
    LockState& s = state();
    return read_lease(query(s.session(), settings(), s.key(), s.protocol().remaining_lease(), limit), s.key());
}

REDLATCH_INLINE bool NamedLock::is_held_by(std::uint64_t owner) {
    return is_held_by(OwnerText(state().session().uuid(), owner).view());
}

REDLATCH_INLINE bool NamedLock::is_held_by(std::string_view owner) {
    LockState& s = state();
    // A field of a read-write lock that is no owner.
    if (owner.empty() || owner == "mode")
        throw Error(errc::invalid_argument, s.key(), "no hold has an owner of this name");
    // The caller may have put together the id of this client and a number.
    const std::string& id = s.session().uuid();
    const std::optional<OwnerParts> parts = parts_of_owner(owner);
    const bool is_ours = parts && parts->client == id;
    const std::string field = s.protocol().field_of(is_ours ? OwnerText(id, parts->number).view() : owner);
    return s.protocol().read_held_by(query(s.session(), settings(), s.key(), s.protocol().held_by(field)), field);
}

REDLATCH_INLINE std::optional<Polling> NamedLock::polling() {
    LockRequest request;
    request.owner = new_hold_owner();  // holds nothing, so that it is not refused
    prepare(request);
    return request.polling;
}

REDLATCH_INLINE bool NamedLock::await_release(const WaitRequest& request) {
    LockState& s = state();
    if (!request.one_try && s.part(this_thread_number()).hold != 0)
        throw Error(errc::would_deadlock, s.key(), "this thread holds the lock, and would wait for its own release");
    ReleaseRequest wanted{request, polling()};
    wanted.settings = settings();
    return s.release_watch()->wait(wanted).run();
}

// Waits for the end of others' holds: the work of an operation, see SimpleWork.
class AwaitingRelease {
public:
    // The lock's state is kept because the part that waits refers to it.
    AwaitingRelease(std::shared_ptr<HoldKeeper> lock, std::shared_ptr<ReleaseWatch> watch, ReleaseRequest request)
        : lock_(std::move(lock)), watch_(std::move(watch)), request_(std::move(request)) {}

    Task<bool> operator()(const RunContext& context) {
        request_.stop = context.stop;
        request_.by = context.by;
        return watch_->wait(request_);
    }

    void ended(bool has_ended) {
        if (!has_ended && request_.by && request_.stop.stop_requested())
            throw Error(errc::cancelled, lock_->name_as_given(), "it was cancelled before it succeeded");
        has_ended_ = has_ended;
    }

    bool result(const std::shared_ptr<OperationHost>&) const noexcept { return has_ended_; }

private:
    std::shared_ptr<HoldKeeper> lock_;
    std::shared_ptr<ReleaseWatch> watch_;
    ReleaseRequest request_;
    bool has_ended_ = false;
};

REDLATCH_INLINE Operation<bool> NamedLock::release_later(WaitRequest request) {
    std::stop_token stop = std::exchange(request.stop, {});
    request.settings = settings();
    HeldLevel lock = keeper_of_holds();
    std::shared_ptr<ReleaseWatch> watch = state().release_watch();
    return OperationAccess::make<bool>(
        std::move(lock.host),
        AwaitingRelease(std::move(lock.keeper), std::move(watch), {std::move(request), polling()}), std::move(stop));
}

REDLATCH_INLINE Inspection NamedLock::ask_inspection(Instant limit) {
    LockState& s = state();
    return s.protocol().read_inspection(query(s.session(), settings(), s.key(), s.protocol().inspect(), limit));
}

REDLATCH_INLINE Inspection NamedLock::inspect(std::error_code& ec) {
    return detail::answer([&] { return inspect(); }, Inspection(), ec);
}

REDLATCH_INLINE bool NamedLock::is_held_by(std::uint64_t owner, std::error_code& ec) {
    return detail::answer([&] { return is_held_by(owner); }, false, ec);
}

REDLATCH_INLINE bool NamedLock::is_held_by(std::string_view owner, std::error_code& ec) {
    return detail::answer([&] { return is_held_by(owner); }, false, ec);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
