// SPDX-License-Identifier: MIT
//
// A ticket shop on one thread: a coroutine for each customer's connection. Each request takes the lock of the show that it
// is about, which the other servers of the shop take, too. No request waits with a thread, and none longer than a second.

#include <redlatch/asio.hpp>
#include <redlatch/redlatch.hpp>

#include <asio.hpp>
#include <asio/experimental/awaitable_operators.hpp>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <string>

using asio::ip::tcp;
using namespace asio::experimental::awaitable_operators;

namespace {

// Stands for a database.
std::map<std::string, int> seats{{"Hamlet", 30}, {"Macbeth", 50}};

asio::awaitable<std::string> sell(redlatch::RLock& lock, const std::string& show) {
    asio::steady_timer patience{co_await asio::this_coro::executor, std::chrono::seconds{1}};
    // Whichever comes later is cancelled.
    auto first =
        co_await (redlatch::async(lock.async_lock(), asio::use_awaitable) || patience.async_wait(asio::use_awaitable));
    if (first.index() == 1) co_return "busy\n";

    const int left = seats[show];
    co_await asio::post(asio::use_awaitable);  // a query takes its time, other requests go on meanwhile
    if (left == 0) co_return "sold out\n";
    seats[show] = left - 1;
    co_return "seat " + std::to_string(left) + '\n';
}  // the hold is released here

asio::awaitable<void> serve(tcp::socket connection, redlatch::RLock& hamlet, redlatch::RLock& macbeth) {
    std::string request;
    co_await asio::async_read_until(connection, asio::dynamic_buffer(request), '\n', asio::use_awaitable);
    request.pop_back();
    const std::string answer = co_await sell(request == "Hamlet" ? hamlet : macbeth, request);
    co_await asio::async_write(connection, asio::buffer(answer), asio::use_awaitable);
}

asio::awaitable<void> listen(tcp::acceptor& acceptor, redlatch::RLock& hamlet, redlatch::RLock& macbeth) {
    for (;;) {
        tcp::socket connection = co_await acceptor.async_accept(asio::use_awaitable);
        asio::co_spawn(acceptor.get_executor(), serve(std::move(connection), hamlet, macbeth), asio::detached);
    }
}

asio::awaitable<void> buy(tcp::endpoint shop, std::string show, std::map<std::string, int>& answers) {
    tcp::socket connection{co_await asio::this_coro::executor};
    co_await connection.async_connect(shop, asio::use_awaitable);
    co_await asio::async_write(connection, asio::buffer(show + '\n'), asio::use_awaitable);
    std::string answer;
    co_await asio::async_read_until(connection, asio::dynamic_buffer(answer), '\n', asio::use_awaitable);
    ++answers[answer.starts_with("seat") ? "sold" : answer.substr(0, answer.size() - 1)];
}

}  // namespace

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::RLock hamlet{redis, "example:asio:Hamlet"}, macbeth{redis, "example:asio:Macbeth"};

    asio::io_context context;
    tcp::acceptor shop{context, {asio::ip::address_v4::loopback(), 0}};
    asio::co_spawn(context, listen(shop, hamlet, macbeth), asio::detached);

    const int customers = 100;
    int waiting = customers;
    std::map<std::string, int> answers;
    for (int i = 0; i < customers; ++i)
        asio::co_spawn(context, buy(shop.local_endpoint(), i % 2 == 0 ? "Hamlet" : "Macbeth", answers),
                       [&](const std::exception_ptr& error) {
                           if (error) std::rethrow_exception(error);
                           if (--waiting == 0) shop.close();
                       });
    context.run();

    for (const auto& [answer, times] : answers) std::cout << times << " times: " << answer << '\n';
    return answers["sold"] + answers["sold out"] + answers["busy"] == customers && seats["Hamlet"] >= 0 ? 0 : 1;
}
