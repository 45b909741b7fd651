// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/keep_errno.hpp"
#include "redlatch/session/running.hpp"
#include "redlatch/session/session.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Gives a client and its primitives the session of the process in which they are used.
//
// After a fork the child gets its own session at its first use, with a new identity, new connections and no holds. The
// parent's session is left alone, because threads that do not exist in the child may hold its mutexes. mutex_ makes one
// thread of the child create the session.
class SessionHandle final : public OperationHost {
public:
    SessionHandle(std::unique_ptr<TransportPort> transport, const ClientOptions& options)
        : session_(new Session(std::move(transport), options)) {}
    SessionHandle(const SessionHandle&) = delete;
    SessionHandle& operator=(const SessionHandle&) = delete;

    ~SessionHandle() override {
        const KeepErrno kept;
        Session* session = session_.load();
        // In a child that never used it there is no session to end. Only descriptors are closed.
        if (session->is_of_this_process())
            delete session;
        else
            session->transport().clone_after_fork();
    }

    Session& session() {
        Session* session = session_.load(std::memory_order_acquire);
        return session->is_of_this_process() ? *session : after_fork();
    }

    // --- for operations ---------------------------------------------------------------------------------------

    void start(bool dispatches) override {
        session().start_background();
        session().completions().start();
        if (dispatches) session().dispatcher().start();
    }
    Continuations& continuations() override { return session().continuations(); }
    std::stop_token operations_end() noexcept override { return session_.load()->operations_end(); }
    Notifier& completions() noexcept override { return session_.load()->completions(); }
    Notifier& dispatcher() noexcept override { return session_.load()->dispatcher(); }

private:
    Session& after_fork() {
        const std::lock_guard lock(mutex_);
        Session* parent = session_.load();
        if (parent->is_of_this_process()) return *parent;
        auto* mine = new Session(parent->transport().clone_after_fork(), parent->options(), parent);
        session_.store(mine, std::memory_order_release);
        return *mine;
    }

    std::mutex mutex_;
    std::atomic<Session*> session_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
