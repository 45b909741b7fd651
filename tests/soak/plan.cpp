// SPDX-License-Identifier: MIT
#include "plan.hpp"

#include <algorithm>
#include <random>

namespace redlatch::soak {

namespace {

constexpr std::int64_t round_ms = 15'000;
constexpr std::int64_t storm_ms = 9'000;  // of each round
// Without the last token, fencing relies on a clock that has not fallen behind it. So no clock goes back right after a
// loss of data.
constexpr std::int64_t clock_rest_ms = 3'000;
constexpr std::int64_t settle_ms = 2'500;

// Deals all kinds in a random order, and then again.
class Deck {
public:
    Deck(std::mt19937_64& random, std::vector<FaultKind> kinds) : random_(random), kinds_(std::move(kinds)) {}

    // Deals it again soon, but not next.
    void put_back(FaultKind kind) {
        left_.insert(left_.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(left_.size(), 3)), kind);
    }

    FaultKind next() {
        if (left_.empty()) {
            left_ = kinds_;
            for (std::size_t i = left_.size(); i > 1; --i) std::swap(left_[i - 1], left_[random_() % i]);
        }
        const FaultKind kind = left_.back();
        left_.pop_back();
        return kind;
    }

private:
    std::mt19937_64& random_;
    std::vector<FaultKind> kinds_;
    std::vector<FaultKind> left_;
};

template <class Condition>
std::vector<FaultKind> kinds_that(Condition condition) {
    std::vector<FaultKind> kinds;
    for (const FaultInfo& one : fault_kinds)
        if (condition(one)) kinds.push_back(one.kind);
    return kinds;
}

class Planner {
public:
    Planner(std::uint64_t seed, std::int64_t seconds, std::string_view only)
        : random_(seed), end_ms_(seconds * 1000 - settle_ms), only_(only) {}

    std::vector<PlannedFault> plan() && {
        storms(Lane::server, 150);
        storms(Lane::network, 250);
        storms(Lane::network, 250);
        storms(Lane::late, 600);
        storms(Lane::workers, 600);
        calms();
        std::stable_sort(plan_.begin(), plan_.end(),
                         [](const PlannedFault& a, const PlannedFault& b) { return a.at_ms < b.at_ms; });
        return std::move(plan_);
    }

private:
    // Plans the storms of one lane. A fault begins some time after the one before has ended.
    void storms(Lane lane, std::int64_t most_pause_ms) {
        const auto kinds = kinds_that([&](const FaultInfo& one) { return one.lane == lane && is_wanted(one); });
        if (kinds.empty()) return;
        Deck deck{random_, kinds};
        const std::uint64_t fixed_target = network_lanes_;
        std::int64_t data_lost_ms = -clock_rest_ms;
        if (lane == Lane::network) ++network_lanes_;
        for (std::int64_t at = 1000; at < end_ms_;) {
            at += between(50, most_pause_ms);
            if (at % round_ms >= storm_ms) at += round_ms - at % round_ms;
            if (at >= end_ms_) return;
            const std::uint64_t target = lane == Lane::network ? fixed_target : random_();
            FaultKind kind = deck.next();
            if (kind == FaultKind::clock_back && at < data_lost_ms + clock_rest_ms) {
                while (kind == FaultKind::clock_back) kind = deck.next();
                deck.put_back(FaultKind::clock_back);
            }
            at += add(kind, at, target);
            if (loses_data(kind)) data_lost_ms = at;
        }
    }

    void calms() {
        const auto kinds =
            kinds_that([&](const FaultInfo& one) { return one.cost == Cost::nothing && is_wanted(one); });
        if (kinds.empty()) return;
        Deck deck{random_, kinds};
        for (std::int64_t round = 0; round < end_ms_; round += round_ms)
            for (std::int64_t at = round + storm_ms; at < std::min(round + round_ms, end_ms_); at += between(500, 1200))
                add(deck.next(), at, random_());
    }

    bool is_wanted(const FaultInfo& one) const { return only_.empty() || one.name == only_; }

    std::int64_t add(FaultKind kind, std::int64_t at, std::uint64_t target) {
        const FaultInfo& about = info(kind);
        const std::int64_t lasts = between(about.least_ms, about.most_ms);
        plan_.push_back({kind, at, lasts, target, random_()});
        return lasts;
    }

    std::int64_t between(std::int64_t least, std::int64_t most) {
        return least + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
    }

    std::mt19937_64 random_;
    const std::int64_t end_ms_;
    const std::string_view only_;
    std::uint64_t network_lanes_ = 0;
    std::vector<PlannedFault> plan_;
};

}  // namespace

std::vector<PlannedFault> make_plan(std::uint64_t seed, std::int64_t seconds, std::string_view only) {
    return Planner{seed, seconds, only}.plan();
}

}  // namespace redlatch::soak
