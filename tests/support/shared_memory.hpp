// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "socket.hpp"

namespace redlatch::test {

/// One T in memory that several processes share: anonymous memory (inherited by fork), or a file that a new process
/// opens by its path.
///
/// T holds plain values and lock-free atomics, no pointers. Never use atomic wait() and notify() between processes:
/// libstdc++ waits on a futex that is private to the process. Poll with `eventually` instead.
template <class T>
class SharedMemory {
    static_assert(std::is_trivially_destructible_v<T>, "no process would know when to destroy it");

public:
    /// Makes a T{} in memory that children share if they are forked from now on.
    SharedMemory()
        : SharedMemory(::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
        new (value_) T{};
    }

    /// Creates the file, which must not exist, with a T{} in it. Put it into a TempDir.
    static SharedMemory create(const std::string& path) {
        const Fd fd{::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
        if (!fd || ::ftruncate(fd.get(), sizeof(T)) != 0) throw_errno("create " + path);
        SharedMemory result{map(fd)};
        new (result.value_) T{};
        return result;
    }

    /// Opens a file that another process created.
    static SharedMemory open(const std::string& path) {
        const Fd fd{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
        struct stat about {};
        if (!fd || ::fstat(fd.get(), &about) != 0) throw_errno("open " + path);
        if (about.st_size != static_cast<off_t>(sizeof(T))) throw std::runtime_error("not of this type: " + path);
        return SharedMemory{map(fd)};
    }

    SharedMemory(SharedMemory&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
    SharedMemory& operator=(SharedMemory&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    ~SharedMemory() {
        if (value_ != nullptr) ::munmap(value_, sizeof(T));
    }

    T* operator->() const { return value_; }
    T& operator*() const { return *value_; }

private:
    explicit SharedMemory(void* memory) : value_(static_cast<T*>(memory)) {
        if (memory == MAP_FAILED) throw_errno("mmap");
    }

    static void* map(const Fd& fd) {
        return ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    }

    T* value_;
};

}  // namespace redlatch::test
