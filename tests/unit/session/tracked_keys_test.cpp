// SPDX-License-Identifier: MIT
// Who hears that a key has changed, and what stops a client from asking for it.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <memory>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

struct Hearer final : BackgroundTask {
    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void key_changed() override { ++changes; }

    int changes = 0;
};

Reply error(const char* text) { return Reply::of(Reply::Kind::error, text); }

}  // namespace

TEST_CASE("a change of a key is told to those that registered for it, and of an empty key to all") {
    TrackedKeys keys{true};
    const auto a = std::make_shared<Hearer>(), same = std::make_shared<Hearer>(), b = std::make_shared<Hearer>();
    keys.add("a", *a);
    keys.add("a", *same);
    keys.add("b", *b);
    CHECK(keys.count() == 3);
    keys.invalidated("a");
    CHECK(a->changes == 1);
    CHECK(same->changes == 1);
    CHECK(b->changes == 0);
    keys.invalidated("");
    CHECK(a->changes == 2);
    CHECK(b->changes == 1);
    keys.remove("a", *a);
    keys.invalidated("a");
    keys.invalidated("nobody's");
    CHECK(a->changes == 2);
    CHECK(same->changes == 3);
    keys.remove("a", *a);  // not registered any more
    CHECK(keys.count() == 2);
}

TEST_CASE("a task that is being destroyed hears nothing") {
    struct Ending final : BackgroundTask {
        explicit Ending(TrackedKeys& of) : keys(of) {}
        ~Ending() override {
            keys.invalidated("");
            keys.remove("a", *this);
        }
        void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
        void key_changed() override { FAIL_CHECK("it is gone"); }

        TrackedKeys& keys;
    };
    TrackedKeys keys{true};
    auto task = std::make_shared<Ending>(keys);
    keys.add("a", *task);
    task.reset();
    CHECK(keys.count() == 0);
}

TEST_CASE("a refusal by the server or its rights is remembered") {
    CHECK_FALSE(TrackedKeys{false}.are_possible());
    for (const char* text :
         {"NOPERM this user has no permissions to run the 'client|tracking' command",
          "ERR Unknown subcommand or wrong number of arguments for 'TRACKING'. Try CLIENT HELP",
          "ERR unknown command 'CLIENT', with args beginning with: 'TRACKING'", "ERR syntax error"}) {
        TrackedKeys keys{true};
        keys.learn(error(text));
        CHECK_FALSE(keys.are_possible());
    }
}

TEST_CASE("a passing failure is no refusal") {
    TrackedKeys keys{true};
    for (const char* text : {"LOADING Redis is loading the dataset in memory", "MOVED 7000 127.0.0.1:7001",
                             "NOAUTH Authentication required.", "WRONGPASS invalid username-password pair",
                             "BUSY Redis is busy running a script", "ERR max number of clients reached"})
        keys.learn(error(text));
    for (int i = 0; i < 100; ++i) keys.learn(Reply::of(Reply::Kind::not_sent, "not now"));
    CHECK(keys.are_possible());
}

TEST_CASE("a connection that ends again and again without any success counts as a refusal") {
    const auto ended = Reply::of(Reply::Kind::unanswered, "the connection ended");
    TrackedKeys keys{true};
    for (int round = 0; round < 3; ++round) {
        for (unsigned i = 1; i < TrackedKeys::most_failures; ++i) keys.learn(ended);
        keys.learn(Reply::of(60'000));
    }
    CHECK(keys.are_possible());
    for (unsigned i = 0; i < TrackedKeys::most_failures; ++i) keys.learn(ended);
    CHECK_FALSE(keys.are_possible());
}
