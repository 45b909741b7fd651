// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "raw_redis.hpp"
#include "redis_server.hpp"
#include "socket.hpp"
#include "wait.hpp"

namespace redlatch::test {

struct ClusterOptions {
    std::size_t masters = 3;
    std::size_t replicas = 3;  // the n-th belongs to the n-th master
    // How long a node is silent before the others consider it dead. A new master, or CLUSTERDOWN without a replica,
    // comes a second or two later. Use a much longer time in tests without a failover.
    std::chrono::milliseconds node_timeout{2000};
    std::vector<std::string> args = {};  // added for each node, as on the command line
};

/// A private Redis Cluster: its nodes listen on ports of 127.0.0.1 and on unix sockets, and die with the test process.
///
///     ClusterServers cluster;                     // up, all slots served, replicas up to date
///     Client client{cluster.url()};
///     cluster.master_of("orders").kill();
///     REQUIRE(cluster.is_served("orders", 60s));  // by the promoted replica
///
/// node(n).kill(), stop(), cont() and restart() are those of RedisServer. RawRedis{node} connects to a node. One thread
/// at a time may use it, but url() and node() never change.
class ClusterServers {
public:
    static constexpr int slots = 16384;

    explicit ClusterServers(ClusterOptions options = {}) : options_(std::move(options)) {
        const std::size_t count = options_.masters + options_.replicas;
        for (std::size_t i = 0; i < count; ++i) add_node();
        for (std::size_t i = 0; i < count; ++i) {
            RawRedis redis{node(i)};
            redis.text("CLUSTER", "SET-CONFIG-EPOCH", i + 1);
            for (std::size_t j = 0; j < i; ++j) redis.text("CLUSTER", "MEET", "127.0.0.1", port(j), bus_ports_[j]);
        }
        for (std::size_t i = 0; i < options_.masters; ++i)
            RawRedis{node(i)}.text("CLUSTER", "ADDSLOTSRANGE", first_slot(i), first_slot(i + 1) - 1);
        for (std::size_t i = options_.masters; i < count; ++i) {
            // Possible as soon as the node knows its master.
            const std::string master = id_of(node(i - options_.masters));
            RawRedis redis{node(i)};
            wait_for_all([&] { return !redis.call("CLUSTER", "REPLICATE", master).is_error(); });
        }
        wait_for_all([this] { return is_whole(); });
    }
    ClusterServers(const ClusterServers&) = delete;
    ClusterServers& operator=(const ClusterServers&) = delete;

    /// The URL of all nodes. hosts() is the part after the scheme.
    std::string url() const { return "redis-cluster://" + hosts(); }
    std::string hosts() const {
        std::string list;
        for (std::size_t i = 0; i < nodes_.size(); ++i)
            list += (i == 0 ? "" : ",") + ("127.0.0.1:" + std::to_string(port(i)));
        return list;
    }

    /// The initial masters come first, then their replicas, whatever their roles are now.
    RedisServer& node(std::size_t n) { return *nodes_.at(n); }
    std::size_t size() const { return nodes_.size(); }
    int port(std::size_t n) const { return nodes_.at(n)->port(); }

    static std::string id_of(RedisServer& node) { return RawRedis{node}.text("CLUSTER", "MYID"); }

    /// Returns the slot of a key, as the servers compute it.
    int slot_of(std::string_view key) { return static_cast<int>(RawRedis{any()}.integer("CLUSTER", "KEYSLOT", key)); }

    /// Returns the node that serves a slot, or the slot of a key, as a live node reports it. Throws if there is none.
    RedisServer& master_of(int slot) {
        for (const RawReply& range : RawRedis{any()}.command({"CLUSTER", "SLOTS"}).elements) {
            if (slot < range.elements.at(0).integer || slot > range.elements.at(1).integer) continue;
            for (const auto& node : nodes_)
                if (node->port() == range.elements.at(2).elements.at(1).integer) return *node;
        }
        throw std::runtime_error("nobody serves slot " + std::to_string(slot));
    }
    RedisServer& master_of(std::string_view key) { return master_of(slot_of(key)); }

    /// Returns the initial replica of an initial master, or the initial master of such a replica.
    RedisServer& partner_of(const RedisServer& node) {
        for (std::size_t i = 0; i < options_.replicas; ++i) {
            if (nodes_[i].get() == &node) return *nodes_[i + options_.masters];
            if (nodes_[i + options_.masters].get() == &node) return *nodes_[i];
        }
        throw std::runtime_error("it has none");
    }

    /// Returns a key with that beginning in a slot of this node.
    std::string key_on(const RedisServer& node, const std::string& beginning) {
        for (int i = 0; i < 1000; ++i)
            if (const std::string key = beginning + std::to_string(i); &master_of(key) == &node) return key;
        throw std::runtime_error("it serves too few slots");
    }

    /// Waits until a living node takes writes for the slot of this key.
    bool is_served(std::string_view key, std::chrono::milliseconds bound) {
        return eventually(
            [&] {
                for (const auto& node : nodes_) {
                    if (!node->running()) continue;
                    try {
                        // Only a node that may write there runs a script that does nothing.
                        RawRedis redis{node->url(), std::chrono::milliseconds{500}};
                        if (!redis.call("EVAL", "return 1", 1, key).is_error()) return true;
                    } catch (const std::exception&) {  // frozen, or about to end
                    }
                }
                return false;
            },
            bound, std::chrono::milliseconds{5});
    }

