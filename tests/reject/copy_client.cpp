// SPDX-License-Identifier: MIT
// expect: use of deleted function|call to deleted constructor
#include <redlatch/redlatch.hpp>

void copy(redlatch::Client& client) { redlatch::Client copied(client); }
