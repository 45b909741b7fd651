// SPDX-License-Identifier: MIT
#pragma once

// GCC 10 calls its C++20 201709.
#if __cplusplus <= 201703L
#error "redlatch needs C++20: compile with -std=c++20 or newer"
#endif

// Where the definitions are compiled:
//   by default         in every file that includes the library: a header includes its definitions (*.ipp)
//   REDLATCH_COMPILED  once, in the one file that includes redlatch/src.hpp. All files of a program define the macro,
//                      as those do that link to the CMake target redlatch::compiled
//
// The inline namespace that contains everything names the version and the form, so that two of them in one program have
// different symbols: what one passes to the other does not link.
#ifdef REDLATCH_COMPILED
#define REDLATCH_INLINE
#define REDLATCH_ABI v0_2_compiled
#else
#define REDLATCH_INLINE inline
#define REDLATCH_ABI v0_2
#endif
