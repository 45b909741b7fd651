// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/core/deadline.hpp"
#include "redlatch/core/quiet_thread.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace redlatch {

// The addresses of a host, before a deadline. The system's look-up of a name has none, so it runs in a thread of its
// own, which is left alone when it takes too long. Numeric addresses need no look-up, and no thread.
//
// mutex_ guards error_, found_ and is_done_; done_ tells the waiting thread that they are there.
class NameLookup {
public:
    NameLookup(const NameLookup&) = delete;
    NameLookup& operator=(const NameLookup&) = delete;
    ~NameLookup() {
        if (found_) ::freeaddrinfo(found_);
    }

    // `error` is 0, or one of getaddrinfo()'s codes; EAI_AGAIN when the deadline came first. The addresses live as
    // long as the result.
    static std::shared_ptr<const NameLookup> run(const std::string& host, int port, Instant deadline, int& error) {
        const std::shared_ptr<NameLookup> lookup = start(host, port);
        std::unique_lock lock(lookup->mutex_);
        const auto is_done = [&] { return lookup->is_done_; };
        if (deadline == never)
            lookup->done_.wait(lock, is_done);
        else
            lookup->done_.wait_until(lock, deadline, is_done);
        error = lookup->is_done_ ? lookup->error_ : EAI_AGAIN;
        return lookup;
    }

    // The same for who does not wait: is_done() says whether there is a result.
    static std::shared_ptr<NameLookup> start(const std::string& host, int port) {
        const std::shared_ptr<NameLookup> lookup(new NameLookup);
        const std::string service = std::to_string(port);
        if (lookup->ask(host, service, AI_NUMERICHOST) == EAI_NONAME)
            quiet_thread([lookup, host, service] { lookup->ask(host, service, 0); }).detach();
        return lookup;
    }

    bool is_done() {
        const std::lock_guard lock(mutex_);
        return is_done_;
    }

    // Null before there is a result, and when there is no such host.
    const addrinfo* addresses() const noexcept { return found_; }

private:
    NameLookup() = default;

    int ask(const std::string& host, const std::string& service, int flags) {
        addrinfo hints{};
        hints.ai_family = AF_UNSPEC;
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = flags;
        addrinfo* found = nullptr;
        const int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
        if (error == EAI_NONAME && flags != 0) return error;
        const std::lock_guard lock(mutex_);
        found_ = error == 0 ? found : nullptr;
        error_ = error;
        is_done_ = true;
        done_.notify_all();
        return error;
    }

    std::mutex mutex_;
    std::condition_variable done_;
    bool is_done_ = false;
    int error_ = 0;
    addrinfo* found_ = nullptr;
};

}  // namespace redlatch
