// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/keep_errno.hpp"
#include "redlatch/client.hpp"
#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/semaphore/permit_leases.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

template <class T>
class BasicPermit;

// Provides a distributed semaphore in which each permit has an id and a lease, so the permits of a process that dies
// become available again. The counterpart of Redisson's RPermitExpirableSemaphore. The client's watchdog renews a
// permit taken without a lease until it is released. If renewal fails, the event hold_lost reports it.
//
// Within a process, waiting threads are served in order of arrival. Neither copyable nor movable. Any number of threads
// may use one object. Two objects with the same name are the same semaphore. Each member throws Error; with a trailing
// std::error_code& it stores the code and throws only std::bad_alloc. If the server cannot be reached, a call retries
// for ClientOptions::unreachable_timeout, then fails with errc::unreachable. A command may be resent after a lost reply
// and still takes effect once. An acquire that fails, is stopped or times out keeps no permit. Each member is one round
// trip, except for waiting.
template <class T>
class BasicPermitExpirableSemaphore {
public:
    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    BasicPermitExpirableSemaphore(BasicClient<T>& client, std::string_view name) : binding_(client.core(), name) {}

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

    // max() returns the largest number of permits; max_at_once() how many one call may acquire.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }
    static constexpr std::ptrdiff_t max_at_once() noexcept { return 10'000; }

    // --- number of permits --------------------------------------------------------------------------------------

    // Sets the number of permits if the semaphore does not exist. Returns true if it was set.
    bool try_set_permits(std::ptrdiff_t permits) {
        check(permits, 0, max(), "the number of permits must be from 0 to 2147483647");
        State& semaphore = state();
        return is_one(semaphore.change(
            [&](const detail::RequestId& request_id) { return semaphore.protocol().set(request_id, permits); }));
    }
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits); }, false, ec);
    }

    // Sets the number of permits in any case. The number includes acquired permits, so the number of available ones may
    // become negative.
    void set_permits(std::ptrdiff_t permits) {
        check(permits, 0, max(), "the number of permits must be from 0 to 2147483647");
        State& semaphore = state();
        is_one(semaphore.change(
            [&](const detail::RequestId& request_id) { return semaphore.protocol().set_total(request_id, permits); }));
    }
    void set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        detail::answer([&] { return set_permits(permits), true; }, false, ec);
    }

    // Changes the number of permits by n, which must be from -max() to max().
    void add_permits(std::ptrdiff_t n) {
        check(n, -max(), max(), "the number of permits must be from -2147483647 to 2147483647");
        if (n == 0) return;
        State& semaphore = state();
        is_one(semaphore.change(
            [&](const detail::RequestId& request_id) { return semaphore.protocol().add(request_id, n); }));
    }
    void add_permits(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return add_permits(n), true; }, false, ec);
    }

    // Return the number of available permits, of acquired permits, and the sum of both; 0 if the semaphore does not
    // exist. A permit whose lease has expired is available.
    std::ptrdiff_t available_permits() { return static_cast<std::ptrdiff_t>(count().available); }
    std::ptrdiff_t available_permits(std::error_code& ec) {
        return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
    }
    std::ptrdiff_t acquired_permits() { return static_cast<std::ptrdiff_t>(count().acquired); }
    std::ptrdiff_t acquired_permits(std::error_code& ec) {
        return detail::answer([&] { return acquired_permits(); }, std::ptrdiff_t(0), ec);
    }
    std::ptrdiff_t permits() {
        const auto now = count();
        return now.exists ? static_cast<std::ptrdiff_t>(now.available + now.acquired) : 0;
    }
    std::ptrdiff_t permits(std::error_code& ec) {
        return detail::answer([&] { return permits(); }, std::ptrdiff_t(0), ec);
    }

    // --- acquiring ----------------------------------------------------------------------------------------------

    // Acquires a permit and waits for it if necessary. A waiting thread sends nothing until a permit is released or the
    // next lease expires, except one query every 5 to 10 seconds, in case a message was lost. A process with many
    // waiting threads sends no more than that.
    //   acquire()                   returns the PermitId of a permit that the watchdog renews
    //   acquire(Lease{d})           the permit becomes available again after d and is never renewed
    //   acquire(Lease::forever())   only a release makes the permit available again, even if this process dies
    //   acquire(…, token), acquire(…, ec)   returns a std::optional<PermitId>: gives up if a stop is requested, or
    //                               stores the error instead of throwing it
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) {
        std::optional<PermitId> id = one(take(1, detail::wait_until(never, tail...), tail...));
        if constexpr (detail::has_stop_token<Tail&...> || detail::has_error_code<Tail&...>)
            return id;
        else
            return *std::move(id);
    }

    // Acquires n permits at once, from 1 to max_at_once(). Returns an empty vector if it was stopped or failed.
    template <class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(never, tail...), tail...);
    }

    // Acquires one permit or n permits if they are available: one attempt, even if others wait. Accepts a lease and
    // std::error_code&.
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::optional<PermitId> try_acquire(Tail&&... tail) {
        return one(take(1, {.one_try = true}, tail...));
    }
    template <class... Tail>
    requires(detail::PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::vector<PermitId> try_acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, {.one_try = true}, tail...);
    }

    // Waits at most until `timeout` has passed or the instant has come, by a monotonic clock. Timeouts are rounded up
    // to the next millisecond; zero or less is one attempt; the largest value waits indefinitely. Accepts a lease,
    // std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...));
    }
    template <class Rep, class Period, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n,
                                                        Tail&&... tail) {
        return take(n, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                            Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_at(when), tail...), tail...));
    }
    template <class AnyClock, class Duration, class... Tail>
    requires detail::PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                          std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(deadline_at(when), tail...), tail...);
    }

    // --- releasing ----------------------------------------------------------------------------------------------

    // Releases all of the permits or none. Throws Error(errc::unknown_permit) if one is not held: it was released
    // already, or its lease has expired. The watchdog then goes on renewing those that it renewed before. If no server
    // replies, the call fails with errc::unreachable, but the client retries it in the background and the watchdog no
    // longer renews these permits.
    void release(const PermitId& id) { release(std::span(&id, 1)); }
    void release(std::span<const PermitId> ids) {
        if (!try_release(ids)) throw unknown(ids.size() == 1 ? "this permit" : "one of these permits");
    }
    void release(const PermitId& id, std::error_code& ec) {
        detail::answer([&] { return release(id), true; }, false, ec);
    }
    void release(std::span<const PermitId> ids, std::error_code& ec) {
        detail::answer([&] { return release(ids), true; }, false, ec);
    }

    // Does the same, but returns false instead of throwing errc::unknown_permit.
    [[nodiscard]] bool try_release(const PermitId& id) { return try_release(std::span(&id, 1)); }
    [[nodiscard]] bool try_release(std::span<const PermitId> ids) {
        if (ids.empty()) return true;
        State& semaphore = state();
        // Made first: from unwatch() on nothing may fail for want of memory.
        const std::function<detail::Call(const detail::RequestId&)> make =
            [&semaphore, kept = std::vector<PermitId>(ids.begin(), ids.end())](const detail::RequestId& request_id) {
                return semaphore.protocol().release(request_id, kept);
            };
        const auto watches = semaphore.leases().unwatch(ids);
        const Reply reply = semaphore.change(make, State::Undelivered::retry);
        const bool released = is_one(reply);
        if (!released) semaphore.leases().watch_again(watches);
        return released;
    }
    [[nodiscard]] bool try_release(const PermitId& id, std::error_code& ec) {
        return detail::answer([&] { return try_release(id); }, false, ec);
    }
    [[nodiscard]] bool try_release(std::span<const PermitId> ids, std::error_code& ec) {
        return detail::answer([&] { return try_release(ids); }, false, ec);
    }

    // --- leases -----------------------------------------------------------------------------------------------

    // Gives the permit this lease. The watchdog no longer renews it. Throws Error(errc::unknown_permit) if the permit
    // is not held.
    void update_lease(const PermitId& id, const Lease& lease) { set_lease(id, detail::PermitLease::of(lease)); }
    void update_lease(const PermitId& id, Lease::Forever lease) { set_lease(id, detail::PermitLease::of(lease)); }
    void update_lease(const PermitId& id, const Lease& lease, std::error_code& ec) {
        detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
    }
    void update_lease(const PermitId& id, Lease::Forever lease, std::error_code& ec) {
        detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
    }

    // Returns the remaining lease of the permit by the server's clock, nothing if the permit is not held, and
    // milliseconds::max() if its lease never expires.
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id) {
        State& semaphore = state();
        const Reply reply = detail::query(semaphore.session(), semaphore.key(), semaphore.protocol().remaining(id));
        return semaphore.protocol().read_remaining(reply);
    }
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id, std::error_code& ec) {
        return detail::answer([&] { return remaining_lease(id); }, std::optional<std::chrono::milliseconds>(), ec);
    }

