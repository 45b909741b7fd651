// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace redlatch {
inline namespace v0_1 {

// Ends a poll() from another thread. Calls between two drains cost one write together.
class WakePipe {
public:
    WakePipe() {
        if (!make()) throw std::system_error(errno, std::generic_category(), "pipe");
    }
    WakePipe(const WakePipe&) = delete;
    WakePipe& operator=(const WakePipe&) = delete;
    ~WakePipe() {
        for (const int fd : fds_) ::close(fd);
    }

    int fd() const noexcept { return fds_[0]; }

    void wake() noexcept {
        if (woken_.exchange(true)) return;
        // There is room for it, so only chance can make it fail.
        const char byte = 0;
        for (int tries = 0; tries < 10; ++tries)
            if (::write(fds_[1], &byte, 1) == 1) return;
        woken_.exchange(false);
    }

    // A wake() that comes before woken_ is taken back needs no byte of its own: what its caller wants done is done
    // after drain(). One that comes later writes a new byte. A byte that is still to be written belongs to the next
    // drain().
    void drain() noexcept {
        if (!woken_.load()) return;
        std::array<char, 16> bytes;
        bool came = false;
        while (::read(fds_[0], bytes.data(), bytes.size()) > 0) came = true;
        if (came) woken_.exchange(false);
    }

private:
    bool make() noexcept {
#if defined(__linux__)
        return ::pipe2(fds_.data(), O_CLOEXEC | O_NONBLOCK) == 0;
#else
        if (::pipe(fds_.data()) != 0) return false;
        for (const int fd : fds_) {
            if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != -1 && ::fcntl(fd, F_SETFL, O_NONBLOCK) != -1) continue;
            const int error = errno;
            for (const int open : fds_) ::close(open);
            errno = error;
            return false;
        }
        return true;
#endif
    }

    std::array<int, 2> fds_{};
    std::atomic<bool> woken_{false};
};

// Wake-ups for threads that take turns in a poll(), where the one inside may take from the pipe what was meant for the
// next. So they are counted, too: who comes with an older count than the present one has been woken already.
class Interrupts {
public:
    std::uint64_t count() const noexcept { return count_.load(); }
    int fd() const noexcept { return pipe_.fd(); }

    void wake() noexcept {
        count_.fetch_add(1);
        pipe_.wake();
    }

    void drain() noexcept { pipe_.drain(); }

private:
    WakePipe pipe_;
    std::atomic<std::uint64_t> count_{0};
};

}  // namespace v0_1
}  // namespace redlatch
