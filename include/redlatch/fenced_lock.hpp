// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/protocol/fenced_lock.hpp"

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace redlatch {
inline namespace v0_1 {

// Provides a reentrant distributed lock with fencing tokens: the token of each hold is greater than those of all holds
// before it, even after a server has lost its data. Pass the token to the protected resource, and let the resource
// reject any token smaller than one it has seen. Then a late write by a holder that lost its lease without noticing
// does no harm.
//
// Otherwise it is like RLock. It is the same lock as a Redisson RFencedLock of that name. A nested lock() keeps the
// token of its hold. The key of the counter, redisson_lock_token:{name}, stays on the server without a TTL, because it
// makes the tokens grow.
template <class T>
class BasicFencedLock : public detail::NamedLock<BasicFencedLock<T>, T, detail::LockState<T, detail::FencedProtocol>> {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does. Sends nothing.
    BasicFencedLock(BasicClient<T>& client, std::string_view name) : BasicFencedLock::NamedLock(client.core(), name) {}

    // Returns the token of this thread's hold. Sends no command. Throws Error(errc::not_owner) if this thread holds
    // nothing or holds it no longer.
    [[nodiscard]] std::int64_t token() {
        const std::optional<std::int64_t> mine = this->state().token(detail::this_thread_number());
        if (!mine)
            throw Error(errc::not_owner, this->name(),
                        "only the thread that holds the lock has its token; call token() between lock() and unlock()");
        return *mine;
    }
    [[nodiscard]] std::int64_t token(std::error_code& ec) {
        const std::optional<std::int64_t> mine = this->state().token(detail::this_thread_number());
        ec = mine ? std::error_code() : make_error_code(errc::not_owner);
        return mine.value_or(0);
    }

    // Calls lock() and returns the token. With a std::stop_token or a std::error_code& it returns an optional, which is
    // empty if the lock is not held.
    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] auto lock_and_get_token(Tail&&... tail) {
        if constexpr (detail::has_stop_token<Tail...>) {
            return token_if(this->lock(tail...));
        } else if constexpr (detail::has_error_code<Tail...>) {
            this->lock(tail...);
            return token_if(!*detail::error_code_of(tail...));
        } else {
            this->lock(tail...);
            return token();
        }
    }

    // Call try_lock(), try_lock_for() or try_lock_until() and return the token, or nothing if the lock is not held.
    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token(Tail&&... tail) {
        return token_if(this->try_lock(tail...));
    }

    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token_for(std::chrono::duration<Rep, Period> timeout,
                                                                         Tail&&... tail) {
        return token_if(this->try_lock_for(timeout, tail...));
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] std::optional<std::int64_t> try_lock_and_get_token_until(
        std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return token_if(this->try_lock_until(when, tail...));
    }

private:
    // Returns nothing also if the hold was lost at this very moment; its unlock() will report the loss.
    std::optional<std::int64_t> token_if(bool held) {
        return held ? this->state().token(detail::this_thread_number()) : std::nullopt;
    }
};

template <class T>
BasicFencedLock(BasicClient<T>&, std::string_view) -> BasicFencedLock<T>;

using FencedLock = BasicFencedLock<HiredisTransport>;

}  // namespace v0_1
}  // namespace redlatch
