// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/condition_variable.hpp"
#include "redlatch/scripts/permit_expirable_semaphore.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the condition variable and reads the replies.
class ConditionProtocol {
public:
    static constexpr std::string_view kind = "condition ";
    static constexpr bool takes = false;
    static constexpr std::size_t most_at_once = std::numeric_limits<std::size_t>::max();

    // A waiter is served when it goes on: it was notified, or the server does not have it any more.
    struct Want {
        PermitId id;
        bool served = false;
        bool owes = false;  // True if the server keeps its notification until it says that it goes on
    };

    ConditionProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_condition_requests"),
          channel_(prefixed_key("redlatch_condition", marks_.key())),
          leases_(suffixed_key(marks_.key(), "leases")) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Call ask(std::span<const Want> wants, const RequestId&) const {
        Call call(digested<scripts::condition_look>, {key(), leases_, channel_}, {PublishCommand()});
        for (const Want& want : wants) call.append(Word::copy(want.id.bytes()));
        return call;
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 1 + wants.size())
            throw unexpected(reply, key());
        for (const Reply& one : reply.elements)
            if (!one.is_integer()) throw unexpected(reply, key());
        for (std::size_t i = 0; i < wants.size(); ++i) {
            const std::int64_t state = reply.elements[1 + i].integer;
            if (state < 0 || state > 2) throw unexpected(reply, key());
            wants[i].served = state != 1;
            wants[i].owes = state == 2;
        }
        // One ms more: the lease lasts until the end of its last millisecond.
        const std::int64_t over_in = reply.elements[0].integer;
        return {over_in < 0 || over_in == Milliseconds::max().count() ? Milliseconds::max()
                                                                      : Milliseconds(over_in + 1)};
    }

    Call enter(const RequestId& request_id, const PermitId& id, Milliseconds lease) const {
        return marks_.call(digested<scripts::condition_register>, request_id, {leases_},
                           {Word::copy(id.bytes()), lease});
    }

    // Calls off a registration of unknown outcome.
    Call call_off(const RequestId& request_id, const PermitId& id) const {
        return marks_.call(digested<scripts::condition_call_off>, request_id, {leases_, channel_},
                           {PublishCommand(), Word::copy(id.bytes())});
    }

    // `gives_up`: true if a notification that it may have got is to be passed on.
    Call leave(const RequestId& request_id, const PermitId& id, bool gives_up) const {
        return marks_.call(digested<scripts::condition_leave>, request_id, {leases_, channel_},
                           {PublishCommand(), Word::copy(id.bytes()), gives_up ? "1" : "0"});
    }

    // Returns true if a waiter that gave up was notified, and nobody else could take its notification.
    bool decode_leave(const Reply& reply) const {
        if (!reply.is_integer() || reply.integer < 0 || reply.integer > 3) throw unexpected(reply, key());
        return reply.integer == 1 || reply.integer == 3;
    }

    Call notify(const RequestId& request_id, bool all) const {
        return marks_.call(digested<scripts::condition_notify>, request_id, {leases_, channel_},
                           {PublishCommand(), all ? "all" : "1"});
    }

    // `until`: the server time until which it is wanted. Never shortens a lease.
    Call renew(std::span<const PermitId> ids, Milliseconds lease, std::int64_t until) const {
        Call call(digested<scripts::permit_renew>, {leases_}, {lease, until}, Effect::grants);
        for (const PermitId& id : ids) call.append(Word::copy(id.bytes()));
        return call;
    }

    // Counts the waiters that are not notified.
    Call count() const { return Call::command({"ZCOUNT", key(), "1", "9007199254740991"}); }

private:
    const RequestMarks marks_;
    const std::string channel_;
    const std::string leases_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
