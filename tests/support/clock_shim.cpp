// SPDX-License-Identifier: MIT
// Preloaded into one redis-server, moves its wall clock, and nothing else: by the nanoseconds that stand in the file
// $REDLATCH_CLOCK_OFFSET, which server_clock.hpp writes. The calls go straight to the kernel, because a search for the
// next definition would allocate, and the allocator asks for the time.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

namespace {

const volatile long* offset = nullptr;

__attribute__((constructor)) void find_offset() {
    const char* path = std::getenv("REDLATCH_CLOCK_OFFSET");
    const int fd = path != nullptr ? ::open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void* memory = ::mmap(nullptr, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) offset = static_cast<const long*>(memory);
    ::close(fd);
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
    const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
    if (result != 0 || offset == nullptr || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    constexpr long second = 1'000'000'000;
    const long nanoseconds = time->tv_nsec + *offset % second + second;
    time->tv_sec += *offset / second + nanoseconds / second - 1;
    time->tv_nsec = nanoseconds % second;
    return 0;
}

extern "C" int gettimeofday(timeval* time, void*) noexcept {
    timespec now{};
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    *time = {now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

extern "C" time_t time(time_t* seconds) noexcept {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds != nullptr) *seconds = now.tv_sec;
    return now.tv_sec;
}
