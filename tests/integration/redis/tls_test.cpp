// SPDX-License-Identifier: MIT
// Everything works by TLS as without it: waits, renewals, losses and reconnections.
#include <doctest/doctest.h>

#include <redlatch/tls.hpp>

#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/proxy.hpp"
#include "support/tls_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::Clock;
using redlatch::Command;
using redlatch::CountDownLatch;
using redlatch::errc;
using redlatch::FairLock;
using redlatch::FencedLock;
using redlatch::HiredisTransport;
using redlatch::Lease;
using redlatch::MultiLock;
using redlatch::Mutex;
using redlatch::PermitExpirableSemaphore;
using redlatch::ReadWriteLock;
using redlatch::Reply;
using redlatch::RLock;
using redlatch::Semaphore;
using redlatch::SpinLock;
using redlatch::Url;

namespace {

// Long enough for a renewal in time even after seconds without CPU time.
constexpr std::chrono::milliseconds lease = patient(4s);

/// A server with a certificate, and the options that a client of it needs.
struct Place {
    Authority authority;
    RedisServer server;
    std::string url;

    explicit Place(const std::vector<std::string>& more = {})
        : server(by_tls(authority.issue("server"), authority, false, more)), url(tls_url(server.port())) {}

    ClientOptions options(std::chrono::milliseconds watchdog_timeout = 30s) const {
        ClientOptions options;
        options.tls = redlatch::tls({.ca_file = authority.file()});
        options.watchdog_timeout = watchdog_timeout;
        options.command_timeout = 20s;  // no connection is abandoned because the machine is busy
        return options;
    }
};

}  // namespace

TEST_CASE("every primitive works by TLS") {
    Place place;
    RawRedis redis{place.server};
    Client client{place.url, place.options()};
    RLock plain{client, "a"};
    FairLock fair{client, "b"};
    FencedLock fenced{client, "c"};
    SpinLock spin{client, "d"};
    Mutex mutex{client, "e"};
    ReadWriteLock both{client, "f"};
    Semaphore seats{client, "g"};
    PermitExpirableSemaphore permits{client, "h"};
    CountDownLatch latch{client, "i"};
    MultiLock several{plain, fair};
    for (int round = 0; round < 3; ++round) {
        { std::lock_guard guard{plain}; }
        { std::lock_guard guard{fair}; }
        { std::lock_guard guard{fenced}; }
        { std::lock_guard guard{spin}; }
        { std::lock_guard guard{mutex}; }
        { std::lock_guard guard{both}; }
        { std::shared_lock guard{both}; }
        { std::lock_guard guard{several}; }
    }
    CHECK(seats.try_set_permits(1));
    seats.acquire();
    CHECK_FALSE(seats.try_acquire_for(10ms));
    seats.release();
    CHECK(permits.try_set_permits(1));
    permits.release(permits.acquire());
    CHECK(latch.try_set_count(1));
    auto waiter = start([&] { latch.wait(); });
    latch.count_down();
    REQUIRE(ready(waiter));
    CHECK(client.stats().reconnects == 0);
    // All connections were to this server.
    CHECK(redis.info("stats", "total_connections_received") != "0");
    CHECK(redis.connected_clients() >= 2);
}

TEST_CASE("an idle connection stays open, whatever the server sends by itself after the handshake") {
    for (const char* version : {"TLSv1.2", "TLSv1.3"}) {
        Place place{{"--tls-protocols", version}};
        RawRedis redis{place.server};
        Client client{place.url, place.options()};
        RLock orders{client, "orders"};
        for (int round = 0; round < 20; ++round) {
            { std::lock_guard guard{orders}; }
            // By then the server has nothing more to send.
            REQUIRE(eventually([&] { return redis.keys().empty(); }));
        }
        CHECK(client.stats().reconnects == 0);
    }
}

