// SPDX-License-Identifier: MIT
// The queue of commands of one connection, without a connection.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

const Instant start = Instant{} + 1h;

// Commands of one word, whose bytes are easy to recognise.
const std::array<std::string_view, 1> a{"A"}, b{"B"}, c{"C"};
const Command A{a, 0}, B{b, 0}, C{c, 0};

std::string bytes_of(const std::string& words) {
    std::string bytes;
    for (const char word : words) bytes += std::string("*1\r\n$1\r\n") + word + "\r\n";
    return bytes;
}

// Replies, as numbers, that arrive together.
std::vector<Reply> arrived(std::initializer_list<int> numbers) {
    std::vector<Reply> replies;
    for (const int number : numbers) replies.push_back(Reply::of(number));
    return replies;
}

// A thread that waits for its replies.
struct Caller : Exchange {
    explicit Caller(std::size_t expected) : Exchange(nullptr, expected), replies(expected) {
        next_reply = replies.data();
    }

    std::vector<Reply> replies;
};

struct Fixture {
    void call(Caller& caller, const std::vector<Command>& commands, Instant due = start) {
        pipeline.call(commands, caller, due);
    }

    // The number of the reply, or a letter for its kind, is added to `completed`.
    void post(const Command& command, const std::string& name, Instant due = start) {
        auto posted = std::make_unique<PostedCommand>([this, name](const Reply& reply) {
            completed += name + '=' + said(reply) + ' ';
            last_text = reply.text;
        });
        pipeline.post({&command, 1}, {&posted, 1}, due);
    }

    // Writes everything at once.
    void write() {
        const std::string_view bytes = pipeline.stage();
        pipeline.wrote(bytes.substr(bytes.size()), false);
    }

    // Returns the callers that are complete, in their order.
    std::vector<const Exchange*> hand_out(Answered answered) {
        std::vector<const Exchange*> woken;
        answered.wake_exchanges([&](Exchange& exchange) { woken.push_back(&exchange); });
        answered.complete_posted();
        CHECK_FALSE(answered.has_posted());
        return woken;
    }

    std::vector<const Exchange*> take(std::vector<Reply> replies) { return hand_out(pipeline.take(replies)); }

    std::vector<const Exchange*> fail(Reply::Kind first = Reply::Kind::unanswered) {
        return hand_out(pipeline.fail(first, Reply::of(Reply::Kind::unanswered, "ended"),
                                      Reply::of(Reply::Kind::not_sent, "closed")));
    }

    static std::string said(const Reply& reply) {
        switch (reply.kind) {
            case Reply::Kind::integer: return std::to_string(reply.integer);
            case Reply::Kind::unanswered: return "unanswered";
            case Reply::Kind::not_sent: return "not_sent";
            case Reply::Kind::malformed: return "malformed";
            default: return "?";
        }
    }

    // How many commands are written, staged and waiting.
    std::array<std::size_t, 3> states() const {
        CHECK(pipeline.written() + pipeline.staged() + pipeline.waiting() == pipeline.in_flight());
        return {pipeline.written(), pipeline.staged(), pipeline.waiting()};
    }

    using States = std::array<std::size_t, 3>;
    using Woken = std::vector<const Exchange*>;

    Pipeline pipeline;
    std::string completed;
    std::string last_text;
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "an empty pipeline has nothing to write, to await or to fail") {
    CHECK(states() == States{0, 0, 0});
    CHECK_FALSE(pipeline.has_bytes());
    CHECK_FALSE(pipeline.is_full());
    CHECK(pipeline.due() == never);
    CHECK(pipeline.last_exchange(nullptr) == nullptr);
    CHECK(fail().empty());
    CHECK(take(arrived({1})).empty());
}

