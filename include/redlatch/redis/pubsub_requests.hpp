// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/redis/encode.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A channel to be subscribed to, or to be unsubscribed from.
struct ChannelChange {
    std::string channel;
    bool wanted;
};

// The requests of a pub/sub connection that the server has not answered yet. It confirms each channel of a command, but
// refuses a command as a whole, and does not name its channels then.
//
// Does no I/O. Not thread-safe.
class PubSubRequests {
public:
    static constexpr const char* no_channel = "";

    explicit PubSubRequests(bool sharded) : sharded_(sharded) {}

    bool is_sharded() const noexcept { return sharded_; }
    void use_classic() noexcept { sharded_ = false; }

    // Appends the query for the number by which the server knows the connection. Its refusal is one of this channel.
    void append_id_query(std::string& out, const std::string& channel, Instant now) {
        append_command(out, Command{std::array<std::string_view, 2>{"CLIENT", "ID"}, 0});
        asked_.push_back({channel, now});
    }

    // Appends a request to which a server replies that is still there: it subscribes once more to this channel, which
    // needs no more rights than the first time.
    void append_check(std::string& out, const std::string& channel, Instant now) {
        append_command(out, Command{std::array<std::string_view, 2>{subscribe_word(), channel}, 0});
        asked_.push_back({.channel = channel, .at = now, .is_check = true});
    }

    // Appends the commands that make these changes: one for consecutive channels with the same change. Channels of several
    // slots must not share a command, nor may those that are to be requested alone.
    void append(std::string& out, const std::vector<ChannelChange>& changes, Instant now) {
        for (std::size_t i = 0; i < changes.size();) {
            const bool wanted = changes[i].wanted;
            std::vector<std::string_view> words{wanted ? subscribe_word()
                                                       : std::string_view(sharded_ ? "SUNSUBSCRIBE" : "UNSUBSCRIBE")};
            const std::size_t most = sharded_ ? 2 : 513;
            bool alone = false;
            for (; !alone && i < changes.size() && changes[i].wanted == wanted && words.size() < most; ++i) {
                alone = wanted && alone_.contains(changes[i].channel);
                if (alone && words.size() > 1) break;
                words.push_back(changes[i].channel);
                if (!wanted && !sharded_) continue;  // never refused
                if (words.size() > 2) asked_.back().ends_command = false;
                asked_.push_back({changes[i].channel, now});
            }
            append_command(out, Command{words, 0});
        }
    }

    // The channel of the next commands that ask for it is the only one there, until the server answers.
    void request_alone(const std::string& channel) { alone_.insert(channel); }

    // Records that a channel is subscribed to. Returns false if that was a check.
    bool subscribed(const std::string& channel) {
        const bool is_check = !asked_.empty() && asked_.front().is_check;
        confirm(channel);
        alone_.erase(channel);
        return !is_check;
    }

    // Records that a sharded channel is unsubscribed from. Returns false if that was not asked for: its slot has moved.
    bool unsubscribed(const std::string& channel) { return confirm(channel); }

    // Records the reply to the query for the number. Returns false if nothing was asked.
    bool confirm_id() {
        if (asked_.empty()) return false;
        asked_.erase(asked_.begin());
        return true;
    }

    // Returns true if a reply is outstanding.
    bool any() const noexcept { return !asked_.empty(); }

    // Returns when the oldest request without a reply was made. There must be one.
    Instant oldest() const noexcept { return asked_.front().at; }

    // Records that the oldest command was refused, and returns its channels; none if nothing was asked. That of a
    // check is no_channel.
    std::vector<std::string> refuse() {
        std::vector<std::string> channels;
        for (bool ends = false; !ends && !asked_.empty(); asked_.erase(asked_.begin())) {
            ends = asked_.front().ends_command;
            channels.push_back(asked_.front().is_check ? no_channel : std::move(asked_.front().channel));
        }
        if (channels.size() == 1) alone_.erase(channels.front());
        return channels;
    }

    // The connection is lost.
    void clear() noexcept {
        asked_.clear();
        alone_.clear();
    }

private:
    // A channel that a command names.
    struct Asked {
        std::string channel;
        Instant at;
        bool ends_command = true;
        bool is_check = false;
    };

    std::string_view subscribe_word() const noexcept { return sharded_ ? "SSUBSCRIBE" : "SUBSCRIBE"; }

    bool confirm(const std::string& channel) {
        if (asked_.empty() || asked_.front().channel != channel) return false;
        asked_.erase(asked_.begin());
        return true;
    }

    bool sharded_;
    std::vector<Asked> asked_;     // in the order of the requests
    std::set<std::string> alone_;  // to be requested by a command for each
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
