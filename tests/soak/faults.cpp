// SPDX-License-Identifier: MIT
#include "faults.hpp"

#include <algorithm>
#include <iostream>
#include <redlatch/redlatch.hpp>
#include <utility>

namespace redlatch::soak {

using namespace redlatch::detail;

namespace {

// `appendfsync no` writes before it answers, so a killed server loses nothing. (`everysec` may delay writes while a
// sync is running.) Pauses because of a fork do not matter.
test::RedisServerOptions server_options(const test::ServerClock& clock) {
    return {.appendonly = true,
            .args = {"--appendfsync", "no", "--busy-reply-threshold", "50", "--enable-debug-command", "yes",
                     "--maxmemory-policy", "noeviction"},
            .environment = clock.environment(REDLATCH_CLOCK_SHIM),
            .start_timeout = 60s};
}

// Commands that the user may lose: those with which the scripts write.
constexpr std::array<std::string_view, 14> rights{
    "decrby", "incrby",  "zadd", "zrem", "publish", "set",  "pexpire",
    "hset",   "hincrby", "del",  "hdel", "rpush",   "lrem", "zremrangebyscore"};

std::string_view right_of(const PlannedFault& planned) { return rights[planned.draw % rights.size()]; }

// A command that may be held back: its name, and bytes that a rule of a proxy matches.
struct Command {
    std::string_view name;
    std::string bytes;
};

Command by_digest(std::string_view name, const Script& script) { return {name, std::string{script.digest()}}; }

// Commands that take or keep something.
const std::array acquires{by_digest("rlock_acquire", digested<scripts::rlock_acquire>),
                          by_digest("rlock_renew", digested<scripts::rlock_renew>),
                          by_digest("fair_acquire", digested<scripts::fair_acquire>),
                          by_digest("fair_refresh", digested<scripts::fair_refresh>),
                          by_digest("fenced_acquire", digested<scripts::fenced_acquire>),
                          by_digest("queue_acquire", digested<scripts::queue_acquire>),
                          by_digest("fenced_queue_acquire", digested<scripts::fenced_queue_acquire>),
                          by_digest("read_acquire", digested<scripts::read_acquire>),
                          by_digest("read_renew", digested<scripts::read_renew>),
                          by_digest("write_acquire", digested<scripts::write_acquire>),
                          by_digest("mutex_acquire", digested<scripts::mutex_acquire>),
                          by_digest("mutex_renew", digested<scripts::mutex_renew>),
                          by_digest("semaphore_acquire", digested<scripts::semaphore_acquire>),
                          by_digest("semaphore_set", digested<scripts::semaphore_set>),
                          by_digest("permit_acquire", digested<scripts::permit_acquire>),
                          by_digest("permit_renew", digested<scripts::permit_renew>),
                          by_digest("permit_set_total", digested<scripts::permit_set_total>),
                          by_digest("count_down_latch_set", digested<scripts::count_down_latch_set>),
                          Command{"set_nx_pxat", "PXAT"}};

// Commands that give something back.
const std::array releases{by_digest("rlock_release", digested<scripts::rlock_release>),
                          by_digest("rlock_hand_over", digested<scripts::rlock_hand_over>),
                          by_digest("rlock_give_up", digested<scripts::rlock_give_up>),
                          by_digest("fenced_hand_over", digested<scripts::fenced_hand_over>),
                          by_digest("queue_release", digested<scripts::queue_release>),
                          by_digest("queue_hand_over", digested<scripts::queue_hand_over>),
                          by_digest("queue_give_up", digested<scripts::queue_give_up>),
                          by_digest("fenced_queue_release", digested<scripts::fenced_queue_release>),
                          by_digest("fenced_queue_hand_over", digested<scripts::fenced_queue_hand_over>),
                          by_digest("fenced_queue_give_up", digested<scripts::fenced_queue_give_up>),
                          by_digest("fair_release", digested<scripts::fair_release>),
                          by_digest("fair_leave", digested<scripts::fair_leave>),
                          by_digest("read_release", digested<scripts::read_release>),
                          by_digest("read_give_up", digested<scripts::read_give_up>),
                          by_digest("write_release", digested<scripts::write_release>),
                          by_digest("write_give_up", digested<scripts::write_give_up>),
                          by_digest("mutex_release", digested<scripts::mutex_release>),
                          by_digest("mutex_hand_over", digested<scripts::mutex_hand_over>),
                          by_digest("mutex_give_up", digested<scripts::mutex_give_up>),
                          by_digest("semaphore_add", digested<scripts::semaphore_add>),
                          by_digest("semaphore_give_back", digested<scripts::semaphore_give_back>),
                          by_digest("semaphore_leave", digested<scripts::semaphore_leave>),
                          by_digest("permit_release", digested<scripts::permit_release>),
                          by_digest("permit_take_back", digested<scripts::permit_take_back>),
                          by_digest("count_down_latch_lower", digested<scripts::count_down_latch_lower>)};

const Command& held_back(const PlannedFault& planned) {
    return planned.kind == FaultKind::acquire_held_back ? acquires[planned.target % acquires.size()]
                                                        : releases[planned.target % releases.size()];
}

// How the message begins that tells a waiter of its grant.
const std::string grant_message = "grant ";

constexpr std::array plain_locks{Kind::rlock, Kind::fair, Kind::fenced, Kind::spin, Kind::writer, Kind::mutex};

}  // namespace

std::vector<std::string> bites_of_a_long_run() {
    std::vector<std::string> all;
    for (const Command& one : acquires) all.push_back("acquire_held_back: " + std::string{one.name});
    for (const Command& one : releases) all.push_back("release_held_back: " + std::string{one.name});
    for (const std::string_view one : rights) all.push_back("right_missing: " + std::string{one});
    return all;
}

Troublemaker::Troublemaker(Crowd& crowd, Shared& shared, std::int64_t seconds)
    : crowd_(crowd),
      shared_(shared),
      seconds_(seconds),
      server_(server_options(clock_)),
      late_(server_.url()),
      proxies_{test::Proxy{late_.url()}, test::Proxy{late_.url()}} {}

test::RawRedis& Troublemaker::admin() {
    if (!admin_) admin_.emplace(server_.url(), 5s);
    return *admin_;
}

void Troublemaker::begin(const PlannedFault& planned) {
    // End the faults that must not overlap with this one.
    const auto in_the_way = [&](const Active& active) {
        const Lane lane = info(active.planned.kind).lane;
        return lane == info(planned.kind).lane &&
               (lane == Lane::server || active.planned.target == planned.target || lane == Lane::late ||
                (lane == Lane::network && planned.target % 2 == active.planned.target % 2));
    };
    for (Active& active : active_)
        if (in_the_way(active)) active.due = 0;
    end_due(1);

    Fault fault{.kind = planned.kind, .from = test::monotonic_ns(), .lock = Fault::all_locks};
    fault.worker = planned.target % worker_count;
    Active active{.planned = planned, .fault = faults_.size(), .due = 0};
    try {
        switch (info(planned.kind).lane) {
            case Lane::server: fault.bit = begin_at_server(planned, fault); break;
            case Lane::network: fault.bit = begin_in_network(planned, active); break;
            case Lane::late: fault.bit = hold_back(planned, active); break;
            case Lane::workers: fault.bit = begin_at_workers(planned, fault);
        }
    } catch (const std::exception& error) {
        std::cerr << info(planned.kind).name << " did not begin: " << error.what() << std::endl;
        admin_.reset();
    }
    fault.until = test::monotonic_ns();
    active.due = fault.until + planned.lasts_ms * 1'000'000;
    faults_.push_back(fault);
    active_.push_back(std::move(active));
}

void Troublemaker::end_all() {
    end_due(0, true);
    let_messages_go();
    late_.release();
    admin_.reset();
}

void Troublemaker::end_due(std::int64_t now, bool all) {
    for (Active& active : active_) {
        try {
            strike_grantee(active);
        } catch (const std::exception& error) {
            std::cerr << info(active.planned.kind).name << " did not strike: " << error.what() << std::endl;
        }
        if (!all && active.due > now) continue;
        try {
            switch (info(active.planned.kind).lane) {
                case Lane::server: end_at_server(active); break;
                case Lane::network: end_in_network(active); break;
                case Lane::late:
                    faults_[active.fault].bit = late_.counts().matched > active.before;
                    if (faults_[active.fault].bit) faults_[active.fault].bit_on = held_back(active.planned).name;
                    late_.clear_rules();
                    break;
                case Lane::workers: end_at_workers(active);
            }
        } catch (const std::exception& error) {
            std::cerr << info(active.planned.kind).name << " did not end: " << error.what() << std::endl;
            admin_.reset();
        }
        faults_[active.fault].until = test::monotonic_ns();
        active.due = -1;
    }
    std::erase_if(active_, [](const Active& active) { return active.due == -1; });
}

// --- at the server ------------------------------------------------------------------------------------------------

bool Troublemaker::begin_at_server(const PlannedFault& planned, Fault& fault) {
    const milliseconds lasts{planned.lasts_ms};
    switch (planned.kind) {
        case FaultKind::restart_with_data:
        case FaultKind::restart_without_data:
        case FaultKind::restart_with_cut_tail: server_.kill(); return true;  // end_at_server() starts it again
        case FaultKind::server_frozen: server_.stop(); return true;
        case FaultKind::pause_all: test::pause_commands(admin(), lasts, false); return true;
        case FaultKind::pause_writes: test::pause_commands(admin(), lasts, true); return true;
        case FaultKind::busy_script:
            script_ = std::make_unique<test::EndlessScript>(server_);
            return script_->is_noticed();
        case FaultKind::server_sleeps: test::sleep_server(admin(), lasts); return true;
        case FaultKind::no_memory:
            test::refuse_memory(admin(), true);
            return admin().call("SET", "soak:probe", "x", "PX", 1).string.starts_with("OOM");
        case FaultKind::failed_snapshot: return snapshot_.begin(admin());
        case FaultKind::no_replicas:
            test::miss_replicas(admin(), true);
            return admin().call("SET", "soak:probe", "x", "PX", 1).string.starts_with("NOREPLICAS");
        case FaultKind::scripts_forbidden:
            test::forbid_scripts(admin(), true);
            return admin().call("EVAL", "return 1", 0).string.starts_with("NOPERM");
        case FaultKind::right_missing:
            admin().text("ACL", "LOG", "RESET");
            return test::take_right(admin(), std::string{right_of(planned)});
        case FaultKind::script_flush: return admin().text("SCRIPT", "FLUSH") == "OK";
        case FaultKind::flush_all: {
            const bool had_keys = admin().integer("DBSIZE") > 0;
            admin().text("FLUSHALL");
            new_epoch();
            return had_keys;
        }
        case FaultKind::key_deleted: return admin().integer("DEL", lock_to_strike(planned.target, fault)) == 1;
        case FaultKind::force_unlock: return force_unlock(lock_to_strike(planned.target, fault));
        case FaultKind::clock_forward: clock_.set(clock_.offset() + longest_lease + 100ms); return true;
        case FaultKind::clock_back: clock_.set(clock_.offset() - longest_lease); return true;
        case FaultKind::kill_normal: return admin().kill_clients("normal") > 0;
        case FaultKind::kill_pubsub: return admin().kill_clients("pubsub") > 0;
        case FaultKind::kill_everybody: return admin().kill_clients("normal") + admin().kill_clients("pubsub") > 0;
        case FaultKind::garbage_published: return publish_garbage(planned.draw);
        case FaultKind::queues_lost: return lose_queues();
        default: return false;
    }
}

void Troublemaker::end_at_server(Active& active) {
    switch (active.planned.kind) {
        case FaultKind::restart_with_data:
        case FaultKind::restart_without_data:
        case FaultKind::restart_with_cut_tail: faults_[active.fault].bit = restart(active.planned); break;
        case FaultKind::server_frozen: server_.cont(); break;
        case FaultKind::busy_script: std::exchange(script_, nullptr)->end(); break;
        case FaultKind::server_sleeps: admin().receive(); break;
        case FaultKind::no_memory: test::refuse_memory(admin(), false); break;
        case FaultKind::failed_snapshot: snapshot_.end(admin()); break;
        case FaultKind::no_replicas: test::miss_replicas(admin(), false); break;
        case FaultKind::scripts_forbidden: test::forbid_scripts(admin(), false); break;
        case FaultKind::right_missing:
            test::give_right(admin(), std::string{right_of(active.planned)});
            if (!admin().call("ACL", "LOG", 1).elements.empty())
                faults_[active.fault].bit_on = right_of(active.planned);
            break;
        case FaultKind::clock_back: clock_.set(clock_.offset() + longest_lease); break;
        default: break;
    }
}

bool Troublemaker::restart(const PlannedFault& planned) {
    admin_.reset();
    bool bit = true;
    if (planned.kind == FaultKind::restart_without_data) server_.lose_data();
    if (planned.kind == FaultKind::restart_with_cut_tail) bit = server_.lose_last_bytes(1 + planned.draw % 5000) > 0;
    if (planned.kind != FaultKind::restart_with_data) new_epoch();
    server_.restart();
    return bit;
}

void Troublemaker::new_epoch() {
    const std::uint64_t now = shared_.semaphore_epoch;
    for (std::uint64_t epoch = 1; epoch <= now; ++epoch) shared_.lost_permits[epoch] = true;
    shared_.semaphore_epoch = now + 1;
}

std::string Troublemaker::lock_to_strike(std::uint64_t target, Fault& fault) const {
    const Kind kind = plain_locks[target % plain_locks.size()];
    fault.lock = lock_number(kind);
    return std::string{info(kind).of};
}

bool Troublemaker::force_unlock(const std::string& name) {
    Client client{server_.url(), {.command_timeout = 1s, .unreachable_timeout = 1s}};
    if (name == info(Kind::writer).of) {
        ReadWriteLock lock{client, name};
        return lock.read_lock().force_unlock() || lock.write_lock().force_unlock();
    }
    if (name == info(Kind::mutex).of) return Mutex{client, name}.force_unlock();
    if (name == info(Kind::fair).of) return FairLock{client, name}.force_unlock();
    return RLock{client, name}.force_unlock();
}

bool Troublemaker::publish_garbage(std::uint64_t draw) {
    const std::array<std::string, 8> payloads{"",
                                              "garbage",
                                              "-1",
                                              "99999999999999999999999",
                                              "0",
                                              "1",
                                              std::string(100'000, 'x'),
                                              std::string("\0\r\n$-1\r\n", 8)};
    long long told = 0;
    for (const std::string& channel : admin().pubsub_channels())
        told += admin().integer("PUBLISH", channel, payloads[draw++ % payloads.size()]);
    return told > 0;
}

bool Troublemaker::lose_queues() {
    long long lost = 0;
    for (const std::string_view keys : {"redlatch_*_queue:*", "redlatch_*_places:*"})
        for (const std::string& key : admin().keys(keys)) lost += admin().integer("DEL", key);
    return admin().kill_clients("normal") + admin().kill_clients("pubsub") > 0 && lost > 0;
}

// --- in the network -----------------------------------------------------------------------------------------------

bool Troublemaker::begin_in_network(const PlannedFault& planned, Active& active) {
    test::Proxy& proxy = proxies_[planned.target % proxies_.size()];
    const test::ProxyCounts counts = proxy.counts();
    active.before = counts.dropped;
    const int times = 1 + static_cast<int>(planned.draw % 6);
    const std::size_t bytes = 1 + planned.draw % 120;
    const milliseconds delay{20 + static_cast<std::int64_t>(planned.draw % 600)};
    switch (planned.kind) {
        case FaultKind::connections_cut: proxy.kill_all(); break;
        case FaultKind::delayed:
            proxy.delay(planned.draw % 3 == 0 ? 0ms : delay, planned.draw % 3 == 1 ? 0ms : delay);
            break;
        case FaultKind::request_dropped: proxy.drop_next_requests(times); break;
        case FaultKind::reply_dropped: proxy.drop_next_replies(times); break;
        case FaultKind::reply_swallowed: proxy.drop_next_replies(1 + times / 3, {}, test::Then::silence); break;
        case FaultKind::request_cut: proxy.cut_after_request_bytes(bytes); break;
        case FaultKind::reply_cut: proxy.cut_after_reply_bytes(1 + bytes % 20); break;
        case FaultKind::client_half_closed: proxy.half_close(test::Side::client); break;
        case FaultKind::server_half_closed: proxy.half_close(test::Side::server); break;
        case FaultKind::blackhole: proxy.blackhole(true); break;
        case FaultKind::grant_lost:
            proxy.drop_next_messages(1, grant_message, planned.draw % 2 == 0 ? test::Then::close : test::Then::silence);
            break;
        case FaultKind::grant_late:
            proxy.hold_next_messages(1, grant_message,
                                     milliseconds{50 + static_cast<std::int64_t>(planned.draw % 650)});
            active.before = counts.messages;
            break;
        case FaultKind::one_byte_segments: proxy.trickle(1, 1ms); break;
        case FaultKind::throttled: proxy.trickle(64, 20ms); break;
        case FaultKind::connections_refused:
            proxy.refuse(true);
            proxy.kill_all();
            active.before = counts.refused;
            break;
        default: return false;
    }
    return counts.open > 0;
}

// Holds back the next such command on its connection, with all that follows it there. It arrives long after its sender
// has continued on another connection: while it is still wanted, after that, when its hold is over, or, in a long run,
// when all marks of its time are.
bool Troublemaker::hold_back(const PlannedFault& planned, Active& active) {
    constexpr std::int64_t life_of_marks = 120'000;
    const auto draw = static_cast<std::int64_t>(planned.draw / 1000);
    std::vector<milliseconds> times{milliseconds{50 + draw % 700}, 1000ms, longest_lease + 500ms, longest_lease * 3,
                                    milliseconds{draw % 40'000}};
    if (is_long_run(seconds_)) times.emplace_back(life_of_marks + draw % 60'000);
    active.before = late_.counts().matched;
    late_.hold_next_requests(1, held_back(planned).bytes, times[planned.draw % times.size()]);
    return false;  // not yet known
}

void Troublemaker::end_in_network(Active& active) {
    test::Proxy& proxy = proxies_[active.planned.target % proxies_.size()];
    Fault& fault = faults_[active.fault];
    switch (active.planned.kind) {
        case FaultKind::delayed: proxy.delay(0ms, 0ms); break;
        case FaultKind::request_dropped:
        case FaultKind::reply_dropped:
        case FaultKind::reply_swallowed:
        case FaultKind::request_cut:
        case FaultKind::reply_cut:
            fault.bit = proxy.counts().dropped > active.before;
            proxy.clear_rules();
            break;
        case FaultKind::blackhole: proxy.blackhole(false); break;
        case FaultKind::grant_lost:
            fault.bit = proxy.counts().dropped > active.before;
            proxy.clear_message_rules(
                [](const auto& rule) { return rule.fault == test::ProxyRule::Fault::drop_message; });
            break;
        case FaultKind::grant_late:
            fault.bit = proxy.counts().messages > active.before;
            proxy.clear_message_rules([](const auto& rule) { return rule.hold_for.has_value(); });
            break;
        case FaultKind::one_byte_segments:
        case FaultKind::throttled: proxy.trickle(0, 0ms); break;
        case FaultKind::connections_refused:
            fault.bit = proxy.counts().refused > active.before;
            proxy.refuse(false);
            break;
        default: break;
    }
}

// --- at the workers -----------------------------------------------------------------------------------------------

bool Troublemaker::begin_at_workers(const PlannedFault& planned, Fault& fault) {
    switch (planned.kind) {
        case FaultKind::worker_killed: crowd_.replace(fault.worker); return true;
        case FaultKind::worker_frozen: crowd_.freeze(fault.worker); return true;
        default: break;
    }
    for (test::Proxy& proxy : proxies_) {
        proxy.take_recipients();
        proxy.hold_next_messages(1, grant_message);
    }
    return false;  // not yet known
}

// Kills or freezes the worker that was granted a lock, if there is one by now. Its message has been sent, and waits in the
// proxy; a frozen worker finds it when it continues.
void Troublemaker::strike_grantee(Active& active) {
    const FaultKind kind = active.planned.kind;
    if (active.struck || (kind != FaultKind::grantee_killed && kind != FaultKind::grantee_frozen)) return;
    for (test::Proxy& proxy : proxies_) {
        for (const pid_t recipient : proxy.take_recipients()) {
            const auto worker = crowd_.worker_in(recipient);
            if (active.struck || !worker) continue;
            active.struck = worker;
            if (kind == FaultKind::grantee_killed)
                crowd_.replace(*worker);
            else
                crowd_.freeze(*worker);
        }
    }
    if (active.struck) let_messages_go();
}

void Troublemaker::let_messages_go() {
    for (test::Proxy& proxy : proxies_) {
        proxy.clear_message_rules(
            [](const auto& rule) { return rule.fault == test::ProxyRule::Fault::hold_message && !rule.hold_for; });
        proxy.release();
    }
}

void Troublemaker::end_at_workers(Active& active) {
    Fault& fault = faults_[active.fault];
    switch (active.planned.kind) {
        case FaultKind::worker_killed: break;
        case FaultKind::worker_frozen: crowd_.thaw(fault.worker); break;
        default:
            fault.bit = active.struck.has_value();
            if (active.struck) fault.worker = *active.struck;
            if (active.struck && active.planned.kind == FaultKind::grantee_frozen) crowd_.thaw(fault.worker);
            if (!active.struck) let_messages_go();
    }
}

}  // namespace redlatch::soak
