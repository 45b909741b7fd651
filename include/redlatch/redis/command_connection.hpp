// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/adaptive_spin.hpp"
#include "redlatch/redis/calling_thread.hpp"
#include "redlatch/redis/connection_roles.hpp"
#include "redlatch/redis/pipeline.hpp"
#include "redlatch/redis/reconnector.hpp"
#include "redlatch/redis/reply_receiver.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Carries the commands of many threads over one connection, without a thread of its own.
//
// A calling thread appends its command to a shared buffer. If no thread is writing, it writes for all, as far as the
// connection has room. If no thread is reading, it reads for all, hands each reply to its owner, and passes the reader
// role on when its own reply has come. Bytes that found no room are written by the reader, or by a caller that waits
// for room while another thread reads, until its own deadline. `need_driver` is called when only posted commands are
// left, or when no thread will write the unwritten bytes. Some thread must then call drive().
//
// Pipeline is the queue of commands, and Reconnector opens the connection. This class decides who writes and who reads.
//
// mutex_ guards everything below it, except the connection. The writing half of that belongs to the thread that set
// writing_, the reading half to the one that set reader_, and all of it to a thread that opens it. A thread in await()
// parks in its CallingThread. It is woken by the reader when its replies have come or the role is passed on, and by the
// thread that finds that the connection has failed.
class CommandConnection {
public:
    using Connecting = Reconnector::Connecting;

    // `url` is for error texts only. `has_substitute` returns whether another connection to the same server is up.
    // `answers` is called, on any thread, when a connection has received its first reply.
    CommandConnection(const Url& url, Connector open, Milliseconds timeout, std::function<void()> need_driver,
                      Connecting connecting = Connecting::until_deadline,
                      std::function<bool()> has_substitute = nullptr, std::function<void()> answers = nullptr)
        : timeout_(timeout),
          need_driver_(std::move(need_driver)),
          answers_(std::move(answers)),
          reconnector_(url, std::move(open), timeout, connecting, std::move(has_substitute)) {}

    bool is_connected() const noexcept { return reconnector_.is_open(); }

    // Returns true if no reply is outstanding and no attempt to connect is under way.
    bool is_idle() {
        const std::lock_guard lock(mutex_);
        return pipeline_.in_flight() == 0 && !reconnector_.is_opening();
    }

    // Returns how many connections were made.
    std::uint64_t connections() const noexcept { return reconnector_.connections(); }

