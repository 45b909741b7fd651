// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <thread>
#include <utility>

#include <signal.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Starts a thread that blocks all signals, so that the program's own threads receive them.
template <class Function>
std::thread thread_with_signals_blocked(Function&& function) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);  // a macro on some systems
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    struct Restore {
        const sigset_t& mask;
        ~Restore() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } const restore{before};
    return std::thread(std::forward<Function>(function));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
