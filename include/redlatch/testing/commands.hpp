// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/testing/command_words.hpp"
#include "redlatch/testing/keyspace.hpp"
#include "redlatch/testing/sorted_set_commands.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Carries out the commands that the library and its scripts send, on a keyspace, as Redis 7 does. Not thread-safe.
class Commands : private SortedSetCommands {
public:
    using Words = SortedSetCommands::Words;

    explicit Commands(Keyspace& keyspace) : SortedSetCommands(keyspace), keyspace_(keyspace) {}
    Commands(const Commands&) = delete;
    Commands& operator=(const Commands&) = delete;

    // Delivers a PUBLISH. Returns the number of its receivers.
    std::function<std::int64_t(std::string_view channel, std::string_view payload)> publish;
    // Returns the number of the subscribers of a channel.
    std::function<std::int64_t(std::string_view channel)> subscribers;

    bool knows_pxat = true;  // servers before 6.2 do not

    Reply call(Words words) try {
        const std::string name = lowered(words[0]);
        const Entry* const entry = find(name);
        if (!entry) return error_reply("ERR unknown command '" + std::string(words[0]) + "'");
        if (words.size() < entry->fewest || words.size() > entry->most)
            return error_reply("ERR wrong number of arguments for '" + name + "' command");
        return (this->*entry->run)(words);
    } catch (const Keyspace::WrongType&) {
        return error_reply("WRONGTYPE Operation against a key holding the wrong kind of value");
    } catch (const CommandError& failure) {
        return error_reply(failure.text);
    }

private:
    using Type = Keyspace::Type;
    using Value = Keyspace::Value;

    struct Entry {
        std::string_view name;
        std::size_t fewest;  // words, with the name
        std::size_t most;
        Reply (Commands::*run)(Words);
    };

    static const Entry* find(std::string_view name) {
        static constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
        static constexpr Entry entries[] = {
            {"decrby", 3, 3, &Commands::decrby},
            {"del", 2, any, &Commands::del},
            {"exists", 2, any, &Commands::exists},
            {"get", 2, 2, &Commands::get},
            {"hdel", 3, any, &Commands::hdel},
            {"hexists", 3, 3, &Commands::hexists},
            {"hget", 3, 3, &Commands::hget},
            {"hgetall", 2, 2, &Commands::hgetall},
            {"hincrby", 4, 4, &Commands::hincrby},
            {"hkeys", 2, 2, &Commands::hkeys},
            {"hlen", 2, 2, &Commands::hlen},
            {"hmget", 3, any, &Commands::hmget},
            {"hset", 4, any, &Commands::hset},
            {"incrby", 3, 3, &Commands::incrby},
            {"info", 2, 2, &Commands::info_of_replication},
            {"lindex", 3, 3, &Commands::lindex},
            {"llen", 2, 2, &Commands::llen},
            {"lpop", 2, 2, &Commands::lpop},
            {"lrange", 4, 4, &Commands::lrange},
            {"lrem", 4, 4, &Commands::lrem},
            {"pexpire", 3, 3, &Commands::pexpire},
            {"ping", 1, 1, &Commands::ping},
            {"pttl", 2, 2, &Commands::pttl},
            {"publish", 3, 3, &Commands::publish_message},
            {"pubsub", 2, any, &Commands::pubsub},
            {"rpush", 3, any, &Commands::rpush},
            {"set", 3, any, &Commands::set},
            {"time", 1, 1, &Commands::time},
            {"zadd", 4, any, &Commands::zadd},
            {"zcard", 2, 2, &Commands::zcard},
            {"zcount", 4, 4, &Commands::zcount},
            {"zrange", 4, 5, &Commands::zrange},
            {"zrangebyscore", 4, any, &Commands::zrangebyscore},
            {"zrem", 3, any, &Commands::zrem},
            {"zremrangebyscore", 4, 4, &Commands::zremrangebyscore},
            {"zscore", 3, 3, &Commands::zscore},
        };
        const Entry* const found = std::lower_bound(std::begin(entries), std::end(entries), name,
                                                    [](const Entry& e, std::string_view n) { return e.name < n; });
        return found != std::end(entries) && found->name == name ? found : nullptr;
    }

    // --- any key ------------------------------------------------------------------------------------------------

