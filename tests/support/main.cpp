// SPDX-License-Identifier: MIT
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "process.hpp"

int main(int argc, char** argv) {
    return redlatch::test::role_main(argc, argv, [](int count, char** values) {
        return doctest::Context{count, values}.run();
    });
}
