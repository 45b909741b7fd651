// SPDX-License-Identifier: MIT
//
// Metrics of a client in the text format that Prometheus reads: counters, gauges and histograms from stats(), and counted
// events from on_event.

#include <redlatch/redlatch.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <mutex>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>

namespace {

// Counts events by their kind. on_event is called on a thread of the client, so the counters are atomic.
struct Events {
    using Kind = redlatch::Event::Kind;
    static constexpr std::array kinds{Kind::hold_lost,    Kind::unlock_not_delivered,
                                      Kind::disconnected, Kind::reconnected,
                                      Kind::moved,        Kind::not_set_up};

    void operator()(const redlatch::Event& event) {
        for (std::size_t i = 0; i < kinds.size(); ++i)
            if (event.kind == kinds[i]) ++counts[i];
    }

    std::array<std::atomic<std::uint64_t>, kinds.size()> counts{};
};

void write_number(std::ostream& out, std::string_view name, std::string_view type, std::uint64_t value) {
    out << "# TYPE redlatch_" << name << ' ' << type << "\nredlatch_" << name << ' ' << value << '\n';
}

// Each bucket of Prometheus includes those before it. Its bound belongs to it, the end of a range does not: they differ by
// less than a microsecond.
void write_histogram(std::ostream& out, std::string_view name, const redlatch::Histogram& histogram) {
    out << "# TYPE redlatch_" << name << " histogram\n";
    std::uint64_t sum = 0;
    for (std::size_t range = 0; range < redlatch::Histogram::size; ++range) {
        sum += histogram.counts[range];
        const auto end = redlatch::Histogram::end_of(range);
        out << "redlatch_" << name << "_bucket{le=\"";
        if (end == std::chrono::microseconds::max())
            out << "+Inf";
        else
            out << std::chrono::duration<double>(end).count();
        out << "\"} " << sum << '\n';
    }
    out << "redlatch_" << name << "_count " << sum << '\n';
}

std::string prometheus_text(const redlatch::Stats& stats, const Events& events) {
    std::ostringstream out;
    out.precision(std::numeric_limits<double>::digits10);  // 1e-06, not 9.9999999999999995e-07
    write_number(out, "commands_total", "counter", stats.commands);
    write_number(out, "acquisitions_total", "counter", stats.acquisitions);
    write_number(out, "waits_total", "counter", stats.waits);
    write_number(out, "handoffs_total", "counter", stats.handoffs);
    write_number(out, "renewals_total", "counter", stats.renewals);
    write_number(out, "lost_holds_total", "counter", stats.lost_holds);
    write_number(out, "resends_total", "counter", stats.resends);
    write_number(out, "reconnects_total", "counter", stats.reconnects);
    write_number(out, "held", "gauge", stats.held);
    write_number(out, "waiting", "gauge", stats.waiting);
    write_histogram(out, "wait_seconds", stats.wait_times);
    write_histogram(out, "hold_seconds", stats.hold_times);
    out << "# TYPE redlatch_events_total counter\n";
    for (std::size_t i = 0; i < Events::kinds.size(); ++i)
        out << "redlatch_events_total{kind=\"" << to_string(Events::kinds[i]) << "\"} " << events.counts[i] << '\n';
    return out.str();
}

}  // namespace

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    // [readme]
    Events events;  // outlives the client
    redlatch::ClientOptions options;
    options.on_event = [&](const redlatch::Event& event) { events(event); };
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379", options};
    redlatch::RLock orders{redis, "example:metrics"};
    { const std::lock_guard guard{orders}; }
    const std::lock_guard guard{orders};

    const std::string text = prometheus_text(redis.stats(), events);  // what GET /metrics returns
    // [/readme]
    std::cout << text;
    const auto has = [&](std::string_view line) { return text.find(line) != std::string::npos; };
    return has("\nredlatch_acquisitions_total 2\n") && has("\nredlatch_held 1\n") &&
                   has("\nredlatch_hold_seconds_bucket{le=\"+Inf\"} 1\n")
               ? 0
               : 1;
}