TEST_CASE_FIXTURE(Fixture, "a command is waiting, then staged, then written, then done") {
    Caller caller(1);
    call(caller, {A});
    CHECK(states() == States{0, 0, 1});
    CHECK(pipeline.has_bytes());
    CHECK(pipeline.awaits(caller));

    const std::string_view bytes = pipeline.stage();
    CHECK(bytes == bytes_of("A"));
    CHECK(states() == States{0, 1, 0});
    CHECK_FALSE(pipeline.has_bytes());

    pipeline.wrote({}, false);
    CHECK(states() == States{1, 0, 0});

    CHECK(take(arrived({7})) == Woken{&caller});
    CHECK(states() == States{0, 0, 0});
    CHECK_FALSE(pipeline.awaits(caller));
    CHECK(caller.replies[0].integer == 7);
    CHECK(caller.missing == 0);
}

TEST_CASE_FIXTURE(Fixture, "one write takes all that wait, and what comes meanwhile is for the next one") {
    Caller one(1), two(1), three(1);
    call(one, {A});
    call(two, {B});
    const std::string_view bytes = pipeline.stage();
    CHECK(bytes == bytes_of("AB"));
    call(three, {C});
    CHECK(bytes == bytes_of("AB"));
    CHECK(states() == States{0, 2, 1});
    pipeline.wrote({}, false);
    CHECK(states() == States{2, 0, 1});
    CHECK(pipeline.stage() == bytes_of("C"));
    CHECK(states() == States{2, 1, 0});
    CHECK_FALSE(pipeline.has_bytes());
    pipeline.wrote({}, false);
    CHECK(pipeline.stage().empty());
}

TEST_CASE_FIXTURE(Fixture, "a write without room goes on where it stopped, before what came later") {
    Caller one(1), two(1);
    call(one, {A});
    std::string_view bytes = pipeline.stage();
    bytes.remove_prefix(4);
    pipeline.wrote(bytes, true);
    CHECK(pipeline.is_full());
    CHECK(pipeline.has_bytes());
    call(two, {B});
    CHECK(pipeline.stage() == bytes_of("A").substr(4));
    CHECK(states() == States{0, 1, 1});
    pipeline.wrote({}, false);
    CHECK_FALSE(pipeline.is_full());
    CHECK(pipeline.stage() == bytes_of("B"));
}

// With TLS, the connection has taken all bytes, but has no room for them.
TEST_CASE_FIXTURE(Fixture, "a full connection stays full although no bytes of ours are left") {
    Caller one(1);
    call(one, {A});
    pipeline.stage();
    pipeline.wrote({}, true);
    CHECK(pipeline.is_full());
    CHECK(pipeline.has_bytes());
    CHECK(pipeline.stage().empty());
    CHECK(states() == States{0, 1, 0});
}

TEST_CASE_FIXTURE(Fixture, "replies go to their commands in order, to callers and completions alike") {
    Caller one(2), two(1);
    call(one, {A, B});
    post(C, "posted");
    call(two, {A});
    write();
    CHECK(take(arrived({1})).empty());
    CHECK(one.missing == 1);
    CHECK(pipeline.awaits(one));
    CHECK(take(arrived({2, 3, 4})) == Woken{&one, &two});
    CHECK(one.replies[0].integer == 1);
    CHECK(one.replies[1].integer == 2);
    CHECK(two.replies[0].integer == 4);
    CHECK(completed == "posted=3 ");
}

TEST_CASE_FIXTURE(Fixture, "completions are called in the order of the replies") {
    post(A, "a");
    post(B, "b");
    post(C, "c");
    write();
    take(arrived({1, 2, 3}));
    CHECK(completed == "a=1 b=2 c=3 ");
}

TEST_CASE_FIXTURE(Fixture, "a reply may come before the write has ended") {
    Caller one(1), two(1), three(1);
    call(one, {A});
    write();
    call(two, {B});
    call(three, {C});
    std::string_view bytes = pipeline.stage();
    CHECK(states() == States{1, 2, 0});
    CHECK(take(arrived({1, 2})) == Woken{&one, &two});
    CHECK(states() == States{0, 1, 0});
    bytes.remove_prefix(bytes_of("B").size());
    pipeline.wrote(bytes, true);
    CHECK(states() == States{0, 1, 0});
    CHECK(pipeline.stage() == bytes_of("C"));
    pipeline.wrote({}, false);
    CHECK(states() == States{1, 0, 0});
    CHECK(take(arrived({3})) == Woken{&three});
}

