// SPDX-License-Identifier: MIT
// The calls of semaphores and latches, word by word. No server and no transport.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <array>
#include <string>
#include <vector>

#include "support/call_words.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;
using redlatch::test::words_of;

namespace {

const std::string uuid = "01234567-89ab-4cde-8f01-23456789abcd";

struct Fixture {
    ClientOptions options{};
    NativeCommands native;
    ProtocolContext context{uuid, options, native};
    RequestId request{3, 17, 100'000};  // slot, number, wanted until
};

// With the default options a mark stays for 80 s beyond the time until which its request is wanted.
const std::string request_words = "3 17 100000 80000 0";

}  // namespace

TEST_CASE("a request carries its slot, its number, until when it is wanted, and whether a copy may be in flight") {
    Fixture fixture;
    const RequestMarks marks(fixture.context, "seats", "redlatch_semaphore_requests");
    const std::string keys = "seats redlatch_semaphore_requests:{seats}:" + uuid + ' ';
    const Script& script = digested<scripts::semaphore_add>;
    CHECK(words_of(marks.call(script, fixture.request, {"more"}, {"x"})) == keys + "more " + request_words + " x");
    fixture.request.may_be_done = true;
    CHECK(words_of(marks.call(script, fixture.request, {}, {})) == keys + "3 17 100000 80000 1");
    CHECK(words_of(marks.void_request(fixture.request)) ==
          "redlatch_semaphore_requests:{seats}:" + uuid + " 3 17 100000 80000");
}

TEST_CASE("a request is wanted for a quarter of the marks' longest TTL, and its mark outlives it by two thirds") {
    for (const auto& [unreachable, longest] :
         {std::pair{1000ms, 120'000ms}, std::pair{60'000ms, 240'000ms}, std::pair{7'200'000ms, 3'600'000ms}}) {
        ClientOptions options;
        options.unreachable_timeout = unreachable;
        NativeCommands native;
        CHECK(RequestMarks::longest_ttl(options) == longest);
        const RequestMarks marks({uuid, options, native}, "seats", "marks");
        CHECK(marks.wanted_from(1000) == 1000 + longest.count() / 4);
        const RequestId request{0, 1, 50'000};
        CHECK(marks.mark_end(request) == 50'000 + longest.count() * 2 / 3 - 1000);
    }
}

TEST_CASE("Semaphore: calls") {
    Fixture fixture;
    const SemaphoreProtocol seats(fixture.context, "seats");
    const std::string keys = "seats redlatch_semaphore_requests:{seats}:" + uuid + ' ';
    const std::string channel = "redisson_sc:{seats} ";
    std::vector<SemaphoreProtocol::Want> wants(2);
    wants[0].permits = 5;
    wants[0].lets_pass = true;
    wants[1].permits = 2;
    const Call ask = seats.ask(wants, fixture.request);
    CHECK(ask.effect == Effect::grants);
    CHECK(words_of(ask) == keys + request_words + ' ' + uuid + " 0 PUBLISH -5 2");
    const std::string queue = channel + "redlatch_semaphore_queue:{seats} redlatch_semaphore_places:{seats} ";
    CHECK(words_of(seats.ask(wants, fixture.request, 11)) ==
          keys + queue + request_words + ' ' + uuid + " 11 PUBLISH -5 2");
    CHECK(words_of(seats.queue().leave(seats.marks(), fixture.request, 11)) ==
          keys + queue + request_words + ' ' + uuid + " 11 PUBLISH");
    CHECK(words_of(seats.take_back(fixture.request, wants)) == keys + queue + request_words + " PUBLISH");
    CHECK(words_of(seats.give_back(fixture.request, wants)) == keys + queue + request_words + " 7 PUBLISH 1");
    CHECK(words_of(seats.add(fixture.request, -3, false)) == keys + queue + request_words + " -3 PUBLISH 0");
    CHECK(words_of(seats.set(fixture.request, 9)) == keys + queue + request_words + " 9 PUBLISH");
    // A user without a right to the keys of the queue does without it, from the first refusal on.
    const Reply no_right = Reply::of(Reply::Kind::error, "NOPERM No permissions to access a key");
    CHECK_FALSE(seats.queue().is_refused(ask.key_count(), no_right));
    CHECK(seats.queue().is_used());
    CHECK(seats.queue().is_refused(seats.ask(wants, fixture.request, 11).key_count(), no_right));
    CHECK(words_of(seats.ask(wants, fixture.request, 11)) == keys + request_words + ' ' + uuid + " 0 PUBLISH -5 2");
    CHECK(words_of(seats.add(fixture.request, -3, false)) == keys + channel + request_words + " -3 PUBLISH 0");
    CHECK(words_of(seats.drain(fixture.request)) == keys + request_words);
    CHECK(words_of(seats.available()) == "GET seats");
}

TEST_CASE("CountDownLatch: calls") {
    Fixture fixture;
    const LatchProtocol gate(fixture.context, "gate");
    const std::string keys = "gate redlatch_latch_requests:{gate}:" + uuid + ' ';
    const std::string channel = "redisson_countdownlatch__channel__{gate}";
    CHECK(gate.channel() == channel);
    CHECK(words_of(gate.ask({}, fixture.request)) == "gate redlatch_latch_round:{gate}");
    CHECK(words_of(gate.set(fixture.request, 4)) ==
          keys + "redlatch_latch_round:{gate} " + request_words + " 4 " + channel + " PUBLISH");
    CHECK(words_of(gate.lower(fixture.request, 2)) ==
          keys + "redlatch_latch_round:{gate} " + request_words + " 2 " + channel + " PUBLISH");
    CHECK(words_of(gate.lower(fixture.request, LatchProtocol::all)) ==
          keys + "redlatch_latch_round:{gate} " + request_words + " all " + channel + " PUBLISH");
}

TEST_CASE("PermitExpirableSemaphore: calls") {
    Fixture fixture;
    const PermitProtocol slots(fixture.context, "slots");
    const std::string keys = "slots redlatch_permit_requests:{slots}:" + uuid +
                             " {slots}:timeout redisson_sc:{slots} redlatch_semaphore_queue:{slots} "
                             "redlatch_semaphore_places:{slots} ";
    const PermitId a = PermitId::random(), b = PermitId::random();
    const std::string ids = std::string(a.bytes()) + ' ' + std::string(b.bytes());
    std::vector<PermitProtocol::Want> wants(1);
    wants[0].ids = {a, b};
    const auto asked = [&](PermitLease lease, bool lets_pass = false) {
        wants[0].lease = lease;
        wants[0].lets_pass = lets_pass;
        return words_of(slots.ask(wants, fixture.request));
    };
    CHECK(asked({.length = 30s}) == keys + request_words + ' ' + uuid + " 0 PUBLISH 0 2 30000 " + ids);
    CHECK(asked(PermitLease::of(Lease(2s)), true) == keys + request_words + ' ' + uuid + " 0 PUBLISH 0 -2 2000 " + ids);
    CHECK(asked(PermitLease::of(Lease::forever())) == keys + request_words + ' ' + uuid + " 0 PUBLISH 0 2 -1 " + ids);
    // What may be granted: what the watchdog prolongs.
    const auto is_offered = [&](PermitLease lease, bool lets_pass = false, Replication replication = {}) {
        wants[0].lease = lease;
        wants[0].lets_pass = lets_pass;
        wants[0].replication = replication;
        const std::string words = words_of(slots.ask(wants, fixture.request, 7));
        return words.find(" 7 PUBLISH 1 ") != std::string::npos;
    };
    CHECK(is_offered({.length = 30s}));
    CHECK_FALSE(is_offered(PermitLease::of(Lease(2s))));
    CHECK_FALSE(is_offered(PermitLease::of(Lease::forever())));
    CHECK_FALSE(is_offered({.length = 30s}, true));
    CHECK_FALSE(is_offered({.length = 30s}, false, {.required = 1}));
    CHECK_FALSE(is_offered({.length = 30s}, false, {.on_disk = true}));
    CHECK(words_of(slots.leave(fixture.request, 7, std::array{a})) ==
          keys + request_words + ' ' + uuid + " 7 PUBLISH " + std::string(a.bytes()));
    CHECK(words_of(slots.take_back(fixture.request, wants)) == keys + request_words + " PUBLISH " + ids);
    const std::array<PermitId, 2> both{a, b};
    CHECK(words_of(slots.release(fixture.request, both)) == keys + request_words + " PUBLISH " + ids);
    CHECK(words_of(slots.set_lease(fixture.request, a, PermitLease::of(Lease(2s)))) ==
          keys + request_words + " PUBLISH " + std::string(a.bytes()) + " 2000");
    CHECK(words_of(slots.set_total(fixture.request, 6)) == keys + request_words + " PUBLISH 6");
    CHECK(words_of(slots.add(fixture.request, -1)) == keys + request_words + " PUBLISH -1");
    const Call renew = slots.renew(both, 30s, 7000);
    CHECK(renew.effect == Effect::grants);
    CHECK(words_of(renew) == "{slots}:timeout 30000 7000 " + ids);
    CHECK(words_of(slots.remaining(b)) == "{slots}:timeout " + std::string(b.bytes()));
}
