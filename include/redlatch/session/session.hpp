// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/pause.hpp"
#include "redlatch/base/process.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/base/thread.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/native_commands.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/session/key_holds.hpp"
#include "redlatch/session/losses.hpp"
#include "redlatch/session/lost_levels.hpp"
#include "redlatch/session/notifier.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/session/replica_acks.hpp"
#include "redlatch/session/subscriptions.hpp"
#include "redlatch/session/timers.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Selects the thread that receives the reply to a posted command: the background thread or the posting one. The posting
// thread then calls attend(), and stop_attending() unless everything is answered.
enum class Receiver { background, poster };

// Owns what all primitives of one client share within one process: the transport, the identity, the counters, the
// background thread with its timers and subscriptions, and the local state of every name in use.
//
// The background thread starts with the first hold, wait or posted command. It runs the transport, serves the timers
// and sends renewals. Urgent work at the end of a hold is left to the thread of Losses, which never waits for a server.
//   - mutex_ guards states_. A state's own mutex may be taken while it is held, never the other way round.
//   - key_holds_mutex_ guards key_holds_ and its limit.
//   - background_mutex_ guards the start of the thread.
//   - posts_mutex_ guards posts_; posts_done_ wakes the destructor when none is left.
template <Transport T>
class Session {
public:
    Session(T transport, const ClientOptions& options, const Session* parent = nullptr)
        : options_(options),
          replicas_(options),
          parent_(parent),
          timers_([this] { wake(); }),
          subscriptions_([this](const std::string& channel, bool wanted) { subscribe(channel, wanted); },
                         [this] { wake(); }),
          transport_(std::move(transport)) {}

    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Waits up to command_timeout, but at most longest_farewell, for the replies to posted commands, most likely the
    // release of an unwanted hold. Then waits for the background thread, which a silent server can delay by one
    // command_timeout.
    ~Session() {
        {
            std::unique_lock lock(posts_mutex_);
            const Milliseconds patience = std::min(options_.command_timeout, longest_farewell);
            posts_done_.wait_for(lock, patience, [this] { return posts_ == 0; });
        }
        stopping_ = true;
        transport_.wake();
        if (background_.joinable()) background_.join();
        for (const auto& [_, entry] : states_) entry.state->abandon();
        losses_.end();
    }

    const ClientOptions& options() const noexcept { return options_; }
    const std::string& uuid() const noexcept { return uuid_; }

    // Returns false in a child that was forked after this session was created.
    bool is_of_this_process() const noexcept { return process_ == this_process(); }

    T& transport() noexcept { return transport_; }
    Timers& timers() noexcept { return timers_; }
    Losses& losses() noexcept { return losses_; }
    Subscriptions& subscriptions() noexcept { return subscriptions_; }

    // Returns true if this process was forked from one that used the client. Holds of the parent are then not ours.
    bool is_fork_child() const noexcept { return parent_ != nullptr; }

    // Returns the number of a request that leaves a mark on the server against its own copies. A number is never reused
    // in a session, because a mark outlives the local state that made it.
    std::uint64_t next_request() { return ++last_request_; }

    ProtocolContext protocol_context() noexcept { return {uuid_, options_, native_commands_}; }

    // --- commands ---------------------------------------------------------------------------------------------

    Reply call(const Command& command, Instant deadline) {
        count(commands_);
        return transport_.call(command, deadline);
    }

    // Sends a command whose grant counts only if enough replicas have it. The reply tells whether they do.
    Reply call_granting(const Command& command, Instant deadline) {
        if (!replicas_.are_required()) return call(command, deadline);
        const std::uint32_t route = route_of(command);
        if (replicas_.are_unknown(route)) {
            const std::array<std::string_view, 1> role{"ROLE"};
            replicas_.learn(route, call({role, 0, command.words[command.key]}, deadline));
        }
        const ReplicaAcks::Batch batch(replicas_, command, route);
        count(commands_, batch.commands().size());
        std::vector<Reply> replies = transport_.call_all(batch.commands(), deadline);
        return replicas_.merged(replies, route, batch.wanted);
    }

