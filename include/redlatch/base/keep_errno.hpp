// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <cerrno>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Restores errno at the end of its scope. For code that runs where callers expect no system call, such as the end of a
// guard or of an object.
class KeepErrno {
public:
    KeepErrno() noexcept = default;
    KeepErrno(const KeepErrno&) = delete;
    KeepErrno& operator=(const KeepErrno&) = delete;
    ~KeepErrno() { errno = before_; }

private:
    const int before_ = errno;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
