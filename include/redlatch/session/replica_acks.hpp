// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes replicas and disks confirm what is granted: require_replicas and require_fsync of a client or an object. WAIT or
// WAITAOF follows a granting command in the same write, because it concerns the writes of its own connection.
// Thread-safe.
class ReplicaAcks {
public:
    explicit ReplicaAcks(const ClientOptions& options) : by_default_(settings_of(options).replication()) {}

    // Returns what must confirm the call.
    Replication wanted_for(const Call& call) const noexcept {
        return call.effect == Effect::grants ? call.replication.value_or(by_default_) : Replication{};
    }

    // Returns true if all replicas are required and their number at the master of this route is unknown.
    bool are_unknown(const Replication& wanted, std::uint32_t route) const {
        return wanted.required == all_replicas && known(route) == 0;
    }
    void forget() {
        const std::lock_guard lock(mutex_);
        known_.clear();
    }
    void learn(std::uint32_t route, const Reply& role) noexcept {
        if (role.kind != Reply::Kind::array || role.elements.size() != 3) return;
        try {
            const std::lock_guard lock(mutex_);
            std::size_t& known = known_[route];
            known = std::max(known, role.elements[2].elements.size());
        } catch (const std::bad_alloc&) {  // the next reply reports it again
        }
    }

    // A command and the queries sent with it. Must live until they are sent.
    class Batch {
    public:
        Batch(const ReplicaAcks& replicas, const Replication& by, const Command& command, std::uint32_t to)
            : route(to),
              wanted(by.required == all_replicas ? std::max<std::size_t>(1, replicas.known(to)) : by.required),
              on_disk(by.on_disk),
              number_(static_cast<std::int64_t>(wanted)),
              time_(by.within.count()),
              wait_{"WAIT", number_, time_},
              wait_aof_{"WAITAOF", "1", number_, time_},
              commands_{command, on_disk ? Command{wait_aof_, 0} : Command{wait_, 0}, Command{role_, 0}},
              size_(by.required == all_replicas ? 3 : 2) {}
        Batch(const Batch&) = delete;
        Batch& operator=(const Batch&) = delete;

        std::span<const Command> commands() const noexcept { return {commands_.data(), size_}; }

        const std::uint32_t route;
        const std::size_t wanted;
        const bool on_disk;

    private:
        const NumberText number_, time_;
        const std::array<std::string_view, 3> wait_;
        const std::array<std::string_view, 4> wait_aof_;
        const std::array<std::string_view, 1> role_{"ROLE"};
        const std::array<Command, 3> commands_;
        const std::size_t size_;
    };

    // Returns the reply to the command from the replies to a batch.
    Reply merged(std::span<Reply> replies, std::uint32_t route, std::size_t wanted, bool on_disk) noexcept {
        Reply reply = std::move(replies[0]);
        const Reply& confirmed = replies[1];
        const auto number = static_cast<std::int64_t>(wanted);
        if (on_disk) {
            const std::optional<Reply::Lacking> lacking = lacking_on_disk(confirmed, number);
            reply.replicated = !lacking;
            reply.lacking = lacking.value_or(Reply::Lacking::disk);
        } else {
            reply.replicated = confirmed.is_integer() && confirmed.integer >= number;
        }
        if (replies.size() > 2) learn(route, replies[2]);
        return reply;
    }

    // Returns one completion per command of a posted batch. `done` is called when all replies are there.
    std::vector<Completion> merging(const Batch& batch, Completion done) {
        struct Answers {
            std::vector<Reply> replies;
            std::atomic<std::size_t> missing;
            std::uint32_t route;
            std::size_t wanted;
            bool on_disk;
            Completion done;
        };
        const std::size_t size = batch.commands().size();
        auto answers = std::make_shared<Answers>();
        answers->replies.resize(size);
        answers->missing = size;
        answers->route = batch.route;
        answers->wanted = batch.wanted;
        answers->on_disk = batch.on_disk;
        answers->done = std::move(done);
        std::vector<Completion> receivers;
        for (std::size_t i = 0; i < size; ++i)
            receivers.push_back([this, answers, i](Reply reply) {
                answers->replies[i] = std::move(reply);
                // The replies may arrive on different threads.
                if (answers->missing.fetch_sub(1) == 1)
                    answers->done(merged(answers->replies, answers->route, answers->wanted, answers->on_disk));
            });
        return receivers;
    }

private:
    std::size_t known(std::uint32_t route) const {
        const std::lock_guard lock(mutex_);
        const auto entry = known_.find(route);
        return entry == known_.end() ? 0 : entry->second;
    }

    const Replication by_default_;
    mutable std::mutex mutex_;                    // guards known_
    std::map<std::uint32_t, std::size_t> known_;  // the most that the current master of each route has had
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
