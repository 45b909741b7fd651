// SPDX-License-Identifier: MIT
#pragma once

// Precompiled and read before every test source, so that a test compiles in a third of the time.
#include <doctest/doctest.h>

#include "internals.hpp"
#include "scripted_transport.hpp"
#include "start.hpp"
