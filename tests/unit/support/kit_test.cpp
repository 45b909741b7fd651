// SPDX-License-Identifier: MIT
// The test kit itself, as far as it needs no Redis: its processes end, and its checkers reject wrong histories.
#include <doctest/doctest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/history.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/scripted_server.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

/// The reports of the roles below to the test.
struct Told {
    std::atomic<int> pid = 0;
    std::atomic<std::size_t> path_size = 0;
    char path[200] = {};
};

bool gone(pid_t pid) {
    std::ifstream stat{"/proc/" + std::to_string(pid) + "/stat"};
    std::string text;
    std::getline(stat, text);
    const auto state = text.rfind(") ");
    return text.empty() || text[state + 2] == 'Z' || text[state + 2] == 'X';
}

[[noreturn]] void sleep_forever() {
    while (true) ::pause();
}

const Role echo_role{"echo its arguments as a code", [](std::span<const std::string> args) {
                         return args.size() == 2 && args[0] == "a b" && args[1].empty() ? 7 : 1;
                     }};

const Role throwing_role{"throw", [](std::span<const std::string>) -> int { throw std::runtime_error("on purpose"); }};

const Role dir_role{"leave a directory", [](std::span<const std::string> args) {
                        auto told = SharedMemory<Told>::open(args[0]);
                        const TempDir dir;
                        told->path_size = dir.path().copy(told->path, sizeof told->path - 1);
                        sleep_forever();
                        return 0;
                    }};

const Role sweep_role{"make a directory", [](std::span<const std::string>) {
                          const TempDir dir;
                          return 0;
                      }};

const Role child_role{"start a child", [](std::span<const std::string> args) {
                          auto told = SharedMemory<Told>::open(args[0]);
                          std::optional<ChildProcess> child;
                          const auto start = [&] { child = ChildProcess::exec({.path = "sleep", .args = {"1000"}}); };
                          if (args[1] == "in a thread")
                              std::thread{start}.join();
                          else
                              start();
                          told->pid = child->pid();
                          sleep_forever();
                          return 0;
                      }};

/// Runs sections in two processes at once. The function decides whether they exclude each other.
template <class Section>
void in_two_processes(Section section) {
    const auto work = [&] {
        for (int i = 0; i < 200; ++i) section();
        return 0;
    };
    ChildProcess first = ChildProcess::run(work);
    ChildProcess second = ChildProcess::run(work);
    REQUIRE(first.wait(30s) == ExitStatus{0, 0});
    REQUIRE(second.wait(30s) == ExitStatus{0, 0});
}

/// An exclusion without the library: a lock on a file, which each section opens again.
struct FileLock {
    explicit FileLock(const std::string& path) : fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
        without_eintr([&] { return ::flock(fd.get(), LOCK_EX); });
    }
    Fd fd;
};

Interval held(std::uint64_t owner, std::int64_t from, std::int64_t until) {
    return {.owner = owner, .from = from, .until = until};
}

Interval reader(std::uint64_t owner, std::int64_t from, std::int64_t until) {
    return {.owner = owner, .from = from, .until = until, .shared = 1};
}

}  // namespace

TEST_CASE("eventually() returns when a condition becomes true, and gives up at the deadline") {
    int calls = 0;
    CHECK(eventually([&] { return ++calls == 3; }));
    const Stopwatch watch;
    CHECK_FALSE(eventually([] { return false; }, 20ms));
    CHECK(watch.elapsed() >= 20ms);
    CHECK(eventually([] { return true; }, 0ms));
    CHECK_FALSE(within(1ms, [] { std::this_thread::sleep_for(5ms); }));
}

TEST_CASE("a temporary directory is removed with its object") {
    std::string path;
    {
        const TempDir dir;
        path = dir.path();
        std::ofstream{dir.file("something")} << "text";
        CHECK(std::filesystem::exists(dir.file("something")));
    }
    CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a forked child does not remove its parent's directory") {
    const TempDir dir;
    ChildProcess child = ChildProcess::run([&] {
        const_cast<TempDir&>(dir).~TempDir();
        return 0;
    });
    CHECK(child.wait() == ExitStatus{0, 0});
    CHECK(std::filesystem::exists(dir.path()));
}

