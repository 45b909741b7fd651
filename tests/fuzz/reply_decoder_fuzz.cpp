// SPDX-License-Identifier: MIT
// Any bytes as what a server answers: the reader of replies, and everything that makes sense of one.
// The first byte says in pieces of which size the rest arrives.
#include <redlatch/redlatch.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/expect.hpp"
#include "support/scripted_transport.hpp"

using namespace redlatch;
using test::ScriptedTransport;

namespace {

struct Read {
    std::vector<Reply> replies;
    bool malformed = false;
};

Read read_in_pieces(std::string_view bytes, std::size_t piece) {
    Read read;
    ReplyReader reader;
    while (!bytes.empty() && !read.malformed) {
        const std::string_view part = bytes.substr(0, piece);
        bytes.remove_prefix(part.size());
        read.malformed = !reader.feed(part.data(), part.size());
        Reply reply;
        auto outcome = ReplyReader::Outcome::reply;
        while (!read.malformed && (outcome = reader.next(reply)) == ReplyReader::Outcome::reply)
            read.replies.push_back(std::move(reply));
        read.malformed = read.malformed || outcome == ReplyReader::Outcome::malformed;
    }
    return read;
}

bool same(const Reply& a, const Reply& b) {
    if (a.kind != b.kind || a.integer != b.integer || a.text != b.text || a.elements.size() != b.elements.size())
        return false;
    for (std::size_t i = 0; i < a.elements.size(); ++i)
        if (!same(a.elements[i], b.elements[i])) return false;
    return true;
}

// How many elements it has in all; no reply may be larger or deeper than the reader allows.
std::size_t measure(const Reply& reply, int depth) {
    expect(depth <= ReplyReader::most_depth, "a reply is nested too deeply");
    expect(reply.answered(), "the reader invents what no server says");
    expect(reply.kind == Reply::Kind::array || reply.elements.empty(), "something else than an array has elements");
    std::size_t sum = reply.elements.size();
    for (const Reply& element : reply.elements) sum += measure(element, depth + 1);
    return sum;
}

// An answer is understood, or refused by an Error; nothing else.
template <class Decode>
void decode(Decode decode) {
    try {
        decode();
    } catch (const Error& error) {
        expect_printable(error.what());
    }
}

struct Wires {
    test::ScriptedRedis redis;
    Client<ScriptedTransport> client{redis.transport()};
    Runtime<ScriptedTransport>& runtime = client.core()->runtime();
    SemaphoreWire<ScriptedTransport> semaphore{runtime, "s"};
    PermitWire<ScriptedTransport> permits{runtime, "p"};
    CountDownLatchWire<ScriptedTransport> latch{runtime, "l"};
};

void make_sense_of(const Reply& reply) {
    static Wires wires;
    const Verdict verdict = judge(reply);
    if (verdict != Verdict::answered) expect_printable(error_of(reply, "name").what());
    decode([&] {
        const AcquireAnswer answer = decode_acquire(reply, "name");
        expect((answer.kind == AcquireAnswer::Kind::held) == reply.is_nil(), "held without a nil");
    });
    decode([&] {
        const AcquireAnswer answer = FencedWire<ScriptedTransport>::read_acquire(reply, "name");
        if (answer.kind == AcquireAnswer::Kind::held)
            expect(answer.token > 0 && reply.elements.at(1).integer == answer.token, "held without a token");
    });
    const HandOverAnswer handed = FencedWire<ScriptedTransport>::read_hand_over(reply);
    if (handed.kind == HandOverAnswer::Kind::handed) expect(handed.token > 0, "handed over without a token");
    if (decode_hand_over(reply).kind == HandOverAnswer::Kind::handed)
        expect(reply.is_integer() && reply.integer == 1, "handed over without a 1");
    const ReleaseAnswer released = decode_release(reply);
    if (released.kind == ReleaseAnswer::Kind::released) expect(released.listeners >= 0, "released to nobody");
    decode([&] { static_cast<void>(number_of(reply, "name")); });
    decode([&] {
        std::vector<SemaphoreWire<ScriptedTransport>::Want> wants(2);
        wants[1].permits = 3;
        static_cast<void>(wires.semaphore.decode(reply, wants));
        expect(wants[0].served == (reply.integer > 0), "permits from nowhere");
        expect(!wants[1].served || reply.integer == 4, "more permits than were given");
    });
    decode([&] {
        std::vector<PermitWire<ScriptedTransport>::Want> wants(1);
        wants[0].ids.push_back(PermitId::random());
        static_cast<void>(wires.permits.decode(reply, wants));
    });
    decode([&] {
        std::vector<CountDownLatchWire<ScriptedTransport>::Want> wants(1);
        static_cast<void>(wires.latch.decode(reply, wants));
        static_cast<void>(wires.latch.decode_lower(reply));
    });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    const Read whole = read_in_pieces(bytes, bytes.size() + 1);
    for (const Reply& reply : whole.replies) {
        expect(measure(reply, 0) <= ReplyReader::most_elements, "a reply has too many elements");
        make_sense_of(reply);
        for (const Reply& element : reply.elements) make_sense_of(element);
    }
    // However it arrives, it means the same.
    const Read parts = read_in_pieces(bytes, 1 + data[0] % 16);
    expect(parts.malformed == whole.malformed, "pieces are malformed, the whole is not, or the reverse");
    expect(parts.replies.size() == whole.replies.size(), "pieces make other replies than the whole");
    for (std::size_t i = 0; i < whole.replies.size(); ++i)
        expect(same(whole.replies[i], parts.replies[i]), "pieces make another reply than the whole");
    return 0;
}
