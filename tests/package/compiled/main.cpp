// SPDX-License-Identifier: MIT
#include <redlatch/redlatch.hpp>

#include <iostream>

#include "shop.hpp"

int main(int argc, char** argv) {
    if (argc > 1) {
        redlatch::Client redis{argv[1]};
        sell(redis);
    }
    std::cout << redlatch::version() << '\n';
}
