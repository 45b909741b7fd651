// SPDX-License-Identifier: MIT
// A server for unit tests, written by cmake/amalgamate.cmake from include/redlatch. Do not edit it.
#pragma once

#include "redlatch/redlatch.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <lua.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

// redlatch/testing/in_memory_connection.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What an in-memory server has for one client: replies to posted commands, and events of its subscriptions. They keep
// their order. Thread-safe; the mutex of the server may be held by callers of add() and wake(), never within run().
class InMemoryConnection {
public:
    using Event = std::function<void(Listener&)>;

    InMemoryConnection() = default;
    InMemoryConnection(const InMemoryConnection&) = delete;
    InMemoryConnection& operator=(const InMemoryConnection&) = delete;

    void add(Event event) { add({nullptr, {}, std::move(event)}); }
    void add(Completion done, Reply reply) { add({std::move(done), std::move(reply), nullptr}); }

    void wake() {
        const std::lock_guard lock(mutex_);
        woken_ = true;
        changed_.notify_all();
    }

    // Transport::run().
    void run(Listener& listener, Instant deadline) {
        std::unique_lock lock(mutex_);
        while (!woken_ && items_.empty() && Clock::now() < deadline) wait_on(changed_, lock, deadline);
        woken_ = false;
        while (!items_.empty()) deliver(lock, &listener);
    }

    // Completes the posted commands that no run() will complete, because the client ends.
    void end() {
        std::unique_lock lock(mutex_);
        while (!items_.empty()) deliver(lock, nullptr);
    }

private:
    // A completion with its reply, or an event.
    struct Item {
        Completion done;
        Reply reply;
        Event event;
    };

    void add(Item item) {
        const std::lock_guard lock(mutex_);
        items_.push_back(std::move(item));
        changed_.notify_all();
    }

    // Delivers the first item, and destroys it, without the mutex.
    void deliver(std::unique_lock<std::mutex>& lock, Listener* listener) {
        {
            Item item = std::move(items_.front());
            items_.pop_front();
            lock.unlock();
            if (item.done)
                item.done(std::move(item.reply));
            else if (listener)
                item.event(*listener);
        }
        lock.lock();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Item> items_;
    bool woken_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing/command_words.hpp

// How a modelled server reads the words of a command, and writes its reply.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Thrown by a command that fails. The text is the server's error.
struct CommandError {
    const char* text;
};

inline std::string lowered(std::string_view word) {
    std::string text(word);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return text;
}

inline std::int64_t to_integer(std::string_view text,
                               const char* otherwise = "ERR value is not an integer or out of range") {
    std::int64_t number = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc{} || end != text.data() + text.size()) throw CommandError{otherwise};
    return number;
}

inline std::int64_t added(std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    if (__builtin_add_overflow(a, b, &result)) throw CommandError{"ERR increment or decrement would overflow"};
    return result;
}

inline Reply nil_reply() { return {}; }
inline Reply ok_reply() { return Reply::of(std::string("OK")); }
inline Reply array_reply() { return Reply{Reply::Kind::array, 0, {}, {}}; }
inline Reply error_reply(std::string text) { return Reply::of(Reply::Kind::error, std::move(text)); }
template <std::integral Number>
Reply integer_reply(Number number) {
    return Reply::of(static_cast<std::int64_t>(number));
}

// A bound of a range of scores. '(' excludes the bound itself.
struct ScoreBound {
    explicit ScoreBound(std::string_view text) : open(text.starts_with('(')) {
        const std::string number(open ? text.substr(1) : text);
        char* end = nullptr;
        value = std::strtod(number.c_str(), &end);
        if (number.empty() || *end != '\0') throw CommandError{"ERR min or max is not a float"};
    }

    bool is_below(double score) const { return open ? value < score : value <= score; }
    bool is_above(double score) const { return open ? value > score : value >= score; }

    bool open;
    double value;
};

// Returns where a range of elements begins and ends. `first` and `last` count from the end if they are negative.
template <class All>
std::pair<std::size_t, std::size_t> slice_of(const All& all, std::string_view first, std::string_view last) {
    const auto size = static_cast<std::int64_t>(all.size());
    const auto place = [&](std::string_view word) {
        const std::int64_t at = to_integer(word);
        return at < 0 ? std::max<std::int64_t>(at + size, -1) : std::min(at, size);
    };
    const std::int64_t begin = std::max<std::int64_t>(place(first), 0);
    const std::int64_t end = std::max(begin, std::min(place(last) + 1, size));
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing/keyspace.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the text of a score as Redis writes it.
inline std::string score_text(double score) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", score);
    return text;
}

// The data of a modelled Redis server: strings, hashes, lists, sorted sets and expiry. Leases end by its clock, which
// counts milliseconds and moves only in set_time(). Not thread-safe.
class Keyspace {
public:
    enum class Type { string, hash, list, zset };

    struct Value {
        Type type;
        std::string text{};
        std::map<std::string, std::string, std::less<>> hash{};
        std::deque<std::string> list{};
        std::map<std::string, double, std::less<>> zset{};
        ServerMilliseconds expires = -1;  // never if negative

