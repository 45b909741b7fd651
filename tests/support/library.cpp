// SPDX-License-Identifier: MIT
// The library, compiled once for all tests on the compiled form.
#include <redlatch/src.hpp>
