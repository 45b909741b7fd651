// SPDX-License-Identifier: MIT
// A user's program with TLS, to test linking.
#include <redlatch/base/version.hpp>
#include <redlatch/tls.hpp>

#include <iostream>

int main() {
    if (redlatch::tls()) std::cout << redlatch::version() << '\n';
}
