// SPDX-License-Identifier: MIT
#include "simulation/keyspace.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace sim {

namespace {

using redlatch::Reply;

struct WrongType {};

Reply error(std::string text) { return Reply::of(Reply::Kind::error, std::move(text)); }
Reply nil() { return {}; }
Reply ok() { return Reply::of(std::string("OK")); }
Reply boolean(bool is) { return Reply::of(std::int64_t(is)); }

Reply list() { return {Reply::Kind::array, 0, {}, {}}; }

std::int64_t integer(std::string_view text) { return std::strtoll(std::string(text).c_str(), nullptr, 10); }

// A bound of a range of scores. '(' excludes the bound itself.
struct Bound {
    explicit Bound(std::string_view text) : open(text.starts_with('(')) {
        value = std::strtod(std::string(open ? text.substr(1) : text).c_str(), nullptr);
    }
    bool below(double score) const { return open ? value < score : value <= score; }
    bool above(double score) const { return open ? value > score : value >= score; }
    bool open;
    double value;
};

std::string score_text(double score) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", score);
    return text;
}

std::string lower(std::string_view word) {
    std::string text(word);
    std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    return text;
}

}  // namespace

Keyspace::Value* Keyspace::find(std::string_view key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return nullptr;
    // The key exists during the whole of its last millisecond.
    if (found->second.expires < 0 || found->second.expires >= now_ms()) return &found->second;
    erase(key, (found->second.expires + 1) * ms);
    return nullptr;
}

Keyspace::Value* Keyspace::find(std::string_view key, Type type) {
    Value* const value = find(key);
    if (value && value->type != type) throw WrongType{};
    return value;
}

Keyspace::Value& Keyspace::make(std::string_view key, Type type) {
    if (Value* const value = find(key, type)) return *value;
    changed(key, true, now_);
    return values_.emplace(std::string(key), Value{.type = type}).first->second;
}

void Keyspace::erase(std::string_view key, Nanos when) {
    const std::string name(key);
    values_.erase(name);
    changed(name, false, when);
}

void Keyspace::drop_if_empty(std::string_view key) {
    const Value* const v = find(key);
    if (v && v->type != Type::string && v->hash.empty() && v->list.empty() && v->zset.empty()) erase(key, now_);
}

void Keyspace::changed(std::string_view key, bool exists, Nanos when) {
    if (on_change) on_change(std::string(key), exists, when);
}

std::vector<std::string> Keyspace::keys() {
    std::vector<std::string> all;
    for (const auto& [key, _] : values_) all.push_back(key);
    std::erase_if(all, [this](const std::string& key) { return !exists(key); });
    return all;
}

void Keyspace::clear() {
    while (!values_.empty()) erase(values_.begin()->first, now_);
}

std::string Keyspace::dump() {
    std::string text;
    for (const auto& [key, value] : values_) {
        if (value.expires >= 0 && value.expires < now_ms()) continue;
        text += " " + key + "=" + value.text;
        for (const auto& [field, content] : value.hash) text += "{" + field + ":" + content + "}";
        for (const auto& element : value.list) text += "[" + element + "]";
        for (const auto& [member, score] : value.zset) text += "(" + member + ":" + score_text(score) + ")";
        if (value.expires >= 0) text += " for " + std::to_string(value.expires - now_ms()) + " ms";
    }
    return text;
}

Reply Keyspace::call(Words words) {
    const std::string name = lower(words[0]);
    try {
        if (name == "time")
            return {Reply::Kind::array,
                    0,
                    {},
                    {Reply::of(std::to_string(now_ / second)), Reply::of(std::to_string(now_ % second / us))}};
        if (name == "publish") return Reply::of(publish(words[1], words[2]));
        if (name.starts_with("h")) return call_on_hash(name, words);
        if (name.starts_with("z")) return call_on_zset(name, words);
        if (name.starts_with("l") || name == "rpush") return call_on_list(name, words);
        if (name.starts_with("get") || name.starts_with("set") || name.ends_with("by"))
            return call_on_string(name, words);
        return call_on_any(name, words);
    } catch (const WrongType&) {
        return error("WRONGTYPE Operation against a key holding the wrong kind of value");
    }
}

