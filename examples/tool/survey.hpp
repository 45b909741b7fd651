// SPDX-License-Identifier: MIT
#pragma once

#include "arguments.hpp"

namespace tool {

// ls, who, unlock and top: each returns the code to end with, and throws redlatch::Error.
int list(const Arguments& arguments);
int who(const Arguments& arguments);
int unlock(const Arguments& arguments);
int top(const Arguments& arguments);

}  // namespace tool
