// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/barrier.hpp"
#include "redlatch/scripts/permit_expirable_semaphore.hpp"
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

// An arrival at a barrier. A barrier that was removed and made anew has another `born`.
struct ArrivalFacts {
    PermitId id;
    std::string born{};
    std::int64_t phase = 0;
    bool ended_phase = false;  // True if it was the last one of its phase
};

// Makes the calls of the barrier and reads the replies.
class BarrierProtocol {
public:
    static constexpr std::string_view kind = "barrier ";
    static constexpr bool takes = false;
    static constexpr std::size_t most_at_once = std::numeric_limits<std::size_t>::max();

    // A caller waits until the phase of its arrival has ended.
    struct Want {
        ArrivalFacts arrival;
        bool served = false;
        bool lost = false;  // True if the phase cannot end with this arrival: the server does not have it any more
    };

    BarrierProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_barrier_requests"),
          channel_(prefixed_key("redlatch_barrier", marks_.key())),
          arrivals_(suffixed_key(marks_.key(), "arrivals")) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Call ask(std::span<const Want> wants, const RequestId&) const {
        Call call(digested<scripts::barrier_look>, {key(), arrivals_}, {});
        for (const Want& want : wants) call.append(Word::copy(want.arrival.id.bytes()));
        return call;
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        const Now now = now_in(reply, 2 + wants.size());
        for (std::size_t i = 0; i < wants.size(); ++i) {
            const Reply& is_there = reply.elements[2 + i];
            if (!is_there.is_integer()) throw unexpected(reply, key());
            Want& want = wants[i];
            const bool same = now.born == want.arrival.born;
            want.served = same && now.phase != want.arrival.phase;
            want.lost = !want.served && (!same || is_there.integer != 1);
            want.served = want.served || want.lost;
        }
        return {Milliseconds::max()};
    }

    Call arrive(const RequestId& request_id, std::int64_t parties, const PermitId& id, Milliseconds lease,
                bool drops_out) const {
        return marks_.call(digested<scripts::barrier_arrive>, request_id, {arrivals_, channel_},
                           {PublishCommand(), parties, Word::copy(id.bytes()), lease, drops_out ? "1" : "0"},
                           Effect::grants);
    }

    // Throws Error(errc::invalid_argument) if the barrier has another number of parties.
    ArrivalFacts decode_arrival(const Reply& reply, const PermitId& id) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 3 || !reply.elements[0].is_integer() ||
            !reply.elements[2].is_integer() ||
            !(reply.elements[1].is_nil() || reply.elements[1].kind == Reply::Kind::text))
            throw unexpected(reply, key());
        const std::int64_t phase = reply.elements[0].integer, then = reply.elements[2].integer;
        if (phase == 0)
            throw Error(errc::invalid_argument, key(),
                        "the barrier is for " + std::to_string(then) + " parties; all objects must name that number");
        return {id, reply.elements[1].text, phase, then != phase};
    }

    // Calls off an arrival of unknown outcome.
    Call call_off(const RequestId& request_id, const PermitId& id) const {
        return marks_.call(digested<scripts::barrier_call_off>, request_id, {arrivals_}, {Word::copy(id.bytes())});
    }

    // Takes back an arrival, if its phase has not ended. May be repeated at will.
    Call withdraw(const PermitId& id) const {
        return {digested<scripts::barrier_withdraw>, {key(), arrivals_}, {Word::copy(id.bytes())}};
    }

    // Returns true if it does not count in its phase, false if that has ended.
    bool decode_withdrawal(const Reply& reply, const ArrivalFacts& arrival) const {
        const Now now = now_in(reply, 2);
        return now.born != arrival.born || now.phase == arrival.phase;
    }

    // `until`: the server time until which it is wanted. Never shortens a lease.
    Call renew(std::span<const PermitId> ids, Milliseconds lease, std::int64_t until) const {
        Call call(digested<scripts::permit_renew>, {arrivals_}, {lease, until}, Effect::grants);
        for (const PermitId& id : ids) call.append(Word::copy(id.bytes()));
        return call;
    }

    Call remove(const RequestId& request_id) const {
        return marks_.call(digested<scripts::barrier_remove>, request_id, {arrivals_, channel_}, {PublishCommand()});
    }

    Call inspect() const { return {digested<scripts::barrier_inspect>, {key(), arrivals_}, {}}; }
    BarrierInspection read_inspection(const Reply& reply) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 3) throw unexpected(reply, key());
        for (const Reply& one : reply.elements)
            if (!one.is_integer() || one.integer < 0) throw unexpected(reply, key());
        return {reply.elements[0].integer > 0, static_cast<std::uint64_t>(reply.elements[0].integer),
                static_cast<std::ptrdiff_t>(reply.elements[1].integer),
                static_cast<std::ptrdiff_t>(reply.elements[2].integer)};
    }

private:
    // The state that a reply begins with; an empty `born` if there is no barrier.
    struct Now {
        std::string_view born;
        std::int64_t phase;
    };
    Now now_in(const Reply& reply, std::size_t size) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != size ||
            !(reply.elements[0].is_nil() || reply.elements[0].kind == Reply::Kind::text))
            throw unexpected(reply, key());
        return {reply.elements[0].text, number_of(reply.elements[1], key())};
    }

    const RequestMarks marks_;
    const std::string channel_;
    const std::string arrivals_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
