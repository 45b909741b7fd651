// SPDX-License-Identifier: MIT
// ReplyReader turns bytes into replies or refuses them. The server is not trusted.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using Outcome = ReplyReader::Outcome;

namespace {

std::string bulk(std::string_view text) {
    return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}

std::string nested(int depth) {
    std::string bytes;
    for (int i = 0; i < depth; ++i) bytes += "*1\r\n";
    return bytes + ":7\r\n";
}

// The replies in `bytes`, which are fed in pieces of the given size. Ends at the first malformed one.
struct Parsed {
    std::vector<Reply> replies;
    bool malformed = false;

    bool operator==(Outcome outcome) const {
        if (malformed) return outcome == Outcome::malformed;
        return outcome == (replies.empty() ? Outcome::incomplete : Outcome::reply);
    }
};

Parsed parse(std::string_view bytes, std::size_t piece = std::string_view::npos) {
    ReplyReader reader;
    Parsed parsed;
    while (!bytes.empty()) {
        const std::string_view now = bytes.substr(0, piece);
        bytes.remove_prefix(now.size());
        if (!reader.feed(now.data(), now.size())) {
            parsed.malformed = true;
            return parsed;
        }
        for (;;) {
            Reply reply;
            const Outcome outcome = reader.next(reply);
            if (outcome == Outcome::malformed) {
                parsed.malformed = true;
                return parsed;
            }
            if (outcome == Outcome::incomplete) break;
            parsed.replies.push_back(std::move(reply));
        }
    }
    return parsed;
}

Reply the_reply(std::string_view bytes) {
    Parsed parsed = parse(bytes);
    REQUIRE_FALSE(parsed.malformed);
    REQUIRE(parsed.replies.size() == 1);
    return parsed.replies.front();
}

bool same(const Reply& a, const Reply& b) {
    return a.kind == b.kind && a.integer == b.integer && a.text == b.text &&
           std::equal(a.elements.begin(), a.elements.end(), b.elements.begin(), b.elements.end(), same);
}

}  // namespace

TEST_CASE("every type of RESP2 is decoded") {
    CHECK(the_reply("+OK\r\n").kind == Reply::Kind::text);
    CHECK(the_reply("+OK\r\n").text == "OK");
    CHECK(the_reply("+\r\n").text.empty());
    CHECK(the_reply("$3\r\nabc\r\n").kind == Reply::Kind::text);
    CHECK(the_reply("$3\r\nabc\r\n").text == "abc");
    CHECK(the_reply("$0\r\n\r\n").kind == Reply::Kind::text);
    CHECK(the_reply("$0\r\n\r\n").text.empty());
    CHECK(the_reply("-ERR no\r\n").kind == Reply::Kind::error);
    CHECK(the_reply("-ERR no\r\n").text == "ERR no");
    CHECK(the_reply(":42\r\n").kind == Reply::Kind::integer);
    CHECK(the_reply(":42\r\n").integer == 42);
    CHECK(the_reply("$-1\r\n").is_nil());
    CHECK(the_reply("*-1\r\n").is_nil());
    CHECK(the_reply("*0\r\n").kind == Reply::Kind::array);
    CHECK(the_reply("*0\r\n").elements.empty());
}

TEST_CASE("integers have the range of 64 bits, and anything else is refused") {
    CHECK(the_reply(":0\r\n").integer == 0);
    CHECK(the_reply(":-2\r\n").integer == -2);
    CHECK(the_reply(":9223372036854775807\r\n").integer == std::numeric_limits<std::int64_t>::max());
    CHECK(the_reply(":-9223372036854775808\r\n").integer == std::numeric_limits<std::int64_t>::min());
    for (const std::string_view bytes :
         {":9223372036854775808\r\n", ":-9223372036854775809\r\n", ":99999999999999999999\r\n", ":\r\n", ":x\r\n",
          ":1x\r\n", ":1.5\r\n", ": 1\r\n", ":--1\r\n"}) {
        CAPTURE(bytes);
        CHECK(parse(bytes) == Outcome::malformed);
    }
}

TEST_CASE("arrays contain elements of any type, in order") {
    const Reply reply = the_reply("*5\r\n:1\r\n$2\r\nab\r\n-WRONGTYPE x\r\n$-1\r\n*2\r\n+a\r\n*0\r\n");
    REQUIRE(reply.elements.size() == 5);
    CHECK(reply.elements[0].integer == 1);
    CHECK(reply.elements[1].text == "ab");
    CHECK(reply.elements[2].is_error());
    CHECK(reply.elements[2].text == "WRONGTYPE x");
    CHECK(reply.elements[3].is_nil());
    REQUIRE(reply.elements[4].elements.size() == 2);
    CHECK(reply.elements[4].elements[0].text == "a");
    CHECK(reply.elements[4].elements[1].kind == Reply::Kind::array);
}

