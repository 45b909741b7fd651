// SPDX-License-Identifier: MIT
// OpenSSL allows one thread at a time to use a connection. Two that do so damage it only now and then, so this test sees
// the calls themselves: its SSL_write() and SSL_read_ex() stand in place of OpenSSL's for the whole program.
#include <doctest/doctest.h>

#include <redlatch/tls.hpp>

#include <dlfcn.h>
#include <openssl/ssl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/tls_server.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Clock;
using redlatch::Command;
using redlatch::HiredisTransport;
using redlatch::Reply;
using redlatch::Url;

namespace {

constexpr int most_pauses = 200;

std::atomic<bool> watching{false};
std::atomic<int> pauses{0};
std::atomic<bool> together{false};
std::mutex mutex;                // guards written and read_from
std::set<const SSL*> written;    // the connections on which a thread is about to write
std::set<const SSL*> read_from;  // those on which a thread has read

template <class Function>
Function* next_function(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int SSL_write(SSL* ssl, const void* plain, int size) {
    static auto* const real = next_function<decltype(SSL_write)>("SSL_write");
    // Gives a thread that receives the time to come in. The first of the writes are enough.
    if (watching && pauses.fetch_add(1) < most_pauses) {
        {
            const std::lock_guard guard(mutex);
            written.insert(ssl);
        }
        eventually([] { return together.load(); }, 10ms, 1ms);
        const std::lock_guard guard(mutex);
        written.erase(ssl);
    }
    return real(ssl, plain, size);
}

extern "C" int SSL_read_ex(SSL* ssl, void* plain, std::size_t room, std::size_t* got) {
    static auto* const real = next_function<decltype(SSL_read_ex)>("SSL_read_ex");
    if (watching) {
        const std::lock_guard guard(mutex);
        read_from.insert(ssl);
        if (written.contains(ssl)) together = true;
    }
    return real(ssl, plain, room, got);
}

TEST_CASE("no thread receives on a TLS connection while another is about to send on it") {
    Authority authority;
    const RedisServer server{by_tls(authority.issue("server"), authority, false, {})};
    HiredisTransport transport{Url::parse(tls_url(server.port())), 20s, redlatch::tls({.ca_file = authority.file()})};
    // More threads than connections.
    const std::string text(300, 'x');
    const std::vector<std::string_view> words{"ECHO", text};
    std::atomic<int> wrong{0};
    watching = true;
    std::vector<std::thread> threads;
    for (int i = 0; i < 32; ++i)
        threads.emplace_back([&] {
            for (int round = 0; round < 40; ++round)
                wrong += transport.call(Command{words, 0}, Clock::now() + 60s).text != text;
        });
    for (std::thread& thread : threads) thread.join();
    watching = false;
    CHECK(wrong == 0);
    CHECK_FALSE(together);
    CHECK(pauses > most_pauses);
    CHECK(read_from.size() < threads.size());
}
