// SPDX-License-Identifier: MIT
// The user of the guide to access rights: its rights suffice for every operation, and each of them is needed.
// ctest: timeout=240 long without=address
#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "faults/fault_kit.hpp"
#include "support/command_monitor.hpp"
#include "support/end_state.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

using HiredisClient = Client;
using Words = std::vector<std::string>;
using Fields = std::map<std::string, std::string>;

/// Returns the words after `ACL SETUSER locker` in the guide to access rights.
Words documented_rights() {
    std::ifstream file{REDLATCH_SOURCE_DIR "/examples/guides/access-rights.md"};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    const std::string begin = "\nACL SETUSER locker ";
    const auto at = text.find(begin);
    REQUIRE(at != std::string::npos);
    const auto from = at + begin.size();
    std::istringstream words{text.substr(from, text.find("```", from) - from)};
    return {std::istream_iterator<std::string>{words}, {}};
}

/// Returns the commands among them.
Words documented_commands() {
    Words commands;
    for (const std::string& right : documented_rights())
        if (right.starts_with("+")) commands.push_back(right.substr(1));
    return commands;
}

constexpr int database = 1;

struct Fleet {
    explicit Fleet(RedisServer& server, std::chrono::milliseconds watchdog = 30s)
        : url("redis://locker:secret@127.0.0.1:" + std::to_string(server.port()) + "/" + std::to_string(database)),
          redis(server),
          options(in_shop(watchdog)),
          client(url, options),
          peer(server.url() + "?db=" + std::to_string(database), options) {
        redis.text("SELECT", database);
    }

    static ClientOptions in_shop(std::chrono::milliseconds watchdog) {
        ClientOptions options;
        options.key_prefix = "shop:";
        options.watchdog_timeout = watchdog;
        return options;
    }

    /// Records a refusal. Its consequences (a lost hold, a missing permit) are no refusals.
    void note(const std::error_code& ec) {
        const std::lock_guard hold{mutex};
        if (ec == errc::rejected) refused = true;
        if (ec) others += " " + ec.message();
    }

    bool was_refused() {
        const std::lock_guard hold{mutex};
        return refused;
    }

    template <class L>
    void give_back(L& lock) {
        std::error_code ec;
        lock.unlock(ec);
        note(ec);
        stop_if_refused();
    }

    /// One refusal is enough. Later operations would wait for what it leaves behind.
    void stop_if_refused() {
        if (was_refused()) throw Error(errc::rejected, {}, "seen");
    }

    /// Another thread of the user tries and gets nothing.
    template <class Try>
    void try_in_vain(Try call) {
        start([&] {
            note(code_of([&] {
                const bool held = call();
                CHECK_FALSE(held);
            }));
        }).get();
        stop_if_refused();
    }

    /// The user waits for a lock that the peer holds, and releases it.
    template <class L>
    void wait_for(L& mine, L& theirs, std::chrono::milliseconds at_least = 0ms) {
        theirs.lock();
        const auto waits = client.stats().waits;
        auto waiting = start([&] {
            note(code_of([&] {
                if (mine.try_lock_for(20s)) give_back(mine);
            }));
        });
        eventually([&] { return client.stats().waits > waits || ready(waiting, 0ms); }, 10s);
        ready(waiting, std::max(at_least, 20ms));  // the subscription and the second try, as a rule
        theirs.unlock();
        waiting.get();
    }

    /// Hands a lock over from one thread of the user to another.
    template <class L>
    void pass_on(L& lock) {
        for (int round = 0; round < 100; ++round) {
            const auto handoffs = client.stats().handoffs;
            const auto waits = client.stats().waits;
            lock.lock();
            auto successor = start([&] {
                note(code_of([&] {
                    if (lock.try_lock_for(20s)) give_back(lock);
                }));
            });
            eventually([&] { return client.stats().waits > waits || ready(successor, 0ms); }, 10s);
            ready(successor, 5ms);
            give_back(lock);
            successor.get();
            if (client.stats().handoffs > handoffs || was_refused()) return;
        }
    }

    std::string url;
    RawRedis redis;
    ClientOptions options;
    HiredisClient client;
    HiredisClient peer;  // has all rights

    std::mutex mutex;  // guards the members below: waiting threads call note(), too
    bool refused = false;
    std::string others;
};

/// The operations of one primitive.
struct Use {
    const char* of;
    std::function<void(Fleet&)> run;
};

void use_lock(Fleet& fleet, auto& lock) {
    lock.lock();
    static_cast<void>(lock.is_locked());
    static_cast<void>(lock.is_held());
    static_cast<void>(lock.hold_count());
    static_cast<void>(lock.remaining_lease());
    static_cast<void>(lock.inspect());
    static_cast<void>(lock.is_held_by(7));
    fleet.give_back(lock);
    if (lock.try_lock(Lease{60s})) fleet.give_back(lock);
    lock.lock();
    std::error_code gone;
    static_cast<void>(fleet.client.release_all(gone));
    fleet.note(gone);
    fleet.stop_if_refused();
    lock.unlock(gone);
    if (gone == errc::rejected) fleet.note(gone);
    lock.lock(Lease{60s});
    static_cast<void>(lock.force_unlock());
    lock.unlock(gone);
    if (gone == errc::rejected) fleet.note(gone);
}

void use_reentrant_lock(Fleet& fleet, auto& lock) {
    use_lock(fleet, lock);
    lock.lock();
    lock.lock();
    fleet.give_back(lock);
    fleet.give_back(lock);
}

