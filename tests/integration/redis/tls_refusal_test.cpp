// SPDX-License-Identifier: MIT
// Servers that a rediss:// connection does not trust, and servers that do not trust the client: no command is sent, and
// the error contains the reason.
#include <doctest/doctest.h>

#include <redlatch/tls.hpp>

#include <chrono>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/proxy.hpp"
#include "support/tls_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Error;
using redlatch::RLock;
using redlatch::TlsOptions;
using redlatch::TlsVersion;

namespace {

struct Outcome {
    std::error_code code;
    std::string said;
    std::chrono::milliseconds took{};

    bool says(const std::string& words) const { return said.find(words) != std::string::npos; }
};

/// Returns the outcome of the first lock on a server.
Outcome first_lock(const std::string& url, const TlsOptions& tls, std::chrono::milliseconds unreachable_timeout = 120s,
                   std::chrono::milliseconds command_timeout = 20s) {
    ClientOptions options;
    options.tls = redlatch::tls(tls);
    options.unreachable_timeout = unreachable_timeout;
    options.command_timeout = command_timeout;
    Client client{url, options};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    Outcome outcome;
    try {
        orders.lock();
        orders.unlock();
    } catch (const Error& error) {
        outcome.code = error.code();
        outcome.said = error.what();
    }
    outcome.took = watch.elapsed_ms();
    return outcome;
}

// Far below unreachable_timeout, so there was no retry.
constexpr auto at_once = 60s;

void check_refused_at_once(const Outcome& outcome, const std::string& words) {
    CAPTURE(outcome.said);
    CHECK(outcome.code == errc::rejected);
    CHECK(outcome.says(words));
    CHECK(outcome.took < at_once);
}

}  // namespace

TEST_CASE("an invalid server certificate is refused at once, and the error contains the reason") {
    Authority authority;
    Authority other{"another authority"};
    const Certificate revoked = authority.issue("revoked");
    struct Case {
        Certificate own;
        std::string host;
        std::string words;
    };
    const std::string us = "127.0.0.1";
    const std::vector<Case> cases{
        {authority.issue("expired", {.valid_from = -7200, .valid_to = -3600}), us, "has expired"},
        {authority.issue("early", {.valid_from = 3600, .valid_to = 7200}), us, "not valid yet"},
        {authority.issue("selfsigned", {.self_signed = true}), us, "self-signed"},
        {other.issue("unknown"), us, "no trusted authority has signed it"},
        {authority.issue("wrong-name", {.names = "DNS:elsewhere.example,IP:127.0.0.1"}), "localhost",
         "does not contain the name 'localhost'"},
        {authority.issue("partial-wildcard", {.names = "DNS:local*"}), "localhost",
         "does not contain the name 'localhost'"},
        {authority.issue("wrong-ip", {.names = "DNS:localhost,IP:127.0.0.2"}), us,
         "does not contain the address '127.0.0.1'"},
        {authority.issue("address-as-name", {.names = "DNS:127.0.0.1"}), us,
         "does not contain the address '127.0.0.1'"},
    };
    for (const Case& one : cases) {
        CAPTURE(one.own.file);
        RedisServer server{by_tls(one.own, authority)};
        const Outcome outcome = first_lock(tls_url(server.port(), one.host), {.ca_file = authority.file()});
        check_refused_at_once(outcome, one.words);
        CHECK(outcome.says("the certificate of " + one.host + ":" + std::to_string(server.port())));
        CHECK(RawRedis{server}.script_calls() == 0);
    }
    SUBCASE("revoked") {
        RedisServer server{by_tls(revoked, authority)};
        const std::string url = tls_url(server.port());
        const auto with_list = [&](const std::string& list) {
            return first_lock(url, {.ca_file = authority.file(), .crl_file = list});
        };
        CHECK(first_lock(url, {.ca_file = authority.file()}).said.empty());
        CHECK(with_list(authority.revoke({})).said.empty());
        check_refused_at_once(with_list(authority.revoke({revoked})), "it is revoked");
        check_refused_at_once(with_list(authority.revoke({}, -60)), "revocation list has expired");
        check_refused_at_once(with_list(other.revoke({})), "no revocation list");
    }
}

TEST_CASE("server_name sets the name that the certificate must have, apart from the host") {
    Authority authority;
    RedisServer server{by_tls(authority.issue("cache", {.names = "DNS:*.shop.example,IP:127.0.0.9"}), authority)};
    const auto as = [&](const std::string& name) {
        return first_lock(tls_url(server.port()), {.ca_file = authority.file(), .server_name = name});
    };
    CHECK(as("cache.shop.example").said.empty());
    CHECK(as("cache.shop.example.").said.empty());
    CHECK(as("127.0.0.9").said.empty());
    check_refused_at_once(as("a.cache.shop.example"), "does not contain the name 'a.cache.shop.example'");
    check_refused_at_once(as("shop.example"), "does not contain the name 'shop.example'");
    check_refused_at_once(as("127.0.0.1"), "does not contain the address '127.0.0.1'");
    check_refused_at_once(as(""), "does not contain the address '127.0.0.1'");
}

