// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_access.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/losses.hpp"
#include "redlatch/session/running.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/session/timers.hpp"
#include "redlatch/transport/transport.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns how long a server has been running according to its INFO; nothing if INFO does not contain it.
inline std::optional<std::chrono::seconds> read_uptime(std::string_view info) {
    constexpr std::string_view field = "uptime_in_seconds:";
    const std::size_t at = info.find(field);
    if (at == std::string_view::npos) return std::nullopt;
    std::int64_t seconds = 0;
    const char* const first = info.data() + at + field.size();
    const auto [end, error] = std::from_chars(first, info.data() + info.size(), seconds);
    if (error != std::errc{} || end == first) return std::nullopt;
    // The server's clock may have been set back since its start. Then it counts as just started.
    return std::chrono::seconds(std::max<std::int64_t>(seconds, 0));
}

// One member of a lock over several, and its client.
class QuorumMember {
public:
    virtual ~QuorumMember() = default;

    virtual const std::string& name() const = 0;
    virtual const std::string& key() const = 0;
    virtual const void* lock() const = 0;    // equal for two objects of one lock
    virtual const void* client() const = 0;  // equal for two locks of one client

    // The request must outlive the task.
    virtual Task<bool> acquire(const LockRequest& request) = 0;
    virtual void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                                   std::function<bool(const TryAnswer&)> tell, Receiver receiver) = 0;
    // If it throws, the hold is still released, in the background or by the end of its lease.
    virtual void release_in_background(const WhichHold& which, const std::function<void(std::error_code)>& done,
                                       Receiver receiver) = 0;
    virtual void attend() = 0;
    virtual void stop_attending() = 0;
    virtual HeldPart part(OwnerNumber owner) = 0;
    virtual bool force_release(Instant limit) = 0;
    virtual bool ask_locked(Instant limit) = 0;
    virtual int ask_hold_count(OwnerNumber owner, Instant limit) = 0;
    virtual std::optional<Milliseconds> ask_remaining_lease(Instant limit) = 0;
    virtual Inspection ask_inspection(Instant limit) = 0;

    // Returns how many connections its client has made so far; nothing if its transport does not count them.
    virtual std::optional<std::uint64_t> connections() = 0;
    // Calls `done` with the reply to INFO.
    virtual void ask_info(Completion done) = 0;

    // Access to its options and its client.
    virtual std::shared_ptr<OperationHost> operation_host() = 0;
    virtual const Settings& settings() = 0;
    virtual Timers& timers() = 0;
    virtual void start_background() = 0;
    virtual void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept = 0;
    virtual Losses& losses() = 0;
    virtual void start_losses() = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
