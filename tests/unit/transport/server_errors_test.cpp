// SPDX-License-Identifier: MIT
// The class of a reply, and the error that it becomes.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <string>
#include <string_view>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

Reply error(std::string text) { return Reply::of(Reply::Kind::error, std::move(text)); }

struct Row {
    std::string_view text;
    ReplyClass verdict;
    errc code;
};

// The texts of real servers, with their variants by version.
constexpr Row rows[] = {
    // Unavailable: the server may be back soon, or another one in its place.
    {"LOADING Redis is loading the dataset in memory", ReplyClass::refused_now, errc::unreachable},
    {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", ReplyClass::refused_now,
     errc::unreachable},
    {"READONLY You can't write against a read only replica.", ReplyClass::refused_now, errc::unreachable},
    {"CLUSTERDOWN The cluster is down", ReplyClass::refused_now, errc::unreachable},
    {"TRYAGAIN Multiple keys request during rehashing of slot", ReplyClass::refused_now, errc::unreachable},
    {"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
     ReplyClass::refused_now, errc::unreachable},
    {"NOMASTERLINK Can't SYNC while not connected with my master", ReplyClass::refused_now, errc::unreachable},
    // Overloaded: the server is there and refuses temporarily.
    {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", ReplyClass::refused_now,
     errc::overloaded},
    {"OOM command not allowed when used memory > 'maxmemory'.", ReplyClass::refused_now, errc::overloaded},
    {"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
     ReplyClass::refused_now, errc::overloaded},
    {"NOREPLICAS Not enough good replicas to write.", ReplyClass::refused_now, errc::overloaded},
    {"ERR max number of clients reached", ReplyClass::refused_now, errc::overloaded},
    {"ERR max number of clients + cluster connections reached", ReplyClass::refused_now, errc::overloaded},
    // Redis up to 6 wraps the error that a script met.
    {"ERR Error running script (call to f_0123): @user_script:9: @user_script: 9: -OOM command not allowed when used "
     "memory > "
     "'maxmemory'. ",
     ReplyClass::refused_now, errc::overloaded},
    {"ERR Error running script (call to f_0123): @user_script:9: @user_script: 9: -READONLY You can't write against a "
     "read "
     "only replica. ",
     ReplyClass::refused_now, errc::unreachable},
    {"ERR Error running script (call to f_0123): @user_script:9: @user_script: 9: -MISCONF Redis is configured to save "
     "RDB "
     "snapshots, but is currently not able to persist on disk. ",
     ReplyClass::refused_now, errc::overloaded},
    {"ERR Error running script (call to f_0123): @user_script:9: @user_script: 9: -NOREPLICAS Not enough good replicas "
     "to "
     "write. ",
     ReplyClass::refused_now, errc::overloaded},
    {"ERR Error running script (call to f_0123): @user_script:5: WRONGTYPE Operation against a key holding the wrong "
     "kind of "
     "value ",
     ReplyClass::refused, errc::wrong_type},
    {"ERR Error running script (call to f_0123): @user_script:5: @user_script: 5: -NOPERM this user has no permissions "
     "to run "
     "the 'hset' command ",
     ReplyClass::refused, errc::rejected},
    {"ERR Error running script (call to f_0123): @user_script:5: user_script:5: attempt to compare nil with number ",
     ReplyClass::refused, errc::rejected},
    // Rejected: the same command will never work.
    {"NOAUTH Authentication required.", ReplyClass::refused, errc::rejected},
    {"WRONGPASS invalid username-password pair or user is disabled.", ReplyClass::refused, errc::rejected},
    {"NOPERM this user has no permissions to run the 'evalsha' command", ReplyClass::refused, errc::rejected},
    {"ERR The user executing the script can't run this command or subcommand script: 0123, on @user_script:5.",
     ReplyClass::refused, errc::rejected},
    {"ERR ACL failure in script: User app has no permissions to run the 'hset' command script: on @user_script:5.",
     ReplyClass::refused, errc::rejected},
    {"DENIED Redis is running in protected mode", ReplyClass::refused, errc::rejected},
    {"NOPROTO unsupported protocol version", ReplyClass::refused, errc::rejected},
    {"WRONGTYPE Operation against a key holding the wrong kind of value script: 0123, on @user_script:5.",
     ReplyClass::refused, errc::wrong_type},
    {"CROSSSLOT Keys in request don't hash to the same slot", ReplyClass::refused, errc::rejected},
    {"ERR Script attempted to access a non local key in a cluster node", ReplyClass::refused, errc::rejected},
    {"EXECABORT Transaction discarded because of previous errors.", ReplyClass::refused, errc::rejected},
    {"MOVED 3999 127.0.0.1:6381", ReplyClass::refused, errc::rejected},
    {"ASK 3999 127.0.0.1:6381", ReplyClass::refused, errc::rejected},
    {"UNKILLABLE Sorry the script already executed write commands", ReplyClass::refused, errc::rejected},
    {"NOTBUSY No scripts in execution right now.", ReplyClass::refused, errc::rejected},
    {"INPROG Failover already in progress", ReplyClass::refused, errc::rejected},
    {"NOGOODSLAVE No suitable replica to promote", ReplyClass::refused, errc::rejected},
    {"ERR unknown command 'EVALSHA'", ReplyClass::refused, errc::rejected},
    {"ERR value is not an integer or out of range", ReplyClass::refused, errc::rejected},
    {"ERR", ReplyClass::refused, errc::rejected},
    {"", ReplyClass::refused, errc::rejected},
    // Only the first word is the code.
    {"ERR OOM is not what this says", ReplyClass::refused, errc::rejected},
    {"OOMPH is no code of ours", ReplyClass::refused, errc::rejected},
    {"ERR the word LOADING in the middle", ReplyClass::refused, errc::rejected},
};

}  // namespace

