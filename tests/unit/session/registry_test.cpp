// SPDX-License-Identifier: MIT
// Registry: one state per kind and key, kept as long as it has a user or a hold.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

// What happened to the states, in order.
struct Log {
    std::vector<std::string> lines;
    Registry registry;
};

struct Task : BackgroundTask {
    Task(Log& l, std::string k) : log(l), name(std::move(k)) {}
    ~Task() override { log.lines.push_back("destroyed " + name); }

    const std::string& key() const { return name; }
    bool is_idle() const { return idle; }

    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void abandon() noexcept override { log.lines.push_back("abandoned " + name); }
    void on_failover() override { log.lines.push_back("failover " + name); }

    Log& log;
    std::string name;
    bool idle = true;
};

struct Lock final : Task {
    static constexpr std::string_view kind = "lock";
    using Task::Task;
};

struct Latch final : Task {
    static constexpr std::string_view kind = "latch";
    using Task::Task;
};

// Uses the registry in its destructor.
struct Chain final : Task {
    static constexpr std::string_view kind = "chain";
    using Task::Task;
    ~Chain() override {
        Lock& other = log.registry.use<Lock>(log, "other");
        log.registry.leave(other);
    }
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("all users of one kind and key share a state") {
    Log log;
    Lock& first = log.registry.use<Lock>(log, "a");
    CHECK(&log.registry.use<Lock>(log, "a") == &first);
    CHECK(&log.registry.use<Lock>(log, "b") != &first);
    CHECK(static_cast<void*>(&log.registry.use<Latch>(log, "a")) != static_cast<void*>(&first));
}

TEST_CASE("a state goes with its last user") {
    Log log;
    Lock& state = log.registry.use<Lock>(log, "a");
    log.registry.use<Lock>(log, "a");
    log.registry.leave(state);
    CHECK(log.lines.empty());
    log.registry.leave(state);
    CHECK(log.lines == Lines{"destroyed a"});
}

TEST_CASE("a state without users stays while it is not idle") {
    Log log;
    Lock& state = log.registry.use<Lock>(log, "a");
    state.idle = false;
    log.registry.leave(state);
    log.registry.forget_if_unused(state);
    CHECK(log.lines.empty());
    CHECK(&log.registry.use<Lock>(log, "a") == &state);
    log.registry.leave(state);
    state.idle = true;
    log.registry.forget_if_unused(state);
    CHECK(log.lines == Lines{"destroyed a"});
}

TEST_CASE("an idle state with a user is not forgotten") {
    Log log;
    Lock& state = log.registry.use<Lock>(log, "a");
    log.registry.forget_if_unused(state);
    CHECK(log.lines.empty());
    log.registry.leave(state);
}

TEST_CASE("a state that has been replaced leaves its successor alone") {
    Log log;
    Lock stray(log, "a");
    Lock& state = log.registry.use<Lock>(log, "a");
    log.registry.forget_if_unused(stray);
    log.registry.leave(stray);
    CHECK(log.lines.empty());
    CHECK(&log.registry.use<Lock>(log, "a") == &state);
}

TEST_CASE("the destructor of a state runs without the mutex of the registry") {
    Log log;
    Chain& state = log.registry.use<Chain>(log, "a");
    log.registry.leave(state);
    CHECK(log.lines == Lines{"destroyed other", "destroyed a"});
}

TEST_CASE("a failover and the end reach every state") {
    Log log;
    log.registry.use<Lock>(log, "a");
    log.registry.on_failover();
    CHECK(log.lines == Lines{"failover a"});
    log.registry.abandon();
    CHECK(log.lines == Lines{"failover a", "abandoned a"});
}
