// SPDX-License-Identifier: MIT
//
// Fencing: a holder that was stopped beyond its lease does not know that it lost the lock, and writes late. The store
// rejects the write, because its token is smaller than one that the store has seen.

#include <redlatch/redlatch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>

using namespace std::chrono_literals;

namespace {

// The resource that the lock protects. It stores only the greatest token so far.
class Store {
public:
    bool write(std::int64_t token, const char* who) {
        const bool accepted = token >= newest_;
        if (accepted) newest_ = token;
        std::cout << who << " writes with token " << token << (accepted ? ": accepted\n" : ": refused, stale\n");
        return accepted;
    }

private:
    std::int64_t newest_ = 0;
};

// Another process: acquires the lock, is stopped while it holds it, and then goes on unaware.
void sleepy_holder(const char* url, int to_store) {
    redlatch::Client redis{url};
    redlatch::FencedLock journal{redis, "example:fencing"};
    const std::int64_t token = journal.lock_and_get_token(redlatch::Lease{500ms});
    const auto write = [&] { return ::write(to_store, &token, sizeof token) == sizeof token; };
    if (!write()) std::_Exit(1);
    std::raise(SIGSTOP);
    // A careful holder would look at journal.valid_until() here. This one does not.
    if (!write()) std::_Exit(1);
    journal.unlock();  // its lease is over: this does nothing
    std::_Exit(0);
}

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    int pipe[2];
    if (::pipe(pipe) != 0) return 1;
    const pid_t sleepy = ::fork();
    if (sleepy == 0) sleepy_holder(url, pipe[1]);
    ::close(pipe[1]);

    Store store;
    const auto written_by_the_other = [&] {
        std::int64_t token = 0;
        return ::read(pipe[0], &token, sizeof token) == sizeof token && store.write(token, "the sleepy holder");
    };
    const bool in_time = written_by_the_other();
    int status = 0;
    ::waitpid(sleepy, &status, WUNTRACED);  // returns when the process is stopped, with the lock held

    redlatch::Client redis{url};
    redlatch::FencedLock journal{redis, "example:fencing"};
    const std::int64_t token = journal.lock_and_get_token();  // waits for the end of the other's lease
    const bool mine = store.write(token, "its successor");

    ::kill(sleepy, SIGCONT);
    const bool late = written_by_the_other();
    ::waitpid(sleepy, &status, 0);
    journal.unlock();
    return in_time && mine && !late ? 0 : 1;
}
