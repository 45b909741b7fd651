// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch::test {

using namespace redlatch::detail;

/// A command as the transport received it.
struct SentCommand {
    std::size_t id = 0;
    std::string what;  // a name for a script of ours ("acquire", "hand over"), or the first word of another command
    std::vector<std::string> words;
    bool posted = false;
    Instant deadline{};  // of a call
    Instant at{};
    std::int64_t server_time = 0;  // what the server's clock showed then, in milliseconds since 1970

    bool by_text() const { return words.front() == "EVAL"; }

    // The words after the script and the number of its keys.
    std::string key(std::size_t index) const { return words.at(3 + index); }
    std::size_t key_count() const { return static_cast<std::size_t>(std::stoul(words.at(2))); }
    std::string argument(std::size_t index) const { return words.at(3 + key_count() + index); }
    std::size_t argument_count() const { return words.size() - 3 - key_count(); }

    // An instant of the server's clock, for example until when the command is wanted.
    std::int64_t instant(std::size_t index) const { return std::stoll(argument(index)); }
};

inline Reply nil() { return {}; }
inline Reply number(std::int64_t value) { return Reply::of(value); }
inline Reply text(std::string value) { return Reply::of(std::move(value)); }
inline Reply error(std::string value) { return Reply::of(Reply::Kind::error, std::move(value)); }
inline Reply array(std::vector<Reply> elements) { return {Reply::Kind::array, 0, {}, std::move(elements)}; }
inline Reply lost() { return Reply::of(Reply::Kind::unanswered, "the connection ended"); }
inline Reply malformed() { return Reply::of(Reply::Kind::malformed, "the reply violates the Redis protocol"); }
inline Reply unreachable() {
    return Reply::of(Reply::Kind::not_sent, "no connection");
}  // at the deadline, as a real one

class ScriptedTransport;

/// A server whose replies the test chooses: replies that a real one does not send, or at moments that only the test can
/// choose. Without instructions it acts as a server on which every lock is free.
///
/// It answers TIME from a clock of its own and does not record it, unless the test sets a reply to it.
///
/// Any thread may call any function, also from within a handler, unless its comment restricts that.
class ScriptedRedis {
public:
    /// Makes the reply to a command. Called with no mutex held. Returns nothing to hold the reply back until answer().
    using Handler = std::function<std::optional<Reply>(const SentCommand&)>;

    static std::optional<Reply> hold_back(const SentCommand&) { return std::nullopt; }

    /// Returns its clock, in milliseconds since 1970.
    static std::int64_t server_now() {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    }

    /// Returns the reply to TIME of a server whose clock shows this.
    static Reply time(std::int64_t now = server_now()) {
        return array({text(std::to_string(now / 1000)), text(std::to_string(now % 1000 * 1000))});
    }

    /// Returns the reply to a command that came too late by a clock that shows this.
    static Reply late(std::int64_t now) { return error("LATE " + std::to_string(now)); }

    /// The transport for the library. For one client at a time.
    ScriptedTransport transport();

    // --- replies ----------------------------------------------------------------------------------------------

    /// Sets the reply to the next command of this name that has none yet. Each call sets one further reply.
    void next(const std::string& what, Handler handler) {
        const std::lock_guard lock(state_->mutex);
        state_->next[what].push_back(std::move(handler));
    }
    void next(const std::string& what, Reply reply) {
        next(what, [reply](const SentCommand&) { return std::optional(reply); });
    }

    /// Sets the reply to all commands of this name from now on. Those of next() take precedence.
    void always(const std::string& what, Handler handler) {
        const std::lock_guard lock(state_->mutex);
        state_->always[what] = std::move(handler);
    }
    void always(const std::string& what, Reply reply) {
        always(what, [reply](const SentCommand&) { return std::optional(reply); });
    }

    /// Sets what the transport says: since when commands go to the same server.
    void same_server_since(std::optional<Instant> since) {
        const std::lock_guard lock(state_->mutex);
        state_->same_server_since = since;
    }

    /// From now on, post() itself says of commands of this name that they were not sent, as a transport may.
    void refuse_to_post(const std::string& what) {
        const std::lock_guard lock(state_->mutex);
        state_->not_posted.insert(what);
    }