    // Sends a call and waits for the reply. A script is called by its digest, or by its text if the server does not
    // have it cached. One round trip; two for a script that is new to the server.
    Reply call(const Call& call, Instant deadline) {
        CallWords words(call, publish_command_for(call));
        const auto send = [&](const Command& command) {
            return call.effect == Effect::grants ? call_granting(command, deadline) : this->call(command, deadline);
        };
        Reply reply = send(words.command());
        if (call.script() && classify(reply) == ReplyClass::no_script) reply = send(words.by_text());
        return reply;
    }

    // Sends a command without waiting. `done` is called on any thread.
    void post(const Command& command, Completion done, Receiver receiver = Receiver::background,
              Effect effect = Effect::any) {
        start_background();
        Completion finish = [this, done = std::move(done)](Reply reply) { finish_post(done, std::move(reply)); };
        count(commands_);
        count_post();
        try {
            if (effect == Effect::grants && replicas_.are_required())
                post_granting(command, std::move(finish));
            else
                pass_on(receiver, command, std::move(finish));
        } catch (...) {
            uncount_post();
            throw;
        }
    }

    void post(const Call& call, Completion done, Receiver receiver = Receiver::background) {
        const CallWords words(call, publish_command_for(call));
        if (!call.script()) return post(words.command(), std::move(done), receiver, call.effect);
        // The texts live on the caller's stack, so sending the script itself later needs its own copy of them.
        post(
            words.command(),
            [this, &script = *call.script(), effect = call.effect, kept = words.copy(),
             done = std::move(done)](Reply reply) mutable {
                if (classify(reply) != ReplyClass::no_script) return done(std::move(reply));
                try {
                    std::vector<std::string_view> again(kept.begin(), kept.end());
                    again[0] = "EVAL";
                    again[1] = script.text;
                    post(Command{again, 3}, done, Receiver::background, effect);
                } catch (...) {
                    done(Reply::of(Reply::Kind::not_sent, no_memory));
                }
            },
            receiver, call.effect);
    }

    // Makes the posting thread receive the replies that have arrived.
    void attend() {
        if constexpr (LetsAttend<T>) transport_.attend();
    }

    void stop_attending() {
        if constexpr (LetsAttend<T>) transport_.wake();
    }

    // --- expiry of commands by the server's clock ---------------------------------------------------------------

    // Returns the current time of the server that has this key. Sends one query (one round trip) if the time is not
    // known. Returns nothing, and the reason in `failure`, if there is no reply.
    std::optional<ServerMilliseconds> server_time(std::string_view key, Instant deadline, Reply& failure) {
        const std::uint32_t route = transport_.route(key);
        const Instant asked = Clock::now();
        if (const auto known = clock_.at(route, asked)) return known;
        static constexpr std::array<std::string_view, 1> words{"TIME"};
        failure = call({words, 0, key}, deadline);
        return learn_time(route, asked, failure);
    }

    // Does the same without waiting. `then(time, failure, receiver)` is called at once, or on any thread after the
    // reply. By then the poster may have stopped attending, so the background thread receives what follows.
    template <class Then>
    void with_server_time(std::string_view key, Receiver receiver, Then then) {
        const std::uint32_t route = transport_.route(key);
        const Instant asked = Clock::now();
        if (const auto known = clock_.at(route, asked)) return then(known, Reply{}, receiver);
        static constexpr std::array<std::string_view, 1> words{"TIME"};
        post(
            {words, 0, key},
            [this, route, asked, then = std::move(then)](Reply reply) mutable {
                const auto time = learn_time(route, asked, reply);
                then(time, std::move(reply), Receiver::background);
            },
            receiver);
    }

    // Returns the time until which a renewal is wanted. A renewal must not wait, so an old reading of the clock will
    // do. Without any reading, the renewal is never void.
    ServerMilliseconds wanted_until(std::string_view key) const {
        const auto now = clock_.roughly_at(transport_.route(key), Clock::now());
        return now ? *now + options_.command_timeout.count() : std::numeric_limits<std::int64_t>::max();
    }

