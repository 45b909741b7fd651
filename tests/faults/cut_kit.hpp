// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "faults/fault_kit.hpp"

// Cuts the connection at every byte of an operation. The expected result comes from the operation itself: it runs once
// undisturbed. Then, each time that it is cut, its answer and its effect on the server must be the same: one effect,
// not two. Afterwards everything is released, and nothing may stay on the server.
namespace redlatch::fault {

using namespace redlatch::detail;

// A cut is noticed at once, so no test here waits for a command's time-out. The leases are too long to end.
inline ClientOptions without_haste() {
    ClientOptions options = quick();
    options.watchdog_timeout = 20s;
    options.command_timeout = options.unreachable_timeout;
    return options;
}

// The equipment of one worker: a client behind a proxy of its own, a name of its own, and a connection past the proxy.
struct CutBench {
    CutBench(const RedisServer& server, std::string lock_name)
        : server_url(server.url()),
          proxy(server.url()),
          far(proxy.url(), without_haste()),
          near(server.url(), without_haste()),
          redis(server),
          name(lock_name) {}

    // Returns all keys of this name in a form in which two runs can be compared. Leaves out the numbers of holds,
    // permit ids, times, and the marks that the library leaves against copies of its commands. Shows a mark that would
    // stay indefinitely.
    std::string picture() { return picture_of(name); }

    std::string picture_of(const std::string& key) {
        static constexpr const char* look = R"lua(
            local found = {}
            local function without_number(owner)
                return (string.gsub(owner, '(%x+%-%x+%-%x+%-%x+%-%x+):%d+', '%1:number'))
            end
            for _, key in ipairs(redis.call('keys', '*' .. ARGV[1] .. '*')) do
                local kind, left, content = redis.call('type', key).ok, redis.call('pttl', key), {}
                local mark = string.find(key, 'requests') or string.find(key, 'latch_round')
                if mark and left == -1 then table.insert(found, 'ETERNAL ' .. key) end
                if not mark then
                    if kind == 'string' then
                        content = {redis.call('get', key)}
                        if string.find(key, 'token') then content = {'token'} end
                    elseif kind == 'hash' then
                        local flat = redis.call('hgetall', key)
                        for i = 1, #flat, 2 do table.insert(content, flat[i] .. '=' .. flat[i + 1]) end
                    elseif kind == 'list' then content = redis.call('lrange', key, 0, -1)
                    elseif kind == 'zset' then
                        for _, m in ipairs(redis.call('zrange', key, 0, -1)) do
                            table.insert(content, string.find(key, 'timeout') and #m <= 17 and 'permit' or m)
                        end
                    end
                    for i, text in ipairs(content) do content[i] = without_number(text) end
                    table.sort(content)
                    table.insert(found, without_number(key) .. ' ' .. kind .. (left == -1 and ' forever ' or ' leased ') .. table.concat(content, ','))
                end
            end
            table.sort(found)
            return table.concat(found, '; ')
        )lua";
        return redis.text("EVAL", look, 0, key);
    }

    // Keeps the marks: a command may still be sent again.
    void wipe() {
        static constexpr const char* wipe_all = R"lua(
            for _, key in ipairs(redis.call('keys', '*' .. ARGV[1] .. '*')) do
                if not string.find(key, 'requests') then redis.call('del', key) end
            end
        )lua";
        redis.call("EVAL", wipe_all, 0, name);
    }

    std::string server_url;
    Proxy proxy;
    Client far;
    Client near;
    RawRedis redis;
    std::string name;
};

// One operation of one primitive, made for a fixture. `run` returns its answer as text. `prepare` and `undo` use the same
// client and are not disturbed.
struct CutOperation {
    std::string what;
    std::string request;  // bytes that its command contains
    std::function<void()> prepare = [] {};
    std::function<std::string()> run;
    std::function<void()> undo = [] {};
};

// The primitives of a fixture and their operations. Must outlive the operations.
struct CutWork {
    virtual ~CutWork() = default;
    std::vector<CutOperation> operations;
};

struct CutReport {
    std::mutex mutex;
    std::vector<std::string> wrong;
    std::uint64_t cuts = 0;

    void add(const std::string& line) {
        const std::lock_guard hold{mutex};
        wrong.push_back(line);
    }
    void count(std::uint64_t more) {
        const std::lock_guard hold{mutex};
        cuts += more;
    }
    std::string text() const {
        std::string all = std::to_string(wrong.size()) + " wrong:";
        for (std::size_t i = 0; i < std::min<std::size_t>(wrong.size(), 20); ++i) all += "\n" + wrong[i];
        return all;
    }
};

