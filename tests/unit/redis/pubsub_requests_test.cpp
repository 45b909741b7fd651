// SPDX-License-Identifier: MIT
// The unanswered requests of a pub/sub connection, without a connection.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

using Channels = std::vector<std::string>;

// Returns the commands for these changes, a line each.
std::string lines(PubSubRequests& requests, const std::vector<ChannelChange>& changes) {
    std::string bytes, found;
    requests.append(bytes, changes, Instant());
    ReplyReader reader;
    REQUIRE(reader.feed(bytes.data(), bytes.size()));
    for (Reply command; reader.next(command) == ReplyReader::Outcome::reply; found += '\n')
        for (const Reply& word : command.elements) found += (&word == &command.elements[0] ? "" : " ") + word.text;
    return found;
}

}  // namespace

TEST_CASE("consecutive channels with the same change share a command") {
    PubSubRequests requests{false};
    CHECK(lines(requests, {{"a", true}, {"b", true}, {"c", false}, {"d", false}, {"e", true}}) ==
          "SUBSCRIBE a b\nUNSUBSCRIBE c d\nSUBSCRIBE e\n");
}

TEST_CASE("a sharded channel has a command of its own") {
    PubSubRequests requests{true};
    CHECK(lines(requests, {{"a", true}, {"b", true}, {"c", false}}) == "SSUBSCRIBE a\nSSUBSCRIBE b\nSUNSUBSCRIBE c\n");
}

TEST_CASE("a command for very many channels is split") {
    PubSubRequests requests{false};
    const std::vector<ChannelChange> changes(1025, {"a", true});
    const std::string sent = lines(requests, changes);
    CHECK(std::count(sent.begin(), sent.end(), '\n') == 3);
    CHECK(std::count(sent.begin(), sent.end(), 'a') == 1025);
}

TEST_CASE("a refusal is that of all channels of the oldest command which are not confirmed") {
    PubSubRequests requests{false};
    lines(requests, {{"a", true}, {"b", true}, {"gone", false}, {"c", true}});
    SUBCASE("none confirmed") { CHECK(requests.refuse() == Channels{"a", "b"}); }
    SUBCASE("one confirmed") {
        requests.subscribed("a");
        CHECK(requests.refuse() == Channels{"b"});
    }
    SUBCASE("another channel does not count") {
        requests.subscribed("b");
        CHECK(requests.refuse() == Channels{"a", "b"});
    }
    CHECK(requests.refuse() == Channels{"c"});
    CHECK(requests.refuse().empty());
}

TEST_CASE("a channel that is to be requested alone shares no command until it is answered") {
    PubSubRequests requests{false};
    const std::vector<ChannelChange> all{{"a", true}, {"b", true}, {"c", true}};
    requests.request_alone("b");
    CHECK(lines(requests, all) == "SUBSCRIBE a\nSUBSCRIBE b\nSUBSCRIBE c\n");
    REQUIRE(requests.refuse() == Channels{"a"});
    SUBCASE("confirmed") { requests.subscribed("b"); }
    SUBCASE("refused") { CHECK(requests.refuse() == Channels{"b"}); }
    SUBCASE("lost") { requests.clear(); }
    CHECK(lines(requests, all) == "SUBSCRIBE a b c\n");
}

TEST_CASE("the query for the number of the connection is answered first, and its refusal is that of its channel") {
    PubSubRequests requests{false};
    std::string bytes;
    requests.append_id_query(bytes, "a", Instant());
    CHECK(bytes == "*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n");
    lines(requests, {{"a", true}, {"b", true}});
    SUBCASE("answered") { CHECK(requests.confirm_id()); }
    SUBCASE("refused") { CHECK(requests.refuse() == Channels{"a"}); }
    CHECK(requests.refuse() == Channels{"a", "b"});
    CHECK_FALSE(requests.confirm_id());
}

TEST_CASE("a sharded channel that nobody unsubscribed from has moved away") {
    PubSubRequests requests{true};
    lines(requests, {{"a", true}, {"b", false}});
    requests.subscribed("a");
    CHECK_FALSE(requests.unsubscribed("a"));
    CHECK(requests.unsubscribed("b"));
}

TEST_CASE("nothing of a lost connection is answered any more") {
    PubSubRequests requests{false};
    lines(requests, {{"a", true}});
    requests.clear();
    CHECK(requests.refuse().empty());
}

TEST_CASE("a check is no news, and its refusal is nobody's, in the order of the requests") {
    PubSubRequests requests{false};
    CHECK_FALSE(requests.any());
    std::string bytes;
    requests.append_check(bytes, "a", Instant());
    CHECK(bytes == "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n");
    CHECK(requests.any());
    lines(requests, {{"a", true}});
    SUBCASE("answered") { CHECK_FALSE(requests.subscribed("a")); }
    SUBCASE("refused") { CHECK(requests.refuse() == Channels{PubSubRequests::no_channel}); }
    CHECK(requests.any());
    CHECK(requests.subscribed("a"));
    CHECK_FALSE(requests.any());
}

TEST_CASE("each request has its time, and the oldest without a reply counts") {
    PubSubRequests requests{false};
    const Instant first = Clock::now(), second = first + std::chrono::seconds(1);
    std::string bytes;
    requests.append(bytes, {{"a", true}, {"b", true}}, first);
    requests.append_check(bytes, "a", second);
    requests.subscribed("a");
    CHECK(requests.oldest() == first);
    requests.subscribed("b");
    CHECK(requests.oldest() == second);
}

TEST_CASE("a check of a sharded channel") {
    PubSubRequests requests{true};
    std::string bytes;
    requests.append_check(bytes, "a", Instant());
    CHECK(bytes == "*2\r\n$10\r\nSSUBSCRIBE\r\n$1\r\na\r\n");
}
