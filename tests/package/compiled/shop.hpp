// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/fwd.hpp>

bool sell(redlatch::Client& redis);
