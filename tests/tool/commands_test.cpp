// SPDX-License-Identifier: MIT
// ctest: timeout=300
// The command line: exit codes, kinds of locks, and the commands that only look.
#include "tool/tool_kit.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <set>
#include <sstream>

using namespace redlatch;
using namespace redlatch::test;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

// Waits until the lock of another run is held.
bool is_held(Tool& tool, const std::string& key) {
    return eventually([&] { return tool.redis.exists(key); }, 30s);
}

}  // namespace

TEST_CASE("the tool ends with the code of the command, or with one of its own") {
    Tool tool;
    CHECK(tool.run({"run", "--lock", "job", "--", "true"}).first == 0);
    CHECK(tool.run({"run", "--lock", "job", "--", "sh", "-c", "exit 42"}).first == 42);
    CHECK(tool.run({"run", "--lock", "job", "--", "sh", "-c", "kill -TERM $$"}).first == 128 + SIGTERM);
    CHECK(tool.run({"run", "--lock", "job", "--", "/no/such/program"}).first == 127);
    CHECK(tool.run({"run", "--lock", "job", "--", "/"}).first == 126);
    CHECK_FALSE(tool.redis.exists("job"));
    CHECK(tool.run({"--url", "unix:///no/such/server", "try", "--lock", "job", "--", "true"}).first == 69);
    CHECK(tool.run({"--url", "nonsense", "try", "--lock", "job", "--", "true"}).first == 64);
    CHECK(tool.run({"who", "job{"}).first == 64);

    Client client{tool.server.url()};
    RLock job{client, "job"};
    job.lock();
    const auto [code, text] = tool.run({"try", "--lock", "job", "--", "echo", "ran"});
    CHECK(code == 75);
    CHECK_FALSE(has(text, "ran"));
    CHECK(tool.run({"run", "--lock", "job", "--wait", "100ms", "--", "true"}).first == 75);
    ToolRun waiting = tool.start({"run", "--lock", "job", "--", "true"});
    REQUIRE(eventually(
        [&] { return tool.redis.integer("PUBSUB", "NUMPAT") >= 0 && !tool.redis.pubsub_channels().empty(); }, 20s));
    waiting.process.signal(SIGINT);
    const auto status = waiting.process.wait(20s);
    REQUIRE(status);
    CHECK(status->code == 128 + SIGINT);
    CHECK(tool.redis.exists("job"));
    job.unlock();
}

TEST_CASE("a command line that makes no sense is refused, and says why") {
    Tool tool;
    const std::vector<std::vector<std::string>> wrong{
        {},
        {"lock"},
        {"run"},
        {"run", "--lock", "job"},
        {"run", "--lock", "job", "true"},
        {"run", "--", "true"},
        {"run", "--lock", "job", "--wait", "soon", "--", "true"},
        {"run", "--lock", "job", "--wait", "-1s", "--", "true"},
        {"run", "--lock", "job", "--lease", "1ms", "--", "true"},
        {"run", "--lock", "job", "--lease", "99999d", "--", "true"},
        {"run", "--lock", "job", "--fair", "--shared", "--", "true"},
        {"run", "--lock", "job", "--permits", "0", "--", "true"},
        {"run", "--lock", "job", "--permits", "2", "--at-least", "1s", "--", "true"},
        {"run", "--lock", "job", "--at-least", "2s", "--at-most", "1s", "--", "true"},
        {"run", "--lock", "job", "--grace", "40s", "--", "true"},
        {"try", "--lock", "job", "--wait", "1s", "--", "true"},
        {"run", "--lock", "job", "--as", "me", "--", "true"},
        {"lead", "--lock", "job", "--fair", "--", "true"},
        {"lead", "--lock", "job", "--at-least", "1s", "--", "true"},
        {"run", "--lock"},
        {"ls", "a", "b"},
        {"ls", "--", "true"},
        {"who"},
        {"unlock", "job"},
        {"top", "--count", "many"},
        {"top", "--interval", "0"},
        {"ls", "--force=yes"},
    };
    for (const auto& words : wrong) {
        std::string all;
        for (const std::string& word : words) all += word + " ";
        CAPTURE(all);
        const auto [code, text] = tool.run(words);
        CHECK(code == 64);
        CHECK(has(text, "redlatch: "));
    }
    CHECK(tool.redis.keys().empty());
}

