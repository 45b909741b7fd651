// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/lock_answers.hpp"
#include "redlatch/client/release_latch.hpp"
#include "redlatch/client/runtime.hpp"
#include "redlatch/core/ids.hpp"
#include "redlatch/core/names.hpp"
#include "redlatch/scripts/read_write_lock.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {

// The names that both sides of a read-write lock have in common, and how they speak: both listen to one channel.
template <Transport T>
class ReadWriteWire {
public:
    const std::string& key() const noexcept { return key_; }
    const std::string& channel() const noexcept { return channel_; }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }

protected:
    ReadWriteWire(Runtime<T>& runtime, std::string key)
        : runtime_(runtime),
          key_(std::move(key)),
          channel_(prefixed_key("redisson_rwlock", key_)),
          tag_(key_.find('{') == std::string::npos ? "{" + key_ + "}" : key_),
          mark_(suffixed_key(key_, "redlatch_writer_waits")),
          latches_(key_, runtime.uuid()) {}
    ~ReadWriteWire() = default;

    // `field` is the owner as a holder of this side.
    Reply release(const Script& script, std::string_view field, std::uint32_t remaining, Milliseconds lease,
                  std::uint64_t request, bool again, Instant deadline) {
        return call(script, std::array<std::string_view, 3>{key_, channel_, latches_.of(request)},
                    std::array<std::string_view, 6>{field, NumberText(remaining), NumberText(lease.count()),
                                                    ReleaseLatches::ttl(again), publish_command(), tag_},
                    deadline);
    }

    void post_release(const Script& script, std::string_view field, std::uint64_t request, bool again,
                      Completion done) {
        const ReleaseLatches::Key latch = latches_.of(request);
        runtime_.post_script(
            script, std::array<std::string_view, 3>{key_, channel_, latch},
            std::array<std::string_view, 6>{field, "0", "0", ReleaseLatches::ttl(again), publish_command(), tag_},
            std::move(done));
    }

    Reply force_release(const Script& script, Instant deadline) {
        return call(script, std::array<std::string_view, 2>{key_, channel_},
                    std::array<std::string_view, 2>{publish_command(), tag_}, deadline);
    }

    // The temporaries behind the words live until the call returns: they are part of the caller's full expression.
    template <std::size_t K, std::size_t A>
    Reply call(const Script& script, const std::array<std::string_view, K>& keys,
               const std::array<std::string_view, A>& arguments, Instant deadline) {
        return runtime_.call_script(script, keys, arguments, deadline);
    }

    std::string_view publish_command() { return runtime_.transport().publish_command(); }
    OwnerText reader(OwnerNumber owner) const noexcept { return {runtime_.uuid(), owner}; }
    OwnerText writer(OwnerNumber owner) const noexcept { return {runtime_.uuid(), owner, ":write"}; }

    Runtime<T>& runtime_;
    const std::string key_;
    const std::string channel_;
    const std::string tag_;   // where the names of the timeout keys begin
    const std::string mark_;  // ours alone: there while a writer waits that has precedence
    const ReleaseLatches latches_;
};

// The commands of the readers' side.
template <Transport T>
class ReadWire final : public ReadWriteWire<T> {
public:
    static constexpr std::string_view kind = "readers ";
    static constexpr const Script& renewal = digested<scripts::read_renew>;
    static constexpr bool shared = true;
    static constexpr bool hands_over = false;
    static constexpr bool outlives_lease = false;

    ReadWire(Runtime<T>& runtime, std::string key) : ReadWriteWire<T>(runtime, std::move(key)) {}

    Reply acquire(OwnerNumber owner, std::uint32_t count, Milliseconds lease, bool, Instant deadline) {
        return this->call(digested<scripts::read_acquire>, std::array<std::string_view, 2>{this->key_, this->mark_},
                          std::array<std::string_view, 5>{text(owner), NumberText(count), NumberText(lease.count()),
                                                          this->writer(owner), this->tag_},
                          deadline);
    }

