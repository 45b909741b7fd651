// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/keyspace.hpp"

#include <string_view>

namespace sim {

// Runs the library's scripts in Lua 5.1, the version inside Redis, on one of the modelled keyspaces.
redlatch::Reply run_script(Keyspace& keyspace, std::string_view text, Keyspace::Words keys, Keyspace::Words arguments);

}  // namespace sim
