// SPDX-License-Identifier: MIT
#include "simulation/late_arrivals.hpp"

#include <redlatch/scripts/barrier.hpp>
#include <redlatch/scripts/condition_variable.hpp>
#include <redlatch/scripts/count_down_latch.hpp>
#include <redlatch/scripts/fair_lock.hpp>
#include <redlatch/scripts/fenced_lock.hpp>
#include <redlatch/scripts/fenced_queue.hpp>
#include <redlatch/scripts/holder_record.hpp>
#include <redlatch/scripts/lock_queue.hpp>
#include <redlatch/scripts/mutex.hpp>
#include <redlatch/scripts/permit_expirable_semaphore.hpp>
#include <redlatch/scripts/queue_acquire.hpp>
#include <redlatch/scripts/queue_release.hpp>
#include <redlatch/scripts/read_write_lock.hpp>
#include <redlatch/scripts/read_write_release.hpp>
#include <redlatch/scripts/read_write_stay.hpp>
#include <redlatch/scripts/rlock.hpp>
#include <redlatch/scripts/semaphore.hpp>
#include <redlatch/testing/sha1.hpp>

#include <utility>

namespace sim {

namespace scripts = redlatch::detail::scripts;
using redlatch::detail::digested;

LateArrivals::LateArrivals() {
    const std::vector<std::pair<const char*, const redlatch::detail::Script*>> changes{
        {"rlock_acquire", &digested<scripts::rlock_acquire>},
        {"rlock_release", &digested<scripts::rlock_release>},
        {"rlock_hand_over", &digested<scripts::rlock_hand_over>},
        {"rlock_give_up", &digested<scripts::rlock_give_up>},
        {"rlock_renew", &digested<scripts::rlock_renew>},
        {"rlock_stay", &digested<scripts::rlock_stay>},
        {"queue_acquire", &digested<scripts::queue_acquire>},
        {"queue_release", &digested<scripts::queue_release>},
        {"queue_hand_over", &digested<scripts::queue_hand_over>},
        {"queue_stay", &digested<scripts::queue_stay>},
        {"queue_give_up", &digested<scripts::queue_give_up>},
        {"fenced_acquire", &digested<scripts::fenced_acquire>},
        {"fenced_hand_over", &digested<scripts::fenced_hand_over>},
        {"fenced_queue_acquire", &digested<scripts::fenced_queue_acquire>},
        {"fenced_queue_release", &digested<scripts::fenced_queue_release>},
        {"fenced_queue_hand_over", &digested<scripts::fenced_queue_hand_over>},
        {"fenced_queue_give_up", &digested<scripts::fenced_queue_give_up>},
        {"fair_acquire", &digested<scripts::fair_acquire>},
        {"fair_release", &digested<scripts::fair_release>},
        {"fair_leave", &digested<scripts::fair_leave>},
        {"fair_stay", &digested<scripts::fair_stay>},
        {"read_acquire", &digested<scripts::read_acquire>},
        {"read_release", &digested<scripts::read_release>},
        {"read_give_up", &digested<scripts::read_give_up>},
        {"read_renew", &digested<scripts::read_renew>},
        {"read_stay", &digested<scripts::read_stay>},
        {"write_acquire", &digested<scripts::write_acquire>},
        {"write_release", &digested<scripts::write_release>},
        {"write_give_up", &digested<scripts::write_give_up>},
        {"write_stay", &digested<scripts::write_stay>},
        {"mutex_acquire", &digested<scripts::mutex_acquire>},
        {"mutex_release", &digested<scripts::mutex_release>},
        {"mutex_give_up", &digested<scripts::mutex_give_up>},
        {"mutex_renew", &digested<scripts::mutex_renew>},
        {"mutex_stay", &digested<scripts::mutex_stay>},
        {"semaphore_acquire", &digested<scripts::semaphore_acquire>},
        {"semaphore_give_back", &digested<scripts::semaphore_give_back>},
        {"semaphore_add", &digested<scripts::semaphore_add>},
        {"semaphore_drain", &digested<scripts::semaphore_drain>},
        {"semaphore_set", &digested<scripts::semaphore_set>},
        {"semaphore_leave", &digested<scripts::semaphore_leave>},
        {"permit_acquire", &digested<scripts::permit_acquire>},
        {"permit_leave", &digested<scripts::permit_leave>},
        {"permit_take_back", &digested<scripts::permit_take_back>},
        {"permit_release", &digested<scripts::permit_release>},
        {"permit_add", &digested<scripts::permit_add>},
        {"permit_set_lease", &digested<scripts::permit_set_lease>},
        {"permit_renew", &digested<scripts::permit_renew>},
        {"count_down_latch_set", &digested<scripts::count_down_latch_set>},
        {"count_down_latch_lower", &digested<scripts::count_down_latch_lower>},
        {"record_store", &digested<scripts::record_store>},
        {"barrier_arrive", &digested<scripts::barrier_arrive>},
        {"barrier_withdraw", &digested<scripts::barrier_withdraw>},
        {"condition_register", &digested<scripts::condition_register>},
        {"condition_notify", &digested<scripts::condition_notify>},
        {"condition_leave", &digested<scripts::condition_leave>},
    };
    for (const auto& [name, script] : changes) {
        names_.emplace(std::string(script->digest()), name);
        counts_[name] = 0;
    }
}

void LateArrivals::note(const std::vector<std::string>& words) {
    if (words[0] != "EVAL" && words[0] != "EVALSHA") return;
    std::string digest = words[1];
    if (words[0] == "EVAL") {
        const auto hex = redlatch::detail::sha1_hex(words[1]);
        digest.assign(hex.data(), hex.size());
    }
    if (const auto found = names_.find(digest); found != names_.end()) ++counts_[found->second];
}

std::string LateArrivals::missing() const {
    std::string text;
    for (const auto& [name, count] : counts_)
        if (count == 0) text += " " + name;
    return text;
}

std::string LateArrivals::summary() const {
    std::string text;
    for (const auto& [name, count] : counts_) text += " " + name + "=" + std::to_string(count);
    return text;
}

}  // namespace sim
