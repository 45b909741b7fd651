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

// A candidate whose terms are turns. A term has no lease of its own.
class Candidate {
public:
    Candidate(Client& client, std::string_view name) : election_(client, name, "candidate") {}

    void lock(std::error_code& ec) { term_ = election_.campaign(ec); }
    bool lock(const std::stop_token& stop, std::error_code& ec) { return leads(election_.campaign(stop, ec)); }
    bool try_lock(std::error_code& ec) { return leads(election_.try_campaign(ec)); }
    bool try_lock_for(milliseconds patience, std::error_code& ec) {
        return leads(election_.campaign_for(patience, ec));
    }
    bool try_lock_for(milliseconds patience, Lease, std::error_code& ec) { return try_lock_for(patience, ec); }
    void unlock(std::error_code& ec) { ec = term_.resign(); }

    std::chrono::steady_clock::time_point valid_until() const {
        return term_.is_leader() ? term_.valid_until() : std::chrono::steady_clock::time_point::min();
    }
    std::stop_token lost() const { return term_.lost(); }
    std::int64_t token(std::error_code& ec) const {
        ec.clear();
        return term_.token();
    }

private:
    bool leads(Term term) {
        term_ = std::move(term);
        return static_cast<bool>(term_);
    }

    LeaderElection election_;
    Term term_;
};

}  // namespace

void soak_leader(Crew& crew) {
    Candidate candidate{crew.client, info(Kind::leader).of};
    LockTurns<Candidate> turns{crew, candidate, Kind::leader, false};
    while (!crew.stopping()) turns.take_one();
}

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
