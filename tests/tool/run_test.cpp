// SPDX-License-Identifier: MIT
// ctest: timeout=300 long
// `redlatch run`: what the command sees when the tool, the guardian, the command, the lock or the server goes, and when. The
// guide to the command line has a row for each case.
#include "tool/tool_kit.hpp"

#include "support/proxy.hpp"

#include <list>

using namespace redlatch;
using namespace redlatch::test;

namespace {

// A command that runs under a lock.
struct UnderLock {
    // `url`: of a proxy before the server; empty for the server itself.
    explicit UnderLock(const std::string& manner, std::vector<std::string> options = {}, const std::string& url = {})
        : words{"run", "--lock", "job", "--lease", in_ms(tool_lease)},
          witness((words.insert(words.end(), options.begin(), options.end()), words.push_back("--"),
                   tool.new_witness(words, manner))),
          run(tool.start(words, url)) {
        REQUIRE(has_begun(*witness));
    }

    // Waits until the command has ended. Returns whether it did before the lease.
    bool ends_before(std::int64_t lease_end) {
        CHECK(has_ended(*witness));
        return witness->last_alive < lease_end;
    }

    int code() {
        const auto status = run.process.wait(60s);
        return status ? status->code : -2;
    }

    Tool tool{};
    std::vector<std::string> words;
    SharedMemory<Witness> witness;
    ToolRun run;
};

// Returns whether the command has run its handler of SIGTERM, at most once. SIGKILL follows soon, and may come before.
bool has_got_term(const Witness& witness) {
    CHECK(witness.signals[SIGTERM] <= 1);
    return witness.signals[SIGTERM] == 1;
}

}  // namespace

TEST_CASE("the tool is killed: the command gets TERM at once, and KILL before the lease ends") {
    for (const std::string manner : {"obey", "stubborn"}) {
        CAPTURE(manner);
        once_in_time([&] {
            UnderLock running(manner);
            const std::int64_t killed = boot_time();
            running.run.process.kill();
            const std::int64_t end = running.tool.lease_end();
            const bool in_time = running.ends_before(end);
            CHECK(running.tool.is_free());
            if (!has_got_term(*running.witness)) return false;
            CHECK(running.witness->term >= killed);
            return in_time && running.witness->term < killed + 1'000'000'000;
        });
    }
}

TEST_CASE(
    "the tool is frozen: the command gets TERM in time, and KILL before the lease ends; then the tool reports the "
    "loss") {
    for (const std::string manner : {"obey", "stubborn"}) {
        CAPTURE(manner);
        once_in_time([&] {
            UnderLock running(manner, {"--grace", "700ms"});
            running.run.process.stop();
            const std::int64_t end = running.tool.lease_end();
            const bool in_time = running.ends_before(end);
            CHECK(running.tool.is_free());
            running.run.process.cont();
            CHECK(running.code() == 76);
            if (!has_got_term(*running.witness)) return false;
            // Not much earlier than it must.
            CHECK(running.witness->term > end - std::chrono::nanoseconds(tool_lease).count() / 2);
            return in_time && running.witness->term < end - 700'000'000;
        });
    }
}

TEST_CASE("the guardian is killed: the command is killed at once, and the tool ends and gives the lock back") {
    once_in_time([] {
        UnderLock running("stubborn");
        const std::int64_t killed = boot_time();
        ::kill(running.witness->parent, SIGKILL);
        CHECK(running.code() == 137);
        CHECK(has_ended(*running.witness));
        CHECK_FALSE(running.tool.redis.exists("job"));
        return running.witness->last_alive < killed + 1'000'000'000;
    });
}

TEST_CASE("the guardian is frozen, and the lock is lost: the tool kills the command before the lease ends") {
    once_in_time([] {
        UnderLock running("stubborn");
        ::kill(running.witness->parent, SIGSTOP);
        const std::int64_t end = running.tool.refuse_renewals();
        CHECK(eventually([&] { return boot_time() > end; }, 30s));
        const bool in_time = running.ends_before(end);
        ::kill(running.witness->parent, SIGCONT);
        CHECK(running.code() == 76);
        return in_time;
    });
}

TEST_CASE("the tool and the guardian are killed: the kernel kills the command") {
    once_in_time([] {
        UnderLock running("stubborn");
        const std::int64_t killed = boot_time();
        ::kill(running.witness->parent, SIGSTOP);  // so that it cannot act for itself
        running.run.process.kill();
        ::kill(running.witness->parent, SIGKILL);
        CHECK(has_ended(*running.witness));
        CHECK(running.tool.is_free());
        return running.witness->last_alive < killed + 1'000'000'000;
    });
}

