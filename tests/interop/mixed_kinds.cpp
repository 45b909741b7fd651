// SPDX-License-Identifier: MIT
// Different kinds on one name, the tokens of a FencedLock, and locks whose holder cannot acquire them again.
#include <chrono>
#include <string>
#include <vector>

#include "table.hpp"

namespace redlatch::test {

namespace {

using Clock = std::chrono::steady_clock;

/// One client of redlatch would refuse the second kind. Another client of the same process counts as another process.
void exclude_each_other(Match& m) {
    const std::string of_another_client = m.holder.is_java() || m.waiter.is_java() ? "" : "wd=29000";
    wakes_in_time(m, [&] {
        m.holder.must("lock", "ok");
        m.other.must("try", "false", of_another_client);
        Pending waiting = m.waiter.start("lock", of_another_client);
        until_listening(m);
        if (waiting.done()) throw Difference("the waiter is in too early");
        const auto released = Clock::now();
        m.holder.must("unlock", "ok");
        const Answer entered = waiting.get("ok");
        m.waiter.must("unlock", "ok", of_another_client);
        return between(released, entered.arrived);
    });
}

/// Redisson's SpinLock publishes no message when it is released.
void a_spin_lock_is_silent(Match& m) {
    m.holder.must("lock", "ok", "lease=1500");
    Pending waiting = m.waiter.start("lock");
    until_listening(m);
    if (waiting.done()) throw Difference("the waiter is in too early");
    const auto released = Clock::now();
    m.holder.must("unlock", "ok");
    const auto late = between(released, waiting.get("ok").arrived).count();
    in_range("ms until the waiter entered", late, m.holder.is_java() ? 500 : 0, m.holder.is_java() ? 3000 : 300);
    m.waiter.must("unlock", "ok");
}

/// For one try, Redisson throws and C++ returns false.
void refuses_its_holder(Match& m) {
    m.holder.must("lock", "ok");
    for (const char* const again : {"lock", "try"}) {
        const std::string answer = m.holder.ask(again);
        if (!answer.starts_with("!") && answer != "false") throw Difference("its holder again: " + answer);
    }
    m.holder.must("count", "1");
    m.waiter.must("try", "false");
    m.holder.must("unlock", "ok");
    m.waiter.must("try", "true");
    m.waiter.must("unlock", "ok");
}

/// Redisson grants both.
void refuse_each_other(Match& m) {
    m.holder.must("lock", "ok");
    const std::string answer = m.waiter.ask("try");
    if (m.waiter.is_java())
        same("the second kind", answer, "true");
    else if (!answer.starts_with("!"))
        throw Difference("the second kind: " + answer + " instead of an error");
    m.redis.integer("DEL", m.name);
    for (const std::string& key : m.redis.keys("*" + m.name + "*")) m.redis.integer("DEL", key);
    m.holder.ask("unlock");
    m.waiter.ask("unlock");
}

void tokens_grow(Match& m) {
    long long last = 0;
    for (int i = 0; i < 3; ++i) {
        for (const Actor* actor : {&m.holder, &m.waiter}) {
            const long long token = actor->number("lock_token");
            in_range("a token", token, last + 1, (1LL << 53) - 1);
            in_range("the holder's token", actor->number("token"), token, token);
            in_range("the token in the server", m.redis.integer("GET", "redisson_lock_token:{" + m.name + "}"), token,
                     token);
            last = token;
            actor->must("unlock", "ok");
        }
    }
    const long long outer = m.holder.number("lock_token");
    const long long inner = m.holder.number("lock_token");
    const long long step = m.holder.is_java() ? 1 : 0;
    in_range("the token of a reentry", inner, outer + step, outer + step);
    m.holder.must("unlock", "ok");
    m.holder.must("unlock", "ok");
}

}  // namespace

std::vector<Row> mixed_kind_rows() {
    return {
        {{"FencedLock", "fenced", "fenced"},
         "tokens grow, whoever takes the lock",
         tokens_grow,
         Row::Event::none,
         nullptr,
         "a reentry takes a new token, and so makes its own outer one stale; C++ keeps it"},
        {{"RLock/Fenced", "rlock", "fenced"}, "one lock by two names", exclude_each_other},
        {{"Fenced/RLock", "fenced", "rlock"}, "one lock by two names", exclude_each_other},
        {{"RLock/SpinLock", "rlock", "spin", true}, "one lock by two names", exclude_each_other},
        {{"SpinLock/RLock", "spin", "rlock"},
         "a SpinLock's release",
         a_spin_lock_is_silent,
         Row::Event::none,
         nullptr,
         "a SpinLock says nothing when it is released; the waiter sleeps until the lease that it saw is over"},
        {{"NonReentrantLock", "strict", "strict"}, "its holder cannot acquire it again", refuses_its_holder},
        {{"RLock/NonReentrant", "rlock", "strict"}, "one lock by two names", exclude_each_other},
        {{"NonReentrant/RLock", "strict", "rlock"}, "one lock by two names", exclude_each_other},
        {{"NonReentrantFairLock", "strict_fair", "strict_fair"},
         "its holder cannot acquire it again",
         refuses_its_holder},
        {{"Fair/NonReentrantFair", "fair", "strict_fair"}, "one lock by two names", exclude_each_other},
        {{"NonReentrantFair/Fair", "strict_fair", "fair"}, "one lock by two names", exclude_each_other},
        {{"RLock/RW", "rlock", "write"},
         "two kinds on one name",
         refuse_each_other,
         Row::Event::none,
         nullptr,
         "an RLock and a ReadWriteLock on one name are both taken"},
        {{"RW/RLock", "write", "rlock"},
         "two kinds on one name",
         [](Match& m) {
             m.holder.must("lock", "ok");
             const std::string answer = m.waiter.ask("try");
             if (m.waiter.is_java())
                 same("the second kind", answer, "false");
             else if (!answer.starts_with("!"))
                 throw Difference("the second kind: " + answer + " instead of an error");
             m.holder.must("unlock", "ok");
         }},
    };
}

}  // namespace redlatch::test