        bool is_empty() const { return type != Type::string && hash.empty() && list.empty() && zset.empty(); }
    };

    // Thrown if a key holds a value of another type than a command needs.
    struct WrongType {};

    // Called for each key that appears or ends, with the instant of the change.
    std::function<void(const std::string& key, bool exists, std::chrono::nanoseconds when)> on_change;

    void set_time(std::chrono::nanoseconds now) { now_ = now; }
    std::chrono::nanoseconds now() const { return now_; }
    ServerMilliseconds now_ms() const { return std::chrono::floor<Milliseconds>(now_).count(); }

    // Returns the value of a key, or null if there is none.
    Value* find(std::string_view key) {
        const auto found = values_.find(key);
        if (found == values_.end()) return nullptr;
        if (!is_over(found->second)) return &found->second;
        erase(key, Milliseconds(found->second.expires + 1));
        return nullptr;
    }

    Value* find(std::string_view key, Type type) {
        Value* const value = find(key);
        if (value && value->type != type) throw WrongType{};
        return value;
    }

    // Returns the value of a key, which is a new one if there is none.
    Value& make(std::string_view key, Type type) {
        if (Value* const value = find(key, type)) return *value;
        return put(key, {.type = type});
    }

    // Replaces the value of a key, of whichever type it is.
    Value& put(std::string_view key, Value value) {
        if (!find(key)) changed(std::string(key), true, now_);
        return values_.insert_or_assign(std::string(key), std::move(value)).first->second;
    }

    void erase(std::string_view key) { erase(key, now_); }

    // An empty collection does not exist.
    void erase_if_empty(std::string_view key) {
        if (const Value* const value = find(key); value && value->is_empty()) erase(key);
    }

    bool exists(std::string_view key) { return find(key) != nullptr; }

    std::vector<std::string> keys() {
        std::vector<std::string> all;
        for (const auto& [key, _] : values_) all.push_back(key);
        std::erase_if(all, [this](const std::string& key) { return !exists(key); });
        return all;
    }

    void clear() {
        while (!values_.empty()) erase(values_.begin()->first);
    }

    // Returns all data as one line, for the messages of tests.
    std::string dump() const {
        std::string text;
        for (const auto& [key, value] : values_) {
            if (is_over(value)) continue;
            text += " " + key + "=" + value.text;
            for (const auto& [field, content] : value.hash) text += "{" + field + ":" + content + "}";
            for (const auto& element : value.list) text += "[" + element + "]";
            for (const auto& [member, score] : value.zset) text += "(" + member + ":" + score_text(score) + ")";
            if (value.expires >= 0) text += " for " + std::to_string(value.expires - now_ms()) + " ms";
        }
        return text;
    }

private:
    // The key exists during the whole of its last millisecond.
    bool is_over(const Value& value) const { return value.expires >= 0 && value.expires < now_ms(); }

    void erase(std::string_view key, std::chrono::nanoseconds when) {
        const std::string name(key);  // `key` may be in the entry itself
        values_.erase(name);
        changed(name, false, when);
    }

    void changed(const std::string& key, bool exists, std::chrono::nanoseconds when) {
        if (on_change) on_change(key, exists, when);
    }

    std::map<std::string, Value, std::less<>> values_;
    std::chrono::nanoseconds now_{0};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing/sorted_set_commands.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The commands on sorted sets of a modelled server. See Commands.
class SortedSetCommands {
public:
    using Words = std::span<const std::string_view>;

    explicit SortedSetCommands(Keyspace& keyspace) : keyspace_(keyspace) {}

    Reply zadd(Words words) {
        if (words.size() % 2 != 0) throw CommandError{"ERR syntax error"};
        std::vector<double> scores;
        for (std::size_t i = 2; i < words.size(); i += 2) {
            const ScoreBound score(words[i]);
            if (score.open) throw CommandError{"ERR value is not a valid float"};
            scores.push_back(score.value);
        }
        auto& all = keyspace_.make(words[1], Type::zset).zset;
        const std::size_t before = all.size();
        for (std::size_t i = 0; i < scores.size(); ++i) all.insert_or_assign(std::string(words[2 * i + 3]), scores[i]);
        return integer_reply(all.size() - before);
    }

    Reply zcard(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::zset);
        return integer_reply(value ? value->zset.size() : 0);
    }

    Reply zscore(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::zset);
        if (!value) return nil_reply();
        const auto member = value->zset.find(words[2]);
        return member == value->zset.end() ? nil_reply() : Reply::of(score_text(member->second));
    }

    Reply zrem(Words words) {
        Value* const value = keyspace_.find(words[1], Type::zset);
        std::size_t removed = 0;
        for (const std::string_view member : words.subspan(2))
            if (value) removed += value->zset.erase(std::string(member));
        keyspace_.erase_if_empty(words[1]);
        return integer_reply(removed);
    }

    Reply zcount(Words words) {
        const ScoreBound least(words[2]);
        const ScoreBound most(words[3]);
        return integer_reply(scored(words[1], &least, &most).size());
    }

