// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/transport/transport.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A copy of the words of a command. Few short ones need no allocation.
class KeptWords {
public:
    explicit KeptWords(std::span<const std::string_view> words) {
        for (const std::string_view word : words) size_ += length_size + word.size();
        if (size_ > few_.size()) many_.resize(size_);
        char* end = size_ > few_.size() ? many_.data() : few_.data();
        for (const std::string_view word : words) {
            const std::size_t length = word.size();
            std::memcpy(end, &length, length_size);
            end += length_size + word.copy(end + length_size, length);
        }
    }

    // They live as long as this object.
    std::vector<std::string_view> words() const {
        std::vector<std::string_view> words;
        for (std::string_view rest(many_.empty() ? few_.data() : many_.data(), size_); !rest.empty();) {
            std::size_t length = 0;
            std::memcpy(&length, rest.data(), length_size);
            words.push_back(rest.substr(length_size, length));
            rest.remove_prefix(length_size + length);
        }
        return words;
    }

private:
    static constexpr std::size_t length_size = sizeof(std::size_t);

    // Each word after its length.
    std::array<char, 192> few_;
    std::string many_;  // if they are more
    std::size_t size_ = 0;
};

// The words of a call as the server receives them. Few words need no allocation. The call must outlive them.
class CallWords {
public:
    CallWords(const Call& call, std::string_view publish_command)
        : script_(call.script()), key_count_(static_cast<std::int64_t>(call.key_count())) {
        const std::size_t before = script_ ? 3 : 0;
        const std::size_t size = before + call.size();
        if (size > few_.size()) many_.resize(size);
        words_ = size > few_.size() ? std::span(many_) : std::span(few_).first(size);
        if (script_) {
            words_[0] = "EVALSHA";
            words_[1] = script_->digest();
            words_[2] = key_count_;
        }
        for (std::size_t i = 0; i < call.size(); ++i) words_[before + i] = call[i].view(publish_command);
    }
    CallWords(const CallWords&) = delete;
    CallWords& operator=(const CallWords&) = delete;

    // Returns the command that calls the script by its digest, or the plain command.
    Command command() const { return {words_, script_ ? std::size_t{3} : std::size_t{1}}; }

    // Returns the command that sends the text of the script. It replaces the one of command().
    Command by_text() {
        text_ = script_->text();
        words_[0] = "EVAL";
        words_[1] = text_;
        return {words_, 3};
    }

    // Returns a copy of what both commands have in common: all but the first two words.
    KeptWords copy() const { return KeptWords(words_.subspan(2)); }

private:
    const Script* const script_;
    const NumberText key_count_;
    std::string text_;  // of the script, if it is sent
    std::array<std::string_view, 16> few_;
    std::vector<std::string_view> many_;
    std::span<std::string_view> words_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
