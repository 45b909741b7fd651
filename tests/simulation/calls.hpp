// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/simulation.hpp"

#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

// Sets a key as if by hand.
inline void set_key(Simulation& simulation, const std::string& key, std::int64_t number) {
    const std::string text = std::to_string(number);
    const std::vector<std::string_view> words{"SET", key, text};
    simulation.server(0).model().execute(words);
}

// Runs a call. An error that it throws must have a reason.
template <class Call>
bool attempt(Simulation& simulation, Call call) {
    try {
        return call();
    } catch (const redlatch::Error& error) {
        scheduler().trace(std::string("error: ") + error.what());
        if (!simulation.excuses_errors()) scheduler().fail(std::string("a call failed: ") + error.what());
        return false;
    }
}

inline std::stop_token stop_at(Nanos when) {
    std::stop_source source;
    scheduler().at(when, [source, id = scheduler().self().process] {
        if (!scheduler().has_crashed(id)) scheduler().spawn(id, [source]() mutable { source.request_stop(); });
    });
    return source.get_token();
}

inline redlatch::Milliseconds some_ms(Simulation& simulation, Nanos least, Nanos most) {
    return redlatch::Milliseconds(simulation.random().between(least, most));
}

}  // namespace sim
