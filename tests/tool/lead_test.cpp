// SPDX-License-Identifier: MIT
// ctest: timeout=300 long
// `redlatch lead`: one leader at a time, another one when it goes, and the command again when it ends.
#include "tool/tool_kit.hpp"

using namespace redlatch;
using namespace redlatch::test;

namespace {

struct ToolCandidate {
    ToolCandidate(Tool& tool, const std::string& manner, std::chrono::milliseconds lifetime = 0ms)
        : words{"lead", "--lock", "job", "--as", "the " + manner + " one", "--lease", in_ms(tool_lease), "--"},
          witness(tool.new_witness(words, manner, lifetime)),
          run(tool.start(words)) {}

    std::vector<std::string> words;
    SharedMemory<Witness> witness;
    ToolRun run;
};

}  // namespace

TEST_CASE("the leader is killed: another one leads, after the command of the first has ended") {
    Tool tool;
    ToolCandidate first(tool, "stubborn");
    REQUIRE(has_begun(*first.witness));
    ToolCandidate second(tool, "stubborn");
    REQUIRE(eventually([&] { return !tool.redis.pubsub_channels().empty(); }, 20s));
    CHECK(second.witness->begun == 0);
    first.run.process.kill();
    REQUIRE(has_begun(*second.witness));
    CHECK(first.witness->last_alive < second.witness->begun);
    CHECK(first.witness->token < second.witness->token);
    CHECK_FALSE(is_alive(*first.witness));
}

TEST_CASE(
    "the leader is frozen: another one leads, after the command of the first has ended; the first campaigns again") {
    // On a busy machine the guardian may be late: only it can act.
    once_in_time([] {
        Tool tool;
        ToolCandidate first(tool, "stubborn");
        REQUIRE(has_begun(*first.witness));
        ToolCandidate second(tool, "obey");
        first.run.process.stop();
        REQUIRE(has_begun(*second.witness));
        const bool in_time = first.witness->last_alive < second.witness->begun;
        const std::int64_t first_term = first.witness->begun;
        first.run.process.cont();
        second.run.process.signal(SIGTERM);
        const auto status = second.run.process.wait(30s);
        REQUIRE(status);
        CHECK(status->code == 3);
        CHECK(eventually([&] { return first.witness->begun != first_term; }, 30s));
        CHECK(first.witness->begun > second.witness->last_alive);
        CHECK(first.witness->token > second.witness->token);
        return in_time;
    });
}

TEST_CASE("a command that ends is run again, with a new token each time") {
    Tool tool;
    ToolCandidate only(tool, "obey", 50ms);
    REQUIRE(has_begun(*only.witness));
    std::int64_t begun = only.witness->begun, token = only.witness->token;
    for (int i = 0; i < 2; ++i) {
        REQUIRE(eventually([&] { return only.witness->begun != begun; }, 30s));
        CHECK(only.witness->token > token);
        begun = only.witness->begun;
        token = only.witness->token;
    }
    only.run.process.signal(SIGTERM);
    CHECK(only.run.process.wait(30s));
    CHECK(tool.is_free());
}

TEST_CASE("a command that is not there ends the campaign") {
    Tool tool;
    CHECK(tool.run({"lead", "--lock", "job", "--", "/no/such/program"}).first == 127);
    CHECK_FALSE(tool.redis.exists("job"));
}

TEST_CASE("observers and who know the leader by its name and its token") {
    Tool tool;
    Client client{tool.server.url()};
    LeaderElection election{client, "job"};
    std::optional<Leader> seen;
    ToolCandidate only(tool, "obey");
    REQUIRE(has_begun(*only.witness));
    while (!seen || seen->name.empty()) REQUIRE(election.wait_change_for(30s, seen));
    CHECK(seen->name == "the obey one");
    CHECK(seen->token == only.witness->token);
    CHECK(tool.run({"who", "job"}).second.find("leader the obey one\n") != std::string::npos);
    only.run.process.signal(SIGTERM);
    REQUIRE(election.wait_change_for(30s, seen));
    CHECK_FALSE(seen);
    CHECK(only.run.process.wait(30s));
}

TEST_CASE("without a name of its own the leader has that of its host and process") {
    Tool tool;
    Client client{tool.server.url()};
    LeaderElection election{client, "job"};
    std::vector<std::string> words{"lead", "--lock", "job", "--"};
    const auto witness = tool.new_witness(words, "obey");
    ToolRun run = tool.start(words);
    REQUIRE(has_begun(*witness));
    std::optional<Leader> seen;
    while (!seen || seen->name.empty()) REQUIRE(election.wait_change_for(30s, seen));
    CHECK(seen->name.ends_with(":" + std::to_string(run.process.pid())));
    CHECK(seen->name.size() > std::to_string(run.process.pid()).size() + 1);
    run.process.signal(SIGTERM);
    CHECK(run.process.wait(30s));
}
