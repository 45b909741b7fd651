// SPDX-License-Identifier: MIT
// Runs redlatch by requests, one on each line: the twin of java/Agent.java, which describes them.
//
// To add a primitive, add an entry to kinds(), and a function for its operations if it is no lock.
#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include "request.hpp"
#include "support/process.hpp"
#include "support/raw_redis.hpp"

namespace redlatch::test {

using namespace redlatch::detail;

namespace {

using HiredisClient = Client;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string unknown(const Request& request) { return "!" + request.kind + " has no operation " + request.operation; }

/// Returns the value as Java prints it.
template <class Value>
std::string said(const Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
        return value ? "true" : "false";
    } else {
        std::ostringstream text;
        text << value;
        return text.str();
    }
}

template <class Value>
std::string said(const std::optional<Value>& value) {
    return value ? said(*value) : "nil";
}

/// Both languages of a cluster must use the same kind of pub/sub. Without this option redlatch uses the sharded kind on
/// servers that have it.
template <class Options>
void choose_pubsub(Options& options, bool sharded) {
    if constexpr (requires { options.pubsub; }) {
        if (!sharded) options.pubsub = decltype(options.pubsub)::classic;
    }
}

/// The connections to the servers: one client for each server, watchdog time-out and `grants`, and plain ones for the
/// counter.
class Servers {
public:
    explicit Servers(std::span<const std::string> urls) : urls_(urls.begin(), urls.end()) {}