    Reply zremrangebyscore(Words words) {
        const ScoreBound least(words[2]);
        const ScoreBound most(words[3]);
        const Scored found = scored(words[1], &least, &most);
        for (const auto& [_, member] : found) keyspace_.find(words[1])->zset.erase(member);
        keyspace_.erase_if_empty(words[1]);
        return integer_reply(found.size());
    }

    Reply zrange(Words words) {
        const bool with_scores = words.size() == 5;
        if (with_scores && lowered(words[4]) != "withscores") throw CommandError{"ERR syntax error"};
        const Scored all = scored(words[1]);
        const auto [begin, end] = slice_of(all, words[2], words[3]);
        return members(all, begin, end, with_scores);
    }

    Reply zrangebyscore(Words words) {
        const ScoreBound least(words[2]);
        const ScoreBound most(words[3]);
        const Scored found = scored(words[1], &least, &most);
        std::size_t begin = 0;
        std::size_t end = found.size();
        bool with_scores = false;
        for (std::size_t i = 4; i < words.size(); ++i) {
            const std::string option = lowered(words[i]);
            if (option == "withscores") {
                with_scores = true;
            } else if (option == "limit" && i + 2 < words.size()) {
                begin = std::min(found.size(), static_cast<std::size_t>(to_integer(words[i + 1])));
                end = std::min(found.size() - begin, static_cast<std::size_t>(to_integer(words[i + 2]))) + begin;
                i += 2;
            } else {
                throw CommandError{"ERR syntax error"};
            }
        }
        return members(found, begin, end, with_scores);
    }

private:
    using Type = Keyspace::Type;
    using Value = Keyspace::Value;
    using Scored = std::vector<std::pair<double, std::string>>;

    // Returns the members with scores in a range, or all of them, sorted by score.
    Scored scored(std::string_view key, const ScoreBound* least = nullptr, const ScoreBound* most = nullptr) {
        Scored found;
        const Value* const value = keyspace_.find(key, Type::zset);
        if (!value) return found;
        for (const auto& [member, score] : value->zset)
            if ((!least || least->is_below(score)) && (!most || most->is_above(score)))
                found.emplace_back(score, member);
        std::sort(found.begin(), found.end());
        return found;
    }

    static Reply members(const Scored& found, std::size_t begin, std::size_t end, bool with_scores) {
        Reply all = array_reply();
        for (std::size_t i = begin; i < end; ++i) {
            all.elements.push_back(Reply::of(found[i].second));
            if (with_scores) all.elements.push_back(Reply::of(score_text(found[i].first)));
        }
        return all;
    }

    Keyspace& keyspace_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing/commands.hpp

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

// redlatch/testing/script_host.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Runs scripts in Lua 5.1, the version inside Redis, on the commands of a modelled server. Keeps each script in its
// compiled form. Not thread-safe; one host may serve several servers, one after the other.
class ScriptHost {
public:
    using Words = Commands::Words;

    ScriptHost() : lua_(luaL_newstate()) {
        if (!lua_) throw std::bad_alloc();
        static constexpr luaL_Reg libraries[] = {
            {"", luaopen_base}, {"table", luaopen_table}, {"string", luaopen_string}, {"math", luaopen_math}};
        for (const luaL_Reg& library : libraries) {
            lua_pushcfunction(lua(), library.func);
            lua_pushstring(lua(), library.name);
            lua_call(lua(), 1, 0);
        }
        lua_newtable(lua());
        add_function("call", redis_call);
        add_function("pcall", redis_pcall);
        add_function("error_reply", error_reply);
        add_function("status_reply", status_reply);
        lua_setglobal(lua(), "redis");
    }
    ScriptHost(const ScriptHost&) = delete;
    ScriptHost& operator=(const ScriptHost&) = delete;

    Reply run(Commands& commands, std::string_view text, Words keys, Words arguments) {
        lua_settop(lua(), 0);  // an earlier run may have ended by an exception
        auto script = compiled_.find(text);
        if (script == compiled_.end()) {
            if (luaL_loadbuffer(lua(), text.data(), text.size(), "=script") != 0)
                return Reply::of(Reply::Kind::error, "ERR Error compiling script: " + pop(lua()).text);
            script = compiled_.emplace(std::string(text), luaL_ref(lua(), LUA_REGISTRYINDEX)).first;
        }
        commands_ = &commands;
        set_table("KEYS", keys);
        set_table("ARGV", arguments);
        lua_rawgeti(lua(), LUA_REGISTRYINDEX, script->second);
        const bool failed = lua_pcall(lua(), 0, 1, 0) != 0;
        Reply reply = pop(lua());
        // An error of Redis is a table, an error of Lua is a text.
        if (failed && !reply.is_error())
            reply = Reply::of(Reply::Kind::error, "ERR Error running script: " + reply.text);
        return reply;
    }

private:
    lua_State* lua() const { return lua_.get(); }

    void add_function(const char* name, lua_CFunction function) {
        lua_pushlightuserdata(lua(), this);
        lua_pushcclosure(lua(), function, 1);
        lua_setfield(lua(), -2, name);
    }

