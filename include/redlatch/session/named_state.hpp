// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/background_task.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class ReleaseRound;
class Session;

// The local state of one name: all objects of that kind and name in this process share it. Registry keeps it.
class NamedState : public BackgroundTask {
public:
    virtual std::string_view kind() const noexcept = 0;
    virtual const std::string& key() const noexcept = 0;
    virtual Session& session() const noexcept = 0;

    // Ends all holds of this process and sends their releases, which the round counts. Does not wait for replies.
    virtual void release_all(const std::shared_ptr<ReleaseRound>& /* round */) {}

    // Returns true if nothing would be lost with it: no hold, no waiter, no command that is still to be delivered.
    virtual bool is_idle() = 0;

private:
    friend class Registry;

    // Guarded by the registry's mutex.
    std::size_t users_ = 0;
    bool is_registered_ = false;
    std::weak_ptr<void> shared_{};  // what all operations and holds share, as one user
};

// Makes the local state of a name, for objects of one kind.
struct StateMaker {
    std::string_view kind;
    std::shared_ptr<NamedState> (*make)(Session& session, const std::string& key);
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
