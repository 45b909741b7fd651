// SPDX-License-Identifier: MIT
#include "faults/failing_memory.hpp"

#include <dlfcn.h>
#include <hiredis/read.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <new>
#include <utility>

namespace redlatch::fault {

namespace {

std::atomic<bool> armed{false};
std::atomic<bool> has_struck{false};
std::atomic<long> left{0};
std::atomic<const void*> maker{nullptr};
FailingMemory::Of of = FailingMemory::Of::caller;
const void* hiredis_base = nullptr;
std::function<void()> meanwhile;

// Its address identifies the thread.
thread_local char identity;

bool strikes() {
    if (left.fetch_sub(1) != 0) return false;
    has_struck = true;
    if (meanwhile) meanwhile();
    return true;
}

bool new_fails() {
    if (!armed || of == FailingMemory::Of::hiredis) return false;
    const bool mine = maker == &identity;
    return mine == (of == FailingMemory::Of::caller) && strikes();
}

const void* library_of(const void* address) {
    Dl_info info{};
    return ::dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

}  // namespace

FailingMemory::FailingMemory(Of whose, long n, std::function<void()> do_meanwhile) {
    meanwhile = std::move(do_meanwhile);
    of = whose;
    hiredis_base = library_of(reinterpret_cast<const void*>(&redisReaderFree));
    maker = &identity;
    has_struck = false;
    left = n;
    armed = true;
}

FailingMemory::~FailingMemory() {
    armed = false;
    meanwhile = {};
}

bool FailingMemory::struck() const { return has_struck; }

// Looks up the caller only while armed for hiredis. dladdr() itself allocates nothing.
[[maybe_unused]] static bool c_fails(const void* caller) {
    return armed && of == FailingMemory::Of::hiredis && library_of(caller) == hiredis_base && strikes();
}

}  // namespace redlatch::fault

void* operator new(std::size_t size) {
    if (redlatch::fault::new_fails()) throw std::bad_alloc();
    if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
    throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

// A sanitizer has its own functions.
#if defined(__GLIBC__) && !defined(REDLATCH_SANITIZED)
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);

void* malloc(std::size_t size) {
    if (redlatch::fault::c_fails(__builtin_return_address(0))) return errno = ENOMEM, nullptr;
    return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
    if (redlatch::fault::c_fails(__builtin_return_address(0))) return errno = ENOMEM, nullptr;
    return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
    if (redlatch::fault::c_fails(__builtin_return_address(0))) return errno = ENOMEM, nullptr;
    return __libc_realloc(memory, size);
}
}
#endif