TEST_CASE("each error text of a server has its class and code") {
    for (const Row& row : rows) {
        CAPTURE(row.text);
        const Reply reply = error(std::string(row.text));
        CHECK(classify(reply) == row.verdict);
        const Error made = error_of(reply, "orders");
        CHECK(made.code() == row.code);
        CHECK(made.name() == "orders");
        CHECK(std::string_view(made.what()).starts_with("orders: "));
        CHECK(std::string_view(made.what()).find(error_code_word(row.text)) != std::string_view::npos);
    }
}

TEST_CASE("an error says first what is wrong, then what the server said, then what to try") {
    const struct {
        std::string_view reply;
        std::string_view text;
    } texts[] = {
        {"READONLY You can't write against a read only replica.",
         "this server is a replica (it replied 'READONLY You can't write against a read only replica.'); use the URL "
         "of the master, or a redis-sentinel:// or redis-cluster:// URL, which finds it"},
        {"OOM command not allowed when used memory > 'maxmemory'. script: 8f2c, on @user_script:9.",
         "the server has no memory left (it replied 'OOM command not allowed when used memory > "
         "'maxmemory'.'); raise its maxmemory or delete keys"},
        {"ERR Error running script (call to f_0123): @user_script:9: @user_script: 9: -OOM command not allowed when "
         "used memory > 'maxmemory'. ",
         "the server has no memory left (it replied 'OOM command not allowed when used memory > "
         "'maxmemory'.'); raise its maxmemory or delete keys"},
        {"ERR max number of clients reached",
         "the server has as many clients as it accepts (it replied 'ERR max number of clients reached'); raise its "
         "maxclients"},
        {"ERR The user executing the script can't run this command or subcommand script: 0123, on @user_script:5.",
         "this user lacks an access right (it replied 'ERR The user executing the script can't run this "
         "command or subcommand'); grant those (ACL) that the guide to access rights lists"},
        {"MOVED 3999 127.0.0.1:6381",
         "this server is a node of a cluster (it replied 'MOVED 3999 127.0.0.1:6381'); use a redis-cluster:// URL"},
        {"ERR unknown command 'EVALSHA'", "the server replied 'ERR unknown command 'EVALSHA''"},
    };
    for (const auto& [reply, text] : texts)
        CHECK(std::string_view(error_of(error(std::string(reply)), "orders").what())
                  .starts_with("orders: " + std::string(text) + ":"));
}

TEST_CASE("a delivery in the background is dropped only if it can never succeed") {
    for (const char* text : {"WRONGTYPE Operation against a key holding the wrong kind of value",
                             "ERR user_script:5: attempt to compare nil with number", "ERR unknown command 'EVALSHA'"})
        CHECK(is_final(error(text)));
    for (const char* text :
         {"NOAUTH Authentication required.", "WRONGPASS invalid username-password pair or user is disabled.",
          "NOPERM this user has no permissions to run the 'evalsha' command",
          "ERR Error running script (call to f_0123): @user_script:5: @user_script: 5: -NOPERM this user has no "
          "permissions",
          "ERR The user executing the script can't run this command or subcommand script: 0123, on @user_script:5.",
          "ERR ACL failure in script: User app has no permissions to run the 'hset' command",
          "ERR AUTH <password> called without any password configured for the default user.",
          "DENIED Redis is running in protected mode", "UNTRUSTED cannot verify the certificate of redis: expired",
          "LOADING Redis is loading the dataset in memory", "OOM command not allowed", "NOSCRIPT No matching script."})
        CHECK_FALSE(is_final(error(text)));
    CHECK_FALSE(is_final(Reply::of(1)));
    CHECK_FALSE(is_final(Reply::of(Reply::Kind::unanswered, "closed")));
    CHECK_FALSE(is_final(Reply::of(Reply::Kind::malformed, "HTTP")));
}

TEST_CASE("NOSCRIPT has its own class: the script is sent as text") {
    CHECK(classify(error("NOSCRIPT No matching script. Please use EVAL.")) == ReplyClass::no_script);
}