    Reply release(OwnerNumber owner, std::uint32_t remaining, Milliseconds lease, std::uint64_t request, bool again,
                  Instant deadline) {
        return ReadWriteWire<T>::release(digested<scripts::read_release>, text(owner), remaining, lease, request, again,
                                         deadline);
    }

    void post_release(OwnerNumber owner, std::uint64_t request, bool again, Completion done) {
        ReadWriteWire<T>::post_release(digested<scripts::read_release>, text(owner), request, again, std::move(done));
    }

    Reply force_release(Instant deadline) {
        return ReadWriteWire<T>::force_release(digested<scripts::read_force_release>, deadline);
    }

    Reply remaining_lease(Instant deadline) {
        return this->call(digested<scripts::read_remaining_lease>, std::array<std::string_view, 1>{this->key_},
                          std::array<std::string_view, 1>{this->tag_}, deadline);
    }

    Reply hold_count(OwnerNumber owner, Instant deadline) {
        return this->call(digested<scripts::read_hold_count>, std::array<std::string_view, 1>{this->key_},
                          std::array<std::string_view, 2>{text(owner), this->tag_}, deadline);
    }

    OwnerText text(OwnerNumber owner) const noexcept { return this->reader(owner); }
};

// The commands of the writer's side.
template <Transport T>
class WriteWire final : public ReadWriteWire<T> {
public:
    static constexpr std::string_view kind = "writers ";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool hands_over = false;
    // A read hold of the same owner keeps the key.
    static constexpr bool outlives_lease = true;

    WriteWire(Runtime<T>& runtime, std::string key) : ReadWriteWire<T>(runtime, std::move(key)) {}

    // `announced`: new readers are to stay out while it waits.
    Reply acquire(OwnerNumber owner, std::uint32_t count, Milliseconds lease, bool announced, Instant deadline) {
        if (announced) marked_ = true;
        Reply reply =
            this->call(digested<scripts::write_acquire>, std::array<std::string_view, 2>{this->key_, this->mark_},
                       std::array<std::string_view, 6>{text(owner), NumberText(count), NumberText(lease.count()),
                                                       this->tag_, this->runtime_.uuid(), announced ? mark_ttl : "0"},
                       deadline);
        // Then the mark is gone, too.
        if (reply.is_nil()) marked_ = false;
        return reply;
    }

    // Nobody of this process waits any more.
    void withdraw() {
        if (!marked_.exchange(false)) return;
        this->runtime_.post_script(
            digested<scripts::write_withdraw>, std::array<std::string_view, 2>{this->mark_, this->channel_},
            std::array<std::string_view, 2>{this->runtime_.uuid(), this->publish_command()}, [](const Reply&) {});
    }

    Reply release(OwnerNumber owner, std::uint32_t remaining, Milliseconds lease, std::uint64_t request, bool again,
                  Instant deadline) {
        return ReadWriteWire<T>::release(digested<scripts::write_release>, text(owner), remaining, lease, request,
                                         again, deadline);
    }

    void post_release(OwnerNumber owner, std::uint64_t request, bool again, Completion done) {
        ReadWriteWire<T>::post_release(digested<scripts::write_release>, text(owner), request, again, std::move(done));
    }

    Reply force_release(Instant deadline) {
        return ReadWriteWire<T>::force_release(digested<scripts::write_force_release>, deadline);
    }

    Reply remaining_lease(Instant deadline) {
        return this->call(digested<scripts::write_remaining_lease>, std::array<std::string_view, 1>{this->key_},
                          std::array<std::string_view, 0>{}, deadline);
    }

    Reply hold_count(OwnerNumber owner, Instant deadline) {
        const OwnerText field = text(owner);
        const std::array<std::string_view, 3> words{"HGET", this->key_, field};
        return this->runtime_.call({words, 1}, deadline);
    }

    OwnerText text(OwnerNumber owner) const noexcept { return this->writer(owner); }

private:
    // What a writer that dies while it waits can cost the readers; renewed after half of it.
    static constexpr std::string_view mark_ttl = "5000";

    std::atomic<bool> marked_{false};  // a mark of this process may be on the server
};

}  // namespace redlatch
