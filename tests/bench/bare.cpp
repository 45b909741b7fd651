// SPDX-License-Identifier: MIT
#include "bare.hpp"

#include <cstdint>
#include <limits>
#include <redlatch/redlatch.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "support/socket.hpp"

namespace redlatch::bench {

using namespace redlatch::detail;

namespace {

// As long as a real one: the id of a client.
const std::string client_id = "00000000-0000-4000-8000-000000000000";

redisContext* connect(const std::string& url) {
    const auto endpoint = test::Endpoint::parse(url);
    return endpoint.path.empty() ? redisConnect("127.0.0.1", endpoint.port) : redisConnectUnix(endpoint.path.c_str());
}

// The words of a call of the library: so the reference always sends what the library sends.
Words words_of(const Call& call) {
    const CallWords words(call, "PUBLISH");
    const std::span<const std::string_view> all = words.command().words;
    return Words{{all.begin(), all.end()}};
}

// The calls of an RLock whose holder has the number `thread` + 1.
struct Wire {
    explicit Wire(const std::string& name) : protocol({client_id, options, native}, name) {}

    Words acquire(std::size_t thread) const {
        Claim claim{.owner = thread + 1, .hold = thread + 1, .count = 1, .lease = options.watchdog_timeout};
        claim.until = std::numeric_limits<std::int64_t>::max() / 2;  // never too late
        return words_of(protocol.acquire(claim));
    }
    Words release(std::size_t thread) const { return words_of(protocol.release(thread + 1, 0, Milliseconds(0))); }

    const ClientOptions options;
    NativeCommands native;
    const RLockProtocol protocol;
};

const std::string compare_and_delete =
    "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1]) or 0";

/// Returns the digest of the script.
std::string load(Connection& connection, std::string script) {
    Words words{{"SCRIPT", "LOAD", std::move(script)}};
    return connection.call(words)->str;
}

void check_acquired(const redisReply& reply) {
    if (reply.type != REDIS_REPLY_NIL) throw std::runtime_error("a bare lock was taken already");
}

void check_released(const redisReply& reply) {
    if (reply.type != REDIS_REPLY_INTEGER) throw std::runtime_error("a bare lock was not held");
}

}  // namespace

Words::Words(std::vector<std::string> words) : words_(std::move(words)) {
    for (const std::string& word : words_) {
        pointers_.push_back(word.data());
        sizes_.push_back(word.size());
    }
}

Connection::Connection(const std::string& url) : context_(connect(url), &redisFree) {
    if (!context_ || context_->err != 0) throw std::runtime_error("cannot connect to " + url);
}

Connection::Reply Connection::call(Words& words) {
    return checked(redisCommandArgv(context_.get(), words.count(), words.pointers(), words.sizes()));
}

void Connection::append(Words& words) {
    if (redisAppendCommandArgv(context_.get(), words.count(), words.pointers(), words.sizes()) != REDIS_OK)
        throw std::runtime_error(context_->errstr);
}

void Connection::flush() {
    int done = 0;
    while (!done)
        if (redisBufferWrite(context_.get(), &done) != REDIS_OK) throw std::runtime_error(context_->errstr);
}

Connection::Reply Connection::receive() {
    void* reply = nullptr;
    redisGetReply(context_.get(), &reply);
    return checked(reply);
}

Connection::Reply Connection::checked(void* raw) const {
    Reply reply{static_cast<redisReply*>(raw), &freeReplyObject};
    if (!reply) throw std::runtime_error(context_->errstr);
    if (reply->type == REDIS_REPLY_ERROR) throw std::runtime_error(reply->str);
    return reply;
}

BareScripts::BareScripts(const std::string& name, std::size_t thread)
    : acquire(Wire(name).acquire(thread)), release(Wire(name).release(thread)) {}

void load_scripts(Connection& connection) {
    for (const Script& script : {RLockProtocol::queue_scripts.acquire, RLockProtocol::queue_scripts.release})
        load(connection, script.text());
}

BareLock::BareLock(const std::string& url, const std::string& name, std::size_t thread)
    : connection_(url), scripts_(name, thread) {
    load_scripts(connection_);
}

void BareLock::lock() { check_acquired(*connection_.call(scripts_.acquire)); }
void BareLock::unlock() { check_released(*connection_.call(scripts_.release)); }

HandmadeLock::HandmadeLock(const std::string& url, const std::string& name, std::size_t thread)
    : connection_(url),
      set_({"SET", name, client_id + ":" + std::to_string(thread), "NX", "PX", "30000"}),
      release_(
          {"EVALSHA", load(connection_, compare_and_delete), "1", name, client_id + ":" + std::to_string(thread)}) {}

void HandmadeLock::lock() {
    if (connection_.call(set_)->type != REDIS_REPLY_STATUS) throw std::runtime_error("a bare lock was taken already");
}
void HandmadeLock::unlock() { check_released(*connection_.call(release_)); }

Token::Token(const std::string& url, const std::string& name)
    : connection_(url), pop_({"BLPOP", name, "0"}), push_(make(name)) {}

Pipeline::Pipeline(const std::string& url, const std::vector<std::string>& names) : connection_(url) {
    load_scripts(connection_);
    for (std::size_t i = 0; i < names.size(); ++i) scripts_.push_back(std::make_unique<BareScripts>(names[i], i));
}

void Pipeline::lock_and_unlock_all() {
    for (auto& scripts : scripts_) connection_.append(scripts->acquire);
    for (std::size_t i = 0; i < scripts_.size(); ++i) check_acquired(*connection_.receive());
    for (auto& scripts : scripts_) connection_.append(scripts->release);
    for (std::size_t i = 0; i < scripts_.size(); ++i) check_released(*connection_.receive());
}

}  // namespace redlatch::bench
