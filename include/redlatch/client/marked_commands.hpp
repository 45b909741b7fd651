// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/request_lanes.hpp"
#include "redlatch/client/runtime.hpp"
#include "redlatch/core/ids.hpp"
#include "redlatch/core/names.hpp"
#include "redlatch/scripts/request_marks.hpp"

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

// Sends the scripts that use scripts/request_marks.hpp. Their first keys are the primitive's own and that of the marks,
// their first arguments lane, request and TTL of the marks.
template <Transport T>
class MarkedCommands {
public:
    MarkedCommands(Runtime<T>& runtime, std::string key, std::string_view marks_prefix)
        : runtime_(runtime),
          key_(std::move(key)),
          marks_(prefixed_key(marks_prefix, key_) + ":" + runtime.uuid()),
          ttl_(marks_ttl(runtime.options()).count()) {}

    const std::string& key() const noexcept { return key_; }
    Runtime<T>& runtime() const noexcept { return runtime_; }

    // How long marks stay. A command is sent again for at most half of it.
    static Milliseconds marks_ttl(const ClientOptions& options) {
        constexpr Milliseconds least = std::chrono::minutes(2), most = std::chrono::hours(1);
        return options.unreachable_timeout > most / 4 ? most : std::max(least, options.unreachable_timeout * 4);
    }

    template <std::size_t K, std::size_t A>
    Reply call(const Script& script, const Ticket& ticket, const std::array<std::string_view, K>& more_keys,
               const std::array<std::string_view, A>& more_arguments, Instant deadline,
               Effect effect = Effect::any) const {
        std::array<std::string_view, K + 2> keys;
        std::array<std::string_view, A + 3> arguments;
        const NumberText lane(ticket.lane), request(static_cast<std::int64_t>(ticket.request));
        fill(keys, more_keys, arguments, more_arguments, lane, request);
        return runtime_.call_script(script, keys, arguments, deadline, effect);
    }

    // For many arguments.
    template <std::size_t K>
    Reply call(const Script& script, const Ticket& ticket, const std::array<std::string_view, K>& more_keys,
               std::span<const std::string_view> more_arguments, Instant deadline, Effect effect = Effect::any) const {
        std::array<std::string_view, K + 2> keys;
        std::vector<std::string_view> arguments(more_arguments.size() + 3);
        const NumberText lane(ticket.lane), request(static_cast<std::int64_t>(ticket.request));
        fill(keys, more_keys, arguments, more_arguments, lane, request);
        return runtime_.call_script(script, keys, arguments, deadline, effect);
    }

    template <std::size_t K>
    void post(const Script& script, const Ticket& ticket, const std::array<std::string_view, K>& more_keys,
              std::span<const std::string_view> more_arguments, Completion done) const {
        std::array<std::string_view, K + 2> keys;
        std::vector<std::string_view> arguments(more_arguments.size() + 3);
        const NumberText lane(ticket.lane), request(static_cast<std::int64_t>(ticket.request));
        fill(keys, more_keys, arguments, more_arguments, lane, request);
        runtime_.post_script(script, keys, arguments, std::move(done));
    }

    // A request whose sender has given up is carried out by now, or never.
    void post_void(const Ticket& ticket, Completion done) const {
        const NumberText lane(ticket.lane), request(static_cast<std::int64_t>(ticket.request));
        runtime_.post_script(digested<scripts::request_void>, std::array<std::string_view, 1>{marks_},
                             std::array<std::string_view, 3>{lane, request, ttl_}, std::move(done));
    }

    std::string_view publish() const { return runtime_.transport().publish_command(); }

private:
    template <class Keys, class MoreKeys, class Arguments, class MoreArguments>
    void fill(Keys& keys, const MoreKeys& more_keys, Arguments& arguments, const MoreArguments& more_arguments,
              const NumberText& lane, const NumberText& request) const {
        keys[0] = key_;
        keys[1] = marks_;
        std::copy(more_keys.begin(), more_keys.end(), keys.begin() + 2);
        arguments[0] = lane;
        arguments[1] = request;
        arguments[2] = ttl_;
        std::copy(more_arguments.begin(), more_arguments.end(), arguments.begin() + 3);
    }

    Runtime<T>& runtime_;
    const std::string key_;
    const std::string marks_;
    const NumberText ttl_;
};

// A flag in a script's arguments.
constexpr std::string_view flag_text(bool flag) { return flag ? "1" : "0"; }

}  // namespace redlatch
