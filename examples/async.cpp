// SPDX-License-Identifier: MIT
//
// A lock without a thread that waits: a coroutine, a callback and a future take turns.

#include <redlatch/redlatch.hpp>

#include <coroutine>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <system_error>

namespace {

// The simplest coroutine: it runs until it ends, and nobody waits for it. Those of an event loop work as well.
struct Fiber {
    struct promise_type {
        Fiber get_return_object() { return {}; }
        std::suspend_never initial_suspend() { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

Fiber print_report(redlatch::RLock& printer, std::promise<void>& printed) {
    const redlatch::Hold hold = co_await printer.async_lock();
    std::cout << "the coroutine prints\n";
    printed.set_value();
}

}  // namespace

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::RLock printer{redis, "example:async"};

    std::promise<void> coroutine, callback;
    redlatch::Hold mine = printer.hold();
    print_report(printer, coroutine);
    printer.async_lock().start([&](std::error_code ec, redlatch::Hold hold) {
        if (hold) std::cout << "the callback prints\n";
        if (ec) std::cerr << ec.message() << "\n";
        callback.set_value();
    });
    std::future<redlatch::Hold> later = printer.async_lock().future();
    std::cout << "all of them wait\n";
    mine = redlatch::Hold();

    coroutine.get_future().get();
    callback.get_future().get();
    const redlatch::Hold last = later.get();
    std::cout << "the future has the lock\n";
    return last ? 0 : 1;
}
