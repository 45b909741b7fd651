// SPDX-License-Identifier: MIT
#include "simulation/pair_run.hpp"

#include "simulation/contests.hpp"
#include "simulation/late_arrivals.hpp"
#include "simulation/transport.hpp"

#include <algorithm>
#include <coroutine>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace sim {

namespace {

// Longer than all that happens, so that nothing ends by itself that somebody forgot.
constexpr Nanos lease = 120 * second;
// The holder releases by itself after this time, when the operation has long fallen asleep.
constexpr Nanos until_grant = 20 * ms;
// What an operation does after it was given up takes less.
constexpr Nanos time_to_leave = 10 * ms;
// Longer than any attempt to connect, and than an unused subscription is kept.
constexpr Nanos silence = 20 * second;

// The calls under way that must not complete an operation. All are made by threads of the user.
class Calls {
public:
    // Makes a call that must not wait for a server either.
    template <class Call>
    void quick(const char* what, Call call) {
        const std::uint64_t before = scheduler().self().replies_awaited;
        make(std::move(call));
        if (scheduler().self().replies_awaited != before)
            scheduler().fail(std::string(what) + " waited for the server");
    }

    template <class Call>
    void make(Call call) {
        ++under_way_[scheduler().self().id];
        call();
        --under_way_[scheduler().self().id];
    }

    void check_completion() const {
        const Fiber& me = scheduler().self();
        const auto mine = under_way_.find(me.id);
        if (mine != under_way_.end() && mine->second > 0)
            scheduler().fail("an operation completed inside a call of the user");
        if (me.receives) scheduler().fail("an operation completed on the thread that renews and receives");
    }

private:
    std::map<std::uint64_t, int> under_way_;  // by thread
};

// An executor that runs its jobs on one thread. What it runs is not interrupted by the end of a coroutine.
class Desk {
public:
    explicit Desk(Calls& calls) : calls_(calls) {}

    void execute(std::function<void()> job) {
        calls_.check_completion();
        jobs_.push_back(std::move(job));
        scheduler().wake_all(this);
    }

    void work() {
        while (!is_over_ || !jobs_.empty()) {
            if (jobs_.empty()) {
                scheduler().wait(this, forever, "a job");
                continue;
            }
            is_busy_ = true;
            auto job = std::move(jobs_.front());
            jobs_.pop_front();
            job();
            job = nullptr;
            is_busy_ = false;
            scheduler().wake_all(this);
        }
    }

    void wait_for_job() {
        while (is_busy_) scheduler().wait(this, forever, "a job of the executor");
    }

    void end() {
        is_over_ = true;
        scheduler().wake_all(this);
    }

private:
    Calls& calls_;
    std::deque<std::function<void()>> jobs_;
    bool is_busy_ = false;
    bool is_over_ = false;
};

// A coroutine that begins when it is resumed. It may be destroyed as soon as it waits, even while it begins to.
class Waiting {
public:
    struct promise_type {
        Waiting get_return_object() noexcept {
            return Waiting(std::coroutine_handle<promise_type>::from_promise(*this));
        }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() { std::terminate(); }
    };

    explicit Waiting(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
    void begin() const { coroutine_.resume(); }
    void destroy() {
        if (const auto mine = std::exchange(coroutine_, nullptr)) mine.destroy();
    }

private:
    std::coroutine_handle<promise_type> coroutine_;
};

template <class Contest>
class Scene {
public:
    using Result = typename Contest::Result;
    using Operation = redlatch::Operation<Result>;