TEST_CASE("a certificate that is trusted itself needs no authority") {
    Authority authority;
    const Certificate own = authority.issue("own", {.self_signed = true});
    const Certificate signed_by_another = Authority{"another authority"}.issue("signed");
    for (const Certificate& one : {own, authority.issue("signed")}) {
        RedisServer server{by_tls(one, authority)};
        CHECK(first_lock(tls_url(server.port()), {.ca_file = one.file}).said.empty());
        check_refused_at_once(
            first_lock(tls_url(server.port(), "localhost"), {.ca_file = one.file, .server_name = "elsewhere.example"}),
            "does not contain the name");
    }
}

TEST_CASE("TLS versions below 1.2, or below minimum_version, are refused") {
    Authority authority;
    const Certificate own = authority.issue("server");
    SUBCASE("1.1") {
        RedisServer server{
            by_tls(own, authority, false, {"--tls-protocols", "TLSv1.1", "--tls-ciphers", "ALL:@SECLEVEL=0"})};
        check_refused_at_once(first_lock(tls_url(server.port()), {.ca_file = authority.file()}),
                              "does not support the TLS version");
    }
    SUBCASE("1.2") {
        RedisServer server{by_tls(own, authority, false, {"--tls-protocols", "TLSv1.2"})};
        CHECK(first_lock(tls_url(server.port()), {.ca_file = authority.file()}).said.empty());
        check_refused_at_once(
            first_lock(tls_url(server.port()), {.ca_file = authority.file(), .minimum_version = TlsVersion::v1_3}),
            "does not support the TLS version");
    }
    SUBCASE("1.3") {
        RedisServer server{by_tls(own, authority, false, {"--tls-protocols", "TLSv1.3"})};
        CHECK(first_lock(tls_url(server.port()), {.ca_file = authority.file(), .minimum_version = TlsVersion::v1_3})
                  .said.empty());
    }
}

TEST_CASE("server that requires client certificates: no certificate, or a foreign one, is refused at once") {
    Authority authority;
    Authority other{"another authority"};
    const Certificate mine = authority.issue("client");
    const Certificate not_mine = other.issue("client");
    for (const char* version : {"TLSv1.2", "TLSv1.3"}) {
        CAPTURE(version);
        RedisServer server{by_tls(authority.issue("server"), authority, true, {"--tls-protocols", version})};
        // With a login, too. Then the refusal comes in the reply to the login, otherwise in that to another query.
        for (const std::string login : {"", "default:secret@"}) {
            const std::string url = "rediss://" + login + "127.0.0.1:" + std::to_string(server.port());
            const Outcome none = first_lock(url, {.ca_file = authority.file()});
            check_refused_at_once(none, "TlsOptions::certificate_file");
            CHECK_FALSE(none.says("secret"));
            check_refused_at_once(first_lock(url, {.ca_file = authority.file(),
                                                   .certificate_file = not_mine.file,
                                                   .key_file = not_mine.key_file}),
                                  "TlsOptions::certificate_file");
        }
        CHECK(RawRedis{server}.script_calls() == 0);
        CHECK(first_lock(tls_url(server.port()),
                         {.ca_file = authority.file(), .certificate_file = mine.file, .key_file = mine.key_file})
                  .said.empty());
    }
}

TEST_CASE("a server without TLS on its port gets no login, and is reported in bounded time") {
    Authority authority;
    RedisServer server{{.tcp = true, .args = {"--requirepass", "S3cret"}}};
    const std::string url = "rediss://:S3cret@127.0.0.1:" + std::to_string(server.port());
    const Outcome outcome = first_lock(url, {.ca_file = authority.file()}, 3s, 1s);
    CAPTURE(outcome.said);
    CHECK((outcome.code == errc::unreachable || outcome.code == errc::rejected));
    CHECK(outcome.says("TLS on this port"));
    CHECK_FALSE(outcome.says("S3cret"));
    CHECK(outcome.took < at_once);
}

TEST_CASE("a server with another protocol is reported at once") {
    Authority authority;
    const int port = pick_free_port();
    const Fd listener = listen_on({{}, port});
    auto outcome = start([&] { return first_lock(tls_url(port), {.ca_file = authority.file()}); });
    REQUIRE(wait_for(listener, POLLIN, std::chrono::steady_clock::now() + 20s));
    const Fd peer{::accept(listener.get(), nullptr, nullptr)};
    send_all(peer, "HTTP/1.1 400 Bad Request\r\n\r\n", std::chrono::steady_clock::now() + 20s);
    REQUIRE(ready(outcome, at_once));
    const Outcome told = outcome.get();
    CAPTURE(told.said);
    check_refused_at_once(told, "does not use TLS on this port");
}

