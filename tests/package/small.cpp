// SPDX-License-Identifier: MIT
// A program that compiles fast, to test what a package brings along: headers of redlatch, and hiredis to link.
#include <redlatch/base/version.hpp>
#include <redlatch/error.hpp>

#include <hiredis/hiredis.h>

#include <iostream>
#include <system_error>

int main() {
    const std::error_code code = redlatch::errc::not_owner;
    redisReader* reader = redisReaderCreate();
    if (code && reader) std::cout << redlatch::version() << '\n';
    redisReaderFree(reader);
}
