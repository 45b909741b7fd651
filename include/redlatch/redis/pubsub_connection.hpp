// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/net/side_work.hpp"
#include "redlatch/net/wake_pipe.hpp"
#include "redlatch/redis/connection.hpp"
#include "redlatch/redis/pubsub_requests.hpp"
#include "redlatch/redis/wanted_channels.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Carries all subscriptions over one connection. It is opened when the first channel is wanted. When it is lost, it is
// reopened with back-off and subscribed to everything again.
//
// A connection may fall silent, or far behind, without being closed. Its process would then miss messages, or get them late.
// So this class subscribes to one of its channels again if no reply has come for `ping_interval`, whatever else has arrived.
// The connection counts as lost once a reply is outstanding for `timeout`, or for twice as long if there is something to read
// and a thread watches.
//
// Any thread may subscribe, and wakes the serving thread afterwards. mutex_ guards next_attempt_, opening_ and opening_from_.
// serving_ guards the connection and is held while the listener is notified; mutex_ may be taken under it. While opening_ is
// set, the connection belongs to the thread that makes it, which wakes the serving thread.
//
// The serving thread sends. It also receives, unless a thread that waits for a message watches the connection itself,
// which saves passing the message from thread to thread. Such a thread receives for all until it is interrupted.
class PubSubConnection {
public:
    // What is subscribed to.
    enum class Channels {
        classic,
        // Those of one node of a cluster, which may move to another node at any time. They are sharded channels until
        // use_classic(). A channel that is reported to the listener as interrupted() is forgotten here. It must be
        // subscribed again, perhaps elsewhere.
        of_node,
        // The one on which the server names changed keys to connections that redirect this to client_id(). The connection
        // asks for that number before it subscribes. A message is reported once for each key, or with an empty text for
        // all.
        invalidations,
    };

    // `wake` makes the serving thread look at duty() again. `answers` is called when a connection has received its
    // first reply. Both are called on any thread. `ping_interval`: zero for never.
    PubSubConnection(Connector open, Milliseconds timeout, std::function<void()> wake,
                     Channels channels = Channels::classic, std::function<void()> answers = nullptr,
                     Milliseconds ping_interval = Milliseconds(0))
        : connector_(std::move(open)),
          timeout_(timeout),
          ping_interval_(ping_interval),
          wake_(std::move(wake)),
          is_of_node_(channels == Channels::of_node),
          identifies_(channels == Channels::invalidations),
          answers_(std::move(answers)),
          requests_(is_of_node_) {}

    // --- any thread -------------------------------------------------------------------------------------------

    void subscribe(const std::string& channel) { wanted_.change(channel, true); }
    void unsubscribe(const std::string& channel) { wanted_.change(channel, false); }

    // Returns the number by which the server knows this connection, 0 while its channels are not subscribed. Only of
    // Channels::invalidations.
    std::int64_t client_id() const noexcept { return subscribed_id_; }

    // Unsubscribes without a command to the server, which has dropped the channel by itself.
    void forget(const std::string& channel) noexcept { wanted_.forget(channel); }

