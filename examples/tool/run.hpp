// SPDX-License-Identifier: MIT
#pragma once

#include "arguments.hpp"

namespace tool {

// run, try and lead: returns the code to end with. Called before the process has other threads. Throws redlatch::Error and
// std::system_error.
int run(const Arguments& arguments);

}  // namespace tool