    // If the reply to a script sent at `sent` reports that the script arrived too late, learns the server's time from
    // it and returns true.
    bool learn_if_late(std::string_view key, Instant sent, const Reply& reply) {
        const auto now = read_late(reply);
        if (now) clock_.learn(transport_.route(key), sent, Clock::now(), *now);
        return now.has_value();
    }

    RemoteClock& server_clock() noexcept { return clock_; }

    // Returns when a lease that begins now expires by the server's clock, for a command that is wanted `until`. Never
    // later than the server's own result; earlier by clock_error() at most.
    ServerMilliseconds lease_end(ServerMilliseconds until, Milliseconds lease) const {
        return until - options_.command_timeout.count() + lease.count() - clock_error().count();
    }

    // Returns by how much the server's clock may be behind our estimate. The reading has aged since, and the reply took
    // time. Clocks drift by less than one part in a thousand.
    Milliseconds clock_error() const {
        const auto age = std::chrono::duration_cast<Milliseconds>(Clock::now() - clock_.read_at());
        return clock_.uncertainty() + age / 1000 + Milliseconds(2);
    }

    // Sends a command that takes effect only until command_timeout from now, by the server's clock: `send(until)`. One
    // round trip, or two if the server's time is not known. If the reply shows that the server's clock has jumped, the
    // command is sent again, up to three times in all.
    template <class Send>
    Reply call_wanted(std::string_view key, Instant deadline, Send send) {
        for (int tries = 1;; ++tries) {
            Reply failure;
            const auto now = server_time(key, deadline, failure);
            if (!now) return failure;
            const Instant sent = Clock::now();
            Reply reply = send(*now + options_.command_timeout.count());
            if (!learn_if_late(key, sent, reply) || tries == 3 || Clock::now() >= deadline) return reply;
        }
    }

    // Calls `send(deadline of the try, true if an earlier try may have taken effect)` until it is answered or refused
    // for good, until `deadline`, or until `stop` is requested. Each try has command_timeout. With `one_try`, a
    // temporary refusal ends the call, too.
    template <class Send>
    Reply call_with_retry(Instant deadline, const std::stop_token& stop, Send send, bool one_try = false) {
        Backoff backoff(Milliseconds(2), longest_pause);
        bool again = false;
        for (;;) {
            const Instant now = Clock::now();
            Reply reply = or_not_sent([&] { return send(std::min(deadline, now + options_.command_timeout), again); });
            const ReplyClass verdict = classify(reply);
            if (verdict == ReplyClass::answered) {
                on_reconnect();
                return reply;
            }
            // no_script here: the server rejected even the text.
            if (verdict == ReplyClass::refused || verdict == ReplyClass::no_script || stop.stop_requested())
                return reply;
            // The sender has already resent it with the time that the reply reported.
            if (verdict == ReplyClass::late) return reply;
            if (one_try && verdict == ReplyClass::refused_now) return reply;
            if (reply.kind == Reply::Kind::unanswered) again = true;
            // The transport itself waits for its connection; only a temporary refusal by the server needs a pause.
            if (verdict == ReplyClass::refused_now) rest(std::min(deadline, Clock::now() + backoff.next()), stop);
            if (Clock::now() >= deadline) return reply;
            if (verdict == ReplyClass::no_answer) {
                // The next reply may come from another server, or from this one with another clock.
                clock_.doubt();
                on_disconnect();
            }
            count(resends_);
        }
    }

    // The least time for the first query of a call, whatever the caller's deadline: connecting may be slow, and a free
    // lock must not be missed for that.
    static constexpr Milliseconds honest_try{250};

    // Returns true if a call that started at `begun` and ended with this failure shows that no server is there. A
    // server that was given less than its time may only be slow.
    bool is_away(const Reply& reply, Instant begun) const {
        return reply.kind != Reply::Kind::no_time || Clock::now() - begun >= options_.command_timeout;
    }

    // --- the background ---------------------------------------------------------------------------------------

    void start_background() {
        if (background_started_.load(std::memory_order_acquire)) return;
        const std::lock_guard lock(background_mutex_);
        if (background_.joinable()) return;
        background_ = thread_with_signals_blocked([this] { serve(); });
        background_started_.store(true, std::memory_order_release);
    }

