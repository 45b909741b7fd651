// SPDX-License-Identifier: MIT
// QuorumRound: the outcome of the members' replies, for any number of members.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using redlatch::errc;
using redlatch::Error;
using redlatch::Instant;
using redlatch::never;
using redlatch::detail::QuorumRound;

namespace {

const Instant now = Instant{} + 1h;

// One letter per member: h held, y held by a server that is too young to vote for another second, i held and the
// server's age is not known yet, r refused, f failed, a dot for no reply yet, and s for none from a member that is not
// awaited.
struct Round : QuorumRound {
    explicit Round(const std::string& answers) : QuorumRound(answers.size()) {
        for (std::size_t i = 0; i < answers.size(); ++i) {
            const char answer = answers[i];
            if (answer == 'h' || answer == 'y' || answer == 'i') held_without_vote(i);
            if (answer == 'h') held(i, now - 1s);
            if (answer == 'y') held(i, now + 1s);
            if (answer == 'r') refused(i);
            if (answer == 's') do_not_await(i);
            if (answer == 'f') failed(i, Error(errc::unreachable, "orders", "number " + std::to_string(i)));
        }
    }
};

std::size_t majority_of(const std::string& answers) { return answers.size() / 2 + 1; }

struct Case {
    const char* answers;
    std::size_t votes;
    bool decided;
    bool unreachable;  // after time_is_up()
};

void check(const Case& c, std::size_t needed) {
    CAPTURE(c.answers);
    CAPTURE(needed);
    Round round(c.answers);
    CHECK(round.votes(now) == c.votes);
    CHECK(round.decided(needed, now) == c.decided);
    round.time_is_up();
    CHECK(round.complete());
    CHECK(round.unreachable(needed) == c.unreachable);
}

}  // namespace

TEST_CASE("a majority decides, whatever the other members reply") {
    for (const Case& c : {
             Case{".", 0, false, true},      Case{"h", 1, true, false},      Case{"r", 0, true, false},
             Case{"f", 0, true, true},       Case{"..", 0, false, true},     Case{"h.", 1, false, true},
             Case{"hh", 2, true, false},     Case{"r.", 0, true, true},      Case{"hr", 1, true, false},
             Case{"hf", 1, true, true},      Case{"h..", 1, false, true},    Case{"hh.", 2, true, false},
             Case{"hr.", 1, false, false},   Case{"rr.", 0, true, false},    Case{"hff", 1, true, true},
             Case{"hrf", 1, true, false},    Case{"hh..", 2, false, true},   Case{"hhh.", 3, true, false},
             Case{"hhr.", 2, false, false},  Case{"hhrr", 2, true, false},   Case{"hhff", 2, true, true},
             Case{"hh...", 2, false, true},  Case{"hhh..", 3, true, false},  Case{"hhrr.", 2, false, false},
             Case{"hhrrr", 2, true, false},  Case{"hhfff", 2, true, true},   Case{"hhffr", 2, true, false},
             Case{"fffhh", 2, true, true},   Case{"hhhff", 3, true, false},  Case{"rrr..", 0, true, false},
             Case{"hhh...", 3, false, true}, Case{"hhhh..", 4, true, false}, Case{"hhhrrr", 3, true, false},
             Case{"hhhfff", 3, true, true},
         })
        check(c, majority_of(c.answers));
}

TEST_CASE("all or none: one refused or failed member decides at once") {
    for (const Case& c : {
             Case{"h", 1, true, false},
             Case{"hh.", 2, false, true},
             Case{"hhh", 3, true, false},
             Case{"r..", 0, true, true},
             Case{"hhr", 2, true, false},
             Case{"hhf", 2, true, true},
             Case{"f..", 0, true, true},
         })
        check(c, std::string(c.answers).size());
}

// A lock over three servers, the nearest of which is the first to report that it is held: the others are not
// unreachable.
TEST_CASE("members without a reply yet do not count as failed") {
    CHECK_FALSE(Round("r..").unreachable(3));
    CHECK_FALSE(Round("rr...").unreachable(3));
    CHECK(Round("f..").unreachable(3));
    CHECK(Round("fff..").unreachable(3));
    CHECK_FALSE(Round("ff...").unreachable(3));
}

