// SPDX-License-Identifier: MIT
// ctest: timeout=300 long without=address
// Cuts the connection at every byte of a request and of its reply, for every operation of every lock.
#include "faults/cut_kit.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

std::string digest(const Script& script) { return std::string{script.digest()}; }

template <class Value>
std::string text(const Value& value) {
    return std::to_string(value);
}

std::string text(bool value) { return value ? "yes" : "no"; }

template <class Lock>
std::string unlock(Lock& lock) {
    std::error_code ec;
    lock.unlock(ec);
    return ec ? ec.message() : "given back";
}

struct LockScripts {
    std::string acquire;
    std::string release;
    std::string holders;    // the first command of force_unlock()
    std::string give_up;    // its second command
    std::string locked;     // the query of is_locked()
    std::string count;      // hold_count()
    std::string remaining;  // remaining_lease()
};

// Adds the operations that every lock has, for one lock.
template <class Lock>
void add_lock(std::vector<CutOperation>& to, const std::string& kind, Lock& lock, const LockScripts& scripts) {
    const auto take = [&lock] { lock.lock(); };
    const auto give = [&lock] { lock.unlock(); };
    const auto nothing = [] {};
    to.push_back(
        {kind + " lock", scripts.acquire, nothing, [&lock] { return lock.lock(), text(lock.is_held()); }, give});
    to.push_back({kind + " lock with a lease", scripts.acquire, nothing,
                  [&lock] { return lock.lock(Lease{20s}), "held"; }, give});
    to.push_back({kind + " try_lock", scripts.acquire, nothing, [&lock] { return text(lock.try_lock()); }, give});
    to.push_back(
        {kind + " try_lock_for", scripts.acquire, nothing, [&lock] { return text(lock.try_lock_for(10s)); }, give});
    to.push_back({kind + " unlock", scripts.release, take, [&lock] { return unlock(lock); }});
    const auto force = [&lock] { return text(lock.force_unlock()); };
    to.push_back({kind + " force_unlock, who holds it", scripts.holders, take, force, give});
    to.push_back({kind + " force_unlock", scripts.give_up, take, force, give});
    to.push_back({kind + " is_locked", scripts.locked, take, [&lock] { return text(lock.is_locked()); }, give});
    to.push_back({kind + " hold_count", scripts.count, take, [&lock] { return text(lock.hold_count()); }, give});
    to.push_back({kind + " remaining_lease", scripts.remaining, take,
                  [&lock] { return text(lock.remaining_lease() > 0ms); }, give});
}

// Does the same for a reentrant lock, with what that has besides.
template <class Lock>
void add_reentrant_lock(std::vector<CutOperation>& to, const std::string& kind, Lock& lock,
                        const LockScripts& scripts) {
    add_lock(to, kind, lock, scripts);
    const auto take = [&lock] { lock.lock(); };
    const auto take_twice = [&lock] { lock.lock(), lock.lock(); };
    const auto give = [&lock] { lock.unlock(); };
    const auto give_twice = [&lock] { lock.unlock(), lock.unlock(); };
    to.push_back({kind + " reentry", scripts.acquire, take, [&lock] { return lock.lock(), "held"; }, give_twice});
    to.push_back({kind + " unlock of a level", scripts.release, take_twice, [&lock] { return unlock(lock); }, give});
    to.push_back({kind + " hold_count of two levels", scripts.count, take_twice,
                  [&lock] { return text(lock.hold_count()); }, give_twice});
}

// Adds a try to take a lock that another client holds. It is refused and leaves nothing.
template <class Lock>
void add_refused(std::vector<CutOperation>& to, const std::string& kind, Lock& far, Lock& near,
                 const LockScripts& scripts) {
    // A Mutex sends its plain command only if no connection was opened since the acquire before.
    const auto take = [&near, &far] { far.lock(), far.unlock(), near.lock(); };
    to.push_back({kind + " try_lock of a lock that another holds", scripts.acquire, take,
                  [&far] { return text(far.try_lock()); }, [&near] { near.unlock(); }});
}

LockScripts plain(const QueueScripts& scripts) {
    return {digest(scripts.acquire),
            digest(scripts.release),
            "HKEYS",
            digest(scripts.give_up),
            "HLEN",
            "HGET",
            digest(digested<scripts::rlock_remaining_lease>)};
}

struct PlainLocks final : CutWork {
    explicit PlainLocks(CutBench& fixture)
        : rlock(fixture.far, fixture.name),
          near_rlock(fixture.near, fixture.name),
          spin(fixture.far, fixture.name),
          fenced(fixture.far, fixture.name) {
        add_reentrant_lock(operations, "RLock", rlock, plain(RLockProtocol::queue_scripts));
        add_refused(operations, "RLock", rlock, near_rlock, plain(RLockProtocol::queue_scripts));
        add_reentrant_lock(operations, "SpinLock", spin, plain(RLockProtocol::queue_scripts));
        add_reentrant_lock(operations, "FencedLock", fenced, plain(FencedProtocol::queue_scripts));
        operations.push_back({"FencedLock lock_and_get_token", digest(digested<scripts::fenced_queue_acquire>), [] {},
                              [this] { return text(fenced.lock_and_get_token() == fenced.token()); },
                              [this] { fenced.unlock(); }});
    }
    RLock rlock, near_rlock;
    SpinLock spin;
    FencedLock fenced;
};

