// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/transport/reply.hpp"

#include <charconv>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Reads the reply to TIME. Returns nothing if it is malformed.
inline std::optional<ServerMilliseconds> read_time(const Reply& reply) {
    if (reply.kind != Reply::Kind::array || reply.elements.size() != 2) return std::nullopt;
    ServerMilliseconds parts[2];
    for (int i = 0; i < 2; ++i) {
        const std::string_view text = reply.elements[static_cast<std::size_t>(i)].text;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parts[i]);
        if (error != std::errc{} || end != text.data() + text.size() || !is_plausible(parts[i])) return std::nullopt;
    }
    const ServerMilliseconds time = parts[0] * 1000 + parts[1] / 1000;
    return is_plausible(time) ? std::optional(time) : std::nullopt;
}

// Reads the server's time in ms after a word.
inline std::optional<ServerMilliseconds> read_time_after(std::string_view word, std::string_view text) {
    if (!text.starts_with(word)) return std::nullopt;
    ServerMilliseconds now = 0;
    const char* const first = text.data() + word.size();
    const auto [end, error] = std::from_chars(first, text.data() + text.size(), now);
    if (error != std::errc{} || end == first || !is_plausible(now)) return std::nullopt;
    return now;
}

// Reads the reply of a script that arrived after the time until which it was wanted: "LATE <the server's time in ms>".
inline std::optional<ServerMilliseconds> read_late(const Reply& reply) {
    return reply.is_error() ? read_time_after("LATE ", reply.text) : std::nullopt;
}

// Reads the reply of a script that succeeded and reports its time: "OK <the server's time in ms>".
inline std::optional<ServerMilliseconds> read_in_time(const Reply& reply) {
    return reply.kind == Reply::Kind::text ? read_time_after("OK ", reply.text) : std::nullopt;
}

// Estimates the clock of a server. The estimate is never behind the server's own clock unless that clock has jumped
// since the reading. So a command that is wanted for one more second is not void before that second is over.
//
// One reading serves all routes. The nodes of a cluster may have different clocks, so a node that turns out to differ
// gets a reading of its own, and so does one whose grants are to count. A reading is valid only for a while, because
// clocks drift. Only the time at which a command becomes void depends on its accuracy: each script checks the server's
// own clock.
//
// Thread-safe: mutex_ guards all members. No thread waits here.
class RemoteClock {
public:
    static constexpr Milliseconds good_for = std::chrono::minutes(5);
    // A reply that took longer than this makes every grant look old: its reading vouches for none.
    static constexpr Milliseconds vouches_up_to{1000};
    // News that is older proves nothing: the server's clock may have jumped forward by about as long as the news was late.
    static constexpr Milliseconds news_for{200};

    // Returns the server's time, or nothing if the server has to be queried first.
    std::optional<ServerMilliseconds> at(std::uint32_t route, Instant instant) const {
        const std::lock_guard lock(mutex_);
        if (in_doubt_ || instant - reading_.at > good_for) return std::nullopt;
        return offset_of(route) + since_epoch(instant);
    }

    // Returns the server's time from a reading of any age, or nothing if there is none.
    std::optional<ServerMilliseconds> roughly_at(std::uint32_t route, Instant instant) const {
        const std::lock_guard lock(mutex_);
        if (reading_.at == Instant{}) return std::nullopt;
        return offset_of(route) + since_epoch(instant);
    }

    // The server's clock, from a reading that vouches for it.
    struct Bounds {
        ServerMilliseconds least;  // it has reached this time
        Milliseconds error;        // it is ahead of that by less than this, and 1 ms
        Clock::duration age;       // of the reading
    };

    // Returns bounds of the server's time, from a reading that was asked for after `since`. Nothing if there is no such
    // reading that vouches for them.
    std::optional<Bounds> bounds_at(std::uint32_t route, Instant instant, Instant since = {}) const {
        const std::lock_guard lock(mutex_);
        const Reading* const reading = vouching(route, instant);
        if (!reading || reading->at <= since) return std::nullopt;
        // The reply took time, and the reading has aged since. Clocks drift by less than one part in a thousand.
        const Clock::duration age = instant - reading->at;
        const Milliseconds error =
            reading->took + std::chrono::duration_cast<Milliseconds>(age) / 1000 + Milliseconds(2);
        return Bounds{reading->offset + since_epoch(instant) - error.count(), error, age};
    }