    // Makes the calling thread receive messages itself until one has arrived, interrupts() differs from `seen`, or
    // `until` has come. Returns false if it has to leave that to the background thread.
    bool watch(Instant until, std::uint64_t seen) {
        if constexpr (LetsWatch<T>) {
            if (!transport_.watch(listener_, until, seen)) return false;
            if (subscriptions_.has_several_active()) transport_.wake();
            return true;
        }
        return false;
    }

    // Read it before unlocking the mutex under which interrupt_watch() is called.
    std::uint64_t interrupts() {
        if constexpr (LetsWatch<T>) return transport_.interrupts();
        return 0;
    }

    void interrupt_watch() {
        if constexpr (LetsWatch<T>) transport_.interrupt_watch();
    }

    // Notifies the user's handler. Drops the event if memory is short.
    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept {
        if (!options_.on_event) return;
        try {
            notifier_.notify([handler = options_.on_event,
                              event = Event{kind, std::string(name), std::string(detail)}] { handler(event); });
        } catch (...) {
        }
    }

    // Starts everything that reporting a loss needs, so that reporting cannot fail later. Call it before anything is
    // held. Throws std::system_error if no thread can be started.
    void start_losses() {
        if (losses_started_.load(std::memory_order_acquire)) return;
        losses_.start();
        if (options_.on_event) notifier_.start();
        losses_started_.store(true, std::memory_order_release);
    }

    // --- counters ---------------------------------------------------------------------------------------------

    using Counter = std::atomic<std::uint64_t>;
    static void count(Counter& counter, std::uint64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }

    void count_acquisition() { count(acquisitions_); }
    void count_wait() { count(waits_); }
    void count_handoff() { count(handoffs_); }
    void count_renewal() { count(renewals_); }
    void count_lost_hold() { count(lost_holds_); }

    Stats stats() const {
        Stats s{commands_, acquisitions_, waits_, handoffs_, renewals_, lost_holds_, resends_, 0};
        if constexpr (requires { transport_.reconnects(); }) s.reconnects = transport_.reconnects();
        return s;
    }

    // --- state of a key across kinds of lock --------------------------------------------------------------------

    // Returns the record of the threads of this process that hold the key, whatever the kind of lock.
    std::shared_ptr<KeyHolds> key_holds(const std::string& key) {
        const std::lock_guard lock(key_holds_mutex_);
        if (key_holds_.size() >= key_holds_limit_) {
            std::erase_if(key_holds_, [](const auto& entry) { return entry.second.expired(); });
            key_holds_limit_ = std::max<std::size_t>(64, key_holds_.size() * 2);
        }
        std::weak_ptr<KeyHolds>& entry = key_holds_[key];
        auto holds = entry.lock();
        if (!holds) entry = holds = std::make_shared<KeyHolds>();
        return holds;
    }

    LostLevels& lost_levels() noexcept { return lost_levels_; }

    // --- the local state of names -----------------------------------------------------------------------------

    // Returns the state of `key`, which is created if there is none, and counts one more user.
    template <class State>
    State& use_state(const std::string& key) {
        const std::lock_guard lock(mutex_);
        auto entry = states_.find({State::kind, key});
        if (entry == states_.end()) {
            auto state = std::make_shared<State>(*this, key);
            const StateName name{State::kind, state->key()};
            entry = states_.emplace(name, StateEntry{std::move(state)}).first;
        }
        ++entry->second.users;
        return static_cast<State&>(*entry->second.state);
    }

    // Counts one user less. A state without users and holds is removed.
    template <class State>
    void leave_state(State& state) {
        forget_state(state, 1);
    }

    template <class State>
    void forget_if_unused(State& state) {
        forget_state(state, 0);
    }

private:
    static constexpr std::size_t renewals_a_call = 100;
    static constexpr Milliseconds longest_farewell{1000};

