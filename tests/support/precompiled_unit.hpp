// SPDX-License-Identifier: MIT
#pragma once

// Precompiled and read before every unit test: see precompiled.hpp.
#include <doctest/doctest.h>

#include "support/internals.hpp"
#include "support/scripted_transport.hpp"
#include "support/start.hpp"
