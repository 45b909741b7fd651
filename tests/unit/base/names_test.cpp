// SPDX-License-Identifier: MIT
// Allowed names, and the keys derived from them: the same as in Redisson, byte for byte.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "support/internals.hpp"

using namespace redlatch;
using namespace redlatch::detail;

namespace {

bool is_allowed(std::string_view name) {
    try {
        check_name(name);
        return true;
    } catch (const Error& e) {
        CHECK(e.code() == errc::invalid_argument);
        CHECK(std::string_view(e.what()).size() < 400);
        return false;
    }
}

std::string message_for(std::string_view name) {
    try {
        check_name(name);
    } catch (const Error& e) {
        return e.what();
    }
    return {};
}

// CRC16-XMODEM, bit by bit: an independent computation of the cluster's hash.
std::uint16_t crc16_of(std::string_view text) {
    std::uint32_t crc = 0;
    for (const char c : text) {
        crc ^= static_cast<std::uint32_t>(static_cast<unsigned char>(c)) << 8;
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
    }
    return static_cast<std::uint16_t>(crc);
}

// The rule of the cluster specification: hash the text between the first { and the next }, unless it is empty.
std::uint16_t slot(std::string_view key) {
    const auto open = key.find('{');
    if (open != std::string_view::npos) {
        const auto close = key.find('}', open + 1);
        if (close != std::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
    }
    return crc16_of(key) % 16384;
}

}  // namespace

TEST_CASE("a key with a prefix has the name as its hash tag, unless the name has a tag of its own") {
    CHECK(prefixed_key("redisson_lock__channel", "x") == "redisson_lock__channel:{x}");
    CHECK(prefixed_key("redisson_lock__channel", "{x}y") == "redisson_lock__channel:{x}y");
    CHECK(prefixed_key("redisson_lock__channel", "x{y}z") == "redisson_lock__channel:x{y}z");
    // redlatch refuses these names, but the rule is Redisson's: only the presence of { counts.
    CHECK(prefixed_key("redisson_lock__channel", "a{b") == "redisson_lock__channel:a{b");
    CHECK(prefixed_key("redisson_lock__channel", "a}b") == "redisson_lock__channel:{a}b}");
    CHECK(prefixed_key("redisson_lock__channel", "a{}b") == "redisson_lock__channel:a{}b");
}

TEST_CASE("a key with a suffix has the name as its hash tag, unless the name has a tag of its own") {
    CHECK(suffixed_key("x", "queue") == "{x}:queue");
    CHECK(suffixed_key("{x}y", "queue") == "{x}y:queue");
    CHECK(suffixed_key("x{y}z", "queue") == "x{y}z:queue");
    CHECK(suffixed_key("a}b", "queue") == "{a}b}:queue");
}

TEST_CASE("keys keep every byte of the name") {
    const std::string name("a\0b\r\n \xff%s", 9);
    CHECK(prefixed_key("p", name) == "p:{" + name + "}");
    CHECK(suffixed_key(name, "s") == "{" + name + "}:s");
}

TEST_CASE("a name may consist of any bytes") {
    CHECK(is_allowed("x"));
    CHECK(is_allowed(std::string_view("\0", 1)));
    CHECK(is_allowed("\r\n"));
    CHECK(is_allowed(" "));
    CHECK(is_allowed("'\"`"));
    CHECK(is_allowed("%s %n"));
    CHECK(is_allowed("\xff\xfe"));
    CHECK(is_allowed("schlüssel"));
    CHECK(is_allowed(std::string(1024, 'n')));
}

TEST_CASE("an empty name and a name above 1024 bytes are refused") {
    CHECK_FALSE(is_allowed(""));
    CHECK_FALSE(is_allowed(std::string(1025, 'n')));
    CHECK_FALSE(is_allowed(std::string(64 << 20, 'n')));
}

TEST_CASE("braces are allowed only as one non-empty tag") {
    for (const std::string_view name : {"{x}", "{x}y", "x{y}", "x{y}z"}) {
        CAPTURE(name);
        CHECK(is_allowed(name));
    }
    for (const std::string_view name :
         {"{", "}", "{}", "a{b", "a}b", "a{}b", "{a}{b}", "}{", "}a{", "{a}b}", "{a{b}", "{{a}}", "{a}}", "a}{b}"}) {
        CAPTURE(name);
        CHECK_FALSE(is_allowed(name));
    }
}

TEST_CASE("the message about a bad name shows at most 64 bytes of it and no control byte") {
    const std::string message = message_for("\x1b[31m{" + std::string(5000, 'A'));
    CHECK(message.find("\\x1b[31m{AAAA") != std::string::npos);
    CHECK(message.find('\x1b') == std::string::npos);
    CHECK(message.find(std::string(65, 'A')) == std::string::npos);
}

TEST_CASE("all keys that are derived from an allowed name are in its cluster slot") {
    CHECK(crc16_of("123456789") == 0x31c3);
    CHECK(slot("foo") == 12182);

    std::mt19937 random{20240607};
    const std::string_view alphabet("ab{}:\0\xff ", 8);
    int allowed = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string name;
        for (std::size_t size = 1 + random() % 9; size > 0; --size) name += alphabet[random() % alphabet.size()];
        if (!has_safe_braces(name)) continue;
        ++allowed;
        CAPTURE(name);
        const auto home = slot(name);
        REQUIRE(slot(prefixed_key("redisson_lock__channel", name)) == home);
        REQUIRE(slot(prefixed_key("redisson_unlock_latch", name) + ":b983c153-7421-469a-addb-44fb92259a1b:1") == home);
        REQUIRE(slot(suffixed_key(name, "redisson_fair_queue")) == home);
    }
    CHECK(allowed > 2000);
}

TEST_CASE("for each form of refused name there is one whose derived keys are in another slot") {
    // Not every name of a form has such keys.
    CHECK(slot("a{b") != slot(prefixed_key("p", "a{b")));
    CHECK(slot("a}b") != slot(prefixed_key("p", "a}b")));
    CHECK(slot("a{}b") != slot(prefixed_key("p", "a{}b")));
}

TEST_CASE("in_quotes() quotes foreign text and escapes its control and non-ASCII bytes") {
    CHECK(in_quotes("") == "''");
    CHECK(in_quotes("plain text, 'quoted'") == "'plain text, 'quoted''");
    CHECK(in_quotes(std::string_view("a\0b", 3)) == "'a\\x00b'");
    CHECK(in_quotes("\x1b[31m\r\n\t") == "'\\x1b[31m\\x0d\\x0a\\x09'");
    CHECK(in_quotes("\x7f\xff\\") == "'\\x7f\\xff\\x5c'");
    CHECK(in_quotes("%s%n") == "'%s%n'");
}

TEST_CASE("in_quotes() cuts foreign text at the given number of bytes") {
    CHECK(in_quotes(std::string(64, 'a')) == "'" + std::string(64, 'a') + "'");
    CHECK(in_quotes(std::string(65, 'a')) == "'" + std::string(64, 'a') + "…'");
    CHECK(in_quotes("abcdef", 3) == "'abc…'");
    CHECK(in_quotes(std::string(1 << 20, '\0')).size() < 64 * 4 + 10);
}
