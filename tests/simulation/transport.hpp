// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/library.hpp"
#include "simulation/server.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

// A transport to a modelled server that acts like the hiredis one: the threads share some connections, another
// connection is for the subscriptions, and a thread that waits for a message may receive it itself. It needs no mutex,
// because no other fiber runs between two waits.
class Transport {
public:
    Transport(Server& server, int process, redlatch::Milliseconds timeout, bool lets_watch);
    Transport(Transport&&) noexcept;
    ~Transport();

    redlatch::Reply call(const redlatch::Command& command, redlatch::Instant deadline);
    std::vector<redlatch::Reply> call_all(std::span<const redlatch::Command> commands, redlatch::Instant deadline);
    void post(const redlatch::Command& command, redlatch::Completion done) { post(command, std::move(done), false); }
    void post_attended(const redlatch::Command& command, redlatch::Completion done) {
        post(command, std::move(done), true);
    }
    void attend();
    void subscribe(const std::string& channel);
    void unsubscribe(const std::string& channel);
    void run(redlatch::Listener& listener, redlatch::Instant deadline);
    void wake();
    bool watch(redlatch::Listener& listener, redlatch::Instant deadline, std::uint64_t seen);
    std::uint64_t interrupts() const;
    void interrupt_watch();
    std::uint32_t route(std::string_view) const { return 0; }
    std::string_view publish_command() const { return "PUBLISH"; }
    std::optional<redlatch::Instant> same_server_since() const { return redlatch::Instant{}; }
    Transport clone_after_fork() { std::terminate(); }

private:
    struct Exchange;
    struct Line;
    struct State;
    struct News;

    void post(const redlatch::Command& command, redlatch::Completion done, bool attended);
    Line& line();
    std::shared_ptr<Connection> reach(Nanos deadline);
    void attempt(Line& line, Nanos deadline);
    bool connect(Line& line, Nanos deadline);
    void put(Line& line, const std::shared_ptr<Exchange>& exchange);
    void fail(Line& line);
    void finish(const std::shared_ptr<Exchange>& exchange, redlatch::Reply reply);
    void complete(bool attended_too);
    void serve_lines(Nanos deadline, bool connects);
    void serve_subscriptions(Nanos deadline, bool connects);
    void deliver(redlatch::Listener& listener);
    Nanos due() const;
    bool has_work() const;

    std::unique_ptr<State> state_;
};

static_assert(redlatch::Transport<Transport>);

}  // namespace sim