    // Reads the reply to TIME. If there is none, nothing was changed, so the command that was to follow counts as not
    // sent.
    std::optional<ServerMilliseconds> learn_time(std::uint32_t route, Instant asked, Reply& reply) {
        const auto time = read_time(reply);
        if (!time) {
            if (classify(reply) == ReplyClass::answered) reply = Reply::of(Reply::Kind::malformed, "TIME gave no time");
            // The command that should have followed was not sent, for want of time. is_away() tells by the elapsed time
            // whether the server was too slow or the caller's deadline too near.
            if (reply.kind == Reply::Kind::unanswered) reply.kind = Reply::Kind::no_time;
            return std::nullopt;
        }
        clock_.learn(route, asked, Clock::now(), *time);
        // Valid even if another thread has put the clock in doubt since.
        return clock_.roughly_at(route, Clock::now());
    }

    // A command that grants something always has a key.
    std::uint32_t route_of(const Command& command) { return transport_.route(command.words[command.key]); }

    void pass_on(Receiver receiver, const Command& command, Completion done) {
        if constexpr (LetsAttend<T>)
            if (receiver == Receiver::poster) return transport_.post_attended(command, std::move(done));
        transport_.post(command, std::move(done));
    }

    void post_granting(const Command& command, Completion done) {
        if constexpr (PostsSeveral<T>) {
            const ReplicaAcks::Batch batch(replicas_, command, route_of(command));
            std::vector<Completion> receivers = replicas_.merging(batch, std::move(done));
            count(commands_, batch.commands().size() - 1);
            transport_.post_all(batch.commands(), receivers);
        }
    }

    void finish_post(const Completion& done, Reply reply) {
        try {
            done(std::move(reply));
        } catch (...) {  // no memory; the poster takes care of that itself
        }
        uncount_post();
    }

    void count_post() {
        const std::lock_guard lock(posts_mutex_);
        ++posts_;
    }

    void uncount_post() {
        const std::lock_guard lock(posts_mutex_);
        if (--posts_ == 0) posts_done_.notify_all();
    }

    static constexpr const char* no_memory = "out of memory";

    // Sleeps until `until`; only briefly if memory is short.
    static void rest(Instant until, const std::stop_token& stop) {
        try {
            redlatch::pause(until, stop);
        } catch (const std::bad_alloc&) {
            std::this_thread::sleep_for(Milliseconds(1));
        }
    }

    // Calls `send`. A command for which memory was short counts as not sent, and is retried like any such command.
    template <class Send>
    static Reply or_not_sent(Send send) {
        try {
            return send();
        } catch (const std::bad_alloc&) {
            std::this_thread::sleep_for(Milliseconds(1));
            return Reply::of(Reply::Kind::not_sent, no_memory);
        }
    }

    // On a cluster this may have to ask a server first, so only calls that publish do.
    std::string_view publish_command_for(const Call& call) {
        return call.publishes() ? std::string_view(transport_.publish_command()) : std::string_view();
    }

    // The words of a call, without an allocation if they are few. The call must outlive them.
    class CallWords {
    public:
        CallWords(const Call& call, std::string_view publish_command)
            : script_(call.script()), key_count_(static_cast<std::int64_t>(call.key_count())) {
            const std::size_t before = script_ ? 3 : 0;
            const std::size_t size = before + call.size();
            if (size > few_.size()) many_.resize(size);
            words_ = size > few_.size() ? std::span(many_) : std::span(few_).first(size);
            if (script_) {
                words_[0] = "EVALSHA";
                words_[1] = script_->digest();
                words_[2] = key_count_;
            }
            for (std::size_t i = 0; i < call.size(); ++i) words_[before + i] = call[i].view(publish_command);
        }
        CallWords(const CallWords&) = delete;
        CallWords& operator=(const CallWords&) = delete;

        Command command() const { return {words_, script_ ? std::size_t{3} : std::size_t{1}}; }

        Command by_text() const {
            words_[0] = "EVAL";
            words_[1] = script_->text;
            return {words_, 3};
        }

        std::vector<std::string> copy() const { return {words_.begin(), words_.end()}; }

    private:
        const Script* const script_;
        const NumberText key_count_;
        std::array<std::string_view, 16> few_;
        std::vector<std::string_view> many_;
        std::span<std::string_view> words_;
    };

