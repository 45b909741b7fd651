// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/time.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
