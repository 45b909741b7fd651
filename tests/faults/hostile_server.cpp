// SPDX-License-Identifier: MIT
// Replies that no Redis sends: the client must not crash, must not report a hold that it does not have, and must work
// with a good server afterwards.
#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "faults/fault_kit.hpp"
#include "support/scripted_server.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds margin = 50ms + late;

std::string repeated(const std::string& text, std::size_t times) {
    std::string all;
    for (std::size_t i = 0; i < times; ++i) all += text;
    return all;
}

ScriptedReply then_close(std::string bytes) {
    ScriptedReply reply{std::move(bytes)};
    reply.close = true;
    return reply;
}

struct Oddity {
    std::string name;
    ScriptedReply reply;
};

// None of them is a valid reply to any of our commands, except that an empty array is a valid list of holders.
std::vector<Oddity> oddities() {
    return {
        {"a status", "+OK\r\n"},
        {"an empty status", "+\r\n"},
        {"an empty array", "*0\r\n"},
        {"an array of other things", "*2\r\n:1\r\n$-1\r\n"},
        {"an array in an array", "*1\r\n*1\r\n:1\r\n"},
        {"a number out of range", ":99999999999999999999999\r\n"},
        {"a number that is none", ":12ab\r\n"},
        {"words", "garbage\r\n"},
        {"an empty line", "\r\n"},
        {"another protocol", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"},
        {"control bytes", std::string("\0\x01\x02\x1b[31m\r\n\0", 11)},
        {"2^31-1 elements", "*2147483647\r\n"},
        {"2^40 elements", "*1099511627776\r\n"},
        {"many elements", "*100000\r\n:1\r\n"},
        {"a huge text", "$2147483647\r\nab"},
        {"the hugest text", "$9223372036854775807\r\nab"},
        {"a text of negative size", "$-7\r\n"},
        {"an array of negative size", "*-7\r\n"},
        {"a text that ends wrongly", "$3\r\nabcXY"},
        {"nesting of 9", repeated("*1\r\n", 9) + ":1\r\n"},
        {"nesting of 100,000", repeated("*1\r\n", 100'000) + ":1\r\n"},
        {"a map", "%1\r\n+a\r\n:1\r\n"},
        {"a null of RESP3", "_\r\n"},
        {"a truth", "#t\r\n"},
        {"a fraction", ",3.25\r\n"},
        {"a push message", ">3\r\n+message\r\n+channel\r\n+0\r\n"},
        {"a published message", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n"},
        {"half an answer, and the end", then_close("$-")},
        {"the end", then_close("")},
        {"silence", ""},
    };
}

bool is_script(const CommandWords& command, const std::string& digest) {
    return command.size() > 1 && command[0] == "EVALSHA" && command[1] == digest;
}

// One path to two servers: a hostile one, and a good one to switch to.
struct TwoServers {
    explicit TwoServers(ScriptedServer::Handler handler) : hostile(std::move(handler)), proxy(hostile.url()) {}

    void use_the_good_one() {
        proxy.upstream(good.url());
        proxy.kill_all();
    }

    RedisServer good;
    ScriptedServer hostile;
    Proxy proxy;
};

ClientOptions impatient() {
    ClientOptions options = quick();
    options.command_timeout = paced(100ms);
    options.unreachable_timeout = paced(200ms);
    options.watchdog_timeout = 60s;  // no hold ends by itself
    return options;
}

// With such short time-outs even a good server may count as unreachable on a busy machine. So this repeats the call.
template <class Lock>
bool is_taken_at_last(Lock& lock) {
    std::error_code ec;
    return eventually([&] { return lock.try_lock_for(10s, ec); }, 20s);
}

bool is_expected(const std::error_code& ec) { return ec == errc::protocol_error || ec == errc::unreachable; }

template <class Handler>
void refuse_odd_acquire(const std::string& command, Handler handler) {
    TwoServers servers{handler};
    Client client{servers.proxy.url(), impatient()};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    const std::error_code ec = code_of([&] { return orders.try_lock(); });
    CHECK(is_expected(ec));
    CHECK(watch.within(impatient().command_timeout + margin));
    CHECK(orders.valid_until() == std::chrono::steady_clock::time_point::min());
    CHECK(orders.lost().stop_requested());
    CHECK(client.stats().acquisitions == 0);
    CHECK(code_of([&] { orders.unlock(); }) == errc::not_owner);
    // The time-out may have passed before anything was sent.
    CHECK(eventually([&] {
        const auto received = servers.hostile.received();
        return std::any_of(received.begin(), received.end(), [&](const auto& words) { return words[0] == command; }) ||
               (code_of([&] { return orders.try_lock(); }), false);
    }));

    servers.use_the_good_one();
    REQUIRE(is_taken_at_last(orders));
    std::error_code none;
    CHECK(eventually([&] { return orders.hold_count(none) == 1; }));
    orders.unlock(none);  // it is delivered, whether or not in time
    RawRedis redis{servers.good};
    CHECK(eventually([&] { return !redis.exists("orders"); }));
}

}  // namespace

TEST_CASE("an invalid reply to an acquire is an error and no hold; then a good server works as usual") {
    for (const Oddity& oddity : oddities()) {
        CAPTURE(oddity.name);
        refuse_odd_acquire("EVALSHA", telling_time([&](const CommandWords&) { return oddity.reply; }));
    }
}

TEST_CASE("an invalid reply to TIME is an error and no hold; then a good server works as usual") {
    for (const Oddity& oddity : oddities()) {
        CAPTURE(oddity.name);
        refuse_odd_acquire("TIME", [&](const CommandWords&) { return oddity.reply; });
    }
}

TEST_CASE("an invalid reply to a query is an error, never an answer") {
    for (const Oddity& oddity : oddities()) {
        CAPTURE(oddity.name);
        ScriptedServer hostile{[&](const CommandWords&) { return oddity.reply; }};
        Client client{hostile.url(), impatient()};
        RLock orders{client, "orders"};
        const auto bound = impatient().unreachable_timeout + margin;
        const Stopwatch watch;
        CHECK(is_expected(code_of([&] { orders.is_locked(); })));
        CHECK(watch.within(bound));
        const auto force_unlock = [&] {
            const Stopwatch time;
            std::error_code ec;
            CHECK_FALSE(orders.force_unlock(ec));
            CHECK(time.within(bound));
            return ec;
        };
        // An empty list of holders is an answer. On a busy machine it may come too late.
        if (oddity.name == "an empty array")
            CHECK(eventually([&] { return !force_unlock(); }));
        else
            CHECK(is_expected(force_unlock()));
    }
    for (const std::string count :
         {"$3\r\nabc\r\n", "$0\r\n\r\n", "$2\r\n1x\r\n", "$20\r\n99999999999999999999\r\n", ":1\r\n"}) {
        CAPTURE(count);
        ScriptedServer hostile{[&](const CommandWords&) { return ScriptedReply{count}; }};
        Client client{hostile.url(), unhurried()};
        RLock orders{client, "orders"};
        CHECK(code_of([&] { orders.hold_count(); }) == errc::protocol_error);
    }
}

TEST_CASE("an invalid reply to a reentry, a partial or a last release: no guard throws") {
    for (const Oddity& oddity : oddities()) {
        CAPTURE(oddity.name);
        std::atomic<bool> odd{false};
        ScriptedServer hostile{telling_time([&](const CommandWords& command) -> ScriptedReply {
            if (odd) return oddity.reply;
            return is_script(command, acquire_digest) ? "$-1\r\n" : ":0\r\n";
        })};
        ClientOptions options = impatient();
        options.watchdog_timeout = paced(1000ms);
        Client client{hostile.url(), options};
        RLock orders{client, "orders"};
        {
            REQUIRE(is_taken_at_last(orders));
            const std::lock_guard outer{orders, std::adopt_lock};
            REQUIRE(is_taken_at_last(orders));
            const std::lock_guard inner{orders, std::adopt_lock};
            odd = true;
            CHECK(is_expected(code_of([&] { orders.lock(); })));
        }
        CHECK(code_of([&] { orders.unlock(); }) == errc::not_owner);
    }
}

TEST_CASE("an invalid reply to a hand-over: the waiter gets its turn, and no guard throws") {
    for (const Oddity& oddity : oddities()) {
        CAPTURE(oddity.name);
        std::atomic<int> handed_over{0};
        ScriptedServer hostile{telling_time([&](const CommandWords& command) -> ScriptedReply {
            if (command[0] == "SUBSCRIBE") return "";
            if (is_script(command, hand_over_digest) && ++handed_over == 1) return oddity.reply;
            return is_script(command, acquire_digest)     ? "$-1\r\n"
                   : is_script(command, hand_over_digest) ? ":1\r\n"
                                                          : ":0\r\n";
        })};
        // Short time-out of commands only. The renewals get invalid replies, too.
        ClientOptions options = unhurried();
        options.command_timeout = impatient().command_timeout;
        Client client{hostile.url(), options};
        RLock orders{client, "orders"};
        std::vector<std::future<bool>> successors;
        {
            const std::lock_guard guard{orders};
            for (std::uint64_t i = 1; i <= 2; ++i) {
                successors.push_back(start([&] {
                    std::error_code ec;
                    const bool held = orders.try_lock_for(20s, ec);
                    if (held) orders.unlock(ec);
                    return held;
                }));
                REQUIRE(eventually([&] { return client.stats().waits == i; }));
            }
            REQUIRE(eventually([&] { return hostile.accepted() >= 2; }));  // both wait: the subscription was requested
        }
        for (auto& successor : successors) CHECK(successor.get());
        CHECK(handed_over > 0);
    }
}

TEST_CASE("an invalid reply to a renewal neither ends a hold early nor prolongs it") {
    const std::string answers[] = {"+OK\r\n",
                                   ":1\r\n",
                                   "$-1\r\n",
                                   "*0\r\n",
                                   "*2\r\n:1\r\n:1\r\n",
                                   "*1\r\n$1\r\n1\r\n",
                                   "*1\r\n*1\r\n:1\r\n",
                                   "-ERR strange\r\n",
                                   "garbage\r\n"};
    std::vector<std::future<void>> rounds;
    for (const std::string& answer : answers) {
        rounds.push_back(start([answer] {
            CAPTURE(answer);
            std::atomic<int> renewals{0};
            ScriptedServer hostile{telling_time([&](const CommandWords& command) -> ScriptedReply {
                if (is_script(command, renew_digest)) {
                    ++renewals;
                    return answer;
                }
                return is_script(command, acquire_digest) ? "$-1\r\n" : ":0\r\n";
            })};
            EventLog log;
            // So long that there is time for a second renewal, even if the first one is late.
            const ClientOptions options = log.in(unhurried(paced(3s)));
            Client client{hostile.url(), options};
            RLock orders{client, "orders"};
            const Stopwatch watch;
            orders.lock();
            const auto valid_until = orders.valid_until();
            const std::stop_token lost = orders.lost();
            CHECK(eventually([&] { return renewals >= 2; }, 10s));
            CHECK(eventually([&] { return lost.stop_requested(); }, options.watchdog_timeout + margin));
            CHECK(watch.elapsed() >= options.watchdog_timeout / 2);
            CHECK(std::chrono::steady_clock::now() <= valid_until + late);
            CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
            CHECK(client.stats().renewals == 0);
            // Retried, but with pauses.
            CHECK(renewals < 200);
            std::error_code ec;
            orders.unlock(ec);
            CHECK(ec == errc::hold_lost);
        }));
    }
    for (auto& round : rounds) round.get();
}

TEST_CASE("an endless line, text or reply is cut off at a bounded size") {
    const std::string chunk(16 << 20, 'x');
    for (const std::string& begin : {std::string{"+"}, std::string{"-ERR "}, std::string{":"},
                                     std::string{"$16000000\r\n"}, std::string{"*3\r\n$16000000\r\n"}}) {
        CAPTURE(begin);
        ScriptedReply endless{begin + chunk};
        endless.piece = 64 << 10;
        ScriptedServer hostile{telling_time([&](const CommandWords&) { return endless; })};
        ClientOptions options = quick();
        // The size limit ends it, not the time-out.
        options.command_timeout = options.unreachable_timeout = patient(40s);
        Client client{hostile.url(), options};
        RLock orders{client, "orders"};
        const Stopwatch watch;
        CHECK(code_of([&] { return orders.try_lock(); }) == errc::protocol_error);
        CHECK(watch.within(patient(20s)));
    }
}

TEST_CASE("an error text with control bytes is quoted and shortened") {
    const std::string text = "ERR \x1b[31mred\x07 and " + std::string(5000, 'x');
    ScriptedServer hostile{telling_time([&](const CommandWords&) { return ScriptedReply{"-" + text + "\r\n"}; })};
    Client client{hostile.url(), unhurried()};
    RLock orders{client, "orders"};
    try {
        static_cast<void>(orders.try_lock());
        FAIL("held by an error");
    } catch (const Error& error) {
        CHECK(error.code() == errc::rejected);
        const std::string what = error.what();
        CHECK(what.size() < 600);
        CHECK(what.find('\x1b') == std::string::npos);
        CHECK(what.find('\x07') == std::string::npos);
        CHECK(what.find("red") != std::string::npos);
    }
}

TEST_CASE("two replies to one request: the second is not taken for the reply to the next request") {
    // Another owner holds the lock for long. The surplus reply looks like a grant.
    std::atomic<bool> surplus{true};
    ScriptedServer hostile{telling_time([&](const CommandWords& command) -> ScriptedReply {
        if (!is_script(command, acquire_digest)) return ":0\r\n";
        return surplus ? ":60000\r\n$-1\r\n" : ":60000\r\n";
    })};
    Client client{hostile.url(), unhurried()};
    RLock orders{client, "orders"};
    for (int round = 0; round < 5; ++round) {
        std::error_code ec;
        CHECK_FALSE(orders.try_lock(ec));
        CHECK((!ec || is_expected(ec)));
    }
    CHECK(client.stats().acquisitions == 0);
    CHECK(hostile.accepted() >= 5);  // the client closed the connection each time
    surplus = false;
    CHECK_FALSE(orders.try_lock());
}

TEST_CASE("an unsolicited reply on an idle connection is not taken for a grant") {
    for (const std::string frame :
         {"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n", "$-1\r\n", "+OK\r\n", ":60000\r\n"}) {
        CAPTURE(frame);
        ScriptedServer hostile{telling_time([&](const CommandWords& command) -> ScriptedReply {
            return is_script(command, acquire_digest) ? ":60000\r\n" : ":0\r\n";
        })};
        Client client{hostile.url(), unhurried()};
        RLock orders{client, "orders"};
        CHECK_FALSE(orders.try_lock());
        CHECK(hostile.open_connections() == 1);
        hostile.push(frame);
        CHECK(hostile.open_connections() == 1);  // the second request to its thread: by now the frame has been written
        for (int round = 0; round < 3; ++round) {
            std::error_code ec;
            CHECK_FALSE(orders.try_lock(ec));
            CHECK((!ec || is_expected(ec)));
        }
        CHECK(client.stats().acquisitions == 0);
    }
}

TEST_CASE("invalid replies to a subscription: the waiter keeps its deadline and gets its turn") {
    for (const std::string answer : {"garbage\r\n", "+OK\r\n", ":1\r\n", "$-1\r\n", "*0\r\n",
                                     "*3\r\n:1\r\n:2\r\n:3\r\n", "*3\r\n$9\r\nsubscribe\r\n$5\r\nother\r\n:1\r\n",
                                     "*3\r\n$7\r\nmessage\r\n$-1\r\n$-1\r\n", "*2147483647\r\n", ""}) {
        CAPTURE(answer);
        std::atomic<bool> free{false};
        ScriptedServer hostile{telling_time([&](const CommandWords& command) -> ScriptedReply {
            if (command[0] == "SUBSCRIBE") return answer;
            if (is_script(command, acquire_digest)) return free ? "$-1\r\n" : ":100\r\n";
            return ":0\r\n";
        })};
        // Longer than the wait, even if its end is noticed late. Otherwise the server would count as unreachable.
        ClientOptions options = quick();
        options.command_timeout = paced(2s);
        Client client{hostile.url(), options};
        RLock orders{client, "orders"};
        const Stopwatch watch;
        CHECK_FALSE(orders.try_lock_for(150ms));
        CHECK(watch.within(150ms + margin));
        // The client waits between the attempts.
        CHECK(hostile.accepted() < 30);
        auto waiting = start([&] {
            const bool held = orders.try_lock_for(10s);
            if (held) orders.unlock();
            return held;
        });
        CHECK(eventually([&] { return client.stats().waits == 2; }));
        free = true;
        CHECK(waiting.get());
    }
}

TEST_CASE("an invalid reply to the login is reported at once, and does no harm") {
    for (const Oddity& oddity : oddities()) {
        CAPTURE(oddity.name);
        TwoServers servers{telling_time([&](const CommandWords& command) -> ScriptedReply {
            return command[0] == "SELECT" ? oddity.reply : "$-1\r\n";
        })};
        Client client{servers.proxy.url() + "?db=1", impatient()};
        RLock orders{client, "orders"};
        const Stopwatch watch;
        std::error_code ec;
        const bool held = orders.try_lock(ec);
        CHECK(watch.within(impatient().command_timeout + margin));
        // A complete reply that is no error may count as consent.
        CHECK(held == !ec);
        CHECK((held || is_expected(ec)));
        if (held) orders.unlock(ec);
        servers.use_the_good_one();
        CHECK(start([&] {
                  const bool got = is_taken_at_last(orders);
                  if (got) orders.unlock();
                  return got;
              }).get());
        RawRedis redis{servers.good};
        CHECK(eventually([&] { return !redis.exists("orders"); }));
    }
}

TEST_CASE_TEMPLATE("fault: foreign messages on the channel: whatever their size, they grant nothing and do no harm",
                   Lock, RLock, FencedLock, FairLock) {
    RedisServer server;
    RawRedis redis{server};
    Client other{server.url(), unhurried()};
    Lock held{other, "orders"};
    held.lock(Lease{60s});
    Client client{server.url(), unhurried()};
    auto waiting = start([&] {
        Lock orders{client, "orders"};
        const std::error_code ec = code_of([&] { orders.lock(); });
        if (!ec) orders.unlock();
        return ec;
    });
    // A waiter of a FairLock has a channel of its own. The place of the others is their client's.
    const auto own_channel = [&] {
        const bool fair = std::is_same_v<Lock, FairLock>;
        return channel_of("orders") + ":" +
               (fair ? redis.text("LINDEX", "redisson_lock_queue:{orders}", 0) : client.id());
    };
    const auto listens = [&] { return redis.lock_listeners(own_channel()) == 1; };
    REQUIRE(eventually([&] { return redis.pubsub_channels().size() == 1 && listens(); }, 20s));
    const std::string payloads[] = {"",
                                    "1",
                                    "garbage",
                                    std::string("\0\r\n$-1\r\n*9", 11),
                                    std::string(100'000, 'x'),
                                    "0",
                                    "grant",
                                    "grant 1",
                                    "grant 99999999999999999999 1 1",
                                    "grant 1 9223372036854775807 9223372036854775807",
                                    "grant 1 -1 -1",
                                    "look",
                                    "look -1",
                                    "look 9223372036854775807",
                                    "9223372036854775807",
                                    std::string(2'000'000, 'y')};
    for (const std::string& payload : payloads) {
        CAPTURE(payload.size());
        REQUIRE(eventually(listens, 10s));
        CHECK(redis.integer("PUBLISH", own_channel(), payload) == 1);
    }
    CHECK_FALSE(ready(waiting, 50ms));
    CHECK(client.stats().acquisitions == 0);
    // The largest one costs the connection, which the client opens again. Then it receives a release as usual.
    REQUIRE(eventually(listens, 10s));
    held.unlock();
    CHECK(ready(waiting, 5s));
    CHECK(waiting.get() == std::error_code{});
    redis.integer("DEL", "redisson_lock_token:{orders}");
    CHECK(redis.keys().empty());
}