TEST_CASE("the command is killed: the tool gives the lock back and ends with 128 and the signal") {
    UnderLock running("stubborn");
    ::kill(running.witness->process, SIGKILL);
    CHECK(running.code() == 137);
    CHECK_FALSE(running.tool.redis.exists("job"));
}

TEST_CASE(
    "the lock is ended by force: the command gets TERM when the next renewal is refused, and KILL after the grace") {
    for (const std::string manner : {"obey", "stubborn"}) {
        CAPTURE(manner);
        once_in_time([&] {
            UnderLock running(manner);
            const std::int64_t lost = boot_time();
            const auto [code, text] = running.tool.run({"unlock", "--force", "job"});
            CHECK(code == 0);
            // No renewal can have been later than this.
            const std::int64_t end = boot_time() + std::chrono::nanoseconds(tool_lease).count();
            const bool in_time = running.ends_before(end) && has_got_term(*running.witness);
            CHECK(running.code() == 76);
            CHECK(running.run.text().find("the lock is lost; ends the command") != std::string::npos);
            return in_time && running.witness->term < lost + std::chrono::nanoseconds(tool_lease).count() / 2;
        });
    }
}

TEST_CASE("the server is away: the command gets TERM in time, and KILL before the lease ends") {
    for (const std::string manner : {"obey", "stubborn"}) {
        CAPTURE(manner);
        once_in_time([&] {
            Tool tool;
            Proxy proxy{tool.server.url()};
            std::vector<std::string> words{"run", "--lock", "job", "--lease", in_ms(tool_lease), "--"};
            auto witness = tool.new_witness(words, manner);
            ToolRun run = tool.start(words, proxy.url());
            REQUIRE(has_begun(*witness));
            proxy.refuse(true);
            proxy.kill_all();
            const std::int64_t end = tool.lease_end();
            CHECK(has_ended(*witness));
            const auto status = run.process.wait(60s);
            REQUIRE(status);
            CHECK(status->code == 76);
            return has_got_term(*witness) && witness->last_alive < end;
        });
    }
}

TEST_CASE("the server is away for a moment: the command notices nothing") {
    Tool tool;
    Proxy proxy{tool.server.url()};
    std::vector<std::string> words{"run", "--lock", "job", "--lease", in_ms(tool_lease), "--"};
    auto witness = tool.new_witness(words, "obey", tool_lease * 2);
    ToolRun run = tool.start(words, proxy.url());
    REQUIRE(has_begun(*witness));
    proxy.refuse(true);
    proxy.kill_all();
    const Stopwatch watch;
    REQUIRE(eventually([&] { return watch.elapsed() > tool_lease / 8; }));
    proxy.refuse(false);
    const auto status = run.process.wait(60s);
    REQUIRE(status);
    CHECK(status->code == 0);
    CHECK(witness->signals[SIGTERM] == 0);
    CHECK_FALSE(tool.redis.exists("job"));
}

TEST_CASE("signals are forwarded to the command, which decides") {
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
        CAPTURE(number);
        UnderLock running("obey");
        running.run.process.signal(number);
        CHECK(running.code() == 3);
        CHECK(running.witness->signals[number] == 1);
        CHECK_FALSE(running.tool.redis.exists("job"));
    }
    UnderLock running("stubborn");
    running.run.process.signal(SIGINT);
    CHECK(eventually([&] { return running.witness->signals[SIGINT] == 1; }, 20s));
    CHECK(is_alive(*running.witness));
    CHECK(running.tool.redis.exists("job"));
}

TEST_CASE("what the command leaves in its process group ends with it, before the lock is free") {
    Tool tool;
    std::vector<std::string> words;
    auto witness = tool.new_witness(words);
    const std::string script =
        words[0] + " " + words[1] + " stubborn & while [ ! -s " + words[1] + ".go ]; do sleep 0.01; done";
    ToolRun run = tool.start({"run", "--lock", "job", "--", "sh", "-c", script});
    REQUIRE(has_begun(*witness));
    std::ofstream(words[1] + ".go") << "go" << std::flush;
    REQUIRE(run.process.wait(60s));
    CHECK(has_ended(*witness, 1s));
    CHECK_FALSE(tool.redis.exists("job"));
}

// Two runs of one lock: the second one waits for the first.
struct HandOn {
    // The second one takes longer than the lease that a release grants at first.
    explicit HandOn(std::vector<std::string> of) : options(std::move(of)), first(start("60")), second(start_waiting()) {
        REQUIRE(eventually([&] { return !tool.redis.pubsub_channels().empty(); }, 30s));
    }