const std::vector<Use>& uses() {
    static const std::vector<Use> all{
        // The primitives that need most rights come first, so that a missing right is found early.
        {"FairLock",
         [](Fleet& fleet) {
             FairLock mine{fleet.client, "fair"};
             FairLock theirs{fleet.peer, "fair"};
             use_reentrant_lock(fleet, mine);
             theirs.lock();
             fleet.try_in_vain([&] { return mine.try_lock_for(50ms); });  // leaves the queue
             theirs.unlock();
             fleet.wait_for(mine, theirs);
         }},
        {"PermitExpirableSemaphore",
         [](Fleet& fleet) {
             PermitExpirableSemaphore mine{fleet.client, "permits"};
             PermitExpirableSemaphore theirs{fleet.peer, "permits"};
             mine.try_set_permits(1);
             static_cast<void>(mine.exists());
             static_cast<void>(mine.expire(60s));
             static_cast<void>(mine.remove());
             mine.set_permits(2);
             mine.add_permits(1);
             PermitId id = mine.acquire();
             mine.update_lease(id, Lease{60s});
             static_cast<void>(mine.remaining_lease(id));
             static_cast<void>(mine.available_permits());
             static_cast<void>(mine.permits());
             static_cast<void>(mine.inspect());
             mine.release(id);
             static_cast<void>(mine.try_release(id));
             theirs.set_permits(1);
             id = theirs.acquire();
             auto waiting = start([&] { fleet.note(code_of([&] { mine.release(mine.acquire()); })); });
             ready(waiting, 20ms);
             theirs.release(id);
             waiting.get();
         }},
        {"ReadWriteLock",
         [](Fleet& fleet) {
             ReadWriteLock mine{fleet.client, "shared", {.writer_preference = true}};
             ReadWriteLock theirs{fleet.peer, "shared"};
             use_reentrant_lock(fleet, mine.write_lock());
             use_reentrant_lock(fleet, mine.read_lock());
             static_cast<void>(mine.inspect());
             fleet.wait_for(mine.read_lock(), theirs.read_lock());
             auto& readers = theirs.read_lock();
             readers.lock();
             fleet.try_in_vain([&] { return mine.try_lock_for(20ms); });  // withdraws its mark
             readers.unlock();
             mine.lock();
             mine.lock_shared();
             static_cast<void>(mine.force_unlock());  // the reader stays
             fleet.give_back(mine.read_lock());
         }},
        {"RedLock",
         [](Fleet& fleet) {
             HiredisClient quick_client{fleet.url, Fleet::in_shop(6s)};
             RLock only{quick_client, "red"};
             RedLock lock{only};
             if (lock.try_lock_for(20s)) fleet.give_back(lock);  // once the server is old enough
         }},
        {"LeaderElection",
         [](Fleet& fleet) {
             LeaderElection mine{fleet.client, "leader"};
             LeaderElection theirs{fleet.peer, "leader"};
             Term term = mine.campaign();
             const std::optional<Leader> leader = mine.leader();
             // A right to announce that is missing is not reported: it leads without a name.
             const bool named = leader && fleet.redis.integer("DEL", "redlatch_leader:{shop:leader}") == 1;
             if (!named) fleet.note(errc::rejected);
             fleet.note(term.resign());
             term = theirs.campaign();
             std::optional<Leader> seen = theirs.leader();
             auto observing =
                 start([&] { fleet.note(code_of([&] { static_cast<void>(mine.wait_change_for(20s, seen)); })); });
             ready(observing, 20ms);
             static_cast<void>(term.resign());
             observing.get();
         }},
        {"OnceFlag and SingleFlight",
         [](Fleet& fleet) {
             OnceFlag once{fleet.client, "once", {.keep = 60s}};
             once.call([] {});
             static_cast<void>(once.is_done());
             static_cast<void>(once.reset());
             SingleFlight flight{fleet.client, "flight", 60s};
             static_cast<void>(flight.get([] { return "value"; }));
             static_cast<void>(flight.invalidate());
         }},
        {"Semaphore",
         [](Fleet& fleet) {
             Semaphore mine{fleet.client, "seats"};
             Semaphore theirs{fleet.peer, "seats"};
             mine.try_set_permits(2);
             mine.acquire(2);
             mine.release();
             static_cast<void>(mine.release_if_exists());
             mine.add_permits(1);
             static_cast<void>(mine.available_permits());
             static_cast<void>(mine.inspect());
             static_cast<void>(mine.drain_permits());
             auto waiting = start([&] { fleet.note(code_of([&] { mine.acquire(); })); });
             ready(waiting, 20ms);
             theirs.release();
             waiting.get();
             theirs.try_set_permits(0);
             static_cast<void>(mine.exists());
             static_cast<void>(mine.expire(60s));
             static_cast<void>(mine.remove());
             mine.try_set_permits(1, 60s);
         }},
        {"CountDownLatch",
         [](Fleet& fleet) {
             CountDownLatch mine{fleet.client, "start"};
             CountDownLatch theirs{fleet.peer, "start"};
             mine.try_set_count(3);
             static_cast<void>(mine.count());
             static_cast<void>(mine.inspect());
             static_cast<void>(mine.try_wait());
             mine.count_down();
             auto waiting = start([&] { fleet.note(code_of([&] { mine.wait(); })); });
             ready(waiting, 20ms);
             theirs.count_down(2);
             waiting.get();
             mine.try_set_count(2);
             static_cast<void>(mine.exists());
             static_cast<void>(mine.expire(60s));
             static_cast<void>(mine.reset());
         }},
        {"RLock",
         [](Fleet& fleet) {
             RLock mine{fleet.client, "rlock"};
             RLock theirs{fleet.peer, "rlock"};
             use_reentrant_lock(fleet, mine);
             fleet.wait_for(mine, theirs);
             fleet.pass_on(mine);
         }},
        {"FencedLock",
         [](Fleet& fleet) {
             FencedLock mine{fleet.client, "fenced"};
             FencedLock theirs{fleet.peer, "fenced"};
             use_reentrant_lock(fleet, mine);
             static_cast<void>(mine.latest_token());
             fleet.wait_for(mine, theirs);
             fleet.pass_on(mine);
         }},
        {"SpinLock",
         [](Fleet& fleet) {
             SpinLock mine{fleet.client, "spin"};
             SpinLock theirs{fleet.peer, "spin"};
             use_reentrant_lock(fleet, mine);
             fleet.wait_for(mine, theirs);
         }},
        {"Mutex",
         [](Fleet& fleet) {
             Mutex mine{fleet.client, "mutex"};
             Mutex theirs{fleet.peer, "mutex"};
             use_lock(fleet, mine);
             fleet.wait_for(mine, theirs);
             fleet.pass_on(mine);
         }},
        {"MultiLock",
         [](Fleet& fleet) {
             RLock a{fleet.client, "a"};
             RLock b{fleet.client, "b"};
             MultiLock both{a, b};
             use_reentrant_lock(fleet, both);
         }},
        {"StripedLock",
         [](Fleet& fleet) {
             StripedLock stripes{fleet.client, "stripes", 4};
             use_reentrant_lock(fleet, stripes.lock_for("orders"));
             MultiLock several = stripes.locks_for({"orders", "stock"});
             use_reentrant_lock(fleet, several);
         }},
        {"SegmentedSemaphore",
         [](Fleet& fleet) {
             SegmentedSemaphore mine{fleet.client, "stock", 2};
             mine.try_set_permits(2, 600s);
             static_cast<void>(mine.expire(600s));
             const SegmentPermit permit = mine.acquire();
             mine.update_lease(permit, Lease{60s});
             static_cast<void>(mine.remaining_lease(permit));
             mine.release(permit);
             static_cast<void>(mine.hold());
             static_cast<void>(mine.permits());
             static_cast<void>(mine.remove());
         }},
        {"Barrier",
         [](Fleet& fleet) {
             Barrier mine{fleet.client, "barrier", 2}, theirs{fleet.peer, "barrier", 2};
             static_cast<void>(mine.withdraw(mine.arrive()));
             auto waiting = start([&] { fleet.note(code_of([&] { mine.arrive_and_wait(); })); });
             ready(waiting, 20ms);
             static_cast<void>(theirs.arrive());
             waiting.get();
             fleet.stop_if_refused();
             static_cast<void>(mine.inspect());
             static_cast<void>(mine.remove());
         }},
        {"ConditionVariable",
         [](Fleet& fleet) {
             RLock guard{fleet.client, "guard"};
             ConditionVariable mine{fleet.client, "changed"}, theirs{fleet.peer, "changed"};
             auto waiting = start([&] {
                 fleet.note(code_of([&] {
                     std::unique_lock lock(guard);
                     static_cast<void>(mine.wait_for(lock, 20s));
                 }));
             });
             eventually([&] { return theirs.waiters() > 0 || ready(waiting, 0ms); }, 10s);
             static_cast<void>(mine.waiters());
             static_cast<void>(mine.notify_one());
             waiting.get();
             static_cast<void>(mine.notify_all());
         }},
        // The slowest comes last: a place in a queue behind a foreign waiter, for longer than a slot.
        {"FairLock behind a stranger",
         [](Fleet& fleet) {
             FairLock mine{fleet.client, "queue"};
             FairLock theirs{fleet.peer, "queue"};
             fleet.redis.integer("RPUSH", "redisson_lock_queue:{shop:queue}", "stranger:1");
             fleet.redis.call("ZADD", "redisson_lock_timeout:{shop:queue}", "99999999999999", "stranger:1");
             fleet.redis.integer("HSET", "shop:queue", "stranger:2", 1);
             fleet.redis.integer("PEXPIRE", "shop:queue", 600'000);
             fleet.try_in_vain([&] { return mine.try_lock_for(4s); });
             fleet.redis.text("FLUSHDB");
         }},
    };
    return all;
}

/// Runs the operations and records an error that they throw.
void run(Fleet& fleet, const Use& use) {
    fleet.note(code_of([&] { use.run(fleet); }));
}

void make_user(RawRedis& redis, const Words& rights) {
    Words words{"ACL", "SETUSER", "locker"};
    words.insert(words.end(), rights.begin(), rights.end());
    REQUIRE_FALSE(redis.command(words).is_error());
}

/// A server with the user of the guide, and two connections in its database: of the administrator, and of the user.
struct LockersServer {
    LockersServer() {
        make_user(admin, documented_rights());
        user.text("AUTH", "locker", "secret");
        for (RawRedis* redis : {&admin, &user}) redis->text("SELECT", database);
    }

    RedisServer server{{.tcp = true}};
    RawRedis admin{server};
    RawRedis user{server.tcp_url()};
};

/// Returns the commands that the server refused to its user. Leaves out two commands that a Mutex tries for its
/// release: new servers refuse them, but older servers would not accept them in the rights. Leaves out, too, what its
/// waiters do without.
std::set<std::string> refusals(RawRedis& redis) {
    std::set<std::string> objects;
    for (const RawReply& entry : redis.call("ACL", "LOG").elements)
        for (std::size_t i = 0; i + 1 < entry.elements.size(); i += 2)
            if (entry.elements[i].string == "object") objects.insert(entry.elements[i + 1].string);
    objects.erase("delex");
    objects.erase("delifeq");
    // A waiting Mutex and SpinLock poll without these.
    objects.erase("client|id");
    objects.erase("client");  // Redis 6
    objects.erase("__redis__:invalidate");
    return objects;
}

/// Returns the words of a line of MONITOR, the command in lower case.
Words words_of(const std::string& line) {
    Words words;
    for (auto at = line.find("] \"") + 3; at < line.size(); at += 3) {
        std::string& word = words.emplace_back();
        for (; line[at] != '"'; ++at) {
            if (line[at] != '\\') {
                word += line[at];
            } else if (line[++at] == 'x') {
                word += static_cast<char>(std::stoi(line.substr(at + 1, 2), nullptr, 16));
                at += 2;
            } else {
                static const std::string letters = "nrtab", meant = "\n\r\t\a\b";
                const auto which = letters.find(line[at]);
                word += which == std::string::npos ? line[at] : meant[which];
            }
        }
    }
    std::transform(words.at(0).begin(), words[0].end(), words[0].begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return words;
}

/// Records the commands that scripts run, and their keys.
class KeyWatch {
public:
    explicit KeyWatch(const RedisServer& server) : stream_(server), marker_(server) { stream_.call("MONITOR"); }

    struct Found {
        std::size_t scripts = 0;
        std::size_t commands = 0;
        std::set<std::string> undeclared;
    };

    Found take() {
        Found found;
        Words declared;
        marker_.text("ECHO", "the end");
        for (;;) {
            const std::string line = stream_.receive().string;
            const Words words = words_of(line);
            if (words.at(0) == "echo") return found;
            if (line.find(" lua] \"") == std::string::npos) {
                declared.clear();
                if (words[0] != "evalsha" && words[0] != "eval") continue;
                ++found.scripts;
                const auto keys = static_cast<std::ptrdiff_t>(std::stoul(words.at(2)));
                declared.assign(words.begin() + 3, words.begin() + 3 + keys);
            } else if (words[0] != "time" && words[0] != "publish" && words[0] != "pubsub" && words[0] != "info") {
                ++found.commands;
                const std::size_t last = words[0] == "del" ? words.size() : 2;
                for (std::size_t i = 1; i < last; ++i)
                    if (!is_declared(words[i], declared)) found.undeclared.insert(words[0] + " " + words[i]);
            }
        }
    }

private:
    static bool is_declared(const std::string& key, const Words& declared) {
        if (std::find(declared.begin(), declared.end(), key) != declared.end()) return true;
        // The leases of readers, one key a level, are Redisson's. Their keys follow from the lock's, and are in its
        // slot.
        return std::any_of(declared.begin(), declared.end(), [&](const std::string& lock) {
            return key.starts_with("{" + lock + "}:") && key.find(":rwlock_timeout:") != std::string::npos;
        });
    }

    RawRedis stream_;
    RawRedis marker_;
};

// --- a right is missing in the middle of an operation ----------------------------------------------------------------

/// The surroundings of an operation of the table below.
struct Scene {
    template <class Kind>
    Kind mine(const char* name) {
        return Kind{fleet.client, name};
    }

    /// Sends a script that a client sends in the background only.
    void send(const Script& script, Words keys, Words arguments) {
        Words words{"EVAL", script.text(), std::to_string(keys.size())};
        words.insert(words.end(), keys.begin(), keys.end());
        words.insert(words.end(), arguments.begin(), arguments.end());
        const RawReply reply = user.command(words);
        if (reply.is_error()) throw Error(errc::rejected, {}, reply.string);
    }

    Fleet& fleet;
    RawRedis& user;
    std::vector<PermitId> ids{};
};

/// What a script may leave half done if one of its calls is refused.
enum class Half {
    nothing,
    leases,   // extended ones of live owners, or some that belong to nobody and end
    repeats,  // the first of several calls of one kind. A server that allows that one allows all.
    sweep,    // the next command puts the expired permits back
};

struct Step {
    const char* what;
    std::function<void(Scene&)> prepare;  // runs as the peer, which has all rights
    std::function<void(Scene&)> run;      // throws if it was refused
    // A single script, which may be sent once more when the right is there again.
    bool bare = false;
    // Without these rights it is refused, and leaves something that does no harm and has a lease.
    Words leaves{};
    // It finds and notifies the others at the end. If that is refused, the rest of it stands.
    bool tells_last = false;
    Half half = Half::nothing;
};

const std::set<std::string> rights_to_tell{"publish", "lindex", "zscore", "pttl"};

using Seats = Semaphore;
using Slots = PermitExpirableSemaphore;
using Gate = CountDownLatch;

std::string marks_of(Fleet& fleet, const std::string& kind, const std::string& name) {
    return "redlatch_" + kind + "_requests:{shop:" + name + "}:" + fleet.client.id();
}

std::string now_of(Fleet& fleet) { return std::to_string(fleet.redis.now()); }

// The scripts of the locks, sent directly: a client would retry a refused release in the background. The times are far
// apart, and a picture distinguishes them by hundreds of seconds.
const std::string wanted = "99999999999999";
const std::string lock_key = "shop:lock";
const std::string lock_channel = "redisson_lock__channel:{shop:lock}";
const std::string lock_tag = "{shop:lock}";
const std::string token_key = "redisson_lock_token:{shop:lock}";
const std::string queue_key = "redisson_lock_queue:{shop:lock}";
const std::string timeouts_key = "redisson_lock_timeout:{shop:lock}";
const std::string slots_key = "redlatch_lock_slots:{shop:lock}";
const std::string mark_key = "{shop:lock}:redlatch_writer_waits";
const std::string readers_channel = "redisson_rwlock:{shop:lock}";

std::function<void(Scene&)> sending(const Script& script, Words keys, Words arguments) {
    return [&script, keys, arguments](Scene& s) { s.send(script, keys, arguments); };
}

/// Writes fields and counts, and sets the lease.
void put_hash(Scene& s, const Words& fields, std::chrono::seconds lease) {
    Words words{"HSET", lock_key};
    words.insert(words.end(), fields.begin(), fields.end());
    REQUIRE_FALSE(s.fleet.redis.command(words).is_error());
    s.fleet.redis.integer("PEXPIRE", lock_key, lease.count() * 1000);
}

std::function<void(Scene&)> held(const Words& fields, std::chrono::seconds lease = 200s) {
    return [fields, lease](Scene& s) { put_hash(s, fields, lease); };
}

std::function<void(Scene&)> held_fenced(const Words& fields) {
    return [fields](Scene& s) {
        // Ahead of the clock, so the next token is the next number.
        s.fleet.redis.text("SET", token_key, "9000000000000000");
        if (!fields.empty()) put_hash(s, fields, 500s);
    };
}

/// Puts waiters into the queue, each with a slot of ours. One whose name begins with "dead" has expired.
std::function<void(Scene&)> queued(const Words& holder, const Words& waiters) {
    return [holder, waiters](Scene& s) {
        if (!holder.empty()) put_hash(s, holder, 500s);
        const long long now = std::stoll(now_of(s.fleet));
        for (const std::string& waiter : waiters) {
            const std::string ends = std::to_string(now + (waiter.starts_with("dead") ? -1000 : 600'000));
            s.fleet.redis.integer("RPUSH", queue_key, waiter);
            s.fleet.redis.integer("ZADD", timeouts_key, ends, waiter);
            s.fleet.redis.integer("ZADD", slots_key, ends, waiter);
        }
        for (const std::string& key : {queue_key, timeouts_key, slots_key})
            s.fleet.redis.integer("PEXPIRE", key, 4'200'000);
    };
}

/// Adds readers with that many levels, whose leases are a hundred seconds a level. A count of "0" means a dead reader.
/// Other fields are written as they are.
std::function<void(Scene&)> read_by(const Words& readers, std::chrono::seconds lease = 500s) {
    return [readers, lease](Scene& s) {
        Words fields = readers;
        for (std::size_t i = 0; i + 1 < readers.size(); i += 2) {
            const bool reader = readers[i].size() == 3;
            for (int level = 1; reader && level <= std::stoi(readers[i + 1]); ++level)
                s.fleet.redis.command({"SET", lock_tag + ":" + readers[i] + ":rwlock_timeout:" + std::to_string(level),
                                       "1", "PX", std::to_string(level * 100'000)});
            if (fields[i + 1] == "0") fields[i + 1] = "1";
        }
        put_hash(s, fields, lease);
    };
}

std::function<void(Scene&)> marked(std::function<void(Scene&)> prepare) {
    return [prepare](Scene& s) {
        prepare(s);
        s.fleet.redis.command({"SET", mark_key, "u", "PX", "300000"});
    };
}

std::vector<Step> steps_of_locks() {
    static const auto nothing = [](Scene&) {};
    static const auto bare = [](const char* what, std::function<void(Scene&)> prepare, std::function<void(Scene&)> run,
                                Half half = Half::nothing) {
        return Step{what, std::move(prepare), std::move(run), true, {}, false, half};
    };
    static const auto telling = [](const char* what, std::function<void(Scene&)> prepare,
                                   std::function<void(Scene&)> run, Half half = Half::nothing) {
        return Step{what, std::move(prepare), std::move(run), true, {}, true, half};
    };
    static const auto leaving = [](const char* what, Words rights, std::function<void(Scene&)> prepare,
                                   std::function<void(Scene&)> run) {
        return Step{what, std::move(prepare), std::move(run), true, std::move(rights), true};
    };
    namespace lua = scripts;
    const Words hash{lock_key};
    const Words told{lock_key, lock_channel};
    const Words fenced{lock_key, token_key};
    const Words fenced_told{lock_key, token_key, lock_channel};
    const Words fair{lock_key, queue_key, timeouts_key, slots_key};
    const Words shared{lock_key, mark_key};
    const Words shared_told{lock_key, readers_channel};
    const std::string own = lock_channel + ":";
    return {
        bare("RLock acquire", nothing, sending(digested<lua::rlock_acquire>, hash, {"u:1", "1", "500000", wanted})),
        bare("RLock reentry", held({"u:1", "1"}),
             sending(digested<lua::rlock_acquire>, hash, {"u:1", "2", "500000", wanted})),
        bare("RLock release of a level", held({"u:1", "3"}),
             sending(digested<lua::rlock_release>, told, {"u:1", "2", "500000", "publish"})),
        telling("RLock last release", held({"u:1", "1"}),
                sending(digested<lua::rlock_release>, told, {"u:1", "0", "0", "publish"})),
        telling("RLock give-up", held({"u:1", "1"}),
                sending(digested<lua::rlock_give_up>, told, {"publish", "", "u:0", "u:1"})),
        bare("RLock hand-over", held({"u:1", "1"}, 500s),
             sending(digested<lua::rlock_hand_over>, told, {"u:1", "u:2", "200000", "publish", wanted})),
        bare("RLock renewal", held({"u:1", "1"}), sending(digested<lua::rlock_renew>, hash, {"500000", wanted, "u:1"})),

        bare("FencedLock acquire", held_fenced({}),
             sending(digested<lua::fenced_acquire>, fenced, {"u:1", "1", "500000", wanted})),
        bare("FencedLock reentry", held_fenced({"u:1", "1"}),
             sending(digested<lua::fenced_acquire>, fenced, {"u:1", "2", "900000", wanted})),
        bare("FencedLock hand-over", held_fenced({"u:1", "1"}),
             sending(digested<lua::fenced_hand_over>, fenced_told, {"u:1", "u:2", "200000", "publish", wanted})),

        bare("FairLock acquire", nothing,
             sending(digested<lua::fair_acquire>, fair, {"publish", own, "u:1", "1", "500000", "600000", wanted, "0"})),
        bare("FairLock reentry", held({"u:1", "1"}),
             sending(digested<lua::fair_acquire>, fair, {"publish", own, "u:1", "2", "500000", "600000", wanted, "0"})),
        bare("FairLock queueing up", held({"p:1", "1"}),
             sending(digested<lua::fair_acquire>, fair, {"publish", own, "u:1", "1", "500000", "600000", wanted, "0"})),
        bare("FairLock queueing up behind others", queued({"p:1", "1"}, {"u:2", "p:2"}),
             sending(digested<lua::fair_acquire>, fair, {"publish", own, "u:1", "1", "500000", "600000", wanted, "0"})),
        // The script extends the time to live of the queue's keys before it is refused.
        leaving(
            "FairLock asking again", {"zadd"}, queued({"p:1", "1"}, {"u:2", "u:1"}),
            sending(digested<lua::fair_acquire>, fair, {"publish", own, "u:1", "1", "500000", "900000", wanted, "0"})),
        bare("FairLock acquire of the first in the queue", queued({}, {"u:1", "u:2"}),
             sending(digested<lua::fair_acquire>, fair, {"publish", own, "u:1", "1", "500000", "600000", wanted, "0"})),
        // The dead waiter may be removed from the time-outs only. It stays in the queue, but without a time-out it
        // counts as dead.
        leaving(
            "FairLock acquire behind a dead one", {"zrem", "lrem", "hincrby", "pexpire"},
            queued({}, {"dead", "u:1", "u:2"}),
            sending(digested<lua::fair_acquire>, fair, {"publish", own, "u:1", "1", "500000", "600000", wanted, "0"})),
        bare("FairLock release of a level", held({"u:1", "3"}),
             sending(digested<lua::fair_release>, fair, {"publish", own, "u:1", "2", "500000"})),
        telling("FairLock last release", queued({"u:1", "1"}, {"u:2"}),
                sending(digested<lua::fair_release>, fair, {"publish", own, "u:1", "0", "0"})),
        telling("FairLock leaving the queue", queued({"p:1", "1"}, {"u:2", "u:1", "p:2"}),
                sending(digested<lua::fair_leave>, fair, {"publish", own, "u:1"})),
        // The hold is released even if its owner's place in the queue, which does not exist, cannot be removed.
        leaving("FairLock give-up", {"zrem", "lrem"}, queued({"u:1", "1"}, {"u:2"}),
                sending(digested<lua::fair_leave>, fair, {"publish", own, "u:1"})),
        // Places that were refreshed before the refusal belong to live waiters.
        leaving("FairLock refresh", {"zadd", "zscore", "lindex"}, queued({"p:1", "1"}, {"u:2", "u:1"}),
                sending(digested<lua::fair_refresh>, fair, {"publish", own, "900000", wanted, "u:2", "u:1"})),
        leaving("FairLock refresh of a free lock", {"zadd", "zscore", "lindex", "publish"}, queued({}, {"u:2", "u:1"}),
                sending(digested<lua::fair_refresh>, fair, {"publish", own, "900000", wanted, "u:2", "u:1"})),

        bare("ReadWriteLock read acquire", nothing,
             sending(digested<lua::read_acquire>, shared, {"u:1", "1", "500000", "u:1:write", lock_tag, wanted})),
        bare("ReadWriteLock read acquire beside another", read_by({"mode", "read", "p:1", "1"}, 100s),
             sending(digested<lua::read_acquire>, shared, {"u:1", "1", "500000", "u:1:write", lock_tag, wanted})),
        bare("ReadWriteLock read acquire of the writer", read_by({"mode", "write", "u:1:write", "1"}, 100s),
             sending(digested<lua::read_acquire>, shared, {"u:1", "1", "500000", "u:1:write", lock_tag, wanted})),
        bare("ReadWriteLock read reentry", read_by({"mode", "read", "u:1", "1"}, 100s),
             sending(digested<lua::read_acquire>, shared, {"u:1", "2", "500000", "u:1:write", lock_tag, wanted})),
        bare("ReadWriteLock read reentry after a release that did not arrive",
             read_by({"mode", "read", "u:1", "3"}, 300s),
             sending(digested<lua::read_acquire>, shared, {"u:1", "2", "500000", "u:1:write", lock_tag, wanted})),
        bare("ReadWriteLock read release of a level", read_by({"mode", "read", "u:1", "3"}, 300s),
             sending(digested<lua::read_release>, shared_told, {"u:1", "1", "500000", "publish", lock_tag}),
             Half::repeats),
        telling("ReadWriteLock last read release", read_by({"mode", "read", "u:1", "2"}, 200s),
                sending(digested<lua::read_release>, shared_told, {"u:1", "0", "0", "publish", lock_tag}),
                Half::leases),
        telling("ReadWriteLock read release beside another", read_by({"mode", "read", "u:1", "9", "p:1", "1"}, 900s),
                sending(digested<lua::read_release>, shared_told, {"u:1", "0", "0", "publish", lock_tag}),
                Half::repeats),
        bare("ReadWriteLock read release of the writer", read_by({"mode", "write", "u:1:write", "1", "u:1", "1"}, 500s),
             sending(digested<lua::read_release>, shared_told, {"u:1", "0", "0", "publish", lock_tag})),
        telling("ReadWriteLock read give-up", read_by({"mode", "read", "u:1", "1"}, 100s),
                sending(digested<lua::read_give_up>, shared_told, {"publish", lock_tag, "u:0", "u:1"}), Half::leases),
        bare("ReadWriteLock read renewal", read_by({"mode", "read", "u:1", "2"}, 200s),
             sending(digested<lua::read_renew>, hash, {"500000", wanted, "u:1"}), Half::leases),
        bare("ReadWriteLock write acquire", marked(nothing),
             sending(digested<lua::write_acquire>, shared, {"u:1:write", "1", "500000", lock_tag, "u", "0", wanted})),
        // Dead readers may be removed.
        leaving(
            "ReadWriteLock write acquire after dead readers", {"del", "hset", "pexpire"},
            marked(read_by({"mode", "read", "p:1", "0"}, 500s)),
            sending(digested<lua::write_acquire>, shared, {"u:1:write", "1", "500000", lock_tag, "u", "0", wanted})),
        bare("ReadWriteLock write reentry", held({"mode", "write", "u:1:write", "1"}),
             sending(digested<lua::write_acquire>, shared, {"u:1:write", "2", "500000", lock_tag, "u", "0", wanted})),
        bare("ReadWriteLock write release of a level", held({"mode", "write", "u:1:write", "3"}),
             sending(digested<lua::write_release>, shared_told, {"u:1:write", "2", "500000", "publish", lock_tag})),
        telling("ReadWriteLock last write release", held({"mode", "write", "u:1:write", "1"}),
                sending(digested<lua::write_release>, shared_told, {"u:1:write", "0", "0", "publish", lock_tag})),
        telling("ReadWriteLock write release that goes on as a reader",
                read_by({"mode", "write", "u:1:write", "1", "u:1", "1"}, 500s),
                sending(digested<lua::write_release>, shared_told, {"u:1:write", "0", "0", "publish", lock_tag})),
        telling("ReadWriteLock write give-up", held({"mode", "write", "u:1:write", "1"}),
                sending(digested<lua::write_give_up>, shared_told, {"publish", lock_tag, "u:0:write", "u:1:write"})),
        telling("ReadWriteLock withdrawal", marked(nothing),
                sending(digested<lua::write_withdraw>, {mark_key, readers_channel}, {"u", "publish"})),

        bare("Mutex acquire", nothing, sending(digested<lua::mutex_acquire>, hash, {"u:1", "500000", wanted})),
        bare(
            "Mutex acquire that is sent again",
            [](Scene& s) {
                s.fleet.redis.command({"SET", lock_key, "u:1", "PX", "200000"});
            },
            sending(digested<lua::mutex_acquire>, hash, {"u:1", "500000", wanted})),
        bare(
            "Mutex release",
            [](Scene& s) {
                s.fleet.redis.command({"SET", lock_key, "u:1", "PX", "200000"});
            },
            sending(digested<lua::mutex_release>, hash, {"u:1"})),
        bare(
            "Mutex give-up",
            [](Scene& s) {
                s.fleet.redis.command({"SET", lock_key, "u:1", "PX", "200000"});
            },
            sending(digested<lua::mutex_give_up>, hash, {"u:0", "u:1"})),
        // By then the lease is that of the next holder. The owner releases its hold by another command.
        leaving(
            "Mutex hand-over", {"set"},
            [](Scene& s) {
                s.fleet.redis.command({"SET", lock_key, "u:1", "PX", "500000"});
            },
            sending(digested<lua::mutex_hand_over>, hash, {"u:1", "u:2", "200000", wanted})),
        bare(
            "Mutex renewal",
            [](Scene& s) {
                s.fleet.redis.command({"SET", lock_key, "u:1", "PX", "200000"});
            },
            sending(digested<lua::mutex_renew>, hash, {"500000", wanted, "u:1"})),
    };
}

const std::vector<Step>& steps() {
    static const auto seats = [](std::ptrdiff_t n) {
        return [n](Scene& s) { Seats{s.fleet.peer, "seats"}.try_set_permits(n); };
    };
    // The peer holds two of ten permits, a third has expired, and the user has two more: `ids`.
    static const auto slots = [](Scene& s) {
        Slots theirs{s.fleet.peer, "slots"};
        theirs.try_set_permits(10);
        static_cast<void>(theirs.acquire(2, Lease{600s}));
        s.ids = theirs.acquire(2, Lease{500s});
        static_cast<void>(theirs.acquire(Lease{1ms}));
        const auto left = [&] { return s.fleet.redis.integer("ZCOUNT", "{shop:slots}:timeout", 0, now_of(s.fleet)); };
        eventually([&] { return left() == 1; });
    };
    static const auto gate = [](std::ptrdiff_t n) {
        return [n](Scene& s) { Gate{s.fleet.peer, "gate"}.try_set_count(n); };
    };
    static const auto nothing = [](Scene&) {};
    static const std::vector<Step> of_synchronizers{
        {"Semaphore try_set_permits", nothing, [](Scene& s) { s.mine<Seats>("seats").try_set_permits(3); }},
        {"Semaphore acquire", seats(5), [](Scene& s) { return s.mine<Seats>("seats").try_acquire(2); }},
        {"Semaphore release", seats(5), [](Scene& s) { s.mine<Seats>("seats").release(2); }},
        {"Semaphore release that creates it", nothing, [](Scene& s) { s.mine<Seats>("seats").release(2); }},
        {"Semaphore release_if_exists", seats(5), [](Scene& s) { s.mine<Seats>("seats").release_if_exists(2); }},
        {"Semaphore add_permits", seats(5), [](Scene& s) { s.mine<Seats>("seats").add_permits(-3); }},
        {"Semaphore drain_permits", seats(5),
         [](Scene& s) { static_cast<void>(s.mine<Seats>("seats").drain_permits()); }},
        {"Semaphore try_set_permits with an expiry", nothing,
         [](Scene& s) { s.mine<Seats>("seats").try_set_permits(3, 300s); }},
        {"Semaphore expire", seats(5), [](Scene& s) { s.mine<Seats>("seats").expire(300s); }},
        {"Semaphore remove", seats(5), [](Scene& s) { s.mine<Seats>("seats").remove(); }},
        {"Semaphore take-back",
         [](Scene& s) {
             Seats{s.fleet.peer, "seats"}.try_set_permits(5);
             s.fleet.redis.call("HSET", marks_of(s.fleet, "semaphore", "seats"), "0", "7:2");
             s.fleet.redis.integer("PEXPIRE", marks_of(s.fleet, "semaphore", "seats"), 90'000);
         },
         [](Scene& s) {
             s.send(digested<scripts::semaphore_give_back>,
                    {"shop:seats", marks_of(s.fleet, "semaphore", "seats"), "redisson_sc:{shop:seats}"},
                    {"0", "7", "99999999999999", "90000", "0", "publish"});
         }},
        {"PermitExpirableSemaphore set_permits", nothing, [](Scene& s) { s.mine<Slots>("slots").set_permits(4); }},
        {"PermitExpirableSemaphore set_permits anew", slots, [](Scene& s) { s.mine<Slots>("slots").set_permits(20); }},
        {"PermitExpirableSemaphore add_permits", slots, [](Scene& s) { s.mine<Slots>("slots").add_permits(2); }},
        {"PermitExpirableSemaphore acquire", slots,
         [](Scene& s) { return s.mine<Slots>("slots").try_acquire(3, Lease{400s}); }},
        {"PermitExpirableSemaphore acquire of one", slots,
         [](Scene& s) { return s.mine<Slots>("slots").try_acquire(Lease{400s}); }},
        {"PermitExpirableSemaphore acquire of too many",
         slots,
         [](Scene& s) { return s.mine<Slots>("slots").try_acquire(9, Lease{400s}); },
         false,
         {},
         false,
         Half::sweep},
        {"PermitExpirableSemaphore acquire where nobody has any",
         [](Scene& s) {
             Slots{s.fleet.peer, "slots"}.try_set_permits(10);
         },
         [](Scene& s) { return s.mine<Slots>("slots").try_acquire(3, Lease{400s}); }},
        {"PermitExpirableSemaphore release",
         slots,
         [](Scene& s) { s.mine<Slots>("slots").release(s.ids); },
         false,
         {},
         false,
         Half::repeats},
        {"PermitExpirableSemaphore release of one",
         slots,
         [](Scene& s) { s.mine<Slots>("slots").release(s.ids.at(0)); },
         false,
         {},
         false,
         Half::repeats},
        {"PermitExpirableSemaphore update_lease", slots,
         [](Scene& s) { s.mine<Slots>("slots").update_lease(s.ids.at(0), Lease{900s}); }},
        {"PermitExpirableSemaphore expire", slots, [](Scene& s) { s.mine<Slots>("slots").expire(300s); }},
        {"PermitExpirableSemaphore expire at another time",
         [](Scene& s) {
             slots(s);
             s.fleet.redis.integer("PEXPIRE", "shop:slots", 600'000);
         },
         [](Scene& s) { s.mine<Slots>("slots").expire(300s); }},
        {"PermitExpirableSemaphore remove", slots, [](Scene& s) { s.mine<Slots>("slots").remove(); }},
        {"PermitExpirableSemaphore permits", slots, [](Scene& s) { s.mine<Slots>("slots").permits(); }},
        {"PermitExpirableSemaphore renewal",
         slots,
         [](Scene& s) {
             s.send(digested<scripts::permit_renew>, {"{shop:slots}:timeout"},
                    {"800000", "99999999999999", std::string{s.ids.at(0).bytes()}, std::string{s.ids.at(1).bytes()}});
         },
         false,
         {},
         false,
         Half::repeats},
        {"PermitExpirableSemaphore take-back",
         slots,
         [](Scene& s) {
             s.send(digested<scripts::permit_take_back>,
                    {"shop:slots", marks_of(s.fleet, "permit", "slots"), "{shop:slots}:timeout",
                     "redisson_sc:{shop:slots}"},
                    {"0", "7", "99999999999999", "90000", "0", "publish", std::string{s.ids.at(0).bytes()},
                     std::string{s.ids.at(1).bytes()}});
         },
         false,
         {},
         false,
         Half::repeats},
        {"CountDownLatch try_set_count", nothing, [](Scene& s) { s.mine<Gate>("gate").try_set_count(3); }},
        {"CountDownLatch count_down", gate(5), [](Scene& s) { s.mine<Gate>("gate").count_down(2); }},
        {"CountDownLatch last count_down", gate(2), [](Scene& s) { s.mine<Gate>("gate").count_down(2); }},
        {"CountDownLatch last count_down of a second round",
         [](Scene& s) {
             Gate theirs{s.fleet.peer, "gate"};
             theirs.try_set_count(1);
             theirs.count_down();
             theirs.try_set_count(2);
         },
         [](Scene& s) { s.mine<Gate>("gate").count_down(2); }},
        {"CountDownLatch expire", gate(5), [](Scene& s) { s.mine<Gate>("gate").expire(300s); }},
        {"CountDownLatch reset", gate(5), [](Scene& s) { s.mine<Gate>("gate").reset(); }},
    };
    static const std::vector<Step> all = [] {
        std::vector<Step> both = steps_of_locks();
        both.insert(both.end(), of_synchronizers.begin(), of_synchronizers.end());
        return both;
    }();
    return all;
}

/// A script of a lock whose waiters queue up on the server.
struct QueueStep {
    Step step;
    bool has_waiter;           // one that listens is in the queue
    std::vector<Fields> done;  // the fields that the lock may have when the script has done its work
    Fields granted;            // those of a lock that was granted to the waiter
};

// Clients of which a release grants.
const std::string queue_me = "22222222-2222-8222-8222-222222222222";
const std::string queue_head = "11111111-1111-8111-8111-111111111111";

enum Waiters { none, dead, live, live_after_dead };

/// The same of both sides of a read-write lock, where the waiter is a reader or a writer.
void add_read_write_steps(std::vector<QueueStep>& all) {
    namespace lua = scripts;
    const std::string queue = "redlatch_rwlock_queue:{shop:lock}", places = "redlatch_rwlock_places:{shop:lock}";
    const Words acquires{lock_key, mark_key, readers_channel, queue, places};
    const Words changes{lock_key, readers_channel, mark_key, queue, places};
    const std::string me = queue_me + ":1", successor = queue_me + ":2", other = "p:1", end = ":write";
    const auto read_by = [](const Words& readers) {
        Fields fields{{"mode", "read"}};
        for (const std::string& reader : readers) fields[reader] = "1";
        return fields;
    };
    const auto written_by = [&](const std::string& writer) { return Fields{{"mode", "write"}, {writer + end, "1"}}; };
    const Fields free{}, mine = read_by({me}), beside = read_by({me, other}), theirs = read_by({other}),
                         written = written_by(me), written_by_other = written_by(other);
    Fields both = written;
    both[me] = "1";
    for (const bool writes : {false, true}) {
        const std::string id = queue_head + (writes ? end : ""), place = queue_head + ":7" + (writes ? end : "");
        const Fields granted = writes ? written_by(queue_head + ":7") : read_by({queue_head + ":7"});
        const auto prepare = [=](const Fields& holders, Waiters waiters) {
            return [=](Scene& s) {
                RawRedis& redis = s.fleet.redis;
                for (const auto& [field, value] : holders) {
                    redis.integer("HSET", lock_key, field, value);
                    if (field != "mode" && !field.ends_with(end))
                        redis.text("SET", lock_tag + ":" + field + ":rwlock_timeout:1", "1", "PX", 500'000);
                }
                if (!holders.empty()) redis.integer("PEXPIRE", lock_key, 500'000);
                Words ids;
                if (waiters == dead || waiters == live_after_dead)
                    ids.push_back("dead0000-0000-8000-8000-000000000000");
                if (waiters >= live) ids.push_back(id);
                for (const std::string& one : ids) {
                    const std::string ends = std::to_string(std::stoll(now_of(s.fleet)) + 600'000);
                    redis.integer("RPUSH", queue, one);
                    redis.integer("HSET", places, one, "7 500000 " + ends + " " + ends + (writes ? " w" : " r"));
                    redis.integer("PEXPIRE", queue, 120'000);
                    redis.integer("PEXPIRE", places, 120'000);
                }
            };
        };
        for (const Waiters waiters : {none, dead, live, live_after_dead}) {
            const auto add = [&](const char* what, const Script& script, const Words& keys, const Fields& holders,
                                 const Words& arguments, std::vector<Fields> done) {
                all.push_back({Step{what, prepare(holders, waiters), sending(script, keys, arguments), true},
                               waiters >= live, std::move(done), granted});
            };
            const auto reads = [&](const char* what, const Fields& holders, const char* way, const Fields& done) {
                add(what, digested<lua::read_acquire>, acquires, holders,
                    {me, "1", "500000", queue_me + ":0:write", lock_tag, wanted, "PUBLISH", way}, {done});
            };
            const auto writes_by_asking = [&](const char* what, const Fields& holders, const char* way,
                                              const Fields& done) {
                add(what, digested<lua::write_acquire>, acquires, holders,
                    {me + end, "1", "500000", lock_tag, queue_me, "5000", wanted, "PUBLISH", way}, {done});
            };
            reads("read acquire", {}, "1", mine);
            reads("read acquire beside another", theirs, "1", beside);
            reads("read acquire of a written lock", written_by_other, "1", written_by_other);
            reads("poll as a reader", written_by_other, "2", written_by_other);
            writes_by_asking("write acquire", {}, "1", written);
            writes_by_asking("write acquire of a read lock", theirs, "1", theirs);
            writes_by_asking("write acquire of a written lock", written_by_other, "1", written_by_other);
            const Words last{me, "0", "0", "PUBLISH", lock_tag}, last_write{me + end, "0", "0", "PUBLISH", lock_tag};
            add("last read release", digested<lua::read_release>, changes, mine, last, {free, granted});
            add("read release beside another", digested<lua::read_release>, changes, beside, last, {theirs});
            add("last write release", digested<lua::write_release>, changes, written, last_write, {free, granted});
            add("write release of one that reads", digested<lua::write_release>, changes, both, last_write, {mine});
            add("read give-up", digested<lua::read_give_up>, changes, mine, {"PUBLISH", lock_tag, me, successor},
                {free, granted});
            add("write give-up", digested<lua::write_give_up>, changes, written,
                {"PUBLISH", lock_tag, me + end, successor + end}, {free, granted});
            add("give-up of a place", writes ? digested<lua::write_give_up> : digested<lua::read_give_up>, changes,
                theirs, {"PUBLISH", lock_tag, place}, {theirs});
            // Who may not delete a field leaves the successor beside the owner, with whose hold it ends.
            Fields two_writers = written;
            two_writers[successor + end] = "1";
            add("read stay", digested<lua::read_stay>, changes, mine, {me, successor, "200000", "PUBLISH", lock_tag},
                {read_by({successor}), read_by({me, successor})});
            add("write stay", digested<lua::write_stay>, changes, written,
                {me + end, successor + end, "200000", "PUBLISH", lock_tag}, {written_by(successor), two_writers});
        }
    }
}

std::vector<QueueStep> queue_steps() {
    namespace lua = scripts;
    const std::string queue = "redlatch_lock_queue:{shop:lock}", places = "redlatch_lock_places:{shop:lock}";
    const std::string me = queue_me + ":1", successor = queue_me + ":2", waiter = queue_head + ":7", other = "p:1";
    const Fields free{}, mine{{me, "1"}}, deeper{{me, "2"}}, theirs{{other, "1"}}, passed_on{{successor, "1"}},
        granted{{waiter, "1"}};
    std::vector<QueueStep> all;
    for (const bool fenced : {false, true}) {
        Words keys{lock_key, lock_channel, queue, places};
        if (fenced) keys.push_back(token_key);
        const auto prepare = [=](const Words& holder, Waiters waiters) {
            return [=](Scene& s) {
                RawRedis& redis = s.fleet.redis;
                if (!holder.empty()) put_hash(s, holder, 500s);
                if (fenced) redis.text("SET", token_key, "9000000000000000");
                Words ids;
                if (waiters == dead || waiters == live_after_dead)
                    ids.push_back("dead0000-0000-8000-8000-000000000000");
                if (waiters >= live) ids.push_back(queue_head);
                for (const std::string& id : ids) {
                    const std::string ends = std::to_string(std::stoll(now_of(s.fleet)) + 600'000);
                    redis.integer("RPUSH", queue, id);
                    redis.integer("HSET", places, id, "7 500000 " + ends + " " + ends + (fenced ? " f" : " p"));
                    redis.integer("PEXPIRE", queue, 120'000);
                    redis.integer("PEXPIRE", places, 120'000);
                }
            };
        };
        const auto add = [&](const char* what, const Script& script, const Words& holder, Waiters waiters,
                             const Words& arguments, std::vector<Fields> done) {
            all.push_back({Step{what, prepare(holder, waiters), sending(script, keys, arguments), true},
                           waiters >= live, std::move(done), granted});
        };
        const Script& acquire = fenced ? digested<lua::fenced_queue_acquire> : digested<lua::queue_acquire>;
        const Script& release = fenced ? digested<lua::fenced_queue_release> : digested<lua::queue_release>;
        const Script& give_up = fenced ? digested<lua::fenced_queue_give_up> : digested<lua::queue_give_up>;
        const Script& hand_over = fenced ? digested<lua::fenced_queue_hand_over> : digested<lua::queue_hand_over>;
        const Words first{me, "1", "500000", wanted, "PUBLISH", "1"}, again{me, "2", "500000", wanted, "PUBLISH", "1"};
        const Words last{me, "0", "0", "PUBLISH"};
        for (const Waiters waiters : {none, dead, live, live_after_dead}) {
            add("acquire", acquire, {}, waiters, first, {mine});
            add("reentry", acquire, {me, "1"}, waiters, again, {deeper});
            add("acquire of a held lock", acquire, {other, "1"}, waiters, first, {theirs});
            add("poll for a held lock", acquire, {other, "1"}, waiters, {me, "1", "500000", wanted, "PUBLISH", "2"},
                {theirs});
            add("release of a level", release, {me, "3"}, waiters, {me, "2", "500000", "PUBLISH"}, {deeper});
            add("last release", release, {me, "1"}, waiters, last, {free, granted});
            add("release of nothing", release, {other, "1"}, waiters, last, {theirs});
            add("give-up of a hold", give_up, {me, "1"}, waiters, {"PUBLISH", "", me, successor}, {free, granted});
            add("give-up of a place", give_up, {other, "1"}, waiters, {"PUBLISH", "", waiter}, {theirs});
            add("hand-over", hand_over, {me, "1"}, waiters, {me, successor, "200000", "PUBLISH", wanted}, {passed_on});
            if (!fenced)
                add("stay", digested<lua::queue_stay>, {me, "1"}, waiters, {me, successor, "200000", "PUBLISH"},
                    {passed_on});
        }
    }
    // The first waiter of a FairLock can be granted it, too.
    const Words fair{lock_key, queue_key, timeouts_key, slots_key};
    const auto marked_waiter = [=](Scene& s) {
        put_hash(s, {me, "1"}, 500s);
        const std::string ends = std::to_string(std::stoll(now_of(s.fleet)) + 600'000);
        s.fleet.redis.integer("RPUSH", queue_key, waiter);
        s.fleet.redis.integer("ZADD", timeouts_key, ends, waiter);
        s.fleet.redis.integer("ZADD", slots_key, ends + ".5", waiter);
        for (const std::string& key : {queue_key, timeouts_key, slots_key})
            s.fleet.redis.integer("PEXPIRE", key, 4'200'000);
    };
    all.push_back(
        {Step{"last release of a FairLock", marked_waiter,
              sending(digested<lua::fair_release>, fair, {"PUBLISH", lock_channel + ":", me, "0", "0"}), true},
         true,
         {free, granted},
         granted});
    all.push_back(
        {Step{"stay of a FairLock", marked_waiter,
              sending(digested<lua::fair_stay>, fair, {"PUBLISH", lock_channel + ":", me, successor, "200000"}), true},
         true,
         {passed_on},
         granted});
    add_read_write_steps(all);
    return all;
}

enum class Detail { shape, values, values_and_times };

/// Describes the data on the server. The shape leaves out what is random. Shows leases, and times unless they are
/// wanted, by hundreds of seconds. Leaves out the marks of requests, unless they never expire.
std::string picture(RawRedis& redis, Detail detail) {
    const bool exact = detail != Detail::shape;
    const long long now = std::stoll(redis.list("TIME").at(0)) * 1000;
    std::string all;
    Words keys = redis.keys();
    std::sort(keys.begin(), keys.end());
    for (const std::string& key : keys) {
        if (key.find("_requests:") != std::string::npos) {
            if (redis.integer("PTTL", key) == -1) all += key + " for ever; ";
            continue;
        }
        const std::string type = redis.text("TYPE", key);
        const std::string text = type == "string" ? redis.command({"GET", key}).string : "";
        if (type == "none" || (type == "string" && text.empty())) continue;  // expired meanwhile
        all += key + "=";
        if (type == "string") {
            const bool number = text.find_first_not_of("-0123456789") == std::string::npos;
            all += exact || number ? text : "text";
        } else if (type == "zset") {
            const Words members = redis.list("ZRANGE", key, 0, -1, "WITHSCORES");
            for (std::size_t i = 0; i + 1 < members.size(); i += 2)
                all += "(" + (exact ? members[i] + ":" : "") +
                       (detail == Detail::values_and_times
                            ? members[i + 1]
                            : std::to_string((std::stoll(members[i + 1]) - now + 50'000) / 100'000)) +
                       ")";
        } else if (type == "hash") {
            for (const auto& [field, value] : redis.hgetall(key))
                all += exact ? field + ":" + value : "{" + value + "}";
        } else {
            for (const std::string& element : redis.list("LRANGE", key, 0, -1)) all += exact ? element : "[]";
        }
        const long long left = redis.integer("PTTL", key);
        // Coarsely, so that it is the same in two pictures of one state. The longer the time, the coarser.
        const long long unit = left > 1'000'000'000 ? 1'000'000'000 : 100'000;
        all += left < 0 ? " for ever; " : " for " + std::to_string((left + unit / 2) / unit) + "; ";
    }
    return all;
}

// --- each call of a script is refused in turn ------------------------------------------------------------------------

/// Returns the name of a call without the level of a reader's lease: rights do not depend on it.
std::string kind_of(const std::string& name) {
    const auto level = name.find(":rwlock_timeout:");
    return level == std::string::npos ? name : name.substr(0, level + 16);
}

/// A call of a script, and the data on the server before it.
class RecordedCall {
public:
    /// Runs the step once, undisturbed. The server does not know the script, so the client sends its text.
    RecordedCall(RedisServer& server, RawRedis& admin, RawRedis& user, const Step& step) : redis_(admin), user_(user) {
        redis_.text("FLUSHDB");
        Fleet fleet{server};
        Scene scene{fleet, user};
        step.prepare(scene);
        for (const std::string& key : redis_.keys())
            keys_.push_back({key, redis_.text("DUMP", key), std::max(redis_.pttl(key), 0LL)});
        redis_.text("SCRIPT", "FLUSH");
        CommandMonitor monitor{server};
        step.run(scene);
        for (const std::string& line : monitor.take_lines()) {
            Words words = words_of(line);
            if (words[0] == "eval") sent_ = std::move(words);
        }
        REQUIRE(sent_.size() > 3);
        static constexpr const char* begin = R"lua(
            local server, calls, names, refused, are_over = redis, 0, {}, table.remove(ARGV), table.remove(ARGV)
            local function keeps_long(key)
                return string.find(key, '_queue:', 1, true) or string.find(key, '_places:', 1, true) or
                           string.find(key, '_slots:', 1, true) or string.find(key, 'redisson_lock_timeout:', 1, true)
            end
            local function pass(run, ...)
                calls = calls + 1
                if are_over == 'yes' and select(1, ...) == 'pexpire' and not keeps_long((select(2, ...))) then
                    server.call('del', (select(2, ...)))
                    return 1
                end
                local name = select(1, ...) .. ' ' .. (select(2, ...) or '')
                table.insert(names, name)
                local kind = string.gsub(name, '(:rwlock_timeout:)%d+$', '%1')
                if refused == kind or refused == tostring(calls) or refused == select(1, ...) then return run('flushall') end
                return run(...)
            end
            local redis = setmetatable({call = function(...) return pass(server.call, ...) end,
                                        pcall = function(...) return pass(server.pcall, ...) end}, {__index = server})
            local function script()
        )lua";
        sent_[1] = begin + sent_[1] + "\nend\nif refused == 'list' then script() return names end return script()";
        const auto first_argument = 3 + std::stoul(sent_[2]);
        for (std::size_t i = 3; i < first_argument; ++i)
            if (sent_[i].find("_requests:") != std::string::npos) marks_ = sent_[i];
        if (marks_.empty()) return;
        sent_.at(first_argument + 2) = wanted;
        resend_ = first_argument + 4;
    }

    /// Changes something that must not matter: the client has left a mark for another request, or sends this one again.
    bool has_marks() const { return !marks_.empty(); }
    void with_other_mark(bool is_there) { has_other_mark_ = is_there; }
    void as_resend(bool is_one) { sent_.at(resend_) = is_one ? "1" : "0"; }

    void reset() {
        redis_.text("FLUSHDB");
        for (const Key& key : keys_) redis_.text("RESTORE", key.name, key.ttl, key.dump);
        if (!has_other_mark_) return;
        redis_.integer("HSET", marks_, "99", "7:1");
        redis_.integer("PEXPIRE", marks_, 90'000);
    }

    bool keeps_other_mark() { return !has_other_mark_ || redis_.call("HGET", marks_, "99").string == "7:1"; }

    /// Returns the commands of the script, each with its first argument.
    Words calls() {
        const RawReply reply = run("list");
        Words all;
        for (const RawReply& element : reply.elements) all.push_back(element.string);
        return all;
    }

    /// Runs the script. `refused`: the number of a call, all calls of this kind, or all of this command. `are_over`: each lease
    /// of a few ms is over when PEXPIRE sets it, which deletes the key. Redis 7.0 reads the clock twice there.
    RawReply run(const std::string& refused, bool are_over = false) {
        Words sent = sent_;
        sent.insert(sent.end(), {are_over ? "yes" : "no", refused});
        return user_.command(sent);
    }

    /// Returns the keys without a TTL.
    std::set<std::string> lasting_keys() {
        std::set<std::string> lasting;
        for (const std::string& key : redis_.keys())
            if (redis_.pttl(key) == -1) lasting.insert(key);
        return lasting;
    }

    /// Runs the script from the start with such short leases. Only these keys may have no TTL afterwards. The TTLs of the queues
    /// are long: at least a second.
    void leaves_no_key_without_a_lease(const std::string& refused, const std::set<std::string>& but) {
        reset();
        run(refused, true);
        for (const std::string& key : lasting_keys())
            if (!but.contains(key)) FAIL_CHECK(key);
    }

private:
    struct Key {
        std::string name;
        std::string dump;
        long long ttl;
    };

    RawRedis& redis_;
    RawRedis& user_;
    std::vector<Key> keys_;
    Words sent_;
    std::string marks_;
    std::size_t resend_ = 0;
    bool has_other_mark_ = false;
};

}  // namespace

TEST_CASE("fault: user with the rights of the guide: every operation works, waiting and watchdog included") {
    RedisServer server{{.tcp = true}};
    RawRedis admin{server};
    make_user(admin, documented_rights());
    {
        Fleet fleet{server};
        for (const Use& use : uses()) {
            CAPTURE(use.of);
            run(fleet, use);
            CHECK(fleet.others.empty());
        }
        CHECK(fleet.client.stats().handoffs >= 3);
    }
    CHECK(refusals(admin).empty());

    Fleet fleet{server, 6s};
    RLock lock{fleet.client, "rlock"};
    FairLock fair{fleet.client, "fair"};
    Mutex mutex{fleet.client, "mutex"};
    ReadWriteLock writing{fleet.client, "writing"};
    ReadWriteLock reading{fleet.client, "reading"};
    PermitExpirableSemaphore permits{fleet.client, "permits"};
    lock.lock();
    fair.lock();
    mutex.lock();
    writing.lock();
    reading.lock_shared();
    permits.set_permits(1);
    const PermitId permit = permits.acquire();
    CHECK(eventually([&] { return fleet.client.stats().renewals >= 6; }, watchdog_timeout + 20s));
    for (auto* one : {&lock}) fleet.give_back(*one);
    fleet.give_back(fair);
    fleet.give_back(mutex);
    fleet.give_back(writing);
    reading.unlock_shared();
    permits.release(permit);
    CHECK(fleet.others.empty());
    CHECK(refusals(admin).empty());
}

TEST_CASE("the user of the guide has no rights beyond its own keys and commands") {
    RedisServer server{{.tcp = true}};
    RawRedis admin{server};
    make_user(admin, documented_rights());
    admin.text("SET", "bank:orders", "theirs");
    RawRedis locker{server.tcp_url()};
    locker.text("AUTH", "locker", "secret");
    for (const Words& command : std::vector<Words>{{"FLUSHALL"},
                                                   {"FLUSHDB"},
                                                   {"KEYS", "*"},
                                                   {"SCAN", "0"},
                                                   {"RANDOMKEY"},
                                                   {"CONFIG", "GET", "*"},
                                                   {"SCRIPT", "FLUSH"},
                                                   {"FUNCTION", "FLUSH"},
                                                   {"CLIENT", "KILL", "TYPE", "normal"},
                                                   {"CLIENT", "LIST"},
                                                   {"ACL", "WHOAMI"},
                                                   {"MONITOR"},
                                                   {"SHUTDOWN"},
                                                   {"REPLICAOF", "NO", "ONE"},
                                                   {"GET", "bank:orders"},
                                                   {"DEL", "bank:orders"},
                                                   {"GET", "redisson_lock_token:{bank:orders}"},
                                                   {"EVAL", "return redis.call('get', KEYS[1])", "1", "bank:orders"},
                                                   {"EVAL", "return redis.call('get', 'bank:orders')", "0"},
                                                   {"EVAL", "return redis.call('flushall')", "0"},
                                                   {"PUBLISH", "redisson_lock__channel:{bank:orders}", "0"},
                                                   {"SUBSCRIBE", "redisson_lock__channel:{bank:orders}"},
                                                   {"PSUBSCRIBE", "*"}}) {
        CAPTURE(command[0]);
        const RawReply reply = locker.command(command);
        CHECK(reply.is_error());
        const bool refused = reply.string.starts_with("NOPERM") ||
                             reply.string.starts_with("ERR ACL failure in script") ||  // since Redis 7.2
                             reply.string.find("can't run this command") != std::string::npos ||
                             reply.string.find("can't access at least one of the keys") != std::string::npos;
        CAPTURE(reply.string);
        CHECK(refused);
    }
    CHECK(admin.text("GET", "bank:orders") == "theirs");
}

TEST_CASE("fault: any right of the guide taken away: an operation is rejected") {
    RedisServer server{{.tcp = true}};
    RawRedis admin{server};
    for (const std::string& right : documented_commands()) {
        CAPTURE(right);
        admin.text("FLUSHALL");
        make_user(admin, documented_rights());
        make_user(admin, {"-" + right});
        admin.text("ACL", "LOG", "RESET");
        Fleet fleet{server, 3s};
        std::string by = "nobody";
        for (const Use& use : uses()) {
            run(fleet, use);
            if (fleet.was_refused()) {
                by = use.of;
                break;
            }
        }
        CAPTURE(by);
        CAPTURE(fleet.others);
        // The caller does not see a refusal in the background or of an optimization. The server's log shows it.
        static const std::set<std::string> unseen{"unsubscribe", "lrange", "lrem"};
        if (unseen.contains(right))
            CHECK(eventually([&] { return refusals(admin).contains(right); }, 20s));
        else
            CHECK(fleet.was_refused());
    }
}

TEST_CASE("fault: a right is missing in the middle of an operation: it takes effect as a whole, or not at all") {
    LockersServer at;
    RedisServer& server = at.server;
    RawRedis &admin = at.admin, &user = at.user;
    std::vector<std::string> whole;
    const auto try_all = [&](const std::string& right) {
        for (std::size_t i = 0; i < steps().size(); ++i) {
            {
                Fleet fleet{server};
                Scene scene{fleet, user};
                fleet.redis.text("FLUSHDB");
                steps()[i].prepare(scene);
                const std::string before = picture(fleet.redis, Detail::values_and_times);
                if (!right.empty()) make_user(admin, {"-" + right});
                const Step& step = steps()[i];
                const std::error_code ec = code_of([&] { step.run(scene); });
                CAPTURE(right);
                const std::string what = step.what;
                CAPTURE(what);
                if (right.empty()) {
                    CHECK_FALSE(ec);
                    whole.push_back(picture(fleet.redis, Detail::shape));
                } else if (ec) {
                    CHECK(ec == errc::rejected);
                    const std::string after = picture(fleet.redis, Detail::values_and_times);
                    if (std::count(step.leaves.begin(), step.leaves.end(), right) > 0) {
                        CHECK(after.find("for ever") == std::string::npos);
                    } else if (step.tells_last && rights_to_tell.contains(right) && after != before) {
                        CHECK(picture(fleet.redis, Detail::shape) == whole[i]);
                    } else {
                        // Partial writes may stay for a millisecond.
                        eventually([&] { return picture(fleet.redis, Detail::values_and_times) == before; }, 1s);
                        CHECK(picture(fleet.redis, Detail::values_and_times) == before);
                    }
                    if (step.bare) {
                        make_user(admin, {"+" + right});
                        CHECK_FALSE(code_of([&] { step.run(scene); }));
                        CHECK(picture(fleet.redis, Detail::shape) == whole[i]);
                    }
                } else {
                    CHECK(picture(fleet.redis, Detail::shape) == whole[i]);
                }
            }
            // The client is gone, and with it all that it would deliver now.
            if (!right.empty()) make_user(admin, {"+" + right});
        }
    };
    try_all({});
    for (const std::string& right : documented_commands()) try_all(right);
}

TEST_CASE("fault: any call of a script is refused: it takes effect as a whole, or not at all, and once if sent again") {
    LockersServer at;
    RedisServer& server = at.server;
    RawRedis &admin = at.admin, &user = at.user;
    std::size_t refused_calls = 0;
    const auto look = [&] { return picture(admin, Detail::values); };
    const auto look_closely = [&] { return picture(admin, Detail::values_and_times); };
    for (const Step& step : steps()) {
        const std::string what = step.what;
        CAPTURE(what);
        RecordedCall call{server, admin, user, step};
        const auto try_all = [&](bool resend) {
            call.reset();
            const std::string before = look_closely();
            std::set<std::string> lasting = call.lasting_keys();
            const Words calls = call.calls();
            call.reset();
            CHECK_FALSE(call.run("none").is_error());
            const std::string whole = look();
            lasting.merge(call.lasting_keys());
            const auto try_one = [&](const std::string& refused, const std::string& name) {
                CAPTURE(refused);
                CAPTURE(name);
                ++refused_calls;
                call.reset();
                const RawReply reply = call.run(refused);
                if (step.half == Half::leases) {
                    CHECK(look().find("for ever") == std::string::npos);
                } else if (step.leaves.empty() && look() != whole) {
                    CHECK(reply.is_error());
                    // What undoes a write may leave a key for a millisecond.
                    eventually([&] { return look_closely() == before; }, 1s);
                    CHECK(look_closely() == before);
                }
                CHECK(call.keeps_other_mark());
                CHECK_FALSE(call.run("none").is_error());
                if (step.half != Half::leases && !(resend && step.half == Half::sweep)) CHECK(look() == whole);
                CHECK(call.keeps_other_mark());
                call.leaves_no_key_without_a_lease(refused, lasting);
            };
            std::set<std::string> seen;
            for (std::size_t n = 0; n < calls.size(); ++n)
                if (seen.insert(kind_of(calls[n])).second || step.half != Half::repeats)
                    try_one(std::to_string(n + 1), calls[n]);
            for (const std::string& name : seen) try_one(name, "every one");
            std::set<std::string> commands;
            for (const std::string& name : seen) commands.insert(name.substr(0, name.find(' ')));
            for (const std::string& command : commands) try_one(command, "whatever its key");
        };
        try_all(false);
        if (!call.has_marks()) continue;
        call.with_other_mark(true);
        try_all(false);
        call.as_resend(true);
        try_all(true);
    }
    CHECK(refused_calls > 500);
}

// What such a script has done to the lock stands. A waiter whose place cannot be changed waits, or asks, like one without
// a place.
TEST_CASE(
    "fault: any call of a script of a queue is refused: the lock is never half changed, and its waiters are told") {
    LockersServer at;
    RedisServer& server = at.server;
    RawRedis &admin = at.admin, &user = at.user;
    make_user(admin, {"+hmget", "+pubsub|numsub"});
    std::size_t refused_calls = 0, granted = 0, notified = 0;
    for (const bool others_listen : {false, true}) {
        CAPTURE(others_listen);
        RawRedis listener{server};
        listener.call("SUBSCRIBE", lock_channel + ":" + queue_head);
        listener.call("SUBSCRIBE", lock_channel + ":" + queue_head + ":7");
        listener.call("SUBSCRIBE", readers_channel + ":" + queue_head);
        listener.call("SUBSCRIBE", readers_channel + ":" + queue_head + ":write");
        if (others_listen) listener.call("SUBSCRIBE", lock_channel);
        if (others_listen) listener.call("SUBSCRIBE", readers_channel);
        /// Returns the messages so far.
        const auto take_messages = [&] {
            Words messages;
            admin.integer("PUBLISH", lock_channel + ":" + queue_head, "end");
            for (;;) {
                const std::string text = listener.receive().elements.at(2).string;
                if (text == "end") return messages;
                messages.push_back(text);
            }
        };
        for (const QueueStep& queued : queue_steps()) {
            const std::string what = queued.step.what;
            CAPTURE(what);
            RecordedCall call{server, admin, user, queued.step};
            call.reset();
            const Fields before = admin.hgetall(lock_key);
            std::set<std::string> lasting = call.lasting_keys();
            const Words calls = call.calls();
            lasting.merge(call.lasting_keys());
            take_messages();
            const auto try_one = [&](const std::string& refused, const std::string& name) {
                CAPTURE(refused);
                CAPTURE(name);
                ++refused_calls;
                call.reset();
                const RawReply reply = call.run(refused);
                const Fields after = admin.hgetall(lock_key);
                const Words told = take_messages();
                const bool is_done = std::count(queued.done.begin(), queued.done.end(), after) == 1;
                CHECK((is_done || (reply.is_error() && after == before)));
                CHECK((after.empty() || admin.pttl(lock_key) > 0));
                // Without a right to read the queue, or to publish there, the waiter asks when the lease would have ended.
                const bool can_tell = !name.starts_with("lindex ") && !name.starts_with("PUBLISH ") &&
                                      !refused.starts_with("lindex ") && !refused.starts_with("PUBLISH ");
                const auto is_grant = [](const std::string& text) { return text.starts_with("grant "); };
                const bool is_granted = after == queued.granted;
                // A waiter for a FairLock that could not be told finds its hold when it refreshes its place.
                const bool may_be_silent = is_granted && what.ends_with("FairLock") && !can_tell;
                const auto grants = std::count_if(told.begin(), told.end(), is_grant);
                CHECK((grants == (is_granted ? 1 : 0) || (may_be_silent && grants == 0)));
                granted += is_granted ? 1 : 0;
                // If there is an error, it is sent again.
                if (after.empty() && !before.empty() && queued.has_waiter && can_tell && !reply.is_error()) {
                    CHECK_FALSE(told.empty());
                    ++notified;
                }
                // With all rights again, it is done or was done.
                CHECK_FALSE(call.run("none").is_error());
                CHECK(std::count(queued.done.begin(), queued.done.end(), admin.hgetall(lock_key)) == 1);
                call.leaves_no_key_without_a_lease(refused, lasting);
                // Who relies on a longer lease is told that it is over.
                if (refused == "none" && what.find("stay") != std::string::npos && queued.has_waiter &&
                    !admin.exists(lock_key) && !before.empty())
                    CHECK_FALSE(take_messages().empty());
                take_messages();
            };
            try_one("none", "none");
            std::set<std::string> seen;
            for (std::size_t n = 0; n < calls.size(); ++n) {
                seen.insert(calls[n]);
                try_one(std::to_string(n + 1), calls[n]);
            }
            for (const std::string& name : seen) try_one(name, "every one");
        }
    }
    CHECK(refused_calls > 500);
    CHECK(granted > 50);
    CHECK(notified > 50);
}

TEST_CASE("scripts touch no keys except those that they declare") {
    RedisServer server{{.tcp = true}};
    RawRedis admin{server};
    make_user(admin, documented_rights());
    KeyWatch watch{server};
    {
        Fleet fleet{server};
        for (const Use& use : uses()) run(fleet, use);
        CHECK(fleet.others.empty());
    }
    const KeyWatch::Found found = watch.take();
    CHECK(found.scripts > 100);
    CHECK(found.commands > 300);
    for (const std::string& key : found.undeclared) FAIL_CHECK(key);
}
