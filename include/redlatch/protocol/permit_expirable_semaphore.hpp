// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/protocol/idempotency.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/permit_expirable_semaphore.hpp"
#include "redlatch/scripts/semaphore.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// For how long a permit is acquired: with a lease of its own, without a TTL, or under the watchdog.
struct PermitLease {
    enum class Kind { watched, limited, forever } kind = Kind::watched;
    Milliseconds length{};  // if limited

    static PermitLease of(const Lease& lease) { return {Kind::limited, lease.length()}; }
    static PermitLease of(Lease::Forever) { return {Kind::forever, {}}; }
};

// Builds the commands of the semaphore whose permits have leases: the keys and arguments of its scripts.
template <Transport T>
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
        bool lets_pass = false;  // True if callers behind it may be served when there is not enough for it

        std::int64_t amount() const { return static_cast<std::int64_t>(ids.size()); }

        // Draws new ids; called before each further acquire. A command that takes back an earlier acquire may still be
        // in flight and must not remove the permits of the next one.
        void renew() {
            for (PermitId& id : ids) id = PermitId::random();
        }
    };

    PermitProtocol(Session<T>& session, std::string key)
        : commands_(session, std::move(key), "redlatch_permit_requests"),
          channel_(prefixed_key("redisson_sc", commands_.key())),
          leases_(suffixed_key(commands_.key(), "timeout")) {}

    const IdempotentCommands<T>& commands() const noexcept { return commands_; }
    const std::string& key() const noexcept { return commands_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    // Returns the lease for the server in ms: the watchdog timeout for watched permits, -1 for permits without a TTL.
    std::int64_t milliseconds_of(const PermitLease& lease) const {
        switch (lease.kind) {
            case PermitLease::Kind::limited: return lease.length.count();
            case PermitLease::Kind::forever: return -1;
            default: return commands_.session().options().watchdog_timeout.count();
        }
    }

    Reply ask(std::span<const Want> wants, const RequestId& ticket, Instant deadline) {
        Words words{commands_.publish()};
        for (const Want& want : wants) {
            words.add(want.lets_pass ? -want.amount() : want.amount());
            words.add(milliseconds_of(want.lease));
            words.add(want.ids);
        }
        return commands_.call(digested<scripts::permit_acquire>, ticket, more_keys(), words.view(), deadline,
                              Effect::grants);
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        const std::vector<Reply>& told = reply.elements;
        if (reply.kind != Reply::Kind::array || told.size() < 2 || told.size() > 3 ||
            !std::all_of(told.begin(), told.end(), [](const Reply& one) { return one.is_integer(); }) ||
            told[0].integer < 0 || !share(told[0].integer, wants))
            throw unexpected(reply, key());
        // One ms more: the lease lasts until the end of its last millisecond.
        const std::int64_t over_in = told[1].integer;
        return {over_in < 0 || over_in == Milliseconds::max().count() ? Milliseconds::max() : Milliseconds(over_in + 1),
                told.size() > 2 ? told[2].integer : 0};
    }

    void post_take_back(const RequestId& ticket, std::span<const Want> wants, Completion done) {
        Words words{commands_.publish()};
        for (const Want& want : wants) words.add(want.ids);
        commands_.post(digested<scripts::permit_take_back>, ticket, more_keys(), words.view(), std::move(done));
    }

    // Uses the script for taking back, which also works if the lease of some permits is over.
    void post_return(const RequestId& ticket, std::span<const Want> wants, Completion done) {
        post_take_back(ticket, wants, std::move(done));
    }

    Reply release(const RequestId& ticket, std::span<const PermitId> ids, Instant deadline) {
        Words words{commands_.publish()};
        words.add(ids);
        return commands_.call(digested<scripts::permit_release>, ticket, more_keys(), words.view(), deadline);
    }

    void post_release(const RequestId& ticket, std::span<const PermitId> ids, Completion done) {
        Words words{commands_.publish()};
        words.add(ids);
        commands_.post(digested<scripts::permit_release>, ticket, more_keys(), words.view(), std::move(done));
    }

    Reply set_lease(const RequestId& ticket, const PermitId& id, const PermitLease& lease, Instant deadline) {
        return commands_.call(
            digested<scripts::permit_set_lease>, ticket, more_keys(),
            std::array<std::string_view, 3>{commands_.publish(), id.bytes(), NumberText(milliseconds_of(lease))},
            deadline);
    }

    Reply set(const RequestId& ticket, std::int64_t permits, Instant deadline) {
        return commands_.call(digested<scripts::semaphore_set>, ticket, std::array<std::string_view, 1>{channel_},
                              std::array<std::string_view, 2>{NumberText(permits), commands_.publish()}, deadline);
    }

    Reply set_total(const RequestId& ticket, std::int64_t permits, Instant deadline) {
        return commands_.call(digested<scripts::permit_set_total>, ticket, more_keys(),
                              std::array<std::string_view, 2>{commands_.publish(), NumberText(permits)}, deadline);
    }

    Reply add(const RequestId& ticket, std::int64_t permits, Instant deadline) {
        return commands_.call(digested<scripts::permit_add>, ticket, more_keys(),
                              std::array<std::string_view, 2>{commands_.publish(), NumberText(permits)}, deadline);
    }

    struct Count {
        std::int64_t available;
        std::int64_t acquired;
        bool exists;
    };
    Count count() {
        const Reply reply = detail::inquire(commands_.session(), key(), [&](Instant deadline) {
            return commands_.session().call_script(digested<scripts::permit_count>,
                                                   std::array<std::string_view, 3>{key(), leases_, channel_},
                                                   std::array<std::string_view, 1>{commands_.publish()}, deadline);
        });
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 2 || !reply.elements[1].is_integer())
            throw unexpected(reply, key());
        return {number_of(reply.elements[0], key()), reply.elements[1].integer, !reply.elements[0].is_nil()};
    }

    std::optional<Milliseconds> remaining(const PermitId& id) {
        const Reply reply = detail::inquire(commands_.session(), key(), [&](Instant deadline) {
            return commands_.session().call_script(digested<scripts::permit_remaining>,
                                                   std::array<std::string_view, 1>{leases_},
                                                   std::array<std::string_view, 1>{id.bytes()}, deadline);
        });
        if (reply.is_nil()) return std::nullopt;
        if (!reply.is_integer()) throw unexpected(reply, key());
        return reply.integer < 0 ? Milliseconds::max() : Milliseconds(reply.integer);
    }

    void post_renew(std::span<const PermitId> ids, Completion done) {
        Words words{};
        words.add(commands_.session().options().watchdog_timeout.count());
        words.add(commands_.session().wanted_until(key()));
        words.add(ids);
        commands_.session().post_script(digested<scripts::permit_renew>, std::array<std::string_view, 1>{leases_},
                                        words.view(), std::move(done), Receiver::background, Effect::grants);
    }

private:
    // Collects any number of arguments. The ids must outlive it.
    class Words {
    public:
        Words(std::initializer_list<std::string_view> first) : words_(first) {}
        void add(std::int64_t number) { words_.push_back(numbers_.emplace_back(number)); }
        void add(std::span<const PermitId> ids) {
            for (const PermitId& id : ids) words_.push_back(id.bytes());
        }
        std::span<const std::string_view> view() const { return words_; }

    private:
        std::vector<std::string_view> words_;
        std::deque<NumberText> numbers_;  // a deque, so that their addresses stay valid
    };

    std::array<std::string_view, 2> more_keys() const { return {leases_, channel_}; }

    const IdempotentCommands<T> commands_;
    const std::string channel_;
    const std::string leases_;
};

}  // namespace v0_1
}  // namespace redlatch
