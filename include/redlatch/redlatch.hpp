// SPDX-License-Identifier: MIT
#pragma once

// Everything.
#include "redlatch/client.hpp"
#include "redlatch/core/version.hpp"
#include "redlatch/fair_lock.hpp"
#include "redlatch/rlock.hpp"