    /// From now on, commands of this name are answered before post() returns, as if another thread had been fast.
    void answer_before_post_returns(const std::string& what) {
        const std::lock_guard lock(state_->mutex);
        state_->answered_by_post.insert(what);
    }

    /// Answers a command whose reply was held back.
    void answer(const SentCommand& command, Reply reply) {
        const std::lock_guard lock(state_->mutex);
        if (const auto kept = state_->unanswered.find(command.id); kept != state_->unanswered.end()) {
            state_->add_job([done = std::move(kept->second), reply = std::move(reply)](Listener&) mutable {
                done(std::move(reply));
            });
            state_->unanswered.erase(kept);
        } else {
            state_->answers.emplace(command.id, std::move(reply));
            state_->changed.notify_all();
        }
    }

    // --- recorded commands ------------------------------------------------------------------------------------

    std::vector<SentCommand> sent(const std::string& what) const {
        const std::lock_guard lock(state_->mutex);
        std::vector<SentCommand> found;
        for (const SentCommand& command : state_->log)
            if (command.what == what) found.push_back(command);
        return found;
    }

    std::size_t count(const std::string& what) const { return sent(what).size(); }

    /// Returns the names of all commands so far, in order.
    std::vector<std::string> history() const {
        const std::lock_guard lock(state_->mutex);
        std::vector<std::string> found;
        for (const SentCommand& command : state_->log) found.push_back(command.what);
        return found;
    }

    /// Waits until that many commands of this name have been sent.
    bool wait_for(const std::string& what, std::size_t times = 1) {
        std::unique_lock lock(state_->mutex);
        return state_->changed.wait_for(lock, patience, [&] {
            std::size_t found = 0;
            for (const SentCommand& command : state_->log) found += command.what == what;
            return found >= times;
        });
    }

    // --- subscriptions ----------------------------------------------------------------------------------------

    /// By default each subscription is confirmed at once. After this call, confirm() does it.
    void confirm_by_hand() {
        const std::lock_guard lock(state_->mutex);
        state_->by_hand = true;
    }

    /// Each of these returns when the library has been notified. Do not call them from a handler of a posted command.
    bool confirm(const std::string& channel) {
        return tell([channel](Listener& listener) { listener.subscribed(channel); });
    }
    bool refuse(const std::string& channel, const Reply& why) {
        return tell([channel, why](Listener& listener) { listener.refused(channel, why); });
    }
    bool publish(const std::string& channel, const std::string& payload = "0") {
        return tell([channel, payload](Listener& listener) { listener.message(channel, payload); });
    }
    bool disconnect() {
        return tell([](Listener& listener) { listener.disconnected(); });
    }

    bool is_wanted(const std::string& channel) const {
        const std::lock_guard lock(state_->mutex);
        return state_->channels.contains(channel);
    }

    bool wait_until_wanted(const std::string& channel) {
        std::unique_lock lock(state_->mutex);
        return state_->changed.wait_for(lock, patience, [&] { return state_->channels.contains(channel); });
    }

private:
    friend class ScriptedTransport;

    static constexpr std::chrono::seconds patience{10};
    using Job = std::function<void(Listener&)>;

    // Shared with the transport. `mutex` guards everything. `changed` notifies the background thread in run(), calls
    // whose reply is held back, and tests that wait for a command.
    struct State {
        std::mutex mutex;
        std::condition_variable changed;
        std::vector<SentCommand> log;
        std::map<std::string, std::deque<Handler>> next;
        std::map<std::string, Handler> always;
        std::map<std::size_t, Reply> answers;
        std::map<std::size_t, Completion> unanswered;
        std::deque<Job> jobs;
        std::set<std::string> channels;
        std::set<std::string> not_posted;
        std::set<std::string> answered_by_post;
        bool by_hand = false;
        bool woken = false;
        std::optional<Instant> same_server_since = Instant{};

        void add_job(Job job) {
            jobs.push_back(std::move(job));
            changed.notify_all();
        }

        bool asks_only_for_time(const Command& command) {
            return command.words.front() == "TIME" && next["TIME"].empty() && !always.contains("TIME");
        }

