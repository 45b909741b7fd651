// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace sim {

using Nanos = std::int64_t;
inline constexpr Nanos us = 1000;
inline constexpr Nanos ms = 1000 * us;
inline constexpr Nanos second = 1000 * ms;
inline constexpr Nanos forever = INT64_MAX;

// The only source of randomness of a seed (SplitMix64): which thread runs next, how long a message takes, what breaks.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9e37'79b9'7f4a'7c15ULL + 1) {}

    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e37'79b9'7f4a'7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebULL;
        return z ^ (z >> 31);
    }

    std::uint64_t below(std::uint64_t limit) { return next() % limit; }
    Nanos between(Nanos least, Nanos most) {
        return least + static_cast<Nanos>(below(static_cast<std::uint64_t>(most - least) + 1));
    }
    // True `per_mille` times in a thousand.
    bool chance(unsigned per_mille) { return per_mille > 0 && below(1000) < per_mille; }

private:
    std::uint64_t state_;
};

}  // namespace sim
