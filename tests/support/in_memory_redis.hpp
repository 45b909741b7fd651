// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>
#include <redlatch/testing.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "raw_redis.hpp"

namespace redlatch::test {

/// Converts a reply of the library into that of a raw connection.
inline RawReply raw(const Reply& reply) {
    RawReply result;
    switch (reply.kind) {
        case Reply::Kind::nil: break;
        case Reply::Kind::integer: result.type = RawReply::Type::integer; break;
        case Reply::Kind::text: result.type = RawReply::Type::string; break;
        case Reply::Kind::array: result.type = RawReply::Type::list; break;
        default: result.type = RawReply::Type::error; break;
    }
    result.integer = reply.integer;
    result.string = reply.text;
    for (const Reply& element : reply.elements) result.elements.push_back(raw(element));
    return result;
}

/// An in-memory server in the place of a RedisServer. A client takes its "URL" like any other.
class InMemoryRedisServer {
public:
    testing::InMemoryTransport url() const { return server_.transport(); }
    testing::InMemoryServer& server() { return server_; }

private:
    testing::InMemoryServer server_;
};

/// A RawRedis for it.
class InMemoryRawRedis final : public RawCommands {
public:
    explicit InMemoryRawRedis(InMemoryRedisServer& server) : server_(server.server()) {}
    explicit InMemoryRawRedis(testing::InMemoryServer& server) : server_(server) {}

    RawReply command(const std::vector<std::string>& words) override {
        if (words.front() == "KEYS") return list_of(server_.keys());
        if (words.front() == "PUBSUB" && words[1] == "CHANNELS") return channels(words.size() < 3 ? "*" : words[2]);
        if (words.front() == "FLUSHALL") return server_.flush(), RawReply{RawReply::Type::status, 0, "OK", {}};
        return raw(server_.command(std::vector<std::string_view>(words.begin(), words.end())));
    }

private:
    static RawReply list_of(const std::vector<std::string>& texts) {
        RawReply list{RawReply::Type::list};
        for (const std::string& text : texts) list.elements.push_back({RawReply::Type::string, 0, text});
        return list;
    }

    /// The only pattern is a text with a star at its end.
    RawReply channels(std::string pattern) const {
        pattern.pop_back();
        std::vector<std::string> found;
        for (const std::string& channel : server_.channels())
            if (channel.starts_with(pattern)) found.push_back(channel);
        return list_of(found);
    }

    testing::InMemoryServer& server_;
};

/// Collects the messages of a channel, like Messages.
class InMemoryMessages {
public:
    InMemoryMessages(InMemoryRedisServer& server, const std::string& channel)
        : InMemoryMessages(server.server(), {channel}) {}
    InMemoryMessages(testing::InMemoryServer& server, const std::vector<std::string>& channels)
        : transport_(server.transport()) {
        for (const std::string& channel : channels) transport_.subscribe(channel);
    }

    /// Returns the messages since the last take.
    std::vector<std::string> take() {
        std::vector<std::string> payloads;
        for (auto& [_, payload] : take_with_channels()) payloads.push_back(std::move(payload));
        return payloads;
    }

    std::vector<std::pair<std::string, std::string>> take_with_channels() {
        transport_.run(collector_, Clock::now());
        return std::exchange(collector_.all, {});
    }

private:
    struct Collector final : Listener {
        void subscribed(const std::string&) override {}
        void refused(const std::string&, const Reply&) override {}
        void message(const std::string& channel, std::string_view payload) override {
            all.emplace_back(channel, payload);
        }
        void disconnected() override {}

        std::vector<std::pair<std::string, std::string>> all;
    };

    testing::InMemoryTransport transport_;
    Collector collector_;
};

}  // namespace redlatch::test
