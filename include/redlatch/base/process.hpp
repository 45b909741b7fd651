// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// All shared objects in a process must agree on these values, including those that hide their symbols. So the functions
// are exported.
using ForkCell = std::atomic<std::uint64_t>;

// For kernels that cannot wipe memory at a fork: a handler resets this cell, if the fork goes through the C library.
[[gnu::visibility("default")]] inline ForkCell& cell_of_handler() noexcept {
    static constinit ForkCell cell{0};
    return cell;
}

inline ForkCell* wiped_by_handler() noexcept {
    ::pthread_atfork(nullptr, nullptr, [] { cell_of_handler() = 0; });
    return &cell_of_handler();
}

// Returns a cell that becomes zero in the child of a fork.
inline ForkCell* new_fork_cell() noexcept {
#ifdef MADV_WIPEONFORK
    constexpr std::size_t size = sizeof(ForkCell);
    void* const page = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) {
        if (::madvise(page, size, MADV_WIPEONFORK) == 0) return new (page) ForkCell{0};
        ::munmap(page, size);
    }
#endif
    return wiped_by_handler();
}

// Returns the cell, which the first caller creates. It takes no lock, because a fork could leave that locked in the
// child.
[[gnu::visibility("default")]] inline ForkCell& fork_cell() noexcept {
    static constinit std::atomic<ForkCell*> cell{nullptr};
    ForkCell* there = cell.load(std::memory_order_acquire);
    if (there) return *there;
    ForkCell* const mine = new_fork_cell();
    return cell.compare_exchange_strong(there, mine) ? *mine : *there;
}

// Returns a number that differs in each process descended from this one.
[[gnu::visibility("default")]] inline std::uint64_t fork_generation() noexcept {
    static constinit std::atomic<std::uint64_t> last{0};  // the child continues from its parent's value
    ForkCell& cell = fork_cell();
    std::uint64_t generation = cell.load(std::memory_order_relaxed);
    if (generation != 0) return generation;
    const std::uint64_t mine = last.fetch_add(1) + 1;
    return cell.compare_exchange_strong(generation, mine) ? mine : generation;
}

// Distinguishes a process from its ancestors. The pid alone does not suffice: in its own PID namespace a child may have
// the pid of its parent.
struct ProcessMark {
    std::uint64_t generation;
    pid_t pid;  // 0 where the kernel wipes the cell, so that no system call is needed

    friend bool operator==(const ProcessMark&, const ProcessMark&) = default;
};

inline ProcessMark this_process() noexcept {
    // The handler does not notice a fork that bypasses the C library. The pid does, usually.
    const bool by_handler = &fork_cell() == &cell_of_handler();
    return {fork_generation(), by_handler ? ::getpid() : 0};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
