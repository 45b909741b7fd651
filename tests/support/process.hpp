// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "socket.hpp"
#include "wait.hpp"

namespace redlatch::test {

/// How a process ended: with a code, or by a signal.
struct ExitStatus {
    int code = -1;
    int signal = 0;

    bool ok() const { return code == 0; }
    bool killed() const { return signal != 0; }
    bool operator==(const ExitStatus&) const = default;
};

/// A program for `ChildProcess::exec`. `args` does not contain the program's name.
struct Program {
    std::string path = {};  // looked up in PATH if it has no slash
    std::vector<std::string> args = {};
    std::map<std::string, std::string> environment = {};  // added to that of this process
    std::string output = {};  // a file to append stdout and stderr to; empty: those of this process
    int dialogue = -1;        // a descriptor, such as one end of a socket pair, that becomes stdin and stdout instead
};

namespace detail {

inline constexpr int uncaught_exception_code = 99;

// Raw system calls, because glibc has a wrapper only since 2.34. Uses a loop if the kernel does not have the call.
inline void close_from(unsigned first, bool only_on_exec) noexcept {
    const unsigned on_exec_flag = 4;
    if (::syscall(SYS_close_range, first, ~0U, only_on_exec ? on_exec_flag : 0U) == 0) return;
    for (int fd = static_cast<int>(first); fd < 65'536; ++fd) {
        if (only_on_exec)
            ::fcntl(fd, F_SETFD, FD_CLOEXEC);
        else
            ::close(fd);
    }
}

/// Call this in a new child: it is killed when the test process ends, however that happens.
///
/// The kernel does it (PR_SET_PDEATHSIG), but it watches the *thread* that called fork, not the process. If another
/// thread than the main one started the child, for example a fault injector that restarts a server, a small guard
/// process watches instead.
inline void die_with(pid_t test_process, bool forked_by_main_thread) noexcept {
    if (forked_by_main_thread) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != test_process) ::_exit(uncaught_exception_code);
        return;
    }
    const pid_t guarded = ::getpid();
    if (::fork() != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_from(0, false);
    const timespec nap{0, 20'000'000};
    while (::getppid() == guarded && ::kill(test_process, 0) == 0) ::nanosleep(&nap, nullptr);
    if (::getppid() == guarded) ::kill(guarded, SIGKILL);
    ::_exit(0);
}

inline bool in_main_thread() { return ::syscall(SYS_gettid) == ::getpid(); }

inline void flush_output() {
    std::cout.flush();
    std::cerr.flush();
    std::fflush(nullptr);
}

}  // namespace detail

/// A child process. It is killed and reaped by the destructor, and killed by the kernel if the test process dies first.
/// One thread at a time may use it.
class ChildProcess {
public:
    /// Forks and runs the function in the child, which ends with the code that the function returns. An exception is
    /// printed and gives 99. The child ends with _exit: it runs no destructor of the parent's objects.
    ///
    /// Fork before the test starts threads: in the child only the calling thread survives, a mutex that another thread
    /// held stays locked indefinitely, and ThreadSanitizer refuses to start threads in a child of a process that had
    /// more than one. If threads exist already, use `spawn_self`. The child inherits all descriptors, as tests of
    /// fork() need. A failed doctest check in the child is printed but not counted: return a code.
    template <class Function>
    static ChildProcess run(Function&& function) {
        detail::flush_output();
        return start([&] {
            int code = detail::uncaught_exception_code;
            try {
                code = std::forward<Function>(function)();
            } catch (const std::exception& error) {
                std::cerr << "child process: " << error.what() << std::endl;
            } catch (...) {
                std::cerr << "child process: an exception of unknown type" << std::endl;
            }
            detail::flush_output();
            ::_exit(code);
        });
    }

    /// Forks and executes a program, which inherits stdin, stdout and stderr only. Throws if it cannot be started.
    static ChildProcess exec(const Program& program) {
        // Allocate everything before the fork: other threads may hold the allocator's locks.
        std::vector<std::string> words{program.path};
        words.insert(words.end(), program.args.begin(), program.args.end());
        std::vector<std::string> variables = environment_with(program.environment);
        std::vector<char*> argv = pointers(words);
        std::vector<char*> envp = pointers(variables);
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe2");
        const Fd error_in{ends[0]};
        Fd error_out{ends[1]};
        ChildProcess child = start([&] {
            bool ready = true;
            if (!program.output.empty()) {
                const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
                const int output = ::open(program.output.c_str(), flags, 0600);
                ready = output >= 0 && ::dup2(output, 1) >= 0 && ::dup2(output, 2) >= 0;
            }
            if (ready && program.dialogue >= 0)
                ready = ::dup2(program.dialogue, 0) >= 0 && ::dup2(program.dialogue, 1) >= 0;
            // hiredis does not mark its sockets close-on-exec. A server must not keep its own clients' ends open.
            detail::close_from(3, true);
            if (ready) ::execvpe(argv[0], argv.data(), envp.data());
            const int error = errno;
            const auto told = ::write(ends[1], &error, sizeof error);
            ::_exit(told == sizeof error ? 127 : 126);
        });
        error_out.reset();
        int error = 0;
        if (without_eintr([&] { return ::read(error_in.get(), &error, sizeof error); }) == sizeof error) {
            errno = error;
            throw_errno("cannot execute " + program.path);
        }
        return child;
    }

