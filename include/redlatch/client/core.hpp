// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/runtime.hpp"
#include "redlatch/core/keep_errno.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// What a client and the primitives made from it hold together: the runtime of the process they are used in.
//
// After a fork the child gets a runtime of its own at its first use: a new identity, new connections, no holds. The
// parent's runtime is left alone, for its mutexes may be held by threads that do not exist here. mutex_ makes one
// thread of the child do that.
template <Transport T>
class Core {
public:
    Core(T transport, const ClientOptions& options) : runtime_(new Runtime<T>(std::move(transport), options)) {}
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;

    ~Core() {
        const KeepErrno kept;
        Runtime<T>* runtime = runtime_.load();
        // Destroyed in a child that never used it: there is nothing of ours to end, only descriptors to give back.
        if (runtime->is_of_this_process())
            delete runtime;
        else
            runtime->transport().reborn();
    }

    Runtime<T>& runtime() {
        Runtime<T>* runtime = runtime_.load(std::memory_order_acquire);
        return runtime->is_of_this_process() ? *runtime : after_fork();
    }

private:
    Runtime<T>& after_fork() {
        const std::lock_guard lock(mutex_);
        Runtime<T>* parent = runtime_.load();
        if (parent->is_of_this_process()) return *parent;
        auto* mine = new Runtime<T>(parent->transport().reborn(), parent->options(), parent);
        runtime_.store(mine, std::memory_order_release);
        return *mine;
    }

    std::mutex mutex_;
    std::atomic<Runtime<T>*> runtime_;
};

}  // namespace v0_1
}  // namespace redlatch
