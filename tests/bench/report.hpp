// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch::bench {

/// A figure over all rounds: its median, with the smallest and the largest value.
struct Figure {
    Figure(double single) : value(single) {}
    Figure(std::vector<double> rounds);

    double value;
    std::optional<double> min = {}, max = {};
};

/// Returns the value below which the given share of the values lies, or 0 if there are none.
double quantile(std::vector<double> values, double share);

/// The attributes of a line, apart from the subject.
struct Setting {
    std::string scenario = {};
    std::string link = {};
    std::string placement = {};  // empty: does not apply
    std::optional<std::size_t> processes = {};
    std::optional<std::size_t> threads = {};     // in each process
    std::optional<std::size_t> waiters = {};     // at any time, in all processes
    std::optional<std::size_t> coroutines = {};  // on one thread
};

struct Line {
    Setting setting = {};
    std::string subject = {};
    std::string metric = {};
    Figure figure = 0.0;
    std::string unit = {};
};

/// Prints one JSON object on a line of stdout.
void print(const Setting& setting, std::string_view subject, std::string_view metric, const Figure& figure,
           std::string_view unit);

/// Returns all lines so far.
const std::vector<Line>& printed();

/// Returns the number as the lines have it.
std::string in_json(double number);

}  // namespace redlatch::bench
