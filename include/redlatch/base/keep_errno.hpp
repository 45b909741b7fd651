// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>

namespace redlatch {
inline namespace v0_1 {

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

}  // namespace v0_1
}  // namespace redlatch
