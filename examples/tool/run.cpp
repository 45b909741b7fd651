// SPDX-License-Identifier: MIT
#include "run.hpp"

#include "grip.hpp"
#include "guardian.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <utility>

namespace tool {

namespace {

using Clock = std::chrono::steady_clock;

// A pipe that other threads and signal handlers write to, to wake the main thread. The byte is the number of a signal, or 0.
class Wakeups {
public:
    Wakeups() {
        if (::pipe(ends_) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
        for (const int end : ends_) {
            ::fcntl(end, F_SETFD, FD_CLOEXEC);
            ::fcntl(end, F_SETFL, O_NONBLOCK);
        }
        signal_end = ends_[1];
        struct sigaction action {};
        action.sa_handler = &on_signal;
        action.sa_flags = SA_RESTART;
        for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
            struct sigaction before {};
            ::sigaction(number, nullptr, &before);
            if (before.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);  // nohup has it ignored
        }
        ::signal(SIGPIPE, SIG_IGN);
        ::signal(SIGTTOU, SIG_IGN);
    }
    Wakeups(const Wakeups&) = delete;
    Wakeups& operator=(const Wakeups&) = delete;

    void wake() const noexcept { write(0); }
    int descriptor() const noexcept { return ends_[0]; }

    // Returns the next signal that has come; nothing if there is none.
    std::optional<int> next_signal() const {
        char byte = 0;
        while (::read(ends_[0], &byte, 1) == 1)
            if (byte != 0) return byte;
        return std::nullopt;
    }

private:
    static inline int signal_end = -1;

    static void on_signal(int number) {
        const int saved = errno;
        const char byte = static_cast<char>(number);
        [[maybe_unused]] const auto ignored = ::write(signal_end, &byte, 1);
        errno = saved;
    }
    void write(char byte) const noexcept { [[maybe_unused]] const auto ignored = ::write(ends_[1], &byte, 1); }

    int ends_[2];
};

// From KILL to the end of the validity.
Milliseconds margin_of(Milliseconds lease) { return std::clamp(lease / 20, Milliseconds(20), Milliseconds(500)); }

// Until when the lock is certain, and how long before that the command has to end.
struct Validity {
    BootTime ends;
    Milliseconds margin;
    Milliseconds grace;

    KeptUntil kept_until() const { return {before_end(margin + grace), before_end(margin)}; }
    // When the tool itself kills the command. The guardian does it before, unless it is frozen.
    BootTime last_kill_at() const { return before_end(margin / 2); }

private:
    BootTime before_end(Milliseconds time) const { return ends - std::chrono::nanoseconds(time).count(); }
};

void say(const std::string& text) { std::cerr << "redlatch: " + text + "\n"; }

// One command line that runs a program. The main thread sleeps in poll() only; the client's threads wake it.
class Runner {
public:
    explicit Runner(const Arguments& arguments)
        : arguments_(arguments), command_{arguments.program, arguments.name, arguments.grace}, guardian_(command_) {}

