// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/adapters/command_link.hpp"
#include "redlatch/adapters/subscriber_link.hpp"
#include "redlatch/adapters/wake_pipe.hpp"
#include "redlatch/core/ids.hpp"
#include "redlatch/core/url.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {

// The Transport over one Redis server, on hiredis (0.14.1 or newer).
//
// Up to `lines` connections carry the commands of all threads, each thread always on the same one; they are opened
// when first needed, so a program of one thread has one. One more carries the subscriptions. After a time-out or a
// malformed reply a connection is closed and never reused; it is opened again with exponential back-off and jitter,
// logged in as before. There is no thread here: see run().
class HiredisTransport {
public:
    static constexpr std::size_t lines = 4;

    // Connects to nothing yet. `command_timeout`: how long a server may take to answer before its connection is
    // taken for dead.
    explicit HiredisTransport(Url url, Milliseconds command_timeout = std::chrono::seconds(3))
        : state_(std::make_unique<State>(std::move(url), command_timeout)) {}

    Reply call(const Command& command, Instant deadline) { return line().call(command, deadline); }

    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        return line().call_all(commands, deadline);
    }

    void post(const Command& command, Completion done) { line().post(command, std::move(done)); }

    void post_attended(const Command& command, Completion done) { line().post(command, std::move(done), true); }
    void attend() { line().attend(); }

    void subscribe(const std::string& channel) {
        state_->subscriber.subscribe(channel);
        wake();
    }

    void unsubscribe(const std::string& channel) {
        state_->subscriber.unsubscribe(channel);
        wake();
    }

    // One round of poll() over the subscriber connection and those command connections that nobody else reads.
    void run(Listener& listener, Instant deadline) {
        State& s = *state_;
        std::array<pollfd, lines + 2> ready;
        nfds_t count = 0;
        ready[count++] = {s.pipe.fd(), POLLIN, 0};
        const SubscriberLink::Duty duty = s.subscriber.duty();
        Instant due = std::min(deadline, duty.due);
        if (duty.fd >= 0) ready[count++] = {duty.fd, POLLIN, 0};
        for (CommandLink& link : s.links) {
            const CommandLink::Watch watch = link.watch();
            due = std::min(due, watch.due);
            if (watch.fd >= 0) ready[count++] = {watch.fd, POLLIN, 0};
        }
        ::poll(ready.data(), count, poll_timeout(due));
        s.pipe.drain();
        s.subscriber.serve(listener, deadline);
        for (CommandLink& link : s.links) link.drive(deadline);
    }

    void wake() { state_->pipe.wake(); }

    bool watch(Listener& listener, Instant deadline) {
        State& s = *state_;
        const SubscriberLink::Watch outcome = s.subscriber.watch(listener, deadline, s.watch_pipe);
        if (outcome == SubscriberLink::Watch::lost) wake();
        return outcome == SubscriberLink::Watch::done;
    }

    void interrupt_watch() { state_->watch_pipe.wake(); }

    // A single server: every key may meet every other.
    std::uint32_t route(std::string_view) const noexcept { return 0; }
    std::string_view publish_command() const noexcept { return "PUBLISH"; }

    HiredisTransport reborn() {
        for (CommandLink& link : state_->links) link.close_inherited();
        state_->subscriber.close_inherited();
        return HiredisTransport(state_->url, state_->timeout);
    }

    // How many connections for commands were made so far, and how many of them in the place of an earlier one.
    std::uint64_t connections() const noexcept {
        std::uint64_t sum = 0;
        for (const CommandLink& link : state_->links) sum += link.connections();
        return sum;
    }

    std::uint64_t reconnects() const noexcept {
        std::uint64_t sum = 0;
        for (const CommandLink& link : state_->links) sum += std::max<std::uint64_t>(link.connections(), 1) - 1;
        return sum;
    }

private:
    // Behind a pointer, so that a transport can be moved before its first use.
    struct State {
        State(Url where, Milliseconds command_timeout)
            : url(std::move(where)), timeout(command_timeout), subscriber(url, timeout) {}

        const Url url;
        const Milliseconds timeout;
        WakePipe pipe;
        WakePipe watch_pipe;
        SubscriberLink subscriber;
        std::array<CommandLink, lines> links = make_links(std::make_index_sequence<lines>());

    private:
        template <std::size_t... I>
        std::array<CommandLink, lines> make_links(std::index_sequence<I...>) {
            return {((void)I, CommandLink(url, timeout, [this] { pipe.wake(); }))...};
        }
    };

    CommandLink& line() { return state_->links[this_thread_number() % lines]; }

    std::unique_ptr<State> state_;
};

static_assert(Transport<HiredisTransport>);

}  // namespace redlatch