TEST_CASE("a member that is not awaited delays nothing, and counts as failed unless it replies") {
    for (const Case& c : {
             Case{"s..", 0, false, true},
             Case{"sh.", 1, false, true},
             Case{"shh", 2, true, false},
             Case{"shr", 1, true, false},
             Case{"srr", 0, true, false},
             Case{"shf", 1, true, true},
             Case{"sfhhr", 2, true, false},
             Case{"sfhh.", 2, false, true},
         })
        check(c, majority_of(c.answers));
    CHECK(Round("shf").unreachable(2));
    Round round("sh.");
    round.held_without_vote(0);
    round.held(0, now - 1s);
    CHECK(round.decided(2, now));
    CHECK(round.votes(now) == 2);
}

TEST_CASE("a server that is too young, or of unknown age, has no vote") {
    for (const Case& c : {
             Case{"hyy", 1, true, false},
             Case{"hhy", 2, true, false},
             Case{"hyf", 1, true, false},
             Case{"yyy", 0, true, false},
             Case{"hii", 1, false, true},
             Case{"hhi", 2, true, false},
             Case{"hhyyy", 2, true, false},
             Case{"hhyyi", 2, false, false},
             Case{"hhyii", 2, false, false},
         })
        check(c, majority_of(c.answers));
    CHECK(Round("hyy").votes(now + 1s) == 3);
    CHECK(Round("hyy").decided(2, now + 1s));
}

TEST_CASE("every member that is held has to be released, with a vote or without") {
    const Round round("hyirf.");
    const bool had[] = {true, true, true, false, false, false};
    for (std::size_t i = 0; i < std::size(had); ++i) CHECK(round.had(i) == had[i]);
    CHECK(round.votes_from(0) == now - 1s);
    CHECK(round.votes_from(1) == now + 1s);
    CHECK(round.votes_from(2) == never);
}

TEST_CASE("a waiting caller knows the member that refused it, or when enough servers are old enough") {
    CHECK(Round("hrr").first_refused() == std::optional<std::size_t>{1});
    CHECK_FALSE(Round("hyf.").first_refused());
    CHECK(Round("hyy").votes_at(1) == now - 1s);
    CHECK(Round("hyy").votes_at(2) == now + 1s);
    CHECK(Round("hyf").votes_at(2) == now + 1s);
    CHECK(Round("hff").votes_at(2) == never);
}

TEST_CASE("why() returns the first error") {
    CHECK_FALSE(Round("hr.").why());
    REQUIRE(Round("hff").why());
    CHECK(std::string(Round("hff").why()->what()).find("number 1") != std::string::npos);
    CHECK(Round(".ff").failures() == 2);
}

TEST_CASE("the age of a server is read from its INFO, or unknown") {
    using redlatch::detail::read_uptime;
    CHECK(read_uptime("# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:42\r\nuptime_in_days:0\r\n") == 42s);
    CHECK(read_uptime("uptime_in_seconds:0\r\n") == 0s);
    CHECK(read_uptime("uptime_in_seconds:-3\r\n") == 0s);  // its clock was set back
    CHECK(read_uptime("uptime_in_seconds:9223372036854775807") == std::chrono::seconds::max());
    for (const char* text : {"", "uptime_in_days:3\r\n", "uptime_in_seconds:", "uptime_in_seconds:\r\n",
                             "uptime_in_seconds:x", "uptime_in_seconds:9223372036854775808\r\n"})
        CHECK_FALSE(read_uptime(text));
}

TEST_CASE("of several callers at the same time the one with the first member goes on") {
    const std::vector<std::size_t> forward{0, 1, 2};
    const std::vector<std::size_t> backward{2, 1, 0};
    CHECK(Round("hrr").goes_first(forward));
    CHECK_FALSE(Round("hrr").goes_first(backward));
    CHECK_FALSE(Round("rhh").goes_first(forward));
    CHECK(Round("rhi").goes_first(backward));
    // A member that does not reply has no known holder.
    CHECK(Round(".hr").goes_first(forward));
    CHECK_FALSE(Round("frh").goes_first(forward));
    CHECK_FALSE(Round("f..").goes_first(forward));
}

TEST_CASE("only a member that refused is asked again") {
    Round round("hrf");
    CHECK_FALSE(round.ask_again(0));
    CHECK(round.ask_again(1));
    CHECK_FALSE(round.ask_again(1));
    CHECK_FALSE(round.ask_again(2));
    CHECK_FALSE(round.complete());
    round.held(1, now - 1s);
    CHECK(round.votes(now) == 2);
}
