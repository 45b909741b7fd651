// SPDX-License-Identifier: MIT
// KeyHolds and their table: which kinds of locks of this process hold a key.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <memory>
#include <string>

using namespace redlatch;
using namespace redlatch::detail;

TEST_CASE("another family is found while it holds the key") {
    KeyHolds holds;
    holds.taken({"rlock", 1, 10, false});
    CHECK(holds.other_than("rlock").empty());
    CHECK(holds.other_than("fair") == "rlock");
    holds.ended(10);
    CHECK(holds.other_than("fair").empty());
}

TEST_CASE("the writer is found by its owner") {
    KeyHolds holds;
    holds.taken({"read_write", 1, 10, false});
    holds.taken({"read_write", 2, 11, true});
    CHECK(holds.writer_of(1) == 0);
    CHECK(holds.writer_of(2) == 11);
    holds.ended(11);
    CHECK(holds.writer_of(2) == 0);
}

TEST_CASE("one key has one record, as long as someone refers to it") {
    KeyHoldsTable table;
    const auto orders = table.of("orders");
    CHECK(table.of("orders") == orders);
    CHECK(table.of("stock") != orders);
    std::weak_ptr<KeyHolds> stock = table.of("stock");
    CHECK(stock.expired());
}

TEST_CASE("a record in use survives any number of other keys") {
    KeyHoldsTable table;
    const auto orders = table.of("orders");
    for (int i = 0; i < 1'000; ++i) static_cast<void>(table.of(std::to_string(i)));
    CHECK(table.of("orders") == orders);
}
