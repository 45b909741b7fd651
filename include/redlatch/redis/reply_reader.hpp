// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/redact.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <hiredis/read.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Parses received bytes into replies. hiredis parses; we build Reply objects in place. Replies that are larger, deeper
// or stranger than any reply to our commands are refused before anything is allocated for them.
class ReplyReader {
public:
    static constexpr std::size_t most_bytes = 1 << 20;  // of one reply
    static constexpr std::size_t most_elements = 8192;  // of one reply, over all its arrays
    static constexpr int most_depth = 8;                // of nested arrays

    enum class Outcome { incomplete, reply, malformed };

    ReplyReader() { reset(); }

    // Forgets everything, for a new connection.
    void reset() {
        reader_.reset(redisReaderCreateWithFunctions(&functions()));
        if (!reader_) throw std::bad_alloc();
        reader_->privdata = this;
        skips_next_ = false;
        begin_reply(0);
    }

    // From now on, errors of the server that repeat a part of the secret are cut down to their code word.
    void withhold(std::string_view secret) { secret_ = secret; }

    // Drops the next reply, which no one waits for; but not an error that the server sends before it closes the
    // connection: that is the reply to whatever comes next.
    void skip_next() noexcept { skips_next_ = true; }

    // Takes received bytes. Returns false if the reader cannot continue.
    bool feed(const char* bytes, std::size_t size) {
        bytes_of_reply_ += size;
        return redisReaderFeed(reader_.get(), bytes, size) == REDIS_OK;
    }

    // Returns the next complete reply, if there is one. Throws std::bad_alloc if there is no memory for it; everything
    // after it is malformed then.
    Outcome next(Reply& out) {
        void* parsed = nullptr;
        if (redisReaderGetReply(reader_.get(), &parsed) != REDIS_OK) {
            if (std::exchange(no_memory_, false)) throw std::bad_alloc();
            return Outcome::malformed;
        }
        if (parsed == nullptr) return bytes_of_reply_ > most_bytes ? Outcome::malformed : Outcome::incomplete;
        const std::size_t left = reader_->len - reader_->pos;
        const bool too_long = bytes_of_reply_ - left > most_bytes;
        out = std::move(root_);
        begin_reply(left);
        if (too_long) return Outcome::malformed;
        if (std::exchange(skips_next_, false) && !precedes_close(out)) return next(out);
        return Outcome::reply;
    }

private:
    struct Free {
        void operator()(redisReader* reader) const { redisReaderFree(reader); }
    };

    void begin_reply(std::size_t bytes_already_here) {
        root_ = Reply{};
        bytes_of_reply_ = bytes_already_here;
        elements_left_ = most_elements;
    }

    // Returns the object that a task fills: the root, or its element of the array around it.
    static Reply& slot(const redisReadTask* task) {
        if (task->parent == nullptr) return static_cast<ReplyReader*>(task->privdata)->root_;
        return static_cast<Reply*>(task->parent->obj)->elements[static_cast<std::size_t>(task->idx)];
    }

    static void* refuse_for_memory(const redisReadTask* task) noexcept {
        static_cast<ReplyReader*>(task->privdata)->no_memory_ = true;
        return nullptr;
    }

    // The callbacks run inside C code, which no exception may cross: a failed allocation refuses the reply.
    static void* make_text(const redisReadTask* task, const char* bytes, std::size_t size) noexcept try {
        Reply& reply = slot(task);
        switch (task->type) {
            case REDIS_REPLY_STRING:
                // hiredis 0.14 skips the two bytes after a string unchecked; they are in its buffer.
                if (bytes[size] != '\r' || bytes[size + 1] != '\n') return nullptr;
                [[fallthrough]];
            case REDIS_REPLY_STATUS: reply.kind = Reply::Kind::text; break;
            case REDIS_REPLY_ERROR:
                reply.kind = Reply::Kind::error;
                reply.text = quotable({bytes, size}, static_cast<ReplyReader*>(task->privdata)->secret_);
                return &reply;
            default: return nullptr;  // a RESP3 type; we never ask for RESP3
        }
        reply.text.assign(bytes, size);
        return &reply;
    } catch (...) {
        return refuse_for_memory(task);
    }

    static void* make_array(const redisReadTask* task, std::size_t size) noexcept try {
        if (task->type != REDIS_REPLY_ARRAY) return nullptr;
        auto* self = static_cast<ReplyReader*>(task->privdata);
        int depth = 1;
        for (const redisReadTask* up = task->parent; up != nullptr; up = up->parent) ++depth;
        if (depth > most_depth || size > self->elements_left_) return nullptr;
        self->elements_left_ -= size;
        Reply& reply = slot(task);
        reply.kind = Reply::Kind::array;
        reply.elements.resize(size);
        return &reply;
    } catch (...) {
        return refuse_for_memory(task);
    }

    static void* make_integer(const redisReadTask* task, long long number) noexcept {
        Reply& reply = slot(task);
        reply.kind = Reply::Kind::integer;
        reply.integer = number;
        return &reply;
    }

    // Generic lambdas, because the argument types differ between versions of hiredis.
    static redisReplyObjectFunctions& functions() {
        static redisReplyObjectFunctions table = [] {
            redisReplyObjectFunctions f{};
            f.createString = [](const redisReadTask* task, char* bytes, std::size_t size) -> void* {
                return make_text(task, bytes, size);
            };
            f.createArray = [](const redisReadTask* task, auto size) -> void* {
                return size < 0 ? nullptr : make_array(task, static_cast<std::size_t>(size));
            };
            f.createInteger = [](const redisReadTask* task, long long number) -> void* {
                return make_integer(task, number);
            };
            f.createNil = [](const redisReadTask* task) -> void* {
                if (task->type == REDIS_REPLY_NIL) return nullptr;  // nil of RESP3; RESP2 sends it as string or array
                slot(task).kind = Reply::Kind::nil;
                return &slot(task);
            };
            f.freeObject = [](void*) {};
            refuse_resp3(f);
            return f;
        }();
        return table;
    }

    template <class Functions>
    static void refuse_resp3(Functions& f) {
        // With a null function hiredis would create an object of its own instead of refusing.
        if constexpr (requires { f.createDouble; })
            f.createDouble = [](const redisReadTask*, double, char*, std::size_t) -> void* { return nullptr; };
        if constexpr (requires { f.createBool; })
            f.createBool = [](const redisReadTask*, int) -> void* { return nullptr; };
    }

    std::unique_ptr<redisReader, Free> reader_;
    std::string secret_;
    Reply root_;
    std::size_t bytes_of_reply_ = 0;
    std::size_t elements_left_ = 0;
    bool skips_next_ = false;
    bool no_memory_ = false;  // True if a callback refused for lack of memory
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
