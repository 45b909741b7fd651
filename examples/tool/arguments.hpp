// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// The command line of the tool.
namespace tool {

using Milliseconds = std::chrono::milliseconds;

// A command line that makes no sense. Its text says what is wrong.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What the tool ends with, unless the command has ended with a code of its own. Those of sysexits.h, and the shell's.
namespace codes {
inline constexpr int not_held = 1;       // who, unlock: nobody holds it
inline constexpr int usage = 64;         // the command line makes no sense
inline constexpr int unreachable = 69;   // no server could be reached in time
inline constexpr int failed = 70;        // any other error
inline constexpr int busy = 75;          // the lock was not free in time
inline constexpr int lost = 76;          // the lock was lost while the command ran
inline constexpr int not_run = 126;      // the command cannot be executed
inline constexpr int not_found = 127;    // there is no such command
inline constexpr int signal_base = 128;  // plus the number of the signal that ended the command, or the wait
}  // namespace codes

enum class Command { run, attempt, lead, list, who, unlock, top, help, version };

// The kinds of locks under which a command can run.
enum class Kind { fenced, fair, shared, exclusive, permits };

struct Arguments {
    Command command = Command::help;
    std::string url{};
    std::string prefix{};
    std::string name{};     // of the lock
    std::string pattern{};  // of names; empty: all
    Kind kind = Kind::fenced;
    long permits = 0;
    std::optional<Milliseconds> wait{};  // none: as long as it takes
    Milliseconds lease{30'000};
    std::optional<Milliseconds> at_least{};
    std::optional<Milliseconds> at_most{};
    std::string candidate{};  // lead: the name that observers see
    Milliseconds grace{0};    // from TERM to KILL; set by parse()
    Milliseconds interval{1'000};
    long count = 0;  // 0: for ever
    bool force = false;
    std::vector<std::string> program{};
};

// Returns the time that a text such as "250ms", "10s", "1.5m", "2h" or "7" (seconds) names. Throws UsageError.
Milliseconds duration_of(std::string_view text);

// Throws UsageError. `url`: what the environment says; empty for nothing.
Arguments parse(const std::vector<std::string>& words, std::string_view url);

extern const std::string_view help_text;

}  // namespace tool