    Scene(const PairRun& run, PairSeen& seen)
        : run_(run),
          seen_(seen),
          server_("server", quiet_network(), 1'700'000'000 * second),
          holder_(start_client(1)),
          waiter_(run.same_client ? nullptr : start_client(2)),
          contest_(std::make_unique<Contest>(server_, *holder_, run.same_client ? *holder_ : *waiter_)) {
        for (const Client* client : {holder_.get(), waiter_.get()})
            if (client) sessions_.push_back(redlatch::detail::ClientAccess::session(*client));
    }

    void play() {
        Scheduler& s = scheduler();
        contest_->take();
        Fiber* const desk = s.spawn(2, [this] { desk_->work(); });
        auto operation = contest_->acquire(stop_.get_token());
        if (run_.way != PairRun::Way::callback)
            operation =
                std::move(operation).on([desk = desk_](std::function<void()> job) { desk->execute(std::move(job)); });
        threads_.push_back(s.spawn(1, [this] {
            scheduler().sleep(until_grant);
            release_by_itself();
        }));
        threads_.push_back(s.spawn(
            2, [this, begun = std::make_shared<Operation>(std::move(operation))] { begin(std::move(*begun)); }));
        await_end();
        use_hold();
        await_silence();
        check_silence();
        end(*desk);
    }

private:
    // What the completion said.
    struct Answer {
        bool done = false;
        std::error_code ec;
        Result result;
    };

    static Faults quiet_network() {
        Faults faults;
        faults.most_delay = 300 * us;
        return faults;
    }

    std::unique_ptr<Client> start_client(int process) {
        Random& random = scheduler().random();
        return std::make_unique<Client>(
            Transport(server_, process, redlatch::Milliseconds(500), random.below(2) == 0),
            redlatch::ClientOptions{.watchdog_timeout = redlatch::Milliseconds(lease / ms),
                                    .command_timeout = redlatch::Milliseconds(500),
                                    .local_handoff_limit = static_cast<unsigned>(random.below(4)),
                                    .grants = random.below(2) == 0});
    }

    static int process_of(Happening what) { return what == Happening::grant ? 1 : 2; }
    bool happens(Happening what) const {
        return (run_.at[0] > 0 && run_.what[0] == what) || (run_.at[1] > 0 && run_.what[1] == what);
    }

    // --- the operation ----------------------------------------------------------------------------------------------

    void begin(Operation operation) {
        if (run_.way == PairRun::Way::coroutine) coroutine_.emplace(await(std::move(operation), *this, witness_));
        begin_at_ = scheduler().steps();
        for (std::size_t i = 0; i < 2; ++i)
            if (run_.at[i] > 0)
                scheduler().at_step(begin_at_ + run_.at[i], process_of(run_.what[i]), [this, i] { happen(i); });
        if (run_.way == PairRun::Way::coroutine) {
            calls_.quick("the beginning of an operation", [this] { coroutine_->begin(); });
        } else {
            calls_.quick("the beginning of an operation", [&] {
                std::move(operation).start(
                    [this, witness = witness_](std::error_code ec, Result result) { complete(ec, std::move(result)); });
            });
        }
    }

    static Waiting await(Operation operation, Scene& scene, std::shared_ptr<int>) {
        auto [ec, result] = co_await std::move(operation).no_throw();
        scene.complete(ec, std::move(result));
    }

    void complete(std::error_code ec, Result result) {
        Scheduler& s = scheduler();
        s.trace(result ? "completed with a hold" : "completed: " + ec.message());
        if (run_.way == PairRun::Way::callback) calls_.check_completion();
        if (answer_.done) s.fail("an operation completed twice");
        if (is_destroyed_) s.fail("a coroutine went on after its end");
        if (ec && result) s.fail("an operation completed with a hold and with " + ec.message());
        if (!ec && !result) s.fail("an operation completed without a hold and without an error");
        if (ec && ec != redlatch::errc::cancelled) s.fail("an operation failed: " + ec.message());
        if (ec && !may_be_cancelled_) s.fail("an operation was cancelled by nobody");
        if (result && parts_held_ > 0) s.fail("two holders");
        answer_.done = true;
        answer_.ec = ec;
        answer_.result = std::move(result);
        seen_.completed = s.steps() - begin_at_;
        seen_.has_hold = static_cast<bool>(answer_.result);
        // Looks at the server first: the hold may be given back by async_close() meanwhile.
        if (answer_.result && !contest_->is_taken() && is_certain(answer_.result))
            s.fail("an operation completed with a hold that the server does not know: " + server_.keyspace().dump());
        s.wake_all(&answer_);
    }

    static bool is_certain(const Result& result) {
        return result.valid_until().time_since_epoch().count() > scheduler().now();
    }

    // --- what happens -----------------------------------------------------------------------------------------------

    void happen(std::size_t i) {
        Scheduler& s = scheduler();
        ++happenings_;
        ++happening_;
        s.trace(std::string("now: ") + happening_names[static_cast<std::size_t>(run_.what[i])]);
        const bool is_before = !answer_.done;
        bool has_effect = true;
        switch (run_.what[i]) {
            case Happening::grant: has_effect = release(); break;
            case Happening::stop:
                may_be_cancelled_ = true;
                calls_.quick("request_stop()", [this] { stop_.request_stop(); });
                gives_up();
                break;
            case Happening::destroyed: destroy(); break;
            case Happening::cut: server_.lose_connections(run_.same_client ? 1 : 2); break;
            case Happening::closed: close(i); break;
        }
        seen_.hit[i] = is_before && has_effect;
        --happening_;
        s.wake_all(&happening_);
        s.wake_all(&answer_);
    }

    // Of two grants, each releases one part. Returns whether there was one left.
    bool release() {
        const bool by_parts = run_.at[0] > 0 && run_.at[1] > 0 && run_.what[0] == run_.what[1];
        const std::size_t last = by_parts && next_part_ == 0 ? 1 : 2;
        if (next_part_ >= last) return false;
        while (next_part_ < last) {
            const std::size_t part = next_part_++;
            if (parts_held_ > 0) --parts_held_;
            calls_.make([this, part] { contest_->give_back(part); });
        }
        return true;
    }

    void release_by_itself() {
        if (next_part_ < 2) seen_.released = scheduler().steps() - begin_at_;
        check_leaving();
        while (next_part_ < 2) release();
    }

    void gives_up() { given_up_ = std::min(given_up_, scheduler().now()); }

    // Whoever gave up early enough waits no more, although there was no grant yet.
    void check_leaving() {
        Scheduler& s = scheduler();
        const Client* const client = run_.same_client ? holder_.get() : waiter_.get();
        if (next_part_ > 0 || happens(Happening::cut) || !client || s.now() - given_up_ < time_to_leave) return;
        if (client->stats().waiting != 0) s.fail("an operation that was given up goes on waiting");
        for (const std::string& key : server_.keyspace().keys())
            if (key.starts_with("redisson_lock_queue")) s.fail("an operation that was given up stands in the queue");
    }

    void destroy() {
        // A coroutine must not be destroyed while its executor may be resuming it.
        desk_->wait_for_job();
        if (!answer_.done) is_destroyed_ = true;
        calls_.quick("the end of a coroutine", [this] { coroutine_->destroy(); });
        gives_up();
    }

    void close(std::size_t i) {
        const bool is_second_close = i == 1 && run_.what[0] == Happening::closed;
        if (run_.closes_by_end && (is_second_close || run_.what[1 - i] != Happening::closed)) {
            // Nobody may use an object that is being destroyed.
            while (client_calls_ > 0) scheduler().wait(&client_calls_, forever, "a call of the client");
            if (Contest::ends_with_its_objects) may_be_cancelled_ = true;
            calls_.quick("the end of the objects", [this] { contest_->leave(); });
            calls_.make([this] { waiter_.reset(); });
            return;
        }
        Client* const client = run_.same_client ? holder_.get() : waiter_.get();
        if (!client) return;
        may_be_cancelled_ = true;
        // It gives back all holds of the client. Permits of a Semaphore stay.
        if (run_.same_client && std::is_same_v<Result, redlatch::Hold>) parts_held_ = 0;
        ++client_calls_;
        ++closings_;
        calls_.quick("async_close()", [this, client] {
            client->async_close().start([this](std::error_code, std::size_t) {
                calls_.check_completion();
                --closings_;
                scheduler().wake_all(&closings_);
            });
        });
        gives_up();
        --client_calls_;
        scheduler().wake_all(&client_calls_);
    }

    // --- the end ----------------------------------------------------------------------------------------------------

    void await_end() {
        Scheduler& s = scheduler();
        const Nanos limit = s.now() + 60 * second;
        while (!answer_.done && !is_destroyed_) {
            if (s.now() >= limit) s.fail("an operation does not complete");
            s.wait(&answer_, limit, "completion");
        }
    }

    void use_hold() {
        if (!answer_.result) return;
        Scheduler& s = scheduler();
        s.sleep(s.random().between(0, ms));
        if (s.random().below(2) == 0) {
            calls_.quick("the destructor of a hold", [this] { Result ended(std::move(answer_.result)); });
            return;
        }
        const std::error_code ec = end_hold(answer_.result);
        if (ec && !happens(Happening::closed) && !happens(Happening::cut))
            s.fail("a hold could not be released: " + ec.message());
    }
    static std::error_code end_hold(redlatch::Hold& hold) { return hold.unlock(); }
    static std::error_code end_hold(redlatch::Permits& permits) { return permits.release(); }

    // Waits until nothing happens any more.
    void await_silence() {
        Scheduler& s = scheduler();
        for (Fiber* thread : threads_) s.join(*thread);
        if (!happens(Happening::cut)) {
            int before = happenings_;
            do {
                before = happenings_;
                s.sleep(second);
            } while (before != happenings_);
            if (!contest_->is_free()) s.fail("nobody holds it, but: " + server_.keyspace().dump());
        }
        int before = happenings_;
        do {
            before = happenings_;
            s.sleep(silence);
        } while (before != happenings_);
        while (happening_ > 0) s.wait(&happening_, forever, "what happens");
        while (closings_ > 0) s.wait(&closings_, forever, "async_close()");
        seen_.quiet = s.steps() - begin_at_;
        s.drop_steps();
    }

    void check_silence() {
        Scheduler& s = scheduler();
        // A client that has ended does not repeat a release that was lost. The hold ends with its lease.
        const bool may_last = run_.closes_by_end && happens(Happening::closed) && happens(Happening::cut);
        if (!may_last && !contest_->is_free()) s.fail("nobody holds it, but: " + server_.keyspace().dump());
        if (server_.subscriptions() > 0) s.fail("a subscription is left");
        for (const Client* client : {holder_.get(), waiter_.get()}) {
            if (!client) continue;
            const redlatch::Stats stats = client->stats();
            if (stats.waiting != 0) s.fail("a client counts " + std::to_string(stats.waiting) + " that wait");
            if (stats.held != 0) s.fail("a client counts " + std::to_string(stats.held) + " holds");
        }
        if (run_.way != PairRun::Way::coroutine && witness_.use_count() != 1) s.fail("a callback was not destroyed");
    }

    void end(Fiber& desk) {
        Scheduler& s = scheduler();
        desk_->wait_for_job();
        if (coroutine_) coroutine_->destroy();
        contest_.reset();
        waiter_.reset();
        holder_.reset();
        desk_->end();
        s.join(desk);
        s.sleep(second);
        if (witness_.use_count() != 1) s.fail("an operation was not destroyed");
        for (const auto& session : sessions_)
            if (!session.expired()) s.fail("the memory of a client is left");
        s.sleep(beyond_marks);
        for (const std::string& key : server_.keyspace().keys())
            if (key != "semaphore") s.fail("keys are left:" + server_.keyspace().dump());
    }

    const PairRun& run_;
    PairSeen& seen_;
    Server server_;
    std::unique_ptr<Client> holder_;
    std::unique_ptr<Client> waiter_;  // null if that is the holder, and after its end
    std::vector<std::weak_ptr<redlatch::detail::SessionHandle>> sessions_;
    std::unique_ptr<Contest> contest_;
    Calls calls_;
    const std::shared_ptr<Desk> desk_ = std::make_shared<Desk>(calls_);
    std::vector<Fiber*> threads_;
    std::stop_source stop_;
    std::shared_ptr<int> witness_ = std::make_shared<int>();  // shared by what the operation completes
    std::optional<Waiting> coroutine_;
    Answer answer_;
    std::uint64_t begin_at_ = 0;
    std::size_t next_part_ = 0;
    Nanos given_up_ = forever;  // when the operation was cancelled first
    int parts_held_ = 2;        // until their release begins
    bool may_be_cancelled_ = false;
    bool is_destroyed_ = false;
    int happenings_ = 0;  // so far
    int happening_ = 0;   // now
    int client_calls_ = 0;
    int closings_ = 0;
};

template <class Contest>
void play(const PairRun& run, PairSeen& seen) {
    Interleaving& how = scheduler().interleaving();
    how.switches = static_cast<unsigned>(scheduler().random().below(3) * 200);
    Scene<Contest>(run, seen).play();
}

}  // namespace

std::string run_pair(const PairRun& run, bool trace, PairSeen& seen, Nanos& simulated) {
    constexpr std::array<void (*)(const PairRun&, PairSeen&), contest_names.size()> programs{
        play<TwoLevels<redlatch::RLock>>, play<TwoLevels<redlatch::FairLock>>, play<Writer>, play<BothPermits>,
        play<BothMembers>};
    Scheduler scheduler(run.seed, trace);
    const Nanos begun = scheduler.now();
    std::string failure;
    try {
        failure = scheduler.run([&] { programs[run.contest](run, seen); });
    } catch (const std::exception& e) {
        failure = e.what();
    }
    simulated += scheduler.now() - begun;
    return failure;
}

}  // namespace sim
