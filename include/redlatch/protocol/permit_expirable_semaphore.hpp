// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/permit_grant.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/protocol/permit_lease.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/semaphore_queue.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/counter_upkeep.hpp"
#include "redlatch/scripts/permit_expirable_semaphore.hpp"
#include "redlatch/scripts/semaphore.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

struct PermitHolder;

// Makes the calls of the semaphore whose permits have leases, and reads the replies.
class PermitProtocol {
public:
    static constexpr std::string_view kind = "permits ";
    static constexpr bool takes = true;
    static constexpr std::size_t most_at_once = 100;
    static constexpr bool takes_back_by_mark = false;

    struct Want {
        std::vector<PermitId> ids{};  // at least one
        PermitLease lease{};
        bool served = false;
        bool lets_pass = false;     // True if callers behind it may be served when there is not enough for it
        Replication replication{};  // of its renewals
        std::shared_ptr<PermitHolder> holder{};  // the object that will hold the permits, if any

        std::int64_t amount() const { return static_cast<std::int64_t>(ids.size()); }

        // Draws new ids; called before each further acquire. A command that takes back an earlier acquire may still be
        // in flight and must not remove the permits of the next one.
        void renew() {
            for (PermitId& id : ids) id = PermitId::random();
        }
    };

    PermitProtocol(const ProtocolContext& context, std::string key)
        : marks_(context, std::move(key), "redlatch_permit_requests"),
          queue_(context, marks_.key()),
          leases_(suffixed_key(marks_.key(), "timeout")) {}

    const RequestMarks& marks() const noexcept { return marks_; }
    const std::string& key() const noexcept { return marks_.key(); }
    const std::string& channel() const noexcept { return queue_.channel(); }
    const SemaphoreQueue& queue() const noexcept { return queue_; }

    // Returns the lease for the server in ms: -1 for permits without a TTL.
    static std::int64_t milliseconds_of(const PermitLease& lease) {
        return lease.kind == PermitLease::Kind::forever ? -1 : lease.length.count();
    }

    using Grant = PermitGrant;

    // Returns true if whoever makes permits available may take some for this caller. That is for 2 s at most, and the
    // watchdog prolongs it: other leases have to be asked for. Who requires replicas or a disk asks, too.
    static bool may_be_granted(const Want& want) {
        return want.lease.kind == PermitLease::Kind::watched && want.ids.size() <= most_granted && !want.lets_pass &&
               !want.replication.asks();
    }

    // `place`: see SemaphoreQueue::ask(). `may_grant`: True if the first that is not served may be granted what it wants.
    Call ask(std::span<const Want> wants, const RequestId& request_id, std::uint64_t place = 0,
             bool may_grant = true) const {
        Call call = queue_.ask(marks_, digested<scripts::permit_acquire>, request_id, {leases_}, place);
        const bool is_offered = may_grant && place != 0 && std::all_of(wants.begin(), wants.end(), may_be_granted);
        call.append(Word(std::int64_t{is_offered}));
        for (const Want& want : wants) {
            call.append(want.lets_pass ? -want.amount() : want.amount());
            call.append(milliseconds_of(want.lease));
            append(call, want.ids);
        }
        return call;
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        const std::vector<Reply>& told = reply.elements;
        const bool is_missing = told.size() > 2 && told[2].is_nil();
        const auto is_proper = [&](const Reply& one) { return one.is_integer() || (is_missing && &one == &told[2]); };
        if (reply.kind != Reply::Kind::array || told.size() < 2 || told.size() > 4 ||
            !std::all_of(told.begin(), told.end(), is_proper) || told[0].integer < 0 || !share(told[0].integer, wants))
            throw unexpected(reply, key());
        // One ms more: the lease lasts until the end of its last millisecond.
        const std::int64_t over_in = told[1].integer;
        return {over_in < 0 || over_in == Milliseconds::max().count() ? Milliseconds::max() : Milliseconds(over_in + 1),
                told.size() > 2 ? told[2].integer : 0, !is_missing, told.size() == 4};
    }

    Call take_back(const RequestId& request_id, std::span<const Want> wants) const {
        Call call = queue_.call(marks_, digested<scripts::permit_take_back>, request_id, {leases_}, {PublishCommand()});
        for (const Want& want : wants) append(call, want.ids);
        return call;
    }

