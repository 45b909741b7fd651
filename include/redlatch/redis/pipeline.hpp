// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/redis/answered.hpp"
#include "redlatch/redis/encode.hpp"
#include "redlatch/redis/failure_reply.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The commands of one connection: bytes to write, and replies to come. A pure queue, without socket, mutex or clock.
// Its owner serialises all calls.
//
// A command is in one of four states:
//   - waiting: its bytes are in the buffer of the next write. It had no effect.
//   - staged: its bytes are being written. The server may have all of them already, and may reply.
//   - written: all its bytes are written. Only its reply is missing.
//   - done: it has its reply and has left the queue.
// The server replies in order, so the queue is always in the order written, staged, waiting.
class Pipeline {
public:
    Pipeline() = default;
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    std::size_t in_flight() const noexcept { return slots_.size() - head_; }
    std::size_t waiting() const noexcept { return waiting_; }
    std::size_t staged() const noexcept { return staged_; }

    // Returns true if so many commands wait that they are worth a write, even if another thread would write them soon.
    bool has_many_waiting() const noexcept { return waiting_ >= 16; }

    std::size_t written() const noexcept { return in_flight() - staged_ - waiting_; }

    // Returns when the first reply is due; `never` if none is to come.
    Instant due() const noexcept { return in_flight() > 0 ? slots_[head_].due : never; }

    // Gives all commands the same time. For those that had to wait for a connection.
    void set_due(Instant due) noexcept {
        for (Slot& slot : slots_) slot.due = due;
    }

    // --- adding -----------------------------------------------------------------------------------------------

    // Each of these adds all commands, or none if memory runs out.

    void call(std::span<const Command> commands, Exchange& exchange, Instant due) {
        append(commands);
        for (std::size_t i = 0; i < commands.size(); ++i) slots_.push_back({&exchange, nullptr, due});
    }

    void post(std::span<const Command> commands, std::span<std::unique_ptr<PostedCommand>> posted, Instant due) {
        append(commands);
        for (std::unique_ptr<PostedCommand>& one : posted) slots_.push_back({nullptr, std::move(one), due});
    }

    // Moves all commands of another queue to this one. That one has written nothing of them.
    void take_over(Pipeline& other) {
        make_room(other.in_flight());
        to_write_ += other.to_write_;
        std::move(other.begin(), other.slots_.end(), std::back_inserter(slots_));
        waiting_ += other.waiting_;
        other.clear();
    }

    // --- writing: one thread at a time ------------------------------------------------------------------------

    bool has_bytes() const noexcept { return is_full_ || !to_write_.empty(); }

    // Returns true if the last write found no room for all its bytes.
    bool is_full() const noexcept { return is_full_; }

    // Returns the bytes to write: the rest of the last write, or else those of all waiting commands. They stay valid
    // until wrote() or drop_staged().
    std::string_view stage() noexcept {
        if (!is_full_) {
            std::swap(to_write_, staged_bytes_);
            rest_ = staged_bytes_;
            staged_ += std::exchange(waiting_, 0);
        }
        return rest_;
    }

    // Ends the write of the bytes that stage() returned. True `is_full`: there was no room for the rest, and perhaps
    // for bytes that the connection has buffered.
    void wrote(std::string_view rest, bool is_full) noexcept {
        rest_ = rest;
        is_full_ = is_full;
        if (is_full) return;
        staged_ = 0;
        staged_bytes_.clear();
    }

    // Drops bytes whose commands have failed. Not while they are being written.
    void drop_staged() noexcept { wrote({}, false); }

    // --- replies ----------------------------------------------------------------------------------------------

    // Hands out replies, until one comes for which no command was sent: the result counts those before it.
    Answered take(std::span<Reply> replies) noexcept {
        Answered answered;
        for (Reply& reply : replies) {
            if (in_flight() == waiting_) break;
            answered.add(slots_[head_].exchange, slots_[head_].posted, std::move(reply));
            pop();
        }
        return answered;
    }