TEST_CASE_FIXTURE(Fixture, "all replies may come before the write has ended") {
    Caller one(1), two(1);
    call(one, {A});
    pipeline.stage();
    CHECK(take(arrived({1})) == Woken{&one});
    call(two, {B});
    pipeline.wrote({}, false);
    CHECK(states() == States{0, 0, 1});
    CHECK(pipeline.stage() == bytes_of("B"));
}

TEST_CASE_FIXTURE(Fixture, "a reply to a command that was not sent is nobody's") {
    Caller one(1), two(1);
    call(one, {A});
    write();
    call(two, {B});
    std::vector<Reply> replies = arrived({1, 2});
    Answered answered = pipeline.take(replies);
    CHECK(answered.replies() == 1);
    CHECK(answered.exchanges() == 1);
    CHECK(hand_out(std::move(answered)) == Woken{&one});
    CHECK(two.missing == 1);
    CHECK(pipeline.awaits(two));
}

TEST_CASE_FIXTURE(Fixture, "a failure tells what was sent, in whole or in part, from what was not") {
    Caller written(1), staged(1), waiting(2);
    call(written, {A});
    write();
    call(staged, {B});
    const std::string_view half = pipeline.stage().substr(3);
    post(C, "late");
    call(waiting, {A, B});
    CHECK(states() == States{1, 1, 3});
    CHECK(fail() == Woken{&written, &staged, &waiting});
    CHECK(said(written.replies[0]) == "unanswered");
    CHECK(said(staged.replies[0]) == "unanswered");
    CHECK(staged.replies[0].text == "ended");
    CHECK(said(waiting.replies[0]) == "not_sent");
    CHECK(said(waiting.replies[1]) == "not_sent");
    CHECK(waiting.replies[1].text == "closed");
    CHECK(completed == "late=not_sent ");
    CHECK(states() == States{0, 0, 0});
    CHECK_FALSE(pipeline.awaits(waiting));
    // The writer may still be inside its write.
    CHECK(half == bytes_of("B").substr(3));
    pipeline.wrote(half, true);
    CHECK(states() == States{0, 0, 0});

    // The next connection begins with whole commands.
    pipeline.drop_staged();
    CHECK_FALSE(pipeline.has_bytes());
    Caller next(1);
    call(next, {C});
    CHECK(pipeline.stage() == bytes_of("C"));
    pipeline.wrote({}, false);
    CHECK(states() == States{1, 0, 0});
    CHECK(take(arrived({9})) == Woken{&next});
}

TEST_CASE_FIXTURE(Fixture, "only the first command that was sent has the kind of the failure") {
    Caller one(1), two(1), three(1);
    call(one, {A});
    call(two, {B});
    write();
    call(three, {C});
    fail(Reply::Kind::malformed);
    CHECK(said(one.replies[0]) == "malformed");
    CHECK(one.replies[0].text == "ended");
    CHECK(said(two.replies[0]) == "unanswered");
    CHECK(said(three.replies[0]) == "not_sent");
}

TEST_CASE_FIXTURE(Fixture, "the kind of the failure is not for a command that waits") {
    post(A, "a");
    post(B, "b");
    fail(Reply::Kind::malformed);
    CHECK(completed == "a=not_sent b=not_sent ");
    CHECK(last_text == "closed");
}

TEST_CASE_FIXTURE(Fixture, "a failure after a part of the replies of a caller completes it") {
    Caller one(3);
    call(one, {A, B, C});
    write();
    take(arrived({1}));
    CHECK(fail() == Woken{&one});
    CHECK(one.replies[0].integer == 1);
    CHECK(said(one.replies[1]) == "unanswered");
    CHECK(said(one.replies[2]) == "unanswered");
}