    // Returns the earliest instant at which the server's clock can have shown `time`, of which a message tells. The time
    // has to be plausible. Nothing if no reading vouches for it, or if the clock may have jumped forward since the reading:
    //   - The message comes from the future: it is late by less than the jump. That puts the reading in doubt.
    //   - The message is old, and a jump makes it look younger than it is.
    // A jump stays unnoticed only if it is as long as the message was late, within news_for and the error of the reading.
    std::optional<Instant> instant_of(std::uint32_t route, ServerMilliseconds time, Instant now) {
        const std::lock_guard lock(mutex_);
        const Reading* const reading = vouching(route, now);
        if (!reading) return std::nullopt;
        const Clock::duration drift = (now - reading->at) / 1000;
        const Instant earliest = Instant(Milliseconds(time - reading->offset)) - drift;
        const Instant latest = earliest + 2 * drift + reading->took + Milliseconds(2);
        if (earliest > now) doubt_all();
        if (earliest > now || latest < now - news_for) return std::nullopt;
        return earliest;
    }

    // Records the server's time from a command that was sent at `asked` and answered at `answered`. If the reply took long,
    // the server's clock may be far behind what it tells: an earlier reading with which it agrees is closer.
    void learn(std::uint32_t route, const SendTime& asked, Instant answered, ServerMilliseconds time) {
        // Add one, because the server truncates to milliseconds.
        Reading reading{time + 1 - since_epoch(asked.at()), asked.at(),
                        std::chrono::ceil<Milliseconds>(answered - asked.at()), asked.suspended()};
        const std::lock_guard lock(mutex_);
        const Reading* const known = reading_of(route);
        if (known && reading.took > vouches_up_to && reading.agrees_with(*known)) {
            if (!in_doubt_) return;
            // The new one vouches for nothing all the same. If the clock is another one, and ahead, LATE will tell.
            reading.offset = known->offset;
        }
        if (in_doubt_ || route == route_ || reading.at - reading_.at > good_for) {
            reading_ = reading;
            route_ = route;
            in_doubt_ = false;
        } else {
            others_[route] = reading;
        }
    }

    // Puts the reading in doubt: another server may answer from here on, or this one with another clock.
    void doubt() {
        const std::lock_guard lock(mutex_);
        doubt_all();
    }

    // Called when a connection is lost. The next one may lead to another server, with another clock: earlier readings no
    // longer vouch for what it tells. They still time commands, because the server checks those.
    void disconnected() {
        const std::lock_guard lock(mutex_);
        disconnected_at_ = Clock::now();
    }

private:
    void doubt_all() {
        in_doubt_ = true;
        others_.clear();
    }

    static ServerMilliseconds since_epoch(Instant instant) {
        return std::chrono::floor<Milliseconds>(instant.time_since_epoch()).count();
    }

    struct Reading {
        ServerMilliseconds offset = 0;  // added to the milliseconds of the steady clock
        Instant at{};                   // when the server was asked; in the past while there is no reading
        Milliseconds took{0};           // from the question to the reply
        Clock::duration suspended{};    // the machine's suspended time when the server was asked

        // Returns true if an earlier reading that is still good is as close to the server's clock as this one, or closer.
        bool agrees_with(const Reading& earlier) const {
            return at - earlier.at <= good_for && was_running_since(earlier.suspended) && earlier.offset <= offset &&
                   earlier.offset >= offset - took.count() - 1;
        }
    };

    // Returns the reading of this route's own, or null.
    const Reading* reading_of(std::uint32_t route) const {
        if (route == route_) return &reading_;
        const auto other = others_.find(route);
        return other == others_.end() ? nullptr : &other->second;
    }

    // Returns the reading of this route's own if it vouches for what the server's clock shows, or null. Another node may
    // have another clock, and so may a server that was reached by an earlier connection.
    const Reading* vouching(std::uint32_t route, Instant instant) const {
        const Reading* const reading = reading_of(route);
        if (in_doubt_ || !reading || instant - reading->at > good_for || reading->at <= disconnected_at_)
            return nullptr;
        return reading->took <= vouches_up_to && was_running_since(reading->suspended) ? reading : nullptr;
    }

    ServerMilliseconds offset_of(std::uint32_t route) const {
        const Reading* const own = reading_of(route);
        return (own ? *own : reading_).offset;
    }

    mutable std::mutex mutex_;
    Reading reading_;  // serves all routes without one of their own
    bool in_doubt_ = true;
    Instant disconnected_at_{};  // when a connection was lost last
    std::uint32_t route_ = 0;    // of reading_
    std::unordered_map<std::uint32_t, Reading> others_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
