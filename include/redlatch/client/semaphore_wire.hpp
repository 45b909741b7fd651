// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/marked_commands.hpp"
#include "redlatch/client/retry.hpp"
#include "redlatch/scripts/semaphore.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {

// The commands of the semaphore: keys and arguments of its scripts.
template <Transport T>
class SemaphoreWire {
public:
    static constexpr std::string_view kind = "semaphore ";
    static constexpr bool takes = true;
    static constexpr std::size_t most_at_once = 100;

    struct Want {
        std::int64_t permits = 1;  // at least one
        bool served = false;
    };

    SemaphoreWire(Runtime<T>& runtime, std::string key)
        : commands_(runtime, std::move(key), "redlatch_semaphore_requests"),
          channel_(prefixed_key("redisson_sc", commands_.key())) {}

    const MarkedCommands<T>& commands() const noexcept { return commands_; }
    const std::string& key() const noexcept { return commands_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Reply ask(std::span<const Want> wants, const Ticket& ticket, bool again, Instant deadline) {
        constexpr std::array<std::string_view, 0> no_keys{};
        if (wants.size() == 1)
            return commands_.call(digested<scripts::semaphore_acquire>, ticket, no_keys,
                                  std::array<std::string_view, 2>{flag_text(again), NumberText(wants[0].permits)},
                                  deadline, Effect::grants);
        std::vector<NumberText> numbers;
        numbers.reserve(wants.size());
        std::vector<std::string_view> arguments{flag_text(again)};
        for (const Want& want : wants) arguments.push_back(numbers.emplace_back(want.permits));
        return commands_.call(digested<scripts::semaphore_acquire>, ticket, no_keys,
                              std::span(std::as_const(arguments)), deadline, Effect::grants);
    }

    // The first ones are served, as far as the permits that were taken go round.
    Milliseconds decode(const Reply& reply, std::span<Want> wants) const {
        if (!reply.is_integer() || reply.integer < 0) throw unexpected(reply, key());
        std::int64_t left = reply.integer;
        for (Want& want : wants) {
            want.served = left > 0;
            if (want.served) left -= want.permits;
        }
        if (left != 0) throw unexpected(reply, key());
        return Milliseconds::max();
    }

    void post_take_back(const Ticket& ticket, std::span<const Want>, Completion done) {
        commands_.post(digested<scripts::semaphore_give_back>, ticket, std::array<std::string_view, 1>{channel_},
                       std::array<std::string_view, 1>{commands_.publish()}, std::move(done));
    }

    void post_return(const Ticket& ticket, std::span<const Want> wants, bool again, Completion done) {
        std::int64_t permits = 0;
        for (const Want& want : wants) permits += want.permits;
        post_add(ticket, permits, true, again, std::move(done));
    }

    Reply add(const Ticket& ticket, std::int64_t permits, bool only_existing, bool again, Instant deadline) {
        return commands_.call(digested<scripts::semaphore_add>, ticket, std::array<std::string_view, 1>{channel_},
                              std::array<std::string_view, 4>{NumberText(permits), commands_.publish(),
                                                              flag_text(only_existing), flag_text(again)},
                              deadline);
    }

    void post_add(const Ticket& ticket, std::int64_t permits, bool only_existing, bool again, Completion done) {
        commands_.post(digested<scripts::semaphore_add>, ticket, std::array<std::string_view, 1>{channel_},
                       std::array<std::string_view, 4>{NumberText(permits), commands_.publish(),
                                                       flag_text(only_existing), flag_text(again)},
                       std::move(done));
    }

    Reply set(const Ticket& ticket, std::int64_t permits, bool again, Instant deadline) {
        return commands_.call(
            digested<scripts::semaphore_set>, ticket, std::array<std::string_view, 1>{channel_},
            std::array<std::string_view, 3>{NumberText(permits), commands_.publish(), flag_text(again)}, deadline);
    }

    Reply drain(const Ticket& ticket, bool again, Instant deadline) {
        return commands_.call(digested<scripts::semaphore_drain>, ticket, std::array<std::string_view, 0>{},
                              std::array<std::string_view, 1>{flag_text(again)}, deadline);
    }

private:
    const MarkedCommands<T> commands_;
    const std::string channel_;
};

}  // namespace redlatch
