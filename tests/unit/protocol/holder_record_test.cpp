// SPDX-License-Identifier: MIT
// The record beside a lock: its calls word by word, how replies are read, and who is served. No server and no transport.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/call_words.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;
using redlatch::test::words_of;

namespace {

using Protocol = HolderRecordProtocol;
using Want = Protocol::Want;

const std::string uuid = "01234567-89ab-4cde-8f01-23456789abcd";
const std::string me = uuid + ":7";

Reply none() { return Reply{}; }
Reply text(std::string value) { return Reply::of(std::move(value)); }

Reply array(std::vector<Reply> elements) {
    Reply reply;
    reply.kind = Reply::Kind::array;
    reply.elements = std::move(elements);
    return reply;
}

// The parts of a look: a held lock without a record.
std::vector<Reply> held() { return {text(me), Reply::of(500), text("42"), none(), none(), none(), Reply::of(-2)}; }

std::vector<Reply> recorded() {
    std::vector<Reply> parts = held();
    parts[3] = text(me);
    parts[4] = text("42");
    parts[5] = text("host-7");
    parts[6] = Reply::of(-1);
    return parts;
}

std::vector<Reply> free_lock() { return {none(), Reply::of(-2), none(), none(), none(), none(), Reply::of(-2)}; }

struct Fixture {
    ClientOptions options{};
    NativeCommands native;
    ProtocolContext context{uuid, options, native};
    Protocol record{context, "orders", leader_record};
};

bool is_unexpected(const Protocol& record, std::vector<Reply> parts) {
    try {
        static_cast<void>(record.read_look(array(std::move(parts))));
    } catch (const Error&) {
        return true;
    }
    return false;
}

}  // namespace

TEST_CASE("the calls name the lock, its token counter and the record, all in one slot") {
    Fixture fixture;
    CHECK(words_of(fixture.record.look()) == "orders redisson_lock_token:{orders} redlatch_leader:{orders}");
    CHECK(words_of(fixture.record.store(7, 42, "host-7", 900ms)) ==
          "orders redlatch_leader:{orders} " + me + " 42 host-7 900 redisson_lock__channel:{orders} PUBLISH");
    CHECK(fixture.record.store(7, 42, "", 0ms).effect == Effect::grants);
    CHECK(words_of(fixture.record.remove(me)) == "redlatch_leader:{orders} " + me);
    CHECK(words_of(Protocol(fixture.context, "a{b}", once_record).look()) ==
          "a{b} redisson_lock_token:a{b} redlatch_once:a{b}");
    CHECK(words_of(Protocol(fixture.context, "x", flight_record).remove(me)) == "redlatch_flight:{x} " + me);
}

TEST_CASE("a look is read: free, held, with a record of the holder or of another one") {
    Fixture fixture;
    RecordView view = fixture.record.read_look(array(free_lock()));
    CHECK_FALSE(view.holder);
    CHECK_FALSE(view.last_token);
    CHECK_FALSE(view.record);
    CHECK_FALSE(view.is_of_holder());

    view = fixture.record.read_look(array(held()));
    REQUIRE(view.holder);
    CHECK(view.holder->owner == me);
    CHECK(view.holder->number == 7);
    CHECK(view.holder->lease == 500ms);
    CHECK(view.last_token == 42);
    CHECK_FALSE(view.is_of_holder());

    view = fixture.record.read_look(array(recorded()));
    REQUIRE(view.record);
    CHECK(view.is_of_holder());
    CHECK(view.record->value == "host-7");
    CHECK(view.record->token == 42);
    CHECK(view.record->stays == Milliseconds::max());

    std::vector<Reply> parts = recorded();
    parts[3] = text(uuid + ":6");
    parts[6] = Reply::of(1200);
    view = fixture.record.read_look(array(parts));
    CHECK_FALSE(view.is_of_holder());
    CHECK(view.record->stays == 1200ms);
}

TEST_CASE("a look of another shape is an error") {
    Fixture fixture;
    CHECK(is_unexpected(fixture.record, {}));
    CHECK(is_unexpected(fixture.record, {text(me)}));
    for (std::size_t i = 0; i < 7; ++i) {
        CAPTURE(i);
        std::vector<Reply> parts = recorded();
        parts[i] = array({});
        CHECK(is_unexpected(fixture.record, parts));
    }
    std::vector<Reply> parts = recorded();
    parts[4] = text("no number");
    CHECK(is_unexpected(fixture.record, parts));
    for (const std::int64_t wrong : {-1, 2}) CHECK_THROWS_AS(fixture.record.read_done(Reply::of(wrong)), Error);
    CHECK_THROWS_AS(fixture.record.read_done(text("1")), Error);
    CHECK(fixture.record.read_done(Reply::of(1)));
    CHECK_FALSE(fixture.record.read_done(Reply::of(0)));
}

TEST_CASE("who waits for a change is served by what differs from what it has seen") {
    Fixture fixture;
    std::vector<Want> wants(2);
    wants[0].differs = [](const RecordView& view) { return !view.holder; };
    wants[1].differs = [](const RecordView& view) { return view.is_of_holder(); };
    Answer answer = fixture.record.decode(array(held()), wants);
    CHECK_FALSE(wants[0].served);
    CHECK_FALSE(wants[1].served);
    CHECK(answer.hint == 501ms);
    answer = fixture.record.decode(array(recorded()), wants);
    CHECK_FALSE(wants[0].served);
    CHECK(wants[1].served);
    CHECK(wants[1].found.record->value == "host-7");
    answer = fixture.record.decode(array(free_lock()), wants);
    CHECK(wants[0].served);
    CHECK(answer.hint == Milliseconds::max());
}

TEST_CASE("who waits for a record is served by any, and one of them by a free lock") {
    Fixture fixture;
    std::vector<Want> wants(3);
    fixture.record.decode(array(held()), wants);
    for (const Want& want : wants) CHECK_FALSE(want.served);
    const Answer answer = fixture.record.decode(array(free_lock()), wants);
    CHECK(wants[0].served);
    CHECK_FALSE(wants[0].found.record);
    CHECK_FALSE(wants[1].served);
    CHECK_FALSE(wants[2].served);
    CHECK(answer.hint == 100ms);
    std::vector<Reply> parts = recorded();
    parts[0] = none();
    parts[1] = Reply::of(-2);
    fixture.record.decode(array(parts), wants);
    for (const Want& want : wants) CHECK(want.served);
    CHECK(wants[2].found.record->value == "host-7");
    // A lock without a lease never becomes free by itself.
    parts = held();
    parts[1] = Reply::of(-1);
    wants.assign(1, {});
    CHECK(fixture.record.decode(array(parts), wants).hint == Milliseconds::max());
}
