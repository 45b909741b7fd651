// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/semaphore_queue.hpp"
#include "redlatch/semaphore/idempotent_sender.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <memory>
#include <mutex>
#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The state of a semaphore or latch, as its parts see it.
class SynchronizerTask : public NamedState {
public:
    // Called with its mutex after a change that this process made on the server: its waiters may be served now.
    virtual void has_changed() = 0;

    // Called with its mutex: sets the time at which the background serves it.
    virtual void schedule() = 0;
};

// What the parts of one semaphore or latch in this process share.
//
// mutex guards all members except the constant ones, and the parts. It is never held during a command, nor while user
// code runs.
struct SynchronizerCore {
    // `queue`: that on the server; null if there is none.
    SynchronizerCore(SynchronizerTask& state, Session& of, const RequestMarks& of_requests, const SemaphoreQueue* queue)
        : task(state), session(of), marks(of_requests), sender(of, of_requests, queue) {}

    const std::string& key() const noexcept { return marks.key(); }

    // Keeps the state alive, for completions.
    std::shared_ptr<BackgroundTask> keep() { return task.shared_from_this(); }

    // Lets the session drop the state when no one uses it any more. That is not urgent.
    void forget_later() { session.timers().schedule(task, Clock::now() + Milliseconds(1000)); }

    RequestId take_lane() { return lanes.take(session.next_request()); }

    // Returns true if a resend is useless: the request is done or can never succeed.
    static bool is_settled(const Reply& reply) { return classify(reply) == ReplyClass::answered || is_final(reply); }

    SynchronizerTask& task;
    Session& session;
    const RequestMarks& marks;
    const IdempotentSender sender;

    std::mutex mutex;
    RequestLanes lanes;
};

// Constructs the protocol before the core, which refers to it.
template <class Protocol>
struct ProtocolOf {
    template <class... More>
    ProtocolOf(Session& session, const std::string& key, const More&... more)
        : protocol(session.protocol_context(), key, more...) {}

    const SemaphoreQueue* queue() const noexcept {
        if constexpr (requires { protocol.queue(); })
            return &protocol.queue();
        else
            return nullptr;
    }

    Protocol protocol;
};

// The core for those parts that use the protocol.
template <class Protocol>
struct CoreOf : ProtocolOf<Protocol>, SynchronizerCore {
    template <class... More>
    CoreOf(SynchronizerTask& state, Session& of, const std::string& key, const More&... more)
        : ProtocolOf<Protocol>(of, key, more...), SynchronizerCore(state, of, this->protocol.marks(), this->queue()) {}
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
