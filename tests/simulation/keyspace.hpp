// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/library.hpp"
#include "simulation/random.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

// The data of one Redis server, as far as the library uses it: strings, hashes, lists, sorted sets and expiry. Its
// clock counts milliseconds and stands still during a script.
class Keyspace {
public:
    using Words = std::span<const std::string_view>;

    // Delivers a PUBLISH. Returns the number of listeners.
    std::function<std::int64_t(std::string_view channel, std::string_view payload)> publish;

    // Called for each key that is written or expires, with the instant of the change.
    std::function<void(const std::string& key, bool exists, Nanos when)> on_change;
    bool knows_pxat = true;  // servers before 6.2 do not

    void set_time(Nanos now) { now_ = now; }
    redlatch::Reply call(Words words);

    bool exists(std::string_view key) { return find(key) != nullptr; }
    std::string dump();
    std::vector<std::string> keys();
    void clear();

private:
    enum class Type { string, hash, list, zset };
    struct Value {
        Type type;
        std::string text{};
        std::map<std::string, std::string, std::less<>> hash{};
        std::deque<std::string> list{};
        std::map<std::string, double, std::less<>> zset{};
        std::int64_t expires = -1;  // in ms
    };

    std::int64_t now_ms() const { return now_ / ms; }
    Value* find(std::string_view key);
    Value* find(std::string_view key, Type type);
    Value& make(std::string_view key, Type type);
    void erase(std::string_view key, Nanos when);
    void drop_if_empty(std::string_view key);
    void changed(std::string_view key, bool exists, Nanos when);

    redlatch::Reply call_on_any(std::string_view name, Words words);
    redlatch::Reply call_on_string(std::string_view name, Words words);
    redlatch::Reply call_on_hash(std::string_view name, Words words);
    redlatch::Reply call_on_list(std::string_view name, Words words);
    redlatch::Reply call_on_zset(std::string_view name, Words words);
    redlatch::Reply set(Words words);

    std::map<std::string, Value, std::less<>> values_;
    Nanos now_ = 0;
};

}  // namespace sim
