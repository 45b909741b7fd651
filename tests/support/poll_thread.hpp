// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "socket.hpp"

namespace redlatch::test {

using TimePoint = std::chrono::steady_clock::time_point;

/// Bytes to be written to a socket. Each piece has a time before which it is not sent.
class Outgoing {
public:
    bool empty() const { return pieces_.empty(); }
    std::size_t size() const { return size_; }

    /// Returns everything that waits, however late it is due.
    std::string text() const {
        std::string all;
        for (const Piece& piece : pieces_) all += piece.bytes;
        return all;
    }

    /// Returns when the next piece may be sent.
    std::optional<TimePoint> due() const { return pieces_.empty() ? std::nullopt : std::optional{pieces_.front().due}; }

    /// Adds bytes in pieces of `piece` bytes with a pause between them. 0: in one piece.
    void push(std::string bytes, TimePoint due, std::size_t piece = 0, std::chrono::milliseconds pause = {}) {
        if (!pieces_.empty()) due = std::max(due, pieces_.back().due + (piece > 0 ? pause : pause.zero()));
        if (piece == 0) piece = std::max<std::size_t>(bytes.size(), 1);
        for (std::size_t at = 0; at < bytes.size(); at += piece, due += pause) {
            pieces_.push_back({due, bytes.substr(at, piece)});
        }
        size_ += bytes.size();
    }

    /// Makes everything due.
    void hurry() {
        for (Piece& piece : pieces_) piece.due = std::min(piece.due, std::chrono::steady_clock::now());
    }

    /// Writes all pieces that are due. Returns the number of bytes written, or nothing if the connection is broken.
    std::optional<std::size_t> flush(const Fd& to) {
        std::size_t total = 0;
        while (!pieces_.empty() && pieces_.front().due <= std::chrono::steady_clock::now()) {
            std::string& bytes = pieces_.front().bytes;
            const ssize_t sent =
                without_eintr([&] { return ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
            if (sent < 0) {
                if (errno == EAGAIN || errno == ENOTCONN) return total;
                return std::nullopt;
            }
            const auto count = static_cast<std::size_t>(sent);
            total += count;
            size_ -= count;
            bytes.erase(0, count);
            if (bytes.empty()) pieces_.pop_front();
        }
        return total;
    }

    void clear() {
        pieces_.clear();
        size_ = 0;
    }

private:
    struct Piece {
        TimePoint due;
        std::string bytes;
    };
    std::deque<Piece> pieces_;
    std::size_t size_ = 0;
};

/// A thread that runs a poll loop. All state belongs to that thread; other threads use it through `call`.
class PollThread {
public:
    /// Adds the descriptors to poll (index 0 is taken). Returns the time at which to stop waiting, if any.
    using Prepare = std::function<std::optional<TimePoint>(std::vector<pollfd>&)>;
    /// Receives them with their events.
    using Ready = std::function<void(const std::vector<pollfd>&)>;

    PollThread(Prepare prepare, Ready ready)
        : prepare_(std::move(prepare)), ready_(std::move(ready)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (!wake_) throw_errno("eventfd");
        // Leave signals to the threads of the test.
        sigset_t all;
        sigset_t before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::make_unique<std::thread>([this] { run(); });
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    PollThread(const PollThread&) = delete;
    PollThread& operator=(const PollThread&) = delete;
    ~PollThread() {
        if (::getpid() != process_) {
            static_cast<void>(thread_.release());  // a forked child has no such thread to join
            return;
        }
        call([this] { stopping_ = true; });
        thread_->join();
    }

    /// Runs the task on the thread and returns when it is done. When called on that thread, runs it at once.
    void call(std::function<void()> task) {
        if (current() == this) return task();
        if (::getpid() != process_) throw std::logic_error("this thread exists in the parent process only");
        std::packaged_task<void()> packaged{std::move(task)};
        std::future<void> done = packaged.get_future();
        {
            const std::lock_guard hold{mutex_};
            tasks_.push_back(std::move(packaged));
        }
        const std::uint64_t one = 1;
        if (::write(wake_.get(), &one, sizeof one) < 0 && errno != EAGAIN) throw_errno("write to an eventfd");
        done.get();
    }

private:
    /// The PollThread whose thread calls this, if any.
    static const PollThread*& current() {
        static thread_local const PollThread* thread = nullptr;
        return thread;
    }

    void run() {
        current() = this;
        std::vector<pollfd> fds;
        while (!stopping_) {
            fds.assign(1, {wake_.get(), POLLIN, 0});
            const auto until = prepare_(fds);
            int timeout = -1;
            if (until) {
                const auto left =
                    std::chrono::ceil<std::chrono::milliseconds>(*until - std::chrono::steady_clock::now());
                timeout = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
            }
            if (::poll(fds.data(), fds.size(), timeout) < 0) {
                if (errno == EINTR) continue;
                throw_errno("poll");
            }
            ready_(fds);
            if (fds[0].revents != 0) run_tasks();
        }
    }

    void run_tasks() {
        std::uint64_t count = 0;
        if (::read(wake_.get(), &count, sizeof count) < 0 && errno != EAGAIN) throw_errno("read from an eventfd");
        std::deque<std::packaged_task<void()>> tasks;
        {
            const std::lock_guard hold{mutex_};
            tasks.swap(tasks_);
        }
        for (auto& task : tasks) task();
    }

    const pid_t process_ = ::getpid();
    Prepare prepare_;
    Ready ready_;
    Fd wake_;
    std::mutex mutex_;
    std::deque<std::packaged_task<void()>> tasks_;
    bool stopping_ = false;
    std::unique_ptr<std::thread> thread_;
};

}  // namespace redlatch::test
