// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/protocol/permit_id.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// The semaphore that permits belong to, as the objects that hold them see it. Any thread may call anything.
class PermitsKeeper {
public:
    virtual ~PermitsKeeper() = default;

    // Returns false in a child that was forked since. Then nothing else may be called.
    virtual bool is_of_this_process() const noexcept = 0;

    // Returns true for the keeper of another object of the same semaphore.
    virtual bool is_same(const PermitsKeeper& other) const noexcept = 0;

    // Both give back permits: the first waits for the reply, the second does not, and without memory leaves permits with
    // leases to the end of these.
    virtual std::error_code give_back(std::ptrdiff_t n, const std::vector<PermitId>& ids) noexcept = 0;
    virtual void give_back_later(std::ptrdiff_t n, std::vector<PermitId> ids) noexcept = 0;
};

struct PermitsAccess;

}  // namespace detail

// Holds permits of a Semaphore or a PermitExpirableSemaphore for whoever has the object: it can be moved into another
// thread, a task or a container. The destructor gives them back. It keeps alive what it needs, so it may outlive the
// semaphore and the client. Movable, not copyable. Different threads may use different objects at once; one object needs
// the care of a std::unique_ptr.
//
// After a fork the child holds nothing: there its copies do nothing.
class [[nodiscard]] Permits {
public:
    // Holds nothing.
    Permits() noexcept = default;

    Permits(Permits&& other) noexcept
        : keeper_(std::move(other.keeper_)), count_(std::exchange(other.count_, 0)), ids_(std::move(other.ids_)) {}
    Permits& operator=(Permits&& other) noexcept {
        Permits old(std::move(*this));
        keeper_ = std::move(other.keeper_);
        count_ = std::exchange(other.count_, 0);
        ids_ = std::move(other.ids_);
        return *this;
    }

    // Gives the permits back without waiting for the server, and never throws. Preserves errno.
    ~Permits();

    explicit operator bool() const noexcept { return count_ > 0; }

    // Returns how many permits it holds.
    std::ptrdiff_t count() const noexcept { return count_; }

    // Returns the ids of permits of a PermitExpirableSemaphore; those of a Semaphore have none.
    const std::vector<PermitId>& ids() const noexcept { return ids_; }

    // Moves n of the permits into an object of their own. Sends nothing. Throws Error(errc::invalid_argument) if n is not
    // from 0 to count().
    [[nodiscard]] Permits split(std::ptrdiff_t n);

    // Takes over the permits of the other object. Sends nothing. Throws Error(errc::invalid_argument) if they belong to
    // another semaphore.
    void merge(Permits&& other);

    // Gives the permits back and waits for the reply: one round trip. Afterwards it holds nothing, whatever the outcome:
    // unknown_permit if the lease of one has ended, unreachable if no server answered in time (the background goes on
    // for a while), not_owner if it held nothing. Preserves errno.
    std::error_code release() noexcept;

private:
    friend struct detail::PermitsAccess;

    std::shared_ptr<detail::PermitsKeeper> keeper_{};
    std::ptrdiff_t count_ = 0;
    std::vector<PermitId> ids_{};
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/semaphore/permits.ipp"
#endif