TEST_CASE("the release of another client wakes a waiter by TLS, and its hold is renewed") {
    Place place;
    RawRedis redis{place.server};
    Client one{place.url, place.options()};
    Client two{place.url, place.options(lease)};
    RLock held{one, "orders"};
    RLock wanted{two, "orders"};
    held.lock();
    auto waiter = start_waiting(two, [&] {
        wanted.lock();
        const bool renewed = eventually([&] { return two.stats().renewals >= 2; }, 30s);
        const bool kept = wanted.is_held() && !wanted.lost().stop_requested();
        wanted.unlock();
        return renewed && kept;
    });
    REQUIRE(is_listened_to(redis, "orders"));
    held.unlock();
    // The lease of the first client is half a minute, so only a message can be in time.
    REQUIRE(ready(waiter, 28s));
    CHECK(waiter.get());
    CHECK(redis.keys().empty());
}

TEST_CASE("many threads of two clients exclude each other, on separate keys and on a common one") {
    Place place;
    Client one{place.url, place.options()};
    Client two{place.url, place.options()};
    constexpr int rounds = 10;
    int together = 0;  // not atomic, on purpose
    std::vector<std::thread> threads;
    std::atomic<int> failed{0};
    for (int i = 0; i < 16; ++i) {
        threads.emplace_back([&, i] {
            try {
                auto& client = i % 2 == 0 ? one : two;
                RLock mine{client, "mine-" + std::to_string(i)};
                RLock ours{client, "ours"};
                for (int round = 0; round < rounds; ++round) {
                    { std::lock_guard guard{mine}; }
                    std::lock_guard guard{ours};
                    ++together;
                }
            } catch (const std::exception&) {
                ++failed;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(failed == 0);
    CHECK(together == 16 * rounds);
    CHECK(one.stats().reconnects + two.stats().reconnects == 0);
}

TEST_CASE("pipelines of many records arrive completely in both directions") {
    Place place;
    HiredisTransport transport{Url::parse(place.url), 20s, redlatch::tls({.ca_file = place.authority.file()})};
    // Around the size of a record, and far above the buffer of a socket.
    for (const std::size_t size : {1ul, 16'383ul, 16'384ul, 16'385ul, 40'000ul, 500'000ul}) {
        const std::string text(size, 'x');
        const std::vector<std::string_view> words{"ECHO", text};
        const std::vector<Command> commands(8'000'000 / (size + 80'000), Command{words, 0});
        const std::vector<Reply> replies = transport.call_all(commands, Clock::now() + 60s);
        std::size_t right = 0;
        for (const Reply& reply : replies) right += reply.kind == Reply::Kind::text && reply.text == text;
        CHECK(right == commands.size());
    }
    CHECK(transport.reconnects() == 0);
}

TEST_CASE("one thread sends on a connection while another receives on it, for a long time") {
    Place place;
    HiredisTransport transport{Url::parse(place.url), 20s, redlatch::tls({.ca_file = place.authority.file()})};
    const std::string text(30'000, 'x');
    const std::vector<std::string_view> words{"ECHO", text};
    const std::vector<Command> commands(20, Command{words, 0});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; ++i) {
        threads.emplace_back([&] {
            for (int round = 0; round < 16; ++round)
                for (const Reply& reply : transport.call_all(commands, Clock::now() + 60s)) wrong += reply.text != text;
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(transport.reconnects() == 0);
}

TEST_CASE("posted commands are answered, whether replies share a record or take several") {
    Place place;
    HiredisTransport transport{Url::parse(place.url), 20s, redlatch::tls({.ca_file = place.authority.file()})};
    struct Deaf final : redlatch::Listener {
        void subscribed(const std::string&) override {}
        void refused(const std::string&, const Reply&) override {}
        void message(const std::string&, std::string_view) override {}
        void disconnected() override {}
    } listener;
    const std::string text(3'000, 'x');
    const std::vector<std::string_view> words{"ECHO", text};
    std::atomic<int> answered{0};
    for (int i = 0; i < 500; ++i)
        transport.post(Command{words, 0}, [&](Reply reply) { answered += reply.text == text; });
    const auto deadline = Clock::now() + 15s;
    while (answered < 500 && Clock::now() < deadline) transport.run(listener, deadline);
    CHECK(answered == 500);
}

TEST_CASE("killed or reset connections are replaced, and holds continue") {
    Place place;
    Proxy proxy{Endpoint{{}, place.server.port()}.url(), true};
    RawRedis redis{place.server};
    Client client{tls_url(proxy.port()), place.options(lease)};
    Client other{tls_url(proxy.port()), place.options()};
    RLock orders{client, "orders"};
    RLock wanted{other, "orders"};
    orders.lock();
    auto waiter = start_waiting(other, [&] {
        wanted.lock();
        wanted.unlock();
        return true;
    });
    REQUIRE(is_listened_to(redis, "orders"));
    redis.kill_clients("pubsub");
    REQUIRE(is_listened_to(redis, "orders"));
    redis.kill_clients("normal");
    proxy.kill_all();
    REQUIRE(is_listened_to(redis, "orders"));
    CHECK(orders.is_held());
    const std::uint64_t before = client.stats().renewals;
    CHECK(eventually([&] { return client.stats().renewals > before; }, 20s));
    CHECK_FALSE(orders.lost().stop_requested());
    orders.unlock();
    REQUIRE(ready(waiter));
    CHECK(client.stats().reconnects >= 1);
    CHECK(redis.keys().empty());
}

TEST_CASE("a connection cut anywhere, in the handshake or later, costs only a second try") {
    Place place;
    Proxy proxy{Endpoint{{}, place.server.port()}.url(), true};
    RawRedis redis{place.server};
    std::uint64_t cuts = 0;
    for (const auto fault : {ProxyRule::Fault::drop_request, ProxyRule::Fault::drop_reply}) {
        for (int after = 0; after < 4; ++after) {
            for (const std::size_t bytes : {0ul, 5ul, 29ul, 600ul}) {
                proxy.add({fault, {}, 1, after, Then::close, bytes});
                {
                    Client client{tls_url(proxy.port()), place.options()};
                    RLock orders{client, "orders"};
                    orders.lock();
                    orders.lock();
                    CHECK(orders.hold_count() == 2);
                    orders.unlock();
                    orders.unlock();
                    CHECK_FALSE(orders.is_locked());
                }
                cuts += proxy.counts().matched;
                proxy.clear_rules();
            }
        }
    }
    CHECK(cuts > 15);
    CHECK(redis.keys("orders").empty());
}

TEST_CASE("a connection that delivers one byte at a time delivers everything") {
    Place place;
    Proxy proxy{Endpoint{{}, place.server.port()}.url(), true};
    proxy.trickle(1, 0ms);
    Client client{tls_url(proxy.port()), place.options()};
    RLock orders{client, "orders"};
    for (int round = 0; round < 3; ++round) std::lock_guard guard{orders};
    CHECK(client.stats().reconnects == 0);
}

TEST_CASE("writing to a closed connection raises no signal, and OpenSSL's error queue stays the program's") {
    Place place;
    Proxy proxy{Endpoint{{}, place.server.port()}.url(), true};
    struct sigaction action {};
    ::sigaction(SIGPIPE, nullptr, &action);
    REQUIRE((action.sa_handler == SIG_DFL));
    HiredisTransport transport{Url::parse(tls_url(proxy.port())), 20s,
                               redlatch::tls({.ca_file = place.authority.file()})};
    const std::string text(4'000'000, 'x');
    const std::vector<std::string_view> small{"PING"};
    const std::vector<std::string_view> large{"ECHO", text};
    for (int round = 0; round < 5; ++round) {
        REQUIRE(transport.call(Command{small, 0}, Clock::now() + 20s).text == "PONG");
        proxy.drop_next_requests(1, {}, Then::silence);
        auto killed = start([&] {
            const bool sent =
                eventually([&] { return proxy.counts().matched > static_cast<std::uint64_t>(round); }, 20s);
            proxy.kill_all();
            return sent;
        });
        CHECK(transport.call(Command{large, 0}, Clock::now() + 60s).kind == Reply::Kind::unanswered);
        CHECK(killed.get());
    }

    // An error from the program's own use of OpenSSL.
    BIO_free(BIO_new_file("/none/such", "r"));
    const unsigned long left = ERR_peek_error();
    REQUIRE(left != 0);
    Client client{place.url, place.options()};
    RLock orders{client, "orders"};
    { std::lock_guard guard{orders}; }
    CHECK(ERR_peek_error() == left);
    Client stranger{place.url, [&] {
                        ClientOptions options;
                        options.tls = redlatch::tls();
                        return options;
                    }()};
    RLock refused{stranger, "orders"};
    CHECK(code_of([&] { refused.lock(); }) == errc::rejected);
    CHECK(ERR_get_error() == left);
    while (ERR_get_error() != 0) {
    }
    { std::lock_guard guard{orders}; }
    CHECK(ERR_peek_error() == 0);
}

TEST_CASE("errno is preserved by the end of a guard and of a client, by TLS too") {
    Place place;
    auto client = std::make_unique<HiredisClient>(place.url, place.options());
    HiredisRLock orders{*client, "orders"};
    std::optional<std::unique_lock<HiredisRLock>> guard{orders};
    errno = ENOTNAM;
    guard.reset();
    CHECK(errno == ENOTNAM);
    client.reset();
    CHECK(errno == ENOTNAM);
}

TEST_CASE("certificates that are renewed while the program runs are used from the next connection on") {
    Authority authority;
    const Certificate old = authority.issue("old", {.valid_from = -7200, .valid_to = -3600});
    RedisServer server{by_tls(authority.issue("server"), authority, true)};
    RawRedis redis{server};
    Certificate used{authority.directory().file("used.pem"), authority.directory().file("used.key")};
    const auto put = [&](const Certificate& certificate) {
        const auto how = std::filesystem::copy_options::overwrite_existing;
        std::filesystem::copy_file(certificate.file, used.file, how);
        std::filesystem::copy_file(certificate.key_file, used.key_file, how);
    };
    put(old);
    ClientOptions options;
    options.tls =
        redlatch::tls({.ca_file = authority.file(), .certificate_file = used.file, .key_file = used.key_file});
    Client client{tls_url(server.port()), options};
    RLock orders{client, "orders"};
    CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
    put(authority.issue("new"));
    { std::lock_guard guard{orders}; }
    CHECK(redis.keys().empty());
}

TEST_CASE("a cluster by TLS: its nodes are connected to by TLS, too") {
    Place place{{"--cluster-enabled", "yes", "--tls-cluster", "yes"}};
    RawRedis redis{place.server};
    redis.text("CLUSTER", "ADDSLOTSRANGE", 0, 16383);
    REQUIRE(eventually([&] { return redis.text("CLUSTER", "INFO").starts_with("cluster_state:ok"); }, 20s));
    const std::string url = "rediss-cluster://127.0.0.1:" + std::to_string(place.server.port());
    Client mine{url, place.options()}, other{url, place.options()};
    RLock held{mine, "orders"}, wanted{other, "orders"};
    held.lock();
    auto waiting = start([&] { return wanted.try_lock_for(20s); });
    REQUIRE(eventually([&] { return other.stats().waits == 1; }, 20s));
    held.unlock();
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
    CHECK(redis.exists("orders"));
    CHECK_THROWS_AS(Client{std::string_view{url}}, redlatch::Error);
}

TEST_CASE("a login by a function works by TLS, on the first connection and on later ones") {
    Place place{{"--requirepass", "before"}};
    RawRedis redis{place.server};
    redis.text("AUTH", "before");
    std::mutex mutex;
    std::string password = "before";
    ClientOptions options = place.options();
    options.credentials = [&] {
        const std::lock_guard guard{mutex};
        return redlatch::Credentials{"", password};
    };
    Client client{place.url, options};
    RLock orders{client, "orders"};
    orders.lock();
    redis.text("CONFIG", "SET", "requirepass", "after");
    {
        const std::lock_guard guard{mutex};
        password = "after";
    }
    redis.kill_clients("normal");
    CHECK(orders.is_held());
    orders.unlock();
}
