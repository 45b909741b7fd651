// SPDX-License-Identifier: MIT
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <hiredis/hiredis.h>

#include <iostream>
#include <string_view>

#include "process.hpp"

int main(int argc, char** argv) {
    if (argc == 2 && std::string_view{argv[1]} == "--hiredis") {  // prints the version that the tests are built with
        std::cout << HIREDIS_MAJOR << '.' << HIREDIS_MINOR << '.' << HIREDIS_PATCH << '\n';
        return 0;
    }
    return redlatch::test::role_main(argc, argv, [](int count, char** values) {
        return doctest::Context{count, values}.run();
    });
}
