// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/transport.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What an in-memory server has for one client: replies to posted commands, and events of its subscriptions. They keep
// their order. Thread-safe; the mutex of the server may be held by callers of add() and wake(), never within run().
class InMemoryConnection {
public:
    using Event = std::function<void(Listener&)>;

    InMemoryConnection() = default;
    InMemoryConnection(const InMemoryConnection&) = delete;
    InMemoryConnection& operator=(const InMemoryConnection&) = delete;

    void add(Event event) { add({nullptr, {}, std::move(event)}); }
    void add(Completion done, Reply reply) { add({std::move(done), std::move(reply), nullptr}); }

    void wake() {
        const std::lock_guard lock(mutex_);
        woken_ = true;
        changed_.notify_all();
    }

    // Transport::run().
    void run(Listener& listener, Instant deadline) {
        std::unique_lock lock(mutex_);
        while (!woken_ && items_.empty() && Clock::now() < deadline) wait_on(changed_, lock, deadline);
        woken_ = false;
        while (!items_.empty()) deliver(lock, &listener);
    }

    // Completes the posted commands that no run() will complete, because the client ends.
    void end() {
        std::unique_lock lock(mutex_);
        while (!items_.empty()) deliver(lock, nullptr);
    }

private:
    // A completion with its reply, or an event.
    struct Item {
        Completion done;
        Reply reply;
        Event event;
    };

    void add(Item item) {
        const std::lock_guard lock(mutex_);
        items_.push_back(std::move(item));
        changed_.notify_all();
    }

    // Delivers the first item, and destroys it, without the mutex.
    void deliver(std::unique_lock<std::mutex>& lock, Listener* listener) {
        {
            Item item = std::move(items_.front());
            items_.pop_front();
            lock.unlock();
            if (item.done)
                item.done(std::move(item.reply));
            else if (listener)
                item.event(*listener);
        }
        lock.lock();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Item> items_;
    bool woken_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
