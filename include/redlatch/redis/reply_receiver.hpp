// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/adaptive_spin.hpp"
#include "redlatch/redis/connection.hpp"
#include "redlatch/redis/failure_reply.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Waits for the next replies of a connection, and parses all that have arrived. Used by one thread at a time.
class ReplyReceiver {
public:
    // Why no more replies can be read: a reply of this kind for the first command that is not answered, and the text.
    struct Ending {
        Reply::Kind first;
        const char* why;
    };

    // Waits until the deadline if no reply has arrived. If the connection is full, waits for room too: a thread that
    // waits for room beside the reader may leave when it gets its reply from here. True `blocking`: waits in one system
    // call; only a thread that has no other thread to serve may do so.
    std::optional<Ending> receive(Connection& link, AdaptiveSpin<>* spin, bool is_full, bool blocking,
                                  Instant deadline) noexcept {
        replies_.clear();
        std::array<char, TlsSession::full_room> bytes;
        const auto receive = [&](bool sleeping) { return link.socket.receive(bytes.data(), bytes.size(), sleeping); };
        ssize_t got = receive(false);
        if (got == 0 && Clock::now() < deadline &&
            !(spin && spin->reply_came(deadline, [&] { return (got = receive(false)) != 0; })) &&
            (blocking || link.socket.wait(is_full ? POLLIN | POLLOUT : POLLIN, deadline)))
            got = receive(blocking);
        if (got < 0) return Ending{Reply::Kind::unanswered, "the server closed it"};
        if (got == 0) return std::nullopt;
        return parse(link.reader, bytes.data(), static_cast<std::size_t>(got));
    }

    // Returns the replies that the last call received, even if it could not read on.
    std::span<Reply> replies() noexcept { return replies_; }

private:
    std::optional<Ending> parse(ReplyReader& reader, const char* bytes, std::size_t size) noexcept try {
        constexpr Ending malformed{Reply::Kind::malformed, "the reply is too large or violates the Redis protocol"};
        if (!reader.feed(bytes, size)) return malformed;
        for (;;) {
            Reply reply;
            const auto outcome = reader.next(reply);
            if (outcome == ReplyReader::Outcome::malformed) return malformed;
            if (outcome == ReplyReader::Outcome::incomplete) return std::nullopt;
            replies_.push_back(std::move(reply));
        }
    } catch (...) {
        replies_.clear();
        return Ending{Reply::Kind::unanswered, detail::no_memory};
    }

    std::vector<Reply> replies_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
