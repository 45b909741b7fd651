// SPDX-License-Identifier: MIT
// What two clients contend for in a run of pairs: one of them holds it in two parts, the other one wants it as a whole.
#pragma once

#include "simulation/library.hpp"
#include "simulation/server.hpp"

#include <array>
#include <memory>
#include <stop_token>
#include <string_view>
#include <vector>

namespace sim {

using Client = redlatch::Client;

// A reentrant lock, held twice.
template <class Lock>
class TwoLevels {
public:
    using Result = redlatch::Hold;
    static constexpr bool ends_with_its_objects = false;

    TwoLevels(Server& server, Client& holder, Client& waiter)
        : server_(server), held_(holder, "lock"), wanted_(std::make_unique<Lock>(waiter, "lock")) {}

    void take() {
        parts_[0] = held_.hold();
        parts_[1] = parts_[0].again();
    }
    void give_back(std::size_t part) { static_cast<void>(parts_[part].unlock()); }

    redlatch::Operation<Result> acquire(std::stop_token stop) { return wanted_->async_lock(std::move(stop)); }
    void leave() { wanted_.reset(); }

    bool is_taken() { return server_.keyspace().exists("lock"); }
    bool is_free() { return server_.keyspace().keys().empty(); }

private:
    Server& server_;
    Lock held_;
    std::unique_ptr<Lock> wanted_;
    std::array<Result, 2> parts_;
};

// A writer that waits for two readers.
class Writer {
public:
    using Result = redlatch::Hold;
    static constexpr bool ends_with_its_objects = false;

    Writer(Server& server, Client& holder, Client& waiter)
        : server_(server), held_(holder, "rw"), wanted_(std::make_unique<redlatch::ReadWriteLock>(waiter, "rw")) {}

    void take() {
        for (Result& part : parts_) part = held_.read_lock().hold();
    }
    void give_back(std::size_t part) { static_cast<void>(parts_[part].unlock()); }

    redlatch::Operation<Result> acquire(std::stop_token stop) {
        return wanted_->write_lock().async_lock(std::move(stop));
    }
    void leave() { wanted_.reset(); }

    bool is_taken() { return server_.keyspace().exists("rw"); }
    bool is_free() { return server_.keyspace().keys().empty(); }

private:
    Server& server_;
    redlatch::ReadWriteLock held_;
    std::unique_ptr<redlatch::ReadWriteLock> wanted_;
    std::array<Result, 2> parts_;
};

// A MultiLock that waits for both of its members.
class BothMembers {
public:
    using Result = redlatch::Hold;
    static constexpr bool ends_with_its_objects = true;

    BothMembers(Server& server, Client& holder, Client& waiter)
        : server_(server), held_a_(holder, "a"), held_b_(holder, "b"), wanted_(std::make_unique<Wanted>(waiter)) {}

    void take() {
        parts_[0] = held_a_.hold();
        parts_[1] = held_b_.hold();
    }
    void give_back(std::size_t part) { static_cast<void>(parts_[part].unlock()); }

    redlatch::Operation<Result> acquire(std::stop_token stop) { return wanted_->both.async_lock(std::move(stop)); }
    void leave() { wanted_.reset(); }

    bool is_taken() { return server_.keyspace().exists("a") && server_.keyspace().exists("b"); }
    bool is_free() { return server_.keyspace().keys().empty(); }

private:
    struct Wanted {
        explicit Wanted(Client& waiter) : a(waiter, "a"), b(waiter, "b"), both(a, b) {}
        redlatch::RLock a, b;
        redlatch::MultiLock both;
    };

    Server& server_;
    redlatch::RLock held_a_, held_b_;
    std::unique_ptr<Wanted> wanted_;
    std::array<Result, 2> parts_;
};

// All of two permits.
class BothPermits {
public:
    using Result = redlatch::Permits;
    static constexpr bool ends_with_its_objects = false;

    BothPermits(Server& server, Client& holder, Client& waiter)
        : server_(server),
          held_(holder, "semaphore"),
          wanted_(std::make_unique<redlatch::Semaphore>(waiter, "semaphore")) {
        server_.model().execute(std::vector<std::string_view>{"SET", "semaphore", "2"});
    }

    void take() {
        for (Result& part : parts_) part = held_.hold();
    }
    void give_back(std::size_t part) { static_cast<void>(parts_[part].release()); }

    redlatch::Operation<Result> acquire(std::stop_token stop) { return wanted_->async_acquire(2, std::move(stop)); }
    void leave() { wanted_.reset(); }

    bool is_taken() { return left() == "0"; }
    // The marks of requests live for a while.
    bool is_free() { return left() == "2"; }

private:
    std::string left() { return server_.model().execute(std::vector<std::string_view>{"GET", "semaphore"}).text; }

    Server& server_;
    redlatch::Semaphore held_;
    std::unique_ptr<redlatch::Semaphore> wanted_;
    std::array<Result, 2> parts_;
};

}  // namespace sim
