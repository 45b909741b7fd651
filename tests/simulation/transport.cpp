// SPDX-License-Identifier: MIT
#include "simulation/transport.hpp"

#include <algorithm>
#include <utility>

namespace sim {

using redlatch::Command;
using redlatch::Completion;
using redlatch::Instant;
using redlatch::Listener;
using redlatch::Reply;

namespace {

Nanos nanos(Instant when) { return when == redlatch::never ? forever : when.time_since_epoch().count(); }

}  // namespace

// A command under way. Either a thread waits for it, or it was posted.
struct Transport::Exchange {
    Connection::Words words;
    Completion done;  // empty: a thread waits for the reply
    bool attended = false;
    bool sent = false;
    bool answered = false;
    Nanos due = 0;
    Reply reply{};
};

struct Transport::Line {
    std::shared_ptr<Connection> connection;
    bool opening = false;
    bool refused = false;  // whether the last attempt was refused
    Nanos next_attempt = 0;
    Nanos pause = 10 * ms;
    std::deque<std::shared_ptr<Exchange>> open;  // commands without a reply
};

struct Transport::News {
    enum class Kind { subscribed, message, closed } kind;
    std::string channel{};
    std::string payload{};
};

struct Transport::State {
    State(Server& s, int p, Nanos t, bool w) : server(s), process(p), timeout(t), lets_watch(w) {}

    Server& server;
    const int process;
    const Nanos timeout;
    const bool lets_watch;
    bool gone = false;
    std::array<Line, 2> lines;
    std::deque<std::shared_ptr<Exchange>> complete;  // posted commands with a reply