    // Sets `refused` if there was no connection and nothing was sent: the replies hold the reason. With a substitute,
    // one failed attempt is enough, which takes at most an eighth of the time-out.
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline, bool* refused = nullptr) {
        std::vector<Reply> replies(commands.size());
        call_into(commands, replies.data(), deadline, refused);
        return replies;
    }

    Reply call(const Command& command, Instant deadline, bool* refused = nullptr) {
        Reply reply;
        call_into({&command, 1}, &reply, deadline, refused);
        return reply;
    }

    // True `attended`: the poster will call attend().
    void post(const Command& command, Completion done, bool attended = false) {
        auto posted = std::make_unique<PostedCommand>(std::move(done));
        post_into({&command, 1}, {&posted, 1}, attended);
    }

    // Posts several commands on one connection.
    void post_all(std::span<const Command> commands, std::span<Completion> done) {
        std::vector<std::unique_ptr<PostedCommand>> posted;
        for (Completion& one : done) posted.push_back(std::make_unique<PostedCommand>(std::move(one)));
        post_into(commands, posted, false);
    }

    // Receives the bytes that have arrived, without waiting.
    void attend() {
        std::unique_lock lock(mutex_);
        if (pipeline_.in_flight() == 0 || is_reading() || !is_connected()) return;
        read(lock, {});
        // This poster comes again. Other posters, and a driver that found this thread reading, need the driver. Without a
        // connection the driver has been called already.
        if (is_connected() && pipeline_.in_flight() > 0 && !call_reader() && std::exchange(reader_left_work_, false))
            call_driver(lock);
    }

    // --- for the driver ---------------------------------------------------------------------------------------

    // Returns when the driver, which is about to sleep, must call drive() again. Writes what has gathered. True
    // `watches_idle`, also of drive(): also when the server closes it while it carries nothing.
    Duty duty(bool watches_idle = false) {
        std::unique_lock lock(mutex_);
        driver_ = Driver::away;
        if (is_connected() && !needs_writer()) flush(lock);
        if (pipeline_.in_flight() == 0) return watches_idle && is_connected() ? Duty{socket().fd(), POLLIN} : Duty{};
        if (is_reading()) reader_left_work_ = true;
        const Instant due = pipeline_.due();
        if (!is_connected()) return {-1, 0, std::min(due, reconnector_.next_attempt())};
        const int events = (is_reading() ? 0 : POLLIN) | (needs_writer() ? POLLOUT : 0);
        if (!is_reading()) driver_ = Driver::watching;
        return {events != 0 ? socket().fd() : -1, static_cast<short>(events), is_reading() ? never : due};
    }

    // Connects, on a side thread, for posted commands (until the deadline at most). Writes and reads what is possible, and
    // fails overdue commands. Does not wait.
    void drive(Instant deadline, bool watches_idle = false) {
        std::unique_lock lock(mutex_);
        driver_ = Driver::awake;
        if (watches_idle) leave_if_stale(lock);
        if (is_connected() && needs_writer()) flush(lock);
        if (pipeline_.in_flight() == 0 || is_reading()) return;
        if (is_connected()) {
            read(lock, Clock::now());
            if (is_connected()) call_reader();
        } else if (const Instant now = Clock::now(); reconnector_.may_begin(now)) {
            reconnector_.open_aside(lock, std::min(deadline, now + timeout_),
                                    [this](auto& locked) { attempted(locked); });
        }
        if (Clock::now() < pipeline_.due()) return;
        if (!is_connected()) return fail_waiting(lock);
        fail(lock, Reply::Kind::unanswered, "the server did not reply in time");
    }

    // If the posted commands have no connection for now, moves them to another one that is connected. Does nothing if
    // that is this one: another thread may have connected it since the caller looked.
    void hand_over_to(CommandConnection& other) {
        if (&other == this) return;
        std::unique_lock mine(mutex_, std::defer_lock), others(other.mutex_, std::defer_lock);
        std::lock(mine, others);
        const bool waits = pipeline_.in_flight() > 0 && reconnector_.has_pause(Clock::now());
        if (!waits || !other.is_connected()) return;
        other.pipeline_.take_over(pipeline_);
        mine.unlock();
        other.send_posted(others, false);
    }

    // Called when the server has moved. Ends a connection to an earlier place than this one and allows a new attempt
    // without a pause.
    void leave_before(std::uint64_t place) {
        std::unique_lock lock(mutex_);
        if (reconnector_.want_place(place)) fail(lock, Reply::Kind::unanswered, "another server is the master now");
        reconnector_.start_over();
    }

    // Called when another connection has shown that the server is up. Returns true if that ends a pause before an attempt.
    bool try_again() noexcept {
        const std::lock_guard lock(mutex_);
        return reconnector_.end_pause();
    }

    // Called when this server gets no more commands: threads that wait for a connection route theirs elsewhere.
    void turn_away() {
        std::unique_lock lock(mutex_);
        reconnector_.abandon();
        // Completions run without the mutex: another thread may connect meanwhile.
        while (is_connected()) fail(lock, Reply::Kind::unanswered, "another server has taken its place");
        reconnector_.refuse(reconnector_.reply(Reply::Kind::not_sent, "", " no longer serves this key"));
        fail_waiting(lock);
    }

    // Called when no thread uses the object any more: drops the outstanding commands and what they keep alive.
    void forget_posted() noexcept {
        reconnector_.finish();
        pipeline_.forget();
    }

    // Returns true while a side thread may call the connector.
    bool is_opening_aside() const noexcept { return reconnector_.is_opening_aside(); }

    // In the child after a fork: closes the descriptor and touches nothing else.
    void close_inherited() noexcept { socket().close_inherited(); }

