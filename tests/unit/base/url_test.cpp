// SPDX-License-Identifier: MIT
// Url: the meaning of a URL, and that no message contains a password.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <string>
#include <string_view>

using namespace redlatch;

namespace {

// The code and the message with which a URL is refused.
struct Refusal {
    std::error_code code;
    std::string message;
};

Refusal refusal(std::string_view text) {
    try {
        static_cast<void>(Url::parse(text));
        return {};
    } catch (const Error& e) {
        return {e.code(), e.what()};
    }
}

}  // namespace

TEST_CASE("a TCP URL has host, port and database, with defaults") {
    const Url plain = Url::parse("redis://example.org");
    CHECK(plain.host == "example.org");
    CHECK(plain.port == 6379);
    CHECK(plain.database == 0);
    CHECK(plain.user.empty());
    CHECK(plain.password.empty());
    CHECK(plain.path.empty());

    const Url full = Url::parse("redis://127.0.0.1:7000/15");
    CHECK(full.host == "127.0.0.1");
    CHECK(full.port == 7000);
    CHECK(full.database == 15);

    CHECK(Url::parse("redis://h/").database == 0);
    CHECK(Url::parse("redis://h/0").database == 0);
    CHECK(Url::parse("redis://h:1").port == 1);
    CHECK(Url::parse("redis://h:65535").port == 65535);
}

TEST_CASE("an IPv6 address is written in brackets") {
    CHECK(Url::parse("redis://[::1]").host == "::1");
    CHECK(Url::parse("redis://[::1]").port == 6379);
    const Url url = Url::parse("redis://u:p@[2001:db8::7]:6380/3");
    CHECK(url.host == "2001:db8::7");
    CHECK(url.port == 6380);
    CHECK(url.database == 3);
    CHECK(url.password == "p");
}

TEST_CASE("the login is a password, or a user and a password") {
    CHECK(Url::parse("redis://:secret@h").user.empty());
    CHECK(Url::parse("redis://:secret@h").password == "secret");
    const Url both = Url::parse("redis://app:secret@h:1");
    CHECK(both.user == "app");
    CHECK(both.password == "secret");
    CHECK(both.host == "h");
}

TEST_CASE("user and password may be percent-encoded, and need it only where they would be ambiguous") {
    const Url encoded = Url::parse("redis://a%3Ab:p%40%2f%25%00%0d%0A%20@h");
    CHECK(encoded.user == "a:b");
    CHECK(encoded.password == std::string("p@/%\0\r\n ", 8));
    const Url raw = Url::parse("redis://app:p@ss:w/rd@h:1/2");
    CHECK(raw.password == "p@ss:w/rd");
    CHECK(raw.host == "h");
    CHECK(raw.database == 2);
}

TEST_CASE("a unix URL names the path of a socket") {
    const Url url = Url::parse("unix:///run/redis.sock");
    CHECK(url.path == "/run/redis.sock");
    CHECK(url.host.empty());
    CHECK(Url::parse("unix:///run/redis.sock?db=7").database == 7);
    CHECK(Url::parse("unix:///a%20b%3f.sock").path == "/a b?.sock");
    CHECK(Url::parse("unix:///tmp/user@host.sock").path == "/tmp/user@host.sock");
    const Url login = Url::parse("unix://app:s%40crt@/run/redis.sock?db=1");
    CHECK(login.user == "app");
    CHECK(login.password == "s@crt");
    CHECK(login.path == "/run/redis.sock");
    CHECK(login.database == 1);
}

TEST_CASE("an invalid URL is refused") {
    for (const std::string_view text : {"",
                                        "127.0.0.1:6379",
                                        "redis:",
                                        "redis:/h",
                                        "redis://",
                                        "redis:///0",
                                        "redis://:6379",
                                        "redis://@",
                                        "redis://u:p@",
                                        "redis://h:0",
                                        "redis://h:65536",
                                        "redis://h:-1",
                                        "redis://h:+1",
                                        "redis://h:1x",
                                        "redis://h:",
                                        "redis://h: 1",
                                        "redis://h/-1",
                                        "redis://h/x",
                                        "redis://h/1/2",
                                        "redis://h/1000001",
                                        "redis://h/99999999999999999999",
                                        "redis://h/ 1",
                                        "redis://[::1",
                                        "redis://[]",
                                        "redis://[]:1",
                                        "redis://[::1]x",
                                        "redis://[::1]:x",
                                        "redis://::1",
                                        "redis://a:b:c",
                                        "redis://a b",
                                        "redis://a\nb",
                                        "redis://u@h",
                                        "redis://u:@h",
                                        "redis://:%4@h",
                                        "redis://:%@h",
                                        "redis://:%zz@h",
                                        "redis://:%-1@h",
                                        "redis://:%+1@h",
                                        "unix://",
                                        "unix://relative",
                                        "unix://relative/path",
                                        "unix:///s?db=",
                                        "unix:///s?db=-1",
                                        "unix:///s?db=x",
                                        "unix:///s?other=1",
                                        "unix:///s?",
                                        "unix:///a%00b",
                                        "http://h",
                                        "REDIS://h"}) {
        CAPTURE(text);
        CHECK(refusal(text).code == errc::invalid_argument);
    }
    CHECK(refusal("redis://a" + std::string(1, '\0') + "b").code == errc::invalid_argument);
}

TEST_CASE("a user without a password is refused on a unix socket, too") {
    // Otherwise there would be no login, without any notice.
    CHECK(refusal("unix://app@/run/redis.sock").code == errc::invalid_argument);
    CHECK(refusal("unix://app:@/run/redis.sock").code == errc::invalid_argument);
}

