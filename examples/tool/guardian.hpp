// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// A small process that runs the command and ends it in time, whatever happens to the tool: it knows until when the lock is
// certain, and needs no server, no thread and no memory to act on that.
//
//   tool --------------- two pipes --------------- guardian ------------- command
//   holds the lock,      "keep until …",           starts it, counts      in a process
//   renews it            "signal …", "lost"        the time, kills it     group of its own
//
// If the tool is killed, its end of the pipe closes. If it is frozen, nothing renews the time that the guardian has. If the
// guardian is killed, the kernel kills the command (PR_SET_PDEATHSIG, Linux) and the tool kills the rest of its group. If the
// guardian is frozen, the tool kills the group.
namespace tool {

// Nanoseconds of the clock that goes on while the machine is suspended (CLOCK_BOOTTIME, Linux): the lease does, too.
using BootTime = std::int64_t;

BootTime boot_time_now();

// Converts an instant of the steady clock, which stands still during a suspension. `min` and `max` of that clock stay so.
BootTime boot_time_of(std::chrono::steady_clock::time_point instant);

struct GuardedCommand {
    std::vector<std::string> program;
    std::string lock;                 // for the environment
    std::chrono::milliseconds grace;  // from TERM to KILL when the lock is lost
};

// When the command has to end, unless the lock is renewed.
struct KeptUntil {
    BootTime term_at = 0;
    BootTime kill_at = 0;
};

// Something that the guardian tells.
struct Told {
    enum class Kind : std::int32_t {
        started,  // value: the process id, which is that of the group
        failed,   // it could not be executed. value: errno
        ended,    // value: the status, as of waitpid()
        overdue,  // the guardian has sent TERM, because the time is over
        gone,     // the guardian itself has ended
    } kind;
    std::int32_t value = 0;
};

// The tool's side. One thread uses it.
class Guardian {
public:
    // Forks, so it must be called before the process starts threads.
    explicit Guardian(const GuardedCommand& command);
    Guardian(const Guardian&) = delete;
    Guardian& operator=(const Guardian&) = delete;

    // Lets the guardian end, with the command if that still runs, and waits for it.
    ~Guardian();

    // Runs the command. `token`: the fencing token, 0 for none.
    void start(std::int64_t token, const KeptUntil& until);

    // The rest never blocks, also if the guardian is frozen.
    void keep(const KeptUntil& until);
    void signal(int number);
    void lost();

    // A descriptor that is readable when there is something to read().
    int descriptor() const noexcept { return from_; }

    // Returns the next thing that the guardian tells; nothing if there is none at the moment.
    std::optional<Told> read();

    // Kills the command's group from here.
    void kill_group() const noexcept;

private:
    void send(std::int32_t kind, std::int32_t value, std::int64_t token, const KeptUntil& kept) noexcept;

    pid_t pid_ = -1;
    pid_t group_ = 0;  // of the command while it runs; 0 for none
    int to_ = -1;
    int from_ = -1;
};

}  // namespace tool