        // Logs the command and finds its handler.
        std::pair<SentCommand, Handler> take(const Command& command, bool posted, Instant deadline) {
            SentCommand sent;
            sent.id = log.size();
            sent.words.assign(command.words.begin(), command.words.end());
            sent.what = sort_of(sent.words);
            sent.posted = posted;
            sent.deadline = deadline;
            sent.at = Clock::now();
            sent.server_time = server_now();
            log.push_back(sent);
            changed.notify_all();

            Handler handler = play_free_server;
            if (auto& queue = next[sent.what]; !queue.empty()) {
                handler = std::move(queue.front());
                queue.pop_front();
            } else if (const auto set = always.find(sent.what); set != always.end()) {
                handler = set->second;
            }
            return {std::move(sent), std::move(handler)};
        }
    };

    static std::string sort_of(const std::vector<std::string>& words) {
        if (words.front() != "EVALSHA" && words.front() != "EVAL") return words.front();
        const auto is = [&](const Script& script) {
            return words.at(1) == (words.front() == "EVAL" ? script.text() : script.digest());
        };
        // With and without a queue on the server, their first arguments are the same.
        if (is(digested<scripts::rlock_acquire>) || is(digested<scripts::queue_acquire>)) return "acquire";
        if (is(digested<scripts::rlock_release>) || is(digested<scripts::queue_release>)) return "release";
        if (is(digested<scripts::rlock_give_up>) || is(digested<scripts::queue_give_up>)) return "give up";
        if (is(digested<scripts::rlock_hand_over>) || is(digested<scripts::queue_hand_over>)) return "hand over";
        if (is(digested<scripts::rlock_renew>)) return "renew";
        if (is(digested<scripts::rlock_remaining_lease>)) return "remaining lease";
        if (is(digested<scripts::mutex_acquire>)) return "mutex acquire";
        if (is(digested<scripts::mutex_release>)) return "mutex release";
        if (is(digested<scripts::mutex_give_up>)) return "mutex give up";
        if (is(digested<scripts::mutex_hand_over>)) return "mutex hand over";
        if (is(digested<scripts::mutex_remaining_lease>)) return "mutex remaining lease";
        if (is(digested<scripts::mutex_renew>)) return "mutex renew";
        if (is(digested<scripts::count_down_latch_set>)) return "set count";
        if (is(digested<scripts::count_down_latch_lower>)) return "count down";
        if (is(digested<scripts::count_down_latch_look>)) return "look";
        if (is(digested<scripts::request_void>)) return "void";
        if (is(digested<scripts::condition_register>)) return "condition register";
        if (is(digested<scripts::condition_call_off>)) return "condition call off";
        if (is(digested<scripts::condition_look>)) return "condition look";
        if (is(digested<scripts::condition_leave>)) return "condition leave";
        if (is(digested<scripts::condition_notify>)) return "condition notify";
        if (is(digested<scripts::barrier_arrive>)) return "barrier arrive";
        if (is(digested<scripts::barrier_call_off>)) return "barrier call off";
        if (is(digested<scripts::barrier_look>)) return "barrier look";
        if (is(digested<scripts::barrier_withdraw>)) return "barrier withdraw";
        if (is(digested<scripts::barrier_remove>)) return "barrier remove";
        if (is(digested<scripts::semaphore_acquire>)) return "acquire permits";
        if (is(digested<scripts::semaphore_give_back>)) return "give permits back";
        if (is(digested<scripts::semaphore_add>)) return "add permits";
        if (is(digested<scripts::semaphore_set>)) return "set permits";
        if (is(digested<scripts::semaphore_drain>)) return "drain permits";
        if (is(digested<scripts::semaphore_leave>)) return "leave permits' queue";
        if (is(digested<scripts::permit_acquire>)) return "acquire by id";
        if (is(digested<scripts::permit_leave>)) return "leave permits' queue";
        if (is(digested<scripts::permit_take_back>)) return "take permits back";
        if (is(digested<scripts::permit_release>)) return "release by id";
        if (is(digested<scripts::permit_set_lease>)) return "set lease";
        if (is(digested<scripts::permit_set_total>)) return "set total";
        if (is(digested<scripts::permit_add>)) return "add to total";
        if (is(digested<scripts::permit_count>)) return "count permits";
        if (is(digested<scripts::permit_remaining>)) return "remaining lease of permit";
        if (is(digested<scripts::permit_renew>)) return "renew permits";
        if (is(digested<scripts::read_acquire>)) return "read acquire";
        if (is(digested<scripts::read_release>)) return "read release";
        if (is(digested<scripts::read_holders>)) return "read holders";
        if (is(digested<scripts::write_holders>)) return "write holders";
        if (is(digested<scripts::read_give_up>)) return "read give up";
        if (is(digested<scripts::read_renew>)) return "read renew";
        if (is(digested<scripts::write_acquire>)) return "write acquire";
        if (is(digested<scripts::write_release>)) return "write release";
        if (is(digested<scripts::write_give_up>)) return "write give up";
        if (is(digested<scripts::write_withdraw>)) return "withdraw";
        if (is(digested<scripts::hash_inspect>)) return "inspect";
        if (is(digested<scripts::fair_acquire>)) return "fair acquire";
        if (is(digested<scripts::fair_release>)) return "fair release";
        if (is(digested<scripts::fair_leave>)) return "fair leave";
        if (is(digested<scripts::fair_refresh>)) return "fair refresh";
        return "unknown script";
    }

