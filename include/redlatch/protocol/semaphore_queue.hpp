// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/native_commands.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/queue_keys.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/scripts/semaphore_queue.hpp"
#include "redlatch/transport/reply.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The queue on the server of the processes that wait for permits of a semaphore (scripts/semaphore_queue.hpp), for the
// protocols of both kinds of semaphores.
class SemaphoreQueue {
public:
    SemaphoreQueue(const ProtocolContext& context, const std::string& key)
        : client_(context.uuid),
          channel_(prefixed_key("redisson_sc", key)),
          keys_(context.options.grants, context.native, NativeCommands::Queue::semaphores,
                prefixed_key("redlatch_semaphore_queue", key), prefixed_key("redlatch_semaphore_places", key)) {}

    // Returns true if this client uses it.
    bool is_used() const noexcept { return keys_.are_used(); }

    const std::string& client() const noexcept { return client_; }

    // Returns the channel of the messages to all.
    const std::string& channel() const noexcept { return channel_; }

    // Returns the channel on which this client is told to ask.
    std::string place_channel() const { return channel_ + ":" + client_; }

    // Returns true if this message to all is only for clients without a place, because its sender has told the queue itself.
    static bool is_for_others(std::string_view payload) { return payload.size() > 1 && payload.front() == '0'; }

    // Returns true if the user has no right to the keys of the queue, which a call with so many keys has. From then on this
    // client does without: the call is to be made once more, and has four keys at most.
    bool is_refused(std::size_t keys, const Reply& reply) const {
        return keys > 4 && keys_.are_refused_at_release(keys, reply);
    }

    // Makes the call of a script that tells the queue what there is: with the keys of the queue, if this client uses it.
    // `more_keys`: those before the channel.
    Call call(const RequestMarks& marks, const Script& script, const RequestId& request_id,
              std::initializer_list<Word> more_keys, std::initializer_list<Word> arguments,
              Effect effect = Effect::any) const {
        Call call = marks.with_keys(script, more_keys, effect);
        call.append_key(channel_);
        if (is_used()) {
            call.append_key(keys_.queue());
            call.append_key(keys_.places());
        }
        marks.append_request(call, request_id);
        call.append(arguments);
        return call;
    }

    // Makes the call of a script that takes permits, up to what its callers want. `place`: the number of the place at which
    // this process waits if it is refused; 0 for none.
    Call ask(const RequestMarks& marks, const Script& script, const RequestId& request_id,
             std::initializer_list<Word> more_keys, std::uint64_t place) const {
        return call(marks, script, request_id, more_keys,
                    {client_, Word(static_cast<std::int64_t>(is_used() ? place : 0)), PublishCommand()},
                    Effect::grants);
    }

    // Leaves the place of this number.
    Call leave(const RequestMarks& marks, const RequestId& request_id, std::uint64_t place) const {
        return call(marks, digested<scripts::semaphore_leave>, request_id, {},
                    {client_, Word(static_cast<std::int64_t>(place)), PublishCommand()});
    }

private:
    const std::string client_;
    const std::string channel_;
    const QueueKeys keys_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
