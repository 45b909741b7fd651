// SPDX-License-Identifier: MIT
// Passes any reply to all functions that decode a server's replies.
// fuzz: max_len=256
#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/expect.hpp"

using namespace redlatch;
using namespace redlatch::detail;

namespace {

// A reply built from the fuzzer's bytes, without the Redis protocol, which reply_reader_fuzz covers.
class Bytes {
public:
    Bytes(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

    Reply reply(int depth = 0) {
        Reply made;
        switch (byte() % 8) {
            case 0: break;
            case 1: return Reply::of(static_cast<std::int64_t>(byte()) - 3);
            case 2: return Reply::of(large());
            case 3: return Reply::of(text());
            case 4: return Reply::of(std::to_string(large()));
            case 5: return Reply::of(Reply::Kind::error, code() + text());
            case 6:
                return Reply::of(static_cast<Reply::Kind>(static_cast<int>(Reply::Kind::not_sent) + byte() % 4),
                                 "no answer");
            default:
                made.kind = Reply::Kind::array;
                if (depth < 3)
                    for (unsigned left = byte() % 5; left > 0; --left) made.elements.push_back(reply(depth + 1));
        }
        return made;
    }

private:
    unsigned byte() {
        if (left_.empty()) return 0;
        const unsigned taken = left_.front();
        left_ = left_.subspan(1);
        return taken;
    }

    std::int64_t large() {
        std::uint64_t value = 0;
        for (int i = 0; i < 8; ++i) value = value << 8 | byte();
        return static_cast<std::int64_t>(value);
    }

    std::string text() {
        const std::size_t size = std::min<std::size_t>(byte(), left_.size());
        const std::string taken(reinterpret_cast<const char*>(left_.data()), size);
        left_ = left_.subspan(size);
        return taken;
    }

    std::string code() {
        static constexpr std::array<const char*, 8> codes{
            "NOSCRIPT ", "OOM ", "WRONGTYPE ", "NOPERM ", "MOVED ", "LOADING ", "ERR Error running script: x: -OOM ",
            ""};
        return codes[byte() % codes.size()];
    }

    std::span<const std::uint8_t> left_;
};

// A reply is decoded, or refused by an Error.
template <class Decode>
void decode(Decode decode) {
    try {
        decode();
    } catch (const Error& error) {
        expect_printable(error.what());
    }
}

struct Protocols {
    const std::string uuid = make_uuid();
    const ClientOptions options{};
    NativeCommands native;
    const ProtocolContext context{uuid, options, native};
    FencedProtocol fenced{context, "f"};
    SemaphoreProtocol semaphore{context, "s"};
    PermitProtocol permits{context, "p"};
    LatchProtocol latch{context, "l"};
};

void make_sense_of(const Reply& reply) {
    static Protocols protocols;
    const ReplyClass verdict = classify(reply);
    if (verdict != ReplyClass::answered) expect_printable(error_of(reply, "name").what());
    decode([&] {
        const AcquireAnswer answer = decode_acquire(reply, "name");
        expect((answer.kind == AcquireAnswer::Kind::held) == reply.is_nil(), "held without a nil");
    });
    decode([&] {
        const AcquireAnswer answer = protocols.fenced.read_acquire(reply);
        if (answer.kind == AcquireAnswer::Kind::held)
            expect(answer.token > 0 && reply.elements.at(1).integer == answer.token, "held without a token");
    });
    const HandOverAnswer handed = protocols.fenced.read_hand_over(reply);
    if (handed.kind == HandOverAnswer::Kind::handed) expect(handed.token > 0, "handed over without a token");
    if (decode_hand_over(reply).kind == HandOverAnswer::Kind::handed)
        expect(reply.is_integer() && reply.integer == 1, "handed over without a 1");
    const ReleaseAnswer released = decode_release(reply);
    if (released.kind == ReleaseAnswer::Kind::released) expect(released.listeners >= 0, "released to nobody");
    decode([&] { static_cast<void>(number_of(reply, "name")); });
    decode([&] {
        std::vector<SemaphoreProtocol::Want> wants(2);
        wants[1].permits = 3;
        static_cast<void>(protocols.semaphore.decode(reply, wants));
        // Who has got a place in the queue is told how many were taken last.
        const std::int64_t taken =
            reply.kind == Reply::Kind::array && reply.elements.size() == 3 ? reply.elements[2].integer : reply.integer;
        expect(wants[0].served == (taken > 0), "permits from nowhere");
        expect(!wants[1].served || taken == 4, "more permits than were given");
    });
    decode([&] {
        std::vector<PermitProtocol::Want> wants(1);
        wants[0].ids.push_back(PermitId::random());
        static_cast<void>(protocols.permits.decode(reply, wants));
    });
    decode([&] {
        std::vector<LatchProtocol::Want> wants(1);
        static_cast<void>(protocols.latch.decode(reply, wants));
        static_cast<void>(protocols.latch.decode_lower(reply));
    });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    make_sense_of(Bytes(data, size).reply());
    return 0;
}
