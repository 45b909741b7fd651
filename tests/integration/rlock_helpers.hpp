// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/code_of.hpp"
#include "support/event_log.hpp"
#include "support/protocols.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

namespace redlatch::test {

using namespace redlatch::detail;

using HiredisClient = Client;
using HiredisRLock = RLock;
using Fields = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

/// Returns the owner on the server for this thread's hold of the lock. It ends in ":0" if there is none.
template <class AnyClient, class Lock>
std::string owner_of(const AnyClient& client, Lock& lock) {
    return client.id() + ":" + std::to_string(hold_of_this_thread(redlatch::detail::LockAccess::state(lock)));
}

/// The time until which a command is wanted, in tests that do not test it: far in the future of every server's clock.
inline constexpr std::int64_t always = 9'000'000'000'000;

inline ClientOptions with_watchdog(std::chrono::milliseconds timeout) {
    ClientOptions options;
    options.watchdog_timeout = timeout;
    return options;
}

/// A lease that is short for a test, and long enough to be renewed in time on a busy machine, where a thread may get no
/// CPU for more than a second.
inline constexpr std::chrono::milliseconds short_lease{slow_build_factor > 1 ? 4000 : 2000};

/// For tests that only see to it that a hold is renewed, and do not wait for its end: it outlasts a longer standstill.
inline constexpr std::chrono::milliseconds steady_lease{short_lease * 3};

/// Calls start() and waits for the result: another thread runs the function.
template <class Function>
auto elsewhere(Function&& function) {
    return start(std::forward<Function>(function)).get();
}

/// Returns the ids of the threads of this process.
inline std::set<std::string> threads() {
    std::set<std::string> ids;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/task"})
        ids.insert(entry.path().filename().string());
    return ids;
}

/// Waits until `total` acquisitions of the client have had to wait.
template <class AnyClient>
bool has_waiters(const AnyClient& client, std::uint64_t total) {
    return eventually([&] { return client.stats().waits >= total; }, std::chrono::seconds{20});
}

/// Runs the function, which has to wait for a lock, in a new thread. Returns when that thread is in the queue.
template <class AnyClient, class Function>
auto start_waiting(const AnyClient& client, Function&& function) {
    const std::uint64_t waits = client.stats().waits;
    const auto thread = std::make_shared<std::atomic<pid_t>>(0);
    auto future = start([thread, function = std::forward<Function>(function)]() mutable {
        *thread = this_thread_id();
        return function();
    });
    // The wait is counted just before the thread joins the queue and goes to sleep.
    if (!has_waiters(client, waits + 1) || !eventually([&] { return is_asleep(*thread); }, std::chrono::seconds{20}))
        throw std::runtime_error("the thread does not wait");
    return future;
}

/// Locks, lets another thread run the function, which locks too, and unlocks. Repeats that until the unlock hands the
/// hold over within the process: a representative that is asking the server is skipped, as in the first rounds. Returns
/// the function's result; `giver` is the owner that handed over.
template <class Function>
auto handed_over(HiredisClient& client, HiredisRLock& lock, std::string& giver, Function&& function) {
    for (int round = 0; round < 100; ++round) {
        const std::uint64_t handoffs = client.stats().handoffs;
        lock.lock();
        giver = owner_of(client, lock);
        auto successor = start_waiting(client, std::ref(function));
        lock.unlock();
        const auto result = successor.get();
        if (client.stats().handoffs > handoffs) return result;
    }
    throw std::runtime_error("no hand-over");
}

template <class Function>
auto handed_over(HiredisClient& client, HiredisRLock& lock, Function&& function) {
    std::string giver;
    return handed_over(client, lock, giver, std::forward<Function>(function));
}

/// Waits until `listeners` clients of any process are subscribed to the releases or grants of this key.
inline bool is_listened_to(RawCommands& redis, const std::string& key, long long listeners = 1) {
    return eventually([&] { return redis.lock_listeners(channel_of(key)) >= listeners; }, std::chrono::seconds{20});
}

/// Returns true if one of a few tries succeeds. For checks that a busy machine may spoil, but not every time.
template <class Try>
bool succeeds_once(Try&& attempt, int tries = 10) {
    for (; tries > 0; --tries)
        if (attempt()) return true;
    return false;
}

/// Returns true once a CommandMonitor counts nothing for a while. Commands in flight may arrive late.
template <class Monitor>
bool falls_silent(Monitor& monitor) {
    return succeeds_once(
        [&] {
            monitor.take_total();
            std::this_thread::sleep_for(std::chrono::milliseconds{300});
            return monitor.take_total() == 0;
        },
        5);
}

/// Returns true once the client sends nothing for a second. What a thread still has to ask may come late.
template <class AnyClient>
bool stops_sending(const AnyClient& client) {
    return succeeds_once(
        [&] {
            const std::uint64_t before = client.stats().commands;
            std::this_thread::sleep_for(std::chrono::seconds{1});
            return client.stats().commands == before;
        },
        5);
}

/// Collects the messages of a channel.
class Messages {
public:
    Messages(const RedisServer& server, std::string channel)
        : stream_(server), publisher_(server), channel_(std::move(channel)) {
        stream_.call("SUBSCRIBE", channel_);
    }

