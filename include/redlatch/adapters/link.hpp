// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/adapters/encode.hpp"
#include "redlatch/adapters/reply_reader.hpp"
#include "redlatch/adapters/socket.hpp"
#include "redlatch/core/url.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace redlatch {

// One connection that is logged in: a socket and the reader of its replies. Not thread-safe.
struct Link {
    Socket socket;
    ReplyReader reader;

    // Connects, logs in and selects the database, all before the deadline. Gives nothing on success; otherwise what
    // a command on this connection shall be answered: not_sent, or the server's refusal.
    std::optional<Reply> open(const Url& url, Instant deadline) {
        std::string why;
        reader.reset();
        socket = Socket::connect(url, deadline, why);
        if (!socket.is_open()) return Reply::of(Reply::Kind::not_sent, std::move(why));
        auto refusal = log_in(url, deadline);
        if (refusal) socket.close();
        return refusal;
    }

private:
    std::optional<Reply> log_in(const Url& url, Instant deadline) {
        std::string out;
        std::size_t expected = 0;
        const auto add = [&](std::vector<std::string_view> words) {
            append_command(out, Command{words, 0});
            ++expected;
        };
        if (!url.password.empty()) {
            if (url.user.empty())
                add({"AUTH", url.password});
            else
                add({"AUTH", url.user, url.password});
        }
        const NumberText database(url.database);
        if (url.database != 0) add({"SELECT", database});
        if (expected == 0) return std::nullopt;

        const bool sent = socket.send_all(out.data(), out.size(), deadline);
        std::fill(out.begin(), out.end(), '\0');  // the password need not stay in memory longer than needed
        if (!sent) return silence(url);
        while (expected > 0) {
            Reply reply;
            switch (reader.next(reply)) {
                case ReplyReader::Outcome::malformed:
                    return Reply::of(Reply::Kind::malformed, url.display() + " does not speak the Redis protocol");
                case ReplyReader::Outcome::reply:
                    if (reply.is_error()) return without_password(std::move(reply), url);
                    --expected;
                    break;
                case ReplyReader::Outcome::incomplete: {
                    std::array<char, 1024> bytes;
                    if (!socket.wait(POLLIN, deadline)) return silence(url);
                    const ssize_t got = socket.receive(bytes.data(), bytes.size(), false);
                    if (got < 0 || !reader.feed(bytes.data(), static_cast<std::size_t>(got))) return silence(url);
                }
            }
        }
        return std::nullopt;
    }

    // A server may repeat the words of a command that it does not like.
    static Reply without_password(Reply reply, const Url& url) {
        if (url.password.empty()) return reply;
        for (std::size_t at; (at = reply.text.find(url.password)) != std::string::npos;)
            reply.text.replace(at, url.password.size(), "***");
        return reply;
    }

    static Reply silence(const Url& url) {
        return Reply::of(Reply::Kind::not_sent, url.display() + " accepts connections, but does not answer");
    }
};

}  // namespace redlatch
