// SPDX-License-Identifier: MIT
#include <redlatch/redlatch.hpp>

#include <iostream>

#if __has_include(<hiredis/hiredis.h>) || __has_include(<hiredis/read.h>)
#error "hiredis is here: this shows nothing"
#endif

int main() { std::cout << redlatch::version() << '\n'; }
