// SPDX-License-Identifier: MIT
// The command line over TLS: it trusts what the system trusts.
#include "tool/tool_kit.hpp"

#include "support/tls_server.hpp"

using namespace redlatch;
using namespace redlatch::test;

TEST_CASE("run, ls, who and unlock work over TLS, with a server whom the system trusts") {
    Authority authority;
    const RedisServer server{by_tls(authority.issue("server"), authority)};
    RawRedis redis{server};
    Tool tool;
    tool.environment = {{"REDLATCH_URL", tls_url(server.port())}, {"SSL_CERT_FILE", authority.file()}};
    std::vector<std::string> words{"run", "--lock", "job", "--"};
    const auto witness = tool.new_witness(words, "obey");
    ToolRun run = tool.start(words);
    REQUIRE(has_begun(*witness));
    CHECK(witness->token > 0);
    CHECK(redis.exists("job"));
    CHECK(tool.run({"ls"}).second.starts_with("job\tfenced\t"));
    CHECK(tool.run({"who", "job"}).second.starts_with("holder "));
    CHECK(tool.run({"try", "--lock", "job", "--", "true"}).first == 75);
    CHECK(tool.run({"unlock", "--force", "job"}).first == 0);
    const auto status = run.process.wait(30s);
    REQUIRE(status);
    CHECK(status->code == 76);
    CHECK_FALSE(is_alive(*witness));
}

TEST_CASE("a server whom the system does not trust is not used, and the tool says why") {
    Authority authority, trusted;
    const RedisServer server{by_tls(authority.issue("server"), authority)};
    Tool tool;
    tool.environment = {{"REDLATCH_URL", tls_url(server.port())}, {"SSL_CERT_FILE", trusted.file()}};
    const auto outcome = tool.run({"try", "--lock", "job", "--", "true"});
    CAPTURE(outcome.second);
    CHECK(outcome.first == 70);
    CHECK(outcome.second.find("cannot verify the certificate") != std::string::npos);
    CHECK(tool.run({"ls"}).first == 70);
    RawRedis redis{server};
    CHECK(redis.keys().empty());
}
