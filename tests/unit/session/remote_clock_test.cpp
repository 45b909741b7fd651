// SPDX-License-Identifier: MIT
// RemoteClock: an estimate of the server's clock that is never behind it.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

Instant at(Milliseconds t) { return Instant(1h + t); }

Reply time_reply(std::string seconds, std::string microseconds) {
    return {Reply::Kind::array, 0, {}, {Reply::of(std::move(seconds)), Reply::of(std::move(microseconds))}, true};
}

Reply error(std::string text) { return Reply::of(Reply::Kind::error, std::move(text)); }

}  // namespace

TEST_CASE("the reply to TIME is seconds and microseconds") {
    CHECK(read_time(time_reply("12", "345678")) == 12'345);
    CHECK_FALSE(read_time(time_reply("12", "")));
    CHECK_FALSE(read_time(time_reply("-1", "0")));
    CHECK_FALSE(read_time(time_reply("1x", "0")));
    CHECK_FALSE(read_time(Reply::of(12)));
    CHECK_FALSE(read_time(time_reply("9223372036854775807", "0")));
    CHECK_FALSE(read_time(time_reply("8796093022207", "0")));
    CHECK(read_time(time_reply("8796093022", "207999")) == 8'796'093'022'207);
}

TEST_CASE("a late script reports the server's time") {
    CHECK(read_late(error("LATE 1234")) == 1'234);
    CHECK_FALSE(read_late(error("LATE ")));
    CHECK_FALSE(read_late(error("LATE -5")));
    CHECK_FALSE(read_late(error("LATE 9223372036854775807")));
    CHECK_FALSE(read_late(error("ERR")));
    CHECK_FALSE(read_late(Reply::of(std::string("LATE 1234"))));
}

TEST_CASE("the estimate counts from the sending of the query, and rounds up") {
    RemoteClock clock;
    CHECK_FALSE(clock.at(0, at(0ms)));
    CHECK_FALSE(clock.roughly_at(0, at(0ms)));
    clock.learn(0, SendTime(at(0ms)), at(10ms), 5'000);
    CHECK(clock.at(0, at(0ms)) == 5'001);
    CHECK(clock.at(0, at(20ms)) == 5'021);
}

TEST_CASE("a reading is good for a while; an old one is good for a rough estimate") {
    RemoteClock clock;
    clock.learn(0, SendTime(at(0ms)), at(1ms), 5'000);
    const Instant later = at(RemoteClock::good_for + 1ms);
    CHECK_FALSE(clock.at(0, later));
    CHECK(clock.roughly_at(0, later) == 5'001 + RemoteClock::good_for.count() + 1);
    clock.learn(0, SendTime(at(0ms)), at(1ms), 5'000);
    clock.doubt();
    CHECK_FALSE(clock.at(0, at(0ms)));
    CHECK(clock.roughly_at(0, at(0ms)) == 5'001);
}

TEST_CASE("a server whose clock differs has a reading of its own") {
    RemoteClock clock;
    clock.learn(0, SendTime(at(0ms)), at(1ms), 5'000);
    CHECK(clock.at(1, at(0ms)) == 5'001);
    clock.learn(1, SendTime(at(0ms)), at(1ms), 9'000);
    CHECK(clock.at(1, at(0ms)) == 9'001);
    CHECK(clock.at(0, at(0ms)) == 5'001);
}

TEST_CASE("a reading that is too old is replaced by that of any server") {
    RemoteClock clock;
    clock.learn(0, SendTime(at(0ms)), at(1ms), 5'000);
    const Instant later = at(RemoteClock::good_for + 1s);
    clock.learn(1, SendTime(later), later, 400'000);
    CHECK(clock.at(1, later) == 400'001);
    CHECK(clock.at(2, later) == 400'001);
}

TEST_CASE("the bounds of the server's time: the reply took time, and a thousandth of the age") {
    RemoteClock clock;
    const Instant now = Clock::now();
    const auto bounds_after = [&](Milliseconds age) { return clock.bounds_at(0, now + age).value(); };
    clock.learn(0, SendTime(now), now + 10ms, 5'000);
    CHECK(bounds_after(0ms).error == 12ms);
    CHECK(bounds_after(0ms).least == 4'989);
    CHECK(bounds_after(0ms).age == 0ms);
    CHECK(bounds_after(10s).error == 22ms);
    CHECK(bounds_after(10s).least == 14'979);
    CHECK(bounds_after(10s).age == 10s);
}

TEST_CASE("the bounds of the server's time need a reading that vouches for that server's own clock") {
    RemoteClock clock;
    const Instant now = Clock::now();
    const Instant old = now - RemoteClock::good_for - 1s;
    const auto vouches = [&](std::uint32_t route) { return clock.bounds_at(route, Clock::now()).has_value(); };
    CHECK_FALSE(vouches(0));
    clock.learn(0, SendTime(now), now, 5'000);
    CHECK(vouches(0));
    CHECK_FALSE(vouches(1));
    CHECK(clock.bounds_at(0, now, now - 1ns));
    CHECK_FALSE(clock.bounds_at(0, now, now));
    SUBCASE("of this connection") { clock.disconnected(); }
    SUBCASE("not in doubt") { clock.doubt(); }
    SUBCASE("whose reply came soon") { clock.learn(0, SendTime(now - 3s), now, 100'000); }
    SUBCASE("that is new") { clock.learn(0, SendTime(old), old, 5'000); }
    CHECK_FALSE(vouches(0));
}

TEST_CASE("news from any plausible time is within the range of the clock, and proves nothing") {
    RemoteClock clock;
    const Instant now = Clock::now();
    clock.learn(0, SendTime(now), now, 8'796'093'022'207);
    CHECK_FALSE(clock.instant_of(0, 0, now));
    CHECK(clock.instant_of(0, 8'796'093'022'207, now));
    clock.learn(0, SendTime(now), now, 0);
    CHECK_FALSE(clock.instant_of(0, 8'796'093'022'207, now));
}

TEST_CASE("news from the future or from long ago proves nothing: the server's clock may have jumped forward") {
    RemoteClock clock;
    const Instant now = at(10s);
    clock.learn(0, SendTime(now - 10ms), now, 5'000);
    const auto told_at = [&](ServerMilliseconds time, Instant heard) { return clock.instant_of(0, time, heard); };
    CHECK(told_at(5'001, now) <= now - 10ms);
    CHECK(told_at(5'001, now) > now - 11ms);
    CHECK(told_at(5'000, now) < now - 10ms);
    CHECK(told_at(5'011, now));
    CHECK(told_at(5'100, now + 99ms));
    CHECK(told_at(5'000, now + RemoteClock::news_for));
    CHECK_FALSE(told_at(5'000, now + RemoteClock::news_for + 3ms));
    // A minute later the clocks may have drifted apart by 60 ms.
    const Instant later = now + 1min;
    CHECK(told_at(65'011, later).value() <= later - 60ms);
    CHECK(told_at(65'011 + 60, later));
    CHECK(told_at(64'940 - RemoteClock::news_for.count(), later));
    CHECK_FALSE(told_at(64'920 - RemoteClock::news_for.count(), later));
    // What comes from the future puts the reading in doubt.
    CHECK_FALSE(told_at(65'011 + 62, later));
    CHECK_FALSE(told_at(65'011, later));
    CHECK_FALSE(clock.at(0, later));
    clock.learn(0, SendTime(now - 10ms), now, 5'000);
    CHECK(told_at(5'011, now));
    CHECK_FALSE(told_at(5'012, now));
}

TEST_CASE("the instant of a server's time needs a reading of that server's own clock, which is not too old") {
    RemoteClock clock;
    const Instant now = Clock::now();
    CHECK_FALSE(clock.instant_of(0, 5'000, now));
    clock.learn(0, SendTime(now), now, 5'000);
    CHECK(clock.instant_of(0, 5'001, now) <= now);
    CHECK(clock.instant_of(0, 5'001, now) > now - 10ms);
    CHECK_FALSE(clock.instant_of(1, 5'001, now));
    clock.learn(1, SendTime(now - 1s), now, 7'999);
    CHECK(clock.instant_of(1, 9'000, now) <= now);
    CHECK(clock.instant_of(1, 9'000, now) > now - 10ms);
    CHECK(clock.instant_of(0, 5'001, now) > now - 10ms);
    const Instant long_ago = now - RemoteClock::good_for - 1s;
    clock.learn(1, SendTime(long_ago), long_ago, 5'000);
    CHECK_FALSE(clock.instant_of(1, 5'000, now));
    clock.doubt();
    CHECK_FALSE(clock.instant_of(0, 5'001, now));
}

TEST_CASE("a reading from before a lost connection still times commands, and vouches for nothing") {
    RemoteClock clock;
    const Instant before = Clock::now();
    clock.learn(0, SendTime(before), before, 5'000);
    REQUIRE(clock.instant_of(0, 5'001, before));
    clock.disconnected();
    CHECK_FALSE(clock.instant_of(0, 5'001, Clock::now()));
    CHECK(clock.at(0, before) == 5'001);
    clock.learn(0, SendTime(before), Clock::now(), 5'000);  // asked before the loss, answered after it
    CHECK_FALSE(clock.instant_of(0, 5'001, Clock::now()));
    const Instant after = Clock::now() + 1ns;
    clock.learn(0, SendTime(after), after, 5'000);
    CHECK(clock.instant_of(0, 5'001, after));
}

TEST_CASE("a reading whose reply took long still times commands, and vouches for nothing") {
    RemoteClock clock;
    const Instant now = Clock::now();
    clock.learn(0, SendTime(now - RemoteClock::vouches_up_to), now, 5'000);
    CHECK(clock.instant_of(0, 5'001, now));
    clock.doubt();
    clock.learn(0, SendTime(now - RemoteClock::vouches_up_to - 1ms), now, 5'000);
    CHECK_FALSE(clock.instant_of(0, 5'001, now));
    CHECK(clock.at(0, now));
    CHECK_FALSE(clock.bounds_at(0, now));
    clock.learn(1, SendTime(now), now, 5'000);
    CHECK(clock.instant_of(1, 5'001, now));
}

TEST_CASE("a reply that took long replaces no estimate with which it agrees") {
    RemoteClock clock;
    clock.learn(0, SendTime(at(0ms)), at(1ms), 5'000);
    const auto estimate = [&] { return clock.at(0, at(10s)).value_or(0); };
    const auto learn_in_3s = [&](ServerMilliseconds time) { clock.learn(0, SendTime(at(1s)), at(4s), time); };
    REQUIRE(estimate() == 15'001);
    learn_in_3s(6'001);  // the server answered at once
    CHECK(estimate() == 15'001);
    learn_in_3s(9'000);  // the server answered at the end
    CHECK(estimate() == 15'001);
    SUBCASE("its clock was set ahead") {
        learn_in_3s(9'100);
        CHECK(estimate() == 18'101);
    }
    SUBCASE("its clock was set back") {
        learn_in_3s(5'900);
        CHECK(estimate() == 14'901);
    }
    SUBCASE("it was in doubt") {
        clock.doubt();
        learn_in_3s(9'000);
        CHECK(estimate() == 15'001);
    }
    SUBCASE("it was in doubt, and set ahead") {
        clock.doubt();
        learn_in_3s(9'100);
        CHECK(estimate() == 18'101);
    }
    SUBCASE("another server answers") {
        clock.doubt();
        clock.learn(1, SendTime(at(1s)), at(4s), 9'000);
        CHECK(clock.at(1, at(10s)) == 18'001);
    }
    SUBCASE("the reading is old") {
        clock.learn(0, SendTime(at(RemoteClock::good_for + 1s)), at(RemoteClock::good_for + 4s), 309'000);
        CHECK(clock.at(0, at(RemoteClock::good_for + 1s)) == 309'001);
    }
    SUBCASE("another one took less time") {
        clock.learn(0, SendTime(at(2s)), at(2900ms), 7'800);
        CHECK(estimate() == 15'801);
    }
}
