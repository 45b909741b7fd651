// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "match.hpp"

namespace redlatch::test {

/// The data of a match on the server as one text that can be compared with the wire format. N is the match's name, and
/// H, W, O are the owners of holder, waiter and other. T is a fencing token. Parts are joined by "; ".
///
/// An owner is a thread in Redisson. In redlatch it is a hold or a waiter for one: "<client id>:<number>", where later
/// ones have greater numbers. A holder's number exists before its waiter's. So among those that share a client, the
/// first number seen is shown as H, the next as W, and the third as O.
class KeyspaceSnapshot {
public:
    explicit KeyspaceSnapshot(Match& match) : match_(match), stream_(match.place.url) {
        short_for(match.name, "N");
        short_for_owner(match.holder, "H");
        short_for_owner(match.waiter, "W");
        short_for_owner(match.other, "O");
        if (match.place.sharded)
            listen_to_each(match.waiter.is_java() ? match.waiter.ask("id") : "");
        else
            stream_.call("PSUBSCRIBE", "*" + match.name + "*");
    }

    /// Shows the text as these letters from now on.
    void short_for(std::string text, std::string letters) { names_.emplace_back(std::move(text), std::move(letters)); }

    /// Returns each key with its type and content, and whether it has a TTL (except for lists and sorted sets). Leaves
    /// out unlock latches, and redlatch's own keys if they have a TTL: each side has its own.
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

    /// The first call that shows a waiter's own channel also subscribes to it.
    std::string channels() {
        std::vector<std::string> all = match_.channels();
        if (match_.place.sharded)
            for (const std::string& channel : all) listen_to(channel);
        return joined(std::move(all), true);
    }

    /// Returns the messages since the last call, each after its channel.
    std::string messages() {
        const std::string end = end_of_messages();
        match_.publish(end, "");
        std::vector<std::string> all;
        while (true) {
            const RawReply message = next_message();
            // They come after the kind, and after the pattern if there is one.
            const std::string& channel = message.elements.at(message.elements.size() - 2).string;
            if (channel == end) return joined(std::move(all), false);
            all.push_back(channel + " " + message.elements.back().string);
        }
    }

private:
    std::string end_of_messages() const { return "{" + match_.name + "} end"; }

    void short_for_owner(const Actor& actor, const std::string& letter) {
        const std::string id = actor.ask("id");
        if (actor.is_java())
            short_for(id, letter);
        else
            clients_[id].letters.push_back(letter);
    }

    /// Sharded channels have no patterns.
    void listen_to_each(const std::string& waiter) {
        const std::string tag = "{" + match_.name + "}";
        const std::string lock = "redisson_lock__channel:" + tag;
        for (const std::string& channel : {lock, "redisson_rwlock:" + tag, "redisson_sc:" + tag,
                                           "redisson_countdownlatch__channel__" + tag, end_of_messages()})
            listen_to(channel);
        if (!waiter.empty()) listen_to(lock + ":" + waiter);
    }

    void listen_to(const std::string& channel) {
        std::vector<std::string>& own = match_.own_channels;
        if (std::find(own.begin(), own.end(), channel) != own.end()) return;
        own.push_back(channel);
        stream_.send({"SSUBSCRIBE", channel});
        // Other messages may come before its confirmation.
        for (RawReply reply = stream_.receive(); reply.elements.at(0).string != "ssubscribe"; reply = stream_.receive())
            early_.push_back(std::move(reply));
    }

    RawReply next_message() {
        if (early_.empty()) return stream_.receive();
        RawReply message = std::move(early_.front());
        early_.pop_front();
        return message;
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

    /// Learns the numbers that follow the ids of clients.
    void learn_numbers(const std::string& part) {
        for (auto& [id, client] : clients_) {
            for (auto at = part.find(id + ":"); at != std::string::npos; at = part.find(id + ":", at + 1)) {
                const auto begin = at + id.size() + 1;
                const auto end = std::min(part.find_first_not_of("0123456789", begin), part.size());
                if (end > begin) client.numbers.insert(std::stoull(part.substr(begin, end - begin)));
            }
        }
    }

    void shorten_owners(std::string& part) const {
        for (const auto& [id, client] : clients_) {
            auto letter = client.letters.begin();
            for (const std::uint64_t number : client.numbers) {
                if (letter == client.letters.end()) break;
                const std::string owner = id + ":" + std::to_string(number);
                for (auto at = part.find(owner); at != std::string::npos; at = part.find(owner, at + 1)) {
                    const auto end = at + owner.size();
                    const bool is_whole = end == part.size() || part[end] < '0' || part[end] > '9';
                    if (is_whole) part.replace(at, owner.size(), *letter);
                }
                ++letter;
            }
        }
    }

    std::string joined(std::vector<std::string> parts, bool sorted) {
        for (const std::string& part : parts) learn_numbers(part);
        for (std::string& part : parts) {
            shorten_owners(part);
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

    /// A client of redlatch: the letters of its users, in order, and the numbers of owners seen so far.
    struct NumberedClient {
        std::vector<std::string> letters;
        std::set<std::uint64_t> numbers;
    };

    Match& match_;
    RawRedis stream_;
    std::deque<RawReply> early_;
    std::vector<std::pair<std::string, std::string>> names_;
    std::map<std::string, NumberedClient> clients_;  // by id
};

}  // namespace redlatch::test
