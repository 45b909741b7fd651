// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crowd.hpp"
#include "plan.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/server_clock.hpp"
#include "support/server_faults.hpp"

namespace redlatch::soak {

// A fault that was caused: its time and its target.
struct Fault {
    FaultKind kind{};
    std::int64_t from = 0;
    std::int64_t until = 0;
    std::uint64_t lock = 0;  // the only affected lock; all: 0xffff
    std::uint64_t worker = 0;
    bool bit = false;           // it had an observed effect
    std::string_view bit_on{};  // the command that came late, or the right that somebody missed

    static constexpr std::uint64_t all_locks = 0xffff;
};

// The commands that must have come late, and the rights that somebody must have missed, in a long run.
std::vector<std::string> bites_of_a_long_run();

// The server and its proxies: two for the workers, and behind those one that delays messages. Causes the faults in all
// of these and in the workers.
class Troublemaker {
public:
    Troublemaker(Crowd& crowd, Shared& shared, std::int64_t seconds);

    // Returns the URL to which a worker connects.
    std::string url(std::size_t worker) const { return proxies_[worker % proxies_.size()].url(); }
    const test::RedisServer& server() const { return server_; }

    void begin(const PlannedFault& planned);
    void end_due(std::int64_t now, bool all = false);
    void end_all();

    const std::vector<Fault>& faults() const { return faults_; }

    // Returns the requests that arrived long after they were sent.
    std::vector<test::LateArrival> late_arrivals() { return late_.late_arrivals(); }

private:
    struct Active {
        PlannedFault planned;
        std::size_t fault;  // in faults_
        std::int64_t due;
        std::uint64_t before = 0;             // a count from before the fault
        std::optional<std::size_t> struck{};  // the worker that was killed or frozen
    };

    bool begin_at_server(const PlannedFault& planned, Fault& fault);
    void end_at_server(Active& active);
    bool begin_in_network(const PlannedFault& planned, Active& active);
    void end_in_network(Active& active);
    bool hold_back(const PlannedFault& planned, Active& active);
    bool begin_at_workers(const PlannedFault& planned, Fault& fault);
    void strike_grantee(Active& active);
    void let_messages_go();
    void end_at_workers(Active& active);
    bool restart(const PlannedFault& planned);
    bool publish_garbage(std::uint64_t draw);
    bool lose_queues();
    bool force_unlock(const std::string& name);
    std::string lock_to_strike(std::uint64_t target, Fault& fault) const;
    void new_epoch();
    test::RawRedis& admin();

    Crowd& crowd_;
    Shared& shared_;
    const std::int64_t seconds_;
    test::ServerClock clock_;
    test::RedisServer server_;
    test::Proxy late_;  // also delivers messages that their sender has given up
    std::array<test::Proxy, 2> proxies_;
    std::optional<test::RawRedis> admin_;
    std::unique_ptr<test::EndlessScript> script_;
    test::FailedSnapshot snapshot_{server_};
    std::vector<Active> active_;
    std::vector<Fault> faults_;
};

}  // namespace redlatch::soak
