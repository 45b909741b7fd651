// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/transport.hpp"

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

// A transport as the session sees it: the type of the client's transport ends here, so that nothing above is a
// template. transport.hpp documents the members. Each optional part that a transport lacks has the meaning given here.
class TransportPort {
public:
    virtual ~TransportPort() = default;

    virtual Reply call(const Command& command, Instant deadline) = 0;
    virtual std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) = 0;
    virtual void post(const Command& command, Completion done) = 0;
    virtual void subscribe(const std::string& channel) = 0;
    virtual void unsubscribe(const std::string& channel) = 0;
    virtual void run(Listener& listener, Instant deadline) = 0;
    virtual void wake() = 0;
    virtual std::uint32_t route(std::string_view key) = 0;
    virtual std::string_view publish_command() = 0;
    virtual std::unique_ptr<TransportPort> clone_after_fork() = 0;

    // LetsWatch. Without it the background thread receives all messages.
    virtual bool watch(Listener& listener, Instant deadline, std::uint64_t seen) = 0;
    virtual std::uint64_t interrupts() = 0;
    virtual void interrupt_watch() = 0;

    // LetsAttend. Without it the background thread receives the replies to posted commands.
    virtual void post_attended(const Command& command, Completion done) = 0;
    virtual void attend() = 0;
    virtual void stop_attending() = 0;

    // PostsSeveral. Without it require_replicas and require_fsync are refused.
    virtual bool posts_several() const = 0;
    virtual void post_all(std::span<const Command> commands, std::span<Completion> done) = 0;

    // Tracks. Without it a Mutex and a SpinLock poll.
    virtual bool can_track() const = 0;
    virtual void track(const Command& read, Completion done) = 0;
    virtual bool watch_invalidations(Listener& listener, Instant deadline, std::uint64_t seen) = 0;

    // TellsServer. Without it a Mutex is acquired by a script.
    virtual std::optional<Instant> same_server_since() const = 0;

    // Return how often the transport has connected again, and connected at all, if it counts that.
    virtual std::uint64_t reconnects() const = 0;
    virtual std::optional<std::uint64_t> connections() const = 0;
};

template <Transport T>
class TransportPortOf final : public TransportPort {
public:
    explicit TransportPortOf(T transport) : transport_(std::move(transport)) {}

    Reply call(const Command& command, Instant deadline) override { return transport_.call(command, deadline); }
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) override {
        return transport_.call_all(commands, deadline);
    }
    void post(const Command& command, Completion done) override { transport_.post(command, std::move(done)); }
    void subscribe(const std::string& channel) override { transport_.subscribe(channel); }
    void unsubscribe(const std::string& channel) override { transport_.unsubscribe(channel); }
    void run(Listener& listener, Instant deadline) override { transport_.run(listener, deadline); }
    void wake() override { transport_.wake(); }
    std::uint32_t route(std::string_view key) override { return transport_.route(key); }
    std::string_view publish_command() override { return transport_.publish_command(); }
    std::unique_ptr<TransportPort> clone_after_fork() override {
        return std::make_unique<TransportPortOf>(transport_.clone_after_fork());
    }

    bool watch(Listener& listener, Instant deadline, std::uint64_t seen) override {
        if constexpr (LetsWatch<T>) return transport_.watch(listener, deadline, seen);
        return false;
    }
    std::uint64_t interrupts() override {
        if constexpr (LetsWatch<T>) return transport_.interrupts();
        return 0;
    }
    void interrupt_watch() override {
        if constexpr (LetsWatch<T>) transport_.interrupt_watch();
    }

    void post_attended(const Command& command, Completion done) override {
        if constexpr (LetsAttend<T>)
            transport_.post_attended(command, std::move(done));
        else
            transport_.post(command, std::move(done));
    }
    void attend() override {
        if constexpr (LetsAttend<T>) transport_.attend();
    }
    void stop_attending() override {
        if constexpr (LetsAttend<T>) transport_.wake();
    }

    bool posts_several() const override { return PostsSeveral<T>; }
    void post_all(std::span<const Command> commands, std::span<Completion> done) override {
        if constexpr (PostsSeveral<T>) transport_.post_all(commands, done);
    }

    bool can_track() const override { return Tracks<T>; }
    void track(const Command& read, Completion done) override {
        if constexpr (Tracks<T>) transport_.track(read, std::move(done));
    }
    bool watch_invalidations(Listener& listener, Instant deadline, std::uint64_t seen) override {
        if constexpr (Tracks<T>) return transport_.watch_invalidations(listener, deadline, seen);
        return false;
    }

    std::optional<Instant> same_server_since() const override {
        if constexpr (TellsServer<T>) return transport_.same_server_since();
        return std::nullopt;
    }

    std::uint64_t reconnects() const override {
        if constexpr (requires { transport_.reconnects(); }) return transport_.reconnects();
        return 0;
    }
    std::optional<std::uint64_t> connections() const override {
        if constexpr (requires { transport_.connections(); }) return transport_.connections();
        return std::nullopt;
    }

private:
    T transport_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
