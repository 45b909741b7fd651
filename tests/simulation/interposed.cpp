// SPDX-License-Identifier: MIT
// Replaces the C library's threads, mutexes, condition variables, clock and randomness in this program: all of them
// belong to the scheduler. A std::mutex is zero at first and needs no destructor, so its own bytes can show whether it
// is locked.
#include "simulation/scheduler.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <ctime>

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

using sim::Fiber;
using sim::Nanos;
using sim::Scheduler;

bool simulated() { return Scheduler::current() && Scheduler::current()->in_fiber(); }

Nanos nanos(const timespec& t) { return Nanos(t.tv_sec) * sim::second + t.tv_nsec; }

// The wall clock differs from the monotonic clock.
constexpr Nanos wall_offset = 1'700'000'000 * sim::second;

std::int32_t& taken(pthread_mutex_t* mutex) { return mutex->__data.__lock; }

void lock(pthread_mutex_t* mutex) {
    Scheduler& s = sim::scheduler();
    while (taken(mutex) != 0) s.wait(mutex, sim::forever, "mutex");
    taken(mutex) = 1;
}

int wait(pthread_cond_t* cond, pthread_mutex_t* mutex, Nanos until) {
    Scheduler& s = sim::scheduler();
    taken(mutex) = 0;
    s.wake_one(mutex);
    const bool notified = s.wait(cond, until, "condition variable");
    lock(mutex);
    return notified ? 0 : ETIMEDOUT;
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
    if (!simulated()) return 0;
    sim::scheduler().may_switch();
    lock(mutex);
    return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
    if (!simulated()) return 0;
    sim::scheduler().may_switch();
    if (taken(mutex) != 0) return EBUSY;
    taken(mutex) = 1;
    return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
    if (!simulated()) return 0;
    taken(mutex) = 0;
    sim::scheduler().wake_one(mutex);
    sim::scheduler().may_switch();
    return 0;
}

int pthread_cond_wait(pthread_cond_t* cond, pthread_mutex_t* mutex) {
    wait(cond, mutex, sim::forever);
    return 0;
}

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t, const timespec* until) {
    return wait(cond, mutex, nanos(*until));
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex, const timespec* until) {
    return wait(cond, mutex, nanos(*until) - wall_offset);
}

int pthread_cond_signal(pthread_cond_t* cond) noexcept {
    if (simulated()) sim::scheduler().wake_one(cond);
    return 0;
}

int pthread_cond_broadcast(pthread_cond_t* cond) noexcept {
    if (simulated()) sim::scheduler().wake_all(cond);
    return 0;
}

int pthread_cond_destroy(pthread_cond_t*) noexcept { return 0; }

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*start)(void*), void* argument) noexcept {
    Scheduler& s = sim::scheduler();
    *thread = reinterpret_cast<pthread_t>(s.spawn(s.self().process, [start, argument] { start(argument); }));
    s.may_switch();
    return 0;
}

int pthread_join(pthread_t thread, void**) {
    sim::scheduler().join(*reinterpret_cast<Fiber*>(thread));
    return 0;
}

int pthread_detach(pthread_t) noexcept { return 0; }

pthread_t pthread_self() noexcept {
    static const int nobody = 0;
    return simulated() ? reinterpret_cast<pthread_t>(&sim::scheduler().self()) : reinterpret_cast<pthread_t>(&nobody);
}

int pthread_sigmask(int, const sigset_t*, sigset_t*) noexcept { return 0; }

int sched_yield() noexcept {
    if (simulated()) sim::scheduler().yield();
    return 0;
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
    const Nanos time = Scheduler::current() ? sim::scheduler().now() + (clock == CLOCK_REALTIME ? wall_offset : 0) : 0;
    *now = {time / sim::second, time % sim::second};
    return 0;
}

int nanosleep(const timespec* time, timespec*) {
    if (simulated()) sim::scheduler().sleep(nanos(*time));
    return 0;
}

int getentropy(void* bytes, size_t size) {
    auto* const out = static_cast<unsigned char*>(bytes);
    for (size_t i = 0; i < size; ++i) out[i] = static_cast<unsigned char>(sim::scheduler().random().next() >> 24);
    return 0;
}

// The standard library waits for an atomic by the kernel's futex.
long syscall(long number, ...) noexcept {
    va_list arguments;
    va_start(arguments, number);
    auto* const word = va_arg(arguments, std::int32_t*);
    const int operation = va_arg(arguments, int) & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
    const int value = va_arg(arguments, int);
    const auto* const time = va_arg(arguments, const timespec*);
    va_end(arguments);
    if (number != SYS_futex || !simulated()) {
        errno = ENOSYS;
        return -1;
    }
    if (operation == FUTEX_WAKE) {
        sim::scheduler().wake_all(word);
        return 1;
    }
    if (*word != value) {
        errno = EAGAIN;
        return -1;
    }
    // FUTEX_WAIT_BITSET has an absolute time, which is ignored.
    const Nanos until = operation == FUTEX_WAIT && time ? sim::scheduler().now() + nanos(*time) : sim::forever;
    if (sim::scheduler().wait(word, until, "futex")) return 0;
    errno = ETIMEDOUT;
    return -1;
}

}  // extern "C"