    Reply ping(Words) { return Reply::of(std::string("PONG")); }

    Reply time(Words) {
        const auto us = std::chrono::floor<std::chrono::microseconds>(keyspace_.now()).count();
        Reply parts = array_reply();
        parts.elements = {Reply::of(std::to_string(us / 1'000'000)), Reply::of(std::to_string(us % 1'000'000))};
        return parts;
    }

    Reply publish_message(Words words) { return Reply::of(publish ? publish(words[1], words[2]) : 0); }

    // For scripts, and INFO REPLICATION only.
    Reply info_of_replication(Words) {
        return Reply::of(std::string("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"));
    }

    // PUBSUB NUMSUB only.
    Reply pubsub(Words words) {
        if (lowered(words[1]) != "numsub") return error_reply("ERR unknown subcommand of PUBSUB");
        Reply counts = array_reply();
        for (const std::string_view channel : words.subspan(2)) {
            counts.elements.push_back(Reply::of(std::string(channel)));
            counts.elements.push_back(Reply::of(subscribers ? subscribers(channel) : 0));
        }
        return counts;
    }

    Reply del(Words words) {
        std::size_t removed = 0;
        for (const std::string_view key : words.subspan(1)) {
            if (!keyspace_.exists(key)) continue;
            keyspace_.erase(key);
            ++removed;
        }
        return integer_reply(removed);
    }

    Reply exists(Words words) {
        std::size_t found = 0;
        for (const std::string_view key : words.subspan(1)) found += keyspace_.exists(key);
        return integer_reply(found);
    }

    Reply pexpire(Words words) {
        const std::int64_t length = to_integer(words[2]);
        Value* const value = keyspace_.find(words[1]);
        if (!value) return Reply::of(0);
        if (length > std::numeric_limits<std::int64_t>::max() - keyspace_.now_ms())
            throw CommandError{"ERR invalid expire time in 'pexpire' command"};
        if (length <= 0)
            keyspace_.erase(words[1]);
        else
            value->expires = keyspace_.now_ms() + length;
        return Reply::of(1);
    }

    Reply pttl(Words words) {
        const Value* const value = keyspace_.find(words[1]);
        if (!value) return Reply::of(-2);
        return Reply::of(value->expires < 0 ? -1 : value->expires - keyspace_.now_ms());
    }

    // --- strings ------------------------------------------------------------------------------------------------

    Reply set(Words words) {
        std::optional<ServerMilliseconds> expires;
        bool only_new = false;
        for (std::size_t i = 3; i < words.size(); ++i) {
            const std::string option = lowered(words[i]);
            const bool has_value = i + 1 < words.size() && !expires;
            if (option == "nx") {
                only_new = true;
            } else if (has_value && (option == "px" || (option == "pxat" && knows_pxat))) {
                const std::int64_t number = to_integer(words[++i]);
                if (number <= 0 || number > std::numeric_limits<std::int64_t>::max() - keyspace_.now_ms())
                    throw CommandError{"ERR invalid expire time in 'set' command"};
                expires = option == "px" ? keyspace_.now_ms() + number : number;
            } else {
                throw CommandError{"ERR syntax error"};
            }
        }
        const bool existed = keyspace_.exists(words[1]);
        if (only_new && existed) return nil_reply();
        if (expires && *expires <= keyspace_.now_ms()) {  // it ends at once
            if (existed) keyspace_.erase(words[1]);
            return ok_reply();
        }
        keyspace_.put(words[1], {.type = Type::string, .text = std::string(words[2]), .expires = expires.value_or(-1)});
        return ok_reply();
    }