Reply Keyspace::call_on_any(std::string_view name, Words words) {
    if (name == "del") {
        std::int64_t removed = 0;
        for (std::size_t i = 1; i < words.size(); ++i)
            if (find(words[i])) {
                erase(words[i], now_);
                ++removed;
            }
        return Reply::of(removed);
    }
    Value* const value = find(words[1]);
    if (name == "exists" && words.size() == 2) return boolean(value != nullptr);
    if (name == "pexpire") {
        if (!value) return Reply::of(0);
        const std::int64_t length = integer(words[2]);
        if (length <= 0)
            erase(words[1], now_);
        else
            value->expires = now_ms() + length;
        return Reply::of(1);
    }
    if (name == "pttl") {
        if (!value) return Reply::of(-2);
        return Reply::of(value->expires < 0 ? -1 : value->expires - now_ms());
    }
    return error("ERR unknown command '" + std::string(name) + "'");
}

Reply Keyspace::set(Words words) {
    std::int64_t length = -1;
    bool only_new = false;
    bool length_given = false;
    for (std::size_t i = 3; i < words.size(); ++i) {
        const std::string option = lower(words[i]);
        length_given = length_given || option.starts_with("px");
        if (option == "nx")
            only_new = true;
        else if (option == "px")
            length = integer(words[++i]);
        else if (option == "pxat" && knows_pxat)
            length = integer(words[++i]) - now_ms();
        else
            return error("ERR syntax error");
    }
    const bool existed = find(words[1]) != nullptr;
    if (only_new && existed) return nil();
    if (length <= 0 && length_given) {  // it ends at once
        if (existed) erase(words[1], now_);
        return ok();
    }
    if (!existed) changed(words[1], true, now_);
    values_[std::string(words[1])] = {
        .type = Type::string, .text = std::string(words[2]), .expires = length < 0 ? -1 : now_ms() + length};
    return ok();
}

Reply Keyspace::call_on_string(std::string_view name, Words words) {
    if (name == "set") return set(words);
    if (name == "get") {
        const Value* const value = find(words[1], Type::string);
        return value ? Reply::of(value->text) : nil();
    }
    if (name == "incrby" || name == "decrby") {
        Value& value = make(words[1], Type::string);
        const std::int64_t by = integer(words[2]);
        const std::int64_t sum = integer(value.text) + (name == "incrby" ? by : -by);
        value.text = std::to_string(sum);
        return Reply::of(sum);
    }
    return error("ERR unknown command '" + std::string(name) + "'");
}

Reply Keyspace::call_on_hash(std::string_view name, Words words) {
    if (name == "hset") {
        auto& hash = make(words[1], Type::hash).hash;
        const std::size_t before = hash.size();
        for (std::size_t i = 2; i + 1 < words.size(); i += 2) hash[std::string(words[i])] = words[i + 1];
        return Reply::of(std::int64_t(hash.size() - before));
    }
    if (name == "hincrby") {
        std::string& field = make(words[1], Type::hash).hash[std::string(words[2])];
        field = std::to_string(integer(field) + integer(words[3]));
        return Reply::of(integer(field));
    }
    Value* const value = find(words[1], Type::hash);
    if (name == "hlen") return Reply::of(value ? std::int64_t(value->hash.size()) : 0);
    if (name == "hgetall" || name == "hkeys") {
        Reply all = list();
        if (value)
            for (const auto& [field, content] : value->hash) {
                all.elements.push_back(Reply::of(field));
                if (name == "hgetall") all.elements.push_back(Reply::of(content));
            }
        return all;
    }
    const bool there = value && value->hash.contains(words[2]);
    if (name == "hexists") return boolean(there);
    if (name == "hget") return there ? Reply::of(value->hash.find(words[2])->second) : nil();
    if (name == "hdel") {
        std::int64_t removed = 0;
        for (std::size_t i = 2; value && i < words.size(); ++i)
            removed += static_cast<std::int64_t>(value->hash.erase(std::string(words[i])));
        drop_if_empty(words[1]);
        return Reply::of(removed);
    }
    return error("ERR unknown command '" + std::string(name) + "'");
}

