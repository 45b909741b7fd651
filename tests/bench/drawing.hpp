// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "report.hpp"

namespace redlatch::bench {

/// Returns an SVG file with a panel for each scenario of the lines, and in it a bar for each ratio. A scenario without
/// ratios has its figures as text.
std::string draw(const std::vector<Line>& lines);

}  // namespace redlatch::bench
