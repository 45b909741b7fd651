// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/error.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The words of servers. A new error word that means "try again later" goes into
//   is_unavailable()   if the server cannot serve now (users get errc::unreachable), or
//   is_overloaded()    if it refuses for want of memory or time (errc::overloaded),
// and into error_code_word() if an old server can wrap it in a script's error. A node of a cluster that says it counts
// as down if is_from_node_that_is_down() has it. A word that only a replica says goes into is_from_replica() as well.
// `situations` has the texts for the user.

// Tells what a reply means for its command.
enum class ReplyClass {
    answered,     // done: the reply of the script itself
    no_script,    // the server does not have the script cached: send its text
    no_answer,    // resend: it may or may not have taken effect
    refused_now,  // resend after a pause: it took no effect, and the refusal is temporary
    late,         // it arrived after the time until which it was wanted, and took no effect
    refused,      // permanent: resending is useless
};

// Returns the code word of an error: the first word, or the innermost one if an old server wraps the error of a script
// ("ERR Error running script (…): @user_script:3: -OOM command not allowed …").
inline std::string_view error_code_word(std::string_view text) {
    static constexpr std::array<std::string_view, 6> wrapped{"OOM",        "WRONGTYPE", "MISCONF",
                                                             "NOREPLICAS", "READONLY",  "NOPERM"};
    if (text.starts_with("ERR Error running script"))
        for (const std::string_view code : wrapped)
            if (text.find(std::string(": ") + std::string(code) + " ") != std::string_view::npos ||
                text.find("-" + std::string(code) + " ") != std::string_view::npos)
                return code;
    return text.substr(0, text.find(' '));
}

template <std::size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

inline bool is_unavailable(std::string_view code) {
    static constexpr std::array<std::string_view, 7> codes{"LOADING",  "MASTERDOWN", "READONLY",    "CLUSTERDOWN",
                                                           "TRYAGAIN", "UNBLOCKED",  "NOMASTERLINK"};
    return is_one_of(code, codes);
}

inline bool is_overloaded(std::string_view code, std::string_view text) {
    static constexpr std::array<std::string_view, 4> codes{"BUSY", "OOM", "MISCONF", "NOREPLICAS"};
    return is_one_of(code, codes) || text.starts_with("ERR max number of clients");
}

// Returns true if our credentials or rights do not suffice. The same command may succeed later, because passwords and
// rights may be restored.
inline bool is_denied(std::string_view code, std::string_view text) {
    static constexpr std::array<std::string_view, 4> codes{"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"};
    static constexpr std::array<std::string_view, 6> beginnings{
        // Inside a script: Redis 7.0 sends the first text, later versions since 7.2 the second.
        "ERR The user executing the script", "ERR ACL failure in script",
        // The password was removed from the server.
        "ERR AUTH <password> called without", "ERR Client sent AUTH, but no password", "ERR invalid password",
        // The certificate of either side failed.
        Reply::untrusted};
    return is_one_of(code, codes) || std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view beginning) {
               return text.starts_with(beginning);
           });
}

inline ReplyClass classify(const Reply& reply) {
    switch (reply.kind) {
        case Reply::Kind::not_sent:
        case Reply::Kind::no_time:
        case Reply::Kind::unanswered: return ReplyClass::no_answer;
        case Reply::Kind::malformed: return ReplyClass::refused;
        case Reply::Kind::error: break;
        default: return ReplyClass::answered;
    }
    const std::string_view code = detail::error_code_word(reply.text);
    if (code == "NOSCRIPT") return ReplyClass::no_script;
    if (code == "LATE") return ReplyClass::late;
    if (detail::is_unavailable(code) || detail::is_overloaded(code, reply.text)) return ReplyClass::refused_now;
    return ReplyClass::refused;
}

// Returns true if the command can never succeed: the key has another type, or the script fails. An access-rights
// failure is not final. A caller gets it at once, but a background delivery goes on retrying, because passwords, rights
// and certificates may be corrected.
inline bool is_final(const Reply& reply) {
    return reply.is_error() && classify(reply) == ReplyClass::refused &&
           !detail::is_denied(detail::error_code_word(reply.text), reply.text);
}

// What an error of the server means, and what to try.
struct Situation {
    std::string_view word;   // the code word
    std::string_view fault;  // what is wrong
    std::string_view advice;
};

inline constexpr std::string_view check_login =
    "check the user and the password in the URL or from ClientOptions::credentials";
