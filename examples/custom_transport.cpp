// SPDX-License-Identifier: MIT
// Uses redlatch with another Redis client: plain blocking hiredis, one connection behind a mutex and one for messages.
#include <redlatch/redlatch.hpp>

#include <hiredis/hiredis.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>

using namespace redlatch;

class PlainTransport {
    using Connection = std::shared_ptr<redisContext>;

    static Reply converted(const redisReply* r) {
        using enum Reply::Kind;  // in the order of REDIS_REPLY_STRING = 1, ARRAY, INTEGER, NIL, STATUS, ERROR
        static constexpr Reply::Kind kinds[] = {nil, text, array, integer, nil, text, error};
        Reply reply{kinds[r->type], r->integer, r->str ? std::string(r->str, r->len) : std::string(), {}};
        for (std::size_t i = 0; i < r->elements; ++i) reply.elements.push_back(converted(r->element[i]));
        return reply;
    }
    Connection connect() const { return {redisConnectUnixWithTimeout(path_.c_str(), {1, 0}), redisFree}; }

    std::string path_;
    std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // guards commands_, wanted_ and asked_
    Connection commands_, messages_;
    std::set<std::string> wanted_, asked_;

public:
    explicit PlainTransport(std::string path) : path_(std::move(path)) {}

    Reply call(const Command& command, Instant deadline) {
        const std::lock_guard lock(*mutex_);
        if (!commands_) commands_ = connect();
        if (!commands_ || commands_->err) return commands_.reset(), Reply::of(Reply::Kind::not_sent, "no connection");
        const auto left = std::max(Milliseconds(1), std::chrono::ceil<Milliseconds>(deadline - Clock::now()));
        redisSetTimeout(commands_.get(), {left.count() / 1000, left.count() % 1000 * 1000});
        std::vector<const char*> words;
        std::vector<std::size_t> sizes;
        for (const auto word : command.words) words.push_back(word.data()), sizes.push_back(word.size());
        const int count = static_cast<int>(words.size());
        void* raw = redisCommandArgv(commands_.get(), count, words.data(), sizes.data());
        const std::shared_ptr<redisReply> reply(static_cast<redisReply*>(raw), freeReplyObject);
        if (!reply) return commands_.reset(), Reply::of(Reply::Kind::unanswered, "the connection broke");
        return converted(reply.get());
    }
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        std::vector<Reply> replies;
        for (const Command& command : commands) replies.push_back(call(command, deadline));
        return replies;
    }
    void post(const Command& command, Completion done) { done(call(command, Clock::now() + std::chrono::seconds(3))); }

    void subscribe(const std::string& channel) {
        const std::lock_guard lock(*mutex_);
        wanted_.insert(channel);
    }
    void unsubscribe(const std::string& channel) {
        const std::lock_guard lock(*mutex_);
        wanted_.erase(channel);
    }
    void wake() {}  // run() returns every few milliseconds anyway
    void run(Listener& listener, Instant) {
        if (std::unique_lock lock(*mutex_); wanted_ != asked_) {
            if (!messages_) messages_ = connect();
            const auto ask = [&](const char* what, const auto& these, const auto& not_those) {
                for (const std::string& c : these)
                    if (!not_those.contains(c)) redisAppendCommand(messages_.get(), what, c.data(), c.size());
            };
            ask("SUBSCRIBE %b", wanted_, asked_);
            ask("UNSUBSCRIBE %b", asked_, wanted_);
            asked_ = wanted_;
            for (int sent = 0; !sent && redisBufferWrite(messages_.get(), &sent) == REDIS_OK;) continue;
        }
        pollfd ready{messages_ ? messages_->fd : -1, POLLIN, 0};
        if (::poll(&ready, 1, 5) <= 0) return;
        bool alive = redisBufferRead(messages_.get()) == REDIS_OK;
        for (void* raw; alive && redisGetReplyFromReader(messages_.get(), &raw) == REDIS_OK && raw;) {
            const Reply frame = converted(static_cast<redisReply*>(raw));
            freeReplyObject(raw);
            if (frame.elements.size() != 3) continue;
            if (frame.elements[0].text == "subscribe") listener.subscribed(frame.elements[1].text);
            if (frame.elements[0].text == "message") listener.message(frame.elements[1].text, frame.elements[2].text);
        }
        if (!alive) messages_.reset(), asked_.clear(), listener.disconnected();
    }
    std::uint32_t route(std::string_view) const { return 0; }
    std::string_view publish_command() const { return "PUBLISH"; }
    PlainTransport clone_after_fork() { return PlainTransport(path_); }
};

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    Client redis{PlainTransport(Url::parse(url ? url : "unix:///var/run/redis/redis.sock").path)};
    RLock orders{redis, "custom-transport"};
    int sold = 0;
    const auto sell = [&] {
        for (int i = 0; i < 100; ++i) {
            const std::lock_guard guard{orders};
            ++sold;
        }
    };
    std::thread one(sell), two(sell);
    one.join(), two.join();
    std::printf("two threads sold %d\n", sold);
    return sold == 200 ? 0 : 1;
}