TEST_CASE_FIXTURE(Fixture, "a caller that leaves has its replies, and those of the server find the next command") {
    Caller leaving(2), other(1);
    call(leaving, {A, B});
    call(other, {C});
    write();
    take(arrived({1}));
    pipeline.abandon(leaving, Reply::of(Reply::Kind::unanswered, "too late"));
    CHECK(leaving.missing == 0);
    CHECK(leaving.replies[0].integer == 1);
    CHECK(leaving.replies[1].text == "too late");
    CHECK_FALSE(pipeline.awaits(leaving));
    CHECK(pipeline.in_flight() == 2);
    CHECK(take(arrived({2, 3})) == Woken{&other});
    CHECK(leaving.replies[1].text == "too late");
    CHECK(other.replies[0].integer == 3);
}

TEST_CASE_FIXTURE(Fixture, "a caller that leaves before its command is written: the command is sent all the same") {
    Caller leaving(2);
    call(leaving, {A, B});
    pipeline.abandon(leaving, Reply::of(Reply::Kind::unanswered, "too late"));
    CHECK(leaving.replies[0].text == "too late");
    CHECK(leaving.replies[1].text == "too late");
    CHECK(pipeline.stage() == bytes_of("AB"));
    pipeline.wrote({}, false);
    CHECK(take(arrived({1, 2})).empty());
    CHECK(states() == States{0, 0, 0});
}

TEST_CASE_FIXTURE(Fixture, "a failure does not touch a caller that has left") {
    Caller leaving(1), other(1);
    call(leaving, {A});
    call(other, {B});
    write();
    pipeline.abandon(leaving, Reply::of(Reply::Kind::unanswered, "too late"));
    CHECK(fail() == Woken{&other});
    CHECK(leaving.replies[0].text == "too late");
}

TEST_CASE_FIXTURE(Fixture, "the caller that sent last is found, but not the one that asks, nor one that has left") {
    Caller one(1), two(2), three(1);
    call(one, {A});
    call(two, {B, C});
    call(three, {A});
    post(B, "posted");
    CHECK(pipeline.last_exchange(nullptr) == &three);
    CHECK(pipeline.last_exchange(&three) == &two);
    pipeline.abandon(three, Reply{});
    CHECK(pipeline.last_exchange(nullptr) == &two);
    write();
    take(arrived({1, 2, 3}));
    CHECK(pipeline.last_exchange(nullptr) == nullptr);
}

TEST_CASE_FIXTURE(Fixture, "the first reply is due first, and a new connection gives all of them its time") {
    Caller one(1);
    post(A, "posted", start + 1s);
    call(one, {B}, start + 2s);
    CHECK(pipeline.due() == start + 1s);
    write();
    take(arrived({1}));
    CHECK(pipeline.due() == start + 2s);
    post(C, "later", start + 3s);
    pipeline.set_due(start + 9s);
    CHECK(pipeline.due() == start + 9s);
    take(arrived({2}));
    write();
    CHECK(pipeline.due() == start + 9s);
}

TEST_CASE_FIXTURE(Fixture, "posted commands move to another queue, behind those that are there") {
    Fixture other;
    Caller caller(1);
    other.call(caller, {A});
    other.write();
    other.post(A, "there");
    post(A, "gone");
    write();
    post(B, "b", start + 1s);
    post(C, "c");
    take(arrived({9}));
    other.pipeline.take_over(pipeline);
    CHECK(states() == States{0, 0, 0});
    CHECK_FALSE(pipeline.has_bytes());
    CHECK(other.states() == States{1, 0, 3});
    CHECK(other.pipeline.stage() == bytes_of("ABC"));
    other.pipeline.wrote({}, false);
    CHECK(other.take(arrived({1, 2})) == Woken{&caller});
    CHECK(other.pipeline.due() == start + 1s);
    other.take(arrived({3, 4}));
    CHECK(other.completed == "there=2 ");
    CHECK(completed == "gone=9 b=3 c=4 ");

    post(A, "again");
    CHECK(pipeline.stage() == bytes_of("A"));
}

