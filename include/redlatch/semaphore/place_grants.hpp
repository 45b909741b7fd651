// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What was granted at the place of this process, and what may be. The mutex of SynchronizerCore guards it.
template <class Protocol>
class PlaceGrants {
    using Grant = typename Protocol::Grant;

public:
    using Offer = decltype(Grant::ids);

    // A question begins. After a useless grant, the next question accepts no grant: otherwise permits might circulate between
    // processes that cannot use them.
    void begin() noexcept { is_offering_ = !std::exchange(was_useless_, false); }
    bool is_offering() const noexcept { return is_offering_; }
    void was_useless() noexcept { was_useless_ = true; }

    // Applies the answer: the first caller that was not served may be granted what it wants, if the process has a place. A
    // served caller may have a grant of the same ids on record that had ended before it asked again: drops that grant.
    template <class Wants>
    void offer(bool has_place, const Wants& wants) {
        offered_.clear();
        for (const auto& want : wants)
            if (want.served) std::erase_if(received_, [&](const Grant& grant) { return grant.ids == want.ids; });
        const auto first = std::find_if(wants.begin(), wants.end(), [](const auto& want) { return !want.served; });
        if (has_place && is_offering_ && std::all_of(wants.begin(), wants.end(), Protocol::may_be_granted) &&
            first != wants.end())
            offered_ = first->ids;
    }

    // Returns what may have been granted, and ends the offer.
    Offer withdraw() noexcept { return std::exchange(offered_, {}); }

    // Returns false if it makes no sense, or without memory for it: then the grant ends by itself.
    bool receive(std::string_view message) noexcept try {
        auto grant = Grant::in(message);
        if (grant) received_.push_back(std::move(*grant));
        return grant.has_value();
    } catch (...) {
        return false;
    }

    // Returns the first one of which this is true.
    template <class Condition>
    std::optional<Grant> take(Condition condition) noexcept {
        const auto found = std::find_if(received_.begin(), received_.end(), condition);
        if (found == received_.end()) return std::nullopt;
        std::optional<Grant> grant(std::move(*found));
        received_.erase(found);
        return grant;
    }

    bool is_for_offer(const Grant& grant) const noexcept { return grant.ids == offered_; }

private:
    Offer offered_;
    std::vector<Grant> received_;
    bool is_offering_ = true;
    bool was_useless_ = false;
};

// What has no grants.
struct NoGrants {
    struct Offer {};

    void begin() noexcept {}
    Offer withdraw() noexcept { return {}; }
    template <class Wants>
    void offer(bool, const Wants&) {}
    bool receive(std::string_view) noexcept { return true; }
};

template <class Protocol>
concept HasGrants = requires {
    typename Protocol::Grant;
};

template <class Protocol>
struct GrantsFor {
    using Type = NoGrants;
};
template <HasGrants Protocol>
struct GrantsFor<Protocol> {
    using Type = PlaceGrants<Protocol>;
};
template <class Protocol>
using GrantsOf = typename GrantsFor<Protocol>::Type;

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
