// SPDX-License-Identifier: MIT
#include "fleet.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <thread>

namespace redlatch::bench {

namespace {

constexpr char ready = 'r';
constexpr char done = 'd';
constexpr char failed = 'x';
constexpr char silence = '\0';

volatile sig_atomic_t interrupted = 0;

}  // namespace

void catch_signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::sigaction(number, &action, nullptr);
}

Pipe::Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) test::throw_errno("pipe2");
    out.reset(ends[0]);
    in.reset(ends[1]);
}

void Pipe::put(char what) const {
    if (test::without_eintr([&] { return ::write(in.get(), &what, 1); }) != 1) test::throw_errno("write to a pipe");
}

char Pipe::get() const {
    char got = silence;
    if (test::without_eintr([&] { return ::read(out.get(), &got, 1); }) < 0) test::throw_errno("read from a pipe");
    return got;
}

Worker& Seat::worker() { return fleet_.shared_->workers[index_]; }
Critical& Seat::critical() { return fleet_.shared_->critical; }
Shared& Seat::shared() { return *fleet_.shared_; }

void Seat::start() {
    fleet_.status_.put(ready);
    fleet_.start_.wait();
}

bool Seat::running() const { return !fleet_.shared_->stop.load(std::memory_order_relaxed); }
void Seat::wait_for_stop() const { fleet_.stop_.wait(); }

void Seat::finish() {
    fleet_.status_.put(done);
    fleet_.leave_.wait();
}

void Crew::run(const std::function<void(Seat&)>& body) {
    const auto sit = [&](std::size_t index) {
        try {
            Seat seat{fleet_, index};
            seat.worker().process = first_;
            body(seat);
        } catch (const std::exception& error) {
            std::cerr << "worker " << index << ": " << error.what() << std::endl;
            fleet_.status_.put(failed);
            ::_exit(1);
        }
    };
    if (threads_ == 1) return sit(first_);
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < threads_; ++i) threads.emplace_back(sit, first_ + i);
}

void Fleet::add(std::size_t threads, const std::function<void(Crew&)>& process) {
    if (workers_ + threads > Shared::max_workers) throw std::logic_error("too many workers for one fleet");
    processes_.push_back(test::ChildProcess::run([&] {
        // A gate opens when its last writing end is closed, so close ours.
        start_.open();
        stop_.open();
        leave_.open();
        try {
            place_client(placement_);
            Crew crew{*this, workers_, threads};
            process(crew);
            return 0;
        } catch (...) {
            status_.put(failed);
            throw;
        }
    }));
    workers_ += threads;
}

// Returns what one worker reports, or silence when the time is over.
char Fleet::listen(std::chrono::nanoseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (true) {
        if (interrupted) throw Interrupted{};
        const std::chrono::nanoseconds left = deadline - std::chrono::steady_clock::now();
        if (left.count() <= 0) return silence;
        const timespec limit{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
        pollfd status{status_.out.get(), POLLIN, 0};
        if (::ppoll(&status, 1, &limit, nullptr) == 1) return status_.get();
    }
}

void Fleet::expect(char what, std::chrono::nanoseconds patience) {
    for (std::size_t i = 0; i < workers_; ++i) {
        const char heard = listen(patience);
        if (heard == silence) throw std::runtime_error("a worker hangs");
        if (heard != what) throw std::runtime_error("a worker failed");
    }
}

void Fleet::gather() { expect(ready, std::chrono::seconds{30}); }
void Fleet::wait_until_done(std::chrono::nanoseconds patience) { expect(done, patience); }

void Fleet::pause(std::chrono::nanoseconds duration) {
    if (listen(duration) != silence) throw std::runtime_error("a worker failed, or finished too early");
}

void Fleet::stop() {
    shared_->stop.store(true, std::memory_order_relaxed);
    stop_.open();
}

void Fleet::dismiss() {
    leave_.open();
    for (auto& process : processes_) {
        const auto status = process.wait(std::chrono::seconds{30});
        if (!status) throw std::runtime_error("a process does not end");
        if (!status->ok()) throw std::runtime_error("a process ended badly");
    }
}

std::chrono::nanoseconds Fleet::cpu_time() const {
    std::chrono::nanoseconds sum{0};
    for (const auto& process : processes_) {
        clockid_t clock{};
        timespec time{};
        if (::clock_getcpuclockid(process.pid(), &clock) != 0 || ::clock_gettime(clock, &time) != 0)
            throw std::runtime_error("a process is gone");
        sum += std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
    }
    return sum;
}

}  // namespace redlatch::bench
