// SPDX-License-Identifier: MIT
// The model behind the in-memory server and the simulation against a real server: random calls of the library, sent to
// both at the same time of their clocks, must get the same replies, send the same messages, and leave the same data.
//
// REDLATCH_SEED selects another sequence, REDLATCH_STEPS its length.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>
#include <redlatch/testing.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/in_memory_redis.hpp"
#include "support/internals.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/server_clock.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Words = std::vector<std::string>;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::string printed(std::string_view text) {
    std::string safe;
    for (const char c : text)
        safe += c >= ' ' && c <= '~' ? std::string(1, c) : "\\" + std::to_string(static_cast<unsigned char>(c));
    return safe;
}

// Writes a reply as one text. The fields of a hash, and what scripts make of them, have no order.
std::string text_of(const RawReply& reply, bool ordered = false) {
    switch (reply.type) {
        case RawReply::Type::nil: return "nil";
        case RawReply::Type::integer: return std::to_string(reply.integer);
        case RawReply::Type::list: {
            std::vector<std::string> elements;
            for (const RawReply& element : reply.elements) elements.push_back(text_of(element, ordered));
            const bool all_texts = std::all_of(reply.elements.begin(), reply.elements.end(), [](const RawReply& one) {
                return one.type == RawReply::Type::string || one.type == RawReply::Type::status;
            });
            if (all_texts && !ordered) std::sort(elements.begin(), elements.end());
            std::string text = "[";
            for (const std::string& element : elements) text += " " + element;
            return text + " ]";
        }
        // Their texts differ between versions, their codes do not.
        case RawReply::Type::error: return "error " + reply.string.substr(0, reply.string.find(' '));
        default: return "'" + printed(reply.string) + "'";
    }
}

// The commands of some clients of the library, with random numbers in them.
class Traffic {
public:
    explicit Traffic(std::uint64_t seed) : random_(seed) {
        // Commands of newer servers, which the model does not have.
        native_.refused(NativeCommands::Delete::delex);
        native_.refused(NativeCommands::Delete::delifeq);
    }

    std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

    template <class All>
    const auto& pick(const All& all) {
        return all[below(std::size(all))];
    }

    Words next() {
        const std::string& key = pick(keys_);
        const ProtocolContext context{pick(uuids_), options_, native_};
        switch (below(10)) {
            case 0: return of_lock(RLockProtocol(context, key));
            case 1: return of_lock(FencedProtocol(context, "fenced" + key));
            case 2: {
                const FairProtocol fair(context, "fair" + key);
                const std::array<std::uint64_t, 2> waiters{hold(), hold()};
                return below(4) == 0 ? words_of(fair.refresh(waiters, until())) : of_lock(fair);
            }
            case 3: return of_lock(ReadProtocol(context, "rw" + key));
            case 4: return of_lock(WriteProtocol(context, "rw" + key));
            case 5: return of_lock(MutexProtocol(context, "mutex" + key));
            case 6: return of_semaphore(SemaphoreProtocol(context, "semaphore" + key));
            case 7: return of_permits(PermitProtocol(context, "permits" + key));
            case 8: return of_latch(LatchProtocol(context, "latch" + key));
            default: return plain();
        }
    }

