// SPDX-License-Identifier: MIT
// Registry: one state per kind and key, kept as long as it has a user or a hold.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;

namespace {

// What happened to the states, in order.
struct Log {
    Log() { current = this; }

    // Uses a state of this type.
    template <class State>
    State& use(const std::string& key) {
        static constexpr StateMaker maker{State::text, [](Session&, const std::string& name) {
                                              return std::shared_ptr<NamedState>(std::make_shared<State>(name));
                                          }};
        return static_cast<State&>(registry.use(maker, session, key));
    }

    static inline Log* current = nullptr;
    std::vector<std::string> lines;
    ScriptedRedis redis;
    Session session{std::make_unique<TransportPortOf<ScriptedTransport>>(redis.transport()), ClientOptions{}};
    Registry registry;
};

struct Task : NamedState {
    explicit Task(std::string k) : log(*Log::current), name(std::move(k)) {}
    ~Task() override { log.lines.push_back("destroyed " + name); }

    const std::string& key() const noexcept override { return name; }
    Session& session() const noexcept override { return log.session; }
    bool is_idle() override { return idle; }

    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void abandon() noexcept override { log.lines.push_back("abandoned " + name); }
    void on_failover() override { log.lines.push_back("failover " + name); }

    Log& log;
    std::string name;
    bool idle = true;
};

struct Lock final : Task {
    static constexpr std::string_view text = "lock";
    using Task::Task;
    std::string_view kind() const noexcept override { return text; }
};

struct Latch final : Task {
    static constexpr std::string_view text = "latch";
    using Task::Task;
    std::string_view kind() const noexcept override { return text; }
};

// Uses the registry in its destructor.
struct Chain final : Task {
    static constexpr std::string_view text = "chain";
    using Task::Task;
    std::string_view kind() const noexcept override { return text; }
    ~Chain() override {
        Lock& other = log.use<Lock>("other");
        log.registry.leave(other);
    }
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("all users of one kind and key share a state") {
    Log log;
    Lock& first = log.use<Lock>("a");
    CHECK(&log.use<Lock>("a") == &first);
    CHECK(&log.use<Lock>("b") != &first);
    CHECK(static_cast<void*>(&log.use<Latch>("a")) != static_cast<void*>(&first));
}

TEST_CASE("a state goes with its last user") {
    Log log;
    Lock& state = log.use<Lock>("a");
    log.use<Lock>("a");
    log.registry.leave(state);
    CHECK(log.lines.empty());
    log.registry.leave(state);
    CHECK(log.lines == Lines{"destroyed a"});
}

TEST_CASE("a state without users stays while it is not idle") {
    Log log;
    Lock& state = log.use<Lock>("a");
    state.idle = false;
    log.registry.leave(state);
    log.registry.forget_if_unused(state);
    CHECK(log.lines.empty());
    CHECK(&log.use<Lock>("a") == &state);
    log.registry.leave(state);
    state.idle = true;
    log.registry.forget_if_unused(state);
    CHECK(log.lines == Lines{"destroyed a"});
}

TEST_CASE("an idle state with a user is not forgotten") {
    Log log;
    Lock& state = log.use<Lock>("a");
    log.registry.forget_if_unused(state);
    CHECK(log.lines.empty());
    log.registry.leave(state);
}

TEST_CASE("all shared pointers to a state count as one user, until the last is gone") {
    Log log;
    Lock& state = log.use<Lock>("a");
    std::shared_ptr<NamedState> first = log.registry.share(state);
    std::shared_ptr<NamedState> second = log.registry.share(state);
    CHECK(first.get() == &state);
    log.registry.leave(state);
    first.reset();
    CHECK(&log.use<Lock>("a") == &state);
    log.registry.leave(state);
    CHECK(log.lines.empty());
    second.reset();
    CHECK(log.lines == Lines{"destroyed a"});
}

TEST_CASE("a state that has been replaced leaves its successor alone") {
    Log log;
    Lock stray("a");
    Lock& state = log.use<Lock>("a");
    log.registry.forget_if_unused(stray);
    log.registry.leave(stray);
    CHECK(log.lines.empty());
    CHECK(&log.use<Lock>("a") == &state);
}

TEST_CASE("the destructor of a state runs without the mutex of the registry") {
    Log log;
    Chain& state = log.use<Chain>("a");
    log.registry.leave(state);
    CHECK(log.lines == Lines{"destroyed other", "destroyed a"});
}

TEST_CASE("a failover and the end reach every state") {
    Log log;
    log.use<Lock>("a");
    log.registry.on_failover();
    CHECK(log.lines == Lines{"failover a"});
    log.registry.abandon();
    CHECK(log.lines == Lines{"failover a", "abandoned a"});
}