    ChildProcess(ChildProcess&& other) noexcept
        : process_(other.process_), pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}
    ChildProcess& operator=(ChildProcess&& other) noexcept {
        if (this != &other) {
            end();
            process_ = other.process_;
            pid_ = std::exchange(other.pid_, -1);
            status_ = other.status_;
        }
        return *this;
    }
    ~ChildProcess() { end(); }

    pid_t pid() const { return pid_; }

    /// Returns false if the process has ended already.
    bool signal(int number) { return running() && ::kill(pid_, number) == 0; }

    /// Freezes the process. Returns when it is frozen (or dead).
    void stop() {
        if (!signal(SIGSTOP)) return;
        siginfo_t info{};
        without_eintr([&] { return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT); });
    }

    void cont() { signal(SIGCONT); }

    /// Sends SIGKILL, which works on a frozen process too. Returns when the process is gone.
    void kill() {
        if (signal(SIGKILL)) reap(0);
    }

    bool running() {
        if (pid_ > 0 && !status_) reap(WNOHANG);
        return pid_ > 0 && !status_;
    }

    /// Returns the exit status, or nothing if the process still runs at the deadline.
    std::optional<ExitStatus> wait(std::chrono::milliseconds deadline = std::chrono::seconds{10}) {
        eventually([&] { return !running(); }, deadline);
        return status_;
    }

private:
    explicit ChildProcess(pid_t pid) : pid_(pid) {}

    template <class InChild>
    static ChildProcess start(InChild&& in_child) {
        const pid_t parent = ::getpid();
        const bool main_thread = detail::in_main_thread();
        // doctest takes SIGTERM for the crash of a test. Here a parent ends its child by SIGTERM, possibly as soon as
        // the child exists. So signals stay blocked until the handlers are removed.
        sigset_t all;
        sigset_t before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        const pid_t pid = ::fork();
        if (pid == 0) {
            detail::die_with(parent, main_thread);
            ::signal(SIGINT, SIG_DFL);
            ::signal(SIGTERM, SIG_DFL);
            ::sigemptyset(&all);
            ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
            in_child();
            ::_exit(detail::uncaught_exception_code);
        }
        const int error = errno;
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        errno = error;
        if (pid < 0) throw_errno("fork");
        return ChildProcess{pid};
    }

    static std::vector<std::string> environment_with(const std::map<std::string, std::string>& added) {
        std::vector<std::string> result;
        for (char** entry = environ; *entry != nullptr; ++entry) {
            const std::string variable = *entry;
            if (!added.contains(variable.substr(0, variable.find('=')))) result.push_back(variable);
        }
        for (const auto& [name, value] : added) result.push_back(name + "=" + value);
        return result;
    }

    static std::vector<char*> pointers(std::vector<std::string>& words) {
        std::vector<char*> result;
        for (auto& word : words) result.push_back(word.data());
        result.push_back(nullptr);
        return result;
    }

    void reap(int flags) {
        int raw = 0;
        const pid_t reaped = without_eintr([&] { return ::waitpid(pid_, &raw, flags); });
        if (reaped == pid_) {
            status_ = WIFEXITED(raw) ? ExitStatus{WEXITSTATUS(raw), 0} : ExitStatus{-1, WTERMSIG(raw)};
        } else if (reaped < 0) {
            status_ = ExitStatus{};  // reaped elsewhere
        }
    }

    void end() noexcept {
        if (::getpid() == process_) kill();  // a forked child must not kill a process of its parent
    }

    pid_t process_ = ::getpid();
    pid_t pid_ = -1;
    std::optional<ExitStatus> status_;
};

using RoleFunction = std::function<int(std::span<const std::string> args)>;

namespace detail {

inline constexpr const char* role_variable = "REDLATCH_TEST_ROLE";

inline std::map<std::string, RoleFunction>& roles() {
    static std::map<std::string, RoleFunction> all;
    return all;
}

}  // namespace detail

/// Names a function that `spawn_self` can run in a new process. Define it at namespace scope:
///     const redlatch::test::Role seller{"seller", [](std::span<const std::string> args) { ...; return 0; }};
class Role {
public:
    Role(const std::string& name, RoleFunction function) {
        if (!detail::roles().emplace(name, std::move(function)).second) {
            std::cerr << "two roles are named " << name << std::endl;
            std::abort();
        }
    }
};

/// Starts this program again to run the named role in a new process that shares nothing with this one. Safe with
/// threads and with sanitizers. Pass the data that the role needs as arguments: a URL, a path of a shared file.
inline ChildProcess spawn_self(const std::string& role, std::vector<std::string> args = {},
                               std::map<std::string, std::string> environment = {}) {
    if (!detail::roles().contains(role)) throw std::invalid_argument("no role is named " + role);
    detail::flush_output();
    environment[detail::role_variable] = role;
    return ChildProcess::exec(
        {.path = "/proc/self/exe", .args = std::move(args), .environment = std::move(environment)});
}

/// Call this first in main. Runs the role if `spawn_self` started this process, otherwise `else_main`.
inline int role_main(int argc, char** argv, int (*else_main)(int, char**)) {
    const char* wanted = std::getenv(detail::role_variable);
    if (wanted == nullptr) return else_main(argc, argv);
    const auto role = detail::roles().find(wanted);
    if (role == detail::roles().end()) {
        std::cerr << "no role is named " << wanted << std::endl;
        return detail::uncaught_exception_code;
    }
    try {
        const std::vector<std::string> args(argv + 1, argv + argc);
        return role->second(args);
    } catch (const std::exception& error) {
        std::cerr << "role " << role->first << ": " << error.what() << std::endl;
        return detail::uncaught_exception_code;
    }
}

}  // namespace redlatch::test