    // Kind and key. The text belongs to the state itself, so a lookup allocates nothing.
    using StateName = std::pair<std::string_view, std::string_view>;
    struct StateNameHash {
        std::size_t operator()(const StateName& name) const noexcept {
            return std::hash<std::string_view>()(name.first) * 31 + std::hash<std::string_view>()(name.second);
        }
    };

    struct StateEntry {
        std::shared_ptr<BackgroundTask> state;
        std::size_t users = 0;
    };

    template <class State>
    void forget_state(State& state, std::size_t users_less) {
        std::shared_ptr<BackgroundTask>
            last;  // destroyed after mutex_ is free: a state's destructor takes other mutexes
        const std::lock_guard lock(mutex_);
        const auto entry = states_.find({State::kind, state.key()});
        if (entry == states_.end() || entry->second.state.get() != &state) return;
        entry->second.users -= users_less;
        if (entry->second.users > 0 || !state.is_idle()) return;
        last = std::move(entry->second.state);
        states_.erase(entry);
    }

    // The loop of the background thread.
    void serve() {
        while (!stopping_.load(std::memory_order_acquire)) {
            try {
                transport_.run(listener_, std::min({timers_.sleep_until(), subscriptions_.due(), unfinished_until_}));
                look_after(Clock::now());
            } catch (...) {
                // Out of memory: the tasks left in unfinished_ are served in a moment.
                unfinished_until_ = Clock::now() + Milliseconds(5);
            }
        }
    }

    void look_after(Instant now) {
        std::vector<Renewal> due;
        try {
            tick_due(now, now, due);
            // Include renewals that are due soon. So holds that were acquired at different times are renewed together
            // from then on, a hundred per call.
            if (!due.empty()) tick_due(now, now + options_.watchdog_timeout / 6, due);
        } catch (...) {
            renew(std::move(due));
            throw;
        }
        if (!due.empty()) renew(std::move(due));
        unfinished_until_ = never;
        subscriptions_.sweep(now);
    }

    // Tasks that could not be served for lack of memory stay in unfinished_.
    void tick_due(Instant now, Instant horizon, std::vector<Renewal>& due) {
        if (unfinished_.empty()) unfinished_ = timers_.take_due(horizon);
        for (; !unfinished_.empty(); unfinished_.pop_back()) unfinished_.back()->on_timer(now, horizon, due);
    }

    void renew(std::vector<Renewal> due) {
        // One call can renew holds with the same route, script and lease.
        const auto way = [this](const Renewal& r) {
            return std::tuple(transport_.route(r.key), r.script, r.lease.value_or(options_.watchdog_timeout));
        };
        std::stable_sort(due.begin(), due.end(),
                         [&](const Renewal& a, const Renewal& b) { return std::less<>()(way(a), way(b)); });
        for (std::size_t first = 0; first < due.size();) {
            std::size_t last = first;
            while (last < due.size() && last - first < renewals_a_call && way(due[last]) == way(due[first])) ++last;
            renew_or_try_again(std::span(due).subspan(first, last - first));
            first = last;
        }
    }

    void renew_or_try_again(std::span<const Renewal> batch) {
        try {
            renew_together({batch.begin(), batch.end()});
        } catch (...) {
            for (const Renewal& renewal : batch)
                renewal.of->renewed(renewal, BackgroundTask::Renewed::unknown, Clock::now());
        }
    }

    void renew_together(std::vector<Renewal> batch) {
        Call call(*batch.front().script, {}, {}, Effect::grants);
        for (const Renewal& renewal : batch) call.append_key(renewal.key);
        call.append(batch.front().lease.value_or(options_.watchdog_timeout));
        call.append(wanted_until(batch.front().key));
        for (const Renewal& renewal : batch) call.append(renewal.field);
        const SendTime sent_at;
        const Instant sent = Clock::now();
        post(call, [this, sent, sent_at, batch = std::move(batch)](Reply reply) {
            classify(reply) == ReplyClass::no_answer ? on_disconnect() : on_reconnect();
            learn_if_late(batch.front().key, sent, reply);
            const bool whole = reply.kind == Reply::Kind::array && reply.elements.size() == batch.size();
            for (std::size_t i = 0; i < batch.size(); ++i) {
                auto outcome = BackgroundTask::Renewed::unknown;
                if (whole && reply.elements[i].is_integer()) {
                    if (reply.elements[i].integer != 1)
                        outcome = BackgroundTask::Renewed::refused;
                    else if (reply.replicated)
                        outcome = BackgroundTask::Renewed::yes;
                }
                if (outcome == BackgroundTask::Renewed::yes && !batch[i].lease) count(renewals_);
                batch[i].of->renewed(batch[i], outcome, sent_at.as_of_now());
            }
        });
    }

