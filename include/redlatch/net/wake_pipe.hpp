// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <initializer_list>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Ends a poll() from another thread. All calls between two drains cost one write.
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
        // The pipe has room for one byte: a failure is temporary.
        const char byte = 0;
        for (int tries = 0; tries < 10; ++tries)
            if (::write(fds_[1], &byte, 1) == 1) return;
        woken_.exchange(false);
    }

    // A wake() before woken_ is reset needs no byte of its own: the draining thread does the work of that caller after
    // drain(). A later wake() writes a new byte. A byte that is not written yet belongs to the next drain().
    void drain() noexcept {
        if (!woken_.load()) return;
        // The pipe seldom has more than one byte.
        std::array<char, 16> bytes;
        if (::read(fds_[0], bytes.data(), bytes.size()) > 0) woken_.exchange(false);
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

// Wakes all threads that watch a connection in a poll(). They take turns at it, and the thread inside may drain a wake-up
// that was meant for the next one. So wake-ups are counted as well: a thread that arrives with an older count than the
// present one has been woken already. Each of the two connections that are watched has a pipe of its own, because both
// may have a thread inside at a time.
//
// A thread that receives a message for itself needs no byte: it looks at the count before it polls again.
class Interrupts {
public:
    enum class At { messages, invalidations };

    std::uint64_t count() const noexcept { return count_.load(); }

    // Call this before poll(), and look at count() in between.
    void begin_poll(At at) noexcept { place(at).is_polled = true; }
    void end_poll(At at) noexcept {
        place(at).is_polled = false;
        place(at).pipe.drain();
    }
    // Becomes readable at a wake() between the two.
    int fd(At at) noexcept { return place(at).pipe.fd(); }

    // The count first: a thread reads it after begin_poll(), so it either sees the new count or has its pipe written.
    void wake() noexcept {
        count_.fetch_add(1);
        for (Place* place : {&messages_, &invalidations_})
            if (place->is_polled) place->pipe.wake();
    }

private:
    struct Place {
        WakePipe pipe;
        std::atomic<bool> is_polled{false};
    };

    Place& place(At at) noexcept { return at == At::messages ? messages_ : invalidations_; }

    Place messages_, invalidations_;
    std::atomic<std::uint64_t> count_{0};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
