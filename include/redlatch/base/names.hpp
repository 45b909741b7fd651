// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/quoted.hpp"
#include "redlatch/error.hpp"

#include <cstddef>
#include <string>
#include <string_view>

// Defines the key rules shared with Redisson: how a primitive's name determines the names of its extra keys and
// channels.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline constexpr std::size_t longest_name = 1024;

// Returns true if the name has no braces, or exactly one non-empty "{tag}". Only then do all keys derived from the name
// fall into one cluster slot.
constexpr bool has_safe_braces(std::string_view name) {
    const auto open = name.find('{');
    const auto close = name.find('}');
    if (open == std::string_view::npos && close == std::string_view::npos) return true;
    return open != std::string_view::npos && close != std::string_view::npos && close > open + 1 &&
           name.find('{', open + 1) == std::string_view::npos && name.find('}', close + 1) == std::string_view::npos;
}

// Throws Error(errc::invalid_argument) if the name is empty, too long, or has other braces.
inline void check_name(std::string_view name) {
    if (name.empty()) throw Error(errc::invalid_argument, {}, "the name must not be empty");
    if (name.size() > longest_name) throw Error(errc::invalid_argument, name, "the name must not exceed 1024 bytes");
    if (!has_safe_braces(name))
        throw Error(
            errc::invalid_argument, name,
            "braces in the name must form one non-empty {tag}; otherwise its keys would be in different cluster slots");
}

// Returns "prefix:{name}", or "prefix:name" if the name has its own tag.
inline std::string prefixed_key(std::string_view prefix, std::string_view name) {
    std::string key(prefix);
    const bool tagged = name.find('{') != std::string_view::npos;
    key += tagged ? ":" : ":{";
    key += name;
    if (!tagged) key += '}';
    return key;
}

// Returns "{name}:suffix", or "name:suffix" if the name has its own tag.
inline std::string suffixed_key(std::string_view name, std::string_view suffix) {
    const bool tagged = name.find('{') != std::string_view::npos;
    std::string key = tagged ? std::string(name) : "{" + std::string(name) + "}";
    key += ':';
    key += suffix;
    return key;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
