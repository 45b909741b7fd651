// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>

namespace redlatch {
inline namespace v0_1 {

// Tracks which native command the server has for deleting a key that has a certain value. The commands are tried in
// order: one that the server refuses is not sent to it again. Thread-safe.
class CompareAndDelete {
public:
    enum class Form {
        delex,    // DELEX key IFEQ value: Redis 8.4, Valkey 9.2
        delifeq,  // DELIFEQ key value: Valkey 9.0
        none,     // no such command; use a script
    };

    Form form() const noexcept { return form_.load(std::memory_order_relaxed); }

    void refused(Form form) noexcept {
        const Form next = form == Form::delex ? Form::delifeq : Form::none;
        form_.compare_exchange_strong(form, next, std::memory_order_relaxed);
    }

private:
    std::atomic<Form> form_{Form::delex};
};

}  // namespace v0_1
}  // namespace redlatch
