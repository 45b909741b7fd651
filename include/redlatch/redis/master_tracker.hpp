// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Finds out which server is the master from the replies and messages of sentinels. No I/O.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The answer of one sentinel: the master, and the epoch of the failover that made it master. The first failover has an
// epoch above 0.
struct MasterVote {
    HostPort master;
    std::uint64_t config_epoch = 0;
};

template <class Number>
std::optional<Number> sentinel_number(std::string_view text) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

inline std::optional<HostPort> sentinel_address(std::string_view host, std::string_view port) {
    const auto number = sentinel_number<std::uint16_t>(port);
    if (host.empty() || host.size() > 255 || !number || *number == 0) return std::nullopt;
    return HostPort{std::string(host), *number};
}

// Reads the replies to SENTINEL GET-MASTER-ADDR-BY-NAME and SENTINEL MASTER. The second one only adds the epoch: a
// sentinel that refuses it still has a vote.
inline std::optional<MasterVote> read_vote(const Reply& address, const Reply& details) {
    if (address.kind != Reply::Kind::array || address.elements.size() != 2) return std::nullopt;
    auto master = detail::sentinel_address(address.elements[0].text, address.elements[1].text);
    if (!master) return std::nullopt;
    MasterVote vote{std::move(*master)};
    for (std::size_t i = 0; i + 1 < details.elements.size(); i += 2)
        if (details.elements[i].text == "config-epoch")
            vote.config_epoch = detail::sentinel_number<std::uint64_t>(details.elements[i + 1].text).value_or(0);
    return vote;
}

// Returns the servers to ask for their role, the likeliest first: by the latest epoch, then by the most votes. The
// known master is a candidate without a vote.
inline std::vector<MasterVote> ranked(std::span<const MasterVote> votes, const std::optional<HostPort>& known) {
    struct Candidate {
        MasterVote vote;
        std::size_t voters = 0;
        std::size_t position = 0;
    };
    std::vector<Candidate> candidates;
    const auto add = [&](const MasterVote& vote, std::size_t voters) {
        auto same = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const Candidate& c) { return c.vote.master == vote.master; });
        if (same == candidates.end()) same = candidates.insert(candidates.end(), Candidate{vote, 0, candidates.size()});
        same->vote.config_epoch = std::max(same->vote.config_epoch, vote.config_epoch);
        same->voters += voters;
    };
    if (known) add({*known}, 0);
    for (const MasterVote& vote : votes) add(vote, 1);
    // Among equals, the one that was added first comes first.
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        if (a.vote.config_epoch != b.vote.config_epoch) return a.vote.config_epoch > b.vote.config_epoch;
        return a.voters != b.voters ? a.voters > b.voters : a.position < b.position;
    });
    std::vector<MasterVote> order;
    for (const Candidate& candidate : candidates) order.push_back(candidate.vote);
    return order;
}

// Returns the new master if a message of a sentinel announces one for the master of this name:
//   +switch-master    <name> <old host> <old port> <new host> <new port>
//   +promoted-slave   slave <new name> <new host> <new port> @ <name> <old host> <old port>
inline std::optional<HostPort> read_announcement(std::string_view channel, std::string_view payload,
                                                 std::string_view name) {
    std::vector<std::string_view> words;
    while (!payload.empty() && words.size() < 9) {
        const auto blank = payload.find(' ');
        words.push_back(payload.substr(0, blank));
        payload = blank == std::string_view::npos ? std::string_view() : payload.substr(blank + 1);
    }
    if (channel == "+switch-master" && words.size() == 5 && words[0] == name)
        return detail::sentinel_address(words[3], words[4]);
    if (channel == "+promoted-slave" && words.size() == 8 && words[5] == name)
        return detail::sentinel_address(words[2], words[3]);
    return std::nullopt;
}

// Tracks where the master is believed to be, for all connections of a client. An epoch of ours begins whenever the master
// may have moved. Connections opened in an earlier epoch must be closed.
//
// Thread-safe: mutex_ guards all members. No function waits.
class MasterTracker {
public:
    std::uint64_t epoch() const {
        const std::lock_guard lock(mutex_);
        return epoch_;
    }

    std::optional<HostPort> known() const {
        const std::lock_guard lock(mutex_);
        return master_;
    }

    // Returns the server to try without asking a sentinel: one just announced, or one that proved to be the master at
    // most `fresh` ago.
    std::optional<HostPort> guess(Instant now) const {
        const std::lock_guard lock(mutex_);
        if (announced_) return announced_;
        return proven_at_ && now < *proven_at_ + fresh ? master_ : std::nullopt;
    }

    // Called when a sentinel has announced a new master. Returns false if that is known already.
    bool announce(const HostPort& master) {
        const std::lock_guard lock(mutex_);
        if ((announced_ ? announced_ : master_) == master) return false;
        announced_ = master;
        leave();
        return true;
    }

    // Takes the reply of a sentinel to a query. Returns true if it reports a later failover than the known one, and
    // another master.
    bool hear(const MasterVote& vote) {
        {
            const std::lock_guard lock(mutex_);
            if (!master_ || vote.config_epoch <= config_epoch_) return false;
            config_epoch_ = vote.config_epoch;
        }
        return announce(vote.master);
    }

    // Called when the server of this epoch refused a command that only a master carries out. Returns false if the epoch
    // is an earlier one.
    bool doubt(std::uint64_t epoch) {
        const std::lock_guard lock(mutex_);
        if (epoch != epoch_) return false;
        leave();
        return true;
    }

    // Called when the guess has failed: it is not returned again.
    void reject(const HostPort& master) {
        const std::lock_guard lock(mutex_);
        if (announced_ == master) announced_.reset();
        proven_at_.reset();
    }

    // Called when the server has confirmed that it is the master, on a connection begun in the epoch `seen`.
    // Returns the epoch of the connection, or nothing if the master may have moved meanwhile.
    std::optional<std::uint64_t> prove(const MasterVote& vote, std::uint64_t seen, Instant now) {
        const std::lock_guard lock(mutex_);
        if (seen != epoch_) return std::nullopt;
        const bool moved = master_ && *master_ != vote.master;
        if (moved && epoch_ == proven_epoch_) ++epoch_;
        proven_epoch_ = epoch_;
        master_ = vote.master;
        announced_.reset();
        config_epoch_ = std::max(config_epoch_, vote.config_epoch);
        proven_at_ = now;
        return epoch_;
    }

private:
    static constexpr Milliseconds fresh{500};

    void leave() {
        ++epoch_;
        proven_at_.reset();
    }

    mutable std::mutex mutex_;
    std::uint64_t epoch_ = 1;
    std::uint64_t proven_epoch_ = 0;  // the one in which master_ was last proven
    std::optional<HostPort> master_;
    std::optional<HostPort> announced_;  // not proven yet
    std::optional<Instant> proven_at_;
    std::uint64_t config_epoch_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
