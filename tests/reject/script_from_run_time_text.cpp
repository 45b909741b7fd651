// SPDX-License-Identifier: MIT
// expect: is not a constant expression
// A script is a constant, so no text of a program gets into Lua.
#include <redlatch/redlatch.hpp>

#include <string>

redlatch::detail::ScriptText make(const std::string& text) { return redlatch::detail::ScriptText{text.c_str()}; }
