// SPDX-License-Identifier: MIT
#include "simulation/pairs.hpp"

#include "simulation/pair_run.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

namespace sim {

namespace {

// Each pair in each contest has so many operations, each with an interleaving and a way to complete. In every second round
// the holder belongs to the client that waits.
constexpr std::uint64_t rounds = 2;
// The second happening comes at the step of the first and, for every second step, at one of so many next ones.
constexpr std::uint64_t near = 6;
// After so many of the steps it also comes later, until nothing happens any more: at one step of so many.
constexpr std::uint64_t far_steps = 2;
constexpr std::uint64_t far_stride = 7;

constexpr std::array all_happenings{Happening::grant, Happening::stop, Happening::destroyed, Happening::cut,
                                    Happening::closed};

class Enumeration {
public:
    explicit Enumeration(const PairsWanted& wanted) : wanted_(wanted) {}

    bool run() {
        for (std::uint64_t round = 0; round < rounds; ++round)
            for (std::size_t contest = 0; contest < contest_names.size(); ++contest)
                for (const Happening a : all_happenings)
                    for (const Happening b : all_happenings)
                        if (a != Happening::destroyed || b != Happening::destroyed) force(round, contest, a, b);
        if (!is_whole()) {
            std::printf("pairs: runs=%llu failures=%llu\n", number(runs_), number(failures_));
            return failures_ == 0;
        }
        std::printf(
            "pairs: runs=%llu pairs=%zu operations=%llu pairs_at_steps=%llu missed=%llu simulated_hours=%.1f "
            "failures=%llu\n",
            number(runs_), pairs_.size(), number(operations_), number(pairs_at_steps_), number(missed_),
            static_cast<double>(simulated_) / (3600.0 * second), number(failures_));
        return failures_ == 0 && missed_ == 0 && runs_ >= 10'000;
    }

private:
    static unsigned long long number(std::uint64_t n) { return n; }
    bool is_whole() const { return wanted_.first == 1 && wanted_.count == UINT64_MAX; }
    bool is_over() const { return failures_ >= wanted_.most_failures; }

    // Forces one pair at each step of the life of one operation.
    void force(std::uint64_t round, std::size_t contest, Happening a, Happening b) {
        if (is_over()) return;
        pairs_.emplace(a, b);
        PairRun run{.contest = contest, .what = {a, b}, .same_client = round % 2 == 1};
        run.seed = ++operations_;
        run.way = a == Happening::destroyed || b == Happening::destroyed
                      ? PairRun::Way::coroutine
                      : static_cast<PairRun::Way>((operations_ + contest + round) % 3);
        const PairSeen life = play(run, true);
        // A grant has to come before that of the holder itself.
        const bool grants = a == Happening::grant || b == Happening::grant;
        const std::uint64_t steps = std::max<std::uint64_t>(grants ? life.released : life.completed, 1) - 1;
        for (std::uint64_t i = 1; i <= steps && !is_over(); ++i) {
            const PairSeen together = play(at(run, i, i, (i + round) % 2 == 0), false);
            if (together.hit[0] && together.hit[1])
                ++pairs_at_steps_;
            else if (is_known_)
                miss(run, i);
            if ((i + operations_) % 2 == 0) play(at(run, i, i + 1 + i / 2 % near, i / 4 % 2 == 0), false);
        }
        if (steps == 0) miss(run, 0);
        for (std::uint64_t k = 0; k < far_steps && !is_over(); ++k) {
            const std::uint64_t i = 1 + (2 * k + 1) * steps / (2 * far_steps);
            PairRun alone = run;
            alone.at[0] = i;
            const std::uint64_t end = play(alone, true).quiet;
            for (std::uint64_t j = i + near + 1 + operations_ % far_stride; j < end && !is_over(); j += far_stride)
                play(at(run, i, j, j / far_stride % 2 == 0), false);
        }
    }

    static PairRun at(PairRun run, std::uint64_t i, std::uint64_t j, bool closes_by_end) {
        run.at = {i, j};
        run.closes_by_end = closes_by_end;
        return run;
    }

    void miss(const PairRun& run, std::uint64_t i) {
        if (++missed_ <= wanted_.most_failures)
            std::printf("never hit before the completion:%s, step %llu\n", text(run).c_str(), number(i));
    }

    // Runs it if it is wanted, or if the others depend on what is seen.
    PairSeen play(const PairRun& run, bool is_needed) {
        PairSeen seen;
        const std::uint64_t n = ++numbered_;
        is_known_ = n >= wanted_.first && n - wanted_.first < wanted_.count;
        if (!is_known_ && !is_needed) return seen;
        const std::string failure = run_pair(run, is_known_ && wanted_.trace, seen, simulated_);
        if (!is_known_) return seen;
        ++runs_;
        if (failure.empty()) return seen;
        ++failures_;
        std::printf(
            "pair run %llu:%s: %s\n    again, with all that happens: cmake -DKIND=pairs -DSEED=%llu -DTRACE=ON -P "
            "cmake/simulation.cmake\n",
            number(n), text(run).c_str(), failure.c_str(), number(n));
        std::fflush(stdout);
        return seen;
    }

    static std::string text(const PairRun& run) {
        constexpr std::array ways{"callback", "callback on an executor", "coroutine"};
        std::string text = std::string(" ") + contest_names[run.contest] + ", " +
                           ways[static_cast<std::size_t>(run.way)] + (run.same_client ? ", same client" : "");
        for (std::size_t i = 0; i < 2; ++i)
            text += std::string(", ") + happening_names[static_cast<std::size_t>(run.what[i])] +
                    (run.at[i] > 0 ? " at " + std::to_string(run.at[i]) : "");
        return text + (run.closes_by_end ? ", closed by its end" : "");
    }

    const PairsWanted wanted_;
    bool is_known_ = false;  // the last run was wanted
    std::uint64_t numbered_ = 0;
    std::uint64_t operations_ = 0;
    std::uint64_t runs_ = 0;
    std::set<std::pair<Happening, Happening>> pairs_;
    std::uint64_t pairs_at_steps_ = 0;  // together, before the completion
    std::uint64_t missed_ = 0;
    std::uint64_t failures_ = 0;
    Nanos simulated_ = 0;
};

}  // namespace

bool run_pairs(const PairsWanted& wanted) { return Enumeration(wanted).run(); }

}  // namespace sim