    void set_table(const char* name, Words words) {
        lua_createtable(lua(), static_cast<int>(words.size()), 0);
        for (std::size_t i = 0; i < words.size(); ++i) {
            push_text(lua(), words[i]);
            lua_rawseti(lua(), -2, static_cast<int>(i + 1));
        }
        lua_setglobal(lua(), name);
    }

    // --- values -------------------------------------------------------------------------------------------------

    static void push_text(lua_State* lua, std::string_view text) { lua_pushlstring(lua, text.data(), text.size()); }

    static void push_field(lua_State* lua, const char* field, std::string_view text) {
        lua_createtable(lua, 0, 1);
        push_text(lua, text);
        lua_setfield(lua, -2, field);
    }

    // Converts a reply as Redis does.
    static void push(lua_State* lua, const Reply& reply) {
        switch (reply.kind) {
            case Reply::Kind::integer: lua_pushnumber(lua, static_cast<lua_Number>(reply.integer)); break;
            case Reply::Kind::text: push_text(lua, reply.text); break;
            case Reply::Kind::error: push_field(lua, "err", reply.text); break;
            case Reply::Kind::array:
                lua_createtable(lua, static_cast<int>(reply.elements.size()), 0);
                for (std::size_t i = 0; i < reply.elements.size(); ++i) {
                    push(lua, reply.elements[i]);
                    lua_rawseti(lua, -2, static_cast<int>(i + 1));
                }
                break;
            default: lua_pushboolean(lua, 0);
        }
    }

    // Returns the text of an argument. Redis writes numbers with more digits than Lua does.
    static std::string text_at(lua_State* lua, int index) {
        if (lua_type(lua, index) == LUA_TNUMBER) {
            char digits[40];
            std::snprintf(digits, sizeof digits, "%.17g", lua_tonumber(lua, index));
            return digits;
        }
        std::size_t size = 0;
        const char* const text = lua_tolstring(lua, index, &size);
        return text ? std::string(text, size) : std::string();
    }

    // Converts a script's answer as Redis does, and removes it from the stack.
    static Reply pop(lua_State* lua) {
        Reply reply;
        switch (lua_type(lua, -1)) {
            case LUA_TNUMBER: reply = Reply::of(static_cast<std::int64_t>(lua_tonumber(lua, -1))); break;
            case LUA_TSTRING: reply = Reply::of(text_at(lua, -1)); break;
            case LUA_TBOOLEAN:
                if (lua_toboolean(lua, -1)) reply = Reply::of(1);
                break;
            case LUA_TTABLE: reply = table(lua); break;
            default: break;
        }
        lua_pop(lua, 1);
        return reply;
    }

    static Reply table(lua_State* lua) {
        for (const auto& [field, kind] : {std::pair("err", Reply::Kind::error), {"ok", Reply::Kind::text}}) {
            lua_getfield(lua, -1, field);
            if (Reply found = pop(lua); found.kind == Reply::Kind::text) return Reply::of(kind, std::move(found.text));
        }
        Reply all{Reply::Kind::array, 0, {}, {}};
        for (int i = 1;; ++i) {
            lua_rawgeti(lua, -1, i);
            if (lua_isnil(lua, -1)) break;
            all.elements.push_back(pop(lua));
        }
        lua_pop(lua, 1);
        return all;
    }

    // --- the functions that scripts call ------------------------------------------------------------------------

    // Returns false for an error, which is on the stack like any reply. Lua leaves a function by longjmp, which must not
    // skip a destructor: so this one leaves no object behind, and it lets no exception pass through Lua.
    static bool call_command(lua_State* lua) {
        try {
            auto* const host = static_cast<ScriptHost*>(lua_touserdata(lua, lua_upvalueindex(1)));
            std::vector<std::string> texts;
            for (int i = 1; i <= lua_gettop(lua); ++i) texts.push_back(text_at(lua, i));
            const std::vector<std::string_view> words(texts.begin(), texts.end());
            const Reply reply = words.empty() ? Reply::of(Reply::Kind::error, "ERR Please specify a command")
                                              : host->commands_->call(words);
            push(lua, reply);
            return !reply.is_error();
        } catch (const std::bad_alloc&) {
            push_field(lua, "err", "ERR out of memory");
            return false;
        }
    }

    static int redis_call(lua_State* lua) {
        if (!call_command(lua)) return lua_error(lua);
        return 1;
    }

    static int redis_pcall(lua_State* lua) {
        call_command(lua);
        return 1;
    }

    static int table_with(lua_State* lua, const char* field) {
        lua_createtable(lua, 0, 1);
        lua_pushvalue(lua, 1);
        lua_setfield(lua, -2, field);
        return 1;
    }

    static int error_reply(lua_State* lua) { return table_with(lua, "err"); }
    static int status_reply(lua_State* lua) { return table_with(lua, "ok"); }

    struct Close {
        void operator()(lua_State* lua) const { lua_close(lua); }
    };

