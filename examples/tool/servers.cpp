// SPDX-License-Identifier: MIT
#include "servers.hpp"

#include "grip.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

namespace tool {

namespace {

using redlatch::Reply;

constexpr long long most_holders = 100;  // of which a hash is read as a whole

bool is_digits(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Returns true for "<UUID>:<number>", with ":write" behind it or not: the owners of Redisson and of this library.
bool is_owner(std::string_view field) {
    if (field.ends_with(":write")) field.remove_suffix(6);
    if (field.size() < 38 || field[36] != ':' || !is_digits(field.substr(37))) return false;
    for (std::size_t i = 0; i < 36; ++i) {
        const bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;
        const char c = field[i];
        if (hyphen ? c != '-' : !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
    }
    return true;
}

// The names of keys that belong to a lock.
std::string with_tag(const std::string& name) { return name.find('{') == std::string::npos ? "{" + name + "}" : name; }

Reply checked(Reply reply) {
    if (!reply.answered()) throw redlatch::Error(redlatch::errc::unreachable, {}, reply.text);
    return reply;
}

const Reply& without_error(const Reply& reply) {
    if (reply.is_error()) throw redlatch::Error(redlatch::errc::rejected, {}, reply.text);
    return reply;
}

// Keys that belong to a lock, and have no entry of their own.
bool is_aid(std::string_view key) {
    return key.starts_with("redisson_") || key.starts_with("redlatch_") ||
           key.find(":rwlock_timeout:") != std::string_view::npos;
}

// The set of the taken permits of a semaphore. Returns its name.
std::optional<std::string> semaphore_of(const std::string& key) {
    constexpr std::string_view suffix = ":timeout";
    if (!key.ends_with(suffix)) return std::nullopt;
    std::string name = key.substr(0, key.size() - suffix.size());
    if (name.starts_with('{') && name.ends_with('}')) return name.substr(1, name.size() - 2);
    return name.find('{') == std::string::npos ? std::nullopt : std::optional(name);
}

}  // namespace

const char* name_of(LockType type) noexcept {
    switch (type) {
        case LockType::none: break;
        case LockType::reentrant: return "lock";
        case LockType::fair: return "fair";
        case LockType::fenced: return "fenced";
        case LockType::read_write: return "read-write";
        case LockType::mutex: return "mutex";
        case LockType::semaphore: return "permits";
    }
    return "-";
}

Servers::Servers(const Arguments& arguments) : arguments_(arguments), url_(redlatch::Url::parse(arguments.url)) {
    const redlatch::ClientOptions options = client_options(arguments);
    entry_.connection = std::make_unique<redlatch::HiredisTransport>(url_, options.command_timeout, options.tls);
    if (!url_.cluster.empty()) find_masters();
}

void Servers::find_masters() {
    const redlatch::ClientOptions options = client_options(arguments_);
    const std::vector<Reply> replies = ask(entry_, {{"CLUSTER", "SLOTS"}}, false);
    std::vector<redlatch::HostPort> places;
    for (const Reply& range : without_error(replies.at(0)).elements) {
        if (range.elements.size() < 3 || range.elements[2].elements.size() < 2) continue;
        const Reply& master = range.elements[2];
        redlatch::HostPort place{master.elements[0].text, static_cast<std::uint16_t>(master.elements[1].integer)};
        if (place.host.empty()) place.host = url_.cluster.front().host;  // the server does not know its own name
        if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
    for (const redlatch::HostPort& place : places)
        masters_.push_back(
            {std::make_unique<redlatch::HiredisTransport>(url_.at(place), options.command_timeout, options.tls)});
}

std::vector<Reply> Servers::ask(Server& server, const std::vector<Words>& commands, bool by_key) {
    std::vector<std::vector<std::string_view>> words;
    std::vector<redlatch::Command> all;
    words.reserve(commands.size());
    for (const Words& command : commands) {
        words.emplace_back(command.begin(), command.end());
        all.push_back({words.back(), by_key ? std::size_t{1} : std::size_t{0}});
    }
    std::vector<Reply> replies =
        server.connection->call_all(all, std::chrono::steady_clock::now() + std::chrono::seconds(10));
    for (Reply& reply : replies) reply = checked(std::move(reply));
    return replies;
}

std::vector<Entry> Servers::held() {
    std::vector<Entry> found;
    const std::string pattern = arguments_.prefix + (arguments_.pattern.empty() ? "*" : arguments_.pattern);
    const auto scan = [&](Server& server, const std::string& match) {
        std::string cursor = "0";
        do {
            const std::vector<Reply> replies = ask(server, {{"SCAN", cursor, "MATCH", match, "COUNT", "500"}}, false);
            const Reply& page = without_error(replies.at(0));
            if (page.elements.size() != 2) throw redlatch::Error(redlatch::errc::protocol_error, {}, "SCAN");
            cursor = page.elements[0].text;
            std::vector<std::string> keys;
            for (const Reply& key : page.elements[1].elements)
                if (!is_aid(key.text)) keys.push_back(key.text);
            if (!keys.empty()) examine(server, keys, found);
        } while (cursor != "0");
    };
    const auto scan_all = [&](const std::string& match) {
        if (masters_.empty()) scan(entry_, match);
        for (Server& master : masters_) scan(master, match);
    };
    scan_all(pattern);
    // The permits of a semaphore are in a key that begins with a brace.
    if (pattern != "*" && !pattern.starts_with('*')) scan_all("{" + pattern + "}:timeout");
    std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
    // SCAN may return a key twice.
    found.erase(std::unique(found.begin(), found.end(),
                            [](const Entry& a, const Entry& b) { return a.name == b.name && a.type == b.type; }),
                found.end());
    return found;
}

// Asks in rounds, each in one write: what type the keys have, how large they are, and what is in those that may be locks.
// A key may change between two rounds. Then a command finds another type, and the key is left out.
void Servers::examine(Server& server, const std::vector<std::string>& keys, std::vector<Entry>& found) {
    std::vector<Words> commands;
    for (const std::string& key : keys) {
        commands.push_back({"TYPE", key});
        commands.push_back({"PTTL", key});
    }
    const std::vector<Reply> types = ask(server, commands, true);
    struct Candidate {
        std::string key;
        std::string type;
        Milliseconds lease;
    };
    std::vector<Candidate> candidates;
    commands.clear();
    for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::string& type = types[2 * i].text;
        const long long lease = types[2 * i + 1].integer;
        const bool permits = type == "zset" && semaphore_of(keys[i]);
        if (!permits && (lease < 0 || (type != "hash" && type != "string"))) continue;
        candidates.push_back({keys[i], type, Milliseconds(std::max(lease, 0LL))});
        commands.push_back({type == "hash" ? "HLEN" : type == "string" ? "STRLEN" : "ZCARD", keys[i]});
    }
    if (candidates.empty()) return;
    const std::vector<Reply> sizes = ask(server, commands, true);
    commands.clear();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const std::string& key = candidates[i].key;
        if (candidates[i].type == "hash" && sizes[i].integer <= most_holders)
            commands.push_back({"HGETALL", key});
        else if (candidates[i].type == "hash")
            commands.push_back({"HGET", key, "mode"});
        else if (candidates[i].type == "string" && sizes[i].integer < 100)
            commands.push_back({"GET", key});
        else
            commands.push_back({"EXISTS", key});
    }
    const std::vector<Reply> contents = ask(server, commands, true);
    std::vector<Entry> locks;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const Candidate& candidate = candidates[i];
        Entry entry{candidate.key, LockType::none, {}, sizes[i].integer, 0, candidate.lease, {}};
        const Reply& content = contents[i];
        if (content.is_error() || sizes[i].is_error()) continue;
        if (candidate.type == "zset") {
            if (sizes[i].integer == 0) continue;
            entry.name = *semaphore_of(candidate.key);
            entry.type = LockType::semaphore;
            entry.lease.reset();
        } else if (candidate.type == "string") {
            if (content.kind != Reply::Kind::text || !is_owner(content.text)) continue;
            entry.type = LockType::mutex;
            entry.holders = {content.text};
            entry.held = 1;
        } else if (content.kind == Reply::Kind::text) {  // the mode of a large one
            entry.type = LockType::read_write;
            --entry.held;
        } else {
            bool is_lock = !content.elements.empty();
            for (std::size_t k = 0; k + 1 < content.elements.size(); k += 2) {
                const std::string& field = content.elements[k].text;
                if (field == "mode")
                    entry.type = LockType::read_write;
                else if (is_owner(field))
                    entry.holders.push_back(field);
                else
                    is_lock = false;
            }
            if (!is_lock || entry.holders.empty()) continue;
            if (entry.type == LockType::none) entry.type = LockType::reentrant;
            entry.held = static_cast<long long>(entry.holders.size());
        }
        locks.push_back(std::move(entry));
    }
    if (locks.empty()) return;
    commands.clear();
    for (const Entry& lock : locks) {
        const std::string tag = with_tag(lock.name);
        commands.push_back({"LLEN", "redisson_lock_queue:" + tag});
        commands.push_back({"GET", "redisson_lock_token:" + tag});
    }
    const std::vector<Reply> aids = ask(server, commands, true);
    for (std::size_t i = 0; i < locks.size(); ++i) {
        Entry& lock = locks[i];
        if (lock.type == LockType::reentrant) {
            if (aids[2 * i].is_integer()) lock.waiting = aids[2 * i].integer;
            if (lock.waiting > 0) lock.type = LockType::fair;
            if (aids[2 * i + 1].kind == Reply::Kind::text) {
                lock.type = LockType::fenced;
                lock.token = aids[2 * i + 1].text;
            }
        }
        if (lock.name.starts_with(arguments_.prefix)) lock.name.erase(0, arguments_.prefix.size());
        found.push_back(std::move(lock));
    }
}

LockType Servers::type_of(const std::string& name) {
    const std::string key = arguments_.prefix + name;
    const std::string tag = with_tag(key);
    const std::vector<Reply> replies = ask(entry_,
                                           {{"TYPE", key},
                                            {"HEXISTS", key, "mode"},
                                            {"EXISTS", tag + ":timeout"},
                                            {"EXISTS", "redisson_lock_token:" + tag},
                                            {"EXISTS", "redisson_lock_queue:" + tag}},
                                           true);
    const std::string type = without_error(replies[0]).text;
    if (type == "hash" && replies[1].integer == 1) return LockType::read_write;
    if (type == "hash" && replies[3].integer == 1) return LockType::fenced;
    if (type == "hash" && replies[4].integer == 1) return LockType::fair;
    if (type == "hash") return LockType::reentrant;
    if (replies[2].integer == 1) return LockType::semaphore;
    if (type == "string") return LockType::mutex;
    if (type == "none") return LockType::none;
    throw redlatch::Error(redlatch::errc::wrong_type, name, "the key is no lock");
}

}  // namespace tool
