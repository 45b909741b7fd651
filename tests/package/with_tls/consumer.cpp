// SPDX-License-Identifier: MIT
// What a user's program with TLS looks like to the linker.
#include <redlatch/base/version.hpp>
#include <redlatch/tls.hpp>

#include <iostream>

int main() {
    if (redlatch::tls()) std::cout << redlatch::version() << '\n';
}
