// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/adaptive_spin.hpp"
#include "redlatch/base/backoff.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/net/side_work.hpp"
#include "redlatch/net/thread_parker.hpp"
#include "redlatch/redis/connection.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Carries the commands of many threads over one connection, without a thread of its own.
//
// A calling thread appends its command to a shared buffer. If no thread is writing, it writes for all, as far as the
// connection has room. If no thread is reading, it reads for all, hands each reply to its owner, and passes the reader
// role on when its own reply has come. Bytes that found no room are written by the reader, or by a caller that waits
// for room while another thread reads, until its own deadline. `need_driver` is called when only posted commands are
// left, or when no thread will write the unwritten bytes. Some thread must then call drive().
//
// mutex_ guards everything below it, except the connection. The writing half of the connection belongs to the thread
// that set writing_, the reading half to the one that set reading_, and all of it to the one that set opening_.
// changed_ wakes threads in open(): a connection came up, an attempt failed, or a failed connection is closed.
// A thread in await() parks in its Exchange. It is woken by the reader when its replies have come, by a leaving reader
// that passes the role on, and by the thread that finds that the connection has failed.
class CommandConnection {
public:
    // Whether a call tries to connect until its deadline, or returns after one failed attempt, because its command may
    // belong to another node by now.
    enum class Connecting { until_deadline, one_attempt };

    // `url` is for error texts only. `has_substitute` returns whether another connection to the same server is up.
    // `answers` is called, on any thread, when a connection has received its first reply.
    CommandConnection(const Url& url, Opener open, Milliseconds timeout, std::function<void()> need_driver,
                      Connecting connecting = Connecting::until_deadline,
                      std::function<bool()> has_substitute = nullptr, std::function<void()> answers = nullptr)
        : url_(url),
          opener_(std::move(open)),
          timeout_(timeout),
          need_driver_(std::move(need_driver)),
          connecting_(connecting),
          has_substitute_(std::move(has_substitute)),
          answers_(std::move(answers)) {}

    bool is_connected() const noexcept { return connected_.load(std::memory_order_acquire); }

