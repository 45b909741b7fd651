// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/slots.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Reads the replies of cluster nodes about which node serves which slot. No I/O.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The slots from `first` to `last`, and the nodes that serve them.
struct SlotRange {
    std::uint16_t first = 0;
    std::uint16_t last = 0;
    HostPort master;
    std::vector<HostPort> replicas{};
};

// Where a node redirects a command: permanently (MOVED) or just once (ASK).
struct Redirect {
    bool just_once = false;
    std::uint16_t slot = 0;
    HostPort to;
};

inline std::optional<std::uint16_t> number_up_to(std::string_view text, std::uint16_t least, std::uint16_t most) {
    std::uint16_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
        return std::nullopt;
    return number;
}

inline bool is_host(std::string_view text) {
    return text.size() <= 255 && std::none_of(text.begin(), text.end(), [](char c) {
               return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f;
           });
}

// Reads a node in CLUSTER SLOTS. No host means the node that was asked. With the host "?" or the port 0 the node is
// unknown: the result has no host.
inline std::optional<HostPort> read_node(const Reply& node, const HostPort& asked) {
    if (node.kind != Reply::Kind::array || node.elements.size() < 2) return std::nullopt;
    const Reply& host = node.elements[0];
    const Reply& port = node.elements[1];
    if (!host.is_nil() && host.kind != Reply::Kind::text) return std::nullopt;
    if (!is_host(host.text) || !port.is_integer() || port.integer < 0 || port.integer > 65535) return std::nullopt;
    HostPort endpoint{host.text.empty() ? asked.host : host.text, static_cast<std::uint16_t>(port.integer)};
    if (host.text == "?" || endpoint.port == 0) endpoint.host.clear();
    return endpoint;
}

// Reads the reply of the node `asked` to CLUSTER SLOTS. Returns nothing if it is malformed or contains no slot with a
// known master.
inline std::optional<std::vector<SlotRange>> read_slots(const Reply& reply, const HostPort& asked) {
    if (reply.kind != Reply::Kind::array || reply.elements.empty()) return std::nullopt;
    std::vector<SlotRange> ranges;
    for (const Reply& range : reply.elements) {
        if (range.kind != Reply::Kind::array || range.elements.size() < 3) return std::nullopt;
        const Reply& first = range.elements[0];
        const Reply& last = range.elements[1];
        if (!first.is_integer() || !last.is_integer() || first.integer < 0 || last.integer < first.integer ||
            last.integer >= slot_count)
            return std::nullopt;
        SlotRange read{static_cast<std::uint16_t>(first.integer), static_cast<std::uint16_t>(last.integer), {}};
        for (std::size_t i = 2; i < range.elements.size(); ++i) {
            auto node = detail::read_node(range.elements[i], asked);
            if (!node) return std::nullopt;
            if (i == 2)
                read.master = std::move(*node);
            else if (!node->host.empty())
                read.replicas.push_back(std::move(*node));
        }
        if (!read.master.host.empty()) ranges.push_back(std::move(read));
    }
    if (ranges.empty()) return std::nullopt;
    return ranges;
}

// Reads "MOVED <slot> <host>:<port>" or "ASK <slot> <host>:<port>", an error of the node `asked`. The host may be
// missing or be an IPv6 address without brackets: the port follows the last colon.
inline std::optional<Redirect> read_redirect(std::string_view text, const HostPort& asked) {
    Redirect redirect;
    redirect.just_once = text.starts_with("ASK ");
    if (!redirect.just_once && !text.starts_with("MOVED ")) return std::nullopt;
    text.remove_prefix(redirect.just_once ? 4 : 6);
    const auto blank = text.find(' ');
    if (blank == std::string_view::npos) return std::nullopt;
    const auto slot = detail::number_up_to(text.substr(0, blank), 0, slot_count - 1);
    const std::string_view endpoint = text.substr(blank + 1);
    const auto colon = endpoint.rfind(':');
    if (!slot || colon == std::string_view::npos || !detail::is_host(endpoint.substr(0, colon))) return std::nullopt;
    const auto port = detail::number_up_to(endpoint.substr(colon + 1), 1, 65535);
    if (!port) return std::nullopt;
    redirect.slot = *slot;
    redirect.to = {colon == 0 ? asked.host : std::string(endpoint.substr(0, colon)), *port};
    return redirect;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
