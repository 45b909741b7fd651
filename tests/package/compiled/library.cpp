// SPDX-License-Identifier: MIT
#include <redlatch/src.hpp>