    static std::optional<Reply> play_free_server(const SentCommand& command) {
        if (command.what.ends_with("give up") || command.what == "fair leave") return number(command.server_time);
        if (command.what == "SET" || command.what == "mutex acquire") return text("OK");
        if (command.what == "DELEX" || command.what == "DELIFEQ") return error("ERR unknown command");
        if (command.what == "GET") return nil();
        if (command.what.ends_with("remaining lease")) return number(-2);
        if (command.what == "HKEYS" || command.what.ends_with("holders")) return array({});
        if (command.what == "mutex release") return number(1);
        if (command.what == "HGET" || command.what.ends_with("acquire")) return nil();
        if (command.what == "fair release") return command.argument(3) == "0" ? number(0) : number(-1);
        if (command.what.ends_with("release")) return command.argument(1) == "0" ? number(0) : number(-1);
        if (command.what == "fair refresh")
            return array(std::vector<Reply>(command.words.size() - 3 - command.key_count() - 4, number(1)));
        if (command.what.ends_with("renew")) return array(std::vector<Reply>(command.key_count(), number(1)));
        if (command.what == "HLEN") return number(0);
        if (command.what == "inspect") return array({number(-2), array({}), nil()});
        if (command.what == "look") return array({nil(), nil()});
        if (command.what == "count down") return array({number(0), nil()});
        if (command.what == "acquire permits") return number(permits_wanted(command));
        if (command.what == "acquire by id") return array({number(ids_wanted(command)), number(-1)});
        if (command.what == "count permits") return array({nil(), number(0)});
        if (command.what == "remaining lease of permit") return nil();
        if (command.what == "renew permits")
            return array(std::vector<Reply>(command.words.size() - 3 - command.key_count() - 2, number(1)));
        return number(1);
    }

    static std::int64_t permits_wanted(const SentCommand& command) {
        std::int64_t sum = 0;
        for (std::size_t i = 3 + command.key_count() + 8; i < command.words.size(); ++i)
            sum += std::abs(std::stoll(command.words[i]));
        return sum;
    }

    static std::int64_t ids_wanted(const SentCommand& command) {
        std::int64_t sum = 0;
        for (std::size_t i = 3 + command.key_count() + 9; i < command.words.size();) {
            const std::int64_t wanted = std::abs(std::stoll(command.words[i]));
            sum += wanted;
            i += 2 + static_cast<std::size_t>(wanted);
        }
        return sum;
    }

    bool tell(Job job) {
        std::unique_lock lock(state_->mutex);
        // Shared, because the job outlives this call if it is not run in time.
        const auto told = std::make_shared<bool>(false);
        state_->add_job([state = state_.get(), told, job = std::move(job)](Listener& listener) {
            job(listener);
            const std::lock_guard guard(state->mutex);
            *told = true;
            state->changed.notify_all();
        });
        return state_->changed.wait_for(lock, patience, [&] { return *told; });
    }

    std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// The transport that a ScriptedRedis gives to the library.
class ScriptedTransport {
public:
    explicit ScriptedTransport(std::shared_ptr<ScriptedRedis::State> state) : state_(std::move(state)) {}
    ScriptedTransport(ScriptedTransport&&) = default;
    ScriptedTransport& operator=(ScriptedTransport&&) = delete;