TEST_CASE("texts keep every byte") {
    const std::string bytes("\0\r\n\x1b[31m\xff$5\r\n%s", 15);
    CHECK(the_reply(bulk(bytes)).text == bytes);
    CHECK(the_reply(std::string("-ERR \0\x1b[2J\r\n", 12)).text == std::string("ERR \0\x1b[2J", 10 - 1));
    // Since 1.0, hiredis refuses a lone carriage return in a status.
    const Parsed status = parse("+a\rb\r\n");
    CHECK(status.malformed == (HIREDIS_MAJOR > 0));
    if (!status.malformed) CHECK(status.replies.at(0).text == "a\rb");
}

TEST_CASE("a stream may be cut at every byte") {
    const std::string stream = "+OK\r\n:-12\r\n" + bulk("a\r\nb") + "$-1\r\n-ERR x\r\n*3\r\n:1\r\n*2\r\n+y\r\n$-1\r\n" +
                               bulk("") + "*0\r\n*-1\r\n:5\r\n";
    const Parsed whole = parse(stream);
    REQUIRE_FALSE(whole.malformed);
    REQUIRE(whole.replies.size() == 9);

    for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
        CAPTURE(piece);
        const Parsed pieces = parse(stream, piece);
        REQUIRE_FALSE(pieces.malformed);
        REQUIRE(
            std::equal(pieces.replies.begin(), pieces.replies.end(), whole.replies.begin(), whole.replies.end(), same));
    }
    for (std::size_t cut = 0; cut < stream.size(); ++cut) {
        CAPTURE(cut);
        const Parsed part = parse(stream.substr(0, cut));
        REQUIRE_FALSE(part.malformed);
        REQUIRE(part.replies.size() < whole.replies.size());
        REQUIRE(std::equal(part.replies.begin(), part.replies.end(), whole.replies.begin(),
                           whole.replies.begin() + static_cast<std::ptrdiff_t>(part.replies.size()), same));
    }
}

TEST_CASE("bytes that are not the Redis protocol are refused") {
    for (const std::string_view bytes :
         {"HTTP/1.1 400 Bad Request\r\n", "x\r\n", "\r\n", " :1\r\n", "SSH-2.0-OpenSSH\r\n", "$x\r\n", "$\r\n",
          "*x\r\n", "*\r\n", "*2\r\n:1\r\nx\r\n", "$1 \r\na\r\n"}) {
        CAPTURE(bytes);
        CHECK(parse(bytes) == Outcome::malformed);
    }
}

TEST_CASE("negative lengths other than -1 are refused") {
    CHECK(parse("$-2\r\n") == Outcome::malformed);
    CHECK(parse("*-2\r\n") == Outcome::malformed);
    CHECK(parse("$-9223372036854775808\r\n") == Outcome::malformed);
    CHECK(parse("*-9223372036854775808\r\n") == Outcome::malformed);
    CHECK(parse("*1\r\n$-2\r\n") == Outcome::malformed);
}

TEST_CASE("an impossible length is refused, at the latest at the limit of a reply") {
    for (const std::string_view head : {"$9223372036854775807\r\n", "$9223372036854775808\r\n",
                                        "$18446744073709551615\r\n", "$2147483648\r\n", "$1048577\r\n"}) {
        CAPTURE(head);
        CHECK(parse(head).replies.empty());
        CHECK(parse(std::string(head) + std::string(ReplyReader::most_bytes, 'x')) == Outcome::malformed);
    }
    for (const std::string_view bytes :
         {"*9223372036854775807\r\n", "*2147483647\r\n", "*2147483648\r\n", "*4294967297\r\n", "*8193\r\n"}) {
        CAPTURE(bytes);
        CHECK(parse(bytes) == Outcome::malformed);
    }
}

TEST_CASE("a reply may have 1 MiB in all, and not more") {
    const std::size_t overhead = std::string_view("$1000000\r\n\r\n").size();
    const std::string fits = bulk(std::string(ReplyReader::most_bytes - overhead, 'x'));
    REQUIRE(fits.size() == ReplyReader::most_bytes);
    CHECK(parse(fits) == Outcome::reply);
    CHECK(parse(fits, 16 * 1024) == Outcome::reply);
    CHECK(parse(bulk(std::string(ReplyReader::most_bytes - overhead + 1, 'x'))) == Outcome::malformed);
    CHECK(parse(bulk(std::string(ReplyReader::most_bytes - overhead + 1, 'x')), 16 * 1024) == Outcome::malformed);
}