private:
    Socket& socket() noexcept { return reconnector_.connection().socket; }
    bool is_reading() const noexcept { return reader_ != Reader::none; }

    void call_into(std::span<const Command> commands, Reply* replies, Instant deadline, bool* refused) {
        if (commands.empty()) return;
        CallingThread caller(replies, commands.size(), callers_.place());
        std::unique_lock lock(mutex_);
        if (auto refusal = open(lock, deadline)) {
            if (refused) *refused = true;
            std::fill_n(replies, commands.size(), *refusal);
            return;
        }
        pipeline_.call(commands, caller, Clock::now() + timeout_);
        flush(lock);
        await(lock, caller, deadline);
    }

    void post_into(std::span<const Command> commands, std::span<std::unique_ptr<PostedCommand>> posted, bool attended) {
        std::unique_lock lock(mutex_);
        leave_if_stale(lock);
        pipeline_.post(commands, posted, Clock::now() + timeout_);
        send_posted(lock, attended);
    }

    void send_posted(std::unique_lock<std::mutex>& lock, bool attended) {
        // An awake driver calls duty() before it sleeps, which writes in one go what many coroutines have posted.
        if (driver_ == Driver::awake && !attended && is_connected() && !pipeline_.has_many_waiting()) return;
        if (is_connected() && !pipeline_.is_full())
            flush(lock);  // if it is full, the thread that waits for room writes
        // The reading thread, if there is one, handles the reply. Otherwise the driver does.
        if (is_reading() && !attended) reader_left_work_ = true;
        if ((!is_reading() && !attended && driver_ == Driver::away) || !is_connected() || needs_writer())
            call_driver(lock);
    }

    // --- connecting -------------------------------------------------------------------------------------------

    // Returns why there is no connection when the deadline has passed; nothing if there is one.
    std::optional<Reply> open(std::unique_lock<std::mutex>& lock, Instant deadline) {
        leave_if_stale(lock);
        return reconnector_.open(lock, deadline, [this](auto& locked) { attempted(locked); });
    }

    // Called after each attempt to connect, on the thread that made it.
    void attempted(std::unique_lock<std::mutex>& lock) {
        if (driver_ == Driver::watching) driver_ = Driver::away;  // it watches the descriptor of an earlier connection
        if (is_connected()) {
            // Commands that waited for the connection get the full time-out from now on.
            pipeline_.set_due(Clock::now() + timeout_);
            flush(lock);
        }
        // The driver does nothing while another thread connects: from now on it watches, or schedules the next attempt.
        if (pipeline_.in_flight() > 0) call_driver(lock);
    }

    // An idle connection has nothing to read. If it has, it was closed, or the next bytes would be taken for the reply
    // to our command.
    void leave_if_stale(std::unique_lock<std::mutex>& lock) {
        const bool is_idle = is_connected() && pipeline_.in_flight() == 0 && !is_reading() && !writing_;
        if (!is_idle || !socket().has_news()) return;
        fail(lock, Reply::Kind::unanswered, "the server closed it while it was idle, or sent unexpected data");
        reconnector_.end_pause();
    }

    // --- failing ----------------------------------------------------------------------------------------------

    // Ends the connection, if there is one: answers everything outstanding, and closes the connection as soon as no
    // thread is inside a read or write.
    void fail(std::unique_lock<std::mutex>& lock, Reply::Kind first, const char* why) noexcept {
        if (!is_connected()) return;
        const Reply not_sent = reconnector_.reply(Reply::Kind::not_sent, "the connection to ", " is closed: ", why);
        reconnector_.fail(not_sent, writing_);
        close_if_unused();
        const Reply unanswered = reconnector_.reply(Reply::Kind::unanswered, "the connection to ", " ended: ", why);
        hand_out(lock, pipeline_.fail(first, unanswered, not_sent));
    }

    // Answers the commands that wait for a connection.
    void fail_waiting(std::unique_lock<std::mutex>& lock) noexcept {
        const Reply why = reconnector_.why_not();
        hand_out(lock, pipeline_.fail(Reply::Kind::unanswered, why, why));
    }

    void hand_out(std::unique_lock<std::mutex>& lock, Answered answered) noexcept {
        callers_.call_none();
        callers_.finish(answered);
        if (!answered.has_posted()) return;
        lock.unlock();
        answered.complete_posted();
        lock.lock();
    }

    // Returns true if it has closed a failed connection.
    bool close_if_unused() noexcept {
        if (is_reading() || writing_ || !reconnector_.close_if_failed()) return false;
        pipeline_.drop_staged();
        return true;
    }

    // Called by a thread that has left the role of reader or writer. Commands posted meanwhile are left to the driver,
    // which could not connect before the connection was closed.
    void close_if_failed(std::unique_lock<std::mutex>& lock) {
        if (close_if_unused() && pipeline_.in_flight() > 0) call_driver(lock);
    }

    // --- writing ----------------------------------------------------------------------------------------------

    // Writes as far as the connection has room, without waiting.
    void flush(std::unique_lock<std::mutex>& lock) {
        // The writer looks again before it leaves, and a reader that hands out replies writes for those that it wakes.
        // So many commands share one write, and one read of the server, which makes many threads fast.
        if (writing_ || reader_ == Reader::delivering) return;
        writing_ = true;
        Socket::Sent sent = Socket::Sent::all;
        while (sent == Socket::Sent::all && is_connected() && pipeline_.has_bytes()) {
            std::string_view bytes = pipeline_.stage();
            lock.unlock();
            sent = socket().send_some(bytes);
            lock.lock();
            pipeline_.wrote(bytes, sent == Socket::Sent::some);
        }
        if (sent == Socket::Sent::failed) {
            // A server that closes a connection may have said why: that it has no room for one more, for instance.
            if (is_connected() && !is_reading()) read(lock, {});
            fail(lock, Reply::Kind::unanswered, "a write to it failed");
        }
        writing_ = false;
        close_if_failed(lock);
    }

    // Returns true if bytes found no room and no thread waits for room.
    bool needs_writer() const { return pipeline_.is_full() && !writing_; }

    void wait_for_room(std::unique_lock<std::mutex>& lock, Instant deadline) {
        writing_ = true;
        lock.unlock();
        socket().wait(POLLOUT, deadline);
        lock.lock();
        writing_ = false;
        flush(lock);
    }

    // --- waiting for replies ----------------------------------------------------------------------------------

    void await(std::unique_lock<std::mutex>& lock, CallingThread& caller, Instant deadline) {
        while (!caller.is_finished()) {
            callers_.came(caller);
            if (!pipeline_.awaits(caller)) {
                // The reader has dequeued this exchange and is handing over its replies.
                lock.unlock();
                return caller.wait_until_finished();
            }
            const Instant now = Clock::now();
            if (now + Milliseconds(1) >= pipeline_.due()) {
                fail(lock, Reply::Kind::unanswered, "the server did not reply in time");
            } else if (now >= deadline) {
                leave(lock, caller);
            } else if (is_reading() && needs_writer()) {
                wait_for_room(lock, std::min(deadline, pipeline_.due()));
            } else if (const bool reads = is_reading(); reads || callers_.has_called()) {
                const Instant until = reads ? deadline : std::min(deadline, now + CallingThreads::patience);
                lock.unlock();
                if (caller.wait(until)) return;
                lock.lock();
                if (!reads && Clock::now() >= until) callers_.call_none();
            } else {
                read_for_all(lock, caller, deadline);
            }
        }
    }

    // Only this thread's deadline has passed: the connection is sound. The reply is dropped when it arrives.
    void leave(std::unique_lock<std::mutex>& lock, CallingThread& caller) {
        pipeline_.abandon(caller, reconnector_.reply(Reply::Kind::unanswered, "", " did not reply in time"));
        static_cast<void>(caller.finish());  // this thread is awake
        if ((needs_writer() || (!is_reading() && pipeline_.in_flight() > 0)) && !call_reader()) call_driver(lock);
    }

    void read_for_all(std::unique_lock<std::mutex>& lock, CallingThread& caller, Instant deadline) {
        // If this thread is alone and its deadline is the connection's own, it needs no poll(): the socket has that one.
        const bool alone = pipeline_.in_flight() == caller.missing && !pipeline_.is_full() &&
                           deadline + Milliseconds(1) >= pipeline_.due();
        read(lock, std::min(deadline, pipeline_.due()), &caller, alone);
        if (caller.is_finished() && is_connected() && pipeline_.in_flight() > 0 && !call_reader()) call_driver(lock);
    }

    // Wakes a thread that waits for a reply, to read or write. The one that sent last reads the replies of all others until
    // its own comes, and writes their commands until its own is out.
    bool call_reader() { return callers_.call(pipeline_.last_exchange(reading_caller_)); }

    void call_driver(std::unique_lock<std::mutex>& lock) {
        lock.unlock();
        need_driver_();
        lock.lock();
    }

    // --- reading ----------------------------------------------------------------------------------------------

    // Takes the role of the reader: reads the bytes that have arrived, waiting for them until the deadline, and hands out
    // the replies. True `blocking`: see ReplyReceiver.
    void read(std::unique_lock<std::mutex>& lock, Instant deadline, const CallingThread* caller = nullptr,
              bool blocking = false) noexcept {
        reading_caller_ = caller;
        callers_.call_none();
        reader_ = Reader::reading;
        const bool is_full = pipeline_.is_full();
        // See CallingThread::wait(). A thread that waits alone yields all the same: nobody is faster.
        AdaptiveSpin<>* const spin = !caller || pipeline_.in_flight() == caller->missing ? &brief_wait_ : nullptr;
        lock.unlock();
        const auto ending = receiver_.receive(reconnector_.connection(), spin, is_full, blocking, deadline);
        lock.lock();
        if (needs_writer()) flush(lock);
        if (is_connected() && deliver(lock) < receiver_.replies().size())
            fail(lock, Reply::Kind::unanswered, "the server sent a reply that no command requested");
        else if (ending)
            fail(lock, ending->first, ending->why);
        reading_caller_ = nullptr;
        reader_ = Reader::none;
        close_if_failed(lock);
    }

    // Hands out the received replies. Returns how many commands they answered.
    std::size_t deliver(std::unique_lock<std::mutex>& lock) noexcept {
        Answered answered = pipeline_.take(receiver_.replies());
        const bool is_first = answered.replies() > 0 && reconnector_.replied();
        const bool wakes_several = answered.exchanges() > 1;
        // Wake without the mutex: a woken thread would block on it at once.
        if (wakes_several) reader_ = Reader::delivering;
        lock.unlock();
        callers_.finish(answered);
        // The woken threads may have their next command ready in a moment.
        if (wakes_several) std::this_thread::yield();
        answered.complete_posted();
        if (is_first && answers_) answers_();
        lock.lock();
        reader_ = Reader::reading;
        if (wakes_several && pipeline_.has_bytes()) flush(lock);
        return answered.replies();
    }

    const Milliseconds timeout_;
    const std::function<void()> need_driver_;
    const std::function<void()> answers_;

    std::mutex mutex_;
    CallingThreads callers_;  // in await()
    AdaptiveSpin<> brief_wait_;
    ReplyReceiver receiver_;  // used by the reader only
    Pipeline pipeline_;
    Reader reader_ = Reader::none;
    const CallingThread* reading_caller_ = nullptr;  // of the reading thread, if that is in await()
    bool reader_left_work_ = false;                  // the driver or a poster relies on the present reader
    bool writing_ = false;                           // a thread writes, or waits for room
    Driver driver_ = Driver::away;                   // what the driver does with this connection
    Reconnector reconnector_;                        // last: its side thread ends before the members it uses
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
