// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>

namespace redlatch {
inline namespace v0_1 {

// Which command of its own the server has for deleting a key that holds a certain value. Found out by using them, the
// first one first: a command that the server refuses is not sent to it again. For any number of threads.
class CompareAndDelete {
public:
    enum class Form {
        delex,    // DELEX key IFEQ value: Redis 8.4, Valkey 9.2
        delifeq,  // DELIFEQ key value: Valkey 9.0
        none,     // a script does it
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
