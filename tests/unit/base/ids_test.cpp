// SPDX-License-Identifier: MIT
// Client ids, thread numbers, and their text on the wire.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <cstdint>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;

TEST_CASE("a UUID is of version 4 and in canonical form") {
    for (int i = 0; i < 100; ++i) {
        const std::string id = make_uuid();
        CAPTURE(id);
        REQUIRE(id.size() == 36);
        for (std::size_t at = 0; at < id.size(); ++at) {
            const bool dash = at == 8 || at == 13 || at == 18 || at == 23;
            const bool digit = (id[at] >= '0' && id[at] <= '9') || (id[at] >= 'a' && id[at] <= 'f');
            REQUIRE((dash ? id[at] == '-' : digit));
        }
        REQUIRE(id[14] == '4');
        REQUIRE((id[19] == '8' || id[19] == '9' || id[19] == 'a' || id[19] == 'b'));
    }
}

TEST_CASE("UUIDs do not repeat") {
    std::set<std::string> seen;
    for (int i = 0; i < 5000; ++i) seen.insert(make_uuid());
    CHECK(seen.size() == 5000);
}

TEST_CASE("a thread keeps its number, and no other thread ever gets it") {
    const OwnerNumber mine = this_thread_number();
    CHECK(mine > 0);
    CHECK(this_thread_number() == mine);

    std::set<OwnerNumber> seen{mine};
    // One after another, so that the system reuses its thread ids.
    for (int i = 0; i < 50; ++i) std::thread([&] { seen.insert(this_thread_number()); }).join();
    CHECK(seen.size() == 51);

    std::mutex mutex;
    std::vector<std::thread> together;
    for (int i = 0; i < 20; ++i)
        together.emplace_back([&] {
            const OwnerNumber number = this_thread_number();
            const std::lock_guard lock(mutex);
            seen.insert(number);
        });
    for (std::thread& thread : together) thread.join();
    CHECK(seen.size() == 71);
}

TEST_CASE("an owner on the wire is the UUID, a colon and the thread number") {
    const std::string uuid = "b983c153-7421-469a-addb-44fb92259a1b";
    CHECK(OwnerText(uuid, 42).view() == uuid + ":42");
    CHECK(OwnerText(uuid, 1).view() == uuid + ":1");
    CHECK(OwnerText(uuid, std::numeric_limits<std::uint64_t>::max()).view() == uuid + ":18446744073709551615");
}

TEST_CASE("the owner of a hold whose release grants nothing has an id of version 4") {
    const std::string uuid = make_uuid(8);
    std::string foreign = uuid;
    foreign[14] = '4';
    CHECK(OwnerText(uuid, grants_nothing - 1).view() == uuid + ":4503599627370495");
    CHECK(OwnerText(uuid, 42 | grants_nothing).view() == foreign + ":4503599627370538");
    CHECK(OwnerText(uuid, 42 | grants_nothing, ":write").view() == foreign + ":4503599627370538:write");
}

TEST_CASE("the client id and the number of an owner are read from its text") {
    const std::string uuid = make_uuid(8);
    for (const std::uint64_t number : {std::uint64_t{42}, std::numeric_limits<std::uint64_t>::max()}) {
        const std::string text = uuid + ":" + std::to_string(number);
        const auto parts = parts_of_owner(text);
        REQUIRE(parts.has_value());
        CHECK(parts->client == uuid);
        CHECK(parts->number == number);
    }
    for (const std::string& other :
         {uuid, uuid + ":", uuid + ":x", uuid + ":4x", uuid + "42", uuid + ":18446744073709551616", std::string()})
        CHECK_FALSE(parts_of_owner(other));
}

TEST_CASE("a hold on the wire is the owner, a colon and the number of the hold") {
    const std::string uuid = "b983c153-7421-469a-addb-44fb92259a1b";
    CHECK(OwnerText(uuid, 42, 7).view() == uuid + ":42:7");
    const std::uint64_t highest = std::numeric_limits<std::uint64_t>::max();
    CHECK(OwnerText(uuid, highest, highest).view() == uuid + ":18446744073709551615:18446744073709551615");
}

TEST_CASE("a number on the wire is decimal") {
    CHECK(NumberText(0).view() == "0");
    CHECK(NumberText(30'000).view() == "30000");
    CHECK(NumberText(-1).view() == "-1");
    CHECK(NumberText(std::numeric_limits<std::int64_t>::max()).view() == "9223372036854775807");
    CHECK(NumberText(std::numeric_limits<std::int64_t>::min()).view() == "-9223372036854775808");
}
