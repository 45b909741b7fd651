// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/scripts/read_write_lock.hpp"
#include "redlatch/scripts/rlock.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// The names that both sides of a read-write lock share, and their common commands. Both sides listen to one channel.
template <Transport T>
class ReadWriteProtocol {
public:
    static constexpr std::string_view family = "ReadWriteLock";
    static constexpr bool reentrant = true;

    const std::string& key() const noexcept { return key_; }
    const std::string& channel() const noexcept { return channel_; }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static ReleaseAnswer read_release(const Reply& reply) noexcept { return decode_release(reply); }

protected:
    ReadWriteProtocol(Session<T>& session, std::string key)
        : session_(session),
          key_(std::move(key)),
          channel_(prefixed_key("redisson_rwlock", key_)),
          tag_(key_.find('{') == std::string::npos ? "{" + key_ + "}" : key_),
          mark_(suffixed_key(key_, "redlatch_writer_waits")) {}
    ~ReadWriteProtocol() = default;

    // `field` is the owner as a holder of this side.
    template <class Send>
    auto release(const Script& script, std::string_view field, std::uint32_t remaining, Milliseconds lease, Send send) {
        return send(script, Texts<2>{key_, channel_},
                    Texts<5>{field, NumberText(remaining), NumberText(lease.count()), publish_command(), tag_});
    }

    template <class Send>
    auto give_up(const Script& script, std::span<const std::string_view> owners, Send send) {
        return send(script, Texts<2>{key_, channel_}, with_owners({publish_command(), tag_}, owners));
    }

    std::string_view publish_command() { return session_.transport().publish_command(); }
    OwnerText reader(std::uint64_t hold) const noexcept { return {session_.uuid(), hold}; }
    OwnerText writer(std::uint64_t hold) const noexcept { return {session_.uuid(), hold, ":write"}; }

    Session<T>& session_;
    const std::string key_;
    const std::string channel_;
    const std::string tag_;   // prefix of the names of the timeout keys
    const std::string mark_;  // redlatch's own key: exists while a writer with precedence waits
};

// Builds the commands of the readers' side.
template <Transport T>
class ReadProtocol final : public ReadWriteProtocol<T> {
public:
    static constexpr std::string_view kind = "readers ";
    static constexpr const Script& renewal = digested<scripts::read_renew>;
    static constexpr bool shared = true;
    static constexpr bool hands_over = false;
    static constexpr bool outlives_lease = false;

    ReadProtocol(Session<T>& session, std::string key) : ReadWriteProtocol<T>(session, std::move(key)) {}

    template <class Send>
    auto acquire(const Claim& claim, Send send) {
        return send(digested<scripts::read_acquire>, Texts<2>{this->key_, this->mark_},
                    Texts<6>{text(claim.hold), NumberText(claim.count), NumberText(claim.lease.count()),
                             this->writer(claim.writer), this->tag_, NumberText(claim.until)});
    }

    template <class Send>
    auto release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease, bool /* again */, Send send) {
        return ReadWriteProtocol<T>::release(digested<scripts::read_release>, text(hold), remaining, lease,
                                             std::move(send));
    }

    // Releases everything that these owners hold. The reply is the server's clock.
    template <class Send>
    auto give_up(std::span<const std::string_view> owners, Send send) {
        return ReadWriteProtocol<T>::give_up(digested<scripts::read_give_up>, owners, std::move(send));
    }

    // Returns the list of owners that hold this side, whichever they are.
    template <class Send>
    auto holders(Send send) {
        return send(digested<scripts::read_holders>, Texts<1>{this->key_}, Texts<1>{this->tag_});
    }

    template <class Send>
    Reply remaining_lease(Send send) {
        return send(digested<scripts::read_remaining_lease>, Texts<1>{this->key_}, Texts<1>{this->tag_});
    }

    Reply hold_count(std::uint64_t hold, Instant deadline) {
        return this->session_.calling(deadline)(digested<scripts::read_hold_count>, Texts<1>{this->key_},
                                                Texts<2>{text(hold), this->tag_});
    }

    OwnerText text(std::uint64_t hold) const noexcept { return this->reader(hold); }
};

// Builds the commands of the writer's side.
template <Transport T>
class WriteProtocol final : public ReadWriteProtocol<T> {
public:
    static constexpr std::string_view kind = "writers ";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool hands_over = false;
    // A read hold of the same owner keeps the key.
    static constexpr bool outlives_lease = true;

    WriteProtocol(Session<T>& session, std::string key) : ReadWriteProtocol<T>(session, std::move(key)) {}

    template <class Send>
    auto acquire(const Claim& claim, Send send) {
        if (claim.announced) marked_ = true;
        return send(digested<scripts::write_acquire>, Texts<2>{this->key_, this->mark_},
                    Texts<7>{text(claim.hold), NumberText(claim.count), NumberText(claim.lease.count()), this->tag_,
                             this->session_.uuid(), claim.announced ? mark_ttl : "0", NumberText(claim.until)});
    }

    AcquireAnswer read_acquire(const Reply& reply, std::string_view name) {
        const AcquireAnswer answer = decode_acquire(reply, name);
        // The script that acquired the lock deleted the mark.
        if (answer.kind == AcquireAnswer::Kind::held) marked_ = false;
        return answer;
    }

    // Deletes the mark that a waiting thread of this process may have left.
    void withdraw() {
        if (!marked_.exchange(false)) return;
        this->session_.posting([](const Reply&) {})(digested<scripts::write_withdraw>,
                                                    Texts<2>{this->mark_, this->channel_},
                                                    Texts<2>{this->session_.uuid(), this->publish_command()});
    }

    template <class Send>
    auto release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease, bool /* again */, Send send) {
        return ReadWriteProtocol<T>::release(digested<scripts::write_release>, text(hold), remaining, lease,
                                             std::move(send));
    }

    // Releases everything that these owners hold. The reply is the server's clock.
    template <class Send>
    auto give_up(std::span<const std::string_view> owners, Send send) {
        return ReadWriteProtocol<T>::give_up(digested<scripts::write_give_up>, owners, std::move(send));
    }

    // Returns the list of owners that hold this side, whichever they are.
    template <class Send>
    auto holders(Send send) {
        return send(digested<scripts::write_holders>, Texts<1>{this->key_}, Texts<0>{});
    }

    template <class Send>
    Reply remaining_lease(Send send) {
        return send(digested<scripts::write_remaining_lease>, Texts<1>{this->key_}, Texts<0>{});
    }

    Reply hold_count(std::uint64_t hold, Instant deadline) {
        const OwnerText field = text(hold);
        const std::array<std::string_view, 3> words{"HGET", this->key_, field};
        return this->session_.call({words, 1}, deadline);
    }

    OwnerText text(std::uint64_t hold) const noexcept { return this->writer(hold); }

private:
    // How long a writer that dies while it waits keeps readers out, in ms. The mark is renewed after half of this time.
    static constexpr std::string_view mark_ttl = "5000";

    std::atomic<bool> marked_{false};  // True if a mark of this process may be on the server
};

}  // namespace v0_1
}  // namespace redlatch
