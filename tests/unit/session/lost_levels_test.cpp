// SPDX-License-Identifier: MIT
// LostLevels: the levels of lost holds whose unlock() is still to come.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "support/internals.hpp"

using namespace redlatch;
using namespace redlatch::detail;

TEST_CASE("each level is taken once, by its owner, from the lock of its kind and name") {
    LostLevels levels;
    levels.add("rlock", "orders", 1, 2);
    CHECK_FALSE(levels.take("rlock", "orders", 2));
    CHECK_FALSE(levels.take("rlock", "stock", 1));
    CHECK_FALSE(levels.take("fair", "orders", 1));
    CHECK(levels.take("rlock", "orders", 1));
    levels.add("rlock", "orders", 1, 1);
    CHECK(levels.take("rlock", "orders", 1));
    CHECK(levels.take("rlock", "orders", 1));
    CHECK_FALSE(levels.take("rlock", "orders", 1));
}

TEST_CASE("the number and the token of the hold that was lost last stay known") {
    LostLevels levels;
    CHECK(levels.last("fenced lock", "orders", 1).number == 0);
    levels.add("fenced lock", "orders", 1, 1, {7, 70});
    levels.add("fenced lock", "orders", 2, 1, {8, 80});
    levels.add("fenced lock", "orders", 1, 1, {9, 90});
    CHECK(levels.last("fenced lock", "orders", 1).number == 9);
    CHECK(levels.last("fenced lock", "orders", 1).token == 90);
    CHECK(levels.last("fenced lock", "orders", 2).token == 80);
}

TEST_CASE("only the latest are kept, so that holds that are never unlocked take no more memory") {
    LostLevels levels;
    constexpr std::uint64_t more = 5;
    for (std::uint64_t owner = 0; owner < LostLevels::most + more; ++owner) levels.add("rlock", "orders", owner, 1);
    for (std::uint64_t owner = 0; owner < more; ++owner) CHECK_FALSE(levels.take("rlock", "orders", owner));
    std::size_t kept = 0;
    for (std::uint64_t owner = more; owner < LostLevels::most + more; ++owner)
        if (levels.take("rlock", "orders", owner)) ++kept;
    CHECK(kept == LostLevels::most);
}

TEST_CASE("levels that were taken leave room for others") {
    LostLevels levels;
    levels.add("rlock", "orders", 1, 1);
    for (std::uint64_t owner = 2; owner < LostLevels::most + 10; ++owner) {
        levels.add("rlock", "orders", owner, 1);
        CHECK(levels.take("rlock", "orders", owner));
    }
    CHECK(levels.take("rlock", "orders", 1));
}

TEST_CASE("an owner that loses the lock once more is one of the latest again") {
    LostLevels levels;
    for (std::uint64_t owner = 1; owner <= LostLevels::most; ++owner) levels.add("rlock", "orders", owner, 1);
    levels.add("rlock", "orders", 1, 1);
    levels.add("rlock", "orders", LostLevels::most + 1, 1);
    CHECK(levels.take("rlock", "orders", 1));
    CHECK(levels.take("rlock", "orders", 1));
    CHECK_FALSE(levels.take("rlock", "orders", 2));
    CHECK(levels.take("rlock", "orders", 3));
}
