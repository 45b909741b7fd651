// SPDX-License-Identifier: MIT
// A program that is compiled as C++17 is told what to do.
// standard: c++17
// expect: redlatch needs C\+\+20: compile with -std=c\+\+20 or newer
#include <redlatch/fwd.hpp>

int main() {}
