// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace redlatch::test {

/// Collects the events passed to on_event. Thread-safe. May be destroyed before the client.
class EventLog {
public:
    std::function<void(const Event&)> handler() const {
        return [record = record_](const Event& event) {
            const std::lock_guard guard{record->mutex};
            record->events.push_back(event);
        };
    }

    /// Returns the options, with this log for the events.
    ClientOptions in(ClientOptions options) const {
        options.on_event = handler();
        return options;
    }

    std::vector<Event> all() const {
        const std::lock_guard guard{record_->mutex};
        return record_->events;
    }

    std::size_t count(Event::Kind kind) const {
        const std::vector<Event> events = all();
        return static_cast<std::size_t>(
            std::count_if(events.begin(), events.end(), [&](const Event& event) { return event.kind == kind; }));
    }

    std::string text() const {
        std::string text;
        for (const Event& event : all()) text += event.name + ": " + event.detail + "\n";
        return text;
    }

private:
    struct Record {
        std::mutex mutex;  // guards events
        std::vector<Event> events;
    };
    std::shared_ptr<Record> record_ = std::make_shared<Record>();
};

}  // namespace redlatch::test