    ToolRun start(const std::string& seconds) {
        std::vector<std::string> words{"run", "--lock", "job"};
        words.insert(words.end(), options.begin(), options.end());
        words.insert(words.end(), {"--", "sh", "-c", "echo begun; sleep " + seconds + "; exit 3"});
        return tool.start(words);
    }
    ToolRun start_waiting() {
        REQUIRE(has_begun(first));
        return start("3");
    }
    static bool has_begun(const ToolRun& run) {
        return eventually([&] { return run.text().starts_with("begun"); }, 30s);
    }

    Tool tool{};
    std::vector<std::string> options;
    ToolRun first;
    ToolRun second;
};

// Waits until the second run has ended. Returns false if it could not keep its lock.
bool is_kept(HandOn& two) {
    CHECK(HandOn::has_begun(two.second));
    const auto status = two.second.process.wait(60s);
    REQUIRE(status);
    if (status->code == 76) return false;
    CHECK(status->code == 3);
    CHECK(two.second.text() == "begun\n");
    return true;
}

TEST_CASE("a lock that another run hands on is kept until the command has ended, whatever its kind, lease and grace") {
    std::list<HandOn> all;
    for (const std::vector<std::string>& options :
         std::vector<std::vector<std::string>>{{},
                                               {"--fair"},
                                               {"--exclusive"},
                                               {"--permits", "1"},
                                               {"--lease", "8s"},
                                               {"--grace", "1s"},
                                               {"--lease", "3900ms", "--grace", "1400ms"},
                                               {"--at-most", "50s"}})
        all.emplace_back(options);
    for (HandOn& one : all) one.first.process.signal(SIGTERM);
    for (HandOn& one : all) {
        CAPTURE(one.options.empty() ? "" : one.options.front());
        if (is_kept(one)) continue;
        // On a busy machine the first renewal may come too late. The rounds after that are alone.
        once_in_time([&] {
            HandOn again(one.options);
            again.first.process.signal(SIGTERM);
            return is_kept(again);
        });
    }
}

TEST_CASE(
    "the guardian is frozen beyond the lease that it knows: the command goes on, because the tool has renewed it") {
    UnderLock running("stubborn");
    ::kill(running.witness->parent, SIGSTOP);
    const std::int64_t end = running.tool.lease_end();
    CHECK(eventually([&] { return boot_time() > end + 500'000'000; }, 60s));
    ::kill(running.witness->parent, SIGCONT);
    const std::int64_t continued = boot_time();
    CHECK(eventually([&] { return running.witness->last_alive > continued + 500'000'000; }, 30s));
    CHECK(running.witness->term == 0);
    ::kill(running.witness->parent, SIGKILL);
    CHECK(running.code() == 137);
}

TEST_CASE("the group of a shell is ended as a whole when the tool is killed") {
    once_in_time([] {
        Tool tool;
        std::vector<std::string> words;
        auto witness = tool.new_witness(words);
        ToolRun run = tool.start({"run", "--lock", "job", "--lease", in_ms(tool_lease), "--", "sh", "-c",
                                  words[0] + " " + words[1] + " stubborn; true"});
        REQUIRE(has_begun(*witness));
        run.process.kill();
        const std::int64_t end = tool.lease_end();
        CHECK(has_ended(*witness));
        return witness->last_alive < end;
    });
}

TEST_CASE("--at-most may be shorter than the margin of the lease") {
    Tool tool;
    // A busy machine may need longer than that to start the command.
    CHECK(eventually([&] {
        return tool.run({"run", "--lock", "job", "--at-most", "500ms", "--", "true"}).first == 0;
    }));
}

TEST_CASE("--at-most ends the command in time, and --at-least keeps the lock") {
    once_in_time([] {
        Tool tool;
        std::vector<std::string> words{"run",       "--lock",          "job", "--lease", in_ms(tool_lease),
                                       "--at-most", in_ms(tool_lease), "--"};
        auto witness = tool.new_witness(words);
        ToolRun run = tool.start(words);
        REQUIRE(has_begun(*witness));
        const std::int64_t end = tool.lease_end();
        CHECK(has_ended(*witness));
        const auto status = run.process.wait(60s);
        REQUIRE(status);
        CHECK(status->code == 76);
        REQUIRE(tool.is_free());
        return has_got_term(*witness) && witness->last_alive < end;
    });

    Tool tool;
    CHECK(tool.run({"run", "--lock", "job", "--at-least", "1h", "--", "true"}).first == 0);
    CHECK(tool.redis.pttl("job") > 3'000'000);
    CHECK(tool.run({"try", "--lock", "job", "--", "true"}).first == 75);
}