private:
    using State = detail::Synchronizer<T, detail::PermitProtocol, detail::PermitLeases<T>>;

    State& state() { return binding_.state(); }

    void check(std::ptrdiff_t n, std::ptrdiff_t least, std::ptrdiff_t most, const char* rule) const {
        if (n < least || n > most) throw Error(errc::invalid_argument, name(), rule);
    }

    Error unknown(const std::string& what) const { return {errc::unknown_permit, name(), what + " is not held"}; }

    detail::PermitProtocol::Count count() {
        State& semaphore = state();
        const detail::PermitProtocol& protocol = semaphore.protocol();
        return protocol.read_count(detail::query(semaphore.session(), semaphore.key(), protocol.count()));
    }

    bool is_one(const Reply& reply) {
        if (!reply.is_integer()) throw detail::unexpected(reply, state().key());
        return reply.integer == 1;
    }

    static std::optional<PermitId> one(std::vector<PermitId> ids) {
        return ids.empty() ? std::nullopt : std::optional(ids.front());
    }

    template <class... Tail>
    std::vector<PermitId> take(std::ptrdiff_t n, const detail::WaitRequest& request, Tail&... tail) {
        return detail::answer(
            [&]() -> std::vector<PermitId> {
                check(n, 1, max_at_once(), "one call can acquire from 1 to 10000 permits");
                detail::PermitProtocol::Want want;
                want.ids.reserve(static_cast<std::size_t>(n));
                for (std::ptrdiff_t i = 0; i < n; ++i) want.ids.push_back(PermitId::random());
                [[maybe_unused]] const auto set_lease = [&](const auto& argument) {
                    if constexpr (detail::tail_rank<decltype(argument)> == 1)
                        want.lease = detail::PermitLease::of(argument);
                };
                (set_lease(tail), ...);
                if (!state().obtain(want, request)) return {};
                return std::move(want.ids);
            },
            std::vector<PermitId>(), tail...);
    }

    void set_lease(const PermitId& id, const detail::PermitLease& lease) {
        State& semaphore = state();
        const auto watches = semaphore.leases().unwatch_settled(std::span(&id, 1));
        Reply reply;
        try {
            reply = semaphore.change([&](const detail::RequestId& request_id) {
                return semaphore.protocol().set_lease(request_id, id, lease);
            });
        } catch (...) {
            semaphore.leases().watch_again(watches);
            throw;
        }
        if (!is_one(reply)) throw unknown("this permit");
    }

    friend class BasicPermit<T>;
    void release_later(const PermitId& id) noexcept try { state().leases().release_later(id); } catch (...) {
    }

    detail::StateHandle<T, State> binding_;
};

