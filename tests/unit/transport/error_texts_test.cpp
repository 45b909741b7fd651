// SPDX-License-Identifier: MIT
// The texts of errors are those of the table in the guide to errors.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

struct Row {
    std::string_view situation;  // the first column of the guide
    std::string_view reply;      // what a real server says
    std::string_view code;
    std::string_view fault;
    std::string_view advice;
};

constexpr Row rows[] = {
    {"READONLY, MASTERDOWN", "READONLY You can't write against a read only replica.", "unreachable",
     "this server is a replica", "use the URL of the master"},
    {"READONLY, MASTERDOWN", "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
     "unreachable", "this server is a replica", "use the URL of the master"},
    {"LOADING", "LOADING Redis is loading the dataset in memory", "unreachable", "the server is still loading its data",
     "try again"},
    {"CLUSTERDOWN", "CLUSTERDOWN The cluster is down", "unreachable", "the cluster is down", "CLUSTER INFO"},
    {"OOM", "OOM command not allowed when used memory > 'maxmemory'. script: 0123, on @user_script:9.", "overloaded",
     "the server has no memory left", "raise its maxmemory"},
    {"BUSY", "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "overloaded",
     "a script keeps the server busy", "SCRIPT KILL"},
    {"MISCONF", "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
     "overloaded", "the server cannot save its data and refuses writes", "check its log and its disk"},
    {"NOREPLICAS", "NOREPLICAS Not enough good replicas to write.", "overloaded",
     "the master has fewer replicas than min-replicas-to-write demands", "check its replicas"},
    {"too many clients", "ERR max number of clients reached", "overloaded",
     "the server has as many clients as it accepts", "maxclients"},
    {"NOAUTH, WRONGPASS", "NOAUTH Authentication required.", "rejected", "the server demands a login", "credentials"},
    {"NOAUTH, WRONGPASS", "WRONGPASS invalid username-password pair or user is disabled.", "rejected",
     "does not accept this login", "credentials"},
    {"NOPERM", "NOPERM this user has no permissions to run the 'evalsha' command", "rejected",
     "this user lacks an access right", "the guide to access rights"},
    {"MOVED, ASK", "MOVED 3999 127.0.0.1:6381", "rejected", "this server is a node of a cluster", "redis-cluster://"},
    {"MOVED, ASK", "ASK 3999 127.0.0.1:6381", "rejected", "this server is a node of a cluster", "redis-cluster://"},
    {"WRONGTYPE", "WRONGTYPE Operation against a key holding the wrong kind of value", "wrong_type",
     "something else uses this key", "choose another name"},
};

// Returns the row of the guide that begins with this situation.
std::string row_of_guide(std::string_view situation) {
    std::ifstream guide(REDLATCH_SOURCE_DIR "/examples/guides/errors.md");
    for (std::string line; std::getline(guide, line);)
        if (line.starts_with("| " + std::string(situation) + " |")) return line;
    return {};
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

errc code_named(std::string_view name) {
    if (name == "unreachable") return errc::unreachable;
    if (name == "overloaded") return errc::overloaded;
    return name == "rejected" ? errc::rejected : errc::wrong_type;
}

}  // namespace

TEST_CASE("an error of the server begins with the fault, quotes the server, and advises what the guide says") {
    for (const Row& row : rows) {
        CAPTURE(row.reply);
        const Error error = error_of(Reply::of(Reply::Kind::error, std::string(row.reply)), "orders");
        const std::string_view what = error.what();
        CHECK(error.code() == code_named(row.code));
        const auto quoted = what.find(" (it replied '");
        REQUIRE(quoted != std::string_view::npos);
        CHECK(what.starts_with("orders: "));
        CHECK(has(what.substr(0, quoted), row.fault));
        CHECK_FALSE(has(what, "@user_script"));
        const auto advised = what.find("; ", quoted);
        REQUIRE(advised != std::string_view::npos);
        CHECK(has(what.substr(advised), row.advice));

        const std::string told = row_of_guide(row.situation);
        CHECK(has(told, "| `" + std::string(row.code) + "` |"));
        CHECK(has(told, "`" + std::string(row.fault) + "`"));
    }
}

TEST_CASE("an error of the URL begins with the part that is wrong, as in the guide") {
    try {
        Url::parse("redis://h:0");
        FAIL("it was accepted");
    } catch (const Error& error) {
        CHECK(error.code() == errc::invalid_argument);
        CHECK(has(error.what(), "the port must be a number from 1 to 65535"));
        CHECK(has(row_of_guide("The URL is malformed."), "`the port must be a number from 1 to 65535`"));
    }
}
