// SPDX-License-Identifier: MIT
// SHA-1, by which the server in memory names scripts, and the digests of the scripts that calls name.
#include <doctest/doctest.h>

#include <redlatch/testing.hpp>

#include <set>
#include <string>
#include <string_view>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

std::string sha1(std::string_view text) {
    const auto hex = sha1_hex(text);
    return {hex.begin(), hex.end()};
}

constexpr auto at_compile_time = sha1_hex("abc");

}  // namespace

TEST_CASE("the digests of the FIPS 180 examples are right") {
    CHECK(sha1("") == "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    CHECK(sha1("abc") == "a9993e364706816aba3e25717850c26c9cd0d89d");
    CHECK(sha1("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    CHECK(
        sha1("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
             "nopqrstu") == "a49b2446a02c645bf419f995b67091253a04a259");
    CHECK(sha1(std::string(1'000'000, 'a')) == "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

TEST_CASE("the digest is right around the length at which padding needs another block") {
    CHECK(sha1(std::string(55, 'a')) == "c1c8bbdc22796e28c0e15163d20899b65621d65a");
    CHECK(sha1(std::string(56, 'a')) == "c2db330f6083854c99d4b5bfb6e8f29f201be699");
    CHECK(sha1(std::string(63, 'a')) == "03f09f5b158a7a8cdad920bddc29b81c18a551f5");
    CHECK(sha1(std::string(64, 'a')) == "0098ba824b5c16427bd7a1122a5a442a25ec644d");
    CHECK(sha1(std::string(65, 'a')) == "11655326c708d70319be2610e8a57d9a5b959d3b");
}

TEST_CASE("bytes above 127 and zero bytes are hashed unchanged") {
    CHECK(sha1(std::string_view("\0", 1)) == "5ba93c9db0cff93f52b521d7420e43f6eda2784f");
    CHECK(sha1("\xff") == "85e53271e14006f0265921d02d4d736cdc580b0b");
}

TEST_CASE("the digest is computed at compile time") {
    CHECK(std::string(at_compile_time.begin(), at_compile_time.end()) == sha1("abc"));
}

TEST_CASE("each script has the digest of its own text, and no two are equal") {
    std::set<std::string> digests;
    for (const Script* script :
         {&digested<scripts::rlock_acquire>, &digested<scripts::rlock_release>, &digested<scripts::rlock_hand_over>,
          &digested<scripts::rlock_give_up>, &digested<scripts::rlock_remaining_lease>, &digested<scripts::rlock_renew>,
          &digested<scripts::read_acquire>, &digested<scripts::read_release>, &digested<scripts::read_give_up>,
          &digested<scripts::read_holders>, &digested<scripts::read_remaining_lease>,
          &digested<scripts::read_hold_count>, &digested<scripts::read_renew>, &digested<scripts::write_acquire>,
          &digested<scripts::write_release>, &digested<scripts::write_give_up>, &digested<scripts::write_holders>,
          &digested<scripts::write_remaining_lease>, &digested<scripts::write_withdraw>}) {
        CHECK(script->digest() == sha1(script->text()));
        digests.emplace(script->digest());
    }
    CHECK(digests.size() == 19);
}
