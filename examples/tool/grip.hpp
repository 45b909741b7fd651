// SPDX-License-Identifier: MIT
#pragma once

#include "arguments.hpp"

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <system_error>
#include <variant>

namespace tool {

// What the tool holds: a lock, a permit or the lead.
class Grip {
public:
    Grip() = default;
    explicit Grip(redlatch::Hold hold) : held_(std::move(hold)) {}
    explicit Grip(redlatch::Permits permits) : held_(std::move(permits)) {}
    explicit Grip(redlatch::Term term) : held_(std::move(term)) {}

    explicit operator bool() const {
        return std::visit([](const auto& held) { return static_cast<bool>(held); }, held_);
    }
    std::chrono::steady_clock::time_point valid_until() const {
        return std::visit([](const auto& held) { return held.valid_until(); }, held_);
    }
    std::stop_token lost() const {
        return std::visit([](const auto& held) { return held.lost(); }, held_);
    }

    // Returns the fencing token; 0 if the lock has none.
    std::int64_t token() const;

    // Gives it back and waits for the reply.
    std::error_code release() noexcept;

private:
    std::variant<redlatch::Hold, redlatch::Permits, redlatch::Term> held_{};
};

// The lock, the semaphore or the election that the command line names.
class Grippable {
public:
    // Called on another thread, once: with an error, with nothing if it was not free in time, or with what is held.
    using Done = std::function<void(std::error_code, Grip)>;

    // Throws redlatch::Error. Sends nothing, except that it sets the number of permits if nobody has.
    Grippable(redlatch::Client& client, const Arguments& arguments);

    // Acquires it without waiting here. `stop` cancels.
    void acquire(std::stop_token stop, Done done);

private:
    template <class Lock>
    void acquire_lock(Lock& lock, std::stop_token stop, Done done);

    const Arguments arguments_;
    std::variant<std::monostate, std::unique_ptr<redlatch::FencedLock>, std::unique_ptr<redlatch::FairLock>,
                 std::unique_ptr<redlatch::ReadWriteLock>, std::unique_ptr<redlatch::PermitExpirableSemaphore>,
                 std::unique_ptr<redlatch::LeaderElection>>
        object_{};
};

// Options of a client for this command line.
redlatch::ClientOptions client_options(const Arguments& arguments);

// Returns the code that the tool ends with because of an error.
int code_of(const std::error_code& error) noexcept;

}  // namespace tool
