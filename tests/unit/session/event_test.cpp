// SPDX-License-Identifier: MIT
// Event: the names of its kinds.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <set>
#include <string_view>

using redlatch::Event;
using redlatch::to_string;

TEST_CASE("each kind of event has its own name, and a number that is no kind has none") {
    using Kind = Event::Kind;
    static_assert(to_string(Kind::hold_lost) == "hold_lost");
    static_assert(to_string(Kind::unlock_not_delivered) == "unlock_not_delivered");
    static_assert(to_string(Kind::disconnected) == "disconnected");
    static_assert(to_string(Kind::reconnected) == "reconnected");
    static_assert(to_string(Kind::moved) == "moved");
    static_assert(to_string(Kind::not_set_up) == "not_set_up");
    std::set<std::string_view> names;
    for (int kind = 0; to_string(static_cast<Kind>(kind)) != "unknown"; ++kind)
        names.insert(to_string(static_cast<Kind>(kind)));
    CHECK(names.size() == 6);
}