TEST_CASE("a reply of any type but an error counts as answered") {
    CHECK(classify(Reply{}) == ReplyClass::answered);
    CHECK(classify(Reply::of(-1)) == ReplyClass::answered);
    CHECK(classify(Reply::of("OOM is a text here")) == ReplyClass::answered);
    CHECK(classify({Reply::Kind::array, 0, {}, {error("OOM x")}}) == ReplyClass::answered);
}

TEST_CASE("without a reply the command is resent, but not after a malformed reply") {
    CHECK(classify(Reply::of(Reply::Kind::not_sent, "why")) == ReplyClass::no_answer);
    CHECK(classify(Reply::of(Reply::Kind::unanswered, "why")) == ReplyClass::no_answer);
    CHECK(classify(Reply::of(Reply::Kind::malformed, "why")) == ReplyClass::refused);
    CHECK(error_of(Reply::of(Reply::Kind::not_sent, "no route"), "x").code() == errc::unreachable);
    CHECK(error_of(Reply::of(Reply::Kind::unanswered, "closed"), "x").code() == errc::unreachable);
    CHECK(error_of(Reply::of(Reply::Kind::malformed, "HTTP"), "x").code() == errc::protocol_error);

    CHECK(std::string(error_of(Reply::of(Reply::Kind::not_sent, "no route"), "x").what()).find("no route") !=
          std::string::npos);
    CHECK(std::string(error_of(Reply::of(Reply::Kind::unanswered, "closed"), "x").what()).find("may have") !=
          std::string::npos);
}

TEST_CASE("error texts of a server are escaped and shortened") {
    const Error escaped = error_of(error(std::string("ERR \0\x1b[31mred\r\n", 15)), "x");
    const std::string_view what = escaped.what();
    CHECK(what.find("\\x00\\x1b[31mred") != std::string_view::npos);
    CHECK(what.find('\x1b') == std::string_view::npos);
    CHECK(what.find('\n') == std::string_view::npos);

    const Error longer = error_of(error("ERR " + std::string(1'000'000, 'x')), "x");
    CHECK(std::string_view(longer.what()).size() < 400);
}

TEST_CASE("the error for an unexpected reply names the key") {
    const Reply replies[] = {Reply{}, Reply::of(-7), Reply::of("x"), error("y"), {Reply::Kind::array, 0, {}, {}}};
    for (const Reply& reply : replies) {
        const Error made = unexpected(reply, "orders");
        CHECK(made.code() == errc::protocol_error);
        CHECK(made.name() == "orders");
        CHECK(std::string_view(made.what()).starts_with("orders: the reply is "));
    }
}

TEST_CASE("a reply to an acquire script means held, blocked or gone") {
    CHECK(decode_acquire(Reply{}, "x").kind == AcquireAnswer::Kind::held);
    CHECK(decode_acquire(Reply::of(-2), "x").kind == AcquireAnswer::Kind::gone);
    const AcquireAnswer blocked = decode_acquire(Reply::of(1500), "x");
    CHECK(blocked.kind == AcquireAnswer::Kind::blocked);
    CHECK(blocked.holder_lease == Milliseconds(1500));
    CHECK(decode_acquire(Reply::of(0), "x").holder_lease == Milliseconds(0));
    CHECK(decode_acquire(Reply::of(-1), "x").holder_lease < Milliseconds(0));
    const Reply senseless[] = {Reply::of(-3),
                               Reply::of("OK"),
                               error("OOM"),
                               {Reply::Kind::array, 0, {}, {}},
                               Reply::of(std::int64_t{-9'223'372'036'854'775'807} - 1)};
    for (const Reply& reply : senseless) CHECK_THROWS_AS(decode_acquire(reply, "x"), Error);
}

TEST_CASE("a reply to a release script means released, still held or not held") {
    CHECK(decode_release(Reply{}).kind == ReleaseAnswer::Kind::not_held);
    CHECK(decode_release(Reply::of(-1)).kind == ReleaseAnswer::Kind::still_held);
    CHECK(decode_release(Reply::of(0)).kind == ReleaseAnswer::Kind::released);
    CHECK(decode_release(Reply::of(0)).listeners == 0);
    CHECK(decode_release(Reply::of(17)).listeners == 17);
    const Reply senseless[] = {Reply::of(-2), Reply::of("OK"), error("OOM"), {Reply::Kind::array, 0, {}, {}}};
    for (const Reply& reply : senseless) CHECK(decode_release(reply).kind == ReleaseAnswer::Kind::senseless);
}

TEST_CASE("a server has sharded channels if it knows PUBSUB SHARDNUMSUB, permitted or not") {
    CHECK(has_sharded_channels(Reply{Reply::Kind::array, 0, {}, {}}));
    CHECK(has_sharded_channels(
        Reply::of(Reply::Kind::error, "NOPERM this user has no permissions to run the 'pubsub|shardnumsub' command")));
    CHECK_FALSE(has_sharded_channels(
        Reply::of(Reply::Kind::error, "NOPERM this user has no permissions to run the 'pubsub' command")));
    CHECK_FALSE(has_sharded_channels(
        Reply::of(Reply::Kind::error, "ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'")));
}
