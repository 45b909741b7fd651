// SPDX-License-Identifier: MIT
// Passes any text as a program's input: URLs, names, permit ids.
// fuzz: max_len=256
#include <redlatch/base/names.hpp>
#include <redlatch/base/url.hpp>
#include <redlatch/protocol/permit_id.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/expect.hpp"

using namespace redlatch;
using namespace redlatch::detail;

namespace {

constexpr std::string_view secret = "Tr0ub4dor";

void parse(std::string_view text, bool with_secret) {
    try {
        const Url url = Url::parse(text);
        expect(!url.host.empty() + !url.path.empty() + !url.sentinels.empty() + !url.cluster.empty() == 1,
               "not one of host, path, sentinels and cluster");
        expect(url.sentinels.empty() == url.master.empty(), "sentinels without a master, or the reverse");
        for (const HostPort& one : url.sentinels) expect(!one.host.empty() && one.port > 0, "a sentinel nowhere");
        for (const HostPort& one : url.cluster) expect(!one.host.empty() && one.port > 0, "a node nowhere");
        if (!url.cluster.empty()) expect(url.database == 0, "a cluster with a database");
        if (!url.sentinels.empty()) expect_printable(url.display());
        expect(url.port > 0, "no port");
        expect(url.path.size() <= 107 && url.path.find('\0') == std::string::npos, "no path of a socket");
        expect(url.user.empty() || !url.password.empty(), "a user without a password");
        expect(url.database <= 1'000'000, "no such database");
        if (with_secret) expect(url.display().find(secret) == std::string::npos, "the login is shown");
    } catch (const Error& error) {
        const std::string_view said = error.what();
        expect_printable(said);
        if (with_secret) expect(said.find(secret) == std::string_view::npos, "a message shows the login");
    }
}

// The part of a key that determines its cluster slot.
std::string_view tag_of(std::string_view key) {
    const auto open = key.find('{');
    if (open == std::string_view::npos) return key;
    const auto close = key.find('}', open + 1);
    return close == std::string_view::npos || close == open + 1 ? key : key.substr(open + 1, close - open - 1);
}

void check(std::string_view name) {
    try {
        check_name(name);
    } catch (const Error& error) {
        expect_printable(error.what());
        return;
    }
    expect(!name.empty() && name.size() <= longest_name, "a name of a length that cannot be");
    const std::string prefixed = prefixed_key("prefix", name);
    const std::string suffixed = suffixed_key(name, "suffix");
    expect(tag_of(prefixed) == tag_of(name) && tag_of(suffixed) == tag_of(name), "keys of a name in different slots");
    expect(prefixed.find(name) != std::string::npos && suffixed.find(name) != std::string::npos, "a name was changed");
}

void parse_permit(std::string_view text) {
    try {
        const PermitId id = PermitId::parse(text);
        expect(text.size() == 32 && id.bytes().size() == 16, "no permit id");
        expect(PermitId::parse(id.text()) == id, "a permit id that changes on the way to text and back");
    } catch (const Error& error) {
        expect_printable(error.what());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    parse(text, false);
    check(text);
    parse_permit(text);
    if (text.find(secret) != std::string_view::npos) return 0;
    const std::size_t half = size / 2;
    parse("redis://" + std::string(text.substr(0, half)) + std::string(secret) + "@" + std::string(text.substr(half)),
          true);
    parse("redis://user:" + std::string(secret) + std::string(text), text.find('@') != std::string_view::npos);
    return 0;
}