TEST_CASE("the directory of a killed process is removed by the next process that creates one") {
    const TempDir dir;
    auto told = SharedMemory<Told>::create(dir.file("told"));
    ChildProcess killed = spawn_self("leave a directory", {dir.file("told")});
    REQUIRE(eventually([&] { return told->path_size != 0; }, 20s));
    const std::string left{told->path, told->path_size};
    REQUIRE(spawn_self("make a directory").wait(20s) == ExitStatus{0, 0});
    CHECK(std::filesystem::exists(left));  // its owner still runs
    killed.kill();
    REQUIRE(spawn_self("make a directory").wait(20s) == ExitStatus{0, 0});
    CHECK_FALSE(std::filesystem::exists(left));
    CHECK(std::filesystem::exists(dir.path()));
}

TEST_CASE("a child reports how it ended") {
    CHECK(ChildProcess::run([] { return 0; }).wait() == ExitStatus{0, 0});
    CHECK(ChildProcess::run([] { return 42; }).wait() == ExitStatus{42, 0});
    CHECK(ChildProcess::run([]() -> int { throw std::runtime_error("on purpose"); }).wait() == ExitStatus{99, 0});
    ChildProcess sleeper = ChildProcess::run([]() -> int { sleep_forever(); });
    CHECK_FALSE(sleeper.wait(10ms));
    CHECK(sleeper.running());
    CHECK(sleeper.signal(SIGTERM));
    CHECK(sleeper.wait() == ExitStatus{-1, SIGTERM});
    CHECK_FALSE(sleeper.signal(SIGTERM));
}

TEST_CASE("a stopped child pauses until it is continued") {
    const SharedMemory<std::atomic<long>> beats;
    ChildProcess child = ChildProcess::run([&]() -> int {
        while (true) ++*beats;
    });
    REQUIRE(eventually([&] { return *beats > 0; }));
    child.stop();
    child.stop();  // has no further effect
    const long before = *beats;
    std::this_thread::sleep_for(5ms);
    CHECK(*beats == before);
    child.cont();
    CHECK(eventually([&] { return *beats > before; }));
    child.stop();
    child.kill();
    CHECK(child.wait() == ExitStatus{-1, SIGKILL});
}

TEST_CASE("a child ends with its object, even if it was stopped") {
    pid_t pid = 0;
    {
        ChildProcess child = ChildProcess::run([]() -> int { sleep_forever(); });
        pid = child.pid();
        child.stop();
    }
    CHECK(::kill(pid, 0) == -1);
    CHECK(errno == ESRCH);
}

TEST_CASE("a program that cannot be executed is an exception") {
    CHECK_THROWS_AS(ChildProcess::exec({.path = "/no/such/program"}), std::system_error);
}

TEST_CASE("an executed program inherits no descriptor, has its environment, and writes to its file") {
    const TempDir dir;
    int ends[2];
    REQUIRE(::pipe2(ends, O_NONBLOCK) == 0);  // not close-on-exec, like a socket of hiredis
    const Fd in{ends[0]};
    Fd out{ends[1]};
    ChildProcess child = ChildProcess::exec({.path = "sh",
                                             .args = {"-c", "ls /proc/self/fd | tr '\\n' ' '; echo $COLOUR; sleep 100"},
                                             .environment = {{"COLOUR", "red"}},
                                             .output = dir.file("output")});
    out.reset();
    char byte = 0;
    pollfd end_of_pipe{in.get(), POLLIN, 0};
    CHECK(::poll(&end_of_pipe, 1, 5000) == 1);
    CHECK(::read(in.get(), &byte, 1) == 0);
    std::string line;
    REQUIRE(eventually([&] { return std::getline(std::ifstream{dir.file("output")}, line) && line.ends_with("red"); }));
    CHECK(line == "0 1 2 3 red");  // 3 is the directory that ls reads
}

TEST_CASE("this program can be started again in a given role") {
    CHECK(spawn_self("echo its arguments as a code", {"a b", ""}).wait(20s) == ExitStatus{7, 0});
    CHECK(spawn_self("throw").wait(20s) == ExitStatus{99, 0});
    CHECK_THROWS_AS(spawn_self("no such role"), std::invalid_argument);
}

TEST_CASE("a child ends with a test that is killed, whichever thread started it") {
    for (const std::string where : {"in the main thread", "in a thread"}) {
        CAPTURE(where);
        const TempDir dir;
        auto told = SharedMemory<Told>::create(dir.file("told"));
        ChildProcess test = spawn_self("start a child", {dir.file("told"), where});
        REQUIRE(eventually([&] { return told->pid != 0; }, 20s));
        const pid_t pid = told->pid;
        std::this_thread::sleep_for(50ms);
        CHECK_FALSE(gone(pid));  // it outlives the thread that started it
        test.kill();
        CHECK(eventually([&] { return gone(pid); }));
    }
}