    // Destructors of states call both, the last of them while the transport is being destroyed.
    void wake() {
        if (!stopping_) transport_.wake();
    }

    void subscribe(const std::string& channel, bool wanted) {
        if (stopping_) return;
        if (wanted) {
            count(commands_);
            transport_.subscribe(channel);
        } else {
            transport_.unsubscribe(channel);
        }
    }

    void on_disconnect() {
        if (!away_.exchange(true)) raise(Event::Kind::disconnected, {}, "the connection to the server is lost");
    }

    void on_reconnect() {
        if (away_.load(std::memory_order_relaxed) && away_.exchange(false))
            raise(Event::Kind::reconnected, {}, "the server answers again");
    }

    // Holds may be lost on the new server. Waiters wake when their subscription is made again.
    void on_failover() {
        replicas_.forget();
        clock_.doubt();
        std::vector<std::shared_ptr<BackgroundTask>> states;
        {
            const std::lock_guard lock(mutex_);
            for (const auto& [_, entry] : states_) states.push_back(entry.state);
        }
        for (const auto& state : states) state->on_failover();
        raise(Event::Kind::moved, {}, "another server is the master now");
    }

    // Passes everything on to the subscriptions and tracks whether the server can be reached.
    struct ConnectionListener final : Listener {
        explicit ConnectionListener(Session& r) : session(r) {}
        void subscribed(const std::string& channel) override {
            session.on_reconnect();
            session.subscriptions_.subscribed(channel);
        }
        void refused(const std::string& channel, const Reply& why) override {
            session.subscriptions_.refused(channel, why);
        }
        void message(const std::string& channel, std::string_view payload) override {
            session.subscriptions_.message(channel, payload);
        }
        void disconnected() override {
            session.on_disconnect();
            session.subscriptions_.disconnected();
        }
        void interrupted(const std::string& channel) override { session.subscriptions_.interrupted(channel); }
        void on_failover() override { session.on_failover(); }
        Session& session;
    };

    const ClientOptions options_;
    ReplicaAcks replicas_;
    const Session* const parent_;  // left as it was at the fork; never accessed
    const std::string uuid_ = make_uuid();
    const ProcessMark process_ = this_process();

    Counter commands_{0}, acquisitions_{0}, waits_{0}, handoffs_{0}, renewals_{0}, lost_holds_{0}, resends_{0};
    Counter last_request_{0};
    NativeCommands native_commands_;
    RemoteClock clock_;
    LostLevels lost_levels_;
    std::atomic<bool> away_{false};
    std::atomic<bool> stopping_{false};
    std::atomic<bool> background_started_{false};
    std::atomic<bool> losses_started_{false};

    Notifier notifier_;
    Losses losses_;
    Timers timers_;
    Subscriptions subscriptions_;
    std::mutex mutex_;
    std::mutex key_holds_mutex_;
    std::unordered_map<std::string, std::weak_ptr<KeyHolds>> key_holds_;
    std::size_t key_holds_limit_ = 64;  // at this size, expired entries are erased
    std::mutex background_mutex_;
    std::mutex posts_mutex_;
    std::condition_variable posts_done_;
    std::size_t posts_ = 0;  // in flight
    std::unordered_map<StateName, StateEntry, StateNameHash> states_;
    ConnectionListener listener_{*this};
    // Destroyed before the members that its completions refer to.
    T transport_;
    // Used by the background thread only: the tasks that are still to be served, and the latest time for that.
    std::vector<std::shared_ptr<BackgroundTask>> unfinished_;
    Instant unfinished_until_ = never;
    std::thread background_;
};

}  // namespace v0_1
}  // namespace redlatch
