// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/redis/sentinels.hpp"
#include "redlatch/redis/standalone.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A Standalone whose one server is the present master, as the sentinels of the URL name it. It leaves its connections as
// soon as a sentinel announces another master, or the server answers as only a replica does.
class SentinelDeployment final : public Standalone {
public:
    SentinelDeployment(const Url& url, Milliseconds timeout)
        : Standalone(url, timeout,
                     [this](Connection& connection, Instant deadline) {
                         return sentinels_.open_master(connection, deadline);
                     }),
          sentinels_(url, [this] { wake(); }) {}

    // The connections ask the sentinels, which end before them.
    ~SentinelDeployment() override { finish(); }

    Reply call(const Command& command, Instant deadline) override {
        const std::uint64_t epoch = sentinels_.epoch();
        Reply reply = Standalone::call(command, deadline);
        check_for_failover(reply, epoch);
        return reply;
    }

    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) override {
        const std::uint64_t epoch = sentinels_.epoch();
        std::vector<Reply> replies = Standalone::call_all(commands, deadline);
        for (const Reply& reply : replies) check_for_failover(reply, epoch);
        return replies;
    }

    void post(const Command& command, Completion done) override {
        Standalone::post(command, with_failover_check(std::move(done)));
    }

    void post_all(std::span<const Command> commands, std::span<Completion> done) override {
        for (Completion& one : done) one = with_failover_check(std::move(one));
        Standalone::post_all(commands, done);
    }

    void post_attended(const Command& command, Completion done) override {
        Standalone::post_attended(command, with_failover_check(std::move(done)));
    }

    void run(Listener& listener, Instant deadline) override {
        follow(listener);
        Standalone::run(listener, deadline);
    }

    void close_inherited() noexcept override {
        Standalone::close_inherited();
        sentinels_.close_inherited();
    }

private:
    Instant watch_more(std::vector<pollfd>& ready) override { return sentinels_.watch(ready); }

    void serve_more(Listener& listener) override {
        sentinels_.serve();
        follow(listener);
    }

    // Leaves its connections at once, because perhaps no thread is inside run().
    void check_for_failover(const Reply& reply, std::uint64_t epoch) {
        if (!is_from_replica(reply)) return;
        sentinels_.doubt(epoch);
        leave_before(sentinels_.epoch());
    }

    Completion with_failover_check(Completion done) {
        return [this, epoch = sentinels_.epoch(), done = std::move(done)](Reply reply) {
            if (is_from_replica(reply)) sentinels_.doubt(epoch);
            done(std::move(reply));
        };
    }

    // Leaves the server that is no longer the master, and notifies the listener.
    void follow(Listener& listener) {
        const std::uint64_t epoch = sentinels_.epoch();
        if (epoch <= followed_) return;
        followed_ = epoch;
        leave_before(epoch, listener);
        listener.on_failover();
    }

    Sentinels sentinels_;
    std::uint64_t followed_ = 1;  // run()'s own: the epoch that the listener was last notified of
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
