// SPDX-License-Identifier: MIT
#include "final_checks.hpp"

#include <redlatch/redlatch.hpp>
#include <string>
#include <vector>

#include "support/end_state.hpp"
#include "support/raw_redis.hpp"
#include "support/wait.hpp"

namespace redlatch::soak {

using namespace redlatch::detail;

namespace {

// Long enough for a hold that was never released to end with its lease. The place of a dead waiter ends when a command
// checks the queue.
constexpr milliseconds settling_time = test::patient(5000ms);

template <class Lock>
void take(Lock& lock, std::string_view what, Findings& findings) {
    if (lock.try_lock_for(settling_time))
        lock.unlock();
    else
        findings.complain(findings.leftovers, std::string{what} + " cannot be taken when all is over");
}

void take_everything(Client& client, Client& second, Client& third, Findings& findings) {
    RLock rlock{client, info(Kind::rlock).of};
    FairLock fair{client, info(Kind::fair).of};
    FencedLock fenced{client, info(Kind::fenced).of};
    SpinLock spin{client, info(Kind::spin).of};
    Mutex mutex{client, info(Kind::mutex).of};
    ReadWriteLock read_write{client, info(Kind::writer).of};
    take(rlock, "rlock", findings);
    take(fair, "fair", findings);
    take(fenced, "fenced", findings);
    take(spin, "spin", findings);
    take(mutex, "mutex", findings);
    if (!LeaderElection{client, info(Kind::leader).of}.campaign_for(settling_time))
        findings.complain(findings.leftovers, "nobody can lead when all is over");
    take(read_write, "writer", findings);
    take(read_write.read_lock(), "reader", findings);
    const std::string multi{info(Kind::multi).of};
    RLock multi1{client, multi + "1"};
    RLock multi2{client, multi + "2"};
    MultiLock both{multi1, multi2};
    take(both, "multi", findings);
    RLock red1{client, info(Kind::red).of};
    RLock red2{second, info(Kind::red).of};
    RLock red3{third, info(Kind::red).of};
    RedLock majority{red1, red2, red3};
    take(majority, "red", findings);
}

void count_permits(Client& client, const Shared& shared, test::RawRedis& redis, Findings& findings) {
    PermitExpirableSemaphore permits{client, info(Kind::permits).of};
    const bool all = test::eventually(
        [&] { return permits.available_permits() == static_cast<std::ptrdiff_t>(permits_limit); }, settling_time, 20ms);
    if (!all)
        findings.complain(findings.leftovers,
                          "permits: " + std::to_string(permits.available_permits()) + " are there when all is over");
    std::uint64_t exact = 0;
    for (std::uint64_t epoch = 1; epoch <= shared.semaphore_epoch; ++epoch) {
        // Skip a semaphore if a process died with permits of it, or if the server lost it.
        if (shared.lost_permits[epoch] || !redis.exists(semaphore_name(epoch))) continue;
        ++exact;
        const auto there = redis.integer("GET", semaphore_name(epoch));
        if (there != static_cast<long long>(semaphore_limit))
            findings.complain(findings.leftovers,
                              semaphore_name(epoch) + ": " + std::to_string(there) + " permits are there");
    }
    findings.remarks.push_back("semaphores whose permits were counted: " + std::to_string(exact));
}

// If a process died, or the server lost its last commands, places may be left in the queue of a semaphore that nobody uses
// any more. They end by themselves.
bool is_abandoned_queue(const std::string& left, const Shared& shared) {
    for (const char* of : {"key redlatch_semaphore_queue:{", "key redlatch_semaphore_places:{"}) {
        const std::string prefix = of + std::string{info(Kind::semaphore).of};
        if (left.starts_with(prefix) && left.find("TTL -1") == std::string::npos)
            return shared.lost_permits[std::stoull(left.substr(prefix.size()))];
    }
    return false;
}

// A latch stays as it is when its owner is killed.
bool is_orphan(const std::string& left, const Crowd& crowd) {
    const std::string prefix = "key " + std::string{info(Kind::latch).of};
    if (!left.starts_with(prefix)) return false;
    const std::uint64_t number = std::stoull(left.substr(prefix.size()));
    const std::size_t worker = (number >> 56) - 1;
    return ((number >> 32) & 0xff'ffff) < crowd.incarnation(worker);
}

// Says who is in the queues that are left.
void describe_queues(test::RawRedis& redis, Findings& findings) {
    for (const test::RawReply& key : redis.call("KEYS", "redlatch_*").elements) {
        const test::RawReply content = redis.text("TYPE", key.string) == "hash"
                                           ? redis.call("HGETALL", key.string)
                                           : redis.call("LRANGE", key.string, 0, -1);
        std::string all = key.string + ":";
        for (const test::RawReply& one : content.elements) all += " [" + one.string + "]";
        findings.remarks.push_back(all);
    }
    findings.remarks.push_back("now " + redis.call("TIME").elements[0].string);
}

}  // namespace

void run_final_checks(const test::RedisServer& server, const std::array<test::RedisServer, steady_servers>& steady,
                      Shared& shared, const Crowd& crowd, Findings& findings) {
    test::RawRedis redis{server};
    try {
        Client client{server.url(), {.watchdog_timeout = watchdog_timeout}};
        Client second{steady[0].url(), {.watchdog_timeout = watchdog_timeout}};
        Client third{steady[1].url(), {.watchdog_timeout = watchdog_timeout}};
        take_everything(client, second, third, findings);
        count_permits(client, shared, redis, findings);
    } catch (const std::exception& error) {
        findings.complain(findings.leftovers, error.what());
    }
    std::vector<test::Documented> documented = test::documented_keys();
    documented.push_back({std::string{info(Kind::semaphore).of}, false});
    documented.push_back({std::string{info(Kind::permits).of}, false});
    test::RawRedis second{steady[0]};
    test::RawRedis third{steady[1]};
    std::vector<std::string> left;
    test::eventually(
        [&] {
            left = test::leftovers(redis, documented);
            for (test::RawRedis* other : {&second, &third})
                for (const std::string& one : test::leftovers(*other, documented))
                    left.push_back("steady server: " + one);
            std::erase_if(
                left, [&](const std::string& one) { return is_orphan(one, crowd) || is_abandoned_queue(one, shared); });
            return left.empty();
        },
        settling_time, 20ms);
    for (const std::string& one : left) findings.complain(findings.leftovers, "left behind: " + one);
    if (!left.empty()) describe_queues(redis, findings);
}

}  // namespace redlatch::soak
