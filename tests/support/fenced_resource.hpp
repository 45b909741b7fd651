// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkers.hpp"
#include "socket.hpp"

namespace redlatch::test {

/// A resource that checks fencing tokens: it refuses a token smaller than the newest one, and an equal one of another
/// owner.
class FencedResources {
public:
    bool accept(std::uint64_t resource, std::uint64_t owner, std::uint64_t token) {
        auto& [newest, newest_owner] = newest_[resource];
        if (token < newest || (token == newest && owner != newest_owner)) return false;
        newest = token;
        newest_owner = owner;
        return true;
    }

private:
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> newest_;
};

namespace detail {

struct FencedRequest {
    std::uint64_t resource;
    std::uint64_t owner;
    std::uint64_t token;
};

}  // namespace detail

/// Serves such resources on a unix socket. Use it in a process of its own: serve() does not return.
class FencedResourceServer {
public:
    explicit FencedResourceServer(const std::string& path) : listener_(listen_on({path})) {}

    [[noreturn]] void serve() {
        while (true) {
            std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
            for (const Fd& client : clients_) fds.push_back({client.get(), POLLIN, 0});
            if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) throw_errno("poll");
            for (std::size_t i = clients_.size(); i > 0; --i)
                if (fds[i].revents != 0 && !answer(clients_[i - 1]))
                    clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i) - 1);
            if (fds[0].revents != 0) {
                Fd client{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
                if (client) clients_.push_back(std::move(client));
            }
        }
    }

private:
    /// Returns false if the client has gone. A request is small enough to arrive in one piece.
    bool answer(const Fd& client) {
        detail::FencedRequest request{};
        const ssize_t got = without_eintr([&] { return ::recv(client.get(), &request, sizeof request, MSG_WAITALL); });
        if (got != static_cast<ssize_t>(sizeof request)) return false;
        const char accepted = resources_.accept(request.resource, request.owner, request.token) ? 1 : 0;
        return ::send(client.get(), &accepted, 1, MSG_NOSIGNAL) == 1;
    }

    Fd listener_;
    std::vector<Fd> clients_;
    FencedResources resources_;
};

/// One thread's connection to the server.
class FencedResourceClient {
public:
    explicit FencedResourceClient(const std::string& path)
        : fd_(connect_to({path}, std::chrono::steady_clock::now() + std::chrono::seconds{20})) {}

    /// Writes, and returns a record of the write with the times at this client.
    FencedWrite write(std::uint64_t resource, std::uint64_t owner, std::uint64_t token) {
        const detail::FencedRequest request{resource, owner, token};
        FencedWrite record{.resource = resource, .owner = owner, .token = token, .sent = monotonic_ns()};
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
        send_all(fd_, {reinterpret_cast<const char*>(&request), sizeof request}, deadline);
        std::string answer;
        while (answer.empty()) {
            if (!wait_for(fd_, POLLIN, deadline) || read_some(fd_, answer) == ReadState::closed)
                throw std::runtime_error("the fenced resource is gone");
        }
        record.answered = monotonic_ns();
        record.accepted = answer[0] == 1;
        return record;
    }

private:
    Fd fd_;
};

}  // namespace redlatch::test
