// SPDX-License-Identifier: MIT
// ctest: timeout=300
// The command line on a cluster: a lock of any node, and a list of what all nodes hold.
#include "tool/tool_kit.hpp"

#include "support/cluster_servers.hpp"

#include <algorithm>
#include <memory>
#include <set>

using namespace redlatch;
using namespace redlatch::test;

TEST_CASE("run, ls, who and unlock work on a cluster, whichever node has the lock") {
    ClusterServers servers;
    Tool tool;
    Client client{servers.url()};
    std::vector<std::unique_ptr<RLock>> locks;
    std::set<int> slots;
    for (int i = 0; i < 12; ++i) {
        locks.push_back(std::make_unique<RLock>(client, "job" + std::to_string(i)));
        locks.back()->lock();
        slots.insert(servers.slot_of("job" + std::to_string(i)) / (16384 / 3 + 1));
    }
    REQUIRE(slots.size() > 1);  // not all on one node
    const std::vector<std::string> url{"--url", servers.url()};
    const auto run = [&](std::vector<std::string> words) {
        words.insert(words.begin(), url.begin(), url.end());
        return tool.run(words);
    };
    const auto [code, text] = run({"ls", "job*"});
    CHECK(code == 0);
    CHECK(std::count(text.begin(), text.end(), '\n') == 12);
    for (int i = 0; i < 12; ++i) {
        const std::string name = "job" + std::to_string(i);
        CAPTURE(name);
        CHECK(text.find(name + "\tlock\t") != std::string::npos);
        CHECK(run({"try", "--lock", name, "--", "true"}).first == 75);
        CHECK(run({"who", name}).second.starts_with("holder " + client.id()));
        CHECK(run({"unlock", "--force", name}).first == 0);
        CHECK(run({"run", "--lock", name, "--", "sh", "-c", "test $REDLATCH_TOKEN -gt 0"}).first == 0);
    }
    CHECK(run({"ls"}).second.empty());
}
