// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

namespace redlatch::fault {

/// As long as it lives, calls of one system function fail, once or several times in a row, as the system lets them
/// fail. One at a time; the calls are those of this whole program, so nothing but the library may be busy meanwhile.
class FailingCalls {
public:
    /// One of those that failing_calls.cpp defines in place of the system's. `skip`: how many calls succeed before.
    /// `error`: errno; for getaddrinfo its own code.
    FailingCalls(std::string function, int error, int skip = 0, int times = 1);
    FailingCalls(const FailingCalls&) = delete;
    FailingCalls& operator=(const FailingCalls&) = delete;
    ~FailingCalls();

    /// How many have failed.
    int struck() const;
};

/// As long as it lives, something happens just before each write().
class BeforeWrite {
public:
    explicit BeforeWrite(std::function<void()> happens);
    BeforeWrite(const BeforeWrite&) = delete;
    BeforeWrite& operator=(const BeforeWrite&) = delete;
    ~BeforeWrite();
};

}  // namespace redlatch::fault
