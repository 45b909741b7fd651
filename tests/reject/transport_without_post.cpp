// SPDX-License-Identifier: MIT
// expect: a transport needs: void post
#include <redlatch/redlatch.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct Incomplete {
    redlatch::Reply call(const redlatch::Command&, redlatch::Instant) { return {}; }
    std::vector<redlatch::Reply> call_all(std::span<const redlatch::Command>, redlatch::Instant) { return {}; }
    void subscribe(const std::string&) {}
    void unsubscribe(const std::string&) {}
    void run(redlatch::Listener&, redlatch::Instant) {}
    void wake() {}
    std::uint32_t route(std::string_view) { return 0; }
    std::string_view publish_command() { return {}; }
    Incomplete clone_after_fork() { return {}; }
};

void use() { redlatch::Client client(Incomplete{}); }
