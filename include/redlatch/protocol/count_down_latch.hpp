// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/count_down_latch.hpp"
#include "redlatch/scripts/counter_upkeep.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the count-down latch and reads the replies.
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

    LatchProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_latch_requests"),
          // The channel has Redisson's name.
          channel_("redisson_countdownlatch__channel__{" + marks_.key() + "}"),
          round_(prefixed_key("redlatch_latch_round", marks_.key())) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Call ask(std::span<const Want>, const RequestId&) const {
        return {digested<scripts::count_down_latch_look>, {key(), round_}, {}};
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

    Call set(const RequestId& request_id, std::int64_t count) const {
        return marks_.call(digested<scripts::count_down_latch_set>, request_id, {round_},
                           {count, channel_, PublishCommand()});
    }

    // A value of `by` that deletes the latch.
    static constexpr std::int64_t all = -1;
    Call lower(const RequestId& request_id, std::int64_t by) const {
        return marks_.call(digested<scripts::count_down_latch_lower>, request_id, {round_},
                           {by == all ? Word("all") : Word(by), channel_, PublishCommand()});
    }

    Call expire(const RequestId& request_id, Milliseconds after) const {
        return marks_.call(digested<scripts::counter_expire>, request_id, {}, {after});
    }

    Call count() const { return Call::command({"GET", key()}); }

    Call inspect() const { return inspect_value(key()); }
    LatchInspection read_inspection(const Reply& reply) const { return inspection_of_latch(reply, key()); }

private:
    const RequestMarks marks_;
    const std::string channel_;
    const std::string round_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