template <class T>
BasicPermitExpirableSemaphore(BasicClient<T>&, std::string_view) -> BasicPermitExpirableSemaphore<T>;

using PermitExpirableSemaphore = BasicPermitExpirableSemaphore<HiredisTransport>;

// Holds one permit and releases it at the end of its scope. The destructor does not throw, even if the permit has
// expired or the server cannot be reached; call release(ec) to learn the result. The semaphore must outlive it.
template <class T>
class [[nodiscard]] BasicPermit {
public:
    // Acquires a permit and waits for it if necessary: under the watchdog, or with a lease.
    explicit BasicPermit(BasicPermitExpirableSemaphore<T>& semaphore)
        : semaphore_(&semaphore), id_(semaphore.acquire()) {}
    template <class AnyLease>
    requires(detail::tail_rank<AnyLease> == 1)
        BasicPermit(BasicPermitExpirableSemaphore<T>& semaphore, const AnyLease& lease)
        : semaphore_(&semaphore), id_(semaphore.acquire(lease)) {}

    // Takes ownership of a permit that is held already.
    BasicPermit(BasicPermitExpirableSemaphore<T>& semaphore, const PermitId& id) : semaphore_(&semaphore), id_(id) {}

    BasicPermit(BasicPermit&& other) noexcept
        : semaphore_(other.semaphore_), id_(std::exchange(other.id_, std::nullopt)) {}
    BasicPermit& operator=(BasicPermit&& other) noexcept {
        std::swap(semaphore_, other.semaphore_);
        std::swap(id_, other.id_);
        return *this;
    }
    // Posts the release and does not wait for the reply.
    ~BasicPermit() {
        const detail::KeepErrno kept;
        if (id_) semaphore_->release_later(*id_);
    }

    // Returns the id, or nothing after release() and detach().
    const std::optional<PermitId>& id() const noexcept { return id_; }

    // Releases the permit now. The second call does nothing.
    void release(std::error_code& ec) {
        const detail::KeepErrno kept;
        ec.clear();
        if (const std::optional<PermitId> id = std::exchange(id_, std::nullopt)) semaphore_->release(*id, ec);
    }

    // Passes ownership of the permit to the caller.
    [[nodiscard]] PermitId detach() { return std::exchange(id_, std::nullopt).value(); }

private:
    BasicPermitExpirableSemaphore<T>* semaphore_;
    std::optional<PermitId> id_;
};

using Permit = BasicPermit<HiredisTransport>;

}  // namespace v0_1
}  // namespace redlatch