    // Returns true if no reply is outstanding and no attempt to connect is under way.
    bool is_idle() {
        const std::lock_guard lock(mutex_);
        return in_flight() == 0 && !opening_;
    }

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
        auto completion = std::make_unique<Completion>(std::move(done));
        std::unique_lock lock(mutex_);
        leave_if_stale(lock);
        // If memory runs out from here on, nothing has changed.
        make_room(1);
        append({&command, 1});
        slots_.push_back({nullptr, std::move(completion), Clock::now() + timeout_});
        send_posted(lock, attended);
    }

    // Posts several commands on one connection.
    void post_all(std::span<const Command> commands, std::span<Completion> done) {
        std::vector<std::unique_ptr<Completion>> completions;
        for (Completion& one : done) completions.push_back(std::make_unique<Completion>(std::move(one)));
        std::unique_lock lock(mutex_);
        leave_if_stale(lock);
        make_room(commands.size());
        append(commands);
        for (auto& one : completions) slots_.push_back({nullptr, std::move(one), Clock::now() + timeout_});
        send_posted(lock, false);
    }

    // Receives the bytes that have arrived, without waiting.
    void attend() {
        std::unique_lock lock(mutex_);
        if (in_flight() == 0 || reading_ || !connected_) return;
        reading_ = true;
        read_once(lock, false, {});
        stop_reading(lock, false);
        // The poster calls attend() again. Other posters do not, nor does a driver that found this thread reading: they
        // need the driver. Without a connection the driver has been called.
        if (connected_ && in_flight() > 0 && !call_reader() && std::exchange(reader_left_work_, false))
            call_driver(lock);
    }

    // --- for the driver ---------------------------------------------------------------------------------------

    // What the driver must watch: the descriptor (or -1), its events, and the time at which to call drive() anyway.
    struct Watch {
        int fd = -1;
        short events = 0;
        Instant due = never;
    };

    Watch watch() {
        const std::lock_guard lock(mutex_);
        if (in_flight() == 0) return {};
        if (reading_) reader_left_work_ = true;
        if (!connected_) return {-1, 0, opening_ || reading_ ? front().due : std::min(front().due, next_attempt_)};
        const int events = (reading_ ? 0 : POLLIN) | (needs_writer() ? POLLOUT : 0);
        return {events != 0 ? link_.socket.fd() : -1, static_cast<short>(events), reading_ ? never : front().due};
    }

    // Starts to connect if posted commands need a connection (until the deadline at most), writes and reads what is
    // possible, and fails overdue commands. Does not wait.
    void drive(Instant deadline) {
        std::unique_lock lock(mutex_);
        if (connected_ && needs_writer()) flush(lock);
        if (in_flight() == 0 || reading_) return;
        if (!connected_) {
            const Instant now = Clock::now();
            if (!opening_ && !writing_ && now >= next_attempt_) open_aside(lock, std::min(deadline, now + timeout_));
        } else {
            reading_ = true;
            read_once(lock, false, Clock::now());
            reading_ = false;
            close_if_failed(lock);
            if (connected_) call_reader();
        }
        if (in_flight() > 0 && Clock::now() >= front().due) give_up(lock);
    }

    // If the posted commands have no connection for now, moves them to another one that is connected. Does nothing if
    // that is this one: another thread may have connected it since the caller looked.
    void hand_over_to(CommandConnection& other) {
        if (&other == this) return;
        std::unique_lock mine(mutex_, std::defer_lock), others(other.mutex_, std::defer_lock);
        std::lock(mine, others);
        const bool waits = in_flight() > 0 && !connected_ && !opening_ && !broken_ && Clock::now() < next_attempt_;
        if (!waits || !other.connected_) return;
        other.make_room(in_flight());
        other.out_ += out_;
        std::move(slots_.begin() + static_cast<std::ptrdiff_t>(head_), slots_.end(), std::back_inserter(other.slots_));
        slots_.clear();
        head_ = 0;
        out_.clear();
        mine.unlock();
        other.send_posted(others, false);
    }

    // Called when the server has moved. Ends a connection to an earlier place than this one and allows a new attempt
    // without a pause.
    void leave_before(std::uint64_t place) {
        std::unique_lock lock(mutex_);
        place_ = place;
        link_.abandoned = true;
        if (connected_ && link_.place < place) fail(lock, Reply::Kind::unanswered, "another server is the master now");
        next_attempt_ = {};
        backoff_.reset();
        changed_.notify_all();
    }

    // Called when another connection has shown that the server is up: ends the pause before the next attempt. Returns
    // true if there was a pause; the driver may have to know.
    bool try_again() noexcept {
        const std::lock_guard lock(mutex_);
        if (connected_ || next_attempt_ <= Clock::now()) return false;
        next_attempt_ = {};
        changed_.notify_all();
        return true;
    }

    // Called when this server gets no more commands. Ends the connection; threads that wait for one route their
    // commands elsewhere.
    void turn_away() {
        std::unique_lock lock(mutex_);
        link_.abandoned = true;
        if (connected_) fail(lock, Reply::Kind::unanswered, "another server does its work now");
        why_not_ = in_words(Reply::Kind::not_sent, "", " is not the server for it any more");
        ++failures_;
        answer_all(lock, Reply::Kind::not_sent, copy_of(why_not_));
    }

    // Called at the end, when no thread uses the object any more: drops the outstanding commands and what they keep
    // alive.
    void forget_posted() noexcept {
        opening_aside_.finish();
        const std::vector<Slot> posted = std::move(slots_);
    }

    // Returns true while a side thread may call the opener.
    bool is_opening_aside() const noexcept { return opening_aside_.is_busy(); }

    // ----------------------------------------------------------------------------------------------------------

    // Returns how many connections were made.
    std::uint64_t connections() const noexcept { return connections_.load(std::memory_order_acquire); }

    // In the child after a fork: closes the descriptor and touches nothing else.
    void close_inherited() noexcept { link_.socket.close_inherited(); }

