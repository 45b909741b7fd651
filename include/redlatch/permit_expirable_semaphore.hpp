// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/keep_errno.hpp"
#include "redlatch/client.hpp"
#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/semaphore/permit_leases.hpp"
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
class Permit;

// A number of permits that the whole fleet shares, each of which has an id and a lease: so the permits of a process
// that dies come back. What Redisson's RPermitExpirableSemaphore is in Java. A permit without a lease is renewed by
// this client's watchdog until it is released; should that fail, the event hold_lost tells.
//
// Within a process waiting threads are served in the order of their arrival. Neither copied nor moved; any number of
// threads may use one object, and two objects of one name are the same semaphore. Each member throws Error, or with a
// trailing std::error_code& stores the code and throws nothing but std::bad_alloc. A server that cannot be reached is
// tried for ClientOptions::unreachable_timeout, then the call fails with errc::unreachable. Every command may be sent
// twice, because its answer was lost, and takes effect once; an acquire that fails, is stopped or times out keeps no
// permit. Each member is one round trip, but for waiting.
template <class T = HiredisTransport>
class PermitExpirableSemaphore {
public:
    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    PermitExpirableSemaphore(Client<T>& client, std::string_view name) : binding_(client.core(), name) {}

    // As given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

    // The greatest number of permits, and how many may be taken at once.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }
    static constexpr std::ptrdiff_t max_at_once() noexcept { return 10'000; }

    // --- how many there are -----------------------------------------------------------------------------------

    // Sets the number of permits, unless the semaphore exists: whether it did.
    bool try_set_permits(std::ptrdiff_t permits) {
        check(permits, 0, max(), "a number of permits must be from 0 to 2147483647");
        State& semaphore = state();
        return is_one(semaphore.change([&](const RequestId& ticket, Instant deadline) {
            return semaphore.wire().set(ticket, permits, deadline);
        }));
    }
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits); }, false, ec);
    }

    // Sets it in any case, those that are taken included: there may be fewer available than none then.
    void set_permits(std::ptrdiff_t permits) {
        check(permits, 0, max(), "a number of permits must be from 0 to 2147483647");
        State& semaphore = state();
        is_one(semaphore.change([&](const RequestId& ticket, Instant deadline) {
            return semaphore.wire().set_total(ticket, permits, deadline);
        }));
    }
    void set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        detail::answer([&] { return set_permits(permits), true; }, false, ec);
    }

    // Changes it by n, from -max() to max().
    void add_permits(std::ptrdiff_t n) {
        check(n, -max(), max(), "a number of permits must be from -2147483647 to 2147483647");
        if (n == 0) return;
        State& semaphore = state();
        is_one(semaphore.change(
            [&](const RequestId& ticket, Instant deadline) { return semaphore.wire().add(ticket, n, deadline); }));
    }
    void add_permits(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return add_permits(n), true; }, false, ec);
    }

    // How many are there, are taken, and both together; 0 for a semaphore that does not exist. A permit whose lease is
    // over is available.
    std::ptrdiff_t available_permits() { return static_cast<std::ptrdiff_t>(state().wire().count().available); }
    std::ptrdiff_t available_permits(std::error_code& ec) {
        return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
    }
    std::ptrdiff_t acquired_permits() { return static_cast<std::ptrdiff_t>(state().wire().count().acquired); }
    std::ptrdiff_t acquired_permits(std::error_code& ec) {
        return detail::answer([&] { return acquired_permits(); }, std::ptrdiff_t(0), ec);
    }
    std::ptrdiff_t permits() {
        const auto count = state().wire().count();
        return count.exists ? static_cast<std::ptrdiff_t>(count.available + count.acquired) : 0;
    }
    std::ptrdiff_t permits(std::error_code& ec) {
        return detail::answer([&] { return permits(); }, std::ptrdiff_t(0), ec);
    }

    // --- taking -----------------------------------------------------------------------------------------------

    // Takes a permit, waiting for it. A waiting thread sends nothing until a permit is released or the next lease is
    // over, but one question in 5 to 10 seconds, in case that a message is lost; a process with many waiting threads no
    // more.
    //   acquire()                   a permit that the watchdog renews: a PermitId
    //   acquire(Lease{d})           it comes back by itself after d and is never renewed
    //   acquire(Lease::forever())   it comes back only by a release, whatever becomes of this process
    //   acquire(…, token), acquire(…, ec)   gives up when a stop is requested, stores the error instead of throwing
    //                               it: a std::optional<PermitId>
    template <class... Tail>
    requires PermitOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) {
        std::optional<PermitId> id = one(take(1, detail::wait_until(never, tail...), tail...));
        if constexpr (detail::has_stop_token<Tail&...> || detail::has_error_code<Tail&...>)
            return id;
        else
            return *std::move(id);
    }

    // The same for n permits at once, from 1 to max_at_once(); without any when it was stopped or failed.
    template <class... Tail>
    requires PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(never, tail...), tail...);
    }

    // Takes a permit, or n, if they are there: one try, even if others wait. May be given a lease and std::error_code&.
    template <class... Tail>
    requires(PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::optional<PermitId> try_acquire(Tail&&... tail) {
        return one(take(1, {.one_try = true}, tail...));
    }
    template <class... Tail>
    requires(PermitOption<Tail...> && !detail::has_stop_token<Tail...>)
        [[nodiscard]] std::vector<PermitId> try_acquire(std::ptrdiff_t n, Tail&&... tail) {
        return take(n, {.one_try = true}, tail...);
    }

    // Waits until `timeout` is over or the instant has come at the latest, by a monotonic clock. Rounded up to the next
    // millisecond; zero or less is one try, the largest value is for ever. May be given a lease, std::stop_token and
    // std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...));
    }
    template <class Rep, class Period, class... Tail>
    requires PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n,
                                                        Tail&&... tail) {
        return take(n, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires PermitOption<Tail...>
    [[nodiscard]] std::optional<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                            Tail&&... tail) {
        return one(take(1, detail::wait_until(deadline_at(when), tail...), tail...));
    }
    template <class AnyClock, class Duration, class... Tail>
    requires PermitOption<Tail...>
    [[nodiscard]] std::vector<PermitId> try_acquire_until(std::chrono::time_point<AnyClock, Duration> when,
                                                          std::ptrdiff_t n, Tail&&... tail) {
        return take(n, detail::wait_until(deadline_at(when), tail...), tail...);
    }

    // --- giving back ------------------------------------------------------------------------------------------

    // Gives permits back, all or none of them. Throws Error(errc::unknown_permit) when one is not held (any more): it
    // was released already, or its lease was over. Should no server answer, it fails with errc::unreachable, but goes
    // on in the background, and what is under the watchdog is not renewed any more in any case.
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

    // The same, but tells by its result whether they were held.
    [[nodiscard]] bool try_release(const PermitId& id) { return try_release(std::span(&id, 1)); }
    [[nodiscard]] bool try_release(std::span<const PermitId> ids) {
        if (ids.empty()) return true;
        State& semaphore = state();
        const std::function<void(const RequestId&, Completion)> post =
            [&semaphore, kept = std::vector<PermitId>(ids.begin(), ids.end())](const RequestId& ticket,
                                                                               Completion done) {
                semaphore.wire().post_release(ticket, kept, std::move(done));
            };
        const auto watches = semaphore.unwatch(ids);
        const Reply reply = semaphore.change(
            [&](const RequestId& ticket, Instant deadline) { return semaphore.wire().release(ticket, ids, deadline); },
            post);
        const bool released = is_one(reply);
        if (!released) semaphore.watch_again(watches);
        return released;
    }
    [[nodiscard]] bool try_release(const PermitId& id, std::error_code& ec) {
        return detail::answer([&] { return try_release(id); }, false, ec);
    }
    [[nodiscard]] bool try_release(std::span<const PermitId> ids, std::error_code& ec) {
        return detail::answer([&] { return try_release(ids); }, false, ec);
    }

    // --- leases -----------------------------------------------------------------------------------------------

    // From now on the permit has this lease, and is not renewed by a watchdog any more. Throws
    // Error(errc::unknown_permit) when it is not held.
    void update_lease(const PermitId& id, const Lease& lease) { set_lease(id, PermitLease::of(lease)); }
    void update_lease(const PermitId& id, Lease::Forever lease) { set_lease(id, PermitLease::of(lease)); }
    void update_lease(const PermitId& id, const Lease& lease, std::error_code& ec) {
        detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
    }
    void update_lease(const PermitId& id, Lease::Forever lease, std::error_code& ec) {
        detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
    }

    // What the permit's lease has left by the server's clock, nothing when it is not held; milliseconds::max() for
    // ever.
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id) {
        return state().wire().remaining(id);
    }
    std::optional<std::chrono::milliseconds> remaining_lease(const PermitId& id, std::error_code& ec) {
        return detail::answer([&] { return remaining_lease(id); }, std::optional<std::chrono::milliseconds>(), ec);
    }