    const std::unique_ptr<lua_State, Close> lua_;
    std::map<std::string, int, std::less<>> compiled_;  // the numbers of the scripts in Lua's registry, by text
    Commands* commands_ = nullptr;                      // those that the running script calls
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing/sha1.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the SHA-1 in 40 hex digits: the name under which Redis caches a script (FIPS 180-4, 6.1). The library names its
// scripts by checked-in digests; the server in memory and cmake/digests.cmake compute them.
constexpr std::array<char, 40> sha1_hex(std::string_view text) {
    std::uint32_t hash[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    const char* const data = text.data();
    const std::size_t size = text.size();
    const std::size_t blocks = (size + 8) / 64 + 1;

    for (std::size_t block = 0; block < blocks; ++block) {
        std::uint32_t w[80] = {};
        for (std::size_t i = 0, at = block * 64; i < 16; ++i, at += 4) {
            if (at + 4 <= size) {
                w[i] = static_cast<std::uint32_t>(static_cast<unsigned char>(data[at])) << 24 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 1])) << 16 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 2])) << 8 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 3]));
            } else {
                // The end of the text, followed by a one bit and zeros.
                for (std::size_t j = 0; j < 4; ++j)
                    w[i] = w[i] << 8 |
                           (at + j < size    ? static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + j]))
                            : at + j == size ? 0x80u
                                             : 0u);
            }
        }
        if (block + 1 == blocks) {
            w[14] = static_cast<std::uint32_t>(static_cast<std::uint64_t>(size) >> 29);
            w[15] = static_cast<std::uint32_t>(size << 3);
        }
        for (std::size_t i = 16; i < 80; ++i) {
            const std::uint32_t x = w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16];
            w[i] = x << 1 | x >> 31;
        }

        std::uint32_t a = hash[0], b = hash[1], c = hash[2], d = hash[3], e = hash[4];
        for (std::size_t i = 0; i < 80; ++i) {
            std::uint32_t next = (a << 5 | a >> 27) + e + w[i];
            if (i < 20)
                next += (d ^ (b & (c ^ d))) + 0x5a827999;
            else if (i < 40)
                next += (b ^ c ^ d) + 0x6ed9eba1;
            else if (i < 60)
                next += ((b & c) | (d & (b | c))) + 0x8f1bbcdc;
            else
                next += (b ^ c ^ d) + 0xca62c1d6;
            e = d;
            d = c;
            c = b << 30 | b >> 2;
            b = a;
            a = next;
        }
        hash[0] += a;
        hash[1] += b;
        hash[2] += c;
        hash[3] += d;
        hash[4] += e;
    }

    constexpr char digits[] = "0123456789abcdef";
    std::array<char, 40> hex{};
    for (std::size_t i = 0; i < 40; ++i) hex[i] = digits[(hash[i / 8] >> (28 - 4 * (i % 8))) & 15];
    return hex;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing/server_model.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A Redis server without a network: carries out everything that the library sends, except subscriptions. It runs the
// library's own scripts. The server inside the process (redlatch/testing.hpp) and the simulation are made of it. Not
// thread-safe.
class ServerModel {
public:
    using Words = Commands::Words;

    // `scripts` must live longer.
    explicit ServerModel(ScriptHost& scripts) : scripts_(scripts) {}
    ServerModel(const ServerModel&) = delete;
    ServerModel& operator=(const ServerModel&) = delete;

    Keyspace keyspace;
    Commands commands{keyspace};

    // When it was started, by its own clock.
    std::chrono::nanoseconds started{0};

    // Carries out one command at the time of the keyspace.
    Reply execute(Words words) {
        const std::string name = words.empty() ? std::string() : lowered(words[0]);
        if (name == "eval" || name == "evalsha") return run_script(words, name == "evalsha");
        if (name == "info") return Reply::of(info());
        if (name == "config") return config(words);
        if (words.empty()) return Reply::of(Reply::Kind::error, "ERR empty command");
        return commands.call(words);
    }

    // As after a restart.
    void forget_scripts() { known_.clear(); }

private:
    Reply run_script(Words words, bool by_digest) try {
        if (words.size() < 3) throw CommandError{"ERR wrong number of arguments for 'eval' command"};
        const auto keys = static_cast<std::size_t>(to_integer(words[2]));
        if (keys > words.size() - 3) throw CommandError{"ERR Number of keys can't be greater than number of args"};
        auto script = known_.find(by_digest ? words[1] : std::string_view(digest_of(words[1])));
        if (script == known_.end()) {
            if (by_digest) throw CommandError{"NOSCRIPT No matching script. Please use EVAL."};
            script = known_.emplace(digest_of(words[1]), words[1]).first;
        }
        return scripts_.run(commands, script->second, words.subspan(3, keys), words.subspan(3 + keys));
    } catch (const CommandError& failure) {
        return Reply::of(Reply::Kind::error, failure.text);
    }

    static std::string digest_of(std::string_view text) {
        const auto digest = sha1_hex(text);
        return {digest.data(), digest.size()};
    }

    // What RedLock and Client::check_server() read: a server that keeps its data and evicts nothing.
    std::string info() const {
        const auto uptime = std::chrono::floor<std::chrono::seconds>(keyspace.now() - started).count();
        return "# Server\r\nredis_version:7.0.0\r\nuptime_in_seconds:" + std::to_string(uptime) +
               "\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n"
               "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n";
    }

