// SPDX-License-Identifier: MIT
//
// Uses redlatch on connections of your own: plain blocking hiredis, made by a function of yours, which may log in, use TLS
// or call another Redis client's pool. One connection behind a mutex carries the commands, another one the messages.

#include <redlatch/redlatch.hpp>

#include <hiredis/hiredis.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
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
public:
    using Connection = std::shared_ptr<redisContext>;
    using Connect = std::function<Connection()>;  // null, or a context with an error, if that failed

private:
    static Reply converted(const redisReply* r) {
        using enum Reply::Kind;  // in the order of REDIS_REPLY_STRING = 1, ARRAY, INTEGER, NIL, STATUS, ERROR
        static constexpr Reply::Kind kinds[] = {nil, text, array, integer, nil, text, error};
        Reply reply{kinds[r->type], r->integer, r->str ? std::string(r->str, r->len) : std::string(), {}};
        for (std::size_t i = 0; i < r->elements; ++i) reply.elements.push_back(converted(r->element[i]));
        return reply;
    }
    // Caller holds the mutex.
    void ask_for_messages() {
        const auto ask = [&](const char* what, const auto& these, const auto& not_those) {
            for (const std::string& c : these)
                if (!not_those.contains(c)) redisAppendCommand(messages_.get(), what, c.data(), c.size());
        };
        ask("SUBSCRIBE %b", wanted_, asked_);
        ask("UNSUBSCRIBE %b", asked_, wanted_);
        asked_ = wanted_;
        for (int sent = 0; !sent && redisBufferWrite(messages_.get(), &sent) == REDIS_OK;) continue;
    }

    Connect connect_;
    std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // guards commands_, wanted_ and asked_
    Connection commands_, messages_;
    std::set<std::string> wanted_, asked_;

public:
    explicit PlainTransport(Connect connect) : connect_(std::move(connect)) {}

    Reply call(const Command& command, Instant deadline) {
        const std::lock_guard lock(*mutex_);
        if (!commands_) commands_ = connect_();
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
            if (!messages_) messages_ = connect_();
            if (messages_ && messages_->err) messages_.reset();  // the next run() tries again
            if (messages_) ask_for_messages();
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
    PlainTransport clone_after_fork() { return PlainTransport(connect_); }
};

// [readme]
PlainTransport::Connection my_connection() {
    const char* env = std::getenv("REDLATCH_URL");
    const Url url = Url::parse(env ? env : "redis://127.0.0.1:6379");
    redisContext* context = url.path.empty() ? redisConnectWithTimeout(url.host.c_str(), url.port, {1, 0})
                                             : redisConnectUnixWithTimeout(url.path.c_str(), {1, 0});
    return {context, redisFree};  // log in here, if you must
}

int main() {
    Client one{PlainTransport(my_connection)}, two{PlainTransport(my_connection)};
    std::atomic<int> sold{0};  // read and written in two steps: only the lock makes them one
    const auto sell = [&](Client& redis) {
        RLock orders{redis, "example:custom_transport"};
        for (int i = 0; i < 100; ++i) {
            const std::lock_guard guard{orders};
            const int before = sold;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            sold = before + 1;
        }
    };
    std::thread here([&] { sell(one); }), there([&] { sell(two); });
    here.join(), there.join();
    std::printf("two clients sold %d, and waited %d times\n", sold.load(),
                static_cast<int>(one.stats().waits + two.stats().waits));
    return sold == 200 ? 0 : 1;
}
// [/readme]
