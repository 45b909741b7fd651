// SPDX-License-Identifier: MIT
// SlotMap: which node serves which slot, which nodes are known, and what a forked child finds.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

const HostPort a{"10.0.0.1", 7000}, b{"10.0.0.2", 7000}, c{"10.0.0.3", 7000}, stranger{"10.0.0.9", 7000};

struct Node : SlotMapNode {
    Node(const HostPort& where, const std::function<void()>& at_end) : SlotMapNode(where), ends(at_end) {}
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node() {
        if (ends) ends();
    }

    std::function<void()> ends;
};

using Map = SlotMap<Node>;

// A map of a cluster whose URL names one node.
struct Fixture {
    std::function<void()> at_end;
    int made = 0;
    Map map{[this](const HostPort& where) {
        ++made;
        return std::make_shared<Node>(where, at_end);
    }};

    Fixture() { map.add_seed(a); }

    Node& node(const HostPort& endpoint) { return *map.known_node(endpoint); }
    Map::Nodes learn(const std::vector<SlotRange>& ranges) { return map.learn(ranges); }
    void drop_all() {
        map.drop_nodes([](const auto&) { return true; });
    }
};

const std::vector<SlotRange> halves{{0, 8191, a}, {8192, 16383, b}};

}  // namespace

TEST_CASE("before the first list, only the nodes of the URL are known, and no slot has an owner") {
    Fixture f;
    CHECK(f.map.is_empty());
    CHECK(f.map.nodes().size() == 1);
    CHECK(f.map.known_node(a));
    CHECK_FALSE(f.map.known_node(b));
    CHECK_FALSE(f.map.owner_of(0));
    CHECK_FALSE(f.map.any_owner());
    f.map.give_slot(0, f.node(a));
    CHECK(f.map.is_empty());
    CHECK(f.map.changes() == 0);
}

TEST_CASE("a list of slots names the owners, and makes a node known once") {
    Fixture f;
    CHECK(f.learn(halves).empty());
    CHECK(f.made == 2);
    CHECK(f.map.owner_of(0) == &f.node(a));
    CHECK(f.map.owner_of(8191) == &f.node(a));
    CHECK(f.map.owner_of(8192) == &f.node(b));
    CHECK(f.map.owner_of(16383) == &f.node(b));
    CHECK(f.map.changes() == 1);
    CHECK(f.map.promotions() == 0);
    const std::uint64_t node_changes = f.map.node_changes();
    CHECK(f.learn(halves).empty());
    CHECK(f.made == 2);
    CHECK(f.map.changes() == 1);
    CHECK(f.map.node_changes() == node_changes);
}

TEST_CASE("slots that the list leaves out have no owner") {
    Fixture f;
    f.learn({{1, 1, a}});
    CHECK_FALSE(f.map.owner_of(0));
    CHECK(f.map.owner_of(1) == &f.node(a));
    CHECK_FALSE(f.map.owner_of(2));
}

TEST_CASE("a node that lost its slots is reported; one that got its first slots counts as promoted") {
    Fixture f;
    f.learn({{0, 8191, a, {c}}, {8192, 16383, b}});
    CHECK_FALSE(f.node(c).serves);
    CHECK(f.node(c).is_listed);
    SUBCASE("a replica takes over") {
        const auto left = f.learn({{0, 8191, c, {a}}, {8192, 16383, b}});
        REQUIRE(left.size() == 1);
        CHECK(left[0]->endpoint == a);
        CHECK(f.map.promotions() == 1);
        CHECK(f.map.owner_of(0) == &f.node(c));
    }
    SUBCASE("slots move from master to master") {
        CHECK(f.learn({{0, 99, b}, {100, 8191, a, {c}}, {8192, 16383, b}}).empty());
        CHECK(f.map.promotions() == 0);
        CHECK(f.map.owner_of(0) == &f.node(b));
        CHECK(f.map.changes() == 2);
    }
}

