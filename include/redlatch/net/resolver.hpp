// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/thread.hpp"
#include "redlatch/base/time.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Looks up the addresses of a host before a deadline. The system's look-up has no deadline, so it runs on a thread of
// its own, which is detached if it takes too long. Numeric addresses need no look-up and no thread.
class Resolver {
public:
    Resolver(const Resolver&) = delete;
    Resolver& operator=(const Resolver&) = delete;
    ~Resolver() {
        if (!thread_.joinable()) return;
        if (is_done()) {
            thread_.join();
        } else {
            keep_code_loaded();
            thread_.detach();
        }
    }

    // Waits for the result. `error` is 0 or one of getaddrinfo()'s codes; EAI_AGAIN if the deadline came first. The
    // addresses live as long as the returned object.
    static std::shared_ptr<const Resolver> run(const std::string& host, int port, Instant deadline, int& error) {
        std::shared_ptr<const Resolver> lookup = start(host, port);
        Question& question = *lookup->question_;
        std::unique_lock lock(question.mutex);
        const auto is_done = [&] { return question.is_done; };
        if (deadline == never)
            question.done.wait(lock, is_done);
        else
            question.done.wait_until(lock, deadline, is_done);
        error = question.is_done ? question.error : EAI_AGAIN;
        return lookup;
    }

    // Starts a look-up without waiting: is_done() returns whether there is a result.
    static std::shared_ptr<Resolver> start(const std::string& host, int port) {
        const std::shared_ptr<Resolver> lookup(new Resolver);
        const std::string service = std::to_string(port);
        if (lookup->question_->ask(host, service, AI_NUMERICHOST) == EAI_NONAME)
            lookup->thread_ = thread_with_signals_blocked(
                [question = lookup->question_, host, service] { question->ask(host, service, 0); });
        return lookup;
    }

    bool is_done() const {
        const std::lock_guard lock(question_->mutex);
        return question_->is_done;
    }

    // Returns null before there is a result, and if there is no such host.
    const addrinfo* addresses() const noexcept { return question_->found; }

private:
    // The state that the thread works on; it may outlive the caller. mutex guards the rest. done wakes the waiting
    // thread when there is a result.
    struct Question {
        Question() = default;
        Question(const Question&) = delete;
        Question& operator=(const Question&) = delete;
        ~Question() {
            if (found) ::freeaddrinfo(found);
        }

        int ask(const std::string& host, const std::string& service, int flags) {
            addrinfo hints{};
            hints.ai_family = AF_UNSPEC;
            hints.ai_socktype = SOCK_STREAM;
            hints.ai_flags = flags;
            addrinfo* addresses = nullptr;
            const int outcome = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &addresses);
            if (outcome == EAI_NONAME && flags != 0) return outcome;
            const std::lock_guard lock(mutex);
            found = outcome == 0 ? addresses : nullptr;
            error = outcome;
            is_done = true;
            done.notify_all();
            return outcome;
        }

        std::mutex mutex;
        std::condition_variable done;
        bool is_done = false;
        int error = 0;
        addrinfo* found = nullptr;
    };

    Resolver() = default;

    // The program may unload the shared object that contains this code, while the thread still returns to it from the
    // look-up. Nothing can unload it after the last instruction of the thread, so it stays loaded.
    static void keep_code_loaded() noexcept {
        const KeepErrno kept;
        Dl_info object{};
        if (::dladdr(reinterpret_cast<const void*>(&keep_code_loaded), &object) != 0 && object.dli_fname)
            static_cast<void>(::dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE));
    }

    const std::shared_ptr<Question> question_ = std::make_shared<Question>();
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
