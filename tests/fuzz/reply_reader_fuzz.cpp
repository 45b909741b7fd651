// SPDX-License-Identifier: MIT
// Feeds any bytes to the reader of replies, as if a server had sent them. Tests nothing else, to be fast.
// The first byte sets the size of the pieces in which the rest arrives.
// fuzz: max_len=256
#include <redlatch/redis/reply_reader.hpp>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/expect.hpp"

using namespace redlatch;
using namespace redlatch::detail;

namespace {

struct Read {
    std::vector<Reply> replies;
    bool malformed = false;
};

// Reuses the memory of `read`, because allocations would take most of the time.
void read_in_pieces(ReplyReader& reader, std::string_view bytes, std::size_t piece, Read& read) {
    read.replies.clear();
    read.malformed = false;
    reader.reset();
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
}

bool same(const Reply& a, const Reply& b) {
    if (a.kind != b.kind || a.integer != b.integer || a.text != b.text || a.elements.size() != b.elements.size())
        return false;
    for (std::size_t i = 0; i < a.elements.size(); ++i)
        if (!same(a.elements[i], b.elements[i])) return false;
    return true;
}

// Returns the number of elements in all. No reply may be larger or deeper than the reader allows.
std::size_t measure(const Reply& reply, int depth) {
    expect(depth <= ReplyReader::most_depth, "a reply is nested too deeply");
    expect(reply.answered(), "the reader invents what no server says");
    expect(reply.kind == Reply::Kind::array || reply.elements.empty(), "something else than an array has elements");
    expect(reply.kind != Reply::Kind::error || reply.text.find("T0pSecret") == std::string::npos, "a secret is shown");
    std::size_t sum = reply.elements.size();
    for (const Reply& element : reply.elements) sum += measure(element, depth + 1);
    return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    static ReplyReader reader;
    static Read whole;
    static Read parts;
    reader.withhold("T0pSecret");
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    read_in_pieces(reader, bytes, bytes.size() + 1, whole);
    for (const Reply& reply : whole.replies)
        expect(measure(reply, 0) <= ReplyReader::most_elements, "a reply has too many elements");
    // Pieces of any size give the same replies.
    const std::size_t piece = 1 + data[0] % 64;
    if (piece > bytes.size()) return 0;
    read_in_pieces(reader, bytes, piece, parts);
    expect(parts.malformed == whole.malformed, "pieces are malformed, the whole is not, or the reverse");
    expect(parts.replies.size() == whole.replies.size(), "pieces make other replies than the whole");
    for (std::size_t i = 0; i < whole.replies.size(); ++i)
        expect(same(whole.replies[i], parts.replies[i]), "pieces make another reply than the whole");
    return 0;
}
