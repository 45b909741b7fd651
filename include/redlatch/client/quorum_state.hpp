// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/holds.hpp"
#include "redlatch/client/lock_answers.hpp"
#include "redlatch/client/lock_member.hpp"
#include "redlatch/client/lock_request.hpp"
#include "redlatch/client/quorum_round.hpp"
#include "redlatch/client/watched.hpp"
#include "redlatch/core/backoff.hpp"
#include "redlatch/core/brief_wait.hpp"
#include "redlatch/core/deadline.hpp"
#include "redlatch/core/error.hpp"
#include "redlatch/core/ids.hpp"
#include "redlatch/core/pause.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace redlatch {

// A lock that is held where `needed` of its members are. All members are asked at once, and given back at once when too
// few could be had. Whoever waits holds none: it waits for one that somebody else has, takes it, and asks the others
// again; so no order of members makes two of them wait for each other.
//
// A member that did not answer at first, or lost its part of the hold, is asked again whenever the watchdog renews. What
// it gives counts from then on, and only if the hold was never without enough votes until then.
//
// mutex_ guards all members but the constant ones. Members are asked for their times with it held, which takes their
// mutexes; but nothing is sent, and no user code runs. A thread in take() sleeps in its round's condition variable, one
// in give_back() in that of its releases: answers wake both, and the stop token the first. idle_ tells close() that no
// background thread is inside a member any more.
class QuorumState final : public Watched {
public:
    QuorumState(std::vector<std::shared_ptr<LockMember>> members, const QuorumRules& rules, const std::string& name,
                bool is_fork_child)
        : members_(std::move(members)),
          rules_(rules),
          name_(name),
          is_fork_child_(is_fork_child),
          servers_(members_.size()) {}

    pid_t pid() const noexcept { return pid_; }

    // The background calls no member from here on.
    void close() {
        {
            std::unique_lock lock(mutex_);
            closed_ = true;
            idle_.wait(lock, [this] { return inside_ == 0; });
        }
        client().timers().forget(*this);
    }

    // --- taking -----------------------------------------------------------------------------------------------

    // True when held; false at the deadline or when stopped. Throws Error.
    bool acquire(LockRequest request) {
        if (request.one_try) request.deadline = never;
        if (rules_.independent && request.lease && *request.lease > rules_.longest_lease)
            throw Error(errc::invalid_argument, name_,
                        "the lease is above RedLockOptions::longest_lease, after which a restarted server is trusted "
                        "again; raise that in all processes");
        const Instant begun = Clock::now();
        Backoff pause(Milliseconds(2), Milliseconds(100));
        std::optional<Instant> failing_since;
        std::optional<std::size_t> waited_for;
        while (!request.stop.stop_requested()) {
            const bool in_vain = waited_for.has_value();
            const Outcome outcome = take(request, std::exchange(waited_for, std::nullopt));
            if (outcome.held) return true;
            const Instant now = Clock::now();
            if (outcome.why) {
                if (!failing_since) failing_since = now;
                const Instant give_up = give_up_at(request, begun, *failing_since);
                if (is_for_good(*outcome.why) || now >= give_up) throw *outcome.why;
                // A server that was given less than its time is slow, not away.
                if (now >= request.deadline && now - begun < client().options().command_timeout) return false;
                if (now >= request.deadline) throw *outcome.why;
                rest(std::min(give_up, now + pause.next()), request);
                continue;
            }
            failing_since.reset();
            if (request.one_try || now >= request.deadline) return false;
            // Those who had one each and gave it back must not meet again.
            if (in_vain) rest(now + pause.next(), request);
            if (outcome.blocked_on)
                waited_for = wait_for(*outcome.blocked_on, request);
            else
                rest(std::min(outcome.again_at, now + slice), request);
        }
        if (waited_for) {
            std::unique_lock lock(mutex_);
            give_back(lock, request.owner, {*waited_for});
        }
        return false;
    }

    // --- giving back ------------------------------------------------------------------------------------------

