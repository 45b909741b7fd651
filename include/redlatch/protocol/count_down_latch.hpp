// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/protocol/idempotency.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/count_down_latch.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// Builds the commands of the count-down latch: the keys and arguments of its scripts.
template <Transport T>
class LatchProtocol {
public:
    static constexpr std::string_view kind = "latch ";
    static constexpr bool takes = false;
    static constexpr std::size_t most_at_once = std::numeric_limits<std::size_t>::max();

    // A caller waits until the count that it first found reaches zero. `round` names the last end of a count at that
    // time; nothing before the first reply.
    struct Want {
        std::optional<std::string> round{};
        bool served = false;
    };

    LatchProtocol(Session<T>& session, std::string key)
        : commands_(session, std::move(key), "redlatch_latch_requests"),
          channel_("redisson_countdownlatch__channel__{" + commands_.key() + "}"),
          round_(prefixed_key("redlatch_latch_round", commands_.key())) {
        // The channel has Redisson's name. Redisson's latches cannot have such names in a cluster, either.
        if (session.transport().route(channel_) != session.transport().route(this->key()))
            throw Error(errc::invalid_argument, this->key(),
                        "in a cluster the name of a latch must have no {tag}: its channel would lie in another slot");
    }

    const IdempotentCommands<T>& commands() const noexcept { return commands_; }
    const std::string& key() const noexcept { return commands_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Reply ask(std::span<const Want>, const RequestId&, Instant deadline) {
        return commands_.session().call_script(digested<scripts::count_down_latch_look>,
                                               std::array<std::string_view, 2>{key(), round_}, {}, deadline);
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 2 ||
            !(reply.elements[1].is_nil() || reply.elements[1].kind == Reply::Kind::text))
            throw unexpected(reply, key());
        const bool open = number_of(reply.elements[0], key()) <= 0;
        const std::string& round = reply.elements[1].text;
        for (Want& want : wants) {
            // While the latch is closed, only another round proves that the count has ended. An empty one does not:
            // its key expired long after its end, or never existed.
            want.served = open || (want.round && !round.empty() && *want.round != round);
            if (!want.round) want.round = round;
        }
        return {Milliseconds::max()};
    }

    // The reply to counting down: the count before, and what its caller would wait for.
    struct Lowered {
        std::int64_t before;
        Want want{};
    };
    Lowered decode_lower(const Reply& reply) const {
        if (reply.kind != Reply::Kind::array || reply.elements.empty() || !reply.elements[0].is_integer())
            throw unexpected(reply, key());
        Lowered lowered{reply.elements[0].integer};
        if (reply.elements.size() > 1) lowered.want.round = reply.elements[1].text;
        return lowered;
    }

    Reply set(const RequestId& ticket, std::int64_t count, Instant deadline) {
        return commands_.call(digested<scripts::count_down_latch_set>, ticket, std::array<std::string_view, 0>{},
                              std::array<std::string_view, 3>{NumberText(count), channel_, commands_.publish()},
                              deadline);
    }

    // A value of `by` that deletes the latch.
    static constexpr std::int64_t all = -1;
    Reply lower(const RequestId& ticket, std::int64_t by, Instant deadline) {
        return commands_.call(digested<scripts::count_down_latch_lower>, ticket,
                              std::array<std::string_view, 1>{round_},
                              std::array<std::string_view, 3>{by == all ? std::string_view("all") : NumberText(by),
                                                              channel_, commands_.publish()},
                              deadline);
    }

    void post_lower(const RequestId& ticket, std::int64_t by, Completion done) {
        commands_.post(digested<scripts::count_down_latch_lower>, ticket, std::array<std::string_view, 1>{round_},
                       std::array<std::string_view, 3>{NumberText(by), channel_, commands_.publish()}, std::move(done));
    }

private:
    const IdempotentCommands<T> commands_;
    const std::string channel_;
    const std::string round_;
};

}  // namespace v0_1
}  // namespace redlatch
