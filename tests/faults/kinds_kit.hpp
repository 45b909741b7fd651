// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "faults/fault_kit.hpp"

// Every kind of primitive that a thread may acquire, with what all of them can do.
namespace redlatch::fault {

struct AnyKind {
    std::string kind;
    std::function<void()> prepare;  // gives a semaphore its only permit
    std::function<bool()> try_once;
    std::function<bool(std::chrono::milliseconds)> try_for;
    std::function<void()> give_back;
};

inline AnyKind any_kind(std::string kind, std::shared_ptr<LockApi> lock) {
    return {std::move(kind), [] {}, [=] { return lock->try_lock(); },
            [=](std::chrono::milliseconds time) { return lock->try_lock_for(time); }, [=] { lock->unlock(); }};
}

// A lock over several, with its members and their clients.
template <class Lock>
struct Quorum {
    std::deque<Client> clients;
    std::deque<RLock> members;
    std::optional<Lock> lock;
};

template <class Lock>
AnyKind any_kind(std::string kind, std::shared_ptr<Quorum<Lock>> quorum) {
    Lock& lock = quorum->lock.emplace(quorum->members);
    return any_kind(std::move(kind), std::shared_ptr<LockApi>(std::move(quorum), &lock));
}

inline std::vector<AnyKind> kinds_of(Client& client, const std::string& name) {
    std::vector<AnyKind> all;
    all.push_back(any_kind("RLock", std::make_shared<RLock>(client, name + " rlock")));
    all.push_back(any_kind("FairLock", std::make_shared<FairLock>(client, name + " fair")));
    all.push_back(any_kind("FencedLock", std::make_shared<FencedLock>(client, name + " fenced")));
    all.push_back(any_kind("SpinLock", std::make_shared<SpinLock>(client, name + " spin")));
    all.push_back(any_kind("Mutex", std::make_shared<Mutex>(client, name + " mutex")));
    for (const bool writes : {true, false}) {
        const auto both = std::make_shared<ReadWriteLock>(client, name + (writes ? " written" : " read"));
        if (writes)
            all.push_back(any_kind("ReadWriteLock, writer", std::shared_ptr<LockApi>(both, &both->write_lock())));
        else
            all.push_back(any_kind("ReadWriteLock, reader", std::shared_ptr<LockApi>(both, &both->read_lock())));
    }
    const auto multi = std::make_shared<Quorum<MultiLock>>();
    for (const std::string number : {" 0", " 1", " 2"}) multi->members.emplace_back(client, name + number);
    all.push_back(any_kind("MultiLock", multi));
    const auto permits = std::make_shared<Semaphore>(client, name + " permits");
    all.push_back({"Semaphore", [=] { permits->try_set_permits(1); }, [=] { return permits->try_acquire(); },
                   [=](std::chrono::milliseconds time) { return permits->try_acquire_for(time); },
                   [=] { permits->release(); }});
    const auto leased = std::make_shared<PermitExpirableSemaphore>(client, name + " leased");
    const auto id = std::make_shared<std::optional<PermitId>>();
    all.push_back({"PermitExpirableSemaphore", [=] { leased->try_set_permits(1); },
                   [=] { return (*id = leased->try_acquire()).has_value(); },
                   [=](std::chrono::milliseconds time) { return (*id = leased->try_acquire_for(time)).has_value(); },
                   [=] { leased->release(id->value()); }});
    return all;
}

// A RedLock of three clients that use the same server, which must be older than `options.watchdog_timeout`.
inline AnyKind red_lock_of(const std::string& url, const ClientOptions& options, const std::string& name) {
    const auto red = std::make_shared<Quorum<RedLock>>();
    for (const std::string number : {" 0", " 1", " 2"})
        red->members.emplace_back(red->clients.emplace_back(url, options), name + " red" + number);
    return any_kind("RedLock", red);
}

}  // namespace redlatch::fault