    // One level less. Nothing on success; hold_lost when it had ended already, unreachable when too few members could be
    // told yet (they will be, in the background). Throws Error(errc::not_owner).
    std::error_code release(OwnerNumber owner) {
        std::unique_lock lock(mutex_);
        Hold* hold = holds_.find(owner);
        if (!hold) {
            if (is_fork_child_) return errc::hold_lost;
            throw Error(errc::not_owner, name_, "unlock() by a thread that does not hold the lock");
        }
        look_at(*hold, Clock::now());
        const bool live = hold->live();
        const std::uint32_t remaining = hold->count + hold->dead - 1;
        std::vector<std::size_t> leaving;
        std::vector<Share>& shares = shares_.at(owner).of;
        for (std::size_t i = 0; i < shares.size(); ++i)
            if (shares[i].levels > remaining) {
                --shares[i].levels;
                leaving.push_back(i);
            }
        if (!live)
            --hold->dead;
        else if (hold->count > 1)
            hold->leave();
        else
            holds_.finish(*hold);
        if (remaining == 0) {
            holds_.erase(owner);
            shares_.erase(owner);
        }
        const Releases releases = give_back(lock, owner, leaving);
        if (!live) return errc::hold_lost;
        // Others can have the lock as soon as too few members are left with us.
        if (releases.asked - releases.done <= members_.size() - rules_.needed) return {};
        return releases.lost > 0 ? errc::hold_lost : errc::unreachable;
    }

    // --- inquiry, without a command ---------------------------------------------------------------------------

    Instant valid_until(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = live_hold(owner);
        return hold ? hold->valid_until : Instant::min();
    }

    std::stop_token lost(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        Hold* hold = live_hold(owner);
        if (!hold) {
            std::stop_source already;
            already.request_stop();
            return already.get_token();
        }
        if (!hold->lost) hold->lost.emplace();
        return hold->lost->get_token();
    }

    // --- the background ---------------------------------------------------------------------------------------

    void tick(Instant now, Instant horizon, std::vector<Renewal>&) override {
        struct Part {
            OwnerNumber owner;
            std::uint64_t hold;
            std::size_t member;
        };
        std::vector<Part> lost, missing;
        std::unique_lock lock(mutex_);
        if (closed_) return;
        for (Hold& hold : holds_) {
            look_at(hold, now);
            if (!hold.live() || !hold.watched() || hold.renew_at > horizon) continue;
            hold.renew_at = now + client().options().watchdog_timeout / 3;
            std::vector<Share>& shares = shares_.at(hold.owner).of;
            for (std::size_t i = 0; i < shares.size(); ++i) {
                const Part part{hold.owner, hold.id, i};
                if (shares[i].levels > 0 && members_[i]->part(hold.owner).until <= now)
                    for (; shares[i].levels > 0; --shares[i].levels) lost.push_back(part);
                if (shares[i].levels == 0) missing.push_back(part);
            }
        }
        schedule();
        ++inside_;
        lock.unlock();
        // What the member still expects to be given back of a hold that it lost.
        const auto nobody = [](std::error_code) {};
        for (const Part& p : lost) members_[p.member]->release_in_background(p.owner, nobody, Receiver::background);
        for (const Part& p : missing) {
            const auto tell = [self = self(), p](const TryAnswer& answer) {
                return answer.kind == TryAnswer::Kind::held && self->adopt(p.owner, p.hold, p.member);
            };
            members_[p.member]->try_in_background(p.owner, std::nullopt, tell, Receiver::background);
        }
        leave();
    }

    void renewed(const Renewal&, Renewed, Instant) override {}
    void subscribed() override {}
    void subscription_refused(const Reply&) override {}
    void message(std::string_view) override {}
    void disconnected() override {}

private:
    // What a member has of an owner's hold, and from when on its vote counts.
    struct Share {
        std::uint32_t levels = 0;
        Instant votes_from = never;
    };

    struct Shares {
        std::vector<Share> of;  // each member
        Instant looked_at{};    // when the hold's validity was worked out
        Milliseconds drift{};   // by how much the clocks may differ over its lease
    };

    // What is known of a member's server. More connections than then may lead to another process.
    struct Server {
        std::optional<std::uint64_t> connections{};
        Instant trusted_from = never;
    };

    struct Outcome {
        bool held = false;
        std::optional<std::size_t> blocked_on{};  // a member that somebody else has
        Instant again_at{};                       // otherwise when to ask again
        std::optional<Error> why{};               // too few answered
    };

    struct Releases {
        std::size_t asked = 0;
        std::size_t answered = 0;
        std::size_t done = 0;
        std::size_t lost = 0;
    };

    // The longest that one of several independent members is waited for: its server may be the one that dies.
    static constexpr Milliseconds slice{1000};

    LockMember& client() const { return *members_.front(); }
    std::shared_ptr<QuorumState> self() { return std::static_pointer_cast<QuorumState>(shared_from_this()); }

    void leave() {
        const std::lock_guard lock(mutex_);
        if (--inside_ == 0) idle_.notify_all();
    }

