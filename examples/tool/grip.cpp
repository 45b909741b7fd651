// SPDX-License-Identifier: MIT
#include "grip.hpp"

#include <unistd.h>

#ifdef REDLATCH_TOOL_TLS
#include <redlatch/tls.hpp>
#endif

#include <algorithm>
#include <utility>

namespace tool {

std::int64_t Grip::token() const {
    return std::visit(
        [](const auto& held) -> std::int64_t {
            if constexpr (requires { held.token(); }) {
                try {
                    return held ? held.token() : 0;
                } catch (const redlatch::Error&) {  // another kind of lock
                }
            }
            return 0;
        },
        held_);
}

std::error_code Grip::release() noexcept {
    return std::visit(
        [](auto& held) -> std::error_code {
            if constexpr (requires { held.unlock(); })
                return held.unlock();
            else if constexpr (requires { held.resign(); })
                return held.resign();
            else
                return held.release();
        },
        held_);
}

namespace {

// The host and the process, as far as the system tells.
std::string candidate_of_process() {
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    return std::string(host) + ':' + std::to_string(::getpid());
}

}  // namespace

Grippable::Grippable(redlatch::Client& client, const Arguments& arguments) : arguments_(arguments) {
    const std::string& name = arguments.name;
    if (arguments.command == Command::lead) {
        const std::string candidate = arguments.candidate.empty() ? candidate_of_process() : arguments.candidate;
        object_ = std::make_unique<redlatch::LeaderElection>(client, name, candidate);
        return;
    }
    switch (arguments.kind) {
        case Kind::fenced: object_ = std::make_unique<redlatch::FencedLock>(client, name); break;
        case Kind::fair: object_ = std::make_unique<redlatch::FairLock>(client, name); break;
        case Kind::shared:
        case Kind::exclusive: object_ = std::make_unique<redlatch::ReadWriteLock>(client, name); break;
        case Kind::permits: {
            auto semaphore = std::make_unique<redlatch::PermitExpirableSemaphore>(client, name);
            static_cast<void>(semaphore->try_set_permits(arguments.permits));
            object_ = std::move(semaphore);
        }
    }
}

template <class Lock>
void Grippable::acquire_lock(Lock& lock, std::stop_token stop, Done done) {
    const auto completed = [done = std::move(done)](std::error_code ec, redlatch::Hold hold) {
        done(ec, Grip(std::move(hold)));
    };
    const auto with = [&](const auto&... bounds) {
        if (arguments_.command == Command::attempt)
            lock.async_try_lock(bounds...).start(completed);
        else if (arguments_.wait)
            lock.async_try_lock_for(*arguments_.wait, bounds..., stop).start(completed);
        else
            lock.async_lock(bounds..., stop).start(completed);
    };
    using redlatch::Lease;
    if (arguments_.at_least && arguments_.at_most)
        with(Lease::at_least(*arguments_.at_least, Lease::at_most(*arguments_.at_most)));
    else if (arguments_.at_least)
        with(Lease::at_least(*arguments_.at_least));
    else if (arguments_.at_most)
        with(Lease::at_most(*arguments_.at_most));
    else
        with();
}

void Grippable::acquire(std::stop_token stop, Done done) {
    using redlatch::PermitExpirableSemaphore;
    if (auto* election = std::get_if<std::unique_ptr<redlatch::LeaderElection>>(&object_)) {
        (*election)->async_campaign(stop).start(
            [done = std::move(done)](std::error_code ec, redlatch::Term term) { done(ec, Grip(std::move(term))); });
    } else if (auto* semaphore = std::get_if<std::unique_ptr<PermitExpirableSemaphore>>(&object_)) {
        const auto completed = [done = std::move(done)](std::error_code ec, redlatch::Permits permits) {
            done(ec, Grip(std::move(permits)));
        };
        if (arguments_.command == Command::attempt)
            (*semaphore)->async_try_acquire(1).start(completed);
        else if (arguments_.wait)
            (*semaphore)->async_try_acquire_for(*arguments_.wait, 1, stop).start(completed);
        else
            (*semaphore)->async_acquire(1, stop).start(completed);
    } else if (auto* both = std::get_if<std::unique_ptr<redlatch::ReadWriteLock>>(&object_)) {
        if (arguments_.kind == Kind::shared)
            acquire_lock((*both)->read_lock(), std::move(stop), std::move(done));
        else
            acquire_lock((*both)->write_lock(), std::move(stop), std::move(done));
    } else if (auto* fair = std::get_if<std::unique_ptr<redlatch::FairLock>>(&object_)) {
        acquire_lock(**fair, std::move(stop), std::move(done));
    } else {
        acquire_lock(*std::get<std::unique_ptr<redlatch::FencedLock>>(object_), std::move(stop), std::move(done));
    }
}

redlatch::ClientOptions client_options(const Arguments& arguments) {
    redlatch::ClientOptions options;
    options.watchdog_timeout = arguments.lease;
    // A server that does not answer must be asked again before the lease ends, which is short at first if another process
    // handed the lock on.
    options.command_timeout = std::clamp(arguments.lease / 6, Milliseconds(100), Milliseconds(1'000));
    if (arguments.command == Command::attempt || arguments.command == Command::who ||
        arguments.command == Command::unlock)
        options.unreachable_timeout = Milliseconds(5'000);
    options.key_prefix = arguments.prefix;
    options.name = "redlatch";
#ifdef REDLATCH_TOOL_TLS
    options.tls = redlatch::tls({});
#endif
    return options;
}

int code_of(const std::error_code& error) noexcept {
    if (error == redlatch::errc::unreachable || error == redlatch::errc::overloaded) return codes::unreachable;
    if (error == redlatch::errc::hold_lost) return codes::lost;
    if (error == redlatch::errc::invalid_argument) return codes::usage;
    return codes::failed;
}

}  // namespace tool
