// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <map>
#include <optional>
#include <redlatch/redlatch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/process.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"
#include "support/witness.hpp"

namespace redlatch::test {

using namespace std::chrono_literals;

// Leases of the tests: long enough that a busy machine renews in time.
inline constexpr std::chrono::milliseconds tool_lease = 4000ms * (slow_build_factor > 1 ? 2 : 1);

inline std::string in_ms(std::chrono::milliseconds time) { return std::to_string(time.count()) + "ms"; }

inline std::string read_file(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// One run of the tool: its process, and what it printed.
struct ToolRun {
    ChildProcess process;
    std::string output;

    std::string text() const { return read_file(output); }
};

// A server, and runs of the tool with it.
class Tool {
public:
    RedisServer server{};
    RawRedis redis{server};
    TempDir dir{};

    using Words = std::vector<std::string>;

    // Is added to that of the tool.
    std::map<std::string, std::string> environment{};

    // Starts the tool. `url`: of the server, or of a proxy before it.
    ToolRun start(const Words& words, std::string url = {}) {
        // A test that runs in the background may have inherited that they are ignored; then the tool ignores them, too.
        for (const int number : {SIGHUP, SIGINT, SIGQUIT}) ::signal(number, SIG_DFL);
        const std::string output = dir.file("output" + std::to_string(++runs_));
        std::map<std::string, std::string> all = environment;
        all.emplace("REDLATCH_URL", url.empty() ? server.url() : std::move(url));
        Program program{REDLATCH_TOOL, words, std::move(all), output};
        return {ChildProcess::exec(program), output};
    }

    // Runs the tool to its end. Returns its code and what it printed.
    std::pair<int, std::string> run(const Words& words) {
        ToolRun run = start(words);
        const auto status = run.process.wait(60s);
        return {status ? status->code : -2, run.text()};
    }

    // Returns a file in which a witness notes what it sees, and the words that run it.
    SharedMemory<Witness> new_witness(Words& words, const std::string& manner = "stubborn",
                                      std::chrono::milliseconds lifetime = 0ms) {
        const std::string path = dir.file("witness" + std::to_string(++witnesses_));
        words.insert(words.end(), {REDLATCH_WITNESS, path, manner, std::to_string(lifetime.count())});
        return SharedMemory<Witness>::create(path);
    }

    // Returns when the lease of the key ends, by CLOCK_BOOTTIME, not later than it does.
    std::int64_t lease_end(const std::string& key = "job") {
        const std::int64_t now = boot_time();
        return now + redis.pttl(key) * 1'000'000;
    }

    // Replaces the lock by a key of another type, so that each further renewal is refused. Returns lease_end() of the last
    // renewal: in one step, since another renewal between the two would prolong the lease.
    std::int64_t refuse_renewals(const std::string& key = "job") {
        const std::int64_t now = boot_time();
        const long long left = redis.integer("EVAL",
                                             "local left = redis.call('PTTL', KEYS[1]); "
                                             "redis.call('SET', KEYS[1], 'other'); return left",
                                             "1", key);
        return now + left * 1'000'000;
    }

    bool is_free(const std::string& key = "job", std::chrono::milliseconds within = 30s) {
        return eventually([&] { return !redis.exists(key); }, within);
    }

private:
    int runs_ = 0;
    int witnesses_ = 0;
};

inline bool has_begun(const Witness& witness) {
    return eventually([&] { return witness.begun != 0; }, 30s);
}

// A zombie, which nobody has waited for, does nothing any more.
inline bool is_alive(const Witness& witness) {
    std::string status;
    try {
        status = read_file("/proc/" + std::to_string(witness.process.load()) + "/stat");
    } catch (const std::ios_base::failure&) {  // it has ended since the file was opened
        return false;
    }
    const auto name_end = status.rfind(") ");
    return name_end != std::string::npos && status[name_end + 2] != 'Z' && status[name_end + 2] != 'X';
}

// Waits for the end of the witness. Returns false if it goes on.
inline bool has_ended(const Witness& witness, std::chrono::milliseconds within = 30s) {
    return eventually([&] { return !is_alive(witness); }, within);
}

/// Repeats a round until the command gets its signals in time. They are sent a margin before they must come. A busy
/// machine may take longer than that to run the guardian or to end the command.
template <class Round>
void once_in_time(Round round) {
    bool in_time = false;
    for (int tries = 0; tries < 5 && !in_time; ++tries) in_time = round();
    CHECK(in_time);
}

}  // namespace redlatch::test