TEST_CASE("the limit of 1 MiB is for one reply, not for the connection") {
    const std::string large = bulk(std::string(500'000, 'x'));
    const Parsed parsed = parse(large + large + ":1\r\n" + large + large + large, 16 * 1024);
    CHECK_FALSE(parsed.malformed);
    CHECK(parsed.replies.size() == 6);
    CHECK(parse(large + large + large + ":1\r\n").replies.size() == 4);
}

TEST_CASE("a line without an end is refused at the limit") {
    CHECK(parse("-" + std::string(ReplyReader::most_bytes - 1, 'x'), 16 * 1024) == Outcome::incomplete);
    CHECK(parse("-" + std::string(ReplyReader::most_bytes + 1, 'x'), 16 * 1024) == Outcome::malformed);
    CHECK(parse(":" + std::string(ReplyReader::most_bytes + 1, '0'), 16 * 1024) == Outcome::malformed);
}

TEST_CASE("a reply may have 8192 array elements in all") {
    const auto zeros = [](std::size_t n) {
        std::string bytes = "*" + std::to_string(n) + "\r\n";
        for (std::size_t i = 0; i < n; ++i) bytes += ":0\r\n";
        return bytes;
    };
    CHECK(the_reply(zeros(ReplyReader::most_elements)).elements.size() == ReplyReader::most_elements);
    CHECK(parse(zeros(ReplyReader::most_elements + 1)) == Outcome::malformed);
    CHECK(parse("*2\r\n" + zeros(4000) + zeros(4000)) == Outcome::reply);
    CHECK(parse("*2\r\n" + zeros(4096) + zeros(4096)) == Outcome::malformed);
    // The next reply has its own 8192.
    CHECK(parse(zeros(8000) + zeros(8000)).replies.size() == 2);
}

TEST_CASE("arrays may be nested eight levels deep") {
    CHECK(parse(nested(8)) == Outcome::reply);
    CHECK(parse(nested(9)) == Outcome::malformed);
    CHECK(parse(nested(10'000)) == Outcome::malformed);
}

TEST_CASE("RESP3 types are refused, since the client never requests RESP3") {
    for (const std::string_view bytes :
         {"%1\r\n+a\r\n:1\r\n", "~1\r\n:1\r\n", ",1.5\r\n", "#t\r\n", "_\r\n", "(12345\r\n", "=7\r\ntxt:abc\r\n",
          ">2\r\n+a\r\n+b\r\n", "|1\r\n+a\r\n:1\r\n:2\r\n", "!5\r\nERR x\r\n"}) {
        CAPTURE(bytes);
        CHECK(parse(bytes) == Outcome::malformed);
    }
}

TEST_CASE("a bulk string that does not end after its length is refused") {
    // A reader that merely skips two bytes would be out of step from here on, and take the rest for replies to other
    // commands.
    CHECK(parse("$3\r\nabcde\r\n:1\r\n") == Outcome::malformed);
    CHECK(parse("$3\r\nabcXY") == Outcome::malformed);
    CHECK(parse("$3\r\nabc\n\r") == Outcome::malformed);
}

TEST_CASE("after a refusal the reader can be used for a new connection") {
    ReplyReader reader;
    Reply reply;
    REQUIRE(reader.feed("*2\r\n:1\r\n?", 9));
    REQUIRE(reader.next(reply) == Outcome::malformed);
    CHECK(reader.next(reply) == Outcome::malformed);
    reader.reset();
    REQUIRE(reader.feed(":5\r\n", 4));
    REQUIRE(reader.next(reply) == Outcome::reply);
    CHECK(reply.integer == 5);
    // reset() also drops the rest of the old connection.
    REQUIRE(reader.feed("$5\r\nab", 6));
    REQUIRE(reader.next(reply) == Outcome::incomplete);
    reader.reset();
    REQUIRE(reader.feed("+OK\r\n", 5));
    REQUIRE(reader.next(reply) == Outcome::reply);
    CHECK(reply.text == "OK");
}

TEST_CASE("random bytes neither crash the reader nor make it grow without bound") {
    std::mt19937 random{7};
    const std::string_view alphabet = "$*:+-0123456789\r\n\r\nab\\%";
    for (int round = 0; round < 3000; ++round) {
        std::string bytes;
        for (std::size_t size = 1 + random() % 60; size > 0; --size) bytes += alphabet[random() % alphabet.size()];
        static_cast<void>(parse(bytes, 1 + random() % 8));
    }
}

// The reply to CLIENT SETNAME comes while other commands wait for theirs. But a server that has no room for a new
// connection says so once, before it closes it.
TEST_CASE("a reply that no one waits for is dropped once; an error that ends the connection is not") {
    const auto after_skip = [](std::string_view bytes, bool all_at_once) {
        ReplyReader reader;
        reader.skip_next();
        std::vector<std::string> texts;
        for (std::size_t i = 0; i < bytes.size(); i += all_at_once ? bytes.size() : 1) {
            reader.feed(bytes.data() + i, all_at_once ? bytes.size() : 1);
            for (Reply reply; reader.next(reply) == Outcome::reply;) texts.push_back(reply.text);
        }
        return texts;
    };
    using Texts = std::vector<std::string>;
    for (const bool all_at_once : {true, false}) {
        CAPTURE(all_at_once);
        CHECK(after_skip("+OK\r\n", all_at_once).empty());
        CHECK(after_skip("+OK\r\n+OK\r\n$1\r\nx\r\n", all_at_once) == Texts{"OK", "x"});
        CHECK(after_skip("-NOPERM no\r\n+PONG\r\n", all_at_once) == Texts{"PONG"});
        CHECK(after_skip("-ERR max number of clients reached\r\n", all_at_once) ==
              Texts{"ERR max number of clients reached"});
        CHECK(after_skip("-DENIED protected\r\n", all_at_once) == Texts{"DENIED protected"});
    }
    ReplyReader reader;
    reader.skip_next();
    reader.reset();
    Reply reply;
    reader.feed("+OK\r\n", 5);
    CHECK(reader.next(reply) == Outcome::reply);
}
