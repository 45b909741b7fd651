// SPDX-License-Identifier: MIT
// What is sent behind a granting command so that replicas and disks confirm it, and what each reply to that means.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

constexpr std::array<std::string_view, 2> set_words{"SET", "orders"};

struct Acks {
    ClientOptions options{};
    ReplicaAcks acks{options};

    /// Returns the commands of a batch, each as one text.
    std::vector<std::string> sent(const Replication& wanted) {
        const ReplicaAcks::Batch batch(acks, wanted, Command{set_words}, 0);
        std::vector<std::string> texts;
        for (const Command& command : batch.commands()) {
            std::string& text = texts.emplace_back();
            for (const std::string_view word : command.words) text += (text.empty() ? "" : " ") + std::string(word);
        }
        return texts;
    }

    /// Returns the reply to the granting command, to which WAIT or WAITAOF replied so.
    Reply merged(Reply waited, std::size_t replicas, bool on_disk) {
        std::array<Reply, 2> replies{Reply::of("OK"), std::move(waited)};
        return acks.merged(replies, 0, replicas, on_disk);
    }
};

Reply both(std::int64_t here, std::int64_t replicas) {
    Reply reply;
    reply.kind = Reply::Kind::array;
    reply.elements = {Reply::of(here), Reply::of(replicas)};
    return reply;
}

Reply refusal(const char* text) { return Reply::of(Reply::Kind::error, text); }

}  // namespace

TEST_CASE("WAIT asks for replicas, WAITAOF for the disk, and with both for the disks of the replicas, too") {
    Acks f;
    CHECK(f.sent({2, 750ms}) == std::vector<std::string>{"SET orders", "WAIT 2 750"});
    CHECK(f.sent({0, 1500ms, true}) == std::vector<std::string>{"SET orders", "WAITAOF 1 0 1500"});
    CHECK(f.sent({2, 1500ms, true}) == std::vector<std::string>{"SET orders", "WAITAOF 1 2 1500"});
    CHECK(f.sent({all_replicas, 1500ms, true}) == std::vector<std::string>{"SET orders", "WAITAOF 1 1 1500", "ROLE"});
}

TEST_CASE("replicas have a quarter of command_timeout, a disk half of it") {
    CHECK(settings_of({.command_timeout = 4s, .require_replicas = 1}).replication() == Replication{1, 1000ms});
    CHECK(settings_of({.command_timeout = 4s, .require_fsync = true}).replication() == Replication{0, 2000ms, true});
    CHECK_FALSE(settings_of({.command_timeout = 4s}).replication().asks());
    CHECK_FALSE(settings_of({.require_fsync = true}, {.require_fsync = false}).require_fsync);
    CHECK(settings_of({}, {.require_fsync = true}).require_fsync);
}

TEST_CASE("only a grant is confirmed") {
    ClientOptions options;
    options.require_fsync = true;
    const ReplicaAcks acks{options};
    CHECK(acks.wanted_for(Call::command({"SET", "orders"}, Effect::grants)).on_disk);
    CHECK_FALSE(acks.wanted_for(Call::command({"SET", "orders"})).asks());
}

TEST_CASE("it is confirmed if this disk and enough disks of replicas have it") {
    Acks f;
    CHECK(f.merged(both(1, 0), 0, true).replicated);
    CHECK(f.merged(both(1, 2), 2, true).replicated);
    CHECK(f.merged(both(1, 3), 2, true).replicated);
    CHECK(f.merged(Reply::of(2), 2, false).replicated);
}

TEST_CASE("each reply that confirms nothing has an error that says why") {
    Acks f;
    struct Case {
        Reply waited;
        errc code;
        const char* text;
    };
    const std::vector<Case> cases{
        {both(0, 2), errc::not_on_disk, "check the server's disk and its appendfsync"},
        {both(1, 1), errc::not_replicated, "check the replicas"},
        {refusal("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."), errc::rejected,
         "set appendonly yes"},
        {refusal("ERR unknown command 'WAITAOF', with args beginning with: '1' '2' '750' "), errc::rejected,
         "use Redis 7.2 or newer, or Valkey"},
        {refusal("NOPERM User app has no permissions to run the 'waitaof' command"), errc::rejected,
         "grant the right to it"},
        {refusal("ERR something new"), errc::not_on_disk, "releases it again"},
        {Reply::of(Reply::Kind::unanswered, "the connection ended"), errc::not_on_disk, "releases it again"},
        {Reply::of(2), errc::not_on_disk, "releases it again"},
        {Reply{}, errc::not_on_disk, "releases it again"},
    };
    for (const Case& one : cases) {
        CAPTURE(one.waited.text);
        const Reply reply = f.merged(one.waited, 2, true);
        CHECK(reply.text == "OK");
        CHECK_FALSE(reply.replicated);
        const Error error = not_confirmed(reply, "orders");
        CHECK(error.code() == one.code);
        CHECK(std::string_view(error.what()).starts_with("orders: "));
        CHECK(std::string_view(error.what()).find(one.text) != std::string_view::npos);
    }
    CHECK(not_confirmed(f.merged(Reply::of(1), 2, false), "orders").code() == errc::not_replicated);
    CHECK(not_confirmed(f.merged(refusal("NOPERM no"), 2, false), "orders").code() == errc::not_replicated);
}
