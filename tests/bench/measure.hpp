// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fleet.hpp"
#include "report.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"

namespace redlatch::bench {

/// The private server, and the duration of the measurements.
class Bench {
public:
    explicit Bench(double seconds) : seconds_(seconds) {}

    std::string url(const std::string& link) const { return link == "tcp" ? server_.tcp_url() : server_.url(); }

    /// Work of a fixed size is reduced in proportion if less time than usual is requested.
    static constexpr double usual_seconds = 2;
    double share_of_usual() const { return seconds_ < usual_seconds ? seconds_ / usual_seconds : 1; }

    static constexpr std::size_t rounds = 5;
    std::chrono::nanoseconds round_time() const {
        return std::chrono::nanoseconds{static_cast<std::int64_t>(seconds_ * 1e9 / rounds)};
    }

    /// Empties the server and places it on its CPUs. Adds tokens if they are needed.
    void prepare(Placement placement = Placement::free, const std::optional<std::string>& token = {},
                 std::size_t tokens = 1);

    /// Returns the commands that clients have sent.
    std::uint64_t commands() {
        // No script of the library calls BLPOP or LPUSH.
        return static_cast<std::uint64_t>(redis_.client_commands({"blpop", "lpush"}));
    }
    std::uint64_t script_calls() { return static_cast<std::uint64_t>(redis_.script_calls()); }
    std::uint64_t keys() { return static_cast<std::uint64_t>(redis_.integer("DBSIZE")); }

private:
    double seconds_;
    test::RedisServer server_{{.tcp = true}};
    test::RawRedis redis_{server_};
};

/// The results of one fleet.
struct Slice {
    double seconds = 0;
    double acquisitions = 0;
    double shared = 0;  // acquisitions that others may have at the same time
    double commands = 0;
    double cpu_us = 0;  // of the clients
    double fairness = 0;
    Holders holders = {};
    double held = 0;
    double longest_wait_ms = 0;
    std::vector<double> handoffs_us = {};  // from the unlock() of one to the return of another's lock()
    std::vector<double> releases_us = {};  // from the release of all to the return of each
    std::vector<double> last_us = {};      // the same for the last one, each time
    double release_commands = 0;           // from the release until the return of the last one
    double violations = 0;

    double per_second() const { return acquisitions / seconds; }
    double writes_per_second() const { return (acquisitions - shared) / seconds; }
    /// Returns the acquisitions by another thread than the last holder.
    double handoffs() const { return static_cast<double>(holders.local + holders.remote); }
    double handoffs_per_second() const { return handoffs() / seconds; }
    double self_share() const { return share_of_holders(holders.self); }
    double local_share() const { return share_of_holders(holders.local); }
    double remote_share() const { return share_of_holders(holders.remote); }
    double commands_each() const { return commands / acquisitions; }
    double commands_each_handoff() const { return commands / handoffs(); }
    double commands_each_release() const { return release_commands / static_cast<double>(last_us.size()); }
    double cpu_us_each() const { return cpu_us / acquisitions; }
    double handoff_p50_us() const { return quantile(handoffs_us, 0.5); }
    double handoff_p99_us() const { return quantile(handoffs_us, 0.99); }
    double release_p50_us() const { return quantile(releases_us, 0.5); }
    double release_p99_us() const { return quantile(releases_us, 0.99); }
    double last_p50_us() const { return quantile(last_us, 0.5); }

private:
    double share_of_holders(std::uint64_t some) const {
        const auto all = static_cast<double>(holders.self) + handoffs();
        return all > 0 ? static_cast<double>(some) / all : 0;
    }
};

/// Lets the fleet work for the time, or, if none is given, until it is done. `commands` counts the clients' commands.
Slice measure(const std::function<std::uint64_t()>& commands, Fleet& fleet,
              std::optional<std::chrono::nanoseconds> time);
inline Slice measure(Bench& bench, Fleet& fleet, std::optional<std::chrono::nanoseconds> time) {
    return measure([&] { return bench.commands(); }, fleet, time);
}

/// A subject of a comparison: a name, and a function that measures it once.
struct Subject {
    std::string name;
    std::function<Slice()> run;
    std::vector<Slice> slices = {};
};

inline double violations(const Subject& subject) {
    double sum = 0;
    for (const Slice& slice : subject.slices) sum += slice.violations;
    return sum;
}

/// Runs the subjects in turn, A B C A B C ..., so that a drift of the machine affects all of them.
void alternate(std::vector<Subject>& subjects);

/// Returns one number of every round.
template <class Number>
Figure each_round(const Subject& subject, Number number) {
    std::vector<double> values;
    for (const Slice& slice : subject.slices) values.push_back(std::invoke(number, slice));
    return values;
}

/// Returns the quotient of that number and the other subject's, round by round.
template <class Number>
Figure ratio(const Subject& subject, const Subject& reference, Number number) {
    std::vector<double> values;
    for (std::size_t i = 0; i < subject.slices.size(); ++i)
        values.push_back(std::invoke(number, subject.slices[i]) / std::invoke(number, reference.slices[i]));
    return values;
}

/// Prints how many acquisitions there were, how even they were, and the longest wait.
void print_throughput(const Setting& setting, const Subject& subject);

/// Prints who got the lock after whom, and the price of a change of the holder. A lock that goes to the same holder again
/// and again looks fast, but serves nobody else.
void print_holders(const Setting& setting, const Subject& subject);

/// Prints the quotients of both rates: of all acquisitions, and of those by another thread than the last holder.
void print_ratios_to_token(const Setting& setting, const Subject& subject, const Subject& token);

/// Prints the duration of the hand-offs to threads that were waiting, and the commands.
void print_handoffs(const Setting& setting, const Subject& subject);

/// Prints how often a thread found another one in the critical section. Returns whether that never happened.
bool print_exclusion(const Setting& setting, const std::string& subject, double violations);

}  // namespace redlatch::bench
