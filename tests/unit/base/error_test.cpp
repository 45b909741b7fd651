// SPDX-License-Identifier: MIT
// Error codes, their texts, and how they compare with std::errc.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <set>
#include <string>
#include <system_error>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

constexpr errc all[] = {errc::invalid_argument, errc::not_owner,      errc::would_deadlock, errc::unknown_permit,
                        errc::hold_lost,        errc::unreachable,    errc::overloaded,     errc::rejected,
                        errc::wrong_type,       errc::protocol_error, errc::unsupported};

}  // namespace

TEST_CASE("every code has its own message, and none means success") {
    std::set<std::string> sentences;
    for (const errc code : all) {
        const std::error_code ec = code;
        CHECK(ec);
        CHECK(&ec.category() == &error_category());
        CHECK(ec.message() != "unknown error");
        sentences.insert(ec.message());
    }
    CHECK(sentences.size() == std::size(all));
    CHECK(std::string(error_category().name()) == "redlatch");
    CHECK(error_category().message(0) == "unknown error");
    CHECK(error_category().message(9999) == "unknown error");
}

TEST_CASE("codes equal the portable std::errc conditions where one exists") {
    CHECK(std::error_code(errc::invalid_argument) == std::errc::invalid_argument);
    CHECK(std::error_code(errc::not_owner) == std::errc::operation_not_permitted);
    CHECK(std::error_code(errc::would_deadlock) == std::errc::resource_deadlock_would_occur);
    CHECK(std::error_code(errc::unsupported) == std::errc::not_supported);
    CHECK(std::error_code(errc::protocol_error) == std::errc::protocol_error);
    CHECK(std::error_code(errc::hold_lost) != std::errc::operation_not_permitted);
    CHECK(std::error_code(errc::rejected) != std::errc::invalid_argument);
}

TEST_CASE("an error carries its code, the name of the primitive, and a detail") {
    const Error error(errc::overloaded, "orders", "the server replied 'OOM'");
    CHECK(error.code() == errc::overloaded);
    CHECK(error.name() == "orders");
    const std::string what = error.what();
    CHECK(what.starts_with("orders: the server replied 'OOM'"));
    CHECK(what.find("cannot execute the command now") != std::string::npos);

    const Error nameless(errc::unsupported, {}, "no TLS");
    CHECK(nameless.name().empty());
    CHECK(std::string(nameless.what()).starts_with("no TLS"));
}

TEST_CASE("an error can be caught as std::system_error and as std::runtime_error") {
    CHECK_THROWS_AS(throw Error(errc::rejected, "x", "y"), std::system_error);
    CHECK_THROWS_AS(throw Error(errc::rejected, "x", "y"), std::runtime_error);
}

TEST_CASE("the name in a message is escaped and shortened, because it may contain any bytes") {
    // A zero byte would truncate the message, and an escape sequence would reach the reader's terminal.
    const std::string name = std::string("a\0b\x1b[31m\n", 9) + std::string(1000, 'n');
    const Error error(errc::wrong_type, name, "something else uses this key");
    const std::string what = error.what();
    CHECK(error.name() == name);
    CHECK(what.find("something else uses this key") != std::string::npos);
    CHECK(what.find('\x1b') == std::string::npos);
    CHECK(what.find('\n') == std::string::npos);
    CHECK(what.find(std::string(200, 'n')) == std::string::npos);
}
