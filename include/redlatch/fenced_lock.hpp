// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/client.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a reentrant distributed lock with fencing tokens: the token of each hold is greater than those of all holds
// before it, even after a server has lost its data. Pass the token to the protected resource, and let the resource
// reject any token smaller than one it has seen. Then a late write by a holder that lost its lease without noticing
// does no harm.
//
// Otherwise it is like RLock. It is the same lock as a Redisson RFencedLock of that name. A nested lock() keeps the
// token of its hold. The key of the counter, redisson_lock_token:{name}, stays on the server without a TTL, because it
// makes the tokens grow.
class FencedLock : public detail::NamedLock {
public:
    // Makes an object for a lock of this name. Throws invalid_argument for a bad name or option, as RLock does. Sends nothing.
    FencedLock(Client& client, std::string_view name, const ObjectOptions& options = {});

    // Returns the token of the hold of this thread, or of an Owner. Sends no command. Throws Error(errc::not_owner) if
    // it holds nothing or holds it no longer.
    [[nodiscard]] std::int64_t token() { return token_of(detail::this_thread_number()); }
    [[nodiscard]] std::int64_t token(Owner owner) { return token_of(owner); }
    [[nodiscard]] std::int64_t token(std::error_code& ec) { return token_of(detail::this_thread_number(), ec); }
    [[nodiscard]] std::int64_t token(Owner owner, std::error_code& ec) { return token_of(owner, ec); }

    // Returns the last token that anyone got, whether the lock is held or free; nothing if there was none yet. One round
    // trip; acquires nothing. A resource may use it to reject every older writer. Throws Error, or stores its code:
    // wrong_type if the key of the counter holds no number.
    [[nodiscard]] std::optional<std::int64_t> latest_token();
    [[nodiscard]] std::optional<std::int64_t> latest_token(std::error_code& ec);

    // Calls lock() and returns the token. With a std::stop_token or a std::error_code& it returns an optional, which is
    // empty if the lock is not held.
    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] auto lock_and_get_token(Tail&&... tail) {
        if constexpr (detail::has_stop_token<Tail...>) {
            return token_if(lock(tail...), tail...);
        } else if constexpr (detail::has_error_code<Tail...>) {
            lock(tail...);
            return token_if(!*detail::error_code_of(tail...), tail...);
        } else {
            lock(tail...);
            return acquired_token(owner_of(tail...));
        }
    }

    // Calls try_lock() and returns the token, or nothing if the lock is not held.
    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token(Tail&&... tail) {
        return token_if(try_lock(tail...), tail...);
    }

    // Calls try_lock_for() and returns the token, or nothing if the lock is not held.
    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token_for(std::chrono::duration<Rep, Period> timeout,
                                                                         Tail&&... tail) {
        return token_if(try_lock_for(timeout, tail...), tail...);
    }

    // Calls try_lock_until() and returns the token, or nothing if the lock is not held.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token_until(
        std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return token_if(try_lock_until(when, tail...), tail...);
    }

private:
    template <class... Tail>
    std::optional<std::int64_t> token_if(bool held, Tail&... tail) {
        if (!held) return std::nullopt;
        return detail::answer([&] { return std::optional(acquired_token(owner_of(tail...))); },
                              std::optional<std::int64_t>(), tail...);
    }

    template <class... Tail>
    static detail::OwnerNumber owner_of(const Tail&... tail) {
        return detail::owner_among(&detail::this_thread_number, tail...);
    }

    std::int64_t acquired_token(detail::OwnerNumber owner);
    std::int64_t token_of(detail::OwnerNumber owner);
    std::int64_t token_of(detail::OwnerNumber owner, std::error_code& ec);
    std::optional<std::int64_t> token_or_none(detail::OwnerNumber owner);
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/fenced_lock.ipp"
#endif
