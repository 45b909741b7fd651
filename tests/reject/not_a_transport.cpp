// SPDX-License-Identifier: MIT
// expect: a transport needs: Reply call
#include <redlatch/redlatch.hpp>

struct Nothing {};

void use() { redlatch::Client client(Nothing{}); }
