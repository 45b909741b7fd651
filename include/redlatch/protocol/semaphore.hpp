// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/semaphore_queue.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/counter_upkeep.hpp"
#include "redlatch/scripts/semaphore.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the semaphore and reads the replies.
class SemaphoreProtocol {
public:
    static constexpr std::string_view kind = "semaphore ";
    static constexpr bool takes = true;
    static constexpr std::size_t most_at_once = 100;
    static constexpr bool takes_back_by_mark = true;
    static constexpr bool hands_over = true;

    struct Want {
        std::int64_t permits = 1;  // at least one
        bool served = false;
        bool lets_pass = false;  // True if callers behind it may be served when there is not enough for it

        std::int64_t amount() const { return permits; }
    };

    SemaphoreProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_semaphore_requests"), queue_(context, marks_.key()) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return queue_.channel(); }
    const SemaphoreQueue& queue() const noexcept { return queue_; }

    // `place`: see SemaphoreQueue::ask().
    Call ask(std::span<const Want> wants, const RequestId& request_id, std::uint64_t place = 0) const {
        const Script& script = digested<scripts::semaphore_acquire>;
        Call call = place != 0 && queue_.is_used()
                        ? queue_.ask(marks_, script, request_id, {}, place)
                        : marks_.call(script, request_id, {}, {queue_.client(), "0", PublishCommand()}, Effect::grants);
        for (const Want& want : wants) call.append(want.lets_pass ? -want.permits : want.permits);
        return call;
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        if (reply.kind == Reply::Kind::array && reply.elements.size() == 3) return decode_queued(reply, wants);
        const bool is_missing = reply.kind == Reply::Kind::array && reply.elements.size() == 1 &&
                                reply.elements[0].is_integer() && reply.elements[0].integer == 0;
        if (is_missing && share(0, wants)) return {Milliseconds::max(), 0, false};
        if (!reply.is_integer() || !share(std::max<std::int64_t>(reply.integer, 0), wants) ||
            reply.integer <= -wants.front().permits)
            throw unexpected(reply, key());
        return {Milliseconds::max(), -reply.integer};
    }

    Call take_back(const RequestId& request_id, std::span<const Want>) const {
        return queue_.call(marks_, digested<scripts::semaphore_give_back>, request_id, {}, {PublishCommand()});
    }

    Call give_back(const RequestId& request_id, std::span<const Want> wants) const {
        std::int64_t permits = 0;
        for (const Want& want : wants) permits += want.permits;
        return add(request_id, permits, true);
    }

    Call add(const RequestId& request_id, std::int64_t permits, bool only_existing) const {
        return queue_.call(marks_, digested<scripts::semaphore_add>, request_id, {},
                           {permits, PublishCommand(), only_existing ? "1" : "0"});
    }

    // `ttl`: after how long the semaphore expires; zero for never.
    Call set(const RequestId& request_id, std::int64_t permits, Milliseconds ttl = Milliseconds(0)) const {
        Call call = queue_.call(marks_, digested<scripts::semaphore_set>, request_id, {}, {permits, PublishCommand()});
        if (ttl > Milliseconds(0)) call.append(Word(ttl));
        return call;
    }

    Call drain(const RequestId& request_id) const {
        return marks_.call(digested<scripts::semaphore_drain>, request_id, {}, {});
    }

    // GET rather than EXISTS: a key of another type is an error.
    Call exists() const { return Call::command({"GET", key()}); }
    Call remove(const RequestId& request_id) const {
        return marks_.call(digested<scripts::counter_remove>, request_id, {}, {});
    }
    Call expire(const RequestId& request_id, Milliseconds after) const {
        return marks_.call(digested<scripts::counter_expire>, request_id, {}, {after});
    }

    Call available() const { return Call::command({"GET", key()}); }

    Call inspect() const { return inspect_value(key()); }
    SemaphoreInspection read_inspection(const Reply& reply) const { return inspection_of_semaphore(reply, key()); }

private:
    // The answer to a question of which this process waits at its place.
    Answer decode_queued(const Reply& reply, std::span<Want> wants) const {
        for (const Reply& one : reply.elements)
            if (!one.is_integer() || one.integer < 0) throw unexpected(reply, key());
        if (!share(reply.elements[2].integer, wants)) throw unexpected(reply, key());
        return {Milliseconds::max(), reply.elements[0].integer, reply.elements[1].integer == 1, true};
    }

    const RequestMarks marks_;
    const SemaphoreQueue queue_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
