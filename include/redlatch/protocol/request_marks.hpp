// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/scripts/request_marks.hpp"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of scripts that use scripts/request_marks.hpp, so that each request takes effect at most once. Their
// first keys are the key of the primitive and the key of the marks. Their first arguments are the lane, the request
// number, until when the request is wanted, the margin, and '1' if a copy of the request may be in flight.
//
// A request is wanted for a while from its first sending on. All copies of it are wanted until the same instant of the
// server's clock. Its mark stays for the margin longer. A copy that arrives in between and finds no mark proves that no
// copy has taken effect, nor will: the change may be sent again as a new request. A copy that arrives after the margin
// proves nothing. Then the outcome remains unknown, and a new request might repeat the change.
class RequestMarks {
public:
    RequestMarks(const ProtocolContext& context, std::string key, std::string_view marks_prefix)
        : key_(std::move(key)),
          marks_(prefixed_key(marks_prefix, key_) + ":" + context.uuid),
          window_(longest_ttl(context.options) / 4),
          margin_(longest_ttl(context.options) * 2 / 3) {}

    const std::string& key() const noexcept { return key_; }

    // Returns the longest time for which marks stay: window and margin, and some time for the uncertainty about the
    // server's clock.
    static Milliseconds longest_ttl(const ClientOptions& options) {
        constexpr Milliseconds least = std::chrono::minutes(2), most = std::chrono::hours(1);
        return options.unreachable_timeout > most / 4 ? most : std::max(least, options.unreachable_timeout * 4);
    }

    // Returns until when a request that is first sent at `now` is wanted.
    ServerMilliseconds wanted_from(ServerMilliseconds now) const { return now + window_.count(); }

    // Returns when the mark of a request expires at the earliest.
    ServerMilliseconds mark_end(const RequestId& request_id) const {
        constexpr Milliseconds inexact{1000};
        return request_id.wanted_until + margin_.count() - inexact.count();
    }

    // Makes the call of a script that marks this request.
    Call call(const Script& script, const RequestId& request_id, std::initializer_list<Word> more_keys,
              std::initializer_list<Word> more_arguments, Effect effect = Effect::any) const {
        Call call = with_keys(script, more_keys, effect);
        append_request(call, request_id);
        call.append(more_arguments);
        return call;
    }

    // Does the same in steps, for a call with further keys.
    Call with_keys(const Script& script, std::initializer_list<Word> more_keys, Effect effect) const {
        return {script, {key_, marks_}, more_keys, {}, effect};
    }
    void append_request(Call& call, const RequestId& request_id) const {
        call.append(std::initializer_list<Word>{request_id.lane, request_id.request, request_id.wanted_until, margin_,
                                                request_id.may_be_done ? "1" : "0"});
    }

    // Voids a request whose sender has given up. After the reply the request has taken effect or never will.
    Call void_request(const RequestId& request_id) const {
        return {digested<scripts::request_void>,
                {marks_},
                {request_id.lane, request_id.request, request_id.wanted_until, margin_}};
    }

private:
    const std::string key_;
    const std::string marks_;
    const Milliseconds window_;
    const Milliseconds margin_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
