// SPDX-License-Identifier: MIT
// WantedChannels: the channels of a pub/sub connection, and the changes that are still to be requested.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/internals.hpp"

using namespace redlatch;
using namespace redlatch::detail;

namespace {

// Returns the changes as "+channel" and "-channel".
std::vector<std::string> changes_of(WantedChannels& channels) {
    std::vector<std::string> list;
    for (const ChannelChange& change : channels.take_changes())
        list.push_back((change.wanted ? "+" : "-") + change.channel);
    return list;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("changes are taken once, in their order") {
    WantedChannels channels;
    CHECK(channels.empty());
    CHECK(channels.any().empty());
    channels.change("orders", true);
    channels.change("stock", true);
    channels.change("orders", false);
    CHECK_FALSE(channels.contains("orders"));
    CHECK(channels.any() == "stock");
    CHECK(changes_of(channels) == Texts{"+orders", "+stock", "-orders"});
    CHECK(changes_of(channels).empty());
}

TEST_CASE("a new connection requests what is wanted now, and no earlier change") {
    WantedChannels channels;
    channels.change("orders", true);
    channels.change("stock", true);
    CHECK(changes_of(channels) == Texts{"+orders", "+stock"});
    channels.change("orders", false);
    channels.change("users", true);
    CHECK(channels.want_all());
    CHECK(changes_of(channels) == Texts{"+stock", "+users"});
}

TEST_CASE("a channel that is forgotten is not requested again") {
    WantedChannels channels;
    channels.change("orders", true);
    CHECK(changes_of(channels) == Texts{"+orders"});
    CHECK(channels.want_again("orders"));
    CHECK_FALSE(channels.want_again("stock"));
    CHECK(changes_of(channels) == Texts{"+orders"});
    channels.forget("orders");
    CHECK_FALSE(channels.want_again("orders"));
    CHECK(changes_of(channels).empty());
    CHECK(channels.empty());
}
