// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/request_slots.hpp"
#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/session/session.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Sends the scripts that use scripts/request_marks.hpp, so that each request takes effect at most once. Their first
// keys are the key of the primitive and the key of the marks. Their first arguments are the lane, the request number,
// until when the request is wanted, the margin, and '1' if a copy of the request may be in flight.
//
// A request is wanted for a while from its first sending on. All copies of it are wanted until the same instant of the
// server's clock. Its mark stays for the margin longer. A copy that arrives in between and finds no mark proves that no
// copy has taken effect, nor will: the change may be sent again as a new request. A copy that arrives after the margin
// proves nothing. Then the outcome remains unknown, and a new request might repeat the change.
template <Transport T>
class IdempotentCommands {
public:
    IdempotentCommands(Session<T>& session, std::string key, std::string_view marks_prefix)
        : session_(session),
          key_(std::move(key)),
          marks_(prefixed_key(marks_prefix, key_) + ":" + session.uuid()),
          window_(marks_ttl(session.options()) / 4),
          margin_(marks_ttl(session.options()) * 2 / 3),
          margin_text_(margin_.count()) {}

    const std::string& key() const noexcept { return key_; }
    Session<T>& session() const noexcept { return session_; }

    // Returns the longest time for which marks stay: window and margin, and some time for the uncertainty about the
    // server's clock.
    static Milliseconds marks_ttl(const ClientOptions& options) {
        constexpr Milliseconds least = std::chrono::minutes(2), most = std::chrono::hours(1);
        return options.unreachable_timeout > most / 4 ? most : std::max(least, options.unreachable_timeout * 4);
    }

    // Returns until when a request that is first sent at `now` is wanted.
    ServerMilliseconds wanted_from(ServerMilliseconds now) const { return now + window_.count(); }

    // Sends a request by `send(ticket, deadline)`. If it certainly did not take effect because it came too late,
    // retries it as a new request, up to three tries in all. If the outcome is unknown, sets ticket.is_unknowable and
    // returns a final reply.
    template <class Send>
    Reply send(RequestId& ticket, Instant deadline, Send send) const {
        for (int tries = 1;; ++tries) {
            if (ticket.wanted_until == 0) {
                Reply failure;
                const auto now = session_.server_time(key_, deadline, failure);
                if (!now) return failure;
                ticket.wanted_until = wanted_from(*now);
            }
            const Instant sent = Clock::now();
            Reply reply = send(std::as_const(ticket), deadline);
            if (!note(ticket, sent, reply) || tries == 3 || Clock::now() >= deadline) return reply;
        }
    }

    // Applies the reply to a sending at `sent` to the ticket. Returns true if the request certainly did not take effect
    // because it came too late; then the ticket is a new one for a retry.
    bool note(RequestId& ticket, Instant sent, Reply& reply) const {
        if (reply.is_unsent()) {
            if (!ticket.may_be_done) ticket.wanted_until = 0;
            return false;
        }
        if (!reply.answered()) {
            ticket.may_be_done = true;
            return false;
        }
        if (!session_.learn_if_late(key_, sent, reply)) return false;
        constexpr Milliseconds inexact{1000};
        const ServerMilliseconds marks_end = ticket.wanted_until + margin_.count() - inexact.count();
        if (ticket.may_be_done && read_late(reply).value_or(0) > marks_end) {
            ticket.is_unknowable = true;
            reply.text = "UNKNOWN";  // a final error
            return false;
        }
        ticket = {ticket.lane, session_.next_request()};
        return true;
    }

    // Returns the error of a request that failed.
    Error failure(const RequestId& ticket, const Reply& reply) const {
        if (ticket.is_unknowable) return {errc::unreachable, key_, unknowable};
        return error_of(reply, key_);
    }

    static constexpr const char* unknowable =
        "no server has answered for so long that nobody can tell whether the command took effect";

    template <std::size_t K, std::size_t A>
    Reply call(const Script& script, const RequestId& ticket, const std::array<std::string_view, K>& more_keys,
               const std::array<std::string_view, A>& more_arguments, Instant deadline,
               Effect effect = Effect::any) const {
        std::array<std::string_view, K + 2> keys;
        std::array<std::string_view, A + own_arguments> arguments;
        const Numbers numbers(ticket);
        fill(keys, more_keys, arguments, more_arguments, ticket, numbers);
        return session_.call_script(script, keys, arguments, deadline, effect);
    }

    // Does the same for many arguments.
    template <std::size_t K>
    Reply call(const Script& script, const RequestId& ticket, const std::array<std::string_view, K>& more_keys,
               std::span<const std::string_view> more_arguments, Instant deadline, Effect effect = Effect::any) const {
        std::array<std::string_view, K + 2> keys;
        std::vector<std::string_view> arguments(more_arguments.size() + own_arguments);
        const Numbers numbers(ticket);
        fill(keys, more_keys, arguments, more_arguments, ticket, numbers);
        return session_.call_script(script, keys, arguments, deadline, effect);
    }

    template <std::size_t K>
    void post(const Script& script, const RequestId& ticket, const std::array<std::string_view, K>& more_keys,
              std::span<const std::string_view> more_arguments, Completion done) const {
        std::array<std::string_view, K + 2> keys;
        std::vector<std::string_view> arguments(more_arguments.size() + own_arguments);
        const Numbers numbers(ticket);
        fill(keys, more_keys, arguments, more_arguments, ticket, numbers);
        session_.post_script(script, keys, arguments, std::move(done));
    }

    // Voids a request whose sender has given up. After the reply the request has taken effect or never will.
    void post_void(const RequestId& ticket, Completion done) const {
        const Numbers numbers(ticket);
        session_.post_script(
            digested<scripts::request_void>, std::array<std::string_view, 1>{marks_},
            std::array<std::string_view, 4>{numbers.lane, numbers.request, numbers.wanted_until, margin_text_},
            std::move(done));
    }

    std::string_view publish() const { return session_.transport().publish_command(); }

private:
    static constexpr std::size_t own_arguments = 5;

    struct Numbers {
        explicit Numbers(const RequestId& ticket)
            : lane(ticket.lane),
              request(static_cast<std::int64_t>(ticket.request)),
              wanted_until(ticket.wanted_until) {}
        const NumberText lane, request, wanted_until;
    };

    template <class Keys, class MoreKeys, class Arguments, class MoreArguments>
    void fill(Keys& keys, const MoreKeys& more_keys, Arguments& arguments, const MoreArguments& more_arguments,
              const RequestId& ticket, const Numbers& numbers) const {
        keys[0] = key_;
        keys[1] = marks_;
        std::copy(more_keys.begin(), more_keys.end(), keys.begin() + 2);
        arguments[0] = numbers.lane;
        arguments[1] = numbers.request;
        arguments[2] = numbers.wanted_until;
        arguments[3] = margin_text_;
        arguments[4] = ticket.may_be_done ? "1" : "0";
        std::copy(more_arguments.begin(), more_arguments.end(), arguments.begin() + own_arguments);
    }

    Session<T>& session_;
    const std::string key_;
    const std::string marks_;
    const Milliseconds window_;
    const Milliseconds margin_;
    const NumberText margin_text_;
};

// Returns a flag as a script argument.
constexpr std::string_view flag_text(bool flag) { return flag ? "1" : "0"; }

}  // namespace v0_1
}  // namespace redlatch
