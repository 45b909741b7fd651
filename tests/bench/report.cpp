// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <utility>

namespace redlatch::bench {

namespace {

std::vector<Line>& all_lines() {
    static std::vector<Line> lines;
    return lines;
}

// Names are our own words, so they need no escapes.
std::string in_quotes(std::string_view word) { return '"' + std::string{word} + '"'; }

}  // namespace

Figure::Figure(std::vector<double> rounds) : value(quantile(rounds, 0.5)) {
    if (rounds.size() < 2) return;
    const auto [least, most] = std::minmax_element(rounds.begin(), rounds.end());
    min = *least;
    max = *most;
}

std::string in_json(double number) {
    if (!std::isfinite(number)) return "null";  // JSON has no infinity
    char digits[64];
    std::snprintf(digits, sizeof digits, std::abs(number) < 1000 ? "%.4g" : "%.0f", number);
    return digits;
}

const std::vector<Line>& printed() { return all_lines(); }

double quantile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    const auto index = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
    return values[index];
}

void print(const Setting& setting, std::string_view subject, std::string_view metric, const Figure& figure,
           std::string_view unit) {
    std::string line = "{\"scenario\":" + in_quotes(setting.scenario) + ",\"link\":" + in_quotes(setting.link);
    if (!setting.placement.empty()) line += ",\"placement\":" + in_quotes(setting.placement);
    if (setting.processes) line += ",\"processes\":" + std::to_string(*setting.processes);
    if (setting.threads) line += ",\"threads\":" + std::to_string(*setting.threads);
    if (setting.waiters) line += ",\"waiters\":" + std::to_string(*setting.waiters);
    if (setting.coroutines) line += ",\"coroutines\":" + std::to_string(*setting.coroutines);
    line += ",\"subject\":" + in_quotes(subject) + ",\"metric\":" + in_quotes(metric) +
            ",\"value\":" + in_json(figure.value);
    if (figure.min && figure.max) line += ",\"min\":" + in_json(*figure.min) + ",\"max\":" + in_json(*figure.max);
    line += ",\"unit\":" + in_quotes(unit) + "}";
    std::cout << line << std::endl;
    all_lines().push_back({setting, std::string{subject}, std::string{metric}, figure, std::string{unit}});
}

}  // namespace redlatch::bench
