// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/library.hpp"
#include "simulation/random.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sim {

// Longer than the life of every mark, and than every lease. A copy that comes later finds no trace of its command.
inline constexpr Nanos beyond_marks = 130 * second;

// Counts over all seeds, by name, the commands that arrived later than that.
class LateArrivals {
public:
    LateArrivals();
    void note(const std::vector<std::string>& words);

    // The commands that change something, of which none came late.
    std::string missing() const;
    std::string summary() const;

private:
    std::map<std::string, std::string, std::less<>> names_;  // by digest
    std::map<std::string, std::uint64_t> counts_;            // by name
};

inline LateArrivals& late_arrivals() {
    static LateArrivals all;
    return all;
}

}  // namespace sim