    HiredisClient& client(const Request& request, std::size_t server = 0) {
        const milliseconds watchdog = request.has("wd") ? request.millis("wd") : milliseconds{30'000};
        const std::lock_guard guard{mutex_};
        const bool grants = request.count("grants", 1) != 0;
        auto& client = clients_[{server, watchdog, grants}];
        if (!client) {
            ClientOptions options;
            options.watchdog_timeout = watchdog;
            options.grants = grants;
            std::string url = urls_.at(server);
            const auto question = url.find("?pubsub=");
            if (question != std::string::npos) {
                choose_pubsub(options, url.substr(question + 8) == "sharded");
                url.resize(question);
            }
            client = std::make_unique<HiredisClient>(url, options);
        }
        return *client;
    }

    /// Connects to the server of the plain counter.
    static RawRedis plain(const Request& request) { return RawRedis{request.text("server")}; }

private:
    std::vector<std::string> urls_;
    std::mutex mutex_;  // guards clients_
    std::map<std::tuple<std::size_t, milliseconds, bool>, std::unique_ptr<HiredisClient>> clients_;
};

/// Returns the one object for each name and watchdog time-out, as a service would use it.
template <class Primitive>
Primitive& shared(Servers& servers, const Request& request) {
    static std::mutex mutex;
    static std::map<std::string, std::unique_ptr<Primitive>> all;
    HiredisClient& client = servers.client(request);
    const std::lock_guard guard{mutex};
    auto& object = all[request.name + " " + client.id()];
    if (!object) object = std::make_unique<Primitive>(client, request.name);
    return *object;
}

long long number_of(RawRedis& redis, const std::string& counter) {
    const RawReply reply = redis.call("GET", counter);
    return reply.is_nil() ? 0 : std::stoll(reply.string);
}

/// Sleeps up to 2 ms between two sections. Otherwise the faster threads would leave nothing to the others, and readers
/// nothing to the writers of Redisson.
void rest() {
    thread_local std::minstd_rand random{std::random_device{}()};
    std::this_thread::sleep_for(std::chrono::microseconds{std::uniform_int_distribution{0, 2000}(random)});
}

/// Adds one to a plain counter by a GET and a SET, again and again. Returns how often, and the longest wait in ms after the
/// first 5 s, in which Java compiles its code. Adds the same to the counter `own` of this thread, so that it is known how
/// often a killed one has done so.
template <class Enter, class Leave>
std::string stress(Servers& servers, const Request& request, Enter enter, Leave leave) {
    RawRedis redis = servers.plain(request);
    const std::string& counter = request.text("counter");
    const auto begun = steady_clock::now();
    long long sections = 0;
    steady_clock::duration longest{};
    for (; steady_clock::now() < begun + request.millis("ms"); ++sections) {
        const auto asked = steady_clock::now();
        if (asked < begun + std::chrono::seconds{5}) longest = {};
        enter();
        longest = std::max(longest, steady_clock::now() - asked);
        const long long before = number_of(redis, counter);
        std::this_thread::yield();
        redis.text("SET", counter, before + 1);
        redis.integer("INCR", request.text("own"));
        leave();
        rest();
    }
    return said(sections) + " " + said(std::chrono::duration_cast<milliseconds>(longest).count());
}

/// Reads the counter twice, again and again. Returns how often, or an error if it changed in between.
template <class Enter, class Leave>
std::string look(Servers& servers, const Request& request, Enter enter, Leave leave) {
    RawRedis redis = servers.plain(request);
    const std::string& counter = request.text("counter");
    const auto end = steady_clock::now() + request.millis("ms");
    long long sections = 0;
    bool stable = true;
    for (; steady_clock::now() < end; ++sections) {
        enter();
        const long long before = number_of(redis, counter);
        std::this_thread::yield();
        stable = stable && number_of(redis, counter) == before;
        leave();
        rest();
    }
    return stable ? said(sections) : "!a reader saw a write";
}

// --- the operations of each kind -------------------------------------------------------------------------------------

/// The operations that do not depend on who asks.
template <class Lock>
std::string any_owner_answer(Lock& lock, const Request& request) {
    if (request.operation == "force") return said(lock.force_unlock());
    if (request.operation == "locked") return said(lock.is_locked());
    if (request.operation == "ttl") {
        const auto left = lock.remaining_lease();
        return left ? said(*left == milliseconds::max() ? -1 : left->count()) : "-2";
    }
    return unknown(request);
}

template <class Lock>
std::string lock_answer(Servers& servers, Lock& lock, const Request& request) {
    const std::string& operation = request.operation;
    if (operation == "lock") {
        if (request.has("lease"))
            lock.lock(Lease{request.millis("lease")});
        else
            lock.lock();
        return "ok";
    }
    if (operation == "try") {
        if (request.has("lease"))
            return said(lock.try_lock_for(request.millis("wait"), Lease{request.millis("lease")}));
        if (request.has("wait")) return said(lock.try_lock_for(request.millis("wait")));
        return said(lock.try_lock());
    }
    if (operation == "unlock") {
        std::error_code error;
        lock.unlock(error);
        if (error == errc::not_owner || error == errc::hold_lost) return "!not_owner";
        return error ? "!" + error.message() : "ok";
    }
    if (operation == "held") return said(lock.is_held());
    if (operation == "count") return said(lock.hold_count());
    const auto enter = [&] { lock.lock(); };
    const auto leave = [&] { lock.unlock(); };
    if (operation == "stress") return stress(servers, request, enter, leave);
    if (operation == "look") return look(servers, request, enter, leave);
    return any_owner_answer(lock, request);
}

/// The asynchronous operations, for an owner that is no thread: the Hold objects of each thread named in a request.
template <class Lock>
std::string async_lock_answer(Lock& lock, const Request& request) {
    static std::mutex mutex;
    static std::map<std::string, std::vector<Hold>> all;
    std::unique_lock guard{mutex};
    std::vector<Hold>& held = all[request.thread + " " + request.kind + " " + request.name];  // of this thread only
    guard.unlock();
    const std::string& operation = request.operation;
    const auto kept = [&](Hold hold) {
        const bool got = static_cast<bool>(hold);
        if (got) held.push_back(std::move(hold));
        return got;
    };
    if (operation == "lock") {
        if (!held.empty()) return kept(held.back().again()) ? "ok" : "!nothing";
        auto locking = request.has("lease") ? lock.async_lock(Lease{request.millis("lease")}) : lock.async_lock();
        return kept(std::move(locking).future().get()) ? "ok" : "!nothing";
    }
    if (operation == "try") {
        if (request.has("wait")) return said(kept(lock.async_try_lock_for(request.millis("wait")).future().get()));
        return said(kept(lock.async_try_lock().future().get()));
    }
    if (operation == "unlock" || operation == "unlock_async") {
        Hold hold;
        if (!held.empty()) {
            hold = std::move(held.back());
            held.pop_back();
        }
        const bool waits = operation == "unlock" || !hold;
        const std::error_code error = waits ? hold.unlock() : std::move(hold).async_unlock().future().get();
        if (error == errc::not_owner || error == errc::hold_lost) return "!not_owner";
        return error ? "!" + error.message() : "ok";
    }
    if (operation == "held") return said(!held.empty() && !held.back().lost().stop_requested());
    return any_owner_answer(lock, request);
}

template <class Lock>
std::string fenced_answer(Servers& servers, Lock& lock, const Request& request) {
    if (request.operation == "token") return said(lock.token());
    if (request.operation == "lock_token") return said(lock.lock_and_get_token());
    return lock_answer(servers, lock, request);
}

template <class Semaphore>
std::string semaphore_answer(Servers& servers, Semaphore& semaphore, const Request& request) {
    const std::string& operation = request.operation;
    const int n = request.count("n", 1);
    if (operation == "set") return said(semaphore.try_set_permits(n));
    if (operation == "add") {
        semaphore.add_permits(n);
        return "ok";
    }
    if (operation == "drain") return said(semaphore.drain_permits());
    if (operation == "available") return said(semaphore.available_permits());
    if (operation == "lock") {
        semaphore.acquire(n);
        return "ok";
    }
    if (operation == "try") {
        if (request.has("wait")) return said(semaphore.try_acquire_for(request.millis("wait"), n));
        return said(semaphore.try_acquire(n));
    }
    if (operation == "unlock") {
        semaphore.release(n);
        return "ok";
    }
    if (operation == "unlock_if_exists") return said(semaphore.release_if_exists(n));
    if (operation == "stress")
        return stress(
            servers, request, [&] { semaphore.acquire(); }, [&] { semaphore.release(); });
    return unknown(request);
}

/// Redisson's permits without a lease are held indefinitely. redlatch needs an explicit lease for that.
template <class Semaphore>
std::string permits_answer(Servers& servers, Semaphore& semaphore, const Request& request) {
    const std::string& operation = request.operation;
    const int n = request.count("n", 1);
    const auto with_lease = [&](auto call) {
        return request.has("lease") ? call(Lease{request.millis("lease")}) : call(Lease::forever());
    };
    const auto id = [&] { return PermitId::parse(request.text("id")); };
    if (operation == "set") return said(semaphore.try_set_permits(n));
    if (operation == "change") {
        semaphore.set_permits(n);
        return "ok";
    }
    if (operation == "add") {
        semaphore.add_permits(n);
        return "ok";
    }
    if (operation == "available") return said(semaphore.available_permits());
    if (operation == "acquired") return said(semaphore.acquired_permits());
    if (operation == "permits") return said(semaphore.permits());
    if (operation == "lock") return said(with_lease([&](auto lease) { return semaphore.acquire(lease); }));
    if (operation == "lock_watched") return said(semaphore.acquire());
    if (operation == "try") {
        return said(with_lease([&](auto lease) {
            return request.has("wait") ? semaphore.try_acquire_for(request.millis("wait"), lease)
                                       : semaphore.try_acquire(lease);
        }));
    }
    if (operation == "lock_many") {
        std::string ids;
        for (const PermitId& taken : with_lease([&](auto lease) { return semaphore.acquire(n, lease); }))
            ids += (ids.empty() ? "" : ",") + said(taken);
        return ids;
    }
    if (operation == "unlock") {
        semaphore.release(id());
        return "ok";
    }
    if (operation == "unlock_many") {
        std::vector<PermitId> ids;
        std::istringstream list{request.text("id")};
        for (std::string one; std::getline(list, one, ',');) ids.push_back(PermitId::parse(one));
        semaphore.release(ids);
        return "ok";
    }
    if (operation == "try_unlock") return said(semaphore.try_release(id()));
    if (operation == "prolong") {
        std::error_code error;
        semaphore.update_lease(id(), Lease{request.millis("lease")}, error);
        return error && error != errc::unknown_permit ? "!" + error.message() : said(!error);
    }
    if (operation == "left") {
        const auto left = semaphore.remaining_lease(id());
        return left ? said(*left == milliseconds::max() ? -1 : left->count()) : "nil";
    }
    if (operation == "stress") {
        std::optional<PermitId> taken;
        return stress(
            servers, request, [&] { taken = semaphore.acquire(); }, [&] { semaphore.release(*taken); });
    }
    return unknown(request);
}

template <class Latch>
std::string latch_answer(Latch& latch, const Request& request) {
    const std::string& operation = request.operation;
    if (operation == "set") return said(latch.try_set_count(request.count("n", 1)));
    if (operation == "count") return said(latch.count());
    if (operation == "down") {
        latch.count_down();
        return "ok";
    }
    if (operation == "lock") {
        latch.wait();
        return "ok";
    }
    if (operation == "try") return said(latch.wait_for(request.millis("wait")));
    if (operation == "reset") return said(latch.reset());
    return unknown(request);
}

using Answerer = std::function<std::string(Servers&, const Request&)>;

/// A lock of the RLocks <name>.1 to <name>.3: all on the first server for a MultiLock, each on a server of its own for
/// a RedLock.
template <class Whole>
struct Composed {
    Composed(Servers& servers, const Request& request, bool own_servers) {
        for (std::size_t i = 0; i < 3; ++i)
            members.emplace_back(servers.client(request, own_servers ? i : 0),
                                 request.name + "." + std::to_string(i + 1));
        whole.emplace(members);
    }

