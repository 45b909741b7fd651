// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

namespace redlatch::fault {

/// Makes calls of one system function fail during its lifetime, once or several times in a row, in the way in which the
/// system reports errors. Only one may live at a time. It affects the whole program, so nothing but the library may be
/// busy meanwhile.
class FailingCalls {
public:
    /// `function` is one of those that failing_calls.cpp defines in place of the system's. `skip` is the number of
    /// calls that succeed before. `error` is an errno; for getaddrinfo it is that function's own code.
    FailingCalls(std::string function, int error, int skip = 0, int times = 1);
    FailingCalls(const FailingCalls&) = delete;
    FailingCalls& operator=(const FailingCalls&) = delete;
    ~FailingCalls();

    /// Returns how many calls have failed.
    int struck() const;
};

/// Runs a function just before each write() during its lifetime.
class BeforeWrite {
public:
    explicit BeforeWrite(std::function<void()> happens);
    BeforeWrite(const BeforeWrite&) = delete;
    BeforeWrite& operator=(const BeforeWrite&) = delete;
    ~BeforeWrite();
};

}  // namespace redlatch::fault