    int run() {
        redlatch::ClientOptions options = client_options(arguments_);
        // Why a server cannot be used. A loss is said elsewhere, with what follows from it.
        options.on_event = [](const redlatch::Event& event) {
            if (event.kind != redlatch::Event::Kind::hold_lost) say(event.detail);
        };
        redlatch::Client client(arguments_.url, options);
        Grippable lock(client, arguments_);
        Milliseconds pause = shortest_pause;
        for (;;) {
            Grip grip;
            const std::optional<int> code = acquire(client, lock, grip);
            if (code && !(arguments_.command == Command::lead && *code == codes::unreachable)) return *code;
            const auto begun = Clock::now();
            if (!code) {
                const int ended = supervise(grip);
                const int outcome = give_back(grip, ended);
                if (arguments_.command != Command::lead || stopped_) return outcome;
                if (outcome == codes::not_found || outcome == codes::not_run) return outcome;
                say("the command has ended with " + std::to_string(outcome) + "; campaigns again");
            }
            // A command that fails at once must not change the leader all the time.
            pause =
                Clock::now() - begun > std::chrono::seconds(10) ? shortest_pause : std::min(pause * 2, longest_pause);
            if (const auto number = signal_within(pause)) return codes::signal_base + *number;
        }
    }

private:
    static constexpr Milliseconds shortest_pause{500};
    static constexpr Milliseconds longest_pause{30'000};

    // Sleeps until something happens, but for this time at most.
    void sleep(Milliseconds at_most) const {
        pollfd fds[2] = {{wakeups_.descriptor(), POLLIN, 0}, {guardian_.descriptor(), POLLIN, 0}};
        ::poll(fds, guardian_gone_ ? 1 : 2, static_cast<int>(at_most.count()));
    }

    std::optional<int> signal_within(Milliseconds time) {
        const auto end = Clock::now() + time;
        for (;;) {
            if (const auto number = wakeups_.next_signal()) return number;
            const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
            if (left <= Milliseconds(0)) return std::nullopt;
            sleep(left);
        }
    }

    // Of an operation only the code of its error is known. A server that rejects one command says why to the next.
    std::string reason_of(const std::error_code& error, redlatch::Client& client) const {
        try {
            if (error == redlatch::errc::rejected)
                static_cast<void>(redlatch::RLock(client, arguments_.name).is_locked());
        } catch (const redlatch::Error& why) {
            return why.what();
        }
        return error.message();
    }

    // Returns nothing if it is held, otherwise the code to end with.
    std::optional<int> acquire(redlatch::Client& client, Grippable& lock, Grip& grip) {
        struct Outcome {
            std::mutex mutex;
            bool done = false;
            std::error_code error;
            Grip grip;
        };
        const auto outcome = std::make_shared<Outcome>();
        std::stop_source stop;
        lock.acquire(stop.get_token(), [outcome, this](std::error_code error, Grip got) {
            {
                const std::lock_guard guard(outcome->mutex);
                outcome->done = true;
                outcome->error = error;
                outcome->grip = std::move(got);
            }
            wakeups_.wake();
        });
        std::optional<int> signal;
        for (;;) {
            {
                const std::lock_guard guard(outcome->mutex);
                if (outcome->done) {
                    grip = std::move(outcome->grip);
                    break;
                }
            }
            sleep(Milliseconds(1'000));
            if (const auto number = wakeups_.next_signal()) {
                signal = number;
                stop.request_stop();
            }
        }
        if (!signal) signal = wakeups_.next_signal();
        if (signal) {
            static_cast<void>(grip.release());
            return codes::signal_base + *signal;
        }
        if (outcome->error) {
            say(reason_of(outcome->error, client));
            return code_of(outcome->error);
        }
        if (grip) return std::nullopt;
        say("the lock is not free: " + arguments_.name);
        return codes::busy;
    }

    // Runs the command to its end. Returns its code, or codes::lost.
    int supervise(Grip& grip) {
        const std::stop_token lost = grip.lost();
        const std::stop_callback on_loss(lost, [this] { wakeups_.wake(); });
        auto valid_until = grip.valid_until();
        Validity validity = first_validity(valid_until);
        guardian_.start(grip.token(), validity.kept_until());
        bool is_lost = false;
        std::optional<int> code;
        constexpr Milliseconds shortest{5}, longest{200};
        while (!code) {
            // In time for the kill below. A round is short anyway: poll() does not count a suspension of the machine.
            const Milliseconds left((validity.last_kill_at() - boot_time_now()) / 1'000'000 + 1);
            sleep(std::clamp(left / 30, shortest, longest));
            while (const auto number = wakeups_.next_signal()) {
                stopped_ = true;
                guardian_.signal(*number);
            }
            while (!guardian_gone_ && !code) {
                const std::optional<Told> told = guardian_.read();
                if (!told) break;
                code = learn(*told, is_lost);
            }
            if (lost.stop_requested() && !is_lost) {
                is_lost = true;
                if (!code) say("the lock is lost; ends the command");
                guardian_.lost();
            }
            // Without a hold there is no such instant: it was lost just now, and the token says so in the next round.
            if (const auto now_until = grip.valid_until();
                !is_lost && now_until != valid_until && now_until != Clock::time_point::min()) {
                valid_until = now_until;
                validity = validity_of(valid_until);
                guardian_.keep(validity.kept_until());
            }
            if (!code && boot_time_now() >= validity.last_kill_at()) guardian_.kill_group();
        }
        // The command had the terminal.
        if (::isatty(STDIN_FILENO) && ::tcgetpgrp(STDIN_FILENO) != -1) ::tcsetpgrp(STDIN_FILENO, ::getpgrp());
        return is_lost || boot_time_now() >= validity.ends ? codes::lost : *code;
    }

    // A lock that another process handed on has a short lease until its first renewal, which leaves little time for both.
    Validity first_validity(Clock::time_point valid_until) const {
        Validity validity = validity_of(valid_until);
        const auto left = std::chrono::floor<Milliseconds>(valid_until - Clock::now());
        if (left > wanted_length() / 10 * 9) return validity;
        validity.margin = margin_of(left);
        validity.grace = std::clamp(left / 10, Milliseconds(0), arguments_.grace);
        return validity;
    }

    Validity validity_of(Clock::time_point valid_until) const {
        return {boot_time_of(valid_until), margin_of(wanted_length()), arguments_.grace};
    }

    Milliseconds wanted_length() const {
        return std::min(arguments_.lease, arguments_.at_most.value_or(arguments_.lease));
    }

    std::optional<int> learn(const Told& told, bool& is_lost) {
        switch (told.kind) {
            case Told::Kind::started: return std::nullopt;
            case Told::Kind::overdue:
                if (!std::exchange(is_lost, true)) say("the lock cannot be kept; ends the command");
                return std::nullopt;
            case Told::Kind::failed:
                say(arguments_.program.front() + ": " + std::strerror(told.value));
                return told.value == ENOENT ? codes::not_found : codes::not_run;
            case Told::Kind::ended:
                return WIFSIGNALED(told.value) ? codes::signal_base + WTERMSIG(told.value) : WEXITSTATUS(told.value);
            case Told::Kind::gone: break;
        }
        // The kernel has killed the command with the guardian. What else is in its group goes, too.
        guardian_gone_ = true;
        guardian_.kill_group();
        say("the guardian process has been killed, and the command with it");
        return codes::signal_base + SIGKILL;
    }

    int give_back(Grip& grip, int code) {
        const std::error_code error = grip.release();
        if (code == codes::lost) return code;
        if (error == redlatch::errc::hold_lost || error == redlatch::errc::unknown_permit) {
            say("the lock was lost before the command had ended");
            return codes::lost;
        }
        if (error) say("the lock ends with its lease: " + error.message());
        return code;
    }

    const Arguments& arguments_;
    const GuardedCommand command_;
    Guardian guardian_;  // before anything else of the process that has a thread, or changes how it takes signals
    Wakeups wakeups_;
    bool guardian_gone_ = false;
    bool stopped_ = false;  // a signal has come while the command ran
};

}  // namespace

int run(const Arguments& arguments) { return Runner(arguments).run(); }

}  // namespace tool
