// SPDX-License-Identifier: MIT
// The words that a call sends.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <string>

#include "support/call_words.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using redlatch::test::words_of;

namespace {

const Script& any_script = digested<scripts::rlock_renew>;

}  // namespace

TEST_CASE("a call lists its keys before its arguments") {
    const Call call{any_script, {"a", "b"}, {"c"}};
    CHECK(call.script() == &any_script);
    CHECK(call.key_count() == 2);
    CHECK(words_of(call) == "a b c");
}

TEST_CASE("a call copies numbers, durations and owners") {
    const Call call{any_script,
                    {},
                    {std::int64_t{-7}, std::uint32_t{4'294'967'295}, Milliseconds(1500),
                     OwnerText("01234567-89ab-4cde-8f01-23456789abcd", 42, ":write"), Word::copy("copied")}};
    const Call copy = call;
    CHECK(words_of(copy) == "-7 4294967295 1500 01234567-89ab-4cde-8f01-23456789abcd:42:write copied");
}

TEST_CASE("the longest owner text fits into a word") {
    const OwnerText longest("01234567-89ab-4cde-8f01-23456789abcd", ~std::uint64_t{0}, ~std::uint64_t{0});
    REQUIRE(longest.view().size() <= Word::longest_copy);
    CHECK(words_of({any_script, {}, {longest}}) == longest.view());
}

TEST_CASE("the publish command is filled in when the call is sent") {
    const Call silent{any_script, {"k"}, {"x"}};
    CHECK_FALSE(silent.publishes());
    const Call call{any_script, {"k"}, {PublishCommand(), "x"}};
    CHECK(call.publishes());
    CHECK(words_of(call, "SPUBLISH") == "k SPUBLISH x");
}

TEST_CASE("a call with many words keeps all of them in order, also when it is copied") {
    Call call{any_script, {"key"}, {}};
    std::string expected = "key";
    for (int i = 0; i < 300; ++i) {
        call.append(i);
        expected += ' ' + std::to_string(i);
        CAPTURE(i);
        REQUIRE(call.size() == static_cast<std::size_t>(i) + 2);
        const Call copy = call;
        REQUIRE(words_of(copy) == expected);
    }
}

TEST_CASE("keys can be appended before the first argument") {
    Call call{any_script, {}, {}, Effect::grants};
    call.append_key("a");
    call.append_key("b");
    call.append("x");
    CHECK(call.key_count() == 2);
    CHECK(words_of(call) == "a b x");
    CHECK(call.effect == Effect::grants);
}

TEST_CASE("a plain command has no script") {
    const Call call = Call::command({"SET", "key", "value"});
    CHECK(call.script() == nullptr);
    CHECK(call.effect == Effect::any);
    CHECK(words_of(call) == "SET key value");
}