    Reply get(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::string);
        return value ? Reply::of(value->text) : nil_reply();
    }

    Reply incrby(Words words) { return add(words[1], to_integer(words[2])); }
    Reply decrby(Words words) {
        const std::int64_t by = to_integer(words[2]);
        if (by == std::numeric_limits<std::int64_t>::min()) throw CommandError{"ERR decrement would overflow"};
        return add(words[1], -by);
    }

    Reply add(std::string_view key, std::int64_t by) {
        const Value* const before = keyspace_.find(key, Type::string);
        const std::int64_t after = added(before ? to_integer(before->text) : 0, by);
        keyspace_.make(key, Type::string).text = std::to_string(after);
        return Reply::of(after);
    }

    // --- hashes -------------------------------------------------------------------------------------------------

    const std::string* field_of(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::hash);
        return value ? field_of(*value, words[2]) : nullptr;
    }

    static const std::string* field_of(const Value& value, std::string_view name) {
        const auto field = value.hash.find(name);
        return field == value.hash.end() ? nullptr : &field->second;
    }

    Reply hset(Words words) {
        if (words.size() % 2 != 0) throw CommandError{"ERR wrong number of arguments for 'hset' command"};
        auto& hash = keyspace_.make(words[1], Type::hash).hash;
        const std::size_t before = hash.size();
        for (std::size_t i = 2; i < words.size(); i += 2) hash[std::string(words[i])] = words[i + 1];
        return integer_reply(hash.size() - before);
    }

    Reply hincrby(Words words) {
        const std::int64_t by = to_integer(words[3]);
        const std::string* const before = field_of(words);
        const std::int64_t after = added(before ? to_integer(*before, "ERR hash value is not an integer") : 0, by);
        keyspace_.make(words[1], Type::hash).hash[std::string(words[2])] = std::to_string(after);
        return Reply::of(after);
    }

    Reply hget(Words words) {
        const std::string* const field = field_of(words);
        return field ? Reply::of(*field) : nil_reply();
    }

    Reply hmget(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::hash);
        Reply contents = array_reply();
        for (const std::string_view name : words.subspan(2)) {
            const std::string* const field = value ? field_of(*value, name) : nullptr;
            contents.elements.push_back(field ? Reply::of(*field) : nil_reply());
        }
        return contents;
    }

    Reply hexists(Words words) { return integer_reply(field_of(words) != nullptr); }

    Reply hlen(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::hash);
        return integer_reply(value ? value->hash.size() : 0);
    }

    Reply fields(std::string_view key, bool with_values) {
        Reply all = array_reply();
        const Value* const value = keyspace_.find(key, Type::hash);
        if (!value) return all;
        for (const auto& [field, content] : value->hash) {
            all.elements.push_back(Reply::of(field));
            if (with_values) all.elements.push_back(Reply::of(content));
        }
        return all;
    }

    Reply hgetall(Words words) { return fields(words[1], true); }
    Reply hkeys(Words words) { return fields(words[1], false); }

    Reply hdel(Words words) {
        Value* const value = keyspace_.find(words[1], Type::hash);
        std::size_t removed = 0;
        for (const std::string_view field : words.subspan(2))
            if (value) removed += value->hash.erase(std::string(field));
        keyspace_.erase_if_empty(words[1]);
        return integer_reply(removed);
    }

    // --- lists --------------------------------------------------------------------------------------------------

    Reply rpush(Words words) {
        auto& all = keyspace_.make(words[1], Type::list).list;
        for (const std::string_view element : words.subspan(2)) all.emplace_back(element);
        return integer_reply(all.size());
    }

    Reply llen(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::list);
        return integer_reply(value ? value->list.size() : 0);
    }

    Reply lindex(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::list);
        if (!value) return nil_reply();
        const auto [at, end] = slice_of(value->list, words[2], words[2]);
        return at == end ? nil_reply() : Reply::of(value->list[at]);
    }

    Reply lrange(Words words) {
        Reply some = array_reply();
        const Value* const value = keyspace_.find(words[1], Type::list);
        if (!value) return some;
        const auto [begin, end] = slice_of(value->list, words[2], words[3]);
        for (std::size_t i = begin; i < end; ++i) some.elements.push_back(Reply::of(value->list[i]));
        return some;
    }

    Reply lpop(Words words) {
        Value* const value = keyspace_.find(words[1], Type::list);
        if (!value) return nil_reply();
        std::string first = std::move(value->list.front());
        value->list.pop_front();
        keyspace_.erase_if_empty(words[1]);
        return Reply::of(std::move(first));
    }

    Reply lrem(Words words) {
        if (to_integer(words[2]) != 0) throw CommandError{"ERR the modelled server removes only all equal elements"};
        Value* const value = keyspace_.find(words[1], Type::list);
        const auto removed = value ? std::erase(value->list, words[3]) : 0;
        keyspace_.erase_if_empty(words[1]);
        return integer_reply(removed);
    }

    Keyspace& keyspace_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
