// SPDX-License-Identifier: MIT
//
// Unique order ids for the whole fleet, a thousand of them for one round trip. They come from the tokens of a FencedLock,
// which are never given twice, even after a server has lost its data.

#include <redlatch/redlatch.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace {

// [readme]
// The ids of one process grow, and those of the fleet do roughly: a token is at least the time of the server in
// microseconds. There are gaps, because the rest of a block is lost with its process.
class OrderIds {
public:
    explicit OrderIds(redlatch::Client& redis) : blocks_(redis, "example:order_ids") {}

    std::int64_t next() {
        const std::lock_guard guard{mutex_};
        // After a fork() the rest of the block is the parent's.
        if (next_ % block == 0 || process_ != ::getpid()) next_ = blocks_.hold().token() * block;
        process_ = ::getpid();
        return next_++;
    }

private:
    static constexpr std::int64_t block = 1000;  // a token has 53 bits at most, so the id fits

    redlatch::FencedLock blocks_;
    std::mutex mutex_;
    std::int64_t next_ = 0;
    pid_t process_ = 0;
};
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    constexpr std::size_t ids_per_thread = 2500;
    std::vector<std::vector<std::int64_t>> given(12);
    {
        redlatch::Client one{url}, two{url}, three{url};  // stand for three processes
        OrderIds of_one{one}, of_two{two}, of_three{three};
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < given.size(); ++i)
            threads.emplace_back([&given, i,
                                  &ids = i % 3 == 0   ? of_one
                                         : i % 3 == 1 ? of_two
                                                      : of_three] {
                while (given[i].size() < ids_per_thread) given[i].push_back(ids.next());
            });
    }
    redlatch::Client restarted{url};  // a process that was killed does not go on where it was
    OrderIds ids{restarted};
    given.push_back({ids.next()});

    std::set<std::int64_t> all;
    std::size_t count = 0;
    bool growing = true;
    for (const auto& some : given) {
        all.insert(some.begin(), some.end());
        count += some.size();
        growing = growing && std::is_sorted(some.begin(), some.end());
    }
    std::cout << count << " ids, " << all.size() << " different ones, the last is " << *all.rbegin() << '\n';
    return all.size() == count && growing && *all.rbegin() == given.back().back() ? 0 : 1;
}
