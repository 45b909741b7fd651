// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/protocol/idempotency.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/scripts/semaphore.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Builds the commands of the semaphore: the keys and arguments of its scripts.
template <Transport T>
class SemaphoreProtocol {
public:
    static constexpr std::string_view kind = "semaphore ";
    static constexpr bool takes = true;
    static constexpr std::size_t most_at_once = 100;
    static constexpr bool takes_back_by_mark = true;

    struct Want {
        std::int64_t permits = 1;  // at least one
        bool served = false;
        bool lets_pass = false;  // True if callers behind it may be served when there is not enough for it

        std::int64_t amount() const { return permits; }
    };

    SemaphoreProtocol(Session<T>& session, std::string key)
        : commands_(session, std::move(key), "redlatch_semaphore_requests"),
          channel_(prefixed_key("redisson_sc", commands_.key())) {}

    const IdempotentCommands<T>& commands() const noexcept { return commands_; }
    const std::string& key() const noexcept { return commands_.key(); }
    const std::string& channel() const noexcept { return channel_; }

    Reply ask(std::span<const Want> wants, const RequestId& ticket, Instant deadline) {
        constexpr std::array<std::string_view, 0> no_keys{};
        if (wants.size() == 1)
            return commands_.call(digested<scripts::semaphore_acquire>, ticket, no_keys,
                                  std::array<std::string_view, 1>{NumberText(wants[0].permits)}, deadline,
                                  Effect::grants);
        std::vector<NumberText> numbers;
        numbers.reserve(wants.size());
        std::vector<std::string_view> arguments;
        for (const Want& want : wants)
            arguments.push_back(numbers.emplace_back(want.lets_pass ? -want.permits : want.permits));
        return commands_.call(digested<scripts::semaphore_acquire>, ticket, no_keys,
                              std::span(std::as_const(arguments)), deadline, Effect::grants);
    }

    Answer decode(const Reply& reply, std::span<Want> wants) const {
        if (!reply.is_integer() || !share(std::max<std::int64_t>(reply.integer, 0), wants) ||
            reply.integer <= -wants.front().permits)
            throw unexpected(reply, key());
        return {Milliseconds::max(), -reply.integer};
    }

    void post_take_back(const RequestId& ticket, std::span<const Want>, Completion done) {
        commands_.post(digested<scripts::semaphore_give_back>, ticket, std::array<std::string_view, 1>{channel_},
                       std::array<std::string_view, 1>{commands_.publish()}, std::move(done));
    }

    void post_return(const RequestId& ticket, std::span<const Want> wants, Completion done) {
        std::int64_t permits = 0;
        for (const Want& want : wants) permits += want.permits;
        post_add(ticket, permits, true, std::move(done));
    }

    Reply add(const RequestId& ticket, std::int64_t permits, bool only_existing, Instant deadline) {
        return commands_.call(
            digested<scripts::semaphore_add>, ticket, std::array<std::string_view, 1>{channel_},
            std::array<std::string_view, 3>{NumberText(permits), commands_.publish(), flag_text(only_existing)},
            deadline);
    }

    void post_add(const RequestId& ticket, std::int64_t permits, bool only_existing, Completion done) {
        commands_.post(
            digested<scripts::semaphore_add>, ticket, std::array<std::string_view, 1>{channel_},
            std::array<std::string_view, 3>{NumberText(permits), commands_.publish(), flag_text(only_existing)},
            std::move(done));
    }

    Reply set(const RequestId& ticket, std::int64_t permits, Instant deadline) {
        return commands_.call(digested<scripts::semaphore_set>, ticket, std::array<std::string_view, 1>{channel_},
                              std::array<std::string_view, 2>{NumberText(permits), commands_.publish()}, deadline);
    }

    Reply drain(const RequestId& ticket, Instant deadline) {
        return commands_.call(digested<scripts::semaphore_drain>, ticket, std::array<std::string_view, 0>{},
                              std::array<std::string_view, 0>{}, deadline);
    }

private:
    const IdempotentCommands<T> commands_;
    const std::string channel_;
};

}  // namespace v0_1
}  // namespace redlatch