    // Called when another connection has shown that the server is up: ends the pause before the next attempt. Returns
    // true if there was a pause; the serving thread must know then.
    bool try_again() noexcept {
        const std::lock_guard lock(mutex_);
        if (opening_ || next_attempt_ <= Clock::now()) return false;
        next_attempt_ = {};
        return true;
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    // Whether the channels of this node are sharded. They may be changed to classic ones before the first subscribe().
    bool is_sharded() const noexcept { return requests_.is_sharded(); }
    void use_classic() noexcept { requests_.use_classic(); }

    // Returns when the serving thread must call serve().
    Duty duty() {
        const std::lock_guard serving(serving_);
        // In this order: a thread that begins to watch sets watched_, and looks at polled_ afterwards. A leaving watcher wakes
        // the serving thread if another thread was turned away.
        polled_ = true;
        if (watched_) polled_ = false;
        const int events = (polled_ ? POLLIN : 0) | (full_ ? POLLOUT : 0);
        if (is_open()) return {events != 0 ? link_.socket.fd() : -1, static_cast<short>(events), check_due()};
        if (watched_) return {};
        const std::lock_guard lock(mutex_);
        return {-1, 0, wanted_.empty() || opening_ ? never : next_attempt_};
    }

    // Starts to connect if it is time to (until the deadline at most), sends the changes of subscriptions, and notifies
    // the listener of all that has arrived. Does not wait.
    void serve(Listener& listener, Instant deadline) {
        const std::lock_guard serving(serving_);
        polled_ = false;
        try {
            if (!is_open()) return reopen(deadline);
            send_changes();
            if (!watched_) receive(listener);
            check(listener);
        } catch (...) {  // no memory: received or unsent data may be lost
            end(listener);
        }
    }

    // Called when the server has moved. Ends a connection of an earlier epoch than this one and allows a new attempt
    // without a pause.
    void leave_before(std::uint64_t epoch, Listener& listener) {
        const std::lock_guard serving(serving_);
        if (is_open() && link_.place < epoch) end(listener);
        const std::lock_guard lock(mutex_);
        if (opening_) opening_from_ = epoch;
        link_.abandoned = true;
        next_attempt_ = {};
        backoff_.reset();
    }

    // --- a waiting thread -------------------------------------------------------------------------------------

    enum class Watch {
        done,   // an interrupt came, or the deadline
        taken,  // another thread watches
        lost,   // no connection to watch, or it needs the serving thread
    };

    // Receives in place of the serving thread, until the deadline passes, or the number of interrupts is no longer
    // `seen`. A thread that finds another one watching is turned away; when that one leaves, the serving thread receives.
    // No message is left unread: a thread that is turned away sets watcher_refused_ and tries once more, and a leaving watcher
    // that finds the flag set wakes the serving thread. With three or more threads another one may have taken the flag. So
    // Background::watch() also wakes the serving thread whenever several channels or keys are in use.
    Watch watch(Listener& listener, Instant deadline, Interrupts& interrupts, std::uint64_t seen) {
        if (watched_.exchange(true)) {
            watcher_refused_ = true;
            if (watched_.exchange(true)) return Watch::taken;
        }
        const Watch outcome = watch_once(listener, deadline, interrupts, seen);
        watched_ = false;
        if (watcher_refused_.exchange(false)) wake_();
        return outcome;
    }

    // ----------------------------------------------------------------------------------------------------------

    void close_inherited() noexcept { link_.socket.close_inherited(); }

    // Called at the end. Afterwards the connector is not called any more.
    void finish() noexcept { opening_aside_.finish(); }
    // Returns true while a side thread may call the connector.
    bool is_opening_aside() const noexcept { return opening_aside_.is_busy(); }

private:
    static constexpr Milliseconds short_wait{1};

    bool is_open() {
        const std::lock_guard lock(mutex_);
        return !opening_ && link_.socket.is_open();
    }

    // The serving thread closes nothing while watched_ is set, so the descriptor stays valid during poll().
    Watch watch_once(Listener& listener, Instant deadline, Interrupts& interrupts, std::uint64_t seen) {
        const Interrupts::At at = identifies_ ? Interrupts::At::invalidations : Interrupts::At::messages;
        std::unique_lock serving(serving_);
        if (!is_open()) return Watch::lost;
        std::array<pollfd, 2> ready{{{link_.socket.fd(), POLLIN, 0}, {interrupts.fd(at), POLLIN, 0}}};
        serving.unlock();
        for (;;) {
            interrupts.begin_poll(at);
            const bool waits = interrupts.count() == seen && Clock::now() < deadline;
            if (waits) poll_alone(ready, deadline);
            interrupts.end_poll(at);
            if (!waits) return Watch::done;
            if (ready[0].revents == 0) continue;
            serving.lock();
            try {
                receive(listener);
            } catch (...) {  // no memory: what was received may be lost
                close(listener);
            }
            if (!link_.socket.is_open()) return Watch::lost;
            serving.unlock();
        }
    }

    // The serving thread may poll the connection still, from before it was watched. Then a message would wake both threads.
    // So a wait that lasts begins with waking the other.
    void poll_alone(std::array<pollfd, 2>& ready, Instant deadline) {
        if (polled_) {
            const Instant soon = Clock::now() + short_wait;
            if (::poll(ready.data(), ready.size(), poll_timeout(std::min(soon, deadline))) != 0 || deadline <= soon)
                return;
            wake_();
        }
        ::poll(ready.data(), ready.size(), poll_timeout(deadline));
    }

    // Ends the connection. It is closed by the watching thread, if there is one, which notices the end.
    void end(Listener& listener) noexcept {
        if (watched_)
            link_.socket.fail();
        else
            close(listener);
    }

    // When the next connection has subscribed, every waiter asks the server, because messages may have been lost.
    void close(Listener& listener) noexcept try { lose(listener); } catch (...) {  // no memory: that notifies the rest
    }

    void reopen(Instant deadline) {
        const Instant now = Clock::now();
        {
            const std::lock_guard lock(mutex_);
            if (opening_ || wanted_.empty() || now < next_attempt_) return;
            opening_ = true;
            link_.abandoned = false;
        }
        out_.clear();
        full_ = false;
        proven_ = false;
        if (!opening_aside_.begin([this, until = std::min(deadline, now + timeout_)] { open(until); })) opened(false);
    }

    // Runs on a side thread.
    void open(Instant deadline) noexcept {
        bool done = false;
        try {
            done = !connector_(link_, deadline);
        } catch (...) {  // no memory
        }
        opened(done);
        wake_();
    }

    void opened(bool done) noexcept {
        const std::lock_guard lock(mutex_);
        opening_ = false;
        const std::uint64_t from = std::exchange(opening_from_, 0);
        const bool has_moved = from != 0 && (!done || link_.place < from);
        if (done && !has_moved && wanted_.want_all()) return backoff_.reset();
        link_.socket.close();
        if (!has_moved) next_attempt_ = Clock::now() + backoff_.next();
    }

    // Returns when the open connection has been without a reply for too long.
    Instant check_due() {
        if (requests_.any()) return std::max(requests_.oldest() + timeout_, look_again_);
        const bool is_asked = ping_interval_ > Milliseconds(0) && !wanted_.empty();
        return is_asked ? deadline_after(answered_at_, ping_interval_) : never;
    }

    // Asks a server that has not replied for too long whether it is still there. If it has been asked already, ends the
    // connection. A thread that watches receives in its own time, perhaps after both were suspended: it gets as much again.
    void check(Listener& listener) {
        const Instant now = Clock::now();
        if (!is_open() || now < check_due()) return;
        if (!requests_.any()) {
            if (const std::string channel = wanted_.any(); !channel.empty()) {
                requests_.append_check(out_, channel, now);
                send();
            }
        } else if (const Instant last = requests_.oldest() + 2 * timeout_;
                   watched_ && now < last && link_.socket.has_news()) {
            look_again_ = std::min(last, now + timeout_ / 8);
        } else {
            end(listener);
        }
    }

    // Sends as far as there is room; the next rounds send the rest.
    void send_changes() {
        const std::vector<ChannelChange> changes = wanted_.take_changes();
        const Instant now = Clock::now();
        // A subscriber may not ask any more.
        if (identifies_ && id_ == 0 && !changes.empty() && changes.front().wanted)
            requests_.append_id_query(out_, changes.front().channel, now);
        requests_.append(out_, changes, now);
        if (!out_.empty() || full_) send();
    }

    void send() {
        std::string_view unsent = out_;
        // receive() sees a failed write as the end of the connection.
        full_ = link_.socket.send_some(unsent) == Socket::Sent::some;
        out_.erase(0, out_.size() - unsent.size());
    }

    void receive(Listener& listener) {
        std::array<char, 16 * 1024> bytes;
        for (;;) {
            const ssize_t got = link_.socket.receive(bytes.data(), bytes.size(), false);
            if (got == 0) return;
            if (got < 0 || !link_.reader.feed(bytes.data(), static_cast<std::size_t>(got))) return lose(listener);
            Reply reply;
            ReplyReader::Outcome outcome;
            while ((outcome = link_.reader.next(reply)) == ReplyReader::Outcome::reply) {
                if (!deliver(listener, reply)) return lose(listener);
                if (!std::exchange(proven_, true) && answers_) answers_();
            }
            if (outcome == ReplyReader::Outcome::malformed) return lose(listener);
            if (static_cast<std::size_t>(got) < bytes.size()) return;
        }
    }

    // Returns false if the reply is none that a subscriber gets.
    bool deliver(Listener& listener, const Reply& reply) {
        if (reply.is_error()) {
            answered_at_ = Clock::now();
            // Errors come in the order of the requests, but do not name the channel.
            const std::vector<std::string> channels = requests_.refuse();
            if (channels.empty()) return false;
            if (channels.front() == PubSubRequests::no_channel) return true;
            if (channels.size() > 1) {
                request_each(channels);
            } else if (!is_of_node_ || wanted_.contains(channels.front())) {
                // A channel that has moved is not wanted here. SUNSUBSCRIBE is refused, too.
                listener.refused(channels.front(), reply);
            }
            return true;
        }
        if (identifies_ && reply.is_integer() && requests_.confirm_id()) {
            answered_at_ = Clock::now();
            id_ = reply.integer;
            return true;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 3) return false;
        const std::string& what = reply.elements[0].text;
        const std::string& channel = reply.elements[1].text;
        if (what == (is_sharded() ? "smessage" : "message")) {
            const Reply& payload = reply.elements[2];
            if (payload.kind != Reply::Kind::array) listener.message(channel, payload.text);
            for (const Reply& key : payload.elements) listener.message(channel, key.text);
        } else if (what == (is_sharded() ? "ssubscribe" : "subscribe")) {
            answered_at_ = Clock::now();
            const bool is_news = requests_.subscribed(channel);
            subscribed_id_ = id_;
            if (is_news) listener.subscribed(channel);
        } else if (is_sharded() && what == "sunsubscribe") {
            if (!requests_.unsubscribed(channel) && wanted_.contains(channel)) {
                forget(channel);
                listener.interrupted(channel);
            }
        } else {
            return !is_sharded() && what == "unsubscribe";
        }
        return true;
    }

    // A command for these channels was refused as a whole. Requests each of them alone, to learn which may not be
    // subscribed.
    void request_each(const std::vector<std::string>& channels) {
        for (const std::string& channel : channels)
            if (wanted_.want_again(channel)) requests_.request_alone(channel);
        wake_();
    }

    void lose(Listener& listener) {
        link_.socket.fail();
        link_.socket.close();
        requests_.clear();
        subscribed_id_ = id_ = 0;
        {
            const std::lock_guard lock(mutex_);
            next_attempt_ = Clock::now() + backoff_.next();
        }
        if (!is_of_node_) return listener.disconnected();
        for (std::string channel = wanted_.any(); !channel.empty(); channel = wanted_.any()) {
            listener.interrupted(channel);
            forget(channel);
        }
    }

    const Connector connector_;
    const Milliseconds timeout_;
    const Milliseconds ping_interval_;
    const std::function<void()> wake_;
    const bool is_of_node_;
    const bool identifies_;
    const std::function<void()> answers_;
    std::mutex serving_;
    std::atomic<bool> watched_{false};
    std::atomic<bool> watcher_refused_{false};  // True if a thread that wanted to watch found another one
    std::atomic<bool> polled_{false};           // True if the serving thread may be in a poll() for what arrives
    Connection link_;
    std::int64_t id_ = 0;  // the server's number of this connection, once it has told
    std::atomic<std::int64_t> subscribed_id_{0};
    WantedChannels wanted_;
    PubSubRequests requests_;
    std::string out_;        // unwritten commands
    bool full_ = false;      // the connection had no room for all of out_
    bool proven_ = false;    // this connection has received a reply
    Instant answered_at_{};  // when the last reply to a request came
    Instant look_again_{};   // when a thread that watches should have received the outstanding one
    Backoff backoff_{Milliseconds(10), longest_pause};

    std::mutex mutex_;
    Instant next_attempt_{};
    bool opening_ = false;
    std::uint64_t opening_from_ = 0;  // an attempt in progress of an earlier epoch reaches the wrong server
    SideWork opening_aside_;          // last: it ends before the members it uses
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
