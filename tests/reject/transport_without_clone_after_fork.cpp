// SPDX-License-Identifier: MIT
// expect: a transport needs: T clone_after_fork
#include <redlatch/redlatch.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct Incomplete {
    redlatch::Reply call(const redlatch::Command&, redlatch::Instant) { return {}; }
    std::vector<redlatch::Reply> call_all(std::span<const redlatch::Command>, redlatch::Instant) { return {}; }
    void post(const redlatch::Command&, redlatch::Completion) {}
    void subscribe(const std::string&) {}
    void unsubscribe(const std::string&) {}
    void run(redlatch::Listener&, redlatch::Instant) {}
    void wake() {}
    std::uint32_t route(std::string_view) { return 0; }
    std::string_view publish_command() { return {}; }
};

void use() { redlatch::Client client(Incomplete{}); }