TEST_CASE("memory is shared by fork and by path") {
    const SharedMemory<std::atomic<int>> anonymous;
    CHECK(*anonymous == 0);
    CHECK(ChildProcess::run([&] { return *anonymous = 5, 0; }).wait() == ExitStatus{0, 0});
    CHECK(*anonymous == 5);

    const TempDir dir;
    const auto created = SharedMemory<int>::create(dir.file("shared"));
    const auto opened = SharedMemory<int>::open(dir.file("shared"));
    *created = 6;
    CHECK(*opened == 6);
    CHECK_THROWS_AS(SharedMemory<int>::create(dir.file("shared")), std::system_error);
    CHECK_THROWS_AS(SharedMemory<long>::open(dir.file("shared")), std::runtime_error);
    CHECK_THROWS_AS(SharedMemory<int>::open(dir.file("none")), std::system_error);
}

TEST_CASE("the plain counter is right with exclusion and wrong without") {
    const TempDir dir;
    const SharedMemory<PlainCounter> counter;
    in_two_processes([&] {
        const FileLock lock{dir.file("lock")};
        counter->add_one(50us);
    });
    CHECK(counter->value() == 400);

    // Without a lock an addition is lost almost at once. Allow a few rounds.
    bool lost = false;
    for (int round = 0; round < 20 && !lost; ++round) {
        const SharedMemory<PlainCounter> unprotected;
        in_two_processes([&] { unprotected->add_one(50us); });
        lost = unprotected->value() < 400;
    }
    CHECK(lost);
}

TEST_CASE("threads may use the plain counter under a mutex, or hidden from ThreadSanitizer") {
    std::mutex mutex;
    const SharedMemory<PlainCounter> seen;
    const SharedMemory<PlainCounter> unseen;
    const auto work = [&] {
        for (int i = 0; i < 100; ++i) {
            {
                const std::lock_guard hold{mutex};
                seen->add_one();
            }
            unseen->add_one_unseen();
        }
    };
    std::thread first{work};
    std::thread second{work};
    first.join();
    second.join();
    CHECK(seen->value() == 200);
    CHECK(unseen->value() <= 200);
}

TEST_CASE("a history written by several processes is read back complete") {
    const TempDir dir;
    const HistoryFile history{dir.file("history")};
    const SharedMemory<std::atomic<std::uint64_t>> next;
    in_two_processes([&] {
        const std::uint64_t number = ++*next;
        const FileLock lock{dir.file("lock")};
        const std::int64_t from = monotonic_ns();
        HistoryFile{dir.file("history")}.append({.owner = number, .from = from, .until = monotonic_ns()});
    });
    const auto intervals = history.read();
    CHECK(intervals.size() == 400);
    CHECK_FALSE(find_overlap(intervals));
    CHECK(peak(intervals) == 1);
}

TEST_CASE("a real history without exclusion is rejected") {
    const TempDir dir;
    const HistoryFile history{dir.file("history")};
    // On a busy machine one process may end before the other begins. Allow a few rounds.
    for (int round = 0; round < 20 && !find_overlap(history.read()); ++round) {
        in_two_processes([&] {
            const std::int64_t from = monotonic_ns();
            std::this_thread::sleep_for(50us);
            history.append({.owner = static_cast<std::uint64_t>(::getpid()), .from = from, .until = monotonic_ns()});
        });
    }
    const auto overlap = find_overlap(history.read());
    REQUIRE(overlap);
    CHECK(overlap->first.owner != overlap->second.owner);
    CHECK(peak(history.read()) == 2);
}

TEST_CASE("a later record of a hold replaces the one made at its beginning") {
    const TempDir dir;
    const HistoryFile history{dir.file("history")};
    history.append(held(1, 10, 1000));
    history.append(held(1, 10, 20));
    history.append(held(2, 30, 40));
    CHECK(history.read() == std::vector{held(1, 10, 20), held(2, 30, 40)});
}

TEST_CASE("steady_clock and the recorder use the same clock") {
    const auto before = monotonic_ns(std::chrono::steady_clock::now());
    const auto between = monotonic_ns();
    CHECK(before <= between);
    CHECK(between <= monotonic_ns(std::chrono::steady_clock::now()));
}

TEST_CASE("touching intervals do not overlap, those with one nanosecond more do") {
    CHECK_FALSE(find_overlap({}));
    CHECK_FALSE(find_overlap({held(2, 20, 30), held(1, 10, 20)}));
    CHECK(find_overlap({held(2, 20, 30), held(1, 10, 21)}) == std::pair{held(1, 10, 21), held(2, 20, 30)});
    CHECK_FALSE(find_overlap({held(1, 10, 100), held(2, 50, 50), held(2, 60, 40)}));  // never believed to hold the lock
}

