// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>

namespace redlatch {

// Leaves errno as it was: for what runs where nobody expects a system call, at the end of a guard or of an object.
class KeepErrno {
public:
    KeepErrno() noexcept = default;
    KeepErrno(const KeepErrno&) = delete;
    KeepErrno& operator=(const KeepErrno&) = delete;
    ~KeepErrno() { errno = before_; }

private:
    const int before_ = errno;
};

}  // namespace redlatch
