// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/holder_record.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

// The record beside a lock, in this process: callers wait for its change, and the holder writes it.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

using RecordState = Synchronizer<HolderRecordProtocol>;

// Makes the state of one kind of record.
template <const RecordKind& kind>
inline constexpr StateMaker record_maker{kind.name,
                                         [](Session& session, const std::string& key) -> std::shared_ptr<NamedState> {
                                             return std::make_shared<RecordState>(session, key, kind);
                                         }};

inline RecordState& record_of(StateHandle& handle) { return static_cast<RecordState&>(handle.state()); }

// What a holder writes.
struct RecordEntry {
    std::uint64_t hold;
    std::int64_t token;
    std::string value;
    Milliseconds stays{0};  // zero: without an end
};

// Writes the record, until the deadline at most. Returns false if the hold has ended. Throws Error. The arguments must
// outlive the task.
inline Task<bool> store_record(RecordState& state, const RecordEntry& entry, Instant deadline, const Settings& settings,
                               const std::stop_token& stop, WaitBy by) {
    Call call = state.protocol().store(entry.hold, entry.token, entry.value, entry.stays);
    call.replication = settings.replication();
    Retry retry = state.session().retry(
        {.deadline = deadline, .stop = stop, .by = by, .command_timeout = settings.command_timeout});
    Reply reply;
    std::optional<Instant> rest;
    do {
        reply = co_await ReplyTo(state.session(), by, call, retry.deadline());
        rest = retry.rest_after(reply);
        if (rest) co_await Pause(by, *rest, stop);
    } while (rest && retry.goes_on());
    if (classify(reply) != ReplyClass::answered) throw error_of(reply, state.key());
    const bool stored = state.protocol().read_done(reply);
    if (stored && !reply.replicated) throw not_confirmed(reply, state.key());
    co_return stored;
}

// Reads the lock and its record. One round trip. Throws Error.
inline RecordView look_at_record(StateHandle& handle) {
    RecordState& state = record_of(handle);
    return state.protocol().read_look(query(state.session(), handle.settings(), state.key(), state.protocol().look()));
}

// Removes the record that is there. Two round trips: the first reads who has written it, the second removes that one, so
// a late copy of the command removes no other. Returns false if there was none. Throws Error.
inline bool remove_record(StateHandle& handle) {
    const RecordView view = look_at_record(handle);
    if (!view.record) return false;
    RecordState& state = record_of(handle);
    const Call call = state.protocol().remove(view.record->owner);
    return state.protocol().read_done(query(state.session(), handle.settings(), state.key(), call));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