TEST_CASE("a permanent redirection gives one slot to a known node until the next list") {
    Fixture f;
    f.learn(halves);
    const std::uint64_t node_changes = f.map.node_changes();
    CHECK_FALSE(f.map.known_node(stranger));
    const auto redirect = read_redirect("MOVED 7 10.0.0.2:7000", a);
    REQUIRE(redirect);
    f.map.give_slot(redirect->slot, f.node(redirect->to));
    CHECK(f.map.owner_of(7) == &f.node(b));
    CHECK(f.map.owner_of(8) == &f.node(a));
    CHECK(f.map.changes() == 2);
    f.map.give_slot(7, f.node(b));
    CHECK(f.map.changes() == 2);
    CHECK(f.map.node_changes() == node_changes);  // the nodes serve what they served
    f.learn(halves);
    CHECK(f.map.owner_of(7) == &f.node(a));
}

TEST_CASE("a command without a key goes to any node with slots, preferably not to a silent one") {
    Fixture f;
    f.learn({{0, 8191, b}, {8192, 16383, c}});
    CHECK(f.map.any_owner() == &f.node(b));
    f.node(b).is_silent = true;
    CHECK(f.map.any_owner() == &f.node(c));
    f.node(c).is_silent = true;
    CHECK(f.map.any_owner());
}

TEST_CASE("queries go to a node that answers, then to one with slots, then to the one queried longest ago") {
    Fixture f;
    f.learn({{0, 8191, b}, {8192, 16383, c}});
    f.node(b).queried = 2;
    f.node(c).queried = 1;
    CHECK(f.map.node_to_query()->endpoint == c);
    f.node(b).is_silent = f.node(c).is_silent = true;
    CHECK(f.map.node_to_query()->endpoint == a);
    f.node(a).is_silent = true;
    CHECK(f.map.node_to_query()->endpoint == c);
}

TEST_CASE("a node that is in no list any more is unknown, and is dropped if nothing needs it") {
    Fixture f;
    f.learn(halves);
    f.learn({{0, 16383, c}});
    CHECK_FALSE(f.map.known_node(b));
    CHECK(f.map.known_node(a));  // of the URL
    f.map.drop_nodes([](const auto&) { return false; });
    CHECK(f.map.nodes().size() == 3);
    f.drop_all();
    CHECK(f.map.nodes().size() == 2);
    CHECK(f.map.known_node(a));
    CHECK(f.map.known_node(c));
    f.learn(halves);
    CHECK(f.made == 4);
}

// A forked child visits the nodes to close what it inherited, at whatever instant of a change.
TEST_CASE("a node is out of the list before it ends") {
    Fixture f;
    int ended = 0;
    f.at_end = [&] {
        ++ended;
        for (const auto& node : f.map.nodes()) CHECK((node && (node->endpoint == a || node->endpoint == c)));
        CHECK(f.map.nodes().size() == 2);
    };
    f.learn({{0, 99, b}, {100, 16383, c}});
    f.learn({{0, 16383, c}});
    f.drop_all();
    CHECK(ended == 1);
    for (const auto& node : f.map.nodes()) node->ends = nullptr;
}

TEST_CASE("a child forked while another thread changes the nodes finds a complete list") {
    Fixture f;
    f.learn(halves);
    std::vector<SlotRange> many = halves;
    for (std::uint16_t i = 0; i < 40; ++i) many.push_back({i, i, {"10.0.1.1", static_cast<std::uint16_t>(8000 + i)}});
    std::atomic<bool> stopping{false};
    std::thread changer([&] {
        while (!stopping) {
            f.learn(many);
            f.learn(halves);
            f.drop_all();
        }
    });
    for (int i = 0; i < 200; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            const auto& nodes = f.map.nodes();
            bool complete = nodes.size() >= 2 && nodes[0]->endpoint == a && nodes[1]->endpoint == b;
            for (const auto& node : nodes) complete = complete && node->endpoint.port >= 7000;
            ::_exit(complete ? 0 : 1);
        }
        REQUIRE(child > 0);
        int status = 0;
        CHECK(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    stopping = true;
    changer.join();
    CHECK(f.map.nodes().size() == 2);
}
