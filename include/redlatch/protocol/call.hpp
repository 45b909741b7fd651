// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/scripts/script.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Stands for the command by which the script reaches the subscribers: PUBLISH or SPUBLISH. Only the transport knows
// which, so the session fills it in.
struct PublishCommand {};

// One word of a call. Refers to a text, which must live until the call is sent, or holds a short one of its own.
class Word {
public:
    Word() = default;
    template <std::convertible_to<std::string_view> Text>
    requires(!std::same_as<Text, OwnerText>) Word(const Text& text) : text_(text) {}
    Word(const OwnerText& owner) : Word(copy(owner.view())) {}
    template <std::integral Number>
    Word(Number number) : Word(copy(NumberText(static_cast<std::int64_t>(number)).view())) {}
    Word(Milliseconds duration) : Word(duration.count()) {}
    Word(PublishCommand) : kind_(Kind::publish_command) {}

    // Copies a text of at most `longest_copy` bytes.
    static Word copy(std::string_view text) {
        Word word;
        word.kind_ = Kind::own;
        word.size_ = static_cast<std::uint8_t>(text.copy(word.own_.data(), longest_copy));
        return word;
    }

    bool is_publish_command() const noexcept { return kind_ == Kind::publish_command; }

    std::string_view view(std::string_view publish_command) const {
        switch (kind_) {
            case Kind::own: return {own_.data(), size_};
            case Kind::publish_command: return publish_command;
            default: return text_;
        }
    }

    static constexpr std::size_t longest_copy = 78;

private:
    enum class Kind : std::uint8_t { text, own, publish_command };

    std::string_view text_;
    std::array<char, longest_copy> own_;  // the text, if it is this word's own
    std::uint8_t size_ = 0;
    Kind kind_ = Kind::text;
};

// Tells whether a command grants something (a hold, a permit, a longer lease), which enough replicas must confirm.
enum class Effect { any, grants };

// What must confirm what a command grants: so many replicas, and the server's disk, or with both also the disks of the
// replicas. And how long they may take.
struct Replication {
    unsigned required = 0;
    Milliseconds within{};
    bool on_disk = false;

    bool asks() const noexcept { return required > 0 || on_disk; }

    friend auto operator<=>(const Replication&, const Replication&) = default;
};

// One command of a primitive, as a value: a script with its keys and arguments, or a plain command. The protocols make
// calls, and a session sends them. Few words need no allocation.
class Call {
public:
    Call(const Script& script, std::initializer_list<Word> keys, std::initializer_list<Word> arguments,
         Effect of = Effect::any)
        : Call(script, keys, {}, arguments, of) {}

    // A script with two groups of keys.
    Call(const Script& script, std::initializer_list<Word> keys, std::initializer_list<Word> more_keys,
         std::initializer_list<Word> arguments, Effect of)
        : effect(of), script_(&script), key_count_(keys.size() + more_keys.size()) {
        append(keys);
        append(more_keys);
        append(arguments);
    }

    // Returns the call of a plain command. The routing key is its second word.
    static Call command(std::initializer_list<Word> words, Effect effect = Effect::any) {
        Call call(effect);
        call.append(words);
        return call;
    }

    // Appends a key, before any argument.
    void append_key(const Word& word) {
        append(word);
        ++key_count_;
    }

    // Appends further arguments.
    void append(const Word& word) {
        if (size_ == few_.size() && many_.empty()) many_.assign(few_.begin(), few_.end());
        if (size_ < few_.size())
            few_[size_] = word;
        else
            many_.push_back(word);
        ++size_;
        publishes_ |= word.is_publish_command();
    }
    template <class Words>
    requires(!std::convertible_to<const Words&, Word>) void append(const Words& words) {
        for (const auto& word : words) append(Word(word));
    }

    // Returns the script, or null for a plain command.
    const Script* script() const noexcept { return script_; }
    std::size_t key_count() const noexcept { return key_count_; }

    // Returns true if one of the words is the command by which the script publishes.
    bool publishes() const noexcept { return publishes_; }

    // Returns the number of keys and arguments, or of the words of a plain command.
    std::size_t size() const noexcept { return size_; }
    const Word& operator[](std::size_t i) const { return many_.empty() ? few_[i] : many_[i]; }

    Effect effect;
    std::optional<Replication> replication{};  // of what it grants; none: that of the client

private:
    explicit Call(Effect of) : effect(of) {}

    const Script* script_ = nullptr;
    std::size_t key_count_ = 0;
    std::size_t size_ = 0;
    bool publishes_ = false;
    std::array<Word, 14> few_;
    std::vector<Word> many_;  // all words, if they are more
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
