// SPDX-License-Identifier: MIT
#include <vector>

#include "table.hpp"

namespace redlatch::test {
std::vector<Row> permit_rows() { return {}; }
std::vector<Row> latch_rows() { return {}; }
}  // namespace redlatch::test