struct OtherLocks final : CutWork {
    explicit OtherLocks(CutBench& fixture)
        : redis(fixture.redis),
          queue("redisson_lock_queue:{" + fixture.name + "f}"),
          fair(fixture.far, fixture.name + "f"),
          near_fair(fixture.near, fixture.name + "f"),
          both(fixture.far, fixture.name + "rw"),
          near_both(fixture.near, fixture.name + "rw"),
          mutex(fixture.far, fixture.name + "m"),
          near_mutex(fixture.near, fixture.name + "m") {
        const LockScripts mutex_commands{"SET",
                                         digest(digested<scripts::mutex_release>),
                                         "GET",
                                         digest(digested<scripts::mutex_give_up>),
                                         "GET",
                                         "GET",
                                         digest(digested<scripts::mutex_remaining_lease>)};
        add_lock(operations, "Mutex", mutex, mutex_commands);
        add_refused(operations, "Mutex", mutex, near_mutex, mutex_commands);
        const LockScripts fair_scripts{digest(digested<scripts::fair_acquire>),
                                       digest(digested<scripts::fair_release>),
                                       "HKEYS",
                                       digest(digested<scripts::fair_leave>),
                                       "HLEN",
                                       "HGET",
                                       digest(digested<scripts::rlock_remaining_lease>)};
        add_reentrant_lock(operations, "FairLock", fair, fair_scripts);
        add_refused(operations, "FairLock", fair, near_fair, fair_scripts);
        // Enters the queue and leaves it again.
        operations.push_back({"FairLock queueing up", digest(digested<scripts::fair_acquire>),
                              [this] { near_fair.lock(); }, [this] { return queue_up(); }, [this] { come_again(); }});
        operations.push_back({"FairLock leaving the queue", digest(digested<scripts::fair_leave>),
                              [this] { near_fair.lock(); }, [this] { return queue_up(); }, [this] { come_again(); }});
        add_reentrant_lock(operations, "ReadLock", both.read_lock(),
                           {digest(digested<scripts::read_acquire>), digest(digested<scripts::read_release>),
                            digest(digested<scripts::read_holders>), digest(digested<scripts::read_give_up>),
                            digest(digested<scripts::read_remaining_lease>), digest(digested<scripts::read_hold_count>),
                            digest(digested<scripts::read_remaining_lease>)});
        add_refused(operations, "ReadLock", both.read_lock(), near_both.read_lock(), {});
        operations.pop_back();  // a reader does not exclude other readers
        add_reentrant_lock(operations, "WriteLock", both.write_lock(),
                           {digest(digested<scripts::write_acquire>), digest(digested<scripts::write_release>),
                            digest(digested<scripts::write_holders>), digest(digested<scripts::write_give_up>),
                            digest(digested<scripts::write_remaining_lease>), "HGET",
                            digest(digested<scripts::write_remaining_lease>)});
        operations.push_back({"downgrade to reader", digest(digested<scripts::write_release>),
                              [this] { both.lock(), both.lock_shared(); }, [this] { return unlock(both); },
                              [this] { both.unlock_shared(); }});
        operations.push_back({"try_lock_shared while another writes", digest(digested<scripts::read_acquire>),
                              [this] { near_both.lock(); }, [this] { return text(both.try_lock_shared()); },
                              [this] { near_both.unlock(); }});
    }

    // The lock leaves the queue in the background.
    std::string queue_up() {
        if (fair.try_lock_for(20ms)) return "held";
        return text(eventually([this] { return !redis.exists(queue); }, 5s));
    }

    // The command that leaves the queue may have to be resent. It names another place than this one.
    void come_again() {
        near_fair.unlock();
        fair.lock();
        fair.unlock();
    }

    RawRedis& redis;
    std::string queue;
    FairLock fair, near_fair;
    ReadWriteLock both, near_both;
    Mutex mutex, near_mutex;
};

}  // namespace

TEST_CASE("fault: connection cut at every byte of every operation of RLock, SpinLock and FencedLock") {
    CutReport report;
    sweep_all<PlainLocks>(report);
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts > 33 * 100);
    MESSAGE(report.cuts, " cuts");
}

TEST_CASE("fault: connection cut at every byte of every operation of FairLock, ReadWriteLock's sides and Mutex") {
    CutReport report;
    sweep_all<OtherLocks>(report);
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts > 33 * 100);
    MESSAGE(report.cuts, " cuts");
}