    std::set<std::string> wanted;
    std::vector<std::pair<std::string, bool>> changes;
    std::shared_ptr<Connection> subscriber;
    Nanos next_attempt = 0;
    std::deque<News> news;
    bool watched = false;
    bool delivering = false;
    bool woken = false;
    bool turned_away = false;  // a thread that wanted to watch found another watcher
    std::uint64_t interrupts = 0;
};

Transport::Transport(Server& server, int process, redlatch::Milliseconds timeout, bool lets_watch)
    : state_(std::make_unique<State>(server, process, timeout.count() * ms, lets_watch)) {}

Transport::Transport(Transport&&) noexcept = default;

Transport::~Transport() {
    if (!state_) return;
    State& s = *state_;
    s.gone = true;
    for (Line& line : s.lines)
        if (line.connection) {
            line.connection->on_closed = nullptr;
            line.connection->close();
        }
    if (s.subscriber) {
        s.subscriber->on_closed = nullptr;
        s.subscriber->on_message = nullptr;
        s.subscriber->close();
    }
    for (Line& line : s.lines) fail(line);
    complete(true);
}

Transport::Line& Transport::line() {
    return state_->lines[redlatch::detail::this_thread_number() % state_->lines.size()];
}

// --- commands --------------------------------------------------------------------------------------------------------

// Connects. Some attempts get no answer; they end early when run() is woken, as a transport must do.
std::shared_ptr<Connection> Transport::reach(Nanos deadline) {
    Scheduler& s = scheduler();
    State& state = *state_;
    if (s.random().chance(state.server.faults().silences)) {
        const Nanos limit = std::min(deadline, s.now() + state.timeout);
        if (!state.woken && limit > s.now()) s.wait(state_.get(), limit, "silent connection");
        return nullptr;
    }
    s.sleep(state.server.delay() * 2);
    return state.server.connect(state.process);
}

void Transport::attempt(Line& line, Nanos deadline) {
    Scheduler& s = scheduler();
    line.opening = true;
    line.connection = reach(deadline);
    line.opening = false;
    line.refused = !line.connection;
    if (line.connection) {
        line.pause = 10 * ms;
        line.connection->on_closed = [this, &line, connection = line.connection.get()] {
            if (line.connection.get() == connection) fail(line);
        };
        // What was posted meanwhile goes first.
        for (const auto& exchange : std::deque(line.open))
            if (!exchange->sent) put(line, exchange);
    } else {
        line.next_attempt = s.now() + s.random().between(line.pause / 2, line.pause);
        line.pause = std::min(line.pause * 2, 500 * ms);
    }
    s.wake_all(&line);
}

// One thread connects; the others wait for it.
bool Transport::connect(Line& line, Nanos deadline) {
    Scheduler& s = scheduler();
    while (!line.connection) {
        if (s.now() >= deadline) return false;
        if (line.opening) {
            s.wait(&line, deadline, "connection");
        } else if (s.now() < line.next_attempt) {
            s.wait(&line, std::min(deadline, line.next_attempt), "next attempt to connect");
        } else {
            attempt(line, deadline);
        }
    }
    return true;
}

void Transport::put(Line& line, const std::shared_ptr<Exchange>& exchange) {
    exchange->sent = true;
    line.connection->send(exchange->words, [this, &line, exchange](Reply reply) {
        if (exchange->answered) return;
        std::erase(line.open, exchange);
        finish(exchange, std::move(reply));
    });
}

// Ends the connection: its commands stay unanswered.
void Transport::fail(Line& line) {
    if (const auto connection = std::exchange(line.connection, nullptr)) {
        connection->on_closed = nullptr;
        connection->close();
    }
    const auto left = std::exchange(line.open, {});
    for (const auto& exchange : left) {
        if (!exchange->sent && !state_->gone)
            line.open.push_back(exchange);
        else
            finish(exchange, exchange->sent ? Reply::of(Reply::Kind::unanswered, "the connection ended")
                                            : Reply::of(Reply::Kind::not_sent, "no connection"));
    }
    if (!line.open.empty()) wake();
}

void Transport::finish(const std::shared_ptr<Exchange>& exchange, Reply reply) {
    exchange->answered = true;
    exchange->reply = std::move(reply);
    if (!exchange->done) return scheduler().wake_all(exchange.get());
    state_->complete.push_back(exchange);
    scheduler().wake_all(state_.get());
}

// Completes posted commands that have a reply. An attended one waits for the thread that posted it.
void Transport::complete(bool attended_too) {
    State& s = *state_;
    for (std::size_t i = 0; i < s.complete.size();) {
        if (s.complete[i]->attended && !attended_too) {
            ++i;
            continue;
        }
        const auto exchange = std::move(s.complete[i]);
        s.complete.erase(s.complete.begin() + static_cast<std::ptrdiff_t>(i));
        // A late copy of the command keeps the exchange alive. It must not keep anything of the client, which may be
        // gone then.
        const Completion done = std::exchange(exchange->done, nullptr);
        done(std::move(exchange->reply));
        i = 0;
    }
}

std::vector<Reply> Transport::call_all(std::span<const Command> commands, Instant deadline) {
    std::vector<Reply> replies;
    for (const Command& command : commands) replies.push_back(call(command, deadline));
    return replies;
}

Reply Transport::call(const Command& command, Instant deadline) {
    Scheduler& s = scheduler();
    Line& mine = line();
    s.may_switch();
    if (!connect(mine, nanos(deadline)))
        return Reply::of(mine.refused ? Reply::Kind::not_sent : Reply::Kind::no_time, "no connection");
    const auto exchange = std::make_shared<Exchange>();
    exchange->words.assign(command.words.begin(), command.words.end());
    exchange->due = s.now() + state_->timeout;
    mine.open.push_back(exchange);
    put(mine, exchange);
    ++s.self().replies_awaited;
    while (!exchange->answered) {
        const Nanos until = std::min(exchange->due, nanos(deadline));
        if (s.wait(exchange.get(), until, "reply") || exchange->answered || s.now() < until) continue;
        if (s.now() < exchange->due) {  // another thread may read the reply, which is dropped
            exchange->done = [](Reply) {};
            return Reply::of(Reply::Kind::unanswered, "the server did not reply in time");
        }
        fail(mine);
    }
    // A thread that reads its own reply also reads those of others on the way.
    if (s.random().chance(300)) complete(false);
    return std::move(exchange->reply);
}

void Transport::post(const Command& command, Completion done, bool attended) {
    const auto exchange = std::make_shared<Exchange>();
    exchange->words.assign(command.words.begin(), command.words.end());
    exchange->done = std::move(done);
    exchange->attended = attended;
    exchange->due = scheduler().now() + state_->timeout;
    Line& mine = line();
    mine.open.push_back(exchange);
    if (mine.connection) put(mine, exchange);
    scheduler().wake_all(state_.get());
    scheduler().may_switch();
}

void Transport::attend() {
    complete(true);
    scheduler().may_switch();
}

// --- the background thread -------------------------------------------------------------------------------------------

void Transport::wake() {
    State& s = *state_;
    s.woken = true;
    // The attending threads have given up, or have all their replies.
    for (Line& line : s.lines)
        for (const auto& exchange : line.open) exchange->attended = false;
    for (const auto& exchange : s.complete) exchange->attended = false;
    scheduler().wake_all(state_.get());
}

void Transport::subscribe(const std::string& channel) {
    state_->wanted.insert(channel);
    state_->changes.emplace_back(channel, true);
    wake();
}

void Transport::unsubscribe(const std::string& channel) {
    state_->wanted.erase(channel);
    state_->changes.emplace_back(channel, false);
    wake();
}

Nanos Transport::due() const {
    const State& s = *state_;
    Nanos due = forever;
    for (const Line& line : s.lines)
        for (const auto& exchange : line.open)
            if (exchange->done) {
                due = std::min(due, exchange->due);
                if (!line.connection && !exchange->sent && !line.opening) due = std::min(due, line.next_attempt);
            }
    if (!s.subscriber && !s.wanted.empty()) due = std::min(due, s.next_attempt);
    return due;
}

bool Transport::has_work() const {
    const State& s = *state_;
    return s.woken || (!s.news.empty() && !s.watched && !s.delivering) ||
           std::any_of(s.complete.begin(), s.complete.end(), [](const auto& e) { return !e->attended; });
}

void Transport::run(Listener& listener, Instant deadline) {
    Scheduler& s = scheduler();
    const Nanos until = nanos(deadline);
    s.self().receives = true;
    if (!has_work()) s.wait(state_.get(), std::min(until, due()), "background");
    // A wake-up ends this run: who called wake() has work for its thread, which may be due before `until`. An attempt to
    // connect would keep the thread here for as long as the server is silent, so the next run begins it.
    const bool connects = !std::exchange(state_->woken, false);
    serve_subscriptions(until, connects);
    if (!state_->watched && !state_->delivering) deliver(listener);
    serve_lines(until, connects);
    complete(false);
}

// Connects for posted commands, and gives up on those that are overdue.
void Transport::serve_lines(Nanos deadline, bool connects) {
    const Nanos now = scheduler().now();
    for (Line& line : state_->lines) {
        const auto is_posted = [](const auto& e) { return e->done && !e->sent; };
        if (connects && !line.connection && !line.opening && line.next_attempt <= now &&
            std::any_of(line.open.begin(), line.open.end(), is_posted))
            attempt(line, deadline);
        for (const auto& exchange : std::deque(line.open)) {
            if (line.connection && is_posted(exchange)) put(line, exchange);
            if (!exchange->done || exchange->answered || exchange->due > scheduler().now()) continue;
            if (exchange->sent) {
                fail(line);
            } else {
                std::erase(line.open, exchange);
                finish(exchange, Reply::of(Reply::Kind::not_sent, "no connection"));
            }
        }
    }
}

void Transport::serve_subscriptions(Nanos deadline, bool connects) {
    State& s = *state_;
    if (!s.subscriber) {
        if (!connects || s.wanted.empty() || scheduler().now() < s.next_attempt) return;
        s.subscriber = reach(deadline);
        if (!s.subscriber) {
            s.next_attempt = scheduler().now() + scheduler().random().between(10 * ms, 500 * ms);
            return;
        }
        const auto tell = [this](News what) {
            state_->news.push_back(std::move(what));
            scheduler().wake_all(state_.get());
            scheduler().wake_all(&state_->news);
        };
        s.subscriber->on_closed = [tell] { tell({.kind = News::Kind::closed}); };
        s.subscriber->on_message = [tell](const std::string& channel, const std::string& payload) {
            tell({News::Kind::message, channel, payload});
        };
        s.changes.clear();
        for (const std::string& channel : s.wanted) s.changes.emplace_back(channel, true);
    }
    for (const auto& [channel, wanted] : std::exchange(s.changes, {}))
        s.subscriber->send({wanted ? "SUBSCRIBE" : "UNSUBSCRIBE", channel},
                           [this, channel = channel, wanted = wanted](const Reply&) {
                               if (!wanted) return;
                               state_->news.push_back({News::Kind::subscribed, channel, {}});
                               scheduler().wake_all(state_.get());
                               scheduler().wake_all(&state_->news);
                           });
}

// Delivers events to the listener, one at a time.
void Transport::deliver(Listener& listener) {
    State& s = *state_;
    s.delivering = true;
    while (!s.news.empty()) {
        const News what = std::move(s.news.front());
        s.news.pop_front();
        switch (what.kind) {
            case News::Kind::subscribed: listener.subscribed(what.channel); break;
            case News::Kind::message: listener.message(what.channel, what.payload); break;
            case News::Kind::closed:
                s.subscriber = nullptr;
                s.news.clear();
                s.next_attempt = scheduler().now() + scheduler().random().between(5 * ms, 10 * ms);
                listener.disconnected();
                break;
        }
    }
    s.delivering = false;
}

bool Transport::watch(Listener& listener, Instant deadline, std::uint64_t seen) {
    State& s = *state_;
    if (!s.lets_watch) return false;
    if (s.watched) s.turned_away = true;
    if (s.watched || s.delivering || !s.subscriber) return false;
    s.watched = true;
    bool is_lost = false;
    while (s.interrupts == seen && scheduler().now() < nanos(deadline) && !is_lost) {
        if (s.news.empty()) scheduler().wait(&s.news, nanos(deadline), "watch");
        if (!s.delivering) deliver(listener);
        is_lost = s.delivering || !s.subscriber;
    }
    s.watched = false;
    if (std::exchange(s.turned_away, false) || is_lost) wake();
    return !is_lost;
}

std::uint64_t Transport::interrupts() const { return state_->interrupts; }

void Transport::interrupt_watch() {
    ++state_->interrupts;
    scheduler().wake_all(&state_->news);
}

}  // namespace sim