TEST_CASE(
    "a server that accepts and stays silent, or hangs up: unreachable in bounded time, and it received only TLS") {
    Authority authority;
    const int port = pick_free_port();
    const Fd listener = listen_on({{}, port});
    const std::string url = "rediss://default:S3cret@127.0.0.1:" + std::to_string(port);
    for (const bool hangs_up : {false, true}) {
        CAPTURE(hangs_up);
        auto outcome = start([&] { return first_lock(url, {.ca_file = authority.file()}, 1500ms, 500ms); });
        std::vector<Fd> peers;
        std::string got;
        while (outcome.wait_for(0s) != std::future_status::ready) {
            if (!wait_for(listener, POLLIN, std::chrono::steady_clock::now() + 10ms)) continue;
            peers.emplace_back(::accept(listener.get(), nullptr, nullptr));
            if (wait_for(peers.back(), POLLIN, std::chrono::steady_clock::now() + 1s)) read_some(peers.back(), got);
            if (hangs_up) peers.clear();
        }
        const Outcome told = outcome.get();
        CAPTURE(told.said);
        CHECK(told.code == errc::unreachable);
        CHECK(told.says("did not complete the TLS handshake"));
        CHECK(told.took < at_once);
        CHECK(got.substr(0, 2) == "\x16\x03");  // a ClientHello
        CHECK(got.find("AUTH") == std::string::npos);
        CHECK(got.find("S3cret") == std::string::npos);
    }
}

TEST_CASE("a plain connection to a TLS server is unreachable in bounded time") {
    Authority authority;
    RedisServer server{by_tls(authority.issue("server"), authority)};
    ClientOptions options;
    options.unreachable_timeout = 1s;
    Client client{Endpoint{{}, server.port()}.url(), options};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    CHECK(code_of([&] { orders.lock(); }) == errc::unreachable);
    CHECK(watch.within(at_once));
}

TEST_CASE("a rediss:// URL without TLS in the program: the error explains how to add it") {
    for (const std::string url : {"rediss://127.0.0.1", "rediss-sentinel://127.0.0.1/orders"}) {
        try {
            Client client{url};
            FAIL("no error");
        } catch (const Error& error) {
            CHECK(error.code() == errc::unsupported);
            const std::string said = error.what();
            for (const char* words : {"redlatch/tls.hpp", "ClientOptions::tls", "libssl-dev", "openssl-devel"})
                CHECK(said.find(words) != std::string::npos);
        }
    }
}

TEST_CASE("unusable files are refused before anything is sent, and the error names the option") {
    Authority authority;
    Authority other{"another authority"};
    const Certificate mine = authority.issue("client");
    const Certificate another = other.issue("client");
    const std::string none = authority.directory().file("none.pem");
    for (const auto& [options, words] : std::vector<std::pair<TlsOptions, std::string>>{
             {{.ca_file = none}, "ca_file"},
             {{.ca_file = mine.key_file}, "ca_file"},
             {{.crl_file = none}, "crl_file"},
             {{.crl_file = mine.file}, "crl_file"},
             {{.certificate_file = none, .key_file = mine.key_file}, "certificate_file"},
             {{.certificate_file = mine.file, .key_file = none}, "key_file"},
             {{.certificate_file = mine.file, .key_file = another.key_file}, "key_file"},
             {{.certificate_file = mine.file}, "certificate_file and key_file"},
         }) {
        try {
            static_cast<void>(redlatch::tls(options));
            FAIL("no error");
        } catch (const Error& error) {
            const std::string said = error.what();
            CAPTURE(said);
            CHECK(error.code() == errc::invalid_argument);
            CHECK(said.find(words) != std::string::npos);
            CHECK(said.find("gives no reason") == std::string::npos);
        }
    }
    CHECK(ERR_peek_error() == 0);
}

TEST_CASE("a server certificate that is invalid for a while is reported at once, and no hold is lost") {
    Authority authority;
    const Certificate good = authority.issue("good");
    const Certificate expired = authority.issue("expired", {.valid_from = -7200, .valid_to = -3600});
    RedisServer server{by_tls(good, authority)};
    Proxy proxy{Endpoint{{}, server.port()}.url(), true};
    RawRedis redis{server};
    const auto show = [&](const Certificate& certificate) {
        redis.text("CONFIG", "SET", "tls-cert-file", certificate.file, "tls-key-file", certificate.key_file);
        redis.kill_clients("normal");
    };
    ClientOptions options;
    options.tls = redlatch::tls({.ca_file = authority.file()});
    options.watchdog_timeout = slow_build_factor > 1 ? 45s : 15s;
    Client client{tls_url(proxy.port()), options};
    RLock orders{client, "orders"};
    RLock parcels{client, "parcels"};
    orders.lock();
    show(expired);
    CHECK(code_of([&] { parcels.lock(); }) == errc::rejected);
    CHECK(elsewhere([&] { return code_of([&] { parcels.lock(); }); }) == errc::rejected);
    // Renewals are tried, without success.
    const std::uint64_t before = proxy.counts().accepted;
    CHECK(eventually([&] { return proxy.counts().accepted > before; }, 30s));
    CHECK_FALSE(orders.lost().stop_requested());
    const std::uint64_t renewals = client.stats().renewals;
    show(good);
    CHECK(eventually([&] { return client.stats().renewals > renewals; }, 30s));
    CHECK_FALSE(orders.lost().stop_requested());
    orders.unlock();
    CHECK(redis.keys().empty());
}
