// SPDX-License-Identifier: MIT
// The library, compiled as the other files see it.
#include "simulation/library.hpp"

#include <redlatch/src.hpp>