    static Reply config(Words words) {
        if (words.size() != 3 || lowered(words[1]) != "get")
            return Reply::of(Reply::Kind::error, "ERR the modelled server knows only CONFIG GET with one name");
        Reply pair{Reply::Kind::array, 0, {}, {}};
        if (words[2] == "min-replicas-to-write" || words[2] == "save" || words[2] == "client-output-buffer-limit")
            pair.elements = {Reply::of(std::string(words[2])),
                             Reply::of(std::string(words[2] == "min-replicas-to-write" ? "0" : ""))};
        return pair;
    }

    ScriptHost& scripts_;
    std::map<std::string, std::string, std::less<>> known_;  // the texts of the scripts, by digest
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing/in_memory_redis.hpp

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The state that an InMemoryServer shares with its transports: the model of a server, its clock, its clients and its
// faults. Thread-safe: mutex_ guards all members. Only a call() to a server that refuses waits.
class InMemoryRedis {
public:
    using Words = ServerModel::Words;

    InMemoryRedis() {
        model_.commands.publish = [this](std::string_view channel, std::string_view payload) {
            return publish(channel, payload);
        };
        model_.commands.subscribers = [this](std::string_view channel) {
            return std::count_if(clients_.begin(), clients_.end(), [&](const auto& entry) {
                return entry.second.channels.contains(std::string(channel));
            });
        };
        // Old enough to vote for a RedLock.
        model_.started = now() - std::chrono::hours(24);
    }
    InMemoryRedis(const InMemoryRedis&) = delete;
    InMemoryRedis& operator=(const InMemoryRedis&) = delete;

    // --- clients ------------------------------------------------------------------------------------------------

    std::shared_ptr<InMemoryConnection> connect() {
        auto connection = std::make_shared<InMemoryConnection>();
        const std::lock_guard lock(mutex_);
        clients_.emplace(connection.get(), Client{});
        return connection;
    }

    void disconnect(InMemoryConnection& connection) {
        const std::lock_guard lock(mutex_);
        clients_.erase(&connection);
    }

    Reply call(InMemoryConnection& from, Words words, Instant deadline) {
        std::unique_lock lock(mutex_);
        while (refuses_ && Clock::now() < deadline) wait_on(refuses_no_more_, lock, deadline);
        return refuses_ ? refusal() : carry_out(from, words);
    }

    void post(InMemoryConnection& from, Words words, Completion done) {
        const std::lock_guard lock(mutex_);
        // The reply keeps its place among the messages: scripts publish, too.
        Reply reply = refuses_ ? refusal() : carry_out(from, words);
        from.add(std::move(done), std::move(reply));
    }

    void subscribe(InMemoryConnection& from, const std::string& channel) {
        const std::lock_guard lock(mutex_);
        clients_[&from].channels.insert(channel);
        if (!refuses_) confirm(from, channel);
    }

    void unsubscribe(InMemoryConnection& from, const std::string& channel) {
        const std::lock_guard lock(mutex_);
        clients_[&from].channels.erase(channel);
    }

    // --- the test -----------------------------------------------------------------------------------------------

    Reply command(Words words) {
        const std::lock_guard lock(mutex_);
        return at_present().execute(words);
    }

    std::vector<std::string> keys() {
        const std::lock_guard lock(mutex_);
        return at_present().keyspace.keys();
    }

    std::vector<std::string> channels() const {
        const std::lock_guard lock(mutex_);
        std::set<std::string> all;
        for (const auto& [_, client] : clients_) all.insert(client.channels.begin(), client.channels.end());
        return {all.begin(), all.end()};
    }

    std::chrono::nanoseconds time() const {
        const std::lock_guard lock(mutex_);
        return now();
    }

    void advance(std::chrono::nanoseconds by) {
        const std::lock_guard lock(mutex_);
        offset_ += by;
        for (auto& [connection, client] : clients_) {
            client.knows_time = false;
            look_again(*connection, client);
        }
    }

    void freeze_clock(bool frozen) {
        const std::lock_guard lock(mutex_);
        if (frozen == frozen_) return;
        const auto running = Clock::now().time_since_epoch();
        offset_ += frozen ? running : -running;
        frozen_ = frozen;
    }

    void refuse(bool refuses) {
        const std::lock_guard lock(mutex_);
        if (refuses == std::exchange(refuses_, refuses)) return;
        for (auto& [connection, client] : clients_) {
            if (client.channels.empty()) continue;
            if (refuses) connection->add([](Listener& listener) { listener.disconnected(); });
            for (const std::string& channel : client.channels)
                if (!refuses) confirm(*connection, channel);
        }
        refuses_no_more_.notify_all();
    }

    void drop_replies(std::size_t count) {
        const std::lock_guard lock(mutex_);
        replies_to_drop_ = count;
    }

    void flush() {
        const std::lock_guard lock(mutex_);
        at_present().keyspace.clear();
    }

