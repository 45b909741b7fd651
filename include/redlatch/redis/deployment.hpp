// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/net/wake_pipe.hpp"
#include "redlatch/transport/transport.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The servers behind one URL, and the connections to them: Standalone, SentinelDeployment or Cluster. The functions mean
// what they mean in transport.hpp.
class Deployment {
public:
    Deployment() = default;
    Deployment(const Deployment&) = delete;
    Deployment& operator=(const Deployment&) = delete;
    virtual ~Deployment() = default;

    virtual Reply call(const Command& command, Instant deadline) = 0;
    virtual std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) = 0;
    virtual void post(const Command& command, Completion done) = 0;
    virtual void post_all(std::span<const Command> commands, std::span<Completion> done) = 0;
    virtual void post_attended(const Command& command, Completion done) = 0;
    virtual void attend() = 0;
    virtual void subscribe(const std::string& channel) = 0;
    virtual void unsubscribe(const std::string& channel) = 0;
    virtual void run(Listener& listener, Instant deadline) = 0;
    virtual bool watch(Listener& listener, Instant deadline, std::uint64_t seen) = 0;
    virtual void track(const Command& read, Completion done) = 0;
    virtual bool watch_invalidations(Listener& listener, Instant deadline, std::uint64_t seen) = 0;
    virtual std::uint32_t route(std::string_view key) const noexcept = 0;
    virtual std::string_view publish_command() = 0;

    // In the child after a fork: closes the descriptors and touches nothing else. Takes no lock, because a thread of the
    // parent may have held it.
    virtual void close_inherited() noexcept = 0;

    // Returns since when all command connections lead to one server: see TellsServer. Nothing in a cluster.
    virtual std::optional<Instant> same_server_since() const noexcept { return std::nullopt; }

    // Returns how many command connections were made, and below how many of them replaced an earlier one.
    virtual std::uint64_t connections() const = 0;
    virtual std::uint64_t reconnects() const = 0;

    void wake() noexcept { pipe_.wake(); }
    std::uint64_t interrupts() const noexcept { return interrupts_.count(); }
    void interrupt_watch() noexcept { interrupts_.wake(); }

protected:
    WakePipe pipe_;          // ends the poll() in run()
    Interrupts interrupts_;  // ends the poll() in watch()
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