private:
    using State = PermitLeases<T>;

    State& state() { return binding_.state(); }

    void check(std::ptrdiff_t n, std::ptrdiff_t least, std::ptrdiff_t most, const char* rule) const {
        if (n < least || n > most) throw Error(errc::invalid_argument, name(), rule);
    }

    Error unknown(const std::string& what) const {
        return {errc::unknown_permit, name(), what + " is not held: released already, or its lease was over"};
    }

    bool is_one(const Reply& reply) {
        if (!reply.is_integer()) throw unexpected(reply, state().key());
        return reply.integer == 1;
    }

    static std::optional<PermitId> one(std::vector<PermitId> ids) {
        return ids.empty() ? std::nullopt : std::optional(ids.front());
    }

    template <class... Tail>
    std::vector<PermitId> take(std::ptrdiff_t n, const WaitRequest& request, Tail&... tail) {
        return detail::answer(
            [&]() -> std::vector<PermitId> {
                check(n, 1, max_at_once(), "from 1 to 10000 permits can be taken at once");
                typename PermitProtocol<T>::Want want;
                want.ids.reserve(static_cast<std::size_t>(n));
                for (std::ptrdiff_t i = 0; i < n; ++i) want.ids.push_back(PermitId::random());
                [[maybe_unused]] const auto set_lease = [&](const auto& argument) {
                    if constexpr (detail::tail_rank<decltype(argument)> == 1) want.lease = PermitLease::of(argument);
                };
                (set_lease(tail), ...);
                if (!state().obtain(want, request)) return {};
                return std::move(want.ids);
            },
            std::vector<PermitId>(), tail...);
    }

    void set_lease(const PermitId& id, const PermitLease& lease) {
        State& semaphore = state();
        const auto watches = semaphore.unwatch_settled(std::span(&id, 1));
        Reply reply;
        try {
            reply = semaphore.change([&](const RequestId& ticket, Instant deadline) {
                return semaphore.wire().set_lease(ticket, id, lease, deadline);
            });
        } catch (...) {
            semaphore.watch_again(watches);
            throw;
        }
        if (!is_one(reply)) throw unknown("this permit");
    }

    friend class Permit<T>;
    void let_go(const PermitId& id) noexcept try { state().let_go(id); } catch (...) {
    }

    StateHandle<T, State> binding_;
};

