// SPDX-License-Identifier: MIT
// Parsing the replies of cluster nodes: slots, redirections, sharded channels.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <string>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

const HostPort asked{"10.0.0.1", 7000};

Reply array(std::vector<Reply> elements) { return {Reply::Kind::array, 0, {}, std::move(elements), true}; }

Reply node(const Reply& host, std::int64_t port) { return array({host, Reply::of(port), Reply::of("id")}); }

Reply range(std::int64_t first, std::int64_t last, std::vector<Reply> nodes) {
    nodes.insert(nodes.begin(), {Reply::of(first), Reply::of(last)});
    return array(std::move(nodes));
}

}  // namespace

TEST_CASE("the slot of a key is that of its hash tag, by the vectors of the specification") {
    CHECK(detail::crc16("123456789") == 0x31c3);
    CHECK(key_slot("foo") == 12182);
    CHECK(key_slot("") == 0);
    CHECK(key_slot("{user1000}.following") == key_slot("{user1000}.followers"));
    CHECK(key_slot("foo{}{bar}") == detail::crc16("foo{}{bar}") % slot_count);
    CHECK(key_slot("foo{{bar}}zap") == key_slot("{bar"));
    CHECK(key_slot("foo{bar}{zap}") == key_slot("bar"));
    CHECK(key_slot("}a{") == detail::crc16("}a{") % slot_count);
}

TEST_CASE("the reply to CLUSTER SLOTS names masters and replicas, where no host means the queried node") {
    const auto ranges =
        read_slots(array({range(0, 99, {node(Reply::of("h"), 1), node(Reply::of("::1"), 2)}),
                          range(100, 100, {node(Reply::of(""), 3), node({}, 4), node(Reply::of("?"), 5)}),
                          range(101, 16383, {node(Reply::of("?"), 6)})}),
                   asked);
    REQUIRE(ranges);
    REQUIRE(ranges->size() == 2);  // the last range has no known address
    CHECK((*ranges)[0].last == 99);
    CHECK((*ranges)[0].master == HostPort{"h", 1});
    CHECK((*ranges)[0].replicas == std::vector<HostPort>{{"::1", 2}});
    CHECK((*ranges)[1].master == HostPort{"10.0.0.1", 3});
    CHECK((*ranges)[1].replicas == std::vector<HostPort>{{"10.0.0.1", 4}});
}

TEST_CASE("a malformed list of slots is refused") {
    const Reply good = node(Reply::of("h"), 1);
    const std::vector<Reply> bad{
        Reply{},
        Reply::of("OK"),
        Reply::of(7),
        Reply::of(Reply::Kind::error, "ERR This instance has cluster support disabled"),
        Reply::of(Reply::Kind::unanswered, "gone"),
        array({}),
        array({Reply::of(1)}),
        array({range(0, 1, {})}),
        array({range(-1, 1, {good})}),
        array({range(2, 1, {good})}),
        array({range(0, 16384, {good})}),
        array({range(0, 1, {Reply::of("h")})}),
        array({range(0, 1, {array({})})}),
        array({range(0, 1, {node(Reply::of(5), 1)})}),
        array({range(0, 1, {node(Reply::of("h"), 65536)})}),
        array({range(0, 1, {node(Reply::of("h"), -1)})}),
        array({range(0, 1, {node(Reply::of("a b"), 1)})}),
        array({range(0, 1, {node(Reply::of(std::string(256, 'h')), 1)})}),
        array({range(0, 1, {good}), range(2, 3, {good, Reply::of(1)})}),
        array({range(0, 1, {node(Reply::of("?"), 1)})}),
    };
    for (const Reply& reply : bad) {
        CAPTURE(reply.text);
        CHECK_FALSE(read_slots(reply, asked));
    }
}

TEST_CASE("a redirection names the slot and the node, permanently (MOVED) or for one command (ASK)") {
    const auto moved = read_redirect("MOVED 3999 127.0.0.1:6381", asked);
    REQUIRE(moved);
    CHECK_FALSE(moved->just_once);
    CHECK(moved->slot == 3999);
    CHECK(moved->to == HostPort{"127.0.0.1", 6381});
    const auto ask = read_redirect("ASK 0 node-3.example:7", asked);
    REQUIRE(ask);
    CHECK(ask->just_once);
    CHECK(ask->to == HostPort{"node-3.example", 7});
    CHECK(read_redirect("MOVED 1 ::1:6381", asked)->to == HostPort{"::1", 6381});
    CHECK(read_redirect("MOVED 1 :6381", asked)->to == HostPort{"10.0.0.1", 6381});
    for (const char* text : {"", "MOVED", "MOVED ", "MOVED 1", "MOVED 1 ", "MOVED 1 h", "MOVED 1 h:", "MOVED 1 h:0",
                             "MOVED 1 h:65536", "MOVED 16384 h:1", "MOVED -1 h:1", "MOVED x h:1", "ASKING 1 h:1",
                             "MOVED 1 a b:1", "moved 1 h:1", "MOVED (text hidden: it contains part of the login)"}) {
        CAPTURE(text);
        CHECK_FALSE(read_redirect(text, asked));
    }
}
