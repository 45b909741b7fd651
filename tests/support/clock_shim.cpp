// SPDX-License-Identifier: MIT
// Preloaded into a redis-server or a test. Shifts its wall clock by a number of microseconds from a mapped file, which
// may change at any time. A second number shifts CLOCK_BOOTTIME, as if the machine had been suspended for that time. A
// third, unless it is 0, is the time at which the wall clock stands still. The other clocks stay as they are.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace {

const volatile std::int64_t* find_offset() {
    static const std::int64_t none[3] = {0, 0, 0};
    const char* const path = std::getenv("REDLATCH_CLOCK_OFFSET");
    const int fd = path != nullptr ? ::open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return none;
    void* const memory = ::mmap(nullptr, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    return memory == MAP_FAILED ? none : static_cast<const std::int64_t*>(memory);
}

const volatile std::int64_t* offsets() {
    static const volatile std::int64_t* const found = find_offset();
    return found;
}

std::int64_t now_in_us(clockid_t clock, int which) {
    timespec now{};
    // Directly: the C library's function would lead here again.
    ::syscall(SYS_clock_gettime, clock, &now);
    return now.tv_sec * 1'000'000 + now.tv_nsec / 1000 + offsets()[which];
}

std::int64_t wall_time() {
    const std::int64_t frozen = offsets()[2];
    return frozen != 0 ? frozen : now_in_us(CLOCK_REALTIME, 0);
}

}  // namespace

extern "C" {

int gettimeofday(timeval* now, void*) noexcept {
    const std::int64_t us = wall_time();
    *now = {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
    return 0;
}

time_t time(time_t* to) noexcept {
    const time_t now = wall_time() / 1'000'000;
    if (to != nullptr) *to = now;
    return now;
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
    if (clock != CLOCK_REALTIME && clock != CLOCK_BOOTTIME)
        return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
    const std::int64_t us = clock == CLOCK_REALTIME ? wall_time() : now_in_us(CLOCK_BOOTTIME, 1);
    *now = {static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000 * 1000)};
    return 0;
}
}
