// SPDX-License-Identifier: MIT
// CallWords: the words in which a call reaches the server.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <string>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

using Words = std::vector<std::string>;

const Script& script = digested<scripts::rlock_renew>;

Words words_of(const Command& command) { return {command.words.begin(), command.words.end()}; }

}  // namespace

TEST_CASE("a script is called by its digest, with the number of its keys; the first key is the routing key") {
    const Call call{script, {"a", "b"}, {"c"}};
    const CallWords words(call, {});
    CHECK(words_of(words.command()) == Words{"EVALSHA", std::string(script.digest()), "2", "a", "b", "c"});
    CHECK(words.command().key == 3);
}

TEST_CASE("the text of a script replaces its digest, all else remains") {
    const Call call{script, {"a"}, {1}};
    CallWords words(call, {});
    CHECK(words_of(words.by_text()) == Words{"EVAL", script.text(), "1", "a", "1"});
    CHECK(words.by_text().key == 3);
}

TEST_CASE("a plain command is sent as it is; its second word is the routing key") {
    const Call call = Call::command({"SET", "key", "value"});
    const CallWords words(call, {});
    CHECK(words_of(words.command()) == Words{"SET", "key", "value"});
    CHECK(words.command().key == 1);
}

TEST_CASE("the publish command is filled in") {
    const Call call{script, {"a"}, {PublishCommand()}};
    const CallWords words(call, "SPUBLISH");
    CHECK(words_of(words.command()).back() == "SPUBLISH");
}

TEST_CASE("few words and many words are the same to the reader, and so is a copy") {
    for (const int arguments : {0, 1, 12, 13, 14, 200}) {
        CAPTURE(arguments);
        Call call{script, {"key"}, {}};
        Words expected{"EVALSHA", std::string(script.digest()), "1", "key"};
        for (int i = 0; i < arguments; ++i) {
            call.append(i);
            expected.push_back(std::to_string(i));
        }
        const CallWords words(call, {});
        CHECK(words_of(words.command()) == expected);
        const KeptWords kept = words.copy();
        CHECK(words_of({kept.words(), 1}) == Words(expected.begin() + 2, expected.end()));
    }
}
