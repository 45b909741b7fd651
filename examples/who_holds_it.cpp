// SPDX-License-Identifier: MIT
//
// Who holds a lock, and who waits for it: for an operator, a log or a page of metrics. It also shows locks of Java programs.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <thread>

using namespace std::chrono_literals;

namespace {

// [readme]
// `names`: which client id belongs to which process. In production each service logs Client::id() at its start.
void print_state(redlatch::FairLock& lock, const std::map<std::string, std::string>& names) {
    const auto name_of = [&](const std::string& client) { return names.contains(client) ? names.at(client) : client; };
    const redlatch::Inspection state = lock.inspect();  // one round trip; changes nothing
    std::cout << lock.name() << (state.holders.empty() ? " is free\n" : " is held\n");
    for (const redlatch::Holder& holder : state.holders)
        std::cout << "  by " << name_of(holder.client) << ", with " << holder.lease.count()
                  << " ms of its lease left\n";
    for (const redlatch::Queued& waiter : state.waiting)  // known of a FairLock only
        std::cout << "  " << name_of(waiter.client) << " waits\n";
}
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client shop{url}, billing{url}, reports{url}, operators_client{url};
    const std::map<std::string, std::string> names{
        {shop.id(), "shop"}, {billing.id(), "billing"}, {reports.id(), "reports"}};
    redlatch::FairLock view{operators_client, "example:who_holds_it"};
    const auto eventually = [&](auto condition) {
        const auto deadline = std::chrono::steady_clock::now() + 10s;
        while (!condition(view.inspect()) && std::chrono::steady_clock::now() < deadline)
            std::this_thread::sleep_for(5ms);
        print_state(view, names);
        return condition(view.inspect());
    };

    redlatch::FairLock of_shop{shop, view.name()}, of_billing{billing, view.name()}, of_reports{reports, view.name()};
    redlatch::Hold hold = of_shop.hold();
    auto second = of_billing.async_lock().future();
    bool well = eventually([&](const auto& state) { return state.waiting.size() == 1; });
    auto third = of_reports.async_lock().future();
    well &= eventually([&](const redlatch::Inspection& state) {
        return state.holders.size() == 1 && state.holders[0].client == shop.id() && state.waiting.size() == 2 &&
               state.waiting[0].client == billing.id() && state.waiting[1].client == reports.id();
    });
    well &= !hold.unlock();
    well &= eventually([&](const redlatch::Inspection& state) {
        return state.holders.size() == 1 && state.holders[0].client == billing.id() && state.waiting.size() == 1;
    });
    well &= !second.get().unlock() && !third.get().unlock();
    well &=
        eventually([](const redlatch::Inspection& state) { return state.holders.empty() && state.waiting.empty(); });
    return well ? 0 : 1;
}
