// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch::bench {

/// A figure over all rounds: the median is quoted, with the smallest and the largest beside it.
struct Figure {
    Figure(double single) : value(single) {}
    Figure(std::vector<double> rounds);

    double value;
    std::optional<double> min = {}, max = {};
};

/// The value below which the given share of the values lies. 0 when there are none.
double quantile(std::vector<double> values, double share);

/// What a line is about, apart from the subject.
struct Setting {
    std::string scenario = {};
    std::string link = {};
    std::string placement = {};  // empty: does not apply
    std::optional<std::size_t> processes = {};
    std::optional<std::size_t> threads = {};  // of each process
    std::optional<std::size_t> waiters = {};  // at any time, over all processes
};

/// Prints one JSON object on a line of stdout.
void print(const Setting& setting, std::string_view subject, std::string_view metric, const Figure& figure,
           std::string_view unit);

}  // namespace redlatch::bench