inline constexpr std::string_view find_master =
    "use the URL of the master, or a redis-sentinel:// or redis-cluster:// URL, which finds it";

inline constexpr std::array<Situation, 16> situations{{
    {"READONLY", "this server is a replica", find_master},
    {"MASTERDOWN", "this server is a replica without a master", find_master},
    {"LOADING", "the server is still loading its data", "try again when it has finished"},
    {"CLUSTERDOWN", "the cluster is down", "check its nodes with CLUSTER INFO and CLUSTER NODES"},
    {"OOM", "the server has no memory left", "raise its maxmemory or delete keys"},
    {"BUSY", "a script keeps the server busy", "wait for its end, or end it with SCRIPT KILL"},
    {"MISCONF", "the server cannot save its data and refuses writes", "check its log and its disk"},
    {"NOREPLICAS", "the master has fewer replicas than min-replicas-to-write demands", "check its replicas"},
    {"LATE", "the command arrived after its deadline", "check the server's clock for jumps"},
    {"WRONGTYPE", "something else uses this key", "choose another name"},
    {"NOAUTH", "the server demands a login", check_login},
    {"WRONGPASS", "the server does not accept this login", check_login},
    {"NOPERM", "this user lacks an access right", "grant those (ACL) that the guide to access rights lists"},
    {"MOVED", "this server is a node of a cluster", "use a redis-cluster:// URL"},
    {"ASK", "this server is a node of a cluster", "use a redis-cluster:// URL"},
    {"TOOMANY", "a semaphore has at most 2147483647 permits", "add fewer"},
}};

// Returns the text without what the server says of the script in which the error arose: a place, or in old versions a
// beginning.
inline std::string_view without_script(std::string_view text) {
    const std::string_view word = detail::error_code_word(text);
    if (const auto wrapped = text.find(word); wrapped != std::string_view::npos) text.remove_prefix(wrapped);
    text = text.substr(0, text.find(" script: "));
    while (text.ends_with(' ')) text.remove_suffix(1);
    return text;
}

inline std::string explained(std::string_view fault, std::string_view text, std::string_view advice) {
    std::string said = std::string(fault) + " (it replied " + in_quotes(detail::without_script(text), 160) + ")";
    if (!advice.empty()) said += "; " + std::string(advice);
    return said;
}

// Returns what an error of the server means, the server's own words, and what to try.
inline std::string explained(std::string_view text) {
    std::string_view word = detail::error_code_word(text);
    if (text.starts_with("ERR The user executing the script") || text.starts_with("ERR ACL failure in script"))
        word = "NOPERM";
    if (text.starts_with("ERR max number of clients"))
        return detail::explained("the server has as many clients as it accepts", text, "raise its maxclients");
    for (const Situation& situation : situations)
        if (situation.word == word) return detail::explained(situation.fault, text, situation.advice);
    return "the server replied " + in_quotes(text, 160);
}

inline errc errc_of(const Reply& error) {
    const std::string_view word = detail::error_code_word(error.text);
    if (word == "LATE" || detail::is_unavailable(word)) return errc::unreachable;
    if (detail::is_overloaded(word, error.text)) return errc::overloaded;
    if (word == "TOOMANY") return errc::invalid_argument;
    return word == "WRONGTYPE" ? errc::wrong_type : errc::rejected;
}

// Returns the error that a failed operation on `name` throws. Its text begins with the fault, quotes the server, and
// ends with what to try. classify(reply) must not be `answered`.
inline Error error_of(const Reply& reply, std::string_view name) {
    switch (reply.kind) {
        case Reply::Kind::not_sent:
        case Reply::Kind::no_time:
            return {errc::unreachable, name, reply.text + "; check that the server is running and the URL is right"};
        case Reply::Kind::unanswered:
            return {errc::unreachable, name, reply.text + "; the command may have taken effect"};
        case Reply::Kind::malformed: return {errc::protocol_error, name, reply.text};
        default: break;
    }
    if (reply.text.starts_with(Reply::untrusted))
        return {errc::rejected, name, escaped(reply.text.substr(Reply::untrusted.size()), 320)};
    return {detail::errc_of(reply), name, detail::explained(reply.text)};
}

// Returns true if a demoted master refused the command: only a replica replies so.
inline bool is_from_replica(const Reply& reply) {
    return reply.is_error() &&
           (reply.text.starts_with("MASTERDOWN") || reply.text.find("READONLY") != std::string::npos);
}