private:
    // The state of a thread in call_into(), on its stack. Its parker gets final_word when the replies are complete; no
    // other thread touches the exchange after that.
    struct Exchange {
        Exchange(Reply* where, std::size_t expected) : replies(where), missing(expected) {}

        bool done() const noexcept { return parker.word() == ThreadParker::final_word; }

        Reply* replies;
        std::size_t missing;
        std::size_t got = 0;
        ThreadParker parker;
    };

    // A reply that is outstanding. If both exchange and done are null, its thread has given up.
    struct Slot {
        Exchange* exchange;
        std::unique_ptr<Completion> done;
        Instant due;
    };

    void call_into(std::span<const Command> commands, Reply* replies, Instant deadline, bool* refused) {
        if (commands.empty()) return;
        Exchange exchange(replies, commands.size());
        std::unique_lock lock(mutex_);
        if (auto refusal = open(lock, deadline)) {
            if (refused) *refused = true;
            std::fill_n(replies, commands.size(), *refusal);
            return;
        }
        make_room(commands.size());
        append(commands);
        const Instant due = Clock::now() + timeout_;
        for (std::size_t i = 0; i < commands.size(); ++i) slots_.push_back({&exchange, nullptr, due});
        flush(lock);
        await(lock, exchange, deadline);
    }

    void send_posted(std::unique_lock<std::mutex>& lock, bool attended) {
        if (connected_) flush(lock);
        // The reading thread, if there is one, handles the reply. Otherwise, or without a connection, the driver does.
        if (reading_ && !attended) reader_left_work_ = true;
        if ((!reading_ && !attended) || !connected_ || needs_writer()) call_driver(lock);
    }

    // --- the connection ---------------------------------------------------------------------------------------

    // Waits until there is a connection or the deadline passes. One thread connects, with back-off; the others wait.
    std::optional<Reply> open(std::unique_lock<std::mutex>& lock, Instant deadline) {
        leave_if_stale(lock);
        const std::uint64_t failures = failures_;
        while (!connected_) {
            const Instant now = Clock::now();
            const bool substituted = has_substitute_ && has_substitute_();
            const bool has_failed = failures_ != failures;
            if (connecting_ == Connecting::one_attempt && has_failed) return copy_of(why_not_);
            if (now >= deadline) return why_not();
            if (substituted && has_failed) return copy_of(why_not_);
            const Milliseconds patience = substituted ? timeout_ / 8 : timeout_;
            if (opening_ || reading_ || writing_) {
                wait_on(changed_, lock, std::min(deadline, now + patience));
                if (substituted && now + patience < deadline && Clock::now() >= now + patience)
                    return copy_of(why_not_);
            } else if (now < next_attempt_) {
                if (substituted) return copy_of(why_not_);
                wait_on(changed_, lock, std::min(next_attempt_, deadline));
            } else if (auto refusal = attempt_open(lock, std::min(deadline, now + patience))) {
                // The driver does not connect while this thread does: let it schedule the next attempt.
                if (in_flight() > 0) call_driver(lock);
                // The server itself refuses: a retry with the same credentials is useless.
                if (refusal->kind != Reply::Kind::not_sent) return refusal;
            }
        }
        return std::nullopt;
    }

    // An idle connection has nothing to read. If it has, it was closed, or the next bytes would be taken for the reply
    // to our command.
    void leave_if_stale(std::unique_lock<std::mutex>& lock) {
        if (!connected_ || in_flight() > 0 || reading_ || writing_ || !link_.socket.has_news()) return;
        fail(lock, Reply::Kind::unanswered, "closed while idle, or an answer that nobody asked for");
        next_attempt_ = {};
    }

    // Returns why there is no connection at the deadline of a caller: no_time unless an attempt failed for another
    // reason than a short deadline.
    Reply why_not() const {
        if (attempt_failed_) return why_not_;
        return Reply::of(Reply::Kind::no_time, why_not_.text);
    }

    std::optional<Reply> attempt_open(std::unique_lock<std::mutex>& lock, Instant deadline) {
        opening_ = true;
        link_.abandoned = false;
        const Instant begun = Clock::now();
        lock.unlock();
        std::optional<Reply> refusal = open_link(deadline);
        lock.lock();
        opening_ = false;
        if (!refusal && link_.place < place_) {
            link_.socket.close();
            refusal = in_words(Reply::Kind::not_sent, "", " has moved");
        }
        connected_ = !refusal;
        if (connected_) {
            connections_.fetch_add(1, std::memory_order_release);
            backoff_.reset();
            proven_ = false;
            attempt_failed_ = false;
            next_attempt_ = {};
            // Posted commands that waited for the connection get the full time-out from now on.
            for (Slot& slot : slots_) slot.due = Clock::now() + timeout_;
        } else {
            attempt_failed_ = !link_.abandoned && (Clock::now() < deadline || deadline >= begun + timeout_);
            answer(why_not_, *refusal, refusal->kind);
            ++failures_;
            next_attempt_ = Clock::now() + backoff_.next();
        }
        changed_.notify_all();
        return refusal;
    }

    // Connects on a side thread, because the driver must not wait.
    void open_aside(std::unique_lock<std::mutex>& lock, Instant deadline) noexcept {
        opening_ = true;
        lock.unlock();
        const bool begun = opening_aside_.begin([this, deadline] {
            {
                std::unique_lock mine(mutex_);
                attempt_open(mine, deadline);
                if (connected_) flush(mine);
            }
            need_driver_();
        });
        lock.lock();
        if (begun) return;
        opening_ = false;
        next_attempt_ = Clock::now() + backoff_.next();
        changed_.notify_all();
    }

    std::optional<Reply> open_link(Instant deadline) noexcept {
        try {
            auto refusal = opener_(link_, deadline);
            if (!refusal) link_.socket.set_receive_timeout(timeout_);
            return refusal;
        } catch (...) {  // no memory, or no thread for the look-up
            link_.socket.close();
            return Reply::of(Reply::Kind::not_sent, no_memory);
        }
    }

    // Short enough to need no allocation.
    static constexpr const char* no_memory = "out of memory";

    // Copies a reply. If there is no memory, the copy has the text no_memory.
    static void answer(Reply& to, const Reply& from, Reply::Kind kind) noexcept {
        try {
            to = from;
        } catch (...) {
            to = Reply::of(kind, no_memory);
        }
        to.kind = kind;
    }

    static Reply copy_of(const Reply& reply) noexcept {
        Reply copy;
        answer(copy, reply, reply.kind);
        return copy;
    }

    Reply in_words(Reply::Kind kind, const char* before, const char* after, const char* why = "") const noexcept {
        try {
            return Reply::of(kind, before + url_.display() + after + why);
        } catch (...) {
            return Reply::of(kind, no_memory);
        }
    }

    // Ends the connection: answers everything outstanding, and resets the connection as soon as no thread is inside a
    // read or write.
    void fail(std::unique_lock<std::mutex>& lock, Reply::Kind first, const char* why) noexcept {
        if (!connected_) return;
        connected_ = false;
        why_not_ = in_words(Reply::Kind::not_sent, "the connection to ", " is closed: ", why);
        link_.socket.fail(writing_);
        broken_ = true;
        // If a server accepts connections only to close them, retry with pauses. They are short, because this may be
        // chance.
        if (!proven_) {
            attempt_failed_ = true;
            next_attempt_ = Clock::now() + closed_backoff_.next();
        }
        close_if_unused();
        answer_all(lock, first, in_words(Reply::Kind::unanswered, "the connection to ", " ended: ", why));
    }

    // Fails the outstanding commands, which are overdue.
    void give_up(std::unique_lock<std::mutex>& lock) noexcept {
        if (connected_)
            fail(lock, Reply::Kind::unanswered, "no answer in time");
        else
            answer_all(lock, Reply::Kind::not_sent, copy_of(why_not_));
    }

    void answer_all(std::unique_lock<std::mutex>& lock, Reply::Kind first, const Reply& reply) noexcept {
        const std::vector<Slot> slots = std::move(slots_);
        const std::size_t begin = std::exchange(head_, 0);
        slots_.clear();
        out_.clear();
        bool any_posted = false;
        for (std::size_t i = begin; i < slots.size(); ++i) {
            any_posted = any_posted || slots[i].done;
            if (Exchange* exchange = slots[i].exchange) {
                answer(exchange->replies[exchange->got++], reply, i == begin ? first : reply.kind);
                if (--exchange->missing == 0) exchange->parker.tell(ThreadParker::final_word);
            }
        }
        changed_.notify_all();
        if (!any_posted) return;
        lock.unlock();
        for (std::size_t i = begin; i < slots.size(); ++i) {
            if (!slots[i].done) continue;
            Reply one;
            answer(one, reply, i == begin ? first : reply.kind);
            complete(*slots[i].done, std::move(one));
        }
        lock.lock();
    }

    // Completions handle their own errors. If one throws for lack of memory, there is no caller to report to.
    static void complete(const Completion& done, Reply reply) noexcept {
        try {
            done(std::move(reply));
        } catch (...) {
        }
    }

    // Returns true if it has closed a failed connection.
    bool close_if_unused() noexcept {
        if (!broken_ || reading_ || writing_) return false;
        broken_ = false;
        link_.socket.close();
        full_ = false;
        sending_.clear();
        changed_.notify_all();
        return true;
    }

    // Called by a thread that has cleared reading_ or writing_. Commands posted meanwhile are left to the driver, which
    // could not connect before the connection was closed.
    void close_if_failed(std::unique_lock<std::mutex>& lock) {
        if (!close_if_unused()) return;
        if (in_flight() > 0) call_driver(lock);
    }

    // --- writing ----------------------------------------------------------------------------------------------

    // Writes as far as the connection has room, without waiting.
    void flush(std::unique_lock<std::mutex>& lock) {
        // The writer looks again before it leaves. A reader that is handing out replies will write for the threads that
        // it wakes. So many commands share one write, and one read of the server, which makes many threads fast.
        if (writing_ || delivering_) return;
        writing_ = true;
        while (connected_ && (full_ || !out_.empty())) {
            // A partial write continues where it stopped.
            if (!full_) {
                std::swap(out_, sending_);
                unsent_ = sending_;
            }
            lock.unlock();
            const Socket::Sent sent = link_.socket.send_some(unsent_);
            lock.lock();
            full_ = sent == Socket::Sent::some;
            if (full_) break;
            sending_.clear();
            if (sent == Socket::Sent::failed) fail(lock, Reply::Kind::unanswered, "a write failed");
        }
        writing_ = false;
        close_if_failed(lock);
    }

    // Returns true if bytes found no room and no thread waits for room.
    bool needs_writer() const { return full_ && !writing_; }

    void wait_for_room(std::unique_lock<std::mutex>& lock, Instant deadline) {
        writing_ = true;
        lock.unlock();
        link_.socket.wait(POLLOUT, deadline);
        lock.lock();
        writing_ = false;
        flush(lock);
    }

    // --- reading ----------------------------------------------------------------------------------------------

    void await(std::unique_lock<std::mutex>& lock, Exchange& exchange, Instant deadline) {
        while (!exchange.done()) {
            if (!is_in_flight(exchange)) {
                // The reader has dequeued this exchange and is handing over its replies.
                lock.unlock();
                while (exchange.parker.park(never) != ThreadParker::final_word) {
                }
                return;
            }
            const Instant now = Clock::now();
            if (now + Milliseconds(1) >= front().due) {
                fail(lock, Reply::Kind::unanswered, "no answer in time");
            } else if (now >= deadline) {
                // Only the deadline of this thread has passed: the connection is sound. The reply is dropped when it
                // arrives.
                abandon(exchange);
                if ((needs_writer() || (!reading_ && in_flight() > 0)) && !call_reader()) call_driver(lock);
            } else if (reading_ && needs_writer()) {
                wait_for_room(lock, std::min(deadline, front().due));
            } else if (reading_) {
                lock.unlock();
                brief_wait_.until(deadline, [&] { return exchange.parker.word() != ThreadParker::silence; });
                if (exchange.parker.park(deadline) == ThreadParker::final_word) return;
                lock.lock();
            } else {
                reading_ = true;
                reader_ = &exchange;
                // If this thread is alone and its deadline is the connection's own, it needs no poll(): the socket has
                // that time-out.
                const bool alone =
                    in_flight() == exchange.missing && !full_ && deadline + Milliseconds(1) >= front().due;
                read_once(lock, alone, std::min(deadline, front().due));
                reader_ = nullptr;
                stop_reading(lock, exchange.done());
            }
        }
    }

    bool is_in_flight(const Exchange& exchange) const {
        for (std::size_t i = slots_.size(); i > head_; --i)
            if (slots_[i - 1].exchange == &exchange) return true;
        return false;
    }

    // Keeps the slots, so that later replies still find their owners.
    void abandon(Exchange& exchange) noexcept {
        for (std::size_t i = head_; i < slots_.size(); ++i)
            if (slots_[i].exchange == &exchange) slots_[i].exchange = nullptr;
        while (exchange.missing > 0) {
            exchange.replies[exchange.got++] = in_words(Reply::Kind::unanswered, "", " did not answer in time");
            --exchange.missing;
        }
        exchange.parker.tell(ThreadParker::final_word);
    }

    // True `leaving`: this thread needs no more replies, so another one must read.
    void stop_reading(std::unique_lock<std::mutex>& lock, bool leaving) {
        reading_ = false;
        if (!connected_)
            close_if_failed(lock);
        else if (leaving && in_flight() > 0 && !call_reader())
            call_driver(lock);
    }

    // Wakes a thread that waits for a reply, to read or write. The one that sent last is the best choice: until its own
    // reply comes it reads the replies of all others, and until its own command is out it writes theirs.
    bool call_reader() {
        for (std::size_t i = slots_.size(); i > head_; --i) {
            Exchange* const exchange = slots_[i - 1].exchange;
            if (!exchange || exchange == reader_) continue;
            exchange->parker.tell(ThreadParker::look);
            return true;
        }
        return false;
    }

    void call_driver(std::unique_lock<std::mutex>& lock) {
        lock.unlock();
        need_driver_();
        lock.lock();
    }

    // Reads the bytes that have arrived, waiting for them until the deadline, and hands out the replies. If there was
    // no room for writing, waits for room too: a thread that waits for room beside the reader may leave when it gets
    // its reply from here. True `blocking`: waits in one system call; only a thread that has no other thread to serve
    // may do so.
    void read_once(std::unique_lock<std::mutex>& lock, bool blocking, Instant deadline) noexcept {
        const short events = full_ ? POLLIN | POLLOUT : POLLIN;
        lock.unlock();
        batch_.clear();
        std::array<char, TlsSession::full_room> bytes;
        const auto receive = [&](bool sleeping) { return link_.socket.receive(bytes.data(), bytes.size(), sleeping); };
        ssize_t got = receive(false);
        if (got == 0 && Clock::now() < deadline &&
            !brief_wait_.reply_came(deadline, [&] { return (got = receive(false)) != 0; }) &&
            (blocking || link_.socket.wait(events, deadline)))
            got = receive(blocking);
        const Parsed parsed = got > 0 ? parse(bytes.data(), static_cast<std::size_t>(got)) : Parsed::well;
        lock.lock();
        if (needs_writer()) flush(lock);
        if (!connected_) return;

        std::size_t taken = 0;
        for (; taken < batch_.size() && in_flight() > 0; ++taken) {
            Slot slot = std::move(slots_[head_]);
            pop();
            if (Exchange* exchange = slot.exchange) {
                exchange->replies[exchange->got++] = std::move(batch_[taken]);
                if (--exchange->missing == 0) finished_.push_back(exchange);
            } else if (slot.done) {
                completions_.emplace_back(std::move(*slot.done), std::move(batch_[taken]));
            }
        }
        const bool is_first = taken > 0 && !std::exchange(proven_, true);
        if (is_first) closed_backoff_.reset();
        const bool unasked = taken < batch_.size();
        // Wake without the mutex: a woken thread would block on it at once.
        delivering_ = finished_.size() > 1;
        lock.unlock();
        for (Exchange* exchange : finished_) exchange->parker.tell(ThreadParker::final_word);
        // The woken threads may have their next command ready in a moment.
        if (finished_.size() > 1) std::this_thread::yield();
        finished_.clear();
        for (auto& [done, reply] : completions_) complete(done, std::move(reply));
        completions_.clear();
        if (is_first && answers_) answers_();
        lock.lock();
        if (std::exchange(delivering_, false) && !out_.empty()) flush(lock);
        if (parsed == Parsed::malformed)
            fail(lock, Reply::Kind::malformed, "the answer is not Redis protocol, or too large");
        else if (parsed == Parsed::no_memory)
            fail(lock, Reply::Kind::unanswered, no_memory);
        else if (unasked)
            fail(lock, Reply::Kind::unanswered, "an answer came that nobody asked for");
        else if (got < 0)
            fail(lock, Reply::Kind::unanswered, "closed by the other side");
    }

    enum class Parsed { well, malformed, no_memory };

    // Puts the replies from the received bytes into batch_, and reserves room for handing them out.
    Parsed parse(const char* bytes, std::size_t size) noexcept try {
        if (!link_.reader.feed(bytes, size)) return Parsed::malformed;
        for (;;) {
            Reply reply;
            const auto outcome = link_.reader.next(reply);
            if (outcome == ReplyReader::Outcome::malformed) return Parsed::malformed;
            if (outcome == ReplyReader::Outcome::incomplete) break;
            batch_.push_back(std::move(reply));
        }
        finished_.reserve(batch_.size());
        completions_.reserve(batch_.size());
        return Parsed::well;
    } catch (...) {
        batch_.clear();
        return Parsed::no_memory;
    }

    // --- the queue of replies to come -------------------------------------------------------------------------

    std::size_t in_flight() const { return slots_.size() - head_; }
    Slot& front() { return slots_[head_]; }

    // Appends whole commands or nothing: a partial one would corrupt all that follow.
    void append(std::span<const Command> commands) {
        const std::size_t before = out_.size();
        try {
            for (const Command& command : commands) append_command(out_, command);
        } catch (...) {
            out_.resize(before);
            throw;
        }
    }

    // After this, pushing that many slots allocates nothing.
    void make_room(std::size_t more) {
        const std::size_t wanted = slots_.size() + more;
        if (wanted > slots_.capacity()) slots_.reserve(std::max(wanted, slots_.capacity() * 2));
    }

    // A vector with a moving head instead of a deque: once large enough, it allocates nothing.
    void pop() {
        if (++head_ == slots_.size()) {
            slots_.clear();
            head_ = 0;
        } else if (head_ >= 64 && head_ * 2 >= slots_.size()) {
            slots_.erase(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(head_));
            head_ = 0;
        }
    }

    const Url url_;
    const Opener opener_;
    const Milliseconds timeout_;
    const std::function<void()> need_driver_;
    const Connecting connecting_;
    const std::function<bool()> has_substitute_;
    const std::function<void()> answers_;

    std::mutex mutex_;
    std::condition_variable changed_;
    Connection link_;
    AdaptiveSpin<> brief_wait_;
    // Used by the reader only: the replies it read, the exchanges to wake and the completions to call.
    std::vector<Reply> batch_;
    std::vector<Exchange*> finished_;
    std::vector<std::pair<Completion, Reply>> completions_;
    std::string out_;          // commands to be written
    std::string sending_;      // commands being written; used by the writer only
    std::string_view unsent_;  // the unwritten rest of sending_, likewise
    std::vector<Slot> slots_;
    std::size_t head_ = 0;
    std::atomic<bool> connected_{false};
    bool broken_ = false;          // it has failed and must still be closed
    bool proven_ = false;          // this connection has received a reply
    bool attempt_failed_ = false;  // the last attempt failed, and not for lack of time
    bool opening_ = false;
    bool writing_ = false;
    bool full_ = false;  // the connection had no room for all of sending_
    bool reading_ = false;
    Exchange* reader_ = nullptr;     // of the reading thread, if that is in await()
    bool reader_left_work_ = false;  // the driver or a poster relies on the present reader
    bool delivering_ = false;        // the reader wakes threads and will flush
    Reply why_not_ = Reply::of(Reply::Kind::not_sent, "there was no time to connect");
    Backoff backoff_{Milliseconds(10), longest_pause};           // after failed attempts
    Backoff closed_backoff_{Milliseconds(1), Milliseconds(50)};  // after connections without any reply
    Instant next_attempt_{};
    std::uint64_t failures_ = 0;  // failed attempts, and calls of turn_away()
    std::uint64_t place_ = 0;     // a connection to an earlier place is at the wrong server
    std::atomic<std::uint64_t> connections_{0};
    SideWork opening_aside_;  // last: it ends before the members it uses
};

}  // namespace v0_1
}  // namespace redlatch
