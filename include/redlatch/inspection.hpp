// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

// What inspect() returns: the state of a primitive on the server at one moment, whoever has it, in any language. It may
// have changed before the caller reads it, so it is for logs, metrics and operators, not for decisions. Leases are by
// the server's clock, in milliseconds; milliseconds::max() stands for one that never ends.
namespace redlatch {
inline namespace REDLATCH_ABI {

// One hold of a lock.
struct Holder {
    std::string owner;         // "<client id>:<number>"; of a Mutex the value of the key
    std::string client;        // the client id, see Client::id(); empty if the owner has another form
    std::uint64_t number = 0;  // as Hold::owner(); in Java the id of the thread; 0 if the owner has another form
    int level = 1;             // how many times the owner has acquired it
    std::chrono::milliseconds lease{};  // how long the hold still lasts
    bool shared = false;                // true for a reader of a ReadWriteLock
};

// One waiter in the queue of a FairLock.
struct Queued {
    std::string owner;                       // as of a Holder
    std::string client;                      // likewise
    std::uint64_t number = 0;                // likewise
    std::chrono::milliseconds expires_in{};  // when it is skipped, unless it refreshes its place before
};

// The state of a lock.
struct Inspection {
    std::vector<Holder> holders;        // at most one, except for readers: of these at most 1,000
    std::vector<Queued> waiting;        // of a FairLock only: the first 1,000 places in the order of service, without
                                        // dead waiters. Of other locks the server knows at most which processes queue
    std::optional<std::int64_t> token;  // of a FencedLock only: the last token that anyone got, if there is one
};

// The state of one member of a MultiLock or RedLock.
struct MemberInspection {
    std::string name;       // of the member, as given
    std::error_code error;  // why there is no state: its server did not reply, or refused
    Inspection state;       // empty if there is an error
};

// One acquired permit of a PermitExpirableSemaphore.
struct HeldPermit {
    std::string id;                     // 32 hex digits, for PermitId::parse()
    std::chrono::milliseconds lease{};  // how long it still lasts
};

// The state of a semaphore.
struct SemaphoreInspection {
    bool exists = false;                                  // false until someone has set the number of permits
    std::ptrdiff_t available = 0;                         // as available_permits()
    std::ptrdiff_t acquired = 0;                          // of a PermitExpirableSemaphore only
    std::vector<HeldPermit> permits;                      // likewise: the first 1,000 to expire
    std::optional<std::chrono::milliseconds> expires_in;  // when the key expires, if it does
};

// The state of a count-down latch.
struct LatchInspection {
    bool exists = false;                                  // true while there is a count
    std::ptrdiff_t count = 0;                             // as count()
    std::optional<std::chrono::milliseconds> expires_in;  // when the key expires, if it does
};

// The state of a barrier.
struct BarrierInspection {
    bool exists = false;         // false before the first arrival
    std::uint64_t phase = 0;     // how many phases have begun
    std::ptrdiff_t parties = 0;  // how many have to arrive in this phase
    std::ptrdiff_t arrived = 0;  // how many of them have, without those whose process has died
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