    // Leaves the place of this number. Gives back what may have been granted there.
    Call leave(const RequestId& request_id, std::uint64_t place, std::span<const PermitId> granted) const {
        Call call = queue_.call(marks_, digested<scripts::permit_leave>, request_id, {leases_},
                                {queue_.client(), Word(static_cast<std::int64_t>(place)), PublishCommand()});
        append(call, granted);
        return call;
    }

    // Uses the script for taking back, which also works if the lease of some permits is over.
    Call give_back(const RequestId& request_id, std::span<const Want> wants) const {
        return take_back(request_id, wants);
    }

    Call release(const RequestId& request_id, std::span<const PermitId> ids) const {
        Call call = queue_.call(marks_, digested<scripts::permit_release>, request_id, {leases_}, {PublishCommand()});
        append(call, ids);
        return call;
    }

    Call set_lease(const RequestId& request_id, const PermitId& id, const PermitLease& lease) const {
        return queue_.call(marks_, digested<scripts::permit_set_lease>, request_id, {leases_},
                           {PublishCommand(), Word::copy(id.bytes()), milliseconds_of(lease)}, Effect::grants);
    }

    // `ttl`: after how long the semaphore expires; zero for never.
    Call set(const RequestId& request_id, std::int64_t permits, Milliseconds ttl = Milliseconds(0)) const {
        Call call = queue_.call(marks_, digested<scripts::semaphore_set>, request_id, {}, {permits, PublishCommand()});
        if (ttl > Milliseconds(0)) call.append(Word(ttl));
        return call;
    }

    Call set_total(const RequestId& request_id, std::int64_t permits) const {
        return queue_.call(marks_, digested<scripts::permit_set_total>, request_id, {leases_},
                           {PublishCommand(), permits});
    }

    Call add(const RequestId& request_id, std::int64_t permits) const {
        return queue_.call(marks_, digested<scripts::permit_add>, request_id, {leases_}, {PublishCommand(), permits});
    }

    // GET rather than EXISTS: a key of another type is an error.
    Call exists() const { return Call::command({"GET", key()}); }
    Call remove(const RequestId& request_id) const {
        return marks_.call(digested<scripts::counter_remove>, request_id, {leases_}, {});
    }
    Call expire(const RequestId& request_id, Milliseconds after) const {
        return marks_.call(digested<scripts::counter_expire>, request_id, {leases_}, {after});
    }

    Call count() const {
        return {digested<scripts::permit_count>, {key(), leases_, queue_.channel()}, {PublishCommand()}};
    }

    struct Count {
        std::int64_t available;
        std::int64_t acquired;
        bool exists;
    };
    Count read_count(const Reply& reply) const {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 2 || !reply.elements[1].is_integer())
            throw unexpected(reply, key());
        return {number_of(reply.elements[0], key()), reply.elements[1].integer, !reply.elements[0].is_nil()};
    }

    Call inspect() const { return {digested<scripts::permit_inspect>, {key(), leases_}, {}}; }
    SemaphoreInspection read_inspection(const Reply& reply) const { return inspection_of_permits(reply, key()); }

    Call remaining(const PermitId& id) const {
        return {digested<scripts::permit_remaining>, {leases_}, {Word::copy(id.bytes())}};
    }

    // Returns nothing if there is no such permit, and max() if its lease never ends.
    std::optional<Milliseconds> read_remaining(const Reply& reply) const {
        if (reply.is_nil()) return std::nullopt;
        if (!reply.is_integer()) throw unexpected(reply, key());
        return reply.integer < 0 ? Milliseconds::max() : Milliseconds(reply.integer);
    }

    // `until`: the server time until which it is wanted. Never shortens a lease.
    Call renew(std::span<const PermitId> ids, Milliseconds lease, std::int64_t until) const {
        Call call(digested<scripts::permit_renew>, {leases_}, {lease, until}, Effect::grants);
        append(call, ids);
        return call;
    }

private:
    static constexpr std::size_t most_granted = 8;

    static void append(Call& call, std::span<const PermitId> ids) {
        for (const PermitId& id : ids) call.append(Word::copy(id.bytes()));
    }

    const RequestMarks marks_;
    const SemaphoreQueue queue_;
    const std::string leases_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