    // Ends all commands. Those that wait get `not_sent`. The others may have been carried out and get `unanswered`, the
    // first of them with the kind `first`. Leaves alone the bytes that may be being written.
    Answered fail(Reply::Kind first, const Reply& unanswered, const Reply& not_sent) noexcept {
        Answered answered;
        for (bool is_first = true; in_flight() > 0; is_first = false) {
            const bool is_sent = in_flight() > waiting_;
            const Reply& why = is_sent ? unanswered : not_sent;
            Reply reply;
            detail::copy_reply(reply, why, is_sent && is_first ? first : why.kind);
            answered.add(slots_[head_].exchange, slots_[head_].posted, std::move(reply));
            ++head_;
        }
        clear();
        return answered;
    }

    // --- callers ----------------------------------------------------------------------------------------------

    // Returns false as soon as all replies of the exchange have been handed out.
    bool awaits(const Exchange& exchange) const noexcept {
        return std::any_of(slots_.rbegin(), rend(), [&](const Slot& slot) { return slot.exchange == &exchange; });
    }

    // Returns the exchange of the command added last, except this one; null if there is none.
    Exchange* last_exchange(const Exchange* except) const noexcept {
        const auto found = std::find_if(slots_.rbegin(), rend(), [&](const Slot& slot) {
            return slot.exchange != nullptr && slot.exchange != except;
        });
        return found != rend() ? found->exchange : nullptr;
    }

    // A caller leaves: its exchange gets `reply` for all that are missing. The slots stay, so that later replies still
    // find their owners.
    void abandon(Exchange& exchange, const Reply& reply) noexcept {
        for (auto slot = begin(); slot != slots_.end(); ++slot)
            if (slot->exchange == &exchange) slot->exchange = nullptr;
        while (exchange.missing > 0) exchange.add(detail::copy_of(reply));
    }

    // Drops everything without completing it. What the commands keep alive may call the queue when it ends.
    void forget() noexcept {
        const std::vector<Slot> posted = std::exchange(slots_, {});
        clear();
    }

private:
    // A reply to come. If both exchange and posted are null, its caller has left.
    struct Slot {
        Exchange* exchange;
        std::unique_ptr<PostedCommand> posted;
        Instant due;
    };

    std::vector<Slot>::iterator begin() noexcept { return slots_.begin() + static_cast<std::ptrdiff_t>(head_); }
    std::vector<Slot>::const_reverse_iterator rend() const noexcept {
        return slots_.rend() - static_cast<std::ptrdiff_t>(head_);
    }

    // Appends the bytes of whole commands, or nothing: a partial one would corrupt all that follow. After this, pushing
    // their slots allocates nothing.
    void append(std::span<const Command> commands) {
        make_room(commands.size());
        const std::size_t before = to_write_.size();
        try {
            for (const Command& command : commands) append_command(to_write_, command);
        } catch (...) {
            to_write_.resize(before);
            throw;
        }
        waiting_ += commands.size();
    }

    void make_room(std::size_t more) {
        const std::size_t wanted = slots_.size() + more;
        if (wanted > slots_.capacity()) slots_.reserve(std::max(wanted, slots_.capacity() * 2));
    }

    // A vector with a moving head instead of a deque: once large enough, it allocates nothing.
    void pop() noexcept {
        if (written() == 0) --staged_;
        if (++head_ == slots_.size()) {
            slots_.clear();
            head_ = 0;
        } else if (head_ >= 64 && head_ * 2 >= slots_.size()) {
            slots_.erase(slots_.begin(), begin());
            head_ = 0;
        }
    }

    void clear() noexcept {
        slots_.clear();
        head_ = 0;
        to_write_.clear();
        waiting_ = 0;
        staged_ = 0;
    }

    std::vector<Slot> slots_;
    std::size_t head_ = 0;     // the slots before it are done
    std::size_t waiting_ = 0;  // how many of the last slots are in this state
    std::size_t staged_ = 0;   // how many before those
    std::string to_write_;     // the bytes of the waiting commands
    std::string staged_bytes_;
    std::string_view rest_;  // the unwritten end of staged_bytes_
    bool is_full_ = false;   // there was no room for the rest
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
