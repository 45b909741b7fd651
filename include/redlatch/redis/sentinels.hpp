// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/convert.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/redis/async_query.hpp"
#include "redlatch/redis/connection.hpp"
#include "redlatch/redis/encode.hpp"
#include "redlatch/redis/master_tracker.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline void append_words(std::string& out, std::initializer_list<std::string_view> words) {
    append_command(out, Command{{words.begin(), words.size()}, 0});
}

// The replies to these two commands are a vote.
inline std::string questions_for_vote(std::string_view master) {
    std::string out;
    append_words(out, {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", master});
    append_words(out, {"SENTINEL", "MASTER", master});
    return out;
}

// Begins to query one sentinel, over TLS if the URL demands it. If there is no TLS session, sets `why` and begins
// nothing.
inline void begin_talk(AsyncQuery& talk, const Url& url, const HostPort& sentinel, std::string words,
                       std::string& why) {
    std::unique_ptr<TlsSession> tls;
    if (url.tls && url.tls_connector) tls = url.tls_connector->session(sentinel, why);
    if (!url.tls || tls) talk.begin(sentinel, std::move(words), std::move(tls));
}

// Returns the votes of the sentinels of a URL, which are queried all at once. Sentinels that answer after the deadline,
// or more than `patience` after the first vote, have no vote. `why` receives the last answer that was no vote; until
// any sentinel has answered, it receives TLS errors.
inline std::vector<MasterVote> ask_sentinels(const Url& url, Instant deadline, Reply& why) {
    constexpr Milliseconds patience{200};
    struct Query {
        AsyncQuery talk;
        std::vector<Reply> replies;
    };
    std::vector<Query> asked(url.sentinels.size());
    for (std::size_t i = 0; i < asked.size(); ++i)
        begin_talk(asked[i].talk, url, url.sentinels[i], detail::questions_for_vote(url.master), why.text);
    std::vector<MasterVote> votes;
    bool anybody = false;
    for (;;) {
        std::vector<pollfd> ready;
        Instant until = deadline;
        for (Query& one : asked) {
            one.talk.proceed();
            Reply reply;
            while (one.replies.size() < 2 && one.talk.next(reply)) one.replies.push_back(std::move(reply));
            if (one.replies.size() == 2) {
                one.talk.end();
                if (auto vote = read_vote(one.replies[0], one.replies[1])) {
                    if (votes.empty()) deadline = std::min(deadline, Clock::now() + patience);
                    votes.push_back(std::move(*vote));
                } else {
                    why = Reply::of(Reply::Kind::not_sent,
                                    one.replies[0].is_error()
                                        ? "a sentinel replied " + in_quotes(one.replies[0].text, 160)
                                        : "the sentinels do not know this master");
                }
                anybody = true;
                one.replies.clear();
            }
            if (one.talk.is_over()) {
                if (!anybody && !one.talk.refusal().is_nil()) why = one.talk.refusal();
                continue;
            }
            ready.push_back(one.talk.watch());
            until = std::min(until, one.talk.due(Clock::now()));
        }
        if (ready.empty() || Clock::now() >= deadline) return votes;
        ::poll(ready.data(), converted<nfds_t>(ready.size()), poll_timeout(std::min(until, deadline)));
    }
}

// Opens connections to the master that the sentinels of a URL name, and learns when the master moves.
//
// open_master(), doubt() and epoch() may be called by any thread; the rest by the serving thread only.
class Sentinels {
public:
    // `on_move` is called, on any thread, when the epoch has grown.
    Sentinels(const Url& url, std::function<void()> on_move)
        : url_(url), on_move_(std::move(on_move)), watchers_(url.sentinels.size()) {}

    // Opens a connection to the master. Tries the server that was just announced or proven, then those that the
    // sentinels name, then the known one. Accepts only a server that reports itself as the master.
    std::optional<Reply> open_master(Connection& link, Instant deadline) {
        const std::uint64_t seen = view_.epoch();
        const Instant now = Clock::now();
        if (const auto guess = view_.guess(now)) {
            if (!open(link, {*guess}, seen, part_of(now, deadline, 2))) return std::nullopt;
            view_.reject(*guess);
        }
        auto why = Reply::of(Reply::Kind::not_sent, "none of its sentinels replies");
        const auto votes = ask_sentinels(url_, part_of(Clock::now(), deadline, 3), why);
        const auto candidates = ranked(votes, view_.known());
        auto refusal = why;
        if (why.is_unsent()) refusal.text = "cannot find " + url_.display() + ": " + why.text;
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            const bool is_last = i + 1 == candidates.size();
            auto no = open(link, candidates[i], seen, is_last ? deadline : part_of(Clock::now(), deadline, 2));
            if (!no) return std::nullopt;
            if (i == 0) refusal = std::move(*no);
        }
        return refusal;
    }

    std::uint64_t epoch() const { return view_.epoch(); }

    // Called when the server of that epoch answered as only a replica does.
    void doubt(std::uint64_t epoch) {
        if (view_.doubt(epoch)) on_move_();
    }

    // --- the serving thread -----------------------------------------------------------------------------------

    // Adds what the serving thread must watch. Returns when to call serve() anyway.
    Instant watch(std::vector<pollfd>& ready) const {
        const Instant now = Clock::now();
        Instant due = never;
        for (const Watcher& watcher : watchers_) {
            if (watcher.talk.is_over()) {
                due = std::min(due, watcher.next_attempt);
                continue;
            }
            ready.push_back(watcher.talk.watch());
            due = std::min(due, watcher.talk.due(now));
        }
        return due;
    }

    // Listens to every sentinel for a new master. Does not wait.
    void serve() {
        for (std::size_t i = 0; i < watchers_.size(); ++i) {
            Watcher& watcher = watchers_[i];
            if (watcher.talk.is_over()) {
                if (Clock::now() < watcher.next_attempt) continue;
                // Queries first, then the subscription: a subscribed connection answers no queries.
                std::string words = detail::questions_for_vote(url_.master);
                detail::append_words(words, {"SUBSCRIBE", "+switch-master", "+promoted-slave"});
                watcher.answers.clear();
                std::string unsaid;
                begin_talk(watcher.talk, url_, url_.sentinels[i], std::move(words), unsaid);
            }
            watcher.talk.proceed();
            Reply reply;
            while (watcher.talk.next(reply)) hear(watcher, std::move(reply));
            if (watcher.talk.is_over()) watcher.next_attempt = Clock::now() + watcher.backoff.next();
        }
    }

    void close_inherited() noexcept {
        for (Watcher& watcher : watchers_) watcher.talk.close_inherited();
    }

private:
    struct Watcher {
        AsyncQuery talk;
        std::vector<Reply> answers;  // to the queries
        Backoff backoff{Milliseconds(20), longest_pause};
        Instant next_attempt{};
    };

    static Instant part_of(Instant now, Instant deadline, int parts) {
        return deadline <= now || deadline == never ? deadline : now + (deadline - now) / parts;
    }

    std::optional<Reply> open(Connection& link, const MasterVote& candidate, std::uint64_t seen, Instant deadline) {
        if (auto refusal = link.open(url_.at(candidate.master), deadline, ServerRole::master)) return refusal;
        const auto epoch = view_.prove(candidate, seen, Clock::now());
        if (!epoch) {
            link.socket.close();
            return Reply::of(Reply::Kind::not_sent, url_.display() + " has just moved to another server");
        }
        link.place = *epoch;
        if (*epoch != seen) on_move_();
        return std::nullopt;
    }

    void hear(Watcher& watcher, Reply reply) {
        if (watcher.answers.size() < 2) {
            watcher.answers.push_back(std::move(reply));
            if (watcher.answers.size() < 2) return;
            if (const auto vote = read_vote(watcher.answers[0], watcher.answers[1]))
                if (view_.hear(*vote)) on_move_();
            return;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 3) return watcher.talk.end();
        if (reply.elements[0].text == "subscribe") watcher.backoff.reset();
        if (reply.elements[0].text != "message") return;
        if (const auto master = read_announcement(reply.elements[1].text, reply.elements[2].text, url_.master))
            if (view_.announce(*master)) on_move_();
    }

    const Url url_;
    const std::function<void()> on_move_;
    MasterTracker view_;
    std::vector<Watcher> watchers_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
