// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_core.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Finds out from when the server of each member may vote: one that started lately may have forgotten a hold that is
// still valid. `lock` holds the mutex of the quorum.
class QuorumVotes {
public:
    explicit QuorumVotes(QuorumCore& core) : core_(core), servers_(core.members.size()) {}

    // Calls `then(since, error)`, now or later, with the quorum's mutex: from when the vote counts, or why it does not.
    template <class Then>
    void ask_trust(std::unique_lock<std::mutex>& lock, std::size_t member, Then then) {
        if (!core_.rules.independent) return then(Instant::min(), std::nullopt);
        const std::optional<std::uint64_t> connections = core_.members[member]->connections();
        const Server& server = servers_[member];
        if (connections && server.connections == connections) return then(server.trusted_from, std::nullopt);
        const InsideMembers inside(core_, lock);
        core_.members[member]->ask_info([this, keep = core_.keep(), member, connections, then](const Reply& reply) {
            const std::lock_guard relock(core_.mutex);
            if (!core_.closed) learn_age(member, connections, reply, then);
        });
    }

private:
    // What is known of a member's server. If `connections` has grown since, the server may be another process.
    struct Server {
        std::optional<std::uint64_t> connections{};
        Instant trusted_from = never;
    };

    // Learns the server's age from the reply to INFO. The reply is newer than the member's part, so the server process
    // that granted the part started no later than INFO shows.
    template <class Then>
    void learn_age(std::size_t member, const std::optional<std::uint64_t>& connections, const Reply& reply,
                   const Then& then) {
        QuorumMember& m = *core_.members[member];
        if (classify(reply) != ReplyClass::answered) return then(never, error_of(reply, m.name()));
        const auto uptime = reply.kind == Reply::Kind::text ? read_uptime(reply.text) : std::nullopt;
        if (!uptime) return then(never, unexpected(reply, m.name()));
        // INFO counts whole seconds, and the last one may have just begun.
        const auto enough = std::chrono::ceil<std::chrono::seconds>(core_.rules.longest_lease * 2);
        const auto age = std::clamp(*uptime - std::chrono::seconds(1), std::chrono::seconds(0), enough);
        const Instant born = Clock::now() - age;
        servers_[member].trusted_from = born + core_.rules.longest_lease + core_.drift_over(core_.rules.longest_lease);
        servers_[member].connections = m.connections() == connections ? connections : std::nullopt;
        then(servers_[member].trusted_from, std::nullopt);
    }

    QuorumCore& core_;
    std::vector<Server> servers_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
