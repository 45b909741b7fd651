// SPDX-License-Identifier: MIT
// expect: no matching function|no known conversion
#include <redlatch/redlatch.hpp>

redlatch::Lease lease() { return redlatch::Lease(5000); }
