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
inline namespace REDLATCH_ABI {
namespace detail {

// The encryption of one connection. It does no input or output: a Socket carries the bytes. So it never waits, and a
// program without TLS needs no TLS library.
//
// One thread may encrypt while another decrypts. The bytes to send are valid until the next call by the sending thread,
// and must be sent completely and in order.
class TlsSession {
public:
    enum class Handshake { unfinished, done, failed };

    // A decrypt() with full_room bytes of room leaves nothing behind that poll() would not report. It has room for the
    // rest of one record, and for the bytes that one call may be given (most_fed).
    static constexpr std::size_t most_fed = 16 * 1024;
    static constexpr std::size_t full_room = 16 * 1024 + most_fed;

    virtual ~TlsSession() = default;

    // Does one step: takes the received bytes, which may be none, and returns the bytes to send, even if it failed.
    virtual Handshake handshake(std::string_view received, std::string_view& to_send) noexcept = 0;

    // Returns an empty string if encryption has failed.
    virtual std::string_view encrypt(std::string_view plain) noexcept = 0;

    // Returns the same as Socket::receive(): the number of decrypted bytes, 0 if there are none yet, -1 if the
    // connection is unusable. With nothing received, returns the rest that had no room before.
    virtual ssize_t decrypt(std::string_view received, char* plain, std::size_t room) noexcept = 0;

    // Returns the bytes that end the connection in order.
    virtual std::string_view goodbye() noexcept = 0;

    // Returns the reply for a command on this connection after TLS has failed, for a known reason or not: an error if
    // the server cannot be trusted, which is reported at once; not_sent if a retry may succeed.
    virtual Reply refusal() const = 0;
};

// Makes the sessions of a transport. Thread-safe.
class TlsConnector {
public:
    virtual ~TlsConnector() = default;

    // Returns null if that is impossible for now, with the reason in `why`. Throws only std::bad_alloc.
    virtual std::unique_ptr<TlsSession> session(const HostPort& server, std::string& why) const = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
