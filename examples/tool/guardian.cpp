// SPDX-License-Identifier: MIT
#include "guardian.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <system_error>

namespace tool {

namespace {

using Clock = std::chrono::steady_clock;

constexpr BootTime not_at_all = std::numeric_limits<BootTime>::max();

// What the tool tells the guardian. Short enough that a pipe takes it as a whole.
struct Order {
    enum Kind : std::int32_t { start, keep, signal, lost };
    std::int32_t kind = start;
    std::int32_t value = 0;
    std::int64_t token = 0;
    KeptUntil kept{};
};

BootTime nanoseconds(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<BootTime>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

int wake_end = -1;  // of the guardian: written by its handler for SIGCHLD

void child_changed(int) {
    const int saved = errno;
    [[maybe_unused]] const auto ignored = ::write(wake_end, "c", 1);
    errno = saved;
}

void set_signal(int number, void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
}

void open_pipe(int (&ends)[2]) {
    if (::pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    for (const int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
}

constexpr int handled[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD};

// The guardian's side.
class Guard {
public:
    Guard(const GuardedCommand& command, int from, int to) : command_(command), from_(from), to_(to) {
        for (const int number : handled) ::sigaction(number, nullptr, &before_[number]);
        ::sigprocmask(SIG_SETMASK, nullptr, &mask_before_);
        for (const std::string& word : command.program) words_.push_back(const_cast<char*>(word.c_str()));
        words_.push_back(nullptr);
    }

    [[noreturn]] void run() {
        ::setpgid(0, 0);  // a signal for the tool's group is the tool's business
        for (const int number : handled) set_signal(number, SIG_IGN);
        ::fcntl(from_, F_SETFL, O_NONBLOCK);
        int wake[2];
        if (::pipe(wake) != 0) ::_exit(codes_failed);
        for (const int end : wake) {
            ::fcntl(end, F_SETFD, FD_CLOEXEC);
            ::fcntl(end, F_SETFL, O_NONBLOCK);
        }
        wake_end = wake[1];
        set_signal(SIGCHLD, &child_changed);
        sigset_t none;
        ::sigemptyset(&none);
        ::sigprocmask(SIG_SETMASK, &none, nullptr);
        for (;;) {
            if (!has_tool_ && child_ == 0) ::_exit(0);
            pollfd fds[2] = {{has_tool_ ? from_ : -1, POLLIN, 0}, {wake[0], POLLIN, 0}};
            ::poll(fds, 2, time_to_sleep());
            char drained[64];
            while (::read(wake[0], drained, sizeof drained) > 0) {
            }
            // All of them first: one that was frozen finds a renewal behind the others.
            if (fds[0].revents != 0)
                while (take_order()) {
                }
            look_after_child();
        }
    }

private:
    static constexpr int codes_failed = 70;

    // A suspension of the machine does not count for poll(), so it sleeps for short times only.
    int time_to_sleep() const {
        if (child_ == 0) return -1;
        const BootTime left = (std::min(term_at(), kill_at()) - boot_time_now()) / 1'000'000 + 1;
        return static_cast<int>(std::clamp<BootTime>(left, 0, 100));
    }

    BootTime kill_at() const { return std::min(kept_.kill_at, kill_by_); }
    BootTime term_at() const { return has_termed_ ? not_at_all : kept_.term_at; }
    static BootTime nanos(std::chrono::milliseconds time) { return static_cast<BootTime>(time.count()) * 1'000'000; }

    // Carries out the next order. Returns false if there is none.
    bool take_order() {
        Order order;
        const auto size = ::read(from_, &order, sizeof order);
        if (size < 0 && errno == EINTR) return true;
        if (size < 0 && errno == EAGAIN) return false;
        if (size != sizeof order) {  // the tool has ended
            has_tool_ = false;
            end_child();
            return false;
        }
        switch (order.kind) {
            case Order::start:
                kept_ = order.kept;
                start_child(order.token);
                break;
            case Order::keep: kept_ = order.kept; break;
            case Order::signal: signal_group(order.value); break;
            case Order::lost: end_child(); break;
            default: break;
        }
        return true;
    }

    // TERM now, and KILL after the grace, or earlier if the validity ends.
    void end_child() {
        if (child_ == 0 || has_termed_) return;
        has_termed_ = true;
        kill_by_ = boot_time_now() + nanos(command_.grace);
        signal_group(SIGTERM);
        signal_group(SIGCONT);  // one that is stopped could not end
    }

    void signal_group(int number) {
        if (child_ != 0) ::kill(-child_, number);
    }

    void look_after_child() {
        if (child_ == 0) return;
        int status = 0;
        const pid_t changed = ::waitpid(child_, &status, WNOHANG | WUNTRACED);
        if (changed == child_ && WIFSTOPPED(status)) {
            // A shell's ^Z would keep the lock for a command that does nothing. SIGSTOP is taken as it is meant.
            if (WSTOPSIG(status) != SIGSTOP) signal_group(SIGCONT);
        } else if (changed == child_) {
            ::kill(-child_, SIGKILL);  // what it has left behind in its group
            child_ = 0;
            tell(Told::Kind::ended, status);
            return;
        }
        const BootTime now = boot_time_now();
        if (now >= term_at()) {
            tell(Told::Kind::overdue, 0);
            end_child();
        }
        if (now >= kill_at()) signal_group(SIGKILL);
    }

    void start_child(std::int64_t token) {
        has_termed_ = false;
        kill_by_ = not_at_all;
        if (boot_time_now() >= term_at()) {  // the tool, or this process, stood still before
            tell(Told::Kind::overdue, 0);
            return tell(Told::Kind::ended, 0);
        }
        const pid_t guard = ::getpid();
        int failed[2];
        if (::pipe(failed) != 0) return tell(Told::Kind::failed, errno);
        ::fcntl(failed[1], F_SETFD, FD_CLOEXEC);
        const pid_t child = ::fork();
        if (child < 0) {
            const int error = errno;
            ::close(failed[0]);
            ::close(failed[1]);
            return tell(Told::Kind::failed, error);
        }
        if (child == 0) {
            ::close(failed[0]);
            execute(guard, token, failed[1]);
        }
        ::close(failed[1]);
        ::setpgid(child, child);  // whoever comes first
        int error = 0;
        ssize_t size = 0;
        do size = ::read(failed[0], &error, sizeof error);
        while (size < 0 && errno == EINTR);
        ::close(failed[0]);
        if (size == sizeof error) {
            ::waitpid(child, nullptr, 0);
            return tell(Told::Kind::failed, error);
        }
        child_ = child;
        tell(Told::Kind::started, child);
        if (!has_tool_) end_child();
    }

    [[noreturn]] void execute(pid_t guard, std::int64_t token, int failed) {
        ::setpgid(0, 0);
#ifdef __linux__
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != guard) ::_exit(codes_failed);
#else
        static_cast<void>(guard);
#endif
        // The command gets the terminal if the tool had it: then Ctrl-C is for the command.
        if (::isatty(STDIN_FILENO) && ::tcgetpgrp(STDIN_FILENO) == tools_group_) ::tcsetpgrp(STDIN_FILENO, ::getpid());
        // As the tool found them: nohup, for example, has SIGHUP ignored.
        for (const int number : handled) ::sigaction(number, &before_[number], nullptr);
        ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
        ::setenv("REDLATCH_LOCK", command_.lock.c_str(), 1);
        if (token != 0)
            ::setenv("REDLATCH_TOKEN", std::to_string(token).c_str(), 1);
        else
            ::unsetenv("REDLATCH_TOKEN");
        ::execvp(words_[0], words_.data());
        const int error = errno;
        [[maybe_unused]] const auto ignored = ::write(failed, &error, sizeof error);
        ::_exit(codes_failed);
    }

    void tell(Told::Kind kind, std::int32_t value) {
        const Told told{kind, value};
        [[maybe_unused]] const auto ignored = ::write(to_, &told, sizeof told);
    }

    const GuardedCommand& command_;
    const pid_t tools_group_ = ::getpgrp();
    std::vector<char*> words_;
    struct sigaction before_[NSIG] {};
    sigset_t mask_before_{};
    int from_;
    int to_;
    pid_t child_ = 0;  // 0 for none
    KeptUntil kept_{};
    BootTime kill_by_ = not_at_all;
    bool has_tool_ = true;
    bool has_termed_ = false;
};

}  // namespace

BootTime boot_time_now() {
#ifdef __linux__
    return nanoseconds(CLOCK_BOOTTIME);
#else
    return nanoseconds(CLOCK_MONOTONIC);
#endif
}

BootTime boot_time_of(Clock::time_point instant) {
    if (instant == Clock::time_point::max()) return not_at_all;
    if (instant == Clock::time_point::min()) return 0;
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(instant - Clock::now()).count();
    return boot_time_now() + left;
}

Guardian::Guardian(const GuardedCommand& command) {
    int down[2], up[2];
    open_pipe(down);
    open_pipe(up);
    Guard guard(command, down[0], up[1]);
    pid_ = ::fork();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ == 0) {
        ::close(down[1]);
        ::close(up[0]);
        guard.run();
    }
    ::close(down[0]);
    ::close(up[1]);
    to_ = down[1];
    from_ = up[0];
    ::fcntl(to_, F_SETFL, O_NONBLOCK);
    ::fcntl(from_, F_SETFL, O_NONBLOCK);
}

Guardian::~Guardian() {
    ::close(to_);
    // A guardian that is frozen ends when it goes on. Nobody waits for that.
    for (int i = 0; i < 200; ++i) {
        if (::waitpid(pid_, nullptr, WNOHANG) != 0) break;
        const timespec nap{0, 5'000'000};
        ::nanosleep(&nap, nullptr);
    }
    ::close(from_);
}

void Guardian::start(std::int64_t token, const KeptUntil& until) { send(Order::start, 0, token, until); }
void Guardian::keep(const KeptUntil& until) { send(Order::keep, 0, 0, until); }
void Guardian::signal(int number) { send(Order::signal, number, 0, {}); }
void Guardian::lost() { send(Order::lost, 0, 0, {}); }

std::optional<Told> Guardian::read() {
    Told told{};
    const auto size = ::read(from_, &told, sizeof told);
    if (size < 0) return std::nullopt;
    if (size != sizeof told) told = {Told::Kind::gone, 0};
    if (told.kind == Told::Kind::started) group_ = told.value;
    if (told.kind == Told::Kind::ended) group_ = 0;
    return told;
}

void Guardian::kill_group() const noexcept {
    if (group_ != 0) ::kill(-group_, SIGKILL);
}

void Guardian::send(std::int32_t kind, std::int32_t value, std::int64_t token, const KeptUntil& kept) noexcept {
    const Order order{kind, value, token, kept};
    [[maybe_unused]] const auto ignored = ::write(to_, &order, sizeof order);
}

}  // namespace tool
