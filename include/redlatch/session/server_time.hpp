// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/options.hpp"
#include "redlatch/session/executor.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Finds out until when a command is wanted, by the clock of the server that receives it. Queries the server only if the
// reading of its clock is too old.
class ServerTime {
public:
    ServerTime(Executor& executor, const ClientOptions& options) : executor_(executor), options_(options) {}
    ServerTime(const ServerTime&) = delete;
    ServerTime& operator=(const ServerTime&) = delete;

    // Returns the current time of the server that has this key. Sends one query (one round trip) if the time is not
    // known. Returns nothing, and the reason in `failure`, if there is no reply.
    std::optional<ServerMilliseconds> now(std::string_view key, Instant deadline, Reply& failure) {
        if (const auto time = known(key)) return time;
        const SendTime asked;
        failure = executor_.call(question(key), deadline);
        return learn(key, asked, failure);
    }

    // The same in three steps, for a caller that sends the query itself: the time, if it is known; the query; and the
    // time from the reply to a query that was sent at `asked`.
    std::optional<ServerMilliseconds> known(std::string_view key) { return clock().at(route_of(key), Clock::now()); }

    static Command question(std::string_view key) {
        static constexpr std::array<std::string_view, 1> words{"TIME"};
        return {words, 0, key};
    }

    // If there is no time in the reply, nothing was changed, so the command that was to follow counts as not sent.
    std::optional<ServerMilliseconds> learn(std::string_view key, const SendTime& asked, Reply& reply) {
        return learn(route_of(key), asked, reply);
    }

    // Does the same without waiting. `then(time, failure, receiver)` is called at once, or on any thread after the
    // reply. By then the poster may have stopped attending, so the background thread receives what follows.
    template <class Then>
    void with_now(std::string_view key, Receiver receiver, Then then) {
        if (const auto time = known(key)) return then(time, Reply{}, receiver);
        post_question(key, receiver, std::move(then));
    }

    // Reads the clock of the server that has this key, without waiting: RemoteClock::instant_of() needs that reading.
    void read(std::string_view key) {
        post_question(key, Receiver::background, [](const auto&, const Reply&, Receiver) {});
    }

    // Returns the time until which a renewal is wanted. A renewal must not wait, so an old reading of the clock will
    // do. Without any reading, the renewal is never void.
    ServerMilliseconds wanted_until(std::string_view key) const {
        const auto now = clock().roughly_at(route_of(key), Clock::now());
        return now ? *now + options_.command_timeout.count() : std::numeric_limits<std::int64_t>::max();
    }

    // Learns the server's time from the reply to a script sent at `sent`, if it reports that. Returns true if the script
    // arrived too late.
    bool learn_if_late(std::string_view key, const SendTime& sent, const Reply& reply) {
        const auto late = read_late(reply);
        if (const auto now = late ? late : read_in_time(reply)) clock().learn(route_of(key), sent, Clock::now(), *now);
        return late.has_value();
    }

    // Returns bounds of the current time of the server, if there is one alone, and a reading of its clock vouches for them.
    std::optional<RemoteClock::Bounds> bounds() const {
        const std::optional<Instant> since = executor_.transport().same_server_since();
        return since ? clock().bounds_at(0, Clock::now(), *since) : std::nullopt;
    }

private:
    template <class Then>
    void post_question(std::string_view key, Receiver receiver, Then then) {
        const std::uint32_t route = route_of(key);
        const SendTime asked;
        executor_.post(
            question(key),
            [this, route, asked, then = std::move(then)](Reply reply) mutable {
                const auto time = learn(route, asked, reply);
                then(time, std::move(reply), Receiver::background);
            },
            receiver);
    }

    std::optional<ServerMilliseconds> learn(std::uint32_t route, const SendTime& asked, Reply& reply) {
        const auto time = read_time(reply);
        if (!time) {
            if (classify(reply) == ReplyClass::answered)
                reply = Reply::of(Reply::Kind::malformed, "the reply to TIME is not a time");
            // The command that should have followed was not sent, for want of time. Patience tells by the
            // elapsed time whether the server was too slow or the caller's deadline too near.
            if (reply.kind == Reply::Kind::unanswered) reply.kind = Reply::Kind::no_time;
            return std::nullopt;
        }
        clock().learn(route, asked, Clock::now(), *time);
        // Valid even if another thread has put the clock in doubt since.
        return clock().roughly_at(route, Clock::now());
    }

    RemoteClock& clock() const noexcept { return executor_.clock(); }
    std::uint32_t route_of(std::string_view key) const { return executor_.transport().route(key); }

    Executor& executor_;
    const ClientOptions& options_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
