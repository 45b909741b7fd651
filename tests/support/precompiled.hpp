// SPDX-License-Identifier: MIT
#pragma once

// Precompiled and read before every test source, so that a test compiles in a third of the time. It has what most tests
// need, and no more: g++ instantiates for each source the templates that any function in it uses. The unit tests have
// one of their own, precompiled_unit.hpp.
#include <doctest/doctest.h>

#include "support/protocols.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"