TEST_CASE("each kind of lock excludes what it must: fair, shared and exclusive, permits") {
    Tool tool;
    const auto hold = [&](std::vector<std::string> words) {
        words.insert(words.end(), {"--", "sleep", "60"});
        return tool.start(words);
    };
    {
        ToolRun first = hold({"run", "--lock", "fair", "--fair"});
        REQUIRE(is_held(tool, "fair"));
        CHECK(tool.run({"try", "--lock", "fair", "--fair", "--", "true"}).first == 75);
        CHECK(tool.run({"try", "--lock", "fair", "--", "true"}).first == 75);
        first.process.signal(SIGTERM);
        CHECK(first.process.wait(20s)->code == 128 + SIGTERM);
    }
    {
        ToolRun reader = hold({"run", "--lock", "rw", "--shared"});
        REQUIRE(is_held(tool, "rw"));
        CHECK(tool.run({"try", "--lock", "rw", "--shared", "--", "true"}).first == 0);
        CHECK(tool.run({"try", "--lock", "rw", "--exclusive", "--", "true"}).first == 75);
        reader.process.signal(SIGTERM);
        REQUIRE(reader.process.wait(20s));
        CHECK(tool.run({"try", "--lock", "rw", "--exclusive", "--", "true"}).first == 0);
    }
    {
        ToolRun first = hold({"run", "--lock", "slots", "--permits", "2"});
        REQUIRE(eventually([&] { return tool.redis.integer("ZCARD", "{slots}:timeout") == 1; }, 20s));
        CHECK(tool.run({"try", "--lock", "slots", "--permits", "2", "--", "true"}).first == 0);
        ToolRun second = hold({"run", "--lock", "slots", "--permits", "2"});
        REQUIRE(eventually([&] { return tool.redis.integer("ZCARD", "{slots}:timeout") == 2; }, 20s));
        CHECK(tool.run({"try", "--lock", "slots", "--permits", "2", "--", "true"}).first == 75);
        CHECK(tool.run({"who", "slots"}).first == 0);
    }
}

TEST_CASE("the command knows its lock and its fencing token, which grows") {
    Tool tool;
    const std::vector<std::string> words{
        "run", "--lock", "job", "--prefix", "shop:", "--", "sh", "-c", "echo $REDLATCH_LOCK $REDLATCH_TOKEN"};
    long long last = 0;
    for (int i = 0; i < 3; ++i) {
        const std::string text = tool.run(words).second;
        REQUIRE(text.starts_with("job "));
        const long long token = std::stoll(text.substr(4));
        CHECK(token > last);
        last = token;
    }
    CHECK(tool.redis.exists("redisson_lock_token:{shop:job}"));
    CHECK(tool.run({"run", "--lock", "f", "--fair", "--", "sh", "-c", "echo [$REDLATCH_TOKEN]"}).second == "[]\n");
}

