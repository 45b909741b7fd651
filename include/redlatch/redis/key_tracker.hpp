// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/net/wake_pipe.hpp"
#include "redlatch/redis/command_connection.hpp"
#include "redlatch/redis/pubsub_connection.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes one server tell when a key changes that was read here: CLIENT TRACKING of Redis 6. With REDIRECT, so that RESP2
// is enough: one connection reads, another one gets the news. With OPTIN, so that no key is tracked but the one after
// CLIENT CACHING yes. Both connections are opened when the first key is to be tracked.
//
// The server says nothing when one of the two connections is gone, and forgets the keys. So the listener hears then, and
// when the second one is there again, that every key may have changed. A refusal of the server or of its access rights
// is remembered: no further command is sent.
//
// mutex_ guards wanted_ and refusal_. The connections are thread-safe. The rest is the serving thread's.
class KeyTracker {
public:
    // `wake` makes the serving thread look at the duties again. `answers` is called when a connection has received its
    // first reply. Both are called on any thread.
    KeyTracker(const Url& url, const Connector& open, Milliseconds timeout, std::function<void()> wake,
               const std::function<void()>& answers)
        : wake_(std::move(wake)),
          reader_(url, open, timeout, wake_, CommandConnection::Connecting::one_attempt, nullptr, answers),
          invalidations_(open, timeout, wake_, PubSubConnection::Channels::invalidations, answers, url.ping_interval) {}
    KeyTracker(const KeyTracker&) = delete;
    KeyTracker& operator=(const KeyTracker&) = delete;

    // --- any thread -------------------------------------------------------------------------------------------

    void track(const Command& read, Completion done) {
        if (std::optional<Reply> refusal = want()) return done(std::move(*refusal));
        const std::int64_t id = invalidations_.client_id();
        if (id == 0) return done(Reply::of(Reply::Kind::not_sent, "the server's messages do not arrive yet"));
        const NumberText redirect(id);
        const std::array<std::string_view, 6> on{"CLIENT", "TRACKING", "ON", "REDIRECT", redirect, "OPTIN"};
        const std::array<std::string_view, 3> caching{"CLIENT", "CACHING", "yes"};
        const std::array<Command, size> commands{Command{on, 0}, Command{caching, 0}, read};
        auto answers = std::make_shared<Answers>(std::move(done));
        std::array<Completion, size> receivers;
        for (std::size_t i = 0; i < size; ++i)
            receivers[i] = [answers, i](Reply reply) { answers->take(i, std::move(reply)); };
        reader_.post_all(commands, receivers);
    }

    // Called when another connection has shown that the server is up. Returns true if there was a pause.
    bool try_again() noexcept {
        const bool has_ended_pause = invalidations_.try_again();
        return reader_.try_again() || has_ended_pause;
    }

    // Leaves a server that is not the one of this epoch.
    void leave_before(std::uint64_t epoch) { reader_.leave_before(epoch); }

    // --- the serving thread -----------------------------------------------------------------------------------

    template <class Watch>
    void each_duty(Watch watch) {
        watch(invalidations_.duty());
        watch(reader_.duty(true));
    }

    void serve(Listener& listener, Instant limit) {
        News news(*this, listener);
        invalidations_.serve(news, limit);
        reader_.drive(limit, true);
        // In this order: a connection that is made in between counts in the next round.
        const std::uint64_t made = reader_.connections();
        const std::uint64_t ended = made - (reader_.is_connected() && made > 0 ? 1 : 0);
        if (ended <= ended_) return;
        news.disconnected();
        ended_ = ended;
    }

    void leave_before(std::uint64_t epoch, Listener& listener) {
        leave_before(epoch);
        News news(*this, listener);
        invalidations_.leave_before(epoch, news);
    }

    // Called for a server that gets no more commands.
    void leave(Listener& listener) {
        {
            const std::lock_guard lock(mutex_);
            wanted_ = false;
        }
        invalidations_.forget(channel_);
        News news(*this, listener);
        invalidations_.leave_before(std::numeric_limits<std::uint64_t>::max(), news);
        reader_.turn_away();
    }

    // --- a waiting thread: see PubSubConnection -----------------------------------------------------------------

    PubSubConnection::Watch watch(Listener& listener, Instant deadline, Interrupts& interrupts, std::uint64_t seen) {
        News news(*this, listener);
        return invalidations_.watch(news, deadline, interrupts, seen);
    }

    // ----------------------------------------------------------------------------------------------------------

    void close_inherited() noexcept {
        reader_.close_inherited();
        invalidations_.close_inherited();
    }

    // Called at the end. Afterwards neither the connector nor a completion is called any more.
    void finish() noexcept {
        invalidations_.finish();
        reader_.forget_posted();
    }

    bool is_opening_aside() const noexcept { return invalidations_.is_opening_aside() || reader_.is_opening_aside(); }

private:
    static constexpr std::size_t size = 3;  // commands to track a key

    // The replies to the commands that track one key. They may arrive on different threads.
    class Answers {
    public:
        explicit Answers(Completion done) : done_(std::move(done)) {}

        void take(std::size_t which, Reply reply) {
            replies_[which] = std::move(reply);
            if (missing_.fetch_sub(1) != 1) return;
            for (Reply& reply_to_client : std::array<std::reference_wrapper<Reply>, 2>{replies_[0], replies_[1]})
                if (reply_to_client.is_error() || !reply_to_client.answered())
                    return done_(is_for_now(reply_to_client) ? Reply::of(Reply::Kind::not_sent, reply_to_client.text)
                                                             : std::move(reply_to_client));
            done_(std::move(replies_[2]));
        }

    private:
        // The subscriber is gone, which the listener hears soon.
        static bool is_for_now(const Reply& reply) {
            return reply.is_error() && reply.text.find("redirect to does not exist") != std::string::npos;
        }

        const Completion done_;
        std::array<Reply, size> replies_;
        std::atomic<std::size_t> missing_{size};
    };

    // Sits between the subscription and the listener.
    struct News final : Listener {
        News(KeyTracker& t, Listener& l) : tracker(t), listener(l) {}

        void subscribed(const std::string&) override { listener.invalidated({}); }
        void refused(const std::string&, const Reply& why) override { tracker.refused(why); }
        void message(const std::string&, std::string_view key) override { listener.invalidated(std::string(key)); }
        void disconnected() override { listener.invalidated({}); }

        KeyTracker& tracker;
        Listener& listener;
    };

    // Subscribes, the first time. Returns why that is useless, if it is.
    std::optional<Reply> want() {
        {
            const std::lock_guard lock(mutex_);
            if (refusal_ || wanted_) return refusal_;
            wanted_ = true;
        }
        try {
            invalidations_.subscribe(channel_);
        } catch (...) {  // no memory: the next key subscribes
            const std::lock_guard lock(mutex_);
            wanted_ = false;
            throw;
        }
        wake_();
        return std::nullopt;
    }

    void refused(const Reply& why) {
        {
            const std::lock_guard lock(mutex_);
            wanted_ = false;  // a temporary refusal: the next key subscribes again
            if (classify(why) != ReplyClass::refused_now) refusal_ = why;
        }
        invalidations_.unsubscribe(channel_);
    }

    const std::string channel_ = "__redis__:invalidate";
    const std::function<void()> wake_;
    std::mutex mutex_;
    bool wanted_ = false;
    std::optional<Reply> refusal_;
    std::uint64_t ended_ = 0;  // how many connections of the reader have ended, as far as the listener knows
    CommandConnection reader_;
    PubSubConnection invalidations_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