template <class T>
PermitExpirableSemaphore(Client<T>&, std::string_view) -> PermitExpirableSemaphore<T>;

// Holds one permit and gives it back at the end of its scope, in peace: a permit whose lease was over meanwhile, or a
// server that cannot be reached, is no exception there; ask release(ec) to know. The semaphore must outlive it.
template <class T = HiredisTransport>
class [[nodiscard]] Permit {
public:
    // Takes one, waiting for it: under the watchdog, or with a lease.
    explicit Permit(PermitExpirableSemaphore<T>& semaphore) : semaphore_(&semaphore), id_(semaphore.acquire()) {}
    template <class AnyLease>
    requires(detail::tail_rank<AnyLease> == 1) Permit(PermitExpirableSemaphore<T>& semaphore, const AnyLease& lease)
        : semaphore_(&semaphore), id_(semaphore.acquire(lease)) {}

    // Looks after one that is held already.
    Permit(PermitExpirableSemaphore<T>& semaphore, const PermitId& id) : semaphore_(&semaphore), id_(id) {}

    Permit(Permit&& other) noexcept : semaphore_(other.semaphore_), id_(std::exchange(other.id_, std::nullopt)) {}
    Permit& operator=(Permit&& other) noexcept {
        std::swap(semaphore_, other.semaphore_);
        std::swap(id_, other.id_);
        return *this;
    }
    // Posts the release, and waits for nothing.
    ~Permit() {
        const KeepErrno kept;
        if (id_) semaphore_->let_go(*id_);
    }

    // Nothing after release() and detach().
    const std::optional<PermitId>& id() const noexcept { return id_; }

    // Gives it back now, and does nothing the second time.
    void release(std::error_code& ec) {
        const KeepErrno kept;
        ec.clear();
        if (const std::optional<PermitId> id = std::exchange(id_, std::nullopt)) semaphore_->release(*id, ec);
    }

    // From now on it is the caller's.
    [[nodiscard]] PermitId detach() { return std::exchange(id_, std::nullopt).value(); }

private:
    PermitExpirableSemaphore<T>* semaphore_;
    std::optional<PermitId> id_;
};

}  // namespace v0_1
}  // namespace redlatch