Reply Keyspace::call_on_list(std::string_view name, Words words) {
    if (name == "rpush") {
        auto& all = make(words[1], Type::list).list;
        for (std::size_t i = 2; i < words.size(); ++i) all.emplace_back(words[i]);
        return Reply::of(std::int64_t(all.size()));
    }
    Value* const value = find(words[1], Type::list);
    if (name == "llen") return Reply::of(value ? std::int64_t(value->list.size()) : 0);
    if (name == "lindex") {  // the library queries only the first element
        return value && integer(words[2]) == 0 ? Reply::of(value->list.front()) : nil();
    }
    if (name == "lrange") {  // and only the whole list
        Reply all = list();
        if (value)
            for (const std::string& element : value->list) all.elements.push_back(Reply::of(element));
        return all;
    }
    if (name == "lpop") {
        if (!value) return nil();
        std::string first = std::move(value->list.front());
        value->list.pop_front();
        drop_if_empty(words[1]);
        return Reply::of(std::move(first));
    }
    if (name == "lrem") {
        const auto removed = value ? std::erase(value->list, words[3]) : 0;
        drop_if_empty(words[1]);
        return Reply::of(std::int64_t(removed));
    }
    return error("ERR unknown command '" + std::string(name) + "'");
}

Reply Keyspace::call_on_zset(std::string_view name, Words words) {
    if (name == "zadd" && words.size() == 4) {
        auto& all = make(words[1], Type::zset).zset;
        const bool is_new = !all.contains(words[3]);
        all[std::string(words[3])] = Bound(words[2]).value;
        return boolean(is_new);
    }
    Value* const value = find(words[1], Type::zset);
    if (name == "zcard") return Reply::of(value ? std::int64_t(value->zset.size()) : 0);
    if (name == "zscore") {
        const bool there = value && value->zset.contains(words[2]);
        return there ? Reply::of(score_text(value->zset.find(words[2])->second)) : nil();
    }
    if (name == "zrem") {
        std::size_t removed = 0;
        for (std::size_t i = 2; value && i < words.size(); ++i) removed += value->zset.erase(std::string(words[i]));
        drop_if_empty(words[1]);
        return Reply::of(std::int64_t(removed));
    }
    // Ranges, sorted by score.
    std::vector<std::pair<double, std::string>> found;
    const bool by_rank = name == "zrange";
    if (value)
        for (const auto& [member, score] : value->zset)
            if (by_rank || (Bound(words[2]).below(score) && Bound(words[3]).above(score)))
                found.emplace_back(score, member);
    std::sort(found.begin(), found.end());
    if (name == "zcount") return Reply::of(std::int64_t(found.size()));
    if (name == "zremrangebyscore") {
        for (const auto& [_, member] : found) value->zset.erase(member);
        drop_if_empty(words[1]);
        return Reply::of(std::int64_t(found.size()));
    }
    if (!by_rank && name != "zrangebyscore") return error("ERR unknown command '" + std::string(name) + "'");
    std::size_t first = 0;
    std::size_t last = found.size();  // exclusive
    bool with_scores = false;
    if (by_rank) {
        const auto place = [&](std::string_view word) {
            const std::int64_t i = integer(word);
            return static_cast<std::size_t>(std::max<std::int64_t>(i < 0 ? i + std::int64_t(found.size()) : i, 0));
        };
        first = place(words[2]);
        last = found.empty() ? 0 : std::min(found.size(), place(words[3]) + 1);
    }
    for (std::size_t i = 4; i < words.size(); ++i) {
        const std::string option = lower(words[i]);
        if (option == "withscores") {
            with_scores = true;
        } else if (option == "limit") {
            first = std::min(found.size(), static_cast<std::size_t>(integer(words[i + 1])));
            last = std::min(found.size(), first + static_cast<std::size_t>(integer(words[i + 2])));
            i += 2;
        } else {
            return error("ERR syntax error");
        }
    }
    Reply all = list();
    for (std::size_t i = first; i < last; ++i) {
        all.elements.push_back(Reply::of(found[i].second));
        if (with_scores) all.elements.push_back(Reply::of(score_text(found[i].first)));
    }
    return all;
}

}  // namespace sim
