// SPDX-License-Identifier: MIT
// ctest: timeout=300 long
// The command line with Sentinel: it finds the master, and the next one after a failover.
#include "tool/tool_kit.hpp"

#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::test;

TEST_CASE("run, ls, who and lead work with Sentinel, before and after a failover") {
    Sentinels3 servers;
    Tool tool;
    tool.environment = {{"REDLATCH_URL", servers.url()}};
    std::vector<std::string> words{"lead", "--lock", "job", "--lease", in_ms(tool_lease), "--"};
    const auto witness = tool.new_witness(words, "obey");
    ToolRun leader = tool.start(words);
    REQUIRE(has_begun(*witness));
    CHECK(tool.run({"ls"}).second.starts_with("job\tfenced\t"));
    CHECK(tool.run({"who", "job"}).second.starts_with("holder "));
    CHECK(tool.run({"try", "--lock", "job", "--", "true"}).first == 75);
    REQUIRE(servers.confirmed_by(1));

    const std::int64_t killed_at = boot_time();
    const std::int64_t first_term = witness->begun;
    const std::int64_t first_token = witness->token;
    servers.master().kill();
    REQUIRE(servers.is_master_by(servers.replica(), 60s));
    // The replica has the hold. If the failover took longer than the lease, the command was ended, and begins anew.
    REQUIRE(eventually([&] { return RawRedis{servers.replica()}.exists("job") && is_alive(*witness); }, 60s));
    if (witness->begun != first_term) {
        CHECK(witness->token > first_token);
        CHECK(witness->begun > killed_at);
    }
    REQUIRE(eventually([&] { return tool.run({"who", "job"}).second.starts_with("holder "); }, 60s));
    leader.process.signal(SIGTERM);
    CHECK(leader.process.wait(30s));
    CHECK(eventually([&] { return !RawRedis{servers.replica()}.exists("job"); }, 30s));
    CHECK(tool.run({"run", "--lock", "job", "--", "sh", "-c", "test $REDLATCH_TOKEN -gt 0"}).first == 0);
}
