// SPDX-License-Identifier: MIT
// Semaphores with and without leases. Their keys stay when all permits are released, so each case deletes them.
#include <chrono>
#include <string>
#include <vector>

#include "keyspace_snapshot.hpp"
#include "table.hpp"

namespace redlatch::test {

namespace {

using Clock = std::chrono::steady_clock;

/// Deletes the semaphore at the end, even if the case fails.
class Permits {
public:
    Permits(Match& match, int number) : match_(match) {
        match.holder.must("set", "true", "n=" + std::to_string(number));
        match.waiter.must("set", "false", "n=9");
    }
    Permits(const Permits&) = delete;
    Permits& operator=(const Permits&) = delete;
    ~Permits() {
        try {
            match_.redis.call("DEL", match_.name);
            match_.redis.call("DEL", "{" + match_.name + "}:timeout");
        } catch (const std::exception&) {
            // The case has failed for the same reason.
        }
    }

private:
    Match& match_;
};

// --- Semaphore -------------------------------------------------------------------------------------------------------

void release_wakes(Match& m) {
    const Permits permits{m, 2};
    wakes_in_time(m, [&] {
        m.holder.must("lock", "ok", "n=2");
        m.other.must("try", "false");
        Pending waiting = m.waiter.start("lock");
        until_listening(m);
        if (waiting.done()) throw Difference("the waiter is in too early");
        const auto released = Clock::now();
        m.holder.must("unlock", "ok", "n=2");
        const Answer entered = waiting.get("ok");
        m.other.must("available", "1");
        m.waiter.must("unlock", "ok");
        m.holder.must("available", "2");
        return between(released, entered.arrived);
    });
}

void timed_wait_ends(Match& m) {
    const Permits permits{m, 1};
    m.holder.must("lock", "ok");
    const auto asked = Clock::now();
    const Answer refused = m.waiter.must("try", "false", "wait=200");
    in_range("ms waited", between(asked, refused.arrived).count(), 199, 2500);
    m.holder.must("unlock", "ok");
    m.other.must("try", "true");
    m.other.must("unlock", "ok");
    m.holder.must("available", "1");
}

void counted_alike(Match& m) {
    {
        const Permits permits{m, 3};
        m.waiter.must("available", "3");
        m.holder.must("add", "ok", "n=4");
        m.waiter.must("try", "true", "n=5");
        m.holder.must("available", "2");
        m.waiter.must("drain", "2");
        m.holder.must("available", "0");
        m.holder.must("unlock_if_exists", "true", "n=2");
        m.waiter.must("available", "2");
    }
    m.holder.must("unlock_if_exists", "false");
    m.waiter.must("available", "0");
}

void big_request_is_served(Match& m) {
    const Permits permits{m, 2};
    m.holder.must("lock", "ok", "n=2");
    Pending waiting = m.waiter.start("lock", "n=2");
    until_listening(m);
    m.holder.must("unlock", "ok");
    still_waiting(waiting, milliseconds{100});
    m.holder.must("unlock", "ok");
    waiting.get("ok", std::chrono::seconds{1});
    m.waiter.must("unlock", "ok", "n=2");
}

void same_wire(Match& m) {
    m.do_without_grants();
    KeyspaceSnapshot snapshot{m};
    const Permits permits{m, 2};
    const std::string channel = "redisson_sc:{N}";
    same("message of set", snapshot.messages(), channel + " 2");
    same("keys", snapshot.keys(), "N string 2");
    m.holder.must("lock", "ok", "n=2");
    same("keys when all are out", snapshot.keys(), "N string 0");
    Pending waiting = m.waiter.start("lock");
    until_listening(m);
    same("channels", snapshot.channels(), channel);
    m.holder.must("unlock", "ok", "n=2");
    waiting.get("ok");
    same("message of release", snapshot.messages(), channel + " 2");
    m.waiter.must("unlock", "ok");
    same("message of the next", snapshot.messages(), channel + " 2");
}

void take_all_and_wait(Match& m) {
    m.holder.must("set", "true", "n=1");
    m.holder.must("lock", "ok");
    m.pending = m.waiter.start("lock");
    until_listening(m);
}

void release_wakes_still(Match& m) {
    if (m.pending->done()) throw Difference("the waiter is in while the holder holds");
    until_listening(m);
    const auto released = Clock::now();
    m.holder.must("unlock", "ok");
    in_range("ms until the waiter entered", between(released, m.pending->get("ok").arrived).count(), 0, 3000);
    m.redis.integer("DEL", m.name);
}

// --- PermitExpirableSemaphore ----------------------------------------------------------------------------------------

void is_an_id(const std::string& id) {
    if (id.size() != 32 || id.find_first_not_of("0123456789abcdef") != std::string::npos)
        throw Difference(id + " is no permit id");
}

void permit_release_wakes(Match& m) {
    const Permits permits{m, 1};
    wakes_in_time(m, [&] {
        const std::string id = m.holder.ask("lock", "lease=30000");
        is_an_id(id);
        m.other.must("try", "nil");
        Pending waiting = m.waiter.start("lock", "lease=30000");
        until_listening(m);
        if (waiting.done()) throw Difference("the waiter is in too early");
        const auto released = Clock::now();
        m.holder.must("unlock", "ok", "id=" + id);
        const Answer entered = waiting.get();
        is_an_id(entered.text);
        m.other.must("available", "0");
        m.holder.must("acquired", "1");
        m.holder.must("unlock", "ok", "id=" + entered.text);  // any client that knows the id may release it
        m.other.must("available", "1");
        return between(released, entered.arrived);
    });
}

void permit_timed_wait_ends(Match& m) {
    const Permits permits{m, 1};
    const std::string id = m.holder.ask("lock", "lease=30000");
    const auto asked = Clock::now();
    const Answer refused = m.waiter.must("try", "nil", "wait=200 lease=30000");
    in_range("ms waited", between(asked, refused.arrived).count(), 199, 2500);
    m.holder.must("unlock", "ok", "id=" + id);
    m.holder.must("available", "1");
}

void permit_lease_ends(Match& m) {
    const Permits permits{m, 1};
    const auto before = Clock::now();
    const std::string id = m.holder.ask("lock", "lease=500");
    const Answer entered = m.waiter.start("lock", "lease=30000").get();
    is_an_id(entered.text);
    in_range("ms until the waiter entered", between(before, entered.arrived).count(), 499, 2500);
    m.holder.must("try_unlock", "false", "id=" + id);
    m.waiter.must("available", "0");
    m.holder.must("try_unlock", "true", "id=" + entered.text);
    m.waiter.must("available", "1");
}

void permit_leases_agree(Match& m) {
    const Permits permits{m, 2};
    const std::string id = "id=" + m.holder.ask("lock", "lease=5000");
    in_range("lease by the waiter's word", m.waiter.number("left", id), 3500, 5000);
    m.waiter.must("prolong", "true", id + " lease=60000");
    in_range("lease by the holder's word", m.holder.number("left", id), 55'000, 60'000);
    const std::string for_ever = "id=" + m.holder.ask("lock");
    m.waiter.must("left", "-1", for_ever);
    m.waiter.must("try_unlock", "true", for_ever);
    m.holder.must("try_unlock", "true", id);
    m.waiter.must("prolong", "false", id + " lease=60000");
    m.holder.must("available", "2");
}

void permit_lists(Match& m) {
    const Permits permits{m, 4};
    const std::string ids = m.holder.ask("lock_many", "n=3 lease=30000");
    m.waiter.must("available", "1");
    m.waiter.must("permits", "4");
    const std::string stranger(32, '0');
    const std::string refused = m.waiter.ask("unlock_many", "id=" + ids + "," + stranger);
    if (!refused.starts_with("!")) throw Difference("a list with an unknown id: " + refused);
    m.holder.must("acquired", "3");
    m.waiter.must("unlock_many", "ok", "id=" + ids);
    m.holder.must("available", "4");
    m.holder.must("change", "ok", "n=6");
    m.waiter.must("permits", "6");
    m.waiter.must("add", "ok", "n=-2");
    m.holder.must("available", "4");
}

void permit_wire(Match& m) {
    m.do_without_grants();
    KeyspaceSnapshot snapshot{m};
    const Permits permits{m, 1};
    const std::string channel = "redisson_sc:{N}";
    same("message of set", snapshot.messages(), channel + " 1");
    const std::string id = m.holder.ask("lock", "lease=30000");
    std::string bytes;
    for (std::size_t i = 0; i + 1 < id.size(); i += 2)
        bytes += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
    snapshot.short_for(bytes, "ID");
    same("keys", snapshot.keys(), "N string 0; {N}:timeout zset ID");
    Pending waiting = m.waiter.start("lock", "lease=30000");
    until_listening(m);
    same("channels", snapshot.channels(), channel);
    m.holder.must("unlock", "ok", "id=" + id);
    m.waiter.must("unlock", "ok", "id=" + waiting.get().text);
    same("messages", snapshot.messages(), channel + " 1; " + channel + " 1");
}

void permit_and_wait(Match& m) {
    m.holder.must("set", "true", "n=1");
    // redlatch's watchdog renews a permit. Redisson has no watchdog for permits, so its holder uses a lease.
    is_an_id(m.holder.is_java() ? m.holder.ask("lock", "lease=6000") : m.holder.ask("lock_watched", "wd=2000"));
    m.pending = m.waiter.start("lock", "lease=30000");
    until_listening(m);
}

void permit_comes_back(Match& m) {
    const auto looked = Clock::now();
    const Answer entered = m.pending->get();
    is_an_id(entered.text);
    in_range("ms until the waiter entered", between(looked, entered.arrived).count(), -100'000, 8000);
    m.waiter.must("unlock", "ok", "id=" + entered.text);
    m.redis.integer("DEL", m.name);
    m.redis.integer("DEL", "{" + m.name + "}:timeout");
}

}  // namespace

std::vector<Row> semaphore_rows() {
    const Pairing plain{"Semaphore", "semaphore", "semaphore"};
    const Pairing expirable{"PermitExpirable", "permits", "permits"};
    return {
        {plain, "a release wakes the waiter within 100 ms", release_wakes},
        {plain, "a timed wait ends, and leaves nothing", timed_wait_ends},
        {plain, "both count alike", counted_alike},
        {plain, "a big request waits until all is there", big_request_is_served},
        {plain, "keys, channels and messages", same_wire},
        {plain, "permits and waiting outlast a restart", take_all_and_wait, Row::Event::restarted, release_wakes_still},
        {expirable, "a release wakes the waiter within 100 ms", permit_release_wakes},
        {expirable, "a timed wait ends, and leaves nothing", permit_timed_wait_ends},
        {expirable, "the waiter enters when the lease ends", permit_lease_ends},
        {expirable, "both see and change the same leases", permit_leases_agree},
        {expirable, "many at once, and both count alike", permit_lists},
        {expirable, "keys, channels and messages", permit_wire},
        {expirable, "a killed holder is forgotten", permit_and_wait, Row::Event::killed, permit_comes_back},
    };
}

}  // namespace redlatch::test