TEST_CASE("an overlap is found behind shorter intervals, and within one owner") {
    CHECK(find_overlap({held(1, 10, 100), held(2, 100, 110), held(3, 110, 500), held(4, 120, 130)}) ==
          std::pair{held(3, 110, 500), held(4, 120, 130)});
    CHECK(find_overlap({held(1, 10, 20), held(1, 15, 30)}));
}

TEST_CASE("each lock has its own history") {
    Interval other = held(2, 15, 30);
    other.lock = 1;
    CHECK_FALSE(find_overlap({held(1, 10, 20), other}));
    CHECK(peak({held(1, 10, 20), other}) == 1);
}

TEST_CASE("readers may overlap with readers, never with a writer") {
    CHECK_FALSE(find_overlap({reader(1, 10, 50), reader(2, 20, 30), held(3, 50, 60), reader(4, 60, 70)}));
    CHECK(find_overlap({reader(1, 10, 50), reader(2, 20, 30), held(3, 49, 60)}) ==
          std::pair{reader(1, 10, 50), held(3, 49, 60)});
    CHECK(find_overlap({held(3, 10, 60), reader(4, 59, 70)}));
}

TEST_CASE("the peak is the number of permits held at one instant") {
    CHECK(peak({}) == 0);
    CHECK(peak({held(1, 10, 20), held(2, 15, 25), held(3, 20, 30)}) == 2);
    CHECK(peak({held(1, 10, 20), held(2, 15, 25), held(3, 19, 30)}) == 3);
}

TEST_CASE("tokens that do not increase are found") {
    const auto with_token = [](std::int64_t from, std::uint64_t token) {
        Interval result = held(1, from, from + 5);
        result.token = token;
        return result;
    };
    CHECK_FALSE(find_stale_token({with_token(20, 8), with_token(10, 7)}));
    CHECK(find_stale_token({with_token(10, 7), with_token(20, 7)}));
    CHECK(find_stale_token({with_token(10, 7), with_token(20, 9), with_token(30, 8)}) ==
          std::pair{with_token(20, 9), with_token(30, 8)});
}

TEST_CASE("a scripted server sends the n-th reply to the n-th command of a connection") {
    ScriptedServer server{{"+first\r\n", ":2\r\n"}};
    for (int connection = 0; connection < 2; ++connection) {
        RawRedis client{server.url()};
        CHECK(client.text("A", "with spaces\r\n") == "first");
        CHECK(client.integer("B") == 2);
        CHECK_THROWS_AS(client.call("C"), std::runtime_error);  // closed
    }
    CHECK(server.received().at(0) == CommandWords{"A", "with spaces\r\n"});
    CHECK(server.received().size() == 6);
    CHECK(server.accepted() == 2);
}

TEST_CASE("a scripted server replies by a function, in pieces, malformed, or not at all") {
    ScriptedServer server{[](const CommandWords& command) -> ScriptedReply {
        if (command[0] == "GARBAGE") return "?!\r\n";
        if (command[0] == "SILENCE") return {};
        ScriptedReply reply{"$5\r\nhello\r\n"};
        reply.piece = 1;
        reply.pause = 2ms;
        reply.close = command[0] == "LAST";
        return reply;
    }};
    RawRedis client{server.url()};
    const Stopwatch watch;
    CHECK(client.text("GET", "x") == "hello");
    CHECK(watch.elapsed() >= 20ms);  // eleven bytes, ten pauses
    client.send({"SILENCE"});
    CHECK_FALSE(client.receive_within(20ms));
    server.push("+unasked\r\n");
    CHECK(client.receive().string == "unasked");
    CHECK(client.text("LAST") == "hello");
    CHECK(eventually([&] { return server.open_connections() == 0; }));
    client.reconnect();
    CHECK_THROWS_WITH(client.call("GARBAGE"), doctest::Contains("Protocol error"));
}

TEST_CASE("a scripted server accepts commands that arrive in pieces or together") {
    ScriptedServer server{{"+1\r\n", "+2\r\n", "+3\r\n"}};
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    const Fd client = begin_connect(Endpoint::parse(server.url()));
    for (const char* piece : {"*2\r\n$3\r\nGE", "T\r\n$", "1\r\nx\r", "\n*1\r\n$1\r\nA\r\n*1\r\n$1\r\nB\r\n"}) {
        send_all(client, piece, deadline);
    }
    std::string got;
    while (got.size() < 12 && wait_for(client, POLLIN, deadline)) read_some(client, got);
    CHECK(got == "+1\r\n+2\r\n+3\r\n");
    CHECK(server.received() == std::vector<CommandWords>{{"GET", "x"}, {"A"}, {"B"}});
}

