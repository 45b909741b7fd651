// SPDX-License-Identifier: MIT
// The watchdog's batches: which renewals share a call, what that call says, and what its reply means.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/call_words.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;
using redlatch::test::words_of;

namespace {

using Renewed = BackgroundTask::Renewed;
using Keys = std::vector<std::string>;

constexpr Milliseconds timeout = 30s;
const Script& rlock = digested<scripts::rlock_renew>;
const Script& mutex = digested<scripts::mutex_renew>;

Renewal renewal(std::string key, const Script& script = rlock, Milliseconds lease = timeout) {
    return {nullptr, std::move(key), 7, 1, &script, OwnerText("uuid", 7), lease};
}

std::uint32_t one_route(std::string_view) { return 0; }

template <class Route = std::uint32_t (*)(std::string_view)>
std::vector<Keys> batches(std::vector<Renewal> due, Route route = one_route, std::size_t most = 100) {
    std::vector<Keys> found;
    for_each_batch(due, most, route, [&](std::span<const Renewal> batch) {
        Keys keys;
        for (const Renewal& r : batch) keys.push_back(r.key);
        found.push_back(std::move(keys));
    });
    return found;
}

Reply array_of(std::vector<Reply> elements) { return {Reply::Kind::array, 0, {}, std::move(elements), true}; }

}  // namespace

TEST_CASE("nothing due: no call") { CHECK(batches({}).empty()); }

TEST_CASE("renewals of one kind share a call, in the order in which they were due") {
    CHECK(batches({renewal("c"), renewal("a"), renewal("b")}) == std::vector<Keys>{{"c", "a", "b"}});
}

TEST_CASE("a call renews as many as wanted at most") {
    struct Row {
        std::size_t most, count;
        std::vector<std::size_t> sizes;
    };
    for (const Row& row : {Row{100, 99, {99}}, Row{100, 100, {100}}, Row{100, 101, {100, 1}}, Row{100, 200, {100, 100}},
                           Row{100, 250, {100, 100, 50}}, Row{1, 3, {1, 1, 1}}, Row{1000, 2001, {1000, 1000, 1}}}) {
        CAPTURE(row.most);
        CAPTURE(row.count);
        std::vector<Renewal> due;
        for (std::size_t i = 0; i < row.count; ++i) due.push_back(renewal(std::to_string(i)));
        std::vector<std::size_t> found;
        std::size_t next = 0;
        for (const Keys& keys : batches(due, one_route, row.most)) {
            found.push_back(keys.size());
            for (const std::string& key : keys) CHECK(key == std::to_string(next++));
        }
        CHECK(found == row.sizes);
    }
}

TEST_CASE("routes do not share a call") {
    const auto route = [](std::string_view key) { return static_cast<std::uint32_t>(key.front()); };
    CHECK(batches({renewal("b1"), renewal("a1"), renewal("b2"), renewal("a2")}, route) ==
          std::vector<Keys>{{"a1", "a2"}, {"b1", "b2"}});
}

TEST_CASE("scripts do not share a call") {
    const auto found = batches({renewal("a"), renewal("m", mutex), renewal("b")});
    REQUIRE(found.size() == 2);
    const bool rlock_first = found[0].size() == 2;
    CHECK(found[rlock_first ? 0 : 1] == Keys{"a", "b"});
    CHECK(found[rlock_first ? 1 : 0] == Keys{"m"});
}

TEST_CASE("leases do not share a call; a lease as long as the watchdog's does") {
    CHECK(batches({renewal("a"), renewal("b", rlock, 10s), renewal("c", rlock, timeout)}) ==
          std::vector<Keys>{{"b"}, {"a", "c"}});
}

TEST_CASE("what other replicas must confirm does not share a call") {
    std::vector<Renewal> due{renewal("a"), renewal("b"), renewal("c")};
    due[0].replication = due[2].replication = Replication{1, 50ms};
    due[1].replication = Replication{1, 60ms};
    CHECK(batches(due) == std::vector<Keys>{{"a", "c"}, {"b"}});
    CHECK(renewal_call(std::span(due).first(1), 1234).replication == Replication{1, 50ms});
}

TEST_CASE("what is due early is that of the longest lease that is due") {
    CHECK(Watchdog::early(std::vector{renewal("a", rlock, 6s), renewal("b", rlock, 600ms)}) == 1s);
    CHECK(Watchdog::early(std::vector{renewal("b", rlock, 600ms)}) == 100ms);
}

TEST_CASE("the call names the keys, the lease, until when it is wanted, and the field of each hold") {
    const std::vector<Renewal> batch{renewal("a"), renewal("b")};
    const Call call = renewal_call(batch, 1234);
    CHECK(call.script() == &rlock);
    CHECK(call.key_count() == 2);
    CHECK(call.effect == Effect::grants);
    CHECK(words_of(call) == "a b 30000 1234 uuid:7 uuid:7");
    const std::vector<Renewal> leased{renewal("a", rlock, 10s)};
    CHECK(words_of(renewal_call(leased, 1234)) == "a 10000 1234 uuid:7");
}

TEST_CASE("each hold has its own answer") {
    const Reply reply = array_of({Reply::of(1), Reply::of(0), Reply::of(Reply::Kind::error, "ERR")});
    CHECK(outcome_of(reply, 0, 3) == Renewed::yes);
    CHECK(outcome_of(reply, 1, 3) == Renewed::refused);
    CHECK(outcome_of(reply, 2, 3) == Renewed::unknown);
}

TEST_CASE("a reply of another shape says nothing about any hold") {
    CHECK(outcome_of(array_of({Reply::of(1)}), 0, 2) == Renewed::unknown);
    CHECK(outcome_of(array_of({Reply::of(0), Reply::of(0)}), 0, 1) == Renewed::unknown);
    CHECK(outcome_of(Reply::of(1), 0, 1) == Renewed::unknown);
    CHECK(outcome_of(Reply::of(Reply::Kind::unanswered, "lost"), 0, 1) == Renewed::unknown);
}

TEST_CASE("a renewal that too few replicas confirmed is unknown, a refusal is one") {
    Reply reply = array_of({Reply::of(1), Reply::of(0)});
    reply.replicated = false;
    CHECK(outcome_of(reply, 0, 2) == Renewed::unknown);
    CHECK(outcome_of(reply, 1, 2) == Renewed::refused);
}