    std::deque<RLock> members;
    std::optional<Whole> whole;
};

template <class Whole>
std::string composed_answer(Servers& servers, const Request& request, bool own_servers) {
    static std::mutex mutex;
    static std::map<std::string, std::unique_ptr<Composed<Whole>>> all;
    std::unique_lock guard{mutex};
    auto& object = all[request.name + " " + servers.client(request).id()];
    if (!object) object = std::make_unique<Composed<Whole>>(servers, request, own_servers);
    guard.unlock();
    return lock_answer(servers, *object->whole, request);
}

template <class Lock>
Answerer locks() {
    return [](Servers& servers, const Request& request) {
        return lock_answer(servers, shared<Lock>(servers, request), request);
    };
}

template <class Lock>
Answerer async_locks() {
    return [](Servers& servers, const Request& request) {
        return async_lock_answer(shared<Lock>(servers, request), request);
    };
}

const std::map<std::string, Answerer>& kinds() {
    static const std::map<std::string, Answerer> all{
        {"rlock", locks<RLock>()},
        {"fair", locks<FairLock>()},
        {"spin", locks<SpinLock>()},
        {"strict", locks<NonReentrantLock>()},
        {"strict_fair", locks<NonReentrantFairLock>()},
        {"read",
         [](Servers& servers, const Request& request) {
             return lock_answer(servers, shared<ReadWriteLock>(servers, request).read_lock(), request);
         }},
        {"write",
         [](Servers& servers, const Request& request) {
             return lock_answer(servers, shared<ReadWriteLock>(servers, request).write_lock(), request);
         }},
        {"fenced",
         [](Servers& servers, const Request& request) {
             return fenced_answer(servers, shared<FencedLock>(servers, request), request);
         }},
        {"rlock_async", async_locks<RLock>()},
        {"fair_async", async_locks<FairLock>()},
        {"fenced_async", async_locks<FencedLock>()},
        {"read_async",
         [](Servers& servers, const Request& request) {
             return async_lock_answer(shared<ReadWriteLock>(servers, request).read_lock(), request);
         }},
        {"write_async",
         [](Servers& servers, const Request& request) {
             return async_lock_answer(shared<ReadWriteLock>(servers, request).write_lock(), request);
         }},
        {"multi",
         [](Servers& servers, const Request& request) { return composed_answer<MultiLock>(servers, request, false); }},
        {"red",
         [](Servers& servers, const Request& request) {
             // Our RedLock does not trust a server younger than the longest lease, and these servers are young.
             Request short_lived = request;
             short_lived.arguments.try_emplace("wd", "2000");
             return composed_answer<RedLock>(servers, short_lived, true);
         }},
        {"semaphore",
         [](Servers& servers, const Request& request) {
             return semaphore_answer(servers, shared<Semaphore>(servers, request), request);
         }},
        {"permits",
         [](Servers& servers, const Request& request) {
             return permits_answer(servers, shared<PermitExpirableSemaphore>(servers, request), request);
         }},
        {"latch",
         [](Servers& servers, const Request& request) {
             return latch_answer(shared<CountDownLatch>(servers, request), request);
         }},
    };
    return all;
}

// --- execution -------------------------------------------------------------------------------------------------------

std::string answer(Servers& servers, const Request& request) {
    try {
        if (request.operation == "hello") return "redlatch " + version();
        if (request.operation == "kinds") {
            std::string names;
            try {
                servers.client(request);
            } catch (const Error& error) {
                if (error.code() == errc::unsupported) return "";  // no kind works on such a server
                throw;
            }
            for (const auto& [kind, unused] : kinds()) names += (names.empty() ? "" : ",") + kind;
            return names;
        }
        // Each of its holds has a number of its own after the id.
        if (request.operation == "id") return servers.client(request).id();
        const auto kind = kinds().find(request.kind);
        return kind == kinds().end() ? "!there is no kind " + request.kind : kind->second(servers, request);
    } catch (const std::exception& error) {
        return "!" + std::string{error.what()};
    }
}

/// A thread that executes its requests one after another.
class Worker {
public:
    explicit Worker(Servers& servers) : servers_(servers), thread_([this] { run(); }) {}

