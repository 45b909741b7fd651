// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/session/under_way.hpp"

#include <memory>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE void UnderWay::begin() {
    check_process();
    host_->start(executors_ != nullptr);
    stop_ = std::stop_source();
    make_task({stop_.get_token(), &host_->continuations(), host_.get(),
               executors_ && executors_->works_on ? &executors_->works_on : nullptr});
    if (wanted_stop_.stop_possible()) on_stop_ = std::make_unique<OnStop>();
    retain();
    // From here on nothing fails.
    State before = State::prepared;
    if (!state_.compare_exchange_strong(before, State::under_way)) {
        parts_ = 1;
        return cancel();
    }
    // A stop that was requested before completes the operation at once.
    if (on_stop_) on_stop_->emplace(std::move(wanted_stop_), GiveUp{*this});
    if (!at_once_) on_end_.emplace(host_->operations_end(), GiveUp{*this});
    start_task();
}

REDLATCH_INLINE void UnderWay::dispatch() {
    if (!executors_ || !executors_->completes_on) return complete();
    const AnyExecutor executor = std::exchange(executors_->completes_on, {});
    std::shared_ptr<Turn> turn;
    try {
        turn = std::make_shared<Turn>(*this);
        executor.execute([turn] { turn->use(); });
    } catch (...) {
        turn ? turn->use() : complete();
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
