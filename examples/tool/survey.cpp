// SPDX-License-Identifier: MIT
#include "survey.hpp"

#include "grip.hpp"
#include "servers.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tool {

namespace {

// A name may hold any bytes, and a terminal obeys some of them.
std::string printable(std::string_view text) {
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 32 && byte != 127 && c != '\\') {
            out += c;
        } else {
            std::array<char, 5> code{};
            std::snprintf(code.data(), code.size(), "\\x%02x", byte);
            out += code.data();
        }
    }
    return out;
}

std::string seconds_of(Milliseconds time) {
    if (time == Milliseconds::max()) return "for ever";
    const auto tenths = time.count() / 100;
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + "s";
}

using Row = std::vector<std::string>;

Row row_of(const Entry& entry) {
    std::string holders = entry.holders.empty() ? std::to_string(entry.held) : printable(entry.holders.front());
    if (entry.holders.size() > 1) holders += " and " + std::to_string(entry.held - 1) + " more";
    return {printable(entry.name),
            name_of(entry.type),
            entry.lease ? seconds_of(*entry.lease) : "-",
            entry.type == LockType::fair || entry.waiting > 0 ? std::to_string(entry.waiting) : "-",
            entry.token ? printable(*entry.token) : "-",
            holders};
}

const Row heading{"NAME", "KIND", "LEASE", "WAITING", "TOKEN", "HELD BY"};

// On a terminal the columns are aligned; otherwise a tab is between them, and there is no heading.
std::string table(const std::vector<Entry>& entries, bool aligned) {
    std::vector<Row> rows;
    if (aligned) rows.push_back(heading);
    for (const Entry& entry : entries) rows.push_back(row_of(entry));
    std::array<std::size_t, 6> widths{};
    for (const Row& row : rows)
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string out;
    for (const Row& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            out += row[i];
            if (i + 1 == row.size())
                out += '\n';
            else if (aligned)
                out += std::string(widths[i] - row[i].size() + 2, ' ');
            else
                out += '\t';
        }
    }
    return out;
}

void show(const redlatch::Holder& holder) {
    std::cout << (holder.shared ? "reader " : "holder ") + printable(holder.owner) + "  level " +
                     std::to_string(holder.level) + "  lease " + seconds_of(holder.lease) + "\n";
}

bool show(const redlatch::Inspection& state) {
    for (const redlatch::Holder& holder : state.holders) show(holder);
    int place = 0;
    for (const redlatch::Queued& waiter : state.waiting)
        std::cout << "waiter " + std::to_string(++place) + "  " + printable(waiter.owner) + "  for at least " +
                         seconds_of(waiter.expires_in) + "\n";
    if (state.token) std::cout << "token  " + std::to_string(*state.token) + "\n";
    return !state.holders.empty();
}

volatile sig_atomic_t stopped = 0;

}  // namespace

int list(const Arguments& arguments) {
    std::cout << table(Servers(arguments).held(), ::isatty(STDOUT_FILENO) == 1);
    return 0;
}

int who(const Arguments& arguments) {
    const LockType type = Servers(arguments).type_of(arguments.name);
    redlatch::Client client(arguments.url, client_options(arguments));
    const std::string& name = arguments.name;
    bool held = false;
    switch (type) {
        case LockType::read_write: {
            redlatch::ReadWriteLock lock(client, name);
            held = show(lock.write_lock().inspect());
            held = show(lock.read_lock().inspect()) || held;
            break;
        }
        case LockType::mutex: held = show(redlatch::Mutex(client, name).inspect()); break;
        case LockType::fenced:
            held = show(redlatch::FencedLock(client, name).inspect());
            if (const auto leader = redlatch::LeaderElection(client, name).leader(); leader && !leader->name.empty())
                std::cout << "leader " + printable(leader->name) + "\n";
            break;
        case LockType::semaphore: {
            const redlatch::SemaphoreInspection state = redlatch::PermitExpirableSemaphore(client, name).inspect();
            for (const redlatch::HeldPermit& permit : state.permits)
                std::cout << "permit " + permit.id + "  lease " + seconds_of(permit.lease) + "\n";
            std::cout << "available " + std::to_string(state.available) + "\n";
            held = state.acquired > 0;
            break;
        }
        case LockType::none:  // one that is free may have a queue
        case LockType::reentrant:
        case LockType::fair: held = show(redlatch::FairLock(client, name).inspect());
    }
    if (!held) std::cerr << "redlatch: nobody holds it: " + printable(name) + "\n";
    return held ? 0 : codes::not_held;
}

int unlock(const Arguments& arguments) {
    const LockType type = Servers(arguments).type_of(arguments.name);
    redlatch::Client client(arguments.url, client_options(arguments));
    const std::string& name = arguments.name;
    bool ended = false;
    switch (type) {
        case LockType::read_write: {
            redlatch::ReadWriteLock lock(client, name);
            ended = lock.write_lock().force_unlock();
            ended = lock.read_lock().force_unlock() || ended;
            break;
        }
        case LockType::mutex: ended = redlatch::Mutex(client, name).force_unlock(); break;
        // The fair lock's release notifies the head of its queue.
        case LockType::fair: ended = redlatch::FairLock(client, name).force_unlock(); break;
        case LockType::fenced:
        case LockType::reentrant: ended = redlatch::RLock(client, name).force_unlock(); break;
        case LockType::semaphore:
            throw redlatch::Error(redlatch::errc::unsupported, name, "permits come back when their leases end");
        case LockType::none: break;
    }
    if (!ended) std::cerr << "redlatch: nobody holds it: " + printable(name) + "\n";
    return ended ? 0 : codes::not_held;
}

int top(const Arguments& arguments) {
    Servers servers(arguments);
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    struct sigaction action {};
    action.sa_handler = [](int) { stopped = 1; };
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
    for (long view = 1; stopped == 0; ++view) {
        const auto begun = std::chrono::steady_clock::now();
        const std::vector<Entry> entries = servers.held();
        std::string out = table(entries, terminal);
        if (terminal) {
            winsize size{};
            std::size_t lines = 24;
            if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 4) lines = size.ws_row;
            std::size_t end = 0;
            for (std::size_t line = 0; line + 3 < lines && end < out.size(); ++line) end = out.find('\n', end) + 1;
            out = "\x1b[H\x1b[2J" + std::to_string(entries.size()) + " held on " +
                  redlatch::Url::parse(arguments.url).display() + "\n" + out.substr(0, end);
        } else if (entries.empty()) {
            out = "\n";  // a view that shows nothing is a line, too
        }
        std::cout << out << std::flush;
        if (!std::cout || view == arguments.count) break;
        const auto left =
            std::chrono::ceil<Milliseconds>(begun + arguments.interval - std::chrono::steady_clock::now());
        if (left > Milliseconds(0) && stopped == 0) ::poll(nullptr, 0, static_cast<int>(left.count()));
    }
    return 0;
}

}  // namespace tool