TEST_CASE_FIXTURE(Fixture, "a completion may add commands, and sees a queue that has left its own behind") {
    auto posted = std::make_unique<PostedCommand>([this](const Reply&) {
        CHECK(pipeline.in_flight() == 0);
        post(B, "second");
    });
    pipeline.post({&A, 1}, {&posted, 1}, start);
    post(C, "first");
    write();
    SUBCASE("after a reply") {
        take(arrived({1, 2}));
        CHECK(completed == "first=2 ");
    }
    SUBCASE("after a failure") {
        fail();
        CHECK(completed == "first=unanswered ");
    }
    CHECK(states() == States{0, 0, 1});
    CHECK(pipeline.stage() == bytes_of("B"));
}

TEST_CASE_FIXTURE(Fixture, "a completion that throws does not keep the reply from the next one") {
    auto posted = std::make_unique<PostedCommand>([](const Reply&) { throw std::bad_alloc(); });
    pipeline.post({&A, 1}, {&posted, 1}, start);
    post(B, "next");
    write();
    take(arrived({1, 2}));
    CHECK(completed == "next=2 ");
}

TEST_CASE_FIXTURE(Fixture, "a command that does not fit adds nothing, and no part of itself") {
    // A string refuses more than its largest size before it reads any of it.
    const std::array<std::string_view, 2> words{"GET", {"x", std::numeric_limits<std::size_t>::max() / 2 + 1}};
    const Command endless{words, 0};
    Caller one(1), two(2);
    call(one, {A});
    CHECK_THROWS_AS(call(two, {B, endless}), std::length_error);
    CHECK_THROWS_AS(post(endless, "posted"), std::length_error);
    CHECK(states() == States{0, 0, 1});
    CHECK_FALSE(pipeline.awaits(two));
    CHECK(pipeline.stage() == bytes_of("A"));
    pipeline.wrote({}, false);
    CHECK(take(arrived({1})) == Woken{&one});
    CHECK(completed.empty());
}

TEST_CASE_FIXTURE(Fixture, "what is forgotten is not completed, and may call the queue when it ends") {
    std::optional<std::size_t> left;
    auto kept = std::shared_ptr<void>(nullptr, [&](void*) { left = pipeline.in_flight(); });
    auto posted = std::make_unique<PostedCommand>([kept](const Reply&) { FAIL("completed"); });
    kept.reset();
    pipeline.post({&A, 1}, {&posted, 1}, start);
    CHECK_FALSE(left);
    pipeline.forget();
    CHECK(left == 0);
    CHECK_FALSE(pipeline.has_bytes());
}

// The queue drops its answered part from time to time.
TEST_CASE_FIXTURE(Fixture, "a queue that is never empty keeps all in order") {
    constexpr int count = 1000;
    constexpr std::size_t depth = 10;
    std::vector<Caller> callers(count, Caller(1));
    for (Caller& caller : callers) caller.next_reply = caller.replies.data();
    for (std::size_t i = 0; i < count; ++i) {
        call(callers[i], {A}, start + std::chrono::seconds(i));
        if (i % 3 == 0) write();
        if (i < depth) continue;
        REQUIRE(take(arrived({static_cast<int>(i - depth)})) == Woken{&callers[i - depth]});
        REQUIRE(callers[i - depth].replies[0].integer == static_cast<int>(i - depth));
        REQUIRE(pipeline.due() == start + std::chrono::seconds(i - depth + 1));
        REQUIRE_FALSE(pipeline.awaits(callers[i - depth]));
        REQUIRE(pipeline.last_exchange(nullptr) == &callers[i]);
        REQUIRE(states()[0] + states()[2] == depth);
    }
    CHECK(fail().size() == depth);
}
