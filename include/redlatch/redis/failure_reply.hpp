// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/url.hpp"
#include "redlatch/transport/reply.hpp"

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
// Copies a reply. If there is no memory, the copy has the text no_memory.
inline void copy_reply(Reply& to, const Reply& from, Reply::Kind kind) noexcept {
    try {
        to = from;
    } catch (...) {
        to = Reply::of(kind, no_memory);
    }
    to.kind = kind;
}

inline Reply copy_of(const Reply& reply) noexcept {
    Reply copy;
    copy_reply(copy, reply, reply.kind);
    return copy;
}

// Makes a reply that names the server between the texts `before` and `after`.
inline Reply failure_reply(Reply::Kind kind, const char* before, const Url& url, const char* after,
                           const char* why = "") noexcept {
    try {
        return Reply::of(kind, before + url.display() + after + why);
    } catch (...) {
        return Reply::of(kind, no_memory);
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
