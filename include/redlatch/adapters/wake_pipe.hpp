// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace redlatch {

// Ends a poll() from another thread. Calls between two drains cost one write together.
class WakePipe {
public:
    WakePipe() {
        if (::pipe(fds_.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
        for (const int fd : fds_) {
            ::fcntl(fd, F_SETFD, FD_CLOEXEC);
            ::fcntl(fd, F_SETFL, O_NONBLOCK);
        }
    }
    WakePipe(const WakePipe&) = delete;
    WakePipe& operator=(const WakePipe&) = delete;
    ~WakePipe() {
        for (const int fd : fds_) ::close(fd);
    }

    int fd() const noexcept { return fds_[0]; }

    void wake() noexcept {
        if (woken_.exchange(true)) return;
        const char byte = 0;
        // Fails only when the pipe is full, and then the other side will wake anyway.
        [[maybe_unused]] const ssize_t written = ::write(fds_[1], &byte, 1);
    }

    // A wake() that comes before the exchange needs no byte of its own: what its caller wants done is done after
    // drain(). One that comes later writes a new byte.
    void drain() noexcept {
        if (!woken_.load()) return;
        std::array<char, 16> bytes;
        while (::read(fds_[0], bytes.data(), bytes.size()) > 0) {
        }
        woken_.exchange(false);
    }

private:
    std::array<int, 2> fds_{};
    std::atomic<bool> woken_{false};
};

}  // namespace redlatch
