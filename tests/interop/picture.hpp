// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "match.hpp"

namespace redlatch::test {

/// What is in the server about a match, with N for its name and H, W, O for the owners of holder, waiter and other: one
/// text that can be compared with what the wire format says. T is a fencing token. Parts are joined by "; ".
class Picture {
public:
    explicit Picture(Match& match) : match_(match), stream_(match.place.url) {
        short_for(match.name, "N");
        short_for(match.holder.ask("id"), "H");
        short_for(match.waiter.ask("id"), "W");
        short_for(match.other.ask("id"), "O");
        if (match.place.sharded)
            listen_to_each(match.waiter.ask("id"));
        else
            stream_.call("PSUBSCRIBE", "*" + match.name + "*");
    }

    /// From now on the text is shown as these letters.
    void short_for(std::string text, std::string letters) { names_.emplace_back(std::move(text), std::move(letters)); }

    /// Each key with its type and content, and whether it has a TTL where that is no list. Left out are unlock latches,
    /// and what redlatch keeps for itself, as long as it has a TTL: each side has its own.
    std::string keys() {
        std::vector<std::string> all;
        for (const std::string& key : match_.redis.keys("*" + match_.name + "*")) {
            const bool expires = match_.redis.pttl(key) >= 0;
            if (key.starts_with("redisson_unlock_latch:") || (key.starts_with("redlatch_") && expires)) continue;
            const std::string content = content_of(key);
            const bool is_list = content.starts_with("list") || content.starts_with("zset");
            all.push_back(key + " " + content + (expires && !is_list ? " ttl" : ""));
        }
        return joined(std::move(all), true);
    }

    std::string channels() { return joined(match_.channels(), true); }

    /// The messages since the last call, each behind its channel.
    std::string messages() {
        const std::string end = end_of_messages();
        match_.publish(end, "");
        std::vector<std::string> all;
        while (true) {
            const RawReply message = stream_.receive();
            // Behind their kind, and the pattern of those that came by one.
            const std::string& channel = message.elements.at(message.elements.size() - 2).string;
            if (channel == end) return joined(std::move(all), false);
            all.push_back(channel + " " + message.elements.back().string);
        }
    }

private:
    std::string end_of_messages() const { return "{" + match_.name + "} end"; }

    /// There are no patterns among sharded channels.
    void listen_to_each(const std::string& waiter) {
        const std::string tag = "{" + match_.name + "}";
        const std::string lock = "redisson_lock__channel:" + tag;
        match_.own_channels = {lock,
                               lock + ":" + waiter,
                               "redisson_rwlock:" + tag,
                               "redisson_sc:" + tag,
                               "redisson_countdownlatch__channel__" + tag,
                               end_of_messages()};
        for (const std::string& channel : match_.own_channels) stream_.call("SSUBSCRIBE", channel);
    }

    std::string content_of(const std::string& key) {
        RawRedis& redis = match_.redis;
        const std::string type = redis.text("TYPE", key);
        if (type == "hash") {
            std::string fields = type;
            for (const auto& [field, value] : redis.hgetall(key)) fields += " " + field + "=" + value;
            return fields;
        }
        if (key.starts_with("redisson_lock_token:")) return type + (redis.integer("GET", key) > 0 ? " T" : " no token");
        if (type == "string") return type + " " + redis.text("GET", key);
        std::string members = type;
        const std::string all = type == "list" ? "LRANGE" : "ZRANGE";
        for (const std::string& member : redis.list(all, key, 0, -1)) members += " " + member;
        return members;
    }

    std::string joined(std::vector<std::string> parts, bool sorted) const {
        for (std::string& part : parts) {
            for (const auto& [text, letters] : names_) {
                for (auto at = part.find(text); at != std::string::npos; at = part.find(text, at + letters.size()))
                    part.replace(at, text.size(), letters);
            }
        }
        if (sorted) std::sort(parts.begin(), parts.end());
        std::string text;
        for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
        return text;
    }

    Match& match_;
    RawRedis stream_;
    std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace redlatch::test