    void fail_over() {
        const std::lock_guard lock(mutex_);
        for (auto& [connection, client] : clients_) {
            connection->add([](Listener& listener) { listener.on_failover(); });
            look_again(*connection, client);
        }
    }

private:
    struct Client {
        std::set<std::string> channels{};  // that it subscribes to
        bool knows_time = true;            // it has learned the time since the clock was moved
    };

    // Since 1970.
    std::chrono::nanoseconds now() const { return frozen_ ? offset_ : offset_ + Clock::now().time_since_epoch(); }

    ServerModel& at_present() {
        model_.keyspace.set_time(now());
        return model_;
    }

    static Reply refusal() { return Reply::of(Reply::Kind::not_sent, "the in-memory server refuses connections"); }

    Reply carry_out(InMemoryConnection& from, Words words) {
        ServerModel& model = at_present();
        Client& client = clients_[&from];
        if (names_old_instant(client, words)) return late(client);
        Reply reply = model.execute(words);
        if (words[0] == "TIME") client.knows_time = true;
        if (reply.text.starts_with("LATE ") || reply.text.starts_with("OK ")) client.knows_time = true;
        // What the library asks on the way does not count: the test means the command that changes something.
        if (replies_to_drop_ == 0 || words[0] == "TIME" || reply.text.starts_with("NOSCRIPT")) return reply;
        --replies_to_drop_;
        return Reply::of(Reply::Kind::unanswered, "the in-memory server dropped the reply");
    }

    // A Mutex names the end of its lease by a reading of the clock that is younger than a second. On a real server that
    // is enough, because its clock does not jump. Here it would end at once, and two clients would hold the Mutex.
    static bool names_old_instant(const Client& client, Words words) {
        if (client.knows_time || words[0] != "SET") return false;
        for (const std::string_view word : words)
            if (word == "PXAT") return true;
        return false;
    }

    Reply late(Client& client) {
        client.knows_time = true;
        return Reply::of(Reply::Kind::error, "LATE " + std::to_string(model_.keyspace.now_ms()));
    }

    std::int64_t publish(std::string_view channel, std::string_view payload) {
        std::int64_t receivers = 0;
        for (auto& [connection, client] : clients_) {
            const auto found = client.channels.find(std::string(channel));
            if (found == client.channels.end()) continue;
            ++receivers;
            connection->add([channel = *found, payload = std::string(payload)](Listener& listener) {
                listener.message(channel, payload);
            });
        }
        return receivers;
    }

    static void confirm(InMemoryConnection& connection, const std::string& channel) {
        connection.add([channel](Listener& listener) { listener.subscribed(channel); });
    }

    // Makes the waiters of a client try again, as after an interruption of their subscriptions.
    void look_again(InMemoryConnection& connection, const Client& client) {
        if (refuses_) return;
        for (const std::string& channel : client.channels) {
            connection.add([channel](Listener& listener) { listener.interrupted(channel); });
            confirm(connection, channel);
        }
    }

