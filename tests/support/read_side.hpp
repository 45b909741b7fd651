// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <string>
#include <system_error>

namespace redlatch::test {

/// The read side of a ReadWriteLock, as a lock.
class ReadSide {
public:
    ReadSide(Client& client, const std::string& name) : lock_(client, name) {}

    void lock() { lock_.lock_shared(); }
    void unlock() { lock_.unlock_shared(); }
    void unlock(std::error_code& ec) { lock_.unlock_shared(ec); }
    auto valid_until() { return lock_.read_lock().valid_until(); }

private:
    ReadWriteLock lock_;
};

}  // namespace redlatch::test