TEST_CASE("a socket path has at most 107 bytes") {
    CHECK(refusal("unix:///" + std::string(106, 'p')).code == std::error_code());
    CHECK(refusal("unix:///" + std::string(107, 'p')).code == errc::invalid_argument);
}

TEST_CASE("rediss means TLS, and the rest of the URL keeps its meaning") {
    const Url url = Url::parse("rediss://u:p@h:7000/3");
    CHECK(url.tls);
    CHECK(url.host == "h");
    CHECK(url.port == 7000);
    CHECK(url.user == "u");
    CHECK(url.password == "p");
    CHECK(url.database == 3);
    CHECK(Url::parse("rediss://h").port == 6379);
    CHECK(refusal("rediss://:hunter2@").code == errc::invalid_argument);
    CHECK_FALSE(Url::parse("redis://h").tls);
    CHECK_FALSE(Url::parse("unix:///s").tls);

    const Url sentinels = Url::parse("rediss-sentinel://:p@a,b:1/orders/2");
    CHECK(sentinels.tls);
    CHECK(sentinels.sentinels.size() == 2);
    CHECK(sentinels.at({"c", 2}).tls);
    CHECK_FALSE(Url::parse("redis-sentinel://a/orders").tls);
}

TEST_CASE("a cluster URL names some nodes of the cluster") {
    const Url url = Url::parse("redis-cluster://app:hunter2@a:7000,[::1]:7001,c");
    CHECK(url.cluster == std::vector<HostPort>{{"a", 7000}, {"::1", 7001}, {"c", 6379}});
    CHECK(url.user == "app");
    CHECK(url.password == "hunter2");
    CHECK(url.host.empty());
    CHECK(url.display() == "the cluster of a:7000");
    CHECK(url.at({"b", 1}).cluster.empty());
    CHECK(url.at({"b", 1}).password == "hunter2");
    CHECK(Url::parse("redis-cluster://a/").cluster.size() == 1);
    CHECK(Url::parse("rediss-cluster://a,b").tls);
    CHECK(Url::parse("rediss-cluster://a,b").at({"c", 2}).tls);
    for (const std::string_view text :
         {"redis-cluster://", "redis-cluster://a,", "redis-cluster://,a", "redis-cluster://a/1", "redis-cluster://a:0",
          "redis-cluster://app@a", "redis-cluster://a,b:x"}) {
        CAPTURE(text);
        CHECK(refusal(text).code == errc::invalid_argument);
    }
    CHECK(refusal("redis-cluster://a/1").message.find("only database 0") != std::string::npos);
}

TEST_CASE("no message of the parser contains a password") {
    for (const std::string_view text :
         {"redis://u:hunter2@", "redis://u:hunter2@h:x", "redis://u:hunter2@h:99999", "redis://u:hunter2@h/x",
          "redis://u:hunter2@[::1", "redis://u:hunter2@a b", "redis://u:hunter2%zz@h", "redis://u:hunter2",
          "redis://hunter2:hunter2", "redis://hunter2@h", "u:hunter2@h:6379", "redis:u:hunter2@h",
          "unix://u:hunter2@relative", "unix://u:hunter2%zz@/s", "http://u:hunter2@h", "unix://u:hunter2@/s?db=hunter",
          "u:hunter2@redis://h"}) {
        CAPTURE(text);
        const Refusal r = refusal(text);
        CHECK(r.code == errc::invalid_argument);
        CHECK(r.message.find("hunter2") == std::string::npos);
    }
}

TEST_CASE("display() does not contain the login") {
    CHECK(Url::parse("redis://u:hunter2@h:1/2").display() == "h:1");
    CHECK(Url::parse("redis://u:hunter2@[::1]").display() == "[::1]:6379");
    CHECK(Url::parse("unix://u:hunter2@/run/s?db=1").display() == "unix:///run/s");
}

TEST_CASE("Client refuses a bad URL in its constructor") {
    CHECK_THROWS_AS(Client("nonsense"), Error);
    CHECK_THROWS_AS(Client("redis://h:0"), Error);
}

TEST_CASE("a sentinel URL names the sentinels and the master's name") {
    const Url url = Url::parse("redis-sentinel://h1:1,h2,[::1]:3/orders/5");
    CHECK(url.sentinels == std::vector<HostPort>{{"h1", 1}, {"h2", 26379}, {"::1", 3}});
    CHECK(url.master == "orders");
    CHECK(url.database == 5);
    CHECK(url.host.empty());
    CHECK(url.path.empty());
    CHECK(url.display() == "the master 'orders'");

    const Url login = Url::parse("redis-sentinel://app:s%2Fcret@h/my%20master");
    CHECK(login.user == "app");
    CHECK(login.password == "s/cret");
    CHECK(login.master == "my master");
    CHECK(login.database == 0);
    CHECK(Url::parse("redis-sentinel://h/m/").database == 0);

    const Url server = login.at({"10.0.0.1", 7});
    CHECK(server.display() == "10.0.0.1:7");
    CHECK(server.password == "s/cret");
    CHECK(server.sentinels.empty());
}

TEST_CASE(
    "a sentinel URL without a sentinel or without a master is refused, and the message does not contain the password") {
    for (const char* bad :
         {"redis-sentinel://", "redis-sentinel://h", "redis-sentinel://h/", "redis-sentinel:///m",
          "redis-sentinel://h,/m", "redis-sentinel://,h/m", "redis-sentinel://h:0/m", "redis-sentinel://h/m/x",
          "redis-sentinel://h/m/0/1", "redis-sentinel://:hunter2@h", "redis-sentinel://app@h/m"}) {
        CAPTURE(bad);
        CHECK(refusal(bad).code == errc::invalid_argument);
        CHECK(refusal(bad).message.find("hunter2") == std::string::npos);
    }
}
