// SPDX-License-Identifier: MIT
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <concepts>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

namespace redlatch::test {

/// start() with the function's type erased: compiling a thread and a future for each lambda takes long.
template <class Result>
std::future<Result> start_erased(std::function<Result()> function) {
    return std::async(std::launch::async, std::move(function));
}

extern template std::future<void> start_erased(std::function<void()>);
extern template std::future<bool> start_erased(std::function<bool()>);
extern template std::future<std::error_code> start_erased(std::function<std::error_code()>);

/// Runs the function in a thread of its own. The future has its result or exception.
template <class Function>
auto start(Function function) {
    using Result = std::invoke_result_t<Function&>;
    if constexpr (std::copy_constructible<Function>) {
        return start_erased(std::function<Result()>(std::move(function)));
    } else {
        const auto shared = std::make_shared<Function>(std::move(function));
        return start_erased(std::function<Result()>([shared] { return (*shared)(); }));
    }
}

/// Returns true if the result arrives in time. A test that fails here may hang in the future's destructor. ctest's time
/// limit ends it, because a thread cannot be ended from outside.
template <class Result>
bool ready(const std::future<Result>& future, std::chrono::milliseconds deadline = std::chrono::seconds{20}) {
    return future.wait_for(deadline) == std::future_status::ready;
}

/// Returns the result. Throws if it does not arrive in time.
template <class Result>
Result result_of(std::future<Result> future) {
    if (!ready(future)) throw std::runtime_error("the result does not arrive");
    return future.get();
}

/// Returns the kernel's number of the calling thread, for is_asleep().
inline pid_t this_thread_id() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

/// Returns true if this thread of the process sleeps in the kernel.
inline bool is_asleep(pid_t thread) {
    std::ifstream file{"/proc/self/task/" + std::to_string(thread) + "/stat"};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    const auto name_end = text.rfind(')');
    return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'S';
}

}  // namespace redlatch::test