    static bool is_for_good(const Error& error) {
        return error.code() != errc::unreachable && error.code() != errc::overloaded;
    }

    Instant give_up_at(const LockRequest& request, Instant begun, Instant failing_since) const {
        const ClientOptions& options = client().options();
        if (request.one_try)
            return begun + std::max(Milliseconds(100), std::min(options.command_timeout, options.unreachable_timeout));
        return deadline_after(failing_since, options.unreachable_timeout);
    }

    static void rest(Instant until, const LockRequest& request) {
        pause(std::min(until, request.deadline), request.stop);
    }

    // --- a round ----------------------------------------------------------------------------------------------

    // Asks all members for one level more; `waited_for` is had already.
    Outcome take(const LockRequest& request, std::optional<std::size_t> waited_for) {
        const auto round = std::make_shared<QuorumRound>(members_.size());
        const Instant begun = Clock::now();
        const OwnerNumber owner = request.owner;
        for (std::size_t i = 0; i < members_.size(); ++i) {
            const auto tell = [self = self(), round, owner, i](const TryAnswer& answer) {
                return self->answered(round, owner, i, answer);
            };
            if (i == waited_for)
                tell({TryAnswer::Kind::held});
            else
                members_[i]->try_in_background(owner, request.lease, tell, Receiver::poster);
        }
        // Built and destroyed without mutex_, which the callback takes.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(mutex_);
            round->stopped = true;
            round->changed.notify_all();
        });
        std::unique_lock lock(mutex_);
        Instant limit = begun + rules_.node_timeout;
        if (!request.one_try) limit = std::min(limit, request.deadline);
        await(lock, round->changed, limit,
              [&] { return round->stopped || round->decided(rules_.needed, Clock::now()); });
        Instant now = Clock::now();
        if (round->votes(now) >= rules_.needed) {
            // The others are most likely about to answer, too.
            const Instant soon = std::min(limit, now + (now - begun) + Milliseconds(1));
            await(lock, round->changed, soon, [&] { return round->stopped || round->complete(); });
            if (!round->complete()) stop_attending();
            if (accept(request, *round, begun)) return {.held = true};
        }
        round->over = true;
        if (!round->complete()) stop_attending();
        Outcome outcome = why_not(*round);
        std::vector<std::size_t> had;
        for (std::size_t i = 0; i < members_.size(); ++i)
            if (round->had(i)) had.push_back(i);
        give_back(lock, owner, had, request.one_try ? never : request.deadline);
        return outcome;
    }

    // A member's answer; whether what it gives is wanted.
    bool answered(const std::shared_ptr<QuorumRound>& round, OwnerNumber owner, std::size_t member,
                  const TryAnswer& answer) {
        std::unique_lock lock(mutex_);
        if (closed_) return false;
        if (round->over) {
            lock.unlock();
            return answer.kind == TryAnswer::Kind::held && round->hold != 0 && adopt(owner, round->hold, member);
        }
        switch (answer.kind) {
            case TryAnswer::Kind::refused: round->refused(member); break;
            case TryAnswer::Kind::failed: round->failed(member, *answer.why); break;
            case TryAnswer::Kind::held:
                round->held_without_vote(member);
                ask_trust(lock, member, [round, member](Instant trusted_from, const std::optional<Error>& why) {
                    if (why)
                        round->failed(member, *why);
                    else
                        round->held(member, std::max(trusted_from, Clock::now()));
                    round->changed.notify_all();
                });
                break;
        }
        round->changed.notify_all();
        return true;
    }

    // Enough votes: the hold is there, or has one level more. False when it took longer than the votes last.
    bool accept(const LockRequest& request, QuorumRound& round, Instant begun) {
        const Instant now = Clock::now();
        const ClientOptions& options = client().options();
        const Milliseconds drift = drift_over(request.lease.value_or(options.watchdog_timeout));
        const auto votes = [&](std::size_t i) { return round.had(i) && round.votes_from(i) <= now; };
        const Instant until = validity(request.owner, drift, votes);
        if (!lasts(until, now) || closed_) return false;

        Hold* hold = live_hold(request.owner);
        const bool first = !hold;
        if (first) hold = &holds_.start(request.owner, ++last_hold_);
        Shares& shares = shares_[request.owner];
        shares.of.resize(members_.size());
        for (std::size_t i = 0; i < members_.size(); ++i) {
            if (!round.had(i)) continue;
            if (shares.of[i].levels++ == 0 || first) shares.of[i].votes_from = round.votes_from(i);
        }
        shares.looked_at = now;
        shares.drift = first ? drift : std::max(shares.drift, drift);
        hold->enter(begun, request.lease, options.watchdog_timeout);
        hold->valid_until = until;
        round.over = true;
        round.hold = hold->id;
        schedule();
        client().start_background();
        return true;
    }

    Outcome why_not(const QuorumRound& round) const {
        Outcome outcome;
        if (round.unreachable(rules_.needed)) {
            outcome.why = round.why();
            if (!outcome.why) outcome.why.emplace(errc::unreachable, name_, "too few of its servers answered in time");
        } else {
            outcome.blocked_on = round.first_refused();
            outcome.again_at = round.votes_at(rules_.needed);
        }
        return outcome;
    }

    // Waits for a member that somebody else has: it, if it could be had.
    std::optional<std::size_t> wait_for(std::size_t member, const LockRequest& request) {
        LockRequest one = request;
        if (rules_.independent) one.deadline = std::min(request.deadline, Clock::now() + slice);
        try {
            if (members_[member]->acquire(one)) return member;
        } catch (const Error& error) {
            // That of a majority's minority is found out by asking them all again.
            if (!rules_.independent || is_for_good(error)) throw;
            rest(Clock::now() + Milliseconds(50), request);
        }
        return std::nullopt;
    }

    // A part that comes late, for the hold `id`: whether it is still wanted.
    bool adopt(OwnerNumber owner, std::uint64_t id, std::size_t member) {
        std::unique_lock lock(mutex_);
        if (closed_) return false;
        Hold* hold = live_hold(owner);
        if (!hold || hold->id != id) return false;
        Share& share = shares_.at(owner).of[member];
        if (share.levels >= hold->count + hold->dead) return false;
        if (share.levels++ > 0) return true;
        share.votes_from = never;
        ask_trust(lock, member, [this, owner, id, member](Instant trusted_from, const std::optional<Error>& why) {
            Hold* later = live_hold(owner);
            if (why || !later || later->id != id) return;
            shares_.at(owner).of[member].votes_from = std::max(trusted_from, Clock::now());
            look_at(*later, Clock::now());
            schedule();
        });
        return true;
    }

    // --- which servers may vote -------------------------------------------------------------------------------

    // `then(from when on, or why never)`, called with mutex_ held, now or later.
    template <class Then>
    void ask_trust(std::unique_lock<std::mutex>& lock, std::size_t member, Then then) {
        if (!rules_.independent) return then(Instant::min(), std::nullopt);
        const std::optional<std::uint64_t> connections = members_[member]->connections();
        const Server& server = servers_[member];
        if (connections && server.connections == connections) return then(server.trusted_from, std::nullopt);
        ++inside_;
        lock.unlock();
        members_[member]->ask_info([self = self(), member, connections, then](const Reply& reply) {
            const std::lock_guard relock(self->mutex_);
            if (!self->closed_) self->learn_age(member, connections, reply, then);
        });
        lock.lock();
        if (--inside_ == 0) idle_.notify_all();
    }

    // The server answered later than it gave its part, so the process that gave it is not younger than this says.
    template <class Then>
    void learn_age(std::size_t member, const std::optional<std::uint64_t>& connections, const Reply& reply,
                   const Then& then) {
        LockMember& m = *members_[member];
        if (judge(reply) != Verdict::answered) return then(never, error_of(reply, m.name()));
        const auto uptime = reply.kind == Reply::Kind::text ? read_uptime(reply.text) : std::nullopt;
        if (!uptime) return then(never, unexpected(reply, m.name()));
        // Told in whole seconds, of which the last one may have just begun.
        const auto age = std::max(*uptime - std::chrono::seconds(1), std::chrono::seconds(0));
        const Instant born = Clock::now() - std::min<Clock::duration>(age, rules_.longest_lease * 2);
        servers_[member].trusted_from = born + rules_.longest_lease + drift_over(rules_.longest_lease);
        servers_[member].connections = m.connections() == connections ? connections : std::nullopt;
        then(servers_[member].trusted_from, std::nullopt);
    }

    // --- for how long -----------------------------------------------------------------------------------------

    // One part in a hundred, and what a server's clock cannot tell.
    Milliseconds drift_over(Milliseconds lease) const {
        return rules_.independent ? lease / 100 + Milliseconds(2) : Milliseconds(0);
    }

    // Until when enough of the members that vote are certainly held.
    template <class Votes>
    Instant validity(OwnerNumber owner, Milliseconds drift, Votes votes) const {
        std::vector<Instant> until;
        for (std::size_t i = 0; i < members_.size(); ++i)
            if (votes(i)) until.push_back(members_[i]->part(owner).until);
        if (until.size() < rules_.needed) return Instant::min();
        const auto last = until.begin() + static_cast<std::ptrdiff_t>(rules_.needed - 1);
        std::nth_element(until.begin(), last, until.end(), std::greater<>());
        return *last == Instant::min() ? *last : *last - drift;
    }

    static bool lasts(Instant until, Instant now) { return until != Instant::min() && until - Hold::notice > now; }

    // Works out anew until when a hold is valid. Votes that came since the last time count only if it was valid without
    // them all the while.
    void look_at(Hold& hold, Instant now) {
        if (!hold.live()) return;
        Shares& shares = shares_.at(hold.owner);
        const auto votes_since = [&](Instant then) {
            return
                [&shares, then](std::size_t i) { return shares.of[i].levels > 0 && shares.of[i].votes_from <= then; };
        };
        hold.valid_until = validity(hold.owner, shares.drift, votes_since(shares.looked_at));
        if (!lasts(hold.valid_until, now)) return lose(hold);
        hold.valid_until = validity(hold.owner, shares.drift, votes_since(now));
        shares.looked_at = now;
    }

    Hold* live_hold(OwnerNumber owner) {
        Hold* hold = holds_.find(owner);
        if (hold) look_at(*hold, Clock::now());
        return hold && hold->live() ? hold : nullptr;
    }

    // The parts that are left are kept until unlock(), which still has to come.
    void lose(Hold& hold) {
        hold.lose();
        if (hold.lost) client().notify([source = std::move(*hold.lost)]() mutable { source.request_stop(); });
        hold.lost.reset();
        client().raise(Event::Kind::hold_lost, name_, "too few of its members are held any more");
    }

    void schedule() {
        if (closed_) return;
        Instant at = never;
        for (const Hold& hold : holds_) {
            if (!hold.live()) continue;
            at = std::min(at, hold.look_at());
            const Shares& shares = shares_.at(hold.owner);
            for (const Share& share : shares.of)
                if (share.votes_from > shares.looked_at) at = std::min(at, share.votes_from);
        }
        if (at != never) client().timers().schedule(*this, at);
    }

    // --- giving back, together --------------------------------------------------------------------------------

    // One level of each of these members; what came of it until all have answered, or node_timeout, or `limit`.
    Releases give_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner, const std::vector<std::size_t>& which,
                       Instant limit = never) {
        struct Shared {
            Releases count;
            std::condition_variable changed;
        };
        if (which.empty()) return {};
        const auto shared = std::make_shared<Shared>();
        shared->count.asked = which.size();
        lock.unlock();
        const auto told = [self = self(), shared](std::error_code ec) {
            const std::lock_guard relock(self->mutex_);
            ++shared->count.answered;
            if (!ec) ++shared->count.done;
            if (ec == errc::hold_lost) ++shared->count.lost;
            shared->changed.notify_all();
        };
        for (const std::size_t i : which) members_[i]->release_in_background(owner, told, Receiver::poster);
        const Instant until = std::min(limit, Clock::now() + rules_.node_timeout);
        lock.lock();
        await(lock, shared->changed, until, [&] { return shared->count.answered == which.size(); });
        return shared->count;
    }

    // --- waiting for answers ----------------------------------------------------------------------------------

    // Until `done()` or `until`. Near servers' answers are received by this thread, awake; others' by the background.
    template <class Done>
    void await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Instant until, Done done) {
        if (done()) return;
        lock.unlock();
        const auto came = [&] {
            for (const auto& member : members_) member->attend();
            const std::lock_guard look(mutex_);
            return done();
        };
        if (!brief_wait_.reply_came(until, came, brief_wait_.for_several)) stop_attending();
        lock.lock();
        changed.wait_until(lock, until, done);
    }

    void stop_attending() {
        for (const auto& member : members_) member->stop_attending();
    }

    const std::vector<std::shared_ptr<LockMember>> members_;
    const QuorumRules rules_;
    const std::string name_;
    const bool is_fork_child_;
    const pid_t pid_ = ::getpid();

    BriefWait<> brief_wait_;

    std::mutex mutex_;
    std::condition_variable idle_;
    std::size_t inside_ = 0;  // background threads that call members
    bool closed_ = false;
    Holds holds_;
    std::uint64_t last_hold_ = 0;
    std::map<OwnerNumber, Shares> shares_;
    std::vector<Server> servers_;
};

}  // namespace redlatch
