// SPDX-License-Identifier: MIT
#pragma once

#include "arguments.hpp"

#include <redlatch/redlatch.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tool {

// What the tool knows a key to be.
enum class LockType { none, reentrant, fair, fenced, read_write, mutex, semaphore };

const char* name_of(LockType type) noexcept;

// One lock that is held, or semaphore of which permits are taken.
struct Entry {
    std::string name;
    LockType type = LockType::none;
    std::vector<std::string> holders{};  // owners; of a semaphore none
    long long held = 0;                  // how many holders or permits there are
    long long waiting = 0;               // in the queue of a fair lock
    std::optional<Milliseconds> lease{};
    std::optional<std::string> token{};  // the last one, of a fenced lock
};

// The servers that have keys, asked by plain commands: no Lua script, and nothing is changed. Throws redlatch::Error.
class Servers {
public:
    explicit Servers(const Arguments& arguments);

    // Returns what is held at this time, sorted by name. A large server is asked in many small steps, so a lock that
    // comes or goes meanwhile may be missing.
    std::vector<Entry> held();

    // Returns what a name is.
    LockType type_of(const std::string& name);

private:
    using Words = std::vector<std::string>;

    struct Server {
        std::unique_ptr<redlatch::HiredisTransport> connection;
    };

    std::vector<redlatch::Reply> ask(Server& server, const std::vector<Words>& commands, bool by_key);
    void find_masters();
    void examine(Server& server, const std::vector<std::string>& keys, std::vector<Entry>& found);

    const Arguments arguments_;
    const redlatch::Url url_;
    Server entry_;                 // routes by key in a cluster
    std::vector<Server> masters_;  // of a cluster; empty for one server
};

}  // namespace tool
