// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/protocol/message_words.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/permit_id.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Permits that a client which made them available has taken for a waiter of this process: what that is told at its place.
struct PermitGrant {
    ServerMilliseconds at{};
    Milliseconds lease{};
    std::vector<PermitId> ids{};

    // Reads what follows "grant " in the message: "<number> <time> <lease> <ids>", the ids as they are stored. Returns
    // nothing if it makes no sense.
    static std::optional<PermitGrant> in(std::string_view message) {
        constexpr std::size_t id_size = 16;
        const auto number = next_number<std::uint64_t>(message);
        const auto at = next_number<std::int64_t>(message);
        const auto lease = next_number<std::int64_t>(message);
        if (!number || !at || !is_plausible(*at) || !lease || *lease == 0 || !is_plausible(*lease)) return std::nullopt;
        if (message.empty() || message.size() % id_size != 0) return std::nullopt;
        PermitGrant grant{*at, Milliseconds(*lease)};
        for (; !message.empty(); message.remove_prefix(id_size))
            grant.ids.push_back(PermitId::parse(hex_of(message.substr(0, id_size))));
        return grant;
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