    /// Returns the messages since the last take, including all that were published before this call.
    std::vector<std::string> take() {
        const std::string end = "end of take " + std::to_string(++takes_);
        publisher_.integer("PUBLISH", channel_, end);
        std::vector<std::string> messages;
        while (true) {
            std::string message = stream_.receive().elements.at(2).string;
            if (message == end) return messages;
            messages.push_back(std::move(message));
        }
    }

    /// Returns the next message that was published before this call, empty if there is none.
    std::string next() {
        if (rest_.empty()) std::ranges::copy(take(), std::back_inserter(rest_));
        if (rest_.empty()) return {};
        std::string message = std::move(rest_.front());
        rest_.pop_front();
        return message;
    }

private:
    RawRedis stream_;
    RawRedis publisher_;
    std::string channel_;
    int takes_ = 0;
    std::deque<std::string> rest_;  // of the last take, for next()
};

/// Collects the writes of scripts, in order, word by word.
class ScriptWrites {
public:
    explicit ScriptWrites(const RedisServer& server) : stream_(server), marker_(server) { stream_.call("MONITOR"); }

    std::vector<Words> take() {
        const std::string end = "end of take " + std::to_string(++takes_);
        marker_.text("ECHO", end);
        std::vector<Words> writes;
        while (true) {
            const std::string line = stream_.receive().string;
            if (line.find(end) != std::string::npos) return writes;
            if (line.find(" lua] \"") == std::string::npos) continue;
            Words words = words_of(line);
            if (is_write(words.at(0))) writes.push_back(std::move(words));
        }
    }

private:
    /// Messages count as writes. The server knows the rest.
    bool is_write(const std::string& command) {
        if (command == "publish" || command == "spublish") return true;
        const auto [found, is_new] = is_write_.try_emplace(command);
        if (is_new) {
            const RawReply flags = marker_.call("COMMAND", "INFO", command).elements.at(0).elements.at(2);
            for (const RawReply& flag : flags.elements) found->second = found->second || flag.string == "write";
        }
        return found->second;
    }

    static Words words_of(const std::string& line) {
        Words words;
        for (auto at = line.find("] \"") + 3; at < line.size();) {
            const auto end = line.find('"', at);
            words.push_back(line.substr(at, end - at));
            at = end + 3;
        }
        std::transform(words[0].begin(), words[0].end(), words[0].begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        return words;
    }

    RawRedis stream_;
    RawRedis marker_;
    std::map<std::string, bool> is_write_;  // by command
    int takes_ = 0;
};

/// Returns the text of the Error that the call throws.
template <class Call>
std::string text_of_error(Call&& call) {
    try {
        std::forward<Call>(call)();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace redlatch::test
