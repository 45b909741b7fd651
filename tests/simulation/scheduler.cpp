// SPDX-License-Identifier: MIT
#include "simulation/scheduler.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include <cxxabi.h>
#include <sys/mman.h>

namespace sim {

namespace {

constexpr std::size_t stack_size = 256 * 1024;
constexpr Nanos longest_seed = 3600 * second;
constexpr std::uint64_t most_turns = 400'000;

std::vector<char*> free_stacks;

char* take_stack() {
    if (!free_stacks.empty()) {
        char* const stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }
    void* const memory =
        ::mmap(nullptr, stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::terminate();
    ::mprotect(memory, 4096, PROT_NONE);
    return static_cast<char*>(memory);
}

// Laid out as in the C++ ABI.
struct EhGlobals {
    void* caught;
    unsigned uncaught;
};

EhGlobals& eh_globals() { return *reinterpret_cast<EhGlobals*>(abi::__cxa_get_globals()); }

}  // namespace

Scheduler* Scheduler::current_ = nullptr;

Scheduler::Scheduler(std::uint64_t seed, bool trace) : random_(seed), trace_(trace) { current_ = this; }

Scheduler::~Scheduler() {
    for (const auto& fiber : fibers_)
        if (fiber->stack) free_stacks.push_back(fiber->stack);
    current_ = nullptr;
}

std::string Scheduler::run(std::function<void()> program) {
    Fiber* const first = spawn(0, std::move(program));
    while (!failed_ && !first->ended) {
        Fiber* const next = choose();
        if (!next) {
            if (advance()) continue;
            failure_ = "deadlock: " + stuck();
            break;
        }
        now_ += random_.between(1, 20) * us;
        if (++turns_ > most_turns || now_ > longest_seed) {
            failure_ = "no end in sight: " + stuck();
            break;
        }
        resume(*next);
        // Run the events that have come due meanwhile.
        while (!events_.empty() && events_.top().when <= now_) {
            const auto event = std::move(const_cast<Event&>(events_.top()).what);
            events_.pop();
            event();
        }
        for (Fiber* f : alive_)
            if (f->waiting && f->until <= now_) f->waiting = false;
    }
    if (failure_.empty())
        for (const Fiber* f : alive_)
            if (!f->ended) failure_ = "a thread is left: " + stuck();
    return failure_;
}

// Returns the fiber that runs next. Returns null if none can.
Fiber* Scheduler::choose() {
    std::size_t ready = 0;
    for (const Fiber* f : alive_) ready += !f->waiting;
    if (ready == 0) return nullptr;
    if (first_in_line_.empty()) next_step();
    if (!first_in_line_.empty()) {
        Fiber* const first = first_in_line_.front();
        first_in_line_.pop_front();
        return first;
    }
    std::size_t chosen = ready == 1 ? 0 : random_.below(ready);
    for (Fiber* f : alive_)
        if (!f->waiting && chosen-- == 0) return f;
    return nullptr;
}

// Returns true if a fiber was started that runs first.
bool Scheduler::next_step() {
    ++steps_;
    bool has_started = false;
    while (!forced_.empty() && forced_.front().step <= steps_) {
        Forced forced = std::move(forced_.front());
        forced_.erase(forced_.begin());
        first_in_line_.push_back(spawn(forced.process, std::move(forced.body)));
        has_started = true;
    }
    return has_started;
}

void Scheduler::at_step(std::uint64_t step, int process, std::function<void()> body) {
    const auto later = [step](const Forced& other) { return other.step > step; };
    forced_.insert(std::find_if(forced_.begin(), forced_.end(), later), {step, process, std::move(body)});
}

// Advances to the next instant at which something happens. Returns false if there is none.
bool Scheduler::advance() {
    Nanos next = events_.empty() ? forever : events_.top().when;
    for (const Fiber* f : alive_) next = std::min(next, f->until);
    if (next == forever) return false;
    now_ = std::max(now_, next);
    while (!events_.empty() && events_.top().when <= now_) {
        const auto event = std::move(const_cast<Event&>(events_.top()).what);
        events_.pop();
        event();
    }
    for (Fiber* f : alive_)
        if (f->waiting && f->until <= now_) f->waiting = false;
    return true;
}

void Scheduler::enter() {
    Scheduler& s = *current_;
    Fiber& me = *s.running_;
    try {
        me.body();
    } catch (const std::exception& e) {
        s.fail(std::string("a thread threw: ") + e.what());
    }
    me.body = nullptr;
    me.ended = true;
    s.wake_all(&me);
    s.to_scheduler();
    std::terminate();
}

Fiber* Scheduler::spawn(int process, std::function<void()> body) {
    auto fiber = std::make_unique<Fiber>();
    fiber->id = fibers_.size();
    fiber->process = process;
    fiber->body = std::move(body);
    fiber->stack = take_stack();
    ::getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = stack_size;
    fiber->context.uc_link = nullptr;
    ::makecontext(&fiber->context, &Scheduler::enter, 0);
    alive_.push_back(fiber.get());
    fibers_.push_back(std::move(fiber));
    return fibers_.back().get();
}

void Scheduler::resume(Fiber& fiber) {
    running_ = &fiber;
    EhGlobals& globals = eh_globals();
    const EhGlobals mine = std::exchange(globals, EhGlobals{fiber.caught, fiber.uncaught});
    ::swapcontext(&main_, &fiber.context);
    const EhGlobals theirs = std::exchange(globals, mine);
    fiber.caught = theirs.caught;
    fiber.uncaught = theirs.uncaught;
    running_ = nullptr;
    if (fiber.ended) {
        free_stacks.push_back(std::exchange(fiber.stack, nullptr));
        std::erase(alive_, &fiber);
    }
}

void Scheduler::to_scheduler() { ::swapcontext(&running_->context, &main_); }

bool Scheduler::wait(const void* on, Nanos until, const char* what) {
    Fiber& me = *running_;
    me.waiting = true;
    me.notified = false;
    me.on = on;
    me.until = until;
    me.what = what;
    to_scheduler();
    me.on = nullptr;
    me.until = forever;
    return me.notified;
}

// Any waiter may be woken, so choose one at random.
void Scheduler::wake_one(const void* on) {
    std::uint64_t count = 0;
    Fiber* chosen = nullptr;
    for (Fiber* f : alive_)
        if (f->waiting && f->on == on && random_.below(++count) == 0) chosen = f;
    if (!chosen) return;
    chosen->waiting = false;
    chosen->notified = true;
}

void Scheduler::wake_all(const void* on) {
    for (Fiber* f : alive_)
        if (f->waiting && f->on == on) {
            f->waiting = false;
            f->notified = true;
        }
}

void Scheduler::join(Fiber& fiber) {
    while (!fiber.ended) wait(&fiber, forever, "join");
}

void Scheduler::yield() { to_scheduler(); }

void Scheduler::may_switch() {
    if (next_step()) return yield();
    if (!random_.chance(interleaving_.switches)) return;
    if (random_.chance(interleaving_.stalls))
        sleep(random_.between(0, interleaving_.longest_stall));
    else
        yield();
}

void Scheduler::at(Nanos when, std::function<void()> event) {
    events_.push({std::max(when, now_), ++events_so_far_, std::move(event)});
}

void Scheduler::crash(int process) {
    crashed_.push_back(process);
    std::erase_if(alive_, [&](Fiber* f) { return f->process == process; });
}

bool Scheduler::has_crashed(int process) const {
    return std::find(crashed_.begin(), crashed_.end(), process) != crashed_.end();
}

void Scheduler::fail(const std::string& what) {
    if (!failed_) failure_ = what;
    failed_ = true;
    trace("FAILED: " + what);
    if (running_) to_scheduler();
    throw std::runtime_error(what);  // in an event: the caller of run() gets it
}

void Scheduler::trace(const std::string& line) {
    if (!trace_) return;
    std::fprintf(stderr, "%12.6f %2d:%-3d %s\n", static_cast<double>(now_) / second, running_ ? running_->process : -1,
                 running_ ? static_cast<int>(running_->id) : -1, line.c_str());
}

std::string Scheduler::stuck() const {
    std::string text;
    for (const Fiber* f : alive_)
        text += " " + std::to_string(f->process) + ":" + std::to_string(f->id) + (f->waiting ? " " : " runs, last ") +
                f->what;
    return text;
}

}  // namespace sim
