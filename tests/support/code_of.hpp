// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <system_error>
#include <utility>

namespace redlatch::test {

/// Returns the code of the Error that a call throws, or an empty code if it throws none.
template <class Call>
std::error_code code_of(Call&& call) {
    try {
        std::forward<Call>(call)();
    } catch (const Error& error) {
        return error.code();
    }
    return {};
}

}  // namespace redlatch::test
