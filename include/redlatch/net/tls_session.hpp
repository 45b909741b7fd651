// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/url.hpp"
#include "redlatch/transport/reply.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace redlatch {
inline namespace v0_1 {

// One connection's encryption. It does no input or output: a Socket carries the bytes. So there is nothing in it that
// waits, and a program that does without TLS needs no library for it.
//
// One thread may encrypt while another decrypts. What it gives to be sent is valid until its next call by the sending
// thread, and must be sent whole and in order.
class TlsSession {
public:
    enum class Handshake { unfinished, done, failed };

    // A call with room for so much leaves nothing behind that was fed to it, which no poll() would ever tell of: the
    // rest of one record, and what one such call may be fed with.
    static constexpr std::size_t most_fed = 16 * 1024;
    static constexpr std::size_t full_room = 16 * 1024 + most_fed;

    virtual ~TlsSession() = default;

    // One step: takes what was received, which may be nothing, and gives what is to be sent, also when it failed.
    virtual Handshake handshake(std::string_view received, std::string_view& to_send) noexcept = 0;

    // Empty when that is impossible.
    virtual std::string_view encrypt(std::string_view plain) noexcept = 0;

    // As Socket::receive() answers: the bytes decrypted, 0 when there are none yet, -1 when the connection is of no
    // more use. Nothing received: the rest that had no room before.
    virtual ssize_t decrypt(std::string_view received, char* plain, std::size_t room) noexcept = 0;

    // The last words of a connection that ends in order.
    virtual std::string_view goodbye() noexcept = 0;

    // What a command on this connection shall be answered when TLS has failed, with or without a reason that it knows:
    // an error when there can be no trust, which is told at once; not_sent when another try may do better.
    virtual Reply refusal() const = 0;
};

// Makes the sessions of a transport. Thread-safe.
class TlsConnector {
public:
    virtual ~TlsConnector() = default;

    // Null when that is impossible for now, with the reason in `why`. Throws std::bad_alloc at most.
    virtual std::unique_ptr<TlsSession> session(const HostPort& server, std::string& why) const = 0;
};

}  // namespace v0_1
}  // namespace redlatch