    // Drop pending notifications, which belong to the client that is being destroyed.
    ~ScriptedTransport() {
        if (!state_) return;
        std::map<std::size_t, Completion> unanswered;
        std::deque<ScriptedRedis::Job> jobs;
        const std::lock_guard lock(state_->mutex);
        unanswered.swap(state_->unanswered);
        jobs.swap(state_->jobs);
    }

    Reply call(const Command& command, Instant deadline) {
        std::unique_lock lock(state_->mutex);
        if (state_->asks_only_for_time(command)) return ScriptedRedis::time();
        const auto [sent, handler] = state_->take(command, false, deadline);
        lock.unlock();
        std::optional<Reply> reply = handler(sent);
        lock.lock();
        const auto answered = [&, id = sent.id] { return state_->answers.contains(id); };
        if (!reply && state_->changed.wait_until(lock, deadline, answered)) reply = state_->answers.at(sent.id);
        if (reply && reply->kind == Reply::Kind::not_sent)
            state_->changed.wait_until(lock, deadline, [&] { return Clock::now() >= deadline; });
        return reply ? *reply : Reply::of(Reply::Kind::unanswered, "the server did not reply in time");
    }

    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        std::vector<Reply> replies;
        for (const Command& command : commands) replies.push_back(call(command, deadline));
        return replies;
    }

    void post(const Command& command, Completion done) {
        std::unique_lock lock(state_->mutex);
        if (state_->asks_only_for_time(command))
            return state_->add_job([done = std::move(done)](Listener&) { done(ScriptedRedis::time()); });
        auto [sent, handler] = state_->take(command, true, never);
        if (state_->not_posted.contains(sent.what)) {
            lock.unlock();
            return done(unreachable());
        }
        if (state_->answered_by_post.contains(sent.what)) {
            lock.unlock();
            return done(handler(sent).value());
        }
        state_->add_job([state = state_.get(), sent = sent, handler = handler, done = std::move(done)](Listener&) {
            if (std::optional<Reply> reply = handler(sent)) return done(std::move(*reply));
            const std::lock_guard guard(state->mutex);
            if (const auto early = state->answers.find(sent.id); early != state->answers.end())
                state->add_job([done, reply = early->second](Listener&) { done(reply); });
            else
                state->unanswered.emplace(sent.id, done);
        });
    }

    void subscribe(const std::string& channel) {
        const std::lock_guard lock(state_->mutex);
        state_->channels.insert(channel);
        if (!state_->by_hand) state_->add_job([channel](Listener& listener) { listener.subscribed(channel); });
        state_->changed.notify_all();
    }

    void unsubscribe(const std::string& channel) {
        const std::lock_guard lock(state_->mutex);
        state_->channels.erase(channel);
    }

    void run(Listener& listener, Instant deadline) {
        std::unique_lock lock(state_->mutex);
        state_->changed.wait_until(lock, deadline, [&] { return state_->woken || !state_->jobs.empty(); });
        state_->woken = false;
        std::deque<ScriptedRedis::Job> jobs;
        jobs.swap(state_->jobs);
        lock.unlock();
        for (const ScriptedRedis::Job& job : jobs) job(listener);
    }

    void wake() {
        const std::lock_guard lock(state_->mutex);
        state_->woken = true;
        state_->changed.notify_all();
    }

    std::uint32_t route(std::string_view) const noexcept { return 0; }
    std::string_view publish_command() const noexcept { return "PUBLISH"; }
    std::optional<Instant> same_server_since() const {
        const std::lock_guard lock(state_->mutex);
        return state_->same_server_since;
    }
    ScriptedTransport clone_after_fork() { return ScriptedTransport(state_); }

private:
    std::shared_ptr<ScriptedRedis::State> state_;
};

static_assert(Transport<ScriptedTransport>);

/// Returns whether an instant that the client wrote lies `length` after the moment of writing, which was between
/// `begun` and now. The client's estimate of the server's clock is never behind, and ahead by at most the round trip of
/// TIME.
inline bool reaches(std::int64_t instant, Milliseconds length, std::int64_t begun) {
    const std::int64_t now = ScriptedRedis::server_now();
    return instant >= begun + length.count() && instant <= now + length.count() + (now - begun) + 5;
}

inline ScriptedTransport ScriptedRedis::transport() { return ScriptedTransport(state_); }

}  // namespace redlatch::test
