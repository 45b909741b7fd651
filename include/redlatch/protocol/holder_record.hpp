// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/holder_record.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What a holder of a lock has left for others.
struct HolderRecord {
    std::string owner;       // who wrote it
    std::int64_t token = 0;  // the fencing token of that hold
    std::string value;
    Milliseconds stays{};  // for how long from now; Milliseconds::max() without an end
};

// The state of a lock with a record at one moment.
struct RecordView {
    std::optional<Holder> holder{};
    std::optional<std::int64_t> last_token{};  // while the lock is held: the token of that hold
    std::optional<HolderRecord> record{};

    // Returns true if the present holder has written the record.
    bool is_of_holder() const { return holder && record && record->owner == holder->owner; }
};

// Which record it is. A name of one kind has nothing to do with the same name of another kind, but for the lock.
struct RecordKind {
    std::string_view name;
    std::string_view key_prefix;
};
inline constexpr RecordKind leader_record{"leader ", "redlatch_leader"};
inline constexpr RecordKind once_record{"once ", "redlatch_once"};
inline constexpr RecordKind flight_record{"flight ", "redlatch_flight"};

// Makes the calls of the record beside a fenced lock. Callers wait for a change of it as for the end of a latch's count.
class HolderRecordProtocol {
public:
    const std::string_view kind;
    static constexpr bool takes = false;
    static constexpr std::size_t most_at_once = std::numeric_limits<std::size_t>::max();

    // What a caller waits for, and what was found.
    struct Want {
        // Messages and the end of leases wake waiters. This is for messages that were lost without a lost connection.
        static constexpr Milliseconds slow_poll{15'000};

        // Waits until this is true of what is found. Pure, and owns what it uses, because copies of it outlive the wait.
        // Empty: waits for a record or for a free lock; then one caller of each process is served, to acquire that.
        std::function<bool(const RecordView&)> differs{};
        RecordView found{};
        bool served = false;
    };

    HolderRecordProtocol(const ProtocolContext& context, std::string key, const RecordKind& record)
        : kind(record.name),
          uuid_(context.uuid),
          marks_(context, std::move(key), "redlatch_record_requests"),
          channel_(prefixed_key("redisson_lock__channel", marks_.key())),
          counter_(prefixed_key("redisson_lock_token", marks_.key())),
          record_(prefixed_key(record.key_prefix, marks_.key())) {}

    // No request of this protocol needs a mark.
    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Call look() const { return {digested<scripts::record_look>, {key(), counter_, record_}, {}}; }

    RecordView read_look(const Reply& reply) const {
        const std::vector<Reply>& parts = elements_of(reply, 7, 7, key());
        RecordView view;
        if (!parts[0].is_nil()) {
            Holder& holder = view.holder.emplace();
            name_owner(holder, parts[0], key());
            holder.lease = time_left(parts[1], key());
        }
        if (!parts[2].is_nil()) view.last_token = number_of(parts[2], key());
        if (parts[3].is_nil()) return view;
        if (parts[3].kind != Reply::Kind::text || parts[5].kind != Reply::Kind::text) throw unexpected(reply, key());
        view.record = {parts[3].text, number_of(parts[4], key()), parts[5].text, time_left(parts[6], key())};
        return view;
    }

    Call ask(std::span<const Want>, const RequestId&) const { return look(); }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        const RecordView view = read_look(reply);
        bool acquires = false;  // true once a caller is served because the lock is free
        for (Want& want : wants) {
            if (want.differs)
                want.served = want.differs(view);
            else
                want.served = view.record || (!view.holder && !std::exchange(acquires, true));
            if (want.served) want.found = view;
        }
        // The caller that is served may fail to acquire the lock, and no message tells that.
        if (acquires) return {after_another};
        // Add one: the key is gone only in the millisecond after its last.
        return {view.holder && view.holder->lease != Milliseconds::max() ? view.holder->lease + Milliseconds(1)
                                                                         : Milliseconds::max()};
    }

    // `stays`: how long the record stays; zero without an end. Refers to the value.
    Call store(std::uint64_t hold, std::int64_t token, std::string_view value, Milliseconds stays) const {
        return {digested<scripts::record_store>,
                {key(), record_},
                {OwnerText(uuid_, hold), token, value, stays, channel_, PublishCommand()},
                Effect::grants};
    }

    // Refers to the owner.
    Call remove(std::string_view owner) const { return {digested<scripts::record_remove>, {record_}, {owner}}; }

    // Reads the reply to a store or a removal.
    bool read_done(const Reply& reply) const {
        if (!reply.is_integer() || reply.integer < 0 || reply.integer > 1) throw unexpected(reply, key());
        return reply.integer == 1;
    }

private:
    static constexpr Milliseconds after_another{100};

    const std::string& uuid_;
    const RequestMarks marks_;
    const std::string channel_;
    const std::string counter_;
    const std::string record_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
