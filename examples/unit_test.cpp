// SPDX-License-Identifier: MIT
//
// A unit test of a class that takes a lock. It needs no server: the in-memory one runs in this process. The test moves
// its clock and breaks it.

#include <redlatch/redlatch.hpp>
#include <redlatch/testing.hpp>

#include <chrono>
#include <functional>
#include <iostream>
#include <mutex>
#include <stop_token>
#include <system_error>
#include <thread>

using namespace std::chrono_literals;

// The class under test: copies pages, in one process of the fleet at a time.
class Backup {
public:
    enum class Result { done, busy, interrupted };

    explicit Backup(redlatch::Client& client) : lock_(client, "example:backup") {}

    Result run(int pages, const std::function<void()>& copy) {
        const std::unique_lock guard{lock_, std::try_to_lock};
        if (!guard) return Result::busy;
        const std::stop_token lost = lock_.lost();
        for (int page = 0; page < pages; ++page) {
            if (lost.stop_requested()) return Result::interrupted;
            copy();
        }
        return Result::done;
    }

private:
    redlatch::RLock lock_;
};

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
    std::cout << (condition ? "ok: " : "FAILED: ") << what << '\n';
    failures += !condition;
}

void only_one_process_copies() {
    redlatch::testing::InMemoryServer server;
    redlatch::Client one{server.transport()}, two{server.transport()};  // two processes, as far as Redis can tell
    Backup mine{one}, theirs{two};

    Backup::Result in_between{};
    const auto result = mine.run(1, [&] { in_between = theirs.run(1, [] {}); });
    expect(result == Backup::Result::done, "the first process copies");
    expect(in_between == Backup::Result::busy, "the second one does not copy meanwhile");
    expect(theirs.run(1, [] {}) == Backup::Result::done, "it does afterwards");
}

// [readme]
void a_lost_lock_stops_it() {
    redlatch::testing::InMemoryServer server;
    // The watchdog renews every 100 ms of real time, which advance() does not move.
    redlatch::Client client{server.transport(), {.watchdog_timeout = 300ms}};
    Backup backup{client};

    int pages = 0;
    const auto result = backup.run(1000, [&] {
        if (++pages == 3) server.advance(1s);  // the lease is over; the next renewal is refused
        std::this_thread::sleep_for(10ms);
    });
    expect(result == Backup::Result::interrupted, "a lost lock interrupts it");
}
// [/readme]

void an_unreachable_server_is_an_error() {
    redlatch::testing::InMemoryServer server;
    redlatch::Client client{server.transport(), {.unreachable_timeout = 50ms}};
    Backup backup{client};
    server.refuse();
    std::error_code error;
    try {
        backup.run(1, [] {});
    } catch (const redlatch::Error& failure) {
        error = failure.code();
    }
    expect(error == redlatch::errc::unreachable, "an unreachable server is an error");
    server.refuse(false);
    expect(backup.run(1, [] {}) == Backup::Result::done, "it works again afterwards");
}

}  // namespace

int main() {
    only_one_process_copies();
    a_lost_lock_stops_it();
    an_unreachable_server_is_an_error();
    return failures == 0 ? 0 : 1;
}
