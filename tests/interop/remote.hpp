// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/process.hpp"
#include "support/socket.hpp"

namespace redlatch::test {

/// A case that went wrong. The text describes the difference.
class Difference : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct Answer {
    std::string text;
    std::chrono::steady_clock::time_point arrived;
};

/// An operation that an agent was asked to execute, and may still be executing.
class Pending {
public:
    Pending(std::string what, std::future<Answer> answer) : what_(std::move(what)), answer_(std::move(answer)) {}

    bool done() const { return answer_.wait_for(std::chrono::seconds{0}) == std::future_status::ready; }

    /// Throws a Difference if no answer comes in time, or another than `wanted`.
    Answer get(const std::string& wanted, std::chrono::milliseconds limit = std::chrono::seconds{20}) {
        Answer answer = get(limit);
        if (answer.text != wanted) throw Difference(what_ + ": " + answer.text + " instead of " + wanted);
        return answer;
    }

    Answer get(std::chrono::milliseconds limit = std::chrono::seconds{20}) {
        if (answer_.wait_for(limit) != std::future_status::ready)
            throw Difference(what_ + ": no answer within " + std::to_string(limit.count()) + " ms");
        return answer_.get();
    }

private:
    std::string what_;
    std::future<Answer> answer_;
};

/// An agent in a process of its own. Any number of threads may use it. The main thread creates and destroys it.
class Remote {
public:
    /// How to start the agents of one language. `urls` are the servers that they may use, mostly the first one.
    struct Kind {
        std::string language;
        Program program;
    };

    Remote(const Kind& kind, const std::vector<std::string>& urls) : Remote(kind, urls, make_pair_of_sockets()) {}
    Remote(const Remote&) = delete;
    Remote& operator=(const Remote&) = delete;
    ~Remote() {
        kill();
        reader_.join();
    }

    const std::string& language() const { return language_; }
    bool is_java() const { return language_ == "Java"; }

    Pending send(const std::string& thread, const std::string& request) {
        const long long number = ++last_;
        std::future<Answer> answer;
        {
            const std::lock_guard guard{mutex_};
            if (gone_) throw Difference(language_ + " is gone");
            answer = open_[number].get_future();
        }
        const std::lock_guard guard{writing_};
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        send_all(socket_, std::to_string(number) + " " + thread + " " + request + "\n", deadline);
        return {language_ + " " + request, std::move(answer)};
    }

    /// Sends SIGKILL.
    void kill() { process_.kill(); }

private:
    Remote(const Kind& kind, const std::vector<std::string>& urls, std::pair<Fd, Fd> ends)
        : language_(kind.language), socket_(std::move(ends.first)), process_(start(kind.program, urls, ends.second)) {
        ends.second.reset();
        reader_ = std::thread{[this] { read(); }};
    }

    static std::pair<Fd, Fd> make_pair_of_sockets() {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
        return {Fd{ends[0]}, Fd{ends[1]}};
    }

    static ChildProcess start(Program program, const std::vector<std::string>& urls, const Fd& dialogue) {
        program.args.insert(program.args.end(), urls.begin(), urls.end());
        program.dialogue = dialogue.get();
        return ChildProcess::exec(program);
    }

    void read() {
        std::string bytes;
        while (read_some(socket_, bytes) != ReadState::closed) {
            const auto now = std::chrono::steady_clock::now();
            for (auto end = bytes.find('\n'); end != std::string::npos; end = bytes.find('\n')) {
                take(bytes.substr(0, end), now);
                bytes.erase(0, end + 1);
            }
        }
        // The remaining promises break, which ends all waiting for them.
        const std::lock_guard guard{mutex_};
        gone_ = true;
        open_.clear();
    }

    void take(const std::string& line, std::chrono::steady_clock::time_point now) {
        const auto blank = line.find(' ');
        const std::lock_guard guard{mutex_};
        const auto found = open_.find(std::atoll(line.c_str()));
        if (blank == std::string::npos || found == open_.end()) return;
        found->second.set_value({line.substr(blank + 1), now});
        open_.erase(found);
    }

    std::string language_;
    Fd socket_;
    ChildProcess process_;
    std::atomic<long long> last_{0};
    std::mutex writing_;  // for one whole line at a time
    std::mutex mutex_;    // guards the next two members
    std::map<long long, std::promise<Answer>> open_;
    bool gone_ = false;
    std::thread reader_;
};

}  // namespace redlatch::test
