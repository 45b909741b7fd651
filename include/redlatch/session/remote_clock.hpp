// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/transport/reply.hpp"

#include <charconv>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace redlatch {
inline namespace v0_1 {

// Milliseconds since 1970 by a server's clock.
using ServerMilliseconds = std::int64_t;

// The answer to TIME; nothing where it is none.
inline std::optional<ServerMilliseconds> read_time(const Reply& reply) {
    if (reply.kind != Reply::Kind::array || reply.elements.size() != 2) return std::nullopt;
    ServerMilliseconds parts[2];
    for (int i = 0; i < 2; ++i) {
        const std::string_view text = reply.elements[static_cast<std::size_t>(i)].text;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parts[i]);
        if (error != std::errc{} || end != text.data() + text.size() || parts[i] < 0) return std::nullopt;
    }
    return parts[0] * 1000 + parts[1] / 1000;
}

// What a script says that came after the instant until which it was wanted: "LATE <the server's time in ms>".
inline std::optional<ServerMilliseconds> read_late(const Reply& reply) {
    constexpr std::string_view word = "LATE ";
    if (!reply.is_error() || !reply.text.starts_with(word)) return std::nullopt;
    ServerMilliseconds now = 0;
    const char* const first = reply.text.data() + word.size();
    const auto [end, error] = std::from_chars(first, reply.text.data() + reply.text.size(), now);
    if (error != std::errc{} || end == first || now < 0) return std::nullopt;
    return now;
}

// What a server's clock shows, as far as this client can tell. It is never behind the server's own clock unless that has
// jumped since it was read. So a command that is wanted for a second more is not void before that second is over.
//
// One reading serves all routes. The nodes of a cluster may have different clocks: a node whose clock shows something
// else gets a reading of its own. A reading is good for a while, because clocks drift. Nothing depends on its being
// right but how soon a command becomes void: each script looks at the server's own clock.
//
// Thread-safe: mutex_ guards all members. Nobody waits here.
class RemoteClock {
public:
    static constexpr Milliseconds good_for = std::chrono::minutes(5);

    // Nothing when the server has to be asked first.
    std::optional<ServerMilliseconds> at(std::uint32_t route, Instant instant) const {
        const std::lock_guard lock(mutex_);
        if (in_doubt_ || instant - read_at_ > good_for) return std::nullopt;
        return offset_of(route) + since_epoch(instant);
    }

    // The same from an old reading, where that is better than none.
    std::optional<ServerMilliseconds> roughly_at(std::uint32_t route, Instant instant) const {
        const std::lock_guard lock(mutex_);
        if (read_at_ == Instant{}) return std::nullopt;
        return offset_of(route) + since_epoch(instant);
    }

    // A command that was sent at `asked`, and answered at `answered`, found this time.
    void learn(std::uint32_t route, Instant asked, Instant answered, ServerMilliseconds time) {
        // One more, because the server leaves out what is less than a millisecond.
        const ServerMilliseconds offset = time + 1 - since_epoch(asked);
        const std::lock_guard lock(mutex_);
        if (in_doubt_ || route == route_) {
            offset_ = offset;
            read_at_ = asked;
            uncertainty_ = std::chrono::ceil<Milliseconds>(answered - asked);
            route_ = route;
            in_doubt_ = false;
        } else {
            others_[route] = offset;
        }
    }

    // Since when the reading in use is known; the past when there is none.
    Instant read_at() const {
        const std::lock_guard lock(mutex_);
        return read_at_;
    }

    // How long the answer took: by so much the server's clock may be behind what is known of it.
    Milliseconds uncertainty() const {
        const std::lock_guard lock(mutex_);
        return uncertainty_;
    }

    // Another server may answer from here on, or this one with another clock.
    void doubt() {
        const std::lock_guard lock(mutex_);
        in_doubt_ = true;
        others_.clear();
    }

private:
    static ServerMilliseconds since_epoch(Instant instant) {
        return std::chrono::floor<Milliseconds>(instant.time_since_epoch()).count();
    }

    ServerMilliseconds offset_of(std::uint32_t route) const {
        if (others_.empty() || route == route_) return offset_;
        const auto other = others_.find(route);
        return other == others_.end() ? offset_ : other->second;
    }

    mutable std::mutex mutex_;
    ServerMilliseconds offset_ = 0;  // to be added to the steady clock's milliseconds
    Instant read_at_{};              // the past while there is no reading
    Milliseconds uncertainty_{0};
    bool in_doubt_ = true;
    std::uint32_t route_ = 0;  // of which it was read
    std::unordered_map<std::uint32_t, ServerMilliseconds> others_;
};

}  // namespace v0_1
}  // namespace redlatch