TEST_CASE("ls shows what is held and its kind, and nothing else") {
    Tool tool;
    CHECK(tool.run({"ls"}).second.empty());
    tool.redis.text("SET", "cache:1", "value", "EX", "100");
    tool.redis.integer("HSET", "user:1", "name", "A");
    tool.redis.integer("PEXPIRE", "user:1", 100'000);
    tool.redis.integer("ZADD", "ranks", "1", "a");
    Client client{tool.server.url()};
    RLock plain{client, "a:lock"};
    FencedLock fenced{client, "a:fenced"};
    Mutex mutex{client, "a:mutex"};
    ReadWriteLock both{client, "a:rw"};
    FairLock fair{client, "a:fair"};
    RLock hostile{client, "b:\x1b[2J\n"};
    PermitExpirableSemaphore permits{client, "a:permits"};
    static_cast<void>(permits.try_set_permits(3));
    static_cast<void>(permits.acquire());
    plain.lock();
    const std::int64_t token = fenced.lock_and_get_token();
    mutex.lock();
    Hold first = both.hold_shared(), second = both.hold_shared();
    fair.lock();
    hostile.lock();
    ToolRun waiting = tool.start({"run", "--lock", "a:fair", "--fair", "--", "true"});
    REQUIRE(eventually([&] { return tool.redis.integer("LLEN", "redisson_lock_queue:{a:fair}") == 1; }, 20s));

    const auto [code, text] = tool.run({"ls"});
    CHECK(code == 0);
    const std::vector<std::string> lines = lines_of(text);
    REQUIRE(lines.size() == 7);
    CHECK(lines[0].starts_with("a:fair\tfair\t"));
    CHECK(has(lines[0], "\t1\t-\t" + client.id()));
    CHECK(lines[1].starts_with("a:fenced\tfenced\t"));
    CHECK(has(lines[1], "\t" + std::to_string(token) + "\t"));
    CHECK(lines[2].starts_with("a:lock\tlock\t"));
    CHECK(lines[3].starts_with("a:mutex\tmutex\t"));
    CHECK(lines[4].starts_with("a:permits\tpermits\t-\t-\t-\t1"));
    CHECK(lines[5].starts_with("a:rw\tread-write\t"));
    CHECK(has(lines[5], " and 1 more"));
    CHECK(lines[6].starts_with("b:\\x1b[2J\\x0a\tlock\t"));
    CHECK(lines_of(tool.run({"ls", "b:*"}).second).size() == 1);
    CHECK(lines_of(tool.run({"ls", "a:p*"}).second).size() == 1);
    const std::vector<std::string> prefixed = lines_of(tool.run({"ls", "--prefix", "a:"}).second);
    CHECK(prefixed.size() == 6);
    CHECK(prefixed.at(2).starts_with("lock\t"));
    fair.unlock();
}

TEST_CASE("who shows holders and waiters, and unlock --force ends the hold of anyone") {
    Tool tool;
    Client client{tool.server.url()};
    CHECK(tool.run({"who", "job"}).first == 1);
    FairLock fair{client, "fair"};
    fair.lock();
    fair.lock();
    ToolRun waiting = tool.start({"run", "--lock", "fair", "--fair", "--", "true"});
    REQUIRE(eventually([&] { return tool.redis.integer("LLEN", "redisson_lock_queue:{fair}") == 1; }, 20s));
    const auto [code, text] = tool.run({"who", "fair"});
    CHECK(code == 0);
    CHECK(has(text, "holder " + client.id() + ":"));
    CHECK(has(text, "level 2"));
    CHECK(has(text, "waiter 1"));
    CHECK(tool.run({"unlock", "--force", "fair"}).first == 0);
    const auto status = waiting.process.wait(20s);
    REQUIRE(status);
    CHECK(status->code == 0);

    ReadWriteLock both{client, "rw"};
    Mutex mutex{client, "mutex"};
    FencedLock fenced{client, "fenced"};
    both.lock_shared();
    mutex.lock();
    fenced.lock();
    CHECK(has(tool.run({"who", "rw"}).second, "reader " + client.id()));
    CHECK(has(tool.run({"who", "fenced"}).second, "token  "));
    for (const char* name : {"rw", "mutex", "fenced"}) {
        CAPTURE(name);
        CHECK(tool.run({"who", name}).first == 0);
        CHECK(tool.run({"unlock", "--force", name}).first == 0);
        CHECK_FALSE(tool.redis.exists(name));
        CHECK(tool.run({"unlock", "--force", name}).first == 1);
    }
    tool.redis.integer("RPUSH", "list", "x");
    CHECK(tool.run({"who", "list"}).first == 70);
    CHECK(tool.run({"unlock", "--force", "list"}).first == 70);
    CHECK(tool.redis.exists("list"));
}

TEST_CASE("top prints plain lines when it is piped, and ends after its count or at a signal") {
    Tool tool;
    Client client{tool.server.url()};
    RLock job{client, "job"};
    job.lock();
    const auto [code, text] = tool.run({"top", "--count", "3", "--interval", "20ms"});
    CHECK(code == 0);
    CHECK(lines_of(text).size() == 3);
    CHECK(text.starts_with("job\tlock\t"));
    CHECK_FALSE(has(text, "\x1b"));
    ToolRun run = tool.start({"top", "--interval", "20ms", "j*"});
    REQUIRE(eventually([&] { return lines_of(run.text()).size() > 2; }, 20s));
    run.process.signal(SIGINT);
    const auto status = run.process.wait(20s);
    REQUIRE(status);
    CHECK(status->code == 0);
    job.unlock();
}

TEST_CASE("on a terminal top clears the screen and has a heading and columns, and no name can move the cursor") {
    Tool tool;
    Client client{tool.server.url()};
    RLock hostile{client, "job\x1b[31m"};
    hostile.lock();
    const Fd terminal{::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
    REQUIRE(terminal);
    REQUIRE(::grantpt(terminal.get()) == 0);
    REQUIRE(::unlockpt(terminal.get()) == 0);
    std::array<char, 64> name{};
    REQUIRE(::ptsname_r(terminal.get(), name.data(), name.size()) == 0);
    const Fd end{::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC)};
    REQUIRE(end);
    Program program{
        REDLATCH_TOOL, {"top", "--count", "2", "--interval", "20ms"}, {{"REDLATCH_URL", tool.server.url()}}};
    program.dialogue = end.get();
    ChildProcess top = ChildProcess::exec(program);
    const auto status = top.wait(30s);
    REQUIRE(status);
    CHECK(status->code == 0);
    std::array<char, 4096> text{};
    const auto size = ::read(terminal.get(), text.data(), text.size());
    REQUIRE(size > 0);
    const std::string shown(text.data(), static_cast<std::size_t>(size));
    CHECK(shown.starts_with("\x1b[H\x1b[2J1 held on unix://"));
    CHECK(has(shown, "NAME"));
    CHECK(has(shown, "HELD BY"));
    CHECK(has(shown, "job\\x1b[31m  lock  "));
    CHECK_FALSE(has(shown, "\x1b[31m"));
    hostile.unlock();
}

TEST_CASE("help and version") {
    Tool tool;
    const auto [code, help] = tool.run({"--help"});
    CHECK(code == 0);
    CHECK(tool.run({"run", "--help"}).second == help);
    CHECK(tool.run({"--version"}).second == "redlatch " + version() + "\n");
    for (const std::string& line : lines_of(help)) CHECK(line.size() <= 110);
}

// --- the manual page ------------------------------------------------------------------------------------------------

TEST_CASE("the manual page has every command, option, variable and exit code that --help has") {
    Tool tool;
    const std::string help = tool.run({"--help"}).second;
    std::string page = read_file(REDLATCH_SOURCE_DIR "/examples/tool/redlatch.1");
    REQUIRE_FALSE(page.empty());
    for (std::size_t at; (at = page.find("\\-")) != std::string::npos;) page.replace(at, 2, "-");
    for (const char* section : {".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH COMMANDS", ".SH OPTIONS",
                                ".SH ENVIRONMENT", ".SH EXIT STATUS", ".SH EXAMPLES"})
        CHECK(has(page, section));
    // The first words of the help's indented lines are what there is.
    int found = 0;
    for (const std::string& line : lines_of(help)) {
        if (!line.starts_with("  ") || line.starts_with("   ") || line.starts_with("  redlatch ")) continue;
        const std::string word = line.substr(2, line.find(' ', 2) - 2);
        CAPTURE(word);
        CHECK((has(page, "\n.B " + word) || has(page, "\n.BI " + word) || has(page, "\n.BR " + word)));
        ++found;
    }
    CHECK(found >= 30);
    // And the page has no option that there is not.
    for (std::size_t at = page.find("\n.BI --"); at != std::string::npos; at = page.find("\n.BI --", at + 1)) {
        const std::string option = page.substr(at + 5, page.find_first_of(" \n", at + 5) - at - 5);
        CAPTURE(option);
        CHECK(has(help, "  " + option + " "));
    }
}

TEST_CASE("the manual page has no errors, if there is a program to format it") {
    const std::string page = REDLATCH_SOURCE_DIR "/examples/tool/redlatch.1";
    const std::string command = "command -v groff > /dev/null || exit 0; groff -man -Tutf8 -ww -z " + page + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string said;
    std::array<char, 256> part{};
    while (std::fgets(part.data(), part.size(), pipe) != nullptr) said += part.data();
    CHECK(::pclose(pipe) == 0);
    CHECK(said == "");
}