    void push(Request request) {
        {
            const std::lock_guard guard{mutex_};
            requests_.push_back(std::move(request));
        }
        arrived_.notify_one();
    }

private:
    void run() {
        while (true) {
            std::unique_lock lock{mutex_};
            arrived_.wait(lock, [&] { return !requests_.empty(); });
            const Request request = std::move(requests_.front());
            requests_.pop_front();
            lock.unlock();
            const std::string said = answer(servers_, request);
            static std::mutex output;
            const std::lock_guard guard{output};
            std::cout << request.number << ' ' << said << std::endl;
        }
    }

    Servers& servers_;
    std::mutex mutex_;                 // guards requests_
    std::condition_variable arrived_;  // push wakes the worker
    std::deque<Request> requests_;
    std::thread thread_;  // last: it uses all members above
};

const Role agent{"agent", [](std::span<const std::string> urls) {
                     Servers servers{urls};
                     std::map<std::string, std::unique_ptr<Worker>> workers;
                     for (std::string line; std::getline(std::cin, line);) {
                         Request request{line};
                         auto& worker = workers[request.thread];
                         if (!worker) worker = std::make_unique<Worker>(servers);
                         worker->push(std::move(request));
                     }
                     ::_exit(0);  // the other end is gone; blocked threads do not matter
                     return 0;
                 }};

}  // namespace
}  // namespace redlatch::test