    /// Waits until every running node reports that all is well and every replica is up to date.
    bool is_well(std::chrono::milliseconds bound) {
        return eventually([this] { return is_whole(); }, bound, std::chrono::milliseconds{10});
    }

    /// Moves a slot to another master, key by key, while the cluster works. Calls `between` when half of the keys have
    /// moved (at least one, if there are any): the slot is then on two nodes.
    void migrate(
        int slot, RedisServer& to, const std::function<void()>& between = [] {}) {
        RedisServer& from = master_of(slot);
        if (&from == &to) return;
        begin_migration(slot, to);
        const auto count = RawRedis{from}.integer("CLUSTER", "COUNTKEYSINSLOT", slot);
        move_keys(slot, from, to, (count + 1) / 2);
        between();
        while (move_keys(slot, from, to, 100) > 0) {
        }
        end_migration(slot, from, to);
    }

    /// The steps of migrate(), for a test that stops between them.
    void begin_migration(int slot, RedisServer& to) {
        // A node that has not heard of the last migration claims the slot in the same epoch as the one before. Then both would
        // redirect to each other for ever.
        wait_for_all([this] { return has_one_epoch(); });
        RedisServer& from = master_of(slot);
        RawRedis{to}.text("CLUSTER", "SETSLOT", slot, "IMPORTING", id_of(from));
        RawRedis{from}.text("CLUSTER", "SETSLOT", slot, "MIGRATING", id_of(to));
    }

    /// Returns how many keys it moved. Fails if a script has meanwhile created one of them on the other node.
    long long move_keys(int slot, RedisServer& from, RedisServer& to, long long most) {
        RawRedis redis{from};
        const std::vector<std::string> keys = redis.list("CLUSTER", "GETKEYSINSLOT", slot, most);
        if (keys.empty()) return 0;
        std::vector<std::string> words{"MIGRATE", "127.0.0.1", std::to_string(to.port()), "", "0", "10000", "KEYS"};
        words.insert(words.end(), keys.begin(), keys.end());
        const RawReply reply = redis.command(words);
        if (reply.is_error()) throw std::runtime_error("MIGRATE: " + reply.string);
        return static_cast<long long>(keys.size());
    }

    void end_migration(int slot, RedisServer& from, RedisServer& to) {
        const std::string id = id_of(to);
        RawRedis{to}.text("CLUSTER", "SETSLOT", slot, "NODE", id);
        RawRedis{from}.text("CLUSTER", "SETSLOT", slot, "NODE", id);
    }

private:
    void add_node() {
        // If another process takes the port in the meantime, the server ends at once.
        for (int tries = 1;; ++tries) {
            const int bus = pick_free_port();
            std::vector<std::string> args{"--cluster-enabled", "yes", "--cluster-port", std::to_string(bus)};
            for (const char* word : {"--cluster-announce-ip", "127.0.0.1", "--cluster-replica-validity-factor", "0",
                                     "--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0",
                                     "--repl-ping-replica-period", "1", "--cluster-node-timeout"})
                args.push_back(word);
            args.push_back(std::to_string(options_.node_timeout.count()));
            args.insert(args.end(), options_.args.begin(), options_.args.end());
            try {
                nodes_.push_back(std::make_unique<RedisServer>(
                    RedisServerOptions{.tcp = true, .args = args, .start_timeout = std::chrono::seconds{5 * tries}}));
                bus_ports_.push_back(bus);
                return;
            } catch (const std::runtime_error&) {
                if (tries == 4) throw;
            }
        }
    }

    int first_slot(std::size_t n) const {
        return static_cast<int>(static_cast<std::size_t>(slots) * n / options_.masters);
    }

    RedisServer& any() {
        for (const auto& node : nodes_) {
            if (!node->running()) continue;
            try {
                RawRedis{node->url(), std::chrono::milliseconds{500}}.text("PING");
                return *node;
            } catch (const std::exception&) {  // frozen
            }
        }
        throw std::runtime_error("no node answers");
    }

    bool is_whole() {
        for (const auto& node : nodes_) {
            if (!node->running()) continue;
            RawRedis redis{*node};
            const std::string info = redis.text("CLUSTER", "INFO");
            const auto has = [&](const std::string& field, std::size_t value) {
                return info.find(field + ":" + std::to_string(value) + "\r\n") != std::string::npos;
            };
            if (info.find("cluster_state:ok") == std::string::npos || !has("cluster_known_nodes", nodes_.size()) ||
                !has("cluster_size", options_.masters))
                return false;
            if (redis.info("replication", "role") == "slave" && redis.info("replication", "master_link_status") != "up")
                return false;
            // Every node knows every replica as such.
            std::size_t known = 0;
            for (const RawReply& range : redis.command({"CLUSTER", "SLOTS"}).elements)
                known += range.elements.size() - 3;
            if (known < options_.replicas) return false;
        }
        return true;
    }

    bool has_one_epoch() {
        std::set<std::string> epochs;
        for (const auto& node : nodes_) {
            if (!node->running()) continue;
            epochs.insert(RawRedis{*node}.cluster_info("cluster_current_epoch"));
        }
        return epochs.size() == 1;
    }

    void wait_for_all(const std::function<bool()>& condition) {
        if (!eventually(condition, std::chrono::seconds{60}, std::chrono::milliseconds{10}))
            throw std::runtime_error("the nodes of the cluster do not agree:\n" + nodes_.front()->log());
    }

    const ClusterOptions options_;
    std::vector<std::unique_ptr<RedisServer>> nodes_;
    std::vector<int> bus_ports_;
};

}  // namespace redlatch::test