// Returns true if a node of a cluster reports that it cannot serve its slots for now.
inline bool is_from_node_that_is_down(std::string_view text) {
    return text.starts_with("CLUSTERDOWN") || text.starts_with("LOADING") || text.starts_with("MASTERDOWN");
}

// Returns true if a node of a cluster redirects the command to another node.
inline bool is_redirection(std::string_view text) { return text.starts_with("MOVED ") || text.starts_with("ASK "); }

// Returns true if the server says so to a new connection, whatever it is asked, and closes it.
inline bool precedes_close(const Reply& reply) {
    return reply.is_error() &&
           (reply.text.starts_with("DENIED") || reply.text.starts_with("ERR max number of clients"));
}

// Returns true if the server does not know an option of the command.
inline bool is_syntax_error(const Reply& reply) { return reply.is_error() && reply.text.starts_with("ERR syntax"); }

// Returns true if the server, a proxy before it or the rights of the user forbid CLIENT TRACKING and what belongs to it.
// Not if only the moment is wrong, or the login.
inline bool refuses_tracking(const Reply& reply) {
    const std::string_view word = reply.is_error() ? error_code_word(reply.text) : std::string_view();
    return word == "NOPERM" ||
           (word == "ERR" && classify(reply) == ReplyClass::refused && !is_denied(word, reply.text));
}

// Returns whether the servers have sharded channels (Redis 7), by the reply to PUBSUB SHARDNUMSUB. Redisson tests it by
// the same command. If we have no right to it, the error shows it: it names the subcommand only where that exists.
inline bool has_sharded_channels(const Reply& reply) {
    return !reply.is_error() ||
           (reply.text.starts_with("NOPERM") && reply.text.find("pubsub|shardnumsub") != std::string::npos);
}

// Returns the error for a grant that is not confirmed as require_replicas or require_fsync demands.
inline Error not_confirmed(const Reply& reply, std::string_view name) {
    switch (reply.lacking) {
        case Reply::Lacking::disk:
            return {
                errc::not_on_disk, name,
                "the client acquired it, but releases it again; check the server's disk and its appendfsync, or raise "
                "command_timeout"};
        case Reply::Lacking::log:
            return {errc::rejected, name,
                    "require_fsync needs an append-only file, which this server does not keep; set appendonly yes"};
        case Reply::Lacking::command:
            return {errc::rejected, name,
                    "require_fsync needs WAITAOF, which this server does not have; use Redis 7.2 or newer, or Valkey"};
        case Reply::Lacking::right:
            return {errc::rejected, name,
                    "require_fsync needs WAITAOF, which this user may not call; grant the right to it (ACL)"};
        case Reply::Lacking::replicas: break;
    }
    return {errc::not_replicated, name,
            "the client acquired it, but releases it again; check the replicas, and this user's right to WAIT"};
}

// Returns what the reply to WAITAOF says is missing, or nothing if the disks of the server and of so many replicas have
// confirmed all that was written before.
inline std::optional<Reply::Lacking> lacking_on_disk(const Reply& waited, std::int64_t replicas) {
    const std::string_view word = waited.is_error() ? error_code_word(waited.text) : std::string_view();
    if (word == "NOPERM") return Reply::Lacking::right;
    if (waited.is_error() && waited.text.starts_with("ERR unknown command")) return Reply::Lacking::command;
    if (waited.is_error() && waited.text.find("appendonly is disabled") != std::string::npos)
        return Reply::Lacking::log;
    const bool whole = waited.kind == Reply::Kind::array && waited.elements.size() == 2 &&
                       waited.elements[0].is_integer() && waited.elements[1].is_integer();
    if (!whole || waited.elements[0].integer < 1) return Reply::Lacking::disk;
    if (waited.elements[1].integer < replicas) return Reply::Lacking::replicas;
    return std::nullopt;
}

// Returns the error for a reply of a shape that the script never sends.
inline Error unexpected(const Reply& reply, std::string_view name) {
    static constexpr std::array<std::string_view, 9> kinds{"nil",     "an integer", "a text",  "an error", "an array",
                                                           "missing", "missing",    "missing", "malformed"};
    return {errc::protocol_error, name,
            "the reply is " + std::string(kinds[static_cast<std::size_t>(reply.kind)]) +
                ", which does not fit the command"};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
