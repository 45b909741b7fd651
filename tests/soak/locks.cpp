// SPDX-License-Identifier: MIT
// The turns at each kind of lock.
#include "lock_turns.hpp"

namespace redlatch::soak {

namespace {

template <class Lock>
void take_turns(Crew& crew, Kind kind) {
    Lock lock{crew.client, info(kind).of};
    LockTurns<Lock> turns{crew, lock, kind, kind != Kind::mutex};
    while (!crew.stopping()) turns.take_one();
}

}  // namespace

void soak_rlock(Crew& crew) { take_turns<RLock>(crew, Kind::rlock); }
void soak_fair(Crew& crew) { take_turns<FairLock>(crew, Kind::fair); }
void soak_fenced(Crew& crew) { take_turns<FencedLock>(crew, Kind::fenced); }
void soak_mutex(Crew& crew) { take_turns<Mutex>(crew, Kind::mutex); }
void soak_spin(Crew& crew) { take_turns<SpinLock>(crew, Kind::spin); }

void soak_read_write(Crew& crew) {
    using ReadWrite = ReadWriteLock;
    ReadWrite lock{crew.client, info(Kind::writer).of, {.writer_preference = crew.worker % 2 == 0}};
    LockTurns<ReadWrite::WriteLock> writer{crew, lock.write_lock(), Kind::writer};
    LockTurns<ReadWrite::ReadLock> reader{crew, lock.read_lock(), Kind::reader};
    while (!crew.stopping()) {
        if (crew.chance(30))
            writer.take_one();
        else
            reader.take_one();
    }
}

void soak_multi(Crew& crew) {
    const std::string name{info(Kind::multi).of};
    RLock first{crew.client, name + "1"};
    RLock second{crew.client, name + "2"};
    MultiLock both{first, second};
    LockTurns<MultiLock> turns{crew, both, Kind::multi};
    while (!crew.stopping()) turns.take_one();
}

void soak_red(Crew& crew) {
    const std::string_view name = info(Kind::red).of;
    RLock first{crew.client, name};
    RLock second{*crew.steady[0], name};
    RLock third{*crew.steady[1], name};
    RedLock majority{RedLockOptions{.node_timeout = command_timeout}, first, second, third};
    LockTurns<RedLock> turns{crew, majority, Kind::red};
    turns.count_members = [&] {
        std::uint64_t count = 0;
        for (RLock* member : {&first, &second, &third})
            if (member->valid_until() > std::chrono::steady_clock::now()) ++count;
        return count;
    };
    while (!crew.stopping()) turns.take_one();
}

}  // namespace redlatch::soak
