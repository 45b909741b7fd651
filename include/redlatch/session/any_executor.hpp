// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Runs functions somewhere: in a thread pool, an event loop, a strand. Made from any object `e` that can be copied and
// for which e.execute(f) or e(f) arranges that f() is called once, for an f of type std::function<void()>. An empty one
// stands for the client's own thread.
class AnyExecutor {
public:
    // Stands for the client's own thread.
    AnyExecutor() noexcept = default;

    // Keeps a copy of the executor.
    template <class Executor>
    requires(!std::is_same_v<std::remove_cvref_t<Executor>, AnyExecutor>) AnyExecutor(Executor&& executor)
        : execute_([e = std::forward<Executor>(executor)](std::function<void()> f) mutable {
              if constexpr (requires { e.execute(std::move(f)); })
                  e.execute(std::move(f));
              else
                  e(std::move(f));
          }) {}

    // Returns true unless it is empty.
    explicit operator bool() const noexcept { return static_cast<bool>(execute_); }

    // Has the executor run f(). Throws what the executor throws. Not to be called on an empty one.
    void execute(std::function<void()> f) const { execute_(std::move(f)); }

private:
    std::function<void(std::function<void()>)> execute_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
