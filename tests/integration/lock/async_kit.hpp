// SPDX-License-Identifier: MIT
// What the tests of operations on locks share.
#pragma once

#include <doctest/doctest.h>

#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "integration/lock/lock_kinds.hpp"

namespace redlatch::test {

template <class Test>
void with_each_kind(const Test& test) {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        test(fixture, *lock);
    }
}

// What a completion was called with, and how often.
struct Completed {
    void operator()(std::error_code with, Hold result) {
        const std::lock_guard lock(mutex);
        ++times;
        ec = with;
        hold = std::move(result);
        thread = std::this_thread::get_id();
    }

    auto callback() {
        return [this](std::error_code with, Hold result) { (*this)(with, std::move(result)); };
    }

    bool came() {
        const std::lock_guard lock(mutex);
        return times > 0;
    }

    std::mutex mutex;  // guards the other members until it came
    int times = 0;
    std::error_code ec;
    Hold hold;
    std::thread::id thread;
};

}  // namespace redlatch::test
