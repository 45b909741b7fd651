// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/transport/transport.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The replies for which one thread waits.
struct Exchange {
    Exchange(Reply* where, std::size_t expected) : next_reply(where), missing(expected) {}

    void add(Reply&& reply) noexcept {
        *next_reply++ = std::move(reply);
        --missing;
    }

    Reply* next_reply;
    std::size_t missing;
    Exchange* next = nullptr;  // in Answered
};

// A command whose reply goes to a completion.
struct PostedCommand {
    explicit PostedCommand(Completion receiver) : done(std::move(receiver)) {}

    Completion done;
    Reply reply;
    std::unique_ptr<PostedCommand> next;  // in Answered
};

// Complete exchanges, and posted commands with their replies, in the order of the replies. Collecting them needs no
// memory: each one has room for its own reply and its place in the list.
class Answered {
public:
    // Adds a reply to an exchange or to a posted command; to neither if its caller has left.
    void add(Exchange* exchange, std::unique_ptr<PostedCommand>& posted, Reply&& reply) noexcept {
        ++replies_;
        if (exchange != nullptr) {
            exchange->add(std::move(reply));
            if (exchange->missing == 0) list(*exchange);
        } else if (posted) {
            posted->reply = std::move(reply);
            list(std::move(posted));
        }
    }

    std::size_t replies() const noexcept { return replies_; }
    std::size_t exchanges() const noexcept { return exchanges_; }
    bool has_posted() const noexcept { return first_posted_ != nullptr; }

    // After wake(exchange) the exchange may be gone.
    template <class Wake>
    void wake_exchanges(Wake wake) noexcept {
        for (Exchange* next = std::exchange(first_, nullptr); next != nullptr;) {
            Exchange& exchange = *next;
            next = exchange.next;
            wake(exchange);
        }
    }

    // Calls the completions. They may call into the owner of the queue, so no mutex may be locked.
    void complete_posted() noexcept {
        while (has_posted()) {
            const std::unique_ptr<PostedCommand> one = std::exchange(first_posted_, nullptr);
            first_posted_ = std::move(one->next);
            // Completions handle their own errors. If one throws for lack of memory, there is no caller to report
            // to.
            try {
                one->done(std::move(one->reply));
            } catch (...) {
            }
        }
    }

private:
    void list(Exchange& exchange) noexcept {
        (first_ != nullptr ? last_->next : first_) = &exchange;
        last_ = &exchange;
        ++exchanges_;
    }

    void list(std::unique_ptr<PostedCommand> posted) noexcept {
        PostedCommand* const added = posted.get();
        (has_posted() ? last_posted_->next : first_posted_) = std::move(posted);
        last_posted_ = added;
    }

    std::size_t replies_ = 0;
    std::size_t exchanges_ = 0;
    Exchange* first_ = nullptr;
    Exchange* last_ = nullptr;
    std::unique_ptr<PostedCommand> first_posted_;
    PostedCommand* last_posted_ = nullptr;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