// Cuts one operation at every `step`-th byte from `first` on. A request is cut after each of its bytes; the cut after
// the last byte loses the whole reply. A reply is cut until one more byte would be no cut any more.
class CutSweep {
public:
    CutSweep(CutBench& fixture, const CutOperation& operation, CutReport& report, std::size_t first, std::size_t step)
        : bench_(fixture), operation_(operation), report_(report), first_(first), step_(step) {}

    void all() {
        try {
            const std::uint64_t before = bench_.proxy.counts().bytes_to_server;
            probe({});  // the server learns its scripts, the client connects
            expected_ = probe({});
            const auto size = static_cast<std::size_t>(request_end_ - request_begin_);
            if (bench_.proxy.counts().bytes_to_server == before) return wrong("sends nothing", 0, "", "");
            for (std::size_t byte = first_; byte <= size; byte += step_) {
                // Repeat if a busy machine let the call's time pass before it sent anything.
                int tries = 0;
                while (!cut(ProxyRule::Fault::drop_request, byte))
                    if (++tries == 5) return wrong("request was not cut", byte, "", "");
            }
            std::size_t byte = first_;
            while (cut(ProxyRule::Fault::drop_reply, byte)) byte += step_;
            // The shortest reply has four bytes.
            if (byte < 4) wrong("reply was not cut", byte, "", "");
        } catch (const std::exception& error) {
            wrong("threw", 0, error.what(), "");
        }
    }

private:
    struct Result {
        std::string answer;
        std::string picture;
        std::string left;
        bool operator==(const Result&) const = default;
    };

    // Returns false if the fault did not strike.
    bool cut(ProxyRule::Fault fault, std::size_t byte) {
        const auto before = bench_.proxy.counts().dropped;
        const Result result = probe(ProxyRule{fault, operation_.request, 1, 0, Then::close, byte});
        const bool struck = bench_.proxy.counts().dropped == before + 1;
        const char* where = fault == ProxyRule::Fault::drop_request ? "request" : "reply";
        if (result.answer != expected_->answer) wrong(where, byte, result.answer, expected_->answer);
        if (result.picture != expected_->picture) wrong(where, byte, result.picture, expected_->picture);
        if (result.left != expected_->left) wrong(where, byte, result.left, expected_->left);
        if (took_ > late + 2s) wrong(where, byte, std::to_string(took_.count()) + " ms", "in time");
        if (struck) report_.count(1);
        return struck;
    }

    Result probe(const std::optional<ProxyRule>& rule) {
        operation_.prepare();
        if (rule) bench_.proxy.add(*rule);
        Result result;
        request_begin_ = bench_.proxy.counts().bytes_to_server;
        const Stopwatch watch;
        result.answer = operation_.run();
        took_ = watch.elapsed_ms();
        request_end_ = bench_.proxy.counts().bytes_to_server;
        result.picture = settled(expected_ ? &expected_->picture : nullptr);
        bench_.proxy.clear_rules();
        operation_.undo();
        result.left = settled(expected_ ? &expected_->left : nullptr);
        bench_.wipe();
        return result;
    }

    // Returns the state of the server after all work, background work included, has come to rest. As a rule that is at
    // once.
    std::string settled(const std::string* wanted) {
        std::string now;
        eventually([&] { return now = bench_.picture(), !wanted || now == *wanted; }, 3s);
        return now;
    }

    void wrong(const char* where, std::size_t byte, const std::string& got, const std::string& wanted) {
        report_.add(operation_.what + ", " + where + " byte " + std::to_string(byte) + ": " + got + " instead of " +
                    wanted);
    }

    CutBench& bench_;
    const CutOperation& operation_;
    CutReport& report_;
    const std::size_t first_;
    const std::size_t step_;
    std::optional<Result> expected_;
    std::chrono::milliseconds took_{};
    std::uint64_t request_begin_ = 0;
    std::uint64_t request_end_ = 0;
};

// Cuts every operation of `Work` (a CutWork, made from a CutBench) on one server. Several workers share the bytes.
template <class Work>
void sweep_all(CutReport& report) {
    RedisServer server;
    constexpr std::size_t workers = 6;
    std::vector<std::jthread> threads;
    for (std::size_t number = 0; number < workers; ++number)
        threads.emplace_back([&, number] {
            CutBench fixture{server, "cut" + std::to_string(number)};
            Work work{fixture};
            for (const CutOperation& operation : work.operations)
                CutSweep{fixture, operation, report, number, workers}.all();
        });
}

}  // namespace redlatch::fault