    // How far the clock moves before the next command.
    std::chrono::microseconds pause() {
        static constexpr std::int64_t lengths[] = {0, 1, 7, 150, 1000, 5000, 40'000};
        return std::chrono::microseconds(below(1000)) + lengths[below(4) == 0 ? below(7) : 0] * 1ms;
    }

    std::int64_t now = 0;                      // the servers' time in ms
    std::map<std::string, std::string> texts;  // of the scripts that were sent, by digest

    // Returns all channels to which the scripts may publish.
    std::vector<std::string> channels() const {
        std::vector<std::string> all{"a channel"};
        for (const std::string& key : keys_) {
            const std::string lock = prefixed_key("redisson_lock__channel", "fair" + key) + ":";
            for (const std::string& uuid : uuids_)
                for (std::uint64_t hold = 1; hold <= holds; ++hold)
                    all.push_back(lock + std::string(OwnerText(uuid, hold).view()));
            for (const std::string kind : {"", "fenced"}) {
                const std::string common = prefixed_key("redisson_lock__channel", kind + key);
                all.push_back(common);
                for (const std::string& uuid : uuids_) all.push_back(common + ":" + uuid);
            }
            const std::string sides = prefixed_key("redisson_rwlock", "rw" + key);
            all.push_back(sides);
            for (const std::string& uuid : uuids_) {
                all.push_back(sides + ":" + uuid);
                all.push_back(sides + ":" + uuid + ":write");
            }
            for (const char* kind : {"semaphore", "permits"}) {
                const std::string seats = prefixed_key("redisson_sc", kind + key);
                all.push_back(seats);
                for (const std::string& uuid : uuids_) all.push_back(seats + ":" + uuid);
            }
            all.push_back("redisson_countdownlatch__channel__{latch" + key + "}");
        }
        return all;
    }

private:
    static constexpr std::uint64_t holds = 3;  // of a client

    std::uint64_t hold() { return 1 + below(holds); }
    // Mostly in time, sometimes too late.
    std::int64_t until() { return now + static_cast<std::int64_t>(below(3000)) - 200; }
    Milliseconds lease() { return Milliseconds(1 + static_cast<std::int64_t>(below(below(2) ? 50 : 30'000))); }
    std::int64_t few() { return 1 + static_cast<std::int64_t>(below(3)); }

    Words words_of(const Call& call) {
        if (call.script()) texts.emplace(call.script()->digest(), call.script()->text());
        const CallWords words(call, "PUBLISH");
        const auto all = words.command().words;
        return {all.begin(), all.end()};
    }

    Words of_lock(const LockProtocol& lock) {
        Claim claim;
        claim.hold = hold();
        claim.owner = claim.hold;
        claim.count = static_cast<std::uint32_t>(few());
        claim.lease = lease();
        claim.until = until();
        claim.lease_end = now + claim.lease.count() - 5;
        claim.writer = hold();
        claim.queues = below(2) == 0;
        claim.announced = below(4) == 0;
        claim.first = below(2) == 0;
        const std::string owners[] = {std::string(lock.text(hold()).view()), std::string(lock.text(hold()).view())};
        const std::array<std::string_view, 2> given_up{owners[0], owners[1]};
        Claim successor = claim;
        successor.hold = hold();
        switch (below(12)) {
            case 0: return words_of(lock.release(hold(), static_cast<std::uint32_t>(below(3)), lease()));
            case 1: return words_of(lock.release(hold(), 0, lease()));
            case 2: return words_of(lock.give_up(given_up));
            case 3:
                if (lock.kind.hands_over) return words_of(lock.hand_over(hold(), successor));
                [[fallthrough]];
            case 4: {
                Call call(lock.kind.renewal, {}, {}, Effect::grants);
                call.append_key(lock.key());
                call.append(lease());
                call.append(until());
                call.append(lock.text(hold()));
                return words_of(call);
            }
            case 5: return words_of(below(2) ? lock.holders() : lock.hold_count(hold()));
            case 6: return words_of(below(2) ? lock.is_locked() : lock.remaining_lease());
            case 7:
                if (const auto call = lock.cancel_announcement()) return words_of(*call);
                [[fallthrough]];
            case 8: return words_of(lock.first_release(hold()));
            default: return words_of(lock.acquire(claim));
        }
    }

    RequestId request() {
        RequestId id;
        id.lane = static_cast<std::uint32_t>(below(3));
        id.request = 1 + requests_++ / 2;  // some of them again
        id.wanted_until = until();
        id.may_be_done = below(3) == 0;
        return id;
    }

    template <class Protocol>
    Words marks(const Protocol& protocol) {
        return words_of(protocol.marks().void_request(request()));
    }

    Words of_semaphore(const SemaphoreProtocol& seats) {
        std::vector<SemaphoreProtocol::Want> wants(below(3) + 1);
        for (auto& want : wants) want = {few(), false, below(2) == 0};
        switch (below(11)) {
            case 0: return words_of(seats.take_back(request(), wants));
            case 1: return words_of(seats.give_back(request(), wants));
            case 2: return words_of(seats.add(request(), few(), below(2) == 0));
            case 3: return words_of(seats.set(request(), few() * 3));
            case 4: return words_of(seats.drain(request()));
            case 5: return words_of(seats.available());
            case 6: return marks(seats);
            case 7: return words_of(seats.queue().leave(seats.marks(), request(), below(3)));
            default: return words_of(seats.ask(wants, request(), below(3)));
        }
    }

    PermitId permit() { return PermitId::parse(std::string(31, '0') + "0123456789abcdef"[below(8)]); }

    Words of_permits(const PermitProtocol& seats) {
        std::vector<PermitProtocol::Want> wants(below(2) + 1);
        for (auto& want : wants) {
            for (auto left = few(); left > 0; --left) want.ids.push_back(permit());
            want.lease = below(2)
                             ? PermitLease{PermitLease::Kind::limited, lease()}
                             : PermitLease{below(2) ? PermitLease::Kind::watched : PermitLease::Kind::forever, lease()};
            want.lets_pass = below(2) == 0;
        }
        const std::vector<PermitId> ids{permit(), permit()};
        switch (below(13)) {
            case 0: return words_of(seats.take_back(request(), wants));
            case 1: return words_of(seats.release(request(), ids));
            case 2: return words_of(seats.set_lease(request(), permit(), wants[0].lease));
            case 3: return words_of(seats.set(request(), few() * 2));
            case 4: return words_of(seats.set_total(request(), few() * 2));
            case 5: return words_of(seats.add(request(), few() - 2));
            case 6: return words_of(seats.count());
            case 7: return words_of(seats.remaining(permit()));
            case 8: return words_of(seats.renew(ids, lease(), until()));
            case 9: return marks(seats);
            case 10: return words_of(seats.leave(request(), below(3), ids));
            default: return words_of(seats.ask(wants, request(), below(3)));
        }
    }

    Words of_latch(const LatchProtocol& latch) {
        switch (below(6)) {
            case 0: return words_of(latch.set(request(), few()));
            case 1: return words_of(latch.ask({}, {}));
            case 2: return words_of(latch.count());
            case 3: return words_of(latch.lower(request(), below(4) ? 1 : LatchProtocol::all));
            case 4: return marks(latch);
            default: return words_of(latch.lower(request(), few()));
        }
    }

    // What other programs do to the keys of the library, and wrong commands.
    Words plain() {
        static const char* const kinds[] = {"", "fair", "rw", "mutex", "semaphore", "permits", "latch", "fenced"};
        const std::string key = pick(kinds) + pick(keys_);
        switch (below(26)) {
            case 0: return {"DEL", key};
            case 1: return {"SET", key, std::to_string(few())};
            case 2: return {"SET", key, "text", "NX", "PX", std::to_string(lease().count())};
            case 3: return {"SET", key, "text", "PXAT", std::to_string(until())};
            case 4: return {"HSET", key, pick(uuids_) + ":1", "1"};
            case 5: return {"PEXPIRE", key, std::to_string(static_cast<std::int64_t>(below(2000)) - 5)};
            case 6: return {"PTTL", key};
            case 7: return {"EXISTS", key, pick(keys_)};
            case 8: return {"TIME"};
            case 9: return {"HGETALL", key};
            case 10: return {"LRANGE", "redisson_lock_queue:{" + key + "}", "-2", "-1"};
            case 11: return {"ZRANGE", "redisson_lock_timeout:{" + key + "}", "0", "-1", "WITHSCORES"};
            case 12: return {"ZADD", key, "1.5", "member", "-2", below(2) ? "member" : "other"};
            case 13: return {"RPUSH", key, "a", "b", "a"};
            case 14: return {"LREM", key, "0", "a"};
            case 15: return {"LINDEX", key, std::to_string(few() - 3)};
            case 16: return {"ZRANGEBYSCORE", key, "(1", "+inf", "WITHSCORES", "LIMIT", "0", "2"};
            case 17: return {"INCRBY", key, below(2) ? "x" : "9223372036854775807"};
            case 18: return {"HINCRBY", key, "field", "-2"};
            case 19: return {"FLY", key};
            case 20: return {"GET"};
            case 21: return {"SET", key, "text", "PX", "0"};
            case 22: return {"EVAL", "return {1, 2.9, 'a', true, false, redis.call('get', KEYS[1])}", "1", key};
            case 23:
                return {"EVAL", "redis.call('set', KEYS[1], 2^53 - 1) return redis.call('get', KEYS[1])", "1", key};
            case 24: return {"HMGET", key, "field", pick(uuids_) + ":1"};
            default: return words_of(Call(digested<scripts::server_check>, {"check"}, {"a channel", PublishCommand()}));
        }
    }

    std::mt19937_64 random_;
    ClientOptions options_{.watchdog_timeout = 700ms};
    NativeCommands native_;
    std::uint64_t requests_ = 0;
    const std::array<std::string, 2> uuids_{"00000000-0000-4000-8000-000000000001",
                                            "00000000-0000-4000-8000-000000000002"};
    const std::array<std::string, 2> keys_{"a", "b"};
};

// Both servers, at the same time.
struct Both {
    ServerClock clock;
    RedisServer server{{.environment = clock.environment(REDLATCH_CLOCK_SHIM)}};
    RawRedis real{server};
    redlatch::testing::InMemoryServer memory;
    InMemoryRawRedis modelled{memory};

    Both() { memory.freeze_clock(); }

    void set_time(std::chrono::microseconds now) {
        clock.freeze_at(now);
        memory.advance(now - memory.now().time_since_epoch());
    }

    // Returns all data of a server. The types are those of the real one.
    std::vector<std::string> data(RawCommands& of) {
        std::vector<std::string> all;
        for (const std::string& key : of.keys()) {
            const std::string type = real.text("TYPE", key);
            Words query{"GET", key};
            if (type == "hash") query = {"HGETALL", key};
            if (type == "list") query = {"LRANGE", key, "0", "-1"};
            if (type == "zset") query = {"ZRANGE", key, "0", "-1", "WITHSCORES"};
            const RawReply value = of.command(query);
            all.push_back(printed(key) + " " + type + " " + text_of(value, type != "hash") + " for " +
                          std::to_string(of.pttl(key)));
        }
        std::sort(all.begin(), all.end());
        return all;
    }
};

// The messages of both servers.
class Listening {
public:
    Listening(Both& both, const std::vector<std::string>& channels)
        : both_(both), stream_(both.server), messages_(both.memory, channels) {
        // To each channel: the scripts count who listens to it, and grant nothing to others.
        for (const std::string& channel : channels) stream_.call("SUBSCRIBE", channel);
        stream_.call("SUBSCRIBE", "end");
    }

    std::vector<std::string> real() {
        both_.real.call("PUBLISH", "end", "");
        std::vector<std::string> all;
        for (;;) {
            const RawReply message = stream_.receive();
            if (message.elements.at(1).string == "end") return all;
            all.push_back(message.elements.at(1).string + " " + message.elements.at(2).string);
        }
    }

    std::vector<std::string> modelled() {
        std::vector<std::string> all;
        for (const auto& [channel, payload] : messages_.take_with_channels()) all.push_back(channel + " " + payload);
        return all;
    }

private:
    Both& both_;
    RawRedis stream_;
    InMemoryMessages messages_;
};

}  // namespace

TEST_CASE("the model of the server answers, publishes and keeps the same as a real one") {
    const std::uint64_t seed = setting("REDLATCH_SEED", 1);
    const std::uint64_t steps = setting("REDLATCH_STEPS", 6000);
    CAPTURE(seed);
    Both both;
    Traffic traffic(seed);
    Listening listening(both, traffic.channels());
    auto now = std::chrono::duration_cast<std::chrono::microseconds>(both.memory.now().time_since_epoch());
    std::uint64_t held = 0;
    std::size_t messages = 0;
    for (std::uint64_t step = 0; step < steps; ++step) {
        now += traffic.pause();
        both.set_time(now);
        traffic.now = std::chrono::floor<std::chrono::milliseconds>(now).count();
        Words words = traffic.next();
        std::string sent;
        for (const std::string& word : words) sent += " " + printed(word);
        CAPTURE(step);
        CAPTURE(sent);
        const bool ordered = words[0].front() == 'L' || words[0].front() == 'Z';
        std::string reply = text_of(both.real.command(words), ordered);
        REQUIRE(text_of(both.modelled.command(words), ordered) == reply);
        if (reply.starts_with("error NOSCRIPT")) {
            words[1] = traffic.texts.at(words[1]);
            words[0] = "EVAL";
            reply = text_of(both.real.command(words));
            REQUIRE(text_of(both.modelled.command(words)) == reply);
        }
        held += reply == "nil" || reply == "1";
        if (step % 20 != 0 && step + 1 != steps) continue;
        REQUIRE(both.data(both.modelled) == both.data(both.real));
        const auto published = listening.real();
        REQUIRE(listening.modelled() == published);
        messages += published.size();
    }
    MESSAGE(steps, " commands, ", messages, " messages");
    CHECK(messages > steps / 100);
    CHECK(held > steps / 10);  // it is no sequence of failures
}