    mutable std::mutex mutex_;
    std::condition_variable refuses_no_more_;
    ScriptHost scripts_;
    ServerModel model_{scripts_};
    std::map<InMemoryConnection*, Client> clients_;
    // Added to the steady clock, unless the clock of the server is frozen; then it is the time.
    std::chrono::nanoseconds offset_ =
        std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
    bool frozen_ = false;
    bool refuses_ = false;
    std::size_t replies_to_drop_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/testing.hpp

// A Redis server inside the process, for unit tests of programs that use redlatch. Not part of redlatch.hpp, because it
// needs Lua 5.1 to run the library's scripts: link redlatch::testing, or -llua5.1.
//
//     redlatch::testing::InMemoryServer server;
//     redlatch::Client shop{server.transport()}, rival{server.transport()};
//     redlatch::RLock order{shop, "order"}, same_order{rival, "order"};
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace testing {

// Connects one client to an InMemoryServer, which it may outlive. Replies arrive at once. After a fork() the child has
// no server: its commands fail as they do if a server cannot be reached.
class InMemoryTransport {
public:
    // Connects to the server. InMemoryServer::transport() does it.
    explicit InMemoryTransport(std::shared_ptr<detail::InMemoryRedis> server)
        : server_(std::move(server)), connection_(server_->connect()) {}
    // Takes over the connection.
    InMemoryTransport(InMemoryTransport&&) = default;
    InMemoryTransport& operator=(InMemoryTransport&&) = delete;

    // Ends the connection. Completes the posted commands that no run() will complete.
    ~InMemoryTransport() {
        // First, because completions may post more.
        if (connection_) connection_->end();
        if (server_) server_->disconnect(*connection_);
    }

    // Carries the command out: see CallsAndWaits.
    Reply call(const Command& command, Instant deadline) {
        if (server_) return server_->call(*connection_, command.words, deadline);
        if (deadline != never) std::this_thread::sleep_until(deadline);
        return no_server();
    }

    // Carries the commands out, one after another: see CallsSeveral.
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        std::vector<Reply> replies;
        for (const Command& command : commands) replies.push_back(call(command, deadline));
        return replies;
    }

    // Carries the command out; run() calls the completion: see Posts.
    void post(const Command& command, Completion done) {
        if (server_) return server_->post(*connection_, command.words, std::move(done));
        connection_->add(std::move(done), no_server());
    }

    // Subscribes to the channel: see Subscribes.
    void subscribe(const std::string& channel) {
        if (server_) server_->subscribe(*connection_, channel);
    }

    // Ends the subscription to the channel: see Subscribes.
    void unsubscribe(const std::string& channel) {
        if (server_) server_->unsubscribe(*connection_, channel);
    }

    // Delivers messages and completions: see Subscribes.
    void run(Listener& listener, Instant deadline) { connection_->run(listener, deadline); }

    // Makes run() return: see Subscribes.
    void wake() { connection_->wake(); }

    // Returns 0: there is one place for all keys.
    std::uint32_t route(std::string_view) const noexcept { return 0; }

    // Returns PUBLISH.
    std::string_view publish_command() const noexcept { return "PUBLISH"; }

    // Returns the beginning of time: it is always the same one. See TellsServer.
    std::optional<Instant> same_server_since() const noexcept { return Instant{}; }

    // Returns a transport for a forked child, where there is no server: see SurvivesFork.
    InMemoryTransport clone_after_fork() { return InMemoryTransport(); }

private:
    InMemoryTransport() : connection_(std::make_shared<detail::InMemoryConnection>()) {}

    static Reply no_server() {
        return Reply::of(Reply::Kind::not_sent, "an in-memory server does not outlive a fork()");
    }

    std::shared_ptr<detail::InMemoryRedis> server_;
    std::shared_ptr<detail::InMemoryConnection> connection_;
};

static_assert(Transport<InMemoryTransport>);

// A Redis server without a socket. All primitives work on it, between any number of clients; for a RedLock use several
// servers. It has no replicas and no disk, so a client or an object with require_replicas or require_fsync is refused.
// Any thread may call any function.
//
// Time. The server has a clock of its own. It starts at the present and runs with real time; advance() moves it. What
// the server decides follows this clock: keys expire, permits end, late commands are refused. What a client decides
// follows the steady clock of the process, which advance() does not move: when the watchdog renews, when a wait is
// over, when lost() is requested because a lease may have ended. So after advance():
//   - Waiters look again at once, and get what has expired.
//   - The holder of an expired lock finds out when it next asks the server: at its next renewal (a third of
//     ClientOptions::watchdog_timeout, so choose a short one), at is_held(), at unlock(), or soon after
//     fail_over(). Then lost() is requested.
//   - A hold that is renewed in time never expires by itself. advance() by more than its lease is a process that was
//     paused for as long. The lease of a hold that a release handed on is 2 s until its first renewal.
class InMemoryServer {
public:
    // Starts an empty server.
    InMemoryServer() = default;
    InMemoryServer(const InMemoryServer&) = delete;
    InMemoryServer& operator=(const InMemoryServer&) = delete;

    // Returns a connection for a new client: Client client{server.transport()}.
    InMemoryTransport transport() const { return InMemoryTransport(server_); }

    // --- the clock ------------------------------------------------------------------------------------------------

    // Returns the server's time.
    std::chrono::system_clock::time_point now() const {
        return std::chrono::system_clock::time_point(
            std::chrono::duration_cast<std::chrono::system_clock::duration>(server_->time()));
    }

    // Moves the clock. It goes on from there.
    void advance(std::chrono::nanoseconds by) { server_->advance(by); }

    // Stops the clock, except for advance(), or lets it run again.
    void freeze_clock(bool frozen = true) { server_->freeze_clock(frozen); }

    // --- faults ---------------------------------------------------------------------------------------------------

    // Makes the server unreachable, or reachable again. Subscriptions end, and are made again. A call waits for the
    // server as it does for a real one, so choose a short ClientOptions::unreachable_timeout.
    void refuse(bool refuses = true) { server_->refuse(refuses); }

    // Carries out the next commands, but loses their replies. Queries of the time do not count.
    void drop_replies(std::size_t count) { server_->drop_replies(count); }

    // Deletes all data, as a restart without persistence does.
    void flush() { server_->flush(); }

    // Tells all clients that another server with the same data is the master now. They verify their holds at once, so a
    // hold that has expired, or that flush() deleted, is lost within a second. Raises Event::Kind::moved.
    void fail_over() { server_->fail_over(); }

    // --- the data -------------------------------------------------------------------------------------------------

    // Carries out a command as another program would: server.command({"GET", "key"}). Knows those that the library
    // sends; another one is an error.
    Reply command(std::span<const std::string_view> words) { return server_->command(words); }
    Reply command(std::initializer_list<std::string_view> words) {
        return command(std::span<const std::string_view>(words.begin(), words.size()));
    }

    // Returns all keys, sorted.
    std::vector<std::string> keys() const { return server_->keys(); }

    // Returns the channels to which some client subscribes, sorted.
    std::vector<std::string> channels() const { return server_->channels(); }

private:
    const std::shared_ptr<detail::InMemoryRedis> server_ = std::make_shared<detail::InMemoryRedis>();
};

}  // namespace testing
}  // namespace REDLATCH_ABI
}  // namespace redlatch
