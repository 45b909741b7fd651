// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace redlatch::test {

/// The state of a connection after its message was dropped.
enum class Then {
    close,   // it is closed at both ends
    silence  // it stays open, but nothing more passes in that direction, not even its end: a dead link
};

/// A fault for the next requests that contain certain bytes; of the last two kinds, for what the server sends.
struct ProxyRule {
    enum class Fault { drop_request, drop_reply, hold_request, hold_reply, drop_message, hold_message };

    Fault fault = Fault::drop_reply;
    std::string containing = {};  // empty: any request
    int count = 1;                // how many requests it affects
    int after = 0;                // how many it lets pass before
    Then then = Then::close;
    std::size_t bytes = 0;  // of a dropped message with Then::close: how many of its bytes pass before the cut
    std::optional<std::chrono::milliseconds> hold_for = {};  // of a held message: how long; empty: until release()
};

/// Counters of a proxy.
struct ProxyCounts {
    std::uint64_t accepted = 0;  // connections, in total
    std::uint64_t refused = 0;   // connections closed at once
    std::uint64_t open = 0;      // connections, now
    std::uint64_t bytes_to_server = 0;
    std::uint64_t bytes_to_client = 0;
    std::uint64_t matched = 0;   // requests that a rule matched
    std::uint64_t messages = 0;  // messages that a rule matched
    std::uint64_t dropped = 0;   // requests, replies and messages that were dropped or cut
    std::uint64_t held = 0;      // connections that currently hold a request or reply back
};

/// Requests that a proxy held back, and that it sent to the server when it let them go.
struct LateArrival {
    std::int64_t at = 0;  // nanoseconds of CLOCK_MONOTONIC
    std::string bytes;    // all that waited on the connection
};

/// The rules of a proxy that have not been used up.
class ProxyRules {
public:
    void add(ProxyRule rule) { rules_.push_back(std::move(rule)); }
    void clear() { rules_.clear(); }

    template <class Condition>
    void clear_if(Condition condition) {
        std::erase_if(rules_, condition);
    }

    /// Returns the rule that matches these bytes, if any. The window belongs to one connection. It keeps the last bytes
    /// sent before, as many as a match may need that is split over two reads.
    std::optional<ProxyRule> match(std::string& window, const std::string& bytes) {
        const std::string text = window + bytes;
        const std::size_t old = window.size();
        std::size_t longest = 1;
        std::optional<ProxyRule> struck;
        for (ProxyRule& rule : rules_) {
            const std::size_t size = rule.containing.size();
            longest = std::max(longest, size);
            std::size_t at = old + 1 > size ? old + 1 - size : 0;  // a match must contain a new byte
            if (size == 0) at = text.size();                       // any request matches once
            for (; !struck && (at = text.find(rule.containing, at)) != std::string::npos; ++at) {
                if (rule.after > 0) {
                    --rule.after;
                } else {
                    --rule.count;
                    struck = rule;
                }
            }
        }
        std::erase_if(rules_, [](const ProxyRule& rule) { return rule.count <= 0; });
        window = text.substr(text.size() - std::min(text.size(), longest - 1));
        return struck;
    }

private:
    std::vector<ProxyRule> rules_;
};

}  // namespace redlatch::test
