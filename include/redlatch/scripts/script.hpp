// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The text of a script: a literal, or other texts in their order, which scripts share. The compiler does not join them: g++
// would take seconds for each source file that includes the library. join() does, when a server has to learn the script.
class ScriptText {
public:
    consteval ScriptText(const char* literal) : literal_(literal) {}
    consteval explicit ScriptText(std::span<const ScriptText* const> parts) : parts_(parts) {}

    std::string join() const {
        std::string text;
        append_to(text);
        return text;
    }

private:
    void append_to(std::string& text) const {
        text += literal_;
        for (const ScriptText* part : parts_) part->append_to(text);
    }

    std::string_view literal_;
    std::span<const ScriptText* const> parts_;
};

// A Lua script and its SHA-1 digest, by which EVALSHA calls it. Both are constants.
class Script {
public:
    consteval Script(const ScriptText& text, const char (&digest)[41]) : text_(text), digest_(digest) {}

    std::string text() const { return text_.join(); }
    constexpr std::string_view digest() const { return digest_; }

private:
    ScriptText text_;
    std::string_view digest_;
};

// Is never defined: the compiler names it if a digest is missing. `cmake -P cmake/digests.cmake` writes that.
template <const ScriptText& text>
struct DigestIsMissing;

// The script of a text. Each text that a call names has its digest beside it.
template <const ScriptText& text>
inline constexpr Script digested{text, DigestIsMissing<text>::digest};

namespace scripts {

namespace parts {

template <const ScriptText&... parts>
inline constexpr std::array<const ScriptText*, sizeof...(parts)> in_order{&parts...};

}  // namespace parts

// The text of a script that shares its first parts with others.
template <const ScriptText&... parts>
inline constexpr ScriptText joined{std::span<const ScriptText* const>(parts::in_order<parts...>)};

}  // namespace scripts

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