TEST_CASE("a proxy's rule matches across reads, and spares the given number of matches") {
    ScriptedServer server{[](const CommandWords&) { return ScriptedReply{"+OK\r\n"}; }};
    Proxy proxy{server.url()};
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    proxy.add({.fault = ProxyRule::Fault::drop_request, .containing = "needle", .after = 1});
    const Fd client = begin_connect(Endpoint::parse(proxy.url()));
    const auto passed = [&](std::string_view bytes) {
        const auto before = proxy.counts().bytes_to_server;
        send_all(client, bytes, deadline);
        return eventually([&] { return proxy.counts().bytes_to_server == before + bytes.size(); });
    };
    CHECK(passed("*1\r\n$6\r\nnee"));
    CHECK(passed("dle\r\n"));  // the first match passes
    CHECK(eventually([&] { return proxy.counts().bytes_to_client == 5; }));
    CHECK(proxy.counts().matched == 0);
    CHECK(passed("*1\r\n$6\r\nneed"));
    send_all(client, "le\r\n", deadline);
    std::string got;
    while (wait_for(client, POLLIN, deadline) && read_some(client, got) == ReadState::data) {
    }
    CHECK(got == "+OK\r\n");
    CHECK(server.received().size() == 1);  // it never received the end of the second
    CHECK(proxy.counts().dropped == 1);
}

TEST_CASE("a proxy's rule for messages holds one back or drops it, and tells whose it is") {
    ScriptedServer server{[](const CommandWords& words) { return ScriptedReply{"+" + words.at(0) + "\r\n"}; }};
    Proxy proxy{server.url()};
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    const Fd client = begin_connect(Endpoint::parse(proxy.url()));
    std::string got;
    const auto send = [&](std::string_view word) {
        send_all(client, "*1\r\n$6\r\n" + std::string(word) + "\r\n", deadline);
    };
    const auto receives = [&](std::string_view all) {
        while (got.size() < all.size() && wait_for(client, POLLIN, deadline))
            if (read_some(client, got) != ReadState::data) break;
        return got == all;
    };
    proxy.hold_next_messages(1, "needle");
    send("first1");
    CHECK(receives("+first1\r\n"));
    CHECK(proxy.take_recipients().empty());
    send("needle");
    REQUIRE(eventually([&] { return proxy.counts().messages == 1; }));
    CHECK(proxy.counts().held == 1);
    CHECK(proxy.take_recipients() == std::vector<pid_t>{::getpid()});
    CHECK(proxy.take_recipients().empty());
    proxy.release();
    CHECK(receives("+first1\r\n+needle\r\n"));

    SUBCASE("dropped") {
        proxy.drop_next_messages(1, "needle");
        send("needle");
        CHECK(receives("+first1\r\n+needle\r\n"));
        while (wait_for(client, POLLIN, deadline) && read_some(client, got) == ReadState::data) {
        }
        CHECK(got == "+first1\r\n+needle\r\n");  // then the end
        CHECK(proxy.counts().dropped == 1);
    }
    SUBCASE("a rule that is removed does nothing") {
        proxy.hold_next_messages(1, "needle");
        proxy.hold_next_messages(1, "needle", 60s);
        proxy.drop_next_messages(1, "needle");
        proxy.clear_message_rules([](const ProxyRule& rule) { return rule.fault == ProxyRule::Fault::drop_message; });
        proxy.clear_message_rules([](const ProxyRule& rule) { return rule.fault == ProxyRule::Fault::hold_message; });
        send("needle");
        CHECK(receives("+first1\r\n+needle\r\n+needle\r\n"));
    }
}

TEST_CASE("a proxy without its server closes the connection") {
    const TempDir dir;
    Proxy proxy{dir.file("nobody.sock")};
    RawRedis client{proxy.url()};
    CHECK_THROWS_AS(client.call("PING"), std::runtime_error);
    CHECK(proxy.counts().refused == 1);
}

TEST_CASE("a forked child does not affect the proxies and servers of its parent") {
    ScriptedServer server{{"+OK\r\n"}};
    {
        Proxy proxy{server.url()};
        ChildProcess child = ChildProcess::run([&] {
            try {
                proxy.counts();
            } catch (const std::logic_error&) {
                proxy.~Proxy();
                return 0;
            }
            return 1;
        });
        CHECK(child.wait() == ExitStatus{0, 0});
        CHECK(RawRedis{proxy.url()}.text("PING") == "OK");
    }
}
